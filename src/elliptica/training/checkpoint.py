"""Everything a run needs to go on, in one safetensors file: no pickle."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from elliptica.types import EllipticWarning

Tensors = dict[str, Tensor]


def save_checkpoint(file: Path, groups: dict[str, Tensors], state: dict[str, Any]) -> None:
    """Write tensors by group and plain values, atomically: a kill leaves the old file or the new one.

    The disk is not waited for, which would cost more than a short epoch; a file that a power cut spoils is
    set aside when it is read.

    Args:
        file: Where to write.
        groups: Tensors by group and name.
        state: What JSON can hold.
    """
    flat = {
        f"{group}/{name}": t.contiguous() for group, tensors in groups.items() for name, t in tensors.items()
    }
    part = file.with_name(file.name + ".part")
    save_file(flat, part, metadata={"state": json.dumps(state)})
    part.replace(file)


def load_checkpoint(file: Path) -> tuple[dict[str, Tensors], dict[str, Any]] | None:
    """Read what `save_checkpoint` wrote; None if there is nothing.

    A file that cannot be read is set aside with a warning, never used and never deleted.
    """
    if not file.exists():
        return None
    groups: dict[str, Tensors] = {}
    try:
        with safe_open(file, framework="pt") as handle:
            state = json.loads(handle.metadata()["state"])
            for key in handle.keys():  # noqa: SIM118 - not a mapping
                group, _, name = key.partition("/")
                groups.setdefault(group, {})[name] = handle.get_tensor(key)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        set_aside(file, f"The checkpoint cannot be read ({error})")
        return None
    return groups, state


def set_aside(file: Path, why: str) -> Path:
    """Rename a file that must not be used; it stays for inspection."""
    number = 0
    while (kept := file.with_name(f"{file.name}.unusable-{number}")).exists():
        number += 1
    file.rename(kept)
    warnings.warn(f"{why}. It is kept as {kept}; the run has to be done anew.", EllipticWarning, stacklevel=3)
    return kept


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    """State of an optimiser as named tensors; numbers become tensors of one element."""
    return {
        f"{parameter}/{name}": torch.as_tensor(value)
        for parameter, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Give an optimiser the state that `optimizer_tensors` read."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        parameter, _, name = key.partition("/")
        state.setdefault(int(parameter), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def model_tensors(model: nn.Module) -> Tensors:
    """A copy of parameters and buffers, on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
