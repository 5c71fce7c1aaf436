"""Judge differences between methods, and say in words no more than their intervals show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from elliptica._utils.statistics import bonferroni, corrected_interval

Result = Literal["better", "worse", "open", "unknown"]
#: Values by method and seed, in display units.
BySeed = Mapping[str, Mapping[int, float]]

RESULTS: dict[Result, str] = {
    "better": "better",
    "worse": "worse",
    "open": "not distinguishable",
    "unknown": "cannot be judged",
}
_SHOWN: tuple[Result, ...] = ("better", "worse")
#: Joint confidence of the intervals of a verdict.
CONFIDENCE = 0.95
#: With fewer common seeds, nothing is judged.
MIN_SEEDS = 3


@dataclass(frozen=True)
class Measure:
    """A measure that methods are judged by."""

    scale: ClassVar[float] = 1.0  # factor from differences to percent or points

    name: str  # such as "worst"
    label: str  # display name, such as "worst-group accuracy"
    higher_is_better: bool
    percent: bool = False  # whether values are percentages
    decimals: int = 1  # of a value
    relative: bool = False  # whether differences are shares of the reference

    def show(self, value: float) -> str:
        """Format a value."""
        return f"{value:.{self.decimals}f}" + (" %" if self.percent else "")

    @property
    def unit(self) -> str:
        """Unit of differences, with a space before it."""
        return " %" if self.relative else " points" if self.percent else ""


@dataclass(frozen=True)
class Difference:
    """A method minus another one on the same rows or seeds, with an interval."""

    method: str
    measure: str  # name of the measure
    mean: float  # a share of the other method's value for relative measures
    low: float
    high: float
    n_tests: int  # folds or seeds behind it
    result: Result  # "open" if the interval does not decide, "unknown" if it says nothing
    against: str  # the other method

    def show(self, measure: Measure) -> str:
        """Format the difference with its interval; tables and sentences show the same text."""
        mean, low, high = (measure.scale * value for value in (self.mean, self.low, self.high))
        if self.result == "unknown" or not math.isfinite(high - low):
            return f"{_signed(mean, 1)}{measure.unit}"
        if measure.percent and not measure.relative:  # shares cannot differ by more than 100 points
            low, high = max(-100.0, low), min(100.0, high)
        width = high - low
        digits = int(measure.percent and not measure.relative) if width >= 5 else 1
        digits = digits if not 0 < width < 0.5 else min(5, math.ceil(-math.log10(width / 5)))
        while self.result != "open" and digits < 6 and not all(round(end, digits) for end in (low, high)):
            digits += 1
        return f"{_signed(mean, digits)}{measure.unit} ({_signed(low, digits)} to {_signed(high, digits)})"

    def cell(self, measure: Measure) -> str:
        """Format the difference with its result, as in "-12 % (-16 to -8) better"."""
        return f"{self.show(measure)} {RESULTS[self.result]}"


def _signed(value: float, digits: int) -> str:
    """Format a number with its sign; zero has none."""
    if abs(value) >= 1000:
        return f"{value:+,.0f}"
    rounded = round(value, digits) + 0.0
    return f"{rounded:{'+' if rounded else ''}.{digits}f}"


@dataclass(frozen=True)
class Verdict:
    """The answer of a comparison."""

    headline: str  # one sentence
    sentences: Sequence[str] = ()
    cautions: Sequence[str] = ()  # limits of the answer
    differences: Sequence[Difference] = ()  # every method against the reference, in every judged measure
    best: str | None = None  # method to use; None if there is no verdict
    measures: Sequence[Measure] = ()
    primary_metric: str = ""  # measure that decides
    tiebreak_metric: str = ""  # measure of the headline: the primary one, or the one that breaks ties
    predicts: bool = True  # whether some method may be better than a constant prediction
    leader: str | None = None  # method with the best estimate
    error: tuple[float, float, float] | None = None  # score of the best method in the primary measure, limits

    @property
    def text(self) -> str:
        """The headline and the sentences as one paragraph."""
        return " ".join((self.headline, *self.sentences, *self.cautions))

    def __str__(self) -> str:
        """Return the text."""
        return self.text

    def measure(self, name: str) -> Measure:
        """Return the measure with this name."""
        return next(measure for measure in self.measures if measure.name == name)

    def difference(self, method: str, measure: str) -> Difference | None:
        """Return the difference of a method from the reference; None for the reference itself."""
        pairs = ((d.method, d.measure) for d in self.differences)
        return dict(zip(pairs, self.differences, strict=True)).get((method, measure))

    def cell(self, method: str, measure: str) -> str:
        """Format that difference with its result; empty if there is none."""
        difference = self.difference(method, measure)
        return "" if difference is None else difference.cell(self.measure(measure))

    @property
    def winners(self) -> list[str]:
        """Methods that are shown to be better than the reference, the best one first."""
        metric = [measure for measure in self.measures if measure.name == self.tiebreak_metric]
        return [d.method for measure in metric for d in ranked(self.differences, measure, "better")]


def ranked(differences: Sequence[Difference], measure: Measure, result: Result) -> list[Difference]:
    """Return the differences in a measure that have this result, the best one first."""
    sign = -1 if measure.higher_is_better else 1
    chosen = [d for d in differences if (d.measure, d.result) == (measure.name, result)]
    return sorted(chosen, key=lambda d: sign * d.mean)


def join(names: Sequence[str]) -> str:
    """Join names as in "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def sentence(text: str) -> str:
    """Begin a text with a capital letter."""
    return text[:1].upper() + text[1:]


def describe(
    differences: Sequence[Difference], measures: Sequence[Measure], name: Callable[[str], str] = str
) -> list[str]:
    """List the methods that are shown to be better or worse, measure by measure."""
    return [
        f"{sentence(measure.label)} {result} than that of {name(shown[0].against)}: "
        f"{join([name(d.method) for d in shown])}."
        for measure in measures
        for result in _SHOWN
        if (shown := ranked(differences, measure, result))
    ]


def judge_seeds(
    values: Mapping[str, BySeed],
    measures: Sequence[Measure],
    methods: Sequence[str],
    reference: str,
    test_share: float = 0.0,
) -> Verdict:
    """Compare every method with the reference on the seeds that both have; the first measure decides.

    Intervals are Student's for paired differences, widened for the number of comparisons (Bonferroni), so
    that all hold jointly with 95 % confidence. A difference is better or worse if its interval excludes
    zero. It is not judged with fewer than `MIN_SEEDS` seeds, and stays open if all gaps are equal up to
    rounding, which is too coarse.

    Args:
        values: Values by measure, method and seed.
        measures: Measures to judge.
        methods: Methods, the reference among them.
        reference: Usually ordinary training.
        test_share: Ratio of test rows to training rows if each seed splits the same rows again; intervals
            are then corrected for training rows that seeds share. Zero for fixed test rows.
    """
    first = measures[0]
    judged = [m for m in methods if m != reference and values[first.name].get(m)]
    level = bonferroni(CONFIDENCE, len(judged) * len(measures))
    differences = [
        difference
        for measure in measures
        for other in judged
        if (difference := _paired(values[measure.name], (other, reference), measure, level, test_share))
    ]
    n_tests = sorted({d.n_tests for d in differences if d.measure == first.name})
    if not n_tests or n_tests[-1] < MIN_SEEDS:
        few = f"fewer than {MIN_SEEDS} seeds of {reference} and another method are recorded"
        return Verdict(f"Nothing is judged: {few}.", differences=differences, measures=measures)
    better = ranked(differences, first, "better")
    best = better[0].method if better else reference
    headline = f"No method is shown to have a better {first.label} than {reference}."
    if better:
        headline = f"{best}: {first.label} {better[0].show(first)} compared with {reference}."
    seeds = " to ".join(map(str, dict.fromkeys((n_tests[0], n_tests[-1]))))
    shared = ", corrected for training rows that seeds share" if test_share else ""
    basis = f"Paired over {seeds} seeds; intervals hold jointly with 95 %{shared}."
    others = [d for d in differences if (d.method, d.measure) != (best, first.name)]
    said = [*describe(others, measures), basis]
    return Verdict(headline, said, (), differences, best, measures, first.name, first.name)


def _paired(
    values: BySeed, pair: tuple[str, str], measure: Measure, level: float, test_share: float
) -> Difference | None:
    ours, theirs = (values.get(method, {}) for method in pair)
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    interval = corrected_interval([ours[s] - theirs[s] for s in seeds], test_share, level)
    is_coarse = interval.half_width <= 1e-9 * max(abs(v[s]) for v in (ours, theirs) for s in seeds)
    result: Result = "open" if len(seeds) >= MIN_SEEDS else "unknown"
    if result == "open" and not is_coarse and not interval.low <= 0 <= interval.high:
        result = "better" if (interval.mean > 0) == measure.higher_is_better else "worse"
    ends = (interval.mean, interval.low, interval.high)
    return Difference(pair[0], measure.name, *ends, len(seeds), result, pair[1])
