"""Resolve command-line options to runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from elliptica.lab.experiments.specification import (
    Run,
    Specification,
    is_own,
    load_specification,
    runs,
    table_name,
)
from elliptica.lab.experiments.tuned import apply_choices

TUNED = "settings tuned on the validation part"
MATCHED = "as many function evaluations for every method as for ordinary training"


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
        names: dict[str, Any] = {"datasets": self.datasets, "methods": self.methods, "seeds": self.seeds}
        names |= {"match_evaluations": self.match_evaluations, "training": self.training}
        wanted = runs(self.name, self.specification, **names)
        if self.select is not None:
            wanted = [run.model_copy(update={"select": self.select}) for run in wanted]
        command = shlex.join(["elliptica", "tune", *self._words()])
        return apply_choices(wanted, out, command) if self.tuned else wanted

    def _words(self) -> list[str]:
        """The table and what it needs, as the commands take it."""
        return [self.table, *(word for each in self.plugins for word in ("--plugin", each))]

    def remarks(self) -> tuple[str, ...]:
        """What is not as the table says, as a sentence, if there is something to say."""
        changed = [f"{name} = {value}" for name, value in self.training.items()]
        changed += [] if self.select is None else [f"epoch chosen by {self.select}"]
        changed += [TUNED] * self.tuned + [MATCHED] * self.match_evaluations
        return (f"Other than in the table's specification: {', '.join(changed)}.",) if changed else ()

    def command(self, verb: str, out: Path) -> str:
        """The line that runs or shows these runs, e.g. ``elliptica table table3 --out runs``."""
        words = ["elliptica", verb, *self._words()]
        words += ["--dataset", ",".join(self.datasets)] if self.datasets else []
        words += ["--methods", ",".join(self.methods)] if self.methods else []
        words += ["--seeds", str(self.seeds)] if self.seeds else []
        words += [word for name, value in self.training.items() for word in (f"--{name}", str(value))]
        words += ["--match", "evaluations"] * self.match_evaluations
        words += [] if self.select is None else ["--select", self.select]
        return shlex.join([*words, *["--tuned"] * self.tuned, "--out", str(out)])

    def page_command(self, out: Path) -> str:
        """The line that makes a page of all records, e.g. ``elliptica report runs``."""
        words = ["elliptica", "report", str(out)]
        return shlex.join([*words, "--table", *self._words()] if is_own(self.table) else words)
