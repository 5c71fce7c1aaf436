"""Resolve command-line options to runs; find records that the current options hide."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from elliptica._utils.text import count
from elliptica.lab.experiments.records import read_record
from elliptica.lab.experiments.specification import (
    Run,
    Specification,
    SpecificationError,
    is_own,
    load_specification,
    runs,
    table_name,
)
from elliptica.lab.experiments.tuned import apply_choices


@dataclass(frozen=True)
class Choice:
    """Which runs of a table are meant; None is all of them.

    ``table`` is its name or its file; ``plugins`` are modules of the user's own, as the user named them.
    ``training`` overrides settings of the table, such as epochs; ``tuned`` takes what `elliptica tune` chose;
    ``select`` is the column that chooses epochs and settings, if not the table's.
    """

    table: str
    datasets: list[str] | None = None
    methods: list[str] | None = None
    seeds: int | None = None
    match_evaluations: bool = False
    training: dict[str, Any] = field(default_factory=dict)
    tuned: bool = False
    select: str | None = None
    plugins: tuple[str, ...] = ()

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
        found = runs(
            self.name,
            self.specification,
            datasets=self.datasets,
            methods=self.methods,
            seeds=self.seeds,
            match_evaluations=self.match_evaluations,
            training=self.training,
        )
        if self.select is not None:
            found = [run.model_copy(update={"select": self.select}) for run in found]
        if not self.tuned:
            return found
        return apply_choices(found, out, command=shlex.join(["elliptica", "tune", *self._words()]))

    def _words(self) -> list[str]:
        """The table and what it needs, as the commands take it."""
        return [self.table, *(word for each in self.plugins for word in ("--plugin", each))]

    def changes(self) -> list[str]:
        """What is not as the table says."""
        changed = [f"{name} = {value}" for name, value in self.training.items()]
        if self.select is not None:
            changed.append(f"epoch chosen by {self.select}")
        if self.tuned:
            changed.append("settings tuned on the validation part")
        if self.match_evaluations:
            changed.append("as many function evaluations for every method as for ordinary training")
        return changed

    def remarks(self) -> tuple[str, ...]:
        """The same as a sentence, if there is something to say."""
        changed = self.changes()
        return (f"Other than in the table's specification: {', '.join(changed)}.",) if changed else ()

    def setting_options(self) -> list[str]:
        """The options of the command that change settings."""
        words = [word for name, value in self.training.items() for word in (f"--{name}", str(value))]
        words += ["--match", "evaluations"] * self.match_evaluations
        words += [] if self.select is None else ["--select", self.select]
        return [*words, *["--tuned"] * self.tuned]

    def command(self, verb: str, out: Path) -> str:
        """The line that runs or shows these runs, e.g. ``elliptica table table3 --out runs``."""
        words = ["elliptica", verb, *self._words()]
        words += ["--dataset", ",".join(self.datasets)] if self.datasets else []
        words += ["--methods", ",".join(self.methods)] if self.methods else []
        words += ["--seeds", str(self.seeds)] if self.seeds else []
        return shlex.join([*words, *self.setting_options(), "--out", str(out)])

    def page_command(self, out: Path) -> str:
        """The line that makes a page of all records, e.g. ``elliptica report runs``."""
        words = ["elliptica", "report", str(out)]
        return shlex.join([*words, "--table", *self._words()] if is_own(self.table) else words)


_RECORD = re.compile(r"([0-9a-f]{12})-seed\d+\.json")


def hidden_records(choice: Choice, wanted: list[Run], out: Path) -> list[str]:
    """Find records of these rows that the options hide; returns sentences with the options that show them."""
    known = {run.key for run in wanted}
    found: Counter[str] = Counter()
    choices: dict[str, Choice | None] = {}
    by_options: dict[str, Choice | None] = {}
    for run in {(run.dataset, run.row): run for run in wanted}.values():
        folder = out / run.table / run.dataset / run.row.replace("/", "-")
        for file in sorted(folder.glob("*.json")):
            match = _RECORD.fullmatch(file.name)
            if match is None or match[1] in known:
                continue
            if match[1] not in choices:
                choices[match[1]] = _choice_of(choice, file, out)
            other = choices[match[1]]
            options = "?" if other is None else shlex.join(other.setting_options())
            by_options[options] = other
            found[options] += 1
    return [_sentence(choice, by_options[options], number, out) for options, number in found.items()]


def _choice_of(choice: Choice, file: Path, out: Path) -> Choice | None:
    """The options that give the run of a record, found by trying; None if none do."""
    record = read_record(file, set_aside_damaged=False)  # whoever looks moves nothing
    if record is None:
        return None
    try:
        run = Run.model_validate(record["run"])
    except ValueError:
        return None
    for other in _candidates(choice, run):
        try:
            if any(each.key == run.key for each in other.runs(out)):
                return replace(other, datasets=None, methods=None, seeds=None)
        except SpecificationError:  # e.g. not tuned
            continue
    return None


def _candidates(choice: Choice, run: Run) -> Iterator[Choice]:
    """Options that may have made a run, the plainest first."""
    usual = choice.specification.datasets[run.dataset].training.get("epochs", 1)
    plain = Choice(choice.table, [run.dataset], [run.row], 1, run.match_evaluations, plugins=choice.plugins)
    own = next((each.training["epochs"] for each in plain.runs(Path()) if "epochs" in each.training), usual)
    epochs = run.training.get("epochs", usual)
    precision = run.training.get("precision", "float32")
    further = {} if precision == "float32" else {"precision": precision}
    for tuned in (False, True):
        for select in (None, run.select):
            # a row with a schedule of its own has other epochs than the option says
            for asked in dict.fromkeys((None, epochs, max(round(epochs * usual / own), 1))):
                training = further if asked is None else {"epochs": asked, **further}
                yield replace(plain, training=training, tuned=tuned, select=select)


def _sentence(choice: Choice, other: Choice | None, number: int, out: Path) -> str:
    begin = f"{count(number, 'record')} here {'was' if number == 1 else 'were'} made with"
    if other is None:
        return f"{begin} other settings, which no option gives: elliptica report {out} shows them."
    here, there = shlex.join(choice.setting_options()), shlex.join(other.setting_options())
    if not there:
        return f"{begin} the table's own settings: leave out {here}."
    told = f"{begin} other settings ({', '.join(other.changes())})"
    return f"{told}: say {there} in place of {here}." if here else f"{told}: add {there}."
