"""The loss of a trained model as a function on the data space."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.core.inputs import call_model, count_rows, named_inputs, rebuild_inputs
from elliptica.core.losses import PerSampleLoss
from elliptica.core.targets import encode_targets
from elliptica.core.types import Inputs, LossFn

_NEEDS_FLOAT = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss, nn.BCELoss)


class LossField:
    """Loss of each row, ``field(x, y)``, in evaluation mode and in bounded memory.

    The model's mode is put back afterwards, parameters get no gradient. Only where ``x`` requires a
    gradient is a graph kept (`estimate_landscape` asks for the slope at the queries that way).

    Args:
        model: Called as ``model(x)``; it must treat rows independently, as models in evaluation mode do.
        loss_fn: Any loss that `elliptica.Elliptic` takes.
        num_classes: If given, integer labels are turned into one-hot rows of this length before the
            loss sees them.
        chunk_size: Rows per call of the model.

    Example:
        >>> field = LossField(nn.Linear(3, 2), nn.CrossEntropyLoss())
        >>> field(torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])).shape
        torch.Size([5])
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        num_classes: int | None = None,
        chunk_size: int = 4096,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"model must be a torch.nn.Module, but got {type(model).__name__}. Wrap a function in a "
                "module with a forward method."
            )
        if num_classes is not None:
            checks.count("num_classes", num_classes)
        checks.count("chunk_size", chunk_size)
        self.model = model
        self.loss_fn = loss_fn
        self.num_classes = num_classes
        self.chunk_size = chunk_size
        self._loss = PerSampleLoss(loss_fn)

    def __call__(self, x: Inputs, y: Tensor) -> Float[Tensor, " rows"]:
        """Loss of each row of ``x`` with the target in the same row of ``y``.

        Raises:
            ValueError: If rows do not match, or if a loss is NaN or infinite (with the rows).
        """
        inputs = named_inputs(x)
        first = next(iter(inputs.values()))
        if first.ndim and len(first) == 0:  # no walk ended here: nothing to ask the model
            return first.new_zeros(0)
        rows = count_rows(inputs)
        checks.same_rows("y", y, rows)
        n_chunks = -(-rows // self.chunk_size)
        step = -(-rows // n_chunks)
        parts = []
        wants_slope = torch.is_grad_enabled() and any(value.requires_grad for value in inputs.values())
        with evaluation_mode(self.model), torch.set_grad_enabled(wants_slope):
            for i in range(0, rows, step):
                part = {name: value[i : i + step] for name, value in inputs.items()}
                output = call_model(self.model, rebuild_inputs(x, part))
                parts.append(self._loss(output, self._target(y[i : i + step], output)))
        losses = torch.cat(parts)
        self._check(losses)
        return losses

    def joint(
        self,
        n_features: int,
        *,
        feature_shape: Sequence[int] | None = None,
        target_shape: Sequence[int] | None = None,
    ) -> Callable[[Tensor], Tensor]:
        """The loss on points ``z = (x, y)``, for the paper's diffusion of inputs and real targets.

        Args:
            n_features: Leading columns of ``z`` that are inputs; the rest is the target.
            feature_shape: Shape of one input, if it is not a vector.
            target_shape: Shape of one target, if it is not a vector; ``()`` for ``y`` of shape (rows,).
        """
        checks.count("n_features", n_features)

        def loss(z: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"]:
            if z.ndim != 2 or z.shape[1] <= n_features:
                raise ValueError(
                    f"Joint points must have shape (rows, {n_features} + targets), but have "
                    f"{tuple(z.shape)}. Concatenate x.flatten(1) and y, e.g. `join(x, y)`."
                )
            x, y = z[:, :n_features], z[:, n_features:]
            if feature_shape is not None:
                x = x.reshape(len(z), *feature_shape)
            return self(x, y if target_shape is None else y.reshape(len(z), *target_shape))

        return loss

    def at_label(self, feature_shape: Sequence[int]) -> Callable[[Tensor, Tensor], Tensor]:
        """The loss on flat points with a label carried along: ``value`` for a solver with ``context=y``."""

        def loss(z: Float[Tensor, "rows dim"], y: Tensor) -> Float[Tensor, " rows"]:
            return self(z.reshape(len(z), *feature_shape), y)

        return loss

    def _target(self, y: Tensor, output: object) -> Tensor:
        """Labels as the loss wants them, in the dtype of the output."""
        if y.is_floating_point():
            return y
        dtype = output.dtype if isinstance(output, Tensor) else torch.get_default_dtype()
        if self.num_classes is not None:
            return encode_targets(y, "simplex", num_classes=self.num_classes, dtype=dtype)
        return y.to(dtype) if isinstance(self.loss_fn, _NEEDS_FLOAT) else y

    @property
    def is_squared(self) -> bool:
        """Whether the loss is the mean of squares, `torch.nn.MSELoss` or its function."""
        function = getattr(self.loss_fn, "func", self.loss_fn)
        return isinstance(function, nn.MSELoss) or function is nn.functional.mse_loss

    @staticmethod
    def _check(losses: Tensor) -> None:
        bad = ~losses.detach().isfinite()
        if bool(bad.any()):
            rows = bad.nonzero().flatten().tolist()
            shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
            raise ValueError(
                f"The loss is NaN or infinite at {len(rows)} of {len(losses)} rows: {shown}. Look at the "
                "model's output there; bound the loss, or leave those rows out."
            )


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode; afterwards every module has the mode it had."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def join(x: Tensor, y: Tensor) -> Float[Tensor, "rows dim"]:
    """Points ``z = (x, y)`` of the joint space, one flat row each."""
    checks.floating("x", x)
    checks.batch("x", x)
    checks.same_rows("y", y, len(x))
    if not y.is_floating_point():
        raise TypeError(
            f"Labels of dtype {y.dtype} cannot diffuse: there is nothing between two classes. Use "
            "joint=False (labels stay fixed), or pass real targets."
        )
    return torch.cat([x.reshape(len(x), -1), y.reshape(len(y), -1).to(x)], dim=1)


def excess_cross_entropy(
    output: Float[Tensor, "rows classes"], target: Float[Tensor, "rows classes"] | Int[Tensor, " rows"]
) -> Float[Tensor, " rows"]:
    """Cross-entropy of each row without the entropy of its label: zero can be reached between classes.

    Half way between two classes the cross-entropy itself is at least log 2 whatever the network, so no
    network that fits its data keeps the maximum principle there. On hard labels the two are equal.

    Example:
        >>> excess_cross_entropy(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]))
        tensor([0.])
    """
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    if not target.is_floating_point():
        return losses
    return losses + torch.special.xlogy(target, target).sum(dim=1)
