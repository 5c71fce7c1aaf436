"""The demo: what is trained, what is measured, the files of the command, and the study of variants."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from elliptica._utils.random import stream
from elliptica.cli import app
from elliptica.core.elliptic import Elliptic
from elliptica.lab.data.toy import half_discs
from elliptica.lab.demo import moons as demo
from elliptica.lab.demo.pictures import TOP, moon_surfaces, surface_colours

SHORT = demo.Settings(n_seeds=2, n_steps=40, n_points=1000)


@pytest.fixture(scope="module")
def study():
    return demo.run_study(SHORT)


def test_networks_of_all_seeds_are_trained_as_they_would_be_alone():
    """Stacked ERM of three seeds against a plain loop over each, with the same rows."""
    settings = replace(SHORT, n_seeds=3, n_steps=30, n_points=500)
    data = [half_discs(500, 10, generator=torch.Generator().manual_seed(s)) for s in range(3)]
    together = demo.train("erm", data, settings)
    for seed, trained in enumerate(together):
        network = demo.build_network(settings, seed)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
        generator = stream("two moons", 0, "steps/erm")
        for _ in range(30):
            rows = torch.randint(500, (3, 500), generator=generator)[seed]
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                network(data[seed].boundary_x[rows]), data[seed].boundary_y[rows]
            ).backward()
            optimizer.step()
            schedule.step()
        x = data[seed].interior_x
        torch.testing.assert_close(trained(x), network(x), rtol=1e-3, atol=1e-3)


def test_bridges_stay_within_a_network(monkeypatch):
    """Every point of a path lies between rows of the same network, and goes through that network."""
    data = [half_discs(100, 10, generator=torch.Generator().manual_seed(s)) for s in range(2)]
    shifted = data[1]._replace(boundary_x=data[1].boundary_x + 100)  # far from the first
    settings = replace(SHORT, n_steps=3, n_points=100, batch=50, sigma=0.0)
    drawn, real = [], Elliptic.sample

    def spy(self, x, y, **options):
        drawn.append(real(self, x, y, **options).x)
        return real(self, x, y, **options)

    monkeypatch.setattr(Elliptic, "sample", spy)
    demo.train("elliptic", [data[0], shifted], settings)
    for points in drawn:
        first, second = points.flatten(1, 2).chunk(2)
        assert first.max() < 10
        assert second.min() > 90


def test_partners_are_uniform_among_the_others(generator):
    counts = torch.zeros(6, 6)
    for _ in range(2000):
        counts[torch.arange(6), demo.random_partners(torch.zeros(6, 2), 3, generator)] += 1
    expected = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)) - torch.eye(6)
    torch.testing.assert_close(counts / 1000, expected, atol=0.15, rtol=0)


def test_losses_and_verdicts_by_hand():
    """A network that is unsure everywhere but in the middle of the upper moon, where it is wrong."""

    class Hill(nn.Module):
        def forward(self, x):
            wrong = 5.0 * (x - x.new_tensor([0.0, 0.4])).norm(dim=1).lt(0.2)
            return torch.stack([torch.zeros_like(wrong), wrong], 1)

    data = half_discs(2000, 2000, generator=torch.Generator().manual_seed(0))
    run = demo.evaluate("erm", 0, Hill(), data)
    assert run.losses.boundary_max == pytest.approx(np.log(2))
    assert run.losses.interior_max == pytest.approx(np.log(1 + np.exp(5)))
    assert not run.losses.holds
    assert run.ratio == pytest.approx(np.log(1 + np.exp(5)) / np.log(2))
    in_hill = (data.interior_x - torch.tensor([0.0, 0.4])).norm(dim=1) < 0.2
    assert run.losses.share_above == pytest.approx(float((in_hill & (data.interior_y == 0)).double().mean()))


def test_summary_and_record(study):
    assert list(study.runs) == ["erm", "mixup", "elliptic"]
    assert study.headline().startswith("ERM: the loss inside")
    header, *rows = study.table()
    assert [len(row) for row in rows] == [len(header)] * 3
    content = json.loads(study.to_json())
    assert len(content["runs"]) == 3 * SHORT.n_seeds
    assert content["settings"]["n_steps"] == SHORT.n_steps
    again = demo.run_study(SHORT)
    assert again.to_json() == study.to_json()
    runs = [
        replace(study.runs["erm"][0], losses=replace(study.runs["erm"][0].losses, interior_max=v))
        for v in (4, 1, 3, 2)
    ]
    assert demo.typical(runs).losses.interior_max == 2


def test_surfaces_cover_the_half_discs():
    """The border of the grid is the outline; heights above one are red, others blue."""
    upper, lower = moon_surfaces(nn.Linear(2, 2).double(), 41, 11)
    np.testing.assert_allclose(np.hypot(upper.x[:, -1], upper.y[:, -1]), 1)
    np.testing.assert_allclose(upper.y[:, 0], 0)
    np.testing.assert_allclose(lower.x, 1 - upper.x)
    np.testing.assert_allclose(lower.y, 0.5 - upper.y)
    colours = surface_colours(np.array([[0.0, 1.0, 1.01, TOP]]))[0]
    assert [bool(r > b) for r, _, b, _ in colours] == [False, False, True, True]


@pytest.mark.slow
def test_files_of_the_command(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--seeds", "1", "--steps", "3", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    made = {path.name: path for path in (tmp_path / "out").iterdir()}
    assert set(made) == {"surfaces.png", "two_moons.png", "losses.png", "two_moons.json"}
    for name in ("surfaces.png", "two_moons.png", "losses.png"):
        assert made[name].read_bytes().startswith(b"\x89PNG")
    assert "of 1 seeds" in result.output


@pytest.mark.slow
def test_elliptic_training_keeps_the_bound():
    """The picture of the paper's Figures 1 and 3, with fewer seeds: a hill for ERM, none for elliptic."""
    study = demo.run_study(demo.Settings(n_seeds=4))
    assert study.kept("elliptic") >= 3
    assert study.kept("erm") <= 1


def test_walks_and_finite_differences_agree_on_the_idea():
    """Figure 2: the value at the query point by walks, and on the grid."""
    figures = pytest.importorskip("paper_figures")
    shares = figures.estimate_shares(4000)
    assert shares.sum() == pytest.approx(1, abs=0.01)
    size = 108
    grid = figures.solve_on_grid(size)
    step = (figures.HIGH[0] - figures.LOW[0]) / size
    column, row = ((q - low) / step - 0.5 for q, low in zip(figures.QUERY, figures.LOW, strict=True))
    assert float(shares @ np.array(figures.LOSSES)) == pytest.approx(
        grid[round(row), round(column)], abs=0.03
    )
    assert grid.min() >= 0.1 - 1e-9
    assert grid.max() <= 0.9 + 1e-9
