"""Hostile input for the landscape, the diagnostics and training in several processes."""

from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import elliptica
from adversary.cases import (
    BAD,
    FINE,
    ODD,
    TARGETS,
    Case,
    Choice,
    bad,
    check,
    check_close,
    fine,
    just,
    odd,
    target,
)
from adversary.library_methods import (
    CLASSES,
    FEATURES,
    FLAG,
    GENERATOR,
    LOSS,
    MODEL,
    NO_DATA,
    NOT_FINITE,
    OMIT,
    ORDINARY,
    ROWS,
    TASK,
    WEIGHT,
    Kept,
    OwnError,
    Y,
    count_rows,
    counts,
    equal,
    given,
    is_calm,
    is_classes,
    names,
    reals,
    same_error,
    vector,
)
from elliptica import distributed, landscape
from elliptica.landscape import Ball, Box, DataDomain, LossField, Operator, Polytope, Whitened

# ---- domains and queries

POINTS = (
    *ORDINARY[:3],
    ORDINARY[-1],
    odd("requires grad", lambda case: case.normal(ROWS, FEATURES).requires_grad_()),
    odd("scaled", lambda case, k: case.normal(ROWS, FEATURES) * 10.0**k, st.integers(-45, 38)),
    odd("bfloat16", lambda case: case.normal(ROWS, FEATURES, dtype=torch.bfloat16)),
    odd("one column", lambda case: case.normal(ROWS, 1)),
    odd("on a line", lambda case: case.normal(ROWS, 1) * torch.ones(FEATURES)),
    odd("far away", lambda case: case.normal(ROWS, FEATURES) + 1e6),
    odd("a constant column", lambda case: case.normal(ROWS, FEATURES) * torch.tensor([1.0, 0.0, 1.0])),
    odd("ten columns", lambda case: case.normal(ROWS, 10)),
    bad("equal", lambda case: torch.ones(ROWS, FEATURES)),
    bad("one row", lambda case: case.normal(1, FEATURES)),
    bad("flat", lambda case: case.normal(ROWS)),
    bad("images", lambda case: case.normal(ROWS, 2, 2)),
    bad("integers", lambda case: torch.ones(ROWS, FEATURES).long()),
    bad("no columns", lambda case: case.normal(ROWS, 0)),
    *NOT_FINITE,
    *NO_DATA,
)
EPSILON = (
    fine("default", OMIT),
    fine("None", None),
    fine("small", 1e-3),
    fine("per point", lambda case: torch.full((len(case["points"]),), 1e-3)),
    odd("large", 10.0),
    odd("another number", lambda case: torch.full((3,), 1e-3)),
    odd("integers", lambda case: torch.ones(len(case["points"])).long()),
    bad("zero", 0.0),
    bad("negative", -1.0),
    bad("nan", math.nan),
    bad("nan per point", lambda case: torch.full((ROWS,), math.nan)),
    bad("text", "0.1"),
    bad("true", True),
    bad("list", [0.1] * 3),
)
FRACTION = reals(0.3, 0.1, 0.49, wrong=(0.0, -1.0, 0.5, 1.0))
MARGIN = reals(1.1, 1.0, 3.0, wrong=(0.5, 0.0, -1.0))


@target(
    "landscape.domains",
    {
        "points": POINTS,
        "kind": (
            fine("ball", "ball"),
            fine("box", "box"),
            fine("hull", "hull"),
            fine("data", "data"),
            fine("whitened", "whitened"),
        ),
        "outer": names("ball", "box", "reflecting_box", "hull"),
        "epsilon": EPSILON,
        "fraction": FRACTION,
        "margin": MARGIN,
        "ridge": reals(1e-3, 1.0, wrong=(0.0, -1.0)),
    },
    share=0.6,
)
def run_domains(case: Case) -> None:
    """Make a region around points: it contains them, and projections lie on its boundary."""
    points, kind = case["points"], case["kind"]
    used = {
        "ball": ("points", "margin"),
        "box": ("points", "margin"),
        "hull": ("points",),
        "data": ("points", "outer", "epsilon", "fraction", "margin"),
        "whitened": ("points", "epsilon", "margin", "ridge"),
    }[kind]
    _forget_unused(case, used)
    wrong = _bad_axes(case) & set(used)
    if kind == "data" and case.owed == BAD and wrong <= {"margin"} and case["outer"] == "hull":
        case.excuse()
    if kind == "data" and case.owed == BAD and wrong <= {"fraction"} and case["epsilon"] not in (OMIT, None):
        case.excuse()
    kept = Kept([points])
    make: dict[str, Callable[..., Any]] = {
        "ball": Ball.around,
        "box": Box.around,
        "hull": Polytope.hull,
        "data": DataDomain,
        "whitened": Whitened.ball,
    }
    domain = make[kind](points, **given(case, *used[1:]))
    repr(domain)
    if kind == "whitened":
        z = points.detach().double()
        back = domain.from_inner(domain.to_inner(z))
        check_close(back, z, "points after a round trip", 1e-3)
        domain, z = domain.inner, domain.to_inner(z)
    else:
        z = points.detach()
    gap = domain.distance(z)
    kept.check()
    check(gap.shape == (len(z),) and not bool(gap.isnan().any()), "a distance is NaN")
    scale = float(z.abs().max()) + 1e-30
    if z.dtype == torch.bfloat16:
        return
    outer = domain.domain if isinstance(domain, DataDomain) else domain
    check(bool((outer.distance(z) >= -1e-4 * scale).all()), "a point lies outside the region around it")
    if getattr(outer, "wall", "absorb") == "reflect" and not isinstance(domain, DataDomain):
        return
    on = domain.project(z)
    check(bool(on.isfinite().all()), "a projection is not finite")
    crossed = isinstance(domain, DataDomain) and isinstance(
        outer, Polytope
    )  # balls around points of the hull
    if getattr(outer, "wall", "absorb") == "absorb" and not crossed:
        check(float(domain.distance(on).abs().max()) <= 2e-4 * scale, "a projection is not on the boundary")


def _bad_axes(case: Case) -> set[str]:
    return {a for a in case.target.axes if case.target.choice(a, case.name(a)).owed == BAD}


def _forget_unused(case: Case, used: Sequence[str]) -> None:
    """Demand nothing for bad values of arguments that are not passed."""
    if case.owed == BAD and not _bad_axes(case) & set(used):
        case.excuse()


@target(
    "landscape.Box",
    {
        "low": (
            fine("plain", lambda case: -torch.ones(FEATURES)),
            fine("float64", lambda case: -torch.ones(FEATURES).double()),
            odd("one number", lambda case: -torch.ones(1)),
            bad("above", lambda case: torch.full((FEATURES,), 5.0)),
            bad("nan", lambda case: torch.full((FEATURES,), math.nan)),
            bad("infinite", lambda case: torch.full((FEATURES,), -math.inf)),
            bad("integers", lambda case: -torch.ones(FEATURES).long()),
            bad("0-d", lambda case: torch.tensor(-1.0)),
            bad("empty", lambda case: torch.ones(0)),
            bad("a list", [-1.0] * FEATURES),
            bad("None", None),
        ),
        "wall": names("absorb", "reflect"),
        "radius": (fine("1", 1.0), *reals(1.0, 1e-6, 1e6, wrong=(0.0, -1.0))[2:]),
        "normals": (
            fine("plain", lambda case: torch.cat([torch.eye(FEATURES), -torch.eye(FEATURES)])),
            fine("float64", lambda case: torch.cat([torch.eye(FEATURES), -torch.eye(FEATURES)]).double()),
            bad("unbounded", lambda case: torch.eye(FEATURES)),
            bad("zero", lambda case: torch.zeros(6, FEATURES)),
            bad("nan", lambda case: torch.full((6, FEATURES), math.nan)),
            bad("flat", lambda case: torch.ones(6)),
            bad("a list", [[1.0]]),
            bad("None", None),
            bad("integers", lambda case: torch.cat([torch.eye(FEATURES), -torch.eye(FEATURES)]).long()),
        ),
    },
    share=0.2,
)
def run_regions(case: Case) -> None:
    """Make a ball, a box and a polytope by hand; all hold the same centre."""
    low = case["low"]
    box = Box(low, torch.ones(FEATURES), **given(case, "wall"))
    ball = Ball(low + 1, case["radius"])
    polytope = Polytope(case["normals"], torch.ones(2 * FEATURES))
    z = torch.zeros(1, FEATURES)
    check(float(polytope.distance(z)) == 1.0, "another distance to a facet")
    if box.wall == "absorb":
        check(float(box.distance(z)) == 1.0, "another distance to a wall")
    check(
        abs(float(ball.distance(z)) - float(case["radius"])) < 1e-6 * float(case["radius"]), "another radius"
    )


def _vector(value: float, dim: int = FEATURES) -> Callable[[Case], Tensor]:
    return lambda case: torch.full((dim,), value)


OPERATOR = {
    "diffusion": (
        fine("default", OMIT),
        fine("2", 2.0),
        fine("per coordinate", lambda case: torch.tensor([1.0, 2.0, 0.5])),
        odd("tiny", 1e-30),
        odd("another number", _vector(1.0, FEATURES + 1)),
        bad("zero", 0.0),
        bad("negative", -1.0),
        bad("nan", math.nan),
        bad("negative per coordinate", _vector(-1.0)),
        bad("nan per coordinate", _vector(math.nan)),
        bad("integers", lambda case: torch.ones(FEATURES).long()),
        bad("text", "1"),
        bad("None", None),
        bad("list", [1.0, 1.0, 1.0]),
    ),
    "drift": (
        fine("default", OMIT),
        fine("None", None),
        fine("a vector", _vector(0.3)),
        fine("zero", _vector(0.0)),
        fine("a function", just(lambda z: -0.1 * z)),
        odd("another number", _vector(1.0, FEATURES + 1)),
        odd("raises", just(lambda z: _raise())),
        bad("another shape", just(lambda z: z[:, 0])),
        bad("nan returned", just(lambda z: z * math.nan)),
        bad("None returned", just(lambda z: None)),
        bad("nan", _vector(math.nan)),
        bad("0-d", lambda case: torch.tensor(1.0)),
        bad("a number", 1.0),
        bad("text", "left"),
        bad("integers", lambda case: torch.ones(FEATURES).long()),
    ),
    "absorption": (
        fine("default", OMIT),
        fine("1", 1.0),
        fine("a function", just(lambda z: torch.ones_like(z[:, 0]))),
        odd("huge", 1e6),
        odd("raises", just(lambda z: _raise())),
        bad("another shape", just(lambda z: z)),
        bad("negative", -1.0),
        bad("nan", math.nan),
        bad("text", "1"),
        bad("None", None),
        bad("negative returned", just(lambda z: -torch.ones_like(z[:, 0]))),
        bad("nan returned", just(lambda z: torch.full_like(z[:, 0], math.nan))),
    ),
    "source": (
        fine("default", OMIT),
        fine("None", None),
        fine("1", 1.0),
        fine("a function", just(lambda z: torch.ones_like(z[:, 0]))),
        odd("raises", just(lambda z: _raise())),
        bad("another shape", just(lambda z: z)),
        bad("nan", math.nan),
        bad("infinite", math.inf),
        bad("text", "1"),
        bad("nan returned", just(lambda z: torch.full_like(z[:, 0], math.nan))),
    ),
}


def _raise() -> Tensor:
    raise OwnError("the function's own error")


def _cloud(case: Case) -> Tensor:
    corners = torch.tensor([[-2.0] * FEATURES, [2.0] * FEATURES])  # so that all queries lie inside
    return torch.cat([corners, case.normal(4, FEATURES).clamp(-1.9, 1.9)])


DOMAIN = (
    fine("ball", lambda case: Ball(torch.zeros(FEATURES), 1.0)),
    fine("box", lambda case: Box(-torch.ones(FEATURES), torch.ones(FEATURES))),
    fine("float64", lambda case: Ball(torch.zeros(FEATURES).double(), 1.0)),
    fine("data in a ball", lambda case: DataDomain(_cloud(case))),
    fine("data in a box", lambda case: DataDomain(_cloud(case), outer="box")),
    fine("data and mirrors", lambda case: DataDomain(_cloud(case), outer="reflecting_box", fraction=0.45)),
    fine("whitened", lambda case: Whitened.ball(case.normal(20, FEATURES) * torch.tensor([1.0, 2.0, 0.5]))),
    fine("own", lambda case: _Slab()),
    bad("mirrors alone", lambda case: Box(-torch.ones(FEATURES), torch.ones(FEATURES), "reflect")),
    bad("another dimension", lambda case: Ball(torch.zeros(FEATURES + 1), 1.0)),
    bad("points", _cloud),
    bad("text", "ball"),
    bad("None", None),
    bad("a class", just(Ball)),
)


class _Slab:
    """A user's own region: between two planes."""

    def distance(self, z: Tensor) -> Tensor:
        """Return the distance to the nearer plane."""
        return 1 - z[:, 1].abs()

    def project(self, z: Tensor) -> Tensor:
        """Move points to the nearer plane."""
        on = z.clone()
        on[:, 1] = torch.where(z[:, 1] < 0, -1.0, 1.0)
        return on


def _has_balls(case: Case) -> bool:
    return isinstance(case["domain"], DataDomain)


def _inside(case: Case, scale: float = 0.2) -> Tensor:
    return (case.normal(2, FEATURES) * scale).clamp(-0.5, 0.5)


AT = (
    fine("plain", _inside),
    fine("float64", lambda case: _inside(case).double()),
    fine("one", lambda case: _inside(case)[:1]),
    fine("not contiguous", lambda case: _inside(case).t().contiguous().t()),
    fine("requires grad", lambda case: _inside(case).requires_grad_()),
    fine("the centre", lambda case: torch.zeros(2, FEATURES)),
    fine("data", lambda case: case["domain"].points[:2] if _has_balls(case) else _inside(case)),
    odd("bfloat16", lambda case: _inside(case).bfloat16()),
    odd("tiny", lambda case: _inside(case) * 1e-40),
    odd("on the boundary", lambda case: torch.tensor([[1.0, 0.0, 0.0]])),
    bad("outside", lambda case: torch.full((1, FEATURES), 50.0)),
    bad("huge", lambda case: torch.full((1, FEATURES), 1e38)),
    bad("flat", lambda case: torch.zeros(FEATURES)),
    bad("integers", lambda case: torch.zeros(2, FEATURES).long()),
    bad("images", lambda case: torch.zeros(2, 1, FEATURES)),
    *NOT_FINITE,
    *NO_DATA,
)


def _solution(case: Case) -> Callable[..., Tensor]:
    """Return a solution of the equation in every domain, which depends on the second coordinate alone.

    With ``a u'' / 2 + m u' - r u = -f`` it is an exponential plus a particular solution. Without a constant
    drift, or where numbers are extreme, it is the coordinate itself, which solves nothing.
    """
    a, drift, r, f = (case[name] for name in ("diffusion", "drift", "absorption", "source"))
    a = float(a[1]) if isinstance(a, Tensor) and len(a) > 1 else 1.0 if a is OMIT else a
    m = float(drift[1]) if isinstance(drift, Tensor) and drift.ndim and len(drift) > 1 else 0.0
    r, f = (1.0 if callable(v) else 0.0 if v is OMIT or v is None else v for v in (r, f))
    numbers = isinstance(a, float) and all(isinstance(v, float) and abs(v) < 10 for v in (r, f)) and a > 0.1
    if not numbers or callable(drift) or not math.isfinite(a + m + r + f) or r < 0:
        return lambda z, *_: z[:, 1]
    power = (-m + math.sqrt(m * m + 2 * a * r)) / a or -2 * m / a

    def value(z: Tensor, *_: Tensor) -> Tensor:
        x = z[:, 1]
        special = f / r if r else -f * x / m if m else -f * x.square() / a
        return (power * x).exp() + special if power else x + special

    return value


VALUE = (
    fine("solution", _solution),
    fine("linear", just(lambda z, *_: z.double().sum(1).to(z))),
    fine("by context", just(lambda z, *row: row[0].to(z) if row else z[:, 0] * 0)),
    fine("harmonic", just(lambda z, *_: z[:, 0] ** 2 - z[:, 1] ** 2)),
    fine("2", 2.0),
    fine("numpy", np.float64(2.0)),
    fine("steps", just(lambda z, *_: (z[:, 0] > 0).to(z.dtype))),
    fine("detached", just(lambda z, *_: z[:, 0].detach())),
    odd("integers", just(lambda z, *_: torch.ones(len(z), dtype=torch.long))),
    odd("huge", just(lambda z, *_: z[:, 0] * 1e30)),
    odd("raises", just(lambda z, *_: _raise())),
    bad("a column", just(lambda z, *_: z[:, :1])),
    bad("a scalar", just(lambda z, *_: z.mean())),
    bad("nan returned", just(lambda z, *_: z[:, 0] * math.nan)),
    bad("a float", just(lambda z, *_: 1.0)),
    bad("numpy returned", just(lambda z, *_: z[:, 0].numpy())),
    bad("None returned", just(lambda z, *_: None)),
    bad("nan", math.nan),
    bad("infinite", math.inf),
    bad("text", "loss"),
    bad("None", None),
    bad("true", True),
)
N_WALKS = (fine("400", 400), fine("2", 2), fine("200", 200), *counts(40, least=2)[2:])


@target(
    "landscape.estimate",
    {
        "value": VALUE,
        "domain": DOMAIN,
        "at": AT,
        **OPERATOR,
        "solver": names("auto", "exact", "spheres", "green", "euler"),
        "n_walks": N_WALKS,
        "data_values": (
            fine("default", OMIT),
            fine("right", lambda case: torch.arange(6.0) if "data" in case.name("domain") else OMIT),
            odd("always", lambda case: torch.arange(6.0)),
            odd("nan", lambda case: torch.full((6,), math.nan)),
            odd("too few", lambda case: torch.arange(5.0)),
            odd("a column", lambda case: torch.zeros(6, 1)),
            odd("a list", [0.0] * 6),
            odd("integers", lambda case: torch.arange(6)),
        ),
        "context": (
            fine("default", OMIT),
            fine(
                "right",
                lambda case: (
                    torch.arange(len(case["at"]))
                    if isinstance(case["at"], Tensor) and case["at"].ndim
                    else OMIT
                ),
            ),
            bad("too many", lambda case: torch.arange(50)),
            bad("a list", [1, 2]),
        ),
        "shell": reals(1e-3, 1e-2, wrong=(0.0, -1.0), none=FINE),
        "dt": reals(1e-2, 1e-3, wrong=(0.0, -1.0), none=FINE),
        "max_steps": counts(1000, 1, none=FINE),
        "mode": (
            fine("default", OMIT),
            fine("weight", "weight"),
            fine("sample", "sample"),
            fine("mixture", "mixture"),
            bad("Weight", "Weight"),
            bad("None", None),
        ),
        "boundary_shift": FLAG[:3],
        "control_variates": FLAG[:3],
        "chunk_size": counts(1, 100, none=FINE),
        "generator": GENERATOR,
    },
    share=3.0,
)
def run_estimate(case: Case) -> None:
    """Solve a boundary value problem whose answer, or at least whose range, is known."""
    operator = Operator(**given(case, *OPERATOR))
    value, domain, at, generator = case["value"], case["domain"], case["at"], case["generator"]
    _clash(case, operator)
    settings = {
        "dt": 1e-2,
        "max_steps": 2000,
        **given(case, "solver", "data_values", "context", "shell", "dt"),
    }
    settings |= given(case, "max_steps", "boundary_shift", "control_variates", "chunk_size")
    if settings["max_steps"] is None:
        settings["max_steps"] = 2000
    if case["mode"] is not OMIT:
        settings["drift"] = case["mode"]
    solve = functools.partial(
        elliptica.estimate_landscape,
        value,
        domain,
        at,
        operator=operator,
        n_walks=case["n_walks"],
        **settings,
    )
    kept = Kept([at, case["data_values"]])
    try:
        found = solve(generator=generator)
    except OwnError:
        case.excuse()
        return
    kept.check(random=generator is not None)
    if isinstance(generator, torch.Generator):
        generator.manual_seed(case.seed)
        other = solve(generator=generator)
        check(equal(other.value, found.value) and equal(other.stderr, found.stderr), "a second call differs")
    _check_estimate(case, found, operator)


def _fine(axis: str, *without: str) -> tuple[Choice, ...]:
    """Return the valid choices of an axis of `run_estimate`."""
    return tuple(
        c for c in TARGETS["landscape.estimate"].axes[axis] if c.owed == FINE and c.name not in without
    )


# most hostile input is refused; here nothing is, so that every case is compared
target(
    "landscape.solutions",
    {
        **{axis: _fine(axis) for axis in ("domain", "solver", "mode", "data_values", "context")},
        "boundary_shift": _fine("boundary_shift"),
        **{axis: (*_fine(axis)[2:], *_fine(axis)[:2]) for axis in ("diffusion", "source")},
        "absorption": (*_fine("absorption")[1:], *_fine("absorption")[:1]),
        "value": _fine("value", "steps", "detached", "numpy"),
        "drift": _fine("drift", "None", "a function"),
        "at": _fine("at", "one", "not contiguous", "requires grad", "the centre"),
        "n_walks": _fine("n_walks")[:1],
        "control_variates": _fine("control_variates"),
        **{axis: _fine(axis)[:1] for axis in ("shell", "dt", "max_steps", "chunk_size", "generator")},
    },
    share=1.0,
)(run_estimate)


def _clash(case: Case, operator: Operator) -> None:
    """Say what is owed where several choices meet."""
    name = case.name
    unused_drift = name("drift") in ("default", "None")
    if name("solver") in ("'exact'", "'green'", "'spheres'"):
        case.owe(ODD)  # some problems are beyond a solver, and are refused
    if name("domain") == "whitened" and (not unused_drift or name("diffusion") != "default"):
        case.owe(ODD)
    if name("domain") == "own" and not unused_drift:
        case.owe(ODD)
    if name("data_values") in ("nan", "too few", "a column", "a list"):
        case.owe(BAD)
    if (
        name("data_values") in ("always", "right")
        and "data" not in name("domain")
        and case["data_values"] is not OMIT
    ):
        case.owe(BAD)
    if name("diffusion") == "another number" or name("drift") == "another number":
        case.owe(BAD)
    if isinstance(case["drift"], Tensor) and name("domain") == "data and mirrors":
        case.owe(ODD)
    if "returned" in name("drift") or name("drift") == "another shape":
        case.owe(BAD)
    if case.owed == BAD and _bad_axes(case) <= {"value", "absorption", "source"}:
        balls_only = "data" in name("domain") and case["data_values"] is not OMIT
        if balls_only or name("domain") == "data and mirrors":
            case.excuse()  # the function may never be called
    if (
        case.owed == BAD
        and name("max_steps") == "1"
        and _bad_axes(case) <= {"value", "absorption", "source", "drift"}
    ):
        case.excuse()
    if case.owed == BAD and _bad_axes(case) <= {"value"} and "in a ball" in name("domain"):
        case.excuse()


def _check_estimate(case: Case, found: Any, operator: Operator) -> None:
    text = str(found)
    n = len(case["at"])
    columns = (
        found.value,
        found.stderr,
        found.bias,
        found.hit_share,
        found.outer_share,
        found.unfinished_share,
    )
    check(all(c.shape == (n,) for c in columns), "a column has another length")
    total = found.hit_share + found.outer_share + found.unfinished_share
    check(float((total - 1).abs().max()) < 1e-3, "the shares do not sum to one")
    done = found.unfinished_share < 1
    calm = case.name("value") not in ("huge",) and case.name("absorption") != "huge"
    if calm and case.name("diffusion") != "tiny":
        check(bool(found.value[done].isfinite().all()), f"a value is not finite: {found.value.tolist()}")
        check(bool((found.stderr[done] >= 0).all()), "a standard error is negative or NaN")
        check("nan" not in text or not bool(done.all()), "the text says nan")
    trusted = (found.unfinished_share < 0.01) & (found.effective > 10) & found.bias.isfinite()
    if case.owed == BAD or not calm or not bool(trusted.any()) or case["n_walks"] == 2:
        return
    slack = 6 * found.stderr + found.bias + 5e-3
    at = case["at"].detach().to(found.value)
    rate, source = (1.0 if callable(v) else v or 0.0 for v in (operator.absorption, operator.source))
    plain, whole = not rate and not source, case["data_values"] is OMIT
    domain, value = case.name("domain"), case.name("value")
    balls, walls = _has_balls(case), domain == "data and mirrors"
    even = not isinstance(operator.diffusion, Tensor)

    def compare(wanted: Tensor, what: str, more: float = 0.0) -> None:
        gap = (found.value - wanted.to(found.value)).abs()
        check(
            bool((gap <= slack + more)[trusted].all()),
            f"{what}: {found.value.tolist()} +- {found.stderr.tolist()}, not {wanted.tolist()}",
        )

    if balls and not whole and case.name("at") == "data":
        compare(case["data_values"][:n].to(found.value), "the values of the balls")
    if balls:  # the value in a ball is that of its surface
        trusted = trusted & (case["domain"].nearest_ball(at)[0] > 0)
    if not whole or (balls and found.solver == "green"):
        return
    steps = 0.05 if found.solver == "euler" else 0.0
    if value in ("2", "numpy") and plain:
        compare(torch.full_like(found.value, 2.0), "a constant boundary")
    if value == "by context" and plain:
        row = torch.arange(n) if isinstance(case["context"], Tensor) else torch.zeros(n)
        compare(row, "a value for each query")
    if value == "steps" and plain:
        inside = (found.value >= -slack) & (found.value <= 1 + slack)
        check(bool(inside[trusted].all()), f"the maximum principle fails: {found.value.tolist()}")
    still = operator.drift is None or case.name("drift") == "zero"
    if value == "linear" and plain and still and not walls and domain != "own":
        compare(at.sum(1), "a linear function", steps)
    if value == "harmonic" and plain and still and even and not walls and domain not in ("own", "whitened"):
        compare(at[:, 0] ** 2 - at[:, 1] ** 2, "a harmonic function", steps)
    if value == "solution" and not walls and not callable(operator.drift):
        laplace = plain and still
        if domain != "whitened" or laplace:
            compare(case["value"](at), "a solution of the equation", 3 * steps)
    if domain in ("ball", "float64") and still and even:
        assert not isinstance(operator.diffusion, Tensor)
        time = (1 - at.square().sum(1)) / (FEATURES * operator.diffusion)
        if value in ("2", "numpy"):
            k = math.sqrt(2 * rate / operator.diffusion)
            length = at.norm(dim=1).clamp_min(1e-6)
            damped = (k * length).sinh() / (length * math.sinh(k)) if rate else torch.ones(n)
            compare(2 * damped + source * ((1 - damped) / rate if rate else time), "a ball", 3 * steps)
        if found.exit_time is not None and not rate:
            error = 6 * found.exit_time_stderr + 2 * steps + 0.01 * time
            check(bool(((found.exit_time - time).abs() <= error)[trusted].all()), "another exit time")


@target(
    "landscape.check_maximum_principle",
    {"boundary": vector(), "interior": vector()},
    share=0.25,
)
def run_maximum(case: Case) -> None:
    """Compare extremes with Python's."""
    boundary, interior = case["boundary"], case["interior"]
    kept = Kept([boundary, interior])
    found = elliptica.check_maximum_principle(boundary, interior)
    kept.check()
    inner, outer = interior.double().tolist(), boundary.double().tolist()
    check(
        found.boundary_max == max(outer) and found.boundary_min == min(outer),
        "other extremes of the boundary",
    )
    check(found.interior_max == max(inner) and found.interior_min == min(inner), "other extremes inside")
    check(found.holds == (max(inner) <= max(outer)), "another verdict")
    check(found.minimum_holds == (min(inner) >= min(outer)), "another verdict on the minimum")
    share = sum(v > max(outer) for v in inner) / len(inner)
    check(abs(found.share_above - share) < 1e-12, f"a share of {found.share_above}, not {share}")


# ---- hitting times

X_DATA = (
    *ORDINARY[:3],
    ORDINARY[-1],
    fine("images", lambda case: case.normal(ROWS, FEATURES, 1)[..., 0]),
    odd("expanded", ORDINARY[3].make),
    odd("scaled", lambda case, k: case.normal(ROWS, FEATURES) * 10.0**k, st.integers(-45, 38)),
    odd("far away", lambda case: case.normal(ROWS, FEATURES) + 1e5),
    odd("bfloat16", lambda case: case.normal(ROWS, FEATURES, dtype=torch.bfloat16)),
    bad("requires grad", lambda case: case.normal(ROWS, FEATURES).requires_grad_()),
    bad("one row", lambda case: case.normal(1, FEATURES)),
    bad("integers", lambda case: torch.ones(ROWS, FEATURES).long()),
    *NOT_FINITE,
    *NO_DATA,
)


@target(
    "landscape.HittingTimes",
    {
        "x": X_DATA,
        "task": TASK,
        "y": Y,
        "model": MODEL,
        "loss": LOSS,
        "weight": WEIGHT,
        "mode": (fine("train", True), fine("eval", False)),
        "target_space": (
            fine("default", OMIT),
            fine(
                "right", lambda case: {"classes": "simplex", "real": "real", "binary": "unit"}[case["task"]]
            ),
            bad("unknown", "classes"),
            bad("upper case", "Real"),
            bad("a number", 3),
        ),
        "num_classes": (
            fine("right", lambda case: CLASSES if is_classes(case) else OMIT),
            odd("too many", CLASSES + 1),
            odd("too few", CLASSES - 1),
            odd("missing", OMIT),
            odd("text", "3"),
            odd("float", 3.0),
            odd("0", 0),
        ),
        "target_scale": reals(1.0, 0.1, 10.0, wrong=(0.0, -1.0)),
        "n_starts": (fine("6", 6), *counts(6, 1, 20)[2:]),
        "n_walks": counts(1, 3),
        "starts": names("uniform", "between"),
        "epsilon": tuple(c for c in EPSILON if c.name not in ("per point", "integers")),
        "fraction": FRACTION,
        "outer": (*names("auto", "ball", "box", "reflecting_box"), bad("a class", just(Ball))),
        "margin": MARGIN,
        "max_steps": (fine("500", 500), *counts(500, 1)[2:]),
        "given": (fine("none", False), fine("data", True)),
        "generator": GENERATOR,
    },
    share=1.5,
)
def run_hitting(case: Case) -> None:
    """Train where walks hit the data; from the data themselves it is ordinary training."""
    x, y, model, generator = case["x"], case["y"], case["model"], case["generator"]
    _hitting_clash(case)
    settings = given(case, "target_space", "num_classes", "target_scale", "n_starts", "n_walks", "starts")
    settings |= given(case, "epsilon", "fraction", "outer", "margin", "max_steps")
    weight = {} if case["weight"] is OMIT else {"sample_weight": case["weight"]}
    kept = Kept([x, y, case["weight"]], model)
    objective = elliptica.HittingTimes(model, case["loss"], x, y, **weight, **settings)
    repr(objective)
    objective.train(case["mode"])
    if isinstance(model, nn.Module):
        kept.modes = [m.training for m in model.modules()]
    own = (x, y) if case["given"] or not case["mode"] else ()
    again = copy.deepcopy(objective)
    try:
        loss = objective(*own, generator=generator)
    except OwnError:
        case.excuse()
        return
    except ValueError as error:
        if case.name("model") == "batch norm" and "more than 1 value per channel" in str(error):
            return  # one start, one row: the words of the model's own layer
        if "of the" in str(error) and "walks reached the boundary" in str(error):
            case.owe(ODD)
        raise
    except Exception as error:
        if case.owed != FINE and same_error(error, lambda: case["loss"](model(x), y)):
            case.excuse()
            return
        raise
    kept.check(
        state=case.name("model") != "batch norm",
        random=generator is not None and case.name("model") != "dropout",
    )
    check(loss.ndim == 0, "the loss is no scalar")
    if isinstance(generator, torch.Generator) and case.name("model") != "dropout":
        generator.manual_seed(case.seed)
        check(
            equal(again(*own, generator=generator).detach(), loss.detach()),
            "a second call gives another loss",
        )
    if not is_calm(case, "x", "y", "weight", "model", "loss"):
        return
    check(bool(loss.isfinite()), f"the loss of ordinary data is {float(loss)}")
    if case["mode"]:
        check(abs(sum(objective.shares.values()) - 1) < 1e-6, "the shares do not sum to one")
    plain = case.name("loss") in ("own", "function", "unreduced") and case.name("y") == "plain"
    if (
        plain
        and own
        and case.name("weight") in ("none", "None", "ones")
        and case.name("x") not in ("repeated", "expanded")
    ):
        expected = objective.loss(copy.deepcopy(model).train(case["mode"])(x), objective._encode(x, y)).mean()
        check_close(loss, expected, "the loss from the data", 1e-3)


def _hitting_clash(case: Case) -> None:
    name = case.name
    if name("num_classes") in ("too few", "missing", "text", "float", "0") and is_classes(case):
        floats = isinstance(case["y"], Tensor) and case["y"].is_floating_point()
        weighted = name("num_classes") == "missing" and name("loss") == "weighted"
        case.owe(ODD if floats or weighted else BAD)
    if name("y") in ("soft", "sums above one") and is_classes(case) and name("target_space") == "default":
        case.owe(ODD)
    if name("loss") in ("per row",) or name("y") == "soft":
        case.owe(ODD)  # the kind of targets cannot be inferred from floats
    if not case["mode"] or not case["given"]:
        case.owe(FINE)
    if case.owed == BAD:
        axes = _bad_axes(case)
        if axes <= {"generator"} and not case["mode"]:
            case.excuse()
        if axes <= {"fraction"} and case["epsilon"] not in (OMIT, None):
            case.excuse()
        if axes <= {"margin"} and name("outer") == "a class":
            case.excuse()
        if axes <= {"y", "loss"} and name("loss") in ("nan", "raises"):
            case.excuse()
    if name("target_scale") == "10" or name("max_steps") == "1" or name("y") == "constant":
        case.owe(ODD)  # walks may run out of steps
    if name("weight") == "float16":
        case.owe(ODD)
    if name("weight") == "requires grad":
        case.owe(BAD)  # walks carry no gradient


@target(
    "landscape.LossField",
    {
        "x": X_DATA,
        "task": TASK,
        "y": Y,
        "model": MODEL,
        "loss": LOSS,
        "num_classes": (
            fine("default", OMIT),
            fine("None", None),
            odd("right", CLASSES),
            *counts(CLASSES)[3:-1],
        ),
        "chunk_size": counts(3, 1, 100),
    },
    share=0.5,
)
def run_field(case: Case) -> None:
    """Evaluate the loss of each row, as a loop in evaluation mode does."""
    x, y, model, loss_fn = case["x"], case["y"], case["model"], case["loss"]
    field = LossField(model, loss_fn, **given(case, "num_classes", "chunk_size"))
    if case.name("x") in ("requires grad", "one row", "no rows", "integers", "infinite", "-inf"):
        case.excuse()  # what the model makes of them is what counts
    zeros = case.name("y") == "constant" or count_rows(case) < CLASSES
    if case.name("model") == "another width" and (zeros or case.name("loss") == "per row"):
        case.excuse()  # enough for labels of zero, and a loss of the user's may broadcast
    if isinstance(model, nn.Module):
        model.train()
    kept = Kept([x, y], model)
    if case.name("loss") == "weighted" and case["task"] == "classes" and case.name("y") == "soft":
        case.owe(ODD)
    try:
        losses = field(x, y)
    except OwnError:
        case.excuse()
        return
    except Exception as error:
        if case.owed != FINE and same_error(error, lambda: loss_fn(copy.deepcopy(model).eval()(x), y)):
            case.excuse()
            return
        raise
    kept.check()
    if not isinstance(x, Tensor) or len(x) == 0:
        return
    check(losses.shape == (len(x),) and bool(losses.isfinite().all()), "losses have another shape, or NaN")
    if (
        case.name("loss") in ("own", "function", "unreduced")
        and is_calm(case, "x", "model")
        and case.name("y") == "plain"
    ):
        own = copy.deepcopy(model).eval()
        for i in range(len(x)):
            one = loss_fn(own(x[i : i + 1]), y[i : i + 1]).mean()
            check(
                abs(float(one) - float(losses[i])) <= 1e-4 * (1 + abs(float(one))),
                "a loop finds another loss",
            )


# ---- diagnostics

HELD_OUT = (
    fine("none", OMIT),
    fine("None", None),
    fine("other rows", lambda case: _rows(case, 12)),
    fine("one row", lambda case: _rows(case, 1)),
    fine("the same rows", lambda case: (case["x"], case["y"])),
    odd("no rows", lambda case: _rows(case, 0)),
    odd("far away", lambda case: (_rows(case, 12)[0] + 1e6, _rows(case, 12)[1])),
    bad("another width", lambda case: (case.normal(12, FEATURES + 1), _rows(case, 12)[1])),
    bad("unequal rows", lambda case: (_rows(case, 12)[0], _rows(case, 11)[1])),
    bad("nan", lambda case: (_rows(case, 12)[0] * math.nan, _rows(case, 12)[1])),
    bad("a tensor", lambda case: _rows(case, 12)[0]),
    bad("x alone", lambda case: (_rows(case, 12)[0],)),
    bad("lists", lambda case: ([[0.0] * FEATURES], [0])),
    bad("text", "held out"),
)


def _rows(case: Case, n: int) -> tuple[Tensor, Tensor]:
    """Make rows like the training rows of the case."""
    x = case.normal(n, FEATURES).to(
        case["x"].dtype if isinstance(case["x"], Tensor) and case["x"].is_floating_point() else torch.float32
    )
    if case["task"] == "classes":
        return x, torch.arange(n) % CLASSES
    if case["task"] == "binary":
        return x, (case.normal(n, 1) > 0).to(x.dtype)
    return x, case.normal(n, 1).to(x.dtype)


ROWS_GROUPS = (
    fine("default", OMIT),
    fine("None", None),
    fine("integers", lambda case: torch.arange(ROWS) % 2),
    fine("names", lambda case: ["a", "b"] * (ROWS // 2)),
    fine("mixed", lambda case: ["a", 1, None, 2.5] * (ROWS // 4)),
    odd("floats", lambda case: torch.zeros(ROWS)),
    odd("numpy", lambda case: np.arange(ROWS)),
    odd("text", "abababab"),
    bad("too few", lambda case: [1, 2]),
    bad("a number", 3),
)


@target(
    "diagnostics.diagnose",
    {
        "x": X_DATA,
        "task": TASK,
        "y": Y,
        "model": MODEL,
        "loss": LOSS,
        "held_out": HELD_OUT,
        "unlabelled": (
            fine("default", OMIT),
            fine("None", None),
            fine("rows", lambda case: _rows(case, 12)[0]),
            odd("no rows", lambda case: _rows(case, 0)[0]),
            odd("far away", lambda case: _rows(case, 12)[0] + 1e6),
            bad("another width", lambda case: case.normal(12, FEATURES + 1)),
            bad("nan", lambda case: case.normal(12, FEATURES) * math.nan),
            bad("a list", [[0.0] * FEATURES]),
            bad("integers", lambda case: torch.ones(12, FEATURES).long()),
        ),
        "groups": ROWS_GROUPS,
        "held_out_groups": ROWS_GROUPS[:4],
        "class_names": (
            fine("default", OMIT),
            fine("None", None),
            odd("right", ["a", "b", "c"]),
            odd("too few", ["a"]),
            odd("numbers", [1, 2, 3]),
            odd("text", "abc"),
            odd("a number", 3),
        ),
        "feature_names": (
            fine("default", OMIT),
            fine("right", ["a", "b", "c"]),
            odd("too few", ["a"]),
            odd("None", None),
        ),
        "landscape": (fine("false", False), fine("true", True), odd("text", "yes")),
        "n": (fine("20", 20), *counts(20, 10, least=10)[2:]),
        "sigma": (
            fine("default", OMIT),
            fine("0.1", 0.1),
            fine("zero", 0.0),
            bad("negative", -1.0),
            bad("nan", math.nan),
            bad("text", "Auto"),
        ),
        "num_classes": (
            fine("default", OMIT),
            fine("None", None),
            odd("right", CLASSES),
            odd("too many", 5),
            odd("too few", 2),
            odd("text", "3"),
        ),
        "target_space": (
            fine("default", OMIT),
            fine(
                "right", lambda case: {"classes": "simplex", "real": "real", "binary": "unit"}[case["task"]]
            ),
            odd("unknown", "classes"),
        ),
        "confidence": reals(0.95, 0.5, wrong=(0.0, 1.0, 1.5, -1.0)),
        "generator": GENERATOR,
        "batch_size": counts(3, 1, 100),
        "max_rows": (fine("default", OMIT), fine("10", 10), *counts(10, least=10)[2:]),
        "device": (
            fine("default", OMIT),
            fine("cpu", "cpu"),
            fine("None", None),
            odd("cuda", "cuda"),
            odd("text", "gpu"),
            odd("meta", "meta"),
        ),
    },
    share=2.0,
)
def run_diagnose(case: Case) -> None:
    """Diagnose a model: everything stays as it is, the text has no NaN, and a second look says the same."""
    x, y, model, generator = case["x"], case["y"], case["model"], case["generator"]
    _diagnose_clash(case)
    settings = given(
        case,
        "held_out",
        "unlabelled",
        "groups",
        "held_out_groups",
        "class_names",
        "feature_names",
        "landscape",
        "n",
        "sigma",
        "num_classes",
        "target_space",
        "confidence",
        "batch_size",
        "max_rows",
        "device",
    )
    if isinstance(model, nn.Module):
        model.train()
    kept = Kept([x, y, case["held_out"], case["unlabelled"]], model)
    call = functools.partial(elliptica.diagnose, model, case["loss"], x, y, **settings)
    try:
        found = call(generator=generator)
    except OwnError:
        kept.check()
        case.excuse()
        return
    except Exception as error:
        kept.check()
        if case.owed != FINE and same_error(error, lambda: case["loss"](copy.deepcopy(model).eval()(x), y)):
            case.excuse()
            return
        raise
    kept.check()
    text = str(found)
    words = {word.strip("().,;:[]%") for word in text.lower().split()}
    check(not words & {"nan", "-nan"}, "the text says nan")
    made = json.dumps(found.to_dict(), allow_nan=True)
    check("NaN" not in made, "the record holds NaN")
    if isinstance(generator, torch.Generator):
        generator.manual_seed(case.seed)
    check(str(call(generator=generator)) == text, "a second diagnosis says something else")


def _diagnose_clash(case: Case) -> None:
    name = case.name
    if name("loss") == "per row" and not is_classes(case) and name("target_space") != "right":
        case.owe(BAD)
    if (
        name("y") == "soft"
        and is_classes(case)
        and name("loss") == "per row"
        and name("target_space") != "right"
    ):
        case.owe(BAD)
    if name("held_out") == "the same rows" and name("y") != "plain":
        case.owe(ODD)
    if name("held_out_groups") in ("integers", "names"):
        held = case["held_out"]
        case.owe(
            ODD
            if name("held_out") == "the same rows"
            else BAD
            if held in (OMIT, None) or len(held[0]) != ROWS
            else FINE
        )
    if name("x") == "float64" and name("unlabelled") == "another width":
        case.owe(BAD)
    if name("model") == "detached":
        case.owe(ODD)
    if name("class_names") in ("right", "numbers", "text") and not is_classes(case):
        case.owe(ODD)
    if name("x") == "requires grad":
        case.excuse() if _bad_axes(case) <= {"x"} else None
    if name("y") in ("beyond the classes",) and name("num_classes") == "too many":
        case.excuse()
    if name("loss") in ("nan", "raises") and _bad_axes(case) <= {"y"}:
        case.excuse()
    if case.owed == BAD and _bad_axes(case) <= {"sigma", "n"} and name("landscape") == "false":
        case.excuse()
    if name("x") == "one row":
        case.excuse()


# ---- reports


def _field(case: Case, loss_fn: nn.Module | None = None) -> LossField:
    return LossField(case["model"], own_mse(case) if loss_fn is None else loss_fn)


def own_mse(case: Case) -> nn.Module:
    """Return the squared error, which is the loss of the reports on regression."""
    return nn.MSELoss()


REAL = (fine("real", "real"),)
CALM_MODEL = tuple(
    c
    for c in MODEL
    if c.name in ("plain", "batch norm", "dropout", "frozen", "nan", "raises", "fewer rows", "a tuple")
)


def _flat_ball(case: Case, dim: int) -> Any:
    return Ball(torch.zeros(dim), 10.0)


REPORT = {
    "loss_map": lambda case, x, y: landscape.loss_map(
        _field(case), Ball(torch.zeros(FEATURES), 10.0), x, y, n_walks=20, generator=case["generator"]
    ),
    "nearest": lambda case, x, y: landscape.loss_map(
        _field(case),
        Ball(torch.zeros(FEATURES), 10.0),
        x,
        labels="nearest",
        train=(x, y),
        n_walks=20,
        generator=case["generator"],
    ),
    "occupation": lambda case, x, y: landscape.occupation_report(
        _field(case),
        Ball(torch.zeros(FEATURES + 1), 10.0),
        x,
        y,
        20,
        joint=True,
        generator=case["generator"],
    ),
    "hitting": lambda case, x, y: landscape.hitting_report(
        DataDomain(x.detach(), outer=Ball(torch.zeros(FEATURES), 10.0))
        if isinstance(x, Tensor)
        else Ball(torch.zeros(FEATURES), 10.0),
        x,
        k=2,
        n_walks=20,
        generator=case["generator"],
        max_steps=500,
    ),
    "maximum": lambda case, x, y: landscape.maximum_principle_report(_field(case), (x, y), (x, y)),
    "neighbours": lambda case, x, y: landscape.neighbour_loss(_field(case), x, (x, y), k=3),
    "ordering": lambda case, x, y: landscape.ordering_report(
        _field(case),
        Ball(torch.zeros(FEATURES + 1), 10.0),
        (x[:4], y[:4]),
        (x[4:], y[4:]),
        n_directions=16,
        n_walks=20,
        generator=case["generator"],
    ),
    "bridges": lambda case, x, y: landscape.bridge_probes(
        x, y, target_space="real", sigma=0.1, generator=case["generator"]
    ),
    "shifted": lambda case, x, y: landscape.shifted_probes(
        x, y, torch.eye(FEATURES) * 2, torch.ones(FEATURES)
    ),
    "shift bound": lambda case, x, y: landscape.shift_bound(
        _field(case),
        x,
        y,
        (None, torch.full((FEATURES,), 0.1)),
        Ball(torch.zeros(FEATURES + 1), 10.0),
        n_walks=20,
        lipschitz=2.0,
        generator=case["generator"],
    ),
    "lipschitz": lambda case, x, y: landscape.estimated_lipschitz(case["model"], x),
    "subharmonicity": lambda case, x, y: landscape.subharmonicity_report(
        _field(case), x, y, 0.1, 16, generator=case["generator"]
    ),
}


@target(
    "diagnostics.reports",
    {
        "report": tuple(fine(name, name) for name in REPORT),
        "x": tuple(c for c in X_DATA if c.name != "bfloat16"),
        "task": REAL,
        "y": tuple(c for c in Y if c.name not in ("soft", "sums above one")),
        "model": CALM_MODEL,
        "generator": GENERATOR,
    },
    share=1.5,
)
def run_reports(case: Case) -> None:
    """Make a report: nothing of the caller's changes, the text has no NaN, and it repeats."""
    name, x, y, model, generator = (case[k] for k in ("report", "x", "y", "model", "generator"))
    make = REPORT[name]
    if (
        case.owed == BAD
        and _bad_axes(case) <= {"generator"}
        and name in ("maximum", "neighbours", "shifted", "lipschitz")
    ):
        case.excuse()
    if name in ("bridges", "shifted", "hitting") and _bad_axes(case) <= {"model", "y"}:
        case.excuse() if case.owed == BAD else None
    if name in ("shifted", "lipschitz") or case.name("x") in ("requires grad", "one row"):
        case.excuse() if case.owed == BAD else None  # values are passed on as they are
    if name == "lipschitz" and case.name("model") == "fewer rows":
        case.excuse()
    if name == "ordering" and case.name("x") in (*(c.name for c in NO_DATA), "one row"):
        case.excuse()
        return  # the case itself cannot cut such rows in two
    if name == "maximum" and case.name("x") in ("infinite", "-inf", "integers"):
        case.excuse()  # the model may have a finite loss there
    if case.name("x") in ("expanded", "repeated") or case.name("y") == "constant":
        case.owe(ODD)  # there may be no region around equal points
    if isinstance(model, nn.Module):
        model.train()
    kept = Kept([x, y], model)
    try:
        found = make(case, x, y)
    except OwnError:
        kept.check(random=generator is not None)
        case.excuse()
        return
    except Exception as error:
        kept.check(random=generator is not None)
        if case.owed != FINE and same_error(error, lambda: nn.MSELoss()(copy.deepcopy(model).eval()(x), y)):
            case.excuse()
            return
        raise
    kept.check(random=case["generator"] is not None or name == "lipschitz")
    text = str(found) if not isinstance(found, tuple) else ""
    words = {word.strip("().,;:[]%") for word in text.lower().split()}
    check(not words & {"nan", "-nan"} or case.owed != FINE, f"the text says nan: {text}")
    if isinstance(generator, torch.Generator):
        generator.manual_seed(case.seed)
        check(str(make(case, x, y)) == str(found), "a second report says something else")
    if case.owed == FINE:
        _check_report(case, name, found)


def _check_report(case: Case, name: str, found: Any) -> None:
    """Compare with loops."""
    x, y, model = case["x"].detach(), case["y"], copy.deepcopy(case["model"]).eval()
    if name == "shifted":
        check_close(found[0], 2 * x + 1, "shifted inputs")
    if name == "maximum":
        check(found.check.holds, "rows violate the bound of the same rows")
    if name == "neighbours":
        points = (x.double() - x.double().mean(0)) / x.double().std(0, correction=0).clamp_min(1e-300)
        for i in range(ROWS):
            near = (points - points[i]).norm(dim=1).argsort()[:3]
            losses = [(model(x[i : i + 1]) - y[j : j + 1]).square().mean() for j in near]
            if case.name("x") in ("plain", "float64"):
                gap = abs(float(torch.stack(losses).mean()) - float(found.loss[i]))
                check(gap < 1e-4 * (1 + float(found.loss[i])), "a loop finds another loss of the neighbours")


@target(
    "diagnostics.weights_report",
    {
        "log_weights": (
            *vector(),
            fine("bridges", lambda case: case.normal(4, 3)),
            fine("some zero", lambda case: torch.tensor([0.0, -math.inf, -1.0])),
            odd("huge", lambda case: case.normal(ROWS) * 1e4),
            bad("one bridge", lambda case: case.normal(4, 1)),
            bad("all zero", lambda case: torch.full((4,), -math.inf)),
            bad("images", lambda case: case.normal(4, 3, 2)),
        ),
    },
    share=0.15,
)
def run_weights_report(case: Case) -> None:
    """Judge weights; their effective number is that of a loop."""
    logs = case["log_weights"]
    if case.name("log_weights") in ("one",):
        case.owe(BAD)
    if case.name("log_weights") == "a column":
        case.owe(BAD)
    kept = Kept([logs])
    found = landscape.weights_report(logs)
    kept.check()
    text = str(found)
    check("nan" not in text.lower().split(), "the text says nan")
    if case.owed != FINE:
        return
    rows = (logs[None] if logs.ndim == 1 else logs).detach().double()
    shares = [(row - row.max()).exp() / (row - row.max()).exp().sum() for row in rows]
    effective = sum(float(1 / share.square().sum()) for share in shares)
    mean = float(rows.exp().mean()) if logs.ndim == 1 else None
    error = None if mean is None else float(rows.exp().std()) / math.sqrt(rows.numel())
    for found_, wanted in (
        (found.effective, effective),
        (found.effective_share, effective / rows.numel()),
        (found.largest_share, max(float(share.max()) for share in shares)),
        (found.mean_weight, mean),
        (found.mean_stderr, error),
    ):
        same = found_ is wanted if wanted is None else abs(found_ - wanted) <= 1e-5 * abs(wanted) + 1e-9
        check(same, f"{found_}, not {wanted}")


@target(
    "diagnostics.certified_lipschitz",
    {
        "model": (
            fine("plain", lambda case: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))),
            fine(
                "nested",
                lambda case: nn.Sequential(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), nn.Linear(5, 1)),
            ),
            fine(
                "float64", lambda case: nn.Sequential(nn.Linear(3, 5), nn.ELU(2.0), nn.Linear(5, 2)).double()
            ),
            fine("linear", lambda case: nn.Linear(3, 2)),
            odd("nan", lambda case: _nan_layer()),
            odd("half", lambda case: nn.Linear(3, 2).half()),
            odd("no inputs", lambda case: nn.Linear(0, 2)),
            bad("convolution", lambda case: nn.Conv1d(1, 1, 1)),
            bad("softmax", lambda case: nn.Sequential(nn.Linear(3, 2), nn.Bilinear(2, 2, 2))),
            bad("a function", just(lambda x: x)),
            bad("None", None),
        ),
    },
    share=0.1,
)
def run_lipschitz(case: Case) -> None:
    """Certify a Lipschitz constant: slopes between random points never exceed it."""
    model = case["model"]
    bound = landscape.certified_lipschitz(model)
    check(math.isfinite(bound) and bound >= 0, f"the constant is {bound}")
    if case.owed != FINE:
        return
    x = case.normal(64, 3, dtype=next(model.parameters()).dtype)
    with torch.no_grad():
        slopes = (model(x[:32]) - model(x[32:])).norm(dim=1) / (x[:32] - x[32:]).norm(dim=1)
    check(float(slopes.max()) <= bound * (1 + 1e-5), "two points are steeper than the constant")
    check(landscape.estimated_lipschitz(model, x) <= bound * (1 + 1e-5), "the estimate exceeds the bound")


def _nan_layer() -> nn.Module:
    layer = nn.Linear(3, 2)
    nn.init.constant_(layer.weight, math.nan)
    return layer


# ---- several processes


@target(
    "distributed.shard",
    {
        "value": (
            fine("a tensor", lambda case: case.normal(ROWS, FEATURES)),
            fine("a tuple", lambda case: (case.normal(ROWS, FEATURES), torch.arange(ROWS))),
            fine("a dict", lambda case: {"a": case.normal(ROWS, 2), "b": None}),
            fine("a list", lambda case: [case.normal(ROWS), case.normal(ROWS + 3)]),
            fine("None", None),
            bad("0-d", lambda case: torch.tensor(1.0)),
            bad("no rows", lambda case: case.normal(0, 2)),
            bad("numpy", lambda case: np.ones(ROWS)),
            bad("text", "rows"),
            bad("a number", 3),
            bad("a tuple with text", lambda case: (case.normal(ROWS), "y")),
            bad("a set", lambda case: {1, 2}),
        ),
        "size": (fine("1", 1), fine("2", 2), fine("3", 3), fine("8", 8), odd("9", 9)),
    },
    share=0.15,
)
def run_shard(case: Case) -> None:
    """Split rows among processes: together they are all rows, in order."""
    value, size = case["value"], case["size"]
    parts = [distributed.shard(value, distributed.Ranks(rank, size)) for rank in range(size)]
    if value is None:
        check(parts == [None] * size, "None does not stay None")
        return
    leaves = [list(Kept._leaves(part)) for part in parts]
    for i, whole in enumerate(Kept._leaves(value)):
        check(equal(torch.cat([leaf[i] for leaf in leaves]), whole), "the parts are not the whole")
        sizes = [len(leaf[i]) for leaf in leaves]
        check(max(sizes) - min(sizes) <= 1, "parts differ by more than one row")


@target(
    "distributed.one_process",
    {
        "objective": (
            fine("elliptic", lambda case: _elliptic()),
            bad("another", lambda case: elliptica.BridgeMix(target_space="real", sigma=0.1)),
            bad("a model", lambda case: nn.Linear(FEATURES, 1)),
            bad("a class", just(elliptica.Elliptic)),
            bad("None", None),
        ),
        "seed": (
            fine("0", 0),
            fine("huge", 2**70),
            fine("negative", -1),
            odd("text", "seed"),
            odd("float", 1.5),
            odd("None", None),
        ),
        "rank": (fine("None", None), fine("3", 3), odd("negative", -1), odd("text", "first")),
    },
    share=0.1,
)
def run_one_process(case: Case) -> None:
    """In a single process nothing changes: neither with a global batch nor with rows that are split."""
    objective = case["objective"]
    x, y = case.normal(ROWS, FEATURES), case.normal(ROWS, 1)

    def loss() -> Tensor:
        return objective(x, y, generator=distributed.rank_generator(case["seed"], case["rank"]))

    if isinstance(objective, elliptica.Elliptic):
        before = loss().detach()
    check(distributed.over_global_batch(objective) is objective, "another objective is returned")
    check(equal(loss().detach(), before), "a global batch of one process changes the loss")
    with distributed.split_rows(objective.model) as model:
        check(model is objective.model and equal(loss().detach(), before), "split rows change the loss")
    check("forward" not in vars(objective.model), "a forward pass stays replaced")


def _elliptic() -> elliptica.Elliptic:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, 1))
    return elliptica.Elliptic(model, nn.MSELoss(), weighting="gradient_softmax")


def _trained(width: int = 4, kind: Any = torch.optim.Adam) -> tuple[nn.Module, Any]:
    """Make a network and its optimiser after two steps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(width)
        model = nn.Sequential(nn.Linear(FEATURES, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
        optimizer = kind(model.parameters(), lr=0.01)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(ROWS, FEATURES)).square().mean().backward()
            optimizer.step()
    return model, optimizer


def _edit(**changes: Any) -> Callable[[Path, Case], None]:
    """Change entries of the description."""

    def damage(path: Path, case: Case) -> None:
        file = path / "checkpoint.json"
        description = json.loads(file.read_text())
        for name, value in changes.items():
            if value is OMIT:
                del description[name]
            else:
                description[name] = value
        file.write_text(json.dumps(description))

    return damage


def _tensor_file(path: Path) -> Path:
    return next(file for file in sorted(path.iterdir()) if file.suffix == ".safetensors")


def _flip(path: Path, case: Case) -> None:
    file = _tensor_file(path)
    data = bytearray(file.read_bytes())
    place = len(data) - 1 - case.stream.randrange(min(len(data), 64))  # in a tensor, which looks sound
    data[place] ^= 1 << case.stream.randrange(8)
    file.write_bytes(data)


def _cut(path: Path, case: Case) -> None:
    file = _tensor_file(path)
    file.write_bytes(file.read_bytes()[: case.stream.randrange(file.stat().st_size)])


def _cut_description(path: Path, case: Case) -> None:
    file = path / "checkpoint.json"
    file.write_bytes(file.read_bytes()[: case.stream.randrange(file.stat().st_size - 1)])


def _garbage(text: bytes) -> Callable[[Path, Case], None]:
    return lambda path, case: (path / "checkpoint.json").write_bytes(text) and None


def _nothing(path: Path, case: Case) -> None:
    return None


def _folder_description(path: Path, case: Case) -> None:
    (path / "checkpoint.json").unlink()
    (path / "checkpoint.json").mkdir()


def _resealed(change: Callable[[bytes], bytes]) -> Callable[[Path, Case], None]:
    """Change the tensors and their digest, as whoever edits a checkpoint on purpose would."""

    def damage(path: Path, case: Case) -> None:
        import hashlib

        file = _tensor_file(path)
        file.write_bytes(change(file.read_bytes()))
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        files = json.loads((path / "checkpoint.json").read_text())["files"]
        _edit(files={**files, file.name: digest})(path, case)

    return damage


DAMAGE = (
    fine("none", just(_nothing)),
    fine("left over", just(lambda path, case: (path.parent / ".writing").mkdir())),
    fine(
        "a stray file", just(lambda path, case: (path.parent / "checkpoint-000009").write_text("x") and None)
    ),
    fine("a stray folder", just(lambda path, case: (path.parent / "checkpoint-x").mkdir())),
    bad("a flipped bit", just(_flip)),
    bad("cut short", just(_cut)),
    bad("no tensors", just(lambda path, case: _tensor_file(path).unlink())),
    bad("one file more", just(lambda path, case: (path / "more.safetensors").write_text("x") and None)),
    bad("no description", just(lambda path, case: (path / "checkpoint.json").unlink())),
    bad("half a description", just(_cut_description)),
    bad("an empty description", just(_garbage(b""))),
    bad("no JSON", just(_garbage(b"\xff\xfe\x00"))),
    bad("a JSON list", just(_garbage(b"[]"))),
    bad("nested", just(_garbage(b"[" * 100_000))),
    bad("a folder instead", just(_folder_description)),
    bad("another format", just(_edit(format=99))),
    bad("no step", just(_edit(step=OMIT))),
    bad("files are numbers", just(_edit(files=3))),
    bad("files are a list", just(_edit(files=["checkpoint.json"]))),
    bad("values are missing", just(_edit(values=OMIT))),
    bad("values are text", just(_edit(values="x"))),
    bad("values are empty", just(_edit(values={}))),
    bad("extra is a list", just(_edit(extra=[1]))),
    bad("step is text", just(_edit(step="one"))),
    bad("world_size is text", just(_edit(world_size="one"))),
    odd("world_size is two", just(_edit(world_size=2))),
    bad("resealed garbage", just(_resealed(lambda data: b"garbage" * 10))),
    bad("resealed and cut", just(_resealed(lambda data: data[:-8]))),
    bad("resealed and empty", just(_resealed(lambda data: b""))),
    bad("an empty folder", just(lambda path, case: [file.unlink() for file in path.iterdir()] and None)),
)


@target(
    "distributed.checkpoint",
    {
        "damage": DAMAGE,
        "folder": (
            fine("new", lambda case: case.folder / "a" / "b"),
            fine("text", lambda case: str(case.folder / "a")),
            fine("there already", lambda case: case.folder),
            bad("a file", lambda case: _made_file(case)),
            bad("below a file", lambda case: _made_file(case) / "a"),
            bad("a number", 3.5),
            bad("None", None),
            bad("nul", "a\0b"),
        ),
        "step": (
            fine("1", 1),
            fine("0", 0),
            fine("numpy", np.int64(5)),
            odd("negative", -1),
            odd("huge", 10**30),
            odd("float", 1.5),
            odd("nan", math.nan),
            odd("text", "one"),
            odd("None", None),
            odd("a tensor", torch.tensor(3)),
        ),
        "extra": (
            fine("default", OMIT),
            fine("values", {"epoch": 3, "name": "ä", "list": [1, None]}),
            fine("None", None),
            odd("nan", {"loss": math.nan}),
            odd("a tuple", {"pair": (1, 2)}),
            odd("integer keys", {1: 2}),
            bad("a tensor", lambda case: {"w": torch.ones(2)}),
            bad("an object", lambda case: {"o": object()}),
            bad("a list", [1, 2]),
            bad("text", "extra"),
        ),
        "keep": counts(1, 2),
        "generators": (
            fine("default", OMIT),
            fine("noise", lambda case: {"noise": torch.Generator().manual_seed(case.seed)}),
            fine("odd name", lambda case: {"a.b c/ä": torch.Generator().manual_seed(1)}),
            bad("a seed", {"noise": 3}),
            bad("a list", lambda case: [torch.Generator()]),
        ),
        "optimizer": (fine("adam", just(torch.optim.Adam)), fine("sgd", just(torch.optim.SGD))),
        "resume": (
            fine("the same", "same"),
            bad("another width", "width"),
            bad("another optimiser", "optimizer"),
            bad("more streams", "streams"),
        ),
    },
    share=1.2,
)
def run_checkpoint(case: Case) -> None:
    """Save, damage, and load again: all comes back, or an error that changes nothing."""
    kind = case["optimizer"]
    model, optimizer = _trained(kind=kind)
    settings = given(case, "extra", "keep", "generators")
    folder, step = case["folder"], case["step"]
    kept = Kept([], model)
    path = distributed.save_checkpoint(folder, model, optimizer, step=step, **settings)
    kept.check()
    case["damage"](path, case)
    width = 5 if case["resume"] == "width" else 4
    other = torch.optim.SGD if kind is torch.optim.Adam else torch.optim.Adam
    fresh, its = _trained(width, other if case["resume"] == "optimizer" else kind)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.add_(1.0)
    streams = {name: torch.Generator().manual_seed(99) for name in settings.get("generators") or {}}
    if case["resume"] == "streams":
        streams["unknown"] = torch.Generator()
    before = Kept([], fresh)
    states = [stream.get_state() for stream in streams.values()]
    optim = copy.deepcopy(its.state_dict())
    try:
        found = distributed.load_checkpoint(folder, fresh, its, generators=streams)
    except Exception:
        before.check()
        check(_same_state(its.state_dict(), optim), "an error changed the optimiser")
        check(
            all(map(torch.equal, states, (s.get_state() for s in streams.values()))),
            "an error changed a stream",
        )
        raise
    if case.owed == BAD:
        return
    check(found is not None, "the checkpoint was not found")
    assert found is not None
    wanted = {name: value for name, value in model.state_dict().items()}
    for name, value in fresh.state_dict().items():
        check(equal(value, wanted[name]), f"{name} came back as something else")
    check(_same_state(its.state_dict(), optimizer.state_dict()), "the optimiser came back as something else")
    if case.owed == FINE:
        check(
            found.step == step and isinstance(found.step, int), f"step {step!r} came back as {found.step!r}"
        )
        check(found.extra == (settings.get("extra") or {}), "the extra values came back as others")
        for name, stream in (settings.get("generators") or {}).items():
            check(torch.equal(stream.get_state(), streams[name].get_state()), "a stream did not resume")
    else:
        check(equal(found.step, step) or found.step == step, f"step {step!r} came back as {found.step!r}")


def _same_state(first: Any, second: Any) -> bool:
    """Compare nested states."""
    if isinstance(first, dict):
        first, second = ({k: v for k, v in each.items() if not _is_nothing(v)} for each in (first, second))
        return first.keys() == second.keys() and all(_same_state(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_same_state, first, second))
    return equal(first, second)


def _is_nothing(value: Any) -> bool:
    """Tell whether an entry of a state is empty, such as the buffers of gradient descent without momentum."""
    return value is None or (isinstance(value, dict) and all(map(_is_nothing, value.values())))


def _made_file(case: Case) -> Path:
    file = case.folder / "file"
    file.write_text("x")
    return file
