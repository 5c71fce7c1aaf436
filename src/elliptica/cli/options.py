"""Options that commands about the paper's experiments share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from elliptica.cli.app import one_of

if TYPE_CHECKING:
    from elliptica.lab.experiments.choice import Choice


#: What is matched between methods.
MatchName = Literal["evaluations"]

#: Number formats of the forward pass.
PrecisionName = Literal["float32", "bfloat16"]

#: Measures that choose epochs and settings.
SelectName = Literal["average", "worst"]

TableName = Annotated[
    str, typer.Argument(help="Name of the table, see elliptica list; or a file of your own, mine.toml.")
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Your own methods, data and networks: a Python file, which is run. Repeatable.",
    ),
]
Dataset = Annotated[
    list[str] | None, typer.Option("--dataset", help="Only these data sets: a,b or repeated.")
]
Methods = Annotated[list[str] | None, typer.Option("--methods", help="Only these rows: a,b or repeated.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Number of repetitions.", show_default="the table's")]
Epochs = Annotated[
    int | None, typer.Option(min=1, help="Epochs of every method.", show_default="the table's")
]
Precision = Annotated[
    PrecisionName | None,
    one_of(PrecisionName, help="Number format of the forward pass.", show_default="float32"),
]
Match = Annotated[
    MatchName | None,
    one_of(
        MatchName,
        "--match",
        help="evaluations: every method evaluates as many rows as ordinary training does.",
    ),
]
Select = Annotated[
    SelectName | None,
    one_of(
        SelectName,
        help="Measure on the validation part that chooses epochs (and settings).",
        show_default="the table's",
    ),
]
Tuned = Annotated[bool, typer.Option("--tuned", help="Use the settings that elliptica tune chose.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time, each with one thread.")]
Ray = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Do the runs on this Ray cluster: auto, local or HOST:PORT."),
]
Device = Annotated[str, typer.Option(help="Device to train on: cpu, cuda, ...")]
Board = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard", help="Folder for TensorBoard event files.", file_okay=False, show_default="none"
    ),
]
Records = Annotated[Path, typer.Option("--out", "--runs", help="Folder of the records.", file_okay=False)]


def make_choice(
    table: str,
    dataset: list[str] | None,
    methods: list[str] | None,
    seeds: int | None,
    epochs: int | None,
    precision: PrecisionName | None,
    match: MatchName | None,
    tuned: bool,
    select: SelectName | None = None,
) -> Choice:
    """Collect the options that select runs."""
    from elliptica.lab.experiments.choice import Choice

    training: dict[str, Any] = {} if epochs is None else {"epochs": epochs}
    if precision not in (None, "float32"):
        training["precision"] = precision
    return Choice(
        table,
        _split(dataset),
        _split(methods),
        seeds,
        match is not None,
        training,
        tuned,
        select,
    )


def load_own(plugin: list[str] | None) -> tuple[str, ...]:
    """Run the user's own files."""
    from elliptica.lab.experiments.plugins import load_plugins

    return load_plugins(plugin or ())


def _split(names: list[str] | None) -> list[str] | None:
    """Split names that are given one by one or separated by commas."""
    return (
        None
        if names is None
        else [part.strip() for name in names for part in name.split(",") if part.strip()]
    )


def print_error(error: object, console: Console) -> None:
    """Print an error message without markup."""
    console.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
