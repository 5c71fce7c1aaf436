"""`PartnerIndex`: partners by inverse distance in a data set of any size, in files shared by processes."""

from __future__ import annotations

import copy
import dataclasses
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler, TensorDataset

from elliptica.core.inputs import call_model
from elliptica.core.layers import evaluation_mode, hidden_features
from elliptica.partner_index.law import Law, LawCheck
from elliptica.partner_index.loader import map_tensors
from elliptica.partner_index.search import BackendName, build_arrays
from elliptica.partner_index.store import (
    Among,
    Arena,
    Array,
    Arrays,
    Facts,
    new_folder,
    read_arrays,
    write_arrays,
)

#: Inputs as a tensor, a dataset whose items begin with the input, or a loader that does not shuffle.
Source = Tensor | Dataset[Any] | DataLoader[Any]


class PartnerIndex:
    """Draw partners in proportion to ``1 / distance**power`` among all rows, in ``O(n k)`` memory.

    The law is that of `PartnerTable`, which needs ``O(n**2)``. Each row stores its ``k`` nearest neighbours;
    the others are proposed cell by cell and accepted or rejected by their true distance, so that the draws
    follow the law although its normaliser is never computed. Where they cannot be exact, `error_bound`
    bounds the error.

    Make one with `build` or `of_features`. An index in a folder is mapped into memory: it opens at once,
    processes share its pages, and pickling it (as data loaders do) sends the name of the folder.

    Use `PartnerTable` up to some ten thousand rows, and pairs within the batch when data are augmented or
    streamed.

    Example:
        >>> x, y = torch.randn(1000, 3), torch.randn(1000, 1)
        >>> index = PartnerIndex.build(x, k=16, power=2.0)
        >>> rows = torch.arange(8)
        >>> partner = index.sample(rows)                     # (8, 1) rows of the data set
        >>> end = (x[partner], y[partner])                   # objective(x[rows], y[rows], end=end)
        >>> index.error_bound < 1e-9
        True
    """

    def __init__(
        self,
        arrays: Arrays,
        facts: Facts,
        *,
        folder: Path | None = None,
        proved: bool | None = None,
        max_draws: int = 2048,
    ) -> None:
        self._arrays, self._facts, self.folder = arrays, facts, folder
        self._proved, self.max_draws = proved, max_draws
        self._bound: float | None = None

    @classmethod
    def build(
        cls,
        x: Tensor | NDArray[Any],
        *,
        k: int = 32,
        power: float = 1.0,
        labels: Tensor | NDArray[Any] | None = None,
        among: Among = "all",
        exact: bool | None = None,
        cells: int | None = None,
        probes: int | None = None,
        backend: BackendName | None = None,
        folder: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        generator: torch.Generator | None = None,
    ) -> PartnerIndex:
        """Build an index over the rows of ``x``.

        Args:
            x: The data (or features of them) on which distances are measured: a tensor, an array, or a
                memory-mapped array of any size, which is read in chunks.
            k: Neighbours stored for each row. More make large powers cheaper to draw.
            power: Exponent of the inverse distance; ``float("inf")`` means the nearest point, 0 any point.
            labels: Classes of the rows. Required if ``among`` is ``"same_class"``.
            among: Which rows may be partners: ``"all"`` or those of the ``"same_class"``.
            exact: Find the true neighbours (time grows like ``n**2`` in high dimension, and the points must
                fit into memory). None: up to 20 000 rows. Else only the cells around a row are searched, as
                many as hold 95 % of the neighbours of 128 random rows, but at most 64.
            cells: Number of cells of the k-means; None means ``4 sqrt(n)``.
            probes: Number of cells to search.
            backend: ``"faiss"`` (extra ``scale``) or ``"sklearn"`` (extra ``tables``); None takes the first
                that is installed.
            folder: Build in this folder instead of in memory, for data that do not fit in memory.
            overwrite: Replace an existing index in the folder.
            generator: Source of randomness of the k-means. None means torch's default generator.

        Example:
            >>> x = torch.tensor([[0.0], [1.0], [3.0], [9.0]])
            >>> PartnerIndex.build(x, power=float("inf")).sample(torch.arange(4)).flatten()
            tensor([1, 0, 1, 2])
        """
        _check_power(power)
        if among not in ("all", "same_class"):
            raise ValueError(f'among must be "all" or "same_class", but is {among!r}.')
        arrays = partial(
            build_arrays,
            x,
            k=k,
            power=power,
            labels=None if among == "all" else labels,
            among=among,
            exact=exact,
            cells=cells,
            probes=probes,
            backend=backend,
            generator=generator,
        )
        if folder is None:
            return cls(*arrays(arena=Arena()))
        place = Path(folder).resolve()
        with new_folder(place, overwrite) as part:
            write_arrays(part, *arrays(arena=Arena(part)))
        return cls.load(place)

    @classmethod
    def of_features(
        cls,
        network: nn.Module,
        data: Source,
        *,
        at: str | None = None,
        batch_size: int = 256,
        **options: Any,
    ) -> PartnerIndex:
        """Build an index over a network's features of a data set.

        Args:
            network: Network, run in evaluation mode without gradients; its mode is restored.
            data: Inputs as a tensor, a dataset whose items begin with the input, or a loader that does not
                shuffle.
            at: Name of a layer whose output to use; None means the network's own.
            batch_size: Rows at a time.
            options: Options of `build`.

        Example:
            >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
            >>> index = PartnerIndex.of_features(network, torch.randn(100, 4), at="1", k=8)
            >>> index.shape
            (100, 8)
        """
        loader = _in_order(data, batch_size)
        with _features(network, loader, at, options.get("folder")) as features:
            return cls.build(features, **options)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> PartnerIndex:
        """Write the index to a folder atomically; return the index that reads from there."""
        place = Path(folder).resolve()
        with new_folder(place, overwrite) as part:
            write_arrays(part, self._arrays, self._facts)
        return PartnerIndex.load(place).with_law(proved=self._proved, max_draws=self.max_draws)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> PartnerIndex:
        """Open the index in a folder of `save` or `build`, without reading it into memory."""
        place = Path(folder).resolve()
        return cls(*read_arrays(place), folder=place)

    def with_law(
        self, *, power: float | None = None, proved: bool | None = None, max_draws: int | None = None
    ) -> PartnerIndex:
        """Return the same index with another law, sharing all arrays.

        Args:
            power: Exponent of the inverse distance.
            proved: For approximate neighbours: False trusts them to be complete, and `error_bound`
                includes what this cost on audited rows; True assumes nothing about them, and may reject
                nearly everything in high dimension. None is True for exact neighbours and False otherwise.
            max_draws: Number of proposals after which a partner is drawn by importance weights instead.
        """
        power = self.power if power is None else power
        _check_power(power)
        return PartnerIndex(
            self._arrays,
            dataclasses.replace(self._facts, power=float(power)),
            folder=self.folder,
            proved=self._proved if proved is None else proved,
            max_draws=self.max_draws if max_draws is None else max_draws,
        )

    def sample(
        self,
        index: Int[Tensor, " batch"],
        *,
        n_bridges: int = 1,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "batch bridge"]:
        """Draw partners for the rows ``index`` of the data set, as row numbers of it, on the CPU."""
        drawn = self._law.draw(self._positions(index), n_bridges, generator)
        return torch.from_numpy(self._arrays.rows[drawn.positions.numpy()].astype(np.int64))

    @property
    def error_bound(self) -> float:
        """Bound the distance from the exact law: total variation, mean over the audited rows.

        The part for `max_draws` is proved. The part for approximate neighbours was measured by brute force
        (see `with_law`); it is zero for exact ones.
        """
        if self._bound is None:
            self._bound = self._law.error_bound()
        return self._bound

    def check(self, n_rows: int = 256, *, generator: torch.Generator | None = None) -> LawCheck:
        """Measure the cost of drawing, on random rows."""
        return self._law.check(n_rows, generator)

    def __len__(self) -> int:
        return len(self._arrays.points)

    def __repr__(self) -> str:
        n, d = self.shape
        kind = "exact" if self._facts.exact else f"recall {self.recall:.3f}"
        place = "in memory" if self.folder is None else str(self.folder)
        return (
            f"PartnerIndex({n} rows, {d} features, {self._arrays.near.shape[1]} neighbours ({kind}), "
            f"power={self.power:g}, among={self._facts.among!r}, {place})"
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        n, d = self._arrays.points.shape
        return int(n), int(d)

    @property
    def power(self) -> float:
        """Exponent of the inverse distance."""
        return self._facts.power

    @property
    def recall(self) -> float:
        """Share of the true nearest neighbours that are stored, measured on the audited rows."""
        return self._facts.recall

    @property
    def nbytes(self) -> int:
        """Bytes of the index, its copy of the points included."""
        return sum(array.nbytes for array in self._arrays.named().values())

    @property
    def proved(self) -> bool:
        """Whether the law holds without trusting approximate neighbours."""
        return self._facts.exact if self._proved is None else self._proved

    def __reduce__(self) -> tuple[Any, ...]:
        if self.folder is None:  # pickling the arrays would copy them into every worker
            raise TypeError("An index in memory cannot be pickled. Save it: index = index.save(folder).")
        return _opened, (str(self.folder), self.power, self._proved, self.max_draws)

    @property
    def _law(self) -> Law:
        return Law(self._arrays, self._facts, self.proved, self.max_draws)

    def _positions(self, index: Tensor) -> Array:
        """Return the positions of rows of the data set."""
        if (index < 0).any():  # NumPy would count from the end
            raise IndexError(
                f"index must hold rows of the data set, from 0 on, but holds {int(index.min())}."
            )
        return np.asarray(self._arrays.positions[index.cpu().numpy()], np.int64)


def _opened(folder: str, power: float, proved: bool | None, max_draws: int) -> PartnerIndex:
    """Unpickle an index."""
    return PartnerIndex.load(folder).with_law(power=power, proved=proved, max_draws=max_draws)


def _check_power(power: float) -> None:
    if not power >= 0:
        raise ValueError(f"power must be at least 0, but is {power}.")


def _in_order(data: Source, batch_size: int) -> DataLoader[Any]:
    """Make a loader over all rows in order."""
    if isinstance(data, DataLoader):
        batches = data.batch_sampler  # a loader that was given one has a sequential sampler besides
        rows = batches.sampler if type(batches) is BatchSampler else batches
        if not isinstance(rows, SequentialSampler):
            raise ValueError("data must be a loader in order. Make it with shuffle=False and a batch_size.")
        loader = copy.copy(data)
        loader._iterator = None  # of persistent workers
    else:
        loader = DataLoader(TensorDataset(data) if isinstance(data, Tensor) else data, batch_size)
    loader.generator = torch.Generator()  # each pass draws a number
    return loader


@contextmanager
def _features(
    network: nn.Module, loader: DataLoader[Any], at: str | None, folder: str | os.PathLike[str] | None
) -> Iterator[Array]:
    """Yield features ``(n, d)`` of all rows; in a temporary file if ``folder`` is given."""
    parent = None if folder is None else Path(folder).resolve().parent
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    device = next(network.parameters(), torch.empty(0)).device
    with tempfile.TemporaryDirectory(prefix=".features.", dir=parent) as scratch:
        arena, done, features = Arena(None if parent is None else Path(scratch)), 0, np.empty((0, 0))
        with evaluation_mode(network), torch.no_grad():
            for item in loader:
                x = item[0] if isinstance(item, tuple | list) else item
                x = map_tensors(lambda tensor: tensor.to(device), x)
                output = call_model(network, x) if at is None else hidden_features(network, x, at)
                some = output.flatten(1).float().cpu().numpy()
                if done == 0:
                    rows = len(loader.dataset)  # type: ignore[arg-type]  # a sequential loader has asked for it
                    features = arena.empty("features", (rows, some.shape[1]), np.float32)
                features[done : done + len(some)] = some
                done += len(some)
        if done != len(features):
            raise ValueError(f"data returned {done} of {len(features)} rows. Use drop_last=False.")
        yield features
