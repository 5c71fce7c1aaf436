"""What people who see `elliptica compare` for the first time bring along, and what it says to them."""

import io

import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.cli.app import print_point, print_text

QUICK = ["--set", "folds=2", "--set", "trials=1", "--set", "epochs=2", "--methods", "elliptic"]


def run(*arguments):
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    return result.exit_code, " ".join(result.output.split())


def table(n=60, **columns):
    """Lines of a CSV file with a useful input, two classes, and what is asked for."""
    base = {"size": [0.5 * (i % 7) for i in range(n)], "kind": ["rose", "iris"] * (n // 2)}
    return pl.DataFrame({**base, **columns}).write_csv()


@pytest.mark.parametrize(
    ("content", "options", "named"),
    [
        (table().replace("rose", "iris"), ["--target", "kind"], "kind"),
        (table(price=["cheap"] * 60), ["--target", "price", "--task", "regression"], "price"),
        (table().partition("\n")[0] + "\n1,rose\n2,iris\n", ["--target", "kind"], "kind"),
        (table().replace("size,kind", "kind,kind"), ["--target", "kind"], "kind"),
        ("always,kind\n" + "7,rose\n7,iris\n" * 30, ["--target", "kind"], "always"),
        ("", ["--target", "kind"], "data.csv"),
        ("size,kind\n", ["--target", "kind"], "data.csv"),
        (table(day=["2020-01-01"] * 60), ["--target", "kind", "--time", "day"], "day"),
        (table(day=["soon", "later"] * 30), ["--target", "kind", "--time", "day"], "day"),
        (table(), ["--target", "kind", "--time", "dy"], "dy"),
        (table(site=["a", "b"] * 30), ["--target", "kind", "--split-by", "site"], "site"),
        (table(), ["--target", "kind", "--as", "size"], "size"),
        (table(huge=["1e308", "-1e308", *map(str, range(58))]), ["--target", "kind"], "huge"),
    ],
)
def test_tables_that_cannot_work(tmp_path, monkeypatch, content, options, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text(content)
    code, output = run("compare", "data.csv", *options)
    assert code == 2, output
    assert output.startswith("error: ")
    assert named in output
    assert not (tmp_path / "compare").exists()


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (table(big=[str(10**25 + 7 * i * i) for i in range(60)]), []),
        (
            table(120, day=[f"2020-{1 + (7 * i) % 12:02d}-{1 + i % 28:02d}" for i in range(120)]),
            ["--time", "day"],
        ),
        (table(note=["=HYPERLINK(1)", "+1", "@x"] * 20), []),
        (table(site=["a", "b", "c"] * 20), ["--split-by", "site"]),
    ],
    ids=["beyond int64", "unsorted time", "formulas", "three sites"],
)
def test_odd_tables_that_work(tmp_path, content, options):
    (tmp_path / "data.csv").write_text(content)
    words = [
        "compare",
        tmp_path / "data.csv",
        "--target",
        "kind",
        *options,
        "--out",
        tmp_path / "out",
        *QUICK,
    ]
    code, output = run(*words)
    assert code == 0, output
    assert "nan" not in output.lower().split()
    assert "failed" not in output
    assert (tmp_path / "out" / "model.elliptica").exists()


@pytest.mark.parametrize(
    ("test", "named"),
    [
        (table(40).replace("size,kind", "width,kind"), "size"),
        (table(40).replace("size,kind", "size,sort"), "kind"),
        (table(40).replace("rose", "tulip"), "tulip"),
        (table(6), "rows"),
    ],
    ids=["other columns", "no target", "new labels", "too short"],
)
def test_test_files_that_do_not_fit(tmp_path, test, named):
    (tmp_path / "data.csv").write_text(table(90))
    (tmp_path / "test.csv").write_text(test)
    words = ["--target", "kind", "--test", tmp_path / "test.csv", "--out", tmp_path / "out", *QUICK[2:]]
    code, output = run("compare", tmp_path / "data.csv", *words)
    assert code == 2, output
    assert named in output
    assert not (tmp_path / "out").exists()


def test_the_model_is_trained_on_the_table_not_on_the_test_file(tmp_path):
    (tmp_path / "data.csv").write_text(table(90))
    (tmp_path / "test.csv").write_text(table(60))
    words = ["--target", "kind", "--test", tmp_path / "test.csv", "--out", tmp_path / "out", *QUICK[2:]]
    code, output = run("compare", tmp_path / "data.csv", *words)
    assert code == 0, output
    assert "not on those of the test file" in output


def test_words_are_whole_on_a_screen_and_lines_in_a_file():
    console = Console(width=80, force_terminal=True, color_system=None, record=True, file=io.StringIO())
    print_point(console, "Column 'age' has [bold]many[/bold] values " + "and more words " * 20)
    print_text(console, "word " * 40)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("- Column 'age' has [bold]many[/bold]")
    assert lines[1].startswith("  ")
    console = Console(width=80, force_terminal=False, record=True, file=io.StringIO())
    print_point(console, "word " * 40)
    assert len(console.export_text().splitlines()) == 1
