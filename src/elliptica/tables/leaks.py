"""Find columns that give the target away, and rows that are copies of each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from elliptica._utils.random import stream_seed

#: A column that alone explains this share of the target gives it away.
GIVEN_AWAY = 0.99
#: Maximum number of rows that are inspected.
MOST_ROWS = 5_000
#: Equal rows are copies if there are this many times more of them than independent columns would produce.
_UNLIKELY = 100.0


class Giveaway(NamedTuple):
    """A column that alone predicts the target almost perfectly."""

    name: str
    skill: float  # 1: always right, 0: no better than a constant
    one_to_one: bool  # whether every value belongs to one target, and every target to one value

    def words(self, target: str) -> str:
        """Describe the problem."""
        if self.one_to_one:
            return f"column {self.name!r} is the target {target!r} under another name, or computed from it"
        return f"column {self.name!r} alone predicts {target!r} almost perfectly"


def find_giveaways(features: pl.DataFrame, target: np.ndarray, task: str) -> list[Giveaway]:
    """Find inputs that predict the target almost perfectly on their own.

    Every row is predicted from other rows by two tiny models: from rows with an equal value, and from the two
    neighbours in the order of the column. Numbers are predicted by rank, so units, logarithms and heavy tails
    do not matter. The skill of the better model is the share that it explains of the variance of ranks, or of
    the errors of a random guess.

    Args:
        features: Inputs, as `TableProblem` holds them.
        target: Targets of their rows.
        task: ``"classification"`` or ``"regression"``.

    Example:
        >>> euros = np.arange(60.0)
        >>> frame = pl.DataFrame({"age": euros * 7 % 60, "cents": 100 * euros})
        >>> [each.name for each in find_giveaways(frame, euros, "regression")]
        ['cents']
    """
    if len(target) > MOST_ROWS:
        draws = np.random.default_rng(stream_seed("giveaways", 0))
        rows = np.sort(draws.choice(len(target), MOST_ROWS, replace=False))
        features, target = features[rows], target[rows]
    is_class = task == "classification"
    labels = np.unique(target, return_inverse=True)[1]
    values = labels.astype(float) if is_class else pl.Series(target).rank().to_numpy()
    jitter = np.random.default_rng(stream_seed("neighbours", 0)).random(len(target))
    giveaways = []
    for column in features.iter_columns():
        codes = column.rank("dense").fill_null(0).to_numpy().astype(np.int64)
        ordered = values[np.lexsort((jitter, codes))]  # equal values in random order
        skill = max(_skill_of_equals(codes, values, is_class), _skill_of_neighbours(ordered, is_class))
        if skill > GIVEN_AWAY:
            pairs = len(np.unique(np.stack([codes, labels]), axis=1).T)
            same = pairs == len(np.unique(codes)) == len(np.unique(labels))
            giveaways.append(Giveaway(column.name, skill, same))
    return giveaways


def _skill_of_equals(codes: np.ndarray, values: np.ndarray, is_class: bool) -> float:
    """Predict from other rows with an equal value; from all rows if there are none."""
    _, group, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    if len(sizes) == len(codes):
        return 0.0
    shared = sizes[group] > 1
    if not is_class:
        others = (np.bincount(group, values)[group] - values) / np.maximum(sizes[group] - 1, 1)
        return _explained(values, np.where(shared, others, values.mean()))
    labels = values.astype(np.int64)
    counts = np.zeros((len(sizes), labels.max() + 1))
    np.add.at(counts, (group, labels), 1)
    votes = counts[group]
    votes[np.arange(len(labels)), labels] -= 1  # a row must not predict itself
    votes[~shared] = np.bincount(labels)
    return 1 - float((votes.argmax(1) != labels).mean()) / _chance(labels)


def _skill_of_neighbours(ordered: np.ndarray, is_class: bool) -> float:
    """Predict from the neighbouring rows in the order of a column."""
    if is_class:  # borders between sorted classes do not count as errors
        labels = ordered.astype(np.int64)
        changes = int((labels[1:] != labels[:-1]).sum()) - int(labels.max())
        return 1 - changes / (len(labels) * _chance(labels))
    return _explained(ordered[1:-1], (ordered[:-2] + ordered[2:]) / 2)


def _explained(values: np.ndarray, predicted: np.ndarray) -> float:
    return 1 - float(np.square(values - predicted).mean() / values.var())


def _chance(labels: np.ndarray) -> float:
    """Return how often a random row has another label."""
    shares = np.bincount(labels) / len(labels)
    return float(1 - np.square(shares).sum())


class Copies(NamedTuple):
    """Groups of rows that are equal in all columns."""

    block: np.ndarray  # number per row, the same for equal rows
    n_equal: int  # number of rows that equal an earlier one
    by_chance: bool  # whether so many are expected because columns have few values

    @property
    def is_first(self) -> np.ndarray:
        """Whether each row is the first of its kind."""
        first = np.zeros(len(self.block), dtype=bool)
        first[np.unique(self.block, return_index=True)[1]] = True
        return first


def find_copies(frame: pl.DataFrame) -> Copies:
    """Number equal rows, and distinguish copies from rows that are equal by chance.

    Rows with a few categories agree by chance. If columns were independent, the share of equal pairs of rows
    would be the product of the shares of all columns; a hundred times more means copies.

    Example:
        >>> values = [*range(100), 7]
        >>> copies = find_copies(pl.DataFrame({"x": values, "y": values}))
        >>> copies.n_equal, copies.by_chance, copies.block[[7, 8, 100]].tolist()
        (1, False, [7, 8, 7])
    """
    block = _number(frame)
    n = len(block)
    n_equal = n - len(np.unique(block))
    if not n_equal:
        return Copies(block, 0, False)
    share, expected = _share_of_pairs(np.bincount(block)), _UNLIKELY
    for column in frame.iter_columns():
        expected *= _share_of_pairs(column.value_counts()[:, 1].to_numpy())
        if share >= expected:  # further columns would only lower it
            return Copies(block, n_equal, False)
    return Copies(block, n_equal, True)


def _number(frame: pl.DataFrame) -> np.ndarray:
    """Number the distinct rows in order of appearance."""
    first = frame.with_row_index("row of elliptica")
    names = frame.columns
    firsts = first.select(pl.col("row of elliptica").first().over(names)).to_series().to_numpy()
    return np.unique(firsts, return_inverse=True)[1]


def _share_of_pairs(counts: np.ndarray) -> float:
    """Return the share of pairs of rows that are equal, given the numbers of equal rows."""
    counts = counts.astype(float)
    return float((counts * (counts - 1)).sum() / (counts.sum() * (counts.sum() - 1)))
