"""`elliptica diagnose` end to end: the user's own and saved models, wrong input."""

import json
import sys
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
from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor, save

pytestmark = pytest.mark.bad_input  # typer cannot read signatures that the shape checker has wrapped


def run(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


@pytest.fixture
def own_model(tmp_path, monkeypatch):
    """A user's code, weights and data in the folder where the command is started."""
    (tmp_path / "diagnosed_file.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Linear(3, 2)\n"
    )
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "weights.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "pickled.pt")
    x = np.random.default_rng(0).normal(size=(40, 3))
    y, group = (x[:, 0] > 0).astype(int), np.array(["a", "b"] * 20)
    np.savez(tmp_path / "data.npz", x=x, y=y, group=group)
    np.savez(tmp_path / "half.npz", x=x, y=y, x_test=x)
    np.savez(tmp_path / "labels.npz", x=x, y=y + 10**9)
    np.savez(tmp_path / "objects.npz", x=np.array([object()]), y=np.zeros(1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_own_model_is_judged_as_by_the_function(own_model):
    arguments = ["data.npz", "--model", "diagnosed_file:make", "--weights", "weights.pt"]
    done = run(*arguments, "--out", "results/found.json")
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    model = nn.Linear(3, 2)
    model.load_state_dict(torch.load("weights.pt", weights_only=True))
    arrays = np.load("data.npz")
    x, y = torch.as_tensor(arrays["x"]).float(), torch.as_tensor(arrays["y"])
    direct = elliptica.diagnose(model, nn.CrossEntropyLoss(), x, y, groups=arrays["group"].tolist())
    record = json.loads((own_model / "results" / "found.json").read_text())
    assert record == json.loads(json.dumps(direct.to_dict()))
    assert "40 training rows, no held-out rows; 2 classes." in run(*arguments).stdout
    assert "[fine] duplicates" in run(*arguments, "--all").stdout


MAKE = ["--model", "diagnosed_file:make"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["absent.npz", *MAKE],
        ["half.npz", *MAKE],
        ["labels.npz", *MAKE],
        ["objects.npz", *MAKE],
        ["data.npz", *MAKE, "--out", "."],
        ["data.npz", *MAKE, "--loss", "bce"],
        ["data.npz", *MAKE, "--target", "y"],
        ["data.npz", *MAKE, "--weights", "pickled.pt"],
        ["data.npz", "--model", "diagnosed_file:absent"],
        ["data.npz", "--model", "no_such_file:make"],
    ],
)
def test_wrong_input_ends_without_a_result(own_model, arguments):
    done = run(*arguments)
    assert done.exit_code != 0
    assert "Checked" not in done.stdout


@pytest.mark.parametrize("place", ["no jinja2", "read-only"])
def test_what_out_needs_is_checked_before_the_work(own_model, monkeypatch, place):
    began = []
    monkeypatch.setattr("elliptica.cli.diagnose.fitted_from_code", lambda *_: began.append("work"))
    if place == "no jinja2":
        monkeypatch.setitem(sys.modules, "jinja2", None)
    else:
        monkeypatch.setattr("tempfile.mkdtemp", lambda **_: (_ for _ in ()).throw(OSError(30, "Read-only")))
    done = run("data.npz", *MAKE, "--out", "page.html")
    assert done.exit_code != 0
    assert not began


# ---- saved models


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
    for wrong in ([], ["--target", "Rent"], ["--target", "area"], ["--target", target, "--loss", "mse"]):
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


@pytest.mark.slow
def test_the_page_of_a_diagnosis(tmp_path, monkeypatch, visit):
    """One screen: the headline, each problem with its picture and its rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paged_file.py").write_text(
        "import torch\nfrom torch import nn\nmodel = nn.Linear(2, 2)\n"
        "with torch.no_grad():\n    model.weight[:] = torch.tensor([[-1., -1.], [1., 1.]])\n"
        "    model.bias[:] = torch.tensor([4., -4.])\n"
    )
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    x = rng.normal(size=(400, 2)) + 4 * y[:, None]
    y[:40] = 1 - y[:40]
    np.savez("data.npz", x=x[:300], y=y[:300], x_test=x[300:], y_test=y[300:])
    done = run("data.npz", "--model", "paged_file:model", "--out", "page.html")
    assert done.exit_code == 0, done.output
    for width in (1280, 375):
        seen = visit(tmp_path / "page.html", width=width, dark=width == 375)
        text = seen.page.inner_text("body")
        assert "Labels look wrong" in text
        assert "Training rows, counted from 0:" in text
        assert (seen.overflow(), seen.low_contrast(), seen.problems, seen.requests) == ([], [], [], [])
