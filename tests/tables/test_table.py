"""Tables are read as they are written: CSV, Parquet and frames; errors name the broken file."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from elliptica.tables.table import BUILT_IN, TableError, read_table
from table_cases import rows


def write(folder, text, name="data.csv"):
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separator_is_found(tmp_path, separator):
    lines = [separator.join(row) for row in (['"age, in years"', "name", "z"], ["1,5", '"b, c"', "3"])]
    lines = [line.replace("1,5", '"1,5"') for line in lines] if separator == "," else lines
    table = read_table(write(tmp_path, "\n".join(lines) + "\n"))
    assert table.frame.columns == ["age, in years", "name", "z"]
    assert table.frame.row(0) == ("1,5", "b, c", "3")


def test_cells_stay_text_and_gaps_are_missing(tmp_path):
    frame = read_table(write(tmp_path, "zip,b\n01234, x \nn/a,#DIV/0!\n ,y\n")).frame
    assert frame.rows() == [("01234", "x"), (None, None), (None, "y")]


def test_byte_order_mark_quotes_blank_lines_and_windows_line_ends(tmp_path):
    text = b'\xef\xbb\xbfa,b\r\n1,"two\nlines"\r\n\r\n2,x\r\n,\r\n\r\n'
    table = read_table(write(tmp_path, text))
    assert table.frame.columns == ["a", "b"]
    assert table.frame["b"].to_list() == ["two\nlines", "x", None]  # a row of empty cells is a row


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
            "s": ["a", None, "NA"],
            "b": [True, False, True],
            "mixed": [1, "a", None],
            "day": pd.to_datetime(["2020-01-02", None, "2020-01-03"]),
            "zone": pd.to_datetime(["2020-01-02"] * 3).tz_localize("Europe/Berlin"),
        }
    )
    before = frame.copy()
    read = read_table(frame).frame
    assert read["f"].to_list() == [1.5, None, 2.0]
    assert read["i"].to_list() == [1, None, 3]
    assert read["c"].to_list() == ["u", None, "v"]
    assert read["s"].to_list() == ["a", None, None]
    assert read["b"].to_list() == [True, False, True]
    assert read["mixed"].to_list() == ["1", "a", None]
    assert read["day"].dt.day().to_list() == [2, None, 3]
    assert read["zone"].dtype.time_zone == "Europe/Berlin"
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n\n",
        "a,b\n",
        "a,b,a\n1,2,3\n",
        "a,,\n1,2,3\n",
        "some text\nthat is no table\n",
        b"\x89PNG\r\n\x1a\n\0\0\0",
        "a,b\n1,\u00e9\n".encode("latin-1"),
        "a,b\n1,2\n".encode("utf-16"),
        b"PK\x03\x04\x14\0",
        b"\x1f\x8b\x08\0",
        "a,b\n1,2,3\n1,2\n",
        "a,b,c\n1,2,3\n\n1,2\n4,5,6\n",
        'a,b\n1,"x\n2,3\n',
        "a,b\n" + "x" * 200_000 + ",2\n",
        b"a,b\n" + b"1,2\n" * 50_000 + b"1,\xff\xfe\n",
        b"a,b\r1,2\r3,4\r",
    ],
    ids=lambda content: repr(content[:20]),
)
def test_files_that_are_no_tables(tmp_path, content):
    with pytest.raises(TableError, match=r"data\.csv"):
        read_table(write(tmp_path, content))
    with pytest.raises(TableError, match=r"data\.parquet"):
        read_table(write(tmp_path, content, "data.parquet"))


@pytest.mark.bad_input
def test_paths_that_are_no_files(tmp_path):
    for path in (tmp_path / "no.csv", tmp_path, "/dev/null", "diabets"):
        with pytest.raises(TableError, match="is not a file"):
            read_table(path)


@pytest.mark.parametrize(
    ("name", "shape", "label"),
    [("diabetes", (442, 11), 151.0), ("wine", (178, 14), "class_0"), ("digits", (1797, 65), 0)],
)
def test_tables_without_a_file(name, shape, label, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = read_table(name)
    assert (table.name, table.frame.shape) == (name, shape)
    assert table.frame[BUILT_IN[name]][0] == label
    write(tmp_path, "a,b\n1,2\n", name)  # a file of that name comes first
    assert read_table(name).frame.shape == (1, 2)


def test_limit_and_sample(tmp_path):
    frame = pl.DataFrame({"i": range(1000), "t": [str(i) for i in range(1000)]})
    frame.write_csv(tmp_path / "data.csv")
    frame.write_parquet(tmp_path / "data.parquet")
    samples = []
    for source in (tmp_path / "data.csv", tmp_path / "data.parquet", frame):
        with pytest.raises(TableError, match="1,000 rows"):
            read_table(source, max_rows=100)
        table = read_table(source, max_rows=100, sample=True, seed=3)
        assert table.is_sample
        samples.append(table.frame["i"].cast(pl.Int64).to_list())
    assert samples[0] == samples[1] == samples[2]
    assert len(set(samples[0])) == 100
    assert read_table(frame, max_rows=100, sample=True, seed=4).frame["i"].to_list() != samples[0]
    assert len(read_table(frame, max_rows=10**30).frame) == 1000


def test_a_name_with_brackets_is_no_pattern(tmp_path):
    """Browsers number downloads like this; as a pattern the name matches another file."""
    for ending in ("csv", "parquet"):
        for name, row in (("data[1]", ("1", "2")), ("data1", ("3", "4"))):
            frame = pl.DataFrame([row], schema=["a", "b"], orient="row")
            getattr(frame, f"write_{ending}")(tmp_path / f"{name}.{ending}")
        assert read_table(tmp_path / f"data[1].{ending}").frame.rows() == [("1", "2")]
