"""The training loop: epochs, selection on validation, checkpoints, and what it cost."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elliptica._streams import stream, stream_seed
from elliptica.data.splits import Dataset, Split
from elliptica.training.batch import Objective, batches
from elliptica.training.checkpoint import (
    load_checkpoint,
    model_tensors,
    optimizer_tensors,
    restore_optimizer,
    save_checkpoint,
    set_aside,
)
from elliptica.training.settings import TrainingSettings

#: A score of a model on a part of the data; larger is better.
Score = Callable[[nn.Module, Split], float]
#: Told after each epoch: epoch, number of epochs, training loss, score.
Progress = Callable[[int, int, float, float], object]


@dataclass(frozen=True)
class FitResult:
    """What `fit` found.

    Attributes:
        score: Validation score of the epoch that was chosen; the model has its weights.
        epoch: That epoch, from 0.
        epochs: Epochs that were run.
        evaluations: Rows that went through the model in training.
        seconds: Wall time of training and validation, over all sittings.
        losses: Mean training loss of each epoch.
        scores: Validation score of each epoch.
    """

    score: float
    epoch: int
    epochs: int
    evaluations: int
    seconds: float
    losses: list[float]
    scores: list[float]


@dataclass
class _State:
    """Where a run stands at the end of an epoch."""

    epoch: int = 0
    best_score: float = -math.inf
    best_epoch: int = -1
    evaluations: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


def fit(
    model: nn.Module,
    objective: Objective,
    data: Dataset,
    settings: TrainingSettings,
    score: Score,
    *,
    name: str,
    seed: int,
    max_evaluations: int | None = None,
    checkpoint: Path | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
) -> FitResult:
    """Train a model and leave it with the weights of the chosen epoch.

    Streams for the order of rows, for the objective's draws and for the model's own (dropout) are
    derived from ``name`` and ``seed``; with a checkpoint a run that was killed goes on after its last
    finished epoch and ends as if it had never been.

    Args:
        model: The network, initialised.
        objective: A function of the model and a `Batch`.
        data: Training and validation parts.
        settings: Everything about the optimisation.
        score: Score on the validation part, larger is better.
        name: Of the run; part of every stream.
        seed: Number of the repetition.
        max_evaluations: Stop at the end of the epoch in which so many rows went through the model.
        checkpoint: File to write after each epoch and to start from if it exists.
        device: Where to train.
        progress: Told after each epoch.
    """
    device = torch.device(device)
    model.to(device)
    optimizer = settings.make_optimizer(model)
    order, noise = stream(name, seed, "order"), stream(name, seed, "noise")
    state, best = _State(), model_tensors(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(name, seed, "model"))
        if checkpoint is not None:
            found = _restore(checkpoint, settings, model, optimizer, order, noise)
            if found is not None:
                state, best = found
        while not _finished(state, settings, max_evaluations):
            _epoch(state, model, objective, data, settings, optimizer, order, noise, device)
            begin = time.perf_counter()
            model.eval()
            value = score(model, data.validation)
            state.scores.append(value)
            if settings.select == "last" or value >= state.best_score or state.best_epoch < 0:
                state.best_score, state.best_epoch = value, state.epoch
                best = model_tensors(model)
            state.epoch += 1
            state.seconds += time.perf_counter() - begin
            if checkpoint is not None:
                _save(checkpoint, settings, state, best, model, optimizer, order, noise)
            progress(state.epoch, settings.epochs, state.losses[-1], value)
    model.load_state_dict(best)
    model.eval()
    return FitResult(
        state.best_score,
        state.best_epoch,
        state.epoch,
        state.evaluations,
        state.seconds,
        state.losses,
        state.scores,
    )


def _finished(state: _State, settings: TrainingSettings, max_evaluations: int | None) -> bool:
    if state.epoch >= settings.epochs:
        return True
    if max_evaluations is not None and state.evaluations >= max_evaluations:
        return True
    return settings.patience is not None and state.epoch - 1 - state.best_epoch >= settings.patience > 0


def _epoch(
    state: _State,
    model: nn.Module,
    objective: Objective,
    data: Dataset,
    settings: TrainingSettings,
    optimizer: torch.optim.Optimizer,
    order: torch.Generator,
    noise: torch.Generator,
    device: torch.device,
) -> None:
    """One pass over the training rows."""
    begin = time.perf_counter()
    model.train()
    for group in optimizer.param_groups:
        group["lr"] = settings.rate(state.epoch)
    total, steps = torch.zeros((), device=device), 0
    with _counted(model) as count:
        for batch in batches(
            data.train,
            settings.batch_size,
            order=order,
            noise=noise,
            drop_last=settings.drop_last,
            device=device,
            augment=settings.augmentation(),
        ):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=settings.precision == "bfloat16"):
                loss = objective(model, batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            steps += 1
    mean = float(total) / max(steps, 1)
    if not math.isfinite(mean):
        raise FloatingPointError(
            f"The training loss became {mean} in epoch {state.epoch + 1}. Lower lr (it is "
            f"{settings.rate(state.epoch):g}), or look at the objective's settings."
        )
    state.losses.append(mean)
    state.evaluations += count[0]
    state.seconds += time.perf_counter() - begin


@contextlib.contextmanager
def _counted(model: nn.Module) -> Iterator[list[int]]:
    """Count the rows that go through a model."""
    count = [0]

    def hook(_module: nn.Module, inputs: tuple[Any, ...], _output: object) -> None:
        if inputs and isinstance(inputs[0], Tensor):
            count[0] += len(inputs[0])

    handle = model.register_forward_hook(hook)
    try:
        yield count
    finally:
        handle.remove()


def _save(
    file: Path,
    settings: TrainingSettings,
    state: _State,
    best: dict[str, Tensor],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    order: torch.Generator,
    noise: torch.Generator,
) -> None:
    streams = {"order": order.get_state(), "noise": noise.get_state(), "model": torch.get_rng_state()}
    groups = {
        "model": model_tensors(model),
        "best": best,
        "optimizer": optimizer_tensors(optimizer),
        "streams": streams,
    }
    save_checkpoint(file, groups, {"settings": _plain(settings), **asdict(state)})


def _restore(
    file: Path,
    settings: TrainingSettings,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    order: torch.Generator,
    noise: torch.Generator,
) -> tuple[_State, dict[str, Tensor]] | None:
    found = load_checkpoint(file)
    if found is None:
        return None
    groups, values = found
    if values.pop("settings", None) != _plain(settings):
        set_aside(file, "The checkpoint was written with other settings")
        return None
    initial = model_tensors(model)
    try:
        state, best = _State(**values), groups["best"]
        streams = [groups["streams"][name] for name in ("order", "noise", "model")]
        model.load_state_dict(best)  # does it fit, too?
        model.load_state_dict(groups["model"])
        restore_optimizer(optimizer, groups["optimizer"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        model.load_state_dict(initial)
        optimizer.load_state_dict({"state": {}, "param_groups": optimizer.state_dict()["param_groups"]})
        set_aside(file, f"The checkpoint does not fit the run ({error})")
        return None
    order.set_state(streams[0])
    noise.set_state(streams[1])
    torch.set_rng_state(streams[2])
    return state, best


def _plain(settings: TrainingSettings) -> dict[str, Any]:
    """Settings as JSON gives them back."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(settings).items()}
