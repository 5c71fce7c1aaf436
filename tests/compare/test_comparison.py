"""The comparison of methods on a table: fair, repeatable, and no verdict beyond its intervals."""

import json
import math
import re

import numpy as np
import polars as pl
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from elliptica._utils.statistics import corrected_interval
from elliptica.compare import Comparison, TableError, compare, fit_model
from elliptica.compare import protocol as protocol_module
from elliptica.compare.markdown import markdown, plain_page
from elliptica.compare.metrics import classification_scores, metrics_of, regression_scores
from elliptica.compare.plan import METHODS, Plan, choose_methods, draw_settings
from elliptica.compare.problem import make_problem
from elliptica.compare.protocol import Record, Trial, final_trial, prepare, run_method
from elliptica.compare.table import read_table
from elliptica.compare.verdict import judge

QUICK = {"repeats": 3, "trials": 2, "epochs": 4, "hidden": (8,)}


@pytest.fixture(scope="module")
def flowers():
    """Two noisy classes with a category, missing values and a group."""
    draws = np.random.default_rng(0)
    n = 120
    label = draws.integers(0, 2, n)
    x = draws.normal(label, 1.0)
    return pl.DataFrame(
        {
            "size": [None if i % 11 == 0 else float(v) for i, v in enumerate(x)],
            "colour": [["red", "blue", "white"][int(v)] for v in draws.integers(0, 3, n)],
            "site": ["north" if v else "south" for v in draws.integers(0, 2, n)],
            "kind": ["iris" if v else "rose" for v in label],
            "height": [float(v) for v in x + draws.normal(size=n)],
        }
    )


@pytest.fixture(scope="module")
def found(flowers):
    return compare(flowers.drop("height"), "kind", group="site", **QUICK)


# intervals


def test_interval_by_hand():
    """Differences 1, 2, 4, 5: mean 3, variance 10/3; with n_test/n_train = 1/4, t(0.975, 3) = 3.182446."""
    interval = corrected_interval([1.0, 2.0, 4.0, 5.0], 0.25, 0.95)
    half = 3.182446305284263 * math.sqrt(10 / 3 * (1 / 4 + 1 / 4))
    assert interval.mean == 3.0
    assert interval.low == pytest.approx(3 - half)
    assert interval.high == pytest.approx(3 + half)
    assert interval.n_repeats == 4


def test_without_overlap_it_is_the_ordinary_t_interval():
    values = np.random.default_rng(1).normal(size=9)
    interval = corrected_interval(values.tolist(), 0.0, 0.9)
    ordinary = stats.t.interval(0.9, 8, values.mean(), stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx(ordinary)


def test_correction_widens():
    values = [0.1, 0.3, 0.2, 0.5]
    assert corrected_interval(values, 0.25).half_width > 1.4 * corrected_interval(values, 0.0).half_width


def test_one_repeat_has_no_limits():
    interval = corrected_interval([0.3], 0.25)
    assert (interval.low, interval.high) == (-math.inf, math.inf)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.975, 0.99, 0.9999])
def test_quantiles_are_those_of_scipy(confidence):
    for n in (2, 3, 5, 10, 40, 1000):
        values = np.random.default_rng(n).normal(size=n)
        scale = (values.var(ddof=1) * (1 / n + 0.25)) ** 0.5
        expected = stats.t.ppf((1 + confidence) / 2, n - 1) * scale
        found = corrected_interval(values.tolist(), 0.25, confidence).half_width
        assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.statistical
def test_correction_keeps_its_level_on_overlapping_splits():
    """Differences that share a common part, as overlapping repeats do: variance rho, covariance n2/(n1+n2).

    The corrected interval misses zero in about 5 % of 2000 tables; the ordinary one in far more.
    """
    draws = np.random.default_rng(2)
    share, repeats, tables = 0.25, 5, 2000
    rho = share / (1 + share)
    common = draws.normal(size=(tables, 1)) * rho**0.5
    values = common + draws.normal(size=(tables, repeats)) * (1 - rho) ** 0.5
    misses = {
        each: np.mean(
            [not (i.low <= 0 <= i.high) for i in (corrected_interval(v, each) for v in values.tolist())]
        )
        for each in (share, 0.0)
    }
    assert misses[share] < 0.05 + 5 * (0.05 * 0.95 / tables) ** 0.5
    assert misses[0.0] > 0.1


# verdict


ACCURACY, WORST = metrics_of("classification", False)[:2]


def scores(accuracy, worst):
    return {"accuracy": accuracy, "worst_class_accuracy": worst}


def around(value, spread=0.002, n=6):
    return [value + spread * (-1) ** i for i in range(n)]


BASE = scores([0.80, 0.82, 0.78, 0.81, 0.79, 0.80], [0.60, 0.62, 0.58, 0.61, 0.59, 0.60])


def plus(average, worst):
    """The base with a gain that varies a little from repeat to repeat."""
    return scores(
        [v + d for v, d in zip(BASE["accuracy"], around(average), strict=True)],
        [v + d for v, d in zip(BASE["worst_class_accuracy"], around(worst), strict=True)],
    )


def judged(**methods):
    return judge({"erm": BASE, **methods}, (ACCURACY, WORST), 0.25)


def test_a_clear_gain_is_recommended():
    verdict = judged(elliptic=plus(0.0, 0.05))
    assert verdict.best == "elliptic"
    assert verdict.text.startswith("Use elliptic training: worst-class accuracy 65.0 % against 60.0 %")
    assert "in accuracy no difference is shown" in verdict.text
    assert [d.result for d in verdict.differences] == ["open", "better"]


def test_no_gain_keeps_ordinary_training():
    verdict = judged(elliptic=plus(0.0005, 0.0), mixup=plus(-0.0005, 0.0005))
    assert verdict.best == "erm"
    assert not verdict.winners
    assert "keep ordinary training" in verdict.text
    assert "are not excluded with 6 repeats" in verdict.text


def test_a_loss_is_said():
    verdict = judged(mixup=plus(-0.05, 0.0))
    assert verdict.best == "erm"
    assert "Worse than ordinary training is mixup: accuracy 75.0 % against 80.0 %" in verdict.text


def test_a_trade_is_not_recommended():
    verdict = judged(elliptic=plus(-0.05, 0.05))
    assert verdict.best == "erm"
    assert "Elliptic training is a trade: worst-class accuracy 65.0 %" in verdict.text


def test_several_winners_are_not_ranked_beyond_the_evidence():
    verdict = judged(elliptic=plus(0.03, 0.02), mixup=plus(0.02, 0.05))
    assert verdict.winners == ["elliptic", "mixup"]
    assert "Also better than ordinary training: mixup; which of them is best is not tested" in verdict.text
    worst = judge(
        {"erm": BASE, "elliptic": plus(0.03, 0.02), "mixup": plus(0.02, 0.05)},
        (ACCURACY, WORST),
        0.25,
        "worst",
    )
    assert worst.best == "mixup"


def test_equal_differences_prove_nothing():
    """One test row more in each of six repeats has no spread at all; that is no proof."""
    shifted = scores([v + 0.01 for v in BASE["accuracy"]], BASE["worst_class_accuracy"])
    assert judged(elliptic=shifted).best == "erm"


def test_few_repeats_give_no_verdict():
    two = {
        name: {key: values[:2] for key, values in each.items()}
        for name, each in {"erm": BASE, "elliptic": plus(0.1, 0.1)}.items()
    }
    verdict = judge(two, (ACCURACY, WORST), 0.25)
    assert verdict.best == "erm"
    assert "No verdict: 2 finished repeats are too few" in verdict.text


def test_wide_intervals_are_called_so():
    noisy = scores([0.9, 0.7, 0.8, 0.95, 0.6, 0.85], [0.9, 0.3, 0.5, 0.9, 0.2, 0.7])
    assert "intervals are wide: more --repeats" in judged(elliptic=noisy).text
    assert "are wide" not in judged(elliptic=plus(0.0001, 0.0001)).text


def test_the_far_end_of_open_intervals_is_not_excluded():
    """An open interval around +3 points reaches further than its half-width."""
    base = scores([0.8] * 5, [0.6] * 5)
    new = scores([0.80, 0.86, 0.80, 0.88, 0.81], [0.6, 0.61, 0.6, 0.59, 0.6])
    verdict = judge({"erm": base, "elliptic": new}, (ACCURACY, WORST), 0.25)
    average, worst = verdict.differences
    assert average.low < 0 < average.mean
    far = [100 * max(-interval.low, interval.high) for interval in (average, worst)]
    assert far[0] > 100 * average.half_width + 2
    assert (
        f"Differences of up to {far[0]:.1f} points of accuracy and {far[1]:.1f} points of worst-class "
        "accuracy are not excluded with 5 repeats."
    ) in verdict.text


def test_decided_intervals_say_nothing_about_what_is_not_excluded():
    """A clear loss on a metric is no open question on it; without any open one there is no such sentence."""
    assert "not excluded" not in judged(elliptic=plus(-0.05, -0.05)).text
    half = judged(elliptic=plus(-0.05, 0.0)).text
    assert "points of worst-class accuracy are not excluded" in half
    assert "points of accuracy" not in half
    other = judged(elliptic=plus(-0.3, 0.0), mixup=plus(0.0, 0.0))
    reach = 100 * other.differences[2].half_width
    assert f"up to {reach:.1f} points of accuracy and" in other.text


def test_more_comparisons_widen_the_intervals():
    one = judged(elliptic=plus(0.0, 0.0))
    two = judged(elliptic=plus(0.0, 0.0), mixup=plus(0.0, 0.0))
    assert one.confidence == pytest.approx(0.975)
    assert two.confidence == pytest.approx(0.9875)
    assert two.differences[0].half_width > one.differences[0].half_width


@pytest.mark.statistical
def test_noise_alone_is_rarely_recommended():
    """Three methods without effect, overlapping repeats: a false recommendation in at most 5 % of tables."""
    draws = np.random.default_rng(3)
    tables, n, rho = 400, 5, 0.2
    wrong = 0
    for _ in range(tables):
        methods = {"erm": scores([0.0] * n, [0.0] * n)}
        for name in ("mixup", "elliptic", "elliptic-weighted"):
            values = draws.normal(size=(2, 1)) * rho**0.5 + draws.normal(size=(2, n)) * (1 - rho) ** 0.5
            methods[name] = scores(*values.tolist())
        wrong += judge(methods, (ACCURACY, WORST), 0.25).best != "erm"
    assert wrong / tables < 0.05 + 5 * (0.05 * 0.95 / tables) ** 0.5


def test_smaller_errors_are_gains():
    rmse, worst = metrics_of("regression", True)
    base = {"rmse": [2.0, 2.1, 1.9, 2.0], "worst_group_rmse": [3.0, 3.1, 2.9, 3.0]}
    new = {"rmse": [1.5, 1.61, 1.4, 1.51], "worst_group_rmse": [3.0, 3.12, 2.88, 3.01]}
    verdict = judge({"erm": base, "c-mixup": new}, (rmse, worst), 0.25)
    assert verdict.best == "c-mixup"
    assert "RMSE 1.505 against 2 (difference -0.495" in verdict.text
    assert judge({"erm": new, "c-mixup": base}, (rmse, worst), 0.25).best == "erm"


# metrics


def test_classification_metrics_are_those_of_scikit_learn():
    draws = np.random.default_rng(4)
    target = np.asarray(["a", "b", "c"])[draws.integers(0, 3, 200)]
    probabilities = draws.dirichlet(np.ones(3), 200)
    predicted = np.asarray(["a", "b", "c"])[probabilities.argmax(1)]
    scored = classification_scores(target, probabilities, ["a", "b", "c"], None)
    recalls = sklearn_metrics.recall_score(target, predicted, average=None)
    assert scored["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(target, predicted))
    assert scored["balanced_accuracy"] == pytest.approx(
        sklearn_metrics.balanced_accuracy_score(target, predicted)
    )
    assert scored["log_loss"] == pytest.approx(sklearn_metrics.log_loss(target, probabilities))
    assert scored["worst_class_accuracy"] == pytest.approx(recalls.min())
    groups = np.asarray(["u", "v", ""])[draws.integers(0, 3, 200)]
    grouped = classification_scores(target, probabilities, ["a", "b", "c"], groups)
    by_group = [np.mean((predicted == target)[groups == g]) for g in ("u", "v")]
    assert grouped["worst_group_accuracy"] == pytest.approx(min(by_group))
    assert set(grouped["parts"]) == {"u", "v"}


def test_a_certain_mistake_has_a_finite_log_loss():
    scored = classification_scores(np.array([0]), np.array([[0.0, 1.0]]), [0, 1], None)
    assert math.isfinite(scored["log_loss"])


def test_a_class_without_a_name_is_judged():
    """The empty text is a label like any other; among groups it stands for those too small to judge."""
    target = np.array(["", "", "b", "b"])
    p = np.array([[0.2, 0.8], [0.1, 0.9], [0.3, 0.7], [0.2, 0.8]])
    found = classification_scores(target, p, ["", "b"], None)
    assert found["parts"] == {"": 0.0, "b": 1.0}
    assert found["worst_class_accuracy"] == 0.0
    assert found["balanced_accuracy"] == 0.5
    grouped = classification_scores(target, p, ["", "b"], np.array(["", "u", "u", "v"]))
    assert grouped["parts"] == {"u": 0.5, "v": 1.0}
    numbers = regression_scores(np.zeros(3), np.array([1.0, 2.0, 9.0]), np.empty(0), np.array(["u", "v", ""]))
    assert numbers["parts"] == {"u": 1.0, "v": 2.0}


def test_regression_metrics():
    target = np.arange(10.0)
    predicted = target + np.repeat([0.0, 1.0, 2.0, 3.0, 4.0], 2)
    bounds = np.quantile(target, (0.2, 0.4, 0.6, 0.8))
    scored = regression_scores(target, predicted, bounds, None)
    assert scored["rmse"] == pytest.approx(sklearn_metrics.root_mean_squared_error(target, predicted))
    assert scored["worst_fifth_rmse"] == 4.0
    grouped = regression_scores(target, predicted, bounds, np.asarray(["u"] * 4 + ["v"] * 6))
    assert grouped["parts"]["u"] == pytest.approx(math.sqrt(0.5))
    assert grouped["worst_group_rmse"] == pytest.approx(math.sqrt((4 + 9 + 16) / 3))


# plan


def test_shared_settings_have_the_same_draws():
    plan = Plan(METHODS["classification"], trials=6)
    for trial in range(6):
        drawn = [draw_settings(method, trial, plan) for method in plan.methods]
        shared = [{k: d[k] for k in ("learning_rate", "weight_decay", "max_iter")} for d in drawn]
        assert all(each == shared[0] for each in shared)
    rates = {draw_settings("erm", trial, plan)["learning_rate"] for trial in range(6)}
    assert len(rates) == 6
    assert all(3e-4 <= rate <= 1e-2 for rate in rates)
    assert draw_settings("elliptic", 1, plan)["sigma"] != draw_settings("elliptic-weighted", 1, plan)["sigma"]
    other = Plan(METHODS["classification"], seed=1)
    assert draw_settings("erm", 1, plan) != draw_settings("erm", 1, other)
    assert draw_settings("erm", 0, plan) == draw_settings("erm", 0, other)


@pytest.mark.bad_input
def test_methods_and_plans_that_do_not_exist():
    assert choose_methods("classification", None, False) == METHODS["classification"]
    assert choose_methods("classification", ["elliptic"], False) == ("erm", "elliptic")
    with pytest.raises(TableError, match=r"no method 'c-mixup' for classification. There are erm, mixup"):
        choose_methods("classification", ["c-mixup"], False)
    for wrong in ({"repeats": 0}, {"trials": 0}, {"epochs": 1.5}, {"select": "best"}):
        with pytest.raises(TableError, match=next(iter(wrong))):
            Plan(("erm",), **wrong)


# protocol


def test_all_methods_get_the_same_rows_and_one_test(flowers, monkeypatch):
    """Test rows are looked at once per method and repeat, after the choice; preprocessing never sees them."""
    problem = make_problem(read_table(flowers.drop("height")), "kind")
    plan = Plan(("erm", "elliptic"), trials=3, epochs=2, hidden=(4,))
    fitted, looked = [], []
    original = protocol_module._scores

    class Preprocessor(protocol_module.TablePreprocessor):
        def fit(self, X, y=None):
            fitted.append(len(X))
            return super().fit(X, y)

    monkeypatch.setattr(protocol_module, "TablePreprocessor", Preprocessor)
    monkeypatch.setattr(
        protocol_module, "_scores", lambda p, r, m, part: looked.append(part) or original(p, r, m, part)
    )
    prepared = prepare(problem, 0, plan)
    assert fitted == [72]
    record = run_method(problem, prepared, "elliptic", 0, plan)
    assert looked == ["validation"] * 3 + ["test"]
    assert record.rows == {"train": 72, "validation": 24, "test": 24}
    assert record.evaluations == 72 * sum(trial.settings["max_iter"] for trial in record.trials)


@pytest.mark.parametrize("select", ["average", "worst"])
def test_the_rule_decides_on_validation_scores(flowers, monkeypatch, select):
    problem = make_problem(read_table(flowers.drop("height")), "kind")
    plan = Plan(("erm",), trials=3, epochs=1, hidden=(4,), select=select)
    table = iter(
        [
            {"accuracy": 0.7, "worst_class_accuracy": 0.6, "log_loss": 0.5, "parts": {}},
            {"accuracy": 0.9, "worst_class_accuracy": 0.1, "log_loss": 0.6, "parts": {}},
            {"accuracy": 0.9, "worst_class_accuracy": 0.1, "log_loss": 0.4, "parts": {}},
            {"accuracy": 0.3, "worst_class_accuracy": 0.2, "log_loss": 0.9, "parts": {"a": 0.2}},
        ]
    )
    monkeypatch.setattr(protocol_module, "_scores", lambda *_: next(table))
    record = run_method(problem, prepare(problem, 0, plan), "erm", 0, plan)
    assert record.chosen == (2 if select == "average" else 0)  # equal accuracy: the smaller log loss
    assert record.test["accuracy"] == 0.3


def test_training_that_diverges_is_a_failed_trial(flowers, monkeypatch):
    problem = make_problem(read_table(flowers.drop("height")), "kind")
    plan = Plan(("erm",), trials=2, epochs=1, hidden=(4,))
    original = protocol_module.make_estimator
    rates = []

    def failing(method, task, settings, *rest):
        model = original(method, task, settings, *rest)
        rates.append(settings["learning_rate"])
        if len(rates) in broken:
            monkeypatch.setattr(type(model), "fit", fail)
        else:
            monkeypatch.undo()
            monkeypatch.setattr(protocol_module, "make_estimator", failing)
        return model

    def fail(self, *_):
        raise FloatingPointError("the loss became nan")

    monkeypatch.setattr(protocol_module, "make_estimator", failing)
    broken = {1}
    record = run_method(problem, prepare(problem, 0, plan), "erm", 0, plan)
    assert record.chosen == 1
    assert record.trials[0].error == "the loss became nan"
    broken = {3, 4}
    with pytest.raises(RuntimeError, match="failed with all 2 settings"):
        run_method(problem, prepare(problem, 0, plan), "erm", 0, plan)


def test_settings_of_the_model_are_best_on_average(flowers):
    problem = make_problem(read_table(flowers.drop("height")), "kind")
    plan = Plan(("erm",), repeats=2, trials=3)

    def trial(accuracy):
        if accuracy is None:
            return Trial({}, {}, 0.0, "failed")
        return Trial({}, {"accuracy": accuracy, "worst_class_accuracy": 0.5, "log_loss": 0.5}, 0.0)

    def record(repeat, *values):
        return Record(repeat, "erm", {}, tuple(map(trial, values)), 0, {}, {}, 0.0, 0)

    assert final_trial([record(0, 0.9, 0.8, 0.7), record(1, 0.5, 0.8, 0.7)], "erm", problem, plan) == 1
    assert final_trial([record(0, 0.5, 0.8, 0.9), record(1, 0.5, 0.8, None)], "erm", problem, plan) == 1


# the whole


def test_comparison(found, flowers):
    assert found.complete
    assert found.repeats == [0, 1, 2]
    table = found.table()
    assert table["method"].to_list() == ["erm", "mixup", "elliptic", "elliptic-weighted"]
    values = [record.test["accuracy"] for record in found.records if record.method == "elliptic"]
    row = table.row(2, named=True)
    assert row["accuracy"] == pytest.approx(np.mean(values))
    assert row["accuracy_deviation"] == pytest.approx(np.std(values, ddof=1))
    assert found.best in found.plan.methods
    assert found.verdict.text
    assert set(found.records[0].parts) == {"north", "south"}
    assert "site" not in found.problem.features.columns


def test_same_seed_same_numbers(found, flowers):
    again = compare(flowers.drop("height"), "kind", group="site", **{**QUICK, "repeats": 1})
    for record in again.records:
        (same,) = [r for r in found.records if (r.repeat, r.method) == (record.repeat, record.method)]
        assert record.test == same.test
        assert [t.validation for t in record.trials] == [t.validation for t in same.trials]


def test_regression_with_trees(flowers, tmp_path):
    options = {**QUICK, "repeats": 2}
    result = compare(flowers, "height", trees=True, methods=["c-mixup", "elliptic"], out=tmp_path, **options)
    assert result.table()["method"].to_list() == ["erm", "c-mixup", "elliptic", "trees"]
    assert result.table().columns[2] == "rmse"
    assert result.table()["evaluations"].to_list()[-1] is None
    assert all(math.isfinite(v) for v in result.table()["worst_fifth_rmse"])
    model = fit_model(result)
    predicted = model.predict(result.problem.features)
    assert predicted.shape == (120,)


def test_results_are_kept_and_extended(flowers, tmp_path):
    frame = flowers.drop("height")
    options = {**QUICK, "trials": 1, "epochs": 1, "out": tmp_path}
    compare(frame, "kind", methods=["elliptic"], **{**options, "repeats": 1})
    content = json.loads((tmp_path / "results.json").read_text())
    assert [r["method"] for r in content["records"]] == ["erm", "elliptic"]
    done = []
    more = compare(
        frame, "kind", methods=["elliptic", "mixup"], **options, listen=lambda *told: done.append(told)
    )
    assert len(more.records) == 9
    assert done[0][2] == "repeat 1 of 3, mixup"
    assert len(done) == 7 + 1
    with pytest.raises(TableError, match="another comparison: target was 'kind' and is now 'colour'"):
        compare(frame, "colour", **options)
    with pytest.raises(TableError, match="another comparison: rows or cells of the table have changed"):
        compare(frame.with_columns(pl.col("size") * 2), "kind", **options)
    (tmp_path / "results.json").write_text('{"about": ')
    with pytest.raises(TableError, match="cannot be read"):
        compare(frame, "kind", **options)


def test_unfinished_repeats_are_left_out(found):
    partial = Comparison(found.problem, found.plan, found.records[:6], found.name)
    assert partial.repeats == [0]
    assert not partial.complete
    assert "No verdict: 1 finished repeat is too few" in partial.verdict.text
    assert "6 of 12 runs are done" in markdown(partial)
    empty = Comparison(found.problem, found.plan, (), found.name)
    assert "No verdict: 0 finished repeats" in empty.verdict.text
    assert "No model is saved" in markdown(empty)


def test_reports_say_what_was_found_and_escape_names(found):
    import dataclasses

    evil = "<script>alert(1)</script> | x"
    problem = dataclasses.replace(found.problem, notices=(f"Column {evil} is not used.",), target_name=evil)
    comparison = Comparison(problem, found.plan, found.records, evil)
    text, html = markdown(comparison), plain_page(comparison)
    assert "<script" not in text + html
    assert "## Verdict" in text
    assert "weighted elliptic training" in text
    assert "&lt;script&gt;" in html
    assert "http" not in html
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in lines[:6]}) == 1


def test_markdown_from_the_table_stays_text(found):
    import dataclasses

    notices = (
        "Column '![x](http://a.example/p.png)' is not used.",
        "Column '[click](javascript:alert(1))' is not used.",
        r"Column '\[click](x) `code` **bold** _it_ # ~~no~~' is not used.",
    )
    problem = dataclasses.replace(found.problem, notices=notices)
    text = markdown(Comparison(problem, found.plan, found.records, "[a](b)"))
    assert r"\!\[x\](http://a.example/p.png)" in text
    assert r"\[click\](javascript:alert(1))" in text
    assert r"\\\[click\](x) \`code\` \*\*bold\*\* \_it\_ \# \~\~no\~\~" in text
    assert text.startswith("# Comparison on \\[a\\](b)\n")
    # no bracket is left that is not preceded by an odd number of backslashes
    assert not re.search(r"(?<!\\)(\\\\)*[\[\]]", text)


@pytest.mark.bad_input
def test_what_no_training_can_use_is_found_before_any_training(monkeypatch, tmp_path):
    monkeypatch.setattr(protocol_module, "run_method", lambda *_: pytest.fail("trained"))
    monkeypatch.setattr("elliptica.compare.comparison.run_method", lambda *_: pytest.fail("trained"))
    draws = np.random.default_rng(0)
    site = np.repeat([f"s{i}" for i in range(8)], [40, 40, 8, 8, 8, 8, 8, 8])
    frame = pl.DataFrame({"x": draws.normal(size=128), "site": site, "y": draws.normal(size=128)})
    out = tmp_path / "out"
    with pytest.raises(
        TableError, match=r"In repeat \d+ all (test|validation) rows are of groups that are too"
    ):
        compare(frame, "y", group="site", split_by="site", repeats=5, out=out)
    rare = frame.with_columns(pl.Series("y", ["a"] * 120 + ["b"] * 8))
    with pytest.raises(TableError, match="no training row has the class 'b'"):
        compare(rare, "y", split_by="site", repeats=20, out=out)
    assert not out.exists()


@pytest.mark.bad_input
def test_a_folder_that_cannot_be_written_is_found_before_any_training(flowers, monkeypatch, tmp_path):
    monkeypatch.setattr("elliptica.compare.comparison.run_method", lambda *_: pytest.fail("trained"))
    file = tmp_path / "file"
    file.write_text("x")
    for out in (file, file / "below"):
        with pytest.raises(TableError, match=r"Nothing can be written to the folder .* Choose another --out"):
            compare(flowers, "kind", out=out, **QUICK)
    (tmp_path / "odd" / "results.json").mkdir(parents=True)
    with pytest.raises(TableError, match=r"cannot be read .* choose another --out"):
        compare(flowers, "kind", out=tmp_path / "odd", **QUICK)
    assert file.read_text() == "x"


def test_tables_of_the_study(tmp_path):
    """Shapes as scikit-learn documents them, the task as intended, and a page that keeps its frame."""
    import compare_tables as study

    expected = {
        "breast_cancer": (569, 30, "classification"),
        "diabetes": (442, 9, "regression"),
        "wine": (178, 13, "classification"),
        "digits": (1797, 64 - 3, "classification"),  # three pixels are never used
    }
    for name, (n_rows, n_inputs, task) in expected.items():
        study.frame(name).write_csv(tmp_path / f"{name}.csv")
        group = "sex" if name == "diabetes" else None
        problem = make_problem(read_table(tmp_path / f"{name}.csv"), "target", group=group)
        assert (len(problem.target), problem.features.width, problem.task) == (n_rows, n_inputs, task)
    (tmp_path / "README.md").write_text(f"before\n{study.BEGIN}\nold\n{study.END}\nafter\n")
    (tmp_path / "wine").mkdir()
    content = {"about": {"rows": 178, "inputs": ["a"]}, "verdict": {"text": "Use it."}}
    (tmp_path / "wine" / "results.json").write_text(json.dumps(content))
    study.write_page(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "**wine, 3 classes** (178 rows, 1 inputs; [report](wine/report.md)): Use it." in text
