"""Sampling and the objective as functions, for those who want no module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elliptica._ends import End
from elliptica.objective import Elliptic
from elliptica.paths import PathSampler
from elliptica.targets import TargetSpace
from elliptica.types import Inputs, LossFn, Paths


def elliptic_loss(
    model: nn.Module,
    loss_fn: LossFn,
    x: Inputs,
    y: Tensor,
    *,
    sample_weight: Tensor | None = None,
    partners: Tensor | None = None,
    end: End | None = None,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> Tensor:
    """The objective as a function; settings are those of `Elliptic`.

    For loops that want no extra module. With several processes use `Elliptic` and wrap that; a wrapped
    model is refused here where the result would be silently wrong.

    Example:
        >>> model = nn.Linear(4, 1)
        >>> x, y = torch.randn(8, 4), torch.randn(8, 1)
        >>> elliptic_loss(model, nn.MSELoss(), x, y, sigma=0.05).backward()
    """
    if settings.get("schedule") is not None:
        raise ValueError(
            "A function has no epochs: call it with another sigma instead of schedule=, or use Elliptic."
        )
    objective = Elliptic(model, loss_fn, **settings)
    result: Tensor = objective(
        x, y, sample_weight=sample_weight, partners=partners, end=end, generator=generator
    )
    return result


def sample_paths(
    x: Inputs,
    y: Tensor,
    *,
    target_space: TargetSpace,
    sample_weight: Tensor | None = None,
    partners: Tensor | None = None,
    end: End | None = None,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> Paths:
    """Draw the points that elliptic training evaluates (paper: Algorithm 1, lines 2 and 3).

    Settings are those of `elliptica.Elliptic`. Hand the result to `elliptica.path_losses`, or to
    ``objective(x, y, paths=...)``.

    Example:
        >>> x, y = torch.randn(6, 3), torch.randn(6, 1)
        >>> paths = sample_paths(x, y, target_space="real", sampling="path", n_times=4)
        >>> paths.x.shape, paths.y.shape
        (torch.Size([6, 1, 4, 3]), torch.Size([6, 1, 4, 1]))
    """
    sampler = PathSampler(target_space=target_space, **settings)
    with torch.no_grad():
        return sampler.draw(
            x, y, sample_weight=sample_weight, partners=partners, end=end, generator=generator
        )
