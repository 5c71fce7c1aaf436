"""Pages about comparisons and saved models."""

import json
import statistics

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.cli.report import Request, make_report
from elliptica.estimators import EllipticRegressor, save
from elliptica.report import ReportError


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    draws = np.random.default_rng(0)
    kind = draws.integers(0, 2, 150)
    frame = pl.DataFrame(
        {
            "a": kind + 0.5 * draws.normal(size=150),
            "b": draws.normal(size=150),
            "kind": [["no", "<b>yes</b>"][k] for k in kind],
            "site": [f"s{i % 3}" for i in range(150)],
        }
    )
    frame.write_csv(folder / "table.csv")
    code, output = run(
        *("compare", folder / "table.csv", "--target", "kind", "--group", "site", "--methods", "elliptic"),
        *("--repeats", 3, "--trials", 1, "--epochs", 4, "--out", folder / "out"),
    )
    assert code == 0, output
    return folder, output


@pytest.mark.slow
def test_compare_leaves_the_page_with_charts(compared):
    folder, output = compared
    assert "report.html has charts" in output
    assert f"-o {folder / 'out' / 'report.html'}" in output
    page = (folder / "out" / "report.html").read_text()
    assert 'data-chart="surface"' in page
    assert "<b>yes</b>" not in page.replace("\\u003c", "")


@pytest.mark.slow
def test_a_comparison_as_a_study(compared):
    folder, _ = compared
    results = json.loads((folder / "out" / "results.json").read_text())
    report = make_report(Request(str(folder / "out"), data=folder / "table.csv"))
    (study,) = report.studies
    erm = [r["test"]["accuracy"] for r in results["records"] if r["method"] == "erm"]
    assert list(study.values["accuracy"]["ordinary training"].values()) == pytest.approx(
        [100 * v for v in erm]
    )
    shown = f"{100 * statistics.mean(erm):.1f} ± {100 * statistics.stdev(erm):.1f}"
    assert study.table.rows[0][1][0] == shown
    assert results["verdict"]["text"].startswith(study.verdict.headline)
    assert study.parts[0].kind == "group"
    assert study.parts[0].names == ["s0", "s1", "s2"]
    assert study.landscapes[0]["features"] == 2
    assert study.landscapes[0]["planes"][0]["axes"] == ["a", "b"]
    without = make_report(Request(str(folder / "out")))
    assert "--data" in without.studies[0].missing["landscape"]


@pytest.mark.slow
def test_a_table_that_is_given_must_be_there_and_fit(compared, tmp_path):
    folder, _ = compared
    page = tmp_path / "page.html"
    pl.DataFrame({"a": [1.0] * 20, "kind": ["no"] * 20}).write_csv(tmp_path / "other.csv")
    for data, said in (("nope.csv", "nope.csv does not exist"), ("other.csv", "no column 'b'")):
        code, output = run("report", folder / "out", "--data", tmp_path / data, "-o", page)
        assert code == 2, output
        assert said in " ".join(output.split())
        assert not page.exists()
    code, output = run("report", folder / "out", "-o", page)
    assert code == 0, output
    assert "landscape is left out. It needs the table that was compared: elliptica report" in output
    code, output = run("report", folder / "out", "-o", page, "--no-landscape")
    assert "left out" not in output


@pytest.mark.slow
def test_half_a_comparison_shows_what_is_there(compared, tmp_path):
    folder, _ = compared
    results = json.loads((folder / "out" / "results.json").read_text())
    results["records"] = results["records"][:5]
    results["records"][0]["test"]["accuracy"] = "high"
    del results["records"][1]["trials"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    report = make_report(Request(str(tmp_path)))
    assert [name for name, _ in report.unusable] == ["results.json, record 0", "results.json, record 1"]
    (study,) = report.studies
    assert study.missing["seeds"].startswith("Not finished: 3 of 6 runs are there, 1 repeats are complete")
    assert study.verdict.headline.startswith("No verdict")
    assert "holds no model.elliptica" in study.missing["landscape"]
    for place, value, said in (
        ("methods", {"a": 1}, "is damaged"),
        ("notices", 3, "is damaged"),
        ("repeats", "five", "is damaged"),
        ("about", [], "does not say what was compared"),
        ("records", {}, "no finished run"),
        ("records", [], "no finished run"),
    ):
        (tmp_path / "results.json").write_text(json.dumps({**results, place: value}))
        with pytest.raises(ReportError, match=said):
            make_report(Request(str(tmp_path)))


@pytest.mark.slow
def test_a_saved_model_with_its_table(compared, tmp_path):
    folder, _ = compared
    model = folder / "out" / "model.elliptica"
    request = Request(str(model), data=folder / "table.csv", target="kind", group="site")
    report = make_report(request)
    (study,) = report.studies
    from elliptica.compare.predict import predict_file

    predicted, _ = predict_file(model, folder / "table.csv")
    truth = pl.read_csv(folder / "table.csv")["kind"].to_numpy()
    accuracy = 100 * float((predicted["prediction"].to_numpy() == truth).mean())
    assert study.values["average"][study.methods[0]][0] == pytest.approx(accuracy)
    assert study.curves
    assert [part.kind for part in study.parts] == ["group", "class"]
    assert len(study.versions["sha256 of the model"]) == 16
    (same,) = make_report(Request(str(model), data=folder / "table.csv", landscape=False)).studies
    assert same.values == study.values  # it knows its target
    for wrong, said in (
        (Request(str(model)), "needs the data"),
        (Request(str(model), data=folder / "table.csv", target="site"), "none of the classes of the model"),
        (Request(str(model), data=folder / "table.csv", target="absent"), "absent"),
        (Request(str(model), data=folder / "gone.csv", target="kind"), "does not exist"),
        (
            Request(str(folder / "table.csv"), data=folder / "table.csv", target="kind"),
            "is a table. First elliptica compare",
        ),
    ):
        with pytest.raises(ReportError, match=said):
            make_report(wrong)


def test_a_network_without_its_preprocessor_has_a_page(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 2))
    network = EllipticRegressor(hidden=(4,), max_iter=2, random_state=0).fit(x, 10 * x[:, 0])
    model, table = save(network, tmp_path / "bare.elliptica"), tmp_path / "table.csv"
    pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": 10 * x[:, 0]}).write_csv(table)
    request = Request(str(model), data=table, target="y", landscape=False)
    (study,) = make_report(request).studies
    rmse = float(np.mean((network.predict(x) - 10 * x[:, 0]) ** 2) ** 0.5)
    assert study.values["average"][study.methods[0]][0] == pytest.approx(rmse, rel=1e-4)
    with pytest.raises(ReportError, match=r"does not say which column it predicts\. Pass --target COLUMN"):
        make_report(Request(str(model), data=table))
    pl.read_csv(table).head(9).write_csv(table)
    with pytest.raises(ReportError, match="9 rows with a target; at least 10 are needed"):
        make_report(request)
