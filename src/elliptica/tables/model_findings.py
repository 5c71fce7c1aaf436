"""Findings about the model: does it predict, where does it fail, and is its confidence right?"""

from __future__ import annotations

import math
from itertools import combinations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from elliptica._utils.statistics import bonferroni
from elliptica.core.layers import evaluation_mode
from elliptica.tables.data_findings import (
    beyond,
    is_farther,
    moved_features,
    named_moves,
    unlabelled_shift,
)
from elliptica.tables.evidence import NEIGHBOURS, Difference, Evidence, Sample
from elliptica.tables.findings import Finding, Quantity, RowsOf, Severity, fine, skipped

#: A model that saves less than this share of a constant's error is hardly better.
HARDLY = 0.1
#: Gain of nearest neighbours over the model, in errors of a constant: for a look, for a warning.
UNDERFIT, CLEARLY_UNDERFIT = 0.05, 0.15
#: Held-out minus training error, in errors of a constant: for a look, for a warning.
GAP, LARGE_GAP = 0.08, 0.15
#: The same where inputs moved, and the factor by which the error must have grown.
SHIFTED_GAP, GROWTH = 0.03, 1.5
#: Share of wrong rows in a class or group: for a look, for a warning; and relative to the others.
WEAK, VERY_WEAK, TIMES_OTHERS = 0.1, 0.25, 2.0
#: The same for values, in errors of a constant above that of the others.
WEAK_VALUES, VERY_WEAK_VALUES = 0.1, 0.25
#: Share of the target range by which predictions must leave it; share of such rows for a warning.
OUTSIDE, MANY_OUTSIDE = 0.1, 0.01
#: Log loss that a temperature saves, in nats: for a look, for a warning if over- and if under-confident.
SAVED, MUCH_SAVED, MUCH_SAVED_BELOW = 0.02, 0.1, 0.3
#: Share of the loss at far rows: for a look, for a warning.
CARRIED, MOST_CARRIED = 0.3, 0.5
_ROWS = 1000


# ---- can it be judged at all?


def judge_outputs(e: Evidence) -> Finding:
    """Evaluate the same rows twice, because a random model cannot be judged by single outputs."""
    model, x = e.fitted.model, e.fitted.x[:256]
    with evaluation_mode(model), torch.no_grad():
        first, second = (model(x).double() for _ in range(2))
        try:
            alone = torch.cat([model(x[i : i + 1]).double() for i in range(min(3, len(x)))])
        except (ValueError, RuntimeError) as error:  # batch norm without running statistics
            return _depends_on_batch(f"A row cannot be evaluated alone ({error})")
    size = float(first.abs().max()) or 1.0
    change = float((first - second).abs().max()) / size
    if change > 1e-4:
        return Finding(
            "outputs",
            "warning",
            f"Two evaluations of the same rows differ by up to {change:.0%} of the largest output. The model "
            "is random in evaluation mode.",
            "Switch dropout, noise and sampling off in eval mode, or average several evaluations yourself.",
            title="The model is random in evaluation mode",
        )
    apart = float((first[: len(alone)] - alone).abs().max()) / size
    if apart > 1e-2:
        return _depends_on_batch(
            f"A row evaluated alone has another output than in a batch (up to {apart:.0%} of the largest "
            f"output)"
        )
    return fine("outputs", "The same row has the same output.")


def _depends_on_batch(what: str) -> Finding:
    return Finding(
        "outputs",
        "warning",
        f"{what}: rows are not treated independently in evaluation mode.",
        "Use running statistics in eval mode (model.eval() must reach every batch norm, and "
        "track_running_stats must be on).",
        title="Outputs depend on the batch",
    )


def judge_label_order(e: Evidence) -> Finding:
    """Compare the labels with the outputs in another order, in training rows and in held-out rows."""
    if e.task == "other":
        return skipped("label_order", "targets are neither classes nor values")
    judge = _renamed if e.task == "classes" else _rescaled
    for sample in (e.train, e.held):
        finding = None if sample is None else judge(e, sample)
        if finding is not None:
            return finding
    return fine("label_order", "Targets are in the same order and unit as the outputs.")


def _rescaled(e: Evidence, sample: Sample) -> Finding | None:
    """Check whether targets are the predictions in another unit, so that a line explains them."""
    assert sample.outputs is not None
    assert sample.y is not None
    if sample.y.shape[1] != 1 or len(sample) < 10:
        return None
    if sample is e.held and moved_features(e, sample.raw):
        return None  # a drift of an input also moves predictions along a line
    f, y = sample.outputs[:, 0], sample.y[:, 0]
    spread = float((f - f.mean()).square().mean())
    if spread == 0 or bool((y == y[0]).all()):  # a constant has no unit
        return None
    slope = float(((f - f.mean()) * (y - y.mean())).mean()) / spread
    offset = float(y.mean()) - slope * float(f.mean())
    before = float((y - f).square().mean())
    after = float((y - offset - slope * f).square().mean())
    variance = float(y.var(correction=0))
    if before < 0.5 * variance or after > 0.3 * variance or after > 0.1 * before:
        return None
    where = "held-out" if sample is e.held else "training"
    return Finding(
        "label_order",
        "warning",
        f"The {where} targets are in another unit than the predictions: {slope:.3g} times the prediction "
        f"plus "
        f"{offset:.3g} leaves {after / before:.0%} of the squared error.",
        "Check how targets were scaled in training and here: the same mean and deviation, the same unit. "
        "Other "
        "findings are about the wrong unit until then.",
        {"squared error that is left": Quantity.number(after / before, len(sample))},
        title=f"{where.capitalize()} targets are in another unit",
        rows_of=sample.name,
    )


def _renamed(e: Evidence, sample: Sample) -> Finding | None:
    """Check whether far more labels are right after renaming classes."""
    if sample.y is None or sample.outputs is None:
        return None
    guess, y = sample.outputs.argmax(1), sample.y
    table = torch.zeros(e.n_classes, e.n_classes).index_put((y, guess), torch.ones(len(y)), accumulate=True)
    present = table.sum(1) > 0
    order = table.argmax(1)
    right = float((guess == y).double().mean())
    renamed = float(table.amax(1).sum() / table.sum())
    numbers = {
        "right as they are": Quantity.share(int((guess == y).sum()), len(y), e.confidence),
        "right after renaming": Quantity.share(int(table.amax(1).sum()), len(y), e.confidence),
    }
    is_order = len(order[present].unique()) == int(present.sum())
    if not is_order or int(present.sum()) < 2 or renamed < right + 0.3 or renamed < 0.6:
        return None
    pairs = [
        f"{e.fitted.class_name(c)} is called {e.fitted.class_name(int(order[c]))}"
        for c in range(e.n_classes)
        if present[c] and int(order[c]) != c
    ]
    where = "held-out" if sample is e.held else "training"
    return Finding(
        "label_order",
        "warning",
        f"The {where} labels are in another order than the outputs: {right:.0%} are right as they are, "
        f"{renamed:.0%} after renaming ({', '.join(pairs[:4])}{' ...' if len(pairs) > 4 else ''}).",
        "Check how labels were turned into numbers in training and here. Other findings are about the wrong "
        "labels until then.",
        numbers,
        title=f"{where.capitalize()} labels are in another order",
        rows_of=sample.name,
    )


# ---- does it predict?


def judge_constant(e: Evidence) -> Finding:
    """Compare the model with the best constant prediction, row by row, on its own training rows."""
    if e.task == "other" or e.is_constant:
        return skipped("constant", "classes or values that vary are needed")
    gains = {s.name: _gain(e, s) for s in (e.train, e.held) if s is not None}
    numbers = {
        f"error below a constant's, {name} rows": Quantity(g.value, g.lower, g.upper, None, 0, "share")
        for name, g in gains.items()
    }
    train = gains["training"]
    # a held-out set alone is judged by `judge_gap`
    hardly = all(g.value < HARDLY for g in gains.values())
    if (train.lower > 0 or train.value > 0.25) and not hardly:
        return fine("constant", f"The error at training rows is {1 - train.value:.2f} of a constant's.")
    severity: Severity = "warning" if train.upper < HARDLY else "look"
    what = "class" if e.task == "classes" else "value"
    compared = "is hardly better" if train.lower > 0 else "is not shown to be better"
    return Finding(
        "constant",
        severity,
        f"The model {compared} than always predicting the same {what}: its error at the training rows is "
        f"{1 - train.value:.2f} ({max(0.0, 1 - train.upper):.2f} to {1 - train.lower:.2f}).",
        "Check first: are these the inputs, preprocessing and weights of training? Then train longer, "
        "with less "
        "weight decay, at other rates, with shuffled batches. Compare with boosted trees (elliptica "
        "compare).",
        numbers,
        title="No better than a constant",
    )


def _gain(e: Evidence, sample: Sample) -> Difference:
    """Return the share of the constant's error that the model saves; for classes also by wrong rows, if more.

    A model that is right but over-confident still predicts; its confidence is judged separately.
    """
    constant = e.constant_errors(sample)
    size = float(constant.mean()) or 1.0
    gain = Difference.paired((constant - e.errors(sample)) / size, e.confidence)
    if e.task == "classes":
        assert sample.y is not None
        naive = (sample.y != int(e.constant.argmax())).double()
        size = float(naive.mean()) or 1.0
        counted = Difference.paired((naive - e.is_wrong(sample).double()) / size, e.confidence)
        gain = max(gain, counted, key=lambda each: each.value)
    return gain


def judge_underfit(e: Evidence) -> Finding:
    """Compare the model with the average of nearest neighbours at the training rows."""
    if e.task == "other" or len(e.base) < 40:
        return skipped("underfit", "classes or values of at least 40 rows are needed")
    gain = e.neighbours_gain()
    numbers = {
        "error above that of neighbours": Quantity(
            gain.value, gain.lower, gain.upper, None, len(e.base), "mean"
        )
    }
    if gain.lower <= UNDERFIT:
        return fine("underfit", "Nearest neighbours do not predict clearly better than the model.")
    severity: Severity = "warning" if gain.lower > CLEARLY_UNDERFIT else "look"
    error = float(e.errors(e.train).mean())
    return Finding(
        "underfit",
        severity,
        f"The ten nearest neighbours predict better than the model even at its own training rows: their "
        f"error is smaller by {gain.value:.2f}; the model's is {error:.2f}.",
        "Check that batches are shuffled and inputs standardised. Then train longer, with less weight "
        "decay or "
        "with a larger network. Compare with boosted trees (elliptica compare).",
        numbers,
        title="The model has not learnt its data",
    )


def judge_gap(e: Evidence) -> tuple[Finding, ...]:
    """Compare held-out with training rows: overfitting, or a shift of the inputs."""
    given = unlabelled_shift(e)
    findings = [] if given is None else [given]
    reason = None
    if e.held is None:
        reason = "no held-out rows were given"
    elif e.task == "other":
        reason = "targets are neither classes nor values"
    elif len(e.held) < 10:
        reason = "at least ten held-out rows are needed"
    elif e.is_constant:
        reason = "all training targets are equal"
    elif float((e.held_distance == 0).double().mean()) > 0.5:
        reason = "most held-out rows are training rows"
    if reason is not None or e.held is None:
        assert reason is not None
        return (*findings, skipped("overfitting", reason), *(() if findings else (skipped("shift", reason),)))
    gap = Difference.between(e.errors(e.held), e.errors(e.train), e.confidence)
    before, after = float(e.errors(e.train).mean()), float(e.errors(e.held).mean())
    moved = moved_features(e, e.held.raw)
    farther = is_farther(e, e.held_distance)
    is_shifted = bool(moved) or farther.lower > 0.6
    numbers = {
        "training error": Quantity.mean(e.errors(e.train), e.confidence, 0.0),
        "held-out error": Quantity.mean(e.errors(e.held), e.confidence, 0.0),
        "training loss": Quantity.mean(e.train.losses, e.confidence, e.fitted.floor),
        "held-out loss": Quantity.mean(e.held.losses, e.confidence, e.fitted.floor),
    }
    worst = _worst_gaps(e)
    where = f" Most in {next(iter(worst))}." if worst else ""
    rise = f"from {before:.2f} to {after:.2f}"
    if is_shifted:
        findings.append(_shift(e, gap, before, after, moved, numbers, f"rises {rise}.{where}"))
        return (
            *findings,
            fine("overfitting", "Held-out rows lie elsewhere, so the gap is not overfitting."),
        )
    if given is None:
        findings.append(fine("shift", "Held-out rows lie where the training rows do."))
    if gap.lower <= GAP:
        findings.append(
            fine("overfitting", f"The error is {before:.2f} on training, {after:.2f} on held-out rows.")
        )
        return tuple(findings)
    severity: Severity = "warning" if gap.lower > LARGE_GAP else "look"
    worse = " That is no better than always predicting the average." if after >= 0.95 else ""
    findings.append(
        Finding(
            "overfitting",
            severity,
            f"The error is {before:.2f} on training rows and {after:.2f} on held-out rows, although these "
            f"lie "
            f"where the training rows do.{worse}{where}",
            _against_overfitting(e),
            numbers,
            worst,
            title="Overfitting",
            rows=_worst_rows(e),
            rows_of="held-out",
        )
    )
    return tuple(findings)


def _worst_rows(e: Evidence) -> tuple[int, ...]:
    """Return the held-out rows with the largest errors: a twentieth of them, at least ten."""
    assert e.held is not None
    most = min(_ROWS, max(10, len(e.held) // 20))
    return tuple(e.errors(e.held).argsort(descending=True, stable=True)[:most].tolist())


def _against_overfitting(e: Evidence) -> str:
    if e.fitted.scales_inputs:  # a model of scikit-learn or a file
        return (
            "Make the model simpler: fewer or shallower trees, a stronger penalty, for networks more "
            "weight decay "
            "and early stopping. More training data helps most."
        )
    return (
        "Stop training where the held-out loss is least, and raise weight decay. Then try training "
        "between the "
        "data (mixup, elliptica.Elliptic): both helped about equally in our tests, and less than early "
        "stopping. "
        "More training data helps most."
    )


def _shift(
    e: Evidence,
    gap: Difference,
    before: float,
    after: float,
    moved: dict[str, Quantity],
    numbers: dict[str, Quantity],
    rise: str,
) -> Finding:
    """Judge held-out rows that lie elsewhere than the training rows."""
    far = beyond(e, e.held_distance)
    share = Quantity.share(int(far.sum()), len(far), e.confidence)
    worse = gap.lower > GAP or (gap.lower > SHIFTED_GAP and after > GROWTH * before)
    text = (
        f"Held-out rows lie elsewhere: {share} of them are farther from the training rows than 99 % of "
        f"those are "
        f"from each other. "
    )
    text += f"The error {rise}" if worse else "The error does not rise."
    bounded = (
        " Until then, keep predictions within the range of the targets (bounded=True)."
        if e.task == "values"
        else ""
    )
    advice = (
        "First check that held-out rows were prepared as training rows were: scaling, units, order of "
        "columns. If "
        f"so, train on rows from there, if you can get any.{bounded} elliptica compare with --time, "
        f"--split-by or "
        "--test finds what holds under such a shift."
        if worse
        else "Nothing to do for these rows; judge the model again when inputs move further."
    )
    return Finding(
        "shift",
        "warning" if worse else "info",
        text + named_moves(e, moved),
        advice,
        {"far from the training rows": share, **numbers},
        {f"feature {name}": q for name, q in list(moved.items())[:20]},
        title="Held-out rows differ, and the error is higher" if worse else "Held-out rows lie elsewhere",
        rows=tuple(e.held_distance.argsort(descending=True)[: max(10, len(far) // 20)].tolist()),
        rows_of="held-out",
    )


def _worst_gaps(e: Evidence) -> dict[str, Quantity]:
    """Return the classes and groups whose error rises significantly, the largest rise first."""
    assert e.held is not None
    ours, theirs = _parts(e, e.train), _parts(e, e.held)
    names = [
        name for name in theirs if name in ours and min(int(theirs[name].sum()), int(ours[name].sum())) >= 10
    ]
    level = bonferroni(e.confidence, max(1, len(names)))
    gaps = {}
    for name in names:
        gap = Difference.between(e.errors(e.held)[theirs[name]], e.errors(e.train)[ours[name]], level)
        if gap.lower > GAP:
            gaps[name] = Quantity(gap.value, gap.lower, gap.upper, None, int(theirs[name].sum()), "mean")
    return dict(sorted(gaps.items(), key=lambda item: -item[1].lower))


def _parts(e: Evidence, sample: Sample) -> dict[str, Bool[Tensor, " rows"]]:
    """Return the rows of each class and of each group."""
    parts = {}
    if e.task == "classes" and sample.y is not None:
        parts = {f"class {e.fitted.class_name(c)}": sample.y == c for c in range(e.n_classes)}
    if sample.groups is not None:
        names = sorted(set(sample.groups))
        numbers = torch.tensor([names.index(group) for group in sample.groups])
        parts |= {f"group {name}": numbers == i for i, name in enumerate(names)}
    return {name: rows for name, rows in parts.items() if bool(rows.any())}


# ---- where does it fail?


def judge_parts(e: Evidence) -> Finding:
    """Find the class or group with far more errors than the others."""
    if e.task == "other":
        return skipped("weak_part", "targets are neither classes nor values")
    held, train = _parts(e, e.judged), _parts(e, e.train)
    parts = {}
    for name in {**held, **train}:  # with few held-out rows use training rows, where errors are fewer
        use, rows = (
            (e.judged, held.get(name))
            if name in held and int(held[name].sum()) >= 8
            else (e.train, train.get(name))
        )
        if rows is not None and 8 <= int(rows.sum()) < len(rows):
            parts[name] = (use, rows)
    if not parts:
        return skipped("weak_part", "no class or group has eight rows, with other rows to compare")
    level = bonferroni(e.confidence, len(parts))
    errors, sizes = {}, {}
    grades: dict[str, Severity] = {}
    for name, (sample, rows) in parts.items():
        sizes[name] = int(train[name].sum()) if name in train else 0
        errors[name], grades[name] = _grade_part(e, sample, rows, level)
        if grades[name] == "warning" and _is_trade_off(e, sample, name, rows, level):
            grades[name] = "look"
    ranked = sorted(
        errors,
        key=lambda name: (grades[name] == "warning", grades[name] == "look", errors[name].lower),
        reverse=True,
    )
    breakdown = {f"{name} ({sizes[name]} training rows)": errors[name] for name in ranked[:10]}
    worst = ranked[0]
    if grades[worst] == "fine":
        return fine("weak_part", "No class or group has far more errors than the others.")
    sample, rows = parts[worst]
    share = sizes[worst] / len(e.train)
    unit = "of its rows are wrong" if e.task == "classes" else "is the error there"
    others = (
        e.is_wrong(sample)[~rows].double().mean() if e.task == "classes" else e.errors(sample)[~rows].mean()
    )
    wrong = (
        e.is_wrong(sample).double() + e.errors(sample) / 100 if e.task == "classes" else e.errors(sample)
    ) * rows
    also = sum(grade != "fine" for grade in grades.values()) - 1
    more = f" {also} more stand{'s' if also == 1 else ''} out." if also else ""
    return Finding(
        "weak_part",
        grades[worst],
        f"{worst[0].upper()}{worst[1:]} is predicted far worse than the others: {errors[worst]} {unit}, "
        f"{float(others):{'.1%' if e.task == 'classes' else '.2f'}} elsewhere. It has {sizes[worst]} of "
        f"{len(e.train)} training rows "
        f"({share:.1%}).{more}",
        "If errors there cost more: class weights in the loss, batches balanced by group, or a group method "
        "(elliptica.baselines: GroupDRO, JTT, LISA); others get worse in exchange. More rows of it help "
        "most.",
        {"error there": errors[worst], "error elsewhere": Quantity.number(float(others))},
        breakdown,
        title=f"{worst[0].upper()}{worst[1:]} is predicted badly",
        rows=tuple(i for i in wrong.argsort(descending=True)[:_ROWS].tolist() if rows[i]),
        rows_of=sample.name,
    )


def _is_trade_off(e: Evidence, sample: Sample, name: str, rows: Tensor, level: float) -> bool:
    """Return whether a class is weak only because it is rare, so that neighbours do no better."""
    if e.task != "classes" or not name.startswith("class ") or len(e.base) < 40:
        return False
    assert sample.y is not None
    c = int(sample.y[rows][0])
    if _is_neglected(e, sample, c, None, level):
        return False
    if sample is e.train:
        own = torch.isin(e.base, rows.nonzero().flatten())
        numbers, wrong = e.near[1][own], e.is_wrong(sample)[e.base][own]
    else:
        numbers, wrong = e.near_held[1][rows], e.is_wrong(sample)[rows]
    guess = e.average(numbers[:, :NEIGHBOURS]).argmax(1)
    return float((guess != c).double().mean()) > float(wrong.double().mean()) - 0.1


def _grade_part(e: Evidence, sample: Sample, rows: Tensor, level: float) -> tuple[Quantity, Severity]:
    """Return the error of a part with limits, and how much it stands out."""
    if e.task == "classes":
        wrong = e.is_wrong(sample)
        error = Quantity.share(int(wrong[rows].sum()), int(rows.sum()), level)
        bar = TIMES_OTHERS * float(wrong[~rows].double().mean())
        limits = (max(WEAK, bar), max(VERY_WEAK, bar))
    else:
        errors = e.errors(sample)
        error = Quantity.mean(errors[rows], level, 0.0)
        others = float(errors[~rows].mean())
        limits = (
            max(others + WEAK_VALUES, TIMES_OTHERS * others),
            max(others + VERY_WEAK_VALUES, TIMES_OTHERS * others),
        )
    grade: Severity = "warning" if error.lower > limits[1] else "look" if error.lower > limits[0] else "fine"
    return error, grade


def judge_shortcut(e: Evidence) -> Finding:
    """Look for a feature or group that predicts the target in training but not in held-out rows."""
    if e.held is None or e.task == "other":
        return skipped("shortcut", "held-out rows with classes or values are needed")
    by_group = _group_shortcut(e) if e.task == "classes" and e.train.groups is not None else None
    if by_group is not None:
        return by_group
    if len(e.held) < 40 or len(e.varies) > 512:
        return skipped("shortcut", "at least 40 held-out rows with at most 512 features are needed")
    strengths, candidates = _lost_relations(e)
    if len(strengths) > 2 and len(candidates) > 0.5 * len(strengths):
        return fine("shortcut", "Most features lose their relation to the target, so it is no shortcut.")
    at_train, error = float(e.errors(e.train).mean()), float(e.errors(e.held).mean())
    best = _best_without(e, candidates, error - at_train)
    if best is not None:
        return _shortcut(e, *best)
    strong = [(j, kept) for j, kept in candidates if strengths[j] > 0.4]
    if strong and error - at_train > LARGE_GAP:
        return _shortcut(e, *strong[0], None)
    return fine("shortcut", "No feature loses its relation to the target in held-out rows.")


def _lost_relations(e: Evidence) -> tuple[dict[int, float], list[tuple[int, float]]]:
    """Return features related to the target in training, and those whose relation is lost in held-out rows.

    The latter come with the share of the relation that is kept, negative where it reverses.
    """
    assert e.held is not None
    ours, other = _relations(e, e.train), _relations(e, e.held)
    strengths, lost = {}, []
    for j in e.varies.nonzero().flatten().tolist():
        strength = float(ours[j].square().sum())
        if strength > 0.05:
            strengths[j] = strength
            kept = float((ours[j] * other[j]).sum()) / strength
            if kept < 0.3 and _keeps_range(e, j):
                lost.append((j, kept))
    return strengths, lost


def _best_without(
    e: Evidence, candidates: list[tuple[int, float]], gap: float
) -> tuple[int, float, Difference] | None:
    """Find the feature whose removal lowers held-out errors most, if that explains the gap."""
    assert e.held is not None
    level = bonferroni(e.confidence, max(1, len(candidates)))
    error = float(e.errors(e.held).mean())
    best: tuple[int, float, Difference] | None = None
    for j, kept in candidates[:64]:
        changed = e.held.raw.clone()
        changed[:, j] = e.train.raw[:, j].median()
        gain = Difference.paired(e.errors(e.held) - e.errors(e.held, e.predict_flat(changed)), level)
        explains = gain.lower > 0.03 and gain.value > 0.3 * gap and error - gain.value < 1
        if explains and (best is None or gain.value > best[2].value):
            best = (j, kept, gain)
    return best


def _shortcut(e: Evidence, j: int, kept: float, gain: Difference | None) -> Finding:
    """Report a feature whose relation to the target changes in held-out rows."""
    assert e.held is not None
    name, error = e.feature(j), float(e.errors(e.held).mean())
    how = "reverses" if kept < -0.1 else "vanishes"
    numbers = {}
    if gain is None:
        effect = "The model knows nothing else: the error does not fall without it."
    else:
        numbers["error saved without it"] = Quantity(
            gain.value, gain.lower, gain.upper, None, len(e.held), "mean"
        )
        effect = (
            f"With the feature set to its median, the held-out error falls from {error:.2f} to "
            f"{error - gain.value:.2f}."
        )
    return Finding(
        "shortcut",
        "warning",
        f"The model relies on feature {name}, whose relation to the target {how} in held-out rows. {effect}",
        f"Train again without feature {name}, or on rows in which it does not go with the target. If it "
        f"is made "
        "from the target, it is a leak.",
        numbers,
        title=f"Shortcut: feature {name}",
        rows=_worst_rows(e),
        rows_of="held-out",
    )


def _relations(e: Evidence, sample: Sample) -> Float[Tensor, "features targets"]:
    """Return the correlation of each feature with each class or value."""
    assert sample.y is not None
    y = sample.y
    y = torch.nn.functional.one_hot(y, e.n_classes).double() if e.task == "classes" else y
    x = (sample.raw - sample.raw.mean(0)) / sample.raw.std(0).clamp_min(1e-12)
    y = (y - y.mean(0)) / y.std(0).clamp_min(1e-12)
    return x.T @ y / max(1, len(x) - 1)


def _keeps_range(e: Evidence, j: int) -> bool:
    """Return whether a feature keeps its range, so that its relation changed and not its distribution."""
    assert e.held is not None
    low, high = (
        float(v) for v in e.train.raw[:, j].quantile(torch.tensor([0.01, 0.99], dtype=torch.float64))
    )
    inside = (e.held.raw[:, j] >= low) & (e.held.raw[:, j] <= high)
    return float(inside.double().mean()) > 0.8


def _group_shortcut(e: Evidence) -> Finding | None:
    """Find a class that is right in the groups where it is frequent in training, and wrong in others."""
    held, train = e.judged, e.train
    assert held.y is not None
    assert train.y is not None
    if held.groups is None or train.groups is None:
        return None
    names = sorted(set(train.groups) & set(held.groups))
    cells = {
        (c, g): (
            (held.y == c) & torch.tensor([each == g for each in held.groups]),
            int(((train.y == c) & torch.tensor([each == g for each in train.groups])).sum()),
        )
        for c in range(e.n_classes)
        for g in names
    }
    wrong = e.is_wrong(held)
    pairs = [
        (c, a, b)
        for c in range(e.n_classes)
        for a, b in combinations(names, 2)
        if min(int(cells[c, a][0].sum()), int(cells[c, b][0].sum())) >= 8
    ]
    level = bonferroni(e.confidence, max(1, len(pairs)))
    best: tuple[float, int, str, str, Difference] | None = None
    for c, first, second in pairs:
        for a, b in ((first, second), (second, first)):  # wrong in a, right in b
            gap = Difference.between(wrong[cells[c, a][0]].double(), wrong[cells[c, b][0]].double(), level)
            share_a, share_b = (
                cells[c, g][1] / max(1, sum(cells[k, g][1] for k in range(e.n_classes))) for g in (a, b)
            )
            is_rare = share_b > 2 * share_a and _is_neglected(e, held, c, a, level)
            if gap.lower > 0.1 and is_rare and (best is None or gap.lower > best[0]):
                best = (gap.lower, c, a, b, gap)
    if best is None:
        return None
    _, c, a, b, gap = best
    label = e.fitted.class_name(c)
    rates = [
        Quantity.share(int(wrong[cells[c, g][0]].sum()), int(cells[c, g][0].sum()), level) for g in (a, b)
    ]
    return Finding(
        "shortcut",
        "warning",
        f"Class {label} is wrong in group {a} ({rates[0]}) and right in group {b} ({rates[1]} wrong), where "
        f"it is far more frequent in training. The model uses the group, not the class.",
        "Train so that group and class do not go together: batches balanced by class and group, or a group "
        "method (elliptica.baselines: GroupDRO, LISA).",
        {"errors above": Quantity(gap.value, gap.lower, gap.upper, None, len(held), "mean")},
        {
            f"class {label}, group {a} ({cells[c, a][1]} training rows)": rates[0],
            f"class {label}, group {b} ({cells[c, b][1]} training rows)": rates[1],
        },
        title="Shortcut: the group stands for the class",
        rows=tuple((cells[c, a][0] & wrong).nonzero().flatten()[:_ROWS].tolist()),
        rows_of=held.name,
    )


def _is_neglected(e: Evidence, held: Sample, c: int, group: str | None, level: float) -> bool:
    """Return whether the model gives a class too little probability, in a group or overall.

    The best model has more errors in a rare class, too, but its probabilities add up to the share.
    """
    assert held.y is not None
    assert held.outputs is not None
    rows = torch.ones(len(held), dtype=torch.bool)
    if group is not None and held.groups is not None:
        rows = torch.tensor([each == group for each in held.groups])
    missing = ((held.y == c).double() - held.outputs[:, c])[rows]
    gap = Difference.paired(missing, level)
    return gap.lower > 0 and gap.value > 0.1 * float((held.y[rows] == c).double().mean())


def judge_outliers(e: Evidence) -> Finding:
    """Check whether a few rows far from all others carry most of the loss."""
    best: tuple[float, Sample, Tensor] | None = None
    middle = e.train.x.median(0).values if e.train.x.shape[1] else None
    for sample in (e.train, e.held):
        if sample is None or middle is None or len(e.base) < 20:
            continue
        far = _is_far(e, sample, middle)
        total = float(sample.losses.clamp_min(0).sum())
        count = int(far.sum())
        if total <= 0 or count == 0 or count > 0.15 * len(sample):
            continue
        share = float(sample.losses.clamp_min(0)[far].sum()) / total
        if share > 5 * count / len(sample) and (best is None or share > best[0]):
            best = (share, sample, far)
    if (best is None or best[0] <= CARRIED) and middle is not None and len(e.base) >= 20:
        harmful = _harmful_outliers(e, middle)
        if harmful is not None:
            return harmful
    worst = e.judged.losses.clamp_min(0).sort(descending=True).values
    top = max(1, math.ceil(0.05 * len(worst)))
    tail = float(worst[:top].sum() / worst.sum()) if float(worst.sum()) > 0 else 0.0
    numbers = {"share of the loss in the worst 5 % of rows": Quantity.number(tail, len(worst))}
    if best is None or best[0] <= CARRIED:
        return fine("outliers", f"The worst 5 % of the {e.judged.name} rows carry {tail:.0%} of the loss.")
    share, sample, far = best
    rows = far.nonzero().flatten()
    order = sample.losses[rows].argsort(descending=True)
    severity: Severity = "warning" if share > MOST_CARRIED and not _predicts(e, sample, far) else "look"
    rest = float(sample.losses[~far].mean())
    return Finding(
        "outliers",
        severity,
        f"{len(rows)} of {len(sample)} {sample.name} rows lie far from all others and carry {share:.0%} of "
        f"the loss; without them its mean is {rest:.3g} instead of {float(sample.losses.mean()):.3g}.",
        "Look at these rows: errors of measurement, another unit, or a kind of row that is missing in "
        "training? Remove errors; bound predictions (bounded=True) against wild extrapolation.",
        {"share of the loss": Quantity.number(share, len(rows)), **numbers},
        title="A few far rows carry the loss",
        rows=tuple(rows[order][:_ROWS].tolist()),
        rows_of=sample.name,
    )


def _predicts(e: Evidence, sample: Sample, rows: Tensor) -> bool:
    """Return whether the model is still far better than a constant at these rows, with unbounded errors."""
    if e.task != "values" or sample.y is None or sample.outputs is None:
        return False
    y = sample.y[rows]
    own, constant = ((y - each).square().sum() for each in (sample.outputs[rows], e.constant))
    return float(own) < 0.5 * float(constant)


def _harmful_outliers(e: Evidence, middle: Tensor) -> Finding | None:
    """Find training rows so far out that they compress the others' scale, if the model has not learnt."""
    far = _is_far(e, e.train, middle, 30.0)
    count = int(far.sum())
    if count == 0 or count > 0.15 * len(e.train) or e.neighbours_gain().lower <= UNDERFIT:
        return None
    rows = far.nonzero().flatten()
    return Finding(
        "outliers",
        "warning",
        f"{count} of {len(e.train)} training rows lie far from all others, more than 30 median deviations "
        "away in a feature, and the model has not learnt the others well.",
        "Look at these rows: errors of measurement, or another unit? Remove or correct them, or scale inputs "
        "by quantiles (scikit-learn's QuantileTransformer), and train again.",
        {"far rows": Quantity.number(float(count), len(e.train))},
        title="A few far rows spoil the scale",
        rows=tuple(rows[:_ROWS].tolist()),
    )


def _is_far(e: Evidence, sample: Sample, middle: Tensor, out_of: float = 12.0) -> Bool[Tensor, " rows"]:
    """Return rows that are isolated, or ``out_of`` median deviations out in a feature."""
    own = e.near[0][:, min(4, e.near[0].shape[1] - 1)]
    limit = torch.maximum(4 * own.quantile(0.9), 10 * own.median())
    own_rows = sample is e.train and len(e.base) == len(e.train)
    distance = own if own_rows else e.nearest(sample.x, 5)[0][:, -1]
    spread = 1.4826 * (e.train.x - middle).abs().median(0).values
    use = spread > 0
    out = ((sample.x - middle).abs()[:, use] / spread[use]).amax(1) if bool(use.any()) else distance * 0
    return (distance > limit) | (out > out_of)


def judge_range(e: Evidence) -> Finding:
    """Count predictions beyond the range of the training targets, and check whether bounding helps."""
    if e.task != "values" or e.train.y is None or e.is_constant:
        return skipped("range", "for predicted values that vary only")
    low, high = e.train.y.min(0).values, e.train.y.max(0).values
    width = (high - low).clamp_min(1e-300)
    places: dict[RowsOf, Tensor] = {}
    for sample in (e.train, e.held):
        if sample is not None and sample.outputs is not None:
            places[sample.name] = sample.outputs
    if e.unlabelled is not None:
        places["unlabelled"] = e.predict_flat(e.unlabelled)
    excess = {name: (torch.maximum(low - v, v - high) / width).amax(1) for name, v in places.items()}
    shares = {
        f"{name} rows": Quantity.share(int((v > OUTSIDE).sum()), len(v), e.confidence)
        for name, v in excess.items()
    }
    worst = max(excess, key=lambda name: float((excess[name] > OUTSIDE).double().mean()))
    count, n = int((excess[worst] > OUTSIDE).sum()), len(excess[worst])
    if count == 0:
        return fine("range", "Predictions stay within the range of the training targets.")
    if e.held is not None and worst == "held-out" and not _bounding_helps(e, low, high):
        return fine("range", f"{count} of {n} held-out predictions leave the range of the targets, rightly.")
    is_shown = worst == "held-out" and count > MANY_OUTSIDE * n and count >= 3
    return Finding(
        "range",
        "warning" if is_shown else "look",
        f"{count} of {n} predictions at {worst} rows leave the range of the training targets by more than "
        f"{OUTSIDE:.0%} of it, the farthest by {float(excess[worst].max()):.2g} times the range.",
        "Bound predictions to the range of the training targets (EllipticRegressor does by default, "
        "bounded=True); for positive, skewed targets learn their logarithm.",
        shares,
        shares,
        title="Predictions leave the range of the targets",
        rows=tuple(excess[worst].argsort(descending=True)[:count][:_ROWS].tolist()),
        rows_of=worst,
    )


def _bounding_helps(e: Evidence, low: Tensor, high: Tensor) -> bool:
    """Return whether bounding predictions to the range lowers held-out errors on average."""
    assert e.held is not None
    assert e.held.outputs is not None
    assert e.held.y is not None
    before = (e.held.outputs - e.held.y).square().mean(1)
    after = (e.held.outputs.clamp(low, high) - e.held.y).square().mean(1)
    return Difference.paired(before - after, e.confidence).value > 0


# ---- is its confidence right?


def judge_confidence(e: Evidence) -> Finding:
    """Find the temperature that fits held-out rows, and the log loss that it would save."""
    if e.task != "classes" or e.held is None or e.held.y is None or e.held.outputs is None:
        return skipped("confidence", "held-out rows with classes are needed")
    if e.fitted.space == "simplex" and e.fitted.y.is_floating_point():
        return skipped("confidence", "for labels only, not for class probabilities")
    logs, y = e.held.outputs.clamp_min(1e-30).log(), e.held.y
    temperature = _temperature(logs, y)
    saved = Difference.paired(_log_loss(logs, y, 1.0) - _log_loss(logs, y, temperature), e.confidence)
    confidence = float(e.held.outputs.amax(1).mean())
    right = Quantity.share(int((~e.is_wrong(e.held)).sum()), len(y), e.confidence)
    numbers = {
        "temperature": Quantity.number(temperature, len(y)),
        "log loss saved by it": Quantity(saved.value, saved.lower, saved.upper, None, len(y), "mean"),
        "mean confidence": Quantity.number(confidence, len(y)),
        "accuracy": right,
    }
    if saved.lower <= 0 or saved.value <= SAVED:
        return fine("confidence", f"The mean confidence is {confidence:.0%} where {right} are right.")
    much = MUCH_SAVED if temperature > 1 else MUCH_SAVED_BELOW
    severity: Severity = "warning" if saved.value > much and saved.lower > SAVED else "look"
    side = "over-confident" if temperature > 1 else "under-confident"
    return Finding(
        "confidence",
        severity,
        f"The model is {side}: at held-out rows its mean confidence is {confidence:.0%} where {right} are "
        f"right. Dividing the logits by {temperature:.2g} would lower the log loss by {saved.value:.2g}.",
        "Divide the logits by this temperature, chosen on rows that are not tested "
        '(EllipticClassifier(calibrate="temperature")). It may not hold if the data change.',
        numbers,
        {"mean confidence": Quantity.number(confidence, len(y)), "share right": right},
        title=side.capitalize(),
    )


def _log_loss(logs: Tensor, y: Tensor, temperature: float) -> Float[Tensor, " rows"]:
    return torch.nn.functional.cross_entropy(logs / temperature, y, reduction="none")


def _temperature(logs: Tensor, y: Tensor) -> float:
    """Return the temperature with the least log loss, between 1/20 and 20 (a grid, refined twice)."""
    low, high = -3.0, 3.0
    for _ in range(3):
        grid = torch.linspace(low, high, 25).tolist()
        best = min(grid, key=lambda t: float(_log_loss(logs, y, math.exp(t)).mean()))
        step = (high - low) / 24
        low, high = best - step, best + step
    return math.exp(best)
