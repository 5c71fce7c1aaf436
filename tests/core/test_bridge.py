"""Bridges have their exact law, and each statistical test rejects the samplers it is meant to reject."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from elliptica import Covariance, Green, InverseDistance, sample_bridge, sample_paths
from elliptica.core import bridge
from elliptica.core.bridge import Times, bridge_points, time_weights, unit_spread
from laws import (
    assert_covariance,
    assert_distribution,
    assert_mean,
    assert_variance,
)

N_TIMES = 5
SIGMA = 0.3
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
CPU = torch.device("cpu")


def time_grid(n_times):
    return np.arange(n_times) / (n_times - 1)


def ends(generator, shape=(4, 3), dtype=torch.float64):
    return tuple(torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for _ in "ab")


def marginal(start, end, s, std, generator):
    """Single points at the given times."""
    return bridge_points(start, end, std, Times(s[:, None], unit_spread(s[:, None])), generator)


def right(n, generator, n_times=N_TIMES):
    """Deviations from the chord in units of sigma, ``(n, n_times)``, of the library's sampler."""
    start = torch.full((n,), -1.0, dtype=torch.float64)
    end = torch.full((n,), 2.0, dtype=torch.float64)
    paths = sample_bridge(start, end, n_times=n_times, sigma=SIGMA, generator=generator)[:, 0]
    chord = -1.0 + 3.0 * torch.linspace(0, 1, n_times, dtype=torch.float64)
    return ((paths - chord) / SIGMA).numpy()


def increments(n, count, generator):
    return torch.randn(n, count, generator=generator, dtype=torch.float64).numpy()


def literal_algorithm_2(n, generator, n_times=N_TIMES):
    """Algorithm 2 as printed: the sum starts at index 0, and W_0 is set to zero afterwards."""
    s = time_grid(n_times)
    w = (increments(n, n_times, generator) / math.sqrt(n_times - 1)).cumsum(1)
    w[:, 0] = 0.0
    return w - s * w[:, -1:]


def free_motion(n, generator, n_times=N_TIMES):
    """Brownian motion around the chord, not pinned at the end."""
    w = (increments(n, n_times - 1, generator) / math.sqrt(n_times - 1)).cumsum(1)
    return np.concatenate([np.zeros((n, 1)), w], 1)


def independent_times(n, generator, n_times=N_TIMES):
    """Right law at each time, but no path: the noise of different times is independent."""
    s = time_grid(n_times)
    return increments(n, n_times, generator) * np.sqrt(s * (1 - s))


def one_percent_too_wide(n, generator, n_times=N_TIMES):
    return right(n, generator, n_times) * math.sqrt(1.01)


def exponential_factor(n, generator, n_times=N_TIMES):
    """The released code's factor Exp(1) on the increments, at the right variance."""
    z = increments(n, n_times - 1, generator)
    factor = -np.log(torch.rand(*z.shape, generator=generator, dtype=torch.float64).numpy() + 1e-12)
    w = (z * factor / math.sqrt(2) / math.sqrt(n_times - 1)).cumsum(1)
    w = np.concatenate([np.zeros((n, 1)), w], 1)
    return w - time_grid(n_times) * w[:, -1:]


def check_variances(deviations):
    """Law: s (1 - s) at each inner time."""
    for i, s in enumerate(time_grid(deviations.shape[1])[1:-1], start=1):
        assert_variance(deviations[:, i], s * (1 - s))


def check_covariances(deviations):
    """Law: s (1 - t) for s < t, at every pair of inner times."""
    s = time_grid(deviations.shape[1])
    for i in range(1, len(s) - 1):
        for j in range(i + 1, len(s) - 1):
            law = s[i] * (1 - s[j])
            assert_covariance(deviations[:, i], deviations[:, j], s[i] * (1 - s[i]), s[j] * (1 - s[j]), law)


def check_whitened_variance(deviations):
    """All inner points of a path become independent standard normals: the sharpest variance test."""
    s = time_grid(deviations.shape[1])[1:-1]
    factor = np.linalg.cholesky(np.minimum.outer(s, s) - np.outer(s, s))
    assert_variance(np.linalg.solve(factor, deviations[:, 1:-1].T), 1.0)


def check_normality(deviations):
    for i, s in enumerate(time_grid(deviations.shape[1])[1:-1], start=1):
        assert_distribution(deviations[:, i] / math.sqrt(s * (1 - s)), "norm")


CHECKS = {
    "variance": (check_variances, 20_000, (literal_algorithm_2, free_motion)),
    "covariance": (check_covariances, 20_000, (independent_times, literal_algorithm_2, free_motion)),
    "whitened": (
        check_whitened_variance,
        700_000,
        (one_percent_too_wide, literal_algorithm_2, free_motion, independent_times),
    ),
    "normality": (check_normality, 20_000, (exponential_factor, literal_algorithm_2)),
}


@pytest.mark.statistical
@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("n_times", [3, 5, 8])
def test_law(name, n_times, generator):
    """Law of the deviation from the chord.

    Defects seen: variance, 8 % at one time (n = 20 000: 8 standard errors) and 1 % over the whole path
    (2.1 million normals: 10); covariance, 10 % of it; a factor Exp(1).
    """
    check, n, _ = CHECKS[name]
    check(right(n, generator, n_times))


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "wrong"), [(name, bad) for name in CHECKS for bad in CHECKS[name][2]])
def test_law_rejects(name, wrong, generator):
    check, n, _ = CHECKS[name]
    with pytest.raises(AssertionError, match="p="):
        check(wrong(n, generator))


def check_independence(z):
    """``z`` is ``(batch, bridge, feature)`` of standard normals; every pair of axes."""
    n = z.shape[0] // 2
    assert_covariance(z[:n], z[n:], 1, 1, 0)
    assert_covariance(z[:, 0], z[:, 1], 1, 1, 0)
    assert_covariance(z[:, :, 0], z[:, :, 1], 1, 1, 0)


def midpoints(generator):
    n = 20_000
    zeros = torch.zeros(n, 2, dtype=torch.float64)
    paths = sample_bridge(zeros, zeros, n_times=3, n_bridges=2, sigma=2.0, generator=generator)
    return paths[:, :, 1].numpy()


@pytest.mark.statistical
def test_independence(generator):
    """Of features, rows and bridges. A correlation of 5 % is 10 standard errors."""
    check_independence(midpoints(generator))


@pytest.mark.statistical
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_independence_rejects_shared_noise(axis, generator):
    """A tenth of the variance shared along one axis."""
    z = midpoints(generator)
    common = np.concatenate([z[: len(z) // 2]] * 2) if axis == 0 else z.take([0], axis)
    with pytest.raises(AssertionError, match="covariance"):
        check_independence(math.sqrt(0.9) * z[::-1] + math.sqrt(0.1) * common)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_ends_are_bit_exact_and_shapes_right(dtype, shape, generator):
    start, end = ends(generator, (5, *shape), dtype)
    paths = sample_bridge(start, end, n_times=7, n_bridges=4, sigma=1.0, generator=generator)
    assert paths.shape == (5, 4, 7, *shape)
    assert paths.dtype == dtype
    for one in range(4):
        assert torch.equal(paths[:, one, 0], start)
        assert torch.equal(paths[:, one, -1], end)
    assert torch.isfinite(paths).all()
    s = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])
    points = marginal(start, end, s, 5.0, generator)
    assert torch.equal(points, torch.where(s.view(-1, *[1] * len(shape)) == 0, start, end))


def test_degenerate_bridges_are_chords_and_draw_nothing(generator):
    """No noise, or two times; each bridge joins its own pair."""
    start, end = ends(generator, (6, 2))
    before = generator.get_state()
    paths = sample_bridge(start, end, n_bridges=2, sigma=0.0, generator=generator)
    s = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    chord = (1 - s) * start[:, None, None] + s * end[:, None, None]
    torch.testing.assert_close(paths, chord.expand_as(paths), rtol=1e-14, atol=1e-15)
    two = sample_bridge(start, end, n_times=2, sigma=3.0, generator=generator)
    assert torch.equal(two[:, 0], torch.stack([start, end], 1))
    assert torch.equal(generator.get_state(), before)


def test_same_generator_same_result_and_inputs_unchanged(generator):
    start, end = ends(generator, (6, 2, 3))
    sigma = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    copies = [v.clone() for v in (start, end, sigma)]
    seed = generator.clone_state
    one = sample_bridge(start, end, n_bridges=3, sigma=sigma, generator=seed())
    assert torch.equal(sample_bridge(start, end, n_bridges=3, sigma=sigma, generator=seed()), one)
    strided = (v.permute(2, 1, 0).contiguous().permute(2, 1, 0) for v in (start, end))
    assert torch.equal(sample_bridge(*strided, n_bridges=3, sigma=sigma, generator=seed()), one)
    one.fill_(7.0)  # the result shares no memory with what came in
    assert all(torch.equal(v, c) for v, c in zip((start, end, sigma), copies, strict=True))
    torch.manual_seed(5)
    one = sample_bridge(start, end, sigma=1.0)
    torch.manual_seed(5)
    assert torch.equal(sample_bridge(start, end, sigma=1.0), one)


@pytest.mark.parametrize("sigma", [0.0, 0.3, torch.tensor([0.1, 0.2, 0.3]), Covariance(torch.eye(3))])
def test_gradients_pass_through_the_chord(sigma, generator):
    """At time s the gradient is 1 - s of the start and s of the end; values are those without gradients."""
    start, end = ends(generator, dtype=torch.float32)
    how = {"sigma": sigma, "n_times": 5, "n_bridges": 2}
    plain = sample_bridge(start, end, **how, generator=generator.clone_state())
    both = start.clone().requires_grad_(), end.clone().requires_grad_()
    paths = sample_bridge(*both, **how, generator=generator)
    assert not plain.requires_grad
    assert torch.equal(paths.detach(), plain)
    weights = torch.randn(paths.shape, generator=generator)
    slopes = torch.autograd.grad((paths * weights).sum(), both)
    s = torch.linspace(0, 1, 5)[:, None]
    torch.testing.assert_close(slopes[0], ((1 - s) * weights).sum((1, 2)))
    torch.testing.assert_close(slopes[1], (s * weights).sum((1, 2)))


def test_random_variances_carry_gradients_of_the_distance(generator):
    """Central differences with the same draws; distances are in float32, hence the tolerance."""
    start, end = ends(generator)

    def value(start):
        paths = sample_bridge(start, end, sigma=Green(0.5), n_bridges=2, generator=generator.clone_state())
        return paths.square().sin().sum()

    (slope,) = torch.autograd.grad(value(start.requires_grad_()), start)
    with torch.no_grad():
        for place in ((0, 0), (3, 2)):
            step = torch.zeros_like(start)
            step[place] = 1e-3
            numeric = float(value(start + step) - value(start - step)) / 2e-3
            assert float(slope[place]) == pytest.approx(numeric, rel=2e-2, abs=2e-2)
    loop = end.clone().requires_grad_()  # ends that coincide have a finite gradient
    (slope,) = torch.autograd.grad(sample_bridge(loop, end, sigma="green").sum(), loop)
    assert torch.isfinite(slope).all()


def check_marginal(points, s):
    """``points`` of bridges between -1 and 2 with deviation SIGMA at the times ``s``."""
    z = (points - (-1 + 3 * s)) / (SIGMA * np.sqrt(s * (1 - s)))
    assert_mean(z, 0.0, 1.0)
    assert_variance(z, 1.0)
    assert_distribution(z, "norm")
    late = s > 0.5  # the law holds at early and late times alike
    assert_variance(z[late], 1.0)
    assert_variance(z[~late], 1.0)


def marginal_case(generator, n=100_000):
    start = torch.full((n,), -1.0, dtype=torch.float64)
    s = torch.rand(n, generator=generator, dtype=torch.float64) * 0.98 + 0.01
    return start, start + 3.0, s


@pytest.mark.statistical
@pytest.mark.parametrize("std", ["number", "tensor", "rows"])
def test_marginal_law_at_random_times(std, generator):
    """N((1-s) a + s b, sigma^2 s (1-s)). At n = 100 000 an excess variance of 5 % is 11 standard errors."""
    start, end, s = marginal_case(generator)
    full = torch.full((len(s),), SIGMA, dtype=torch.float64)
    std = {"number": SIGMA, "tensor": full[0], "rows": full}[std]
    check_marginal(marginal(start, end, s, std, generator).numpy(), s.numpy())


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", ["unrooted", "constant", "free", "swapped ends", "five percent"])
def test_marginal_law_rejects(wrong, generator):
    start, end, s = marginal_case(generator)
    z = torch.randn(len(s), generator=generator, dtype=torch.float64)
    spreads = {"unrooted": s * (1 - s), "constant": torch.full_like(s, math.sqrt(1 / 6)), "free": s.sqrt()}
    spread = spreads.get(wrong, (s * (1 - s)).sqrt()) * (math.sqrt(1.05) if wrong == "five percent" else 1)
    chord = end + s * (start - end) if wrong == "swapped ends" else start + s * (end - start)
    with pytest.raises(AssertionError, match="p="):
        check_marginal((chord + SIGMA * spread * z).numpy(), s.numpy())


def cycle_of(paths, n):
    """Partner and time of each row, read off straight lines between unit vectors."""
    x = paths.x[:, 0, 0].clone()
    s = paths.s[:, 0, 0]
    x[range(n), range(n)] -= 1 - s
    return x.argmax(1), s


def joint_law(n, monkeypatch, change=lambda partner, s: s):
    """Count (partner, time) of the first row over every order of ``n`` rows, as the library draws them."""
    orders = iter(itertools.permutations(range(n)))
    monkeypatch.setattr(bridge, "draw_permutation", lambda *_, **__: torch.tensor(next(orders)))
    monkeypatch.setattr(bridge, "draw_uniform", lambda shape, **_: torch.full(shape, 0.3))
    count, eye = Counter(), torch.eye(n)
    for _ in range(math.factorial(n)):
        paths = sample_paths(eye, eye, target_space="real", sigma=0.0, quadrature="uniform")
        partner, s = cycle_of(paths, n)
        count[int(partner[0]), round(float(change(partner, s)[0]), 4)] += 1
    return count


@pytest.mark.parametrize("n", [2, 3, 5])
def test_partner_and_time_of_a_row_are_independent_and_uniform(n, monkeypatch):
    """By enumeration of all orders: exact, not statistical. Times are those of the tent, each as often."""
    count = joint_law(n, monkeypatch)
    times = (((torch.arange(n) + 0.3) * 2 / n) - 1).abs()
    assert {time for _, time in count} == {round(float(t), 4) for t in times}
    assert len(count) == (n - 1) * n
    assert len(set(count.values())) == 1


def test_the_enumeration_rejects_times_that_follow_the_partner(monkeypatch):
    assert (
        len(joint_law(4, monkeypatch, lambda partner, s: s[partner.argsort()].sort().values[partner])) != 12
    )


def totals(partner, s):
    """Weight of each row: 1 - s as a start, and s of the bridge that ends there."""
    return (1 - s).scatter_add(0, partner, s)


@pytest.mark.parametrize("n", [2, 3, 7, 64])
def test_neighbours_in_the_cycle_have_similar_times(n, generator):
    """Every row has a total weight within 2 / n of one; independent times leave rows almost out."""
    eye = torch.eye(n)
    for _ in range(20):
        paths = sample_paths(
            eye, eye, target_space="real", sigma=0.0, quadrature="uniform", generator=generator
        )
        partner, s = cycle_of(paths, n)
        assert (totals(partner, s) - 1).abs().max() <= 2 / n + 1e-5
        assert float(s.mean()) == pytest.approx(0.5, abs=1.01 / n)
    if n == 64:
        free = totals(partner, torch.rand(n, generator=generator))
        assert (free - 1).abs().max() > 10 / n


def tent(n, generator):
    return bridge.tent(torch.randperm(n, generator=generator), generator)


def strata(n, generator):
    return bridge.stratified(n, CPU, generator)


def rows_in_order(n, generator):
    """Wrong: in the order of the rows."""
    return strata(n, generator).sort().values


@pytest.mark.statistical
@pytest.mark.parametrize(("draw", "right"), [(tent, True), (strata, True), (rows_in_order, False)])
@pytest.mark.parametrize("n", [1, 4])
def test_each_time_is_uniform(n, draw, right, generator):
    if n == 1 and draw is rows_in_order:
        return
    s = torch.stack([draw(n, generator) for _ in range(5_000)])
    assert s.min() >= 0
    assert s.max() <= 1
    for row in range(n):
        if right:
            assert_distribution(s[:, row], "uniform")
    if not right:
        with pytest.raises(AssertionError, match="Kolmogorov"):
            assert_distribution(s[:, 0], "uniform")


@pytest.mark.parametrize("n", [1, 7, 64])
def test_other_pairings_have_one_time_in_each_stratum(n, generator):
    x = torch.randn(n, 2, generator=generator)
    how = {"target_space": "real", "quadrature": "uniform", "n_bridges": 3, "generator": generator}
    for pairing in (InverseDistance(), "nearest"):
        s = sample_paths(x, x, pairing=pairing, **how).s[..., 0].sort(0).values * n
        inside = s - torch.arange(n)[:, None]
        assert inside.min() > -1e-4
        assert inside.max() < 1 + 1e-4


@pytest.mark.parametrize("n_bridges", [2, 3])
def test_bridges_of_a_point_have_cycles_and_times_of_their_own(n_bridges, generator):
    eye = torch.eye(8)
    how = {"target_space": "real", "sigma": 0.0, "quadrature": "uniform", "n_bridges": n_bridges}
    paths = sample_paths(eye, eye, **how, generator=generator)
    assert len({tuple(s.tolist()) for s in paths.s[:, :, 0].t()}) == n_bridges
    same = sample_paths(eye, eye, **how, same_partner=True, generator=generator)
    far = [(same.x[:, j, 0] - (1 - same.s[:, j]) * eye).argmax(1).tolist() for j in range(n_bridges)]
    assert all(one == far[0] for one in far)
    assert len({tuple(s.tolist()) for s in same.s[:, :, 0].t()}) == n_bridges


@pytest.mark.parametrize("n_times", [2, 5, 8])
@pytest.mark.parametrize("quadrature", ["mean", "left"])
def test_times_have_the_weights_of_the_grid(quadrature, n_times, monkeypatch):
    """Uniforms on a fine grid hit each time in exactly the share that the quadrature gives it."""

    def times(u, quadrature):
        monkeypatch.setattr(bridge, "stratified", lambda n, device, generator, scale: u * scale)
        x, rows = u[:, None], torch.arange(len(u))
        how = {"target_space": "real", "n_times": n_times, "quadrature": quadrature, "sigma": 0.0}
        return sample_paths(x, x, partners=rows, **how).s[:, 0, 0]

    u = (torch.arange(5600, dtype=torch.float64) + 0.5) / 5600
    s = times(u, quadrature)
    shares = torch.stack([torch.isclose(s, torch.tensor(t)).double().mean() for t in time_grid(n_times)])
    weights = {q: time_weights(n_times, q, u) for q in ("mean", "left")}
    weights = {q: torch.ones(n_times, 1) if w is None else w for q, w in weights.items()}
    assert torch.allclose(shares, weights[quadrature][:, 0].double() / n_times, atol=1e-12)
    other = "left" if quadrature == "mean" else "mean"
    assert not torch.allclose(shares, weights[other][:, 0].double() / n_times, atol=1e-2)
    edges = torch.tensor([0.0, 1.0 - 2**-24, 1.0])
    for s in (times(edges, q) for q in ("mean", "left", "uniform")):
        assert ((s >= 0) & (s <= 1)).all()
