"""Tuning: on the validation part, with equal budgets, and repeatable."""

import dataclasses
import math

import pytest
import torch

from elliptica import EllipticWarning
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments import registry
from elliptica.lab.experiments import run as module
from elliptica.lab.experiments.choice import apply_choices, keep_choice, read_choices, with_values
from elliptica.lab.experiments.records import DRAWS, read_records
from elliptica.lab.experiments.run import Options
from elliptica.lab.experiments.specification import (
    Range,
    SpecificationError,
    load_specification,
    parse_specification,
    runs,
)
from elliptica.lab.experiments.tune import TRIAL_SEED, draw_trials, search_space, tune
from experiment_cases import TOY as ERRORS
from experiment_cases import load_groups, load_toy

TOY = """
title = "Toy"
metric = "accuracy"
columns = ["average", "worst"]
select = "worst"
seeds = 2
search = { lr = { low = 1e-6, high = 1e-1, log = true } }
[methods.erm]
[methods.mixup]
search = { alpha = { low = 0.1, high = 2.0 } }
[datasets.groups]
model = { name = "linear" }
training = { epochs = 3, batch_size = 16, lr = 1e-6 }
"""


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(registry.DATASETS, "groups", load_groups)
    return parse_specification(TOY, "toy")


def tune_rows(toy, rows, n_trials, out, listen=lambda *_: None):
    return tune(runs("toy", toy, methods=rows), toy, n_trials, Options(out), listen)


def test_the_best_trial_on_validation_is_chosen(toy, tmp_path):
    chosen = tune_rows(toy, ["erm"], 4, tmp_path)["groups erm"]
    erm, _, mixup, _ = runs("toy", toy)
    assert chosen["score"] == max(trial["score"] for trial in chosen["trials"])
    assert chosen["trials"][0]["values"] == {}  # the table's own setting comes first
    for trial in chosen["trials"]:
        (record,) = read_records(tmp_path / "trials", [with_values(erm, trial["values"], TRIAL_SEED)])
        assert record.metrics["validation"].worst == trial["score"]
    (tuned,) = apply_choices([erm], tmp_path)
    assert tuned.training["lr"] == chosen["values"]["training.lr"] != 1e-6
    assert tuned.seed == erm.seed
    keep_choice(tmp_path, erm, {**chosen, "draws": DRAWS - 1})
    with pytest.warns(EllipticWarning, match="draws"):
        assert apply_choices([erm], tmp_path) == [tuned]
    for other in (mixup, *runs("toy", toy, methods=["erm"], training={"epochs": 5})):  # another choice
        with pytest.raises(SpecificationError, match=other.row):
            apply_choices([other], tmp_path)


def test_of_errors_the_least_is_chosen(tmp_path, monkeypatch):
    monkeypatch.setitem(registry.DATASETS, "toy", load_toy)
    toy = parse_specification("search = { lr = { low = 1e-6, high = 1e-1, log = true } }" + ERRORS, "toy")
    chosen = tune_rows(toy, ["erm"], 3, tmp_path)["toy erm"]
    assert chosen["score"] == min(trial["score"] for trial in chosen["trials"]) > 0


def test_every_method_has_as_many_trials_and_its_own_settings_are_searched(toy, tmp_path):
    tune_rows(toy, None, 3, tmp_path)
    wanted = runs("toy", toy)
    kept = {run.row: read_choices(tmp_path)[run.key]["trials"] for run in wanted}
    assert {len(trials) for trials in kept.values()} == {3}
    assert set(kept["mixup"][1]["values"]) == {"training.lr", "settings.alpha"}
    assert set(kept["erm"][1]["values"]) == {"training.lr"}
    shared = {row: [trial["values"].get("training.lr") for trial in trials] for row, trials in kept.items()}
    assert shared["erm"] == shared["mixup"]  # what methods share has the same draws
    assert len(set(shared["erm"])) == 3
    assert len(apply_choices(wanted, tmp_path)) == len(wanted)
    tune_rows(toy, ["erm"], 2, tmp_path)
    with pytest.raises(SpecificationError, match="trials"):
        apply_choices(wanted, tmp_path)


@pytest.mark.statistical
def test_draws_follow_their_ranges(toy):
    run = runs("toy", toy, methods=["mixup"])[0]
    space = {"settings.a": Range(low=2.0, high=4.0), "settings.b": Range(low=1e-4, high=1.0, log=True)}
    drawn = draw_trials(run, space, 2001)[1:]
    a = torch.tensor([values["settings.a"] for values in drawn])
    b = torch.tensor([values["settings.b"] for values in drawn]).log10()
    assert abs(float(a.mean()) - 3) < 5 * 2 / (12 * 2000) ** 0.5
    assert abs(float(b.mean()) + 2) < 5 * 4 / (12 * 2000) ** 0.5
    assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 5 / 2000**0.5


def test_a_tuning_that_was_killed_goes_on_and_ends_the_same(toy, tmp_path):
    whole = tune_rows(toy, ["erm"], 4, tmp_path / "a")
    tune_rows(toy, ["erm"], 2, tmp_path / "b")
    events = []
    assert tune_rows(toy, ["erm"], 4, tmp_path / "b", lambda *event: events.append(event[1])) == whole
    assert events.count(None) == 2  # recorded before


def test_a_trial_that_diverges_is_a_failed_trial(toy, tmp_path, monkeypatch):
    def broken(seed, *, data_dir=None):
        data = load_groups(seed)
        nothing = Split(data.train.x * math.nan, data.train.y, data.train.group)
        return dataclasses.replace(data, train=nothing)

    monkeypatch.setitem(registry.DATASETS, "groups", broken)
    assert "2 trials failed" in tune_rows(toy, ["erm"], 2, tmp_path)["groups erm"]


def test_an_error_other_than_of_settings_fails_the_row(toy, tmp_path, monkeypatch):
    """E.g. a full disk: a choice among the trials that are left would not be fair."""
    do_run = module.do_run

    def full(run, *arguments):
        if run.training["lr"] != 1e-6:
            raise OSError("no space")
        return do_run(run, *arguments)

    monkeypatch.setattr(module, "do_run", full)
    assert tune_rows(toy, ["erm"], 3, tmp_path)["groups erm"] == "OSError: no space"
    assert read_choices(tmp_path) == {}


def test_choices_never_see_test_rows(toy, tmp_path, monkeypatch):
    """Not of data that are split anew for each seed; fresh draws for each seed are something else."""
    rows = torch.randn(144, 5, generator=torch.Generator().manual_seed(0))

    def resplit(seed):
        order = torch.randperm(144, generator=torch.Generator().manual_seed(seed))
        parts = [Split(rows[part], part % 2) for part in order.split(48)]
        return Dataset("groups", *parts, task="classification")

    (erm, *_) = runs("table3", load_specification("table3"), datasets=["no2"], methods=["erm"])
    (refused,) = tune([erm], load_specification("table3"), 2, Options(tmp_path), print).values()
    assert isinstance(refused, str)
    monkeypatch.setitem(registry.DATASETS, "groups", resplit)
    average = parse_specification(TOY.replace('select = "worst"', ""), "toy")
    assert isinstance(tune_rows(average, ["erm"], 1, tmp_path)["groups erm"], str)
    monkeypatch.setitem(registry.DATASETS, "groups", load_groups)
    assert tune_rows(toy, ["erm"], 1, tmp_path)["groups erm"]["trials"]


@pytest.mark.bad_input
def test_a_wrong_search_is_named(toy):
    text = TOY.replace("alpha = { low = 0.1, high = 2.0 }", "alpha = { lo = 0.1, high = 2.0 }")
    wrong = parse_specification(text, "toy")
    with pytest.raises(ValueError, match="lo"):
        search_space(wrong, runs("toy", wrong, methods=["mixup"])[0])
