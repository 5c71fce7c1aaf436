"""How fast a machine is at a model: measured by ordinary steps, or stated."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from elliptica._utils import checks
from elliptica.core.elliptic import Elliptic
from elliptica.core.types import Inputs
from elliptica.cost.sizes import Bench, Optimizer, Precision, some_rows

#: A step that takes as many seconds is long enough to be timed, and more rows are not tried.
_LONG = 0.5


@dataclass(frozen=True)
class Rate:
    """Speed of a machine.

    Attributes:
        flops: Multiplications and additions per second that are reached.
        per_operation: Seconds of each operation, whatever its size.
        per_draw: Seconds of each random value of a bridge.
        per_sample: Seconds of each drawing of bridges, whatever its size.
    """

    flops: float
    per_operation: float = 0.0
    per_draw: float = 0.0
    per_sample: float = 0.0

    def __post_init__(self) -> None:
        checks.positive("flops", self.flops)

    def seconds(self, flops: float, operations: int, drawn: int) -> float:
        """Time of a step."""
        drawing = self.per_sample + drawn * self.per_draw if drawn else 0.0
        return flops / self.flops + operations * self.per_operation + drawing


def calibrate(
    objective: Elliptic,
    x: Inputs,
    y: Tensor,
    *,
    batch: int | None = None,
    optimizer: Optimizer = "sgd",
    precision: Precision = "float32",
    clock: Callable[[], float] = time.perf_counter,
) -> Rate:
    """Measure how fast this machine steps the model in ordinary training, and draws bridges.

    Steps of two sizes, the larger one as near to ``batch`` rows as half a second allows, tell what an
    operation costs by itself and what its arithmetic costs.

    Args:
        objective: The objective; a copy of it is stepped.
        x: A few samples.
        y: Their targets.
        batch: Rows of the steps that are meant; None means as many as ``x`` has.
        optimizer: As in `estimate`.
        precision: As in `estimate`.
        clock: What time is; ``time.process_time`` leaves out the waiting on a busy machine.

    Example:
        >>> from torch import nn
        >>> objective = Elliptic(nn.Linear(3, 1), nn.MSELoss())
        >>> calibrate(objective, torch.randn(8, 3), torch.randn(8, 1)).flops > 0
        True
    """
    batch = len(y) if batch is None else batch
    bench = Bench(objective, optimizer, precision)
    with torch.random.fork_rng(devices=[]):
        large, taken = 4, 0.0
        while True:
            taken = timed(bench.ordinary(*some_rows(x, y, large)), bench.device, clock)
            if large >= batch or taken * 2 > _LONG:
                break
            large = min(2 * large, max(batch, 4))
        small = max(large // 4, 2)
        sizes = [some_rows(x, y, n) for n in (small, large)]
        traces = [bench.trace(bench.ordinary(*rows)) for rows in sizes]
        times = _interleaved([bench.ordinary(*rows) for rows in sizes], bench.device, clock)
        draws = _interleaved([_drawing(bench, *rows) for rows in sizes], bench.device, clock)
        drawn = [_drawn(bench, *rows) for rows in sizes]
    work = traces[1].flops - traces[0].flops
    slope = max(times[1] - times[0], 1e-3 * times[1]) / work if work > 0 else 0.0
    rest = times[1] - slope * traces[1].flops
    if rest < 0:  # arithmetic alone
        slope, rest = times[1] / traces[1].flops, 0.0
    per_draw = max(draws[1] - draws[0], 0.0) / max(drawn[1] - drawn[0], 1)
    return Rate(
        flops=1 / slope if slope > 0 else float("inf"),
        per_operation=rest / traces[1].operations,
        per_draw=per_draw,
        per_sample=max(draws[1] - per_draw * drawn[1], 0.0),
    )


def _drawing(bench: Bench, x: Inputs, y: Tensor) -> Callable[[], object]:
    return lambda: bench.objective.sample(x, y)


def _drawn(bench: Bench, x: Inputs, y: Tensor) -> int:
    from elliptica.core.inputs import named_inputs

    paths = bench.objective.sample(x, y)
    return paths.y.numel() + sum(value.numel() for value in named_inputs(paths.x).values())


def timed(run: Callable[[], object], device: torch.device, clock: Callable[[], float]) -> float:
    """Time of a call; the one before it, for whatever is made once, does not count."""
    run()
    _wait(device)
    begin = clock()
    run()
    _wait(device)
    return clock() - begin


def _interleaved(
    runs: list[Callable[[], object]], device: torch.device, clock: Callable[[], float]
) -> list[float]:
    """Median time of each, taken in turns, for about a second and at least five times."""
    times: list[list[float]] = [[] for _ in runs]
    begin = time.perf_counter()
    while len(times[-1]) < 5 or (time.perf_counter() - begin < 1.0 and len(times[-1]) < 200):
        for run, kept in zip(runs, times, strict=True):
            start = clock()
            run()
            _wait(device)
            kept.append(clock() - start)
    return [statistics.median(kept) for kept in times]


def _wait(device: torch.device) -> None:
    """Accelerators answer before they have finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
