"""Make the user's loss return one value per row, evaluate it at points, and average the results."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from elliptica._utils import checks
from elliptica.core.bridge import flatten_rows
from elliptica.core.inputs import call_model, explain_error
from elliptica.core.types import Across, Inputs, LossFn, Paths

_REMEDY = (
    "Pass an unreduced loss, e.g. torch.nn.CrossEntropyLoss() (its reduction is switched off for "
    'you) or functools.partial(torch.nn.functional.cross_entropy, reduction="none").'
)


_LABEL_LOSSES = (nn.NLLLoss, nn.MultiMarginLoss, nn.MultiLabelMarginLoss)
_LABEL_FUNCTIONS = (F.nll_loss, F.multi_margin_loss, F.multilabel_margin_loss)
_ELEMENTWISE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss, nn.BCELoss)
_ELEMENTWISE_FUNCTIONS = (
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy_with_logits,
    F.binary_cross_entropy,
)
#: Losses, and functions, whose weights broadcast with the targets, hence reach into the batch if they may.
_WEIGHTED = (nn.BCEWithLogitsLoss, nn.BCELoss, nn.MultiLabelSoftMarginLoss)
_WEIGHTED_FUNCTIONS = (
    F.binary_cross_entropy_with_logits,
    F.binary_cross_entropy,
    F.multilabel_soft_margin_loss,
)


class PerSampleLoss(nn.Module):
    """Call ``loss_fn`` without its reduction and average over all axes except the batch.

    A module with a ``reduction`` is used through a copy, and a function with a ``reduction`` argument
    through a partial. The original is never changed. Any other callable must keep the batch axis: one that
    returns a scalar raises an error.

    Args:
        loss_fn: Called as ``loss_fn(output, target)``.
    """

    def __init__(self, loss_fn: LossFn) -> None:
        super().__init__()
        if not callable(loss_fn):
            raise TypeError(f"loss_fn must be callable, but got {type(loss_fn).__name__}. {_REMEDY}")
        if isinstance(loss_fn, type):
            raise TypeError(
                f"loss_fn must be an instance, but got the class {loss_fn.__name__}. "
                f"Pass {loss_fn.__name__}()."
            )
        is_script = isinstance(loss_fn, torch.jit.ScriptModule)
        if is_script and getattr(loss_fn, "reduction", "none") != "none":
            raise TypeError(
                "loss_fn is a TorchScript module, whose reduction cannot be switched off. Pass the module "
                "that was scripted."
            )
        # torch.compile makes a wrapper that would pass every change on to the original
        loss_fn = getattr(loss_fn, "_orig_mod", loss_fn)
        _check_arguments(loss_fn)
        if isinstance(loss_fn, nn.CrossEntropyLoss) and loss_fn.ignore_index != -100:
            raise ValueError(
                f"loss_fn has ignore_index={loss_fn.ignore_index}, but labels become probabilities along a "
                "bridge, so none can be ignored. Drop those rows before the call."
            )
        if isinstance(loss_fn, _LABEL_LOSSES) or loss_fn in _LABEL_FUNCTIONS:
            name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
            raise TypeError(
                f"loss_fn={name} accepts labels only, but labels become probabilities along a bridge. Use "
                "torch.nn.CrossEntropyLoss(), which equals NLLLoss on outputs of log_softmax, too, or "
                "torch.nn.BCEWithLogitsLoss() for several labels per row."
            )
        reduction = getattr(loss_fn, "reduction", "mean")
        if reduction not in ("mean", "none", "batchmean"):
            raise ValueError(
                f'loss_fn has reduction={reduction!r}, but elliptica averages over points. Use "mean", and '
                "multiply the result if you need another scale."
            )
        self._sums_features = reduction == "batchmean"
        #: the loss itself if its own mean is the mean over rows (a subclass may compute anything), and if it
        #: has no weights to move with this module; a tuple, so that it is not registered
        known = type(loss_fn) in (nn.CrossEntropyLoss, *_ELEMENTWISE) and reduction == "mean"
        weighted = any(getattr(loss_fn, name, None) is not None for name in ("weight", "pos_weight"))
        self._own_mean = (loss_fn,) if known and not weighted else None
        #: with labels, but not with soft targets, torch divides a class-weighted mean by the labels' weights
        self._class_weighted = isinstance(loss_fn, nn.CrossEntropyLoss) and reduction == "mean"
        if isinstance(loss_fn, nn.Module) and hasattr(loss_fn, "reduction") and not is_script:
            loss_fn = copy.copy(loss_fn)
            loss_fn._buffers = dict(loss_fn._buffers)  # otherwise moving the copy would move the original
            loss_fn.reduction = "none"  # type: ignore[assignment]  # nn.Module attributes are untyped
        elif "reduction" in _parameters(loss_fn) and not isinstance(loss_fn, functools.partial):
            loss_fn = functools.partial(loss_fn, reduction="none")
        self.loss_fn: Any = loss_fn
        #: whether the loss is one of torch's own, which compare tensors alone
        self._takes_tensors = _is_of_torch(loss_fn)
        #: whether outputs are compared with targets entry by entry, so that other shapes would broadcast
        self._is_elementwise = (
            isinstance(loss_fn, _ELEMENTWISE) or getattr(loss_fn, "func", loss_fn) in _ELEMENTWISE_FUNCTIONS
        )
        self._is_cross_entropy = (
            isinstance(loss_fn, nn.CrossEntropyLoss) or getattr(loss_fn, "func", loss_fn) is F.cross_entropy
        )
        #: names of weights that are multiplied with losses of any shape
        self._broadcast = [
            name for name in ("weight", "pos_weight") if _elementwise_weight(loss_fn, name) is not None
        ]
        #: whether the loss weights classes and averages by those weights
        self.weights_classes = self._class_weighted and getattr(loss_fn, "weight", None) is not None

    def mean(self, output: object, target: Tensor) -> Tensor:
        """Average the loss over rows, in one operation where the loss can do it."""
        if (
            self._own_mean is None
            or self._forward_hooks
            or not isinstance(output, Tensor)
            or output.dtype == torch.float16  # torch would sum many rows in float16, which ends at 65504
        ):
            mean: Tensor = self(output, target).mean()
            return mean
        self._check_shapes(output, target)
        own: Tensor = self._own_mean[0](output, target)
        return own

    def forward(self, output: object, target: Tensor) -> Tensor:
        """Return one loss per row of ``target``."""
        if self._takes_tensors and not isinstance(output, Tensor):
            self._explain_output(output)
        if isinstance(output, Tensor):
            self._check_shapes(output, target)
        losses = self.loss_fn(output, target)
        rows = target.shape[0]
        if (
            not isinstance(losses, Tensor)
            or losses.ndim == 0
            or losses.shape[0] != rows
            or losses.layout != torch.strided
        ):
            got = (
                type(losses).__name__
                if not isinstance(losses, Tensor)
                else f"a tensor of layout {losses.layout}"
                if losses.layout != torch.strided
                else "a scalar"
                if losses.ndim == 0
                else f"shape {tuple(losses.shape)}"
            )
            raise ValueError(
                f"loss_fn must return one value per sample, shape ({rows},), but returned {got}. " + _REMEDY
            )
        if losses.ndim == 1:
            return losses
        _refuse_broadcast(output, target, losses)
        losses = losses.flatten(1)
        return losses.sum(1) if self._sums_features else losses.mean(1)

    def _check_shapes(self, output: Tensor, target: Tensor) -> None:
        """Raise for shapes that torch would reject with an obscure error, or broadcast silently."""
        if self._takes_tensors and (output.layout != torch.strided or not output.is_floating_point()):
            checks.tensor("the model's output", output)
            raise TypeError(
                f"The model's output must be floating point, but has dtype {output.dtype}. Return scores, "
                "which are real numbers, not labels."
            )
        for name in self._broadcast:
            _check_per_feature(name, _elementwise_weight(self.loss_fn, name), target)
        if self.weights_classes:
            self._check_class_weights(target)
        if output.shape == target.shape:
            return
        shapes = f"The model returns shape {tuple(output.shape)}, but the targets have {tuple(target.shape)}"
        if self._is_cross_entropy:
            if target.ndim == output.ndim + 1:
                raise ValueError(
                    f"{shapes}: y has one axis too many for labels. Pass y.squeeze(1) for labels of shape "
                    "(n, 1), or y.float() for one-hot labels."
                )
            if output.ndim == target.ndim > 1 and output.shape[1] != target.shape[1]:
                raise ValueError(
                    f"{shapes}, i.e. {output.shape[1]} against {target.shape[1]} classes. Make num_classes "
                    "and the model's last layer agree."
                )
        elif self._is_elementwise:
            raise ValueError(
                f"{shapes}, so the loss would compare every row with every other or broadcast. Give both the "
                "same shape, e.g. y.unsqueeze(1) or model output .squeeze(1)."
            )

    def _explain_output(self, output: object) -> None:
        """Say how a loss of torch gets at the tensor in what the model returns."""
        pick = 'output["logits"]' if isinstance(output, Mapping) else "output.logits"
        pick = "output[0]" if isinstance(output, tuple | list) else pick
        loss = getattr(self.loss_fn, "func", self.loss_fn)
        name = getattr(loss, "__name__", type(loss).__name__)
        raise TypeError(
            f"The model returns {type(output).__name__}, but {name} compares a tensor with the targets. Let "
            "the model return that tensor alone, or pick it in the loss: def loss_fn(output, y): return "
            f'F.cross_entropy({pick}, y, reduction="none"), with target_space=... beside it.'
        )

    def _check_class_weights(self, target: Tensor) -> None:
        if target.ndim > 1 and len(self.loss_fn.weight) != target.shape[1]:
            raise ValueError(
                f"loss_fn has weights of {len(self.loss_fn.weight)} classes, but the targets have shape "
                f"{tuple(target.shape)}, i.e. {target.shape[1]} classes. Give one weight for each class."
            )

    def class_weight(self, target: Tensor) -> Tensor:
        """Return the mean weight of each row's classes."""
        self._check_class_weights(target)
        weight = self.loss_fn.weight.to(target.dtype)
        weighted = target * weight.view(1, -1, *[1] * (target.ndim - 2))
        return weighted.sum(1).reshape(len(target), -1).mean(1)

    def num_classes(self) -> int | None:
        """Return the number of classes if there are class weights, else None."""
        return len(self.loss_fn.weight) if self.weights_classes else None


def _is_of_torch(loss_fn: Any) -> bool:
    """Whether a loss is a module or function of torch itself."""
    function = getattr(loss_fn, "func", loss_fn)
    own = type(loss_fn) if isinstance(loss_fn, nn.Module) else function
    return getattr(own, "__module__", "") in ("torch.nn.modules.loss", "torch.nn.functional")


def _check_arguments(loss_fn: Any) -> None:
    """Raise unless a loss can be called with an output and a target."""
    try:
        signature = inspect.signature(loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn)
    except (TypeError, ValueError):  # a builtin has none
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
        raise TypeError(
            f"loss_fn is called as loss_fn(output, target), but {name} cannot be ({error}). Wrap it in a "
            "function of these two that returns one value per sample, with target_space=... beside it."
        ) from error


def _parameters(function: object) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []


def _elementwise_weight(loss_fn: Any, name: str) -> Tensor | None:
    """Return the weight of that name if the loss multiplies it with losses of any shape."""
    if isinstance(loss_fn, _WEIGHTED):
        return getattr(loss_fn, name, None)
    if isinstance(loss_fn, functools.partial) and loss_fn.func in _WEIGHTED_FUNCTIONS:
        weight: Tensor | None = loss_fn.keywords.get(name)
        return weight
    return None


def _check_per_feature(name: str, weight: Tensor | None, target: Tensor) -> None:
    """Raise where a weight of the loss has an axis for the rows of a batch."""
    assert weight is not None
    own = weight[0] if weight.ndim == target.ndim and weight.shape[0] == 1 else weight
    fits = own.ndim < target.ndim and all(
        have in (1, want) for have, want in zip(reversed(own.shape), reversed(target.shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"loss_fn has {name} of shape {tuple(weight.shape)}, but it must broadcast to the targets of one "
            f"row, shape {tuple(target.shape[1:])}: points on bridges belong to two rows. Pass weights of "
            "rows to the call, sample_weight=..."
        )


def _refuse_broadcast(output: object, target: Tensor, losses: Tensor) -> None:
    """Raise for (rows, 1) against (rows,), which broadcasts to every pair of rows."""
    if isinstance(output, Tensor) and output.ndim != target.ndim and losses.shape == (len(target),) * 2:
        raise ValueError(
            f"The model returns shape {tuple(output.shape)} but the targets have shape "
            f"{tuple(target.shape)}, so the loss would compare every row with every other. "
            "Give both the same shape, e.g. y.unsqueeze(1) or model output .squeeze(1)."
        )


def outputs_at(model: nn.Module, x: Inputs, rows: int) -> Any:
    """Call the model on ``rows`` rows; raise if it reduces over them."""
    if torch.compiler.is_compiling() or not isinstance(x, Tensor):
        output = call_model(model, x)
    else:  # the same with one function call less, which counts on small networks
        try:
            output = model(x)
        except RuntimeError as error:
            explain_error(error, model, x)
            raise
    if isinstance(output, Tensor) and output.is_nested:
        checks.tensor("the model's output", output)
    if isinstance(output, Tensor) and (output.ndim == 0 or output.shape[0] != rows):
        raise ValueError(
            f"The model must return one row per input row ({rows}), but returned shape "
            f"{tuple(output.shape)}. Keep the batch axis first, and do not reduce over it."
        )
    return output


def losses_at(model: nn.Module, loss: PerSampleLoss, x: Inputs, y: Tensor) -> Tensor:
    """Evaluate the loss at points in one forward pass: rows ``(time * rows, ...)`` give ``(time, rows)``.

    ``x`` has its rows flattened; ``y`` is ``(time, rows, *target)``.
    """
    output = outputs_at(model, x, y.shape[0] * y.shape[1])
    losses: Tensor = loss(output, y.flatten(0, 1))
    return losses.view(y.shape[:2])


@contextlib.contextmanager
def recorded_outputs(loss: PerSampleLoss) -> Iterator[list[tuple[Any, Tensor]]]:
    """Record every output and target that ``loss`` compares within the context, without gradients."""
    recorded: list[tuple[Any, Tensor]] = []

    def note(_module: nn.Module, compared: tuple[Any, Tensor], _losses: Tensor) -> None:
        recorded.append(tree_map(lambda v: v.detach() if isinstance(v, Tensor) else v, compared))

    handle = loss.register_forward_hook(note)
    try:
        yield recorded
    finally:
        handle.remove()


def join_outputs(found: list[tuple[Any, Tensor]], n_times: int) -> tuple[Any, Tensor]:
    """Join outputs and targets of chunks, each ``(time * rows, ...)``, in the order of one pass over all."""
    if len(found) == 1:
        return found[0]
    leaves, (structure, *others) = zip(*(tree_flatten(chunk) for chunk in found), strict=True)

    def join(parts: tuple[Any, ...]) -> Tensor:
        for part, (_, target) in zip(parts, found, strict=True):
            if not isinstance(part, Tensor) or part.ndim == 0 or len(part) != len(target):
                got = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
                raise TypeError(
                    "with_outputs=True joins the model's outputs for all chunks, so each must be a tensor "
                    f"with one row per input row ({len(target)}), but one is {got}. Use chunk_size=None, or "
                    "a model that returns only such tensors."
                )
        return torch.cat([part.unflatten(0, (n_times, -1)) for part in parts], 1).flatten(0, 1)

    if any(other != structure for other in others):
        raise TypeError(
            "with_outputs=True joins the model's outputs for all chunks, but their structure differs from "
            "chunk to chunk. Use chunk_size=None, or return the same structure each time."
        )
    joined: tuple[Any, Tensor] = tree_unflatten([join(p) for p in zip(*leaves, strict=True)], structure)
    return joined


def weighted_mean(
    losses: Tensor,
    weight: Tensor | None,
    class_weight: Tensor | None,
    over_time: Tensor | None = None,
    across: Across | None = None,
) -> Tensor:
    """Average weight times loss over rows.

    ``class_weight`` holds the class weights of the batch's labels. The result is divided by their mean, as in
    torch, so that the scale of the loss does not depend on the scale of the weights.

    With ``across``, the mean of the results over processes is the mean over the rows of all processes.
    """
    total = losses if weight is None else losses * weight
    if over_time is not None:
        total = total * over_time
    if across is not None:
        wide = torch.promote_types(total.dtype, torch.float32)  # bfloat16 cannot count to 257
        sums: list[int | Tensor] = [total.numel()]
        if class_weight is not None:
            sums += [class_weight.numel(), class_weight.sum(dtype=wide)]
        of_all = across(torch.stack([torch.as_tensor(s, dtype=wide, device=total.device) for s in sums]))
        rows, *labels = of_all.sum(0)
        # DDP averages gradients over processes as if all had the same number of rows: correct for that
        share = total.numel() * len(of_all) / rows
        if class_weight is not None:
            share = share * labels[0] / labels[1]
        return total.mean() * share.to(total.dtype)
    return total.mean() if class_weight is None else total.mean() / class_weight.mean()


def path_mean(
    losses: Tensor,
    paths: Paths,
    loss: PerSampleLoss,
    over_time: Tensor | None,
    across: Across | None = None,
) -> Tensor:
    """Integrate losses ``(time, rows)`` over time and average them over the batch (paper: Eq. (6)).

    Class weights are averaged over the labels of the batch itself. That number does not depend on the drawn
    points, so the mean over draws of single points equals the objective of whole paths.
    """
    if paths.weight is None and over_time is None and across is None and not loss.weights_classes:
        return losses.mean()
    weight = None if paths.weight is None else flatten_rows(paths.weight)
    class_weight = None
    if loss.weights_classes and paths.labels is not None:
        class_weight = loss.class_weight(paths.labels)
    return weighted_mean(losses, weight, class_weight, over_time, across)
