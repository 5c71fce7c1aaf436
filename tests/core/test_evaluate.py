"""Evaluation at points of paths: chunks against all at once, and what batch norm sees."""

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import reference
from elliptica import Elliptic, log_weights, path_losses, sample_paths

pytestmark = pytest.mark.filterwarnings("ignore::elliptica.core.types.EllipticWarning")

WEIGHTINGS = ("none", "gradient_norm", "gradient_softmax", "girsanov", "multiplicative", "released")


def normal(*shape, generator):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def data(generator, n=7):
    return normal(n, 3, generator=generator), torch.randint(4, (n,), generator=generator)


class Watched(nn.Module):
    """Tanh that remembers how many rows came, and whether its outputs are still alive."""

    def __init__(self):
        super().__init__()
        self.rows, self.outputs = [], []

    def forward(self, z):
        out = torch.tanh(z)
        self.rows.append(len(z))
        self.outputs.append(weakref.ref(out))
        return out


def network(middle=None):
    return nn.Sequential(nn.Linear(3, 5), middle or nn.Tanh(), nn.Linear(5, 4)).double()


def test_path_losses_are_those_of_each_point(generator):
    """The axes are batch, bridge, time: each value belongs to the point at the same place."""
    model, (x, y) = network(), data(generator)
    paths = sample_paths(
        x, y, target_space="simplex", num_classes=4, sampling="path", n_times=3, n_bridges=2, sigma=0.5
    )
    for chunk_size in (None, 1, 6, 100):
        losses = path_losses(model, nn.CrossEntropyLoss(), paths, chunk_size=chunk_size)
        assert losses.shape == (7, 2, 3)
        for i, j, t in ((0, 0, 0), (3, 1, 2), (6, 0, 1)):
            expected = reference.cross_entropy(model(paths.x[i, j, t]), paths.y[i, j, t])
            torch.testing.assert_close(losses[i, j, t], expected)


@pytest.mark.parametrize("with_drift", [False, True])
@pytest.mark.parametrize("sigma", [0.7, torch.tensor([0.2, 0.5, 1.0]).double()])
def test_log_weights_equal_the_slow_loop(sigma, with_drift, generator):
    model, y = network(), normal(4, 4, generator=generator)
    x, drift = normal(4, 3, generator=generator), None
    if with_drift:

        def drift(x, y):
            return torch.sin(x) + y[:, :3]

    paths = sample_paths(
        x, y, target_space="real", sampling="path", n_times=5, n_bridges=2, sigma=sigma, horizon=0.5
    )
    variance = torch.as_tensor(sigma, dtype=torch.float64) ** 2 * 0.5
    expected = reference.log_weights(
        model, reference.squared_error, paths, xi=0.6, variance=variance, drift=drift
    )
    ours = log_weights(model, nn.MSELoss(), paths, xi=0.6, drift=drift)
    torch.testing.assert_close(ours, torch.stack([torch.stack(row) for row in expected]))


@pytest.mark.parametrize("with_drift", [False, True])
def test_random_variances_enter_the_log_weights_of_their_own_paths(with_drift, generator):
    """``"green"``: one variance per bridge, zero where the bridge is a loop, in the order of the paths."""
    model, x, y = network(), normal(4, 3, generator=generator), normal(4, 4, generator=generator)
    partners = torch.tensor([[1, 2], [0, 2], [3, 0], [0, 1] if with_drift else [0, 3]])
    settings = {"sampling": "path", "n_times": 5, "n_bridges": 2, "sigma": "green"}
    paths = sample_paths(x, y, target_space="real", partners=partners, generator=generator, **settings)
    variance = paths.variance["x"].view(2, 4).t()  # (batch, bridge)
    loop = partners == torch.arange(4)[:, None]  # a drift has no meaning there
    assert torch.equal(variance == 0, loop)
    assert torch.equal((paths.x == paths.x[:, :, :1]).all(3).all(2), loop)
    drift = (lambda x, y: torch.sin(x) + y[:, :3]) if with_drift else None
    ours = log_weights(model, nn.MSELoss(), paths, xi=0.6, drift=drift)
    for i, j in ((0, 0), (1, 1), (2, 0), (3, 1)):
        logs = reference.log_weights(
            model, reference.squared_error, paths, xi=0.6, variance=variance[i, j], drift=drift
        )
        torch.testing.assert_close(ours[i, j], logs[i][j])


def test_log_weights_need_whole_paths(generator):
    x, y = data(generator)
    paths = sample_paths(x, y, target_space="simplex", num_classes=4)
    with pytest.raises(ValueError, match='sampling="path"'):
        log_weights(network(), nn.CrossEntropyLoss(), paths)


@pytest.mark.bad_input
def test_arguments_that_make_no_sense_are_refused(generator, own_checks):
    x, y = data(generator)
    paths = sample_paths(x, y, target_space="simplex", num_classes=4, sampling="path", n_times=3)
    given = (network(), nn.CrossEntropyLoss(), paths)
    for chunk_size, error in ((-1, ValueError), (0, ValueError), (2.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="chunk_size must be"):
            path_losses(*given, chunk_size=chunk_size)
    for xi, error in ((float("nan"), ValueError), (float("inf"), ValueError), ("1", TypeError)):
        with pytest.raises(error, match="xi must be"):
            log_weights(*given, xi=xi)
    for call in (path_losses, log_weights):
        with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
            call(lambda x: x, nn.CrossEntropyLoss(), paths)
    with pytest.raises(TypeError, match=r"a function drift.*got float"):
        log_weights(*given, drift=0.3)
    for drift, got in (
        (lambda x, y: None, "NoneType"),
        (lambda x, y: [x, y], "list"),
        (lambda x, y: (x, y, x), r"\(Tensor, Tensor, Tensor\)"),
        (lambda x, y: (x, None), r"\(Tensor, NoneType\)"),
    ):
        with pytest.raises(TypeError, match=rf"drift must return a tensor mu_x.*returned {got}"):
            log_weights(*given, drift=drift)


@pytest.mark.parametrize("settings", [{}, {"sigma": "green"}, {"sigma": "auto"}, {"antithetic": True}])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_chunks_leave_value_and_gradient_alone(weighting, settings, generator):
    """14 rows of 4 points each, 2 rows at a time; nothing but the points is kept for backward."""
    watched = Watched()
    model, (x, y) = network(watched), data(generator)
    settings = {
        "num_classes": 4,
        "sampling": "path",
        "n_times": 4,
        "n_bridges": 2,
        "sigma": 0.5,
        "weighting": weighting,
        **settings,
    }
    whole = Elliptic(model, nn.CrossEntropyLoss(), **settings)
    chunked = Elliptic(model, nn.CrossEntropyLoss(), **settings, chunk_size=11)
    paths = whole.sample(x, y, generator=generator)
    expected = whole(x, y, paths=paths)
    watched.rows.clear(), watched.outputs.clear()
    loss = chunked(x, y, paths=paths)
    assert max(watched.rows) <= 11
    assert all(output() is None for output in watched.outputs)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-14)
    for a, b in zip(reference.gradients(loss, model), reference.gradients(expected, model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("weighting", ["girsanov", "multiplicative"])
def test_chunks_with_a_drift_network(weighting, generator):
    drift = nn.Bilinear(3, 4, 3).double()
    model, (x, y) = network(), data(generator)
    settings = {"num_classes": 4, "sampling": "path", "weighting": weighting, "drift": drift, "sigma": 0.5}
    settings["n_bridges"] = 2
    whole = Elliptic(model, nn.CrossEntropyLoss(), **settings)
    chunked = Elliptic(model, nn.CrossEntropyLoss(), **settings, chunk_size=10)
    paths = whole.sample(x, y, generator=generator)
    ours = reference.gradients(chunked(x, y, paths=paths), chunked)
    for a, b in zip(ours, reference.gradients(whole(x, y, paths=paths), whole), strict=True):
        torch.testing.assert_close(a, b)


def test_chunks_with_dropout_repeat_their_masks(generator):
    """The second pass of a chunk must drop the same units: the gradient is that of the value."""
    model, (x, y) = network(nn.Dropout(0.5)), data(generator)
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=4, sampling="path", chunk_size=10)
    paths = objective.sample(x, y, generator=generator)

    def value():
        torch.manual_seed(0)
        return objective(x, y, paths=paths)

    (slope,) = torch.autograd.grad(value(), model[0].bias)
    step = 1e-6
    with torch.no_grad():
        model[0].bias[0] += step
        above = value()
        model[0].bias[0] -= 2 * step
        below = value()
    torch.testing.assert_close((above - below) / (2 * step), slope[0], rtol=1e-6, atol=1e-9)


def test_tiny_chunks_hold_one_path(generator):
    """A path is never split, whatever the chunk size."""
    watched = Watched()
    model, (x, y) = network(watched), data(generator)
    Elliptic(model, nn.CrossEntropyLoss(), num_classes=4, sampling="path", n_times=5, chunk_size=1)(x, y)
    assert set(watched.rows) == {5}


def normed():
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4)).double()


def statistics(model):
    return copy.deepcopy(dict(model[1].named_buffers()))


def assert_same_statistics(ours, expected):
    assert set(ours) == {"running_mean", "running_var", "num_batches_tracked"}
    for name, value in ours.items():
        torch.testing.assert_close(value, expected[name], msg=name)


def passed_over(model, batches):
    """Running statistics after ordinary training passes over the batches."""
    model = copy.deepcopy(model)
    for x in batches:
        model(x)
    return statistics(model)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("chunked", [False, True])
def test_path_statistics_are_recorded_once_per_chunk(weighting, chunked, generator):
    """Forward and backward together; the second pass over a chunk leaves no trace."""
    model, (x, y) = normed(), data(generator)
    objective = Elliptic(
        model,
        nn.CrossEntropyLoss(),
        num_classes=4,
        sampling="path",
        n_times=4,
        n_bridges=2,
        weighting=weighting,
        chunk_size=20 if chunked else None,
    )
    paths = objective.sample(x, y, generator=generator)
    rows = paths.x.permute(2, 1, 0, 3).flatten(1, 2)  # (time, bridge * batch, feature)
    step = 5 if chunked else 14
    expected = passed_over(model, [part.flatten(0, 1) for part in rows.split(step, 1)])
    assert expected["num_batches_tracked"] == (3 if chunked else 1)
    objective(x, y, paths=paths).backward()
    assert_same_statistics(statistics(model), expected)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("chunk_size", [None, 12])
def test_clean_statistics_are_those_of_a_clean_pass(weighting, chunk_size, generator):
    model, (x, y) = normed(), data(generator)
    objective = Elliptic(
        model,
        nn.CrossEntropyLoss(),
        num_classes=4,
        sampling="path",
        n_bridges=2,
        sigma=0.9,
        weighting=weighting,
        bn="clean",
        chunk_size=chunk_size,
    )
    expected = passed_over(model, [x])
    paths = objective.sample(x, y, generator=generator)
    loss = objective(x, y, paths=paths)
    loss.backward()
    assert_same_statistics(statistics(model), expected)
    assert model[1].track_running_stats
    if weighting == "none" and chunk_size is None:  # normalised by the points' own statistics
        rows = paths.x.flatten(0, 2)
        torch.testing.assert_close(loss, F.cross_entropy(model(rows), paths.y.flatten(0, 2)))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("chunk_size", [None, 12])
def test_frozen_statistics_stay(weighting, chunk_size, generator):
    model, (x, y) = normed(), data(generator)
    model(5 * x + 1)
    objective = Elliptic(
        model,
        nn.CrossEntropyLoss(),
        num_classes=4,
        sampling="path",
        n_times=4,
        n_bridges=2,
        weighting=weighting,
        bn="frozen",
        chunk_size=chunk_size,
    )
    before = statistics(model)
    paths = objective.sample(x, y, generator=generator)
    loss = objective(x, y, paths=paths)
    loss.backward()
    assert_same_statistics(statistics(model), before)
    assert model[1].training
    # frozen statistics do not couple rows, so the slow loop over single rows applies
    expected = reference.objective(
        model.eval(), reference.cross_entropy, paths, weighting=weighting, variance=0.05**2
    )
    torch.testing.assert_close(loss, expected)


def test_a_failing_model_leaves_batch_norm_as_it_was(generator):
    model, (x, y) = normed(), data(generator)

    def fail(output, target):
        raise RuntimeError("no loss today")

    for bn in ("clean", "frozen"):
        objective = Elliptic(model, fail, num_classes=4, target_space="simplex", bn=bn)
        with pytest.raises(RuntimeError, match="no loss today"):
            objective(x, y)
        assert model[1].training
        assert model[1].track_running_stats
