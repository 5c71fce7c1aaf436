"""The noise's strength: the Green law against an independent derivation, and scales read off data."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from elliptica import Green, Screened, auto_sigma, intrinsic_dimension, sample_bridge, sample_paths
from elliptica.core import noise as module
from elliptica.core.noise import AUTO_FACTOR, check_sigma, noise_std
from laws import assert_distribution, assert_variance

ROWS = 20_000


def twin(generator):
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return copy


def hitting_law(n):
    """Cumulative law of V / r**2, integrated numerically.

    Conditioning on a hit of a vanishing ball is the transform by the Green function, the integral over
    T of the heat kernel; so T has density proportional to ``T**(-n/2) exp(-r**2 / (2 T))``. No Gamma
    variable is used here.
    """
    log_t = np.linspace(-12, 60 / (n / 2 - 1), 400_001)  # the density in log T, up to 1e-26 of its mass
    density = np.exp((1 - n / 2) * log_t - 0.5 * np.exp(-log_t))
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return lambda v: np.interp(np.log(v), log_t, mass / mass[-1])


def green_paths(n, generator, sigma="green", **settings):
    """Paths between points at random distances."""
    x = torch.randn(ROWS, n, generator=generator, dtype=torch.float64)
    y = torch.randn(ROWS, 1, generator=generator, dtype=torch.float64)
    settings = {"sampling": "path", "n_times": 3} | settings
    return sample_paths(x, y, target_space="real", sigma=sigma, generator=generator, **settings)


def distances(paths):
    gap = paths.x[:, 0, -1] - paths.x[:, 0, 0]
    return gap.flatten(1).norm(dim=1).numpy()


def check_stated_variance(paths, n):
    """The variance that `Paths` states: V / r**2 against the law."""
    v = paths.variance["x"].numpy().ravel() / distances(paths) ** 2
    assert_distribution(v, hitting_law(n))


def check_drawn_points(paths, n):
    """The points themselves: 4 |Z_{1/2} - chord|**2 / r**2 is V / r**2 times a chi-square.

    A chi-square over twice a Gamma variable is a beta prime variable. The ratio to the *stated* variance
    is chi-square by itself, so the points really are that wide.
    """
    middle = paths.x[:, 0, 1] - (paths.x[:, 0, 0] + paths.x[:, 0, -1]) / 2
    q = 4 * middle.square().sum(1).numpy()
    assert_distribution(q / distances(paths) ** 2, stats.betaprime(n / 2, n / 2 - 1).cdf)
    assert_distribution(q / paths.variance["x"].numpy().ravel(), stats.chi2(n).cdf)


def test_the_two_derivations_agree():
    """Numerical integral of the hitting density against r**2 / (2 Gamma(n/2 - 1))."""
    v = np.geomspace(0.02, 20, 50)
    for n in (3, 4, 5, 10, 50):
        closed = stats.gamma(n / 2 - 1).sf(1 / (2 * v))
        assert np.allclose(hitting_law(n)(v), closed, atol=1e-6)


@pytest.mark.statistical
@pytest.mark.parametrize("n", [3, 5, 10, 50])
def test_green_law(n, generator):
    """V / r**2 has the hitting law. A shape off by 0.5 or a scale off by 10 % is seen at n = 20 000."""
    paths = green_paths(n, generator)
    check_stated_variance(paths, n)
    check_drawn_points(paths, n)


WRONG_GAMMA = {
    "shape n/2": lambda shape, gamma: gamma(shape + 1),
    "shape (n-1)/2": lambda shape, gamma: gamma(shape + 0.5),
    "deterministic r^2/n": lambda shape, gamma: torch.full_like(gamma(shape), shape + 1),
    "no factor 2": lambda shape, gamma: gamma(shape) / 2,
    "inverted": lambda shape, gamma: 1 / gamma(shape),
    "scale 20 %": lambda shape, gamma: gamma(shape) * 1.2,
}


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", WRONG_GAMMA)
@pytest.mark.parametrize("n", [5, 50])
def test_green_law_rejects(wrong, n, generator, monkeypatch):
    """The same pipeline with another random variable in it."""
    original = module.draw_gamma

    def mutant(shape, rows, **where):
        return WRONG_GAMMA[wrong](shape, lambda s: original(s, rows, **where))

    monkeypatch.setattr(module, "draw_gamma", mutant)
    paths = green_paths(n, generator)
    for check in (check_stated_variance, check_drawn_points):
        with pytest.raises(AssertionError, match="Kolmogorov"):
            check(paths, n)


@pytest.mark.statistical
def test_green_law_of_marginal_points(generator):
    """One point per bridge: (Z_s - chord)**2 / (s (1-s)) has the law of the midpoint's."""
    zero = torch.zeros(ROWS, 5, dtype=torch.float64)
    end = torch.randn(ROWS, 5, generator=generator, dtype=torch.float64)
    y = torch.zeros(ROWS, 1, dtype=torch.float64)
    paths = sample_paths(
        zero,
        y,
        target_space="real",
        sigma="green",
        quadrature="uniform",
        end=(end, y),
        generator=generator,
    )
    s = paths.s[:, 0]
    q = ((paths.x[:, 0, 0] - s * end).square().sum(1, keepdim=True) / (s * (1 - s)))[:, 0]
    r2 = end.square().sum(1)
    assert_distribution(q / r2, stats.betaprime(2.5, 1.5).cdf)
    assert_distribution(paths.variance["x"][:, 0] / r2, hitting_law(5))
    with pytest.raises(AssertionError, match="Kolmogorov"):  # the spread at s = 1/2 for all
        assert_distribution(4 * q * s[:, 0] * (1 - s[:, 0]) / r2, stats.betaprime(2.5, 1.5).cdf)


@pytest.mark.statistical
def test_dimension_option_sets_the_law(generator):
    """``dim=5`` in 12 dimensions: V has the law of n = 5, and not that of n = 12 or 6."""
    paths = green_paths(12, generator, sigma=Green(dim=5.0))
    check_stated_variance(paths, 5)
    for other in (12, 6):
        with pytest.raises(AssertionError, match="Kolmogorov"):
            check_stated_variance(paths, other)


def test_scale_multiplies_the_deviation(generator):
    whole = green_paths(4, twin(generator))
    half = green_paths(4, twin(generator), sigma=Green(scale=0.5))
    none = green_paths(4, twin(generator), sigma=Green(scale=0.0))
    assert torch.allclose(half.variance["x"], whole.variance["x"] / 4, rtol=1e-6)
    chord = none.x[:, 0, 1]
    assert torch.allclose(chord, (whole.x[:, 0, 0] + whole.x[:, 0, 2]) / 2, atol=1e-12)
    moved = (whole.x[:, 0, 1] - chord) / 2
    assert torch.allclose(half.x[:, 0, 1] - chord, moved, rtol=1e-5, atol=1e-9)


def test_each_path_has_one_variance_and_horizon_does_not_enter(generator):
    paths = green_paths(4, twin(generator), n_bridges=3)
    assert paths.variance["x"].shape == (3 * ROWS, 1)
    assert len(torch.unique(paths.variance["x"])) > 2.9 * ROWS
    assert torch.equal(green_paths(4, twin(generator), n_bridges=3, horizon=9.0).x, paths.x)


def test_antithetic_pairs_share_their_variance(generator):
    paths = green_paths(4, generator, n_bridges=4, antithetic=True)
    first, second = paths.variance["x"].reshape(2, -1)
    assert torch.equal(first, second)
    chord = (paths.x[:, :, 0] + paths.x[:, :, 2]) / 2
    noise = paths.x[:, :, 1] - chord
    assert torch.allclose(noise[:, :2], -noise[:, 2:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sigma", [0.5, "green"])
def test_antithetic_points_share_time_and_partner(sigma, generator):
    """Single points, too, mirror around the chord: same time, same end, opposite noise."""
    x = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    y = torch.arange(50, dtype=torch.float64)[:, None]
    paths = sample_paths(
        x,
        y,
        target_space="real",
        sigma=sigma,
        sigma_y=0.0,
        n_bridges=4,
        antithetic=True,
        quadrature="uniform",
        generator=generator,
    )
    assert torch.equal(paths.s[:, :2], paths.s[:, 2:])
    assert torch.equal(paths.y[:, :2], paths.y[:, 2:])
    s = paths.s[:, :2, 0, None]
    partner = ((paths.y[:, :2, 0] - (1 - s) * y[:, None]) / s).round().long()[..., 0]
    chord = (1 - s) * x[:, None] + s * x[partner]
    assert torch.allclose((paths.x[:, :2, 0] + paths.x[:, 2:, 0]) / 2, chord, atol=1e-6)


@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_labels_are_linear_by_default(sampling, generator):
    """Scales measured on inputs say nothing about targets: sigma_y is zero unless given."""
    y = torch.randn(64, 2, generator=generator, dtype=torch.float64)
    x = torch.randn(64, 4, generator=generator, dtype=torch.float64)
    partners = torch.arange(64).roll(1)
    for sigma in ("green", Green(scale=2.0), "auto", torch.ones(4)):
        paths = sample_paths(
            x,
            y,
            target_space="real",
            sampling=sampling,
            sigma=sigma,
            partners=partners,
            generator=generator,
        )
        s = paths.s[..., None]
        expected = (1 - s) * y[:, None, None] + s * y[partners][:, None, None]
        assert torch.allclose(paths.y, expected, rtol=1e-12, atol=1e-12)
    noisy = sample_paths(x, y, target_space="real", sigma="green", sigma_y=0.1, generator=generator)
    assert noisy.variance_y == pytest.approx(0.01)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3)])
def test_green_counts_all_features(shape, generator):
    """Same numbers, whatever the shape of a sample."""
    flat = torch.randn(50, 6, generator=generator)
    y = torch.zeros(50, 1)
    one = sample_paths(flat, y, target_space="real", sigma="green", generator=twin(generator))
    two = sample_paths(
        flat.reshape(50, *shape), y, target_space="real", sigma="green", generator=twin(generator)
    )
    assert torch.equal(one.x.flatten(3), two.x.flatten(3))


def test_green_on_scalars_with_a_dimension(generator):
    """A sample without feature axes is fine when the dimension is given."""
    x = torch.randn(50, generator=generator)
    paths = sample_paths(x, x, target_space="real", sigma=Green(dim=5.0), generator=generator)
    assert paths.x.shape == (50, 1, 1)
    assert torch.isfinite(paths.x).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_green_keeps_the_dtype_and_a_loop_stays_put(dtype, generator):
    x = torch.randn(1, 4, generator=generator).to(dtype)  # a batch of one is its own partner: r = 0
    paths = sample_paths(x, torch.zeros(1, 1), target_space="real", sigma="green", generator=generator)
    assert paths.x.dtype == dtype
    assert torch.equal(paths.x[0, 0], x)


@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize("features", [1, 2])
def test_green_needs_three_dimensions(features):
    x, y = torch.randn(4, features), torch.zeros(4, 1)
    with pytest.raises(ValueError, match=rf"at least 3 features, but got {features}.*Green\(dim="):
        sample_paths(x, y, target_space="real", sigma="green")
    sample_paths(x, y, target_space="real", sigma=Green(dim=3))


@pytest.mark.parametrize("sigma", ["green", Screened(1.0)])
@pytest.mark.parametrize("unit", [2.0**-80, 2.0**80])
@pytest.mark.parametrize("learnt", [False, True])
def test_units_in_which_squares_leave_float32(sigma, unit, learnt):
    """The law scales with the distance, however large or small it is."""
    start, end = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    scaled = Screened(1.0 / unit**2) if isinstance(sigma, Screened) else sigma

    def draw(start, end, sigma):
        generator = torch.Generator().manual_seed(1)
        return sample_bridge(start.requires_grad_(learnt), end, sigma=sigma, generator=generator)

    expected = draw(start, end, sigma).detach()
    found = draw(start.detach() * unit, end * unit, scaled).detach()
    torch.testing.assert_close(found / unit, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("own_checks")
def test_bad_green_is_refused():
    with pytest.raises(ValueError, match=r"Green\.dim must be at least 3, but got 2.*use a number"):
        Green(dim=2)
    with pytest.raises(ValueError, match=r"Green\.scale must be finite and at least 0"):
        Green(scale=-1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Green().scale = 2.0
    for dim in (math.nan, math.inf):
        with pytest.raises(ValueError, match=r"Green\.dim must be finite and above 0"):
            Green(dim=dim)
        with pytest.raises(ValueError, match=r"Screened\.dim must be finite and above 0"):
            Screened(1.0, dim=dim)
    with pytest.raises(TypeError, match=r"Green\.dim must be a number, but got '4'"):
        Green(dim="4")
    with pytest.raises(TypeError, match=r"Green\.scale must be a number"):
        Green(scale=torch.ones(2))


# -------------------------------------------------------------------------------- numbers and data


def test_auto_sigma_is_a_tenth_of_the_deviation(generator):
    x = torch.randn(100, 3, generator=generator) * torch.tensor([0.1, 1.0, 50.0])
    expected = AUTO_FACTOR * np.std(x.double().numpy(), axis=0, ddof=1)
    assert np.allclose(auto_sigma(x), expected, rtol=1e-5)
    assert np.allclose(auto_sigma(x, factor=0.5), 5 * expected, rtol=1e-5)
    images = x.reshape(25, 2, 2, 3)
    assert auto_sigma(images).shape == (2, 2, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_auto_sigma_is_equivariant(dtype, generator):
    """Rescaling a column by a power of two rescales its sigma exactly; shifting changes nothing."""
    x = torch.randn(50, 2, generator=generator).to(dtype)
    scale = torch.tensor([4.0, 0.25], dtype=dtype)
    assert auto_sigma(x).dtype == dtype
    assert torch.allclose(
        auto_sigma(x * scale), auto_sigma(x) * scale, rtol=1e-2 if dtype.itemsize < 4 else 1e-6
    )
    constant = torch.full((50, 2), 3.0, dtype=dtype)
    assert torch.equal(auto_sigma(constant), torch.zeros(2, dtype=dtype))


@pytest.mark.statistical
def test_auto_sigma_uses_the_precision_of_the_data(generator):
    """Time stamps: values of 1e9 with a deviation of one survive in float64, not in float32."""
    x = 1.7e9 + torch.randn(200, 1, generator=generator, dtype=torch.float64)
    assert float(auto_sigma(x)) == pytest.approx(AUTO_FACTOR * float(x.std()), rel=1e-9)
    assert float(auto_sigma(x)) == pytest.approx(AUTO_FACTOR, rel=0.3)


@pytest.mark.statistical
def test_auto_sigma_makes_training_indifferent_to_units(generator):
    """In units of each column's deviation the noise of all columns has variance AUTO_FACTOR**2."""
    n = 20_000
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64) * torch.tensor([1e-3, 1e3])
    paths = sample_paths(
        x,
        torch.zeros(n, 1),
        target_space="real",
        sigma="auto",
        sampling="path",
        n_times=3,
        generator=generator,
    )
    noise = paths.x[:, 0, 1] - (paths.x[:, 0, 0] + paths.x[:, 0, 2]) / 2
    for column in range(2):
        law = (AUTO_FACTOR * x[:, column].std().item()) ** 2 / 4
        assert_variance(noise[:, column], law)
        with pytest.raises(AssertionError, match="variance ratio"):
            assert_variance(noise[:, column], 1.15 * law)


@pytest.mark.usefixtures("own_checks")
def test_auto_sigma_errors():
    with pytest.raises(ValueError, match=r"at least two rows.*got 1.*call auto_sigma on more data"):
        auto_sigma(torch.zeros(1, 3))
    with pytest.raises(TypeError, match=r"x must be floating point.*int64"):
        auto_sigma(torch.zeros(4, 3, dtype=torch.long))
    with pytest.raises(TypeError, match=r"x must be a torch\.Tensor, but got list"):
        auto_sigma([[1.0], [2.0]])
    with pytest.raises(ValueError, match=r"x must be finite.*rows 2.*Impute or drop"):
        auto_sigma(torch.tensor([[1.0], [2.0], [math.nan]]))
    with pytest.raises(ValueError, match="x is a scalar"):
        auto_sigma(torch.tensor(1.0))
    for factor in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="factor must be finite and at least 0"):
            auto_sigma(torch.randn(4, 2), factor)
    for factor in ("0.1", True, None):
        with pytest.raises(TypeError, match="factor must be a number"):
            auto_sigma(torch.randn(4, 2), factor)


@pytest.mark.usefixtures("own_checks")
def test_intrinsic_dimension_errors():
    with pytest.raises(ValueError, match="x is a scalar"):
        intrinsic_dimension(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"x has no features, shape \(20, 0\)"):
        intrinsic_dimension(torch.zeros(20, 0))
    with pytest.raises(TypeError, match=r"discard must be a number, but got '0\.1'"):
        intrinsic_dimension(torch.randn(20, 2), discard="0.1")


@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize(
    ("sigma", "error", "message"),
    [
        ("gren", ValueError, r"sigma='gren' is not known.*\"auto\", \"green\".*elliptica\.Green"),
        (-0.1, ValueError, r"sigma must be finite and at least 0, but got -0\.1"),
        (math.nan, ValueError, r"sigma must be finite and at least 0, but got nan"),
        (math.inf, ValueError, r"sigma must be finite and at least 0, but got inf"),
        (True, TypeError, r"sigma must be a number, but got True"),
        (None, TypeError, r"sigma must be a number, but got None"),
        ([0.1], TypeError, r"sigma must be a number, but got \[0\.1\]"),
        (torch.tensor([0.1, -2.0]), ValueError, r"at least 0, but got values from -2 to 0\.1"),
        (torch.tensor([0.1, math.inf]), ValueError, r"finite .* values from 0\.1 to inf"),
        (torch.tensor([1, 2]), TypeError, r"sigma must be floating point, but has dtype torch\.int64"),
    ],
)
def test_check_sigma_errors(sigma, error, message):
    with pytest.raises(error, match=message):
        check_sigma(sigma)


@pytest.mark.usefixtures("own_checks")  # the checker of the suite refuses 2 for a float
def test_check_sigma_passes_what_is_right():
    tensor = torch.tensor([0.1, 0.0])
    assert check_sigma(tensor) is tensor
    assert check_sigma("green") == Green()
    assert check_sigma("auto") == "auto"
    assert check_sigma(2) == 2.0
    assert isinstance(check_sigma(2), float)
    assert check_sigma(Green(scale=3.0)) == Green(scale=3.0)


def test_noise_std_is_sigma_root_horizon():
    start = end = torch.zeros(4, 2)
    assert noise_std(0.5, start, end, 4.0, None) == 1.0
    assert torch.equal(noise_std(torch.tensor([1.0, 2.0]), start, end, 0.25, None), torch.tensor([0.5, 1.0]))


@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize("shape", [(3,), (4, 1), (4, 2), (1, 1)])
def test_sigma_that_does_not_fit_one_sample_is_refused(shape):
    """Above all one that would silently broadcast along the batch."""
    start = torch.zeros(4, 2)
    with pytest.raises(ValueError, match=r"sigma.*broadcasts to the shape \(2,\) of one sample, but has"):
        noise_std(torch.ones(shape), start, start, 1.0, None)
    for fits in ((), (1,), (2,)):
        noise_std(torch.ones(fits), start, start, 1.0, None)


@pytest.mark.parametrize("sampling", ["path", "marginal"])
@pytest.mark.parametrize("data", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [torch.bfloat16, torch.float32, torch.float64])
def test_the_data_decide_the_dtype(sampling, data, scale, generator):
    """A sigma in another precision (numpy's float64, say) does not change that of the points."""
    x, y = torch.zeros(8, 2, dtype=data), torch.zeros(8, 1, dtype=data)
    sigma, sigma_y = torch.ones(2, dtype=scale), torch.ones((), dtype=scale)
    paths = sample_paths(
        x, y, target_space="real", sampling=sampling, sigma=sigma, sigma_y=sigma_y, generator=generator
    )
    assert paths.x.dtype == paths.y.dtype == data
    assert paths.x.abs().max() > 0


# Gradients through the distance of a pair


def at_length(sigma, ends, *, sampling, state):
    """A smooth function of the points, by the same numbers of the generator."""
    generator = torch.Generator()
    generator.set_state(state)
    if sampling == "bridge":
        return sample_bridge(*ends, sigma=sigma, n_bridges=2, generator=generator).square().sin().sum()
    settings = {"sampling": sampling, "n_bridges": 2, "antithetic": True, "sigma": sigma, "sigma_y": 0.1}
    y = torch.zeros(len(ends[0]), 1, dtype=ends[0].dtype)
    paths = sample_paths(ends[0], y, target_space="real", end=(ends[1], y), **settings, generator=generator)
    return paths.x.square().sin().sum()


@pytest.mark.parametrize("sampling", ["bridge", "path", "marginal"])
@pytest.mark.parametrize("sigma", ["green", ("green", 0.5), 0.3])
def test_gradients_are_those_of_the_value(sigma, sampling, generator):
    """Central differences with the same draws; distances are in float32, hence the tolerance."""
    ends = [torch.randn(4, 5, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2)]
    state = generator.get_state()
    found = torch.autograd.grad(at_length(sigma, ends, sampling=sampling, state=state), ends)
    step = 1e-3
    with torch.no_grad():
        for end, slope in zip(ends, found, strict=True):
            for place in ((0, 0), (3, 2)):
                values = []
                for sign in (1, -1):
                    end[place] += sign * step
                    values.append(at_length(sigma, ends, sampling=sampling, state=state))
                    end[place] -= sign * step
                assert float(slope[place]) == pytest.approx(
                    float(values[0] - values[1]) / (2 * step), rel=2e-2, abs=2e-2
                )


def test_the_screened_variance_is_a_constant_in_gradients(generator):
    start, end = (torch.randn(4, 3, generator=generator).requires_grad_() for _ in range(2))
    paths = sample_bridge(start, end, sigma=("screened", 1.0), n_times=3, generator=generator)
    slope = torch.autograd.grad(paths[:, :, 1].sum(), start)[0]
    torch.testing.assert_close(slope, torch.full((4, 3), 0.5))


@pytest.mark.parametrize("sigma", ["green", ("screened", 1.0)])
def test_equal_ends_have_finite_gradients_of_first_and_second_order(sigma, generator):
    start = torch.randn(3, 4, generator=generator).requires_grad_()
    end = start.detach().clone()
    end[0] += 1.0
    paths = sample_bridge(start, end, sigma=sigma, generator=generator)
    assert torch.equal(paths[1:].detach(), end[1:, None, None].expand(-1, 1, 5, -1))
    (slope,) = torch.autograd.grad(paths.square().sum(), start, create_graph=True)
    slope.square().sum().backward()
    assert torch.isfinite(slope).all()
    assert torch.isfinite(start.grad).all()


def test_auto_sigma_of_columns_in_very_different_units(generator):
    x = torch.randn(50, 3, generator=generator)
    unit = torch.tensor([1e30, 1.0, 1e-30])
    assert torch.allclose(auto_sigma(x * unit) / unit, auto_sigma(x), rtol=1e-4)
