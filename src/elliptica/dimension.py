"""How many dimensions the data really have, as seen from the distances to the two nearest neighbours."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica import _checks
from elliptica.pairing import pairwise_distances

_CHUNK_BYTES = 64 * 2**20


def intrinsic_dimension(x: Float[Tensor, " n *feature"], *, discard: float = 0.1) -> float:
    """Estimate the dimension of the surface that data lie near, from nearest neighbours (TwoNN).

    On a smooth surface of dimension ``m`` the ratio of the distances to the second and to the first
    neighbour has a Pareto law with exponent ``m`` wherever the density varies slowly (Facco et al. 2017);
    this is its maximum-likelihood fit. Use it where a law depends on the dimension and the number of
    columns would overstate it: ``Green(dim=max(3, intrinsic_dimension(x)))``.

    Args:
        x: At least ten distinct points; repeated ones are ignored.
        discard: Share of the largest ratios to leave out (censored, not forgotten): outliers.

    Returns:
        The dimension, a real number. It is low for few points in many dimensions.

    Example:
        >>> x = torch.rand(500, 2, generator=torch.Generator().manual_seed(0))
        >>> flat = torch.cat([x, x @ torch.ones(2, 8)], dim=1)        # a plane in ten dimensions
        >>> round(intrinsic_dimension(flat))
        2
    """
    _checks.floating("x", x)
    _checks.finite("x", x)
    if not 0 <= discard < 1:
        raise ValueError(f"discard must be at least 0 and below 1, but got {discard}.")
    points = torch.unique(x.detach().flatten(1) if x.ndim > 1 else x.detach()[:, None], dim=0)
    n = len(points)
    if n < 10:
        raise ValueError(f"A dimension needs at least 10 distinct points, but x has {n}.")
    log_ratios = []
    for part in points.split(max(1, _CHUNK_BYTES // (8 * n))):
        # the nearest of all is the point itself
        near = pairwise_distances(part, points).topk(3, dim=1, largest=False).values
        log_ratios.append((near[:, 2] / near[:, 1]).log())
    ordered = torch.cat(log_ratios).sort().values
    kept = max(int(n * (1 - discard)), 1)
    # the discarded ratios are known to exceed the last one kept
    exposure = ordered[:kept].sum() + (n - kept) * ordered[kept - 1]
    return kept / float(exposure)
