"""Verdicts on paired seeds: against scipy, in both directions, with few and with shared rows."""

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from elliptica.report.judge import Difference, Measure, judge_seeds

RMSE = Measure("average", "RMSE", higher_is_better=False, decimals=3)
ACCURACY = Measure("average", "accuracy", higher_is_better=True, percent=True)


def seeds(*values):
    return dict(enumerate(values))


def judged(rows, measure=RMSE, **more):
    return judge_seeds({measure.name: rows}, [measure], list(rows), next(iter(rows)), **more)


def test_intervals_are_those_of_a_paired_test_widened_for_the_comparisons():
    a, b = seeds(1.0, 1.2, 0.9, 1.1), seeds(0.7, 0.9, 0.65, 0.7)
    verdict = judged({"erm": a, "new": b, "other": seeds(1.1, 1.1, 1.0, 1.0)})
    new, other = verdict.differences
    gaps = [b[s] - a[s] for s in a]
    low, high = stats.t.interval(1 - 0.05 / 2, 3, statistics.mean(gaps), stats.sem(gaps))
    assert (new.low, new.high) == (pytest.approx(low), pytest.approx(high))
    assert (new.result, other.result) == ("better", "open")
    assert (verdict.best, verdict.winners) == ("new", ["new"])
    assert new.show(RMSE) in verdict.headline  # the sign and the interval of the table


def test_the_direction_of_a_measure_turns_the_verdict():
    rows = {"erm": seeds(1.0, 1.2, 0.9, 1.1), "new": seeds(0.7, 0.9, 0.65, 0.7)}
    verdict = judged(rows, ACCURACY)
    assert verdict.differences[0].result == "worse"
    assert (verdict.best, verdict.winners) == ("erm", [])


def test_every_measure_is_judged_and_all_widen_each_other():
    worst = Measure("worst", "worst RMSE", higher_is_better=False)
    low, middle, high = seeds(1.0, 1.2, 0.8, 1.1), seeds(2.0, 2.1, 1.9, 2.0), seeds(3.0, 3.2, 2.8, 3.1)
    values = {"average": {"erm": middle, "trade": low}, "worst": {"erm": middle, "trade": high}}
    verdict = judge_seeds(values, [RMSE, worst], ["erm", "trade"], "erm")
    assert [d.result for d in verdict.differences] == ["better", "worse"]
    assert "Worst RMSE worse than that of erm: trade." in verdict.sentences
    (alone,) = judge_seeds(values, [RMSE], ["erm", "trade"], "erm").differences
    assert alone.high - alone.low < verdict.differences[0].high - verdict.differences[0].low


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_seeds_give_no_verdict(n):
    verdict = judged({"erm": seeds(*[1.0, 1.1][:n]), "new": seeds(*[0.1, 0.12][:n])})
    assert verdict.best is None
    assert {d.result for d in verdict.differences} <= {"unknown"}


def test_only_common_seeds_are_paired():
    verdict = judged({"erm": {0: 1.0, 1: 2.0, 2: 3.0, 7: 99.0}, "new": {0: 0.5, 1: 1.4, 2: 2.6, 8: -99.0}})
    assert verdict.differences[0].n_tests == 3
    assert verdict.differences[0].mean == pytest.approx(-0.5)


@pytest.mark.parametrize("size", [1.0, 0.1, 1e5], ids=["exact", "rounded", "large"])
def test_equal_gaps_are_too_coarse_to_judge(size):
    rows = {"erm": seeds(*(size * v for v in (7, 8, 9))), "new": seeds(*(size * v for v in (6, 7, 8)))}
    assert judged(rows).differences[0].result == "open"


def test_words_never_promise_more_than_the_intervals():
    """Of 300 studies without any effect at most 5 % should name a winner; 30 would be 4 deviations more."""
    draws = np.random.default_rng(0)
    rows = ({f"m{i}": seeds(*draws.normal(size=5)) for i in range(6)} for _ in range(300))
    assert sum(judged(each).best != "m0" for each in rows) <= 30


def test_seeds_that_split_the_same_rows_have_wider_intervals():
    """Nadeau and Bengio: the variance of the mean is s^2 (1/J + share)."""
    rows = {"erm": seeds(1.0, 1.2, 0.9, 1.1), "new": seeds(0.7, 0.9, 0.65, 0.7)}
    plain, shared = judged(rows).differences[0], judged(rows, test_share=0.25).differences[0]
    assert (shared.high - shared.low) / (plain.high - plain.low) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize(
    ("ends", "result", "measure", "shown"),
    [
        ((0.4, -1.1, 2.0), "open", RMSE, "+0.4 (-1.1 to +2.0)"),
        ((20.0, -60.0, 2500.0), "open", RMSE, "+20 (-60 to +2,500)"),
        ((-50.0, -99.0, 1e9), "unknown", RMSE, "-50.0"),
        ((0.0061, 0.0012, 0.011), "worse", RMSE, "+0.006 (+0.001 to +0.011)"),
        ((20.0, -140.0, 180.0), "open", ACCURACY, "+20.0 points (-100.0 to +100.0)"),
        ((4.0, 0.04, 8.0), "better", ACCURACY, "+4.00 points (+0.04 to +8.00)"),
    ],
)
def test_differences_as_text(ends, result, measure, shown):
    """Digits follow the width; a result that is shown does not end at zero."""
    assert Difference("new", "average", *ends, 5, result, "erm").show(measure) == shown
