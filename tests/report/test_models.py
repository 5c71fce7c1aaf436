"""Reports about comparisons and models: scores against independent ones, planes, bridges, kept weights."""

import json
import math
import statistics

import numpy as np
import polars as pl
import pytest
import torch
from sklearn import metrics as sk
from torch import nn
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.cli.report import Request, make_report
from elliptica.diagnostics.planes import choose_planes
from elliptica.diagnostics.report_landscape import BRIDGES, GRID, TIMES, Subject, look_at
from elliptica.diagnostics.scores import model_study
from elliptica.report import ReportError, render_page


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


# --- planes and bridges ------------------------------------------------------------------------------------


@pytest.fixture
def planes(generator):
    x = torch.randn(30, 6, generator=generator, dtype=torch.float64)
    losses = torch.rand(30, generator=generator, dtype=torch.float64)
    return x, losses, choose_planes(x, torch.arange(30) % 3, losses, generator)


def test_planes_have_right_angles_and_pass_through_their_points(planes):
    x, losses, found = planes
    assert [len(plane.corners) for plane in found] == [0, 3, 3, 3]
    for plane in found:
        assert abs(float(plane.first @ plane.second)) < 1e-12
        assert float(plane.first.norm()) == pytest.approx(1)
        for row in plane.corners:
            u, v = plane.coordinates(x[row : row + 1])[0]
            torch.testing.assert_close(plane.origin + u * plane.first + v * plane.second, x[row])
            assert plane.low[0] < u < plane.high[0]
            assert plane.low[1] < v < plane.high[1]
    assert all(len({row % 3 for row in plane.corners}) == 3 for plane in found[1:])  # of different classes
    assert int(losses.argmax()) in found[-1].corners


def test_the_principal_plane_holds_most_of_the_spread(planes):
    x, _, (principal, *_) = planes
    spread = principal.coordinates(x).var(0).sum()
    others = torch.linalg.eigvalsh(torch.cov(x.T))
    torch.testing.assert_close(spread, others[-2:].sum())


def test_targets_on_a_plane_are_those_of_its_corners(planes):
    x, _, (_, plane, *_) = planes
    labels = torch.eye(3, dtype=torch.float64)[torch.arange(30) % 3]
    corners = x[list(plane.corners)]
    torch.testing.assert_close(
        plane.targets(corners, x, labels, is_share=True), labels[list(plane.corners)], atol=1e-9, rtol=0
    )
    middle = plane.targets(corners.mean(0, keepdim=True), x, labels, is_share=True)
    torch.testing.assert_close(middle, torch.full((1, 3), 1 / 3, dtype=torch.float64))
    beyond = plane.targets((3 * corners[0] - 2 * corners[1])[None], x, labels, is_share=True)
    assert float(beyond.min()) >= 0
    assert float(beyond.sum()) == pytest.approx(1)
    real = x[:, :1] * 2 + 1  # linear in x: the plane goes on beyond the triangle
    far = plane.targets((3 * corners[0] - 2 * corners[1])[None], x, real, is_share=False)
    torch.testing.assert_close(far, 3 * real[[plane.corners[0]]] - 2 * real[[plane.corners[1]]])


def test_points_on_a_line_and_duplicates_have_no_plane(generator):
    line = torch.linspace(0, 1, 12).double()[:, None] * torch.ones(4).double()
    assert [p.corners for p in choose_planes(line, None, torch.rand(12), generator)] == [()]
    with pytest.raises(ValueError, match="one feature"):
        choose_planes(torch.rand(5, 1), None, torch.rand(5), generator)


def test_a_grid_evaluates_the_loss_where_it_says(generator):
    x = torch.randn(50, 2, generator=generator)
    y = (3 * x[:, :1] - x[:, 1:]).clone()
    model = nn.Linear(2, 1)
    found = look_at(Subject("m", model, nn.MSELoss(), x, y, location=(10.0, 20.0), scale=(2.0, 3.0)))
    (plane,) = found["planes"]
    assert np.shape(plane["loss"]) == (GRID, GRID)
    u, v = (plane["x"][7] - 10) / 2, (plane["y"][31] - 20) / 3  # back to the network's units
    point = torch.tensor([[u, v]])
    target = y[torch.cdist(point, x).argmin(1)]
    assert plane["loss"][31][7] == pytest.approx(float((model(point) - target).detach() ** 2), rel=1e-4)
    losses = ((model(x) - y) ** 2).detach().flatten()
    assert found["band"] == pytest.approx([float(losses.min()), float(losses.max())], rel=1e-5)
    bridges = found["bridges"]
    assert np.shape(bridges["loss"]) == (BRIDGES, TIMES)
    assert np.shape(bridges["path"]) == (BRIDGES, TIMES, 2)
    known = [float(value) for value in losses]
    for line in bridges["loss"]:  # both ends are data
        assert min(abs(line[0] - k) for k in known) < 1e-4 * (1 + line[0])
        assert min(abs(line[-1] - k) for k in known) < 1e-4 * (1 + line[-1])


def test_a_perfect_model_stays_in_the_band(generator):
    """A linear model with its own outputs as targets has no loss anywhere on a bridge; a bent one has."""
    x, model = torch.randn(60, 5, generator=generator), nn.Linear(5, 2)
    found = look_at(Subject("m", model, nn.MSELoss(), x, model(x).detach()))
    assert np.max(found["bridges"]["loss"]) < 0.1  # the noise of the bridges is not the targets'

    class Bent(nn.Module):
        def forward(self, z):
            return z.square().sum(1, keepdim=True)

    bent = look_at(Subject("m", Bent(), nn.MSELoss(), x, x.square().sum(1, keepdim=True)))
    assert bent["above"]["share"] == 1.0
    assert bent["above"]["low"] < 1.0 <= bent["above"]["high"]


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
def test_a_model_that_cannot_be_looked_at_says_so():
    with pytest.raises(ReportError, match=r"m cannot be looked at.*evaluated on x"):
        look_at(
            Subject("m", nn.Linear(3, 2), nn.CrossEntropyLoss(), torch.randn(20, 2), torch.arange(20) % 2)
        )


# --- scores of a model -------------------------------------------------------------------------------------


def test_scores_of_classes_agree_with_scikit_learn(generator):
    x = torch.randn(200, 3, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 1).long()
    model = nn.Linear(3, 3)
    groups = ["a" if value > 0 else "b" for value in x[:, 2]]
    study = model_study("m", model, x, y, groups=groups, class_names=["u", "v", "w"])
    guess = model(x).argmax(1)
    cells = {row[0][0]: row[1][1] for row in study.table.rows}
    assert cells["accuracy, %"] == pytest.approx(100 * sk.accuracy_score(y, guess))
    assert cells["accuracy balanced over classes, %"] == pytest.approx(
        100 * sk.balanced_accuracy_score(y, guess)
    )
    group, classes = study.parts
    assert (group.kind, classes.kind) == ("group", "class")
    assert classes.values["m"]["v"][0] == pytest.approx(100 * float((guess == y)[y == 1].double().mean()))
    low, high = classes.limits["m"]["v"]
    assert low < classes.values["m"]["v"][0] < high
    bins = study.reliability["m"]
    gap = sum(n * abs(c - a) for n, c, a in zip(*bins.values(), strict=True) if n) / 200
    assert cells["calibration error, %"] == pytest.approx(100 * gap, abs=1e-4)
    sizes = [study.uncertainty.sizes[name] for name in study.uncertainty.names]
    assert sizes == sorted(sizes)


def test_errors_of_values_are_in_the_units_of_the_table(generator):
    x = torch.randn(80, 2, generator=generator)
    y = x.sum(1, keepdim=True)
    model = nn.Linear(2, 1)
    study = model_study("m", model, x, y, groups=["a", "b"] * 40, class_names=(), unit=10.0)
    rmse = 10 * math.sqrt(float(((model(x) - y) ** 2).detach().mean()))
    assert study.table.rows[0][1][1] == pytest.approx(rmse, rel=1e-5)
    low, high = (float(v) for v in study.table.rows[0][2][0].split(" to "))
    assert low < rmse < high
    assert study.table.rows[1][0][0] == "worst-group RMSE"


def test_own_models_as_diagnose_takes_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_for_report.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Linear(4, 2)\n"
    )
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    np.savez(tmp_path / "data.npz", x=x, y=(x[:, 0] > 0).astype("int64"))
    report = make_report(Request("data.npz", model="mine_for_report:make"))
    assert {finding[0] for finding in report.findings} <= {"fine", "look", "warning"}
    ranks = [("warning", "look", "fine").index(f[0]) for f in report.findings]
    assert ranks == sorted(ranks)
    assert not any(finding[2].endswith(":") for finding in report.findings)  # the list is not on the page
    assert report.studies[0].landscapes[0]["features"] == 4
    assert "mine_for_report:make on data.npz" in render_page(report).lower()
    quick = make_report(Request("data.npz", model="mine_for_report:make", landscape=False))
    assert not quick.findings
    assert quick.studies[0].missing["landscape"].startswith("Left out")
    for wrong, said in (
        ({"model": "absent:make"}, "No module"),
        (
            {"model": "mine_for_report:make", "target": "y"},
            "cannot be read as a saved|not a saved|cannot be read",
        ),
        ({"loss": "mse"}, "--loss needs --model"),
    ):
        with pytest.raises(ReportError, match=said):
            make_report(
                Request("data.npz", **({"data": tmp_path / "data.npz"} if "target" in wrong else {}), **wrong)
            )


# --- comparisons and saved models --------------------------------------------------------------------------


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


# --- models that runs have kept ----------------------------------------------------------------------------


@pytest.mark.slow
def test_kept_models_are_looked_at(tmp_path, data_dir):
    words = ["run", "table3", "--dataset", "no2", "--methods", "erm,marginal", "--seeds", 1, "--epochs", 1]
    words += ["--data-dir", data_dir, "--out", tmp_path]
    code, output = run(*words, "--keep-models")
    assert code == 0, output
    assert f"elliptica report {tmp_path}" in "".join(output.split("\n"))
    files = sorted(tmp_path.rglob("*.model.safetensors"))
    assert len(files) == 2
    record = json.loads(files[0].with_name(files[0].name.replace(".model.safetensors", ".json")).read_text())
    assert record["rows"]["train"]["rows"] == 200
    report = make_report(Request(str(tmp_path), data_dir=data_dir))
    (study,) = report.studies
    assert [look["name"] for look in study.landscapes] == ["erm, seed 0", "marginal, seed 0"]
    assert study.landscapes[0]["features"] == 7
    assert "epochs = 1" in study.subtitle
    files[0].write_bytes(b"damaged")
    report = make_report(Request(str(tmp_path), data_dir=data_dir))
    assert len(report.studies[0].landscapes) == 1
    assert "erm, seed 0, cannot be used" in report.notes[-1]
    files[0].unlink()
    code, output = run(*words, "--keep-models")  # recorded already: says that it is too late
    assert "1 of 2 runs have no model" in output
