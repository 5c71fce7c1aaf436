"""Hostile tensors, losses, models and settings for the core and for the partners among many rows.

The objective is compared with the loops of ``tests/reference.py``; the samplers with their laws, written out
here row by row, and with relations that must hold between two calls.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import elliptica
import reference
from adversary.cases import BAD, FINE, ODD, Case, Choice, bad, check, check_close, fine, just, odd, target
from elliptica import Elliptic
from elliptica.core.epoch import epoch_paths
from elliptica.core.formulations import DynkinSum, SourceTerm
from elliptica.core.settings import Settings
from elliptica.partner_index import PairBatchSampler, PartnerIndex, split_pairs, swapped_partners

ROWS, FEATURES, CLASSES = 6, 3, 4
DRAWS = 1500  # for a law that is compared with frequencies

# ---------------------------------------------------------------------------------------------- values


def _put(shape: tuple[int, ...], value: float) -> Callable[[Case], Tensor]:
    """Put one value into otherwise ordinary numbers."""

    def make(case: Case) -> Tensor:
        x = case.normal(*shape)
        x.view(-1)[x.numel() // 2] = value
        return x

    return make


def _in_inference(make: Callable[[Case], Tensor]) -> Callable[[Case], Tensor]:
    def made(case: Case) -> Tensor:
        with torch.inference_mode():
            return make(case).clone()

    return made


def no_tensors(*shape: int) -> tuple[Choice, ...]:
    """Return values that are not ordinary tensors, or hold no ordinary numbers."""
    size = shape or (ROWS, FEATURES)
    return (
        bad("nan", _put(size, math.nan)),
        bad("infinite", _put(size, math.inf)),
        bad("minus infinite", _put(size, -math.inf)),
        bad("no rows", lambda case: case.normal(0, *size[1:])),
        bad("0-d", torch.tensor(0.5)),
        bad("a list", lambda case: case.normal(*size).tolist()),
        bad("an array", lambda case: case.normal(*size).numpy()),
        bad("None", None),
        bad("text", "0.5"),
        bad("complex", lambda case: torch.ones(size, dtype=torch.complex64)),
        bad("sparse", lambda case: case.normal(*size).to_sparse()),
        bad("meta", lambda case: torch.empty(size, device="meta")),
        bad("quantised", lambda case: torch.quantize_per_tensor(case.normal(*size), 0.1, 0, torch.qint8)),
        bad("float8", lambda case: case.normal(*size).to(torch.float8_e4m3fn)),
        bad("nested", lambda case: torch.nested.nested_tensor([case.normal(*size[1:], 2)] * size[0])),
    )


def points(*shape: int) -> tuple[Choice, ...]:
    """Return inputs, from harmless to hostile."""
    size = shape or (ROWS, FEATURES)
    wide = (*size[:-1], 2 * size[-1])
    return (
        fine("plain", lambda case: case.normal(*size)),
        fine("float64", lambda case: case.normal(*size, dtype=torch.float64)),
        fine("float16", lambda case: case.normal(*size, dtype=torch.float16)),
        fine("bfloat16", lambda case: case.normal(*size, dtype=torch.bfloat16)),
        fine("strided", lambda case: case.normal(*wide)[..., ::2]),
        fine("transposed", lambda case: case.normal(*size[::-1]).permute(*range(len(size))[::-1])),
        fine("learnt", lambda case: nn.Parameter(case.normal(*size))),
        fine("one feature", lambda case: case.normal(*size[:-1], 1)),
        fine("images", lambda case: case.normal(*size, 2, 2)),
        fine("no feature axis", lambda case: case.normal(size[0])),
        odd("inference", _in_inference(lambda case: case.normal(*size))),
        odd("scaled", lambda case, k: case.normal(*size) * 10.0**k, st.integers(-45, 38)),
        odd("shifted", lambda case, k: case.normal(*size) + 10.0**k, st.integers(1, 12)),
        odd("constant", lambda case: torch.full(size, 3.0)),
        odd("expanded", lambda case: case.normal(1, *size[1:]).expand(*size)),
        odd("copies", lambda case: case.normal(2, *size[1:]).repeat(size[0], *[1] * (len(size) - 1))),
        odd("one row", lambda case: case.normal(1, *size[1:])),
        odd("two rows", lambda case: case.normal(2, *size[1:])),
        odd("no features", lambda case: case.normal(*size[:-1], 0)),
        bad("integers", lambda case: torch.arange(math.prod(size)).view(size)),
        bad("booleans", lambda case: case.normal(*size) > 0),
        *no_tensors(*size),
    )


#: What is not a positive or nonnegative number.
NO_NUMBERS: dict[str, Any] = {
    "-1": -1,
    "nan": math.nan,
    "inf": math.inf,
    "True": True,
    "text": "0.1",
    "a list": [0.1],
    "complex": 1j,
    "a matrix": torch.ones(2, 7),
    "integers": torch.tensor([1, 2, 3]),
    "nan tensor": torch.tensor([0.1, math.nan, 0.1]),
}
#: What is no count.
NO_COUNTS: dict[str, Any] = {
    "0": 0,
    "-1": -1,
    "2.5": 2.5,
    "2.0": 2.0,
    "nan": math.nan,
    "True": True,
    "text": "2",
    "None": None,
    "0-d": torch.tensor(2),
}
#: What is no name of anything.
NO_NAMES: dict[str, Any] = {"None": None, "empty": "", "0": 0, "a list": ["all"], "True": True}
NO_FLAGS: dict[str, Any] = {"text": "no", "None": None, "2": 2, "0.5": 0.5}


def refused(values: Mapping[str, Any], *without: str) -> tuple[Choice, ...]:
    """Make choices that must raise."""
    return tuple(bad(name, just(value)) for name, value in values.items() if name not in without)


COUNTS = (
    fine("1", 1),
    fine("2", 2),
    fine("3", 3),
    fine("numpy", lambda case: np.int64(2)),
    *refused(NO_COUNTS),
)
POWERS = (
    fine("1", 1.0),
    fine("drawn", lambda case, v: v, st.floats(0, 8)),
    fine("0", 0),
    fine("numpy", lambda case: np.float32(2)),
    odd("huge", 1e6),
    odd("0-d", torch.tensor(2.0)),
    *refused(NO_NUMBERS, "inf"),
    bad("None", None),
)
GENERATORS = (
    fine("seeded", lambda case: torch.Generator().manual_seed(case.seed)),
    fine("None", None),
    *refused({"a number": 3, "numpy": np.random.default_rng(0), "text": "cpu"}),
)
LABELS = (
    fine("none", None),
    fine("classes", lambda case: torch.randint(2, (len(case["x"]),), generator=case.generator)),
    fine("int8", lambda case: torch.randint(2, (len(case["x"]),), generator=case.generator).to(torch.int8)),
    fine("all different", lambda case: torch.arange(len(case["x"]))),
    fine("all alike", lambda case: torch.zeros(len(case["x"]), dtype=torch.long)),
    fine("negative", lambda case: torch.arange(len(case["x"])) % 2 - 1),
    odd("booleans", lambda case: torch.arange(len(case["x"])) % 2 == 0),
    bad("too few", lambda case: torch.zeros(len(case["x"]) - 1, dtype=torch.long)),
    bad("floating", lambda case: torch.zeros(len(case["x"]))),
    bad("two axes", lambda case: torch.zeros(len(case["x"]), 1, dtype=torch.long)),
    bad("a list", lambda case: [0] * len(case["x"])),
    bad("text", "abc"),
)
AMONG = (fine("all", "all"), fine("same", "same_class"), fine("other", "other_class"), bad("case", "All"))
AMONG += (bad("part", "same"), *refused(NO_NAMES))


def tamed(axis: tuple[Choice, ...], most: int = 1) -> tuple[Choice, ...]:
    """Keep few of the choices that must be refused, where another target tries them all."""
    spared = [each for each in axis if each.owed == BAD][most:]
    return tuple(each for each in axis if each not in spared)


def has_rows(case: Case, axis: str = "x") -> bool:
    """Tell whether a value has rows that other choices can count."""
    try:
        return len(case[axis]) > 0
    except (TypeError, RuntimeError):
        return False


def hostile(case: Case, *axes: str) -> bool:
    """Tell whether a choice on one of these axes must be refused."""
    return any(case.target.choice(axis, case.name(axis)).owed == BAD for axis in axes)


# ------------------------------------------------------------------------------------------- relations


@contextlib.contextmanager
def untouched(*values: Any) -> Iterator[None]:
    """Raise `Wrong` if a call changes the caller's tensors, or draws although it refuses the call."""
    tensors = [v for v in values if isinstance(v, Tensor) and v.layout == torch.strided and not v.is_nested]
    tensors = [v for v in tensors if v.device.type == "cpu" and not v.is_quantized]
    before = [v.detach().clone().contiguous().view(-1).view(torch.uint8) for v in tensors if v.numel()]
    streams = [v for v in values if isinstance(v, torch.Generator)]
    states = [v.get_state() for v in streams]
    try:
        yield
    except (TypeError, ValueError):
        for stream, state in zip(streams, states, strict=True):
            check(torch.equal(stream.get_state(), state), "an error drew from the generator")
        raise
    finally:
        now = [v.detach().contiguous().view(-1).view(torch.uint8) for v in tensors if v.numel()]
        for old, new in zip(before, now, strict=True):
            check(torch.equal(old, new), "the caller's tensor was changed")


def digits(x: Tensor) -> float:
    """Return a tolerance for results in the dtype of ``x``."""
    return {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3}.get(x.dtype, 3e-2)


def near(found: Tensor, expected: Tensor, message: str, tolerance: float, floor: float = 0.0) -> None:
    """Compare as `check_close`, but ignore differences below ``floor``, such as subnormal rounding."""
    found, expected = found.detach().double(), expected.detach().double()
    if found.shape == expected.shape and bool(((found - expected).abs() <= floor).all()):
        return
    check_close(found, expected, message, tolerance)


def again(case: Case, call: Callable[[torch.Generator | None], Any], found: Any) -> None:
    """Check that the same generator gives the same result."""
    if case.name("generator") == "seeded":
        same = call(torch.Generator().manual_seed(case.seed))
        for one, other in zip(leaves(found), leaves(same), strict=True):
            check(torch.equal(one, other), "the same generator gives another result")


def leaves(value: Any) -> list[Tensor]:
    """Return the tensors in a nested value."""
    if isinstance(value, Tensor):
        return [torch.nan_to_num(value.detach())]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, tuple | list) else []


def flat(x: Tensor) -> Tensor:
    """Return rows as vectors in float64."""
    return x.detach().double().reshape(len(x), -1)


# ------------------------------------------------------------------------------------- noise and targets


@target(
    "auto_sigma",
    {
        "x": points(),
        "factor": (
            fine("default", 0.1),
            fine("0", 0),
            fine("numpy", lambda case: np.float64(2.0)),
            *refused(NO_NUMBERS, "nan tensor", "a matrix", "integers"),
            bad("None", None),
        ),
    },
    share=0.3,
)
def run_auto_sigma(case: Case) -> None:
    """A share of the standard deviation of each feature."""
    x = case["x"]
    with untouched(x):
        sigma = elliptica.auto_sigma(x, case["factor"])
    check(bool(torch.isfinite(sigma).all()), "sigma is not finite")
    check(sigma.shape == x.shape[1:] and sigma.dtype == x.dtype, "sigma has another shape or dtype")
    size = x.detach().double().abs().max() if x.numel() else torch.zeros(())
    expected = x.detach().double().std(0) * case["factor"]
    # a mean in the dtype of x is only so accurate
    near(sigma, expected, "sigma", max(digits(x), 1e-5), 1e-45 + float(size) * 1e-6)


@target(
    "project_to_simplex",
    {
        "y": (*points(), fine("one class", lambda case: case.normal(5, 1)), odd("zeros", torch.zeros(2, 3))),
        "how": (fine("abs", "abs"), fine("euclidean", "euclidean"), bad("case", "Abs"), *refused(NO_NAMES)),
    },
    share=0.4,
)
def run_project_to_simplex(case: Case) -> None:
    """The nearest point of the simplex, or absolute values over their sum."""
    y, how = case["y"], case["how"]
    if case.name("y") == "no rows":
        case.excuse()  # no batch axis is needed here
    with untouched(y):
        found = elliptica.project_to_simplex(y, how)
    check(found.shape == y.shape and found.dtype == y.dtype, "another shape or dtype")
    expected = torch.tensor(
        [projected(row.tolist(), how) for row in y.detach().double().reshape(-1, y.shape[-1])],
        dtype=torch.float64,
    ).reshape(y.shape)
    near(found, expected, "projection", 0.0, max(digits(y), 1e-6))


def projected(row: list[float], how: str) -> list[float]:
    """Project one point, the euclidean case by bisection for the shift."""
    if how == "abs":
        largest = max(map(abs, row))
        total = math.fsum(abs(v) / largest for v in row) if largest else 0.0
        return [abs(v) / largest / total for v in row] if largest else [1 / len(row)] * len(row)
    top = max(row)
    low, high = -1.0, 0.0  # the shift below the largest entry
    for _ in range(200):
        middle = (low + high) / 2
        if math.fsum(max(v - top - middle, 0.0) for v in row) > 1:
            low = middle
        else:
            high = middle
    return [max(v - top - high, 0.0) for v in row]


@target(
    "intrinsic_dimension",
    {
        "x": (
            fine("plain", lambda case: case.normal(40, FEATURES)),
            fine("a line", lambda case: torch.linspace(0, 1, 40)[:, None] ** 2 * torch.ones(1, 3)),
            *points(12, FEATURES)[1:],
        ),
        "discard": (
            fine("0.1", 0.1),
            fine("0", 0),
            fine("drawn", lambda case, v: v, st.floats(0, 0.9)),
            *refused(NO_NUMBERS),
            bad("1", 1),
            bad("None", None),
        ),
    },
    share=0.3,
)
def run_intrinsic_dimension(case: Case) -> None:
    """TwoNN by loops."""
    x, discard = case["x"], case["discard"]
    with untouched(x):
        found = elliptica.intrinsic_dimension(x, discard=discard)
    rows = flat(x).unique(dim=0)
    apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").sort(1).values
    ratios = (apart[:, 2] / apart[:, 1]).log().sort().values
    kept = max(int(len(rows) * (1 - discard)), 1)
    expected = kept / (ratios[:kept].sum() + (len(rows) - kept) * ratios[kept - 1])
    check(math.isfinite(found) and found > 0, f"the dimension is {found}")
    if case.name("x") not in ("scaled", "shifted", "copies"):
        check_close(torch.tensor(found), expected, "dimension", 1e-3)


@target(
    "Green and Screened",
    {
        "law": (fine("green", just(elliptica.Green)), fine("screened", just(elliptica.Screened))),
        "scale": (
            fine("1", 1.0),
            fine("0", 0),
            fine("drawn", lambda case, v: v, st.floats(0, 3)),
            *refused(NO_NUMBERS, "nan tensor", "a matrix", "integers"),
        ),
        "dim": (
            fine("None", None),
            fine("3", 3),
            fine("drawn", lambda case, v: v, st.floats(3, 40)),
            fine("numpy", lambda case: np.float32(5)),
            *refused(NO_NUMBERS, "nan tensor", "a matrix", "integers"),
            bad("0", 0),
            odd("2", 2),
        ),
        "rate": (
            fine("2", 2.0),
            fine("drawn", lambda case, v: v, st.floats(1e-3, 1e3)),
            odd("tiny", 1e-300),
            odd("huge", 1e30),
            *refused(NO_NUMBERS, "nan tensor", "a matrix", "integers"),
            bad("0", 0),
        ),
        "x": points()[:20],
    },
    share=0.5,
)
def run_pair_laws(case: Case) -> None:
    """A variance for each pair: ends stay, the scale scales, equal ends do not move."""
    law, x = case["law"], case["x"]
    if law is elliptica.Green:
        if not hostile(case, "scale", "dim"):
            case.excuse()
        elif case.name("rate") not in ("2", "drawn"):
            case.owe(BAD)
        dim = case["dim"]
        if (dim is not None and isinstance(dim, int | float) and dim < 3) or (
            dim is None and x[0].numel() < 3
        ):
            case.owe(BAD)
        made = law(scale=case["scale"], dim=dim)
    else:
        made = law(rate=case["rate"], scale=case["scale"], dim=case["dim"])
    end = x.detach().flip(0)

    def draw(sigma: Any) -> Tensor:
        generator = torch.Generator().manual_seed(case.seed)
        return elliptica.sample_bridge(x, end, sigma=sigma, n_times=4, generator=generator).detach().double()

    found = draw(made)
    if x.numel() == 0:
        return
    chord = elliptica.sample_bridge(x, end, sigma=0.0, n_times=4).detach().double()
    check(bool(torch.isfinite(found).all()), "points are not finite")
    if case["scale"] == 0:
        near(found, chord, "a scale of zero", digits(x))
    unit = draw(dataclasses.replace(made, scale=1.0))
    apart, once = found - chord, unit - chord
    floor = 1e-44 + 3 * digits(x) * float(torch.cat([chord.abs(), found.abs(), unit.abs()]).max())
    near(apart, once * float(case["scale"]), "noise scales with scale", max(digits(x), 1e-6), floor)
    still = (flat(x) == flat(end)).all(1)
    check(not bool(apart[still].any()), "a pair of equal points moved")
    ordinary = case.target.choice("x", case.name("x")).owed == FINE and case.owed != BAD
    if ordinary and float(case["scale"]) > 0.1 and x.dtype in (torch.float32, torch.float64):
        _check_variances(made, x.detach()[:2], end[:2])


def _check_variances(law: elliptica.Green | elliptica.Screened, x: Tensor, end: Tensor) -> None:
    """Compare the mean logarithm of squared noise with that of the density of the variance, on a grid."""
    r = (flat(end) - flat(x)).norm(dim=1)
    features = flat(x).shape[1]
    n = float(features if law.dim is None else law.dim)
    rate = getattr(law, "rate", 0.0)
    paths = elliptica.sample_bridge(x, end, sigma=law, n_times=3, n_bridges=2000)[:, :, 1].detach().double()
    middle = (x.double() + end.double())[:, None] / 2
    found = ((paths - middle) * 2 / law.scale).reshape(len(x), 2000, -1).square().sum(2).log()
    for row, length in zip(found, r.tolist(), strict=True):
        if length == 0 or rate * length**2 > 1e3:
            continue
        log_v = torch.linspace(-60, 60, 20_001, dtype=torch.float64) + 2 * math.log(length)
        weight = ((1 - n / 2) * log_v - length**2 / 2 * (-log_v).exp() - rate * log_v.exp()).softmax(0)
        half = torch.tensor(features / 2, dtype=torch.float64)  # the noise is chi-squared times the variance
        mean = float((weight * log_v).sum() + math.log(2) + torch.special.digamma(half))
        spread = float((weight * (log_v - (weight * log_v).sum()) ** 2).sum() + torch.polygamma(1, half))
        gap = abs(float(row.mean()) - mean)
        slack = 6 * math.sqrt(spread / len(row)) + 1e-3
        check(gap <= slack, f"log-variances have the mean {float(row.mean())}, not {mean}")


# ------------------------------------------------------------------------------------------- schedules


@target(
    "schedules",
    {
        "epochs": (
            fine("4", 4),
            fine("drawn", lambda case, n: n, st.integers(1, 100)),
            fine("numpy", lambda case: np.int64(3)),
            *refused(NO_COUNTS, "0", "2.0"),
            odd("2.0", 2.0),
        ),
        "start": (
            fine("0", 0.0),
            fine("drawn", lambda case, v: v, st.floats(0, 5)),
            *refused(NO_NUMBERS),
        ),
        "end": (fine("1", 1.0), fine("drawn", lambda case, v: v, st.floats(0, 5)), *refused(NO_NUMBERS)),
        "epoch": (
            fine("2", 2),
            fine("drawn", lambda case, n: n, st.integers(0, 300)),
            *refused({"text": "1", "None": None, "nan": math.nan, "-1": -1, "1.5": 1.5, "True": True}),
        ),
        "kind": (fine("ramp", "ramp"), fine("off", "off"), fine("own", "own")),
        "own": (
            fine("None", None),
            fine("0.5", 0.5),
            *refused({"-1": -1.0, "nan": math.nan, "inf": math.inf, "text": "on", "True": True}),
        ),
    },
    share=0.5,
)
def run_schedules(case: Case) -> None:
    """Linear, then constant; or on, then off."""
    kind, epochs, epoch = case["kind"], case["epochs"], case["epoch"]
    relevant = {"ramp": ("epochs", "start", "end"), "off": ("epochs",), "own": ("own",)}[kind]
    if not hostile(case, *relevant, "epoch"):
        case.excuse()
    if kind == "ramp":
        schedule = elliptica.ramp(epochs, case["start"], case["end"])
    elif kind == "off":
        schedule = elliptica.switch_off(epochs)
    else:
        schedule = lambda epoch: case["own"]  # noqa: E731
    objective = Elliptic(network(case, 1).float(), nn.MSELoss(), schedule=schedule, sigma=0.1)
    x, y = case.normal(ROWS, FEATURES), case.normal(ROWS, 1)
    objective.set_epoch(epoch)
    stream = functools.partial(torch.Generator().manual_seed, case.seed)
    paths = objective.sample(x, y, partners=torch.arange(ROWS).roll(1), generator=stream())
    loss = objective(x, y, partners=torch.arange(ROWS).roll(1), generator=stream())
    if kind == "ramp":
        factor = case["start"] + (case["end"] - case["start"]) * min(epoch / epochs, 1)
    else:
        factor = (1.0 if epoch < epochs else None) if kind == "off" else case["own"]
    if factor is None:
        check_close(loss, F.mse_loss(objective.model(x), y), "switched off")
        return
    plain = Elliptic(objective.model, nn.MSELoss(), sigma=0.1 * factor)
    expected = plain.sample(x, y, partners=torch.arange(ROWS).roll(1), generator=stream())
    if factor:
        check_close(paths.x, expected.x, "points")
        check_close(loss, plain(x, y, paths=expected), "loss")


# -------------------------------------------------------------------------------------------- partners


def _inverse_distance(x: Tensor, power: float, labels: Tensor | None, among: str) -> Tensor | None:
    """Return the law of partners by loops; None if it is doubtful which points count as copies."""
    apart = torch.cdist(flat(x), flat(x), compute_mode="donot_use_mm_for_euclid_dist")
    n = len(x)
    others = sorted(float(apart[i, j]) for i in range(n) for j in range(n) if i != j)
    distinct = [v for v in others if v > 1e-6 * max(others)] if others else []
    if not distinct:
        floor = math.inf
    else:
        middle = others[(len(others) - 1) // 2]
        floor = 0.01 * (middle if middle > 0.02 * max(others) else distinct[(len(distinct) - 1) // 2])
        if any(0.3 * floor < v < 3 * floor for v in others) or (middle <= 0.02 * max(others) and middle > 0):
            return None
    law = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        allowed = [j for j in range(n) if j != i and _eligible(labels, among, i, j)]
        far = [float(apart[i, j]) for j in allowed if float(apart[i, j]) > floor]
        for j in allowed:
            d = float(apart[i, j]) if float(apart[i, j]) > floor else min(far, default=1.0)
            law[i, j] = (min(far, default=1.0) / d) ** power
        if not allowed:
            law[i, i] = 1.0
    return law / law.sum(1, keepdim=True)


def _eligible(labels: Tensor | None, among: str, i: int, j: int) -> bool:
    if among == "all" or labels is None:
        return True
    return bool(labels[i] == labels[j]) == (among == "same_class")


def _owe_labels(case: Case) -> None:
    """Labels matter only where partners depend on them."""
    if case["among"] == "all" and not hostile(case, *(a for a in case.target.axes if a != "labels")):
        case.excuse()
    if case["among"] in ("same_class", "other_class") and case["labels"] is None:
        case.owe(BAD)


def check_frequencies(drawn: Tensor, law: Tensor) -> None:
    """Raise `Wrong` if draws ``(row, draw)`` do not follow ``law``, at about seven standard deviations."""
    for row, probabilities in zip(drawn, law, strict=True):
        counts = torch.bincount(row, minlength=len(probabilities)).double()
        spread = (len(row) * probabilities * (1 - probabilities)).sqrt()
        slack = 7 * spread + 12 + 1e-5 * len(row)
        gap = (counts - len(row) * probabilities).abs() - slack
        check(not bool((gap > 0).any()), f"{counts.tolist()} draws, expected {probabilities.tolist()}")
        impossible = counts[probabilities == 0]
        check(not bool(impossible.any()), "a partner of probability zero was drawn")


@target(
    "partner_probabilities", {"x": points(), "power": POWERS, "labels": LABELS, "among": AMONG}, share=0.7
)
def run_partner_probabilities(case: Case) -> None:
    """Inverse distances, by loops."""
    x, power, among = case["x"], case["power"], case["among"]
    if not has_rows(case):
        case._made["labels"] = None
    _owe_labels(case)
    with untouched(x, case["labels"]):
        found = elliptica.partner_probabilities(x, power=power, labels=case["labels"], among=among)
    check(found.shape == (len(x), len(x)), "another shape")
    check(not found.requires_grad, "probabilities carry a gradient")
    check_close(found.sum(1), torch.ones(len(x)), "sum of probabilities", 1e-4)
    expected = _inverse_distance(x, float(power), case["labels"], among)
    if expected is not None and case.name("x") not in ("scaled", "shifted") and float(power) < 100:
        check_close(
            found, expected, "probabilities", max(1e-4, digits(x) if x.dtype == torch.float64 else 1e-4)
        )


BANDWIDTHS = (
    fine("None", None),
    fine("0.5", 0.5),
    fine("drawn", lambda case, v: v, st.floats(0.01, 100)),
    odd("tiny", 1e-300),
    odd("huge", 1e300),
    *refused(NO_NUMBERS),
    bad("0", 0),
)
PAIRINGS = (
    fine("permutation", "permutation"),
    fine("inverse_distance", "inverse_distance"),
    fine("nearest", "nearest"),
    fine("label_kernel", "label_kernel"),
    bad("case", "Nearest"),
    *refused(NO_NAMES),
)


#: Points whose distances cannot be measured.
UNMEASURED = ("integers", "booleans", "nan", "infinite", "minus infinite", "complex")


@target(
    "sample_partners",
    {
        "x": points(),
        "n_bridges": tamed(COUNTS, 3),
        "pairing": PAIRINGS,
        "power": tamed(POWERS, 4),
        "bandwidth": BANDWIDTHS,
        "labels": tamed(LABELS, 3),
        "among": tamed(AMONG, 2),
        "generator": GENERATORS,
    },
    share=1.2,
)
def run_sample_partners(case: Case) -> None:
    """Eligible rows only, in the stated law."""
    x, pairing, among, labels = case["x"], case["pairing"], case["among"], None
    if has_rows(case):
        labels = case["labels"]
    names = ("n_bridges", "power", "bandwidth", "among")
    how = {name: case[name] for name in names} | {"pairing": pairing, "labels": labels}
    known = pairing if isinstance(pairing, str) else ""
    if pairing == "permutation" and case.name("x") in UNMEASURED:
        case.excuse()  # no distance is measured
    unused = {"permutation": ("power", "bandwidth"), "nearest": ("power", "bandwidth")}.get(known, ())
    unused = {"inverse_distance": ("bandwidth",), "label_kernel": ("power",)}.get(known, unused)
    if hostile(case, *unused) and not hostile(case, *(a for a in case.target.axes if a not in unused)):
        case.excuse()
    if has_rows(case) and len(x) == 1:
        case.owe(ODD)
    elif pairing == "label_kernel" and case["bandwidth"] is None:
        case.owe(BAD)
    if among in ("same_class", "other_class") and labels is None:
        case.owe(BAD if not has_rows(case) or len(x) > 1 else ODD)
    with untouched(x, labels, case["generator"]):
        found = elliptica.sample_partners(x, **how, generator=case["generator"])
    again(case, lambda g: elliptica.sample_partners(x, **how, generator=g), found)
    n = len(x)
    check(found.shape == (n, case["n_bridges"]) and found.dtype == torch.long, "another shape or dtype")
    for i in range(n):
        allowed = [j for j in range(n) if j != i and _eligible(labels, among, i, j)] or [i]
        check(set(found[i].tolist()) <= set(allowed), f"row {i} got {found[i].tolist()}, allowed {allowed}")
    if pairing == "permutation" and among == "all":
        for column in found.t():
            at = seen = 0
            while (at := int(column[at])) != 0 and seen < n:
                seen += 1
            check(seen == n - 1, "partners are no cycle through all rows")
    elif pairing == "nearest" and case.name("x") not in ("scaled", "shifted"):
        _check_nearest(x, found, labels, among)
    elif n > 1 and case.name("x") not in ("scaled", "shifted"):
        if pairing == "label_kernel":
            law = _kernel_law(x, case["bandwidth"], labels, among)
        else:
            law = _inverse_distance(
                x, 0.0 if pairing == "permutation" else float(case["power"]), labels, among
            )
        if law is not None and not (pairing == "permutation" and among == "same_class"):
            many = elliptica.sample_partners(x, **how | {"n_bridges": DRAWS}, generator=case["generator"])
            check_frequencies(many, law)


def _check_nearest(x: Tensor, found: Tensor, labels: Tensor | None, among: str) -> None:
    apart = torch.cdist(flat(x), flat(x), compute_mode="donot_use_mm_for_euclid_dist")
    for i, row in enumerate(found.tolist()):
        order = [float(apart[i, j]) for j in range(len(x)) if j != i and _eligible(labels, among, i, j)]
        order = sorted(order) or [0.0]
        wanted = [order[rank % len(order)] for rank in range(len(row))]
        chosen = apart[i, row]
        near(chosen, torch.tensor(wanted, dtype=torch.float64), "distance of the nearest", 1e-4, 1e-6)


def _kernel_law(y: Tensor, bandwidth: float, labels: Tensor | None, among: str) -> Tensor | None:
    apart = torch.cdist(flat(y), flat(y), compute_mode="donot_use_mm_for_euclid_dist")
    n = len(y)
    law = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        allowed = [j for j in range(n) if j != i and _eligible(labels, among, i, j)]
        if not allowed:
            law[i, i] = 1.0
            continue
        least = min(float(apart[i, j]) for j in allowed)
        for j in allowed:
            d = float(apart[i, j])
            exponent = (d - least) / bandwidth * ((d + least) / bandwidth) / 2
            law[i, j] = math.exp(-exponent) if exponent < 700 else 0.0
    law[law < 1e-12] = 0.0
    return law / law.sum(1, keepdim=True)


INDEX = (
    fine("all", lambda case: torch.arange(len(case["x"])) if has_rows(case) else torch.arange(3)),
    fine("one", torch.tensor([1])),
    fine("int32", torch.tensor([1, 0], dtype=torch.int32)),
    fine("uint8", torch.tensor([1, 0], dtype=torch.uint8)),
    fine("repeated", torch.tensor([1, 1, 1])),
    bad("beyond", torch.tensor([10_000])),
    bad("negative", torch.tensor([-1])),
    bad("empty", torch.zeros(0, dtype=torch.long)),
    bad("booleans", torch.tensor([True, False])),
    bad("floating", torch.tensor([0.0])),
    bad("two axes", torch.tensor([[0, 1]])),
    bad("0-d", torch.tensor(1)),
    bad("a list", lambda case: [0, 1]),
    bad("None", None),
)
TABLE_AXES = {
    "x": points(),
    "power": (*(c for c in POWERS if c.name != "huge"), fine("infinite", math.inf)),
    "labels": LABELS,
    "among": AMONG,
    "index": INDEX,
    "n_bridges": COUNTS,
    "generator": GENERATORS,
}


@target(
    "PartnerTable",
    {
        **TABLE_AXES,
        "max_bytes": (fine("default", 2**32), fine("0", 0), fine("40", 40), *refused(NO_COUNTS, "0")),
    },
)
def run_partner_table(case: Case) -> None:
    """The law of `partner_probabilities` over a data set."""
    x, power, among, labels = case["x"], case["power"], case["among"], None
    if has_rows(case):
        labels = case["labels"]
        if len(x) < 2:
            case.owe(BAD)
    if among in ("same_class", "other_class") and labels is None:
        case.owe(BAD)
    how = {"power": power, "labels": labels, "among": among}
    with untouched(x, labels):
        table = elliptica.PartnerTable(x, **how, max_bytes=case["max_bytes"])
    rows = {"n_bridges": case["n_bridges"]}
    with untouched(case["index"], case["generator"]):
        found = table.sample(case["index"], **rows, generator=case["generator"])
    again(case, lambda g: table.sample(case["index"], **rows, generator=g), found)
    _check_partners(case, found, labels)
    if case.name("x") in ("scaled", "shifted"):
        return
    if power == math.inf:
        _check_nearest(x, table.sample(torch.arange(len(x))), labels, among)
    elif (law := _inverse_distance(x, float(power), labels, among)) is not None:
        check_frequencies(table.sample(torch.arange(len(x)), n_bridges=DRAWS), law)


def _check_partners(case: Case, found: Tensor, labels: Any) -> None:
    """Check the shape of partners among a data set, and that they are eligible."""
    x, index, among = case["x"], case["index"].tolist(), case["among"]
    check(found.shape == (len(index), case["n_bridges"]) and found.dtype == torch.long, "another shape")
    for i, row in zip(index, found.tolist(), strict=True):
        allowed = [j for j in range(len(x)) if j != i and _eligible(labels, among, i, j)] or [i]
        check(set(row) <= set(allowed), f"row {i} got {row}, allowed {allowed}")


@target(
    "PartnerIndex",
    {
        **{name: tamed(axis) for name, axis in TABLE_AXES.items()},
        "x": (
            *(c for c in points(14, FEATURES) if c.name not in ("an array", "integers", "no feature axis")),
            fine("array", lambda case: case.normal(14, FEATURES).numpy()),
            fine("whole numbers", lambda case: torch.arange(28).view(14, 2)),
            odd("no feature axis", lambda case: case.normal(14)),
            bad("objects", lambda case: np.array([["a", "b"]] * 4, dtype=object)),
        ),
        "labels": (
            *tamed(LABELS),
            odd("a list", lambda case: [0] * len(case["x"])),
        ),
        "k": (fine("32", 32), fine("1", 1), fine("3", 3), *refused(NO_COUNTS)[:3]),
        "exact": (fine("None", None), fine("True", True), fine("False", False), *refused(NO_FLAGS, "None")),
        "cells": (fine("None", None), fine("1", 1), fine("3", 3), *refused(NO_COUNTS, "None")[:2]),
        "probes": (fine("None", None), fine("1", 1), *refused(NO_COUNTS, "None")[1:3]),
        "dtype": (
            fine("float32", "float32"),
            fine("float16", "float16"),
            bad("float64", "float64"),
            bad("torch", torch.float32),
        ),
        "backend": (
            fine("None", None),
            fine("faiss", "faiss"),
            fine("sklearn", "sklearn"),
            bad("case", "Faiss"),
        ),
        "place": (
            fine("memory", None),
            fine("folder", lambda case: case.folder / "index"),
            fine("saved", lambda case: case.folder / "index"),
            bad("taken", lambda case: _taken(case.folder)),
        ),
    },
    share=1.2,
    limit=60,
)
def run_partner_index(case: Case) -> None:
    """The law of `PartnerTable`, in memory and in a folder."""
    x, power, among, labels = case["x"], case["power"], case["among"], None
    if has_rows(case):
        labels = case["labels"]
        if len(x) < 2:
            case.owe(BAD)
    if among == "all" and not hostile(case, *(a for a in case.target.axes if a != "labels")):
        case.excuse()
    if among in ("same_class", "other_class") and labels is None:
        case.owe(BAD)
    names = ("power", "among", "k", "exact", "cells", "probes", "dtype", "backend")
    how = {name: case[name] for name in names} | {"labels": labels}
    place = None if case.name("place") == "saved" else case["place"]
    with untouched(x):
        index = PartnerIndex.build(x, **how, folder=place, generator=case["generator"])
    if case.name("place") == "saved":
        saved = index.save(case["place"])
        one, other = (i.sample(torch.arange(len(x)), generator=_stream(case)) for i in (index, saved))
        check(torch.equal(one, other), "a saved index draws other partners")
        index = pickle.loads(pickle.dumps(PartnerIndex.load(case["place"], verify=True)))
    rows = {"n_bridges": case["n_bridges"]}
    with untouched(case["index"]):
        found = index.sample(case["index"], **rows, generator=case["generator"])
    if case["generator"] is not None:
        again = [index.sample(case["index"], **rows, generator=_stream(case)) for _ in range(2)]
        check(torch.equal(*again), "the same generator gives another result")
    x = torch.as_tensor(x)
    case._made["x"] = x
    _check_partners(case, found, labels)
    check(0 <= index.error_bound <= 1, f"error_bound is {index.error_bound}")
    if case.name("x") in ("scaled", "shifted") or case["dtype"] == "float16" or x.dtype != torch.float32:
        return
    if power == math.inf and index.recall == 1:
        _check_nearest(x, index.sample(torch.arange(len(x))), labels, among)
        return
    law = None if power == math.inf else _inverse_distance(x, float(power), labels, among)
    if law is not None and index.error_bound < 1e-6:
        check_frequencies(index.sample(torch.arange(len(x)), n_bridges=DRAWS), law)


def _stream(case: Case) -> torch.Generator:
    return torch.Generator().manual_seed(case.seed)


def _taken(folder: Any) -> Any:
    (folder / "index").mkdir()
    (folder / "index" / "mine.txt").write_text("mine")
    return folder / "index"


@target(
    "PairBatchSampler",
    {
        "batch_size": (fine("3", 3), fine("1", 1), fine("99", 99), *refused(NO_COUNTS)),
        "n_bridges": COUNTS,
        "shuffle": (fine("True", True), fine("False", False)),
        "seed": (
            fine("0", 0),
            fine("drawn", lambda case, n: n, st.integers(0, 2**40)),
            odd("text", "a"),
            odd("-1", -1),
        ),
        "place": (
            fine("alone", (None, None)),
            fine("second of two", (1, 2)),
            *refused(
                {"half": (0, None), "beyond": (2, 2), "none": (0, 0), "negative": (-1, 2), "text": ("0", 2)}
            ),
        ),
        "index": (
            fine("table", lambda case: elliptica.PartnerTable(case.normal(9, 2))),
            *refused({"a tensor": torch.zeros(9, 2), "None": None}),
        ),
        "split": (fine("same", None), bad("other", 7)),
    },
    share=0.4,
)
def run_pair_batches(case: Case) -> None:
    """Every row is a start once; a batch splits into starts and their partners."""
    rank, world = case["place"]
    size, n_bridges = case["batch_size"], case["n_bridges"]
    if world == 2 and size == 1 and not hostile(case, "n_bridges", "index"):
        case.owe(BAD)  # 9 rows in 10 batches
    made = functools.partial(
        PairBatchSampler, case["index"], size, n_bridges=n_bridges, shuffle=case["shuffle"], seed=case["seed"]
    )
    batches = list(made(rank=rank, world_size=world))
    starts: list[int] = []
    for r in range(world or 1):
        sampler = made(rank=r, world_size=world or 1)
        check(len(sampler) == len(list(sampler)), "another number of batches than len() says")
        check(list(sampler) == list(sampler), "the same epoch gives other batches")
        starts += [row for batch in sampler for row in batch[: len(batch) // (1 + n_bridges)]]
    check(sorted(starts) == list(range(9)), f"starts are {sorted(starts)}")
    rows = torch.tensor(batches[0])
    split = case["split"] or n_bridges
    x, y, (far, far_y) = split_pairs(rows[:, None].float(), rows, split)
    check(len(x) * (1 + split) == len(rows), "another number of starts")
    check(torch.equal(torch.cat([y, far_y.flatten()]), rows), "rows changed")
    check(torch.equal(far.squeeze(-1).long(), far_y), "inputs and targets came apart")
    if not hostile(case, "split") and n_bridges == 1:
        both = swapped_partners(len(rows))
        check(torch.equal(both[both], torch.arange(len(rows))), "partners are not mutual")


# --------------------------------------------------------------------------------------------- bridges

N_TIMES = (
    fine("5", 5),
    fine("2", 2),
    fine("3", 3),
    fine("many", 40),
    fine("numpy", lambda case: np.int32(4)),
    bad("1", 1),
    *refused(NO_COUNTS),
)
HORIZONS = (
    fine("1", 1.0),
    fine("drawn", lambda case, v: v, st.floats(1e-3, 10)),
    fine("whole", 4),
    fine("numpy", lambda case: np.float32(0.5)),
    odd("tiny", 1e-300),
    odd("huge", 1e300),
    *refused(NO_NUMBERS, "a matrix", "nan tensor", "integers"),
    bad("0", 0),
    bad("None", None),
)
SIGMAS = (
    fine("0.05", 0.05),
    fine("0", 0),
    fine("drawn", lambda case, v: v, st.floats(0, 100)),
    fine("numpy", lambda case: np.float32(0.2)),
    fine("0-d", torch.tensor(0.3)),
    fine("float64", torch.tensor([0.2], dtype=torch.float64)),
    odd("per feature", torch.tensor([0.1, 0.0, 2.0])),
    odd("auto", "auto"),
    odd("green", "green"),
    odd("green half", ("green", 0.5)),
    odd("screened", ("screened", 3.0)),
    odd("Green", lambda case: elliptica.Green(dim=5)),
    odd("Screened", lambda case: elliptica.Screened(0.5, scale=2)),
    odd("huge", 1e37),
    odd("tiny", 1e-40),
    bad("learnt", lambda case: torch.tensor(0.1, requires_grad=True)),
    *refused(NO_NUMBERS, "a matrix"),
    bad("a matrix", torch.ones(5, 7)),
    bad("None", None),
    bad("word", "Auto"),
    bad("pair", ("green",)),
    bad("pair of text", ("screened", "3")),
    bad("negative", torch.tensor([0.1, -0.1, 0.1])),
)
FLAGS = (
    fine("False", False),
    fine("True", True),
    fine("numpy", lambda case: np.bool_(True)),
    *refused(NO_FLAGS),
)


@target(
    "sample_bridge",
    {
        "start": points(),
        "end": (
            fine("flipped", lambda case: _flipped(case["start"])),
            fine("same", lambda case: case["start"]),
            bad(
                "other dtype",
                lambda case: torch.zeros(getattr(case["start"], "shape", (6, 3)), dtype=torch.int32),
            ),
            bad("broadcast", lambda case: torch.zeros(ROWS + 1, 7)),
            *no_tensors()[:4],
        ),
        "n_times": tamed(N_TIMES, 3),
        "n_bridges": tamed(COUNTS, 2),
        "sigma": SIGMAS,
        "horizon": tamed(HORIZONS, 4),
        "antithetic": FLAGS,
        "generator": tamed(GENERATORS),
    },
    share=1.5,
)
def run_sample_bridge(case: Case) -> None:
    """The chord, plus the standard deviation times a factor of the covariance times the normals drawn."""
    start, end, sigma, _horizon = case["start"], case["end"], case["sigma"], case["horizon"]
    names = ("n_times", "n_bridges", "sigma", "horizon", "antithetic")
    how = {name: case[name] for name in names}
    n_bridges = case["n_bridges"]
    if isinstance(n_bridges, int) and n_bridges % 2 and case["antithetic"] in (True, np.True_):
        case.owe(BAD)
    if case.name("start") == "no feature axis" and isinstance(sigma, Tensor) and sigma.ndim:
        case.owe(ODD)
    with untouched(start, end, case["generator"]):
        found = elliptica.sample_bridge(start, end, **how, generator=case["generator"])
    again(case, lambda g: elliptica.sample_bridge(start, end, **how, generator=g), found)
    shape = (len(start), n_bridges, case["n_times"], *start.shape[1:])
    check(found.shape == shape and found.dtype == start.dtype, f"shape {tuple(found.shape)}, not {shape}")
    check(found.requires_grad == (start.requires_grad or end.requires_grad), "the gradient is lost")
    if not found.requires_grad:
        for time, given in ((0, start), (-1, end)):
            check(bool((found[:, :, time] == given.unsqueeze(1)).all()), "a path does not end at its end")
    if case["antithetic"] and case["n_times"] > 2 and not found.requires_grad:
        half, twice = n_bridges // 2, (start + end).detach().double()[:, None]
        both = (found[:, :half] + found[:, half:]).double()
        slack = 20 * digits(start) * float(found.double().abs().max()) if found.numel() else 0.0
        sums = both + both.flip(2)  # opposite noise, at a time and at the opposite one
        near(sums, 2 * twice[:, :, None].expand_as(sums), "opposite bridges", 0.0, slack)
    if isinstance(sigma, str) and sigma == "auto":
        sigma = 0.1 * start.detach().double().std(0)
    if not isinstance(sigma, str | tuple | elliptica.Green | elliptica.Screened):
        expected = _bridges(case, sigma)
        if expected is None:
            return
        size = (
            float(torch.cat([start.detach().abs().flatten(), end.detach().abs().flatten()]).max())
            if start.numel()
            else 0
        )
        near(found, expected, "points", 4 * digits(start), 4 * digits(start) * size + 1e-44)


def _flipped(start: Any) -> Any:
    plain = isinstance(start, Tensor) and not start.is_nested and start.layout == torch.strided
    return start.detach().flip(0) if plain and start.ndim else start


def _bridges(case: Case, sigma: Any) -> Tensor | None:
    """Draw the same normals and build each bridge from the covariance of its times."""
    start, end, n_times, n_bridges = (case[a] for a in ("start", "end", "n_times", "n_bridges"))
    times = torch.arange(n_times, dtype=torch.float64) / (n_times - 1)
    line = times.view(-1, *[1] * (start.ndim - 1))
    a, b = start.detach().double(), end.detach().double()
    out = torch.stack([torch.stack([a[i] + line * (b[i] - a[i])] * n_bridges) for i in range(len(start))])
    out[:, :, -1] = b.unsqueeze(1)
    is_zero = not isinstance(sigma, Tensor) and sigma == 0
    if n_times == 2 or is_zero or case.name("generator") != "seeded":
        return out if n_times == 2 or is_zero else None
    inner = times[1:-1]
    covariance = torch.minimum(inner[:, None], inner) - inner[:, None] * inner
    factor = torch.linalg.cholesky(covariance)
    drawn = n_bridges // 2 if case["antithetic"] else n_bridges
    dtype = torch.float64 if start.dtype == torch.float64 else torch.float32
    z = torch.randn(
        n_times - 2, drawn * len(start), *start.shape[1:], generator=_stream(case), dtype=dtype
    ).double()
    z = torch.cat([z, -z], 1) if case["antithetic"] else z
    scale = sigma.double() if isinstance(sigma, Tensor) else float(sigma)
    noise = torch.tensordot(factor, z, 1) * scale * math.sqrt(float(case["horizon"]))
    out[:, :, 1:-1] += noise.unflatten(1, (n_bridges, len(start))).transpose(0, 2)
    return out


def network(case: Case, outputs: int) -> nn.Module:
    """Make a small smooth network in float64."""
    torch.manual_seed(case.seed)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


# ------------------------------------------------------------------------------------- the objective


class Kind:
    """A kind of targets: the loss, the loss of a row by formula, and how targets are made."""

    def __init__(
        self,
        loss: Callable[[torch.dtype], Any],
        row: Callable[[Tensor, Tensor], Tensor],
        y: Callable[[Case, int, torch.dtype], Tensor],
        *,
        outputs: int = CLASSES,
        space: str = "simplex",
        **settings: Any,
    ) -> None:
        self.loss, self.row, self.y = loss, row, y
        self.outputs, self.space, self.settings = outputs, space, settings


CLASS_WEIGHT = [0.5, 1.0, 2.0, 0.1]
POS_WEIGHT = [1.0, 3.0]


def _classes(case: Case, n: int, dtype: torch.dtype) -> Tensor:
    return torch.randint(CLASSES, (n,), generator=case.generator)


def _soft(case: Case, n: int, dtype: torch.dtype) -> Tensor:
    return case.normal(n, CLASSES, dtype=dtype).softmax(1)


def _real(case: Case, n: int, dtype: torch.dtype) -> Tensor:
    return case.normal(n, 2, dtype=dtype)


def _unit(case: Case, n: int, dtype: torch.dtype) -> Tensor:
    return case.normal(n, 2, dtype=dtype).sigmoid()


def _weighted_row(output: Tensor, target: Tensor) -> Tensor:
    return -(torch.tensor(CLASS_WEIGHT, dtype=torch.float64) * target * output.log_softmax(0)).sum()


def _smoothed_row(output: Tensor, target: Tensor) -> Tensor:
    return reference.cross_entropy(output, 0.8 * target + 0.2 / CLASSES)


def _huber_row(output: Tensor, target: Tensor) -> Tensor:
    gap = (output - target).abs()
    return torch.where(gap < 0.5, 0.5 * gap**2, 0.5 * (gap - 0.25)).mean()


def _positive_row(output: Tensor, target: Tensor) -> Tensor:
    p = 1 / (1 + torch.exp(-output))
    weight = torch.tensor(POS_WEIGHT, dtype=torch.float64)
    return -(weight * target * p.log() + (1 - target) * (1 - p).log()).mean()


def _fourth_power(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 4).mean(1)


KINDS: dict[str, Kind] = {
    "classes": Kind(lambda d: nn.CrossEntropyLoss(), reference.cross_entropy, _classes, num_classes=CLASSES),
    "class weights": Kind(
        lambda d: nn.CrossEntropyLoss(weight=torch.tensor(CLASS_WEIGHT, dtype=d)), _weighted_row, _classes
    ),
    "smoothed": Kind(
        lambda d: nn.CrossEntropyLoss(label_smoothing=0.2), _smoothed_row, _classes, num_classes=CLASSES
    ),
    "soft": Kind(lambda d: nn.CrossEntropyLoss(), reference.cross_entropy, _soft),
    "soft weighted": Kind(
        lambda d: nn.CrossEntropyLoss(weight=torch.tensor(CLASS_WEIGHT, dtype=d)), _weighted_row, _soft
    ),
    "unreduced": Kind(
        lambda d: nn.CrossEntropyLoss(reduction="none"),
        reference.cross_entropy,
        _classes,
        num_classes=CLASSES,
    ),
    "real": Kind(lambda d: nn.MSELoss(), reference.squared_error, _real, outputs=2, space="real"),
    "absolute": Kind(
        lambda d: nn.L1Loss(), lambda o, t: (o - t).abs().mean(), _real, outputs=2, space="real"
    ),
    "huber": Kind(lambda d: nn.HuberLoss(delta=0.5), _huber_row, _real, outputs=2, space="real"),
    "function": Kind(lambda d: F.mse_loss, reference.squared_error, _real, outputs=2, space="real"),
    "own": Kind(
        lambda d: _fourth_power,
        lambda o, t: ((o - t) ** 4).mean(),
        _real,
        outputs=2,
        space="real",
        target_space="real",
    ),
    "unit": Kind(
        lambda d: nn.BCEWithLogitsLoss(), reference.binary_cross_entropy, _unit, outputs=2, space="unit"
    ),
    "positive": Kind(
        lambda d: nn.BCEWithLogitsLoss(pos_weight=torch.tensor(POS_WEIGHT, dtype=d)),
        _positive_row,
        _unit,
        outputs=2,
        space="unit",
    ),
    "booleans": Kind(
        lambda d: nn.BCEWithLogitsLoss(),
        reference.binary_cross_entropy,
        lambda case, n, d: case.normal(n, 2) > 0,
        outputs=2,
        space="unit",
    ),
}


class DriftNetwork(nn.Module):
    """A drift of the inputs, and of the targets if asked, with parameters."""

    def __init__(self, targets: bool = False) -> None:
        super().__init__()
        self.scale, self.targets = nn.Parameter(torch.tensor(0.3, dtype=torch.float64)), targets

    def forward(self, x: Tensor, y: Tensor) -> Any:
        """Return a smooth drift."""
        mu = self.scale.to(x.dtype) * x.sin()
        return (mu, 0.2 * self.scale.to(y.dtype) * y) if self.targets else mu


def _constant_drift(x: Tensor, y: Tensor) -> Tensor:
    return 0.3 * x.sin()


def _both_drifts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return 0.3 * x.sin(), 0.1 * y


def _far_rows(case: Case) -> tuple[Tensor, Tensor]:
    """Make far ends outside the batch, one for each row."""
    kind: Kind = KINDS[case.name("kind")]
    dtype, n = case["dtype"], case["rows"]
    return case.normal(n, FEATURES, dtype=dtype), kind.y(case, n, dtype)


def _different(case: Case) -> Tensor:
    n, bridges = case["rows"], case["n_bridges"]
    return torch.stack([torch.arange(n).roll(-1 - j) for j in range(bridges)], 1)


OBJECTIVE_AXES: dict[str, tuple[Choice, ...]] = {
    "kind": tuple(fine(name, just(kind)) for name, kind in KINDS.items()),
    "dtype": (fine("float64", torch.float64), fine("float32", torch.float32)),
    "rows": (fine("6", ROWS), fine("1", 1), fine("2", 2), fine("5", 5)),
    "sampling": (fine("marginal", "marginal"), fine("path", "path")),
    "n_times": (fine("3", 3), fine("2", 2), fine("5", 5)),
    "n_bridges": (fine("1", 1), fine("2", 2), fine("3", 3)),
    "sigma": (
        fine("0.05", 0.05),
        fine("0", 0),
        fine("0.7", 0.7),
        fine("numpy", lambda case: np.float32(0.3)),
        fine("per feature", torch.tensor([0.1, 0.3, 2.0])),
        fine("0-d", torch.tensor(0.2)),
        fine("some zero", torch.tensor([0.1, 0.0, 0.2])),
        fine("auto", "auto"),
        fine("green", "green"),
        fine("half green", ("green", 0.5)),
        fine("screened", ("screened", 2.0)),
        fine("Green", lambda case: elliptica.Green(dim=6.5)),
    ),
    "sigma_y": (
        fine("None", None),
        fine("0", 0.0),
        fine("0.1", 0.1),
        fine("numpy", lambda case: np.float32(0.1)),
        fine("per target", lambda case: torch.full((case["kind"].outputs,), 0.2)),
    ),
    "horizon": (fine("1", 1.0), fine("4", 4), fine("0.3", 0.3)),
    "antithetic": (fine("False", False), fine("True", True)),
    "same_partner": (fine("False", False), fine("True", True)),
    "pairing": PAIRINGS[:4],
    "power": (fine("1", 1.0), fine("0", 0), fine("3", 3)),
    "bandwidth": (fine("None", None), fine("0.5", 0.5)),
    "among": AMONG[:3],
    "simplex": (fine("abs", "abs"), fine("euclidean", "euclidean")),
    "quadrature": tuple(fine(q, q) for q in ("mean", "left", "trapezoid", "uniform")),
    "bn": tuple(fine(mode, mode) for mode in ("paths", "clean", "frozen")),
    "chunk_size": (fine("None", None), fine("1", 1), fine("4", 4), fine("1000", 1000)),
    "validate": (fine("True", True), fine("False", False)),
    "weight": (
        fine("None", None),
        fine("drawn", lambda case: case.normal(case["rows"], dtype=case["dtype"]).exp()),
        fine("zeros", lambda case: torch.zeros(case["rows"], dtype=case["dtype"])),
    ),
    "ends": (
        fine("drawn", None),
        fine("partners", lambda case: {"partners": torch.arange(case["rows"]).roll(-1)}),
        fine("each", lambda case: {"partners": _different(case)}),
        fine("int32", lambda case: {"partners": torch.arange(case["rows"]).roll(1).int()}),
        fine("far", lambda case: {"end": _far_rows(case)}),
    ),
    "x": (
        fine("plain", lambda case: case.normal(case["rows"], FEATURES, dtype=case["dtype"])),
        fine("learnt", lambda case: nn.Parameter(case.normal(case["rows"], FEATURES, dtype=case["dtype"]))),
        fine("constant", lambda case: torch.ones(case["rows"], FEATURES, dtype=case["dtype"])),
        fine("strided", lambda case: case.normal(case["rows"], 2 * FEATURES, dtype=case["dtype"])[:, ::2]),
    ),
}
SETTINGS = (
    *("sampling", "n_times", "n_bridges", "sigma", "sigma_y", "horizon", "antithetic", "same_partner"),
    *("pairing", "power", "bandwidth", "among", "simplex", "quadrature", "bn", "chunk_size", "validate"),
)


def _owe_settings(case: Case, weighting: str = "none", drift: Any = None) -> None:
    """Say which settings contradict each other."""
    kind: Kind = case["kind"]
    path, draws = case["sampling"] == "path", case["ends"] is None
    clashes = [
        path and case["quadrature"] == "uniform",
        case["antithetic"] and case["n_bridges"] % 2,
        case["bandwidth"] is not None and case["pairing"] != "label_kernel",
        case["pairing"] == "label_kernel"
        and kind.space != "real"
        and kind.settings.get("target_space") is None
        and draws,
        case["pairing"] == "label_kernel" and kind.space != "real" and draws,
        case["pairing"] == "label_kernel" and case["bandwidth"] is None and draws and case["rows"] > 1,
        case["among"] != "all" and kind.space != "simplex" and draws,
        case["sigma"] == "auto" if isinstance(case["sigma"], str) and case["rows"] == 1 else False,
    ]
    same = case["same_partner"] or weighting == "multiplicative"
    if same and case.name("ends") == "each" and case["n_bridges"] > 1 and case["rows"] > 1:
        clashes.append(True)
    if weighting in ("girsanov", "multiplicative"):
        clashes.append(not path)
    if weighting == "multiplicative":
        clashes.append(case["n_bridges"] < 2)
    if drift not in (None, "input") and weighting not in ("girsanov", "multiplicative"):
        clashes.append(True)
    if any(clashes):
        case.owe(BAD)


def _check_points(case: Case, paths: Any, x: Tensor, y: Tensor) -> None:
    """Check times, ends and targets of points without asking how they were drawn."""
    n, n_bridges, n_times = case["rows"], case["n_bridges"], case["n_times"]
    kind: Kind = case["kind"]
    path = case["sampling"] == "path"
    shape = (n, n_bridges, n_times if path else 1)
    check(paths.s.shape == shape, f"times of shape {tuple(paths.s.shape)}, not {shape}")
    check(paths.x.shape == (*shape, FEATURES), "points of another shape")
    check(bool(torch.isfinite(paths.x).all() & torch.isfinite(paths.y).all()), "points are not finite")
    slack = digits(x)
    if kind.space == "simplex":
        near(paths.y.sum(3), torch.ones(shape), "sum of probabilities", slack, slack)
    if kind.space != "real":
        check(bool((paths.y >= -slack).all() and (paths.y <= 1 + slack).all()), "targets leave their space")
    points = y if y.is_floating_point() else F.one_hot(y, CLASSES) if kind.space == "simplex" else y
    points = points.to(paths.y.dtype)
    if path:
        grid = torch.arange(n_times) / (n_times - 1)
        near(paths.s, grid.expand(shape), "times", 1e-6)
        check(bool((paths.x[:, :, 0] == x.unsqueeze(1)).all()), "a path does not start at its row")
        check(bool((paths.y[:, :, 0] == points.unsqueeze(1)).all()), "a target does not start at its row")
    else:
        _check_strata(case, paths.s.double().squeeze(2))
    far = _far_points(case, x, points)
    s = paths.s.double()[..., None]
    if far is not None:
        end, end_y = far
        line = (1 - s) * x.detach().double()[:, None, None] + s * end.detach().double()[:, :, None]
        if case.name("sigma") == "0":
            near(paths.x, line, "a straight line", 10 * slack)
        elif isinstance(case["sigma"], float):
            spread = case["sigma"] * math.sqrt(case["horizon"]) * (s * (1 - s)).sqrt()
            gap = (paths.x.detach().double() - line).abs()
            check(bool((gap <= 8 * spread + 1e-5).all()), "points lie too far from the chord")
        if case["sigma_y"] == 0.0 if isinstance(case["sigma_y"], float) else False:
            line = (1 - s) * points.double()[:, None, None] + s * end_y.double()[:, :, None]
            near(paths.y, line, "targets change linearly", 10 * slack)
        if case["weight"] is not None and case.name("ends") != "far":
            own = case["weight"].double()
            each = _partners(case)
            line = (1 - s[..., 0]) * own[:, None, None] + s[..., 0] * own[each][:, :, None]
            near(paths.weight, line, "weights change linearly", 10 * slack)


def _check_law_of_points(case: Case, x: Tensor, y: Tensor) -> None:
    """Compare many bridges between the same ends with their mean and covariance, and with their space."""
    many, kind, dtype = 240, case["kind"], case["dtype"]
    given = _far_points(case, x.detach(), F.one_hot(y, CLASSES) if y.dtype == torch.long else y)
    if given is None or isinstance(case["sigma"], tuple | elliptica.Green) or case["sigma"] == "green":
        return
    end, end_y = (z[:, 0].to(dtype) for z in given)
    start_y = (F.one_hot(y, CLASSES) if y.dtype == torch.long else y).to(dtype)
    settings = {name: case[name] for name in SETTINGS if name not in ("bn", "chunk_size")}
    settings |= {"n_bridges": many, "target_space": kind.space, "num_classes": CLASSES, "same_partner": False}
    settings |= {"pairing": "permutation", "among": "all", "bandwidth": None}
    far = y.new_tensor(end_y.argmax(1).tolist()) if y.dtype == torch.long else end_y.to(y.dtype)
    paths = elliptica.sample_paths(x.detach(), y, **settings, end=(end, far), generator=_stream(case))
    sigma = 0.1 * x.detach().double().std(0) if case.name("sigma") == "auto" else case["sigma"]
    sigma_y = case["sigma_y"]
    if sigma_y is None:
        sigma_y = sigma if kind.space == "real" and not isinstance(sigma, Tensor) else 0.0
        if kind.space == "real" and isinstance(sigma, Tensor):
            return
    s = paths.s.double()[..., None]
    free = paths.y if paths.free_y is None else paths.free_y
    for z, a, b, size in ((paths.x, x, end, sigma), (free, start_y, end_y, sigma_y)):
        line = (1 - s) * a.detach().double()[:, None, None] + s * b.double()[:, None, None]
        noise = z.detach().double() - line
        std = torch.as_tensor(size).double() * math.sqrt(case["horizon"]) * torch.ones(z.shape[-1])
        if case["antithetic"]:
            near(noise[:, : many // 2], -noise[:, many // 2 :], "opposite noise", 1e-6, 1e-4)
            noise = noise[:, : many // 2]
        spread = (s * (1 - s))[:, : noise.shape[1]]
        inner = spread.squeeze(3) > 1e-6
        unit = (noise / spread.sqrt().clamp_min(1e-9))[inner] / std.clamp_min(1e-30)
        unit = unit[:, std > 0]
        check(not bool((noise[..., std == 0].abs() > 1e-4).any()), "noise where there is none")
        count = unit.numel() / max(case["n_times"] - 2, 1)  # times of one path are correlated
        if count > 300:
            mean, variance = float(unit.mean()), float(unit.var())
            check(abs(mean) < 6 / math.sqrt(count), f"noise has the mean {mean}")
            check(abs(variance - 1) < 9 / math.sqrt(count), f"noise has {variance} of its variance")
    if kind.space == "real":
        return
    rows = free.detach().double().reshape(-1, free.shape[-1])[:400]
    how = (lambda row: [min(max(v, 0.0), 1.0) for v in row]) if kind.space == "unit" else None
    wanted = [how(row) if how else projected(row, case["simplex"]) for row in rows.tolist()]
    shown = paths.y.detach().double().reshape(-1, free.shape[-1])[:400]
    near(shown, torch.tensor(wanted, dtype=torch.float64), "targets in their space", 1e-5, 1e-5)


def _partners(case: Case) -> Tensor:
    each = case["ends"]["partners"].long()
    return each if each.ndim == 2 else each[:, None].expand(-1, case["n_bridges"])


def _far_points(case: Case, x: Tensor, points: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the far ends ``(batch, bridge, ...)`` if the caller chose them."""
    if case["ends"] is None:
        return None
    if "partners" in case["ends"]:
        return x[_partners(case)], points[_partners(case)]
    end, end_y = case["ends"]["end"]
    end_y = F.one_hot(end_y, CLASSES) if end_y.dtype == torch.long else end_y
    return tuple(z.unsqueeze(1).expand(-1, case["n_bridges"], -1).to(x.dtype) for z in (end, end_y))  # type: ignore[return-value]


def _check_strata(case: Case, s: Tensor) -> None:
    """Check that single times fill [0, 1] evenly, each in its own part."""
    n_times = case["n_times"]
    if case["antithetic"]:
        half = s.shape[1] // 2
        check(torch.equal(s[:, :half], s[:, half:]), "opposite noise at another time")
        s = s[:, :half]
    ordered, count = s.flatten().sort().values, s.numel()
    for k, time in enumerate(ordered.tolist()):
        low, high = k / count, (k + 1) / count
        if case["quadrature"] == "uniform":
            check(low - 1e-6 <= time <= high + 1e-6, f"time {time} is not in its part of [0, 1]")
            continue
        cells, shift = {"mean": (n_times, 0.0), "left": (n_times - 1, 0.0), "trapezoid": (n_times - 1, 0.5)}[
            case["quadrature"]
        ]
        first, last = (math.floor(v * cells + shift + e) for v, e in ((low, -1e-6), (high, 1e-6)))
        index = round(time * (n_times - 1))
        check(abs(time * (n_times - 1) - index) < 1e-5, f"time {time} is not on the grid")
        check(max(first, 0) <= index <= min(last, n_times - 1), f"time {time} is not in its part of [0, 1]")


def _expected(
    case: Case, model: nn.Module, paths: Any, y: Tensor, weighting: str, xi: float, drift: Any
) -> Tensor:
    """Evaluate the objective at the points, one at a time, in float64."""
    kind: Kind = case["kind"]
    quadrature = "mean" if case["quadrature"] == "uniform" else case["quadrature"]
    losses = reference.weighted_losses(
        model,
        kind.row,
        paths,
        weighting="none" if xi == 0 else weighting,
        xi=xi,
        variance=paths.variance["x"],
        drift=drift,
        variance_y=paths.variance_y,
        quadrature=quadrature,
    )
    n, n_bridges, n_times = paths.s.shape
    over_time = reference.quadrature_weights(quadrature, n_times)
    total = torch.zeros((), dtype=torch.float64)
    for (i, j, t), loss in losses.items():
        weight = 1.0 if paths.weight is None else paths.weight[i, j, t]
        total = total + over_time[t] * weight * loss / (n * n_bridges)
    if case.name("kind") == "class weights":
        total = total / torch.tensor(CLASS_WEIGHT, dtype=torch.float64)[y].mean()
    return total


def _doubled(paths: Any) -> Any:
    def double(z: Any) -> Any:
        return z.detach().double() if isinstance(z, Tensor) else z

    return dataclasses.replace(
        paths,
        x=double(paths.x),
        y=double(paths.y),
        s=double(paths.s),
        weight=double(paths.weight),
        free_y=double(paths.free_y),
        variance={k: double(v) for k, v in paths.variance.items()},
        variance_y=double(paths.variance_y),
    )


def _run_objective(case: Case, weighting: str = "none", xi: float = 1.0, drift: Any = None) -> None:
    """Compare points, value and gradients of the objective with loops."""
    kind: Kind = case["kind"]
    dtype, n = case["dtype"], case["rows"]
    _owe_settings(case, weighting, drift)
    x, y = case["x"], kind.y(case, n, dtype)
    model = network(case, kind.outputs).to(dtype)
    settings = {name: case[name] for name in SETTINGS} | kind.settings
    settings |= {"weighting": weighting, "xi": xi, "drift": drift}
    objective = Elliptic(model, kind.loss(dtype), **settings)
    given = {"sample_weight": case["weight"], **(case["ends"] or {})}
    with untouched(x, y, case["weight"]):
        paths = objective.sample(x, y, **given, generator=_stream(case))
    _check_points(case, paths, x, y)
    if n > 1:
        _check_law_of_points(case, x, y)
    _check_horizon(case, settings, given, paths, x, y)
    if case["weight"] is None and case["ends"] is None:  # single points have a fast path of their own
        ones = torch.ones(n, dtype=dtype)
        slow = objective.sample(x, y, sample_weight=ones, generator=_stream(case))
        check(
            torch.equal(paths.x, slow.x) and torch.equal(paths.y, slow.y), "weights of one change the points"
        )
    loss = objective(x, y, **given, generator=_stream(case))
    parameters = [p for p in objective.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    with_outputs = objective(x, y, paths=paths, with_outputs=True)
    small = 1e-9 if dtype == torch.float64 else 3e-4
    check_close(with_outputs.loss, loss, "paths= and a fresh draw differ", max(small, 1e-6))
    rows = paths.x.detach().transpose(0, 2).reshape(-1, FEATURES)
    check_close(with_outputs.output, model(rows), "outputs", max(small, 1e-5))
    check_close(with_outputs.target, paths.y.transpose(0, 2).flatten(0, 2), "targets", 1e-6)
    double, double_drift = copy.deepcopy(model).double(), copy.deepcopy(drift)
    own_drift = double_drift if callable(double_drift) else None
    is_law = isinstance(next(iter(paths.variance.values())), Tensor) and weighting in (
        "girsanov",
        "multiplicative",
    )
    if drift == "both" or (is_law and paths.variance["x"].ndim > 1):
        return  # the loops know one variance for all rows
    if weighting == "gradient_softmax" and (case["rows"] == 1 or case.name("x") == "constant"):
        return  # a single size of gradient has no deviation
    expected = _expected(case, double, _doubled(paths), y, weighting, xi, own_drift)
    check_close(loss.double(), expected, "objective", small)
    theirs = [*double.parameters()]
    if isinstance(own_drift, nn.Module) and weighting == "girsanov":
        theirs += [*own_drift.parameters()]
    wanted = torch.autograd.grad(expected, theirs, allow_unused=True)
    joined = [
        torch.cat([_or_zeros(g, p).double().flatten() for g, p in zip(gs, ps, strict=True)])
        for gs, ps in ((found, parameters), (wanted, theirs))
    ]
    check_close(*joined, "gradient", 30 * small)
    objective.eval()
    clean = objective(x, y, sample_weight=case["weight"])
    check_close(clean, _plain_loss(case, model, x, y), "eval mode is the ordinary loss", max(small, 1e-6))


def _check_horizon(
    case: Case, settings: dict[str, Any], given: dict[str, Any], paths: Any, x: Tensor, y: Tensor
) -> None:
    """Check that only ``sigma * sqrt(horizon)`` matters."""
    kind: Kind = case["kind"]
    if case["horizon"] == 1.0 or isinstance(case["sigma"], str | tuple | elliptica.Green):
        return
    root = math.sqrt(case["horizon"])
    scaled = {name: None if case[name] is None else case[name] * root for name in ("sigma", "sigma_y")}
    if scaled["sigma_y"] is None and kind.space == "real" and not isinstance(case["sigma"], Tensor):
        scaled["sigma_y"] = float(scaled["sigma"])
    model = network(case, kind.outputs).to(case["dtype"])
    other = Elliptic(model, kind.loss(case["dtype"]), **settings | scaled | {"horizon": 1.0})
    same = other.sample(x, y, **given, generator=_stream(case))
    near(paths.x, same.x, "points with another horizon", 1e-4, 1e-5)
    near(paths.y, same.y, "targets with another horizon", 1e-4, 1e-5)


def _or_zeros(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if gradient is None else gradient


def _plain_loss(case: Case, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the ordinary loss, row by row."""
    kind: Kind = case["kind"]
    target = F.one_hot(y, CLASSES).double() if y.dtype == torch.long else y.double()
    losses = torch.stack([kind.row(o, t) for o, t in zip(model(x).double(), target, strict=True)])
    total = (losses if case["weight"] is None else losses * case["weight"].double()).mean()
    return (
        total / torch.tensor(CLASS_WEIGHT, dtype=torch.float64)[y].mean()
        if case.name("kind") == "class weights"
        else total
    )


@target("Elliptic", OBJECTIVE_AXES, share=4.0)
def run_elliptic(case: Case) -> None:
    """All settings but the weighting."""
    _run_objective(case)


@target(
    "Elliptic weighting",
    {
        **OBJECTIVE_AXES,
        "sampling": OBJECTIVE_AXES["sampling"][::-1],
        "n_bridges": tuple(OBJECTIVE_AXES["n_bridges"][i] for i in (1, 0, 2)),
        "weighting": tuple(
            fine(name, name)
            for name in (
                "gradient_norm",
                "gradient_softmax",
                "multiplicative",
                "girsanov",
                "released",
                "none",
            )
        ),
        "xi": (fine("1", 1.0), fine("0", 0), fine("0.2", 0.2), fine("numpy", lambda case: np.float32(0.5))),
        "drift": (
            fine("None", None),
            fine("input", "input"),
            fine("both", "both"),
            fine("function", just(_constant_drift)),
            fine("of both", just(_both_drifts)),
            fine("network", lambda case: DriftNetwork()),
            fine("network of both", lambda case: DriftNetwork(targets=True)),
        ),
    },
    share=3.0,
)
def run_weighting(case: Case) -> None:
    """All weightings, with drifts."""
    weighting, drift, xi = case["weighting"], case["drift"], float(case["xi"])
    if xi == 0 and callable(drift):
        case.owe(ODD)
    applies = weighting in ("girsanov", "multiplicative") and xi > 0
    moves_y = case.name("drift") in ("both", "of both", "network of both")
    if applies and callable(drift) and case.name("sigma") in ("0", "some zero"):
        case.owe(BAD)
    zero_y = case.name("sigma_y") in ("0", "None") and not (
        case.name("sigma_y") == "None"
        and case["kind"].space == "real"
        and case.name("sigma") in ("0.05", "0.7", "numpy")
    )
    if moves_y and zero_y and (applies or drift == "both"):
        case.owe(BAD)
    if applies and weighting == "girsanov" and callable(drift) and not isinstance(drift, nn.Module):
        case.owe(BAD)  # it trains nothing
    if (
        applies
        and callable(drift)
        and case.name("x") == "constant"
        and case.name("sigma") in ("auto", "green", "half green", "screened", "Green")
    ):
        case.owe(ODD)  # nothing diffuses
    if applies and callable(drift) and not isinstance(case["sigma"], float):
        case.owe(ODD)
    _run_objective(case, weighting, xi, drift)


# ------------------------------------------------------------------------------------- hostile settings

#: Values of each setting that must be refused, whatever the other settings are.
NO_SETTINGS: dict[str, dict[str, Any]] = {
    "target_space": {"case": "Simplex", "0": 0, "a list": ["real"]},
    "num_classes": {k: v for k, v in NO_COUNTS.items() if k != "None"} | {"too few": 2},
    "sampling": NO_NAMES | {"case": "Path"},
    "n_times": NO_COUNTS | {"1": 1},
    "n_bridges": NO_COUNTS,
    "sigma": {c.name: c for c in SIGMAS if c.owed == BAD},
    "sigma_y": {k: v for k, v in NO_NUMBERS.items()} | {"word": "auto", "law": elliptica.Green()},
    "horizon": {c.name: c for c in HORIZONS if c.owed == BAD},
    "antithetic": NO_FLAGS,
    "same_partner": NO_FLAGS,
    "pairing": NO_NAMES | {"case": "Nearest"},
    "power": {c.name: c for c in POWERS if c.owed == BAD} | {"inf": math.inf},
    "bandwidth": NO_NUMBERS | {"0": 0, "without kernel": 1.0},
    "among": NO_NAMES | {"part": "same"},
    "simplex": NO_NAMES | {"case": "Abs"},
    "quadrature": NO_NAMES | {"case": "Mean", "unknown": "simpson"},
    "weighting": NO_NAMES | {"case": "None", "needs path": "girsanov"},
    "xi": NO_NUMBERS | {"None": None},
    "drift": {"a number": 0.3, "word": "Both", "a tensor": torch.zeros(3), "no weighting": _constant_drift},
    "bridged": {"text": "x", "missing": ("image",), "nothing": (), "a number": 0, "True": True},
    "at": {"missing": "5", "a number": 0, "empty": "", "a list": ["0"], "with chunks": "nothing"},
    "bn": NO_NAMES | {"case": "Frozen"},
    "chunk_size": {k: v for k, v in NO_COUNTS.items() if k != "None"},
    "schedule": {"a number": 0.5, "text": "ramp", "a list": [0.5]},
    "validate": NO_FLAGS,
    "n_time": {"misspelt": 5},
    "Sigma": {"misspelt": 5},
}


def _setting(name: str, value: Any) -> Callable[[Case], tuple[str, Any]]:
    return lambda case: (name, value.make(case) if isinstance(value, Choice) else value)


_NO_SETTINGS = (
    fine("none", None),
    *(
        bad(f"{name}={label}", _setting(name, value))
        for name, values in NO_SETTINGS.items()
        for label, value in values.items()
    ),
)


@target(
    "hostile settings",
    {
        "first": _NO_SETTINGS[: len(_NO_SETTINGS) // 2],
        "second": (_NO_SETTINGS[0], *_NO_SETTINGS[len(_NO_SETTINGS) // 2 :]),
        "through": tuple(
            fine(name, name)
            for name in ("Elliptic", "paper", "elliptic_loss", "BridgeMix", "sample_paths", "SourceTerm")
        ),
        "sampling": OBJECTIVE_AXES["sampling"],
        "n_bridges": (fine("2", 2), fine("1", 1)),
        "grad": (fine("on", True), fine("off", False)),
    },
    share=2.0,
)
def run_settings(case: Case) -> None:
    """Every entry point refuses what no setting can be; a harmless call works through each."""
    x, y = case.normal(ROWS, FEATURES), torch.arange(ROWS) % CLASSES
    settings: dict[str, Any] = {"num_classes": CLASSES, "n_bridges": case["n_bridges"]}
    through = case["through"]
    if through != "paper":
        settings["sampling"] = case["sampling"]
    if case["first"] is not None:
        name, settings[name] = case["first"]
        if name == "sigma" and through == "paper":
            settings["sigma_y"] = 0.1
    if case["second"] is not None:
        name, settings[name] = case["second"]
        is_path = settings.get("sampling", "path") == "path" and through not in ("BridgeMix", "sample_paths")
        if case.name("second") == "weighting=needs path" and is_path and case["first"] is None:
            case.excuse()
    if through == "sample_paths":
        settings.setdefault("target_space", "simplex")
    model, loss = network(case, CLASSES).float(), nn.CrossEntropyLoss()
    with torch.set_grad_enabled(case["grad"]), untouched(x, y):
        if through == "BridgeMix":
            value = elliptica.BridgeMix(**settings)(x, y)[0]
        elif through == "sample_paths":
            value = elliptica.sample_paths(x, y, **settings).x
        elif through == "elliptic_loss":
            value = elliptica.elliptic_loss(model, loss, x, y, **settings)
        else:
            make = {"Elliptic": Elliptic, "paper": Elliptic.paper, "SourceTerm": SourceTerm}[through]
            objective = make(model, loss, **settings)
            repr(objective)
            value = objective(x, y)
    check(bool(torch.isfinite(value).all()), "a result that is not finite")


# -------------------------------------------------------------------------------------- hostile batches


class Tolerant(nn.Module):
    """A network that takes inputs of any shape and floating dtype."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return a multiple of the bounded sum of each row."""
        return x.reshape(len(x), -1).float().clamp(-50, 50).sum(1, keepdim=True).tanh() * self.weight


def _n(case: Case) -> int:
    return len(case["x"]) if has_rows(case) else ROWS


LABELLED = (
    fine("classes", lambda case: torch.arange(_n(case)) % CLASSES),
    fine("int32", lambda case: (torch.arange(_n(case)) % CLASSES).int()),
    fine("uint8", lambda case: (torch.arange(_n(case)) % CLASSES).to(torch.uint8)),
    fine("soft", lambda case: case.normal(_n(case), CLASSES).softmax(1)),
    fine("one-hot", lambda case: F.one_hot(torch.arange(_n(case)) % CLASSES, CLASSES).float()),
    odd("soft float64", lambda case: case.normal(_n(case), CLASSES, dtype=torch.float64).softmax(1)),
    odd("soft float16", lambda case: case.normal(_n(case), CLASSES).softmax(1).half()),
    odd("soft learnt", lambda case: case.normal(_n(case), CLASSES).softmax(1).requires_grad_()),
    bad("one-hot integers", lambda case: F.one_hot(torch.arange(_n(case)) % CLASSES, CLASSES)),
    bad("column", lambda case: (torch.arange(_n(case)) % CLASSES)[:, None]),
    bad("beyond", lambda case: torch.full((_n(case),), CLASSES)),
    bad("ignored", lambda case: torch.full((_n(case),), -100)),
    bad("negative", lambda case: torch.full((_n(case),), -1)),
    bad("booleans", lambda case: torch.arange(_n(case)) % 2 == 0),
    bad("floating labels", lambda case: (torch.arange(_n(case)) % CLASSES).float()),
    bad("other classes", lambda case: case.normal(_n(case), CLASSES + 1).softmax(1)),
    bad("no distribution", lambda case: case.normal(_n(case), CLASSES).sigmoid()),
    bad("negative soft", lambda case: torch.tensor([[1.5, -0.5, 0.0, 0.0]]).repeat(_n(case), 1)),
    bad("a row too many", lambda case: torch.zeros(_n(case) + 1, dtype=torch.long)),
    *no_tensors(ROWS, CLASSES),
)
WEIGHTS = (
    fine("none", None),
    fine("drawn", lambda case: case.normal(_n(case)).exp()),
    fine("ones", lambda case: torch.ones(_n(case))),
    fine("zeros", lambda case: torch.zeros(_n(case))),
    odd("float64", lambda case: case.normal(_n(case), dtype=torch.float64).exp()),
    odd("learnt", lambda case: case.normal(_n(case)).exp().requires_grad_()),
    odd("huge", lambda case: torch.full((_n(case),), 3e38)),
    bad("column", lambda case: torch.ones(_n(case), 1)),
    bad("integers", lambda case: torch.ones(_n(case), dtype=torch.long)),
    bad("negative", lambda case: -torch.ones(_n(case))),
    bad("too many", lambda case: torch.ones(_n(case) + 1)),
    *(c for c in no_tensors(ROWS) if c.name != "None"),
)
PARTNERS = (
    fine("none", None),
    fine("rows", lambda case: torch.arange(_n(case)).roll(1)),
    fine("own", lambda case: torch.arange(_n(case))),
    fine("int32", lambda case: torch.zeros(_n(case), dtype=torch.int32)),
    fine("uint8", lambda case: torch.zeros(_n(case), dtype=torch.uint8)),
    bad("beyond", lambda case: torch.full((_n(case),), _n(case))),
    bad("negative", lambda case: -torch.ones(_n(case), dtype=torch.long)),
    bad("floating", lambda case: torch.zeros(_n(case))),
    bad("booleans", lambda case: torch.zeros(_n(case), dtype=torch.bool)),
    bad("too many", lambda case: torch.zeros(_n(case) + 1, dtype=torch.long)),
    bad("three axes", lambda case: torch.zeros(_n(case), 1, 1, dtype=torch.long)),
    bad("other bridges", lambda case: torch.zeros(_n(case), 5, dtype=torch.long)),
    *(c for c in no_tensors(ROWS) if c.name != "None"),
)
ENDS = (
    fine("none", None),
    fine("pair", lambda case: (_flipped(case["x"]), _flipped(case["y"]))),
    bad("a list", lambda case: [case["x"], case["y"]]),
    bad("one", lambda case: (case["x"],)),
    bad("four", lambda case: (case["x"],) * 4),
    bad("a tensor", lambda case: case["x"]),
    bad("no targets", lambda case: (case["x"], None)),
    bad("no inputs", lambda case: (None, case["y"])),
    bad("weights alone", lambda case: (case["x"], case["y"], torch.ones(_n(case)))),
    bad("short", lambda case: (torch.zeros(1, 1), torch.zeros(1, dtype=torch.long))),
    bad("nan", lambda case: (_spoilt(case["x"]), case["y"])),
    bad("text", "end"),
)


def _spoilt(x: Any) -> Any:
    return (
        torch.full_like(x, math.nan)
        if isinstance(x, Tensor) and x.is_floating_point() and x.numel()
        else None
    )


@target(
    "hostile batches",
    {
        "x": points(),
        "y": LABELLED,
        "weight": WEIGHTS,
        "partners": PARTNERS,
        "end": ENDS,
        "generator": tamed(GENERATORS),
        "sampling": OBJECTIVE_AXES["sampling"],
        "sigma": (
            fine("0.05", 0.05),
            fine("0", 0.0),
            odd("auto", "auto"),
            odd("screened", ("screened", 2.0)),
        ),
        "pairing": (
            fine("permutation", "permutation"),
            fine("inverse", "inverse_distance"),
            fine("nearest", "nearest"),
        ),
        "among": AMONG[:3],
        "n_bridges": (fine("1", 1), fine("2", 2)),
        "evaluated": (fine("training", False), fine("eval", True)),
        "paths": (
            fine("none", None),
            bad("a tensor", lambda case: case["x"]),
            bad("a pair", lambda case: (case["x"], case["y"])),
            bad("text", "paths"),
        ),
    },
    share=2.5,
)
def run_batches(case: Case) -> None:
    """The objective is the mean loss at the points it says it draws; eval mode is the ordinary loss."""
    x, y, weight = case["x"], case["y"], case["weight"]
    given = {"sample_weight": weight, "partners": case["partners"], "end": case["end"]}
    if case["partners"] is not None and case["end"] is not None:
        case.owe(BAD)
    if case.name("end") == "weights alone" and weight is not None and not hostile(case, "weight"):
        case.excuse()
    model = Tolerant(CLASSES)
    settings = {name: case[name] for name in ("sampling", "sigma", "pairing", "among", "n_bridges")}
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=CLASSES, n_times=3, **settings)
    if case["evaluated"]:
        objective.eval()
        if not hostile(case, "x", "y", "weight"):
            case.excuse()  # nothing else matters
        if case.name("x") in (
            "nan",
            "infinite",
            "minus infinite",
            "integers",
            "booleans",
            "complex",
            "float8",
        ):
            case.excuse()  # the ordinary loss takes what the model takes
        if case.name("y") in ("nan", "infinite", "minus infinite"):
            case.excuse()
    stream = case["generator"]
    if not case["evaluated"]:  # a call that is refused draws nothing
        with untouched(x, y, weight, case["partners"], stream):
            objective.sample(x, y, **given, generator=stream)
        stream = None if stream is None else _stream(case)
    with untouched(x, y, weight, case["partners"]):
        loss = objective(x, y, **given, paths=case["paths"], generator=stream)
    if case["evaluated"]:
        points, targets, weights = x, y, weight
    else:
        state = _stream(case) if case["generator"] is not None else None
        if state is None:
            return
        paths = objective.sample(x, y, **given, generator=state)
        points, targets = paths.x.transpose(0, 2).flatten(0, 2), paths.y.transpose(0, 2).flatten(0, 2)
        weights = None if paths.weight is None else paths.weight.transpose(0, 2).flatten()
    if not targets.is_floating_point():
        targets = targets.long()
    losses = F.cross_entropy(
        model(points), targets.to(torch.float32) if targets.is_floating_point() else targets, reduction="none"
    )
    expected = (losses if weights is None else losses * weights).mean()
    check_close(loss, expected, "loss", max(1e-5, digits(x)))
    loss.backward()
    check(model.weight.grad is not None, "no gradient reaches the model")


# ---------------------------------------------------------------------------- hostile models and losses


class Own(nn.Module):
    """A network whose output goes through a function."""

    def __init__(self, change: Callable[[Tensor], Any], outputs: int = CLASSES) -> None:
        super().__init__()
        self.body, self.change = nn.Linear(FEATURES, outputs), change

    def forward(self, x: Tensor) -> Any:
        """Return the changed output."""
        return self.change(self.body(x))


def _raise(error: Exception) -> Callable[..., Any]:
    def fail(*args: object) -> Any:
        raise error

    return fail


def _frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


class InPlace(nn.Module):
    """A network that overwrites its input."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Double the input in place."""
        return self.body(x.mul_(2))


MODELS = (
    fine("linear", lambda case: nn.Linear(FEATURES, CLASSES)),
    fine("deep", lambda case: network(case, CLASSES).float()),
    fine(
        "norm", lambda case: nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES))
    ),
    fine("dropout", lambda case: nn.Sequential(nn.Dropout(0.5), nn.Linear(FEATURES, CLASSES))),
    fine("no parameters", lambda case: nn.ConstantPad1d((0, CLASSES - FEATURES), 0.0)),
    fine("frozen", lambda case: _frozen(nn.Linear(FEATURES, CLASSES))),
    fine(
        "attention",
        lambda case: nn.Sequential(
            nn.Unflatten(1, (1, FEATURES)),
            nn.TransformerEncoderLayer(FEATURES, 1, 8, 0.0, batch_first=True),
            nn.Flatten(),
            nn.Linear(FEATURES, CLASSES),
        ),
    ),
    odd("in place", lambda case: InPlace()),
    odd("float64", lambda case: nn.Linear(FEATURES, CLASSES).double()),
    odd("bfloat16 output", lambda case: Own(lambda o: o.bfloat16())),
    odd("float64 output", lambda case: Own(lambda o: o.double())),
    odd("detached", lambda case: Own(lambda o: o.detach())),
    odd("nan output", lambda case: Own(lambda o: o * math.nan)),
    odd("expanded", lambda case: Own(lambda o: o[:, :1].expand(-1, CLASSES))),
    odd("own error", lambda case: Own(_raise(ValueError("my own model does not like this batch")))),
    odd("own runtime error", lambda case: Own(_raise(RuntimeError("my own type of failure")))),
    odd("own key error", lambda case: Own(_raise(KeyError("my own missing key of the model")))),
    odd("other inputs", lambda case: nn.Linear(FEATURES + 1, CLASSES)),
    odd("two arguments", lambda case: nn.Bilinear(FEATURES, FEATURES, CLASSES)),
    odd("meta", lambda case: nn.Linear(FEATURES, CLASSES, device="meta")),
    odd("made in inference", lambda case: _in_inference_model()),
    odd("images", lambda case: Own(lambda o: o[:, :, None, None])),
    bad("tuple", lambda case: Own(lambda o: (o, o))),
    bad("dict", lambda case: Own(lambda o: {"logits": o})),
    bad("list", lambda case: Own(lambda o: o.tolist())),
    bad("None output", lambda case: Own(lambda o: None)),
    bad("labels", lambda case: Own(lambda o: o.argmax(1))),
    bad("integers", lambda case: Own(lambda o: o.long())),
    bad("complex", lambda case: Own(lambda o: o.to(torch.complex64))),
    bad("sparse", lambda case: Own(lambda o: o.to_sparse())),
    bad("scalar", lambda case: Own(lambda o: o.sum())),
    bad("reduced", lambda case: Own(lambda o: o.mean(0, keepdim=True))),
    bad("too few classes", lambda case: nn.Linear(FEATURES, CLASSES - 1)),
    bad("flattened", lambda case: Own(lambda o: o.flatten())),
    bad("a function", lambda case: lambda x: x),
    bad("a class", just(nn.Linear)),
    bad("None", None),
    bad("a loss", lambda case: nn.MSELoss()),
)


def _in_inference_model() -> nn.Module:
    with torch.inference_mode():
        return nn.Linear(FEATURES, CLASSES)


def _own_loss(output: Tensor, target: Tensor) -> Tensor:
    return -(target * output.log_softmax(1)).sum(1)


LOSSES = (
    fine("cross-entropy", lambda case: nn.CrossEntropyLoss()),
    fine("function", just(F.cross_entropy)),
    fine("partial", lambda case: functools.partial(F.cross_entropy, reduction="none")),
    fine("smoothed", lambda case: nn.CrossEntropyLoss(label_smoothing=0.1)),
    fine("unreduced", lambda case: nn.CrossEntropyLoss(reduction="none")),
    fine("own", just(_own_loss)),
    fine("weighted", lambda case: nn.CrossEntropyLoss(weight=torch.tensor(CLASS_WEIGHT))),
    odd("squared", lambda case: nn.MSELoss()),
    odd("kl", lambda case: nn.KLDivLoss(reduction="batchmean")),
    odd("own error", just(_raise(ValueError("my own loss does not like this batch")))),
    odd("nan", lambda case: lambda o, y: _own_loss(o, y) * math.nan),
    odd("elements", lambda case: lambda o, y: -(y * o.log_softmax(1)) * CLASSES),
    bad("ignored class", lambda case: nn.CrossEntropyLoss(ignore_index=1)),
    bad("likelihood", lambda case: nn.NLLLoss()),
    bad("margin", lambda case: nn.MultiMarginLoss()),
    bad("three arguments", lambda case: nn.GaussianNLLLoss()),
    bad("scripted", lambda case: torch.jit.script(nn.CrossEntropyLoss())),
    bad("summed", lambda case: nn.CrossEntropyLoss(reduction="sum")),
    bad("scalar", lambda case: lambda o, y: _own_loss(o, y).mean()),
    bad("a number", lambda case: lambda o, y: 0.5),
    bad("None returned", lambda case: lambda o, y: None),
    bad("rows lost", lambda case: lambda o, y: _own_loss(o, y)[1:]),
    bad("few weights", lambda case: nn.CrossEntropyLoss(weight=torch.ones(CLASSES - 1))),
    bad("a class", just(nn.CrossEntropyLoss)),
    bad("text", "cross_entropy"),
    bad("None", None),
)


@target(
    "hostile models",
    {
        "model": MODELS,
        "loss": LOSSES,
        "settings": (
            fine("default", lambda case: {}),
            fine("path", lambda case: {"sampling": "path"}),
            fine("chunks", lambda case: {"sampling": "path", "chunk_size": 5}),
            fine("clean", lambda case: {"bn": "clean"}),
            fine("frozen", lambda case: {"bn": "frozen"}),
            fine("softmax", lambda case: {"weighting": "gradient_softmax"}),
            fine("norm", lambda case: {"weighting": "gradient_norm", "xi": 0.1}),
            fine("paths", lambda case: {"sampling": "path", "n_bridges": 2, "weighting": "multiplicative"}),
        ),
        "weight": (fine("None", None), fine("ones", lambda case: torch.ones(ROWS))),
        "with_outputs": (fine("False", False), fine("True", True)),
        "mode": (fine("training", "train"), fine("eval", "eval"), fine("no grad", "no_grad")),
    },
    share=2.5,
)
def run_models(case: Case) -> None:
    """Without noise and pairs the objective is ordinary training, for any model and loss."""
    model, loss_fn = case["model"], case["loss"]
    x, y = case.normal(ROWS, FEATURES), torch.arange(ROWS) % CLASSES
    hard = case["settings"].get("weighting") is not None
    if hard and case.name("model") in ("detached", "no parameters", "frozen", "dropout"):
        case.owe(ODD)
    if case.name("loss") in ("own", "nan", "elements", "own error"):
        settings: dict[str, Any] = {"target_space": "simplex"}
    else:
        settings = {}
    settings |= {"num_classes": CLASSES, "n_times": 2, "sigma": 0.0, "quadrature": "mean"}
    settings |= case["settings"]
    if case.name("model") in (
        "images",
        "expanded",
        "nan output",
        "in place",
        "meta",
        "flattened",
        "sparse",
        "tuple",
        "dict",
        "list",
        "None output",
        "labels",
        "integers",
        "complex",
    ):
        case.owe(ODD)
    if case.name("model") in (
        "tuple",
        "dict",
        "list",
        "None output",
        "sparse",
        "labels",
        "integers",
        "complex",
        "flattened",
    ) and not hostile(case, "loss"):
        custom = case.name("loss") in (
            "own",
            "nan",
            "elements",
            "own error",
            "scalar",
            "a number",
            "rows lost",
            "None returned",
        )
        if custom:
            case.excuse()
    try:
        objective = Elliptic(model, loss_fn, **settings)
        if case["mode"] == "eval":
            objective.eval()
        with torch.set_grad_enabled(case["mode"] != "no_grad"):
            # bridges from each row to itself, without noise: the data themselves
            given = {"sample_weight": case["weight"], "partners": torch.arange(ROWS)}
            found = objective(x, y, **given, with_outputs=case["with_outputs"], generator=_stream(case))
    except Exception as error:
        if _is_own(error, model, loss_fn, x, y):
            return case.excuse()
        raise
    loss = found.loss if case["with_outputs"] else found
    check(loss.ndim == 0 and loss.is_floating_point(), "the objective is no number")
    if case.name("model") in ("dropout", "in place", "norm") or (hard and case["mode"] != "eval"):
        if case["mode"] == "train" and loss.requires_grad:
            loss.backward()
        return None
    target = F.one_hot(y, CLASSES).float()
    with torch.set_grad_enabled(case["mode"] != "no_grad"):
        output = model(x)
        plain = loss_fn(
            output,
            y
            if case.name("loss")
            in ("cross-entropy", "function", "partial", "smoothed", "weighted", "unreduced")
            else target,
        )
        plain = plain.mean()
    check_close(loss, plain, "ordinary training", 1e-2 if case.name("model") == "bfloat16 output" else 1e-5)
    check(loss.requires_grad == plain.requires_grad, "the gradient is lost, or comes from nowhere")
    return None


def _without_digits(error: Exception) -> str:
    """Return a message without its numbers: batches differ in size."""
    return "".join(c for c in str(error) if not c.isdigit())


def _is_own(error: Exception, model: Any, loss_fn: Any, x: Tensor, y: Tensor) -> bool:
    """Tell whether an ordinary loop raises the same error."""
    for wanted in (y, F.one_hot(y, CLASSES).float()):
        for rows in (1, 2):
            try:
                loss_fn(model(torch.cat([x] * rows)), torch.cat([wanted] * rows))
            except Exception as own:
                if type(own) is type(error) and _without_digits(own) == _without_digits(error):
                    return True
    return False


# --------------------------------------------------------------------------- several inputs, hidden layers


class TwoInputs(nn.Module):
    """A network of an image-like and a table-like input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, CLASSES), nn.Linear(2, CLASSES)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Add both, smoothly."""
        return self.first(a).tanh() + self.second(b.to(a.dtype)).sin()


def _as_mapping(case: Case, a: Tensor, b: Tensor) -> Any:
    return {"tuple": (a, b), "list": [a, b], "dict": {"a": a, "b": b}}[case["form"]]


@target(
    "several inputs",
    {
        "form": (fine("tuple", "tuple"), fine("dict", "dict"), fine("list", "list")),
        "bridged": (
            fine("first", lambda case: ("a",) if case["form"] == "dict" else (0,)),
            fine("both", lambda case: ["a", "b"] if case["form"] == "dict" else [0, 1]),
            fine("second", lambda case: ("b",) if case["form"] == "dict" else (1,)),
            bad("none", None),
            bad("other", ("c",)),
            bad("text", "a"),
            bad("a number", 0),
            odd("twice", lambda case: ("a", "a") if case["form"] == "dict" else (0, 0)),
        ),
        "b": (
            fine("plain", lambda case: case.normal(ROWS, 2)),
            fine("integers", lambda case: torch.randint(5, (ROWS, 2), generator=case.generator)),
            fine("float64", lambda case: case.normal(ROWS, 2, dtype=torch.float64)),
            bad("short", lambda case: case.normal(ROWS - 1, 2)),
            bad("nan", _put((ROWS, 2), math.nan)),
            bad("a list", lambda case: [[0.0, 0.0]] * ROWS),
            bad("None", None),
            bad("sparse", lambda case: case.normal(ROWS, 2).to_sparse()),
        ),
        "sampling": OBJECTIVE_AXES["sampling"],
        "n_bridges": (fine("1", 1), fine("2", 2)),
        "sigma": (
            fine("0.1", 0.1),
            fine("0", 0.0),
            odd("auto", "auto"),
            odd("screened", ("screened", 2.0)),
            odd("tensor", torch.tensor([0.1, 0.2, 0.3])),
        ),
        "weighting": tuple(
            fine(n, n) for n in ("none", "gradient_norm", "gradient_softmax", "multiplicative")
        ),
        "chunk_size": (fine("None", None), fine("4", 4)),
        "end": (fine("None", None), fine("far", "far"), bad("one", "one"), bad("other names", "other")),
    },
    share=1.2,
)
def run_several_inputs(case: Case) -> None:
    """Bridged inputs move; the others come from the nearer end; the loss is that at the points."""
    a, b, y = case.normal(ROWS, FEATURES), case["b"], torch.arange(ROWS) % CLASSES
    x = _as_mapping(case, a, b)
    moving = {0: 0, "a": 0, 1: 1, "b": 1}
    if case.name("bridged") in ("both", "second") and case.name("b") == "integers":
        case.owe(BAD)
    if case["weighting"] == "multiplicative" and (case["sampling"] == "marginal" or case["n_bridges"] == 1):
        case.owe(BAD)
    if case.name("sigma") == "auto" and case.name("bridged") == "both":
        case.owe(BAD)
    if case.name("sigma") == "tensor" and case.name("bridged") in ("both", "second"):
        case.owe(BAD)
    end = None
    if case["end"] is not None:
        far = {"far": _as_mapping(case, a.flip(0), _flipped(b)), "one": (a,), "other": {"c": a, "d": b}}
        end = (far[case["end"]], y.flip(0))
    names = ("bridged", "sampling", "n_bridges", "sigma", "weighting", "chunk_size")
    settings = {name: case[name] for name in names}
    model = TwoInputs()
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=CLASSES, n_times=4, **settings)
    with untouched(a, b, y):
        paths = objective.sample(x, y, end=end, generator=_stream(case))
        loss = objective(x, y, end=end, generator=_stream(case))
    shown = list(paths.x.values()) if isinstance(paths.x, dict) else list(paths.x)
    bridged = {moving[name] for name in case["bridged"]}
    for place, given in enumerate((a, b)):
        if place in bridged:
            continue
        near_start = paths.s <= 0.5
        rows = given[:, None, None].expand_as(shown[place])
        check(bool((shown[place] == rows)[near_start].all()), "an input that is not bridged moved")
        if case["end"] == "far":
            check(bool((shown[place] == rows.flip(0))[~near_start].all()), "an input is not that of its end")
        check(shown[place].dtype == given.dtype, "an input that is not bridged changed its dtype")
    if case["weighting"] == "none":
        first, second = (z.transpose(0, 2).flatten(0, 2) for z in shown)
        losses = F.cross_entropy(model(first, second), paths.y.transpose(0, 2).flatten(0, 2))
        check_close(loss, losses, "loss")
    check_close(objective(x, y, paths=paths), loss, "paths= and a fresh draw differ")
    objective.eval()
    check_close(objective(x, y), F.cross_entropy(model(a, b), y), "eval mode is the ordinary loss")


@target(
    "hidden layers",
    {
        "at": (
            fine("0", "0"),
            fine("1", "1"),
            fine("2", "2"),
            *refused(
                {"missing": "9", "empty": "", "a number": 1, "a layer": nn.Linear(1, 1), "a list": ["0"]}
            ),
        ),
        "sampling": OBJECTIVE_AXES["sampling"],
        "sigma": (
            fine("0", 0.0),
            fine("0.2", 0.2),
            odd("auto", "auto"),
            odd("green", "green"),
            odd("tensor", torch.full((5,), 0.1)),
        ),
        "n_bridges": (fine("1", 1), fine("2", 2)),
        "pairing": PAIRINGS[:3],
        "weighting": tuple(
            fine(n, n) for n in ("none", "gradient_norm", "gradient_softmax", "multiplicative")
        ),
        "chunk_size": (fine("None", None), fine("4", 4)),
        "ends": (fine("drawn", "drawn"), fine("partners", "partners"), fine("far", "far")),
        "x": (
            fine("plain", lambda case: case.normal(ROWS, FEATURES)),
            bad("nan", _put((ROWS, FEATURES), math.nan)),
            odd("one row", lambda case: case.normal(1, FEATURES)),
        ),
        "quadrature": OBJECTIVE_AXES["quadrature"],
    },
    share=1.2,
)
def run_hidden(case: Case) -> None:
    """Without noise, bridges in a linear layer are those of the inputs."""
    x = case["x"]
    y = torch.arange(len(x)) % CLASSES
    names = ("sampling", "sigma", "n_bridges", "weighting", "chunk_size", "quadrature")
    settings: dict[str, Any] = {name: case[name] for name in names} | {"n_times": 4, "num_classes": CLASSES}
    clashes = [
        case["chunk_size"] is not None,
        case["weighting"] == "multiplicative" and (case["sampling"] == "marginal" or case["n_bridges"] == 1),
        case["sampling"] == "path" and case["quadrature"] == "uniform",
        case["sampling"] == "marginal" and case["ends"] == "far",
        case.name("sigma") == "tensor" and case["at"] == "2",
        case.name("sigma") == "auto" and len(x) == 1,
    ]
    if any(clashes):
        case.owe(BAD)
    partners = torch.arange(len(x)).roll(1)
    given = {"drawn": {}, "partners": {"partners": partners}, "far": {"end": (x.flip(0), y.flip(0))}}[
        case["ends"]
    ]
    model = network(case, CLASSES).float()
    hidden = Elliptic(model, nn.CrossEntropyLoss(), at=case["at"], pairing=case["pairing"], **settings)
    hooks = [len(layer._forward_hooks) for layer in model.modules()]
    with untouched(x, y):
        loss = hidden(x, y, **given, generator=_stream(case))
    loss.backward()
    check(hooks == [len(layer._forward_hooks) for layer in model.modules()], "a hook stays in the model")
    check(bool(torch.isfinite(loss)), "the loss is not finite")
    if case.name("sigma") == "auto" and (case["n_bridges"] > 1 or case["sampling"] == "path"):
        return  # measured on the rows of all bridges
    place = int(case["at"]) + 1
    inputs = model[:place](x).detach()
    given |= {"end": (model[:place](x.flip(0)).detach(), y.flip(0))} if case["ends"] == "far" else {}
    plain = Elliptic(
        nn.Sequential(*model[place:]), nn.CrossEntropyLoss(), pairing=case["pairing"], **settings
    )
    expected = plain(inputs, y, **given, generator=_stream(case))
    check_close(loss, expected, "bridges of the inputs of the other layers", 1e-4)


# ------------------------------------------------------------------------- points and losses on their own


@target(
    "path_losses and log_weights",
    {
        "kind": OBJECTIVE_AXES["kind"][:1] + OBJECTIVE_AXES["kind"][6:7],
        "sampling": OBJECTIVE_AXES["sampling"][::-1],
        "n_times": (fine("3", 3), fine("2", 2), fine("6", 6)),
        "n_bridges": OBJECTIVE_AXES["n_bridges"],
        "sigma": (
            fine("0.3", 0.3),
            fine("0", 0.0),
            fine("per feature", torch.tensor([0.1, 0.3, 2.0])),
            fine("some zero", torch.tensor([0.1, 0.0, 2.0])),
        ),
        "sigma_y": (fine("0.1", 0.1), fine("0", 0.0)),
        "chunk_size": (fine("None", None), fine("1", 1), fine("5", 5), *refused(NO_COUNTS, "None")[:3]),
        "xi": (
            fine("1", 1.0),
            fine("0", 0),
            fine("-1", -1.0),
            fine("numpy", lambda case: np.float32(0.5)),
            *refused(
                {"nan": math.nan, "inf": math.inf, "text": "1", "None": None, "True": True, "a list": [1.0]}
            ),
        ),
        "drift": (
            fine("None", None),
            fine("input", "input"),
            fine("function", just(_constant_drift)),
            fine("of both", just(_both_drifts)),
            fine("network", lambda case: DriftNetwork()),
            fine("both", "both"),
            bad("word", "Input"),
            bad("a number", 0.3),
            bad("one argument", just(lambda x: x)),
            bad("wrong shape", just(lambda x, y: x[:, :1])),
            bad("None returned", just(lambda x, y: None)),
            bad("a list", just(lambda x, y: [x, y])),
            bad("three", just(lambda x, y: (x, y, x))),
            odd("own error", just(_raise(ValueError("my own drift does not like this point")))),
        ),
        "paths": (
            fine("drawn", None),
            bad("a tensor", torch.zeros(3, 1, 3, 3)),
            bad("None", lambda case: "none"),
            bad("a tuple", lambda case: (torch.zeros(3, 1, 3, 3), torch.zeros(3, 1, 3, 4))),
        ),
        "model": (
            fine("network", lambda case: network(case, case["kind"].outputs)),
            bad("None", None),
            bad("a function", lambda case: lambda x: x),
            bad("reduced", lambda case: Own(lambda o: o.sum(), 2).double()),
        ),
        "loss": (
            fine("fitting", None),
            bad("summed", lambda case: nn.MSELoss(reduction="sum")),
            bad("text", "mse"),
        ),
        "call": (fine("losses", "losses"), fine("weights", "weights")),
    },
    share=1.5,
)
def run_path_functions(case: Case) -> None:
    """Losses and log-weights of every path, by loops."""
    kind: Kind = case["kind"]
    x, y = case.normal(ROWS, FEATURES, dtype=torch.float64), kind.y(case, ROWS, torch.float64)
    names = ("sampling", "n_times", "n_bridges", "sigma", "sigma_y")
    settings = {name: case[name] for name in names}
    paths = elliptica.sample_paths(
        x, y, target_space=kind.space, num_classes=CLASSES, **settings, generator=_stream(case)
    )
    loss = case["loss"] or kind.loss(torch.float64)
    given = paths if case["paths"] is None else None if case["paths"] == "none" else case["paths"]
    model, drift, xi = case["model"], case["drift"], case["xi"]
    shape = paths.s.shape
    if case["call"] == "losses":
        if not hostile(case, "chunk_size", "paths", "model", "loss"):
            case.excuse()
        found = elliptica.path_losses(model, loss, given, chunk_size=case["chunk_size"])
        losses, _ = reference.evaluate(model, kind.row, paths)
        check_close(found, torch.tensor(losses, dtype=torch.float64).view(shape), "losses", 1e-9)
        return
    if not hostile(case, "xi", "drift", "paths", "model", "loss"):
        case.excuse()
    own = callable(drift)
    if case["sampling"] == "marginal":
        case.owe(BAD)
    if own and case.name("sigma") in ("0", "some zero"):
        case.owe(BAD)
    if case.name("drift") in ("both", "of both") and case.name("sigma_y") == "0":
        case.owe(BAD)
    try:
        found = elliptica.log_weights(model, loss, given, xi=xi, drift=drift)
    except ValueError as error:
        if "my own drift" in str(error):
            return
        raise
    if drift == "both":
        check_close(found, _both_log_weights(model, kind, paths, float(xi)), "log-weights of both", 1e-7)
        return
    expected = reference.log_weights(
        model,
        kind.row,
        paths,
        xi=float(xi),
        variance=paths.variance["x"],
        drift=drift if own else None,
        variance_y=paths.variance_y,
    )
    table = torch.stack([torch.stack(row) for row in expected])
    check_close(found, table, "log-weights", 1e-7)


def _both_log_weights(model: nn.Module, kind: Kind, paths: Any, xi: float) -> Tensor:
    """Return the log-weight of each path for the loss gradient by input and target."""
    variances = (paths.variance["x"], paths.variance_y)
    table = torch.zeros(paths.s.shape[:2], dtype=torch.float64)
    for i, j in np.ndindex(*table.shape):
        for t in range(paths.s.shape[2] - 1):
            x, y = (z[i, j, t].detach().clone().requires_grad_() for z in (paths.x, paths.y))
            slopes = torch.autograd.grad(kind.row(model(x.unsqueeze(0))[0], y), (x, y))
            ds = paths.s[i, j, t + 1] - paths.s[i, j, t]
            for z, slope, variance in zip((paths.x, paths.free_y), slopes, variances, strict=True):
                linear = (slope * (z[i, j, t + 1] - z[i, j, t])).sum()
                table[i, j] += xi * linear - 0.5 * xi**2 * (variance * slope**2).sum() * ds
    return table


@target(
    "BridgeMix",
    {
        **{k: OBJECTIVE_AXES[k] for k in ("kind", "dtype", "rows", "x", "ends", "weight")},
        **{k: OBJECTIVE_AXES[k] for k in SETTINGS if k not in ("bn", "chunk_size")},
        "seed": (
            fine("3", 3),
            fine("drawn", lambda case, n: n, st.integers(-5, 2**70)),
            *refused({"text": "3", "None": None, "3.0": 3.0, "True": True, "numpy": np.float32(3)}),
        ),
        "epoch": (
            fine("1", 1),
            fine("0", 0),
            *refused({"text": "1", "None": None, "nan": math.nan, "0.5": 0.5}),
        ),
        "samples": (
            fine("plain", lambda case: None),
            bad("no pairs", lambda case: [torch.zeros(FEATURES)] * 2),
            bad("triples", lambda case: [(torch.zeros(FEATURES),) * 3] * 2),
        ),
    },
    share=1.5,
)
def run_bridge_mix(case: Case) -> None:
    """The points of `sample_paths`, one row each; in a loader they depend on seed, epoch and batch alone."""
    kind: Kind = case["kind"]
    case._made["weight"] = None
    if case.name("ends") == "far":
        case._made["ends"] = None
    _owe_settings(case)
    dtype, n = case["dtype"], case["rows"]
    x, y = case["x"], kind.y(case, n, dtype)
    settings = {name: case[name] for name in SETTINGS if name not in ("bn", "chunk_size")}
    settings |= {"target_space": kind.space, "num_classes": CLASSES if kind.space == "simplex" else None}
    if case["pairing"] == "label_kernel" and kind.space != "real":
        case.owe(BAD)
    mix = elliptica.BridgeMix(**settings)
    given = case["ends"] or {}
    with untouched(x, y):
        mixed, targets = mix(x, y, **given, generator=_stream(case))
    paths = elliptica.sample_paths(x, y, **settings, **given, generator=_stream(case))
    _check_points(case, paths, x, y)
    check(torch.equal(mixed, paths.x.transpose(0, 2).flatten(0, 2)), "other points than sample_paths")
    check(torch.equal(targets, paths.y.transpose(0, 2).flatten(0, 2)), "other targets than sample_paths")
    objective = Elliptic(network(case, kind.outputs).to(dtype), kind.loss(dtype), **settings)
    same = objective.sample(x, y, **given, generator=_stream(case))
    check(torch.equal(same.x, paths.x) and torch.equal(same.y, paths.y), "other points than Elliptic.sample")
    if case["ends"] is not None:
        if hostile(case, "seed", "epoch", "samples"):
            case.excuse()
        return
    samples = [(x[i].detach(), y[i]) for i in range(n)] if case["samples"] is None else case["samples"]
    collate = [mix.collate_fn(case["seed"]) for _ in range(2)]
    for each in collate:
        each.set_epoch(case["epoch"])
    one, two = (each(samples) for each in collate)
    check(all(torch.equal(a, b) for a, b in zip(one, two, strict=True)), "the same batch is mixed otherwise")
    check(one[0].shape == mixed.shape and one[1].shape == targets.shape, "a loader mixes to another shape")


# ------------------------------------------------------------------------------------------------ states


@target(
    "state_dict",
    {
        "sigma": (fine("auto", "auto"), fine("0.1", 0.1)),
        "trained": (fine("yes", True), fine("no", False)),
        "drift": (fine("None", None), fine("network", "network"), fine("fixed", "fixed")),
        "state": (
            fine("own", "own"),
            fine("pickled", "pickled"),
            odd("model", "model"),
            bad("module prefix", "module."),
            bad("compiled prefix", "_orig_mod."),
            bad("empty", "empty"),
            bad("None", "None"),
            bad("a list", "list"),
            bad("unknown", "unknown"),
            bad("other shape", "shape"),
        ),
        "strict": (fine("True", True), fine("False", False)),
    },
    share=0.6,
)
def run_state(case: Case) -> None:
    """A loaded state gives the same loss; what does not fit is refused."""
    x, y = case.normal(ROWS, FEATURES), case.normal(ROWS, 1)
    weighting = {"network": "girsanov", "fixed": "multiplicative"}.get(case["drift"] or "", "none")

    def make(seed: int) -> Elliptic:
        torch.manual_seed(seed)
        drift = None if case["drift"] is None else DriftNetwork()
        model = nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        how = {"sampling": "path", "n_bridges": 2, "n_times": 3}
        return Elliptic(model, nn.MSELoss(), sigma=case["sigma"], weighting=weighting, drift=drift, **how)

    one, other = make(1), make(2)
    if case["trained"]:
        one(x, y, generator=_stream(case)).backward()
        with torch.no_grad():
            for parameter in one.parameters():
                parameter -= 0.1 * (parameter.grad if parameter.grad is not None else 0)
    own = copy.deepcopy(one.state_dict())
    name = case["state"]
    states: dict[str, Any] = {"own": own, "model": one.model.state_dict(), "empty": {}, "None": None}
    states["list"] = list(own.items())
    states["pickled"] = pickle.loads(pickle.dumps(own))
    states["unknown"] = {**own, "model.9.weight": torch.zeros(2)}
    states["shape"] = {k: v[:1] if v.ndim else v for k, v in own.items()} | {
        "model.2.weight": torch.zeros(7, 7)
    }
    state = states.get(name) if name in states else {name + k: v for k, v in own.items()}
    if not case["strict"] and name in ("empty", "unknown"):
        case.excuse()
    try:
        other.load_state_dict(state, strict=case["strict"])
    except (RuntimeError, TypeError) as error:
        own_text = any(
            word in str(error) for word in ("Error(s) in loading", "Expected state_dict to be dict-like")
        )
        if name in ("own", "pickled", "model") or not own_text:
            raise
        return case.excuse()  # torch's own message, as for any module
    if name in ("own", "pickled"):
        if case["drift"] == "fixed":
            other.drift.load_state_dict(one.drift.state_dict())
        a, b = (each(x, y, generator=_stream(case)) for each in (one, other))
        check(torch.equal(a, b), "a loaded state gives another loss")
        for key, value in one.state_dict().items():
            check(torch.equal(value, other.state_dict()[key]), f"{key} differs")
    if name in ("own", "pickled", "model"):
        one.eval(), other.eval()
        check(torch.equal(one(x, y), other(x, y)), "a loaded state gives another ordinary loss")
    return None


# ---------------------------------------------------------------------------------- the other formulations


@target(
    "formulations",
    {
        "which": (fine("source", "source"), fine("dynkin", "dynkin")),
        "x": points(),
        "y": tamed(LABELLED, 5),
        "weight": tamed(WEIGHTS, 4),
        "generator": tamed(GENERATORS),
        "duration": (fine("1", 1.0), fine("0", 0), fine("0.3", 0.3), *refused(NO_NUMBERS), bad("None", None)),
        "sigma": (fine("0.1", 0.1), fine("0", 0), *refused(NO_NUMBERS, "a matrix"), bad("None", None)),
        "horizon": tamed(HORIZONS, 3),
        "n_steps": (fine("2", 2), fine("1", 1), *refused(NO_COUNTS)),
        "mode": (fine("training", True), fine("eval", False)),
    },
    share=1.2,
)
def run_formulations(case: Case) -> None:
    """Ordinary training plus the integral; noise added to the inputs; in eval mode the ordinary loss."""
    x, y, weight = case["x"], case["y"], case["weight"]
    model, source = Tolerant(CLASSES), case["which"] == "source"
    unused = ("n_steps",) if source else ("duration",)
    used = [a for a in case.target.axes if a not in unused]
    if not hostile(case, *used):
        case.excuse()
    common = {"sigma": case["sigma"], "horizon": case["horizon"], "num_classes": CLASSES}
    if source:
        objective: nn.Module = SourceTerm(model, nn.CrossEntropyLoss(), duration=case["duration"], **common)
    else:
        objective = DynkinSum(model, nn.CrossEntropyLoss(), n_steps=case["n_steps"], **common)
    if not case["mode"]:
        objective.eval()
        if not hostile(case, *(a for a in used if a not in ("x", "y", "generator"))):
            case.excuse()
    elif (
        source
        and case["duration"] == 0
        and not hostile(case, *(a for a in used if a not in ("x", "y", "generator")))
    ):
        case.excuse()
    with untouched(x, y, weight):
        loss = objective(x, y, sample_weight=weight, generator=case["generator"])
    double = torch.float64 if x.dtype == torch.float64 else torch.float32
    target = y.to(torch.float32) if y.is_floating_point() else y.long()
    losses = F.cross_entropy(model(x), target, reduction="none")
    clean = (losses if weight is None else losses * weight).mean()
    if not case["mode"] or (source and case["duration"] == 0):
        check_close(loss, clean, "the ordinary loss", max(1e-5, digits(x)))
    elif source and case["generator"] is not None:
        along = Elliptic(model, nn.CrossEntropyLoss(), **common)(
            x, y, sample_weight=weight, generator=_stream(case)
        )
        check_close(loss, clean + case["duration"] * along, "start plus integral", max(1e-5, digits(x)))
    elif not source and case["sigma"] == 0:
        check_close(loss, clean, "without noise", max(1e-4, 10 * digits(x)))
    elif not source and case["generator"] is not None and case["sigma"] > 0:
        stream, n_steps, z = _stream(case), int(case["n_steps"]), x
        size = float(case["sigma"]) * math.sqrt(float(case["horizon"]) / n_steps)
        each = torch.zeros(len(x))
        for step in range(n_steps):
            dx, on = (
                (torch.randn(x.shape, dtype=double, generator=stream) * size).to(x.dtype) for _ in range(2)
            )
            both = [F.cross_entropy(model(p), target, reduction="none") for p in (z + dx, z - dx)]
            start = F.cross_entropy(model(z), target, reduction="none") if step else 0.0
            each = each + (both[0] + both[1]) / 2 - start
            z = z + on
        expected = (each if weight is None else each * weight).mean()
        check_close(loss, expected, "Dynkin's sum", max(1e-4, 5 * digits(x)))


@target(
    "epoch_paths",
    {
        "x": tamed(points(), 8),
        "y": tamed(LABELLED, 5),
        "order": (
            fine("all", lambda case: torch.arange(_n(case))),
            fine("twice", lambda case: torch.arange(_n(case)).repeat(2)),
            fine("one", lambda case: torch.tensor([0])),
            fine("int32", lambda case: torch.arange(_n(case)).int()),
            bad("beyond", lambda case: torch.arange(_n(case) + 1)),
            bad("negative", torch.tensor([-1, 0])),
            bad("empty", torch.zeros(0, dtype=torch.long)),
            bad("floating", torch.tensor([0.0])),
            bad("booleans", torch.tensor([True, False])),
            bad("a list", lambda case: [0, 1]),
            bad("None", None),
            bad("two axes", torch.tensor([[0, 1]])),
        ),
        "batch_size": (fine("2", 2), fine("1", 1), fine("99", 99), *refused(NO_COUNTS)),
        "quadrature": OBJECTIVE_AXES["quadrature"],
        "sigma": (
            fine("0.1", 0.1),
            fine("0", 0.0),
            odd("per feature", torch.tensor([0.1, 0.2, 0.3])),
            bad("auto", "auto"),
        ),
        "sigma_y": (fine("None", None), fine("0.1", 0.1)),
        "generator": tamed(GENERATORS),
        "settings": (
            fine("plain", lambda case: {}),
            bad("path", lambda case: {"sampling": "path"}),
            bad("bridges", lambda case: {"n_bridges": 2}),
            bad("nearest", lambda case: {"pairing": "nearest"}),
            bad("a layer", lambda case: {"at": "0"}),
        ),
    },
    share=0.8,
)
def run_epoch_paths(case: Case) -> None:
    """Each batch's points lie between its rows and the next ones, each at its own part of [0, 1]."""
    x, y, order = case["x"], case["y"], case["order"]
    if case.name("y") in ("one-hot integers", "column") and not hostile(
        case, *(a for a in case.target.axes if a != "y")
    ):
        case.excuse()  # labels of places, as in segmentation
    if case["quadrature"] == "uniform" and case.name("settings") == "path":
        case._made["settings"] = {"n_bridges": 2}
    how = {"quadrature": case["quadrature"], "sigma": case["sigma"], "sigma_y": case["sigma_y"]}
    if (isinstance(x, Tensor) and x.requires_grad) or (isinstance(y, Tensor) and y.requires_grad):
        case.owe(BAD)
    settings = Settings(target_space="simplex", num_classes=CLASSES, n_times=3, **how, **case["settings"])
    with untouched(x, y, order):
        found = list(epoch_paths(settings, x, y, order, case["batch_size"], generator=case["generator"]))
    sizes = [len(paths.s) for paths in found]
    check(sum(sizes) == len(order) and max(sizes) - min(sizes) <= 1, f"batches of {sizes}")
    check(max(sizes) <= case["batch_size"], f"batches of {sizes}")
    begin = 0
    units: list[Tensor] = []
    gaps: list[Tensor] = []
    for paths in found:
        rows = order[begin : begin + len(paths.s)].long()
        begin += len(rows)
        case._made |= {"n_times": 3, "antithetic": False}
        _check_strata(case, paths.s.double().squeeze(2))
        s = paths.s.double().view(-1, *[1] * (x.ndim - 1))
        line = (1 - s) * x[rows].double() + s * x[rows.roll(-1)].double()
        gap = (paths.x.squeeze(1).squeeze(1).double() - line).abs()
        spread = (s * (1 - s)).sqrt() * 8 * 0.3 if case.name("sigma") != "0" else 0 * s
        size = float(x.abs().max()) if x.numel() else 0.0
        check(bool((gap <= spread + 8 * digits(x) * (1 + size)).all()), "points lie too far from the chord")
        total = paths.y.double().sum(3)
        check_close(total, torch.ones_like(total), "sum of probabilities", 1e-2)
        one_hot = (y if y.is_floating_point() else F.one_hot(y.long(), CLASSES)).double()[rows]
        s = paths.s.double().view(-1, *[1] * (one_hot.ndim - 1))
        free = (paths.y if paths.free_y is None else paths.free_y).double().squeeze(1).squeeze(1)
        noise = free - (1 - s) * one_hot - s * one_hot.roll(-1, 0)
        units.append((noise / (0.1 * (s * (1 - s)).sqrt()))[((s > 0) & (s < 1)).flatten()].flatten())
        shown = paths.y.double().squeeze(1).squeeze(1)
        wanted = free.abs() / free.abs().sum(1, keepdim=True) if case["sigma_y"] else free
        near(shown, wanted, "targets", 0.0, 1e-2)
        gaps.append(
            (gap / (0.1 * spread / 8 / 0.3)).flatten() if case.name("sigma") == "0.1" else gap[:0].flatten()
        )
    for unit in (torch.cat(units) if case["sigma_y"] else units[0][:0], torch.cat(gaps)):
        unit = unit[unit.isfinite()]
        if len(unit) > 20 and size < 100 and x.dtype in (torch.float32, torch.float64):
            share = float(unit.square().mean())
            check(abs(share - 1) < 9 / math.sqrt(len(unit)), f"noise has {share} of its variance")
