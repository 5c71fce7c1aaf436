"""Choose settings on the validation part: what may vary, and equal trials for every method.

Trials are ordinary runs with a seed of their own, recorded one by one, so that a tuning that is killed
resumes. The first trial of every method is the table's own setting; the others are a random search.
What all methods share (learning rate, weight decay) has the same draws for all of them, in every table: with
few trials luck would otherwise decide between methods.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import torch
from pydantic import ValidationError

from elliptica._utils.random import stream_seed
from elliptica.core.elliptic import Elliptic
from elliptica.core.inputs import EllipticWarning
from elliptica.lab.experiments.engines import Engine, Outcome
from elliptica.lab.experiments.metrics import score_of
from elliptica.lab.experiments.plugins import is_own_dataset, version_remarks
from elliptica.lab.experiments.records import read_record, record_file, write_record
from elliptica.lab.experiments.registry import RESPLIT, load_dataset
from elliptica.lab.experiments.run import Listener, Options
from elliptica.lab.experiments.specification import Range, Run, Specification, SpecificationError
from elliptica.lab.experiments.tuned import Place, Space, chosen_file, with_values

#: Seed of the trials; tables use 0, 1, ...
TRIAL_SEED = 1000
#: Name of the space that is made for a row.
AUTO = "auto"
#: A table and a data set of it that can be tuned, for those who ask for others.
TUNABLE = ("table4", "waterbirds-features")


def search_space(specification: Specification, row: str) -> Space:
    """What is searched for a row: the table's common ranges, and the row's own."""
    common = {("training", name): each for name, each in specification.search.items()}
    own = specification.methods[row].get("search", {})
    try:
        return common | {("settings", name): Range.model_validate(each) for name, each in own.items()}
    except ValidationError as error:
        raise SpecificationError(
            f"The search of {row} must hold ranges such as {{ low = 0.1, high = 1.0, log = true }}: {error}"
        ) from error


def named_space(specification: Specification, run: Run, name: str) -> Space:
    """Return the space of a search.

    ``"auto"`` is what the table searches in the training of every row and, for elliptic training, noise,
    bridges, pairing and weighting; for other methods what the table names beside the row. Other names are
    those of the table's ``searches``.
    """
    if name == AUTO:
        own = search_space(specification, run.row)
        if run.method == "elliptic":
            own = {**own, **{("settings", key): each for key, each in _elliptic_space(run.settings).items()}}
        if not own:
            raise SpecificationError(
                f"{run.table} names no range for {run.row}. Add a table [searches.NAME] to its "
                "specification, and say --search NAME."
            )
        return own
    if name not in specification.searches:
        known = ", ".join([AUTO, *specification.searches])
        raise SpecificationError(f"{run.table} has no search {name!r}. It has {known}.")
    spec = specification.searches[name]
    return {
        **{("training", key): each for key, each in spec.training.items()},
        **{("settings", key): each for key, each in spec.settings.items()},
    }


def _elliptic_space(settings: dict[str, Any]) -> dict[str, Range]:
    """Noise for standardised inputs, a few bridges, pairings by input, weightings that the row can have."""
    found = {"sigma_y": Range(low=0.0, high=0.2)}
    if isinstance(settings.get("sigma", 0.05), float | int):  # the PDE's own noise has no number
        found["sigma"] = Range(low=0.01, high=1.0, log=True)
    whole_paths = settings.get("sampling", "marginal") == "path"
    # two can be weighed against each other
    found["n_bridges"] = Range(low=2 if whole_paths else 1, high=4, integer=True)
    if "partners" not in settings:
        found["pairing"] = Range(choices=("permutation", "inverse_distance", "nearest"))
    weightings: tuple[str, ...] = ("none", "gradient_norm", "gradient_softmax")
    if whole_paths:
        weightings = (*weightings, "multiplicative")
    found["weighting"] = Range(choices=weightings)
    found["xi"] = Range(low=0.1, high=10.0, log=True)
    return found


def own_values(run: Run, space: Space) -> dict[str, Any]:
    """Return the table's own setting, as far as it lies in the space: the first trial."""
    defaults = {name: each.default for name, each in inspect.signature(Elliptic).parameters.items()}
    known = {"training": run.training, "settings": run.settings}
    if run.method == "elliptic":
        sigma = run.settings.get("sigma", defaults["sigma"])
        known["settings"] = {**defaults, "sigma_y": sigma, "weighting": "none", "xi": 1.0, **run.settings}
    return {
        f"{kind}.{name}": known[kind][name]
        for (kind, name), each in space.items()
        if name in known[kind] and each.contains(known[kind][name])
    }


def draw_trials(run: Run, space: Space, n_trials: int) -> list[dict[Place, Any]]:
    """Draw the settings of the trials of a row; the first is the table's own.

    What all methods share has the same draws for every row.
    """
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
    return drawn


def tune(
    rows: Mapping[str, tuple[Run, Space]], n_trials: int, options: Options, listen: Listener, engine: Engine
) -> dict[str, dict[str, Any] | str]:
    """Choose settings for rows of tables, each on one data set; all trials are given to the engine at once.

    Args:
        rows: By label: any run of the row, whose seed does not matter, and what may vary.
        n_trials: Trials of each row, the table's own setting among them.
        options: Where to run and to record.
        listen: Receives the events of the trials.
        engine: Does the trials.

    Returns:
        The choice for each row, which is also written to its `chosen_file`, or why there is none.
    """
    trials_at = dataclasses.replace(options, out=options.out / "trials")
    found: dict[str, dict[str, Any] | str] = {}
    drawn: dict[str, list[dict[Place, Any]]] = {}
    for label, (run, space) in rows.items():
        try:
            refuse_resplit(run, options.data_dir)
            drawn[label] = draw_trials(run, space, n_trials)
        except RuntimeError as error:
            found[label] = str(error)
    trials = {
        label: [with_values(rows[label][0], values, TRIAL_SEED) for values in each]
        for label, each in drawn.items()
    }
    different = {record_file(options.out, trial): trial for each in trials.values() for trial in each}
    outcomes = dict(zip(different, engine.do(list(different.values()), trials_at, listen), strict=True))
    done = [read_record(record_file(trials_at.out, trial)) for trial in different.values()]
    for remark in version_remarks([record for record in done if record is not None]):
        warnings.warn(f"Trials: {remark}", EllipticWarning, stacklevel=2)
    for label, each in trials.items():
        try:
            scores = [_score(trial, trials_at, outcomes[record_file(options.out, trial)]) for trial in each]
            found[label] = _choose(*rows[label], drawn[label], scores, options)
        except (RuntimeError, OSError) as error:
            found[label] = str(error)
    return {label: found[label] for label in rows}


def _score(trial: Run, options: Options, outcome: Outcome) -> tuple[float | None, str | None]:
    """Read the validation score of a trial, or why it failed; other errors than its settings' are raised."""
    if outcome.is_bad_setting:
        return None, outcome.error
    if outcome.error:
        raise RuntimeError(outcome.error)
    record = read_record(record_file(options.out, trial))
    if record is None:
        raise RuntimeError(
            "Another process has a trial of this row under way. Wait for it, or tune other rows here."
        )
    return score_of(record["metrics"]["validation"], trial.metric, trial.select), None


def _choose(
    run: Run,
    space: Space,
    drawn: list[dict[Place, Any]],
    scores: list[tuple[float | None, str | None]],
    options: Options,
) -> dict[str, Any]:
    """Choose the best trial and write the choice."""
    tried: list[dict[str, Any]] = []
    for values, (score, error) in zip(drawn, scores, strict=True):
        tried.append({"values": {".".join(place): v for place, v in values.items()}, "score": score})
        if error:
            tried[-1]["error"] = error
    best = max((t for t in tried if t["score"] is not None), key=lambda t: t["score"], default=None)
    if best is None:
        raise RuntimeError(
            f"All {len(tried)} trials of {run.row} failed. The first said: {tried[0]['error']} "
            "Correct the table's settings or narrow its search."
        )
    ranges = {".".join(place): each.as_dict() for place, each in space.items()}
    chosen = {**best, "search": ranges, "rule": f"best {run.select} on the validation part", "trials": tried}
    write_record(chosen_file(options.out, run), chosen)
    return chosen


def refuse_resplit(run: Run, data_dir: Path | None = None) -> None:
    """A choice for all seeds must not see rows that are test rows of some."""
    if run.load["name"] in RESPLIT or _is_drawn_anew(run, data_dir):
        raise RuntimeError(
            f"The parts of {run.load['name']} are drawn anew for each seed, so a choice for all seeds would "
            "have seen test rows. Choose settings within each seed, or use data with fixed parts, such as "
            f"elliptica tune {' --dataset '.join(TUNABLE)}."
        )


def _is_drawn_anew(run: Run, data_dir: Path | None) -> bool:
    """Whether two seeds have different test rows, of data that nobody has declared."""
    if not is_own_dataset(run.load["name"]):
        return False
    one, other = (load_dataset(run.load, seed, data_dir).test for seed in (0, TRIAL_SEED))
    return one.x.shape != other.x.shape or not torch.equal(one.x[:], other.x[:])


def rows_of(runs: list[Run], specification: Specification) -> dict[str, tuple[Run, Space]]:
    """Collect the rows of some runs, each with what may vary."""
    return {f"{run.dataset} {run.row}": (run, search_space(specification, run.row)) for run in runs}
