"""Save checkpoints from several processes and resume in any number of them, without pickle.

Tensors go through ``torch.distributed.checkpoint`` (DCP) into safetensors files, one per process, each with
the shards of that process; everything else is JSON. (DCP's own file format stores metadata in a pickle.)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import hf_storage, state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from elliptica._utils import checks
from elliptica._utils.extras import import_extra
from elliptica._utils.random import stream_seed
from elliptica._utils.untrusted import read_json
from elliptica.distributed.ranks import Ranks, current_ranks

_OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)
_FORMAT = 1
_DESCRIPTION = "checkpoint.json"
_NEEDED = {"format", "step", "world_size", "files", "values", "extra"}
Generators = Mapping[str, torch.Generator]


@dataclass(frozen=True)
class Checkpoint:
    """The result of `load_checkpoint`.

    Attributes:
        step: Step that was saved.
        extra: Extra values that were saved.
        world_size: Number of processes that saved it.
        folder: Folder of the checkpoint.
    """

    step: int
    extra: dict[str, Any]
    world_size: int
    folder: Path = field(compare=False)


def save_checkpoint(
    folder: str | os.PathLike[str],
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    generators: Generators | None = None,
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

    Example:
        >>> from elliptica import Elliptic
        >>> from elliptica.distributed import rank_generator
        >>> objective = Elliptic(nn.Linear(4, 1), nn.MSELoss())
        >>> optimizer, noise = torch.optim.Adam(objective.parameters()), rank_generator(0)
        >>> loss = objective(torch.randn(8, 4), torch.randn(8, 1), generator=noise)
        >>> loss.backward(); optimizer.step()
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save_checkpoint(folder, objective, optimizer, step=1, generators={"noise": noise})
        ...     checkpoint = load_checkpoint(folder, objective, optimizer, generators={"noise": noise})
        >>> checkpoint.step
        1
    """
    checks.count("keep", keep, 1, " (the new checkpoint is kept)")
    checks.count("step", step, 0)
    _check_generators(generators)
    import_extra("A checkpoint", "scale", "safetensors")  # torch needs it to read and write
    ranks, root = current_ranks(), _root(folder)
    with _kept_new(optimizer):
        tensors, values = _state(objective, optimizer)
    for name, generator in (generators or {}).items():
        tensors[f"generators.{ranks.rank}.{name}"] = generator.get_state()
    text = _as_json(values, extra)  # fails before anything is written
    writing = root / ".writing"
    if ranks.is_first:
        shutil.rmtree(writing, ignore_errors=True)  # left by a killed process
        _make_folder(writing)
    ranks.wait()
    writer = hf_storage.HuggingFaceStorageWriter(str(writing), save_distributed=True)
    with _quiet():
        state_dict_saver.save(tensors, storage_writer=writer, no_dist=ranks.size == 1)
    ranks.wait()
    files = digests(writing, sorted(file.name for file in writing.iterdir()), ranks)
    target = root / ranks.from_first(next_name(root))
    if ranks.is_first:
        finish(
            writing, target, {"step": int(step), "world_size": ranks.size, "files": files, **json.loads(text)}
        )
        for _, old in complete(root)[:-keep]:
            shutil.rmtree(old)
    ranks.wait()
    return target


def load_checkpoint(
    folder: str | os.PathLike[str],
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    generators: Generators | None = None,
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
        ValueError: If the checkpoint is damaged or does not fit. Nothing has been changed then.
    """
    _check_generators(generators)
    import_extra("A checkpoint", "scale", "safetensors")  # torch needs it to read and write
    ranks, root = current_ranks(), _root(folder)
    latest = ranks.from_first([path.name for _, path in complete(root)[-1:]])
    if not latest:
        return None
    path = root / latest[0]
    description = described(path)
    if digests(path, sorted(description["files"]), ranks) != description["files"]:
        raise ValueError(damaged(path, "its files have changed since they were written"))
    reader = hf_storage.HuggingFaceStorageReader(str(path))
    try:
        saved: dict[str, Any] = dict(reader.read_metadata().state_dict_metadata)
    except Exception as error:  # of whatever kind: these are not the files that we wrote
        raise ValueError(damaged(path, str(error))) from error
    with _new_buffers(objective, saved), _kept_new(optimizer, on_success=False):
        tensors, values = _state(objective, optimizer)
        _check_fit(path, tensors, saved, values, description["values"])
        states = _load_states(generators or {}, description, saved, ranks, path)
    tensors.update(states)
    try:
        with _quiet():
            state_dict_loader.load(tensors, storage_reader=reader, no_dist=ranks.size == 1)
    except CheckpointException as error:
        raise ValueError(damaged(path, str(error))) from error
    _restore(objective, optimizer, tensors, description["values"])
    for name, generator in (generators or {}).items():
        _go_on(generator, tensors[f"generators.{_source(ranks, description)}.{name}"], ranks, description)
    return Checkpoint(description["step"], description["extra"], description["world_size"], path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the warning that torch.distributed is not in use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


@contextlib.contextmanager
def _kept_new(optimizer: torch.optim.Optimizer, *, on_success: bool = True) -> Iterator[None]:
    """Keep an optimiser new: to read the state of one, torch takes a step without gradients."""
    is_new, kept = not optimizer.state, False
    try:
        yield
        kept = not on_success
    finally:
        if is_new and not kept:
            optimizer.state.clear()


def _state(
    objective: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors, and everything else, by names that do not depend on wrappers."""
    is_new = not optimizer.state
    model, optim = get_state_dict(objective, optimizer, options=_OPTIONS)
    flat: dict[str, Any] = {f"model.{name}": value for name, value in model.items()}
    flat.update({f"optimizer.{name}": value for name, value in optim.items()})
    if is_new:  # torch has taken a step without gradients, which must not count
        steps = {n: v for n, v in flat.items() if n.startswith("optimizer.state.") and n.endswith(".step")}
        flat.update({n: torch.zeros_like(v) for n, v in steps.items() if isinstance(v, Tensor)})
    # safetensors cannot read slices of tensors without an axis
    tensors = {n: v.reshape(1) if v.ndim == 0 else v for n, v in flat.items() if isinstance(v, Tensor)}
    return tensors, {n: v for n, v in flat.items() if not isinstance(v, Tensor)}


def _restore(
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, Tensor],
    saved: dict[str, Any],
) -> None:
    model, optim = get_state_dict(objective, optimizer, options=_OPTIONS)
    parts: dict[str, dict[str, Any]] = {"model": model, "optimizer": optim}
    for prefix, part in parts.items():
        for name, old in part.items():
            key = f"{prefix}.{name}"
            if isinstance(old, Tensor):
                part[name] = tensors[key].reshape(old.shape) if old.ndim == 0 else tensors[key]
            else:
                part[name] = tuple(saved[key]) if isinstance(old, tuple) else saved[key]
    set_state_dict(objective, optimizer, model_state_dict=model, optim_state_dict=optim, options=_OPTIONS)


@contextlib.contextmanager
def _new_buffers(objective: nn.Module, saved: Mapping[str, Any]) -> Iterator[None]:
    """Create buffers that only appear in training, such as the value that ``sigma="auto"`` chose."""
    while isinstance(inner := getattr(objective, "module", getattr(objective, "_orig_mod", None)), nn.Module):
        objective = inner  # in DDP, or compiled
    made = []
    for prefix, module in objective.named_modules():
        for name, value in module._buffers.items():
            entry = saved.get(".".join(filter(None, ("model", prefix, name))))
            if value is None and entry is not None:
                like = next(objective.parameters())
                module._buffers[name] = torch.zeros(
                    entry.size, dtype=entry.properties.dtype, device=like.device
                )
                made.append((module, name))
    try:
        yield
    except ValueError:
        for module, name in made:
            module._buffers[name] = None
        raise


def _check_fit(
    path: Path,
    own: Mapping[str, Tensor],
    saved: Mapping[str, Any],
    own_values: Mapping[str, Any],
    saved_values: Mapping[str, Any],
) -> None:
    """Raise if names or shapes differ."""
    here = {name: tuple(value.shape) for name, value in own.items()} | dict.fromkeys(own_values, ())
    there = {name: tuple(entry.size) for name, entry in saved.items() if not name.startswith("generators.")}
    there |= dict.fromkeys(saved_values, ())
    for name in sorted(here.keys() ^ there.keys()):
        place = "missing there" if name in here else "only there"
        raise ValueError(
            f"The checkpoint {path} does not fit: {name!r} is {place}. Build both as they were saved."
        )
    for name, shape in here.items():
        if shape != there[name]:
            raise ValueError(
                f"The checkpoint {path} does not fit: {name!r} has shape {there[name]} there and "
                f"{shape} here. Build the objective as it was saved."
            )


def _source(ranks: Ranks, description: dict[str, Any]) -> int:
    """Return the rank whose streams this process resumes."""
    return ranks.rank if ranks.size == description["world_size"] else 0


def _load_states(
    generators: Generators, description: dict[str, Any], saved: Mapping[str, Any], ranks: Ranks, path: Path
) -> dict[str, Tensor]:
    """Allocate the states of random streams."""
    names = {name: f"generators.{_source(ranks, description)}.{name}" for name in generators}
    missing = [name for name, key in names.items() if key not in saved]
    if missing:
        raise ValueError(
            f"The checkpoint {path} does not hold the random streams {', '.join(missing)}. Omit them, and "
            "seed them again."
        )
    return {key: generators[name].get_state() for name, key in names.items()}


def _go_on(generator: torch.Generator, state: Tensor, ranks: Ranks, description: dict[str, Any]) -> None:
    if ranks.size == description["world_size"]:
        generator.set_state(state)
        return
    digest = hashlib.blake2b(state.numpy().tobytes(), digest_size=8).hexdigest()
    generator.manual_seed(stream_seed("resumed", digest, ranks.size, ranks.rank))


def _root(folder: object) -> Path:
    if not isinstance(folder, str | os.PathLike) or "\0" in str(folder):
        raise TypeError(f"folder must be the path of a folder, but got {folder!r}.")
    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise NotADirectoryError(f"{root} is a file, but checkpoints need a folder. Choose another path.")
    return root


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise OSError(
            f"No checkpoint can be written to {path.parent} ({error.strerror}). Choose a folder that you may "
            "write to, on a disk with room."
        ) from error


def _check_generators(generators: object) -> None:
    if generators is None:
        return
    if isinstance(generators, Mapping):
        wrong = [name for name, value in generators.items() if not isinstance(value, torch.Generator)]
        if not wrong:
            return
        got = f"a {type(generators[wrong[0]]).__name__} for {wrong[0]!r}"
    else:
        got = type(generators).__name__
    raise TypeError(f"generators must be a dict of torch.Generator by name, but got {got}.")


def _as_json(values: dict[str, Any], extra: object) -> str:
    if extra is not None and not isinstance(extra, dict):
        raise TypeError(
            f"extra must be a dict, but got {type(extra).__name__}. Pass e.g. extra={{'epoch': 3}}."
        )
    try:
        return json.dumps({"values": values, "extra": extra or {}})
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"extra must hold values that JSON can store, but: {error}. Convert them first, e.g. with "
            "tensor.tolist()."
        ) from error


def next_name(root: Path) -> str:
    """Return the name of a new checkpoint."""
    return f"checkpoint-{max([0, *(number for number, _ in complete(root))]) + 1:06d}"


def finish(writing: Path, target: Path, description: dict[str, Any]) -> None:
    """Describe a written checkpoint, flush it to disk, and give it its final name."""
    whole = {"format": _FORMAT, **description}
    with (writing / _DESCRIPTION).open("w") as handle:
        json.dump({**whole, "digest": _digest(whole)}, handle, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    writing.rename(target)


def complete(root: Path) -> list[tuple[int, Path]]:
    """Return the complete checkpoints in the order of saving."""

    def each() -> Iterator[tuple[int, Path]]:
        for path in root.glob("checkpoint-*") if root.is_dir() else ():
            number = path.name.removeprefix("checkpoint-")
            if number.isdecimal() and path.is_dir():
                yield int(number), path

    return sorted(each())


def described(path: Path) -> dict[str, Any]:
    """Read the description of a checkpoint; raise if it is unreadable or lists other files."""
    try:
        description = read_json(path / _DESCRIPTION)
        if not isinstance(description, dict) or not description.keys() >= _NEEDED:
            raise ValueError("entries are missing")
    except (OSError, ValueError) as error:
        raise ValueError(damaged(path, f"{_DESCRIPTION}: {error}")) from error
    if description["format"] != _FORMAT:
        raise ValueError(
            f"The checkpoint {path} has format {description['format']}, which this version cannot read."
        )
    if not isinstance(description["files"], dict) or not isinstance(description["values"], dict):
        raise ValueError(damaged(path, f"{_DESCRIPTION}: files or values are not by name"))
    if not _is_count(description["step"], 0) or not _is_count(description["world_size"], 1):
        raise ValueError(damaged(path, f"{_DESCRIPTION}: step or world_size is not a count"))
    if not isinstance(description["extra"], dict):
        raise ValueError(damaged(path, f"{_DESCRIPTION}: extra is not a dict"))
    files = list(path.iterdir())
    if special := [file.name for file in files if not file.is_file()]:  # reading a pipe would wait for ever
        raise ValueError(damaged(path, f"not regular files: {', '.join(sorted(special))}"))
    there = {file.name for file in files} - {_DESCRIPTION}
    if there != set(description["files"]):
        odd = ", ".join(sorted(there ^ set(description["files"])))
        raise ValueError(damaged(path, f"missing or unexpected files: {odd}"))
    expected = description.pop("digest", None)  # earlier versions wrote none
    if expected is not None and expected != _digest(description):
        raise ValueError(damaged(path, f"{_DESCRIPTION} has changed since it was written"))
    return description


def _digest(description: dict[str, Any]) -> str:
    """Return a digest of a description: a changed learning rate would change the run without a word."""
    return hashlib.blake2b(json.dumps(description, sort_keys=True).encode(), digest_size=8).hexdigest()


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def damaged(path: Path, why: str) -> str:
    """Return the message for a damaged checkpoint."""
    return f"The checkpoint {path} is damaged ({why}). Move it away to use the previous one, if it was kept."


def digests(path: Path, names: list[str], ranks: Ranks) -> dict[str, str]:
    """Return the digest of each file; every process reads some of them."""
    own = {}
    for name in names[ranks.rank :: ranks.size]:
        digest = hashlib.sha256()
        with (path / name).open("rb") as handle:
            while block := handle.read(2**20):
                digest.update(block)
        own[name] = digest.hexdigest()
    return {name: digest for each in ranks.all(own) for name, digest in each.items()}
