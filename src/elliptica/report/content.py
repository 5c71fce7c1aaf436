"""Content of a page, whatever its source: studies, their verdicts, and what is missing."""

from __future__ import annotations

import hashlib
import math
import platform
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal

from elliptica import __version__
from elliptica._utils.statistics import corrected_interval

#: JSON has both.
Number = int | float
#: Values by method and seed, in display units.
BySeed = Mapping[str, Mapping[int, Number]]
Result = Literal["better", "worse", "open"]

MINUS, DASH, TIMES = "\u2212", "\u2013", "\u00d7"


class ReportError(ValueError):
    """The source cannot be shown as a page; the message says what to do."""


@dataclass(frozen=True)
class Measure:
    """A measure that methods are judged by.

    Attributes:
        name: Short name, e.g. ``"worst"``.
        label: Display name, e.g. ``"worst-group accuracy"``.
        higher_is_better: Whether larger values are better.
        percent: Whether values are percentages.
        decimals: Number of decimals to show.
        relative: Whether differences are shares of the reference, in percent.
    """

    name: str
    label: str
    higher_is_better: bool
    percent: bool = False
    decimals: int = 1
    relative: bool = False

    def show(self, value: float, *, sign: bool = False, unit: bool = True) -> str:
        """Format a value, or a difference of two (``sign=True``).

        Example:
            >>> Measure("worst", "accuracy", True, percent=True).show(-1.25, sign=True)
            '−1.2 points'
        """
        shown = round(value, self.decimals) + 0.0  # avoids a minus sign before zero
        text = f"{shown:{'+' if sign and shown else ''}.{self.decimals}f}".replace("-", MINUS)
        return text + ((" points" if sign else " %") if unit and self.percent else "")


@dataclass(frozen=True)
class Difference:
    """A method minus the reference on the same seeds, with an interval.

    Attributes:
        method: Name of the method.
        measure: Name of the measure.
        mean: Mean difference.
        low: Lower end of its interval.
        high: Upper end.
        n_seeds: Number of seeds, or repeated splits, that both have.
        result: ``"better"``, ``"worse"``, or ``"open"`` if the interval does not decide.
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
        """Half the width of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Verdict:
    """The answer of a study.

    Attributes:
        headline: One sentence.
        sentences: Further sentences.
        facts: Short answers, each a question, an answer and a remark.
        differences: Evidence for the answer.
        best: Method to use; None if there is no verdict.
        winners: Methods that are shown to be better than the reference, the best one first.
        confidence: Confidence of each interval, chosen so that all hold jointly with 95 %.
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
        """The headline and the sentences as one paragraph."""
        return " ".join((self.headline, *self.sentences))

    def __str__(self) -> str:
        """Return the text."""
        return self.text


@dataclass(frozen=True)
class Parts:
    """Scores of classes, groups or bands of the target.

    Attributes:
        kind: ``"group"``, ``"class"`` or ``"fifth of the targets"``.
        names: Names of the parts, in display order.
        values: Values by method, then by part: one for each seed that has it.
        sizes: Number of rows of each part; None if it is not recorded.
        counted: Which rows ``sizes`` counts.
        limits: Intervals by method and part, if there are any besides those of the seeds.
    """

    kind: str
    names: Sequence[str]
    values: Mapping[str, Mapping[str, Sequence[Number]]]
    sizes: Mapping[str, int] | None = None
    counted: str = "training rows"
    limits: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)

    @property
    def has_spread(self) -> bool:
        """Whether some part has values of several seeds."""
        return any(len(numbers) > 1 for own in self.values.values() for numbers in own.values())


@dataclass(frozen=True)
class Grid:
    """A table ready to print: each cell has a text, a number to sort by, and whether it is highlighted."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[tuple[str, Number | str, bool]]]
    notes: Sequence[str] = ()
    words: Collection[int] = ()  # numbers of columns with text that may wrap


@dataclass(frozen=True)
class Section:
    """A part of a report as text: paragraphs, a table and a list, each optional.

    Attributes:
        heading: Heading of the section.
        paragraphs: Paragraphs at the start.
        table: Rows of text, the header first.
        points: List items at the end.
        left: Left-aligned columns of the table, besides the first one.
        is_open: Whether a page shows it expanded.
    """

    heading: str
    paragraphs: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()
    points: Sequence[str] = ()
    left: Collection[int] = ()
    is_open: bool = False


@dataclass(frozen=True)
class Study:
    """Methods on one data set: the content of one part of the page.

    Attributes:
        name: Unique name on the page.
        title: Heading.
        subtitle: Text below the heading.
        measures: Measures; the first one decides.
        methods: Methods in the order of the table.
        reference: Method that others are compared with.
        values: Values by measure.
        verdict: The answer.
        table: The main table.
        paper: The paper's mean and standard deviation, by measure and method.
        parts: Scores per group, class or band.
        reliability: By method: rows, mean confidence and accuracy of each bin, over all seeds.
        uncertainty: Mean uncertainty of the rows of each class.
        curves: Training curves by method, one for each seed.
        score_label: Name of the validation score in the curves.
        cost: Cost by unit (``"evaluations"``, ``"seconds"``).
        cost_span: Part of the training that the cost covers, as text; empty means all of it.
        settings: Settings by method, as text.
        commands: Commands that repeat the study.
        versions: Versions that it was run with.
        missing: What was not recorded, as text, by part of the page.
        notes: Notes below the table.
        repetition: Name of a repetition, e.g. ``"seed"``.
        test_share: Ratio of test rows to training rows if each seed splits the same rows again. Intervals are
            then corrected for training rows that seeds share. Zero for fixed test rows.
        own: Methods that are elliptic training.
        scores: Scores by measure and method, if the score is not the mean over seeds.
        sections: Further tables and lists, below the charts.
        seeds_words: Text below the heading of the chart of all seeds, instead of the default.
        differences_words: Text below the heading of the chart of differences, instead of the default.
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
    repetition: str = "seed"
    test_share: float = 0.0
    own: Collection[str] = ()
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    sections: Sequence[Section] = ()
    seeds_words: str = ""
    differences_words: str = ""

    @property
    def n_runs(self) -> int:
        """Number of runs shown."""
        return sum(len(seeds) for seeds in self.values[self.measures[0].name].values())

    @property
    def most_seeds(self) -> int:
        """Largest number of seeds of a method."""
        return max(map(len, self.values[self.measures[0].name].values()), default=0)


@dataclass(frozen=True)
class Bar:
    """A number in a bar chart, with its limits.

    Attributes:
        label: Text beside the bar.
        value: Length of the bar.
        low: Lower limit.
        high: Upper limit.
        text: The number as text.
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
        sentence: The finding.
        advice: What to do; may be empty.
        bars: Its bar chart, scaled to the largest value.
        rows: Rows to look at, as text; may be empty.
    """

    severity: str
    title: str
    sentence: str
    advice: str = ""
    bars: Sequence[Bar] = ()
    rows: str = ""

    @property
    def span(self) -> tuple[float, float]:
        """Start and end of the bars; the range includes zero."""
        ends = [v for bar in self.bars for v in (bar.value, bar.low, bar.high) if math.isfinite(v)]
        return min([0.0, *ends]), max([0.0, *ends]) or 1.0


@dataclass(frozen=True)
class Report:
    """A whole page.

    Attributes:
        title: Heading.
        kind: Source of the page, as text.
        headline: The verdict of all studies in one sentence.
        studies: Studies in display order.
        unusable: Files that could not be used, with the reason.
        notes: Remarks about the source.
        findings: Findings of `elliptica diagnose` for a model, the most important first.
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
    """Return the mean of values over seeds and Student's interval (without limits for a single value).

    Args:
        values: One value for each seed.
        confidence: Confidence of the interval.
        test_share: See `Study`.

    Example:
        >>> [round(v, 2) for v in mean_interval([1.0, 2.0, 3.0])]
        [2.0, -0.48, 4.48]
    """
    if len(values) < 2:
        return statistics.fmean(values), math.nan, math.nan
    interval = corrected_interval([float(v) for v in values], test_share, confidence)
    return interval.mean, interval.low, interval.high


def pooled(
    rows: Sequence[Number], confidence: Sequence[Number], right: Sequence[Number]
) -> dict[str, list[Number | None]]:
    """Divide sums over bins by their rows, which gives mean confidence and accuracy; None for empty bins."""
    return {
        "rows": list(rows),
        "confidence": [c / n if n else None for c, n in zip(confidence, rows, strict=True)],
        "accuracy": [r / n if n else None for r, n in zip(right, rows, strict=True)],
    }


def natural_order(name: str) -> tuple[int, float, str]:
    """Return a sort key: numbers by value, before words."""
    try:
        return 0, float(name), ""
    except ValueError:
        return 1, 0.0, name


def digest(file: Path) -> str:
    """Return the first sixteen digits of a file's SHA-256."""
    sha = hashlib.sha256()
    with file.open("rb") as handle:
        while block := handle.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()[:16]


def present_versions(*more: str) -> dict[str, str]:
    """Return the versions that results depend on; ``more`` names distributions besides torch and numpy."""
    packages = {name: metadata.version(name) for name in ("torch", "numpy", *more)}
    return {"elliptica": __version__, "python": platform.python_version(), **packages}
