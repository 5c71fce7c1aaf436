"""Columns that give the target away are announced, and copies of rows are kept together."""

import numpy as np
import polars as pl
import pytest

from elliptica.tables.problem import find_copies, find_giveaways
from elliptica.tables.shift import make_shift
from elliptica.tables.table import BUILT_IN, read_table
from table_cases import problem_of

N = 300


def honest(n=N, seed=0):
    """Two inputs, a number that they explain well, and a class."""
    draws = np.random.default_rng(seed)
    a, b = draws.normal(size=(2, n))
    price = np.exp(2 * a + b + 0.2 * draws.normal(size=n))
    return pl.DataFrame({"a": a, "b": b, "price": price, "sold": np.where(a + b > 0, "yes", "no")})


@pytest.mark.parametrize("name", ["iris", "breast_cancer", "wine", "diabetes", "digits"])
def test_strong_predictors_are_no_giveaways(name):
    assert problem_of(name, BUILT_IN[name]).giveaways == ()


@pytest.mark.parametrize(
    ("target", "column"),
    [
        ("price", lambda f: f["price"] * 0.92),
        ("price", lambda f: -f["price"].log()),
        ("price", lambda f: (f["price"] + 1e-4).round(2)),
        ("price", lambda f: (f["price"].log() - 1).abs().sign() * f["price"].rank()),
        ("sold", lambda f: (f["sold"] == "yes").cast(pl.Int8)),
        ("sold", lambda f: f["sold"].replace({"yes": "closed", "no": "open"})),
        ("sold", lambda f: pl.when(f["sold"] == "yes").then(pl.Series(range(N)) * 0.1)),  # known if sold
        ("sold", lambda f: pl.Series(np.where(f["sold"] == "yes", 5.0, -5.0) + f["b"].to_numpy())),
    ],
)
def test_giveaways_are_found(target, column):
    frame = honest().drop({"price": "sold", "sold": "price"}[target])
    frame = frame.with_columns(pl.select(column(honest()).alias("later")).to_series())
    problem = problem_of(frame, target)
    assert problem.giveaways == ("later",)
    (use,) = [use for use in problem.columns if use.name == "later"]
    assert use.hint == "--as later=id"
    assert problem_of(frame, target, as_={"later": "id"}).giveaways == ()


def test_values_of_single_rows_tell_nothing():
    """Every text belongs to one class, but no row is told by another one."""
    draws = np.random.default_rng(0)
    target = draws.integers(0, 2, N)
    frame = pl.DataFrame({"name": [f"name {i}" for i in draws.permutation(N)]})
    assert find_giveaways(frame, target, "classification") == []


def doubled(seed=0):
    """Half of the rows twice, in random order, with a name that copies share."""
    frame = honest(200, seed).with_columns(pl.Series("name", [f"n{i}" for i in range(200)]))
    return pl.concat([frame, frame[:100]]).sample(fraction=1.0, shuffle=True, seed=seed)


@pytest.mark.parametrize("target", ["price", "sold"])
def test_copies_stay_together(target):
    """Neither the test rows nor the validation rows of a fold have copies among the others."""
    frame = doubled()
    problem = problem_of(frame, target)
    assert "100 of 300 rows equal another one." in " ".join(problem.notices)
    name = frame["name"].to_numpy()
    plan = make_shift(problem, repeats=2)
    for fold in plan.folds:
        assert not set(name[fold.test]) & set(name[fold.train])
        assert not set(name[fold.fit]) & set(name[fold.validation])
        assert len(fold.test) == pytest.approx(60, abs=15)
    assert sorted(np.concatenate([fold.test for fold in plan.folds[:5]])) == list(range(300))
    assert len(np.unique(plan.clusters)) == 200
    again = problem_of(frame.unique(), target)
    assert again.copies is None
    assert not any("cop" in each for each in again.notices)


def test_equal_rows_of_few_categories_are_no_copies():
    draws = np.random.default_rng(0)
    frame = pl.DataFrame({name: draws.integers(0, 3, 500) for name in "abc"}).cast(pl.String)
    frame = frame.with_columns(pl.Series("y", np.where(draws.random(500) < 0.3, "yes", "no")))
    problem = problem_of(frame)
    assert problem.copies is None
    # one column that belongs to the classes one to one: rows are few, and still it is no identifier
    codes = [f"c{i % 10}" for i in range(200)]
    pair = pl.DataFrame({"code": codes, "y": [int(code[1:]) % 2 for code in codes]})
    assert find_copies(pair).by_chance
    assert problem_of(pair).features.columns == ["code"]


def test_test_rows_that_training_knows_are_a_warning():
    frame = honest(200).drop("price")
    known = pl.concat([honest(60, seed=1).drop("price"), frame[:7]])
    problem = problem_of(frame, "sold", test=read_table(known))
    assert any("7 test rows are copies of training rows" in each for each in problem.notices)
    clean = problem_of(frame, "sold", test=read_table(known[:60]))
    assert not any("copies" in each for each in clean.notices)
