"""Estimate the loss landscape: the solution of the paper's boundary value problem, with error bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks, random
from elliptica.landscape import solvers
from elliptica.landscape.data_domain import DataDomain, Whitened
from elliptica.landscape.domains import Ball, Box, Domain, check_domain, inside
from elliptica.landscape.estimate import LandscapeEstimate, judge
from elliptica.landscape.operator import Operator
from elliptica.landscape.solvers import choose
from elliptica.landscape.spheres import DriftMode
from elliptica.landscape.walks import Averages, Boundary

#: Laplace's equation, the paper's choice.
LAPLACE = Operator()
#: Control variates pay from this number of walks; with fewer, fitting their coefficients adds more variance.
CONTROL_WALKS = 100
#: A standard error that exceeds that of the walks' spread by this factor is called conservative.
WIDENED = 1.25


def estimate_landscape(
    value: Callable[..., Tensor] | float,
    domain: Domain | Whitened,
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
    boundary_shift: bool = True,
    drift: DriftMode | Literal["auto"] = "auto",
    control_variates: bool = True,
    chunk_size: int | None = None,
    progress: Callable[[int, int], object] | None = None,
    generator: torch.Generator | None = None,
) -> LandscapeEstimate:
    """Solve ``1/2 sum a_i u_ii + mu . grad u - r u = -f`` inside, ``u = value`` on the boundary.

    Uses the Feynman-Kac formula. Each query has its own walks, so each value has its own standard error, in
    any dimension. In more than about ten dimensions walks miss small balls around data, and the outer
    boundary determines the value; see ``hit_share`` and ``notes`` of the result.

    Solvers: ``"exact"`` draws the exit from a ball in one step (Laplace or a constant source; balls around
    data only if they are hit with a probability below 1e-3). ``"spheres"`` is walk on spheres: any
    domain, constant absorption, drift frozen per sphere. ``"green"`` places charges at the data (outer
    ball, from 3 dimensions, up to 5000 points, one value per ball) and has a proved error bound. ``"euler"``
    steps in time and allows any coefficient. ``"auto"`` takes the first that is accurate, in this order.

    Args:
        value: Boundary values: points ``(rows, dim)`` to ``(rows,)``, or ``value(points, context_rows)``, or
            one number for all of the (outer) boundary. Functions are called without gradients; with exact
            exits once more at the queries, for a gradient.
        domain: `Ball`, `Box`, `Polytope`, `DataDomain`, `Whitened`, or any object with ``distance`` and
            ``project``. With `Whitened` the equation is Laplace's in whitened coordinates.
        at: Queries inside the domain.
        operator: Coefficients.
        solver: Name of a solver, see above.
        n_walks: Walks per query, at least 2.
        data_values: Value of the ball around each data point. Without it, ``value`` is called at the walk's
            end.
        context: One row per query, for example its label, passed to ``value``.
        shell: Distance to the boundary at which walks on spheres end. None: a ten-thousandth of the domain,
            and so small that hits on balls are inflated by less than 1 %.
        dt: Step of ``"euler"``. None: a thousandth of the time scale of the domain, less with balls.
        max_steps: Walks that need more are reported and skipped, never projected. None: 10 000 spheres, or
            thirty times the typical time of the domain for ``"euler"``.
        boundary_shift: Correct ``"euler"`` for walks that leave and return within a step (False: the
            plain scheme, as in the paper).
        drift: How ``"spheres"`` treats a drift: ``"weight"`` (unbiased weights on driftless walks),
            ``"sample"`` (drifted walks), ``"mixture"`` (half of the walks each, with the weights of the
            mixture), or ``"auto"``: the mixture.
        control_variates: Use the gradient of ``value`` at the queries to lower the variance of exact
            exits; skipped where there is none.
        chunk_size: Queries at a time. None keeps walks below about 200 MB.
        progress: Called as ``progress(done, total)`` after each chunk.
        generator: Source of randomness. The same generator state and chunks give the same numbers.

    Returns:
        Values with standard error, bias and shares of how walks ended.
    """
    _check_queries(at, n_walks, context, generator)
    for name, number in (("shell", shell), ("dt", dt)):
        if number is not None:
            checks.positive(name, number)
    if max_steps is not None:
        checks.count("max_steps", max_steps)
    checks.choice("drift", drift, ("auto", *get_args(DriftMode)))
    at = at.to(random.compute_dtype(at.dtype))
    region, operator, at, place = _inner(domain, operator, at)
    _check_inside(region, operator, at, data_values)
    size = domain_size(region, at)
    step = default_step(region, at, operator, size) if dt is None else dt
    data_values, merged = merge_repeated(region, data_values)
    is_constant = not callable(value) and data_values is None and not operator.has_source
    if is_constant and isinstance(region, DataDomain) and operator.absorption == 0:
        merged += (
            f"The whole boundary has the value {value:g}, and so has u. Pass data_values= (the losses at "
            "the data), or a function as value.",
        )
    problem = solvers.DirichletProblem(
        Boundary.of(value, data_values, context, place),
        region,
        operator,
        at,
        n_walks,
        size,
        default_shell(region, at, size) if shell is None else shell,
        step,
        max_steps or 10_000,
        boundary_shift,
        "mixture" if drift == "auto" else drift,
        control_variates and n_walks >= CONTROL_WALKS,
        generator,
    )
    name = choose(problem, solver)
    if name == "euler" and max_steps is None:
        problem = replace(problem, max_steps=euler_steps(operator, at, size, step))
    if chunk_size is not None:
        checks.count("chunk_size", chunk_size)
    chunk = int(chunk_size or problem.batch)
    if progress is not None and chunk_size is None:
        chunk = min(chunk, -(-len(at) // 20))  # about twenty progress updates
    batches = []
    for rows, batch in _run(problem, name, chunk):
        batches.append(batch)
        if progress is not None:
            progress(int(rows[-1]) + 1, len(at))
    return _assemble(problem, name, batches, merged)


def _run(problem: solvers.DirichletProblem, name: str, chunk: int) -> Iterator[tuple[Tensor, solvers.Batch]]:
    fit = solvers.fit_monopoles(problem) if name == solvers.MONOPOLES else None
    for rows in torch.arange(len(problem.at), device=problem.at.device).split(chunk):
        if fit is not None:
            yield rows, solvers.solve_monopoles(problem, rows, fit)
        else:
            yield rows, solvers.SAMPLERS[name](problem, rows)


def _assemble(
    problem: solvers.DirichletProblem, name: str, batches: list[solvers.Batch], merged: tuple[str, ...]
) -> LandscapeEstimate:
    whole = Averages(
        **{f.name: torch.cat([getattr(b.average, f.name) for b in batches]) for f in fields(Averages)}
    )
    bias = torch.cat([b.bias for b in batches])
    n_walks = int(whole.effective.max()) if name == solvers.MONOPOLES else problem.n_walks
    in_ball = None if problem.balls is None else problem.balls.nearest_ball(problem.at)[0] <= 0
    unknown = (whole.stderr == 0) & (whole.carriers > 0 if name == solvers.MONOPOLES else whole.steps > 0)
    if in_ball is not None:
        unknown = unknown & ~in_ball
    notes = judge(
        has_balls=problem.balls is not None,
        dim=problem.dim,
        hit_share=whole.hit_share,
        unfinished_share=whole.unfinished_share,
        effective=whole.effective,
        n_walks=n_walks if problem.operator.drift is not None else 0,  # survival does not change the measure
        max_steps=problem.max_steps,
        in_ball=in_ball,
        widened=whole.stderr > WIDENED * whole.spread,
        carriers=whole.carriers if problem.operator.drift is not None else None,
        deciding=whole.deciding,
        unknown=None if problem.boundary.constant is not None or problem.dim == 1 else unknown,
    )
    notes = (*notes, *merged)
    if name == solvers.MONOPOLES and problem.boundary.data_values is None:
        notes = (*notes, "Each ball has a constant value, the one at its centre.")
    if name == "spheres" and callable(problem.operator.drift):
        notes = (*notes, "The drift is taken as constant on each sphere; bias does not include that error.")
    timeless = name == solvers.MONOPOLES or (name == "spheres" and problem.operator.drift is not None)
    return LandscapeEstimate(
        value=whole.mean,
        stderr=whole.stderr,
        bias=torch.where(whole.unfinished_share < 1, bias, torch.inf),
        bias_kind="bound" if all(b.proved for b in batches) else "estimate",
        hit_share=whole.hit_share,
        outer_share=whole.outer_share,
        unfinished_share=whole.unfinished_share,
        effective=whole.effective,
        n_walks=n_walks,
        mean_steps=float(whole.steps.mean()),
        solver=name,
        exit_time=None if timeless else whole.exit_time,
        exit_time_stderr=None if timeless else whole.exit_time_stderr,
        notes=notes,
    )


def _inner(
    domain: Domain | Whitened, operator: Operator, at: Tensor
) -> tuple[Domain, Operator, Tensor, Callable[[Tensor], Tensor]]:
    """Return the problem in the coordinates of the walks, and the map back."""
    if not isinstance(domain, Whitened):
        check_domain(domain)
        return domain, operator, at, lambda z: z
    _check_dim(len(domain.centre), at)
    if operator.drift is not None or isinstance(operator.diffusion, Tensor) or operator.diffusion != 1:
        raise ValueError(
            "On a Whitened domain the whitening is the diffusion, so the operator may have absorption "
            "and sources, but no drift and no diffusion other than 1. Use the inner domain on whitened data "
            "(domain.inner, domain.to_inner(points)) for those."
        )
    composed: dict[str, Any] = {
        name: (lambda w, f=field: f(domain.from_inner(w)))
        for name in ("absorption", "source")
        if callable(field := getattr(operator, name))
    }
    return domain.inner, replace(operator, **composed), domain.to_inner(at), domain.from_inner


def _check_queries(
    at: Tensor, n_walks: int, context: Tensor | None, generator: torch.Generator | None
) -> None:
    checks.floating("at", at)
    if at.ndim != 2:
        raise ValueError(
            f"at must have shape (queries, dim), but has {tuple(at.shape)}. Use at[None] for one point, "
            "at.flatten(1) for images."
        )
    checks.batch("at", at)
    checks.finite("at", at)
    checks.count("n_walks", n_walks, 2, " (one walk has no standard error)")
    random.check_generator(generator, at.device)
    if context is not None:
        checks.same_rows("context", context, len(at), "at")


def _check_dim(dim: int, at: Tensor) -> None:
    if at.shape[1] != dim:
        raise ValueError(
            f"The queries have {at.shape[1]} columns, but the domain has dimension {dim}. Make them agree."
        )


def check_dims(domain: Domain, at: Tensor) -> None:
    """Raise if the queries have another dimension than a domain of this library."""
    outer = domain.domain if isinstance(domain, DataDomain) else domain
    for part in (domain, outer):
        for name in ("points", "centre", "low", "normals"):
            known = getattr(part, name, None)
            if isinstance(known, Tensor):
                _check_dim(known.shape[-1], at)


def _check_inside(domain: Domain, operator: Operator, at: Tensor, data_values: Tensor | None) -> None:
    check_dims(domain, at)
    operator.check_dim(at.shape[1])
    if isinstance(domain, Box) and domain.wall == "reflect":
        raise ValueError(
            "Walks never end if all walls reflect and there are no balls. Use DataDomain(points, "
            'outer="reflecting_box"), or use wall="absorb".'
        )
    if data_values is not None:
        if not isinstance(domain, DataDomain):
            raise ValueError(
                "data_values needs balls around data, but the domain has none. Use DataDomain(points)."
            )
        checks.same_rows("data_values", data_values, len(domain.points), "the points of the domain")
        if data_values.ndim != 1:
            raise ValueError(
                "data_values must have one number per point, but has shape "
                f"{tuple(data_values.shape)}. Use .flatten()."
            )
        checks.finite("data_values", data_values)
    off = (~inside(domain, at)).nonzero().flatten().tolist()
    if off:
        raise ValueError(
            f"{len(off)} of {len(at)} queries lie outside the domain, e.g. rows {off[:5]}. Enlarge the "
            "domain (margin=...), or drop those rows, because the landscape is not defined beyond the "
            "boundary."
        )


# Defaults of `estimate_landscape`: sizes, shells, steps.


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


def euler_steps(operator: Operator, at: Tensor, size: float, dt: float) -> int:
    """Return the steps in thirty times the exit time of a ball of this size, at most two million."""
    slowest = float(operator.scale(at).min()) ** 2
    return min(max(10_000, int(30 * size**2 / (slowest * at.shape[1] * dt))), 2_000_000)


def merge_repeated(domain: Domain, data_values: Tensor | None) -> tuple[Tensor | None, tuple[str, ...]]:
    """Give repeated points, which share a ball, the mean of their values."""
    if data_values is None or not isinstance(domain, DataDomain):
        return data_values, ()
    _, which = domain.points.unique(dim=0, return_inverse=True)
    counts = torch.bincount(which)
    if int(counts.max()) == 1:
        return data_values, ()
    values = data_values.to(domain.points)
    mean = torch.zeros_like(counts, dtype=values.dtype).scatter_add(0, which, values) / counts
    note = f"{len(which) - len(counts)} data points repeat others; their ball has the mean of their values."
    return mean[which], (note,)


def default_step(domain: Domain, at: Tensor, operator: Operator, size: float) -> float:
    """Return a time step whose standard deviation is small compared with the domain and the balls."""
    step = 0.03 * size  # standard deviation of a step
    if isinstance(domain, DataDomain):
        step = min(step, 0.2 * float(domain.radii.min()))
    return (step / float(operator.scale(at).max())) ** 2
