"""The loss between and around the rows: cases with known answers, limits, and every task."""

import copy
import functools
import json
import math

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from elliptica import sample_partners
from elliptica._utils.statistics import clopper_pearson
from elliptica.diagnostics import bridge_probes, maximum_principle_report, subharmonicity_report
from elliptica.diagnostics.diagnose import diagnose
from elliptica.diagnostics.findings import Quantity, median_rank
from elliptica.diagnostics.fitted_model import FittedModel
from elliptica.diagnostics.landscape_findings import (
    judge_between,
    judge_curvature,
    judge_noise,
    judge_profile,
    judge_slope,
    pair_names,
)
from elliptica.diagnostics.probes import draw_bridges
from elliptica.landscape.loss import LossField, constant_loss, excess_cross_entropy, excess_loss, least_loss

CENTRES = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])


def fitted_of(model, loss_fn, x, y, *, generator, n=200, sigma=0.0, confidence=0.95, **settings):
    fitted = FittedModel(model, loss_fn, x, y, batch_size=64, **settings)
    return fitted.sample(n, sigma=sigma, confidence=confidence, generator=generator)


class Function(nn.Module):
    """A plain function as a model."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def barycentric(x):
    """Logits of nearly the label mixture that a bridge between three corners has; worst at the corners."""
    p = torch.stack([1 - x.sum(1) / 10, x[:, 0] / 10, x[:, 1] / 10], 1)
    return (0.97 * p.clamp_min(0) + 0.01).log()


def spiked(x):
    """The same, but sure of class 2 half-way between 0 and 1."""
    near = (x - torch.tensor([5.0, 0.0])).norm(dim=1) < 3
    return barycentric(x) + near[:, None] * torch.tensor([0.0, 0.0, 20.0])


def corners(n=90):
    y = torch.arange(n) % 3
    return CENTRES[y] + 0.01 * torch.randn(n, 2, generator=torch.Generator().manual_seed(0)), y


# ---- known answers


def test_linear_model_with_squared_error_in_closed_form(generator):
    """On a chord the residual is linear, so the loss lies s(1-s)(r_a - r_b)^2 below the line."""
    x, y = torch.randn(60, 4, generator=generator).double(), torch.randn(60, 1, generator=generator).double()
    model = nn.Linear(4, 1).double()
    fitted = fitted_of(model, nn.MSELoss(), x, y, generator=generator)
    residual = (model(x) - y).detach().flatten()
    b = fitted.bridges
    rise = -b.s * (1 - b.s) * (residual[b.start] - residual[b.end]) ** 2
    found = judge_profile(fitted)
    assert found.numbers["rise along the bridge"].value == pytest.approx(float(rise.mean()), rel=1e-9)
    assert found.severity == "info"
    share = judge_between(fitted).numbers["share above"]
    assert (share.value, share.lower) == (0, 0)
    assert share.upper == pytest.approx(1 - 0.025 ** (1 / share.n))
    slope = judge_slope(fitted).numbers["median slope at the data"].value
    gradient = 2 * residual[:, None] * model.weight.detach() * x.std(0)
    ordered = gradient.norm(dim=1).sort().values
    assert slope == pytest.approx(float(ordered[29:31].mean()), rel=1e-9)
    lap = judge_curvature(fitted).numbers["median Laplacian"].value
    assert lap == pytest.approx(2 * float(model.weight.detach().square().sum()), rel=0.1)


@pytest.mark.statistical
def test_noise_of_a_linear_model_in_closed_form(generator):
    """Squared error of a perfect linear fit under noise: sum of (w * 0.1 * deviation)^2."""
    x = torch.randn(4000, 3, generator=generator).double() * torch.tensor([1.0, 5.0, 0.2])
    model = nn.Linear(3, 1).double()
    found = judge_noise(fitted_of(model, nn.MSELoss(), x, model(x).detach(), n=4000, generator=generator))
    expected = float((0.1 * model.weight.detach() * x.std(0)).square().sum())
    quantity = found.numbers["rise under noise of 10%"]
    assert abs(quantity.value - expected) < 6 * quantity.stderr


def test_constant_loss_has_nothing_to_report(generator):
    model = nn.Linear(12, 1)
    nn.init.zeros_(model.weight)
    x = torch.randn(50, 12, generator=generator)
    found = diagnose(model, nn.MSELoss(), x, torch.zeros(50, 1), n=80)
    assert found["between"].numbers["share above"].value == 0
    assert found["slope"].numbers["largest slope between the data"].value == 0
    assert found["profile"].numbers["rise along the bridge"].value == pytest.approx(0, abs=1e-12)
    assert {f.severity for f in found.landscape} == {"info"}


def test_a_model_that_ignores_its_inputs_has_slope_zero():
    """Its output does not depend on x at all: there is no gradient to ask for."""
    x = torch.randn(40, 2)
    model = Function(lambda x: torch.ones(len(x), 1))
    found = diagnose(model, nn.MSELoss(), x, x[:, :1], n=40)
    assert found["slope"].computed
    assert found["slope"].numbers["largest slope at the data"].value == 0


def test_a_spike_between_two_clusters_is_named(generator):
    x, y = corners()
    good = diagnose(Function(barycentric), nn.CrossEntropyLoss(), x, y, n=400, sigma=0.01)
    bad = diagnose(Function(spiked), nn.CrossEntropyLoss(), x, y, n=400, sigma=0.01)
    assert good["between"].numbers["share above"].value == 0
    assert "Most between" not in good["between"].sentence
    assert bad["between"].severity == "info"  # nothing is wrong at any row
    assert bad.problems == good.problems == ()
    assert next(iter(bad["between"].breakdown)) == "between 0 and 1"
    assert "Most between class 0 and 1" in bad["between"].sentence
    first, *others = bad["between"].breakdown.values()
    assert all(q.upper < first.lower for q in others)
    groups = ["b" if label == 1 else "a" for label in y.tolist()]
    named = diagnose(Function(spiked), nn.CrossEntropyLoss(), x, y, groups=groups, n=400, sigma=0.01)
    assert "Most between group a and b" in named["between"].sentence


def test_a_pair_is_named_only_if_it_surely_stands_out():
    """Ten points of a pair with one above are no reason to name it."""
    x = torch.linspace(0, 1, 60).double()[:, None]
    y = (torch.arange(60) % 20 == 0).long()  # three rows of class 1
    model = Function(lambda x: torch.cat([x * 0, 3 * torch.sin(40 * x)], 1))
    found = diagnose(model, nn.CrossEntropyLoss(), x, y, n=60, sigma=0.0)["between"]
    worst_pair = max(found.breakdown.values(), key=lambda q: q.lower)
    assert worst_pair.lower <= found.numbers["share above"].value  # the case that is meant
    assert "Most between" not in found.sentence


def test_both_sides_of_the_pde_have_the_label_of_the_nearest_row(generator):
    """Far from the data's mixture a sure network pays for mixed targets, not for the nearest label."""
    x, y = corners()
    sure = Function(lambda x: -50 * torch.cdist(x, CENTRES))
    found = diagnose(sure, nn.CrossEntropyLoss(), x, y, n=200)
    assert found["between"].numbers["mean loss between"].value > 1  # mixed targets
    assert found["pde"].numbers["loss of the network"].value < 0.1
    assert found["pde"].numbers["expected by the PDE"].value < 0.1


# ---- limits


@pytest.mark.statistical
def test_limits_of_the_share_cover(generator):
    """Clusters at 0 and 1, a spike on (0.4, 0.6): the share is 0.2 times the share of mixed pairs."""
    x = (torch.arange(40) % 2).double()[:, None]
    spike = Function(lambda x: x + 1.0 * ((x > 0.4) & (x < 0.6)))
    truth, runs = 0.2 * 20 / 39, 120
    covered = {0.95: 0, 0.5: 0}
    for _ in range(runs):
        found = judge_between(fitted_of(spike, nn.MSELoss(), x, x, generator=generator, n=40))
        share = found.numbers["share above"]
        for level in covered:
            low, high = clopper_pearson(round(share.value * share.n), share.n, level)
            covered[level] += low <= truth <= high
        assert (share.lower, share.upper) == clopper_pearson(round(share.value * share.n), share.n)
    assert stats.binom.cdf(covered[0.95], runs, 0.95) > 1e-6
    assert stats.binom.cdf(covered[0.5], runs, 0.95) < 1e-6  # limits that are too narrow are found out


@pytest.mark.statistical
def test_limits_of_a_mean_and_of_a_median_cover(generator):
    runs, n = 200, 80
    y = torch.randn(runs, n, generator=generator).square()  # the loss of a model that says 0
    for make, truth in ((Quantity.mean, 1.0), (Quantity.median, float(stats.chi2(1).median()))):
        found = [make(row, 0.95) for row in y]
        covered = sum(q.lower <= truth <= q.upper for q in found)
        assert stats.binom.cdf(covered, runs, 0.93) > 1e-6  # squares are skewed: Student loses a little
        narrow = sum(
            q.value - 0.5 * (q.value - q.lower) <= truth <= q.value + 0.5 * (q.upper - q.value) for q in found
        )
        assert stats.binom.cdf(narrow, runs, 0.93) < 1e-6
    assert found[0].stderr is None


@pytest.mark.parametrize("n", [1, 5, 6, 50, 201])
def test_rank_of_the_median_is_the_best_that_holds(n):
    rank = median_rank(n, 0.95)
    coverage = lambda k: 1 - 2 * stats.binom.cdf(k, n, 0.5)  # noqa: E731
    if rank is None:
        assert coverage(0) < 0.95
        assert math.isinf(Quantity.median(torch.rand(n), 0.95).upper)
    else:
        assert coverage(rank) >= 0.95
        assert coverage(rank + 1) < 0.95


# ---- agreement with the single reports


def test_agrees_with_the_reports_on_the_same_generator():
    x, y = corners()
    model, loss = nn.Linear(2, 3), nn.CrossEntropyLoss()
    found = diagnose(model, loss, x, y, n=90, sigma=0.1, generator=torch.Generator().manual_seed(5))
    g = torch.Generator().manual_seed(5)
    rows = torch.randperm(90, generator=g)
    probes = bridge_probes(
        x[rows],
        y[rows],
        target_space="simplex",
        num_classes=3,
        sampling="marginal",
        quadrature="uniform",
        sigma=0.1,
        sigma_y=0.0,
        partners=sample_partners(x[rows], generator=g),
        generator=g,
    )
    field = LossField(model, excess_cross_entropy, num_classes=3)
    report = maximum_principle_report(field, (x, y), probes)
    share = found["between"].numbers["share above"]
    assert (share.value, share.lower, share.upper) == (
        report.overall.rate,
        report.overall.lower,
        report.overall.upper,
    )
    assert found["between"].numbers["mean loss between"].value == pytest.approx(report.overall.mean_loss)
    fitted = fitted_of(model, loss, x, y, n=90, sigma=0.1, generator=torch.Generator().manual_seed(5))
    radius = found["curvature"].numbers["radius"].value
    single = subharmonicity_report(field, *probes, [radius], 32, generator=fitted.stream("curvature"))
    assert found["curvature"].numbers["share not subharmonic"].value == len(single.failed) / 90
    assert found["curvature"].numbers["median Laplacian"].value == pytest.approx(
        float(single.laplacian.double().quantile(0.5)), rel=1e-4
    )


def test_bridges_know_their_ends(generator):
    x, y = torch.randn(7, 2, generator=generator), torch.randn(7, 1, generator=generator)
    b = draw_bridges(x, y, 50, target_space="real", sigma=0.0, generator=generator)
    assert len(b.s) <= 50
    assert not bool((b.start == b.end).any())
    torch.testing.assert_close(b.x, torch.lerp(x[b.start], x[b.end], b.s[:, None]))
    torch.testing.assert_close(b.y, torch.lerp(y[b.start], y[b.end], b.s[:, None]))
    names = pair_names(("10", "9", "b", "a", "9", "9", "9"), torch.tensor([0, 3, 2]), torch.tensor([1, 2, 3]))
    assert names == ["9 and 10", "a and b", "a and b"]


def test_the_pde_is_only_asked_where_walks_meet_the_data(generator):
    y = torch.arange(60) % 2
    flat, deep = (torch.randn(60, d, generator=generator) + 2 * y[:, None] for d in (2, 30))
    low = diagnose(nn.Linear(2, 2), nn.CrossEntropyLoss(), flat, y, n=60)
    high = diagnose(nn.Linear(30, 2), nn.CrossEntropyLoss(), deep, y, n=60)
    middle = diagnose(nn.Linear(5, 2), nn.CrossEntropyLoss(), deep[:, :5], y, n=60)["dimension"]
    assert 0 < middle.numbers["share of walks that meet the data"].value < 1  # walks were counted
    expected = low["pde"].numbers["expected by the PDE"].value
    largest = low["between"].numbers["largest loss at the data"].value
    assert largest >= expected >= 0  # an average of the losses at the data
    assert high["dimension"].numbers["share of walks that meet the data"].upper < 0.05
    with pytest.raises(KeyError, match="no finding 'pde'; use one of "):
        high["pde"]


# ---- least and constant losses


@pytest.mark.parametrize(
    "loss_fn",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0, 0.5]), label_smoothing=0.1),
        functools.partial(F.cross_entropy, label_smoothing=0.2, reduction="none"),
        F.cross_entropy,
        nn.BCEWithLogitsLoss(),
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 1.0, 0.3]), weight=torch.tensor([1.0, 2.0, 3.0])),
        nn.MSELoss(),
    ],
    ids=["ce", "ce weighted", "ce partial", "ce function", "bce", "bce weighted", "mse"],
)
def test_least_loss_is_what_optimisation_reaches(loss_fn, generator):
    target = torch.rand(4, 3, generator=generator).double()
    target = target / target.sum(1, keepdim=True)
    loss_fn = copy.deepcopy(loss_fn).double() if isinstance(loss_fn, nn.Module) else loss_fn
    least = least_loss(loss_fn, target)
    output = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([output], max_iter=200, line_search_fn="strong_wolfe")
    excess = excess_loss(loss_fn)

    def step():
        optimizer.zero_grad()
        total = excess(output, target).sum()
        total.backward()
        return total

    optimizer.step(step)
    assert float(excess(output, target).detach().abs().max()) < 1e-5
    assert bool((excess(torch.randn(4, 3, generator=generator).double(), target) >= -1e-12).all())
    assert least.shape == (4,)
    # the best constant output, by the same optimisation
    constant = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([constant], max_iter=200, line_search_fn="strong_wolfe")

    def constant_step():
        optimizer.zero_grad()
        total = excess(constant.expand(4, 3), target).mean()
        total.backward()
        return total

    optimizer.step(constant_step)
    reached = float(excess(constant.expand(4, 3), target).detach().mean())
    assert constant_loss(loss_fn, target) == pytest.approx(reached, abs=1e-6)


def test_losses_that_are_not_known_have_no_floor():
    class Own(nn.CrossEntropyLoss):
        def forward(self, output, target):
            return super().forward(output, target) ** 2

    target = torch.tensor([[0.5, 0.5]])
    assert least_loss(Own(), target) is None
    assert constant_loss(Own(), target) is None
    assert least_loss(functools.partial(F.cross_entropy, torch.zeros(1, 2)), target) is None
    assert constant_loss(nn.HuberLoss(), target) is None
    assert constant_loss(nn.L1Loss(), torch.tensor([[0.0], [1.0], [5.0]])) == pytest.approx(5 / 3)


# ---- tasks, and what must not change


@pytest.mark.parametrize(
    "task", ["labels", "soft", "regression", "flat regression", "multilabel", "own loss"]
)
def test_every_task(task, generator):
    x = torch.randn(60, 12, generator=generator)  # so many that no walk is needed
    y = torch.arange(60) % 3
    model, settings = nn.Linear(12, 3), {}
    loss: object = nn.CrossEntropyLoss()
    if task == "soft":
        y = F.one_hot(y, 3) * 0.9 + 0.1 / 3
    elif task == "regression":
        loss, y = nn.MSELoss(), x @ torch.randn(12, 3, generator=generator)
    elif task == "flat regression":
        loss, y, model = nn.L1Loss(), x[:, 0], nn.Sequential(nn.Linear(12, 1), nn.Flatten(0))
    elif task == "multilabel":
        loss, y = nn.BCEWithLogitsLoss(), x[:, :3] > 0
    elif task == "own loss":
        loss = lambda output, target: (output.softmax(1) - target).abs().sum(1)  # noqa: E731
        y, settings = F.one_hot(y, 3).float(), {"target_space": "simplex"}
    found = diagnose(model, loss, x, y, n=60, **settings)
    assert all(f.computed for f in found.landscape), found
    text = json.dumps(found.to_dict())
    assert json.loads(text)["n_rows"] == 60
    assert ("3 classes" in found.about[0]) == (task in ("labels", "soft", "own loss"))
    if task == "own loss":
        assert "the largest loss at the data" in found["profile"].sentence
    with torch.inference_mode():
        assert diagnose(model, loss, x, y, n=60, **settings).to_dict() == found.to_dict()


def test_images_go_through_a_convolution(generator):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
    x = torch.randn(30, 1, 6, 6, generator=generator)
    found = diagnose(model, nn.CrossEntropyLoss(), x, torch.arange(30) % 2, n=30, batch_size=7)
    assert all(f.computed for f in found.landscape), found
    assert found["dimension"].numbers["features"].value == 36


def test_nothing_of_the_callers_is_touched(generator):
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    x, y = torch.randn(40, 3, generator=generator), torch.arange(40) % 2
    model(x).sum().backward()  # gradients of a training that goes on afterwards
    model.train()
    model[2].eval()
    weight = model[0].weight
    weight.requires_grad_(False)
    before = copy.deepcopy(
        (
            model.state_dict(),
            [p.grad for p in model.parameters()],
            [m.training for m in model.modules()],
            x,
            y,
        )
    )
    state = torch.get_rng_state()
    diagnose(model, nn.CrossEntropyLoss(), x, y, n=50)
    diagnose(model, nn.CrossEntropyLoss(), x, y, n=50, generator=generator)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == before[2]
    assert not weight.requires_grad
    torch.testing.assert_close(
        (dict(model.state_dict()), x, y), (dict(before[0]), *before[3:]), rtol=0, atol=0
    )
    for parameter, grad in zip(model.parameters(), before[1], strict=True):
        assert (parameter.grad is None) == (grad is None)
        assert grad is None or torch.equal(parameter.grad, grad)


def test_a_finding_that_fails_does_not_stop_the_others():
    """NaN between the data only."""
    x = (torch.arange(40) % 2).double()[:, None]
    model = Function(lambda x: torch.where((x > 0.4) & (x < 0.6), torch.nan, x))
    found = diagnose(model, nn.MSELoss(), x, x, n=60)
    assert found["constant"].computed
    assert not found["between"].computed
    assert "NaN or infinite" in found["between"].sentence
    assert found["between"].severity == "info"


@pytest.mark.bad_input
def test_wrong_input_is_explained():
    x, y, model = torch.randn(20, 3), torch.arange(20) % 2, nn.Linear(3, 2)
    loss = nn.CrossEntropyLoss()
    with pytest.raises(TypeError, match=r"order is diagnose\(model, loss_fn\)"):
        diagnose(loss, model, x, y)
    with pytest.raises(TypeError, match="floating point"):
        diagnose(model, loss, x.long(), y)
    with pytest.raises(ValueError, match="as many rows as x"):
        diagnose(model, loss, x, y[:5])
    with pytest.raises(ValueError, match="must be finite"):
        diagnose(model, loss, x / 0, y)
    with pytest.raises(ValueError, match="x has one row, but a diagnosis needs more"):
        diagnose(model, loss, x[:1], y[:1])
    with pytest.raises(ValueError, match="one entry for each of the 20 rows, but has 3"):
        diagnose(model, loss, x, y, groups=[1, 2, 3])
    with pytest.raises(ValueError, match=r"cannot be evaluated on x \(inputs \(2, 2\).*preprocessing"):
        diagnose(model, loss, x[:, :2], y)
    with pytest.raises(ValueError, match="Pass num_classes"):
        diagnose(nn.Flatten(0), loss, x, y)
    with pytest.raises(ValueError, match="n must be"):
        diagnose(model, loss, x, y, n=3)
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        diagnose(model, loss, x, y, confidence=95)
    with pytest.raises(ValueError, match=r"Labels must lie in 0\.\.1"):
        diagnose(model, loss, x, y + 1)
