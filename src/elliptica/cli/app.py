"""The command-line program: its options, and the check for packages that a command needs."""

from __future__ import annotations

import errno
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

from elliptica import __version__
from elliptica._utils.extras import import_extra
from elliptica._utils.files import is_not_written, not_written

#: Removed commands and their replacements.
_REPLACED = {
    "cost": "call elliptica.landscape.step_cost in Python",
    "figure": "use elliptica demo --figure NAME",
    "gallery": "make docs puts committed results on the documentation site; elliptica report makes one page",
    "landscape": "call the reports of elliptica.landscape in Python",
    "watch": "use elliptica run --tensorboard FOLDER, and TensorBoard on that folder",
}


#: Groups of commands in `elliptica --help`, and the order of the commands.
TRY, YOUR_DATA, THE_PAPER = "Try it", "Your data", "The paper"
_ORDER = ["demo", "compare", "predict", "diagnose", "report", "list", "data", "run", "table", "tune"]


class _Program(TyperGroup):
    """List commands in a sensible order, and name the replacements of removed ones."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help text; new commands come last."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in _REPLACED:
            typer.echo(f"elliptica {args[0]} was removed: {_REPLACED[args[0]]}.", err=True)
            raise typer.Exit(2)
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the program where everything that it prints can be shown."""
        _prepare_output()
        try:
            return super().main(*args, **options)
        except OSError as error:
            if not _is_of_system(error) or os.environ.get(_TRACEBACK):
                raise
            text = f"{error.filename or 'The output'!s:.300} cannot be used ({error.strerror})."
            typer.echo(f"error: {not_written(error) if is_not_written(error) else text}", err=True)
            sys.exit(1)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error that nobody foresaw ends with one sentence instead of a traceback."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if isinstance(error, _USAGE) or _is_of_system(error) or os.environ.get(_TRACEBACK):
                raise
            if isinstance(error, ValueError):  # wrong input, which the message names
                typer.echo(f"error: {error}", err=True)
                raise typer.Exit(2) from error
            first, *_ = str(error).splitlines() or [""]
            typer.echo(
                f"error: {type(error).__name__}: {first:.300}\nThis is not a message of elliptica. Set "
                f"{_TRACEBACK}=1 to see where it comes from, and report it if the input is right.",
                err=True,
            )
            raise typer.Exit(1) from error


def _prepare_output() -> None:
    """Let no width of zero hide all output, and no encoding stop it: what it lacks is escaped."""
    if os.environ.get("COLUMNS", "").strip("0") == "" and "COLUMNS" in os.environ:
        del os.environ["COLUMNS"]
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")


#: Wrong options: typer shows these itself, and its classes have moved between versions.
_USAGE: tuple[type, ...] = tuple(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

#: What the system says about paths, which any command may meet wherever it reads or writes.
_SYSTEM = (errno.EACCES, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR)


def _is_of_system(error: Exception) -> bool:
    """Return whether an error is the answer of the system about a disk or a path."""
    if isinstance(error, FileNotFoundError):  # such as a new folder below /proc
        return error.filename is not None
    return isinstance(error, OSError) and (is_not_written(error) or error.errno in _SYSTEM)


#: Environment variable that shows tracebacks of errors that nobody foresaw.
_TRACEBACK = "ELLIPTICA_TRACEBACK"

app = typer.Typer(
    cls=_Program,
    help="Train on the paths between your data points, and find out whether that helps.",
    epilog="Start with: elliptica demo, elliptica compare diabetes, elliptica run table3 --dataset no2",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

#: Largest seed of a generator.
MOST_SEED = 2**63 - 1

#: Option of every command that reads data.
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of the data.", show_default="ELLIPTICA_DATA, or the cache")
]


def require_extra(extra: str, *packages: str) -> None:
    """Import what a command needs; if a package is missing, name the extra that installs it.

    Call it before slow imports, so that the message appears at once.
    """
    try:
        import_extra("This command", extra, *packages)
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def one_of(names: Any, *flags: str, **options: Any) -> Any:
    """Make an option for the values of a ``Literal``; other values raise."""
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
        typer.echo(f"elliptica {__version__}")
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
