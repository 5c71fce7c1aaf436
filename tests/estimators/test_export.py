"""Exported graphs predict what models predict, for every number of rows, and only what they can."""

import json

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from elliptica.estimators import (
    EllipticClassifier,
    EllipticRegressor,
    TablePreprocessor,
    export,
    numeric_rows,
    save,
)
from elliptica.estimators import graph as graph_module

QUICK = {"hidden": (8,), "max_iter": 3, "random_state": 0}
N = 300
LOG = {"func": np.log, "inverse_func": np.exp}
A = np.random.default_rng(0).normal(size=N)
#: Numbers with heavy tails and gaps, far from zero, or none; categories with rare, missing and many values.
FRAME = pl.DataFrame(
    {
        "kind": [f"k{i % 3}" if i % 11 else None for i in range(N)],
        "number": A,
        "heavy": np.exp(3 * A[::-1]),
        "gaps": [None if i % 7 == 0 else 1e9 + i % 13 for i in range(N)],
        "many": [f"m{i % 130}" for i in range(N)],
        "empty": [None] * N,
        "rare": ["a", "b", "c", *["d"] * (N - 3)],
    }
)
CLASSES, LABELS = np.array(["no", "maybe", "yes"])[np.arange(N) % 3], np.stack([A > 0, A > 1], 1).astype(int)
MODELS = {
    "regressor": (EllipticRegressor(n_networks=3, bins=4, **QUICK), A),
    "log": (EllipticRegressor(target_transform="log", **QUICK), np.exp(A)),
    "two targets": (EllipticRegressor(bounded=False, n_networks=2, **QUICK), np.stack([A, 5 + 3 * A**2], 1)),
    "classes": (EllipticClassifier(n_networks=2, calibrate="temperature", **QUICK), CLASSES),
    "labels": (EllipticClassifier(n_networks=2, **QUICK), LABELS),
    "module": (EllipticRegressor(module=nn.Sequential(nn.LazyLinear(1), nn.Dropout()), **QUICK), A),
    "log ridge": (TransformedTargetRegressor(make_pipeline(StandardScaler(), Ridge()), **LOG), np.exp(A)),
    "two": (make_pipeline(StandardScaler(), LogisticRegression()), A > 0),
    "three": (LogisticRegression(), CLASSES),
}
COLUMNS = FRAME.select("number", "heavy").fill_null(0.0).to_numpy()
#: Models without a `TablePreprocessor` in front, and one of categories alone.
OTHERS = {
    "float32": (LogisticRegression(), COLUMNS.astype(np.float32)),
    "not centred": (make_pipeline(StandardScaler(with_mean=False), LogisticRegression()), COLUMNS),
    "not scaled": (make_pipeline(StandardScaler(with_std=False), LogisticRegression()), COLUMNS),
    "categories": (make_pipeline(TablePreprocessor(), LogisticRegression()), FRAME.select("kind", "rare")),
}


def run(path, rows):
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(torch.from_numpy(rows)).numpy()
    import onnxruntime

    return onnxruntime.InferenceSession(path).run(None, {"rows": rows})[0]


@pytest.fixture(params=[".pt2", ".onnx"])
def suffix(request):
    if request.param == ".onnx":
        for name in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(name)
    return request.param


@pytest.mark.filterwarnings("ignore:All .* held-out rows", "ignore:overflow")
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_graph_predicts_what_the_model_predicts(tmp_path, name, suffix):
    model, y = MODELS[name]
    scale = "standard" if name == "three" else "robust"
    pipeline = make_pipeline(TablePreprocessor(scale=scale), model).fit(FRAME, y)
    saved = save(pipeline, tmp_path / "a") if name in ("regressor", "classes", "three") else pipeline
    path = export(saved, tmp_path / f"a{suffix}")
    unknown = FRAME[:5].with_columns(kind=pl.lit("?"), rare=pl.lit(None, pl.String), number=pl.lit(1e6))
    rounding = 2e-5 if isinstance(model, EllipticRegressor | EllipticClassifier) else 1e-12
    for frame in (FRAME, FRAME[7:8], unknown):
        wanted = getattr(pipeline, "predict_proba", pipeline.predict)(frame)
        given = run(path, numeric_rows(pipeline, frame))
        assert given.shape == wanted.shape
        assert given == pytest.approx(wanted, rel=rounding, abs=rounding)


@pytest.mark.parametrize("name", OTHERS)
def test_other_inputs_and_scales(tmp_path, name):
    model, rows = OTHERS[name]
    model.fit(rows, CLASSES)
    given = run(export(model, tmp_path / "a.pt2"), numeric_rows(model, rows))
    assert given == pytest.approx(model.predict_proba(rows), abs=1e-6)


@pytest.mark.slow
def test_a_gap_where_training_had_none_gives_no_number(tmp_path, suffix):
    model = EllipticRegressor(**QUICK).fit(FRAME[["number"]].to_numpy(), A)
    path = export(model, tmp_path / f"a{suffix}")
    assert np.isnan(run(path, np.array([[np.nan], [0.0]]))).tolist() == [True, False]


def test_the_file_lists_columns_categories_and_classes(tmp_path):
    frame = FRAME.select("kind", "number")
    pipeline = make_pipeline(TablePreprocessor(), LogisticRegression()).fit(frame, CLASSES)
    about = {"elliptica.json": ""}
    torch.export.load(export(pipeline, tmp_path / "a.pt2"), extra_files=about)
    kind = {"name": "kind", "categories": ["(missing)", "k0", "k1", "k2"]}
    wanted = {"columns": [kind, {"name": "number"}], "classes": ["maybe", "no", "yes"]}
    assert json.loads(about["elliptica.json"]) == wanted
    new = pl.DataFrame({"kind": ["k2", None, "?"], "number": [None, 1.5, 2.0]})
    assert np.array_equal(numeric_rows(pipeline, new), [[3, np.nan], [0, 1.5], [-1, 2.0]], equal_nan=True)


def test_a_graph_that_predicts_something_else_is_not_kept(tmp_path, monkeypatch):
    pipeline = make_pipeline(TablePreprocessor(scale="robust"), Ridge()).fit(FRAME.select("heavy"), A)
    export(pipeline, tmp_path / "a.pt2")
    before = (tmp_path / "a.pt2").read_bytes()
    monkeypatch.setattr(graph_module, "BOUND", 3.01)
    with pytest.raises(ArithmeticError):
        export(pipeline, tmp_path / "a.pt2")
    assert (tmp_path / "a.pt2").read_bytes() == before


def test_what_is_not_arithmetic_raises(tmp_path):
    dates = pl.DataFrame({"day": pl.date_range(pl.date(2020, 1, 1), pl.date(2020, 12, 1), eager=True)})
    y = np.arange(len(dates)) % 5.0
    with_dates = make_pipeline(TablePreprocessor(), Ridge()).fit(dates, y)
    with pytest.raises(TypeError, match="date"):
        export(with_dates, tmp_path / "a.pt2")
    export(with_dates[-1], tmp_path / "a.pt2")
    trees = HistGradientBoostingRegressor(max_iter=2).fit(A[:, None], A)
    with pytest.raises(TypeError, match="HistGradientBoostingRegressor"):
        export(trees, tmp_path / "b.pt2")
    with pytest.raises(ValueError, match="out"):
        export(with_dates[-1], tmp_path / "b.txt")
