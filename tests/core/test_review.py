"""Mistakes that a first user and a first critic found; each stays found."""

import warnings

import pytest
import torch
from scipy.spatial.distance import cdist
from torch import nn
from torch.nn import functional as F

from elliptica import Elliptic, EllipticWarning, PartnerTable, elliptic_loss, sample_bridge, sample_partners
from elliptica.core.bridge import stratified_times
from elliptica.core.targets import project_to_simplex

CPU = torch.device("cpu")


def test_neighbours_in_tight_clusters_far_apart(generator):
    """Two clusters at +-100 with spread 0.01: float32 matrix distances find wrong neighbours there."""
    x = 0.01 * torch.randn(100, 5, generator=generator)
    x += 100.0 * torch.sign(torch.arange(100) - 49.5)[:, None]
    exact = torch.as_tensor(cdist(x.double().numpy(), x.double().numpy())).fill_diagonal_(torch.inf)
    assert torch.equal(sample_partners(x, pairing="nearest")[:, 0], exact.argmin(1))
    assert torch.equal(PartnerTable(x, power=float("inf")).sample(torch.arange(100))[:, 0], exact.argmin(1))
    rows = x - x.mean(0)
    wrong = torch.cdist(rows, rows).fill_diagonal_(torch.inf).argmin(1)
    assert (wrong != exact.argmin(1)).float().mean() > 0.3, "the naive form would have passed as well"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_draws_do_not_depend_on_the_default_dtype(dtype, generator):
    state = generator.get_state()
    expected = stratified_times(64, 1, device=CPU, generator=generator)
    torch.set_default_dtype(dtype)
    try:
        got = stratified_times(64, 1, device=CPU, generator=generator.set_state(state))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("quadrature", ["mean", "left", "trapezoid"])
def test_gradient_softmax_keeps_the_scale_of_the_loss(quadrature, generator):
    """A constant loss stays what it is, whatever the weights: their weighted mean is one."""

    class Cubic(nn.Module):
        def forward(self, x):
            return x**3

    def flat(output, target):
        return 1.0 + 0.0 * target[:, 0] + (output - output.detach())[:, 0]

    x = torch.randn(8, 1, generator=generator, dtype=torch.float64)
    objective = Elliptic(
        Cubic(), flat, target_space="real", sampling="path", n_times=3, quadrature=quadrature,
        weighting="gradient_softmax", sigma=0.5,
    )  # fmt: skip
    assert objective(x, x, generator=generator).item() == pytest.approx(1.0, abs=1e-12)


def test_frozen_stays_frozen_when_bridges_are_off(generator):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    objective = Elliptic(model, nn.MSELoss(), bn="frozen", schedule=lambda epoch: None)
    objective.set_epoch(0)
    objective(torch.randn(8, 3, generator=generator), torch.zeros(8, 1))
    assert model[1].num_batches_tracked == 0


def test_path_weightings_refuse_single_points(generator):
    model, x, y = nn.Linear(3, 1), torch.randn(6, 3, generator=generator), torch.zeros(6, 1)
    points = Elliptic(model, nn.MSELoss()).sample(x, y, generator=generator)
    weighted = Elliptic(model, nn.MSELoss(), sampling="path", n_bridges=2, weighting="multiplicative")
    with pytest.raises(ValueError, match="whole paths"):
        weighted(x, y, paths=points)


@pytest.mark.parametrize("value", [-0.0, 3e38, -3e38])
def test_ends_are_copies_to_the_last_bit(value, generator):
    a, b = torch.full((2, 3), value), torch.full((2, 3), -value)
    paths = sample_bridge(a, b, sigma=0.5, generator=generator)
    for point, end in ((paths[:, 0, 0], a), (paths[:, 0, -1], b)):
        assert torch.equal(point.contiguous().view(torch.int32), end.view(torch.int32))


@pytest.mark.parametrize("sigma", ["green", "auto"])
def test_the_public_sampler_knows_named_scales(sigma, generator):
    a, b = torch.randn(2, 50, 4, generator=generator)
    paths = sample_bridge(a, b, sigma=sigma, n_times=3, generator=generator)
    assert (paths[:, 0, 1] - (a + b) / 2).std() > 0.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_targets_stay_on_the_simplex(dtype, generator):
    y = F.one_hot(torch.tensor([3, 5]), 1000) + 0.05 * torch.randn(2, 1000, generator=generator)
    for how in ("abs", "euclidean"):
        sums = project_to_simplex(y.to(dtype), how=how).float().sum(1)
        assert (sums - 1).abs().max() < 2e-2


def test_targets_of_given_ends_are_checked():
    model, x = nn.Linear(3, 2), torch.zeros(4, 3)
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=2)
    with pytest.raises(ValueError, match="sum to 1"):
        objective(x, torch.zeros(4, dtype=torch.long), end=(x, torch.full((4, 2), -3.0)))
    with pytest.raises(TypeError, match="Convert it with"):
        objective(x, torch.zeros(4, dtype=torch.long), end=(x.double(), torch.zeros(4, dtype=torch.long)))


def test_many_classes_are_announced():
    with pytest.warns(EllipticWarning, match="sigma_y=0"):
        Elliptic(nn.Linear(3, 100), nn.CrossEntropyLoss(), num_classes=100, sigma_y=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fine in ({"sigma": 0.05}, {"simplex": "euclidean", "sigma_y": 0.05}, {"sigma": "auto"}):
            Elliptic(nn.Linear(3, 100), nn.CrossEntropyLoss(), num_classes=100, **fine)


def test_chunks_never_leave_a_single_row(generator):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    objective = Elliptic(model, nn.MSELoss(), chunk_size=31)
    objective(torch.randn(32, 3, generator=generator), torch.zeros(32, 1)).backward()


X, LABELS = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Elliptic(nn.CrossEntropyLoss(), nn.Linear(3, 3)), TypeError, "order is Elliptic"),
        (lambda: Elliptic(nn.Linear(3, 3), nn.CrossEntropyLoss), TypeError, "must be an instance"),
        (
            lambda: Elliptic(nn.Linear(3, 3), nn.CrossEntropyLoss(ignore_index=2)),
            ValueError,
            "Drop those rows",
        ),
        (lambda: classify(num_classes=4)(X, LABELS), ValueError, "3 against 4 classes"),
        (lambda: classify()(X, LABELS[:, None]), ValueError, r"y.squeeze\(1\)"),
        (lambda: classify()(X, F.one_hot(LABELS, 3)), ValueError, r"y.float\(\) for one-hot"),
        (lambda: classify(num_classes="3"), TypeError, "num_classes must be an integer"),
        (lambda: classify(chunk_size=8.5), TypeError, "chunk_size must be an integer"),
        (lambda: classify(schedule=3), TypeError, "function of the epoch"),
        (lambda: off_schedule(-1.0), ValueError, "at least 0"),
        (lambda: off_schedule(True), TypeError, "must be a number"),
        (lambda: classify(bridged="image")(X, LABELS), TypeError, "tuple of names"),
        (lambda: Elliptic(nn.Linear(3, 3), nn.MSELoss())(X, X[:, :1]), ValueError, "same shape"),
        (
            lambda: Elliptic(nn.Linear(3, 1), nn.MSELoss(), among="same_class")(X, X[:, :1]),
            ValueError,
            "needs one class per row",
        ),
        (
            lambda: elliptic_loss(nn.Linear(3, 1), nn.MSELoss(), X, X[:, :1], schedule=lambda e: 1.0),
            ValueError,
            "does not know the epoch",
        ),
    ],
)
def test_mistakes_are_told_apart(call, error, words):
    with pytest.raises(error, match=words):
        call()


def classify(**settings):
    return Elliptic(nn.Linear(3, 3), nn.CrossEntropyLoss(), **{"num_classes": 3, **settings})


def off_schedule(factor):
    objective = classify(schedule=lambda epoch: factor)
    objective.set_epoch(0)
    return objective(X, LABELS)
