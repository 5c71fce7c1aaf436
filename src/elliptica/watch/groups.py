"""Runs by data set and method, and how long they will take."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elliptica.watch.scan import RunState, Scan, State

#: Order in which states are shown: what happens now, then what needs somebody, then what is to come.
STATES: tuple[State, ...] = ("running", "failed", "interrupted", "waiting", "done")


@dataclass(frozen=True)
class Group:
    """The seeds of one method on one data set, or its trials.

    Attributes:
        table: Of the paper; trials begin with their name.
        dataset: Name of the data.
        row: Name of the method, with the beginning of the hash where two settings have the same name.
        runs: By seed.
    """

    table: str
    dataset: str
    row: str
    runs: tuple[RunState, ...]

    def count(self, state: State) -> int:
        """Number of its runs in a state."""
        return sum(run.state == state for run in self.runs)

    @property
    def metric(self) -> str:
        """What scores measure; a checkpoint alone does not say it."""
        return next((run.metric for run in self.runs if run.metric), "")

    @property
    def shown(self) -> RunState | None:
        """The run whose numbers stand for the group: one that goes on, or was stopped last."""
        for state in STATES[:3]:
            found = [run for run in self.runs if run.state == state and run.epoch]
            if found:
                return max(found, key=lambda run: (run.updated, run.epoch))
        return next((run for run in self.runs if run.state == "running"), None)

    @property
    def best(self) -> float | None:
        """Best validation score of all its runs so far."""
        return max((run.best for run in self.runs if run.best is not None), default=None)

    @property
    def mean(self) -> float | None:
        """Mean validation score of its finished runs, each at its chosen epoch."""
        found = [run.score for run in self.runs if run.state == "done" and run.score is not None]
        return statistics.fmean(found) if found else None


def make_groups(scan: Scan) -> list[Group]:
    """Groups in the order of tables, data sets and methods."""
    together: dict[tuple[str, str, str, str], list[RunState]] = {}
    for key, run in scan.runs.items():
        table, dataset, row, settings, _ = key
        place = (table, dataset, row, "" if table.startswith("trials ") else settings)
        together.setdefault(place, []).append(run)
    shared = {place[:3] for place in together if sum(p[:3] == place[:3] for p in together) > 1}
    return [
        Group(
            place[0],
            place[1],
            f"{place[2]} #{place[3][:4]}" if place[:3] in shared else place[2],
            tuple(sorted(found, key=lambda run: run.key[4])),
        )
        for place, found in sorted(together.items(), key=lambda item: _natural(item[0]))
    ]


def _natural(names: tuple[str, ...]) -> list[list[tuple[int, str]]]:
    """So that table10 comes after table9."""
    return [[(int(p), "") if p.isdigit() else (0, p) for p in re.split(r"(\d+)", n)] for n in names]


def by_urgency(groups: Iterable[Group]) -> list[Group]:
    """Groups with something going on first, finished ones last."""
    return sorted(groups, key=lambda group: min(STATES.index(run.state) for run in group.runs))


def seconds_left(groups: Sequence[Group], wanted: Sequence[Group]) -> float | None:
    """How long the runs of some groups will take, with as many processes as run now.

    A run that waits is expected to take as long as others of its group did, else as others of its data set,
    else as any other; None if nothing is known yet, or nothing runs.

    Args:
        groups: All groups, to learn from.
        wanted: The groups in question.
    """
    running = [run for group in groups for run in group.runs if run.state == "running"]
    if not running:
        return None
    total = longest = 0.0
    for group in wanted:
        for run in group.runs:
            if run.state not in ("running", "waiting"):
                continue
            left = run.seconds_left if run.state == "running" else _duration(group, groups)
            if left is None:
                left = _duration(group, groups)
            if left is None:
                return None
            total, longest = total + left, max(longest, left)
    return max(total / len(running), longest)


def _duration(group: Group, groups: Sequence[Group]) -> float | None:
    """Seconds of a run of a group, by what is known of its likes."""
    likes = ([group], [g for g in groups if g.dataset == group.dataset], groups)
    for near in likes:
        known = [seconds for g in near for run in g.runs if (seconds := _whole(run)) is not None]
        if known:
            return statistics.fmean(known)
    return None


def _whole(run: RunState) -> float | None:
    """Seconds of a whole run: known when it is done, extrapolated while it runs."""
    if run.state == "done":
        return run.seconds
    if run.seconds_left is not None and run.epochs and run.epoch < run.epochs:
        return run.seconds_left * run.epochs / (run.epochs - run.epoch)
    return None
