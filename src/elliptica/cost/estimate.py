"""The cost of a step: counted, traced on a few samples, and extended to the batch that is meant."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.core.elliptic import Elliptic
from elliptica.core.inputs import named_inputs
from elliptica.core.types import Inputs, LossFn
from elliptica.cost.passes import Passes, count_passes
from elliptica.cost.rate import Rate
from elliptica.cost.sizes import (
    LARGE,
    SMALL,
    Bench,
    Optimizer,
    Precision,
    Steps,
    extended,
    quadratic_peak,
    some_rows,
)
from elliptica.cost.trace import trace_step

#: Chunks of a traced step: from the third on, every chunk adds its points and nothing else.
CHUNKS = 3


@dataclass(frozen=True)
class How:
    """How steps are tried."""

    optimizer: Optimizer
    precision: Precision
    simulate: bool

    def bench(self, objective: Elliptic) -> Bench:
        """A copy of the objective to try."""
        return Bench(objective, self.optimizer, self.precision, self.simulate)


@dataclass(frozen=True)
class Cost:
    """What one step costs; bytes are those of one process.

    Attributes:
        batch: Samples of the step.
        passes: Rows by what is done with them.
        operations: Number of operations, without the drawing of bridges.
        flops: Multiplications and additions of products and convolutions.
        drawn: Random values of the bridges.
        parameters: Bytes of the parameters and buffers.
        gradients: Bytes of their gradients.
        optimizer: Bytes of the optimiser's state.
        activations: Bytes that are kept for the backward pass (of one chunk, with chunks).
        bridges: Bytes of the points on bridges, inputs and targets.
        peak: The most bytes at once, all of these and temporary ones together.
        ordinary: The same for ordinary training on the same batch.
        unchunked: The same without chunks; None if there are none.
    """

    batch: int
    passes: Passes
    operations: int
    flops: float
    drawn: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    bridges: int
    peak: int
    ordinary: Cost | None = None
    unchunked: Cost | None = None

    def seconds(self, rate: Rate) -> float:
        """Time of a step at a rate."""
        return rate.seconds(self.flops, self.operations, self.drawn)

    def training_seconds(self, rate: Rate, *, rows: int, epochs: int, world_size: int = 1) -> float:
        """Time of a training on so many samples, if processes never wait for each other or for data."""
        steps = -(-rows // (self.batch * world_size))
        return epochs * steps * self.seconds(rate)


def estimate(
    objective: Elliptic | nn.Module,
    x: Inputs,
    y: Tensor,
    *,
    batch: int | None = None,
    loss_fn: LossFn | None = None,
    optimizer: Optimizer = "sgd",
    precision: Precision = "float32",
    simulate: bool = False,
) -> Cost:
    """Predict what a training step costs, from steps on two and on four samples.

    Nothing of yours is changed: a copy of the objective is stepped. Bytes are within a quarter of
    what torch's allocator reports on the networks that we test. Not in them: memory that kernels take for
    themselves (the workspace of convolutions), the caching of the allocator, and what is there before (data,
    the framework). Do not use it for models whose cost is not linear in the rows.

    Args:
        objective: `Elliptic` training, or a model, which is then trained in the ordinary way.
        x: A few samples, from which sizes are read.
        y: Their targets.
        batch: Samples of the step that is meant; None means as many as ``x`` has.
        loss_fn: For a model: its loss.
        optimizer: ``"sgd"``, ``"momentum"``, ``"adam"`` or ``"adamw"``, for the state that it keeps.
        precision: ``"bfloat16"`` for a forward pass under autocast.
        simulate: Compute shapes alone, for models whose steps are too large for this machine. (Then
            ``operations`` is higher, as torch takes operations apart.)

    Example:
        >>> model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
        >>> objective = Elliptic(model, nn.MSELoss(), sampling="path", n_times=5)
        >>> cost = estimate(objective, torch.randn(4, 20), torch.randn(4, 1), batch=128, optimizer="adam")
        >>> cost.passes.rows, cost.flops / cost.ordinary.flops
        (640, 5.0)
    """
    how = How(optimizer, precision, simulate)
    batch = len(y) if batch is None else batch
    checks.count("batch", batch)
    if not isinstance(objective, Elliptic):
        if loss_fn is None:
            raise ValueError("A model alone has no loss. Pass loss_fn=, e.g. torch.nn.CrossEntropyLoss().")
        classes = None if y.is_floating_point() else int(y.max()) + 1
        objective = Elliptic(objective, loss_fn, num_classes=classes)
        return _ordinary(objective, x, y, batch, how)
    ordinary = _ordinary(objective, x, y, batch, how)
    passes = count_passes(objective, batch)
    whole = count_passes(_changed(objective, None), batch)
    bench, steps = _traced(_changed(objective, None), x, y, how)
    fixed = ordinary.parameters + ordinary.optimizer
    drawing = _drawing(objective, x, y, batch, how)  # all points are drawn before the model is called
    drawn, bridges = _bridges(bench, x, y, passes.rows)
    unchunked = dataclasses.replace(
        ordinary,
        passes=whole,
        operations=steps.operations,
        flops=steps.flops(passes.rows),
        drawn=drawn,
        activations=round(steps.saved(passes.rows)),
        bridges=bridges,
        peak=round(fixed + max(steps.peak(passes.rows), drawing)),
        ordinary=ordinary,
    )
    if passes.chunks == 1:
        return unchunked
    parts = _in_chunks(objective, x, y, how)
    # points of the other chunks; a weighting keeps a copy of them with its gradient
    beyond = bridges * (1 - CHUNKS * passes.chunk_rows / passes.rows) * (2 if passes.input_gradient else 1)
    return dataclasses.replace(
        unchunked,
        passes=passes,
        operations=round(parts.operations * passes.chunks / CHUNKS),
        flops=parts.flops(passes.rows),
        activations=round(steps.saved(passes.chunk_rows)),
        peak=round(fixed + max(parts.peak(CHUNKS * passes.chunk_rows) + beyond, drawing)),
        unchunked=unchunked,
    )


def _changed(objective: Elliptic, chunk_size: int | None) -> Elliptic:
    """The same objective, with one bridge per sample and other chunks; it shares the model."""
    changed = Elliptic.__new__(Elliptic)
    nn.Module.__init__(changed)
    changed.__dict__.update(objective.__dict__)
    changed.chunk_size = chunk_size
    bridges = 2 if objective.sampler.antithetic else 1
    changed.sampler = dataclasses.replace(objective.sampler, n_bridges=bridges, validate=False)
    return changed


def _traced(objective: Elliptic, x: Inputs, y: Tensor, how: How) -> tuple[Bench, Steps]:
    bench = how.bench(objective)
    small, large = (bench.trace(bench.elliptic(*some_rows(x, y, n))) for n in (SMALL, LARGE))
    rows = tuple(count_passes(objective, n).rows for n in (SMALL, LARGE))
    return bench, extended(small, large, (rows[0], rows[1]))


def _in_chunks(objective: Elliptic, x: Inputs, y: Tensor, how: How) -> Steps:
    """A step in `CHUNKS` chunks: sums of gradients wait for the last one, beside what that one keeps."""
    is_path = objective.sampler.sampling == "path"
    per_path = objective.sampler.n_times if is_path else 1
    bridges = _changed(objective, None).sampler.n_bridges
    traces, rows = [], []
    for samples in (1, 2) if is_path else (2, 4):  # of a chunk
        small = _changed(objective, samples * bridges * per_path)
        bench = how.bench(small)
        traces.append(bench.trace(bench.elliptic(*some_rows(x, y, CHUNKS * samples))))
        rows.append(count_passes(small, CHUNKS * samples).rows)
    return extended(traces[0], traces[1], (rows[0], rows[1]))


def _ordinary(objective: Elliptic, x: Inputs, y: Tensor, batch: int, how: How) -> Cost:
    bench = how.bench(objective)
    small, large = (bench.trace(bench.ordinary(*some_rows(x, y, n))) for n in (SMALL, LARGE))
    steps = extended(small, large, (SMALL, LARGE))
    model = bench.objective.model
    parameters = sum(t.untyped_storage().nbytes() for t in (*model.parameters(), *model.buffers()))
    state = bench.state_bytes()
    return Cost(
        batch=batch,
        passes=Passes(batch, batch, 0, batch, 0, 1, batch),
        operations=steps.operations,
        flops=steps.flops(batch),
        drawn=0,
        parameters=parameters,
        gradients=sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad),
        optimizer=state,
        activations=round(steps.saved(batch)),
        bridges=0,
        peak=round(parameters + state + steps.peak(batch)),
    )


def _drawing(objective: Elliptic, x: Inputs, y: Tensor, batch: int, how: How) -> float:
    """Peak of drawing the points alone; distances between all samples make it quadratic in the batch."""
    bench = how.bench(objective)
    least = objective.sampler.n_bridges + 1  # with fewer samples there are too few neighbours
    sizes = (least, 2 * least, 3 * least)
    traces = []
    for n in sizes:
        draw = functools.partial(bench.objective.sample, *bench.own(*some_rows(x, y, n)))
        with torch.random.fork_rng(devices=[]), bench.simulated():
            draw()  # sigma="auto" is measured once
            traces.append(trace_step(draw))
    return quadratic_peak(sizes, traces, batch)


def _bridges(bench: Bench, x: Inputs, y: Tensor, rows: int) -> tuple[int, int]:
    """Random values that are drawn for so many rows, and bytes of the points."""
    with torch.random.fork_rng(devices=[]), bench.simulated():
        paths = bench.objective.sample(*bench.own(*some_rows(x, y, SMALL)))
    tensors = [*named_inputs(paths.x).values(), paths.y]
    values = sum(t.numel() for t in tensors) / paths.rows
    size = sum(t.numel() * t.element_size() for t in tensors) / paths.rows
    return round(values * rows), round(size * rows)
