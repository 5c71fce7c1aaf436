"""The nodes of a Ray cluster: which can do a run, and whether they have the code and the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elliptica.lab.experiments.engines.interface import EngineError
from elliptica.lab.experiments.engines.ray_worker import version_problem
from elliptica.lab.experiments.preflight import (
    data_problems,
    device_problem,
    folder_problem,
    one_per_data,
    with_folder,
    without,
)
from elliptica.lab.experiments.records import versions
from elliptica.lab.experiments.run import Options, RaySettings
from elliptica.lab.experiments.specification import Run


def check_nodes(runs: list[Run], options: Options, settings: RaySettings) -> tuple[list[Run], list[str]]:
    """Try folder, settings, code, device and data; returns the runs that can be done, and problems.

    Data that one node lacks are a problem, because any node may get any run.
    """
    problem = folder_problem(options.out) or _device_problem(options, settings)
    if problem:
        return [], [problem]
    nodes = able_nodes(settings)
    found = _on_each(nodes, _probe())
    here = versions()
    wrong = [
        f"Node {name}: {problem}"
        for name, answer in found
        if (problem := _missing(answer, here) or version_problem(here, answer))
    ]
    if wrong:
        return [], wrong
    device = None if settings.gpus_per_run else options.device  # Ray hides GPUs from what asks for none
    answers = _on_each(nodes, _local_problems, one_per_data(runs, options.out), options, device)
    problems: dict[str, str] = {}
    for name, answer in answers:
        if isinstance(answer, Exception):
            raise EngineError(f"Node {name} could not be tried: {answer}") from answer
        problems |= {key: f"On node {name}: {told}" for key, told in answer.items() if key not in problems}
    if device in problems:
        return [], [problems[device]]
    return with_folder(without(runs, problems), list(problems.values()), options.out)


def able_nodes(settings: RaySettings) -> list[dict[str, Any]]:
    """The nodes that are large enough for a run."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    wanted = {"CPU": settings.cpus_per_run, "GPU": settings.gpus_per_run}
    able = [n for n in alive if all(n["Resources"].get(k, 0) >= v for k, v in wanted.items())]
    if not able:
        sizes = ", ".join(
            f"{node_name(n)} has {n['Resources'].get('CPU', 0):g} processors and "
            f"{n['Resources'].get('GPU', 0):g} GPUs"
            for n in alive
        )
        raise EngineError(
            f"No node can do a run that asks for {settings.cpus_per_run:g} processors and "
            f"{settings.gpus_per_run:g} GPUs: {sizes}. Lower --cpus-per-run or --gpus-per-run, or add nodes."
        )
    return able


def room(settings: RaySettings) -> int:
    """Runs that the nodes of the cluster can do at once."""
    wanted = {"CPU": settings.cpus_per_run, "GPU": settings.gpus_per_run}
    return sum(
        min(int(node["Resources"].get(kind, 0) / each) for kind, each in wanted.items() if each)
        for node in ray.nodes()
        if node["Alive"]
    )


def node_name(node: dict[str, Any]) -> str:
    """A node for people."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _device_problem(options: Options, settings: RaySettings) -> str | None:
    """Whether device and resources fit together."""
    if settings.gpus_per_run and options.device == "cpu":
        return (
            f"--gpus-per-run {settings.gpus_per_run:g} reserves GPUs, but runs are on the CPU. "
            "Add --device cuda."
        )
    if settings.gpus_per_run and options.device.startswith("cuda:"):
        return (
            f"--device {options.device} names a GPU, but Ray gives each run its own, which is the first that "
            "the run sees. Say --device cuda."
        )
    if not settings.gpus_per_run and options.device.startswith("cuda"):
        return (
            "--device cuda needs GPUs, but none are reserved. Add --gpus-per-run 1, or a share such as 0.5."
        )
    return None


def _local_problems(runs: list[Run], options: Options, device: str | None) -> dict[str, str]:
    """Done on a node: what is wrong there, by data or device."""
    problem = device_problem(device) if device else None
    return {device: problem} if device and problem else data_problems(runs, options.data_dir)


def _probe() -> Callable[[], dict[str, str]]:
    """A function that needs nothing of ours to arrive at a node: inner functions travel as they are."""

    def probe() -> dict[str, str]:
        from elliptica.lab.experiments.records import versions

        return versions()

    return probe


def _missing(answer: Any, here: dict[str, str]) -> str | None:
    """Why a node could not even say its versions."""
    if not isinstance(answer, Exception):
        return None
    return (
        f"elliptica cannot be imported there ({type(answer).__name__}: {answer}). Install elliptica "
        f"{here['elliptica']} with its extras experiments and ray and torch {here['torch']}, as here, then "
        "start Ray on it again."
    )


def _on_each(
    nodes: list[dict[str, Any]], function: Callable[..., Any], *arguments: Any
) -> list[tuple[str, Any]]:
    """What a function returns, or raises, on each node; nodes that are lost meanwhile are left out."""
    task = ray.remote(function)
    asked = [
        task.options(
            num_cpus=0,  # so that it need not wait for runs of others
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(*arguments)
        for node in nodes
    ]
    found: list[tuple[str, Any]] = []
    for node, reference in zip(nodes, asked, strict=True):
        try:
            found.append((node_name(node), ray.get(reference)))
        except ray.exceptions.RayTaskError as error:
            found.append((node_name(node), error.cause))
        except ray.exceptions.RayError:
            continue
    return found
