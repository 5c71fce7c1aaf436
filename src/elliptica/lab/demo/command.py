"""``elliptica demo``: train, print, and write the figures and the record."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console

from elliptica.lab.demo.console import print_results, print_start, run_with_progress
from elliptica.lab.demo.figure import draw_figure
from elliptica.lab.demo.page import draw_page
from elliptica.lab.demo.settings import METHODS, DemoSettings
from elliptica.lab.demo.study import Study, write_record
from elliptica.lab.demo.summary import find, summarise

#: Exit status after an interrupt from the keyboard, as shells have it.
INTERRUPTED = 130


def run_demo(settings: DemoSettings, out: Path, console: Console) -> int:
    """Run the two-moons demo (paper: section 6.1, Figs. 1 and 3).

    Writes ``results.json`` with every run, and ``two_moons.png`` and ``two_moons.html``. After an
    interrupt from the keyboard, what is finished is kept and reported.

    Args:
        settings: What to train.
        out: Folder for the files; made if absent.
        console: Where to print.

    Returns:
        The exit status: 0, or 130 after an interrupt.
    """
    torch.set_num_threads(1)  # the networks are far too small to share
    study = Study(settings)
    print_start(console, study)
    run_with_progress(console, study)
    if study.interrupted:
        n_runs = settings.n_seeds * len(METHODS)
        console.print(f"[yellow]Interrupted:[/yellow] {len(study.runs)} of {n_runs} trainings had finished.")
    if not study.runs:
        console.print("Nothing was written.")
        return INTERRUPTED
    summaries = summarise(study.runs)
    print_results(console, summaries, find(summaries, study.untrained))
    for path in write_files(study, out):
        console.print(f"Wrote [bold]{path}[/bold]", highlight=False, soft_wrap=True)
    return INTERRUPTED if study.interrupted else 0


def write_files(study: Study, out: Path) -> list[Path]:
    """Write the record and, once each method has been trained, the figures; return what was written."""
    out.mkdir(parents=True, exist_ok=True)
    results, image, page = (out / name for name in ("results.json", "two_moons.png", "two_moons.html"))
    write_record(study, results)
    if len(study.exhibits) < len(METHODS):
        return [results]
    summaries = summarise(study.runs)
    exhibits = [study.exhibits[summary.method] for summary in summaries]
    draw_figure(summaries, exhibits, study.settings).savefig(image, dpi=150)
    findings = find(summaries, study.untrained)
    page.write_text(draw_page(summaries, exhibits, study.settings, findings), encoding="utf-8")
    return [image, page, results]
