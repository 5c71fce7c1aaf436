"""`elliptica table`: a table from its records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from elliptica.cli import options as shared
from elliptica.cli.app import THE_PAPER, app, one_of, require_extra
from elliptica.cli.options import load_own, make_choice, print_error

if TYPE_CHECKING:
    from elliptica.lab.experiments.choice import Choice
    from elliptica.lab.experiments.specification import Run
    from elliptica.lab.experiments.table import Format
    from elliptica.lab.experiments.table import Part as PartName


#: What a table can be about: parts of the data, or the cost of its runs.
Part = Literal["test", "validation", "cost"]

#: Which epoch of each run counts.
Epoch = Literal["chosen", "last", "late", "best"]

#: Forms of a table.
Form = Literal["markdown", "latex", "csv"]


@app.command(rich_help_panel=THE_PAPER)
def table(
    table: shared.TableName,
    plugin: shared.Plugins = None,
    dataset: shared.Dataset = None,
    methods: shared.Methods = None,
    seeds: shared.Seeds = None,
    epochs: shared.Epochs = None,
    precision: shared.Precision = None,
    match: shared.Match = None,
    select: shared.Select = None,
    tuned: shared.Tuned = False,
    part: Annotated[
        Part,
        one_of(
            Part, help="validation is for choices among methods; cost: rows and seconds to the chosen epoch."
        ),
    ] = "test",
    epoch: Annotated[
        Epoch,
        one_of(
            Epoch,
            help="chosen on validation; last; late: mean of the last tenth; best on the part itself. All but "
            "chosen need elliptica run --every-epoch.",
        ),
    ] = "chosen",
    form: Annotated[Form, one_of(Form, "--format", help="How to print it.")] = "markdown",
    out: shared.Records = Path("runs"),
) -> None:
    """Print a table from its records, the paper's values beside ours."""
    require_extra("lab", "pydantic", "safetensors", "sklearn")
    from elliptica.lab.experiments.epochs import NoEpochsError
    from elliptica.lab.experiments.specification import SpecificationError

    console = Console()
    choice = make_choice(table, dataset, methods, seeds, epochs, precision, match, tuned, select, plugin)
    load_own(plugin)
    try:
        wanted = choice.runs(out)
    except SpecificationError as error:
        print_error(error, console)
        raise typer.Exit(2) from None
    if not out.is_dir():
        print_error(f"There is no folder {out}. Say where the records are with --out.", console)
        raise typer.Exit(2)
    try:
        print_table(choice, wanted, out, form, part, console, epoch)
    except NoEpochsError as error:
        print_error(error, console)
        raise typer.Exit(2) from None


def print_table(
    choice: Choice,
    wanted: list[Run],
    out: Path,
    form: Format,
    part: PartName,
    console: Console,
    epoch: Epoch = "chosen",
) -> None:
    """Print the table of the records in a folder."""
    from elliptica.lab.experiments.choice import hidden_records
    from elliptica.lab.experiments.plugins import version_remarks
    from elliptica.lab.experiments.records import read_records
    from elliptica.lab.experiments.table import make_table, render

    records = read_records(out, wanted)
    hidden = [] if len(records) == len(wanted) else hidden_records(choice, wanted, out)
    if not records and form == "markdown":
        begin = f"No run of this table is recorded in {out} yet."
        told = hidden or [f"To do them: {choice.command('run', out)}"]
        console.print("\n".join([begin, *told, ""]), markup=False, highlight=False, soft_wrap=True)
        hidden = []
    remarks = (*choice.remarks(), *hidden, *version_remarks(records))
    found = make_table(choice.name, choice.specification, wanted, records, part, remarks, epoch)
    console.print(render(found, form), markup=False, highlight=False, soft_wrap=True)
