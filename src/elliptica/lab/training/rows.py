"""Split the rows of a network among processes, exactly, under any objective.

Batch norms use the statistics of all rows. Collectives have the same derivatives, of any order, as in one
process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils._pytree import tree_leaves, tree_map

from elliptica._utils.compiler import uncompiled
from elliptica.core.layers import all_rows, is_wrapped
from elliptica.distributed.ranks import Ranks, current_ranks


@contextlib.contextmanager
def split_rows(model: nn.Module, ranks: Ranks | None = None) -> Iterator[nn.Module]:
    """Let every process run its part of the rows, and return the outputs of all rows, within the context.

    Use it for objectives that depend on a whole batch, such as softmax weightings, C-Mixup, GroupDRO or
    CORAL. All processes pass the *same* batch, pairing and noise, and compute the same loss; only the work of
    the network, forward and backward, is divided. Gradients of parameters are equal in all processes, and
    equal to those of one process up to rounding, also for higher derivatives. No wrapper is needed, and each
    process steps its own optimiser.

    - Normalisation layers use the statistics of all rows (also on the CPU, unlike ``SyncBatchNorm``).
    - Bridging and mixing in hidden layers (``at=``) sees all rows.
    - Batches with fewer rows than processes are run as a whole by each.
    - Dropout draws from each process' default stream, so seed these differently. Results then differ from
      those of one process as they do between seeds.
    - A network that couples rows in another way (attention over the batch) changes when it is split.

    If each process has its own batch, use ``DistributedDataParallel(objective)`` instead: it exchanges only
    gradients.

    Args:
        model: The network. Its outputs and all tensors in its arguments have the batch axis first.
        ranks: The processes; None means all of them.

    Example:
        >>> from elliptica import Elliptic
        >>> model = nn.Linear(4, 3)
        >>> objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=3, weighting="gradient_softmax")
        >>> with split_rows(model):  # does nothing in a single process
        ...     objective(torch.randn(8, 4), torch.randint(3, (8,))).backward()
    """
    ranks = current_ranks() if ranks is None else ranks
    if ranks.size == 1:
        yield model
        return
    _check(model)
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and not isinstance(m, SyncBatchNorm)]
    for norm in norms:
        vars(norm)["forward"] = MethodType(forward_over_all_rows, norm)
    vars(model).update(forward=MethodType(_split_forward, model), _ranks=ranks)
    try:
        yield model
    finally:
        del model._ranks
        for module in (model, *norms):
            vars(module).pop("forward", None)


def _check(model: nn.Module) -> None:
    if is_wrapped(model):
        raise ValueError(
            "model must not be wrapped in DDP or FSDP2, which would sum its gradients once more."
        )
    if any("forward" in vars(module) for module in model.modules()):
        raise ValueError(
            "model has a replaced forward method (compiled, or split already). Pass a plain one."
        )
    for module in model.modules():
        is_top = isinstance(module, _BatchNorm) and module is model
        if is_top or (isinstance(module, _InstanceNorm) and module.track_running_stats):
            raise ValueError(
                f"Running statistics of {type(module).__name__} here would be those of one process' rows. "
                "Use track_running_stats=False, or one process."
            )


class _Bare(nn.Module):
    """The model with the forward pass of its class."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return type(self.model).forward(self.model, *args, **kwargs)


class _Exchange:
    """Give a hidden layer all rows while the model runs on some of them."""

    def __init__(self, ranks: Ranks, rows: int) -> None:
        self.ranks, self.rows = ranks, rows

    def gather(self, part: Tensor) -> Tensor:
        return _gathered(part, self.ranks, self.rows)

    def take(self, whole: Tensor) -> Tensor:
        return take_rows(whole, self.ranks)


@uncompiled
def _split_forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the forward pass on the rows of this process, and return the outputs for all rows."""
    ranks: Any = self._ranks
    rows = _count_rows((args, kwargs))
    if rows < ranks.size:
        return type(self).forward(self, *args, **kwargs)  # all rows in every process: nothing to sum
    args, kwargs = tree_map(lambda v: take_rows(v, ranks) if isinstance(v, Tensor) else v, (args, kwargs))
    parameters = {f"model.{n}": p for n, p in self.named_parameters() if p.requires_grad}
    token = all_rows.set(_Exchange(ranks, rows))
    try:
        if torch.is_grad_enabled() and parameters:
            copies = dict(zip(parameters, copied(list(parameters.values()), ranks), strict=True))
            output = torch.func.functional_call(_Bare(self), copies, args, kwargs)
        else:
            output = type(self).forward(self, *args, **kwargs)
    finally:
        all_rows.reset(token)
    return tree_map(lambda v: _gathered(v, ranks, rows) if isinstance(v, Tensor) else v, output)


def _count_rows(inputs: Any) -> int:
    shapes = [tuple(v.shape) for v in tree_leaves(inputs) if isinstance(v, Tensor)]
    counts = {shape[:1] for shape in shapes}
    if len(counts) != 1 or () in counts:
        raise ValueError(f"Inputs of the model need the same number of rows, but have shapes {shapes}.")
    return shapes[0][0]


def _gathered(part: Tensor, ranks: Ranks, rows: int) -> Tensor:
    own = ranks.counts(rows)[ranks.rank]
    if part.ndim == 0 or len(part) != own:
        raise ValueError(
            f"Outputs need one row per input row ({own}), but one has shape {tuple(part.shape)}."
        )
    return gather_rows(part, ranks, rows)


def forward_over_all_rows(layer: _BatchNorm, x: Tensor) -> Tensor:
    """Compute the forward pass of a layer for these rows with the statistics of all rows."""
    exchange = all_rows.get()
    uses_batch = layer.training or (layer.running_mean is None and layer.running_var is None)
    if exchange is None or not uses_batch:
        return type(layer).forward(layer, x)
    layer._check_input_dim(x)
    ranks: Ranks = exchange.ranks  # type: ignore[attr-defined]
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    axes = [0, *range(2, x.ndim)]
    shape = [1, -1, *[1] * (x.ndim - 2)]
    local = wide.new_tensor(wide.numel() // wide.shape[1])
    # applied to the local rows, so that gradients of both statistics are also summed over the processes
    total, count = copied(summed([wide.sum(axes), local], ranks), ranks)
    if count <= 1:
        raise ValueError("Batch norm in training needs more than one value per channel in all processes.")
    mean = total / count
    centred = wide - mean.view(shape)
    (squares,) = copied(summed([centred.square().sum(axes)], ranks), ranks)
    variance = squares / count
    _track(layer, mean.detach(), (squares / (count - 1)).detach())
    result = centred * torch.rsqrt(variance + layer.eps).view(shape)
    if layer.weight is not None:
        result = result * layer.weight.view(shape) + layer.bias.view(shape)
    return result.to(x.dtype)


@torch.no_grad()
def _track(layer: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Update running statistics as torch does: with the unbiased variance."""
    if not (layer.training and layer.track_running_stats) or layer.running_mean is None:
        return
    assert layer.running_var is not None
    share = layer.momentum
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        share = 1 / float(layer.num_batches_tracked) if share is None else share
    share = 0.0 if share is None else share
    layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), share)
    layer.running_var.lerp_(variance.to(layer.running_var.dtype), share)


def gather_rows(part: Tensor, ranks: Ranks, rows: int) -> Tensor:
    """Gather all rows from the parts of the processes."""
    whole: Tensor = _Gather.apply(part, ranks, rows)
    return whole


def take_rows(whole: Tensor, ranks: Ranks) -> Tensor:
    """Select this process' part of the rows."""
    part: Tensor = _Take.apply(whole, ranks)
    return part


def copied(whole: Sequence[Tensor], ranks: Ranks) -> tuple[Tensor, ...]:
    """Return the same tensors for use on a part of the rows: their gradients are summed over processes."""
    copies: tuple[Tensor, ...] = _Copy.apply(ranks, *whole)
    return copies


def summed(parts: Sequence[Tensor], ranks: Ranks) -> tuple[Tensor, ...]:
    """Sum tensors over the processes."""
    sums: tuple[Tensor, ...] = _Sum.apply(ranks, *parts)
    return sums


def _all_rows(part: Tensor, ranks: Ranks, rows: int) -> Tensor:
    """Gather parts that may differ by a row; gloo requires equal sizes, so shorter ones are padded."""
    counts = ranks.counts(rows)
    filled = part.new_zeros(max(counts), *part.shape[1:])
    filled[: len(part)] = part
    parts = [torch.empty_like(filled) for _ in counts]
    dist.all_gather(parts, filled, ranks.group)
    return torch.cat([each[:count] for each, count in zip(parts, counts, strict=True)])


def _all_sums(parts: Sequence[Tensor], ranks: Ranks) -> list[Tensor]:
    """Sum tensors with one message per dtype instead of one per tensor."""
    sums: list[Tensor] = list(parts)
    for dtype in dict.fromkeys(part.dtype for part in parts):
        own = [i for i, part in enumerate(parts) if part.dtype == dtype]
        flat = torch.cat([parts[i].reshape(-1) for i in own])
        dist.all_reduce(flat, group=ranks.group)
        for i, values in zip(own, flat.split([parts[i].numel() for i in own]), strict=True):
            sums[i] = values.view(parts[i].shape)
    return sums


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(part: Tensor, ranks: Ranks, rows: int) -> Tensor:
        return _all_rows(part.detach(), ranks, rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.ranks, ctx.rows = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Take.apply(gradient, ctx.ranks), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        return _Gather.apply(tangent, ctx.ranks, ctx.rows)


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(whole: Tensor, ranks: Ranks) -> Tensor:
        return whole[ranks.part(len(whole))].clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.rows, ctx.ranks = len(inputs[0]), inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Gather.apply(gradient, ctx.ranks, ctx.rows), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        return _Take.apply(tangent, ctx.ranks)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ranks: Ranks, *whole: Tensor) -> tuple[Tensor, ...]:
        return tuple(each.view_as(each) for each in whole)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.ranks = inputs[0]
        ctx.set_materialize_grads(False)  # unused tensors have no gradient rather than zeros

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        sums = iter(_Sum.apply(ctx.ranks, *[g for g in gradients if g is not None]))
        return None, *[None if g is None else next(sums) for g in gradients]

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Tensor) -> Any:
        return _Copy.apply(ctx.ranks, *tangents)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ranks: Ranks, *parts: Tensor) -> tuple[Tensor, ...]:
        return tuple(_all_sums(parts, ranks))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.ranks = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, *_Copy.apply(ctx.ranks, *gradients)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Tensor) -> Any:
        return _Sum.apply(ctx.ranks, *tangents)
