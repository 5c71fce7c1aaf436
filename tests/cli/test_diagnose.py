"""`elliptica diagnose` end to end: saved models, wrong input."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor, save

pytestmark = pytest.mark.bad_input  # typer cannot read signatures that the shape checker has wrapped


def run(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


@pytest.fixture
def flats(tmp_path, monkeypatch):
    """A table with text, gaps, groups and both kinds of targets, in the folder of the command."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "area": np.where(np.arange(60) % 9 == 0, np.nan, rng.normal(70, 20, 60)),
            "town": rng.choice(["A", "B"], 60),
            "agent": rng.choice(["north", "south"], 60),
            "rent": rng.normal(900, 100, 60),
            "let": rng.choice(["no", "yes"], 60),
        }
    )
    frame.to_csv("flats.csv", index=False)
    return frame


@pytest.mark.parametrize("target", ["rent", "let"])
def test_saved_model_is_judged_as_it_predicts(flats, target):
    kind = EllipticRegressor if target == "rent" else EllipticClassifier
    pipeline = make_pipeline(TablePreprocessor(), kind(hidden=(8,), max_iter=3, random_state=0))
    save(pipeline.fit(flats[["area", "town"]], flats[target]), "model.elliptica")
    base = ["flats.csv", "--model", "model.elliptica"]
    done = run(*base, "--target", target, "--group", "agent", "--out", "found.json")
    assert done.exit_code == 0, done.output
    findings = {f["name"]: f for f in json.loads(Path("found.json").read_text())["findings"]}
    assert findings["weak_part"]["computed"]  # by group
    for wrong in ([], ["--target", "Rent"], ["--target", "area"]):
        assert run(*base, *wrong).exit_code != 0, wrong


def test_trees_held_out_and_unlabelled_rows(tmp_path, monkeypatch):
    """A file of trees; rows are called by their number in the file, also where targets are missing."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    frame["kind"] = np.where(x[:, 0] > 0, "yes", "no")
    trees = make_pipeline(TablePreprocessor(), HistGradientBoostingClassifier(max_iter=20))
    save(trees.fit(frame[["a", "b", "c"]], frame["kind"]), "trees.elliptica")
    wrong = np.flatnonzero(x[:250, 0] > 1)[::3]  # rows deep inside a class
    labels = frame["kind"].to_numpy().copy()
    labels[wrong] = "no"
    labels[0] = None
    frame.assign(kind=labels).iloc[:250].to_csv("train.csv", index=False)
    frame.iloc[250:].to_csv("test.csv", index=False)
    (frame[["a", "b", "c"]] + 5).to_csv("later.csv", index=False)
    arguments = ("train.csv", "--model", "trees.elliptica", "--target", "kind", "--test", "test.csv")
    done = run(*arguments, "--unlabelled", "later.csv", "--out", "found.json")
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "found.json").read_text())
    findings = {f["name"]: f for f in record["findings"]}
    assert record["first_row"] == 1
    listed = findings["labels"]["rows"]
    assert listed
    assert set(listed) <= set((wrong + 1).tolist())  # numbers of the file, although the first row is dropped
    assert findings["shift"]["rows_of"] == "unlabelled"


@pytest.fixture
def trees(tmp_path, monkeypatch):
    """A file of trees and their rows, in the folder of the command; some labels are wrong."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    x = rng.normal(size=(400, 2)) + 4 * y[:, None]
    y[:40] = 1 - y[:40]
    frame = pd.DataFrame(x, columns=["a", "b"]).assign(kind=np.where(y, "yes", "no"))
    frame.iloc[:300].to_csv("train.csv", index=False)
    frame.iloc[300:].to_csv("test.csv", index=False)
    model = make_pipeline(TablePreprocessor(), HistGradientBoostingClassifier(max_iter=5))
    save(model.fit(frame[["a", "b"]][:300], frame["kind"][:300]), "trees.elliptica")
    return ["train.csv", "--model", "trees.elliptica", "--target", "kind", "--test", "test.csv"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["absent.csv", "--model", "trees.elliptica", "--target", "kind"],
        ["train.csv", "--model", "absent.elliptica", "--target", "kind"],
        ["train.csv", "--model", "test.csv", "--target", "kind"],
        ["train.csv", "--model", "trees.elliptica", "--target", "kind", "--out", "."],
        ["train.csv", "--model", "trees.elliptica"],
    ],
)
def test_wrong_input_ends_without_a_result(trees, arguments):
    done = run(*arguments)
    assert done.exit_code != 0
    assert "Checked" not in done.stdout


def test_the_terminal_shows_problems_or_every_finding(trees):
    assert "300 training rows, 100 held-out rows; 2 classes." in run(*trees).stdout
    assert "[fine] duplicates" not in run(*trees).stdout
    assert "[fine] duplicates" in run(*trees, "--all").stdout


@pytest.mark.parametrize("place", ["no jinja2", "read-only"])
def test_what_out_needs_is_checked_before_the_work(trees, monkeypatch, place):
    began = []
    monkeypatch.setattr("elliptica.tables.model.read_fitted", lambda *_, **__: began.append("work"))
    if place == "no jinja2":
        monkeypatch.setitem(sys.modules, "jinja2", None)
    else:
        monkeypatch.setattr("tempfile.mkdtemp", lambda **_: (_ for _ in ()).throw(OSError(30, "Read-only")))
    done = run(*trees, "--out", "page.html")
    assert done.exit_code != 0
    assert not began


@pytest.mark.slow
def test_the_page_of_a_diagnosis(trees, visit):
    """One screen: the headline, each problem with its picture and its rows."""
    done = run(*trees, "--out", "page.html")
    assert done.exit_code == 0, done.output
    for width in (1280, 375):
        seen = visit(Path("page.html").absolute(), width=width, dark=width == 375)
        text = seen.page.inner_text("body")
        assert "Labels look wrong" in text
        assert "Training rows, counted from 1:" in text
        assert (seen.overflow(), seen.low_contrast(), seen.problems, seen.requests) == ([], [], [], [])
