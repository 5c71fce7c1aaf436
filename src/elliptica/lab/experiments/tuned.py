"""Settings that tuning has chosen: where they are kept, and runs that use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elliptica.lab.experiments.records import locked, read_lines, write_lines
from elliptica.lab.experiments.specification import Run, SpecificationError

#: File of the choices in a folder of records.
CHOSEN = "chosen.jsonl.gz"


def read_choices(out: Path) -> dict[str, dict[str, Any]]:
    """What tuning chose for rows, by `Run.key` of the row as the table has it."""
    return {Run.model_validate(line["run"]).key: line for line in read_lines(out / CHOSEN)}


def keep_choice(out: Path, run: Run, chosen: dict[str, Any]) -> None:
    """Write what was chosen for a row, in place of an earlier choice."""
    with locked(out / CHOSEN):
        lines = [line for key, line in read_choices(out).items() if key != run.key]
        write_lines(out / CHOSEN, [*lines, {"run": run.model_dump(mode="json"), **chosen}])


def with_values(run: Run, values: dict[str, Any], seed: int) -> Run:
    """The run with other values of some settings, by name: ``training.lr``, ``settings.sigma``."""
    changed: dict[str, Any] = {"training": dict(run.training), "settings": dict(run.settings), "seed": seed}
    for place, value in values.items():
        kind, _, name = place.partition(".")
        changed[kind][name] = value
    return run.model_copy(update=changed)


def apply_choices(runs: list[Run], out: Path, command: str = "elliptica tune") -> list[Run]:
    """Runs with the settings that were chosen for their rows; ``command`` is the one that chooses them.

    Raises:
        SpecificationError: If a row is not tuned, or rows of a data set had different numbers of trials.
    """
    choices = read_choices(out)
    missing = sorted({f"{run.row} on {run.dataset}" for run in runs if run.key not in choices})
    if missing:
        raise SpecificationError(f"Not tuned with these options: {', '.join(missing)}. First run {command}.")
    trials = {(run.dataset, len(choices[run.key]["trials"])) for run in runs}
    if len(trials) > len({dataset for dataset, _ in trials}):
        raise SpecificationError("Rows had different numbers of trials. Tune them with the same --trials.")
    return [with_values(run, choices[run.key]["values"], run.seed) for run in runs]
