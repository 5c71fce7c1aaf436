"""`elliptica diagnose` end to end: findings and reports, the user's own and saved models, wrong input."""

import json
import re
from pathlib import Path

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
from elliptica.cli.diagnose import parse_sigma
from elliptica.diagnostics.landscape_reports import QUESTIONS
from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor, save
from table_cases import npz_table

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
    done = run("two-moons", "--train", "erm", "--steps", 20, "--n", 60)
    assert done.exit_code == 0, done.output
    assert "200 training rows, 1000 held-out rows; 2 classes." in done.stdout
    assert "To see the loss between and around the rows: .everything(), or --all." in done.stdout
    assert "Checked, no problem:" in done.stdout
    everything = run("two-moons", "--train", "erm", "--steps", 20, "--n", 60, "--all").stdout
    for title in ("Loss along a bridge", "Slope of the loss", "What the PDE expects"):
        assert f"[info] {title}" in everything
    assert "[fine] leak" in everything


@pytest.mark.bad_input  # typer cannot read signatures that the shape checker has wrapped
def test_command_on_own_model_as_json(own_model):
    arguments = ["data.npz", "--model", "diagnosed_file:make", "--weights", "weights.pt", "--n", "40"]
    done = run(*arguments, "--format", "json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["severity"] in ("fine", "look", "warning")
    model = nn.Linear(3, 2)
    model.load_state_dict(torch.load("weights.pt", weights_only=True))
    arrays = np.load("data.npz")
    x, y = torch.as_tensor(arrays["x"]).float(), torch.as_tensor(arrays["y"])
    direct = elliptica.diagnose(model, nn.CrossEntropyLoss(), x, y, groups=arrays["group"].tolist(), n=40)
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
        (["data.npz", "--sigma", "lots"], "must be auto, green or a number"),
        (["data.npz", "--model", "diagnosed_file:absent"], "has no 'absent'"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2, done.output
        assert message in re.sub(r"\s+", " ", done.output)
    assert parse_sigma("green") == "green"


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
    done, _ = say(
        "flats.csv", "--model", "model.elliptica", "--target", target, "--n", 50, "--format", "json"
    )
    assert done.exit_code == 0, done.output
    rows = pipeline[-1].network_rows(pipeline[:-1].transform(flats[["area", "town"]]), flats[target])
    direct = elliptica.diagnose(*rows, n=50)
    found = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    between = direct["between"].numbers["share above"]
    assert found["between"]["numbers"]["share above"]["value"] == pytest.approx(between.value)
    assert "does not use: 'agent'" in done.stderr.replace("\n", " ")


@COMMAND
def test_groups_and_classes_have_their_names(flats):
    save(fitted(flats, "let"), "model.elliptica")
    arguments = ("flats.csv", "--model", "model.elliptica", "--target", "let", "--n", 60)
    _, said = say(*arguments, "--all")
    assert "between no and yes" in said
    done, said = say(*arguments, "--group", "agent", "--all")
    assert done.exit_code == 0, done.output
    assert "between north and south" in said
    assert "does not use: 'rent'." in said  # the group is used


@COMMAND
@pytest.mark.slow
def test_on_what_a_comparison_leaves(flats):
    base = ["compare", "flats.csv", "--target", "let", "--group", "agent", "--methods", "erm,elliptic"]
    options = ["--repeats", "1", "--trials", "1", "--epochs", "1", "--out", "out"]
    done = CliRunner().invoke(app, [*base, *options])
    assert done.exit_code == 0, done.output
    done, said = say("flats.csv", "--model", "out/model.elliptica", "--n", 40)  # it knows its target
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


# ---- reports

QUICK = ["--steps", "50", "--probes", "40", "--walks", "20"]


@pytest.mark.bad_input  # typer cannot read signatures that the shape checker has wrapped
def test_two_moons_from_nothing(tmp_path):
    done = run("two-moons", "--reports", "all", *QUICK, "--train", "erm", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "landscape.json").read_text())
    assert set(record["reports"]) == set(QUESTIONS)
    computed = {name for name, report in record["reports"].items() if report["numbers"] is not None}
    assert computed == set(QUESTIONS) - {"shift", "ordering"}  # for regression; for rare classes
    values = record["reports"]["landscape"]["numbers"]["value"]
    assert len(values) == 200
    assert (tmp_path / "landscape.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.bad_input  # typer cannot read signatures that the shape checker has wrapped
def test_a_full_disk_leaves_no_half_picture(tmp_path, monkeypatch):
    def full(_, part, **__):
        Path(part).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    done = run("two-moons", "--reports", "between", *QUICK, "--out", tmp_path)
    assert done.exit_code == 2
    told = "".join(done.output.split())  # a long path is wrapped
    assert "landscape.pngcannotbewritten(Nospaceleftondevice).Freesomespace" in told
    assert [file.name for file in tmp_path.iterdir()] == ["landscape.json"]


@pytest.mark.bad_input  # typer cannot read signatures that the shape checker has wrapped
def test_own_regression_model_with_weights(model_file):
    npz_table(model_file / "data.npz", group_test=np.arange(15) % 2)
    torch.manual_seed(0)
    torch.save(
        nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).state_dict(), model_file / "weights.pt"
    )
    arguments = [
        "--model",
        "my_model_file:make",
        "--weights",
        model_file / "weights.pt",
        "--out",
        model_file,
        "--reports",
        "all",
    ]
    done = run(model_file / "data.npz", *arguments, "--probes", "40", "--walks", "20")
    assert done.exit_code == 0, done.output
    record = json.loads((model_file / "landscape.json").read_text())
    assert record["model"] == "my_model_file:make"
    computed = {name for name, report in record["reports"].items() if report["numbers"] is not None}
    assert computed == set(QUESTIONS) - {"ordering"}
    groups = record["reports"]["test"]["numbers"]["by_group"]
    assert [g["name"] for g in groups] == ["0", "1"]


@pytest.mark.bad_input  # typer cannot read signatures that the shape checker has wrapped
def test_same_seed_same_file(tmp_path):
    npz_table(tmp_path / "data.npz", classes=2)
    outputs = []
    for name in ("a", "b"):
        run(tmp_path / "data.npz", *QUICK, "--reports", "landscape", "--out", tmp_path / name)
        outputs.append((tmp_path / name / "landscape.json").read_text())
    assert outputs[0] == outputs[1]


@pytest.mark.bad_input
def test_reports_say_what_is_wrong(model_file):
    npz_table(model_file / "data.npz", d=5)
    (model_file / "file.txt").write_text("mine")
    own = ["data.npz", "--model", "my_model_file:make"]
    for arguments, message in (
        ([*own, "--reports", "all"], "cannot be evaluated on the data"),
        ([*own, "--reports", "everything"], "There is no report 'everything'"),
        ([*own, "--reports", "between,hiting"], "Did you mean 'hitting'?"),
        ([*own, "--reports", "all", "--n", "50"], "--n is an option of the findings"),
        ([*own, "--reports", "all", "--format", "json"], "--format is an option of the findings"),
        ([*own, "--walks", "20"], "--walks is an option of the reports. Add --reports all"),
        ([*own, "--reports", "all", "--out", "file.txt"], "the reports need a folder"),
        ([*own, "--out", "."], "is a folder. Pass the name of a file"),
        (["data.npz", "--reports", "all", "--weights", "weights.pt"], "--weights needs --model"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2, done.output
        assert message in re.sub(r"\s+", " ", done.output), done.output
    assert not (model_file / "landscape").exists()
    npz_table(model_file / "data.npz")
    done = run(*own, "--reports", "all", "--fraction", "2")
    assert done.exit_code == 2
    assert "fraction" in done.output
    npz_table(model_file / "data.npz", d=10)
    done = run("data.npz", "--reports", "all", *QUICK, "--domain", "hull")
    assert done.exit_code == 2
    assert "not feasible" in done.output


@COMMAND
def test_reports_on_a_saved_model(flats, tmp_path):
    save(fitted(flats, "let"), "model.elliptica")
    arguments = ["flats.csv", "--model", "model.elliptica", "--target", "let", "--reports", "between,weights"]
    done = run(*arguments, "--probes", 40, "--walks", 20, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "out" / "landscape.json").read_text())
    assert record["model"] == "model.elliptica"
    assert list(record["reports"]) == ["between", "weights"]
    assert all(report["numbers"] is not None for report in record["reports"].values())


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
    assert "between" not in found  # trees have no gradient
    done, said = say(*arguments, "--unlabelled", "later.csv")
    assert "Unlabelled rows lie elsewhere" in said
    done, said = say("train.csv", "--model", "trees.elliptica", "--target", "kind", "--reports", "all")
    assert done.exit_code == 2
    assert "only networks have a loss landscape" in said
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
    done = run("data.npz", "--steps", 300, "--n", 60, "--out", "page.html")
    assert done.exit_code == 0, done.output
    for width in (1280, 375):
        seen = visit(tmp_path / "page.html", width=width, dark=width == 375, reduced_motion=True)
        assert "Labels look wrong" in seen.page.inner_text("#verdict")
        first = seen.page.locator(".findings > li").first
        assert first.locator("svg rect.bar").count() >= 1
        assert "Training rows, counted from 0:" in first.inner_text()
        assert first.bounding_box()["y"] < 800  # on the first screen
        assert not seen.page.locator("li.info").first.is_visible()  # folded away
        assert (seen.overflow(), seen.low_contrast(), seen.problems, seen.requests) == ([], [], [], [])
