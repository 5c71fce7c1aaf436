"""Finished pieces on disk: read back, refused if they belong to something else."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from elliptica.tables import Options, TableError, compare
from elliptica.tables import runner as runner_module
from elliptica.tables.comparison import Session

bad_input = pytest.mark.bad_input


@pytest.fixture
def kept(flowers, tiny, tmp_path):
    """Options of a comparison that is finished, in a folder."""
    options = {**tiny, "trials": 1, "methods": ["linear"], "out": tmp_path}
    compare(flowers.drop("height"), "kind", **options)
    return options


@bad_input
def test_another_comparison_is_not_mixed_in(flowers, kept):
    frame = flowers.drop("height")
    for change, words in (
        ({"seed": 1}, "seed was 0 and is now 1"),
        ({"trials": 2}, "trials was 1 and is now 2"),
        ({"folds": 4}, "folds was 3 and is now 4"),
        ({"bounded": False}, "bounded was True and is now False"),
        ({"extrapolate": True}, "shift was 'random' and is now 'extrapolate'"),
        ({"budget": "5m"}, "budget was None and is now 300.0"),
    ):
        with pytest.raises(TableError, match=f"holds another comparison: {words}"):
            compare(frame, "kind", **{**kept, **change})
    with pytest.raises(TableError, match="target was 'kind' and is now 'colour'"):
        compare(frame, "colour", **kept)
    with pytest.raises(TableError, match="rows or cells of the table have changed"):
        compare(frame.with_columns(pl.col("size") * 2), "kind", **kept)


@bad_input
def test_a_damaged_file(flowers, kept, tmp_path):
    (tmp_path / "results.json").write_text('{"about": ')
    with pytest.raises(TableError, match=r"results.json cannot be read .* choose another --out"):
        compare(flowers.drop("height"), "kind", **kept)


@bad_input
def test_results_of_an_earlier_version(flowers, kept, tmp_path):
    old = {"about": {"elliptica": "0.1"}, "records": [{"repeat": 0, "method": "erm"}]}
    (tmp_path / "results.json").write_text(json.dumps(old))
    with pytest.raises(TableError, match=r"an earlier version of elliptica \(0.1\), which cannot be resumed"):
        compare(flowers.drop("height"), "kind", **kept)


def test_records_without_predictions_are_done_again(flowers, kept, tmp_path, monkeypatch):
    first = compare(flowers.drop("height"), "kind", **kept)
    with np.load(tmp_path / "predictions.npz", allow_pickle=False) as arrays:
        kept_arrays = {name: arrays[name] for name in arrays if name != "0/1/linear"}
    np.savez(tmp_path / "predictions.npz", **kept_arrays)
    tasks = []
    usual = runner_module.run_task
    monkeypatch.setattr(
        runner_module, "run_task", lambda p, task, *rest: (tasks.append(task), usual(p, task, *rest))[1]
    )
    again = compare(flowers.drop("height"), "kind", **kept)
    assert [(task.folds[0].number, task.methods) for task in tasks] == [(1, ("linear",))]
    assert again.scores == first.scores


def test_files_of_others_are_not_overwritten(flowers, tiny, tmp_path):
    (tmp_path / "model.elliptica").write_text("mine")
    with pytest.raises(TableError, match=r"holds model.elliptica, but no results.json of a comparison"):
        compare(flowers, "kind", out=tmp_path, **tiny)
    assert (tmp_path / "model.elliptica").read_text() == "mine"


@bad_input
def test_a_folder_that_cannot_be_written_is_found_before_any_training(flowers, tiny, monkeypatch, tmp_path):
    monkeypatch.setattr(runner_module, "run_task", lambda *_: pytest.fail("trained"))
    file = tmp_path / "file"
    file.write_text("x")
    for out in (file, file / "below"):
        with pytest.raises(TableError, match=r"The folder .* cannot be written .* Choose another --out"):
            compare(flowers, "kind", out=out, **tiny)
    (tmp_path / "odd" / "results.json").mkdir(parents=True)
    with pytest.raises(TableError, match=r"cannot be read .* choose another --out"):
        compare(flowers, "kind", out=tmp_path / "odd", **tiny)
    assert file.read_text() == "x"


def test_a_folder_belongs_to_one_comparison_at_a_time(flowers, kept, tmp_path):
    options = {name: value for name, value in kept.items() if name != "out"}
    session = Session.open(flowers.drop("height"), "kind", Options(**options), out=tmp_path)
    with pytest.raises(TableError, match=rf"Another comparison is writing to .* \(process {os.getpid()}\)"):
        compare(flowers.drop("height"), "kind", **kept)
    session.close()
    with pytest.raises(TableError, match="seed was 0"):  # an error does not keep the folder either
        compare(flowers.drop("height"), "kind", **{**kept, "seed": 1})
    assert compare(flowers.drop("height"), "kind", **kept).complete


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_two_processes_do_not_lose_work_and_a_killed_one_does_not_block(flowers, tmp_path):
    table, out = tmp_path / "t.csv", tmp_path / "out"
    flowers.drop("height").write_csv(table)
    code = (
        "import sys, time\n"
        "from elliptica.tables import Options\n"
        "from elliptica.tables.comparison import Session\n"
        "options = Options(methods=['linear'], trials=1)\n"
        "session = Session.open(sys.argv[1], 'kind', options, out=sys.argv[2])\n"
        "print('open', flush=True)\n"
        "time.sleep(600)\n"
    )
    first = subprocess.Popen([sys.executable, "-c", code, table, out], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline().strip() == "open"
        command = [sys.executable, "-m", "elliptica", "compare", table, "--target", "kind", "--methods"]
        command += ["linear", "--trials", "1", "--out", out]
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        assert second.returncode == 2
        words = " ".join(second.stdout.split())
        assert f"Another comparison is writing to {out} (process {first.pid}). Wait until it ends" in words
        assert not (out / "results.json").exists()
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    third = subprocess.run(command, capture_output=True, text=True, check=False)
    assert third.returncode == 0, third.stdout
    assert len(json.loads((out / "results.json").read_text())["records"]) == 10


def test_fewer_repeats_are_answered_from_the_first(flowers, kept, tmp_path, monkeypatch):
    frame = flowers.drop("height")
    once = compare(frame, "kind", **kept)
    more = compare(frame, "kind", **kept, repeats=2)
    assert len(more.records) == 2 * len(once.records)
    monkeypatch.setattr(runner_module, "run_task", lambda *_: pytest.fail("trained"))
    again = compare(frame, "kind", **kept, repeats=1)
    assert again.complete
    assert again.scores == once.scores
    assert [r.key for r in again.records] == [r.key for r in once.records]
    assert len(json.loads((tmp_path / "results.json").read_text())["records"]) == len(more.records)


@bad_input
def test_a_damaged_plan_names_the_file(flowers, kept, tmp_path):
    file = tmp_path / "results.json"
    content = json.loads(file.read_text())
    content["plan"]["select"] = 3
    file.write_text(json.dumps(content))
    with pytest.raises(TableError, match=r"results.json cannot be read .* choose another --out"):
        compare(flowers.drop("height"), "kind", **kept)
