"""Detect distributed wrappers around a model that would give the objective wrong gradients."""

from __future__ import annotations

import sys

from torch import nn


def _is_ddp(model: nn.Module) -> bool:
    return isinstance(model, nn.parallel.DistributedDataParallel)


def _is_sharded(model: nn.Module) -> bool:
    """Return whether FSDP2 shards any layer; nothing is sharded before FSDP2 is imported."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(module, fsdp.FSDPModule) for module in model.modules())


def is_wrapped(model: nn.Module) -> bool:
    """Return whether a wrapper already synchronises the model's gradients."""
    return any(_is_ddp(module) for module in model.modules()) or _is_sharded(model)


def refuse_wrapped(model: nn.Module, second_order: bool, chunked: bool) -> None:
    """Raise if a wrapped *model* (instead of a wrapped objective) would give silently wrong gradients.

    Weightings that differentiate twice bypass the synchronisation of ``DistributedDataParallel``; with a
    static graph this fails silently. Several forward passes per backward pass also break it.
    """
    if _is_ddp(model) and (second_order or chunked):
        raise ValueError(
            "The model is wrapped in DistributedDataParallel, which does not synchronise the gradients of "
            "this objective. Wrap the objective instead: "
            "DistributedDataParallel(Elliptic(model, loss_fn, ...))."
        )
    if _is_sharded(model) and second_order:
        raise ValueError(
            "Layers of the model are sharded with FSDP2, which cannot differentiate twice. Shard the "
            'whole objective, fully_shard(Elliptic(model, ...)), or use weighting="gradient_softmax", or '
            '"multiplicative" with sampling="path" and n_bridges=2 or more.'
        )
