"""The best of several: a weighted average of methods that the validation rows choose (Caruana et al., 2004).

Nothing is trained for it. In a fold, methods are added one by one, with repetition, whichever lowers the
squared error (for classes the Brier score) of the average on the validation rows most. The average of their
calibrated predictions is tested like any other method. The saved model has the weights that the validation
rows of all folds choose together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from elliptica.tables.methods import CANNOT_BE_SAVED, NAMES, SEVERAL
from elliptica.tables.problem import TableProblem
from elliptica.tables.shift import Fold
from elliptica.tables.training import Record, Trial

#: Methods that are added, with repetition.
ROUNDS = 20


def choose_weights(
    problem: TableProblem, folds: Sequence[Fold], records: Sequence[Record]
) -> dict[str, float]:
    """Return the weights of methods on the validation rows of all folds; those that failed have none."""
    held = {record.key: record.held for record in records}
    out = {SEVERAL, *(r.method for r in records if r.error or CANNOT_BE_SAVED in NAMES[r.method])}
    methods = [method for method in dict.fromkeys(method for *_, method in held) if method not in out]
    products = np.zeros((len(methods), len(methods)))
    for fold in folds:
        parts = [held[key] for m in methods if (key := (fold.repeat, fold.number, m)) in held]
        if parts and len(parts) == len(methods):
            known = problem.target[fold.validation]
            known = known[:, None] == np.asarray(problem.classes) if problem.classes else known
            errors = (np.stack(parts) - known).reshape(len(methods), -1)
            products += errors @ errors.T
    return {m: w for m, w in zip(methods, greedy_weights(products).tolist(), strict=True) if w}


def greedy_weights(products: np.ndarray, rounds: int = ROUNDS) -> np.ndarray:
    """Return weights w with a small w'Pw, where P holds products of the errors of each pair of methods.

    Example:
        >>> greedy_weights(np.array([[1.0, -0.9, 0.5], [-0.9, 1.0, 0.5], [0.5, 0.5, 2.0]])).tolist()
        [0.5, 0.5, 0.0]
    """
    counts, best, least = np.zeros(len(products)), np.zeros(len(products)), np.inf
    for n in range(1, rounds + 1 if len(products) else 1):
        losses = (counts @ products @ counts + 2 * products @ counts + products.diagonal()) / n**2
        counts[losses.argmin()] += 1
        if losses.min() < least * (1 - 1e-9):
            best, least = counts / n, losses.min()
    return best


def with_several(
    problem: TableProblem, folds: Sequence[Fold], methods: Sequence[str], records: Sequence[Record]
) -> tuple[Record, ...]:
    """Add the record of the average in each fold that all other methods have finished."""
    derived = []
    for fold in folds:
        members = [r for r in records if r.key[:2] == (fold.repeat, fold.number)]
        weights = choose_weights(problem, [fold], members)
        if len(members) == len(methods) - 1 and weights:
            parts = [weights[r.method] * r.final() for r in members if r.method in weights]
            trial = Trial(dict(weights), False, 0, {})
            record = Record(fold.repeat, fold.number, SEVERAL, (trial,), 0, 0.0)
            derived.append(replace(record, predicted=np.sum(parts, 0)))
    return (*records, *derived)
