"""The user's loss with its reduction switched off: equal to torch's own, row by row."""

import copy
import dataclasses
import functools
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from elliptica import Elliptic
from elliptica.core.formulations import DynkinSum
from elliptica.core.losses import PerSampleLoss, weighted_mean
from elliptica.distributed.ranks import Ranks, shard
from laws import assert_mean

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


def test_cross_entropy_by_hand(logits, soft, class_weight):
    """minus sum over classes of weight, probability and log-probability."""
    loss = PerSampleLoss(nn.CrossEntropyLoss(weight=class_weight))
    expected = -(class_weight * soft * logits.log_softmax(1)).sum(1)
    assert torch.allclose(loss(logits, soft), expected, rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_class_weighted_mean_is_torchs(weighted, logits, labels, class_weight):
    """On labels the mean equals what the user's own loss gives, weights and all."""
    own = nn.CrossEntropyLoss(weight=class_weight if weighted else None)
    loss = PerSampleLoss(own)
    one_hot = F.one_hot(labels, CLASSES).double()
    rows = loss.class_weight(one_hot) if loss.weights_classes else None
    mean = weighted_mean(loss(logits, one_hot), None, rows)
    assert torch.allclose(mean, own(logits, labels), rtol=1e-12)
    if weighted:
        assert torch.allclose(loss.class_weight(one_hot), class_weight[labels])
        assert loss.num_classes() == CLASSES
        assert not torch.allclose(loss(logits, one_hot).mean(), own(logits, labels), rtol=1e-3)
    else:
        assert not loss.weights_classes
        assert loss.num_classes() is None


def test_class_weight_of_dense_targets(generator, class_weight):
    labels = torch.randint(CLASSES, (ROWS, 3, 2), generator=generator)
    logits = torch.randn(ROWS, CLASSES, 3, 2, generator=generator, dtype=torch.float64)
    one_hot = F.one_hot(labels, CLASSES).permute(0, 3, 1, 2).double()
    own = nn.CrossEntropyLoss(weight=class_weight)
    loss = PerSampleLoss(own)
    assert torch.allclose(loss.class_weight(one_hot), class_weight[labels].flatten(1).mean(1))
    rows = loss.class_weight(one_hot) if loss.weights_classes else None
    mean = weighted_mean(loss(logits, one_hot), None, rows)
    assert torch.allclose(mean, own(logits, labels), rtol=1e-12)


# ------------------------------------------------------------------------ class weights in the objective

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
    settings = {"sampling": "path", "n_times": 2, "quadrature": "trapezoid", "n_bridges": 2}
    objective, loss = weighted_objective(model, class_weight, smoothing, **settings)
    expected = loss(model(x), y)
    torch.testing.assert_close(objective(x, y, generator=generator), expected, rtol=1e-12, atol=0)
    chunked, _ = weighted_objective(model, class_weight, smoothing, **settings, chunk_size=4)
    torch.testing.assert_close(chunked(x, y, generator=generator), expected, rtol=1e-12, atol=0)
    if kind in ("labels", "soft"):
        dynkin, _ = weighted_objective(model, class_weight, smoothing, DynkinSum)
        torch.testing.assert_close(dynkin(x, y), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(objective.eval()(x, y), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("quadrature", ["mean", "left", "trapezoid"])
@pytest.mark.parametrize("kind", ["labels", "one-hot"])
def test_single_points_are_unbiased_with_class_weights(kind, quadrature, weighted, generator, class_weight):
    """The mean over all choices of one time per path is the objective of the whole paths, exactly."""
    x, y, model = weighted_case(kind, generator)
    x, y = x[:3], y[:3]
    objective, _ = weighted_objective(
        model, class_weight, sampling="path", n_times=3, quadrature=quadrature, sigma_y=0.3
    )
    weight = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64) if weighted else None
    paths = objective.sample(
        x, y, sample_weight=weight, partners=torch.tensor([1, 2, 0]), generator=generator
    )
    chance = {"mean": [1 / 3] * 3, "left": [1 / 2, 1 / 2, 0], "trapezoid": [1 / 4, 1 / 2, 1 / 4]}[quadrature]
    total = 0.0
    for times in itertools.product(range(3), repeat=3):

        def at(values, times=times):
            return torch.stack([values[i, :, t : t + 1] for i, t in enumerate(times)])

        names = ["x", "y", "s", "free_y"] + ["weight"] * weighted
        points = dataclasses.replace(paths, **{name: at(getattr(paths, name)) for name in names})
        total += np.prod([chance[t] for t in times]) * objective(x, y, paths=points).item()
    assert total == pytest.approx(objective(x, y, paths=paths).item(), rel=1e-12)


@pytest.mark.statistical
def test_marginal_draws_are_unbiased_with_class_weights(generator):
    """As training draws them; dividing each draw by its own points' weights is 8 standard errors away."""
    x, y, model = weighted_case("labels", generator)
    with torch.no_grad():  # the class of the largest weight has the largest loss, whatever the seed
        model[0].weight.zero_()
        model[0].bias.copy_(torch.tensor([-2.0, 1.0, 0.0, 0.0]))
    class_weight = torch.tensor([8.0, 0.5, 1.0, 2.0], dtype=torch.float64)
    y, partner = torch.tensor([0, 0, 1, 2, 3, 1]), torch.tensor([2, 3, 4, 1, 0, 5])
    marginal, loss = weighted_objective(model, class_weight, validate=False)
    path, _ = weighted_objective(model, class_weight, sampling="path")
    expected = path(x, y, partners=partner).item()
    draws, own = [], []
    with torch.no_grad():
        for _ in range(1500):
            paths = marginal.sample(x, y, partners=partner, generator=generator)
            draws.append(marginal(x, y, paths=paths).item())
            mixed = paths.y[:, 0, 0]
            own.append(
                (loss(model(paths.x[:, 0, 0]), mixed) / marginal.loss.class_weight(mixed).mean()).item()
            )
    assert_mean(np.array(draws), expected, np.std(draws, ddof=1))
    with pytest.raises(AssertionError, match="standard errors"):
        assert_mean(np.array(own), expected, np.std(own, ddof=1))


@pytest.mark.parametrize("kind", ["labels", "soft"])
def test_class_weights_over_processes_of_different_sizes(kind, generator, class_weight):
    """The mean of the processes' results is the result of the joined batch."""
    x, y, model = weighted_case(kind, generator)
    x, y = x[:5], y[:5]
    objective, _ = weighted_objective(model, class_weight, sampling="path", n_times=3, n_bridges=2)
    paths = objective.sample(x, y, generator=generator)
    whole, sent = objective(x, y, paths=paths), []

    def collect(own):
        sent.append(own)
        return own[None]

    for across in (collect, lambda own: torch.stack(sent)):  # first what each sends, then the answer to all
        objective.across = across
        shares = [shard((x, y, paths), Ranks(rank, 2)) for rank in (0, 1)]
        found = [objective(*share[:2], paths=share[2]) for share in shares]
    assert [len(share[0]) for share in shares] != [len(shares[0][0])] * 2
    torch.testing.assert_close(torch.stack(found).mean(), whole, rtol=1e-12, atol=0)


def test_dense_cross_entropy_averages_over_places(generator):
    labels = torch.randint(CLASSES, (ROWS, 3, 2), generator=generator)
    logits = torch.randn(ROWS, CLASSES, 3, 2, generator=generator, dtype=torch.float64)
    one_hot = F.one_hot(labels, CLASSES).permute(0, 3, 1, 2).double()
    losses = PerSampleLoss(nn.CrossEntropyLoss())(logits, one_hot)
    assert torch.allclose(losses, row_by_row(nn.CrossEntropyLoss(), logits, labels), rtol=1e-12)


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


def test_cross_entropy_function(logits, soft):
    assert torch.allclose(
        PerSampleLoss(F.cross_entropy)(logits, soft), F.cross_entropy(logits, soft, reduction="none")
    )


def test_custom_callables(logits, soft):
    per_row = PerSampleLoss(lambda output, target: (output - target).abs().sum(1))
    assert torch.allclose(per_row(logits, soft), (logits - soft).abs().sum(1))
    per_entry = PerSampleLoss(lambda output, target: (output - target).abs())
    assert torch.allclose(per_entry(logits, soft), (logits - soft).abs().mean(1))

    class Own(nn.Module):
        def forward(self, output, target):
            return (output["a"] - target).square().mean(1)

    assert PerSampleLoss(Own())({"a": logits}, soft).shape == (ROWS,)


# ----------------------------------------------------------------------------------- what is refused


def scalar(output, target):
    return (output - target).square().mean()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (scalar, r"shape \(6,\), but returned a scalar.*reduction is switched off.*reduction=\"none\""),
        (functools.partial(F.mse_loss, reduction="mean"), r"returned a scalar"),
        (lambda output, target: output[:3, 0], r"but returned shape \(3,\)"),
        (lambda output, target: 1.0, r"but returned float"),
        (lambda output, target: (output, target), r"but returned tuple"),
    ],
)
def test_losses_that_reduce_are_refused(loss, message, logits, soft):
    with pytest.raises(ValueError, match=r"loss_fn must return one value per sample.*" + message):
        PerSampleLoss(loss)(logits, soft)


@pytest.mark.parametrize("loss", [nn.MSELoss(reduction="sum"), nn.CrossEntropyLoss(reduction="sum")])
def test_sums_are_refused(loss):
    with pytest.raises(ValueError, match=r"loss_fn has reduction='sum'.*Use \"mean\""):
        PerSampleLoss(loss)


@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize("loss", [nn.NLLLoss(), nn.MultiMarginLoss(), F.nll_loss])
def test_losses_of_labels_alone_are_refused(loss):
    """They cannot take the probabilities that labels become; the remedy is a loss with the same value."""
    with pytest.raises(TypeError, match=r"accepts labels only.*CrossEntropyLoss\(\)"):
        PerSampleLoss(loss)
    log_p = torch.randn(5, 3).log_softmax(1)
    y = torch.tensor([0, 1, 2, 0, 1])
    assert torch.allclose(F.cross_entropy(log_p, y), F.nll_loss(log_p, y))


@pytest.mark.usefixtures("own_checks")
def test_loss_must_be_callable():
    with pytest.raises(TypeError, match=r"loss_fn must be callable, but got str.*CrossEntropyLoss\(\)"):
        PerSampleLoss("mse")


@pytest.mark.parametrize("loss", [nn.MSELoss(), F.l1_loss, lambda o, t: (o - t).square()])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_broadcast_trap_is_refused(loss, rows):
    """(n, 1) against (n,) compares every row with every other: a classic that trains to the mean."""
    for output, target in (
        (torch.randn(rows, 1), torch.randn(rows)),
        (torch.randn(rows), torch.randn(rows, 1)),
    ):
        with pytest.raises(ValueError, match=r"every row with every other.*y\.unsqueeze\(1\)"):
            PerSampleLoss(loss)(output, target)


def test_square_outputs_are_no_trap():
    """As many outputs as rows is a coincidence, not a broadcast."""
    losses = PerSampleLoss(nn.MSELoss())(torch.zeros(4, 4), torch.ones(4, 4))
    assert torch.equal(losses, torch.ones(4))


# ------------------------------------------------------------------------------ the original is left alone


def test_original_loss_is_unchanged(class_weight):
    own = nn.CrossEntropyLoss(weight=class_weight, label_smoothing=0.1)
    before = copy.deepcopy(own)
    loss = PerSampleLoss(own)
    assert own.reduction == "mean"
    assert loss.loss_fn is not own
    assert loss.loss_fn.reduction == "none"
    assert loss.loss_fn.label_smoothing == 0.1
    assert torch.equal(own.weight, before.weight)


def test_moving_the_objective_does_not_move_the_users_loss():
    """The copy must not share its table of buffers with the original."""
    own = nn.CrossEntropyLoss(weight=torch.ones(3))
    objective = Elliptic(nn.Linear(2, 3), own, num_classes=3).double()
    assert objective.loss.loss_fn.weight.dtype == torch.float64
    assert own.weight.dtype == torch.float32


def test_loss_survives_pickling_and_copying(logits, soft):
    for loss in (PerSampleLoss(nn.CrossEntropyLoss()), PerSampleLoss(F.mse_loss)):
        again = pickle.loads(pickle.dumps(loss))
        assert torch.equal(again(logits, soft), loss(logits, soft))
        assert torch.equal(copy.deepcopy(loss)(logits, soft), loss(logits, soft))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_means_over_processes_count_rows_exactly(dtype, generator):
    """Two processes with the same 301 rows, a number that bfloat16 does not have."""
    losses = torch.rand(301, generator=generator).to(dtype)
    weight = torch.randint(1, 4, (301,), generator=generator).to(dtype)
    weight[0] += 1 - weight.double().sum() % 2  # odd, and above 257

    sent = []

    def twice(own):
        sent.append(own)
        return torch.stack([own, own])

    assert torch.equal(weighted_mean(losses, None, None, across=twice), losses.mean())
    found = weighted_mean(losses, None, weight, across=twice)
    expected = losses.double().mean() / weight.double().mean()
    assert float(found) == pytest.approx(float(expected), rel=2 * torch.finfo(dtype).eps)
    assert sent[0].tolist() == [301]
    assert sent[1].tolist() == [301, 301, weight.double().sum()]  # a sum in bfloat16 would be rounded


def scalar_output(value):
    return value.mean()


@pytest.mark.parametrize(
    "loss_fn",
    [F.mse_loss, functools.partial(F.l1_loss, reduction="none"), F.binary_cross_entropy_with_logits],
)
@pytest.mark.parametrize("change", [scalar_output, lambda value: value[:1], lambda value: value[:, 0]])
def test_functions_refuse_to_broadcast_as_modules_do(loss_fn, change):
    target = torch.rand(ROWS, 1)
    with pytest.raises(ValueError, match="would compare every row with every other or broadcast"):
        PerSampleLoss(loss_fn)(change(torch.randn(ROWS, 1)), target)


@pytest.mark.parametrize("loss_fn", [F.cross_entropy, functools.partial(F.cross_entropy, reduction="none")])
def test_functions_name_another_number_of_classes(loss_fn):
    with pytest.raises(ValueError, match="4 against 5 classes"):
        PerSampleLoss(loss_fn)(torch.zeros(ROWS, CLASSES), torch.full((ROWS, CLASSES + 1), 0.2))


def test_a_sparse_loss_is_refused():
    with pytest.raises(ValueError, match=r"layout torch.sparse_coo"):
        PerSampleLoss(lambda output, target: output.sum(1).to_sparse())(
            torch.ones(ROWS, 2), torch.ones(ROWS, 2)
        )


class _Focal(nn.CrossEntropyLoss):
    """A loss that is no mean over rows of itself."""

    def forward(self, output, target):
        """Lower the loss of rows that are easy."""
        loss = super().forward(output, target)
        return (1 - (-loss).exp()) ** 2 * loss


def test_a_subclass_of_a_known_loss_is_averaged_over_rows(logits, soft):
    expected = _Focal(reduction="none")(logits, soft).mean()
    loss = PerSampleLoss(_Focal())
    assert torch.allclose(loss.mean(logits, soft), expected, rtol=1e-12)
    assert torch.allclose(loss(logits, soft).mean(), expected, rtol=1e-12)
    assert not torch.allclose(_Focal()(logits, soft), expected, rtol=1e-3)


def test_a_compiled_loss_stays_as_it_is(logits, soft):
    compiled = torch.compile(nn.MSELoss(), backend="eager")
    loss = PerSampleLoss(compiled)
    assert compiled.reduction == "mean"
    assert torch.allclose(loss(logits, soft), (logits - soft).square().mean(1), rtol=1e-12)


def test_weights_of_positives_move_with_the_loss(logits, soft):
    own = nn.BCEWithLogitsLoss(pos_weight=torch.ones(CLASSES))
    moved = PerSampleLoss(own).to("meta")
    assert moved.mean(logits.float().to("meta"), soft.float().to("meta")).device.type == "meta"
    assert own.pos_weight.device.type == "cpu"


def test_a_mean_of_many_rows_in_half_precision_is_finite():
    logits = torch.zeros(100_000, 2, dtype=torch.float16)
    mean = PerSampleLoss(nn.CrossEntropyLoss()).mean(logits, torch.full_like(logits, 0.5))
    assert math.isclose(float(mean), math.log(2), rel_tol=1e-3)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (nn.GaussianNLLLoss(), "missing a required argument: 'var'"),
        (nn.TripletMarginLoss(), "missing a required argument: 'negative'"),
        (lambda output: output, "too many positional arguments"),
        (nn.MultiLabelMarginLoss(), "labels only"),
    ],
)
def test_a_loss_of_other_arguments_is_refused(loss_fn, message):
    with pytest.raises(TypeError, match=message):
        PerSampleLoss(loss_fn)


@pytest.mark.bad_input
def test_a_scripted_loss_must_not_be_reduced(logits, soft):
    with pytest.raises(TypeError, match="scripted"):
        PerSampleLoss(torch.jit.script(nn.MSELoss()))
    loss = PerSampleLoss(torch.jit.script(nn.MSELoss(reduction="none")))
    assert torch.allclose(loss(logits, soft), (logits - soft).square().mean(1), rtol=1e-12)
