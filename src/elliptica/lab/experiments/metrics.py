"""Metrics of a model on a part of the data: overall, per group, per class; and after other epochs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica.lab.data.splits import Dataset, Split, Units
from elliptica.lab.experiments.records import Record

#: Rows per forward pass, and values: large images come in smaller parts.
_CHUNK, _VALUES = 2000, 2**25

#: Bins of the calibration error.
_BINS = 15

_UNSCALED = Units()

Metrics = dict[str, Any]
#: From inputs to noisy ones.
Noise = Callable[[Tensor], Tensor]


def predictions(model: nn.Module, split: Split, device: torch.device, noise: Noise | None = None) -> Tensor:
    """Outputs in evaluation mode, on the CPU; at inputs with Gaussian noise, if any."""
    model.eval()
    rows = max(1, min(_CHUNK, _VALUES // max(split.x.shape[1:].numel(), 1)))
    with torch.no_grad():
        parts = (part if noise is None else noise(part) for part in split.x.split(rows))
        return torch.cat([model(part.to(device)).float().cpu() for part in parts])


def gaussian_noise(deviation: float, generator: torch.Generator) -> Noise | None:
    """Noise for inputs at test time; None for none."""
    if not deviation:
        return None
    return lambda x: x + deviation * torch.randn(x.shape, generator=generator)


def group_shares(train: Split) -> dict[str, float] | None:
    """Share of each group in the training rows, for averages that are weighted by it."""
    if train.group is None:
        return None
    counts = torch.bincount(train.group)
    return {str(g): float(n) / len(train.group) for g, n in enumerate(counts) if n}


def measure(
    model: nn.Module,
    split: Split,
    metric: str,
    device: torch.device,
    shares: dict[str, float] | None = None,
    *,
    detailed: bool = True,
    noise: Noise | None = None,
    units: Units = _UNSCALED,
) -> Metrics:
    """All numbers of a part of the data, as `elliptica.lab.experiments.records.Scores` has them.

    - ``average``: over all rows together.
    - ``weighted``: of groups, weighted by their ``shares`` in the training rows, if they have rows here.
    - ``balanced``: the mean over classes.
    - ``worst``: of the worst group or, for classes without groups, of the worst class that has rows here.
    - ``top5``: a row is right if its class is among the five most likely.
    - ``auroc``, ``calibration``, ``uncertainty``: see `score_classes`; only if ``detailed``.

    Errors of real targets are in their original units, given ``units`` if they were scaled.
    """
    output = predictions(model, split, device, noise)
    if metric == "rmse":
        errors = (units.restore(output) - units.restore(split.y)).square()
        errors = errors.reshape(len(errors), -1).mean(1).double()
        by_group = reduce_by(errors, split.group, lambda values: math.sqrt(float(values.mean())))
        found: Metrics = {"average": math.sqrt(float(errors.mean()))}
    else:
        right = (output.argmax(1) == split.y) == (metric == "accuracy")  # or wrong, for errors
        by_group, by_class = reduce_by(right.double(), split.group), reduce_by(right.double(), split.y)
        found = {"average": float(right.double().mean()), "by_class": by_class}
        found["balanced"] = sum(by_class.values()) / len(by_class)
        if output.shape[1] > 5:
            in_five = (output.topk(5, dim=1).indices == split.y[:, None]).any(1) == (metric == "accuracy")
            found["top5"] = float(in_five.double().mean())
        if detailed:
            found |= score_classes(output.softmax(1).double(), split.y)
        weights = {group: share for group, share in (shares or {}).items() if group in by_group}
        if weights:
            total = sum(share * by_group[group] for group, share in weights.items())
            found["weighted"] = total / sum(weights.values())
        by_group = by_group or by_class
    if by_group:
        found["by_group"] = by_group
        found["worst"] = min(by_group.values()) if metric == "accuracy" else max(by_group.values())
    return found


def count_right(
    model: nn.Module, split: Split, device: torch.device, noise: Noise | None = None
) -> dict[str, int]:
    """Right answers of each group or, without groups, of each class."""
    right = (predictions(model, split, device, noise).argmax(1) == split.y).double()
    counts = reduce_by(right, split.y if split.group is None else split.group, lambda v: float(v.sum()))
    return {number: round(count) for number, count in counts.items()}


def count_rows(data: Dataset) -> dict[str, dict[str, Any]]:
    """Rows of each part of a data set: all of them, and by class and group where there are any."""
    counts: dict[str, dict[str, Any]] = {}
    for name in ("train", "validation", "test"):
        split: Split = getattr(data, name)
        counts[name] = {"rows": split.n_rows}
        labels = {"class": split.y if data.task == "classification" else None, "group": split.group}
        for kind, numbers in labels.items():
            if numbers is not None:
                values, sizes = (part.tolist() for part in numbers.unique(return_counts=True))
                counts[name][kind] = dict(zip(map(str, values), sizes, strict=True))
    return counts


def score_of(metrics: Metrics, metric: str, column: str) -> float:
    """What selection maximises; the last epoch is shown with its average."""
    value = metrics.get("average" if column == "last" else column)
    if value is None:
        raise ValueError(f"select: the data have no {column!r}.")
    return float(value) if metric == "accuracy" else -float(value)


#: Which epoch of a run counts.
Epoch = Literal["chosen", "last", "late", "best"]

#: What each of them means, as a sentence below a table; the chosen one is the usual case.
MEANING: dict[Epoch, str] = {
    "chosen": "",
    "last": "Measured after the last epoch.",
    "late": "Mean over the last tenth of the epochs.",
    "best": (
        "After the epoch that is best on the very rows that are measured: an upper bound, not for reporting."
    ),
}


def metrics_at(record: Record, part: str, epoch: Epoch) -> Metrics:
    """``average`` and ``worst`` of a part of the data, as `elliptica.lab.experiments.metrics` defines them.

    - ``"chosen"``: after the epoch that was chosen on the validation part; this has all other metrics, too.
    - ``"last"``: after the last epoch.
    - ``"late"``: the mean over the last tenth of the epochs, at least one; of ``worst``, the mean of each
      epoch's own.
    - ``"best"``: after the epoch with the best value on ``part`` itself, of the column that chooses epochs if
      that is one of the two, else of ``average``; the last one if there are several.
    """
    if epoch == "chosen":
        return dict(record.metrics[part])
    courses = by_epoch(record, part)
    n = len(courses["average"])
    if epoch == "late":
        kept = max(n // 10, 1)
        return {name: sum(course[-kept:]) / kept for name, course in courses.items()}
    place = n - 1 if epoch == "last" else best_epoch(record, part)
    return {name: course[place] for name, course in courses.items()}


def by_epoch(record: Record, part: str) -> dict[str, list[float]]:
    """``average`` and ``worst`` of a part of the data after each epoch."""
    if not record.right:
        raise ValueError(f"{record.run.label} was recorded without elliptica run --every-epoch.")
    right, rows = record.right[part], record.rows[part]
    sizes = rows.get("group") or rows["class"]
    is_accuracy = record.run.metric == "accuracy"
    total = sum(sizes[number] for number in right)
    average, worst = [], []
    for counts in zip(*right.values(), strict=True):
        shares = [count / sizes[number] for number, count in zip(right, counts, strict=True)]
        share, least = sum(counts) / total, min(shares)
        average.append(share if is_accuracy else 1 - share)
        worst.append(least if is_accuracy else 1 - least)
    return {"average": average, "worst": worst}


def best_epoch(record: Record, part: str) -> int:
    """The epoch, from 0, that is best on a part of the data; the last one if there are several."""
    select, sign = record.run.select, 1 if record.run.metric == "accuracy" else -1
    course = by_epoch(record, part)[select if select == "worst" else "average"]
    return max(range(len(course)), key=lambda place: (sign * course[place], place))


def score_classes(p: Float[Tensor, "rows classes"], y: Int[Tensor, " rows"]) -> dict[str, Any]:
    """Score class probabilities beyond the accuracy of the likeliest class.

    ``auroc`` is the area under the receiver operating curve, one class against the rest, mean over classes
    (None if only one class has rows), ``calibration`` the expected calibration error, ``uncertainty`` the
    mean entropy of the rows of each class, as a share of the largest, and ``reliability`` rows, summed
    confidence and right answers of each bin; bins of several seeds can be added.
    """
    from sklearn.metrics import roc_auc_score

    present = y.unique()
    auroc = None
    if len(present) > 1:
        auroc = sum(float(roc_auc_score(y == c, p[:, c])) for c in present) / len(present)
    entropy = -torch.special.xlogy(p, p).sum(1) / math.log(p.shape[1])
    confidence, guess = p.max(1)
    rows, sure, hits = _binned(confidence, guess == y)
    return {
        "auroc": auroc,
        "calibration": calibration_error(p, y),
        "uncertainty": reduce_by(entropy, y),
        "reliability": {
            "rows": rows.long().tolist(),
            "confidence": [float(f"{value:.6g}") for value in sure.tolist()],
            "right": hits.long().tolist(),
        },
    }


def calibration_error(p: Float[Tensor, "rows classes"], y: Int[Tensor, " rows"]) -> float:
    """Expected calibration error of the favoured class, 15 bins of equal width, as in `score_classes`."""
    confidence, guess = p.max(1)
    _, sure, hits = _binned(confidence, guess == y)
    return float((sure - hits).abs().sum()) / len(confidence)


def _binned(confidence: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum rows, confidence and right answers in each of 15 bins of equal width."""
    bins = (confidence * _BINS).ceil().long().clamp(1, _BINS) - 1
    rows, sure, hits = (
        torch.zeros(_BINS, dtype=torch.float64).index_add_(0, bins, each.double())
        for each in (torch.ones_like(confidence), confidence, right)
    )
    return rows, sure, hits


def reduce_by(
    values: Float[Tensor, " rows"],
    number: Int[Tensor, " rows"] | None,
    reduce: Callable[[Tensor], float | Tensor] = torch.mean,
) -> dict[str, float]:
    """Reduce the values of each class or group; keys are their numbers as text. Empty without numbers."""
    if number is None:
        return {}
    return {str(int(g)): float(reduce(values[number == g])) for g in number.unique()}
