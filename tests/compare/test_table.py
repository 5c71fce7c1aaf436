"""`elliptica.compare` reads tables as they are, says what it decides, and refuses what it cannot use."""

import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import polars as pl
import pytest

from elliptica.compare.csv import TableError, read_dialect
from elliptica.compare.problem import MIN_ROWS, TableProblem, make_problem
from elliptica.compare.protocol import split_rows
from elliptica.compare.table import Table, read_table

bad_input = pytest.mark.bad_input


def write(folder, text, name="data.csv"):
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def rows(n=60, **columns):
    """A frame with a useful input, two classes, and what is asked for."""
    base = {"x": [0.5 * (i % 7) for i in range(n)], "y": ["a", "b"] * (n // 2)}
    return pl.DataFrame({**base, **columns})


def problem_of(frame, target="y", **options):
    return make_problem(read_table(frame), target, **options)


# files


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separator_is_found(tmp_path, separator):
    lines = [separator.join(row) for row in (["age", "name, with comma", "z"], ["1", '"b, c"', "3"])]
    header = lines[0].replace("name, with comma", '"name, with comma"')
    table = read_table(write(tmp_path, f"{header}\n{lines[1]}\n"))
    assert table.frame.columns == ["age", "name, with comma", "z"]
    assert table.frame.row(0) == (1, "b, c", 3)


def test_decimal_commas(tmp_path):
    table = read_table(write(tmp_path, "a;b\n1,5;x\n-2,25;y\n"))
    assert table.frame["a"].to_list() == [1.5, -2.25]


def test_points_win_over_commas(tmp_path):
    """With 1.5 in the file, 1,234 is no decimal number, and no silent factor of a thousand either."""
    table = read_table(write(tmp_path, "a;b\n1,234;1.5\n2,345;2.5\n"))
    assert table.frame["a"].dtype == pl.String
    assert table.frame["b"].to_list() == [1.5, 2.5]


def test_byte_order_mark_quotes_blank_lines_and_windows_line_ends(tmp_path):
    text = b'\xef\xbb\xbfa,b\r\n1,"two\nlines"\r\n\r\n2,x\r\n'
    table = read_table(write(tmp_path, text))
    assert table.frame.columns == ["a", "b"]
    assert table.frame["b"].to_list() == ["two\nlines", "x"]


def test_types_and_missing_values(tmp_path):
    table = read_table(write(tmp_path, "i,f,t,m\n1,1,a,\n ,2.5,NA,?\n3,1e3,true,NaN\n"))
    assert table.frame.dtypes == [pl.Int64, pl.Float64, pl.String, pl.Int64]
    assert table.frame["i"].to_list() == [1, None, 3]
    assert table.frame["t"].to_list() == ["a", None, "true"]
    assert table.frame["m"].null_count() == 3


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


def test_parquet(tmp_path):
    frame = rows()
    frame.write_parquet(tmp_path / "data.parquet")
    assert read_table(tmp_path / "data.parquet").frame.equals(frame)


def test_csv_and_frame_give_the_same_problem(tmp_path):
    frame = rows(c=["u", None, "v"] * 20, k=list(range(5)) * 12)
    frame.write_csv(tmp_path / "data.csv")
    one, two = problem_of(tmp_path / "data.csv"), problem_of(frame)
    assert one.digest() == two.digest()


def test_pandas_frames_of_all_kinds():
    frame = pd.DataFrame(
        {
            "f": [1.5, np.nan, 2.0],
            "i": pd.array([1, None, 3], dtype="Int64"),
            "c": pd.Categorical(["u", None, "v"]),
            "s": ["a", None, "b"],
            "b": [True, False, True],
            "mixed": [1, "a", None],
        }
    )
    before = frame.copy()
    found = read_table(frame).frame
    assert found["f"].to_list() == [1.5, None, 2.0]
    assert found["i"].to_list() == [1, None, 3]
    assert found["c"].to_list() == ["u", None, "v"]
    assert found["s"].to_list() == ["a", None, "b"]
    assert found["b"].to_list() == [True, False, True]
    assert found["mixed"].to_list() == ["1", "a", None]
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b\n", "no rows"),
        ("a,b,a\n1,2,3\n", "several columns of the name 'a'"),
        ("a,,\n1,2,3\n", "2 columns without a name"),
        ("some text\nthat is no table\n", "one column only"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "not a CSV file"),
        (b"\x01\x02\x03 a,b\n", "not a CSV file"),
        ("a,b\n1,\u00e9\n".encode("latin-1"), r"not in UTF-8: see line 2\..*iconv -f WINDOWS-1252"),
        ("a,b\n1,2\n".encode("utf-16"), r"is in UTF-16.*iconv -f UTF-16"),
        (b"PK\x03\x04\x14\0", "Excel workbook"),
        (b"\x1f\x8b\x08\0", "compressed by gzip"),
        (b"PAR1\x15\0", "ends in .parquet"),
        ("a,b\n1,2,3\n1,2\n", "Line 2 of data.csv has 3 cells, but the header has 2"),
        ("a,b,c\n1,2,3\n\n1,2\n4,5,6\n7,8,9\n", "Line 4 of data.csv has 2 cells, but the header has 3"),
    ],
)
@bad_input
def test_files_that_are_no_tables(tmp_path, content, message):
    with pytest.raises(TableError, match=message):
        read_table(write(tmp_path, content))


@bad_input
@pytest.mark.parametrize(
    "content",
    [
        "a,b\n" + "x" * 200_000 + ",2\n",
        "a,b\n" + "1,2\n" * 50_000 + "x" * 200_000 + ",2\n",  # beyond what is looked at first
        "a,b\n" + "x;" * 100_000 + ",2\n",  # another separator would split it
    ],
    ids=["first", "far down", "other separator"],
)
def test_a_cell_that_is_too_long(tmp_path, content):
    with pytest.raises(TableError, match=r"cell of more than 131,072 characters.*\.parquet"):
        read_table(write(tmp_path, content))


def test_a_long_line_of_short_cells_is_no_long_cell(tmp_path):
    """Only a wrong separator takes the line for one cell."""
    header = ",".join(f"a long name of a column {i}" for i in range(9000))
    file = write(tmp_path, f"{header}\n{','.join(['1'] * 9000)}\n")
    assert len(header) > 131_072
    assert len(read_dialect(file).header) == 9000


@bad_input
def test_line_ends_of_old_macs(tmp_path):
    with pytest.raises(TableError, match=r"carriage returns only.*LF or CRLF"):
        read_table(write(tmp_path, b"a,b\r1,2\r3,4\r"))
    with pytest.raises(TableError, match=r"data\.csv.*LF or CRLF"):
        read_table(write(tmp_path, b"a,b\r1,2\r3,4\n5,6\n"))


def test_leading_zeros_are_pointed_out(tmp_path):
    table = read_table(write(tmp_path, "zip,zero,share,y\n01234,0,0.5,1\n10501,-0,0,2\n"))
    (notice,) = table.notices
    assert "Column 'zip' is read as numbers" in notice
    assert "'01234'" in notice
    assert table.frame["zip"].to_list() == [1234, 10501]


@bad_input
def test_junk_far_down_is_found(tmp_path):
    """Beyond the part of the file that is looked at first."""
    good = "a,b\n" + "1,2\n" * 50_000
    with pytest.raises(TableError, match=r"data\.csv is not in UTF-8: see line 50002"):
        read_table(write(tmp_path, good.encode() + b"1,\xff\xfe\n"))


@bad_input
def test_a_broken_parquet_file(tmp_path):
    with pytest.raises(TableError, match="cannot be read as Parquet"):
        read_table(write(tmp_path, b"PAR1 but not really", "data.parquet"))


@bad_input
def test_missing_file_and_folder(tmp_path):
    with pytest.raises(TableError, match="does not exist"):
        read_table(tmp_path / "no.csv")
    with pytest.raises(TableError, match="is a folder"):
        read_table(tmp_path)


@bad_input
@pytest.mark.parametrize("source", [np.zeros((3, 2)), 7, {"a": [1]}])
def test_sources_that_are_no_frames(source):
    with pytest.raises(TableError, match="Expected a path, or a polars or pandas frame"):
        read_table(source)


@bad_input
def test_pandas_frame_with_equal_names():
    with pytest.raises(TableError, match="several columns of the name 'a'"):
        read_table(pd.DataFrame(np.zeros((2, 2)), columns=["a", "a"]))


# length


def test_limit_and_sample(tmp_path):
    frame = pl.DataFrame({"i": range(1000), "t": [str(i) for i in range(1000)]})
    frame.write_csv(tmp_path / "data.csv")
    frame.write_parquet(tmp_path / "data.parquet")
    sources = [tmp_path / "data.csv", tmp_path / "data.parquet", frame]
    found = []
    for source in sources:
        with pytest.raises(TableError, match=r"1,000 rows; at most 100 are read.*--sample"):
            read_table(source, max_rows=100)
        table = read_table(source, max_rows=100, sample=True, seed=3)
        assert "random sample of 100 of 1,000 rows" in table.notices[0]
        found.append(table.frame["i"].to_list())
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 100
    assert read_table(frame, max_rows=100, sample=True, seed=4).frame["i"].to_list() != found[0]
    assert len(read_table(frame, max_rows=1000).frame) == 1000


@pytest.mark.slow
def test_ten_million_rows_are_refused_without_being_loaded(tmp_path):
    """Loaded, ten million rows of two columns of text take 320 megabytes."""
    file = tmp_path / "long.csv"
    with file.open("wb") as handle:
        handle.write(b"a,b\n")
        for _ in range(100):
            handle.write(b"1,2\n" * 100_000)
    code = f"""
        import resource
        import polars as pl
        from elliptica.compare.table import read_table, TableError
        small = {str(tmp_path / "small.csv")!r}
        open(small, "w").write("a,b\\n" + "1,2\\n" * 1000)
        read_table(small)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            read_table({str(file)!r})
        except TableError as error:
            print(error)
        print("megabytes", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "10,000,000 rows" in output
    assert int(output.split("megabytes")[1]) < 160


# columns


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


# splits


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


def test_a_group_with_an_empty_name_is_a_group():
    problem = problem_of(rows(g=["", "u", "v"] * 20), group="g")
    assert set(problem.groups) == {"(empty)", "u", "v"}


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


def test_a_header_longer_than_what_is_looked_at(tmp_path):
    header = ",".join(f"a long name of a column {i}" for i in range(4000))
    file = write(tmp_path, header + "\n" + ",".join(["1"] * 4000) + "\n")
    assert len(read_dialect(file).header) == 4000
