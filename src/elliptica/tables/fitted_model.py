"""A trained model with its data, checked once and subsampled, and its losses at the rows."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Hashable, Sequence, Sized
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import draw_permutation, stream
from elliptica.core.inputs import LossFn
from elliptica.core.layers import evaluation_mode
from elliptica.core.targets import TargetSpace, encode_targets, infer_target_space

if TYPE_CHECKING:
    from elliptica.landscape.loss import LossField

#: Losses that can be zero for any target, so there is no least loss to subtract.
_REACH_ZERO = ("squared", "absolute", "distance")
#: Fewest rows of a class or group that a sample keeps.
_FLOOR = 50


class Labelled(NamedTuple):
    """Inputs with their targets, and the group of each row if there are groups."""

    x: Tensor
    y: Tensor
    groups: Sequence[Hashable] | None = None

    def take(self, rows: Tensor) -> Labelled:
        """Return some of the rows."""
        groups = None if self.groups is None else [_item(self.groups, i) for i in rows.tolist()]
        return Labelled(self.x[rows.to(self.x.device)], self.y[rows.to(self.y.device)], groups)


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A trained model, its loss, and the rows at which that loss is examined.

    Attributes:
        model: Called as ``model(x)``; in evaluation mode it must treat rows independently.
        loss_fn: Its loss; any that `elliptica.Elliptic` takes.
        x: Inputs as the model takes them, ``(rows, *feature)``.
        y: Their targets: labels, class probabilities, values in [0, 1] or real numbers.
        name: Name for headings.
        groups: Group of each row, or None.
        class_names: Names of the classes, in the order of the model's outputs.
        num_classes: Number of classes of integer labels. None infers it from the model's output.
        target_space: Kind of targets. None infers it from the loss.
        test: Other inputs with their targets, or None.
        test_groups: Group of each test row, or None.
        unlabelled: Inputs without targets, or None.
        row_numbers: Numbers of the training rows in messages. None counts them from 0.
        test_row_numbers: The same for the test rows.
        unlabelled_row_numbers: The same for the unlabelled rows.
        feature_names: Names of the inputs.
        scales_inputs: Whether the model scales its inputs itself, so that their units do not matter.
        batch_size: Rows per call of the model.
        n_given: Rows before subsampling; 0 without.
        confidence: Confidence level of all limits.
        seed: Seed of the random streams of the findings.
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
    unlabelled: Tensor | None = None
    row_numbers: Sequence[int] | None = None
    test_row_numbers: Sequence[int] | None = None
    unlabelled_row_numbers: Sequence[int] | None = None
    feature_names: Sequence[str] = ()
    scales_inputs: bool = False
    batch_size: int = 1024
    n_given: int = 0
    confidence: float = 0.95
    seed: int = 0

    def prepare(
        self,
        max_rows: int,
        *,
        generator: torch.Generator,
        confidence: float = 0.95,
        device: torch.device | str | None = None,
    ) -> FittedModel:
        """Check all rows, move them to the model's device, and sample by class and group if needed.

        Args:
            max_rows: Largest number of rows of each kind.
            generator: Source of the samples.
            confidence: Level of the limits.
            device: Where to compute; None is where the model is. A model that is elsewhere is copied.

        Raises:
            ValueError: If model, loss and rows do not go together.
        """
        self._check()
        model, place = _placed(self.model, device, self.x)
        given = self.n_given or len(self.x)
        kept = self._sampled(self.rows, max_rows, generator)
        x, y, groups = self.rows.take(kept)
        prepared = replace(
            self,
            model=model,
            x=x.detach().to(place),
            y=y.detach().to(place),
            groups=groups,
            n_given=given,
            confidence=confidence,
            row_numbers=_taken(self.row_numbers, kept),
        )
        if self.held_out is not None:
            kept = self._sampled(self.held_out, max_rows, generator)
            test = self.held_out.take(kept)
            prepared = replace(
                prepared,
                test=(test.x.detach().to(place), test.y.detach().to(place)),
                test_groups=test.groups,
                test_row_numbers=_taken(self.test_row_numbers, kept),
            )
        if self.unlabelled is not None:
            some = draw_permutation(len(self.unlabelled), device=generator.device, generator=generator)
            some = some[:max_rows].sort().values.cpu()
            prepared = replace(
                prepared,
                unlabelled=self.unlabelled[some.to(self.unlabelled.device)].detach().to(place),
                unlabelled_row_numbers=_taken(self.unlabelled_row_numbers, some),
            )
        _forward(model, prepared.x)
        prepared._check_class_names()
        _ = prepared.losses  # raises now if the model gives no numbers
        return prepared

    def _sampled(self, rows: Labelled, n: int, generator: torch.Generator) -> Int[Tensor, " sample"]:
        """Return numbers of at most about ``n`` rows, sampled by class and group."""
        if len(rows.x) <= n:
            return torch.arange(len(rows.x))
        groups = rows.groups if rows.groups is not None else [""] * len(rows.x)
        is_label = rows.y.ndim == 1 and not rows.y.is_floating_point()
        labels = rows.y.tolist() if is_label else [""] * len(rows.x)
        strata = [f"{label}/{_item(groups, i)}" for i, label in enumerate(labels)]
        return sample_by_part(strata, n, generator, floor=1)  # in proportion: no overall number is biased

    @property
    def rows(self) -> Labelled:
        """Training rows."""
        return Labelled(self.x, self.y, self.groups)  # type: ignore[arg-type]

    @property
    def held_out(self) -> Labelled | None:
        """Test rows; None if there are none."""
        return None if self.test is None else Labelled(*self.test, self.test_groups)

    def losses_of(self, rows: Labelled) -> Float[Tensor, " rows"]:
        """Return the loss at each of some rows."""
        given = self.num_classes if rows.y.is_floating_point() else self.n_classes
        targets = encode_targets(rows.y, self.space, num_classes=given, dtype=rows.x.dtype)
        return self.field(rows.x, targets)

    def stream(self, name: str) -> torch.Generator:
        """Return a random stream for one finding, so that no finding changes another."""
        return stream("diagnose", self.seed, name)

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
        from elliptica.landscape.loss import LossField, excess_loss, loss_kind  # not needed to predict

        reaches_zero = loss_kind(self.loss_fn) in _REACH_ZERO
        loss_fn = self.loss_fn if reaches_zero else excess_loss(self.loss_fn)
        return LossField(self.model, loss_fn, num_classes=self.n_classes, chunk_size=self.batch_size)

    @cached_property
    def losses(self) -> Float[Tensor, " rows"]:
        """Loss at each row."""
        return self.field(self.x, self.targets).double()

    @cached_property
    def floor(self) -> float:
        """Lower bound of the loss: zero, or minus infinity for a custom loss."""
        from elliptica.landscape.loss import least_loss

        return -math.inf if least_loss(self.loss_fn, self.targets[:1]) is None else 0.0

    @property
    def part(self) -> str:
        """Kind of `parts`: ``"class"`` or ``"group"``."""
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
        """Return the name of a class, or its number if it has none."""
        return str(
            label if self.class_names is None or len(self.class_names) == 0 else self.class_names[label]
        )

    def _check(self) -> None:
        checks.finite("x", self.x)
        checks.same_rows("y", self.y, len(self.x))
        if len(self.x) < 2:
            raise ValueError("x has one row, but a diagnosis needs more. Pass at least two rows.")
        if self.num_classes is not None:
            checks.count("num_classes", self.num_classes)
        if self.target_space is not None:
            checks.choice("target_space", self.target_space, ("simplex", "unit", "real"))
        for name, value in (("class_names", self.class_names), ("feature_names", self.feature_names)):
            if not isinstance(value, Sized) and not (value is None and name == "class_names"):
                raise TypeError(
                    f"{name} must be a list of names, but got {value!r}. Omit it if there are none."
                )
        _check_groups("groups", self.groups, len(self.x))
        if self.test is None:
            if self.test_groups is not None:
                raise ValueError(
                    "held_out_groups needs held-out rows, but there are none. Pass held_out=(x, y), too."
                )
        elif not isinstance(self.test, tuple | list) or len(self.test) != 2:
            raise ValueError(
                f"held_out must be a pair of inputs and targets, but got {type(self.test).__name__}. Pass "
                "held_out=(x, y)."
            )
        else:
            self._check_held_out(*self.test)
        if self.unlabelled is not None:
            self._check_inputs("unlabelled", self.unlabelled)

    def _check_inputs(self, name: str, x: Tensor) -> None:
        if len(x) == 0:
            raise ValueError(f"{name} have no rows. Pass at least one row, or omit them.")
        checks.finite(name, x)
        if x.shape[1:] != self.x.shape[1:]:
            raise ValueError(
                f"{name} must have rows of shape {tuple(self.x.shape[1:])} as x has, but has "
                f"{tuple(x.shape[1:])}. Pass the same features in the same order."
            )

    def _check_held_out(self, x: Tensor, y: Tensor) -> None:
        self._check_inputs("held-out inputs", x)
        checks.same_rows("held-out targets", y, len(x))
        if y.is_floating_point() != self.y.is_floating_point():
            raise ValueError(
                f"Held-out targets are {y.dtype}, but training targets are {self.y.dtype}. Pass both as "
                "class numbers or both as real numbers."
            )
        if y.shape[1:] != self.y.shape[1:]:
            raise ValueError(
                f"Held-out targets have shape {tuple(y.shape[1:])} per row, but training targets "
                f"{tuple(self.y.shape[1:])}. Pass both in the same shape."
            )
        _check_groups("held_out_groups", self.test_groups, len(x))

    def _check_class_names(self) -> None:
        n_classes = None if self.labels is None else self.n_classes
        if self.class_names is not None and len(self.class_names) not in (0, n_classes):
            classes = "no single classes" if n_classes is None else f"{n_classes} classes"
            raise ValueError(
                f"class_names must hold one name for each class, but there are {len(self.class_names)} names "
                f"and {classes}. Omit it, or pass them in the order of the model's outputs."
            )


def sample_by_part(
    parts: Sequence[str], n: int, generator: torch.Generator, floor: int = _FLOOR
) -> Int[Tensor, " sample"]:
    """Draw about ``n`` rows in proportion, but at least ``floor`` of each part if it has them."""
    rows: dict[str, list[int]] = {}
    for i, part in enumerate(parts):
        rows.setdefault(part, []).append(i)
    least = min(floor, n // len(rows) or 1)
    chosen = []
    for own in rows.values():
        count = min(len(own), max(round(n * len(own) / len(parts)), least))
        order = draw_permutation(len(own), device=generator.device, generator=generator)
        chosen += [own[i] for i in order[:count].tolist()]
    return torch.tensor(sorted(chosen))


def _taken(numbers: Sequence[int] | None, rows: Tensor) -> Sequence[int]:
    """Return the names of some rows; by default their numbers."""
    return rows.tolist() if numbers is None else [numbers[i] for i in rows.tolist()]


def _check_groups(name: str, groups: Tensor | Sequence[Hashable] | None, n: int) -> None:
    if groups is None:
        return
    if not isinstance(groups, Sized) or (isinstance(groups, Tensor) and groups.ndim == 0):
        raise TypeError(
            f"{name} must have one entry for each of the {n} rows, but got {groups!r}. Pass one per row."
        )
    if len(groups) != n:
        raise ValueError(
            f"{name} must have one entry for each of the {n} rows, but has {len(groups)}. Pass one per row."
        )


def _placed(model: nn.Module, device: torch.device | str | None, x: Tensor) -> tuple[nn.Module, torch.device]:
    """Return the model and its device; a model on another device is copied, not moved."""
    home = next((p.device for p in model.parameters()), x.device)
    if device is None:
        return model, home
    place = checks.device(device, 'Use "cpu", or omit it.')
    return (model if place == home else copy.deepcopy(model).to(place)), place


def _forward(model: nn.Module, x: Tensor) -> object:
    """Return the output for two rows; raise an error that explains what went wrong."""
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
            "cannot be inferred. Pass num_classes=... and a model with one logit per class."
        )
    return output.shape[1]


def _item(groups: Tensor | Sequence[Hashable], i: int) -> Hashable:
    value = groups[i]
    return value.item() if isinstance(value, Tensor) else value


class Predictor(nn.Module):
    """A fitted scikit-learn model as a module: log probabilities of classes, or a column of values.

    It has no gradient. Pass ``scales_inputs=True`` to `FittedModel` with it.

    Args:
        estimator: Estimator with ``predict_proba`` and ``classes_``, or with ``predict``; takes float64
        arrays.
    """

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, x: Float[Tensor, "rows features"]) -> Float[Tensor, "rows outputs"]:
        """Predict."""
        inputs = x.detach().cpu().double().numpy()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            if not hasattr(self.estimator, "classes_"):
                outputs = np.asarray(self.estimator.predict(inputs), dtype=np.float64).reshape(
                    len(inputs), -1
                )
            else:
                outputs = np.log(np.clip(self.estimator.predict_proba(inputs), 1e-30, None))
        return torch.from_numpy(outputs).to(x)
