"""What is compared and how: methods, sizes that follow the table, and the settings that a trial draws."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from elliptica._utils.random import stream_seed
from elliptica._utils.text import did_you_mean
from elliptica.compare.table import TableError

Select = Literal["average", "worst"]
#: The usual value of a setting, and the ends of its range.
Range = tuple[float, float, float]

REFERENCE, TREES, LINEAR = "erm", "trees", "linear"
#: Not trained: always the mean, or the class frequencies, of the training rows.
CONSTANT = "constant"
_BOTH = ("classification", "regression")


@dataclass(frozen=True)
class Method:
    """A way of training that is compared."""

    words: str  # its name on the screen and in reports
    tasks: tuple[str, ...] = _BOTH
    own: Mapping[str, Range] = field(default_factory=dict)  # settings beside those that networks share
    for_groups: bool = False  # made for groups: run if there are any, or if asked for
    sees_groups: bool = False  # training uses the column of groups


#: All methods, in the order in which they are listed.
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
#: Methods whose training uses the column of groups.
SEES_GROUPS = tuple(name for name, method in METHODS.items() if method.sees_groups)
NETWORKS = tuple(name for name in METHODS if name not in (TREES, LINEAR))

#: Settings that all networks share; the same draws for all of them.
_SHARED: dict[str, Range] = {"learning_rate": (1e-3, 3e-4, 1e-2), "weight_decay": (1e-4, 1e-6, 1e-1)}
_WHOLE = ("max_leaf_nodes", "min_samples_leaf")
#: A value in this share of a range (on its scale) lies at the border.
_BORDER = 0.1
#: Of one method, the shared ones included. In more dimensions than needed, few points leave wide gaps.
_MOST_SETTINGS = 4


@dataclass(frozen=True)
class Plan:
    """How methods are compared; the same for all of them.

    Args:
        methods: Names, ordinary training first.
        trials: Settings tried per method and fold, chosen on the validation rows.
        epochs: Passes over the training rows, at most; the validation rows choose how many.
        patience: Epochs without a better validation loss before a network stops.
        first_epochs: Epochs after which the worse trials are dropped; 0: none is.
        networks: Size of the ensemble that the chosen settings train on all training rows of a fold.
        batch_size: Rows of a step.
        tuning_rows: Training rows that trials see at most.
        train_rows: Training rows that the ensemble, trees and linear models see at most.
        select: What decides among trials: ``"average"`` (accuracy or RMSE) or ``"worst"`` (that of the
            worst class, group or fifth of the targets).
        bounded: Keep predicted numbers within the range of the training targets.
        log_target: Learn the logarithm of the targets in every second trial.
        hidden: Widths of the networks' hidden layers.
        quick: Whether sizes were cut for a first impression.
        seed: Of trials, initial weights and noise.
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
                raise TableError(f"{name} must be a whole number of at least 1, but got {value!r}.")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise TableError(f"seed must be a whole number of at least 0, but got {self.seed!r}.")
        if not self.hidden or not all(isinstance(width, int) and width > 0 for width in self.hidden):
            raise TableError(f"hidden must be widths of layers, e.g. (128, 128), but got {self.hidden!r}.")
        if self.select not in get_args(Select):
            raise TableError(f'select must be "average" or "worst", but got {self.select!r}.')

    @property
    def network_methods(self) -> tuple[str, ...]:
        """Methods that train networks."""
        return tuple(name for name in self.methods if name in NETWORKS)

    @property
    def survivors(self) -> int:
        """Trials that are left after ``first_epochs``."""
        return math.ceil(self.trials / 3) if self.first_epochs else self.trials

    def logs_target(self, trial: int) -> bool:
        """Whether a trial learns the logarithm of the targets."""
        return self.log_target and trial % 2 == 1


def sizes(n_train: int, *, quick: bool = False) -> dict[str, Any]:
    """Return the sizes of a plan for a number of training rows: larger tables get larger batches.

    Example:
        >>> sizes(400)["batch_size"], sizes(4000)["batch_size"], sizes(10**6)["batch_size"]
        (32, 128, 256)
    """
    small, large = n_train <= 2_000, n_train > 10_000
    found = {
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
    return found | (cut if quick else {})


def check_methods(wanted: Sequence[str] | None) -> None:
    """Raise for names that are methods of no task, before any table is read.

    Raises:
        TableError: If there is such a name, or none at all.
    """
    if wanted is not None and not wanted:
        raise TableError(f"No method is named. There are {', '.join(METHODS)}; leave --methods out for all.")
    for name in wanted or ():
        if name not in METHODS:
            hint = did_you_mean(name, METHODS, cutoff=0.5) or f"There are {', '.join(METHODS)}."
            raise TableError(f"There is no method {name!r}. {hint}")


def choose_methods(task: str, wanted: Sequence[str] | None, grouped: bool) -> tuple[str, ...]:
    """Names of the methods to compare; ordinary training is always among them, as the first.

    Args:
        task: ``"classification"`` or ``"regression"``.
        wanted: Names; None: all of the task, those for groups only with groups.
        grouped: Whether the table has groups.

    Raises:
        TableError: If the task has no such method, or if it needs groups that are not given.

    Example:
        >>> choose_methods("regression", ["elliptic", "trees"], grouped=False)
        ('erm', 'elliptic', 'trees')
    """
    known = [name for name, method in METHODS.items() if task in method.tasks]
    for name in wanted or ():
        if name not in known:
            raise TableError(f"There is no method {name!r} for {task}. There are {', '.join(known)}.")
        if METHODS[name].sees_groups and not grouped:
            raise TableError(f"{NAMES[name]} is trained on groups. Name their column with --group.")
    if wanted is None:
        wanted = [name for name in known if grouped or not METHODS[name].for_groups]
    return tuple(name for name in known if name in (REFERENCE, *wanted))


def parse_duration(text: str | float) -> float:
    """Read a time such as 90s, 2m or 1h as seconds; a plain number is in seconds.

    Raises:
        TableError: If it is no such time, or not above zero.

    Example:
        >>> parse_duration("90s"), parse_duration("1.5m"), parse_duration("1h"), parse_duration(20)
        (90.0, 90.0, 3600.0, 20.0)
    """
    units = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([a-z]*)", str(text).strip().lower())
    if found is None or found[2] not in units or float(found[1]) == 0:
        raise TableError(f"The budget {text!r} is not a time. Write it like 90s, 2m or 1h.")
    return float(found[1]) * units[found[2]]


def draw_settings(method: str, trial: int, plan: Plan) -> dict[str, Any]:
    """Settings of a trial: the usual ones for the first, then evenly spread over their ranges.

    What networks share (learning rate, weight decay) has the same values for all of them, so that luck does
    not decide; trials are the same in every fold, so that they can be averaged over folds. Where the
    logarithm of the target is a candidate, the second trial is the first one with it.

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
    """Point of a trial in [0, 1) along the k-th setting: a Kronecker sequence with a random shift.

    Its steps are powers of the root of x^(d+1) = x + 1, with which the points of any number of trials are
    spread evenly in d dimensions (Roberts 2018).
    """
    root = 2.0
    for _ in range(50):
        root = (1 + root) ** (1 / (_MOST_SETTINGS + 1))
    shift = np.random.default_rng(stream_seed("trials", name, plan.seed)).random()
    return float((shift + trial * root ** -(k + 1)) % 1)


def _place(low: float, high: float, share: float) -> float:
    """A value at a share of a range on its logarithmic scale, with three digits."""
    return float(f"{low * (high / low) ** share:.3g}")


def at_border(method: str, settings: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Settings in the outermost tenth of their range, with that range.

    An end that is the usual value is no border: nothing was searched beyond it on purpose.

    Example:
        >>> at_border("elliptic", {"sigma": 0.9, "learning_rate": 0.001})
        {'sigma': (0.01, 1.0)}
    """
    found = {}
    for name, (usual, low, high) in _ranges(method).items():
        if name in settings:
            place = math.log(settings[name] / low) / math.log(high / low)
            if (place < _BORDER and usual > low) or (place > 1 - _BORDER and usual < high):
                found[name] = (low, high)
    return found
