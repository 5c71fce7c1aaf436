"""`elliptica compare` and `elliptica predict` as a user runs them, Ctrl-C included."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.cli import compare as compare_command
from elliptica.cli import predict as predict_command
from elliptica.compare import TableError, predict_file
from elliptica.estimators import EllipticClassifier, load, save

QUICK = ["--repeats", "2", "--trials", "1", "--epochs", "2", "--methods", "elliptic"]


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
    """A finished comparison: folder, exit code and output."""
    folder = tmp_path_factory.mktemp("compare")
    data.write_csv(folder / "flowers.csv")
    code, output = run("compare", folder / "flowers.csv", "--target", "kind", "--out", folder / "out", *QUICK)
    return folder, code, output


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from elliptica.cli import app\n"
        "try: app(['compare', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'polars', 'sklearn', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
    assert "--split-by" in result.stdout


def test_compare_writes_everything(done):
    folder, code, output = done
    assert code == 0, output
    assert "Task: classification, because 'kind' holds text" in output
    assert "No verdict: 2 finished repeats are too few" in output
    assert re.search(r"elliptic training . \d", output)  # a row of the table
    out = folder / "out"
    assert {file.name for file in out.iterdir()} == {
        "report.md",
        "report.html",
        "results.json",
        "model.elliptica",
    }
    results = json.loads((out / "results.json").read_text())
    assert results["finished"] == results["runs"] == len(results["records"]) == 4
    assert results["verdict"]["complete"] is True
    assert results["about"]["trials"] == 1
    assert set(results["versions"]) >= {"torch", "python", "polars", "scikit-learn"}
    assert "flowers.csv" in (out / "report.md").read_text()


def test_without_a_terminal_every_finished_run_has_a_line(done):
    _, _, output = done
    found = re.findall(r"repeat (\d) of 2, (ordinary|elliptic) training done, \d+ (?:s|min) so far", output)
    assert found == [("1", "ordinary"), ("1", "elliptic"), ("2", "ordinary"), ("2", "elliptic")]


def test_the_same_command_does_nothing_twice(done):
    folder, _, _ = done
    before = json.loads((folder / "out" / "results.json").read_text())["records"]
    code, output = run("compare", folder / "flowers.csv", "--target", "kind", "--out", folder / "out", *QUICK)
    assert code == 0
    assert "4 runs done already" in output
    assert json.loads((folder / "out" / "results.json").read_text())["records"] == before


def test_the_model_is_the_chosen_method_on_all_rows(done, data):
    folder, _, _ = done
    model = load(folder / "out" / "model.elliptica")
    assert model[-1].method == "erm"
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
    new.write_text("size,colour,price\n5.0,red,10\n\n,,\n-5.0,green,9\n\n")
    code, output = run("predict", folder / "out" / "model.elliptica", new, "--out", tmp_path / "p.csv")
    assert code == 0, output
    assert len(pl.read_csv(tmp_path / "p.csv")) == 3
    assert "Column 'size': 1 missing values are replaced by" in output
    assert re.search(r"Column 'colour': 2 values were not seen in training, e\.g\. '\(missing\)'", output)


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
    odd = data.with_columns(pl.Series("price", ["1", "2", *["3 euro"] * 8, *["4"] * 70]))
    assert "'price' held numbers when the model was trained, but now 8 of 80 values are none" in answer(odd)
    assert "no column 'nam' for the id. There are" in answer(data, "--id", "nam")
    mine = data.with_columns(pl.Series("prediction", range(80)))
    assert "a column 'prediction' of their own" in answer(mine, "--id", "prediction")
    assert "has 80 rows; at most 79 are read, because all of them are held in memory" in (
        answer(data, "--max-rows", "79")
    )
    (tmp_path / "junk.elliptica").write_bytes(b"junk")
    junk = answer(data, model=tmp_path / "junk.elliptica")
    assert "The model cannot be read: " in junk
    assert junk.count("junk.elliptica") == 1
    assert "does not exist" in answer(data, model=tmp_path / "none.elliptica")
    bare = EllipticClassifier(max_iter=1).fit(data.select("size", "price").to_numpy(), data["kind"].to_list())
    save(bare, tmp_path / "bare.elliptica")
    assert "without its preprocessing" in answer(data, model=tmp_path / "bare.elliptica")
    file = folder / "flowers.csv"
    code, output = run("predict", model, file, "--out", file)
    assert code == 2
    assert "would overwrite the table itself" in output


def test_predict_finds_a_bad_out_before_it_reads_the_table(done, monkeypatch, tmp_path):
    folder, _, _ = done
    monkeypatch.setattr("elliptica.compare.predict.read_table", lambda *_, **__: pytest.fail("read"))
    (tmp_path / "file").write_text("x")
    model, table = folder / "out" / "model.elliptica", folder / "flowers.csv"
    code, output = run("predict", model, table, "--out", tmp_path / "file" / "p.csv")
    assert code == 2, output
    assert "Nothing can be written to the folder" in output
    with pytest.raises(TableError, match=r"is a folder\. Pass the name of a CSV file"):
        predict_file(model, table, tmp_path)


def test_predict_can_be_interrupted(done, monkeypatch, tmp_path):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    folder, _, _ = done
    monkeypatch.setattr("elliptica.compare.predict.read_table", interrupt)
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
    assert "error: Nothing can be written to the folder" in output
    assert "Choose another --out" in output


def test_regression_from_end_to_end(data, tmp_path):
    data.write_csv(tmp_path / "flowers.csv")
    arguments = ["--target", "price", "--group", "kind", "--trees", "--out", tmp_path / "out", *QUICK]
    code, output = run("compare", tmp_path / "flowers.csv", *arguments)
    assert code == 0, output
    assert "worst-group RMSE" in (tmp_path / "out" / "report.md").read_text()
    model = tmp_path / "out" / "model.elliptica"
    code, output = run("predict", model, tmp_path / "flowers.csv", "--out", tmp_path / "p.csv")
    assert code == 0, output
    predicted = pl.read_csv(tmp_path / "p.csv")["prediction"]
    assert predicted.dtype == pl.Float64
    assert predicted.is_finite().all()
    code, output = run("predict", model, tmp_path / "flowers.csv", "--proba", "--out", tmp_path / "p.csv")
    assert code == 2
    assert "Leave --proba out" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.csv", "--target", "kind"], "none.csv does not exist"),
        (["flowers.csv", "--target", "knd"], "no column 'knd' for the target. Did you mean 'kind'?"),
        (["flowers.csv", "--target", "kind", "--methods", "erm,c-mixup"], "no method 'c-mixup'"),
        (["flowers.csv", "--target", "kind", "--max-rows", "50"], "has 80 rows; at most 50 are read"),
        (["flowers.csv", "--target", "kind", "--task", "Regression"], "holds text"),
        (["flowers.csv", "--target", "kind", "--task", "regresion"], "'regression'?"),
        (["flowers.csv", "--target", "kind", "--select", "WORTS"], "Did you mean 'worst'?"),
        (["flowers.csv", "--target", "kind", "--methods", "ELIPTIC"], "Did you mean 'elliptic'?"),
    ],
)
def test_mistakes_are_answered_in_one_line(data, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    data.write_csv(tmp_path / "flowers.csv")
    code, output = run("compare", *arguments)
    assert code == 2
    assert f"error: {message}" in output or message in output
    assert "Traceback" not in output
    assert "Value error" not in output
    assert not (tmp_path / "compare").exists()


def test_a_missing_package_is_named(monkeypatch, data, tmp_path):
    monkeypatch.setitem(sys.modules, "polars", None)
    code, output = run("compare", tmp_path / "flowers.csv", "--target", "kind")
    assert code == 1
    assert 'This command needs polars: pip install "elliptica[tables]"' in output


@pytest.mark.slow
def test_ctrl_c_leaves_results_and_the_same_command_goes_on(data, tmp_path):
    """A real interrupt of a real process in the middle; then the rest, equal to an uninterrupted run."""
    data.write_csv(tmp_path / "flowers.csv")
    options = ["--target", "kind", "--repeats", "4", "--trials", "1", "--epochs", "100"]
    options += ["--methods", "elliptic"]

    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "elliptica",
            "compare",
            str(tmp_path / "flowers.csv"),
            *options,
            "--out",
            str(tmp_path / "stopped"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs may ignore it
    )
    file = tmp_path / "stopped" / "results.json"
    deadline = time.monotonic() + 200
    while not file.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "Interrupted" in output
    kept = json.loads(file.read_text())
    assert 1 <= kept["finished"] < 8
    assert kept["verdict"]["complete"] is False
    assert "Not finished" in (tmp_path / "stopped" / "report.md").read_text()
    assert not (tmp_path / "stopped" / "model.elliptica").exists()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the process above
    results = {}
    for out in ("stopped", "whole"):
        code, output = run("compare", tmp_path / "flowers.csv", *options, "--out", tmp_path / out)
        assert code == 0, output
        results[out] = json.loads((tmp_path / out / "results.json").read_text())
    torch.set_num_threads(threads)
    numbers = {
        out: [(r["repeat"], r["method"], r["test"], r["chosen"]) for r in content["records"]]
        for out, content in results.items()
    }
    assert numbers["stopped"] == numbers["whole"]
    assert results["stopped"]["records"][: kept["finished"]] == kept["records"]
    assert (tmp_path / "stopped" / "model.elliptica").exists()


def test_commands_are_documented():
    assert compare_command.compare.__doc__
    assert predict_command.predict.__doc__
