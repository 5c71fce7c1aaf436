"""What a page shows, wherever it came from: studies, their verdicts, and what is missing."""

from __future__ import annotations

import hashlib
import math
import platform
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from elliptica import __version__
from elliptica._utils.statistics import corrected_interval

#: JSON has both.
Number = int | float
#: Values by method and seed, in the units that are shown.
BySeed = Mapping[str, Mapping[int, Number]]
Result = Literal["better", "worse", "open"]

MINUS, DASH, TIMES = "\u2212", "\u2013", "\u00d7"


class ReportError(ValueError):
    """No page can be made of this; the message says what to do."""


@dataclass(frozen=True)
class Measure:
    """A number that methods are judged by.

    Attributes:
        name: Short, e.g. ``"worst"``.
        label: In words, e.g. ``"worst-group accuracy"``.
        higher_is_better: Its good direction.
        percent: Whether values are percentages.
        decimals: To show.
        relative: Whether differences are shares of the reference, in percent.
    """

    name: str
    label: str
    higher_is_better: bool
    percent: bool = False
    decimals: int = 1
    relative: bool = False

    def show(self, value: float, *, sign: bool = False, unit: bool = True) -> str:
        """A value, or a difference of two (``sign=True``), as text.

        Example:
            >>> Measure("worst", "accuracy", True, percent=True).show(-1.25, sign=True)
            '−1.2 points'
        """
        shown = round(value, self.decimals) + 0.0  # no minus before zero
        text = f"{shown:{'+' if sign and shown else ''}.{self.decimals}f}".replace("-", MINUS)
        return text + ((" points" if sign else " %") if unit and self.percent else "")


@dataclass(frozen=True)
class Difference:
    """A method minus the reference on the same seeds, with an interval.

    Attributes:
        method: Which method.
        measure: Name of the measure.
        mean: Mean difference.
        low: Lower end of its interval.
        high: Upper end.
        n_seeds: Seeds, or repeated splits, that both have.
        result: ``"open"`` if the interval does not decide.
    """

    method: str
    measure: str
    mean: float
    low: float
    high: float
    n_seeds: int
    result: Result

    @property
    def half_width(self) -> float:
        """How far the interval reaches to either side."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Verdict:
    """The answer of a study.

    Attributes:
        headline: One sentence.
        sentences: What else there is to say.
        facts: Short answers, each a question, an answer and a remark.
        differences: What the answer rests on.
        best: Method to use; None if there is no verdict.
        winners: Methods that are shown to be better than the reference, the best one first.
        confidence: Of each interval, such that all of them hold together with 95 %.
    """

    headline: str
    sentences: Sequence[str] = ()
    facts: Sequence[tuple[str, str, str]] = ()
    differences: Sequence[Difference] = ()
    best: str | None = None
    winners: Sequence[str] = ()
    confidence: float = 0.95

    @property
    def text(self) -> str:
        """Headline and sentences as one paragraph."""
        return " ".join((self.headline, *self.sentences))

    def __str__(self) -> str:
        """Return the words."""
        return self.text


@dataclass(frozen=True)
class Parts:
    """Scores of classes, groups or bands of the target.

    Attributes:
        kind: ``"group"``, ``"class"`` or ``"fifth of the targets"``.
        names: Of the parts, in the order shown.
        values: By method, then by part: one value for each seed that has it.
        sizes: Rows of each part; None if they are not recorded.
        counted: Which rows ``sizes`` counts.
        limits: By method and part: an interval, where there is one beside that of the seeds.
    """

    kind: str
    names: Sequence[str]
    values: Mapping[str, Mapping[str, Sequence[Number]]]
    sizes: Mapping[str, int] | None = None
    counted: str = "training rows"
    limits: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)

    @property
    def has_spread(self) -> bool:
        """Whether a part has values of several seeds."""
        return any(len(numbers) > 1 for own in self.values.values() for numbers in own.values())


@dataclass(frozen=True)
class Grid:
    """A table ready to be printed: each cell a text, a number to sort by, and whether it stands out."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[tuple[str, Number | str, bool]]]
    notes: Sequence[str] = ()
    words: Collection[int] = ()  # numbers of columns that hold words, which may be broken into lines


@dataclass(frozen=True)
class Section:
    """A part of a report in words: paragraphs, a table and a list, each of which may be missing.

    Attributes:
        heading: Above it.
        paragraphs: First.
        table: Rows of text, the first one the header.
        points: A list, last.
        left: Columns of the table that are text, beside the first one.
        is_open: Whether a page shows it at first.
    """

    heading: str
    paragraphs: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()
    points: Sequence[str] = ()
    left: Collection[int] = ()
    is_open: bool = False


@dataclass(frozen=True)
class Study:
    """Methods on one data set: everything that one part of the page shows.

    Attributes:
        name: Unique on the page.
        title: Heading.
        subtitle: Below it.
        measures: The first one decides.
        methods: In the order of the table.
        reference: Method that others are compared with.
        values: By measure.
        verdict: The answer.
        table: The main table.
        paper: The paper's mean and deviation, by measure and method.
        parts: Per group, class or band.
        reliability: By method: rows, mean confidence and accuracy of each bin, all seeds together.
        uncertainty: Mean uncertainty of the rows of each class.
        curves: By method: courses of the training, one for each seed.
        score_label: What the curves' validation score is.
        cost: By unit (``"evaluations"``, ``"seconds"``).
        cost_span: Of what part of the training, in words; empty means of all.
        settings: By method, in words.
        commands: To repeat it.
        versions: What it was run with.
        missing: What was not recorded, in words, by part of the page.
        notes: Below the table.
        landscapes: Of models that were kept.
        repetition: What a seed is called.
        test_share: Test rows over training rows where each seed splits the same rows anew: intervals are
            corrected for what its training rows share with those of others. Zero for fixed test rows.
        own: Methods that are elliptic training.
        scores: By measure and method, where the score is not the mean over seeds.
        sections: More tables and lists, below the charts.
        seeds_words: Below the heading of the chart of all seeds, instead of its own words.
        differences_words: The same of the chart of differences.
    """

    name: str
    title: str
    subtitle: str
    measures: Sequence[Measure]
    methods: Sequence[str]
    reference: str
    values: Mapping[str, BySeed]
    verdict: Verdict
    table: Grid
    paper: Mapping[str, Mapping[str, tuple[float, float | None]]] = field(default_factory=dict)
    parts: Sequence[Parts] = ()
    reliability: Mapping[str, Mapping[str, Sequence[Number | None]]] = field(default_factory=dict)
    uncertainty: Parts | None = None
    curves: Mapping[str, Sequence[Mapping[str, Sequence[Number]]]] = field(default_factory=dict)
    score_label: str = "validation score"
    cost: Mapping[str, BySeed] = field(default_factory=dict)
    cost_span: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    commands: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    landscapes: Sequence[Mapping[str, Any]] = ()
    repetition: str = "seed"
    test_share: float = 0.0
    own: Collection[str] = ()
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    sections: Sequence[Section] = ()
    seeds_words: str = ""
    differences_words: str = ""

    @property
    def n_runs(self) -> int:
        """Runs that are shown."""
        return sum(len(seeds) for seeds in self.values[self.measures[0].name].values())

    @property
    def most_seeds(self) -> int:
        """Seeds of the method that has most."""
        return max(map(len, self.values[self.measures[0].name].values()), default=0)


@dataclass(frozen=True)
class Bar:
    """A number in a picture of bars, with its limits.

    Attributes:
        label: Beside it.
        value: Its length.
        low: Lower limit.
        high: Upper limit.
        text: The number in words.
    """

    label: str
    value: float
    low: float
    high: float
    text: str


@dataclass(frozen=True)
class Remark:
    """One finding on a page.

    Attributes:
        severity: ``"warning"``, ``"look"``, ``"info"`` or ``"fine"``.
        title: A few words.
        sentence: What was found.
        advice: What to do; may be empty.
        bars: Its picture, scaled to the largest.
        rows: Rows to look at, in words; may be empty.
    """

    severity: str
    title: str
    sentence: str
    advice: str = ""
    bars: Sequence[Bar] = ()
    rows: str = ""

    @property
    def span(self) -> tuple[float, float]:
        """Where bars begin and end: zero is among them."""
        ends = [v for bar in self.bars for v in (bar.value, bar.low, bar.high) if math.isfinite(v)]
        return min([0.0, *ends]), max([0.0, *ends]) or 1.0


@dataclass(frozen=True)
class Report:
    """A whole page.

    Attributes:
        title: Heading.
        kind: What it was made from, in words.
        headline: The verdict of all studies together, in one sentence.
        studies: One after the other.
        unusable: Files that could not be used, with the reason.
        notes: What the reader should know about the source.
        findings: What `elliptica diagnose` found, for a model; the most important first.
    """

    title: str
    kind: str
    headline: str
    studies: Sequence[Study]
    unusable: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    findings: Sequence[Remark] = ()


def mean_interval(
    values: Sequence[Number], confidence: float = 0.95, test_share: float = 0.0
) -> tuple[float, float, float]:
    """Mean of values over seeds, and Student's interval for it (without limits for one value).

    Args:
        values: One for each seed.
        confidence: Of the interval.
        test_share: See `Study`.

    Example:
        >>> [round(v, 2) for v in mean_interval([1.0, 2.0, 3.0])]
        [2.0, -0.48, 4.48]
    """
    if len(values) < 2:
        return statistics.fmean(values), math.nan, math.nan
    found = corrected_interval([float(v) for v in values], test_share, confidence)
    return found.mean, found.low, found.high


def pooled(
    rows: Sequence[Number], confidence: Sequence[Number], right: Sequence[Number]
) -> dict[str, list[Number | None]]:
    """Divide sums over bins by their rows: mean confidence and accuracy; None for empty bins."""
    return {
        "rows": list(rows),
        "confidence": [c / n if n else None for c, n in zip(confidence, rows, strict=True)],
        "accuracy": [r / n if n else None for r, n in zip(right, rows, strict=True)],
    }


def natural_order(name: str) -> tuple[int, float, str]:
    """Sort numbers by value, before words."""
    try:
        return 0, float(name), ""
    except ValueError:
        return 1, 0.0, name


def digest(file: Path) -> str:
    """Return the first sixteen digits of a file's SHA-256."""
    found = hashlib.sha256()
    with file.open("rb") as handle:
        while block := handle.read(1 << 20):
            found.update(block)
    return found.hexdigest()[:16]


def present_versions(*more: str) -> dict[str, str]:
    """Name the versions that results depend on; ``more`` are distributions beside torch and numpy."""
    packages = {name: metadata.version(name) for name in ("torch", "numpy", *more)}
    return {"elliptica": __version__, "python": platform.python_version(), **packages}
