"""Bridging in a hidden layer, against a model that is split by hand at that layer."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import reference
from elliptica import Elliptic

pytestmark = pytest.mark.filterwarnings("ignore::elliptica.core.types.EllipticWarning")

N, HIDDEN, SIGMA = 5, 4, 0.6
WEIGHTINGS = ("none", "gradient_norm", "gradient_softmax", "girsanov", "multiplicative", "released")
PATH_ONLY = ("girsanov", "multiplicative")


def normal(*shape, generator):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.lower = nn.Sequential(nn.Linear(3, HIDDEN), nn.Tanh()).double()
        self.upper = nn.Sequential(nn.Linear(HIDDEN, 5), nn.Tanh(), nn.Linear(5, 2)).double()

    def forward(self, x):
        return self.upper(self.lower(x))


def hand_bridge(start, end, s, generator, sampling):
    """Bridge points ``(time, rows, hidden)`` from the covariance min(s, t) - s t."""
    s = s[:, :, None]
    line = (1 - s) * start + s * end
    if sampling == "marginal":
        return line + SIGMA * (s * (1 - s)).sqrt() * normal(1, *start.shape, generator=generator)
    inner = s[1:-1, 0, 0]
    root = torch.linalg.cholesky(torch.minimum(inner[:, None], inner) - inner[:, None] * inner)
    noise = torch.einsum("st,trf->srf", root, normal(len(inner), *start.shape, generator=generator))
    return line + SIGMA * F.pad(noise, (0, 0, 0, 0, 1, 1))


def weighted(losses, slopes, points, s, weighting, xi):
    """The readings once more, for losses ``(time, rows)`` whose points have a graph of their own."""
    norm = slopes.square().sum(2).sqrt()
    z, rows = points, losses.shape[1]
    linear = (slopes[:-1] * (z[1:] - z[:-1])).sum((0, 2))
    quadratic = SIGMA**2 * (slopes[:-1].square().sum(2) * (s[1:] - s[:-1])).sum(0)
    log_weight = xi * linear - 0.5 * xi**2 * quadratic
    if weighting == "gradient_norm":
        return losses + xi * norm
    if weighting == "gradient_softmax":
        size = norm.detach()
        raw = (xi * (size - size.mean()) / size.std()).exp()
        return losses * raw / raw.mean()
    if weighting == "girsanov":
        return losses - log_weight
    if weighting == "multiplicative":
        raw = log_weight.detach().exp().view(-1, N)  # (bridge, batch)
        return losses * (raw / raw.mean(0)).flatten()
    if weighting == "released":
        g = slopes / rows
        return losses - xi * ((g * z).sum(2) - 0.5 * g.square().sum(2)).mean(0)
    return losses


CASES = [
    (sampling, weighting, n_bridges)
    for sampling in ("path", "marginal")
    for weighting in WEIGHTINGS
    for n_bridges in ((2, 3) if weighting == "multiplicative" else (1, 2))
    if sampling == "path" or weighting not in PATH_ONLY
]


@pytest.mark.parametrize(("sampling", "weighting", "n_bridges"), CASES)
def test_equals_a_model_split_by_hand(sampling, weighting, n_bridges, generator):
    """Value and gradients of all parameters, below the layer too."""
    model = Split()
    x, y = normal(N, 3, generator=generator), normal(N, 2, generator=generator)
    partners = torch.randint(N, (N, n_bridges), generator=generator)
    if weighting == "multiplicative":
        partners = partners[:, :1].repeat(1, n_bridges)
    objective = Elliptic(
        model,
        nn.MSELoss(),
        at="lower",
        sampling=sampling,
        n_times=4,
        n_bridges=n_bridges,
        sigma=SIGMA,
        weighting=weighting,
        xi=0.7,
    )
    paths = objective.sample(x, y, partners=partners, generator=generator)
    twin = generator.clone_state()
    loss = objective(x, y, paths=paths)

    hidden = model.lower(x)
    s = paths.s.permute(2, 1, 0).flatten(1)  # (time, bridge * batch)
    targets = paths.y.permute(2, 1, 0, 3).flatten(1, 2)
    points = hand_bridge(hidden.repeat(n_bridges, 1), hidden[partners.t().flatten()], s, twin, sampling)
    losses = (model.upper(points) - targets).square().mean(2)
    (slopes,) = torch.autograd.grad(losses.sum(), points, create_graph=True)
    expected = weighted(losses, slopes, points, s, weighting, xi=0.7).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    ours = reference.gradients(loss, model)
    for a, b in zip(ours, reference.gradients(expected, model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    assert ours[0].abs().max() > 0  # model.lower


@pytest.mark.parametrize("n_bridges", [1, 2])
def test_given_ends_run_through_the_lower_layers(n_bridges, generator):
    """Zero noise, one hidden bridge: the far rows are those of ``end``, not of the batch."""
    model = Split()
    x, y = normal(N, 3, generator=generator), normal(N, 2, generator=generator)
    far_x, far_y = (normal(N, n_bridges, k, generator=generator) for k in (3, 2))
    objective = Elliptic(
        model, nn.MSELoss(), at="lower", sampling="path", n_times=3, n_bridges=n_bridges, sigma=0.0
    )
    loss = objective(x, y, end=(far_x, far_y))
    near, far = model.lower(x)[:, None].expand(-1, n_bridges, -1), model.lower(far_x)
    points = torch.stack([near, (near + far) / 2, far])
    targets = torch.stack([y[:, None].expand_as(far_y), (y[:, None] + far_y) / 2, far_y])
    torch.testing.assert_close(loss, F.mse_loss(model.upper(points), targets))
    marginal = Elliptic(model, nn.MSELoss(), at="lower")
    with pytest.raises(ValueError, match='Use sampling="path"'):
        marginal(x, y, end=(far_x[:, 0], far_y[:, 0]))


class Text(nn.Module):
    """Masked mean of embeddings, then a head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, HIDDEN)
        self.head = nn.Sequential(nn.Linear(HIDDEN, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, tokens, mask):
        return self.pool(self.embedding(tokens), mask)

    def pool(self, embedded, mask):
        weight = mask.unsqueeze(2).to(embedded.dtype)
        return self.head((embedded * weight).sum(1) / weight.sum(1))


@pytest.mark.parametrize(("sampling", "weighting", "n_bridges"), CASES)
def test_tokens_with_a_mask(sampling, weighting, n_bridges, generator):
    model, partner = Text(), torch.tensor([2, 0, 4, 1, 3])
    tokens = torch.randint(11, (N, 6), generator=generator)
    mask = torch.arange(6) < torch.tensor([[6], [2], [3], [1], [4]])
    y = torch.randint(3, (N,), generator=generator)
    objective = Elliptic(
        model,
        nn.CrossEntropyLoss(),
        num_classes=3,
        at="embedding",
        bridged=("tokens",),
        sampling=sampling,
        n_times=4,
        n_bridges=n_bridges,
        sigma=0.0,
        weighting=weighting,
    )
    x = {"tokens": tokens, "mask": mask}
    paths = objective.sample(x, y, partners=partner, generator=generator)
    loss = objective(x, y, paths=paths)
    loss.backward()
    assert model.embedding.weight.grad.abs().max() > 0
    assert model.head[0].weight.grad.abs().max() > 0
    if weighting == "none":
        losses = []
        for i in range(N):
            a, b = model.embedding(tokens[i]), model.embedding(tokens[partner[i]])
            for s, target in zip(paths.s[i].flatten(), paths.y[i].flatten(0, 1), strict=True):
                nearer = mask[i] if s <= 0.5 else mask[partner[i]]
                output = model.pool(((1 - s) * a + s * b).unsqueeze(0), nearer.unsqueeze(0))[0]
                losses.append(reference.cross_entropy(output, target))
        torch.testing.assert_close(loss, sum(losses) / len(losses))


@pytest.mark.parametrize("sigma", ["auto", "green"])
@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_scales_are_measured_in_the_layer(sigma, sampling, generator):
    """Neither leaves a trace in the objective: hidden features move while training."""
    objective = Elliptic(Split(), nn.MSELoss(), at="lower", sampling=sampling, sigma=sigma)
    x, y = normal(N, 3, generator=generator), normal(N, 2, generator=generator)
    objective(x, y, generator=generator).backward()
    assert objective.auto_sigma is None


@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_distances_are_those_of_hidden_features(sampling, generator):
    """The lower layer looks at one coordinate alone, so neighbours in it are not those of the inputs."""
    model = Split()
    with torch.no_grad():
        model.lower[0].weight.copy_(torch.tensor([[1.0, 0.0, 0.0]]).expand(HIDDEN, 3) * 0.1)
    x = torch.tensor([[0.0, 0, 0], [0.1, 90, 0], [2.0, 1, 0], [2.1, 91, 0]], dtype=torch.float64)
    y = normal(4, 2, generator=generator)
    objective = Elliptic(
        model, nn.MSELoss(), at="lower", pairing="nearest", sampling=sampling, n_times=3, sigma=0.0
    )
    loss = objective(x, y, generator=(twin := generator.clone_state()))
    expected = objective(x, y, partners=torch.tensor([1, 0, 3, 2]), generator=generator)
    assert torch.equal(loss, expected)
    assert torch.equal(twin.get_state(), generator.get_state())


def test_measuring_distances_leaves_batch_norm_alone(generator):
    model = Split()
    model.lower.append(nn.BatchNorm1d(HIDDEN).double())
    before = copy.deepcopy(model.state_dict())
    objective = Elliptic(model, nn.MSELoss(), at="lower", pairing="inverse_distance")
    objective.sample(normal(N, 3, generator=generator), normal(N, 2, generator=generator))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.lower[-1].track_running_stats


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)
        self.recurrent = nn.LSTM(3, 3, batch_first=True)

    def forward(self, x):
        out, _ = self.recurrent(x[:, None])
        return self.used(self.used(out[:, 0]))


@pytest.mark.parametrize("sampling", ["path", "marginal"])
@pytest.mark.parametrize(
    ("at", "error", "message"),
    [
        ("used", RuntimeError, "ran twice"),
        ("unused", RuntimeError, "did not run"),
        ("recurrent", TypeError, "output of the layer at='recurrent' must be a torch.Tensor, but got tuple"),
    ],
)
@pytest.mark.parametrize("weighting", ["none", "gradient_norm"])
def test_layers_that_cannot_be_bridged(at, error, message, sampling, weighting, generator):
    model = Twice()
    x = torch.randn(4, 3, generator=generator)
    objective = Elliptic(model, nn.MSELoss(), at=at, sampling=sampling, weighting=weighting)
    with pytest.raises(error, match=message):
        objective(x, x)
    assert all(not m._forward_hooks for m in model.modules())  # no hook is left behind


@pytest.mark.parametrize(
    ("at", "message"),
    [("uper", "Did you mean 'upper'"), ("zzz", "It has 'lower'"), ("", "It has 'lower'")],
)
def test_unknown_layers_are_refused_at_once(at, message):
    with pytest.raises(ValueError, match=message):
        Elliptic(Split(), nn.MSELoss(), at=at)
