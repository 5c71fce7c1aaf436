"""`elliptica cost`: what a training step costs, before it is run."""

from __future__ import annotations

import logging
import re
from enum import Enum
from typing import Annotated

import typer
from rich.console import Console

from elliptica.cli.app import app
from elliptica.cli.experiments import DeviceOption, Precision


class Sampling(str, Enum):
    """How points are drawn."""

    marginal = "marginal"
    path = "path"


class Pairing(str, Enum):
    """How partners are found in a batch."""

    permutation = "permutation"
    inverse_distance = "inverse_distance"
    nearest = "nearest"


class Weighting(str, Enum):
    """Readings of importance weighting."""

    none = "none"
    gradient_norm = "gradient_norm"
    gradient_softmax = "gradient_softmax"
    girsanov = "girsanov"
    multiplicative = "multiplicative"
    released = "released"


class Optimizer(str, Enum):
    """Optimisers, by the state that they keep."""

    sgd = "sgd"
    momentum = "momentum"
    adam = "adam"
    adamw = "adamw"


@app.command()
def cost(
    model: Annotated[
        str,
        typer.Option(
            help="preactresnet18, wideresnet28-10, mlp-128-128, ..., or your own package.module:name."
        ),
    ],
    shape: Annotated[str, typer.Option("--input", help="Shape of an input, e.g. 3x32x32.")],
    classes: Annotated[int, typer.Option(min=1, help="Number of classes; 1 means a real target.")] = 10,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step, in each process.")] = 128,
    sampling: Annotated[Sampling, typer.Option(help="One point per bridge, or all.")] = Sampling.marginal,
    n_bridges: Annotated[int, typer.Option(min=1, help="Bridges per sample.")] = 1,
    n_times: Annotated[int, typer.Option(min=2, help="Points on a bridge.")] = 5,
    pairing: Annotated[Pairing, typer.Option(help="Partners; distances take memory.")] = Pairing.permutation,
    weighting: Annotated[Weighting, typer.Option(help="Importance weighting.")] = Weighting.none,
    chunk_size: Annotated[int | None, typer.Option(min=1, help="Rows at a time.")] = None,
    optimizer: Annotated[Optimizer, typer.Option(help="For its state.")] = Optimizer.momentum,
    precision: Annotated[Precision, typer.Option(help="Of the forward pass.")] = Precision.float32,
    rows: Annotated[int | None, typer.Option(min=1, help="Samples of the data set.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over them.")] = 1,
    world_size: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    flops: Annotated[
        float | None,
        typer.Option(min=1.0, help="Peak flop per second of your hardware, in place of a measurement here."),
    ] = None,
    utilisation: Annotated[float, typer.Option(min=1e-3, max=1.0, help="Share of --flops reached.")] = 0.4,
    device: DeviceOption = "cpu",
    measure: Annotated[
        bool, typer.Option("--measure", help="Run steps of this size, too, and compare.")
    ] = False,
) -> None:
    """Predict rows, passes, memory and time of a training step, from two tiny ones.

    Example: elliptica cost --model preactresnet18 --input 3x32x32 --batch 128 --sampling path --rows 50000
    --epochs 200
    """
    found = re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape)
    if found is None:
        raise typer.BadParameter(f"--input is a shape such as 3x32x32 or 20, but got {shape!r}.")
    if measure and flops is not None:
        raise typer.BadParameter(
            "--measure compares with this machine, --flops states another. Give one of them."
        )
    import torch

    from elliptica.core.elliptic import Elliptic
    from elliptica.cost.command import Plan, run_cost
    from elliptica.cost.networks import make_network
    from elliptica.cost.rate import Rate
    from elliptica.diagnostics.source import SourceError, load_model

    sizes = tuple(int(part) for part in shape.split("x"))
    plan = Plan(
        shape=sizes,
        n_classes=None if classes == 1 else classes,
        batch=batch,
        rows=rows,
        epochs=epochs,
        world_size=world_size,
        optimizer=optimizer.value,
        precision=precision.value,
        hardware=None if flops is None else Rate(flops * utilisation),
        device=device,
    )
    # it prints tracebacks of errors that it also raises
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    try:
        torch.zeros(1, device=device)
        network = load_model(model) if ":" in model else make_network(model, sizes, classes)
        objective = Elliptic(
            network.to(device),
            plan.loss(),
            num_classes=plan.n_classes,
            sampling=sampling.value,
            n_bridges=n_bridges,
            n_times=n_times,
            pairing=pairing.value,
            weighting=weighting.value,
            chunk_size=chunk_size,
            sigma_y=0.0,
        )
        run_cost(objective, plan, measure, Console())
    except Exception as error:  # a model of the user's own may raise anything
        ours = isinstance(error, SourceError | ValueError | ImportError)
        told = f"error: {error}" if ours else f"error: {type(error).__name__}: {error}"
        typer.echo(told if ours else f"{told} The network was called on rows of --input {shape}.", err=True)
        raise typer.Exit(2) from None
