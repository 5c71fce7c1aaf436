"""Evaluate the user's loss at points of bridges, one value per point, and average it."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from elliptica.core.bridge import Paths
from elliptica.core.inputs import ONLY, LossFn, call_model, copy_inputs
from elliptica.core.layers import Split, check_unwrapped, untracked_statistics
from elliptica.core.noise import Deviation, Factor
from elliptica.core.targets import space_of_loss

#: From this process' numbers, ``(k,)``, to those of all processes that share a batch, ``(process, k)``.
GatherRanks = Callable[[Tensor], Tensor]

#: Which part of ``z = (x, y)`` slopes are taken of: nothing, the input, or input and target.
SlopesOf = Literal["none", "input", "both"]


class PerSampleLoss(nn.Module):
    """Call ``loss_fn`` without its reduction and average over all axes except the batch.

    A module with a ``reduction`` is used through a copy, and a function with a ``reduction`` argument through
    a partial. The original is never changed. Any other callable must keep the batch axis.
    """

    def __init__(self, loss_fn: LossFn) -> None:
        super().__init__()
        # torch.compile makes a wrapper that would pass every change on to the original
        loss_fn = getattr(loss_fn, "_orig_mod", loss_fn)
        reduction = getattr(loss_fn, "reduction", "mean")
        if reduction not in ("mean", "none", "batchmean"):
            raise ValueError(f'loss_fn has reduction={reduction!r}, but points are averaged. Use "mean".')
        if getattr(loss_fn, "log_target", False):
            raise ValueError("loss_fn has log_target=True, but targets are mixed as probabilities.")
        if getattr(loss_fn, "ignore_index", -100) != -100:
            raise ValueError("loss_fn has ignore_index, but labels are mixed on bridges. Drop those rows.")
        self._sums_features = reduction == "batchmean"
        is_torch = space_of_loss(loss_fn) is not None
        #: whether outputs are compared with targets entry by entry, so that other shapes would broadcast
        self._is_elementwise = is_torch and space_of_loss(loss_fn) != "simplex"
        #: with labels, but not with soft targets, torch divides a class-weighted mean by the labels' weights
        self.weights_classes = (
            isinstance(loss_fn, nn.CrossEntropyLoss) and reduction == "mean" and loss_fn.weight is not None
        )
        if isinstance(loss_fn, nn.Module) and hasattr(loss_fn, "reduction"):
            loss_fn = copy.copy(loss_fn)
            loss_fn._buffers = dict(loss_fn._buffers)  # otherwise moving the copy would move the original
            loss_fn.reduction = "none"  # type: ignore[assignment]  # nn.Module attributes are untyped
        elif not isinstance(loss_fn, nn.Module | functools.partial) and "reduction" in _parameters(loss_fn):
            loss_fn = functools.partial(loss_fn, reduction="none")
        self.loss_fn: Any = loss_fn

    def forward(self, output: Any, target: Tensor) -> Tensor:
        """Return one loss per row of ``target``."""
        if self._is_elementwise:
            self._check_shapes(output, target)
        losses = self.loss_fn(output, target)
        rows = target.shape[0]
        if losses.ndim == 0 or losses.shape[0] != rows:
            raise ValueError(
                f"loss_fn must return one value per sample, ({rows},), but returned {tuple(losses.shape)}. "
                'Pass an unreduced loss, e.g. functools.partial(cross_entropy, reduction="none").'
            )
        if losses.ndim == 1:
            return losses
        if isinstance(output, Tensor) and output.ndim != target.ndim and losses.shape == (rows, rows):
            self._raise_broadcast(output, target)
        losses = losses.flatten(1)
        return losses.sum(1) if self._sums_features else losses.mean(1)

    def _check_shapes(self, output: Tensor, target: Tensor) -> None:
        """Raise for shapes that torch would broadcast silently."""
        if output.shape != target.shape:
            self._raise_broadcast(output, target)
        for name in ("weight", "pos_weight"):
            weight = getattr(self.loss_fn, name, None)
            if weight is not None and weight.ndim >= target.ndim and len(weight) > 1:
                raise ValueError(
                    f"loss_fn has {name} of shape {tuple(weight.shape)}, with an axis for rows, but points "
                    "belong to two rows. Pass sample_weight= to the call."
                )

    def _raise_broadcast(self, output: Tensor, target: Tensor) -> None:
        raise ValueError(
            f"The model returns shape {tuple(output.shape)}, but y has {tuple(target.shape)}, so the loss "
            "would compare rows with other rows. Give both the same shape, e.g. y.unsqueeze(1)."
        )

    def class_weight(self, target: Tensor) -> Tensor:
        """Return the mean weight of each row's classes."""
        weight = self.loss_fn.weight.to(target.dtype)
        weighted = target * weight.view(1, -1, *[1] * (target.ndim - 2))
        return weighted.sum(1).reshape(len(target), -1).mean(1)

    def num_classes(self) -> int | None:
        """Return the number of classes if there are class weights, else None."""
        return len(self.loss_fn.weight) if self.weights_classes else None


def _parameters(function: LossFn) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a builtin has no signature
        return []


@dataclass(frozen=True)
class Slope:
    """Gradient of the loss along one bridged input, or along the target."""

    z: Tensor  # points, ``(time, rows, *feature)``
    g: Tensor  # gradient of each point's own loss there
    std: Deviation  # standard deviation of a bridge of unit length, ``V = std**2``

    def variance_times(self, g: Tensor) -> Tensor:
        """Return ``V g``."""
        return self.std.times(g) if isinstance(self.std, Factor) else self.std**2 * g


def evaluate(
    model: nn.Module,
    loss: PerSampleLoss,
    paths: Paths,
    split: Split | None = None,
    *,
    slopes_of: SlopesOf = "none",
    second_order: bool = False,
    untracked: bool = False,
) -> tuple[Tensor, list[Slope]]:
    """Return the losses of all points in one forward pass, one for each row, and their slopes there.

    ``split`` says where the model is cut, if points are features of a hidden layer. With ``second_order``
    slopes can be differentiated again; ``untracked`` keeps batch norm from recording its statistics.
    """
    if paths.hidden != (split is not None):
        raise ValueError(
            "paths of a hidden layer are evaluated by their own objective: objective.loss_on(paths)."
        )
    has_slopes = slopes_of != "none"
    points, y = paths.points, paths.targets
    if has_slopes:
        points = points | {name: _as_leaf(points[name]) for name in paths.deviation}
        y = _as_leaf(y) if slopes_of == "both" else y
    is_plain = not (has_slopes or untracked)
    with contextlib.nullcontext() if is_plain else _prepared(model, has_slopes, second_order, untracked):
        rows = {name: value.clone() for name, value in points.items()}  # a model may overwrite its input
        if split is None:
            output = call_model(model, paths.template, rows)
        else:
            below = () if paths.inputs is None else copy_inputs(paths.inputs)
            output = split.resume(model, below, rows[ONLY])
        losses = loss(output, y)
        return losses, _slopes(losses, points, y, paths, slopes_of, second_order) if has_slopes else []


@contextlib.contextmanager
def _prepared(model: nn.Module, has_slopes: bool, second_order: bool, untracked: bool) -> Iterator[None]:
    """Prepare a model for slopes, and keep its running statistics as they are."""
    if has_slopes and torch.is_grad_enabled():
        check_unwrapped(model, second_order)
    with contextlib.ExitStack() as stack:
        if untracked:
            stack.enter_context(untracked_statistics(model))
        if second_order:  # fused attention has no second derivative; the plain implementation has one
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if has_slopes:
            stack.enter_context(torch.enable_grad())
        yield


def _slopes(
    losses: Tensor,
    points: dict[Any, Tensor],
    y: Tensor,
    paths: Paths,
    slopes_of: SlopesOf,
    second_order: bool,
) -> list[Slope]:
    """Return the gradient of each point's loss with respect to the point (and its target)."""
    at = [points[name] for name in paths.deviation]
    moving, stds = list(at), list(paths.deviation.values())
    if slopes_of == "both":  # the gradient is taken at the label that the loss sees
        if isinstance(paths.deviation_y, Factor) and paths.deviation_y.joint:
            raise ValueError('drift="both" needs noise of its own on the targets, not a joint covariance.')
        if isinstance(paths.deviation_y, float) and paths.deviation_y == 0.0:
            raise ValueError('drift="both" acts on the targets, which must diffuse: use sigma_y > 0.')
        at.append(y)
        moving.append(paths.free_targets)
        stds.append(paths.deviation_y)
    # the gradient of the sum holds every row's own gradient (exactly, unless the model couples rows)
    gradients = torch.autograd.grad(losses.sum(), at, create_graph=second_order, retain_graph=True)
    by_time = paths.by_time
    return [Slope(by_time(z), by_time(g), std) for z, g, std in zip(moving, gradients, stds, strict=True)]


def _as_leaf(z: Tensor) -> Tensor:
    """Return points that require a gradient; those that do already are returned as they are."""
    return z if z.requires_grad else z.detach().requires_grad_()


def integrate(
    losses: Tensor, paths: Paths, loss: PerSampleLoss, gather_ranks: GatherRanks | None = None
) -> Tensor:
    """Integrate the losses of points over time and average them over the batch (paper: Eq. (6)).

    Class weights are averaged over the labels of the batch, which do not depend on the drawn points, so the
    mean over draws of single points equals the objective of whole paths.
    """
    if paths.time_weights is not None:
        losses = (paths.by_time(losses) * paths.time_weights.to(losses.dtype)).flatten()
    labels = paths.labels if loss.weights_classes else None
    if paths.weights is None and labels is None and gather_ranks is None:
        return losses.mean()
    class_weight = None if labels is None else loss.class_weight(labels)
    return weighted_mean(losses, paths.weights, class_weight, gather_ranks)


def weighted_mean(
    losses: Tensor,
    weight: Tensor | None,
    class_weight: Tensor | None,
    gather_ranks: GatherRanks | None = None,
) -> Tensor:
    """Average weight times loss over rows.

    The result is divided by the mean of ``class_weight``, the class weights of the batch's labels.
    With ``gather_ranks``, the mean of the results over processes is the mean over the rows of all processes.
    """
    total = losses if weight is None else losses * weight
    if gather_ranks is None:
        return total.mean() if class_weight is None else total.mean() / class_weight.mean()
    wide = torch.promote_types(total.dtype, torch.float32)  # bfloat16 cannot count to 257
    sums: list[int | Tensor] = [total.numel()]
    if class_weight is not None:
        sums += [class_weight.numel(), class_weight.sum(dtype=wide)]
    of_all = gather_ranks(torch.stack([torch.as_tensor(s, dtype=wide, device=total.device) for s in sums]))
    rows, *labels = of_all.sum(0)
    # DDP averages gradients over processes as if all had the same number of rows: correct for that
    share = total.numel() * len(of_all) / rows
    if class_weight is not None:
        share = share * labels[0] / labels[1]
    return total.mean() * share.to(total.dtype)


def path_losses(model: nn.Module, loss_fn: LossFn, paths: Paths) -> Float[Tensor, "batch bridge time"]:
    """Evaluate the loss at every point of every path (paper: the integrand of Eq. (6)).

    Example:
        >>> from elliptica import sample_paths
        >>> x, y = torch.randn(6, 3), torch.randn(6, 1)
        >>> paths = sample_paths(x, y, target_space="real", sampling="path", n_times=4)
        >>> path_losses(nn.Linear(3, 1), nn.MSELoss(), paths).shape
        torch.Size([6, 1, 4])
    """
    return paths.view(evaluate(model, PerSampleLoss(loss_fn), paths)[0])
