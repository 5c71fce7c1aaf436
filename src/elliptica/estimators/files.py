"""Save trained estimators in one safe file by skops: no pickle, one list of trusted types, a size limit."""

from __future__ import annotations

import copy
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import skops.io
import torch
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from elliptica._utils.files import replacing
from elliptica.estimators.base import EllipticEstimator, ModuleLike
from elliptica.estimators.preprocess import TablePreprocessor
from elliptica.estimators.wrapped import Average

#: Maximum size of the contents of a file, in bytes.
MAX_BYTES = 2**31
_FORMAT = "elliptica estimator 6"
_HGB = "sklearn.ensemble._hist_gradient_boosting"
#: Types that a file may hold, besides those that skops itself trusts: parts of scikit-learn and NumPy.
_TRUSTED = {
    "elliptica.core.noise": ["Green"],
    "elliptica.core.partners": ["InverseDistance", "LabelKernel", "Nearest", "Permutation"],
    "elliptica.core.weighting": ["Girsanov", "GradientNorm", "GradientSoftmax", "Multiplicative"],
    "elliptica.estimators.classifier": ["EllipticClassifier"],
    "elliptica.estimators.regressor": ["EllipticRegressor"],
    "elliptica.estimators.preprocess": ["Bounds", "Dates", "TablePreprocessor", "TextDirections"],
    "elliptica.estimators.wrapped": ["Average", "Booster"],
    "functools": ["partial"],  # of a function that is trusted itself
    "numpy": ["dtype"],
    f"{_HGB}.binning": ["_BinMapper"],
    f"{_HGB}.predictor": ["TreePredictor"],
    "sklearn._loss.link": ["IdentityLink", "Interval", "LogitLink", "MultinomialLogit"],
    "sklearn._loss.loss": ["HalfBinomialLoss", "HalfMultinomialLoss", "HalfSquaredError"],
    "sklearn.model_selection._split": ["KFold"],
    "sklearn.utils.validation": ["check_array"],
}
TRUSTED = [f"{module}.{name}" for module, names in _TRUSTED.items() for name in names]


def save(estimator: Any, path: str | Path, *, notes: dict[str, Any] | None = None) -> Path:
    """Save a trained estimator in one file that is safe to load.

    The file is read back before it replaces another one, and its predictions are compared with those of the
    estimator. It does not contain the code of your own ``module`` (pass it to `load` again). Categories and
    class labels are stored as text.

    Args:
        estimator: `EllipticClassifier`, `EllipticRegressor`, scikit-learn's boosted trees or linear models,
            `Booster`, a pipeline of `TablePreprocessor` and one of these, or an `Average` of such pipelines.
            For a grid search, pass ``best_estimator_``.
        path: File to write, by convention ``something.elliptica``; an existing file is replaced.
        notes: Your own values that JSON can store, for `read_notes`; `load` ignores them.

    Raises:
        TypeError: If the estimator holds something that a safe file cannot.

    Example:
        >>> import tempfile
        >>> from elliptica.estimators import EllipticClassifier
        >>> model = EllipticClassifier(max_iter=2).fit([[0.0], [1.0]], ["a", "b"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save(model, Path(folder) / "a.elliptica", notes={"units": "metres"})
        ...     bool((load(path).predict([[0.5]]) == model.predict([[0.5]])).all()), read_notes(path)
        (True, {'units': 'metres'})
    """
    path, models = Path(path), _models(estimator)
    for model in models:
        check_is_fitted(model)
    content = {"format": _FORMAT, "notes": json.dumps(notes or {}), "model": _pack(estimator)}
    with replacing(path) as part:
        skops.io.dump(content, part, compression=zipfile.ZIP_DEFLATED)
        try:
            again = load(part, module=getattr(models[0], "module", None))
            same = all(map(_agree, [estimator, *models], [again, *_models(again)]))
        except (ValueError, AttributeError) as error:
            raise TypeError(f"{type(estimator).__name__} cannot be saved safely: {error}") from error
        if not same:
            raise TypeError(f"{type(estimator).__name__} cannot be saved: its copy predicts something else.")
    return path


def can_save(estimator: Any) -> bool:
    """Return whether a file may hold all types of a trained estimator."""
    try:
        return set(skops.io.get_untrusted_types(data=skops.io.dumps(estimator))) <= set(TRUSTED)
    except Exception:  # types may refuse to be written in any way
        return False


def load(path: str | Path, *, module: ModuleLike | None = None) -> Any:
    """Load an estimator that `save` wrote. Nothing in the file is executed, so it may come from anybody.

    Trees of CatBoost, LightGBM and XGBoost are read by these libraries, which do not promise as much.

    Args:
        path: The file.
        module: For an estimator with its own ``module``: that module, or the function that creates it.

    Raises:
        ValueError: If the file has another format or is damaged, or its model predicts no numbers.
    """
    return load_with_notes(path, module=module)[0]


def read_notes(path: str | Path) -> dict[str, Any]:
    """Return the notes that were passed to `save`; empty if there were none."""
    return load_with_notes(path)[1]


def load_with_notes(path: str | Path, *, module: ModuleLike | None = None) -> tuple[Any, dict[str, Any]]:
    """Return the estimator and the notes of a file, see `load`."""
    path = Path(path)
    path.open("rb").close()  # a missing file is an OSError, a damaged one is not
    try:
        with zipfile.ZipFile(path) as file:
            if (size := sum(info.file_size for info in file.infolist())) > MAX_BYTES:
                raise ValueError(f"it unpacks to {size:,} bytes")
        content = skops.io.load(path, trusted=TRUSTED)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError("it has another format")
        estimator, notes = content["model"], json.loads(content["notes"])
        for model in _models(estimator):
            if isinstance(model, EllipticEstimator):
                _unpack(model, module)
            _check(model)
        return estimator, dict(notes)
    except ModuleNotFoundError:  # of a library that trained the model
        raise
    except Exception as error:  # a changed file can fail in any way
        raise ValueError(f"{path} is not a saved estimator, or was changed: {error!s:.300}") from error


def _models(estimator: Any) -> list[Any]:
    """Return the last steps of pipelines, of all parts of an average."""
    if isinstance(estimator, Average):
        return [model for part in estimator.models for model in _models(part)]
    return [estimator[-1] if isinstance(estimator, Pipeline) else estimator]


def _pack(model: Any) -> Any:
    """Return a shallow copy with weights as arrays instead of networks."""
    if isinstance(model, Average):
        return Average(models=[_pack(part) for part in model.models], weights=model.weights)
    if isinstance(model, Pipeline):
        return Pipeline([*model.steps[:-1], (model.steps[-1][0], _pack(model[-1]))])
    if not isinstance(model, EllipticEstimator):
        return model
    packed = copy.copy(model)
    packed.device, packed.module, packed._has_module = "cpu", None, model.module is not None
    packed._weights = [
        {name: value.cpu().numpy() for name, value in network.state_dict().items()}
        for network in model._networks()
    ]
    del packed.module_
    return packed


def _unpack(model: EllipticEstimator, module: ModuleLike | None) -> None:
    """Build the networks of an estimator, and fill them with the weights of the file."""
    if (module is not None) != model._has_module:
        raise ValueError("the estimator was trained with its own module; pass load(path, module=...), or not")
    model.module, networks = module, []
    for state in model.__dict__.pop("_weights"):
        with torch.random.fork_rng(devices=[]):
            network = model._new_network()
        network.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
        if not all(bool(torch.isfinite(part).all()) for part in network.parameters()):
            raise ValueError("weights are NaN or infinite")
        networks.append(network)
    model._set_networks(networks)


def _check(model: Any) -> None:
    """Raise for a model that predicts no numbers, or reads beyond its arrays."""
    for part in [model, *getattr(model, "named_steps", {}).values(), getattr(model, "regressor_", None)]:
        for tree in (tree for trees in getattr(part, "_predictors", ()) for tree in trees):
            _check_tree(tree, part._n_features, part._bin_mapper.is_categorical_)
    if not np.isfinite(answers(model, probe(model))).all():
        raise ValueError("predictions are NaN or infinite")


def _check_tree(tree: Any, n_features: int, codes: np.ndarray) -> None:
    """Raise for a tree that leaves its nodes or columns: scikit-learn follows it without checks."""
    nodes = tree.nodes
    inner = np.flatnonzero(nodes["is_leaf"] == 0)
    by_code = inner[nodes["is_categorical"][inner] == 1]
    children = np.concatenate([nodes["left"][inner], nodes["right"][inner]])
    if (
        not np.isfinite(nodes["value"]).all()
        or not ((nodes["feature_idx"][inner] >= 0) & (nodes["feature_idx"][inner] < n_features)).all()
        or (children <= np.tile(inner, 2)).any()  # children come after their parent
        or (children >= len(nodes)).any()
        or len(codes) != n_features
        or not codes[nodes["feature_idx"][by_code]].all()
        or (nodes["bitset_idx"][by_code] >= len(tree.raw_left_cat_bitsets)).any()
        or tree.raw_left_cat_bitsets.shape[1:] != (8,)  # one bit per code below 256
    ):
        raise ValueError("a tree leads out of its nodes or columns, or to no number")


def probe(model: Any) -> Any:
    """Return rows around the training rows, or a frame with values of all kinds of columns."""
    if isinstance(model, Average):
        return probe(model.models[0])
    first = model[0] if isinstance(model, Pipeline) else model
    if isinstance(first, TablePreprocessor):
        return first.probe()
    mean = getattr(first, "x_mean_", getattr(first, "mean_", 0.0))
    scale = getattr(first, "x_scale_", getattr(first, "scale_", float(hasattr(model, "coef_"))))
    scale = 1.0 if scale is None else scale  # StandardScaler(with_std=False)
    rows = mean + scale * np.random.default_rng(0).normal(size=(16, model.n_features_in_))
    names = getattr(model, "feature_names_in_", None)
    return rows if names is None else pl.DataFrame(rows, schema=list(names))


def answers(model: Any, rows: Any) -> np.ndarray:
    """Return probabilities, or predicted numbers."""
    return np.asarray(getattr(model, "predict_proba", model.predict)(rows))


def _agree(model: Any, other: Any) -> bool:
    rows = probe(model)
    return np.array_equal(answers(model, rows), answers(other, rows))
