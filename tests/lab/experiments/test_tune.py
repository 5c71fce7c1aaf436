"""Tuning: on the validation part, with equal budgets, and repeatable."""

import json
import math

import pytest
import torch
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.lab.experiments import registry
from elliptica.lab.experiments.engines import Local, Outcome
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
    refuse_resplit,
    rows_of,
    search_space,
    tune,
)
from elliptica.lab.experiments.tuned import apply_choices, chosen_file, with_values
from experiment_cases import load_groups, silent

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


def tune_row(run, space, n_trials, options, listen=silent, engine=None):
    """The choice for one row, or why there is none."""
    return tune({"row": (run, space)}, n_trials, options, listen, engine or Local())["row"]


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(registry.DATASETS, "groups", load_groups)
    return parse_specification(TOY, "toy")


def test_the_best_trial_on_validation_is_chosen(toy, tmp_path):
    erm, _, mixup, _ = runs("toy", toy)
    options = Options(tmp_path)
    chosen = tune_row(erm, search_space(toy, "erm"), 4, options)
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
    found = tune(rows_of(wanted, toy), 3, Options(tmp_path), silent, Local())
    assert set(found) == {"groups erm", "groups mixup"}
    kept = {run.row: json.loads(chosen_file(tmp_path, run).read_text()) for run in wanted}
    assert {len(each["trials"]) for each in kept.values()} == {3}
    assert set(kept["mixup"]["trials"][1]["values"]) == {"training.lr", "settings.alpha"}
    assert set(kept["erm"]["trials"][1]["values"]) == {"training.lr"}
    shared = {row: [t["values"].get("training.lr") for t in each["trials"]] for row, each in kept.items()}
    assert shared["erm"] == shared["mixup"]  # what methods share has the same draws
    assert len(set(shared["erm"])) == 3
    assert len(apply_choices(wanted, tmp_path)) == len(wanted)
    tune_row(wanted[0], search_space(toy, "erm"), 2, Options(tmp_path))
    with pytest.raises(SpecificationError, match=r"different numbers of trials \(erm 2, mixup 3\)"):
        apply_choices(wanted, tmp_path)


def test_a_tuning_that_was_killed_goes_on_and_ends_the_same(toy, tmp_path):
    erm = runs("toy", toy)[0]
    space = search_space(toy, "erm")
    whole = tune_row(erm, space, 4, Options(tmp_path / "a"))
    tune_row(erm, space, 2, Options(tmp_path / "b"))
    events = []
    again = tune_row(erm, space, 4, Options(tmp_path / "b"), lambda *event: events.append(event[1]))
    assert again == whole
    assert events.count("skipped") == 2


def test_a_trial_that_diverges_is_a_failed_trial(toy, tmp_path, monkeypatch):
    def broken(seed, *, data_dir=None):
        data = load_groups(seed)
        data.train.x[:] = math.nan
        return data

    monkeypatch.setitem(registry.DATASETS, "groups", broken)
    erm = runs("toy", toy)[0]
    space = {("training", "lr"): Range(low=1.0, high=1e9)}
    assert "All 2 trials of erm failed" in tune_row(erm, space, 2, Options(tmp_path))


def test_an_error_other_than_of_settings_fails_the_row(toy, tmp_path):
    """E.g. a full disk: a choice among the trials that are left would not be fair."""

    class Full(Local):
        def do(self, runs, options, listen):
            found = super().do(runs, options, listen)
            return [*found[:-1], Outcome("failed", "OSError: no space")]

    erm = runs("toy", toy)[0]
    told = tune_row(erm, search_space(toy, "erm"), 3, Options(tmp_path), engine=Full())
    assert told == "OSError: no space"
    assert not chosen_file(tmp_path, erm).exists()


def test_trials_of_all_rows_are_given_to_the_engine_at_once(toy, tmp_path):
    class Counted(Local):
        asked = ()

        def do(self, runs, options, listen):
            self.asked = (*self.asked, len(runs))
            return super().do(runs, options, listen)

    engine = Counted()
    tune(rows_of(runs("toy", toy), toy), 3, Options(tmp_path), silent, engine)
    assert engine.asked == (6,)
    only = {("training", "lr"): Range(choices=(1e-6,))}  # the table's own, four times: one run
    found = tune_row(runs("toy", toy)[0], only, 4, Options(tmp_path), engine=engine)
    assert engine.asked == (6, 1)
    assert len({trial["score"] for trial in found["trials"]}) == 1 < len(found["trials"])


def test_other_epochs_are_another_choice(toy, tmp_path):
    erm = runs("toy", toy)[0]
    longer = runs("toy", toy, training={"epochs": 5})[0]
    assert chosen_file(tmp_path, erm) != chosen_file(tmp_path, longer)


@pytest.mark.bad_input
def test_data_that_are_split_anew_for_each_seed_are_not_tuned(tmp_path):
    specification = load_specification("table3")
    run = runs("table3", specification, datasets=["no2"], methods=["erm"])[0]
    told = tune_row(run, {}, 2, Options(tmp_path))
    assert "drawn anew for each seed" in told
    assert "elliptica tune table4 --dataset" in told
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
