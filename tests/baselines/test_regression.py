"""C-Mixup, ADA and FOMA: independent loops, laws of their draws, limits with known answers."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import laws
from baseline_cases import real_problem, regression, replay, same, value_and_gradient
from elliptica.baselines import (
    ADA,
    FOMA,
    CMixup,
    TargetKernel,
    anchor_clusters,
    neighbour_order,
)
from elliptica.baselines.groups import find_groups
from elliptica.baselines.mixup import draw_share
from elliptica.baselines.regression import draw_gamma_value, move_rows, scale_directions

CLUSTER = torch.tensor([0, 2, 2, 0, 5, 5, 5, 2, 0, 0, 7, 2])  # numbers without rows, and a cluster of one


# C-Mixup


@pytest.mark.parametrize("at", [None, "1"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cmixup_equals_a_loop(at, weighted, generator):
    model, x, y = real_problem(generator)
    weight = torch.rand(12, generator=generator, dtype=torch.float64) if weighted else None
    again = replay(generator)
    objective = CMixup(model, nn.MSELoss(), bandwidth=0.6, at=at)
    loss = objective(x, y, sample_weight=weight, generator=generator)
    share = draw_share(2.0, again)
    uniform = torch.rand(12, 1, generator=again)
    below, above = (model[:2], model[2:]) if at else (nn.Identity(), model)
    total = 0.0
    for i in range(12):
        odds = [math.exp(-(float(y[i] - y[j]) ** 2) / (2 * 0.6**2)) for j in range(12)]
        position = float(uniform[i]) * sum(odds)
        j = next(j for j in range(12) if sum(odds[: j + 1]) > position)
        mixed = share * below(x[i][None]) + (1 - share) * below(x[j][None])
        error = above(mixed)[0] - share * y[i] - (1 - share) * y[j]
        w = share * weight[i] + (1 - share) * weight[j] if weighted else 1.0
        total = total + w * error.square().mean() / 12
    same(value_and_gradient(loss, model), value_and_gradient(total, model))


@pytest.mark.parametrize("at", [None, "1"])
def test_given_ends_equal_a_loop(at, generator):
    model, x, y = real_problem(generator)
    far_x, far_y = regression(generator)
    weight, far_weight = torch.rand(2, 12, generator=generator, dtype=torch.float64)
    end = (far_x, far_y, far_weight)
    again = replay(generator)
    objective = CMixup(model, nn.MSELoss(), bandwidth=1.0, at=at)
    loss = objective(x, y, sample_weight=weight, end=end, generator=generator)
    share = draw_share(2.0, again)
    below, above = (model[:2], model[2:]) if at else (nn.Identity(), model)
    mixed = share * below(x) + (1 - share) * below(far_x)
    losses = (above(mixed) - share * y - (1 - share) * far_y).square().flatten()
    expected = ((share * weight + (1 - share) * far_weight) * losses).mean()
    same(value_and_gradient(loss, model), value_and_gradient(expected, model))


Y = torch.tensor([[0.0], [0.5], [0.5], [2.0], [3.5]])


def kernel_law(y, bandwidth, power=2):
    odds = np.exp(-(np.abs(y - y.T) ** power) / (2 * bandwidth**power))
    return odds / odds.sum(1, keepdims=True)


def batch_partners(y, bandwidth, n, generator):
    """Who each row of a batch was mixed with, ``(n, batch)``."""
    objective = CMixup(nn.Linear(1, 1), nn.MSELoss(), bandwidth=bandwidth)
    return torch.stack([objective._partners(y, generator) for _ in range(n)])


def table_partners(y, bandwidth, n, generator):
    """The same from the table over a data set."""
    index = torch.arange(len(y)).repeat(n)
    return TargetKernel(y, bandwidth).sample(index, generator=generator).view(n, len(y))


@pytest.mark.statistical
@pytest.mark.parametrize("draw", [batch_partners, table_partners])
class TestPartnerLaw:
    def test_is_gaussian_in_the_target(self, draw, generator):
        """Self included; an exponential kernel and one without the factor 2 are rejected."""
        drawn = draw(Y, 0.8, 4000, generator)
        y = Y.double().numpy()
        law, exponential, wide = kernel_law(y, 0.8), kernel_law(y, 0.8, power=1), kernel_law(y, 0.8 * 2**0.5)
        for i in range(len(Y)):
            counts = np.bincount(drawn[:, i], minlength=len(Y))
            laws.assert_frequencies(counts, law[i])
            for wrong in (exponential[i], wide[i]):
                with pytest.raises(AssertionError):
                    laws.assert_frequencies(counts, wrong)

    @pytest.mark.parametrize("bandwidth", [1e-3, 1e-300])
    def test_narrow_kernel_keeps_to_equal_targets(self, draw, bandwidth, generator):
        y = Y + 1e4  # where rounding could take equal targets for different ones
        drawn = draw(y, bandwidth, 500, generator)
        for i, only in enumerate(([0], [1, 2], [1, 2], [3], [4])):
            assert set(drawn[:, i].tolist()) == set(only)


def test_table_in_chunks_is_the_table(monkeypatch, generator):
    y = torch.randn(37, 1, generator=generator)
    whole = TargetKernel(y, 0.3)
    monkeypatch.setattr("elliptica.baselines.regression._CHUNK_BYTES", 8 * 37 * 5)
    assert torch.equal(TargetKernel(y, 0.3)._table, whole._table)
    assert len(whole) == 37


# ADA


@pytest.mark.parametrize("gamma", [0.3, 1.0, 4.0])
def test_moved_rows_equal_the_regression_on_anchors(gamma, generator):
    """The general form of anchor regression, with the projection on the columns of the anchors."""
    x, _ = regression(generator)
    anchors = F.one_hot(CLUSTER).double()
    anchors = anchors[:, anchors.sum(0) > 0]
    projection = anchors @ torch.linalg.inv(anchors.T @ anchors) @ anchors.T
    mean, ones = x.mean(0), torch.ones(12, 1).double()
    change = torch.eye(12).double() + (gamma**0.5 - 1) * projection
    expected = change @ (x - mean) / (1 + (gamma**0.5 - 1) * projection @ ones) + mean
    same(move_rows(x, find_groups(CLUSTER, 12), gamma), expected)


@pytest.mark.parametrize("at", [None, "1"])
@pytest.mark.parametrize("weighted", [False, True])
def test_ada_equals_a_loop(at, weighted, generator):
    model, x, y = real_problem(generator)
    weight = torch.rand(12, generator=generator, dtype=torch.float64) if weighted else None
    again = replay(generator)
    loss = ADA(model, nn.MSELoss(), alpha=3.0, at=at)(
        x, y, CLUSTER, sample_weight=weight, generator=generator
    )
    root = draw_gamma_value(3.0, again) ** 0.5
    below, above = (model[:2], model[2:]) if at else (nn.Identity(), model)
    total = 0.0
    for i in range(12):
        own = [j for j in range(12) if CLUSTER[j] == CLUSTER[i]]
        here = sum(below(x[j][None]) for j in own) / len(own)
        level = sum(y[j] for j in own) / len(own)
        error = above(here + (below(x[i][None]) - here) / root)[0] - (level + (y[i] - level) / root)
        total = total + (weight[i] if weighted else 1.0) * error.square().mean() / 12
    same(value_and_gradient(loss, model), value_and_gradient(total, model))


@pytest.mark.statistical
def test_gamma_is_one_of_twenty_values(generator):
    drawn = np.array([draw_gamma_value(3.0, generator) for _ in range(8000)])
    values = [1 + 2 * i / 10 for i in range(1, 11)]
    values += [1 / v for v in values]
    counts = [int(np.isclose(drawn, v).sum()) for v in values]
    laws.assert_frequencies(np.array(counts), np.full(20, 1 / 20))
    assert sum(counts) == 8000
    # a uniform draw from the interval, as is sometimes written, is another law
    wrong = 1 / 3 + (3 - 1 / 3) * torch.rand(8000, generator=generator).numpy()
    with pytest.raises(AssertionError):
        laws.assert_frequencies(np.array([(wrong < 1).sum(), (wrong >= 1).sum()]), np.array([0.5, 0.5]))


def test_clusters_are_no_worse_than_those_of_scikit_learn(generator):
    cluster = pytest.importorskip("sklearn.cluster")
    x, y = regression(generator, n=300)
    points = torch.cat([x, y], 1)
    found = anchor_clusters(x, y, 8, generator=generator)
    means = torch.stack([points[found == k].mean(0) for k in range(8)])
    spread = float((points - means[found]).square().sum())
    theirs = cluster.KMeans(8, n_init=10, random_state=0).fit(points.numpy()).inertia_
    assert spread < 1.03 * theirs


def test_few_and_equal_rows_are_in_the_best_clusters(generator):
    few = torch.tensor([-100.0, -99.0, 40.0, 60.0, 61.0])[:, None]
    found = anchor_clusters(None, few, 3, generator=generator).tolist()
    assert found[0] == found[1] != found[2] != found[3] == found[4]
    equal = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])[:, None]
    found = anchor_clusters(None, equal, 4, generator=generator).tolist()
    assert found[0] == found[2] != found[1] == found[3] == found[4]


# FOMA


def reference(z, share, rho, scaled):
    """One singular value after another."""
    left, values, right = (torch.from_numpy(a) for a in np.linalg.svd(z.numpy(), full_matrices=False))
    out, total = torch.zeros_like(z), 0.0
    for j, value in enumerate(values):
        total += float(value)
        part = total / float(values.sum())
        is_scaled = part > rho if scaled == "small" else part < rho
        out += (share if is_scaled else 1.0) * value * left[:, j, None] @ right[None, j]
    return out


@pytest.mark.parametrize("scaled", ["small", "large"])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, 1.5])
@pytest.mark.parametrize("shape", [(12, 3), (4, 9)])
def test_scaled_directions_equal_a_loop(shape, rho, scaled, generator):
    x, y = regression(generator, n=shape[0], n_in=shape[1], n_out=2)
    found = torch.cat(scale_directions([x, y], 0.3, rho, scaled), 1)
    same(found, reference(torch.cat([x, y], 1), 0.3, rho, scaled))


@pytest.mark.parametrize("layers", [(None,), ("1",), (None, "1")])
@pytest.mark.parametrize("targets", ["scaled", "kept"])
@pytest.mark.parametrize("scaled", ["small", "large"])
def test_foma_equals_a_loop(scaled, targets, layers, generator):
    model, x, y = real_problem(generator)
    again = replay(generator)
    objective = FOMA(model, nn.MSELoss(), rho=0.7, alpha=0.8, scaled=scaled, targets=targets, layers=layers)
    loss = objective(x, y, generator=generator)
    value, target = x, y
    for place in (None, "1"):
        if place is not None:
            value = model[:2](value)
        if place in layers:
            share = draw_share(0.8, again)
            new = reference(torch.cat([value, target], 1).detach(), share, 0.7, scaled)
            value, target = new[:, :-1], (new[:, -1:] if targets == "scaled" else target)
    same(loss, F.mse_loss(model[2](value), target), rtol=1e-8)


def test_foma_takes_directions_for_constants(generator):
    """The gradient is that of a fixed linear map, and finite where singular values coincide."""
    model, x, y = real_problem(generator)
    again = replay(generator)
    loss = FOMA(model, nn.MSELoss(), rho=0.7, layers=("1",))(x, y, generator=generator)
    share = draw_share(1.0, again)
    hidden = model[:2](x)
    z = torch.cat([hidden, y], 1)
    _, values, vectors = torch.linalg.svd(z.detach(), full_matrices=True)
    is_kept = values.cumsum(0) / values.sum() <= 0.7
    kept = vectors[: len(values)][is_kept]
    moved = share * z + (1 - share) * z @ kept.T @ kept
    expected = F.mse_loss(model[2](moved[:, :-1]), moved[:, -1:])
    same(value_and_gradient(loss, model), value_and_gradient(expected, model))
    x = torch.eye(4, dtype=torch.float64)[:, :3].requires_grad_()
    new, _ = scale_directions([x, torch.eye(4, dtype=torch.float64)[:, 3:]], 0.5, 0.6, "small")
    assert torch.autograd.grad(new.sum(), x)[0].isfinite().all()


def test_foma_of_several_inputs_is_that_of_one(generator):
    class Joined(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1).double()

        def forward(self, a, b):
            return self.layer(torch.cat([a, b], 1))

    model = Joined()
    x, y = regression(generator)
    again = replay(generator)
    split = FOMA(model, nn.MSELoss(), rho=0.7)({"a": x[:, :1], "b": x[:, 1:]}, y, generator=again)
    same(split, FOMA(model.layer, nn.MSELoss(), rho=0.7)(x, y, generator=generator))


@pytest.mark.parametrize("sampled", [False, True])
def test_neighbour_order_has_each_row_once(sampled, generator):
    y = torch.randn(53, 1, generator=generator)
    order = neighbour_order(y, 8, sampled=sampled, generator=generator)
    assert order.sort().values.tolist() == list(range(53))
    again = neighbour_order(y, 8, sampled=sampled, generator=generator)
    assert not torch.equal(order, again)


def test_neighbour_order_takes_the_nearest_that_are_left(generator):
    y = torch.randn(53, 1, generator=generator)
    left = set(range(53))
    for rows in neighbour_order(y, 8, generator=generator).split(8):
        anchor, *others = rows.tolist()
        nearest = sorted(left - {anchor}, key=lambda j: abs(float(y[j] - y[anchor])))
        assert others == nearest[: len(others)]
        left -= set(rows.tolist())


@pytest.mark.statistical
def test_sampled_neighbours_are_likely_as_the_inverse_distance(generator):
    """Of two rows the first drawn; the law of the squared distance is rejected."""
    y = torch.tensor([[0.0], [1.0], [3.0]])
    orders = torch.stack([neighbour_order(y, 3, sampled=True, generator=generator) for _ in range(6000)])
    second = orders[orders[:, 0] == 0, 1]
    counts = np.bincount(second, minlength=3)[1:]
    laws.assert_frequencies(counts, np.array([0.75, 0.25]))
    with pytest.raises(AssertionError):
        laws.assert_frequencies(counts, np.array([0.9, 0.1]))
    laws.assert_frequencies(np.bincount(orders[:, 0], minlength=3), np.full(3, 1 / 3))
