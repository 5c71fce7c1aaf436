"""Findings about the rows: targets, copies, leaks between sets, scales, and shifts between sets.

A judge returns its findings, or a sentence if there is no problem.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elliptica._utils.statistics import bonferroni, is_beyond_chance
from elliptica.tables.evidence import COMPARABLE, FARTHER, NEIGHBOURS, Evidence, Sample, listed
from elliptica.tables.findings import Finding, Quantity, RowsOf, Severity, grade, skipped

#: Deep inside a class, labels that differ from their neighbours are normal up to this share, and in a
#: single class up to the second one.
NATURAL, NATURAL_IN_CLASS = 0.03, 0.05
#: A target this many local deviations from its neighbours is suspicious; a share of them is normal.
FAR_TARGET, NATURAL_FAR = 6.0, 0.01
#: Shares of the squared deviations in the largest targets: for a look, for a warning.
DWARFED, MOSTLY_DWARFED = 0.5, 0.9
#: Shares of copied rows from which they are worth a look, and a warning.
COPIES, MANY_COPIES = 0.05, 0.3
#: Shares of held-out rows that are training rows: for a look, for a warning.
SHARED, MANY_SHARED = 0.01, 0.05
#: Features are out of scale if their deviation is so many times the median, or so many times smaller.
LARGE_SCALE, SMALL_SCALE = 20.0, 1000.0
#: Means this many deviations from zero are out of scale, too.
FAR_FROM_ZERO = 100.0
#: Class shares differ if so much of the mass moved; a warning from the second value on.
PRIOR, LARGE_PRIOR = 0.1, 0.25
#: Error at shifted rows minus training error, in errors of a constant: alone, and with the factor of growth.
SHIFTED_GAP, SMALL_SHIFTED_GAP, GROWTH = 0.08, 0.03, 1.5


# ---- the encoding of targets


def judge_label_order(e: Evidence) -> Finding | str:
    """Compare the labels with the outputs in another order, in training rows and in held-out rows."""
    judge = _renamed if e.task == "classes" else _rescaled
    findings = [judge(e, sample) for sample in (e.train, e.held) if len(sample)]
    right = "Targets are in the same order and unit as the outputs."
    return next((finding for finding in findings if finding is not None), right)


def _rescaled(e: Evidence, sample: Sample) -> Finding | None:
    """Check whether targets are the predictions in another unit, so that a line explains them."""
    if sample.y.shape[1] != 1 or len(sample) < 10:
        return None
    if sample is e.held and e.moved:
        return skipped("features moved in held-out rows, which looks like another unit of the targets")
    f, y = sample.outputs[:, 0], sample.y[:, 0]
    spread, variance = (float(v.var(correction=0)) for v in (f, y))
    if spread == 0 or bool((y == y[0]).all()):  # a constant has no unit
        return None
    slope = float(((f - f.mean()) * (y - y.mean())).mean()) / spread
    offset = float(y.mean()) - slope * float(f.mean())
    before, after = (float((y - v).square().mean()) for v in (f, offset + slope * f))
    if before < 0.5 * variance or after > 0.3 * variance or after > 0.1 * before:
        return None
    return Finding(
        "warning",
        f"{sample.name.capitalize()} targets are in another unit",
        f"The {sample.name} targets are in another unit than the predictions: {slope:.3g} times the "
        f"prediction plus {offset:.3g} leaves {after / before:.0%} of the squared error.",
        "Check how targets were scaled in training and here. Until then, other findings mean nothing.",
        {"squared error that is left": Quantity.number(after / before, len(sample))},
        rows_of=sample.name,
    )


def _renamed(e: Evidence, sample: Sample) -> Finding | None:
    """Check whether far more labels are right after renaming classes."""
    guess, y, name = sample.outputs.argmax(1), sample.y, e.fitted.class_name
    table = torch.zeros(e.n_classes, e.n_classes).index_put((y, guess), torch.ones(len(y)), accumulate=True)
    present, order = table.sum(1) > 0, table.argmax(1)
    is_order = len(order[present].unique()) == int(present.sum()) >= 2
    right, renamed = (Quantity.share(guess == v, e.confidence) for v in (y, order[y]))
    if not is_order or renamed.value < max(right.value + 0.3, 0.6):
        return None
    moved = [c for c in range(e.n_classes) if present[c] and int(order[c]) != c]
    pairs = ", ".join(f"{name(c)} is called {name(int(order[c]))}" for c in moved[:4])
    return Finding(
        "warning",
        f"{sample.name.capitalize()} labels are in another order",
        f"The {sample.name} labels are in another order than the outputs: {right.value:.0%} are right as "
        f"they are, {renamed.value:.0%} after renaming ({pairs}{' ...' if len(moved) > 4 else ''}).",
        "Check how labels were numbered in training and here. Until then, other findings mean nothing.",
        {"right as they are": right, "right after renaming": renamed},
        rows_of=sample.name,
    )


# ---- wrong targets


def judge_labels(e: Evidence) -> Finding | str:
    """Look for training targets that contradict those of their neighbours."""
    return _judge_classes(e) if e.task == "classes" else _judge_values(e)


def suspected_rows(e: Evidence, rows: Tensor) -> Int[Tensor, " suspected"]:
    """Add less certain rows to the given training rows: labels of two classes that are often confused."""
    suspected = torch.isin(e.base, rows)
    if e.task == "classes":
        given, votes = e.train.y[e.base], _vote(e, e.near[1], e.train.y[e.base])
        pair = torch.minimum(given, votes.major) * e.n_classes + torch.maximum(given, votes.major)
        is_often = torch.bincount(pair[suspected], minlength=e.n_classes**2) >= 5
        suspected |= is_often[pair] & (votes.doubt > 0.5)
    return e.base[suspected]


class _Votes(NamedTuple):
    """Vote of each row's neighbours."""

    share: Tensor  # of the largest class
    major: Tensor  # the largest class
    differs: Tensor  # whether the label differs from it
    doubt: Tensor  # share of the ten nearest with another label


def _vote(e: Evidence, numbers: Tensor, y: Tensor) -> _Votes:
    share, major = e.average(numbers).max(1)
    doubt = 1 - e.average(numbers[:, :NEIGHBOURS]).gather(1, y[:, None])[:, 0]
    return _Votes(share, major, y != major, doubt)


def _judge_classes(e: Evidence) -> Finding | str:
    """Count labels that differ from their neighbourhood where that is purest, in training and held-out rows.

    Where classes overlap, or change faster than neighbours can follow, labels naturally differ from their
    neighbours, in held-out rows as often as in training. Wrong labels are more frequent in one of the two.
    """
    train = _vote(e, e.near[1], e.train.y[e.base])
    limit = float(train.share.quantile(0.75))
    rate = Quantity.share(train.differs[train.share >= limit], e.confidence)
    is_raised = rate.lower > NATURAL or max(_deep_rates(e, train), default=0.0) > NATURAL_IN_CLASS
    if len(e.held):
        held = _vote(e, e.near_held[1], e.held.y)
        close = ~e.beyond(e.held_distance)  # rows without close neighbours do not count
        held = held._replace(share=held.share * close, differs=held.differs & close)
        has_same_shares = float((e.shares(e.held) - e.constant).abs().sum() / 2) <= PRIOR
        if has_same_shares and _differs_more(e, held, train, limit):
            return _wrong_labels(e, e.held, held, limit, "warning")
        if is_raised and _differs_more(e, train, held, limit):
            return _wrong_labels(e, e.train.take(e.base), train, limit, "warning")
        more_wrong = (held.major != e.held.y).double() - e.is_wrong(e.held).double()
        is_raised = is_raised and Quantity.mean(more_wrong, e.confidence).lower <= 0
    if not is_raised:
        return f"Labels agree with their neighbours where these agree ({rate} differ)."
    # without held-out rows, wrong labels and overlapping classes look the same
    return _wrong_labels(e, e.train.take(e.base), train, limit, "look")


def _deep_rates(e: Evidence, votes: _Votes) -> list[float]:
    """Return lower limits of the share of labels that differ in the purer half of each class's votes."""
    members = [votes.major == c for c in range(e.n_classes)]
    members = [rows for rows in members if int(rows.sum()) >= 20]
    level = bonferroni(e.confidence, len(members))
    deep = [rows & (votes.share >= votes.share[rows].median()) for rows in members]
    return [Quantity.share(votes.differs[rows], level).lower for rows in deep]


def _differs_more(e: Evidence, a: _Votes, b: _Votes, limit: float) -> bool:
    """Return whether labels differ from pure neighbourhoods more often in ``a``, overall or in a class."""
    pairs = [(a.share >= limit, b.share >= limit)]
    for c in range(e.n_classes):
        first, second = a.major == c, b.major == c
        if min(int(first.sum()), int(second.sum())) >= 20:
            middle = torch.cat([a.share[first], b.share[second]]).median()
            pairs.append((first & (a.share >= middle), second & (b.share >= middle)))
    # both directions are tested, and counts are small, so use a tenth of the usual error rate
    level = bonferroni(1 - (1 - e.confidence) / 10, len(pairs))
    differs = [(a.differs[rows].double(), b.differs[others].double()) for rows, others in pairs]
    enough = [(x, y) for x, y in differs if min(len(x), len(y)) >= 10 and int(x.sum()) >= 5]
    return any(Quantity.difference(x, y, level).lower > 0.01 for x, y in enough)


def _wrong_labels(e: Evidence, sample: Sample, votes: _Votes, limit: float, severity: Severity) -> Finding:
    """Report labels that most neighbours contradict; sentence, breakdown and rows count the same ones."""
    suspects = votes.differs & (votes.doubt >= 0.8) & (votes.share >= 0.5)
    if not bool(suspects.any()):
        suspects = votes.differs & (votes.share >= limit)
    order = [i for i in votes.doubt.argsort(descending=True, stable=True).tolist() if suspects[i]]
    share, name = Quantity.share(suspects, e.confidence), e.fitted.class_name
    pairs = Counter((name(int(sample.y[i])), name(int(votes.major[i]))) for i in order).most_common()
    mostly = ", ".join(f"{n} of class {a} among class {b}" for (a, b), n in pairs[:2])
    where = f" Most often: {mostly}." if 2 * sum(n for _, n in pairs[:2]) > len(order) else ""
    is_held = sample.name == "held-out"
    text = f"{len(order)} of {len(sample)} {sample.name} labels ({share.value:.1%})"
    if severity == "look":
        title = "Labels contradict their neighbours"
        text += " contradict most neighbours: they are wrong, or these inputs do not determine the class."
        advice = "Look at some of the rows listed. If their labels are right, better inputs would help."
    else:
        title, other = ("Held-out labels", "training") if is_held else ("Labels", "held-out")
        title = f"{title} look wrong"
        text += f" look wrong: most neighbours carry another one, clearly more than of {other} labels."
        advice = "Check the rows listed. Relabel or remove wrong ones, train again; until then, stop early."
        if is_held:
            advice = "Check how these labels were made and joined to their rows; until then trust no score."
    return Finding(
        severity,
        title,
        f"{text}{where}",
        advice,
        {"labels unlike their neighbours'": share},
        {f"{a} among {b}": Quantity.number(n, len(order)) for (a, b), n in pairs},
        rows=order if is_held else e.base[order].tolist(),
        rows_of=sample.name,
    )


def _target_distance(e: Evidence, numbers: Tensor, y: Float[Tensor, "rows 1"]) -> Float[Tensor, " rows"]:
    """Return the distance of each target from its neighbours' median, in their median deviations."""
    around, targets = e.train.y[:, 0][numbers], e.train.y[:, 0]
    middle = around.median(1).values
    spread = (around - middle[:, None]).abs().median(1).values
    overall = (targets - targets.median()).abs().median()
    scale = 1.4826 * torch.maximum(spread, 0.05 * overall)
    return (y[:, 0] - middle).abs() / scale.clamp_min(1e-300)


def _judge_values(e: Evidence) -> Finding | str:
    z = _target_distance(e, e.near[1], e.train.y[e.base])
    rate, is_rarer = Quantity.share(z > FAR_TARGET, e.confidence), False
    if len(e.held):
        other = _target_distance(e, e.near_held[1], e.held.y)
        other = other * ~e.beyond(e.held_distance)  # far rows have no close neighbours
        excess = Quantity.difference((other > FAR_TARGET).double(), (z > FAR_TARGET).double(), e.confidence)
        if Quantity.share(other > FAR_TARGET, e.confidence).lower > NATURAL_FAR and excess.lower > 0.005:
            return _wrong_values(e, other, e.held, "warning")
        is_rarer = excess.upper < -0.005
    if rate.lower > NATURAL_FAR:
        return _wrong_values(e, z, e.train, "warning" if is_rarer else "look")
    squares = (e.train.y[:, 0] - e.train.y[:, 0].median()).square()
    top = squares.argsort(descending=True, stable=True)[: max(1, len(squares) // 200)]
    share = float(squares[top].sum() / squares.sum())
    if share <= DWARFED:
        return f"Targets agree with those of their neighbours ({rate} are far off)."
    return Finding(
        grade(share, DWARFED, MOSTLY_DWARFED),
        "A few target values dwarf all others",
        f"{len(top)} of {len(squares)} training targets account for {share:.0%} of all squared deviations.",
        "Check these rows first: a wrong unit or a wrong value? They alone determine a squared error.",
        {"share of the squared deviations": Quantity.number(share, len(squares))},
        rows=top.tolist(),
    )


def _wrong_values(e: Evidence, z: Tensor, sample: Sample, severity: Severity) -> Finding:
    rate, is_held = Quantity.share(z > FAR_TARGET, e.confidence), sample is e.held
    order = z.argsort(descending=True, stable=True)[: int((z > FAR_TARGET).sum())]
    what = "Held-out target values" if is_held else "Target values"
    advice = (
        "Correct or remove wrong values. If they are real, learn the logarithm or use torch.nn.HuberLoss."
    )
    if is_held:
        advice = "Check how these targets were made, and their units, before you trust any held-out score."
    return Finding(
        severity,
        f"{what} look wrong" if severity == "warning" else f"{what} far from their neighbours'",
        f"{len(order)} of {len(z)} {sample.name} targets ({rate.value:.1%}) lie more than {FAR_TARGET:g} "
        "local deviations away from those of their neighbours: wrong values, another unit, or rare events.",
        advice,
        {"targets unlike their neighbours'": rate},
        rows=(order if is_held else e.base[order]).tolist(),
        rows_of=sample.name,
    )


# ---- copies


def judge_duplicates(e: Evidence) -> Finding | str:
    """Count training rows that are copies of others, beyond what discrete features explain."""
    raw, (first, counts, _) = e.train.raw, e.copies
    n, distinct = len(raw), len(counts)
    share = (n - distinct) / n
    columns = (column.unique(return_counts=True)[1].numpy() for column in raw.T)
    if share <= COPIES or not is_beyond_chance(counts.numpy(), columns):
        return f"{n - distinct} of {n} training rows are copies of others."
    # without a distinguishing feature, equal rows may well be different samples
    tells_apart = max(len(column.unique()) for column in raw.T) > 0.5 * distinct
    return Finding(
        grade(share, COPIES, MANY_COPIES if tells_apart else math.inf),
        "Copies among the training rows",
        f"{n - distinct} of {n} training rows are copies of others; one row occurs {int(counts.max())} "
        f"times. There are {distinct} distinct rows, so limits and scores are too optimistic.",
        "Remove copies before splitting, or keep all copies of a row in the same part.",
        {"share of copies": Quantity.number(share, n), "distinct rows": Quantity.number(distinct, n)},
        rows=listed(~torch.isin(torch.arange(n), first)),
    )


def judge_leak(e: Evidence) -> Finding | str:
    """Count held-out rows that are training rows, beyond the share of duplicates in training."""
    known = {row.tobytes() for row in (e.train.raw + 0.0).numpy()}
    shared = torch.tensor([row.tobytes() in known for row in (e.held.raw + 0.0).numpy()])
    if len(e.base) >= 40:  # rounded copies, too
        shared = shared | (e.held_distance < 1e-3 * e.near[0][:, 0].median())
    twins = float((e.copies[1][e.copies[2]] > 1).double().mean())
    share, count, others = Quantity.share(shared, e.confidence), int(shared.sum()), ""
    if share.lower <= 1.2 * twins + SHARED:
        return f"{count} of {len(e.held)} held-out rows are training rows."
    if e.task != "other" and len(e.held) - count >= 10:
        rest, overall = (float(e.errors(e.held)[rows].mean()) for rows in (~shared, shared | True))
        others = f" At the others the error is {rest:.2f}, at all {overall:.2f}."
    return Finding(
        "warning" if share.value - twins > MANY_SHARED else "look",
        "Held-out rows were trained on",
        f"{count} of {len(e.held)} held-out rows ({share.value:.0%}) are training rows, too: the held-out "
        f"score is too good.{others}",
        "Remove them from one of the two sets and judge the model again.",
        {"held-out rows that are training rows": share},
        rows=listed(shared),
        rows_of="held-out",
    )


# ---- inputs


def judge_inputs(e: Evidence) -> Finding | str:
    """Look for features that do not vary, or that have another scale than the others."""
    varying, still = listed(e.varies), listed(~e.varies)
    if not varying:
        text = "No feature varies: all training rows are equal."
        return Finding("warning", "Inputs do not vary", text, "Check how x is made.")
    deviation, middle = e.deviation, float(e.deviation[e.varies].median())
    is_off = (deviation > LARGE_SCALE * middle) | (deviation * SMALL_SCALE < middle)
    is_off |= e.centre.abs() > FAR_FROM_ZERO * deviation
    off = [j for j in varying if is_off[j] and not e.fitted.scales_inputs]
    off.sort(key=lambda j: -float(deviation[j]))
    parts, advice = [], "Drop features that do not vary, or find out why they do not."
    if still and (len(e.varies) <= 20 or len(still) > 0.2 * len(e.varies)):
        parts.append(f"not varying: {_names(e, still)}")
    if off:
        sizes = f"deviation {float(deviation[off[0]]):.3g}, median of all {middle:.3g}"
        parts.append(f"on another scale or far from zero: {_names(e, off)} ({sizes})")
        advice = "Subtract the mean and divide by the deviation of the training rows, and train again."
    if not parts:
        return "Inputs vary on similar scales."
    return Finding(
        "warning" if off and e.neighbours_gain.lower > 0.05 else "look",
        "Inputs are not on one scale" if off else "Inputs that do not vary",
        f"Features {'; '.join(parts)}.",
        advice,
        {"largest deviation over the median one": Quantity.number(float(deviation.max()) / middle)},
        {e.feature(j): Quantity.number(float(deviation[j])) for j in off[:20]},
    )


def _names(e: Evidence, features: Sequence[int]) -> str:
    more = f" and {len(features) - 4} more" if len(features) > 4 else ""
    return f"{', '.join(e.feature(j) for j in features[:4])}{more}"


# ---- what moved


def judge_prior(e: Evidence) -> Finding | str:
    """Compare the shares of classes in training and held-out rows."""
    name, ours, theirs = e.fitted.class_name, e.shares(e.train), e.shares(e.held)
    change, n, m = theirs - ours, len(e.train), len(e.held)
    moved, order = float(change.abs().sum() / 2), change.abs().argsort(descending=True).tolist()
    # standard error of each share if both sets had the same shares
    pooled = (n * ours + m * theirs) / (n + m)
    noise = float((pooled * (1 - pooled) * (1 / n + 1 / m)).sqrt().sum() / 2)
    unknown = [name(c) for c in range(e.n_classes) if ours[c] == 0 and theirs[c] > 0]
    severity = "warning" if unknown else grade(moved, PRIOR, LARGE_PRIOR)
    if severity == "fine" or (moved <= 3 * noise and not unknown):
        return "Classes are as frequent in held-out rows as in training."
    c, title = order[0], "Other class shares in held-out rows"
    text = f"In held-out rows, class {name(c)} has {float(theirs[c]):.0%} instead of {float(ours[c]):.0%}."
    advice = "If this stays so: weight classes, or multiply probabilities by new share / old share."
    if unknown:
        title = "Classes that were never trained"
        text = f"Held-out rows have classes without a single training row: {', '.join(unknown[:5])}."
        advice = "Shuffle before you split, or get training rows of these classes."
    breakdown = {f"class {name(c)}": Quantity.number(float(change[c])) for c in order[:10]}
    return Finding(severity, title, text, advice, {"mass that moved": Quantity.number(moved, m)}, breakdown)


def judge_shift(e: Evidence) -> list[Finding] | Finding | str:
    """Judge whether unlabelled and held-out rows lie elsewhere, and whether the error rises there."""
    findings, reason = [], e.lacks(*COMPARABLE)
    if len(e.unlabelled):
        moved, distance = e.moved_features(e.unlabelled), e.nearest(e.scaled(e.unlabelled), 1)[0][:, 0]
        if moved or e.is_farther(distance).lower > FARTHER:
            findings.append(_shift(e, "unlabelled", moved, distance))
    elif reason:
        return skipped(reason)
    if not reason and e.is_shifted:
        findings.append(_shift(e, "held-out", e.moved, e.held_distance))
    return findings or "Other rows lie where the training rows do."


def _shift(e: Evidence, kind: RowsOf, moved: dict[str, Quantity], distance: Tensor) -> Finding:
    far = e.beyond(distance)
    share, title = Quantity.share(far, e.confidence), f"{kind.capitalize()} rows lie elsewhere"
    more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
    names = f" Features that moved most: {', '.join([*moved][:3])}{more}." if moved else ""
    severity: Severity = "look" if share.lower < 0.2 else "warning"
    effect = "What the model does there was never tested."
    advice = "Label some of these rows and judge the model on them before you rely on it."
    if kind == "held-out":
        before, after = e.error(e.train), e.error(e.held)
        gap = Quantity.difference(e.errors(e.held), e.errors(e.train), e.confidence).lower
        severity, effect = "info", "The error does not rise."
        advice = "Nothing to do for these rows; judge the model again when inputs move further."
        if gap > SHIFTED_GAP or (gap > SMALL_SHIFTED_GAP and after > GROWTH * before):
            severity, title = "warning", "Held-out rows differ, and the error is higher"
            effect = f"The error rises from {before:.2f} to {after:.2f}."
            advice = "Check scaling, units and order of columns of these rows. If right, train on rows from "
            advice += "there, bound predictions, and use elliptica compare --time, --split-by or --test."
    return Finding(
        severity,
        title,
        f"{share} of the {kind} rows lie farther from the training rows than 99 % of those lie from each "
        f"other.{names} {effect}",
        advice,
        {"far from the training rows": share},
        {f"feature {name}": q for name, q in list(moved.items())[:20]},
        rows=distance.argsort(descending=True)[: int(far.sum())].tolist(),
        rows_of=kind,
    )
