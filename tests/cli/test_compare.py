"""`elliptica compare` and `elliptica predict` as a user runs them, Ctrl-C included."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.cli import compare as compare_command
from elliptica.cli import predict as predict_command
from elliptica.cli.compare import _print_result, _progress, shorten
from elliptica.estimators import load
from elliptica.tables.comparison import compare
from elliptica.tables.methods import NAMES
from elliptica.tables.page import in_order, label

QUICK = ["--folds", "2", "--trials", "1", "--epochs", "2", "--methods", "elliptic,trees"]


def run(*arguments):
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture(scope="module")
def data():
    draws = np.random.default_rng(0)
    label = draws.integers(0, 2, 80)
    return pl.DataFrame(
        {
            "size": draws.normal(label, 1.0),
            "colour": [["red", "blue"][int(v)] for v in draws.integers(0, 2, 80)],
            "price": draws.normal(10, 2, 80).round(2),
            "kind": [["rose", "iris"][v] for v in label],
        }
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory, data):
    """A finished comparison: folder, exit code and lines of the output."""
    folder = tmp_path_factory.mktemp("compare")
    data.write_csv(folder / "flowers.csv")
    words = ["compare", folder / "flowers.csv", "--target", "kind", "--out", folder / "out", *QUICK]
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    return folder, result.exit_code, result.output.splitlines()


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from elliptica.cli import app\n"
        "try: app(['compare', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'polars', 'sklearn', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
    for words in ("--split-by", "Your table", "The shift that you expect", "Methods and effort"):
        assert words in result.stdout
    assert "--trees" not in result.stdout


@pytest.mark.slow
def test_the_screen_from_top_to_bottom(done):
    folder, code, lines = done
    assert code == 0, lines
    assert lines[0].startswith(
        "flowers.csv: 80 rows. Predict kind (classification, 2 classes). Test on random"
    )
    assert lines[1].split() == ["column", "used", "as"]
    assert [line.split()[:2] for line in lines[2:5]] == [
        ["size", "number"],
        ["colour", "category,"],
        ["price", "number"],
    ]
    text = "\n".join(lines)
    effort = text.index("3 methods, 2 folds: about ")
    assert text.index("Ctrl-C keeps finished folds.") > effort
    scores = text.index("compared with ordinary training")
    best = text.index(load_summary(folder / "out")["verdict"]["headline"])
    assert (
        effort
        < scores
        < best
        < text.index("Saved: ")
        < text.index("To predict other rows: elliptica predict")
    )
    rows = {
        line.split("  ")[1]: line
        for line in lines
        if line.startswith("  ") and "%" in line and "fold" not in line
    }
    assert {"ordinary training", "elliptic training", "boosted trees"} <= set(rows)
    assert re.search(r"points \(.* to .*\) (better|worse|not distinguishable)$", rows["boosted trees"])
    assert rows["ordinary training"].rstrip().endswith(tuple("0123456789"))  # nothing to compare it with


def load_summary(folder):
    return json.loads((folder / "results.json").read_text())["summary"]


def test_everything_is_written(done):
    folder, _, _ = done
    out = folder / "out"
    assert {file.name for file in out.iterdir()} == {
        ".lock",
        "report.md",
        "report.html",
        "results.json",
        "predictions.npz",
        "model.elliptica",
    }
    results = json.loads((out / "results.json").read_text())
    assert len(results["records"]) == 6
    assert results["summary"]["finished"] == [2, 2]
    assert set(results["versions"]) >= {"torch", "python", "polars", "scikit-learn"}
    assert "flowers.csv" in (out / "report.md").read_text()


def test_progress_in_a_file_has_a_line_for_every_tenth(done):
    """The share grows, and no two lines are farther apart than a piece of the work."""
    _, _, lines = done
    shares = [int(found[1]) for line in lines if (found := re.match(r" +(\d+) %  ", line))]
    assert shares == sorted(shares)
    assert shares[-1] == 100
    assert len(shares) >= 3


def test_progress_is_neither_silent_nor_chatty():
    console = Console(file=io.StringIO(), force_terminal=False, width=200)
    with _progress(console) as listen:
        for step in range(1001):
            listen(step / 1000, "" if step % 2 == 0 else "trials")  # a worker that ends has no words
        listen(1.0, "")
    lines = console.file.getvalue().splitlines()
    assert all("trials" in line for line in lines[:-1])
    assert lines[-1].endswith("done")
    assert [line.split()[0] for line in lines] == [str(10 * k) for k in range(1, 11)]


def test_the_same_command_does_nothing_twice(done):
    folder, _, _ = done
    before = json.loads((folder / "out" / "results.json").read_text())["records"]
    code, output = run("compare", folder / "flowers.csv", "--target", "kind", "--out", folder / "out", *QUICK)
    assert code == 0
    assert "2 folds of an earlier run kept." in output
    assert json.loads((folder / "out" / "results.json").read_text())["records"] == before


def test_a_table_without_a_file(tmp_path, monkeypatch):
    """The target is known, and a file of the same name wins."""
    monkeypatch.chdir(tmp_path)
    code, output = run("compare", "diabetes", *QUICK)
    assert code == 0, output
    assert output.startswith("diabetes: 442 rows. Predict progression (regression).")
    assert (tmp_path / "compare" / "diabetes" / "model.elliptica").exists()
    assert re.search(r"RMSE +worst fifth +compared with", output)
    (tmp_path / "wine").write_text("a,b\n1,2\n")
    code, output = run("compare", "wine")
    assert code == 2
    assert "No target column was given. Pass --target COLUMN. wine has a, b." in output


def test_the_model_is_the_recommended_method_on_all_rows(done, data):
    folder, _, lines = done
    model, summary = load(folder / "out" / "model.elliptica"), load_summary(folder / "out")
    name = type(model[-1]).__name__
    assert summary["saved"] == summary["verdict"]["best"]
    assert ("GradientBoosting" in name) == (summary["saved"] == "trees")
    assert any(f"({NAMES[summary['saved']]}, refitted on all rows" in line for line in lines)
    assert model[0].to_dict()["columns"][0]["median"] == pytest.approx(data["size"].median())


def test_predictions(done, data, tmp_path):
    folder, _, _ = done
    model, out = folder / "out" / "model.elliptica", tmp_path / "deep" / "predictions.csv"
    code, output = run("predict", model, folder / "flowers.csv", "--proba", "--out", out)
    assert code == 0, output
    assert "80 predictions in" in output
    assert "Columns that the model does not use: 'kind'." in output
    found = pl.read_csv(out)
    assert found.columns == ["row", "prediction", "probability of iris", "probability of rose"]
    assert found["row"].to_list() == list(range(1, 81))
    found = found.drop("row")
    expected = load(model).predict_proba(data.drop("kind"))
    np.testing.assert_allclose(found.select(found.columns[1:]).to_numpy(), expected, atol=1e-12)
    chosen = np.asarray(["iris", "rose"])[expected.argmax(1)]
    assert found["prediction"].to_list() == chosen.tolist()
    # columns in another order, from Parquet, give the same
    data.select("price", "colour", "size").write_parquet(tmp_path / "new.parquet")
    assert run("predict", model, tmp_path / "new.parquet", "--proba", "--out", tmp_path / "b.csv")[0] == 0
    assert pl.read_csv(tmp_path / "b.csv").drop("row").equals(found)


def test_predictions_stay_with_their_rows(done, tmp_path):
    """A row without any value is a row; a blank line is none."""
    folder, _, _ = done
    new = tmp_path / "new.csv"
    new.write_text("size,colour,price\n0.5,red,10\n\n,,\n-50.0,green,9\n\n")
    code, output = run("predict", folder / "out" / "model.elliptica", new, "--out", tmp_path / "p.csv")
    assert code == 0, output
    assert len(pl.read_csv(tmp_path / "p.csv")) == 3
    assert "Column 'size': 1 missing values are replaced by" in output
    assert re.search(r"Column 'colour': 2 values were not seen in training, e\.g\. '\(missing\)'", output)
    assert "1 of 3 rows lie outside the range of the training rows ('size' in 1)" in output


def test_predict_refuses_what_does_not_fit(done, data, tmp_path):
    folder, _, _ = done
    model = folder / "out" / "model.elliptica"

    def answer(frame, *options, model=model):
        frame.write_csv(tmp_path / "new.csv")
        code, output = run("predict", model, tmp_path / "new.csv", "--out", tmp_path / "p.csv", *options)
        assert code == 2, output
        assert not (tmp_path / "p.csv").exists()
        return output

    assert "no column 'size' for the model. Did you mean 'Size'?" in answer(data.rename({"size": "Size"}))
    assert "lacks 2 of the 3 inputs of the model: 'size', 'price'" in answer(data.drop("size", "price"))
    odd = data.with_columns(pl.Series("price", ["1", "2", *["3 apples"] * 8, *["4"] * 70]))
    assert "'price' held numbers when the model was trained, but now 8 of 80 values are not" in answer(odd)
    assert "no column 'nam' for the id. Its columns are" in answer(data, "--id", "nam")
    mine = data.with_columns(pl.Series("prediction", range(80)))
    assert "'prediction' has the name of a prediction column" in answer(mine, "--id", "prediction")
    assert "has 80 rows, but at most 79 are read, because all of them are held in memory" in (
        answer(data, "--max-rows", "79")
    )
    (tmp_path / "junk.elliptica").write_bytes(b"junk")
    junk = answer(data, model=tmp_path / "junk.elliptica")
    assert "The model cannot be read: " in junk
    assert junk.count("junk.elliptica") == 1
    assert "does not exist" in answer(data, model=tmp_path / "none.elliptica")
    file = folder / "flowers.csv"
    code, output = run("predict", model, file, "--out", file)
    assert code == 2
    assert "would overwrite the table" in output
    code, output = run("predict", model, file, "--out", model)
    assert code == 2
    assert "would overwrite the model" in output


def test_predict_can_be_interrupted(done, monkeypatch, tmp_path):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    folder, _, _ = done
    monkeypatch.setattr("elliptica.tables.predict.read_table", interrupt)
    out = tmp_path / "p.csv"
    code, output = run("predict", folder / "out" / "model.elliptica", folder / "flowers.csv", "--out", out)
    assert code == 130
    assert "Interrupted" in output
    assert not out.exists()


def test_compare_answers_a_bad_out_in_one_line(data, tmp_path):
    data.write_csv(tmp_path / "flowers.csv")
    out = tmp_path / "flowers.csv" / "out"
    code, output = run("compare", tmp_path / "flowers.csv", "--target", "kind", "--out", out, *QUICK)
    assert code == 2
    assert "error: The folder" in output
    assert "cannot be written" in output
    assert "Choose another --out" in output


def test_regression_with_groups_from_end_to_end(data, tmp_path):
    data.write_csv(tmp_path / "flowers.csv")
    arguments = ["--target", "price", "--group", "kind", "--out", tmp_path / "out", *QUICK[:-1]]
    code, output = run("compare", tmp_path / "flowers.csv", *arguments, "elliptic,groupdro,linear")
    assert code == 0, output
    assert re.search(r"RMSE +worst kind +compared with", output)
    assert "GroupDRO †" in output
    assert "† sees groups in training." in output
    assert "worst-group RMSE" in (tmp_path / "out" / "report.md").read_text()
    model = tmp_path / "out" / "model.elliptica"
    code, output = run("predict", model, tmp_path / "flowers.csv", "--out", tmp_path / "p.csv")
    assert code == 0, output
    predicted = pl.read_csv(tmp_path / "p.csv")["prediction"]
    assert predicted.dtype == pl.Float64
    assert predicted.is_between(
        data["price"].min(), data["price"].max()
    ).all()  # bounded, whichever method won
    code, output = run("predict", model, tmp_path / "flowers.csv", "--proba", "--out", tmp_path / "p.csv")
    assert code == 2
    assert "Omit --proba" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.csv", "--target", "kind"], "none.csv does not exist"),
        (["diabets"], "Did you mean 'diabetes'?"),
        (["flowers.csv", "--target", "knd"], "no column 'knd' for the target. Did you mean 'kind'?"),
        (
            ["flowers.csv", "--target", "kind", "--methods", "erm,c-mixup"],
            "Method 'c-mixup' does not exist for classification",
        ),
        (["flowers.csv", "--target", "kind", "--max-rows", "50"], "has 80 rows, but at most 50 are read"),
        (["flowers.csv", "--target", "kind", "--task", "Regression"], "holds text"),
        (["flowers.csv", "--target", "kind", "--task", "regresion"], "regression"),
        (["flowers.csv", "--target", "kind", "--select", "WORTS"], "worst"),
        (["flowers.csv", "--target", "kind", "--as", "size=nmber"], "Did you mean 'number'?"),
        (["flowers.csv", "--target", "kind", "--methods", "groupdro"], "Name their column with --group"),
    ],
)
def test_mistakes_are_answered_in_one_line(data, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    data.write_csv(tmp_path / "flowers.csv")
    code, output = run("compare", *arguments)
    assert code == 2
    assert message in output.replace("│ ", "")
    assert "Traceback" not in output
    assert not (tmp_path / "compare").exists()


def test_a_missing_package_is_named(monkeypatch, data, tmp_path):
    monkeypatch.setitem(sys.modules, "polars", None)
    code, output = run("compare", tmp_path / "flowers.csv", "--target", "kind")
    assert code == 1
    assert 'This command needs polars: pip install "elliptica[tables]"' in output


def test_without_charts_the_page_is_plain(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    data.write_csv(tmp_path / "flowers.csv")
    code, output = run(
        "compare", tmp_path / "flowers.csv", "--target", "kind", "--out", tmp_path / "out", *QUICK
    )
    assert code == 0, output
    assert "report.html (without charts: A page with charts needs plotly" in output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page
    assert "Every column judged" in page


@pytest.mark.slow
def test_an_output_that_takes_nothing_is_answered(data, tmp_path):
    """Fails for a traceback, and for a success that nobody has seen."""
    data.write_csv(tmp_path / "flowers.csv")
    words = [
        "compare",
        str(tmp_path / "flowers.csv"),
        "--target",
        "kind",
        "--out",
        str(tmp_path / "out"),
        *QUICK,
    ]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "elliptica", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert result.returncode == 1
    assert "cannot be written (No space left on device)" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_ctrl_c_leaves_a_report_and_the_same_command_resumes(data, tmp_path):
    """A real interrupt of a real process in the middle; then the rest, equal to an uninterrupted run."""
    data.write_csv(tmp_path / "flowers.csv")
    options = ["--target", "kind", "--folds", "12", "--trials", "3", "--epochs", "60", "--jobs", "1"]
    options += ["--methods", "elliptic,trees"]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "elliptica", "compare", str(tmp_path / "flowers.csv"), *options),
            *("--out", str(tmp_path / "stopped")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs may ignore it
    )
    file = tmp_path / "stopped" / "results.json"

    def is_begun():
        return file.exists() and '"fold": 0' in file.read_text()

    deadline = time.monotonic() + 200
    while not is_begun() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "Interrupted" in output
    kept = json.loads(file.read_text())["records"]
    assert 1 <= len(kept) < 36
    if "summary" in json.loads(file.read_text()):
        assert "Not finished" in (tmp_path / "stopped" / "report.md").read_text()
    assert not (tmp_path / "stopped" / "model.elliptica").exists()
    results = {}
    for out in ("stopped", "whole"):
        code, output = run("compare", tmp_path / "flowers.csv", *options, "--out", tmp_path / out)
        assert code == 0, output
        results[out] = load_summary(tmp_path / out)
    for name in ("scores", "parts", "verdict", "settings"):
        assert results["stopped"][name] == results["whole"][name]
    assert (tmp_path / "stopped" / "model.elliptica").exists()


def test_what_is_interrupted_is_reported(data, tmp_path, monkeypatch):
    """Ctrl-C after the first fold: scores of that fold, a page, and exit code 130."""
    from elliptica.tables import runner

    run_task = runner.run_task
    calls = []

    def stop_after_one_fold(problem, task, *rest):
        if any(fold.number for fold in task.folds):
            raise KeyboardInterrupt
        calls.append(task)
        return run_task(problem, task, *rest)

    monkeypatch.setattr(runner, "run_task", stop_after_one_fold)
    monkeypatch.setattr(runner, "_STACK_SECONDS", 0.0)  # every fold by itself
    data.write_csv(tmp_path / "flowers.csv")
    words = ["--target", "kind", "--jobs", "1", "--out", tmp_path / "out", "--folds", "3", *QUICK[2:]]
    code, output = run("compare", tmp_path / "flowers.csv", *words)
    assert calls
    assert code == 130
    assert "Interrupted: 1 of 3 folds is finished and kept. Report: " in output
    assert "Rerun the same command to resume" in output
    assert re.search(r"boosted trees +\d", output)
    assert "Not finished: 1 of 3 folds is finished" in (tmp_path / "out" / "report.md").read_text()
    assert not (tmp_path / "out" / "model.elliptica").exists()


def test_wide_tables_are_shortened_to_what_is_noteworthy():
    rows = [[f"x{i}", "number", ""] for i in range(500)]
    rows[7][2] = "--as x7=category"
    rows += [[f"c{i}", f"category, {i + 2} values", ""] for i in range(40)]
    found = shorten(rows)
    assert ["x7", "number", "--as x7=category"] in found
    assert ["x0, x1, x2 and 496 more", "number", ""] in found
    assert ["c0, c1, c2 and 37 more", "category", ""] in found
    assert len(found) == 3
    assert shorten(rows[:16]) == rows[:16]
    many = [[f"x{i}", "number", f"--as x{i}=category"] for i in range(40)]
    assert len(shorten(many)) == 17
    assert shorten(many)[-1][0] == "... and 24 more"


def test_eighty_columns():
    """Nothing is wider than a terminal, and no cell of the table is broken within a word."""
    draws = np.random.default_rng(2)
    frame = pl.DataFrame({"x": draws.normal(size=90), "g": ["a", "b", "c"] * 30, "y": ["rose", "iris"] * 45})
    result = compare(frame, "y", group="g", folds=2, trials=1, epochs=1, hidden=(2,))
    console = Console(width=80, force_terminal=True, color_system=None, file=io.StringIO())
    _print_result(result, [], console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for method in in_order(result):
        assert re.search(rf"^ {re.escape(label(result, method))} +\d", text, re.MULTILINE)
    assert re.search(r"\) *\n +(not distinguishable|better|worse)", text)


def test_commands_are_documented():
    assert compare_command.compare.__doc__
    assert predict_command.predict.__doc__
