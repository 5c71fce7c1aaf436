"""Verdicts of a comparison name a method, say no more than their intervals, and agree with their tables."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.verdict import COVERAGE, EIGHT, ERM, GAIN, WRONG, Situation, measure
from scipy import stats

from elliptica.tables.metrics import Predictions, metrics_of, score
from elliptica.tables.verdict import Column, judge
from laws import assert_coverage


def folds(n, repeats=1, n_folds=5, seed=0):
    draws = np.random.default_rng(seed)
    return np.stack([draws.permutation(np.arange(n) % n_folds) for _ in range(repeats)])


def regression(errors, *, fold=None, clusters=None, groups=None, target=None, ordered=False):
    """Predictions with these errors, ``(rows,)`` or ``(repeats, rows)``."""
    shapes = {name: np.atleast_2d(np.asarray(each, dtype=float)) for name, each in errors.items()}
    repeats, n = next(iter(shapes.values())).shape
    target = np.linspace(0, 1, n) if target is None else target
    clusters = np.arange(n) if clusters is None else clusters
    fold = folds(n, repeats) if fold is None else fold
    values = {name: target + each for name, each in shapes.items()}
    bounds = np.quantile(target, (0.2, 0.4, 0.6, 0.8))
    return Predictions("regression", [], target, groups, clusters, fold, bounds, values, ordered=ordered)


def classes(right, *, sure=0.8, target=None):
    """Two classes; ``right`` says by method which rows are predicted well."""
    n = len(next(iter(right.values())))
    target = np.arange(n) % 2 if target is None else target
    values = {}
    for name, each in right.items():
        chosen = np.where(each, target, 1 - target)
        confidence = sure[name] if isinstance(sure, dict) else sure
        values[name] = np.where(np.eye(2)[chosen] > 0, confidence, 1 - confidence)[None]
    return Predictions("classification", [0, 1], target, None, np.arange(n), folds(n), np.empty(0), values)


def noise(n=500, seed=0, size=1.0):
    return size * np.random.default_rng(seed).normal(size=n)


def like(errors, factor, seed=1, size=0.5):
    """The same errors with noise of their own, of a given RMSE in terms of the first."""
    mixed = errors + noise(len(errors), seed, size)
    return factor * mixed * (np.square(errors).mean() / np.square(mixed).mean()) ** 0.5


E = noise()
ALIKE = like(E, 1.0)


def test_a_consistent_gain_is_shown_and_recommended():
    verdict = judge(regression({"erm": E, "elliptic": 0.9 * ALIKE}), place="on later rows")
    assert (verdict.best, verdict.winners) == ("elliptic", ["elliptic"])
    difference = verdict.difference("elliptic", "rmse")
    assert difference.result == "better"
    assert difference.mean == pytest.approx(-0.1, abs=0.01)
    assert verdict.headline.startswith("Use elliptic training: ")
    assert "on later rows" in verdict.headline


@pytest.mark.parametrize("factor", [0.8, 0.98])
def test_table_and_sentences_state_the_same_quantity(factor):
    """Sign, interval and result: the text of the cell stands in the verdict, after the names of both."""
    verdict = judge(regression({"erm": E, "mixup": factor * ALIKE}))
    difference = verdict.difference("mixup", "rmse")
    scores = score(regression({"erm": E, "mixup": factor * ALIKE}))
    gap = scores["mixup"]["rmse"] / scores["erm"]["rmse"] - 1
    assert difference.mean == pytest.approx(gap)
    assert difference.low < difference.mean < difference.high
    cell = verdict.cell("mixup", "rmse")
    assert cell.startswith("-" if round(100 * gap, 1) < 0 else "+")
    assert f"Mixup compared with ordinary training: RMSE {cell}." in verdict.sentences


def test_the_best_estimate_of_ordinary_training_is_compared_as_in_the_table():
    """The pair of trees, which are simpler, and ordinary training has one sign in table and text."""
    verdict = judge(regression({"erm": E, "trees": like(E, 1.01, 3), "linear": like(E, 1.5, 2)}))
    assert (verdict.best, verdict.leader) == ("trees", "erm")
    assert verdict.headline.startswith("No clear winner ")
    cell = verdict.cell("trees", "rmse")
    assert cell.startswith("+")
    assert f"Boosted trees compared with ordinary training: RMSE {cell}." in verdict.sentences


def test_nothing_is_recommended_for_being_level():
    """The best estimate is named with its difference."""
    verdict = judge(regression({"erm": E, "mixup": 0.998 * ALIKE}))
    assert (verdict.best, verdict.leader) == ("erm", "mixup")
    assert verdict.headline.startswith("No clear winner ")
    assert not verdict.winners
    assert "Use " not in verdict.text
    assert "mixup" in verdict.text
    assert verdict.text.count("distinguishable") == 1


def test_the_simplest_of_the_best_is_recommended():
    """Linear, trees, ordinary training; methods that the judge does not know must be shown to be better."""
    errors = {"erm": E, "mixup": like(E, 0.985), "trees": like(E, 0.99, 3), "linear": like(E, 0.995, 2)}
    assert judge(regression(errors)).best == "linear"
    assert judge(regression({**errors, "linear": like(E, 1.3, 2)})).best == "trees"
    assert judge(regression({**errors, "trees": like(E, 1.3, 3), "linear": like(E, 1.2, 2)})).best == "erm"
    shown = judge(regression({**errors, "mixup": like(E, 0.6, 1, 0.1), "new": like(E, 0.601, 5, 0.1)}))
    assert (shown.best, shown.leader) == ("mixup", "mixup")
    assert judge(regression(errors), asked=("mixup", "trees")).best == "trees"
    few = {"erm": E[:12], "new": like(E, 0.9, 5)[:12], "linear": like(E, 1.1, 2)[:12]}
    open_but_far = judge(regression(few))
    assert open_but_far.best == open_but_far.leader  # a simpler one is level only because rows are few
    assert "Also not shown to be worse than the best estimate in RMSE: new." in shown.sentences


def test_later_rows_prefer_ordinary_training_to_trees():
    """Trees follow no trend: level with ordinary training, they are not the simpler choice there."""
    block = np.arange(500) // 100
    errors = {"erm": E, "trees": like(E, 1.01, 3)}
    later = regression(errors, fold=block[None], clusters=block, ordered=True)
    assert (judge(regression(errors)).best, judge(later).best) == ("trees", "erm")


def test_use_means_better_than_ordinary_training():
    worse = {"erm": E, "trees": like(E, 1.5, 3)}
    asked = judge(regression(worse), asked=("trees",))
    assert asked.best == "trees"
    assert asked.headline.startswith("Ordinary training is better ")
    level = {"erm": E, "linear": like(E, 0.99, 2), "trees": like(E, 1.5, 3)}
    assert judge(regression(level)).headline.startswith(
        "No clear winner on new rows like these; the best est"
    )
    assert judge(regression(worse)).headline.startswith("Use ordinary training")


def test_the_choice_of_random_rows_is_compared_with_the_recommended_one():
    errors = {"erm": E, "mixup": like(E, 0.6, 1, 0.1), "trees": like(E, 0.8, 3, 0.1)}
    verdict = judge(regression(errors), at_random="trees")
    (said,) = [text for text in verdict.sentences if text.startswith("Boosted trees compared with mixup: ")]
    assert "Random rows would have chosen boosted trees." in verdict.sentences
    assert said.endswith(" worse.")
    assert (
        "Random rows would have chosen mixup, too." in judge(regression(errors), at_random="mixup").sentences
    )


@pytest.mark.parametrize(("n", "copies"), [(400, 1), (40, 10)])
def test_the_error_of_the_recommended_method_has_an_interval(n, copies):
    """By hand, on one fold: Student's interval of the log of the mean square, with clusters as units."""
    errors = noise(n)
    kept = {"fold": np.zeros((1, 400), int), "clusters": np.repeat(np.arange(n), copies)}
    value, low, high = judge(regression({"erm": np.repeat(errors, copies)}, **kept)).error
    assert value == pytest.approx(np.square(errors).mean() ** 0.5)
    gaps = (np.square(errors) / np.square(errors).mean() - 1) / 2
    normal = 2 * 1.96 * gaps.std(ddof=1) / n**0.5
    assert normal <= np.log(high / low) <= 1.4 * normal  # few clusters have few degrees of freedom
    assert np.log(value / low) == pytest.approx(np.log(high / value))


def test_ties_within_rounding_go_to_the_simplest():
    close = regression({"mixup": 0.999999 * E, "erm": E})
    assert score(close)["mixup"]["rmse"] < score(close)["erm"]["rmse"]
    verdict = judge(close)
    assert verdict.best == "erm"
    assert verdict.difference("mixup", "rmse").result == "better"
    assert "no method" not in verdict.headline
    assert judge(regression({"erm": 1.1 * E, "mixup": 0.99999 * E, "linear": E})).best == "linear"


def test_a_trade_names_both_columns():
    """Better on average, worse in the rare group, which is the worst one."""
    groups = np.where(np.arange(500) < 100, "rare", "usual")
    errors = np.where(groups == "rare", 1.5 * E, E)
    traded = np.where(groups == "rare", 1.2, 0.6) * errors + noise(seed=2, size=0.05)
    found = regression({"erm": errors, "mixup": traded}, groups=groups)
    verdict = judge(found)
    assert verdict.best == "mixup"
    assert "Worst-group RMSE worse than that of ordinary training: mixup." in verdict.sentences
    worst = judge(found, select="worst")
    assert (worst.best, worst.primary_metric) == ("erm", "worst_group_rmse")


def test_every_judged_column_has_a_difference_and_calibration_none():
    right = np.random.default_rng(0).random(400) < 0.8
    verdict = judge(classes({"erm": right, "mixup": right}, sure={"erm": 0.99, "mixup": 0.8}))
    judged = [m.name for m in verdict.measures if m.judged]
    assert judged == ["accuracy", "worst_class_accuracy", "balanced_accuracy", "log_loss", "brier"]
    assert [d.measure for d in verdict.differences] == judged
    assert verdict.difference("mixup", "log_loss").result == "better"
    assert verdict.cell("mixup", "calibration_error") == ""
    assert (verdict.best, verdict.tiebreak_metric) == ("mixup", "brier")  # at the same accuracy
    assert "Decided by the Brier score." in verdict.sentences
    assert not any("accuracy" in text and "Brier" in text for text in (verdict.headline, *verdict.sentences))


def test_the_brier_score_decides_only_where_accuracy_does_not():
    draws = np.random.default_rng(5)
    base = draws.random(600) < 0.8
    more = base.copy()
    more[np.flatnonzero(~base)[:3]] = True  # half a point more accuracy, and a far worse Brier score
    right, sure = {"erm": base, "mixup": more, "trees": base}, {"erm": 0.99, "mixup": 0.99, "trees": 0.8}
    verdict = judge(classes(right, sure=sure))
    assert (verdict.best, verdict.tiebreak_metric, verdict.winners) == ("trees", "brier", ["trees"])
    worse = base & (draws.random(600) < 0.95)  # but a better accuracy that is shown wins
    shown = judge(classes({**right, "trees": worse}, sure={**sure, "trees": 0.75}))
    assert shown.difference("trees", "accuracy").result == "worse"
    assert shown.best != "trees"
    clear = judge(classes({"erm": base, "mixup": base | (draws.random(600) < 0.3)}))
    assert clear.tiebreak_metric == "accuracy"
    assert "Decided by" not in clear.text


def test_few_rows_that_differ_do_not_decide():
    """Four rows of 400, all in favour: 4 / sqrt(4) passes a normal limit, an exact test says p = 0.125."""
    base = np.ones(400, dtype=bool)
    base[::9] = False
    for n, result in ((4, "open"), (12, "better")):
        more = base.copy()
        more[np.flatnonzero(~base)[:n]] = True
        assert judge(classes({"erm": base, "mixup": more})).difference("mixup", "accuracy").result == result


def variance_of_gap(found, place=0):
    """Variance of the difference of two methods in a column; of its logarithm if it is relative."""
    column = Column.of(found, metrics_of(found.task, False)[place])
    return column._spread(found, column.influence[:, [1]] - column.influence[:, [0]]).variance[0]


def test_copies_of_rows_count_once():
    """Ten copies of each row in one cluster tell what the row told; taken as independent, far more."""
    pair = {"erm": E[:60], "mixup": 0.97 * ALIKE[:60]}
    fold, target = np.zeros((1, 60), int), np.linspace(0, 1, 60)
    once = variance_of_gap(regression(pair, fold=fold, target=target))
    copies = {name: np.repeat(each, 10) for name, each in pair.items()}
    kept = {"fold": np.repeat(fold, 10, axis=1), "target": np.repeat(target, 10)}
    clustered = regression(copies, clusters=np.repeat(np.arange(60), 10), **kept)
    assert variance_of_gap(clustered) == pytest.approx(once)
    assert variance_of_gap(regression(copies, **kept)) == pytest.approx(once / 10, rel=0.05)


def test_training_noise_widens_the_interval():
    """Errors of some folds are larger as a whole: their rows are not independent tests of the method."""
    fold = folds(500)
    factor = np.array([0.7, 1.2, 0.8, 1.1, 0.75])[fold[0]]
    calm = judge(regression({"erm": E, "mixup": 0.9 * ALIKE}, fold=fold)).difference("mixup", "rmse")
    noisy = judge(regression({"erm": E, "mixup": factor * ALIKE}, fold=fold)).difference("mixup", "rmse")
    assert (calm.result, noisy.result) == ("better", "open")
    assert noisy.high - noisy.low > 4 * (calm.high - calm.low)


def test_more_methods_widen_the_intervals():
    many = {f"m{i}": E + noise(seed=10 + i, size=0.05) for i in range(8)}
    pair = {"erm": E, "mixup": ALIKE}
    few, more = (judge(regression(e)).difference("mixup", "rmse") for e in (pair, {**pair, **many}))
    assert 1.2 < (more.high - more.low) / (few.high - few.low) < 2.0


def test_rows_of_the_worst_class_count_double():
    """By hand; the classes are alike in no other column."""
    draws = np.random.default_rng(6)
    target = np.arange(400) % 2
    base = draws.random(400) < np.where(target == 0, 0.6, 0.9)
    other = np.where(draws.random(400) < 0.2, ~base, base)
    found = replace(classes({"erm": base, "mixup": other}, target=target), fold=np.zeros((1, 400), int))
    metrics = metrics_of("classification", False)
    for place, use in enumerate((np.ones(400, bool), target == 0)):
        gap = other[use].astype(float) - base[use]
        (difference,) = Column.of(found, metrics[place]).differences(found, "erm")
        assert difference.mean == pytest.approx(gap.mean())
        expected = 400 / 399 * np.square(gap - gap.mean()).sum() / use.sum() ** 2
        variance = variance_of_gap(found, place)
        assert variance == pytest.approx(expected)  # one fold: nothing is shared
    five = classes({"erm": base, "mixup": other}, target=target)
    assert variance_of_gap(five, 1) >= 2 * 0.999 * variance


def test_what_cannot_be_judged_is_called_so():
    """One block, however large the gain; and two blocks, whose interval would span orders of magnitude."""
    gain = {"erm": np.stack([E, E]), "mixup": np.stack([0.5 * ALIKE, 0.5 * ALIKE])}
    one = regression(gain, clusters=np.zeros(500, int), fold=np.zeros((2, 500), int))
    block = np.arange(500) // 250
    mixed = {"erm": E, "mixup": np.array([1.2, 0.2])[block] * ALIKE}
    two = regression(mixed, clusters=block, fold=np.zeros((1, 500), int), ordered=True)
    years = {"fold": np.arange(500)[None] // 250, "clusters": np.arange(500) // 250, "ordered": True}
    three = with_constant(regression({"erm": E, "mixup": 0.5 * ALIKE}, **years))
    for found in (one, with_constant(one), two, three):
        verdict = judge(found)
        assert verdict.difference("mixup", "rmse").result == "unknown"
        assert "(" not in verdict.cell("mixup", "rmse")  # no interval
        assert "unknown" in verdict.headline
        assert (verdict.best, verdict.predicts) == ("mixup", True)  # by the estimate
        assert not verdict.winners
        assert verdict.cautions


@pytest.mark.parametrize(
    ("gains", "result"), [((1.24, 1.5, 1.8, 2.0, 2.3), "worse"), ((0.6, 1.9) * 2, "open")]
)
def test_stretches_of_time_are_compared_as_in_a_paired_test(gains, result):
    """One that loses all five is worse; by hand, from the sums of stretches, with one degree less."""
    n = len(gains)
    block = np.arange(500) * n // 500
    found = regression(
        {"erm": E, "trees": np.array(gains)[block] * E}, fold=block[None], clusters=block, ordered=True
    )
    difference = judge(found).difference("trees", "rmse")
    losses = [np.square(values[0] - found.target) for values in found.values.values()]
    gap = (losses[1] / losses[1].mean() - losses[0] / losses[0].mean()) / 2 / 500
    sums = np.bincount(block, gap)
    variance = (n / (n - 1)) ** 2 * np.square(sums).sum()
    assert variance_of_gap(found) == pytest.approx(variance)
    low, high = np.log1p([difference.low, difference.high])
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, n - 1) * variance**0.5)
    assert difference.result == result


def test_rows_that_are_not_tested_do_not_count():
    fold = folds(500)
    fold[:, :200] = -1
    errors = {"erm": E.copy(), "mixup": 0.9 * ALIKE}
    whole = judge(regression(errors, fold=fold)).difference("mixup", "rmse")
    errors["mixup"] = np.where(fold[0] < 0, np.nan, errors["mixup"])
    assert judge(regression(errors, fold=fold)).difference("mixup", "rmse") == whole


def test_only_ordinary_training():
    verdict = judge(regression({"erm": E}))
    assert verdict.best == "erm"
    assert not verdict.differences
    with pytest.raises(ValueError, match="erm"):
        judge(regression({"mixup": E}))


@pytest.mark.statistical
@pytest.mark.slow
def test_verdicts_on_simulated_tables(seed):
    """`benchmarks.verdict` on a small scale: claims about equal methods are rare, a gain of 10 % is found."""
    (equal,) = measure(Situation("equal", "regression", 2000, 2, EIGHT[:5], columns=(0,)), 40, seed)
    assert_coverage(40 * equal.coverage, 40, COVERAGE)
    assert_coverage(40 * (1 - equal.wrong), 40, 1 - WRONG)
    assert equal.rows_only[0] < 0.85  # without training noise
    (gain,) = measure(Situation("gain", "regression", 500, 2, (ERM, GAIN[500]), columns=(0,)), 60, seed)
    assert_coverage(60 * gain.coverage, 60, COVERAGE)
    assert_coverage(60 * (1 - gain.wrong), 60, 1 - WRONG)
    assert gain.power > 0.9


def with_constant(predictions):
    """The same with the mean, or the class shares, beside it."""
    values = next(iter(predictions.values.values()))
    if predictions.task == "regression":
        constant = np.full(values.shape, predictions.target.mean())
    else:
        shares = np.bincount(predictions.labels) / len(predictions.target)
        constant = np.broadcast_to(shares, values.shape)
    return replace(predictions, values={**predictions.values, "constant": constant})


def test_nothing_predicts_noise():
    """Errors of methods are the targets and some noise: no method is better than the mean."""
    target = noise(seed=3)
    errors = {
        name: noise(seed=seed, size=0.3) - target for seed, name in enumerate(("erm", "mixup", "trees"))
    }
    verdict = judge(with_constant(regression(errors, target=target)), target="price")
    assert not verdict.predicts
    assert "price" in verdict.headline
    assert "Use " not in verdict.text
    some = {name: each + (0.7 if name == "trees" else 0.0) * target for name, each in errors.items()}
    better = judge(with_constant(regression(some, target=target)), target="price")
    assert (better.predicts, better.best) == (True, "trees")


def test_the_constant_prediction_changes_no_interval_and_is_never_the_best():
    target = noise(seed=3)
    errors = {"erm": noise(size=0.3) - target, "mixup": noise(seed=1, size=0.4) - target}
    found = regression(errors, target=target)
    alone, beside = judge(found), judge(with_constant(found))
    assert alone.differences == [d for d in beside.differences if d.method != "constant"]
    assert beside.best == alone.best
    assert beside.difference("constant", "rmse").result == "better"


def test_probabilities_may_predict_where_classes_do_not():
    """One row in ten is of class 1, which no method ever chooses; their probabilities differ all the same."""
    n = 1000
    draws = np.random.default_rng(0)
    target = (draws.random(n) < 0.1).astype(int)
    chance = np.clip(0.05 + 0.25 * target + 0.03 * draws.normal(size=n), 0.01, 0.45)
    values = {"erm": np.stack([1 - chance, chance], 1)[None]}
    found = Predictions("classification", [0, 1], target, None, np.arange(n), folds(n), np.empty(0), values)
    verdict = judge(with_constant(found), target="churn")
    assert verdict.predicts
    assert "only the probabilities" in verdict.text


@pytest.mark.parametrize("groups", [None, np.arange(500) % 3])
def test_errors_are_compared_by_their_ratio(groups):
    """Errors twice as large are 100 % more in every column, whatever the units of the target."""
    verdict = judge(regression({"erm": 0.01 * E, "mixup": 0.02 * E}, groups=groups))
    for metric in metrics_of("regression", groups is not None):
        assert verdict.difference("mixup", metric.name).mean == pytest.approx(1.0)


def test_rows_that_do_not_vary_prove_nothing():
    """Errors of 1 and of 0.5 in all rows have a spread of exactly zero: nothing is known about other rows."""
    errors = {"erm": np.ones(512), "elliptic": np.full(512, 0.5)}
    difference = judge(regression(errors, target=np.arange(512.0))).difference("elliptic", "rmse")
    assert (difference.mean, difference.low, difference.high) == (-0.5, -0.5, -0.5)
    assert difference.result == "open"
