"""`elliptica diagnose` on saved models and their tables, and what it says where rows are few."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.pipeline import make_pipeline
from torch import nn
from typer.testing import CliRunner

import elliptica
from elliptica.cli import app
from elliptica.compare.predict import read_labelled
from elliptica.compare.table import TableError
from elliptica.diagnostics.quantities import THRESHOLDS, Quantity, undecided
from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor, save

QUICK = {"hidden": (8,), "max_iter": 3, "random_state": 0}
#: typer cannot read signatures that the shape checker has wrapped
COMMAND = pytest.mark.bad_input


def run(*arguments):
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
    pipeline = make_pipeline(TablePreprocessor(), kind(**QUICK, **settings))
    return pipeline.fit(frame[["area", "town"]], frame[target])


@COMMAND
@pytest.mark.parametrize("target", ["rent", "let"])
def test_the_command_finds_what_the_function_finds(flats, target):
    pipeline = fitted(flats, target)
    save(pipeline, "model.elliptica")
    done, _ = run(
        "flats.csv", "--model", "model.elliptica", "--target", target, "--n", 50, "--format", "json"
    )
    assert done.exit_code == 0, done.output
    rows = pipeline[-1].network_rows(pipeline[:-1].transform(flats[["area", "town"]]), flats[target])
    names = None if target == "rent" else ["no", "yes"]
    direct = elliptica.diagnose(*rows, n=50, class_names=names)
    assert json.loads(done.stdout) == json.loads(json.dumps(direct.to_dict()))
    assert ("a loss of 1 is their variance" in done.stderr) == (target == "rent")
    assert "does not use: 'agent'" in done.stderr.replace("\n", " ")


@COMMAND
def test_groups_and_classes_have_their_names(flats):
    save(fitted(flats, "let"), "model.elliptica")
    arguments = ("flats.csv", "--model", "model.elliptica", "--target", "let", "--n", 60)
    _, said = run(*arguments)
    assert "between no and yes" in said
    done, said = run(*arguments, "--group", "agent")
    assert done.exit_code == 0, done.output
    assert "the worst group is" in said
    assert "between north and south" in said
    assert "does not use: 'rent'." in said  # the group is used


@COMMAND
@pytest.mark.slow
def test_on_what_a_comparison_leaves(flats):
    base = ["compare", "flats.csv", "--target", "let", "--group", "agent", "--methods", "erm,elliptic"]
    options = ["--repeats", "1", "--trials", "1", "--epochs", "1", "--out", "out"]
    done = CliRunner().invoke(app, [*base, *options])
    assert done.exit_code == 0, done.output
    done, said = run("flats.csv", "--model", "out/model.elliptica", "--n", 40)  # it knows its target
    assert done.exit_code == 0, done.output
    assert "classification into 2 classes" in said


@pytest.mark.parametrize("named", [True, False], ids=["names", "no-names"])
def test_a_network_without_its_preprocessor_reads_numbers(flats, tmp_path, named, recwarn):
    inputs = pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60.0)[::-1] ** 2})
    labels = np.arange(60) % 3 + 5
    model = EllipticClassifier(**QUICK).fit(inputs if named else inputs.to_numpy(), labels)
    inputs.assign(label=labels, part="x").to_csv("numbers.csv", index=False)
    file = save(model, tmp_path / "m.elliptica")
    rows = read_labelled(file, "numbers.csv", "label", group="part")
    expected = model.network_rows(inputs if named else inputs.to_numpy(), labels)
    assert torch.equal(rows.network.network_rows(rows.inputs, rows.target).x, expected.x)
    assert rows.target.tolist() == labels.tolist()
    assert rows.groups == ["x"] * 60
    assert not [w for w in recwarn if "feature names" in str(w.message)]
    if not named:
        with pytest.raises(TableError, match=r"takes 2 columns without names, but numbers\.csv has 3 beside"):
            read_labelled(file, "numbers.csv", "label")
    inputs.assign(label=labels).replace({"a": {3.0: np.nan}}).to_csv("gaps.csv", index=False)
    with pytest.raises(TableError, match="'a' has missing values, which the model does not take"):
        read_labelled(file, "gaps.csv", "label")


@pytest.mark.parametrize(
    ("classes", "cells"),
    [
        ([3, 7], ["3", "7.0"]),
        ([False, True], ["False", "true"]),
        ([0.5, 1.5], ["0.5", "1.5"]),
        (["no", "yes"], ["no", "yes"]),
    ],
    ids=["whole", "booleans", "real", "text"],
)
def test_labels_of_every_kind(tmp_path, classes, cells):
    x = np.arange(20.0)[:, None]
    labels = np.array(classes * 10, dtype=bool if isinstance(classes[0], bool) else None)
    if classes == [0.5, 1.5]:  # scikit-learn refuses real numbers as classes; so does fit
        labels = (labels > 1).astype(float)
        cells = ["0.0", "1"]
    file = save(EllipticClassifier(**QUICK).fit(x, labels), tmp_path / "m.elliptica")
    table = tmp_path / "t.csv"
    table.write_text("x,y\n" + "".join(f"{i},{cells[i % 2]}\n" for i in range(20)) + "20,\n")
    rows = read_labelled(file, table, "y")
    assert rows.target.tolist() == labels.tolist()
    assert rows.notices == ("1 of 21 rows have no target and are dropped.",)
    table.write_text("x,y\n1,maybe\n2,maybe\n")
    with pytest.raises(TableError, match=r"2 values .* 'maybe', which is none of the classes of the model"):
        read_labelled(file, table, "y")


def test_targets_that_are_not_finite_are_missing(tmp_path):
    x = np.arange(20.0)[:, None]
    file = save(EllipticRegressor(**QUICK).fit(x, x[:, 0]), tmp_path / "m.elliptica")
    y = [np.nan, np.inf, *np.arange(18.0)]
    rows = read_labelled(file, pd.DataFrame({"x": x[:, 0], "y": y}), "y")
    assert rows.target.tolist() == y[2:]
    assert rows.notices == ("2 of 20 rows have no target and are dropped.",)


@COMMAND
def test_the_command_says_what_is_wrong(flats):
    save(fitted(flats, "rent"), "rent.elliptica")
    pair = EllipticRegressor(**QUICK).fit(np.eye(4), np.eye(4)[:, :2])
    save(pair, "pair.elliptica")
    ours = ["flats.csv", "--model", "rent.elliptica"]
    flats.head(1).to_csv("one.csv", index=False)
    for arguments, message in (
        (["rent.elliptica"], "is a model, not data. Write: elliptica diagnose DATA --model rent.elliptica"),
        (ours, "rent.elliptica does not say which column it predicts. Pass --target COLUMN."),
        ([*ours, "--target", "Rent"], "has no column 'Rent' for the target. Did you mean 'rent'"),
        ([*ours, "--target", "rent", "--group", "agents"], "has no column 'agents' for the group"),
        ([*ours, "--target", "area"], "'area' is an input of the model"),
        ([*ours, "--target", "let"], "no number, but the model predicts numbers"),
        ([*ours, "--target", "rent", "--loss", "mse"], "--loss is for a model from your code"),
        (["one.csv", *ours[1:], "--target", "rent"], "at least two are needed"),
        (["flats.csv", "--model", "absent.elliptica", "--target", "rent"], "does not exist"),
        (["flats.csv", "--model", "pair.elliptica", "--target", "rent"], "predicts 2 targets at once"),
        (["two-moons", "--target", "rent"], "columns of a table for a saved model"),
    ):
        done, said = run(*arguments)
        assert done.exit_code == 2, done.output
        assert message in said, said


# ---- few rows


def line(n, d=5):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator)
    return x, x[:, :1] + 0.5 * torch.randn(n, 1, generator=generator)


def all_quantities(found):
    for finding in found.findings:
        yield from [*finding.numbers.items(), *finding.breakdown.items()]


@pytest.mark.parametrize("n", [2, 3, 6])
def test_few_rows_are_called_few_and_no_loss_has_a_negative_limit(n):
    x, y = line(n)
    found = elliptica.diagnose(nn.Linear(5, 1), nn.MSELoss(), x, y, n=60)
    assert any("few rows: limits at the rows themselves are rough below 30" in s for s in found.about)
    for name, quantity in all_quantities(found):
        if ("loss" in name and "above" not in name) or name.startswith("s 0"):
            assert quantity.lower >= 0, name
    assert "inf" not in str(found).replace("infinity", "")
    if n == 2:
        assert "2 values are too few for limits" in found["slope"].sentence
    x, y = line(200)
    enough = elliptica.diagnose(nn.Linear(5, 1), nn.MSELoss(), x, y, n=60)
    assert not any("few rows" in s for s in enough.about)


def test_a_loss_of_ones_own_may_be_negative():
    x, y = line(4)
    found = elliptica.diagnose(
        nn.Linear(5, 1), lambda out, target: (out - target)[:, 0], x, y, n=20, target_space="real"
    )
    assert found["data"].numbers["mean loss"].lower < 0


def test_a_rare_class_is_not_passed_over_in_silence():
    """Three rows of class 1 are too few to judge; then no other class is called the worst."""
    y = torch.tensor([1] * 3 + [0] * 27)
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)) + 3 * y[:, None]
    found = elliptica.diagnose(
        nn.Linear(2, 2), nn.CrossEntropyLoss(), x, y, n=60, class_names=["common", "rare"]
    )
    assert "Classes with fewer than 5 rows are not judged: rare (3)." in found["data"].sentence
    assert "the worst class" not in found["data"].sentence
    assert list(found["data"].breakdown) == ["class common"]


@pytest.mark.parametrize(("confidence", "limit"), [(0.95, 0.05), (0.99, 0.01), (0.9, 0.5)])
def test_rows_needed_to_exclude_a_share_are_the_fewest(confidence, limit):
    needed = Quantity.share(0, 3, confidence).values_needed(limit)
    if needed is None:  # three are enough
        assert Quantity.share(0, 3, confidence).upper <= limit
        return
    assert Quantity.share(0, needed, confidence).upper <= limit
    assert Quantity.share(0, needed - 1, confidence).upper > limit


def test_rows_needed_for_a_mean_settle_it():
    """As many values of the same spread bring the limit to the threshold, up to Student's factor."""
    values = torch.tensor([1.0, 3.0]).repeat(10)
    needed = Quantity.mean(values, 0.95).values_needed(2.1)
    more = Quantity.mean(torch.tensor([1.0, 3.0]).repeat(needed // 2 + 1), 0.95)
    assert more.upper <= 2.1 < Quantity.mean(values, 0.95).upper
    assert more.upper == pytest.approx(2.1, abs=0.01)
    for settled in (1.0, 3.5):
        assert Quantity.mean(values, 0.95).values_needed(settled) is None
    assert Quantity.number(1.0).values_needed(0.5) is None
    assert Quantity.median(values[:2], 0.95).values_needed(2.5) == 1_000_000


def test_what_few_rows_cannot_exclude_is_said():
    x, y = line(6)
    found = elliptica.diagnose(nn.Linear(5, 1), nn.MSELoss(), x, y, n=60)["slope"]
    share = found.numbers["share of steep points at the data"]
    assert (share.value, found.severity) == (0, "fine")
    assert "6 rows are too few to tell whether it is above 5%" in found.advice
    assert "Pass more rows: about 72 are needed" in found.advice
    assert undecided("slope", Quantity.share(0, 72, 0.95)) is None
    assert "Raise n: many more" in undecided("profile", Quantity(0.1, 0.0, 1.0, 0.1, 5, "mean"), of="points")


@pytest.mark.parametrize(("height", "severity"), [(0.001, "fine"), (0.1, "look"), (0.3, "warning")])
def test_points_above_every_loss_must_be_so_by_an_amount_that_matters(height, severity):
    """A perfect fit at two places, off by ``height`` between them: each point is above, y varies by 1/4."""

    class Bump(nn.Module):
        def forward(self, x):
            return x + height * ((x > 0) & (x < 1))

    x = (torch.arange(40) % 2).double()[:, None]
    found = elliptica.diagnose(Bump(), nn.MSELoss(), x, x, n=400, sigma=0.0)["between"]
    assert found.severity == severity
    assert found.numbers["share above"].lower > THRESHOLDS["between"].warning
    excess = found.numbers["mean excess of those"].value
    assert excess == pytest.approx(height**2, rel=1e-6)
    assert (excess / 0.25 > 0.1) == (severity == "warning")


@pytest.mark.bad_input
def test_names_of_classes_must_fit():
    x, y = line(20)
    labels = (y[:, 0] > 0).long()
    with pytest.raises(ValueError, match="one name for each class, but there are 3 names and 2 classes"):
        elliptica.diagnose(nn.Linear(5, 2), nn.CrossEntropyLoss(), x, labels, class_names="abc")
    with pytest.raises(ValueError, match="2 names and no single classes"):
        elliptica.diagnose(nn.Linear(5, 1), nn.MSELoss(), x, y, class_names="ab")
