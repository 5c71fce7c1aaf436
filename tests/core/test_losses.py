"""The user's loss with its reduction switched off, and the mean of it: equal to torch's own."""

import functools
import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import reference
from elliptica import Elliptic
from elliptica.core.formulations import DynkinSum
from elliptica.core.losses import PerSampleLoss

ROWS, CLASSES = 6, 4


@pytest.fixture
def logits(generator):
    return torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64)


@pytest.fixture
def labels(generator):
    return torch.randint(CLASSES, (ROWS,), generator=generator)


@pytest.fixture
def soft(generator):
    return torch.rand(ROWS, CLASSES, generator=generator, dtype=torch.float64).softmax(1)


@pytest.fixture
def class_weight(generator):
    return torch.rand(CLASSES, generator=generator, dtype=torch.float64) + 0.1


def row_by_row(loss, output, target):
    """The user's own loss on one row at a time."""
    return torch.stack([loss(o[None], t[None]) for o, t in zip(output, target, strict=True)])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_of_one_hot_equals_labels(smoothing, weighted, logits, labels, class_weight):
    """Labels turned into probabilities change nothing, with class weights and label smoothing."""
    weight = class_weight if weighted else None
    loss = PerSampleLoss(nn.CrossEntropyLoss(weight=weight, label_smoothing=smoothing))
    hard = F.cross_entropy(logits, labels, weight=weight, label_smoothing=smoothing, reduction="none")
    one_hot = F.one_hot(labels, CLASSES).double()
    assert torch.allclose(loss(logits, one_hot), hard, rtol=1e-12)


KINDS = ["labels", "one-hot", "soft", "dense labels", "dense one-hot"]


def weighted_case(kind, generator):
    """Inputs, targets, and a model whose output fits them, in float64."""
    place = (2,) if kind.startswith("dense") else ()
    x = torch.randn(ROWS, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (ROWS, *place), generator=generator)
    out = [nn.Linear(3, CLASSES * max(place, default=1)), nn.Unflatten(1, (CLASSES, *place))]
    model = nn.Sequential(*out).double()
    if kind == "soft":
        return x, torch.rand(ROWS, CLASSES, generator=generator, dtype=torch.float64).softmax(1), model
    return x, labels if "labels" in kind else F.one_hot(labels, CLASSES).movedim(-1, 1).double(), model


def weighted_objective(model, class_weight, smoothing=0.0, kind=Elliptic, **settings):
    loss = nn.CrossEntropyLoss(class_weight, label_smoothing=smoothing)
    return kind(model, loss, sigma=0.0, **settings), loss


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("kind", KINDS)
def test_class_weighted_objective_equals_torchs(kind, smoothing, generator, class_weight):
    """In eval mode, and on paths of two points, which are the data twice."""
    x, y, model = weighted_case(kind, generator)
    settings = {"sampling": "path", "n_times": 2, "n_bridges": 2}
    objective, loss = weighted_objective(model, class_weight, smoothing, **settings)
    expected = loss(model(x), y)
    torch.testing.assert_close(objective(x, y, generator=generator), expected, rtol=1e-12, atol=0)
    if kind in ("labels", "soft"):
        dynkin, _ = weighted_objective(model, class_weight, smoothing, DynkinSum)
        torch.testing.assert_close(dynkin(x, y), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(objective.eval()(x, y), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("quadrature", ["mean", "left"])
@pytest.mark.parametrize("kind", ["labels", "one-hot"])
def test_single_points_are_unbiased(kind, quadrature, weighted, generator, class_weight):
    """The mean over all choices of one time per path is the objective of the whole paths, exactly."""
    x, y, model = weighted_case(kind, generator)
    x, y = x[:3], y[:3]
    settings = {"n_times": 3, "quadrature": quadrature, "sigma_y": 0.3}
    path, _ = weighted_objective(model, class_weight, sampling="path", **settings)
    single, _ = weighted_objective(model, class_weight, **settings)
    weight = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64) if weighted else None
    paths = path.sample(x, y, sample_weight=weight, partners=torch.tensor([1, 2, 0]), generator=generator)
    chance = {"mean": [1 / 3] * 3, "left": [1 / 2, 1 / 2, 0]}[quadrature]
    total = 0.0
    for times in itertools.product(range(3), repeat=3):

        def at(values, times=times):
            return torch.stack([values[i, :, t : t + 1] for i, t in enumerate(times)])

        names = ["x", "y", "s", "free_y"] + ["weight"] * weighted
        points = {name: at(getattr(paths, name)) for name in names}
        points = reference.with_points(paths, **points, time_weights=None)
        total += np.prod([chance[t] for t in times]) * single.loss_on(points).item()
    assert total == pytest.approx(path.loss_on(paths).item(), rel=1e-12)


@pytest.mark.parametrize("kind", ["labels", "soft"])
def test_means_over_processes_of_different_sizes(kind, generator, class_weight):
    """The mean of the processes' results is the result of the joined batch."""
    x, y, model = weighted_case(kind, generator)
    objective, _ = weighted_objective(model, class_weight, sampling="path", n_times=3, n_bridges=2)
    paths = objective.sample(x, y, generator=generator)
    whole, sent = objective.loss_on(paths), []

    def part(rows):
        names = ["x", "y", "s", "free_y"] + ["labels"] * (paths.labels is not None)
        return reference.with_points(paths, **{name: getattr(paths, name)[rows] for name in names})

    def collect(own):
        sent.append(own)
        return own[None]

    for gather in (collect, lambda own: torch.stack(sent)):  # first what each sends, then the answer to all
        objective.gather_ranks = gather
        found = [objective.loss_on(part(rows)) for rows in (slice(0, 4), slice(4, 6))]
    torch.testing.assert_close(torch.stack(found).mean(), whole, rtol=1e-12, atol=0)


MODULES = [nn.MSELoss(), nn.L1Loss(), nn.SmoothL1Loss(), nn.HuberLoss(), nn.BCEWithLogitsLoss()]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_modules_equal_themselves_on_one_row(module, shape, generator):
    output = torch.randn(ROWS, *shape, generator=generator, dtype=torch.float64)
    target = torch.rand(ROWS, *shape, generator=generator, dtype=torch.float64)
    losses = PerSampleLoss(module)(output, target)
    assert losses.shape == (ROWS,)
    assert torch.allclose(losses, row_by_row(module, output, target), rtol=1e-12)
    assert torch.allclose(losses.mean(), module(output, target), rtol=1e-12)


@pytest.mark.parametrize("reduction", ["batchmean", "mean"])
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
def test_kl_divergence_keeps_its_scale(reduction, logits, soft):
    """ "batchmean" sums over classes, "mean" averages over them, as torch has it."""
    own = nn.KLDivLoss(reduction=reduction)
    losses = PerSampleLoss(own)(logits.log_softmax(1), soft)
    assert torch.allclose(losses.mean(), own(logits.log_softmax(1), soft), rtol=1e-12)
    if reduction == "batchmean":
        by_hand = (soft * (soft.log() - logits.log_softmax(1))).sum(1)
        assert torch.allclose(losses, by_hand, rtol=1e-12)


@pytest.mark.parametrize(
    "function", [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits]
)
def test_functions_lose_their_reduction(function, logits, soft):
    expected = function(logits, soft, reduction="none").mean(1)
    assert torch.allclose(PerSampleLoss(function)(logits, soft), expected, rtol=1e-12)
    partial = functools.partial(function, reduction="none")
    assert torch.allclose(PerSampleLoss(partial)(logits, soft), expected, rtol=1e-12)


def test_custom_callables(logits, soft):
    per_row = PerSampleLoss(lambda output, target: (output - target).abs().sum(1))
    assert torch.allclose(per_row(logits, soft), (logits - soft).abs().sum(1))
    per_entry = PerSampleLoss(lambda output, target: (output - target).abs())
    assert torch.allclose(per_entry(logits, soft), (logits - soft).abs().mean(1))

    class Own(nn.Module):
        def forward(self, output, target):
            return (output["a"] - target).square().mean(1)

    assert PerSampleLoss(Own())({"a": logits}, soft).shape == (ROWS,)


def test_moving_the_objective_does_not_move_the_users_loss():
    """The copy must not share its table of buffers with the original."""
    own = nn.CrossEntropyLoss(weight=torch.ones(3))
    objective = Elliptic(nn.Linear(2, 3), own, num_classes=3).double()
    assert objective.loss.loss_fn.weight.dtype == torch.float64
    assert own.weight.dtype == torch.float32


def test_a_compiled_loss_stays_as_it_is(logits, soft):
    compiled = torch.compile(nn.MSELoss(), backend="eager")
    loss = PerSampleLoss(compiled)
    assert compiled.reduction == "mean"
    assert torch.allclose(loss(logits, soft), (logits - soft).square().mean(1), rtol=1e-12)
