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
    check_labels,
    check_power,
    check_rows_of_data,
    distance_floor,
    draw_from,
    exclude_classes,
    in_squarable_units,
    pairwise_distances,
    partner_weights,
)

_CHUNK_BYTES = 64 * 2**20
ROWS_FOR_MEDIAN = 1000


class PartnerTable:
    """Exact law of partners over a data set; drawing a batch costs one look-up per row.

    The table stores one cumulative weight per pair of points, so it takes ``4 * n**2`` bytes (1.6 GB for
    20 000 rows). Above ``max_bytes`` it stores nothing and computes the rows of a batch when they are drawn,
    in ``O(batch * n)`` time per batch. Use it for tables and features of tens of thousands of rows, and
    `PartnerIndex` for more. If batches are augmented or streamed, pair within the batch instead
    (`sample_partners`).

    Example:
        >>> x, y = torch.randn(100, 3), torch.randn(100, 1)
        >>> table = PartnerTable(x)
        >>> index = torch.arange(8)
        >>> partner = table.sample(index)                     # (8, 1) rows of the data set
        >>> end = (x[partner], y[partner])                    # objective(x[index], y[index], end=end)

    Args:
        x: The data (or features of them) on which distances are measured.
        power: Exponent of the inverse distance; ``float("inf")`` means the nearest point.
        labels: Classes of the rows. Required if ``among`` is not ``"all"``.
        among: Which rows may be partners: ``"all"``, the ``"same_class"`` or the ``"other_class"``.
        max_bytes: Largest table to store. Set it to 0 to always compute rows when they are drawn.
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
        if x.ndim == 0:
            raise ValueError("x is a scalar, but its first axis must be the rows of a data set.")
        checks.finite("x", x)
        checks.count("max_bytes", max_bytes, 0)
        n = len(x)
        if n < 2:
            raise ValueError(f"A PartnerTable needs at least two rows, but x has {n}. Pass more data.")
        if among != "all" and labels is None:
            raise ValueError(f'among={among!r} needs class labels. Pass labels=..., or use among="all".')
        if labels is not None:
            check_labels(labels, n)
        check_power(power)
        self._nearest_only = power == float("inf")
        x = in_squarable_units(x.detach())
        self._x, self._power, self._labels, self._among = x, power, labels, among
        self._floor = distance_floor(pairwise_distances(x[:: max(1, n // ROWS_FOR_MEDIAN)]))
        self._table: Tensor | None = None
        if (8 * n if self._nearest_only else 4 * n * n) > max_bytes:
            return
        self._table = torch.empty(
            (n, 1) if self._nearest_only else (n, n),
            dtype=torch.long if self._nearest_only else torch.float32,
            device=x.device,
        )
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
            exclude_classes(distances, self._labels[index], self._labels, self._among)
        if self._nearest_only:
            away, nearest = distances.min(1, keepdim=True)
            return torch.where(torch.isfinite(away), nearest, own)
        weights = partner_weights(distances, self._power, self._floor)
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
        checks.path_counts(2, n_bridges)
        check_generator(generator, self._x.device)
        check_rows_of_data(index, len(self))
        index = index.to(self._x.device, torch.long)
        if self._table is not None:
            return self._draw(self._table[index], n_bridges, generator)
        parts = index.split(self._at_once())
        return torch.cat([self._draw(self._rows(some), n_bridges, generator) for some in parts])

    def _draw(self, rows: Tensor, n_bridges: int, generator: torch.Generator | None) -> Tensor:
        """Draw from rows of the table."""
        return rows.expand(-1, n_bridges) if self._nearest_only else draw_from(rows, n_bridges, generator)
