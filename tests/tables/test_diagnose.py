"""`elliptica.diagnose` as a whole: the battery of known cases, what it takes, and what it refuses."""

import copy
import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from torch import nn
from torch.nn import functional as F

import elliptica
from elliptica.tables.diagnose import EXPLAINED, JUDGES, diagnose_fitted
from elliptica.tables.fitted_model import FittedModel, Predictor
from tables.battery import CASES

LOSS = nn.CrossEntropyLoss()


def judge(case, seed, **options):
    s = case.build(seed)
    held = None if s.x_test is None else (s.x_test, s.y_test)
    groups = {"groups": s.groups, "held_out_groups": s.test_groups, "unlabelled": s.unlabelled}
    return elliptica.diagnose(s.model, s.loss_fn, s.x, s.y, held_out=held, **groups, **options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_battery(case):
    """A sick model is named among the first three findings; a sound one raises no warning."""
    found = judge(case, 0)
    if case.truth:
        assert {f.name for f in found.problems[:3]} & set(case.truth), found
    else:
        assert found.severity != "warning", found


def test_every_finding_is_listed_in_the_docs(request):
    page = (request.config.rootpath / "docs" / "diagnose.md").read_text()
    for name in (*JUDGES, "shift"):
        assert f"| `{name}` |" in page, name
    assert set(EXPLAINED) <= {*JUDGES, "shift"}


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
    rare = torch.arange(3000) >= 2970
    y = torch.where(rare, 2, y)
    x = torch.where(rare[:, None], x + 40, x)
    model = Function(lambda x: torch.cat([sure(x), (x.sum(1, keepdim=True) - 90)], 1))
    found = elliptica.diagnose(model, LOSS, x, y, max_rows=800)
    assert found.n_given == 3000
    assert 798 <= found.n_rows <= 802  # a share of each class, so that no overall number is biased
    assert "of 3000 training rows (a sample by class and group)" in found.about[0]
    same = elliptica.diagnose(model, LOSS, x, y, max_rows=800)
    assert same.to_dict() == found.to_dict()
    y = torch.where(rare, 0, y)
    y[:300:2] = 1  # every fourth label of class 0 among the first
    found = elliptica.diagnose(Function(sure), LOSS, x, y, max_rows=1000)
    wrong = set(torch.arange(0, 300, 2).tolist()) | set(x.sum(1).argsort()[:30].tolist())
    listed = found["labels"].rows
    assert len(listed) > 20
    assert len(set(listed) & wrong) > 0.9 * len(listed)  # numbers of the given rows, not of the sample


def test_any_scikit_learn_model_can_be_judged():
    x, y = load_breast_cancer(return_X_y=True)
    trees = HistGradientBoostingClassifier(max_iter=10, random_state=0).fit(x[:400], y[:400])
    module, rows = Predictor(trees), torch.from_numpy(x)
    np.testing.assert_allclose(module(rows).exp().numpy(), trees.predict_proba(x), rtol=1e-9)
    held = rows[400:], torch.from_numpy(y[400:])
    fitted = FittedModel(module, LOSS, rows[:400], torch.from_numpy(y[:400]), test=held, scales_inputs=True)
    found = diagnose_fitted(fitted)
    assert found.severity != "warning", found
    target = x[:, :1]
    trees = HistGradientBoostingRegressor(max_iter=5).fit(x[:, 1:], target[:, 0])
    assert Predictor(trees)(torch.from_numpy(x[:, 1:])).shape == (569, 1)


def test_a_file_of_json_holds_everything():
    x, y = separated(60)
    found = elliptica.diagnose(Function(sure), LOSS, x, y)
    record = json.loads(json.dumps(found.to_dict()))
    assert record["severity"] == "fine"
    assert {f["name"] for f in record["findings"]} == {*JUDGES, "shift"}


# ---- models that cannot be judged as they are


def test_a_model_in_training_mode_is_evaluated_in_eval_mode():
    x, y = separated(80)
    model = nn.Sequential(nn.Dropout(0.9), Function(sure)).train()
    found = elliptica.diagnose(model, LOSS, x, y)
    assert model.training
    assert found.severity == "fine", found


def test_a_model_that_draws_is_named():
    x, y = separated(80)
    noisy = Function(lambda x: sure(x) + 5 * torch.randn(len(x), 2))
    state = torch.get_rng_state()
    found = elliptica.diagnose(noisy, LOSS, x, y)
    assert found.problems[0].title == "The model is random in evaluation mode"
    assert torch.equal(torch.get_rng_state(), state)
    dependent = Function(lambda x: sure(x - x.mean(0) + 3))
    found = elliptica.diagnose(dependent, LOSS, x, y)
    assert found.problems[0].title == "Outputs depend on the batch"


@pytest.mark.parametrize("n", [2, 3, 9])
def test_few_rows_and_one_class_raise_nothing(n):
    x, y = separated(n)
    assert elliptica.diagnose(Function(sure), LOSS, x, y, held_out=(x, y)).n_rows == n
    found = elliptica.diagnose(Function(sure), LOSS, x, y * 0)
    assert found.n_rows == n


def test_one_class_among_many_rows():
    x, y = separated(80)
    found = elliptica.diagnose(
        Function(sure), LOSS, x, y * 0, held_out=(x + 0.1, y), class_names=["no", "yes"]
    )
    assert found["prior"].severity == "warning"
    assert "without a single training row: yes" in found["prior"].sentence
    assert "e+" not in str(found)  # no number divided by nothing


def test_a_constant_target_divides_by_nothing():
    x, _ = separated(80)
    y = torch.ones(80, 1)
    found = elliptica.diagnose(Function(lambda x: x[:, :1]), nn.MSELoss(), x, y, held_out=(x + 1, y))
    assert "e+" not in str(found)


def test_held_out_rows_that_were_trained_on_say_nothing_about_overfitting():
    x, y = separated(80)
    found = elliptica.diagnose(Function(sure), LOSS, x, y, held_out=(x, y))
    assert found["leak"].severity == "warning"
    assert not found["overfitting"].computed
    few = elliptica.diagnose(Function(sure), LOSS, x, y, held_out=(x[:1] + 1, y[:1]))
    assert "at least ten held-out rows" in few["overfitting"].sentence


@pytest.mark.bad_input  # the shape checker wants a sequence
def test_names_of_classes_may_be_an_array():
    x, y = separated(80)
    found = elliptica.diagnose(Function(sure), LOSS, x, y, class_names=np.array(["no", "yes"]))
    assert found.severity == "fine"


@pytest.mark.bad_input
def test_wrong_rows_are_explained():
    x, y = separated(40)
    model = Function(sure)
    for options, message in (
        ({"held_out": (x[:, :2], y)}, r"held-out inputs must have rows of shape \(3,\)"),
        ({"held_out": (x, y[:5])}, "held-out targets"),
        ({"held_out": (x, y.float())}, "Pass both as class numbers or both as real"),
        ({"held_out": (x, y + 1)}, r"y must hold labels"),
        ({"held_out_groups": ["a"] * 40}, r"Pass held_out=\(x, y\)"),
        ({"held_out": (x, y), "held_out_groups": ["a"]}, "held_out_groups must have one entry"),
        ({"held_out": x}, r"Pass held_out=\(x, y\)"),
        ({"held_out": (x[:0], y[:0])}, "have no rows"),
        ({"unlabelled": x[:, :1]}, "unlabelled must have rows of shape"),
        ({"unlabelled": x / 0}, "unlabelled must be finite"),
        ({"max_rows": 3}, "max_rows"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            elliptica.diagnose(model, LOSS, x, y, **options)
    with pytest.raises(ValueError, match="NaN or infinite"):
        elliptica.diagnose(Function(lambda x: sure(x) * torch.nan), LOSS, x, y)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"groups": 3}, TypeError, "groups must have one entry for each"),
        ({"class_names": 3}, TypeError, "class_names must be a list of names"),
        ({"feature_names": None}, TypeError, "feature_names must be a list of names"),
        ({"num_classes": "2"}, (TypeError, ValueError), "num_classes|not supported"),
        ({"target_space": "classes"}, ValueError, "target_space must be one of"),
        ({"device": "gpu"}, ValueError, "device='gpu' cannot be used"),
        ({"device": "meta"}, ValueError, "device"),
    ],
)
def test_settings_that_cannot_be(settings, error, match, generator):
    x = torch.randn(20, 3, generator=generator)
    with pytest.raises(error, match=match):
        elliptica.diagnose(nn.Linear(3, 2), LOSS, x, (x[:, 0] > 0).long(), **settings)


@pytest.mark.bad_input
def test_numbers_of_numpy_are_numbers(generator):
    x = torch.randn(20, 3, generator=generator)
    options = {"batch_size": np.int64(7), "confidence": np.float32(0.9)}
    found = elliptica.diagnose(nn.Linear(3, 2), LOSS, x, (x[:, 0] > 0).long(), **options)
    assert json.loads(json.dumps(found.to_dict()))


def test_constant_targets_are_in_no_other_unit(generator):
    x = torch.randn(60, 3, generator=generator)
    found = elliptica.diagnose(nn.Linear(3, 1), nn.MSELoss(), x, torch.zeros(60, 1))
    assert "unit" not in found.headline()


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
    text = json.dumps(found.to_dict())
    assert json.loads(text)["n_rows"] == 60
    assert ("3 classes" in found.about[0]) == (task in ("labels", "soft", "own loss"))
    with torch.inference_mode():
        assert elliptica.diagnose(model, loss, x, y, **settings).to_dict() == found.to_dict()


def test_nothing_of_the_callers_is_touched(generator):
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    x, y = torch.randn(40, 3, generator=generator), torch.arange(40) % 2
    model(x).sum().backward()  # gradients of a training that goes on afterwards
    model.train()
    model[2].eval()
    weight = model[0].weight
    weight.requires_grad_(False)
    before = copy.deepcopy(
        (
            model.state_dict(),
            [p.grad for p in model.parameters()],
            [m.training for m in model.modules()],
            x,
            y,
        )
    )
    state = torch.get_rng_state()
    elliptica.diagnose(model, nn.CrossEntropyLoss(), x, y)
    elliptica.diagnose(model, nn.CrossEntropyLoss(), x, y, generator=generator)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == before[2]
    assert not weight.requires_grad
    torch.testing.assert_close(
        (dict(model.state_dict()), x, y), (dict(before[0]), *before[3:]), rtol=0, atol=0
    )
    for parameter, grad in zip(model.parameters(), before[1], strict=True):
        assert (parameter.grad is None) == (grad is None)
        assert grad is None or torch.equal(parameter.grad, grad)


@pytest.mark.bad_input
def test_wrong_input_is_explained():
    x, y, model = torch.randn(20, 3), torch.arange(20) % 2, nn.Linear(3, 2)
    loss = nn.CrossEntropyLoss()
    with pytest.raises(ValueError, match="as many rows as x"):
        elliptica.diagnose(model, loss, x, y[:5])
    with pytest.raises(ValueError, match="must be finite"):
        elliptica.diagnose(model, loss, x / 0, y)
    with pytest.raises(ValueError, match="x has one row, but a diagnosis needs more"):
        elliptica.diagnose(model, loss, x[:1], y[:1])
    with pytest.raises(ValueError, match="one entry for each of the 20 rows, but has 3"):
        elliptica.diagnose(model, loss, x, y, groups=[1, 2, 3])
    with pytest.raises(ValueError, match=r"cannot be evaluated on x \(inputs \(2, 2\).*preprocessing"):
        elliptica.diagnose(model, loss, x[:, :2], y)
    with pytest.raises(ValueError, match="Pass num_classes"):
        elliptica.diagnose(nn.Flatten(0), loss, x, y)
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        elliptica.diagnose(model, loss, x, y, confidence=95)
    with pytest.raises(ValueError, match=r"y must hold labels"):
        elliptica.diagnose(model, loss, x, y + 1)
