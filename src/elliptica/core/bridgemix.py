"""BridgeMix: bridges as a batch transform with mixup's calling convention, ``x, y = mix(x, y)``."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate

from elliptica.core.bridge import Bridges, Quadrature, Sampling
from elliptica.core.inputs import Inputs, named_inputs, rebuild_inputs
from elliptica.core.noise import Sigma
from elliptica.core.partners import Pairing
from elliptica.core.targets import SimplexMap, Targets, TargetSpace


class BridgeMix:
    """Replace a batch by points on Brownian bridges between its samples (mixup-like augmentation).

    Call it where you would call mixup, in the loop or in a ``collate_fn``. It returns ordinary soft targets,
    for any loss that accepts them. By default it draws one point per sample, so a step costs as much as
    ordinary training. Importance weighting needs the model: use `Elliptic` for it.

    Args:
        num_classes: Number of classes, for integer labels.
        target_space: ``"simplex"``, ``"unit"`` or ``"real"``. None means ``"simplex"``.
        sigma: Diffusion coefficient, see `Elliptic` for this and all other settings.
        sigma_y: The same for targets. None means zero for classes.
        sampling: ``"marginal"`` (one point per bridge) or ``"path"`` (``n_times`` points on each).
        validate: Check every batch for NaN and for labels out of range.

    Example:
        >>> mix = BridgeMix(num_classes=3, sigma=0.05)
        >>> x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        >>> mixed_x, mixed_y = mix(x, y)
        >>> mixed_x.shape, mixed_y.shape
        (torch.Size([5, 4]), torch.Size([5, 3]))
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        target_space: TargetSpace | None = None,
        sigma: Sigma = 0.05,
        sigma_y: Sigma | None = None,
        sampling: Sampling = "marginal",
        n_times: int = 5,
        n_bridges: int = 1,
        pairing: str | Pairing = "permutation",
        quadrature: Quadrature = "mean",
        end_time: float = 1.0,
        simplex: SimplexMap = "abs",
        bridged: Sequence[Hashable] | None = None,
        validate: bool = True,
    ) -> None:
        if sampling == "path" and quadrature != "mean":
            raise ValueError("quadrature gives points of a path weights, which mixed rows do not carry.")
        targets = Targets(target_space or "simplex", num_classes, simplex, validate)
        self.bridges = Bridges(
            targets, sigma, sigma_y, sampling, n_times, n_bridges, pairing, quadrature, end_time, bridged
        )

    def __repr__(self) -> str:
        return f"BridgeMix({self.bridges})"

    def __call__(
        self,
        x: Inputs,
        y: Tensor,
        *,
        partners: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Inputs, Tensor]:
        """Return points on bridges and their soft targets, one row per point."""
        batch = self.bridges.read(x, y)
        pairs = self.bridges.pair(batch, partners, generator=generator)
        paths = self.bridges.draw(batch, pairs, generator=generator)
        return rebuild_inputs(x, paths.points), paths.targets

    def collate_fn(self, seed: int) -> SeededCollate:
        """Make a ``collate_fn`` whose batches do not depend on the number of loader workers."""
        return SeededCollate(self, seed)


class SeededCollate:
    """A ``collate_fn`` that mixes, with noise that depends only on the seed, the epoch and the batch.

    The random stream of a loader worker depends on the number of workers; this one on the batch's content.
    ``collate`` is a function from a list of samples to ``(x, y)``.
    """

    def __init__(
        self,
        mix: BridgeMix,
        seed: int,
        collate: Callable[[list[Any]], tuple[Inputs, Tensor]] = default_collate,
    ) -> None:
        self.mix, self.seed, self.collate = mix, seed, collate
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()  # persistent workers see changes

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. Call it before each one; otherwise an identical batch gets the same noise again."""
        self._epoch.fill_(epoch)

    def __call__(self, samples: list[Any]) -> tuple[Inputs, Tensor]:
        """Collate samples and mix the batch."""
        x, y = self.collate(samples)
        digest = hashlib.blake2b(f"{self.seed}/{int(self._epoch)}".encode(), digest_size=7)
        for value in (*named_inputs(x).values(), y):
            digest.update(_row_sums(value).tobytes())
        seed = int.from_bytes(digest.digest(), "big")
        return self.mix(x, y, generator=torch.Generator().manual_seed(seed))


def _row_sums(value: Tensor) -> NDArray[np.uint64]:
    """Hash the bytes of each row; different rows collide with probability 2**-32.

    A sum of words times fixed random odd numbers: a digest of all bytes would take longer than the bridges.
    """
    rows = value.contiguous().view(len(value), -1).view(torch.uint8).numpy()
    words = rows.view(next(word for word in ("u4", "u2", "u1") if rows.shape[1] % int(word[1]) == 0))
    return np.einsum("rw,w->r", words, _odd_numbers(words.shape[1]))


@functools.lru_cache(maxsize=8)
def _odd_numbers(n: int) -> NDArray[np.uint64]:
    return np.random.default_rng(0).integers(2**64 - 1, size=n, dtype=np.uint64, endpoint=True) | np.uint64(1)
