"""The parts of a diagnosis: numbers with limits, severities, and findings in words."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from elliptica import __version__
from elliptica._utils.extras import count
from elliptica._utils.statistics import Result, clopper_pearson, student_quantile

#: ``"info"`` is a fact that requires no action by itself.
Severity = Literal["fine", "info", "look", "warning"]
#: From best to worst.
SEVERITIES: tuple[Severity, ...] = ("fine", "info", "look", "warning")
#: Rows that a finding points at.
RowsOf = Literal["training", "held-out", "unlabelled"]
#: Why a finding is not judged without held-out rows.
NO_HELD_OUT = "no held-out rows"


@dataclass(frozen=True)
class Quantity:
    """A number with confidence limits: Student's for a mean, Clopper and Pearson's for a share."""

    value: float
    lower: float
    upper: float
    n: int  # number of values behind it
    kind: Literal["mean", "share", "number"]

    @classmethod
    def mean(cls, values: Float[Tensor, " n"], confidence: float, floor: float = -math.inf) -> Quantity:
        """Average values; ``floor`` is a lower bound of the mean. A single value has infinite limits."""
        values = values.detach().double()
        n, value, reach = len(values), float(values.mean()), math.inf
        if n > 1:
            reach = student_quantile((1 + confidence) / 2, n - 1) * float(values.std()) / math.sqrt(n)
        lower = max(value - reach, min(floor, value))  # rounding may put the value itself below
        return cls(value, lower, value + reach, n, "mean")

    @classmethod
    def difference(cls, a: Float[Tensor, " n"], b: Float[Tensor, " m"], confidence: float) -> Quantity:
        """Return the mean of ``a`` minus the mean of ``b`` for independent rows (Welch)."""
        value, n = float(a.mean() - b.mean()), min(len(a), len(b))
        if n < 2:
            return cls(value, -math.inf, math.inf, n, "mean")
        first, second = float(a.var()) / len(a), float(b.var()) / len(b)
        total, reach = first + second, 0.0
        if total > 0:
            degrees = total**2 / (first**2 / (len(a) - 1) + second**2 / (len(b) - 1))
            reach = student_quantile((1 + confidence) / 2, max(1.0, round(degrees, 1))) * math.sqrt(total)
        return cls(value, value - reach, value + reach, n, "mean")

    @classmethod
    def share(cls, marked: Tensor, confidence: float) -> Quantity:
        """Return the share of rows that are marked."""
        hits, n = int(marked.sum()), len(marked)
        return cls(hits / n, *clopper_pearson(hits, n, confidence), n, "share")

    @classmethod
    def number(cls, value: float, n: int = 1) -> Quantity:
        """Wrap a number without limits."""
        return cls(value, value, value, n, "number")

    def __str__(self) -> str:
        as_text = "{:.1%}".format if self.kind == "share" else "{:.3g}".format
        if self.kind == "number":
            return as_text(self.value)
        return f"{as_text(self.value)} ({as_text(self.lower)} to {as_text(self.upper)})"


def grade(value: float, look: float, warning: float) -> Severity:
    """Judge a number by two thresholds."""
    return "warning" if value > warning else "look" if value > look else "fine"


@dataclass(frozen=True)
class Finding(Result):
    """One finding about a model and its rows."""

    #: ``"warning"`` (a problem was shown), ``"look"`` (it may be one), ``"info"`` or ``"fine"``.
    severity: Severity
    title: str  # title of a few words; if empty, the name is shown
    sentence: str  # the result in plain words
    advice: str = ""  # what to do about it
    numbers: Mapping[str, Quantity] = field(default_factory=dict)  # the numbers behind the sentence
    #: The same by class, group, feature or place, the most notable first.
    breakdown: Mapping[str, Quantity] = field(default_factory=dict)
    rows: Sequence[int] = ()  # numbers of rows to look at, the most notable first
    rows_of: RowsOf = "training"  # which rows these are
    name: str = ""  # short, fixed name; docs/diagnose.md lists all of them
    computed: bool = True  # False if the finding could not be judged; the sentence then says why
    explains: Sequence[str] = ()  # titles of findings that follow from this one and are not listed themselves

    @property
    def is_problem(self) -> bool:
        """Whether to act on it or to look at it."""
        return self.severity in ("warning", "look")

    def text(self, *, breakdown: bool = True) -> str:
        """Return the finding with its heading, wrapped for a terminal."""
        lines = [f"[{self.severity}] {self.title or self.name}", *_wrapped(self.sentence, "  ", "  ")]
        if breakdown:
            width = max(map(len, self.breakdown), default=0)
            lines += [f"    {name.ljust(width)}  {quantity}" for name, quantity in self.breakdown.items()]
        lines += _wrapped(self.advice, "  -> ", "     ")
        if self.rows:
            more = f" and {len(self.rows) - 8} more" if len(self.rows) > 8 else ""
            lines.append(f"     {self.rows_of} rows {', '.join(map(str, self.rows[:8]))}{more}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def skipped(reason: str) -> Finding:
    """Make a finding that could not be judged, with the reason."""
    return Finding("fine", "", f"Not judged: {reason}.", computed=False)


@dataclass(frozen=True)
class Diagnosis(Result):
    """Result of `elliptica.diagnose`. Print it, or use `problems` and `findings`."""

    about: tuple[str, ...]  # the rows, task and errors that the findings refer to
    findings: tuple[Finding, ...]  # the most important first; ``diagnosis["labels"]`` selects one
    n_rows: int  # training rows that were judged
    n_given: int  # training rows that were given
    confidence: float  # confidence level of all limits
    first_row: int = 0  # number of the first row, where rows are listed

    @property
    def severity(self) -> Severity:
        """The most serious severity; ``"fine"`` if there are no problems."""
        return max((f.severity for f in self.problems), key=SEVERITIES.index, default="fine")

    @property
    def problems(self) -> tuple[Finding, ...]:
        """Findings to act on or to look at."""
        return tuple(f for f in self.findings if f.is_problem)

    def __getitem__(self, name: str) -> Finding:
        return {f.name: f for f in reversed(self.findings)}[name]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, lists and strings, ready for `json.dumps`."""
        return {"elliptica": __version__, "severity": self.severity, **super().to_dict()}

    def headline(self) -> str:
        """Return the most important findings, and what could not be judged without held-out rows."""
        titles = [finding.title or finding.name for finding in self.problems] or ["Nothing stands out"]
        more = f" and {count(len(titles) - 3, 'more finding')}" if len(titles) > 3 else ""
        blind = self._skipped().get(NO_HELD_OUT, [])
        limits = f" Not judged without held-out rows: {', '.join(blind)}." if blind else ""
        return f"{'; '.join(titles[:3])}{more}.{limits}"

    def _skipped(self) -> dict[str, list[str]]:
        """Return the findings that could not be judged, by reason."""
        reasons: dict[str, list[str]] = {}
        for finding in self.findings:
            if not finding.computed:
                reason = finding.sentence.removeprefix("Not judged: ").rstrip(".")
                reasons.setdefault(reason, []).append(finding.name)
        return reasons

    def text(self, *, everything: bool = False) -> str:
        """Return the problems for a terminal; on request all findings, with their breakdowns."""
        about = self.about
        if any(finding.rows for finding in self.problems):
            header = ", without the header" if self.first_row else ""
            about = (*about, f"Rows are counted from {self.first_row}{header}.")
        shown = self.findings if everything else self.problems
        checked = [f.name for f in self.findings if f.severity == "fine" and f.computed]
        closing = _wrapped(f"Checked, no problem: {', '.join(checked) or 'none'}.", "", "  ")
        for reason, names in self._skipped().items():
            closing += _wrapped(f"Not judged: {', '.join(names)} ({reason}).", "", "  ")
        blocks = [
            _wrapped(" ".join(about), "", ""),
            *([finding.text(breakdown=everything)] for finding in shown),
        ]
        blocks += [] if self.problems else [_wrapped(self.headline(), "", "")]
        return "\n\n".join("\n".join(block) for block in [*blocks, closing])

    def __str__(self) -> str:
        return self.text()


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=first, subsequent_indent=rest, break_long_words=False)
