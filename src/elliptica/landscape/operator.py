"""The elliptic operator that defines the landscape (paper: Eqs. (5), (10), appendices C and D).

The sign convention is ``1/2 sum_i a_i u_ii + mu . grad u - r u = -f`` inside, ``u = g`` on the
boundary. Its process is ``dZ = mu dt + sqrt(a) dW``, killed at rate ``r``, and
``u(z) = E[exp(-r tau) g(Z_tau) + int_0^tau exp(-r s) f(Z_s) ds]`` (Feynman-Kac).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks

#: A function on the data space: rows ``(n, dim)`` to one value ``(n,)`` (or one vector) per row.
Field = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Operator:
    """Coefficients of ``1/2 sum a_i u_ii + mu . grad u - r u = -f``; the default is Laplace's equation.

    The paper's Eq. (5) has a drift with the opposite sign (``b = -mu``); here a positive drift moves
    the process the way it points (docs: deviations).

    Attributes:
        diffusion: ``a``, the square of the diffusion coefficient: a number, or one per coordinate.
        drift: ``mu``: None, a vector, or a function of the points.
        absorption: ``r``, rate of killing: a number of at least 0, or a function of the points (for which
            only time stepping works).
        source: ``f``: None, a number, or a function of the points.
    """

    diffusion: float | Float[Tensor, " dim"] = 1.0
    drift: Float[Tensor, " dim"] | Field | None = None
    absorption: float | Field = 0.0
    source: float | Field | None = None

    def __post_init__(self) -> None:
        a = self.diffusion
        if isinstance(a, Tensor):
            if a.ndim != 1 or not a.is_floating_point() or not bool((a > 0).all() and a.isfinite().all()):
                raise ValueError(
                    "Operator.diffusion must be a number or one positive value per coordinate, but got a "
                    f"tensor of shape {tuple(a.shape)} and dtype {a.dtype}"
                    + (f" with least value {float(a.min()):.3g}." if a.numel() else ".")
                )
        else:
            checks.positive("Operator.diffusion", a)
        if not callable(self.absorption):
            checks.nonnegative("Operator.absorption", self.absorption)
        if self.source is not None and not callable(self.source):
            checks.number("Operator.source", self.source)
            if not math.isfinite(self.source):
                raise ValueError(f"Operator.source must be finite, but got {self.source}.")
        if isinstance(self.drift, Tensor):
            checks.tensor("Operator.drift", self.drift)
            if not self.drift.is_floating_point():
                raise TypeError(
                    f"Operator.drift must be floating point, but has dtype {self.drift.dtype}. Use .float()."
                )
            if self.drift.ndim != 1:
                raise ValueError(
                    "A constant drift must have one value per coordinate, but has shape "
                    f"{tuple(self.drift.shape)}."
                )
            checks.finite("Operator.drift", self.drift)
        elif self.drift is not None and not callable(self.drift):
            raise TypeError(f"drift must be a vector or a function of the points, but got {self.drift!r}.")

    @property
    def is_laplace(self) -> bool:
        """Whether there is no lower-order term and no source, so that only the exit point matters."""
        return not (self.drift is not None or callable(self.absorption) or self.absorption or self.has_source)

    @property
    def has_source(self) -> bool:
        """Whether the right side is not zero."""
        return callable(self.source) or bool(self.source)

    def check_dim(self, dim: int) -> None:
        """Raise if a coefficient has another dimension."""
        for name in ("diffusion", "drift"):
            value = getattr(self, name)
            if isinstance(value, Tensor) and len(value) != dim:
                raise ValueError(
                    f"Operator.{name} has {len(value)} values, but the domain has dimension {dim}. "
                    f"Pass {dim} values."
                )

    def scale(self, like: Float[Tensor, "rows dim"]) -> Tensor:
        """Return ``sqrt(a)``, one value per coordinate, in the dtype and on the device of ``like``."""
        a = self.diffusion
        if isinstance(a, Tensor):
            return a.to(like).sqrt()
        return torch.full((like.shape[1],), math.sqrt(a), dtype=like.dtype, device=like.device)

    def drift_at(self, z: Float[Tensor, "rows dim"]) -> Tensor | None:
        """Return the drift at points, ``(rows, dim)`` or a vector that broadcasts; None without one."""
        if callable(self.drift):
            drift = self.drift(z)
            if not isinstance(drift, Tensor) or drift.shape != z.shape:
                got = tuple(drift.shape) if isinstance(drift, Tensor) else type(drift).__name__
                raise ValueError(
                    f"The drift must return one vector per point, {tuple(z.shape)}, but returned {got}."
                )
            _check_finite("drift", drift, z)
            return drift
        return None if self.drift is None else self.drift.to(z)

    def absorption_at(self, z: Float[Tensor, "rows dim"]) -> Tensor | float:
        """Return the rate of killing at points."""
        if not callable(self.absorption):
            return self.absorption
        rate = _column("absorption", self.absorption(z), z)
        if bool((rate < 0).any()):
            raise ValueError(
                "The absorption is a rate of at least 0, but returned values down to "
                f"{float(rate.min()):.3g}. For growth, use a source."
            )
        return rate

    def source_at(self, z: Float[Tensor, "rows dim"]) -> Tensor:
        """Return the source at points, ``(rows,)``."""
        if callable(self.source):
            return _column("source", self.source(z), z)
        return torch.full((len(z),), float(self.source or 0.0), dtype=z.dtype, device=z.device)


def _column(name: str, values: object, z: Tensor) -> Tensor:
    if not isinstance(values, Tensor) or values.shape != (len(z),):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"The {name} must return one value per point, shape ({len(z)},), but returned {got}."
        )
    _check_finite(name, values, z)
    return values


def _check_finite(name: str, values: Tensor, z: Tensor) -> None:
    """Raise if a function of the points is NaN or infinite somewhere."""
    if not math.isfinite(values.sum()):
        bad = ~values.isfinite().reshape(len(z), -1).all(1)
        if bool(bad.any()):
            where = ", ".join(f"{x:.4g}" for x in z[bad][0, :5].tolist())
            raise ValueError(
                f"The {name} is NaN or infinite at {int(bad.sum())} of {len(z)} points, e.g. at ({where}). "
                "Bound it there."
            )
