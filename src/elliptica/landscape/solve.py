"""Estimate the loss landscape: the solution of the paper's boundary value problem, with error bars."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elliptica._utils import random
from elliptica.landscape.data_domain import DataDomain
from elliptica.landscape.domains import OUTER, Ball, Box, Domain, inside, reflects
from elliptica.landscape.estimate import (
    FEW_UNFINISHED,
    UNFINISHED,
    Averages,
    BoundaryRange,
    LandscapeEstimate,
    Walks,
    average,
    cautions,
)
from elliptica.landscape.exits import ball_exit_time, sample_ball_exit
from elliptica.landscape.operator import Operator
from elliptica.landscape.walks import DriftMode, euler_maruyama, walk_on_spheres

#: Laplace's equation, the paper's choice.
LAPLACE = Operator()
#: Points of the outer boundary at which values are computed even if no walk ends there; and how many, for
#: each query, if the value depends on the query.
BOUNDARY_PROBES, OWN_PROBES = 1024, 64
#: Balls are dropped where the probability to meet one is below this.
UNION_TOLERANCE = 1e-3
#: Memory that one batch of walks may take, in bytes.
_BATCH = 1.5e8
#: Points per call of the user's function.
_ROWS = 2**14


def estimate_landscape(
    value: Callable[..., Tensor] | float,
    domain: Domain,
    at: Float[Tensor, "queries dim"],
    *,
    operator: Operator = LAPLACE,
    solver: str = "auto",
    n_walks: int = 1000,
    data_values: Float[Tensor, " n"] | None = None,
    context: Tensor | None = None,
    shell: float | None = None,
    dt: float | None = None,
    max_steps: int | None = None,
    drift: DriftMode = "sample",
    generator: torch.Generator | None = None,
) -> LandscapeEstimate:
    """Solve ``1/2 tr(a Hess u) + mu . grad u - r u = -f`` inside, ``u = value`` on the boundary.

    Uses the Feynman-Kac formula (paper: Eqs. (3), (15)). Each value has its own walks and standard error. In
    more than about ten dimensions walks miss small balls around data, and the outer boundary determines the
    value; see ``hit_share`` and ``notes`` of the result.

    Solvers: ``"exact"`` draws the exit from a ball in one step (Laplace or a constant source; balls around
    data only if they are hit with a probability below 1e-3). ``"spheres"`` is walk on spheres: any
    domain, constant diffusion and absorption, drift frozen per sphere. ``"euler"`` steps in time and allows
    any coefficient. ``"auto"`` takes the first that is accurate, in this order.

    Args:
        value: Boundary values: points ``(rows, dim)`` to ``(rows,)``, or ``value(points, context_rows)``, or
            one number for all of the (outer) boundary. Functions are called without gradients.
        domain: `Ball`, `Box`, `Polytope`, `DataDomain`, or any object with ``distance`` and ``project``.
        at: Queries inside the domain.
        operator: Coefficients.
        solver: Name of a solver, see above.
        n_walks: Walks per query, at least 2.
        data_values: Value of the ball around each data point; repeated points share the mean of theirs.
            Without it, ``value`` is called at the walk's end.
        context: One row per query, for example its label, passed to ``value``.
        shell: Distance to the boundary at which walks on spheres end. None: a ten-thousandth of the domain,
            and so small that hits on balls are inflated by less than 1 %.
        dt: Step of ``"euler"``. None: a thousandth of the time scale of the domain, less with balls.
        max_steps: Walks that need more are reported and skipped, never projected. None: 10 000 spheres, or
            thirty times the typical time of the domain for ``"euler"``.
        drift: How ``"spheres"`` treats a drift: ``"sample"`` (walks follow it) or ``"weight"`` (weights on
            driftless walks; better if values are far larger where the drift does not lead).
        generator: Source of randomness. The same state gives the same numbers.

    Returns:
        Values with standard error, bias and shares of how walks ended.
    """
    at = at.to(random.compute_dtype(at.dtype))
    check_dims(domain, at)
    operator.check_dim(at.shape[1])
    _check(domain, at, n_walks, data_values, context)
    size = domain_size(domain, at)
    step = default_step(domain, at, operator, size) if dt is None else dt
    problem = DirichletProblem(
        Boundary(value, merge_repeated(domain, data_values), context),
        domain,
        operator,
        at,
        n_walks,
        size,
        default_shell(domain, at, size) if shell is None else shell,
        step,
        max_steps or 10_000,
        drift,
        generator,
    )
    name = choose(problem, solver)
    if name == "euler":
        steps = max_steps or euler_steps(operator, at, size, step)
        problem = replace(problem, max_steps=steps, drift="sample")
    fitting = max(int(_BATCH / (80 * n_walks * at.shape[1])), 1)  # ten copies of the walks in float64
    chunks = torch.arange(len(at), device=at.device).split(fitting)
    return _assemble(problem, name, [_SOLVE[name](problem, rows) for rows in chunks])


def _assemble(
    problem: DirichletProblem, name: str, batches: list[tuple[Averages, Tensor]]
) -> LandscapeEstimate:
    """Join the results of all batches."""
    parts = zip(*(vars(part).values() for part, _ in batches), strict=True)
    result = Averages(*(torch.cat(columns) for columns in parts))
    lost = result.unfinished_share
    bias = torch.cat([part for _, part in batches]) + lost * result.span
    timeless = name == "spheres" and problem.operator.drift is not None
    return LandscapeEstimate(
        value=result.mean,
        stderr=result.stderr,
        bias=torch.where(lost > FEW_UNFINISHED, torch.inf, bias),  # nothing is known about the rest
        hit_share=result.hit_share,
        outer_share=result.outer_share,
        unfinished_share=lost,
        effective=result.effective,
        n_walks=problem.n_walks,
        mean_steps=float(result.steps.mean()),
        solver=name,
        exit_time=None if timeless else result.exit_time,
        exit_time_stderr=None if timeless else result.exit_time_stderr,
        notes=cautions(result, problem.balls is not None, timeless and problem.weighted, problem.n_walks),
    )


@dataclass(frozen=True)
class Boundary:
    """Values on the boundary, where walks end."""

    value: Callable[..., Tensor] | float  # at points ``(rows, dim)``, or at points and context rows
    data_values: Float[Tensor, " n"] | None  # value of each ball, if it is not that at the end of the walk
    context: Tensor | None  # one row per query, passed to the function

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
        values[asked] = self.at(end[asked], query[asked])
        return values

    @torch.no_grad()
    def at(self, points: Float[Tensor, "rows dim"], query: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        """Evaluate the function at points, for the queries with these numbers."""
        parts = [points.new_zeros(0)]
        for z, q in zip(points.split(_ROWS), query.split(_ROWS), strict=True):
            if callable(self.value):
                extra = () if self.context is None else (self.context[q],)
                values = self.value(z, *extra)
            else:
                values = torch.full_like(z[:, 0], self.value)
            if values.shape != (len(z),) or not bool(values.isfinite().all()):
                raise ValueError(
                    f"value must return one finite number per point, shape ({len(z)},), but returned shape "
                    f"{tuple(values.shape)}, or NaN or infinity."
                )
            parts.append(values.to(z.dtype))
        return torch.cat(parts)


@dataclass(frozen=True)
class DirichletProblem:
    """Input of the solvers, in the coordinates of the walks; `estimate_landscape` explains the settings."""

    boundary: Boundary
    domain: Domain
    operator: Operator
    at: Float[Tensor, "queries dim"]
    n_walks: int
    size: float
    shell: float
    dt: float
    max_steps: int
    drift: DriftMode
    generator: torch.Generator | None

    @property
    def balls(self) -> DataDomain | None:
        """The domain, if there are balls around data in it."""
        return self.domain if isinstance(self.domain, DataDomain) else None

    @property
    def outer(self) -> Domain:
        """The domain without balls."""
        return self.balls.domain if self.balls is not None else self.domain

    def starts(self, rows: Int[Tensor, " queries"]) -> Float[Tensor, "walks dim"]:
        """Return the start of each walk."""
        return self.at[rows].repeat_interleave(self.n_walks, 0)

    @property
    def weighted(self) -> bool:
        """Whether walks ignore the drift and carry weights."""
        return self.operator.drift is not None and self.drift == "weight"

    @cached_property
    def boundary_probes(self) -> tuple[Float[Tensor, "points dim"], Float[Tensor, " known"] | None]:
        """Points spread over the outer boundary (none if walls reflect) and balls; values of the latter.

        They are the same for every seed; fewer if the value depends on the query, which evaluates them again.
        """
        n = BOUNDARY_PROBES if self.boundary.context is None else OWN_PROBES
        outer = self.at[:0] if reflects(self.domain) else self._outer_probes(n)
        if self.balls is None:
            return outer, None
        centres, values = self.balls.points.to(self.at), self.boundary.data_values
        chosen = torch.arange(0, len(centres), -(-len(centres) // n), device=centres.device)
        if values is None:
            return torch.cat([outer, centres[chosen]]), None
        chosen = torch.cat([chosen, values.argmin()[None], values.argmax()[None]])
        return torch.cat([outer, centres[chosen]]), values.to(self.at)[chosen]

    def _outer_probes(self, n: int) -> Tensor:
        at, outer, rng = self.at, self.outer, torch.Generator().manual_seed(0)
        if isinstance(outer, Ball):
            normal = torch.randn(n, at.shape[1], generator=rng, dtype=torch.float64).to(at)
            return outer.centre.to(at) + outer.radius * torch.nn.functional.normalize(normal, dim=1)
        if isinstance(outer, Box):
            share = torch.rand(n, at.shape[1], generator=rng, dtype=torch.float64).to(at)
            return outer.project(torch.lerp(outer.low.to(at), outer.high.to(at), share))
        start = at[torch.arange(n, device=at.device) * len(at) // n]
        rng = torch.Generator(at.device).manual_seed(0)
        ends = walk_on_spheres(outer, start, LAPLACE, shell=self.shell, generator=rng)
        return ends.end[ends.label != UNFINISHED]

    def known(self, rows: Int[Tensor, " queries"]) -> BoundaryRange:
        """Return the range of the values at the probes, one per query, with the weights of a drift."""
        values = self._probe_values(rows) if self.boundary.context is not None else self._shared_values
        if self.weighted:
            values = values * likely_weights(self.operator, self.at[rows], self.boundary_probes[0])
        if not values.shape[1]:  # no probe reached the boundary
            values = torch.full_like(self.at[rows, :1], torch.nan)
        return BoundaryRange(values.amin(1).expand(len(rows)), values.amax(1).expand(len(rows)))

    @cached_property
    def _shared_values(self) -> Float[Tensor, "1 points"]:
        return self._probe_values(torch.zeros(1, dtype=torch.long, device=self.at.device))

    def _probe_values(self, rows: Tensor) -> Float[Tensor, "queries points"]:
        points, values = self.boundary_probes
        asked = points if values is None else points[: len(points) - len(values)]
        seen = self.boundary.at(asked.repeat(len(rows), 1), rows.repeat_interleave(len(asked)))
        seen = seen.reshape(len(rows), len(asked))
        return seen if values is None else torch.cat([seen, values.expand(len(rows), -1)], 1)

    def reduce(self, walks: Walks, rows: Int[Tensor, " queries"]) -> Averages:
        """Return averages per query."""
        values = self.boundary(walks.end, walks.label, rows.repeat_interleave(self.n_walks))
        return average(walks, self.n_walks, values, self.known(rows))


def _solve_exact(problem: DirichletProblem, rows: Tensor) -> tuple[Averages, Tensor]:
    """Draw exits from the outer ball in one step; ignore balls around data and bound their effect."""
    ball, at = problem.outer, problem.at[rows]
    assert isinstance(ball, Ball)
    centre, a = ball.centre.to(at), float(problem.operator.scale(at)[0]) ** 2
    end = sample_ball_exit(at, centre, ball.radius, problem.n_walks, generator=problem.generator)
    time = ball_exit_time(at, centre, ball.radius, a).repeat_interleave(problem.n_walks)
    source = problem.operator.source_at(at)  # a constant
    one = torch.ones_like(time, dtype=torch.long)
    integral = source.repeat_interleave(problem.n_walks) * time
    walks = Walks(end.flatten(0, 1), OUTER * one, torch.zeros_like(time), integral, time, one)
    result = problem.reduce(walks, rows)
    if problem.balls is None:
        return result, torch.zeros_like(result.mean)
    longest = ball.radius**2 / (at.shape[1] * a)
    return result, union_bound(problem.balls, at) * (result.span + source.abs() * longest)


def _solve_spheres(problem: DirichletProblem, rows: Tensor) -> tuple[Averages, Tensor]:
    """Walk on spheres; the shell in which walks end causes the only bias."""
    operator, at = problem.operator, problem.at
    walks = walk_on_spheres(
        problem.domain,
        problem.starts(rows),
        operator,
        shell=problem.shell,
        max_steps=problem.max_steps,
        drift=problem.drift,
        max_radius=0.05 * problem.size if callable(operator.drift) else None,
        generator=problem.generator,
    )
    result = problem.reduce(walks, rows)
    bias = result.span * problem.shell / problem.size
    if problem.balls is not None:
        # a shell around a ball of radius eps is hit more often by up to (1 + shell / eps)^(n - 2)
        growth = max(at.shape[1] - 2, 1) * math.log1p(problem.shell / float(problem.balls.radii.min()))
        bias = bias + result.span * result.hit_share * math.expm1(min(growth, 50.0))
    return result, bias.minimum(result.span)


def _solve_euler(problem: DirichletProblem, rows: Tensor) -> tuple[Averages, Tensor]:
    """Step in time; with the boundary shift the bias is of order ``dt``."""
    walks = euler_maruyama(
        problem.domain,
        problem.starts(rows),
        problem.operator,
        dt=problem.dt,
        max_steps=problem.max_steps,
        generator=problem.generator,
    )
    result = problem.reduce(walks, rows)
    balls, length = problem.balls, problem.size
    length = length if balls is None else min(length, float(balls.radii.min()))
    step = problem.operator.speeds(problem.at)[1] * math.sqrt(problem.dt) / length
    return result, result.span * min(step**2, 1.0)


#: Solvers, the most accurate first.
_SOLVE = {"exact": _solve_exact, "spheres": _solve_spheres, "euler": _solve_euler}


def likely_weights(
    operator: Operator, at: Float[Tensor, "queries dim"], points: Float[Tensor, "points dim"]
) -> Float[Tensor, "queries points"]:
    """Return the weights of the walks to each point that dominate the variance under a drift.

    A walk over ``d`` in a time ``t`` has ``log w = mu . d / a - |mu|^2 t / (2 a)`` and a density of the order
    of ``exp(-|d|^2 / (2 a t))``, which times ``w^2`` is largest at ``t = |d| / (sqrt(2) |mu|)``.
    """
    scale, mu = operator.scale(at), operator.drift_at(at)
    assert mu is not None
    # in coordinates in which the process is Brownian
    push, far = (mu / scale).expand_as(at), points / scale
    along = push @ far.T - (push * at / scale).sum(1, keepdim=True)
    distance = torch.cdist(at / scale, far)
    return (along - push.norm(dim=1, keepdim=True) * distance / math.sqrt(8)).exp()


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


def choose(problem: DirichletProblem, solver: str) -> str:
    """Return the name of the solver; raise if it cannot solve the problem."""
    able = [name for name in _SOLVE if _can(problem, name)]
    if solver == "auto":
        # a varying drift is frozen on each sphere, an error that no shell bounds
        return "euler" if callable(problem.operator.drift) else able[0]
    if solver not in able:
        raise ValueError(f'solver="{solver}" cannot solve this problem. Use one of {able}.')
    return solver


def _can(problem: DirichletProblem, solver: str) -> bool:
    """Return whether a solver fits the coefficients and the domain."""
    operator = problem.operator
    if solver == "euler":
        return True
    if not operator.is_axial or callable(operator.absorption):
        return False
    if solver == "spheres":
        return operator.drift is None or not reflects(problem.domain)
    scale = operator.scale(problem.at)
    plain = operator.drift is None and not operator.absorption and not callable(operator.source)
    if not (isinstance(problem.outer, Ball) and plain and bool((scale == scale[0]).all())):
        return False
    return problem.balls is None or float(union_bound(problem.balls, problem.at).max()) < UNION_TOLERANCE


def check_dims(domain: Domain, at: Tensor) -> None:
    """Raise if the queries have another dimension than a domain of this library; one would broadcast."""
    for part in (domain, getattr(domain, "outer", domain)):
        for name in ("points", "centre", "low", "normals"):
            known = getattr(part, name, None)
            if isinstance(known, Tensor) and at.shape[1:] != known.shape[-1:]:
                raise ValueError(f"at must have shape (queries, {known.shape[-1]}), not {tuple(at.shape)}.")


def _check(
    domain: Domain, at: Tensor, n_walks: int, data_values: Tensor | None, context: Tensor | None
) -> None:
    """Raise where shapes would broadcast, or a missing value would pass as a number."""
    if n_walks < 2:
        raise ValueError(f"n_walks must be at least 2 (one walk has no standard error), but got {n_walks}.")
    if context is not None and len(context) != len(at):
        raise ValueError(f"context must have one row per query, {len(at)}, but has {len(context)}.")
    if data_values is not None:
        points = domain.points if isinstance(domain, DataDomain) else at[:0]
        if data_values.shape != points.shape[:1] or not bool(data_values.isfinite().all()):
            raise ValueError(f"data_values must be finite, one for each of {len(points)} balls.")
    off = (~inside(domain, at)).nonzero().flatten().tolist()
    if off:
        raise ValueError(f"at: rows {off[:5]} lie outside the domain ({len(off)} in all). Enlarge it.")


def domain_size(domain: Domain, at: Tensor) -> float:
    """Return the radius of a ball, half the shortest side of a box, else the largest distance of a query."""
    outer = domain.domain if isinstance(domain, DataDomain) else domain
    if isinstance(outer, Ball):
        return outer.radius
    if isinstance(outer, Box):
        return float((outer.high - outer.low).min()) / 2
    return float(outer.distance(at).max().clamp_min(torch.finfo(at.dtype).tiny))


def default_shell(domain: Domain, at: Tensor, size: float) -> float:
    """Return a shell for walks on spheres that is small compared with the domain and the balls."""
    shell = 1e-4 * size
    if isinstance(domain, DataDomain):
        shell = min(shell, 1e-2 * float(domain.radii.min()) / max(at.shape[1] - 2, 1))
    resolution = torch.finfo(at.dtype).eps
    floor = max(1e-5 * size if resolution > 1e-10 else 0.0, 16 * resolution * float(at.abs().max()))
    return max(shell, floor)


def default_step(domain: Domain, at: Tensor, operator: Operator, size: float) -> float:
    """Return a time step whose standard deviation is small compared with the domain and the balls."""
    step = 0.03 * size  # standard deviation of a step
    if isinstance(domain, DataDomain):
        step = min(step, 0.2 * float(domain.radii.min()))
    return (step / operator.speeds(at)[1]) ** 2


def euler_steps(operator: Operator, at: Tensor, size: float, dt: float) -> int:
    """Return the steps in thirty times the exit time of a ball of this size, at most two million."""
    slowest = operator.speeds(at)[0] ** 2
    return min(max(10_000, int(30 * size**2 / (slowest * at.shape[1] * dt))), 2_000_000)


def merge_repeated(domain: Domain, data_values: Tensor | None) -> Tensor | None:
    """Give repeated points, which share a ball, the mean of their values."""
    if data_values is None or not isinstance(domain, DataDomain):
        return data_values
    _, which, counts = domain.points.unique(dim=0, return_inverse=True, return_counts=True)
    values = data_values.to(domain.points)
    return (torch.zeros_like(counts, dtype=values.dtype).scatter_add(0, which, values) / counts)[which]
