"""Hostile batches and settings for the baselines, compared with plain loops in double precision."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

import elliptica
import reference
from adversary.cases import BAD, FINE, ODD, Case, Choice, bad, check, check_close, fine, just, odd, target
from adversary.library_core import DRAWS, check_frequencies, near, projected
from elliptica import baselines
from elliptica._utils.random import draw_gamma
from elliptica.baselines.groups import draw_shares
from elliptica.baselines.mixup import draw_share

ROWS, FEATURES, CLASSES = 8, 3, 3
#: The argument is not passed.
OMIT = object()

# ---- values of settings


def reals(
    *good: float, wrong: Sequence[float] = (-1.0,), least: float | None = None, none: str = BAD
) -> tuple[Choice, ...]:
    """Make the choices of a real setting: valid values, then what is not a number, or out of range."""
    name, value = f"{good[0]:g}", good[0]
    return (
        fine("default", OMIT),
        *(fine(f"{each:g}", each) for each in good),
        fine(f"numpy {name}", np.float64(value)),
        fine(f"numpy float32 {name}", np.float32(value)),
        *(bad(f"{each:g}", each) for each in wrong),
        *(() if least is None else (odd(f"{least:g}", least),)),
        bad("nan", math.nan),
        bad("infinite", math.inf),
        bad("text", name),
        bad("true", True),
        bad("list", [value]),
        bad("complex", complex(value)),
        odd("0-d tensor", torch.tensor(value)),
        Choice("None", lambda case: None, none),
    )


def counts(*good: int, least: int = 1, none: str = BAD) -> tuple[Choice, ...]:
    """Make the choices of an integer setting of at least ``least``."""
    return (
        fine("default", OMIT),
        *(fine(f"{each}", each) for each in good),
        fine(f"numpy {good[0]}", np.int64(good[0])),
        bad(f"{least - 1}", least - 1),
        bad("-5", -5),
        bad("a half", good[0] + 0.5),
        bad("float", float(good[0])),
        bad("nan", math.nan),
        bad("text", str(good[0])),
        bad("true", True),
        odd("0-d tensor", torch.tensor(good[0])),
        Choice("None", lambda case: None, none),
    )


def names(*good: str | None, wrong: Sequence[Any] = ()) -> tuple[Choice, ...]:
    """Make the choices of a setting that is one of several names."""
    some = next(each for each in good if each is not None)
    return (
        fine("default", OMIT),
        *(fine(repr(each), each) for each in good),
        bad("upper case", some.upper() + "X"),
        bad("empty", ""),
        bad("a number", 3),
        bad("list", [some]),
        *(() if None in good else (bad("None", None),)),
        *(bad(repr(each), each) for each in wrong),
    )


FLAG = (
    fine("default", OMIT),
    fine("true", True),
    fine("false", False),
    odd("text", "yes"),
    odd("None", None),
)
GENERATOR = (
    fine("own", lambda case: torch.Generator().manual_seed(case.seed)),
    fine("None", None),
    bad("a seed", 3),
    bad("text", "cpu"),
    bad("numpy", lambda case: np.random.default_rng(0)),
)


def given(case: Case, *axes: str) -> dict[str, Any]:
    """Return the arguments that a case passes."""
    return {axis: case[axis] for axis in axes if case[axis] is not OMIT}


# ---- tensors


def _put(value: float) -> Callable[[Case], Tensor]:
    """Put one value into otherwise ordinary inputs."""

    def make(case: Case) -> Tensor:
        x = case.normal(ROWS, FEATURES)
        x[2, 1] = value
        return x

    return make


def _inference(case: Case) -> Tensor:
    with torch.inference_mode():
        return case.normal(ROWS, FEATURES).clone()


#: What takes the place of a floating tensor and must be refused wherever data are expected.
NO_DATA = (
    bad("a list", lambda case: case.normal(ROWS, FEATURES).tolist()),
    bad("numpy", lambda case: case.normal(ROWS, FEATURES).numpy()),
    bad("None", None),
    bad("text", "x"),
    bad("0-d", lambda case: torch.tensor(1.0)),
    bad("no rows", lambda case: case.normal(0, FEATURES)),
    bad("sparse", lambda case: case.normal(ROWS, FEATURES).to_sparse()),
    bad("meta", lambda case: torch.empty(ROWS, FEATURES, device="meta")),
    bad("complex", lambda case: case.normal(ROWS, FEATURES).to(torch.complex64)),
    bad(
        "quantised",
        lambda case: torch.quantize_per_tensor(case.normal(ROWS, FEATURES), 0.1, 0, torch.qint8),
    ),
    bad("float8", lambda case: case.normal(ROWS, FEATURES).to(torch.float8_e4m3fn)),
)
NOT_FINITE = (bad("nan", _put(math.nan)), bad("infinite", _put(math.inf)), bad("-inf", _put(-math.inf)))
#: Valid inputs in all layouts.
ORDINARY = (
    fine("plain", lambda case: case.normal(ROWS, FEATURES)),
    fine("float64", lambda case: case.normal(ROWS, FEATURES, dtype=torch.float64)),
    fine("not contiguous", lambda case: case.normal(FEATURES, ROWS).t()),
    fine("expanded", lambda case: case.normal(1, FEATURES).expand(ROWS, FEATURES)),
    fine("requires grad", lambda case: case.normal(ROWS, FEATURES).requires_grad_()),
    fine("a parameter", lambda case: nn.Parameter(case.normal(ROWS, FEATURES))),
    fine("repeated", lambda case: case.normal(2, FEATURES).repeat(ROWS // 2, 1)),
)
X = (
    *ORDINARY,
    fine("a tuple", lambda case: (case.normal(ROWS, FEATURES),)),
    fine("a dict", lambda case: {"input": case.normal(ROWS, FEATURES)}),
    odd("one row", lambda case: case.normal(1, FEATURES)),
    odd("scaled", lambda case, k: case.normal(ROWS, FEATURES) * 10.0**k, st.integers(-45, 38)),
    odd("bfloat16", lambda case: case.normal(ROWS, FEATURES, dtype=torch.bfloat16)),
    odd("integers", lambda case: torch.ones(ROWS, FEATURES, dtype=torch.long)),
    odd("bool", lambda case: case.normal(ROWS, FEATURES) > 0),
    odd("inference", _inference),
    odd("no features", lambda case: case.normal(ROWS, 0)),
    bad("an empty tuple", ()),
    bad("an empty dict", lambda case: {}),
    bad("a tuple of lists", lambda case: ([1.0] * ROWS,)),
    bad("unequal rows", lambda case: (case.normal(ROWS, FEATURES), case.normal(ROWS + 1, FEATURES))),
    *NOT_FINITE,
    *NO_DATA,
)


def only(x: Any) -> Tensor:
    """Return the tensor of inputs that may be in a tuple or dict."""
    if isinstance(x, Mapping):
        return next(iter(x.values()))
    return x[0] if isinstance(x, tuple) else x


def count_rows(case: Case, axis: str = "x") -> int:
    """Return the number of rows of the inputs, as well as it can be said."""
    with contextlib.suppress(Exception):
        return len(only(case[axis]))
    return ROWS


def dtype_of(case: Case, axis: str = "x") -> torch.dtype:
    """Return the floating dtype of the inputs."""
    try:
        dtype = only(case[axis]).dtype
    except Exception:
        return torch.float32
    return dtype if dtype in (torch.float64, torch.bfloat16, torch.float16) else torch.float32


# ---- targets, losses and networks of three tasks

TASK = (fine("classes", "classes"), fine("real", "real"), fine("binary", "binary"))


def plain_targets(case: Case) -> Tensor:
    """Make ordinary targets of the case's task; all classes occur."""
    rows, dtype = count_rows(case), dtype_of(case)
    if case["task"] == "classes":
        order = torch.randperm(rows, generator=case.generator)
        return (torch.arange(rows) % CLASSES)[order]
    if case["task"] == "binary":
        return (case.normal(rows, 1) > 0).to(dtype)
    return case.normal(rows, 1, dtype=dtype)


def is_classes(case: Case) -> bool:
    """Tell whether targets are classes."""
    return case["task"] == "classes"


def _soft(case: Case, classes: int = CLASSES) -> Tensor:
    return case.normal(count_rows(case), classes, dtype=dtype_of(case)).softmax(1)


def _owing(owed: str, make: Callable[[Case], Any], when: Callable[[Case], bool]) -> Callable[[Case], Any]:
    """Raise the demand where the choice matters."""

    def made(case: Case) -> Any:
        if when(case):
            case.owe(owed)
        return make(case)

    return made


def _with_nan(case: Case) -> Tensor:
    y = _soft(case) if is_classes(case) else plain_targets(case).clone()
    y[:1] = math.nan
    return y


def _other_shape(case: Case) -> Tensor:
    y = plain_targets(case)
    return y[:, None] if is_classes(case) else y[:, 0]


def _one_label(value: int) -> Callable[[Case], Tensor]:
    def make(case: Case) -> Tensor:
        y = plain_targets(case).clone()
        y[:1] = value
        return y

    return make


Y = (
    fine("plain", plain_targets),
    fine("soft", lambda case: _soft(case) if is_classes(case) else plain_targets(case)),
    fine("not contiguous", lambda case: plain_targets(case).repeat_interleave(2, 0)[::2]),
    odd("int32", lambda case: plain_targets(case).int()),
    odd("uint8", lambda case: plain_targets(case).to(torch.uint8)),
    odd("bool", lambda case: plain_targets(case) > 0),
    odd("float64", lambda case: plain_targets(case).double()),
    odd(
        "requires grad",
        lambda case: (_soft(case) if is_classes(case) else plain_targets(case)).requires_grad_(),
    ),
    odd("constant", lambda case: torch.zeros_like(plain_targets(case))),
    odd("beyond the classes", _owing(BAD, _one_label(CLASSES), is_classes)),
    odd("negative", _owing(BAD, _one_label(-1), is_classes)),
    odd("ignored", _owing(BAD, _one_label(-100), is_classes)),
    odd("another class", _owing(BAD, lambda case: _soft(case, CLASSES + 1), is_classes)),
    odd("sums above one", lambda case: 3 * _soft(case) if is_classes(case) else plain_targets(case)),
    odd(
        "scaled",
        lambda case, k: plain_targets(case) * (1 if is_classes(case) else 10.0**k),
        st.integers(-45, 38),
    ),
    bad("another shape", _other_shape),
    bad("nan", _with_nan),
    bad("too few rows", lambda case: plain_targets(case)[:-1]),
    bad("too many rows", lambda case: torch.cat([plain_targets(case), plain_targets(case)])),
    bad("0-d", lambda case: torch.tensor(1)),
    bad("a list", lambda case: plain_targets(case).float().tolist()),
    bad("numpy", lambda case: plain_targets(case).float().numpy()),
    bad("None", None),
    bad("complex", lambda case: plain_targets(case).to(torch.complex64)),
    bad("sparse", lambda case: plain_targets(case).to_sparse()),
    bad("meta", lambda case: plain_targets(case).to("meta")),
)


def _weight(change: Callable[[Tensor], Any]) -> Callable[[Case], Any]:
    return lambda case: change(case.normal(count_rows(case)).abs() + 0.1)


def _first(value: float) -> Callable[[Tensor], Tensor]:
    def change(w: Tensor) -> Tensor:
        w[:1] = value
        return w

    return change


WEIGHT = (
    fine("none", OMIT),
    fine("None", None),
    fine("positive", _weight(lambda w: w)),
    fine("ones", _weight(torch.ones_like)),
    fine("one zero", _weight(_first(0.0))),
    fine("all zero", _weight(torch.zeros_like)),
    fine("requires grad", _weight(lambda w: w.requires_grad_())),
    odd("float64", _weight(lambda w: w.double())),
    odd("float16", _weight(lambda w: w.half())),
    odd("tiny", _weight(lambda w: w * 1e-38)),
    odd("huge", _weight(lambda w: w * 1e37)),
    bad("negative", _weight(_first(-1.0))),
    bad("nan", _weight(_first(math.nan))),
    bad("infinite", _weight(_first(math.inf))),
    bad("integers", _weight(lambda w: w.long())),
    bad("bool", _weight(lambda w: w > 0)),
    bad("a column", _weight(lambda w: w[:, None])),
    bad("too few", _weight(lambda w: w[:-1])),
    bad("0-d", lambda case: torch.tensor(1.0)),
    bad("a number", 2.0),
    bad("a list", _weight(lambda w: w.tolist())),
    bad("sparse", _weight(lambda w: w.to_sparse())),
)


class OwnError(Exception):
    """An error of the user's own code."""


class Network(nn.Sequential):
    """A small network whose output a case may spoil."""

    def __init__(self, outputs: int, *, inputs: int = FEATURES, layer: nn.Module | None = None) -> None:
        super().__init__(nn.Linear(inputs, 5), nn.Tanh() if layer is None else layer, nn.Linear(5, outputs))
        self.spoil: Callable[[Tensor], Any] | None = None

    def forward(self, input: Tensor) -> Any:
        """Apply the layers, then spoil the output."""
        output = super().forward(input)
        return output if self.spoil is None else self.spoil(output)


def _network(
    spoil: Callable[[Tensor], Any] | None = None, layer: Callable[[], nn.Module] | None = None
) -> Callable[[Case], nn.Module]:
    def make(case: Case) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case.seed)
            try:
                inputs = only(case["x"]).shape[-1]
            except Exception:
                inputs = FEATURES
            outputs = CLASSES if is_classes(case) else 1
            model = Network(outputs, inputs=inputs, layer=None if layer is None else layer())
        model.spoil = spoil
        return model.to(dtype_of(case))

    return make


def _frozen(case: Case) -> nn.Module:
    return _network()(case).requires_grad_(False)


def _own_error(output: Tensor) -> Any:
    raise OwnError("the model's own error")


MODEL = (
    fine("plain", _network()),
    fine("batch norm", _network(layer=lambda: nn.BatchNorm1d(5))),
    fine("dropout", _network(layer=lambda: nn.Dropout(0.5))),
    fine("frozen", _frozen),
    fine("constant", _network(lambda output: output * 0)),
    odd("detached", _network(lambda output: output.detach())),
    odd("nan", _network(lambda output: output * math.nan)),
    odd("infinite", _network(lambda output: output * math.inf)),
    odd("huge", _network(lambda output: output * 1e30)),
    odd("raises", _network(_own_error)),
    bad("a tuple", _network(lambda output: (output, output))),
    bad("a dict", _network(lambda output: {"logits": output})),
    bad("returns None", _network(lambda output: None)),
    bad("a scalar", _network(lambda output: output.mean())),
    bad("fewer rows", _network(lambda output: output[:-1])),
    bad("labels", _network(lambda output: output.argmax(1))),
    bad("sparse", _network(lambda output: output.to_sparse())),
    bad("another width", _network(lambda output: torch.cat([output, output], 1)[:, :2])),
    bad("no network", just(lambda x: x)),
    bad("a loss", lambda case: nn.MSELoss()),
    bad("None", None),
    bad("a class", just(nn.Linear)),
)


def own_loss(case: Case, **options: Any) -> nn.Module:
    """Make the ordinary loss of the task."""
    kinds = {"classes": nn.CrossEntropyLoss, "real": nn.MSELoss, "binary": nn.BCEWithLogitsLoss}
    return kinds[case["task"]](**options)


def _own_function(case: Case) -> Any:
    return {
        "classes": F.cross_entropy,
        "real": F.mse_loss,
        "binary": F.binary_cross_entropy_with_logits,
    }[case["task"]]


def class_weights(case: Case) -> Tensor:
    """Return weights of the classes."""
    return torch.tensor([1.0, 2.0, 0.5], dtype=dtype_of(case))


def _per_row(case: Case) -> Any:
    task = case["task"]
    function = _own_function(case)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        losses = function(output, y, reduction="none")
        return losses if task == "classes" else losses.flatten(1).mean(1)

    return loss


def _raising(output: Tensor, y: Tensor) -> Tensor:
    raise OwnError("the loss's own error")


LOSS = (
    fine("own", own_loss),
    fine("function", _own_function),
    fine("partial", lambda case: functools.partial(_own_function(case), reduction="none")),
    fine("unreduced", lambda case: own_loss(case, reduction="none")),
    fine("per row", _per_row),
    fine(
        "weighted",
        lambda case: own_loss(case, **({"weight": class_weights(case)} if is_classes(case) else {})),
    ),
    fine("smoothed", lambda case: own_loss(case, **({"label_smoothing": 0.1} if is_classes(case) else {}))),
    odd("raises", just(_raising)),
    odd("nan", just(lambda output, y: output.flatten(1).sum(1) * math.nan)),
    bad("summed", lambda case: own_loss(case, reduction="sum")),
    bad("a scalar", just(lambda output, y: output.mean())),
    bad("a float", just(lambda output, y: 1.0)),
    bad("None returned", just(lambda output, y: None)),
    bad("fewer rows", just(lambda output, y: output.flatten(1).sum(1)[:-1])),
    bad("a class", just(nn.CrossEntropyLoss)),
    bad("text", "mse"),
    bad("None", None),
    bad("labels only", lambda case: nn.NLLLoss()),
    bad("ignores", lambda case: nn.CrossEntropyLoss(ignore_index=1)),
    bad("other weights", lambda case: nn.CrossEntropyLoss(weight=torch.ones(CLASSES + 1))),
)
MODE = (fine("train", True), fine("eval", False))
#: Choices for which results must be finite and equal to the references.
CALM_MODELS = {"plain", "frozen", "constant", "detached"}
CALM_LOSSES = {"own", "function", "partial", "unreduced", "per row", "weighted", "smoothed"}


# ---- common checks


def _bits(value: Tensor) -> Tensor:
    """Return the bytes of a dense tensor."""
    value = value.detach()
    value = value.int_repr() if value.is_quantized else value
    return torch.empty(value.numel(), dtype=value.dtype).copy_(value.reshape(-1)).view(torch.uint8)


class Kept:
    """What must not change during a call: tensors, a model and its modes, and the global random state."""

    def __init__(self, values: Any, model: object = None) -> None:
        self.values = [v for v in self._leaves(values) if v.layout == torch.strided and not v.is_meta]
        self.copies = [_bits(v).clone() for v in self.values]
        self.model = model if isinstance(model, nn.Module) else None
        if self.model is not None:
            self.state = copy.deepcopy(self.model.state_dict())
            self.modes = [module.training for module in self.model.modules()]
            self.hooks = self._hooks(self.model)
        self.random = torch.get_rng_state()

    @classmethod
    def _leaves(cls, value: Any) -> Iterator[Tensor]:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            for each in value.values():
                yield from cls._leaves(each)
        elif isinstance(value, (tuple, list)):
            for each in value:
                yield from cls._leaves(each)

    @staticmethod
    def _hooks(model: nn.Module) -> int:
        return sum(len(module._forward_hooks) for module in model.modules())

    def check(self, *, state: bool = True, random: bool = True) -> None:
        """Raise `Wrong` where something has changed."""
        for value, before in zip(self.values, self.copies, strict=True):
            check(torch.equal(_bits(value), before), "a tensor of the caller was changed")
        if self.model is not None:
            if state:
                now = self.model.state_dict()
                check(now.keys() == self.state.keys(), "the entries of the model's state changed")
                for name, before in self.state.items():
                    check(
                        torch.equal(now[name].nan_to_num(7.5), before.nan_to_num(7.5)),
                        f"the model's {name} was changed",
                    )
            modes = [module.training for module in self.model.modules()]
            check(modes == self.modes, "the training mode of a module was changed")
            check(self._hooks(self.model) == self.hooks, "a forward hook was left in the model")
        if random:
            check(torch.equal(torch.get_rng_state(), self.random), "torch's global random state was changed")


def same_error(error: Exception, plain: Callable[[], object]) -> bool:
    """Tell whether a plain loop fails in the same way: then the error is the user's own."""
    try:
        plain()
    except Exception as other:
        return type(other) is type(error) and str(other).split("\n")[0] == str(error).split("\n")[0]
    return False


def equal(first: Any, second: Any) -> bool:
    """Compare two results bit for bit; NaN equals NaN."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        if first.shape != second.shape or first.dtype != second.dtype:
            return False
        return bool(((first == second) | ((first != first) & (second != second))).all())
    if isinstance(first, (tuple, list)):
        return len(first) == len(second) and all(map(equal, first, second))
    if isinstance(first, float) and math.isnan(first):
        return math.isnan(second)
    return bool(first == second)


# ---- objectives

GROUP = (
    fine("two", lambda case: torch.arange(count_rows(case)) % 2),
    fine("random", lambda case: torch.randint(3, (count_rows(case),), generator=case.generator)),
    fine("one", lambda case: torch.zeros(count_rows(case), dtype=torch.long)),
    fine("one each", lambda case: torch.arange(count_rows(case))),
    fine("int32", lambda case: (torch.arange(count_rows(case)) % 2).int()),
    fine("with gaps", lambda case: torch.arange(count_rows(case)) % 2 * 2),
    fine("uint8", lambda case: (torch.arange(count_rows(case)) % 2).to(torch.uint8)),
    odd("huge", lambda case: torch.arange(count_rows(case)) % 2 * (2**62)),
    odd("eval None", _owing(BAD, lambda case: None, lambda case: bool(case["mode"]))),
    odd(
        "negative",
        _owing(BAD, lambda case: torch.arange(count_rows(case)) - 1, lambda case: bool(case["mode"])),
    ),
    odd("floats", _owing(BAD, lambda case: torch.zeros(count_rows(case)), lambda case: bool(case["mode"]))),
    odd("bool", _owing(BAD, lambda case: torch.ones(count_rows(case)) > 0, lambda case: bool(case["mode"]))),
    odd(
        "a column",
        _owing(BAD, lambda case: torch.zeros(count_rows(case), 1).long(), lambda case: bool(case["mode"])),
    ),
    odd(
        "too few",
        _owing(BAD, lambda case: torch.zeros(count_rows(case) - 1).long(), lambda case: bool(case["mode"])),
    ),
    odd("a list", _owing(BAD, lambda case: [0] * count_rows(case), lambda case: bool(case["mode"]))),
    odd("names", _owing(BAD, lambda case: ["a"] * count_rows(case), lambda case: bool(case["mode"]))),
    odd(
        "numpy",
        _owing(BAD, lambda case: np.zeros(count_rows(case), dtype=np.int64), lambda case: bool(case["mode"])),
    ),
)
NUM_CLASSES = (
    fine("default", OMIT),
    fine("None", None),
    fine("right", lambda case: CLASSES if is_classes(case) else OMIT),
    odd("too many", CLASSES + 1),
    odd("too few", CLASSES - 1),
    bad("0", 0),
    bad("-1", -1),
    bad("float", 3.0),
    bad("text", "3"),
    bad("true", True),
)
LAYER = (
    fine("default", OMIT),
    fine("0", "0"),
    fine("1", "1"),
    bad("unknown", "layer9"),
    bad("empty", ""),
    bad("a number", 1),
    bad("a list", ["1"]),
)
LAYERS = (
    fine("inputs", (None,)),
    fine("hidden", ("1",)),
    fine("both", (None, "1")),
    fine("a list", [None, "0"]),
    bad("twice", ("1", "1")),
    bad("empty", ()),
    bad("text", "1"),
    bad("unknown", ("layer9",)),
    bad("numbers", (1,)),
    bad("None", None),
)
SHARE = reals(0.5, 0.1, 1.0, wrong=(0.0, -0.5, 1.5))
ALPHA = reals(1.0, 0.0, 0.2, 20.0, wrong=(-1.0,), least=1e-300)
PENALTY = reals(1.0, 0.0, 100.0, 1e4)
STEPS = counts(0, 1, 3, least=0)


class Batch:
    """A batch in double precision, with plain loops for what the objectives compute."""

    def __init__(self, case: Case, settings: Mapping[str, Any]) -> None:
        self.case, self.settings = case, settings
        self.x = only(case["x"]).detach().double()
        y = case["y"].detach()
        self.hard = not y.is_floating_point() and y.dtype != torch.bool
        self.t = F.one_hot(y.long(), CLASSES).double() if self.hard else y.double()
        weight = case["weight"]
        self.w = weight.detach().double() if isinstance(weight, Tensor) else None
        self.model = copy.deepcopy(case["model"]).double().eval()
        self.n = len(self.x)
        self.generator = torch.Generator().manual_seed(case.seed)
        #: Number of this training call.
        self.calls = case["calls"] if "calls" in case.target.axes else 1
        loss = case.name("loss")
        self.class_weight = class_weights(case).double() if loss == "weighted" and is_classes(case) else None
        self.smoothing = 0.1 if loss == "smoothed" and is_classes(case) else 0.0

    def get(self, name: str, default: Any) -> Any:
        """Return a setting as the objective sees it."""
        return self.settings.get(name, default)

    def losses(self, x: Tensor, t: Tensor, scale: Tensor | None = None) -> Tensor:
        """Return the loss of each row at points; ``scale`` multiplies the outputs."""
        return self.losses_of(self.model(x), t, scale)

    def losses_of(self, output: Tensor, t: Tensor, scale: Tensor | None = None) -> Tensor:
        """Return the loss of each row from outputs."""
        output = output if scale is None else output * scale
        if self.case["task"] == "classes":
            t = (1 - self.smoothing) * t + self.smoothing / t.shape[1]
            rows = -output.log_softmax(1) * t
            return (rows if self.class_weight is None else rows * self.class_weight).sum(1)
        if self.case["task"] == "real":
            return (output - t).square().mean(1)
        return (F.softplus(output) - t * output).mean(1)

    def size(self, t: Tensor) -> Tensor:
        """Return the class weight of each row's target."""
        assert self.class_weight is not None
        return (t * self.class_weight).sum(1)

    def mean(self, losses: Tensor, t: Tensor, w: Tensor | None, *, soft: bool = False) -> Tensor:
        """Average weight times loss; class weights of labels divide the result."""
        total = losses if w is None else losses * w
        if self.class_weight is None or soft:
            return total.mean()
        return total.mean() / self.size(t).mean()

    def plain(self) -> Tensor:
        """Return the ordinary loss."""
        return self.mean(self.losses(self.x, self.t), self.t, self.w, soft=not self.hard)

    def base(self) -> Tensor:
        """Return sample weights of sum one."""
        if self.w is None or float(self.w.sum()) == 0:
            return torch.full((self.n,), 1 / self.n, dtype=torch.float64)
        return self.w / self.w.sum()

    def forward_mixed(self, at: str | None, mix: Callable[[Tensor], Tensor]) -> Tensor:
        """Run the network with inputs, or the output of a layer, replaced."""
        value = mix(self.x) if at is None else self.x
        for name, layer in self.model.named_children():
            value = layer(value)
            if name == at:
                value = mix(value)
        return value if self.model.spoil is None else self.model.spoil(value)

    # groups

    def parts(self) -> list[Tensor]:
        """Return the rows of each group."""
        group = self.case["group"]
        return [(group == g).nonzero().flatten() for g in sorted(set(group.tolist()))]

    def risk(self, losses: Tensor, rows: Tensor) -> Tensor:
        """Return the mean loss of some rows, as plain training computes it."""
        if len(rows) == 0:
            return losses.new_zeros(())
        total = (losses if self.w is None else losses * self.w)[rows]
        if self.class_weight is None:
            return total.mean()
        return total.sum() / self.size(self.t)[rows].sum()

    def risks(self) -> Tensor:
        """Return the risk of each group."""
        losses = self.losses(self.x, self.t)
        return torch.stack([self.risk(losses, rows) for rows in self.parts()])


def worst_weights(losses: Tensor, base: Tensor, kind: str, size: float) -> Tensor:
    """Return the weights of robust training by sorting or bisection."""
    p = torch.zeros_like(losses)
    if kind == "cvar":
        left = float(size)
        for level in sorted(set(losses[base > 0].tolist()), reverse=True):  # equal losses share their weight
            tied = (losses == level) & (base > 0)
            mass = float(base[tied].sum())
            p[tied] = base[tied] * min(1.0, left / mass)
            left = max(left - mass, 0.0)
        return p / p.sum()
    size = float(size)
    present = base > 0
    top = losses[present].max()

    def at(eta: float) -> Tensor:
        return torch.where(present, base * (losses - eta).clamp_min(0), 0.0)

    def distance(eta: float) -> float:
        q = at(eta)
        q = q / q.sum()
        return float((base[present] * (q / base.clamp_min(1e-300) - 1)[present].square()).sum() / 2)

    spread = float(top - losses[present].min())
    if spread == 0 or size == 0:
        return base.clone()
    largest = base[present & (losses == top)].sum()
    if kind == "chi2" and float(1 / largest - 1) / 2 <= size:
        return torch.where(present & (losses == top), base, 0.0) / largest
    low, high = float(top) - 1e12 * spread, float(top)
    for _ in range(300):
        middle = (low + high) / 2
        too_far = distance(middle) > size if kind == "chi2" else float(at(middle).sum()) / size < 1
        low, high = (low, middle) if too_far else (middle, high)
    p = at(low)
    return p / p.sum()


def _erm(b: Batch) -> Tensor:
    return b.plain()


def _reweighted(b: Batch, value: Tensor) -> Tensor:
    return b.mean(value.expand(b.n), b.t, b.w)


def _focal(b: Batch) -> Tensor:
    losses = b.losses(b.x, b.t)
    entropy = losses if b.class_weight is None else losses / b.size(b.t)
    return b.mean((-torch.expm1(-entropy)) ** b.get("gamma", 2.0) * losses, b.t, b.w)


def _tilted(b: Batch) -> Tensor:
    t, losses, base = b.get("t", 1.0), b.losses(b.x, b.t), b.base()
    if t == 0:
        return _reweighted(b, (base * losses).sum())
    if abs(t) < 1e-6:  # the first terms of the series
        mean = (base * losses).sum()
        return _reweighted(b, mean + t / 2 * (base * (losses - mean).square()).sum())
    return _reweighted(b, torch.logsumexp(base.log() + t * losses, 0) / t)


def _dro(b: Batch) -> Tensor:
    losses, base = b.losses(b.x, b.t), b.base()
    kind, alpha, rho, penalty = (b.get(k, None) for k in ("divergence", "alpha", "rho", "penalty"))
    fixed = losses.detach()
    if penalty is not None:
        p = worst_weights(fixed, base, "penalty", penalty)
        ratio = torch.where(base > 0, p / base.clamp_min(1e-300), 1.0)
        return _reweighted(b, (p * losses).sum() - penalty / 2 * (base * (ratio - 1).square()).sum())
    if kind in (None, "cvar"):
        p = worst_weights(fixed, base, "cvar", 0.1 if alpha is None else alpha)
    else:
        size = (1 / alpha - 1) ** 2 / 2 if alpha is not None else 1.0 if rho is None else rho
        p = worst_weights(fixed, base, "chi2", size)
    return _reweighted(b, (p * losses).sum())


def _doro(b: Batch) -> Tensor:
    losses, base = b.losses(b.x, b.t), b.base()
    alpha, epsilon = b.get("alpha", 0.2), b.get("epsilon", 0.3)
    order = [i for i in losses.argsort(descending=True).tolist() if base[i] > 0]
    rows = len(order)
    out = min(math.floor(epsilon * rows + 1e-9), rows - 1)
    kept = torch.tensor(order[out:])
    kind = b.get("divergence", "cvar")
    size = alpha if kind == "cvar" else (1 / alpha - 1) ** 2 / 2
    p = worst_weights(losses[kept].detach(), base[kept] / base[kept].sum(), kind, size)
    return _reweighted(b, (p * losses[kept]).sum())


def _smoothing(b: Batch) -> Tensor:
    s = b.get("smoothing", 0.1)
    t = (1 - s) * b.t + s / b.t.shape[1]
    return b.mean(b.losses(b.x, t), t, b.w)


def _normal(b: Batch, shape: Sequence[int]) -> Tensor:
    """Draw normals as a call on the inputs of the case does."""
    dtype = torch.float64 if dtype_of(b.case) == torch.float64 else torch.float32
    return torch.randn(*shape, generator=b.generator, dtype=dtype).double()


def _noise(b: Batch) -> Tensor | None:
    sigma, n = b.get("sigma", 0.1), b.n
    pairs = isinstance(sigma, str | elliptica.Green)
    if pairs:
        x = only(b.case["x"]).detach()
        how = {"pairing": "inverse_distance", "generator": b.generator}
        partners = elliptica.sample_partners(x, **how)[:, 0]
    bridge = b.get("law", "gaussian") == "bridge"
    s = torch.rand(n, generator=b.generator).double() if bridge else torch.zeros(n)
    if pairs:
        gamma = draw_gamma(b.x.shape[1] / 2 - 1, n, device=torch.device("cpu"), generator=b.generator)
        sigma = ((b.x - b.x[partners]).norm(dim=1) / (2 * gamma.double()).sqrt())[:, None]
    spread = (s * (1 - s)).sqrt()[:, None] if bridge else 1.0
    quiet = not isinstance(sigma, Tensor) and sigma == 0
    z = 0.0 if quiet else _normal(b, b.x.shape)
    return b.mean(b.losses(b.x + sigma * spread * z, b.t), b.t, b.w)


def _mix(share: float, partners: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda value: share * value + (1 - share) * value[partners]


def _mixed(
    b: Batch,
    alpha: float,
    at: str | None,
    *,
    own_weights: bool = False,
    noise: Callable[[Tensor], Tensor] = lambda value: value,
) -> Tensor:
    share = draw_share(alpha, b.generator)
    partners = torch.randperm(b.n, generator=b.generator)
    mix = _mix(share, partners)
    output = b.forward_mixed(at, lambda value: noise(mix(value)))
    near, far = b.losses_of(output, b.t), b.losses_of(output, b.t[partners])
    if own_weights and b.w is not None:
        return b.mean(share * b.w * near + (1 - share) * b.w[partners] * far, mix(b.t), None)
    w = None if b.w is None else mix(b.w)
    return b.mean(share * near + (1 - share) * far, mix(b.t), w)


def _mixup(b: Batch) -> Tensor:
    return _mixed(b, b.get("alpha", 1.0), b.get("at", None))


def _umix(b: Batch) -> Tensor:
    if float(torch.rand(1, generator=b.generator)) >= b.get("probability", 0.5):
        return b.mean(b.losses(b.x, b.t), b.t, b.w)
    return _mixed(b, b.get("alpha", 0.5), b.get("at", None), own_weights=True)


def _regmixup(b: Batch) -> Tensor:
    clean = b.mean(b.losses(b.x, b.t), b.t, b.w)
    return clean + b.get("weight_of_mixup", 1.0) * _mixed(b, b.get("alpha", 20.0), None)


def _manifold(b: Batch, alpha: float = 2.0, **options: Any) -> Tensor:
    layers = b.get("layers", (None,))
    at = layers[0]
    if len(layers) > 1:
        at = layers[int(float(torch.rand(1, generator=b.generator)) * len(layers))]
    return _mixed(b, b.get("alpha", alpha), at, **options)


def _nfm(b: Batch) -> Tensor:
    def level(most: float) -> float:
        cpu = torch.device("cpu")
        first, second = (draw_gamma(k, 1, device=cpu, generator=b.generator).item() for k in (2.0, 5.0))
        return most * first / (first + second)

    def noise(value: Tensor) -> Tensor:
        additive, multiplicative = b.get("additive", 0.4), b.get("multiplicative", 0.2)
        added = level(additive) * _normal(b, value.shape) if additive else 0.0
        if multiplicative:
            size = level(multiplicative)
            value = value * (1 + size * (2 * torch.rand(value.shape, generator=b.generator).double() - 1))
        return value + added

    return _manifold(b, 1.0, noise=noise)


def _mixupe(b: Batch) -> Tensor | None:
    alpha, eta, threshold = b.get("alpha", 2.0), b.get("eta", 0.001), b.get("threshold", 1.0)
    mixed = _mixed(b, alpha, None)
    if eta == 0:
        return mixed
    logits = b.model(b.x)
    size = (logits * (b.t - logits.softmax(1))).sum(1)
    if bool(((size.detach() - threshold).abs() < 1e-5).any()):
        return None  # too close to tell in single precision
    terms = -size * (size.detach() < threshold)
    terms = terms if b.w is None else terms * b.w
    total = mixed + eta * alpha / (2 * alpha + 1) * terms.mean()
    if float(total.detach().abs()) <= 1e-3 * float(mixed.detach().abs()):
        return None
    return total * (mixed / total).detach().abs()


def _cmixup(b: Batch) -> Tensor | None:
    share = draw_share(b.get("alpha", 2.0), b.generator)
    u = torch.rand(b.n, 1, generator=b.generator).double()
    gaps = torch.cdist(b.t.reshape(b.n, -1), b.t.reshape(b.n, -1))
    sums = (-(gaps**2) / (2 * b.get("bandwidth", 0.5) ** 2)).exp().cumsum(1)
    sums = sums / sums[:, -1:]
    if float((sums - u).abs().min()) < 1e-5:  # too close to tell in single precision
        return None
    mix = _mix(share, torch.searchsorted(sums, u, right=True).squeeze(1).clamp_max(b.n - 1))
    output = b.forward_mixed(b.get("at", None), mix)
    return b.mean(b.losses_of(output, mix(b.t)), mix(b.t), None if b.w is None else mix(b.w))


def scaled_rows(rows: Tensor, share: float, rho: float, kind: str) -> Tensor | None:
    """Scale directions of a matrix (FOMA); None if it is doubtful which."""
    values, right = torch.linalg.svd(rows.detach(), full_matrices=False)[1:]
    cumulative = values.cumsum(0) / values.sum()
    small = cumulative > rho if kind == "small" else cumulative < rho
    if float((cumulative - rho).abs().min()) < 1e-4:
        return None
    moved = right[small]
    gaps = (values[small][:, None] - values[~small]).abs()
    if gaps.numel() and float(gaps.min()) < 1e-3 * float(values[0]):
        return None
    return rows + (share - 1) * rows @ moved.T @ moved


def _foma(b: Batch) -> Tensor | None:
    layers, rho, kind = b.get("layers", (None,)), b.get("rho", 0.9), b.get("scaled", "small")
    target, value, doubtful = b.t, b.x, False
    for name, layer in ((None, nn.Identity()), *b.model.named_children()):
        value = layer(value)
        if name in layers:
            share = draw_share(b.get("alpha", 1.0), b.generator)
            moved = scaled_rows(torch.cat([value, target], 1), share, rho, kind) if share != 1 else None
            doubtful |= moved is None and share != 1
            if moved is not None:
                value = moved[:, : value.shape[1]]
                target = moved[:, value.shape[1] :] if b.get("targets", "scaled") == "scaled" else target
    output = value if b.model.spoil is None else b.model.spoil(value)
    return None if doubtful else b.mean(b.losses_of(output, target), b.t, b.w, soft=True)


def _groupdro(b: Batch) -> Tensor:
    n = int(b.get("n_groups", 0))
    sizes = torch.as_tensor(b.get("group_sizes", [1] * n)).double()
    labels = torch.tensor(sorted(set(b.case["group"].tolist())))
    margin = torch.where(sizes > 0, b.get("adjustment", 0.0) / sizes.clamp_min(1).sqrt(), 0.0)
    risks = b.risks() + margin[labels]
    q = (sizes > 0).double() / (sizes > 0).sum()
    for _ in range(b.calls):
        gains = torch.zeros(n, dtype=torch.float64)
        gains[labels] = b.get("step_size", 0.01) * risks.detach()
        q = q * (gains - gains.max()).exp()
        q = q / q.sum()
    return (q[labels] * risks).sum()


def _slopes(b: Batch) -> tuple[Tensor, Tensor]:
    scale = torch.ones(b.n, 1, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        losses = b.losses(b.x, b.t, scale)
        (slopes,) = torch.autograd.grad(losses.sum(), scale, create_graph=True)
    return losses, slopes.flatten()


def _strength(b: Batch, usual: float) -> float:
    """Return the weight of a penalty that jumps after some calls, by default many."""
    return b.get("penalty", usual) if b.calls > b.get("anneal_steps", 500) else 1.0


def _irm(b: Batch) -> Tensor:
    losses, slopes = _slopes(b)
    parts = b.parts()
    risk = torch.stack([b.risk(losses, rows) for rows in parts]).mean()
    halves = [b.risk(slopes, rows[::2]) * b.risk(slopes, rows[1::2]) for rows in parts]
    return risk + _strength(b, 100.0) * torch.stack(halves).mean()


def _features(b: Batch, at: str) -> Tensor:
    found: list[Tensor] = []
    b.forward_mixed(at, lambda value: found.append(value) or value)
    return found[0]


def _ibirm(b: Batch) -> Tensor:
    loss = _irm(b)
    if b.calls <= b.get("ib_anneal_steps", 500):
        return loss
    features, parts = _features(b, b.get("at", "1")), b.parts()
    spread = [features[rows].var(0).mean() if len(rows) > 1 else torch.zeros(()) for rows in parts]
    return loss + b.get("ib_penalty", 100.0) * sum(spread) / len(spread)


def _pairs(values: Sequence[Tensor]) -> Tensor:
    """Return the mean over pairs of the mean squared difference."""
    gaps = [(values[i] - values[j]).square().mean() for i in range(len(values)) for j in range(i)]
    return torch.stack(gaps).mean() if gaps else torch.zeros((), dtype=torch.float64)


def _vrex(b: Batch) -> Tensor:
    risks = b.risks()
    return risks.mean() + _strength(b, 10.0) * (risks - risks.mean()).square().mean()


def _coral(b: Batch) -> Tensor:
    features, parts = _features(b, b.get("at", "1")), b.parts()
    large = [features[rows] for rows in parts if len(rows) > 1]
    covariances = [torch.cov(rows.T) for rows in large]
    number = max(len(parts) * (len(parts) - 1) // 2, 1)
    few = max(len(large) * (len(large) - 1) // 2, 1)
    gap = _pairs(covariances) * few / number
    gap = gap + _pairs([features[rows].mean(0) for rows in parts])
    return b.risks().mean() + b.get("penalty", 1.0) * gap


def _domainmix(b: Batch) -> Tensor:
    parts = b.parts()
    order = torch.randperm(len(parts), generator=b.generator).tolist()
    shares = [draw_share(b.get("alpha", 0.2), b.generator) for _ in parts]
    results = []
    for k, share in enumerate(shares):
        own, other = parts[order[k]], parts[order[(k + 1) % len(parts)]]
        length = min(len(own), len(other))
        near, far = own[:length], other[:length]
        x = share * b.x[near] + (1 - share) * b.x[far]
        t = share * b.t[near] + (1 - share) * b.t[far]
        losses = share * b.losses(x, b.t[near]) + (1 - share) * b.losses(x, b.t[far])
        w = None if b.w is None else share * b.w[near] + (1 - share) * b.w[far]
        total = losses if w is None else losses * w
        results.append(total.mean() if b.class_weight is None else total.sum() / b.size(t).sum())
    return torch.stack(results).mean()


def check_law(drawn: Tensor, cdf: Callable[[np.ndarray], np.ndarray], what: str) -> None:
    """Raise `Wrong` if draws do not follow a distribution function (Kolmogorov and Smirnov)."""
    p = float(stats.kstest(drawn.double().numpy(), cdf).pvalue)
    check(p > 1e-9, f"{what} of another law, p = {p:.2g}")


def _lisa(b: Batch) -> Tensor:
    y, group, alpha = b.case["y"], b.case["group"], b.get("alpha", 2.0)
    within = bool(torch.rand(1, generator=b.generator) < b.get("selection", 0.5))
    u = torch.rand(b.n, 1, generator=b.generator) * (1 - 2**-22)
    partners = torch.arange(b.n)
    alone = torch.ones(b.n, dtype=torch.bool)
    for i in range(b.n):
        same = [(torch.equal(y[i], y[j]), bool(group[i] == group[j])) for j in range(b.n)]
        allowed = [j for j, pair in enumerate(same) if pair == (within, not within)]
        if allowed:
            alone[i], partners[i] = False, allowed[int(u[i] * len(allowed))]
    cpu = torch.device("cpu")
    share = draw_shares(alpha, b.n, cpu, b.generator).double().masked_fill(alone, 1.0)[:, None]
    if alpha >= 0.5:  # otherwise many round to one
        check_law(draw_shares(alpha, 4000, cpu, b.generator), stats.beta(alpha, alpha).cdf, "shares")

    def mix(value: Tensor) -> Tensor:
        return share * value + (1 - share) * value[partners]

    output = b.model(mix(b.x))
    near, far = (b.losses_of(output, t)[:, None] for t in (b.t, b.t[partners]))
    losses = (share * near + (1 - share) * far)[:, 0]
    return b.mean(losses, mix(b.t), None if b.w is None else mix(b.w[:, None])[:, 0])


def _ada(b: Batch) -> Tensor:
    alpha = b.get("alpha", 2.0)
    number = int(float(torch.rand(1, generator=b.generator)) * 20)
    gamma = 1 + (alpha - 1) * (number % 10 + 1) / 10
    gamma = gamma if number < 10 else 1 / gamma

    def move(values: Tensor) -> Tensor:
        moved = values.clone()
        for rows in b.parts():
            centre = values[rows].mean(0)
            moved[rows] = centre + (values[rows] - centre) / math.sqrt(gamma)
        return moved

    output = b.forward_mixed(b.get("at", None), move)
    return b.mean(b.losses_of(output, move(b.t)), b.t, b.w, soft=True)


@dataclass(frozen=True)
class Method:
    """An objective, its settings, a slow reference, and the tasks that it does not serve."""

    settings: Mapping[str, Sequence[Choice]]
    reference: Callable[[Batch], Tensor | None]
    #: What is owed in training for each task that is not fine.
    tasks: Mapping[str, str] = field(default_factory=dict)
    groups: bool = False
    share: float = 0.25


_REAL_ONLY = {"classes": BAD, "binary": ODD}
_CLASSES_ONLY = {"real": BAD, "binary": BAD}
#: How many times an objective with a state is called.
CALLS = (fine("3", 3), fine("1", 1), fine("2", 2))
_N_GROUPS = (
    fine("right", lambda case: _most_groups(case)),
    fine("more", lambda case: _most_groups(case) + 2),
    odd("fewer", _owing(BAD, lambda case: _most_groups(case) - 1, lambda case: bool(case["mode"]))),
    bad("0", 0),
    bad("float", 2.0),
    bad("text", "2"),
    bad("true", True),
    bad("None", None),
)


def _most_groups(case: Case) -> int:
    group = case["group"]
    known = isinstance(group, Tensor) and group.ndim == 1 and not group.is_floating_point() and len(group)
    return min(int(group.max()) + 1, 10_000) if known else 2


def _sizes(case: Case) -> Any:
    group, n = case["group"], case["n_groups"]
    if (
        not isinstance(n, int)
        or isinstance(n, bool)
        or not isinstance(group, Tensor)
        or group.is_floating_point()
    ):
        return OMIT
    if group.ndim != 1 or not len(group) or int(group.min()) < 0 or int(group.max()) >= n:
        return OMIT
    return torch.bincount(group.long(), minlength=n).tolist()


def _fitting_divergence(case: Case) -> Any:
    """Choose the divergence that has the size that is given."""
    if case["alpha"] not in (OMIT, None):
        return "chi2" if case.seed % 2 else "cvar"
    return OMIT if case["rho"] in (OMIT, None) and case["penalty"] in (OMIT, None) else "chi2"


METHODS: dict[str, Method] = {
    "ERM": Method({"num_classes": NUM_CLASSES}, _erm),
    "Focal": Method({"gamma": reals(2.0, 0.0, 0.5, 50.0)}, _focal, {"real": BAD}),
    "Tilted": Method({"t": reals(1.0, 0.0, -2.0, 1e-9, 100.0, -1e30, wrong=(1e31, -1e35))}, _tilted),
    "DRO": Method(
        {
            "divergence": (fine("fitting", _fitting_divergence), *names("cvar", "chi2")[1:]),
            "alpha": reals(0.5, 0.1, 1.0, 1e-9, wrong=(0.0, -0.5, 1.5), none=FINE),
            "rho": reals(1.0, 0.0, 0.01, 100.0, none=FINE),
            "penalty": reals(1.0, 0.01, 1e6, wrong=(0.0, -1.0), none=FINE),
        },
        _dro,
        share=0.5,
    ),
    "DORO": Method(
        {
            "epsilon": (fine("0.3", 0.3), *reals(0.3, 0.0, 0.1, 0.99, wrong=(-0.1, 1.0, 2.0))[2:]),
            "divergence": names("cvar", "chi2"),
            "alpha": SHARE,
        },
        _doro,
    ),
    "LabelSmoothing": Method(
        {"smoothing": reals(0.1, 0.0, 1.0, wrong=(-0.1, 1.1))}, _smoothing, _CLASSES_ONLY
    ),
    "InputNoise": Method(
        {
            "sigma": (
                fine("0.1", 0.1),
                fine("zero", 0.0),
                fine("numpy", np.float64(0.1)),
                fine("per feature", lambda case: torch.full((FEATURES,), 0.1)),
                fine("green", "green"),
                fine("a law", lambda case: elliptica.Green()),
                odd("huge", 1e30),
                odd(
                    "another width",
                    _owing(BAD, lambda case: torch.ones(FEATURES + 1), lambda c: bool(c["mode"])),
                ),
                bad("negative", -0.1),
                bad("nan", math.nan),
                bad("infinite", math.inf),
                bad("nan per feature", lambda case: torch.full((FEATURES,), math.nan)),
                bad("Green", "Green"),
                bad("auto", "auto"),
                bad("None", None),
                bad("list", [0.1] * FEATURES),
                bad("integers", lambda case: torch.ones(FEATURES).long()),
            ),
            "law": names("gaussian", "bridge"),
        },
        _noise,
    ),
    "Mixup": Method({"alpha": ALPHA, "at": LAYER, "num_classes": NUM_CLASSES}, _mixup, share=0.5),
    "UMIX": Method(
        {"alpha": ALPHA, "at": LAYER, "probability": reals(0.5, 0.0, 1.0, wrong=(-0.1, 1.1))}, _umix
    ),
    "RegMixup": Method({"alpha": ALPHA, "weight_of_mixup": reals(1.0, 0.0, 10.0)}, _regmixup),
    "ManifoldMixup": Method({"layers": LAYERS, "alpha": ALPHA}, _manifold),
    "NFM": Method(
        {
            "layers": LAYERS,
            "alpha": ALPHA,
            "additive": reals(0.4, 0.0),
            "multiplicative": reals(0.2, 0.0),
        },
        _nfm,
    ),
    "MixupE": Method(
        {
            "alpha": ALPHA,
            "eta": (fine("1", 1.0), *reals(0.001, 0.0, 10.0)),
            "threshold": (
                *(c for c in reals(1.0, 0.0, -1.0, wrong=()) if c.name != "infinite"),
                fine("infinite", math.inf),
            ),
        },
        _mixupe,
        _CLASSES_ONLY,
    ),
    "CMixup": Method(
        {
            "bandwidth": (fine("0.5", 0.5), *reals(0.5, 1e-3, 1e6, wrong=(0.0, -1.0))[2:]),
            "alpha": ALPHA,
            "at": LAYER,
        },
        _cmixup,
        _REAL_ONLY,
    ),
    "FOMA": Method(
        {
            "rho": (fine("0.9", 0.9), *reals(0.9, 0.0, 0.5, 2.0)[2:]),
            "alpha": ALPHA,
            "scaled": names("small", "large"),
            "targets": names("scaled", "kept"),
            "layers": LAYERS[:-3],
        },
        _foma,
        _REAL_ONLY,
    ),
    "GroupDRO": Method(
        {
            "n_groups": _N_GROUPS,
            "step_size": reals(0.01, 0.0, 10.0),
            "adjustment": reals(0.0, 0.5, 3.0),
            "group_sizes": (
                fine("default", OMIT),
                fine("right", _sizes),
                odd("floats", [1.0, 2.0]),
                bad("negative", lambda case: [-1] * 2),
                bad("zeros", lambda case: [0] * 2),
                bad("text", "sizes"),
                bad("of another number", lambda case: [1] * 10_007),
            ),
        },
        _groupdro,
        groups=True,
    ),
    "IRM": Method(
        {
            "penalty": PENALTY,
            "anneal_steps": STEPS,
        },
        _irm,
        groups=True,
    ),
    "IBIRM": Method(
        {
            "at": (fine("1", "1"), *LAYER[3:]),
            "penalty": PENALTY,
            "anneal_steps": STEPS,
            "ib_penalty": PENALTY,
            "ib_anneal_steps": STEPS,
        },
        _ibirm,
        groups=True,
    ),
    "VREx": Method(
        {
            "penalty": PENALTY,
            "anneal_steps": STEPS,
        },
        _vrex,
        groups=True,
    ),
    "CORAL": Method(
        {"at": (fine("1", "1"), *LAYER[3:]), "penalty": PENALTY},
        _coral,
        groups=True,
    ),
    "DomainMix": Method({"alpha": ALPHA}, _domainmix, groups=True),
    "LISA": Method(
        {
            "selection": reals(0.5, 0.0, 1.0, wrong=(-0.1, 1.1)),
            "alpha": ALPHA,
            "mix": names("input", wrong=["cutout"]),
        },
        _lisa,
        groups=True,
    ),
    "ADA": Method(
        {"alpha": reals(2.0, 1.0, 4.0, wrong=(0.5, 0.0, -1.0)), "at": LAYER}, _ada, _REAL_ONLY, groups=True
    ),
}


def _settings(case: Case, method: Method) -> dict[str, Any]:
    return given(case, *method.settings)


def _expect(case: Case, name: str, method: Method) -> None:
    """Raise the demand where choices that are fine alone clash, and lower it where they do not matter."""
    training, settings = case["mode"], case.name
    owed = method.tasks.get(case["task"], FINE)
    if name == "Focal" and case["task"] == "real" and settings("loss") == "per row":
        owed = ODD
    if name in ("LabelSmoothing", "MixupE") and (not training or settings("y") == "soft"):
        owed = ODD if owed == BAD else owed
    if name == "MixupE" and case["eta"] == 0:
        owed = ODD if owed == BAD else owed
    if owed == BAD and is_classes(case) and isinstance(case["y"], Tensor) and case["y"].is_floating_point():
        owed = ODD  # soft labels may be taken for real targets
    case.owe(owed)
    if name == "LabelSmoothing" and settings("loss") == "smoothed" and is_classes(case):
        case.owe(BAD)
    if name == "DRO":
        sizes = [s for s in ("alpha", "rho", "penalty") if case[s] not in (OMIT, None)]
        if len(sizes) > 1 or (case["divergence"] in (OMIT, "cvar") and sizes not in ([], ["alpha"])):
            case.owe(BAD)
    if name == "GroupDRO" and case["group_sizes"] is OMIT and case["adjustment"] not in (OMIT, 0.0):
        case.owe(ODD)
    if settings("loss") == "per row" and settings("y") == "bool":
        case.owe(ODD)
    if settings("loss") in ("nan", "raises") and settings("y") in ("another class", "another shape"):
        case.excuse()  # this loss does not look at the targets
    if not training and case.owed == BAD:
        only_generator = case.name("generator") in ("a seed", "text", "numpy")
        others = [
            a
            for a in case.target.axes
            if case.target.choice(a, case.name(a)).owed == BAD and a != "generator"
        ]
        if only_generator and not others:
            case.excuse()  # nothing is drawn in evaluation mode


def run_objective(case: Case, name: str) -> None:
    """Compare an objective with its slow reference, and look at what a call may not change."""
    method = METHODS[name]
    kwargs, model = _settings(case, method), case["model"]
    _ = case["y"], case["weight"], case["group"] if method.groups else None
    _expect(case, name, method)
    made = {("weight" if k == "weight_of_mixup" else k): v for k, v in kwargs.items()}
    objective = getattr(baselines, name)(model, case["loss"], **made)
    repr(objective)
    objective.train(case["mode"])
    generator = case["generator"]
    x, y = case["x"], case["y"]
    group = (case["group"],) if method.groups else ()
    options: dict[str, Any] = {
        "generator": generator,
        **({} if case["weight"] is OMIT else {"sample_weight": case["weight"]}),
    }
    kept = Kept([x, y, case["weight"], *group], model)
    before = generator.get_state() if isinstance(generator, torch.Generator) else None
    try:
        for _ in range(case["calls"] - 1 if "calls" in case.target.axes else 0):
            objective(x, y, *group, **options)
        again, random = copy.deepcopy(objective), torch.get_rng_state()
        loss = objective(x, y, *group, **options)
    except Exception as error:
        hostile = {a for a in case.target.axes if case.target.choice(a, case.name(a)).owed != FINE}
        if (
            before is not None
            and hostile
            and hostile <= {"x", "weight", "group", "generator"}
            and is_calm(case, "model", "loss")
        ):
            early = (
                "must" in str(error)
                and type(error) in (TypeError, ValueError)
                and not method.groups
                and case["task"] not in method.tasks
            )
            check(not early or torch.equal(before, generator.get_state()), "an error drew from the generator")

        def plain() -> object:
            output = model(**x) if isinstance(x, Mapping) else model(*x) if isinstance(x, tuple) else model(x)
            return case["loss"](output, y)

        if case.name("model") == "raises" or case.name("loss") == "raises":
            if isinstance(error, OwnError):
                case.excuse()
                return
        elif case.owed != FINE and same_error(error, plain):
            case.excuse()
            return
        raise
    quiet = case.name("model") not in ("dropout",) and generator is not None
    kept.check(state=case.name("model") != "batch norm", random=quiet)
    check(isinstance(loss, Tensor) and loss.ndim == 0 and loss.is_floating_point(), "the loss is no scalar")
    if isinstance(generator, torch.Generator):
        generator.manual_seed(case.seed)
    torch.set_rng_state(random)
    if generator is not None or not case["mode"]:
        check(
            equal(again(x, y, *group, **options).detach(), loss.detach()), "a second call gives another loss"
        )
    if not is_calm(case, "x", "y", "weight", "model", "loss"):
        return
    check(bool(loss.isfinite()), f"the loss of ordinary data is {float(loss)}")
    if loss.requires_grad:
        loss.backward()
        for parameter in (*model.parameters(), only(x)):
            if parameter.grad is not None:
                check(bool(parameter.grad.isfinite().all()), "a gradient of ordinary data is not finite")
    _compare(case, name, method, kwargs, loss)


def is_calm(case: Case, *axes: str) -> bool:
    """Tell whether the choices on some axes are ones for which references hold."""
    calm = {
        "model": CALM_MODELS,
        "loss": CALM_LOSSES,
        "y": {"plain", "soft", "not contiguous", "int32", "uint8", "constant"},
    }
    for axis in axes:
        if axis in calm and case.name(axis) not in calm[axis]:
            return False
        if axis not in calm and case.target.choice(axis, case.name(axis)).owed != FINE:
            return False
    return True


def _compare(case: Case, name: str, method: Method, kwargs: Mapping[str, Any], loss: Tensor) -> None:
    """Compare a calm loss with the plain one in evaluation mode, and with the slow reference in training."""
    if case.name("y") in ("int32", "uint8", "constant") and not is_classes(case):
        return
    soft_real = {k: (None if v is None else v) for k, v in kwargs.items()}
    if any(isinstance(v, Tensor) and v.ndim == 0 for v in soft_real.values()):
        return
    batch = Batch(case, soft_real)
    if not case["mode"]:
        check_close(loss, batch.plain(), "the loss in evaluation mode", 2e-4)
        return
    if case["generator"] is None:
        return
    expected = method.reference(batch)
    if expected is None:
        return
    scale = float(batch.plain().detach().abs()) + float(expected.detach().abs())
    found, wanted = float(loss), float(expected)
    check(
        abs(found - wanted) <= 3e-4 * max(scale, 1e-6), f"{name} returns {found:.9g}, but a loop {wanted:.9g}"
    )
    own = [p for p in batch.model.parameters() if p.requires_grad]
    if not own or not expected.requires_grad:
        return
    slopes = torch.autograd.grad(expected, own, allow_unused=True)
    pairs = zip(case["model"].parameters(), slopes, own, strict=True)
    columns = [
        [(torch.zeros_like(p) if g is None else g).double().flatten() for g in (mine.grad, slope)]
        for mine, slope, p in pairs
    ]
    mine, wanted = map(torch.cat, zip(*columns, strict=True))
    near(mine, wanted, f"the gradient of {name}", 3e-3, 1e-9)


def _objective_axes(name: str, method: Method) -> dict[str, Sequence[Choice]]:
    first = [c for c in TASK if method.tasks.get(c.name, FINE) == FINE]
    tasks = (*first, *(Choice(c.name, c.make, FINE) for c in TASK if c not in first))
    axes = {"x": X, "task": tasks, "y": Y, "model": MODEL, "loss": LOSS, "weight": WEIGHT}
    if method.groups:
        axes["group"] = GROUP
    if name in ("GroupDRO", "IRM", "IBIRM", "VREx"):
        axes["calls"] = CALLS
    return {**axes, "generator": GENERATOR, "mode": MODE, **method.settings}


for _name, _method in METHODS.items():
    target(f"baselines.{_name}", _objective_axes(_name, _method), share=_method.share)(
        functools.partial(run_objective, name=_name)
    )


# ---- stages and functions of the baselines


def vector(least: float = 0.0) -> tuple[Choice, ...]:
    """Make the choices of a vector with one number per row."""
    return (
        fine("plain", lambda case: case.normal(ROWS).abs() + least),
        fine("float64", lambda case: case.normal(ROWS, dtype=torch.float64).abs() + least),
        fine("requires grad", lambda case: case.normal(ROWS).abs().requires_grad_()),
        fine("not contiguous", lambda case: case.normal(ROWS, 2).abs()[:, 0]),
        fine("equal", lambda case: torch.full((ROWS,), 2.0)),
        fine("one", lambda case: case.normal(1).abs()),
        fine("bfloat16", lambda case: case.normal(ROWS, dtype=torch.bfloat16).abs()),
        odd("scaled", lambda case, k: case.normal(ROWS).abs() * 10.0**k, st.integers(-45, 38)),
        odd("far apart", lambda case: torch.tensor([0.0, 1e-30, 1.0, 1e30, 3e38, 1e-45, 5.0, 7.0])),
        bad("nan", lambda case: torch.tensor([1.0, math.nan, 2.0])),
        bad("infinite", lambda case: torch.tensor([1.0, math.inf, 2.0])),
        bad("integers", lambda case: torch.arange(ROWS)),
        bad("a column", lambda case: case.normal(ROWS, 1)),
        bad("empty", lambda case: case.normal(0)),
        bad("0-d", lambda case: torch.tensor(1.0)),
        bad("a list", [1.0, 2.0]),
        bad("numpy", lambda case: np.ones(3)),
        bad("None", None),
        bad("sparse", lambda case: case.normal(ROWS).abs().to_sparse()),
        bad("complex", lambda case: case.normal(ROWS).to(torch.complex64)),
        bad("meta", lambda case: torch.empty(ROWS, device="meta")),
    )


def _row_weight(case: Case, change: Callable[[Tensor], Any]) -> Any:
    return change(case.normal(count_rows(case, "losses")).abs() + 0.1)


LOSS_WEIGHT = (
    fine("default", OMIT),
    fine("positive", lambda case: _row_weight(case, lambda w: w)),
    fine("one zero", lambda case: _row_weight(case, _first(0.0))),
    fine("all zero", lambda case: _row_weight(case, torch.zeros_like)),
    bad("negative", lambda case: _row_weight(case, _first(-1.0))),
    bad("nan", lambda case: _row_weight(case, _first(math.nan))),
    bad("too many", lambda case: _row_weight(case, lambda w: torch.cat([w, w]))),
    bad("a column", lambda case: _row_weight(case, lambda w: w[:, None])),
    bad("a list", lambda case: _row_weight(case, lambda w: w.tolist())),
)
_WORST = {
    "cvar_weights": ("cvar", "alpha", reals(0.5, 0.1, 1.0, 1e-9, wrong=(0.0, -1.0, 1.1))),
    "chi2_weights": ("chi2", "rho", reals(1.0, 0.0, 0.01, 1e3, wrong=(-1.0,))),
    "chi2_penalty_weights": ("penalty", "penalty", reals(1.0, 0.01, 1e6, wrong=(0.0, -1.0))),
}


def run_weights(case: Case, name: str) -> None:
    """Compare weights of robust training with bisection."""
    kind, size, _ = _WORST[name]
    losses, weight = case["losses"], given(case, "sample_weight")
    value = case[size] if case[size] is not OMIT else 0.5
    kept = Kept([losses, weight])
    p = getattr(baselines, name)(losses, value, **weight)
    kept.check()
    check(p.shape == losses.shape and not p.requires_grad, "weights have another shape, or a gradient")
    check(bool((p >= 0).all() and p.isfinite().all()), "a weight is negative or not finite")
    check(abs(float(p.double().sum()) - 1) < 1e-5, f"the weights sum to {float(p.double().sum())}")
    wanted = losses.detach().double()
    w = weight.get("sample_weight")
    base = torch.ones_like(wanted) if w is None or float(w.sum()) == 0 else w.detach().double()
    expected = worst_weights(wanted, base / base.sum(), kind, float(value))
    check_close(p.double(), expected, "weights", 1e-3)


for _name, (_kind, _size, _axis) in _WORST.items():
    target(
        f"baselines.{_name}",
        {"losses": vector(), _size: _axis, "sample_weight": LOSS_WEIGHT},
        share=0.15,
    )(functools.partial(run_weights, name=_name))

ERRORS = (
    fine("some", lambda case: case.normal(ROWS) > 0),
    fine("none", lambda case: torch.zeros(ROWS, dtype=torch.bool)),
    fine("all", lambda case: torch.ones(ROWS, dtype=torch.bool)),
    odd("empty", lambda case: torch.zeros(0, dtype=torch.bool)),
    bad("integers", lambda case: torch.ones(ROWS, dtype=torch.long)),
    bad("floats", lambda case: torch.ones(ROWS)),
    bad("a column", lambda case: torch.ones(ROWS, 1, dtype=torch.bool)),
    bad("a list", [True, False]),
    bad("None", None),
    bad("sparse", lambda case: torch.ones(ROWS, dtype=torch.bool).to_sparse()),
    bad("meta", lambda case: torch.ones(ROWS, dtype=torch.bool, device="meta")),
)


@target(
    "baselines.errors",
    {"errors": ERRORS, "factor": counts(2, 0, 100, least=0)},
    share=0.2,
)
def run_errors(case: Case) -> None:
    """Rows of JTT's second training."""
    errors = case["errors"]
    kept = Kept([errors])
    rows = baselines.upsampled_rows(errors, **given(case, "factor"))
    kept.check()
    factor = int(given(case, "factor").get("factor", 100))
    wrong = [i for i, e in enumerate(errors.tolist()) if e]
    check(rows.tolist() == [*range(len(errors)), *wrong * factor], "other rows than a loop finds")


INDEX = (
    fine("plain", lambda case: torch.randperm(ROWS, generator=case.generator)),
    fine("int32", lambda case: torch.arange(ROWS).int()),
    fine("repeated", lambda case: torch.zeros(ROWS, dtype=torch.long)),
    bad("beyond", lambda case: torch.arange(ROWS) + 100),
    bad("negative", lambda case: torch.arange(ROWS) - 1),
    bad("floats", lambda case: torch.arange(ROWS).float()),
    bad("bool", lambda case: torch.ones(ROWS) > 0),
    bad("too few", lambda case: torch.arange(ROWS - 1)),
    bad("a column", lambda case: torch.arange(ROWS)[:, None]),
    bad("a list", lambda case: list(range(ROWS))),
    bad("None", None),
    bad("0-d", lambda case: torch.tensor(1)),
)
OUTPUT = (
    fine("logits", lambda case: case.normal(ROWS, CLASSES)),
    fine("float64", lambda case: case.normal(ROWS, CLASSES, dtype=torch.float64)),
    fine("with grad", lambda case: case.normal(ROWS, CLASSES).requires_grad_()),
    fine("bfloat16", lambda case: case.normal(ROWS, CLASSES, dtype=torch.bfloat16)),
    odd("ties", lambda case: torch.zeros(ROWS, CLASSES)),
    odd("one logit", lambda case: case.normal(ROWS, 1)),
    bad("labels", lambda case: case.normal(ROWS, CLASSES).argmax(1)),
    bad("nan", lambda case: case.normal(ROWS, CLASSES) * math.nan),
    bad("too many rows", lambda case: case.normal(ROWS + 1, CLASSES)),
    bad("images", lambda case: case.normal(ROWS, CLASSES, 2)),
    bad("no classes", lambda case: case.normal(ROWS, 0)),
    bad("0-d", lambda case: torch.tensor(1.0)),
    bad("None", None),
    bad("a list", lambda case: case.normal(ROWS, CLASSES).tolist()),
    bad("complex", lambda case: case.normal(ROWS, CLASSES).to(torch.complex64)),
    bad("sparse", lambda case: case.normal(ROWS, CLASSES).to_sparse()),
)
LABELS = (
    fine("plain", lambda case: torch.arange(ROWS) % CLASSES),
    fine("int32", lambda case: (torch.arange(ROWS) % CLASSES).int()),
    fine("uint8", lambda case: (torch.arange(ROWS) % CLASSES).to(torch.uint8)),
    fine("soft", lambda case: case.normal(ROWS, CLASSES).softmax(1)),
    odd("floats", lambda case: (torch.arange(ROWS) % CLASSES).float()),
    odd("bool", lambda case: torch.arange(ROWS) % 2 > 0),
    bad("beyond", lambda case: torch.arange(ROWS)),
    bad("negative", lambda case: torch.arange(ROWS) % CLASSES - 1),
    bad("too few", lambda case: torch.arange(ROWS - 1) % CLASSES),
    bad("a column", lambda case: torch.arange(ROWS)[:, None] % CLASSES),
    bad("nan", lambda case: torch.full((ROWS, CLASSES), math.nan)),
    bad("a list", lambda case: [0] * ROWS),
    bad("None", None),
    bad("complex", lambda case: torch.zeros(ROWS, dtype=torch.complex64)),
    bad("0-d", lambda case: torch.tensor(1)),
)


@target(
    "baselines.stages",
    {
        "n_rows": (fine("8", ROWS), fine("20", 20), fine("numpy", np.int64(20)), *counts(ROWS)[3:]),
        "index": INDEX,
        "output": OUTPUT,
        "y": LABELS,
        "start": counts(0, 1, least=0),
        "length": counts(1, 2),
        "eta": reals(80.0, 0.0),
    },
    share=0.4,
)
def run_stages(case: Case) -> None:
    """Record predictions for JTT and UMIX, and compare with a loop."""
    recorder, table = baselines.ErrorRecorder(case["n_rows"]), baselines.CorrectnessTable(case["n_rows"])
    index, output, y = case["index"], case["output"], case["y"]
    kept = Kept([index, output, y])
    for _ in range(2):
        recorder.update(index, output, y)
        table.update(index, output, y)
        table.end_epoch()
    kept.check()
    start, length = given(case, "start").get("start", 0), given(case, "length").get("length", 2)
    if isinstance(start, int | np.integer) and isinstance(length, int | np.integer) and start + length > 2:
        case.owe(BAD)
    weights = baselines.umix_weights(table, start=start, length=length, **given(case, "eta"))
    if output.ndim == 1 or output.shape[1] == 1:
        return
    label = (y.argmax(1) if y.is_floating_point() else y).tolist()
    right = [int(row.argmax()) == k for row, k in zip(output.detach(), label, strict=True)]
    n, eta = int(case["n_rows"]), float(given(case, "eta").get("eta", 80.0))
    share: list[list[bool]] = [[] for _ in range(n)]
    for i, good in zip(index.tolist(), right, strict=True):
        share[i].append(good)
    check(recorder.errors.tolist() == [not all(each) for each in share], "other errors than a loop finds")
    expected = torch.tensor([1 + eta * (1 - sum(s) / len(s)) if s else 1.0 for s in share])
    check_close(weights, expected, "UMIX weights")


@target(
    "baselines.find_errors",
    {
        "x": X,
        "task": (fine("classes", "classes"), fine("binary", "binary")),
        "y": Y,
        "model": MODEL,
        "batch_size": counts(3, 1, 100),
    },
    share=0.25,
)
def run_find_errors(case: Case) -> None:
    """Find the errors of a classifier row by row."""
    model, x, y = case["model"], case["x"], case["y"]
    if case.name("model") == "another width" and case["task"] == "binary":
        case.owe(ODD)
    if isinstance(model, nn.Module):
        model.train()
    kept = Kept([x, y], model)
    try:
        errors = baselines.find_errors(model, x, y, **given(case, "batch_size"))
    except OwnError:
        case.excuse()
        return
    except Exception as error:
        if case.owed != FINE and same_error(error, lambda: model(only(x))):
            case.excuse()
            return
        raise
    kept.check()
    check(errors.shape == (count_rows(case),) and errors.dtype == torch.bool, "errors have another shape")
    if case.name("model") in CALM_MODELS and case.name("y") in ("plain", "soft", "not contiguous"):
        with torch.no_grad():
            output = copy.deepcopy(model).eval()(only(x))
        label = y.argmax(1) if is_classes(case) and y.is_floating_point() else y.flatten()
        found = output.argmax(1) if is_classes(case) else (output.flatten() > 0).to(label)
        check(torch.equal(errors, found != label), "other errors than a loop finds")


REAL_Y = tuple(c for c in Y if c.name not in ("beyond the classes", "negative", "ignored", "another class"))
_REAL_TASK = (fine("real", "real"),)


@target(
    "baselines.mixup_batch",
    {
        "x": X,
        "task": _REAL_TASK,
        "y": (
            *(c for c in REAL_Y if c.name not in ("another shape", "nan", "complex")),
            fine("flat", _other_shape),
        ),
        "alpha": reals(1.0, 0.1, wrong=(0.0, -1.0)),
        "share": (*reals(0.5, 0.0, 1.0, wrong=(-0.1, 1.1), none=FINE),),
        "generator": GENERATOR,
    },
    share=0.2,
)
def run_mixup_batch(case: Case) -> None:
    """Mix a batch, and find the permutation again."""
    x, y = case["x"], case["y"]
    if case.name("x") in ("a tuple", "a dict"):
        case.owe(BAD)
    if case.name("x") in ("nan", "infinite", "-inf", "complex"):
        case.excuse()  # the function only interpolates
    kept = Kept([x, y])
    mixed = baselines.mixup_batch(x, y, **given(case, "alpha", "share"), generator=case["generator"])
    kept.check(random=case["generator"] is not None)
    check(mixed[0].shape == x.shape and mixed[1].shape == y.shape, "another shape")
    share, alpha = given(case, "share").get("share"), float(given(case, "alpha").get("alpha", 1.0))
    if case["generator"] is not None and case.owed == FINE:
        stream = torch.Generator().manual_seed(case.seed)
        if share is None:
            share = draw_share(alpha, stream)
            drawn = torch.tensor(
                [draw_share(alpha, case["generator"]) for _ in range(2000)], dtype=torch.float64
            )
            check_law(drawn, stats.beta(alpha, alpha).cdf, "shares")
        share, partners = float(share), torch.randperm(len(x), generator=stream)
        check_close(mixed[0], share * x + (1 - share) * x[partners], "mixed inputs")
        check_close(mixed[1], share * y + (1 - share) * y[partners], "mixed targets")


@target(
    "baselines.foma_batch",
    {
        "x": X,
        "task": _REAL_TASK,
        "y": (*(c for c in REAL_Y if c.name != "another shape"), fine("flat", _other_shape)),
        "share": (fine("0.5", 0.5), *reals(0.5, 0.0, 1.0)[2:]),
        "rho": (fine("0.9", 0.9), *reals(0.9, 0.0, 0.5, 2.0)[2:]),
        "scaled": names("small", "large"),
    },
    share=0.2,
)
def run_foma_batch(case: Case) -> None:
    """Scale singular values, and compare with a decomposition in double precision."""
    x, y, share = case["x"], case["y"], case["share"]
    if case.name("x") in ("a tuple", "a dict"):
        case.owe(BAD)
    kept = Kept([x, y])
    found = baselines.foma_batch(x, y, share=share, rho=case["rho"], **given(case, "scaled"))
    kept.check()
    check(found[0].shape == x.shape and found[1].shape == y.shape, "another shape")
    if case.owed != FINE or case.name("x") in ("expanded", "repeated"):
        return
    rows = torch.cat([x.reshape(len(x), -1), y.reshape(len(y), -1)], 1).detach().double()
    kind = "small" if case["scaled"] is OMIT else case["scaled"]
    moved = scaled_rows(rows, float(share), float(case["rho"]), kind)
    if moved is not None:
        check_close(torch.cat([f.reshape(len(x), -1) for f in found], 1), moved, "scaled rows", 1e-4)


@target(
    "baselines.anchor",
    {
        "x": (*X, fine("None too", None)),
        "task": _REAL_TASK,
        "y": (*(c for c in REAL_Y if c.name != "another shape"), fine("flat", _other_shape)),
        "n_clusters": (fine("3", 3), *counts(2, 1, ROWS)[1:]),
        "n_starts": counts(2, 1),
        "generator": GENERATOR,
        "gamma": (fine("2", 2.0), *reals(2.0, 0.5, 1.0, 1e6, wrong=(0.0, -1.0))[2:]),
    },
    share=0.25,
)
def run_anchor(case: Case) -> None:
    """Cluster rows, and move them along the line to their means."""
    x, y = case["x"], case["y"]
    if case.name("x") in ("a tuple", "a dict"):
        case.owe(BAD)
    if case.name("x") in ("None", "None too"):
        case.excuse()
    kept = Kept([x, y])
    settings = {"generator": case["generator"], **{"n_starts": 2, **given(case, "n_starts")}}
    cluster = baselines.anchor_clusters(x, y, case["n_clusters"], **settings)
    kept.check(random=case["generator"] is not None)
    check(cluster.shape == (len(y),) and int(cluster.min()) >= 0, "clusters have another shape")
    check(int(cluster.max()) < int(case["n_clusters"]), "there are more clusters than asked for")
    values = y if x is None else x
    moved = baselines.anchor_rows(values, cluster, case["gamma"])
    check(
        moved.shape == values.shape and moved.dtype == values.dtype, "moved rows have another shape or dtype"
    )
    if case.owed != FINE:
        return
    parts = [y] if x is None else [x, y]
    points = torch.cat([part.detach().double().reshape(len(y), -1) for part in parts], 1)
    means = torch.stack([points[cluster == k].mean(0) for k in cluster.unique()])
    nearest = torch.cdist(points, means, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
    for i, k in enumerate(cluster):
        apart = float((points[i] - points[cluster == k].mean(0)).norm())
        check(
            apart <= float(nearest[i]) * (1 + 1e-6) + 1e-9, "a row is nearer to the mean of another cluster"
        )
    for k in cluster.unique():
        own, new = values[cluster == k].detach().double(), moved[cluster == k]
        centre = own.mean(0)
        scale = float(values.abs().max()) + 1e-30
        gap = (new.double() - centre - (own - centre) / math.sqrt(float(case["gamma"]))).abs().max()
        check(float(gap) <= 1e-4 * scale * max(1.0, float(case["gamma"]) ** -0.5), "rows moved elsewhere")


@target(
    "baselines.neighbours",
    {
        "x": ORDINARY,
        "task": _REAL_TASK,
        "y": (
            *(c for c in REAL_Y if c.name not in ("another shape", "too few rows", "too many rows")),
            fine("flat", _other_shape),
        ),
        "batch_size": (fine("3", 3), *counts(3, 1, 100)[2:]),
        "sampled": FLAG,
        "bandwidth": (fine("0.5", 0.5), *reals(0.5, 1e-3, 1e6, wrong=(0.0, -1.0))[2:]),
        "index": INDEX,
        "generator": GENERATOR,
    },
    share=0.25,
)
def run_neighbours(case: Case) -> None:
    """Order rows by neighbours (FOMA), and draw partners with similar targets (C-Mixup)."""
    y, generator = case["y"], case["generator"]
    if case.name("index") == "too few":
        case.excuse()
    kept = Kept([y])
    order = baselines.neighbour_order(y, case["batch_size"], **given(case, "sampled"), generator=generator)
    kernel = baselines.TargetKernel(y, case["bandwidth"])
    partners = kernel.sample(case["index"], generator=generator)
    kept.check(random=generator is not None)
    check(sorted(order.tolist()) == list(range(len(y))), "the order does not have each row once")
    check(len(kernel) == len(y), "the kernel has another number of rows")
    check(partners.ndim == 1 and bool(((partners >= 0) & (partners < len(y))).all()), "a partner is no row")
    if case.owed != FINE:
        return
    rows = y.detach().double().reshape(len(y), -1)
    apart = (rows[:, None] - rows).norm(dim=2)
    left = list(range(len(y)))
    for batch in order.split(int(case["batch_size"])) if case["sampled"] in (OMIT, False) else ():
        wanted = apart[batch[0], left].sort().values[: len(batch)]
        check_close(apart[batch[0], batch].sort().values, wanted, "distances in a batch", 1e-4)
        left = [row for row in left if row not in batch.tolist()]
    law = (-(apart**2) / (2 * float(case["bandwidth"]) ** 2)).exp()
    many = kernel.sample(case["index"].repeat_interleave(DRAWS)).view(-1, DRAWS)
    check_frequencies(many, (law / law.sum(1, keepdim=True))[case["index"].long()])


@target(
    "baselines.groups",
    {"x": X, "task": TASK, "y": Y, "mode": MODE[:1], "group": GROUP},
    share=0.25,
)
def run_groups(case: Case) -> None:
    """Split a batch by group, and balance the groups."""
    x, y, group = case["x"], case["y"], case["group"]
    passed_on = (
        {"nan", "infinite", "-inf", "complex", "no rows"},
        {*("nan", "another shape", "complex", "beyond the classes", "negative", "ignored", "another class")},
    )
    if case.owed == BAD and (case.name("x") in passed_on[0] or case.name("y") in passed_on[1]):
        case.excuse()  # values are passed on as they are
    kept = Kept([x, y, group])
    parts = baselines.split_by_group(x, y, group)
    weights = baselines.group_balanced_weights(group)
    kept.check()
    labels = sorted(set(group.tolist()))
    check(len(parts) == len(labels), "another number of parts")
    for label, (part, own) in zip(labels, parts, strict=True):
        rows = (group == label).nonzero().flatten()
        check(
            equal(only(part).detach(), only(x)[rows].detach()) and equal(own, y[rows]),
            "a part has other rows",
        )
    for label in labels:
        check_close(weights[group == label].sum(), torch.tensor(float(len(group))), "weight of a group")


@target(
    "baselines.fish_step",
    {
        "x": X,
        "task": TASK,
        "y": Y,
        "model": MODEL,
        "loss": LOSS,
        "mode": MODE[:1],
        "group": GROUP[:6],
        "rate": reals(0.5, 0.0, 1.0, wrong=(-0.1, 1.1)),
        "minibatches": (
            fine("by group", lambda case: baselines.split_by_group(case["x"], case["y"], case["group"])),
            bad("none", lambda case: []),
            bad("tensors", lambda case: [case["x"]]),
            bad("text", "batches"),
            bad("None", None),
        ),
    },
    share=0.25,
)
def run_fish(case: Case) -> None:
    """Take a step of Fish: the way from the start to the end of plain steps, in part."""
    model = case["model"]
    objective = baselines.ERM(model, case["loss"])
    try:
        batches = case["minibatches"]
    except Exception as error:  # hostile data are refused by split_by_group, which has its own target
        if error.__cause__ is not None:
            case.owe(ODD)
            raise error.__cause__ from None
        raise
    rate = given(case, "rate").get("rate", 0.5)
    if case.name("model") in ("detached", "frozen"):
        case.owe(ODD)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = copy.deepcopy(model)
    before = [p.detach().clone() for p in model.parameters()]
    kept = Kept([case["x"], case["y"]])
    try:
        loss = baselines.fish_step(model, optimizer, objective, batches, **given(case, "rate"))
    except OwnError:
        case.excuse()
        return
    except Exception as error:
        plain = baselines.ERM(other, case["loss"])
        if case.owed != FINE and same_error(error, lambda: [plain(*batch).backward() for batch in batches]):
            case.excuse()
            return
        raise
    kept.check(random=case.name("model") != "dropout")
    if not is_calm(case, "x", "y", "model", "loss") or isinstance(rate, Tensor):
        return
    check(bool(loss.isfinite()), "the loss of ordinary data is not finite")
    if case.name("model") in ("frozen", "detached"):
        return
    plain, step = baselines.ERM(other, case["loss"]), torch.optim.SGD(other.parameters(), lr=0.1)
    for x, y in batches:
        step.zero_grad()
        plain(only(x).detach(), y).backward()
        step.step()
    for was, now, end in zip(before, model.parameters(), other.parameters(), strict=True):
        check_close(now, was + float(rate) * (end - was), "weights after the step", 1e-4)


@target(
    "baselines.smote_rows",
    {
        "x": X,
        "y": (
            fine("unbalanced", lambda case: torch.tensor([0, 0, 0, 0, 0, 1, 1, 1])[: count_rows(case)]),
            fine("balanced", lambda case: torch.arange(count_rows(case)) % 2),
            fine("int32", lambda case: torch.tensor([0, 0, 0, 0, 0, 1, 1, 1]).int()[: count_rows(case)]),
            fine(
                "negative labels", lambda case: torch.tensor([0, 0, 0, 0, 0, -1, -1, -1])[: count_rows(case)]
            ),
            fine("one class", lambda case: torch.zeros(count_rows(case), dtype=torch.long)),
            bad("a single row", lambda case: torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])),
            bad("floats", lambda case: torch.zeros(count_rows(case))),
            bad("bool", lambda case: torch.arange(count_rows(case)) > 4),
            bad("a column", lambda case: torch.zeros(count_rows(case), 1).long()),
            bad("too few", lambda case: torch.zeros(3).long()),
            bad("a list", lambda case: [0] * count_rows(case)),
            bad("None", None),
        ),
        "k_neighbors": counts(5, 1, 100),
        "generator": GENERATOR,
    },
    share=0.15,
)
def run_smote(case: Case) -> None:
    """Balance classes with rows between neighbours."""
    x, y = case["x"], case["y"]
    if case.name("x") in ("a tuple", "a dict"):
        case.owe(BAD)
    kept = Kept([x, y])
    more_x, more_y = baselines.smote_rows(x, y, **given(case, "k_neighbors"), generator=case["generator"])
    kept.check(random=case["generator"] is not None)
    check(torch.equal(more_x[: len(x)], x) and torch.equal(more_y[: len(y)], y), "the first rows are others")
    counts_ = [int((more_y == k).sum()) for k in y.unique()]
    check(len(set(counts_)) == 1 and len(more_x) == len(more_y), "classes differ in size")
    check(more_x.dtype == x.dtype and more_y.dtype == y.dtype, "another dtype")
    if dtype_of(case) == torch.bfloat16:
        return
    for row, label in zip(more_x[len(x) :].double(), more_y[len(x) :], strict=True):
        own = x[y == label].detach().double()
        k = min(int(given(case, "k_neighbors").get("k_neighbors", 5)), len(own) - 1)
        apart = (own[:, None] - own).norm(dim=2)
        near = [(i, j) for i in range(len(own)) for j in range(len(own)) if i != j]
        near = [(i, j) for i, j in near if apart[i, j] <= apart[i].sort().values[k] * (1 + 1e-6)]
        gaps = [_from_segment(row, own[i], own[j]) for i, j in near]
        slack = 1e-4 * float(own.abs().max()) + torch.finfo(x.dtype).smallest_normal
        check(min(gaps) <= slack, "a new row is not between a row and its neighbour")


def _from_segment(point: Tensor, start: Tensor, end: Tensor) -> float:
    """Return the distance of a point from a segment."""
    along = end - start
    place = float((point - start) @ along / (along @ along).clamp_min(1e-300))
    return float((point - start - min(max(place, 0.0), 1.0) * along).norm())


@target(
    "baselines.matched_smoothing",
    {
        "num_classes": (fine("3", 3), *counts(10, 2, 100, least=2)[1:]),
        "sigma_y": (fine("0.1", 0.1), *reals(0.1, 0.0, 1.0)[2:]),
        "simplex": names("abs", "euclidean"),
        "horizon": reals(1.0, 0.1, wrong=(0.0, -1.0)),
        "n_times": counts(5, 2, least=2),
        "quadrature": names("uniform", "mean", "trapezoid"),
        "n_points": (fine("4096", 4096), *counts(512, 1, 100)[2:]),
    },
    share=0.1,
)
def run_matched(case: Case) -> None:
    """Compute a smoothing: a share, zero without noise, the same in every call."""
    settings = given(case, "simplex", "horizon", "n_times", "quadrature")
    call = functools.partial(
        baselines.matched_smoothing,
        case["num_classes"],
        case["sigma_y"],
        n_points=case["n_points"],
        **settings,
    )
    random = torch.get_rng_state()
    found = call()
    check(torch.equal(torch.get_rng_state(), random), "torch's global random state was changed")
    check(0 <= found <= 1 and found == call(), f"the smoothing is {found}, or changes")
    check(case["sigma_y"] != 0 or found < 1e-12, "labels are smoothed without noise")
    if case.owed != FINE or int(case["n_points"]) < 64:
        return
    k, rule, rng = int(case["num_classes"]), settings.get("quadrature", "uniform"), np.random.default_rng(0)
    s = rng.random(4000)
    if rule != "uniform":
        n = int(settings.get("n_times", 5))
        s = rng.choice(np.linspace(0, 1, n), len(s), p=reference.quadrature_weights(rule, n))
    spread = float(case["sigma_y"]) * np.sqrt(settings.get("horizon", 1.0) * s * (1 - s))
    y = rng.standard_normal((len(s), k)) * spread[:, None]
    y[:, 0] += 1
    kept = np.array([projected(row, settings.get("simplex", "abs"))[0] for row in y.tolist()])
    wanted, error = (1 - kept.mean()) * k / (k - 1), kept.std() * k / (k - 1)
    slack = 5 * error / math.sqrt(int(case["n_points"])) + 5 * error / math.sqrt(len(s)) + 1e-9
    check(abs(found - wanted) <= slack, f"a smoothing of {found}, not {wanted}")
