"""Which runs are meant: by options of the command line, by what tuning chose, by the records of a folder."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from elliptica.lab.experiments.records import SUFFIX, Record, Records, locked, read_lines, write_lines
from elliptica.lab.experiments.specification import (
    Run,
    Specification,
    SpecificationError,
    load_specification,
    preset_names,
    runs,
    table_name,
)

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


TUNED = "settings tuned on the validation part"
MATCHED = "as many function evaluations for every method as for ordinary training"


@dataclass(frozen=True)
class Choice:
    """Which runs of a table are meant; None is all of them.

    ``table`` is its name or its file. ``training`` overrides settings of the table, such as epochs; ``tuned``
    takes what `elliptica tune` chose; ``select`` is the column that chooses epochs, if not the table's.
    """

    table: str
    datasets: list[str] | None = None
    methods: list[str] | None = None
    seeds: int | None = None
    match_evaluations: bool = False
    training: dict[str, Any] = field(default_factory=dict)
    tuned: bool = False
    select: str | None = None

    @cached_property
    def specification(self) -> Specification:
        """The table, read once; raises `SpecificationError` if there is none or it is wrong."""
        return load_specification(self.table)

    @property
    def name(self) -> str:
        """Name of the table in its records."""
        return table_name(self.table)

    def runs(self, out: Path) -> list[Run]:
        """The runs; raises `SpecificationError` if something does not exist."""
        names: dict[str, Any] = {"datasets": self.datasets, "methods": self.methods, "seeds": self.seeds}
        names |= {"match_evaluations": self.match_evaluations, "training": self.training}
        wanted = runs(self.name, self.specification, **names)
        if self.select is not None:
            wanted = [run.model_copy(update={"select": self.select}) for run in wanted]
        return apply_choices(wanted, out, f"elliptica tune {self.table}") if self.tuned else wanted

    def remarks(self) -> tuple[str, ...]:
        """What is not as the table says, as a sentence, if there is something to say."""
        changed = [f"{name} = {value}" for name, value in self.training.items()]
        changed += [] if self.select is None else [f"epoch chosen by {self.select}"]
        changed += [TUNED] * self.tuned + [MATCHED] * self.match_evaluations
        return (f"Other than in the table's specification: {', '.join(changed)}.",) if changed else ()


#: Table, data set, and what is not as the table says.
Place = tuple[str, str, str]


def read_folder(folder: Path) -> list[Record]:
    """Read the records of all tables in a folder."""
    files = sorted(file for file in folder.glob(f"*{SUFFIX}") if file.name != CHOSEN)
    if not files:
        raise ValueError(f"{folder} has no records of elliptica run.")
    return [record for file in files for record in Records(file).read()]


def known_tables(own: Iterable[str] = ()) -> dict[str, Specification]:
    """Tables of the library, and one's own by their files, each under its name in records."""
    return {table_name(table): load_specification(table) for table in (*preset_names(), *own)}


def group_records(
    records: Iterable[Record], folder: Path, specifications: Mapping[str, Specification]
) -> dict[Place, list[Record]]:
    """Group records by table, data set and variant, tables of the paper first.

    A table that takes a row from another one (``from`` in its specification) gets the records of that row;
    a row whose tuned settings are the table's own stands in both variants.
    """
    by_key: dict[str, list[Record]] = {}
    for record in records:
        by_key.setdefault(record.run.key, []).append(record)
    recorded = {members[0].run.table for members in by_key.values()}
    groups: dict[Place, list[Record]] = {}
    specified: dict[tuple[str, str, str], Run] = {}
    choices, left = read_choices(folder), dict(by_key)
    for table, match in itertools.product(filter(recorded.__contains__, specifications), (False, True)):
        for run in runs(table, specifications[table], seeds=1, match_evaluations=match):
            specified.setdefault((table, run.dataset, run.row), run)
            keys = {"": run.key}
            if run.key in choices:
                keys[TUNED] = with_values(run, choices[run.key]["values"], run.seed).key
            for variant, key in keys.items():
                place = (table, run.dataset, "; ".join(filter(None, [variant, MATCHED * match])))
                groups.setdefault(place, []).extend(by_key.get(key, []))
                left.pop(key, None)
    for members in left.values():
        run = members[0].run
        variant = _departure(run, specified.get((run.table, run.dataset, run.row)))
        groups.setdefault((run.table, run.dataset, variant), []).extend(members)
    kept = [place for place in groups if _has_own_records(place, groups)]
    kept.sort(key=lambda place: not place[0].startswith("table"))
    return {place: _one_setting(groups[place]) for place in kept}


def _has_own_records(place: Place, groups: Mapping[Place, list[Record]]) -> bool:
    """Whether a group has records that are not only another table's, or there because tuning chose them."""
    table, dataset, variant = place
    tuned = groups.get((table, dataset, "; ".join(filter(None, [TUNED, variant]))), [])
    return any(record.run.table == table and record not in tuned for record in groups[place])


def _departure(run: Run, base: Run | None) -> str:
    """What is not as the table says."""
    if base is None:
        return ""
    changed = sorted(name for name, value in run.training.items() if base.training.get(name) != value)
    told = ", ".join(f"{name} = {run.training[name]}" for name in changed)
    told = told or "settings of the methods differ from the table's"
    return "; ".join([told, *[MATCHED] * run.match_evaluations])


def _one_setting(members: list[Record]) -> list[Record]:
    """Of each row the settings with most seeds; a table has one line for a row."""
    counts = Counter((record.run.row, record.run.key) for record in members)
    best = {row: key for (row, key), _ in reversed(counts.most_common())}
    return [record for record in members if best[record.run.row] == record.run.key]
