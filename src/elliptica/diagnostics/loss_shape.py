"""Findings on the shape of the loss: slope, curvature, what the PDE says, and advice."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica.core.noise import auto_sigma, intrinsic_dimension
from elliptica.diagnostics.expected_loss import loss_map
from elliptica.diagnostics.findings import THRESHOLDS, Finding, Quantity, Severity, undecided, worst
from elliptica.diagnostics.fitted_model import FittedModel
from elliptica.diagnostics.hitting import hitting_report
from elliptica.diagnostics.probes import REFLECTING, region
from elliptica.diagnostics.subharmonicity import subharmonicity_report
from elliptica.landscape.data_domain import DataDomain
from elliptica.landscape.domains import inside
from elliptica.landscape.estimate import FEW_HITS
from elliptica.landscape.nearest import nearest_other
from elliptica.landscape.solvers import union_bound

#: A slope per deviation above this many yardsticks is steep.
STEEP = 10.0
#: Probes and pairs of directions of the curvature; queries and walks of the PDE.
CURVATURE_PROBES, DIRECTIONS = 100, 32
QUERIES, WALKS = 50, 200


def judge_slope(fitted: FittedModel) -> Finding:
    """Judge the norm of the gradient with respect to the inputs, per deviation of each feature."""
    limit = STEEP * fitted.yardstick
    places = {
        "at the data": (fitted.x, fitted.targets),
        "between the data": (fitted.bridges.x, fitted.bridges.y),
    }
    numbers, severities = {}, []
    for name, (x, y) in places.items():
        found = slopes(fitted, x, y)
        share = Quantity.share(int((found > limit).sum()), len(found), fitted.confidence)
        numbers[f"median slope {name}"] = Quantity.median(found, fitted.confidence)
        numbers[f"largest slope {name}"] = Quantity.number(float(found.max()), len(found))
        numbers[f"share of steep points {name}"] = share
        severities.append(THRESHOLDS["slope"].grade(share.lower))
    severity = worst(*severities)
    sentence = (
        f"The loss changes by {numbers['median slope at the data']} per deviation in its steepest direction "
        f"at the median row, by {numbers['median slope between the data']} between the data. A tenth of a "
        f"deviation could change it by {fitted.yardstick_name} or more at "
        f"{numbers['share of steep points at the data']} of the rows and at "
        f"{numbers['share of steep points between the data']} of the points between."
    )
    advice = (
        undecided("slope", numbers["share of steep points at the data"]) or "Nothing to do."
        if severity == "fine"
        else "Small changes of the inputs move the loss a lot, at least in one direction (to first order). "
        "Check the scale of features; weight decay, noise or training between the data flatten a loss."
    )
    return Finding("slope", severity, sentence, advice, numbers)


def slopes(fitted: FittedModel, x: Tensor, y: Tensor) -> Float[Tensor, " rows"]:
    """Compute the norm of the gradient, each feature in units of its deviation; parameters get none."""
    parts = []
    size = fitted.field.chunk_size
    with torch.inference_mode(False), torch.enable_grad():
        for part, target in zip(x.split(size), y.split(size), strict=True):
            points = part.clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(fitted.field(points, target.clone()).sum(), points)
            parts.append((slope * fitted.deviation.to(slope)).flatten(1).double().norm(dim=1))
    return torch.cat(parts)


def judge_curvature(fitted: FittedModel) -> Finding:
    """Judge the Laplacian of the loss: whether the maximum principle of the PDE carries over."""
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
    severity = THRESHOLDS["curvature"].grade(share.lower)
    sentence = (
        f"At {share} of {len(laplacian)} points between the data the loss lies significantly above its mean "
        f"over a sphere of radius {radius:.3g} (half the distance between neighbours). Median Laplacian "
        f"{numbers['median Laplacian']}; a solution of the plain PDE would have 0."
    )
    advice = (
        (undecided("curvature", share, of="points") if len(laplacian) < CURVATURE_PROBES else None)
        or "Nothing to do. (Weaker failures than the noise of 32 pairs of directions would go unnoticed.)"
        if severity == "fine"
        else "There the loss has crests, and no maximum principle protects the network. Compare with another "
        "model on the same data rather than reading the number alone."
    )
    return Finding("curvature", severity, sentence, advice, numbers)


def judge_dimension(fitted: FittedModel) -> tuple[Finding, ...]:
    """Judge whether a diffusion finds these data; only if so, which loss the PDE expects between them."""
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
    if len(rows) < 2:
        sentence = f"{words}. Hardly a point between the data lies outside the balls around them."
        return (Finding("dimension", "fine", sentence, "Nothing to do.", numbers),)
    hits = _hits(fitted, domain, points[rows])
    numbers["share of walks that meet the data"] = hits
    if hits.value < FEW_HITS:
        sentence = (
            f"{words}. From a point between the data {_few(hits)} of the walks of a diffusion meet a ball "
            f"around a datum (in a ball around all data). Below {FEW_HITS:.0%}, values of the PDE would be "
            "those of the outer boundary, so none are given."
        )
        advice = (
            "Do not read the PDE's landscape in this space; elliptica.landscape works on a few principal "
            "components or features. The other findings do not depend on it."
        )
        return (Finding("dimension", "look", sentence, advice, numbers),)
    how = (
        "all walks end at the data, by reflecting walls"
        if flat.shape[1] <= REFLECTING
        else f"at the median point {hits.value:.0%} ({hits.lower:.0%} to {hits.upper:.0%}) of the walks meet "
        "the data"
    )
    sentence = f"{words}; {how}. Estimates of the PDE mean something here."
    advice = "Nothing to do; the PDE's expectation follows."
    return Finding("dimension", "fine", sentence, advice, numbers), _expectation(fitted, domain, name, rows)


def _hits(fitted: FittedModel, domain: DataDomain, at: Tensor) -> Quantity:
    """Estimate the share of walks that meet the data at the median query; a bound where that settles it."""
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
    """Compare the landscape, with the losses at the data as boundary values, with the network's loss."""
    found = loss_map(
        fitted.field,
        domain,
        fitted.bridges.x[rows],
        labels="nearest",
        train=(fitted.x, fitted.targets),
        data_values=fitted.losses.to(fitted.x),
        n_walks=WALKS,
        generator=fitted.stream("pde"),
    )
    own = fitted.between[rows]
    above = Quantity.mean(own - found.value.double(), fitted.confidence)
    numbers = {
        "loss above the PDE's": above,
        "expected by the PDE": Quantity.mean(found.value, fitted.confidence, fitted.floor),
        "loss of the network": Quantity.mean(own, fitted.confidence, fitted.floor),
        "unfinished walks": Quantity.number(float(found.unfinished_share.mean()), len(rows)),
    }
    severity: Severity = THRESHOLDS["pde"].grade(above.lower / fitted.yardstick)
    sentence = (
        f"Given the losses at the data, the PDE (in a {name}) expects a mean loss of "
        f"{numbers['expected by the PDE']} at {len(rows)} points between; the network has "
        f"{numbers['loss of the network']}, a difference of {above}."
    )
    advice = (
        "Nothing to do."
        if severity == "fine"
        else "The network's loss is no average of the losses around it. Elliptic training acts on this; that "
        "is no proof that test error would fall."
    )
    return Finding("pde", severity, sentence, advice, numbers)


def advise(fitted: FittedModel, findings: tuple[Finding, ...]) -> Finding:
    """Advise on the noise, and on whether training between the data has anything to act on (heuristics)."""
    flat = fitted.deviation.double().flatten()
    varying = flat[flat > 0]
    if len(varying) == 0:
        return Finding("advice", "look", "No feature varies.", "Check x: all its rows are equal.", {})
    sigma = auto_sigma(fitted.x).double().flatten()[flat > 0]
    ratio = float(varying.max() / varying.min())
    numbers = {
        "median sigma": Quantity.number(float(sigma.median()), len(sigma)),
        "least sigma": Quantity.number(float(sigma.min()), len(sigma)),
        "largest sigma": Quantity.number(float(sigma.max()), len(sigma)),
        "ratio of deviations": Quantity.number(ratio, len(sigma)),
    }
    scales = THRESHOLDS["scales"].grade(ratio)
    acts = [f.name for f in findings if f.name in ("between", "profile", "pde") and f.severity != "fine"]
    if acts:
        sentence = f"Training between the data has something to act on ({', '.join(acts)})."
    else:
        sentence = "Training between the data has little to act on: the loss there is not high."
    sentence += (
        f' With sigma="auto" the noise of each feature would be {float(sigma.min()):.2g} to '
        f"{float(sigma.max()):.2g} (median {float(sigma.median()):.2g})."
    )
    advice = (
        'If you train between the data, start from sigma="auto" and choose by validation. A heuristic, not '
        "tested: a lower loss between the data need not lower the error on test data, and it cost accuracy "
        "where half-way targets were wrong."
    )
    if scales != "fine":
        advice = (
            f"Deviations of features differ by a factor of {ratio:.3g}: standardise the inputs, or at least "
            f'use sigma="auto"; distances and walks are those of the widest features. {advice}'
        )
    return Finding("advice", worst(scales, "look" if acts else "fine"), sentence, advice, numbers)
