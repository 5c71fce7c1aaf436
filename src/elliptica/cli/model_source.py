"""Load models and data for the commands: user code and files, built-in data, a small network."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.extras import import_extra
from elliptica._utils.files import read_arrays
from elliptica._utils.perceptron import mlp
from elliptica.baselines import ERM, Mixup
from elliptica.cli.diagnose import Loss, Training
from elliptica.core.elliptic import Elliptic
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.data.toy import two_moons
from elliptica.tables.fitted_model import FittedModel

#: Data sets that need no file.
BUILT_IN = ("two-moons", "digits")
#: Batch size of the built-in training.
_BATCH = 64
#: Each class becomes an output of the network.
_MOST_CLASSES = 100_000
_LOSSES: dict[str, Callable[[], nn.Module]] = {
    "cross-entropy": nn.CrossEntropyLoss,
    "mse": nn.MSELoss,
    "l1": nn.L1Loss,
    "bce": nn.BCEWithLogitsLoss,
}


class SourceError(ValueError):
    """The model or the data cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Samples:
    """Rows of a file or a built-in data set."""

    name: str  # for headings
    x: Tensor  # training inputs, ``(n, *feature)``
    y: Tensor  # training targets: int64 labels, or float values
    test_x: Tensor | None = None  # other points; None if there are none
    test_y: Tensor | None = None  # their targets
    group: list[str] | None = None  # group of each training point, or None
    test_group: list[str] | None = None  # group of each test point, or None
    unlabelled: Tensor | None = None  # points without targets, or None

    @property
    def is_classification(self) -> bool:
        """Whether targets are labels."""
        return not self.y.is_floating_point()

    @property
    def n_outputs(self) -> int:
        """Classes (of training and test labels), or values per target."""
        if not self.is_classification:
            return self.y[0].numel()
        labels = self.y if self.test_y is None else torch.cat([self.y, self.test_y])
        return int(labels.max()) + 1


def fitted_from_code(
    data: str,
    *,
    model: str | None,
    weights: Path | None,
    method: str,
    steps: int,
    loss: str,
    seed: int,
    messages: Console,
) -> FittedModel:
    """Combine the user's model, or a network trained here, with its data.

    Raises:
        SourceError: If model or data cannot be used.
    """
    if loss != "auto" and model is None:
        raise SourceError("--loss needs --model, because the built-in network has a fixed loss. Omit --loss.")
    if weights is not None and model is None:
        raise SourceError(
            "--weights needs --model, the code of the network. Pass --model package.module:name."
        )
    if loss not in get_args(Loss):
        raise SourceError(f"--loss must be one of {', '.join(get_args(Loss))}, but got {loss!r}.")
    samples = load_samples(data, seed)
    if model is not None:
        network = load_model(model, weights)
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, console=messages, transient=True) as bar:
            task = bar.add_task(f"training by {method}", total=steps)
            network = train_network(
                samples, method, n_steps=steps, seed=seed, progress=lambda n: bar.update(task, completed=n)
            )
    name = "cross-entropy" if samples.is_classification else "mse"
    name = name if loss == "auto" else loss
    test = None
    if samples.test_x is not None and samples.test_y is not None:
        test = (samples.test_x, _for_loss(name, samples.test_y))
    return FittedModel(
        network,
        _LOSSES[name](),
        samples.x,
        _for_loss(name, samples.y),
        name=model or f"Small network trained here ({method})",
        groups=samples.group,
        test=test,
        test_groups=samples.test_group,
        unlabelled=samples.unlabelled,
        feature_names=("x1", "x2"),
    )


def remarks_on(model: str | None, weights: Path | None, method: str, steps: int) -> list[str]:
    """Return notices about the network that the user may not expect."""
    if model is None:
        return [f"No --model: this is a small network trained here ({method}, {steps} steps)."]
    return [f"Using the weights that {model} comes with (no --weights)."] if weights is None else []


def _for_loss(name: str, y: Tensor) -> Tensor:
    """Convert targets to the dtype and shape that a loss takes."""
    if name == "cross-entropy" or y.is_floating_point():
        return y
    return y.float() if y.ndim > 1 else y[:, None].float()


def train_network(
    samples: Samples,
    method: str,
    *,
    n_steps: int = 2000,
    seed: int = 0,
    progress: Callable[[int], object] = lambda _: None,
) -> nn.Module:
    """Train a perceptron with two layers of 64 units on standardised inputs and real targets.

    Args:
        samples: Training data.
        method: Training method: ``"erm"``, ``"mixup"`` or ``"elliptic"``.
        n_steps: Steps of Adam on 64 rows, whose rate falls from 0.01 to 0.00001.
        seed: Seed of weights, order and noise.
        progress: Called with the number of finished steps.
    """
    from elliptica.lab.training import TrainingSettings, fit

    checks.choice("method", method, get_args(Training))
    checks.count("n_steps", n_steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        core = mlp(samples.x[0].numel(), samples.n_outputs, hidden=(64, 64), activation="tanh")
    model = nn.Sequential(nn.Flatten(), *core)
    mean, std = samples.x.mean(0), samples.x.std(0).clamp_min(1e-6)
    loss_fn: nn.Module = nn.MSELoss()
    y, num_classes = samples.y, None
    if samples.is_classification:
        num_classes, loss_fn = samples.n_outputs, nn.CrossEntropyLoss()
    else:
        centre, spread = y.mean(0), y.std(0).clamp_min(1e-6)
        y = (y - centre) / spread
    objectives: dict[str, Callable[[], nn.Module]] = {
        "erm": lambda: ERM(model, loss_fn),
        "mixup": lambda: Mixup(model, loss_fn, alpha=1.0),
        "elliptic": lambda: Elliptic(model, loss_fn, num_classes=num_classes, sigma=0.05, sigma_y=0.0),
    }
    objective, part = objectives[method](), Split((samples.x - mean) / std, y)
    task: Literal["classification", "regression"] = (
        "classification" if samples.is_classification else "regression"
    )
    rows = min(_BATCH, len(samples.x))
    fit(
        model,
        lambda _, batch: objective(batch.x, batch.y, generator=batch.generator),
        Dataset(samples.name, part, part, part, task),
        TrainingSettings(100, rows, 1e-2, milestones=(50, 75, 90), drop_last=True, select="last"),
        lambda *_: 0.0,  # the last step counts
        name="diagnose",
        seed=seed,
        budget=n_steps * rows,  # each step evaluates the model once per row
        progress=lambda end: progress(end.evaluations // rows),
    )
    first, last = core[0], core[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    with torch.no_grad():  # fold the scaling into the network, so that it takes raw inputs and targets
        first.bias.sub_(first.weight @ (mean / std).flatten())
        first.weight.div_(std.flatten())
        if not samples.is_classification:
            last.weight.mul_(spread.flatten()[:, None])
            last.bias.mul_(spread.flatten()).add_(centre.flatten())
    return model.eval()


def load_samples(source: str, seed: int = 0) -> Samples:
    """Load a built-in data set, or an ``.npz`` file with arrays ``x``, ``y`` and, optionally, test points.

    Arrays of the file: ``x`` (rows, *feature) and ``y`` (rows,) or (rows, targets), whole numbers for
    classes; optional ``group``, ``x_test``, ``y_test``,
    ``group_test`` and ``x_unlabelled``.
    """
    if source in ("two-moons", "two_moons"):
        moons = two_moons(0, 1200, generator=torch.Generator().manual_seed(seed))
        x, y = moons.interior_x, moons.interior_y
        return Samples("two-moons", x[:200], y[:200], x[200:], y[200:])
    if source == "digits":
        return _digits(seed)
    path = Path(source)
    if not path.exists():
        raise SourceError(
            f"There is no file {source}. Pass an .npz file with arrays x and y, or one of "
            f"{', '.join(BUILT_IN)}."
        )
    arrays = _arrays(path)
    if "group_test" in arrays and "x_test" not in arrays:
        raise SourceError(f"{path.name} holds group_test but no x_test. Add x_test and y_test.")
    missing = [key for key in ("x", "y") if key not in arrays]
    if missing:
        names = ", ".join(sorted(arrays)) or "nothing"
        raise SourceError(
            f"{path.name} must hold arrays x and y, but holds {names}. Write numpy.savez(file, x=..., y=...)."
        )
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise SourceError(f"{path.name} holds only one of x_test and y_test. Save both or neither.")
    for name in ("x_test", "x_unlabelled"):
        if name in arrays and arrays[name].shape[1:] != arrays["x"].shape[1:]:
            raise SourceError(
                f"{name} must have rows of shape {arrays['x'].shape[1:]} as x has, but has "
                f"{arrays[name].shape[1:]}."
            )
    if "y_test" in arrays and (arrays["y_test"].dtype.kind == "f") != (arrays["y"].dtype.kind == "f"):
        raise SourceError(
            "One of y and y_test holds integers (classes), the other does not. Save both with the same dtype."
        )
    return Samples(
        path.name,
        _inputs("x", arrays["x"]),
        _targets("y", arrays["y"], len(arrays["x"])),
        _inputs("x_test", arrays["x_test"]) if "x_test" in arrays else None,
        _targets("y_test", arrays["y_test"], len(arrays["x_test"])) if "x_test" in arrays else None,
        _groups("group", arrays["group"], len(arrays["x"])) if "group" in arrays else None,
        _groups("group_test", arrays["group_test"], len(arrays["x_test"]))
        if "group_test" in arrays
        else None,
        _inputs("x_unlabelled", arrays["x_unlabelled"]) if "x_unlabelled" in arrays else None,
    )


def _arrays(path: Path) -> dict[str, Any]:
    """Read the arrays of an ``.npz`` file."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise SourceError(f"{path.name} is not an .npz file. Write one with numpy.savez(file, x=..., y=...).")
    try:
        return read_arrays(path)
    except (ValueError, OSError) as error:
        raise SourceError(
            f"{path.name} cannot be read as an .npz file of plain arrays ({error}). Write it with "
            "numpy.savez(file, x=..., y=...), without objects."
        ) from error


def _digits(seed: int) -> Samples:
    try:
        datasets = import_extra("The sample of digits", "tables", "sklearn.datasets")
    except ModuleNotFoundError as error:
        raise SourceError(str(error)) from error
    pixels, labels = datasets.load_digits(return_X_y=True)
    x, y = torch.as_tensor(pixels).float() / 16, torch.as_tensor(labels).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1000], order[1000:]
    return Samples("digits", x[train], y[train], x[test], y[test])


def _groups(name: str, array: Any, rows: int) -> list[str]:
    if array.shape != (rows,):
        raise SourceError(
            f"{name} must have one entry for each of the {rows} rows of {name.replace('group', 'x')}."
        )
    return [str(value) for value in array.tolist()]


def _inputs(name: str, array: Any) -> Tensor:
    if array.dtype.kind not in "fiu" or array.ndim < 2 or len(array) < 2 or array.size == 0:
        raise SourceError(
            f"{name} must be numbers of shape (rows, *feature) with at least two rows and one feature, but "
            f"has shape {array.shape} and dtype {array.dtype}."
        )
    value = torch.as_tensor(array).float()
    if not bool(value.isfinite().all()):
        raise SourceError(f"{name} holds NaN or infinity. Fill in or drop those rows first.")
    return value


def _targets(name: str, array: Any, rows: int) -> Tensor:
    if array.dtype.kind not in "fiu" or array.ndim == 0 or len(array) != rows:
        raise SourceError(
            f"{name} must hold one number (or row of numbers) for each of the {rows} rows, but has shape "
            f"{array.shape} and dtype {array.dtype}."
        )
    value = torch.as_tensor(array)
    if value.is_floating_point():
        value = value.float()
        if not bool(value.isfinite().all()):
            raise SourceError(f"{name} holds NaN or infinity. Fill in or drop those rows first.")
        return value[:, None] if value.ndim == 1 else value
    value = value.long()
    if value.ndim == 2 and value.shape[1] == 1:
        value = value[:, 0]
    if int(value.min()) < 0:
        raise SourceError(
            f"Labels in {name} must be at least 0, but the smallest is {int(value.min())}. "
            "Number them from 0."
        )
    if (largest := int(value.max())) >= _MOST_CLASSES:
        raise SourceError(
            f"Labels in {name} number the classes from 0, but the largest is {largest:,}, and at most "
            f"{_MOST_CLASSES:,} classes are supported. Number them from 0, or save floats for real targets."
        )
    return value


def load_model(source: str, weights: Path | None = None) -> nn.Module:
    """Import a model from the user's code, ``package.module:name``: a module or a function that makes one.

    ``weights`` is a state dict, read with ``weights_only=True``. (Files of `torch.export` are not read:
    loading them runs pickle.)
    """
    if ":" not in source:
        raise SourceError(
            f"--model must be package.module:name, but got {source!r}. Write a function that makes the "
            "model into a file my_model.py, pass my_model:function, and its state dict with --weights."
        )
    model = _imported(source)
    if weights is not None:
        try:
            state = torch.load(weights, map_location="cpu", weights_only=True)
        except FileNotFoundError as error:
            raise SourceError(f"There is no file {weights}.") from error
        except Exception as error:  # torch raises many kinds of errors for other files
            raise SourceError(
                f"{weights.name} cannot be read safely. Save it with torch.save(model.state_dict(), file)."
            ) from error
        try:
            model.load_state_dict(state)
        except (RuntimeError, TypeError, AttributeError) as error:
            raise SourceError(f"The weights {weights.name} do not fit the model: {error}") from error
    return model


def _imported(source: str) -> nn.Module:
    module_name, _, name = source.partition(":")
    sys.path.insert(0, str(Path.cwd()))  # where the command was started
    try:
        loaded = getattr(importlib.import_module(module_name), name)
    except ModuleNotFoundError as error:
        raise SourceError(
            f"No module {error.name!r}. Start the command in the folder that holds it, and write "
            "package.module:name without .py."
        ) from error
    except AttributeError as error:
        raise SourceError(f"{module_name} has no {name!r}. Check the name after the colon.") from error
    except (Exception, SystemExit) as error:  # the user's code
        raise SourceError(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    if not isinstance(loaded, nn.Module) and not callable(loaded):
        raise SourceError(
            f"{source} is {type(loaded).__name__}, but must be a model or a function that makes one."
        )
    try:
        model = loaded if isinstance(loaded, nn.Module) else loaded()
    except (Exception, SystemExit) as error:  # the user's code
        raise SourceError(
            f"{source}() failed: {type(error).__name__}: {error}. It is called without arguments."
        ) from error
    if not isinstance(model, nn.Module):
        raise SourceError(f"{source} returned {type(model).__name__}, but must return a torch.nn.Module.")
    return model
