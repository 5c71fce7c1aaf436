"""`elliptica report` with 500 runs: how large the page is, and how soon it can be read in a real browser."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.timing import Measurement

RUNS, FEW, ROUNDS = 500, 10, 7
#: Budgets of the page with 500 runs.
MEGABYTES, SECONDS = 15, 3
_ARGUMENTS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


def records(n: int) -> Iterator[dict[str, Any]]:
    """Runs of ten methods with five seeds on as many data sets as it takes, 100 epochs each."""
    from elliptica.lab.experiments.specification import Run

    for number in range(n):
        dataset, row, seed = number // 50, number // 5 % 10, number % 5
        score = 0.7 + 0.02 * row + 0.003 * ((7 * seed + row) % 5)
        by = {str(k): score - 0.01 * k for k in range(8)}
        test = {"average": score, "worst": score - 0.07, "by_class": by, "by_group": by, "uncertainty": by}
        run = Run(
            table="bench",
            dataset=f"data{dataset}",
            row=f"method {row}",
            method="erm",
            seed=seed,
            metric="accuracy",
            columns=("average", "worst"),
            select="average",
            load={"name": "bench"},
            model={"name": "mlp"},
            training={"epochs": 100},
            settings={},
        )
        yield {
            "run": run.model_dump(mode="json"),
            "metrics": {"test": test, "validation": test},
            "epoch": 80,
            "curves": {
                "loss": [1 / (1 + e + seed) for e in range(100)],
                "validation": [score - 1 / (2 + e) for e in range(100)],
            },
            "cost": {"evaluations": 10_000 * (1 + row), "epochs": 100, "seconds": 1.0 + row},
            "versions": {"elliptica": "bench"},
        }


def write_page(folder: Path, n: int) -> Path:
    """A page of so many runs."""
    from elliptica.lab.experiments.page import runs_page
    from elliptica.report import render

    for record in records(n):
        run = record["run"]
        file = folder / f"runs{n}" / "bench" / run["dataset"] / run["row"] / f"k-seed{run['seed']}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record))
    render(runs_page(folder / f"runs{n}"), folder / f"report{n}.html")
    return folder / f"report{n}.html"


def ready_seconds(browser: Any, file: Path) -> float:
    """From the start of loading until text, tables and switches work; charts come as they are scrolled to."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(file.resolve().as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    found = page.evaluate("performance.getEntriesByName('report-ready')[0].startTime") / 1000
    page.close()
    return float(found)


def measure() -> Iterator[Measurement]:
    """Size and time to ready, as shares of their budgets and against a page of ten runs."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        print("skipped: playwright is not installed (pip install playwright)", file=sys.stderr)
        return
    names = ("chromium", "chromium-browser", "google-chrome")
    browser_file = next((file for name in names if (file := shutil.which(name))), None)
    if browser_file is None:
        print("skipped: there is no Chromium here", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        many, few = (write_page(Path(name), n) for n in (RUNS, FEW))
        size, small = (file.stat().st_size / 1e6 for file in (many, few))
        share = size / MEGABYTES
        yield Measurement(
            f"size of a report of {RUNS} runs",
            f"{MEGABYTES} MB",
            share,
            share,
            share,
            1.0,
            f"{size:.1f} MB; {small:.1f} MB with {FEW} runs, most of it plotly.js",
        )
        browser = playwright.chromium.launch(executable_path=browser_file, args=_ARGUMENTS)
        ready_seconds(browser, many)  # warm up
        times = [(ready_seconds(browser, many), ready_seconds(browser, few)) for _ in range(ROUNDS)]
        browser.close()
    shares = [a / SECONDS for a, _ in times]
    low, middle, high = statistics.quantiles(shares, n=4)
    yield Measurement(
        f"time until a report of {RUNS} runs can be read, headless Chromium",
        f"{SECONDS} s",
        middle,
        low,
        high,
        1.0,
        f"{SECONDS * middle:.2f} s; {statistics.median(b for _, b in times):.2f} s with {FEW} runs",
    )
