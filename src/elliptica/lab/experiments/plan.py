"""What runs would cost: arithmetic from their specification, without an accelerator and without images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from elliptica.lab.data.catalogue import find_entry
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments.methods import make_loss
from elliptica.lab.experiments.registry import entry_name, load_dataset, make_model
from elliptica.lab.experiments.run import ordinary_evaluations
from elliptica.lab.experiments.specification import Run
from elliptica.lab.training.batch import TrainingSettings

#: Flops per second behind the hours: an assumption, of the size that residual networks reach in float32.
SPEED = 10e12

#: Rows that go through the network for each row of a batch, where that is not one.
_ROWS = {"mixupe": 2, "regmixup": 2}
#: Length of a first stage, as a share of the epochs, unless the settings say so.
_FIRST = {"jtt": 0.2, "umix": 1.0, "last-layer": 1.0}


@dataclass(frozen=True)
class Step:
    """What a network costs for each row of a step, and what it weighs."""

    n_rows: int  # of the training part
    flops: int  # matrix products and convolutions, forward and backward
    kept: int  # bytes that wait for the backward pass
    weights: int  # parameters


def step_of(run: Run, data_dir: Path | None = None) -> Step:
    """Count one step of ordinary training on torch's meta device, which computes nothing."""
    entry = find_entry(entry_name(run.dataset, run.load))
    if entry.shape:
        x, is_real = torch.empty(2, *entry.shape), run.metric == "rmse"
        part = Split(x, torch.zeros(2, 1) if is_real else torch.tensor([0, entry.classes - 1]))
        data = Dataset(run.dataset, part, part, part, task="regression" if is_real else "classification")
        # where no part is published for validation, a tenth is held out
        n_rows = entry.rows[0] if len(entry.rows) == 3 else round(0.9 * entry.rows[0])
    else:
        data = load_dataset(run.load, run.seed, data_dir)
        n_rows = data.train.n_rows
    random = {"pretrained": False} if run.model["name"] == "backbone" else {}
    with torch.device("meta"):
        model = make_model({**run.model, **random}, data, "plan", 0)
    x, y = (part[:2].to("meta") for part in (data.train.x, data.train.y))
    kept = dict[int, int]()

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = make_loss(data.task)(model(x), y)
        loss.backward()
    for own in (*model.parameters(), *model.buffers()):
        kept.pop(own.untyped_storage()._cdata, None)
    weights = sum(p.numel() for p in model.parameters())
    return Step(n_rows, counter.get_total_flops() // 2, sum(kept.values()) // 2, weights)


def rows_per_sample(run: Run) -> int:
    """Rows that go through the network for each row of a batch."""
    if run.method != "elliptic":
        return _ROWS.get(run.method, 1)
    n_times = run.settings.get("n_times", 5) if run.settings.get("sampling", "marginal") == "path" else 1
    return int(n_times * run.settings.get("n_bridges", 1))


def flops_of(run: Run, step: Step) -> float:
    """Flops of a run, without gradients of inputs (a weighting adds a third) and rows drawn in excess."""
    ordinary = step.flops * ordinary_evaluations(step.n_rows, TrainingSettings(**run.training))
    if run.match_evaluations:
        return ordinary
    first = float(run.settings.get("first", _FIRST.get(run.method, 0)))
    epochs = run.settings.get("first_training", {}).get("epochs")
    if epochs is not None:
        first = epochs / run.training["epochs"]
    return ordinary * (rows_per_sample(run) + first)


def bytes_of(run: Run, step: Step) -> float:
    """Memory of weights, gradients and the optimiser in float32, and what a step keeps for backward."""
    training = TrainingSettings(**run.training)
    copies = 4 if training.optimizer == "adam" else 3 if training.momentum else 2
    return 4 * copies * step.weights + step.kept * training.batch_size * rows_per_sample(run)


def grid(runs: Sequence[Run], data_dir: Path | None = None) -> list[list[str]]:
    """A head, and a line for each row of a table: how many runs, and what one of them costs."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.dataset, run.row), []).append(run)
    steps = {members[0].dataset: members[0] for members in groups.values()}
    known = {dataset: step_of(run, data_dir) for dataset, run in steps.items()}
    lines = [["data set", "method", "runs", "epochs", "Pflop", "hours", "GB"]]
    for (dataset, row), members in groups.items():
        first, step = members[0], known[dataset]
        flops, memory = flops_of(first, step), bytes_of(first, step)
        numbers = f"{flops / 1e15:.3g}", f"{flops / SPEED / 3600:.2g}", f"{memory / 1e9:.2g}"
        lines.append([dataset, row, str(len(members)), str(first.training["epochs"]), *numbers])
    return lines
