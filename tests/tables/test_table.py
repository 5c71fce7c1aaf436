"""Tables are read as they are written: CSV, Parquet and frames; errors name the broken file."""

import datetime
import json
import shlex
import zipfile

import numpy as np
import pandas as pd
import polars as pl
import pytest

from elliptica.tables.table import (
    BUILT_IN,
    Column,
    Table,
    TableError,
    find_date,
    find_number,
    read_inputs,
    read_table,
    recognise,
)
from table_cases import problem_of, rows


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


@pytest.mark.parametrize(
    ("encoding", "n_notices"), [("utf-8", 0), ("utf-8-sig", 0), ("utf-16", 0), ("latin-1", 1), ("cp1252", 1)]
)
def test_encodings_line_ends_and_signs_of_inches(tmp_path, encoding, n_notices):
    for end in ("\n", "\r\n", "\r"):
        text = end.join(["größe;b", '5" Rohr;"two\nlines"', "", 'é, "x";2', ";", "", ""])
        table = read_table(write(tmp_path, text.encode(encoding)))
        assert table.frame.columns == ["größe", "b"]
        assert table.frame.rows() == [('5" Rohr', "two\nlines"), ('é, "x"', "2"), (None, None)]
        assert len(table.notices) == n_notices


def test_first_sheet_of_a_spreadsheet(tmp_path):
    """With a blank row, and a text after the rows from which types are usually guessed."""
    space = "http://schemas.openxmlformats.org"
    main, links = f"xmlns='{space}/spreadsheetml/2006/main'", f"{space}/officeDocument/2006/relationships"
    texts = "<c t='str'><v>{0}</v></c><c><v>{0}</v></c>"
    cells = f"<row>{texts.format('x')}<c t='str'><v>n</v></c></row>"
    cells += "".join(f"<row>{texts.format(n)}<c><v>{n}</v></c></row>" for n in range(1500))
    cells += "<row/><row><c t='str'><v>late</v></c><c t='str'><v>late</v></c></row>"
    sheets = "".join(f"<sheet name='{name}' sheetId='1' r:id='worksheet'/>" for name in ("One", "Two"))
    parts = {
        "workbook": f"<workbook {main} xmlns:r='{links}'><sheets>{sheets}</sheets></workbook>",
        "worksheet": f"<worksheet {main}><sheetData>{cells}</sheetData></worksheet>",
    }
    ties = "".join(f"<Relationship Id='{a}' Type='{links}/{a}' Target='{a}.xml'/>" for a in parts)
    ties = f"<Relationships xmlns='{space}/package/2006/relationships'>{ties}</Relationships>"
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as book:
        book.writestr("_rels/.rels", ties.replace("/workbook'", "/officeDocument'"))
        for name, content in {**parts, "_rels/workbook": ties}.items():
            book.writestr(f"{name}.xml{'.rels' * (content is ties)}", content)
    table = read_table(tmp_path / "a.xlsx")
    assert table.frame.shape == (1501, 3)
    assert table.frame.row(-1) == ("late", "late", None)
    assert table.frame.dtypes[2] == pl.Int64  # as the same table in a CSV file
    assert len(table.notices) == 1


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
    assert read["zone"].dtype.time_zone == "UTC"
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
        b"PK\x03\x04\x14\0",
        b"\x1f\x8b\x08\0",
        "a,b\n1,2,3\n1,2\n",
        "a,b,c\n1,2,3\n\n1,2\n4,5,6\n",
        'a,b\n1,"x\n2,3\n',
        "a,b\n" + "x" * 200_000 + ",2\n",
        b"a,b\n1,\x81\n",  # neither UTF-8 nor Windows-1252
        'a,b\n"x" y,1\n',
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
        table = read_table(source, max_rows=100, seed=3)
        assert table.is_sample
        samples.append(table.frame["i"].cast(pl.Int64).to_list())
    assert samples[0] == samples[1] == samples[2]
    assert len(set(samples[0])) == 100
    assert read_table(frame, max_rows=100, seed=4).frame["i"].to_list() != samples[0]
    assert len(read_table(frame, max_rows=10**30).frame) == 1000


def test_a_name_with_brackets_is_no_pattern(tmp_path):
    """Browsers number downloads like this; as a pattern the name matches another file."""
    for ending in ("csv", "parquet"):
        for name, row in (("data[1]", ("1", "2")), ("data1", ("3", "4"))):
            frame = pl.DataFrame([row], schema=["a", "b"], orient="row")
            getattr(frame, f"write_{ending}")(tmp_path / f"{name}.{ending}")
        assert read_table(tmp_path / f"data[1].{ending}").frame.rows() == [("1", "2")]


N = 200
WORDS = [f"a house near lake {i % 120}" for i in range(N)]


def column_of(cells, name="c", **options):
    """The notation of a column that must be an input."""
    column = recognise(pl.Series(name, cells), **options)[1]
    assert column is not None
    return column


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["3,655", "812", "1,200"], [3655, 812, 1200]),
        (["3,655", "12,5", "1,2"], [3.655, 12.5, 1.2]),  # 12,5 can only be a decimal comma
        (["3,655", "0,123"], [3.655, 0.123]),  # no thousand begins with zero
        (["1.234,56", "7,5"], [1234.56, 7.5]),
        (["1,234.56", "7.5"], [1234.56, 7.5]),
        (["1.234.567", "12"], [1234567, 12]),
        (["1 234 567", "-12.5"], [1234567, -12.5]),
        (["1'234", "1'234'567.5"], [1234, 1234567.5]),
        (["$1,200", "-$3", "$ 4.5"], [1200, -3, 4.5]),
        (["1.200,50 €", "3 €"], [1200.5, 3]),
        (["12%", "3.5 %"], [12, 3.5]),
        (["104,62 m²", "80 m²", "1.204,5 m²"], [104.62, 80, 1204.5]),
        (["90 km/h", "1,204 km/h"], [90, 1204]),
        (["1e3", "2.5e-1", "+.5", "7."], [1000, 0.25, 0.5, 7]),
    ],
)
def test_numbers_in_one_notation(cells, numbers):
    column, share = find_number(pl.Series("c", cells))
    assert share == 1
    assert column.read(pl.Series("c", cells)).to_list() == numbers
    for i, cell in enumerate(cells):  # alone as beside others
        assert column.read(pl.Series("c", [cell])).to_list() == numbers[i : i + 1]


@pytest.mark.parametrize(
    "cells",
    [["$5", "€5"], ["12%", "0.12"], ["1,5,3", "2"], ["5 kg", "3"], ["1 day", "2 days"], ["5", "inf"]],
    ids=" ".join,
)
def test_cells_in_several_notations_are_categories(cells):
    assert column_of(cells * 9).kind == "category"


@pytest.mark.parametrize(
    ("cells", "form", "zone"),
    [
        (["2006-01-31", "2006-12-01 12:30", "2006-12-01T12:30:01.5"], "ISO 8601", False),
        (["2006-01-31T12:30:00Z", "2006-01-31 12:30:00+02:00"], "ISO 8601", True),
        (["31/01/2006", "01/02/2006"], "%d/%m/%Y", False),
        (["01/31/2006", "01/02/2006"], "%m/%d/%Y", False),
        (["31.01.2006", "1.2.2006"], "%d.%m.%Y", False),
        (["3 Jan 2006", "12 Feb 2007"], "%d %b %Y", False),
        (["31/01/06 14:30", "01/02/06 9:00"], "%d/%m/%y %H:%M", False),
        (["1/2/2006 2:30 PM", "1/31/2006 11:00 am"], "%m/%d/%Y %I:%M %p", False),
        (["31.01.06", "01.02.06"], "%d.%m.%y", False),
    ],
)
def test_dates_in_one_format(cells, form, zone):
    column = find_date(pl.Series(cells))
    assert (column.format, column.zone) == (form, zone)
    assert column.read(pl.Series(cells)).dt.year().to_list() == [2006] * (len(cells) - 1) + (
        [2007] if "Feb" in cells[-1] else [2006]
    )


@pytest.mark.parametrize("form", ["%m/%d/%y", "%d.%m.%y", "%d-%b-%y"])
def test_years_of_two_digits_of_two_centuries_are_no_dates(form):
    """Otherwise 1946 would be 2046, after 1994."""
    days = [datetime.date(year, 5, 17).strftime(form) for year in range(1946, 1995)]
    assert find_date(pl.Series(days)) is None
    assert find_date(pl.Series(days[24:])).format == form


def test_time_zones_are_converted_to_utc():
    cells = ["2006-01-31T12:30:00Z", "2006-01-31T12:30:00+02:00"]
    read = find_date(pl.Series(cells)).read(pl.Series(cells))
    assert read.to_list() == [datetime.datetime(2006, 1, 31, hour, 30) for hour in (12, 10)]
    typed = pl.Series("c", [datetime.datetime(2020, 1, 1)] * 3).dt.replace_time_zone("Europe/Berlin")
    assert find_date(typed).read(typed)[0] == datetime.datetime(2019, 12, 31, 23)


@pytest.mark.parametrize(
    ("name", "values", "kind", "hint"),
    [
        ("id", [i * i for i in range(N)], "id", "--as id=number"),
        ("PassengerId", [3 * i for i in range(N)], "id", "--as PassengerId=number"),
        ("Unnamed: 0", [3 * i for i in range(N)], "id", "--as 'Unnamed: 0=number'"),
        ("customer_id", [i // 3 for i in range(N)], "id", "--as customer_id=number"),
        ("store_id", [i % 9 for i in range(N)], "category", "--as store_id=number"),
        ("area", [i * i for i in range(N)], "number", "--as area=id"),  # all differ: asked, but used
        ("area", [i * i for i in range(N - 1)] + [0], "number", ""),
        ("zip", [10_000 + i // 2 for i in range(N)], "number", "--as zip=category"),
        ("n", list(range(5, N + 5)), "id", "--as n=number"),
        ("n", [str(i) for i in range(N)], "id", "--as n=number"),
        ("tracking", [10**16 + 7919 * i for i in range(N)], "id", "--as tracking=number"),
        ("parcel", [str(10**25 + 7919 * (i % 20)) for i in range(N)], "category", "--as parcel=number"),
        ("who", [f"X{i:03d}" for i in range(N)], "id", "--as who=category"),
        ("title", WORDS, "text", "--as title=id"),
        ("town", [f"t{i % 80}" for i in range(N)], "text", "--as town=id"),  # different in 40 % of the rows
        ("town", [f"t{i % 30}" for i in range(N)], "category", ""),
        ("town", [f"t{i}" if i < 30 else "t" for i in range(N)], "category", "--as town=text"),
        ("minutes", ["00", "05", "10", "15"] * 50, "category", ""),
        ("region", [i % 7 for i in range(N)], "category", "--as region=number"),
        ("rooms", [1 + i % 7 for i in range(N)], "number", ""),
        ("weight", [f"{i % 7} kg" for i in range(N)], "number", "--as weight=category"),
        ("day", [20060101 + i % 28 for i in range(N)], "date", ""),
        ("ok", [True, False] * 100, "category", ""),
        ("ok", ["True", "FALSE"] * 100, "category", ""),
        ("one", [7] * N, "unused", ""),
        ("none", [None] * N, "unused", ""),
        ("lists", [[1], [2]] * 100, "unused", ""),
    ],
)
def test_rules(name, values, kind, hint):
    use, column = recognise(pl.Series(name, values))
    assert (use.kind, use.hint) == (kind, hint)
    assert (column is None) == (kind in ("id", "unused"))
    if hint:  # what the hint says works, and is not said again
        option, _, wanted = shlex.split(hint)[1].partition("=")
        again = recognise(pl.Series(name, values), as_=wanted)[0]
        assert (again.name, again.kind, again.hint) == (option, wanted, "")


@pytest.mark.parametrize("form", ["", "%Y-%m-%d", "%d.%m.%y", "%d %b %Y", "%m/%d/%Y %H:%M"])
def test_a_text_among_numbers_or_dates_is_named(form):
    """One among dates made an identifier of the column."""
    days = [datetime.datetime(2019, 11, 5, 8) + datetime.timedelta(days=i) for i in range(99)]
    texts = [day.strftime(form) if form else str(day.timestamp()) for day in days]
    cells, kind = pl.Series("day", [*texts, "soon"]), "date" if form else "number"
    use, column = recognise(cells)
    assert (column.kind, use.hint) == ("text", f"--as day={kind}")
    assert "'soon'" in use.detail
    with pytest.raises(TableError, match="'day', row 100"):
        recognise(cells, as_=kind)


def test_categories_that_are_joined_are_counted():
    """Beyond 50 categories, and for those in fewer than 5 rows."""
    many = recognise(pl.Series("store_id", [i % 40 if i < 300 else 40 + i % 7 for i in range(310)]))[0]
    assert many.kind == "category"
    assert "the 7 rarest as one" in many.detail
    gaps = recognise(pl.Series("site", ["a", "b", "c", "d", None] * 9))[0]
    assert gaps.detail == "4 values, 9 missing"


def test_overrides():
    def read(values, as_):
        cells = pl.Series("c", values)
        return recognise(cells, as_=as_)[1].read(cells).to_list()

    assert read([1, 2, 3], "category") == ["1", "2", "3"]
    assert read([1.0, 2.5, None], "category") == ["1", "2.5", "(missing)"]
    assert read(["a", None], "text") == ["a", ""]
    assert read([20060131, 20060201], "date")[1] == datetime.datetime(2006, 2, 1)
    for values, as_ in ((["cheap", "dear"] * 9, "number"), (["cheap", "dear"] * 9, "date")):
        with pytest.raises(TableError, match="'c'"):
            recognise(pl.Series("c", values), as_=as_)


def test_decimal_commas_of_a_file_decide_on_points(tmp_path):
    """1.234 is a thousand where another column has decimal commas, also in rows of its own."""
    for commas, first in ((False, 1.1), (True, 1100.0)):
        lines = [f"{1 + i % 9}.{100 + i};{i * i}{',5' * commas};{'ab'[i % 2]}" for i in range(60)]
        (tmp_path / "a.csv").write_text("people;size;y\n" + "\n".join(lines))
        problem = problem_of(tmp_path / "a.csv")
        assert problem.features["people"][0] == first
        alone = Table(pl.DataFrame({"people": ["2.345"], "size": ["7"]}), "alone")
        assert read_inputs(problem.inputs, alone)["people"][0] == 2345 * first / 1100


MESSY = {
    "price": [f"€ {1000 + 37 * i:,}" for i in range(60)],
    "sold": [f"{1 + i % 28:02d}.{1 + i % 12:02d}.200{i % 5}" for i in range(60)],
    "seen": [datetime.datetime(2020, 1, 1, i % 24) for i in range(60)],
    "zip": [f"0{100 + i % 3}" for i in range(60)],
    "region": [i % 4 for i in range(60)],
    "ok": [i % 4 == 0 for i in range(60)],
    "note": [f"number {i} of the remarks about it" for i in range(60)],
    "area": [float(i * i) for i in range(60)],
}


@pytest.mark.slow
def test_another_table_is_read_alike(tmp_path):
    """From a frame, from CSV, row by row, and after a trip through JSON: the same inputs."""
    frame = rows(**MESSY)
    problem = problem_of(frame)
    kinds = ["number", "number", "date", "date", *["category"] * 3, "text", "number"]
    assert list(problem.kind_of.values()) == kinds
    columns = [Column.from_json(each) for each in json.loads(json.dumps(problem.reading()))["columns"]]
    assert columns == list(problem.inputs)
    frame.write_csv(tmp_path / "a.csv")
    for table in (read_table(frame), read_table(tmp_path / "a.csv")):
        assert read_inputs(columns, table).equals(problem.features)
        parts = [read_inputs(columns, Table(row, "row")) for row in table.frame.iter_slices(1)]
        assert pl.concat(parts).equals(problem.features)
    assert not any(column.is_new(problem.features[column.name]).any() for column in columns)


# ---- evidence.md 11: errors that came from a notation that differs between two files


@pytest.mark.parametrize(
    ("trained", "cells"),
    [
        pytest.param(["2006-01-31T12:30Z", "2006-02-01T12:30Z"], ["2006-01-31T12:30"], id="S6 no zone"),
        pytest.param(["2006-01-31T12:30", "2006-02-01T12:30"], ["2006-01-31T12:30Z"], id="S6 zone"),
        pytest.param(["5%", "7%"], ["0.05"], id="S7 share"),
        pytest.param(["5%", "7%"], [0.05], id="S7 number"),
        pytest.param(["$5", "$7"], ["€5"], id="S7 currency"),
        pytest.param(["5", "7"], ["5%"], id="S7 percent"),
        pytest.param(["1.5", "2.5"], ["2.5", "1,5"], id="S8 comma"),
        pytest.param(["1,5", "2,25"], ["1.234"], id="S8 point"),
        pytest.param(["31/01/2006", "01/02/2006"], ["01/31/2006"], id="month first"),
        pytest.param([1.5, 2.5], [float("inf")], id="infinite"),
        pytest.param([1.5, 2.5], ["much"], id="text"),
        pytest.param(["00", "05"], [5], id="lost zeros"),
    ],
)
def test_cells_that_do_not_fit_are_named(trained, cells):
    column = column_of(trained * 9)
    with pytest.raises(TableError, match=rf"'c', row {len(cells)}:"):
        column.read(pl.Series("c", cells))


def test_a_zone_is_not_taken_from_frames_either():
    day = pl.Series("c", [datetime.datetime(2020, 1, i) for i in range(1, 9)])
    berlin = day.dt.replace_time_zone("Europe/Berlin")
    for trained, other in ((day, berlin), (berlin, day)):
        with pytest.raises(TableError, match="'c', row 1:"):
            find_date(trained).read(other)
    tokyo = berlin.dt.convert_time_zone("Asia/Tokyo")
    assert find_date(berlin).read(tokyo).equals(find_date(berlin).read(berlin))


def test_whole_numbers_above_2_to_53_stay_apart(tmp_path):
    """S2: as category, group or split they must not merge, from frames and from files."""
    many = [2**53 + i % 6 for i in range(60)]
    frame = rows(parcel=many)
    frame.write_csv(tmp_path / "a.csv")
    for source in (frame, tmp_path / "a.csv"):
        assert problem_of(source).features["parcel"].n_unique() == 6
        assert len(set(problem_of(source, split_by="parcel").blocks)) == 6
        assert len(set(problem_of(source, group="parcel").groups)) == 6
        target = problem_of(source, "parcel", task="classification")
        assert target.classes == sorted(set(many))
    column = problem_of(frame).inputs[-1]
    assert column.read(pl.Series("parcel", [str(2**53 + 1)])).to_list() == [str(2**53 + 1)]
    with pytest.raises(TableError, match="row 1"):  # a float has lost the last digit
        column.read(pl.Series("parcel", [float(2**53 + 1)]))


def test_a_cell_is_read_without_the_others():
    """S8: "1,234" is 1234 in a column of thousands, whatever the other rows of a new file hold."""
    column = column_of(["1,234", "987", "2,500"])
    assert column.read(pl.Series("c", ["1,234"])).to_list() == [1234.0]
    with pytest.raises(TableError, match="row 2"):
        column.read(pl.Series("c", ["1,234", "2,5"]))


def test_new_values():
    days = [datetime.datetime(2020, 1, 1 + i % 28, 12) for i in range(60)]
    problem = problem_of(rows(c=["u", "v"] * 30, d=days))
    later = [days[27], datetime.datetime(2020, 1, 28, 13), None]
    new = pl.DataFrame({"x": [1.0, 99.0, None], "c": ["w", "u", None], "d": later})
    inputs = read_inputs(problem.inputs, Table(new, "new"))
    columns = [Column.from_json(json.loads(json.dumps(state))) for state in problem.reading()["columns"]]
    beyond = [column.is_new(inputs[column.name]).to_list() for column in columns]
    assert beyond == [[False, True, False], [True, False, True], [False, True, False]]
    with pytest.raises(TableError, match="'c'"):
        read_inputs(problem.inputs, Table(new.drop("c"), "new"))


def test_a_year_of_two_digits_does_not_fit_one_of_four():
    """Read as the year 20 it would be a wrong number without a word."""
    dates = pl.Series("d", [f"{month:02}/25/2020" for month in range(1, 13)])
    assert find_date(pl.Series(["3.10.12", "3.11.2"])) is None  # versions
    column = Column("d", "date", format="%m/%d/%Y")
    assert column.read(dates).dt.year().unique().to_list() == [2020]
    with pytest.raises(ValueError, match="'d', row 1"):
        column.read(pl.Series("d", ["12/25/20"]))
