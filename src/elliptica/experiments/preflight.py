"""What stands in the way of runs, found before any work is done."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from elliptica.experiments.problems import load_dataset
from elliptica.experiments.records import read_record, record_file
from elliptica.experiments.run import Options
from elliptica.experiments.specification import Run


def check_before(runs: list[Run], options: Options) -> tuple[list[Run], list[str]]:
    """Try the folder, the device and the data; returns the runs that can be done, and problems."""
    problem = folder_problem(options.out) or device_problem(options.device)
    if problem:
        return [], [problem]
    problems = data_problems(one_per_data(runs, options.out), options.data_dir)
    return without(runs, problems), list(problems.values())


def folder_problem(out: Path) -> str | None:
    """Why records cannot be written; None if they can."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / ".locks").mkdir(exist_ok=True)
    except OSError as error:
        return f"Records cannot be written to {out} ({error}). Choose another folder with --out."
    return None


def device_problem(device: str) -> str | None:
    """Why a device of this machine cannot be used; None if it can."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        return f"There is no device {device!r} here ({first}). Use --device cpu."
    return None


def one_per_data(runs: list[Run], out: Path) -> list[Run]:
    """One run for each way of loading data that is still needed."""
    left = [run for run in runs if read_record(record_file(out, run)) is None]
    return list({load_key(run): run for run in reversed(left)}.values())[::-1]


def data_problems(runs: list[Run], data_dir: Path | None) -> dict[str, str]:
    """Why data of runs cannot be loaded on this machine, by `load_key`."""
    problems = {}
    for run in runs:
        try:
            load_dataset(run.load, run.seed, data_dir)
        except (OSError, ValueError) as error:
            hint = " `elliptica data list` says how to get data." if isinstance(error, OSError) else ""
            problems[load_key(run)] = f"{run.dataset}: {error}{hint}"
    return problems


def without(runs: list[Run], problems: dict[str, str]) -> list[Run]:
    """Runs whose data can be loaded."""
    return [run for run in runs if load_key(run) not in problems]


def load_key(run: Run) -> str:
    """The same for runs that load the same data."""
    return json.dumps(run.load, sort_keys=True)
