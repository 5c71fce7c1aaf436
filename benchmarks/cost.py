"""Predicted against measured: time and memory of steps, as `elliptica.cost` says them before."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.growth import processor_seconds
from benchmarks.timing import Measurement
from elliptica import Elliptic
from elliptica.cost import calibrate, estimate, trace_step
from elliptica.cost.sizes import Bench
from elliptica.lab.models import mlp, preact_resnet

#: Networks, inputs, and the batch that is predicted.
CASES: dict[str, tuple[nn.Module, Tensor, int]] = {
    "PreActResNet-18 of width 16, 32x32": (preact_resnet(18, 10, width=16), torch.randn(16, 3, 32, 32), 16),
    "128-128 MLP, 122 features": (mlp(122, 10), torch.randn(256, 122), 256),
    "linear layer, 1280 features": (mlp(1280, 10, hidden=()), torch.randn(256, 1280), 256),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "marginal": {},
    "path": {"sampling": "path"},
    "path, multiplicative": {"sampling": "path", "weighting": "multiplicative"},
    "path in chunks": {"sampling": "path", "chunk_size": 32},
}


def measure() -> Iterator[Measurement]:
    """Each round calibrates anew and measures right after it, in one thread and time of the processor."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield from _predictions()
    torch.set_num_threads(threads)


def _predictions() -> Iterator[Measurement]:
    for network, (model, x, batch) in CASES.items():
        y = torch.randint(10, (len(x),))
        for name, settings in SETTINGS.items():
            objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=10, sigma_y=0.0, **settings)
            cost = estimate(objective, x, y, batch=batch, optimizer="momentum")
            bench = Bench(objective, "momentum", "float32")
            step = bench.elliptic(x, y)
            step()
            ratios, measured = [], []
            for _ in range(5):
                rate = calibrate(objective, x, y, batch=batch, optimizer="momentum", clock=time.process_time)
                measured.append(statistics.median(processor_seconds(step, 1) for _ in range(5)))
                ratios.append(cost.seconds(rate) / measured[-1])
            bench.optimizer.zero_grad()
            peak = trace_step(step).peak + cost.parameters + cost.optimizer
            low, _, high = statistics.quantiles(ratios, n=4)
            yield Measurement(
                f"predicted time of a step: {name}, {network}, batch {batch}",
                "measured",
                statistics.median(ratios),
                low,
                high,
                float("inf"),
                f"{1e3 * statistics.median(measured):.3g} ms; memory {cost.peak / peak:.2f} of the traced",
            )
