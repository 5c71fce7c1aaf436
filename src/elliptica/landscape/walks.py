"""Walk end points and their averages, shared by all solvers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elliptica._utils import checks

#: Label of walks that ran out of steps.
UNFINISHED = -2
#: Number of walks that must carry a value under a drift; with fewer, intervals from their spread miss it too
#: often.
FEW_CARRIERS = 50.0
#: Number of walks that must carry the spread of the payoffs under a drift; with fewer it is too uncertain.
FEW_DECIDING = 10.0
#: Fewest walks in one half from which a coefficient can be fitted.
_HALF = 8


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
    """Averages of walks, one row per query; unfinished walks count only in their share.

    Attributes:
        mean: Mean of weight times boundary value plus integral; NaN where no walk finished.
        stderr: Its standard error, with an allowance for payoffs that were not met; infinite where fewer than
            two walks finished.
        hit_share: Share of walks on a ball.
        outer_share: Share on the outer boundary.
        unfinished_share: Share that ran out of steps.
        effective: ``(sum w)^2 / sum w^2``, in walks.
        exit_time: Mean time of the finished walks.
        exit_time_stderr: Its standard error.
        steps: Mean number of steps, unfinished walks included.
        spread: Standard error from the spread of the walks alone; see `average`.
        carriers: ``(sum |x|)^2 / sum x^2`` of the payoffs ``x``: effective number of walks behind the value.
        deciding: ``(sum d^2)^2 / sum d^4`` of their deviations ``d``: the same for the spread.
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
    spread: Float[Tensor, " queries"]
    carriers: Float[Tensor, " queries"]
    deciding: Float[Tensor, " queries"]


@dataclass(frozen=True)
class Known:
    """Knowledge about payoffs beyond those that walks brought.

    Attributes:
        low: Least value that the boundary is known to have, one per query.
        high: Largest such value.
        weight: Largest weight that a walk with this value may have.
        unit_mean: Whether weights are a change of measure alone, so that their mean is one.
        drift: Whether weights change the measure at all. Then a few walks may carry the whole value, and
            where fewer than `FEW_CARRIERS` do, every value that was met counts as known.
        others: Values at points of the boundary, each with its own weight.
        weights: Those weights.
    """

    low: Float[Tensor, " queries"]
    high: Float[Tensor, " queries"]
    weight: float = 1.0
    unit_mean: bool = False
    drift: bool = False
    others: Float[Tensor, "queries places"] | None = None
    weights: Float[Tensor, "queries places"] | None = None


def average(
    walks: Walks, n_walks: int, values: Float[Tensor, " walks"], known: Known | None = None
) -> Averages:
    """Return mean, standard error and shares per query.

    All walks may miss a payoff that one in a hundred brings, and then their spread says
    nothing about it. So the standard error is at least what it would be if two more walks had brought the
    least and two the largest payoff (Agresti and Coull's interval for a share, for any bounded payoff).

    Args:
        walks: Ends, the ``n_walks`` rows of a query after one another.
        n_walks: Walks per query.
        values: Boundary value at each end; ignored for unfinished walks.
        known: Values that the boundary is known to have; None for those seen only.
    """
    dtype = values.dtype
    label = walks.label.reshape(-1, n_walks)
    done = label != UNFINISHED
    log_w = walks.log_weight.double().reshape_as(label)
    payoff = log_w.exp() * torch.where(done, values.double().reshape_as(label), 0.0)
    payoff = payoff + walks.integral.double().reshape_as(label)
    if known is not None and known.unit_mean:
        payoff = _corrected(payoff, log_w.exp() - 1, done)
    mean, spread = _mean(payoff, done)
    usual = _mean(walks.integral.double().reshape_as(label), done)[0]
    size = torch.where(done, payoff.abs(), 0.0)
    carriers = size.sum(1).square() / size.square().sum(1).clamp_min(1e-300)
    away = torch.where(done, payoff - mean[:, None], 0.0).square()
    deciding = away.sum(1).square() / away.square().sum(1).clamp_min(1e-300)
    if known is not None and known.drift:
        few = carriers < few_carriers(n_walks)
        low, high = value_range(values.to(known.low), done & few[:, None])
        known = replace(known, low=low.minimum(known.low), high=high.maximum(known.high))
    stderr = torch.maximum(spread, plus_four(payoff, mean, usual, done, known))
    stderr = torch.where((walks.steps.reshape_as(label) > 0).any(1), stderr, spread)  # nothing was drawn
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
        spread.to(dtype),
        carriers.to(dtype),
        deciding.to(dtype),
    )


def few_carriers(n_walks: int) -> float:
    """Return the number of walks behind a value below which their spread is not trusted."""
    return min(FEW_CARRIERS, n_walks / 4)


def few_deciding(n_walks: int) -> float:
    """Return the number of walks behind the spread below which it is not trusted."""
    return min(FEW_DECIDING, n_walks / 10)


def unseen_stderr(away: Tensor, n_walks: int | Tensor) -> Tensor:
    """Return the standard error of equal walks, plus two walks at each of the distances ``away``."""
    return (2 * away.square().sum(-1) / ((n_walks + 4) * (n_walks + 3))).sqrt()


def value_range(
    values: Float[Tensor, " walks"], counted: Bool[Tensor, "queries n_walks"]
) -> tuple[Float[Tensor, " queries"], Float[Tensor, " queries"]]:
    """Return the least and largest counted value of each query; ``inf`` and ``-inf`` where there is none."""
    values = values.reshape(counted.shape)
    low, high = torch.where(counted, values, torch.inf), torch.where(counted, values, -torch.inf)
    return low.amin(1), high.amax(1)


def plus_four(
    payoff: Tensor, mean: Tensor, usual: Tensor | float, done: Tensor, known: Known | None
) -> Tensor:
    """Return the standard error with four more walks, two at each end of the range of the payoffs."""
    n = done.sum(1)
    low, high = (end - mean for end in value_range(payoff.flatten(), done))
    if known is not None:
        low = torch.minimum(low, known.weight * (known.low.double() + usual - mean))
        high = torch.maximum(high, known.weight * (known.high.double() + usual - mean))
        if known.others is not None and known.weights is not None and known.others.shape[1]:
            away = known.weights * (known.others.double() + (usual - mean)[:, None])
            low, high = torch.minimum(low, away.amin(1)), torch.maximum(high, away.amax(1))
    spread = torch.where(done, payoff - mean[:, None], 0.0).square().sum(1) / ((n + 4) * (n + 3))
    total = spread + unseen_stderr(torch.stack([low, high], -1), n).square()
    return torch.where(n > 1, total.sqrt(), torch.inf)


def _corrected(payoff: Tensor, excess: Tensor, done: Tensor) -> Tensor:
    """Subtract the multiple of ``excess``, whose mean is zero, that explains most of the payoff.

    The multiple for one half of the walks is fitted on the other, so that the mean stays unbiased. With it
    a mixture of two laws is no worse than either, except that fewer walks follow it (Owen and Zhou, 2000).
    """
    half = payoff.shape[1] // 2
    if half < _HALF:
        return payoff
    slopes = []
    for rows in (slice(half, None), slice(half)):
        x, y = excess[:, rows], payoff[:, rows]
        centred = x - x.mean(1, keepdim=True)
        slopes.append((centred * y).sum(1) / centred.square().sum(1).clamp_min(1e-300))
    own = torch.repeat_interleave(
        torch.stack(slopes, 1), torch.tensor([half, payoff.shape[1] - half], device=payoff.device), 1
    )
    return torch.where(done.all(1, keepdim=True), payoff - own * excess, payoff)


def _mean(x: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard error of the finished entries of each row."""
    n = done.sum(1)
    mean = torch.where(done, x, 0.0).sum(1) / n  # NaN (0 / 0) if no walk finished
    spread = torch.where(done, x - mean[:, None], 0.0).square().sum(1)
    stderr = (spread / ((n - 1).clamp_min(1) * n.clamp_min(1))).sqrt()
    return mean, torch.where(n > 1, stderr, torch.inf)


# Values on the boundary: the user's function, evaluated in chunks and checked.


#: Points per call of the user's function.
_ROWS = 2**14


@dataclass(frozen=True)
class Boundary:
    """Values on the boundary, where walks end.

    Attributes:
        function: Values at points ``(rows, dim)``, or at points and context rows.
        data_values: Value of each ball, if it is not the function at the end of the walk.
        context: One row per query, passed to the function.
        place: Map from the coordinates of the walks to those of the function.
        constant: The value, if it is the same everywhere.
    """

    function: Callable[..., Tensor]
    data_values: Float[Tensor, " n"] | None
    context: Tensor | None
    place: Callable[[Tensor], Tensor]
    constant: float | None = None

    @classmethod
    def of(
        cls,
        value: Callable[..., Tensor] | float,
        data_values: Tensor | None,
        context: Tensor | None,
        place: Callable[[Tensor], Tensor],
    ) -> Boundary:
        """Make it from the user's value: a function, or one number for the whole boundary."""
        if callable(value):
            return cls(value, data_values, context, place)
        checks.number("value", value)
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(
                f"value must be a function or a finite number, but got {value}. Check your losses."
            )
        return cls(lambda z, *_: torch.full_like(z[:, 0], number), data_values, context, place, number)

    def __call__(
        self, end: Float[Tensor, "walks dim"], label: Int[Tensor, " walks"], query: Int[Tensor, " walks"]
    ) -> Float[Tensor, " walks"]:
        """Return the value at each end; zero for unfinished walks."""
        values = torch.zeros_like(end[:, 0])
        asked = label != UNFINISHED
        if self.data_values is not None:
            on_ball = label >= 0
            values[on_ball] = self.data_values.to(values)[label[on_ball]]
            asked = asked & ~on_ball
        if bool(asked.all()):
            return self.at(end, query)
        values[asked] = self.at(end[asked], query[asked])
        return values

    def at(self, points: Float[Tensor, "rows dim"], query: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        """Evaluate the function at points, for the queries with these numbers."""
        with torch.no_grad():
            parts = [
                self._checked(z, self._call(z, q))
                for z, q in zip(points.split(_ROWS), query.split(_ROWS), strict=True)
            ]
        return torch.cat(parts) if parts else points.new_zeros(0)

    def gradient(self, points: Float[Tensor, "rows dim"], query: Int[Tensor, " rows"]) -> Tensor | None:
        """Return the gradient of the function, or None if it has none."""
        with torch.enable_grad():
            z = points.detach().clone().requires_grad_(True)
            try:
                values = self._call(z, query)
                (slope,) = torch.autograd.grad(values.sum(), z, allow_unused=True)
            except (RuntimeError, AttributeError, TypeError):
                return None  # not differentiable: do without control variates
        if slope is None or slope.shape != points.shape or not bool(slope.isfinite().all()):
            return None
        return slope

    def _call(self, z: Tensor, query: Tensor) -> Tensor:
        points = self.place(z)
        return self.function(points) if self.context is None else self.function(points, self.context[query])

    def _checked(self, z: Tensor, values: Tensor) -> Tensor:
        if not isinstance(values, Tensor):
            raise TypeError(f"value must return a torch.Tensor, but returned {type(values).__name__}.")
        if values.shape != (len(z),):
            hint = " Add .squeeze(-1)." if values.shape == (len(z), 1) else ""
            raise ValueError(
                f"value must return one value per point, shape ({len(z)},), but returned "
                f"{tuple(values.shape)}.{hint} For a loss, use reduction='none'."
            )
        bad = ~values.isfinite()
        if bool(bad.any()):
            where = ", ".join(f"{x:.4g}" for x in self.place(z[bad][:1])[0, :5].tolist())
            raise ValueError(
                f"value is NaN or infinite at {int(bad.sum())} of {len(z)} points of the boundary, e.g. at "
                f"({where}{', ...' if z.shape[1] > 5 else ''}). The landscape needs a finite value on all of "
                "it: check the model there, use a smaller domain, or bound the loss."
            )
        return values.to(z.dtype)
