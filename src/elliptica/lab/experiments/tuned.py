"""Settings that tuning has chosen: where they are written, and runs that use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elliptica.lab.experiments.records import locked, read_lines, write_lines
from elliptica.lab.experiments.specification import Range, Run, SpecificationError

#: A setting is of the training, or of the method.
Place = tuple[str, str]
#: What may vary.
Space = dict[Place, Range]
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


def with_values(run: Run, values: dict[Place, Any], seed: int) -> Run:
    """The run with other values of some settings."""
    changed: dict[str, Any] = {"seed": seed}
    for kind in ("training", "settings"):
        own = {name: value for (place, name), value in values.items() if place == kind}
        changed[kind] = {**getattr(run, kind), **own}
    return run.model_copy(update=changed)


def apply_choices(runs: list[Run], out: Path, command: str = "") -> list[Run]:
    """Runs with the settings that were chosen for their rows; ``command`` is the one that chooses them.

    Raises:
        SpecificationError: If a row has not been tuned, or rows had different numbers of trials.
    """
    choices = read_choices(out)
    missing = {(run.dataset, run.row) for run in runs if run.key not in choices}
    if missing:
        names = ", ".join(f"{row} on {dataset}" for dataset, row in sorted(missing))
        rows = ",".join(sorted({row for _, row in missing}))
        command = command or f"elliptica tune {runs[0].table}"
        data = ",".join(sorted({dataset for dataset, _ in missing}))
        raise SpecificationError(
            f"Not tuned with these options: {names}. First run {command} --dataset {data} --methods '{rows}' "
            f"--out {out} (and the same --epochs, --precision, --match and --select), or leave out --tuned."
        )
    found = []
    budgets: dict[str, dict[tuple[int, str], str]] = {}
    for run in runs:
        content = choices[run.key]
        values = content["values"]
        how = content.get("sampler", "shared draws")
        budgets.setdefault(run.dataset, {})[len(content["trials"]), how] = run.row
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
