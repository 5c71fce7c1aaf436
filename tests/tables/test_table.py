"""Tables are read as they are: CSV, Parquet and frames; what is none is refused."""

import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import polars as pl
import pytest

from elliptica.tables.csv import TableError, read_dialect
from elliptica.tables.table import BUILT_IN, read_table
from table_cases import rows

bad_input = pytest.mark.bad_input


def write(folder, text, name="data.csv"):
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


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


def test_points_that_may_be_thousands_are_left_as_text_beside_decimal_commas(tmp_path):
    """As numbers, 1.234 would be smaller than 987."""
    file = write(tmp_path, "people;height\n987;1,5\n1.234;2,25\n")
    assert read_table(file).frame["people"].to_list() == ["987", "1.234"]
    alone = write(tmp_path, "people;c\n987;u\n1.234;v\n")
    assert read_table(alone).frame["people"].to_list() == [987.0, 1.234]
    assert read_table(alone, decimal_comma=True).frame["people"].to_list() == ["987", "1.234"]


@pytest.mark.parametrize("cell", ["n/a", "<NA>", "NaT", "#DIV/0!", "#NAME?"])
def test_missing_values_and_errors_of_other_programs(tmp_path, cell):
    frame = read_table(write(tmp_path, f"a,b\n1,x\n{cell},y\n3,{cell}\n")).frame
    assert frame.rows() == [(1, "x"), (None, "y"), (3, None)]


def test_commas_that_may_be_thousands_are_left_as_text(tmp_path):
    """The column is looked at as a whole later, so that there is no silent factor of a thousand."""
    for other, decimal_comma in (("1.5", False), ("1,5", True), ("x", False)):
        table = read_table(write(tmp_path, f"a;b\n1,234;{other}\n2,345;{other}\n"))
        assert table.decimal_comma == decimal_comma
        assert (table.frame["a"].dtype == pl.Float64) == decimal_comma


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


def test_parquet(tmp_path):
    frame = rows()
    frame.write_parquet(tmp_path / "data.parquet")
    assert read_table(tmp_path / "data.parquet").frame.equals(frame)


def test_pandas_frames_of_all_kinds():
    frame = pd.DataFrame(
        {
            "f": [1.5, np.nan, 2.0],
            "i": pd.array([1, None, 3], dtype="Int64"),
            "c": pd.Categorical(["u", None, "v"]),
            "s": ["a", None, "b"],
            "b": [True, False, True],
            "mixed": [1, "a", None],
            "day": pd.to_datetime(["2020-01-02", None, "2020-01-03"]),
            "zone": pd.to_datetime(["2020-01-02"] * 3).tz_localize("Europe/Berlin"),
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
    assert found["day"].dt.day().to_list() == [2, None, 3]
    assert isinstance(found["zone"].dtype, pl.Datetime)
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b\n", "no rows"),
        ("a,b,a\n1,2,3\n", "several columns named 'a'"),
        ("a,,\n1,2,3\n", "2 columns without a name"),
        ("some text\nthat is no table\n", "only one column"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "not a CSV file"),
        (b"\x01\x02\x03 a,b\n", "not a CSV file"),
        ("a,b\n1,\u00e9\n".encode("latin-1"), r"not in UTF-8: see line 2\..*iconv -f WINDOWS-1252"),
        ("a,b\n1,2\n".encode("utf-16"), r"is in UTF-16.*iconv -f UTF-16"),
        (b"PK\x03\x04\x14\0", "Excel workbook"),
        (b"\x1f\x8b\x08\0", "compressed by gzip"),
        (b"PAR1\x15\0", "ends in .parquet"),
        ("a,b\n1,2,3\n1,2\n", "Line 2 of data.csv has 3 cells, but the header has 2"),
        ("sep=;\na;b\n1;2\n", "names the separator for Excel.*tail -n"),
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


def test_codes_with_leading_zeros_and_huge_whole_numbers_stay_text(tmp_path):
    table = read_table(write(tmp_path, f"zip,zero,share,big\n01234,0,0.5,{10**20}\n10501,-0,0,7\n"))
    assert table.frame.dtypes == [pl.String, pl.Int64, pl.Float64, pl.String]
    assert table.frame["zip"].to_list() == ["01234", "10501"]


@pytest.mark.parametrize(
    ("name", "shape", "label"),
    [
        ("diabetes", (442, 11), 151.0),
        ("breast_cancer", (569, 31), "malignant"),
        ("wine", (178, 14), "class_0"),
        ("digits", (1797, 65), 0),
        ("iris", (150, 5), "setosa"),
    ],
)
def test_tables_without_a_file(name, shape, label, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = read_table(name)
    assert table.name == name
    assert table.frame.shape == shape
    assert table.frame[BUILT_IN[name]][0] == label
    if name == "diabetes":  # in the units of the measurements
        assert table.frame["age"][0] == 59
        assert "cholesterol" in table.frame.columns
    write(tmp_path, "a,b\n1,2\n", name)  # a file of that name comes first
    assert read_table(name).frame.shape == (1, 2)


@bad_input
def test_misspelt_names_of_tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TableError, match=r"diabets does not exist.*Did you mean 'diabetes'"):
        read_table("diabets")
    with pytest.raises(TableError, match="Tables that need no file: diabetes, breast_cancer, wine"):
        read_table("houses.csv")


@bad_input
def test_twenty_thousand_columns_are_refused_before_they_are_read(tmp_path, monkeypatch):
    names = ",".join(f"c{i}" for i in range(20_000))
    file = write(tmp_path, names + "\n" + (",".join(["1"] * 20_000) + "\n") * 30)
    frame = pl.read_csv(file)
    frame.write_parquet(tmp_path / "data.parquet")
    monkeypatch.setattr("elliptica.tables.table._collect", lambda *_: pytest.fail("read"))
    for source in (file, tmp_path / "data.parquet", frame):
        with pytest.raises(TableError, match="has 20,000 columns, but at most 10,000 are supported"):
            read_table(source)


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
    with pytest.raises(TableError, match="/dev/null is a pipe or a device"):
        read_table("/dev/null")


@bad_input
@pytest.mark.parametrize("source", [np.zeros((3, 2)), 7, {"a": [1]}])
def test_sources_that_are_no_frames(source):
    with pytest.raises(TableError, match="Expected a path, or a polars or pandas frame"):
        read_table(source)


@bad_input
def test_pandas_frame_with_equal_names():
    with pytest.raises(TableError, match="several columns named 'a'"):
        read_table(pd.DataFrame(np.zeros((2, 2)), columns=["a", "a"]))


def test_limit_and_sample(tmp_path):
    frame = pl.DataFrame({"i": range(1000), "t": [str(i) for i in range(1000)]})
    frame.write_csv(tmp_path / "data.csv")
    frame.write_parquet(tmp_path / "data.parquet")
    sources = [tmp_path / "data.csv", tmp_path / "data.parquet", frame]
    found = []
    for source in sources:
        with pytest.raises(TableError, match=r"1,000 rows, but at most 100 are read.*--sample"):
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
        from elliptica.tables.table import read_table, TableError
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


def test_a_header_longer_than_what_is_looked_at(tmp_path):
    header = ",".join(f"a long name of a column {i}" for i in range(4000))
    file = write(tmp_path, header + "\n" + ",".join(["1"] * 4000) + "\n")
    assert len(read_dialect(file).header) == 4000


@pytest.mark.parametrize("most", [2**31, sys.maxsize, 2**63, 10**30])
def test_any_maximum_of_rows_is_counted_with(tmp_path, most):
    """Python counts only up to a size of its own."""
    file = tmp_path / "a.csv"
    file.write_text("a,b\n1,2\n3,4\n")
    assert len(read_table(file, max_rows=most).frame) == 2


@bad_input
def test_paths_that_lead_nowhere(tmp_path):
    """The system refuses such names, and Python has an error of its own for links in a circle."""
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    with pytest.raises(TableError, match=r"loop\.csv cannot be used \(its links lead in a circle\)"):
        read_table(tmp_path / "loop.csv")
    with pytest.raises(TableError, match=r"xxx\.\.\. cannot be used \(File name too long\)"):
        read_table("x" * 5000)


def test_a_name_with_brackets_is_no_pattern(tmp_path):
    """Browsers number downloads like this; as a pattern the name matches another file."""
    for ending, write in (("csv", "write_csv"), ("parquet", "write_parquet")):
        getattr(pl.DataFrame({"a": [1], "b": [2]}), write)(tmp_path / f"data[1].{ending}")
        getattr(pl.DataFrame({"a": [3], "b": [4]}), write)(tmp_path / f"data1.{ending}")
        assert read_table(tmp_path / f"data[1].{ending}").frame.rows() == [(1, 2)]


@pytest.mark.bad_input
@pytest.mark.parametrize("middle", [b"\r\r\n", b"\n\r"])
def test_line_ends_that_lose_rows(middle, tmp_path):
    """Python's csv module writes \\r\\r\\n to a file in text mode on Windows: the first row was lost."""
    (tmp_path / "a.csv").write_bytes(middle.join([b"a,b,y", b"1,2,u", b"3,4,v", b"5,6,w", b""]))
    with pytest.raises(TableError, match="depending on which line ends"):
        read_table(tmp_path / "a.csv")
