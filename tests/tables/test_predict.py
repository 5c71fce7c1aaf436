"""Predictions of saved models, rows with targets for them, and what is never overwritten."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.pipeline import Pipeline

from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor, read_notes, save
from elliptica.tables.comparison import compare
from elliptica.tables.model import fit_model, load_model, predict_file, read_labelled
from elliptica.tables.table import TableError
from table_cases import problem_of

N = 80
QUICK = {"hidden": (4,), "max_iter": 2, "random_state": 0}


@pytest.fixture(scope="module")
def rows():
    draws = np.random.default_rng(0)
    label = draws.integers(0, 2, N)
    return pl.DataFrame(
        {
            "name": [f"=HYPERLINK({i})" if i % 2 else f"-{i}" for i in range(N)],
            "size": draws.normal(label, 1.0),
            "colour": [["red", "blue"][int(v)] for v in draws.integers(0, 2, N)],
            "price": 10 + 3 * label + draws.normal(size=N),
            "kind": [["rose", "@iris"][v] for v in label],
        }
    )


def saved(folder, rows, model, target="kind", **notes):
    """A model on size and colour, in a file."""
    problem = problem_of(rows.select("size", "colour", target), target)
    pipeline = Pipeline([("table", TablePreprocessor()), ("model", model)])
    pipeline.fit(problem.features, problem.target)
    notes = {"target": target, "reading": problem.reading(), **notes}
    return pipeline, save(pipeline, folder / "model.elliptica", notes=notes)


@pytest.mark.parametrize(
    ("model", "target"),
    [
        (HistGradientBoostingClassifier(max_iter=5), "kind"),
        (HistGradientBoostingRegressor(max_iter=5), "price"),
        (Ridge(), "price"),
        (EllipticClassifier(**QUICK), "kind"),
        (EllipticRegressor(n_networks=2, **QUICK), "price"),
    ],
    ids=["tree classes", "trees", "linear", "network", "ensemble"],
)
def test_every_kind_of_model_predicts_as_it_did(rows, tmp_path, model, target):
    pipeline, file = saved(tmp_path, rows, model, target)
    inputs = rows.select("size", "colour")
    predicted, _ = predict_file(file, rows, proba=target == "kind")
    np.testing.assert_array_equal(predicted["prediction"].to_numpy(), pipeline.predict(inputs))
    if target == "kind":
        probabilities = predicted.select(pl.col("^probability.*$")).to_numpy()
        np.testing.assert_allclose(probabilities, pipeline.predict_proba(inputs))
    else:
        with pytest.raises(TableError, match="--proba"):
            predict_file(file, rows, proba=True)
    one, _ = predict_file(file, rows[7:8])  # a row is read as it was beside the others
    np.testing.assert_allclose(one["prediction"][0] == predicted["prediction"][7], True)


@pytest.fixture
def place(rows, tmp_path):
    """A folder with a table and a model."""
    rows.write_csv(tmp_path / "table.csv")
    saved(tmp_path, rows, Ridge(), "price", ids=["name"])
    return tmp_path


@pytest.mark.parametrize("victim", ["table.csv", "model.elliptica"])
@pytest.mark.parametrize("way", ["same", "symlink", "symlinked folder"])
def test_inputs_are_never_overwritten(place, victim, way):
    file, out = place / victim, place / "out.csv"
    if way == "same":
        out = place / "." / "nowhere" / ".." / victim
    elif way == "symlink":
        out.symlink_to(file)
    else:
        (place / "again").symlink_to(place)
        out = place / "again" / victim
    before = file.read_bytes()
    with pytest.raises(TableError, match="--out"):
        predict_file(place / "model.elliptica", place / "table.csv", out)
    assert file.read_bytes() == before


def test_formulas_are_quoted_in_csv_and_nowhere_else(place, rows):
    out = place / "p.csv"
    predicted, _ = predict_file(place / "model.elliptica", place / "table.csv", out, ids=["kind"])
    assert predicted["name"].to_list() == rows["name"].to_list()
    written = pl.read_csv(out, infer_schema=False)
    assert written["name"].to_list() == [f"'{v}" if v.startswith("=") else v for v in rows["name"].to_list()]
    assert set(written["kind"].to_list()) == {"rose", "'@iris"}
    numbers = written["prediction"].cast(pl.Float64)
    np.testing.assert_allclose(numbers.to_numpy(), predicted["prediction"].to_numpy())
    predict_file(place / "model.elliptica", place / "table.csv", place / "p.parquet")
    assert pl.read_parquet(place / "p.parquet")["name"].to_list() == rows["name"].to_list()


def test_a_failure_in_writing_keeps_what_was_there(place, monkeypatch):
    out = place / "p.csv"
    out.write_text("precious")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_csv", fail)
    with pytest.raises(OSError, match="No space"):
        predict_file(place / "model.elliptica", place / "table.csv", out)
    assert out.read_text() == "precious"
    assert sorted(p.name for p in place.iterdir()) == ["model.elliptica", "p.csv", "table.csv"]


def test_messy_frames_and_files(tmp_path, tiny):
    """Dates, currency, thousands and units of a frame are read as the command reads them from a file."""
    draws = np.random.default_rng(0)
    area = draws.uniform(40, 200, N).round(2)
    frame = pl.DataFrame(
        {
            "flat": [f"F{i}" for i in range(N)],
            "area": [f"{each:.2f} m²".replace(".", ",") for each in area],
            "rent": [f"{1000 + 10 * each:.0f} €" for each in area[::-1]],
            "sold": [f"{1 + i % 28:02d}.{1 + i % 12:02d}.2015" for i in range(N)],
            "price": 1000 * area + draws.normal(size=N),
        }
    )
    comparison = compare(frame, "price", methods=["linear"], **tiny)
    file = tmp_path / "model.elliptica"
    pipeline = fit_model(comparison, file, method="linear")
    assert read_notes(file)["ids"] == ["flat"]
    expected = pipeline.predict(comparison.problem.features)
    frame.drop("price").write_csv(tmp_path / "new.csv", separator=";")
    for source in (frame.drop("price"), tmp_path / "new.csv", str(tmp_path / "new.csv")):
        predicted, _ = predict_file(file, source)
        assert predicted["prediction"].to_list() == expected.tolist()
        assert predicted["flat"].to_list() == frame["flat"].to_list()


# ---- rows with targets, as `elliptica diagnose` and `elliptica report` read them


def test_labelled_rows(rows, tmp_path):
    pipeline, file = saved(tmp_path, rows, EllipticClassifier(**QUICK))
    table = rows.with_columns(pl.Series("kind", [None, *rows["kind"][1:]]))
    table.write_csv(tmp_path / "table.csv")
    labelled = read_labelled(file, tmp_path / "table.csv", group="colour")
    assert labelled.target.tolist() == rows["kind"].to_list()[1:]
    assert labelled.groups == rows["colour"].to_list()[1:]
    assert labelled.numbers == list(range(2, N + 1))
    np.testing.assert_array_equal(labelled.inputs, pipeline[0].transform(rows.select("size", "colour"))[1:])
    with pytest.raises(TableError, match="'kind', row 1"):
        read_labelled(file, rows.with_columns(kind=pl.lit("tulip")))
    _, trees = saved(tmp_path, rows, HistGradientBoostingClassifier(max_iter=2))
    assert len(read_labelled(trees, rows).target) == N
    assert load_model(trees).model.max_iter == 2


@pytest.mark.parametrize("named", [True, False], ids=["names", "no-names"])
def test_a_network_without_its_preprocessor_reads_numbers(tmp_path, named):
    inputs = pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60.0)[::-1] ** 2})
    labels = np.arange(60) % 3 + 5
    model = EllipticClassifier(**QUICK).fit(inputs if named else inputs.to_numpy(), labels)
    inputs.assign(label=labels, part="x").to_csv(tmp_path / "numbers.csv", index=False)
    file = save(model, tmp_path / "m.elliptica")
    rows = read_labelled(file, tmp_path / "numbers.csv", "label", group="part")
    expected = model.network_rows(inputs if named else inputs.to_numpy(), labels)
    assert torch.equal(rows.network.network_rows(rows.inputs, rows.target).x, expected.x)
    assert rows.target.tolist() == labels.tolist()
    assert rows.groups == ["x"] * 60


@pytest.mark.parametrize(
    ("classes", "cells"),
    [
        ([3, 7], ["3", "7.0"]),
        ([False, True], ["False", "true"]),
        ([0.0, 1.0], ["0.0", "1"]),
        (["no", "yes"], ["no", "yes"]),
    ],
    ids=["whole", "booleans", "real", "text"],
)
def test_labels_of_a_bare_network(tmp_path, classes, cells):
    x = np.arange(20.0)[:, None]
    file = save(EllipticClassifier(**QUICK).fit(x, np.array(classes * 10)), tmp_path / "m.elliptica")
    table = tmp_path / "t.csv"
    table.write_text("x,y\n" + "".join(f"{i},{cells[i % 2]}\n" for i in range(20)))
    assert read_labelled(file, table, "y").target.tolist() == classes * 10
    table.write_text("x,y\n1,9\n2,9\n")
    with pytest.raises(TableError, match="'y', row 1"):
        read_labelled(file, table, "y")
