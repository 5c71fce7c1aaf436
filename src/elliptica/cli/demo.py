"""`elliptica demo`: run the two-moons study, or draw one of the paper's figures."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from elliptica._utils.files import is_not_written, not_written, read_json
from elliptica.cli.app import TRY, DataDir, app, check_place, one_of, require_extra

if TYPE_CHECKING:
    from elliptica.lab.demo.results import MethodSummary
    from elliptica.lab.demo.study import Study
    from elliptica.lab.demo.training import DemoSettings, Method

#: Exit status after Ctrl-C, by the convention of shells.
INTERRUPTED = 130


#: Shapes of the moons, and variants on half discs (`elliptica.lab.demo.training.VARIANTS`).
Variant = Literal[
    "half-disc",
    "tube",
    "thin-tube",
    "band",
    "thin-band",
    "outer-arc",
    "hull",
    "curve",
    "shell",
    "wide-shell",
    "by-distance",
    "two-hidden",
    "relu",
    "short",
]

#: Figures of the paper.
FigureName = Literal["1", "2", "3", "uncertainty"]

#: Formats of files.
Form = Literal["png", "svg", "pdf"]

#: Widths in print.
Width = Literal["column", "page"]

_FIGURES = "One of the paper's figures"


@app.command(rich_help_panel=TRY)
def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for the pictures and the record; with --figure, the file.",
            show_default="demo; figure-NAME.FORMAT",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of repetitions.", show_default="24")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps per training.", show_default="1000")] = None,
    sigma: Annotated[
        float | None,
        typer.Option(min=0.0, max=1e6, help="Diffusion coefficient of the bridges.", show_default="0.2"),
    ] = None,
    variant: Annotated[
        Variant | None,
        one_of(
            Variant,
            help="Shape of a moon (the paper does not say), or a variant on half discs.",
            show_default="half-disc",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Take seconds instead of minutes, without convergence.")
    ] = False,
    figure: Annotated[
        FigureName | None,
        one_of(
            FigureName,
            help="Draw this figure instead. 1: loss surfaces. 2: the expected loss between data. 3: loss "
            "inside against loss on the boundary. uncertainty: by class, from records.",
            rich_help_panel=_FIGURES,
        ),
    ] = None,
    form: Annotated[
        Form | None,
        one_of(
            Form,
            "--format",
            help="Format of the file.",
            show_default="by its name, or png",
            rich_help_panel=_FIGURES,
        ),
    ] = None,
    width: Annotated[
        Width | None,
        one_of(
            Width,
            help="Width: 3.25 or 6.75 inches.",
            show_default="as in the paper",
            rich_help_panel=_FIGURES,
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            help="Folder of records, for uncertainty.", show_default="runs", rich_help_panel=_FIGURES
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Train three methods on two moons, and compare what happens to their losses.

    Takes about a minute on two cores. Ctrl-C stops it and keeps finished methods.

    With --figure, draw one figure of the paper, ready for print. The file names the command that makes it.
    The same command gives the same bytes on the same machine. Example: elliptica demo --figure 3 -o f.pdf
    """
    of_study = {
        "seeds": seeds,
        "steps": steps,
        "sigma": sigma,
        "variant": variant,
        "quick": quick or None,
    }
    of_figure = {"format": form, "width": width, "runs": runs, "data-dir": data_dir}
    for name, value in (of_figure if figure is None else of_study).items():
        if value is not None:
            place = "--figure. Add --figure NAME" if figure is None else "the demo without --figure. Omit it"
            raise typer.BadParameter(f"--{name} belongs to {place}.")
    if figure is not None:
        order = _Order(figure, form, width, out, runs or Path("runs"), data_dir)
        order.check_ending()
        require_extra("lab", "matplotlib", "safetensors")
        if figure == "uncertainty":
            require_extra("lab", "pydantic")
        raise typer.Exit(draw_one(order, Console()))
    out = out or Path("demo")
    if out.is_file():
        raise typer.BadParameter(f"{out} is a file. Pass the name of a folder to --out.")
    _check_own(out / "results.json")
    try:
        check_place(out / "results.json")
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    require_extra("lab", "matplotlib", "plotly", "safetensors")
    from elliptica.lab.demo.training import QUICK, variant_settings

    base = variant_settings(variant or "half-disc", QUICK if quick else None)
    settings = dataclasses.replace(
        base,
        n_seeds=seeds or base.n_seeds,
        n_steps=steps or base.n_steps,
        sigma=base.sigma if sigma is None else sigma,
    )
    try:
        status = run_demo(settings, out, Console())
    except ValueError as error:  # e.g. noise beyond all bounds
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    raise typer.Exit(status)


def _check_own(file: Path) -> None:
    """Raise instead of overwriting results that no demo wrote."""
    if not file.exists():
        return
    try:
        content = read_json(file)
    except (ValueError, OSError):
        content = None
    if not isinstance(content, dict) or not {"experiment", "runs"} <= set(content):
        raise typer.BadParameter(f"{file} is not of a demo and would be overwritten. Choose another --out.")


def run_demo(settings: DemoSettings, out: Path, console: Console) -> int:
    """Run the two-moons study (paper: section 6.1, Figs. 1 and 3).

    Writes ``results.json`` with every run, and ``two_moons.png`` and ``two_moons.html``. After Ctrl-C, the
    finished runs are kept and reported.

    Returns:
        The exit status: 0, or 130 after Ctrl-C.
    """
    import torch

    from elliptica.lab.demo.page import write_files
    from elliptica.lab.demo.results import find, summarise
    from elliptica.lab.demo.study import Study
    from elliptica.lab.demo.training import METHODS, notes

    torch.set_num_threads(1)  # the networks are too small for several threads
    study = Study(settings)
    console.print("[bold]Two moons[/bold] (paper: section 6.1, Figs. 1 and 3)")
    for note in notes(settings):
        console.print(f"[dim]- {note}[/dim]", highlight=False)
    _run_with_progress(study, console)
    if study.interrupted:
        console.print(
            f"[yellow]Interrupted:[/yellow] {len(study.exhibits)} of {len(METHODS)} methods had finished."
        )
    if not study.runs:
        console.print("Nothing was written.")
        return INTERRUPTED
    summaries = summarise(study.runs)
    _print_results(summaries, find(summaries, study.untrained, settings), console)
    for path in write_files(study, out):
        console.print(f"Wrote [bold]{path}[/bold]", highlight=False, soft_wrap=True)
    return INTERRUPTED if study.interrupted else 0


def _run_with_progress(study: Study, console: Console) -> None:
    """Run the study with one progress bar and the remaining time."""
    from elliptica.lab.demo.study import run_study
    from elliptica.lab.demo.training import METHODS, NAMES

    settings = study.settings
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=len(METHODS) * settings.n_steps)

        def on_method(method: Method) -> None:
            progress.update(task, description=f"{settings.n_seeds} seeds  {NAMES[method]:20}")

        run_study(study, on_method, lambda steps: progress.advance(task, steps))


def _print_results(summaries: Sequence[MethodSummary], findings: Sequence[str], console: Console) -> None:
    """Print the table, then the findings."""
    from elliptica.lab.demo.results import TABLE_HEADER, table_rows

    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        title="Bound: no loss inside the moons above the largest on their boundary",
        title_justify="left",
    )
    for number, name in enumerate(TABLE_HEADER):
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(name, justify=justify, no_wrap=number == 0, vertical="bottom")
    for row in table_rows(summaries):
        table.add_row(*row)
    console.print(table)
    console.print()
    for sentence in findings:
        console.print(sentence, highlight=False)
        console.print()


@dataclasses.dataclass(frozen=True)
class _Order:
    """A requested figure and its file."""

    name: FigureName
    form: Form | None = None
    asked_width: Width | None = None
    out: Path | None = None
    runs: Path = Path("runs")
    data_dir: Path | None = None

    def check_ending(self) -> None:
        """Raise if the name of the file contradicts its format."""
        if self.out is None:
            return
        known = get_args(Form)
        if self.out.suffix.lstrip(".").lower() not in ([self.form, ""] if self.form else known):
            meant = f".{self.form}, the --format" if self.form else f"one of .{', .'.join(known)}"
            raise typer.BadParameter(f"The name {self.out.name} must end in {meant}.")

    @property
    def format(self) -> Form:
        """Format of the file."""
        suffix = "" if self.out is None else self.out.suffix.lstrip(".").lower()
        return self.form or cast(Form, suffix or "png")

    @property
    def file(self) -> Path:
        """File of the figure."""
        return self.out or Path(f"figure-{self.name}.{self.format}")

    @property
    def width(self) -> Width:
        """Width of the figure: as in the paper unless another one is requested."""
        in_paper: Width = "page" if self.name in ("1", "uncertainty") else "column"
        return self.asked_width or in_paper

    def command(self) -> str:
        """Return the command that makes the same file, without paths except that of needed records."""
        words = ["elliptica", "demo", "--figure", self.name]
        words += ["--format", self.format, "--width", self.width]
        if self.name == "uncertainty":
            words += ["--runs", self.runs.as_posix()]
        return shlex.join(words)


_ABOUT = {
    "1": "loss surfaces over two moons, ordinary and elliptic training, median seed of each",
    "2": "the expected loss between four points, and bridges to them",
    "3": "losses on the boundary and inside the moons, median seed; dashed: the largest on the boundary",
    "uncertainty": "entropy of predictions by class, scaled in each data set; above: training rows",
}


def draw_one(order: _Order, console: Console) -> int:
    """Compute, draw and write a figure of the paper; return the exit status."""
    from elliptica.lab.demo.figures import WIDTHS, save_figure

    try:
        check_place(order.file)
        save_figure(_draw(order), order.file, order.format, order.command())
    except (ValueError, OSError) as error:
        text = not_written(error) if isinstance(error, OSError) and is_not_written(error) else str(error)
        console.print(f"error: {text}", style="red", highlight=False, markup=False, soft_wrap=True)
        return 2
    text = f"{order.file} ({WIDTHS[order.width]} in wide): {_ABOUT[order.name]}"
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    return 0


def _draw(order: _Order) -> Any:
    width = order.width
    if order.name == "2":
        from elliptica.lab.demo.expected_loss import draw_expected_loss, solve_expected_loss

        return draw_expected_loss(solve_expected_loss(), width)
    if order.name == "uncertainty":
        from elliptica.lab.demo.uncertainty import class_sizes, draw_uncertainty, read_uncertainty

        return draw_uncertainty(read_uncertainty(order.runs, class_sizes(order.data_dir)), width)
    from elliptica.lab.demo.figures import draw_boundary_losses, draw_surfaces
    from elliptica.lab.demo.study import train_exhibits

    if order.name == "1":
        return draw_surfaces(train_exhibits(["erm", "elliptic"]), width)
    return draw_boundary_losses(train_exhibits(["erm", "mixup", "elliptic"]), width)
