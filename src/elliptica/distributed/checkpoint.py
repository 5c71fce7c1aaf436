"""Save checkpoints from several processes and resume in any number of them, without pickle.

Tensors go through ``torch.distributed.checkpoint`` (DCP) into safetensors files, one per process, each with
the shards of that process; everything else is JSON. (DCP's own file format stores metadata in a pickle.)
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import hf_storage, state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from elliptica._utils.random import stream_seed
from elliptica.distributed.ranks import current_ranks

_OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


@dataclass(frozen=True)
class Checkpoint:
    """The result of `load_checkpoint`: what `save_checkpoint` was given, in how many processes."""

    step: int
    extra: dict[str, Any]
    world_size: int


def save_checkpoint(
    folder: str | os.PathLike[str],
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    generators: Mapping[str, torch.Generator] | None = None,
    extra: dict[str, Any] | None = None,
    keep: int = 1,
) -> Path:
    """Save an objective (plain, compiled, in DDP or sharded) and its optimiser; call it in all processes.

    Each checkpoint is its own folder inside ``folder``. It gets its final name when it is complete; until
    then, the previous one remains.

    Args:
        folder: Folder of the checkpoints, on a disk that all processes share.
        objective: The trained module.
        optimizer: Its optimiser.
        step: Number of steps so far.
        generators: Random streams of this process, by name; those of all processes are saved.
        extra: Further values that JSON can store, such as the epoch.
        keep: Number of complete checkpoints to keep.

    Returns:
        The folder of this checkpoint.
    """
    ranks, root = current_ranks(), Path(folder)
    state = _state(objective, optimizer)
    tensors, values = _tensors(state), {n: v for n, v in state.items() if not isinstance(v, Tensor)}
    tensors |= {f"generators.{ranks.rank}.{name}": g.get_state() for name, g in (generators or {}).items()}
    description = {"step": int(step), "extra": extra or {}, "world_size": ranks.size, "values": values}
    text = json.dumps(description, indent=1)  # raises before anything is written
    number = 1 + max([0, *ranks.from_first(_numbers(root))])
    writing, target = root / ".writing", root / f"checkpoint-{number:06d}"
    if ranks.is_first:
        shutil.rmtree(writing, ignore_errors=True)  # left by a killed process
        writing.mkdir(parents=True)
    ranks.wait()
    writer = hf_storage.HuggingFaceStorageWriter(str(writing), save_distributed=True)
    with _quiet():
        state_dict_saver.save(tensors, storage_writer=writer, no_dist=ranks.size == 1)
    ranks.wait()
    if ranks.is_first:
        (writing / "checkpoint.json").write_text(text)
        writing.rename(target)
        for old in _numbers(root)[: -max(1, keep)]:
            shutil.rmtree(root / f"checkpoint-{old:06d}")
    ranks.wait()
    return target


def load_checkpoint(
    folder: str | os.PathLike[str],
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    generators: Mapping[str, torch.Generator] | None = None,
) -> Checkpoint | None:
    """Resume from the latest complete checkpoint; call it in all processes.

    The number of processes and the wrapper may differ from those that saved it. With the same number of
    processes, random streams resume where they were. With another number, each process gets a new stream
    derived from the saved ones, so that no noise repeats.

    Args:
        folder: As in `save_checkpoint`.
        objective: A module like the saved one.
        optimizer: An optimiser like the saved one.
        generators: As in `save_checkpoint`; their states are set.

    Returns:
        The saved step and extra values, or None if there is no checkpoint.

    Raises:
        ValueError: If names or shapes differ from the saved ones. Nothing has been changed then.
    """
    ranks, root = current_ranks(), Path(folder)
    numbers = ranks.from_first(_numbers(root))
    if not numbers:
        return None
    path = root / f"checkpoint-{numbers[-1]:06d}"
    saved = json.loads((path / "checkpoint.json").read_text())
    same_size = ranks.size == saved["world_size"]
    streams = {f"generators.{ranks.rank * same_size}.{name}": g for name, g in (generators or {}).items()}
    state, reader = _state(objective, optimizer), hf_storage.HuggingFaceStorageReader(str(path))
    tensors = _tensors(state) | {name: generator.get_state() for name, generator in streams.items()}
    here = dict.fromkeys(state, ()) | {name: tuple(value.shape) for name, value in tensors.items()}
    entries: dict[str, Any] = reader.read_metadata().state_dict_metadata
    there = dict.fromkeys(saved["values"], ()) | {name: tuple(e.size) for name, e in entries.items()}
    _check_fit(here, there)
    with _quiet():  # writes into the tensors, and so into those of the state
        state_dict_loader.load(tensors, storage_reader=reader, no_dist=ranks.size == 1)
    state |= {name: tuple(v) if isinstance(state[name], tuple) else v for name, v in saved["values"].items()}
    model, optim = (
        {name.removeprefix(part): value for name, value in state.items() if name.startswith(part)}
        for part in ("model.", "optimizer.")
    )
    set_state_dict(objective, optimizer, model_state_dict=model, optim_state_dict=optim, options=_OPTIONS)
    for name, generator in streams.items():
        if same_size:
            generator.set_state(tensors[name])
        else:
            digest = hashlib.blake2b(tensors[name].numpy().tobytes(), digest_size=8).hexdigest()
            generator.manual_seed(stream_seed("resumed", digest, ranks.size, ranks.rank))
    return Checkpoint(saved["step"], saved["extra"], saved["world_size"])


def _state(objective: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the states of both, by names that do not depend on wrappers."""
    is_new = not optimizer.state
    model, optim = get_state_dict(objective, optimizer, options=_OPTIONS)
    state: dict[str, Any] = {f"model.{name}": value for name, value in model.items()}
    state |= {f"optimizer.{name}": value for name, value in optim.items()}
    if is_new:  # to read a state, torch has taken a step without gradients, which must not count
        steps = [name for name in state if name.startswith("optimizer.state.") and name.endswith(".step")]
        state |= {name: torch.zeros_like(state[name]) for name in steps}
        optimizer.state.clear()
    return state


def _tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    """Return views of all tensors with at least one axis, because safetensors reads slices."""
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return {name: value.view(1) if value.ndim == 0 else value for name, value in tensors.items()}


def _check_fit(here: dict[str, Any], there: dict[str, Any]) -> None:
    """Raise for shapes that differ, before anything is loaded, and for names that torch would ignore."""
    wanted = {name for name in there if not name.startswith("generators.")}  # not those of all processes
    for name in sorted(here.keys() | wanted):
        if here.get(name) != there.get(name):
            raise ValueError(
                f"The checkpoint does not fit: {name!r} has shape {there.get(name)} there and "
                f"{here.get(name)} here. Build the objective and the optimizer as they were saved."
            )


def _numbers(root: Path) -> list[int]:
    """Return the numbers of the complete checkpoints."""
    return sorted(int(path.name.removeprefix("checkpoint-")) for path in root.glob("checkpoint-*"))


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
