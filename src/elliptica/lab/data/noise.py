"""Label noise: shuffle the labels of a share of the rows among these rows (paper: Table 6)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from elliptica._utils.random import draw_permutation


class NoisyLabels(NamedTuple):
    """Labels after shuffling."""

    y: Shaped[Tensor, " n *target"]  # the labels
    #: Which rows were shuffled; some may have their own label, or an equal one, again.
    chosen: Bool[Tensor, " n"]


def shuffle_labels(
    y: Shaped[Tensor, " n *target"], share: float = 0.5, *, generator: torch.Generator | None = None
) -> NoisyLabels:
    """Shuffle the labels of a random share of the rows among these rows.

    Call it once, on the training labels, for noise that stays the same throughout training. The class
    counts do not change. With ``c`` equally large classes a shuffled label is wrong with probability
    ``1 - 1/c``. The paper shuffles half of the labels and does not say how; see `PerBatchShuffle` for the
    other variant (docs: deviations).

    Draws, in this order: the order of all rows (its first ones are chosen), the order of the chosen ones.

    Args:
        y: Labels or targets, one row each.
        share: Share of rows to shuffle, 0 to 1; their number is rounded to the nearest integer.
        generator: Source of randomness; torch's default one if None.

    Example:
        >>> y, chosen = shuffle_labels(torch.arange(6), generator=torch.Generator().manual_seed(0))
        >>> int(chosen.sum()), sorted(y.tolist()), bool((y == torch.arange(6))[~chosen].all())
        (3, [0, 1, 2, 3, 4, 5], True)
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must be between 0 and 1, but got {share}.")
    rows = draw_permutation(len(y), device=y.device, generator=generator)[: round(share * len(y))]
    order = draw_permutation(len(rows), device=y.device, generator=generator)
    noisy = y.clone()
    noisy[rows] = y[rows[order]]
    chosen = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    chosen[rows] = True
    return NoisyLabels(noisy, chosen)


class PerBatchShuffle:
    """Shuffle a share of the labels of every batch, so that the noise differs from epoch to epoch.

    Example:
        >>> y = PerBatchShuffle(0.5).relabel(torch.arange(4), torch.Generator().manual_seed(0))
        >>> sorted(y.tolist())
        [0, 1, 2, 3]
    """

    def __init__(self, share: float = 0.5) -> None:
        self.share = share

    def relabel(self, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Shuffle a share of the labels of a batch."""
        return shuffle_labels(y, self.share, generator=generator).y
