"""What a run measured after other epochs than the one that was chosen, from its record alone."""

from __future__ import annotations

from typing import Any, Literal

from elliptica.lab.experiments.records import Record

Metrics = dict[str, Any]

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


class NoEpochsError(ValueError):
    """Records do not say what was measured after each epoch."""


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
        raise NoEpochsError(f"{record.run.label} was recorded without elliptica run --every-epoch.")
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
