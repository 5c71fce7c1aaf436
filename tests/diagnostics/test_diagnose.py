"""`elliptica.diagnose` as a whole: the battery of known cases, what it takes, and what it refuses."""

import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from torch import nn

import elliptica
from diagnostics.battery import CASES
from elliptica.diagnostics.diagnose import EXPLAINED, JUDGES, diagnose_fitted
from elliptica.diagnostics.findings import LANDSCAPE
from elliptica.diagnostics.fitted_model import FittedModel, Predictor

LOSS = nn.CrossEntropyLoss()


def judge(case, seed, **options):
    s = case.build(seed)
    held = None if s.x_test is None else (s.x_test, s.y_test)
    groups = {"groups": s.groups, "held_out_groups": s.test_groups, "unlabelled": s.unlabelled}
    return elliptica.diagnose(s.model, s.loss_fn, s.x, s.y, held_out=held, **groups, **options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_battery(case):
    """A sick model is named among the first three findings; a sound one raises no warning."""
    found = judge(case, 0, landscape=False)
    if case.truth:
        assert {f.name for f in found.problems[:3]} & set(case.truth), found
    else:
        assert found.severity != "warning", found


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_battery_with_the_landscape(case):
    """The landscape adds information, and changes nothing else."""
    found = judge(case, 1)
    assert {f.severity for f in found.landscape} == {"info"}
    plain = judge(case, 1, landscape=False)
    assert [f.to_dict() for f in found.problems] == [f.to_dict() for f in plain.problems]


def test_every_finding_is_listed_in_the_docs(request):
    page = (request.config.rootpath / "docs" / "diagnose.md").read_text()
    for name in (*JUDGES, "shift", *LANDSCAPE):
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
    found = elliptica.diagnose(model, LOSS, x, y, landscape=False, max_rows=800)
    assert found.n_given == 3000
    assert 798 <= found.n_rows <= 802  # a share of each class, so that no overall number is biased
    assert "of 3000 training rows (a sample by class and group)" in found.about[0]
    same = elliptica.diagnose(model, LOSS, x, y, landscape=False, max_rows=800)
    assert same.to_dict() == found.to_dict()
    y = torch.where(rare, 0, y)
    y[:300:2] = 1  # every fourth label of class 0 among the first
    found = elliptica.diagnose(Function(sure), LOSS, x, y, landscape=False, max_rows=1000)
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
    found = diagnose_fitted(fitted, landscape=False)
    assert found.severity != "warning", found
    target = x[:, :1]
    trees = HistGradientBoostingRegressor(max_iter=5).fit(x[:, 1:], target[:, 0])
    assert Predictor(trees)(torch.from_numpy(x[:, 1:])).shape == (569, 1)


def test_a_file_of_json_holds_everything():
    x, y = separated(60)
    found = elliptica.diagnose(Function(sure), LOSS, x, y, landscape=False)
    record = json.loads(json.dumps(found.to_dict()))
    assert record["severity"] == "fine"
    assert {f["name"] for f in record["findings"]} == {*JUDGES, "shift"}


# ---- models that cannot be judged as they are


def test_a_model_in_training_mode_is_evaluated_in_eval_mode():
    x, y = separated(80)
    model = nn.Sequential(nn.Dropout(0.9), Function(sure)).train()
    found = elliptica.diagnose(model, LOSS, x, y, landscape=False)
    assert model.training
    assert found.severity == "fine", found


def test_a_model_that_draws_is_named():
    x, y = separated(80)
    noisy = Function(lambda x: sure(x) + 5 * torch.randn(len(x), 2))
    state = torch.get_rng_state()
    found = elliptica.diagnose(noisy, LOSS, x, y, landscape=False)
    assert found.problems[0].title == "The model is random in evaluation mode"
    assert torch.equal(torch.get_rng_state(), state)
    dependent = Function(lambda x: sure(x - x.mean(0) + 3))
    found = elliptica.diagnose(dependent, LOSS, x, y, landscape=False)
    assert found.problems[0].title == "Outputs depend on the batch"


@pytest.mark.parametrize("n", [2, 3, 9])
def test_few_rows_and_one_class_raise_nothing(n):
    x, y = separated(n)
    assert elliptica.diagnose(Function(sure), LOSS, x, y, held_out=(x, y), landscape=False).n_rows == n
    found = elliptica.diagnose(Function(sure), LOSS, x, y * 0, landscape=False)
    assert found.n_rows == n


def test_one_class_among_many_rows():
    x, y = separated(80)
    found = elliptica.diagnose(
        Function(sure), LOSS, x, y * 0, held_out=(x + 0.1, y), landscape=False, class_names=["no", "yes"]
    )
    assert found["prior"].severity == "warning"
    assert "without a single training row: yes" in found["prior"].sentence
    assert "e+" not in str(found)  # no number divided by nothing


def test_a_constant_target_divides_by_nothing():
    x, _ = separated(80)
    y = torch.ones(80, 1)
    found = elliptica.diagnose(Function(lambda x: x[:, :1]), nn.MSELoss(), x, y, held_out=(x + 1, y), n=40)
    assert "e+" not in str(found)


def test_held_out_rows_that_were_trained_on_say_nothing_about_overfitting():
    x, y = separated(80)
    found = elliptica.diagnose(Function(sure), LOSS, x, y, held_out=(x, y), landscape=False)
    assert found["leak"].severity == "warning"
    assert not found["overfitting"].computed
    few = elliptica.diagnose(Function(sure), LOSS, x, y, held_out=(x[:1] + 1, y[:1]), landscape=False)
    assert "at least ten held-out rows" in few["overfitting"].sentence


@pytest.mark.bad_input  # the shape checker wants a sequence
def test_names_of_classes_may_be_an_array():
    x, y = separated(80)
    found = elliptica.diagnose(
        Function(sure), LOSS, x, y, landscape=False, class_names=np.array(["no", "yes"])
    )
    assert found.severity == "fine"


@pytest.mark.bad_input
def test_wrong_rows_are_explained():
    x, y = separated(40)
    model = Function(sure)
    for options, message in (
        ({"held_out": (x[:, :2], y)}, r"held-out inputs must have rows of shape \(3,\)"),
        ({"held_out": (x, y[:5])}, "held-out targets"),
        ({"held_out": (x, y.float())}, "Pass both as class numbers or both as real"),
        ({"held_out": (x, y + 1)}, r"Labels must lie in 0\.\.1"),
        ({"held_out_groups": ["a"] * 40}, r"Pass held_out=\(x, y\)"),
        ({"held_out": (x, y), "held_out_groups": ["a"]}, "held_out_groups must have one entry"),
        ({"held_out": x}, r"Pass held_out=\(x, y\)"),
        ({"held_out": (x[:0], y[:0])}, "have no rows"),
        ({"unlabelled": x[:, :1]}, "unlabelled must have rows of shape"),
        ({"unlabelled": x / 0}, "unlabelled must be finite"),
        ({"max_rows": 3}, "max_rows"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            elliptica.diagnose(model, LOSS, x, y, landscape=False, **options)
    with pytest.raises(ValueError, match="NaN or infinite"):
        elliptica.diagnose(Function(lambda x: sure(x) * torch.nan), LOSS, x, y)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"landscape": "yes"}, TypeError, "landscape must be True or False"),
        ({"groups": 3}, TypeError, "groups must have one entry for each"),
        ({"class_names": 3}, TypeError, "class_names must be a list of names"),
        ({"feature_names": None}, TypeError, "feature_names must be a list of names"),
        ({"num_classes": "2"}, TypeError, "num_classes must be an integer"),
        ({"target_space": "classes"}, ValueError, "target_space must be one of"),
        ({"device": "gpu"}, ValueError, "device='gpu' cannot be used"),
        ({"device": "meta"}, ValueError, "keeps shapes only"),
    ],
)
def test_settings_that_cannot_be(settings, error, match, generator):
    x = torch.randn(20, 3, generator=generator)
    with pytest.raises(error, match=match):
        elliptica.diagnose(nn.Linear(3, 2), LOSS, x, (x[:, 0] > 0).long(), **settings)


@pytest.mark.bad_input
def test_numbers_of_numpy_are_numbers(generator):
    x = torch.randn(20, 3, generator=generator)
    options = {"batch_size": np.int64(7), "confidence": np.float32(0.9), "landscape": False}
    found = elliptica.diagnose(nn.Linear(3, 2), LOSS, x, (x[:, 0] > 0).long(), **options)
    assert json.loads(json.dumps(found.to_dict()))


def test_constant_targets_are_in_no_other_unit(generator):
    x = torch.randn(60, 3, generator=generator)
    found = elliptica.diagnose(nn.Linear(3, 1), nn.MSELoss(), x, torch.zeros(60, 1), landscape=False)
    assert "unit" not in found.headline()
