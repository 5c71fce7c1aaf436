"""Solve a batch of queries with one of four solvers (exact exits, spheres, monopoles, Euler)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elliptica._utils import checks
from elliptica.landscape.data_domain import OUTER, DataDomain
from elliptica.landscape.domains import Ball, Box, Domain
from elliptica.landscape.euler import euler_maruyama
from elliptica.landscape.exits import ball_exit_time, control_residuals, residual_mean, sample_ball_exit
from elliptica.landscape.monopole import Monopoles, check_domain, relative_bound
from elliptica.landscape.operator import Operator
from elliptica.landscape.spheres import DriftMode, walk_on_spheres
from elliptica.landscape.walks import (
    UNFINISHED,
    Averages,
    Boundary,
    Known,
    Walks,
    average,
    plus_four,
    value_range,
)

#: Up to this share of unfinished walks their effect is estimated.
FEW_UNFINISHED = 0.01
#: Points of the outer boundary at which values are computed even if no walk ends there; and how many, for
#: each query, if the value depends on the query.
LOOKOUTS, OWN_LOOKOUTS = 1024, 64
#: Memory that one batch of walks may take, in bytes.
_BATCH = 1.5e8

#: Public name of the solver by monopoles (it has nothing to do with the law of noise ``sigma="green"``).
MONOPOLES = "green"
SOLVERS = ("exact", "spheres", MONOPOLES, "euler")
#: Balls are dropped where the probability to meet one is below this.
UNION_TOLERANCE = 1e-3
#: Error of the monopoles, as a share of the range of the values, up to which they are chosen.
MONOPOLE_TOLERANCE = 1e-2


@dataclass(frozen=True)
class DirichletProblem:
    """Input of the solvers, in the coordinates of the walks.

    Attributes:
        boundary: Values on the boundary.
        domain: Domain of the walks.
        operator: Coefficients of the equation.
        at: Queries.
        n_walks: Walks per query.
        size: Length that stands for the size of the domain.
        shell: Distance to the boundary at which a walk on spheres has arrived.
        dt: Step in time, for Euler-Maruyama.
        max_steps: Limit per walk.
        boundary_shift: Whether Euler-Maruyama corrects for exits that it misses between steps.
        drift: How walk on spheres treats a drift.
        control: Whether exact exits use control variates.
        generator: Source of randomness.
    """

    boundary: Boundary
    domain: Domain
    operator: Operator
    at: Float[Tensor, "queries dim"]
    n_walks: int
    size: float
    shell: float
    dt: float
    max_steps: int
    boundary_shift: bool
    drift: DriftMode
    control: bool
    generator: torch.Generator | None

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self.at.shape[1]

    @property
    def balls(self) -> DataDomain | None:
        """The domain, if there are balls around data in it."""
        return self.domain if isinstance(self.domain, DataDomain) else None

    @cached_property
    def ball_values(self) -> Float[Tensor, " n"] | None:
        """Value of each ball (by default that at its centre); None if it depends on the query."""
        if self.balls is None or (self.boundary.data_values is None and self.boundary.context is not None):
            return None
        if self.boundary.data_values is not None:
            return self.boundary.data_values.to(self.at)
        centres = self.balls.points.to(self.at)
        return self.boundary.at(centres, torch.zeros_like(centres[:, 0], dtype=torch.long))

    @property
    def outer(self) -> Domain:
        """The domain without balls."""
        return self.balls.domain if self.balls is not None else self.domain

    @cached_property
    def lookouts(self) -> Float[Tensor, "points dim"]:
        """Points spread over the outer boundary; none if the value there is a number, or walls reflect.

        They are the same for every seed, so they change no estimate. If the value depends on the query,
        each query evaluates them again, so there are fewer.
        """
        at, outer = self.at, self.outer
        if self.boundary.constant is not None or not bool(outer.distance(at).isfinite().all()):
            return at[:0]
        n = LOOKOUTS if self.boundary.context is None else OWN_LOOKOUTS
        rng = torch.Generator().manual_seed(0)
        normal = torch.randn(n, self.dim, generator=rng, dtype=torch.float64).to(at)
        if isinstance(outer, Ball):
            return outer.centre.to(at) + outer.radius * torch.nn.functional.normalize(normal, dim=1)
        if isinstance(outer, Box):
            share = torch.rand(n, self.dim, generator=rng, dtype=torch.float64).to(at)
            return outer.project(torch.lerp(outer.low.to(at), outer.high.to(at), share))
        start = at[torch.arange(n, device=at.device) * len(at) // n]
        rng = torch.Generator(at.device).manual_seed(0)
        ends = walk_on_spheres(outer, start, Operator(), shell=self.shell, generator=rng)
        return ends.end[ends.label != UNFINISHED]

    @cached_property
    def _lookout_values(self) -> Float[Tensor, "1 points"]:
        return self.boundary.at(self.lookouts, torch.zeros_like(self.lookouts[:, 0], dtype=torch.long))[None]

    def lookout_values(self, rows: Int[Tensor, " queries"]) -> Float[Tensor, "queries points"]:
        """Return the values at the lookouts for each of these queries."""
        if self.boundary.context is None:
            return self._lookout_values.expand(len(rows), -1)
        n = len(self.lookouts)
        values = self.boundary.at(self.lookouts.repeat(len(rows), 1), rows.repeat_interleave(n))
        return values.reshape(len(rows), n)

    @property
    def batch(self) -> int:
        """Queries whose walks fit in memory together (ten copies in float64)."""
        return max(int(_BATCH / (80 * self.n_walks * self.dim)), 1)

    @property
    def diffusion(self) -> float | None:
        """The diffusion if it is the same in all directions."""
        a = self.operator.diffusion
        if isinstance(a, Tensor):
            return float(a[0]) if bool((a == a[0]).all()) else None
        return float(a)


@dataclass(frozen=True)
class Batch:
    """Result for some queries.

    Attributes:
        average: Means and shares.
        bias: Bound or estimate of the bias.
        proved: Whether it is a bound.
    """

    average: Averages
    bias: Float[Tensor, " queries"]
    proved: bool


def solve_exact(problem: DirichletProblem, rows: Int[Tensor, " queries"]) -> Batch:
    """Draw exits from the outer ball in one step; ignore balls around data and bound their effect."""
    ball, at = problem.outer, problem.at[rows]
    assert isinstance(ball, Ball)
    assert problem.diffusion is not None
    mean, spread, stderr, values = _exits(problem, at, rows)
    time = ball_exit_time(at, ball.centre.to(at), ball.radius, problem.diffusion)
    source = problem.operator.source_at(at)  # a constant
    bias, proved = torch.zeros_like(mean), True
    if problem.balls is not None:
        low, high = _ball_range(problem, rows)
        span = torch.maximum(values.amax(1), high) - torch.minimum(values.amin(1), low)
        longest = ball.radius**2 / (problem.dim * problem.diffusion)
        bias, proved = union_bound(problem.balls, at) * (span + source.abs() * longest), False
    zero, one = torch.zeros_like(mean), torch.ones_like(mean)
    return Batch(
        Averages(
            mean + source * time,
            stderr,
            zero,
            one,
            zero,
            one * problem.n_walks,
            time,
            zero,
            one,
            spread,
            one * problem.n_walks,
            one * problem.n_walks,
        ),
        bias,
        proved,
    )


def _exits(problem: DirichletProblem, at: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the mean of the outer values by exact exits, its error, and the values ``(queries, walks)``.

    There are two errors: from the spread of the exits, and with an allowance for values that they did not
    meet.
    """
    ball = problem.outer
    assert isinstance(ball, Ball)
    centre = ball.centre.to(at)
    end = sample_ball_exit(at, centre, ball.radius, problem.n_walks, generator=problem.generator)
    query = rows.repeat_interleave(problem.n_walks)
    values = problem.boundary.at(end.flatten(0, 1), query).reshape(end.shape[:2])
    slope = problem.boundary.gradient(at, rows) if problem.control else None
    if slope is not None:
        payoff, elsewhere = control_residuals(values, end, at, slope, centre, ball.radius)
        mean, spread = (number.to(values.dtype) for number in residual_mean(payoff))
    else:
        mean, spread = values.mean(1), values.std(1) / math.sqrt(problem.n_walks)
        payoff, elsewhere = values.double(), lambda points, known: known
    if problem.boundary.constant is not None:
        return mean, spread, spread, values
    other = elsewhere(problem.lookouts, problem.lookout_values(rows)).double()
    centred = payoff.mean(1)
    flat = values.amax(1) == values.amin(1)
    known = Known(other.amin(1).where(flat, centred), other.amax(1).where(flat, centred))
    done = torch.ones_like(values, dtype=torch.bool)
    stderr = plus_four(payoff, centred, 0.0, done, known)
    # the variance from payoffs outside the range that was met, by the density of exits at the lookouts
    density = _exit_density(problem.lookouts, at, ball).repeat(1, other.shape[1] // len(problem.lookouts))
    beyond = (other < payoff.amin(1, keepdim=True)) | (other > payoff.amax(1, keepdim=True))
    unmet = (density * beyond * (other - centred[:, None]).square()).mean(1) / problem.n_walks
    stderr = (stderr.square() + unmet).sqrt().to(spread)
    return mean, spread, torch.maximum(spread, stderr), values


def _exit_density(points: Tensor, at: Tensor, ball: Ball) -> Float[Tensor, "queries points"]:
    """Return the density of exits at points of the sphere, over the uniform one (Poisson's kernel)."""
    distance = torch.cdist(at.double(), points.double()) / ball.radius
    inner = (at - ball.centre.to(at)).double().norm(dim=1, keepdim=True) / ball.radius
    return (1 - inner.square()) * distance ** -at.shape[1]


def _ball_range(problem: DirichletProblem, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and largest value on the balls per query (with a context: on the nearest one)."""
    balls, at = problem.balls, problem.at[rows]
    assert balls is not None
    values = problem.ball_values
    if values is None:
        nearest = problem.boundary.at(balls.points.to(at)[balls.nearest_ball(at)[1]], rows)
        return nearest, nearest
    return values.min().expand(len(at)), values.max().expand(len(at))


def union_bound(balls: DataDomain, z: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"]:
    """Bound the probability to hit any ball: ``sum_i (eps_i / r_i)^(n-2)``, at most one."""
    power = z.shape[1] - 2
    if power < 1:
        return torch.ones_like(z[:, 0])
    centres, log_eps = balls.points.double(), balls.radii.double().log()
    parts = [
        (power * (log_eps - torch.cdist(part, centres).log())).clamp_max(0).exp().sum(1)
        for part in z.double().split(max(2**21 // len(centres), 1))
    ]
    return torch.cat(parts).clamp_max(1.0).to(z.dtype)


def solve_spheres(problem: DirichletProblem, rows: Int[Tensor, " queries"]) -> Batch:
    """Solve by walk on spheres; the shell in which walks end causes the only bias."""
    walks = walk_on_spheres(
        problem.domain,
        problem.at[rows].repeat_interleave(problem.n_walks, 0),
        problem.operator,
        shell=problem.shell,
        max_steps=problem.max_steps,
        drift=problem.drift,
        max_radius=0.05 * problem.size if callable(problem.operator.drift) else None,
        generator=problem.generator,
    )
    result, span = _reduce(problem, walks, rows)
    bias = span * problem.shell / problem.size
    if problem.balls is not None:
        least = float(problem.balls.radii.min())
        inflation = math.expm1(max(problem.dim - 2, 1) * math.log1p(problem.shell / least))
        bias = bias + inflation * span * result.hit_share
    return Batch(result, _with_unfinished(bias, result, span), False)


def solve_euler(problem: DirichletProblem, rows: Int[Tensor, " queries"]) -> Batch:
    """Solve by time stepping; the bias is of order ``dt`` with the boundary shift, ``sqrt(dt)`` without."""
    walks = euler_maruyama(
        problem.domain,
        problem.at[rows].repeat_interleave(problem.n_walks, 0),
        problem.operator,
        dt=problem.dt,
        shift=problem.boundary_shift,
        max_steps=problem.max_steps,
        generator=problem.generator,
    )
    result, span = _reduce(replace(problem, drift="sample"), walks, rows)
    length = problem.size
    if problem.balls is not None:
        length = min(length, float(problem.balls.radii.min()))
    step = float(problem.operator.scale(problem.at).max()) ** 2 * problem.dt
    order = step / length**2 if problem.boundary_shift else math.sqrt(step) / length
    return Batch(result, _with_unfinished(span * min(order, 1.0), result, span), False)


def _with_unfinished(bias: Tensor, result: Averages, span: Tensor) -> Tensor:
    """Add the possible effect of unfinished walks; beyond `FEW_UNFINISHED` it is unknown, so infinite."""
    lost = result.unfinished_share
    return torch.where(lost > FEW_UNFINISHED, torch.inf, bias + lost * span)


def _reduce(problem: DirichletProblem, walks: Walks, rows: Tensor) -> tuple[Averages, Tensor]:
    """Return averages per query, and the range of the payoffs of its walks."""
    values = problem.boundary(walks.end, walks.label, rows.repeat_interleave(problem.n_walks))
    label = walks.label.reshape(-1, problem.n_walks)
    done = label != UNFINISHED
    low, high = value_range(walks.log_weight.exp() * values + walks.integral, done)
    result = average(walks, problem.n_walks, values, _known(problem, rows, label, values))
    return result, (high - low).clamp_min(0)


def _known(
    problem: DirichletProblem,
    rows: Tensor,
    label: Int[Tensor, "queries walks"],
    values: Float[Tensor, " ends"],
) -> Known:
    """Return boundary values that are known even if no walk has met them.

    These are the values of the balls, at the lookouts, and at the ends of other queries' walks (not if the
    value depends on the query). A drift may carry all walks away from the values that matter; then those
    at the lookouts have the weight that they are likely to get.
    """
    at, drift = problem.at[rows], problem.drift if problem.operator.drift is not None else None
    low, high = torch.full_like(at[:, 0], torch.inf), torch.full_like(at[:, 0], -torch.inf)
    if problem.balls is not None:
        low, high = _ball_range(problem, rows)
        inner = (~(label == OUTER).any(1) & problem.outer.distance(at).isfinite()).nonzero().flatten()
        if len(inner):
            outer = problem.boundary.at(problem.outer.project(at[inner]), rows[inner])
            low = low.index_put((inner,), torch.minimum(low[inner], outer))
            high = high.index_put((inner,), torch.maximum(high[inner], outer))
    if drift in ("mixture", "weight"):
        pure = drift == "mixture" and problem.operator.absorption == 0.0
        others, weights = problem.lookout_values(rows), _likely_weights(problem, at)
        return Known(low, high, 2.0, pure, True, others, weights)
    if len(problem.lookouts):
        seen = problem.lookout_values(rows)
        low, high = torch.minimum(low, seen.amin(1)), torch.maximum(high, seen.amax(1))
    if problem.boundary.constant is None and problem.boundary.context is None:
        met = value_range(values, (label != UNFINISHED).reshape(1, -1))
        low, high = torch.minimum(low, met[0]), torch.maximum(high, met[1])
    return Known(low, high)


def _likely_weights(problem: DirichletProblem, at: Tensor) -> Float[Tensor, "queries points"]:
    """Return the likely weights of walks that reach each lookout and dominate the variance under a drift.

    A walk over ``d`` in a time ``t`` has ``log L = mu . d / a - |mu|^2 t / (2 a)`` and, without the drift, a
    density of the order of ``exp(-|d|^2 / (2 a t))``. That density times ``L^2`` is largest at
    ``t = |d| / (sqrt(2) |mu|)``.
    """
    operator = problem.operator
    scale, mu = operator.scale(at), operator.drift_at(at)
    assert mu is not None
    push, far = mu / scale, problem.lookouts / scale
    distance = torch.cdist(at / scale, far)
    length = push.norm(dim=-1).expand(len(at))[:, None]
    along = push.expand_as(at) @ far.T - (push * at / scale).sum(1, keepdim=True)
    log_ratio = along - length * distance / math.sqrt(8)
    if problem.drift == "weight":
        return log_ratio.double().exp()
    return 2 * torch.sigmoid(log_ratio.double())


@dataclass(frozen=True)
class MonopoleFit:
    """Charges, and the accuracy of the outer values.

    Attributes:
        monopoles: The fitted solution.
        constant: The outer value, if it was given as a number; then nothing is random.
        stderr: Standard error of the outer data's extension at each centre.
    """

    monopoles: Monopoles
    constant: float | None
    stderr: Float[Tensor, " n"]


def outer_sample(problem: DirichletProblem) -> Float[Tensor, " walks"]:
    """Return the values at uniformly random points of the outer sphere."""
    assert isinstance(problem.outer, Ball)
    centre = problem.outer.centre.to(problem.at)[None]
    return _exits(problem, centre, torch.zeros_like(centre[:, 0], dtype=torch.long))[3][0]


def fit_monopoles(problem: DirichletProblem) -> MonopoleFit:
    """Solve for the charges once for all queries."""
    balls, boundary = problem.balls, problem.boundary
    assert balls is not None
    centres, values = balls.points.to(problem.at), problem.ball_values
    assert values is not None
    none = torch.zeros(len(centres), dtype=torch.long, device=centres.device)
    if boundary.constant is not None:
        outer = torch.full_like(values, boundary.constant)
        return MonopoleFit(Monopoles.fit(balls, values, outer), boundary.constant, torch.zeros_like(values))
    seen = outer_sample(problem)
    means, errors, low, high = [], [], float(seen.min()), float(seen.max())
    for part in centres.split(problem.batch):
        mean, _, stderr, seen = _exits(problem, part, none[: len(part)])
        means.append(mean)
        errors.append(stderr)
        low, high = min(low, float(seen.min())), max(high, float(seen.max()))
    monopoles = Monopoles.fit(balls, values, torch.cat(means), high - low)
    return MonopoleFit(monopoles, None, torch.cat(errors))


def solve_monopoles(problem: DirichletProblem, rows: Int[Tensor, " queries"], fit: MonopoleFit) -> Batch:
    """Solve by charges at the data; only the part of the outer values is sampled, if it is not constant."""
    at, monopoles = problem.at[rows], fit.monopoles
    stderr, n_walks = torch.zeros_like(at[:, 0]), 0
    if fit.constant is not None:
        outer = torch.full_like(stderr, fit.constant)
    else:
        outer, _, noise, _ = _exits(problem, at, rows)
        n_walks = problem.n_walks
        stderr = (noise.square() + monopoles.hitting(at).square() @ fit.stderr.square()).sqrt()
        stderr = torch.where(monopoles.domain.nearest_ball(at)[0] <= 0, 0.0, stderr)
    hit = monopoles.p_hit(at)
    zero, count = torch.zeros_like(hit), torch.full_like(hit, n_walks)
    result = Averages(
        monopoles.value(at, outer), stderr, hit, 1 - hit, zero, count, zero, zero, zero, stderr, count, count
    )
    proved = fit.constant is not None and problem.boundary.data_values is not None
    return Batch(result, monopoles.bound(at), proved)


#: Solvers that need only the problem.
SAMPLERS: dict[str, Callable[[DirichletProblem, Tensor], Batch]] = {
    "exact": solve_exact,
    "spheres": solve_spheres,
    "euler": solve_euler,
}


def choose(problem: DirichletProblem, solver: str) -> str:
    """Return the name of the solver; raise if it cannot solve the problem."""
    checks.choice("solver", solver, ("auto", *SOLVERS))
    if solver == "auto":
        return _auto(problem)
    reason = _obstacle(problem, solver)
    if reason is not None:
        able = ", ".join(f'"{name}"' for name in SOLVERS if _obstacle(problem, name) is None)
        raise ValueError(f'solver="{solver}" cannot solve this problem: {reason}. Use {able}.')
    return solver


def _auto(problem: DirichletProblem) -> str:
    if callable(problem.operator.drift) or _obstacle(problem, "spheres") is not None:
        return "euler"
    if _obstacle(problem, "exact") is None:
        return "exact"
    return MONOPOLES if _monopoles_are_worth_it(problem) else "spheres"


def _monopoles_are_worth_it(problem: DirichletProblem) -> bool:
    """Return whether monopoles pay: one value per ball, many queries, and a small error bound."""
    balls, values = problem.balls, problem.boundary.data_values
    if balls is None or values is None or len(values) > 4 * len(problem.at):
        return False
    if _obstacle(problem, MONOPOLES) is not None:
        return False
    outer = outer_sample(problem)
    low, high = min(float(outer.min()), float(values.min())), max(float(outer.max()), float(values.max()))
    share = float(outer.max() - outer.min()) / (high - low) if high > low else 0.0
    return float(relative_bound(balls, problem.at, share).max()) < MONOPOLE_TOLERANCE


def _obstacle(problem: DirichletProblem, solver: str) -> str | None:
    """Return the reason why a solver cannot solve a problem, or None."""
    if solver == "spheres":
        return _obstacle_spheres(problem)
    if solver == "exact":
        return _obstacle_exact(problem)
    return _obstacle_to_monopoles(problem) if solver == MONOPOLES else None


def _obstacle_spheres(problem: DirichletProblem) -> str | None:
    if callable(problem.operator.absorption):
        return "the absorption is a function of the points, which only time stepping supports"
    wall = getattr(problem.outer, "wall", "reflect" if hasattr(problem.outer, "reflect") else "absorb")
    if wall == "reflect" and problem.operator.drift is not None:
        return "a sphere cannot reach through a reflecting wall when there is a drift"
    return None


def _obstacle_exact(problem: DirichletProblem) -> str | None:
    operator = problem.operator
    if not isinstance(problem.outer, Ball):
        return "the exit law is known for a ball only"
    if problem.diffusion is None:
        return "the coordinates diffuse at different speeds"
    if operator.drift is not None or operator.absorption or callable(operator.source):
        return "the operator has a drift, absorption or a source that varies"
    if problem.balls is not None:
        met = float(union_bound(problem.balls, problem.at).max())
        if met >= UNION_TOLERANCE:
            return f"balls around data may be hit with a probability of up to {met:.2g}"
    return None


def _obstacle_to_monopoles(problem: DirichletProblem) -> str | None:
    if problem.balls is None:
        return "there are no balls around data"
    if problem.boundary.context is not None:
        return "the value depends on the query (context)"
    if not problem.operator.is_laplace or problem.diffusion is None:
        return "the operator is not Laplace's"
    try:
        check_domain(problem.balls)
    except ValueError as error:
        return str(error).rstrip(".")
    return None
