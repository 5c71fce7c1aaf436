"""The page about one model: scores against independent ones, findings, and models from the user's code."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import nn

from elliptica.cli.report import Request, make_report
from elliptica.report import ReportError, render_page
from elliptica.tables.fitted_model import FittedModel
from elliptica.tables.model_page import model_study


def test_scores_of_classes_agree_with_scikit_learn(generator):
    x = torch.randn(200, 3, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 1).long()
    model = nn.Linear(3, 3)
    groups = ["a" if value > 0 else "b" for value in x[:, 2]]
    study = model_study(
        FittedModel(model, nn.CrossEntropyLoss(), x, y, name="m", groups=groups, class_names=["u", "v", "w"])
    )
    guess = model(x).argmax(1)
    cells = {row[0][0]: row[1][1] for row in study.table.rows}
    assert cells["accuracy, %"] == pytest.approx(100 * sk.accuracy_score(y, guess))
    assert cells["accuracy balanced over classes, %"] == pytest.approx(
        100 * sk.balanced_accuracy_score(y, guess)
    )
    group, classes = study.parts
    assert (group.kind, classes.kind) == ("group", "class")
    assert classes.values["m"]["v"][0] == pytest.approx(100 * float((guess == y)[y == 1].double().mean()))
    low, high = classes.limits["m"]["v"]
    assert low < classes.values["m"]["v"][0] < high
    bins = study.reliability["m"]
    gap = sum(n * abs(c - a) for n, c, a in zip(*bins.values(), strict=True) if n) / 200
    assert cells["calibration error, %"] == pytest.approx(100 * gap, abs=1e-4)
    sizes = [study.uncertainty.sizes[name] for name in study.uncertainty.names]
    assert sizes == sorted(sizes)


def test_errors_of_values_are_in_the_units_of_the_table(generator):
    x = torch.randn(80, 2, generator=generator)
    y = x.sum(1, keepdim=True)
    model = nn.Linear(2, 1)
    study = model_study(FittedModel(model, nn.MSELoss(), x, y, groups=["a", "b"] * 40), unit=10.0)
    rmse = 10 * math.sqrt(float(((model(x) - y) ** 2).detach().mean()))
    assert study.table.rows[0][1][1] == pytest.approx(rmse, rel=1e-5)
    low, high = (float(v) for v in study.table.rows[0][2][0].split(" to "))
    assert low < rmse < high
    assert study.table.rows[1][0][0] == "worst-group RMSE"


def test_own_models_as_diagnose_takes_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_for_report.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Linear(4, 2)\n"
    )
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    np.savez(tmp_path / "data.npz", x=x, y=(x[:, 0] > 0).astype("int64"))
    report = make_report(Request("data.npz", model="mine_for_report:make"))
    problems = [f for f in report.findings if f.severity in ("warning", "look")]
    assert list(report.findings[: len(problems)]) == problems  # first
    assert "mine_for_report:make on data.npz" in render_page(report).lower()
    for wrong, said in (
        ({"model": "absent:make"}, "No module"),
        (
            {"model": "mine_for_report:make", "target": "y"},
            "cannot be read as a saved|not a saved|cannot be read",
        ),
        ({"loss": "mse"}, "--loss needs --model"),
    ):
        with pytest.raises(ReportError, match=said):
            make_report(
                Request("data.npz", **({"data": tmp_path / "data.npz"} if "target" in wrong else {}), **wrong)
            )


def test_test_rows_are_scored_where_there_are_any(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "line_for_report.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Flatten(0, 0)\n"
    )
    x = np.arange(40.0).reshape(20, 2) % 7
    np.savez("data.npz", x=x, y=x, x_test=x[:10], y_test=x[:10] + 3)
    found = make_report(Request("data.npz", model="line_for_report:make"))
    assert found.studies[0].subtitle == "the test rows of data.npz"
    assert found.studies[0].table.rows[0][1][1] == pytest.approx(3)
