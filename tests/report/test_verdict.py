"""Verdicts on paired seeds against scipy, and in words."""

import math
import statistics
from pathlib import Path

import pytest
from scipy import stats

from elliptica.cli.report import Request, make_report
from elliptica.report.content import Grid, Measure, Study, mean_interval
from elliptica.report.page import report_data
from elliptica.report.verdict import find_winners, headline, judge_rows, paired_differences

RESULTS = Path(__file__).resolve().parents[2] / "results"


RMSE = Measure("average", "RMSE", higher_is_better=False, decimals=3)


def seeds(*values):
    return dict(enumerate(values))


def judged(rows, measure=RMSE, **more):
    return judge_rows({measure.name: rows}, [measure], list(rows), next(iter(rows)), **more)


def test_differences_agree_with_scipy():
    a, b, c = seeds(1.0, 1.2, 0.9, 1.1), seeds(0.7, 0.9, 0.65, 0.7), seeds(1.0, 1.3, 0.8, 1.2)
    verdict = judged({"erm": a, "new": b, "other": c})
    new, other = verdict.differences
    gaps = [b[s] - a[s] for s in range(4)]
    low, high = stats.t.interval(1 - 0.05 / 2, 3, statistics.mean(gaps), stats.sem(gaps))
    assert (new.low, new.high) == (pytest.approx(low), pytest.approx(high))
    assert (new.result, other.result) == ("better", "open")
    assert verdict.best == "new"
    assert verdict.headline.startswith("new is better than erm in RMSE: 0.738 against 1.050")
    assert stats.ttest_rel(list(b.values()), list(a.values())).pvalue < 0.025


def test_the_direction_of_a_measure_turns_the_verdict():
    rows = {"erm": seeds(1.0, 1.2, 0.9, 1.1), "new": seeds(0.7, 0.9, 0.65, 0.7)}
    accuracy = Measure("average", "accuracy", higher_is_better=True, percent=True)
    verdict = judged(rows, accuracy)
    assert verdict.differences[0].result == "worse"
    assert "No method is shown to be better" in verdict.headline
    assert any(s.startswith("Worse than erm: new (\u22120.3 points") for s in verdict.sentences)


def test_result_needs_the_right_direction():
    rows = {"erm": seeds(2.0, 2.1, 1.9), "less": seeds(1.0, 1.2, 0.8), "more": seeds(3.0, 3.2, 2.8)}
    rows["even"] = seeds(1.9, 2.2, 1.9)
    methods = ["less", "more", "even"]
    found = paired_differences({RMSE.name: rows}, [RMSE], methods, "erm")
    assert [d.result for d in found] == ["better", "worse", "open"]


def test_a_winner_is_better_in_one_measure_and_worse_in_none():
    worst = Measure("worst", "worst RMSE", higher_is_better=False)
    low, middle, high = seeds(1.0, 1.2, 0.8, 1.1), seeds(2.0, 2.1, 1.9, 2.0), seeds(3.0, 3.2, 2.8, 3.1)
    lower = seeds(0.5, 0.6, 0.4, 0.55)
    values = {
        "average": {"erm": middle, "trade": low, "one": low, "both": lower, "none": middle},
        "worst": {"erm": middle, "trade": high, "one": middle, "both": low, "none": middle},
    }
    found = paired_differences(values, [RMSE, worst], ["trade", "one", "both", "none"], "erm")
    assert find_winners(found, [RMSE, worst]) == ["both", "one"]
    assert find_winners(found, [worst]) == ["both"]
    assert find_winners(found, [RMSE]) == ["both", "trade", "one"]


@pytest.mark.parametrize("n", [1, 2])
def test_few_seeds_give_no_verdict(n):
    verdict = judged({"erm": seeds(*[1.0, 1.1][:n]), "new": seeds(*[0.1, 0.12][:n])})
    assert verdict.best is None
    assert verdict.headline.startswith("No verdict")


def test_only_common_seeds_are_paired():
    verdict = judged({"erm": {0: 1.0, 1: 2.0, 2: 3.0, 7: 99.0}, "new": {0: 0.5, 1: 1.4, 2: 2.6, 8: -99.0}})
    assert verdict.differences[0].n_seeds == 3
    assert verdict.differences[0].mean == pytest.approx(-0.5)


@pytest.mark.parametrize("size", [1.0, 0.1, 1e5], ids=["exact", "rounded", "large"])
def test_equal_gaps_are_too_coarse_to_judge(size):
    rows = {"erm": seeds(*(size * v for v in (7, 8, 9))), "new": seeds(*(size * v for v in (6, 7, 8)))}
    assert judged(rows).differences[0].result == "open"


def test_words_never_promise_more_than_the_intervals():
    """Of 300 studies without any effect at most 5 % should name a winner; 30 would be 4 deviations more."""
    import numpy as np

    draws = np.random.default_rng(0)
    named = 0
    for _ in range(300):
        rows = {f"m{i}": seeds(*draws.normal(size=5)) for i in range(6)}
        named += judged(rows).best != "m0"
    assert named <= 30


def test_a_champion_is_named_only_if_its_interval_says_so():
    """The rule of bold cells is another family of tests: p = 0.03 is bold, and open among two comparisons."""
    erm = seeds(70.0, 71.0, 69.0, 70.5, 70.2)
    gaps = [1.0, 0.0, 1.2, 0.4, 0.9]
    rows = {"erm": erm, "new": {s: erm[s] + gap for s, gap in enumerate(gaps)}}
    assert 0.025 < stats.ttest_rel(list(rows["new"].values()), list(erm.values())).pvalue < 0.05
    accuracy, worst = (Measure(name, name, True, True) for name in ("average", "worst"))
    values = {"average": rows, "worst": rows}
    verdict = judge_rows(values, [accuracy, worst], ["erm", "new"], "erm", champion="new")
    assert verdict.differences[0].result == "open"
    assert verdict.best == "erm"
    assert verdict.headline == "No method is shown to be better than erm in average."
    assert verdict.facts[2][1:] == ("nothing better is shown", "0 of 1 shown better than erm; 5 seeds")
    alone = judge_rows({"average": rows}, [accuracy], ["erm", "new"], "erm", champion="new")
    assert alone.headline.startswith("new has the best average")
    swapped = {"erm": rows["new"], "new": erm}
    values = {"average": swapped, "worst": swapped}
    verdict = judge_rows(values, [accuracy, worst], list(rows), "erm", champion="erm")
    assert "better than every other" not in verdict.headline


def test_means_in_words_are_those_of_the_seeds_that_are_compared():
    """A half-finished method must not profit from easy seeds that it has already had."""
    erm = seeds(70.0, 71.0, 72.0, 71.5, 20.0, 21.0)
    verdict = judged({"erm": erm, "new": seeds(74.0, 75.5, 76.1, 75.2)}, Measure("a", "accuracy", True, True))
    assert verdict.headline == "new is better than erm in accuracy: 75.2 % against 71.1 %."
    assert verdict.facts[1][1] == "+4.1 points"


def test_few_seeds_are_said_to_rest_on_normal_differences():
    rows = {"erm": seeds(1.0, 1.2, 0.9, 1.1, 1.3, 1.0), "new": seeds(0.7, 0.9, 0.65, 0.7, 1.0, 0.8)}
    assert not any("normally distributed" in s for s in judged(rows).sentences)
    few = {name: dict(list(by.items())[:5]) for name, by in rows.items()}
    assert any("normally distributed" in s for s in judged(few).sentences)


def test_seeds_that_split_the_same_rows_have_wider_intervals():
    """Nadeau and Bengio: the variance of the mean is s^2 (1/J + share), for verdict and charts alike."""
    rows = {"erm": seeds(1.0, 1.2, 0.9, 1.1), "new": seeds(0.7, 0.9, 0.65, 0.7)}
    plain, shared = judged(rows).differences[0], judged(rows, test_share=0.25).differences[0]
    assert (shared.high - shared.low) / (plain.high - plain.low) == pytest.approx(math.sqrt(2))
    values = [3.0, 4.5, 2.5, 4.0]
    _, low, high = mean_interval(values, test_share=0.25)
    assert (high - low) / (mean_interval(values)[2] - mean_interval(values)[1]) == pytest.approx(math.sqrt(2))
    report = make_report(Request(str(RESULTS / "tables" / "table3")))
    study = next(s for s in report.studies if s.name == "table3-no2")
    assert study.test_share == 0.25
    erm, columns = study.values["average"]["erm"], report_data(report)["studies"]
    found = next(each for each in columns if each["name"] == study.name)["values"]["average"]
    assert found[study.methods.index("erm")]["mean"] == pytest.approx(
        mean_interval(list(erm.values()), test_share=0.25), rel=1e-4
    )
    assert any("corrected for training rows that seeds share" in s for s in study.verdict.sentences)


def test_mean_interval_agrees_with_scipy():
    values = [3.0, 4.5, 2.5, 4.0]
    low, high = stats.t.interval(0.95, 3, statistics.mean(values), stats.sem(values))
    assert mean_interval(values) == pytest.approx((statistics.mean(values), low, high))


def test_several_tables_say_where_elliptic_training_is_worse_too():
    def study(erm, ours):
        rows = {"erm": seeds(*erm), "elliptic": seeds(*ours)}
        table = Grid("", [], [])
        measures, values = [RMSE], {RMSE.name: rows}
        return Study("", "", "", measures, list(rows), "erm", values, judged(rows), table, own={"elliptic"})

    low, high = (1.0, 1.1, 1.05, 0.95, 1.0, 1.02), (2.0, 2.2, 2.0, 1.9, 2.1, 2.05)
    better, worse, short = study(high, low), study(low, high), study(low[:1], high[:1])
    assert headline([better, worse, short]) == (
        "In 1 of 2 tables a method is shown to be better than the reference. In 1 of them elliptic training "
        "is better than another method. In 1, elliptic training is shown to be worse than the reference. 1 "
        "more has too few runs for a verdict."
    )
    assert headline([worse, short]).startswith("In none of 1 table is a method shown to be better")
