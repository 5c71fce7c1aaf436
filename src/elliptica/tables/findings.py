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
from elliptica._utils.result import Result
from elliptica._utils.statistics import clopper_pearson, student_quantile
from elliptica._utils.text import count

#: Lines of a breakdown that are printed; `Finding.breakdown` holds all of them.
_SHOWN = 6
_WIDTH = 100

#: ``"info"`` is a fact that requires no action by itself.
Severity = Literal["fine", "info", "look", "warning"]
#: From best to worst.
SEVERITIES: tuple[Severity, ...] = ("fine", "info", "look", "warning")
#: Rows that a finding points at.
RowsOf = Literal["training", "held-out", "unlabelled"]


@dataclass(frozen=True)
class Quantity:
    """A number with confidence limits.

    Attributes:
        value: The estimate.
        lower: Lower confidence limit; ``value`` itself for a number that is not estimated.
        upper: Upper confidence limit.
        stderr: Standard error of a mean; None for shares, whose limits are exact.
        n: Number of values behind it.
        kind: ``"mean"`` (Student's limits), ``"share"`` (Clopper-Pearson), or ``"number"`` (no limits).
    """

    value: float
    lower: float
    upper: float
    stderr: float | None
    n: int
    kind: Literal["mean", "share", "number"]

    @classmethod
    def mean(cls, values: Float[Tensor, " n"], confidence: float, floor: float = -math.inf) -> Quantity:
        """Average at least two values; ``floor`` is a lower bound of the mean and of its limits."""
        if len(values) < 2:
            raise ValueError(
                f"A mean with limits needs at least two values, but got {len(values)}. Pass more rows."
            )
        values = values.detach().double()
        value, n = float(values.mean()), len(values)
        error = float(values.std()) / math.sqrt(n)
        reach = student_quantile((1 + confidence) / 2, n - 1) * error
        lower = max(value - reach, min(floor, value))  # rounding may put the value itself below
        return cls(value, lower, value + reach, error, n, "mean")

    @classmethod
    def share(cls, count: int, n: int, confidence: float) -> Quantity:
        """Return the share ``count`` of ``n`` with its limits."""
        lower, upper = clopper_pearson(count, n, confidence)
        return cls(count / n, lower, upper, None, n, "share")

    @classmethod
    def number(cls, value: float, n: int = 1) -> Quantity:
        """Wrap a number without limits."""
        return cls(value, value, value, None, n, "number")

    def __str__(self) -> str:
        as_text = "{:.1%}".format if self.kind == "share" else "{:.3g}".format
        if self.kind == "number":
            return as_text(self.value)
        return f"{as_text(self.value)} ({as_text(self.lower)} to {as_text(self.upper)})"


def worst(*severities: Severity) -> Severity:
    """Return the most serious of several severities.

    Example:
        >>> worst("fine", "look", "fine")
        'look'
    """
    return max(severities, key=SEVERITIES.index, default="fine")


@dataclass(frozen=True)
class Finding(Result):
    """One finding about a model and its rows.

    Attributes:
        name: Short, fixed name; docs/diagnose.md lists all of them.
        severity: ``"warning"`` (a problem was shown), ``"look"`` (it may be one), ``"info"`` or ``"fine"``.
        sentence: The result in plain words.
        advice: What to do about it.
        numbers: The numbers behind the sentence.
        breakdown: The same by class, group, feature or place, the most notable first.
        computed: False if the finding could not be judged; the sentence then says why.
        title: Title of a few words; if empty, the name is shown.
        rows: Numbers of rows to look at, the most notable first.
        rows_of: Which rows these are.
    """

    name: str
    severity: Severity
    sentence: str
    advice: str
    numbers: Mapping[str, Quantity] = field(default_factory=dict)
    breakdown: Mapping[str, Quantity] = field(default_factory=dict)
    computed: bool = True
    title: str = ""
    rows: Sequence[int] = ()
    rows_of: RowsOf = "training"

    def lines(self) -> list[str]:
        """Return the finding without its heading, wrapped for a terminal."""
        lines = _wrapped(self.sentence, "  ", "  ")
        rows = list(self.breakdown.items())
        width = max((len(name) for name, _ in rows[:_SHOWN]), default=0)
        lines += [f"    {name.ljust(width)}  {quantity}" for name, quantity in rows[:_SHOWN]]
        if len(rows) > _SHOWN:
            lines.append(f"    ... and {len(rows) - _SHOWN} more")
        return [*lines, *self._last_lines()]

    def brief(self) -> list[str]:
        """Return the same without the breakdown."""
        return [*_wrapped(self.sentence, "  ", "  "), *self._last_lines()]

    def _last_lines(self) -> list[str]:
        lines = _wrapped(self.advice, "  -> ", "     ")
        if self.rows:
            shown = ", ".join(map(str, self.rows[:8]))
            more = f" and {len(self.rows) - 8} more" if len(self.rows) > 8 else ""
            lines.append(f"     {self.rows_of} rows {shown}{more}")
        return lines

    def __str__(self) -> str:
        return "\n".join([f"[{self.severity}] {self.title or self.name}", *self.lines()])


def fine(name: str, sentence: str) -> Finding:
    """Make a finding without a problem."""
    return Finding(name, "fine", sentence, "")


def skipped(name: str, reason: str) -> Finding:
    """Make a finding that could not be judged, with the reason."""
    return Finding(name, "fine", f"Not judged: {reason}.", "", computed=False)


@dataclass(frozen=True)
class Diagnosis(Result):
    """Result of `elliptica.diagnose`. Print it, or use `problems` and `findings`.

    Attributes:
        about: The rows, task and errors that the findings refer to.
        findings: The most important first; ``diagnosis["labels"]`` selects one.
        n_rows: Training rows that were judged.
        n_given: Training rows that were given.
        confidence: Confidence level of all limits.
        first_row: Number of the first row, where rows are listed.
    """

    about: tuple[str, ...]
    findings: tuple[Finding, ...]
    n_rows: int
    n_given: int
    confidence: float
    first_row: int = 0

    @property
    def severity(self) -> Severity:
        """The most serious severity; ``"fine"`` if there are no problems."""
        return worst(*(finding.severity for finding in self.problems))

    @property
    def problems(self) -> tuple[Finding, ...]:
        """Findings to act on or to look at."""
        return tuple(f for f in self.findings if f.severity in ("warning", "look"))

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(f"no finding {name!r}; use one of {', '.join(f.name for f in self.findings)}")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, lists and strings, ready for `json.dumps`."""
        return {"elliptica": __version__, "severity": self.severity, **super().to_dict()}

    def headline(self) -> str:
        """Return the most important findings as a line, or that there are none."""
        if not self.problems:
            return "Nothing stands out."
        titles = [finding.title or finding.name for finding in self.problems]
        more = f" and {count(len(titles) - 3, 'more finding')}" if len(titles) > 3 else ""
        return f"{'; '.join(titles[:3])}{more}."

    def summary(self) -> str:
        """Return the number of problems of each severity."""
        counts = [f"{sum(f.severity == name for f in self.findings)} {name}" for name in ("warning", "look")]
        return ", ".join(counts)

    def preface(self) -> list[str]:
        """Return what the findings refer to, wrapped for a terminal."""
        about = self.about
        if any(finding.rows for finding in self.problems):
            header = ", without the header" if self.first_row else ""
            about = (*about, f"Rows are counted from {self.first_row}{header}.")
        return _wrapped(" ".join(about), "", "")

    def closing(self) -> list[str]:
        """List what was checked without a problem, and what could not be judged."""
        checked = [f.name for f in self.findings if f.severity == "fine" and f.computed]
        lines = _wrapped(f"Checked, no problem: {', '.join(checked) or 'none'}.", "", "  ")
        left: dict[str, list[str]] = {}
        for finding in self.findings:
            if not finding.computed:
                left.setdefault(finding.sentence.removeprefix("Not judged: ").rstrip("."), []).append(
                    finding.name
                )
        for reason, names in left.items():
            lines += _wrapped(f"Not judged: {', '.join(names)} ({reason}).", "", "  ")
        return lines

    def everything(self) -> str:
        """Return all findings with their breakdowns."""
        return "\n\n".join(["\n".join(self.preface()), *map(str, self.findings)])

    def __str__(self) -> str:
        blocks = ["\n".join(self.preface())]
        blocks += ["\n".join([f"[{f.severity}] {f.title or f.name}", *f.brief()]) for f in self.problems] or [
            "Nothing stands out."
        ]
        return "\n\n".join([*blocks, "\n".join(self.closing())])


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False)
