"""A whole comparison: repeatable, stopped, interrupted, refused before any training; and its model."""

import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from threadpoolctl import threadpool_info

import elliptica
from elliptica.tables import Comparison, Options, TableError, compare, fit_model
from elliptica.tables import comparison as comparison_module
from elliptica.tables.card import write_card
from elliptica.tables.comparison import Session
from elliptica.tables.methods import METHODS
from elliptica.tables.model import only_rows
from elliptica.tables.training import training_groups

bad_input = pytest.mark.bad_input


def test_every_row_is_predicted_once_by_every_method(found):
    assert found.complete
    assert not found.stopped
    assert found.methods == found.plan.methods
    assert {"groupdro", "lisa", "balanced", "trees", "linear"} < set(found.methods)
    assert found.finished == [(0, 0), (0, 1), (0, 2)]
    assert set(found.predictions.fold[0]) == {0, 1, 2}
    for method in found.methods:
        values = found.predictions.values[method]
        assert values.shape == (1, 120, 2)
        for fold, record in zip(found.shift.folds, found.of(method), strict=True):
            assert np.array_equal(values[0, fold.test], record.final())
    assert "site" not in found.problem.features.columns


def test_scores_are_of_all_rows(found):
    assert found.table()["method"].to_list() == [*found.methods, "constant"]
    labels = np.unique(found.problem.target, return_inverse=True)[1]
    right = found.predictions.values["elliptic"][0].argmax(1) == labels
    scores = found.scores["elliptic"]
    assert scores["accuracy"] == pytest.approx(right.mean())
    chosen = found.predictions.values["elliptic"][0][np.arange(120), labels]
    assert scores["log_loss"] == pytest.approx(-np.log(chosen).mean())
    assert found.best in found.methods
    assert found.verdict.text


def test_the_constant_prediction_knows_training_rows_only(found, heights):
    """Fails if it is the mean or the shares of all rows, or of the rows without validation rows."""
    for fold in found.shift.folds:
        known = found.problem.target[fold.train]
        shares = [(known == label).mean() for label in found.problem.classes]
        assert np.allclose(found.predictions.values["constant"][0, fold.test], shares)
    for fold in heights.shift.folds:
        mean = heights.problem.target[fold.train].mean()
        assert np.allclose(heights.predictions.values["constant"][0, fold.test], mean)
    assert "constant" not in (*found.methods, found.best)
    assert found.scores["constant"]["accuracy"] < 0.6


def test_scores_of_numbers(heights):
    assert heights.plan.log_target
    assert {"rmse", "worst_fifth_rmse", "mae"} == set(heights.scores["c-mixup"])
    target = heights.problem.target
    for method in [m for m in heights.methods if METHODS[m].make is None]:
        assert target.min() <= heights.predictions.values[method].min()
        assert heights.predictions.values[method].max() <= target.max()


def test_same_seed_same_numbers_with_any_number_of_workers(found, flowers, tiny):
    methods = ["elliptic", "lisa", "trees"]
    again = compare(flowers.drop("height"), "kind", group="site", methods=methods, **{**tiny, "jobs": 3})
    for record in again.records:
        (same,) = [r for r in found.records if r.key == record.key]
        assert record.predicted == pytest.approx(same.predicted, abs=1e-5)
        assert [t.settings for t in record.trials] == [t.settings for t in same.trials]


def test_nothing_is_finished_yet(found):
    empty = Comparison(found.problem, found.shift, found.plan, (), found.name)
    assert empty.scores == {}
    assert empty.verdict.best is None
    assert len(empty.table()) == 0
    with pytest.raises(TableError, match="fold"):
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


@pytest.mark.parametrize(
    "options",
    [{"time": "day"}, {"split_by": "site"}, {"extrapolate": True}, {"test": True}],
    ids=lambda options: next(iter(options)),
)
def test_shifts_end_to_end(flowers, tiny, options):
    frame = flowers.drop("kind").with_columns(
        pl.Series("day", [float(i) for i in range(120)]),
        pl.Series("site", [f"s{i % 3}" for i in range(120)]),  # three are enough
    )
    if "test" in options:
        frame, options = frame[:90], {"test": frame[90:]}
    found = compare(
        frame, "height", methods=["elliptic", "linear"], **options, **{**tiny, "trials": 1, "folds": 4}
    )
    assert found.complete
    assert found.shift.shift != "random"
    tested = found.predictions.tested
    assert tested.any()
    assert ("time" not in options) or not tested[0, :30].any()
    assert found.predictions.ordered == ("time" in options)  # stretches of time depend on their neighbours
    assert all(np.isfinite(d.low) and np.isfinite(d.high) for d in found.verdict.differences)


def test_no_logarithm_where_a_test_file_has_none(flowers, tiny):
    frame = flowers.drop("kind").with_columns(pl.col("height").exp())
    other = frame[:40].with_columns(pl.col("height") - 1.0)
    assert Session.open(frame, "height", Options(**tiny, test=frame[:40])).plan.log_target
    assert not Session.open(frame, "height", Options(**tiny, test=other)).plan.log_target


@bad_input
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"target": None}, "target"),
        ({"methods": ["mixpu"]}, "methods"),
        ({"methods": ["groupdro"]}, "group"),
        ({"folds": 1}, "folds"),
        ({"folds": 1000}, "folds"),
        ({"time": "size", "extrapolate": True}, "time"),
        *(({"bounded": "no"}, "bounded"), ({"networks": 0}, "networks"), ({"epochs": 2.5}, "epochs")),
        *(({"hidden": (8, 0)}, "hidden"), ({"select": "wrost"}, "select")),
    ],
)
def test_what_no_training_can_use_is_found_before_any_training(
    monkeypatch, tmp_path, flowers, options, named
):
    monkeypatch.setattr(Session, "run", lambda *_: pytest.fail("trained"))
    with pytest.raises(ValueError, match=named):
        compare(flowers, **{"target": "kind", "out": tmp_path / "out", **options})
    assert not (tmp_path / "out").exists()


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
        new = test.drop(target, drop)
        assert np.array_equal(
            fit_model(first, method="linear").predict(new), fit_model(second, method="linear").predict(new)
        )


def test_small_groups_are_not_drawn_more_often_than_others(flowers):
    """Three rows of a group that is not judged, as a group of their own, would be a third of all draws."""
    site = ["north"] * 60 + ["south"] * 57 + ["east"] * 3
    frame = flowers.drop("height").with_columns(pl.Series("site", site))
    problem = Session.open(frame, "kind", Options(group="site")).problem
    assert np.bincount(training_groups(problem)).tolist() == [63, 57]


def test_training_counts_its_own_groups_and_the_judge_those_of_the_test_file(flowers, tiny):
    """The group that is small in the test file is trained as one, also where no other group is in both."""
    frame = flowers.drop("height").with_columns(pl.Series("site", ["a"] * 60 + ["b"] * 60))
    test = frame[40:80].with_columns(pl.Series("site", ["a"] * 4 + ["c"] * 18 + ["d"] * 18))
    options = {
        **tiny,
        "methods": ["balanced", "groupdro", "lisa"],
        "epochs": 1,
        "group": "site",
        "test": test,
    }
    result = compare(frame, "kind", **options)
    assert not result.failed
    assert set(result.problem.judged) == {"", "b", "c", "d"}
    assert np.bincount(training_groups(result.problem)[:120]).tolist() == [60, 60]
    rows = only_rows(result.problem, result.problem.own_rows)
    assert training_groups(rows).tolist() == training_groups(result.problem)[:120].tolist()


# ---- workers, limits, interruptions


def test_progress_grows_to_one(flowers, tiny):
    told = []
    compare(flowers, "kind", listen=lambda *each: told.append(each), methods=["elliptic", "trees"], **tiny)
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    begins = {text for _, text in told}
    assert {"fold 2, boosted trees: done", "folds 1, 2: trials"} < begins


def test_random_rows_beside_a_shift(flowers, tiny, tmp_path, ran):
    """They are further folds of the store: a limit cuts them last, and the same command resumes them."""
    frame = flowers.drop("kind").with_columns(pl.Series("site", [f"s{i % 4}" for i in range(120)]))
    options = {**tiny, "trials": 1, "methods": ["linear"], "split_by": "site", "out": tmp_path}
    alone = compare(frame, "height", random=False, **options)
    assert (alone.random, len(alone.shift.folds)) == (None, 4)
    ran.clear()
    both = compare(frame, "height", **options)
    assert {len(folds) for folds, _ in ran} == {1, 2}
    assert len(ran) == 5  # three folds of two methods, in two stacks of networks
    assert (both.complete, both.random.complete, both.scores) == (True, True, alone.scores)
    assert sorted(np.concatenate([f.test for f in both.random.shift.folds])) == list(range(120))
    assert all(len(set(both.problem.blocks[f.test])) == 4 for f in both.random.shift.folds)
    assert any(text.startswith("Random rows would have chosen") for text in both.verdict.sentences)
    ran.clear()
    assert compare(frame, "height", **options).random.scores == both.random.scores
    assert not ran
    records = tuple(r for r in both.random.records if r.key[1:] != (2, "linear"))
    cut = replace(both, random=replace(both.random, records=records), minutes=1)
    assert "cut 1 of 3 folds of random rows (the linear model)" in cut.stopped
    for comparison, is_tested in ((both, True), (cut, False)):
        write_card(comparison, tmp_path / "card.md")
        tested = (tmp_path / "card.md").read_text(encoding="utf-8").partition("Not tested for")[0]
        assert ("other rows of the same source" in tested) == is_tested


def test_threads_are_limited_and_restored(flowers, tiny, monkeypatch):
    seen, usual = set(), comparison_module.run_methods

    def spy(*arguments):
        counts = {info["num_threads"] for info in threadpool_info() if info["user_api"] == "openmp"}
        seen.add((threading.current_thread() is threading.main_thread(), *counts))
        return usual(*arguments)

    monkeypatch.setattr(comparison_module, "run_methods", spy)
    before = [(info["filepath"], info["num_threads"]) for info in threadpool_info()]
    compare(flowers, "kind", methods=["trees"], **{**tiny, "jobs": 2, "trials": 1})
    assert seen == {(False, 1)}
    assert [(info["filepath"], info["num_threads"]) for info in threadpool_info()] == before


def open_one_by_one(flowers, tiny, monkeypatch, out, **options):
    """A comparison that trains fold by fold."""
    monkeypatch.setattr(comparison_module, "_STACK_ROWS", 0)
    options = Options(methods=["elliptic", "trees"], **{**tiny, "epochs": 30, **options})
    return Session.open(flowers, "kind", options, out=out)


def check_part(session):
    """One of three folds is finished: it is scored and judged, a model can be made, the rest follows."""
    part = session.result()
    assert not part.complete
    assert part.finished == [(0, 0)]
    assert set(part.predictions.fold[0]) == {0, -1}
    assert part.verdict.text
    assert part.table()["method"].to_list() == ["erm", "elliptic", "trees", "constant"]
    fit_model(part)
    session.store.close()
    return part


def test_an_interruption_leaves_whole_folds(flowers, tiny, tmp_path, monkeypatch):
    before = torch.get_num_threads()
    session = open_one_by_one(flowers, tiny, monkeypatch, tmp_path)

    def interrupt(share, words):
        if words.startswith("fold 2: trials"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.run(interrupt)
    assert torch.get_num_threads() == before
    assert not check_part(session).stopped
    again = open_one_by_one(flowers, tiny, monkeypatch, tmp_path)
    again.run()
    assert again.result().complete


def test_a_time_limit_leaves_whole_folds_and_says_so(flowers, tiny, tmp_path, monkeypatch):
    session = open_one_by_one(flowers, tiny, monkeypatch, tmp_path, minutes=60)

    def wait(share, words):
        if words.startswith("fold 2: trials"):
            monkeypatch.setattr(comparison_module.clock, "monotonic", lambda: float("inf"))

    session.run(wait)
    monkeypatch.undo()
    assert "2 of 3 folds" in check_part(session).stopped
    again = open_one_by_one(flowers, tiny, monkeypatch, tmp_path)  # resumed, also without the limit
    again.run()
    assert again.result().complete
    none = compare(flowers, "kind", methods=["linear"], minutes=0, **tiny)
    assert none.verdict.best is None
    assert none.stopped in none.verdict.text


def test_an_interruption_waits_for_the_other_threads(flowers, tiny, monkeypatch):
    """Python aborts if it exits while a thread is inside torch."""
    both, begun, ended = threading.Barrier(2, timeout=30), [], []

    def slow(self, task, progress):
        begun.append(task)
        number = len(begun)
        try:
            if number <= 2:
                both.wait()
            if number == 2:
                raise KeyboardInterrupt
            time.sleep(0.3)  # the other one is interrupted meanwhile
            progress.of(1)(0.6, "more")
        finally:
            ended.append(task)
        return []

    monkeypatch.setattr(Session, "_run_task", slow)
    with pytest.raises(KeyboardInterrupt):
        compare(flowers, "kind", methods=["trees"], **{**tiny, "jobs": 2})
    assert 2 <= len(begun) == len(ended) <= 3


@pytest.fixture
def kept(flowers, tiny, tmp_path):
    """Options of a comparison that is finished, in a folder."""
    options = {**tiny, "trials": 1, "methods": ["linear"], "out": tmp_path}
    compare(flowers.drop("height"), "kind", **options)
    return options


@pytest.fixture
def ran(monkeypatch):
    """Folds and methods of the tasks that are run."""
    tasks, usual = [], Session._run_task

    def spy(self, task, *rest):
        tasks.append(([fold.number for fold in task.folds], task.methods))
        return usual(self, task, *rest)

    monkeypatch.setattr(Session, "_run_task", spy)
    return tasks


@bad_input
@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"trials": 2}, {"folds": 4}, {"bounded": False}, {"extrapolate": True}]
)
def test_another_comparison_is_not_mixed_in(flowers, kept, change):
    with pytest.raises(TableError, match="shift" if "extrapolate" in change else next(iter(change))):
        compare(flowers.drop("height"), "kind", **{**kept, **change})


@bad_input
def test_another_table_is_not_mixed_in(flowers, kept):
    frame = flowers.drop("height")
    with pytest.raises(TableError, match="target"):
        compare(frame, "colour", **kept)
    with pytest.raises(TableError, match="contents"):
        compare(frame.with_columns(pl.col("size") * 2), "kind", **kept)


@bad_input
@pytest.mark.parametrize(
    "damage", ['{"about": ', "[]", '{"about": {}, "records": [{"repeat": 0}]}', "folder"]
)
def test_a_damaged_file(flowers, kept, tmp_path, damage):
    file = tmp_path / "results.json"
    file.unlink()
    file.mkdir() if damage == "folder" else file.write_text(damage)
    with pytest.raises(TableError, match=r"results\.json"):
        compare(flowers.drop("height"), "kind", **kept)
    (tmp_path / "predictions.npz").write_text("damage")
    with pytest.raises(TableError, match=r"predictions\.npz"):
        compare(flowers.drop("height"), "kind", **kept)


def test_records_without_predictions_are_done_again(flowers, kept, tmp_path, ran):
    first = compare(flowers.drop("height"), "kind", **kept)
    assert not ran
    with np.load(tmp_path / "predictions.npz", allow_pickle=False) as arrays:
        some = {name: arrays[name] for name in arrays if not name.startswith("0/1/linear")}
    np.savez(tmp_path / "predictions.npz", **some)
    again = compare(flowers.drop("height"), "kind", **kept)
    assert ran == [([1], ("linear",))]
    assert again.scores == first.scores


@bad_input
def test_a_folder_that_cannot_be_used_is_found_before_any_training(flowers, tiny, ran, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "model.elliptica").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below", tmp_path):
        with pytest.raises((TableError, OSError), match=r"file|model"):
            compare(flowers, "kind", out=out, **tiny)
    assert not ran
    assert (tmp_path / "model.elliptica").read_text() == "mine"


def test_results_are_kept_and_extended(flowers, tiny, tmp_path, ran):
    frame, options = flowers.drop("height"), {**tiny, "trials": 1, "out": tmp_path}
    once = compare(frame, "kind", methods=["elliptic"], **options)
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["versions"]["elliptica"] == elliptica.__version__ not in content["about"].values()
    ran.clear()
    more = compare(frame, "kind", methods=["elliptic", "linear"], repeats=2, **options)
    assert more.complete
    # of the first repeat only the linear model was missing
    assert sorted(ran) == sorted(
        [([k], ("linear",)) for k in [0, 1, 2] * 2] + [([0, 1, 2], ("erm", "elliptic"))]
    )
    ran.clear()
    again = compare(frame, "kind", methods=["elliptic"], **options)  # fewer are answered from the first
    assert not ran
    assert again.scores == once.scores
    assert [r.key for r in again.records] == [r.key for r in once.records]
    assert len(json.loads((tmp_path / "results.json").read_text())["records"]) == len(more.records)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_folder_belongs_to_one_process_and_a_killed_one_does_not_block(flowers, tmp_path):
    table, out = tmp_path / "t.csv", tmp_path / "out"
    flowers.drop("height").write_csv(table)
    code = (
        "import sys, time\n"
        "from elliptica.tables import Options\n"
        "from elliptica.tables.comparison import Session\n"
        "options = Options(methods=['linear'], trials=1, epochs=2)\n"
        "session = Session.open(sys.argv[1], 'kind', options, out=sys.argv[2])\n"
        "print('open', flush=True)\n"
        "time.sleep(600)\n"
    )
    first = subprocess.Popen([sys.executable, "-c", code, table, out], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline().strip() == "open"
        with pytest.raises(TableError, match="--out"):
            Session.open(table, "kind", Options(methods=["linear"], trials=1, epochs=2), out=out)
        assert not (out / "results.json").exists()
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert compare(table, "kind", methods=["linear"], trials=1, epochs=2, out=out).complete
