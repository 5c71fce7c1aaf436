"""Which runs of a table are meant, as options of the commands say it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elliptica.experiments.specification import Run, load_specification, runs
from elliptica.experiments.tune import apply_choices


@dataclass(frozen=True)
class Choice:
    """Which runs of a table are meant; None is all of them.

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

    def runs(self, out: Path) -> list[Run]:
        """The runs; raises `SpecificationError` if something does not exist."""
        found = runs(
            self.table,
            load_specification(self.table),
            datasets=self.datasets,
            methods=self.methods,
            seeds=self.seeds,
            match_evaluations=self.match_evaluations,
            training=self.training,
        )
        if self.select is not None:
            found = [run.model_copy(update={"select": self.select}) for run in found]
        return apply_choices(found, out) if self.tuned else found

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
        words = ["elliptica", verb, self.table]
        words += ["--dataset", ",".join(self.datasets)] if self.datasets else []
        words += ["--methods", ",".join(self.methods)] if self.methods else []
        words += ["--seeds", str(self.seeds)] if self.seeds else []
        return shlex.join([*words, *self.setting_options(), "--out", str(out)])
