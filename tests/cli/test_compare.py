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
from elliptica.cli.compare import _print_result, _progress
from elliptica.estimators import load
from elliptica.tables import comparison as comparison_module
from elliptica.tables import model as model_module
from elliptica.tables.comparison import Session, compare
from elliptica.tables.methods import NAMES

QUICK = ["--set", "folds=2", "--set", "trials=1", "--set", "epochs=2", "--methods", "elliptic,trees"]


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


@pytest.fixture
def table(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data.write_csv("flowers.csv")
    return tmp_path / "flowers.csv"


@pytest.fixture(scope="module")
def done(tmp_path_factory, data):
    """A finished comparison: folder, exit code and lines of the output."""
    folder = tmp_path_factory.mktemp("compare")
    data.write_csv(folder / "flowers.csv")
    words = ["compare", folder / "flowers.csv", "--target", "kind", "--out", folder / "out", *QUICK]
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    return folder, result.exit_code, result.output.splitlines()


def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_help_has_fifteen_options_and_imports_nothing_heavy():
    code = (
        "import sys; from elliptica.cli import app\n"
        "try: app(['compare', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'polars', 'sklearn', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
    assert len(set(re.findall(r"^│ (--[a-z-]+)", result.stdout, re.MULTILINE)) - {"--help"}) == 15


@pytest.mark.slow
def test_only_what_a_comparison_needs_is_imported(table):
    code = (
        "import sys; from elliptica.cli import app\n"
        f"try: app(['compare', {str(table)!r}, '--target', 'kind', *{QUICK!r}])\n"
        "except SystemExit: pass\n"
        "print(sorted({m.split('.')[1] for m in sys.modules if m.startswith('elliptica.')}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "tables" in result.stdout.splitlines()[-1]
    assert not {"'lab'", "'landscape'"} & set(re.findall(r"'\w+'", result.stdout.splitlines()[-1]))


def test_the_screen_from_top_to_bottom(done):
    folder, code, lines = done
    assert code == 0, lines
    text, file = "\n".join(lines), folder / "out" / "model.elliptica"
    places = [
        text.index(words)
        for words in (
            "flowers.csv: 80 rows. Predict kind (classification). Test on random",
            "colour",
            "3 methods, up to 2 settings each, 2 folds. Ctrl-C",
            "100 %",
            "compared with ordinary training",
            results(folder / "out")["summary"]["verdict"]["headline"],
            "Saved: ",
            f"To predict other rows: elliptica predict {file}",
        )
    ]
    assert places == sorted(places)
    trees = next(line for line in lines if line.strip().startswith("boosted trees  "))
    assert re.search(r"\(.* to .*\) ", trees)


def test_everything_is_written(done, data):
    folder, _, lines = done
    out = folder / "out"
    files = {
        ".lock",
        "report.md",
        "report.html",
        "results.json",
        "predictions.npz",
        "model.elliptica",
        "model.md",
    }
    assert {file.name for file in out.iterdir()} == files
    content = results(out)
    card = (out / "model.md").read_text(encoding="utf-8")
    assert "80 rows" in card
    assert content["summary"]["verdict"]["headline"] in card.replace("\\", "")
    assert "Not tested for later rows" in card
    assert "Tested for other rows of the same source." in card
    assert "No groups were judged" in card
    assert len(content["records"]) == 6
    assert set(content["versions"]) >= {"torch", "python", "polars", "scikit-learn"}
    saved = content["summary"]["saved"]
    assert any(f"({NAMES[saved]}, refitted on all rows" in line for line in lines)
    assert len(load(out / "model.elliptica").predict(data.drop("kind"))) == 80


def test_progress_is_neither_silent_nor_chatty():
    console = Console(file=io.StringIO(), force_terminal=False, width=200)
    with _progress(console) as listen:
        for step in range(1001):
            listen(step / 1000, "trials")
    lines = console.file.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == [str(10 * k) for k in range(1, 11)]
    assert all("trials" in line for line in lines)


def test_the_same_command_does_nothing_twice(done):
    folder, _, _ = done
    before = results(folder / "out")["records"]
    code, output = run("compare", folder / "flowers.csv", "--target", "kind", "--out", folder / "out", *QUICK)
    assert code == 0
    assert "(2 of an earlier run kept)" in output
    assert results(folder / "out")["records"] == before


def test_a_table_without_a_file(tmp_path, monkeypatch):
    """The target is known, and a file of the same name wins."""
    monkeypatch.chdir(tmp_path)
    code, output = run("compare", "diabetes", *QUICK)
    assert code == 0, output
    assert output.startswith("diabetes: 442 rows. Predict progression (regression).")
    assert (tmp_path / "compare" / "diabetes" / "model.elliptica").exists()


def test_regression_with_groups_from_end_to_end(data, table):
    options = ["--target", "price", "--group", "kind", "--out", "out", *QUICK[:-1]]
    code, output = run("compare", table, *options, "elliptic,groupdro,linear")
    assert code == 0, output
    assert "GroupDRO †" in output
    code, output = run("predict", "out/model.elliptica", table, "--out", "p.csv")
    assert code == 0, output
    assert pl.read_csv("p.csv")["prediction"].dtype == pl.Float64


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["none.csv", "--target", "kind"], "none.csv"),
        (["flowers.csv"], "target"),
        (["flowers.csv", "--target", "knd"], "knd"),
        (["flowers.csv", "--target", "kind", "--methods", "erm,c-mixup"], "c-mixup"),
        (["flowers.csv", "--target", "kind", "--methods", "groupdro"], "--group"),
        (["flowers.csv", "--target", "kind", "--task", "regression"], "kind"),
        (["flowers.csv", "--target", "kind", "--select", "worts"], "worst"),
        (["flowers.csv", "--target", "kind", "--as", "size=nmber"], "nmber"),
        (["flowers.csv", "--target", "kind", "--time", "size", "--extrapolate", "auto"], "extrapolate"),
        (["flowers.csv", "--target", "kind", "--set", "folds=1000"], "folds"),
        (["flowers.csv", "--target", "kind", "--set", "bounded=maybe"], "bounded"),
        (["flowers.csv", "--target", "kind", "--set", "flods=3"], "flods"),
        (["flowers.csv", "--target", "kind", "--out", "flowers.csv/out"], "flowers.csv"),
    ],
)
def test_mistakes_are_answered_in_one_line(table, arguments, named):
    code, output = run("compare", *arguments)
    assert code in (1, 2)
    assert named in output
    assert "Traceback" not in output
    assert not Path("compare").exists()


def test_a_time_limit_says_what_it_cut(table, monkeypatch):
    code, output = run("compare", table, "--target", "kind", "--minutes", "0", *QUICK)
    assert code == 0
    assert "2 of 2 folds" in output
    assert not Path("compare/flowers/model.elliptica").exists()
    monkeypatch.setattr(comparison_module, "_STACK_ROWS", 0)
    usual, begun = Session._run_task, []

    def run_task(self, task, progress):
        begun.append(task)
        progress.deadline = 0.0 if any(fold.number for fold in task.folds) else None
        return usual(self, task, progress)

    monkeypatch.setattr(Session, "_run_task", run_task)
    options = ["--target", "kind", "--minutes", "60", "--set", "jobs=1", *QUICK]
    code, output = run("compare", table, *options)
    assert code == 0, output
    assert begun
    assert "1 of 2 folds" in output
    assert "1 of 2 folds" in Path("compare/flowers/report.md").read_text()
    assert Path("compare/flowers/model.elliptica").exists()


def test_what_is_interrupted_is_reported(table, monkeypatch):
    """Ctrl-C after the first fold: scores of that fold, a page, and exit code 130."""
    usual = Session._run_task

    def stop_after_one_fold(self, task, *rest):
        if any(fold.number for fold in task.folds):
            raise KeyboardInterrupt
        return usual(self, task, *rest)

    monkeypatch.setattr(Session, "_run_task", stop_after_one_fold)
    monkeypatch.setattr(comparison_module, "_STACK_ROWS", 0)  # every fold by itself
    options = ["--target", "kind", "--set", "jobs=1", "--out", "out", *QUICK]
    code, output = run("compare", table, *options)
    assert code == 130
    assert re.search(r"Interrupted: 1 of 2 folds .* Rerun the same command", output)
    assert re.search(r"boosted trees +\d", output)
    assert "1 of 2 folds" in Path("out/report.md").read_text()
    Path("out/model.elliptica").touch()  # of an earlier run: not of this report
    assert run("compare", table, *options)[0] == 130
    assert not Path("out/model.elliptica").exists()


def test_the_report_does_not_wait_for_the_model(table, monkeypatch):
    monkeypatch.setattr(model_module, "fit_model", lambda *_: (_ for _ in ()).throw(MemoryError()))
    options = ["--target", "kind", "--out", "out", "--set", "hidden=8", "--set", "bounded=off", *QUICK]
    assert run("compare", table, *options)[0] == 1
    plan = results(Path("out"))["plan"]
    assert (plan["hidden"], plan["bounded"]) == ([8], False)
    assert "How it was done" in Path("out/report.html").read_text()


@pytest.mark.slow
def test_an_output_that_takes_nothing_is_answered(table):
    """Fails for a traceback, and for a success that nobody has seen."""
    words = ["compare", str(table), "--target", "kind", "--out", "out", *QUICK]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "elliptica", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert result.returncode == 1
    assert "error: " in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_ctrl_c_leaves_a_report_and_the_same_command_resumes(table):
    """A real interrupt of a real process in the middle; then the rest, equal to an uninterrupted run."""
    words = ["compare", str(table), "--target", "kind", "--methods", "elliptic,trees"]
    for setting in ("folds=12", "trials=3", "epochs=60", "jobs=1"):
        words += ["--set", setting]
    process = subprocess.Popen(
        [sys.executable, "-m", "elliptica", *words, "--out", "stopped"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs may ignore it
    )
    file, deadline = Path("stopped/results.json"), time.monotonic() + 200
    while not (file.exists() and '"fold": 0' in file.read_text()) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "Interrupted" in output
    assert 1 <= len(json.loads(file.read_text())["records"]) < 36
    assert not Path("stopped/model.elliptica").exists()
    summaries = []
    for out in ("stopped", "whole"):
        code, output = run(*words, "--out", out)
        assert code == 0, output
        summaries.append(results(Path(out))["summary"])
    assert summaries[0]["scores"] == summaries[1]["scores"]
    assert summaries[0]["verdict"] == summaries[1]["verdict"]


def test_eighty_columns():
    """Nothing is wider than a terminal, and no cell of the table is broken within a word."""
    draws = np.random.default_rng(2)
    frame = pl.DataFrame({"x": draws.normal(size=90), "g": ["a", "b", "c"] * 30, "y": ["rose", "iris"] * 45})
    found = compare(frame, "y", group="g", folds=2, trials=1, epochs=1, hidden=(2,))
    console = Console(width=80, force_terminal=True, color_system=None, file=io.StringIO())
    _print_result(found, console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for method in found.methods:
        assert re.search(rf"^ {re.escape(NAMES[method])}.* +\d", "\n".join(lines), re.MULTILINE)
