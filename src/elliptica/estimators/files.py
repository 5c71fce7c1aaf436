"""Save trained estimators in one safe file: JSON, safetensors and skops in a zip, no pickle."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import json
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from elliptica import __version__
from elliptica._utils.extras import missing_package
from elliptica._utils.files import BROKEN_HEADER, replacing
from elliptica.core.noise import Green
from elliptica.core.partners import InverseDistance, LabelKernel, Nearest, Permutation
from elliptica.core.weighting import Girsanov, GradientNorm, GradientSoftmax, Multiplicative
from elliptica.estimators.base import (
    EllipticEstimator,
    Ensemble,
    ModuleLike,
    check_output,
    make_network,
    network_seeds,
)
from elliptica.estimators.classifier import EllipticClassifier
from elliptica.estimators.fit import Progress, private_stream
from elliptica.estimators.preprocess import TablePreprocessor
from elliptica.estimators.regressor import EllipticRegressor

FORMAT = "elliptica estimator"
VERSION = 3
SETTINGS, WEIGHTS, SKOPS = "model.json", "weights.safetensors", "model.skops"

_ESTIMATORS: dict[str, type[EllipticEstimator]] = {
    "EllipticClassifier": EllipticClassifier,
    "EllipticRegressor": EllipticRegressor,
}
_TREES = (HistGradientBoostingClassifier, HistGradientBoostingRegressor)
_LINEAR = (LogisticRegression, Ridge)
_X_STATISTICS, _Y_STATISTICS, _BOUNDS = ("x_mean_", "x_scale_"), ("y_mean_", "y_scale_"), ("y_min_", "y_max_")
_LONGEST_REASON = 300  # maximum number of characters of a quoted internal error
#: Maximum number of characters of all class labels, far above any real need.
_MOST_CHARACTERS = 2**26
_MOST_JSON = 2**26  # maximum bytes of settings, which take several times that in memory
_DEEPEST_JSON = 100
#: Maximum number of objects in the scikit-learn part: 25,000 trees have fewer, more would take minutes.
_MOST_NODES = 500_000
#: Shared arrays are read once per object; together they may have at most this multiple of the file size.
_MOST_SHARING = 8
_PROTOCOL = 2  # protocol of skops 0.16, which wrote the first such files
_MOST_NETWORKS = 10_000
#: Objects that parameters may hold, with numbers and strings as arguments.
_OBJECTS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(Green, Permutation, InverseDistance, Nearest, LabelKernel),
        *(GradientNorm, GradientSoftmax, Girsanov, Multiplicative),
    )
}
#: Fields of `Progress` in a file.
_COURSE = ("n_iter", "best_iteration", "loss_curve", "validation_scores", "best_score")
_HGB = "sklearn.ensemble._hist_gradient_boosting"
#: Everything that the scikit-learn part may hold, by the skops loader that rebuilds it.
_TRUSTED: dict[str, set[str]] = {
    "ObjectNode": {
        f"{_HGB}.gradient_boosting.HistGradientBoostingClassifier",
        f"{_HGB}.gradient_boosting.HistGradientBoostingRegressor",
        f"{_HGB}.binning._BinMapper",
        f"{_HGB}.predictor.TreePredictor",
        "sklearn._loss.loss.HalfSquaredError",
        "sklearn._loss.loss.HalfBinomialLoss",
        "sklearn._loss.loss.HalfMultinomialLoss",
        "sklearn._loss.link.IdentityLink",
        "sklearn._loss.link.LogitLink",
        "sklearn._loss.link.MultinomialLogit",
        "sklearn._loss.link.Interval",
        "sklearn.preprocessing._label.LabelEncoder",
        "sklearn.preprocessing._function_transformer.FunctionTransformer",
        "sklearn.compose._target.TransformedTargetRegressor",
        "sklearn.linear_model._logistic.LogisticRegression",
        "sklearn.linear_model._ridge.Ridge",
    },
    "LossNode": {
        "sklearn._loss._loss.CyHalfSquaredError",
        "sklearn._loss._loss.CyHalfBinomialLoss",
        "sklearn._loss._loss.CyHalfMultinomialLoss",
    },
    "FunctionNode": {"numpy.log", "numpy.exp"},
    "NdArrayNode": {f"numpy.{name}" for name in ("ndarray", "bool", "int64", "uint64", "float32", "float64")},
    "TypeNode": {f"builtins.{name}" for name in ("str", "int", "float", "bool")},
    "JsonNode": {"builtins.str"},
    "DictNode": {"builtins.dict"},
    "ListNode": {"builtins.list"},
    "TupleNode": {"builtins.tuple"},
}


def save(estimator: Any, path: str | Path, *, notes: dict[str, Any] | None = None) -> Path:
    """Save a trained estimator in one file that is safe to load.

    The file is a zip of ``model.json`` (parameters, labels, columns, training curves),
    ``weights.safetensors`` (networks and statistics) and, for scikit-learn models, ``model.skops``. On the
    same machine, its predictions equal those of the estimator bit for bit. The file does not contain the
    state of the optimiser (training resumes with a new one), the code of your own ``module`` (pass it to
    `load` again), a ``random_state`` that is not a number, the quantiles that trees were grown with, or rare
    categories, of which only the number is kept. Frequent categories and class labels are stored as text.

    Args:
        estimator: `EllipticClassifier`, `EllipticRegressor`, scikit-learn's
            ``HistGradientBoostingClassifier`` or ``Regressor``, ``LogisticRegression`` or ``Ridge`` (the
            regressors also in a ``TransformedTargetRegressor`` with ``func=np.log, inverse_func=np.exp``), or
            a pipeline of `TablePreprocessor` and one of these. For a grid search, pass ``best_estimator_``.
        path: File to write, by convention ``something.elliptica``; an existing file is replaced.
        notes: Your own values that JSON can store, for `read_notes`; `load` ignores them.

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
    members: dict[str, bytes] = {}
    if isinstance(model, EllipticEstimator):
        check_is_fitted(model, "module_")
        model.check_networks()
        tensors, described = _network_tensors(model), _describe(model)
    else:
        check_is_fitted(model)
        tensors, described = {}, {"class": type(model).__name__, "n_features": int(model.n_features_in_)}
        members[SKOPS] = _dump(model)
    state = None if preprocessor is None else preprocessor.to_dict()
    learnt: dict[str, np.ndarray] = getattr(preprocessor, "tensors", dict)()
    tensors |= {f"preprocessor/{k}": torch.from_numpy(np.ascontiguousarray(v)) for k, v in learnt.items()}
    settings = {
        "format": FORMAT,
        "version": VERSION,
        "elliptica": __version__,
        "steps": names,
        "preprocessor": state,
        "estimator": described,
        "notes": notes or {},
    }
    try:
        text = json.dumps(settings, indent=1, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise TypeError(
            f"A name, a label or a note cannot be saved safely: it has half a character ({error}). Rename it."
        ) from error
    weights = safetensors.torch.save({k: v.cpu().contiguous() for k, v in tensors.items()})
    path = Path(path)
    with replacing(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as file:
        for name, content in {SETTINGS: text, WEIGHTS: weights, **members}.items():
            file.writestr(name, content)
    return path


def load(path: str | Path, *, module: ModuleLike | None = None, device: str = "cpu") -> Any:
    """Load an estimator that `save` wrote. Nothing in the file is executed, so it may come from anybody.

    Args:
        path: The file.
        module: For an estimator with its own ``module``: that module, or the function that creates it.
        device: Device of the network.

    Returns:
        The estimator, or the pipeline.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file has another format, a later version, or is damaged.
    """
    path = Path(path)
    settings, tensors, dumped = _read(path)
    with _damage_explained(path):
        described = settings["estimator"]
        has_module = dumped is None and bool(described["has_module"])
    if has_module and module is None:
        raise ValueError(
            "The estimator was trained with its own module, whose code is not in the file. Pass it: "
            "load(path, module=...)."
        )
    if module is not None and not has_module:
        raise ValueError("The estimator was not trained with its own module. Omit module=.")
    weights = {k.removeprefix("module/"): v for k, v in tensors.items() if k.startswith("module/")}
    with _damage_explained(path):
        model: Any
        if dumped is not None:
            model = _undump(dumped, described)
        else:
            model = _rebuild(described, tensors, module, device)
            if module is None:
                model.module_ = _default_networks(model, weights).to(device)
        whole = model
        if (state := settings["preprocessor"]) is not None:
            first = _preprocessor(state, tensors)
            if (made := len(first.get_feature_names_out())) != model.n_features_in_:
                raise ValueError(f"a preprocessor of {made} columns before a model of {model.n_features_in_}")
            whole = Pipeline(list(zip(settings["steps"], (first, model), strict=True)))
    if module is not None:  # errors of the caller's module do not mean a damaged file
        model.module_ = _own_networks(model, weights, module).to(device)
    return whole


def read_notes(path: str | Path) -> dict[str, Any]:
    """Return the notes that were passed to `save`; empty if there were none.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file has another format, a later version, or is damaged.

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
        raise ValueError(f"{path} is not a valid saved estimator: its notes are not a dictionary.")
    return notes


@contextlib.contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    """Convert any error while the content of a file is restored to one clear error."""
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        MemoryError,
        RuntimeError,
        TypeError,
        ValueError,
        zipfile.BadZipFile,
        *BROKEN_HEADER,
    ) as error:
        raise ValueError(
            f"{path} is not a valid saved estimator ({_reason(error)}). It was damaged or changed; save the "
            "estimator again."
        ) from error


def _reason(error: Exception) -> str:
    """Return kind and text of an error, shortened because a hostile file could make it arbitrarily long."""
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + " ..."


def _network_tensors(model: EllipticEstimator) -> dict[str, Tensor]:
    """Return the weights of the networks, and statistics."""
    tensors = {f"module/{name}": value for name, value in model.module_.state_dict().items()}
    for name in (*_X_STATISTICS, *_Y_STATISTICS, *_BOUNDS):
        if hasattr(model, name):
            tensors[name] = torch.from_numpy(np.asarray(getattr(model, name), dtype=np.float64))
    return tensors


def _describe(model: EllipticEstimator) -> dict[str, Any]:
    """Return everything about an estimator that is not a tensor."""
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
        "frame_names": getattr(model, "_frame_names", []),  # also of columns whose names are numbers
        "seed": model._seed,
        "progress": [
            {name: encode(name, getattr(progress, name)) for name in _COURSE} for progress in model._progress
        ],
    }
    if isinstance(model, EllipticClassifier):
        described["classes"] = encode_labels(model.classes_)
        described["is_multilabel"] = model._is_multilabel
        described["temperature"] = float(model.temperature_)
    elif isinstance(model, EllipticRegressor):
        described["is_flat"] = model._is_flat
    return described


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor], bytes | None]:
    """Read the members of a file: settings, tensors, and the scikit-learn part if there is one."""
    if not path.exists():
        raise FileNotFoundError(
            f"The model {path} does not exist. Expected a file such as model.elliptica, which "
            "elliptica.estimators.save or elliptica compare writes."
        )
    if not path.is_file():
        raise ValueError(
            f"{path} is a folder, a pipe or a device, but a saved estimator is a regular file. Pass the file "
            "itself, such as model.elliptica."
        )
    try:
        with zipfile.ZipFile(path) as file:
            texts = _read_members(path, file)
        settings = _read_json(texts[SETTINGS])
    except (
        zipfile.BadZipFile,
        EOFError,
        OSError,  # places in the file that cannot be
        RuntimeError,  # encrypted members, unknown features of zip (NotImplementedError), deep nesting
    ) as error:
        raise ValueError(
            f"{path} cannot be read as a saved estimator ({_reason(error)}). It is another kind of file, or "
            "it is damaged."
        ) from error
    if not isinstance(settings, dict) or settings.get("format") != FORMAT:
        raise ValueError(f"{path} is not a saved estimator of elliptica: {SETTINGS} does not say {FORMAT!r}.")
    version = settings.get("version")
    if version != VERSION:
        raise ValueError(
            f"{path} has version {version!r:.20} of the format, but elliptica {__version__} reads version "
            f"{VERSION}. It was written by elliptica {settings.get('elliptica')!s:.20}: install that version."
        )
    try:
        return settings, safetensors.torch.load(texts[WEIGHTS]), texts.get(SKOPS)
    except SafetensorError as error:
        raise ValueError(f"{path}: {WEIGHTS} is damaged ({error}). Save the estimator again.") from error


def _read_json(text: bytes) -> Any:
    """Parse the settings; whatever is wrong with them is a damage of the file."""
    try:
        return json.loads(text)
    except ValueError as error:  # also numbers of more digits than Python reads
        raise zipfile.BadZipFile(f"{SETTINGS}: {error}") from error


def _read_members(path: Path, file: zipfile.ZipFile) -> dict[str, bytes]:
    """Read the members of a zip after checking their names and sizes."""
    members = {info.filename: info for info in file.infolist()}
    if set(members) - {SKOPS} != {SETTINGS, WEIGHTS} or len(file.infolist()) != len(members):
        raise ValueError(
            f"{path} is a zip, but not one of a saved estimator: it should hold {SETTINGS} and {WEIGHTS}, "
            f"but holds {', '.join(sorted(members)) or 'nothing':.{_LONGEST_REASON}}."
        )
    # we write without compression; a compressed member could expand to any size
    if any(info.compress_type != zipfile.ZIP_STORED for info in members.values()):
        raise ValueError(
            f"{path} has compressed members, which elliptica does not write. Save the estimator again."
        )
    if (size := members[SETTINGS].file_size) > _MOST_JSON:
        raise ValueError(
            f"{path} has settings of {size} bytes, but at most {_MOST_JSON} are allowed. It was damaged or "
            "changed; save the estimator again."
        )
    return {name: file.read(name) for name in members}


def _rebuild(
    state: dict[str, Any], tensors: dict[str, Tensor], module: ModuleLike | None, device: str
) -> EllipticEstimator:
    """Rebuild a trained estimator from its description, except the network."""
    parameters = {name: decode(value) for name, value in state["parameters"].items()}
    parameters["device"] = device
    model = _ESTIMATORS[state["class"]](module=module, **parameters)
    model.n_features_in_, model.n_outputs_ = state["n_features"], state["n_outputs"]
    if state["feature_names"] is not None:
        model.feature_names_in_ = np.asarray(state["feature_names"], dtype=object)
    if state["frame_names"]:
        model._frame_names = [str(name) for name in state["frame_names"]]
    _set_progress(model, state)
    if isinstance(model, EllipticClassifier):
        model.classes_, model._is_multilabel = decode_labels(state["classes"]), state["is_multilabel"]
        model.temperature_ = _positive("temperature", state["temperature"])
        if len(model.classes_) != model.n_outputs_:
            raise ValueError(f"{len(model.classes_)} classes for {model.n_outputs_} outputs of the network")
    elif isinstance(model, EllipticRegressor):
        model._is_flat = state["is_flat"]
    _set_statistics(model, tensors)
    return model


def _set_progress(model: EllipticEstimator, state: dict[str, Any]) -> None:
    """Restore the training state of each network."""
    states = state["progress"]
    if not 1 <= len(states) <= _MOST_NETWORKS:
        raise ValueError(f"{len(states)} networks")
    model._seed = state["seed"]
    model._progress = [
        Progress(seed, **{name: decode(one[name]) for name in _COURSE})
        for seed, one in zip(network_seeds(model._seed, len(states)), states, strict=True)
    ]
    model._summarise()


def _set_statistics(model: EllipticEstimator, tensors: dict[str, Tensor]) -> None:
    """Restore means, scales and ranges, one value for each column or target."""
    wanted = dict.fromkeys(_X_STATISTICS, model.n_features_in_)
    if isinstance(model, EllipticRegressor):
        wanted |= dict.fromkeys(_Y_STATISTICS + _BOUNDS, model.n_outputs_)
    for name, size in wanted.items():
        if tuple(tensors[name].shape) != (size,):
            raise ValueError(f"{name} should have {size} values, but has shape {tuple(tensors[name].shape)}.")
        setattr(model, name, tensors[name].numpy())


def _positive(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} {value!r}")
    return float(value)


def _preprocessor(state: dict[str, Any], tensors: dict[str, Tensor]) -> TablePreprocessor:
    """Rebuild the preprocessor from its description and its arrays, if any."""
    mark = "preprocessor/"
    learnt = {k.removeprefix(mark): v.numpy() for k, v in tensors.items() if k.startswith(mark)}
    make: Any = TablePreprocessor.from_dict
    return make(state, learnt) if learnt else make(state)


def _default_networks(model: EllipticEstimator, weights: dict[str, Tensor]) -> torch.nn.Module:
    """Build default networks with the weights of the file."""
    n_networks, n_layers = len(model._progress), len(model.hidden) + 1
    if len(weights) != 2 * n_layers * n_networks:  # before layers are created: a file may claim any number
        raise ValueError(f"{len(weights)} weights and biases for {n_layers * n_networks} layers")
    with torch.device("meta"):  # shapes only: no memory, and no random numbers
        networks = [
            make_network(None, model.hidden, model.n_features_in_, model.n_outputs_)
            for _ in range(n_networks)
        ]
    whole = _as_one(networks, model)
    whole.load_state_dict(weights, assign=True)
    return whole.eval()


def _own_networks(
    model: EllipticEstimator, weights: dict[str, Tensor], module: ModuleLike
) -> torch.nn.Module:
    """Fill the caller's networks with the weights of the file."""
    sizes = model.n_features_in_, model.n_outputs_
    with private_stream(0, torch.device("cpu")):  # initial weights are drawn, then replaced
        networks = [make_network(module, model.hidden, *sizes) for _ in model._progress]
        check_output(networks[0], torch.zeros(2, sizes[0]), sizes[1], model._meaning())
    whole = _as_one(networks, model)
    try:
        whole.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"module= is not the network that was trained: {_reason(error)}") from error
    return whole.eval()


def _as_one(networks: list[torch.nn.Module], model: EllipticEstimator) -> torch.nn.Module:
    return networks[0] if len(networks) == 1 else Ensemble(networks, model._loss_kind())


def _dump(model: Any) -> bytes:
    """Convert a trained scikit-learn model to the skops format, checked as on loading."""
    data: bytes = _skops().dumps(_slim(model), compression=zipfile.ZIP_STORED)
    try:
        _check_dump(data)
    except ValueError as error:
        raise TypeError(
            f"This {type(model).__name__} cannot be saved safely: {error}. Use its default loss and numbers "
            "as inputs (TablePreprocessor converts categories to numbers), or use joblib, whose files must "
            "be trusted."
        ) from error
    return data


def _slim(model: Any) -> Any:
    """Return a shallow copy without what only training needs: random streams and quantiles of the inputs."""
    slim = copy.copy(model)
    if not isinstance(getattr(slim, "random_state", 0), (int, np.integer)):
        slim.random_state = None
    if isinstance(slim, TransformedTargetRegressor):
        slim.regressor_ = _slim(slim.regressor_)
        slim.regressor = clone(slim.regressor_)
    if isinstance(slim, _TREES):
        slim._feature_subsample_rng = None
        slim._bin_mapper = copy.copy(slim._bin_mapper)
        slim._bin_mapper.bin_thresholds_ = []
    return slim


def _undump(data: bytes, described: dict[str, Any]) -> Any:
    """Load a scikit-learn model after checking everything in its part of the file."""
    trusted = sorted(set().union(*_TRUSTED.values()))
    model = _skops().loads(_without_references(*_check_dump(data)), trusted=trusted)
    if type(model).__name__ != described["class"] or not _is_savable_model(model):
        raise TypeError(f"{type(model).__name__} instead of {described['class']}")
    inner = model.regressor_ if isinstance(model, TransformedTargetRegressor) else model
    if isinstance(inner, _TREES):
        _check_trees(inner)
    elif not (np.isfinite(inner.coef_).all() and np.isfinite(inner.intercept_).all()):
        raise ValueError("coefficients that are NaN or infinite")
    elif inner.coef_.shape[-1] != inner.n_features_in_ or inner.coef_.ndim > 2:
        raise ValueError(f"coefficients of shape {inner.coef_.shape} for {inner.n_features_in_} columns")
    if {described["n_features"], inner.n_features_in_, model.n_features_in_} != {inner.n_features_in_}:
        raise ValueError(f"a model of {inner.n_features_in_} columns for {described['n_features']}")
    model.predict(np.zeros((1, inner.n_features_in_)))
    return model


def _without_references(schema: dict[str, Any], arrays: dict[str, bytes]) -> bytes:
    """Remove object numbers, with which a file could share objects or nest them in themselves.

    skops writes every object in full wherever it occurs, so nothing is lost. Without numbers, the result is
    no larger than the file; with them, a few lines could stand for an endless tree.
    """
    level: list[Any] = [schema]
    while level:
        for node in level:
            if isinstance(node, dict):
                node.pop("__id__", None)
        level = _children(level)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name, content in {"schema.json": json.dumps(schema).encode(), **arrays}.items():
            file.writestr(name, content)
    return buffer.getvalue()


def _check_dump(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Raise if the scikit-learn part holds anything that we do not trust, before any of it is built.

    The sizes that arrays claim must match their data, so that loading needs no more memory than the file.

    Returns:
        The schema, and the files of the arrays.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = {info.filename: info for info in file.infolist()}
        if len(members) != len(file.infolist()) or "schema.json" not in members:
            raise ValueError("members of the same name, or no schema")
        if any(info.compress_type != zipfile.ZIP_STORED for info in members.values()):
            raise ValueError("compressed members")
        if members["schema.json"].file_size > _MOST_JSON:
            raise ValueError(f"a schema of {members['schema.json'].file_size} bytes")
        if sum(info.file_size for info in members.values()) > len(data):
            raise ValueError("members that overlap")
        schema = json.loads(file.read("schema.json"))
        sizes = {name: info.file_size for name, info in members.items()}
        _check_schema(schema, sizes, _MOST_SHARING * len(data))
        arrays = {name: file.read(name) for name in members if name != "schema.json"}
    for name, content in arrays.items():
        _check_array(name, content)
    return schema, arrays


def _check_schema(schema: Any, sizes: dict[str, int], most_bytes: int) -> None:
    """Raise for types that are not on our list, deep nesting, and too many or too large objects.

    Args:
        schema: Content of the part.
        sizes: Sizes of its files in bytes.
        most_bytes: Maximum size of all arrays, each counted as often as it occurs.
    """
    if not isinstance(schema, dict) or schema.get("protocol", 0) < _PROTOCOL:
        raise ValueError("a schema of an older protocol")  # older protocols have laxer rules
    level: list[Any] = [schema]
    depth = n_nodes = n_bytes = 0
    while level:
        for node in level:
            if isinstance(node, dict) and "__loader__" in node:
                loader, name = str(node["__loader__"]), f"{node.get('__module__')}.{node.get('__class__')}"
                if name not in _TRUSTED.get(loader, ()):
                    raise ValueError(f"it holds {name:.100} ({loader:.40}), which is not on the list")
                n_nodes += 1
                n_bytes += sizes.get(str(node.get("file")), 0)
        level = _children(level)
        depth += 1
        if depth > _DEEPEST_JSON:
            raise ValueError(f"it is nested deeper than {_DEEPEST_JSON} levels")
        if n_nodes > _MOST_NODES:
            raise ValueError(f"it holds more than {_MOST_NODES:,} objects")
        if n_bytes > most_bytes:
            raise ValueError("it repeats its arrays too often")


def _children(level: list[Any]) -> list[Any]:
    """Return the JSON objects and lists directly inside those of a level."""
    return [
        child
        for node in level
        if isinstance(node, dict | list)
        for child in (node.values() if isinstance(node, dict) else node)
        if isinstance(child, dict | list)
    ]


def _check_array(name: str, content: bytes) -> None:
    """Raise for an array whose header does not match its data, or that holds objects."""
    buffer = io.BytesIO(content)
    version = np.lib.format.read_magic(buffer)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read[version](buffer)
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"array {name:.40} of dtype {dtype!s:.60}")
    if math.prod(shape) * dtype.itemsize != len(content) - buffer.tell():
        raise ValueError(f"array {name:.40} claims shape {shape!s:.60}, but has {len(content)} bytes")


def _check_trees(model: Any) -> None:
    """Raise for trees that leave their nodes or columns: scikit-learn follows them without checks."""
    n_trees = 1 if isinstance(model, HistGradientBoostingRegressor) or len(model.classes_) < 3 else None
    n_trees = n_trees or len(model.classes_)
    if model.n_trees_per_iteration_ != n_trees or model._baseline_prediction.shape != (1, n_trees):
        raise ValueError(f"{model.n_trees_per_iteration_} trees at once instead of {n_trees}")
    if not np.isfinite(model._baseline_prediction).all():
        raise ValueError("a baseline that is NaN or infinite")
    if model._preprocessor is not None or len(model._bin_mapper.is_categorical_) != model.n_features_in_:
        raise ValueError("columns that do not fit the trees")
    for trees in model._predictors:
        if len(trees) != n_trees:
            raise ValueError(f"{len(trees)} trees instead of {n_trees}")
        for tree in trees:
            nodes = tree.nodes
            inner = nodes[nodes["is_leaf"] == 0]
            own = np.flatnonzero(nodes["is_leaf"] == 0)
            if (
                nodes.ndim != 1
                or not len(nodes)
                or not np.isfinite(nodes["value"]).all()
                or inner["is_categorical"].any()
                or not _within(inner["feature_idx"], 0, model.n_features_in_)
                or not _within(inner["left"], own + 1, len(nodes))
                or not _within(inner["right"], own + 1, len(nodes))
            ):
                raise ValueError("a tree that leads out of its nodes or columns, or to no number")


def _within(values: np.ndarray, low: Any, high: int) -> bool:
    """Return whether all values are at least ``low`` and below ``high``; children come after their parent."""
    return bool(((values >= low) & (values < high)).all())


def _skops() -> Any:
    try:
        import skops.io
    except ModuleNotFoundError as error:
        raise missing_package("Files with models of scikit-learn", "tables", error.name) from error
    return skops.io


def encode(name: str, value: Any) -> Any:
    """Convert a value to JSON; tuples, dicts and objects of ours are marked as such."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = [encode(name, item) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {"dict": [[encode(name, k), encode(name, v)] for k, v in value.items()]}
    kind = type(value).__name__
    if type(value) is _OBJECTS.get(kind):
        arguments = inspect.signature(type(value)).parameters
        return {kind: {key: encode(name, getattr(value, key)) for key in arguments}}
    if isinstance(value, torch.device):
        return str(value)
    raise TypeError(
        f"The parameter {name}={value!r:.60} ({type(value).__name__}) cannot be saved safely. A file holds "
        f"numbers, strings, tuples, lists and dicts. Set {name} to one of these and save again."
    )


def decode(value: Any) -> Any:
    """Invert `encode`."""
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
    return _OBJECTS[kind](**content)


def encode_labels(labels: np.ndarray) -> dict[str, Any]:
    """Convert class labels with their dtype: whole or real numbers, strings, booleans."""
    values = labels.tolist()
    if any(not isinstance(value, (bool, int, float, str)) for value in values):
        odd = next(value for value in values if not isinstance(value, (bool, int, float, str)))
        raise TypeError(
            f"Class labels of type {type(odd).__name__} cannot be saved safely. Use strings, "
            "numbers or booleans as labels."
        )
    return {"dtype": labels.dtype.str, "values": values}


def decode_labels(state: dict[str, Any]) -> np.ndarray:
    """Invert `encode_labels`; strings get the length of the longest, whatever the dtype says."""
    name, values = state["dtype"], state["values"]
    kind = np.dtype(name).kind if isinstance(name, str) else "?"
    if kind not in "biufUO":
        raise TypeError(f"labels of dtype {name!r}")
    odd = [value for value in values if not isinstance(value, (bool, int, float, str))]
    if not isinstance(values, list) or odd:
        raise TypeError("labels that are not a list of strings, numbers or booleans")
    if kind == "U":
        longest = max((len(str(value)) for value in values), default=0)
        if longest * len(values) > _MOST_CHARACTERS:  # each label takes the space of the longest
            raise ValueError(f"{len(values)} labels of up to {longest} characters")
        return np.array(values, dtype=str)
    return np.array(values, dtype=np.dtype(name))


def savable_parts(estimator: Any) -> tuple[TablePreprocessor | None, Any, list[str]]:
    """Return the preprocessor, if any, the estimator, and the names of the steps."""
    steps = estimator.steps if isinstance(estimator, Pipeline) else [("", estimator)]
    names, parts = [name for name, _ in steps], [part for _, part in steps]
    if type(parts[-1]) in _ESTIMATORS.values() or _is_savable_model(parts[-1]):
        if len(parts) == 1:
            return None, parts[0], names
        if len(parts) == 2 and type(parts[0]) is TablePreprocessor:
            return parts[0], parts[1], names
    raise TypeError(
        "save accepts EllipticClassifier, EllipticRegressor, HistGradientBoosting, LogisticRegression, "
        f"Ridge, or a pipeline of TablePreprocessor and one of them, but got {_kind(estimator)}. "
        f"{_remedy(estimator, parts)}"
    )


def _is_savable_model(model: Any) -> bool:
    """Return whether a scikit-learn model, also inside a log of the target, can be saved."""
    if type(model) is TransformedTargetRegressor:
        inner = getattr(model, "regressor_", model.regressor)
        return type(inner) in (HistGradientBoostingRegressor, Ridge)
    return type(model) in (*_TREES, *_LINEAR)


def _kind(estimator: Any) -> str:
    """Return the type of an object; for a pipeline, also of its steps."""
    name = type(estimator).__name__
    if not isinstance(estimator, Pipeline):
        return name
    return f"{name} of {', '.join(type(part).__name__ for _, part in estimator.steps)}"


def _remedy(estimator: Any, parts: list[Any]) -> str:
    """Say how to save what can be saved of an unsupported object."""
    if type(estimator).__name__.endswith("SearchCV"):
        return "Save the estimator that the search chose: save(search.best_estimator_, path)."
    if len(parts) > 1 and isinstance(parts[-1], EllipticEstimator):
        return (
            "The network alone can be saved: save(pipeline[-1], path). It then expects rows as the steps "
            "before it return them. For the whole pipeline use joblib, whose files must be trusted."
        )
    return "For other objects use joblib, whose files must be trusted."
