"""The command-line program, the one handler of its errors, and what its commands share."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

import elliptica
from elliptica._utils.extras import import_extra
from elliptica._utils.files import is_not_written, not_written

#: Groups of commands in `elliptica --help`, and the order of the commands.
TRY, YOUR_DATA, THE_PAPER = "Try it", "Your data", "The paper"
_ORDER = ["demo", "compare", "predict", "diagnose", "report", "list", "data", "run", "table", "tune"]
#: Environment variable that shows tracebacks.
_TRACEBACK = "ELLIPTICA_TRACEBACK"


class _Program(TyperGroup):
    """List commands in a sensible order, and end every error with one sentence."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help text; new commands come last."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an output that takes nothing is an error here, not at the end of Python."""
        try:
            return super().invoke(ctx)
        finally:
            if sys.stdout is not None:  # it is if the shell closed it
                sys.stdout.flush()

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command; status 2 if the input is wrong, 1 if something else failed."""
        _prepare_output()
        try:
            return super().main(*args, **options)
        except Exception as error:
            if os.environ.get(_TRACEBACK):
                raise
            sys.stderr.write(f"error: {_sentence(error)}\n")
            sys.exit(2 if isinstance(error, ValueError) else 1)


def _sentence(error: Exception) -> str:
    """Say what an error means, in one line."""
    if isinstance(error, OSError) and is_not_written(error):
        return not_written(error)
    text = " ".join(str(error).split())
    if isinstance(error, ValueError | OSError | ModuleNotFoundError) and text:
        return f"{text:.1000}"
    return f"{type(error).__name__}: {text:.300} (set {_TRACEBACK}=1 to see where it comes from)"


def _prepare_output() -> None:
    """Let no width of zero hide all output, and no encoding stop it: what it lacks is escaped."""
    if os.environ.get("COLUMNS", "").strip("0") == "" and "COLUMNS" in os.environ:
        del os.environ["COLUMNS"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


app = typer.Typer(
    cls=_Program,
    help="Train on the paths between your data points, and find out whether that helps.",
    epilog="Start with: elliptica demo, elliptica compare diabetes, elliptica run table3 --dataset no2",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

#: Option of every command that reads data.
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of the data.", show_default="ELLIPTICA_DATA, or the cache")
]


def require_extra(extra: str, *packages: str) -> None:
    """Import what a command needs before slow imports; a missing package names the extra to install."""
    import_extra("This command", extra, *packages)


def one_of(names: Any, *flags: str, **options: Any) -> Any:
    """Make an option for the values of a ``Literal``, in any case."""
    known = get_args(names)

    def parse(value: str) -> str:
        if value.lower() in known:
            return value.lower()
        raise typer.BadParameter(f"Unknown value {value!r}. Pass one of {', '.join(known)}.")

    return typer.Option(*flags, parser=parse, metavar=f"<{'|'.join(known)}>", **options)


def check_place(file: Path) -> None:
    """Raise a ValueError before the work if a file cannot be written. Creates nothing yet."""
    if file.is_dir():
        raise ValueError(f"{file} is a folder. Pass the name of a file to --out.")
    near = next(folder for folder in file.absolute().parents if folder.exists())
    try:  # a folder like /proc says that it is writable, but is not
        Path(tempfile.mkdtemp(dir=near)).rmdir()
    except OSError as error:
        raise ValueError(f"The folder {near} is not writable. Choose another --out.") from error


def print_text(console: Console, text: str) -> None:
    """Print text, wrapped on a screen and as whole lines in a file."""
    console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def print_point(console: Console, text: str) -> None:
    """Print an item of a list, indented below its dash."""
    if not console.is_terminal:
        print_text(console, f"- {escape(text)}")
        return
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row("-", escape(text))
    console.print(grid, highlight=False)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"elliptica {elliptica.__version__}")
        raise typer.Exit
    return wanted  # becomes the value of the option


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the program itself."""
    warnings.showwarning = _show_warning


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Print our own warnings as one line; leave others to Python."""
    if category.__name__ == "EllipticWarning":
        typer.echo(f"warning: {message}", err=True)
    else:
        _python_shows(message, category, *place, **more)


_python_shows = warnings.showwarning
