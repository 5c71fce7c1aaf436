"""What limits the answer of a comparison: training that was cut short, a search that ended at a border."""

from __future__ import annotations

from collections import defaultdict

from elliptica.compare.comparison import Comparison
from elliptica.compare.plan import at_border
from elliptica.compare.protocol import Record, Trial
from elliptica.compare.verdict import NAMES

FEW_EPOCHS = 20
#: Training is not at its end if its last tenth took off more than this share of the first epoch's loss.
_FALLING = 0.02


def cautions(comparison: Comparison) -> list[str]:
    """Notes for the report; a method is named if they hold in more than half of the finished repeats.

    Nothing stops training early: the number of epochs is a setting that trials draw, at most ``--epochs``. So
    the training loss of the chosen trial says whether it was long enough.
    """
    plan = comparison.plan
    found = []
    if plan.trials == 1:
        found.append(
            "There was no search: every method had one trial, with its usual settings. More --trials are "
            "fairer to methods whose usual settings do not suit the table."
        )
    if plan.epochs < FEW_EPOCHS:
        found.append(
            f"Few epochs: with --epochs {plan.epochs}, what is compared is the beginning of training. The "
            "default is 100."
        )
    elif falling := _falling(comparison):
        found.append(
            f"The training loss was still falling at the end: {', '.join(falling)}. More --epochs (now "
            f"{plan.epochs}) may change the scores."
        )
    if plan.trials > 1 and (ends := _borders(comparison)):
        found.append(
            f"The search ended at the border of its range: {'; '.join(ends)}. Better settings may lie "
            "beyond; elliptica.estimators takes any."
        )
    for method in plan.methods:
        trials = [trial for record in comparison.of(method) for trial in record.trials]
        if failed := sum(bool(trial.error) for trial in trials):
            found.append(f"{failed} of {len(trials)} trainings by {NAMES[method]} failed and were left out.")
    return found


def _falling(comparison: Comparison) -> list[str]:
    names = []
    for method in comparison.plan.methods:
        records = comparison.of(method)
        drops = [_chosen(record).last_drop or 0.0 for record in records]
        if 2 * sum(drop > _FALLING for drop in drops) > len(records):
            names.append(NAMES[method])
    return names


def _borders(comparison: Comparison) -> list[str]:
    found = []
    for method in comparison.plan.methods:
        records = comparison.of(method)
        values: dict[str, list[float]] = defaultdict(list)
        ranges: dict[str, tuple[float, float]] = {}
        for record in records:
            settings = _chosen(record).settings
            for name, ends in at_border(method, settings, comparison.plan).items():
                values[name].append(settings[name])
                ranges[name] = ends
        for name, chosen in values.items():
            if 2 * len(chosen) > len(records):
                low, high = ranges[name]
                found.append(
                    f"{name} of {NAMES[method]} ({chosen[0]:g} in {len(chosen)} of {len(records)} repeats, "
                    f"range {low:g} to {high:g})"
                )
    return found


def _chosen(record: Record) -> Trial:
    return record.trials[record.chosen]
