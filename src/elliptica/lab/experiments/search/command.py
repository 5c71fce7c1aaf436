"""`elliptica tune --search`: one row of a table, searched."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from elliptica.lab.experiments.command import Choice
from elliptica.lab.experiments.engines import EngineError, is_launched
from elliptica.lab.experiments.preflight import check_before
from elliptica.lab.experiments.problems import load_dataset
from elliptica.lab.experiments.run import Options
from elliptica.lab.experiments.search.choice import check_search, choose, chosen_run, python_line
from elliptica.lab.experiments.search.processes import work_together
from elliptica.lab.experiments.search.report import (
    ENOUGH,
    best_trials,
    importance_table,
    importances,
    summary,
    unfinished,
)
from elliptica.lab.experiments.search.space import named_space
from elliptica.lab.experiments.search.study import PrunerName, SamplerName, Search, open_study
from elliptica.lab.experiments.specification import Run, SpecificationError, load_specification
from elliptica.lab.experiments.tune import chosen_file, shown


@dataclass(frozen=True)
class SearchOptions:
    """How to search; None takes the default."""

    space: str
    trials: int | None = None
    storage: str | None = None
    sampler: SamplerName = "tpe"
    pruner: PrunerName = "median"
    seed: int = 0


def run_search(choice: Choice, how: SearchOptions, options: Options, console: Console) -> int:
    """Search, choose and report; returns the exit status."""
    if is_launched():
        told = "torchrun shares the work of one run, and a search has many. Start workers with --jobs."
        return _refuse(EngineError(told), console)
    try:
        search = make_search(choice, how, options.out)
        _, problems = check_before([search.run], options)
        if problems:
            raise SpecificationError(problems[0])
        check_search(search, options)
        study = open_study(search)
    except SpecificationError as error:
        return _refuse(error, console)
    before = _score(chosen_file(options.out, search.run))
    console.print(f"{search.study_name} in {search.storage}", highlight=False, markup=False, soft_wrap=True)
    try:
        problems = work_together(search, options, lambda trial: _tell(search, trial, console))
    except KeyboardInterrupt:
        console.print("Interrupted: the same command goes on, trials under way from their last epoch.")
        return 130
    except (OSError, SpecificationError) as error:
        return _refuse(error, console)
    for problem in problems:
        console.print(f"error: {problem}", style="red", highlight=False, markup=False, soft_wrap=True)
    try:
        chosen = choose(search, study, options)
    except (RuntimeError, OSError) as error:
        return _refuse(error, console)
    report(search, study, chosen, options, console)
    if before is not None:
        is_better = before > chosen["score"]
        console.print(
            f"The choice (score {chosen['score']:.4g}) replaces an earlier one ({before:.4g}"
            f"{', which was better: its command again brings it back' if is_better else ''}).",
            highlight=False,
            soft_wrap=True,
        )
    return int(bool(problems))


def _score(file: Path) -> float | None:
    """Of an earlier choice, if there is one that can be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return float(json.loads(file.read_text())["score"])
    return None


def make_search(choice: Choice, how: SearchOptions, out: Path) -> Search:
    """The search that options mean; raises `SpecificationError` unless they mean one row of one data set."""
    specification = load_specification(choice.table)
    rows: dict[tuple[str, str], Run] = {(run.dataset, run.row): run for run in choice.runs(out)}
    if len(rows) != 1:
        names = ", ".join(f"{row} on {dataset}" for dataset, row in list(rows)[:4])
        raise SpecificationError(
            f"A search is of one row on one data set, but {len(rows)} are meant ({names}"
            f"{', ...' * (len(rows) > 4)}). Say --dataset and --methods. (Without --search every row is "
            "tuned alike.)"
        )
    (run,) = rows.values()
    return Search(
        run=run,
        space=named_space(specification, run, how.space),
        name=how.space,
        storage=how.storage or str(out / "searches.journal"),
        trials=how.trials or specification.trials,
        sampler=how.sampler,
        pruner=how.pruner,
        seed=how.seed,
    )


def report(search: Search, study: Any, chosen: dict[str, Any], options: Options, console: Console) -> None:
    """Print how trials ended, the best ones, what mattered, and how to use the choice."""
    console.print(summary(study), highlight=False)
    console.print(best_trials(search, study))
    mattered = importances(study)
    if mattered:
        console.print(importance_table(mattered))
    else:
        console.print(f"Which settings mattered is told from {ENOUGH} finished trials on.", highlight=False)
    values = ", ".join(f"{name} {shown(value)}" for name, value in chosen["values"].items())
    console.print(f"Chosen ({chosen['rule']}): {values}", highlight=False, soft_wrap=True)
    data = load_dataset(search.run.load, search.run.seed, options.data_dir)
    classes = int(data.train.y.max()) + 1 if data.task == "classification" else None
    line = python_line(chosen_run(search, chosen), classes)
    if line:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print("elliptica run with --tuned and the same options takes it.", highlight=False)
    left = unfinished(study)
    if left:
        console.print(
            f"Under way elsewhere: {left} more; whoever ends last chooses among all.", highlight=False
        )


def _tell(search: Search, trial: dict[str, Any], console: Console) -> None:
    values = ", ".join(f"{name.partition('.')[2]} {shown(value)}" for name, value in trial["values"].items())
    if trial["state"] == "COMPLETE":
        score = trial["score"] if search.run.metric == "accuracy" else -trial["score"]
        ended = f"{search.run.metric} {score:.4g}"
    elif trial["state"] == "PRUNED":
        ended = f"pruned after {trial['epochs']} epochs"
    else:
        ended = f"failed: {trial['error']}"
    text = f"trial {trial['number']}: {ended} ({values})"
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _refuse(error: Exception, console: Console) -> int:
    console.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
    return 2
