"""A whole comparison: repeatable, kept on disk, refused before any training."""

import json
import math

import numpy as np
import polars as pl
import pytest

from elliptica.compare import Comparison, TableError, compare, fit_model
from elliptica.compare import protocol as protocol_module
from elliptica.compare.markdown import markdown
from elliptica.compare.problem import make_problem
from elliptica.compare.table import read_table

QUICK = {"repeats": 3, "trials": 2, "epochs": 4, "hidden": (8,)}


def test_comparison(found, flowers):
    assert found.complete
    assert found.repeats == [0, 1, 2]
    table = found.table()
    assert table["method"].to_list() == ["erm", "mixup", "elliptic", "elliptic-weighted"]
    values = [record.test["accuracy"] for record in found.records if record.method == "elliptic"]
    row = table.row(2, named=True)
    assert row["accuracy"] == pytest.approx(np.mean(values))
    assert row["accuracy_deviation"] == pytest.approx(np.std(values, ddof=1))
    assert found.best in found.plan.methods
    assert found.verdict.text
    assert set(found.records[0].parts) == {"north", "south"}
    assert "site" not in found.problem.features.columns


def test_same_seed_same_numbers(found, flowers):
    again = compare(flowers.drop("height"), "kind", group="site", **{**QUICK, "repeats": 1})
    for record in again.records:
        (same,) = [r for r in found.records if (r.repeat, r.method) == (record.repeat, record.method)]
        assert record.test == same.test
        assert [t.validation for t in record.trials] == [t.validation for t in same.trials]


def test_regression_with_trees(flowers, tmp_path):
    options = {**QUICK, "repeats": 2}
    result = compare(flowers, "height", trees=True, methods=["c-mixup", "elliptic"], out=tmp_path, **options)
    assert result.table()["method"].to_list() == ["erm", "c-mixup", "elliptic", "trees"]
    assert result.table().columns[2] == "rmse"
    assert result.table()["evaluations"].to_list()[-1] is None
    assert all(math.isfinite(v) for v in result.table()["worst_fifth_rmse"])
    model = fit_model(result)
    predicted = model.predict(result.problem.features)
    assert predicted.shape == (120,)


def test_results_are_kept_and_extended(flowers, tmp_path):
    frame = flowers.drop("height")
    options = {**QUICK, "trials": 1, "epochs": 1, "out": tmp_path}
    compare(frame, "kind", methods=["elliptic"], **{**options, "repeats": 1})
    content = json.loads((tmp_path / "results.json").read_text())
    assert [r["method"] for r in content["records"]] == ["erm", "elliptic"]
    done = []
    more = compare(
        frame, "kind", methods=["elliptic", "mixup"], **options, listen=lambda *told: done.append(told)
    )
    assert len(more.records) == 9
    assert done[0][2] == "repeat 1 of 3, mixup"
    assert len(done) == 7 + 1
    with pytest.raises(TableError, match="another comparison: target was 'kind' and is now 'colour'"):
        compare(frame, "colour", **options)
    with pytest.raises(TableError, match="another comparison: rows or cells of the table have changed"):
        compare(frame.with_columns(pl.col("size") * 2), "kind", **options)
    (tmp_path / "results.json").write_text('{"about": ')
    with pytest.raises(TableError, match="cannot be read"):
        compare(frame, "kind", **options)


def test_unfinished_repeats_are_left_out(found):
    partial = Comparison(found.problem, found.plan, found.records[:6], found.name)
    assert partial.repeats == [0]
    assert not partial.complete
    assert "No verdict: 1 finished repeat is too few" in partial.verdict.text
    assert "6 of 12 runs are done" in markdown(partial)
    empty = Comparison(found.problem, found.plan, (), found.name)
    assert "No verdict: 0 finished repeats" in empty.verdict.text
    assert "No model is saved" in markdown(empty)


@pytest.mark.bad_input
def test_what_no_training_can_use_is_found_before_any_training(monkeypatch, tmp_path):
    monkeypatch.setattr(protocol_module, "run_method", lambda *_: pytest.fail("trained"))
    monkeypatch.setattr("elliptica.compare.comparison.run_method", lambda *_: pytest.fail("trained"))
    draws = np.random.default_rng(0)
    site = np.repeat([f"s{i}" for i in range(8)], [40, 40, 8, 8, 8, 8, 8, 8])
    frame = pl.DataFrame({"x": draws.normal(size=128), "site": site, "y": draws.normal(size=128)})
    out = tmp_path / "out"
    with pytest.raises(
        TableError, match=r"In repeat \d+ all (test|validation) rows are of groups that are too"
    ):
        compare(frame, "y", group="site", split_by="site", repeats=5, out=out)
    rare = frame.with_columns(pl.Series("y", ["a"] * 120 + ["b"] * 8))
    with pytest.raises(TableError, match="no training row has the class 'b'"):
        compare(rare, "y", split_by="site", repeats=20, out=out)
    assert not out.exists()


@pytest.mark.bad_input
def test_a_folder_that_cannot_be_written_is_found_before_any_training(flowers, monkeypatch, tmp_path):
    monkeypatch.setattr("elliptica.compare.comparison.run_method", lambda *_: pytest.fail("trained"))
    file = tmp_path / "file"
    file.write_text("x")
    for out in (file, file / "below"):
        with pytest.raises(TableError, match=r"Nothing can be written to the folder .* Choose another --out"):
            compare(flowers, "kind", out=out, **QUICK)
    (tmp_path / "odd" / "results.json").mkdir(parents=True)
    with pytest.raises(TableError, match=r"cannot be read .* choose another --out"):
        compare(flowers, "kind", out=tmp_path / "odd", **QUICK)
    assert file.read_text() == "x"


def test_tables_of_the_study(tmp_path):
    """Shapes as scikit-learn documents them, the task as intended, and a page that keeps its frame."""
    import compare_tables as study

    expected = {
        "breast_cancer": (569, 30, "classification"),
        "diabetes": (442, 9, "regression"),
        "wine": (178, 13, "classification"),
        "digits": (1797, 64 - 3, "classification"),  # three pixels are never used
    }
    for name, (n_rows, n_inputs, task) in expected.items():
        study.frame(name).write_csv(tmp_path / f"{name}.csv")
        group = "sex" if name == "diabetes" else None
        problem = make_problem(read_table(tmp_path / f"{name}.csv"), "target", group=group)
        assert (len(problem.target), problem.features.width, problem.task) == (n_rows, n_inputs, task)
    (tmp_path / "README.md").write_text(f"before\n{study.BEGIN}\nold\n{study.END}\nafter\n")
    (tmp_path / "wine").mkdir()
    content = {"about": {"rows": 178, "inputs": ["a"]}, "verdict": {"text": "Use it."}}
    (tmp_path / "wine" / "results.json").write_text(json.dumps(content))
    study.write_page(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "**wine, 3 classes** (178 rows, 1 inputs; [report](wine/report.md)): Use it." in text
