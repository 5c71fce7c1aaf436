"""Save and resume a training: everything that it changes, in one safetensors file (no pickle)."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from elliptica._utils.files import replacing
from elliptica.core.inputs import EllipticWarning
from elliptica.lab.training.batch import HasState, Objective
from elliptica.lab.training.settings import TrainingSettings

Tensors = dict[str, Tensor]


@dataclass
class State:
    """Numbers of a training at the end of an epoch."""

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

    def save(self, file: Path, state: State, best: Tensors) -> None:
        """Replace the checkpoint; ``best`` are the weights of the best epoch so far."""
        objective: object = self.objective
        groups = {
            "model": model_tensors(self.model),
            "best": best,
            "optimizer": _optimizer_tensors(self.optimizer),
            "objective": objective.state_tensors() if isinstance(objective, HasState) else {},
            "streams": {"order": self.order.get_state(), "noise": self.noise.get_state()},
            "dropout": {"state": torch.get_rng_state()},
        }
        tensors = {f"{g}/{n}": t.contiguous() for g, kept in groups.items() for n, t in kept.items()}
        text = json.dumps({"settings": asdict(self.settings), "state": asdict(state)})
        with replacing(file) as part:
            save_file(tensors, part, metadata={"training": text})

    def restore(self, file: Path) -> tuple[State, Tensors] | None:
        """Load a checkpoint; None if there is none or it is damaged. Other settings raise a ValueError."""
        if not file.exists():
            return None
        groups: dict[str, Tensors] = {}
        try:
            with safe_open(file, framework="pt") as handle:
                content = json.loads(handle.metadata()["training"])
                for key in handle.keys():  # noqa: SIM118 - not a mapping
                    group, _, name = key.partition("/")
                    groups.setdefault(group, {})[name] = handle.get_tensor(key)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            warnings.warn(f"{file} is damaged ({error}); starting over.", EllipticWarning, stacklevel=3)
            return None
        if content["settings"] != json.loads(json.dumps(asdict(self.settings))):
            raise ValueError(f"{file} was written with other settings. Delete it to start over.")
        self.model.load_state_dict(groups["model"])
        _restore_optimizer(self.optimizer, groups.get("optimizer", {}))
        objective: object = self.objective
        if isinstance(objective, HasState):
            objective.load_state_tensors(groups.get("objective", {}))
        self.order.set_state(groups["streams"]["order"])
        self.noise.set_state(groups["streams"]["noise"])
        torch.set_rng_state(groups["dropout"]["state"])
        return State(**content["state"]), groups["best"]


def model_tensors(model: nn.Module) -> Tensors:
    """Copy parameters and buffers to the CPU."""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    state = optimizer.state_dict()["state"].items()
    return {f"{p}/{n}": torch.as_tensor(v) for p, kept in state for n, v in kept.items() if v is not None}


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    state: dict[int, Tensors] = {}
    for key, value in tensors.items():
        parameter, _, name = key.partition("/")
        state.setdefault(int(parameter), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
