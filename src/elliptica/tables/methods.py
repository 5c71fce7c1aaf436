"""The methods that `compare` knows, the settings that trials draw, and the sizes of a comparison.

To add a method, add an entry to `METHODS`: a label, the settings to try (usual value and range), and a
function that makes a scikit-learn model (none if `elliptica.estimators` trains a network under this name).
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from elliptica._utils.extras import remedy
from elliptica._utils.random import stream_seed
from elliptica.estimators.files import can_save
from elliptica.estimators.wrapped import Booster
from elliptica.tables.table import TableError

Select = Literal["average", "worst"]
#: Usual value of a setting, followed by the ends of its range; three whole numbers stay whole.
Range = tuple[float, float, float]

REFERENCE, TREES, LINEAR, SEVERAL = "erm", "trees", "linear", "several"
#: The constant prediction: always the mean, or the class frequencies, of the training rows.
CONSTANT = "constant"
_BOTH = ("classification", "regression")
CANNOT_BE_SAVED = " (cannot be saved)"


def _trees(task: str, settings: Mapping[str, Any], seed: int) -> Any:
    trees = HistGradientBoostingClassifier if task == "classification" else HistGradientBoostingRegressor
    settings = {name: value for name, value in settings.items() if name != "means"}
    return trees(**settings, scoring="loss", random_state=seed)


def _linear(task: str, settings: Mapping[str, Any], seed: int) -> Any:
    penalty = settings["penalty"]
    is_class = task == "classification"
    model = LogisticRegression(C=1 / penalty, max_iter=300) if is_class else Ridge(alpha=penalty)
    return make_pipeline(StandardScaler(), model)


def _boosted(label: str, ranges: Mapping[str, Range], effort: float, **fixed: Any) -> Method:
    library: Any = label.lower()

    def make(task: Any, settings: Mapping[str, Any], seed: int) -> Any:
        return Booster(library=library, task=task, settings={**fixed, **settings}, random_state=seed % 2**31)

    return Method(label, ranges, make=make, boosted=True, effort=effort, needs=library)


def _own(task: str, name: str) -> Method:
    """Return an estimator with its defaults as a method; ``name`` is its module and class."""
    module, _, label = name.partition(":")
    model = getattr(importlib.import_module(module), label)()
    fits = is_regressor(model) if task == "regression" else is_classifier(model)
    if not fits or (task == "classification" and not hasattr(model, "predict_proba")):
        needed = "regressor" if task == "regression" else "classifier with predict_proba"
        raise TableError(f"methods has {name!r}, but {task} needs a {needed}.")

    def make(task: str, settings: Mapping[str, Any], seed: int) -> Any:
        seeds = {"random_state": seed} if "random_state" in model.get_params() else {}
        return clone(model).set_params(**seeds)

    rows = np.random.default_rng(0).normal(size=(40, 3))
    trained = make(task, {}, 0).fit(rows, rows[:, 0] if task == "regression" else np.arange(40) % 2)
    label += "" if can_save(trained) else CANNOT_BE_SAVED
    return Method(label, tasks=(task,), make=make, calibrated=False)


@dataclass(frozen=True)
class Method:
    """A method that can be compared."""

    label: str  # display name
    settings: Mapping[str, Range] = field(default_factory=dict)  # besides those that networks share
    tasks: tuple[str, ...] = _BOTH
    #: Makes a scikit-learn model from task, settings and seed; None for networks.
    make: Callable[[str, Mapping[str, Any], int], Any] | None = None
    boosted: bool = False  # trees that split by codes of categories, grown until validation rows stop them
    effort: float = 1.0  # settings to try, in multiples of the plan's trials
    calibrated: bool = True  # has logits that a temperature can divide
    sees_groups: bool = False  # training uses the group column
    needs: str = ""  # package that has to be installed


_SIGMA: dict[str, Range] = {"sigma": (0.1, 0.01, 1.0)}
_CLASSES = ("classification",)
#: Settings of trees: learning rate, share of the columns of a split, leaves and their rows.
_RATE, _PART, _LEAVES, _ROWS = (0.1, 0.03, 0.2), (1.0, 0.3, 1.0), (31, 4, 63), (20, 5, 50)
#: All methods, in display order.
METHODS: dict[str, Method] = {
    REFERENCE: Method("ordinary training"),
    "noise": Method("input noise", _SIGMA),
    "smoothing": Method("label smoothing", {"smoothing": (0.1, 0.01, 0.4)}, _CLASSES),
    "mixup": Method("mixup", {"alpha": (0.4, 0.1, 4.0)}),
    "c-mixup": Method("C-Mixup", {"alpha": (2.0, 0.2, 4.0), "bandwidth": (1.0, 0.1, 3.0)}, ("regression",)),
    "elliptic": Method("elliptic training", _SIGMA),
    "elliptic-weighted": Method("weighted elliptic training", {**_SIGMA, "xi": (1.0, 0.3, 3.0)}),
    "groupdro": Method("GroupDRO", {"eta": (0.05, 0.005, 0.5)}, sees_groups=True),
    "lisa": Method("LISA", {"alpha": (2.0, 0.5, 4.0)}, _CLASSES, sees_groups=True),
    "balanced": Method("balanced batches", sees_groups=True),
    TREES: Method(
        "boosted trees",
        {
            "learning_rate": _RATE,
            "max_features": _PART,
            "max_leaf_nodes": _LEAVES,
            "min_samples_leaf": _ROWS,
        },
        make=_trees,
        boosted=True,
        effort=2.5,
    ),
    "catboost": _boosted(
        "CatBoost", {"learning_rate": (0.1, 0.05, 0.2), "rsm": _PART, "depth": (6, 4, 8)}, 0.375
    ),
    "lightgbm": _boosted(
        "LightGBM",
        {"learning_rate": _RATE, "colsample_bynode": _PART, "num_leaf": _LEAVES, "min_samples_leaf": _ROWS},
        **{"effort": 1.0, "min_data_per_group": 10, "cat_smooth": 3},  # whose defaults suit large tables
    ),
    "xgboost": _boosted(
        "XGBoost", {"learning_rate": _RATE, "colsample_bynode": _PART, "max_depth": (6, 2, 8)}, 1.0
    ),
    LINEAR: Method("linear model", {"penalty": (1.0, 1e-3, 1e3)}, make=_linear),
    SEVERAL: Method("best of several", make=_linear),  # an average of the others, never made
}
NAMES = {name: method.label for name, method in METHODS.items()} | {CONSTANT: "constant prediction"}


def name_of(method: str) -> str:
    """Return the name of a method in a sentence."""
    return ("the " if method in (LINEAR, SEVERAL) else "") + NAMES.get(method, method)


#: Settings that all networks share, with the same draws.
_SHARED: dict[str, Range] = {"learning_rate": (1e-3, 3e-4, 1e-2), "weight_decay": (1e-4, 1e-6, 1e-1)}
#: Categories that trees get as codes: nearly all, or two in a trial with mean targets.
CODES, FEW_CODES = 255, 2
#: Quantile bins of each number for the networks of every second trial.
BINS = 8
#: Root of x^5 = x + 1: a method has four settings at most, the shared ones included.
_ROOT = 1.1673039782614187


@dataclass(frozen=True)
class Plan:
    """How methods are compared, the same for all of them."""

    methods: tuple[str, ...]  # ordinary training first
    asked: tuple[str, ...] = ()  # those that may be recommended; all if empty
    trials: int = 8  # settings that a network tries in a fold; the validation rows choose among them
    epochs: int = 100  # at most; the validation rows choose how many are used
    patience: int = 10  # epochs without a better validation loss before a network stops
    first_epochs: int = 0  # epochs after which the worse trials are dropped; 0 keeps all
    networks: int = 3  # size of the ensemble that is trained with the chosen settings
    batch_size: int = 32
    tuning_rows: int = 6_000  # at most so many training rows in a trial
    first_rows: int = 1_000  # on so many, settings of trees are tried before the worse ones are dropped
    select: Select = "average"  # trials are chosen on average, or in the worst class, group or fifth
    bounded: bool = True  # clip predicted numbers to the range of the training targets
    log_target: bool = False  # learn the logarithm of the targets in every second trial
    hidden: tuple[int, ...] = (128, 128)
    quick: bool = False  # whether sizes were cut for a first impression
    seed: int = 0  # of trials, initial weights and noise

    def trials_of(self, method: str) -> int:
        """Return how many settings of a method are tried; one, or one with a logarithm, if it has none."""
        entry = METHODS[method]
        if entry.make is not None and not entry.settings:
            return 1 + self.log_target
        return max(1, round(entry.effort * self.trials))

    def survivors(self, method: str) -> int:
        """Return how many trials continue after ``first_epochs`` or ``first_rows``."""
        return math.ceil(self.trials_of(method) / (3 if METHODS[method].make is None else 5))

    def logs_target(self, trial: int) -> bool:
        """Return whether a trial learns the logarithm of the targets."""
        return self.log_target and trial % 2 == 1


def sizes(n_train: int, *, quick: bool = False) -> dict[str, Any]:
    """Return the sizes of a plan for a number of training rows; larger tables get larger batches."""
    small, large = n_train <= 2_000, n_train > 10_000
    values = {
        "trials": 8,
        "epochs": 200 if small else 100,
        "patience": 10 if small else 4 if large else 6,
        "first_epochs": 12 if small else 5,
        "networks": 1 if large else 3,
        "batch_size": min(256, max(32, 2 ** round(math.log2(max(1, n_train) / 32)))),
        "hidden": (128, 128) if large else (64, 64),
    }
    cut = {"trials": 2, "epochs": 30, "first_epochs": 0, "networks": 1, "quick": True}
    return values | (cut if quick else {})


def choose_methods(task: str, wanted: Sequence[str] | None, grouped: bool) -> tuple[str, ...]:
    """Return the methods to compare, ordinary training first.

    None is all that suit task and groups and are installed. An estimator of yours joins them, or those that
    are named, by its module and class, as in ``"sklearn.ensemble:ExtraTreesRegressor"``.
    """
    wanted = list(wanted or ())
    wants_all = all(":" in name for name in wanted)
    METHODS.update({name: _own(task, name) for name in wanted if ":" in name})
    NAMES.update({name: METHODS[name].label for name in wanted if ":" in name})
    known = [name for name, method in METHODS.items() if task in method.tasks]
    needs = {name: METHODS[name].needs for name in known}
    there = [name for name in known if not needs[name] or importlib.util.find_spec(needs[name])]
    usual = [name for name in there if ":" not in name and (grouped or not METHODS[name].sees_groups)]
    for name in wanted:
        if name not in there:
            hint = f"Some need {remedy('boosters')}."
            raise TableError(f"methods has {name!r}. Methods for {task} are {', '.join(known)}. {hint}")
        if METHODS[name].sees_groups and not grouped:
            raise TableError(f"methods has {name!r}, which needs groups. Name their column with --group.")
    chosen = [REFERENCE, *wanted, *(usual if wants_all else ())]
    return tuple(name for name in known if name in chosen)


def draw_settings(method: str, trial: int, plan: Plan) -> dict[str, Any]:
    """Draw the settings of a trial: the usual ones first, then evenly spread over their ranges.

    All networks share the draws of learning rate and weight decay, so that luck does not decide. Trials are
    the same in every fold. If the logarithm of the target is tried, the second trial is the first with it.
    """
    ranges = {**(_SHARED if METHODS[method].make is None else {}), **METHODS[method].settings}
    if trial == 0 or (trial == 1 and plan.log_target):
        values = {name: usual for name, (usual, _, _) in ranges.items()}
    else:
        values = {
            name: _even((low, high), name if name in _SHARED else f"{method} {name}", k, trial, plan)
            for k, (name, (_, low, high)) in enumerate(ranges.items())
        }
    if METHODS[method].make is None:  # every second trial sees numbers in bins, too
        values["bins"] = BINS * (trial // (1 + plan.log_target) % 2)
    if method == LINEAR:  # every second trial sees free text
        values["text"] = trial // (1 + plan.log_target) % 2 == 0
    if method == TREES:  # every second trial sees mean targets: these trees join categories of few rows
        values["means"] = trial // (1 + plan.log_target) % 2 == 1
    whole = [name for name, ends in ranges.items() if all(isinstance(end, int) for end in ends)]
    return {name: round(value) if name in whole else value for name, value in values.items()}


def codes_of(method: str, settings: Mapping[str, Any]) -> int:
    """Return how many categories of a column a method gets as codes; 0 for those that split by none."""
    return METHODS[method].boosted * (FEW_CODES if settings.get("means") else CODES)


def _even(ends: tuple[float, float], name: str, k: int, trial: int, plan: Plan) -> float:
    """Return the value of a trial in the logarithmic range of the k-th setting: a shifted Kronecker sequence.

    The steps are powers of the root of x^(d+1) = x + 1. They spread any number of points evenly in d
    dimensions (Roberts 2018).
    """
    shift = np.random.default_rng(stream_seed("trials", name, plan.seed)).random()
    share = (shift + trial * _ROOT ** -(k + 1)) % 1
    return float(f"{ends[0] * (ends[1] / ends[0]) ** share:.3g}")
