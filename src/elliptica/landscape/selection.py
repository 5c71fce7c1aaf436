"""Which solver fits which problem."""

from __future__ import annotations

from elliptica import _checks
from elliptica.landscape.domains import Ball
from elliptica.landscape.methods import Problem, outer_sample, union_bound
from elliptica.landscape.monopole import check_domain, relative_bound

SOLVERS = ("exact", "spheres", "green", "euler")
#: Balls are dropped where the probability to meet one is below this.
UNION_TOLERANCE = 1e-3
#: Error of the Green kernel, as a share of the range of the values, up to which it is chosen.
GREEN_TOLERANCE = 1e-2


def choose(problem: Problem, solver: str) -> str:
    """Name of the solver; refuses one that cannot solve the problem."""
    _checks.choice("solver", solver, ("auto", *SOLVERS))
    if solver == "auto":
        return _auto(problem)
    reason = _obstacle(problem, solver)
    if reason is not None:
        able = ", ".join(f'"{name}"' for name in SOLVERS if _obstacle(problem, name) is None)
        raise ValueError(f'solver="{solver}" cannot solve this problem: {reason}. Use one of {able}.')
    return solver


def _auto(problem: Problem) -> str:
    if callable(problem.operator.drift) or _obstacle(problem, "spheres") is not None:
        return "euler"
    if _obstacle(problem, "exact") is None:
        return "exact"
    return "green" if _green_is_worth_it(problem) else "spheres"


def _green_is_worth_it(problem: Problem) -> bool:
    """One value per ball, enough queries for the price of a solve, and a small bound of the error."""
    balls, values = problem.balls, problem.boundary.data_values
    if balls is None or values is None or len(values) > 4 * len(problem.at):
        return False
    if _obstacle(problem, "green") is not None:
        return False
    outer = outer_sample(problem)
    low, high = min(float(outer.min()), float(values.min())), max(float(outer.max()), float(values.max()))
    share = float(outer.max() - outer.min()) / (high - low) if high > low else 0.0
    return float(relative_bound(balls, problem.at, share).max()) < GREEN_TOLERANCE


def _obstacle(problem: Problem, solver: str) -> str | None:
    """Why a solver cannot solve a problem, or None."""
    if solver == "spheres":
        return _obstacle_spheres(problem)
    if solver == "exact":
        return _obstacle_exact(problem)
    return _obstacle_green(problem) if solver == "green" else None


def _obstacle_spheres(problem: Problem) -> str | None:
    if callable(problem.operator.absorption):
        return "the absorption is a function of the points, which only time stepping follows"
    wall = getattr(problem.outer, "wall", "reflect" if hasattr(problem.outer, "reflect") else "absorb")
    if wall == "reflect" and problem.operator.drift is not None:
        return "a sphere cannot reach through a reflecting wall when there is a drift"
    return None


def _obstacle_exact(problem: Problem) -> str | None:
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
            return f"balls around data may be met with a probability of up to {met:.2g}"
    return None


def _obstacle_green(problem: Problem) -> str | None:
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
