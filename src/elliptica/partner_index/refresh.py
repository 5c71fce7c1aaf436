"""An index over features of a network that is still being trained, rebuilt in the background."""

from __future__ import annotations

import copy
import json
import os
import shutil
import threading
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.files import write_atomically
from elliptica._utils.random import stream
from elliptica.core.types import EllipticWarning
from elliptica.core.wrappers import is_wrapped
from elliptica.partner_index.features import Source
from elliptica.partner_index.index import PartnerIndex

_CURRENT = "current.json"
_TRIES = 10


class _Following:
    """Reader of the newest index in a folder, for loader workers and other ranks."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).resolve()
        self._seen: tuple[int, int] | None = None
        self._index: PartnerIndex | None = None
        self.built_at = 0

    @property
    def current(self) -> PartnerIndex:
        """Return the newest finished index."""
        for _ in range(_TRIES):
            try:
                found = (self.folder / _CURRENT).stat()
                if self._index is not None and self._seen == (found.st_mtime_ns, found.st_ino):
                    return self._index
                state = json.loads((self.folder / _CURRENT).read_text())
                self._index = PartnerIndex.load(self.folder / state["name"])
                self.built_at, self._seen = int(state["step"]), (found.st_mtime_ns, found.st_ino)
            except FileNotFoundError as error:  # it may have been replaced between two of these lines
                missing = error
            else:
                return self._index
        raise FileNotFoundError(
            f"{self.folder} holds no refreshing index. Make it with RefreshingIndex(folder, ...)."
        ) from missing

    def __len__(self) -> int:
        return len(self.current)

    def sample(
        self,
        index: Int[Tensor, " batch"],
        *,
        n_bridges: int = 1,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "batch bridge"]:
        """Draw partners from the newest finished index, see `PartnerIndex.sample`."""
        return self.current.sample(index, n_bridges=n_bridges, generator=generator)

    @property
    def error_bound(self) -> float:
        """Return the error bound of the newest finished index, see `PartnerIndex.error_bound`."""
        return self.current.error_bound

    def __reduce__(self) -> tuple[Any, ...]:
        return _Following, (str(self.folder),)


class RefreshingIndex(_Following):
    """A `PartnerIndex` over features of a network in training, rebuilt without stopping the training.

    Every so many steps the network is copied, and a thread runs the copy over the data and builds a new index
    in the folder; draws use the last finished one until then. A failed rebuild is reported by a warning
    at a later step, and the old index stays. In another process the object becomes a reader of the same
    folder; other ranks open it with `follow`. Only one process may refresh a folder.

    The thread shares the processor with the training, so leave it a core, or refresh rarely.

    Args:
        folder: Folder of the indices; the newest two are kept.
        network: The network in training, e.g. ``objective.model``; not wrapped in DDP or FSDP2.
        data: The data set in order, see `PartnerIndex.of_features`.
        every: Steps between rebuilds.
        at: Name of a layer whose output to use; None means the network's own.
        batch_size: Rows at a time.
        wait: Wait for each rebuild, so that runs repeat exactly. With several processes this also
            needs a barrier after each `step`, before the others draw.
        seed: Seed of the k-means.
        options: Options of `PartnerIndex.build`: ``k``, ``power``, ``labels``, ``among``, ...

    Example:
        >>> network, x = nn.Linear(4, 2), torch.randn(200, 4)
        >>> index = RefreshingIndex("doctest-index", network, x, every=100, k=8)  # doctest: +SKIP
        >>> index.step()                                       # after each optimiser step  # doctest: +SKIP
        >>> partner = index.sample(torch.arange(8))            # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        network: nn.Module,
        data: Source,
        *,
        every: int,
        at: str | None = None,
        batch_size: int = 256,
        wait: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(folder)
        checks.count("every", every)
        _refuse_shared(network)
        for name in ("folder", "overwrite", "generator"):
            if name in options:
                raise TypeError(
                    f"{name} is not an option of RefreshingIndex, which sets it for each rebuild."
                )
        self._network, self._data, self._wait, self._seed = network, data, wait, seed
        self.every = every
        self._options = {"at": at, "batch_size": batch_size, **options}
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._version = 0
        self._begun = 0
        self.steps = 0
        #: Rebuilds that failed.
        self.failures = 0
        self.folder.mkdir(parents=True, exist_ok=True)
        for pattern in (".index-*", ".features.*"):  # left by a killed process
            for left in self.folder.glob(pattern):
                shutil.rmtree(left, ignore_errors=True)
        if (self.folder / _CURRENT).is_file():  # continue the numbering, so that readers notice
            self._version = 1 + int(json.loads((self.folder / _CURRENT).read_text())["version"])
        self._build(network, 0)

    @staticmethod
    def follow(folder: str | os.PathLike[str]) -> _Following:
        """Read the indices that another process refreshes."""
        return _Following(folder)

    @property
    def age(self) -> int:
        """Steps since the network was copied for the index in use."""
        _ = self.current
        return self.steps - self.built_at

    def step(self) -> None:
        """Count a training step; begin a rebuild when one is due and none is running."""
        self.steps += 1
        self._harvest()
        if self._thread is not None or self.steps - self._begun < self.every:
            return
        _refuse_shared(self._network)
        self._begun = self.steps
        with torch.no_grad():
            copied = copy.deepcopy(self._network)
        self._thread = threading.Thread(target=self._try_build, args=(copied, self.steps))
        self._thread.start()
        if self._wait:
            self._thread.join()
            self._harvest()

    def close(self) -> None:
        """Wait for a running rebuild."""
        if self._thread is not None:
            self._thread.join()
            self._harvest()

    def __enter__(self) -> RefreshingIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _try_build(self, network: nn.Module, step: int) -> None:
        try:
            self._build(network, step)
        except Exception as error:
            self._failure = error

    def _build(self, network: nn.Module, step: int) -> None:
        name = f"index-{self._version:06d}"
        generator = stream("partner index", self._seed, self._version)
        place = self.folder / name
        PartnerIndex.of_features(
            network, self._data, folder=place, overwrite=True, generator=generator, **self._options
        )
        current = {"name": name, "version": self._version, "step": step}
        write_atomically(self.folder / _CURRENT, json.dumps(current))
        self._version += 1
        for old in sorted(self.folder.glob("index-*"))[:-2]:
            shutil.rmtree(old, ignore_errors=True)

    def _harvest(self) -> None:
        """Collect the result of a finished rebuild; warn if it failed."""
        if self._thread is None or self._thread.is_alive():
            return
        self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self.failures += 1
            warnings.warn(
                f"Rebuilding the partner index failed ({type(failure).__name__}: {failure}). The index of "
                f"step {self.steps - self.age} stays in use; the next attempt comes {self.every} steps after "
                "this one began.",
                EllipticWarning,
                stacklevel=3,
            )


def _refuse_shared(network: nn.Module) -> None:
    """Raise for a network that waits for other processes, because only one process rebuilds the index."""
    if is_wrapped(network) or hasattr(network, "_ranks"):
        raise ValueError(
            "The network is wrapped in DDP or FSDP2, or split by split_rows, so that its forward pass "
            "waits for other processes, but only one rebuilds the index. Pass the plain network (for DDP, "
            "objective.model), and call step() outside of split_rows."
        )
