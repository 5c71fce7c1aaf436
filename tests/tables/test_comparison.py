"""A whole comparison: repeatable, resumed, interrupted, refused before any training; and its model."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from elliptica.tables import Comparison, Options, TableError, compare, fit_model
from elliptica.tables import runner as runner_module
from elliptica.tables.comparison import Session
from elliptica.tables.networks import training_groups

bad_input = pytest.mark.bad_input


def test_every_row_is_predicted_once_by_every_method(found):
    assert found.complete
    assert found.methods == found.plan.methods
    assert {"groupdro", "jtt", "lisa", "balanced", "trees", "linear"} < set(found.methods)
    assert found.finished == [(0, 0), (0, 1), (0, 2)]
    predictions = found.predictions
    assert predictions.fold.shape == (1, 120)
    assert set(predictions.fold[0]) == {0, 1, 2}
    for method in found.methods:
        values = predictions.values[method]
        assert values.shape == (1, 120, 2)
        for fold in found.shift.folds:
            record = next(r for r in found.records if (r.fold, r.method) == (fold.number, method))
            assert np.array_equal(values[0, fold.test], record.final())
    assert "site" not in found.problem.features.columns


def test_scores_are_of_all_rows(found):
    table = found.table()
    assert table["method"].to_list() == [*found.methods, "constant"]
    labels = np.unique(found.problem.target, return_inverse=True)[1]
    right = found.predictions.values["elliptic"][0].argmax(1) == labels
    assert found.scores["elliptic"]["accuracy"] == pytest.approx(right.mean())
    for predictions, name in ((found.predictions, "log_loss"), (found.uncalibrated, "uncalibrated_log_loss")):
        chosen = predictions.values["elliptic"][0][np.arange(120), labels]
        assert found.scores["elliptic"][name] == pytest.approx(-np.log(chosen).mean())
    assert found.scores["elliptic"]["log_loss"] != found.scores["elliptic"]["uncalibrated_log_loss"]
    ours, theirs = (found.scores[m]["log_loss"] for m in ("elliptic", "erm"))
    difference = found.verdict.difference("elliptic", "log_loss")
    assert difference.mean == pytest.approx(ours / theirs - 1)  # judged as it is saved
    assert found.best in found.methods
    assert found.verdict.text
    assert "random rows" in found.shift.words


def test_the_constant_prediction_knows_training_rows_only(found, heights):
    """Fails if it is the mean or the shares of all rows, or of the rows without validation rows."""
    for fold in found.shift.folds:
        known = found.problem.target[fold.train]
        shares = [(known == label).mean() for label in found.problem.classes]
        assert np.allclose(found.predictions.values["constant"][0, fold.test], shares)
    for fold in heights.shift.folds:
        mean = heights.problem.target[fold.train].mean()
        assert np.allclose(heights.predictions.values["constant"][0, fold.test], mean)
    assert "constant" not in found.methods
    assert found.best != "constant"
    assert found.scores["constant"]["accuracy"] < 0.6
    assert heights.scores["constant"]["beyond_range"] == 0


def test_scores_of_numbers(heights):
    assert heights.plan.log_target
    assert heights.uncalibrated is None
    assert {"rmse", "worst_fifth_rmse", "mae", "beyond_range"} == set(heights.scores["c-mixup"])
    target = heights.problem.target
    for method in heights.plan.network_methods:
        assert target.min() <= heights.predictions.values[method].min()
        assert heights.predictions.values[method].max() <= target.max()
    assert heights.scores["linear"]["beyond_range"] == heights.scores["trees"]["beyond_range"] == 0  # free


def test_same_seed_same_numbers_with_any_number_of_workers(found, flowers, tiny):
    methods = ["elliptic", "jtt", "trees"]
    again = compare(flowers.drop("height"), "kind", group="site", methods=methods, **{**tiny, "jobs": 3})
    for record in again.records:
        (same,) = [r for r in found.records if r.key == record.key]
        assert record.predicted == pytest.approx(same.predicted, abs=1e-5)
        assert [t.settings for t in record.trials] == [t.settings for t in same.trials]


def test_results_are_kept_and_extended(flowers, tiny, tmp_path, monkeypatch):
    frame = flowers.drop("height")
    options = {**tiny, "trials": 1, "out": tmp_path}
    compare(frame, "kind", methods=["elliptic"], **options)
    content = json.loads((tmp_path / "results.json").read_text())
    assert [r["method"] for r in content["records"]] == ["elliptic", "erm"] * 3
    tasks = []
    usual = runner_module.run_task
    monkeypatch.setattr(
        runner_module, "run_task", lambda p, task, *rest: (tasks.append(task), usual(p, task, *rest))[1]
    )
    more = compare(frame, "kind", methods=["elliptic", "linear"], repeats=2, **options)
    assert more.complete
    assert {(t.methods, len(t.folds)) for t in tasks} == {(("linear",), 1), (("erm", "elliptic"), 3)}
    assert len(tasks) == 6 + 1  # of the first repeat only the linear model was missing
    tasks.clear()
    again = compare(frame, "kind", methods=["elliptic", "linear"], repeats=2, **options)
    assert not tasks
    for a, b in zip(again.records, more.records, strict=True):
        assert a.key == b.key
        assert np.array_equal(a.predicted, b.predicted)


def test_nothing_is_finished_yet(found):
    empty = Comparison(found.problem, found.shift, found.plan, (), found.name)
    assert empty.scores == {}
    assert "no fold is finished" in empty.verdict.text
    assert len(empty.table()) == 0
    with pytest.raises(TableError, match="No fold of ordinary training is finished"):
        fit_model(empty)


def test_a_failed_method_is_reported_and_the_others_are_compared(found):
    records = tuple(
        replace(r, error="bad", chosen=None, predicted=np.empty(0)) if r.key == (0, 1, "mixup") else r
        for r in found.records
    )
    part = replace(found, records=records)
    assert part.failed == {"mixup": "bad"}
    assert part.complete
    assert "mixup" not in part.predictions.values
    assert part.scores["erm"] == found.scores["erm"]


def test_methods_added_for_groups_need_a_group_column(flowers, tiny):
    options = {**tiny, "trials": 1}
    plain = compare(flowers.drop("height", "site"), "kind", methods=["jtt"], **options)
    assert plain.methods == ("erm", "jtt")
    with pytest.raises(TableError, match="GroupDRO needs groups"):
        compare(flowers, "kind", methods=["groupdro"], **options)


def test_built_in_tables_know_their_target(tiny):
    session = Session.open("iris", None, Options(**tiny))
    assert session.problem.target_name == "species"
    assert session.name == "iris"


@pytest.mark.parametrize(
    "options",
    [{"time": "day"}, {"split_by": "site"}, {"extrapolate": True}, {"test": True}],
    ids=lambda options: next(iter(options)),
)
def test_shifts_end_to_end(flowers, tiny, options):
    frame = flowers.drop("kind").with_columns(
        pl.Series("day", [float(i) for i in range(120)]),
        pl.Series("site", [f"s{i % 6}" for i in range(120)]),
    )
    if "test" in options:
        frame, options = frame[:90], {"test": frame[90:]}
    found = compare(frame, "height", methods=["elliptic", "linear"], **options, **{**tiny, "trials": 1})
    assert found.complete
    assert found.shift.shift != "random"
    tested = found.predictions.tested
    assert tested.any()
    assert ("time" not in options) or not tested[0, :30].any()
    assert found.predictions.ordered == ("time" in options)  # stretches of time depend on their neighbours
    assert found.verdict.text


def test_no_logarithm_where_a_test_file_has_none(flowers, tiny):
    frame = flowers.drop("kind").with_columns(pl.col("height").exp())
    other = frame[:40].with_columns(pl.col("height") - 1.0)
    assert Session.open(frame, "height", Options(**tiny, test=frame[:40])).plan.log_target
    assert not Session.open(frame, "height", Options(**tiny, test=other)).plan.log_target


@bad_input
def test_what_no_training_can_use_is_found_before_any_training(monkeypatch, tmp_path, flowers):
    monkeypatch.setattr(runner_module, "run_task", lambda *_: pytest.fail("trained"))
    out = tmp_path / "out"
    site = np.repeat([f"s{i}" for i in range(8)], [40, 40, 8, 8, 8, 8, 8, 8])
    rare = pl.DataFrame({"x": np.arange(128.0) % 7, "site": site, "y": ["a"] * 120 + ["b"] * 8})
    with pytest.raises(TableError, match="no training row has the class 'b'"):
        compare(rare, "y", split_by="site", out=out)
    with pytest.raises(TableError, match="No target column was given"):
        compare(flowers, out=out)
    for wrong, words in (
        ({"methods": ["mixpu"]}, "Did you mean 'mixup'"),
        ({"folds": 1}, "folds must be an integer of at least 2"),
        ({"budget": "soon"}, "not a positive time"),
        ({"jobs": 0}, "jobs must be"),
        ({"workers": "goblins"}, "workers must be one of threads, processes, ray"),
        ({"trials": 0}, "trials"),
        ({"methods": []}, "list of methods is empty"),
    ):
        with pytest.raises(TableError, match=words):
            compare(flowers, "kind", out=out, **wrong)
    assert not out.exists()


@pytest.mark.slow
def test_targets_of_test_rows_change_no_prediction(flowers, tiny):
    """Validation rows, scales, bounds, lengths, temperatures, iterations: all are chosen without them."""
    train, test = flowers[:90], flowers[90:]
    wild = test.with_columns(pl.col("height") * 1000 + 7)
    turned = test.with_columns(pl.col("kind").replace({"iris": "rose", "rose": "iris"}))
    for target, other in (("height", wild), ("kind", turned)):
        drop = "kind" if target == "height" else "height"
        first, second = (
            compare(train.drop(drop), target, test=rows.drop(drop), **tiny) for rows in (test, other)
        )
        assert len(first.records) == len(second.records) > 0
        for one, two in zip(first.records, second.records, strict=True):
            assert one.key == two.key
            assert np.array_equal(one.predicted, two.predicted), one.method
            assert one.temperature == two.temperature


def test_small_groups_are_not_drawn_more_often_than_others(flowers):
    """Three rows of a group that is not judged, as a group of their own, would be a third of all draws."""
    site = ["north"] * 60 + ["south"] * 57 + ["east"] * 3
    frame = flowers.drop("height").with_columns(pl.Series("site", site))
    problem = Session.open(frame, "kind", Options(group="site")).problem
    assert np.bincount(training_groups(problem)).tolist() == [63, 57]


def test_one_block_of_training_rows_leaves_none_for_validation(flowers):
    one = flowers[:90].drop("height").with_columns(pl.lit("a").alias("site"))
    many = flowers[90:].drop("height").with_columns(pl.Series("site", list("abcdef") * 5))
    with pytest.raises(TableError, match="same value of 'site'"):
        Session.open(one, "kind", Options(split_by="site", test=many))
