"""Models on a page: scores against independent ones, planes, bridges."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import nn

from elliptica.cli.report import Request, make_report
from elliptica.diagnostics.planes import choose_planes
from elliptica.diagnostics.report_landscape import BRIDGES, GRID, TIMES, Subject, look_at
from elliptica.diagnostics.scores import model_study
from elliptica.report import ReportError, render_page


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
