"""`elliptica diagnose`: from a model and data to findings on screen, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from rich.console import Console
from torch import Tensor, nn

from elliptica.diagnostics.command import obtain_network
from elliptica.diagnostics.diagnose import diagnose
from elliptica.diagnostics.findings import Diagnosis
from elliptica.diagnostics.source import Samples, SourceError, load_samples
from elliptica.diagnostics.train import Method

LossName = Literal["auto", "cross-entropy", "mse", "l1", "bce"]
_LOSSES: dict[str, Callable[[], nn.Module]] = {
    "cross-entropy": nn.CrossEntropyLoss,
    "mse": nn.MSELoss,
    "l1": nn.L1Loss,
    "bce": nn.BCEWithLogitsLoss,
}
_COLOURS = {"fine": "green", "look": "yellow", "warning": "red"}


@dataclass(frozen=True)
class Trained:
    """A trained network, and the rows at which its loss is looked at.

    Attributes:
        network: The network.
        loss_fn: Its loss.
        x: Inputs as it takes them.
        y: Their targets.
        groups: Group of each row, or None.
        class_names: What its classes are called, or None.
        remarks: What the user should know of all this.
    """

    network: nn.Module
    loss_fn: nn.Module
    x: Tensor
    y: Tensor
    groups: list[str] | None = None
    class_names: list[str] | None = None
    remarks: tuple[str, ...] = ()


def from_code(
    data: str,
    model: str | None,
    weights: Path | None,
    method: Method,
    steps: int,
    loss: LossName,
    seed: int,
    messages: Console,
) -> Trained:
    """A network from the user's code, or one that is trained here, with built-in data or an ``.npz`` file."""
    if loss != "auto" and model is None:
        raise SourceError("--loss needs --model: a network trained here has the loss of its task.")
    samples = load_samples(data, seed)
    network = obtain_network(model, weights, samples, method, steps, seed, messages)
    loss_fn, y = loss_and_targets(samples, loss)
    remarks: tuple[str, ...] = ()
    if model is None:
        remarks = (
            f"No --model: what follows is about a small network that was trained here ({method}, {steps} "
            "steps).",
        )
    elif weights is None:
        remarks = (f"Weights are those that {model} comes with (no --weights given).",)
    return Trained(network, loss_fn, samples.x, y, samples.train_group, remarks=remarks)


def run_diagnose(
    obtain: Callable[[], Trained],
    *,
    n: int,
    sigma: str,
    seed: int,
    as_json: bool,
    out: Path | None,
    console: Console,
    messages: Console,
) -> int:
    """Load, diagnose and show; returns the exit status.

    ``console`` gets the result and nothing else, ``messages`` whatever else there is to say.
    """
    try:
        noise = parse_sigma(sigma)
        trained = obtain()
        for remark in trained.remarks:
            messages.print(remark, markup=False, highlight=False, soft_wrap=True)
        with messages.status("looking at the loss"):
            diagnosis = diagnose(
                trained.network,
                trained.loss_fn,
                trained.x,
                trained.y,
                groups=trained.groups,
                class_names=trained.class_names,
                n=n,
                sigma=noise,
                generator=torch.Generator().manual_seed(seed),
            )
    except (SourceError, ValueError, TypeError) as error:
        messages.print("[red]error:[/red] ", end="")
        messages.print(str(error), markup=False, highlight=False)
        return 2
    text = json.dumps(diagnosis.to_dict(), indent=1) if as_json else str(diagnosis)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
        messages.print(f"Written to {out}: {diagnosis.summary()}.", markup=False, highlight=False)
    elif as_json:
        console.file.write(text + "\n")  # untouched by the width of the terminal
    else:
        show(diagnosis, console)
    return 0


def show(diagnosis: Diagnosis, console: Console) -> None:
    """The text of ``print(diagnosis)``, headings in colour."""
    plain: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
    console.print("\n".join(diagnosis.preface()), **plain)
    for finding in diagnosis.findings:
        colour = _COLOURS[finding.severity]
        console.print(f"\n[bold {colour}]{finding.severity}[/]  [bold]{finding.name}[/]", highlight=False)
        console.print("\n".join(finding.lines()), **plain)
    console.print(f"\nFindings: {diagnosis.summary()}.", **plain)


def parse_sigma(text: str) -> float | Literal["auto", "green"]:
    """``auto``, ``green`` or a number.

    Example:
        >>> parse_sigma("auto"), parse_sigma("0.05")
        ('auto', 0.05)
    """
    if text == "auto":
        return "auto"
    if text == "green":
        return "green"
    try:
        return float(text)
    except ValueError:
        raise SourceError(f"--sigma must be auto, green or a number, but got {text!r}.") from None


def loss_and_targets(samples: Samples, loss: LossName) -> tuple[nn.Module, Tensor]:
    """The loss by name, and the targets in the dtype that it takes."""
    if loss not in get_args(LossName):
        raise SourceError(f"--loss must be one of {', '.join(get_args(LossName))}, but got {loss!r}.")
    if loss == "auto":
        loss = "cross-entropy" if samples.is_classification else "mse"
    y = samples.y
    if loss != "cross-entropy" and not y.is_floating_point():
        y = y.float() if y.ndim > 1 else y[:, None].float()
    return _LOSSES[loss](), y
