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
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elliptica._utils.statistics import bonferroni, student_quantile
from elliptica.tables.metrics import Predictions, metrics_of
from elliptica.tables.shift import EARLIEST_BLOCKS, TIME_CLUSTERS
from elliptica.tables.verdict import Column

HERE = Path(__file__).parent
BEGIN, END = "<!-- verdict: begin -->", "<!-- verdict: end -->"
N_FOLDS = 5
#: Rows of the fresh test of every trained model.
N_FRESH = 1000
#: Least share of intervals that hold together, and largest share of wrong claims.
COVERAGE, WRONG = 0.93, 0.05
#: Claims about smaller true differences than this are counted as wrong whatever their sign.
NOTHING = 1e-3
#: True differences that power is measured on.
CLEAR = 0.05

Model = Callable[[np.ndarray], np.ndarray]


class Learner(NamedTuple):
    """A cheap learner: ridge regression on random, linear or quadratic features."""

    name: str
    features: str = "random"
    width: int = 30
    penalty: float = 1.0
    truth: float = 0.0  # share of the regression function that is mixed into predictions


ERM, TWIN = Learner("erm"), Learner("twin")
SEVERAL = (ERM, TWIN, Learner("wider", width=40), Learner("linear", "linear"), Learner("square", "square"))
EIGHT = (ERM, *(Learner(f"twin {number}") for number in range(1, 8)))
#: A gain of 10 % in RMSE by number of rows: predictions are moved towards the regression function.
GAIN = {100: Learner("gain", truth=0.155), 500: Learner("gain", truth=0.19)}


@dataclass(frozen=True)
class Situation:
    """Tables of one kind.

    Attributes:
        name: What is special about them.
        task: ``"regression"`` or ``"classification"``.
        n: Rows.
        repeats: Of the cross-validation.
        learners: The first one is the reference.
        tails: Degrees of freedom of the noise; infinite is normal.
        blocks: Blocks that share inputs and intercepts, and are never divided; 0: rows are independent.
        is_time: Whether noise is autocorrelated, and folds train on the past.
        phi: Autocorrelation of the noise from row to row where ``is_time``, and of the inputs if ``is_slow``.
        is_slow: Whether inputs are autocorrelated, too.
        grouped: Whether there are groups of unequal size and noise.
        columns: Positions in `metrics_of`.
    """

    name: str
    task: str
    n: int
    repeats: int
    learners: Sequence[Learner] = SEVERAL
    tails: float = math.inf
    blocks: int = 0
    is_time: bool = False
    phi: float = 0.8
    is_slow: bool = False
    grouped: bool = False
    columns: Sequence[int] = (0, 1)


@dataclass
class Line:
    """One line of the table: shares over repetitions."""

    situation: Situation
    column: str
    coverage: float
    wrong: float
    power: float
    rows_only: tuple[float, float]  # coverage and wrong claims of an interval without training noise
    folds: tuple[float, float, float]  # coverage, wrong claims and power of folds taken as independent
    width: float  # median half-width, percent or points
    noise: float  # standard error of the shares

    @property
    def holds(self) -> bool:
        """Within simulation error of what is promised."""
        return self.coverage >= COVERAGE - 2 * self.noise and self.wrong <= WRONG + 2 * self.noise


@dataclass(frozen=True)
class Table:
    """Rows of a table with its structure."""

    x: np.ndarray
    y: np.ndarray  # numbers, or numbers of classes
    signal: np.ndarray
    groups: np.ndarray | None
    clusters: np.ndarray


def situations() -> Iterator[Situation]:
    """Everything that is simulated."""
    columns = {"regression": (0, 1), "classification": (0, 1, 3)}
    for task, n, repeats in product(columns, (100, 500, 2000), (1, 2)):
        yield Situation("independent rows", task, n, repeats, columns=columns[task])
    rest = {"regression": (2,), "classification": (2, 4)}
    for task, repeats in product(rest, (1, 2)):
        yield Situation("other columns", task, 500, repeats, columns=rest[task])
    for n, repeats in product((100, 500), (1, 2)):
        yield Situation("heavy tails (t, 3 degrees)", "regression", n, repeats, tails=3)
    for task, blocks, repeats in product(columns, (50, 10), (1, 2)):
        yield Situation(f"{blocks} blocks, unseen", task, 500, repeats, blocks=blocks, columns=(0,))
    for task, repeats in product(columns, (1, 2)):
        yield Situation("later rows", task, 500, repeats, is_time=True, columns=(0,))
        for phi in (0.9, 0.97):
            name = f"later rows, slow inputs, autocorrelation {phi}"
            yield Situation(name, task, 500, repeats, is_time=True, phi=phi, is_slow=True, columns=(0,))
        yield Situation("four groups", task, 500, repeats, grouped=True, columns=(1,))
        yield Situation("8 methods, all equal", task, 500, repeats, EIGHT)
    for n, repeats in product(GAIN, (1, 2)):
        yield Situation("gain of 10 %", "regression", n, repeats, (ERM, GAIN[n]), columns=(0,))
        some = (*EIGHT[:7], GAIN[n])
        yield Situation("gain of 10 %, 6 equal", "regression", n, repeats, some, columns=(0,))


def draw(situation: Situation, n: int, rng: np.random.Generator) -> Table:
    """Draw a table."""
    x = rng.normal(size=(n, 5))
    if situation.is_slow:
        x = _autocorrelated(x, situation.phi)
    clusters, groups, shift = np.arange(n), None, np.zeros(n)
    size = np.ones(n)
    if situation.blocks:
        per_block = situation.n // situation.blocks
        clusters = clusters // per_block
        n_blocks = int(clusters[-1]) + 1
        x = x + 0.7 * rng.normal(size=(n_blocks, 5))[clusters]
        shift = 0.5 * rng.normal(size=n_blocks)[clusters]
    if situation.grouped:
        number = rng.choice(4, size=n, p=(0.5, 0.3, 0.15, 0.05))
        groups = np.array(list("abcd"))[number]
        size = np.array([0.8, 1.0, 1.2, 1.4])[number]
    noise = rng.normal(size=n) if math.isinf(situation.tails) else rng.standard_t(situation.tails, size=n)
    if situation.is_time:
        clusters = clusters * TIME_CLUSTERS // situation.n
        noise = _autocorrelated(noise, situation.phi)
    signal = np.sin(2 * x[:, 0]) + 0.7 * x[:, 1] * x[:, 2] + 0.5 * x[:, 3]
    y = signal + shift + 0.7 * size * noise
    if situation.task == "classification":
        other = x[:, 1] + 0.5 * x[:, 4] ** 2 - 0.5
        y = np.stack([y, other, np.zeros(n)]).argmax(0)
    return Table(x, y, signal, groups, clusters)


def _autocorrelated(values: np.ndarray, phi: float) -> np.ndarray:
    """Make an autoregressive series of the first order from independent values, of the same variance."""
    found = values.copy()
    for i in range(1, len(values)):
        found[i] = phi * found[i - 1] + math.sqrt(1 - phi**2) * values[i]
    return found


def fit(learner: Learner, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Model:
    """Train a learner."""
    weights, offset = rng.normal(size=(x.shape[1], learner.width)), rng.normal(size=learner.width)

    def features(x: np.ndarray) -> np.ndarray:
        if learner.features == "random":
            return np.maximum(x @ weights + offset, 0)
        return x if learner.features == "linear" else np.concatenate([x, x**2], axis=1)

    seen = features(x)
    mean, level = seen.mean(0), y.mean(0)
    seen = seen - mean
    gram = seen.T @ seen + learner.penalty * np.eye(seen.shape[1])
    solved = np.linalg.solve(gram, seen.T @ (y - level))
    return lambda x: (features(x) - mean) @ solved + level


def make_folds(situation: Situation, table: Table, rng: np.random.Generator) -> np.ndarray:
    """Number the folds of all rows for one repeat; -1 where a row only trains."""
    n = situation.n
    if situation.is_time:
        return np.maximum(np.arange(n) * (N_FOLDS + EARLIEST_BLOCKS) // n - EARLIEST_BLOCKS, -1)
    if situation.blocks:
        return rng.permutation(np.arange(situation.blocks) % N_FOLDS)[table.clusters]
    return rng.permutation(np.arange(n) % N_FOLDS)


def predict(situation: Situation, learner: Learner, model: Model, table: Table) -> np.ndarray:
    """Predict numbers, or probabilities of three classes."""
    out = model(table.x)
    if situation.task == "regression":
        return (1 - learner.truth) * out + learner.truth * table.signal
    out = np.exp(4 * out)
    return out / out.sum(1, keepdims=True)


def run(
    situation: Situation, bounds: np.ndarray, rng: np.random.Generator
) -> tuple[Predictions, Predictions]:
    """Cross-validate all learners on one table; also predict fresh rows, models in the place of repeats."""
    table, fresh = draw(situation, situation.n, rng), draw(situation, N_FRESH, rng)
    target = np.eye(3)[table.y] if situation.task == "classification" else table.y
    fold = np.stack([make_folds(situation, table, rng) for _ in range(situation.repeats)])
    if situation.is_time:
        fold[:] = fold[0]
    shape = (*fold.shape, *target.shape[1:])
    values = {learner.name: np.full(shape, np.nan) for learner in situation.learners}
    far: dict[str, list[np.ndarray]] = {learner.name: [] for learner in situation.learners}
    for repeat, number in np.ndindex(situation.repeats, N_FOLDS):
        test = fold[repeat] == number
        train = fold[repeat] < number if situation.is_time else ~test  # -1 is before all that is tested
        held = Table(table.x[test], table.y[test], table.signal[test], None, table.clusters[test])
        for learner in situation.learners:
            model = fit(learner, table.x[train], target[train], rng)
            values[learner.name][repeat, test] = predict(situation, learner, model, held)
            far[learner.name].append(predict(situation, learner, model, fresh))
    classes = [0, 1, 2] if situation.task == "classification" else []

    def wrap(table: Table, fold: np.ndarray, values: dict[str, np.ndarray]) -> Predictions:
        return Predictions(
            situation.task,
            classes,
            table.y,
            table.groups,
            table.clusters,
            fold,
            bounds,
            values,
            ordered=situation.is_time,
        )

    stacked = {name: np.stack(each) for name, each in far.items()}
    n_models = situation.repeats * N_FOLDS
    return wrap(table, fold, values), wrap(fresh, np.zeros((n_models, N_FRESH), int), stacked)


@dataclass
class _Truth:
    """Sums of losses of fresh rows by part, for every kind of loss."""

    sums: dict[str, np.ndarray] = field(default_factory=dict)
    counts: np.ndarray | float = 0.0

    def add(self, fresh: Predictions) -> None:
        names, part = fresh.parts
        member = np.eye(len(names))[part]
        for kind, losses in fresh.losses.items():
            self.sums[kind] = self.sums.get(kind, 0.0) + losses.mean(0) @ member
        self.counts = self.counts + member.sum(0)

    def score(self, column: str, task: str) -> np.ndarray:
        """True score of every learner, logarithms for relative columns."""
        kinds = {
            "accuracy": "right",
            "log_loss": "log",
            "brier": "brier",
            "rmse": "square",
            "mae": "absolute",
        }
        if column in kinds:
            mean = self.sums[kinds[column]].sum(1) / np.sum(self.counts)
            return mean if column == "accuracy" else np.log(mean) * (0.5 if column == "rmse" else 1)
        if task == "classification":
            by_part = self.sums["right"] / self.counts
            return by_part.mean(1) if column == "balanced_accuracy" else by_part.min(1)
        return 0.5 * np.log((self.sums["square"] / self.counts).max(1))


def measure(situation: Situation, n_tables: int, seed: int) -> list[Line]:
    """Judge many tables of one kind."""
    metrics = metrics_of(situation.task, situation.grouped)
    judged = [metrics[number] for number in situation.columns]
    bounds = np.empty(0)
    if situation.task == "regression":
        far = draw(situation, 100_000, np.random.default_rng(seed))
        bounds = np.quantile(far.y, (0.2, 0.4, 0.6, 0.8))
    truth, found = _Truth(), {metric.name: [] for metric in judged}
    for number in range(n_tables):
        tested, fresh = run(situation, bounds, np.random.default_rng([seed, number]))
        truth.add(fresh)
        for metric in judged:
            found[metric.name].append(_intervals(tested, Column.of(tested, metric), situation))
    lines = []
    for metric in judged:
        right = truth.score(metric.name, situation.task)
        values = np.array(found[metric.name])  # tables, estimators, (estimate, half-width), learners
        lines.append(_line(situation, metric.label, values, right[1:] - right[0]))
    return lines


def _intervals(tested: Predictions, column: Column, situation: Situation) -> list[list[np.ndarray]]:
    """Estimates and half-widths by three estimators: ours, rows alone, folds as if independent."""
    changes = column.differences(tested, "erm")
    ends = np.array([[c.mean, c.low, c.high] for c in changes]).T
    mean, low, high = np.log1p(ends) if column.metric.relative else ends
    level = 0.5 + bonferroni(0.95, len(changes)) / 2
    gaps = (column.influence[:, 1:] - column.influence[:, :1]).mean(0)
    normal = student_quantile(level, 1e6) * np.sqrt((gaps**2).sum(1))
    sums = []
    for repeat, fold in enumerate(tested.fold):
        for number in range(N_FOLDS):
            part = column.influence[repeat][:, fold == number].sum(1)
            sums.append(N_FOLDS * (part[1:] - part[0]))
    spread = np.std(sums, axis=0, ddof=1) / len(sums) ** 0.5
    return [[mean, (high - low) / 2], [mean, normal], [mean, student_quantile(level, len(sums) - 1) * spread]]


def _line(situation: Situation, label: str, values: np.ndarray, truth: np.ndarray) -> Line:
    shares = []
    for mean, half in values.transpose(1, 2, 0, 3):
        covered = (np.abs(mean - truth) <= half).all(1)
        claimed = np.abs(mean) > half
        wrong = (claimed & ((np.sign(mean) != np.sign(truth)) | (np.abs(truth) < NOTHING))).any(1)
        clear = np.abs(truth) >= CLEAR
        power = float(claimed[:, clear].mean()) if clear.any() else math.nan
        shares.append((float(covered.mean()), float(wrong.mean()), power))
    ours, rows, folds = shares
    width = 100 * float(np.median(values[:, 0, 1]))
    noise = math.sqrt(0.05 * 0.95 / len(values))
    return Line(situation, label, *ours, rows[:2], folds, width, noise)


HEAD = (
    "| table | rows | repeats | column | comparisons | coverage | wrong | power | half-width | "
    "rows only: coverage | wrong | folds: coverage | wrong | power |\n"
    "|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def show(line: Line) -> str:
    """Write a line of the table in Markdown."""
    s = line.situation
    task = "" if s.task in s.name else f"{s.task}, "
    powers = ["" if math.isnan(p) else f"{p:.2f}" for p in (line.power, line.folds[2])]
    cells = [
        f"{task}{s.name}",
        str(s.n),
        str(s.repeats),
        line.column,
        str(len(s.learners) - 1),
        f"{line.coverage:.3f}" + ("" if line.holds else " **low**"),
        f"{line.wrong:.3f}",
        powers[0],
        f"{line.width:.1f}",
        *(f"{share:.3f}" for share in (*line.rows_only, *line.folds[:2])),
        powers[1],
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table, and write it into README.md if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=500, help="tables per situation")
    parser.add_argument("--seed", type=int, default=1, help="0 served to choose the estimator")
    parser.add_argument("--only", default="", help="situations whose name or task contains this text")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--write", action="store_true", help="replace the table in README.md")
    options = parser.parse_args()
    chosen = [each for each in situations() if options.only in f"{each.task} {each.name}"]
    work = partial(measure, n_tables=options.tables, seed=options.seed)
    begin, lines = time.perf_counter(), [HEAD]
    print(HEAD)
    with ProcessPoolExecutor(options.jobs) as pool:
        for found in pool.map(work, chosen):
            lines += map(show, found)
            print("\n".join(lines[-len(found) :]), flush=True)
    print(f"{options.tables} tables each, {time.perf_counter() - begin:.0f} s")
    if options.write:
        readme = HERE / "README.md"
        text = readme.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        table = "\n".join([BEGIN, *lines, END])
        readme.write_text(before + table + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
