"""From a few samples to any number: a step traced at two small sizes, extended along straight lines.

Every tensor of a step has a number of bytes that is linear in the rows, and the order of operations does not
depend on them. So the bytes alive after each operation are linear, too, and the peak is the largest of these
lines: it may come at another moment in a large step than in a small one.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from elliptica._utils import checks
from elliptica.core.elliptic import Elliptic
from elliptica.core.inputs import named_inputs, rebuild_inputs
from elliptica.core.types import Inputs
from elliptica.cost.trace import Trace, trace_step

Optimizer = Literal["sgd", "momentum", "adam", "adamw"]
Precision = Literal["float32", "bfloat16"]
OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "momentum", "adam", "adamw")
#: Samples of the two traced steps: two, so that batch norm has something to normalise.
SMALL, LARGE = 2, 4


@dataclass(frozen=True)
class Line:
    """A quantity that is ``at_zero + slope * rows``."""

    at_zero: float
    slope: float

    def __call__(self, rows: int) -> float:
        """The value at a number of rows."""
        return self.at_zero + self.slope * rows


@dataclass(frozen=True)
class Steps:
    """A step as a function of its rows.

    Attributes:
        operations: Number of operations, the same for all sizes.
        flops: Multiplications and additions.
        saved: Bytes kept for the backward pass.
        live: Bytes alive after each operation.
    """

    operations: int
    flops: Line
    saved: Line
    live: tuple[Line, ...]

    def peak(self, rows: int) -> float:
        """The most bytes that are alive at once."""
        return max(line(rows) for line in self.live)


def line(a: tuple[int, int], b: tuple[int, int]) -> Line:
    """The line through two points ``(rows, value)``."""
    slope = (b[1] - a[1]) / (b[0] - a[0])
    return Line(a[1] - slope * a[0], slope)


def extended(small: Trace, large: Trace, rows: tuple[int, int]) -> Steps:
    """Lines through two traces, at so many rows each."""
    live: tuple[Line, ...]
    if len(small.live) == len(large.live):
        live = tuple(line((rows[0], a), (rows[1], b)) for a, b in zip(small.live, large.live, strict=True))
    else:  # another order of operations: the peaks alone
        live = (line((rows[0], small.peak), (rows[1], large.peak)),)
    return Steps(
        large.operations,
        line((rows[0], small.flops), (rows[1], large.flops)),
        line((rows[0], small.saved), (rows[1], large.saved)),
        live,
    )


def quadratic_peak(sizes: Sequence[int], traces: Sequence[Trace], at: int) -> float:
    """Peak at another size, if the bytes alive after each operation are parabolas through three traces."""
    same = len({len(trace.live) for trace in traces}) == 1
    columns = zip(*(trace.live if same else (trace.peak,) for trace in traces), strict=True)
    a, b, c = sizes
    shares = (
        (at - b) * (at - c) / ((a - b) * (a - c)),
        (at - a) * (at - c) / ((b - a) * (b - c)),
        (at - a) * (at - b) / ((c - a) * (c - b)),
    )
    return max(sum(map(operator.mul, shares, column)) for column in columns)


def some_rows(x: Inputs, y: Tensor, n: int) -> tuple[Inputs, Tensor]:
    """So many samples: the first ones, over and over if there are fewer."""
    index = torch.arange(n, device=y.device) % len(y)
    return rebuild_inputs(
        x, {name: value[index.to(value.device)] for name, value in named_inputs(x).items()}
    ), y[index]


def make_optimizer(name: Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """An optimiser by name, with a rate so small that a step leaves the weights nearly alone."""
    checks.choice("optimizer", name, OPTIMIZERS)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if name == "adam":
        return torch.optim.Adam(parameters, lr=1e-9)
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-9)
    return torch.optim.SGD(parameters, lr=1e-9, momentum=0.9 if name == "momentum" else 0.0)


def _simulate(module: nn.Module, mode: FakeTensorMode) -> None:
    """Replace parameters and buffers by tensors without content; shared ones stay shared."""
    seen: dict[int, Any] = {}
    for layer in module.modules():
        for name, value in layer._parameters.items():
            if value is not None:
                fake = seen.get(id(value))
                if fake is None:
                    fake = nn.Parameter(mode.from_tensor(value.detach()), requires_grad=value.requires_grad)
                layer._parameters[name] = seen[id(value)] = fake
        for name, buffer in layer._buffers.items():
            if buffer is not None:
                layer._buffers[name] = mode.from_tensor(buffer)


class Bench:
    """A copy of an objective with an optimiser: steps can be tried, and leave no trace in the original.

    Args:
        objective: The objective; copied, and put into training mode.
        optimizer: Name of the optimiser.
        precision: Of the forward pass.
        simulate: Compute shapes alone, so that no step takes time or memory.
    """

    def __init__(
        self, objective: Elliptic, optimizer: Optimizer, precision: Precision, simulate: bool = False
    ) -> None:
        self.objective = copy.deepcopy(objective).train()
        self.objective.schedule = None
        with warnings.catch_warnings():  # of settings: they have been given before
            warnings.simplefilter("ignore")
            self.objective.sampler = dataclasses.replace(self.objective.sampler, validate=False)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True) if simulate else None
        if self.mode is not None:
            _simulate(self.objective, self.mode)
        self.optimizer = make_optimizer(optimizer, self.objective.model)
        self.precision = precision
        first = next(self.objective.model.parameters(), None)
        self.device = torch.device("cpu") if first is None else first.device

    def step(self, loss: Callable[[], Tensor]) -> Callable[[], None]:
        """A training step as a function: what torch's documentation writes into a loop."""

        def run() -> None:
            self.optimizer.zero_grad()
            with self._autocast():
                value = loss()
            value.backward()
            self.optimizer.step()

        return run

    def elliptic(self, x: Inputs, y: Tensor) -> Callable[[], None]:
        """A step of elliptic training."""
        x, y = self.own(x, y)
        return self.step(lambda: self.objective(x, y, generator=torch.Generator().manual_seed(0)))

    def ordinary(self, x: Inputs, y: Tensor) -> Callable[[], None]:
        """A step of ordinary training."""
        x, y = self.own(x, y)
        return self.step(lambda: self.objective.clean_loss(x, y))

    def trace(self, run: Callable[[], None]) -> Trace:
        """Watch a step; the one before it made the optimiser's state."""
        with torch.random.fork_rng(devices=[]), self.simulated():
            run()
            self.optimizer.zero_grad()
            return trace_step(run)

    def own(self, x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
        """Samples as this bench needs them."""
        if self.mode is None:
            return x, y
        named = {name: self.mode.from_tensor(value) for name, value in named_inputs(x).items()}
        return rebuild_inputs(x, named), self.mode.from_tensor(y)

    @contextlib.contextmanager
    def simulated(self) -> Iterator[None]:
        """Shapes alone, if that is asked for."""
        if self.mode is None:
            yield
            return
        try:
            with self.mode:
                yield
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise ValueError(
                f"A step cannot be simulated, as it depends on values ({error}). Use simulate=False."
            ) from error

    def state_bytes(self) -> int:
        """Bytes of the optimiser's state, after a step."""
        return sum(
            tensor.untyped_storage().nbytes()
            for state in self.optimizer.state.values()
            for tensor in state.values()
            if isinstance(tensor, Tensor)
        )

    def _autocast(self) -> Any:
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16", cache_enabled=False
        )
