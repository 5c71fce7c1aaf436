"""`elliptica diagnose` end to end: the user's own and saved models, wrong input."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from torch import nn
from typer.testing import CliRunner

import elliptica
from elliptica.cli import app
from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor, save

# ---- findings on a model from code


def run(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


@pytest.fixture
def own_model(tmp_path, monkeypatch):
    """A user's code, weights and data in the folder where the command is started."""
    (tmp_path / "diagnosed_file.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Linear(3, 2)\n"
    )
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "weights.pt")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    np.savez(tmp_path / "data.npz", x=x, y=(x[:, 0] > 0).astype(int), group=np.array(["a", "b"] * 20))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.bad_input  # typer cannot read signatures that the shape checker has wrapped
def test_command_on_a_built_in_example():
    done = run("two-moons", "--train", "erm", "--steps", 20)
    assert done.exit_code == 0, done.output
    assert "200 training rows, 1000 held-out rows; 2 classes." in done.stdout
    assert "Checked, no problem:" in done.stdout
    everything = run("two-moons", "--train", "erm", "--steps", 20, "--all").stdout
    assert "[fine] leak" in everything


@pytest.mark.bad_input  # typer cannot read signatures that the shape checker has wrapped
def test_command_on_own_model_as_json(own_model):
    arguments = ["data.npz", "--model", "diagnosed_file:make", "--weights", "weights.pt"]
    done = run(*arguments, "--format", "json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["severity"] in ("fine", "look", "warning")
    model = nn.Linear(3, 2)
    model.load_state_dict(torch.load("weights.pt", weights_only=True))
    arrays = np.load("data.npz")
    x, y = torch.as_tensor(arrays["x"]).float(), torch.as_tensor(arrays["y"])
    direct = elliptica.diagnose(model, nn.CrossEntropyLoss(), x, y, groups=arrays["group"].tolist())
    assert record == json.loads(json.dumps(direct.to_dict()))
    done = run(*arguments, "--format", "json", "--out", "results/found.json", "--loss", "bce")
    assert done.exit_code == 2  # a bce of one label against two outputs
    assert "Give both the same shape" in done.output.replace("\n", " ")
    done = run(*arguments, "--format", "json", "--out", "results/found.json")
    assert json.loads((own_model / "results" / "found.json").read_text()) == record
    assert done.stdout == ""


@pytest.mark.bad_input
def test_command_says_what_is_wrong(own_model):
    for arguments, message in (
        (["absent.npz"], "There is no file absent.npz"),
        (["data.npz", "--weights", "weights.pt"], "--weights needs --model"),
        (["data.npz", "--loss", "l1"], "--loss needs --model"),
        (["data.npz", "--out", "."], "is a folder. Pass the name of a file"),
        (["data.npz", "--model", "diagnosed_file:absent"], "has no 'absent'"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2, done.output
        assert message in re.sub(r"\s+", " ", done.output)


# ---- findings on saved models


ESTIMATOR = {"hidden": (8,), "max_iter": 3, "random_state": 0}
#: typer cannot read signatures that the shape checker has wrapped
COMMAND = pytest.mark.bad_input


def say(*arguments):
    done = CliRunner().invoke(app, ["diagnose", *map(str, arguments)])
    return done, re.sub(r"\s+", " ", done.output)


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


def fitted(frame, target, **settings):
    kind = EllipticRegressor if target == "rent" else EllipticClassifier
    pipeline = make_pipeline(TablePreprocessor(), kind(**ESTIMATOR, **settings))
    return pipeline.fit(frame[["area", "town"]], frame[target])


@COMMAND
@pytest.mark.parametrize("target", ["rent", "let"])
def test_the_command_finds_what_the_function_finds(flats, target):
    pipeline = fitted(flats, target)
    save(pipeline, "model.elliptica")
    done, _ = say("flats.csv", "--model", "model.elliptica", "--target", target, "--format", "json")
    assert done.exit_code == 0, done.output
    rows = pipeline[-1].network_rows(pipeline[:-1].transform(flats[["area", "town"]]), flats[target])
    direct = elliptica.diagnose(*rows)
    found = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    assert found.keys() >= {f.name for f in direct.problems}
    assert "does not use: 'agent'" in done.stderr.replace("\n", " ")


@COMMAND
def test_groups_and_classes_have_their_names(flats):
    save(fitted(flats, "let"), "model.elliptica")
    arguments = ("flats.csv", "--model", "model.elliptica", "--target", "let")
    done, said = say(*arguments, "--group", "agent", "--all")
    assert done.exit_code == 0, done.output
    assert "does not use: 'rent'." in said  # the group is used


@COMMAND
@pytest.mark.slow
def test_on_what_a_comparison_leaves(flats):
    base = ["compare", "flats.csv", "--target", "let", "--group", "agent", "--methods", "erm,elliptic"]
    options = ["--repeats", "1", "--trials", "1", "--epochs", "1", "--out", "out"]
    done = CliRunner().invoke(app, [*base, *options])
    assert done.exit_code == 0, done.output
    done, said = say("flats.csv", "--model", "out/model.elliptica")  # it knows its target
    assert done.exit_code == 0, done.output
    assert "2 classes" in said


@COMMAND
def test_the_command_says_what_is_wrong(flats):
    save(fitted(flats, "rent"), "rent.elliptica")
    pair = EllipticRegressor(**ESTIMATOR).fit(np.eye(4), np.eye(4)[:, :2])
    save(pair, "pair.elliptica")
    ours = ["flats.csv", "--model", "rent.elliptica"]
    flats.head(1).to_csv("one.csv", index=False)
    for arguments, message in (
        (["rent.elliptica"], "is a model, not data. Write: elliptica diagnose DATA --model rent.elliptica"),
        (ours, "rent.elliptica does not say which column it predicts. Pass --target COLUMN."),
        ([*ours, "--target", "Rent"], "has no column 'Rent' for the target. Did you mean 'rent'"),
        ([*ours, "--target", "rent", "--group", "agents"], "has no column 'agents' for the group"),
        ([*ours, "--target", "area"], "'area' is an input of the model"),
        ([*ours, "--target", "let"], "not a number, but the model predicts numbers"),
        ([*ours, "--target", "rent", "--loss", "mse"], "--loss is for a model from your code"),
        (["one.csv", *ours[1:], "--target", "rent"], "at least two are needed"),
        (["flats.csv", "--model", "absent.elliptica", "--target", "rent"], "does not exist"),
        (["flats.csv", "--model", "pair.elliptica", "--target", "rent"], "predicts 2 targets at once"),
        (["two-moons", "--target", "rent"], "columns of a table for a saved model"),
    ):
        done, said = say(*arguments)
        assert done.exit_code == 2, done.output
        assert message in said, said


# ---- saved models of any kind, held-out rows, and the page


@COMMAND
def test_trees_held_out_and_unlabelled_rows(tmp_path, monkeypatch):
    """A file of trees; rows are called by their number in the file, also where targets are missing."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    frame["kind"] = np.where(x[:, 0] > 0, "yes", "no")
    trees = make_pipeline(TablePreprocessor(), HistGradientBoostingClassifier(max_iter=20))
    save(trees.fit(frame[["a", "b", "c"]], frame["kind"]), "trees.elliptica")
    deep = np.flatnonzero(x[:250, 0] > 1)  # rows deep inside a class
    wrong = deep[::3]
    labels = frame["kind"].to_numpy().copy()
    labels[wrong] = "no"
    labels[0] = None
    frame.assign(kind=labels).iloc[:250].to_csv("train.csv", index=False)
    frame.iloc[250:].to_csv("test.csv", index=False)
    (frame[["a", "b", "c"]] + 5).to_csv("later.csv", index=False)
    arguments = ("train.csv", "--model", "trees.elliptica", "--target", "kind", "--test", "test.csv")
    done, said = say(*arguments, "--format", "json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    found = {f["name"]: f for f in record["findings"]}
    assert record["first_row"] == 1
    listed = found["labels"]["rows"]
    assert listed
    assert set(listed) <= set((wrong + 1).tolist())  # numbers of the file, although the first row is dropped
    done, said = say(*arguments, "--unlabelled", "later.csv")
    assert "Unlabelled rows lie elsewhere" in said
    done, said = say("two-moons", "--test", "test.csv")
    assert "x_test, y_test and x_unlabelled" in said


@COMMAND
@pytest.mark.slow
def test_the_page_of_a_diagnosis(tmp_path, monkeypatch, visit):
    """One screen: the headline, each problem with its picture and its rows."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    x = rng.normal(size=(400, 2)) + 4 * y[:, None]
    y[:40] = 1 - y[:40]
    np.savez("data.npz", x=x[:300], y=y[:300], x_test=x[300:], y_test=y[300:])
    done = run("data.npz", "--steps", 300, "--out", "page.html")
    assert done.exit_code == 0, done.output
    for width in (1280, 375):
        seen = visit(tmp_path / "page.html", width=width, dark=width == 375, reduced_motion=True)
        assert "Labels look wrong" in seen.page.inner_text(".verdict")
        first = seen.page.locator("details").first
        assert first.locator(".bar span").count() >= 1
        assert "Training rows, counted from 0:" in first.inner_text()
        assert first.bounding_box()["y"] < 800  # on the first screen
        assert not seen.page.locator("details.info p").first.is_visible()  # folded away
        assert (seen.overflow(), seen.low_contrast(), seen.problems, seen.requests) == ([], [], [], [])
