"""Train networks of all methods and folds side by side, by the rules of `elliptica.tables.protocol`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from elliptica._utils.random import stream_seed
from elliptica.core.weighting import GradientSoftmax
from elliptica.estimators import EllipticClassifier, EllipticRegressor
from elliptica.estimators.fit import Fit, fit_together
from elliptica.tables.plan import SEES_GROUPS, Plan, draw_settings
from elliptica.tables.problem import TableProblem
from elliptica.tables.protocol import (
    FoldRows,
    Predicted,
    Record,
    Report,
    Trial,
    best_trials,
    failed_record,
    make_record,
    ranking,
    validate,
)

JTT = "jtt"
#: Progress after the first short trainings and after all trials, as shares of the work.
_AFTER_FIRST, _AFTER_TRIALS = 0.25, 0.65


class Candidate(NamedTuple):
    """A trial of a method in one of the folds."""

    fold: int  # place in the list of folds
    method: str
    trial: int


class Outcome(NamedTuple):
    """The result of a candidate."""

    trial: Trial
    predicted: np.ndarray  # predictions for the validation rows
    errors: np.ndarray  # whether each row is misclassified; empty unless JTT needs it


def make_network(
    problem: TableProblem,
    plan: Plan,
    method: str,
    settings: Mapping[str, Any],
    *,
    log: bool,
    epochs: int,
    n_networks: int,
    seed: int,
) -> Any:
    """Create the estimator that folds, trials and the final model train."""
    options = {name: value for name, value in settings.items() if name not in ("xi", "upweight")}
    if method == "elliptic-weighted":
        options["weighting"] = GradientSoftmax(settings["xi"])
    names = {"elliptic-weighted": "elliptic", JTT: "erm"}
    shared: dict[str, Any] = {
        "method": names.get(method, method),
        "hidden": plan.hidden,
        "batch_size": plan.batch_size,
        "max_iter": max(1, epochs),
        "n_iter_no_change": plan.patience,
        "n_networks": n_networks,
        "random_state": seed % 2**32,
    }
    if problem.task == "classification":
        return EllipticClassifier(**shared, **options)
    transform = "log" if log else None
    return EllipticRegressor(**shared, **options, bounded=plan.bounded, target_transform=transform)


def upweighted(wrong: np.ndarray | None, settings: Mapping[str, Any]) -> np.ndarray | None:
    """Return the weights of rows: those that JTT's first stage misclassified count more."""
    return None if wrong is None else np.where(wrong, settings["upweight"], 1.0)


def training_groups(problem: TableProblem) -> np.ndarray | None:
    """Return the group number of each row, for methods that use groups; None if there are no groups.

    Rows of groups that are too small to judge count as rows of the largest group. As a group of their own
    they would be sampled as often as all others together.
    """
    if problem.groups is None:
        return None
    names, counts = np.unique(problem.groups[problem.groups != ""], return_counts=True)
    named = np.where(problem.groups == "", names[counts.argmax()], problem.groups)
    return np.unique(named, return_inverse=True)[1]


def predict_network(problem: TableProblem, model: Any, x: np.ndarray) -> Predicted:
    """Predict probabilities, or numbers with and without their bounds."""
    if problem.task == "classification":
        return Predicted(model.predict_proba(x), np.empty(0))
    values = model.predict(x)
    free = unbounded(model).predict(x) if model.bounded else values
    return Predicted(values, free)


def unbounded(model: EllipticRegressor) -> EllipticRegressor:
    """Return a regressor that shares the networks of another, but does not clip predictions."""
    free = EllipticRegressor(**{**model.get_params(deep=False), "bounded": False})
    free.__dict__.update({name: value for name, value in vars(model).items() if name != "bounded"})
    return free


def run_networks(
    problem: TableProblem, folds: Sequence[FoldRows], plan: Plan, report: Report
) -> list[Record]:
    """Train and test all network methods in some of the folds.

    Args:
        problem: The table.
        folds: Rows of these folds.
        plan: Methods and sizes.
        report: Callback that receives the finished share.
    """
    begin = time.perf_counter()
    trainer = _Trainer(problem, folds, plan, report, training_groups(problem))
    outcomes = trainer.search([method for method in plan.network_methods if method != JTT])
    if JTT in plan.network_methods:  # JTT learns from the errors of ordinary training in the same fold
        trainer.errors = [trainer.first_stage(outcomes, fold) for fold in range(len(folds))]
        outcomes |= trainer.search([JTT])
    chosen = {}
    for fold in range(len(folds)):
        for method in plan.network_methods:
            tried = [outcomes[Candidate(fold, method, trial)].trial for trial in range(plan.trials)]
            if order := best_trials(tried, problem, plan):
                chosen[fold, method] = Candidate(fold, method, order[0])
    tested = trainer.test(list(chosen.values()), outcomes)
    seconds = (time.perf_counter() - begin) / max(1, len(folds) * len(plan.network_methods))
    records = []
    for fold, rows in enumerate(folds):
        for method in plan.network_methods:
            tried = [outcomes[Candidate(fold, method, trial)].trial for trial in range(plan.trials)]
            best = chosen.get((fold, method))
            if best is None or best not in tested:
                records.append(failed_record(rows, method, tried, seconds))
            else:
                how = {"seconds": seconds, **tested[best]}
                records.append(make_record(problem, rows, method, tried, best.trial, **how))
    return records


@dataclass
class _Trainer:
    """Networks that are trained on the rows of some folds."""

    problem: TableProblem
    folds: Sequence[FoldRows]
    plan: Plan
    report: Report
    groups: np.ndarray | None
    errors: Sequence[np.ndarray] | None = None  # rows that JTT upweights, by fold

    def search(self, methods: Sequence[str]) -> dict[Candidate, Outcome]:
        """Train all trials; if the plan has first epochs, drop the worse ones after these."""
        plan = self.plan
        every = [
            Candidate(fold, method, trial)
            for fold in range(len(self.folds))
            for method in methods
            for trial in range(plan.trials)
        ]
        if plan.survivors == plan.trials:
            return self.try_out(every, plan.epochs, (0.0, _AFTER_TRIALS))
        outcomes = self.try_out(every, plan.first_epochs, (0.0, _AFTER_FIRST))
        kept = []
        for fold in range(len(self.folds)):
            for method in methods:
                tried = [c for c in every if c[:2] == (fold, method) and outcomes[c].trial.validation]
                key = {c: ranking(outcomes[c].trial.validation, self.problem, plan) for c in tried}
                kept += sorted(tried, key=key.__getitem__, reverse=True)[: plan.survivors]
        longer = self.try_out(kept, plan.epochs, (_AFTER_FIRST, _AFTER_TRIALS))
        dropped = {
            candidate: outcome._replace(trial=replace(outcome.trial, dropped=True))
            for candidate, outcome in outcomes.items()
        }
        return dropped | longer

    def first_stage(self, outcomes: Mapping[Candidate, Outcome], fold: int) -> np.ndarray:
        """Return the errors of the best trial of ordinary training."""
        tried = [outcomes[Candidate(fold, "erm", trial)] for trial in range(self.plan.trials)]
        order = best_trials([outcome.trial for outcome in tried], self.problem, self.plan)
        return tried[order[0] if order else 0].errors

    def try_out(
        self, wanted: Sequence[Candidate], epochs: int, shares: tuple[float, float]
    ) -> dict[Candidate, Outcome]:
        """Train candidates on the rows of trials, and score them on the validation rows."""
        fits = [
            self._fit(c, self.folds[c.fold].fit, epochs, self.folds[c.fold].validation, 0) for c in wanted
        ]
        outcomes = {}
        for candidate, fit, diverged in zip(wanted, fits, self._train(fits, "trials", shares), strict=True):
            rows, model = self.folds[candidate.fold], fit.estimator
            settings, log = self._settings(candidate)
            predicted = predict_network(self.problem, model, rows.x[rows.validation]).values
            trial = Trial(settings, log, model.best_iteration_, {}, error="the training loss became infinite")
            if not diverged and np.isfinite(predicted).all():
                trial = replace(trial, validation=validate(self.problem, rows, predicted), error="")
            wrong = np.empty(0)
            if candidate.method == "erm" and JTT in self.plan.methods:
                wrong = model.predict(rows.x) != rows.y
            outcomes[candidate] = Outcome(trial, predicted, wrong)
        return outcomes

    def test(
        self, wanted: Sequence[Candidate], outcomes: Mapping[Candidate, Outcome]
    ) -> dict[Candidate, dict[str, Any]]:
        """Train ensembles with the chosen settings on all training rows, and predict the test rows."""
        fits = []
        for candidate in wanted:
            rows = self.folds[candidate.fold]
            length = outcomes[candidate].trial.length if rows.stop is None else self.plan.epochs
            fits.append(self._fit(candidate, rows.train, length, rows.stop, self.plan.networks))
        tested: dict[Candidate, dict[str, Any]] = {}
        ended = self._train(fits, "final training", (_AFTER_TRIALS, 1.0))
        for candidate, fit, diverged in zip(wanted, fits, ended, strict=True):
            rows, model = self.folds[candidate.fold], fit.estimator
            if diverged:
                continue
            validation = outcomes[candidate].predicted
            if rows.stop is not None:
                validation = predict_network(self.problem, model, rows.x[rows.stop]).values
            tested[candidate] = {
                "predicted": predict_network(self.problem, model, rows.x[rows.fold.test]),
                "validation": validation,
                "length": model.best_iteration_,
            }
        return tested

    def _settings(self, candidate: Candidate) -> tuple[dict[str, Any], bool]:
        settings = draw_settings(candidate.method, candidate.trial, self.plan)
        return settings, self.plan.logs_target(candidate.trial)

    def _fit(
        self,
        candidate: Candidate,
        train: np.ndarray,
        epochs: int,
        validation: np.ndarray | None,
        n_networks: int,
    ) -> Fit:
        """Describe a training; all methods share the seed, the initial weights and the order of rows."""
        rows = self.folds[candidate.fold]
        settings, log = self._settings(candidate)
        seed = training_seed(self.plan, rows.fold.repeat, rows.fold.number, n_networks > 0)
        model = make_network(
            self.problem,
            self.plan,
            candidate.method,
            settings,
            log=log,
            epochs=epochs,
            n_networks=max(1, n_networks),
            seed=seed,
        )
        wrong = self.errors[candidate.fold] if self.errors is not None and candidate.method == JTT else None
        groups = self.groups if candidate.method in SEES_GROUPS else None
        return Fit(model, rows.x, rows.y, upweighted(wrong, settings), groups, train, validation)

    def _train(self, fits: Sequence[Fit], what: str, shares: tuple[float, float]) -> list[bool]:
        folds = ", ".join(str(rows.fold.number + 1) for rows in self.folds)
        words = f"{what}, fold{'s' if len(self.folds) > 1 else ''} {folds}"
        begin, end = shares
        return fit_together(fits, lambda share: self.report(begin + share * (end - begin), words))


def training_seed(plan: Plan, repeat: int, fold: int, is_final: bool) -> int:
    """Return the seed of the networks of a fold, of its trials or of its final training."""
    return stream_seed("training", plan.seed, repeat, fold, "final" if is_final else "trials")
