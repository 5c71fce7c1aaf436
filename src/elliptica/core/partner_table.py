"""Draw partners from a whole data set instead of the batch (paper: Algorithm 1, "pre-computed")."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.random import check_generator
from elliptica.core.partners import (
    AMONG,
    Among,
    distance_floor,
    draw_from,
    pairwise_distances,
    partner_log_odds,
)

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
