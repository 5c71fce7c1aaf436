"""`elliptica.diagnose` as a whole: the battery of known cases, what it takes, and what it raises."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from torch import nn
from torch.nn import functional as F

import elliptica
from elliptica.tables.diagnose import EXPLAINED, JUDGES, diagnose_fitted
from elliptica.tables.evidence import FittedModel, Predictor, Rows
from elliptica.tables.findings import Diagnosis, Finding, Quantity, skipped
from tables.battery import CASES

LOSS = nn.CrossEntropyLoss()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_battery(case):
    """A sick model is named among the first three findings; a sound one raises no warning."""
    s = case.build(0)
    held = None if s.x_test is None else (s.x_test, s.y_test)
    groups = {"groups": s.groups, "held_out_groups": s.test_groups, "unlabelled": s.unlabelled}
    found = elliptica.diagnose(s.model, s.loss_fn, s.x, s.y, held_out=held, **groups)
    names = [f.name for f in found.problems]
    if case.truth:
        assert set(names[:3]) & set(case.truth), found
        assert not set(names) & set(case.explained), found
    else:
        assert found.severity != "warning", found
    blind = "overfitting" in found.headline().partition("Not judged without held-out rows:")[2]
    assert blind == (s.x_test is None)
    for finding in found.problems:  # sentence, number, breakdown and rows tell the same
        share = finding.numbers.get("labels unlike their neighbours'")
        if share is not None:
            assert finding.sentence.startswith(f"{len(finding.rows)} of {share.n} {finding.rows_of} labels")
            assert share.value == len(finding.rows) / share.n
            assert sum(q.value for q in finding.breakdown.values()) == len(finding.rows)


def test_every_finding_is_listed_in_the_docs(request):
    page = (request.config.rootpath / "docs" / "diagnose.md").read_text()
    for name in JUDGES:
        assert f"| `{name}` |" in page, name
    assert set(EXPLAINED) <= set(JUDGES)


# ---- rows


def separated(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    return torch.randn(n, 3, generator=generator) + 6 * y[:, None], y


def sure(x):
    return torch.stack([9 - x.sum(1), x.sum(1) - 9], 1)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_many_rows_are_sampled_by_class_and_rows_keep_their_numbers():
    x, y = separated(3000)
    y[x.sum(1).argsort()[:30]] = 1  # wrong labels, deep inside class 0
    y[:300:2] = 1  # every fourth label of class 0 among the first
    found = elliptica.diagnose(Function(sure), LOSS, x, y, max_rows=1000)
    assert found.n_given == 3000
    assert 998 <= found.n_rows <= 1002  # a share of each class, so that no overall number is biased
    assert elliptica.diagnose(Function(sure), LOSS, x, y, max_rows=1000).to_dict() == found.to_dict()
    wrong = set(torch.arange(0, 300, 2).tolist()) | set(x.sum(1).argsort()[:30].tolist())
    listed = found["labels"].rows
    assert len(listed) > 20
    assert len(set(listed) & wrong) > 0.9 * len(listed)  # numbers of the given rows, not of the sample


def test_any_scikit_learn_model_can_be_judged():
    x, y = load_breast_cancer(return_X_y=True)
    trees = HistGradientBoostingClassifier(max_iter=10, random_state=0).fit(x[:400], y[:400])
    module, rows = Predictor(trees), torch.from_numpy(x)
    np.testing.assert_allclose(module(rows).exp().numpy(), trees.predict_proba(x), rtol=1e-9)
    labels = torch.from_numpy(y)
    parts = {"training": Rows(rows[:400], labels[:400]), "held-out": Rows(rows[400:], labels[400:])}
    found = diagnose_fitted(FittedModel(module, LOSS, parts, scales_inputs=True))
    assert found.severity != "warning", found
    trees = HistGradientBoostingRegressor(max_iter=5).fit(x[:, 1:], x[:, 0])
    assert Predictor(trees)(torch.from_numpy(x[:, 1:])).shape == (569, 1)


# ---- words


def test_a_diagnosis_in_words():
    wrong = Finding("warning", "Labels", "Many.", "Check them.", rows=tuple(range(12)), name="labels")
    alike = Finding("fine", "", "Alike.", name="inputs")
    blind = replace(skipped("no held-out rows"), name="leak")
    found = Diagnosis(("40 rows.",), (wrong, alike, blind), 40, 40, 0.95, 1)
    assert found.headline() == "Labels. Not judged without held-out rows: leak."
    assert found.severity == "warning"
    assert found.problems == (wrong,)
    text = str(found)
    assert "Rows are counted from 1, without the header." in text
    assert "training rows 0, 1, 2, 3, 4, 5, 6, 7 and 4 more" in text
    assert "Checked, no problem: inputs." in text
    calm = Diagnosis(("40 rows.",), (alike,), 40, 40, 0.95)
    assert (calm.headline(), calm.severity) == ("Nothing stands out.", "fine")
    assert len(str(calm).splitlines()) <= 10
    assert str(Quantity.share(torch.tensor([True, False, False, False]), 0.95)) == "25.0% (0.6% to 80.6%)"


@pytest.mark.parametrize("n", [2, 3, 6])
def test_few_rows_are_called_few(n):
    x, y = separated(n)
    found = elliptica.diagnose(Function(sure), LOSS, x, y, held_out=(x, y))
    assert any("few rows" in s for s in found.about)
    assert "inf" not in str(found)
    assert elliptica.diagnose(Function(sure), LOSS, x, y * 0).n_rows == n


# ---- models that cannot be judged as they are


def test_a_model_that_draws_or_mixes_rows_is_named():
    x, y = separated(80)
    noisy = Function(lambda x: sure(x) + 5 * torch.randn(len(x), 2))
    state = torch.get_rng_state()
    found = elliptica.diagnose(noisy, LOSS, x, y)
    assert found.problems[0].title == "The model is random in evaluation mode"
    assert torch.equal(torch.get_rng_state(), state)
    found = elliptica.diagnose(Function(lambda x: sure(x - x.mean(0) + 3)), LOSS, x, y)
    assert found.problems[0].title == "Outputs depend on the batch"


def test_constant_targets_divide_by_nothing():
    x, y = separated(80)
    names = ["no", "yes"]
    found = elliptica.diagnose(Function(sure), LOSS, x, y * 0, held_out=(x + 0.1, y), class_names=names)
    assert found["prior"].title == "Classes that were never trained"
    assert "e+" not in str(found)
    y = torch.ones(80, 1)
    found = elliptica.diagnose(Function(lambda x: x[:, :1]), nn.MSELoss(), x, y, held_out=(x + 1, y))
    assert "e+" not in str(found)
    assert "unit" not in found.headline()


def test_labels_in_another_order_explain_the_error_of_rows_that_moved():
    x, y = separated(200)
    moved = {"held_out": (x + 1, 1 - y), "unlabelled": x + 9}
    found = elliptica.diagnose(Function(lambda x: sure(x - 0.5)), LOSS, x, y, **moved)
    assert "Held-out rows differ, and the error is higher" in found["label_order"].explains
    assert [f.rows_of for f in found.problems if f.name == "shift"] == ["unlabelled"]


def test_held_out_rows_that_were_trained_on_say_nothing_about_overfitting():
    x, y = separated(80)
    found = elliptica.diagnose(Function(sure), LOSS, x, y, held_out=(x, y))
    assert found["leak"].severity == "warning"
    assert not found["overfitting"].computed
    few = elliptica.diagnose(Function(sure), LOSS, x, y, held_out=(x[:1] + 1, y[:1]))
    assert not few["overfitting"].computed


X, Y = separated(40)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"held_out": (X[:, :2], Y)}, "held-out"),
        ({"held_out": (X, Y[:5])}, "held-out"),
        ({"held_out": (X, Y.float())}, "y must hold"),
        ({"held_out": (X, Y + 1)}, "y must hold labels"),
        ({"held_out": (X, Y), "held_out_groups": ["a"]}, "groups"),
        ({"groups": [1, 2, 3]}, "groups"),
        ({"unlabelled": X[:, :1]}, "unlabelled"),
        ({"unlabelled": X / 0}, "unlabelled"),
        ({"class_names": "abc"}, "class_names"),
        ({"max_rows": 3}, "max_rows"),
        ({"confidence": 95}, "confidence"),
        ({"x": X / 0}, "x"),
        ({"x": X[:1], "y": Y[:1]}, "x"),
        ({"y": Y[:5]}, "y"),
        ({"y": Y + 1}, "y must hold labels"),
        ({"model": Function(lambda x: sure(x) * torch.nan)}, "NaN"),
    ],
)
def test_what_would_be_silently_wrong_raises(settings, match):
    with pytest.raises(ValueError, match=match):
        elliptica.diagnose(**{"model": Function(sure), "loss_fn": LOSS, "x": X, "y": Y, **settings})


# ---- tasks, and what must not change


@pytest.mark.parametrize(
    "task", ["labels", "soft", "regression", "flat regression", "multilabel", "own loss"]
)
def test_every_task(task, generator):
    x = torch.randn(60, 12, generator=generator)
    y = torch.arange(60) % 3
    model, settings = nn.Linear(12, 3), {}
    loss: object = nn.CrossEntropyLoss()
    if task == "soft":
        y = F.one_hot(y, 3) * 0.9 + 0.1 / 3
    elif task == "regression":
        loss, y = nn.MSELoss(), x @ torch.randn(12, 3, generator=generator)
    elif task == "flat regression":
        loss, y, model = nn.L1Loss(), x[:, 0], nn.Sequential(nn.Linear(12, 1), nn.Flatten(0))
    elif task == "multilabel":
        loss, y = nn.BCEWithLogitsLoss(), x[:, :3] > 0
    elif task == "own loss":
        loss = lambda output, target: (output.softmax(1) - target).abs().sum(1)  # noqa: E731
        y, settings = F.one_hot(y, 3).float(), {"target_space": "simplex"}
    found = elliptica.diagnose(model, loss, x, y, **settings)
    record = json.loads(json.dumps(found.to_dict()))
    assert record["n_rows"] == 60
    assert {f["name"] for f in record["findings"]} == set(JUDGES)
    assert ("3 classes" in found.about[0]) == (task in ("labels", "soft", "own loss"))
    with torch.inference_mode():
        assert elliptica.diagnose(model, loss, x, y, **settings).to_dict() == found.to_dict()


def test_nothing_of_the_callers_is_touched(generator):
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    x, y = torch.randn(40, 3, generator=generator), torch.arange(40) % 2
    model(x).sum().backward()  # gradients of a training that goes on afterwards
    model.train()
    model[2].eval()
    modes = [m.training for m in model.modules()]
    grads = [p.grad.clone() for p in model.parameters()]
    before = copy.deepcopy((dict(model.state_dict()), x, y))
    state = torch.get_rng_state()
    elliptica.diagnose(model, nn.CrossEntropyLoss(), x, y)
    elliptica.diagnose(model, nn.CrossEntropyLoss(), x, y, generator=generator)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == modes
    torch.testing.assert_close((dict(model.state_dict()), x, y), before, rtol=0, atol=0)
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        assert torch.equal(parameter.grad, grad)
