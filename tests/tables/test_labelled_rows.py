"""Tables with targets for a saved model, as `elliptica diagnose` and `elliptica report` read them."""

import numpy as np
import pandas as pd
import pytest
import torch

from elliptica.estimators import EllipticClassifier, EllipticRegressor, save
from elliptica.tables.predict import read_labelled
from elliptica.tables.table import TableError

QUICK = {"hidden": (8,), "max_iter": 3, "random_state": 0}


@pytest.mark.parametrize("named", [True, False], ids=["names", "no-names"])
def test_a_network_without_its_preprocessor_reads_numbers(tmp_path, monkeypatch, named, recwarn):
    monkeypatch.chdir(tmp_path)
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
    with pytest.raises(TableError, match="'a' has missing values, which the model cannot handle"):
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
    with pytest.raises(TableError, match=r"2 values .* 'maybe', which is not among the classes of the model"):
        read_labelled(file, table, "y")


def test_targets_that_are_not_finite_are_missing(tmp_path):
    x = np.arange(20.0)[:, None]
    file = save(EllipticRegressor(**QUICK).fit(x, x[:, 0]), tmp_path / "m.elliptica")
    y = [np.nan, np.inf, *np.arange(18.0)]
    rows = read_labelled(file, pd.DataFrame({"x": x[:, 0], "y": y}), "y")
    assert rows.target.tolist() == y[2:]
    assert rows.notices == ("2 of 20 rows have no target and are dropped.",)


@pytest.mark.parametrize(
    ("form", "cells", "values"),
    [
        ({"sign": "EUR", "grouped": True}, ["1,234.50 EUR", "87 EUR"], [1234.5, 87.0]),
        ({"decimal": ",", "grouped": True}, ["1.234", "987"], [1234.0, 987.0]),
        ({}, ["1,234", "987"], [1234.0, 987.0]),
    ],
    ids=["money", "points", "no notation"],
)
def test_written_numbers_as_targets(tmp_path, form, cells, values):
    model = EllipticRegressor(**QUICK).fit(np.arange(20.0)[:, None], np.arange(20.0))
    notes = {"reading": {"target": {"name": "y", "kind": "number", "form": form}}}
    file = save(model, tmp_path / "m.elliptica", notes=notes)
    table = tmp_path / "t.csv"
    table.write_text("x;y\n" + "".join(f"{i};{cells[i % 2]}\n" for i in range(20)))
    assert read_labelled(file, table, "y").target.tolist() == values * 10


@pytest.mark.bad_input
def test_a_damaged_notation(tmp_path):
    model = EllipticRegressor(**QUICK).fit(np.arange(20.0)[:, None], np.arange(20.0))
    notes = {"reading": {"target": {"name": "y", "kind": "number", "form": {"sign": 7}}}}
    file = save(model, tmp_path / "m.elliptica", notes=notes)
    table = tmp_path / "t.csv"
    table.write_text("x,y\n1,2\n3,4\n")
    with pytest.raises(TableError, match="does not say how to read its columns"):
        read_labelled(file, table, "y")
