"""Folds: who is trained on, who chooses, who is tested, for every shift."""

import numpy as np
import polars as pl
import pytest
from sklearn.tree import DecisionTreeRegressor

from elliptica.tables.shift import Fold, make_shift
from elliptica.tables.table import TableError
from table_cases import problem_of, rows

bad_input = pytest.mark.bad_input
SITE, TIME = [i % 10 for i in range(200)], [float(i) for i in range(200)]


def is_sound(fold: Fold, n: int) -> bool:
    """Parts do not overlap, validation is a part of training, and numbers ascend."""
    parts = fold.train, fold.validation, fold.test
    return (
        not set(fold.train) & set(fold.test)
        and set(fold.validation) < set(fold.train)
        and len(fold.validation) > 0
        and all((np.diff(part) > 0).all() and part.min() >= 0 and part.max() < n for part in parts)
        and sorted([*fold.fit, *fold.validation]) == fold.train.tolist()
    )


@pytest.mark.parametrize("values", [["a"] * 180 + ["b"] * 20, [float(i % 97) + 0.5 for i in range(200)]])
def test_random_rows_are_each_tested_once_per_repeat_in_balanced_folds(values):
    problem = problem_of(rows(200, y=values))
    plan = make_shift(problem, folds=5, repeats=2)
    assert (plan.shift, plan.n_repeats, len(plan.folds)) == ("random", 2, 10)
    assert all(is_sound(fold, 200) for fold in plan.folds)
    for repeat in range(2):
        own = [fold for fold in plan.folds if fold.repeat == repeat]
        assert np.array_equal(np.sort(np.concatenate([f.test for f in own])), np.arange(200))
        assert [len(fold.test) for fold in own] == [40] * 5
        assert [len(fold.validation) for fold in own] == [40] * 5
        if problem.task == "classification":
            assert [(problem.target[fold.test] == "b").sum() for fold in own] == [4] * 5
            assert [(problem.target[fold.validation] == "b").sum() for fold in own] == [4] * 5
        else:
            assert all(np.ptp(np.quantile(problem.target[f.test], (0.2, 0.8))) > 40 for f in own)
    assert not np.array_equal(plan.folds[0].test, plan.folds[5].test)
    again, other = make_shift(problem, repeats=2), make_shift(problem, repeats=2, seed=1)
    assert all(np.array_equal(a.test, b.test) for a, b in zip(plan.folds, again.folds, strict=True))
    assert not np.array_equal(plan.folds[0].test, other.folds[0].test)
    assert np.array_equal(plan.clusters, np.arange(200))


def test_random_folds_are_balanced_within_groups():
    groups = ["u"] * 100 + ["v"] * 100
    labels = ["a"] * 50 + ["b"] * 50 + ["a"] * 60 + ["b"] * 40
    problem = problem_of(rows(200, y=labels, g=groups), group="g")
    for fold in make_shift(problem).folds:
        cells = list(zip(problem.groups[fold.test], problem.target[fold.test], strict=True))
        counts = {cell: cells.count(cell) for cell in set(cells)}
        assert counts == {("u", "a"): 10, ("u", "b"): 10, ("v", "a"): 12, ("v", "b"): 8}


def test_a_class_within_a_group_of_one_row_does_not_stop_the_split():
    groups = ["u"] * 99 + ["v"] * 101
    labels = ["a"] * 98 + ["b"] + ["b"] * 101
    plan = make_shift(problem_of(rows(200, y=labels, g=groups), group="g"))
    assert sum(len(fold.test) for fold in plan.folds) == 200


def test_rare_classes_are_in_every_training_part():
    """Five rows, five folds: each fold tests one, validates one, and trains on three."""
    problem = problem_of(rows(200, y=["a"] * 195 + ["b"] * 5))
    for fold in make_shift(problem).folds:
        counts = [(problem.target[part] == "b").sum() for part in (fold.fit, fold.validation, fold.test)]
        assert counts[0] >= 3
        assert sum(counts) == 5


@pytest.mark.parametrize("values", [["a", "b"] * 100, [float(i % 97) + 0.5 for i in range(200)]])
def test_unseen_values_are_never_divided(values):
    site = [i // 10 for i in range(200)]
    problem = problem_of(rows(200, y=values, site=site), split_by="site")
    plan = make_shift(problem, repeats=2)
    assert plan.shift == "unseen"
    assert np.array_equal(plan.clusters, problem.blocks)
    assert "unseen values of site" in plan.words
    for fold in plan.folds:
        assert is_sound(fold, 200)
        parts = [set(problem.blocks[part]) for part in (fold.fit, fold.validation, fold.test)]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 20
        assert 30 <= len(fold.test) <= 50
        assert 30 <= len(fold.validation) <= 50


def test_unequal_blocks_fill_folds_evenly_and_differently_in_every_repeat():
    sizes = [200, 100, 80, 60, 40, 40, 30, 30, 20, 20, 10, 10]
    site = np.repeat(np.arange(len(sizes)), sizes)
    label = np.random.default_rng(0).integers(0, 2, len(site))
    problem = problem_of(pl.DataFrame({"x": label + 0.5, "y": label, "site": site}), "y", split_by="site")
    plan = make_shift(problem, folds=3, repeats=3)
    assert all(190 <= len(fold.test) <= 240 for fold in plan.folds)
    assert len({tuple(fold.test) for fold in plan.folds}) > 3


def test_each_of_few_blocks_is_tested_on_its_own():
    problem = problem_of(rows(200, site=[i % 5 for i in range(200)]), split_by="site")
    folds = make_shift(problem, folds=10).folds
    assert [len(set(problem.blocks[fold.test])) for fold in folds] == [1] * 5
    assert make_shift(problem).part_names.tolist() == problem.split_values.tolist()
    many = problem_of(rows(200, site=[i % 20 for i in range(200)]), split_by="site")
    assert all(name.endswith(" and 2 others") for name in make_shift(many).part_names)


def test_time_trains_on_the_past():
    days = [f"2020-01-{1 + i // 10:02d}" for i in range(280)]
    problem = problem_of(rows(280, sold=days), time="sold")
    plan = make_shift(problem)
    assert plan.shift == "time"
    assert len(plan.folds) == 5
    for fold in plan.folds:
        assert is_sound(fold, 280)
        assert problem.times[fold.train].max() < problem.times[fold.test].min()
        assert problem.times[fold.fit].max() < problem.times[fold.validation].min()
        assert len(fold.test) == 40
        assert len(fold.validation) / len(fold.train) == pytest.approx(0.25, abs=0.1)
    assert [len(fold.train) for fold in plan.folds] == [80, 120, 160, 200, 240]  # earlier ones only
    assert "2020-01-09" in plan.words
    assert plan.part_names[[0, 279]].tolist() == ["", "2020-01-25 to 2020-01-28"]
    assert "Train on the past" in plan.words


def test_time_clusters_are_the_tested_stretches():
    problem = problem_of(rows(400, t=[float(i) for i in range(400)]), time="t")
    plan = make_shift(problem, repeats=2)
    assert all(set(plan.clusters[fold.test]) == {fold.number} for fold in plan.folds)
    assert (plan.ordered, plan.clusters.min()) == (True, -1)
    assert [len(f.test) for f in plan.folds[:5]] == [len(f.test) for f in plan.folds[5:]]


def test_equal_times_are_never_divided():
    times = [0.0] * 100 + [1.0] * 60 + [2.0] * 40
    problem = problem_of(rows(200, t=times), time="t")
    for fold in make_shift(problem).folds:
        assert not set(problem.times[fold.train]) & set(problem.times[fold.test])


def test_time_waits_until_all_classes_have_come():
    labels = (["a"] * 100) + ["a", "b"] * 50
    problem = problem_of(rows(200, y=labels, t=[float(i) for i in range(200)]), time="t")
    folds = make_shift(problem).folds
    assert len(folds) < 5
    assert all({"a", "b"} == set(problem.target[fold.fit]) for fold in folds)


def far_table(n=400, seed=0):
    """Numbers ``a`` (even) and ``b`` (skewed), indicators of a rare category, and a target that follows a."""
    draws = np.random.default_rng(seed)
    a, b = draws.permutation(np.linspace(0, 1, n)), draws.lognormal(size=n)
    rare = draws.random(n) < 0.03
    y = a + 0.02 * draws.normal(size=n)
    return pl.DataFrame({"a": a, "b": b, "rare": rare.astype(float), "kind": rare.astype(str), "y": y})


def test_extrapolation_estimates_the_error_of_new_far_rows():
    """Trees are flat beyond their rows: the truth is the error of a model of all rows just outside them."""
    frame = far_table()
    (fold, *_), x, y = make_shift(problem_of(frame), extrapolate="a").folds, frame["a"].to_numpy(), frame["y"]

    def error(train, target, test, truth):
        trees = DecisionTreeRegressor(min_samples_leaf=10).fit(train[:, None], target)
        return np.square(trees.predict(test[:, None]) - truth).mean() ** 0.5

    estimate = error(x[fold.train], y[fold.train], x[fold.test], y[fold.test])
    new = np.concatenate([np.linspace(-0.1, 0, 200), np.linspace(1, 1.1, 200)])
    assert estimate == pytest.approx(error(x, y, new, new), rel=0.2)
    assert estimate > 2 * error(x[::2], y[::2], x[1::2], y[1::2])  # what random rows say


@pytest.mark.parametrize("column", ["a", "b", "auto"])
def test_extrapolation_holds_out_far_ends_and_validates_on_the_next(column):
    """Both ends of an even column, the long end of a skewed one; rare categories play no part."""
    frame = far_table()
    plan = make_shift(problem_of(frame), extrapolate=column)
    assert (plan.shift, plan.n_repeats, len(plan.folds)) == ("extrapolate", 3, 3)
    fold = plan.folds[0]
    assert is_sound(fold, 400)
    assert (len(fold.test), len(fold.validation)) == (80, 80)
    assert frame["rare"][fold.test].mean() < 0.08
    other = frame.with_columns(rare=1 - pl.col("rare"), kind=pl.col("kind").reverse())
    assert np.array_equal(make_shift(problem_of(other), extrapolate=column).folds[0].test, fold.test)
    if column != "auto":
        assert f"with {column} from" in plan.words
        values = frame[column].to_numpy()
        distance = np.abs(values - np.median(values))
        assert distance[fold.fit].max() < distance[fold.validation].min()
        assert distance[fold.validation].max() < distance[fold.test].min()
        upper = (values[fold.test] > np.median(values)).mean()
        assert upper == pytest.approx(0.5 if column == "a" else 1.0, abs=0.1)


def test_extrapolation_keeps_equal_values_together_and_gaps_in_the_middle():
    frame = far_table().with_columns(a=(4 * pl.col("a")).round(), b=pl.when(pl.col("rare") == 0).then("b"))
    fold = make_shift(problem_of(frame), extrapolate="a").folds[0]
    parts = [set(frame["a"][part]) for part in (fold.fit, fold.validation, fold.test)]
    assert sum(map(len, parts)) == 5
    gaps = np.flatnonzero(frame["b"].is_null())
    assert np.isin(gaps, make_shift(problem_of(frame), extrapolate="b").folds[0].fit).all()
    for column in ("rare", "kind", "no such"):
        with pytest.raises(TableError, match="extrapolate"):
            make_shift(problem_of(frame), extrapolate=column)


def test_rows_of_a_test_file_are_tested_in_every_repeat():
    from elliptica.tables.problem import make_problem
    from elliptica.tables.table import read_table

    problem = make_problem(read_table(rows(100)), "y", test=read_table(rows(40)))
    plan = make_shift(problem)
    assert (plan.shift, plan.n_repeats, len(plan.folds)) == ("test_file", 3, 3)
    for fold in plan.folds:
        assert is_sound(fold, 140)
        assert fold.test.tolist() == list(range(100, 140))
        assert fold.train.tolist() == list(range(100))
    assert len({tuple(fold.validation) for fold in plan.folds}) == 3
    assert "40 rows of the test file" in plan.words


def test_random_rows_are_those_of_the_table():
    from elliptica.tables.problem import make_problem
    from elliptica.tables.table import read_table

    problem = make_problem(read_table(rows(100)), "y", test=read_table(rows(40)))
    random = make_shift(problem).random
    assert sorted(np.concatenate([fold.test for fold in random.folds])) == list(range(100))


def test_few_and_many_blocks():
    """Each of three is tested on its own; thousands are dealt at once."""
    few = problem_of(rows(210, site=[i % 3 for i in range(210)]), split_by="site")
    assert [len(set(few.blocks[fold.test])) for fold in make_shift(few).folds] == [1] * 3
    four = problem_of(rows(210, site=[min(i % 9, 3) for i in range(210)]), split_by="site")
    assert [len(set(four.blocks[fold.test])) for fold in make_shift(four, folds=2).folds] == [1] * 4
    many = problem_of(rows(3000, site=[i // 3 for i in range(3000)]), split_by="site")
    folds = make_shift(many).folds
    assert all(not set(many.blocks[fold.train]) & set(many.blocks[fold.test]) for fold in folds)
    assert all(abs(len(fold.test) - 600) < 10 for fold in folds)


@bad_input
@pytest.mark.parametrize(
    ("columns", "roles", "options", "named"),
    [
        ({}, {}, {"folds": 1000}, "folds"),
        ({}, {}, {"folds": 1}, "folds"),
        ({"s": SITE, "t": TIME}, {"split_by": "s", "time": "t"}, {}, "time"),
        ({"s": SITE}, {"split_by": "s"}, {"extrapolate": True}, "extrapolate"),
        ({"t": TIME, "y": ["a"] * 190 + ["b"] * 10}, {"time": "t"}, {}, "y"),
        ({"s": [i // 40 for i in range(200)], "y": ["a"] * 160 + ["b"] * 40}, {"split_by": "s"}, {}, "class"),
        (
            {"g": ["u", "v"] * 20 + [f"g{i // 5}" for i in range(160)], "t": TIME},
            {"group": "g", "time": "t"},
            {},
            "groups",
        ),
    ],
)
def test_rows_that_cannot_be_divided(columns, roles, options, named):
    with pytest.raises(TableError, match=named):
        make_shift(problem_of(rows(200, **columns), **roles), **options)
