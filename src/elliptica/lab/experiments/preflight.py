"""What stands in the way of runs, found before any work is done."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Collection
from dataclasses import MISSING, fields
from pathlib import Path

from elliptica._utils import checks
from elliptica.lab.data.catalogue import ENTRIES, plain_name
from elliptica.lab.experiments.methods import METHODS
from elliptica.lab.experiments.plugins import is_own_dataset
from elliptica.lab.experiments.records import is_recorded
from elliptica.lab.experiments.registry import DATASETS, MODELS, entry_name, load_dataset
from elliptica.lab.experiments.run import Options, training_settings
from elliptica.lab.experiments.specification import OWN, Run, SpecificationError
from elliptica.lab.training.settings import TrainingSettings


def check_names(runs: list[Run]) -> None:
    """Check that there are such methods, data sets, networks and training settings, all of them at once.

    Raises:
        SpecificationError: If something does not exist; the message names the key.
    """
    problems: dict[str, str] = {}
    for run in runs:
        method = f"methods.{run.row}" if run.method == run.row else f"methods.{run.row}.method"
        data = f"datasets.{run.dataset}"
        load = data if run.load["name"] == run.dataset else f"{data}.load.name"
        wanted: dict[str, tuple[str, str, Collection[str]]] = {
            method: ("method", run.method, METHODS),
            load: ("data set", run.load["name"], DATASETS),
            f"{data}.model.name": ("network", run.model.get("name", ""), MODELS),
        }
        for key, (what, name, known) in wanted.items():
            if name not in known:
                there = ", ".join(known)
                problems[f"{run.table}: {key}"] = f"There is no {what} {name!r}. There are {there}. {OWN}"
        problems |= _training_problems(run)
    if problems:
        raise SpecificationError("\n".join(f"{key}: {told}" for key, told in problems.items()))


def _training_problems(run: Run) -> dict[str, str]:
    """Settings of the training that do not exist, are missing or wrong."""
    place, known = f"{run.table}: datasets.{run.dataset}.training", fields(TrainingSettings)
    names = [each.name for each in known]
    needed = {each.name for each in known if each.default is MISSING}
    problems = {
        f"{place}.{name}": f"There is no such setting. There are {', '.join(names)}."
        for name in run.training
        if name not in names
    }
    problems |= {f"{place}.{name}": "It is missing." for name in sorted(needed - set(run.training))}
    if problems:
        return problems
    try:
        training_settings(run)
    except (TypeError, ValueError) as error:
        return {f"{place} with methods.{run.row}": str(error)}
    return {}


def check_before(runs: list[Run], options: Options) -> tuple[list[Run], list[str]]:
    """Try the folder, the device and the data; returns the runs that can be done, and problems."""
    problem = folder_problem(options.out) or device_problem(options.device)
    if problem:
        return [], [problem]
    problems = data_problems(one_per_data(runs, options), options.data_dir)
    return with_folder(without(runs, problems), list(problems.values()), options.out)


def with_folder(left: list[Run], problems: list[str], out: Path) -> tuple[list[Run], list[str]]:
    """Make the folder now that everything else is known to be right: a refused command leaves nothing."""
    if not left:
        return [], problems
    try:
        (out / ".locks").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return [], [_cannot_write(out, error)]
    return left, problems


def folder_problem(out: Path) -> str | None:
    """Why records cannot be written, as far as can be seen without writing; None if they can."""
    try:
        there = next(place for place in (out.absolute(), *out.absolute().parents) if place.exists())
    except OSError as error:
        return _cannot_write(out, error)
    if not there.is_dir():
        return _cannot_write(out, f"{there} is not a folder")
    return None if os.access(there, os.W_OK | os.X_OK) else _cannot_write(out, f"{there} is read-only")


def _cannot_write(out: Path, why: object) -> str:
    return f"Records cannot be written to {out} ({why}). Choose another folder with --out."


def device_problem(device: str) -> str | None:
    """Why a device of this machine cannot be used; None if it can."""
    try:
        checks.device(device, "Use --device cpu.")
    except ValueError as error:
        return str(error)
    return None


def one_per_data(runs: list[Run], options: Options) -> list[Run]:
    """One run for each way of loading data that is still needed."""
    left = [run for run in runs if not is_recorded(options.out, run, with_epochs=options.every_epoch)]
    return list({load_key(run): run for run in reversed(left)}.values())[::-1]


def data_problems(runs: list[Run], data_dir: Path | None) -> dict[str, str]:
    """Why data of runs cannot be loaded on this machine, by `load_key`."""
    problems = {}
    for run in runs:
        try:
            task = load_dataset(run.load, run.seed, data_dir).task
            if (run.metric == "rmse") != (task == "regression"):
                right = '"rmse"' if task == "regression" else '"accuracy" or "error"'
                raise ValueError(f'metric = "{run.metric}" does not suit {task}. Use metric = {right}.')
        except (OSError, ValueError, ImportError) as error:
            problems[load_key(run)] = f"{run.dataset}: {error}{_way_to_get(run, data_dir, error)}"
    return problems


def _way_to_get(run: Run, data_dir: Path | None, error: Exception) -> str:
    """What to do about files that are missing."""
    if not isinstance(error, OSError) or is_own_dataset(run.load["name"]):
        return ""
    name = entry_name(run.dataset, run.load)
    entry = next((each for each in ENTRIES if plain_name(each.name) == plain_name(name)), None)
    if entry is None or not entry.can_fetch or not isinstance(error, FileNotFoundError):
        return " `elliptica data list` says how to get data."
    place = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
    return f" To download it: elliptica data fetch {entry.name}{place}"


def without(runs: list[Run], problems: dict[str, str]) -> list[Run]:
    """Runs whose data can be loaded."""
    return [run for run in runs if load_key(run) not in problems]


def load_key(run: Run) -> str:
    """The same for runs that load the same data."""
    return json.dumps(run.load, sort_keys=True)
