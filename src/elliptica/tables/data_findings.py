"""Findings about the rows: labels, copies, leaks between sets, scales, and shifts between sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elliptica._utils.statistics import bonferroni
from elliptica.tables.evidence import NEIGHBOURS, Difference, Evidence, number_rows
from elliptica.tables.findings import Finding, Quantity, RowsOf, Severity, fine, skipped

#: Deep inside a class, labels that differ from their neighbours are normal up to this share, and in a
#: single class up to the second one.
NATURAL, NATURAL_IN_CLASS = 0.03, 0.05
#: A target this many local deviations from its neighbours is suspicious; a share of them is normal.
FAR_TARGET, NATURAL_FAR = 6.0, 0.01
#: Shares of copied rows from which they are worth a look, and a warning.
COPIES, MANY_COPIES = 0.05, 0.3
#: Shares of held-out rows that are training rows: for a look, for a warning.
SHARED, MANY_SHARED = 0.01, 0.05
#: Features are out of scale if their deviation is so many times the median, or so many times smaller.
LARGE_SCALE, SMALL_SCALE = 20.0, 1000.0
#: Two samples of a feature differ if their distribution functions differ by this much, significantly.
MOVED = 0.2
#: Class shares differ if so much of the mass moved; a warning from the second value on.
PRIOR, LARGE_PRIOR = 0.1, 0.25
_ROWS = 1000
#: Largest number of features to compare, evenly chosen among more (pixels).
_FEATURES = 512


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
    """Score rows of `Evidence.base` by how much their targets contradict their neighbours (at most 1)."""
    assert e.train.y is not None
    if e.task == "classes":
        own = e.train.y[e.base]
        return 1 - e.average(e.near[1][:, :NEIGHBOURS])[torch.arange(len(own)), own]
    z = _target_distance(e, e.near[1], e.train.y[e.base, 0])
    return z / (z + FAR_TARGET)


@dataclass(frozen=True)
class _Votes:
    """Vote of each row's neighbours: the largest class and its share, and whether the label differs."""

    share: Tensor
    major: Tensor
    differs: Tensor

    @classmethod
    def of(cls, e: Evidence, numbers: Tensor, y: Tensor) -> _Votes:
        """Count the labels of neighbours."""
        share, major = e.average(numbers).max(1)
        return cls(share, major, y != major)

    def within(self, rows: Tensor) -> _Votes:
        """Give rows without close neighbours a share of zero, so that they do not count."""
        return _Votes(torch.where(rows, self.share, 0.0), self.major, self.differs & rows)


def _judge_classes(e: Evidence) -> Finding:
    """Count labels that differ from their neighbourhood where that is purest, in training and held-out rows.

    Where classes overlap, or change faster than neighbours can follow, labels naturally differ from their
    neighbours, in held-out rows as often as in training. Wrong labels are more frequent in one of the two.
    """
    assert e.train.y is not None
    votes = _Votes.of(e, e.near[1], e.train.y[e.base])
    limit = float(votes.share.quantile(0.75))
    deep = votes.share >= limit
    rate = Quantity.share(int(votes.differs[deep].sum()), int(deep.sum()), e.confidence)
    by_class = _deep_rates(e, votes)
    surest = max(by_class.values(), key=lambda q: q.lower, default=rate)
    is_raised = rate.lower > NATURAL or surest.lower > NATURAL_IN_CLASS
    if e.held is not None and e.held.y is not None:
        other = _Votes.of(e, e.near_held[1], e.held.y).within(~beyond(e, e.held_distance))
        if not _shares_moved(e) and _more_than(e, other, votes, limit):
            return _wrong_labels(e, other, other.share >= limit, "held-out", "warning")
        if is_raised and _more_than(e, votes, other, limit):
            return _wrong_labels(e, votes, deep, "training", "warning", by_class)
        model, neighbours = e.is_wrong(e.held).double(), (other.major != e.held.y).double()
        is_raised = is_raised and Difference.paired(neighbours - model, e.confidence).lower <= 0
    if not is_raised:
        return fine("labels", f"Labels agree with their neighbours where these agree ({rate} differ).")
    # without held-out rows, wrong labels and overlapping classes look the same
    return _wrong_labels(e, votes, deep, "training", "look", by_class)


def _shares_moved(e: Evidence) -> bool:
    """Return whether class shares differ in held-out rows; rows of a class new to them would look wrong."""
    assert e.held is not None
    assert e.held.y is not None
    theirs = torch.bincount(e.held.y, minlength=e.n_classes).double() / len(e.held)
    return float((theirs - e.constant).abs().sum() / 2) > PRIOR


def _more_than(e: Evidence, a: _Votes, b: _Votes, limit: float) -> bool:
    """Return whether labels differ from pure neighbourhoods more often in ``a``, overall or in a class."""
    pairs = [(a.share >= limit, b.share >= limit)]
    for c in range(e.n_classes):
        own = [votes.major == c for votes in (a, b)]
        if min(int(each.sum()) for each in own) >= 20:
            middle = torch.cat([a.share[own[0]], b.share[own[1]]]).median()
            pairs.append((own[0] & (a.share >= middle), own[1] & (b.share >= middle)))
    # both directions are tested, and counts are small, so use a tenth of the usual error rate
    level = bonferroni(1 - (1 - e.confidence) / 10, len(pairs))
    for rows, others in pairs:
        if min(int(rows.sum()), int(others.sum())) < 10:
            continue
        count = int(a.differs[rows].sum())
        gap = Difference.between(a.differs[rows].double(), b.differs[others].double(), level)
        if gap.lower > 0.01 and count >= 5:
            return True
    return False


def _wrong_labels(
    e: Evidence,
    votes: _Votes,
    deep: Tensor,
    rows_of: RowsOf,
    severity: Severity,
    by_class: dict[str, Quantity] | None = None,
) -> Finding:
    sample = e.train if rows_of == "training" else e.judged
    numbers = (e.near if rows_of == "training" else e.near_held)[1][:, :NEIGHBOURS]
    assert sample.y is not None
    own = sample.y[e.base] if rows_of == "training" else sample.y
    doubt = 1 - e.average(numbers)[torch.arange(len(own)), own]
    suspects = votes.differs & (doubt >= 0.8) & (votes.share >= 0.5)
    order = [i for i in doubt.argsort(descending=True, stable=True).tolist() if suspects[i]][:_ROWS]
    rate = Quantity.share(int(votes.differs[deep].sum()), int(deep.sum()), e.confidence)
    named = {name: q for name, q in (by_class or {}).items() if q.lower > NATURAL_IN_CLASS}
    where = f" Most in class {next(iter(named))}." if named and len(named) < len(by_class or {}) else ""
    likely = max(rate.value, float(suspects.double().mean()))
    if severity == "warning":
        title = "Labels look wrong" if rows_of == "training" else "Held-out labels look wrong"
        sure = "" if e.held is None else " In the other rows there are clearly fewer of them."
        sentence = (
            f"About {likely:.0%} of the {rows_of} labels look wrong: of rows that are surrounded by one "
            f"class, "
            f"{rate} carry another label.{where}{sure}"
        )
        advice = (
            "Check the rows listed. Relabel or remove those that are wrong, then train again. Without that, "
            "stop early on held-out rows."
            if rows_of == "training"
            else "Check how these labels were made and joined to their rows; until then trust no score."
        )
    else:
        title = "Labels contradict their neighbours"
        sentence = (
            f"Either labels are wrong, or these inputs do not determine the class: of rows that are "
            f"surrounded "
            f"by one class, {rate} carry another label.{where}"
        )
        advice = (
            "Look at some of the rows listed. If their labels are right, more or better inputs would help."
        )
    return Finding(
        "labels",
        severity,
        sentence,
        advice,
        {"rows that contradict pure surroundings": rate},
        {f"class {name}": q for name, q in (named or by_class or {}).items()},
        title=title,
        rows=tuple(int(e.base[i]) if rows_of == "training" else i for i in order),
        rows_of=rows_of,
    )


def _deep_rates(e: Evidence, votes: _Votes) -> dict[str, Quantity]:
    """Return the share of labels that differ from their neighbourhood, by class; the worst first."""
    classes = [c for c in range(e.n_classes) if int((votes.major == c).sum()) >= 20]
    level = bonferroni(e.confidence, max(1, len(classes)))
    rates = {}
    for c in classes:
        own = votes.major == c
        deep = own & (votes.share >= votes.share[own].median())
        rates[e.fitted.class_name(c)] = Quantity.share(int(votes.differs[deep].sum()), int(deep.sum()), level)
    return dict(sorted(rates.items(), key=lambda item: -item[1].lower))


def _target_distance(e: Evidence, numbers: Tensor, own: Tensor) -> Float[Tensor, " rows"]:
    """Return the distance of each target from its neighbours' median, in their median deviations."""
    assert e.train.y is not None
    y = e.train.y[:, 0]
    around = y[numbers]
    middle = around.median(1).values
    spread = (around - middle[:, None]).abs().median(1).values
    overall = (y - y.median()).abs().median()
    scale = 1.4826 * torch.maximum(spread, 0.05 * overall)
    return (own - middle).abs() / scale.clamp_min(1e-300)


def _judge_values(e: Evidence) -> Finding:
    assert e.train.y is not None
    if e.is_constant:
        return skipped("labels", "all targets are equal")
    z = _target_distance(e, e.near[1], e.train.y[e.base, 0])
    rate = Quantity.share(int((z > FAR_TARGET).sum()), len(z), e.confidence)
    if e.held is not None and e.held.y is not None:
        other = _target_distance(e, e.near_held[1], e.held.y[:, 0])
        other = torch.where(beyond(e, e.held_distance), 0.0, other)  # far rows have no close neighbours
        theirs = Quantity.share(int((other > FAR_TARGET).sum()), len(other), e.confidence)
        excess = Difference.between((other > FAR_TARGET).double(), (z > FAR_TARGET).double(), e.confidence)
        if theirs.lower > NATURAL_FAR and excess.lower > 0.005:
            return _wrong_values(e, other, theirs, "held-out", "warning")
        severity: Severity = "warning" if excess.upper < -0.005 else "look"
    else:
        severity = "look"
    lone = _lone_target(e)
    if rate.lower <= NATURAL_FAR and lone is not None:
        return lone
    if rate.lower <= NATURAL_FAR:
        return fine("labels", f"Targets agree with those of their neighbours ({rate} are far off).")
    return _wrong_values(e, z, rate, "training", severity)


def _lone_target(e: Evidence) -> Finding | None:
    """Find a few targets that account for most of the variance."""
    assert e.train.y is not None
    squares = (e.train.y[:, 0] - e.train.y[:, 0].median()).square()
    top = squares.argsort(descending=True, stable=True)[: max(1, len(squares) // 200)]
    share = float(squares[top].sum() / squares.sum())
    if share <= 0.5:
        return None
    return Finding(
        "labels",
        "warning" if share > 0.9 else "look",
        f"{len(top)} of {len(squares)} training targets account for {share:.0%} of all squared deviations.",
        "Check these rows first: a wrong unit or a wrong value? They alone determine a squared error.",
        {"share of the squared deviations": Quantity.number(share, len(squares))},
        title="A few target values dwarf all others",
        rows=tuple(top.tolist()),
    )


def _wrong_values(e: Evidence, z: Tensor, rate: Quantity, rows_of: RowsOf, severity: Severity) -> Finding:
    order = z.argsort(descending=True, stable=True)[: min(_ROWS, int((z > FAR_TARGET).sum()))].tolist()
    advice = (
        "Check the rows listed. Correct or remove wrong values. If they are real: learn the logarithm of "
        "positive, skewed targets, or train with a robust loss (torch.nn.HuberLoss)."
        if rows_of == "training"
        else "Check how these targets were made, and their units, before you trust any held-out score."
    )
    what = "Target" if rows_of == "training" else "Held-out target"
    return Finding(
        "labels",
        severity,
        f"{rate} of the {rows_of} targets lie more than {FAR_TARGET:g} local deviations away from those of "
        "their nearest training rows: wrong values, another unit, or rare events.",
        advice,
        {"targets unlike their neighbours'": rate},
        title=f"{what} values look wrong"
        if severity == "warning"
        else f"{what} values far from their neighbours'",
        rows=tuple(int(e.base[i]) if rows_of == "training" else i for i in order),
        rows_of=rows_of,
    )


# ---- copies


def judge_duplicates(e: Evidence) -> Finding:
    """Count training rows that are copies of others, beyond what discrete features explain."""
    number, counts = number_rows(e.train.raw)
    n, distinct = len(e.train), len(counts)
    copies = n - distinct
    share = copies / n
    numbers = {
        "share of copies": Quantity.number(share, n),
        "distinct rows": Quantity.number(float(distinct), n),
    }
    if share <= COPIES or not _beyond_chance(e.train.raw, counts):
        return fine("duplicates", f"{copies} of {n} training rows are copies of others.")
    # without a distinguishing feature, equal rows may well be different samples
    tells_apart = max(len(column.unique()) for column in e.train.raw.T) > 0.5 * distinct
    severity: Severity = "warning" if share > MANY_COPIES and tells_apart else "look"
    most = counts.argsort(descending=True)[:5]
    rows = torch.isin(number, most).nonzero().flatten()[:_ROWS]
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
    """Count held-out rows that are training rows, beyond the share of duplicates in training."""
    if e.held is None:
        return skipped("leak", "no held-out rows were given")
    n = len(e.train)
    number, _ = number_rows(torch.cat([e.train.raw, e.held.raw]))
    shared = torch.isin(number[n:], number[:n])
    if len(e.base) >= 40:  # rounded copies, too
        shared = shared | (e.held_distance < 1e-3 * e.near[0][:, 0].median())
    counts = torch.bincount(number[:n])
    twins = float((counts[number[:n]] > 1).double().mean())
    share = Quantity.share(int(shared.sum()), len(e.held), e.confidence)
    if share.lower <= 1.2 * twins + SHARED:
        return fine("leak", f"{int(shared.sum())} of {len(e.held)} held-out rows are training rows.")
    severity: Severity = "warning" if share.value - twins > MANY_SHARED else "look"
    wrong = ""
    if e.task != "other" and int((~shared).sum()) >= 10:
        wrong = (
            f" At the others the error is {float(e.errors(e.held)[~shared].mean()):.2f}, at all of them "
            f"{float(e.errors(e.held).mean()):.2f}."
        )
    return Finding(
        "leak",
        severity,
        f"{int(shared.sum())} of {len(e.held)} held-out rows ({share.value:.0%}) are training rows, too: the "
        f"held-out score is too good.{wrong}",
        "Remove them from one of the two sets and judge the model again.",
        {"held-out rows that are training rows": share},
        title="Held-out rows were trained on",
        rows=tuple(shared.nonzero().flatten()[:_ROWS].tolist()),
        rows_of="held-out",
    )


def _beyond_chance(rows: Float[Tensor, "rows features"], counts: Int[Tensor, " distinct"]) -> bool:
    """Return whether there are far more equal rows than discrete features give by chance.

    The chance assumes independent features, so a factor of a hundred is allowed.
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
    """Look for features that do not vary, or that have another scale than the others."""
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
    """Return the features whose distribution differs significantly from training; the largest first.

    The number is the distance of the two distribution functions (Kolmogorov-Smirnov), between 0 and 1.
    """
    train = e.train.raw
    n, m = len(train), len(other)
    if min(n, m) < 10:
        return {}
    level = (1 - e.confidence) / 100 / max(1, train.shape[1])
    limit = max(MOVED, math.sqrt(-math.log(level / 2) / 2 * (n + m) / (n * m)))
    moved = {}
    for j in range(0, train.shape[1], max(1, train.shape[1] // _FEATURES)):
        distance = _ks(train[:, j], other[:, j])
        if distance > limit:
            moved[e.feature(j)] = Quantity.number(distance, n + m)
    return dict(sorted(moved.items(), key=lambda item: -item[1].value))


def _ks(a: Float[Tensor, " n"], b: Float[Tensor, " m"]) -> float:
    """Return the largest difference of two distribution functions."""
    at = torch.cat([a, b]).unique()
    first = torch.searchsorted(a.sort().values, at, right=True).double() / len(a)
    second = torch.searchsorted(b.sort().values, at, right=True).double() / len(b)
    return float((first - second).abs().max())


def is_farther(e: Evidence, distance: Float[Tensor, " rows"]) -> Difference:
    """Return the probability that a row is farther from its nearest training row than a training row is."""
    own, distance = e.near[0][:, 0].sort().values, distance.contiguous()
    below = torch.searchsorted(own, distance) + torch.searchsorted(own, distance, right=True)
    places = below.double() / (2 * len(own))
    half = Difference.paired(places, 0.9999)
    ours = 3.9 * math.sqrt(1 / 12 / len(own))
    return Difference(half.value, half.lower - ours, half.upper + ours)


def beyond(e: Evidence, distance: Float[Tensor, " rows"]) -> Bool[Tensor, " rows"]:
    """Return whether rows are farther from the training rows than 99 % of these are from each other."""
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
    # standard error of each share if both sets had the same shares
    pooled = (ours + other) / (ours.sum() + other.sum())
    noise = (pooled * (1 - pooled) * (1 / ours.sum() + 1 / other.sum())).sqrt().sum() / 2
    breakdown = {
        f"class {e.fitted.class_name(c)}": Quantity.number(float(shares[1][c] - shares[0][c]))
        for c in (shares[1] - shares[0]).abs().argsort(descending=True)[:10].tolist()
    }
    numbers = {"mass that moved": Quantity.number(moved, len(e.held))}
    unknown = [e.fitted.class_name(k) for k in range(e.n_classes) if ours[k] == 0 and other[k] > 0]
    if unknown:
        return Finding(
            "prior",
            "warning",
            f"Held-out rows have classes without a single training row: {', '.join(unknown[:5])}. They "
            f"cannot "
            "be predicted.",
            "Shuffle before you split, or get training rows of these classes.",
            numbers,
            breakdown,
            title="Classes that were never trained",
        )
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
    """Report how unlabelled rows differ from the training rows; None if they do not."""
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
        f"training rows do from each other.{named_moves(e, moved)} What the model does there was never "
        f"tested.",
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


def named_moves(e: Evidence, moved: dict[str, Quantity]) -> str:
    """Return a sentence that names the features that moved most; for a single one, by how much."""
    if not moved:
        return ""
    if len(moved) == 1 and e.held is not None:
        (name,) = moved
        j = next(j for j in range(len(e.varies)) if e.feature(j) == name)
        ours, other = e.train.raw[:, j], e.held.raw[:, j]
        factor = float(other.std() / ours.std().clamp_min(1e-300)) if len(other) > 1 else 1.0
        return (
            f" One feature moved: {name}, by {float(other.mean() - ours.mean()):+.3g} on average (its "
            f"deviation "
            f"is {factor:.2g} times that of training)."
        )
    shown = ", ".join(list(moved)[:3])
    more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
    return f" Features that moved most: {shown}{more}."
