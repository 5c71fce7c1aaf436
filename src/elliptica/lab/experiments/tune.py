"""Choose settings on the validation part, with as many trials for every method.

Trials are ordinary runs with their own seed, so a tuning that is killed resumes. The first is the table's
setting, the others are a random search. What methods share (learning rate, weight decay) has the same draws
for all of them: with few trials luck would otherwise decide between methods.
"""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path
from typing import Any

import torch

from elliptica._utils.random import stream_seed
from elliptica.lab.experiments.choice import keep_choice, with_values
from elliptica.lab.experiments.metrics import score_of
from elliptica.lab.experiments.records import read_records, run_hash
from elliptica.lab.experiments.registry import RESPLIT, load_dataset
from elliptica.lab.experiments.run import Listener, Options, do_runs
from elliptica.lab.experiments.specification import Range, Run, Specification

#: Seed of the trials; tables use 0, 1, ...
TRIAL_SEED = 1000
#: Errors that settings cause: they end a trial, not the tuning of its row.
_OF_SETTINGS = ("FloatingPointError", "ValueError", "ValidationError")


def search_space(specification: Specification, run: Run) -> dict[str, Range]:
    """What is searched for a row: the table's common ranges, and the row's own."""
    of_row = specification.methods[run.row].get("search", {})
    return {f"training.{name}": ranged for name, ranged in specification.search.items()} | {
        f"settings.{name}": Range.model_validate(ranged) for name, ranged in of_row.items()
    }


def draw_trials(run: Run, space: dict[str, Range], n_trials: int) -> list[dict[str, float]]:
    """Draw the settings of the trials of a row; the first is the table's own."""
    data = run.load["name"]
    streams = {"training": data, "settings": f"{data}/{run.method}/{sorted(space)}"}
    draws = {kind: random.Random(stream_seed(name, TRIAL_SEED, "trials")) for kind, name in streams.items()}
    trials: list[dict[str, float]] = [{}]
    for _ in range(n_trials - 1):
        trials.append({place: _draw(draws[place.partition(".")[0]], space[place]) for place in sorted(space)})
    return trials


def _draw(draws: random.Random, ranged: Range) -> float:
    if ranged.log:
        return math.exp(draws.uniform(math.log(ranged.low), math.log(ranged.high)))
    return draws.uniform(ranged.low, ranged.high)


def tune(
    runs: list[Run], specification: Specification, n_trials: int, options: Options, listen: Listener
) -> dict[str, dict[str, Any] | str]:
    """Choose settings for rows of a table and keep the choices; return them by row, or why there is none."""
    at = dataclasses.replace(options, out=options.out / "trials")
    choices: dict[str, dict[str, Any] | str] = {}
    trials: dict[str, list[tuple[dict[str, float], Run]]] = {}
    rows = {f"{run.dataset} {run.row}": run for run in runs}
    for label, run in rows.items():
        if _is_resplit(run, options.data_dir):
            choices[label] = "Its test rows depend on the seed: a choice for all seeds would see them."
            continue
        drawn = draw_trials(run, search_space(specification, run), n_trials)
        trials[label] = [(values, with_values(run, values, TRIAL_SEED)) for values in drawn]
    different = {run_hash(trial): trial for tried in trials.values() for _, trial in tried}
    failures = do_runs(list(different.values()), at, listen)
    for label, tried in trials.items():
        choices[label] = chosen = _choose(rows[label], tried, failures, at)
        if not isinstance(chosen, str):
            ranges = {p: r.model_dump() for p, r in search_space(specification, rows[label]).items()}
            keep_choice(options.out, rows[label], {**chosen, "search": ranges})
    return choices


def _choose(
    run: Run, tried: list[tuple[dict[str, float], Run]], failures: dict[str, str], at: Options
) -> dict[str, Any] | str:
    """Return the best trial of a row, or why there is none."""
    trials: list[dict[str, Any]] = []
    for values, trial in tried:
        error = failures.get(run_hash(trial))
        if error is not None and not error.startswith(_OF_SETTINGS):
            return error
        if error is not None:
            trials.append({"values": values, "score": None, "error": error})
            continue
        (record,) = read_records(at.out, [trial])
        score = score_of(dict(record.metrics["validation"]), trial.metric, trial.select)
        trials.append({"values": values, "score": abs(score)})  # errors are less than 0 there
    done = [trial for trial in trials if trial["score"] is not None]
    best = (max if run.metric == "accuracy" else min)(done, key=lambda t: t["score"], default=None)
    if best is None:
        return f"All {len(trials)} trials failed. The first: {trials[0]['error']}"
    return {**best, "rule": f"best {run.select} on the validation part", "trials": trials}


def _is_resplit(run: Run, data_dir: Path | None) -> bool:
    """Whether rows that trials see are test rows of another seed."""
    if run.load["name"] in RESPLIT:
        return True
    seen, other = (load_dataset(run.load, seed, data_dir) for seed in (TRIAL_SEED, 0))
    if torch.equal(seen.test.y, other.test.y) and torch.equal(seen.test.x[:8], other.test.x[:8]):
        return False
    tested = {row.numpy().tobytes() for row in other.test.x[:]}
    return any(row.numpy().tobytes() in tested for part in (seen.train, seen.validation) for row in part.x[:])
