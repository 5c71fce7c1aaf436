"""The verdict of a comparison in words: which method to use on this table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from elliptica._utils.statistics import bonferroni
from elliptica.compare.metrics import Metric
from elliptica.report.content import Difference, Verdict
from elliptica.report.verdict import CONFIDENCE, MIN_SEEDS, find_winners, paired_differences

REFERENCE = "erm"
#: Fewer finished repeats give no verdict.
MIN_REPEATS = MIN_SEEDS

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


def judge(scores: Scores, metrics: Sequence[Metric], test_share: float, select: str = "average") -> Verdict:
    """Compare every method with ordinary training, on the average and on the worst-case metric.

    Intervals are those of `elliptica.report.verdict.paired_differences`. A method is recommended if it is
    better on one metric and not shown to be worse on the other.

    Args:
        scores: Test scores on the same repeats.
        metrics: The average one and the worst-case one come first.
        test_share: See `elliptica.report.content.Study`.
        select: Which of the two decides among several methods that are better: ``"average"``, ``"worst"``.

    Example:
        >>> from elliptica.compare.metrics import metrics_of
        >>> erm = {"accuracy": [0.80, 0.70, 0.90], "worst_class_accuracy": [0.5, 0.6, 0.4]}
        >>> new = {"accuracy": [0.81, 0.69, 0.90], "worst_class_accuracy": [0.5, 0.5, 0.5]}
        >>> verdict = judge({"erm": erm, "elliptic": new}, metrics_of("classification", False), 0.25)
        >>> verdict.best, verdict.headline.partition(";")[0]
        ('erm', 'No method is shown to be better than ordinary training on this table')
    """
    others = [name for name in scores if name != REFERENCE]
    if not others:
        text = "Only ordinary training was run: there is nothing to compare it with."
        return Verdict(text, best=REFERENCE)
    n_repeats = len(scores[REFERENCE][metrics[0].name])
    if n_repeats < MIN_REPEATS:
        return Verdict(
            f"No verdict: {n_repeats} finished repeat{'s are' if n_repeats != 1 else ' is'} too few to tell "
            f"methods apart, at least {MIN_REPEATS} are needed.",
            ["Until then keep ordinary training."],
            best=REFERENCE,
        )
    average, worst = metrics[:2]
    values = {
        m.name: {name: dict(enumerate(scores[name][m.name])) for name in scores} for m in (average, worst)
    }
    found = paired_differences(values, [average, worst], others, REFERENCE, test_share)
    found.sort(key=lambda d: others.index(d.method))
    winners = find_winners(found, [average, worst] if select == "average" else [worst, average])
    words = _Words(scores, {m.name: m for m in (average, worst)}, found, n_repeats)
    headline, *sentences = [
        *(words.use(winners) if winners else words.keep()),
        *words.trades(),
        *words.losses(),
        *([] if winners else words.reach()),
        words.basis(),
    ]
    confidence = bonferroni(CONFIDENCE, len(found))
    return Verdict(headline, sentences, (), found, (*winners, REFERENCE)[0], winners, confidence)


class _Words:
    """Sentences about the differences of a comparison."""

    def __init__(
        self, scores: Scores, metrics: Mapping[str, Metric], found: Sequence[Difference], n_repeats: int
    ) -> None:
        self.scores = scores
        self.metrics = metrics
        self.found = found
        self.n_repeats = n_repeats

    def use(self, winners: Sequence[str]) -> list[str]:
        """Recommend the first winner."""
        mine = self._of(winners[0])
        gains = " and ".join(self._describe(d) for d in mine if d.result == "better")
        text = f"Use {NAMES[winners[0]]}: {gains} with ordinary training"
        open_ = [self.metrics[d.measure].label for d in mine if d.result == "open"]
        text += f"; in {open_[0]} no difference is shown." if open_ else "."
        if len(winners) == 1:
            return [text]
        also = ", ".join(NAMES[name] for name in winners[1:])
        return [text, f"Also better than ordinary training: {also}; which of them is best is not tested."]

    @staticmethod
    def keep() -> list[str]:
        """Recommend nothing new."""
        return [
            "No method is shown to be better than ordinary training on this table; keep ordinary training."
        ]

    def trades(self) -> list[str]:
        """Name methods that are better in one metric and worse in the other."""
        sentences = []
        for name in dict.fromkeys(d.method for d in self.found):
            mine = sorted(self._of(name), key=lambda d: d.result)
            if {d.result for d in mine} == {"better", "worse"}:
                better, worse = map(self._describe, mine)
                sentences += [
                    f"{NAMES[name].capitalize()} is a trade: {better}, but {worse}.",
                    "The choice is yours.",
                ]
        return sentences

    def losses(self) -> list[str]:
        """Name methods that are worse and nowhere better."""
        better = {d.method for d in self.found if d.result == "better"}
        return [
            f"Worse than ordinary training is {NAMES[d.method]}: {self._describe(d)}."
            for d in self.found
            if d.result == "worse" and d.method not in better
        ]

    def reach(self) -> list[str]:
        """Say what the open intervals leave possible; only worth saying when nothing was found."""
        parts, wide = [], False
        for name, metric in self.metrics.items():
            open_ = [d for d in self.found if d.measure == name and d.result == "open"]
            if open_:
                far = max(abs(end) for d in open_ for end in interval_ends(d, metric))
                size = f"{metric.show(far, unit=False)} points" if metric.percent else metric.show(far)
                parts.append(f"{size} of {metric.label}")
                wide = wide or any(map(self._is_wide, open_))
        if not parts:
            return []
        text = f"Differences of up to {' and '.join(parts)} are not excluded with {self.n_repeats} repeats."
        return [text, "These intervals are wide: more --repeats would narrow them."] if wide else [text]

    def basis(self) -> str:
        """Say what all of it rests on."""
        return (
            f"({self.n_repeats} repeated splits; intervals are corrected for overlapping training rows and "
            f"widened for {len(self.found)} comparisons, so that all hold together with 95 %.)"
        )

    def _of(self, method: str) -> list[Difference]:
        return [d for d in self.found if d.method == method]

    def _mean(self, method: str, metric: str) -> float:
        return float(np.mean(self.scores[method][metric]))

    def _describe(self, d: Difference) -> str:
        """Both means, and the difference with its interval."""
        metric = self.metrics[d.measure]
        value, reference = (metric.show(self._mean(name, d.measure)) for name in (d.method, REFERENCE))
        low, high = (metric.show(end, sign=True, unit=False) for end in interval_ends(d, metric))
        return (
            f"{metric.label} {value} against {reference} (difference {metric.show(d.mean, sign=True)}, "
            f"interval {low} to {high})"
        )

    def _is_wide(self, d: Difference) -> bool:
        """Whether a tenth of the error of ordinary training could have come or gone unseen."""
        reference = self._mean(REFERENCE, d.measure)
        error = 1 - reference if self.metrics[d.measure].percent else reference
        return d.half_width > 0.1 * max(error, 0.01)


def interval_ends(d: Difference, metric: Metric) -> tuple[float, float]:
    """Ends of an interval; shares cannot differ by more than 1, whatever few repeats allow."""
    return (max(-1.0, d.low), min(1.0, d.high)) if metric.percent else (d.low, d.high)
