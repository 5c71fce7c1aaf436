"""From a table to a problem: columns, targets, groups, and what is said about them."""

import datetime

import numpy as np
import polars as pl
import pytest

from elliptica.tables.columns import read_inputs
from elliptica.tables.csv import TableError
from elliptica.tables.problem import MIN_ROWS, TableProblem, make_problem
from elliptica.tables.table import Table, read_table
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
    warning = "Warning: column 'a': 1 of 100 values is not a number, e.g. '12kg'. Treated as missing."
    assert warning in problem.notices
    assert not any("identifier" in notice for notice in problem.notices)


def test_text_is_found_among_decimal_commas(tmp_path):
    lines = "\n".join(f"{i},5;{'ab'[i % 2]}" for i in range(99))
    problem = problem_of(write(tmp_path, f"a;y\n{lines}\nn.b.;b\n"))
    assert problem.features["a"].to_list() == [*(i + 0.5 for i in range(99)), None]
    with pytest.raises(TableError, match=r"1 of 100 values is not a number, e\.g\. 'n\.b\.'"):
        problem_of(write(tmp_path, f"y;a\n{lines}\nn.b.;b\n"), "y")


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        # a gap tells one text as well as a category does
        ([*[str(i % 3) for i in range(190)], *["unknown"] * 10], pl.Float64, "10 of 200 values are not num"),
        # few numbers beside several texts: codes, of which none may be lost
        ([*[str(i % 3) for i in range(190)], *["A", "B"] * 5], pl.String, None),
        # a fifth is no slip: text it stays, but not silently
        ([*[str(i) for i in range(160)], *["<5", ">9"] * 20], pl.String, "40 of 200 values are not numbers"),
        ([f"t{i % 9}" for i in range(200)], pl.String, None),
        # missing cells are no text
        ([*[str(i) for i in range(150)], *[None] * 49, "x"], pl.Float64, "1 of 151 values is not a number"),
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


def read_again(problem, file):
    """Read a file as predictions do."""
    return read_inputs(problem.readings, read_table(file, as_text=True), notices=[])


def test_thousands_beside_decimal_commas_are_read_alike_in_training_and_later(tmp_path):
    people = [37 * i for i in range(60)]
    lines = "\n".join(
        f"{f'{n:,}'.replace(',', '.')};{1 + i % 9},{i:03};{'ab'[i % 2]}" for i, n in enumerate(people)
    )
    file = write(tmp_path, f"people;size;y\n0;80,25;b\n{lines}\n")
    problem = problem_of(file)
    assert problem.features["people"].to_list() == [0.0, *map(float, people)]
    assert problem.features["size"].to_list()[:3] == [80.25, 1.0, 2.001]
    assert read_again(problem, file).equals(problem.features)
    alone = write(tmp_path, "people;size\n1.998;1,054\n", "new.csv")  # without a sign of its own
    assert read_again(problem, alone).rows() == [(1998.0, 1.054)]


@pytest.mark.parametrize(
    "write_number",
    [lambda v: f"${v:,.2f}", lambda v: f"{v}.0 kg", lambda v: f"{v}.5 %", lambda v: f"{v:,}"],
    ids=["money", "unit", "percent", "thousands"],
)
@pytest.mark.parametrize("values", [range(980, 1040), [1000, 2000] * 30], ids=["numbers", "classes"])
def test_written_numbers_are_targets_of_test_files(write_number, values):
    cells = [write_number(v) for v in values]
    test = table(y=[*cells[:20], *cells[-10:]])
    problem = problem_of(rows(y=cells), test=test)
    target = problem.target.tolist()
    assert target[60:] == [*target[:20], *target[50:60]]


@bad_input
def test_wrong_names_are_answered_with_near_ones():
    frame = rows(Income=range(60))
    for name, near in (
        ("incme", "'Income'"),
        ("INCOME ", "'Income'"),
        ("zzz", "Its columns are 'x', 'y', 'Income'"),
    ):
        with pytest.raises(TableError, match=f"no column '{name}' for the target.*{near}"):
            problem_of(frame, name)
    with pytest.raises(TableError, match=r"no column 'site' for the group"):
        problem_of(frame, group="site")
    with pytest.raises(TableError, match=r"no column 'site' for the split-by"):
        problem_of(frame, split_by="site")
    with pytest.raises(TableError, match="cannot also be the group"):
        problem_of(frame, group="y")
    with pytest.raises(TableError, match=r"no column 'incom' for the id\. Did you mean 'Income'"):
        problem_of(frame, ids=["incom"])
    with pytest.raises(TableError, match="cannot also be the group, split-by, time or id"):
        problem_of(frame, ids=["y"])
    with pytest.raises(TableError, match="needs --group COLUMN"):
        problem_of(frame, group_as_input=True)
    with pytest.raises(TableError, match="cannot be both an id and an input"):
        problem_of(rows(g=["u", "v"] * 30), group="g", group_as_input=True, ids=["g"])
    with pytest.raises(TableError, match="task must be one of"):
        problem_of(frame, task="ranking")


@bad_input
def test_a_file_without_header(tmp_path):
    with pytest.raises(TableError, match="first line holds only numbers"):
        problem_of(write(tmp_path, "1,2.5,3\n" + "4,5,6\n" * 60), "y")


def test_every_column_is_listed_with_its_use():
    frame = rows(
        constant=[7] * 60,
        empty=[None] * 60,
        key=[f"id-{i}" for i in range(60)],
        number=range(100, 160),
        date=pl.Series(range(60)).cast(pl.Date),
        half=["u", "u", None, None] * 15,
        site=[i % 6 for i in range(60)],
        g=["u", "v"] * 30,
        who=range(60),
    )
    problem = problem_of(frame, group="g", split_by="site", ids=["who"])
    assert problem.kind_of == {"x": "number", "date": "date", "half": "category"}
    assert problem.features.dtypes == [pl.Float64, pl.Datetime("us"), pl.String]
    assert problem.ids == ("who", "key", "number")
    assert [use.name for use in problem.columns] == [name for name in frame.columns if name != "y"]
    said = {use.name: (use.kind, use.detail, use.hint) for use in problem.columns}
    assert said == {
        "x": ("number", "", ""),
        "constant": ("unused", "it is 7 in all rows", ""),
        "empty": ("unused", "all its values are missing", ""),
        "key": ("id", "identifier, not used", "--as key=category"),
        "number": ("id", "identifier, not used", "--as number=number"),
        "date": ("date", "year, month, day, day of week, days since 1970-01-01", ""),
        "half": ("category", "2 values; (missing) for 30 rows", ""),
        "site": ("unused", "rows of equal value stay together, 6 values", ""),
        "g": ("unused", "group, not an input", "--group-as-input"),
        "who": ("id", "identifier, not used", ""),
    }


def test_overrides():
    frame = rows(number=range(100, 160), k=[i % 5 for i in range(60)], z=[f"0{i % 9}" for i in range(60)])
    problem = problem_of(frame, as_={"number": "number", "k": "category", "z": "id"})
    assert problem.kind_of == {"x": "number", "number": "number", "k": "category"}
    assert problem.ids == ("z",)
    with pytest.raises(TableError, match=r"'k' cannot be read as 'categry'\. Did you mean 'category'"):
        problem_of(frame, as_={"k": "categry"})
    with pytest.raises(TableError, match=r"no column 'kk' for the --as option\. Did you mean 'k'"):
        problem_of(frame, as_={"kk": "number"})
    with pytest.raises(TableError, match="'y' is the target"):
        problem_of(frame, as_={"y": "number"})


def test_columns_that_only_look_like_identifiers_stay():
    frame = rows(unique=[i * i for i in range(60)], price=[0.37 * i for i in range(60)])
    assert problem_of(frame).features.columns == ["x", "unique", "price"]


def test_infinities_are_commented():
    problem = problem_of(rows(200, f=[float("inf"), 1.0, 2.0, 3.0] * 50))
    assert any("50 infinite values treated as missing" in n for n in problem.notices)
    assert problem.features["f"].null_count() == 50


@bad_input
def test_nothing_to_predict_from():
    with pytest.raises(TableError, match=r"No column is left.*'c' is not used: it is 1 in all rows"):
        problem_of(pl.DataFrame({"c": [1] * 60, "y": ["a", "b"] * 30}))
    with pytest.raises(TableError, match="frame has no column besides the target 'y'"):
        problem_of(pl.DataFrame({"y": ["a", "b"] * 30}))


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
            "In the target column 'y': 1 of 60 values is not a number, e.g. 'unkn",
        ),
        ([*map(str, range(54)), *"abcdef"], {}, "Class '0' of 'y' has 1 row,"),  # a tenth: no stray cells
        (["a"] * 60, {}, "only one class, 'a'"),
        ([2.5] * 60, {"task": "regression"}, "same value in all rows"),
        (["a", "b"] * 28 + ["rare"] * 4, {}, "Class 'rare' of 'y' has 4 rows, but 5 are needed"),
        ([0.1 * i for i in range(60)], {"task": "classification"}, "Or pass --task regression"),
        (
            [*map(float, range(59)), 1e308],
            {"task": "regression"},
            "value of 1e\\+308, whose square overflows",
        ),
        ([1e-200 * i for i in range(60)], {}, "differ by 5.9e-199 at most, whose square is zero"),
        ([datetime.date(2020, 1, 1 + i % 9) for i in range(60)], {}, "holds dates or times"),
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
    with pytest.raises(TableError, match="has 60 values, but at most 50 groups"):
        problem_of(rows(g=range(60)), group="g")
    with pytest.raises(TableError, match="has 1 groups of at least 10 rows"):
        problem_of(rows(g=["u"] * 55 + ["v"] * 5), group="g")


def test_groups():
    problem = problem_of(rows(g=["u", "v", None] * 18 + ["w"] * 6), group="g")
    assert "g" not in problem.features.columns
    assert set(problem.groups) == {"u", "v", "(missing)", ""}
    assert any("not judged separately: w." in n for n in problem.notices)
    assert "Group '(missing)': 18 rows without a value in 'g'." in problem.notices
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


def test_targets_with_separators_and_signs():
    values = [f"$ {1000 + 7 * i:,}" for i in range(60)]
    problem = problem_of(rows(y=values))
    assert problem.task == "regression"
    assert problem.target.tolist() == [1000.0 + 7 * i for i in range(60)]
    assert "Target 'y': thousands separators removed, in $." in problem.notices


def test_labels_beyond_int64():
    values = pl.Series([2**64 - 1, 2**64 - 2] * 30, dtype=pl.UInt64)
    problem = problem_of(rows(y=values), task="classification")
    assert problem.classes == [str(2**64 - 2), str(2**64 - 1)]


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
def test_targets_whose_logarithm_is_worth_a_try(values, candidate):
    assert problem_of(rows(y=values.tolist()), task="regression").log_target_candidate == candidate


def test_times_sort_the_rows():
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(days=int(i)) for i in np.arange(60) * 7 % 60]
    frame = rows(sold=days, mark=[0.1 * i * i for i in range(60)])
    problem = problem_of(frame, time="sold")
    assert problem.times.tolist() == [18262.0 + i for i in range(60)]
    order = np.argsort(np.arange(60) * 7 % 60)
    assert problem.features["mark"].to_list() == [frame["mark"][int(i)] for i in order]
    assert problem.target.tolist() == [frame["y"][int(i)] for i in order]
    assert "The rows of frame are sorted by 'sold'." in problem.notices
    assert problem.kind_of["sold"] == "date"
    assert problem_of(frame.sort("sold"), time="sold").digest() == problem.digest()
    assert problem_of(frame).times is None


def test_times_of_other_kinds():
    for values in (
        range(60),  # counts the rows: no input, but a time
        [f"{1 + i % 28:02d}/{1 + i // 28:02d}/2020" for i in range(60)],
        [2000 + i // 6 for i in range(60)],
        [f"{i},5" for i in range(60)],
    ):
        problem = problem_of(rows(t=values), time="t")
        assert (np.diff(problem.times) >= 0).all()
        assert len(np.unique(problem.times)) >= 10
    problem = problem_of(rows(70, t=[*range(60), *[None] * 10]), time="t")
    assert len(problem.target) == 60
    assert any("10 of 70 rows of frame have no time in 't'" in n for n in problem.notices)


@bad_input
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([7] * 60, "'t' has the same value in all rows, 7, but at least 3"),
        ([7, 8] * 30, "'t' has 2 different values, but at least 3"),
        (["soon", "later", "now"] * 20, "'t' holds neither dates nor numbers, e.g. 'soon'"),
        ([None] * 60, "The time column 't' is empty"),
        ([*range(40), *[None] * 20], "40 rows with a target and a time, but at least 50"),
    ],
)
def test_times_that_cannot_be_used(values, message):
    with pytest.raises(TableError, match=message):
        problem_of(rows(t=values), time="t")
    with pytest.raises(TableError, match="no column 'tt' for the time"):
        problem_of(rows(t=values), time="tt")


def table(name="test.csv", n=30, **columns):
    return Table(rows(n, **columns), name)


def test_rows_of_a_test_file_follow_and_are_read_alike():
    price = [f"{1 + i % 9},{100 + i}" for i in range(60)]
    problem = problem_of(rows(price=price, c=["u", "v"] * 30), test=table(price=[1234.5] * 30, c=["w"] * 30))
    assert problem.is_test.tolist() == [False] * 60 + [True] * 30
    assert problem.features["price"].to_list()[59:] == [6159.0, *[1234.5] * 30]
    assert problem.features["c"].to_list()[60:] == ["w"] * 30
    odd = table(price=["odd", *["7"] * 29], c=["u"] * 30, y=["a", "b", None] * 10)
    said = problem_of(rows(price=price, c=["u", "v"] * 30), test=odd).notices
    assert "test.csv: 10 of 30 rows have no target and are dropped." in said
    assert any(
        n.startswith("test.csv: Warning: column 'price': 1 of 20 values is not a number") for n in said
    )
    assert len(problem.target) == 90
    assert problem_of(rows()).is_test is None
    assert problem_of(rows()).digest() != problem_of(rows(), test=table()).digest()


@bad_input
def test_test_files_that_do_not_fit():
    frame = rows(a=[i * i for i in range(60)], b=[i**3 for i in range(60)], g=["u", "v"] * 30)
    with pytest.raises(TableError, match=r"test\.csv lacks 2 of the 4 inputs: 'a', 'b'"):
        problem_of(frame, test=table(g=["u", "v"] * 15))
    with pytest.raises(
        TableError, match=r"test\.csv has no column 'y', the target of frame. Did you mean 'Y'"
    ):
        problem_of(frame, test=Table(frame.rename({"y": "Y"}), "test.csv"))
    with pytest.raises(TableError, match=r"no column 'g', the group of frame"):
        problem_of(frame, group="g", test=Table(frame.drop("g"), "test.csv"))
    sites = frame.with_columns(g=pl.Series(range(60)) % 6)
    with pytest.raises(TableError, match=r"no column 'g', the split-by column of frame"):
        problem_of(sites, split_by="g", test=Table(frame.drop("g"), "test.csv"))
    with pytest.raises(TableError, match=r"test\.csv has 4 rows to test on, but at least 20"):
        problem_of(rows(), test=table(n=4))
    with pytest.raises(TableError, match=r"30 of 30 rows .* never saw: 'A', 'B'\. Training has 'a', 'b'"):
        problem_of(rows(), test=table(y=["A", "B"] * 15))


def test_labels_that_training_never_saw_are_dropped_with_a_warning():
    """Every method is wrong on them alike, so that they cannot tell one from another."""
    problem = problem_of(rows(), test=table(y=["a"] * 25 + ["c"] * 5))
    assert problem.is_test.sum() == 25
    assert problem.classes == ["a", "b"]
    (warning,) = [n for n in problem.notices if n.startswith("Warning")]
    assert "5 of 30 rows of test.csv have a 'y' that training never saw ('c'). They are dropped" in warning
    numbers = problem_of(rows(y=[0, 1] * 30), test=table(y=[0.0, 1.0, None] * 10))
    assert numbers.target.dtype == np.int64
    assert numbers.target[60:].tolist() == [0, 1] * 10


def test_groups_only_in_the_test_file():
    problem = problem_of(
        rows(g=["u", "v"] * 30), group="g", test=table(g=["u"] * 15 + ["w"] * 15)
    )  # judged are the test rows
    assert set(problem.groups[60:]) == {"u", "w"}
    assert any("Groups only in the test file: w. Training never sees them." in n for n in problem.notices)
    with pytest.raises(TableError, match="1 groups of at least 10 rows in the test file"):
        problem_of(rows(g=["u", "v"] * 30), group="g", test=table(g=["u"] * 30))


def test_target_rows_are_read_alike():
    wanted = Table(pl.DataFrame({"c": ["u", None], "x": ["1.5", ""], "other": [1, 2]}), "new.csv")
    problem = problem_of(rows(c=["u", "v"] * 30), target_rows=wanted)
    assert problem.target_rows.rows() == [(1.5, "u"), (None, "(missing)")]
    assert problem.target_rows.columns == problem.features.columns
    with pytest.raises(TableError, match=r"new\.csv has no column 'd'"):
        problem_of(rows(c=["u", "v"] * 30, d=["u", "v"] * 30), target_rows=wanted)


def test_test_rows_are_sorted_among_themselves():
    test = table(t=list(range(30, 0, -1)))
    problem = problem_of(rows(t=[2 * i for i in range(60)]), time="t", test=test)
    assert problem.times.tolist() == [*(2.0 * i for i in range(60)), *range(1, 31)]
    assert problem.target.tolist()[60:] == test.frame["y"].to_list()[::-1]


def test_text_of_frames_is_stripped_like_that_of_files(tmp_path):
    frame = rows(c=[" u ", "v", " "] * 20)
    frame.write_csv(tmp_path / "data.csv")
    problem = problem_of(frame)
    assert set(problem.features["c"]) == {"u", "v", "(missing)"}
    assert read_again(problem, tmp_path / "data.csv").equals(problem.features)


def test_decimals_with_fractions_are_no_codes():
    values = pl.Series(["101.25", "205.50", "333.75"] * 20).cast(pl.Decimal(10, 2))
    assert problem_of(rows(c=values)).kind_of["c"] == "number"


def test_times_of_day_of_frames_are_read_from_files(tmp_path):
    frame = rows(c=[datetime.time(i % 24, i, 30) for i in range(60)])
    frame.write_csv(tmp_path / "data.csv")  # with nine digits after the seconds
    problem = problem_of(frame)
    assert problem.features["c"][1] == pytest.approx(1 + 1 / 60 + 30 / 3600)
    again = read_again(problem, tmp_path / "data.csv")["c"].to_numpy()
    np.testing.assert_allclose(again, problem.features["c"].to_numpy(), rtol=1e-12)


def test_groups_are_the_same_as_whole_and_as_real_numbers():
    test = table(g=[1.0, 2.0, 1.0] * 10)
    problem = problem_of(rows(g=[1, 2] * 30), group="g", test=test)
    assert sorted(set(problem.groups)) == ["1", "2"]
    assert not any("Groups only in the test file" in notice for notice in problem.notices)
