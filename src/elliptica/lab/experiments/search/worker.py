"""One worker of a search: it takes trials until the budget of all workers is spent."""

from __future__ import annotations

import contextlib
import datetime
import math
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from elliptica.lab.experiments.metrics import score_of
from elliptica.lab.experiments.records import HAS_LOCKS, claimed
from elliptica.lab.experiments.run import Options, do_run
from elliptica.lab.experiments.search.study import KILLED, SURPLUS, Search, counted, open_study
from elliptica.lab.experiments.tune import TRIAL_SEED, with_values
from elliptica.lab.training.progress import EpochEnd

#: Told about a trial: its number, "start", "epoch" or "end", and details.
Told = Callable[[int, str, dict[str, Any]], object]
#: So many processes may die in one epoch of a trial; then it is the trial that kills them, e.g. by taking
#: all memory.
DEATHS = 3
#: A trial without a sign of life was never begun, if it is older than this.
_NEVER_BEGUN = datetime.timedelta(minutes=10)


def work(search: Search, options: Options, listen: Told = lambda *_: None) -> None:
    """Take trials until there are ``search.trials`` of them in the storage, those of other workers included.

    Trials of processes that died on this machine are taken up again, from their last finished epoch. Those of
    other machines count as under way.
    """
    study = open_study(search)
    while True:
        take_up(study)
        if len(counted(study)) >= search.trials:
            return
        trial = study.ask()
        if len(counted(study, below=trial.number)) >= search.trials:  # another worker was faster
            trial.set_user_attr(SURPLUS, True)
            study.tell(trial, state=TrialState.FAIL)
            return
        folder = _folder(search, options, trial)
        with _held(folder):
            trial.set_user_attr("folder", str(folder))
            trial.set_user_attr("host", socket.gethostname())  # from now on the lock tells whether it lives
            listen(trial.number, "start", {})
            _attempt(search, options, study, trial, folder, listen)
            shutil.rmtree(folder, ignore_errors=True)
        listen(trial.number, "end", _details(study._storage.get_trial(trial._trial_id)))


def _details(trial: Any) -> dict[str, Any]:
    """How a trial ended, for people in another process."""
    return {
        "number": trial.number,
        "state": trial.state.name,
        "score": trial.value if trial.state == TrialState.COMPLETE else None,
        "values": trial.params,
        "epochs": len(trial.intermediate_values),
        "error": trial.user_attrs.get("error", ""),
    }


def _folder(search: Search, options: Options, trial: Any) -> Path:
    """Where a trial has its checkpoint: where it was before, unless that is on another machine's disk."""
    before = Path(trial.user_attrs.get("folder", ""))
    if before.name and before.parent.is_dir():
        return before
    run = search.run
    place = options.out / "searches" / run.table / run.dataset / run.row.replace("/", "-")
    return (place / f"{search.name}-{search.seed}-{run.key}" / f"trial-{trial.number}").resolve()


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The lock of a trial; another worker may have it for a moment, to see whether somebody has."""
    for _ in range(100):
        with claimed(folder.parent, _lock(folder)) as mine:
            if mine:
                yield
                return
        time.sleep(0.1)
    raise RuntimeError(f"Another process has {folder.name} under way, which nobody else should have.")


def _lock(folder: Path) -> Path:
    return folder / "trial"


def _attempt(search: Search, options: Options, study: Any, trial: Any, folder: Path, listen: Told) -> None:
    """Train with one setting and tell the study how it went; the test part is not looked at."""
    values = {place: each.suggest(trial, ".".join(place)) for place, each in search.space.items()}
    run = with_values(search.run, values, TRIAL_SEED)
    told = set(study._storage.get_trial(trial._trial_id).intermediate_values)  # by a process that died

    def progress(end: EpochEnd) -> None:
        if end.epoch not in told:
            trial.report(end.score, end.epoch)
        details = {"epoch": end.epoch, "epochs": end.epochs, "loss": end.loss, "score": end.score}
        listen(trial.number, "epoch", details)
        if end.epoch < end.epochs and trial.should_prune():
            raise optuna.TrialPruned

    try:
        record = do_run(run, options, progress, checkpoint=folder / "run.safetensors", with_test=False)
        score = score_of(record["metrics"]["validation"], run.metric, run.select)
        if not math.isfinite(score):
            raise FloatingPointError(f"The validation score is {score}.")
    except optuna.TrialPruned:
        study.tell(trial, state=TrialState.PRUNED)
    except (FloatingPointError, ValueError, RuntimeError) as error:  # diverged, refused, or out of memory
        trial.set_user_attr("error", f"{type(error).__name__}: {error}")
        study.tell(trial, state=TrialState.FAIL)
    else:
        trial.set_user_attr("seconds", round(record["cost"]["seconds"], 3))
        trial.set_user_attr("epoch", record["epoch"])
        study.tell(trial, score)


def take_up(study: Any) -> None:
    """Put trials of dead processes back into the queue, with what they had reported."""
    if not HAS_LOCKS:  # then nobody knows who lives
        return
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if "host" not in trial.user_attrs:
            age = datetime.datetime.now() - (trial.datetime_start or datetime.datetime.now())
            if age > _NEVER_BEGUN:
                _put_back(study, trial)
        elif trial.user_attrs["host"] == socket.gethostname():
            folder = Path(trial.user_attrs["folder"])
            with claimed(folder.parent, _lock(folder)) as free:
                if free:
                    _put_back(study, trial)


def _put_back(study: Any, trial: Any) -> None:
    """Close a trial and queue its like, or count it as failed; if two workers try, one does."""
    known, reported = trial.user_attrs, len(trial.intermediate_values)
    died = 1 if reported > known.get("reported", 0) else known.get("died", 0) + 1
    again = {"died": died, "reported": reported, **{k: known[k] for k in ("folder",) if k in known}}
    waiting = optuna.trial.create_trial(
        state=TrialState.WAITING,
        user_attrs=again,
        system_attrs={"fixed_params": trial.params},
        intermediate_values=trial.intermediate_values,
    )
    mark = (KILLED, True) if died < DEATHS else ("error", f"Its process died {died} times in one epoch.")
    with contextlib.suppress(ValueError, RuntimeError):  # it has been closed already
        study._storage.set_trial_user_attr(trial._trial_id, *mark)
        study.tell(trial.number, state=TrialState.FAIL)
        if died < DEATHS:
            study.add_trial(waiting)
