"""Check a batch once: one input or several, targets and weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.core.targets import encode_targets
from elliptica.core.types import Inputs

if TYPE_CHECKING:
    from elliptica.core.settings import BridgeSettings

#: Key of the only input of a model that takes one tensor.
ONLY = "x"


@dataclass(frozen=True)
class Batch:
    """A checked batch.

    Attributes:
        x: Inputs as the user passed them.
        inputs: The same by name.
        bridged: Names of the inputs to bridge; the others come from the nearer end.
        y: Targets as the user passed them.
        targets: Targets as points of their space, ``(batch, *target)``.
        weight: Sample weights, or None.
        reference: The first bridged input, on which distances are measured.
        encode: Function from targets to points of their space, for ends outside the batch.
    """

    x: Inputs
    inputs: dict[Hashable, Tensor]
    bridged: list[Hashable]
    y: Tensor
    targets: Tensor
    weight: Tensor | None
    reference: Tensor
    encode: Callable[[Tensor], Tensor]


def read_batch(
    x: Inputs, y: Tensor, sample_weight: Tensor | None, settings: BridgeSettings, *, in_hidden: bool = False
) -> Batch:
    """Check a batch and encode its targets.

    With ``in_hidden`` bridges are drawn in a hidden layer, so inputs need not be floating point.
    """
    if isinstance(x, Tensor) and settings.bridged is None:
        checks.batch("x", x)
        inputs: dict[Hashable, Tensor] = {ONLY: x}
        bridged: list[Hashable] = [ONLY]
    else:
        inputs = named_inputs(x)
        count_rows(inputs)
        bridged = bridged_names(inputs, settings.bridged)
    reference = inputs[bridged[0]]
    check_batch(inputs, [] if in_hidden else bridged, y, reference.shape[0], settings.validate)
    if sample_weight is not None:
        check_weight(sample_weight, len(reference))
    encode = target_encoder(reference, settings)
    return Batch(x, inputs, bridged, y, encode(y), sample_weight, reference, encode)


def target_encoder(reference: Tensor, settings: BridgeSettings) -> Callable[[Tensor], Tensor]:
    """Return a function from targets to points of their space, in the dtype of the inputs."""
    assert settings.target_space is not None
    return functools.partial(
        encode_targets,
        space=settings.target_space,
        num_classes=settings.num_classes,
        dtype=reference.dtype if reference.is_floating_point() else torch.get_default_dtype(),
        validate=settings.validate,
    )


def carries_gradient(*values: object) -> bool:
    """Return whether any tensor among ``values`` (or in their tuples and dicts) requires a gradient."""
    for value in values:
        if isinstance(value, Tensor):
            if value.requires_grad:
                return torch.is_grad_enabled()
        elif isinstance(value, Mapping):
            if carries_gradient(*value.values()):
                return True
        elif isinstance(value, tuple | list) and carries_gradient(*value):
            return True
    return False


def named_inputs(x: Inputs) -> dict[Hashable, Tensor]:
    """Return the tensors by name: their key in a dict, their position in a tuple."""
    if isinstance(x, Tensor):
        return {ONLY: x}
    items: dict[Hashable, Any]
    if isinstance(x, Mapping):
        items = {name: value for name, value in x.items()}
    elif isinstance(x, (tuple, list)):
        items = dict(enumerate(x))
    else:
        raise TypeError(
            f"x must be a tensor, or a tuple or dict of tensors, but got {type(x).__name__}. "
            "Convert arrays with torch.as_tensor(...)."
        )
    for name, value in items.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"x[{name!r}] must be a tensor, but got {type(value).__name__}. "
                "Pass only tensors; bind other arguments of the model with functools.partial."
            )
    if not items:
        raise ValueError("x is empty: it holds no tensor. Pass the inputs of the model.")
    return items


def rebuild_inputs(template: Inputs, items: Mapping[Any, Tensor]) -> Inputs:
    """Invert `named_inputs`: return the tensors in the caller's structure."""
    if isinstance(template, Tensor):
        return items[ONLY]
    return dict(items) if isinstance(template, Mapping) else tuple(items.values())


def call_model(model: nn.Module, x: Inputs) -> Any:
    """Call ``model(x)``, ``model(*x)`` or ``model(**x)``; explain an error about mismatched dtypes."""
    if not torch.compiler.is_compiling():
        try:
            if isinstance(x, Tensor):
                return model(x)
            return model(**x) if isinstance(x, Mapping) else model(*x)
        except RuntimeError as error:
            explain_error(error, model, x)
            raise
    if isinstance(x, Tensor):
        return model(x)
    return model(**x) if isinstance(x, Mapping) else model(*x)


def explain_error(error: RuntimeError, model: nn.Module, x: Inputs) -> None:
    """Raise an error that names the fix if ``error`` is about dtypes, inference mode or in-place changes."""
    if "a leaf Variable that requires grad is being used in an in-place operation" in str(error):
        raise RuntimeError(
            "The model overwrites its input in place, but the gradient at the input is needed (for a "
            "weighting, or because x requires one). Let its first layer make a new tensor, e.g. "
            "nn.ReLU(inplace=False)."
        ) from error
    if "Inference tensors cannot be saved" in str(error):
        made = "The model was" if any(p.is_inference() for p in model.parameters()) else "x was"
        raise RuntimeError(
            f"{made} made under torch.inference_mode(), so it cannot be trained on. Make it outside, or "
            "under torch.no_grad(); x.clone() makes an ordinary tensor of x."
        ) from error
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    if own is None or "type" not in str(error):
        return
    for name, value in named_inputs(x).items():
        if value.is_floating_point() and value.dtype != own:
            shown = "x" if name == ONLY else f"x[{name!r}]"
            raise TypeError(
                f"{shown} has dtype {value.dtype}, but the model's parameters have {own}. Convert the "
                f"inputs, {shown}.to({own}), or the model, model.to({value.dtype})."
            ) from error


def count_rows(items: Mapping[Hashable, Tensor]) -> int:
    """Return the common number of rows of all inputs; raise for an empty batch."""
    first_name, first = next(iter(items.items()))
    for name, value in items.items():
        checks.tensor("x" if name == ONLY else f"x[{name!r}]", value)
    checks.batch("x" if first_name == ONLY else f"x[{first_name!r}]", first)
    rows = len(first)
    for name, value in items.items():
        checks.same_rows(f"x[{name!r}]", value, rows, f"x[{first_name!r}]")
    return rows


def bridged_names(items: Mapping[Hashable, Tensor], bridged: Sequence[Hashable] | None) -> list[Hashable]:
    """Return the names of the inputs to bridge; the others are taken from the nearer end."""
    if bridged is None:
        if len(items) > 1:
            raise ValueError(
                f"x has several tensors ({', '.join(map(repr, items))}). Choose which to bridge, e.g. "
                f"bridged=({next(iter(items))!r},). The others are taken from the nearer end."
            )
        return list(items)
    if isinstance(bridged, str):
        raise TypeError(f"bridged must be a tuple of names, but got a string. Write bridged=({bridged!r},).")
    if not isinstance(bridged, Sequence | Set):
        raise TypeError(
            f"bridged must be a tuple of names or positions, but got {bridged!r} ({type(bridged).__name__}). "
            f"Write bridged=({bridged!r},)."
        )
    missing = [name for name in bridged if name not in items]
    if missing or not bridged:
        raise ValueError(
            f"bridged={tuple(bridged)!r} must name inputs of x, which has {', '.join(map(repr, items))}."
        )
    return list(bridged)


def check_batch(
    items: Mapping[Hashable, Tensor], floating: Sequence[Hashable], y: Tensor, rows: int, finite: bool
) -> None:
    """Check a batch before anything is drawn; ``floating`` names the inputs that must be floating point."""
    checks.same_rows("y", y, rows)
    if y.is_complex():
        raise TypeError(f"y must be real or hold labels, but has dtype {y.dtype}. Use y.real.")
    for name, value in items.items():
        shown = "x" if name == ONLY else f"x[{name!r}]"
        if name in floating:
            checks.floating(shown, value)
        if finite:
            checks.finite(shown, value)
    if finite:
        checks.finite("y", y)


def check_weight(sample_weight: Tensor | None, rows: int) -> None:
    """Check that there is one sample weight per row, at least zero."""
    if sample_weight is not None:
        checks.same_rows("sample_weight", sample_weight, rows)
        if sample_weight.ndim > 1:
            raise ValueError(
                f"sample_weight must hold one number per row, shape ({rows},), but has shape "
                f"{tuple(sample_weight.shape)}. Use sample_weight.flatten()."
            )
        checks.nonnegative("sample_weight", sample_weight)
