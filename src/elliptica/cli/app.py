"""The program itself: its options, and the check for the packages that a command needs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from elliptica import __version__
from elliptica._utils.extras import import_extra
from elliptica._utils.text import did_you_mean

app = typer.Typer(
    help="Elliptic loss regularisation for PyTorch: train on Brownian bridges between your data points.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Name = TypeVar("Name", bound=Enum)

#: Option of every command that reads data.
DataDir = Annotated[
    Path | None, typer.Option(help="Where data are.", show_default="ELLIPTICA_DATA, or the cache")
]


def require_extra(extra: str, *packages: str) -> None:
    """Try to import what a command needs; if a package is missing, name the extra that brings it.

    Called before anything slow is imported, so that the answer comes at once.
    """
    try:
        import_extra("This command", extra, *packages)
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def parser_of(kind: type[Name]) -> Callable[[str], Name]:
    """Reads one of a few names, in capitals or not; the answer to any other names the nearest."""

    def parse(value: str) -> Name:
        known = [str(each.value) for each in kind]
        if value.lower() in known:
            return kind(value.lower())
        hint = did_you_mean(value, known) or f"Pass one of {', '.join(known)}."
        raise typer.BadParameter(f"There is no {value!r}. {hint}")

    return parse


def print_text(console: Console, text: str) -> None:
    """Print whole words on a screen, whole lines into a file."""
    console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def print_point(console: Console, text: str) -> None:
    """Print a point of a list, indented below its dash."""
    if not console.is_terminal:
        print_text(console, f"- {escape(text)}")
        return
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row("-", escape(text))
    console.print(grid, highlight=False)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"elliptica {__version__}")
        raise typer.Exit
    return wanted  # it becomes the option's value


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the program itself."""
    warnings.showwarning = _show_warning


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Warnings of ours as one line for the user; others as Python shows them."""
    if category.__name__ == "EllipticWarning":
        typer.echo(f"warning: {message}", err=True)
    else:
        _python_shows(message, category, *place, **more)


_python_shows = warnings.showwarning
