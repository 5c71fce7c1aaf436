"""Files: what is saved predicts the same when loaded, and what was changed is refused."""

import datetime
import json
import os
import shutil
import zipfile

import numpy as np
import polars as pl
import pytest
import skops.io
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import nn

from elliptica import GradientSoftmax, Green, InverseDistance, Multiplicative
from elliptica.estimators import (
    EllipticClassifier,
    EllipticRegressor,
    TablePreprocessor,
    load,
    read_notes,
    save,
)
from elliptica.estimators import files as files_module

QUICK = {"hidden": (8,), "max_iter": 2, "random_state": 0}
LOG = {"func": np.log, "inverse_func": np.exp}


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(40, 3))


def frame_of(x):
    """A frame with columns of all kinds."""
    days = [datetime.datetime(2020, 1, 1) + datetime.timedelta(hours=31 * i) for i in range(len(x))]
    return pl.DataFrame(
        {
            "number": x[:, 0],
            "gaps": [None if i % 7 == 0 else float(v) for i, v in enumerate(x[:, 1])],
            "kind": [f"k{i % 3}" if i else None for i in range(len(x))],
            "rare": [f"r{i // 4}" for i in range(len(x))],
            "day": [None, *days[1:]],
            "text": [f"a remark about house {i % 5} and the lake {i}" for i in range(len(x))],
        }
    )


MODELS = {
    "regressor": lambda x: EllipticRegressor(n_networks=2, **QUICK).fit(x, x[:, 0]),
    "bins": lambda x: EllipticRegressor(n_networks=2, bins=4, **QUICK).fit(x, x[:, 0]),
    "two targets": lambda x: EllipticRegressor(target_transform="log", **QUICK).fit(x, np.exp(x[:, :2])),
    "linear": lambda x: EllipticRegressor(**{**QUICK, "hidden": ()}).fit(x, x[:, 0]),
    "multilabel": lambda x: EllipticClassifier(**QUICK).fit(x, (x > 0).astype(int)),
    "calibrated": lambda x: EllipticClassifier(
        calibrate="temperature", validation_fraction=0.4, early_stopping=True, **QUICK
    ).fit(x, x[:, 2] > 0),
    "trees": lambda x: HistGradientBoostingRegressor(max_iter=3).fit(x, x[:, 0]),
    "three classes": lambda x: HistGradientBoostingClassifier(max_iter=3).fit(x, np.arange(40) % 3),
    "log trees": lambda x: TransformedTargetRegressor(HistGradientBoostingRegressor(max_iter=3), **LOG).fit(
        x, np.exp(x[:, 0])
    ),
    "ridge": lambda x: make_pipeline(StandardScaler(), Ridge()).fit(x, x[:, 0]),
    "logistic": lambda x: LogisticRegression().fit(x, np.where(x[:, 0] > 0, "yes", "no")),
}


@pytest.mark.filterwarnings("ignore:All .* held-out rows")
@pytest.mark.parametrize("name", MODELS)
def test_round_trip(tmp_path, x, name):
    model = MODELS[name](x)
    again = load(save(model, tmp_path / "m"))
    assert np.array_equal(again.predict(x), model.predict(x))
    if hasattr(model, "predict_proba"):
        assert np.array_equal(again.predict_proba(x), model.predict_proba(x))
    assert {k: str(v) for k, v in again.get_params().items()} == {
        k: str(v) for k, v in model.get_params().items()
    }
    for attribute in ("loss_curve_", "validation_curve_", "n_iter_", "best_iteration_", "ended_"):
        if isinstance(model, EllipticRegressor | EllipticClassifier):
            assert getattr(again, attribute) == getattr(model, attribute)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_columns_of_all_kinds(tmp_path, x):
    frame = frame_of(x)
    network, trees = EllipticRegressor(**QUICK), HistGradientBoostingRegressor(max_iter=3)
    for options, model in (({}, network), ({"scale": "robust"}, network), ({"native": True}, trees)):
        pipeline = make_pipeline(TablePreprocessor(**options, max_categories=20), model)
        pipeline.fit(frame, x[:, 0])
        assert pipeline[0].kinds_ == ["number", "number", "category", "category", "date", "text"]
        again = load(save(pipeline, tmp_path / "m"))
        new = frame.with_columns(pl.col("number") * 1e6, pl.lit("never seen").alias("rare"))
        for rows in (frame, new):
            assert np.array_equal(again.predict(rows), pipeline.predict(rows))
        with pytest.raises(ValueError, match="feature names"):
            again.predict(frame[:, ::-1])


@pytest.mark.parametrize(
    "options",
    [
        {"weighting": GradientSoftmax(0.5)},
        {"sampling": "path", "n_bridges": 2, "weighting": Multiplicative(xi=0.3)},
        {"pairing": InverseDistance(2.0), "sigma": Green(0.5)},
    ],
)
def test_pairings_and_weightings_are_saved(tmp_path, x, options):
    again = load(save(EllipticClassifier(**options, **QUICK).fit(x, x[:, 0] > 0), tmp_path / "m"))
    assert {name: getattr(again, name) for name in options} == options


def test_own_module_has_to_be_passed(tmp_path, x):
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    model = EllipticRegressor(module=net, **QUICK).fit(x, x[:, 0])
    file = save(model, tmp_path / "m")
    assert np.array_equal(load(file, module=net).predict(x), model.predict(x))
    for module in (None, nn.Linear(3, 1)):
        with pytest.raises(ValueError, match=r"module|state_dict"):
            load(file, module=module)


def test_notes(tmp_path, x):
    model = EllipticRegressor(**QUICK).fit(x, x[:, 0])
    notes = {"ü": [1, None, {"a": "<b>"}]}
    assert read_notes(save(model, tmp_path / "m", notes=notes)) == notes
    assert read_notes(save(model, tmp_path / "m")) == {}
    with pytest.raises(TypeError):
        save(model, tmp_path / "m", notes={"a": object()})
    assert read_notes(tmp_path / "m") == {}


class Own(KNeighborsClassifier):
    pass


def test_what_a_safe_file_cannot_hold_is_refused_and_nothing_is_lost(tmp_path, x):
    label = x[:, 0] > 0
    good = EllipticClassifier(**QUICK).fit(x, label)
    file = save(good, tmp_path / "m")
    sigma = EllipticClassifier(sigma=lambda *_: 0.1, **QUICK).fit(x, label)
    changed = EllipticClassifier(**QUICK).fit(x, label).set_params(hidden=(4,))
    function = make_pipeline(FunctionTransformer(os.path.join), EllipticClassifier(**QUICK))
    function.steps[-1] = ("m", good)
    broken = EllipticClassifier(**QUICK).fit(x, label)
    broken.x_scale_ = np.full(3, np.nan)
    for bad in (Own().fit(x, label), sigma, changed, function, broken):
        with pytest.raises((TypeError, ValueError)):
            save(bad, file)
        assert np.array_equal(load(file).predict(x), good.predict(x))
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


# -------------------------------------------------------------------------------------- changed files


def rewritten(model, path, change):
    """Save a model with other content, without the checks of `save`."""
    packed = files_module._pack(model) if hasattr(model, "module_") else model
    content = {"format": files_module._FORMAT, "notes": "{}", "model": packed}
    change(content, packed)
    skops.io.dump(content, path)
    return path


def set_to(name, value):
    def change(_content, model):
        setattr(model, name, value)

    return change


def weight(value):
    def change(_content, model):
        model._weights[0]["0.weight"][0, 0] = value

    return change


def drop_layer(_content, model):
    del model._weights[0]["0.bias"]


def shorten(_content, model):
    model._weights[0]["0.weight"] = model._weights[0]["0.weight"][:, :-1].copy()


NAN = np.full(3, np.nan)
CHANGES = {
    "weights are NaN": weight(np.nan),
    "weights are infinite": weight(np.inf),
    "a layer is missing": drop_layer,
    "a layer of another size": shorten,
    "statistics are NaN": set_to("x_mean_", NAN),
    "statistics of another size": set_to("x_mean_", np.zeros(2)),
    "no spread": set_to("x_scale_", np.zeros(3)),
    "bounds are NaN": set_to("y_max_", np.array([np.nan])),
    "statistics are text": set_to("x_mean_", "zero"),
    "other widths": set_to("hidden", (9,)),
    "other number of columns": set_to("n_features_in_", 4),
    "a claim of a huge network": set_to("hidden", (2**40,)),
    "a foreign object": set_to("random_state", Own()),
    "a foreign function": set_to("random_state", os.system),
    "another format": lambda content, _: content.update(format="something else"),
    "notes are not JSON": lambda content, _: content.update(notes="{"),
    "no model": lambda content, _: content.update(model=3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_networks_are_refused(tmp_path, x, name):
    model = EllipticRegressor(**QUICK).fit(x, x[:, 0])
    assert load(rewritten(model, tmp_path / "same", lambda *_: None))
    with pytest.raises(ValueError, match="bad"):
        load(rewritten(model, tmp_path / "bad", CHANGES[name]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("left", 10**6), ("right", 0), ("feature_idx", 3), ("feature_idx", -1)),
        *(("value", np.nan), ("is_categorical", 1), ("codes", 2), ("bitset_idx", 10**6)),
    ],
)
def test_trees_that_lead_elsewhere_are_refused(tmp_path, x, field, value):
    """scikit-learn follows them without checks, out of its arrays."""
    model, y = HistGradientBoostingRegressor(max_iter=2, min_samples_leaf=2), x[:, 0]
    if field in ("codes", "bitset_idx"):  # the first split is by category, which is column 0 of its own order
        x, y = np.column_stack([x[:, :2], np.arange(len(x)) % 3]), np.arange(len(x)) % 3 % 2.0
        model.set_params(categorical_features=[2])
    model.fit(x, y)
    field = "feature_idx" if field == "codes" else field
    tree = model._predictors[0][0]
    assert load(save(model, tmp_path / "good"))
    tree.nodes[field][len(tree.nodes) - 1 if field == "value" else 0] = value
    with pytest.raises(ValueError, match="bad"):
        load(rewritten(model, tmp_path / "bad", lambda *_: None))
    with pytest.raises(TypeError):
        save(model, tmp_path / "good")


def test_other_files(tmp_path, monkeypatch, x):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")
    (tmp_path / "text").write_text("a,b")
    with zipfile.ZipFile(tmp_path / "zip", "w") as file:
        file.writestr("schema.json", json.dumps({"a": 1}))
    half = tmp_path / "half"
    whole = save(EllipticRegressor(**QUICK).fit(x, x[:, 0]), tmp_path / "m").read_bytes()
    half.write_bytes(whole[: len(whole) // 2])
    end = whole.rfind(b"PK\5\6") + 19  # offset of the directory: zipfile seeks to a place before the file
    (tmp_path / "seek").write_bytes(whole[:end] + b"\xff" + whole[end + 1 :])
    for name in ("text", "zip", "half", "seek"):
        with pytest.raises(ValueError, match=name):
            load(tmp_path / name)
    shutil.copy(tmp_path / "m", tmp_path / "large")
    monkeypatch.setattr(files_module, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="large"):
        load(tmp_path / "large")
