"""The protocol: balanced splits, one test per method, failures of training."""

import numpy as np
import polars as pl
import pytest

from elliptica.compare import TableError
from elliptica.compare import protocol as protocol_module
from elliptica.compare.plan import (
    Plan,
)
from elliptica.compare.problem import TableProblem, make_problem
from elliptica.compare.protocol import Record, Trial, final_trial, last_drop, prepare, run_method, split_rows
from elliptica.compare.table import read_table
from table_cases import problem_of, rows

bad_input = pytest.mark.bad_input


def test_splits_are_complete_balanced_and_repeatable():
    problem = problem_of(rows(200, y=["a"] * 180 + ["b"] * 20))
    seen = set()
    for repeat in range(5):
        split = split_rows(problem, repeat, 0)
        assert np.array_equal(np.sort(np.concatenate(split)), np.arange(200))
        assert [len(part) for part in split] == [120, 40, 40]
        assert [int((problem.target[part] == "b").sum()) for part in split] == [12, 4, 4]
        again = split_rows(problem, repeat, 0)
        assert all(np.array_equal(a, b) for a, b in zip(split, again, strict=True))
        seen.add(tuple(split.test))
    assert len(seen) == 5
    assert tuple(split_rows(problem, 0, 1).test) not in seen


def test_splits_are_balanced_within_groups():
    groups = ["u"] * 100 + ["v"] * 60 + ["v"] * 40
    labels = ["a"] * 50 + ["b"] * 50 + ["a"] * 60 + ["b"] * 40
    problem = problem_of(rows(200, y=labels, g=groups), group="g")
    test = split_rows(problem, 0, 0).test
    cells = {(problem.groups[i], problem.target[i]) for i in test}
    counts = {cell: sum((problem.groups[i], problem.target[i]) == cell for i in test) for cell in cells}
    assert counts == {("u", "a"): 10, ("u", "b"): 10, ("v", "a"): 12, ("v", "b"): 8}


def test_a_tiny_cell_does_not_stop_the_split():
    groups = ["u"] * 99 + ["v"] * 101
    labels = ["a"] * 98 + ["b"] + ["b"] * 101
    split_rows(problem_of(rows(200, y=labels, g=groups), group="g"), 0, 0)


@pytest.mark.parametrize("values", [["a", "b"] * 100, [float(i % 97) + 0.5 for i in range(200)]])
def test_blocks_stay_together(values):
    site = [i // 10 for i in range(200)]
    problem = problem_of(rows(200, y=values, site=site), split_by="site")
    assert "site" not in problem.features.columns
    for repeat in range(3):
        split = split_rows(problem, repeat, 0)
        blocks = [set(problem.blocks[part]) for part in split]
        assert sum(map(len, blocks)) == len(set.union(*blocks)) == 20
        assert np.array_equal(np.sort(np.concatenate(split)), np.arange(200))
        assert all(20 <= len(part) <= 60 for part in split[1:])


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_blocks_of_unequal_size_take_turns_in_the_test(kind):
    """Folds are filled greedily, so that the first one alone would hold the largest block in every repeat."""
    sizes = [200, 100, 80, 60, 40, 40, 30, 30, 20, 20, 10, 10]
    site = np.repeat(np.arange(len(sizes)), sizes)
    draws = np.random.default_rng(0)
    target = draws.integers(0, 2, len(site)) if kind == "classification" else draws.normal(size=len(site))
    problem = TableProblem(pl.DataFrame({"x": site}), target, kind, "y", blocks=site)
    splits = [split_rows(problem, repeat, 0) for repeat in range(10)]
    assert len({tuple(split.test) for split in splits}) > 3
    assert len({tuple(split.validation) for split in splits}) > 3
    shares = np.mean([[block in site[split.test] for block in range(len(sizes))] for split in splits], axis=0)
    assert shares.max() < 0.9
    assert (shares > 0).sum() > len(sizes) // 2


def test_few_blocks_leave_no_part_empty():
    draws = np.random.default_rng(1)
    for sizes in ([12] * 5, [300, 20, 20, 20, 20], [60, 55, 50, 45, 40]):
        site = np.repeat(np.arange(5), sizes)
        problem = TableProblem(
            pl.DataFrame({"x": site}), draws.integers(0, 2, len(site)), "classification", "y", blocks=site
        )
        for repeat in range(10):
            assert all(len(part) for part in split_rows(problem, repeat, 0))


def test_more_cells_than_test_rows():
    """Fifteen strata of 60 rows leave no row of each for the test; small ones are merged."""
    groups = np.array((["A"] * 5 + ["B"] * 5 + ["C"] * 2) * 5)
    target = np.repeat(np.arange(5.0), 12) + np.random.default_rng(0).normal(size=60) * 0.01
    frame = pl.DataFrame({"x": np.arange(60) % 7, "y": target, "g": groups})
    problem = problem_of(frame, group="g")
    for repeat in range(5):
        split = split_rows(problem, repeat, 0)
        assert [len(part) for part in split] == [36, 12, 12]
        assert np.array_equal(np.sort(np.concatenate(split)), np.arange(60))
    labels = np.repeat([f"c{i}" for i in range(10)], 7)
    cells = rows(70, x=np.arange(70) % 9, y=labels, g=(["A"] * 5 + ["B"] * 2) * 10)
    assert [len(part) for part in split_rows(problem_of(cells, group="g"), 0, 0)] == [42, 14, 14]


@bad_input
def test_a_part_without_judged_groups():
    site = np.repeat([f"s{i}" for i in range(8)], [40, 40, 8, 8, 8, 8, 8, 8])
    frame = rows(128, y=[i + 0.5 for i in range(128)], site=site)
    problem = problem_of(frame, group="site", split_by="site")
    with pytest.raises(TableError, match=r"In repeat \d+ all (test|validation) rows .* Join small groups"):
        [split_rows(problem, repeat, 0) for repeat in range(20)]


@bad_input
def test_a_class_in_one_block_only():
    labels = ["a"] * 190 + ["b"] * 10
    problem = problem_of(rows(200, y=labels, site=[i // 10 for i in range(200)]), split_by="site")
    with pytest.raises(TableError, match="no training row has the class 'b'"):
        [split_rows(problem, repeat, 0) for repeat in range(20)]


def test_regression_splits_are_balanced_by_target():
    problem = problem_of(rows(100, y=[float(i) + 0.5 for i in range(100)]))
    test = split_rows(problem, 0, 0).test
    assert np.bincount((problem.target[test] // 20).astype(int)).tolist() == [4] * 5


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


def test_last_drop_by_hand():
    assert last_drop([4.0, 3.0]) is None
    assert last_drop([4.0, 3.0, 1.0]) == 0.5
    losses = [2.0] * 20 + [1.0] * 10 + [0.5] * 10  # tenths of four epochs
    assert last_drop(losses) == 0.0
    assert last_drop([2.0] * 20 + [1.0] * 16 + [0.5] * 4) == 0.25
