"""Choose where each bridge ends: the law P(Pi) of partners (paper: section 5.1).

A pairing is an object that is called as ``pairing(x, y, n_bridges, generator)`` with a batch of inputs and
encoded targets. It returns the row of the partner for each bridge, ``(batch, n_bridges)``. A point without
another eligible one is its own partner: the bridge is then a loop, i.e. noise around the point.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype, draw_permutation, draw_uniform

Among = Literal["all", "same_class"]

#: A law of partners: from inputs, encoded targets and the number of bridges to rows ``(batch, bridge)``.
Pairing = Callable[[Tensor, Tensor, int, torch.Generator | None], Tensor]

#: Points nearer than this fraction of the median distance count as duplicates.
DISTANCE_FLOOR = 0.01

#: Upper bound on the rounded distance of exact copies in `pairwise_distances`, over the largest distance.
_ROUNDING = 2**-22

#: Rows of a batch whose distances are used for that median.
_MEDIAN_ROWS = 8

#: Largest squared length over the squared distance of duplicates for which float32 is accurate enough: there
#: that distance is off by about a percent, and the error falls with the square of the distance.
_LONGEST = 4e4


@dataclass(frozen=True)
class Permutation:
    """Random partners: a random cycle through the batch (or each class) per bridge; each point ends one."""

    among: Among = "all"

    def __call__(self, x: Tensor, y: Tensor, n_bridges: int, generator: torch.Generator | None) -> Tensor:
        """Return the row that follows each row in a random order."""
        if self.among == "same_class":
            classes = classes_of(y)
            return torch.stack([_cycle_within(classes, generator) for _ in range(n_bridges)], 1)
        orders = [draw_permutation(len(y), device=y.device, generator=generator) for _ in range(n_bridges)]
        return torch.stack([next_in_cycle(order) for order in orders], 1)


def next_in_cycle(order: Tensor) -> Tensor:
    """Return the row that follows each row in ``order``; the first follows the last."""
    following = order.index_select(0, _next_places(len(order), order.device))
    return torch.empty_like(order).scatter_(0, order, following)


@functools.lru_cache(maxsize=128)
def _next_places(n: int, device: torch.device) -> Tensor:
    """Return 1, 2, ..., n - 1, 0."""
    with torch.inference_mode(False):
        return torch.arange(1, n + 1, device=device) % n


@dataclass(frozen=True)
class InverseDistance:
    """Draw partners with probability proportional to ``1 / distance**power`` (paper: section 5.1).

    ``power=0`` is uniform, 1 is the paper's rule, and ``d - 2`` is the first-hit law of small balls in ``d``
    dimensions. Points nearer than a hundredth of the median distance count as duplicates; a duplicate is as
    likely as the nearest distinct point.
    """

    power: float = 1.0
    among: Among = "all"

    def __call__(self, x: Tensor, y: Tensor, n_bridges: int, generator: torch.Generator | None) -> Tensor:
        """Draw partners of each row independently."""
        weights = self.weigh(x, classes_of(y) if self.among == "same_class" else None)
        return draw_by_weight(weights, n_bridges, generator)

    def weigh(self, x: Tensor, classes: Tensor | None = None) -> Tensor:
        """Weight all partners of all rows; a row without an eligible partner is its own."""
        squares, floor = eligible_squares(x, classes)
        weights = partner_weights(squares.rsqrt_(), self.power, floor).to(compute_dtype(x.dtype))
        if len(x) == 1 or classes is not None:
            weights.diagonal().copy_(weights.sum(1) == 0)
        return weights


@dataclass(frozen=True)
class Nearest:
    """Let bridge ``j`` end at the ``j``-th nearest point."""

    among: Among = "all"

    def __call__(self, x: Tensor, y: Tensor, n_bridges: int, generator: torch.Generator | None) -> Tensor:
        """Return the nearest rows."""
        distances, _ = eligible_squares(x.double(), classes_of(y) if self.among == "same_class" else None)
        order = distances.argsort(dim=1, stable=True)
        count = torch.isfinite(distances).sum(1, keepdim=True)
        rank = torch.arange(n_bridges, device=x.device)[None] % count.clamp_min(1)
        own = torch.arange(len(x), device=x.device)[:, None]
        return torch.where(count > 0, order.gather(1, rank), own)


@dataclass(frozen=True)
class LabelKernel:
    """Draw partners of similar target, by a Gaussian kernel on the real targets (C-Mixup).

    Attributes:
        bandwidth: Standard deviation of the kernel, in units of the real targets. Start with a tenth of their
            standard deviation.
    """

    bandwidth: float

    def __call__(self, x: Tensor, y: Tensor, n_bridges: int, generator: torch.Generator | None) -> Tensor:
        """Draw partners of each row independently."""
        checks.positive("bandwidth", self.bandwidth)
        y = y.detach().reshape(len(y), -1).double()
        if len(y) == 1:
            return torch.zeros(1, n_bridges, dtype=torch.long, device=y.device)
        if len(y) > 128 and y.shape[1] == 1:
            return torch.stack([self._draw_sorted(y[:, 0], generator) for _ in range(n_bridges)], 1)
        logits = self._logits(y, y).fill_diagonal_(-math.inf)
        return draw_from(logits.softmax(1).cumsum(1), n_bridges, generator)

    def _logits(self, rows: Tensor, y: Tensor) -> Tensor:
        """Return the logarithm of the kernel between targets of some rows and of all."""
        squares = (rows - y.t()).square_() if y.shape[1] == 1 else target_distances(rows, y).square_()
        return squares.mul_(-0.5 / self.bandwidth**2)

    def _draw_sorted(self, y: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw the same law for one target by rejection among its neighbours in order."""
        ordered, order = y.sort()
        window = 7 * self.bandwidth  # beyond it the kernel is below 3e-11
        low = torch.searchsorted(ordered, ordered - window)
        size = torch.searchsorted(ordered, ordered + window, right=True) - low
        place = torch.arange(len(y), device=y.device)[:, None]
        # float64, because a uniform of float32 times the size of a window can be rounded up to the size
        u, v = draw_uniform((2, len(y), _PROPOSALS), device=y.device, generator=generator).double()
        proposal = u.mul_(size[:, None]).long().add_(low[:, None])
        far = ordered[proposal].sub_(ordered[:, None]).div_(self.bandwidth)
        accepted = (v < far.square_().mul_(-0.5).exp_()) & (proposal != place)
        partner = proposal.gather(1, accepted.byte().argmax(1, keepdim=True))[:, 0]  # the first accepted
        left = (~accepted.any(1)).nonzero()[:, 0]
        if len(left):  # few rows, such as those far from all others: draw from all weights
            logits = self._logits(ordered[left, None], ordered[:, None]).scatter_(1, left[:, None], -math.inf)
            partner[left] = draw_from(logits.softmax(1).cumsum(1), 1, generator)[:, 0]
        return torch.empty_like(order).scatter_(0, order, order[partner])


#: Proposals of the rejection above; about one in six is accepted.
_PROPOSALS = 24


def make_pairing(pairing: str | Pairing) -> Pairing:
    """Return the pairing of a short name; other callables are pairings already."""
    if not isinstance(pairing, str):
        return pairing
    if pairing == "label_kernel":
        raise ValueError("pairing needs a bandwidth in units of the targets: LabelKernel(bandwidth=...).")
    checks.choice("pairing", pairing, tuple(_NAMED))
    return _NAMED[pairing]


_NAMED: dict[str, Pairing] = {
    "permutation": Permutation(),
    "inverse_distance": InverseDistance(),
    "nearest": Nearest(),
}


def _cycle_within(labels: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw a random cycle through each class; the only member of a class is its own partner."""
    order = draw_permutation(len(labels), device=labels.device, generator=generator)
    order = order[labels[order].argsort(stable=True)]
    grouped = labels[order]
    first = torch.ones_like(grouped, dtype=torch.bool)
    first[1:] = grouped[1:] != grouped[:-1]
    position = torch.arange(len(labels), device=labels.device)
    start_of_class = torch.where(first, position, 0).cummax(0).values
    following = torch.where(first.roll(-1), start_of_class, position + 1)
    partners = torch.empty_like(order)
    partners[order] = order[following]
    return partners


def classes_of(y: Tensor) -> Tensor:
    """Return one class per row: labels themselves, or the largest of one-hot targets ``(batch, classes)``."""
    labels = y.argmax(1) if y.is_floating_point() and y.ndim == 2 and y.shape[1] > 1 else y
    if labels.ndim != 1 or labels.is_floating_point():
        raise ValueError(f"y must hold one class per row (one-hot or a label), not shape {tuple(y.shape)}.")
    return labels


def pairwise_distances(
    x: Float[Tensor, " n *feature"], to: Float[Tensor, " m *feature"] | None = None
) -> Float[Tensor, "n m"]:
    """Return Euclidean distances between flattened rows, by one matrix product in float64.

    The matrix form loses digits for clusters and outliers; float32 would give wrong neighbours there.
    """
    distances = _squares(x, to, torch.float64)[0].sqrt_()  # before the cast: squares may not fit
    dtype = compute_dtype(x.dtype)
    return distances.to(dtype).clamp_max_(torch.finfo(dtype).max)  # infinity means "not eligible"


def _squares(x: Tensor, to: Tensor | None, precision: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return squared distances in ``precision``, and the squared lengths of ``to`` about its mean."""
    rows = x.detach().reshape(len(x), -1).to(precision)
    others = rows if to is None else to.detach().reshape(len(to), -1).to(precision)
    centre = others.mean(0)  # centring shortens the rows, so |a|^2 + |b|^2 - 2 a.b cancels fewer digits
    others = others - centre
    rows = others if to is None else rows - centre
    length = others.square().sum(1, keepdim=True)
    own = length if to is None else rows.square().sum(1, keepdim=True)
    # one product of (-2 a, |a|^2, 1) and (b, 1, |b|^2), because every pass over n x m numbers counts
    left = torch.cat([-2 * rows, own, torch.ones_like(own)], 1)
    right = torch.cat([others, torch.ones_like(length), length], 1)
    return (left @ right.t()).clamp_min_(0), length


def distance_floor(distances: Float[Tensor, "m n"]) -> float:
    """Return the distance below which two points count as duplicates: a fraction of the median distance.

    ``distances`` are those of all rows, or of some, to all ``n``. If most pairs are copies (nearer than that
    fraction of the distance to the farthest tenth of the rows), the median is taken over the other pairs.
    Exact copies never count, however many there are.
    """
    return _floor_and_median(distances)[0]


def _floor_and_median(distances: Tensor) -> tuple[float, float]:
    """Return the floor of `distance_floor`, and the median distance."""
    n = distances.shape[1]
    tiny = torch.finfo(distances.dtype).tiny
    if n == 1:
        return tiny, math.inf
    some = distances[:: max(1, len(distances) // _MEDIAN_ROWS)]
    m = len(some)
    half = some.flatten().kthvalue(m + (m * (n - 1) + 1) // 2).values  # the smallest of a row is to itself
    # the ninth decile, not the maximum, so that one outlier does not matter
    wide = some.kthvalue(1 + max(1, int(0.9 * (n - 1))), dim=1).values.median()
    half_way, far, largest = torch.stack([half, wide, some.amax()]).tolist()
    copies = max(DISTANCE_FLOOR * far, _ROUNDING * largest)
    median = half_way
    if median <= copies:
        apart = some[some > copies]
        median = float(apart.median()) if len(apart) else 0.0
    return max(DISTANCE_FLOOR * median, tiny), half_way


def partner_weights(
    closeness: Float[Tensor, "*group n m"], power: float, floor: float
) -> Float[Tensor, "*group n m"]:
    """Weight partners by ``closeness**power``; a duplicate counts as near as the nearest distinct point.

    Otherwise copies (nearer than ``floor``, see `distance_floor`) would take all the mass, and a bridge to a
    copy is only noise around the point. ``closeness`` is one over the distances, zero where a partner is not
    eligible; it is overwritten.

    Returns:
        Weights up to a factor of each row, which keeps powers from overflowing. In a row without a distinct
        partner all duplicates have the same weight; in a row without any partner all weights are zero.
    """
    checks.nonnegative("power", power)
    if power < 1e-30:  # 0**0 = 1 would make every row eligible
        return (closeness > 0).to(closeness.dtype)
    if power == 1 and float(closeness.max()) <= 1 / floor:
        return closeness  # no duplicates: spare passes over n x m numbers
    nearest = closeness.amax(-1, keepdim=True)
    if float(nearest.max()) > 1 / floor:  # there are duplicates: the nearest distinct point counts
        nearest = closeness.masked_fill(closeness > 1 / floor, 0.0).amax(-1, keepdim=True)
    # the clamps cap duplicates at the weight of the nearest distinct point
    scale = nearest.clamp_min_(torch.finfo(nearest.dtype).tiny).reciprocal_()
    weights = closeness.mul_(scale).clamp_max_(1.0)
    return weights if power == 1 else weights.pow_(power)


def eligible_squares(x: Tensor, classes: Tensor | None = None) -> tuple[Tensor, float]:
    """Return squared distances, infinite where not eligible, in float32 if that will do, and the floor."""
    precision = torch.float64 if x.dtype == torch.float64 else torch.float32
    step = max(1, len(x) // _MEDIAN_ROWS)
    with torch.autocast(x.device.type, enabled=False):
        squares, length = _squares(x, None, precision)
        longest = float(length.max())
        floor, median = _floor_and_median(squares[::step].sqrt())
        is_enough = longest < _LONGEST * floor**2 and longest < 1e5 * median**2
        if precision == torch.float32 and not is_enough:
            squares, _ = _squares(x, None, torch.float64)
            floor = distance_floor(squares[::step].sqrt())
    squares.fill_diagonal_(float("inf"))
    if classes is not None:
        exclude_classes(squares, classes, classes)
    return squares, floor


def exclude_classes(
    distances: Float[Tensor, "n m"], labels: Int[Tensor, " n"], others: Int[Tensor, " m"]
) -> None:
    """Set distances to infinity, in place, between rows of different classes."""
    distances.masked_fill_(labels[:, None] != others[None], float("inf"))


def target_distances(y: Float[Tensor, " n *target"], to: Float[Tensor, " m *target"]) -> Float[Tensor, "n m"]:
    """Return distances between targets in float64, exactly zero between equal targets."""
    rows, others = (t.detach().reshape(len(t), -1).double() for t in (y, to))
    return torch.cdist(rows, others, compute_mode="donot_use_mm_for_euclid_dist")


def kernel_weights(distances: Float[Tensor, "n m"], bandwidth: float) -> Float[Tensor, "n m"]:
    """Weight partners by ``exp(-distance**2 / (2 bandwidth**2))``, relative to the nearest (C-Mixup's law).

    Distances are infinite where a partner is not eligible; a row without any gets weights of zero.
    """
    squares = (distances / bandwidth).square_()  # subtracting the nearest keeps exp from underflowing
    nearest = squares.amin(1, keepdim=True).clamp_max_(torch.finfo(squares.dtype).max)
    return ((nearest - squares) / 2).exp_()


def draw_from(
    cumulative: Float[Tensor, "n m"], n_draws: int, generator: torch.Generator | None
) -> Int[Tensor, "n draw"]:
    """Draw from each row's cumulative weights by inverse transform."""
    u = draw_uniform((len(cumulative), n_draws), device=cumulative.device, generator=generator)
    # u stays strictly below the last value and is searched from the right, so that an entry of zero
    # probability (such as the row itself) is never picked, not even by rounding.
    u = u.to(cumulative.dtype).mul_(cumulative[:, -1:] * (1 - 2**-22))
    return torch.searchsorted(cumulative, u, right=True)


def draw_by_weight(
    weights: Float[Tensor, "n m"], n_draws: int, generator: torch.Generator | None
) -> Int[Tensor, "n draw"]:
    """Draw from each row's weights: first a block of entries, then one of the block.

    The same law as `draw_from`, without a cumulative sum over the whole matrix.
    """
    n, m = weights.shape
    size = max(1, math.isqrt(m))
    if m < 64:
        return draw_from(weights.cumsum(1), n_draws, generator)
    blocks = (nn.functional.pad(weights, (0, -m % size)) if m % size else weights).view(n, -1, size)
    block = draw_from(blocks.sum(2).cumsum(1), n_draws, generator)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, size)).cumsum(2)
    return block * size + draw_from(inside.flatten(0, 1), 1, generator).view(n, n_draws)


def partner_probabilities(
    x: Float[Tensor, " batch *feature"],
    *,
    power: float = 1.0,
    labels: Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, "batch batch"]:
    """Return the probability of each partner under `InverseDistance` (paper: Algorithm 1).

    With ``labels`` partners are of the same class.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [3.0]])
        >>> partner_probabilities(x)[0]
        tensor([0.0000, 0.7500, 0.2500])
    """
    checks.finite("x", x)
    weights = InverseDistance(power).weigh(x, labels)
    return weights / weights.sum(1, keepdim=True)


def sample_partners(
    x: Shaped[Tensor, " batch *feature"],
    y: Shaped[Tensor, " batch *target"] | None = None,
    *,
    n_bridges: int = 1,
    pairing: str | Pairing = "permutation",
    generator: torch.Generator | None = None,
) -> Int[Tensor, "batch bridge"]:
    """Draw an end point for each bridge of each point from P(Pi) (paper: section 5.1, Algorithm 1).

    Args:
        x: Data on which distances are measured: inputs, or features of them.
        y: Targets, for pairings that use them: labels for ``among="same_class"``, real ones for
            `LabelKernel`.
        n_bridges: Bridges per point, each with its own partner.
        pairing: ``"permutation"``, ``"inverse_distance"``, ``"nearest"``, or a pairing object: `Permutation`,
            `InverseDistance`, `Nearest`, `LabelKernel`, or your own.
        generator: Source of randomness. None means torch's default generator.

    Returns:
        Row numbers. A batch of one is its own partner.

    Example:
        >>> sample_partners(torch.tensor([[0.0], [1.0], [5.0]]), pairing="nearest").flatten()
        tensor([1, 0, 1])
    """
    checks.finite("x", x)
    return make_pairing(pairing)(x, x if y is None else y, n_bridges, generator)


_CHUNK_BYTES = 64 * 2**20
ROWS_FOR_MEDIAN = 1000


class PartnerTable:
    """Exact law of partners over a data set; drawing a batch costs one look-up per row.

    The table takes ``4 * n**2`` bytes (1.6 GB for 20 000 rows). Above ``max_bytes`` nothing is stored, and
    the rows of a batch are computed when they are drawn, in ``O(batch * n)`` time. Use `PartnerIndex` for
    more rows, and pair within the batch (`sample_partners`) if batches are augmented or streamed.

    Example:
        >>> x, y = torch.randn(100, 3), torch.randn(100, 1)
        >>> table = PartnerTable(x)
        >>> index = torch.arange(8)
        >>> partner = table.sample(index)                     # (8, 1) rows of the data set
        >>> end = (x[partner], y[partner])                    # objective(x[index], y[index], end=end)

    Args:
        x: The data (or features of them) on which distances are measured.
        power: Exponent of the inverse distance; ``float("inf")`` means the nearest point.
        labels: Classes of the rows, if partners must be of the same class.
        max_bytes: Largest table to store. Set it to 0 to always compute rows when they are drawn.
    """

    def __init__(
        self,
        x: Float[Tensor, " n *feature"],
        *,
        power: float = 1.0,
        labels: Int[Tensor, " n"] | None = None,
        max_bytes: int = 4 * 2**30,
    ) -> None:
        checks.finite("x", x)
        n = len(x)
        self._nearest_only = power == float("inf")
        self._x, self._power, self._labels = x.detach(), power, labels
        self._floor = distance_floor(pairwise_distances(x[:: max(1, n // ROWS_FOR_MEDIAN)]))
        self._table: Tensor | None = None
        if (8 * n if self._nearest_only else 4 * n * n) <= max_bytes:
            shape, dtype = ((n, 1), torch.long) if self._nearest_only else ((n, n), torch.float32)
            self._table = torch.empty(shape, dtype=dtype, device=x.device)
            for rows in torch.arange(n, device=x.device).split(self._at_once()):
                self._table[rows[0] : rows[-1] + 1] = self._rows(rows)

    def _at_once(self) -> int:
        """Return how many rows to compute at a time."""
        return max(1, _CHUNK_BYTES // (8 * len(self._x)))

    def _rows(self, index: Tensor) -> Tensor:
        """Compute some rows: the nearest partner, or the cumulative weights of all."""
        distances = pairwise_distances(self._x[index], self._x)
        own = index[:, None]
        distances.scatter_(1, own, float("inf"))
        if self._labels is not None:
            exclude_classes(distances, self._labels[index], self._labels)
        if self._nearest_only:
            distance, nearest = distances.min(1, keepdim=True)
            return torch.where(torch.isfinite(distance), nearest, own)
        weights = partner_weights(distances.reciprocal_(), self._power, self._floor)
        alone = weights.amax(1, keepdim=True) == 0  # no other row is eligible: the bridge is a loop
        weights.scatter_add_(1, own, alone.to(weights.dtype))
        # float64, so that rounding errors do not add up along a long row
        return weights.cumsum(1, dtype=torch.float64).float()

    def __len__(self) -> int:
        return len(self._x)

    def sample(
        self,
        index: Int[Tensor, " batch"],
        *,
        n_bridges: int = 1,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "batch bridge"]:
        """Draw partners for the rows ``index`` of the data set, as row numbers of the data set."""
        index = index.to(self._x.device)
        if self._table is not None:
            return self._draw(self._table[index], n_bridges, generator)
        parts = index.split(self._at_once())
        return torch.cat([self._draw(self._rows(some), n_bridges, generator) for some in parts])

    def _draw(self, rows: Tensor, n_bridges: int, generator: torch.Generator | None) -> Tensor:
        return rows.expand(-1, n_bridges) if self._nearest_only else draw_from(rows, n_bridges, generator)
