"""The bridge sampler against bare random numbers, and against torchsde."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import torch
import torchsde
from torch import Tensor

from benchmarks.timing import Measurement, compare
from elliptica.core.bridge import bridge_points, time_grid

SIGMA, N_TIMES = 0.05, 5


def with_torchsde(start: Tensor, end: Tensor) -> Tensor:
    """The same job with BrownianInterval: a Brownian path, pinned at both ends."""
    motion = torchsde.BrownianInterval(0.0, 1.0, size=tuple(start.shape), levy_area_approximation="none")
    times = torch.linspace(0, 1, N_TIMES)
    steps = [motion(a, b) for a, b in itertools.pairwise(times.tolist())]
    free = SIGMA * torch.stack([torch.zeros_like(start), *steps]).cumsum(0)
    return start + free + times.reshape(-1, *[1] * start.ndim) * (end - start - free[-1])


def measure() -> Iterator[Measurement]:
    """Three sizes; the last one is all overhead."""
    for batch, features, budget, repeats, sde_budget in (
        (100, 3072, 1.15, 5, 0.35),
        (2000, 122, 1.15, 5, None),
        (100, 5, 2.0, 200, 0.05),
    ):
        ends = torch.randn(batch, features), torch.randn(batch, features)
        size = f"{batch} x {N_TIMES} x {features}"
        # as training calls it: arguments were checked when the objective was built
        times = time_grid(N_TIMES, 1.0, ends[0].dtype, ends[0].device)
        ours, name = partial(bridge_points, *ends, SIGMA, times, None), f"bridge sampler, {size}"
        noise, floor = "`torch.randn` of Algorithm 2's increments", (batch, N_TIMES - 1, features)
        yield compare(name, ours, noise, partial(torch.randn, floor), budget, 41, repeats)
        if sde_budget is not None:
            theirs, against = partial(with_torchsde, *ends), "torchsde `BrownianInterval`, same job"
            yield compare(name, ours, against, theirs, sde_budget, 21, repeats // 5)
