"""Targets: the maps to the simplex against slow references, encodings, and what bridges do to labels."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from torch import nn
from torch.nn import functional as F

from elliptica import project_to_simplex, sample_paths
from elliptica.core.targets import SIMPLEX_MAPS, encode_targets, infer_target_space, project_targets
from laws import assert_equal_means, assert_variance

HYPOTHESIS = settings(max_examples=150, deadline=None, database=None)


def vectors(low=-3.0, high=3.0):
    return st.lists(st.floats(low, high, allow_subnormal=False), min_size=1, max_size=12)


# ---------------------------------------------------------------------------- maps to the simplex


def slow_abs(y):
    size = [abs(v) for v in y]
    total = sum(size)
    return np.array([v / total for v in size]) if total > 0 else np.full(len(size), 1 / len(size))


def slow_euclidean(y):
    """Nearest point of the simplex: try every support size, largest values first."""
    best, distance = None, np.inf
    order = np.argsort(y)[::-1]
    for k in range(1, len(y) + 1):
        support = order[:k]
        p = np.zeros(len(y))
        p[support] = y[support] - (y[support].sum() - 1) / k
        if (p >= 0).all() and np.square(p - y).sum() < distance:
            best, distance = p, np.square(p - y).sum()
    return best


@HYPOTHESIS
@given(vectors())
def test_abs_against_a_slow_reference(values):
    y = torch.tensor(values, dtype=torch.float64)
    assert np.allclose(project_to_simplex(y), slow_abs(values), rtol=1e-12, atol=1e-300)


@HYPOTHESIS
@given(vectors())
def test_euclidean_against_a_slow_reference(values):
    y = torch.tensor(values, dtype=torch.float64)
    assert np.allclose(project_to_simplex(y, "euclidean"), slow_euclidean(y.numpy()), atol=1e-12)


def test_euclidean_against_an_optimiser(generator):
    """SciPy minimises the distance over the simplex by itself."""
    for y in torch.randn(8, 6, generator=generator, dtype=torch.float64).numpy():
        result = optimize.minimize(
            lambda p, y=y: np.square(p - y).sum(),
            np.full(6, 1 / 6),
            jac=lambda p, y=y: 2 * (p - y),
            bounds=[(0, None)] * 6,
            constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones(6)},
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        projected = project_to_simplex(torch.from_numpy(y), "euclidean").numpy()
        assert np.allclose(projected, result.x, atol=1e-6)


@pytest.mark.parametrize("how", SIMPLEX_MAPS)
@HYPOTHESIS
@given(values=vectors(-1e6, 1e6), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_results_lie_on_the_simplex(how, values, dtype):
    p = project_to_simplex(torch.tensor(values, dtype=dtype), how)
    assert p.dtype == dtype
    assert (p >= 0).all()
    assert float(p.sum()) == pytest.approx(1.0, abs=4 * len(values) * torch.finfo(dtype).eps)


@pytest.mark.parametrize("how", SIMPLEX_MAPS)
@HYPOTHESIS
@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(lambda v: sum(v) > 0.1))
def test_points_of_the_simplex_stay(how, values):
    p = torch.tensor(values, dtype=torch.float64)
    p = p / p.sum()
    assert torch.allclose(project_to_simplex(p, how), p, rtol=0, atol=1e-15 * len(values))


@pytest.mark.parametrize("how", SIMPLEX_MAPS)
def test_one_hot_stays_bit_for_bit(how):
    eye = torch.eye(10)
    assert torch.equal(project_to_simplex(eye, how), eye)


@pytest.mark.parametrize("how", SIMPLEX_MAPS)
@pytest.mark.parametrize("value", [0.0, 1e-40, 1e-30, 1e9])
def test_degenerate_vectors(how, value):
    """No direction at all, hardly one, or a huge one: still a probability vector."""
    zeros = project_to_simplex(torch.zeros(2, 4), how)
    assert torch.allclose(zeros, torch.full((2, 4), 0.25))
    p = project_to_simplex(torch.tensor([value, 0.0, 0.0]), how)
    assert float(p.sum()) == pytest.approx(1.0)
    if value > 1 or (how == "abs" and value > 0):
        assert p.tolist() == [1.0, 0.0, 0.0]


def test_adding_a_constant_does_not_move_the_nearest_point(generator):
    y = torch.randn(50, 7, generator=generator)
    assert torch.allclose(
        project_to_simplex(y + 1000.0, "euclidean"), project_to_simplex(y, "euclidean"), atol=1e-3
    )
    assert torch.allclose(project_to_simplex(y + 1000.0, "euclidean").sum(-1), torch.ones(50), atol=1e-6)


@pytest.mark.parametrize("how", SIMPLEX_MAPS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("classes", [2, 10, 200])
def test_half_precision_is_close(how, dtype, classes, generator):
    y = torch.eye(classes)[:2].repeat(10, 1)
    y = (y + 0.025 * torch.randn(y.shape, generator=generator)).to(dtype)
    p = project_to_simplex(y, how)
    assert p.dtype == dtype
    assert (p >= 0).all()
    exact = project_to_simplex(y.double(), how)
    assert (p.double() - exact).abs().max() < 8 * torch.finfo(dtype).eps
    assert (p.double().sum(-1) - 1).abs().max() < 16 * torch.finfo(dtype).eps


def test_maps_work_on_any_batch_shape_and_do_not_modify(generator):
    y = torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64)
    copy = y.clone()
    for how in SIMPLEX_MAPS:
        whole = project_to_simplex(y, how)
        assert whole.shape == y.shape
        assert torch.allclose(whole[1, 2, 3], project_to_simplex(y[1, 2, 3], how))
    assert torch.equal(y, copy)


@pytest.mark.usefixtures("own_checks")
def test_unknown_map():
    with pytest.raises(ValueError, match=r"how must be one of 'abs', 'euclidean'.*Did you mean 'euclidean'"):
        project_to_simplex(torch.ones(3), "euclid")


def test_project_targets_by_space(generator):
    y = torch.randn(3, 4, 5, 2, generator=generator)
    along_classes = project_targets(y, "simplex", "abs", class_axis=2)
    assert torch.allclose(along_classes.sum(2), torch.ones(3, 4, 2))
    assert torch.equal(project_targets(y, "unit", "abs", class_axis=2), y.clamp(0, 1))
    assert project_targets(y, "real", "abs", class_axis=2) is y


# --------------------------------------------------------------------------------------- encoding


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_labels_become_one_hot(dtype):
    y = torch.tensor([2, 0, 1], dtype=dtype)
    encoded = encode_targets(y, "simplex", num_classes=4, dtype=torch.float64)
    assert encoded.dtype == torch.float64
    assert torch.equal(encoded, F.one_hot(y.long(), 4).double())


def test_dense_labels_keep_their_places(generator):
    """(batch, H, W) becomes (batch, classes, H, W), as the cross-entropy expects."""
    y = torch.randint(5, (2, 3, 4), generator=generator)
    encoded = encode_targets(y, "simplex", num_classes=5)
    assert torch.equal(encoded, F.one_hot(y, 5).permute(0, 3, 1, 2).float())
    logits = torch.randn(2, 5, 3, 4, generator=generator)
    assert torch.allclose(F.cross_entropy(logits, encoded), F.cross_entropy(logits, y))


def test_other_targets_pass_through(generator):
    soft = torch.rand(4, 3, generator=generator).softmax(1)
    assert encode_targets(soft, "simplex") is soft
    real = torch.randn(4, generator=generator)
    assert encode_targets(real, "real") is real
    box = torch.rand(4, 2, generator=generator)
    assert encode_targets(box, "unit") is box
    flags = torch.tensor([[True, False], [False, True]])
    assert encode_targets(flags, "unit").tolist() == [[1.0, 0.0], [0.0, 1.0]]
    half = soft.bfloat16()
    assert encode_targets(half, "simplex") is half


LONG = torch.tensor([0, 1])


@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize(
    ("y", "space", "classes", "error", "message"),
    [
        (torch.tensor([0, 3]), "simplex", 3, ValueError, r"0\.\.2 \(num_classes=3\).*from 0 to 3.*Correct"),
        (torch.tensor([-1, 2]), "simplex", 3, ValueError, r"from -1 to 2.*before the call"),
        (LONG, "simplex", None, ValueError, r"y holds integer labels.*Pass num_classes"),
        (LONG, "real", 3, TypeError, r"needs floating targets, but y has dtype torch\.int64.*y\.float\(\)"),
        (LONG, "unit", 3, TypeError, r"needs floating targets, but y has dtype torch\.int64.*y\.float\(\)"),
        (LONG.bool(), "real", None, TypeError, r"needs floating targets, but y has dtype torch\.bool"),
        (LONG.bool(), "simplex", 2, TypeError, r"needs floating targets, but y has dtype torch\.bool"),
        (
            LONG.float(),
            "simplex",
            2,
            ValueError,
            r"need shape \(batch, classes\).*y has shape \(2,\).*y\.long",
        ),
        (torch.tensor([[0.5, 0.4]]), "simplex", 2, ValueError, r"y has sums from 0\.9 to 0\.9.*Normalise y"),
        (torch.tensor([[1.5, -0.5]]), "simplex", 2, ValueError, r"smallest value of -0\.5.*Normalise y"),
        (torch.tensor([[0.5, 1.5]]), "unit", None, ValueError, r"y ranges from 0\.5 to 1\.5.*\"real\""),
        (torch.tensor([[-0.5, 0.5]]), "unit", None, ValueError, r"y ranges from -0\.5 to 0\.5"),
    ],
)
def test_encoding_errors(y, space, classes, error, message):
    with pytest.raises(error, match=message):
        encode_targets(y, space, num_classes=classes)


def test_checks_can_be_switched_off():
    y = torch.tensor([[2.0, 2.0]])
    assert encode_targets(y, "simplex", validate=False) is y


# --------------------------------------------------------------------------- reading the space off a loss


SPACES = [
    *[(loss, "simplex") for loss in (nn.CrossEntropyLoss(), nn.KLDivLoss(), F.cross_entropy)],
    *[
        (loss, "unit")
        for loss in (
            nn.BCEWithLogitsLoss(),
            nn.BCELoss(),
            nn.MultiLabelSoftMarginLoss(),
            F.binary_cross_entropy_with_logits,
            F.binary_cross_entropy,
        )
    ],
    *[
        (loss, "real")
        for loss in (
            nn.MSELoss(),
            nn.L1Loss(),
            nn.SmoothL1Loss(),
            nn.HuberLoss(),
            nn.PoissonNLLLoss(),
            F.mse_loss,
            F.l1_loss,
            F.smooth_l1_loss,
            F.huber_loss,
        )
    ],
]


@pytest.mark.parametrize(("loss", "space"), SPACES)
def test_known_losses(loss, space):
    soft = torch.tensor([[0.5, 0.5]])
    assert infer_target_space(loss, soft) == space
    if not isinstance(loss, nn.Module):
        assert infer_target_space(functools.partial(loss, reduction="none"), soft) == space
    if space != "simplex":
        with pytest.raises(TypeError, match=r"needs floating targets.*int64.*CrossEntropyLoss"):
            infer_target_space(loss, LONG)
    else:
        assert infer_target_space(loss, LONG) == "simplex"


def test_subclasses_count_and_booleans_are_multilabel():
    class Own(nn.CrossEntropyLoss):
        pass

    assert infer_target_space(Own(), LONG) == "simplex"
    assert infer_target_space(nn.BCEWithLogitsLoss(), LONG.bool()) == "unit"


class Unhashable:
    """A callable that compares by value, as dataclasses do."""

    __hash__ = None

    def __eq__(self, other):
        return True

    def __call__(self, output, target):
        return (output - target).square().mean(1)


@pytest.mark.parametrize(
    "loss", [lambda output, target: output[:, 0], Unhashable(), nn.CosineEmbeddingLoss()]
)
def test_unknown_losses_ask_for_the_space(loss):
    assert infer_target_space(loss, LONG) == "simplex"  # integers can only be labels
    with pytest.raises(ValueError, match=r"Cannot infer the kind of targets from the loss .*target_space="):
        infer_target_space(loss, LONG.float())


@pytest.mark.usefixtures("own_checks")
def test_targets_must_be_a_tensor():
    with pytest.raises(TypeError, match=r"y must be a torch\.Tensor, but got list.*torch\.as_tensor"):
        infer_target_space(nn.MSELoss(), [1.0, 2.0])


# ------------------------------------------------------------------------------ labels along bridges


def label_paths(classes, sigma, how, rows, generator, **settings):
    """Same-class bridges: every row has label 0."""
    settings = {"sampling": "path", "n_times": 3} | settings
    return sample_paths(
        torch.zeros(rows, 1),
        torch.zeros(rows, dtype=torch.long),
        target_space="simplex",
        num_classes=classes,
        sigma_y=sigma,
        simplex=how,
        generator=generator,
        **settings,
    )


def simulated_mass(classes, sigma, how, rows, generator, shared=False):
    """Mass on the true class at mid-bridge, from the definition, in numpy."""
    rng = np.random.default_rng(int(torch.randint(2**60, (1,), generator=generator)))
    y = sigma / 2 * rng.standard_normal((rows, 1 if shared else classes)) + np.eye(1, classes)
    if how == "euclidean":
        # by bisection on the threshold: a different algorithm from the library's
        low, high = y.min(1) - 1, y.max(1)
        for _ in range(60):
            middle = (low + high) / 2
            above = np.maximum(y - middle[:, None], 0).sum(1) > 1
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return np.maximum(y[:, 0] - low, 0)
    if how == "clip":
        y = np.maximum(y, 0)
    return np.abs(y[:, 0]) / np.abs(y).sum(1)


TABLE = [
    (2, 0.1, 0.96, 0.99),
    (10, 0.05, 0.85, 0.98),
    (9, 0.1, 0.76, 0.96),
    (100, 0.05, 0.34, 0.96),
    (200, 0.05, 0.20, 0.95),
]


@pytest.mark.statistical
@pytest.mark.parametrize("how", SIMPLEX_MAPS)
@pytest.mark.parametrize(("classes", "sigma", "abs_mass", "euclidean_mass"), TABLE)
def test_mass_left_at_mid_bridge(classes, sigma, abs_mass, euclidean_mass, how, generator):
    """The table of methods.md 2.5 (two digits), and its definition simulated independently.

    With 10 000 rows the mean is known to 0.001 or better: another map (clipping), noise shared by the
    classes, or a factor of two in the variance are dozens of standard errors away.
    """
    rows = 10_000
    mass = label_paths(classes, sigma, how, rows, generator).y[:, 0, 1, 0].double().numpy()
    printed = abs_mass if how == "abs" else euclidean_mass
    assert abs(mass.mean() - printed) < 0.0051 + 5 * mass.std() / np.sqrt(rows)
    assert_equal_means(mass, simulated_mass(classes, sigma, how, rows, generator))


@pytest.mark.statistical
@pytest.mark.parametrize(
    "wrong", [{"how": "clip"}, {"how": "euclidean"}, {"how": "abs", "shared": True}, {"sigma": 0.0525}]
)
def test_mass_rejects(wrong, generator):
    """Clipping, the other map, one noise for all classes, 5 % more sigma."""
    mass = label_paths(100, 0.05, "abs", 10_000, generator).y[:, 0, 1, 0]
    case = {"classes": 100, "sigma": 0.05, "how": "abs", "rows": 10_000} | wrong
    with pytest.raises(AssertionError, match="means differ"):
        assert_equal_means(mass, simulated_mass(**case, generator=generator))


@pytest.mark.parametrize("how", SIMPLEX_MAPS)
def test_label_paths_stay_on_the_simplex_and_end_one_hot(how, generator):
    y = torch.randint(7, (40,), generator=generator)
    partners = torch.arange(40).roll(3)
    paths = sample_paths(
        torch.randn(40, 2, generator=generator),
        y,
        target_space="simplex",
        num_classes=7,
        sampling="path",
        n_times=6,
        sigma=0.5,
        sigma_y=0.5,
        simplex=how,
        partners=partners,
        generator=generator,
    )
    assert torch.equal(paths.y[:, 0, 0], F.one_hot(y, 7).float())
    assert torch.equal(paths.y[:, 0, -1], F.one_hot(y[partners], 7).float())
    assert (paths.y >= 0).all()
    assert torch.allclose(paths.y.sum(-1), torch.ones(40, 1, 6), atol=1e-6)
    assert (paths.free_y < 0).any()  # the projection had something to do


@pytest.mark.parametrize("how", SIMPLEX_MAPS)
@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_dense_label_paths_stay_on_the_simplex(how, sampling, generator):
    paths = sample_paths(
        torch.randn(4, 1, 3, 2, generator=generator),
        torch.randint(5, (4, 3, 2), generator=generator),
        target_space="simplex",
        num_classes=5,
        sampling=sampling,
        n_times=3,
        n_bridges=2,
        sigma=0.3,
        simplex=how,
        generator=generator,
    )
    assert paths.y.shape == (4, 2, 3 if sampling == "path" else 1, 5, 3, 2)
    assert torch.allclose(paths.y.sum(3), torch.ones(()), atol=1e-5)


@pytest.mark.parametrize("how", SIMPLEX_MAPS)
@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_no_label_noise_is_exactly_linear(how, sampling, generator):
    """As in mixup: two classes share the mass, all others have exactly none."""
    y = torch.arange(10)
    partners = torch.arange(10).roll(1)
    paths = sample_paths(
        torch.randn(10, 2, generator=generator),
        y,
        target_space="simplex",
        num_classes=10,
        sampling=sampling,
        sigma=0.5,
        sigma_y=0.0,
        simplex=how,
        partners=partners,
        generator=generator,
    )
    s = paths.s[..., None]
    one_hot = F.one_hot(y, 10).float()
    expected = (1 - s) * one_hot[:, None, None] + s * one_hot[partners][:, None, None]
    assert torch.allclose(paths.y, expected, rtol=0, atol=1e-7)
    assert torch.equal(paths.y == 0, expected == 0)


@pytest.mark.parametrize("how", SIMPLEX_MAPS)
@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_no_label_noise_does_not_touch_soft_labels(how, sampling, generator):
    """Probabilities that sum to 1.005 (rounded by their maker) are interpolated as they are."""
    y = torch.rand(10, 4, generator=generator, dtype=torch.float64).softmax(1) * 1.005
    paths = sample_paths(
        torch.randn(10, 2, generator=generator, dtype=torch.float64),
        y,
        target_space="simplex",
        sampling=sampling,
        sigma=0.5,
        sigma_y=0.0,
        simplex=how,
        generator=generator,
    )
    assert torch.allclose(paths.y.sum(-1), torch.full((), 1.005, dtype=torch.float64), rtol=1e-12)


@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_unit_box_is_not_left(sampling, generator):
    y = torch.rand(200, 3, generator=generator).round()
    paths = sample_paths(
        torch.randn(200, 2, generator=generator),
        y,
        target_space="unit",
        sampling=sampling,
        sigma_y=0.5,
        generator=generator,
    )
    assert paths.y.min() == 0
    assert paths.y.max() == 1
    assert (paths.free_y.min() < 0) & (paths.free_y.max() > 1)
    assert torch.equal(paths.y, paths.free_y.clamp(0, 1))
    if sampling == "path":
        assert torch.equal(paths.y[:, 0, 0], y)


@pytest.mark.statistical
def test_real_targets_diffuse_with_their_own_sigma(generator):
    """Variance sigma_y**2 / 4 at mid-bridge, not sigma's; 8 % are seen."""
    n = 20_000
    y = torch.zeros(n, 1, dtype=torch.float64)
    paths = sample_paths(
        y,
        y,
        target_space="real",
        sampling="path",
        n_times=3,
        sigma=0.5,
        sigma_y=2.0,
        horizon=0.25,
        generator=generator,
    )
    assert_variance(paths.y[:, 0, 1], 0.25)
    assert_variance(paths.x[:, 0, 1], 0.5**2 * 0.25 / 4)
    with pytest.raises(AssertionError, match="variance ratio"):
        assert_variance(paths.y[:, 0, 1], 1.0)  # the horizon forgotten
    both = sample_paths(y, y, target_space="real", sampling="path", n_times=3, sigma=0.5, generator=generator)
    assert_variance(both.y[:, 0, 1], 0.5**2 / 4)  # by default the same number


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        ([3e38, 3e38, 0.0], {"abs": [0.5, 0.5, 0.0], "euclidean": [0.5, 0.5, 0.0]}),
        ([3e38, 1.0, 0.0], {"abs": [1.0, 0.0, 0.0], "euclidean": [1.0, 0.0, 0.0]}),
        ([3e38, -3e38, 1.0], {"abs": [0.5, 0.5, 0.0], "euclidean": [1.0, 0.0, 0.0]}),
        ([-3e38, -3e38, -3e38], {"abs": [1 / 3] * 3, "euclidean": [1 / 3] * 3}),
    ],
)
@pytest.mark.parametrize("how", ["abs", "euclidean"])
def test_numbers_whose_sum_overflows_go_to_the_simplex(how, y, expected):
    found = project_to_simplex(torch.tensor([y, [0.2, 0.3, 0.5]]), how)
    assert torch.allclose(found, torch.tensor([expected[how], [0.2, 0.3, 0.5]]))


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize("how", ["abs", "euclidean"])
@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (torch.tensor([float("nan"), 0.0, 1.0]), ValueError, "y must be finite"),
        (torch.tensor([float("inf"), 0.0, 1.0]), ValueError, "y must be finite"),
        (torch.tensor([1, 2]), TypeError, "y must be floating point"),
        (torch.tensor(1.0), ValueError, r"classes along its last axis, but has shape \(\)"),
        (torch.zeros(3, 0), ValueError, r"classes along its last axis, but has shape \(3, 0\)"),
        ([0.2, 0.8], TypeError, "y must be a torch.Tensor"),
    ],
)
def test_what_has_no_place_on_the_simplex(how, y, error, message):
    with pytest.raises(error, match=message):
        project_to_simplex(y, how)


def test_complex_targets_are_refused():
    with pytest.raises(TypeError, match="complex64"):
        encode_targets(torch.zeros(3, dtype=torch.complex64), "simplex", num_classes=2)
