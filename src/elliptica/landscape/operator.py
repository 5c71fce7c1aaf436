"""The elliptic operator that defines the landscape (paper: Eqs. (5), (10), (14), appendices C and D).

The sign convention is ``1/2 tr(a Hess u) + mu . grad u - r u = -f`` inside, ``u = g`` on the boundary. Its
process is ``dZ = mu dt + sqrt(a) dW``, killed at rate ``r``, and
``u(z) = E[exp(-r tau) g(Z_tau) + int_0^tau exp(-r s) f(Z_s) ds]`` (Feynman-Kac).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

#: A function on the data space: rows ``(n, dim)`` to one value ``(n,)``, vector or matrix per row.
Field = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Operator:
    """Coefficients of ``1/2 tr(a Hess u) + mu . grad u - r u = -f``; the default is Laplace's equation.

    A positive drift moves the process the way it points; the paper's Eq. (5) has ``b = -mu``.

    Attributes:
        diffusion: ``a = sigma sigma^T`` (Eq. (14)): a number, one per coordinate, a matrix ``(dim, dim)``, or
            a function of the points that returns a number or a matrix for each. Only time stepping takes
            the last two.
        drift: ``mu``: None, a vector, or a function of the points.
        absorption: ``r``, rate of killing: a number of at least 0, or a function of the points (for which
            only time stepping works).
        source: ``f``: None, a number, or a function of the points.
    """

    diffusion: float | Float[Tensor, "*shape"] | Field = 1.0
    drift: Float[Tensor, " dim"] | Field | None = None
    absorption: float | Field = 0.0
    source: float | Field | None = None

    def __post_init__(self) -> None:
        if self.is_axial and not bool((torch.as_tensor(self.diffusion) > 0).all()):
            raise ValueError(f"Operator.diffusion must be above 0, but got {self.diffusion}.")

    @property
    def is_axial(self) -> bool:
        """Whether the diffusion is a number, or one per coordinate, the same everywhere."""
        return not callable(self.diffusion) and torch.as_tensor(self.diffusion).ndim < 2

    @property
    def has_source(self) -> bool:
        """Whether the right side is not zero."""
        return callable(self.source) or bool(self.source)

    def check_dim(self, dim: int) -> None:
        """Raise if a constant coefficient has another dimension; one value would broadcast."""
        for name in ("diffusion", "drift"):
            value = getattr(self, name)
            if isinstance(value, Tensor) and value.ndim and set(value.shape) != {dim}:
                raise ValueError(f"Operator.{name} has shape {tuple(value.shape)}, the domain is {dim}-d.")

    def scale(self, like: Float[Tensor, "rows dim"]) -> Float[Tensor, " dim"]:
        """Return ``sqrt(a)``, one value per coordinate; raise if the diffusion is a matrix or varies."""
        if callable(self.diffusion) or not self.is_axial:
            raise ValueError("Only time stepping takes this diffusion. Use a vector, or solver='euler'.")
        return torch.as_tensor(self.diffusion).to(like).expand(like.shape[1]).sqrt()

    def diffusion_at(self, z: Float[Tensor, "rows dim"]) -> Tensor:
        """Return ``a`` at points: its diagonal ``(rows or 1, dim or 1)``, or matrices ``(..., dim, dim)``."""
        if not callable(self.diffusion):
            a = torch.as_tensor(self.diffusion).to(z)
            return a[None] if a.ndim else a.reshape(1, 1)
        a = self.diffusion(z)
        return a if a.shape == (*z.shape, z.shape[1]) else _column("diffusion", a, z)[:, None]

    def spread(self, z: Float[Tensor, "rows dim"], normal: Float[Tensor, "rows dim"]) -> Tensor:
        """Return ``sqrt(a(z))`` times standard normal rows; of a matrix, its Cholesky factor."""
        a = self.diffusion_at(z)
        if a.ndim == 3:
            return (torch.linalg.cholesky(a) @ normal[..., None])[..., 0]
        return normal * a.sqrt()

    def speed_along(self, z: Float[Tensor, "rows dim"], unit: Float[Tensor, "rows dim"]) -> Tensor:
        """Return ``sqrt(n . a(z) n)``: how fast the process spreads along unit vectors ``n``."""
        a = self.diffusion_at(z)
        image = (a @ unit[..., None])[..., 0] if a.ndim == 3 else a * unit
        return (unit * image).sum(1).sqrt()

    def speeds(self, z: Float[Tensor, "rows dim"]) -> tuple[float, float]:
        """Return the least and the largest ``sqrt(a)`` over points and directions."""
        a = self.diffusion_at(z)
        low, high = (torch.linalg.eigvalsh(a) if a.ndim == 3 else a).aminmax()
        return math.sqrt(low), math.sqrt(high)

    def drift_at(self, z: Float[Tensor, "rows dim"]) -> Tensor | None:
        """Return the drift at points, ``(rows, dim)`` or a vector that broadcasts; None without one."""
        if not callable(self.drift):
            return None if self.drift is None else self.drift.to(z)
        drift = self.drift(z)
        if drift.shape != z.shape:
            raise ValueError(f"drift must return one vector per point, {tuple(z.shape)}, not {drift.shape}.")
        return drift

    def absorption_at(self, z: Float[Tensor, "rows dim"]) -> Tensor | float:
        """Return the rate of killing at points."""
        return _column("absorption", self.absorption(z), z) if callable(self.absorption) else self.absorption

    def source_at(self, z: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"]:
        """Return the source at points."""
        if callable(self.source):
            return _column("source", self.source(z), z)
        return torch.full_like(z[:, 0], self.source or 0.0)


def _column(name: str, values: Tensor, z: Tensor) -> Tensor:
    """Raise unless there is one value per point; a column would broadcast."""
    if values.shape != (len(z),):
        raise ValueError(f"{name} must return shape ({len(z)},), one per point, not {tuple(values.shape)}.")
    return values
