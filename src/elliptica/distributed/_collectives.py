"""Collectives whose derivatives, of any order, are what one process would compute.

Two kinds of tensors go through a network that is split by rows: *whole* ones, equal in all processes, and
*parts*. A loss is computed by every process from whole tensors. Then the derivative of a whole tensor is
whole, the derivative of a part is the part of the derivative, and each function below is the derivative of
its partner: `gather_rows` and `take_rows`, `copied` and `summed`.

Torch's own (``torch.distributed.nn``, functional collectives) take the loss to be the *sum* over processes:
with a loss that all compute, their gradients are too large by the number of processes. They also want equal
parts, and cannot be used under ``torch.func``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from elliptica.distributed.ranks import Ranks


def gather_rows(part: Tensor, ranks: Ranks, rows: int) -> Tensor:
    """All rows, from the part of each process."""
    whole: Tensor = _Gather.apply(part, ranks, rows)
    return whole


def take_rows(whole: Tensor, ranks: Ranks) -> Tensor:
    """This process' part of the rows."""
    part: Tensor = _Take.apply(whole, ranks)
    return part


def copied(whole: Sequence[Tensor], ranks: Ranks) -> tuple[Tensor, ...]:
    """The same tensors, for use on a part of the rows: their gradients are summed over the processes."""
    copies: tuple[Tensor, ...] = _Copy.apply(ranks, *whole)
    return copies


def summed(parts: Sequence[Tensor], ranks: Ranks) -> tuple[Tensor, ...]:
    """Sums over the processes."""
    sums: tuple[Tensor, ...] = _Sum.apply(ranks, *parts)
    return sums


def _all_rows(part: Tensor, ranks: Ranks, rows: int) -> Tensor:
    """Parts may differ by a row, which gloo does not allow, so the shorter ones are filled up."""
    counts = ranks.counts(rows)
    filled = part.new_zeros(max(counts), *part.shape[1:])
    filled[: len(part)] = part
    parts = [torch.empty_like(filled) for _ in counts]
    dist.all_gather(parts, filled, ranks.group)
    return torch.cat([each[:count] for each, count in zip(parts, counts, strict=True)])


def _all_sums(parts: Sequence[Tensor], ranks: Ranks) -> list[Tensor]:
    """One message for each dtype, not one for each tensor."""
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
        ctx.set_materialize_grads(False)  # what a loss does not depend on has no gradient, not a zero

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
