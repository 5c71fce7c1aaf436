"""A model on its data, prepared for diagnosis: checked once, subsampled, with the points between."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from elliptica._utils import checks, random
from elliptica._utils.random import stream
from elliptica.core.noise import Sigma, auto_sigma, check_sigma
from elliptica.core.targets import TargetSpace, encode_targets, infer_target_space
from elliptica.core.types import LossFn
from elliptica.diagnostics.bridges import Bridges, draw_bridges
from elliptica.diagnostics.excess import constant_loss, excess_loss, least_loss
from elliptica.landscape.loss import LossField, evaluation_mode


@dataclass(frozen=True)
class Case:
    """What all findings are about.

    Attributes:
        field: Excess loss of the model (see `excess_loss`).
        x: Inputs that are looked at.
        y: Their targets, as points of ``space``.
        space: Space of the targets.
        parts: Name of the class or group of each row; None without.
        part: What ``parts`` are: ``"class"`` or ``"group"``.
        losses: Loss at each row.
        bridges: Points between the rows.
        constant: Mean loss of the best constant prediction; None if it is not known.
        floor: What no loss can be below: zero, or minus infinity for a loss of the user's own.
        seed: Of the streams of the single findings.
        n_given: Rows before subsampling.
        confidence: Level of the limits.
        notes: What the reader should know before anything else.
    """

    field: LossField
    x: Float[Tensor, " rows *feature"]
    y: Float[Tensor, " rows *target"]
    space: TargetSpace
    parts: tuple[str, ...] | None
    part: str
    losses: Float[Tensor, " rows"]
    bridges: Bridges
    constant: float | None
    floor: float
    seed: int
    n_given: int
    confidence: float
    notes: tuple[str, ...]

    def stream(self, name: str) -> torch.Generator:
        """A stream of its own for each finding, so that none changes the others."""
        return stream("diagnose", self.seed, name)

    @cached_property
    def between(self) -> Float[Tensor, " probes"]:
        """Loss at each point between the data."""
        return self.field(self.bridges.x, self.bridges.y).double()

    @cached_property
    def deviation(self) -> Float[Tensor, " *feature"]:
        """Standard deviation of each feature."""
        return auto_sigma(self.x, 1.0)

    @property
    def yardstick(self) -> float:
        """What losses are measured by: that of a constant prediction, else the largest at the data."""
        if self.constant is not None and self.constant > 0:
            return self.constant
        return float(self.losses.abs().max()) or 1.0

    @property
    def yardstick_name(self) -> str:
        """The same in words."""
        if self.constant is not None and self.constant > 0:
            return "the loss of the best constant prediction"
        return "the largest loss at the data"


def make_case(
    model: nn.Module,
    loss_fn: LossFn,
    x: Tensor,
    y: Tensor,
    *,
    groups: Tensor | Sequence[Hashable] | None,
    n: int,
    sigma: Sigma,
    num_classes: int | None,
    target_space: TargetSpace | None,
    confidence: float,
    generator: torch.Generator,
    device: torch.device | str | None,
    batch_size: int,
    class_names: Sequence[Hashable] | None = None,
) -> Case:
    """Check everything, draw rows and bridges (in this order, from ``generator``), evaluate the losses."""
    checks.model(model, "diagnose")
    checks.floating("x", x)
    checks.batch("x", x)
    checks.finite("x", x)
    checks.same_rows("y", y, len(x))
    checks.count("n", n, 10)
    if len(x) < 2:
        raise ValueError("x has one row, and there is nothing between one point. Pass at least two rows.")
    if groups is not None and len(groups) != len(x):
        raise ValueError(f"groups must have one entry for each of the {len(x)} rows, but has {len(groups)}.")
    n_given = len(x)
    model, place = _placed(model, device, x)
    random.check_generator(generator, place)
    if n_given > n:
        rows = random.draw_permutation(n_given, device=x.device, generator=generator)[:n].sort().values
        x, y = x[rows], y[rows.to(y.device)]
        groups = None if groups is None else [_item(groups, i) for i in rows.tolist()]
    x, y = x.detach().to(place), y.detach().to(place)
    space = infer_target_space(loss_fn, y) if target_space is None else target_space
    if space == "simplex" and not y.is_floating_point() and num_classes is None:
        num_classes = _count_classes(model, x)
    encoded = encode_targets(y, space, num_classes=num_classes, dtype=x.dtype)
    field = LossField(model, excess_loss(loss_fn), chunk_size=batch_size)
    _forward(model, x)
    sigma = check_sigma(sigma)
    noise = auto_sigma(x) if isinstance(sigma, str) else sigma
    bridges = draw_bridges(x, encoded, n, target_space=space, sigma=noise, generator=generator)
    source = generator.device
    seed = int(torch.randint(2**62, (1,), device=source, generator=generator))
    parts, part = _parts(groups, encoded, space, class_names)
    return Case(
        field=field,
        x=x,
        y=encoded,
        space=space,
        parts=parts,
        part=part,
        losses=field(x, encoded).double(),
        bridges=bridges,
        constant=constant_loss(loss_fn, encoded),
        floor=-math.inf if least_loss(loss_fn, encoded[:1]) is None else 0.0,
        seed=seed,
        n_given=n_given,
        confidence=confidence,
        notes=_notes(loss_fn, encoded, space),
    )


def _placed(model: nn.Module, device: torch.device | str | None, x: Tensor) -> tuple[nn.Module, torch.device]:
    """The model and where to compute; a model that is elsewhere is copied, not moved."""
    home = next((p.device for p in model.parameters()), x.device)
    place = home if device is None else torch.device(device)
    if place != home:
        model = copy.deepcopy(model).to(place)
    return model, place


def _forward(model: nn.Module, x: Tensor) -> object:
    """Output for two rows, or a sentence on what went wrong."""
    try:
        with evaluation_mode(model), torch.no_grad():
            return model(x[:2])
    except Exception as error:  # it is the user's code
        raise ValueError(
            f"The model cannot be evaluated on x (inputs {tuple(x[:2].shape)} of dtype {x.dtype}): {error}. "
            "Pass x as the model takes it in training, preprocessing included."
        ) from error


def _count_classes(model: nn.Module, x: Tensor) -> int:
    output = _forward(model, x)
    if not isinstance(output, Tensor) or output.ndim < 2:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"y holds integer labels, but the model returns {shape} for two rows, so the number of classes "
            "cannot be read off. Pass num_classes=... and a model with one logit per class."
        )
    return output.shape[1]


def _parts(
    groups: Tensor | Sequence[Hashable] | None,
    y: Tensor,
    space: TargetSpace,
    class_names: Sequence[Hashable] | None,
) -> tuple[tuple[str, ...] | None, str]:
    """Groups if there are any, else classes if there is one for each row."""
    n_classes = y.shape[1] if space == "simplex" and y.ndim == 2 else None
    if class_names is not None and len(class_names) != n_classes:
        classes = "no single classes" if n_classes is None else f"{n_classes} classes"
        raise ValueError(
            f"class_names must hold one name for each class, but there are {len(class_names)} names and "
            f"{classes}. Leave it out, or pass them in the order of the model's outputs."
        )
    if groups is not None:
        return tuple(str(_item(groups, i)) for i in range(len(groups))), "group"
    if n_classes is None:
        return None, "group"
    names = range(n_classes) if class_names is None else class_names
    return tuple(str(names[label]) for label in y.argmax(1).tolist()), "class"


def _item(groups: Tensor | Sequence[Hashable], i: int) -> Hashable:
    value = groups[i]
    return value.item() if isinstance(value, Tensor) else value


def _notes(loss_fn: LossFn, y: Tensor, space: TargetSpace) -> tuple[str, ...]:
    least = least_loss(loss_fn, y[:1])
    if least is None and space != "real":
        return (
            "The least value of this loss for a mixed target is not known here: part of the loss between the "
            "data may be a price that no network could avoid.",
        )
    if least is not None and space != "real":
        return (
            "A mixed target costs any network something; that part is taken off every loss below. Where "
            "targets are not mixed or smoothed, the numbers are your loss.",
        )
    return ()
