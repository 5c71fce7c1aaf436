"""Tables of strangers, from `elliptica compare` to `elliptica predict`."""

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.estimators import read_notes
from elliptica.tables.saved import predict_file

QUICK = ["--set", "folds=2", "--set", "trials=1", "--set", "epochs=2", "--methods", "elliptic"]


def run(*arguments):
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    return result.exit_code, " ".join(result.output.split())


def table(n=60, **columns):
    """Lines of a CSV file with a useful input, two classes, and what is asked for."""
    base = {"size": [0.5 * (i % 7) for i in range(n)], "kind": ["rose", "iris"] * (n // 2)}
    return pl.DataFrame({**base, **columns}).write_csv()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("content", "options", "named"),
    [
        (table(), ["--target", "knd"], "'knd'"),
        (table(price=["?!", *map(str, range(59))]), ["--target", "price"], "'price', row 1"),
        (table().replace("size,kind", "kind,kind"), ["--target", "kind"], "data.csv"),
        (table(day=["soon", "later"] * 30), ["--target", "kind", "--time", "day"], "'day'"),
        ("", ["--target", "kind"], "data.csv"),
    ],
)
def test_tables_that_cannot_work(tmp_path, monkeypatch, content, options, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text(content)
    code, output = run("compare", "data.csv", *options)
    assert code == 2, output
    assert output.startswith("error: ")
    assert named in output
    assert not (tmp_path / "compare").exists()


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """A comparison of a table with semicolons, decimal commas, a byte order mark, an id and a constant."""
    folder = tmp_path_factory.mktemp("clinic")
    draws = np.random.default_rng(0)
    label = draws.integers(0, 2, 80)
    frame = pl.DataFrame(
        {
            "patient": [f"{i:04d}" for i in draws.permutation(80)],
            "age": [f"{v:.2f}".replace(".", ",") for v in draws.normal(50 + 9 * label, 9)],
            "note": ["=HYPERLINK(1)", "+1", None, "@x"] * 20,
            "unit": ["mg"] * 80,
            "sick": [["no", "yes"][v] for v in label],
        }
    )
    frame.write_csv(folder / "clinic.csv", separator=";", include_bom=True)
    options = ["--target", "sick", "--as", "patient=id", "--out", folder / "out", *QUICK]
    code, output = run("compare", folder / "clinic.csv", *options)
    assert code == 0, output
    assert "unit not used: it is 'mg' in all rows" in output
    assert "patient identifier, not used" in output
    return folder, frame


def test_predictions_carry_the_ids_of_the_comparison(clinic):
    folder, frame = clinic
    model, new = folder / "out" / "model.elliptica", folder / "new.csv"
    assert read_notes(model)["ids"] == ["patient"]
    frame.drop("unit").write_csv(new, separator=";")
    code, output = run("predict", model, new, "--id", "sick", "--out", folder / "p.csv")
    assert code == 0, output
    predicted = pl.read_csv(folder / "p.csv", infer_schema=False)
    assert predicted.columns[:5] == ["row", "patient", "sick", "prediction", "probability"]
    assert predicted["patient"].to_list() == frame["patient"].to_list()  # as text: 0042 is not 42
    # a table without the id is predicted all the same, and rows in another order stay with their ids
    assert predict_file(model, frame.drop("patient"))[0].columns[:2] == ["row", "prediction"]
    backwards = predict_file(model, frame.reverse())[0]
    pairs = ("patient", "prediction")
    assert dict(backwards.select(pairs).iter_rows()) == dict(predicted.select(pairs).iter_rows())
    named = frame.with_columns(row=pl.col("sick"))
    assert predict_file(model, named, ids=["row"])[0]["row"].to_list() == frame["sick"].to_list()


@pytest.mark.bad_input
def test_predict_refuses_what_does_not_fit(clinic, tmp_path):
    folder, frame = clinic
    model = folder / "out" / "model.elliptica"
    frame.with_columns(age=pl.lit("40.5")).write_csv(tmp_path / "points.csv")
    frame.drop("age").write_csv(tmp_path / "lacks.csv")
    frame.with_columns(prediction=1).write_csv(tmp_path / "clash.csv", separator=";")
    (tmp_path / "junk.elliptica").write_bytes(b"junk")
    for saved, data, named in (
        (model, tmp_path / "points.csv", "points.csv: Column 'age', row 1"),
        (model, tmp_path / "lacks.csv", "'age'"),
        (model, tmp_path / "none.csv", "none.csv"),
        (tmp_path / "junk.elliptica", folder / "clinic.csv", "junk.elliptica"),
        (folder, folder / "clinic.csv", folder.name),
        (model, tmp_path / "clash.csv", "'prediction'"),
    ):
        ids = ["--id", "prediction"] if data.name == "clash.csv" else []
        code, output = run("predict", saved, data, "--out", tmp_path / "p.csv", *ids)
        assert code in (1, 2), output
        assert output.startswith("error: ")
        assert named in output
        assert not (tmp_path / "p.csv").exists()
