"""Searching one row: resumed, shared by workers, pruned, repeatable, and blind to the test part."""

import contextlib
import dataclasses
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from torch import nn
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.cli.tune import ENOUGH, best_trials, make_search, python_line, summary
from elliptica.core.elliptic import Elliptic
from elliptica.core.partners import Nearest
from elliptica.lab.data.splits import Split
from elliptica.lab.experiments import registry
from elliptica.lab.experiments import search as search_module
from elliptica.lab.experiments.choice import Choice
from elliptica.lab.experiments.engines import Local
from elliptica.lab.experiments.methods.objectives import elliptic_settings
from elliptica.lab.experiments.run import Options, finish_run
from elliptica.lab.experiments.search import (
    Search,
    check_search,
    choose,
    chosen_run,
    counted,
    importances,
    open_storage,
    open_study,
    work,
)
from elliptica.lab.experiments.specification import (
    Range,
    SpecificationError,
    load_specification,
    parse_specification,
    preset_names,
    runs,
)
from elliptica.lab.experiments.tune import named_space, own_values, search_space, tune
from elliptica.lab.experiments.tuned import apply_choices, chosen_file, with_values
from elliptica.lab.training import EpochEnd
from experiment_cases import SEARCHED, load_hard, silent
from experiment_cases import make_search as make

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(registry.DATASETS, "groups", load_hard)
    return parse_specification(SEARCHED, "toy")


def found(search, out):
    """The choice, as it is kept."""
    study = open_study(search)
    choose(search, study, Options(out))
    return json.loads(chosen_file(out, search.run).read_text())


@pytest.mark.parametrize(
    ("sampler", "kind"),
    [
        ("tpe", "journal"),
        pytest.param("random", "sqlite", marks=pytest.mark.slow),
    ],
)
def test_the_same_seed_finds_the_same_and_another_does_not(toy, tmp_path, sampler, kind):
    places = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        storage = tmp_path / name / "s" if kind == "journal" else f"sqlite:///{tmp_path / name}.db"
        search = make(toy, storage, sampler=sampler, seed=seed)
        work(search, Options(tmp_path / name))
        places.append(found(search, tmp_path / name))
    assert places[0] == places[1] != places[2]
    trials = places[0]["trials"]
    assert len(trials) == 6
    assert places[0]["score"] == max(trial["score"] for trial in trials)
    first = trials[0]["values"]  # the table's own setting
    assert first == {
        "training.lr": 1e-4,
        "settings.sigma": 0.1,
        "settings.n_bridges": 1,
        "settings.weighting": "none",
    }
    assert len({json.dumps(trial["values"]) for trial in trials}) == 6
    assert all(type(trial["values"]["settings.n_bridges"]) is int for trial in trials)
    assert not list((tmp_path / "a").rglob("*.safetensors"))


def test_trials_are_the_runs_that_the_table_would_do(toy, tmp_path):
    """A score comes from an ordinary run with those settings, and --tuned takes the best one."""
    from elliptica.lab.experiments.run import do_run
    from elliptica.lab.experiments.tune import TRIAL_SEED

    search = make(toy, tmp_path / "s", trials=3)
    work(search, Options(tmp_path))
    chosen = found(search, tmp_path)
    places = {tuple(name.split(".")): value for name, value in chosen["values"].items()}
    record = do_run(with_values(search.run, places, TRIAL_SEED), Options(tmp_path / "other"))
    assert record["metrics"]["validation"]["worst"] == chosen["score"]
    (tuned,) = apply_choices([search.run], tmp_path)
    assert tuned.settings["sigma"] == chosen["values"]["settings.sigma"]
    assert tuned.training["lr"] == chosen["values"]["training.lr"]
    assert tuned == chosen_run(search, chosen)


class Stop(BaseException):
    """As if the process had died."""


def dying(trial, epoch):
    def listen(number, kind, details):
        if number == trial and kind == "epoch" and details["epoch"] == epoch:
            raise Stop

    return listen


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_killed_search_goes_on_and_ends_as_if_it_had_not_been(toy, tmp_path, sampler):
    whole, killed = (make(toy, tmp_path / name / "s", trials=13, sampler=sampler) for name in "ab")
    work(whole, Options(tmp_path / "a"))
    for trial in (4, 12):  # among random draws, and where TPE has begun to learn
        with pytest.raises(Stop):
            work(killed, Options(tmp_path / "b"), dying(trial, 3))
        assert len(list((tmp_path / "b").rglob("*.safetensors"))) == 1
    epochs = []
    work(killed, Options(tmp_path / "b"), lambda n, kind, d: kind == "epoch" and epochs.append(d["epoch"]))
    assert epochs[0] == 4  # from the checkpoint, not from the start
    assert found(killed, tmp_path / "b") == found(whole, tmp_path / "a")
    study = open_study(killed)
    assert len(study.trials) == 15
    assert len(counted(study)) == 13
    assert not list((tmp_path / "b").rglob("*.safetensors"))
    retried = study.trials[5]
    assert sorted(retried.intermediate_values) == [1, 2, 3, 4]  # what was reported before the kill, too


def test_more_trials_continue_a_finished_search(toy, tmp_path):
    work(make(toy, tmp_path / "s", trials=2), Options(tmp_path))
    events = []
    work(make(toy, tmp_path / "s", trials=2), Options(tmp_path), lambda *event: events.append(event))
    assert not events
    work(make(toy, tmp_path / "s", trials=5), Options(tmp_path))
    whole = make(toy, tmp_path / "w" / "s", trials=5)
    work(whole, Options(tmp_path / "w"))
    assert found(make(toy, tmp_path / "s", trials=5), tmp_path) == found(whole, tmp_path / "w")


class Untouchable(Split):
    """Any look at it, once it is armed, is an error."""

    def __getattribute__(self, name):
        if name in ("x", "y", "group", "n_rows") and "armed" in super().__getattribute__("__dict__"):
            raise AssertionError("the test part was looked at")
        return super().__getattribute__(name)


def test_the_test_part_cannot_influence_the_choice(toy, tmp_path, monkeypatch):
    search = make(toy, tmp_path / "a" / "s", trials=5)
    work(search, Options(tmp_path / "a"))
    clean = found(search, tmp_path / "a")

    def load(seed, *, data_dir=None):
        data = load_hard(seed)
        data = dataclasses.replace(data, test=Untouchable(data.test.x, data.test.y))
        object.__setattr__(data.test, "armed", True)
        return data

    monkeypatch.setitem(registry.DATASETS, "groups", load)
    search = make(toy, tmp_path / "b" / "s", trials=5)
    check_search(search, Options(tmp_path / "b"))
    work(search, Options(tmp_path / "b"))
    assert found(search, tmp_path / "b") == clean
    with pytest.raises(AssertionError, match="looked at"):  # the trap works
        finish_run(search.run, Options(tmp_path / "c"), silent)


def test_bad_trials_are_pruned_and_leave_nothing_behind(toy, tmp_path, monkeypatch):
    """Scores are given by hand: after five trials that rise, a low one is stopped in its second epoch."""
    scores = {number: [0.5 + 0.01 * number * e for e in range(4)] for number in range(5)}
    scores[5] = [0.1, 0.1, 0.1, 0.1]
    began = []

    def fake(run, options, progress, *, checkpoint, with_test):
        assert not with_test
        number = len(began)
        began.append(number)
        checkpoint.parent.mkdir(parents=True)
        for epoch, score in enumerate(scores[number], 1):
            checkpoint.write_bytes(b"")
            progress(EpochEnd(epoch, 4, 0.0, score, score, 0.1, 1.0, 1))
        last = scores[number][-1]
        metrics = {"validation": {"worst": last}}
        return {"metrics": metrics, "cost": {"seconds": 1.0}, "epoch": 3}

    monkeypatch.setattr(search_module, "do_run", fake)
    search = make(toy, tmp_path / "s", pruner="median")
    work(search, Options(tmp_path))
    study = open_study(search)
    assert [t.state for t in study.trials] == [TrialState.COMPLETE] * 5 + [TrialState.PRUNED]
    assert sorted(study.trials[5].intermediate_values) == [1, 2]
    assert not list(tmp_path.rglob("*.safetensors"))
    assert summary(study) == "6 trials: 5 finished, 1 pruned"
    assert found(search, tmp_path)["trials"][5]["state"] == "pruned"
    kept = found(search, tmp_path)
    assert kept["score"] == scores[4][-1]


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["median", "hyperband", "none"])
def test_every_pruner_runs_on_real_trials(toy, tmp_path, pruner):
    search = make(toy, tmp_path / "s", trials=9, pruner=pruner)
    work(search, Options(tmp_path))
    states = {trial.state for trial in open_study(search).trials}
    assert states <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert (pruner != "none") or states == {TrialState.COMPLETE}
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_trial_that_diverges_is_recorded_as_failed(toy, tmp_path):
    run = next(run for run in runs("toy", toy) if run.row == "elliptic")
    space = {
        ("training", "lr"): Range(choices=(1e-3, 1e38)),
        ("settings", "n_bridges"): Range(choices=(1, 0)),
    }
    search = Search(run, space, "wild", str(tmp_path / "s"), trials=8, sampler="random", pruner="none")
    work(search, Options(tmp_path))
    study = open_study(search)
    failed = [trial for trial in study.trials if trial.state == TrialState.FAIL]
    assert 0 < len(failed) < 8
    assert all(trial.user_attrs["error"] for trial in failed)
    chosen = found(search, tmp_path)
    assert chosen["values"]["settings.n_bridges"] == 1
    assert [t["state"] for t in chosen["trials"] if "error" in t] == ["fail"] * len(failed)
    assert not list(tmp_path.rglob("*.safetensors"))
    only = {("settings", "n_bridges"): Range(choices=(0, -1))}
    hopeless = Search(run, only, "hopeless", str(tmp_path / "s"), trials=2)
    work(hopeless, Options(tmp_path))
    with pytest.raises(
        RuntimeError, match=r"None of 2 trials of elliptic was finished\. The first said: Value"
    ):
        choose(hopeless, open_study(hopeless), Options(tmp_path))


WORKER = """
import sys
import time
from pathlib import Path
from elliptica.lab.experiments import registry
from elliptica.lab.experiments.run import Options
from elliptica.lab.experiments.search import work
from elliptica.lab.experiments.specification import parse_specification
from experiment_cases import SEARCHED, load_hard
from experiment_cases import make_search as make

registry.DATASETS["groups"] = load_hard
folder, storage, trials, slow = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
n_workers, deadline = int(sys.argv[5]), time.monotonic() + 200
search = make(parse_specification(SEARCHED, "toy"), storage, trials=trials)

def listen(number, kind, details):
    time.sleep(slow)
    while len(list(folder.parent.glob("*/searches"))) < n_workers and time.monotonic() < deadline:
        time.sleep(0.01)  # until each of them has a trial

work(search, Options(folder), listen)
"""


def start_worker(folder, storage, trials, slow=0.0, n_workers=1):
    paths = [str(ROOT / "src"), str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-c",
        WORKER,
        str(folder),
        str(storage),
        str(trials),
        str(slow),
        str(n_workers),
    ]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_two_processes_share_a_storage_and_a_budget(toy, tmp_path, kind):
    """They are started at once, in folders of their own; together they do 8 trials, each of them some."""
    storage = str(tmp_path / "s.journal") if kind == "journal" else f"sqlite:///{tmp_path / 's.db'}"
    workers = [start_worker(tmp_path / name, storage, 8, n_workers=2) for name in ("a", "b")]
    for each in workers:
        _, errors = each.communicate(timeout=300)
        assert each.returncode == 0, errors
    search = make(toy, storage, trials=8)
    study = open_study(search)
    trials = counted(study)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 8
    folders = [Path(trial.user_attrs["folder"]).relative_to(tmp_path).parts[0] for trial in trials]
    assert set(folders) == {"a", "b"}
    assert len({json.dumps(trial.params, sort_keys=True) for trial in trials}) == 8
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.slow
def test_a_trial_of_a_killed_process_is_taken_up_by_another(toy, tmp_path):
    storage = tmp_path / "s.journal"
    victim = start_worker(tmp_path / "a", storage, 3, 0.3)
    search = make(toy, storage, trials=3)
    deadline = time.monotonic() + 200
    while not list((tmp_path / "a").rglob("*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.01)
    victim.send_signal(signal.SIGSTOP)  # it lives: nobody may take its trial
    (under_way,) = [t for t in open_study(search).trials if t.state == TrialState.RUNNING]
    search_module.take_up(open_study(search))
    assert len(counted(open_study(search))) == under_way.number + 1
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    work(search, Options(tmp_path / "b"))
    study = open_study(search)
    assert [trial.state for trial in counted(study)] == [TrialState.COMPLETE] * 3
    (dead,) = [trial for trial in study.trials if "killed" in trial.user_attrs]
    assert dead.number == under_way.number
    again = [trial for trial in counted(study) if trial.params == dead.params]
    assert [trial.user_attrs["folder"] for trial in again] == [dead.user_attrs["folder"]]
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_trial_that_kills_every_process_is_given_up(toy, tmp_path, monkeypatch):
    """Three deaths in one epoch are enough, but not three of a trial that comes forward between them."""
    search, real = make(toy, tmp_path / "s", trials=2), search_module.do_run

    def deadly(run, *arguments, **options):
        if run.training["lr"] == 1e-4:  # the first trial
            raise Stop
        return real(run, *arguments, **options)

    for epoch in (1, 2, 3):
        with pytest.raises(Stop):
            work(search, Options(tmp_path), dying(epoch - 1, epoch))
    monkeypatch.setattr(search_module, "do_run", deadly)
    for _ in range(search_module.DEATHS - 1):
        with pytest.raises(Stop):
            work(search, Options(tmp_path))
    work(search, Options(tmp_path))
    first, second = counted(open_study(search))
    assert (first.state, second.state) == (TrialState.FAIL, TrialState.COMPLETE)
    assert first.user_attrs["error"] == "Its process died 3 times in one epoch."
    assert sorted(first.intermediate_values) == [1, 2, 3]


def test_a_trial_that_runs_out_of_memory_is_a_failed_one(toy, tmp_path, monkeypatch):
    def full(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(search_module, "do_run", full)
    search = make(toy, tmp_path / "s", trials=2)
    work(search, Options(tmp_path))
    with pytest.raises(RuntimeError, match=r"None of 2 trials .* can't allocate memory"):
        choose(search, open_study(search), Options(tmp_path))


@pytest.mark.filterwarnings("error")  # of values that are reported twice
def test_a_trial_goes_on_in_a_folder_that_is_here(toy, tmp_path, monkeypatch):
    """Another machine's disk is not: its path is neither made nor needed."""
    search, absent = make(toy, tmp_path / "s", trials=1), tmp_path / "other" / "disk" / "trial-0"
    with pytest.raises(Stop):
        work(search, Options(tmp_path / "a"), dying(0, 2))
    study = open_study(search)
    (trial,) = study.get_trials(deepcopy=False)
    study._storage.set_trial_user_attr(trial._trial_id, "folder", str(absent))
    with monkeypatch.context() as patch:
        patch.setattr(search_module, "claimed", lambda *_: contextlib.nullcontext(True))
        search_module.take_up(study)
    work(search, Options(tmp_path / "b"))
    (trial,) = counted(study)
    assert trial.state == TrialState.COMPLETE
    assert Path(trial.user_attrs["folder"]).is_relative_to(tmp_path / "b")
    assert not absent.parent.exists()


def test_a_worker_waits_while_another_looks_at_its_lock(tmp_path):
    looking = search_module.claimed(tmp_path, tmp_path / "trial-0" / "trial")
    assert looking.__enter__()
    threading.Timer(0.2, looking.__exit__, (None, None, None)).start()
    with (
        search_module._held(tmp_path / "trial-0"),
        search_module.claimed(tmp_path, tmp_path / "trial-0" / "trial") as free,
    ):
        assert not free


def test_trials_of_other_machines_are_left_alone(toy, tmp_path, monkeypatch):
    search = make(toy, tmp_path / "s", trials=3)
    with pytest.raises(Stop):
        work(search, Options(tmp_path), dying(1, 2))
    monkeypatch.setattr(search_module.socket, "gethostname", lambda: "elsewhere")
    work(search, Options(tmp_path))
    states = [trial.state.name for trial in counted(open_study(search))]
    assert states == ["COMPLETE", "RUNNING", "COMPLETE"]
    assert summary(open_study(search)) == "3 trials: 2 finished, 1 under way"


def test_one_trial_too_many_is_given_back(toy, tmp_path, monkeypatch):
    """Two workers that both see room for one: the second to ask steps back, and counts do not move."""
    search = make(toy, tmp_path / "s", trials=2)
    work(make(toy, tmp_path / "s", trials=1), Options(tmp_path))
    study = open_study(search)
    real = search_module.take_up

    def other_asks_now(_study):
        real(_study)
        if len(counted(study)) == 1:
            trial = study.ask()
            trial.set_user_attr("folder", "x"), trial.set_user_attr("host", "elsewhere")

    calls = iter([other_asks_now])
    monkeypatch.setattr(search_module, "counted", lambda s, below=None: _late(s, below, calls))
    work(search, Options(tmp_path))
    trials = study.get_trials()
    assert [t.state.name for t in trials] == ["COMPLETE", "RUNNING", "FAIL"]
    assert "surplus" in trials[2].user_attrs
    assert len(counted(study)) == 2


def _late(study, below, calls):
    """What is counted, a moment before another worker asks."""
    seen = counted(study, below)
    if below is None:
        for call in calls:
            call(study)
    return seen


def test_spaces_come_from_the_table_or_are_made_for_the_row(toy):
    by_row = {run.row: run for run in runs("toy", toy)}
    auto = named_space(toy, by_row["elliptic"], "auto")
    names = {name for _, name in auto}
    assert names == {"lr", "sigma", "sigma_y", "n_bridges", "pairing", "weighting", "xi"}
    assert auto["settings", "weighting"].choices == ("none", "gradient_norm", "gradient_softmax")
    paths = by_row["elliptic"].model_copy(update={"settings": {"sampling": "path"}})
    assert "multiplicative" in named_space(toy, paths, "auto")["settings", "weighting"].choices
    green = {name for _, name in named_space(toy, by_row["green"], "auto")}
    assert not green & {"sigma", "pairing"}
    assert set(named_space(toy, by_row["erm"], "auto")) == {("training", "lr")}
    own = own_values(by_row["elliptic"], auto)
    assert own["settings.sigma_y"] == 0.1  # None means sigma
    assert own["settings.pairing"] == "permutation"
    assert "settings.xi" in own
    for choices in auto.values():
        assert choices.as_dict() == Range.model_validate(choices.as_dict()).as_dict()


@pytest.mark.parametrize("table", preset_names())
def test_spaces_of_tables_name_settings_that_exist(table):
    specification = load_specification(table)
    for name, space in specification.searches.items():
        assert name != "auto"
        run = next(run for run in runs(table, specification) if run.method == "elliptic")
        first = {key: each.choices[0] if each.choices else each.low for key, each in space.settings.items()}
        whole = {key: int(value) if space.settings[key].integer else value for key, value in first.items()}
        Elliptic(nn.Linear(2, 2), nn.CrossEntropyLoss(), num_classes=2, **elliptic_settings(whole))
        assert set(space.training) <= {*run.training, "weight_decay", "lr", "batch_size"}
    if table in ("table4", "table5"):
        assert "bridges" in specification.searches


def test_committed_choices_still_describe_their_ranges():
    """The ranges of random tuning look in files as they did before there were choices."""
    files = sorted((ROOT / "results" / "tables").rglob("chosen-*.json"))
    assert files
    for file in files:
        kept = json.loads(file.read_text())
        table, _, row = file.relative_to(ROOT / "results" / "tables").parts[:3]
        space = search_space(load_specification(table), row)
        assert kept["search"] == {".".join(place): each.as_dict() for place, each in space.items()}


def test_a_searched_row_and_one_tuned_with_shared_draws_make_no_fair_table(toy, tmp_path):
    search = make(toy, tmp_path / "s", trials=2)
    work(search, Options(tmp_path))
    found(search, tmp_path)
    erm = next(run for run in runs("toy", toy) if run.row == "erm")
    tune({"erm": (erm, search_space(toy, "erm"))}, 2, Options(tmp_path), silent, Local())
    with pytest.raises(
        SpecificationError, match=r"different searches \(erm 2 by shared draws, elliptic 2 by"
    ):
        apply_choices([erm, search.run], tmp_path)


def test_the_line_of_python_makes_the_objective(toy):
    run = next(run for run in runs("toy", toy) if run.row == "elliptic")
    settings = {"sigma": 0.123456, "sigma_y": 0.0, "n_bridges": 2, "pairing": "nearest", "weighting": "none"}
    run = run.model_copy(update={"settings": {**settings, "xi": 3.0}})
    line = python_line(run, 2)
    assert "xi" not in line  # without weighting it has no effect
    names = {"Elliptic": Elliptic, "Nearest": Nearest, "nn": nn, "model": nn.Linear(5, 2)}
    bridges = eval(line, names).bridges
    assert (bridges.sigma, bridges.pairing, bridges.n_bridges) == (0.1235, Nearest(), 2)
    assert python_line(run.model_copy(update={"method": "erm"}), 2) == ""
    green = next(run for run in runs("toy", toy) if run.row == "green")
    assert "PartnerTable" in python_line(green, None)
    eval(python_line(green, None), names)


def test_what_mattered_is_found(toy, tmp_path):
    """A study whose score is sigma and little else, beside settings without effect."""
    search = make(toy, tmp_path / "s")
    study = open_study(search)
    for number in range(20):
        trial = study.ask()
        values = {place: each.suggest(trial, ".".join(place)) for place, each in search.space.items()}
        trial.set_user_attr("epoch", 0), trial.set_user_attr("seconds", 1.0)
        study.tell(trial, values["settings", "sigma"])
        if number == 3:
            assert importances(study, ENOUGH) == {}
    shares = importances(study, ENOUGH)
    assert max(shares, key=shares.get) == "settings.sigma"
    assert shares["settings.sigma"] > 0.5
    assert sum(shares.values()) == pytest.approx(1)
    shown = best_trials(search, study)
    assert (len(shown.columns), shown.row_count) == (6, 7)


@pytest.mark.bad_input
def test_wrong_ranges_are_named():
    for wrong, match in (
        ({"low": 1.0}, "low and high, or choices"),
        ({"low": 0.0, "high": 1.0, "log": True}, "must be positive"),
        ({"low": 2.0, "high": 1.0}, "must not exceed"),
        ({"low": 0.5, "high": 2.0, "integer": True}, "whole numbers"),
        ({"choices": []}, "at least one"),
        ({"choices": [1, 1]}, "different from each other"),
        ({"choices": [1, 2], "low": 1.0}, "stand alone"),
    ):
        with pytest.raises(ValueError, match=match):
            Range.model_validate(wrong)


@pytest.mark.bad_input
def test_storages_that_cannot_be_used_are_named(toy, tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("hello\n")
    with pytest.raises(SpecificationError, match="is not a journal of Optuna"):
        open_storage(str(text))
    with pytest.raises(SpecificationError, match="is not a SQLite file"):
        open_storage(f"sqlite:///{text}")
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE birds (name TEXT)")
    with pytest.raises(SpecificationError, match="is not a SQLite file of Optuna"):
        open_storage(f"sqlite:///{foreign}")
    with pytest.raises(SpecificationError, match="is a folder"):
        open_storage(str(tmp_path))
    with pytest.raises(SpecificationError, match="cannot be made"):
        open_storage(str(text / "deeper" / "s.journal"))
    with pytest.raises(SpecificationError, match=r"written sqlite:///FILE"):
        open_storage("sqlite://s.db")
    with pytest.raises(SpecificationError, match=r"cannot be opened|needs the package"):
        open_storage("birds://host/s")
    assert text.read_text() == "hello\n"


@pytest.mark.bad_input
def test_a_study_with_another_space_or_sampler_is_refused(toy, tmp_path):
    search = make(toy, tmp_path / "s", trials=1)
    work(search, Options(tmp_path))
    other = dataclasses.replace(search, space={("settings", "sigma"): Range(low=0.1, high=0.2)})
    with pytest.raises(SpecificationError, match="another search space") as error:
        open_study(other)
    assert "settings.sigma, settings.weighting, training.lr" in str(error.value)
    with pytest.raises(SpecificationError, match=r"begun with --sampler tpe.*another --seed"):
        open_study(dataclasses.replace(search, sampler="random"))
    foreign = dataclasses.replace(search, name="foreign")
    study = optuna.create_study(storage=open_storage(search.storage), study_name=foreign.study_name)
    study.ask()
    with pytest.raises(SpecificationError, match="another search space"):
        open_study(foreign)


@pytest.mark.bad_input
def test_searches_that_make_no_sense_are_refused(toy, tmp_path):
    run = next(run for run in runs("toy", toy) if run.row == "elliptic")
    with pytest.raises(SpecificationError, match=r"no search 'smal'"):
        named_space(toy, run, "smal")
    last = dataclasses.replace(make(toy, tmp_path), run=run.model_copy(update={"select": "last"}))
    with pytest.raises(SpecificationError, match="--select average or worst"):
        check_search(last, Options(tmp_path))
    with pytest.raises(SpecificationError, match="8 are meant"):
        make_search(Choice("table5", ["crime", "skillcraft"], ["erm", "mixup", "elliptic", "green"]),
                    tmp_path, space="auto")  # fmt: skip
    with pytest.raises(SpecificationError, match="names no range for erm"):
        make_search(Choice("table5", ["crime"], ["erm"]), tmp_path, space="auto")
    resplit = make_search(Choice("table3", ["no2"], ["marginal"]), tmp_path, space="auto")
    with pytest.raises(SpecificationError, match="drawn anew for each seed"):
        check_search(resplit, Options(tmp_path))


@pytest.mark.bad_input
def test_the_command_is_refused_under_torchrun(tmp_path, monkeypatch):
    monkeypatch.setattr("elliptica.lab.experiments.engines.is_torchrun", lambda: True)
    options = ["--dataset", "waterbirds-features", "--methods", "marginal", "--search", "auto"]
    found = CliRunner().invoke(app, ["tune", "table4", *options, "--out", str(tmp_path / "out")])
    assert (found.exit_code, "torchrun" in found.output) == (2, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.bad_input
def test_the_command_refuses_options_without_a_search(tmp_path):
    arguments = ["tune", "table4", "--dataset", "waterbirds-features", "--out", str(tmp_path)]
    found = CliRunner().invoke(app, [*arguments, "--storage", "x.db"])
    assert found.exit_code == 2
    assert "--search auto" in found.output
    found = CliRunner().invoke(app, [*arguments, "--search", "auto", "--sampler", "magic"])
    assert found.exit_code == 2
    assert "magic" in found.output
    found = CliRunner().invoke(app, [*arguments, "--search", "auto"])
    assert found.exit_code == 2
    assert "one row on one data set" in " ".join(found.output.split())


@pytest.mark.slow
@pytest.mark.needs_data
@pytest.mark.skipif(not os.environ.get("ELLIPTICA_DATA"), reason="needs ELLIPTICA_DATA")
def test_the_command_searches_real_data_in_two_processes(tmp_path):
    arguments = [
        "table4",
        "--dataset",
        "waterbirds-features",
        "--methods",
        "marginal",
        "--out",
        str(tmp_path),
    ]
    options = ["--epochs", "2", "--select", "average"]
    search = ["--search", "bridges", "--trials", "4", "--jobs", "2"]
    found = CliRunner().invoke(app, ["tune", *arguments, *options, *search])
    assert found.exit_code == 0, found.output
    assert "4 trials: 4 finished" in found.output
    assert "Elliptic(model, nn.CrossEntropyLoss(), num_classes=2" in found.output
    assert "replaces" not in found.output
    file = next(tmp_path.rglob("chosen-*.json"))
    file.write_text(json.dumps({**json.loads(file.read_text()), "score": 1.5}))
    found = CliRunner().invoke(app, ["tune", *arguments, *options, *search])
    assert "replaces an earlier one (1.5, which was better" in " ".join(found.output.split())
    found = CliRunner().invoke(app, ["run", *arguments, *options, "--seeds", "1", "--tuned"])
    assert found.exit_code == 0, found.output
    assert "epoch chosen by average" in found.output
