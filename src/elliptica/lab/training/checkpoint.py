"""Save and resume runs: everything a run needs, in one safetensors file (no pickle)."""

from __future__ import annotations

import json
import math
import warnings
import zlib
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from elliptica._utils.files import replacing
from elliptica.core.inputs import EllipticWarning
from elliptica.distributed.ranks import Ranks
from elliptica.lab.training.batch import HasState, Objective
from elliptica.lab.training.settings import TrainingSettings

Tensors = dict[str, Tensor]


def save_checkpoint(file: Path, groups: dict[str, Tensors], state: dict[str, Any]) -> None:
    """Write tensors by group and plain values atomically: a kill leaves the old file or the new one.

    This does not wait for the disk, which would cost more than a short epoch. A file damaged by a power cut
    is set aside when it is read.

    Args:
        file: File to write.
        groups: Tensors by group and name.
        state: Values that JSON can hold; the key "checksum" is taken.

    Raises:
        OSError: If it cannot be written.
    """
    flat = {
        f"{group}/{name}": t.contiguous() for group, tensors in groups.items() for name, t in tensors.items()
    }
    # one entry: safetensors writes several in random order, and equal runs must leave equal files
    text = json.dumps({**state, "checksum": _checksum(flat, state)})
    try:
        with replacing(file) as part:
            save_file(flat, part, metadata={"state": text})
    except (SafetensorError, OSError) as error:
        raise OSError(
            f"The checkpoint {file.name} cannot be written ({error}). Is the disk full? Free some space and "
            "rerun the same command: it resumes after the last epoch that was written."
        ) from error


def _checksum(tensors: Tensors, state: dict[str, Any]) -> str:
    """Return a checksum of a checkpoint: safetensors has none, and a flipped bit would change the run."""
    crc = zlib.crc32(json.dumps(state).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        crc = zlib.crc32(f"{name} {value.dtype} {tuple(value.shape)}".encode(), crc)
        if value.numel():
            crc = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def load_checkpoint(file: Path) -> tuple[dict[str, Tensors], dict[str, Any]] | None:
    """Read a file of `save_checkpoint`; None if there is none.

    A file that cannot be read, or whose content has changed since it was written, is set aside with a
    warning, never used and never deleted. Files of earlier versions have no checksum.
    """
    if not file.exists():
        return None
    if not file.is_file():  # reading a pipe would wait for ever
        set_aside(file, "The checkpoint cannot be read (it is a folder, a pipe or a device)")
        return None
    groups: dict[str, Tensors] = {}
    try:
        with safe_open(file, framework="pt") as handle:
            state = json.loads(handle.metadata()["state"])
            tensors = {key: handle.get_tensor(key) for key in handle.keys()}  # noqa: SIM118 - not a mapping
        if not isinstance(state, dict):
            raise ValueError(f"its state is a {type(state).__name__}")
        expected = state.pop("checksum", None)
        if expected is not None and expected != _checksum(tensors, state):
            raise ValueError("its content has changed since it was written")
        for key, value in tensors.items():
            group, _, name = key.partition("/")
            groups.setdefault(group, {})[name] = value
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        set_aside(file, f"The checkpoint cannot be read ({error})")
        return None
    return groups, state


def set_aside(file: Path, why: str) -> Path:
    """Rename a file that must not be used; keep it for inspection."""
    number = 0
    while (kept := file.with_name(f"{file.name}.unusable-{number}")).exists():
        number += 1
    try:
        file.rename(kept)
    except OSError:  # a folder that must not be written to
        kept = file
    warnings.warn(f"{why}. It is kept as {kept}; the run starts again.", EllipticWarning, stacklevel=3)
    return kept


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    """Return the state of an optimiser as named tensors; numbers become tensors of one element."""
    return {
        f"{parameter}/{name}": torch.as_tensor(value)
        for parameter, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Restore the state of an optimiser from `optimizer_tensors`."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        parameter, _, name = key.partition("/")
        state.setdefault(int(parameter), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def model_tensors(model: nn.Module) -> Tensors:
    """Copy parameters and buffers to the CPU."""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


@dataclass
class State:
    """State of a run at the end of an epoch."""

    epoch: int = 0
    best_score: float = -math.inf
    best_epoch: int = -1
    evaluations: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    observed: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Trained:
    """Everything that training changes, and its settings."""

    settings: TrainingSettings
    model: nn.Module
    objective: Objective
    optimizer: torch.optim.Optimizer
    order: torch.Generator
    noise: torch.Generator
    code: dict[str, str] = field(default_factory=dict)  # versions of code that it depends on
    is_observed: bool = False  # something is recorded of every epoch

    def save(self, file: Path, state: State, best: dict[str, Tensor]) -> None:
        """Write a checkpoint; ``best`` are the weights of the best epoch so far."""
        streams = {
            "order": self.order.get_state(),
            "noise": self.noise.get_state(),
            "model": torch.get_rng_state(),
        }
        groups = {
            "model": model_tensors(self.model),
            "best": best,
            "optimizer": optimizer_tensors(self.optimizer),
            "streams": streams,
        }
        objective: object = self.objective
        if isinstance(objective, HasState):
            groups["objective"] = objective.state_tensors()
        about = {"settings": _plain(self.settings), **({"code": self.code} if self.code else {})}
        save_checkpoint(file, groups, {**about, **asdict(state)})

    def check_agreement(self, score: float, ranks: Ranks) -> None:
        """Raise if replicas have diverged."""
        size = float(sum(p.detach().double().abs().sum() for p in self.model.parameters()))
        sums = ranks.all((size, score))
        if not all(_agree(a, b) for each in sums for a, b in zip(each, sums[0], strict=True)):
            raise RuntimeError(
                f"The processes no longer have the same weights (sum of sizes and score: {sums}). "
                "Their machines or versions of torch differ, or the network or the objective draws from "
                "torch's default stream."
            )

    def restore(self, file: Path, ranks: Ranks) -> tuple[State, dict[str, Tensor]] | None:
        """Read a checkpoint in all processes; set aside one that does not fit, without changing anything."""
        restored = self._restore(file) if ranks.is_first else None
        if ranks.size > 1 and ranks.from_first(restored is not None):
            if not ranks.is_first:
                restored = self._restore(file)
            if not all(ranks.all(restored is not None)):  # also waits until all have read it
                raise FileNotFoundError(
                    f"Not every process can read the checkpoint {file}. Keep it in a folder that all share."
                )
        return restored

    def _restore(self, file: Path) -> tuple[State, dict[str, Tensor]] | None:
        loaded = load_checkpoint(file)
        if loaded is None:
            return None
        groups, values = loaded
        written = values.pop("settings", None)
        if not isinstance(written, dict) or {**_defaults(), **written} != _plain(self.settings):
            set_aside(file, "The checkpoint was written with other settings")
            return None
        if (code := values.pop("code", {})) != self.code:
            changed = sorted(name for name in {*code, *self.code} if code.get(name) != self.code.get(name))
            set_aside(file, f"The checkpoint was written with another source of {', '.join(changed)}")
            return None
        if self.is_observed and len(values.get("observed", [])) != values.get("epoch"):
            set_aside(file, "The checkpoint lacks what is to be recorded of its first epochs")
            return None
        initial = model_tensors(self.model)
        try:
            state, best = State(**values), groups["best"]
            streams = [groups["streams"][name] for name in ("order", "noise", "model")]
            self.model.load_state_dict(best)  # check that it fits, too
            self.model.load_state_dict(groups["model"])
            restore_optimizer(self.optimizer, groups["optimizer"])
            objective: object = self.objective
            if isinstance(objective, HasState):
                objective.load_state_tensors(groups.get("objective", {}))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            self.model.load_state_dict(initial)
            param_groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": {}, "param_groups": param_groups})
            set_aside(file, f"The checkpoint does not fit the run ({error})")
            return None
        self.order.set_state(streams[0])
        self.noise.set_state(streams[1])
        torch.set_rng_state(streams[2])
        return state, best


def _agree(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6) or (math.isnan(a) and math.isnan(b))


def _defaults() -> dict[str, Any]:
    """Return settings with defaults, because older files lack settings that were added later."""
    return {
        f.name: f.default for f in fields(TrainingSettings) if f.default is not MISSING and f.default != ()
    }


def _plain(settings: TrainingSettings) -> dict[str, Any]:
    """Convert settings to the values that JSON returns."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(settings).items()}
