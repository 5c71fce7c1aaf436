"""The bridge sampler against bare random numbers, and against torchsde."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
import torchsde
from torch import Tensor

from benchmarks.timing import Measurement, compare
from elliptica import sample_bridge
from elliptica.core.bridge import bridge_points, time_grid

SIGMA, N_TIMES = 0.05, 5


def with_torchsde(start: Tensor, end: Tensor) -> Tensor:
    """The same job with BrownianInterval: a Brownian path, pinned at both ends."""
    motion = torchsde.BrownianInterval(0.0, 1.0, size=tuple(start.shape), levy_area_approximation="none")
    times = torch.linspace(0, 1, N_TIMES).tolist()
    steps = [motion(a, b) for a, b in itertools.pairwise(times)]
    free = SIGMA * torch.stack([torch.zeros_like(start), *steps]).cumsum(0)
    s = torch.linspace(0, 1, N_TIMES).reshape(-1, *[1] * start.ndim)
    return start + free + s * (end - start - free[-1])


def measure() -> Iterator[Measurement]:
    """Three sizes; the last one is all overhead."""
    for batch, features, budget, repeats, sde_budget in (
        (100, 3072, 1.15, 5, 0.35),
        (2000, 122, 1.15, 5, None),
        (100, 5, 2.0, 200, 0.05),
    ):
        start, end = torch.randn(batch, features), torch.randn(batch, features)
        size = f"{batch} x {N_TIMES} x {features}"
        # as training calls it: arguments were checked when the objective was built
        times = time_grid(N_TIMES, 1.0, start.dtype, start.device)
        ours = lambda a=start, b=end, t=times: bridge_points(a, b, SIGMA, t, None)  # noqa: E731
        floor = lambda b=batch, d=features: torch.randn(b, N_TIMES - 1, d)  # noqa: E731
        yield compare(
            f"bridge sampler, {size}",
            ours,
            "`torch.randn` of Algorithm 2's increments",
            floor,
            budget=budget,
            repeats=repeats,
            rounds=41,
        )
        if repeats > 100:
            yield compare(
                f"`sample_bridge`, {size}, arguments checked",
                lambda a=start, b=end: sample_bridge(a, b, n_times=N_TIMES, sigma=SIGMA),
                "the sampler alone",
                ours,
                budget=float("inf"),
                repeats=repeats,
                rounds=21,
            )
        if sde_budget is not None:
            yield compare(
                f"bridge sampler, {size}",
                ours,
                "torchsde `BrownianInterval`, same job",
                lambda a=start, b=end: with_torchsde(a, b),
                budget=sde_budget,
                repeats=max(1, repeats // 5),
                rounds=21,
            )
