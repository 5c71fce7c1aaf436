"""Importance weighting: the variants of Eq. (4), Algorithm 1 and appendix C.

The paper's line ``l = l + xi * grad l`` adds a vector to a number. Each variant below interprets it: an
object that turns the losses at points, and their slopes, into new losses (compared in ``docs/weighting.md``).

With drift ``mu`` per unit of relative time, the logarithm of ``dp/dq`` of a path is ``sum mu . dZ / V - 1/2
sum |mu|**2 ds / V`` with ``V = sigma**2``. The paper's drift, the loss gradient, enters as ``mu = V * xi *
g``, which keeps weights finite as ``sigma`` goes to zero.

On a bridge that logarithm is known only up to a constant for each pair of ends, so weights are compared
between bridges of one pair, never between pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.core.bridge import Paths
from elliptica.core.inputs import LossFn
from elliptica.core.losses import GatherRanks, PerSampleLoss, Slope, SlopesOf, evaluate
from elliptica.core.noise import Factor

#: Drift of the diffusion: ``drift(x, y)`` returns the drift of ``x``, or of ``x`` and ``y``.
Drift = Callable[[Tensor, Tensor], Tensor | tuple[Tensor, Tensor]]


class Weighting:
    """Base of importance weightings; a variant of your own overrides `__call__`.

    Attributes:
        xi: Strength of the weighting; 0 is no weighting.
        second_order: Whether the result is differentiated through the slopes.
        needs_path: Whether it needs increments along a path.
        within_pairs: Whether a path is compared with the other bridges between the same two ends.
        slopes_of: What slopes are taken of: the ``"input"``, ``"both"`` input and target, or ``"none"``.
        gather_ranks: Joins numbers of all processes that share a batch, see
            `elliptica.distributed.over_global_batch`.
    """

    second_order = False
    needs_path = False
    within_pairs = False
    slopes_of: SlopesOf = "input"
    gather_ranks: GatherRanks | None = None

    def __init__(self, xi: float = 1.0) -> None:
        checks.nonnegative("xi", xi)
        self.xi = xi

    def __call__(
        self, losses: Float[Tensor, "time rows"], slopes: Sequence[Slope], paths: Paths
    ) -> Float[Tensor, "time rows"]:
        """Return new losses for the losses at the points of ``paths``."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), self.xi))

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in vars(self).items() if name in ("xi", "drift")]
        return f"{type(self).__name__}({', '.join(shown)})"


class GradientNorm(Weighting):
    """Add ``xi`` times the norm of the slope to each loss: the words of Algorithm 1, taken literally."""

    second_order = True

    def __call__(self, losses: Tensor, slopes: Sequence[Slope], paths: Paths) -> Tensor:
        """Return ``l + xi |g|``."""
        return losses + self.xi * slope_norms(slopes)


class GradientSoftmax(Weighting):
    """Weight losses by the softmax of their standardised slope norms over the batch.

    The weights have mean one and carry no gradient. Points that the quadrature skips do not count.
    """

    def __call__(self, losses: Tensor, slopes: Sequence[Slope], paths: Paths) -> Tensor:
        """Return ``w l`` with ``w`` proportional to ``exp(xi (|g| - mean) / std)``."""
        norm = slope_norms(slopes).detach()
        norm = norm.to(torch.promote_types(norm.dtype, torch.float32))  # bfloat16 cannot count to 257
        share = torch.ones_like(norm)
        if paths.time_weights is not None:
            share = share * paths.time_weights.to(norm.dtype)
        count = self._sum((share > 0).sum().to(norm.dtype))
        share = share / self._sum(share.sum())
        mean = self._sum((share * norm).sum())
        variance = self._sum((share * (norm - mean).square()).sum()) * count / (count - 1).clamp_min(1)
        score = self.xi * (norm - mean) / variance.sqrt().clamp_min(torch.finfo(norm.dtype).tiny)
        largest = score.masked_fill(share == 0, -torch.inf).max()
        if self.gather_ranks is not None:
            largest = self.gather_ranks(largest[None]).max()
        weights = (score - largest).clamp_max(0).exp()  # cannot overflow, not even where points do not count
        return losses * (weights / self._sum((share * weights).sum())).to(losses.dtype)

    def _sum(self, value: Tensor) -> Tensor:
        """Sum a number over the processes that share the batch."""
        return value if self.gather_ranks is None else self.gather_ranks(value[None]).sum()


class Girsanov(Weighting):
    """Subtract the logarithm of dp/dq of its path from each loss: the Jensen form of Eq. (4) (appendix C.1).

    On a coarse grid the chord's curvature dominates the sum; use ``n_times`` of 20 or more.

    Args:
        xi: Strength of the drift.
        drift: The loss gradient with respect to the ``"input"``, or to ``"both"`` input and target (appendix
            C.2; needs ``sigma_y > 0``).
    """

    second_order = True
    needs_path = True

    def __init__(self, xi: float = 1.0, drift: Literal["input", "both"] = "input") -> None:
        super().__init__(xi)
        checks.choice("drift", drift, ("input", "both"))
        self.drift = self.slopes_of = drift

    def __call__(self, losses: Tensor, slopes: Sequence[Slope], paths: Paths) -> Tensor:
        """Return ``l - log dp/dq``."""
        return losses - path_log_weights(slopes, paths, self.xi)


class Multiplicative(Weighting):
    """Multiply losses by dp/dq of their path, self-normalised over the bridges of a pair (Eq. (4)).

    The weights have mean one within a pair and carry no gradient. Needs ``n_bridges`` of 2 or more.

    Args:
        xi: Strength of the drift.
        drift: ``"input"`` or ``"both"`` as in `Girsanov`; or any function or network ``drift(x, y)`` that
            returns ``mu_x`` or ``(mu_x, mu_y)`` per unit of relative time. It is evaluated as it is: put a
            network in evaluation mode, and move it to the device, yourself.
    """

    needs_path = True
    within_pairs = True

    def __init__(self, xi: float = 1.0, drift: Literal["input", "both"] | Drift = "input") -> None:
        super().__init__(xi)
        if isinstance(drift, str):
            checks.choice("drift", drift, ("input", "both"))
        self.drift = drift
        self.slopes_of = drift if isinstance(drift, str) else "none"

    def __call__(self, losses: Tensor, slopes: Sequence[Slope], paths: Paths) -> Tensor:
        """Return ``w l`` with ``w`` the softmax of the log-weights of a pair's bridges."""
        n_bridges = paths.n_bridges
        _check_pairs(paths)
        if not isinstance(self.drift, str):
            with torch.no_grad():
                slopes = drift_slopes(self.drift, paths)
        logs = path_log_weights(slopes, paths, self.xi).detach().unflatten(0, (n_bridges, -1))
        # the softmax cancels the constant of each pair, which is unknown
        return losses * (logs.softmax(0) * n_bridges).flatten().to(losses.dtype)


_NAMED: dict[str, type[Weighting]] = {
    "gradient_norm": GradientNorm,
    "gradient_softmax": GradientSoftmax,
    "girsanov": Girsanov,
    "multiplicative": Multiplicative,
}


def make_weighting(weighting: str | Weighting | None) -> Weighting | None:
    """Return the weighting of a short name with its default strength; objects are returned as they are."""
    if isinstance(weighting, str):
        checks.choice("weighting", weighting, tuple(_NAMED))
        return _NAMED[weighting]()
    return None if weighting is None or weighting.xi == 0 else weighting


def _features(z: Tensor) -> Tensor:
    """Flatten the features of ``(time, rows, *feature)`` into one axis."""
    return z.flatten(2) if z.ndim > 2 else z.unsqueeze(2)


def slope_norms(slopes: Sequence[Slope]) -> Float[Tensor, "time rows"]:
    """Return the norm of the slope at each point, over all inputs."""
    return torch.linalg.vector_norm(torch.cat([_features(slope.g) for slope in slopes], 2), dim=2)


def path_log_weights(slopes: Sequence[Slope], paths: Paths, xi: float) -> Float[Tensor, " rows"]:
    """Return the logarithm of dp/dq of each path with drift ``mu = V xi g`` (paper: appendix C.1).

    It is ``sum_i xi g_i . dZ_i - 1/2 xi**2 g_i . V g_i ds_i``, with increments from the left point (Ito).
    """
    if paths.n_times < 2:
        raise ValueError('paths must be whole paths, sampling="path", but hold single points.')
    ds = paths.by_time(paths.times).diff(dim=0)
    total = torch.zeros_like(ds)
    for slope in slopes:
        g = slope.g[:-1]
        total = total + xi * _features(g * slope.z.diff(dim=0)).sum(2)
        total = total - 0.5 * xi**2 * _features(g * slope.variance_times(slope.g)[:-1]).sum(2) * ds
    return total.sum(0)


def drift_slopes(drift: Drift, paths: Paths) -> list[Slope]:
    """Evaluate a drift along paths, as slopes ``g = mu / V``."""
    ((x, std),) = ((paths.points[name], std) for name, std in paths.deviation.items())
    y = paths.free_targets
    mu = drift(x, y)
    slopes = []
    for z, part, spread in zip(
        (x, y), mu if isinstance(mu, tuple) else (mu,), (std, paths.deviation_y), strict=False
    ):
        if isinstance(spread, Factor) or part.shape != z.shape:
            raise ValueError(
                f"drift must return shape {tuple(z.shape)}, not {tuple(part.shape)}, and sigma must not be a "
                "covariance."
            )
        if not bool((torch.as_tensor(spread) > 0).all()):
            raise ValueError("drift acts on inputs or targets that do not diffuse: use sigma, sigma_y > 0.")
        slopes.append(Slope(paths.by_time(z), paths.by_time(part) / spread**2, spread))
    return slopes


def _check_pairs(paths: Paths) -> None:
    """Raise unless each row has several bridges between the same two ends."""
    ends = [paths.by_time(rows)[[0, -1]] for rows in paths.points.values()]
    pairs = [end.detach().unflatten(1, (paths.n_bridges, -1)) for end in ends]
    if paths.n_bridges < 2 or not all(bool((pair == pair[:, :1]).all()) for pair in pairs):
        raise ValueError(
            "Multiplicative compares the bridges between the same two ends: draw n_bridges of 2 or more, "
            "with the same partners for a row."
        )


def log_weights(
    model: nn.Module,
    loss_fn: LossFn,
    paths: Paths,
    *,
    xi: float = 1.0,
    drift: Literal["input", "both"] | Drift = "input",
) -> Float[Tensor, "batch bridge"]:
    """Return the logarithm of dp/dq of each path: the exponential martingale (paper: Eq. (4), appendix C.1).

    By default the drift is ``xi`` times the gradient of the loss (appendix C.2), scaled by ``sigma**2``: with
    respect to the ``"input"``, or to ``"both"`` input and target (needs ``sigma_y > 0``). A callable gives
    the drift ``xi * drift(x, y)`` per unit of relative time. The result is differentiable.

    The paths must come from ``sampling="path"``, with a fine grid. On bridges the values are known up to a
    constant for each pair of ends: compare only those of one pair.
    """
    if isinstance(drift, str):
        _, slopes = evaluate(model, PerSampleLoss(loss_fn), paths, slopes_of=drift, second_order=True)
    else:
        slopes = drift_slopes(drift, paths)
    return path_log_weights(slopes, paths, xi).unflatten(0, (paths.n_bridges, -1)).t()
