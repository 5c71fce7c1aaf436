"""The study of a search: trials in a storage, counted over all workers and drawn from numbered streams."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import optuna
from optuna.trial import TrialState

from elliptica._utils.random import stream_seed
from elliptica.lab.experiments.search.space import own_values
from elliptica.lab.experiments.search.storage import open_storage
from elliptica.lab.experiments.specification import Range, Run, SpecificationError
from elliptica.lab.experiments.tune import TRIAL_SEED, Place

SamplerName = Literal["tpe", "random"]
PrunerName = Literal["median", "hyperband", "none"]

#: Marks of trials that are not of the budget: begun by a process that died, or one too many.
KILLED, SURPLUS = "killed", "surplus"


@dataclass(frozen=True)
class Search:
    """A search: what, how and how long.

    Attributes:
        run: Any run of the row.
        space: What may vary.
        name: Of the space.
        storage: See `open_storage`.
        trials: Number of trials, of all workers together, failed and pruned ones included.
        sampler: ``"tpe"`` learns from the trials before, ``"random"`` does not.
        pruner: ``"median"`` stops a trial that is worse than half of the others were at the same epoch,
            ``"hyperband"`` has brackets of early stopping.
        seed: Of the sampler.
    """

    run: Run
    space: dict[Place, Range]
    name: str
    storage: str
    trials: int
    sampler: SamplerName = "tpe"
    pruner: PrunerName = "median"
    seed: int = 0

    @property
    def study_name(self) -> str:
        """The same row, space and seed are the same study; other epochs are another."""
        run = self.run
        return f"{run.table}/{run.dataset}/{run.row}/{self.name}/seed{self.seed}/{run.key}"

    @property
    def ranges(self) -> dict[str, dict[str, Any]]:
        """The space, for files."""
        return {".".join(place): each.as_dict() for place, each in self.space.items()}


def open_study(search: Search) -> Any:
    """Open or make the study of a search.

    Raises:
        SpecificationError: If the storage cannot be used, or has the study with another space or sampler.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = open_storage(search.storage)
    sampler = Numbered(search)
    study = optuna.create_study(
        storage=storage,
        study_name=search.study_name,
        direction="maximize",
        sampler=sampler,
        pruner=make_pruner(search.pruner, int(search.run.training["epochs"])),
        load_if_exists=True,
    )
    sampler.study = study
    is_begun = bool(study.get_trials(deepcopy=False))
    before = study.user_attrs.get("space")  # read second: another worker writes it before its first trial
    if before is None and not is_begun:
        study.set_user_attr("sampler", search.sampler)
        study.set_user_attr("space", search.ranges)
    elif before != search.ranges:
        changed = sorted(
            name
            for name in {*(before or {}), *search.ranges}
            if (before or {}).get(name) != search.ranges.get(name)
        )
        raise SpecificationError(
            f"The storage {search.storage} holds the study {search.study_name} with another search space "
            f"(different: {', '.join(changed)}). Choose another --storage, or another name for the space."
        )
    sampler_before = study.user_attrs.get("sampler", search.sampler)
    if sampler_before != search.sampler:
        raise SpecificationError(
            f"The study {search.study_name} was begun with --sampler {sampler_before}, which is that of all "
            f"its trials. Go on with it, or choose another --seed or --storage for {search.sampler}."
        )
    return study


def make_pruner(name: PrunerName, epochs: int) -> Any:
    """A pruner by name; the first tenth of the epochs is never judged."""
    if name == "none":
        return optuna.pruners.NopPruner()
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=max(epochs // 27, 1), max_resource=epochs)
    return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=max(epochs // 10, 1) + 1)


def make_sampler(name: SamplerName, seed: int) -> Any:
    """A sampler by name."""
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # workers do not try what others are trying
        return optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)


class Numbered(optuna.samplers.BaseSampler):  # type: ignore[misc]
    """A sampler with a stream of its own for each trial: a resumed search draws as a whole one would.

    The first trial is the table's own setting, as far as that lies in the space.
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self.study: Any = None
        self.inner: Any = None
        self.fixed: dict[str, Any] = {}

    def before_trial(self, study: Any, trial: Any) -> None:
        """Take the stream of the trial's place in the budget."""
        place = len(counted(self.study, below=trial.number))
        self.inner = make_sampler(
            self.search.sampler, stream_seed(self.search.study_name, TRIAL_SEED, place) % 2**32
        )
        own = own_values(self.search.run, self.search.space) if place == 0 else {}
        self.fixed = {".".join(key): value for key, value in own.items()}
        self.inner.before_trial(study, trial)

    def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
        """What is drawn together."""
        return {} if self.fixed else self.inner.infer_relative_search_space(study, trial)

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
        """Draw it."""
        return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        """Draw one value."""
        if param_name in self.fixed:
            return self.fixed[param_name]
        return self.inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        """Tell the sampler."""
        if self.inner is not None:
            self.inner.after_trial(study, trial, state, values)


def counted(study: Any, below: int | None = None) -> list[Any]:
    """Trials of the budget: all but those waiting, killed or surplus."""
    return [
        trial
        for trial in study._storage.get_all_trials(study._study_id, deepcopy=False)
        if trial.state != TrialState.WAITING
        and KILLED not in trial.user_attrs
        and SURPLUS not in trial.user_attrs
        and (below is None or trial.number < below)
    ]
