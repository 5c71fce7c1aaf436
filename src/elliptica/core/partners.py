"""Which point a bridge ends at: the law P(Pi) of partners within a batch (paper: section 5.1).

Everything works on indices: a partner is the row number of another point of the batch. A point is
never its own partner, unless nothing else is eligible (a batch of one, or a restriction to a class
of which it is the only member): then the bridge is a loop, i.e. noise around the point.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.random import check_generator, compute_dtype, draw_permutation, draw_uniform

Pairing = Literal["permutation", "inverse_distance", "nearest"]
Among = Literal["all", "same_class", "other_class"]

PAIRINGS: tuple[Pairing, ...] = ("permutation", "inverse_distance", "nearest")
AMONG: tuple[Among, ...] = ("all", "same_class", "other_class")

#: Distances below this fraction of the median are treated as equal to it, so that exact
#: duplicates do not absorb all probability.
DISTANCE_FLOOR = 1e-3


def pairwise_distances(
    x: Float[Tensor, " n *feature"], to: Float[Tensor, " m *feature"] | None = None
) -> Float[Tensor, "n m"]:
    """Euclidean distances between flattened rows, computed in float64.

    The fast matrix form of ``cdist`` loses digits where distances are small against the spread of the
    data (clusters, outliers); in float32 it then finds wrong neighbours.
    """
    double = torch.float32 if x.device.type == "mps" else torch.float64
    rows = x.detach().reshape(len(x), -1).to(double)
    others = rows if to is None else to.detach().reshape(len(to), -1).to(double)
    centre = others.mean(0, keepdim=True)
    return torch.cdist(rows - centre, others - centre).to(compute_dtype(x.dtype))


def eligible_partners(
    n: int, labels: Int[Tensor, " n"] | None, among: Among, device: torch.device
) -> Bool[Tensor, "n n"]:
    """Mask of allowed partners: not oneself, and within the asked-for classes."""
    allowed = ~torch.eye(n, dtype=torch.bool, device=device)
    if among != "all":
        if labels is None:
            raise ValueError(
                f"among={among!r} needs class labels, but none were given. "
                'Pass labels=..., or use among="all".'
            )
        checks.same_rows("labels", labels, n)
        same = labels[:, None] == labels[None]
        allowed &= same if among == "same_class" else ~same
    return allowed


def partner_log_odds(
    distances: Float[Tensor, "n m"], allowed: Bool[Tensor, "n m"], power: float, floor: float
) -> Float[Tensor, "n m"]:
    """Logarithm of ``1 / distance**power``; minus infinity where not allowed."""
    return (-power * distances.clamp_min(floor).log()).masked_fill(~allowed, float("-inf"))


def distance_floor(distances: Float[Tensor, "n n"]) -> float:
    """Smallest distance told apart from zero: a fraction of the median between two points."""
    n = len(distances)
    between = distances[~torch.eye(n, dtype=torch.bool, device=distances.device)]
    median = float(between.median()) if n > 1 else 0.0
    return max(DISTANCE_FLOOR * median, torch.finfo(distances.dtype).tiny)


def partner_probabilities(
    x: Float[Tensor, " batch *feature"],
    *,
    power: float = 1.0,
    labels: Int[Tensor, " batch"] | None = None,
    among: Among = "all",
) -> Float[Tensor, "batch batch"]:
    """Probability of each partner, proportional to ``1 / distance**power`` (paper: Algorithm 1).

    ``power=0`` is uniform, 1 the paper's rule, ``d - 2`` the first-hit law of small balls in ``d``
    dimensions. In high dimension all distances are alike and power 1 is close to uniform.
    A row without any eligible partner puts all its mass on itself.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [3.0]])
        >>> partner_probabilities(x)[0]
        tensor([0.0000, 0.7500, 0.2500])
    """
    checks.batch("x", x)
    checks.finite("x", x)
    checks.nonnegative("power", power)
    allowed = eligible_partners(len(x), labels, among, x.device)
    distances = pairwise_distances(x)
    log_odds = partner_log_odds(distances, allowed, power, distance_floor(distances))
    alone = ~allowed.any(1)
    probabilities = log_odds.masked_fill(alone[:, None], 0.0).softmax(dim=1)
    return torch.where(
        alone[:, None], torch.eye(len(x), device=x.device, dtype=probabilities.dtype), probabilities
    )


def sample_partners(
    x: Shaped[Tensor, " batch *feature"],
    *,
    n_bridges: int = 1,
    pairing: Pairing = "permutation",
    power: float = 1.0,
    labels: Int[Tensor, " batch"] | None = None,
    among: Among = "all",
    generator: torch.Generator | None = None,
) -> Int[Tensor, "batch bridge"]:
    """Draw an end point for each bridge of each point from P(Pi) (paper: section 5.1, Algorithm 1).

    Args:
        x: Whatever distances are to be measured on: inputs, or features of them.
        n_bridges: Bridges per point, each with a partner of its own.
        pairing: ``"permutation"``: a random cyclic order, so every point is a start once and an end
            once; ``"inverse_distance"``: independent draws with probability ``1 / distance**power``;
            ``"nearest"``: no draw, bridge ``j`` ends at the ``j``-th nearest point.
        power: Exponent of the inverse distance.
        labels: Classes, needed when ``among`` restricts.
        among: Partners of any class, of the same or of another class.
        generator: Source of randomness; torch's default one if None.

    Returns:
        Row numbers. A batch of one is its own partner.

    Example:
        >>> sample_partners(torch.tensor([[0.0], [1.0], [5.0]]), pairing="nearest").flatten()
        tensor([1, 0, 1])
    """
    checks.choice("pairing", pairing, PAIRINGS)
    checks.choice("among", among, AMONG)
    checks.path_counts(2, n_bridges)
    if not isinstance(x, Tensor):
        raise TypeError(
            f"x must be a torch.Tensor, but got {type(x).__name__}. Convert it, e.g. torch.as_tensor(x)."
        )
    checks.batch("x", x)
    check_generator(generator, x.device)
    n = len(x)
    if labels is not None:
        checks.same_rows("labels", labels, n)
    if n == 1:
        return torch.zeros(1, n_bridges, dtype=torch.long, device=x.device)
    if pairing == "permutation":
        if among == "all":
            columns = [_random_cycle(n, x.device, generator) for _ in range(n_bridges)]
            return torch.stack(columns, 1) if n_bridges > 1 else columns[0].unsqueeze(1)
        if among == "same_class" and labels is not None:
            columns = [_cycle_within(labels, generator) for _ in range(n_bridges)]
            return torch.stack(columns, 1)
        power = 0.0  # no permutation need exist between classes: uniform draws instead
    if pairing == "nearest":
        return _nearest(x, n_bridges, labels, among)
    probabilities = partner_probabilities(x, power=power, labels=labels, among=among)
    return draw_from(probabilities.cumsum(1), n_bridges, generator)


def draw_from(
    cumulative: Float[Tensor, "n m"], n_draws: int, generator: torch.Generator | None
) -> Int[Tensor, "n draw"]:
    """Inverse-transform draws from each row's cumulative probabilities."""
    u = draw_uniform((len(cumulative), n_draws), device=cumulative.device, generator=generator)
    last = cumulative[:, -1:]
    # Strictly below the last value, and searched from the right: an entry of zero probability
    # (such as oneself) is never picked, not even by rounding.
    u = torch.minimum(u.to(cumulative.dtype) * last, torch.nextafter(last, torch.zeros_like(last)))
    return torch.searchsorted(cumulative, u, right=True)


def _random_cycle(n: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """A uniformly random cyclic permutation: no fixed points, each partner equally likely."""
    order = draw_permutation(n, device=device, generator=generator)
    return torch.empty_like(order).scatter_(0, order, torch.cat([order[1:], order[:1]]))


def _cycle_within(labels: Tensor, generator: torch.Generator | None) -> Tensor:
    """A random cycle through each class; the only member of a class is its own partner."""
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


def _nearest(x: Tensor, n_bridges: int, labels: Tensor | None, among: Among) -> Tensor:
    """The ``n_bridges`` nearest eligible points of each row, repeated when there are fewer."""
    checks.finite("x", x)
    allowed = eligible_partners(len(x), labels, among, x.device)
    distances = pairwise_distances(x).masked_fill(~allowed, float("inf"))
    order = distances.argsort(dim=1, stable=True)
    count = allowed.sum(1, keepdim=True)
    rank = torch.arange(n_bridges, device=x.device)[None] % count.clamp_min(1)
    own = torch.arange(len(x), device=x.device)[:, None]
    return torch.where(count > 0, order.gather(1, rank), own)


# Partners drawn from a whole data set instead of the batch (paper: Algorithm 1, "pre-computed").


_CHUNK_BYTES = 64 * 2**20
ROWS_FOR_MEDIAN = 1000


class PartnerTable:
    """Exact partner law over a data set, ready to draw from: a batch costs one look-up per row.

    Stores one cumulative probability per pair of points, so memory is ``4 * n**2`` bytes (1.6 GB
    for 20 000 rows); built in chunks. Use it for tables and features of tens of thousands of rows.
    When batches are augmented or streamed, pair within the batch instead (`sample_partners`).

    Example:
        >>> x, y = torch.randn(100, 3), torch.randn(100, 1)
        >>> table = PartnerTable(x)
        >>> index = torch.arange(8)
        >>> partner = table.sample(index)                     # (8, 1) rows of the data set
        >>> end = (x[partner], y[partner])                    # objective(x[index], y[index], end=end)

    Args:
        x: The data (or features of them) on which distances are measured.
        power: Exponent of the inverse distance; ``float("inf")`` means the nearest point.
        labels: Classes, needed when ``among`` restricts.
        among: Partners of any class, of the same or of another class.
        max_bytes: Refuse to build a larger table.
    """

    def __init__(
        self,
        x: Float[Tensor, " n *feature"],
        *,
        power: float = 1.0,
        labels: Int[Tensor, " n"] | None = None,
        among: Among = "all",
        max_bytes: int = 4 * 2**30,
    ) -> None:
        checks.choice("among", among, AMONG)
        checks.floating("x", x)
        checks.finite("x", x)
        n = len(x)
        if n < 2:
            raise ValueError(f"A PartnerTable needs at least two rows, but x has {n}.")
        if among != "all" and labels is None:
            raise ValueError(f"among={among!r} needs class labels. Pass labels=...")
        if labels is not None:
            checks.same_rows("labels", labels, n)
        if power != float("inf"):
            checks.nonnegative("power", power)
        self._nearest_only = power == float("inf")
        needed = 8 * n if self._nearest_only else 4 * n * n
        if needed > max_bytes:
            raise ValueError(
                f"A table over {n} rows takes {needed / 2**30:.1f} GiB, more than max_bytes "
                f"({max_bytes / 2**30:.1f} GiB). Pair within the batch (pairing=...), build the "
                "table on a subset, or raise max_bytes."
            )
        self._table = torch.empty(
            (n, 1) if self._nearest_only else (n, n),
            dtype=torch.long if self._nearest_only else torch.float32,
            device=x.device,
        )
        some = x[:: max(1, n // ROWS_FOR_MEDIAN)]
        self._floor = distance_floor(pairwise_distances(some))
        step = max(1, _CHUNK_BYTES // (8 * n))
        for begin in range(0, n, step):
            rows = slice(begin, min(begin + step, n))
            self._fill(x, rows, power, labels, among)

    def _fill(self, x: Tensor, rows: slice, power: float, labels: Tensor | None, among: Among) -> None:
        """Compute some rows of the table."""
        own = torch.arange(rows.start, rows.stop, device=x.device)[:, None]
        allowed = own != torch.arange(len(x), device=x.device)[None]
        if labels is not None and among != "all":
            same = labels[rows][:, None] == labels[None]
            allowed &= same if among == "same_class" else ~same
        distances = pairwise_distances(x[rows], x)
        if self._nearest_only:
            nearest = distances.masked_fill(~allowed, float("inf")).argmin(1, keepdim=True)
            self._table[rows] = torch.where(allowed.any(1, keepdim=True), nearest, own)
            return
        log_odds = partner_log_odds(distances, allowed, power, self._floor)
        alone = ~allowed.any(1)
        log_odds[alone, own[alone, 0]] = 0.0  # nobody else is eligible: a loop
        # summed in float64, so that errors do not add up along a long row
        self._table[rows] = log_odds.double().softmax(1).cumsum(1).float()

    def __len__(self) -> int:
        return len(self._table)

    def sample(
        self,
        index: Int[Tensor, " batch"],
        *,
        n_bridges: int = 1,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "batch bridge"]:
        """Draw partners of the rows ``index`` of the data set; returns rows of the data set."""
        checks.path_counts(2, n_bridges)
        check_generator(generator, self._table.device)
        rows = self._table[index]
        if self._nearest_only:
            return rows.expand(-1, n_bridges)
        return draw_from(rows, n_bridges, generator)
