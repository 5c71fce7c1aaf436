"""Find columns that give the target away, and rows that are copies of each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from elliptica._utils.random import stream_seed
from elliptica._utils.statistics import is_beyond_chance

#: A column that alone explains this share of the target gives it away.
GIVEN_AWAY = 0.99
#: Maximum number of rows that are inspected.
MOST_ROWS = 5_000


def find_giveaways(features: pl.DataFrame, target: np.ndarray, task: str) -> list[str]:
    """Return the names of inputs that predict the target almost perfectly on their own.

    Every row is predicted from other rows by two tiny models: from rows with an equal value, and from the two
    neighbours in the order of the column. Numbers are predicted by rank, so units and heavy tails do not
    matter. The skill of the better model is the share that it explains of the variance of ranks, or of the
    errors of a random guess.

    Example:
        >>> euros = np.arange(60.0)
        >>> frame = pl.DataFrame({"age": euros * 7 % 60, "cents": 100 * euros})
        >>> find_giveaways(frame, euros, "regression")
        ['cents']
    """
    draws = np.random.default_rng(stream_seed("giveaways", 0))
    if len(target) > MOST_ROWS:
        rows = np.sort(draws.choice(len(target), MOST_ROWS, replace=False))
        features, target = features[rows], target[rows]
    is_class = task == "classification"
    labels = np.unique(target, return_inverse=True)[1]
    values = labels if is_class else pl.Series(target).rank().to_numpy()
    jitter = draws.random(len(target))
    giveaways = []
    for column in features.iter_columns():
        codes = np.unique(column.rank("dense").fill_null(0).to_numpy(), return_inverse=True)[1]
        ordered = values[np.lexsort((jitter, codes))]  # equal values in random order
        if is_class:
            skill = max(_class_skill(codes, labels), _ordered_class_skill(ordered))
        else:
            neighbours = _explained(ordered[1:-1], (ordered[:-2] + ordered[2:]) / 2)
            skill = max(_number_skill(codes, values), neighbours)
        if skill > GIVEN_AWAY:
            giveaways.append(column.name)
    return giveaways


def _number_skill(codes: np.ndarray, values: np.ndarray) -> float:
    """Predict numbers from other rows with an equal value; from all rows if there are none."""
    sizes = np.bincount(codes)[codes]
    others = (np.bincount(codes, values)[codes] - values) / np.maximum(sizes - 1, 1)
    return _explained(values, np.where(sizes > 1, others, values.mean()))


def _class_skill(codes: np.ndarray, labels: np.ndarray) -> float:
    """Predict classes from other rows with an equal value; from all rows if there are none."""
    votes = np.zeros((codes.max() + 1, labels.max() + 1))
    np.add.at(votes, (codes, labels), 1)
    votes = votes[codes]
    votes[np.arange(len(labels)), labels] -= 1  # a row must not predict itself
    votes[~votes.any(1)] = np.bincount(labels)
    return 1 - float((votes.argmax(1) != labels).mean()) / _chance(labels)


def _ordered_class_skill(labels: np.ndarray) -> float:
    """Predict classes from the neighbouring rows; borders between sorted classes do not count as errors."""
    changes = int((labels[1:] != labels[:-1]).sum()) - int(labels.max())
    return 1 - changes / (len(labels) * _chance(labels))


def _explained(values: np.ndarray, predicted: np.ndarray) -> float:
    return 1 - float(np.square(values - predicted).mean() / values.var())


def _chance(labels: np.ndarray) -> float:
    """Return how often a random row has another label."""
    return float(1 - np.square(np.bincount(labels) / len(labels)).sum())


class Copies(NamedTuple):
    """Groups of rows that are equal in all columns."""

    block: np.ndarray  # number per row, the same for equal rows
    n_equal: int  # number of rows that equal an earlier one
    by_chance: bool  # whether so many are expected because columns have few values


def find_copies(frame: pl.DataFrame) -> Copies:
    """Number equal rows, and distinguish copies from rows that are equal by chance.

    Rows with a few categories agree by chance; see `is_beyond_chance`.

    Example:
        >>> values = [*range(100), 7]
        >>> copies = find_copies(pl.DataFrame({"x": values, "y": values}))
        >>> copies.n_equal, copies.by_chance, copies.block[[7, 8, 100]].tolist()
        (1, False, [7, 8, 7])
    """
    index = "row of elliptica"  # a name that tables do not have
    first = frame.with_row_index(index).select(pl.col(index).first().over(frame.columns))
    block = np.unique(first.to_series().to_numpy(), return_inverse=True)[1]
    n_equal = len(block) - int(block.max()) - 1
    columns = (column.value_counts()[:, 1].to_numpy() for column in frame.iter_columns())
    return Copies(block, n_equal, n_equal > 0 and not is_beyond_chance(np.bincount(block), columns))
