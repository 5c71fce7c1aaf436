"""Train and test every method in every fold: trials, the choice among them, the record, the saved model.

In every fold, a method tries the settings of `elliptica.tables.methods.draw_settings` on the training rows
without the validation rows. A first round (few epochs of networks, few rows for trees) drops the worse ones.
The validation rows choose the trial and its length. The chosen settings are then trained on all training rows
and predict the test rows once. In large tables, trials see only part of the rows. The chosen settings are
then trained on all rows except the validation rows, which choose the length again.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import TargetEncoder

from elliptica._utils.random import stream_seed
from elliptica._utils.statistics import fit_temperature
from elliptica.core.weighting import GradientSoftmax
from elliptica.estimators import EllipticClassifier, EllipticRegressor
from elliptica.estimators.base import EllipticEstimator, Fit, fit_together
from elliptica.estimators.preprocess import Kind
from elliptica.estimators.wrapped import MIN_PROBABILITY, Booster, at_temperature
from elliptica.tables.methods import LINEAR, METHODS, Plan, codes_of, draw_settings
from elliptica.tables.metrics import fifths, metrics_of, score, single_test
from elliptica.tables.problem import MIN_GROUP_ROWS, TableProblem
from elliptica.tables.shift import Fold, make_preprocessor

#: Called with the finished share of a task and a message. May raise to stop the task.
Report = Callable[[float, str], None]

#: Range of plausible temperatures; values outside mean that there are too few validation rows.
_TEMPERATURES = (0.05, 20.0)


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, with their validation scores."""

    settings: dict[str, Any]  # by name
    log_target: bool  # whether the logarithm of the targets was learnt
    length: int  # epochs or boosting iterations that were best on the validation rows; 0: not applicable
    validation: dict[str, float]  # scores on the validation rows; empty if training failed
    dropped: bool = False  # whether it was dropped after a first short training
    error: str = ""  # why it failed, empty if it did not


@dataclass(frozen=True)
class Record:
    """The result of a method in one fold."""

    repeat: int  # number of the repeat, from 0
    fold: int  # number of the fold, from 0
    method: str
    trials: tuple[Trial, ...]  # in order
    chosen: int | None  # number of the trial that the validation rows chose; None: all failed
    seconds: float  # time of trials and training; networks trained together share theirs equally
    length: int = 0  # epochs or boosting iterations of the model that was tested; 0: not applicable
    temperature: float | None = None  # calibrates probabilities; fitted on the validation rows
    #: Predictions for the test rows: probabilities ``(rows, classes)``, or numbers ``(rows,)``.
    predicted: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    #: Calibrated predictions for the validation rows, by models that were not trained on them.
    held: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    clipped: int = 0  # predicted numbers that were clipped to the range of the training targets
    error: str = ""  # why the method failed
    lost: int = 0  # networks that diverged and are left out

    @property
    def key(self) -> tuple[int, int, str]:
        """Repeat, fold and method."""
        return self.repeat, self.fold, self.method

    def final(self) -> np.ndarray:
        """Return the predictions for the test rows; probabilities are calibrated."""
        if self.temperature is None:
            return self.predicted
        return at_temperature(self.predicted, self.temperature)

    def to_json(self) -> dict[str, Any]:
        """Convert to values that JSON can store, without the predictions."""
        content = asdict(replace(self, predicted=np.empty(0), held=np.empty(0)))
        del content["predicted"], content["held"]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any], predicted: np.ndarray, held: np.ndarray) -> Record:
        """Restore a record."""
        trials = tuple(Trial(**trial) for trial in content["trials"])
        return cls(**{**content, "trials": trials}, predicted=predicted, held=held)


@dataclass(frozen=True)
class FoldRows:
    """The rows of a fold as numbers; preprocessing is fitted on its training rows."""

    problem: TableProblem
    fold: Fold
    y: np.ndarray  # class numbers or targets of all rows
    first: np.ndarray  # rows that the first trials of trees are trained on
    fit: np.ndarray  # rows that trials are trained on
    train: np.ndarray  # rows that the chosen settings are trained on
    stop: np.ndarray | None  # validation rows for the final training, if trials saw only part of the rows
    bounds: np.ndarray  # regression: upper bounds of the fifths of the training targets

    _cache: dict[int, list[tuple[np.ndarray, list[Kind]]]] = field(default_factory=dict)

    def inputs(self, codes: int, *, final: bool) -> tuple[np.ndarray, list[Kind]]:
        """Return the inputs of all rows, with codes of categories for trees, and the kinds of their columns.

        Target means contain no validation rows while these judge: in trials, and in the ``final`` training if
        they choose its length.
        """
        if codes not in self._cache:
            self._cache[codes] = []
            for train in (self.fold.train, self.fold.fit):
                preprocess = make_preprocessor(self.problem, codes)
                known = preprocess.fit_transform(self.problem.features[train], self.problem.target[train])
                x = np.asarray(preprocess.transform(self.problem.features))
                x[train] = known  # the target means of training rows are those of other rows
                self._cache[codes].append((x, preprocess.kinds_out_))
                if not any(isinstance(encoder, TargetEncoder) for encoder in preprocess.encoders_):
                    break
        return self._cache[codes][0 if final and self.stop is None else -1]


def prepare(problem: TableProblem, fold: Fold, plan: Plan) -> FoldRows:
    """Number the classes, and sample the rows that trials see in a large table."""
    y, bounds = problem.target, np.empty(0)
    if problem.task == "classification":
        y = np.unique(y, return_inverse=True)[1]
    else:
        bounds = fifths(y[fold.train])
    fit, train, stop = fold.fit, fold.train, None
    if len(fit) > plan.tuning_rows:
        train, stop = fit, fold.validation
        draws = np.random.default_rng(stream_seed("rows", plan.seed, fold.repeat, fold.number))
        fit = np.sort(draws.choice(fit, plan.tuning_rows, replace=False))
    n_first = min(len(fit), max(plan.first_rows // max(1, len(problem.classes) // 2), MIN_FIRST_ROWS))
    first = np.random.default_rng(stream_seed("first rows", plan.seed)).permutation(fit)[:n_first]
    return FoldRows(problem, fold, y, np.sort(first), fit, train, stop, bounds)


def validate(problem: TableProblem, rows: FoldRows, predicted: np.ndarray) -> dict[str, float]:
    """Score predictions of the validation rows; by class or fifth if no group has rows there."""
    groups = None if problem.judged is None else problem.judged[rows.fold.validation]
    if groups is not None and not (groups != "").any():
        groups = None
    target = problem.target[rows.fold.validation]
    test = single_test(
        problem.task, target, {"": predicted}, classes=problem.classes, groups=groups, bounds=rows.bounds
    )
    return score(test)[""]


def ranking(scores: Mapping[str, float], problem: TableProblem, plan: Plan) -> tuple[float, ...]:
    """Return the sort key that chooses among trials; larger is better.

    For classes it is the Brier score, which separates trials on few rows better than accuracy does. For
    numbers it is the RMSE. With ``select="worst"``, the accuracy or RMSE of the worst part comes first.
    """
    average = scores["brier" if problem.task == "classification" else "rmse"]
    worst = metrics_of(problem.task, problem.groups is not None)[1]
    if plan.select != "worst" or worst.name not in scores:
        return (-average,)
    return (scores[worst.name] if worst.higher_is_better else -scores[worst.name], -average)


def best_trials(trials: Sequence[Trial], problem: TableProblem, plan: Plan) -> list[int]:
    """Return the trials that neither failed nor were dropped, the best one first."""
    usable = [number for number, trial in enumerate(trials) if trial.validation and not trial.dropped]
    return sorted(usable, key=lambda n: ranking(trials[n].validation, problem, plan), reverse=True)


def final_trial(records: Sequence[Record], problem: TableProblem, plan: Plan) -> int:
    """Return the trial with the best average rank on the validation rows over the folds of a method.

    A trial that failed or was dropped in a fold ranks last there.
    """
    places: dict[int, list[int]] = {}
    for record in records:
        order = best_trials(record.trials, problem, plan)
        n = len(record.trials)
        for number in range(n):
            places.setdefault(number, []).append(order.index(number) if number in order else n)
    return min(places, key=lambda number: (np.mean(places[number]), number))


def _temperature(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Fit the temperature with the least log loss; 1 if all rows are correct, when no minimum exists."""
    if (probabilities.argmax(1) == labels).all():
        return 1.0
    return float(
        np.clip(fit_temperature(np.log(probabilities.clip(MIN_PROBABILITY)), labels), *_TEMPERATURES)
    )


#: Progress after the first short trainings and after all trials, as shares of the work.
_AFTER_FIRST, _AFTER_TRIALS = 0.25, 0.65
#: Boosting iterations without a better validation loss before it stops, and their limit, which is cautioned.
PATIENCE, MOST_ITERATIONS = 20, 3_000
#: Least number of rows in the first trials of trees (with more classes, trees take longer), and the multiple
#: of their learning rate, which takes as many times fewer iterations.
MIN_FIRST_ROWS, FIRST_STEPS = 400, 3


@dataclass(frozen=True)
class Recipe:
    """A method and its settings: what training needs besides rows."""

    method: str
    settings: dict[str, Any]
    log_target: bool = False  # whether it learns the logarithm of the targets
    length: int | None = None  # epochs or boosting iterations; None: as many as validation rows choose
    temperature: float | None = None  # of the probabilities of a saved model: the mean over folds


def make_model(
    problem: TableProblem, plan: Plan, recipe: Recipe, kinds: Sequence[Kind], *, n_networks: int, seed: int
) -> Any:
    """Create the estimator that trials, folds and the final model train; ``kinds`` are those of its inputs.

    Trees split by category. The linear model tries settings with and without free text, which may harm it.
    """
    make = METHODS[recipe.method].make
    seed %= 2**32
    if make is None:
        return _make_network(problem, plan, recipe, n_networks, seed)
    model = make(problem.task, recipe.settings, seed)
    if METHODS[recipe.method].boosted:
        model.set_params(early_stopping=recipe.length is None, n_iter_no_change=PATIENCE)
        model.set_params(max_iter=recipe.length or MOST_ITERATIONS)
        model.set_params(categorical_features=np.asarray(kinds) == "category")
    others = [place for place, kind in enumerate(kinds) if kind != "text"]
    if recipe.method == LINEAR and not recipe.settings["text"] and 0 < len(others) < len(kinds):
        model = make_pipeline(ColumnTransformer([("others", "passthrough", others)]), *model)
    if recipe.log_target:
        model = TransformedTargetRegressor(model, func=np.log, inverse_func=np.exp, check_inverse=False)
    return model


def _make_network(problem: TableProblem, plan: Plan, recipe: Recipe, n_networks: int, seed: int) -> Any:
    settings = {name: value for name, value in recipe.settings.items() if name != "xi"}
    if "xi" in recipe.settings:
        settings["weighting"] = GradientSoftmax(recipe.settings["xi"])
    shared: dict[str, Any] = {
        "method": "elliptic" if recipe.method == "elliptic-weighted" else recipe.method,
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


def fit_models(fits: Sequence[Fit], callback: Callable[[float], None] | None = None) -> list[int]:
    """Train models, networks side by side; return how many networks of each diverged."""
    if all(isinstance(fit.estimator, EllipticEstimator) for fit in fits):
        return fit_together(fits, callback)
    for number, fit in enumerate(fits):
        if callback is not None:
            callback(number / len(fits))
        _fit_sklearn(fit)
    return [0] * len(fits)


def _fit_sklearn(fit: Fit) -> None:
    """Train a model of scikit-learn; boosting may stop on validation rows."""
    model: Any = fit.estimator
    rows = slice(None) if fit.rows is None else fit.rows
    stop = {}
    inner = getattr(model, "regressor", model)
    if not isinstance(inner, EllipticEstimator) and getattr(inner, "early_stopping", None) is True:
        held = np.asarray(fit.validation)
        if fit.y.dtype.kind != "f":  # few rows may lack a class
            held = held[np.isin(fit.y[held], fit.y[rows])]
        is_log = isinstance(model, TransformedTargetRegressor)
        stop = {"X_val": fit.X[held], "y_val": np.log(fit.y[held]) if is_log else fit.y[held]}
    model.fit(fit.X[rows], fit.y[rows], **stop)
    trees = getattr(model, "regressor_", model)
    if stop and not isinstance(trees, Booster):  # those after the best score; its first value precedes any
        trees._predictors = trees._predictors[: max(1, int(np.argmax(trees.validation_score_)))]


def length_of(model: Any) -> int:
    """Return the epochs or boosting iterations of a trained model; 0 for others."""
    model = getattr(model, "regressor_", model)
    return getattr(model, "best_iteration_", None) or len(getattr(model, "_predictors", ()))


def predict_model(problem: TableProblem, model: Any, x: np.ndarray) -> np.ndarray:
    """Predict probabilities of all class numbers, or numbers."""
    if problem.task == "regression":
        return np.asarray(model.predict(x), dtype=np.float64)
    probabilities = np.zeros((len(x), len(problem.classes)))
    probabilities[:, model.classes_] = model.predict_proba(x)  # trials on few rows may lack a class
    return probabilities


def training_groups(problem: TableProblem) -> np.ndarray | None:
    """Return the group number of each row, for methods that use groups; None if there are no groups.

    Groups with few rows in the table (not in a test file) count as the largest group. As groups of their own
    they would be sampled as often as all others.
    """
    if problem.groups is None:
        return None
    numbers = np.unique(problem.groups, return_inverse=True)[1]
    counts = np.bincount(numbers[problem.own_rows], minlength=numbers.max() + 1)
    merged = np.where(counts[numbers] < MIN_GROUP_ROWS, counts.argmax(), numbers)
    return np.unique(merged, return_inverse=True)[1]


class Candidate(NamedTuple):
    """A trial of a method in one of the folds."""

    fold: int  # place in the list of folds
    method: str
    trial: int


class Outcome(NamedTuple):
    """The result of a candidate."""

    trial: Trial
    predicted: np.ndarray  # predictions for the validation rows


def run_methods(problem: TableProblem, folds: Sequence[FoldRows], plan: Plan, report: Report) -> list[Record]:
    """Try settings, choose on the validation rows, train on all training rows, and test once."""
    begin = time.perf_counter()
    trainer = _Trainer(problem, folds, plan, report, training_groups(problem))
    pairs = [(fold, method) for fold in range(len(folds)) for method in plan.methods]
    outcomes = trainer.search(pairs)
    trials = {
        pair: [outcomes[Candidate(*pair, k)].trial for k in range(plan.trials_of(pair[1]))] for pair in pairs
    }
    order_of = {pair: best_trials(trials[pair], problem, plan) for pair in pairs}
    tested = trainer.test([Candidate(*pair, order[0]) for pair, order in order_of.items() if order], outcomes)
    seconds = (time.perf_counter() - begin) / max(1, len(pairs))
    records = []
    for fold, method in pairs:
        rows, tries = folds[fold].fold, trials[fold, method]
        record = Record(rows.repeat, rows.number, method, tuple(tries), None, seconds)
        if (fold, method) in tested:
            chosen = order_of[fold, method][0]
            records.append(replace(record, chosen=chosen, **tested[fold, method]))
        else:
            reason = next((trial.error for trial in tries if trial.error), "the final training diverged")
            words = f"Training failed with all of {len(tries)} settings. The first error was: {reason}."
            records.append(replace(record, error=words))
    return records


#: A first round of trials, the trials that are left, or the training of the chosen settings.
Stage = Literal["first", "trials", "final"]


@dataclass
class _Trainer:
    """Models that are trained on the rows of some folds."""

    problem: TableProblem
    folds: Sequence[FoldRows]
    plan: Plan
    report: Report
    groups: np.ndarray | None

    def search(self, pairs: Sequence[tuple[int, str]]) -> dict[Candidate, Outcome]:
        """Train all trials of pairs of fold and method; drop the worse ones after a first round."""
        kept = [Candidate(*pair, k) for pair in pairs for k in range(self.plan.trials_of(pair[1]))]
        dropped, begin = dict[Candidate, Outcome](), 0.0
        if any(self._has_first_round(*pair) for pair in pairs):
            first, begin = self.try_out(kept, "first", (0.0, _AFTER_FIRST)), _AFTER_FIRST
            kept = []
            for pair in pairs:
                tried = [first[Candidate(*pair, k)].trial for k in range(self.plan.trials_of(pair[1]))]
                order = best_trials(tried, self.problem, self.plan)[: self.plan.survivors(pair[1])]
                kept += [Candidate(*pair, k) for k in order]
            dropped = {c: Outcome(replace(o.trial, dropped=True), o.predicted) for c, o in first.items()}
        return dropped | self.try_out(kept, "trials", (begin, _AFTER_TRIALS))

    def _has_first_round(self, fold: int, method: str) -> bool:
        rows = self.folds[fold]
        if METHODS[method].make is None:
            return self.plan.first_epochs > 0
        return METHODS[method].boosted and len(rows.first) < len(rows.fit)

    def try_out(
        self, wanted: Sequence[Candidate], stage: Stage, shares: tuple[float, float]
    ) -> dict[Candidate, Outcome]:
        """Train candidates on the rows of trials, and score them on the validation rows."""
        fits = [self._fit(candidate, stage) for candidate in wanted]
        ended = self._train(fits, "trials", shares)
        outcomes = {}
        for candidate, fit, lost in zip(wanted, fits, ended, strict=True):
            recipe, model, rows = self._recipe(candidate), fit.estimator, self.folds[candidate.fold]
            predicted = predict_model(self.problem, model, fit.X[rows.fold.validation])
            trial = Trial(recipe.settings, recipe.log_target, length_of(model), {}, error="training diverged")
            if not lost and np.isfinite(predicted).all():
                trial = replace(trial, validation=validate(self.problem, rows, predicted), error="")
            outcomes[candidate] = Outcome(trial, predicted)
        return outcomes

    def test(
        self, wanted: Sequence[Candidate], outcomes: Mapping[Candidate, Outcome]
    ) -> dict[tuple[int, str], dict[str, Any]]:
        """Train with the chosen settings on all training rows, and predict the test rows.

        Return fields of the record by fold and method; those that diverged are missing.
        """
        lengths = [outcomes[c].trial.length if self.folds[c.fold].stop is None else None for c in wanted]
        fits = [self._fit(c, "final", length) for c, length in zip(wanted, lengths, strict=True)]
        ended = self._train(fits, "final training", (_AFTER_TRIALS, 1.0))
        tested: dict[tuple[int, str], dict[str, Any]] = {}
        for candidate, fit, lost in zip(wanted, fits, ended, strict=True):
            if lost == self.plan.networks:
                continue
            rows, model, temperature = self.folds[candidate.fold], fit.estimator, None
            held = outcomes[candidate].predicted
            if rows.stop is not None:
                held = predict_model(self.problem, model, fit.X[rows.stop])
            if self.problem.task == "classification" and METHODS[candidate.method].calibrated:
                temperature = _temperature(held, rows.y[rows.fold.validation])
                held = at_temperature(held, temperature)
            predicted = predict_model(self.problem, model, fit.X[rows.fold.test])
            free = predicted
            if getattr(model, "bounded", False):
                model = copy.copy(model).set_params(bounded=False)
                free = predict_model(self.problem, model, fit.X[rows.fold.test])
            tested[candidate[:2]] = {
                "predicted": predicted,
                "held": held,
                "clipped": int((predicted != free).sum()),
                "temperature": temperature,
                "length": length_of(model),
                "lost": lost,
            }
        return tested

    def _recipe(self, candidate: Candidate, length: int | None = None) -> Recipe:
        settings = draw_settings(candidate.method, candidate.trial, self.plan)
        return Recipe(candidate.method, settings, self.plan.logs_target(candidate.trial), length)

    def _fit(self, candidate: Candidate, stage: Stage, length: int | None = None) -> Fit:
        """Describe a training; all methods share the seed, the initial weights and the order of rows."""
        rows, method, is_final = self.folds[candidate.fold], METHODS[candidate.method], stage == "final"
        train, validation = (rows.train, rows.stop) if is_final else (rows.fit, rows.fold.validation)
        recipe = self._recipe(candidate, length)
        if stage == "first" and method.make is None:
            recipe = replace(recipe, length=self.plan.first_epochs)
        elif stage == "first" and method.boosted:
            rate = FIRST_STEPS * recipe.settings["learning_rate"]
            train, recipe = rows.first, replace(recipe, settings={**recipe.settings, "learning_rate": rate})
        what, n_networks = ("final", self.plan.networks) if is_final else ("trials", 1)
        seed = stream_seed("training", self.plan.seed, rows.fold.repeat, rows.fold.number, what)
        x, kinds = rows.inputs(codes_of(candidate.method, recipe.settings), final=is_final)
        model = make_model(self.problem, self.plan, recipe, kinds, n_networks=n_networks, seed=seed)
        groups = self.groups if method.sees_groups else None
        return Fit(model, x, rows.y, None, groups, train, validation)

    def _train(self, fits: Sequence[Fit], words: str, shares: tuple[float, float]) -> list[int]:
        begin, end = shares
        return fit_models(fits, lambda share: self.report(begin + share * (end - begin), words))
