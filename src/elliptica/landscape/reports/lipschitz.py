"""Lipschitz constant of a network: proved from its layers, or read off sampled gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from elliptica import _checks
from elliptica.landscape.loss import evaluation_mode

#: Layers that never move two points further apart.
_CONTRACTIONS = (
    nn.ReLU,
    nn.ReLU6,
    nn.Tanh,
    nn.Hardtanh,
    nn.Softplus,
    nn.Softsign,
    nn.LogSigmoid,
    nn.Identity,
    nn.Dropout,
    nn.Flatten,
)


def certified_lipschitz(model: nn.Module) -> float:
    """Product of the spectral norms of the layers: an upper bound, often a loose one.

    For `torch.nn.Sequential` (nested if you like) of linear layers, common activations, dropout and
    normalisation in evaluation mode. Computed in float64; proved up to its rounding.

    Raises:
        TypeError: For a layer whose constant is not known.
    """
    return math.prod(_layer(layer) for layer in layers(model))


def layers(model: nn.Module) -> Iterator[Any]:
    """Layers of a sequential model in order of use."""
    if model._forward_hooks or model._forward_pre_hooks:
        raise TypeError(
            f"{type(model).__name__} has forward hooks, which may change what it computes. Remove them, or "
            'use lipschitz="estimated".'
        )
    if type(model).forward is nn.Sequential.forward:
        for child in model.children():
            yield from layers(child)
    else:
        yield model


def _layer(layer: Any) -> float:
    kind = type(layer)
    if kind is nn.Linear:
        return float(torch.linalg.svdvals(layer.weight.detach().double())[0])
    if kind in _CONTRACTIONS:
        return 1.0
    if kind is nn.LeakyReLU:
        return max(1.0, abs(float(layer.negative_slope)))
    if kind is nn.ELU:
        return max(1.0, abs(float(layer.alpha)))
    if kind is nn.Sigmoid:
        return 0.25
    if kind is nn.BatchNorm1d and layer.running_var is not None:
        scale = (layer.running_var.double() + layer.eps).rsqrt()
        return float((scale if layer.weight is None else scale * layer.weight.detach().double().abs()).max())
    raise TypeError(
        f"The Lipschitz constant of a {kind.__name__} layer is not known here, so nothing can be proved. Use "
        'lipschitz="estimated" (not a certificate), or pass the constant as a number.'
    )


def estimated_lipschitz(model: nn.Module, x: Tensor, chunk_size: int = 4096) -> float:
    """Largest spectral norm of the Jacobian at given inputs: a lower bound of the constant.

    Args:
        model: With one output tensor; rows must not influence each other.
        x: Inputs at which to look.
        chunk_size: Rows at a time.
    """
    _checks.floating("x", x)
    _checks.batch("x", x)
    largest = 0.0
    with evaluation_mode(model), torch.enable_grad():
        for part in x.detach().split(chunk_size):
            points = part.clone().requires_grad_(True)
            output = model(points).reshape(len(part), -1)
            slopes = [
                torch.autograd.grad(column.sum(), points, retain_graph=True)[0].reshape(len(part), -1)
                for column in output.unbind(1)
            ]
            largest = max(largest, float(torch.linalg.matrix_norm(torch.stack(slopes, 1), ord=2).max()))
            if not math.isfinite(largest):
                raise ValueError("The gradient of the model is NaN or infinite at some of the points.")
    return largest


def product_weight(model: nn.Module) -> Tensor | None:
    """``W1 W0`` of a two-layer ReLU network with one output, the paper's setting; else None."""
    try:
        used = [
            layer for layer in layers(model) if not isinstance(layer, (nn.Identity, nn.Dropout, nn.Flatten))
        ]
    except TypeError:
        return None
    if [type(layer) for layer in used] != [nn.Linear, nn.ReLU, nn.Linear]:
        return None
    first, last = (used[i].weight.detach().double() for i in (0, 2))
    return (last @ first)[0] if len(last) == 1 else None
