"""Train models: in trials, in folds, and the one that is saved, all by `fit_models`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.compose import TransformedTargetRegressor

from elliptica._utils.random import stream_seed
from elliptica.core.weighting import GradientSoftmax
from elliptica.estimators import EllipticClassifier, EllipticRegressor
from elliptica.estimators.base import EllipticEstimator, Fit, fit_together
from elliptica.tables.methods import JTT, METHODS, REFERENCE, Plan, draw_settings
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

#: Progress after the first short trainings and after all trials, as shares of the work.
_AFTER_FIRST, _AFTER_TRIALS = 0.25, 0.65
#: Maximum number of trees over all classes, and minimum number of boosting iterations.
MAX_TREES, MIN_ITERATIONS = 300, 60
#: Iterations without a better validation loss before boosting stops.
_PATIENCE = 10


@dataclass(frozen=True)
class Recipe:
    """A method and its settings: what training needs besides rows."""

    method: str
    settings: dict[str, Any]
    log_target: bool = False  # whether it learns the logarithm of the targets
    length: int | None = None  # epochs or boosting iterations; None: as many as validation rows choose

    @property
    def sees_groups(self) -> bool:
        """Whether training uses the group column."""
        return METHODS[self.method].sees_groups


def make_model(problem: TableProblem, plan: Plan, recipe: Recipe, *, n_networks: int, seed: int) -> Any:
    """Create the estimator that trials, folds and the final model train."""
    make = METHODS[recipe.method].make
    seed %= 2**32
    if make is None:
        return _make_network(problem, plan, recipe, n_networks, seed)
    model = make(problem.task, recipe.settings, seed)
    if METHODS[recipe.method].boosted and recipe.length is None:
        n_classes = len(problem.classes)  # beyond two, each iteration grows a tree per class
        most = max(MIN_ITERATIONS, MAX_TREES // (n_classes if n_classes > 2 else 1))
        model.set_params(early_stopping=True, scoring="loss", n_iter_no_change=_PATIENCE, max_iter=most)
    elif METHODS[recipe.method].boosted:
        model.set_params(early_stopping=False, max_iter=recipe.length)
    if recipe.log_target:
        model = TransformedTargetRegressor(model, func=np.log, inverse_func=np.exp, check_inverse=False)
    return model


def _make_network(problem: TableProblem, plan: Plan, recipe: Recipe, n_networks: int, seed: int) -> Any:
    settings = {name: value for name, value in recipe.settings.items() if name not in ("xi", "upweight")}
    if "xi" in recipe.settings:
        settings["weighting"] = GradientSoftmax(recipe.settings["xi"])
    shared: dict[str, Any] = {
        "method": {"elliptic-weighted": "elliptic", JTT: REFERENCE}.get(recipe.method, recipe.method),
        "hidden": plan.hidden,
        "batch_size": plan.batch_size,
        "max_iter": plan.epochs if recipe.length is None else max(1, recipe.length),
        "n_iter_no_change": plan.patience,
        "n_networks": n_networks,
        "random_state": seed,
        **settings,
    }
    if problem.task == "classification":
        return EllipticClassifier(**shared)
    transform = "log" if recipe.log_target else None
    return EllipticRegressor(**shared, bounded=plan.bounded, target_transform=transform)


def fit_models(fits: Sequence[Fit], callback: Callable[[float], None] | None = None) -> list[bool]:
    """Train models, networks side by side; return whether the training of each diverged."""
    if fits and isinstance(fits[0].estimator, EllipticEstimator):
        return fit_together(fits, callback)
    for number, fit in enumerate(fits):
        if callback is not None:
            callback(number / len(fits))
        _fit_sklearn(fit)
    return [False] * len(fits)


def _fit_sklearn(fit: Fit) -> None:
    """Train a model of scikit-learn; boosting may stop on validation rows."""
    model: Any = fit.estimator
    rows = slice(None) if fit.rows is None else fit.rows
    stop = {}
    if getattr(getattr(model, "regressor", model), "early_stopping", None) is True:
        held = fit.y[fit.validation]
        is_log = isinstance(model, TransformedTargetRegressor)
        stop = {"X_val": fit.X[fit.validation], "y_val": np.log(held) if is_log else held}
    model.fit(fit.X[rows], fit.y[rows], **stop)
    if stop:  # remove iterations after the best validation score; its first value precedes any tree
        trees = getattr(model, "regressor_", model)
        trees._predictors = trees._predictors[: max(1, int(np.argmax(trees.validation_score_)))]


def length_of(model: Any) -> int:
    """Return the epochs or boosting iterations of a trained model; 0 for others."""
    model = getattr(model, "regressor_", model)
    return getattr(model, "best_iteration_", None) or len(getattr(model, "_predictors", ()))


def predict_model(problem: TableProblem, model: Any, x: np.ndarray) -> Predicted:
    """Predict probabilities of all class numbers, or numbers with and without their bounds."""
    if problem.task == "regression":
        values = np.asarray(model.predict(x), dtype=np.float64)
        return Predicted(values, unbounded(model).predict(x) if getattr(model, "bounded", False) else values)
    probabilities = np.zeros((len(x), len(problem.classes)))
    probabilities[:, model.classes_] = model.predict_proba(x)  # trials on few rows may lack a class
    return Predicted(probabilities, np.empty(0))


def unbounded(model: EllipticRegressor) -> EllipticRegressor:
    """Return a regressor that shares the networks of another, but does not clip predictions."""
    free = EllipticRegressor(**{**model.get_params(deep=False), "bounded": False})
    free.__dict__.update({name: value for name, value in vars(model).items() if name != "bounded"})
    return free


def upweighted(wrong: np.ndarray | None, recipe: Recipe) -> np.ndarray | None:
    """Return the weights of rows: those that JTT's first stage misclassified count more."""
    return None if wrong is None else np.where(wrong, recipe.settings["upweight"], 1.0)


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


def run_methods(problem: TableProblem, folds: Sequence[FoldRows], plan: Plan, report: Report) -> list[Record]:
    """Try settings, choose on the validation rows, train on all training rows, and test once.

    Args:
        problem: The table.
        folds: Rows of some folds.
        plan: Sizes, and methods: some networks, or one method of another kind.
        report: Callback that receives the finished share.
    """
    begin = time.perf_counter()
    trainer = _Trainer(problem, folds, plan, report, training_groups(problem))
    outcomes = trainer.search([method for method in plan.methods if method != JTT])
    if JTT in plan.methods:  # JTT learns from the errors of ordinary training in the same fold
        trainer.errors = [trainer.first_stage(outcomes, fold) for fold in range(len(folds))]
        outcomes |= trainer.search([JTT])
    pairs = [(fold, method) for fold in range(len(folds)) for method in plan.methods]
    tried = {pair: [outcomes[Candidate(*pair, k)].trial for k in range(plan.trials)] for pair in pairs}
    order = {pair: best_trials(tried[pair], problem, plan) for pair in pairs}
    chosen = {pair: Candidate(*pair, order[pair][0]) for pair in pairs if order[pair]}
    tested = trainer.test(list(chosen.values()), outcomes)
    seconds = (time.perf_counter() - begin) / max(1, len(pairs))
    records = []
    for pair in pairs:
        rows, method, best = folds[pair[0]], pair[1], chosen.get(pair)
        if best is None or best not in tested:
            records.append(failed_record(rows, method, tried[pair], seconds))
        else:
            how = {"seconds": seconds, **tested[best]}
            records.append(make_record(problem, rows, method, tried[pair], best.trial, **how))
    return records


@dataclass
class _Trainer:
    """Models that are trained on the rows of some folds."""

    problem: TableProblem
    folds: Sequence[FoldRows]
    plan: Plan
    report: Report
    groups: np.ndarray | None
    errors: Sequence[np.ndarray] | None = None  # rows that JTT upweights, by fold

    def search(self, methods: Sequence[str]) -> dict[Candidate, Outcome]:
        """Train all trials; if the plan has first epochs, drop the worse networks after these."""
        plan, places = self.plan, range(len(self.folds))
        every = [Candidate(f, method, k) for f in places for method in methods for k in range(plan.trials)]
        if plan.survivors == plan.trials or any(METHODS[method].make for method in methods):
            return self.try_out(every, None, (0.0, _AFTER_TRIALS))
        outcomes = self.try_out(every, plan.first_epochs, (0.0, _AFTER_FIRST))
        kept = []
        for pair in {candidate[:2]: None for candidate in every}:
            tried = [c for c in every if c[:2] == pair and outcomes[c].trial.validation]
            key = {c: ranking(outcomes[c].trial.validation, self.problem, plan) for c in tried}
            kept += sorted(tried, key=key.__getitem__, reverse=True)[: plan.survivors]
        longer = self.try_out(kept, None, (_AFTER_FIRST, _AFTER_TRIALS))
        dropped = {
            candidate: outcome._replace(trial=replace(outcome.trial, dropped=True))
            for candidate, outcome in outcomes.items()
        }
        return dropped | longer

    def first_stage(self, outcomes: Mapping[Candidate, Outcome], fold: int) -> np.ndarray:
        """Return the errors of the best trial of ordinary training."""
        tried = [outcomes[Candidate(fold, REFERENCE, trial)] for trial in range(self.plan.trials)]
        order = best_trials([outcome.trial for outcome in tried], self.problem, self.plan)
        return tried[order[0] if order else 0].errors

    def try_out(
        self, wanted: Sequence[Candidate], length: int | None, shares: tuple[float, float]
    ) -> dict[Candidate, Outcome]:
        """Train candidates on the rows of trials, and score them on the validation rows."""
        parts = [self.folds[c.fold] for c in wanted]
        fits = [
            self._fit(c, rows.fit, length, rows.validation, 0) for c, rows in zip(wanted, parts, strict=True)
        ]
        ended = self._train(fits, "trials", shares)
        outcomes = {}
        for candidate, rows, fit, diverged in zip(wanted, parts, fits, ended, strict=True):
            recipe, model = self._recipe(candidate), fit.estimator
            predicted = predict_model(self.problem, model, rows.x[rows.validation]).values
            trial = Trial(recipe.settings, recipe.log_target, length_of(model), {}, error="training diverged")
            if not diverged and np.isfinite(predicted).all():
                trial = replace(trial, validation=validate(self.problem, rows, predicted), error="")
            wrong = np.empty(0)
            if candidate.method == REFERENCE and JTT in self.plan.methods:
                wrong = model.predict(rows.x) != rows.y
            outcomes[candidate] = Outcome(trial, predicted, wrong)
        return outcomes

    def test(
        self, wanted: Sequence[Candidate], outcomes: Mapping[Candidate, Outcome]
    ) -> dict[Candidate, dict[str, Any]]:
        """Train with the chosen settings on all training rows, and predict the test rows."""
        fits = []
        for candidate in wanted:
            rows = self.folds[candidate.fold]
            length = outcomes[candidate].trial.length if rows.stop is None else None
            fits.append(self._fit(candidate, rows.train, length, rows.stop, self.plan.networks))
        ended = self._train(fits, "final training", (_AFTER_TRIALS, 1.0))
        tested: dict[Candidate, dict[str, Any]] = {}
        for candidate, fit, diverged in zip(wanted, fits, ended, strict=True):
            rows, model = self.folds[candidate.fold], fit.estimator
            if diverged:
                continue
            validation = outcomes[candidate].predicted
            if rows.stop is not None:
                validation = predict_model(self.problem, model, rows.x[rows.stop]).values
            tested[candidate] = {
                "predicted": predict_model(self.problem, model, rows.x[rows.fold.test]),
                "validation": validation,
                "length": length_of(model),
            }
        return tested

    def _recipe(self, candidate: Candidate, length: int | None = None) -> Recipe:
        settings = draw_settings(candidate.method, candidate.trial, self.plan)
        return Recipe(candidate.method, settings, self.plan.logs_target(candidate.trial), length)

    def _fit(
        self,
        candidate: Candidate,
        train: np.ndarray,
        length: int | None,
        validation: np.ndarray | None,
        n_networks: int,
    ) -> Fit:
        """Describe a training; all methods share the seed, the initial weights and the order of rows."""
        rows, recipe = self.folds[candidate.fold], self._recipe(candidate, length)
        what = "final" if n_networks else "trials"
        seed = stream_seed("training", self.plan.seed, rows.fold.repeat, rows.fold.number, what)
        model = make_model(self.problem, self.plan, recipe, n_networks=max(1, n_networks), seed=seed)
        wrong = self.errors[candidate.fold] if self.errors is not None and candidate.method == JTT else None
        groups = self.groups if recipe.sees_groups else None
        return Fit(model, rows.x, rows.y, upweighted(wrong, recipe), groups, train, validation)

    def _train(self, fits: Sequence[Fit], what: str, shares: tuple[float, float]) -> list[bool]:
        folds = ", ".join(str(rows.fold.number + 1) for rows in self.folds)
        if (label := METHODS[self.plan.methods[0]]).make:
            what = label.label
        words = f"{what}, fold{'s' if len(self.folds) > 1 else ''} {folds}"
        begin, end = shares
        return fit_models(fits, lambda share: self.report(begin + share * (end - begin), words))
