"""Schedules: change the noise from epoch to epoch, or switch bridges off.

A schedule is any function from the epoch (0, 1, ...) to a factor on ``sigma`` and ``sigma_y``, or to None,
which means ordinary training on the data alone. Pass it to `elliptica.Elliptic` and call
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
    checks.count("after", after, 0)
    return functools.partial(_on_before, after)


def ramp(epochs: int, start: float = 0.0, end: float = 1.0) -> Schedule:
    """Change the factor on the noise linearly from ``start`` to ``end`` in ``epochs`` epochs.

    A factor of zero gives straight lines; it does not switch bridges off.

    Example:
        >>> schedule = ramp(epochs=4)
        >>> [schedule(epoch) for epoch in range(6)]
        [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    """
    checks.count("epochs", epochs)
    checks.nonnegative_number("start", start)
    checks.nonnegative_number("end", end)
    return functools.partial(_linear, epochs, start, end)


def check_schedule(schedule: object) -> None:
    """Raise unless a schedule is a function, or None for full strength throughout."""
    if schedule is not None and not callable(schedule):
        raise TypeError(
            f"schedule must be a function of the epoch, but got {schedule!r}. "
            "Use e.g. elliptica.switch_off(after=80)."
        )


def factor_in(schedule: Schedule | None, epoch: int | None) -> float | None:
    """Return the factor on the noise in an epoch, or None if bridges are off."""
    if schedule is None:
        return 1.0
    if epoch is None:
        raise RuntimeError(
            "This objective has a schedule, but the epoch was not set. Call "
            "objective.set_epoch(epoch) at the start of each epoch (0, 1, ...)."
        )
    factor = schedule(epoch)
    if factor is not None:
        checks.nonnegative_number(f"The schedule's factor in epoch {epoch}", factor)
    return factor


# Module-level functions, because closures cannot be pickled and an objective must be.
def _on_before(after: int, epoch: int) -> float | None:
    return 1.0 if epoch < after else None


def _linear(epochs: int, start: float, end: float, epoch: int) -> float:
    return start + (end - start) * min(epoch / epochs, 1.0)
