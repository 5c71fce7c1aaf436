"""Search the settings of one row of a table with Optuna: pruning, and several workers on one storage.

Optuna keeps the trials (a journal file or a database), draws them and prunes them. Added here: a stream of
random numbers for each trial, so that a resumed search draws as an uninterrupted one; checkpoints and locks,
so that a trial of a process that died resumes at its last epoch (Optuna's heartbeats do not work on journals,
and take a stopped process for a dead one); and one budget of trials for all workers.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import math
import os
import shutil
import socket
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import TrialState

from elliptica._utils.random import stream_seed
from elliptica.core.inputs import EllipticWarning
from elliptica.lab.experiments.engines import guarded, in_processes
from elliptica.lab.experiments.metrics import score_of
from elliptica.lab.experiments.plugins import plugin_versions
from elliptica.lab.experiments.records import HAS_LOCKS, claimed, write_record
from elliptica.lab.experiments.registry import load_dataset
from elliptica.lab.experiments.run import Listener, Options, do_run
from elliptica.lab.experiments.specification import Run, SpecificationError
from elliptica.lab.experiments.tune import TRIAL_SEED, own_values, refuse_resplit
from elliptica.lab.experiments.tuned import Space, chosen_file, with_values
from elliptica.lab.training.progress import EpochEnd

SamplerName = Literal["tpe", "random"]
PrunerName = Literal["median", "hyperband", "none"]
#: Receives events of a trial: its number, "start", "epoch" or "end", and details.
TrialListener = Callable[[int, str, dict[str, Any]], object]

#: Marks of trials that do not count: begun by a process that died, or one too many.
KILLED, SURPLUS = "killed", "surplus"
#: So many processes may die in one epoch of a trial; then it is the trial that kills them, e.g. by taking
#: all memory.
DEATHS = 3
#: A trial without a sign of life was never begun, if it is older than this.
_NEVER_BEGUN = datetime.timedelta(minutes=10)
#: Seconds to wait for another process that writes to the same SQLite file.
_PATIENCE = 60
#: What a database says when two processes make the same tables.
_MEANWHILE = ("already exists", "UNIQUE constraint", "locked")


@dataclass(frozen=True)
class Search:
    """A search: what, how and how long."""

    run: Run  # any run of the row
    space: Space  # what may vary
    name: str  # of the space
    storage: str  # see `open_storage`
    trials: int  # number of trials, of all workers together, failed and pruned ones included
    sampler: SamplerName = "tpe"  # ``"tpe"`` learns from the trials before, ``"random"`` does not
    #: ``"median"`` stops a trial that is worse than half of the others were at the same epoch,
    #: ``"hyperband"`` has brackets of early stopping.
    pruner: PrunerName = "median"
    seed: int = 0  # of the sampler

    @property
    def study_name(self) -> str:
        """The same row, space and seed are the same study; other epochs are another."""
        run = self.run
        return f"{run.table}/{run.dataset}/{run.row}/{self.name}/seed{self.seed}/{run.key}"

    @property
    def ranges(self) -> dict[str, dict[str, Any]]:
        """The space, for files."""
        return {".".join(place): each.as_dict() for place, each in self.space.items()}


def open_storage(storage: str) -> Any:
    """Open or make a storage: ``sqlite:///FILE`` (one machine), another database's address, or a journal.

    A journal is a file of lines; its locks work on the file systems of clusters, where those of SQLite often
    do not.

    Raises:
        SpecificationError: If the file cannot be written, or is something else than a storage.
    """
    if "://" not in storage:
        file = Path(storage)
        _check_file(file, _is_journal, "a journal of Optuna", " (a database is written sqlite:///FILE)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Optuna 4, where journals were new
            try:
                return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file)))
            except (OSError, ValueError, KeyError) as error:
                raise SpecificationError(
                    f"The journal {file} cannot be read ({error}). Choose another file with --storage."
                ) from error
    engine: dict[str, Any] = {}
    if storage.startswith("sqlite:"):
        file = Path(storage.partition("sqlite:///")[2])
        if not storage.startswith("sqlite:///") or not file.name:
            raise SpecificationError(
                f"A SQLite storage is written sqlite:///FILE, but got {storage!r}. E.g. sqlite:///search.db."
            )
        _check_file(file, _is_database, "a SQLite file of Optuna", "")
        engine = {"connect_args": {"timeout": _PATIENCE}}
    for attempts_left in (4, 3, 2, 1, 0):
        try:
            return optuna.storages.RDBStorage(storage, engine_kwargs=engine)
        except ModuleNotFoundError as error:
            raise SpecificationError(
                f"The storage {storage!r} needs the package {error.name}. Install it, or use "
                "sqlite:///FILE or a journal file."
            ) from error
        except Exception as error:  # whatever a driver raises
            if attempts_left and any(word in str(error) for word in _MEANWHILE):
                time.sleep(0.3)  # another worker was making the same tables
                continue
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise SpecificationError(
                f"The storage {storage!r} cannot be opened ({first}). Use sqlite:///FILE or a journal file."
            ) from error
    raise AssertionError("unreachable")


def _check_file(file: Path, fits: Callable[[Path], bool], what: str, hint: str) -> None:
    """Make the folder of a storage, and look at the file if it exists."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecificationError(f"The folder of the storage {file} cannot be made ({error}).") from error
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        wrong = "is a folder" if file.is_dir() else "cannot be written"
        raise SpecificationError(f"The storage {file} {wrong}. Choose another file with --storage.")
    if file.exists() and file.stat().st_size and not fits(file):
        raise SpecificationError(f"{file} is not {what}. Choose another file with --storage{hint}.")


def _is_journal(file: Path) -> bool:
    with file.open("rb") as lines, contextlib.suppress(ValueError, TypeError):
        return "op_code" in json.loads(lines.readline())
    return False


def _is_database(file: Path) -> bool:
    with contextlib.suppress(sqlite3.DatabaseError):
        connection = sqlite3.connect(f"file:{file.resolve()}?mode=ro", uri=True, timeout=_PATIENCE)
        with contextlib.closing(connection):
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            return not names or {"studies", "trials"} <= names
    return False


def open_study(search: Search) -> Any:
    """Open or make the study of a search.

    Raises:
        SpecificationError: If the storage cannot be used, or has the study with another space or sampler.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    epochs = int(search.run.training["epochs"])
    storage, sampler = open_storage(search.storage), StreamSampler(search)
    study = optuna.create_study(
        storage=storage,
        study_name=search.study_name,
        direction="maximize",
        sampler=sampler,
        pruner={
            "none": optuna.pruners.NopPruner(),
            "hyperband": optuna.pruners.HyperbandPruner(max(epochs // 27, 1), epochs),
            "median": optuna.pruners.MedianPruner(5, max(epochs // 10, 1) + 1),  # never in the first tenth
        }[search.pruner],
        load_if_exists=True,
    )
    sampler.study = study
    is_begun = bool(study.get_trials(deepcopy=False))
    before = study.user_attrs.get("space")  # read second: another worker writes it before its first trial
    if before is None and not is_begun:
        study.set_user_attr("sampler", search.sampler)
        study.set_user_attr("space", search.ranges)
    elif before != search.ranges:
        names = {*(before or {}), *search.ranges}
        changed = sorted(name for name in names if (before or {}).get(name) != search.ranges.get(name))
        raise SpecificationError(
            f"The storage {search.storage} holds the study {search.study_name} with another search space "
            f"(different: {', '.join(changed)}). Choose another --storage, or another name for the space."
        )
    sampler_before = study.user_attrs.get("sampler", search.sampler)
    if sampler_before != search.sampler:
        raise SpecificationError(
            f"The study {search.study_name} was begun with --sampler {sampler_before}, which is that of all "
            f"its trials. Keep it, or choose another --seed or --storage for {search.sampler}."
        )
    return study


def note_plugins(study: Any, search: Search) -> None:
    """Note in a study which plugins it uses; warn if its earlier trials were made with other sources."""
    now = plugin_versions(search.run)
    before = study.user_attrs.get("plugins", {} if study.get_trials(deepcopy=False) else now)
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if changed:
        warnings.warn(
            f"Earlier trials of {search.study_name} were made with another source of {', '.join(changed)}, "
            "and count all the same. To begin anew, choose another --seed or --storage.",
            EllipticWarning,
            stacklevel=2,
        )
    elif now:
        study.set_user_attr("plugins", now)


class StreamSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]  # Optuna is not typed here
    """Draw each trial from a stream of its own, which its place in the budget numbers.

    The first trial is the table's own setting, as far as that lies in the space.
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self.study: Any = None  # all of it: Hyperband shows samplers a part
        self.inner: Any = None
        self.fixed: dict[str, Any] = {}

    def before_trial(self, study: Any, trial: Any) -> None:
        """Take the stream of the trial."""
        place = len(counted(self.study, below=trial.number))
        seed = stream_seed(self.search.study_name, TRIAL_SEED, place) % 2**32
        if self.search.sampler == "random":
            self.inner = optuna.samplers.RandomSampler(seed=seed)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                # workers do not try what others are trying
                self.inner = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        self.fixed = own_values(self.search.run, self.search.space) if place == 0 else {}
        self.inner.before_trial(study, trial)

    def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
        """Return what is drawn jointly."""
        return {} if self.fixed else self.inner.infer_relative_search_space(study, trial)

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
        """Draw it."""
        return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        """Draw one value."""
        if param_name in self.fixed:
            return self.fixed[param_name]
        return self.inner.sample_independent(study, trial, param_name, param_distribution)


def counted(study: Any, below: int | None = None) -> list[Any]:
    """Return the trials of the budget: all but those waiting, killed or surplus."""
    return [
        trial
        for trial in study._storage.get_all_trials(study._study_id, deepcopy=False)
        if trial.state != TrialState.WAITING
        and not {KILLED, SURPLUS} & set(trial.user_attrs)
        and (below is None or trial.number < below)
    ]


def work(search: Search, options: Options, listen: TrialListener = lambda *_: None) -> None:
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
        with _held(folder):  # until the study knows the result, which is why this is not study.optimize
            trial.set_user_attr("folder", str(folder))
            trial.set_user_attr("host", socket.gethostname())  # from now on the lock tells whether it lives
            listen(trial.number, "start", {})
            _attempt(search, options, study, trial, folder, listen)
            shutil.rmtree(folder, ignore_errors=True)
        ended = study._storage.get_trial(trial._trial_id)
        details = {
            "number": ended.number,
            "state": ended.state.name,
            "score": ended.value if ended.state == TrialState.COMPLETE else None,
            "values": ended.params,
            "epochs": len(ended.intermediate_values),
            "error": ended.user_attrs.get("error", ""),
        }
        listen(trial.number, "end", details)


def do_search(search: Search, options: Options, listen: Listener) -> None:
    """Work in ``options.jobs`` processes; a "trial" event tells of each trial that ends."""
    n_workers, job = options.jobs or 1, functools.partial(_worker, search, options)
    if n_workers == 1:
        guarded("worker 0", functools.partial(job, listen), listen)
    else:
        in_processes([(f"worker {n}", job) for n in range(n_workers)], n_workers, listen)


def _worker(search: Search, options: Options, listen: Listener) -> str:

    def on_trial(_number: int, kind: str, details: dict[str, Any]) -> None:
        if kind == "end":
            listen("", "trial", details)

    work(search, options, on_trial)
    return "done"


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
    """Hold the lock of a trial; another worker may have it for a moment, to see whether it is free."""
    for _ in range(100):
        with claimed(folder.parent, folder / "trial") as mine:
            if mine:
                yield
                return
        time.sleep(0.1)
    raise RuntimeError(f"Another process has {folder.name} under way, which nobody else should have.")


def _attempt(
    search: Search, options: Options, study: Any, trial: Any, folder: Path, listen: TrialListener
) -> None:
    """Train with one setting and tell the study how it went; the test part is not looked at."""
    values = {place: each.suggest(trial, ".".join(place)) for place, each in search.space.items()}
    run = with_values(search.run, values, TRIAL_SEED)
    known = set(study._storage.get_trial(trial._trial_id).intermediate_values)  # of a process that died

    def progress(end: EpochEnd) -> None:
        if end.epoch not in known:
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
    except (FloatingPointError, ValueError, RuntimeError) as error:  # diverged, rejected, or out of memory
        trial.set_user_attr("error", f"{type(error).__name__}: {error}")
        study.tell(trial, state=TrialState.FAIL)
    else:
        trial.set_user_attr("seconds", round(record["cost"]["seconds"], 3))
        trial.set_user_attr("epoch", record["epoch"])
        study.tell(trial, score)


def take_up(study: Any) -> None:
    """Put trials of dead processes back into the queue, with what they had reported."""
    if not HAS_LOCKS:  # then nobody knows which process lives
        return
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if "host" not in trial.user_attrs:
            age = datetime.datetime.now() - (trial.datetime_start or datetime.datetime.now())
            if age > _NEVER_BEGUN:
                _put_back(study, trial)
        elif trial.user_attrs["host"] == socket.gethostname():
            folder = Path(trial.user_attrs["folder"])
            with claimed(folder.parent, folder / "trial") as free:
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


def check_search(search: Search, options: Options) -> None:
    """Reject a search that could not end well, before the first trial.

    Raises:
        SpecificationError: If the choice would see test rows, or cannot be made on the validation part.
    """
    run = search.run
    try:
        refuse_resplit(run, options.data_dir)
        data = load_dataset(run.load, run.seed, options.data_dir)
    except (RuntimeError, OSError, ValueError) as error:
        raise SpecificationError(str(error)) from error
    if run.select == "last":
        raise SpecificationError(
            f"{run.table} keeps the last epoch, whatever its score. Say by what to choose: "
            "--select average or worst."
        )
    if run.select == "worst" and data.validation.group is None and data.task != "classification":
        raise SpecificationError(
            f"The validation part of {run.dataset} has no groups, so there is no worst one. Use "
            "--select average."
        )


def choose(search: Search, study: Any, options: Options) -> dict[str, Any]:
    """Choose the best finished trial and write it where ``--tuned`` looks.

    Raises:
        RuntimeError: If no trial was finished.
    """
    trials = counted(study)
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if not done:
        errors = [trial.user_attrs["error"] for trial in trials if "error" in trial.user_attrs]
        first = f" The first said: {errors[0]}" if errors else ""
        raise RuntimeError(
            f"None of {len(trials)} trials of {search.run.row} was finished.{first} Correct the table's "
            "settings or narrow its search."
        )

    def as_dict(trial: Any) -> dict[str, Any]:
        values = {name: trial.params[name] for name in search.ranges if name in trial.params}
        found = {
            "values": values,
            "score": trial.value,
        }  # values in the order of the space, not the storage's
        if trial.state != TrialState.COMPLETE:
            found["state"] = trial.state.name.lower()
        if "error" in trial.user_attrs:
            found["error"] = trial.user_attrs["error"]
        return found

    chosen = {
        **as_dict(max(done, key=lambda trial: (trial.value, -trial.number))),
        "search": search.ranges,
        "rule": f"best {search.run.select} on the validation part",
        "sampler": search.sampler,
        "trials": [as_dict(trial) for trial in trials],
    }
    write_record(chosen_file(options.out, search.run), chosen)
    return chosen


def chosen_run(search: Search, chosen: dict[str, Any]) -> Run:
    """Return the run with the values that were chosen."""
    places = {
        (name.split(".", 1)[0], name.split(".", 1)[1]): value for name, value in chosen["values"].items()
    }
    return with_values(search.run, places, search.run.seed)


def importances(study: Any, at_least: int) -> dict[str, float]:
    """Share of the scores' variance that each setting explains (functional ANOVA); empty for few trials."""
    done = [trial for trial in counted(study) if trial.state == TrialState.COMPLETE]
    if len(done) < at_least or len({trial.value for trial in done}) < 2:
        return {}
    varied = [name for name in done[0].params if len({trial.params[name] for trial in done}) > 1]
    if not varied:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: dict[str, float] = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0), params=varied
        )
    return found
