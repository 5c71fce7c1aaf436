"""Targets: the maps to the simplex against slow references, encodings, and what bridges do to labels."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from elliptica import project_to_simplex, sample_paths
from elliptica.core.targets import Targets, infer_target_space

HYPOTHESIS = settings(max_examples=100, deadline=None, database=None)
SIMPLEX_MAPS = ("abs", "euclidean")


def vectors(low=-3.0, high=3.0):
    return st.lists(st.floats(low, high, allow_subnormal=False), min_size=1, max_size=12)


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


@pytest.mark.parametrize("how", SIMPLEX_MAPS)
@HYPOTHESIS
@given(values=vectors(-1e6, 1e6), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_results_lie_on_the_simplex(how, values, dtype):
    p = project_to_simplex(torch.tensor(values, dtype=dtype), how)
    assert p.dtype == dtype
    assert (p >= 0).all()
    assert float(p.sum()) == pytest.approx(1.0, abs=4 * len(values) * torch.finfo(dtype).eps)


@pytest.mark.parametrize("how", SIMPLEX_MAPS)
def test_one_hot_stays_bit_for_bit(how):
    eye = torch.eye(10)
    assert torch.equal(project_to_simplex(eye, how), eye)


def test_the_space_decides_the_map(generator):
    y = torch.randn(3, 4, 5, 2, generator=generator)
    for how in SIMPLEX_MAPS:
        along = Targets("simplex", simplex=how).project(y, class_axis=2)
        torch.testing.assert_close(along.movedim(2, -1), project_to_simplex(y.movedim(2, -1), how))
        torch.testing.assert_close(along[1, 2, :, 1], project_to_simplex(y[1, 2, :, 1], how))
    assert torch.equal(Targets("unit").project(y, class_axis=2), y.clamp(0, 1))
    assert Targets("real").project(y, class_axis=2) is y


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_labels_become_one_hot(dtype):
    y = torch.tensor([2, 0, 1], dtype=dtype)
    encoded = Targets("simplex", 4).encode(y, torch.float64)
    assert encoded.dtype == torch.float64
    assert torch.equal(encoded, F.one_hot(y.long(), 4).double())


def test_dense_labels_keep_their_places(generator):
    """(batch, H, W) becomes (batch, classes, H, W), as the cross-entropy expects."""
    y = torch.randint(5, (2, 3, 4), generator=generator)
    encoded = Targets("simplex", 5).encode(y)
    assert torch.equal(encoded, F.one_hot(y, 5).permute(0, 3, 1, 2).float())
    logits = torch.randn(2, 5, 3, 4, generator=generator)
    assert torch.allclose(F.cross_entropy(logits, encoded), F.cross_entropy(logits, y))


SPACES = {
    "simplex": (nn.CrossEntropyLoss(), nn.KLDivLoss(), F.cross_entropy),
    "unit": (nn.BCEWithLogitsLoss(), nn.BCELoss(), nn.MultiLabelSoftMarginLoss(), F.binary_cross_entropy),
    "real": (nn.MSELoss(), nn.L1Loss(), nn.SmoothL1Loss(), nn.HuberLoss(), nn.PoissonNLLLoss(), F.mse_loss),
}


@pytest.mark.parametrize("space", SPACES)
def test_the_space_of_torchs_losses(space):
    for loss in SPACES[space]:
        assert infer_target_space(loss) == infer_target_space(loss, num_classes=3) == space
        if not isinstance(loss, nn.Module):
            assert infer_target_space(functools.partial(loss, reduction="none")) == space

    class Own(nn.CrossEntropyLoss):
        pass

    assert infer_target_space(Own()) == "simplex"


@pytest.mark.parametrize("loss", [lambda output, target: output[:, 0], nn.CosineEmbeddingLoss()])
def test_unknown_losses_ask_for_the_space(loss):
    assert infer_target_space(loss, num_classes=3) == "simplex"  # classes
    with pytest.raises(ValueError, match="target_space"):
        infer_target_space(loss)


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
    """The table of methods.md 2.5; the other map, and for many classes 5 % more sigma, are seen."""
    label = torch.zeros(10_000, dtype=torch.long)
    settings = {"target_space": "simplex", "num_classes": classes, "sampling": "path", "n_times": 3}
    printed = {"abs": abs_mass, "euclidean": euclidean_mass}

    def is_near(sigma, how, printed):
        noise = {"sigma_y": sigma, "simplex": how, "generator": generator}
        mass = sample_paths(torch.zeros(10_000, 1), label, **settings, **noise).y[:, 0, 1, 0].double()
        return abs(float(mass.mean()) - printed) < 0.0051 + 5 * float(mass.std()) / 100

    assert is_near(sigma, how, printed.pop(how))
    assert not is_near(sigma, how, *printed.values())
    if classes >= 100 and how == "abs":
        assert not is_near(1.05 * sigma, how, abs_mass)


@pytest.mark.parametrize("sampling", ["path", "marginal"])
@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("kind", [*SIMPLEX_MAPS, "unit", "dense"])
def test_targets_along_bridges_stay_in_their_space(kind, noise, sampling, generator):
    """Ends are the labels to the bit; without noise targets are linear, and other classes have nothing."""
    x, partners = torch.randn(40, 2, generator=generator), torch.arange(40).roll(3)
    y = torch.randint(7, (40, 2) if kind == "dense" else (40,), generator=generator)
    encoded = F.one_hot(y, 7).float().movedim(-1, 1)
    how = {"num_classes": 7, "simplex": kind if kind == "euclidean" else "abs", "target_space": "simplex"}
    if kind == "unit":
        how, y = {"target_space": "unit"}, encoded.bool()
    paths = sample_paths(
        x, y, **how, sampling=sampling, sigma_y=noise, n_bridges=2, partners=partners, generator=generator
    )
    s = paths.s.view(*paths.s.shape, *[1] * (encoded.ndim - 1))
    line = (1 - s) * encoded[:, None, None] + s * encoded[partners][:, None, None]
    assert ((paths.y >= 0) & (paths.y <= 1)).all()
    if kind != "unit":
        torch.testing.assert_close(paths.y.sum(3), torch.ones_like(paths.y.sum(3)))
    if noise == 0:
        torch.testing.assert_close(paths.y, line)
        assert torch.equal(paths.y == 0, line == 0)
    else:
        assert (paths.free_y < 0).any()  # the projection had something to do
        ends = (s == 0) | (s == 1)
        assert torch.equal(paths.y[ends.expand_as(line)], line[ends.expand_as(line)])
