"""Bridges have their exact law, and each statistical test rejects the samplers it is meant to reject."""

import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from elliptica import sample_bridge, sample_paths
from elliptica.core.bridge import (
    QUADRATURES,
    bridge_rows,
    marginal_rows,
    quantile_times,
    stratified_times,
    time_grid,
    time_weights,
)
from laws import (
    assert_covariance,
    assert_distribution,
    assert_equal_variances,
    assert_frequencies,
    assert_mean,
    assert_same_distribution,
    assert_variance,
)

N_TIMES = 5
SIGMA = 0.3
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = ((), (3,), (2, 3, 4))


def twin(generator):
    """A second stream with the numbers of the first."""
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return copy


def ends(generator, shape=(4, 3), dtype=torch.float64):
    return tuple(torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for _ in "ab")


# ---------------------------------------------------------------- samplers, one right and many wrong


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
    s = np.array(time_grid(n_times))
    w = (increments(n, n_times, generator) / math.sqrt(n_times - 1)).cumsum(1)
    w[:, 0] = 0.0
    return w - s * w[:, -1:]


def one_increment_too_many(n, generator, n_times=N_TIMES):
    """A bridge over n_times instead of n_times - 1 steps, rescaled to [0, 1]."""
    exact = right(n, generator, n_times)
    return exact * math.sqrt(n_times / (n_times - 1))


def free_motion(n, generator, n_times=N_TIMES):
    """Brownian motion around the chord, not pinned at the end."""
    w = (increments(n, n_times - 1, generator) / math.sqrt(n_times - 1)).cumsum(1)
    return np.concatenate([np.zeros((n, 1)), w], 1)


def independent_times(n, generator, n_times=N_TIMES):
    """Right law at each time, but no path: the noise of different times is independent."""
    s = np.array(time_grid(n_times))
    return increments(n, n_times, generator) * np.sqrt(s * (1 - s))


def variance_as_deviation(n, generator, n_times=N_TIMES):
    """Sigma taken for a variance: deviations are sqrt(sigma)."""
    return right(n, generator, n_times) * math.sqrt(SIGMA) / SIGMA


def one_percent_too_wide(n, generator, n_times=N_TIMES):
    return right(n, generator, n_times) * math.sqrt(1.01)


def exponential_factor(n, generator, n_times=N_TIMES):
    """The released code's factor Exp(1) on the increments, at the right variance."""
    z = increments(n, n_times - 1, generator)
    factor = -np.log(torch.rand(*z.shape, generator=generator, dtype=torch.float64).numpy() + 1e-12)
    w = (z * factor / math.sqrt(2) / math.sqrt(n_times - 1)).cumsum(1)
    w = np.concatenate([np.zeros((n, 1)), w], 1)
    return w - np.array(time_grid(n_times)) * w[:, -1:]


# --------------------------------------------------------------------------------------- the law


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
    s = np.array(time_grid(deviations.shape[1])[1:-1])
    factor = np.linalg.cholesky(np.minimum.outer(s, s) - np.outer(s, s))
    assert_variance(np.linalg.solve(factor, deviations[:, 1:-1].T), 1.0)


def check_reversal(deviations):
    """A bridge run backwards is a bridge: variances and steps mirror (halves are independent)."""
    forward, backward = np.array_split(deviations, 2)
    backward = backward[:, ::-1]
    for i in range(1, deviations.shape[1] - 1):
        assert_equal_variances(forward[:, i], backward[:, i])
        assert_equal_variances(np.diff(forward)[:, i], np.diff(backward)[:, i])


def check_normality(deviations):
    for i, s in enumerate(time_grid(deviations.shape[1])[1:-1], start=1):
        assert_distribution(deviations[:, i] / math.sqrt(s * (1 - s)), "norm")


def check_mean(deviations):
    for i, s in enumerate(time_grid(deviations.shape[1])[1:-1], start=1):
        assert_mean(deviations[:, i], 0.0, math.sqrt(s * (1 - s)))


def late_by_one(n, generator, n_times=N_TIMES):
    """Times i / n_times instead of i / (n_times - 1), at one percent of the chord."""
    s = np.array(time_grid(n_times))
    chord_error = 0.01 * 3.0 / SIGMA * (np.arange(n_times) / n_times - s)
    return right(n, generator, n_times) + chord_error


CHECKS = {
    "mean": (check_mean, 200_000, (late_by_one,)),
    "variance": (
        check_variances,
        20_000,
        (literal_algorithm_2, free_motion, variance_as_deviation, one_increment_too_many),
    ),
    "covariance": (
        check_covariances,
        20_000,
        (independent_times, literal_algorithm_2, free_motion, variance_as_deviation),
    ),
    "whitened": (
        check_whitened_variance,
        700_000,
        (one_percent_too_wide, literal_algorithm_2, free_motion, independent_times),
    ),
    "reversal": (check_reversal, 20_000, (literal_algorithm_2, free_motion)),
    "normality": (check_normality, 20_000, (exponential_factor, literal_algorithm_2)),
}


@pytest.mark.statistical
@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("n_times", [3, 5, 8])
def test_law(name, n_times, generator):
    """Law of the deviation from the chord.

    Defects seen: variance, 8 % at one time (n = 20 000: 8 standard errors) and 1 % over the whole path
    (2.1 million normals: 10); covariance, 10 % of it; mean, 0.2 % of the chord; a factor Exp(1).
    """
    check, n, _ = CHECKS[name]
    check(right(n, generator, n_times))


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "wrong"), [(name, bad) for name in CHECKS for bad in CHECKS[name][2]])
def test_law_rejects(name, wrong, generator):
    check, n, _ = CHECKS[name]
    with pytest.raises(AssertionError, match="p="):
        check(wrong(n, generator))


@pytest.mark.statistical
def test_right_marginals_alone_do_not_pass_for_a_path(generator):
    """Independent noise per time passes the variance test: only covariances tell it from a path."""
    check_variances(independent_times(20_000, generator))


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


@pytest.mark.statistical
def test_sigma_per_feature(generator):
    """Each feature has its own variance; one of them is zero and stays on the chord."""
    sigma = torch.tensor([[0.0, 0.5], [1.0, 2.0]], dtype=torch.float64)
    start, end = torch.zeros(20_000, 2, 2, dtype=torch.float64), torch.ones(20_000, 2, 2, dtype=torch.float64)
    middle = sample_bridge(start, end, n_times=3, sigma=sigma, generator=generator)[:, 0, 1].numpy() - 0.5
    assert (middle[:, 0, 0] == 0).all()
    for i, j in ((0, 1), (1, 0), (1, 1)):
        assert_variance(middle[:, i, j], float(sigma[i, j]) ** 2 / 4)
    with pytest.raises(AssertionError, match="variance ratio"):
        assert_variance(middle[:, 0, 1], float(sigma[1, 0]) ** 2 / 4)  # features swapped


@pytest.mark.statistical
@pytest.mark.parametrize("dtype", FLOATS)
def test_law_in_every_precision(dtype, generator):
    """Half precisions are rounded once at the end, so the variance is right to 3 %."""
    zeros = torch.zeros(20_000, dtype=dtype)
    paths = sample_bridge(zeros, zeros, sigma=SIGMA, generator=generator)[:, 0].double().numpy() / SIGMA
    check_variances(paths)
    check_covariances(paths)


# ------------------------------------------------------------------------------------ exact facts


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("antithetic", [False, True])
def test_ends_are_bit_exact_and_shapes_right(dtype, shape, antithetic, generator):
    start, end = ends(generator, (5, *shape), dtype)
    paths = sample_bridge(
        start, end, n_times=7, n_bridges=4, sigma=1.0, antithetic=antithetic, generator=generator
    )
    assert paths.shape == (5, 4, 7, *shape)
    assert paths.dtype == dtype
    for bridge in range(4):
        assert torch.equal(paths[:, bridge, 0], start)
        assert torch.equal(paths[:, bridge, -1], end)
    assert torch.isfinite(paths).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_ends_are_bit_exact_at_any_magnitude(dtype, generator):
    """From the smallest number to the largest, mixed: a computed end would lose the small one."""
    info = torch.finfo(dtype)
    values = torch.tensor(
        [0.0, info.tiny, -info.eps, 1.0, -1e3, info.max / 4, -info.max / 4, info.max / 2], dtype=dtype
    )
    start, end = (v.flatten() for v in torch.meshgrid(values, values, indexing="ij"))
    for n_times in (2, 3, 4, 7, 10):
        paths = sample_bridge(start, end, n_times=n_times, sigma=0.1, generator=generator)[:, 0]
        assert torch.equal(paths[:, 0], start)
        assert torch.equal(paths[:, -1], end)
        assert torch.isfinite(paths).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_float32_rounded_once(dtype, generator):
    start, end = ends(generator, (6, 4), dtype)
    half = sample_bridge(start, end, sigma=0.2, generator=twin(generator))
    full = sample_bridge(start.float(), end.float(), sigma=0.2, generator=generator)
    assert torch.equal(half, full.to(dtype))


def test_float64_draws_float64(generator):
    zeros = torch.zeros(50, 4, dtype=torch.float64)
    for points in (
        sample_bridge(zeros, zeros, sigma=1.0, generator=generator)[:, 0, 1:-1],
        marginal_rows(zeros, zeros, torch.full((50,), 0.5), std=1.0, generator=generator),
    ):
        assert (points != points.float().double()).double().mean() > 0.99


def test_chord_is_between_the_right_ends(generator):
    """Each bridge joins its own pair, also when bridges are many: no axis is swapped."""
    start, end = ends(generator, (6, 2))
    paths = sample_bridge(start, end, n_times=4, n_bridges=3, sigma=1e-9, generator=generator)
    s = torch.linspace(0, 1, 4, dtype=torch.float64)[:, None]
    chord = (1 - s) * start[:, None, None] + s * end[:, None, None]
    assert torch.allclose(paths, chord.expand_as(paths), atol=1e-8)


def test_sigma_zero_is_the_chord_and_draws_nothing(generator):
    start, end = ends(generator, (6, 2))
    before = generator.get_state()
    paths = sample_bridge(start, end, n_times=5, n_bridges=2, sigma=0.0, generator=generator)
    s = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    assert torch.allclose(paths, ((1 - s) * start[:, None, None] + s * end[:, None, None]), rtol=1e-15)
    assert torch.equal(generator.get_state(), before)


def test_two_times_are_the_ends(generator):
    start, end = ends(generator)
    before = generator.get_state()
    paths = sample_bridge(start, end, n_times=2, sigma=3.0, generator=generator)
    assert torch.equal(paths[:, 0], torch.stack([start, end], 1))
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize(("sigma", "horizon"), [(0.5, 4.0), (10.0, 0.01), (2.0, 0.25)])
def test_horizon_enters_through_sigma_only(sigma, horizon, generator):
    start, end = ends(generator)
    one = sample_bridge(start, end, sigma=sigma, horizon=horizon, generator=twin(generator))
    two = sample_bridge(start, end, sigma=1.0, generator=generator)
    assert torch.equal(one, two)


def test_deviation_is_linear_in_sigma_and_ends_shift_the_path(generator):
    start, end = ends(generator)
    zero = torch.zeros_like(start)
    one = sample_bridge(zero, zero, sigma=1.0, generator=twin(generator))
    two = sample_bridge(zero, zero, sigma=2.0, generator=twin(generator))
    assert torch.allclose(two, 2 * one, rtol=1e-14)
    moved = sample_bridge(start, end, sigma=1.0, generator=twin(generator))
    assert torch.allclose(moved, one + sample_bridge(start, end, sigma=0.0), rtol=1e-12, atol=1e-14)
    same = torch.full((3,), 1.0, dtype=torch.float64)
    assert torch.allclose(sample_bridge(start, end, sigma=same, generator=generator), moved, rtol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_antithetic_pairs_mirror(shape, dtype, generator):
    """Bridges j and j + n_bridges / 2 are exact opposites; the pairs are different."""
    zero = torch.zeros(5, *shape, dtype=dtype)
    paths = sample_bridge(zero, zero, n_bridges=6, sigma=1.0, antithetic=True, generator=generator)
    assert torch.equal(paths[:, :3], -paths[:, 3:])
    assert not torch.equal(paths[:, 0], paths[:, 1])
    start, end = ends(generator, (5, *shape))
    paths = sample_bridge(start, end, n_bridges=2, sigma=1.0, antithetic=True, generator=generator)
    chord = sample_bridge(start, end, sigma=0.0)
    assert torch.allclose(paths.mean(1, keepdim=True), chord, atol=1e-14)


@pytest.mark.statistical
def test_antithetic_keeps_the_law(generator):
    zeros = torch.zeros(20_000, dtype=torch.float64)
    paths = sample_bridge(zeros, zeros, n_bridges=2, sigma=1.0, antithetic=True, generator=generator)
    for half in (paths[:, 0].numpy(), paths[:, 1].numpy()):
        check_variances(half)
        check_covariances(half)


def test_same_generator_same_result_and_inputs_unchanged(generator):
    start, end = ends(generator)
    sigma = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    copies = [v.clone() for v in (start, end, sigma)]
    one = sample_bridge(start, end, n_bridges=3, sigma=sigma, generator=twin(generator))
    two = sample_bridge(start, end, n_bridges=3, sigma=sigma, generator=twin(generator))
    assert torch.equal(one, two)
    one.fill_(7.0)  # the result shares no memory with what came in
    assert all(torch.equal(v, c) for v, c in zip((start, end, sigma), copies, strict=True))
    generator_moved = twin(generator)
    sample_bridge(start, end, generator=generator_moved)
    again = sample_bridge(start, end, n_bridges=3, sigma=sigma, generator=generator_moved)
    assert not torch.equal(again, two)


def test_default_generator_is_used_when_none_is_given():
    start, end = torch.zeros(4), torch.ones(4)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        one = sample_bridge(start, end, sigma=1.0)
        torch.manual_seed(5)
        assert torch.equal(sample_bridge(start, end, sigma=1.0), one)


def test_memory_layout_of_inputs_does_not_matter(generator):
    start, end = ends(generator, (6, 2, 3))
    one = sample_bridge(start, end, generator=twin(generator))
    strided = (v.permute(2, 1, 0).contiguous().permute(2, 1, 0) for v in (start, end))
    assert torch.equal(sample_bridge(*strided, generator=twin(generator)), one)
    expanded = start[:1].expand(6, -1, -1)
    assert torch.equal(sample_bridge(expanded, expanded, sigma=0.0)[:, 0, 2], expanded.contiguous())


def test_a_first_call_in_inference_mode_does_no_harm(generator):
    """The cached grid must not be poisoned by a first call in inference mode."""
    start, end = ends(generator)
    with torch.inference_mode():
        sample_bridge(start, end, n_times=11, sigma=0.123, generator=generator)
    start.requires_grad_()
    sample_bridge(start, end, n_times=11, sigma=0.123, generator=generator).sum().backward()
    bridge_rows(start, end, n_times=11, std=0.123, generator=generator).sum().backward()
    assert torch.isfinite(start.grad).all()


# ------------------------------------------------------------------------- rows, with gradients


@pytest.mark.parametrize("std", [0.0, 0.7, torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)])
@pytest.mark.parametrize("n_times", [2, 3, 6])
def test_bridge_rows_gradient_is_the_chord(std, n_times, generator):
    """d path_s / d start = 1 - s, d path_s / d end = s; values as without gradients."""
    start, end = ends(generator)
    plain = bridge_rows(start, end, n_times=n_times, std=std, generator=twin(generator))
    a, b = start.clone().requires_grad_(), end.clone().requires_grad_()
    paths = bridge_rows(a, b, n_times=n_times, std=std, generator=twin(generator))
    assert torch.equal(paths, plain)
    weights = torch.randn(paths.shape, generator=generator, dtype=torch.float64)
    (paths * weights).sum().backward()
    s = torch.linspace(0, 1, n_times, dtype=torch.float64)[:, None, None]
    assert torch.allclose(a.grad, ((1 - s) * weights).sum(0), rtol=1e-13)
    assert torch.allclose(b.grad, (s * weights).sum(0), rtol=1e-13)
    with torch.no_grad():
        quiet = bridge_rows(a, b, n_times=n_times, std=std, generator=twin(generator))
        assert not quiet.requires_grad


def test_bridge_rows_with_gradient_of_one_end(generator):
    start, end = ends(generator)
    end.requires_grad_()
    bridge_rows(start, end, n_times=3, std=1.0, generator=generator)[1].sum().backward()
    assert torch.equal(end.grad, torch.full_like(end, 0.5))


@pytest.mark.parametrize("std", [0.0, 0.7, torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)])
def test_marginal_rows_gradient_is_the_chord(std, generator):
    start, end = ends(generator)
    s = torch.rand(4, generator=generator, dtype=torch.float64)
    plain = marginal_rows(start, end, s, std=std, generator=twin(generator))
    a, b = start.clone().requires_grad_(), end.clone().requires_grad_()
    points = marginal_rows(a, b, s, std=std, generator=twin(generator))
    assert torch.equal(points, plain)
    points.sum().backward()
    assert torch.allclose(a.grad, (1 - s)[:, None].expand_as(a), rtol=1e-14)
    assert torch.allclose(b.grad, s[:, None].expand_as(b), rtol=1e-14)


def test_rows_do_not_modify_what_they_get(generator):
    start, end = ends(generator)
    s, std = torch.rand(4, generator=generator), torch.rand(3, generator=generator)
    copies = [v.clone() for v in (start, end, s, std)]
    marginal_rows(start, end, s, std=std, generator=generator).fill_(0.0)
    bridge_rows(start, end, n_times=4, std=std, generator=generator).fill_(0.0)
    assert all(torch.equal(v, c) for v, c in zip((start, end, s, std), copies, strict=True))


@pytest.mark.parametrize("dtype", FLOATS)
def test_marginal_rows_at_the_ends_are_the_ends(dtype, generator):
    start, end = ends(generator, (4, 3), dtype)
    s = torch.tensor([0.0, 1.0, 0.0, 1.0])
    points = marginal_rows(start, end, s, std=5.0, generator=generator)
    assert points.dtype == dtype
    assert torch.equal(points, torch.where(s[:, None] == 0, start, end))


# ------------------------------------------------------------------------------------- marginals


def check_marginal(points, s):
    """``points`` of bridges between -1 and 2 with deviation SIGMA at the times ``s``."""
    spread = SIGMA * np.sqrt(s * (1 - s))
    z = (points - (-1 + 3 * s)) / spread
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
def test_marginal_law_at_random_times(generator):
    """N((1-s) a + s b, sigma^2 s (1-s)). At n = 100 000 an excess variance of 5 % is 11 standard errors."""
    start, end, s = marginal_case(generator)
    points = marginal_rows(start, end, s, std=SIGMA, generator=generator)
    check_marginal(points.numpy(), s.numpy())


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", ["unrooted", "constant", "free", "swapped ends", "five percent"])
def test_marginal_law_rejects(wrong, generator):
    start, end, s = marginal_case(generator)
    z = torch.randn(len(s), generator=generator, dtype=torch.float64)
    spread = {
        "unrooted": s * (1 - s),
        "constant": torch.full_like(s, math.sqrt(1 / 6)),
        "free": s.sqrt(),
    }.get(wrong, (s * (1 - s)).sqrt())
    if wrong == "five percent":
        spread = spread * math.sqrt(1.05)
    chord = end + s * (start - end) if wrong == "swapped ends" else start + s * (end - start)
    with pytest.raises(AssertionError, match="p="):
        check_marginal((chord + SIGMA * spread * z).numpy(), s.numpy())


@pytest.mark.statistical
def test_marginal_agrees_with_paths(generator):
    """At the times of a grid both ways of drawing have the same law (5 % of the variance is seen)."""
    n = 30_000
    start, end = torch.full((n,), -1.0, dtype=torch.float64), torch.full((n,), 2.0, dtype=torch.float64)
    paths = sample_bridge(start, end, sigma=SIGMA, generator=generator)[:, 0]
    for i, s in enumerate(time_grid(N_TIMES)[1:-1], start=1):
        points = marginal_rows(start, end, torch.full((n,), s), std=SIGMA, generator=generator)
        assert_same_distribution(points, paths[:, i])
        assert_equal_variances(points - points.mean(), paths[:, i] - paths[:, i].mean())
        other = marginal_rows(start, end, torch.full((n,), s + 0.02), std=SIGMA, generator=generator)
        with pytest.raises(AssertionError, match="p="):  # another time is another law
            assert_same_distribution(other, paths[:, i])


def test_marginal_antithetic_mirrors(generator):
    zero = torch.zeros(6, 2, dtype=torch.float64)
    s = torch.rand(3, generator=generator).repeat(2)
    points = marginal_rows(zero, zero, s, std=1.0, antithetic=True, generator=generator)
    assert torch.equal(points[:3], -points[3:])


# ----------------------------------------------------------------------------------------- times


def times(rows, n_draws, generator):
    return stratified_times(rows, n_draws, device=torch.device("cpu"), generator=generator)


def check_strata(s):
    """One time in each of the equal parts of [0, 1]; rounding may touch a border."""
    s = np.sort(np.asarray(s, dtype=np.float64).ravel())
    inside = s * len(s) - np.arange(len(s))
    assert inside.min() > -1e-4, "a part of [0, 1] was left out"
    assert inside.max() < 1 + 1e-4, "a part of [0, 1] was left out"


@pytest.mark.parametrize(("rows", "n_draws"), [(1, 1), (7, 1), (64, 1), (1, 5), (10, 4), (33, 2)])
def test_one_time_in_each_stratum(rows, n_draws, generator):
    s = times(rows, n_draws, generator)
    assert s.shape == (1, rows * n_draws)
    check_strata(s)
    part = (s.reshape(n_draws, rows) * n_draws * (1 - 1e-6)).floor()
    assert torch.equal(part.sort(0).values, torch.arange(n_draws)[:, None].expand(-1, rows).float())


@pytest.mark.parametrize("n", [8, 64])
def test_independent_times_are_not_stratified(n, generator):
    with pytest.raises(AssertionError, match="left out"):
        check_strata(torch.rand(n, generator=generator))


def parts_in_order(rows, n_draws, generator):
    """Wrong: draw j always gets the j-th part of [0, 1], so bridge 0 never reaches its end."""
    s = times(rows, 1, generator).repeat(n_draws, 1) + torch.arange(n_draws)[:, None]
    return (s / n_draws).reshape(1, -1)


def rows_in_order(rows, n_draws, generator):
    """Wrong: stratified, but in the order of the rows."""
    return times(rows, n_draws, generator).reshape(n_draws, rows).sort(1).values.reshape(1, -1)


def check_each_time_uniform(draw, generator):
    """Every row's every draw is uniform on [0, 1] by itself; 4 % of the range is seen."""
    rows, n_draws = 4, 3
    s = torch.cat([draw(rows, n_draws, generator) for _ in range(5_000)]).reshape(-1, n_draws, rows)
    for j in range(n_draws):
        for row in range(rows):
            assert_distribution(s[:, j, row], "uniform")


@pytest.mark.statistical
def test_each_time_is_uniform(generator):
    check_each_time_uniform(times, generator)


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", [parts_in_order, rows_in_order])
def test_each_time_uniform_rejects(wrong, generator):
    with pytest.raises(AssertionError, match="Kolmogorov"):
        check_each_time_uniform(wrong, generator)


def test_time_grid():
    assert time_grid(2) == [0.0, 1.0]
    for n in (3, 5, 10, 101):
        grid = time_grid(n)
        assert (grid[0], grid[-1], len(grid)) == (0.0, 1.0, n)
        assert np.allclose(grid, np.linspace(0, 1, n), rtol=0, atol=2e-16)


@pytest.mark.parametrize("n_times", [2, 5, 8])
@pytest.mark.parametrize("quadrature", ["mean", "left", "trapezoid"])
def test_quantile_times_have_the_weights_of_the_grid(quadrature, n_times):
    """Uniforms on a fine grid hit each time in exactly the share that the quadrature gives it."""
    u = (torch.arange(5600, dtype=torch.float64) + 0.5) / 5600
    s = quantile_times(u, n_times, quadrature)
    shares = torch.stack([(s == t).double().mean() for t in time_grid(n_times)])
    expected = time_weights(n_times, quadrature, u)[:, 0] / n_times
    assert torch.allclose(shares, expected, atol=1e-12)
    wrong = "left" if quadrature != "left" else "mean"
    assert not torch.allclose(shares, time_weights(n_times, wrong, u)[:, 0] / n_times, atol=1e-2)


def test_quantile_times_edges():
    u = torch.tensor([0.0, 1.0 - 2**-24, 1.0])
    for quadrature in QUADRATURES:
        s = quantile_times(u, 5, quadrature)
        assert ((s >= 0) & (s <= 1)).all()
    assert torch.equal(quantile_times(u, 5, "uniform"), u)


def test_shapes_without_numbers_are_not_kept(generator):
    """Tracing a step on shapes alone (as `step_cost` does) must not reach the next real one."""
    start, end = torch.zeros(3, 2), torch.ones(3, 2)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(bridge_rows(start, end, n_times=7, std=0.123)) is FakeTensor
    found = bridge_rows(start, end, n_times=7, std=0.123, generator=generator)
    assert type(found) is torch.Tensor
    assert torch.equal(found[-1], end)


# ------------------------------------------------------------------- times of several bridges of one point


def drawn_times(n_bridges, generator):
    """Times of the bridges of one point among three, drawn anew 400 times: ``(draw, bridge)``."""
    x = torch.zeros(3, 1)
    settings = {"target_space": "real", "quadrature": "uniform", "n_bridges": n_bridges}
    return torch.stack([sample_paths(x, x, generator=generator, **settings).s[1, :, 0] for _ in range(400)])


def unordered(n_bridges, generator):
    """Wrong: each part of [0, 1] belongs to a bridge's number."""
    return drawn_times(n_bridges, generator).sort(1).values


def independent(n_bridges, generator):
    """Wrong: times of one point know nothing of each other."""
    return torch.rand(400, n_bridges, generator=generator)


def check_times_of_a_point(draw, n_bridges, generator):
    """They fall into different parts of [0, 1], and no part prefers a bridge."""
    s = draw(n_bridges, generator)
    part = (s * n_bridges * (1 - 1e-6)).long()
    assert torch.equal(part.sort(1).values, torch.arange(n_bridges).expand_as(part)), "in one part"
    for bridge in part.T:
        assert_frequencies(torch.bincount(bridge, minlength=n_bridges), [1 / n_bridges] * n_bridges)


@pytest.mark.statistical
@pytest.mark.parametrize("n_bridges", [2, 3])
def test_bridges_of_one_point_divide_the_time(n_bridges, generator):
    check_times_of_a_point(drawn_times, n_bridges, generator)


@pytest.mark.statistical
@pytest.mark.parametrize("n_bridges", [2, 3])
@pytest.mark.parametrize(("wrong", "words"), [(unordered, "frequencies"), (independent, "in one part")])
def test_bridges_of_one_point_reject(wrong, words, n_bridges, generator):
    with pytest.raises(AssertionError, match=words):
        check_times_of_a_point(wrong, n_bridges, generator)
