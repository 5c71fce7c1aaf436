"""The page about one model: scores against independent ones, and its findings."""

import math

import numpy as np
import polars as pl
import pytest
import torch
from sklearn import metrics as sk
from torch import nn

from elliptica.estimators import EllipticRegressor, save
from elliptica.tables.diagnose import model_page, saved_model_page
from elliptica.tables.evidence import FittedModel, Rows


def tables(page):
    """Cells by heading and first cell of the row."""
    return {s.heading: {row[0]: row[1:] for row in s.table[1:]} for s in page.sections if s.table}


def test_scores_of_classes_agree_with_scikit_learn(generator):
    x = torch.randn(200, 3, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 1).long()
    model, groups = nn.Linear(3, 3), ["a" if value > 0 else "b" for value in x[:, 2]]
    names = ["u", "v", "w"]
    rows = {"training": Rows(x, y, groups)}
    page = model_page(FittedModel(model, nn.CrossEntropyLoss(), rows, names), "title")
    guess, found = model(x).argmax(1), tables(page)
    share, limits = found["Scores"]["accuracy"]
    assert float(share.removesuffix(" %")) == pytest.approx(100 * sk.accuracy_score(y, guess), abs=0.05)
    low, high = map(float, limits.split(" to "))
    assert low < float(share.removesuffix(" %")) < high
    recalls = sk.recall_score(y, guess, average=None)
    shown = [float(found["By class"][name][1].removesuffix(" %")) for name in names]
    assert shown == pytest.approx(100 * recalls, abs=0.05)
    assert {name: int(row[0]) for name, row in found["By group"].items()} == {
        name: groups.count(name) for name in "ab"
    }
    marks = [section.mark for section in page.sections if section.mark]
    problems = [mark in ("warning", "look") for mark in marks]
    assert problems == sorted(problems, reverse=True)  # first
    assert any(section.bars for section in page.sections if section.mark)
    assert any("rows, counted from" in text for section in page.sections for text in section.paragraphs)


def test_a_saved_model_is_measured_in_the_units_of_its_table(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 2))
    y = 10 * x[:, 0]
    network = EllipticRegressor(hidden=(4,), max_iter=2, random_state=0).fit(x, y)
    model, table = save(network, tmp_path / "bare.elliptica"), tmp_path / "table.csv"
    pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y, "g": ["u", "v"] * 30}).write_csv(table)
    found = tables(saved_model_page(model, table, "y", "g"))
    rmse = math.sqrt(sk.mean_squared_error(y, network.predict(x)))
    assert float(found["Scores"]["RMSE"][0]) == pytest.approx(rmse, rel=1e-3)
    assert set(found["By group"]) == {"u", "v"}
