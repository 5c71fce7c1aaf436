"""Findings on losses: at the data, between them, along a bridge, and under small noise."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from elliptica._utils import random
from elliptica._utils.statistics import bonferroni
from elliptica.diagnostics.findings import (
    NEGLIGIBLE,
    THRESHOLDS,
    Finding,
    Quantity,
    Severity,
    mildest,
    undecided,
    worst,
)
from elliptica.diagnostics.fitted_model import FittedModel
from elliptica.diagnostics.maximum_principle import maximum_principle_report

#: Fewest rows of a class or group, and fewest points of a pair, that are judged.
FEWEST_ROWS, FEWEST_PROBES = 5, 10
#: Parts of a bridge whose mean loss is shown.
BINS = 6
#: Noise that is tried, as shares of each feature's deviation; the last one is judged.
NOISE = (0.01, 0.1)

PLURAL = {"class": "classes", "group": "groups"}
_WRONG = {
    "simplex": "The network is wrong with confidence between data that it fits.",
    "unit": "The network is wrong with confidence between data that it fits.",
    "real": "Between the data the network is far off the line between their targets.",
}
_AIM = (
    "Training between the data (elliptica.Elliptic, elliptica.BridgeMix, mixup) is aimed at this. The bar is "
    "the largest loss at the data, so a single outlier makes it easy to keep: read it beside the profile."
)


def judge_data(fitted: FittedModel) -> Finding:
    """Judge the loss at the rows themselves, and in the worst class or group."""
    mean = Quantity.mean(fitted.losses, fitted.confidence, fitted.floor)
    numbers = {"mean loss": mean, "largest loss": Quantity.number(float(fitted.losses.max()), len(fitted.x))}
    sentence = f"The mean loss at the data is {mean}"
    severity: Severity = "fine"
    advice = "Nothing to do."
    if fitted.constant is not None and fitted.constant > 0:
        numbers["loss of a constant prediction"] = Quantity.number(fitted.constant)
        sentence += f", {mean.value / fitted.constant:.2g} times that of the best constant prediction"
        severity = THRESHOLDS["constant"].grade(mean.lower / fitted.constant)
        if severity != "fine":
            advice = (
                "The model hardly predicts. Check preprocessing, the order of labels and the weights first: "
                "what follows says little about a model that has not learnt its data."
            )
        else:
            advice = undecided("constant", mean, fitted.constant) or advice
    parts, small = _by_part(fitted)
    if len(parts) > 1:
        highest, part = max(parts.items(), key=lambda item: item[1].value)
        numbers[f"worst {fitted.part}"] = part
        sentence += f"; the worst {fitted.part} is {highest} with {part}"
    if small:
        sentence += f". {_too_small(fitted, small)}"
    grade, name = _grade_parts(fitted, parts, mean.value)
    if grade != "fine" and severity == "fine":
        advice = (
            f"Look at the rows of {fitted.part} {name}: too few of them, wrong labels, or harder? "
            "Methods for the worst group are in elliptica.baselines."
        )
    severity = worst(severity, grade)
    breakdown = {f"{fitted.part} {name}": part for name, part in parts.items()}
    return Finding("data", severity, f"{sentence}.", advice, numbers, breakdown)


def _grade_parts(fitted: FittedModel, parts: Mapping[str, Quantity], mean: float) -> tuple[Severity, str]:
    """Grade how much the class or group that is most surely high stands out; returns its name, too."""
    name, surest = next(iter(parts.items()), ("", None))
    if surest is None or mean <= 0 or surest.lower <= NEGLIGIBLE * fitted.yardstick:
        return "fine", name
    return THRESHOLDS["worst part"].grade(surest.lower / mean), name


def judge_between(fitted: FittedModel) -> Finding:
    """Judge how many points between the data have a loss above every loss at the data, by pair, too."""
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
    found = _ordered({group.name: Quantity.share(group.count, group.n, level) for group in judged})
    excess = _mean_excess(fitted.between - bar)
    numbers = {
        "share above": share,
        "mean excess of those": Quantity.number(excess, overall.count),
        "mean loss between": Quantity.mean(fitted.between, fitted.confidence, fitted.floor),
        "largest loss between": Quantity.number(report.check.interior_max, overall.n),
        "largest loss at the data": Quantity.number(bar, len(fitted.x)),
    }
    by = f", by {excess:.3g} on average ({excess / fitted.yardstick:.2g} times {fitted.yardstick_name})"
    sentence = (
        f"Of {overall.n} points between the data, {share} have a loss above every loss at the data "
        f"({bar:.3g}){by if overall.count else ''}; the largest is {report.check.interior_max:.3g}."
    )
    if found and next(iter(found.values())).value > 0:
        name, pair = next(iter(found.items()))
        numbers["worst pair"] = pair
        sentence += f" Most surely between {fitted.part} {name}: {pair}."
    elif fitted.parts is not None and not found:
        sentence += f" Too few points per pair of {PLURAL[fitted.part]} to compare pairs; raise n."
    if found and (left := len(report.by_group) - len(found)):
        sentence += f" {left} pairs with fewer than {FEWEST_PROBES} points are left out."
    if 0 < excess <= NEGLIGIBLE * fitted.yardstick:
        sentence += " By an amount, that is, that does not matter."
    severity = _grade_between(fitted, bar, share, found, pairs)
    advice = {
        "fine": undecided("between", share, of="points")
        or "Nothing to do: between these rows the loss keeps within what it is at them.",
        "look": f"Look at the pairs that lead the list, if there is one. {_AIM}",
        "warning": f"{_WRONG[fitted.space]} {_AIM}",
    }[severity]
    breakdown = {f"between {name}": pair for name, pair in found.items()}
    return Finding("between", severity, sentence, advice, numbers, breakdown)


def _grade_between(
    fitted: FittedModel, bar: float, share: Quantity, found: Mapping[str, Quantity], pairs: list[str] | None
) -> Severity:
    """By all points and by each pair; both the share above the bar and the height above it must matter."""
    names = np.asarray(pairs or [])
    grades = [(share, fitted.between)]
    grades += [(pair, fitted.between[torch.from_numpy(names == name)]) for name, pair in found.items()]
    return worst(
        *(
            mildest(
                THRESHOLDS["between"].grade(quantity.lower),
                THRESHOLDS["excess"].grade(_mean_excess(losses - bar) / fitted.yardstick),
            )
            for quantity, losses in grades
        )
    )


def _mean_excess(above: Tensor) -> float:
    """Average what is above zero; zero if nothing is."""
    above = above[above > 0]
    return float(above.mean()) if len(above) else 0.0


def judge_profile(fitted: FittedModel) -> Finding:
    """Judge the loss along a bridge against the line between its ends."""
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
    severity = THRESHOLDS["profile"].grade(along.lower / fitted.yardstick)
    if severity == "fine":
        shape = "no bump that matters" if along.upper > 0 else "a dip, no bump"
        advice = undecided("profile", along, fitted.yardstick, "points") or "Nothing to do."
    else:
        shape = "a bump"
        advice = (
            "The loss climbs between points that are each fitted: the network does not interpolate targets. "
            "Whether it should is for you to say; half-way inputs with half-way targets may be meaningless "
            "in your data."
        )
    sentence = (
        f"Along a bridge the mean loss is {along} above the line between its two ends "
        f"({along.value / fitted.yardstick:.2g} times {fitted.yardstick_name}): {shape}."
    )
    return Finding("profile", severity, sentence, advice, numbers, breakdown)


def judge_noise(fitted: FittedModel) -> Finding:
    """Judge the rise of the loss under Gaussian noise on the inputs, targets unchanged."""
    generator = fitted.stream("noise")
    dtype = random.compute_dtype(fitted.x.dtype)
    normal = random.draw_normal(fitted.x.shape, dtype=dtype, device=fitted.x.device, generator=generator)
    breakdown = {}
    for level in NOISE:
        moved = fitted.x + (level * fitted.deviation * normal).to(fitted.x)
        rise = fitted.field(moved, fitted.targets).double() - fitted.losses
        breakdown[f"noise of {level:.0%}"] = Quantity.mean(rise, fitted.confidence)
    judged = breakdown[f"noise of {NOISE[-1]:.0%}"]
    severity = THRESHOLDS["noise"].grade(judged.lower / fitted.yardstick)
    sentence = (
        f"Noise of {NOISE[-1]:.0%} of each feature's deviation changes the mean loss by {judged}, "
        f"{judged.value / fitted.yardstick:.2g} times {fitted.yardstick_name}."
    )
    advice = (
        undecided("noise", judged, fitted.yardstick) or "Nothing to do."
        if severity == "fine"
        else "Predictions hang on details of the inputs that noise destroys. Train with noise "
        "(elliptica.baselines.InputNoise) or between the data, and check whether features are on one scale."
    )
    numbers = {f"rise under {name}": quantity for name, quantity in breakdown.items()}
    return Finding("noise", severity, sentence, advice, numbers)


def pair_names(parts: tuple[str, ...], start: Tensor, end: Tensor) -> list[str]:
    """Name the pair of parts that each bridge joins, whichever way round."""
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


def _by_part(fitted: FittedModel) -> tuple[dict[str, Quantity], dict[str, int]]:
    """Average the loss of each class or group with enough rows; also returns the sizes of the others."""
    if fitted.parts is None:
        return {}, {}
    rows: dict[str, list[int]] = {}
    for i, name in enumerate(fitted.parts):
        rows.setdefault(name, []).append(i)
    enough = {name: at for name, at in rows.items() if len(at) >= FEWEST_ROWS}
    level = bonferroni(fitted.confidence, len(enough))
    found = {name: Quantity.mean(fitted.losses[at], level, fitted.floor) for name, at in enough.items()}
    return _ordered(found), {name: len(at) for name, at in rows.items() if name not in enough}


def _too_small(fitted: FittedModel, small: Mapping[str, int]) -> str:
    """Say which classes or groups are not judged, and why."""
    named = ", ".join(f"{name} ({n})" for name, n in sorted(small.items(), key=lambda i: _natural(i[0]))[:5])
    more = f" and {len(small) - 5} more" if len(small) > 5 else ""
    return (
        f"{PLURAL[fitted.part].capitalize()} with fewer than {FEWEST_ROWS} rows are not judged: {named}{more}"
    )


def _ordered(found: dict[str, Quantity]) -> dict[str, Quantity]:
    """Sort by the lower limit, highest first, so that a few unlucky rows do not lead."""
    ranked = sorted(found.items(), key=lambda item: (item[1].lower, item[1].value), reverse=True)
    return dict(ranked)
