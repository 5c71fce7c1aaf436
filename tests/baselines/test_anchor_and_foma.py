"""ADA and FOMA: limits in which they are ordinary training, independent loops, laws of their draws."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import laws
from baseline_cases import network, replay, same, value_and_gradient
from elliptica.baselines import (
    ADA,
    ERM,
    FOMA,
    anchor_clusters,
    anchor_rows,
    foma_batch,
    neighbour_order,
)
from elliptica.baselines.ada import draw_gamma_value
from elliptica.baselines.mixup import draw_share


def regression(generator, n=12, n_in=3, n_out=1):
    return (torch.randn(n, k, generator=generator, dtype=torch.float64) for k in (n_in, n_out))


CLUSTER = torch.tensor([0, 2, 2, 0, 5, 5, 5, 2, 0, 0, 7, 2])  # numbers without rows, and a cluster of one


# ADA: the closed form


@pytest.mark.parametrize("gamma", [0.3, 1.0, 4.0])
def test_anchor_rows_equals_the_regression_on_anchors(gamma, generator):
    """The general form of anchor regression, with the projection on the columns of the anchors."""
    x, _ = regression(generator)
    anchors = F.one_hot(CLUSTER).double()
    anchors = anchors[:, anchors.sum(0) > 0]
    projection = anchors @ torch.linalg.inv(anchors.T @ anchors) @ anchors.T
    mean, ones = x.mean(0), torch.ones(12, 1).double()
    change = torch.eye(12).double() + (gamma**0.5 - 1) * projection
    expected = change @ (x - mean) / (1 + (gamma**0.5 - 1) * projection @ ones) + mean
    same(anchor_rows(x, CLUSTER, gamma), expected)


def test_anchor_rows_in_its_limits(generator):
    x, _ = regression(generator)
    assert torch.equal(anchor_rows(x, CLUSTER, 1.0), x)
    same(anchor_rows(x, torch.arange(12), 7.0), x)  # clusters of one row
    means = torch.stack([x[c == CLUSTER].mean(0) for c in CLUSTER])
    same(anchor_rows(x, CLUSTER, 1e30), means)
    moved = anchor_rows(x, CLUSTER, 3.0)
    same(torch.stack([moved[c == CLUSTER].mean(0) for c in CLUSTER]), means)
    same(anchor_rows(moved, CLUSTER, 1 / 3.0), x)
    order = torch.randperm(12, generator=generator)
    same(anchor_rows(x[order], CLUSTER[order], 3.0), moved[order])


@pytest.mark.parametrize("at", [None, "1"])
@pytest.mark.parametrize("weighted", [False, True])
def test_ada_equals_a_loop(at, weighted, generator):
    model = network(n_out=1)
    x, y = regression(generator)
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


@pytest.mark.parametrize("at", [None, "1"])
@pytest.mark.parametrize("case", ["alpha", "clusters of one", "eval"])
def test_ada_without_anything_to_move_is_erm(case, at, generator):
    model = network(n_out=1)
    x, y = regression(generator)
    objective = ADA(model, nn.MSELoss(), alpha=1.0 if case == "alpha" else 4.0, at=at).train(case != "eval")
    cluster = torch.arange(12) if case == "clusters of one" else CLUSTER
    expected = value_and_gradient(ERM(model, nn.MSELoss())(x, y), model)
    same(value_and_gradient(objective(x, y, cluster, generator=generator), model), expected)


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


# ADA: the clusters


def test_clusters_of_separate_heaps_are_the_heaps(generator):
    heap = torch.arange(60) % 4
    y = 10.0 * heap[:, None] + torch.rand(60, 1, generator=generator)
    x = torch.rand(60, 3, generator=generator)
    for inputs in (x, None):
        found = anchor_clusters(inputs, y, 4, generator=generator)
        assert len(set(zip(heap.tolist(), found.tolist(), strict=True))) == 4


def test_clusters_are_no_worse_than_those_of_scikit_learn(generator):
    cluster = pytest.importorskip("sklearn.cluster")
    x, y = regression(generator, n=300)
    points = torch.cat([x, y], 1)
    found = anchor_clusters(x, y, 8, generator=generator)
    spread = sum(
        float((points[found == k] - points[found == k].mean(0)).square().sum()) for k in found.unique()
    )
    theirs = cluster.KMeans(8, n_init=10, random_state=0).fit(points.numpy()).inertia_
    assert spread < 1.03 * theirs


def test_unscaled_targets_decide_the_clusters(generator):
    x, y = regression(generator, n=200)
    found = anchor_clusters(x, 1000 * y, 5, generator=generator)
    by_target = found[y.flatten().argsort()]
    assert int((by_target[1:] != by_target[:-1]).sum()) == 4  # five stretches of the target


def test_equal_rows_are_in_one_cluster(generator):
    y = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])[:, None]
    found = anchor_clusters(None, y, 4, generator=generator)
    assert found[0] == found[2] != found[1]
    assert found[1] == found[3] == found[4]


# FOMA: the decomposition


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
def test_foma_batch_equals_a_loop(shape, rho, scaled, generator):
    x, y = regression(generator, n=shape[0], n_in=shape[1], n_out=2)
    found = torch.cat(foma_batch(x, y, share=0.3, rho=rho, scaled=scaled), 1)
    same(found, reference(torch.cat([x, y], 1), 0.3, rho, scaled))


def test_foma_batch_in_its_limits(generator):
    x, y = regression(generator)
    z = torch.cat([x, y], 1)

    def batch(rows=z, **settings):
        return torch.cat(foma_batch(rows[:, :3], rows[:, 3:], **settings), 1)

    assert torch.equal(batch(share=1.0, rho=0.5), z)
    same(batch(share=0.2, rho=1.1), z)
    same(batch(share=0.2, rho=0.0, scaled="large"), z)
    same(batch(share=0.2, rho=0.0), 0.2 * z)
    # the only direction of rank one has the whole sum: it is small, whatever rho
    one = z[:, :1] @ z[:1]
    same(batch(one, share=0.2, rho=0.99), 0.2 * one)
    assert torch.linalg.matrix_rank(batch(share=0.0, rho=0.9)) == int(
        (torch.linalg.svdvals(z).cumsum(0) / torch.linalg.svdvals(z).sum() <= 0.9).sum()
    )
    assert not batch(0 * z, share=0.5, rho=0.9).any()


@pytest.mark.parametrize("layers", [(None,), ("1",), (None, "1")])
@pytest.mark.parametrize("targets", ["scaled", "kept"])
@pytest.mark.parametrize("scaled", ["small", "large"])
def test_foma_equals_a_loop(scaled, targets, layers, generator):
    model = network(n_out=1)
    x, y = regression(generator)
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


@pytest.mark.parametrize("layers", [(None,), ("1",)])
@pytest.mark.parametrize(
    "settings", [{"alpha": 0.0, "rho": 0.5}, {"rho": 1.5}, {"rho": 0.0, "scaled": "large"}, "eval"]
)
def test_foma_without_anything_to_scale_is_erm(settings, layers, generator):
    model = network(n_out=1)
    x, y = regression(generator, n=20)  # more rows than columns: no direction is left over
    is_eval = settings == "eval"
    objective = FOMA(model, nn.MSELoss(), layers=layers, **({"rho": 0.5} if is_eval else settings))
    objective.train(not is_eval)
    expected = value_and_gradient(ERM(model, nn.MSELoss())(x, y), model)
    same(value_and_gradient(objective(x, y, generator=generator), model), expected)


def test_foma_takes_directions_for_constants(generator):
    """The gradient is that of a fixed linear map, and finite where singular values coincide."""
    model = network(n_out=1)
    x, y = regression(generator)
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
    new, _ = foma_batch(x, torch.eye(4, dtype=torch.float64)[:, 3:], share=0.5, rho=0.6)
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
    for method, rest in ((FOMA, ()), (ADA, (CLUSTER,))):
        settings = {"rho": 0.7} if method is FOMA else {"alpha": 4.0}
        split = method(model, nn.MSELoss(), **settings)(
            {"a": x[:, :1], "b": x[:, 1:]}, y, *rest, generator=again
        )
        whole = method(model.layer, nn.MSELoss(), **settings)(x, y, *rest, generator=generator)
        same(split, whole)


# FOMA: the batches


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


# draws, precisions


def test_generator_repeats_and_nothing_else_is_touched(generator):
    model = network(n_out=1)
    x, y = regression(generator)
    kept = x.clone(), y.clone()
    state = torch.get_rng_state()
    for objective, rest in ((ADA(model, nn.MSELoss()), (CLUSTER,)), (FOMA(model, nn.MSELoss(), rho=0.5), ())):
        again = replay(generator)
        first, second = (objective(x, y, *rest, generator=g) for g in (generator, again))
        assert torch.equal(first, second)
        others = [objective(x, y, *rest, generator=generator) for _ in range(12)]  # ADA has 20 strengths
        assert any(not torch.equal(first, other) for other in others)
    anchor_clusters(x, y, 3, generator=generator)
    neighbour_order(y, 3, sampled=True, generator=generator)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, kept[0])
    assert torch.equal(y, kept[1])


def test_half_precision_is_computed_in_float32(generator):
    x, y = (v.bfloat16() for v in regression(generator))
    for found, exact in zip(
        (*foma_batch(x, y, share=0.3, rho=0.7), anchor_rows(x, CLUSTER, 3.0)),
        (*foma_batch(x.float(), y.float(), share=0.3, rho=0.7), anchor_rows(x.float(), CLUSTER, 3.0)),
        strict=True,
    ):
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, exact.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        new_x, _ = foma_batch(x.float(), y.float(), share=0.3, rho=0.7)
    same(new_x, foma_batch(x.float(), y.float(), share=0.3, rho=0.7)[0], rtol=1e-6)


# bad input


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
class TestBadInput:
    @pytest.mark.parametrize(
        ("make", "error", "message"),
        [
            (lambda m, f: ADA(m, f, alpha=0.5), ValueError, "alpha must be at least 1, but got 0.5"),
            (lambda m, f: ADA(m, f, alpha=float("nan")), ValueError, "alpha must be finite"),
            (lambda m, f: ADA(m, f, at="9"), ValueError, "at='9' is not a layer"),
            (lambda m, f: FOMA(m, f, rho=-1.0), ValueError, "rho must be finite and at least 0"),
            (lambda m, f: FOMA(m, f, rho=0.9, alpha=-1.0), ValueError, "alpha must be finite"),
            (lambda m, f: FOMA(m, f, rho=0.9, scaled="big"), ValueError, "scaled must be one of"),
            (lambda m, f: FOMA(m, f, rho=0.9, targets="keep"), ValueError, "Did you mean 'kept'"),
            (lambda m, f: FOMA(m, f, rho=0.9, layers="1"), ValueError, "layers must name at least one"),
            (lambda m, f: FOMA(m, f, rho=0.9, layers=("1", "1")), ValueError, "each only once"),
            (lambda m, f: FOMA(m, f, rho=0.9, layers=("7",)), ValueError, "at='7' is not a layer"),
        ],
    )
    def test_settings(self, make, error, message):
        with pytest.raises(error, match=message):
            make(network(n_out=1), nn.MSELoss())

    def test_class_labels(self):
        model, x, y = network(), torch.zeros(4, 3).double(), torch.arange(4)
        for objective in (ADA(model, nn.MSELoss()), FOMA(model, nn.MSELoss(), rho=0.9)):
            for mode in (True, False):
                with pytest.raises(TypeError, match=r"real targets, but got dtype torch\.int64"):
                    objective.train(mode)(x, y)
        with pytest.raises(TypeError, match="real targets"):
            neighbour_order(y, 2)
        with pytest.raises(TypeError, match="real targets"):
            anchor_clusters(None, y, 2)

    def test_clusters(self, generator):
        x, y = regression(generator)
        with pytest.raises(TypeError, match="group is missing"):
            ADA(network(n_out=1), nn.MSELoss())(x, y)
        with pytest.raises(ValueError, match="n_clusters must be at most the number of rows"):
            anchor_clusters(x, y, 13)
        with pytest.raises(ValueError, match="as many rows as y"):
            anchor_clusters(x[:5], y, 2)


@pytest.mark.parametrize("name", ["x", "y"])
def test_foma_refuses_nan(name):
    rows = {"x": torch.ones(4, 2), "y": torch.ones(4, 1)}
    rows[name] = rows[name] * torch.nan
    with pytest.raises(ValueError, match=f"{name} must be finite"):
        foma_batch(**rows, share=0.5, rho=0.9)
