"""What a diagnosis consists of: numbers with limits, thresholds, severities and findings in words."""

from __future__ import annotations

import bisect
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from elliptica import __version__
from elliptica._utils.statistics import clopper_pearson, incomplete_beta, student_quantile
from elliptica.diagnostics.result import Result

#: More values than anybody will be asked for.
_MANY = 1_000_000
#: Lines of a breakdown that are printed; `Finding.breakdown` holds all of them.
_SHOWN = 6
_WIDTH = 100

Severity = Literal["fine", "look", "warning"]
#: From best to worst.
SEVERITIES: tuple[Severity, ...] = ("fine", "look", "warning")


@dataclass(frozen=True)
class Quantity:
    """A number and how well it is known.

    Attributes:
        value: The estimate.
        lower: Lower confidence limit; equal to ``value`` for a number that is not estimated.
        upper: Upper confidence limit.
        stderr: Standard error of a mean; None for shares and medians, whose limits are exact.
        n: How many values it rests on.
        kind: ``"mean"`` (Student's limits), ``"share"`` (Clopper-Pearson), ``"median"`` (order
            statistics), or ``"number"`` (no limits).
    """

    value: float
    lower: float
    upper: float
    stderr: float | None
    n: int
    kind: Literal["mean", "share", "median", "number"]

    @classmethod
    def mean(cls, values: Float[Tensor, " n"], confidence: float, floor: float = -math.inf) -> Quantity:
        """Mean of at least two values; ``floor`` is what it cannot be below, and neither can its limit."""
        if len(values) < 2:
            raise ValueError(f"A mean with limits needs at least two values, but got {len(values)}.")
        values = values.detach().double()
        value, n = float(values.mean()), len(values)
        error = float(values.std()) / math.sqrt(n)
        reach = student_quantile((1 + confidence) / 2, n - 1) * error
        lower = max(value - reach, min(floor, value))  # rounding may put the value itself below
        return cls(value, lower, value + reach, error, n, "mean")

    @classmethod
    def share(cls, count: int, n: int, confidence: float) -> Quantity:
        """``count`` of ``n``."""
        lower, upper = clopper_pearson(count, n, confidence)
        return cls(count / n, lower, upper, None, n, "share")

    @classmethod
    def median(cls, values: Float[Tensor, " n"], confidence: float) -> Quantity:
        """Median; its limits are two of the ordered values, whatever the law of the values."""
        ordered = values.detach().double().sort().values
        n = len(ordered)
        rank = median_rank(n, confidence)
        middle = float(ordered[(n - 1) // 2] + ordered[n // 2]) / 2
        if rank is None:  # so few values that no two of them are limits at this level
            return cls(middle, -math.inf, math.inf, None, n, "median")
        return cls(middle, float(ordered[rank]), float(ordered[n - 1 - rank]), None, n, "median")

    @classmethod
    def number(cls, value: float, n: int = 1) -> Quantity:
        """A number without limits."""
        return cls(value, value, value, None, n, "number")

    def __str__(self) -> str:
        as_text = "{:.1%}".format if self.kind == "share" else "{:.3g}".format
        if self.kind == "number":
            return as_text(self.value)
        if math.isinf(self.lower):
            return f"{as_text(self.value)} ({self.n} values are too few for limits)"
        return f"{as_text(self.value)} ({as_text(self.lower)} to {as_text(self.upper)})"

    def values_needed(self, limit: float) -> int | None:
        """About how many values would tell on which side of ``limit`` the number is; None if these do.

        Exact for a share of which none was seen, and if none is seen again; otherwise limits are taken to
        narrow with the square root of the number of values.

        Example:
            >>> Quantity.share(0, 6, 0.95).values_needed(0.05)
            72
        """
        if self.kind == "number" or not self.lower <= limit < self.upper:
            return None
        if math.isinf(self.upper) or limit == self.value:
            return _MANY
        if self.kind == "share" and self.value == 0:
            return math.ceil(self.n * math.log1p(-self.upper) / math.log1p(-limit))
        reach = self.upper - self.value if self.value < limit else self.value - self.lower
        return min(math.ceil(self.n * (reach / (limit - self.value)) ** 2), _MANY)


def median_rank(n: int, confidence: float) -> int | None:
    """Largest ``k`` such that the ``k``-th lowest and ``k``-th highest (from 0) enclose the median."""
    tail = (1 - confidence) / 2

    def cdf(k: int) -> float:
        """P(Binomial(n, 1/2) <= k), by the beta law."""
        return incomplete_beta(float(n - k), float(k + 1), 0.5)

    enough = bisect.bisect_right(range(n // 2), tail, key=cdf)
    return enough - 1 if enough else None


@dataclass(frozen=True)
class Threshold:
    """From where a number deserves a look, and from where it is a warning.

    Attributes:
        of: What is compared: the lower confidence limit of this, unless it says otherwise.
        look: Above this: ``"look"``.
        warning: Above this: ``"warning"``; infinite where there is no such case.
    """

    of: str
    look: float
    warning: float

    def grade(self, value: float) -> Severity:
        """Equality is still the better grade.

        Example:
            >>> THRESHOLDS["between"].grade(0.01), THRESHOLDS["between"].grade(0.3)
            ('fine', 'warning')
        """
        if value > self.warning:
            return "warning"
        return "look" if value > self.look else "fine"


#: Share of the yardstick below which a difference of losses is not worth a word, whatever its significance.
NEGLIGIBLE = 1e-3

#: Below so many rows, limits at the rows are rough: losses are far from normal.
FEW_ROWS = 30

#: Conventions, not theorems. "Yardstick" is the loss of the best constant prediction (docs: diagnose).
THRESHOLDS = {
    "constant": Threshold("mean loss at the data / yardstick", 0.9, 1.0),
    "worst part": Threshold("mean loss of a class or group / mean loss at the data", 2.0, 5.0),
    "between": Threshold("share of points between the data above every loss at the data", 0.01, 0.2),
    "excess": Threshold("mean excess of these points / yardstick (no limits)", NEGLIGIBLE, 0.1),
    "profile": Threshold("rise of the mean loss along a bridge / yardstick", 0.1, 0.5),
    "noise": Threshold("rise of the mean loss under noise of 10 % of the deviations / yardstick", 0.1, 0.5),
    "slope": Threshold("share of points where the slope per deviation exceeds 10 yardsticks", 0.05, 0.5),
    "curvature": Threshold("share of points where the loss is not subharmonic", 0.05, 0.25),
    "pde": Threshold("mean loss between the data above what the PDE expects / yardstick", 0.1, 0.5),
    "scales": Threshold("largest deviation of a feature / smallest (no limits)", 10.0, math.inf),
}


def undecided(
    name: str, quantity: Quantity, unit: float = 1.0, of: Literal["rows", "points"] = "rows"
) -> str | None:
    """What to say where nothing is shown because the limits reach beyond the threshold; None if they do not.

    Args:
        name: Of the threshold.
        quantity: What is compared with it.
        unit: What the threshold is a multiple of.
        of: What the quantity rests on: rows of the user's, or points between them, as many as ``n``.
    """
    limit = THRESHOLDS[name].look * unit
    needed = quantity.values_needed(limit)
    if needed is None:
        return None
    shown = f"{limit:.0%}" if quantity.kind == "share" else f"{limit:.3g}"
    many = "many more" if needed >= _MANY else f"about {float(f'{needed:.2g}'):.0f}"
    remedy = {"rows": "Pass more rows", "points": "Raise n"}[of]
    return (
        f"Nothing is shown, but nothing is excluded either: {quantity.n} {of} are too few to tell whether it "
        f"is above {shown}, where it would deserve a look. {remedy}: {many} are needed."
    )


def worst(*severities: Severity) -> Severity:
    """The gravest of several.

    Example:
        >>> worst("fine", "look", "fine")
        'look'
    """
    return max(severities, key=SEVERITIES.index, default="fine")


def mildest(*severities: Severity) -> Severity:
    """The least grave of several, for findings in which all of them must hold."""
    return min(severities, key=SEVERITIES.index, default="fine")


@dataclass(frozen=True)
class Finding(Result):
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
class Diagnosis(Result):
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
