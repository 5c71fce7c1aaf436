"""Distributed wrappers around a model: where an objective computed outside them would be wrong."""

from __future__ import annotations

import sys

from torch import nn


def _is_ddp(model: nn.Module) -> bool:
    return isinstance(model, nn.parallel.DistributedDataParallel)


def _is_sharded(model: nn.Module) -> bool:
    """FSDP2 marks every module that it shards (and nothing is sharded before it is imported)."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(module, fsdp.FSDPModule) for module in model.modules())


def is_wrapped(model: nn.Module) -> bool:
    """Whether a wrapper synchronises the model's gradients already."""
    return any(_is_ddp(module) for module in model.modules()) or _is_sharded(model)


def refuse_wrapped(model: nn.Module, second_order: bool, chunked: bool) -> None:
    """Raise where a wrapped *model* (instead of a wrapped objective) gives silently wrong gradients.

    Weightings that differentiate twice bypass the synchronisation of ``DistributedDataParallel`` (with a
    static graph the error is silent), and several forward passes per backward pass confuse it.
    """
    if _is_ddp(model) and (second_order or chunked):
        raise ValueError(
            "The model is wrapped in DistributedDataParallel, and this objective runs it in a way that "
            "the wrapper does not synchronise. Wrap the objective instead: "
            "DistributedDataParallel(Elliptic(model, loss_fn, ...))."
        )
    if _is_sharded(model) and second_order:
        raise ValueError(
            "Layers of the model are sharded with FSDP2, which cannot differentiate twice. Shard the "
            'whole objective, fully_shard(Elliptic(model, ...)), or use weighting="gradient_softmax", or '
            '"multiplicative" with sampling="path" and n_bridges=2 or more.'
        )
