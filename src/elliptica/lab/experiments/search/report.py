"""The end of a search as tables: how trials ended, the best ones, and which settings mattered."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import optuna
from optuna.trial import TrialState
from rich.table import Table

from elliptica.lab.experiments.search.study import Search, counted
from elliptica.lab.experiments.tune import shown

_WORDS = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "under way",
}
#: Trials below which importances would be noise.
ENOUGH = 8


def summary(study: Any) -> str:
    """How the trials ended, in a line."""
    trials = counted(study)
    numbers = Counter(_WORDS[trial.state] for trial in trials)
    told = ", ".join(f"{numbers[word]} {word}" for word in _WORDS.values() if numbers[word])
    return f"{len(trials)} trials: {told}"


def unfinished(study: Any) -> int:
    """Trials that other processes have under way."""
    return sum(trial.state == TrialState.RUNNING for trial in counted(study))


def best_trials(search: Search, study: Any, n: int = 5) -> Table:
    """The best finished trials side by side, with the metric as the tables show it."""
    done = [trial for trial in counted(study) if trial.state == TrialState.COMPLETE]
    done = sorted(done, key=lambda trial: (-trial.value, trial.number))[:n]
    sign = 1 if search.run.metric == "accuracy" else -1
    table = Table(title=f"Best trials by {search.run.select} {search.run.metric} (validation)", box=None)
    table.add_column("trial")
    for trial in done:
        table.add_column(str(trial.number), justify="right")
    table.add_row(search.run.metric, *(f"{sign * trial.value:.4g}" for trial in done))
    for name in search.ranges:
        table.add_row(name.partition(".")[2], *(shown(trial.params[name]) for trial in done))
    table.add_row("epoch", *(str(trial.user_attrs["epoch"] + 1) for trial in done))
    table.add_row("seconds", *(f"{trial.user_attrs['seconds']:.1f}" for trial in done))
    return table


def importances(study: Any) -> dict[str, float]:
    """Share of the scores' variance that each setting explains (functional ANOVA); empty for few trials."""
    done = [trial for trial in counted(study) if trial.state == TrialState.COMPLETE]
    if len(done) < ENOUGH or len({trial.value for trial in done}) < 2:
        return {}
    varied = [name for name in done[0].params if len({trial.params[name] for trial in done}) > 1]
    if not varied:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: dict[str, float] = optuna.importance.get_param_importances(
            study, evaluator=evaluator, params=varied
        )
    return found


def importance_table(found: dict[str, float]) -> Table:
    """The same, largest first."""
    table = Table(title="What mattered", box=None)
    table.add_column("setting")
    table.add_column("share of variance", justify="right")
    for name, share in sorted(found.items(), key=lambda item: -item[1]):
        table.add_row(name.removeprefix("settings.").removeprefix("training."), f"{100 * share:.0f} %")
    return table
