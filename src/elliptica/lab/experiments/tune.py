"""Choosing settings on the validation part: the same budget of trials for every method.

Trials are ordinary runs with a seed of their own, recorded one by one, so that a tuning that is killed goes
on where it was. The first trial of every method is the table's own setting; the others are a random search.
What all methods share (learning rate, weight decay) has the same draws for all of them, in every table: with
few trials luck would otherwise decide between methods.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from elliptica._utils.random import stream_seed
from elliptica.lab.experiments.engines import Job, open_engine
from elliptica.lab.experiments.metrics import score_of
from elliptica.lab.experiments.problems import RESPLIT
from elliptica.lab.experiments.records import read_record, record_file, write_record
from elliptica.lab.experiments.run import Do, Listener, Options, do_here, finish_run
from elliptica.lab.experiments.specification import Range, Run, Specification, SpecificationError

#: Seed of the trials; tables use 0, 1, ...
TRIAL_SEED = 1000
#: A table and a data set of it that can be tuned, for those who ask for others.
TUNABLE = ("table4", "waterbirds-features")
#: A setting is of the training, or of the method.
Place = tuple[str, str]


def search_space(specification: Specification, row: str) -> dict[Place, Range]:
    """What is searched for a row: the table's common ranges, and the row's own."""
    common = {("training", name): each for name, each in specification.search.items()}
    own = specification.methods[row].get("search", {})
    try:
        return common | {("settings", name): Range.model_validate(each) for name, each in own.items()}
    except ValidationError as error:
        raise SpecificationError(
            f"The search of {row} must hold ranges such as {{ low = 0.1, high = 1.0, log = true }}: {error}"
        ) from error


def chosen_file(out: Path, run: Run) -> Path:
    """Where the choice for a row is kept; other epochs, or matched costs, are another choice."""
    return record_file(out, run).parent / f"chosen-{run.key}.json"


def tune(
    run: Run,
    space: dict[Place, Range],
    n_trials: int,
    options: Options,
    listen: Listener,
    do: Do = do_here,
) -> dict[str, Any]:
    """Choose settings for one row of one data set; returns and keeps the choice.

    Args:
        run: Any run of the row; its seed does not matter.
        space: What may vary, see `search_space`.
        n_trials: Number of trials, the table's own setting among them.
        options: Where to run and to record.
        listen: Told about events.
        do: How a trial is done.
    """
    refuse_resplit(run)
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    streams = {"training": run.dataset, "settings": f"{run.dataset}/{run.row}"}
    studies = {
        kind: optuna.create_study(
            sampler=optuna.samplers.RandomSampler(seed=stream_seed(stream, TRIAL_SEED, "trials") % 2**32)
        )
        for kind, stream in streams.items()
    }
    drawn: list[dict[Place, Any]] = [{}]
    for _ in range(n_trials - 1):
        asked = {kind: study.ask() for kind, study in studies.items()}
        drawn.append({place: each.suggest(asked[place[0]], place[1]) for place, each in space.items()})
    tried: list[dict[str, Any]] = []
    for values, (score, error) in zip(drawn, _scores(run, drawn, options, listen, do), strict=True):
        tried.append({"values": {".".join(place): v for place, v in values.items()}, "score": score})
        if error:
            tried[-1]["error"] = error
    best = max((t for t in tried if t["score"] is not None), key=lambda t: t["score"], default=None)
    if best is None:
        raise RuntimeError(
            f"All {n_trials} trials of {run.row} failed. The first said: {tried[0]['error']} "
            "Correct the table's settings or narrow its search."
        )
    ranges = {".".join(place): each.as_dict() for place, each in space.items()}
    chosen = {**best, "search": ranges, "rule": f"best {run.select} on the validation part", "trials": tried}
    write_record(chosen_file(options.out, run), chosen)
    return chosen


def _scores(
    run: Run, drawn: list[dict[Place, Any]], options: Options, listen: Listener, do: Do
) -> list[tuple[float | None, str | None]]:
    """Scores of trials, which do not depend on each other: on a cluster all of them are asked for at once."""
    trials_at = dataclasses.replace(options, out=options.out / "trials")
    attempts = [with_values(run, values, TRIAL_SEED) for values in drawn]
    different = {attempt.key: attempt for attempt in attempts}  # choices may be drawn twice

    def score(attempt: Run) -> tuple[float | None, str | None]:
        return _score(attempt, trials_at, listen, do)

    if options.ray is None:
        scores = [score(attempt) for attempt in different.values()]
    else:
        with ThreadPoolExecutor(len(different)) as threads:
            scores = list(threads.map(score, different.values()))
    found = dict(zip(different, scores, strict=True))
    return [found[attempt.key] for attempt in attempts]


def _score(run: Run, options: Options, listen: Listener, do: Do) -> tuple[float | None, str | None]:
    """Validation score of a trial; a training that diverges is a failed trial, not the end of the tuning."""
    try:
        finish_run(run, options, listen, do)
    except (FloatingPointError, ValueError) as error:
        return None, f"{type(error).__name__}: {error}"
    record = read_record(record_file(options.out, run))
    if record is None:
        raise RuntimeError(
            "Another process has a trial of this row under way. Wait for it, or tune other rows here."
        )
    return score_of(record["metrics"]["validation"], run.metric, run.select), None


def refuse_resplit(run: Run) -> None:
    """A choice for all seeds must not see rows that are test rows of some."""
    if run.load["name"] in RESPLIT:
        raise RuntimeError(
            f"The parts of {run.load['name']} are drawn anew for each seed, so a choice for all seeds would "
            "have seen test rows. Choose settings within each seed, or use data with fixed parts, such as "
            f"elliptica tune {' --dataset '.join(TUNABLE)}."
        )


def with_values(run: Run, values: dict[Place, Any], seed: int) -> Run:
    """The run with other values of some settings."""
    changed: dict[str, Any] = {"seed": seed}
    for kind in ("training", "settings"):
        own = {name: value for (place, name), value in values.items() if place == kind}
        changed[kind] = {**getattr(run, kind), **own}
    return run.model_copy(update=changed)


def apply_choices(runs: list[Run], out: Path) -> list[Run]:
    """Runs with the settings that were chosen for their rows.

    Raises:
        SpecificationError: If a row has not been tuned, what was kept cannot be read, or rows had different
            numbers of trials.
    """
    missing = {(run.dataset, run.row) for run in runs if not chosen_file(out, run).exists()}
    if missing:
        names = ", ".join(f"{row} on {dataset}" for dataset, row in sorted(missing))
        rows = ",".join(sorted({row for _, row in missing}))
        data = ",".join(sorted({dataset for dataset, _ in missing}))
        raise SpecificationError(
            f"Not tuned with these options: {names}. First run elliptica tune {runs[0].table} --dataset "
            f"{data} --methods '{rows}' --out {out} (and the same --epochs, --precision, --match and "
            "--select), or leave out --tuned."
        )
    found = []
    budgets: dict[str, dict[tuple[int, str], str]] = {}
    for run in runs:
        file = chosen_file(out, run)
        try:
            content = json.loads(file.read_text())
            values = content["values"]
            how = content.get("sampler", "shared draws")
            budgets.setdefault(run.dataset, {})[len(content["trials"]), how] = run.row
        except (ValueError, KeyError, TypeError) as error:
            raise SpecificationError(
                f"{file} cannot be read ({error}). Delete it and tune again: trials that are recorded are "
                "not repeated."
            ) from error
        places = {(name.split(".", 1)[0], name.split(".", 1)[1]): value for name, value in values.items()}
        found.append(with_values(run, places, run.seed))
    for dataset, numbers in budgets.items():
        kinds = {how for _, how in numbers}
        if len(numbers) > 1:
            told = ", ".join(
                f"{row} {n}{f' by {how}' if len(kinds) > 1 else ''}"
                for (n, how), row in sorted(numbers.items())
            )
            raise SpecificationError(
                f"Rows on {dataset} had different {'searches' if len(kinds) > 1 else 'numbers of trials'} "
                f"({told}), which is no fair table. Tune them again with the same "
                f"{'options' if len(kinds) > 1 else '--trials'}: trials that are recorded are not repeated."
            )
    return found


def tune_all(
    runs: list[Run], specification: Specification, n_trials: int, options: Options, listen: Listener
) -> dict[str, str]:
    """Tune every row and data set of some runs; returns what happened to each."""
    with open_engine(options) as engine:
        return engine.do(tune_jobs(runs, specification, n_trials, options), listen)


def tune_jobs(
    runs: list[Run], specification: Specification, n_trials: int, options: Options
) -> dict[str, Job]:
    """One job for every row and data set."""
    rows = {f"{run.dataset} {run.row}": run for run in runs}
    spaces = {label: search_space(specification, run.row) for label, run in rows.items()}
    return {
        label: functools.partial(_tune_row, label, run, spaces[label], n_trials, options)
        for label, run in rows.items()
    }


def _tune_row(
    label: str, run: Run, space: dict[Place, Range], n_trials: int, options: Options, listen: Listener, do: Do
) -> str:
    try:
        chosen = tune(run, space, n_trials, options, listen, do)
    except Exception as error:
        result = f"failed: {type(error).__name__}: {error}"
    else:
        values = ", ".join(f"{name} {shown(value)}" for name, value in chosen["values"].items())
        result = f"{values or 'the setting of the table'} ({chosen['rule']}: {chosen['score']:.4g})"
    listen(label, "tuned", {"result": result})
    return result


def shown(value: object) -> str:
    """A value of a setting, for people."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
