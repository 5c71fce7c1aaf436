"""Safe files: bit for bit the same predictions, and clear errors for anything else."""

import io
import json
import math
import os
import pickle
import sys
import zipfile

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from elliptica import (
    Girsanov,
    GradientNorm,
    GradientSoftmax,
    Green,
    InverseDistance,
    LabelKernel,
    Multiplicative,
    Nearest,
    Permutation,
)
from elliptica.estimators import (
    EllipticClassifier,
    EllipticRegressor,
    TablePreprocessor,
    load,
    read_notes,
    save,
)

QUICK = {"hidden": (8, 4), "max_iter": 2, "random_state": 0}


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(30, 3)) * [1, 1e3, 1e-3]


@pytest.fixture
def file(tmp_path, x):
    return save(EllipticRegressor(**QUICK).fit(x, x[:, 0]), tmp_path / "model.elliptica")


def members(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def rewrite(path, content, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in content.items():
            file.writestr(name, data)
    return path


def with_settings(path, change):
    content = members(path)
    settings = json.loads(content["model.json"])
    change(settings)
    return rewrite(path, {**content, "model.json": json.dumps(settings)})


NO_COLUMNS = {"min_frequency": 1, "max_categories": 2, "named": False, "columns": []}

LABELS = [
    np.array([3, 1, 2]),
    np.array([3, 1, 2], dtype=np.int8),
    np.array(["b", "a", "ä"]),
    np.array(["b", "a", "long label"], dtype=object),
    np.array([True, False, True]),
    np.array([1.0, 2.0, 3.0]),
]


@pytest.mark.parametrize("labels", LABELS, ids=lambda v: str(v.dtype))
def test_classifier_round_trip(tmp_path, x, labels):
    model = EllipticClassifier(**QUICK, early_stopping=True, class_weight="balanced")
    model.fit(x, np.tile(labels, 10))
    again = load(save(model, tmp_path / "m.elliptica"))
    assert again.classes_.dtype == model.classes_.dtype
    assert again.predict(x).dtype == model.predict(x).dtype
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    assert again.get_params() == model.get_params()
    for name in ("n_iter_", "loss_curve_", "validation_scores_", "best_iteration_", "best_validation_score_"):
        assert getattr(again, name) == getattr(model, name)
    assert list(tmp_path.iterdir()) == [tmp_path / "m.elliptica"]  # one file, and no leftovers


@pytest.mark.parametrize("n_targets", [0, 1, 2])
def test_regressor_and_multilabel_round_trip(tmp_path, x, n_targets):
    model = EllipticRegressor(**QUICK, sigma="green", method="c-mixup")
    model.fit(x, x[:, 0] if n_targets == 0 else x[:, :2] * n_targets)
    again = load(save(model, tmp_path / "m.elliptica"))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    assert again.sigma == "green"
    multilabel = EllipticClassifier(**QUICK).fit(x, (x > 0).astype(int))
    np.testing.assert_array_equal(
        load(save(multilabel, tmp_path / "l.elliptica")).predict_proba(x), multilabel.predict_proba(x)
    )


def test_pipeline_round_trip(tmp_path, x):
    frame = pd.DataFrame({"a": x[:, 0], "b": ["u", "v", None] * 10, "c": [None, 1.0, 2.0] * 10})
    pipeline = make_pipeline(TablePreprocessor(min_frequency=3), EllipticClassifier(**QUICK))
    pipeline.fit(frame, x[:, 1] > 0)
    again = load(save(pipeline, tmp_path / "p.elliptica"))
    assert list(again.named_steps) == ["tablepreprocessor", "ellipticclassifier"]
    other = frame.assign(b=["never", "seen", "u"] * 10)
    for data in (frame, other):
        np.testing.assert_array_equal(again.predict_proba(data), pipeline.predict_proba(data))
    with pytest.raises(ValueError, match="feature names should match"):
        again.predict(frame[["a", "b"]])


def test_training_goes_on_after_loading(tmp_path, x):
    model = EllipticRegressor(**QUICK, warm_start=True).fit(x, x[:, 0])
    again = load(save(model, tmp_path / "m.elliptica"))
    again.fit(x, x[:, 0])
    assert again.n_iter_ == 4
    assert len(again.loss_curve_) == 4


def test_own_module_has_to_be_passed(tmp_path, x):
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    model = EllipticRegressor(module=net, **QUICK).fit(x, x[:, 0])
    path = save(model, tmp_path / "m.elliptica")
    with pytest.raises(ValueError, match=r"load\(path, module=\.\.\.\)"):
        load(path)
    before = torch.get_rng_state()
    np.testing.assert_array_equal(load(path, module=net).predict(x), model.predict(x))
    made = load(path, module=lambda a, b: nn.Sequential(nn.Linear(a, 5), nn.BatchNorm1d(5), nn.Linear(5, b)))
    np.testing.assert_array_equal(made.predict(x), model.predict(x))
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ValueError, match="not the network that was trained"):
        load(path, module=nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 1)))
    with pytest.raises(ValueError, match="Omit module="):
        load(save(EllipticRegressor(**QUICK).fit(x, x[:, 0]), path), module=net)


@pytest.mark.bad_input  # numbers of NumPy, as searches pass them, are not what the annotations say
@pytest.mark.usefixtures("own_checks")
def test_parameters_keep_their_types(tmp_path, x):
    model = EllipticClassifier(
        hidden=[4],
        sigma=Green(scale=0.5),
        class_weight={1: 2.0, 0: 1.0},
        learning_rate=np.float64(0.01),
        max_iter=np.int64(1),
        random_state=np.random.RandomState(0),
    ).fit(x, [0, 1] * 15)
    again = load(save(model, tmp_path / "m.elliptica"))
    assert again.sigma == Green(scale=0.5)
    assert again.class_weight == {1: 2.0, 0: 1.0}
    assert again.hidden == [4]
    assert again.learning_rate == 0.01
    assert again.random_state is None
    model.set_params(sigma=torch.ones(3))
    with pytest.raises(TypeError, match=r"The parameter sigma=.*cannot be saved safely"):
        save(model, tmp_path / "m.elliptica")
    assert load(tmp_path / "m.elliptica").sigma == Green(scale=0.5)  # the old file is still there


@pytest.mark.parametrize(
    "options",
    [
        {"pairing": Permutation("same_class")},
        {"pairing": InverseDistance(2.0)},
        {"pairing": "nearest", "weighting": "gradient_norm"},
        {"pairing": LabelKernel(0.5), "weighting": GradientNorm(0.1)},
        {"pairing": Nearest("same_class"), "weighting": GradientSoftmax(0.5)},
        {"sampling": "path", "sigma_y": 0.1, "weighting": Girsanov(0.1, "both")},
        {"sampling": "path", "n_bridges": 2, "weighting": Multiplicative(0.2)},
    ],
)
def test_pairings_and_weightings_are_cloned_and_saved(tmp_path, x, options):
    model = clone(EllipticClassifier(**QUICK, **options)).fit(x, x[:, 0] > 0)
    again = load(save(model, tmp_path / "m.elliptica"))
    assert again.get_params() == model.get_params() == EllipticClassifier(**QUICK, **options).get_params()
    assert hash(again.weighting) == hash(model.weighting)
    assert again.weighting != GradientSoftmax(0.7)
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))


def test_own_objects_are_not_saved(tmp_path, x):
    class Own(GradientNorm):
        pass

    for options in ({"weighting": Own()}, {"pairing": lambda x, _y, _k, _g: torch.zeros(len(x), 1).long()}):
        model = EllipticRegressor(**QUICK, **options).fit(x, x[:, 0])
        with pytest.raises(TypeError, match=next(iter(options))):
            save(model, tmp_path / "m.elliptica")


def test_pickle_and_joblib(tmp_path, x):
    model = EllipticClassifier(**QUICK).fit(x, x[:, 0] > 0)
    joblib.dump(model, tmp_path / "m.joblib")
    for again in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "m.joblib")):
        np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
def test_what_cannot_be_saved(tmp_path, x):
    path = tmp_path / "m.elliptica"
    with pytest.raises(TypeError, match="StandardScaler, EllipticRegressor"):
        save(make_pipeline(StandardScaler(), EllipticRegressor(**QUICK)).fit(x, x[:, 0]), path)
    with pytest.raises(TypeError, match="but got StandardScaler"):
        save(StandardScaler().fit(x), path)
    with pytest.raises(ValueError, match="not fitted"):
        save(EllipticRegressor(), path)
    assert not path.exists()


def test_notes(tmp_path, x, file):
    """They come back as they were, change no prediction, and may be missing, as in older files."""
    assert read_notes(file) == {}
    notes = {"ids": ["patient"], "deep": {"a": [1, None, "ä"]}}
    model = load(file)
    again = save(model, tmp_path / "noted.elliptica", notes=notes)
    assert read_notes(again) == notes
    assert np.array_equal(load(again).predict(x), model.predict(x))
    assert read_notes(with_settings(file, lambda settings: settings.pop("notes"))) == {}
    with_settings(file, lambda settings: settings.update(notes=[1]))
    with pytest.raises(ValueError, match="notes are not a dictionary"):
        read_notes(file)
    with pytest.raises(TypeError, match="JSON"):
        save(model, tmp_path / "c.elliptica", notes={"a": x})
    assert not list(tmp_path.glob("c.*"))


def test_objects_that_are_not_saved_say_what_to_save_instead(tmp_path, x):
    network = EllipticRegressor(**QUICK)
    search = GridSearchCV(network, {"sigma": [0.1]}, cv=2)
    with pytest.raises(TypeError, match=r"but got GridSearchCV\..*save\(search\.best_estimator_, path\)"):
        save(search, tmp_path / "m")
    best = search.fit(x, x[:, 0]).best_estimator_
    again = load(save(best, tmp_path / "m"))
    assert np.array_equal(again.predict(x), search.predict(x))
    pipeline = make_pipeline(StandardScaler(), network).fit(x, x[:, 0])
    with pytest.raises(TypeError, match=r"Pipeline of StandardScaler, EllipticRegressor.*pipeline\[-1\]"):
        save(pipeline, tmp_path / "m")
    again = load(save(pipeline[-1], tmp_path / "m"))
    assert np.array_equal(again.predict(pipeline[:-1].transform(x)), pipeline.predict(x))


def test_other_files(tmp_path, file):
    with pytest.raises(FileNotFoundError, match=r"^The model .*absent\.elliptica does not exist\. Expected"):
        load(tmp_path / "absent.elliptica")
    text = tmp_path / "text.elliptica"
    for content in (b"", b"not a zip", pickle.dumps({"a": 1})):
        text.write_bytes(content)
        with pytest.raises(ValueError, match="another kind of file, or it is damaged"):
            load(text)
    content = members(file)
    for wrong in ({}, {"model.json": content["model.json"]}, {**content, "extra.pkl": b""}):
        with pytest.raises(ValueError, match=r"should hold model\.json and weights\.safetensors"):
            load(rewrite(tmp_path / "w.elliptica", wrong))
    with pytest.raises(ValueError, match="has compressed members"):
        load(rewrite(tmp_path / "w.elliptica", content, zipfile.ZIP_DEFLATED))
    with pytest.raises(ValueError, match=r"weights\.safetensors is damaged"):
        load(rewrite(tmp_path / "w.elliptica", {**content, "weights.safetensors": b"\x00" * 40}))
    with pytest.raises(ValueError, match="cannot be read as a saved estimator"):
        load(rewrite(tmp_path / "w.elliptica", {**content, "model.json": b"{"}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(format="other"), "does not say 'elliptica estimator'"),
        (lambda s: s.update(version=2), "has version 2 of the format"),
        (lambda s: s["estimator"]["parameters"].update(pairing={"system": {}}), "not a valid saved"),
        (lambda s: s["estimator"]["parameters"].update(weighting={"Girsanov": {"xi": -1}}), "xi"),
        (lambda s: s["estimator"].update({"class": "os.system"}), "is not a valid saved estimator"),
        (lambda s: s["estimator"].pop("progress"), "is not a valid saved estimator"),
        (
            lambda s: s["estimator"].update(n_features=4),
            r"x_mean_ should have 4 values, but has shape \(3,\)",
        ),
        (lambda s: s["estimator"].update(n_outputs=2), "y_mean_ should have 2 values"),
        (lambda s: s["estimator"]["parameters"].update(hidden=[10**9, 10**9]), "size mismatch|Missing key"),
        (lambda s: s["estimator"]["parameters"].update(unknown=1), "unexpected keyword"),
        (lambda s: s.update(preprocessor={"columns": []}), "is not a valid saved estimator"),
        (
            lambda s: s["estimator"]["parameters"].update(hidden=[1] * 20000),
            "6 weights and biases for 20001 layers",
        ),
        (
            lambda s: s["estimator"]["parameters"].update(hidden={"tuple": [], "dict": []}),
            "is not a valid saved estimator .*'tuple', 'dict' instead of one mark",
        ),
        (
            lambda s: s["estimator"]["parameters"].update(sigma_y={"dict": [[1, 2, 3]]}),
            "is not a valid saved estimator .*unpack",
        ),
        (lambda s: s.update(steps=["one"], preprocessor=NO_COLUMNS), "is not a valid saved estimator"),
    ],
)
@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
def test_changed_settings_are_refused(file, change, message):
    with pytest.raises(ValueError, match=message):
        load(with_settings(file, change))


def test_changed_weights_are_refused(tmp_path, file):
    content = members(file)
    tensors = load_tensors(content["weights.safetensors"])
    for name in ("module/0.weight", "x_mean_", "y_scale_"):
        fewer = {key: value for key, value in tensors.items() if key != name}
        reason = "5 weights and biases for 3 layers" if name.startswith("module/") else name
        with pytest.raises(ValueError, match=reason):
            load(rewrite(tmp_path / "w.elliptica", {**content, "weights.safetensors": save_tensors(fewer)}))


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"dtype": "<i8", "values": [0]}, "1 classes for 2 outputs"),
        ({"dtype": "<i8", "values": [0, 1, 2]}, "3 classes for 2 outputs"),
        ({"dtype": "<i8", "values": [[0], [1]]}, "labels that are not a list of"),
        ({"dtype": "|i1", "values": [0, 1000]}, "is not a valid saved estimator"),
        ({"dtype": "O", "values": {"a": 1, "b": 2}}, "labels that are not a list of"),
        ({"dtype": "<i8,<i8", "values": [0, 1]}, "labels of dtype"),
        ({"dtype": "|V100000000", "values": [0, 1]}, "labels of dtype"),
        ({"dtype": [["a", "<i8"]], "values": [0, 1]}, "labels of dtype"),
        ({"dtype": "<U1", "values": ["a" * 2**20] + ["b"] * 2**10}, "labels of up to 1048576 characters"),
    ],
)
@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
def test_changed_labels_are_refused(tmp_path, x, classes, message):
    path = save(EllipticClassifier(**QUICK).fit(x, x[:, 0] > 0), tmp_path / "m.elliptica")
    with pytest.raises(ValueError, match=message):
        load(with_settings(path, lambda s: s["estimator"].update(classes=classes)))


def test_the_width_of_strings_is_that_of_the_labels(tmp_path, x):
    """A file that asks for labels of 400 MB each gets those that it has."""
    model = EllipticClassifier(**QUICK).fit(x, np.where(x[:, 0] > 0, "yes", "no"))
    path = save(model, tmp_path / "m.elliptica")
    again = load(with_settings(path, lambda s: s["estimator"]["classes"].update(dtype="<U100000000")))
    assert again.classes_.dtype == np.dtype("<U3")
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


def test_messages_about_damage_are_short(file):
    many = [f"w{i}" for i in range(5000)]
    for change in (
        lambda s: s["estimator"]["parameters"].update(dict.fromkeys(many, 1)),
        lambda s: s["estimator"]["parameters"].update(sigma=dict.fromkeys(many, 1)),
        lambda s: s["estimator"].update({"class": "x" * 10**5}),
        lambda s: s.update(version="x" * 10**5, elliptica="y" * 10**5),
    ):
        with pytest.raises(ValueError, match=r"damaged or changed|of the format") as caught:
            load(with_settings(file, change))
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(("place", "value"), [(8, 1), (10, 99)], ids=["encrypted", "unknown compression"])
def test_features_of_zip_that_are_not_ours(file, place, value):
    """Flags and compression of the members, changed in the directory and in front of each member."""
    data = bytearray(file.read_bytes())
    for mark, offset in ((b"PK\x01\x02", place), (b"PK\x03\x04", place - 2)):
        start = data.find(mark)
        while start >= 0:
            data[start + offset] = value
            start = data.find(mark, start + 4)
    file.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=r"cannot be read as a saved estimator|has compressed members"):
        load(file)


@pytest.mark.parametrize("options", [{"min_frequency": 5}, {"min_frequency": 1, "max_categories": 3}])
def test_rare_values_are_not_in_the_file(tmp_path, x, options):
    names = ["Bonn"] * 14 + ["Ulm"] * 13 + ["Ada Lovelace", "Émilie", "Bonn+"]
    frame = pd.DataFrame({"a": x[:, 0], "who": names})
    pipeline = make_pipeline(TablePreprocessor(**options), EllipticRegressor(**QUICK)).fit(frame, x[:, 1])
    path = save(pipeline, tmp_path / "p.elliptica")
    content = path.read_bytes()
    assert b"Bonn" in content
    for rare in names[-3:]:
        assert rare.encode() not in content
        assert json.dumps(rare).encode() not in content
    again = load(path)
    unknown = frame.assign(who=["never seen", "Ulm+", None] * 10)
    for data in (frame, unknown):
        np.testing.assert_array_equal(again.predict(data), pipeline.predict(data))
    assert again[0].get_feature_names_out().tolist() == pipeline[0].get_feature_names_out().tolist()
    assert again[0].to_dict()["columns"][1]["n_rare"] == 3
    assert save(again, tmp_path / "q.elliptica").read_bytes().count(b"Ada") == 0
    np.testing.assert_array_equal(load(tmp_path / "q.elliptica").predict(unknown), pipeline.predict(unknown))


def test_every_flipped_byte_is_noticed(file):
    """A damaged file is refused, or, where the damage is in unused bytes of the zip, loads as it was."""
    original = file.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for place in rng.integers(0, len(original), 60):
        damaged = bytearray(original)
        damaged[place] ^= 0xFF
        file.write_bytes(bytes(damaged))
        try:
            load(file)
        except ValueError:
            refused += 1
    assert refused > 50
    with zipfile.ZipFile(io.BytesIO(original)) as archive:
        assert archive.testzip() is None


def boosted(x, **options):
    return HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=3, random_state=0, **options).fit(
        x, x[:, 0] ** 2 + 1
    )


def three_classes(x):
    return np.array(["low", "middle", "high"])[np.digitize(x[:, 0], [-0.4, 0.4])]


SCIKIT_LEARN = {
    "trees": boosted,
    "trees, classes": lambda x: HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=3).fit(
        x, three_classes(x)
    ),
    "trees, two classes": lambda x: HistGradientBoostingClassifier(
        max_iter=5, min_samples_leaf=3, random_state=np.random.RandomState(0)
    ).fit(x, x[:, 0] > 0),
    "linear": lambda x: Ridge(alpha=0.5).fit(x, x[:, 0]),
    "linear, classes": lambda x: LogisticRegression().fit(x / [1, 1e3, 1e-3], three_classes(x)),
    "log of the target": lambda x: TransformedTargetRegressor(
        HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=3), func=np.log, inverse_func=np.exp
    ).fit(x, x[:, 0] ** 2 + 1),
}


@pytest.mark.parametrize("kind", SCIKIT_LEARN)
def test_models_of_scikit_learn_round_trip(tmp_path, x, kind):
    model = SCIKIT_LEARN[kind](x)
    again = load(save(model, tmp_path / "m.elliptica", notes={"a": 1}))
    assert type(again) is type(model)
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    if hasattr(model, "predict_proba"):
        np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
        assert again.classes_.dtype == model.classes_.dtype
    assert type(clone(again).fit(x, model.predict(x))) is type(model)  # parameters are there, too
    assert read_notes(tmp_path / "m.elliptica") == {"a": 1}
    assert save(again, tmp_path / "n.elliptica").stat().st_size > 0
    with pytest.raises(ValueError, match="Omit module="):
        load(tmp_path / "m.elliptica", module=nn.Linear(3, 1))


def test_pipelines_of_scikit_learn_round_trip(tmp_path, x):
    frame = pd.DataFrame({"a": x[:, 0], "b": ["u", "v", None] * 10, "c": [None, 1.0, 2.0] * 10})
    for model in (HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=3), Ridge()):
        pipeline = make_pipeline(TablePreprocessor(min_frequency=3), model).fit(frame, x[:, 0])
        again = load(save(pipeline, tmp_path / "p.elliptica"))
        assert list(again.named_steps) == list(pipeline.named_steps)
        np.testing.assert_array_equal(again.predict(frame), pipeline.predict(frame))


def test_columns_of_all_kinds_round_trip(tmp_path, x):
    """Whatever the preprocessor makes of dates and texts."""
    frame = pd.DataFrame(
        {
            "day": pd.date_range("2020-01-01", periods=30, freq="17D"),
            "said": [f"the {i % 7} quick brown foxes jumped over lazy dog number {i % 5}" for i in range(30)],
            "size": np.exp(3 * x[:, 0]),
        }
    )
    for model in (Ridge(), EllipticRegressor(**QUICK, n_networks=2)):
        pipeline = make_pipeline(TablePreprocessor(min_frequency=2), model).fit(frame, x[:, 0])
        again = load(save(pipeline, tmp_path / "p.elliptica"))
        np.testing.assert_allclose(again.predict(frame), pipeline.predict(frame), rtol=1e-9)


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
def test_models_of_scikit_learn_that_are_not_saved(tmp_path, x):
    path = tmp_path / "m.elliptica"
    odd = {
        "absolute error": HistGradientBoostingRegressor(loss="absolute_error", max_iter=2).fit(x, x[:, 0]),
        "categories": HistGradientBoostingRegressor(categorical_features=[0], max_iter=2).fit(
            np.arange(30)[:, None] % 3, x[:, 0]
        ),
    }
    for kind in ("absolute error", "categories"):
        with pytest.raises(TypeError, match=r"cannot be saved safely: it holds .* not on the list"):
            save(odd[kind], path)
    own = TransformedTargetRegressor(Ridge(), func=np.cbrt, inverse_func=np.square, check_inverse=False).fit(
        x, x[:, 0]
    )
    with pytest.raises(TypeError, match=r"numpy\.cbrt|numpy\.square"):
        save(own, path)
    with pytest.raises(TypeError, match="but got RandomForestRegressor"):
        save(RandomForestRegressor(n_estimators=1).fit(x, x[:, 0]), path)
    with pytest.raises(TypeError, match="but got TransformedTargetRegressor"):
        save(TransformedTargetRegressor(RandomForestRegressor(n_estimators=1)).fit(x, x[:, 0]), path)
    with pytest.raises(ValueError, match="not fitted"):
        save(Ridge(), path)
    assert not path.exists()


def with_dump(path, change):
    """Change the members of the part of scikit-learn; ``change`` gets names and bytes."""
    content = members(path)
    inner = path.with_suffix(".skops")
    inner.write_bytes(content["model.skops"])
    parts = members(inner)
    change(parts)
    return rewrite(path, {**content, "model.skops": rewrite(inner, parts).read_bytes()})


def with_schema(path, change):
    def apply(parts):
        schema = json.loads(parts["schema.json"])
        change(schema)
        parts["schema.json"] = json.dumps(schema)

    return with_dump(path, apply)


def attributes(schema):
    return schema["content"]["content"]


def deep(schema):
    node = attributes(schema)
    for _ in range(200):
        node["deeper"] = {}
        node = node["deeper"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(__module__="os", __class__="system"), r"os\.system \(ObjectNode\)"),
        (
            lambda s: attributes(s).update(
                alpha={"__loader__": "FunctionNode", "__module__": "os", "__class__": "system"}
            ),
            r"it holds os\.system \(FunctionNode\), which is not on the list",
        ),
        (
            lambda s: attributes(s).update(
                alpha={"__loader__": "MethodNode", "__module__": "numpy", "__class__": "exp"}
            ),
            r"numpy\.exp \(MethodNode\)",
        ),
        (
            lambda s: attributes(s).update(
                alpha={"__loader__": "TypeNode", "__module__": "builtins", "__class__": "eval"}
            ),
            r"builtins\.eval \(TypeNode\)",
        ),
        (deep, "nested deeper than 100 levels"),
        (lambda s: s.update(protocol=0), "older protocol"),
        (lambda s: attributes(s).pop("coef_"), "is not a valid saved estimator"),
        (lambda s: attributes(s)["n_features_in_"].update(content="4"), "shape"),
        (lambda s: attributes(s)["n_features_in_"].update(content="9" * 12), "shape"),
    ],
)
@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
def test_hostile_parts_of_scikit_learn_are_refused(tmp_path, x, change, message):
    path = save(Ridge().fit(x, x[:, 0]), tmp_path / "m.elliptica")
    with pytest.raises(ValueError, match=message) as caught:
        load(with_schema(path, change))
    assert len(str(caught.value)) < 1000


def items(content, number):
    """A list as skops writes it."""
    kind = {"__class__": "list", "__module__": "builtins", "__loader__": "ListNode"}
    return {**kind, "content": content, "__id__": number}


def doubled(schema):
    """Every list holds the one below it twice, the second time by its number: 2 ** 40 objects."""
    node = items([], 10**6)
    for level in range(40):
        node = items([node, items([], 10**6 + level)], 10**6 + level + 1)
    attributes(schema).update(alpha=node)


def within_itself(schema):
    attributes(schema).update(alpha=items([items([], 77)], 77))


def by_number_alone(schema):
    attributes(schema).update(alpha=items([{"__id__": 88}], 88))


def many(schema):
    attributes(schema).update(alpha=items([items([], number) for number in range(2000)], 99))


def same_array(schema):
    array = attributes(schema)["coef_"]
    attributes(schema).update(alpha=items([array] * 500, 99))


@pytest.mark.parametrize("change", [doubled, within_itself, by_number_alone, many, same_array])
@pytest.mark.bad_input
def test_objects_that_refer_to_each_other_do_not_keep_a_reader_busy(tmp_path, change, monkeypatch):
    """skops follows such references again and again, without end."""
    monkeypatch.setattr("elliptica.estimators.files._MOST_NODES", 1000)
    monkeypatch.setattr("elliptica.estimators.files._MOST_SHARING", 2)
    x = np.random.default_rng(0).normal(size=(10, 5000))  # 40 kB of weights
    model = Ridge().fit(x, x[:, 0])
    path = with_schema(save(model, tmp_path / "m.elliptica"), change)
    if change in (doubled, within_itself):  # taken as they are written, they are odd, but small
        assert np.array_equal(load(path).predict(x), model.predict(x))
    else:
        with pytest.raises(ValueError, match="is not a valid saved estimator"):
            load(path)


def header(shape, descr="<f8"):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"shape": shape, "fortran_order": False, "descr": np.dtype(descr).str}
    )
    return buffer.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        header((10**12,)) + b"\0" * 24,
        header((3,)),
        header((2**62, 4)),
        b"no array",
        header((3,), "O") + b"\0" * 24,
    ],
)
@pytest.mark.bad_input
def test_arrays_that_lie_about_their_size_are_refused(tmp_path, x, array):
    """Before anything of that size is allocated."""
    path = save(Ridge().fit(x, x[:, 0]), tmp_path / "m.elliptica")

    def change(parts):
        name = next(name for name in parts if name.endswith(".npy"))
        parts[name] = array

    with pytest.raises(ValueError, match="is not a valid saved estimator"):
        load(with_dump(path, change))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("left", 10**6),
        ("right", 10**6),
        ("left", 0),
        ("feature_idx", 3),
        ("feature_idx", -1),
        ("is_categorical", 1),
    ],
)
@pytest.mark.bad_input
def test_trees_that_lead_elsewhere_are_refused(tmp_path, x, field, value):
    """scikit-learn would read beyond the array, or never come to an end."""
    model = boosted(x)
    tree = model._predictors[2][0]
    assert not tree.nodes["is_leaf"][0]
    tree.nodes[field][0] = value
    path = save(model, tmp_path / "m.elliptica")
    with pytest.raises(ValueError, match="leads out of its nodes or columns"):
        load(path)


def test_no_rows_are_in_the_file_of_trees(tmp_path, x):
    """Trees keep quantiles of all columns, which are rows for small tables; predictions do not need them."""
    model = boosted(x)
    assert len(model._bin_mapper.bin_thresholds_[0]) > 20
    again = load(save(model, tmp_path / "m.elliptica"))
    assert again._bin_mapper.bin_thresholds_ == []
    assert len(model._bin_mapper.bin_thresholds_[0]) > 20  # the model itself keeps them


def test_large_or_strange_members_are_refused(tmp_path, x, monkeypatch):
    path = save(Ridge().fit(x, x[:, 0]), tmp_path / "m.elliptica")
    content = members(path)
    with pytest.raises(ValueError, match="is not a valid saved estimator"):
        load(rewrite(tmp_path / "w.elliptica", {**content, "model.skops": b"no zip"}))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("schema.json", b" " * 10**6)
    with pytest.raises(ValueError, match="compressed members"):
        load(rewrite(tmp_path / "w.elliptica", {**content, "model.skops": packed.getvalue()}))
    monkeypatch.setattr("elliptica.estimators.files._MOST_JSON", 100)
    with pytest.raises(ValueError, match=r"has settings of .* bytes, but at most 100 are allowed"):
        load(path)


def test_missing_skops_names_the_extra(tmp_path, x, monkeypatch):
    monkeypatch.setitem(sys.modules, "skops.io", None)
    with pytest.raises(ModuleNotFoundError, match=r"elliptica\[tables\]"):
        save(Ridge().fit(x, x[:, 0]), tmp_path / "m.elliptica")


@pytest.mark.parametrize("options", [{"bounded": False}, {"target_transform": "log"}, {"n_networks": 3}])
def test_options_of_the_regressor_round_trip(tmp_path, x, options):
    y = np.exp(x[:, 0])
    model = EllipticRegressor(**QUICK, **options, early_stopping=True).fit(x, y)
    again = load(save(model, tmp_path / "m.elliptica"))
    far = x * 100
    np.testing.assert_array_equal(again.predict(far), model.predict(far))
    assert again.get_params() == model.get_params()
    assert again.y_max_.tolist() == [y.max()]
    assert again.loss_curve_ == model.loss_curve_
    assert [p.n_iter for p in again._progress] == [p.n_iter for p in model._progress]
    assert again.set_params(warm_start=True, early_stopping=False).fit(x, y).n_iter_ == model.n_iter_ + 2


def test_options_of_the_classifier_round_trip(tmp_path, x):
    labels = np.where(np.arange(30) % 4 == 0, "a", np.where(x[:, 0] > 0, "b", "c"))
    options = {"calibrate": "temperature", "n_networks": 2, "validation_fraction": 0.4, "method": "smoothing"}
    model = EllipticClassifier(**QUICK, **options).fit(x, labels)
    assert model.temperature_ != 1
    path = save(model, tmp_path / "m.elliptica")
    again = load(path)
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    assert again.temperature_ == model.temperature_
    for wrong in (0, -1, "hot", float("inf")):
        with pytest.raises(ValueError, match="temperature"):
            load(with_settings(path, lambda s, v=wrong: s["estimator"].update(temperature=v)))
    with pytest.raises(ValueError, match="is not a valid saved"):
        load(
            with_settings(
                save(model, path), lambda s: s["estimator"]["progress"].append(s["estimator"]["progress"][0])
            )
        )


def test_ensembles_of_own_modules(tmp_path, x):
    def make(a, b):
        return nn.Sequential(nn.Linear(a, 5), nn.BatchNorm1d(5), nn.Linear(5, b))

    model = EllipticRegressor(module=make, n_networks=2, **QUICK).fit(x, x[:, 0])
    path = save(model, tmp_path / "m.elliptica")
    np.testing.assert_array_equal(load(path, module=make).predict(x), model.predict(x))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("min_frequency",), None),
        (("min_frequency",), math.inf),
        (("max_categories",), "many"),
        (("n_components",), [1]),
        (("columns",), []),
        (("columns", 0, "median"), None),
        (("columns", 0, "median"), math.nan),
        (("columns", 0, "had_gaps"), True),
        (("columns", 0, "name"), 3),
        (("columns", 1, "frequent"), ["u"]),
        (("columns", 1, "frequent", 0), math.nan),
    ],
)
def test_a_preprocessor_that_does_not_fit_is_found_when_it_is_read(place, value, tmp_path, x):
    table = pd.DataFrame({"a": x[:, 0], "b": ["u", "v"] * (len(x) // 2)})
    model = make_pipeline(TablePreprocessor(), EllipticRegressor(**QUICK)).fit(table, x[:, 0])
    file = save(model, tmp_path / "model.elliptica")
    content = members(file)
    settings = json.loads(content["model.json"])
    *way, last = place
    state = settings["preprocessor"]
    for step in way:
        state = state[step]
    state[last] = value
    rewrite(file, content | {"model.json": json.dumps(settings).encode()})
    with pytest.raises(ValueError, match=r"is not a valid saved estimator.*save the estimator"):
        load(file)


@pytest.mark.bad_input
@pytest.mark.parametrize("model", [Ridge(), LogisticRegression(), HistGradientBoostingRegressor(max_iter=2)])
def test_models_of_scikit_learn_with_nan_are_not_read(model, tmp_path, x):
    y = (x[:, 0] > 0).astype(int)
    model.fit(x, y)
    if hasattr(model, "coef_"):
        model.coef_ = model.coef_ * math.nan
    else:
        for (tree,) in model._predictors:
            tree.nodes["value"] = math.nan
    file = save(model, tmp_path / "model.elliptica")
    with pytest.raises(ValueError, match=r"NaN or infinite|to no number"):
        load(file)


@pytest.mark.bad_input
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, x):
    """Reading a pipe would wait for ever, and a device may have no end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "device"):
        with pytest.raises(ValueError, match=rf"{path.name} is a folder, a pipe or a device"):
            load(path)
    file = save(EllipticRegressor(**QUICK).fit(x, x[:, 0]), tmp_path / "model.elliptica")
    content = members(file)
    rewrite(file, content | {"model.json": b'{"format": ' + b"9" * 10_000 + b"}"})
    with pytest.raises(ValueError, match=r"model.elliptica cannot be read as a saved estimator"):
        load(file)


def test_the_order_of_numbered_columns_survives_a_file(tmp_path):
    """Names that are numbers are unknown to scikit-learn, so another order would be accepted silently."""
    pandas = pytest.importorskip("pandas")
    x = pandas.DataFrame(np.random.default_rng(0).normal(size=(30, 3)), columns=[3, 1, 2])
    save(EllipticRegressor(max_iter=1, random_state=0).fit(x, x[3]), tmp_path / "model")
    loaded = load(tmp_path / "model")
    loaded.predict(x)
    with pytest.raises(ValueError, match="order"):
        loaded.predict(x[[1, 2, 3]])
