"""What the objective can be called with: several inputs, given ends, partners, weights and paths."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import reference
from elliptica import Elliptic, PartnerTable, elliptic_loss, path_losses

pytestmark = pytest.mark.filterwarnings("ignore::elliptica.core.types.EllipticWarning")

WEIGHTINGS = ("none", "gradient_norm", "gradient_softmax", "girsanov", "multiplicative", "released")


def normal(*shape, generator):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


class TwoInputs(nn.Module):
    """Concatenates what it gets; ``flag`` is discrete and switches a bias."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        self.bias = nn.Embedding(3, 2).double()

    def forward(self, a, b, flag=None):
        out = self.body(torch.cat([a, b], 1))
        return out if flag is None else out + self.bias(flag)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_two_bridged_inputs_are_one_wide_input(weighting, generator):
    """Norms, inner products and path weights run over both inputs together."""
    model = TwoInputs()
    wide = model.body
    x, y = normal(4, 5, generator=generator), normal(4, 2, generator=generator)
    settings = {"sampling": "path", "n_times": 4, "n_bridges": 2, "sigma": 0.4, "weighting": weighting}
    one = Elliptic(wide, nn.MSELoss(), **settings)
    two = Elliptic(model, nn.MSELoss(), **settings, bridged=(0, 1))
    paths = one.sample(x, y, generator=generator)
    halves = (paths.x[..., :2], paths.x[..., 2:])
    split = dataclasses.replace(paths, x=halves, variance={0: paths.variance["x"], 1: paths.variance["x"]})
    expected = one(x, y, paths=paths)
    loss = two((x[:, :2], x[:, 2:]), y, paths=split)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-14)
    for a, b in zip(reference.gradients(loss, wide), reference.gradients(expected, wide), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("sampling", ["path", "marginal"])
@pytest.mark.parametrize("as_dict", [False, True])
def test_carried_inputs_come_from_the_nearer_end(sampling, as_dict, generator):
    model, partner = TwoInputs(), torch.tensor([1, 2, 3, 0])
    a, b = normal(4, 2, generator=generator), normal(4, 3, generator=generator)
    flag = torch.tensor([0, 1, 2, 1])
    y = normal(4, 2, generator=generator)
    x = {"b": b, "a": a, "flag": flag} if as_dict else (a, b, flag)
    names = {"a": "a", "b": "b", "flag": "flag"} if as_dict else {"a": 0, "b": 1, "flag": 2}
    objective = Elliptic(
        model,
        nn.MSELoss(),
        sampling=sampling,
        n_times=5,
        bridged=(names["a"],),
        sigma=0.3,
        weighting="gradient_softmax",
    )
    paths = objective.sample(x, y, partners=partner, generator=generator)
    for i in range(4):
        for t in range(paths.s.shape[2]):
            source = i if paths.s[i, 0, t] <= 0.5 else int(partner[i])
            assert torch.equal(paths.x[names["b"]][i, 0, t], b[source])
            assert paths.x[names["flag"]][i, 0, t] == flag[source]
    assert paths.x[names["flag"]].dtype == torch.long
    # and the model is called with exactly these rows
    rows = [paths.x[names[k]].flatten(0, 2) for k in ("a", "b", "flag")]
    direct = F.mse_loss(model(*rows), paths.y.flatten(0, 2), reduction="none").mean(1)
    torch.testing.assert_close(path_losses(model, nn.MSELoss(), paths).flatten(), direct)
    objective(x, y, paths=paths).backward()
    assert model.body[0].weight.grad.abs().max() > 0


def test_which_inputs_to_bridge_must_be_said(generator):
    x = (normal(4, 2, generator=generator), normal(4, 3, generator=generator))
    objective = Elliptic(TwoInputs(), nn.MSELoss())
    with pytest.raises(ValueError, match="Choose which to bridge"):
        objective(x, normal(4, 2, generator=generator))
    objective = Elliptic(TwoInputs(), nn.MSELoss(), bridged=("a",))
    with pytest.raises(ValueError, match="must name inputs of x"):
        objective(x, normal(4, 2, generator=generator))


@pytest.mark.parametrize("sampling", ["path", "marginal"])
@pytest.mark.parametrize("n_bridges", [1, 3])
@pytest.mark.parametrize("classes", [False, True])
def test_given_ends_equal_partners(sampling, n_bridges, classes, generator):
    """Far ends from a PartnerTable over a data set, against the same rows put into one batch."""
    data, n = normal(20, 3, generator=generator), 6
    labels = torch.randint(4, (20,), generator=generator)
    targets = labels if classes else normal(20, 4, generator=generator)
    weights = torch.rand(20, dtype=torch.float64, generator=generator)
    model = nn.Linear(3, 4).double()
    table = PartnerTable(data, power=2.0)
    index = torch.randperm(20, generator=generator)[:n]
    partner = table.sample(index, n_bridges=n_bridges, generator=generator)
    loss_fn = nn.CrossEntropyLoss() if classes else nn.MSELoss()
    objective = Elliptic(
        model, loss_fn, num_classes=4, sampling=sampling, n_times=4, n_bridges=n_bridges, sigma=0.3
    )
    twin = generator.clone_state()
    drawn = objective.sample(
        data[index],
        targets[index],
        sample_weight=weights[index],
        end=(data[partner], targets[partner], weights[partner]),
        generator=generator,
    )
    # the same, with the far ends in the batch: row k of the batch starts, rows beyond only end
    rows = torch.cat([index, partner.t().flatten()])
    within = n + torch.arange(n * n_bridges).reshape(n_bridges, n).t()
    whole = torch.cat([within, torch.zeros(n * n_bridges, n_bridges, dtype=torch.long)])
    joined = objective.sample(
        data[rows], targets[rows], sample_weight=weights[rows], partners=whole, generator=twin
    )
    if sampling == "path":  # noise and times are drawn per row, so compare what does not depend on them
        assert torch.equal(drawn.x[:, :, 0], joined.x[:n, :, 0])
        assert torch.equal(drawn.x[:, :, -1], joined.x[:n, :, -1])
        assert torch.equal(drawn.y[:, :, -1], joined.y[:n, :, -1])
        assert torch.equal(drawn.weight, joined.weight[:n])
    # a permutation of the batch itself leaves every draw in place
    own = torch.stack([torch.randperm(n, generator=generator) for _ in range(n_bridges)], 1)
    x, y, w = data[index], targets[index], weights[index]
    twin = generator.clone_state()
    given = objective(x, y, sample_weight=w, end=(x[own], y[own], w[own]), generator=generator)
    paired = objective(x, y, sample_weight=w, partners=own, generator=twin)
    assert torch.equal(given, paired)


def test_ends_and_partners_exclude_each_other(generator):
    x, y = normal(4, 3, generator=generator), normal(4, 1, generator=generator)
    objective = Elliptic(nn.Linear(3, 1).double(), nn.MSELoss())
    with pytest.raises(ValueError, match="both partners and end"):
        objective(x, y, partners=torch.arange(4), end=(x, y))
    with pytest.raises(ValueError, match=r"end=\(x\[partner\]"):
        objective(x, y, partners=torch.arange(1, 5))
    with pytest.raises(ValueError, match="end must have the same inputs"):
        objective(x, y, end=((x, x), y))


@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_given_paths_are_evaluated_as_they_are(sampling, generator):
    model = nn.Linear(3, 2).double()
    x, y = normal(5, 3, generator=generator), normal(5, 2, generator=generator)
    objective = Elliptic(model, nn.MSELoss(), sampling=sampling, sigma=0.5, n_bridges=2)
    twin = generator.clone_state()
    paths = objective.sample(x, y, generator=generator)
    by_hand = F.mse_loss(model(paths.x), paths.y)
    torch.testing.assert_close(objective(x, y, paths=paths), by_hand)
    assert torch.equal(objective(x, y, paths=paths), objective(x, y, generator=twin))
    assert torch.equal(objective(x, y, paths=paths), objective.loss_on(paths))


def test_paths_with_times_of_their_own(generator):
    """Hand-made paths need not share a time grid: the steps of each row are its own."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x, y = normal(4, 3, generator=generator), normal(4, 1, generator=generator)
    objective = Elliptic(
        model, nn.MSELoss(), sampling="path", n_times=4, n_bridges=2, sigma=0.8, weighting="multiplicative"
    )
    paths = objective.sample(x, y, generator=generator)
    times = torch.rand(4, 2, 4, dtype=torch.float64, generator=generator).sort(2).values
    paths = dataclasses.replace(paths, s=times)
    expected = reference.objective(
        model, reference.squared_error, paths, weighting="multiplicative", variance=0.64
    )
    torch.testing.assert_close(objective(x, y, paths=paths), expected)


@pytest.mark.parametrize("shape", [(3,), (1,), ()])
@pytest.mark.parametrize("weighting", ["girsanov", "multiplicative"])
@pytest.mark.parametrize("chunk_size", [None, 8])
def test_sigma_per_feature_enters_path_weights(shape, weighting, chunk_size, generator):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    sigma = torch.rand(shape, dtype=torch.float64, generator=generator)
    x, y = normal(4, 3, generator=generator), normal(4, 1, generator=generator)
    objective = Elliptic(
        model,
        nn.MSELoss(),
        sampling="path",
        n_times=4,
        n_bridges=2,
        sigma=sigma,
        weighting=weighting,
        chunk_size=chunk_size,
    )
    paths = objective.sample(x, y, generator=generator)
    expected = reference.objective(
        model, reference.squared_error, paths, weighting=weighting, variance=(sigma**2).expand(3)
    )
    torch.testing.assert_close(objective(x, y, paths=paths), expected)


def test_class_weights_are_averaged_with_the_quadrature(generator):
    """``"left"`` drops the far ends, so their classes must not enter the scale of the loss either."""
    weight = torch.tensor([1.0, 50.0], dtype=torch.float64)
    model, loss_fn = nn.Linear(3, 2).double(), nn.CrossEntropyLoss(weight=weight)
    x, y = normal(4, 3, generator=generator), torch.tensor([0, 0, 0, 1])
    everybody_to_the_last = torch.full((4,), 3)
    objective = Elliptic(model, loss_fn, sampling="path", n_times=2, quadrature="left")
    loss = objective(x, y, partners=everybody_to_the_last)
    torch.testing.assert_close(loss, loss_fn(model(x), y))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (nn.Flatten(0), "one row per input row"),
        (nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), "compare every row"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_models_with_wrong_rows_are_refused(broken, message, generator):
    x, y = torch.randn(4, 3, generator=generator), torch.randn(4, 1, generator=generator)
    with pytest.raises(ValueError, match=message):
        Elliptic(broken, nn.MSELoss())(x, y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weighting": "multiplicative"}, 'sampling="marginal" draws single'),
        ({"quadrature": "uniform", "sampling": "path"}, "draws a random time for each point"),
        ({"drift": torch.sub}, "drift= needs a path weighting"),
        ({"chunk_size": 0}, "chunk_size must be at least 1"),
        ({"xi": -1.0}, "xi must be finite and at least 0"),
        ({"antithetic": True}, "n_bridges must be even"),
        ({"at": "0", "chunk_size": 4}, "hidden layer"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Elliptic(nn.Sequential(nn.Linear(3, 1)), nn.MSELoss(), **settings)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_the_function_equals_the_module(weighting, generator):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = normal(5, 3, generator=generator), torch.tensor([0, 1, 1, 0, 1])
    settings = {"num_classes": 2, "sampling": "path", "sigma": 0.3, "weighting": weighting, "n_bridges": 2}
    twin = generator.clone_state()
    loss = elliptic_loss(model, nn.CrossEntropyLoss(), x, y, generator=generator, **settings)
    other = Elliptic(model, nn.CrossEntropyLoss(), **settings)(x, y, generator=twin)
    assert torch.equal(loss, other)
    for a, b in zip(reference.gradients(loss, model), reference.gradients(other, model), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("sampling", ["path", "marginal"])
@pytest.mark.parametrize("loss_fn", [nn.CrossEntropyLoss(), nn.MSELoss(), nn.BCEWithLogitsLoss()])
def test_inputs_are_never_modified(loss_fn, sampling, generator):
    x, y = normal(4, 3, generator=generator), torch.rand(4, 2, dtype=torch.float64, generator=generator)
    y = y / y.sum(1, keepdim=True)
    weight = torch.rand(4, dtype=torch.float64, generator=generator)
    kept = copy.deepcopy((x, y, weight))
    for weighting in ("none", "gradient_norm"):
        objective = Elliptic(
            nn.Linear(3, 2).double(), loss_fn, sampling=sampling, sigma=0.5, weighting=weighting
        )
        objective(x, y, sample_weight=weight, generator=generator).backward()
    assert all(torch.equal(a, b) for a, b in zip(kept, (x, y, weight), strict=True))
    assert not x.requires_grad
    assert x.grad is None


@pytest.mark.parametrize("mode", ["path", "marginal", "eval"])
def test_sample_weights_that_would_broadcast_are_refused(mode, generator):
    """A column of weights would weigh every row with every other; the check holds in eval mode too."""
    x, y = normal(4, 3, generator=generator), normal(4, 1, generator=generator)
    sampling = "path" if mode == "path" else "marginal"
    objective = Elliptic(nn.Linear(3, 1).double(), nn.MSELoss(), sampling=sampling).train(mode != "eval")
    for wrong, message in (
        (torch.ones(4, 1).double(), r"one number per row, shape \(4,\)"),
        (torch.ones(1).double(), "as many rows as x"),
        (-torch.ones(4).double(), "at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            objective(x, y, sample_weight=wrong)
    if mode != "eval":
        with pytest.raises(ValueError, match="the batch has none"):
            objective(x, y, end=(x, y, torch.ones(4).double()))
