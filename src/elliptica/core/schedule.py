"""Schedules: how strong the noise is in each epoch, and when bridges are switched off.

A schedule is any function from the epoch (0, 1, ...) to a factor on ``sigma`` and ``sigma_y``, or to None,
which means ordinary training on the data alone. Give it to `elliptica.Elliptic` and call
``objective.set_epoch(epoch)`` at the start of each epoch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from elliptica._utils import checks

Schedule = Callable[[int], float | None]


def switch_off(after: int) -> Schedule:
    """Train on bridges for ``after`` epochs, then on the data alone.

    Example:
        >>> schedule = switch_off(after=80)
        >>> schedule(79), schedule(80)
        (1.0, None)
    """
    if after < 0:
        raise ValueError(f"after must be at least 0, but got {after}.")
    return functools.partial(_on_before, after)


def ramp(epochs: int, start: float = 0.0, end: float = 1.0) -> Schedule:
    """Let the factor on the noise go linearly from ``start`` to ``end`` in ``epochs`` epochs.

    At factor zero bridges are straight lines, not switched off.

    Example:
        >>> schedule = ramp(epochs=4)
        >>> [schedule(epoch) for epoch in range(6)]
        [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    """
    if epochs < 1 or min(start, end) < 0:
        raise ValueError(
            f"ramp needs epochs >= 1 and factors >= 0, but got epochs={epochs}, start={start}, end={end}."
        )
    return functools.partial(_linear, epochs, start, end)


def check_schedule(schedule: object) -> None:
    """A schedule must be a function, or None for full strength throughout."""
    if schedule is not None and not callable(schedule):
        raise TypeError(
            f"schedule must be a function of the epoch, but got {schedule!r}. "
            "Use e.g. elliptica.switch_off(after=80)."
        )


def factor_in(schedule: Schedule | None, epoch: int | None) -> float | None:
    """Factor on the noise in an epoch; None when bridges are off."""
    if schedule is None:
        return 1.0
    if epoch is None:
        raise RuntimeError(
            "This objective has a schedule, but does not know the epoch. Call "
            "objective.set_epoch(epoch) at the start of each epoch (0, 1, ...)."
        )
    factor = schedule(epoch)
    if factor is not None:
        checks.nonnegative(f"The schedule's factor in epoch {epoch}", factor)
    return factor


# Functions of their own, because an objective with a schedule must be picklable.
def _on_before(after: int, epoch: int) -> float | None:
    return 1.0 if epoch < after else None


def _linear(epochs: int, start: float, end: float, epoch: int) -> float:
    return start + (end - start) * min(epoch / epochs, 1.0)
