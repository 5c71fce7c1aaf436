"""Verdicts of a comparison name a method, say no more than their intervals, and agree with their tables."""

import math
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.verdict import COVERAGE, EIGHT, ERM, GAIN, WRONG, Situation, measure

from elliptica.tables.metrics import Predictions, metrics_of, score
from elliptica.tables.verdict import (
    Change,
    Needed,
    judge,
    round_up,
    show_change,
)
from laws import assert_coverage

ACCURACY, WORST = metrics_of("classification", False)[:2]


def folds(n, repeats=1, n_folds=5, seed=0):
    draws = np.random.default_rng(seed)
    return np.stack([draws.permutation(np.arange(n) % n_folds) for _ in range(repeats)])


def regression(errors, *, fold=None, clusters=None, groups=None, target=None):
    """Predictions with these errors, ``(rows,)`` or ``(repeats, rows)``."""
    shapes = {name: np.atleast_2d(np.asarray(each, dtype=float)) for name, each in errors.items()}
    repeats, n = next(iter(shapes.values())).shape
    target = np.linspace(0, 1, n) if target is None else target
    return Predictions(
        "regression",
        [],
        target,
        groups,
        np.arange(n) if clusters is None else clusters,
        folds(n, repeats) if fold is None else fold,
        np.quantile(target, (0.2, 0.4, 0.6, 0.8)),
        {name: target + each for name, each in shapes.items()},
    )


def classes(right, *, fold=None, sure=0.8, target=None):
    """Two classes; ``right`` says by method which rows are predicted well."""
    n = len(next(iter(right.values())))
    target = np.arange(n) % 2 if target is None else target
    values = {}
    for name, each in right.items():
        chosen = np.where(each, target, 1 - target)
        confidence = sure[name] if isinstance(sure, dict) else sure
        values[name] = np.where(np.eye(2)[chosen] > 0, confidence, 1 - confidence)[None]
    fold = folds(n) if fold is None else fold
    return Predictions("classification", [0, 1], target, None, np.arange(n), fold, np.empty(0), values)


def noise(n=500, seed=0, size=1.0):
    return size * np.random.default_rng(seed).normal(size=n)


def like(errors, factor, seed=1, size=0.5):
    """The same errors with noise of their own, of a given RMSE in terms of the first."""
    mixed = errors + noise(len(errors), seed, size)
    return factor * mixed * (np.square(errors).mean() / np.square(mixed).mean()) ** 0.5


E = noise()
ALIKE = like(E, 1.0)


def test_a_consistent_gain_is_found_and_said():
    verdict = judge(regression({"erm": E, "elliptic": 0.9 * ALIKE}), shift="time")
    assert verdict.best == "elliptic"
    assert verdict.winners == ["elliptic"]
    change = verdict.change("elliptic", "rmse")
    assert change.result == "better"
    assert change.mean == pytest.approx(-0.1, abs=0.01)
    assert verdict.headline == "Use elliptic training: 10 % lower RMSE than ordinary training on later rows."
    assert verdict.sentences[0].startswith("The interval is ")
    assert "It is also better than ordinary training in RMSE in the worst fifth" in verdict.text
    assert "would tell" not in verdict.text  # nothing is open


def test_what_is_not_distinguishable_is_named_and_called_so():
    found = regression({"erm": E, "mixup": 0.998 * ALIKE})
    verdict = judge(found)
    assert verdict.best == "mixup"  # the best estimate, whatever its interval
    assert not verdict.winners
    assert verdict.headline == (
        "Use mixup: the best RMSE on new rows like these, but not distinguishable from ordinary training, "
        "which is simpler."
    )
    assert verdict.cell("mixup", "rmse").endswith("not distinguishable")
    assert "whether mixup and ordinary training differ" in verdict.text


def test_ordinary_training_wins_ties_within_rounding():
    close = regression({"mixup": 0.999999 * E, "erm": E})
    assert score(close)["mixup"]["rmse"] < score(close)["erm"]["rmse"]
    verdict = judge(close)
    assert verdict.best == "erm"
    assert verdict.headline.startswith("Use ordinary training: no method has a better RMSE")


def test_identical_predictions_prove_nothing():
    verdict = judge(regression({"erm": E, "mixup": E}))
    assert verdict.best == "erm"
    assert verdict.cell("mixup", "rmse") == "0.0 % (0.0 to 0.0) not distinguishable"
    assert "will not tell soon" in verdict.text


def test_trees_are_named_when_they_win_and_networks_compared_among_themselves():
    errors = {"erm": E, "elliptic": like(E, 0.99), "mixup": like(E, 1.3, 2), "trees": like(E, 0.84, 3)}
    verdict = judge(regression(errors))
    assert verdict.best == "trees"
    assert verdict.headline.startswith(
        "Use boosted trees: 15 % lower RMSE than the best network (elliptic training) "
    )
    assert "Among networks none is better than ordinary training; mixup is worse." in verdict.text
    assert "whether elliptic training and ordinary training differ" in verdict.text
    assert {c.against for c in verdict.among} == {"elliptic"}
    assert all(c.method == "trees" for c in verdict.among)
    only = judge(regression({"erm": E, "linear": 0.8 * ALIKE}))
    assert only.headline.startswith("Use the linear model: 20 % lower RMSE than the best network on")
    assert "Among networks" not in only.text
    better = judge(regression({**errors, "elliptic": like(E, 0.92)}))
    assert "Among networks elliptic training is better than ordinary training; mixup is worse." in better.text
    assert "would tell" not in better.text


def test_a_trade_is_called_one():
    """Better on average, worse in the rare group, which is the worst one."""
    groups = np.where(np.arange(500) < 100, "rare", "usual")
    errors = np.where(groups == "rare", 1.5 * E, E)
    traded = np.where(groups == "rare", 1.2, 0.6) * errors + noise(seed=2, size=0.05)
    found = regression({"erm": errors, "mixup": traded}, groups=groups)
    verdict = judge(found)
    assert verdict.best == "mixup"
    assert "It is a trade: it is worse than ordinary training in worst-group RMSE." in verdict.text
    worst = judge(found, select="worst")
    assert worst.best == "erm"
    assert worst.deciding == "worst_group_rmse"
    assert "Mixup is a trade against ordinary training: better in RMSE and in MAE, worse in" in worst.text


def test_every_judged_column_has_a_change_and_calibration_none():
    right = np.random.default_rng(0).random(400) < 0.8
    verdict = judge(classes({"erm": right, "mixup": right}, sure={"erm": 0.99, "mixup": 0.8}))
    judged = [m.name for m in verdict.metrics if m.judged]
    assert judged == ["accuracy", "worst_class_accuracy", "balanced_accuracy", "log_loss", "brier"]
    assert [d.measure for d in verdict.differences] == judged
    assert verdict.change("mixup", "log_loss").result == "better"
    assert verdict.cell("mixup", "calibration_error") == ""
    assert verdict.best == "mixup"  # at the same accuracy
    assert verdict.headline.endswith("lower Brier score than ordinary training on new rows like these.")
    assert "It is also better than ordinary training in log loss." in verdict.text


@pytest.mark.parametrize("factor", [0.8, 0.999, 1.2])
def test_signs_agree_between_scores_changes_cells_and_words(factor):
    verdict = judge(regression({"erm": E, "mixup": factor * ALIKE}))
    change = verdict.change("mixup", "rmse")
    gap = verdict.scores["mixup"]["rmse"] / verdict.scores["erm"]["rmse"] - 1
    assert change.mean == pytest.approx(gap)
    assert (change.value, change.reference) == (
        verdict.scores["mixup"]["rmse"],
        verdict.scores["erm"]["rmse"],
    )
    assert change.low < change.mean < change.high
    text = verdict.cell("mixup", "rmse")
    assert text.startswith("-" if round(100 * gap) < 0 else "+" if round(100 * gap) > 0 else "0")
    assert text.endswith({0.8: "better", 0.999: "not distinguishable", 1.2: "worse"}[factor])


def test_points_of_accuracy():
    draws = np.random.default_rng(5)
    base = draws.random(600) < 0.7
    more = base | (draws.random(600) < 0.3)
    verdict = judge(classes({"erm": base, "mixup": more}))
    change = verdict.change("mixup", "accuracy")
    assert change.mean == pytest.approx(more.mean() - base.mean())
    assert f"Use mixup: {100 * change.mean:.1f} points higher accuracy than ordinary training" in verdict.text
    assert f"+{100 * change.mean:.1f} points (" in verdict.cell("mixup", "accuracy")
    assert judge(classes({"erm": more, "mixup": base})).change("mixup", "accuracy").result == "worse"


def test_few_rows_that_differ_do_not_decide():
    """Four rows of 400, all in favour: 4 / sqrt(4) passes a normal limit, an exact test says p = 0.125."""
    base = np.ones(400, dtype=bool)
    base[::9] = False
    for n, result in ((4, "open"), (12, "better")):
        more = base.copy()
        more[np.flatnonzero(~base)[:n]] = True
        assert judge(classes({"erm": base, "mixup": more})).change("mixup", "accuracy").result == result


def test_copies_of_rows_count_once():
    """Ten copies of each row in one cluster tell what the row told; taken as independent, far more."""
    pair = {"erm": E[:60], "mixup": 0.97 * ALIKE[:60]}
    fold = folds(60)
    target = np.linspace(0, 1, 60)
    once = judge(regression(pair, fold=fold, target=target)).change("mixup", "rmse")
    copies = {name: np.repeat(each, 10) for name, each in pair.items()}
    kept = {"fold": np.repeat(fold, 10, axis=1), "target": np.repeat(target, 10)}
    found = judge(regression(copies, clusters=np.repeat(np.arange(60), 10), **kept)).change("mixup", "rmse")
    assert found.half_width == pytest.approx(once.half_width, rel=0.05)
    assert found.rows_variance == pytest.approx(once.rows_variance)
    naive = judge(regression(copies, **kept)).change("mixup", "rmse")
    assert naive.rows_variance == pytest.approx(once.rows_variance / 10, rel=0.05)


def test_training_noise_widens_the_interval():
    """Errors of some folds are larger as a whole: their rows are not independent tests of the method."""
    fold = folds(500)
    factor = np.array([0.7, 1.2, 0.8, 1.1, 0.75])[fold[0]]
    calm = judge(regression({"erm": E, "mixup": 0.9 * ALIKE}, fold=fold)).change("mixup", "rmse")
    noisy = judge(regression({"erm": E, "mixup": factor * ALIKE}, fold=fold)).change("mixup", "rmse")
    assert calm.result == "better"
    assert noisy.result == "open"
    assert noisy.training_variance > 3 * noisy.rows_variance
    assert noisy.half_width > 4 * calm.half_width


def test_more_methods_widen_the_intervals():
    few = judge(regression({"erm": E, "mixup": ALIKE}))
    many = {f"m{i}": E + noise(seed=10 + i, size=0.05) for i in range(8)}
    found = judge(regression({"erm": E, "mixup": ALIKE, **many}))
    widths = [v.change("mixup", "rmse").half_width for v in (few, found)]
    assert 1.2 < widths[1] / widths[0] < 2.0


def test_rows_that_would_tell():
    """With twice as many rows of the same kind as `needed` says, the question is settled."""
    verdict = judge(regression({"erm": E, "mixup": 0.985 * (E + noise(seed=1, size=0.3))}))
    (need,) = verdict.needed
    assert 500 < need.rows <= 50_000
    assert f"{need.rows:,} rows" in verdict.text
    n = 2 * need.rows
    many = noise(n, seed=3)
    more = judge(regression({"erm": many, "mixup": 0.985 * (many + noise(n, seed=4, size=0.3))}))
    change = verdict.change("mixup", "rmse")
    assert change.half_width * (500 / need.rows) ** 0.5 == pytest.approx(abs(change.mean), rel=0.25)
    assert more.change("mixup", "rmse").result != "open" or abs(change.mean) < 0.005


@pytest.mark.parametrize("seed", range(5))
def test_the_rows_that_are_needed_shrink_the_interval_to_the_difference(seed):
    """No fewer than that, and no more than one digit of rounding adds."""
    verdict = judge(regression({"erm": E, "mixup": like(E, 0.99, 20 + seed)}))
    (need,) = verdict.needed
    change = verdict.change("mixup", "rmse")
    low, mean, high = np.log1p([change.low, change.mean, change.high])
    exact = 500 * ((high - low) / 2 / mean) ** 2
    assert need.rows is not None
    assert exact <= need.rows <= 1.5 * exact + 1


def test_rows_of_the_worst_class_count_double():
    """By hand; the classes are alike in no other column."""
    draws = np.random.default_rng(6)
    target = np.arange(400) % 2
    base = draws.random(400) < np.where(target == 0, 0.6, 0.9)
    other = np.where(draws.random(400) < 0.2, ~base, base)
    verdict = judge(classes({"erm": base, "mixup": other}, target=target))
    for name, use, factor in (
        ("accuracy", np.ones(400, bool), 5 / 4),
        ("worst_class_accuracy", target == 0, 2.0),
    ):
        gap = other[use].astype(float) - base[use]
        change = verdict.change("mixup", name)
        assert change.mean == pytest.approx(gap.mean())
        expected = factor * 400 / 399 * np.square(gap - gap.mean()).sum() / use.sum() ** 2
        assert change.rows_variance == pytest.approx(expected)


def test_absurd_numbers_of_rows_are_not_printed():
    verdict = judge(regression({"erm": E, "mixup": 0.99995 * (E + noise(seed=7, size=0.1))}))
    (need,) = verdict.needed
    if need.rows is not None:
        assert need.rows <= 60_000
    none = Needed("mixup", "rmse", "erm", None, None)
    assert none.words == "more rows of this kind will not tell soon"
    assert Needed("mixup", "rmse", "erm", 3000, 4).words == "about 3,000 rows or about 4 repeats would tell"
    assert [round_up(n) for n in (999, 1001, 4321)] == [1000, 1100, 5000]


def test_repeats_are_suggested_where_training_noise_decides():
    draws = np.random.default_rng(1)
    fold = folds(2000, repeats=2)
    base = noise(2000)
    factor = 1 + 0.04 * draws.normal(size=(2, 5))
    errors = np.stack([0.975 * factor[r][fold[r]] * base for r in range(2)])
    found = judge(regression({"erm": np.stack([base, base]), "mixup": errors}, fold=fold))
    (need,) = found.needed
    assert need.repeats is not None
    assert need.repeats > 2
    assert f"about {need.repeats} repeats" in found.text


def test_a_single_training_says_that_it_cannot_know_training_noise():
    once = judge(regression({"erm": E, "mixup": 0.9 * ALIKE}, fold=np.zeros((1, 500), int)))
    assert math.isnan(once.change("mixup", "rmse").training_variance)
    assert "Every method was trained once" in once.text
    two = {"erm": np.stack([E, E]), "mixup": np.stack([0.9 * ALIKE, 0.95 * ALIKE])}
    again = judge(regression(two, fold=np.zeros((2, 500), int)))
    assert again.change("mixup", "rmse").training_variance > 0
    assert "trained once" not in again.text


def test_folds_that_disagree_are_a_caution():
    fold = folds(500)
    wild = np.where(fold[0] == 2, 4.0, 1.0) * ALIKE
    verdict = judge(regression({"erm": E, "mixup": wild}, fold=fold))
    assert "Folds disagree for mixup" in verdict.text
    assert verdict.cautions == [s for s in verdict.sentences if s.startswith("Folds disagree")]
    assert "Folds disagree" not in judge(regression({"erm": E, "mixup": ALIKE})).text
    few_errors = np.ones(100, dtype=bool)
    few_errors[:3] = False
    assert "Folds disagree" not in judge(classes({"erm": few_errors, "mixup": few_errors})).text


def test_few_blocks_are_a_caution():
    blocks = np.arange(500) // 50
    fold = (blocks % 5)[None]
    verdict = judge(regression({"erm": E, "mixup": 0.9 * ALIKE}, clusters=blocks, fold=fold))
    assert "form only 10 independent blocks" in verdict.text


def test_one_block_decides_nothing():
    """Its rows are not independent of each other, however many they are and however large the gain."""
    one = {"clusters": np.zeros(500, int), "fold": np.zeros((2, 500), int)}
    errors = {"erm": np.stack([E, E]), "mixup": np.stack([0.5 * ALIKE, 0.5 * ALIKE])}
    verdict = judge(regression(errors, **one))
    assert verdict.change("mixup", "rmse").result == "open"
    assert verdict.cell("mixup", "rmse") == "-50.0 % (interval unknown) not distinguishable"
    assert "All test rows belong to one block" in verdict.text
    assert "more rows of this kind will not tell soon" in verdict.text.lower()
    assert not verdict.winners


def test_the_shift_is_named():
    found = regression({"erm": E, "mixup": 0.9 * ALIKE})
    words = "Train on rows before 2008-06, test on later ones."
    verdict = judge(found, shift="time", shift_words=words)
    assert "on later rows" in verdict.headline
    assert words in verdict.text
    assert "on unseen patients" in judge(found, shift="unseen", place="on unseen patients").headline


def test_rows_that_are_not_tested_do_not_count():
    fold = folds(500)
    fold[:, :200] = -1
    errors = {"erm": E.copy(), "mixup": 0.9 * ALIKE}
    whole = judge(regression(errors, fold=fold))
    errors["mixup"] = np.where(fold[0] < 0, np.nan, errors["mixup"])
    assert judge(regression(errors, fold=fold)).change("mixup", "rmse") == whole.change("mixup", "rmse")


def test_only_ordinary_training():
    verdict = judge(regression({"erm": E}))
    assert verdict.best == "erm"
    assert verdict.headline == "Use ordinary training: no other method was run."
    with pytest.raises(ValueError, match="'erm' are missing"):
        judge(regression({"mixup": E}))


def test_cells_of_wide_and_small_changes():
    rmse = metrics_of("regression", False)[0]
    assert show_change(Change("a", "rmse", 0.004, -0.011, 0.02, 5, "open"), rmse) == "+0.4 % (-1.1 to +2.0)"
    wide = Change("a", "rmse", 0.2, -0.6, 25.0, 5, "open")
    assert show_change(wide, rmse, result=True) == "+20 % (-60 to +2,500) not distinguishable"
    beyond = Change("a", "accuracy", 0.2, -1.4, 1.8, 5, "open")
    assert show_change(beyond, ACCURACY) == "+20.0 points (-100.0 to +100.0)"


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
    assert verdict.headline == (
        "Nothing here predicts price: no method is better than always predicting the mean."
    )
    assert not verdict.predicts
    assert verdict.best in errors
    assert "No model is worth keeping" in verdict.text
    assert "Use " not in verdict.text
    some = {name: each + (0.7 if name == "trees" else 0.0) * target for name, each in errors.items()}
    better = judge(with_constant(regression(some, target=target)), target="price")
    assert better.predicts
    assert better.headline.startswith("Use boosted trees: ")
    assert "Nothing here" not in better.text


def test_a_gain_over_the_mean_that_is_not_shown_is_called_so():
    target = noise(60, seed=3)
    found = regression({"erm": noise(60, seed=1, size=0.2) - 0.97 * target}, target=target)
    verdict = judge(with_constant(found), target="price")
    assert verdict.headline == (
        "Nothing here is shown to predict price: no method is distinguishably better than always predicting "
        "the mean."
    )


def test_the_constant_prediction_changes_no_interval_and_is_never_the_best():
    target = noise(seed=3)
    found = regression(
        {"erm": noise(size=0.3) - target, "mixup": noise(seed=1, size=0.4) - target}, target=target
    )
    alone, beside = judge(found), judge(with_constant(found))
    assert alone.differences == beside.differences
    assert beside.best == alone.best
    assert beside.scores["constant"]["rmse"] < beside.scores[beside.best]["rmse"]
    assert beside.cell("constant", "rmse").endswith("better")


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
    assert "better accuracy than always predicting 0, the largest class" in verdict.text
    assert "only the probabilities tell rows apart" in verdict.text
    assert f"No method finds any of the {target.sum()} rows of class 1." in verdict.text
    assert "No method finds" not in judge(classes({"erm": draws.random(400) < 0.8})).text
    flat = {
        "erm": np.broadcast_to([0.9, 0.1], values["erm"].shape)
        + 0.02 * draws.normal(size=(1, n, 1)) * [1, -1]
    }
    noisy = judge(with_constant(replace(found, values=flat)), target="churn")
    assert noisy.headline == (
        "Nothing here predicts churn: no method is better than always predicting 0, the largest class."
    )


def test_the_brier_score_decides_where_accuracy_does_not():
    """Half a point more accuracy, and a far worse Brier score: accuracy alone would take mixup."""
    draws = np.random.default_rng(5)
    base = draws.random(600) < 0.8
    more = base.copy()
    more[np.flatnonzero(~base)[:3]] = True
    right = {"erm": base, "mixup": more, "trees": base}
    verdict = judge(classes(right, sure={"erm": 0.99, "mixup": 0.99, "trees": 0.8}))
    assert verdict.best == "trees"
    assert verdict.telling == "brier"
    assert verdict.winners == ["trees"]
    assert "lower Brier score than the best network (mixup)" in verdict.headline
    accuracies = [f"{100 * each.mean():.1f} %" for each in (base, more)]
    assert (
        f"Its accuracy ({accuracies[0]}) is not distinguishable from the best one (mixup, {accuracies[1]}), "
        "so the Brier score decides." in verdict.text
    )
    worse = base & (draws.random(600) < 0.95)  # but a better accuracy that is shown wins
    shown = judge(classes({**right, "trees": worse}, sure={"erm": 0.99, "mixup": 0.99, "trees": 0.75}))
    assert shown.change("trees", "accuracy").result == "worse"
    assert shown.scores["trees"]["brier"] < shown.scores["mixup"]["brier"]
    assert shown.best == "mixup"
    assert "the best Brier score on new rows like these among the most accurate methods" in shown.headline


def test_simpler_methods_that_do_as_well_are_named():
    errors = {"erm": like(E, 1.2, 4), "elliptic": E, "linear": like(E, 1.003, 2), "trees": like(E, 1.2, 3)}
    verdict = judge(regression(errors))
    assert verdict.best == "elliptic"
    assert verdict.change("elliptic", "rmse").result == "better"  # than ordinary training
    assert [c.against for c in verdict.simpler] == ["linear"]
    assert "Simpler and not distinguishable from it: the linear model, " in verdict.text
    alike = judge(regression({**errors, "erm": like(E, 1.002, 4)}))
    assert alike.headline.endswith("but not distinguishable from the linear model, which is simpler.")
    assert "Also simpler and not distinguishable from it: ordinary training, " in alike.text
    assert not judge(regression({**errors, "linear": like(E, 0.99, 2)})).simpler  # it is the simplest


def test_methods_that_look_equal_are_a_tie():
    """Neither is called the best where both are shown as 1.000: the simpler one is taken."""
    target = np.linspace(0, 1, 500)
    close = {"erm": 1.1 * E, "mixup": 0.99999 * E, "linear": E}
    found = regression(close, target=target)
    assert found.values.keys() == close.keys()
    assert judge(found).best == "linear"


def test_a_rare_class_that_another_method_finds():
    n = 600
    target = np.where(np.arange(n) % 10 == 0, 1, 0)
    blind, sharp = target == 0, np.random.default_rng(0).random(n) < 0.7
    verdict = judge(classes({"erm": blind, "mixup": sharp}, target=target))
    assert verdict.best == "erm"
    (caution,) = [each for each in verdict.cautions if "class 1" in each]
    share = 100 * sharp[target == 1].mean()
    assert caution.startswith(
        f"Ordinary training finds 0 % of the 60 rows of class 1 (mixup: {share:.0f} %)."
    )


@pytest.mark.parametrize("groups", [None, np.arange(500) % 3])
def test_errors_are_compared_by_their_ratio(groups):
    """Errors twice as large are 100 % more in every column, whatever the units of the target."""
    units = 0.01
    verdict = judge(regression({"erm": units * E, "mixup": 2 * units * E}, groups=groups))
    for metric in metrics_of("regression", groups is not None):
        assert verdict.change("mixup", metric.name).mean == pytest.approx(1.0)


def test_rows_that_do_not_vary_prove_nothing():
    """Errors of 1 and of 0.5 in all rows have a spread of exactly zero: nothing is known about other rows."""
    errors = {"erm": np.ones(512), "elliptic": np.full(512, 0.5)}
    change = judge(regression(errors, target=np.arange(512.0))).change("elliptic", "rmse")
    assert (change.mean, change.low, change.high) == (-0.5, -0.5, -0.5)
    assert change.result == "open"
