"""Resolve command-line options to runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from elliptica.lab.experiments.specification import (
    Run,
    Specification,
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
