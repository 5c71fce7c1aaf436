"""Strength of the noise: a number, one per feature, a covariance, or any law of a pair of ends.

A law is called as ``law(start, end, targets, generator)`` with rows of both ends and of their encoded
targets. It returns the standard deviation of a bridge of unit length, a number or a tensor that broadcasts to
the rows, or a `Factor` for correlated noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype, draw_gamma
from elliptica.core.partners import classes_of, pairwise_distances

#: Fraction of a feature's standard deviation that `auto_sigma` takes. The paper's settings, in these units,
#: lie between 0.05 (normalised images) and about 0.25 (min-max scaled tables).
AUTO_FACTOR = 0.1


@dataclass(frozen=True)
class Factor:
    """Square root of a covariance ``V = root root^T``, as ``(feature, rank)`` or one for each row."""

    root: Tensor
    joint: bool = False  # whether inputs and targets have a covariance, which this part does not show

    def colour(self, z: Tensor, like: Tensor) -> Tensor:
        """Turn white noise ``(*time, row, rank)`` into noise of covariance ``V``."""
        noise = z @ self.root.t() if self.root.ndim == 2 else torch.einsum("rfk,...rk->...rf", self.root, z)
        return noise.view(*z.shape[:-2], *like.shape)

    def times(self, g: Tensor) -> Tensor:
        """Return ``V g`` along the features of ``(time, row, *feature)``."""
        flat, root = g.flatten(2), self.root
        if root.ndim == 2:
            return (flat @ root @ root.t()).view_as(g)
        return torch.einsum("rfk,rhk,trh->trf", root, root, flat).view_as(g)


#: Standard deviation of bridges of unit length, as a law returns it.
Deviation = float | Tensor | Factor

#: A law of the noise: from rows of both ends and their targets to the deviation.
Law = Callable[[Tensor, Tensor, tuple[Tensor, Tensor], torch.Generator | None], Deviation]

#: What ``sigma=`` accepts.
Sigma = float | Tensor | Law | Literal["green"]


@dataclass(frozen=True)
class Green:
    """The random variance that the PDE itself prescribes (docs: the exact bridge law).

    Brownian motion conditioned to hit a vanishing ball at distance ``r`` in ``n`` dimensions is a Brownian
    bridge of random variance ``V = r**2 / (2 * Gamma(n/2 - 1))``, about ``r**2 / n`` for large ``n``. Each
    path draws its own. It can hurt in distribution (docs: settings), and in 3 or 4 dimensions its mean is
    infinite, so expect far excursions.

    Attributes:
        scale: Factor on the standard deviation; 1 is the law itself, 0 the straight chord.
        dim: Dimension ``n`` of the law, at least 3 (in fewer, Brownian motion hits every ball). None means
            the number of features. A smaller, intrinsic dimension gives more noise.
    """

    scale: float = 1.0
    dim: float | None = None

    def __call__(
        self,
        start: Tensor,
        end: Tensor,
        targets: object = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw the standard deviation of the bridge of each pair, ``(rows, 1, ...)``."""
        dim = float(start[0].numel()) if self.dim is None else self.dim
        if dim < 3:
            raise ValueError(f"Green needs dim of 3 or more, but got {dim:g}. Use a number for sigma.")
        dtype = compute_dtype(start.dtype)
        r = torch.linalg.vector_norm((end.to(dtype) - start.to(dtype)).flatten(1), dim=1)
        gamma = draw_gamma(dim / 2 - 1, len(r), device=r.device, generator=generator)
        std = self.scale * r / (2 * gamma).sqrt()
        return std.to(dtype).view(-1, *[1] * (start.ndim - 1))


class Covariance:
    """Noise with the covariance of the data, which bridges then preserve (Eq. (5) with a full matrix).

    Mixing two independent rows loses covariance; noise of covariance ``2 s (1 - s) Sigma`` gives it back, so
    that mean and covariance of the points are those of the data at every time ``s``. Pass the targets as well
    for joint noise: then a linear least-squares fit on the points is that on the data. (Noise on the inputs
    alone would shrink its slope.)

    Args:
        x: Training inputs, from which the covariance is measured.
        y: Training targets: real ones for joint noise, labels with ``by_class``.
        by_class: Measure the covariance within each class. A bridge between two classes gets the mean of
            both.
        rank: Largest directions to keep, for images and other inputs with many features; None keeps all.
        scale: Factor on the standard deviation; 1 preserves the covariance.

    Example:
        >>> x, y = torch.randn(100, 5), torch.randn(100, 1)
        >>> sigma = Covariance(x, y)                    # Elliptic(model, nn.MSELoss(), sigma=sigma)
        >>> Covariance(x, rank=2).roots.shape
        torch.Size([1, 5, 2])
    """

    def __init__(
        self,
        x: Float[Tensor, " n *feature"],
        y: Tensor | None = None,
        *,
        by_class: bool = False,
        rank: int | None = None,
        scale: float = 1.0,
    ) -> None:
        checks.finite("x", x)
        rows = x.detach().flatten(1) if x.ndim > 1 else x.detach()[:, None]
        #: whether the noise of inputs and targets is drawn together
        self.joint = y is not None and not by_class
        if self.joint:
            assert y is not None
            if not y.is_floating_point():
                raise TypeError(f"y must be real for joint noise, but is {y.dtype}. Use by_class=True.")
            checks.finite("y", y)
            rows = torch.cat([rows, y.detach().reshape(len(rows), -1).to(rows.dtype)], 1)
        groups = [rows]
        if by_class:
            assert y is not None
            groups = [rows[y == label] for label in range(int(y.max()) + 1)]
        roots = [_root(group, rank) for group in groups]
        width = max(root.shape[1] for root in roots)
        #: square roots of the covariance of each class, or of all rows, ``(class, feature, rank)``
        self.roots = scale * torch.stack(
            [torch.nn.functional.pad(root, (0, width - root.shape[1])) for root in roots]
        )

    def __call__(
        self,
        start: Tensor,
        end: Tensor,
        targets: tuple[Tensor, Tensor],
        generator: torch.Generator | None = None,
    ) -> Factor:
        """Return the square root of the covariance of each bridge."""
        roots = self.roots.to(start.device, compute_dtype(start.dtype))
        if len(roots) == 1:
            return Factor(math.sqrt(2) * roots[0])
        # the covariance of (1 - s) a + s b lacks s (1 - s) of that of either class
        return Factor(torch.cat([roots[classes_of(y)] for y in targets], 2))


def _root(rows: Tensor, rank: int | None) -> Tensor:
    """Return the square root ``(feature, rank)`` of the (unbiased) covariance of rows.

    A partner is never the row itself, so the covariance that mixing removes is the unbiased one, exactly.
    """
    centred = (rows - rows.mean(0)).double()
    covariance = centred.t() @ centred / max(len(rows) - 1, 1)
    values, vectors = torch.linalg.eigh(covariance)  # in ascending order
    kept = len(values) if rank is None else min(rank, len(values))
    return (vectors[:, -kept:] * values[-kept:].clamp_min(0).sqrt()).to(rows.dtype)


def auto_sigma(x: Float[Tensor, " batch *feature"], factor: float = AUTO_FACTOR) -> Float[Tensor, "*feature"]:
    """Measure a diffusion coefficient per feature: ``factor`` times its standard deviation.

    Training then does not depend on the units of the columns. Pass all rows that you have, at least two.

    Example:
        >>> auto_sigma(torch.tensor([[0.0, 5.0], [2.0, 5.0]]), factor=0.5)
        tensor([0.7071, 0.0000])
    """
    checks.finite("x", x)
    if len(x) < 2:
        raise ValueError("auto_sigma needs at least two rows of x to measure a deviation.")
    return factor * x.detach().to(compute_dtype(x.dtype)).std(dim=0).to(x.dtype)


def intrinsic_dimension(x: Float[Tensor, " n *feature"], *, discard: float = 0.1) -> float:
    """Estimate the intrinsic dimension of data from nearest neighbours (TwoNN), e.g. for ``Green(dim=...)``.

    The ratio of the distances to the second and to the first neighbour has a Pareto law whose exponent is
    the dimension, wherever the density varies slowly (Facco et al. 2017). The share ``discard`` of the
    largest ratios is censored, against outliers. The result is too low for few points in many dimensions.

    Example:
        >>> x = torch.rand(500, 2, generator=torch.Generator().manual_seed(0))
        >>> flat = torch.cat([x, x @ torch.ones(2, 8)], dim=1)        # a plane in ten dimensions
        >>> round(intrinsic_dimension(flat))
        2
    """
    checks.finite("x", x)
    points = torch.unique(x.detach().reshape(len(x), -1), dim=0)
    parts = points.split(max(1, 2**23 // len(points)))
    # the nearest point is the point itself
    near = torch.cat([pairwise_distances(part, points).topk(3, 1, largest=False).values for part in parts])
    ordered = (near[:, 2] / near[:, 1]).log().sort().values
    kept = max(int(len(points) * (1 - discard)), 1)
    # censoring: the discarded ratios are known only to exceed the last one kept
    exposure = ordered[:kept].sum() + (len(points) - kept) * ordered[kept - 1]
    return kept / float(exposure)


def check_sigma(name: str, sigma: Sigma) -> float | Tensor | Law:
    """Return a number as a float, and a law for its name; raise for noise that is negative or not finite."""
    if isinstance(sigma, str):
        checks.choice(name, sigma, ("green",))
        return Green()
    if callable(sigma):
        return sigma
    checks.nonnegative(name, sigma)
    if isinstance(sigma, Tensor) and sigma.ndim:
        if sigma.requires_grad:
            raise ValueError(f"{name} requires a gradient, but less noise always lowers the loss. Detach it.")
        return sigma
    return float(sigma)


def deviation(
    sigma: float | Tensor | Law,
    start: Tensor,
    end: Tensor,
    targets: tuple[Tensor, Tensor],
    strength: float | int = 1.0,
    copies: int = 1,
    generator: torch.Generator | None = None,
) -> Deviation:
    """Return the standard deviation of bridges of unit length, for rows of both ends.

    If the rows hold the same pairs ``copies`` times, the copies share the random variance of their pair.
    """
    if isinstance(sigma, float):
        return sigma * strength
    if isinstance(sigma, Tensor):
        shape = start.shape[1:]
        if torch.broadcast_shapes(sigma.shape, shape) != shape:
            raise ValueError(f"sigma has shape {tuple(sigma.shape)}, one sample {tuple(shape)}. Match them.")
        return sigma.to(start.device, compute_dtype(start.dtype)) * strength
    own = slice(0, len(start) // copies)
    std = sigma(start[own], end[own], (targets[0][own], targets[1][own]), generator)
    if isinstance(std, Factor):
        root = std.root * strength
        return Factor(root.repeat(copies, 1, 1) if copies > 1 and root.ndim == 3 else root)
    if isinstance(std, Tensor) and std.ndim not in (0, start.ndim):
        raise ValueError(f"sigma must return a number or shape (rows, ...), but returned {tuple(std.shape)}.")
    if copies > 1 and isinstance(std, Tensor) and std.ndim == start.ndim and len(std) > 1:
        std = std.repeat(copies, *[1] * (std.ndim - 1))
    return std * strength
