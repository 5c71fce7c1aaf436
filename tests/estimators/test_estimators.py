"""Estimators: scikit-learn's own checks, independent loops, streams, ensembles, bounds, calibration."""

import os
import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_diabetes, make_blobs, make_multilabel_classification, make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import cross_validate, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from elliptica import GradientSoftmax, Green, InverseDistance, LabelKernel
from elliptica._utils.perceptron import mlp
from elliptica._utils.random import stream, stream_seed
from elliptica._utils.statistics import fit_temperature
from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor
from elliptica.estimators.base import Fit, fit_together, network_seeds, pool
from elliptica.estimators.stacked import init_parameters, state_dict

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUICK = {"hidden": (16,), "max_iter": 3, "random_state": 0}
# large steps on whole data sets, so that a few epochs reach the scores that the checks ask for
CHECKED = {"hidden": (32,), "max_iter": 20, "batch_size": 1000, "learning_rate": 0.03}


def known_failures(estimator):
    """Weights are frequencies of random draws; one check has negative targets whatever the tags say."""
    if isinstance(estimator, TablePreprocessor):
        return {}
    failures = {"check_sample_weight_equivalence_on_dense_data": "equal in law, not in every draw"}
    if getattr(estimator, "target_transform", None) == "log":
        failures["check_regressor_multioutput"] = "negative targets"
    return failures


@pytest.mark.bad_input  # some checks construct estimators with arguments of any type
@parametrize_with_checks(
    [EllipticClassifier(**CHECKED), EllipticRegressor(method="elliptic", **CHECKED), TablePreprocessor()],
    expected_failed_checks=known_failures,
)
def test_scikit_learn_checks(estimator, check):
    if check.func.__name__ != "check_class_weight_classifiers":  # seconds: below
        check(estimator)


@pytest.mark.slow
@pytest.mark.bad_input
@pytest.mark.filterwarnings("ignore:All .* held-out rows are classified correctly")
@parametrize_with_checks(
    [
        EllipticClassifier(**CHECKED),
        EllipticClassifier(**CHECKED, n_networks=2, calibrate="temperature", method="smoothing"),
        EllipticClassifier(**CHECKED, n_networks=2, sampling="path"),  # the general loop
        EllipticRegressor(**CHECKED, n_networks=2, bounded=False, method="noise", target_transform="log"),
        EllipticRegressor(**CHECKED, n_networks=2, early_stopping=True, validation_fraction=0.3),
    ],
    expected_failed_checks=known_failures,
)
def test_scikit_learn_checks_with_options(estimator, check):
    check(estimator)


@pytest.fixture
def blobs():
    x, y = make_blobs(60, centers=3, n_features=4, random_state=0)
    return x, np.array(["a", "b", "c"])[y]


@pytest.fixture
def line():
    return make_regression(50, 3, noise=1.0, random_state=0)


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.module_.parameters()])


def is_same(a, b):
    return torch.equal(parameters(a), parameters(b))


# ---------------------------------------------------------------------------------------- training


def test_erm_is_an_ordinary_loop(blobs):
    """Initial weights and order from the documented streams; everything else is plain torch."""
    x, y = blobs
    model = EllipticClassifier(method="erm", hidden=(8,), max_iter=4, batch_size=25, random_state=3).fit(x, y)
    seed = int(np.random.RandomState(3).randint(np.iinfo(np.int32).max))
    net = mlp(4, 3, hidden=(8,))
    net.load_state_dict(state_dict(init_parameters([4, 8, 3], seed)))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    inputs = torch.from_numpy(((x - x.mean(0)) / x.std(0)).astype(np.float32))
    labels = torch.from_numpy(np.unique(y, return_inverse=True)[1])
    orders = torch.cat([torch.randperm(60, generator=stream(seed, "order", i)) for i in range(6)])
    losses, average = [], [torch.zeros_like(p) for p in net.parameters()]
    for t, part in enumerate(
        orders[: 12 * 25].split(25), 1
    ):  # three steps an epoch; a batch may span two orders
        loss = nn.functional.cross_entropy(net(inputs[part]), labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        torch._foreach_lerp_(average, [p.detach() for p in net.parameters()], 9 / (8 + t))
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(average), net.parameters())
    expected = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(parameters(model), expected, atol=1e-6, rtol=1e-5)
    np.testing.assert_allclose(model.loss_curve_, np.reshape(losses, (4, 3)).mean(1), rtol=1e-5)
    np.testing.assert_allclose(model.predict_proba(x), net(inputs).softmax(1).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("method", ["erm", "mixup", "c-mixup", "noise"])
def test_the_general_loop_agrees_with_the_stack_where_nothing_is_drawn(line, method):
    """The same network as a module of the user's; weights, validation and early stopping included."""
    off = {"mixup": {"alpha": 0.0}, "c-mixup": {"alpha": 0.0}, "noise": {"sigma": 0.0}}.get(method, {})
    how = {**QUICK, "max_iter": 30, "early_stopping": True, "learning_rate": 0.05, "n_iter_no_change": 3}
    stacked = EllipticRegressor(method=method, **off, **how).fit(*line, np.arange(50.0))
    start = mlp(3, 1, hidden=(16,))
    start.load_state_dict(state_dict(init_parameters([3, 16, 1], stacked._seed)))
    general = EllipticRegressor(method=method, module=start, **off, **how).fit(*line, np.arange(50.0))
    np.testing.assert_allclose(general.validation_curve_, stacked.validation_curve_, rtol=1e-2)
    assert general.best_iteration_ == stacked.best_iteration_
    np.testing.assert_allclose(general.predict(line[0]), stacked.predict(line[0]), rtol=0.02, atol=2)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("method", ["elliptic", "mixup", "noise"])
def test_the_general_loop_learns_what_the_stack_learns(method, seed):
    """Eight networks each way on diabetes: mean scores agree up to six standard errors (2e-5 at t(14))."""
    x, y = load_diabetes(return_X_y=True)
    how = {"method": method, "max_iter": 15, "sigma": 0.2, "hidden": (16,), "learning_rate": 1e-2}
    scores = []
    for module in (None, lambda a, b: mlp(a, b, hidden=(16,))):
        models = [EllipticRegressor(module=module, random_state=seed + i, **how) for i in range(8)]
        scores.append([model.fit(x[:300], y[:300]).score(x[300:], y[300:]) for model in models])
    spread = np.sqrt(sum(np.var(part, ddof=1) for part in scores) / 8)
    assert abs(np.mean(scores[0]) - np.mean(scores[1])) < 6 * spread + 0.005
    assert np.mean(scores) > 0.3


@pytest.mark.parametrize("method", ["elliptic", "mixup", "c-mixup"])
def test_rows_of_no_weight_are_neither_learnt_nor_partners(line, method):
    x, y = line
    weight = (np.arange(50) % 5 > 0).astype(float)
    spoilt = np.where(weight > 0, y, 1e6)
    model = EllipticRegressor(method=method, **QUICK)
    kept = clone(model).fit(x[weight > 0], y[weight > 0], np.ones(40))
    assert is_same(clone(model).fit(x, spoilt, weight), kept)
    assert kept.y_mean_ == pytest.approx(y[weight > 0].mean())


@pytest.mark.parametrize("make", [EllipticClassifier, EllipticRegressor])
def test_fits_together_are_fits_alone(blobs, line, make):
    """Methods, settings, rows and shapes of all kinds; tables are shared where they are the same."""
    x, y = blobs if make is EllipticClassifier else line
    rows = np.arange(0, len(x), 2)
    options = [{}, {"method": "erm"}, {"hidden": (4,)}, {"n_networks": 2}, {"sampling": "path"}]
    together = [make(**{**QUICK, **one}) for one in options]
    assert not any(fit_together([Fit(model, x, y, rows=rows) for model in together]))
    for model in together:
        alone = clone(model).fit(x[rows], y[rows])
        torch.testing.assert_close(parameters(model), parameters(alone), atol=1e-5, rtol=1e-4)
        np.testing.assert_allclose(model.predict(x[:9]) == alone.predict(x[:9]), True) if (
            make is EllipticClassifier
        ) else np.testing.assert_allclose(model.predict(x), alone.predict(x), rtol=1e-3, atol=1e-2)


def test_random_state_and_streams_of_the_caller(blobs):
    dropout = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for module in (None, dropout):
        model = EllipticClassifier(module=module, **QUICK)
        first, second = clone(model).fit(*blobs), clone(model).fit(*blobs)
        assert is_same(first, second)
        assert not is_same(first, clone(model).set_params(random_state=1).fit(*blobs))
    torch.testing.assert_close(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002
    assert is_same(first, pickle.loads(pickle.dumps(first)))


@pytest.mark.parametrize("make", [EllipticClassifier, EllipticRegressor])
def test_early_stopping_keeps_the_best_and_held_out_rows_out(blobs, line, make):
    x, y = blobs if make is EllipticClassifier else line
    settings = {"early_stopping": True, "n_iter_no_change": 3, "validation_fraction": 0.3}
    model = make(hidden=(16,), max_iter=60, random_state=0, learning_rate=0.05, **settings).fit(x, y)
    assert model.n_iter_ == len(model.validation_curve_)
    assert model.best_iteration_ == np.argmin(model.validation_curve_) + 1
    assert model.ended_ == ("patience" if model.n_iter_ < 60 else "length")
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        whole = make(**QUICK, **settings).fit(x, y)
    assert whole.ended_ == "length"
    codes = np.unique(y, return_inverse=True)[1] if make is EllipticClassifier else None
    seed = stream_seed(model._seed, "split") % 2**32
    kept, held = train_test_split(np.arange(len(x)), test_size=0.3, stratify=codes, random_state=seed)
    _, loss, inputs, target = model.network_rows(x[held], y[held])
    assert loss(model.module_(inputs), target).item() == pytest.approx(min(model.validation_curve_), rel=1e-4)
    part = make(**QUICK).fit(x[kept], y[kept])
    np.testing.assert_allclose(whole.x_mean_, x[kept].mean(0))
    assert whole.loss_curve_ == pytest.approx(part.loss_curve_, rel=1e-5)


@pytest.mark.parametrize("method", ["balanced", "groupdro", "lisa"])
def test_group_methods_serve_the_small_group(method):
    """The label follows one column for most rows, and another one for a few, which have their own group."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2))
    group = (np.arange(600) < 60).astype(int)
    y = np.where(group, x[:, 1], x[:, 0]) > 0
    x = np.column_stack([x, group + 0.1 * rng.normal(size=600)])
    how = {"hidden": (16,), "max_iter": 8, "learning_rate": 0.01, "random_state": 0}
    small = {
        name: EllipticClassifier(method=name, **how).fit(x, y, groups=group).score(x[:60], y[:60])
        for name in (method, "erm")
    }
    assert small[method] > small["erm"] + 0.05


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": "path", "weighting": "multiplicative", "n_bridges": 2},
        {"weighting": GradientSoftmax(0.5)},
        {"pairing": InverseDistance(2.0), "sigma": "auto"},
        {"pairing": LabelKernel(0.3)},
        {"sigma": Green(0.5), "pairing": "nearest"},
        {"sigma": 0.0},
        {"sigma_y": 0.1},
    ],
)
def test_options_of_the_objective(blobs, options):
    model = EllipticClassifier(**QUICK, **options).fit(*blobs)
    assert np.isfinite(model.loss_curve_).all()
    assert not is_same(model, EllipticClassifier(**QUICK).fit(*blobs))


def test_own_modules(blobs):
    def net(n_features, n_outputs):
        return nn.Sequential(nn.Linear(n_features, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, n_outputs))

    x, y = blobs
    given = net(4, 3)
    before = [p.clone() for p in given.parameters()]
    model = EllipticClassifier(module=given, **QUICK).fit(x, y)
    assert all(torch.equal(a, b) for a, b in zip(before, given.parameters(), strict=True))
    assert not model.module_.training
    assert EllipticClassifier(module=net, n_networks=2, **QUICK).fit(x, y).predict_proba(x).shape == (60, 3)
    with pytest.raises(ValueError, match="module"):
        EllipticClassifier(module=net(4, 5), **QUICK).fit(x, y)


# -------------------------------------------------------------------------------------- predictions


def test_ensembles_are_means_of_networks_with_seeds_of_their_own(blobs, line):
    x, y = blobs
    model = EllipticClassifier(n_networks=3, **QUICK).fit(x, y)
    inputs = model.network_rows(x, y).x
    shares = torch.stack([network(inputs).softmax(1) for network in model.module_.networks])
    np.testing.assert_allclose(model.predict_proba(x), shares.mean(0).detach().numpy(), atol=1e-6)
    torch.testing.assert_close(model.module_(inputs).softmax(1), shares.mean(0))
    assert len(set(network_seeds(model._seed, 3))) == 3
    first = nn.utils.parameters_to_vector(model.module_.networks[0].parameters())
    alone = EllipticClassifier(**QUICK).fit(x, y)
    torch.testing.assert_close(first.detach(), parameters(alone), atol=1e-6, rtol=1e-5)
    real = EllipticRegressor(n_networks=2, bounded=False, **QUICK).fit(*line)
    rows = real.network_rows(*line)
    expected = rows.module(rows.x).detach().numpy()[:, 0] * real.y_scale_ + real.y_mean_
    np.testing.assert_allclose(real.predict(line[0]), expected, rtol=1e-4, atol=1e-3)


def test_bounded_predictions_are_the_clipped_ones(line):
    x, y = line
    targets = np.column_stack([y, -2 * y])
    bounded = EllipticRegressor(n_networks=2, **QUICK).fit(x, targets)
    free = EllipticRegressor(n_networks=2, bounded=False, **QUICK).fit(x, targets)
    assert is_same(bounded, free)
    members = free._outputs(100 * x) * free.y_scale_ + free.y_mean_
    expected = members.clip(targets.min(0), targets.max(0)).mean(0)
    np.testing.assert_allclose(bounded.predict(100 * x), expected)
    assert (free.predict(100 * x) != expected).any()


def test_log_targets_are_learnt_as_logs(line):
    x, y = line[0], np.exp(line[1] / 100)
    model = EllipticRegressor(target_transform="log", bounded=False, **QUICK).fit(x, y)
    plain = EllipticRegressor(bounded=False, **QUICK).fit(x, np.log(y))
    np.testing.assert_allclose(model.predict(x), np.exp(plain.predict(x)), rtol=1e-5)
    assert np.isfinite(model.predict(1e9 * x)).all()
    with pytest.raises(ValueError, match="target_transform"):
        clone(model).fit(x, -y)


@pytest.mark.parametrize("n_networks", [1, 2])
def test_temperature_is_that_of_scikit_learn_on_the_held_out_rows(n_networks):
    x, y = make_blobs(200, centers=3, cluster_std=4.0, random_state=1)
    how = {**QUICK, "max_iter": 40, "learning_rate": 0.02, "n_networks": n_networks}
    model = EllipticClassifier(calibrate="temperature", validation_fraction=0.4, **how).fit(x, y)
    seed = stream_seed(model._seed, "split") % 2**32
    kept, held = train_test_split(np.arange(200), test_size=0.4, stratify=y, random_state=seed)
    plain = EllipticClassifier(**how).fit(x[kept], y[kept])
    frozen = CalibratedClassifierCV(FrozenEstimator(plain), method="temperature").fit(x[held], y[held])
    np.testing.assert_allclose(model.predict_proba(x), frozen.predict_proba(x), atol=2e-3)
    assert abs(model.temperature_ - 1) > 0.1


def test_temperature_at_its_ends(rng):
    logits = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert fit_temperature(logits, np.array([0, 1])) == 1.0
    assert fit_temperature(logits, np.array([1, 0])) > 1e4  # no better than chance: all classes equal
    weighted = fit_temperature(np.repeat(logits[:1], 2, 0), np.array([0, 1]), np.array([3.0, 1.0]))
    assert weighted == pytest.approx(1 / np.log(3))
    pooled = pool(torch.tensor([[[2.0, -1.0]], [[0.5, 3.0]]]), "labels")
    expected = torch.tensor([[2.0, -1.0], [0.5, 3.0]]).sigmoid().mean(0).logit()
    torch.testing.assert_close(pooled[0], expected)


def test_multilabel_and_several_targets():
    x, labels = make_multilabel_classification(80, 5, n_classes=4, random_state=0)
    model = EllipticClassifier(hidden=(32,), max_iter=60, learning_rate=0.01, random_state=0)
    shares = model.fit(x, csr_matrix(labels)).predict_proba(x)
    np.testing.assert_array_equal(model.predict(x), shares > 0.5)
    constant = np.maximum(labels.mean(0), 1 - labels.mean(0)).mean()
    assert (model.predict(x) == labels).mean() > constant + 0.05
    x, y = make_regression(80, 3, n_targets=2, random_state=0)
    for method in ("elliptic", "c-mixup", "mixup"):
        model = EllipticRegressor(method=method, max_iter=40, learning_rate=0.01, random_state=0).fit(x, y)
        assert model.score(x, y) > 0.9


def test_small_and_odd_data():
    one = EllipticClassifier(**QUICK).fit([[1.0, 2.0]], ["only"])
    assert one.predict_proba([[9.0, 9.0]]).tolist() == [[1.0]]
    constant = EllipticRegressor(**QUICK).fit(np.ones((5, 2)), np.full(5, 3.0))
    assert constant.predict(np.ones((1, 2))) == pytest.approx(3.0)
    booleans = EllipticClassifier(**QUICK).fit(np.eye(4), [True, False, True, False])
    assert booleans.predict(np.eye(4)).dtype == bool
    tensor = torch.randn(20, 3)
    model = EllipticRegressor(**QUICK).fit(tensor, tensor[:, 0])
    assert model.predict(tensor).shape == (20,)


# ------------------------------------------------------------------------------------ scikit-learn


def test_metadata_is_routed(blobs):
    x, y = blobs
    weight, groups = np.random.default_rng(0).uniform(size=60), np.arange(60) % 2
    with config_context(enable_metadata_routing=True):
        model = EllipticClassifier(method="balanced", **QUICK)
        model = model.set_fit_request(sample_weight=True, groups=True)
        given = {"sample_weight": weight, "groups": groups}
        scorer = make_scorer(accuracy_score).set_score_request(sample_weight=False)
        cross_validate(model, x, y, params=given, error_score="raise", scoring=scorer)
        routed = make_pipeline(TablePreprocessor(), model).fit(x, y, **given)
        assert is_same(routed[-1], EllipticClassifier(method="balanced", **QUICK).fit(x, y, weight, groups))


@pytest.mark.slow
def test_array_api_checks_run_where_scipy_allows_them():
    """scikit-learn skips one check unless this variable is set before SciPy is imported."""
    code = (
        "from sklearn.utils.estimator_checks import check_array_api_input as check;"
        "from elliptica.estimators import *;"
        "check('c', EllipticClassifier(hidden=(8,), max_iter=2), 'numpy');"
        "check('r', EllipticRegressor(hidden=(8,), max_iter=2), 'numpy');"
        "check('t', TablePreprocessor(), 'numpy')"
    )
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env=environment)


def test_missing_scikit_learn_names_the_extra(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("elliptica.estimators")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [n for n in sys.modules if n.split(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match="tables"):
        __import__("elliptica.estimators")


def test_example_runs(capsys):
    runpy.run_path(str(EXAMPLES / "sklearn_grid_search.py"), run_name="__main__")
    assert "best" in capsys.readouterr().out


DAYS = np.arange(60).astype("datetime64[D]")
BAD = {
    "method": ({"method": "eliptic"}, {}),
    "method of the other task": ({"method": "c-mixup"}, {}),
    "groups": ({"method": "lisa"}, {}),
    "max_iter": ({"max_iter": 0}, {}),
    "batch_size": ({"batch_size": 0}, {}),
    "learning_rate": ({"learning_rate": 0.0}, {}),
    "weight_decay": ({"weight_decay": -1.0}, {}),
    "sigma": ({"sigma": -1.0}, {}),
    "sigma_y": ({"sigma_y": -1.0}, {}),
    "alpha": ({"method": "mixup", "alpha": -1.0}, {}),
    "n_times": ({"n_times": 1}, {}),
    "bins": ({"bins": -1}, {}),
    "weighting": ({"weighting": "softmax"}, {}),
    "pairing": ({"pairing": "random"}, {}),
    "class_weight": ({"class_weight": {"a": -1.0}}, {}),
    "class_weight zero": ({"class_weight": {"a": 0.0, "b": 0.0, "c": 0.0}}, {}),
    "hidden": ({"hidden": (0,)}, {}),
    "test_size": ({"validation_fraction": 1.5, "early_stopping": True}, {}),
    "sample_weight": ({}, {"sample_weight": -np.ones(60)}),
    "X": ({}, {"X": DAYS[:, None]}),
    "X frame": ({}, {"X": pl.DataFrame({"day": DAYS})}),
    "y": ({}, {"y": (np.arange(120) % 5).reshape(60, 2)}),
    "calibrate": ({"calibrate": "temperature"}, {"y": np.eye(60, 2, dtype=int)}),
}


@pytest.mark.bad_input
@pytest.mark.parametrize("name", BAD)
def test_bad_input(blobs, name):
    options, given = BAD[name]
    with pytest.raises((ValueError, TypeError), match=name.split()[0]):
        EllipticClassifier(**options).fit(**{"X": blobs[0], "y": blobs[1], **given})


def test_diverging_training_and_targets_without_numbers(line):
    with pytest.raises(FloatingPointError, match="learning_rate"):
        EllipticRegressor(hidden=(), max_iter=200, learning_rate=1e30, random_state=0).fit(*line)
    with pytest.raises(TypeError, match="y"):
        EllipticRegressor().fit(line[0], DAYS[:50])
