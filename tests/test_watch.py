"""`elliptica watch`: real processes that run, die and go on; empty, spoilt and large folders."""

import io
import itertools
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from elliptica.experiments import problems, progress
from elliptica.experiments.engines import do_all
from elliptica.experiments.progress import FOLDER, ProgressFile, is_alive, planned
from elliptica.experiments.records import checkpoint_file, record_file
from elliptica.experiments.run import Options, finish_run
from elliptica.experiments.specification import parse_specification, runs
from elliptica.training import EpochEnd
from elliptica.watch.command import run_watch
from elliptica.watch.groups import by_urgency, make_groups, seconds_left
from elliptica.watch.scan import Reader
from elliptica.watch.view import clock, number, sparkline
from test_experiments import TOY, load_toy

LONG = TOY.replace("epochs = 3", "epochs = 1000000")

#: A command of its own: all runs of the toy table, one after the other, under a plan.
COMMAND = """
import sys, pathlib
from elliptica.experiments import problems
from elliptica.experiments.engines import do_all
from elliptica.experiments.progress import planned
from elliptica.experiments.run import Options
from elliptica.experiments.specification import parse_specification, runs
from test_experiments import load_toy

problems.DATASETS["toy"] = load_toy
wanted = runs("toy", parse_specification(sys.argv[2], "toy"))
with planned(pathlib.Path(sys.argv[1]), wanted):
    do_all(wanted, Options(pathlib.Path(sys.argv[1])), lambda *_: None)
"""


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(problems.DATASETS, "toy", load_toy)
    return parse_specification(TOY, "toy")


def start(out, text):
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(out), text], env={**os.environ, "PYTHONPATH": path}
    )


def wait_for(condition, seconds=600):  # a busy machine may take minutes to import torch
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def states(out):
    return {key[2:]: run.state for key, run in Reader(out).scan().runs.items()}


def watch(folder, columns=80, rows=None):
    """Exit status of the command, and what it prints."""
    screen = Console(file=io.StringIO(), width=columns)
    status = run_watch(folder, screen, once=True, rows=rows, every=1.0)
    return status, screen.file.getvalue()


def show(folder, **options):
    status, output = watch(folder, **options)
    assert status == 0, output
    return output


@pytest.mark.slow
def test_a_real_process_runs_dies_and_its_runs_are_interrupted(tmp_path):
    process = start(tmp_path, LONG)
    try:
        wait_for(lambda: any(run.epoch for run in Reader(tmp_path).scan().runs.values()))
        scan = Reader(tmp_path).scan()
        assert sorted(run.state for run in scan.runs.values()) == ["running", *["waiting"] * 3]
        (going,) = [run for run in scan.runs.values() if run.state == "running"]
        assert going.key[2] == "erm"
        assert going.epochs == 1000000
        assert going.seconds_left > 0
        assert going.scores
        output = show(tmp_path)
        assert "0 of 4 runs done, 1 running, 3 waiting" in output
        assert "/1000000" in output
        wait_for(lambda: Reader(tmp_path).scan().runs[going.key].epoch > going.epoch)  # it is live
    finally:
        process.kill()
        process.wait()
    assert set(states(tmp_path).values()) == {"interrupted"}
    output = show(tmp_path)
    assert "4 interrupted" in output
    assert " left" not in output.splitlines()[0]


@pytest.mark.slow
def test_runs_that_were_killed_go_on_and_leave_nothing(tmp_path):
    process = start(tmp_path, LONG.replace("1000000", "4000"))
    wait_for(lambda: any(run.epoch for run in Reader(tmp_path).scan().runs.values()))
    process.kill()
    process.wait()
    # the same settings again, to the end: a shorter table would be other runs
    process = start(tmp_path, TOY)
    process.wait()
    assert process.returncode == 0
    found = states(tmp_path)
    assert sum(state == "done" for state in found.values()) == 4
    assert [f.name for f in (tmp_path / FOLDER).glob("*.plan")] == []
    assert len(list((tmp_path / FOLDER).glob("*.run"))) == 1  # of the one that was killed


@pytest.mark.slow
@pytest.mark.needs_data
def test_watching_two_processes_of_elliptica_run(data_dir, tmp_path):
    command = [sys.executable, "-m", "elliptica", "run", "table3", "--dataset", "no2", "--jobs", "2"]
    command += ["--methods", "erm,marginal", "--seeds", "2", "--epochs", "3000", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "ELLIPTICA_DATA": str(data_dir)},
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # it may be ignored here
    )
    try:
        wait_for(lambda: list(states(tmp_path).values()).count("running") == 2)
        wait_for(lambda: " left" in show(tmp_path).splitlines()[0])
        assert len(states(tmp_path)) == 4
        pids = {json.loads(f.read_text())["pid"] for f in (tmp_path / FOLDER).glob("*.run")}
        assert len(pids) == 2
        assert process.pid not in pids
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    wait_for(lambda: "running" not in states(tmp_path).values())


@pytest.mark.slow
def test_ctrl_c_ends_the_live_view_and_gives_the_terminal_back(tmp_path, toy):
    do_all(runs("toy", toy), Options(tmp_path), lambda *_: None)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "elliptica", "watch", str(tmp_path)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    seen = b""

    def shown(what):
        nonlocal seen
        if select.select([master], [], [], 0.05)[0]:
            seen += os.read(master, 65536)
        return what in seen

    wait_for(lambda: shown(b"4 of 4 runs done"))
    assert b"\x1b[?1049h" in seen  # the screen of its own
    process.send_signal(signal.SIGINT)
    wait_for(lambda: shown(b"\x1b[?1049l"))
    seen = seen.split(b"\x1b[?1049l")[1]
    wait_for(lambda: shown(b"4 of 4 runs done"))  # the last frame stays
    assert process.wait(300) == 0
    assert b"Traceback" not in seen


def test_watching_does_not_load_torch(tmp_path):
    code = (
        "import sys; from elliptica.cli import app\n"
        "try: app(['watch', sys.argv[1], '--once'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'safetensors'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_a_finished_folder(tmp_path, toy):
    wanted = runs("toy", toy)
    do_all(wanted, Options(tmp_path), lambda *_: None)
    assert list((tmp_path / FOLDER).iterdir()) == []
    assert set(states(tmp_path).values()) == {"done"}
    output = show(tmp_path)
    assert "4 of 4 runs done" in output.splitlines()[0]
    record = json.loads(record_file(tmp_path, wanted[0]).read_text())
    group = next(g for g in make_groups(Reader(tmp_path).scan()) if g.row == "erm")
    validation = record["metrics"]["validation"]["average"]
    assert -group.runs[0].score == pytest.approx(validation, rel=1e-5)
    assert number(-group.mean) in output
    assert number(-group.best) in output


def test_an_empty_folder_and_none(tmp_path):
    assert "no runs here yet" in " ".join(show(tmp_path).split())
    status, output = watch(tmp_path / "nowhere")
    assert status == 2
    assert "There is no folder" in output


def test_a_half_spoilt_folder_is_shown_and_not_touched(tmp_path, toy):
    wanted = runs("toy", toy)
    do_all(wanted, Options(tmp_path), lambda *_: None)
    files = [record_file(tmp_path, run) for run in wanted]
    files[0].write_text("{")
    files[1].write_text("[]")
    files[2].write_text(json.dumps({"run": {}, "metrics": {}, "cost": {}, "versions": {}}))
    folder = tmp_path / FOLDER
    (folder / "a.run").write_text("half of a f")
    (folder / "b.run").write_text(json.dumps({"state": "dancing"}))
    (folder / "c.plan").write_text(json.dumps({"runs": [{"table": 1}]}))
    (folder / "d.plan").write_text("")
    checkpoint = tmp_path / "toy" / "toy" / "other" / "0123456789ab-seed0.safetensors"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"\xff" * 100)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    scan = Reader(tmp_path).scan()
    assert [run.state for run in scan.runs.values()] == ["done"]
    assert len(scan.unreadable) == 7
    assert "7 unreadable files, such as " in show(tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_failure_is_shown_until_the_run_is_done(tmp_path, toy, monkeypatch):
    run = runs("toy", toy, seeds=1)[0]
    monkeypatch.setitem(problems.DATASETS, "toy", lambda **_: 1 / 0)
    assert do_all([run], Options(tmp_path), lambda *_: None) == {run.label: "failed"}
    assert states(tmp_path) == {("erm", run.key, 0): "failed"}
    assert "failed: toy erm seed 0: ZeroDivisionError" in show(tmp_path)
    with planned(tmp_path, [run]):  # it will be done again
        assert states(tmp_path) == {("erm", run.key, 0): "waiting"}
    monkeypatch.setitem(problems.DATASETS, "toy", load_toy)
    finish_run(run, Options(tmp_path), lambda *_: None)
    assert states(tmp_path) == {("erm", run.key, 0): "done"}


def test_an_interrupt_from_the_keyboard_leaves_an_interrupted_run(tmp_path, toy):
    run = runs("toy", toy, seeds=1)[0]

    def stop(_label, kind, details):
        if kind == "epoch" and details["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish_run(run, Options(tmp_path), stop)
    (found,) = Reader(tmp_path).scan().runs.values()
    assert (found.state, found.epoch, found.epochs) == ("interrupted", 2, 3)
    shutil.rmtree(tmp_path / FOLDER)  # as from a version that wrote no such files
    (again,) = Reader(tmp_path).scan().runs.values()
    assert checkpoint_file(tmp_path, run).exists()
    assert (again.state, again.epoch, again.epochs) == ("interrupted", 2, 3)
    assert again.key == found.key


def test_the_file_is_written_at_most_once_in_a_second_and_never_half(tmp_path, toy, monkeypatch):
    clock_now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock_now[0])
    state = ProgressFile(tmp_path, runs("toy", toy, seeds=1)[0], "x")
    epochs = []
    for epoch in range(1, 41):
        clock_now[0] += 0.25
        state(EpochEnd(epoch, 40, 1 / epoch, -1 / epoch, -1 / epoch, 0.1, float(epoch), epoch))
        epochs.append(json.loads(state.file.read_text())["epoch"])
    assert sorted(set(epochs)) == [0, *range(4, 41, 4)]
    assert [f.name for f in state.file.parent.iterdir()] == ["x.run"]


def test_long_curves_are_thinned(tmp_path, toy):
    state = ProgressFile(tmp_path, runs("toy", toy, seeds=1)[0], "x")
    for epoch in range(1, 5001):
        state(EpochEnd(epoch, 5000, 1.0, float(epoch), float(epoch), 0.1, 1.0, 1))
    state.end("interrupted")
    scores = json.loads(state.file.read_text())["scores"]
    assert 60 <= len(scores) <= 128
    assert len({round(b - a) for a, b in itertools.pairwise(scores)}) == 1
    assert state.file.stat().st_size < 5000


def test_a_full_disk_does_not_stop_a_training(tmp_path, toy, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    state = ProgressFile(tmp_path, runs("toy", toy, seeds=1)[0], "x")
    monkeypatch.setattr(Path, "write_text", full)
    state.end("interrupted")


def test_a_process_number_that_is_used_again_is_not_taken_for_the_old_process():
    mine = progress.process()
    assert is_alive(mine)
    if mine["born"] is not None:
        assert not is_alive({**mine, "born": mine["born"] - 1})
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    assert not is_alive({"host": mine["host"], "pid": dead.pid, "born": None})


@pytest.mark.parametrize(("age", "pace", "alive"), [(10, 1, True), (1e5, 1, False), (1e5, 3e4, True)])
def test_on_other_machines_the_age_of_the_file_decides(age, pace, alive):
    content = {"host": "elsewhere", "pid": 1, "updated": time.time() - age, "seconds_per_epoch": pace}
    assert is_alive(content) is alive


def write_records(out, record, tables, datasets, rows, seeds):
    for i in range(tables * datasets * rows * seeds):
        seed, rest = i % seeds, i // seeds
        row, dataset, table = rest % rows, rest // rows % datasets, rest // rows // datasets
        names = {"table": f"table{table}", "dataset": f"dataset{dataset}", "row": f"method number {row}"}
        folder = out.joinpath(*names.values())
        folder.mkdir(parents=True, exist_ok=True)
        content = {**record, "run": {**record["run"], **names, "seed": seed}}
        (folder / f"0123456789ab-seed{seed}.json").write_text(json.dumps(content))


@pytest.mark.parametrize("columns", [80, 120])
def test_five_hundred_runs_stay_readable(tmp_path, toy, columns):
    run = runs("toy", toy, seeds=1)[0]
    finish_run(run, Options(tmp_path / "one"), lambda *_: None)
    record = json.loads(record_file(tmp_path / "one", run).read_text())
    write_records(tmp_path / "many", record, tables=2, datasets=5, rows=5, seeds=10)
    output = show(tmp_path / "many", columns=columns)
    lines = output.splitlines()
    assert "500 of 500 runs done" in lines[0]
    assert max(map(len, lines)) <= columns
    assert len(lines) <= 46
    assert lines[-1] == "and 10 more rows (100 done)"
    assert len(show(tmp_path / "many", rows=5, columns=columns).splitlines()) == 10
    assert len(show(tmp_path / "many", rows=0, columns=columns).splitlines()) == 54
    assert sum("method number" in line for line in lines) == 40
    assert all("●" * 10 in line for line in lines[4:44])


def test_groups_with_something_going_on_come_first(tmp_path, toy):
    wanted = runs("toy", toy)
    do_all(wanted[:2], Options(tmp_path), lambda *_: None)
    state = ProgressFile(tmp_path, wanted[2], "x")
    state(EpochEnd(1, 3, 0.5, -0.5, -0.5, 0.1, 1.0, 1))
    state.end("failed", "Boom")
    with planned(tmp_path, wanted):
        groups = make_groups(Reader(tmp_path).scan())
        assert [group.row for group in groups] == ["elliptic", "erm"]
        assert [group.row for group in by_urgency(reversed(groups))] == ["elliptic", "erm"]


def test_other_settings_of_the_same_row_are_rows_of_their_own(tmp_path, toy):
    finish_run(runs("toy", toy, seeds=1)[0], Options(tmp_path), lambda *_: None)
    other = runs("toy", toy, seeds=1, training={"epochs": 2})[0]
    finish_run(other, Options(tmp_path), lambda *_: None)
    rows = [group.row for group in make_groups(Reader(tmp_path).scan())]
    assert len(rows) == 2
    assert f"erm #{other.key[:4]}" in rows


def test_time_left_is_that_of_the_slowest_or_of_all_by_the_processes(tmp_path, toy):
    """Two run, one of 10 s and one of 30 s left; one waits and will take 40 s (4 epochs of 10 s)."""
    wanted = runs("toy", toy)
    files = [ProgressFile(tmp_path, run, str(i)) for i, run in enumerate(wanted[:2])]
    for file, epoch, pace in zip(files, (3, 1), (10.0, 10.0), strict=True):
        content = json.loads(file.file.read_text())
        content |= {"epoch": epoch, "epochs": 4, "seconds_per_epoch": pace}
        file.file.write_text(json.dumps(content))
    with planned(tmp_path, wanted[:3]):
        groups = make_groups(Reader(tmp_path).scan())
        assert seconds_left(groups, groups) == pytest.approx(40.0)
        erm = [group for group in groups if group.row == "erm"]
        assert seconds_left(groups, erm) == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (0.0, "0.000"), (0.12345, "0.1235"), (12.345, "12.35"), (84.6, "84.60"), (1234.5, "1234"),
     (1e-5, "1.0e-05"), (float("nan"), ""), (-0.5, "-0.5000")],
)  # fmt: skip
def test_numbers(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.2, "1 s"), (59.0, "59 s"), (90.0, "2 min"), (5400.0, "1.5 h"), (2e5, "2.3 d")]
)
def test_durations(seconds, shown):
    assert clock(seconds) == shown


def test_sparklines():
    assert sparkline([], 8) == ""
    assert sparkline([1.0, 1.0, 1.0], 8) == "▁▁▁"
    assert sparkline([float(i) for i in range(8)], 8) == "▁▁▂▃▅▆▇█"
    assert sparkline([100.0, 3.0, 2.0, 1.0, 2.0, 3.0], 6, is_ascii=True)[0] == "#"
    assert len(sparkline([float(i) for i in range(1000)], 20)) == 20
    assert sparkline([1000.0, 5.0, 4.0, 3.0, 2.0, 1.0], 6) == "██▇▅▃▁"  # the start does not flatten the rest


def test_a_folder_of_a_search_says_what_is_there(tmp_path):
    optuna = pytest.importorskip("optuna")
    from elliptica.experiments.search.storage import open_storage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = open_storage(str(tmp_path / "searches.journal"))
    state = optuna.trial.TrialState
    for name in ("table4/data/erm/auto/seed0/0", "table4/data/marginal/auto/seed0/1"):
        study = optuna.create_study(storage=storage, study_name=name)
        for ended in (state.COMPLETE, state.PRUNED, state.FAIL, state.FAIL):
            trial = study.ask()
            if ended == state.FAIL and len(study.trials) == 4:
                trial.set_user_attr("killed", True)
            study.tell(trial, 1.0 if ended == state.COMPLETE else None, state=ended)
    study.ask()  # under way
    with (tmp_path / "searches.journal").open("a") as journal:
        journal.write('{"op_code": 4, "stu')  # a line that is being written
    row = tmp_path / "table4" / "data" / "marginal"
    row.mkdir(parents=True)
    (row / "chosen-abc.json").write_text(json.dumps({"values": {"settings.sigma": 0.25}}))
    shown = show(tmp_path)
    assert "no runs here yet" not in shown
    assert "search of 3 trials (1 finished, 1 pruned, 1 failed): table4/data/erm" in shown
    assert "search of 4 trials (1 finished, 1 pruned, 1 failed, 1 under way): table4" in shown
    assert "chosen for table4 data marginal: sigma 0.25" in shown


def test_many_choices_leave_room_for_the_runs(tmp_path, toy):
    for run in runs("toy", toy):
        finish_run(run, Options(tmp_path), lambda *_: None)
    for row in range(30):
        file = tmp_path / "table4" / "birds" / f"row{row:02}" / "chosen-0123456789ab.json"
        file.parent.mkdir(parents=True)
        file.write_text('{"values": {"training.lr": 0.1}}')
    output = show(tmp_path, rows=8)
    assert output.count("chosen for table4") == 3
    assert "and 27 more searches and choices" in output
    assert len(output.splitlines()) < 20
    assert "erm" in output
    assert show(tmp_path, rows=0).count("chosen for table4") == 30


def test_a_progress_file_with_words_for_numbers_is_unreadable(tmp_path, toy):
    state = ProgressFile(tmp_path, runs("toy", toy, seeds=1)[0], "x")
    state(EpochEnd(1, 3, 0.5, 0.5, 0.5, 0.1, 1.0, 10))
    state.end("interrupted")
    content = json.loads(state.file.read_text())
    assert content["loss"] == 0.5
    state.file.write_text(json.dumps({**content, "loss": "low"}))
    assert "1 unreadable file" in show(tmp_path)
