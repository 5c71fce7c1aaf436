"""From a table to a problem: columns, targets, groups, and what is said about them."""

import polars as pl
import pytest

from elliptica.compare.csv import TableError
from elliptica.compare.problem import MIN_ROWS, TableProblem, make_problem
from elliptica.compare.table import Table
from table_cases import problem_of, rows

bad_input = pytest.mark.bad_input


def write(folder, text, name="data.csv"):
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_a_few_cells_of_text_leave_a_column_of_numbers_one(tmp_path):
    """Else every number would be a category of its own, or the column be taken for an identifier."""
    lines = "\n".join(f"{i * i},{'ab'[i % 2]}" for i in range(99))
    problem = problem_of(write(tmp_path, f"a,y\n{lines}\n12kg,b\n"))
    assert problem.features["a"].to_list() == [*(float(i * i) for i in range(99)), None]
    assert problem.text_as_missing == ("a",)
    warning = "Warning: column 'a': 1 of 100 values is no number, e.g. '12kg'. Taken as missing."
    assert warning in problem.notices
    assert not any("identifier" in notice for notice in problem.notices)


def test_text_is_found_among_decimal_commas(tmp_path):
    lines = "\n".join(f"{i},5;{'ab'[i % 2]}" for i in range(99))
    problem = problem_of(write(tmp_path, f"a;y\n{lines}\nn.b.;b\n"))
    assert problem.features["a"].to_list() == [*(i + 0.5 for i in range(99)), None]
    with pytest.raises(TableError, match=r"1 of 100 values is no number, e\.g\. 'n\.b\.'"):
        problem_of(write(tmp_path, f"y;a\n{lines}\nn.b.;b\n"), "y")


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        # a gap tells one text as well as a category does
        ([*[str(i % 3) for i in range(190)], *["unknown"] * 10], pl.Float64, "10 of 200 values are no num"),
        # few numbers beside several texts: codes, of which none may be lost
        ([*[str(i % 3) for i in range(190)], *["A", "B"] * 5], pl.String, None),
        # a fifth is no slip: text it stays, but not silently
        ([*[str(i) for i in range(160)], *["<5", ">9"] * 20], pl.String, "40 of 200 values are no numbers"),
        ([f"t{i % 9}" for i in range(200)], pl.String, None),
        # missing cells are no text
        ([*[str(i) for i in range(150)], *[None] * 49, "x"], pl.Float64, "1 of 151 values is no number"),
    ],
    ids=["one text", "codes", "too many", "categories", "gaps"],
)
def test_what_text_among_numbers_means(values, kind, words):
    problem = problem_of(rows(200, c=pl.Series(values, dtype=pl.String)))
    assert problem.features["c"].dtype == kind
    assert (problem.text_as_missing == ("c",)) == (kind == pl.Float64)
    found = [notice for notice in problem.notices if notice.startswith("Warning: column 'c'")]
    assert ([words in notice for notice in found] == [True]) if words else not found


def test_csv_and_frame_give_the_same_problem(tmp_path):
    frame = rows(c=["u", None, "v"] * 20, k=list(range(5)) * 12)
    frame.write_csv(tmp_path / "data.csv")
    one, two = problem_of(tmp_path / "data.csv"), problem_of(frame)
    assert one.digest() == two.digest()


@bad_input
def test_wrong_names_are_answered_with_near_ones():
    frame = rows(Income=range(60))
    for name, near in (
        ("incme", "'Income'"),
        ("INCOME ", "'Income'"),
        ("zzz", "There are 'x', 'y', 'Income'"),
    ):
        with pytest.raises(TableError, match=f"no column '{name}' for the target.*{near}"):
            problem_of(frame, name)
    with pytest.raises(TableError, match=r"no column 'site' for the group"):
        problem_of(frame, group="site")
    with pytest.raises(TableError, match=r"no column 'site' for the split-by"):
        problem_of(frame, split_by="site")
    with pytest.raises(TableError, match="cannot be the group"):
        problem_of(frame, group="y")
    with pytest.raises(TableError, match=r"no column 'incom' for the id\. Did you mean 'Income'"):
        problem_of(frame, ids=["incom"])
    with pytest.raises(TableError, match="cannot be the group, the split-by or an id"):
        problem_of(frame, ids=["y"])
    with pytest.raises(TableError, match="needs a --group"):
        problem_of(frame, group_as_input=True)
    with pytest.raises(TableError, match="cannot be an id and an input"):
        problem_of(rows(g=["u", "v"] * 30), group="g", group_as_input=True, ids=["g"])
    with pytest.raises(TableError, match="task must be one of"):
        problem_of(frame, task="ranking")


@bad_input
def test_a_file_without_header(tmp_path):
    with pytest.raises(TableError, match="first line holds numbers only"):
        problem_of(write(tmp_path, "1,2.5,3\n" + "4,5,6\n" * 60), "y")


def test_useless_columns_are_dropped_with_a_notice():
    frame = rows(
        constant=[7] * 60,
        empty=[None] * 60,
        key=[f"id-{i}" for i in range(60)],
        number=range(100, 160),
        date=pl.Series(range(60)).cast(pl.Date),
        half=["u", None] * 30,
    )
    problem = problem_of(frame)
    assert problem.features.columns == ["x", "half"]
    text = "\n".join(problem.notices)
    for name, reason in {
        "constant": "it is 7 in all rows",
        "empty": "all its values are missing",
        "key": "nearly every row has a text of its own, as in an identifier",
        "number": "it numbers the rows",
        "date": "it is of type Date",
    }.items():
        assert f"Column {name!r} is not used: {reason}" in text


def test_columns_that_only_look_like_identifiers_stay():
    frame = rows(unique=[i * i for i in range(60)], price=[0.37 * i for i in range(60)])
    assert problem_of(frame).features.columns == ["x", "unique", "price"]


def test_many_categories_and_infinities_are_commented():
    frame = rows(200, town=[f"t{i % 80}" for i in range(200)], f=[float("inf"), 1.0] * 100)
    problem = problem_of(frame)
    assert any("'town' has 80 different texts" in n and "--id town leaves" in n for n in problem.notices)
    assert any("100 infinite values are taken as missing" in n for n in problem.notices)
    assert problem.features["f"].null_count() == 100


@bad_input
def test_nothing_to_predict_from():
    with pytest.raises(TableError, match="No column is left"):
        problem_of(pl.DataFrame({"c": [1] * 60, "y": ["a", "b"] * 30}))


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (["no", "yes"] * 30, "classification"),
        ([True, False] * 30, "classification"),
        (list(range(3)) * 20, "classification"),
        ([0.0, 1.0] * 30, "classification"),  # what pandas makes of 0, 1 and a missing value
        ([0.5, 1.5] * 30, "regression"),
        ([1.0, 2.0, 3.0] * 20, "regression"),
        (list(range(60)), "regression"),
    ],
)
def test_task_is_decided_and_said(values, task):
    problem = problem_of(rows(y=values))
    assert problem.task == task
    assert any(n.startswith(f"Task: {task}, because") for n in problem.notices)


def test_rows_without_target_are_dropped():
    values = ["a", "b", None] * 30
    problem = problem_of(rows(90, y=values))
    assert len(problem.target) == len(problem.features) == 60
    assert "30 of 90 rows have no target and are dropped." in problem.notices
    numbers = [float(i) if i % 3 else float("nan") for i in range(90)]
    assert len(problem_of(rows(90, y=numbers)).target) == 60


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (["1.5", "2", "many"] * 20, {"task": "regression"}, "holds text, e.g. '1.5'"),
        (
            [*map(str, range(59)), "unknown"],
            {},
            "In the target column 'y': 1 of 60 values is no number, e.g. 'unkn",
        ),
        ([*map(str, range(54)), *"abcdef"], {}, "Class '0' of 'y' has 1 row,"),  # a tenth: no stray cells
        (["a"] * 60, {}, "one class only, 'a'"),
        ([2.5] * 60, {"task": "regression"}, "same value in all rows"),
        (["a", "b"] * 28 + ["rare"] * 4, {}, "Class 'rare' of 'y' has 4 rows, but 5 are needed"),
        ([0.1 * i for i in range(60)], {"task": "classification"}, "is --task regression meant"),
        ([None] * 60, {}, f"0 rows with a target, but at least {MIN_ROWS}"),
    ],
)
@bad_input
def test_targets_that_cannot_be_learnt(values, options, message):
    with pytest.raises(TableError, match=message):
        problem_of(rows(y=values), **options)


@bad_input
def test_three_rows():
    with pytest.raises(TableError, match=f"3 rows with a target, but at least {MIN_ROWS}"):
        problem_of(rows(60)[:3])


@bad_input
def test_groups_that_cannot_be_judged():
    with pytest.raises(TableError, match="has 60 values; at most 50 groups"):
        problem_of(rows(g=range(60)), group="g")
    with pytest.raises(TableError, match="has 1 groups of at least 10 rows"):
        problem_of(rows(g=["u"] * 55 + ["v"] * 5), group="g")


def test_groups():
    problem = problem_of(rows(g=["u", "v", None] * 18 + ["w"] * 6), group="g")
    assert "g" not in problem.features.columns
    assert set(problem.groups) == {"u", "v", "(missing)", ""}
    assert any("not judged on their own: w." in n for n in problem.notices)
    both = problem_of(rows(g=["u", "v"] * 30), group="g", group_as_input=True)
    assert "g" in both.features.columns


@bad_input
def test_blocks_that_cannot_be_split():
    with pytest.raises(TableError, match="has 3 values, but at least 5"):
        problem_of(rows(site=list("abc") * 20), split_by="site")
    with pytest.raises(TableError, match="20 missing values"):
        problem_of(rows(site=[1, 2, None] * 20), split_by="site")


def test_a_group_with_an_empty_name_is_a_group():
    problem = problem_of(rows(g=["", "u", "v"] * 20), group="g")
    assert set(problem.groups) == {"(empty)", "u", "v"}


def test_digest_sees_every_part():
    frame = rows(60, g=["u", "v"] * 30)
    base = problem_of(frame, group="g").digest()
    assert base == problem_of(frame.clone(), group="g").digest()
    changed = [
        frame.with_columns(pl.col("x") + pl.Series([1e-9] + [0.0] * 59)),
        frame.with_columns(pl.Series("y", ["b", "b"] + ["a", "b"] * 29)),
        frame.with_columns(pl.Series("g", ["v", "v"] + ["u", "v"] * 29)),
    ]
    assert len({base, *(problem_of(each, group="g").digest() for each in changed)}) == 4


def test_table_keeps_what_it_is_given():
    frame = rows(c=[float("inf"), 1.0] * 30)
    before = frame.clone()
    assert isinstance(make_problem(Table(frame, "frame"), "y"), TableProblem)
    assert frame.equals(before)
