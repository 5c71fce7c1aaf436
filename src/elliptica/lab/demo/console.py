"""The demo on the terminal: progress, the table, the findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from elliptica.lab.demo.settings import METHODS, NAMES, DemoSettings, Method
from elliptica.lab.demo.study import Study, run_study
from elliptica.lab.demo.summary import MethodSummary, Spread


def print_start(console: Console, study: Study) -> None:
    """Say what is about to be done, and which choices are ours."""
    console.print("[bold]Two moons[/bold] (paper: section 6.1, Figs. 1 and 3)")
    for note in notes(study.settings):
        console.print(f"[dim]- {note}[/dim]", highlight=False)


def run_with_progress(console: Console, study: Study) -> None:
    """Run the study under one bar with the time left."""
    settings = study.settings
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=settings.n_seeds * len(METHODS) * settings.n_steps)

        def on_run(seed: int, method: Method) -> None:
            progress.update(task, description=f"seed {seed + 1}/{settings.n_seeds}  {NAMES[method]:19}")

        run_study(study, on_run, lambda steps: progress.advance(task, steps))


def print_results(console: Console, summaries: Sequence[MethodSummary], findings: Sequence[str]) -> None:
    """Print the table, then the findings."""
    seeds = {s.n_seeds for s in summaries}
    title = f"{max(seeds)} seeds" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)} seeds"
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        title=f"Losses, mean ± sample deviation over {title}",
        title_justify="left",
    )
    table.add_column("", no_wrap=True)
    for name in table_header(summaries):
        table.add_column(name.replace(" (", "\n("), justify="right", vertical="bottom")
    for section in table_sections(summaries):
        table.add_row(f"[bold]{section.title}[/bold]")
        for name, cells in section.rows:
            table.add_row(f" {name}", *cells)
        table.add_section()
    console.print(table)
    console.print()
    for sentence in findings:
        console.print(sentence, highlight=False)
        console.print()


# The demo's table as text cells, for the terminal and the page alike: one column per method.


class Section(NamedTuple):
    """Rows that belong together: a title, and for each row its name and one cell per method."""

    title: str
    rows: list[tuple[str, list[str]]]


def table_header(summaries: Sequence[MethodSummary]) -> list[str]:
    """Names of the methods."""
    return [NAMES[s.method] for s in summaries]


def table_sections(summaries: Sequence[MethodSummary]) -> list[Section]:
    """All numbers that are reported, mean ± sample deviation over seeds."""

    def row(name: str, cell: Callable[[MethodSummary], object]) -> tuple[str, list[str]]:
        return name, [str(cell(s)) for s in summaries]

    return [
        Section(
            "On the boundary",
            [row("mean loss", lambda s: s.boundary_mean), row("largest loss", lambda s: s.boundary_max)],
        ),
        Section(
            "Inside the moons",
            [
                row("mean loss", lambda s: s.inside_mean),
                row("largest loss", lambda s: s.inside_max),
                row("maximum principle", lambda s: f"{s.maximum_held} of {s.n_seeds}"),
                row("minimum principle", lambda s: f"{s.minimum_held} of {s.n_seeds}"),
                row("accuracy, %", lambda s: _percent(s.accuracy)),
            ],
        ),
        Section(
            "Between the data",
            [
                row("mean loss", lambda s: s.between_mean),
                row("largest loss", lambda s: s.between_max),
                row("share above, %", lambda s: _percent(s.between_above)),
                row("maximum principle", lambda s: f"{s.between_held} of {s.n_seeds}"),
            ],
        ),
        Section(
            "Cost of one run",
            [
                row("evaluations", lambda s: f"{s.n_evaluations:,}"),
                row("seconds", lambda s: s.seconds),
            ],
        ),
    ]


def _percent(share: Spread) -> Spread:
    return Spread(100 * share.mean, None if share.deviation is None else 100 * share.deviation)


# How the demo was set up, in words that the terminal and the page share.


_PAPER_POINTS = 10_000


def notes(settings: DemoSettings) -> list[str]:
    """Say what is the paper's and what is our choice."""
    n_paths = settings.n_boundary // settings.n_times
    other = "two-hidden" if settings.reading == "one-hidden" else "one-hidden"
    in_paper = "" if settings.n_boundary == _PAPER_POINTS else f" (the paper: {_PAPER_POINTS:,})"
    return [
        f'The paper\'s "2-layer, 4-hidden unit" network is read as {settings.architecture} '
        f"(--reading {other} is the other reading).",
        f"As in the paper's section 6.1, ERM and mixup train on {settings.n_boundary:,} boundary points"
        f"{in_paper}, elliptic (path) on {n_paths:,} with {settings.n_times} points on each bridge, so that "
        f"all cost the same. Elliptic (marginal) takes {settings.n_boundary:,} and one point of each "
        "bridge. Partners are drawn with probability inverse to their distance (Algorithm 1), among "
        f"{settings.paths_per_batch} points.",
        "Our choice, as the paper does not say: the moons are tubes of radius 0.2 around two half circles; "
        f"activation {settings.activation}; sigma {settings.sigma:g}; Adam for {settings.n_steps:,} steps "
        f"of {settings.batch_evaluations:,} evaluations, step size {settings.learning_rate:g} falling as a "
        f"half cosine; mixup with Beta({settings.alpha:g}, {settings.alpha:g}). With so small a network, "
        "drawing bridges takes longer than evaluating them: seconds say nothing about larger ones.",
        "Inside means unseen points of the moons with their labels, as in the paper's Figure 3. Between "
        "means points on straight lines between boundary points with labels mixed alike: the interior of "
        "the space of inputs and labels on which the paper's equation is posed. The loss is cross-entropy "
        "without the entropy of the label, which is zero for pure labels and unavoidable for mixed ones.",
    ]
