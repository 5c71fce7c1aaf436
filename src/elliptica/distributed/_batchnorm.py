"""Batch normalisation with the statistics of all rows when processes run a part each.

``torch.nn.SyncBatchNorm`` does this on GPUs only, and cannot be differentiated twice.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from elliptica.distributed._collectives import copied, summed
from elliptica.distributed.ranks import Ranks
from elliptica.hidden import all_rows


def forward_over_all_rows(layer: _BatchNorm, x: Tensor) -> Tensor:
    """What the layer's forward pass would give for these rows if it saw all rows."""
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
    # used on the rows here, so that gradients of both statistics are sums over the processes as well
    total, count = copied(summed([wide.sum(axes), local], ranks), ranks)
    if count <= 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, but got {int(count)} in all processes."
        )
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
