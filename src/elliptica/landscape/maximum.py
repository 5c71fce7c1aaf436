"""Check whether the loss inside a region stays within the loss on its boundary (paper: Prop. 1)."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks


@dataclass(frozen=True)
class MaximumPrinciple:
    """Result of `check_maximum_principle`.

    Attributes:
        boundary_min: Least loss on the boundary.
        boundary_max: Largest loss on the boundary.
        interior_min: Least loss inside.
        interior_max: Largest loss inside.
        share_above: Share of the interior points whose loss exceeds ``boundary_max``, from 0 to 1.
        excess: ``interior_max - boundary_max``: by how much the bound is exceeded, or, if negative, by how
            much it is met.
        holds: Whether no interior loss is above ``boundary_max``.
        minimum_holds: Whether no interior loss is below ``boundary_min``. With a source term, as in the
            paper's training objective, only the maximum principle can be expected.
    """

    boundary_min: float
    boundary_max: float
    interior_min: float
    interior_max: float
    share_above: float
    excess: float
    holds: bool
    minimum_holds: bool


def check_maximum_principle(
    boundary_losses: Float[Tensor, " n_boundary"],
    interior_losses: Float[Tensor, " n_interior"],
) -> MaximumPrinciple:
    """Compare the losses inside a region with those on its boundary (paper: Prop. 1).

    The proposition bounds the solution of the PDE, not the loss of a network trained towards it.
    This function tests whether a network inherits the bound. Pass one loss
    per point: usually training points on the boundary, and unseen points inside.

    A comparison of samples misses what lies between them. The maximum of a thinly sampled boundary is
    too low, so sample it at least as densely as the interior. Do not use this to compare methods whose
    boundary losses differ: a classifier that fits its boundary badly passes easily. Look at ``holds``
    together with ``boundary_max``.

    Args:
        boundary_losses: Loss at each boundary point.
        interior_losses: Loss at each interior point.

    Returns:
        Extremes and verdicts. Equal values satisfy the principle.

    Raises:
        TypeError: If an argument is not a floating-point tensor.
        ValueError: If an argument does not have exactly one axis, is empty, or holds NaN or infinity.

    Example:
        >>> import torch
        >>> result = check_maximum_principle(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 2.0]))
        >>> result.holds, result.share_above, result.excess
        (False, 0.5, 1.0)
    """
    _check_losses("boundary_losses", boundary_losses)
    _check_losses("interior_losses", interior_losses)
    boundary_min, boundary_max = (float(v) for v in boundary_losses.detach().aminmax())
    interior_min, interior_max = (float(v) for v in interior_losses.detach().aminmax())
    return MaximumPrinciple(
        boundary_min=boundary_min,
        boundary_max=boundary_max,
        interior_min=interior_min,
        interior_max=interior_max,
        share_above=float((interior_losses.detach().double() > boundary_max).double().mean()),
        excess=interior_max - boundary_max,
        holds=interior_max <= boundary_max,
        minimum_holds=interior_min >= boundary_min,
    )


def _check_losses(name: str, losses: object) -> None:
    checks.tensor(name, losses)
    assert isinstance(losses, Tensor)
    if not losses.is_floating_point():
        raise TypeError(f"{name} must be floating point, but has dtype {losses.dtype}. Use .float().")
    if losses.ndim != 1:
        raise ValueError(
            f"{name} must have one loss per point, shape (n,), but has shape {tuple(losses.shape)}. Use a "
            'loss with reduction="none", and .flatten() the result if it has more axes.'
        )
    if len(losses) == 0:
        raise ValueError(f"{name} is empty, so there is nothing to compare. Pass at least one loss.")
    checks.finite(name, losses)
