"""Predict the cost of a training step from shapes alone: rows, flops and memory at any batch size."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from elliptica._utils import checks
from elliptica.core.elliptic import Elliptic
from elliptica.core.noise import Screened
from elliptica.core.types import Inputs


@dataclass(frozen=True)
class StepCost:
    """Cost of one training step. Memory is in bytes, of one process.

    Attributes:
        batch_size: Samples of the step.
        rows: Points at which the loss is evaluated.
        forward_rows: Rows of all forward passes (chunks are recomputed).
        backward_rows: Rows of all backward passes, including those to the inputs for a weighting.
        chunk_rows: Rows of the largest forward pass.
        flops: Multiplications and additions of matrix products and convolutions, as torch counts them.
        parameters: Memory of parameters and buffers.
        gradients: Memory of the parameters' gradients.
        optimizer: Memory of the optimiser's state.
        activations: Memory that autograd keeps for the backward pass (of one chunk, if there are chunks).
        peak: Most memory in use at once: all of these, the points, and temporary tensors.
        ordinary: Cost of ordinary training on this batch; None if this is ordinary training.
    """

    batch_size: int
    rows: int
    forward_rows: int
    backward_rows: int
    chunk_rows: int
    flops: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    peak: int
    ordinary: StepCost | None = None

    def __str__(self) -> str:
        base = self.ordinary or self
        lines = [f"{f'step of {self.batch_size} samples':<20}{'elliptic':>12}{'ordinary':>12}{'ratio':>8}"]
        names = ["rows", "forward_rows", "backward_rows", "flops"]
        names += ["parameters", "gradients", "optimizer", "activations", "peak"]
        lines += [_line(name, getattr(self, name), getattr(base, name)) for name in names]
        return "\n".join(lines)


def step_cost(
    objective: Elliptic,
    x: Inputs,
    y: Tensor,
    *,
    batch_size: int | None = None,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = torch.optim.SGD,
    autocast: torch.dtype | None = None,
) -> StepCost:
    """Predict the cost of a training step without running it.

    The step runs on tensors that have a shape but no content, so it takes neither the memory nor the time
    of the real one, and your objective does not change. Memory that kernels use inside one operation
    (workspaces of convolutions) and the cache of torch's allocator are not counted. Where code reads a
    value, the value is taken to be 1, and a mask to keep everything, so the result is an upper bound.

    Args:
        objective: The objective; its model may live on the ``"meta"`` device.
        x: Inputs, used only for their shapes and dtypes; ``"meta"`` tensors work.
        y: Targets, likewise.
        batch_size: Samples of the step. None means as many as ``y`` has.
        optimizer: Function that makes the optimiser from the parameters, for the memory of its state.
        autocast: Dtype of the forward pass under `torch.autocast`; None for no autocast.

    Example:
        >>> model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
        >>> objective = Elliptic(model, nn.MSELoss(), sampling="path", n_times=5)
        >>> cost = step_cost(objective, torch.randn(4, 20), torch.randn(4, 1), batch_size=128)
        >>> cost.rows, cost.flops / cost.ordinary.flops
        (640, 5.0)
    """
    if not isinstance(objective, Elliptic):
        raise TypeError(
            f"step_cost needs an Elliptic objective, but got {type(objective).__name__}. Wrap the model: "
            "Elliptic(model, loss_fn, ...); the cost of ordinary training is in the result's `ordinary`."
        )
    batch_size = len(y) if batch_size is None else batch_size
    checks.count("batch_size", batch_size)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with warnings.catch_warnings(), mode:
        warnings.simplefilter("ignore")  # warnings about settings were shown when the objective was made
        x, y = tree_map(lambda t: _empty(t, batch_size), (x, y))
        simulated = _Simulation(objective, optimizer, autocast, batch_size)
        ordinary = simulated.run(lambda own: own.clean_loss(x, y), batch_size)
        own = simulated.objective
        with _Counter():
            rows = own.sample(x, y).rows
        cost = simulated.run(lambda own: own(x, y, generator=torch.Generator()), rows)
        if own.settings.chunk_size is not None and cost.forward_rows > rows:
            own.settings = replace(own.settings, chunk_size=None)
            whole = simulated.run(lambda own: own(x, y, generator=torch.Generator()), rows)
            cost = replace(cost, activations=round(whole.activations * cost.chunk_rows / rows))
    return replace(cost, ordinary=ordinary)


class _Simulation:
    """A copy of an objective without content, whose steps can be counted."""

    def __init__(
        self,
        objective: Elliptic,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        autocast: torch.dtype | None,
        batch_size: int,
    ) -> None:
        memo: dict[int, Any] = {id(objective.across): None}
        for p in objective.parameters():
            memo[id(p)] = nn.Parameter(_empty(p), requires_grad=p.requires_grad)
        memo |= {id(buffer): _empty(buffer) for buffer in objective.buffers()}
        if isinstance(objective.drift, nn.Module):  # a fixed drift is not among the parameters
            for value in objective.drift.state_dict(keep_vars=True).values():
                memo.setdefault(id(value), _empty(value))
        self.objective = copy.deepcopy(objective, memo).train()
        settings = replace(self.objective.settings, schedule=None, validate=False)  # there are no values
        if isinstance(settings.sigma, Screened):  # rejection sampling would never end without values
            settings = replace(settings, sigma=0.05)
        self.objective.settings = settings
        self.optimizer = optimizer([p for p in self.objective.parameters() if p.requires_grad])
        self.autocast, self.batch_size = autocast, batch_size
        self.passes: dict[str, int] = {}
        self.objective.model.register_forward_pre_hook(self._count_forward, with_kwargs=True)
        self.objective.model.register_forward_hook(self._count_backward)
        for p in self.objective.parameters():  # a first step creates the optimiser's state
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        self.optimizer.step()

    def run(self, loss: Callable[[Elliptic], Tensor], rows: int) -> StepCost:
        """Count one step."""
        self.passes = {"forward": 0, "backward": 0, "largest": 0}
        self.optimizer.zero_grad()
        counted = _Counter()
        device = next((p.device.type for p in self.objective.parameters()), "cpu")
        with counted:
            with (
                counted.saving(),
                torch.autocast(device, self.autocast, enabled=self.autocast is not None, cache_enabled=False),
            ):
                value = loss(self.objective)
            value.backward()
            del value
            self.optimizer.step()
        fixed = _bytes([*self.objective.parameters(), *self.objective.buffers()])
        state = _bytes(tree_leaves(list(self.optimizer.state.values())))
        return StepCost(
            batch_size=self.batch_size,
            rows=rows,
            forward_rows=self.passes["forward"],
            backward_rows=self.passes["backward"],
            chunk_rows=self.passes["largest"],
            flops=counted.flops,
            parameters=fixed,
            gradients=_bytes([p.grad for p in self.objective.parameters() if p.grad is not None]),
            optimizer=state,
            activations=counted.most_saved,
            peak=fixed + state + counted.peak,
        )

    def _count_forward(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        rows = len(next(_tensors((args, kwargs))))
        self.passes["forward"] += rows
        self.passes["largest"] = max(self.passes["largest"], rows)

    def _count_backward(self, _module: nn.Module, _args: Any, output: Any) -> None:
        def count(gradient: Tensor) -> None:
            self.passes["backward"] += len(gradient)

        first = next((t for t in _tensors(output) if t.requires_grad), None)
        if first is not None:
            first.register_hook(count)


class _Counter(TorchDispatchMode):
    """Count the flops of operations, and track the storages that they allocate.

    Uses the formulas of torch's ``FlopCounterMode``, whose hooks on modules would keep activations alive.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.now = self.peak = self.saved = self.most_saved = 0
        #: Storages that are alive: a weak reference, and their bytes (None if made before).
        self.known: dict[int, tuple[Any, int | None]] = {}
        self.kept: set[int] = set()  # those of them that autograd saved

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs)):
            self._know(tensor, is_new=False)
        out = _without_values(func, args) if func in _READS else None
        out = func(*args, **kwargs) if out is None else out
        for tensor in _tensors(out):
            self._know(tensor, is_new=True)
        self.peak = max(self.peak, self.now)
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += int(formula(*args, **kwargs, out_val=out))
        return out

    def saving(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Return a context that counts what autograd saves, once per storage allocated here."""
        return torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor)

    def _save(self, tensor: Tensor) -> Tensor:
        key = tensor.untyped_storage()._cdata
        _, size = self.known.get(key, (None, None))
        if size is not None and key not in self.kept:
            self.kept.add(key)
            self.saved += size
            self.most_saved = max(self.most_saved, self.saved)
        return tensor

    def _know(self, tensor: Tensor, is_new: bool) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes() if is_new else 0
        if key in self.known:
            return

        def forget(_: object) -> None:
            del self.known[key]
            self.now -= size
            if key in self.kept:
                self.kept.remove(key)
                self.saved -= size

        self.known[key] = (weakref.ref(storage, forget), size if is_new else None)
        self.now += size


#: Operations whose result depends on values.
_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.index.Tensor)


def _without_values(func: Any, args: Any) -> Any:
    """Read 1 from any tensor, and let a mask keep everything; None for other operations."""
    if func is _READS[0]:
        return True if args[0].dtype is torch.bool else 1 if not args[0].is_floating_point() else 1.0
    tensor, indices = args
    mask = indices[0]
    if len(indices) == 1 and mask is not None and mask.dtype is torch.bool:
        return tensor.new_empty((mask.numel(), *tensor.shape[mask.ndim :]))
    return None


def _empty(tensor: Tensor, rows: int | None = None) -> Tensor:
    """Make a tensor like this one, perhaps with another number of rows; it has no content in fake mode."""
    device = torch.device("cpu") if tensor.is_meta else tensor.device
    if rows is None:
        return torch.empty_like(tensor, device=device, requires_grad=False)
    return torch.empty((rows, *tensor.shape[1:]), dtype=tensor.dtype, device=device)


def _tensors(tree: Any) -> Iterator[Tensor]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
            yield leaf


def _bytes(tensors: Iterable[Any]) -> int:
    """Memory of tensors, each storage once."""
    return sum({(s := t.untyped_storage())._cdata: s.nbytes() for t in _tensors(list(tensors))}.values())


def _line(name: str, value: int, base: int) -> str:
    def show(amount: int | float) -> str:
        if name.endswith("rows"):
            return f"{amount:,}"
        if name == "flops":
            return f"{amount:.3g}"
        for unit in ("B", "KiB", "MiB", "GiB"):
            if amount < 1024 or unit == "GiB":
                break
            amount /= 1024
        return f"{amount:.4g} {unit}"

    ratio = f"{value / base:.2f}" if base else "-"
    return f"{name.replace('_', ' '):<20}{show(value):>12}{show(base):>12}{ratio:>8}"
