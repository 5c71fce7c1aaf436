"""Estimators: scikit-learn's own checks, independent loops, weights as copies, random streams."""

import os
import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from elliptica.estimators.fit import draw_epoch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import (
    load_diabetes,
    load_digits,
    load_iris,
    make_blobs,
    make_multilabel_classification,
    make_regression,
)
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from elliptica import GradientSoftmax, Green, InverseDistance, LabelKernel
from elliptica._utils.perceptron import make_adam, mlp
from elliptica._utils.random import stream, stream_seed
from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor
from laws import assert_frequencies

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUICK = {"hidden": (16,), "max_iter": 3, "random_state": 0}


# large steps on whole data sets, so that a few epochs reach the scores that the checks ask for
CHECKED = {"hidden": (32,), "max_iter": 20, "batch_size": 1000, "learning_rate": 0.03}


def known_failures(estimator):
    """One check has negative targets, also for estimators whose tags say that they take positive ones."""
    logs = getattr(estimator, "target_transform", None) == "log"
    return {"check_regressor_multioutput": "negative targets"} if logs else {}


@pytest.mark.bad_input  # some checks construct estimators with arguments of any type
@pytest.mark.filterwarnings("ignore:All .* held-out rows are classified correctly")
@parametrize_with_checks(
    [
        EllipticClassifier(**CHECKED),
        EllipticRegressor(**CHECKED),
        EllipticClassifier(**CHECKED, n_networks=2, calibrate="temperature", method="smoothing"),
        EllipticRegressor(**CHECKED, n_networks=2, bounded=False, method="noise", target_transform="log"),
        TablePreprocessor(),
    ],
    expected_failed_checks=known_failures,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.bad_input
@pytest.mark.filterwarnings("ignore:All .* held-out rows are classified correctly")
@parametrize_with_checks(
    [
        EllipticClassifier(**CHECKED, calibrate="temperature"),
        EllipticClassifier(**CHECKED, n_networks=3),
        EllipticClassifier(**CHECKED, n_networks=2, sampling="path"),  # one after the other
        EllipticClassifier(**CHECKED, method="noise"),
        EllipticClassifier(**CHECKED, method="smoothing"),
        EllipticRegressor(**CHECKED, bounded=False),
        EllipticRegressor(**CHECKED, n_networks=3),
        EllipticRegressor(**CHECKED, n_networks=2, early_stopping=True, validation_fraction=0.3),
        EllipticRegressor(**CHECKED, target_transform="log"),
        EllipticRegressor(**CHECKED, method="noise"),
    ],
    expected_failed_checks=known_failures,
)
def test_scikit_learn_checks_with_each_option(estimator, check):
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


def scaled(x):
    return (x - x.mean(0)) / x.std(0)


def test_erm_is_an_ordinary_loop(blobs):
    """Initial weights and order from the documented streams; everything else is plain torch."""
    x, y = blobs
    order = np.lexsort((y, *x.T[::-1]))  # any order of rows: only the set of each batch matters to ERM
    model = EllipticClassifier(method="erm", hidden=(8,), max_iter=4, batch_size=25, random_state=3)
    model.fit(x[order], y[order])
    seed = int(np.random.RandomState(3).randint(np.iinfo(np.int32).max))
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(seed, "init"))
        net = mlp(4, 3, hidden=(8,))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    inputs, labels = scaled(x).astype(np.float32), np.unique(y, return_inverse=True)[1]
    rows = sorted(range(60), key=lambda i: inputs[i].tobytes())
    inputs, labels = torch.from_numpy(inputs[rows]), torch.from_numpy(labels[rows])
    curve = []
    for epoch in range(4):
        losses = []
        for part in torch.randperm(60, generator=stream(seed, "order", epoch)).split(20):
            loss = nn.functional.cross_entropy(net(inputs[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curve.append(np.mean(losses))
    expected = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(parameters(model), expected, atol=1e-6, rtol=1e-5)
    np.testing.assert_allclose(model.loss_curve_, curve, rtol=1e-5)
    with torch.no_grad():
        shares = net(torch.from_numpy(scaled(x).astype(np.float32))).softmax(1).numpy()
    np.testing.assert_allclose(model.predict_proba(x), shares, atol=1e-5)


@pytest.mark.parametrize("method", ["elliptic", "mixup", "c-mixup", "erm"])
def test_degenerate_settings_are_erm(line, method):
    """Without mixing every method is ordinary training; with it none is."""
    off = {
        "elliptic": {"n_times": 2, "sampling": "path"},
        "mixup": {"alpha": 0.0},
        "c-mixup": {"alpha": 0.0},
        "erm": {},
    }[method]
    erm = EllipticRegressor(method="erm", **QUICK).fit(*line)
    plain = EllipticRegressor(method=method, **off, **QUICK).fit(*line)
    torch.testing.assert_close(parameters(plain), parameters(erm), atol=1e-5, rtol=1e-4)
    mixed = EllipticRegressor(method=method, **QUICK).fit(*line)
    assert (method == "erm") == torch.allclose(parameters(mixed), parameters(erm), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", ["elliptic", "mixup"])
@pytest.mark.parametrize("options", [{}, {"class_weight": "balanced"}, {"class_weight": {"b": 3.0}}])
def test_weights_are_copies(blobs, method, options):
    """Whole-number weights train as repeated rows do, in any order and with zero rows left out."""
    x, y = blobs
    copies = np.random.default_rng(0).integers(0, 4, len(x))
    model = EllipticClassifier(method=method, **QUICK, **options)
    weighted = clone(model).fit(x, y, copies)
    repeated = clone(model).fit(np.repeat(x, copies, 0)[::-1], np.repeat(y, copies)[::-1])
    assert is_same(weighted, repeated)
    assert not is_same(weighted, clone(model).fit(x, y))


@pytest.mark.parametrize("method", ["elliptic", "mixup", "c-mixup"])
def test_rows_of_no_weight_are_neither_learnt_nor_partners(line, method):
    x, y = line
    weight = np.ones(50)
    weight[::5] = 0
    spoilt = y.copy()
    spoilt[::5] = 1e6
    model = EllipticRegressor(method=method, **QUICK)
    kept = clone(model).fit(x[weight > 0], y[weight > 0])
    assert is_same(clone(model).fit(x, spoilt, weight), kept)
    assert kept.y_mean_ == pytest.approx(y[weight > 0].mean())


def test_optimiser_is_fused_where_torch_can_and_takes_the_same_steps(blobs):
    x, y = blobs
    model = EllipticClassifier(**QUICK).fit(x, y)
    assert all(group["fused"] for group in model._progress[0].optimizer.param_groups)
    nets = [mlp(4, 3, hidden=(8,)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    ordinary = torch.optim.AdamW(nets[0].parameters(), lr=0.01, weight_decay=0.1)
    ours = make_adam(nets[1].parameters(), lr=0.01, weight_decay=0.1, decoupled=True)
    rows = torch.from_numpy(x.astype(np.float32))
    for net, optimizer in zip(nets, (ordinary, ours), strict=True):
        for _ in range(5):
            optimizer.zero_grad()
            net(rows).square().mean().backward()
            optimizer.step()
    for one, two in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)
    assert make_adam(mlp(4, 3).double().parameters()).defaults["fused"] is None


def test_label_kernel_of_the_regressor(line):
    near, far = (EllipticRegressor(pairing=LabelKernel(width), **QUICK).fit(*line) for width in (0.1, 10.0))
    assert not is_same(near, far)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("make", [EllipticClassifier, EllipticRegressor])
def test_drawing_by_the_epoch_changes_no_score(make, seed, monkeypatch):
    """Against points drawn step by step, on digits and diabetes: the same up to six standard errors."""
    load = load_digits if make is EllipticClassifier else load_diabetes
    x, y = load(return_X_y=True)
    x, y = x[:400], y[:400]
    scores = {}
    for by_epoch in (True, False):
        if not by_epoch:
            monkeypatch.setattr("elliptica.estimators.fit.can_draw_epochs", lambda _settings: False)
        models = [make(hidden=(16,), max_iter=20, random_state=seed + i, sigma=0.2) for i in range(8)]
        scores[by_epoch] = [m.fit(x[:300], y[:300]).score(x[300:], y[300:]) for m in models]
    one, two = (np.array(scores[b]) for b in (True, False))
    assert not np.array_equal(one, two)
    spread = np.sqrt((one.var(ddof=1) + two.var(ddof=1)) / 8)
    assert abs(one.mean() - two.mean()) < 6 * spread + 0.005
    assert one.mean() > 0.3


def test_other_settings_are_drawn_step_by_step(line, monkeypatch):
    """What the epoch's law does not cover never reaches it."""

    def refuse(*_args, **_options):
        raise AssertionError("drawn by the epoch")

    monkeypatch.setattr("elliptica.estimators.fit.epoch_paths", refuse)
    for options in ({"sampling": "path"}, {"pairing": "nearest"}, {"sigma": "green"}, {"n_bridges": 2}):
        EllipticRegressor(**QUICK, **options).fit(*line)
    for options in ({}, {"sigma": "auto"}):
        with pytest.raises(AssertionError, match="drawn by the epoch"):
            EllipticRegressor(**QUICK, **options).fit(*line)


@pytest.mark.statistical
def test_fractional_weights_are_frequencies(generator):
    weight = np.array([0.2, 1.0, 2.5, 0.3, 4.0])
    counts = np.zeros(5)
    for _ in range(2000):
        drawn = np.bincount(draw_epoch(5, weight, generator).numpy(), minlength=5)
        assert drawn.sum() == 8
        assert (np.abs(drawn - weight) < 1).all()  # never further off than rounding
        counts += drawn
    assert_frequencies(counts, weight)
    with pytest.raises(AssertionError):
        assert_frequencies(counts, weight + np.array([0.2, 0, 0, 0, 0]))


def test_an_epoch_without_weights_has_every_row_once(generator):
    assert draw_epoch(7, None, generator).sort().values.tolist() == list(range(7))
    assert draw_epoch(7, np.full(7, 0.01), generator).sort().values.tolist() == list(range(7))
    assert len(draw_epoch(7, np.full(7, 1e9), generator)) == 70


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
def test_going_on_equals_not_stopping(blobs, line, make):
    data = blobs if make is EllipticClassifier else line
    whole = make(hidden=(16,), max_iter=4, random_state=0).fit(*data)
    parts = make(hidden=(16,), max_iter=2, random_state=0, warm_start=True).fit(*data).fit(*data)
    assert is_same(parts, whole)
    assert parts.n_iter_ == 4
    assert parts.loss_curve_ == whole.loss_curve_
    steps = make(hidden=(16,), random_state=0)
    for i in range(4):
        steps.partial_fit(*data)
        if i == 1:
            steps = pickle.loads(pickle.dumps(steps))  # the optimiser goes along
    assert is_same(steps, whole)
    anew = make(hidden=(16,), max_iter=2, random_state=0).fit(*data)
    assert not is_same(anew.fit(*data), whole)


def test_partial_fit_needs_all_classes(blobs):
    x, y = blobs
    model = EllipticClassifier(**QUICK).partial_fit(x[y == "a"], y[y == "a"], classes=["c", "b", "a"])
    assert model.classes_.tolist() == ["a", "b", "c"]
    model.partial_fit(x, y).partial_fit(x, y, classes=["a", "b", "c"])
    with pytest.raises(ValueError, match="not those of the first call"):
        model.partial_fit(x, y, classes=["a", "b"])
    with pytest.raises(ValueError, match=r"classes \['z'\]"):
        model.partial_fit(x[:1], ["z"])
    for options in ({"early_stopping": True}, {"calibrate": "temperature"}):
        with pytest.raises(AttributeError) as caught:
            _ = EllipticClassifier(**options).partial_fit
        assert "one batch at a time" in str(caught.value.__cause__)
        assert not hasattr(EllipticClassifier(**options), "partial_fit")
    with pytest.raises(ValueError, match="one batch at a time"):
        EllipticClassifier(class_weight="balanced").partial_fit(x, y)


@pytest.mark.parametrize("make", [EllipticClassifier, EllipticRegressor])
def test_early_stopping_keeps_the_best(blobs, line, make):
    x, y = blobs if make is EllipticClassifier else line
    settings = {
        "early_stopping": True,
        "n_iter_no_change": 3,
        "learning_rate": 0.05,
        "validation_fraction": 0.3,
    }
    model = make(hidden=(16,), max_iter=60, random_state=0, **settings).fit(x, y)
    scores = model.validation_scores_
    assert model.n_iter_ == len(scores) < 60
    assert model.best_iteration_ == np.argmax(scores) + 1 < model.n_iter_
    assert model.best_validation_score_ == max(scores)
    # the same rows are held out again, and the network as kept has the best score on them
    codes = np.unique(y, return_inverse=True)[1] if make is EllipticClassifier else y
    order = np.array(sorted(range(len(x)), key=lambda i: x[i].tobytes()))
    kept, held = train_test_split(
        order,
        test_size=int(np.ceil(0.3 * len(x))),
        stratify=codes[order] if make is EllipticClassifier else None,
        random_state=stream_seed(model._seed, "split") % 2**32,
    )
    assert model.score(x[held], y[held]) == pytest.approx(max(scores))
    # held-out rows are neither trained on nor in the statistics: training is that on the others
    part = make(**QUICK).fit(x[kept], y[kept])
    whole = make(**QUICK, early_stopping=True, validation_fraction=0.3).fit(x, y)
    assert whole.loss_curve_ == part.loss_curve_
    assert part.validation_scores_ is None
    for name in ["x_mean_", "x_scale_"] + (["y_mean_", "y_scale_"] if make is EllipticRegressor else []):
        np.testing.assert_array_equal(getattr(whole, name), getattr(part, name))
    np.testing.assert_allclose(whole.x_mean_, x[kept].mean(0))
    # going on with steps that only do harm leaves the network as it was
    before = parameters(model)
    model.set_params(warm_start=True, learning_rate=10.0, max_iter=2).fit(x, y)
    assert torch.equal(parameters(model), before)
    assert model.best_validation_score_ == max(scores)


@pytest.mark.parametrize("make", [EllipticClassifier, EllipticRegressor])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_the_order_of_rows_does_not_matter(blobs, line, make, weighted, early_stopping):
    x, y = blobs if make is EllipticClassifier else line
    x, y = np.concatenate([x, x[:9], x[:9]]), np.concatenate([y, y[:9], y[:9]])  # rows with equal content
    rng = np.random.default_rng(0)
    weight = rng.uniform(0, 3, len(x)).round(1) if weighted else None
    order = rng.permutation(len(x))
    model = make(**QUICK, early_stopping=early_stopping, validation_fraction=0.3)
    first = clone(model).fit(x, y, weight)
    again = clone(model).fit(x[order], y[order], weight[order] if weighted else None)
    assert is_same(first, again)
    assert first.validation_scores_ == again.validation_scores_
    np.testing.assert_array_equal(first.x_mean_, again.x_mean_)
    np.testing.assert_array_equal(first.predict(x), again.predict(x))


def test_going_on_holds_the_same_rows_out(blobs):
    x, y = blobs
    settings = {"early_stopping": True, "validation_fraction": 0.3, "n_iter_no_change": 99}
    model = EllipticClassifier(**QUICK, **settings, warm_start=True).fit(x, y)
    mean, best = model.x_mean_.copy(), model.best_validation_score_
    order = np.random.default_rng(0).permutation(len(x))
    model.fit(x[order], y[order])
    np.testing.assert_array_equal(model.x_mean_, mean)
    assert model.n_iter_ == 6
    assert model.best_validation_score_ >= best


def test_class_weight_helps_the_rare_class():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(400, 2)), rng.normal(1.2, 1.0, size=(20, 2))])
    y = np.array([0] * 400 + [1] * 20)
    settings = {"hidden": (16,), "max_iter": 15, "learning_rate": 0.01, "random_state": 0}
    recall = {}
    for class_weight in (None, "balanced", {1: 20.0}):
        model = EllipticClassifier(class_weight=class_weight, **settings).fit(x, y)
        recall[str(class_weight)] = (model.predict(x[400:]) == 1).mean()
    assert recall["None"] < 0.3
    assert recall["balanced"] > 0.6
    assert recall["{1: 20.0}"] > 0.6


def test_units_do_not_matter(line):
    """With ``standardize`` the network sees the same numbers in any units; without it, not."""
    x, y = line
    model = EllipticRegressor(**QUICK)
    a, b = clone(model).fit(x, y), clone(model).fit(x * [1e4, 1, 1e-4] + 7, y * 50 - 3)
    np.testing.assert_allclose(b.predict(x * [1e4, 1, 1e-4] + 7), a.predict(x) * 50 - 3, rtol=1e-3)
    raw = clone(model).set_params(standardize=False)
    assert not torch.allclose(parameters(raw.fit(x, y)), parameters(clone(raw).fit(x * 10, y)))
    assert (raw.x_scale_ == 1).all()


def test_multilabel_and_several_targets():
    x, labels = make_multilabel_classification(80, 5, n_classes=4, random_state=0)
    model = EllipticClassifier(hidden=(32,), max_iter=60, learning_rate=0.01, random_state=0).fit(x, labels)
    shares = model.predict_proba(x)
    assert shares.shape == (80, 4)
    np.testing.assert_array_equal(model.predict(x), shares > 0.5)
    constant = np.maximum(labels.mean(0), 1 - labels.mean(0)).mean()
    assert (model.predict(x) == labels).mean() > constant + 0.05
    with pytest.raises(ValueError, match="does not support multilabel"):
        clone(model).set_params(class_weight="balanced").fit(x, labels)
    x, y = make_regression(80, 3, n_targets=2, random_state=0)
    for method in ("elliptic", "c-mixup", "mixup"):
        model = EllipticRegressor(method=method, max_iter=40, learning_rate=0.01, random_state=0).fit(x, y)
        assert model.predict(x).shape == (80, 2)
        assert model.score(x, y) > 0.9
    with pytest.raises(ValueError, match="2 columns"):
        model.partial_fit(x, y[:, 0])


def test_small_and_odd_data():
    one = EllipticClassifier(**QUICK).fit([[1.0, 2.0]], ["only"])
    assert one.predict([[9.0, 9.0]]).tolist() == ["only"]
    assert one.predict_proba([[9.0, 9.0]]).tolist() == [[1.0]]
    constant = EllipticRegressor(**QUICK).fit(np.ones((5, 2)), np.full(5, 3.0))
    assert constant.x_scale_.tolist() == [1.0, 1.0]
    assert np.isfinite(constant.predict(np.ones((1, 2)))).all()
    booleans = EllipticClassifier(**QUICK).fit(np.eye(4), [True, False, True, False])
    assert booleans.predict(np.eye(4)).dtype == bool
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            EllipticRegressor(**QUICK).fit([[value], [1.0]], [0.0, 1.0])


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": "path", "weighting": "multiplicative", "n_bridges": 2},
        {"weighting": GradientSoftmax(0.5)},
        {"pairing": InverseDistance(2.0), "sigma": "auto"},
        {"sigma": Green(0.5), "pairing": "nearest"},
        {"sigma": 0.0},
        {"sigma_y": 0.1},
    ],
)
def test_options_of_the_objective(blobs, options):
    model = EllipticClassifier(**QUICK, **options).fit(*blobs)
    assert np.isfinite(model.loss_curve_).all()
    assert not is_same(model, EllipticClassifier(**QUICK).fit(*blobs))


class Net(nn.Sequential):
    def __init__(self, n_features, n_outputs):
        super().__init__(nn.Linear(n_features, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, n_outputs))


def test_own_modules(blobs):
    x, y = blobs
    net = Net(4, 3)
    before = [p.clone() for p in net.parameters()]
    model = EllipticClassifier(module=net, **QUICK).fit(x, y)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert isinstance(model.module_, Net)
    assert not model.module_.training
    made = EllipticClassifier(module=Net, **QUICK).fit(x, y)
    assert made.module_[-1].out_features == 3
    assert EllipticClassifier(module=Net, batch_size=20, **QUICK).fit(x[:41], y[:41]).n_iter_ == 3
    with pytest.raises(ValueError, match=r"shape \(2, 3\) \(one logit per class\), but returned \(2, 5\)"):
        EllipticClassifier(module=Net(4, 5), **QUICK).fit(x, y)
    with pytest.raises(ValueError, match="one output per target"):
        EllipticRegressor(module=Net(4, 5), **QUICK).fit(x, np.arange(60.0))


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize(
    "options",
    [
        {"method": "eliptic"},
        {"method": "c-mixup"},
        {"max_iter": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"weight_decay": -1.0},
        {"sigma": -1.0},
        {"weighting": "softmax"},
        {"pairing": "random"},
        {"class_weight": {"a": -1.0}},
        {"hidden": (0,)},
        {"validation_fraction": 0.999, "early_stopping": True},
        {"validation_fraction": 1.5, "early_stopping": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_bad_parameters(blobs, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        EllipticClassifier(**options).fit(*blobs)


def test_bad_weights_and_diverging_training(blobs, line):
    x, y = blobs
    with pytest.raises(ValueError, match="at least zero"):
        EllipticClassifier(**QUICK).fit(x, y, -np.ones(60))
    with pytest.raises(ValueError, match="weight zero"):
        EllipticClassifier(class_weight={"a": 0.0, "b": 0.0, "c": 0.0}, **QUICK).fit(x, y)
    with pytest.raises(FloatingPointError, match="Lower learning_rate"):
        EllipticRegressor(hidden=(), max_iter=200, learning_rate=1e30, random_state=0).fit(*line)
    with pytest.raises(ValueError, match="zeros and ones"):
        EllipticClassifier(**QUICK).fit(x, (np.arange(120) % 5).reshape(60, 2))


def test_verbose_and_set_params_while_going_on(blobs, capsys):
    model = EllipticClassifier(**QUICK, verbose=True, warm_start=True).fit(*blobs)
    assert capsys.readouterr().out.count("Epoch") == 3
    model.set_params(learning_rate=0.5, verbose=False).fit(*blobs)
    assert {group["lr"] for group in model._progress[0].optimizer.param_groups} == {0.5}
    assert capsys.readouterr().out == ""


def test_calibration_and_grid_search():
    x, y = load_iris(return_X_y=True)
    settings = {"hidden": (16,), "max_iter": 15, "learning_rate": 0.02, "random_state": 0}
    calibrated = CalibratedClassifierCV(EllipticClassifier(**settings), cv=3).fit(x, y)
    assert calibrated.score(x, y) > 0.9
    grid = {"method": ["elliptic", "erm", "mixup"], "sigma": [0.1]}
    search = GridSearchCV(EllipticClassifier(**settings), grid, cv=3).fit(x, y)
    assert (search.cv_results_["mean_test_score"] > 0.8).all()
    means = {round(float(v), 9) for v in search.best_estimator_.predict_proba(x).sum(1)}
    assert means == {1.0}


def test_the_core_does_not_import_scikit_learn():
    code = "import sys, elliptica; print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_missing_scikit_learn_names_the_extra(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("elliptica.estimators")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ModuleNotFoundError, match=r"elliptica\[tables\]"):
        __import__("elliptica.estimators")


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


def test_example_runs(capsys):
    runpy.run_path(str(EXAMPLES / "sklearn_grid_search.py"), run_name="__main__")
    assert "best" in capsys.readouterr().out


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
def test_tables_and_targets_that_numpy_would_convert_silently():
    x = np.random.default_rng(0).normal(size=(20, 3))
    days = np.arange(20).astype("datetime64[D]")
    labels = np.array(["a", "b"] * 10, dtype=object)
    small = EllipticClassifier(max_iter=1)
    for table in (days[:, None], pl.DataFrame({"a": x[:, 0], "day": days})):
        with pytest.raises(TypeError, match=r"(?s)times.*TablePreprocessor"):
            small.fit(table, labels)
    with pytest.raises(ValueError, match="several columns named 'a'"):
        small.fit(pd.DataFrame(x, columns=["a", "a", "b"]), labels)
    for y in (days, labels.astype(str)):
        with pytest.raises(TypeError, match="y must hold numbers"):
            EllipticRegressor(max_iter=1).fit(x, y)
    with pytest.raises(ValueError, match="it is missing in row 19"):
        small.fit(x, np.append(labels[:-1], None))
    with pytest.raises(TypeError, match="mixes strings with other types"):
        small.fit(x, np.append(labels[:-1], 3))
    with pytest.raises(TypeError):
        small.fit(x, labels, groups=np.append(labels[:-1], 3))


def test_sparse_labels_and_tensors_are_read():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = np.stack([np.arange(20) % 2, np.arange(20) % 3 == 0], 1).astype(int)
    small = EllipticClassifier(max_iter=1, hidden=(4,), random_state=0)
    plain = clone(small).fit(x.detach().numpy(), y).predict_proba(x.detach().numpy())
    np.testing.assert_array_equal(small.fit(x, csr_matrix(y)).predict_proba(x), plain)


def test_lazy_frames_are_collected_by_their_owner():
    frame = pl.DataFrame({"a": [0.0, 1, 2, 3], "b": [1.0, 0, 1, 0]})
    model = EllipticRegressor(max_iter=1).fit(frame, [0.0, 1, 2, 3])
    for call in (lambda: model.predict(frame.lazy()), lambda: model.fit(frame.lazy(), [0.0, 1, 2, 3])):
        with pytest.raises(TypeError, match=r"X\.collect\(\)"):
            call()
