"""What stands in the way of runs, found before any work is done."""

from __future__ import annotations

import json

import torch

from elliptica.experiments.problems import load_dataset
from elliptica.experiments.records import read_record, record_file
from elliptica.experiments.run import Options
from elliptica.experiments.specification import Run


def check_before(runs: list[Run], options: Options) -> tuple[list[Run], list[str]]:
    """Try the folder, the device and the data; returns the runs that can be done, and problems."""
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / ".locks").mkdir(exist_ok=True)
    except OSError as error:
        return [], [
            f"Records cannot be written to {options.out} ({error}). Choose another folder with --out."
        ]
    try:
        torch.zeros(1, device=options.device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        return [], [f"There is no device {options.device!r} here ({first}). Use --device cpu."]
    problems: dict[str, str] = {}
    for run in {json.dumps(run.load, sort_keys=True): run for run in runs}.values():
        if all(read_record(record_file(options.out, r)) is not None for r in runs if r.load == run.load):
            continue
        try:
            load_dataset(run.load, run.seed, options.data_dir)
        except (OSError, ValueError) as error:
            hint = " `elliptica data list` says how to get data." if isinstance(error, OSError) else ""
            problems[json.dumps(run.load, sort_keys=True)] = f"{run.dataset}: {error}{hint}"
    left = [run for run in runs if json.dumps(run.load, sort_keys=True) not in problems]
    return left, list(problems.values())
