"""The verdict of a comparison in plain words, which never says more than the intervals do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from elliptica._utils.statistics import Interval as Interval
from elliptica._utils.statistics import bonferroni
from elliptica._utils.statistics import corrected_interval as corrected_interval
from elliptica.compare.metrics import Metric

#: Fewer finished repeats give no verdict.
MIN_REPEATS = 3
CONFIDENCE = 0.95
REFERENCE = "erm"

#: Methods in words, on the screen and in reports alike.
NAMES = {
    "erm": "ordinary training",
    "mixup": "mixup",
    "c-mixup": "C-Mixup",
    "elliptic": "elliptic training",
    "elliptic-weighted": "weighted elliptic training",
    "trees": "boosted trees",
}

#: Test scores by method and metric, one value per repeat, repeats in the same order for all methods.
Scores = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class Verdict:
    """The answer.

    Attributes:
        best: Method to use; ``"erm"`` if none is shown to be better.
        text: The answer in words.
        winners: Methods that are shown to be better, the best one first.
        differences: What it rests on: each method against ordinary training on two metrics.
        confidence: Of each interval, such that all of them hold together with 95 %.
    """

    best: str
    text: str
    winners: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    confidence: float = CONFIDENCE

    def __str__(self) -> str:
        """The words."""
        return self.text


def judge(scores: Scores, metrics: Sequence[Metric], test_share: float, select: str = "average") -> Verdict:
    """Compare every method with ordinary training, on the average and on the worst-case metric.

    Intervals are widened for the number of comparisons (Bonferroni), so that all hold together with 95 %. A
    method is recommended if it is better on one metric and not shown to be worse on the other.

    Args:
        scores: Test scores on the same repeats.
        metrics: The average one and the worst-case one come first.
        test_share: See `corrected_interval`.
        select: Which of the two decides among several methods that are better: ``"average"``, ``"worst"``.

    Example:
        >>> from elliptica.compare.metrics import metrics_of
        >>> erm = {"accuracy": [0.80, 0.70, 0.90], "worst_class_accuracy": [0.5, 0.6, 0.4]}
        >>> new = {"accuracy": [0.81, 0.69, 0.90], "worst_class_accuracy": [0.5, 0.5, 0.5]}
        >>> verdict = judge({"erm": erm, "elliptic": new}, metrics_of("classification", False), 0.25)
        >>> verdict.best, verdict.text.partition(";")[0]
        ('erm', 'No method is shown to be better than ordinary training on this table')
    """
    others = [name for name in scores if name != REFERENCE]
    if not others:
        return Verdict(REFERENCE, "Only ordinary training was run: there is nothing to compare it with.")
    n_repeats = len(scores[REFERENCE][metrics[0].name])
    if n_repeats < MIN_REPEATS:
        return Verdict(
            REFERENCE,
            f"No verdict: {n_repeats} finished repeat{'s are' if n_repeats != 1 else ' is'} too few to tell "
            f"methods apart, at least {MIN_REPEATS} are needed. Until then keep ordinary training.",
        )
    confidence = bonferroni(CONFIDENCE, 2 * len(others))
    pairs = [
        tuple(_difference(scores, method, metric, test_share, confidence) for metric in metrics[:2])
        for method in others
    ]
    winners = [pair for pair in pairs if _results(pair) >= {"better"} and "worse" not in _results(pair)]
    deciding = 0 if select == "average" else 1
    winners.sort(key=lambda pair: -pair[deciding].gain)
    sentences = [_use(winners) if winners else _keep()]
    sentences += [_trade(pair) for pair in pairs if _results(pair) == {"better", "worse"}]
    sentences += _worse(pairs)
    sentences += _reach(pairs, winners, n_repeats)
    sentences.append(_basis(n_repeats, 2 * len(others)))
    found = tuple(difference for pair in pairs for difference in pair)
    better = tuple(pair[0].method for pair in winners)
    return Verdict((*better, REFERENCE)[0], " ".join(sentences), better, found, confidence)


def _difference(
    scores: Scores, method: str, metric: Metric, test_share: float, confidence: float
) -> Difference:
    ours, theirs = (np.asarray(scores[name][metric.name], dtype=float) for name in (method, REFERENCE))
    interval = corrected_interval((ours - theirs).tolist(), test_share, confidence)
    return Difference(method, metric, interval, float(ours.mean()), float(theirs.mean()))


def _results(pair: Sequence[Difference]) -> set[str]:
    return {difference.result for difference in pair}


def _use(winners: Sequence[Sequence[Difference]]) -> str:
    first = winners[0]
    gains = " and ".join(d.words() for d in first if d.result == "better")
    text = f"Use {NAMES[first[0].method]}: {gains} with ordinary training"
    open_ = [d.metric.label for d in first if d.result == "open"]
    text += f"; in {open_[0]} no difference is shown." if open_ else "."
    if len(winners) > 1:
        also = ", ".join(NAMES[pair[0].method] for pair in winners[1:])
        text += f" Also better than ordinary training: {also}; which of them is best is not tested."
    return text


def _keep() -> str:
    return "No method is shown to be better than ordinary training on this table; keep ordinary training."


def _trade(pair: Sequence[Difference]) -> str:
    better, worse = sorted(pair, key=lambda difference: difference.result)
    name = NAMES[better.method].capitalize()
    return (
        f"{name} is a trade: {better.words()}, but {worse.words()}. Whether that is wanted is yours to say."
    )


def _worse(pairs: Sequence[Sequence[Difference]]) -> list[str]:
    bad = [d for pair in pairs if "better" not in _results(pair) for d in pair if d.result == "worse"]
    return [f"Worse than ordinary training is {NAMES[d.method]}: {d.words()}." for d in bad]


def _reach(
    pairs: Sequence[Sequence[Difference]], winners: Sequence[Sequence[Difference]], n_repeats: int
) -> list[str]:
    """What the open intervals leave possible; only worth saying when nothing was found."""
    if winners:
        return []
    parts, wide = [], False
    for i in range(2):
        open_ = [pair[i] for pair in pairs if pair[i].result == "open"]
        if not open_:
            continue
        far = max(abs(end) for d in open_ for end in d.ends)
        metric = open_[0].metric
        size = f"{metric.show(far, unit=False)} points" if metric.percent else metric.show(far)
        parts.append(f"{size} of {metric.label}")
        wide = wide or any(map(_is_wide, open_))
    if not parts:
        return []
    text = f"Differences of up to {' and '.join(parts)} are not excluded with {n_repeats} repeats."
    return [text + (" These intervals are wide: more --repeats would narrow them." if wide else "")]


def _is_wide(difference: Difference) -> bool:
    """Whether a tenth of the error of ordinary training could have come or gone unseen."""
    error = 1 - difference.reference if difference.metric.percent else difference.reference
    return difference.interval.half_width > 0.1 * max(error, 0.01)


def _basis(n_repeats: int, n_comparisons: int) -> str:
    return (
        f"({n_repeats} repeated splits; intervals are corrected for overlapping training rows and widened "
        f"for {n_comparisons} comparisons, so that all hold together with 95 %.)"
    )


# Differences between methods that were tested on the same repeated splits, with intervals.


@dataclass(frozen=True)
class Difference:
    """A method minus ordinary training, on one metric.

    Attributes:
        method: Which method.
        metric: Which metric.
        interval: Of the difference.
        value: Mean of the method's scores.
        reference: Mean of those of ordinary training.
    """

    method: str
    metric: Metric
    interval: Interval
    value: float
    reference: float

    @property
    def gain(self) -> float:
        """Mean difference in the metric's good direction."""
        return self.interval.mean if self.metric.higher_is_better else -self.interval.mean

    @property
    def result(self) -> Literal["better", "worse", "open"]:
        """Open if the interval contains zero, or has no width: equal differences are too coarse to judge."""
        if self.interval.half_width < 1e-12 or self.interval.low <= 0 <= self.interval.high:
            return "open"
        return "better" if self.gain > 0 else "worse"

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the interval; shares cannot differ by more than 1, whatever few repeats allow."""
        ends = self.interval.low, self.interval.high
        return (max(-1.0, ends[0]), min(1.0, ends[1])) if self.metric.percent else ends

    def words(self) -> str:
        """Both means, and the difference with its interval."""
        show = self.metric.show
        low, high = (show(end, sign=True, unit=False) for end in self.ends)
        return (
            f"{self.metric.label} {show(self.value)} against {show(self.reference)} (difference "
            f"{show(self.interval.mean, sign=True)}, interval {low} to {high})"
        )
