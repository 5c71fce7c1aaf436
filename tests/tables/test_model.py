"""The model that a comparison leaves: any winner, saved and loaded; and unlabelled rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from elliptica.estimators import (
    EllipticClassifier,
    EllipticRegressor,
    TablePreprocessor,
    load,
    read_notes,
    save,
)
from elliptica.tables.after import intervals
from elliptica.tables.comparison import compare
from elliptica.tables.methods import Plan
from elliptica.tables.model import final_settings, fit_model, fit_pipeline, read_fitted
from elliptica.tables.saved import load_model, predict_file
from elliptica.tables.table import TableError
from elliptica.tables.training import Recipe, at_temperature, make_model
from table_cases import problem_of


def test_the_winner_is_saved_whatever_it_is(found, flowers, tmp_path):
    for method in ("elliptic", "elliptic-weighted", "groupdro", "trees", "linear"):
        file = tmp_path / f"{method}.elliptica"
        model = fit_model(found, file, method)
        again = load(file)
        inputs = found.problem.features
        assert np.array_equal(again.predict_proba(inputs), model.predict_proba(inputs))
        notes = read_notes(file)
        assert (notes["target"], notes["method"]) == ("kind", method)
        final = final_settings(found, method)
        if isinstance(model[-1], EllipticClassifier):
            assert model[-1].temperature_ == pytest.approx(final.temperature)
            assert model[-1].max_iter == final.length


def test_models_of_numbers_are_bounded_and_may_learn_logarithms(heights, tmp_path):
    low, high = heights.problem.target.min(), heights.problem.target.max()
    for method in ("erm", "c-mixup", "trees", "linear"):
        model = fit_model(heights, tmp_path / "a.elliptica", method)
        predicted = load(tmp_path / "a.elliptica").predict(heights.problem.features)
        assert np.array_equal(predicted, model.predict(heights.problem.features))
        if method in ("erm", "c-mixup"):
            assert low <= predicted.min() <= predicted.max() <= high


def test_the_linear_model_is_that_of_scaled_inputs(heights):
    """Folding the scaling into the weights changes no prediction."""
    final = final_settings(heights, "linear")
    model = fit_model(heights, method="linear")
    x = StandardScaler().fit_transform(model[0].transform(heights.problem.features))
    y = np.log(heights.problem.target) if final.log_target else heights.problem.target
    expected = Ridge(alpha=final.settings["penalty"]).fit(x, y).predict(x)
    expected = np.exp(expected) if final.log_target else expected
    assert model.predict(heights.problem.features) == pytest.approx(expected)


@pytest.fixture
def overconfident(found):
    """The same comparison, in which the validation rows have found a temperature of 2 in every fold."""
    return replace(found, records=tuple(replace(record, temperature=2.0) for record in found.records))


@pytest.mark.parametrize("method", ["erm", "trees", "linear"])
def test_what_is_judged_is_calibrated_as_what_is_saved(overconfident, method, tmp_path):
    """Scores are those of softened probabilities, and the file softens its own by as much."""
    fold = overconfident.shift.folds[0]
    (record,) = (r for r in overconfident.of(method) if r.fold == fold.number)
    judged = overconfident.predictions.values[method][0, fold.test]
    assert judged == pytest.approx(at_temperature(record.predicted, 2.0))
    final = final_settings(overconfident, method)
    assert final.temperature == pytest.approx(2.0)
    file = tmp_path / "m.elliptica"
    fit_model(overconfident, file, method)
    warm = replace(overconfident, records=tuple(replace(r, temperature=1.0) for r in overconfident.records))
    plain = fit_model(warm, None, method).predict_proba(overconfident.problem.features)
    saved = load(file).predict_proba(overconfident.problem.features)
    assert saved == pytest.approx(at_temperature(plain, 2.0), abs=1e-6)
    assert np.abs(saved - plain).max() > 0.01


def test_trees_and_lines_of_classes_are_those_of_scikit_learn_at_a_temperature(overconfident):
    problem = overconfident.problem
    for method in ("trees", "linear"):
        final = final_settings(overconfident, method)
        model = fit_model(overconfident, None, method)
        x = model[0].transform(problem.features)
        known = clone(model[0]).fit_transform(problem.features, problem.target)
        if method == "trees":
            kinds, seed = model[0].kinds_out_, model[1].random_state
            plain = make_model(problem, overconfident.plan, final, kinds, n_networks=1, seed=seed)
        else:
            plain = LogisticRegression(C=1 / final.settings["penalty"], max_iter=300)
            plain = make_pipeline(StandardScaler(), plain)
        expected = at_temperature(plain.fit(known, problem.target).predict_proba(x), 2.0)
        assert model.predict_proba(problem.features) == pytest.approx(expected, abs=1e-5)


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
        probabilities = predicted.select(pl.col("^probability of .*$")).to_numpy()
        np.testing.assert_allclose(probabilities, pipeline.predict_proba(inputs))
    else:
        with pytest.raises(TableError, match="--proba"):
            predict_file(file, rows, proba=True)
        with pytest.raises(TableError, match="xlsx"):
            predict_file(file, rows, tmp_path / "p.xlsx")
    one, _ = predict_file(file, rows[7:8])  # a row is read as it was beside the others
    np.testing.assert_allclose(one["prediction"][0] == predicted["prediction"][7], True)


def test_a_labelled_table_is_scored_beside_the_comparison(found, heights, flowers, tmp_path):
    file = tmp_path / "a.elliptica"
    fit_model(heights, file, "linear")
    table = flowers.with_columns(pl.col("height").exp()).drop("kind")
    predicted, notices = predict_file(file, table)
    actual = table["height"].to_numpy()
    rmse = np.sqrt(np.mean((predicted["prediction"].to_numpy() - actual) ** 2))
    assert f"RMSE {rmse:.4g} ({heights.scores['linear']['rmse']:.4g})" in notices[-1]
    promised = intervals(heights, "linear").coverage
    inside = np.mean((predicted["low"].to_numpy() <= actual) & (actual <= predicted["high"].to_numpy()))
    assert f"inside the intervals {100 * inside:.1f} % ({100 * promised:.1f} %)" in notices[-1]
    assert not any("Scores" in each for each in predict_file(file, table.drop("height"))[1])
    fit_model(found, file, "trees")
    predicted, notices = predict_file(file, flowers[:60])
    right = np.mean(predicted["prediction"].to_numpy() == flowers["kind"][:60].to_numpy())
    assert f"accuracy {100 * right:.1f} % ({100 * found.scores['trees']['accuracy']:.1f} %)" in notices[-1]
    both = predicted.select("probability of iris", "probability of rose").to_numpy()
    np.testing.assert_allclose(predicted["probability"], both.max(1))
    new = flowers.with_columns(kind=pl.lit("tulip"))
    assert any("tulip" in each for each in predict_file(file, new)[1])  # and is predicted all the same


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
    fitted, notices = read_fitted(
        file, tmp_path / "table.csv", group="colour", test=rows, unlabelled=rows[:9]
    )
    labelled = fitted.rows["training"]
    assert [fitted.class_names[k] for k in labelled.y] == rows["kind"].to_list()[1:]
    assert [len(part.x) for part in fitted.rows.values()] == [N - 1, N, 9]
    assert "1 of" in notices[0]
    assert labelled.groups == rows["colour"].to_list()[1:]
    assert labelled.numbers == list(range(2, N + 1))
    np.testing.assert_array_equal(labelled.x, pipeline[0].transform(rows.select("size", "colour"))[1:])
    with pytest.raises(TableError, match="'kind', row 1"):
        read_fitted(file, rows.with_columns(kind=pl.lit("tulip")))
    _, trees = saved(tmp_path, rows, HistGradientBoostingClassifier(max_iter=2))
    assert len(read_fitted(trees, rows)[0].rows["training"].y) == N
    assert load_model(trees).model.max_iter == 2


@pytest.mark.parametrize("named", [True, False], ids=["names", "no-names"])
def test_a_network_without_its_preprocessor_reads_numbers(tmp_path, named):
    inputs = pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60.0)[::-1] ** 2})
    labels = np.arange(60) % 3 + 5
    model = EllipticClassifier(**QUICK).fit(inputs if named else inputs.to_numpy(), labels)
    inputs.assign(label=labels, part="x").to_csv(tmp_path / "numbers.csv", index=False)
    file = save(model, tmp_path / "m.elliptica")
    rows = read_fitted(file, tmp_path / "numbers.csv", "label", group="part")[0].rows["training"]
    np.testing.assert_array_equal(rows.x, inputs.to_numpy())
    assert (rows.y + 5).tolist() == labels.tolist()
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
    assert read_fitted(file, table, "y")[0].rows["training"].y.tolist() == [0, 1] * 10
    table.write_text("x,y\n1,9\n2,9\n")
    with pytest.raises(TableError, match="'y', row 1"):
        read_fitted(file, table, "y")


def test_the_linear_model_gets_no_free_text(tmp_path):
    """Unless there is nothing else; the saved model does as the tested one."""
    texts = [f"remark {i % 7} about {i % 11} of the {i % 3} houses" for i in range(60)]
    table = pl.DataFrame({"x": np.sin(range(60)), "t": texts, "y": np.cos(range(60))})
    for frame in (table, table.drop("x")):
        problem = problem_of(frame, as_={"t": "text"})
        recipe = Recipe("linear", {"penalty": 1.0, "text": False}, length=0)
        pipeline = fit_pipeline(problem, Plan(("erm",)), recipe, 0)
        coefficients = pipeline[-1][-1].coef_.size
        assert coefficients == (1 if "x" in frame.columns else len(pipeline[0].kinds_out_))
        again = load(save(pipeline, tmp_path / "m"))
        assert np.array_equal(again.predict(problem.features), pipeline.predict(problem.features))
