"""Pages about comparisons and saved models."""

import json
import re

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.cli.report import Request, make_report
from elliptica.estimators import EllipticRegressor, save
from elliptica.report import ReportError
from elliptica.tables.predict import predict_file


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison with groups; the recommended method is a network, since nothing else is run."""
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
        *("compare", folder / "table.csv", "--target", "kind", "--group", "site"),
        *("--methods", "elliptic,groupdro,mixup"),
        *("--folds", 3, "--trials", 1, "--epochs", 4, "--out", folder / "out"),
    )
    assert code == 0, output
    return folder


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    """Trees win: a chessboard that a linear model and short training do not find."""
    folder = tmp_path_factory.mktemp("regression")
    draws = np.random.default_rng(1)
    x = draws.normal(size=(400, 2))
    y = np.where(x[:, 0] * x[:, 1] > 0, 10.0, 0.0)
    pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y + draws.normal(size=400)}).write_csv(
        folder / "table.csv"
    )
    code, output = run(
        *("compare", folder / "table.csv", "--target", "y", "--methods", "elliptic,trees,linear"),
        *("--folds", 3, "--trials", 1, "--epochs", 3, "--out", folder / "out"),
    )
    assert code == 0, output
    return folder


def test_compare_leaves_the_page_with_charts(compared):
    page = (compared / "out" / "report.html").read_text()
    assert 'data-chart="differences"' in page
    assert "<b>yes</b>" not in page.replace("\\u003c", "")


def test_a_comparison_as_a_study(compared):
    summary = json.loads((compared / "out" / "results.json").read_text())["summary"]
    report = make_report(Request(str(compared / "out")))
    (study,) = report.studies
    erm = [100 * v for v in summary["by_fold"]["erm"]["accuracy"]]
    assert list(study.values["accuracy"]["ordinary training"].values()) == pytest.approx(erm)
    assert study.scores["accuracy"]["ordinary training"] == pytest.approx(
        100 * summary["scores"]["erm"]["accuracy"]
    )
    assert report.headline == study.verdict.headline == summary["verdict"]["headline"]
    assert (study.parts[0].kind, study.parts[0].names) == ("group", ["s0", "s1", "s2"])
    assert sum(study.parts[0].sizes.values()) == 150
    headings = [section.heading for section in study.sections]
    assert headings[:3] == ["Every column judged", "Calibration, before and after a temperature", "Columns"]
    assert "GroupDRO †" in study.methods
    assert "† sees groups in training." in study.notes


def test_signs_agree_between_table_and_chart(regression):
    """Less error is negative in the cell, in the chart and in the facts; trees are far better here."""
    (study,) = make_report(Request(str(regression / "out"))).studies
    (difference,) = [
        d for d in study.verdict.differences if (d.method, d.measure) == ("boosted trees", "rmse")
    ]
    row = next(row for row in study.table.rows if row[0][0] == "boosted trees")
    shown = float(re.match(r"[-+][\d.]+", row[2][0])[0])
    assert shown < -10
    assert difference.mean == pytest.approx(shown, abs=0.6)
    assert difference.result == "better"
    assert row[2][0].endswith("better")
    assert row[2][2]  # stands out
    facts = {question: answer for question, answer, _ in study.verdict.facts}
    assert facts["Which method"] == "boosted trees"
    assert facts["Against ordinary training"] == row[2][0].partition(" (")[0].replace("\u00a0", " ")
    assert facts["How sure"] == "shown"
    (rmse,) = [m for m in study.measures if m.name == "rmse"]
    assert rmse.relative


def test_every_score_stands_under_its_name(compared, regression):
    """The deciding score first, then how it compares, then the others."""
    for folder in (compared, regression):
        summary = json.loads((folder / "out" / "results.json").read_text())["summary"]
        (study,) = make_report(Request(str(folder / "out"))).studies
        labels = {m.label: m.name for m in study.measures}
        assert set(study.table.head) == {"method", "compared with ordinary training", "seconds", *labels}
        (row,) = [row for row in study.table.rows if row[0][0] == "ordinary training"]
        assert len(row) == len(study.table.head)
        for name, (_, value, _) in zip(study.table.head, row, strict=True):
            if name in labels:
                assert value == summary["scores"]["erm"][labels[name]]


def test_what_does_not_help_does_not_stand_out(compared):
    (study,) = make_report(Request(str(compared / "out"))).studies
    for row in study.table.rows:
        assert row[2][2] == row[2][0].endswith(" better") * (row[0][0] == study.verdict.best)


def test_trees_have_no_page_and_are_diagnosed(regression):
    model = regression / "out" / "model.elliptica"
    code, output = run("report", model, "--data", regression / "table.csv", "-o", regression / "page.html")
    assert code == 2
    assert "holds boosted trees, not a network" in " ".join(output.split())
    code, output = run("diagnose", regression / "table.csv", "--model", model)
    assert code == 0, output  # trees are judged by what they predict
    assert "400 training rows" in output


def test_half_a_comparison_shows_what_is_there(compared, tmp_path):
    results = json.loads((compared / "out" / "results.json").read_text())
    results["summary"]["finished"] = [2, 3]
    (tmp_path / "results.json").write_text(json.dumps(results))
    (study,) = make_report(Request(str(tmp_path))).studies
    assert study.missing["seeds"].startswith("Not finished: 2 of 3 folds are finished and kept.")
    summary = results["summary"]
    for place, said in (
        ({"summary": {**summary, "methods": {"a": 1}}}, "is damaged"),
        ({"summary": {**summary, "scores": {}}}, "is damaged"),
        ({"summary": []}, "is damaged"),
        ({"versions": 3}, "is damaged"),
    ):
        (tmp_path / "results.json").write_text(json.dumps({**results, **place}))
        with pytest.raises(ReportError, match=said):
            make_report(Request(str(tmp_path)))
    del results["summary"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(ReportError, match=r"has nothing to show yet\. Let the comparison finish"):
        make_report(Request(str(tmp_path)))
    (tmp_path / "results.json").write_text(json.dumps({**results, "format": 1}))
    with pytest.raises(ReportError, match="was written by an earlier version of elliptica"):
        make_report(Request(str(tmp_path)))


@pytest.mark.slow
def test_a_saved_model_with_its_table(compared, tmp_path):
    model = compared / "out" / "model.elliptica"
    request = Request(str(model), data=compared / "table.csv", target="kind", group="site")
    report = make_report(request)
    (study,) = report.studies
    predicted, _ = predict_file(model, compared / "table.csv")
    truth = pl.read_csv(compared / "table.csv")["kind"].to_numpy()
    accuracy = 100 * float((predicted["prediction"].to_numpy() == truth).mean())
    assert study.values["average"][study.methods[0]][0] == pytest.approx(accuracy)
    assert study.curves
    assert [part.kind for part in study.parts] == ["group", "class"]
    assert len(study.versions["sha256 of the model"]) == 16
    (same,) = make_report(Request(str(model), data=compared / "table.csv")).studies
    assert same.values == study.values  # it knows its target
    for wrong, said in (
        (Request(str(model)), "needs a table with targets"),
        (
            Request(str(model), data=compared / "table.csv", target="site"),
            "not among the classes of the model",
        ),
        (Request(str(model), data=compared / "table.csv", target="absent"), "absent"),
        (Request(str(model), data=compared / "gone.csv", target="kind"), "does not exist"),
        (
            Request(str(compared / "table.csv"), data=compared / "table.csv", target="kind"),
            "is a table. Run elliptica compare",
        ),
    ):
        with pytest.raises(ReportError, match=said):
            make_report(wrong)


def test_a_network_without_its_preprocessor_has_a_page(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 2))
    network = EllipticRegressor(hidden=(4,), max_iter=2, random_state=0).fit(x, 10 * x[:, 0])
    model, table = save(network, tmp_path / "bare.elliptica"), tmp_path / "table.csv"
    pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": 10 * x[:, 0]}).write_csv(table)
    request = Request(str(model), data=table, target="y")
    (study,) = make_report(request).studies
    rmse = float(np.mean((network.predict(x) - 10 * x[:, 0]) ** 2) ** 0.5)
    assert study.values["average"][study.methods[0]][0] == pytest.approx(rmse, rel=1e-4)
    with pytest.raises(ReportError, match=r"does not say which column it predicts\. Pass --target COLUMN"):
        make_report(Request(str(model), data=table))
    pl.read_csv(table).head(9).write_csv(table)
    with pytest.raises(ReportError, match="9 rows with a target, but at least 10 are needed"):
        make_report(request)


DRAW_ALL = """async () => {
  for (const figure of document.querySelectorAll('figure[data-chart]')) {
    figure.scrollIntoView({behavior: 'instant', block: 'center'});
    for (let i = 0; i < 500 && !figure.querySelector('.main-svg'); i++)
      await new Promise((r) => setTimeout(r, 10));
  }
  scrollTo(0, 0);
  await new Promise((r) => setTimeout(r, 200));  // the observers of sizes
}"""

#: Charts with room left in their box: the drawing ends more than a pixel above its end, or beside it.
UNFILLED = """() => [...document.querySelectorAll('figure[data-chart]')].filter((figure) => {
  const plot = figure.querySelector('.plot'), drawn = plot.querySelector('.main-svg').getBoundingClientRect();
  const end = (e) => e.getBoundingClientRect().bottom, far = (a, b) => Math.abs(a - b) > 1;
  return far(drawn.height, plot.clientHeight) || far(drawn.width, plot.clientWidth) ||
    end(figure) - end(figure.querySelector('.numbers')) > 16;
}).map((figure) => figure.dataset.chart)"""

#: Right end of the cells of a column of the main table, and of the box that shows it.
ENDS = """(number) => {
  const box = document.querySelector('section.study > .table-box .scroll').getBoundingClientRect();
  const cells = document.querySelectorAll(`section.study > .table-box tbody tr > *:nth-child(${number})`);
  return [Math.max(...[...cells].map((cell) => cell.getBoundingClientRect().right)), box.right];
}"""


@pytest.fixture(scope="module")
def phone(shared_visit, compared):
    seen = shared_visit(compared / "out" / "report.html", width=375, dark=True, reduced_motion=True)
    seen.page.evaluate(DRAW_ALL)
    return seen


@pytest.fixture(scope="module")
def desk(shared_visit, regression):
    seen = shared_visit(regression / "out" / "report.html", width=1280, reduced_motion=True)
    seen.page.evaluate(DRAW_ALL)
    return seen


@pytest.mark.slow
def test_a_phone_shows_the_result_column(phone):
    """Method, score and the comparison fit without scrolling; nothing makes the page wider."""
    end, edge = phone.page.evaluate(ENDS, 3)
    assert end <= edge + 1
    assert (
        "compared with ordinary training" in phone.page.inner_text("section.study > .table-box thead").lower()
    )
    assert (phone.overflow(), phone.low_contrast(), phone.problems, phone.requests) == ([], [], [], [])
    phone.switch(dark=False)
    assert phone.low_contrast() == []


@pytest.mark.slow
def test_charts_fill_their_cards(desk, phone):
    for seen in (desk, phone):
        charts = seen.page.eval_on_selector_all(
            "figure[data-chart]", "all => all.map((f) => f.dataset.chart)"
        )
        assert charts == ["seeds", "differences", "parts-0"]
        assert seen.page.evaluate(UNFILLED) == []
    desk.resize(700)
    desk.page.wait_for_timeout(300)
    assert desk.page.evaluate(UNFILLED) == []
    desk.resize(1280)


@pytest.mark.slow
def test_the_chart_has_the_signs_of_the_table(desk):
    """The dot of the trees lies left of the line, where less error is."""
    figure = desk.page.locator("figure[data-chart=differences]")
    figure.locator("summary").click()
    rows = figure.locator("details tbody tr")
    rows.first.wait_for()  # browsers send `toggle` after the click has returned
    rows = rows.all_inner_texts()
    trees = next(row for row in rows if row.startswith("boosted trees"))
    assert "better" in trees
    assert trees.split("\t")[1].strip().startswith(("-", "\u2212"))
    plot = "document.querySelector('figure[data-chart=differences] .plot')"
    xs = desk.page.evaluate(f"{plot}.data.at(-1).x")
    names = desk.page.evaluate(f"{plot}.layout.yaxis.ticktext.map((t) => t.trim())")
    assert xs[names.index("boosted trees")] < 0
    assert "left of the line is better" in desk.page.evaluate(f"{plot}.layout.xaxis.title.text")
    assert (desk.overflow(), desk.low_contrast(), desk.problems) == ([], [], [])
