"""Many runs on Ray: the records of the sequential run, also when workers and nodes are killed."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.lab.experiments.engines import EngineError, open_engine
from elliptica.lab.experiments.records import model_file, read_record, record_file
from elliptica.lab.experiments.run import Options, RaySettings
from elliptica.lab.experiments.specification import load_specification, parse_specification, runs
from elliptica.lab.experiments.tune import rows_of, tune
from elliptica.lab.experiments.tuned import chosen_file
from elliptica.lab.training.progress import EpochEnd
from experiment_cases import do_all, read_board, silent

ray = pytest.importorskip("ray", reason="Ray is not installed (extra scale)")

from elliptica.lab.experiments.ray_engine import (  # noqa: E402
    Post,
    RayCluster,
    own_sigterm,
    scratch,
    version_problem,
)

MOONS = """
title = "Moons"
paper = "nowhere"
metric = "accuracy"
seeds = 2
search = { lr = { low = 1e-4, high = 1e-1, log = true } }
[methods.erm]
[methods.elliptic]
[datasets.two_moons]
load = { n_boundary = 40, n_interior = 40 }
model = { name = "mlp", hidden = [8] }
training = { epochs = 4, batch_size = 20, lr = 1e-2 }
"""
#: Epochs after which a run that is held waits, see `held`.
HELD, LONG = 3, MOONS.replace("epochs = 4", "epochs = 20")


def comparable(record):
    """A record as bytes, apart from what clocks say."""
    cost = {k: v for k, v in record["cost"].items() if k not in ("seconds", "first_stage")}
    return json.dumps({**record, "cost": cost}, sort_keys=True)


def records(out, wanted):
    return {run.label: comparable(read_record(record_file(out, run))) for run in wanted}


def moons(text=MOONS, **options):
    return runs("moons", parse_specification(text, "moons"), **options)


@pytest.fixture(scope="module")
def cluster():
    """A head and room for others, one processor each, of this code."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="r")  # paths of sockets must be short
    Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)  # where Ray notes addresses in any case
    source = str(Path(__file__).parents[3] / "src")
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Cluster()
        try:
            add_node(made, temp_dir=folder, include_dashboard=False)
            ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
            yield made
            ray.shutdown()
        finally:
            made.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def add_node(cluster, **options):
    """Add a node of one processor; Ray gives it half a minute to start, which is little on a busy machine."""
    for _ in range(4):
        with contextlib.suppress(Exception):
            return cluster.add_node(num_cpus=1, **options)
    return cluster.add_node(num_cpus=1, **options)


def parent(pid):
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def sequential(tmp_path_factory):
    """Records of long runs that nothing happened to."""
    out = tmp_path_factory.mktemp("sequential")
    wanted = moons(LONG)
    do_all(wanted, Options(out, keep_models=True), silent)
    models = {f"{run.label} model": model_file(out, run).read_bytes() for run in wanted}
    return records(out, wanted) | models


@pytest.mark.slow
def test_records_and_events_are_those_of_the_sequential_run(cluster, tmp_path):
    wanted, heard = moons(), {}
    for name, settings in (("here", None), ("there", RaySettings())):
        events = heard.setdefault(name, [])
        found = do_all(wanted, Options(tmp_path / name, ray=settings), lambda *e, to=events: to.append(e))
        assert set(found.values()) == {"done"}
    assert records(tmp_path / "here", wanted) == records(tmp_path / "there", wanted)
    for run in wanted:
        here, there = (
            [(kind, d) for label, kind, d in heard[name] if label == run.label] for name in ("here", "there")
        )
        assert there[0][1].pop("node")
        assert there[0][1].pop("pid") != os.getpid()
        assert there == here  # no epoch is left out, however fast they are
    assert not list((tmp_path / "there").rglob("*.safetensors"))
    assert not list((tmp_path / "there").rglob("shared-*"))
    again = do_all(wanted, Options(tmp_path / "there", ray=RaySettings()), silent)
    assert set(again.values()) == {"skipped"}


@pytest.mark.slow
def test_a_run_that_fails_says_the_same_and_does_not_stop_the_others(cluster, tmp_path):
    wanted, told = moons(MOONS.replace("[methods.elliptic]", "[methods.elliptic]\nn_tims = 3"), seeds=1), []
    for settings in (None, RaySettings()):
        found = do_all(
            wanted,
            Options(tmp_path / str(settings is None), ray=settings),
            lambda *e: told.append(e[2]["error"]) if e[1] == "failed" else None,
        )
        assert sorted(found.values()) == ["done", "failed"]
    assert "n_tims" in told[0]
    assert told[0] == told[1]


@pytest.fixture
def held(tmp_path, monkeypatch):
    """Workers wait in the middle of a run while a file for it exists: they can be killed there for certain.

    Returns a function from a run to its file.
    """
    from elliptica.lab.experiments import ray_engine

    folder, n_epochs = tmp_path / "held", HELD
    folder.mkdir()

    def work(run, *more):  # an inner function travels to workers as it is
        from elliptica.lab.experiments import ray_engine

        take, file = ray_engine.Post.__call__, folder / f"{run.row}-{run.seed}"

        def take_and_wait(post, message):
            take(post, message)
            if getattr(message, "epoch", 0) >= n_epochs:
                post.send()
                while file.exists():
                    time.sleep(0.05)

        ray_engine.Post.__call__ = take_and_wait
        try:
            return ray_engine.work(run, *more)
        finally:
            ray_engine.Post.__call__ = take

    monkeypatch.setattr(ray_engine, "work", work)

    def hold(run):
        file = folder / f"{run.row}-{run.seed}"
        file.touch()
        return file

    return hold


@pytest.mark.slow
@pytest.mark.parametrize("is_shared", [True, False])
def test_a_worker_that_is_killed(cluster, sequential, held, tmp_path, monkeypatch, is_shared):
    """The run goes on from its checkpoint, or begins anew where the disk is another one: same record."""
    if not is_shared:
        absent = contextlib.nullcontext(tmp_path / "absent")
        monkeypatch.setattr(RayCluster, "_token", lambda *_: absent)
    (run,) = moons(LONG, methods=["elliptic"], seeds=1)
    file, pids, told, epochs = held(run), [], [], []

    def listen(label, kind, details):
        if kind == "start":
            pids.append(details["pid"])
            epochs.append([])
        if kind == "again":
            told.append(details["error"])
        if kind == "epoch":
            epochs[-1].append(details["epoch"])
            if len(pids) == 1 and details["epoch"] == HELD:
                os.kill(pids[0], signal.SIGKILL)
                file.unlink()

    board = tmp_path / "board"
    options = Options(tmp_path, keep_models=True, tensorboard=board, ray=RaySettings())
    assert do_all([run], options, listen) == {run.label: "done"}
    before, after = epochs
    assert len(told) == 1
    assert "its worker was lost, try 2 of 4" in told[0]
    assert before == [1, 2, 3]
    assert after == list(range(after[0], 21))
    assert after[0] > 1 if is_shared else after[0] == 1
    assert records(tmp_path, [run]) == {run.label: sequential[run.label]}
    assert model_file(tmp_path, run).read_bytes() == sequential[f"{run.label} model"]
    scalars = read_board(record_file(board, run).with_suffix(""))
    assert [step for step, _ in scalars["train/loss"]] == list(range(1, 21))  # none twice, none left out
    assert scalars["final/test_average"]


@pytest.mark.slow
def test_a_run_whose_workers_are_always_lost(cluster, held, tmp_path):
    victim, other = moons(LONG, methods=["erm"])
    held(victim)
    killed, lost = [], []

    def listen(label, kind, details):
        if kind == "start" and label == victim.label:
            killed.append(details["pid"])
            os.kill(details["pid"], signal.SIGKILL)
        if kind == "lost":
            lost.append(details["error"])

    found = do_all([victim, other], Options(tmp_path, ray=RaySettings(retries=1)), listen)
    assert found == {victim.label: "lost", other.label: "done"}
    assert len(killed) == 2
    assert "lost 2 times" in lost[0]
    assert "--retries" in lost[0]
    assert read_record(record_file(tmp_path, victim)) is None


@pytest.mark.slow
def test_a_node_that_is_killed(cluster, sequential, held, tmp_path):
    """Two nodes of one processor each; the second one is killed while runs are on both."""
    second = add_node(cluster)
    cluster.wait_for_nodes()
    raylet = second.all_processes["raylet"][0].process.pid
    wanted, there, kinds = moons(LONG), set(), []
    files = [held(run) for run in wanted]

    def listen(label, kind, details):
        kinds.append(kind)
        if kind == "start" and parent(details["pid"]) == raylet:
            there.add(label)
        if kind == "epoch" and details["epoch"] == HELD and label in there and "killed" not in kinds:
            kinds.append("killed")
            os.kill(raylet, signal.SIGKILL)
            for file in files:
                file.unlink()

    options = Options(tmp_path, ray=RaySettings())
    try:
        with open_engine(options) as engine:
            assert engine.check(wanted, options) == (wanted, [])
            found = engine.do(wanted, options, listen)
    finally:
        cluster.remove_node(second, allow_graceful=False)
    assert kinds.index("killed") < kinds.index("again")
    assert {each.state for each in found} == {"done"}
    assert records(tmp_path, wanted).items() <= sequential.items()


@pytest.mark.slow
def test_tuning_chooses_what_it_chooses_without_ray(cluster, tmp_path):
    rows = rows_of(moons(), parse_specification(MOONS, "moons"))
    for name, settings in (("here", None), ("there", RaySettings())):
        options = Options(tmp_path / name, ray=settings)
        with open_engine(options) as engine:
            found = tune(rows, 3, options, silent, engine)
        assert all(isinstance(chosen, dict) for chosen in found.values())
    for run in moons(seeds=1):
        here, there = (chosen_file(tmp_path / name, run).read_text() for name in ("here", "there"))
        assert here == there


@pytest.mark.slow
def test_jobs_bounds_the_runs_at_once(cluster, held, tmp_path):
    """The node has room for four small runs: all work at once, and never three with --jobs 2."""

    def most_at_work(jobs, expected):
        wanted, working, most = moons(LONG), set(), [0]
        files = [held(run) for run in wanted]

        def release():
            for file in files:
                file.unlink(missing_ok=True)

        def listen(label, kind, details):
            if kind == "start":
                working.add(label)
                if len(working) == expected:  # the workers are warm by then: time enough for one more
                    threading.Timer(3.0, release).start()
            elif kind == "done":
                working.discard(label)
            most[0] = max(most[0], len(working))

        options = Options(tmp_path / f"jobs-{jobs}", jobs=jobs, ray=RaySettings(cpus_per_run=0.25))
        assert set(do_all(wanted, options, listen).values()) == {"done"}
        return most[0]

    assert most_at_work(None, 4) == 4
    assert most_at_work(2, 2) == 2


@pytest.mark.slow
def test_nodes_are_tried_before_any_work(cluster, tmp_path, monkeypatch):
    wanted = moons(seeds=1) + runs("table3", load_specification("table3"), datasets=["no2"], seeds=1)
    options = Options(tmp_path / "out", data_dir=tmp_path, ray=RaySettings())
    with open_engine(options) as engine:
        left, problems = engine.check(wanted, options)
        assert {run.dataset for run in left} == {"two_moons"}
        assert len(problems) == 1
        assert problems[0].startswith("On node ")
        assert "no2: Expected the data file" in problems[0]
        assert "ELLIPTICA_DATA" in problems[0]
        left, problems = engine.check(wanted, dataclasses.replace(options, device="cuda"))
        assert (left, problems[0][:13]) == ([], "--device cuda")
        left, problems = engine.check(wanted, dataclasses.replace(options, device="nowhere"))
        assert left == []
        assert "device='nowhere' cannot be used" in problems[0]

        from elliptica.lab.experiments import ray_engine

        wrong = {**ray_engine.versions(), "torch": "0.1"}
        monkeypatch.setattr(ray_engine, "versions", lambda: wrong)
        left, problems = engine.check(wanted, options)
        assert left == []
        assert "instead of 0.1" in problems[0]
        monkeypatch.undo()

        engine.versions = wrong  # a node that joined after the check
        errors = []
        run = moons(seeds=1)[0]
        (found,) = engine.do([run], options, lambda *e: errors.append(e[2].get("error")))
        assert found.state == "failed"
        assert "instead of 0.1" in errors[-1]
    gpus = dataclasses.replace(options, ray=RaySettings(gpus_per_run=1), device="cuda:1")
    with open_engine(gpus) as engine:
        assert "Say --device cuda." in engine.check(wanted, gpus)[1][0]
    for large, message in [
        (RaySettings(cpus_per_run=64), "No node can do a run that asks for 64 processors and 0 GPUs"),
        (RaySettings(gpus_per_run=1), "--gpus-per-run 1 reserves GPUs, but runs are on the CPU"),
    ]:
        with open_engine(dataclasses.replace(options, ray=large)) as engine:
            try:
                told = engine.check(wanted, options)[1][0]
            except EngineError as error:
                told = str(error)
            assert message in told


@pytest.mark.slow
@pytest.mark.needs_data
def test_ctrl_c_takes_the_runs_back(cluster, data_dir, tmp_path):
    """The command, on a cluster that others started."""
    command = [sys.executable, "-m", "elliptica", "run", "table3", "--dataset", "no2", "--epochs", "100000"]
    more = ["--methods", "erm", "--engine", "ray", "--address", cluster.address]
    process = subprocess.Popen(
        [*command, *more, "--data-dir", str(data_dir), "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs may ignore it
    )
    deadline = time.monotonic() + 300
    while not list(tmp_path.rglob("*.safetensors")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "Interrupted" in output
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:  # its tasks are gone
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_folders_that_killed_workers_left_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, others = tmp_path / "elliptica-run-left", tmp_path / "elliptica-of-others"
    for folder in (left, others):
        folder.mkdir()
        (folder / "run.safetensors").touch()
        os.utime(folder, (0, 0))
    with scratch() as alive:
        os.utime(alive, (0, 0))  # as old as the other, but its lock is held
        with scratch() as young:
            assert set(tmp_path.iterdir()) == {alive, young, others}
    assert set(tmp_path.iterdir()) == {others}


@pytest.mark.bad_input
def test_versions_are_compared():
    here = {"elliptica": "1.0", "torch": "2.13.0", "python": "3.11.0", "revision": "abc"}
    assert version_problem(here, {**here, "python": "3.11.9"}) is None
    assert version_problem(here, {k: v for k, v in here.items() if k != "revision"}) is None
    told = version_problem(here, {**here, "torch": "2.14.0", "revision": "abd+"})
    assert "torch 2.14.0 instead of 2.13.0, revision abd+ instead of abc" in told
    assert "Install the same there" in told


def test_messages_are_sent_together_and_none_is_left_out():
    class Messages:
        def __init__(self):
            self.sent = []

        def put_nowait_batch(self, batch):
            self.sent.append(batch)

    messages = Messages()
    post = Post(messages, 7)
    ends = [EpochEnd(epoch, 99, 0.5, 0.5, 0.5, 0.1, 1.0, 10) for epoch in range(1, 100)]
    for end in ends:
        post(end)
    post.send()
    assert len(messages.sent) < 50
    assert [end for batch in messages.sent for _, end in batch] == ends


@pytest.mark.bad_input
def test_the_command_names_what_is_wrong(tmp_path, monkeypatch):
    runner = CliRunner()
    done = runner.invoke(app, ["run", "table3", "--address", "auto", "--retries", "1"])
    assert done.exit_code == 2
    assert "--address, --retries: only with --engine ray" in " ".join(done.output.replace("│", "").split())
    done = runner.invoke(app, ["tune", "table4", "--search", "auto", "--engine", "ray"])
    assert done.exit_code == 2
    assert "A search has workers of its own" in done.output
    arguments = ["run", "table3", "--engine", "ray", "--address", "ray://somewhere:10001"]
    done = runner.invoke(app, [*arguments, "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "Ray Client, which is not supported" in " ".join(done.output.split())
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    done = runner.invoke(app, [*arguments[:-1], "127.0.0.1:1", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "There is no Ray cluster at 127.0.0.1:1" in " ".join(done.output.split())
    for name in list(sys.modules):
        if name == "elliptica.lab.experiments.ray_engine":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(EngineError, match=r'pip install "elliptica\[scale\]"'),
        open_engine(Options(tmp_path, ray=RaySettings())),
    ):
        pass


def test_ray_keeps_the_handler_of_sigterm():
    """Its own would end a command without a word."""

    def ours(*_):
        pass

    before = signal.signal(signal.SIGTERM, ours)
    try:
        with own_sigterm():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, before)
