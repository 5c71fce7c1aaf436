"""The training loop: epochs, selection on validation, cost, and checkpoints (safetensors, no pickle)."""

from __future__ import annotations

import contextlib
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from elliptica._utils.files import replacing
from elliptica._utils.perceptron import average_weights
from elliptica._utils.random import stream, stream_seed
from elliptica.core.inputs import EllipticWarning
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.training.batch import (
    Arrange,
    Batch,
    HasState,
    Objective,
    Relabel,
    Steps,
    TrainingSettings,
    batches,
)

Tensors = dict[str, Tensor]


@dataclass
class FitResult:
    """Numbers of a training: at the end of an epoch, and in the end."""

    epochs: int = 0  # epochs that were run
    score: float = -math.inf  # validation score of the epoch that is chosen so far
    epoch: int = -1  # that epoch, from 0; in the end the model has its weights
    evaluations: int = 0  # rows that went through the model in training
    seconds: float = 0.0  # wall time of training and validation, over all sittings
    losses: list[float] = field(default_factory=list)  # mean training loss of each epoch
    scores: list[float] = field(default_factory=list)  # validation score of each epoch
    observed: list[Any] = field(default_factory=list)  # what `observe` gave after each epoch


@dataclass(frozen=True)
class Trained:
    """Everything that training changes, and its settings."""

    settings: TrainingSettings
    model: nn.Module
    objective: Objective
    optimizer: torch.optim.Optimizer
    order: torch.Generator
    noise: torch.Generator
    average: AveragedModel | None = None

    @property
    def shown(self) -> nn.Module:
        """The model that is validated and kept."""
        return self.model if self.average is None else self.average.module

    def save(self, file: Path, state: FitResult, best: Tensors) -> None:
        """Replace the checkpoint; ``best`` are the weights of the best epoch so far."""
        objective: object = self.objective
        groups = {
            "model": model_tensors(self.model),
            "best": best,
            "average": {} if self.average is None else model_tensors(self.average),
            "optimizer": _optimizer_tensors(self.optimizer),
            "objective": objective.state_tensors() if isinstance(objective, HasState) else {},
            "streams": {"order": self.order.get_state(), "noise": self.noise.get_state()},
            "dropout": {"state": torch.get_rng_state()},
        }
        tensors = {f"{g}/{n}": t.contiguous() for g, kept in groups.items() for n, t in kept.items()}
        text = json.dumps({"settings": asdict(self.settings), "state": asdict(state)})
        with replacing(file) as part:
            save_file(tensors, part, metadata={"training": text})

    def restore(self, file: Path) -> tuple[FitResult, Tensors] | None:
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
        if self.average is not None:
            self.average.load_state_dict(groups["average"])
        _restore_optimizer(self.optimizer, groups.get("optimizer", {}))
        objective: object = self.objective
        if isinstance(objective, HasState):
            objective.load_state_tensors(groups.get("objective", {}))
        self.order.set_state(groups["streams"]["order"])
        self.noise.set_state(groups["streams"]["noise"])
        torch.set_rng_state(groups["dropout"]["state"])
        return FitResult(**content["state"]), groups["best"]


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


#: A score of a model on a part of the data; larger is better.
Score = Callable[[nn.Module, Split], float]
#: From a model to what is kept of an epoch, which JSON can hold.
Observe = Callable[[nn.Module], object]


@dataclass(frozen=True)
class EpochEnd:
    """State of a training at the end of an epoch."""

    epoch: int  # finished epochs: 1 after the first
    epochs: int  # all epochs, as far as their number is known
    loss: float  # mean training loss of this epoch
    score: float  # validation score after it, larger is better
    best: float  # best score so far
    lr: float  # learning rate of its last step
    seconds: float  # wall time of training and validation so far, over all sittings
    evaluations: int  # rows that went through the model in training so far


#: Callback after each epoch.
Progress = Callable[[EpochEnd], object]


def fit(
    model: nn.Module,
    objective: Objective,
    data: Dataset,
    settings: TrainingSettings,
    score: Score,
    *,
    name: str,
    seed: int,
    rows: Tensor | None = None,
    relabel: Relabel | None = None,
    arrange: Arrange | None = None,
    budget: int | None = None,
    checkpoint: Path | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
    observe: Observe | None = None,
) -> FitResult:
    """Train a model and load the weights of the chosen epoch into it.

    Streams for the order of rows, for the objective's draws and for the model's own (dropout) are
    derived from ``name`` and ``seed``. With a checkpoint, a killed run resumes after its last
    finished epoch and gives the same result as without the interruption.

    Args:
        model: The network, initialised.
        objective: Function of the model and a `Batch` that returns the loss.
        data: Training and validation parts.
        settings: Settings of the optimisation.
        score: Score on the validation part, larger is better.
        name: Name of the run; part of every stream.
        seed: Number of the repetition.
        rows: Numbers of the training rows of an epoch, with repetitions; None means each row once.
        relabel: Function from the targets of a batch and a stream to other targets, such as noisy ones.
        arrange: Function from the stream of the order to the rows of an epoch, for methods that compose
            batches.
        budget: Number of rows that go through the model, instead of the number of epochs. Training stops,
            within an epoch if necessary, when it is used up, and the learning rate schedule is stretched to
            it.
        checkpoint: File to write after each epoch and to resume from if it exists.
        device: Device to train on.
        progress: Callback after each epoch.
        observe: Function of the model, called in evaluation mode after each epoch; its results are kept in
            ``FitResult.observed`` and decide nothing.
    """
    device = torch.device(device)
    model.to(device)
    optimizer = settings.make_optimizer(model)
    order, noise = stream(name, seed, "order"), stream(name, seed, "noise")
    average = average_weights(model) if settings.average else None
    trained = Trained(settings, model, objective, optimizer, order, noise, average)
    state, best = FitResult(), model_tensors(model)
    weights = settings.row_weights(data.train)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(name, seed, "model"))
        if checkpoint is not None:
            state, best = trained.restore(checkpoint) or (state, best)
        while state.epochs < settings.epochs if budget is None else state.evaluations < budget:
            parts = batches(
                data.train,
                settings.batch_size,
                order=order,
                noise=noise,
                drop_last=settings.drop_last,
                device=device,
                augment=settings.augmentation(),
                rows=rows,
                weights=weights,
                relabel=relabel,
                arrange=arrange,
                shuffle=settings.shuffle,
            )
            _epoch(state, trained, parts, device, budget)
            begin = time.perf_counter()
            model.eval()
            value = score(trained.shown, data.validation)
            state.scores.append(value)
            is_early = getattr(objective, "is_warming_up", False)
            if is_early or settings.select == "last" or value >= state.score or state.epoch < 0:
                state.score, state.epoch = -math.inf if is_early else value, state.epochs
                best = model_tensors(trained.shown)
            if observe is not None:
                state.observed.append(observe(trained.shown))
            state.epochs += 1
            state.seconds += time.perf_counter() - begin
            if checkpoint is not None:
                trained.save(checkpoint, state, best)
            progress(_end(state, trained, budget))
    model.load_state_dict(best)
    model.eval()
    return state


def _end(state: FitResult, trained: Trained, budget: int | None) -> EpochEnd:
    epochs = trained.settings.epochs
    if budget is not None:
        epochs = max(state.epochs, math.ceil(budget * state.epochs / max(state.evaluations, 1)))
    rate = float(trained.optimizer.param_groups[0]["lr"])
    loss, score = state.losses[-1], state.scores[-1]
    return EpochEnd(state.epochs, epochs, loss, score, state.score, rate, state.seconds, state.evaluations)


def _epoch(
    state: FitResult, trained: Trained, parts: Iterator[Batch], device: torch.device, budget: int | None
) -> None:
    """Run one pass over the training rows, or the part that the budget allows."""
    begin = time.perf_counter()
    model, settings = trained.model, trained.settings
    model.train()
    total, steps, place = torch.zeros((), device=device), 0, float(state.epochs)
    with _counted(model) as count:
        for batch in parts:
            if budget is not None:
                if state.evaluations + count[0] >= budget:
                    break
                place = settings.epochs * (state.evaluations + count[0]) / budget
            for group in trained.optimizer.param_groups:
                group["lr"] = settings.rate(place)
            total += _step(trained, batch, device).detach()
            if trained.average is not None:
                trained.average.update_parameters(model)
            steps += 1
    mean = float(total) / max(steps, 1)
    if not math.isfinite(mean):
        raise FloatingPointError(
            f"The training loss became {mean} in epoch {state.epochs + 1}. Lower lr (it is "
            f"{settings.rate(place):g}), or check the objective's settings."
        )
    state.losses.append(mean)
    state.evaluations += count[0]
    state.seconds += time.perf_counter() - begin


def _step(trained: Trained, batch: Batch, device: torch.device) -> Tensor:
    objective: object = trained.objective
    optimizer = trained.optimizer
    is_low = trained.settings.precision == "bfloat16"
    # what takes several steps here must not see rounded weights from before the first
    low: dict[str, Any] = {"enabled": is_low, "cache_enabled": not isinstance(objective, Steps)}
    with torch.autocast(device.type, dtype=torch.bfloat16, **low):
        if isinstance(objective, Steps):
            return objective.step(trained.model, batch, optimizer)
        loss = trained.objective(trained.model, batch)
    if getattr(objective, "restarts_optimizer", False):
        optimizer.state.clear()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss


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
