"""From a table to a problem: columns, targets, groups, and what is said about them."""

import datetime
import json

import numpy as np
import polars as pl
import pytest

from elliptica.tables.problem import Target, find_copies, find_giveaways, is_log_candidate
from elliptica.tables.shift import make_shift
from elliptica.tables.table import BUILT_IN, Table, TableError, read_table
from table_cases import problem_of, rows


def table(n=30, name="test.csv", **columns):
    return Table(rows(n, **columns), name)


def test_csv_and_frame_give_the_same_problem(tmp_path):
    frame = rows(c=["u", None, " v "] * 20, k=list(range(5)) * 12, t=[0.5 * i for i in range(60)])
    before = frame.clone()
    frame.write_csv(tmp_path / "data.csv")
    one, two = problem_of(tmp_path / "data.csv"), problem_of(frame)
    assert one.digest() == two.digest()
    assert one.features["c"].to_list()[:3] == ["u", "(missing)", "v"]
    assert frame.equals(before)


def test_every_column_is_listed_with_its_use():
    frame = rows(
        constant=[7] * 60,
        key=[f"id-{i}" for i in range(60)],
        date=pl.Series(range(60)).cast(pl.Date),
        half=["u", "u", None, None] * 15,
        site=[i % 6 for i in range(60)],
        g=["u", "v"] * 30,
        who=range(60),
    )
    problem = problem_of(frame, group="g", split_by="site", as_={"who": "id"})
    assert problem.kind_of == {"x": "number", "date": "date", "half": "category"}
    assert problem.features.dtypes == [pl.Float64, pl.Datetime("us"), pl.String]
    assert set(problem.ids) == {"who", "key"}
    uses = {use.name: (use.kind, use.hint) for use in problem.columns}
    assert uses == {
        "x": ("number", ""),
        "constant": ("unused", ""),
        "key": ("id", "--as key=category"),
        "date": ("date", ""),
        "half": ("category", ""),
        "site": ("unused", ""),
        "g": ("unused", ""),
        "who": ("id", ""),
    }
    both = problem_of(frame, as_={"key": "category", "half": "id"})
    assert both.kind_of["g"] == both.kind_of["key"] == "category"
    assert "half" in both.ids


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("target", "options", "named"),
    [
        ("z", {}, "'z'"),
        ("y", {"group": "site"}, "'site'"),
        ("y", {"split_by": "site"}, "'site'"),
        ("y", {"time": "site"}, "'site'"),
        ("y", {"as_": {"site": "id"}}, "'site'"),
        ("y", {"as_": {"site": "number"}}, "'site'"),
        ("y", {"group": "y"}, "'y'"),
        ("y", {"as_": {"y": "id"}}, "'y'"),
        ("y", {"as_": {"y": "number"}}, "'y'"),
        ("y", {"as_": {"x": "numbr"}}, "numbr"),
        ("y", {"as_": {"x": "id"}}, "'y'"),  # nothing is left to predict from
    ],
)
def test_roles_that_exclude_each_other(target, options, named):
    with pytest.raises(TableError, match=named):
        problem_of(rows(), target, **options)


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["no", "yes"] * 30, ["no", "yes"]),
        ([True, False] * 30, ["false", "true"]),
        ([10, 9, 2] * 20, [2, 9, 10]),
        (["10", "9", "2"] * 20, [2, 9, 10]),
        (["01", "02"] * 30, ["01", "02"]),
        ([0.0, 1.0] * 30, [0, 1]),  # what pandas makes of 0, 1 and a missing value
        ([2**64 - 1, 2**64 - 2] * 30, [str(2**64 - 2), str(2**64 - 1)]),
        ([0.5, 1.5] * 30, []),
        ([1.0, 2.0, 3.0] * 20, []),
        (list(range(60)), []),
        ([f"$ {1000 + 7 * i:,}" for i in range(60)], []),
    ],
)
def test_task_is_decided(values, classes, tmp_path):
    dtype = pl.UInt64 if values[0] == 2**64 - 1 else None
    frame = rows(y=pl.Series(values, dtype=dtype))
    problem = problem_of(frame)
    assert problem.classes == classes
    assert problem.task == ("classification" if classes else "regression")
    frame.write_csv(tmp_path / "a.csv")
    again = problem_of(tmp_path / "a.csv")
    assert again.target.tolist() == problem.target.tolist()
    saved = Target.from_json(json.loads(json.dumps(again.reading()))["target"])
    known, target = saved.read(read_table(tmp_path / "a.csv").frame["y"][:7])
    assert known.all()
    assert target.tolist() == problem.target.tolist()[:7]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("values", "options", "named"),
    [
        (["1.5", "2", "many"] * 20, {"task": "regression"}, "row 3"),
        ([*map(str, range(59)), "unknown"], {}, "row 60"),
        ([*map(float, range(59)), 1e308], {}, "row 60"),
        ([*map(float, range(59)), float("inf")], {}, "row 60"),
        (["a"] * 60, {}, "'y'"),
        ([2.5] * 60, {"task": "regression"}, "'y'"),
        (["a", "b"] * 28 + ["rare"] * 4, {}, "'rare'"),
        ([0.1 * i for i in range(60)], {"task": "classification"}, "'y'"),
        ([datetime.date(2020, 1, 1 + i % 9) for i in range(60)], {}, "'y'"),
        ([None] * 60, {}, "at least 50"),
    ],
)
def test_targets_that_cannot_be_learnt(values, options, named):
    with pytest.raises(TableError, match=named):
        problem_of(rows(y=values), **options)


def test_groups():
    problem = problem_of(rows(g=["u", "v", None] * 18 + ["w"] * 6), group="g")
    assert "g" not in problem.features.columns
    assert set(problem.judged) == {"u", "v", "(missing)", ""}
    assert any("w" in notice for notice in problem.notices)
    same = problem_of(rows(g=[1, 2] * 30), group="g", test=table(g=[1.0, 2.0, 1.0] * 10))
    assert sorted(set(same.groups)) == ["1", "2"]


@pytest.mark.bad_input
def test_groups_and_blocks_that_cannot_be_judged():
    for column in (range(60), ["u"] * 55 + ["v"] * 5):
        with pytest.raises(TableError, match="'g'"):
            problem_of(rows(g=column), group="g")
    for column, named in ((["a", "b"] * 30, "'g'"), ([1, 2, 3, None] * 15, "15 gaps")):
        with pytest.raises(TableError, match=named):
            problem_of(rows(g=column), split_by="g")


def test_digest_sees_every_part():
    frame = rows(60, g=["u", "v"] * 30)
    changed = [
        frame,
        frame.with_columns(pl.col("x") + pl.Series([1e-9] + [0.0] * 59)),
        frame.with_columns(pl.Series("y", ["b", "b"] + ["a", "b"] * 29)),
        frame.with_columns(pl.Series("g", ["v", "v"] + ["u", "v"] * 29)),
    ]
    digests = [problem_of(each, group="g").digest() for each in changed]
    digests.append(problem_of(frame, group="g", test=table(g=["u", "v"] * 15)).digest())
    assert len(set(digests)) == 5


@pytest.mark.parametrize(
    ("values", "candidate"),
    [
        (np.exp(np.linspace(0, 5, 60)), True),
        (np.exp(np.linspace(0, 5, 60)) - 2, False),  # not positive
        (np.linspace(1, 5, 60), False),  # not skewed
        (10 - np.exp(np.linspace(0, 2, 60)), False),  # skewed to the left
        (np.r_[np.full(50, 1.0), np.linspace(5, 9, 10)], False),  # few values
    ],
)
def test_targets_whose_logarithm_is_worth_trying(values, candidate):
    assert is_log_candidate(values) == candidate
    assert problem_of(rows(y=values), task="regression").log_target_candidate == candidate


# ---- time


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([f"2020-01-{1 + i % 20:02d}" for i in range(60)], [18262.0 + i % 20 for i in range(60)]),
        ([60 - i for i in range(60)], [60.0 - i for i in range(60)]),  # counts the rows
        ([2001 + i % 5 for i in range(60)], [2001.0 + i % 5 for i in range(60)]),
    ],
)
@pytest.mark.parametrize("as_", [{}, {"t": "id"}])  # an identifier is not an input, but may tell the time
def test_rows_are_sorted_by_time(times, expected, as_):
    frame = rows(t=times)
    problem = problem_of(frame, time="t", as_=as_)
    order = np.argsort(expected, kind="stable")
    assert problem.times.tolist() == np.asarray(expected)[order].tolist()
    assert problem.target.tolist() == frame["y"].to_numpy()[order].tolist()


def test_rows_without_a_time_are_dropped_and_row_numbers_are_found():
    """Row numbers no longer are in order once rows are sorted."""
    frame = rows(66, number=list(range(66)), t=[None if i % 11 == 0 else -2.5 * i for i in range(66)])
    problem = problem_of(frame, time="t")
    assert len(problem.times) == 60
    assert problem.ids == ("number",)


@pytest.mark.bad_input
@pytest.mark.parametrize("times", [["soon", "later"] * 30, [1, 2] * 30, [5] * 60, [None] * 59 + [1]])
def test_columns_that_are_no_times(times):
    with pytest.raises(TableError, match="'t'"):
        problem_of(rows(t=times), time="t")


# ---- other tables


def test_rows_of_a_test_file_follow_and_are_read_alike():
    price = [f"{1 + i % 9},{100 + i}" for i in range(60)]
    frame = rows(price=price, c=["u", "v"] * 30, t=[2 * i for i in range(60)])
    test = table(price=["1,234"] * 30, c=["w"] * 30, t=range(30, 0, -1), y=["a", "b", None] * 10)
    problem = problem_of(frame, test=test, time="t")
    assert problem.is_test.tolist() == [False] * 60 + [True] * 20
    assert problem.features["price"].to_list()[59:] == [6159.0, *[1234.0] * 20]
    assert problem.times.tolist()[60:] == sorted(problem.times.tolist()[60:])
    labels = [label for label in test.frame["y"].to_list() if label]
    assert problem.target.tolist()[60:] == labels[::-1]
    problem = problem_of(rows(90, c=["u", "v", None] * 30, y=["a", "b", None] * 30))
    assert len(problem.target) == len(problem.features) == 60


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("test", "named"),
    [
        (table(g=["u", "v"] * 15, a=["7", "odd"] * 15), "test.csv: Column 'a', row 2"),
        (table(g=["u", "v"] * 15), "'a'"),
        (table(a=range(30)), "'g'"),
        (Table(rows(30, a=range(30), g=["u", "v"] * 15).drop("y"), "test.csv"), "'y'"),
        (table(4, a=range(4), g=["u", "v"] * 2), "at least 20"),
        (table(a=range(30), g=["u", "v"] * 15, y=["a", "new"] * 15), "test.csv: Column 'y', row 2"),
        (table(a=range(30), g=["u"] * 30), "'g'"),
        (table(a=range(30), g=[1, 2] * 15), "test.csv: Column 'g', row 1"),
    ],
    ids=["cell", "input", "group", "target", "short", "class", "one group", "group cell"],
)
def test_test_files_that_do_not_fit(test, named):
    frame = rows(a=[i * i for i in range(60)], g=["u", "v"] * 30)
    with pytest.raises(TableError, match=named):
        problem_of(frame, group="g", test=test)


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
    assert "100 of 300 rows" in " ".join(problem.notices)
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
    assert find_copies(pair) is None
    assert problem_of(pair).features.columns == ["code"]


def test_test_rows_that_training_knows_are_a_warning():
    frame = honest(200).drop("price")
    known = pl.concat([honest(60, seed=1).drop("price"), frame[:7]])
    problem = problem_of(frame, "sold", test=read_table(known))
    assert any("7 test rows are copies of training rows" in each for each in problem.notices)
    clean = problem_of(frame, "sold", test=read_table(known[:60]))
    assert not any("copies" in each for each in clean.notices)
