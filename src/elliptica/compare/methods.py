"""The methods as scikit-learn estimators: networks that differ in their objective alone, and trees."""

from __future__ import annotations

from typing import Any

from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from elliptica.compare.plan import TREES, Plan
from elliptica.estimators import EllipticClassifier, EllipticRegressor


def make_estimator(
    method: str, task: str, settings: dict[str, Any], plan: Plan, n_rows: int, seed: int
) -> Any:
    """An estimator that is not fitted yet.

    Args:
        method: Name, see `choose_methods`.
        task: ``"classification"`` or ``"regression"``.
        settings: What the trial has drawn.
        plan: For the network's width.
        n_rows: Training rows, which the batch size follows.
        seed: Of initial weights, order and noise: the same for all methods.

    Example:
        >>> plan = Plan(("erm", "elliptic"))
        >>> make_estimator("elliptic", "regression", {"sigma": 0.2}, plan, 1000, 0).sigma
        0.2
    """
    if method == TREES:
        trees = HistGradientBoostingClassifier if task == "classification" else HistGradientBoostingRegressor
        # it would hold rows out of large tables; networks train on all of them, so trees do, too
        return trees(**settings, early_stopping=False, random_state=seed)
    network = EllipticClassifier if task == "classification" else EllipticRegressor
    weighting: dict[str, Any] = {"weighting": "gradient_softmax"} if method == "elliptic-weighted" else {}
    return network(
        method=method.removesuffix("-weighted"),
        hidden=plan.hidden,
        batch_size=batch_size(n_rows),
        random_state=seed,
        **weighting,
        **settings,
    )


def batch_size(n_rows: int) -> int:
    """Rows of a step: about forty steps per epoch, with 32 to 512 rows each.

    Example:
        >>> batch_size(100), batch_size(5000), batch_size(10**6)
        (32, 125, 512)
    """
    return min(512, max(32, n_rows // 40))
