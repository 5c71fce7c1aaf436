"""Studies: their pages are what the committed records give, and what they measure is right."""

import itertools
import math
import sys
from dataclasses import replace
from importlib import import_module

import pytest
import torch

import common
import mislabelled
import regression_controls
import uncertainty
from elliptica.core import chord
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments.records import DRAWS, write_lines
from elliptica.lab.experiments.specification import PaperValue

NAMES = [
    "diagnose_battery",
    "green_bridge",
    "hitting_times",
    "loss_landscape",
]
NAMES += ["regression_controls", "sampling_modes", "two_moons", "uncertainty"]


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize("name", NAMES)
def test_pages_follow_from_the_records(name):
    study = import_module(name)
    assert study.STUDY.page() == study.STUDY.readme.read_text(encoding="utf-8")
    assert next(study.run(study.STUDY.read()), None) is None


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize("name", ["compare_tables", "half_way"])
def test_pages_of_tables_that_need_packages_follow_from_the_records(name):
    study = import_module(name)
    assert study.STUDY.page() == study.STUDY.readme.read_text(encoding="utf-8")


@pytest.mark.usefixtures("results")
def test_the_chord_ratio_prints_the_counts_of_its_study():
    import half_way  # reads the list of its tables from results/

    every = half_way.cases([r for r in half_way.STUDY.read() if r["budget"] == 1])
    large = every[every.index.get_level_values("size") >= 1_000]
    low = 0.0
    for high, counts in chord._HARMED.items():
        part = large[(large["chord.ratio"] > low) & (large["chord.ratio"] <= high)]
        hurt = [int((part[method] > half_way.HARM).sum()) for method in ("mixup", "elliptic")]
        assert (*hurt, len(part)) == counts
        low = high


def test_earlier_draws_are_counted_and_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["study", "run"])
    study = common.Study("toy", lambda records: {"sum": str(sum(r["value"] for r in records))}, ("seed",))
    study.folder.mkdir(parents=True)
    study.readme.write_text("<!-- sum: begin -->\n<!-- sum: end -->\n", encoding="utf-8")
    write_lines(study.file, [{"seed": seed, "value": 1} for seed in (0, 1, 2)])

    def run(records):
        yield from ([{"seed": seed, "value": 10}] for (seed,) in study.missing(records, [(1,), (2,)]))

    study.main("", run)
    assert [(r["value"], r.get("draws")) for r in study.read()] == [(1, None), (10, DRAWS), (10, DRAWS)]
    assert "1 of 3" in study.page()
    assert "\n21\n" in study.page()
    assert not list(study.missing(study.read(), [(1,), (2,)]))


@pytest.mark.slow
@pytest.mark.usefixtures("results")
def test_the_page_of_protocols_follows_from_the_records():
    assert mislabelled.page() == mislabelled.PAGE.read_text(encoding="utf-8")


def regression_data(test_y, group):
    train = Split(torch.zeros(3, 2), torch.tensor([[10.0], [20.0], [30.0]]))
    test = Split(torch.zeros(len(group), 2), torch.tensor(test_y)[:, None], torch.tensor(group))
    return Dataset("toy", train, train, test, task="regression")


def test_clipping_and_widening():
    """Targets at 10 and 30; predictions leave the range by 3 and 4, of a width of 20."""
    data = regression_data([10.0, 30.0], [1, 2])
    found = regression_controls.measure(torch.tensor([[7.0, 34.0]], dtype=torch.float64), data)
    assert found["plain"] == {"average": pytest.approx(math.sqrt(12.5), rel=1e-5), "worst": 4.0, "group": 2}
    assert found["clipped 0"]["average"] == found["clipped 0"]["worst"] == 0
    assert found["clipped 0.05"]["worst"] == 1  # the range is 9 to 31
    assert found["clipped 0.25"] == found["plain"]
    assert found["outside"] == 1


def test_near_means_that_means_and_deviations_agree():
    values = [80.0, 82.0, 84.0, 82.0, 82.0]  # deviation 1.41
    assert mislabelled.agrees(values, PaperValue(mean=82.9, std=1.5))
    assert not mislabelled.agrees(values, PaperValue(mean=85.0, std=1.5))  # means differ
    assert not mislabelled.agrees(values, PaperValue(mean=82.9, std=14.0))  # a hundredth of the variance


def toy(n_classes=3, rows=60):
    """Overlapping blobs as images of 3 x 3 pixels."""
    generator, y = torch.Generator().manual_seed(n_classes), torch.arange(rows) % n_classes
    x = torch.randn(3, rows, 1, 3, 3, generator=generator) + y[:, None, None, None]
    elsewhere = 5 * torch.randn(20, 1, 3, 3, generator=generator)
    return uncertainty.Problem(*(Split(part, y) for part in x), elsewhere)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(uncertainty, "N_STEPS", 30)
    monkeypatch.setattr(uncertainty, "LOOK", 10)


@pytest.mark.usefixtures("results")
def test_validation_rows_chose_the_strengths():
    by_cell = {}
    for r in (r for r in uncertainty.STUDY.read() if r["labels"] == "right"):
        by_cell.setdefault((r["data"], r["seed"], r["method"]), []).append(r)
    for (_, _, method), found in by_cell.items():
        best = min(found, key=lambda record: record["validation_nll"])
        assert [record for record in found if record["chosen"]] == [best]
        if method in uncertainty.CANDIDATES:
            assert [r["strength"] for r in found] == list(uncertainty.CANDIDATES[method])
    assert {method for _, _, method in by_cell} == set(uncertainty.METHODS)


def test_early_stopping_keeps_the_best_look_not_the_last(monkeypatch, short):
    losses = itertools.chain([3.0, 1.0, 2.0], itertools.repeat(2.0))
    monkeypatch.setattr(uncertainty, "_loss", lambda model, part: next(losses))
    model, looks, stopped = uncertainty.train(toy(), uncertainty.CANDIDATES["ERM"][""], 0, look=True)
    assert [look["step"] for look in looks] == [10, 20, 30]
    assert uncertainty.best_look(looks)["step"] == 20
    assert not torch.equal(stopped[1].weight, model[1].weight)


def test_test_labels_decide_nothing(short):
    problem = toy()
    other = problem._replace(test=replace(problem.test, y=problem.test.y.flip(0)))
    make = uncertainty.CANDIDATES["elliptic"]["0.3"]
    first, second = (uncertainty.train(p, make, 0)[0] for p in (problem, other))
    assert torch.equal(first[1].weight, second[1].weight)
    mine, theirs = (uncertainty.measure([first], p) for p in (problem, other))
    assert (mine["temperature"], mine["outside"]) == (theirs["temperature"], theirs["outside"])
    assert mine["test"]["nll"] != theirs["test"]["nll"]


def test_left_out_classes_are_gone_and_scaling_uses_training_rows():
    problem = toy()
    left = uncertainty.leave_out(problem, [1])
    assert left.train.y.unique().tolist() == [0, 1]
    torch.testing.assert_close(left.test.x[left.test.y == 1], problem.test.x[problem.test.y == 2])
    torch.testing.assert_close(left.outside, problem.test.x[problem.test.y == 1])
    found = uncertainty.scaled(left)
    torch.testing.assert_close(found.train.x.mean(0), torch.zeros(1, 3, 3), atol=1e-6, rtol=0)
    assert float(found.train.x.var(0).mean()) == pytest.approx(1)


@pytest.mark.slow
def test_a_cell_of_each_part(monkeypatch, short):
    monkeypatch.setattr(uncertainty, "load", lambda name, seed, all_classes=False: toy(rows=40))
    monkeypatch.setattr(uncertainty, "N_NETWORKS", 2)
    records = list(uncertainty.uncertainty("digits", 0))
    assert {r["method"] for r in records} == set(uncertainty.METHODS)
    assert sum(r["chosen"] for r in records) == len(uncertainty.METHODS)
    noisy = list(uncertainty.half_shuffled("digits", 0))
    assert list(dict.fromkeys(r["method"] for r in noisy)) == list(uncertainty.UNDER_SHUFFLING)
    assert all(r["stopped"]["validation_nll"] <= r["last"]["validation_nll"] for r in noisy)
