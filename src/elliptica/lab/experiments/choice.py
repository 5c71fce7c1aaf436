"""Which runs are meant: by options of the command line, by what tuning chose, by the records of a folder."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from elliptica.core.inputs import EllipticWarning
from elliptica.lab.experiments.records import (
    DRAWS,
    SUFFIX,
    Record,
    Records,
    locked,
    read_lines,
    write_lines,
)
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
        write_lines(out / CHOSEN, [*lines, {"run": run.model_dump(mode="json"), "draws": DRAWS, **chosen}])


def with_values(run: Run, values: dict[str, Any], seed: int) -> Run:
    """The run with other values of some settings, by name: ``training.lr``, ``settings.sigma``."""
    changed: dict[str, Any] = {"training": dict(run.training), "settings": dict(run.settings), "seed": seed}
    for place, value in values.items():
        kind, _, name = place.partition(".")
        changed[kind][name] = value
    return run.model_copy(update=changed)


def apply_choices(runs: list[Run], out: Path, command: str = "elliptica tune") -> list[Run]:
    """Runs with the settings that were chosen for their rows; ``command`` is the one that chooses them.

    Settings that were tuned with earlier random draws are legitimate, and get a warning.

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
    if old := sorted({run.row for run in runs if choices[run.key]["draws"] != DRAWS}):
        text = f"Settings were tuned with earlier random draws: {', '.join(old)}. {command} would tune anew."
        warnings.warn(text, EllipticWarning, stacklevel=2)
    return [with_values(run, choices[run.key]["values"], run.seed) for run in runs]


#: Options of `elliptica run` that change settings, with their values, and what each means in words.
Variant = tuple[tuple[str, str], ...]
TUNED, MATCHED = ("tuned", ""), ("match", "evaluations")
_WORDS = {
    "tuned": "settings tuned on the validation part",
    "match": "as many function evaluations for every method as for ordinary training",
}


def describe(variant: Variant | None) -> str:
    """Say what is not as the table says; empty if everything is."""
    if variant is None:
        return "settings differ from the table's"
    return "; ".join(_WORDS.get(option, f"{option} = {{}}").format(value) for option, value in variant)


@dataclass(frozen=True)
class Choice:
    """Which runs of a table are meant; None is all of them.

    ``table`` is its name or its file. ``training`` overrides settings of the table, such as epochs; ``tuned``
    takes what `elliptica tune` chose.
    """

    table: str
    datasets: list[str] | None = None
    methods: list[str] | None = None
    seeds: int | None = None
    match_evaluations: bool = False
    training: dict[str, Any] = field(default_factory=dict)
    tuned: bool = False

    @cached_property
    def specification(self) -> Specification:
        """The table, read once; raises `SpecificationError` if there is none or it is wrong."""
        return load_specification(self.table)

    @property
    def name(self) -> str:
        """Name of the table in its records."""
        return table_name(self.table)

    @property
    def variant(self) -> Variant:
        """Options that change settings."""
        values = [(name, str(value)) for name, value in self.training.items()]
        return (*values, *[MATCHED] * self.match_evaluations, *[TUNED] * self.tuned)

    def untuned(self, specification: Specification) -> list[Run]:
        """The runs with the table's own settings."""
        names: dict[str, Any] = {"datasets": self.datasets, "methods": self.methods, "seeds": self.seeds}
        names |= {"match_evaluations": self.match_evaluations, "training": self.training}
        return runs(self.name, specification, **names)

    def runs(self, out: Path) -> list[Run]:
        """The runs; raises `SpecificationError` if something does not exist."""
        wanted = self.untuned(self.specification)
        return apply_choices(wanted, out, f"elliptica tune {self.table}") if self.tuned else wanted

    def remarks(self) -> tuple[str, ...]:
        """What is not as the table says, as a sentence, if there is something to say."""
        changed = describe(self.variant)
        return (f"Other than in the table's specification: {changed}.",) if changed else ()


#: Table, data set and variant; None if no options of `elliptica run` give the settings.
Place = tuple[str, str, Variant | None]


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
    groups: dict[Place, list[Record]] = {}
    choices, left = read_choices(folder), dict(by_key)
    recorded = [members[0].run for members in by_key.values()]
    for name in filter({run.table for run in recorded}.__contains__, specifications):
        specification = specifications[name]
        for choice in _choices(name, specification, [run for run in recorded if run.table == name]):
            for run in choice.untuned(specification):
                keys = {choice.variant: run.key}
                if run.key in choices:
                    tuned = with_values(run, choices[run.key]["values"], run.seed)
                    keys[(*choice.variant, TUNED)] = tuned.key
                for variant, key in keys.items():
                    groups.setdefault((name, run.dataset, variant), []).extend(by_key.get(key, []))
                    left.pop(key, None)
    for members in left.values():
        groups.setdefault((members[0].run.table, members[0].run.dataset, None), []).extend(members)
    kept = [place for place in groups if _has_own_records(place, groups)]
    kept.sort(key=lambda place: not place[0].startswith("table"))
    return {place: _one_setting(groups[place]) for place in kept}


def _choices(name: str, specification: Specification, recorded: list[Run]) -> list[Choice]:
    """The options that give runs of a table, but for ``--tuned``; each for one data set."""
    usual = {
        (run.dataset, run.row, match): run
        for match in (False, True)
        for run in runs(name, specification, seeds=1, match_evaluations=match)
    }
    choices: list[Choice] = []
    for run in recorded:
        base = usual.get((run.dataset, run.row, run.match_evaluations))
        if base is None:
            continue
        epochs = specification.datasets[run.dataset].training.get("epochs", base.training["epochs"])
        epochs = round(run.training["epochs"] * epochs / base.training["epochs"])  # a row may have its own
        training = {"epochs": max(epochs, 1)} if run.training["epochs"] != base.training["epochs"] else {}
        choice = Choice(name, [run.dataset], None, 1, run.match_evaluations, training)
        choices += [choice] * (choice not in choices)
    return choices


def _has_own_records(place: Place, groups: Mapping[Place, list[Record]]) -> bool:
    """Whether a group has records that are not only another table's, or there because tuning chose them."""
    table, dataset, variant = place
    tuned = [] if variant is None else groups.get((table, dataset, (*variant, TUNED)), [])
    return any(record.run.table == table and record not in tuned for record in groups[place])


def _one_setting(members: list[Record]) -> list[Record]:
    """Of each row the settings with most seeds; a table has one line for a row."""
    counts = Counter((record.run.row, record.run.key) for record in members)
    best = {row: key for (row, key), _ in reversed(counts.most_common())}
    return [record for record in members if best[record.run.row] == record.run.key]
