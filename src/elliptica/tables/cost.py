"""Estimate how long a comparison takes on this machine, and choose a plan that fits a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from elliptica.estimators.fit import Fit, fit_together
from elliptica.tables.networks import JTT, make_network
from elliptica.tables.plan import LINEAR, TREES, Plan, draw_settings
from elliptica.tables.problem import TableProblem
from elliptica.tables.references import make_reference, most_iterations
from elliptica.tables.shift import Fold

#: Average shares of the epochs and boosting iterations that run before training stops early.
_RUN_EPOCHS, _RUN_ITERATIONS = 0.2, 0.35
#: Seconds of a fold for preprocessing and linear models, per row and input.
_OTHER_ROW = 4e-6
#: Share of the time of several workers that is not lost by waiting for each other.
_EFFICIENCY = 0.75
#: Share of a budget that is planned; the rest is for reading, the report and the model.
_PLANNED = 0.75
#: With at least this many inputs, the speed test must be short.
_WIDE = 500


@dataclass(frozen=True)
class Speed:
    """Seconds of one thread on this machine; the defaults are those of an ordinary one."""

    row: float = 4e-6  # per row that passes through a network in training
    tree: float = 1.2e-3  # per boosting iteration of one class, regardless of the rows,
    tree_row: float = 1e-7  # and per row of it


def measure_speed(problem: TableProblem, plan: Plan, n_inputs: int) -> Speed:
    """Train a few small networks and trees on random numbers for a fraction of a second."""
    draws = np.random.default_rng(0)
    n = max(64, 8 * plan.batch_size) if n_inputs < _WIDE else plan.batch_size
    x = draws.normal(size=(n, n_inputs)).astype(np.float32)
    is_class = problem.task == "classification"
    n_classes = len(problem.classes)
    y = draws.integers(0, n_classes, n) if is_class else draws.normal(size=n)
    groups = [draws.integers(0, 2, n)]
    methods = [method for method in plan.network_methods if method != JTT]
    methods *= 3 if n_inputs < _WIDE else 1
    options: dict[str, Any] = {"epochs": 2, "log": False, "n_networks": 1}
    jobs = [
        Fit(
            make_network(problem, plan, method, draw_settings(method, 0, plan), seed=i, **options),
            x,
            y,
            None,
            groups[0],
        )
        for i, method in enumerate(methods)
    ]

    def networks() -> None:
        fit_together(jobs)

    row = _seconds(networks) / (2 * n * len(jobs))
    if TREES not in plan.methods:
        return Speed(row=row)
    iterations = 20
    model = make_reference(TREES, problem.task, draw_settings(TREES, 0, plan), iterations, 0)
    per_tree = _seconds(lambda: model.fit(x, y)) / (iterations * _outputs(problem))
    usual = Speed()
    scale = per_tree / (usual.tree + n * usual.tree_row)
    return Speed(row, scale * usual.tree, scale * usual.tree_row)


def _seconds(call: Callable[[], object]) -> float:
    """Return the least time of three calls after a warm-up call, because other processes may disturb some.

    It uses one thread, as workers do: several threads that wait for each other on a busy machine can take a
    thousand times as long.
    """
    times = []
    with threadpool_limits(1):
        for _ in range(4):
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
    return min(times[1:])


def network_seconds(fold: Fold, plan: Plan, speed: Speed) -> float:
    """Estimate the time of all networks of a fold."""
    n_fit, n_train = min(len(fold.fit), plan.tuning_rows), min(len(fold.train), plan.train_rows)
    epochs = plan.patience + _RUN_EPOCHS * plan.epochs
    trials = n_fit * (plan.survivors * epochs + (plan.trials * plan.first_epochs))
    return len(plan.network_methods) * speed.row * (trials + plan.networks * n_train * epochs)


def reference_seconds(fold: Fold, problem: TableProblem, plan: Plan, speed: Speed) -> float:
    """Estimate the time of preprocessing, boosted trees and linear models of a fold."""
    n_fit, n_train = min(len(fold.fit), plan.tuning_rows), min(len(fold.train), plan.train_rows)
    seconds = _OTHER_ROW * len(problem.target) * problem.features.width
    if LINEAR in plan.methods:
        seconds *= 2
    if TREES in plan.methods:
        n_trees = _RUN_ITERATIONS * most_iterations(problem) * _outputs(problem)
        seconds += n_trees * plan.trials * (speed.tree + n_fit * speed.tree_row)
        seconds += n_trees * (speed.tree + n_train * speed.tree_row)
    return seconds


def estimate(problem: TableProblem, folds: Sequence[Fold], plan: Plan, speed: Speed, workers: int) -> float:
    """Estimate the seconds until the folds are finished."""
    total = sum(
        network_seconds(fold, plan, speed) + reference_seconds(fold, problem, plan, speed) for fold in folds
    )
    return total / (1 if workers == 1 else _EFFICIENCY * workers)


def fit_budget(
    problem: TableProblem, folds: Sequence[Fold], plan: Plan, speed: Speed, workers: int, budget: float
) -> Plan:
    """Return the largest plan whose estimate is within a budget, or the smallest plan if none is."""
    choices: list[dict[str, Any]] = [
        {"trials": 4 * plan.trials, "networks": max(5, plan.networks)},
        {"trials": 2 * plan.trials, "networks": max(5, plan.networks)},
        {},
        {"networks": 1},
        {"networks": 1, "trials": 4},
        {"networks": 1, "trials": 4, "tuning_rows": 2_000, "epochs": 50},
        {"networks": 1, "trials": 2, "tuning_rows": 2_000, "epochs": 30},
        {"networks": 1, "trials": 2, "tuning_rows": 2_000, "epochs": 30, "train_rows": 20_000},
        {"networks": 1, "trials": 1, "tuning_rows": 2_000, "epochs": 20, "train_rows": 5_000},
        {"networks": 1, "trials": 1, "tuning_rows": 1_000, "epochs": 10, "train_rows": 1_000},
    ]
    for choice in choices:
        candidate = replace(plan, **_smaller(plan, choice))
        if estimate(problem, folds, candidate, speed, workers) <= _PLANNED * budget:
            break
    return candidate


def _smaller(plan: Plan, choice: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of a choice; only the first choices may exceed the trials and networks of the plan."""
    grown = ("trials", "networks") if choice.get("trials", 0) > plan.trials else ()
    sizes = {
        name: value if name in grown else min(value, getattr(plan, name)) for name, value in choice.items()
    }
    if sizes.get("trials", plan.trials) < 3:
        sizes["first_epochs"] = 0
    return sizes


def _outputs(problem: TableProblem) -> int:
    """Return the number of trees per boosting iteration."""
    return max(1, len(problem.classes)) if len(problem.classes) != 2 else 1
