"""Findings about the model: does it predict, where does it fail, and is its confidence right?"""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import permutations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from elliptica._utils.statistics import bonferroni, fit_temperature
from elliptica.core.layers import evaluation_mode
from elliptica.tables.evidence import NEIGHBOURS, Evidence, Sample, listed
from elliptica.tables.findings import Finding, Quantity, RowsOf, Severity, grade, skipped

#: A model that saves less than this share of a constant's error is hardly better.
HARDLY = 0.1
#: Gain of nearest neighbours over the model, in errors of a constant: for a look, for a warning.
UNDERFIT, CLEARLY_UNDERFIT = 0.05, 0.15
#: Held-out minus training error, in errors of a constant: for a look, for a warning.
GAP, LARGE_GAP = 0.08, 0.15
#: Share of wrong rows in a class or group: for a look, for a warning; and relative to the others.
WEAK, VERY_WEAK, TIMES_OTHERS = 0.1, 0.25, 2.0
#: The same for values, in errors of a constant above that of the others.
WEAK_VALUES, VERY_WEAK_VALUES = 0.1, 0.25
#: Share of the target range by which predictions must leave it; share of such rows for a warning.
OUTSIDE, MANY_OUTSIDE = 0.1, 0.01
#: Log loss that a temperature saves, in nats: for a look, for a warning if over- and if under-confident.
SAVED, MUCH_SAVED, MUCH_SAVED_BELOW = 0.02, 0.1, 0.3
#: Share of the loss at far rows: for a look, for a warning; the most rows that may be called far.
CARRIED, MOST_CARRIED, FEW_FAR = 0.3, 0.5, 0.15


# ---- does it predict?


def judge_outputs(e: Evidence) -> Finding | str:
    """Evaluate the same rows twice and alone: a model that is random or mixes rows cannot be judged."""
    x, model, apart = e.rows["training"].x[:256], e.fitted.model, math.inf
    with evaluation_mode(model), torch.no_grad():
        first, second = (model(x).double() for _ in range(2))
        size = float(first.abs().max()) or 1.0
        change = float((first - second).abs().max()) / size
        with suppress(ValueError, RuntimeError):  # batch norm without running statistics
            alone = torch.cat([model(row).double() for row in x[:3].split(1)])
            apart = float((first[:3] - alone).abs().max()) / size
    if change > 1e-4:
        text = f"Two evaluations of the same rows differ by up to {change:.0%} of the largest output."
        advice = "Switch dropout, noise and sampling off in eval mode."
        return Finding("warning", "The model is random in evaluation mode", text, advice)
    if apart > 1e-2:
        text = "A row evaluated alone has another output than in a batch, or none."
        advice = "Let batch norms use running statistics in eval mode (track_running_stats=True)."
        return Finding("warning", "Outputs depend on the batch", text, advice)
    return "The same row has the same output."


def judge_constant(e: Evidence) -> Finding | str:
    """Compare the model with the best constant prediction, row by row, on its own training rows."""
    gains = {s.name: _gain(e, s) for s in (e.train, e.held) if len(s)}
    train = gains["training"]
    # a held-out set alone is judged by `judge_overfitting`
    hardly = all(gain.value < HARDLY for gain in gains.values())
    if (train.lower > 0 or train.value > 0.25) and not hardly:
        return f"The error at training rows is {1 - train.value:.2f} of a constant's."
    compared = "is hardly better" if train.lower > 0 else "is not shown to be better"
    return Finding(
        "warning" if train.upper < HARDLY else "look",
        "No better than a constant",
        f"The model {compared} than a constant prediction: its error at the training rows is "
        f"{1 - train.value:.2f} ({max(0.0, 1 - train.upper):.2f} to {1 - train.lower:.2f}).",
        "Check that inputs, preprocessing and weights are those of training. Then train longer, with less "
        "weight decay, at other rates, with shuffled batches.",
        {f"error below a constant's, {name} rows": gain for name, gain in gains.items()},
    )


def _gain(e: Evidence, sample: Sample) -> Quantity:
    """Return the share of the constant's error that the model saves; for classes also by wrong rows, if more.

    A model that is right but over-confident still predicts; its confidence is judged separately.
    """
    pairs = [(e.errors(sample, e.constant.expand(len(sample), -1)), e.errors(sample))]
    if e.task == "classes":
        pairs.append(((sample.y != int(e.constant.argmax())).double(), e.is_wrong(sample).double()))
    gains = [Quantity.mean((a - b) / (float(a.mean()) or 1.0), e.confidence) for a, b in pairs]
    return max(gains, key=lambda gain: gain.value)


def judge_underfit(e: Evidence) -> Finding | str:
    """Compare the model with the average of nearest neighbours at the training rows."""
    gain = e.neighbours_gain
    severity = grade(gain.lower, UNDERFIT, CLEARLY_UNDERFIT)
    if severity == "fine":
        return "Nearest neighbours do not predict clearly better than the model."
    return Finding(
        severity,
        "The model has not learnt its data",
        f"The ten nearest neighbours predict better than the model even at its own training rows: their "
        f"error is smaller by {gain.value:.2f}; the model's is {e.error(e.train):.2f}.",
        "Shuffle batches and standardise inputs. Then train longer, with less weight decay or with a larger "
        "network. Compare with boosted trees (elliptica compare).",
        {"error above that of neighbours": gain},
    )


def judge_overfitting(e: Evidence) -> Finding | str:
    """Compare the errors of held-out and training rows, where both lie in the same place."""
    if e.is_shifted:
        return "Held-out rows lie elsewhere, so the gap is not overfitting."
    train, held = e.errors(e.train), e.errors(e.held)
    before, after = (Quantity.mean(errors, e.confidence, 0.0) for errors in (train, held))
    text = f"The error is {before.value:.2f} on training rows and {after.value:.2f} on held-out rows"
    severity = grade(Quantity.difference(held, train, e.confidence).lower, GAP, LARGE_GAP)
    if severity == "fine":
        return f"{text}."
    ours, theirs = _parts(e, e.train), _parts(e, e.held)
    names = [n for n in theirs if n in ours and min(int(theirs[n].sum()), int(ours[n].sum())) >= 10]
    level = bonferroni(e.confidence, len(names))
    gaps = {name: Quantity.difference(held[theirs[name]], train[ours[name]], level) for name in names}
    worst = sorted((name for name in gaps if gaps[name].lower > GAP), key=lambda name: -gaps[name].lower)
    where = f" Most in {worst[0]}." if worst else ""
    advice = (
        "Stop where the held-out loss is least and raise weight decay; mixup or elliptica.Elliptic help less."
    )
    if e.fitted.scales_inputs:  # a model of scikit-learn or a file
        advice = "Make the model simpler: fewer or shallower trees, a stronger penalty, early stopping."
    return Finding(
        severity,
        "Overfitting",
        f"{text}, although these lie where the training rows do.{where}",
        f"{advice} More training data helps most.",
        {"training error": before, "held-out error": after},
        {name: gaps[name] for name in worst},
        rows=_worst_rows(e),
        rows_of="held-out",
    )


def _worst_rows(e: Evidence) -> list[int]:
    """Return the held-out rows with the largest errors: a twentieth of them, at least ten."""
    order = e.errors(e.held).argsort(descending=True, stable=True)
    return order[: max(10, len(e.held) // 20)].tolist()


def _parts(e: Evidence, sample: Sample) -> dict[str, Bool[Tensor, " rows"]]:
    """Return the rows of each class and of each group."""
    parts = {f"group {name}": sample.in_group(name) for name in sorted(set(sample.groups or ()))}
    if e.task == "classes":
        parts = {f"class {e.fitted.class_name(c)}": sample.y == c for c in range(e.n_classes)} | parts
    return {name: rows for name, rows in parts.items() if bool(rows.any())}


# ---- where does it fail?


def judge_parts(e: Evidence) -> Finding | str:
    """Find the class or group with far more errors than the others."""
    held, train = _parts(e, e.judged), _parts(e, e.train)
    parts: dict[str, tuple[Sample, Tensor]] = {}
    for name in {**held, **train}:  # with few held-out rows use training rows, where errors are fewer
        use = e.judged if name in held and int(held[name].sum()) >= 8 else e.train
        rows = (held if use is e.judged else train).get(name)
        if rows is not None and 8 <= int(rows.sum()) < len(rows):
            parts[name] = (use, rows)
    if not parts:
        return skipped("no class or group has eight rows, with other rows to compare")
    level = bonferroni(e.confidence, len(parts))
    graded = {name: _grade_part(e, *part, level) for name, part in parts.items()}
    order = {"warning": 2, "look": 1, "fine": 0}
    ranked = sorted(graded, key=lambda name: (order[graded[name][1]], graded[name][0].lower), reverse=True)
    worst, (sample, rows), (error, severity) = ranked[0], parts[ranked[0]], graded[ranked[0]]
    if severity == "fine":
        return "No class or group has far more errors than the others."
    wrong, errors = e.is_wrong(sample) if e.task == "classes" else None, e.errors(sample)
    if wrong is not None:
        others, marked = float(wrong[~rows].double().mean()), rows & wrong
        text = f"{int(marked.sum())} of its {int(rows.sum())} {sample.name} rows are wrong "
        text += f"({error.value:.1%}), {others:.1%} elsewhere"
    else:
        others, marked = float(errors[~rows].mean()), rows
        text = f"the error there is {error}, {others:.2f} elsewhere"
    size = int(train[worst].sum()) if worst in train else 0
    also = sum(verdict != "fine" for _, verdict in graded.values()) - 1
    more = f" Others that stand out: {also}." if also else ""
    title = f"{worst[0].upper()}{worst[1:]} is predicted"
    return Finding(
        severity,
        f"{title} badly",
        f"{title} far worse than the others: {text}. It has {size} of {len(e.train)} training rows "
        f"({size / len(e.train):.1%}).{more}",
        "If errors there cost more: weights, balanced batches, or a group method (elliptica.baselines: "
        "GroupDRO, LISA); others get worse in exchange. More rows of it help.",
        {"error there": error, "error elsewhere": Quantity.number(others)},
        {name: graded[name][0] for name in ranked[:10]},
        rows=[i for i in errors.argsort(descending=True, stable=True).tolist() if marked[i]],
        rows_of=sample.name,
    )


def _grade_part(e: Evidence, sample: Sample, rows: Tensor, level: float) -> tuple[Quantity, Severity]:
    """Return the error of a part with limits, and how much it stands out."""
    if e.task == "classes":
        wrong = e.is_wrong(sample)
        error, bar = Quantity.share(wrong[rows], level), TIMES_OTHERS * float(wrong[~rows].double().mean())
        severity = grade(error.lower, max(WEAK, bar), max(VERY_WEAK, bar))
        return error, "look" if severity == "warning" and _is_trade_off(e, sample, rows, level) else severity
    errors = e.errors(sample)
    error, others = Quantity.mean(errors[rows], level, 0.0), float(errors[~rows].mean())
    bar = TIMES_OTHERS * others
    return error, grade(error.lower, max(others + WEAK_VALUES, bar), max(others + VERY_WEAK_VALUES, bar))


def _is_trade_off(e: Evidence, sample: Sample, rows: Tensor, level: float) -> bool:
    """Return whether a class is weak only because it is rare, so that neighbours do no better."""
    c = int(sample.y[rows][0])
    is_class = bool((rows == (sample.y == c)).all())  # not a group
    if not is_class or len(e.base) < 40 or _is_neglected(sample, c, torch.ones_like(rows), level):
        return False
    if sample is e.train:
        numbers, wrong = e.near[1][rows[e.base]], e.is_wrong(sample)[e.base][rows[e.base]]
    else:
        numbers, wrong = e.near_held[1][rows], e.is_wrong(sample)[rows]
    guess = e.average(numbers[:, :NEIGHBOURS]).argmax(1)
    return float((guess != c).double().mean()) > float(wrong.double().mean()) - 0.1


def _is_neglected(sample: Sample, c: int, rows: Tensor, level: float) -> bool:
    """Return whether the model gives a class too little probability at these rows.

    The best model has more errors in a rare class, too, but its probabilities add up to the share.
    """
    members = (sample.y == c)[rows].double()
    missing = Quantity.mean(members - sample.outputs[rows, c], level)
    return missing.lower > 0 and missing.value > 0.1 * float(members.mean())


def judge_shortcut(e: Evidence) -> Finding | str:
    """Look for a feature or group that predicts the target in training but not in held-out rows."""
    by_group = _group_shortcut(e) if e.task == "classes" and e.train.groups and e.held.groups else None
    if by_group is not None:
        return by_group
    if len(e.held) < 40 or len(e.varies) > 512:
        return skipped("at least 40 held-out rows with at most 512 features are needed")
    strengths, candidates = _lost_relations(e)
    if len(strengths) > 2 and len(candidates) > 0.5 * len(strengths):
        return "Most features lose their relation to the target, so it is no shortcut."
    error = e.error(e.held)
    gap = error - e.error(e.train)
    best = _best_without(e, candidates, gap)
    strong = [j for j in candidates if strengths[j] > 0.4]
    if best is None and not (strong and gap > LARGE_GAP):
        return "No feature loses its relation to the target in held-out rows."
    j, gain = (strong[0], None) if best is None else best
    effect = "The model knows nothing else: the error does not fall without it."
    if gain is not None:
        effect = f"With its median instead, the held-out error falls from {error:.2f} to "
        effect += f"{error - gain.value:.2f}."
    name, how = e.feature(j), "reverses" if candidates[j] < -0.1 else "vanishes"
    return Finding(
        "warning",
        f"Shortcut: feature {name}",
        f"The model relies on feature {name}, whose relation to the target {how} in held-out rows. {effect}",
        f"Train again without feature {name}, or on rows in which it does not go with the target. If it is "
        "made from the target, it is a leak.",
        {} if gain is None else {"error saved without it": gain},
        rows=_worst_rows(e),
        rows_of="held-out",
    )


def _lost_relations(e: Evidence) -> tuple[dict[int, float], dict[int, float]]:
    """Return the strengths of the features' relations to the target, and which are lost in held-out rows.

    The latter come with the share of the relation that is kept, negative where it reverses. A feature that
    leaves its range does not count: its distribution changed, not its relation.
    """
    ours, other = _relations(e, e.train), _relations(e, e.held)
    edges = torch.tensor([0.01, 0.99], dtype=torch.float64)
    strengths, lost = {}, {}
    for j in listed(e.varies):
        strength = float(ours[j].square().sum())
        if strength > 0.05:
            strengths[j], kept = strength, float((ours[j] * other[j]).sum()) / strength
            low, high = e.train.raw[:, j].quantile(edges)
            inside = (e.held.raw[:, j] >= low) & (e.held.raw[:, j] <= high)
            if kept < 0.3 and float(inside.double().mean()) > 0.8:
                lost[j] = kept
    return strengths, lost


def _relations(e: Evidence, sample: Sample) -> Float[Tensor, "features targets"]:
    """Return the correlation of each feature with each class or value."""
    y = F.one_hot(sample.y, e.n_classes).double() if e.task == "classes" else sample.y
    x, y = ((v - v.mean(0)) / v.std(0).clamp_min(1e-12) for v in (sample.raw, y))
    return x.T @ y / max(1, len(x) - 1)


def _best_without(e: Evidence, candidates: dict[int, float], gap: float) -> tuple[int, Quantity] | None:
    """Find the feature whose removal lowers held-out errors most, if that explains the gap."""
    level, errors = bonferroni(e.confidence, len(candidates)), e.errors(e.held)
    gains = []
    for j in [*candidates][:64]:
        changed = e.held.raw.clone()
        changed[:, j] = e.train.raw[:, j].median()
        gain = Quantity.mean(errors - e.errors(e.held, e.predict(changed)), level)
        if gain.lower > 0.03 and gain.value > 0.3 * gap and float(errors.mean()) - gain.value < 1:
            gains.append((j, gain))
    return max(gains, key=lambda item: item[1].value, default=None)


def _group_shortcut(e: Evidence) -> Finding | None:
    """Find a class that is right in the groups where it is frequent in training, and wrong in others."""
    wrong, classes = e.is_wrong(e.held).double(), range(e.n_classes)
    names = sorted(set(e.train.groups or ()) & set(e.held.groups or ()))
    ours, theirs = ({g: s.in_group(g) for g in names} for s in (e.train, e.held))
    cells = {(c, g): (e.held.y == c) & theirs[g] for c in classes for g in names}
    shares = {(c, g): float((e.train.y[ours[g]] == c).double().mean()) for c, g in cells}
    large = {cell for cell, rows in cells.items() if int(rows.sum()) >= 8}
    pairs = [(c, a, b) for c in classes for a, b in permutations(names, 2) if {(c, a), (c, b)} <= large]
    level = bonferroni(e.confidence, len(pairs) // 2)
    gaps = {}
    for c, a, b in pairs:  # wrong in a, right in b
        gap = Quantity.difference(wrong[cells[c, a]], wrong[cells[c, b]], level)
        is_rare = shares[c, b] > 2 * shares[c, a] and _is_neglected(e.held, c, theirs[a], level)
        if gap.lower > 0.1 and is_rare:
            gaps[c, a, b] = gap
    if not gaps:
        return None
    c, a, b = max(gaps, key=lambda pair: gaps[pair].lower)
    label, rates = e.fitted.class_name(c), {g: Quantity.share(wrong[cells[c, g]] > 0, level) for g in (a, b)}
    return Finding(
        "warning",
        "Shortcut: the group stands for the class",
        f"Class {label} is wrong in group {a} ({rates[a]}) and right in group {b} ({rates[b]} wrong), where "
        "it is far more frequent in training. The model uses the group, not the class.",
        "Train so that group and class do not go together: batches balanced by class and group, or a group "
        "method (elliptica.baselines: GroupDRO, LISA).",
        {"errors above": gaps[c, a, b]},
        {f"class {label}, group {g} ({shares[c, g]:.0%} in training)": rate for g, rate in rates.items()},
        rows=listed(cells[c, a] & (wrong > 0)),
        rows_of="held-out",
    )


# ---- far rows, far predictions


def judge_outliers(e: Evidence) -> Finding | str:
    """Check whether a few rows far from all others carry most of the loss."""
    carried = [(0.0, e.train, torch.zeros(len(e.train), dtype=torch.bool))]
    for sample in (s for s in (e.train, e.held) if len(s)):
        far, losses = _is_far(e, sample), sample.losses.clamp_min(0)
        share = float(losses[far].sum()) / (float(losses.sum()) or 1.0)
        if 0 < int(far.sum()) <= FEW_FAR * len(sample) and share > 5 * float(far.double().mean()):
            carried.append((share, sample, far))
    share, sample, far = max(carried, key=lambda item: item[0])
    if share <= CARRIED:
        return f"Rows far from all others carry {share:.0%} of the loss."
    predicts = False
    if e.task == "values":  # far better than a constant, with unbounded errors
        error, constant = ((sample.y[far] - p).square().sum() for p in (sample.outputs[far], e.constant))
        predicts = float(error) < 0.5 * float(constant)
    rows, mean, rest = far.nonzero().flatten(), sample.losses.mean(), sample.losses[~far].mean()
    return Finding(
        grade(share, CARRIED, math.inf if predicts else MOST_CARRIED),
        "A few far rows carry the loss",
        f"{len(rows)} of {len(sample)} {sample.name} rows lie far from all others and carry {share:.0%} of "
        f"the loss; without them its mean is {float(rest):.3g} instead of {float(mean):.3g}.",
        "Look at these rows: errors of measurement, another unit, or a kind of row that is missing in "
        "training? Remove errors; bound predictions (bounded=True) against wild extrapolation.",
        {"share of the loss": Quantity.number(share, len(rows))},
        rows=rows[sample.losses[rows].argsort(descending=True)].tolist(),
        rows_of=sample.name,
    )


def _is_far(e: Evidence, sample: Sample) -> Bool[Tensor, " rows"]:
    """Return rows that are isolated, or 12 median deviations out in a feature."""
    own = e.near[0][:, min(4, e.near[0].shape[1] - 1)]
    limit = torch.maximum(4 * own.quantile(0.9), 10 * own.median())
    is_base = sample is e.train and len(e.base) == len(e.train)
    distance = own if is_base else e.nearest(sample.x, 5)[0][:, -1]
    middle = e.train.x.median(0).values
    spread = 1.4826 * (e.train.x - middle).abs().median(0).values
    out = ((sample.x - middle).abs() / torch.where(spread > 0, spread, math.inf)).amax(1)
    return (distance > limit) | (out > 12)


def judge_range(e: Evidence) -> Finding | str:
    """Count predictions beyond the range of the training targets, and check whether bounding helps."""
    low, high = e.train.y.min(0).values, e.train.y.max(0).values
    outputs: dict[RowsOf, Tensor] = {"training": e.train.outputs, "held-out": e.held.outputs}
    if len(e.unlabelled):
        outputs["unlabelled"] = e.predict(e.unlabelled)
    width = (high - low).clamp_min(1e-300)
    excess = {k: (torch.maximum(low - v, v - high) / width).amax(1) for k, v in outputs.items() if len(v)}
    shares = {kind: Quantity.share(v > OUTSIDE, e.confidence) for kind, v in excess.items()}
    worst = max(shares, key=lambda kind: shares[kind].value)
    count, n = int((excess[worst] > OUTSIDE).sum()), len(excess[worst])
    if count == 0:
        return "Predictions stay within the range of the training targets."
    text = f"{count} of {n} predictions at {worst} rows leave the range of the training targets"
    f, y = e.held.outputs, e.held.y
    if worst == "held-out" and (f.clamp(low, high) - y).square().mean() >= (f - y).square().mean():
        return f"{text}, rightly."
    return Finding(
        "warning" if worst == "held-out" and count >= max(3, MANY_OUTSIDE * n) else "look",
        "Predictions leave the range of the targets",
        f"{text} by more than {OUTSIDE:.0%} of it, the farthest by {float(excess[worst].max()):.2g} times.",
        "Bound predictions to the range of the training targets (EllipticRegressor does by default, "
        "bounded=True); for positive, skewed targets learn their logarithm.",
        {f"{kind} rows": share for kind, share in shares.items()},
        rows=excess[worst].argsort(descending=True)[:count].tolist(),
        rows_of=worst,
    )


def judge_confidence(e: Evidence) -> Finding | str:
    """Find the temperature that fits held-out rows, and the log loss that it would save."""
    logs, y = e.held.outputs.clamp_min(1e-30).log(), e.held.y
    temperature = fit_temperature(logs.numpy(), y.numpy())
    losses = [F.cross_entropy(logs / t, y, reduction="none") for t in (1.0, temperature)]
    saved = Quantity.mean(losses[0] - losses[1], e.confidence)
    sure, right = float(e.held.outputs.amax(1).mean()), Quantity.share(~e.is_wrong(e.held), e.confidence)
    much = MUCH_SAVED if temperature > 1 else MUCH_SAVED_BELOW
    severity = grade(saved.value, SAVED, much if saved.lower > SAVED else math.inf)
    if saved.lower <= 0 or severity == "fine":
        return f"The mean confidence is {sure:.0%} where {right} are right."
    side = "over-confident" if temperature > 1 else "under-confident"
    return Finding(
        severity,
        side.capitalize(),
        f"The model is {side}: at held-out rows its mean confidence is {sure:.0%} where {right} are right. "
        f"Dividing the logits by {temperature:.2g} would lower the log loss by {saved.value:.2g}.",
        "Divide the logits by this temperature, chosen on rows that are not tested "
        '(EllipticClassifier(calibrate="temperature")). It may not hold if the data change.',
        {"temperature": Quantity.number(temperature, len(y)), "log loss saved by it": saved},
        {"mean confidence": Quantity.number(sure, len(y)), "share right": right},
    )
