"""A trained model on its data: checked once, subsampled, with its losses at and between the rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import checks, random
from elliptica._utils.random import stream
from elliptica.core.batchnorm import evaluation_mode
from elliptica.core.noise import Sigma, auto_sigma, check_sigma
from elliptica.core.targets import TargetSpace, encode_targets, infer_target_space
from elliptica.core.types import LossFn
from elliptica.diagnostics.probes import Bridges, draw_bridges
from elliptica.landscape.loss import (
    LossField,
    constant_loss,
    excess_loss,
    least_loss,
    loss_kind,
)

#: Losses that are zero for some output whatever the target: there is no least loss to take off.
_REACH_ZERO = ("squared", "absolute", "distance")


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A trained model, its loss, and the rows at which that loss is examined.

    Attributes:
        model: Called as ``model(x)``; in evaluation mode it must treat rows independently.
        loss_fn: Its loss: any that `elliptica.Elliptic` takes.
        x: Inputs as the model takes them, ``(rows, *feature)``.
        y: Their targets: labels, class probabilities, values in [0, 1] or real numbers.
        name: For headings.
        groups: Group of each row, or None.
        class_names: Names of the classes, in the order of the model's outputs.
        num_classes: Number of classes of integer labels; None reads it off the model's output.
        target_space: What targets are; None reads it off the loss.
        test: Other inputs with their targets, or None.
        test_groups: Group of each test row, or None.
        feature_names: Of the inputs.
        location: What to add, and
        scale: what to multiply inputs in the plane by, to have the units of the data.
        batch_size: Rows per call of the model.
        drawn: Points between the rows; see `sample`.
        n_given: Rows before subsampling; 0 without.
        confidence: Level of the limits of all that is estimated.
        seed: Of the streams of the single findings.
    """

    model: nn.Module
    loss_fn: LossFn
    x: Tensor
    y: Tensor
    _: KW_ONLY
    name: str = "the model"
    groups: Tensor | Sequence[Hashable] | None = None
    class_names: Sequence[Hashable] | None = None
    num_classes: int | None = None
    target_space: TargetSpace | None = None
    test: tuple[Tensor, Tensor] | None = None
    test_groups: Sequence[Hashable] | None = None
    feature_names: Sequence[str] = ()
    location: Sequence[float] = (0.0, 0.0)
    scale: Sequence[float] = (1.0, 1.0)
    batch_size: int = 1024
    drawn: Bridges | None = None
    n_given: int = 0
    confidence: float = 0.95
    seed: int = 0

    def sample(
        self,
        n: int,
        *,
        generator: torch.Generator,
        sigma: Sigma = "auto",
        confidence: float = 0.95,
        device: torch.device | str | None = None,
    ) -> FittedModel:
        """Return the model on at most ``n`` of its rows, with ``n`` points on bridges between them.

        Rows, bridges and the seed of later streams are drawn in this order.

        Args:
            n: Most rows; fewer are taken as they are.
            generator: Source of randomness.
            sigma: Noise of the bridges, as in `elliptica.Elliptic`.
            confidence: Level of the limits.
            device: Where to compute; None is where the model is. A model that is elsewhere is copied.

        Raises:
            ValueError: If model, loss and rows do not go together.
        """
        self._check(n)
        model, place = _placed(self.model, device, self.x)
        random.check_generator(generator, place)
        x, y, groups = self.x, self.y, self.groups
        if len(x) > n:
            rows = random.draw_permutation(len(x), device=x.device, generator=generator)[:n].sort().values
            x, y = x[rows], y[rows.to(y.device)]
            groups = None if groups is None else [_item(groups, i) for i in rows.tolist()]
        x, y = x.detach().to(place), y.detach().to(place)
        found = replace(self, model=model, x=x, y=y, groups=groups)
        targets = found.targets
        _forward(model, x)
        sigma = check_sigma(sigma)
        noise = auto_sigma(x) if isinstance(sigma, str) else sigma
        bridges = draw_bridges(x, targets, n, target_space=found.space, sigma=noise, generator=generator)
        seed = int(torch.randint(2**62, (1,), device=generator.device, generator=generator))
        given = self.n_given or len(self.x)
        found = replace(found, drawn=bridges, n_given=given, confidence=confidence, seed=seed)
        found._check_class_names()
        _ = found.losses  # raises now if the model gives no numbers
        return found

    def stream(self, name: str) -> torch.Generator:
        """Return a stream for one finding, so that none changes the others."""
        return stream("diagnose", self.seed, name)

    @property
    def bridges(self) -> Bridges:
        """Points between the rows."""
        if self.drawn is None:
            raise ValueError(
                "No points between the rows were drawn yet. Call sample(n, generator=...) first."
            )
        return self.drawn

    @cached_property
    def space(self) -> TargetSpace:
        """Space of the targets."""
        return infer_target_space(self.loss_fn, self.y) if self.target_space is None else self.target_space

    @cached_property
    def n_classes(self) -> int | None:
        """Number of classes; None if targets are not classes."""
        if self.space != "simplex":
            return None
        if self.num_classes is not None:
            return self.num_classes
        return self.targets.shape[1] if self.y.is_floating_point() else _count_classes(self.model, self.x)

    @cached_property
    def targets(self) -> Float[Tensor, " rows *target"]:
        """Targets as points of their space."""
        given = self.num_classes if self.y.is_floating_point() else self.n_classes
        return encode_targets(self.y, self.space, num_classes=given, dtype=self.x.dtype)

    @cached_property
    def labels(self) -> Int[Tensor, " rows"] | None:
        """Class of each row; None if targets are not classes, or if a row has several."""
        is_flat = self.space == "simplex" and self.targets.ndim == 2
        return self.targets.argmax(1) if is_flat else None

    @cached_property
    def field(self) -> LossField:
        """The excess loss of the model (see `elliptica.landscape.loss.excess_loss`)."""
        reaches_zero = loss_kind(self.loss_fn) in _REACH_ZERO
        loss_fn = self.loss_fn if reaches_zero else excess_loss(self.loss_fn)
        return LossField(self.model, loss_fn, num_classes=self.n_classes, chunk_size=self.batch_size)

    @cached_property
    def losses(self) -> Float[Tensor, " rows"]:
        """Loss at each row."""
        return self.field(self.x, self.targets).double()

    @cached_property
    def between(self) -> Float[Tensor, " probes"]:
        """Loss at each point between the rows."""
        return self.field(self.bridges.x, self.bridges.y).double()

    @cached_property
    def deviation(self) -> Float[Tensor, " *feature"]:
        """Standard deviation of each feature."""
        return auto_sigma(self.x, 1.0)

    @cached_property
    def constant(self) -> float | None:
        """Mean loss of the best constant prediction; None if it is not known."""
        return constant_loss(self.loss_fn, self.targets)

    @cached_property
    def floor(self) -> float:
        """What no loss can be below: zero, or minus infinity for a loss of the user's own."""
        return -math.inf if least_loss(self.loss_fn, self.targets[:1]) is None else 0.0

    @property
    def yardstick(self) -> float:
        """What losses are measured by: that of a constant prediction, else the largest at the data."""
        if self.constant is not None and self.constant > 0:
            return self.constant
        return float(self.losses.abs().max()) or 1.0

    @property
    def yardstick_name(self) -> str:
        """The yardstick in words."""
        if self.constant is not None and self.constant > 0:
            return "the loss of the best constant prediction"
        return "the largest loss at the data"

    @property
    def part(self) -> str:
        """What `parts` are: ``"class"`` or ``"group"``."""
        return "group" if self.groups is not None or self.labels is None else "class"

    @cached_property
    def parts(self) -> tuple[str, ...] | None:
        """Name of the group of each row, else of its class; None if rows have neither."""
        if self.groups is not None:
            return tuple(str(_item(self.groups, i)) for i in range(len(self.groups)))
        if self.labels is None:
            return None
        return tuple(self.class_name(label) for label in self.labels.tolist())

    def class_name(self, label: int) -> str:
        """Return the name of a class, its number if it has none."""
        return str(self.class_names[label] if self.class_names else label)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know about the loss."""
        if self.space == "real":
            return ()
        if self.floor == -math.inf:
            return (
                "The least value of this loss for a mixed target is not known here: part of the loss between "
                "the data may be a price that no network could avoid.",
            )
        return (
            "A mixed target costs any network something; that part is taken off every loss below. Where "
            "targets are not mixed or smoothed, the numbers are your loss.",
        )

    def _check(self, n: int) -> None:
        checks.model(self.model, "diagnose")
        checks.floating("x", self.x)
        checks.batch("x", self.x)
        checks.finite("x", self.x)
        checks.same_rows("y", self.y, len(self.x))
        checks.count("n", n, 10)
        if len(self.x) < 2:
            raise ValueError("x has one row, and there is nothing between one point. Pass at least two rows.")
        if self.groups is not None and len(self.groups) != len(self.x):
            raise ValueError(
                f"groups must have one entry for each of the {len(self.x)} rows, but has {len(self.groups)}."
            )

    def _check_class_names(self) -> None:
        n_classes = None if self.labels is None else self.n_classes
        if self.class_names and len(self.class_names) != n_classes:
            classes = "no single classes" if n_classes is None else f"{n_classes} classes"
            raise ValueError(
                f"class_names must hold one name for each class, but there are {len(self.class_names)} names "
                f"and {classes}. Leave it out, or pass them in the order of the model's outputs."
            )


def _placed(model: nn.Module, device: torch.device | str | None, x: Tensor) -> tuple[nn.Module, torch.device]:
    """Return the model and where to compute; a model that is elsewhere is copied, not moved."""
    home = next((p.device for p in model.parameters()), x.device)
    place = home if device is None else torch.device(device)
    if place != home:
        model = copy.deepcopy(model).to(place)
    return model, place


def _forward(model: nn.Module, x: Tensor) -> object:
    """Return the output for two rows, or raise a sentence on what went wrong."""
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


def _item(groups: Tensor | Sequence[Hashable], i: int) -> Hashable:
    value = groups[i]
    return value.item() if isinstance(value, Tensor) else value
