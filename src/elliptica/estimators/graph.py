"""Export trained networks and linear models, with their preprocessing, to ONNX or as a program of torch."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.extras import import_extra
from elliptica._utils.files import replacing
from elliptica.estimators.base import EllipticEstimator, check_table
from elliptica.estimators.files import answers, load, probe
from elliptica.estimators.preprocess import BOUND, MISSING, TablePreprocessor, read_column

_UNKNOWN = "\0unknown"  # no table has this category
_FAR = 1e9  # beyond it, a squashed number does not change, but its square may overflow
_Run = Callable[[np.ndarray], np.ndarray]


def export(model: Any, out: str | Path) -> Path:
    """Write a trained model as a graph that predicts without elliptica and scikit-learn.

    The graph maps float64 numbers ``(rows, columns)``, for any number of rows, to what ``predict_proba`` or,
    for real targets, ``predict`` returns. It includes the preprocessing. Each column of the table is one
    number: NaN for a gap, and for a category its place in the list of the file, or -1 for one that is not
    there. `numeric_rows` returns such rows of a table. Names of columns, categories and classes are in the
    file as JSON: metadata ``"elliptica"`` of ONNX, extra file ``"elliptica.json"`` of torch.

    Networks compute in float32. Before the file replaces another one, its predictions are compared with those
    of the model, on known and unknown values, on many rows and on one.

    Args:
        model: `EllipticClassifier`, `EllipticRegressor`, scikit-learn's ``LogisticRegression`` or ``Ridge``,
            a pipeline of `TablePreprocessor` or ``StandardScaler`` and one of them, or a saved file.
        out: File to write: ``.onnx`` (extra ``onnx``), or ``.pt2`` for ``torch.export.load``, which may run
            code of a file, so load only your own.

    Raises:
        TypeError: If a step is not arithmetic: trees, averages, columns of dates or free text. With such
            columns, export ``pipeline[-1]``, and call ``pipeline[:-1].transform`` before the graph.

    Example:
        >>> import tempfile
        >>> from elliptica.estimators import EllipticRegressor
        >>> model = EllipticRegressor(max_iter=2).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     program = torch.export.load(export(model, Path(folder) / "a.pt2")).module()
        >>> program(torch.tensor([[0.5]]).double()).shape
        torch.Size([1])
    """
    model, out = load(model) if isinstance(model, str | Path) else model, Path(out)
    checks.choice("out", out.suffix, [".onnx", ".pt2"])
    table = probe(model)
    graph, rows, expected = (
        _graph(model).eval().requires_grad_(False),
        numeric_rows(model, table),
        answers(model, table),
    )
    classes = model.classes_.tolist() if hasattr(model, "classes_") else None
    about = json.dumps({"columns": _columns(model), "classes": classes})
    with replacing(out) as part:
        run = (_write_onnx if out.suffix == ".onnx" else _write_program)(graph, rows, about, part)
        for n in (1, len(rows)):
            least = 1e-5 * np.median(np.abs(expected))
            if not np.allclose(run(rows[:n]), expected[:n], rtol=1e-4, atol=least):
                raise ArithmeticError(f"The exported {type(model).__name__} predicts something else.")
    return out


def numeric_rows(model: Any, X: Any) -> np.ndarray:
    """Convert a table to the rows that the exported graph of a model reads, see `export`."""
    if not isinstance(table := _first(model), TablePreprocessor):
        return np.asarray(check_table(model, X, reset=False), dtype=np.float64)
    numbers = []
    parts = zip(table._columns(X, reset=False), table.kinds_, _columns(model), strict=True)
    for series, kind, about in parts:
        values = read_column(series, kind)[:, 0]
        if kind == "category":
            places = {name: place for place, name in enumerate(about["categories"])}
            values = np.array([places.get(value, -1) for value in values])
        numbers.append(values)
    return np.column_stack(numbers).astype(np.float64)


def _columns(model: Any) -> list[dict[str, Any]]:
    """Return the names of the input columns, and the categories of those that have some."""
    table = _first(model)
    names = getattr(table, "feature_names_in_", [f"x{j}" for j in range(table.n_features_in_)])
    columns: list[dict[str, Any]] = [{"name": str(name)} for name in names]
    for column, encoder in zip(columns, getattr(table, "encoders_", ()), strict=False):
        if hasattr(encoder, "categories_"):
            column["categories"] = encoder.categories_[0].tolist()
    return columns


def _first(model: Any) -> Any:
    return model[0] if isinstance(model, Pipeline) else model


def _graph(model: Any) -> nn.Module:
    """Return a module that predicts as the model does."""
    if isinstance(model, Pipeline):
        return nn.Sequential(*(_graph(step) for _, step in model.steps))
    if isinstance(model, TablePreprocessor) and not model.native:
        return _Columns(model)
    if isinstance(model, EllipticEstimator):
        return _Network(model)
    if isinstance(model, StandardScaler):
        middle = model.mean_ if model.with_mean else 0.0
        scale = model.scale_ if model.with_std else 1.0
        return _Step(lambda rows: (rows - torch.as_tensor(middle)) / torch.as_tensor(scale))
    if isinstance(model, TransformedTargetRegressor) and model.inverse_func is np.exp:
        return nn.Sequential(_graph(model.regressor_), _Step(torch.exp))
    if isinstance(model, LogisticRegression | Ridge):
        return _Step(lambda rows: _linear(model, rows))
    raise TypeError(f"{type(model).__name__} cannot be exported.")


class _Step(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, rows: Tensor) -> Tensor:
        return self.function(rows)


class _Network(nn.Module):
    """An estimator of this package."""

    def __init__(self, model: EllipticEstimator) -> None:
        super().__init__()
        self.model, self.networks = model, copy.deepcopy(nn.ModuleList(model._networks())).cpu()

    def forward(self, rows: Tensor) -> Tensor:
        scaled = (rows - torch.as_tensor(self.model.x_mean_)) / torch.as_tensor(self.model.x_scale_)
        outputs = torch.stack([network(scaled.float()) for network in self.networks])
        return self.model._answers(outputs.double())


def _linear(model: Any, rows: Tensor) -> Tensor:
    outputs = rows @ torch.as_tensor(model.coef_.T).double() + torch.as_tensor(model.intercept_)
    if isinstance(model, Ridge):
        return outputs
    if len(model.classes_) == 2:  # the logit of the second one
        outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
    return outputs.softmax(1)


class _Columns(nn.Module):
    """The columns of a table as `TablePreprocessor` encodes them; categories look their numbers up."""

    def __init__(self, table: TablePreprocessor) -> None:
        super().__init__()
        kinds = list(table.kinds_)
        if others := {*kinds} - {"number", "category"}:
            raise TypeError(f"The table has columns of kind {others.pop()}. Export pipeline[-1] instead.")
        self.numbers = [k for k, kind in enumerate(kinds) if kind == "number"]
        bounds, gaps = ([table.encoders_[k][step] for k in self.numbers] for step in range(2))
        self.middle, self.spread = _pairs(each.squash_ or (0, 1) for each in bounds)
        self.low, self.high = _pairs(each.clip_ or (-np.inf, np.inf) for each in bounds)
        self.heavy = torch.tensor([each.squash_ is not None for each in bounds], dtype=torch.bool)
        self.filled = torch.tensor([each.statistics_[0] for each in gaps], dtype=torch.float64)
        self.marked = [place for place, each in enumerate(gaps) if len(each.indicator_.features_)]
        self.codes = [k for k, kind in enumerate(kinds) if kind == "category"]
        self.missing, self.values = [], []
        for encoder in (table.encoders_[k] for k in self.codes):
            names = [*encoder.categories_[0], _UNKNOWN]
            self.missing.append(float(names.index(MISSING)) if MISSING in names else -1.0)
            self.values.append(torch.from_numpy(encoder.transform(np.array(names, dtype=object)[:, None])))
        places = [*self.numbers, *(self.numbers[place] for place in self.marked)]
        for k, values in zip(self.codes, self.values, strict=True):
            places += [k] * values.shape[1]
        self.order = torch.tensor(places).argsort(stable=True)

    def forward(self, rows: Tensor) -> Tensor:
        x = rows[:, self.numbers]
        gap = x.isnan()
        z = ((x - self.middle) / self.spread).clamp(-_FAR, _FAR)
        squashed = z / (1 + (z / BOUND).square()).sqrt()
        x = torch.where(self.heavy, squashed, torch.minimum(torch.maximum(x, self.low), self.high))
        parts = [torch.where(gap, self.filled, x), gap[:, self.marked].double()]
        for k, missing, values in zip(self.codes, self.missing, self.values, strict=True):
            code, unknown = torch.where(rows[:, k].isnan(), missing, rows[:, k]), len(values) - 1
            parts.append(values[torch.where((code >= 0) & (code < unknown), code, unknown).long()])
        return torch.cat(parts, 1)[:, self.order]


def _pairs(values: Iterable[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    first, second = torch.tensor([*values], dtype=torch.float64).view(-1, 2).T
    return first, second


def _shapes() -> Any:
    """Any number of rows. Not a constant: it takes torch half a second to import what this needs."""
    return ({0: torch.export.Dim("n_rows", min=1)},)


def _write_program(graph: nn.Module, rows: np.ndarray, about: str, part: Path) -> _Run:
    """Write a program of torch, read it, and return what it predicts."""
    example = torch.from_numpy(rows)
    program = torch.export.export(graph, (example,), dynamic_shapes=_shapes())
    with part.open("wb") as file:
        torch.export.save(program, file, extra_files={"elliptica.json": about})
    with part.open("rb") as file:
        again = torch.export.load(file).module()
    return lambda x: again(torch.from_numpy(x)).numpy()


def _write_onnx(graph: nn.Module, rows: np.ndarray, about: str, part: Path) -> _Run:
    """Write an ONNX file, and return what onnxruntime predicts."""
    runtime = import_extra("export", "onnx", "onnx", "onnxscript", "onnxruntime")
    names: Any = {"input_names": ["rows"], "output_names": ["predictions"]}
    program = torch.onnx.export(
        graph, (torch.from_numpy(rows),), dynamic_shapes=_shapes(), dynamo=True, verbose=False, **names
    )
    assert program is not None
    program.model.metadata_props["elliptica"] = about
    program.save(part, external_data=False)
    session = runtime.InferenceSession(part)
    return lambda x: session.run(None, {"rows": x})[0]
