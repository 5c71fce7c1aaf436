"""Walks, their averages with error bars, the result of a solver, and a judgement of importance weights."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elliptica._utils.statistics import Result
from elliptica.core.inputs import EllipticWarning

#: Label of walks that ran out of steps.
UNFINISHED = -2
#: If a smaller share of the walks ends on the data, the outer boundary determines the value.
FEW_HITS = 0.05
#: If the effective share of walks is smaller, a few walks dominate weighted averages.
FEW_EFFECTIVE = 0.1
#: Up to this share of unfinished walks their effect is estimated.
FEW_UNFINISHED = 0.01
#: Weighted walks behind a value; from fewer, intervals from their spread miss the truth too often.
FEW_WALKS = 50.0


@dataclass(frozen=True)
class Walks:
    """Ends of walks, one row each."""

    end: Float[Tensor, "walks dim"]  # on the boundary (the last position of an unfinished walk)
    label: Int[Tensor, " walks"]  # number of the ball, `OUTER` (-1) or `UNFINISHED` (-2)
    #: Logarithm of the weight of the boundary value: change of measure for a drift, survival for absorption.
    log_weight: Float[Tensor, " walks"]
    integral: Float[Tensor, " walks"]  # of the source along the walk, weights included
    time: Float[Tensor, " walks"]  # to the end (for walk on spheres its mean given the places visited)
    steps: Int[Tensor, " walks"]


@dataclass(frozen=True)
class BoundaryRange:
    """Least and largest value that the boundary is known to have, one per query; NaN if none is known."""

    low: Float[Tensor, " queries"]
    high: Float[Tensor, " queries"]


@dataclass(frozen=True)
class Averages:
    """Averages of walks, one row per query; unfinished walks count only in their share and in ``steps``.

    Attributes without a comment are those of `LandscapeEstimate`.
    """

    mean: Float[Tensor, " queries"]  # of weight times boundary value plus integral; NaN if none finished
    stderr: Float[Tensor, " queries"]  # by the plus-four rule; infinite if fewer than two finished
    hit_share: Float[Tensor, " queries"]
    outer_share: Float[Tensor, " queries"]
    unfinished_share: Float[Tensor, " queries"]
    effective: Float[Tensor, " queries"]  # ``(sum w)^2 / sum w^2``, in walks
    exit_time: Float[Tensor, " queries"]
    exit_time_stderr: Float[Tensor, " queries"]
    steps: Float[Tensor, " queries"]
    effective_walks: Float[Tensor, " queries"]  # ``(sum |x|)^2 / sum x^2`` of the payoffs ``x``
    span: Float[Tensor, " queries"]  # largest minus least payoff, seen or known


def average(
    walks: Walks, n_walks: int, values: Float[Tensor, " walks"], known: BoundaryRange | None = None
) -> Averages:
    """Return mean, standard error and shares per query.

    All walks may miss a rare payoff, and then their spread says nothing about it. So the standard error is
    that of four more walks, two with the least and two with the largest payoff, seen or ``known`` (Agresti
    and Coull's rule for a share, for any bounded payoff). The rows of a query come after one another.
    """
    label = walks.label.reshape(-1, n_walks)
    done = label != UNFINISHED
    # in float64: times and payoffs that float32 hardly tells apart keep their spread
    log_w, integral, time = (
        part.double().reshape_as(label) for part in (walks.log_weight, walks.integral, walks.time)
    )
    payoff = log_w.exp() * torch.where(done, values.double().reshape_as(label), 0.0) + integral
    mean, stderr = _mean(payoff, done)
    low = torch.where(done, payoff, torch.inf).amin(1)
    high = torch.where(done, payoff, -torch.inf).amax(1)
    if known is not None:
        usual = _mean(integral, done)[0]
        low, high = low.fmin(known.low.double() + usual), high.fmax(known.high.double() + usual)
    drawn = (walks.steps.reshape_as(label) > 0).any(1)  # a walk that starts on a ball ends there for sure
    stderr = torch.where(drawn, stderr.maximum(plus_four(payoff, mean, low, high, done)), stderr)
    log_w = torch.where(done, log_w, -torch.inf)
    weight = torch.where(done, (log_w - log_w.amax(1, keepdim=True)).exp(), 0.0)
    columns = (
        mean,
        stderr,
        (label >= 0).double().mean(1),
        (done & (label < 0)).double().mean(1),
        (~done).double().mean(1),
        _effective(weight),
        *_mean(time, done),
        walks.steps.double().reshape_as(label).mean(1),
        _effective(torch.where(done, payoff.abs(), 0.0)),
        (high - low).clamp_min(0),
    )
    return Averages(*(column.to(values.dtype) for column in columns))


def plus_four(
    payoff: Float[Tensor, "queries walks"],
    mean: Float[Tensor, " queries"],
    low: Float[Tensor, " queries"],
    high: Float[Tensor, " queries"],
    done: Bool[Tensor, "queries walks"],
) -> Float[Tensor, " queries"]:
    """Return the standard error with four more walks, two at each end of a range.

    For two values its 95 % interval covers with a probability of at least .91 (80 walks and more).
    """
    n = done.sum(1)
    spread = torch.where(done, payoff - mean[:, None], 0.0).square().sum(1)
    ends = 2 * ((low - mean).square() + (high - mean).square())
    return torch.where(n > 1, ((spread + ends) / ((n + 4) * (n + 3))).sqrt(), torch.inf)


def _mean(x: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard error of the finished entries of each row."""
    n = done.sum(1)
    mean = torch.where(done, x, 0.0).sum(1) / n  # NaN (0 / 0) if no walk finished
    spread = torch.where(done, x - mean[:, None], 0.0).square().sum(1)
    stderr = (spread / ((n - 1).clamp_min(1) * n.clamp_min(1))).sqrt()
    return mean, torch.where(n > 1, stderr, torch.inf)


def _effective(size: Tensor) -> Tensor:
    return size.sum(1).square() / size.square().sum(1).clamp_min(1e-300)


@dataclass(frozen=True)
class LandscapeEstimate(Result):
    """The landscape ``u`` at a set of queries, with standard errors and diagnostics."""

    #: Estimate of ``u``, one per query. Walks that did not finish are skipped.
    value: Float[Tensor, " queries"]
    #: Its standard error; allows for boundary values that few or no walks met (see `average`).
    stderr: Float[Tensor, " queries"]
    #: Size of the distance between the expected value of the estimate and ``u``, at most the range of the
    #: values. Infinite where more than 1 % of the walks are unfinished.
    bias: Float[Tensor, " queries"]
    #: Share of walks that ended on a ball around a data point (0 without balls).
    hit_share: Float[Tensor, " queries"]
    outer_share: Float[Tensor, " queries"]  # share that ended on the outer boundary
    #: Share that ran out of steps. These are never projected to a boundary.
    unfinished_share: Float[Tensor, " queries"]
    #: Effective number of walks behind each value; fewer than ``n_walks`` under a drift.
    effective: Float[Tensor, " queries"]
    n_walks: int  # walks per query
    mean_steps: float  # steps of an average walk
    solver: str
    #: Mean time to the boundary for the given ``diffusion``; None if the solver has none.
    exit_time: Float[Tensor, " queries"] | None = None
    exit_time_stderr: Float[Tensor, " queries"] | None = None  # its standard error
    notes: tuple[str, ...] = ()  # remarks and cautions about the result, as sentences

    def interval(self, z: float = 1.96) -> tuple[Tensor, Tensor]:
        """Return the value minus and plus ``z`` standard errors and the bias."""
        reach = z * self.stderr + self.bias
        return self.value - reach, self.value + reach

    def __len__(self) -> int:
        return len(self.value)


def cautions(result: Averages, has_balls: bool, weighted: bool, n_walks: int) -> tuple[str, ...]:
    """Return what makes a result doubtful, as sentences, and warn of each."""
    queries = f"of {len(result.mean)} queries"
    notes = []
    few = int((result.hit_share < FEW_HITS).sum())
    if has_balls and few:
        notes.append(
            f"At {few} {queries} fewer than {FEW_HITS:.0%} of the walks meet a ball around a data point, so "
            "the values there come from the outer boundary: work in fewer dimensions, or use larger balls."
        )
    lost = int((result.unfinished_share > FEW_UNFINISHED).sum())
    if lost:
        notes.append(
            f"At {lost} {queries} more than {FEW_UNFINISHED:.0%} of the walks ran out of steps and are "
            "skipped, so the values there are biased. Raise max_steps."
        )
    carried = (result.effective_walks > 0) & (result.effective_walks < min(FEW_WALKS, n_walks / 4))
    if weighted and bool(carried.any()):
        notes.append(
            f"At {int(carried.sum())} {queries} a few walks against the drift determine the value. Raise "
            'n_walks, or use drift="sample" if the boundary values are similar everywhere.'
        )
    for note in notes:
        warnings.warn(note, EllipticWarning, stacklevel=4)
    return tuple(notes)


#: Standard errors by which the mean weight may be off one, and fewest weights to judge.
_FAR, _FEW = 4.0, 30


@dataclass(frozen=True)
class WeightsReport(Result):
    """Result of `weights_report`."""

    n: int  # number of weights
    #: ``(sum w)^2 / sum w^2``, from 1 to ``n``; for weights of bridges the sum of that over the rows, so from
    #: the number of rows to ``n``.
    effective: float
    effective_share: float  # ``effective / n``
    #: Mean of the weights; one for a true change of measure. None for weights of bridges.
    mean_weight: float | None
    mean_stderr: float | None  # its standard error
    largest_share: float  # share of the sum (on bridges: of its row's sum) that the largest weight has
    #: Least effective share among the rows (data points) of weights of bridges; None for plain paths.
    row_effective_share: float | None
    trust: bool  # whether averages with these weights can be relied on
    notes: tuple[str, ...]  # reasons why not, and other remarks


def weights_report(log_weights: Float[Tensor, " paths"] | Float[Tensor, "batch bridge"]) -> WeightsReport:
    """Judge weights of a change of measure.

    Args:
        log_weights: Logarithms. One axis: walks under a true change of measure, whose mean weight must be
            one. Two axes ``(batch, bridge)``, as `elliptica.log_weights` returns them: a factor per pair of
            end points is unknown, so weights are judged within each row, and their mean says nothing.
    """
    values = log_weights.detach().double()
    on_bridges, n = values.ndim == 2, values.numel()
    rows = values if on_bridges else values[None]
    if values.ndim not in (1, 2) or rows.shape[1] < 2:
        raise ValueError(f"log_weights must be (paths,) or (batch, bridge > 1), not {tuple(values.shape)}.")
    # NaN compares as False, so that this finds it, too
    if not bool(((rows < math.inf).all(1) & (rows > -math.inf).any(1)).all()):
        raise ValueError("log_weights are NaN or +infinity somewhere, or -infinity in a whole row.")
    share = rows.softmax(1)
    per_row = 1 / share.square().sum(1)
    effective, largest = float(per_row.sum()), float(share.max())
    if on_bridges:
        # relative to the minimum of one effective path per row
        notes = _judge(n, float((per_row.mean() - 1) / (rows.shape[1] - 1)), "further bridges of a pair")
        least = float(per_row.min()) / rows.shape[1]
        trust = not notes
        notes += ("Known up to a factor per pair of ends: compared within a row. Their mean says nothing.",)
        return WeightsReport(n, effective, effective / n, None, None, largest, least, trust, notes)
    mean = math.exp(min(float(values.logsumexp(0)) - math.log(n), 700.0))
    stderr = mean * math.sqrt(max(n / effective - 1, 0.0) / (n - 1))
    notes = _judge(n, effective / n, "weights")
    if abs(mean - 1) > _FAR * stderr + 1e-6:
        notes += (
            f"The mean weight {mean:.4g} is more than {_FAR:.0f} standard errors from 1: this is not a "
            "change of measure, or the weights are so uneven that their standard error is itself too small.",
        )
    return WeightsReport(n, effective, effective / n, mean, stderr, largest, None, not notes, notes)


def _judge(n: int, share: float, of: str) -> tuple[str, ...]:
    """Return the objections to weights with this effective share."""
    notes: tuple[str, ...] = ()
    if share < FEW_EFFECTIVE:
        notes += (
            f"The effective number is {share:.1%} of the {of}, below {FEW_EFFECTIVE:.0%}: use a weaker drift "
            "(smaller xi), more paths, or sample the drifted process.",
        )
    return notes if n >= _FEW else (*notes, f"{n} weights are too few to judge.")
