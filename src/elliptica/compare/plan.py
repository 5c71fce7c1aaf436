"""What is compared and how: methods, repeats, trials, and the settings that a trial draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from elliptica._utils.random import stream_seed
from elliptica._utils.text import did_you_mean
from elliptica.compare.table import TableError
from elliptica.estimators import EllipticClassifier, EllipticRegressor

Select = Literal["average", "worst"]

METHODS = {
    "classification": ("erm", "mixup", "elliptic", "elliptic-weighted"),
    "regression": ("erm", "c-mixup", "elliptic"),
}
TREES = "trees"

#: The first trial of every method; the others are drawn from these ranges, evenly on a logarithmic scale.
_SHARED = {"learning_rate": (1e-3, 3e-4, 1e-2), "weight_decay": (1e-4, 1e-6, 1e-2)}
_OWN = {
    "mixup": {"alpha": (1.0, 0.1, 4.0)},
    "c-mixup": {"alpha": (2.0, 0.2, 4.0), "bandwidth": (1.0, 0.1, 3.0)},
    "elliptic": {"sigma": (0.1, 0.01, 1.0)},
    "elliptic-weighted": {"sigma": (0.1, 0.01, 1.0), "xi": (1.0, 0.3, 3.0)},
    TREES: {
        "learning_rate": (0.1, 0.02, 0.3),
        "l2_regularization": (1e-6, 1e-6, 10.0),
        "max_leaf_nodes": (31.0, 4.0, 63.0),
        "max_iter": (100.0, 50.0, 500.0),
    },
}
_WHOLE = ("max_iter", "max_leaf_nodes")
#: A value in this share of a range (on its scale) lies at the border.
_BORDER = 0.1


@dataclass(frozen=True)
class Plan:
    """How methods are compared; the same for all of them.

    Args:
        methods: Names, ordinary training first.
        repeats: Number of random splits.
        trials: Settings that are tried per method and repeat, chosen on the validation rows.
        select: What decides among trials: ``"average"`` (accuracy or RMSE) or ``"worst"`` (that of the
            worst class, group or fifth of the targets).
        epochs: Passes over the training rows at most; trials draw a quarter of them or more.
        hidden: Widths of the network's hidden layers.
        seed: Of splits, trials, initial weights and noise.

    Example:
        >>> Plan(("erm", "elliptic"), repeats=2).n_runs
        4
    """

    methods: tuple[str, ...]
    repeats: int = 5
    trials: int = 4
    select: Select = "average"
    epochs: int = 100
    hidden: tuple[int, ...] = (128, 128)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("repeats", "trials", "epochs"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise TableError(f"{name} must be a whole number of at least 1, but got {value!r}.")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise TableError(f"seed must be a whole number of at least 0, but got {self.seed!r}.")
        if not self.hidden or not all(isinstance(width, int) and width > 0 for width in self.hidden):
            raise TableError(f"hidden must be widths of layers, e.g. (128, 128), but got {self.hidden!r}.")
        if self.select not in get_args(Select):
            raise TableError(f'select must be "average" or "worst", but got {self.select!r}.')

    @property
    def n_runs(self) -> int:
        """Methods times repeats."""
        return len(self.methods) * self.repeats


def check_methods(wanted: Sequence[str] | None) -> None:
    """Refuse names that are methods of no task, before any table is read.

    Raises:
        TableError: If there is such a name, or none at all.
    """
    known = list(dict.fromkeys((*METHODS["classification"], *METHODS["regression"], TREES)))
    if wanted is not None and not wanted:
        raise TableError(f"No method is named. There are {', '.join(known)}; leave --methods out for all.")
    for name in wanted or ():
        if name not in known:
            hint = did_you_mean(name, known, cutoff=0.5) or f"There are {', '.join(known)}."
            raise TableError(f"There is no method {name!r}. {hint}")


def choose_methods(task: str, wanted: Sequence[str] | None, trees: bool) -> tuple[str, ...]:
    """Names of the methods to compare; ordinary training is always among them, as the first.

    Args:
        task: ``"classification"`` or ``"regression"``.
        wanted: Names; None: all of the task.
        trees: Whether to add scikit-learn's gradient boosting.

    Raises:
        TableError: If the task has no such method.

    Example:
        >>> choose_methods("regression", ["elliptic"], trees=True)
        ('erm', 'elliptic', 'trees')
    """
    known = (*METHODS[task], TREES)
    for name in wanted or ():
        if name not in known:
            raise TableError(f"There is no method {name!r} for {task}. There are {', '.join(known)}.")
    chosen = set(METHODS[task] if wanted is None else wanted) | {"erm"} | ({TREES} if trees else set())
    return tuple(name for name in known if name in chosen)


def draw_settings(method: str, trial: int, plan: Plan) -> dict[str, Any]:
    """Settings of a trial: the usual ones for the first, then random ones.

    What methods share (learning rate, weight decay, epochs) has the same draws for all of them, so that luck
    does not decide; the draws are the same in every repeat, so that trials can be averaged over repeats.

    Example:
        >>> plan = Plan(("erm", "elliptic"))
        >>> shared = draw_settings("erm", 3, plan)
        >>> draw_settings("elliptic", 3, plan).items() >= shared.items()
        True
    """
    values = _draw(_shared(method, plan), trial, stream_seed("shared trials", plan.seed, trial))
    values |= _draw(_OWN.get(method, {}), trial, stream_seed("own trials", method, plan.seed, trial))
    return {name: round(v) if name in _WHOLE else v for name, v in values.items()}


def at_border(method: str, settings: Mapping[str, Any], plan: Plan) -> dict[str, tuple[float, float]]:
    """Settings in the outermost tenth of their range, with that range.

    An end that is the usual value, such as the most epochs, is no border: nothing was searched beyond it on
    purpose.

    Example:
        >>> plan = Plan(("erm", "elliptic"))
        >>> at_border("elliptic", {"sigma": 0.9, "learning_rate": 0.001, "max_iter": 100}, plan)
        {'sigma': (0.01, 1.0)}
    """
    ranges = {**_shared(method, plan), **_OWN.get(method, {})}
    found = {}
    for name, value in settings.items():
        usual, low, high = ranges[name]
        if low < high:
            place = math.log(value / low) / math.log(high / low)
            if (place < _BORDER and usual > low) or (place > 1 - _BORDER and usual < high):
                found[name] = (low, high)
    return found


def _shared(method: str, plan: Plan) -> dict[str, tuple[float, float, float]]:
    """Ranges that all networks have in common."""
    if method == TREES:
        return {}
    most = float(plan.epochs)
    return {**_SHARED, "max_iter": (most, max(1.0, most / 4), most)}


def _draw(ranges: dict[str, tuple[float, float, float]], trial: int, seed: int) -> dict[str, Any]:
    draws = np.random.default_rng(seed)
    shares = {name: float(draws.random()) for name in ranges}
    if trial == 0:
        return {name: usual for name, (usual, _, _) in ranges.items()}
    return {
        name: float(f"{math.exp(math.log(low) + shares[name] * math.log(high / low)):.3g}")
        for name, (_, low, high) in ranges.items()
    }


def make_estimator(
    method: str, task: str, settings: dict[str, Any], plan: Plan, n_rows: int, seed: int
) -> Any:
    """Make the estimator of a method; networks differ in their objective alone.

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
