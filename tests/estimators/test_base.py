"""Ensembles, group methods, noise, smoothing and threads of both estimators."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, make_blobs, make_multilabel_classification
from torch import nn

from elliptica import GradientNorm, GradientSoftmax, Permutation
from elliptica._utils.perceptron import mlp
from elliptica._utils.random import stream, stream_seed
from elliptica.estimators import EllipticClassifier, EllipticRegressor, base, fit, save
from elliptica.estimators.stacked import StackedJob, train_stacked

QUICK = {"hidden": (16,), "max_iter": 3, "random_state": 0}


@pytest.fixture
def blobs():
    return make_blobs(60, centers=3, n_features=4, cluster_std=3.0, random_state=0)


@pytest.fixture
def line():
    x = np.random.default_rng(0).normal(size=(50, 3))
    return x, x @ [1.0, 2.0, 3.0]


def weights(network):
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def is_same(a, b):
    return torch.equal(weights(a.module_), weights(b.module_))


def outputs(model, x):
    scaled = ((x - model.x_mean_) / model.x_scale_).astype(np.float32)
    with torch.no_grad():
        return [network(torch.from_numpy(scaled)).double() for network in model.module_.networks]


def test_probabilities_of_an_ensemble_are_means(blobs):
    x, y = blobs
    model = EllipticClassifier(**QUICK, n_networks=4).fit(x, y)
    members = outputs(model, x)
    assert len(members) == 4
    assert not any(torch.allclose(members[0], other, atol=1e-3) for other in members[1:])
    mean = torch.stack([member.softmax(1) for member in members]).mean(0).numpy()
    np.testing.assert_allclose(model.predict_proba(x), mean, atol=1e-6)
    np.testing.assert_array_equal(model.predict(x), mean.argmax(1))
    logits = torch.stack(members).mean(0).softmax(1).numpy()
    assert np.abs(logits - mean).max() > 1e-3  # a mean of logits is something else
    assert model.decision_function(x).shape == (60, 3)
    labels = np.eye(3)[y].astype(int)
    several = EllipticClassifier(**QUICK, n_networks=2).fit(x, labels)
    mean = torch.stack([member.sigmoid() for member in outputs(several, x)]).mean(0).numpy()
    np.testing.assert_allclose(several.predict_proba(x), mean, atol=1e-6)
    np.testing.assert_array_equal(several.predict(x), mean > 0.5)


def test_an_ensemble_is_one_module(blobs, line):
    """What `network_rows` hands out predicts as the estimator does."""
    model = EllipticClassifier(**QUICK, n_networks=2).fit(*blobs)
    rows = model.network_rows(*blobs)
    np.testing.assert_allclose(
        rows.module(rows.x).softmax(1).detach().numpy(), model.predict_proba(blobs[0]), atol=1e-5
    )
    model = EllipticRegressor(**QUICK, n_networks=2, bounded=False).fit(*line)
    rows = model.network_rows(*line)
    found = rows.module(rows.x).detach().numpy()[:, 0] * model.y_scale_ + model.y_mean_
    np.testing.assert_allclose(found, model.predict(line[0]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "method", "settings"),
    [
        ({}, "elliptic", {"sigma": 0.1, "sigma_y": 0.1}),
        ({"sigma": 1.0, "sigma_y": 0.0}, "elliptic", {"sigma": 1.0, "sigma_y": 0.0}),
        ({"weighting": GradientSoftmax(0.3)}, "elliptic-weighted", {"sigma_y": 0.1, "xi": 0.3}),
        ({"weighting": "gradient_softmax", "pairing": Permutation()}, "elliptic-weighted", {"xi": 1.0}),
        ({"method": "erm"}, "erm", {}),
        ({"method": "noise", "sigma": 0.4}, "noise", {"sigma": 0.4}),
        ({"method": "mixup", "alpha": 0.3}, "mixup", {"alpha": 0.3}),
        ({"method": "c-mixup", "bandwidth": 0.5}, "c-mixup", {"bandwidth": 0.5}),
    ],
)
def test_networks_of_an_ensemble_are_trained_side_by_side(line, options, method, settings):
    """By the stacked trainer, with rows in the order of their content and seeds of their own."""
    x, y = line
    model = EllipticRegressor(**QUICK, **options, n_networks=3, batch_size=20, weight_decay=0.01).fit(x, y)
    rows = np.array(
        sorted(range(50), key=lambda i: ((x[i] - x.mean(0)) / x.std(0)).astype(np.float32).tobytes())
    )
    inputs = model._scale(x)[rows]
    target = ((y - y.mean()) / y.std())[rows].astype(np.float32)
    seeds = [model._seed, *(stream_seed(model._seed, "ensemble", i) for i in (1, 2))]
    jobs = [
        StackedJob(
            np.arange(50),
            0,
            seed,
            method,
            {**settings, "max_iter": 3, "weight_decay": 0.01},
            weight=np.ones(50),
        )
        for seed in seeds
    ]
    trained = train_stacked([inputs], [target], jobs, loss="real", n_outputs=1, hidden=(16,), batch_size=17)
    for number, network in enumerate(model.module_.networks):
        torch.testing.assert_close(weights(network), weights(trained.network(number)), atol=1e-6, rtol=1e-5)
    np.testing.assert_allclose(model.loss_curve_, np.mean(trained.loss_curves, axis=0), rtol=1e-5)
    assert model.n_iter_ == model.best_iteration_ == 3


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": "path"},
        {"n_bridges": 2},
        {"pairing": "nearest"},
        {"sigma": "green"},
        {"sigma": "auto", "method": "noise"},
        {"weighting": GradientNorm(0.1)},
        {"early_stopping": True},
        {"warm_start": True},
        {"module": nn.Linear(3, 1)},
        {"hidden": (2048, 1024), "max_iter": 1},
    ],
)
def test_other_ensembles_are_trained_one_after_the_other(line, options, monkeypatch):
    """The first network is then the one that n_networks=1 gives."""
    monkeypatch.setattr(base, "train_stacked", lambda *_args, **_options: pytest.fail("stacked"))
    settings = {**QUICK, **options}
    model = EllipticRegressor(**settings, n_networks=2).fit(*line)
    single = EllipticRegressor(**settings).fit(*line)
    assert torch.equal(weights(model.module_.networks[0]), weights(single.module_))
    if "module" not in options:
        assert not torch.equal(weights(model.module_.networks[1]), weights(single.module_))
    pairs = [p.loss_curve for p in model._progress]
    longest = max(pairs, key=len)
    both = [np.mean([curve[i] for curve in pairs if len(curve) > i]) for i in range(len(longest))]
    np.testing.assert_allclose(model.loss_curve_, both)


def test_labels_smoothed_by_bridges_are_not_stacked(blobs, monkeypatch):
    """The paper's noise of labels is beyond the stacked trainer; None, which is 0, is not."""
    used = []
    monkeypatch.setattr(base, "train_stacked", lambda *a, **o: used.append(1) or train_stacked(*a, **o))
    EllipticClassifier(**QUICK, n_networks=2, sigma_y=0.1).fit(*blobs)
    x, labels = make_multilabel_classification(40, 4, n_classes=3, random_state=0)
    EllipticClassifier(**QUICK, n_networks=2).fit(x, labels)
    assert not used
    EllipticClassifier(**QUICK, n_networks=2).fit(*blobs)
    EllipticClassifier(**QUICK, n_networks=2, sigma_y=0.0).fit(*blobs)
    assert len(used) == 2


@pytest.mark.statistical
@pytest.mark.parametrize("method", ["elliptic", "erm", "noise"])
def test_side_by_side_learns_what_the_loop_learns(method, seed):
    """Eight networks each way on diabetes: mean scores agree up to six standard errors (2e-5 at t(14))."""
    x, y = load_diabetes(return_X_y=True)
    options = {"hidden": (16,), "max_iter": 20, "random_state": seed, "n_networks": 8, "method": method}
    scores = []
    for ways in ({}, {"warm_start": True}):
        model = EllipticRegressor(**options, **ways).fit(x[:300], y[:300])
        own = [model._values(o.numpy()) for o in outputs(model, x[300:])]
        scores.append([1 - ((o[:, 0] - y[300:]) ** 2).mean() / y[300:].var() for o in own])
    one, two = np.array(scores)
    assert not np.array_equal(one, two)
    spread = np.sqrt((one.var(ddof=1) + two.var(ddof=1)) / 8)
    assert abs(one.mean() - two.mean()) < 6 * spread + 0.01
    assert one.mean() > 0.3


@pytest.mark.parametrize("options", [{}, {"warm_start": True}, {"method": "mixup"}])
def test_weights_and_order_of_rows_in_ensembles(blobs, options):
    x, y = blobs
    copies = np.random.default_rng(0).integers(0, 4, 60)
    model = EllipticClassifier(**QUICK, **options, n_networks=2)
    weighted = clone(model).fit(x, y, copies)
    repeated = clone(model).fit(np.repeat(x, copies, 0)[::-1], np.repeat(y, copies)[::-1])
    torch.testing.assert_close(weights(weighted.module_), weights(repeated.module_), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(weights(weighted.module_), weights(clone(model).fit(x, y).module_), atol=1e-4)
    assert is_same(clone(model).fit(x, y), clone(model).fit(x[::-1], y[::-1]))
    assert not is_same(clone(model).fit(x, y), clone(model).set_params(random_state=1).fit(x, y))


def test_ensembles_go_on(blobs):
    whole = EllipticClassifier(**{**QUICK, "max_iter": 4}, n_networks=2, warm_start=True).fit(*blobs)
    parts = (
        EllipticClassifier(**{**QUICK, "max_iter": 2}, n_networks=2, warm_start=True).fit(*blobs).fit(*blobs)
    )
    steps = EllipticClassifier(**QUICK, n_networks=2)
    for _ in range(4):
        steps.partial_fit(*blobs)
    assert is_same(parts, whole)
    assert is_same(steps, whole)
    assert steps.n_iter_ == len(steps.loss_curve_) == 4


def test_early_stopping_of_ensembles(line):
    """Each network ends where its own score does; attributes are means and the longest."""
    options = {
        "early_stopping": True,
        "n_iter_no_change": 2,
        "learning_rate": 0.03,
        "validation_fraction": 0.3,
    }
    model = EllipticRegressor(**{**QUICK, "max_iter": 60}, **options, n_networks=3).fit(*line)
    lengths = [p.n_iter for p in model._progress]
    assert model.n_iter_ == max(lengths) == len(model.validation_scores_)
    assert len(set(lengths)) > 1
    assert model.best_iteration_ == max(p.best_iteration for p in model._progress)
    assert model.best_validation_score_ == pytest.approx(np.mean([p.best_score for p in model._progress]))
    last = [p.validation_scores[-1] for p in model._progress if p.n_iter == max(lengths)]
    assert model.validation_scores_[-1] == pytest.approx(np.mean(last))


def test_ensembles_that_diverge_say_so(line):
    with pytest.raises(FloatingPointError, match="Lower learning_rate"):
        EllipticRegressor(hidden=(), max_iter=200, learning_rate=1e30, n_networks=2).fit(*line)


def test_verbose_names_the_network(blobs, capsys):
    EllipticClassifier(**QUICK, n_networks=2, sampling="path", verbose=True).fit(*blobs)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("Network 1 of 2, epoch 1: loss")
    assert lines[-1].startswith("Network 2 of 2, epoch 3: loss")


@pytest.mark.parametrize("method", ["noise", "smoothing"])
def test_controls_are_erm_at_zero(blobs, method):
    erm = EllipticClassifier(**QUICK, method="erm").fit(*blobs)
    off = EllipticClassifier(
        **QUICK, method=method, **{"noise": {"sigma": 0.0}, "smoothing": {"smoothing": 0.0}}[method]
    )
    torch.testing.assert_close(weights(off.fit(*blobs).module_), weights(erm.module_), atol=1e-6, rtol=1e-5)
    on = EllipticClassifier(**QUICK, method=method).fit(*blobs)
    assert not torch.allclose(weights(on.module_), weights(erm.module_), atol=1e-4)


def test_smoothing_is_that_of_torch(blobs):
    x, y = blobs
    model = EllipticClassifier(method="smoothing", smoothing=0.3, hidden=(8,), max_iter=4, random_state=3)
    model.fit(x, y)
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(model._seed, "init"))
        net = mlp(4, 3, hidden=(8,))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    inputs = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    rows = sorted(range(60), key=lambda i: inputs[i].tobytes())
    inputs, labels = torch.from_numpy(inputs[rows]), torch.from_numpy(y[rows])
    for epoch in range(4):
        order = torch.randperm(60, generator=stream(model._seed, "order", epoch))
        loss = nn.functional.cross_entropy(net(inputs[order]), labels[order], label_smoothing=0.3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(weights(model.module_), weights(net), atol=1e-6, rtol=1e-5)


@pytest.mark.statistical
def test_noise_is_a_penalty_on_the_slope(line, seed):
    """A linear model with input noise sigma is ridge regression with penalty n sigma^2 on scaled columns."""
    x, y = line
    options = {"hidden": (), "max_iter": 600, "learning_rate": 0.01, "random_state": seed, "bounded": False}
    model = EllipticRegressor(method="noise", sigma=0.7, **options).fit(x, y)
    z, t = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    ridge = np.linalg.solve(z.T @ z + 50 * 0.7**2 * np.eye(3), z.T @ t)
    found = model.module_[0].weight.detach().numpy()[0]
    np.testing.assert_allclose(found, ridge, atol=0.06)
    plain = np.linalg.solve(z.T @ z, z.T @ t)
    assert np.abs(plain - ridge).max() > 0.15


@pytest.mark.parametrize("method", ["balanced", "groupdro", "lisa"])
def test_group_methods_serve_the_small_group(method):
    """The label follows one column for most rows, and another one for a few, which have their own group."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    group = (np.arange(400) < 40).astype(int)
    shortcut = np.where(group == 1, 1 - y, y)
    x = np.column_stack(
        [2 * shortcut - 1 + 0.3 * rng.normal(size=400), 2 * y - 1 + 1.5 * rng.normal(size=400)]
    )
    names = np.array(["many", "few"])[group]
    options = {"hidden": (16,), "max_iter": 30, "random_state": 0, "learning_rate": 0.01}
    erm = EllipticClassifier(method="erm", **options).fit(x, y, groups=names)
    model = EllipticClassifier(method=method, eta=0.1, **options).fit(x, y, groups=names)
    few = group == 1
    assert model.score(x[few], y[few]) > erm.score(x[few], y[few]) + 0.1
    order = rng.permutation(400)
    again = clone(model).fit(x[order], y[order], groups=names[order])
    assert is_same(model, again)
    assert is_same(clone(erm).fit(x, y), erm)  # others ignore groups
    assert not is_same(model, clone(model).fit(x, y, groups=rng.permutation(names)))


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
def test_group_methods_that_cannot_be(blobs, line):
    x, y = blobs
    groups = np.arange(60) % 2
    with pytest.raises(ValueError, match="groups"):
        EllipticClassifier(method="groupdro").fit(x, y)
    for name, options in {
        "module": {"module": nn.Linear(4, 3)},
        "early_stopping": {"early_stopping": True},
    }.items():
        with pytest.raises(ValueError, match=f"does not support .*{name}"):
            EllipticClassifier(method="lisa", **options).fit(x, y, groups=groups)
    model = EllipticClassifier(method="balanced", **QUICK, warm_start=True).fit(x, y, groups=groups)
    with pytest.raises(ValueError, match="does not support warm_start"):
        model.fit(x, y, groups=groups)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        EllipticClassifier(method="balanced").fit(x, y, groups=groups[:-1])
    with pytest.raises(ValueError, match="method"):
        EllipticRegressor(method="lisa").fit(*line)
    with pytest.raises(ValueError, match="n_networks"):
        EllipticRegressor(n_networks=0).fit(*line)
    with pytest.raises(ValueError, match="smoothing"):
        EllipticClassifier(method="smoothing", smoothing=2.0).fit(x, y)


def test_equal_rows_are_held_out_together():
    x = np.repeat(np.arange(20.0), 3)[:, None]
    y = np.repeat(np.arange(20) % 2, 3)
    kept, held = fit.hold_out(x, y, 0.25, "classes", 0)
    assert len(held) == 15
    assert not set(x[kept, 0]) & set(x[held, 0])
    assert sorted([*kept, *held]) == list(range(60))


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Watching(nn.Linear):
    seen: list[int] = []  # noqa: RUF012 - shared by all copies

    def forward(self, x):
        self.seen.append(torch.get_num_threads())
        return super().forward(x)


@pytest.mark.usefixtures("two_threads")
def test_small_networks_train_with_one_thread(line, monkeypatch):
    """Networks of the user and large ones keep the number; it is restored afterwards, also after errors."""
    seen = []
    ordinary = base.train_epoch
    monkeypatch.setattr(
        base, "train_epoch", lambda *a, **o: seen.append(torch.get_num_threads()) or ordinary(*a, **o)
    )
    model = EllipticRegressor(**QUICK).fit(*line)
    assert seen == [1, 1, 1]
    model.predict(line[0])
    assert torch.get_num_threads() == 2
    EllipticRegressor(hidden=(1024, 1024), max_iter=1).fit(*line)
    assert seen[3:] == [2]
    Watching.seen.clear()
    EllipticRegressor(module=Watching(3, 1), max_iter=1).fit(*line).predict(line[0])
    assert set(Watching.seen) == {2}
    with pytest.raises(FloatingPointError):
        EllipticRegressor(hidden=(), max_iter=200, learning_rate=1e30).fit(*line)
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_blocks_of_one_thread_nest():
    with fit.one_thread():
        with fit.one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    assert fit._outside == []


@pytest.mark.parametrize("unit", [1e200, 1e-200, 1e300, 1e-300])
def test_units_do_not_matter_however_extreme(line, unit):
    x, y = line
    expected = EllipticRegressor(**QUICK).fit(x, y).predict(x)
    assert np.allclose(EllipticRegressor(**QUICK).fit(x * unit, y).predict(x * unit), expected)
    assert np.allclose(EllipticRegressor(**QUICK).fit(x, y * unit).predict(x) / unit, expected)


def test_a_constant_column_of_extreme_numbers_has_scale_one():
    x = np.column_stack(
        [np.full(4, 1e200), np.full(4, 1e-200), [1e200, -1e200, 1e200, -1e200], [1, -1, 1, -1]]
    )
    mean, scale = fit.location_and_scale(x, None, True)
    assert np.allclose(mean / [1e200, 1e-200, 1e200, 1], [1, 1, 0, 0])
    assert np.allclose(scale, [1, 1, 1e200, 1], rtol=1e-12)


@pytest.mark.bad_input
def test_weights_too_large_to_be_summed_are_refused(line):
    x, y = line
    with pytest.raises(ValueError, match="sample_weight"):
        EllipticRegressor(**QUICK).fit(x, y, sample_weight=np.full(len(x), 1e308))


@pytest.mark.bad_input
@pytest.mark.parametrize("n_networks", [1, 3])
@pytest.mark.parametrize(
    "setting",
    [{"n_times": 2.5}, {"n_times": 1}, {"sigma": -1}, {"sigma": -1, "method": "noise"}, {"sigma_y": "a"}],
)
def test_several_networks_refuse_what_one_refuses(line, n_networks, setting):
    with pytest.raises((TypeError, ValueError)):
        EllipticRegressor(**QUICK, n_networks=n_networks, **setting).fit(*line)


def test_a_number_of_numpy_trains_several_networks_as_one_of_python(line):
    models = [EllipticRegressor(**QUICK, n_networks=2, sigma=s).fit(*line) for s in (0.5, np.float32(0.5))]
    assert is_same(*models)


@pytest.mark.bad_input
@pytest.mark.parametrize("changed", [{"hidden": (4,)}, {"n_networks": 2}])
def test_networks_cannot_be_changed_after_training(line, changed, tmp_path):
    model = EllipticRegressor(**QUICK, warm_start=True).fit(*line).set_params(**changed)
    for go_on in (
        lambda: model.fit(*line),
        lambda: model.partial_fit(*line),
        lambda: save(model, tmp_path / "a"),
    ):
        with pytest.raises(ValueError, match="was changed after training"):
            go_on()
    model.set_params(hidden=[16], n_networks=1).fit(*line)
    assert model.n_iter_ == 6
