"""What people who see `elliptica compare` for the first time bring along, and what it says to them."""

import io
import json

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.cli.app import print_point, print_text
from elliptica.estimators import load, read_notes, save
from elliptica.tables.predict import predict_file
from elliptica.tables.table import TableError

QUICK = ["--folds", "2", "--trials", "1", "--epochs", "2", "--methods", "elliptic"]


def run(*arguments):
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    return result.exit_code, " ".join(result.output.split())


def table(n=60, **columns):
    """Lines of a CSV file with a useful input, two classes, and what is asked for."""
    base = {"size": [0.5 * (i % 7) for i in range(n)], "kind": ["rose", "iris"] * (n // 2)}
    return pl.DataFrame({**base, **columns}).write_csv()


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (table(), ["--target", "knd"], "has no column 'knd' for the target. Did you mean 'kind'?"),
        (
            table().replace("rose", "iris"),
            ["--target", "kind"],
            "The target 'kind' has only one class, 'iris'. Nothing can be learnt.",
        ),
        (
            table(price=["cheap"] * 30 + [*map(str, range(30))]),
            ["--target", "price", "--task", "regression"],
            "Regression needs a numeric target, but 'price' holds text, e.g. 'cheap'.",
        ),
        (
            table(price=["?!", *map(str, range(59))]),
            ["--target", "price"],
            "In the target column 'price': 1 of 60 values is not a number, e.g. '?!'.",
        ),
        (
            table().partition("\n")[0] + "\n1,rose\n2,iris\n3,rose\n",
            ["--target", "kind"],
            "There are 3 rows with a target, but at least 50 are needed",
        ),
        (
            table().replace("size,kind", "kind,kind"),
            ["--target", "kind"],
            "has several columns named 'kind'. Rename all but one",
        ),
        (
            table().replace("size,kind", "1.5,rose").replace("\n", "\n7,"),
            ["--target", "kind"],
            "Line 2 of data.csv has 3 cells, but the header has 2",
        ),
        (
            "always,kind\n" + "7,rose\n7,iris\n" * 30,
            ["--target", "kind"],
            "No column is left to predict from. Column 'always' is not used: it is 7 in all rows.",
        ),
        (
            table(120),
            ["--target", "kind", "--max-rows", "119"],
            "has 120 rows, but at most 119 are read, because every method is trained many times.",
        ),
        ("", ["--target", "kind"], "data.csv is empty. Expected a CSV file with a line of column names"),
        ("size,kind\n", ["--target", "kind"], "data.csv has column names but no rows."),
    ],
    ids=[
        "wrong target",
        "one class",
        "text for numbers",
        "stray text in the target",
        "three rows",
        "duplicate header",
        "uneven rows",
        "constant column only",
        "too many rows",
        "empty",
        "header only",
    ],
)
def test_the_list(tmp_path, monkeypatch, content, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text(content)
    code, output = run("compare", "data.csv", *options)
    assert code == 2
    assert output.startswith("error: ")
    assert message in output
    assert not (tmp_path / "compare").exists()


def with_days(n=120, **columns):
    """A table with a date in every row, days in disorder."""
    days = [f"2020-{1 + (7 * i) % 12:02d}-{1 + (11 * i) % 28:02d}" for i in range(n)]
    return table(n, day=days, **columns)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            table(big=[str(10**25 + 7 * i * i) for i in range(60)]),
            ["--target", "kind"],
            "big  ",
        ),
        (
            table(huge=["1e308", "-1e308", *map(str, range(58))]),
            ["--target", "kind"],
            "Column 'huge': 2 values beyond 1e+150 clipped to 1e+150",
        ),
        (with_days(), ["--target", "kind", "--time", "day"], "Train on the past, test on later rows"),
        (
            table(note=["=HYPERLINK(1)", "+1", "@x"] * 20),
            ["--target", "kind"],
            "note  ",
        ),
    ],
    ids=["beyond int64", "1e308", "unsorted time", "formulas"],
)
def test_odd_tables_that_work(tmp_path, content, options, message):
    """Nothing overflows, and what is done about it is said."""
    (tmp_path / "data.csv").write_text(content)
    words = ["compare", tmp_path / "data.csv", *options, "--out", tmp_path / "out", *QUICK]
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert message in result.output
    assert "nan" not in result.output.lower().split()
    assert "failed" not in result.output
    assert (tmp_path / "out" / "model.elliptica").exists()


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            table(price=[f"{i}e306" for i in range(60)]),
            ["--target", "price", "--task", "regression"],
            "price",
        ),
        (table(day=["2020-01-01"] * 60), ["--target", "kind", "--time", "day"], "'day'"),
        (table(day=["soon", "later"] * 30), ["--target", "kind", "--time", "day"], "'day'"),
        (table(), ["--target", "kind", "--time", "dy"], "has no column 'dy' for the time"),
        (table(site=["a", "b"] * 30), ["--target", "kind", "--split-by", "site"], "'site'"),
    ],
    ids=["target of 1e308", "constant time", "no time", "missing time", "two sites"],
)
def test_tables_that_cannot_work(tmp_path, monkeypatch, content, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text(content)
    code, output = run("compare", "data.csv", *options)
    assert code == 2, output
    assert output.startswith("error: ")
    assert message in output
    assert not (tmp_path / "compare").exists()


@pytest.mark.parametrize(
    ("test", "options", "message"),
    [
        (table(40).replace("size,kind", "width,kind"), [], "'size'"),
        (table(40).replace("size,kind", "size,sort"), [], "'kind'"),
        (table(40).replace("rose", "tulip"), [], "'tulip'"),
        (table(6), [], "rows to test on, but at least 20 are needed"),
    ],
    ids=["other columns", "no target", "new labels only", "too short"],
)
def test_test_files_that_do_not_fit(tmp_path, test, options, message):
    (tmp_path / "data.csv").write_text(table(90))
    (tmp_path / "test.csv").write_text(test)
    words = ["--target", "kind", "--test", tmp_path / "test.csv", "--out", tmp_path / "out", *QUICK[2:]]
    code, output = run("compare", tmp_path / "data.csv", *words, *options)
    assert message in output
    if code == 0:  # rows with labels that training never saw are dropped, and that is said
        assert "'tulip'" in output
        assert "never" in output or "not" in output
    else:
        assert code == 2, output
        assert not (tmp_path / "out").exists()


def test_groups_that_only_the_test_file_has(tmp_path):
    """They are judged, since that is what a user wants to know, and training does not need them."""
    (tmp_path / "data.csv").write_text(table(90, site=["a", "b"] * 45))
    (tmp_path / "test.csv").write_text(table(60, site=["b", "c"] * 30))
    words = [
        "--target",
        "kind",
        "--test",
        tmp_path / "test.csv",
        "--group",
        "site",
        "--out",
        tmp_path / "out",
    ]
    code, output = run("compare", tmp_path / "data.csv", *words, *QUICK[2:])
    assert code == 0, output
    parts = json.loads((tmp_path / "out" / "results.json").read_text())["summary"]["parts"]
    assert set(parts["rows"]) == {"b", "c"}


def test_twenty_thousand_columns_are_refused_at_once(tmp_path, monkeypatch):
    """Before cells are read: only the header may be looked at."""
    monkeypatch.setattr("elliptica.tables.table.pl.scan_csv", lambda *_, **__: pytest.fail("read"))
    names = ",".join(f"x{i}" for i in range(20_000))
    row = ",".join(["1"] * 20_000)
    (tmp_path / "data.csv").write_text("\n".join([names, *[row] * 30]) + "\n")
    code, output = run("compare", tmp_path / "data.csv", "--target", "x0", "--out", tmp_path / "out")
    assert code == 2
    assert "20,000 columns" in output


def test_the_test_file_must_be_another_one(tmp_path):
    (tmp_path / "data.csv").write_text(table())
    (tmp_path / "link.csv").symlink_to(tmp_path / "data.csv")
    code, output = run("compare", tmp_path / "data.csv", "--target", "kind", "--test", tmp_path / "link.csv")
    assert code == 2
    assert "--test is the table itself." in output.replace("│ ", "")


@pytest.mark.slow
def test_the_list_ten_million_rows(tmp_path):
    """Counted, not loaded: tests/tables/test_table.py measures the memory."""
    file = tmp_path / "long.csv"
    with file.open("wb") as handle:
        handle.write(b"size,kind\n")
        for _ in range(100):
            handle.write(b"1,a\n2,b\n" * 50_000)
    code, output = run("compare", file, "--target", "kind", "--out", tmp_path / "out")
    assert code == 2
    assert "long.csv has 10,000,000 rows, but at most 200,000 are read" in output


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """A comparison of a table with all that may be odd and is no error: semicolons, commas, text, an id."""
    folder = tmp_path_factory.mktemp("clinic")
    draws = np.random.default_rng(0)
    label = draws.integers(0, 2, 80)
    ages = [f"{v:.2f}".replace(".", ",") for v in draws.normal(50 + 9 * label, 9)]
    ages[3], ages[50] = "unknown", "about 40"
    frame = pl.DataFrame(
        {
            "patient": [f"{i:04d}" for i in draws.permutation(80)],
            "age": ages,
            "dose": [f"{v:.1f}".replace(".", ",") for v in draws.normal(size=80)],
            "unit": ["mg"] * 80,
            "sick": [["no", "yes"][v] for v in label],
        }
    )
    frame.write_csv(folder / "clinic.csv", separator=";", include_bom=True)
    out = folder / "out"
    options = ["--target", "sick", "--id", "patient", "--out", out, *QUICK]
    code, output = run("compare", folder / "clinic.csv", *options)
    assert code == 0, output
    return folder, frame, output


def test_what_is_odd_and_no_error_is_said(clinic):
    folder, _, output = clinic
    assert (
        "Warning: column 'age': 2 of 80 values are not numbers, e.g. 'unknown'. Treated as missing." in output
    )
    assert "unit not used: it is 'mg' in all rows" in output
    assert "patient identifier, not used" in output
    assert "Cells are separated by ';'." in output
    assert json.loads((folder / "out" / "results.json").read_text())["about"]["inputs"] == ["age", "dose"]


def test_the_screen_has_the_names_of_the_report(clinic):
    folder, _, output = clinic
    report = (folder / "out" / "report.md").read_text()
    for name in ("ordinary training", "elliptic training"):
        assert f" {name} " in output
        assert f"| {name} |" in report
    assert " erm " not in output
    assert "Names for --methods: erm (ordinary training), elliptic (elliptic training)." in report


def test_predictions_carry_the_ids_of_the_comparison(clinic):
    folder, frame, _ = clinic
    model, new = folder / "out" / "model.elliptica", folder / "new.csv"
    notes = read_notes(model)
    assert (notes["target"], notes["ids"], notes["text_as_missing"]) == ("sick", ["patient"], ["age"])
    assert [column["name"] for column in notes["reading"]["columns"]] == ["age", "dose"]
    frame.drop("unit").write_csv(new, separator=";")
    code, output = run("predict", model, new, "--id", "sick", "--out", folder / "p.csv")
    assert code == 0, output
    assert "Columns that the model does not use" not in output
    found = pl.read_csv(folder / "p.csv", infer_schema=False)
    assert found.columns == ["row", "patient", "sick", "prediction"]
    assert found["patient"].to_list() == frame["patient"].to_list()  # as text: 0042 is not 42
    # a table without the id is predicted all the same, and rows in another order stay with their ids
    frame.drop("unit", "patient").write_csv(new, separator=";")
    assert predict_file(model, new)[0].columns == ["row", "prediction"]
    frame.reverse().write_csv(new, separator=";")
    backwards = predict_file(model, new)[0]
    assert backwards["row"].to_list() == list(range(1, 81))
    assert dict(backwards.select("patient", "prediction").iter_rows()) == dict(
        found.select("patient", "prediction").iter_rows()
    )


def test_an_id_called_row_replaces_the_number(clinic):
    folder, frame, _ = clinic
    named = frame.select(age=pl.lit(40.0), dose=pl.lit(0.5), row="sick")
    found, _ = predict_file(folder / "out" / "model.elliptica", named, ids=["row"])
    assert found["row"].to_list() == frame["sick"].to_list()


def test_predict_takes_text_as_training_did(clinic):
    """Where training had text, any share of it is a gap; elsewhere much of it is refused."""
    folder, frame, _ = clinic
    model = folder / "out" / "model.elliptica"
    inputs = frame.select("age", "dose").with_columns(pl.all().str.replace(",", "."))
    text = inputs[:6].with_columns(age=pl.Series(["40", *["no idea"] * 5]))
    found, notices = predict_file(model, text)
    assert (
        "Warning: column 'age': 5 of 6 values are not numbers, e.g. 'no idea'. Treated as missing." in notices
    )
    gaps = text.with_columns(pl.col("age").cast(pl.Float64, strict=False), pl.col("dose").cast(pl.Float64))
    assert found["prediction"].to_list() == load(model).predict(gaps).tolist()
    assert found.equals(predict_file(model, gaps)[0])
    with pytest.raises(TableError, match=r"'dose' held numbers .* now 5 of 6 values are not, e\.g\. 'much'"):
        predict_file(model, text.with_columns(dose=pl.Series(["1", *["much"] * 5])))
    commas = frame.select("age", "dose")  # the decimal commas of training are known, in frames as well
    assert predict_file(model, commas)[0].equals(predict_file(model, inputs)[0])
    one = inputs.with_columns(pl.Series("dose", ["much", *inputs["dose"][1:]]))
    _, notices = predict_file(model, one)
    assert (
        "Warning: column 'dose': 1 of 80 values is not a number, e.g. 'much'. Treated as missing." in notices
    )
    assert any(notice.startswith("Column 'dose': 1 missing values are replaced by") for notice in notices)


def test_notes_of_a_strange_model_do_no_harm(clinic, tmp_path):
    folder, frame, _ = clinic
    model = load(folder / "out" / "model.elliptica")
    save(model, tmp_path / "a.elliptica", notes={"ids": 7, "text_as_missing": [["age"], None]})
    inputs = frame.select(dose=pl.lit(0.5), age=pl.lit(1.0))
    assert predict_file(tmp_path / "a.elliptica", inputs)[0].columns == ["row", "prediction"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "eliptic"], "Unknown method 'eliptic'. Did you mean 'elliptic'?"),
        (["--methods", "svm"], "Unknown method 'svm'. There are erm, noise, smoothing, mixup,"),
        (["--methods", ","], "The list of methods is empty."),
        (["--methods", "erm", "--methods", ""], "The list of methods is empty."),
        (["--repeats", "0"], "Invalid value for '--repeats'"),
        (["--folds", "1"], "Invalid value for '--folds'"),
        (["--budget", "soon"], "The budget 'soon' is not a positive time. Write it like 90s, 2m or 1h."),
        (["--engine", "cloud"], "Pass one of threads, processes, ray"),
        (["--time", "day", "--extrapolate"], "--time and --extrapolate select different test rows."),
        (["--time", "day", "--split-by", "site"], "--time and --split-by select different test rows."),
        (["--test", "a.csv", "--time", "day"], "--time and --test select different test rows."),
        (["--extrapolate", "--folds", "3"], "--extrapolate has a single set of test rows"),
        (["--group-as-input"], "--group-as-input needs --group COLUMN."),
        (["--id", "a", "--as", "a=number"], "--id a and --as a=number exclude each other."),
        (["--as", "size"], "--as takes COLUMN=KIND, e.g. --as zip=category, but got 'size'."),
        (["--trees"], "Boosted trees and a linear model are always compared now: omit --trees."),
        (["--select", "best"], "Pass one of average, worst"),
        (["--task", "ranking"], "Pass one of auto, classification, regression"),
        (["--trials", "many"], "Invalid value for '--trials'"),
    ],
)
def test_options_are_checked_before_the_table_is_read(monkeypatch, tmp_path, options, message):
    monkeypatch.setattr("elliptica.tables.comparison.read_table", lambda *_, **__: pytest.fail("read"))
    code, output = run("compare", tmp_path / "data.csv", "--target", "kind", *options)
    assert code == 2
    assert message in output.replace("│ ", "").replace(" │", "")


def test_a_folder_with_files_of_somebody_else(tmp_path):
    (tmp_path / "data.csv").write_text(table())
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.md").write_text("mine")
    options = ["--target", "kind", "--out", out, *QUICK]
    code, output = run("compare", tmp_path / "data.csv", *options)
    assert code == 2
    assert "holds report.md, but no results.json of a comparison, so they would be overwritten." in output
    assert (out / "report.md").read_text() == "mine"
    (out / "report.md").rename(out / "other.md")
    assert run("compare", tmp_path / "data.csv", *options)[0] == 0
    assert (out / "other.md").read_text() == "mine"
    (tmp_path / "data.csv").write_text(table().replace("0.5,iris", "0.6,iris"))
    code, output = run("compare", tmp_path / "data.csv", *options)
    assert code == 2
    assert "holds another comparison: rows or cells of the table have changed." in output


def test_a_model_that_is_none(clinic):
    folder, _, _ = clinic
    for wrong, message in (
        (folder, "is a folder. Expected a file such as model.elliptica, which elliptica compare writes"),
        (folder / "none", "does not exist. Expected a file such as model.elliptica"),
        (folder / "clinic.csv", "clinic.csv cannot be read as a saved estimator"),
    ):
        code, output = run("predict", wrong, folder / "clinic.csv", "--out", folder / "q.csv")
        assert code == 2
        assert message in output


def test_words_are_whole_on_a_screen_and_lines_in_a_file():
    console = Console(width=80, force_terminal=True, color_system=None, record=True, file=io.StringIO())
    print_point(console, "Column 'age' has [bold]many[/bold] values " + "and more words " * 20)
    print_text(console, "word " * 40)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("- Column 'age' has [bold]many[/bold]")
    assert lines[1].startswith("  ")
    words = [line for line in lines if line.startswith("word")]
    assert len(words) > 2
    assert {word for line in words for word in line.split()} == {"word"}
    console = Console(width=80, force_terminal=False, record=True, file=io.StringIO())
    print_point(console, "word " * 40)
    assert len(console.export_text().splitlines()) == 1
