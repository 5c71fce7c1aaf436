"""Values on the boundary: the user's function, evaluated in pieces and checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elliptica import _checks
from elliptica.landscape.walks import UNFINISHED

#: Points per call of the user's function.
_ROWS = 2**14


@dataclass(frozen=True)
class Boundary:
    """What walks are paid where they end.

    Attributes:
        function: Values at points ``(rows, dim)``, or at points and context rows.
        data_values: Value of each ball, if it is not the function at the end of the walk.
        context: One row per query, handed to the function.
        place: From the coordinates of the walks to those of the function.
        constant: The value, if it is the same everywhere.
    """

    function: Callable[..., Tensor]
    data_values: Float[Tensor, " n"] | None
    context: Tensor | None
    place: Callable[[Tensor], Tensor]
    constant: float | None = None

    @classmethod
    def of(
        cls,
        value: Callable[..., Tensor] | float,
        data_values: Tensor | None,
        context: Tensor | None,
        place: Callable[[Tensor], Tensor],
    ) -> Boundary:
        """From what the user gave: a function, or one number for all of the boundary."""
        if callable(value):
            return cls(value, data_values, context, place)
        _checks.number("value", value)
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"value must be a function or a finite number, but got {value}.")
        return cls(lambda z, *_: torch.full_like(z[:, 0], number), data_values, context, place, number)

    def __call__(
        self, end: Float[Tensor, "walks dim"], label: Int[Tensor, " walks"], query: Int[Tensor, " walks"]
    ) -> Float[Tensor, " walks"]:
        """Value at each end; zero for unfinished walks."""
        values = torch.zeros_like(end[:, 0])
        asked = label != UNFINISHED
        if self.data_values is not None:
            on_ball = label >= 0
            values[on_ball] = self.data_values.to(values)[label[on_ball]]
            asked = asked & ~on_ball
        if bool(asked.all()):
            return self.at(end, query)
        values[asked] = self.at(end[asked], query[asked])
        return values

    def at(self, points: Float[Tensor, "rows dim"], query: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        """The function at points, on behalf of the queries with these numbers."""
        with torch.no_grad():
            parts = [
                self._checked(z, self._call(z, q))
                for z, q in zip(points.split(_ROWS), query.split(_ROWS), strict=True)
            ]
        return torch.cat(parts) if parts else points.new_zeros(0)

    def gradient(self, points: Float[Tensor, "rows dim"], query: Int[Tensor, " rows"]) -> Tensor | None:
        """Gradient of the function, or None if it has none."""
        with torch.enable_grad():
            z = points.detach().clone().requires_grad_(True)
            try:
                values = self._call(z, query)
                (slope,) = torch.autograd.grad(values.sum(), z, allow_unused=True)
            except (RuntimeError, AttributeError, TypeError):
                return None  # not differentiable: control variates are an extra, not a need
        if slope is None or slope.shape != points.shape or not bool(slope.isfinite().all()):
            return None
        return slope

    def _call(self, z: Tensor, query: Tensor) -> Tensor:
        points = self.place(z)
        return self.function(points) if self.context is None else self.function(points, self.context[query])

    def _checked(self, z: Tensor, values: Tensor) -> Tensor:
        if not isinstance(values, Tensor):
            raise TypeError(f"value must return a torch.Tensor, but returned {type(values).__name__}.")
        if values.shape != (len(z),):
            hint = " Add .squeeze(-1)." if values.shape == (len(z), 1) else ""
            raise ValueError(
                f"value must return one value per point, shape ({len(z)},), but returned "
                f"{tuple(values.shape)}.{hint} For a loss, use reduction='none'."
            )
        bad = ~values.isfinite()
        if bool(bad.any()):
            where = ", ".join(f"{x:.4g}" for x in self.place(z[bad][:1])[0, :5].tolist())
            raise ValueError(
                f"value is NaN or infinite at {int(bad.sum())} of {len(z)} points of the boundary, e.g. at "
                f"({where}{', ...' if z.shape[1] > 5 else ''}). The landscape needs a finite value on all of "
                "it: check the model there, use a smaller domain, or bound the loss."
            )
        return values.to(z.dtype)
