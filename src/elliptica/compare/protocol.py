"""Run the protocol: split the rows, try settings on validation rows, test the chosen ones once."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import GroupShuffleSplit, StratifiedGroupKFold, StratifiedShuffleSplit

from elliptica._utils.random import stream_seed
from elliptica.compare.metrics import classification_scores, metrics_of, regression_scores, target_bounds
from elliptica.compare.plan import TREES, Plan, draw_settings, make_estimator
from elliptica.compare.problem import MIN_CLASS_ROWS, TableProblem
from elliptica.compare.table import TableError
from elliptica.estimators import TablePreprocessor

TEST_SHARE = 0.2
VALIDATION_SHARE = 0.2


@dataclass(frozen=True)
class Trial:
    """Settings that were tried."""

    settings: dict[str, Any]  # by name
    validation: dict[str, float]  # scores on the validation rows; empty if training failed
    seconds: float  # time of training
    error: str = ""  # why it failed
    #: How much of the first epoch's loss the last tenth of the epochs still took off; None for trees, and
    #: where there were too few epochs to say.
    last_drop: float | None = None


@dataclass(frozen=True)
class Record:
    """A method in one repeat."""

    repeat: int  # number of the repeat, from 0
    method: str  # name of the method
    rows: dict[str, int]  # number of rows of each part
    trials: tuple[Trial, ...]  # what was tried, in order
    chosen: int  # number of the trial that the validation rows chose
    test: dict[str, float]  # scores on the test rows, which only the chosen trial saw
    parts: dict[str, float]  # test score of each class, group or fifth
    seconds: float  # time of training, all trials together
    #: Rows that went through the network in training, all trials together; None for trees.
    evaluations: int | None

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Record:
        """The way back."""
        return cls(**{**content, "trials": tuple(Trial(**trial) for trial in content["trials"])})


class Split(NamedTuple):
    """Numbers of the rows of each part, ascending."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def split_rows(problem: TableProblem, repeat: int, seed: int) -> Split:
    """Draw the parts of one repeat: about 60 % training, 20 % validation, 20 % test.

    Rows are balanced by class (targets in fifths for regression), within groups where these are large
    enough. Blocks (``--split-by``) are never divided; for regression they are drawn at random.

    Args:
        problem: The rows.
        repeat: Number of the repeat.
        seed: Of the whole comparison.

    Raises:
        TableError: If blocks leave a class without training rows, or a part without rows of judged groups.

    Example:
        >>> import polars as pl
        >>> rows = pl.DataFrame({"x": range(100)})
        >>> split = split_rows(TableProblem(rows, np.arange(100) % 2, "classification", "y"), 0, 0)
        >>> [len(part) for part in split]
        [60, 20, 20]
    """
    state = stream_seed("split", seed, repeat) % 2**32
    rows = np.arange(len(problem.target))
    strata = _strata(problem)
    rest, test = _divide(problem, strata, rows, TEST_SHARE, state)
    train, validation = _divide(problem, strata, rest, VALIDATION_SHARE / (1 - TEST_SHARE), state + 1)
    _check_classes(problem, train, repeat)
    _check_groups(problem, {"validation": validation, "test": test}, repeat)
    return Split(np.sort(train), np.sort(validation), np.sort(test))


def _divide(
    problem: TableProblem, strata: np.ndarray, rows: np.ndarray, share: float, state: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cut a share off some rows."""
    if problem.blocks is None:
        splitter = StratifiedShuffleSplit(1, test_size=share, random_state=state % 2**32)
        parts = splitter.split(rows, _common(strata[rows], math.ceil(share * len(rows))))
    elif problem.task == "classification":
        folds = StratifiedGroupKFold(round(1 / share), shuffle=True, random_state=state % 2**32)
        parts = folds.split(rows, problem.target[rows], problem.blocks[rows])
    else:
        shuffle = GroupShuffleSplit(1, test_size=share, random_state=state % 2**32)
        parts = shuffle.split(rows, groups=problem.blocks[rows])
    every = [part for part in parts if all(map(len, part))]  # few blocks leave folds empty
    if not every:
        raise TableError(
            "The blocks of the split-by column are too few or too unequal to be divided into training, "
            "validation and test rows. Split by a column with more values."
        )
    # folds are filled greedily, large blocks first, and only ties depend on the state: the first fold would
    # test the same blocks in every repeat, so one of the folds is drawn
    kept, cut = every[np.random.default_rng(state).integers(len(every))]
    return rows[kept], rows[cut]


def _strata(problem: TableProblem) -> np.ndarray:
    if problem.task == "classification":
        base = np.unique(problem.target, return_inverse=True)[1]
    else:
        base = np.searchsorted(np.quantile(problem.target, (0.2, 0.4, 0.6, 0.8)), problem.target)
    if problem.groups is None:
        return base
    groups = np.unique(problem.groups, return_inverse=True)[1]
    cells = base + (base.max() + 1) * (groups + 1)
    counts = np.bincount(cells)
    # a class within a group that is too small to divide goes with the rest of its class
    return np.where(counts[cells] >= MIN_CLASS_ROWS, cells, base)


def _common(strata: np.ndarray, n_cut: int) -> np.ndarray:
    """Strata as the splitter accepts them: of at least two rows each, and no more than either part has rows.

    Single rows join the commonest stratum; the two smallest strata are merged while there are too many.
    """
    values, inverse, counts = np.unique(strata, return_inverse=True, return_counts=True)
    found = np.where(counts[inverse] >= 2, strata, values[counts.argmax()])
    while len(np.unique(found)) > min(n_cut, len(found) - n_cut):
        values, counts = np.unique(found, return_counts=True)
        smallest, second = values[np.argsort(counts, kind="stable")[:2]]
        found = np.where(found == smallest, second, found)
    return found


def _check_classes(problem: TableProblem, train: np.ndarray, repeat: int) -> None:
    if problem.task == "classification":
        missing = set(problem.classes) - set(problem.target[train].tolist())
        if missing:
            raise TableError(
                f"In repeat {repeat + 1} no training row has the class {sorted(missing)[0]!r}: its rows lie "
                "in too few blocks of the split-by column. Join classes, or split by another column."
            )


def _check_groups(problem: TableProblem, parts: dict[str, np.ndarray], repeat: int) -> None:
    """A part with unjudged groups only has no worst group."""
    if problem.groups is None:
        return
    for name, rows in parts.items():
        if not (problem.groups[rows] != "").any():
            raise TableError(
                f"In repeat {repeat + 1} all {name} rows are of groups that are too small to be judged: "
                "rows of the same split-by value stay together. Join small groups of "
                f"{problem.group_name!r}, or split by another column."
            )


@dataclass(frozen=True)
class Prepared:
    """The rows of one repeat as numbers; the preprocessing has seen training rows only."""

    split: Split
    x: dict[str, np.ndarray]
    bounds: np.ndarray


def prepare(problem: TableProblem, repeat: int, plan: Plan) -> Prepared:
    """Split the rows and turn them into numbers, for all methods alike."""
    split = split_rows(problem, repeat, plan.seed)
    preprocess = TablePreprocessor().fit(problem.features[split.train])
    x = {
        part: np.asarray(preprocess.transform(problem.features[rows]))
        for part, rows in split._asdict().items()
    }
    bounds = target_bounds(problem, split.train) if problem.task == "regression" else np.empty(0)
    return Prepared(split, x, bounds)


def run_method(problem: TableProblem, prepared: Prepared, method: str, repeat: int, plan: Plan) -> Record:
    """Try settings, choose on the validation rows, test once.

    Raises:
        RuntimeError: If training fails with all settings.
    """
    train = prepared.split.train
    seed = stream_seed("training", plan.seed, repeat) % 2**32  # no method has its own
    trials: list[Trial] = []
    best: tuple[tuple[float, ...], int, Any] | None = None
    evaluations = 0
    for number in range(plan.trials):
        settings = draw_settings(method, number, plan)
        model = make_estimator(method, problem.task, settings, plan, len(train), seed)
        begin = time.perf_counter()
        try:
            model.fit(prepared.x["train"], problem.target[train])
        except FloatingPointError as error:
            trials.append(Trial(settings, {}, time.perf_counter() - begin, str(error)))
            continue
        seconds = time.perf_counter() - begin
        scores = _scores(problem, prepared, model, "validation")
        scores.pop("parts")
        drop = None if method == TREES else last_drop(model.loss_curve_)
        trials.append(Trial(settings, scores, seconds, last_drop=drop))
        evaluations += 0 if method == TREES else model.n_iter_ * len(train)
        rank = ranking(scores, problem, plan)
        if best is None or rank > best[0]:
            best = rank, number, model
    if best is None:
        raise RuntimeError(
            f"Training by {method} failed with all {plan.trials} settings. The first said: {trials[0].error}"
        )
    test = _scores(problem, prepared, best[2], "test")
    parts = test.pop("parts")
    rows = {part: len(rows) for part, rows in prepared.split._asdict().items()}
    seconds = sum(trial.seconds for trial in trials)
    used = None if method == TREES else evaluations
    return Record(repeat, method, rows, tuple(trials), best[1], test, parts, seconds, used)


def last_drop(losses: Sequence[float]) -> float | None:
    """How much of the first epoch's loss the last tenth of the epochs took off, against the tenth before.

    Example:
        >>> last_drop([1.0, 0.5, 0.25])
        0.25
    """
    n = max(1, len(losses) // 10)
    if len(losses) < 3 or not losses[0]:
        return None
    return float((np.mean(losses[-2 * n : -n]) - np.mean(losses[-n:])) / abs(losses[0]))


def ranking(scores: Mapping[str, float], problem: TableProblem, plan: Plan) -> tuple[float, ...]:
    """The rule of choice, larger is better: the metric of ``select``, then others where it is equal."""
    average, worst, *rest = metrics_of(problem.task, problem.groups is not None)
    order = [average] if plan.select == "average" else [worst, average]
    order += [metric for metric in rest if metric.name == "log_loss"]
    return tuple(scores[m.name] if m.higher_is_better else -scores[m.name] for m in order)


def final_trial(records: Sequence[Record], method: str, problem: TableProblem, plan: Plan) -> int:
    """Number of the trial that was best on the validation rows on average over repeats."""
    ranks: dict[int, list[tuple[float, ...]]] = {}
    for record in records:
        if record.method == method:
            for number, trial in enumerate(record.trials):
                if trial.validation:
                    ranks.setdefault(number, []).append(ranking(trial.validation, problem, plan))
    most = max(len(found) for found in ranks.values())  # a trial that failed somewhere is no candidate
    means = {n: tuple(np.mean(found, axis=0)) for n, found in ranks.items() if len(found) == most}
    return max(means, key=lambda number: means[number])


def _scores(problem: TableProblem, prepared: Prepared, model: Any, part: str) -> dict[str, Any]:
    rows = getattr(prepared.split, part)
    groups = None if problem.groups is None else problem.groups[rows]
    target = problem.target[rows]
    if problem.task == "classification":
        return classification_scores(target, model.predict_proba(prepared.x[part]), problem.classes, groups)
    return regression_scores(target, model.predict(prepared.x[part]), prepared.bounds, groups)
