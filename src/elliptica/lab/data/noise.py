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
    _check_share(share)
    if not isinstance(y, Tensor) or y.ndim < 1 or len(y) == 0:
        got = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(f"y must be a tensor with one row per sample, but got {got}. Pass all labels.")
    rows = draw_permutation(len(y), device=y.device, generator=generator)[: round(share * len(y))]
    order = draw_permutation(len(rows), device=y.device, generator=generator)
    noisy = y.clone()
    noisy[rows] = y[rows[order]]
    chosen = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    chosen[rows] = True
    return NoisyLabels(noisy, chosen)


class PerBatchShuffle:
    """Shuffle a share of the labels of every batch, so that the noise differs from epoch to epoch.

    Args:
        share: Share of the rows of a batch to shuffle, 0 to 1.
        generator: Source of randomness of all calls. None means torch's default generator.

    Example:
        >>> shuffle = PerBatchShuffle(0.5, generator=torch.Generator().manual_seed(0))
        >>> x, y = torch.randn(4, 2), torch.arange(4)
        >>> same_x, noisy_y = shuffle(x, y)
        >>> same_x is x, sorted(noisy_y.tolist())
        (True, [0, 1, 2, 3])
    """

    def __init__(self, share: float = 0.5, *, generator: torch.Generator | None = None) -> None:
        _check_share(share)
        self.share = share
        self.generator = generator

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same inputs, and new labels."""
        return x, self.relabel(y, self.generator)

    def relabel(self, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Shuffle a share of the labels of a batch with another generator."""
        return shuffle_labels(y, self.share, generator=generator).y

    def __repr__(self) -> str:
        return f"PerBatchShuffle(share={self.share})"


def _check_share(share: float) -> None:
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise ValueError(f"share must be a number between 0 and 1, but got {share!r}. The paper has 0.5.")
