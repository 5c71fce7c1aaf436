"""What `elliptica.diagnose` gives back: findings in words, with numbers, a severity and what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elliptica import __version__
from elliptica.diagnostics.quantities import SEVERITIES, Quantity, Severity, worst
from elliptica.diagnostics.report import Report

#: Lines of a breakdown that are printed; `Finding.breakdown` holds all of them.
_SHOWN = 6
_WIDTH = 100


@dataclass(frozen=True)
class Finding(Report):
    """One thing found out about a model.

    Attributes:
        name: Short and fixed: ``"data"``, ``"between"``, ``"profile"``, ``"noise"``, ``"slope"``,
            ``"curvature"``, ``"dimension"``, ``"pde"`` or ``"advice"``.
        severity: ``"fine"``, ``"look"`` or ``"warning"``, by the thresholds in `docs/diagnose.md`.
        sentence: What was found, in plain words.
        advice: What to do about it.
        numbers: The numbers behind the sentence.
        breakdown: The same by class, by pair or by place, most remarkable first.
        computed: False if the finding could not be computed; the sentence then says why.
    """

    name: str
    severity: Severity
    sentence: str
    advice: str
    numbers: Mapping[str, Quantity] = field(default_factory=dict)
    breakdown: Mapping[str, Quantity] = field(default_factory=dict)
    computed: bool = True

    def lines(self) -> list[str]:
        """The finding without its heading, wrapped for a terminal."""
        lines = _wrapped(self.sentence, "  ", "  ")
        rows = list(self.breakdown.items())
        width = max((len(name) for name, _ in rows[:_SHOWN]), default=0)
        lines += [f"    {name.ljust(width)}  {quantity}" for name, quantity in rows[:_SHOWN]]
        if len(rows) > _SHOWN:
            lines.append(f"    ... and {len(rows) - _SHOWN} more")
        return [*lines, *_wrapped(self.advice, "  -> ", "     ")]

    def __str__(self) -> str:
        return "\n".join([f"[{self.severity}] {self.name}", *self.lines()])


@dataclass(frozen=True)
class Diagnosis(Report):
    """What `elliptica.diagnose` found. Print it, or read `findings`.

    Attributes:
        about: Which rows, task, loss and yardstick the findings are about.
        findings: One after the other; ``diagnosis["between"]`` picks one.
        n_rows: Rows that were looked at.
        n_given: Rows that were given.
        confidence: Level of all limits.
    """

    about: tuple[str, ...]
    findings: tuple[Finding, ...]
    n_rows: int
    n_given: int
    confidence: float

    @property
    def severity(self) -> Severity:
        """The gravest of the findings."""
        return worst(*(finding.severity for finding in self.findings))

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(f"no finding {name!r}; there are {', '.join(f.name for f in self.findings)}")

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, lists and strings, ready for `json.dumps`."""
        return {"elliptica": __version__, "severity": self.severity, **super().to_dict()}

    def summary(self) -> str:
        """How many findings there are of each severity."""
        counts = {name: sum(f.severity == name for f in self.findings) for name in SEVERITIES}
        return ", ".join(f"{counts[name]} {name}" for name in reversed(SEVERITIES))

    def preface(self) -> list[str]:
        """What the findings are about, wrapped for a terminal."""
        return [line for sentence in self.about for line in _wrapped(sentence, "", "")]

    def __str__(self) -> str:
        parts = ["\n".join(self.preface()), *map(str, self.findings), f"Findings: {self.summary()}."]
        return "\n\n".join(parts)


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False)
