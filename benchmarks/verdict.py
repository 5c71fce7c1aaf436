"""Measure how often the intervals of a comparison cover the truth, and how often its verdict is wrong.

``python -m benchmarks.verdict``; not one of the timed suites. Each repetition draws a table, trains cheap
learners on its folds (random features that are drawn anew for every training, so that there is training
noise) and judges them as `elliptica compare` does. The truth is the expected score of the procedure at this
number of training rows: all trained models are also tested on fresh rows, and their losses are averaged
over all repetitions.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.signal import lfilter
from scipy.special import softmax
from sklearn.linear_model import Ridge

from benchmarks.timing import fill
from elliptica._utils.statistics import bonferroni, student_quantile
from elliptica.tables.metrics import Predictions, metrics_of
from elliptica.tables.shift import EARLIEST_BLOCKS
from elliptica.tables.verdict import Column

#: Folds, and rows of the fresh test of every trained model.
N_FOLDS, N_FRESH = 5, 1000
#: Least share of intervals that hold together, and largest share of wrong claims.
COVERAGE, WRONG = 0.93, 0.05
#: Claims about smaller true differences are wrong whatever their sign; power is measured on larger ones.
NOTHING, CLEAR = 1e-3, 0.05


Predictor = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Learner(NamedTuple):
    """A cheap learner: ridge regression on random, linear or quadratic features."""

    name: str
    features: str = "random"
    width: int = 30
    truth: float = 0.0  # share of the regression function that is mixed into predictions


ERM = Learner("erm")
LINEAR, SQUARE = Learner("linear", "linear"), Learner("square", "square")
SEVERAL = (ERM, Learner("twin"), Learner("wider", width=40), LINEAR, SQUARE)
EIGHT = (ERM, *(Learner(f"twin {number}") for number in range(1, 8)))
#: A gain of 10 % in RMSE by number of rows: predictions are moved towards the regression function.
GAIN = {100: Learner("gain", truth=0.155), 500: Learner("gain", truth=0.19)}


@dataclass(frozen=True)
class Situation:
    """Tables of one kind; the first learner is the reference, ``columns`` are positions in `metrics_of`."""

    name: str
    task: str
    n: int
    repeats: int
    learners: Sequence[Learner] = SEVERAL
    tails: float = math.inf  # degrees of freedom of the noise
    blocks: int = 0  # blocks that share inputs and intercepts, and are never divided
    is_time: bool = False  # autocorrelated noise, and folds that train on the past
    phi: float = 0.8  # autocorrelation from row to row
    is_slow: bool = False  # whether inputs are autocorrelated, too
    grouped: bool = False  # groups of unequal size and noise
    columns: Sequence[int] = (0, 1)


class Line(NamedTuple):
    """One line of the table: shares over repetitions."""

    situation: Situation
    column: str
    coverage: float
    wrong: float
    power: float
    rows_only: tuple[float, ...]  # coverage and wrong claims of an interval without training noise
    folds: tuple[float, ...]  # coverage, wrong claims and power of folds taken as independent
    width: float  # median half-width, percent or points


class Table(NamedTuple):
    """Rows of a table with its structure."""

    x: np.ndarray
    y: np.ndarray  # numbers, or numbers of classes
    signal: np.ndarray
    groups: np.ndarray | None
    clusters: np.ndarray


def situations() -> Iterator[Situation]:
    """Everything that is simulated."""
    columns, both = {"regression": (0, 1), "classification": (0, 1, 3)}, (1, 2)
    for task, n, repeats in product(columns, (100, 500, 2000), both):
        yield Situation("independent rows", task, n, repeats, columns=columns[task])
    rest = {"regression": (2,), "classification": (2, 4)}
    for task, repeats in product(rest, both):
        yield Situation("other columns", task, 500, repeats, columns=rest[task])
    for n, repeats in product((100, 500), both):
        yield Situation("heavy tails (t, 3 degrees)", "regression", n, repeats, tails=3)
    for task, blocks, repeats in product(columns, (50, 10), both):
        yield Situation(f"{blocks} blocks, unseen", task, 500, repeats, blocks=blocks, columns=(0,))
    for task, repeats in product(columns, both):
        yield Situation("later rows", task, 500, repeats, is_time=True, columns=(0,))
        for phi in (0.9, 0.97):
            name = f"later rows, slow inputs, autocorrelation {phi}"
            yield Situation(name, task, 500, repeats, is_time=True, phi=phi, is_slow=True, columns=(0,))
        yield Situation("four groups", task, 500, repeats, grouped=True, columns=(1,))
        yield Situation("8 methods, all equal", task, 500, repeats, EIGHT)
    for n, repeats in product(GAIN, both):
        yield Situation("gain of 10 %", "regression", n, repeats, (ERM, GAIN[n]), columns=(0,))
        some = (*EIGHT[:7], GAIN[n])
        yield Situation("gain of 10 %, 6 equal", "regression", n, repeats, some, columns=(0,))


def draw(situation: Situation, n: int, rng: np.random.Generator) -> Table:
    """Draw a table."""
    x = rng.normal(size=(n, 5))
    if situation.is_slow:
        x = _autocorrelated(x, situation.phi)
    clusters, groups, shift, size = np.arange(n), None, np.zeros(n), np.ones(n)
    if situation.blocks:
        clusters = clusters // (situation.n // situation.blocks)
        n_blocks = int(clusters[-1]) + 1
        x = x + 0.7 * rng.normal(size=(n_blocks, 5))[clusters]
        shift = 0.5 * rng.normal(size=n_blocks)[clusters]
    if situation.grouped:
        number = rng.choice(4, size=n, p=(0.5, 0.3, 0.15, 0.05))
        groups, size = np.array(list("abcd"))[number], np.array([0.8, 1.0, 1.2, 1.4])[number]
    noise = rng.normal(size=n) if math.isinf(situation.tails) else rng.standard_t(situation.tails, size=n)
    if situation.is_time:
        clusters = clusters * (N_FOLDS + EARLIEST_BLOCKS) // situation.n
        noise = _autocorrelated(noise, situation.phi)
    signal = np.sin(2 * x[:, 0]) + 0.7 * x[:, 1] * x[:, 2] + 0.5 * x[:, 3]
    y = signal + shift + 0.7 * size * noise
    if situation.task == "classification":
        y = np.stack([y, x[:, 1] + 0.5 * x[:, 4] ** 2 - 0.5, np.zeros(n)]).argmax(0)
    return Table(x, y, signal, groups, clusters)


def _autocorrelated(values: np.ndarray, phi: float) -> np.ndarray:
    """Make an autoregressive series of the first order from independent values, of the same variance."""
    b = math.sqrt(1 - phi**2)
    return lfilter([b], [1, -phi], values, axis=0, zi=(1 - b) * values[:1])[0]


def fit(learner: Learner, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Predictor:
    """Train a learner."""
    weights, offset = rng.normal(size=(x.shape[1], learner.width)), rng.normal(size=learner.width)

    def features(x: np.ndarray) -> np.ndarray:
        if learner.features == "random":
            return np.maximum(x @ weights + offset, 0)
        return x if learner.features == "linear" else np.concatenate([x, x**2], axis=1)

    model = Ridge().fit(features(x), y)

    def predict(x: np.ndarray, signal: np.ndarray) -> np.ndarray:
        """Numbers, or probabilities of three classes."""
        out = model.predict(features(x))
        if out.ndim == 1:
            return (1 - learner.truth) * out + learner.truth * signal
        return softmax(4 * out, axis=1)

    return predict


def make_folds(situation: Situation, table: Table, rng: np.random.Generator) -> np.ndarray:
    """Number the folds of all rows for one repeat; -1 where a row only trains."""
    n = situation.n
    if situation.is_time:
        return np.maximum(np.arange(n) * (N_FOLDS + EARLIEST_BLOCKS) // n - EARLIEST_BLOCKS, -1)
    if situation.blocks:
        return rng.permutation(np.arange(situation.blocks) % N_FOLDS)[table.clusters]
    return rng.permutation(np.arange(n) % N_FOLDS)


def run(situation: Situation, bounds: np.ndarray, rng: np.random.Generator) -> list[Predictions]:
    """Cross-validate all learners on one table; also predict fresh rows, models in the place of repeats."""
    classes = [0, 1, 2] if situation.task == "classification" else []
    table, fresh = draw(situation, situation.n, rng), draw(situation, N_FRESH, rng)
    target = np.eye(3)[table.y] if classes else table.y
    fold = np.stack([make_folds(situation, table, rng) for _ in range(situation.repeats)])
    names = [learner.name for learner in situation.learners]
    values = {name: np.full((*fold.shape, *target.shape[1:]), np.nan) for name in names}
    far: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for repeat, number in np.ndindex(situation.repeats, N_FOLDS):
        test = fold[repeat] == number
        train = fold[repeat] < number if situation.is_time else ~test  # -1 is before all that is tested
        for learner in situation.learners:
            predict = fit(learner, table.x[train], target[train], rng)
            values[learner.name][repeat, test] = predict(table.x[test], table.signal[test])
            far[learner.name].append(predict(fresh.x, fresh.signal))
    stacked = {name: np.stack(each) for name, each in far.items()}
    far_fold = np.zeros((situation.repeats * N_FOLDS, N_FRESH), int)
    task, ordered = situation.task, situation.is_time
    return [
        Predictions(task, classes, t.y, t.groups, t.clusters, folds, bounds, each, ordered=ordered)
        for t, folds, each in ((table, fold, values), (fresh, far_fold, stacked))
    ]


def true_score(sums: dict[str, np.ndarray], counts: np.ndarray, column: str, task: str) -> np.ndarray:
    """Score every learner by sums of its losses over the parts of fresh rows; logarithms if relative."""
    kinds = {"accuracy": "right", "log_loss": "log", "brier": "brier", "rmse": "square", "mae": "absolute"}
    if column in kinds:
        mean = sums[kinds[column]].sum(1) / counts.sum()
        return mean if column == "accuracy" else np.log(mean) * (0.5 if column == "rmse" else 1)
    if task == "classification":
        by_part = sums["right"] / counts
        return by_part.mean(1) if column == "balanced_accuracy" else by_part.min(1)
    return 0.5 * np.log((sums["square"] / counts).max(1))


def measure(situation: Situation, n_tables: int, seed: int) -> list[Line]:
    """Judge many tables of one kind."""
    metrics = metrics_of(situation.task, situation.grouped)
    judged = {metrics[number].name: metrics[number] for number in situation.columns}
    far = draw(situation, 100_000, np.random.default_rng(seed))
    bounds = np.quantile(far.y, (0.2, 0.4, 0.6, 0.8) if situation.task == "regression" else ())
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(()))
    counts, found = np.zeros(()), defaultdict(list)
    for number in range(n_tables):
        tested, fresh = run(situation, bounds, np.random.default_rng([seed, number]))
        names, part = fresh.parts
        member = np.eye(len(names))[part]
        counts = counts + member.sum(0)
        for kind, losses in fresh.losses.items():
            sums[kind] = sums[kind] + losses.mean(0) @ member
        for name, metric in judged.items():
            found[name].append(_intervals(tested, Column.of(tested, metric)))
    scores = {name: true_score(sums, counts, name, situation.task) for name in judged}
    return [
        _line(situation, metric.label, np.array(found[name]), scores[name][1:] - scores[name][0])
        for name, metric in judged.items()
    ]


def _intervals(tested: Predictions, column: Column) -> list[list[np.ndarray]]:
    """Estimates and half-widths by three estimators: ours, rows alone, folds as if independent."""
    changes = column.differences(tested, "erm")
    ends = np.array([[c.mean, c.low, c.high] for c in changes]).T
    mean, low, high = np.log1p(ends) if column.metric.relative else ends
    level = 0.5 + bonferroni(0.95, len(changes)) / 2
    gaps = column.influence[:, 1:] - column.influence[:, :1]
    normal = student_quantile(level, 1e6) * np.sqrt((gaps.mean(0) ** 2).sum(1))
    pairs = product(zip(gaps, tested.fold, strict=True), range(N_FOLDS))
    sums = [N_FOLDS * gap[:, fold == number].sum(1) for (gap, fold), number in pairs]
    spread = np.std(sums, axis=0, ddof=1) / len(sums) ** 0.5
    return [[mean, (high - low) / 2], [mean, normal], [mean, student_quantile(level, len(sums) - 1) * spread]]


def _line(situation: Situation, label: str, values: np.ndarray, truth: np.ndarray) -> Line:
    """Summarise values by table, estimator, (estimate, half-width) and learner."""
    shares, clear = [], np.abs(truth) >= CLEAR
    for mean, half in values.transpose(1, 2, 0, 3):
        covered, claimed = (np.abs(mean - truth) <= half).all(1), np.abs(mean) > half
        wrong = (claimed & ((np.sign(mean) != np.sign(truth)) | (np.abs(truth) < NOTHING))).any(1)
        power = float(claimed[:, clear].mean()) if clear.any() else math.nan
        shares.append((float(covered.mean()), float(wrong.mean()), power))
    ours, rows, folds = shares
    return Line(situation, label, *ours, rows[:2], folds, 100 * float(np.median(values[:, 0, 1])))


HEAD = (
    "| table | rows | repeats | column | comparisons | coverage | wrong | power | half-width | "
    "rows only: coverage | wrong | folds: coverage | wrong | power |\n"
    "|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def show(line: Line) -> str:
    """Write a line of the table in Markdown."""
    s = line.situation
    powers = ["" if math.isnan(p) else f"{p:.2f}" for p in (line.power, line.folds[2])]
    cells = [f"{s.task}, {s.name}", str(s.n), str(s.repeats), line.column, str(len(s.learners) - 1)]
    cells += [f"{line.coverage:.3f}", f"{line.wrong:.3f}", powers[0], f"{line.width:.1f}"]
    cells += [f"{share:.3f}" for share in (*line.rows_only, *line.folds[:2])]
    return f"| {' | '.join([*cells, powers[1]])} |"


def main() -> None:
    """Print the table, and write it into README.md if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=500, help="tables per situation")
    parser.add_argument("--seed", type=int, default=1, help="0 served to choose the estimator")
    parser.add_argument("--write", action="store_true", help="replace the table in README.md")
    options = parser.parse_args()
    lines = [HEAD]
    with ProcessPoolExecutor(2) as pool:
        judge = partial(measure, n_tables=options.tables, seed=options.seed)
        for line in (line for found in pool.map(judge, situations()) for line in found):
            lines.append(show(line))
            print(lines[-1], flush=True)
    if options.write:
        fill("verdict", "\n".join(lines))


if __name__ == "__main__":
    main()
