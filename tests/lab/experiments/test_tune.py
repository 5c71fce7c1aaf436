"""Tuning: on the validation part, with equal budgets, and repeatable."""

import json
import math

import pytest
import torch
from tests.lab.experiments.test_methods import load_groups
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.lab.experiments import problems
from elliptica.lab.experiments.records import read_record, record_file
from elliptica.lab.experiments.run import Options
from elliptica.lab.experiments.specification import (
    Range,
    SpecificationError,
    load_specification,
    parse_specification,
    runs,
)
from elliptica.lab.experiments.tune import (
    TRIAL_SEED,
    TUNABLE,
    apply_choices,
    chosen_file,
    refuse_resplit,
    search_space,
    tune,
    tune_all,
    with_values,
)

TOY = """
title = "Toy"
paper = "nowhere"
metric = "accuracy"
columns = ["average", "worst"]
select = "worst"
seeds = 2
trials = 4
search = { lr = { low = 1e-6, high = 1e-1, log = true } }
[methods.erm]
[methods.mixup]
search = { alpha = { low = 0.1, high = 2.0 } }
[datasets.groups]
model = { name = "linear" }
training = { epochs = 3, batch_size = 16, lr = 1e-6 }
"""


def silent(*_):
    return None


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(problems.DATASETS, "groups", load_groups)
    return parse_specification(TOY, "toy")


def test_the_best_trial_on_validation_is_chosen(toy, tmp_path):
    erm, _, mixup, _ = runs("toy", toy)
    options = Options(tmp_path)
    chosen = tune(erm, search_space(toy, "erm"), 4, options, silent)
    assert chosen["score"] == max(trial["score"] for trial in chosen["trials"])
    assert chosen["trials"][0]["values"] == {}  # the table's own setting comes first
    for trial in chosen["trials"]:
        places = {tuple(name.split(".")): value for name, value in trial["values"].items()}
        attempt = with_values(erm, places, TRIAL_SEED)
        record = read_record(record_file(tmp_path / "trials", attempt))
        assert record["metrics"]["validation"]["worst"] == trial["score"]
        assert record["run"]["seed"] == TRIAL_SEED
    assert json.loads(chosen_file(tmp_path, erm).read_text()) == json.loads(json.dumps(chosen))
    (tuned,) = apply_choices([erm], tmp_path)
    assert tuned.training["lr"] == chosen["values"]["training.lr"] != 1e-6
    assert tuned.seed == erm.seed
    with pytest.raises(
        SpecificationError,
        match=r"Not tuned with these options: mixup on groups\. First run elliptica tune toy",
    ):
        apply_choices([mixup], tmp_path)


def test_every_method_has_as_many_trials_and_its_own_settings_are_searched(toy, tmp_path):
    wanted = runs("toy", toy)
    found = tune_all(wanted, toy, 3, Options(tmp_path), silent)
    assert set(found) == {"groups erm", "groups mixup"}
    kept = {run.row: json.loads(chosen_file(tmp_path, run).read_text()) for run in wanted}
    assert {len(each["trials"]) for each in kept.values()} == {3}
    assert set(kept["mixup"]["trials"][1]["values"]) == {"training.lr", "settings.alpha"}
    assert set(kept["erm"]["trials"][1]["values"]) == {"training.lr"}
    shared = {row: [t["values"].get("training.lr") for t in each["trials"]] for row, each in kept.items()}
    assert shared["erm"] == shared["mixup"]  # what methods share has the same draws
    assert len(set(shared["erm"])) == 3
    assert len(apply_choices(wanted, tmp_path)) == len(wanted)
    tune(wanted[0], search_space(toy, "erm"), 2, Options(tmp_path), silent)
    with pytest.raises(SpecificationError, match=r"different numbers of trials \(erm 2, mixup 3\)"):
        apply_choices(wanted, tmp_path)


def test_a_tuning_that_was_killed_goes_on_and_ends_the_same(toy, tmp_path):
    erm = runs("toy", toy)[0]
    space = search_space(toy, "erm")
    whole = tune(erm, space, 4, Options(tmp_path / "a"), silent)
    tune(erm, space, 2, Options(tmp_path / "b"), silent)
    events = []
    again = tune(erm, space, 4, Options(tmp_path / "b"), lambda *event: events.append(event[1]))
    assert again == whole
    assert events.count("skipped") == 2


def test_a_trial_that_diverges_is_a_failed_trial(toy, tmp_path, monkeypatch):
    def broken(seed, *, data_dir=None):
        data = load_groups(seed)
        data.train.x[:] = math.nan
        return data

    monkeypatch.setitem(problems.DATASETS, "groups", broken)
    erm = runs("toy", toy)[0]
    with pytest.raises(RuntimeError, match="All 2 trials of erm failed"):
        tune(erm, {("training", "lr"): Range(low=1.0, high=1e9)}, 2, Options(tmp_path), silent)


def test_other_epochs_are_another_choice(toy, tmp_path):
    erm = runs("toy", toy)[0]
    longer = runs("toy", toy, training={"epochs": 5})[0]
    assert chosen_file(tmp_path, erm) != chosen_file(tmp_path, longer)


@pytest.mark.bad_input
def test_data_that_are_split_anew_for_each_seed_are_not_tuned(tmp_path):
    specification = load_specification("table3")
    run = runs("table3", specification, datasets=["no2"], methods=["erm"])[0]
    with pytest.raises(RuntimeError, match=r"drawn anew for each seed.*elliptica tune table4 --dataset"):
        tune(run, {}, 2, Options(tmp_path), silent)
    table, dataset = TUNABLE
    refuse_resplit(runs(table, load_specification(table), datasets=[dataset])[0])


@pytest.mark.bad_input
def test_a_wrong_search_is_named(toy):
    text = TOY.replace("alpha = { low = 0.1, high = 2.0 }", "alpha = { lo = 0.1, high = 2.0 }")
    with pytest.raises(SpecificationError, match="search of mixup must hold ranges"):
        search_space(parse_specification(text, "toy"), "mixup")
    assert torch.is_tensor(load_groups().train.x)


@pytest.mark.bad_input
def test_the_command_asks_for_a_tuning(tmp_path):
    arguments = ["table", "table3", "--dataset", "no2", "--tuned", "--out", str(tmp_path)]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 2
    assert "Not tuned with these options" in found.output
