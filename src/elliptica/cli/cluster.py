"""Options of commands that can work on a Ray cluster."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer


class Engine(str, Enum):
    """Where runs are done."""

    processes = "processes"
    ray = "ray"


EngineOption = Annotated[Engine, typer.Option(help="Processes of this machine, or a Ray cluster.")]
AddressOption = Annotated[
    str | None,
    typer.Option(
        help="Ray: the cluster's; auto finds the one that this machine is part of.",
        show_default="RAY_ADDRESS, or a new one of this machine",
    ),
]
CpusOption = Annotated[
    float | None,
    typer.Option(min=0.1, help="Ray: processors for each run, and threads of torch.", show_default="1"),
]
GpusOption = Annotated[
    float | None, typer.Option(min=0, help="Ray: GPUs for each run; may be a share.", show_default="0")
]
RetriesOption = Annotated[
    int | None, typer.Option(min=0, help="Ray: new tries of a run whose worker is lost.", show_default="3")
]


def ray_settings(
    engine: Engine, address: str | None, cpus: float | None, gpus: float | None, retries: int | None
) -> Any:
    """What the options say about Ray; None without it."""
    from elliptica.lab.experiments.run import RaySettings

    named = {"address": address, "cpus_per_run": cpus, "gpus_per_run": gpus, "retries": retries}
    given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if engine is Engine.ray:
        return RaySettings(**given)
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise typer.BadParameter(f"{names}: only with --engine ray. Add it, or leave them out.")
    return None
