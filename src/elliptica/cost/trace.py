"""One step, watched: every operation, what it computes, and what it leaves in memory.

Works below autograd, on any device, and also sees the backward pass. Memory that a kernel takes and returns
within one operation is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


@dataclass(frozen=True)
class Trace:
    """What was seen.

    Attributes:
        operations: Number of operations.
        flops: Multiplications and additions of products and convolutions (two for each product).
        live: Bytes that were allocated since the beginning and are alive after each operation.
        saved: Bytes that the forward pass kept for the backward pass, parameters and inputs left out.
    """

    operations: int
    flops: int
    live: tuple[int, ...]
    saved: int

    @property
    def peak(self) -> int:
        """The most that was alive at once."""
        return max(self.live, default=0)


def trace_step(step: Callable[[], object]) -> Trace:
    """Run a step once and watch it.

    What exists before (parameters, inputs) is not counted. Garbage that Python has not collected counts as
    alive, as it is.

    Example:
        >>> a = torch.ones(8, 4)
        >>> trace_step(lambda: a @ a.t()).flops   # 8 * 8 * 4 products and as many sums
        512
    """
    watcher, saved = _Watcher(), _Saved()
    hooks = torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda kept: kept)
    with hooks, watcher:
        saved.watcher = watcher
        step()
    return Trace(watcher.operations, watcher.flops, tuple(watcher.live), saved.bytes)


class _Saved:
    """Counts storages that are kept for the backward pass, once each."""

    def __init__(self) -> None:
        self.watcher: _Watcher | None = None
        self.seen: set[int] = set()
        self.bytes = 0

    def pack(self, tensor: Tensor) -> Tensor:
        number = None if self.watcher is None else self.watcher.number_of(tensor)
        if number is not None and number not in self.seen:
            self.seen.add(number)
            self.bytes += tensor.untyped_storage().nbytes()
        return tensor


class _Watcher(TorchDispatchMode):
    """Sees operations; knows which storages they made and when these died."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.flops = self.now = self.made = 0
        self.live: list[int] = []
        #: Storages that are alive: a weak reference, and their number (None if they were there before).
        self.known: dict[int, tuple[Any, int | None]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs)):
            self._know(tensor, is_new=False)
        out = func(*args, **kwargs)
        for tensor in _tensors(out):
            self._know(tensor, is_new=True)
        self.operations += 1
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += int(count(*args, **kwargs, out_val=out))
        self.live.append(self.now)
        return out

    def number_of(self, tensor: Tensor) -> int | None:
        """Number of the storage among those that were made here; None for others."""
        found = self.known.get(tensor.untyped_storage()._cdata)
        return None if found is None else found[1]

    def _know(self, tensor: Tensor, is_new: bool) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes() if is_new else 0
        if key in self.known:
            return
        if is_new:
            self.made += 1

        def forget(_: object) -> None:
            self.known.pop(key, None)
            self.now -= size

        self.known[key] = (weakref.ref(storage, forget), self.made if is_new else None)
        self.now += size


def _tensors(tree: Any) -> Iterator[Tensor]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
            yield leaf
