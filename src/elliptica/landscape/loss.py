"""The loss of a trained model as a function on the data space, and the maximum principle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from elliptica.core.inputs import Inputs, LossFn, call_model, count_rows, named_inputs, rebuild_inputs
from elliptica.core.layers import evaluation_mode
from elliptica.core.losses import PerSampleLoss
from elliptica.core.targets import Targets, space_of_loss


class LossField:
    """The loss of each row, ``field(x, y)``, in evaluation mode and in bounded memory.

    The model's mode is restored afterwards. A graph is kept only if ``x`` requires a gradient.

    Args:
        model: Called as ``model(x)``. It must treat rows independently, as models in evaluation mode do.
        loss_fn: Any loss that `elliptica.Elliptic` takes.
        num_classes: If given, integer labels become one-hot rows of this length.
        chunk_size: Rows per call of the model.

    Example:
        >>> field = LossField(nn.Linear(3, 2), nn.CrossEntropyLoss())
        >>> field(torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])).shape
        torch.Size([5])
    """

    def __init__(
        self, model: nn.Module, loss_fn: LossFn, *, num_classes: int | None = None, chunk_size: int = 4096
    ) -> None:
        self.model, self.loss_fn = model, loss_fn
        self.num_classes, self.chunk_size = num_classes, chunk_size
        self._loss = PerSampleLoss(loss_fn)

    def __call__(self, x: Inputs, y: Tensor) -> Float[Tensor, " rows"]:
        """Return the loss of each row of ``x`` with the target in the same row of ``y``."""
        inputs = named_inputs(x)
        rows = count_rows(inputs)
        if rows == 0:  # no walk ended here
            return next(iter(inputs.values())).new_zeros(0)
        if len(y) != rows:
            raise ValueError(f"y must have as many rows as x, {rows}, but has {len(y)}.")
        step = -(-rows // -(-rows // self.chunk_size))  # chunks of equal size
        parts = []
        wants_slope = torch.is_grad_enabled() and any(value.requires_grad for value in inputs.values())
        with evaluation_mode(self.model), torch.set_grad_enabled(wants_slope):
            for i in range(0, rows, step):
                part = {name: value[i : i + step] for name, value in inputs.items()}
                output = call_model(self.model, rebuild_inputs(x, part))
                parts.append(self._loss(output, self._target(y[i : i + step], output)))
        losses = torch.cat(parts)
        bad = (~losses.detach().isfinite()).nonzero().flatten().tolist()
        if bad:
            raise ValueError(f"The loss is NaN or infinite at {len(bad)} of {rows} rows, e.g. {bad[:5]}.")
        return losses

    def joint(
        self,
        n_features: int,
        *,
        feature_shape: Sequence[int] | None = None,
        target_shape: Sequence[int] | None = None,
    ) -> Callable[[Tensor], Tensor]:
        """Return the loss as a function of points ``z = (x, y)``, for diffusion of inputs and real targets.

        Args:
            n_features: Leading columns of ``z`` that are inputs; the rest is the target.
            feature_shape: Shape of one input, if it is not a vector.
            target_shape: Shape of one target, if it is not a vector; ``()`` for ``y`` of shape (rows,).
        """

        def loss(z: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"]:
            x, y = z[:, :n_features], z[:, n_features:]
            if feature_shape is not None:
                x = x.reshape(len(z), *feature_shape)
            return self(x, y if target_shape is None else y.reshape(len(z), *target_shape))

        return loss

    def at_label(self, feature_shape: Sequence[int]) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the loss of flat points and labels: ``value`` for a solver with ``context=y``."""

        def loss(z: Float[Tensor, "rows dim"], y: Tensor) -> Float[Tensor, " rows"]:
            return self(z.reshape(len(z), *feature_shape), y)

        return loss

    def _target(self, y: Tensor, output: object) -> Tensor:
        """Convert labels to what the loss accepts, in the dtype of the output."""
        if y.is_floating_point():
            return y
        dtype = output.dtype if isinstance(output, Tensor) else torch.get_default_dtype()
        if self.num_classes is not None:
            return Targets("simplex", self.num_classes).encode(y, dtype)
        space = space_of_loss(self.loss_fn)
        if space == "simplex" and isinstance(output, Tensor) and output.ndim > 1:
            low, high = (int(label) for label in y.aminmax())
            if low < 0 or high >= output.shape[1]:  # torch would ignore -100, and its loss would be 0
                raise ValueError(f"y has labels {low} to {high}, but the model {output.shape[1]} classes.")
        return y if space in (None, "simplex") else y.to(dtype)

    @property
    def is_squared(self) -> bool:
        """Whether the loss is the mean of squares, `torch.nn.MSELoss` or its function."""
        return type(self.loss_fn) is nn.MSELoss or getattr(self.loss_fn, "func", self.loss_fn) is F.mse_loss


def join(x: Tensor, y: Tensor) -> Float[Tensor, "rows dim"]:
    """Join inputs and real targets to points ``z = (x, y)``, one flat row each."""
    if not y.is_floating_point():
        raise TypeError("y must be real to diffuse: nothing lies between two classes. Keep labels fixed.")
    return torch.cat([x.reshape(len(x), -1), y.reshape(len(y), -1).to(x)], dim=1)


def excess_cross_entropy(
    output: Float[Tensor, "rows classes"], target: Float[Tensor, "rows classes"] | Int[Tensor, " rows"]
) -> Float[Tensor, " rows"]:
    """Return the cross-entropy of each row minus the entropy of its label, so that zero can be reached.

    Halfway between two classes the cross-entropy itself is at least log 2, so no network that fits its data
    satisfies the maximum principle there. On hard labels the two are equal.
    """
    losses = F.cross_entropy(output, target, reduction="none")
    return losses + torch.special.xlogy(target, target).sum(1) if target.is_floating_point() else losses


@dataclass(frozen=True)
class MaximumPrinciple:
    """Result of `check_maximum_principle`."""

    boundary_min: float  # least loss on the boundary
    boundary_max: float  # largest loss on the boundary
    interior_min: float  # least loss inside
    interior_max: float  # largest loss inside
    share_above: float  # share of the interior points whose loss exceeds ``boundary_max``, from 0 to 1
    excess: float  # ``interior_max - boundary_max``; negative if the bound is met
    holds: bool  # whether no interior loss is above ``boundary_max``
    minimum_holds: bool  # whether no interior loss is below ``boundary_min``; not expected with a source term


def check_maximum_principle(
    boundary_losses: Float[Tensor, " n_boundary"], interior_losses: Float[Tensor, " n_interior"]
) -> MaximumPrinciple:
    """Compare the losses inside a region with those on its boundary (paper: Prop. 1).

    The proposition bounds the solution of the PDE; this function tests whether the loss of a network inherits
    the bound. Pass one loss per point: usually training points on the boundary, and unseen points inside.
    Sample the boundary at least as densely as the interior, or its maximum is too low. A classifier that
    fits its boundary badly passes easily, so look at ``boundary_max``, too. Equal values satisfy it.

    Example:
        >>> result = check_maximum_principle(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 2.0]))
        >>> result.holds, result.share_above, result.excess
        (False, 0.5, 1.0)
    """
    for name, losses in (("boundary_losses", boundary_losses), ("interior_losses", interior_losses)):
        if not bool(losses.isfinite().all()):
            raise ValueError(f"{name} must be finite, but hold NaN or infinity. Drop those points.")
    boundary_min, boundary_max = (float(v) for v in boundary_losses.detach().aminmax())
    low, high = (float(v) for v in interior_losses.detach().aminmax())
    return MaximumPrinciple(
        boundary_min,
        boundary_max,
        interior_min=low,
        interior_max=high,
        share_above=float((interior_losses.detach().double() > boundary_max).double().mean()),
        excess=high - boundary_max,
        holds=high <= boundary_max,
        minimum_holds=low >= boundary_min,
    )
