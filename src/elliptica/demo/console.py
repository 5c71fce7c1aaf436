"""The demo on the terminal: progress, the table, the findings."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from elliptica.demo.settings import METHODS, NAMES, Method
from elliptica.demo.study import Study, run_study
from elliptica.demo.summary import MethodSummary
from elliptica.demo.table import table_header, table_sections
from elliptica.demo.words import notes


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
