"""Bound the loss under a known affine shift, with a Monte-Carlo estimate for comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from elliptica._utils import checks, random
from elliptica.core.batchnorm import evaluation_mode
from elliptica.core.losses import outputs_at
from elliptica.diagnostics.expected_loss import loss_map
from elliptica.diagnostics.probes import shifted_probes
from elliptica.diagnostics.result import Result, notes_lines, table
from elliptica.landscape.data_domain import DataDomain
from elliptica.landscape.domains import Ball, Domain
from elliptica.landscape.exits import ball_exit_time
from elliptica.landscape.loss import LossField, join
from elliptica.landscape.operator import Operator

#: Points per row at which the gradient is evaluated for an estimated constant.
_SAMPLES = 16


@dataclass(frozen=True)
class ShiftBound(Result):
    """Result of `shift_bound`, one entry per row.

    Attributes:
        error: ``|f(x) - y|`` before the shift.
        shift: ``|T x - x|``.
        loss: Loss at the shifted input, with the original target.
        loss_bound: Upper bound of ``loss``: ``(error + C shift)^2``; proved if ``certified``.
        exit_time: Expected exit time from the ball.
        bound: Upper bound of ``u(T x, y)``; proved if ``certified``.
        value: Monte-Carlo estimate of ``u(T x, y)``.
        stderr: Its standard error.
        printed: The right side of Prop. 2 as printed in the paper, which is not a bound; None for other
            networks than its two-layer ReLU ones.
        lipschitz: Constant ``C`` of the network.
        certified: Whether ``C`` is proved, or only the largest sampled gradient.
        notes: Remarks and cautions.
    """

    error: Float[Tensor, " rows"]
    shift: Float[Tensor, " rows"]
    loss: Float[Tensor, " rows"]
    loss_bound: Float[Tensor, " rows"]
    exit_time: Float[Tensor, " rows"]
    bound: Float[Tensor, " rows"]
    value: Float[Tensor, " rows"]
    stderr: Float[Tensor, " rows"]
    printed: Float[Tensor, " rows"] | None
    lipschitz: float
    certified: bool
    notes: tuple[str, ...]

    @property
    def loss_violations(self) -> int:
        """Number of rows whose loss exceeds its bound; zero if the constant is proved."""
        return int((self.loss > self.loss_bound * (1 + 1e-4)).sum())  # single precision rounds

    @property
    def violations(self) -> int:
        """Number of rows whose estimate exceeds the bound by more than four standard errors."""
        return _exceed(self.value, self.stderr, self.bound)

    @property
    def printed_violations(self) -> int | None:
        """The same for the formula as printed."""
        return None if self.printed is None else _exceed(self.value, self.stderr, self.printed)

    def __str__(self) -> str:
        kind = "certified" if self.certified else "estimated, NOT a certificate"
        first = [self.error, self.shift, self.loss, self.loss_bound]
        head = ["u (walks)", "low 95 %", "high 95 %", "bound of u"]
        low, high = self.value - 1.96 * self.stderr, self.value + 1.96 * self.stderr
        columns = [self.value, low, high, self.bound]
        if self.printed is not None:
            head.append("as printed, not a bound")
            columns.append(self.printed)
        lines = [
            f"loss after the shift at {len(self.value)} rows, targets kept; Lipschitz constant "
            f"{self.lipschitz:.4g} ({kind})",
            *table(("|f-y| before", "shift", "loss after", "bound of the loss"), _rows(first)),
            f"  largest bound of the loss {float(self.loss_bound.max()):.4g}; loss above its bound at "
            f"{self.loss_violations} rows",
            "landscape u after the shift: the expected loss where a diffusion leaves the ball",
            *table(head, _rows(columns)),
            f"  estimate above the bound at {self.violations} rows; median bound / estimate "
            f"{float((self.bound / self.value).median()):.3g}",
        ]
        if self.printed is not None:
            lines.append(f"  estimate above the printed formula at {self.printed_violations} rows")
        return "\n".join([*lines, *notes_lines(self.notes)])


def shift_bound(
    field: LossField,
    x: Tensor,
    y: Tensor,
    transform: tuple[Tensor | None, Tensor | None],
    domain: Domain,
    *,
    lipschitz: Literal["certified", "estimated"] | float = "certified",
    joint: bool = True,
    n_walks: int = 1000,
    diffusion: float = 1.0,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> ShiftBound:
    """Bound the loss of a regression at shifted inputs, and its landscape (paper: Prop. 2, corrected).

    For targets that do not change, the loss itself satisfies ``l(Tx, y)^(1/2) <= |f(x) - y| + C |Tx - x|``.
    Use this bound first: it is about the loss that you will have, and far tighter. The landscape satisfies
    ``u(Tx, y)^(1/2) <= |f(x) - y| + C |Tx - x| + ((C^2 + 1) (R^2 - |z - c|^2))^(1/2)`` for the squared loss
    and a ball of centre ``c`` and radius ``R``, ``z = (Tx, y)``; without the ``+ 1`` if targets are fixed.
    Both hold for every Lipschitz network, kinks included; the second for domains inside the ball. The second
    bound is loose: look at the estimate, and take the bound as its guarantee.

    Args:
        field: Loss of the model; must be `torch.nn.MSELoss` (several outputs are averaged).
        x: Inputs before the shift.
        y: Real targets.
        transform: ``(matrix, offset)`` of the shift on flattened inputs; None omits a part.
        domain: `Ball`, or `DataDomain` in one, on inputs and targets (``joint``) or on inputs.
        lipschitz: ``"certified"`` (product of spectral norms), ``"estimated"`` (largest sampled gradient), or
            a constant that you know to hold.
        joint: Whether targets diffuse with the inputs, as in the paper.
        n_walks: Walks per row for the estimate.
        diffusion: ``sigma^2``; enters exit times (and the printed formula) only.
        generator: Source of randomness.
        **settings: Those of `estimate_landscape`.
    """
    if not field.is_squared:
        raise ValueError(
            f"The shift bound is for the squared loss, but the field has {field.loss_fn!r}. Use "
            "LossField(model, torch.nn.MSELoss()); for other losses use loss_map at the shifted inputs."
        )
    checks.floating("x", x)
    checks.batch("x", x)
    checks.same_rows("y", y, len(x))
    ball = domain.domain if isinstance(domain, DataDomain) else domain
    dim = x[0].numel() + (y[0].numel() if joint else 0)
    if isinstance(ball, Ball) and len(ball.centre) != dim:
        space = "inputs and targets together (joint=True)" if joint else "inputs (joint=False)"
        raise ValueError(
            f"The domain must be on {space}, dimension {dim}, but has dimension {len(ball.centre)}. Use "
            "Ball.around(torch.cat([x.flatten(1), y], dim=1)), or joint=False."
        )
    if not isinstance(ball, Ball):
        raise TypeError(
            f"The shift bound needs a ball, whose exit time is known, but got {type(ball).__name__}. Use "
            "Ball.around(join(x, y)), or DataDomain(..., outer='ball')."
        )
    checks.positive("diffusion", diffusion)
    moved, _ = shifted_probes(x, y, *transform)
    z = join(moved, y) if joint else moved.reshape(len(moved), -1)
    n_outputs = y[0].numel()
    error = (field(x, y).double() * n_outputs).sqrt()
    shift = (moved - x).reshape(len(x), -1).double().norm(dim=1)
    time = ball_exit_time(z, ball.centre.to(z), ball.radius, diffusion).double()
    constant, certified = _constant(field, x, moved, ball, lipschitz, generator)
    spread = time * z.shape[1] * diffusion  # E |Z_tau - z|^2
    loss_root = error + constant * shift
    root = loss_root + ((constant**2 + float(joint)) * spread).sqrt()
    settings.setdefault("operator", Operator(diffusion=diffusion))
    estimate = loss_map(
        field,
        domain,
        moved,
        y,
        labels="joint" if joint else "carry",
        n_walks=n_walks,
        generator=generator,
        **settings,
    )
    return ShiftBound(
        error,
        shift,
        field(moved, y).double(),
        loss_root.square() / n_outputs,
        time,
        root.square() / n_outputs,
        estimate.value,
        estimate.stderr,
        _printed(field, constant, error, shift, time),
        constant,
        certified,
        _notes(certified, estimate.notes),
    )


def _rows(columns: list[Tensor]) -> list[tuple[float, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _constant(
    field: LossField,
    x: Tensor,
    moved: Tensor,
    ball: Ball,
    lipschitz: str | float,
    generator: torch.Generator | None,
) -> tuple[float, bool]:
    if not isinstance(lipschitz, str):
        checks.nonnegative("lipschitz", lipschitz)
        return float(lipschitz), True
    checks.choice("lipschitz", lipschitz, ("certified", "estimated"))
    if lipschitz == "certified":
        return certified_lipschitz(field.model), True
    shape = (_SAMPLES, *x.shape)
    share = random.draw_uniform(shape[:2], device=x.device, generator=generator).to(x)
    noise = random.draw_normal(shape, dtype=x.dtype, device=x.device, generator=generator)
    between = torch.lerp(x, moved, share.reshape(*shape[:2], *[1] * (x.ndim - 1)))
    wide = moved + noise * (ball.radius / math.sqrt(x[0].numel()))
    points = torch.cat([x, moved, between.flatten(0, 1), wide.flatten(0, 1)])
    return estimated_lipschitz(field.model, points, field.chunk_size), False


def _printed(field: LossField, constant: float, error: Tensor, shift: Tensor, time: Tensor) -> Tensor | None:
    """``2 |W1 W0|^2 tau + C |D| (|D| + 2 e)``, with the mean exit time for ``tau``."""
    product = product_weight(field.model)
    if product is None:
        return None
    return 2 * float(product.square().sum()) * time + constant * shift * (shift + 2 * error)


def _exceed(value: Tensor, stderr: Tensor, bound: Tensor) -> int:
    return int((value.double() > bound * (1 + 1e-6) + 4 * stderr.double()).sum())


def _notes(certified: bool, found: tuple[str, ...]) -> tuple[str, ...]:
    notes = list(found)
    if not certified:
        notes.append(
            "The Lipschitz constant is the largest sampled gradient, a lower bound of the true one, "
            "so neither bound is a guarantee."
        )
    notes.append("The bound of the loss assumes that targets do not change when the inputs move.")
    notes.append(
        "The bound of u is of the expected loss on the boundary, not of the loss at the shifted input."
    )
    return tuple(notes)


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
    """Return the product of the layers' spectral norms: an upper bound, often loose.

    For `torch.nn.Sequential` (nested if you like) of linear layers, common activations, dropout and
    normalisation in evaluation mode. Computed in float64; proved up to its rounding.

    Raises:
        TypeError: For a layer whose constant is not known.
    """
    return math.prod((_layer(layer) for layer in layers(model)), start=1.0)


def layers(model: nn.Module) -> Iterator[Any]:
    """Iterate over the layers of a sequential model in order of use."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, but got {type(model).__name__}.")
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
        if not bool(layer.weight.isfinite().all()):
            raise ValueError(
                f"A weight of the layer {layer} is NaN or infinite, so there is no constant. Check the model."
            )
        if layer.weight.numel() == 0:
            return 0.0
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
    """Return the largest spectral norm of the Jacobian at given inputs: a lower bound of the constant.

    Args:
        model: Model with one output tensor; rows must not influence each other.
        x: Inputs at which to evaluate it.
        chunk_size: Rows at a time.
    """
    checks.floating("x", x)
    checks.batch("x", x)
    largest = 0.0
    with evaluation_mode(model), torch.enable_grad():
        for part in x.detach().split(chunk_size):
            points = part.clone().requires_grad_(True)
            output = outputs_at(model, points, len(part))
            if not isinstance(output, Tensor):
                raise TypeError(
                    f"The model must return one tensor, but returned a {type(output).__name__}. Wrap it in a "
                    "module that does."
                )
            output = output.reshape(len(part), -1)
            slopes = [
                torch.autograd.grad(column.sum(), points, retain_graph=True)[0].reshape(len(part), -1)
                for column in output.unbind(1)
            ]
            jacobian = torch.stack(slopes, 1)
            if not bool(jacobian.isfinite().all()):
                raise ValueError(
                    "The gradient of the model is NaN or infinite at some points. Check the model there."
                )
            largest = max(largest, float(torch.linalg.matrix_norm(jacobian, ord=2).max()))
    return largest


def product_weight(model: nn.Module) -> Tensor | None:
    """Return ``W1 W0`` of a two-layer ReLU network with one output, the paper's setting; else None."""
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
