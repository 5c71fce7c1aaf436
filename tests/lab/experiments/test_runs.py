"""Runs: one record each, checked before anything trains, the same wherever they are done."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.lab.experiments import registry, run
from elliptica.lab.experiments.records import is_recorded, read_records, run_hash
from elliptica.lab.experiments.run import Options, check_runs, do_run, do_runs
from elliptica.lab.experiments.specification import SpecificationError, parse_specification, runs
from experiment_cases import TOY, load_groups, load_toy, numbers, run_of

MOONS = """
title = "Moons"
metric = "accuracy"
seeds = 2
[methods.erm]
[methods.elliptic]
[datasets.two_moons]
load = { n_boundary = 100, n_interior = 50 }
model = { name = "mlp", hidden = [16] }
training = { epochs = 4, batch_size = 20, lr = 1e-2 }
"""


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(registry.DATASETS, "toy", load_toy)
    monkeypatch.setitem(registry.DATASETS, "groups", load_groups)
    return parse_specification(TOY, "toy")


def command(*words, status=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == status, done.output
    return done.output


def test_the_same_table_under_another_name_gives_equal_numbers(tmp_path):
    """Also with other names of data sets and rows, and in another order."""
    renamed = MOONS.replace("[methods.erm]\n", "").replace("[datasets.two_moons]", "[datasets.other]")
    renamed = renamed.replace("[datasets", '[methods.plain]\nmethod = "erm"\n[datasets')
    renamed = renamed.replace("load = {", 'load = { name = "two_moons",')
    found = []
    for name, text in (("one", MOONS), ("two", MOONS), ("three", renamed)):
        (tmp_path / f"{name}.toml").write_text(text)
        command("run", tmp_path / f"{name}.toml", "--out", tmp_path / "runs")
        records = read_records(tmp_path / "runs", runs(name, parse_specification(text, name)))
        found.append({(r.run.method, r.run.seed): (r.metrics, r.curves, r.epoch) for r in records})
    assert len(found[0]) == 4
    assert found[0] == found[1] == found[2]


def test_finished_runs_are_not_repeated(toy, tmp_path, monkeypatch):
    wanted, events = runs("toy", toy), []
    assert do_runs(wanted, Options(tmp_path)) == {}
    assert not list(tmp_path.rglob("*.safetensors"))
    before = read_records(tmp_path, wanted)
    monkeypatch.setattr(run, "do_run", None)
    assert do_runs(wanted, Options(tmp_path), lambda *event: events.append(event)) == {}
    assert events == [(each, None) for each in wanted]
    assert read_records(tmp_path, wanted) == before


def test_records_hold_what_is_needed_to_repeat_them(toy, tmp_path):
    (wanted,) = runs("toy", toy, methods=["elliptic"], seeds=1)
    record = do_run(wanted, Options(tmp_path))
    assert record.run == wanted
    assert record.cost.evaluations == 3 * 20 * 3  # epochs, rows, points on a path
    assert {"torch", "elliptica", "python"} <= set(record.versions)
    assert len(record.curves["validation"]) == 3
    assert record.rows["train"] == {"rows": 20}


def test_equal_evaluations(toy, tmp_path):
    costs = [
        do_run(each, Options(tmp_path)).cost for each in runs("toy", toy, seeds=1, match_evaluations=True)
    ]
    assert [cost.evaluations for cost in costs] == [60, 60]
    assert costs[1].epochs == 1


def test_a_failing_run_does_not_stop_the_others(toy, tmp_path):
    broken = parse_specification(TOY.replace("n_times = 3", "n_tims = 3"), "toy")
    wanted = runs("toy", broken, seeds=1)
    (failure,) = do_runs(wanted[::-1], Options(tmp_path)).values()
    assert "n_tims" in failure
    assert [is_recorded(tmp_path, each) for each in wanted] == [True, False]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"method": "eliptic"}, "eliptic"),
        ({"load": {"name": "gruops"}}, "gruops"),
        ({"load": {"name": "groups", "size": 3}}, "size"),
        ({"model": {"name": "lmp"}}, "lmp"),
        ({"model": {"name": "mlp", "hiden": [3]}}, "hiden"),
        ({"settings": {"sgima": 0.1}}, "sgima"),
        ({"settings": {"sigma": -1.0}}, "sigma"),
        ({"method": "jtt", "settings": {"first": 0.0}}, "first"),
        ({"method": "elliptic", "settings": {"at": "nowhere"}}, "nowhere"),
        ({"metric": "rmse"}, "rmse"),
    ],
)
def test_settings_are_checked_before_anything_trains(toy, tmp_path, change, named):
    wanted = [run_of("erm"), run_of(change.pop("method", "elliptic"), row="last", **change)]
    with pytest.raises(SpecificationError, match=named):
        check_runs(wanted, Options(tmp_path))


def test_a_wrong_row_keeps_a_table_from_training(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(MOONS.replace("[methods.elliptic]", "[methods.elliptic]\nsigmma = 1"))
    monkeypatch.setattr(run, "do_run", None)
    assert "sigmma" in command("run", tmp_path / "mine.toml", "--out", tmp_path / "runs", status=2)
    assert not (tmp_path / "runs").exists()


@pytest.mark.bad_input
def test_missing_data_do_not_stop_other_data(toy, tmp_path):
    def missing(seed, *, data_dir=None):
        raise FileNotFoundError("rows.csv")

    registry.DATASETS["groups"] = missing
    problems = check_runs([run_of("erm"), *runs("toy", toy)], Options(tmp_path))
    assert set(problems) == {"groups"}
    assert "rows.csv" in problems["groups"]
    places = ["--data-dir", tmp_path, "--out", tmp_path / "runs"]
    assert "data list" in command("run", "table3", "--dataset", "no2", "--methods", "erm", *places, status=2)


def test_recorded_runs_are_shown_when_their_data_are_gone(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(MOONS)
    words = "run", tmp_path / "mine.toml", "--out", tmp_path / "runs", "--methods", "erm", "--seeds"
    command(*words, 1)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("elliptica.lab.experiments.run.do_run", interrupt)
        assert "1 of 2 runs" in command(*words, 2, status=130)
    monkeypatch.setitem(registry.DATASETS, "two_moons", lambda *_, **__: Path("gone").read_text())
    assert re.search(r"\| erm \| \d", command(*words, 2, status=1))


def test_right_answers_of_every_epoch_are_recorded_on_request(toy, tmp_path):
    wanted = run_of("erm")
    do_runs([wanted], Options(tmp_path))
    assert do_runs([wanted], Options(tmp_path, every_epoch=True)) == {}  # done anew
    (record,) = read_records(tmp_path, [wanted])
    right = record.right["test"]
    assert {number: len(counts) for number, counts in right.items()} == {str(n): 4 for n in range(4)}
    share = sum(counts[record.epoch] for counts in right.values()) / 48
    assert share == pytest.approx(record.metrics["test"].average)


# ---- workers


@pytest.fixture
def moons(tmp_path):
    """A table that takes some seconds, and its runs done one after the other."""
    text = MOONS.replace("epochs = 4", "epochs = 60")
    (tmp_path / "moons.toml").write_text(text)
    wanted = runs("moons", parse_specification(text, "moons"))
    assert do_runs(wanted, Options(tmp_path / "alone")) == {}
    return wanted, [numbers(record) for record in read_records(tmp_path / "alone", wanted)]


def start(folder, *words):
    source = str(Path(run.__file__).parents[3])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", "elliptica", "run", "moons.toml", "--out", "runs", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(find, process, seconds=120):
    """Wait until something is found while a process is alive."""
    deadline = time.monotonic() + seconds
    while not (found := find()):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.mark.slow
def test_a_killed_worker_loses_nothing_that_was_finished(moons, tmp_path):
    wanted, expected = moons

    def worker():
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        lines = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
        return [pid for pid, line in lines.items() if b"popen_loky" in line]

    process = start(tmp_path, "--jobs", "2")
    wait_for(lambda: list(tmp_path.glob("runs/*.jsonl.gz")), process)
    kept = read_records(tmp_path / "runs", wanted)
    os.kill(worker()[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    records = read_records(tmp_path / "runs", wanted)
    assert [numbers(record) for record in records] == expected
    assert all(record in records for record in kept)  # with their seconds


DEADLY = """
import os
from elliptica.lab.experiments import register_method

@register_method("deadly")
def deadly(settings, context):
    os._exit(3)
"""


@pytest.mark.slow
def test_a_run_that_kills_its_worker_stops_no_other(tmp_path):
    text = MOONS.replace("[methods.erm]", "[methods.deadly]\n[methods.erm]")
    (tmp_path / "deadly.py").write_text(DEADLY)
    wanted = runs("moons", parse_specification(text, "moons"), seeds=1)
    options = Options(tmp_path / "runs", jobs=2, plugins=(str(tmp_path / "deadly.py"),))
    failures = do_runs(wanted, options)
    assert set(failures) == {run_hash(each) for each in wanted if each.method == "deadly"}
    assert [is_recorded(options.out, each) for each in wanted] == [each.method != "deadly" for each in wanted]


@pytest.mark.slow
@pytest.mark.distributed
def test_a_real_cluster_that_loses_a_worker(moons, tmp_path):
    utils = pytest.importorskip("ray.cluster_utils")
    wanted, expected = moons
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})

    def at_work():
        found = []
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if line.read_bytes().startswith(b"ray::_attempt"):
                    found.append(int(line.parent.name))
            except OSError:
                continue
        return found

    try:
        process = start(tmp_path, "--ray", cluster.address)
        os.kill(wait_for(at_work, process)[0], signal.SIGKILL)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
        assert "Traceback" not in output
    finally:
        cluster.shutdown()
    assert [numbers(record) for record in read_records(tmp_path / "runs", wanted)] == expected
