"""What each column is: every rule of recognition, what overrides it, and reading other tables alike."""

import datetime
import json
import shlex

import numpy as np
import polars as pl
import pytest

from elliptica.estimators import TablePreprocessor
from elliptica.tables.columns import (
    LARGEST,
    Notation,
    Reading,
    find_date_format,
    find_notation,
    parse_numbers,
    read_column,
    read_inputs,
    readings_of,
    recognise,
)
from elliptica.tables.csv import TableError
from elliptica.tables.table import Table, read_table
from table_cases import problem_of, rows

bad_input = pytest.mark.bad_input
N = 200


def found(values, name="c", **options):
    """What a column becomes, and its values."""
    notices = []
    column = pl.Series(name, values)
    use, reading, read = recognise(column, notices=notices, **options)
    return use, reading, read, notices


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
        (["EUR 5", "7 EUR"], [5, 7]),
        (["12%", "3.5 %"], [12, 3.5]),
        (["1e3", "2.5e-1"], [1000, 0.25]),
        (["104,62 m²", "80 m²", "1.204,5 m²"], [104.62, 80, 1204.5]),
        (["104.62m2", "80 m2"], [104.62, 80]),
        (["-3.5 °C", "12 °C"], [-3.5, 12]),
        (["1 day", "12 days", "3 days"], [1, 12, 3]),
        (["90 km/h", "1,204 km/h"], [90, 1204]),
        (['5.5"', '6"'], [5.5, 6]),
    ],
)
def test_how_numbers_are_written(cells, numbers):
    column = pl.Series(cells)
    assert parse_numbers(column, find_notation(column)).to_list() == numbers


@pytest.mark.parametrize(
    "cells", [["$5", "€5"], ["12%", "0.12"], ["1,5,3", "2"], ["5 kg", "3"], ["5 kg", "3 lb"]]
)
def test_what_is_not_read_as_numbers(cells):
    """Two currencies, shares and percents in one column, lists, units: no number without a guess."""
    column = pl.Series(cells)
    assert parse_numbers(column, find_notation(column)).null_count() > 0


def test_a_file_with_decimal_commas_decides_on_doubtful_cells(tmp_path):
    """3,655 in a ; file is three thousand, unless another cell of the file can only be a decimal comma."""
    lines = [f"{i % 9 + 1},{600 + i};{'ab'[i % 2]}" for i in range(60)]
    (tmp_path / "a.csv").write_text("n;y\n" + "\n".join(lines))
    assert problem_of(tmp_path / "a.csv").features["n"][0] == 1600
    (tmp_path / "b.csv").write_text("n;y;m\n" + "\n".join(f"{line};{i},5" for i, line in enumerate(lines)))
    assert problem_of(tmp_path / "b.csv").features["n"][0] == 1.6
    (tmp_path / "c.csv").write_text("n;y;m\n" + "\n".join(f"{line};{i}.5" for i, line in enumerate(lines)))
    assert problem_of(tmp_path / "c.csv").features["n"][0] == 1600


@pytest.mark.parametrize(
    ("cells", "form"),
    [
        (["2006-01-31", "2006-12-01"], "%Y-%m-%d"),
        (["31/01/2006", "01/02/2006"], "%d/%m/%Y"),
        (["01/31/2006", "01/02/2006"], "%m/%d/%Y"),
        (["01/02/2006", "03/04/2006"], "%m/%d/%Y"),  # no telling; said in the table of columns
        (["31.01.2006", "1.2.2006"], "%d.%m.%Y"),
        (["3 Jan 2006", "12 December 2007"], "%d %B %Y"),
        (["2006-01-31 12:30:00", "2006-01-31 12:30:01.5"], "%Y-%m-%d %H:%M:%S%.f"),
        (["2006-01-31T12:30:00Z", "2006-01-31T12:30:00+02:00"], "%Y-%m-%dT%H:%M:%S%.f%#z"),
        (["1/31/2006 1:05 PM", "1/31/2006 11:05 AM"], "%m/%d/%Y %I:%M %p"),
        (["2006-01", "2007-12"], "%Y-%m"),
        (["red", "green"], None),
        (["2006-01-31", "unknown"], None),  # one of two is no slip
        (["1.5", "2.5"], None),
        (["0006-01-31", "0007-01-31"], None),
    ],
)
def test_formats_of_dates(cells, form):
    assert find_date_format(pl.Series(cells)) == form


def test_dates_are_read(tmp_path):
    start = datetime.date(2006, 1, 1)
    days = [start + datetime.timedelta(days=7 * i) for i in range(60)]
    for form in ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y%m%d"):
        frame = rows(sold=[day.strftime(form) for day in days])
        frame.write_csv(tmp_path / "a.csv")
        problem = problem_of(tmp_path / "a.csv")
        assert problem.kinds == ("number", "date"), form
        assert problem.features["sold"].dt.date().to_list() == days
    (use,) = [use for use in problem.columns if use.name == "sold"]
    assert use.detail == "year, month, day, day of week, days since 2006-01-01"
    _, reading, values, _ = found([datetime.datetime(2020, 1, 1, 12)] * 3 + [None])
    assert reading.kind == "date"
    assert values.to_list() == [datetime.datetime(2020, 1, 1, 12)] * 3 + [None]


def test_strays_among_dates_are_missing():
    cells = [*[f"2006-01-{1 + i % 28:02d}" for i in range(99)], "soon"]
    use, reading, values, notices = found(cells)
    assert (use.kind, values.null_count(), reading.text_as_missing) == ("date", 1, True)
    assert notices == ["Warning: column 'c': 1 of 100 values is not a date, e.g. 'soon'. Treated as missing."]


ONE_WORD = [f"X{i:03d}" for i in range(N)]
WORDS = [f"a house near lake {i % 120}" for i in range(N)]
AGES = [20 + (7 * i) % 60 for i in range(N)]


@pytest.mark.parametrize(
    ("name", "values", "kind", "hint"),
    [
        ("id", [i * i for i in range(N)], "id", "--as id=number"),
        ("PassengerId", [3 * i for i in range(N)], "id", "--as PassengerId=number"),
        ("area", [i * i for i in range(N)], "number", ""),  # all differ, but nothing says that they name rows
        ("Unnamed: 0", [3 * i for i in range(N)], "id", "--as 'Unnamed: 0=number'"),
        ("n", list(range(5, N + 5)), "id", "--as n=number"),
        ("tracking", [10**15 + 7919 * i for i in range(N)], "id", "--as tracking=number"),
        # 15 digits, each many times: names of things, not sizes
        ("parcel", [10**14 + 7919 * (i % 20) for i in range(N)], "category", "--as parcel=number"),
        ("parcel", [10**14 - 10**6 + 7919 * (i % 20) for i in range(N)], "number", "--as parcel=category"),
        ("key", ONE_WORD, "id", "--as key=category"),
        ("who", ONE_WORD, "id", "--as who=category"),
        ("title", WORDS, "text", "--as title=id"),
        ("name", [f"Smith, Mr. John the {i}th" for i in range(N)], "text", "--as name=id"),
        ("town", [f"t{i % 80}" for i in range(N)], "text", "--as town=id"),  # different in 40 % of the rows
        ("town", [f"t{i % 30}" for i in range(N)], "category", ""),
        ("zip", [f"0{1000 + i % 9}" for i in range(N)], "category", "--as zip=number"),
        ("minutes", ["00", "05", "10", "15"] * 50, "category", "--as minutes=number"),
        ("region", [i % 7 for i in range(N)], "category", "--as region=number"),
        ("Pclass", [1 + i % 3 for i in range(N)], "category", "--as Pclass=number"),
        ("rooms", [1 + i % 7 for i in range(N)], "number", ""),
        ("site", [(113, 241, 377)[i % 3] for i in range(N)], "category", "--as site=number"),
        ("dose", [(100, 200, 500)[i % 3] for i in range(N)], "number", "--as dose=category"),
        ("year", [2001 + i % 5 for i in range(N)], "number", ""),
        ("hour", [(7, 100, 9000)[i % 3] for i in range(N)], "number", "--as hour=category"),
        ("sex", [1 + i % 2 for i in range(N)], "number", ""),  # two values: the same either way
        ("day", [20060101 + i % 28 for i in range(N)], "date", ""),
        ("age", AGES, "number", ""),
        ("patient", [i // 4 for i in range(N)], "number", "--as patient=id"),
        ("ok", [True, False] * 100, "category", ""),
        ("opens", ["8:30", "17:05"] * 100, "number", ""),
        ("one", [7] * N, "unused", ""),
        ("none", [None] * N, "unused", ""),
        ("lists", [[1], [2]] * 100, "unused", ""),
    ],
)
def test_rules(name, values, kind, hint):
    use, reading, _, _ = found(values, name)
    assert (use.kind, use.hint) == (kind, hint)
    assert (reading is None) == (kind in ("id", "unused"))
    if hint:  # what the hint says works, and is not said again
        option, _, wanted = shlex.split(hint)[1].partition("=")
        again = found(values, name, as_=wanted)[0]
        assert (again.name, again.kind, again.hint) == (option, wanted, "")


def test_row_numbers_are_found_in_a_table_that_is_sorted():
    """Sorted by time, or without the rows that have no target, the numbers no longer are in order."""
    frame = rows(number=list(range(60)), t=list(range(60, 0, -1)))
    problem = problem_of(frame.with_columns(t=pl.col("t") * 2.5), time="t")
    assert problem.ids == ("number",)


def test_what_is_said_of_numbers():
    cells = [*["$1,200", "$900", None] * 30, "$5,000,000", "free"]
    use, _, _, notices = found(cells)
    assert use.detail == (
        "thousands separators removed; in $; heavy tail: scaled by quantiles; cells of text treated as "
        "missing; 31 missing"
    )
    assert notices == [
        "Warning: column 'c': 1 of 62 values is not a number, e.g. 'free'. Treated as missing."
    ]
    assert found(["8:30", "17:15"])[2].to_list() == [8.5, 17.25]
    assert found([datetime.timedelta(hours=12), None, datetime.timedelta(2)])[2].to_list() == [0.5, None, 2.0]


def test_missing_categories_are_a_category_and_said():
    use, _, values, _ = found(["u", None, "v", "u"] * 5)
    assert values.to_list()[:4] == ["u", "(missing)", "v", "u"]
    assert use.detail == "3 values; (missing) for 5 rows"


def test_cells_that_no_network_takes():
    _, _, values, notices = found([1e308, -1e308, 2.0, float("inf"), float("nan")])
    assert values.to_list() == [LARGEST, -LARGEST, 2.0, None, None]
    assert "1 infinite value treated as missing" in notices[0]
    assert "2 values beyond 1e+150 clipped to 1e+150" in notices[1]


def test_whole_numbers_beyond_int64(tmp_path):
    frame = rows(big=[str(10**20 + i * i) for i in range(60)], some=[str(10**20 + i % 3) for i in range(60)])
    frame.write_csv(tmp_path / "a.csv")
    problem = problem_of(tmp_path / "a.csv")
    assert problem.ids == ("big",)
    assert problem.features["some"].n_unique() == 3  # as numbers they would be equal
    python = pl.Series("c", [2**64 - 1 - i * i for i in range(N)], dtype=pl.UInt64)
    assert recognise(python, notices=[]).use.kind == "id"


@bad_input
@pytest.mark.parametrize(
    ("values", "as_", "message"),
    [
        (
            ["cheap", "dear"] * 9,
            "number",
            "cannot be read as number: 18 of 18 values are not numbers, e.g. 'cheap'",
        ),
        (["cheap", "dear"] * 9, "date", "cannot be read as date: 18 of 18 .* e.g. 'cheap'"),
        ([1.5, 2.5] * 9, "date", "cannot be read as date: .* e.g. '1.5'"),
        ([[1], [2]] * 9, "category", "cannot be read as category: it is of type List"),
    ],
)
def test_overrides_that_cannot_be(values, as_, message):
    with pytest.raises(TableError, match=message):
        found(values, as_=as_)


def test_overrides():
    assert found(["1", "2", "x"] * 9, as_="number")[2].to_list()[:3] == [1.0, 2.0, None]
    assert found([1, 2, 3] * 9, as_="category")[2].to_list()[:3] == ["1", "2", "3"]
    assert found([1.0, 2.5, None] * 9, as_="category")[2].to_list()[:3] == ["1", "2.5", "(missing)"]
    assert found(["a", None] * 9, as_="text")[2].to_list()[:2] == ["a", ""]
    assert found([20060131, 20060201], as_="date")[2].dt.day().to_list() == [31, 1]
    assert found(["2006-01-31", "?"] * 5 + ["2006-02-01"], as_="date")[2].null_count() == 5
    assert found([True, False], as_="number")[2].to_list() == [1.0, 0.0]
    assert found([datetime.date(1970, 1, 3)] * 2 + [None], as_="number")[2].to_list() == [2.0, 2.0, None]


MESSY = {
    "price": [f"€ {1000 + 37 * i:,}" for i in range(60)],
    "sold": [f"{1 + i % 28:02d}.{1 + i % 12:02d}.200{i % 5}" for i in range(60)],
    "zip": [f"0{100 + i % 3}" for i in range(60)],
    "region": [i % 4 for i in range(60)],
    "note": [f"number {i} of the remarks about it" for i in range(60)],
    "area": [float(i * i) for i in range(60)],
}


def test_another_table_is_read_alike(tmp_path):
    """From CSV, typed or as text, from a frame, and after a trip through JSON: the same inputs."""
    frame = rows(**MESSY)
    problem = problem_of(frame)
    assert problem.kind_of == {
        "x": "number",
        "price": "number",
        "sold": "date",
        "zip": "category",
        "region": "category",
        "note": "text",
        "area": "number",
    }
    state = json.loads(json.dumps(problem.reading()))
    readings = [Reading.from_dict(each) for each in state["columns"]]
    frame.write_csv(tmp_path / "a.csv")
    for table in (
        read_table(frame),
        read_table(tmp_path / "a.csv"),
        read_table(tmp_path / "a.csv", as_text=True),
    ):
        notices = []
        assert read_inputs(readings, table, notices=notices).equals(problem.features)
        assert not notices
    one = Table(frame[:1], "one")  # rules look at columns; decisions are recorded and need no column
    assert read_inputs(readings, one, notices=[]).equals(problem.features[:1])


def test_a_doubtful_cell_is_read_as_in_training():
    grouped = Reading("c", "number", Notation(",", grouped=True)._asdict())
    single = Reading("c", "number", Notation(",")._asdict())
    point = Reading("c", "number")
    for reading, cell, number in (
        (grouped, "1.234", 1234.0),
        (single, "1.234", 1.234),  # no separators of thousands in training
        (single, "1,5", 1.5),
        (point, "3,655", 3655.0),
        (point, "1.5", 1.5),
    ):
        assert read_column(pl.Series("c", [cell]), reading, notices=[]).to_list() == [number]


def test_what_deviates_from_training_is_said():
    frame = rows(c=["u", "v"] * 30, d=[datetime.date(2020, 1, 1 + i % 9) for i in range(60)])
    problem = problem_of(frame)
    preprocessor = TablePreprocessor(kinds=problem.kind_of).fit(problem.features)
    new = pl.DataFrame({"x": ["1", None], "c": ["w", "u"], "d": [None, "2020-01-02"]})
    notices = []
    read_inputs(problem.readings, Table(new, "new"), state=preprocessor.to_dict(), notices=notices)
    text = "\n".join(notices)
    assert "Column 'c': 1 values were not seen in training, e.g. 'w'" in text
    assert "Column 'x': 1 missing values are replaced by 1.5, the median in training" in text
    assert "Column 'd': 1 missing values are replaced by the middle date" in text


@bad_input
def test_tables_that_do_not_fit_are_named():
    problem = problem_of(rows(a=[i * i for i in range(60)], b=[i**3 for i in range(60)]))
    with pytest.raises(TableError, match=r"other lacks 2 of the 3 inputs of the model: 'a', 'b'"):
        read_inputs(problem.readings, Table(pl.DataFrame({"x": [1]}), "other"), notices=[])
    with pytest.raises(TableError, match="no column 'b' for the model"):
        read_inputs(problem.readings, Table(pl.DataFrame({"x": [1], "a": [2]}), "other"), notices=[])
    text = pl.DataFrame({"x": [1] * 9, "a": ["1", "2", "much"] * 3, "b": [1] * 9})
    with pytest.raises(TableError, match=r"'a' held numbers .* now 3 of 9 values are not, e\.g\. 'much'"):
        read_inputs(problem.readings, Table(text, "other"), notices=[])
    lists = pl.DataFrame({"x": [[1]], "a": [1], "b": [1]})
    with pytest.raises(TableError, match=r"'x' is of type List\(Int64\), but the model expects a number"):
        read_inputs(problem.readings, Table(lists, "other"), notices=[])
    with pytest.raises(TableError, match="does not say how to read its columns"):
        Reading.from_dict({"name": "a", "kind": "id"})


def test_models_without_a_reading_are_read_by_their_preprocessor():
    table = TablePreprocessor(min_frequency=1).fit(pl.DataFrame({"a": [1.0, 2.0], "c": ["u", "v"]}))
    readings = readings_of(table.to_dict(), ["a"])
    assert [(each.name, each.kind, each.text_as_missing) for each in readings] == [
        ("a", "number", True),
        ("c", "category", False),
    ]
    new = Table(pl.DataFrame({"a": ["1.5", "odd"], "c": ["u", None]}), "new")
    assert read_inputs(readings, new, notices=[]).rows() == [(1.5, "u"), (None, "(missing)")]


def test_numbers_survive_the_trip_through_text():
    values = np.random.default_rng(0).normal(size=50) * 10.0 ** np.arange(-25, 25)
    assert found([repr(v) for v in values.tolist()])[2].to_list() == values.tolist()


def test_a_unit_makes_no_identifier():
    """400 different areas are numbers, also where one cell is a slip and another has no unit."""
    areas = [f"{40 + 0.37 * i:.2f} m²".replace(".", ",") for i in range(400)]
    use, reading, values, _ = found(areas, "area")
    assert (use.kind, use.detail) == ("number", "in m²")
    assert values.to_list() == pytest.approx([round(40 + 0.37 * i, 2) for i in range(400)])
    again = read_column(pl.Series("area", ["104,62 m²", "99"]), reading, notices=[])
    assert again.to_list() == [104.62, 99]
    with pytest.raises(TableError, match="held numbers"):
        read_column(pl.Series("area", ["104 sq ft"] * 20), reading, notices=[])
    use, _, values, notices = found([*areas, "unknown", "77"], "area")
    assert use.kind == "number"
    assert values[-2:].to_list() == [None, 77]
    assert any("1 of 402 values is not a number" in each for each in notices)


def test_several_units_are_asked_about():
    heights = [f"{150 + i % 60} cm" if i % 3 else f"{5 + i / 100:.2f} ft" for i in range(300)]
    use, _, _, notices = found(heights, "height")
    assert use.kind == "text"
    assert any("different units (cm, ft)" in each and "Convert them" in each for each in notices)
    codes = [f"{100 + i} {'ABCDEFGHKL'[i % 10]}{'MNPQRSTVWX'[i // 10 % 10]}" for i in range(300)]
    assert found(codes, "plate")[0].kind == "id"  # as before: these are no units
    assert (
        found([f"{i % 12 + 1}{['st', 'nd', 'rd', 'th'][min(i % 12, 3)]}" for i in range(300)])[0].kind
        == "category"
    )


@bad_input
@pytest.mark.parametrize(
    ("cells", "sign"),
    [(["€5.00", "€1,200.50"], "€"), (["5 %", "1,200.50 %"], "%"), (["$5", "USD 9"], ""), (["5", "9"], "")],
)
def test_another_currency_than_in_training(cells, sign):
    notices = []
    reading = Reading("c", "number", Notation(".", "$", True)._asdict())
    read_column(pl.Series("c", cells), reading, notices=notices)
    wanted = f"Warning: column 'c' was in $ when the model was trained, but is in {sign} now"
    assert [each.startswith(wanted) for each in notices] == ([True] if sign else [])
