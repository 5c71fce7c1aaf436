"""Files that version 0.1.0 wrote before its modules moved are read, and mean what they meant.

They lie in `tests/fixtures`, each beside what the code of that time made of it.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.lab.training.test_loop import dataset, train
from typer.testing import CliRunner

from elliptica.cli import app

FOLDER = Path(__file__).resolve().parent / "fixtures"
RESULTS = FOLDER.parent.parent / "results"


def expected(name):
    return json.loads((FOLDER / name / "expected.json").read_text(encoding="utf-8"))


def run(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_an_old_comparison_is_neither_resumed_nor_overwritten(tmp_path):
    """It was judged by repeated splits, not row by row: what it left stays as it is."""
    shutil.copytree(FOLDER / "compare" / "run", tmp_path / "run")
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    options = ["--target", "answer", "--group", "site", "--out", tmp_path / "run"]
    for words, message in (
        (["compare", FOLDER / "compare" / "data.csv", *options], "cannot be resumed. Choose another --out"),
        (["report", tmp_path / "run", "-o", tmp_path / "page.html"], "was written by an earlier version"),
    ):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 2
        assert message in " ".join(done.output.split())
    after = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    after.pop(".lock", None)  # of the command that was refused
    assert before == after


def test_records_give_the_table_that_they_gave():
    options = ["--dataset", "no2", "--methods", "erm,elliptic", "--seeds", 1, "--epochs", 2]
    printed = run("table", "table3", *options, "--out", FOLDER / "runs")
    then = (FOLDER / "runs" / "table.md").read_text(encoding="utf-8")
    assert printed.split("This table again")[0].strip() == then.split("This table again")[0].strip()


@pytest.mark.parametrize("source", [FOLDER / "runs"])
def test_results_become_a_page(source, tmp_path):
    run("report", source, "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 1e5


def test_chosen_settings_are_applied():
    """With --tuned, a table looks for the settings that `elliptica tune` chose and left as files."""
    options = ["--dataset", "waterbirds-features", "--methods", "erm,elliptic", "--tuned"]
    printed = run("table", "table4", *options, "--out", RESULTS / "tables")
    assert "not recorded" not in printed


def test_training_resumes_from_a_checkpoint(tmp_path):
    file = tmp_path / "run.safetensors"
    shutil.copy(FOLDER / "training" / "run.safetensors", file)
    epochs = []
    model, result = train(checkpoint=file, progress=lambda end: epochs.append(end.epoch))
    known = expected("training")
    assert len(epochs) == 3  # of six; three were done
    assert result.epoch == known["epoch"]
    with torch.no_grad():
        outputs = model.eval()(dataset().test.x[:10]).flatten()
    torch.testing.assert_close(outputs, torch.tensor(known["outputs"]), rtol=1e-4, atol=1e-5)
