"""Where walks ended: the common currency of the samplers, and its averages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

#: Label of walks that ran out of steps.
UNFINISHED = -2


@dataclass(frozen=True)
class Walks:
    """Ends of walks, one row each.

    Attributes:
        end: Point of the boundary (the last position of an unfinished walk).
        label: Number of the ball, `OUTER` (-1) or `UNFINISHED` (-2).
        log_weight: Logarithm of the weight that multiplies the boundary value: change of measure for a
            drift, survival for absorption. Zero for Laplace's equation.
        integral: Integral of the source along the walk, weights included.
        time: Time to the end (its mean given the places visited, for walk on spheres).
        steps: Number of steps.
    """

    end: Float[Tensor, "walks dim"]
    label: Int[Tensor, " walks"]
    log_weight: Float[Tensor, " walks"]
    integral: Float[Tensor, " walks"]
    time: Float[Tensor, " walks"]
    steps: Int[Tensor, " walks"]


@dataclass(frozen=True)
class Averages:
    """Walks reduced to one row per query; unfinished walks count in their share only.

    Attributes:
        mean: Mean of weight times boundary value plus integral; NaN where no walk finished.
        stderr: Its standard error; infinite where fewer than two walks finished.
        hit_share: Share of walks on a ball.
        outer_share: Share on the outer boundary.
        unfinished_share: Share that ran out of steps.
        effective: ``(sum w)^2 / sum w^2``, in walks.
        exit_time: Mean time of the finished walks.
        exit_time_stderr: Its standard error.
        steps: Mean number of steps, unfinished walks included.
    """

    mean: Float[Tensor, " queries"]
    stderr: Float[Tensor, " queries"]
    hit_share: Float[Tensor, " queries"]
    outer_share: Float[Tensor, " queries"]
    unfinished_share: Float[Tensor, " queries"]
    effective: Float[Tensor, " queries"]
    exit_time: Float[Tensor, " queries"]
    exit_time_stderr: Float[Tensor, " queries"]
    steps: Float[Tensor, " queries"]


def average(walks: Walks, n_walks: int, values: Float[Tensor, " walks"]) -> Averages:
    """Mean, standard error and shares per query.

    Args:
        walks: Ends, the ``n_walks`` rows of a query after one another.
        n_walks: Walks per query.
        values: Boundary value at each end; what stands there for unfinished walks is not looked at.
    """
    dtype = values.dtype
    label = walks.label.reshape(-1, n_walks)
    done = label != UNFINISHED
    log_w = walks.log_weight.double().reshape_as(label)
    payoff = log_w.exp() * torch.where(done, values.double().reshape_as(label), 0.0)
    mean, stderr = _mean(payoff + walks.integral.double().reshape_as(label), done)
    exit_time, exit_time_stderr = _mean(walks.time.double().reshape_as(label), done)
    log_w = torch.where(done, log_w, -torch.inf)
    top = log_w.amax(1, keepdim=True)
    share = torch.where(done, (log_w - top).exp(), 0.0)
    effective = share.sum(1).square() / share.square().sum(1).clamp_min(1e-300)
    return Averages(
        mean.to(dtype),
        stderr.to(dtype),
        (label >= 0).to(dtype).mean(1),
        (done & (label < 0)).to(dtype).mean(1),
        (~done).to(dtype).mean(1),
        effective.to(dtype),
        exit_time.to(dtype),
        exit_time_stderr.to(dtype),
        walks.steps.to(dtype).reshape_as(label).mean(1),
    )


def _mean(x: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard error of the finished entries of each row."""
    n = done.sum(1)
    mean = torch.where(done, x, 0.0).sum(1) / n  # 0 / 0: nothing finished, nothing known
    spread = torch.where(done, x - mean[:, None], 0.0).square().sum(1)
    stderr = (spread / ((n - 1).clamp_min(1) * n.clamp_min(1))).sqrt()
    return mean, torch.where(n > 1, stderr, torch.inf)
