"""Cases of the adversary: what they are made of, how each is judged, and how a failure is shrunk.

A *target* is one entry point of the product. It declares *axes*, such as the inputs, the labels or a
setting, and each axis offers *choices*: the first is harmless, the others are more or less hostile. A case
names one choice per axis and a seed. So it fits in a line of JSON, can be run again anywhere, and shrinks by
going back to harmless choices one axis at a time.

A choice says what the product owes the caller:

- `fine`: valid input. An error is wrong.
- `odd`: unusual input. Either an error of ours or a right result.
- `bad`: invalid input. Anything but an error of ours is wrong.

The target runs the product and compares the result with a slow reference or an invariant (`check`).
"""

from __future__ import annotations

import ast
import functools
import json
import linecache
import random
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

import hypothesis
import torch
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from torch import Tensor

import elliptica

#: Where errors of ours are raised.
SOURCE = Path(elliptica.__file__).resolve().parent
HERE = Path(__file__).resolve().parent

CLEAR, RIGHT, WRONG = "clear error", "right", "wrong"
DEEP, CRASH, HANG = "deep error", "crash", "hang"
#: The case itself failed before the product was called: a fault of the adversary.
BROKEN = "broken case"
OUTCOMES = (CLEAR, RIGHT, WRONG, DEEP, CRASH, HANG, BROKEN)
#: Outcomes that nobody should meet.
FAILURES = OUTCOMES[2:]

FINE, ODD, BAD = "fine", "odd", "bad"
_ORDER = (FINE, ODD, BAD)


class Wrong(Exception):
    """A result that contradicts its reference, its invariant or its documentation."""


def check(condition: object, message: str) -> None:
    """Raise `Wrong` unless ``condition`` holds."""
    if not condition:
        raise Wrong(message)


def check_close(found: Tensor, expected: Tensor, message: str, tolerance: float = 1e-5) -> None:
    """Raise `Wrong` unless two tensors agree relative to the largest entry; NaN agrees with NaN."""
    check(
        found.shape == expected.shape, f"{message}: shape {tuple(found.shape)}, not {tuple(expected.shape)}"
    )
    dtype, found, expected = found.dtype, found.detach().double(), expected.detach().double()
    scale = float(expected[expected.isfinite()].abs().max()) if expected.isfinite().any() else 0.0
    least = torch.finfo(dtype).smallest_normal if dtype.is_floating_point else 0.0  # below, digits are lost
    same = torch.isclose(found, expected, rtol=tolerance, atol=tolerance * scale + least, equal_nan=True)
    if not bool(same.all()):
        at = tuple((~same).nonzero()[0].tolist())
        raise Wrong(f"{message}: {float(found[at]):.9g} instead of {float(expected[at]):.9g} at {at}")


@dataclass(frozen=True)
class Choice:
    """One value of an axis.

    Args:
        name: How the case names it.
        make: Function of the case, and of the parameter if there is one, that makes the value.
        owed: `FINE`, `ODD` or `BAD`.
        parameter: Where the parameter comes from; it must survive JSON.
    """

    name: str
    make: Callable[..., Any]
    owed: str
    parameter: st.SearchStrategy[Any] | None = None


def _choice(owed: str, name: str, make: Any, parameter: st.SearchStrategy[Any] | None) -> Choice:
    return Choice(name, make if callable(make) else lambda case: make, owed, parameter)


def fine(name: str, make: Any, parameter: st.SearchStrategy[Any] | None = None) -> Choice:
    """Make a valid choice; ``make`` is the value, or a function of the case and the parameter, if any."""
    return _choice(FINE, name, make, parameter)


def odd(name: str, make: Any, parameter: st.SearchStrategy[Any] | None = None) -> Choice:
    """Make a choice that may be refused or served; see `fine`."""
    return _choice(ODD, name, make, parameter)


def bad(name: str, make: Any, parameter: st.SearchStrategy[Any] | None = None) -> Choice:
    """Make a choice that must be refused; see `fine`."""
    return _choice(BAD, name, make, parameter)


def just(value: Any) -> Callable[[Case], Any]:
    """Wrap a value that is itself callable (a function, a class, a module) as a choice's ``make``."""
    return lambda case: value


@dataclass(frozen=True)
class Target:
    """An entry point of the product, with everything that is tried on it."""

    name: str
    axes: Mapping[str, tuple[Choice, ...]]
    #: Judge one case: raise `Wrong`, let errors pass, or return an `Outcome`.
    run: Callable[[Case], object]
    #: Share of the cases, relative to other targets.
    share: float = 1.0
    #: Packages whose own messages are part of the contract, such as scikit-learn's validation.
    clear_from: tuple[str, ...] = ()
    #: "library" or "commands".
    kind: str = "library"
    #: Seconds after which a case hangs.
    limit: float = 30.0

    def choice(self, axis: str, name: str) -> Choice:
        """Find a choice by name."""
        for each in self.axes[axis]:
            if each.name == name:
                return each
        raise KeyError(f"{self.name} has no choice {name!r} for {axis}")

    def strategy(self) -> st.SearchStrategy[dict[str, Any]]:
        """Return a source of cases: up to three axes hostile, up to eight others at unusual valid values."""

        def one_of(choices: Iterable[Choice]) -> st.SearchStrategy[list[Any]]:
            named = (
                st.tuples(st.just(one.name), *([] if one.parameter is None else [one.parameter]))
                for one in choices
            )
            return st.one_of(*(each.map(list) for each in named))

        valid = {name: one_of(c for c in axis if c.owed == FINE) for name, axis in self.axes.items()}
        hostile = {name: one_of(c for c in axis if c.owed != FINE) for name, axis in self.axes.items()}
        hostile = {name: valid[name] if each.is_empty else each for name, each in hostile.items()}

        @st.composite
        def cases(draw: st.DrawFn) -> dict[str, Any]:
            # the numbers of axes are drawn first: hypothesis flattens nested alternatives, so that among
            # twenty choices a harmless one would be rare, and nearly all cases would end in a check
            n_hostile = draw(st.sampled_from((0, 0, 1, 1, 2, 3)))
            n_valid = draw(st.sampled_from((0, 1, 2, 4, 8)))
            order = draw(st.permutations(list(self.axes)))[: n_hostile + n_valid]
            made = {
                axis: draw((hostile if number < n_hostile else valid)[axis])
                for number, axis in enumerate(order)
            }
            seed = draw(st.integers(0, 2**31 - 1))
            return {"target": self.name, "seed": seed, "choices": made}

        return cases()


TARGETS: dict[str, Target] = {}


def target(
    name: str, axes: Mapping[str, Iterable[Choice]], **options: Any
) -> Callable[[Callable[[Case], object]], Callable[[Case], object]]:
    """Register a function that runs one case of a target. The first choice of each axis must be `fine`."""

    def register(run: Callable[[Case], object]) -> Callable[[Case], object]:
        assert name not in TARGETS, f"{name} exists twice"
        made = {axis: tuple(choices) for axis, choices in axes.items()}
        for axis, choices in made.items():
            assert choices[0].owed == FINE, f"{name}: the first choice of {axis} must be harmless"
            assert len({each.name for each in choices}) == len(choices), f"{name}: {axis} has a name twice"
        TARGETS[name] = Target(name, made, run, **options)
        return run

    return register


@dataclass
class Case:
    """One case as its target sees it: values by axis, random streams and a folder of its own.

    Example:
        ``case["x"]`` makes the value of axis ``x`` once and keeps it, so a choice for ``y`` can read it.
    """

    target: Target
    seed: int
    choices: dict[str, list[Any]]
    folder: Path
    _made: dict[str, Any] = field(default_factory=dict)
    _owed: str = FINE

    def __post_init__(self) -> None:
        for axis in self.target.axes:
            self.owe(self.target.choice(axis, self.name(axis)).owed)

    def name(self, axis: str) -> str:
        """Return the name of the choice on an axis."""
        return self.choices[axis][0] if axis in self.choices else self.target.axes[axis][0].name

    def __getitem__(self, axis: str) -> Any:
        if axis not in self._made:
            name, *parameter = self.choices.get(axis) or [self.target.axes[axis][0].name]
            try:
                self._made[axis] = self.target.choice(axis, name).make(self, *parameter)
            except Exception as error:
                raise _Broken(f"{axis}={name}: {type(error).__name__}: {error}") from error
        return self._made[axis]

    @property
    def owed(self) -> str:
        """What the product owes the caller in this case: `FINE`, `ODD` or `BAD`."""
        return self._owed

    def owe(self, owed: str) -> None:
        """Raise the demand: `ODD` if choices that are fine alone may clash, `BAD` if they must be refused."""
        self._owed = max(self._owed, owed, key=_ORDER.index)

    def excuse(self) -> None:
        """Accept a right result although a choice is `BAD`: it does not matter next to the others."""
        self._owed = ODD

    @functools.cached_property
    def stream(self) -> random.Random:
        """A stream for choices that are not tensors."""
        return random.Random(self.seed)

    @functools.cached_property
    def generator(self) -> torch.Generator:
        """A stream for tensors."""
        return torch.Generator().manual_seed(self.seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw standard normals from this case's stream."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(dtype)


class _Broken(Exception):
    """The adversary failed to make a value."""


@dataclass(frozen=True)
class Outcome:
    """How a case ended, and why."""

    outcome: str
    detail: str = ""

    def signature(self) -> str:
        """Return what equal failures have in common: the detail without its numbers."""
        digits = "".join("#" if c.isdigit() else c for c in self.detail)
        while "##" in digits:
            digits = digits.replace("##", "#")
        return f"{self.outcome}: {digits[:120]}"


def judge(specification: Mapping[str, Any]) -> Outcome:
    """Run a case in this process and judge it (a crash or a hang is judged by whoever waits for it)."""
    made = TARGETS[specification["target"]]
    torch.manual_seed(specification["seed"])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = Case(made, specification["seed"], dict(specification["choices"]), Path(folder))
        try:
            result = made.run(case)
        except Wrong as error:
            return Outcome(WRONG, str(error))
        except _Broken as error:
            return Outcome(BROKEN, str(error))
        except Exception as error:
            return outcome_of(error, case)
        if isinstance(result, Outcome):
            return result
        if case.owed == BAD:
            return Outcome(WRONG, f"accepted without an error: {_hostile(case)}")
    return Outcome(RIGHT)


def _hostile(case: Case) -> str:
    """Name the choices of a case that are not fine."""
    named = [
        f"{axis}={case.name(axis)}"
        for axis in case.target.axes
        if case.target.choice(axis, case.name(axis)).owed != FINE
    ]
    return ", ".join(named) or "a combination"


def outcome_of(error: Exception, case: Case) -> Outcome:
    """Tell a message of ours from an error that escaped from below or from a fault of the adversary."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    place = f"{type(error).__name__}: {str(error)[:200]} [{Path(last.filename).name}:{last.name}]"
    if not any(SOURCE in Path(frame.filename).parents for frame in frames):
        return Outcome(BROKEN, place)
    own = is_ours(error)
    accepted = any(f"/{package}/" in last.filename for package in case.target.clear_from)
    if not own and not accepted:
        return Outcome(DEEP, place)
    if len(str(error)) < 20:
        return Outcome(DEEP, f"says too little: {place}")
    if case.owed == FINE:
        return Outcome(WRONG, f"valid input was refused: {place}")
    return Outcome(CLEAR, place)


def is_ours(error: BaseException) -> bool:
    """Tell whether an error was raised on purpose by the product, rather than by something below it."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and SOURCE in Path(frames[-1].filename).parents and _is_raised(error.__traceback__)


def _is_raised(trace: TracebackType | None) -> bool:
    """Tell whether the innermost frame stands at a ``raise``: an index out of range is no message."""
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    lines = _raise_lines(trace.tb_frame.f_code.co_filename)
    return trace.tb_lineno in lines


@functools.cache
def _raise_lines(filename: str) -> frozenset[int]:
    """Return the lines of all ``raise`` statements of a file."""
    tree = ast.parse("".join(linecache.getlines(filename)))
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Raise))
    return frozenset(line for node in found for line in range(node.lineno, (node.end_lineno or 0) + 1))


def generate(targets: Iterable[Target], number: int, seed: int) -> list[dict[str, Any]]:
    """Return about ``number`` cases of these targets, by their shares, in a fixed order for each seed."""
    targets = list(targets)
    total = sum(each.share for each in targets)
    cases: list[dict[str, Any]] = []
    for each in targets:
        cases.extend(_draw(each, max(1, round(number * each.share / total)), seed))
    random.Random(seed).shuffle(cases)
    return cases


def _draw(source: Target, number: int, seed: int) -> list[dict[str, Any]]:
    """Let hypothesis draw different cases of one target."""
    found: dict[str, dict[str, Any]] = {}

    @hypothesis.seed(f"{source.name} {seed}")
    @hypothesis.settings(
        max_examples=number,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(source.strategy())
    def collect(case: dict[str, Any]) -> None:
        found[json.dumps(case, sort_keys=True)] = case

    # hypothesis also draws constants from the source of whatever happens to be imported; without them the
    # same seed makes the same cases, in a test run as on the command line
    with (
        mock.patch.object(providers, "_get_local_constants", return_value=providers.Constants()),
        mock.patch.object(providers, "CONSTANTS_CACHE", {}),
    ):
        collect()
    return list(found.values())[:number]


def simpler(specification: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield cases that are simpler by one step: an axis back to harmless, or a shorter parameter."""
    choices = specification["choices"]
    for axis in choices:
        yield {**specification, "choices": {k: v for k, v in choices.items() if k != axis}}
    for axis, (name, *parameter) in choices.items():
        for each in _shorter(parameter[0]) if parameter else ():
            yield {**specification, "choices": {**choices, axis: [name, each]}}


def _shorter(value: Any) -> Iterable[Any]:
    """Yield simpler values of the same type."""
    if isinstance(value, str | list) and value:
        yield from (value[: len(value) // 2], value[len(value) // 2 :], value[1:], value[:-1])
    elif isinstance(value, int | float) and not isinstance(value, bool) and value not in (0, 1):
        yield type(value)(0)
        yield type(value)(1)
        if isinstance(value, int):
            yield value // 2


def shrink(
    specification: Mapping[str, Any], same: Callable[[Mapping[str, Any]], bool], most: int = 60
) -> dict[str, Any]:
    """Return the simplest case found that is still the ``same`` failure; try at most ``most`` cases."""
    best = dict(specification)
    tries, improved = 0, True
    while improved and tries < most:
        improved = False
        for each in simpler(best):
            tries += 1
            if tries > most:
                break
            if same(each):
                best, improved = each, True
                break
    return best
