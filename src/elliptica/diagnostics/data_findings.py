"""Findings on the rows: labels, copies, rows shared with testing, scales, and what moved between two sets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elliptica._utils.statistics import bonferroni
from elliptica.diagnostics.evidence import Difference, Evidence
from elliptica.diagnostics.findings import Finding, Quantity, Severity, fine, skipped
from elliptica.diagnostics.neighbours import NEIGHBOURS

#: Deep inside a class labels that differ from their neighbourhood are natural up to this share, and in a
#: single class up to the second one.
NATURAL, NATURAL_IN_CLASS = 0.03, 0.05
#: A target this many local deviations away from those of its neighbours is suspected; natural up to a share.
FAR_TARGET, NATURAL_FAR = 6.0, 0.01
#: Copies are worth a look from this share of the rows, and a warning from the next.
COPIES, MANY_COPIES = 0.05, 0.3
#: Held-out rows that are training rows: a look, a warning.
SHARED, MANY_SHARED = 0.01, 0.05
#: Features whose deviation is so many times the median one, or so many times smaller, are out of scale.
LARGE_SCALE, SMALL_SCALE = 20.0, 1000.0
#: Two samples of a feature differ if their distribution functions do by this much, surely.
MOVED = 0.2
#: Shares of classes differ if so much of the mass lies elsewhere; from the second on it is a warning.
PRIOR, LARGE_PRIOR = 0.1, 0.25
_ROWS = 1000


# ---- labels


def judge_labels(e: Evidence) -> Finding:
    """Look for training targets that contradict those of their neighbours."""
    if e.task == "other" or e.train.y is None:
        return skipped("labels", "targets are neither classes nor values")
    if len(e.base) < 40:
        return skipped("labels", f"{len(e.base)} rows are too few to compare labels with their neighbours")
    if e.task == "classes":
        return _judge_classes(e)
    if e.train.y.shape[1] > 1:
        return skipped("labels", "only single target values are compared with their neighbours")
    return _judge_values(e)


def label_suspicion(e: Evidence) -> Float[Tensor, " base"]:
    """Rank rows of `Evidence.base` by how much their targets contradict their neighbours': 1 is utterly."""
    assert e.train.y is not None
    numbers = e.near[1][:, :NEIGHBOURS]
    if e.task == "classes":
        own = e.train.y[e.base]
        return 1 - e.average(numbers)[torch.arange(len(own)), own]
    z = _target_distance(e)
    return z / (z + FAR_TARGET)


def _judge_classes(e: Evidence) -> Finding:
    """Count labels that differ from their neighbourhood where that is purest.

    Where classes overlap, neighbours differ by nature, but less and less inside a class. Wrong labels are
    found there as often as anywhere.
    """
    assert e.train.y is not None
    y = e.train.y[e.base]
    shares = e.average(e.near[1])
    share, major = shares.max(1)
    differs = y != major
    deep = share >= share.quantile(0.75)
    rate = Quantity.share(int(differs[deep].sum()), int(deep.sum()), e.confidence)
    by_class = _deep_rates(e, share, major, differs)
    worst = max(by_class.values(), key=lambda q: q.lower, default=rate)
    suspects = differs & (label_suspicion(e) >= 0.8) & (share >= 0.5)
    # where even the purest neighbourhoods are mixed, neighbours say little
    pure = float(share[deep].mean()) >= 0.6
    shown = pure and (rate.lower > NATURAL or worst.lower > NATURAL_IN_CLASS)
    numbers = {
        "labels unlike their neighbours, deep inside a class": rate,
        "suspected labels": Quantity.number(float(suspects.sum()), len(y)),
    }
    if not shown:
        return fine("labels", f"Labels agree with their neighbours deep inside each class ({rate} differ).")
    order = label_suspicion(e).argsort(descending=True, stable=True)
    rows = [i for i in order.tolist() if suspects[i]][:_ROWS]
    named = {name: q for name, q in by_class.items() if q.lower > NATURAL_IN_CLASS}
    where = f" Most in class {next(iter(named))}." if named and len(named) < len(by_class) else ""
    likely = max(rate.value, float(suspects.double().mean()))
    return Finding(
        "labels",
        _label_severity(e),
        f"About {likely:.0%} of the labels look wrong: deep inside a class, {rate} differ from nearly all "
        f"of their {e.near[1].shape[1]} nearest neighbours.{where} The same would be seen if these inputs do "
        "not determine the class.",
        "Check the rows listed. Relabel or remove those that are wrong, then train again. Without that, stop "
        "early on held-out rows.",
        numbers,
        {f"class {name}": q for name, q in (named or by_class).items()},
        title="Labels look wrong",
        rows=tuple(int(e.base[i]) for i in rows),
    )


def _label_severity(e: Evidence) -> Severity:
    """A warning, unless the model is as good on held-out rows: overlapping classes look the same then."""
    if e.held is None or e.held.y is None:
        return "warning"
    wrong = e.is_wrong(e.held).double(), e.is_wrong(e.train).double()
    errors = e.errors(e.held), e.errors(e.train)
    is_same = all(Difference.between(*pair, e.confidence).lower <= 0.02 for pair in (wrong, errors))
    improved = Difference.between(wrong[1], wrong[0], e.confidence).lower > 0.02  # held-out labels are clean
    return "look" if is_same and not improved else "warning"


def _deep_rates(e: Evidence, share: Tensor, major: Tensor, differs: Tensor) -> dict[str, Quantity]:
    """Share of labels that differ from a neighbourhood of each class; the worst first."""
    classes = [c for c in range(e.n_classes) if int((major == c).sum()) >= 20]
    level = bonferroni(e.confidence, max(1, len(classes)))
    found = {}
    for c in classes:
        own = major == c
        deep = own & (share >= share[own].median())
        found[e.fitted.class_name(c)] = Quantity.share(int(differs[deep].sum()), int(deep.sum()), level)
    return dict(sorted(found.items(), key=lambda item: -item[1].lower))


def _target_distance(e: Evidence) -> Float[Tensor, " base"]:
    """Distance of each target from the median of its neighbours', in their median deviations."""
    assert e.train.y is not None
    y = e.train.y[:, 0]
    around = y[e.near[1]]
    middle = around.median(1).values
    spread = (around - middle[:, None]).abs().median(1).values
    overall = (y - y.median()).abs().median()
    scale = 1.4826 * torch.maximum(spread, 0.05 * overall)
    return (y[e.base] - middle).abs() / scale.clamp_min(1e-300)


def _judge_values(e: Evidence) -> Finding:
    z = _target_distance(e)
    suspects = z > FAR_TARGET
    rate = Quantity.share(int(suspects.sum()), len(z), e.confidence)
    numbers = {"targets unlike their neighbours'": rate}
    if rate.lower <= NATURAL_FAR:
        return fine("labels", f"Targets agree with those of their neighbours ({rate} are far off).")
    rows = z.argsort(descending=True, stable=True)[: min(_ROWS, int(suspects.sum()))]
    return Finding(
        "labels",
        "warning",
        f"{rate} of the targets lie more than {FAR_TARGET:g} local deviations away from those of their "
        "nearest neighbours: wrong values, another unit, or rare events.",
        "Check the rows listed. Correct or remove wrong values; if they are real, train with a loss that "
        "forgives large errors (torch.nn.HuberLoss).",
        numbers,
        title="Target values look wrong",
        rows=tuple(int(e.base[i]) for i in rows.tolist()),
    )


# ---- copies


def judge_duplicates(e: Evidence) -> Finding:
    """Count training rows that are copies of others, beyond what values in few steps explain."""
    groups, counts = _distinct(e.train.raw)
    n, distinct = len(e.train), len(counts)
    copies = n - distinct
    share = copies / n
    numbers = {
        "share of copies": Quantity.number(share, n),
        "distinct rows": Quantity.number(float(distinct), n),
    }
    if share <= COPIES or not _beyond_chance(e.train.raw, counts):
        return fine("duplicates", f"{copies} of {n} training rows are copies of others.")
    severity: Severity = "warning" if share > MANY_COPIES else "look"
    most = counts.argsort(descending=True)[:5]
    rows = torch.isin(groups, most).nonzero().flatten()[:_ROWS]
    return Finding(
        "duplicates",
        severity,
        f"Of {n} training rows only {distinct} are distinct; one row occurs {int(counts.max())} times. "
        "Limits and scores that take rows for independent are too optimistic.",
        "Remove copies before splitting, or keep all copies of a row in the same part. Count the distinct "
        "rows when you ask whether there are enough.",
        numbers,
        title="Copies among the training rows",
        rows=tuple(rows.tolist()),
    )


def judge_leak(e: Evidence) -> Finding:
    """Count held-out rows that are training rows."""
    if e.held is None:
        return skipped("leak", "no held-out rows were given")
    n = len(e.train)
    number, _ = _distinct(torch.cat([e.train.raw, e.held.raw]))
    shared = torch.isin(number[n:], number[:n])
    share = int(shared.sum()) / len(e.held)
    own = 1 - len(number[:n].unique()) / n
    numbers = {"held-out rows that are training rows": Quantity.number(share, len(e.held))}
    if share <= SHARED or int(shared.sum()) < 3 or (share <= 2 * own and not _few_copies(e, own)):
        return fine("leak", f"{int(shared.sum())} of {len(e.held)} held-out rows are training rows.")
    severity: Severity = "warning" if share > MANY_SHARED else "look"
    wrong = ""
    if e.task != "other":
        apart = e.errors(e.held)[~shared]
        if len(apart) >= 10:
            wrong = (
                f" At the others the error is {float(apart.mean()):.2f} of a constant's, at all of them "
                f"{float(e.errors(e.held).mean()):.2f}."
            )
    return Finding(
        "leak",
        severity,
        f"{int(shared.sum())} of {len(e.held)} held-out rows ({share:.0%}) are training rows, too: the "
        f"held-out score is too good.{wrong}",
        "Remove them from one of the two sets and judge the model again.",
        numbers,
        title="Held-out rows were trained on",
        rows=tuple(shared.nonzero().flatten()[:_ROWS].tolist()),
        rows_of="held-out",
    )


def _few_copies(e: Evidence, own: float) -> bool:
    """Whether copies within training are too many for chance, so that shared rows are no accident either."""
    return own > COPIES and _beyond_chance(e.train.raw, _distinct(e.train.raw)[1])


def _distinct(rows: Float[Tensor, "rows features"]) -> tuple[Int[Tensor, " rows"], Int[Tensor, " distinct"]]:
    """Number of the distinct row that each row is, and how often each occurs."""
    _, number, counts = rows.unique(dim=0, return_inverse=True, return_counts=True)
    return number, counts


def _beyond_chance(rows: Float[Tensor, "rows features"], counts: Int[Tensor, " distinct"]) -> bool:
    """Whether pairs of equal rows are far more than features with few values give by chance.

    Chance takes features as independent, so that a factor of a hundred is allowed.
    """
    n = len(rows)
    same = 0.0  # logarithm of the chance that two rows agree in every feature
    for column in rows.T:
        share = column.unique(return_counts=True)[1].double() / n
        same += math.log(float(share.square().sum()))
    expected = math.comb(n, 2) * math.exp(max(same, -500.0))
    observed = float((counts.double() * (counts - 1) / 2).sum())
    return observed > 100 * expected + 10


# ---- scales


def judge_inputs(e: Evidence) -> Finding:
    """Look for features that do not vary, or vary on another scale than the others."""
    d = len(e.varies)
    constant = [e.feature(j) for j in (~e.varies).nonzero().flatten().tolist()]
    deviation = e.deviation[e.varies]
    names = [e.feature(j) for j in e.varies.nonzero().flatten().tolist()]
    if len(deviation) == 0:
        return Finding(
            "inputs",
            "warning",
            "No feature varies: all training rows are equal.",
            "Check how x is made.",
            title="Inputs do not vary",
        )
    middle = float(deviation.median())
    own = e.fitted.scales_inputs
    odd = [
        (name, float(s))
        for name, s in zip(names, deviation, strict=True)
        if not own and (s > LARGE_SCALE * middle or s * SMALL_SCALE < middle)
    ]
    far = [] if own else (e.centre[e.varies].abs() > 100 * deviation).nonzero().flatten().tolist()
    numbers = {
        "largest deviation over the median one": Quantity.number(float(deviation.max()) / middle, d),
        "constant features": Quantity.number(float(len(constant)), d),
    }
    breakdown = {name: Quantity.number(size) for name, size in sorted(odd, key=lambda each: -each[1])[:20]}
    parts, severity = [], "fine"
    many_constant = len(constant) > 0 and (d <= 20 or len(constant) > 0.2 * d)
    if many_constant:
        parts.append(f"{_listed(constant)} {'does' if len(constant) == 1 else 'do'} not vary")
    if odd:
        parts.append(
            f"{_listed([name for name, _ in odd])} "
            f"{'is' if len(odd) == 1 else 'are'} on another scale (deviation {odd[0][1]:.3g}, median "
            f"{middle:.3g})"
        )
    if far and not odd:
        parts.append(f"{_listed([names[j] for j in far])} lie far from zero for their deviation")
    if not parts:
        return fine("inputs", "Inputs vary on similar scales.")
    severity = "look"
    if (odd or far) and e.neighbours_gain().lower > 0.05:
        severity = "warning"
    advice = (
        "Standardise the inputs (subtract the mean, divide by the deviation of the training rows) and train "
        "again."
    )
    if many_constant and not (odd or far):
        advice = "Drop features that do not vary, or find out why they do not."
    text = "; ".join(parts)
    return Finding(
        "inputs",
        severity,  # type: ignore[arg-type]
        f"{text[0].upper()}{text[1:]}.",
        advice,
        numbers,
        breakdown,
        title="Inputs are not on one scale" if odd or far else "Inputs that do not vary",
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{'feature' if len(names) == 1 else 'features'} {shown}{more}"


# ---- what moved


def moved_features(e: Evidence, other: Float[Tensor, "rows features"]) -> dict[str, Quantity]:
    """Features whose distribution surely differs from training, by how much; the largest first.

    The number is the distance of the two distribution functions (Kolmogorov-Smirnov), between 0 and 1.
    """
    train = e.train.raw
    n, m = len(train), len(other)
    if min(n, m) < 10:
        return {}
    level = (1 - e.confidence) / 100 / max(1, train.shape[1])
    limit = max(MOVED, math.sqrt(-math.log(level / 2) / 2 * (n + m) / (n * m)))
    found = {}
    for j in range(train.shape[1]):
        distance = _ks(train[:, j], other[:, j])
        if distance > limit:
            found[e.feature(j)] = Quantity.number(distance, n + m)
    return dict(sorted(found.items(), key=lambda item: -item[1].value))


def _ks(a: Float[Tensor, " n"], b: Float[Tensor, " m"]) -> float:
    """Largest difference of two distribution functions."""
    at = torch.cat([a, b]).unique()
    first = torch.searchsorted(a.sort().values, at, right=True).double() / len(a)
    second = torch.searchsorted(b.sort().values, at, right=True).double() / len(b)
    return float((first - second).abs().max())


def is_farther(e: Evidence, distance: Float[Tensor, " rows"]) -> Difference:
    """How much likelier a row is farther from its nearest training row than a training row: 0.5 if alike."""
    own = e.near[0][:, 0].sort().values
    below = torch.searchsorted(own, distance) + torch.searchsorted(own, distance, right=True)
    places = below.double() / (2 * len(own))
    half = Difference.paired(places, 0.9999)
    ours = 3.9 * math.sqrt(1 / 12 / len(own))
    return Difference(half.value, half.lower - ours, half.upper + ours)


def beyond(e: Evidence, distance: Float[Tensor, " rows"]) -> Bool[Tensor, " rows"]:
    """Whether rows are farther from the training rows than 99 % of these are from each other."""
    return distance > e.near[0][:, 0].quantile(0.99)


def judge_prior(e: Evidence) -> Finding:
    """Compare the shares of classes in training and held-out rows."""
    if e.task != "classes" or e.held is None or e.held.y is None:
        return skipped("prior", "classes of held-out rows are needed")
    assert e.train.y is not None
    ours, other = (
        torch.bincount(s.y, minlength=e.n_classes).double() for s in (e.train, e.held) if s.y is not None
    )
    shares = ours / ours.sum(), other / other.sum()
    moved = float((shares[1] - shares[0]).abs().sum() / 2)
    # variance of each share under equal shares; four standard errors of the largest sum
    pooled = (ours + other) / (ours.sum() + other.sum())
    noise = (pooled * (1 - pooled) * (1 / ours.sum() + 1 / other.sum())).sqrt().sum() / 2
    breakdown = {
        f"class {e.fitted.class_name(c)}": Quantity.number(float(shares[1][c] - shares[0][c]))
        for c in (shares[1] - shares[0]).abs().argsort(descending=True)[:10].tolist()
    }
    numbers = {"mass that moved": Quantity.number(moved, len(e.held))}
    if moved <= PRIOR or moved <= 3 * float(noise):
        return fine("prior", "Classes are as frequent in held-out rows as in training.")
    c = int((shares[1] - shares[0]).abs().argmax())
    severity: Severity = "warning" if moved > LARGE_PRIOR else "look"
    return Finding(
        "prior",
        severity,
        f"Classes are not as frequent in held-out rows as in training: class {e.fitted.class_name(c)} has "
        f"{float(shares[1][c]):.0%} instead of {float(shares[0][c]):.0%}.",
        "If the held-out shares are those of the future, weight classes accordingly in training, or correct "
        "predictions: multiply probabilities by new share / old share and normalise.",
        numbers,
        breakdown,
        title="Other class shares in held-out rows",
    )


def unlabelled_shift(e: Evidence) -> Finding | None:
    """Say how unlabelled rows differ from the training rows; None if they do not."""
    if e.unlabelled is None:
        return None
    moved = moved_features(e, e.unlabelled)
    distance = e.nearest(e.scaled(e.unlabelled), 1)[0][:, 0]
    farther = is_farther(e, distance)
    if not moved and farther.lower <= 0.6:
        return None
    far = beyond(e, distance)
    share = Quantity.share(int(far.sum()), len(far), e.confidence)
    return Finding(
        "shift",
        "look" if share.lower < 0.2 else "warning",
        f"Unlabelled rows differ from the training rows: {share} lie farther from them than 99 % of the "
        f"training rows do from each other.{named_moves(moved)} What the model does there was never tested.",
        "Label some of these rows and judge the model on them before you rely on it.",
        {
            "far from the training rows": share,
            "likelier to be farther": Quantity.number(farther.value, len(far)),
        },
        {f"feature {name}": q for name, q in list(moved.items())[:20]},
        title="Unlabelled rows lie elsewhere",
        rows=tuple(distance.argsort(descending=True)[:_ROWS].tolist()),
        rows_of="unlabelled",
    )


def named_moves(moved: dict[str, Quantity]) -> str:
    """Name the features that moved most, as a sentence."""
    if not moved:
        return ""
    shown = ", ".join(list(moved)[:3])
    more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
    return f" Features that moved most: {shown}{more}."
