"""BridgeMix: bridges as a batch transform with mixup's calling convention, ``x, y = mix(x, y)``."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate

from elliptica._utils import checks
from elliptica._utils.random import check_generator
from elliptica.core.alerts import warn_of_scale
from elliptica.core.bridge import draw_bridges, flatten_rows
from elliptica.core.inputs import carries_gradient, named_inputs, read_batch, rebuild_inputs
from elliptica.core.partners import choose_ends
from elliptica.core.settings import BridgeSettings, check_names
from elliptica.core.types import Inputs


@check_names
@dataclass(frozen=True, kw_only=True, eq=False)
class BridgeMix(BridgeSettings):
    """Replace a batch by points on Brownian bridges between its samples (mixup-like augmentation).

    Call it where you would call mixup, in the loop or in a ``collate_fn``. It returns ordinary soft targets,
    for any loss that accepts them. By default it draws one point per sample, so a step costs as much as
    ordinary training. Your tensors are not modified. Odd batches and batches of one work (``sigma="auto"``
    needs two rows). The same generator state gives the same batch. Importance weighting needs the model:
    use `Elliptic` for it.

    Args:
        num_classes: Number of classes, for integer labels.
        target_space: ``"simplex"``, ``"unit"`` or ``"real"``. None means ``"simplex"``, and needs
            ``num_classes``.
        sampling: ``"marginal"`` (one point per bridge) or ``"path"`` (``n_times`` points on each).
        n_times: Points on a path, both ends included. Marginal points are drawn from the same times.
        n_bridges: Bridges per sample.
        sigma: Diffusion coefficient, see `Elliptic`. ``"auto"`` is measured on every batch.
        sigma_y: The same for targets. None means zero for classes, see `Elliptic`.
        horizon: Length of the time interval.
        antithetic: Draw bridges in pairs of opposite noise (even ``n_bridges``).
        same_partner: Let all bridges of a sample end at the same partner.
        pairing: Where bridges end, see `sample_partners`.
        power: Exponent for ``pairing="inverse_distance"``.
        bandwidth: Width of the kernel for ``pairing="label_kernel"``, in units of the targets.
        among: Which samples may be partners: ``"all"``, the ``"same_class"`` or the ``"other_class"``.
        simplex: How to map noisy class probabilities back to the simplex, see `project_to_simplex`.
        quadrature: Distribution of the times of marginal points, see `Elliptic`.
        bridged: Names (or positions) of the inputs to bridge when there are several.
        validate: Check every batch for NaN and for labels out of range.

    Example:
        >>> mix = BridgeMix(num_classes=3, sigma=0.05)
        >>> x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        >>> mixed_x, mixed_y = mix(x, y)
        >>> mixed_x.shape, mixed_y.shape
        (torch.Size([5, 4]), torch.Size([5, 3]))
    """

    def __post_init__(self) -> None:
        if self.target_space is None:
            if self.num_classes is None:
                raise ValueError(
                    "BridgeMix cannot infer the kind of targets without a loss. Pass num_classes=... for "
                    'labels, or target_space="real" (regression), "unit" (multilabel) or "simplex" (soft '
                    "labels)."
                )
            object.__setattr__(self, "target_space", "simplex")
        super().__post_init__()
        object.__setattr__(self, "_judged_scale", False)

    def __repr__(self) -> str:
        return f"BridgeMix({', '.join(f'{name}={value}' for name, value in self.shown().items())})"

    def __call__(
        self,
        x: Inputs,
        y: Tensor,
        *,
        partners: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Inputs, Tensor]:
        """Return points on bridges and their soft targets, one row per point."""
        with torch.set_grad_enabled(carries_gradient(x, y)):
            batch = read_batch(x, y, None, self)
            check_generator(generator, batch.reference.device)
            if not self._judged_scale:  # type: ignore[attr-defined]  # no setting, so not declared as a field
                object.__setattr__(self, "_judged_scale", warn_of_scale(batch, self))
            ends = choose_ends(batch, self, partners, generator=generator)
            paths = draw_bridges(batch, ends, self, generator=generator)
        rows = {k: flatten_rows(v).flatten(0, 1) for k, v in named_inputs(paths.x).items()}
        return rebuild_inputs(x, rows), flatten_rows(paths.y).flatten(0, 1)

    def collate_fn(self, seed: int) -> SeededCollate:
        """Make a ``collate_fn`` whose batches do not depend on the number of loader workers."""
        return SeededCollate(self, seed)


class SeededCollate:
    """A ``collate_fn`` that mixes, with noise that depends only on the seed, the epoch and the batch.

    Each loader worker has its own random stream, so noise drawn from it depends on the number of workers.
    This class derives the stream from the content of the batch instead.

    Args:
        mix: The transform.
        seed: Seed of the run.
        collate: Function from a list of samples to ``(x, y)``.
    """

    def __init__(
        self,
        mix: BridgeMix,
        seed: int,
        collate: Callable[[list[Any]], tuple[Inputs, Tensor]] = default_collate,
    ) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(
                f"seed must be an integer, but got {type(seed).__name__}. Call the method, with a seed: "
                "DataLoader(..., collate_fn=mix.collate_fn(seed=0))."
            )
        self.mix = mix
        self.seed = seed
        self.collate = collate
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()  # persistent workers see changes

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. Call it before each one; otherwise an identical batch gets the same noise again."""
        checks.count("epoch", epoch, 0)
        self._epoch.fill_(epoch)

    def __call__(self, samples: list[Any]) -> tuple[Inputs, Tensor]:
        """Collate samples and mix the batch."""
        batch = self.collate(samples)
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise TypeError(
                "Samples must be pairs of an input and a target, but their batch is "
                f"{_described(batch)}. Write a Dataset whose items are (x, y), or pass collate=..."
            )
        x, y = batch
        digest = hashlib.blake2b(f"{self.seed}/{int(self._epoch)}".encode(), digest_size=7)
        for value in (*named_inputs(x).values(), y):
            digest.update(_row_sums(value).tobytes())
        seed = int.from_bytes(digest.digest(), "big")
        return self.mix(x, y, generator=torch.Generator().manual_seed(seed))


def _described(batch: object) -> str:
    if isinstance(batch, tuple | list):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"one {type(batch).__name__}"


def _row_sums(value: Tensor) -> NDArray[np.uint64]:
    """Hash the bytes of each row; different rows collide with probability 2**-32.

    The hash is the sum of words of up to 32 bits times fixed random odd numbers of 64 bits, modulo 2**64. A
    cryptographic digest of all bytes of a batch of images would take longer than drawing the bridges.
    """
    rows = value.contiguous().view(len(value), -1).view(torch.uint8).numpy()
    words = rows.view(next(word for word in ("u4", "u2", "u1") if rows.shape[1] % int(word[1]) == 0))
    return np.einsum("rw,w->r", words, _odd_numbers(words.shape[1]))


@functools.lru_cache(maxsize=8)
def _odd_numbers(n: int) -> NDArray[np.uint64]:
    return np.random.default_rng(0).integers(2**64 - 1, size=n, dtype=np.uint64, endpoint=True) | np.uint64(1)
