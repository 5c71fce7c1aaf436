"""The mean-value defect: mean of a loss over a small sphere minus its value at the centre."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica import _checks, _random
from elliptica.landscape.loss import LossField, join

#: Numbers held at once in directions.
_CHUNK = 2**22
#: Evaluations one rounding unit away from the centre, from which rounding noise is read.
_NEARBY = 8


@dataclass(frozen=True)
class Defect:
    """Mean-value defects ``m_r``, one row per probe, one column per radius.

    Attributes:
        mean: Estimate of ``E[l(z + r xi)] - l(z)``, ``xi`` uniform on the unit sphere.
        stderr: Its standard error.
        rounding: How far rounding in the model may move it, one per probe.
        dim: Dimension of the space.
    """

    mean: Float[Tensor, "probes radii"]
    stderr: Float[Tensor, "probes radii"]
    rounding: Float[Tensor, " probes"]
    dim: int

    def laplacian(self, radii: Sequence[float]) -> tuple[Tensor, Tensor]:
        """``2 n m_r / r^2``, the mean Laplacian of the loss up to ``O(r^2)``, and its standard error."""
        factor = 2 * self.dim / torch.tensor(list(radii), dtype=torch.float64).square()
        factor = factor.to(self.mean)
        return self.mean * factor, self.stderr * factor


def point_loss(field: LossField, x: Tensor, y: Tensor, joint: bool) -> tuple[Tensor, Callable[..., Tensor]]:
    """Flat points, and the loss at flat points with their row numbers: inputs alone, or with targets."""
    _checks.floating("x", x)
    _checks.batch("x", x)
    _checks.same_rows("y", y, len(x))
    if joint:
        n_features = x[0].numel()
        loss = field.joint(n_features, feature_shape=x.shape[1:], target_shape=y.shape[1:])
        return join(x, y), lambda z, rows: loss(z)
    carried = field.at_label(x.shape[1:])
    return x.reshape(len(x), -1), lambda z, rows: carried(z, y[rows])


def mean_value_defect(
    loss: Callable[[Tensor, Tensor], Tensor],
    z: Float[Tensor, "probes dim"],
    radii: Sequence[float],
    n_directions: int = 128,
    *,
    generator: torch.Generator | None = None,
) -> Defect:
    """Antithetic estimate at each probe and radius: forward passes only, sees kinks.

    Directions come in pairs ``+xi, -xi``, which cancels the slope exactly: without that the standard error
    is about a hundred times larger.

    Args:
        loss: ``loss(points, probe numbers)``, one value per point.
        z: Probes.
        radii: Of the spheres; the same directions serve all of them.
        n_directions: Pairs of directions per probe, at least 2.
        generator: Source of the directions.
    """
    _checks.count("n_directions", n_directions, 2, " (one pair has no standard error)")
    if len(radii) == 0:
        raise ValueError("radii is empty: pass at least one radius, e.g. radii=(0.1, 0.5).")
    for radius in radii:
        _checks.positive("Every radius", radius)
    _random.check_generator(generator, z.device)
    probes, dim = z.shape
    means, errors, rounding = [], [], []
    for rows in torch.arange(probes, device=z.device).split(max(_CHUNK // (n_directions * dim), 1)):
        at = z[rows]
        centre = loss(at, rows).double()
        rounding.append(_rounding(loss, at, rows, centre, generator))
        shape = (len(rows), n_directions, dim)
        normal = _random.draw_normal(shape, dtype=z.dtype, device=z.device, generator=generator)
        xi = torch.nn.functional.normalize(normal, dim=2)
        owner = rows.repeat_interleave(n_directions)
        pairs = []
        for radius in radii:
            two = [
                loss((at[:, None] + sign * radius * xi).flatten(0, 1), owner).double() for sign in (1.0, -1.0)
            ]
            pairs.append(((two[0] + two[1]) / 2).reshape(shape[:2]) - centre[:, None])
        defects = torch.stack(pairs, 1)
        means.append(defects.mean(2))
        errors.append(defects.std(2) / n_directions**0.5)
    return Defect(torch.cat(means), torch.cat(errors), torch.cat(rounding), dim)


def _rounding(
    loss: Callable[..., Tensor],
    at: Tensor,
    rows: Tensor,
    centre: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """Largest change of the loss when every coordinate moves by one unit in its last place, times four."""
    unit = torch.finfo(at.dtype).eps
    shape = (_NEARBY, *at.shape)
    sign = _random.draw_normal(shape, dtype=at.dtype, device=at.device, generator=generator).sign()
    near = loss((at * (1 + unit * sign)).flatten(0, 1), rows.repeat(_NEARBY)).double()
    return 4 * (near.reshape(_NEARBY, -1) - centre).abs().amax(0) + 4 * unit * centre.abs()
