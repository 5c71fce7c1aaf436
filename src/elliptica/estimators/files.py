"""Trained estimators in one safe file: JSON and safetensors in a zip, no pickle."""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from elliptica import __version__
from elliptica._utils.files import replacing
from elliptica.core.noise import Green, Screened
from elliptica.estimators.base import EllipticEstimator, ModuleLike, check_output, make_network
from elliptica.estimators.classifier import EllipticClassifier
from elliptica.estimators.fit import private_stream
from elliptica.estimators.preprocess import TablePreprocessor
from elliptica.estimators.regressor import EllipticRegressor

FORMAT = "elliptica estimator"
VERSION = 1
SETTINGS, WEIGHTS = "model.json", "weights.safetensors"

_ESTIMATORS: dict[str, type[EllipticEstimator]] = {
    "EllipticClassifier": EllipticClassifier,
    "EllipticRegressor": EllipticRegressor,
}
_STATISTICS = ("x_mean_", "x_scale_", "y_mean_", "y_scale_")
_LONGEST_REASON = 300  # characters of an internal error that a message quotes
#: Strings of class labels that are read may take so much room, far above what labels need.
_MOST_CHARACTERS = 2**26
_LAWS = {"green": Green, "screened": Screened}
_COURSE = ("n_iter_", "best_iteration_", "loss_curve_", "validation_scores_", "best_validation_score_")


def save(estimator: Any, path: str | Path, *, notes: dict[str, Any] | None = None) -> Path:
    """Write a trained estimator to one file that is safe to read.

    The file is a zip of ``model.json`` (parameters, labels, columns, course of the training) and
    ``weights.safetensors`` (network and statistics). It predicts bit for bit as the estimator does, on the
    same machine. Not in it: the state of the optimiser (training goes on with a new one), the code of a
    ``module`` of your own (pass it to `load` again), a ``random_state`` that is not a number, and rare
    categories, of which only the number is kept. Frequent categories and class labels are in it as text.

    Args:
        estimator: `EllipticClassifier`, `EllipticRegressor`, or a pipeline of `TablePreprocessor` and one of
            them; of a grid search its ``best_estimator_``.
        path: Where to write, by custom ``something.elliptica``; an existing file is replaced.
        notes: Anything of yours that JSON can hold, for `read_notes`; `load` does not look at it.

    Returns:
        The path.

    Example:
        >>> import tempfile
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = EllipticClassifier(max_iter=2).fit(X, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save(model, Path(folder) / "iris.elliptica")
        ...     bool((load(path).predict(X) == model.predict(X)).all())
        True
    """
    preprocessor, model, names = savable_parts(estimator)
    check_is_fitted(model, "module_")
    tensors = {f"module/{name}": value for name, value in model.module_.state_dict().items()}
    for name in _STATISTICS:
        if hasattr(model, name):
            tensors[name] = torch.from_numpy(np.asarray(getattr(model, name), dtype=np.float64))
    settings = {
        "format": FORMAT,
        "version": VERSION,
        "elliptica": __version__,
        "steps": names,
        "preprocessor": None if preprocessor is None else preprocessor.to_dict(),
        "estimator": _describe(model),
        "notes": notes or {},
    }
    text = json.dumps(settings, indent=1, ensure_ascii=False)
    path = Path(path)
    with replacing(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as file:
        file.writestr(SETTINGS, text)
        file.writestr(WEIGHTS, safetensors.torch.save({k: v.cpu().contiguous() for k, v in tensors.items()}))
    return path


def load(path: str | Path, *, module: ModuleLike | None = None, device: str = "cpu") -> Any:
    """Read what `save` wrote. Nothing in the file is run, so it may come from anybody.

    Args:
        path: The file.
        module: For an estimator with a ``module`` of its own: that module, or the function that makes it.
        device: Where to put the network.

    Returns:
        The estimator, or the pipeline.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not of this format, of a later version, or damaged.
    """
    path = Path(path)
    settings, tensors = _read(path)
    with _damage_explained(path):
        has_module = bool(settings["estimator"]["has_module"])
    if has_module and module is None:
        raise ValueError(
            "The estimator was trained with a module of its own, whose code is not in the file. Pass it: "
            "load(path, module=...)."
        )
    if module is not None and not has_module:
        raise ValueError("The estimator was trained with the default network. Leave module= out.")
    weights = {k.removeprefix("module/"): v for k, v in tensors.items() if k.startswith("module/")}
    with _damage_explained(path):
        model = _rebuild(settings["estimator"], tensors, module, device)
        if module is None:
            model.module_ = _default_network(model, weights).to(device)
        whole: Any = model
        if (state := settings["preprocessor"]) is not None:
            steps = zip(settings["steps"], (TablePreprocessor.from_dict(state), model), strict=True)
            whole = Pipeline(list(steps))
    if module is not None:  # errors of the caller's module are not damage of the file
        model.module_ = _own_network(model, weights, module).to(device)
    return whole


def read_notes(path: str | Path) -> dict[str, Any]:
    """The notes that `save` was given; empty if there were none.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not of this format, of a later version, or damaged.

    Example:
        >>> import tempfile
        >>> model = EllipticRegressor(max_iter=1).fit([[0.0], [1.0]], [0.0, 1.0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save(model, Path(folder) / "a.elliptica", notes={"units": "metres"})
        ...     read_notes(path)
        {'units': 'metres'}
    """
    notes = _read(Path(path))[0].get("notes", {})
    if not isinstance(notes, dict):
        raise ValueError(f"{path} does not hold what a saved estimator holds: its notes are no dictionary.")
    return notes


@contextlib.contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    """Whatever goes wrong while the content of a file is put together becomes one clear error."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise ValueError(
            f"{path} does not hold what a saved estimator holds ({_reason(error)}). It was damaged or "
            "changed; save the estimator again."
        ) from error


def _reason(error: Exception) -> str:
    """Kind and text of an error, cut short: a hostile file could make it of any length."""
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + " ..."


def _describe(model: EllipticEstimator) -> dict[str, Any]:
    """Everything about an estimator that is not a tensor."""
    parameters = model.get_params(deep=False)
    has_module = parameters.pop("module") is not None
    if not isinstance(parameters["random_state"], (int, np.integer)):
        parameters["random_state"] = None
    described = {
        "class": type(model).__name__,
        "parameters": {name: encode(name, value) for name, value in parameters.items()},
        "has_module": has_module,
        "n_features": int(model.n_features_in_),
        "n_outputs": int(model.n_outputs_),
        "feature_names": [str(n) for n in getattr(model, "feature_names_in_", [])] or None,
        "seed": model._seed,
        "course": {name: encode(name, getattr(model, name)) for name in _COURSE},
    }
    if isinstance(model, EllipticClassifier):
        described["classes"] = encode_labels(model.classes_)
        described["is_multilabel"] = model._is_multilabel
    elif isinstance(model, EllipticRegressor):
        described["is_flat"] = model._is_flat
    return described


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Both members of a file, checked."""
    if not path.exists():
        raise FileNotFoundError(
            f"The model {path} does not exist. Expected a file such as model.elliptica, which "
            "elliptica.estimators.save or elliptica compare writes."
        )
    try:
        with zipfile.ZipFile(path) as file:
            members = {info.filename: info for info in file.infolist()}
            if set(members) != {SETTINGS, WEIGHTS} or len(file.infolist()) != 2:
                raise ValueError(
                    f"{path} is a zip, but not one of a saved estimator: it should hold {SETTINGS} and "
                    f"{WEIGHTS}, but holds {', '.join(sorted(members)) or 'nothing':.{_LONGEST_REASON}}."
                )
            # we write without compression; a compressed member could unpack to any size
            if any(info.compress_type != zipfile.ZIP_STORED for info in members.values()):
                raise ValueError(
                    f"{path} is compressed inside, as elliptica does not write it. Save it again."
                )
            texts = {name: file.read(name) for name in members}
        settings = json.loads(texts[SETTINGS])
    except (
        zipfile.BadZipFile,
        json.JSONDecodeError,
        UnicodeDecodeError,
        EOFError,
        RuntimeError,  # encrypted members, unknown features of zip (NotImplementedError), deep nesting
    ) as error:
        raise ValueError(
            f"{path} cannot be read as a saved estimator ({_reason(error)}). It is another kind of file, or "
            "damaged."
        ) from error
    if not isinstance(settings, dict) or settings.get("format") != FORMAT:
        raise ValueError(f"{path} is not a saved estimator of elliptica: {SETTINGS} does not say {FORMAT!r}.")
    if settings.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {settings.get('version')!r:.20} of the format, but elliptica {__version__} "
            f"reads version {VERSION}. It was written by elliptica {settings.get('elliptica')!s:.20}: "
            "install that."
        )
    try:
        return settings, safetensors.torch.load(texts[WEIGHTS])
    except SafetensorError as error:
        raise ValueError(f"{path}: {WEIGHTS} is damaged ({error}). Save the estimator again.") from error


def _rebuild(
    state: dict[str, Any], tensors: dict[str, Tensor], module: ModuleLike | None, device: str
) -> EllipticEstimator:
    """A trained estimator from its description, all but the network."""
    parameters = {name: decode(value) for name, value in state["parameters"].items()}
    parameters["device"] = device
    model = _ESTIMATORS[state["class"]](module=module, **parameters)
    model.n_features_in_, model.n_outputs_ = state["n_features"], state["n_outputs"]
    if state["feature_names"] is not None:
        model.feature_names_in_ = np.asarray(state["feature_names"], dtype=object)
    for name in _COURSE:
        setattr(model, name, decode(state["course"][name]))
    if isinstance(model, EllipticClassifier):
        model.classes_, model._is_multilabel = decode_labels(state["classes"]), state["is_multilabel"]
        if len(model.classes_) != model.n_outputs_:
            raise ValueError(f"{len(model.classes_)} classes for {model.n_outputs_} outputs of the network")
    elif isinstance(model, EllipticRegressor):
        model._is_flat = state["is_flat"]
    for name in _STATISTICS[: 4 if isinstance(model, EllipticRegressor) else 2]:
        wanted = model.n_features_in_ if name.startswith("x") else model.n_outputs_
        if tuple(tensors[name].shape) != (wanted,):
            raise ValueError(
                f"{name} should have {wanted} values, but has shape {tuple(tensors[name].shape)}."
            )
        setattr(model, name, tensors[name].numpy())
    model._seed, model._optimizer = state["seed"], None
    return model


def _default_network(model: EllipticEstimator, weights: dict[str, Tensor]) -> torch.nn.Module:
    """Our own network with the weights of the file."""
    n_layers = len(model.hidden) + 1
    if len(weights) != 2 * n_layers:  # before any layer is made: the file may ask for any number
        raise ValueError(f"{len(weights)} weights and biases for {n_layers} layers")
    with torch.device("meta"):  # sizes only: no memory, and no random numbers
        network = make_network(None, model.hidden, model.n_features_in_, model.n_outputs_)
    network.load_state_dict(weights, assign=True)
    return network.eval()


def _own_network(model: EllipticEstimator, weights: dict[str, Tensor], module: ModuleLike) -> torch.nn.Module:
    """The caller's network with the weights of the file."""
    sizes = model.n_features_in_, model.n_outputs_
    with private_stream(0, torch.device("cpu")):  # initial weights are drawn, and replaced
        network = make_network(module, model.hidden, *sizes)
        check_output(network, torch.zeros(2, sizes[0]), sizes[1], model._meaning())
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"module= is not the network that was trained: {_reason(error)}") from error
    return network.eval()


def encode(name: str, value: Any) -> Any:
    """A value that JSON can hold; tuples, dicts and laws of the noise are marked as such."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = [encode(name, item) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {"dict": [[encode(name, k), encode(name, v)] for k, v in value.items()]}
    for kind, law in _LAWS.items():
        if isinstance(value, law):
            return {kind: {k: encode(name, v) for k, v in vars(value).items()}}
    if isinstance(value, torch.device):
        return str(value)
    raise TypeError(
        f"The parameter {name}={value!r:.60} ({type(value).__name__}) cannot be written to a safe file: it "
        f"holds numbers, strings, tuples, lists and dicts. Set {name} to one of these and save again."
    )


def decode(value: Any) -> Any:
    """The inverse of `encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise TypeError(f"a value with the marks {', '.join(map(repr, value))} instead of one mark")
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(decode(item) for item in content)
    if kind == "dict":
        return {decode(k): decode(v) for k, v in content}
    return _LAWS[kind](**content)


def encode_labels(labels: np.ndarray) -> dict[str, Any]:
    """Class labels with their dtype: whole or real numbers, strings, booleans."""
    values = labels.tolist()
    if any(not isinstance(value, (bool, int, float, str)) for value in values):
        odd = next(value for value in values if not isinstance(value, (bool, int, float, str)))
        raise TypeError(
            f"Class labels of type {type(odd).__name__} cannot be written to a safe file. Use strings, "
            "numbers or booleans as labels."
        )
    return {"dtype": labels.dtype.str, "values": values}


def decode_labels(state: dict[str, Any]) -> np.ndarray:
    """The inverse of `encode_labels`; strings get the length of the longest, whatever the dtype says."""
    name, values = state["dtype"], state["values"]
    kind = np.dtype(name).kind if isinstance(name, str) else "?"
    if kind not in "biufUO":
        raise TypeError(f"labels of dtype {name!r}")
    odd = [value for value in values if not isinstance(value, (bool, int, float, str))]
    if not isinstance(values, list) or odd:
        raise TypeError("labels that are not a list of strings, numbers or booleans")
    if kind == "U":
        longest = max((len(str(value)) for value in values), default=0)
        if longest * len(values) > _MOST_CHARACTERS:  # each label takes the room of the longest
            raise ValueError(f"{len(values)} labels of up to {longest} characters")
        return np.array(values, dtype=str)
    return np.array(values, dtype=np.dtype(name))


def savable_parts(estimator: Any) -> tuple[TablePreprocessor | None, EllipticEstimator, list[str]]:
    """The preprocessor, if any, the estimator, and the names of the steps."""
    steps = estimator.steps if isinstance(estimator, Pipeline) else [("", estimator)]
    names, parts = [name for name, _ in steps], [part for _, part in steps]
    if type(parts[-1]) in (EllipticClassifier, EllipticRegressor):
        if len(parts) == 1:
            return None, parts[0], names
        if len(parts) == 2 and type(parts[0]) is TablePreprocessor:
            return parts[0], parts[1], names
    raise TypeError(
        "save takes EllipticClassifier, EllipticRegressor, or a pipeline of TablePreprocessor and one of "
        f"them, but got {_kind(estimator)}. {_remedy(estimator, parts)}"
    )


def _kind(estimator: Any) -> str:
    """What an object is; of a pipeline, its steps too."""
    name = type(estimator).__name__
    if not isinstance(estimator, Pipeline):
        return name
    return f"{name} of {', '.join(type(part).__name__ for _, part in estimator.steps)}"


def _remedy(estimator: Any, parts: list[Any]) -> str:
    """How to save what can be saved of an object that `save` does not take."""
    if type(estimator).__name__.endswith("SearchCV"):
        return "Save the estimator that the search chose: save(search.best_estimator_, path)."
    if len(parts) > 1 and isinstance(parts[-1], EllipticEstimator):
        return (
            "The network alone can be saved, and then takes rows as the steps before it give them: "
            "save(pipeline[-1], path). For the whole pipeline use joblib, whose files must be trusted."
        )
    return "For other objects use joblib, whose files must be trusted."
