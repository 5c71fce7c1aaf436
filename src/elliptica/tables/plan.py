"""Plan a comparison: its methods, sizes that follow the table, and the settings that trials draw."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from elliptica._utils.random import stream_seed
from elliptica._utils.text import did_you_mean
from elliptica.tables.table import TableError

Select = Literal["average", "worst"]
#: Usual value of a setting, followed by the ends of its range.
Range = tuple[float, float, float]

REFERENCE, TREES, LINEAR = "erm", "trees", "linear"
#: The constant prediction: always the mean, or the class frequencies, of the training rows.
CONSTANT = "constant"
_BOTH = ("classification", "regression")


@dataclass(frozen=True)
class Method:
    """A training method that can be compared."""

    words: str  # display name
    tasks: tuple[str, ...] = _BOTH
    own: Mapping[str, Range] = field(default_factory=dict)  # settings besides those that networks share
    for_groups: bool = False  # made for groups: run if there are any, or if requested
    sees_groups: bool = False  # training uses the group column


#: All methods, in display order.
METHODS = {
    "erm": Method("ordinary training"),
    "noise": Method("input noise", own={"sigma": (0.1, 0.01, 1.0)}),
    "smoothing": Method("label smoothing", ("classification",), {"smoothing": (0.1, 0.01, 0.4)}),
    "mixup": Method("mixup", own={"alpha": (0.4, 0.1, 4.0)}),
    "c-mixup": Method("C-Mixup", ("regression",), {"alpha": (2.0, 0.2, 4.0), "bandwidth": (1.0, 0.1, 3.0)}),
    "elliptic": Method("elliptic training", own={"sigma": (0.1, 0.01, 1.0)}),
    "elliptic-weighted": Method(
        "weighted elliptic training", own={"sigma": (0.1, 0.01, 1.0), "xi": (1.0, 0.3, 3.0)}
    ),
    "groupdro": Method("GroupDRO", own={"eta": (0.05, 0.005, 0.5)}, for_groups=True, sees_groups=True),
    "lisa": Method(
        "LISA", ("classification",), {"alpha": (2.0, 0.5, 4.0)}, for_groups=True, sees_groups=True
    ),
    "balanced": Method("balanced batches", for_groups=True, sees_groups=True),
    "jtt": Method("JTT", ("classification",), {"upweight": (5.0, 2.0, 50.0)}, for_groups=True),
    TREES: Method(
        "boosted trees",
        own={
            "learning_rate": (0.1, 0.02, 0.3),
            "l2_regularization": (1e-3, 1e-3, 10.0),
            "max_leaf_nodes": (31.0, 4.0, 63.0),
            "min_samples_leaf": (20.0, 5.0, 50.0),
        },
    ),
    LINEAR: Method("linear model", own={"penalty": (1.0, 1e-3, 1e3)}),
}
NAMES = {name: method.words for name, method in METHODS.items()} | {CONSTANT: "constant prediction"}
#: Methods whose training uses the group column.
SEES_GROUPS = tuple(name for name, method in METHODS.items() if method.sees_groups)
NETWORKS = tuple(name for name in METHODS if name not in (TREES, LINEAR))

#: Settings that all networks share, with the same draws.
_SHARED: dict[str, Range] = {"learning_rate": (1e-3, 3e-4, 1e-2), "weight_decay": (1e-4, 1e-6, 1e-1)}
_WHOLE = ("max_leaf_nodes", "min_samples_leaf")
#: A value within this share of either end of its (logarithmic) range lies at the border.
_BORDER = 0.1
#: Settings of one method, the shared ones included. With more dimensions, few points leave wide gaps.
_MOST_SETTINGS = 4


@dataclass(frozen=True)
class Plan:
    """How methods are compared, the same for all of them.

    Args:
        methods: Names of methods, ordinary training first.
        trials: Settings tried per method and fold; the validation rows choose among them.
        epochs: Maximum number of epochs; the validation rows choose how many are used.
        patience: Epochs without a better validation loss before a network stops.
        first_epochs: Epochs after which the worse trials are dropped; 0 keeps all.
        networks: Size of the ensemble that is trained with the chosen settings.
        batch_size: Rows per step.
        tuning_rows: Maximum number of training rows in a trial.
        train_rows: Maximum number of training rows for the ensemble, trees and linear models.
        select: What decides among trials: ``"average"`` (accuracy or RMSE) or ``"worst"`` (the same in the
            worst class, group or fifth of the targets).
        bounded: Clip predicted numbers to the range of the training targets.
        log_target: Learn the logarithm of the targets in every second trial.
        hidden: Widths of the hidden layers.
        quick: Whether sizes were cut for a first impression.
        seed: Seed of trials, initial weights and noise.
    """

    methods: tuple[str, ...]
    trials: int = 8
    epochs: int = 100
    patience: int = 10
    first_epochs: int = 0
    networks: int = 3
    batch_size: int = 32
    tuning_rows: int = 6_000
    train_rows: int = 200_000
    select: Select = "average"
    bounded: bool = True
    log_target: bool = False
    hidden: tuple[int, ...] = (128, 128)
    quick: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("trials", "epochs", "networks"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise TableError(f"{name} must be an integer of at least 1, but got {value!r}.")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise TableError(f"seed must be an integer of at least 0, but got {self.seed!r}.")
        if not self.hidden or not all(isinstance(width, int) and width > 0 for width in self.hidden):
            raise TableError(f"hidden must be widths of layers such as (128, 128), but got {self.hidden!r}.")
        if self.select not in get_args(Select):
            raise TableError(f'select must be "average" or "worst", but got {self.select!r}.')

    @property
    def network_methods(self) -> tuple[str, ...]:
        """Methods that train networks."""
        return tuple(name for name in self.methods if name in NETWORKS)

    @property
    def survivors(self) -> int:
        """Number of trials that continue after ``first_epochs``."""
        return math.ceil(self.trials / 3) if self.first_epochs else self.trials

    def logs_target(self, trial: int) -> bool:
        """Return whether a trial learns the logarithm of the targets."""
        return self.log_target and trial % 2 == 1


def sizes(n_train: int, *, quick: bool = False) -> dict[str, Any]:
    """Return the sizes of a plan for a number of training rows; larger tables get larger batches.

    Example:
        >>> sizes(400)["batch_size"], sizes(4000)["batch_size"], sizes(10**6)["batch_size"]
        (32, 128, 256)
    """
    small, large = n_train <= 2_000, n_train > 10_000
    values = {
        "trials": 8,
        "epochs": 100 if small else 60,
        "patience": 10 if small else 4 if large else 6,
        "first_epochs": 12 if small else 5,
        "networks": 1 if large else 3,
        "batch_size": min(256, max(32, 2 ** round(math.log2(max(1, n_train) / 32)))),
        "tuning_rows": 6_000,
        "hidden": (128, 128) if large else (64, 64),
    }
    cut = {"trials": 2, "epochs": 30, "first_epochs": 0, "networks": 1, "quick": True}
    return values | (cut if quick else {})


def check_methods(wanted: Sequence[str] | None) -> None:
    """Raise for unknown method names, before any table is read.

    Raises:
        TableError: If a name is unknown, or if the list is empty.
    """
    if wanted is not None and not wanted:
        raise TableError(
            f"The list of methods is empty. Name some of {', '.join(METHODS)}, or omit --methods."
        )
    for name in wanted or ():
        if name not in METHODS:
            hint = did_you_mean(name, METHODS, cutoff=0.5) or f"There are {', '.join(METHODS)}."
            raise TableError(f"Unknown method {name!r}. {hint}")


def choose_methods(task: str, wanted: Sequence[str] | None, grouped: bool) -> tuple[str, ...]:
    """Return the names of the methods to compare; ordinary training always comes first.

    Args:
        task: ``"classification"`` or ``"regression"``.
        wanted: Names; None selects all methods of the task, those for groups only if there are groups.
        grouped: Whether the table has groups.

    Raises:
        TableError: If the task has no such method, or if it needs groups and there are none.

    Example:
        >>> choose_methods("regression", ["elliptic", "trees"], grouped=False)
        ('erm', 'elliptic', 'trees')
    """
    known = [name for name, method in METHODS.items() if task in method.tasks]
    for name in wanted or ():
        if name not in known:
            raise TableError(f"Method {name!r} does not exist for {task}. Choose from {', '.join(known)}.")
        if METHODS[name].sees_groups and not grouped:
            raise TableError(f"{NAMES[name]} needs groups. Name their column with --group.")
    if wanted is None:
        wanted = [name for name in known if grouped or not METHODS[name].for_groups]
    return tuple(name for name in known if name in (REFERENCE, *wanted))


def parse_duration(text: str | float) -> float:
    """Convert a time such as 90s, 2m or 1h to seconds; a plain number is in seconds.

    Raises:
        TableError: If the text is not a positive time.

    Example:
        >>> parse_duration("90s"), parse_duration("1.5m"), parse_duration("1h"), parse_duration(20)
        (90.0, 90.0, 3600.0, 20.0)
    """
    units = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([a-z]*)", str(text).strip().lower())
    if match is None or match[2] not in units or float(match[1]) == 0:
        raise TableError(f"The budget {text!r} is not a positive time. Write it like 90s, 2m or 1h.")
    return float(match[1]) * units[match[2]]


def draw_settings(method: str, trial: int, plan: Plan) -> dict[str, Any]:
    """Draw the settings of a trial: the usual ones first, then evenly spread over their ranges.

    All networks share the same draws of learning rate and weight decay, so that luck does not decide. Trials
    are the same in every fold, so that they can be averaged over folds. If the logarithm of the target is a
    candidate, the second trial repeats the first with it.

    Example:
        >>> plan = Plan(("erm", "elliptic"))
        >>> shared = draw_settings("erm", 3, plan)
        >>> draw_settings("elliptic", 3, plan).items() >= shared.items()
        True
    """
    ranges = _ranges(method)
    if trial == 0 or (trial == 1 and plan.log_target):
        values = {name: usual for name, (usual, _, _) in ranges.items()}
    else:
        values = {
            name: _place(low, high, _even(name if name in _SHARED else f"{method} {name}", k, trial, plan))
            for k, (name, (_, low, high)) in enumerate(ranges.items())
        }
    return {name: round(value) if name in _WHOLE else value for name, value in values.items()}


def _ranges(method: str) -> dict[str, Range]:
    shared = _SHARED if method in NETWORKS else {}
    return {**shared, **METHODS[method].own}


def _even(name: str, k: int, trial: int, plan: Plan) -> float:
    """Return the point of a trial in [0, 1) along the k-th setting: a shifted Kronecker sequence.

    The steps are powers of the root of x^(d+1) = x + 1. They spread any number of points evenly in d
    dimensions (Roberts 2018).
    """
    root = 2.0
    for _ in range(50):
        root = (1 + root) ** (1 / (_MOST_SETTINGS + 1))
    shift = np.random.default_rng(stream_seed("trials", name, plan.seed)).random()
    return float((shift + trial * root ** -(k + 1)) % 1)


def _place(low: float, high: float, share: float) -> float:
    """Return the value at a share of a logarithmic range, rounded to three digits."""
    return float(f"{low * (high / low) ** share:.3g}")


def at_border(method: str, settings: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the settings in the outermost tenth of their range, with that range.

    An end that is the usual value does not count, because the search stops there on purpose.

    Example:
        >>> at_border("elliptic", {"sigma": 0.9, "learning_rate": 0.001})
        {'sigma': (0.01, 1.0)}
    """
    borders = {}
    for name, (usual, low, high) in _ranges(method).items():
        if name in settings:
            place = math.log(settings[name] / low) / math.log(high / low)
            if (place < _BORDER and usual > low) or (place > 1 - _BORDER and usual < high):
                borders[name] = (low, high)
    return borders
