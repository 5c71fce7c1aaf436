"""Findings about the loss between and around the rows: bridges, noise, slope, curvature, the PDE.

None of this is a warning. Ordinary training lets the loss rise between the data, whether or not the model is
good on other rows; see docs/diagnose.md for what each number means.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import random
from elliptica._utils.statistics import bonferroni
from elliptica.core.noise import intrinsic_dimension
from elliptica.diagnostics.expected_loss import loss_map
from elliptica.diagnostics.findings import Finding, Quantity
from elliptica.diagnostics.fitted_model import FittedModel
from elliptica.diagnostics.hitting import hitting_report
from elliptica.diagnostics.maximum_principle import maximum_principle_report
from elliptica.diagnostics.neighbours import NEIGHBOURS, neighbour_loss
from elliptica.diagnostics.probes import REFLECTING, region
from elliptica.diagnostics.subharmonicity import subharmonicity_report
from elliptica.landscape.data_domain import DataDomain, nearest_other
from elliptica.landscape.domains import inside
from elliptica.landscape.estimate import FEW_HITS
from elliptica.landscape.solve import union_bound

#: Fewest points of a pair to compare.
FEWEST_PROBES = 10
#: Number of parts of a bridge whose mean loss is shown.
BINS = 6
#: Noise levels to try, as shares of each feature's deviation.
NOISE = (0.01, 0.1)
#: A slope per deviation above this many losses of a constant is steep.
STEEP = 10.0
#: Probes and pairs of directions of the curvature; queries and walks of the PDE.
CURVATURE_PROBES, DIRECTIONS = 100, 32
QUERIES, WALKS = 50, 200


def judge_between(fitted: FittedModel) -> Finding:
    """Count points between the data with a loss above every loss at the data, overall and by pair."""
    bridges = fitted.bridges
    pairs = None if fitted.parts is None else pair_names(fitted.parts, bridges.start, bridges.end)
    report = maximum_principle_report(
        fitted.field,
        (fitted.x, fitted.targets),
        (bridges.x, bridges.y),
        group=pairs,
        confidence=fitted.confidence,
    )
    overall, bar = report.overall, report.check.boundary_max
    share = Quantity(overall.rate, overall.lower, overall.upper, None, overall.n, "share")
    judged = [group for group in report.by_group if group.n >= FEWEST_PROBES]
    level = bonferroni(fitted.confidence, len(judged))
    by_pair = _ordered({group.name: Quantity.share(group.count, group.n, level) for group in judged})
    near = neighbour_loss(fitted.field, bridges.x, (fitted.x, fitted.targets)).loss.double()
    numbers = {
        "share above": share,
        "mean excess of those": Quantity.number(_mean_excess(fitted.between - bar), overall.count),
        "mean loss between": Quantity.mean(fitted.between, fitted.confidence, fitted.floor),
        "mean loss between, against neighbours' targets": Quantity.mean(
            near, fitted.confidence, fitted.floor
        ),
        "largest loss between": Quantity.number(report.check.interior_max, overall.n),
        "largest loss at the data": Quantity.number(bar, len(fitted.x)),
    }
    target = "a target on the line between two" if fitted.space == "real" else "a mixed target"
    sentence = (
        f"Between the data, {share} of {overall.n} points have a loss above every loss at the data "
        f"({bar:.3g}), against {target}; the mean loss there is {float(fitted.between.mean()):.3g}, and "
        f"{float(near.mean()):.3g} against the targets of the {NEIGHBOURS} nearest rows."
    )
    if by_pair and next(iter(by_pair.values())).lower > share.value:
        name, pair = next(iter(by_pair.items()))
        numbers["worst pair"] = pair
        sentence += f" Most between {fitted.part} {name}: {pair}."
    advice = (
        "This is normal after ordinary training, also where test rows are predicted well. Training between "
        "the data (elliptica.Elliptic, mixup) lowers it, but that does not prove that the error at other "
        "rows falls."
    )
    breakdown = {f"between {name}": pair for name, pair in by_pair.items()}
    return Finding("between", "info", sentence, advice, numbers, breakdown, title="Loss between the data")


def _mean_excess(above: Tensor) -> float:
    """Average the positive values; zero if there are none."""
    above = above[above > 0]
    return float(above.mean()) if len(above) else 0.0


def judge_profile(fitted: FittedModel) -> Finding:
    """Compare the loss along a bridge with the line between its ends."""
    s, at = fitted.bridges.s.double(), fitted.losses
    start, end = at[fitted.bridges.start], at[fitted.bridges.end]
    rise = fitted.between - torch.lerp(start, end, s)
    along = Quantity.mean(rise, fitted.confidence)
    numbers = {
        "rise along the bridge": along,
        "mean loss at the ends": Quantity.mean((start + end) / 2, fitted.confidence, fitted.floor),
    }
    index = (s * BINS).long().clamp_max(BINS - 1)
    breakdown = {
        f"s {i / BINS:.2f} to {(i + 1) / BINS:.2f}": Quantity.mean(
            fitted.between[index == i], fitted.confidence, fitted.floor
        )
        for i in range(BINS)
        if int((index == i).sum()) >= 2
    }
    sentence = (
        f"Along a bridge the mean loss is {along} above the line between its two ends "
        f"({along.value / fitted.yardstick:.2g} times {fitted.yardstick_name})."
    )
    advice = "If halfway inputs with halfway targets mean nothing in your data, neither does this number."
    return Finding("profile", "info", sentence, advice, numbers, breakdown, title="Loss along a bridge")


def judge_noise(fitted: FittedModel) -> Finding:
    """Measure the rise of the loss under Gaussian noise on the inputs, targets unchanged."""
    generator = fitted.stream("noise")
    dtype = random.compute_dtype(fitted.x.dtype)
    normal = random.draw_normal(fitted.x.shape, dtype=dtype, device=fitted.x.device, generator=generator)
    breakdown = {}
    for level in NOISE:
        moved = fitted.x + (level * fitted.deviation * normal).to(fitted.x)
        rise = fitted.field(moved, fitted.targets).double() - fitted.losses
        breakdown[f"noise of {level:.0%}"] = Quantity.mean(rise, fitted.confidence)
    judged = breakdown[f"noise of {NOISE[-1]:.0%}"]
    sentence = (
        f"Noise of {NOISE[-1]:.0%} of each feature's deviation changes the mean loss by {judged}, "
        f"{judged.value / fitted.yardstick:.2g} times {fitted.yardstick_name}."
    )
    advice = "If inputs are measured with such noise, train with it (elliptica.baselines.InputNoise)."
    numbers = {f"rise under {name}": quantity for name, quantity in breakdown.items()}
    return Finding("noise", "info", sentence, advice, numbers, title="Loss under noise")


def judge_slope(fitted: FittedModel) -> Finding:
    """Measure the norm of the gradient with respect to the inputs, per deviation of each feature."""
    limit = STEEP * fitted.yardstick
    places = {
        "at the data": (fitted.x, fitted.targets),
        "between the data": (fitted.bridges.x, fitted.bridges.y),
    }
    numbers = {}
    for name, (x, y) in places.items():
        norms = slopes(fitted, x, y)
        numbers[f"median slope {name}"] = Quantity.median(norms, fitted.confidence)
        numbers[f"largest slope {name}"] = Quantity.number(float(norms.max()), len(norms))
        steep = int((norms > limit).sum())
        numbers[f"share of steep points {name}"] = Quantity.share(steep, len(norms), fitted.confidence)
    sentence = (
        f"The loss changes by {numbers['median slope at the data']} per deviation in its steepest direction "
        f"at the median row, by {numbers['median slope between the data']} between the data. A tenth of a "
        f"deviation could change it by {fitted.yardstick_name} or more at "
        f"{numbers['share of steep points at the data']} of the rows and at "
        f"{numbers['share of steep points between the data']} of the points between."
    )
    advice = "This is a first-order estimate in the worst direction: what an adversary could do, not noise."
    return Finding("slope", "info", sentence, advice, numbers, title="Slope of the loss")


def slopes(fitted: FittedModel, x: Tensor, y: Tensor) -> Float[Tensor, " rows"]:
    """Compute the norm of the input gradient, each feature in units of its deviation."""
    parts = []
    size = fitted.field.chunk_size
    with torch.inference_mode(False), torch.enable_grad():
        for part, target in zip(x.split(size), y.split(size), strict=True):
            points = part.clone().requires_grad_(True)
            total = fitted.field(points, target.clone()).sum()
            slope = None
            if total.requires_grad:  # a constant model depends on nothing
                (slope,) = torch.autograd.grad(total, points, allow_unused=True)
            slope = torch.zeros_like(points) if slope is None else slope
            parts.append((slope * fitted.deviation.to(slope)).flatten(1).double().norm(dim=1))
    return torch.cat(parts)


def judge_curvature(fitted: FittedModel) -> Finding:
    """Measure the Laplacian of the loss, to see whether the maximum principle of the PDE carries over."""
    radius = 0.5 * float(nearest_other(fitted.x.flatten(1)).median())
    at = slice(CURVATURE_PROBES)
    report = subharmonicity_report(
        fitted.field,
        fitted.bridges.x[at],
        fitted.bridges.y[at],
        [radius],
        DIRECTIONS,
        alpha=1 - fitted.confidence,
        generator=fitted.stream("curvature"),
    )
    laplacian = report.laplacian[:, 0]
    share = Quantity.share(len(report.failed), len(laplacian), fitted.confidence)
    numbers = {
        "share not subharmonic": share,
        "median Laplacian": Quantity.median(laplacian, fitted.confidence),
        "median size of the Laplacian": Quantity.median(laplacian.abs(), fitted.confidence),
        "radius": Quantity.number(radius),
    }
    sentence = (
        f"At {share} of {len(laplacian)} points between the data the loss lies significantly above its mean "
        f"over a sphere of radius {radius:.3g} (half the distance between neighbours). Median Laplacian "
        f"{numbers['median Laplacian']}; a solution of the plain PDE would have 0."
    )
    advice = "Where it lies above, the maximum principle does not hold. Weaker failures are not detected."
    return Finding("curvature", "info", sentence, advice, numbers, title="Curvature of the loss")


def judge_dimension(fitted: FittedModel) -> tuple[Finding, ...]:
    """Check whether a diffusion hits these data; if so, compute the loss that the PDE expects."""
    flat = fitted.x.flatten(1)
    domain, name = region(flat, "auto")
    numbers = {"features": Quantity.number(float(flat.shape[1]))}
    words = f"The inputs have {flat.shape[1]} features"
    if len(torch.unique(flat, dim=0)) >= 10:
        dimension = intrinsic_dimension(fitted.x)
        numbers["intrinsic dimension"] = Quantity.number(dimension, len(flat))
        words += f" and look {dimension:.2g}-dimensional to their nearest neighbours (no limits)"
    points = fitted.bridges.x.flatten(1)
    rows = ((domain.nearest_ball(points)[0] > 0) & inside(domain, points)).nonzero().flatten()[:QUERIES]
    title = "Dimension of the data"
    if len(rows) < 2:
        sentence = f"{words}. Hardly a point between the data lies outside the balls around them."
        return (Finding("dimension", "info", sentence, "", numbers, title=title),)
    hits = _hits(fitted, domain, points[rows])
    numbers["share of walks that meet the data"] = hits
    if hits.value < FEW_HITS:
        sentence = (
            f"{words}. From a point between the data {_few(hits)} of the walks of a diffusion meet a ball "
            f"around a datum (in a ball around all data). Below {FEW_HITS:.0%}, values of the PDE would be "
            "those of the outer boundary, so none are given."
        )
        advice = (
            "Do not use the PDE's landscape in this space; elliptica.landscape works on a few principal "
            "components or features. The other findings do not depend on it."
        )
        return (Finding("dimension", "info", sentence, advice, numbers, title=title),)
    how = (
        "all walks end at the data, by reflecting walls"
        if flat.shape[1] <= REFLECTING
        else f"at the median point {hits.value:.0%} ({hits.lower:.0%} to {hits.upper:.0%}) of the walks meet "
        "the data"
    )
    sentence = f"{words}; {how}."
    first = Finding("dimension", "info", sentence, "", numbers, title=title)
    return first, _expectation(fitted, domain, name, rows)


def _hits(fitted: FittedModel, domain: DataDomain, at: Tensor) -> Quantity:
    """Estimate the share of walks that hit the data at the median query, or a bound if that is enough."""
    if at.shape[1] <= REFLECTING:
        return Quantity.number(1.0, len(at))
    bound = union_bound(domain, at)
    if float(bound.median()) < FEW_HITS:  # no need to walk
        return Quantity(float(bound.median()), 0.0, float(bound.median()), None, len(at), "median")
    report = hitting_report(domain, at, k=1, n_walks=WALKS, generator=fitted.stream("hitting"))
    return Quantity.median(report.hit, fitted.confidence)


def _few(hits: Quantity) -> str:
    return f"at most {hits.upper:.1%}" if hits.lower == 0 else f"{hits.value:.1%}"


def _expectation(fitted: FittedModel, domain: DataDomain, name: str, rows: Tensor) -> Finding:
    """Compare the landscape, with the losses at the data as boundary values, with the network's loss.

    Both use the label of the nearest row. The result also has the loss against the labels of the
    ten nearest rows. results/anticipation measures which of them predicts the loss at other rows.
    """
    at = fitted.bridges.x[rows]
    estimate = loss_map(
        fitted.field,
        domain,
        at,
        labels="nearest",
        train=(fitted.x, fitted.targets),
        data_values=fitted.losses.to(fitted.x),
        n_walks=WALKS,
        generator=fitted.stream("pde"),
    )
    nearest = torch.cdist(at.flatten(1), fitted.x.flatten(1)).argmin(1)
    own = fitted.field(at, fitted.targets[nearest]).double()
    above = Quantity.mean(own - estimate.value.double(), fitted.confidence)
    losses = neighbour_loss(fitted.field, at, (fitted.x, fitted.targets)).loss
    near = Quantity.mean(losses, fitted.confidence, fitted.floor)
    numbers = {
        "loss above the PDE's": above,
        "expected by the PDE": Quantity.mean(estimate.value, fitted.confidence, fitted.floor),
        "loss of the network": Quantity.mean(own, fitted.confidence, fitted.floor),
        "loss against the nearest targets": near,
        "unfinished walks": Quantity.number(float(estimate.unfinished_share.mean()), len(rows)),
    }
    sentence = (
        f"Given the losses at the data, the PDE (in a {name}) expects a mean loss of "
        f"{numbers['expected by the PDE']} at {len(rows)} points between, with the target of the nearest "
        f"row; the network has {numbers['loss of the network']}, and {near} against the targets of the "
        f"{NEIGHBOURS} nearest rows."
    )
    advice = (
        "The PDE's value cannot exceed the largest loss at the data. Held-out rows tell more than it does."
    )
    return Finding("pde", "info", sentence, advice, numbers, title="What the PDE expects")


def pair_names(parts: tuple[str, ...], start: Tensor, end: Tensor) -> list[str]:
    """Name the pair of parts that each bridge joins, in either direction."""
    order = {name: i for i, name in enumerate(sorted(set(parts), key=_natural))}
    names = []
    for a, b in zip(start.tolist(), end.tolist(), strict=True):
        first, second = sorted((parts[a], parts[b]), key=order.__getitem__)
        names.append(f"{first} and {second}")
    return names


def _natural(name: str) -> tuple[bool, float, str]:
    """Sort numbers by size, before words."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name


def _ordered(found: dict[str, Quantity]) -> dict[str, Quantity]:
    """Sort by the lower limit, highest first, so that a few unlucky rows do not lead."""
    ranked = sorted(found.items(), key=lambda item: (item[1].lower, item[1].value), reverse=True)
    return dict(ranked)
