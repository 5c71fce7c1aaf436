"""`elliptica report`: write one self-contained page about runs, a comparison or a saved model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from elliptica.cli import options as shared
from elliptica.cli.app import MOST_SEED, YOUR_DATA, app, one_of, require_extra
from elliptica.cli.diagnose import Loss, Weights
from elliptica.cli.options import load_own

if TYPE_CHECKING:
    from elliptica.report.page import Page

#: Result file of `elliptica compare` and `elliptica demo`.
RESULTS = "results.json"
_TABLES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Request:
    """The source and settings of a page.

    Attributes:
        source: Folder of records, folder of a comparison, a saved model, or an .npz file for ``model``.
        data: Table (CSV or Parquet) for a saved model.
        target: Target column of the table.
        group: Group column of the table.
        model: Your own model, ``package.module:name``.
        weights: State dict of the model.
        loss: Loss of the model.
        tables: Your own TOML tables that the records belong to.
        seed: Seed of all random draws.
        title: Title of the page; by default what it is about.
    """

    source: str
    data: Path | None = None
    target: str | None = None
    group: str | None = None
    model: str | None = None
    weights: Path | None = None
    loss: str = "auto"
    tables: tuple[str, ...] = ()
    seed: int = 0
    title: str | None = None


@app.command(rich_help_panel=YOUR_DATA)
def report(
    source: Annotated[
        str,
        typer.Argument(
            help="Folder of elliptica run or elliptica compare; model.elliptica (with --data and --target); "
            "or an .npz file for your own model (--model)."
        ),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="File of the page: HTML, or Markdown if it ends with .md.")
    ] = Path("report.html"),
    data: Annotated[
        Path | None, typer.Option(help="Table (CSV or Parquet) for model.elliptica.", dir_okay=False)
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Target column of the table.", show_default="the model's")
    ] = None,
    weights: Weights = None,
    loss: Annotated[Loss, one_of(Loss, help="Loss of your model, as in elliptica diagnose.")] = "auto",
    table: Annotated[
        list[str] | None, typer.Option(help="Your own table that the records are of, mine.toml. Repeatable.")
    ] = None,
    plugin: shared.Plugins = None,
) -> None:
    """Write one page to share: verdict, tables, charts.

    The page loads nothing from the network. For a model of your own code: elliptica diagnose DATA --model
    my_code:make_model --out page.html. Example: elliptica report runs -o report.html
    """
    require_extra("lab", "jinja2", "plotly")
    if plugin:
        require_extra("lab", "pydantic", "safetensors", "sklearn")
        load_own(plugin)
    request = Request(
        source=source,
        data=data,
        target=target,
        group=group,
        model=model,
        weights=weights,
        loss=loss,
        tables=tuple(table or ()),
        seed=seed,
        title=title,
    )
    raise typer.Exit(_print_report(request, out, Console()))


def _print_report(request: Request, out: Path, console: Console) -> int:
    """Write the page and print its verdict; return the exit status."""
    from elliptica.report.content import ReportError

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    try:
        with console.status("reading"):
            content = write_report(request, out)
    except (ReportError, OSError) as error:
        text = not_written(error) if isinstance(error, OSError) and is_not_written(error) else str(error)
        say(f"[red]error:[/red] {escape(text)}")
        return 2
    except KeyboardInterrupt:
        say(f"Interrupted: {escape(str(out))} was not written.")
        return 130
    say(escape(content.headline))
    if content.unusable:
        say(f"[yellow]{count(len(content.unusable), 'file')} could not be used[/yellow]; the page says why.")
    kind = f"{content.kind[:1].upper()}{content.kind[1:]}"
    say(escape(f"{kind}: {out} ({out.stat().st_size / 1e6:.1f} MB)."))
    return 0


def write_report(request: Request, out: Path) -> Report:
    """Build a report and write its page.

    Raises:
        ReportError: If the source cannot be used, or ``out`` cannot be written.
    """
    from elliptica.report.page import render_page

    _check_out(out, request)
    content = make_report(request)
    write_atomically(out, render_page(content))
    return content


def make_report(request: Request) -> Report:
    """Collect the contents of a page.

    Raises:
        ReportError: If the source cannot be used; the message says what was expected.
    """
    from elliptica.report.content import ReportError

    path = Path(request.source)
    if path.is_dir():
        return _folder_report(path, request)
    if path.is_file() and path.suffix.lower() in _TABLES:
        raise ReportError(
            f"{path} is a table. Run elliptica compare {path} --target COLUMN, which also writes a page, or, "
            f"with a saved model, elliptica report model.elliptica --data {path} --target COLUMN."
        )
    if request.source.endswith(".elliptica") or (path.is_file() and request.target is not None):
        return _saved_model_report(path, request)
    if path.is_file() and path.suffix == ".json":
        raise ReportError(f"{path} is one file. Pass the folder it is in: {path.parent or '.'}.")
    if path.is_file():
        return _own_model_report(request)
    raise ReportError(
        f"{request.source} does not exist. Pass the folder that elliptica run wrote to (--out, runs by "
        "default), the folder of elliptica compare, model.elliptica with --data and --target, or an .npz "
        "file with --model."
    )


def _check_out(out: Path, request: Request) -> None:
    """Raise before the work is done if the page cannot be written."""
    from elliptica.report.content import ReportError

    if out.is_dir():
        raise ReportError(f"{out} is a folder. Pass the name of a file to -o, e.g. {out / 'report.html'}.")
    if out.exists() and not out.is_file():
        raise ReportError(f"{out} is a device or a pipe. Pass the name of a file to -o, e.g. report.html.")
    given = [Path(request.source), request.data, request.weights]
    if any(each is not None and out.exists() and each.exists() and out.samefile(each) for each in given):
        raise ReportError(f"The page would overwrite its own source {out}. Choose another -o.")
    if out.is_file() and not _is_page(out):
        raise ValueError(f"{out} exists and is not a page. Choose another -o, so that it is not lost.")
    if plugin:
        load_own(plugin)
    console = Console()
    with console.status("reading"):
        page = make_page(source, data=data, target=target, group=group, tables=tuple(table or ()))
        if page is None:
            shutil.copyfile(source / f"report{'.md' if out.suffix == '.md' else '.html'}", out)
        else:
            from elliptica.report.page import render

            render(page, out)
    if page is not None:
        print_text(console, escape(page.headline))
    print_text(console, escape(f"Written: {out} ({out.stat().st_size / 1e6:.1f} MB)."))


def make_page(
    source: Path,
    *,
    data: Path | None = None,
    target: str | None = None,
    group: str | None = None,
    tables: tuple[str, ...] = (),
) -> Page | None:
    """Build the page of a source; None for a folder of elliptica compare, which has written its own."""
    if (source / COMPARED).is_file():
        return None
    if source.is_dir():
        require_extra("lab", "pydantic", "sklearn")
        from elliptica.lab.experiments.page import runs_page

        return runs_page(source, tables=tables)
    if data is None:
        raise ValueError(f"{source} is no folder; a saved model needs a table: --data table.csv.")
    require_extra("tables", "polars", "sklearn", "skrub")
    from elliptica.tables.model_page import saved_model_page

    return saved_model_page(source, data, target, group)


def _is_page(file: Path) -> bool:
    """Return whether a file is empty or starts like a page."""
    with file.open("rb") as handle:
        head = handle.read(64).lstrip().lower()
    return not head or head.startswith((b"<!doctype html", b"<html"))


def _folder_report(path: Path, request: Request) -> Report:
    from elliptica.report.content import ReportError

    for name in ("model", "weights", "data"):
        if getattr(request, name) is not None:
            raise ReportError(f"--{name} is not for a folder, but {request.source} is one. Omit it.")
    kind = _kind_of_results(path / RESULTS)
    if kind == "compare":
        try:
            from elliptica.tables.page import comparison_report
        except ModuleNotFoundError as error:
            raise ReportError(str(missing_package("A comparison", "tables", error.name))) from error
        return comparison_report(path, title=request.title)
    if kind == "demo":
        from elliptica.lab.demo.results import demo_report

        return demo_report(path / RESULTS, request.title)
    return _runs_report(path, request)


def _kind_of_results(file: Path) -> str | None:
    """Return which command wrote a results.json; None if there is none or if it is unknown."""
    from elliptica.report.content import ReportError

    if not file.is_file():
        return None
    try:
        content = read_json(file)
    except (ValueError, OSError) as error:
        raise ReportError(
            f"{file} is damaged ({str(error)[:200]}). If elliptica compare wrote it, move it away and run "
            "the comparison again."
        ) from error
    if isinstance(content, dict) and "about" in content and "records" in content:
        return "compare"
    return "demo" if isinstance(content, dict) and "experiment" in content and "runs" in content else None


def _runs_report(path: Path, request: Request) -> Report:
    from elliptica.report.content import ReportError

    try:
        from elliptica.lab.experiments.page import runs_report
    except ModuleNotFoundError as error:
        raise ReportError(str(missing_package("A page of records", "lab", error.name))) from error
    return runs_report(path, title=request.title, tables=request.tables)


def _saved_model_report(file: Path, request: Request) -> Report:
    from elliptica.report.content import ReportError

    try:
        from elliptica.tables.page import saved_model_report
    except ModuleNotFoundError as error:
        raise ReportError(str(missing_package("A saved model", "tables", error.name))) from error
    return saved_model_report(
        file,
        request.data,
        request.target,
        request.group,
        seed=request.seed,
        title=request.title,
    )


def _own_model_report(request: Request) -> Report:
    """Build a page about a model from ``package.module:name``, or about one that is trained here."""
    from elliptica.report.content import ReportError, digest, present_versions
    from elliptica.tables.model_page import model_report, model_study

    if request.data is not None or request.target is not None:
        raise ReportError(
            "--data and --target are only for model.elliptica; an .npz file holds its own targets. Omit them."
        )
    if request.model is None:
        raise ReportError("An .npz file needs --model package.module:name.")
    from elliptica.cli.model_source import fitted_from_code

    try:
        fitted = fitted_from_code(Path(request.source), request.model, request.weights, request.loss)
    except (ValueError, TypeError) as error:
        raise ReportError(str(error)) from error
    name = Path(request.source).name
    words = ["elliptica", "report", request.source, "--model", request.model]
    files = {"data": Path(request.source), "weights": request.weights}
    study = model_study(
        fitted,
        rows=f"the {'rows' if fitted.test is None else 'test rows'} of {name}",
        commands=[" ".join(words)],
        versions={
            **present_versions(),
            **{f"sha256 of {key}": digest(f) for key, f in files.items() if f is not None and f.is_file()},
        },
    )
    title = request.title or f"{fitted.name} on {name}"
    return model_report(study, fitted, title, seed=request.seed)
