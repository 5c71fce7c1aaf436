"""Predictions of saved models: what is read, what is written, and what is never overwritten."""

import os
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import safetensors.torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.pipeline import Pipeline

from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor, load, save
from elliptica.tables.comparison import compare
from elliptica.tables.model import fit_model
from elliptica.tables.predict import load_model, predict_file, quote_formulas, read_labelled
from elliptica.tables.table import TableError

N = 80


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
    pipeline = Pipeline([("table", TablePreprocessor()), ("model", model)])
    pipeline.fit(rows.select("size", "colour"), rows[target].to_numpy())
    return pipeline, save(pipeline, folder / "model.elliptica", notes={"target": target, **notes})


QUICK = {"hidden": (4,), "max_iter": 2, "random_state": 0}


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
    found, _ = predict_file(file, rows)
    np.testing.assert_array_equal(
        found["prediction"].to_numpy(), pipeline.predict(rows.select("size", "colour"))
    )
    assert found["row"].to_list() == list(range(1, N + 1))


def test_trees_have_probabilities(rows, tmp_path):
    pipeline, file = saved(tmp_path, rows, HistGradientBoostingClassifier(max_iter=5))
    found, _ = predict_file(file, rows, proba=True)
    expected = pipeline.predict_proba(rows.select("size", "colour"))
    np.testing.assert_allclose(found.select(pl.col("^probability.*$")).to_numpy(), expected)


def test_trees_have_no_page_and_say_so(rows, tmp_path):
    model = HistGradientBoostingClassifier(max_iter=2)
    _, file = saved(tmp_path, rows, model, method="trees")
    with pytest.raises(TableError, match="holds boosted trees, not a network"):
        read_labelled(file, rows)
    assert load_model(file).model.max_iter == 2


@pytest.fixture
def place(rows, tmp_path):
    """A folder with a table and a model."""
    rows.write_csv(tmp_path / "table.csv")
    saved(tmp_path, rows, Ridge(), "price", ids=["name"])
    return tmp_path


@pytest.mark.parametrize("victim", ["table.csv", "model.elliptica"])
@pytest.mark.parametrize("way", ["same", "other spelling", "symlink", "hard link", "symlinked folder"])
def test_inputs_are_never_overwritten(place, victim, way):
    """Fails for a check that compares names only, or that forgets the model."""
    file, out = place / victim, place / "out.csv"
    if way == "same":
        out = file
    elif way == "other spelling":
        out = place / "." / "nowhere" / ".." / victim
    elif way == "symlink":
        out.symlink_to(file)
    elif way == "hard link":
        os.link(file, out)
    else:
        (place / "again").symlink_to(place)
        out = place / "again" / victim
    before = file.read_bytes()
    what = "table" if victim == "table.csv" else "model"
    with pytest.raises(TableError, match=f"would overwrite the {what} .* Choose another --out"):
        predict_file(place / "model.elliptica", place / "table.csv", out)
    assert file.read_bytes() == before


def test_a_link_to_another_file_is_written_through_its_name(place):
    other, out = place / "other.csv", place / "out.csv"
    other.write_text("old")
    out.symlink_to(other)
    predict_file(place / "model.elliptica", place / "table.csv", out)
    assert out.is_symlink()
    assert len(pl.read_csv(other)) == N


def test_formulas_are_quoted_in_csv_and_nowhere_else(place, rows):
    out = place / "p.csv"
    found, _ = predict_file(place / "model.elliptica", place / "table.csv", out, ids=["kind"])
    assert found["name"].to_list() == rows["name"].to_list()
    written = pl.read_csv(out, infer_schema=False)
    assert written["name"].to_list() == [f"'{v}" if v.startswith("=") else v for v in rows["name"].to_list()]
    assert set(written["kind"].to_list()) == {"rose", "'@iris"}
    numbers = written["prediction"].cast(pl.Float64)
    np.testing.assert_allclose(numbers.to_numpy(), found["prediction"].to_numpy())
    predict_file(place / "model.elliptica", place / "table.csv", place / "p.parquet")
    assert pl.read_parquet(place / "p.parquet")["name"].to_list() == rows["name"].to_list()


def test_what_is_quoted():
    cells = ["=1+1", "+49 30", "-", "@me", "\t=1", "-5", "+1e-3", "a=b", "", None]
    quoted = quote_formulas(pl.DataFrame({"+id": cells, "n": range(len(cells))}))
    assert quoted.columns == ["'+id", "n"]
    expected = ["'=1+1", "'+49 30", "'-", "'@me", "'\t=1", "-5", "+1e-3", "a=b", "", None]
    assert quoted["'+id"].to_list() == expected


def test_a_place_that_takes_nothing_is_found_before_the_table_is_read(place, monkeypatch):
    monkeypatch.setattr("elliptica.tables.predict.read_table", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(TableError, match=r"/dev/full cannot be written \(No space left on device\)"):
        predict_file(place / "model.elliptica", place / "table.csv", place.__class__("/dev/full"))


def test_a_failure_in_writing_keeps_what_was_there(place, monkeypatch):
    out = place / "p.csv"
    out.write_text("precious")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_csv", fail)
    with pytest.raises(TableError, match=r"p\.csv cannot be written \(No space left on device\)"):
        predict_file(place / "model.elliptica", place / "table.csv", out)
    assert out.read_text() == "precious"
    assert sorted(p.name for p in place.iterdir()) == ["model.elliptica", "p.csv", "table.csv"]


def test_rows_outside_the_range_of_training_are_counted(rows, tmp_path):
    ranges = {"size": [-1.0, 1.0], "colour": [0, 1], "gone": [0, 1], "broken": "x"}
    _, file = saved(tmp_path, rows, Ridge(), "price", ranges=ranges)
    new = pl.DataFrame({"size": [0.0, 1.0, 1.5, -3.0, None], "colour": ["red"] * 5})
    _, notices = predict_file(file, new)
    (said,) = [n for n in notices if "outside" in n]
    assert said.startswith("2 of 5 rows lie outside the range of the training rows ('size' in 2)")
    _, notices = predict_file(file, new.head(2))
    assert not any("outside" in n for n in notices)


def test_numbers_are_bounded_where_the_model_does_not_do_so(rows, tmp_path):
    _, file = saved(tmp_path, rows, Ridge(alpha=1e-6), "price", range=[11.0, 12.0], bounded=True)
    free, _ = predict_file(saved(tmp_path / "free", rows, Ridge(alpha=1e-6), "price")[1], rows)
    found, notices = predict_file(file, rows)
    np.testing.assert_array_equal(found["prediction"], free["prediction"].clip(11.0, 12.0))
    changed = int((free["prediction"] != found["prediction"]).sum())
    assert 0 < changed < N
    assert any(
        n.startswith(f"{changed} of {N} predictions left the range of the training targets (11 to 12)")
        for n in notices
    )
    for odd in ([12.0, 11.0], "wide", [1], {"low": 1}):
        _, file = saved(tmp_path, rows, Ridge(), "price", range=odd, bounded=True)
        assert predict_file(file, rows)[0]["prediction"].is_finite().all()


def test_notes_that_do_not_fit_are_ignored(rows, tmp_path):
    reading = [{"name": "colour", "kind": "category"}, {"name": "size", "kind": "number"}]
    for columns in (7, ["size"], reading):  # of another model: the order differs
        pipeline, file = saved(tmp_path, rows, Ridge(), "price", reading={"columns": columns})
        found, _ = predict_file(file, rows)
        np.testing.assert_array_equal(found["prediction"], pipeline.predict(rows.select("size", "colour")))


def test_raw_frames_in_python(tmp_path, tiny):
    """Dates, currency, thousands and units of a frame are read as the command reads them from a file."""
    draws = np.random.default_rng(0)
    area = draws.uniform(40, 200, N).round(2)
    frame = pl.DataFrame(
        {
            "flat": [f"F{i}" for i in range(N)],
            "area": [f"{each:.2f} m²".replace(".", ",") for each in area],
            "rent": [f"€ {1000 + 10 * each:,.0f}" for each in area[::-1]],
            "sold": [f"{1 + i % 28:02d}.{1 + i % 12:02d}.2015" for i in range(N)],
            "price": 1000 * area + draws.normal(size=N),
        }
    )
    found = compare(frame, "price", methods=["linear"], **tiny)
    file = tmp_path / "model.elliptica"
    pipeline = fit_model(found, file, method="linear")
    expected = pipeline.predict(found.problem.features)
    predicted, _ = predict_file(str(file), frame.drop("price"))
    assert predicted["prediction"].to_numpy() == pytest.approx(expected)
    assert predicted["flat"].to_list() == frame["flat"].to_list()
    frame.drop("price").write_csv(tmp_path / "new.csv")
    again, _ = predict_file(file, tmp_path / "new.csv")
    assert again["prediction"].to_numpy() == pytest.approx(expected)
    for name in ("area", "rent", "sold"):
        raw = found.problem.features.with_columns(frame[name])
        with pytest.raises(ValueError, match=r"use elliptica\.tables\.predict_file\(file, frame\)"):
            load(file).predict(raw)


def test_a_model_of_noise_says_so(tmp_path, tiny):
    draws = np.random.default_rng(0)
    frame = pl.DataFrame({"x": draws.normal(size=N), "y": draws.normal(size=N)})
    found = compare(frame, "y", methods=["linear"], **tiny)
    fit_model(found, tmp_path / "model.elliptica")
    _, notices = predict_file(tmp_path / "model.elliptica", frame)
    assert notices[0].startswith(
        "Warning: in the comparison, no method was shown to be better than a constant"
    )
    other = pl.DataFrame({"x": frame["x"], "y": frame["x"] + 0.1 * frame["y"]})
    fit_model(compare(other, "y", methods=["linear"], **tiny), tmp_path / "good.elliptica")
    assert not predict_file(tmp_path / "good.elliptica", other.drop("y"))[1]


def with_tensors(file, **changed):
    """Change tensors of a saved network."""
    with zipfile.ZipFile(file) as old:
        members = {name: old.read(name) for name in old.namelist()}
    tensors = safetensors.torch.load(members["weights.safetensors"])
    for name, change in changed.items():
        tensors[name] = change(tensors[name]).contiguous()
    with zipfile.ZipFile(file, "w") as new:
        for name, content in (members | {"weights.safetensors": safetensors.torch.save(tensors)}).items():
            new.writestr(name, content)


@pytest.mark.bad_input
@pytest.mark.parametrize("model", [EllipticClassifier, EllipticRegressor])
@pytest.mark.parametrize("proba", [False, True])
def test_a_network_of_nan_has_no_answer(model, proba, rows, tmp_path):
    """The largest of NaN was the first class."""
    _, file = saved(tmp_path, rows, model(**QUICK), "kind" if model is EllipticClassifier else "price")
    name = next(name for name in load(file)[-1].module_.state_dict() if name.endswith("weight"))
    with_tensors(file, **{f"module/{name}": lambda w: w * float("nan")})
    with pytest.raises(ValueError, match=rf"weights are NaN or infinite \({name}\).*Train again"):
        load(file).predict(rows.select("size", "colour"))
    if model is EllipticClassifier or not proba:
        with pytest.raises(TableError, match=r"model\.elliptica cannot predict .*weights are NaN"):
            predict_file(file, rows, proba=proba)


@pytest.mark.bad_input
def test_rows_out_of_all_proportion_are_named(rows, tmp_path):
    _, file = saved(tmp_path, rows, EllipticRegressor(**QUICK), "price")
    with_tensors(file, x_scale_=lambda scale: scale * 0)
    with (
        np.errstate(all="ignore"),
        pytest.raises(TableError, match=r"for \d+ of \d+ rows, the first of them"),
    ):
        predict_file(file, rows)


@pytest.mark.bad_input
def test_several_targets_are_not_one_column(rows, tmp_path):
    target = rows.select("price", "size").to_numpy()
    pipeline = Pipeline([("table", TablePreprocessor()), ("model", EllipticRegressor(**QUICK))])
    file = save(pipeline.fit(rows.select("size", "colour"), target), tmp_path / "model.elliptica")
    with pytest.raises(TableError, match=r"predicts 2 targets at once.*from Python"):
        predict_file(file, rows, tmp_path / "predictions.csv")


@pytest.mark.bad_input
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_that_nobody_reads(place, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TableError, match=r"pipe cannot be written \(nobody reads this pipe\)"):
        predict_file(place / "model.elliptica", place / "table.csv", tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    found, _ = predict_file(place / "model.elliptica", place / "table.csv", tmp_path / "pipe")
    assert os.read(reader, 2**16).count(b"\n") == 1 + len(found)
    os.close(reader)


@pytest.mark.bad_input
def test_paths_that_lead_nowhere(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for bad in (tmp_path / "loop", Path("x" * 5000)):
        for paths in [(bad, "a.csv", "b.csv"), ("model", bad, "b.csv"), ("model", "a.csv", bad)]:
            with pytest.raises(TableError, match="cannot be used"):
                predict_file(*paths)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "name",
    [
        pl.Series([[i] for i in range(N)]),
        pl.Series([b"a"] * N),
        pl.Series([{"a": 1}] * N),
        pl.Series(range(N)).cast(pl.Duration("us")),
    ],
    ids=["list", "bytes", "struct", "duration"],
)
def test_ids_that_a_csv_file_cannot_hold(rows, tmp_path, name):
    _, model = saved(tmp_path, rows, Ridge(), "price", ids=["name"])
    table = rows.with_columns(name.alias("name"))
    with pytest.raises(TableError, match=r"'name' is of type .*, which a CSV file cannot hold.*\.parquet"):
        predict_file(model, table, tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()
    predict_file(model, table, tmp_path / "p.parquet")
    assert pl.read_parquet(tmp_path / "p.parquet")["name"].to_list() == name.to_list()
