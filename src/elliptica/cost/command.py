"""`elliptica cost`: the cost of a setting as a table."""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from elliptica._utils.text import count
from elliptica.core.elliptic import Elliptic
from elliptica.cost.estimate import Cost, estimate
from elliptica.cost.rate import Rate, calibrate, timed
from elliptica.cost.sizes import Bench, Optimizer, Precision, some_rows
from elliptica.cost.trace import trace_step


@dataclass(frozen=True)
class Plan:
    """A training that is planned.

    Attributes:
        shape: Of an input.
        n_classes: None for real targets.
        batch: Samples of a step, in each process.
        rows: Samples of the data set, or None.
        epochs: Passes over them.
        world_size: Processes.
        optimizer: Its name.
        precision: Of the forward pass.
        hardware: Stated speed, or None to measure this machine.
        device: Where it is measured.
    """

    shape: tuple[int, ...]
    n_classes: int | None
    batch: int
    rows: int | None = None
    epochs: int = 1
    world_size: int = 1
    optimizer: Optimizer = "sgd"
    precision: Precision = "float32"
    hardware: Rate | None = None
    device: str = "cpu"

    def samples(self) -> tuple[Tensor, Tensor]:
        """A few samples to read sizes from."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(4, *self.shape, generator=generator)
        if self.n_classes is None:
            y = torch.randn(4, 1, generator=generator)
        else:
            y = torch.randint(self.n_classes, (4,), generator=generator)
        return x.to(self.device), y.to(self.device)

    def loss(self) -> nn.Module:
        """The ordinary loss."""
        return nn.MSELoss() if self.n_classes is None else nn.CrossEntropyLoss()


def run_cost(objective: Elliptic, plan: Plan, measure: bool, console: Console) -> Cost:
    """Predict, print, and measure if that is asked for."""
    x, y = plan.samples()
    cost = _estimate(objective, plan, x, y)
    rate = plan.hardware or calibrate(
        objective, x, y, batch=plan.batch, optimizer=plan.optimizer, precision=plan.precision
    )
    console.print(cost_table(cost, plan, rate))
    for text in remarks(cost, plan, rate, _chunked(objective, cost, plan, x, y)):
        console.print(text, highlight=False, soft_wrap=True)
    if measure:
        seconds, grown = measured(objective, plan)
        peak = grown + cost.parameters + cost.optimizer
        console.print(
            f"Measured here: {time_text(seconds)} a step (predicted / measured "
            f"{cost.seconds(rate) / seconds:.2f}), all its tensors at their peak {bytes_text(peak)} "
            f"({cost.peak / peak:.2f}).",
            highlight=False,
            soft_wrap=True,
        )
    return cost


def _estimate(objective: Elliptic, plan: Plan, x: Tensor, y: Tensor) -> Cost:
    """For other hardware nothing need be computed here, unless the model looks at values."""
    options = {"batch": plan.batch, "optimizer": plan.optimizer, "precision": plan.precision}
    if plan.hardware is not None:
        with contextlib.suppress(ValueError):
            return estimate(objective, x, y, **options, simulate=True)  # type: ignore[arg-type]
    return estimate(objective, x, y, **options)  # type: ignore[arg-type]


def _chunked(objective: Elliptic, cost: Cost, plan: Plan, x: Tensor, y: Tensor) -> Cost | None:
    """The same in chunks of as many rows as the batch has; None where there are chunks, or one would do."""
    if cost.unchunked is not None or cost.passes.rows <= cost.batch:
        return None
    other = copy.copy(objective)
    other.chunk_size = cost.batch
    return _estimate(other, plan, x, y)


def measured(objective: Elliptic, plan: Plan) -> tuple[float, int]:
    """Seconds of steps at their real size, and bytes of their tensors beyond parameters and optimiser."""
    bench = Bench(objective, plan.optimizer, plan.precision)
    x, y = some_rows(*plan.samples(), plan.batch)
    step = bench.elliptic(x, y)
    times = [timed(step, bench.device, time.perf_counter) for _ in range(3)]
    bench.optimizer.zero_grad()
    return statistics.median(times), trace_step(step).peak


def cost_table(cost: Cost, plan: Plan, rate: Rate) -> Table:
    """This training beside ordinary training, and without chunks if there are chunks."""
    assert cost.ordinary is not None
    columns = {"elliptic": cost, "ordinary": cost.ordinary}
    if cost.unchunked is not None:
        columns = {"elliptic": cost, "without chunks": cost.unchunked, "ordinary": cost.ordinary}
    table = Table(title=f"One step of {plan.batch} samples", box=None)
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")

    def add(name: str, *values: str) -> None:
        table.add_row(name, *values)

    each = list(columns.values())
    base = cost.ordinary
    add("rows", *(f"{c.passes.rows}" for c in each))
    add("forward passes", *(f"{c.passes.forward / base.passes.forward:g}" for c in each))
    add(
        "backward passes",
        *(f"{(c.passes.input_gradient + c.passes.backward) / base.passes.backward:g}" for c in each),
    )
    add("operations", *(f"{c.flops:.3g} flop" for c in each))
    add("  relative", *(_ratio(c.flops, base.flops) for c in each))
    add("parameters", *(bytes_text(c.parameters) for c in each))
    add("gradients", *(bytes_text(c.gradients) for c in each))
    add("optimiser", *(bytes_text(c.optimizer) for c in each))
    add("activations", *(bytes_text(c.activations) for c in each))
    add("bridges", *(bytes_text(c.bridges) for c in each))
    add("peak memory", *(bytes_text(c.peak) for c in each))
    add("  relative", *(_ratio(c.peak, base.peak) for c in each))
    add("time", *(time_text(c.seconds(rate)) for c in each))
    add("  relative", *(_ratio(c.seconds(rate), base.seconds(rate)) for c in each))
    if plan.rows is not None:
        options = {"rows": plan.rows, "epochs": plan.epochs, "world_size": plan.world_size}
        add("training", *(time_text(c.training_seconds(rate, **options)) for c in each))
    return table


def remarks(cost: Cost, plan: Plan, rate: Rate, chunked: Cost | None = None) -> list[str]:
    """What the numbers rest on, and what chunks save or would."""
    found = []
    if plan.hardware is not None:
        found.append(
            f"Time: arithmetic at {rate.flops:.3g} flop per second and process; reading data, communication "
            "and small operations are not in it."
        )
    else:
        found.append("Time: from short steps of ordinary training on this machine.")
    if plan.rows is not None:
        steps = -(-plan.rows // (plan.batch * plan.world_size))
        found.append(
            f"Training: {count(plan.epochs, 'epoch')} of {count(steps, 'step')} in "
            f"{count(plan.world_size, 'process')}."
        )
    if plan.world_size > 1:
        share = 2 * (plan.world_size - 1) / plan.world_size * cost.gradients
        found.append(
            f"Each process sends about {bytes_text(share)} of gradients in a step (ring all-reduce)."
        )
    if cost.unchunked is not None:
        found.append(f"Chunks of {cost.passes.chunk_rows} rows: {_trade(cost, cost.unchunked)}.")
    elif chunked is not None and chunked.peak < 0.9 * cost.peak:
        found.append(
            f"chunk_size={cost.batch} would bring the peak to {bytes_text(chunked.peak)}: "
            f"{_trade(chunked, cost)}."
        )
    return found


def _ratio(value: float | int, base: float | int) -> str:
    """For people; a network without products has no operations to compare."""
    return f"{value / base:.2f}" if base else "-"


def _trade(chunked: Cost, whole: Cost) -> str:
    more = chunked.flops / whole.flops - 1 if whole.flops else 0.0
    return f"{100 * (1 - chunked.peak / whole.peak):.0f} % less memory for {100 * more:.0f} % more operations"


def bytes_text(value: float | int) -> str:
    """For people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def time_text(seconds: float | int) -> str:
    """For people."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if seconds >= 2 * size or (unit in ("s", "ms") and seconds >= size):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
