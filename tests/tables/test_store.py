"""Finished pieces on disk: read back, refused if they belong to something else."""

import json
import signal
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from elliptica.tables import Options, TableError, compare
from elliptica.tables.comparison import Session

bad_input = pytest.mark.bad_input


@pytest.fixture
def kept(flowers, tiny, tmp_path):
    """Options of a comparison that is finished, in a folder."""
    options = {**tiny, "trials": 1, "methods": ["linear"], "out": tmp_path}
    compare(flowers.drop("height"), "kind", **options)
    return options


@pytest.fixture
def ran(monkeypatch):
    """Folds and methods of the tasks that are run."""
    tasks, usual = [], Session._run_task

    def spy(self, task, *rest):
        tasks.append(([fold.number for fold in task.folds], task.methods))
        return usual(self, task, *rest)

    monkeypatch.setattr(Session, "_run_task", spy)
    return tasks


@bad_input
@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"trials": 2}, {"folds": 4}, {"bounded": False}, {"extrapolate": True}]
)
def test_another_comparison_is_not_mixed_in(flowers, kept, change):
    with pytest.raises(TableError, match="shift" if "extrapolate" in change else next(iter(change))):
        compare(flowers.drop("height"), "kind", **{**kept, **change})


@bad_input
def test_another_table_is_not_mixed_in(flowers, kept):
    frame = flowers.drop("height")
    with pytest.raises(TableError, match="target"):
        compare(frame, "colour", **kept)
    with pytest.raises(TableError, match="contents"):
        compare(frame.with_columns(pl.col("size") * 2), "kind", **kept)


@bad_input
@pytest.mark.parametrize(
    "damage", ['{"about": ', "[]", '{"about": {}, "records": [{"repeat": 0}]}', "folder"]
)
def test_a_damaged_file(flowers, kept, tmp_path, damage):
    file = tmp_path / "results.json"
    file.unlink()
    file.mkdir() if damage == "folder" else file.write_text(damage)
    with pytest.raises(TableError, match=r"results\.json"):
        compare(flowers.drop("height"), "kind", **kept)


def test_records_without_predictions_are_done_again(flowers, kept, tmp_path, ran):
    first = compare(flowers.drop("height"), "kind", **kept)
    assert not ran
    with np.load(tmp_path / "predictions.npz", allow_pickle=False) as arrays:
        some = {name: arrays[name] for name in arrays if not name.startswith("0/1/linear")}
    np.savez(tmp_path / "predictions.npz", **some)
    again = compare(flowers.drop("height"), "kind", **kept)
    assert ran == [([1], ("linear",))]
    assert again.scores == first.scores


@bad_input
def test_a_folder_that_cannot_be_used_is_found_before_any_training(flowers, tiny, ran, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "model.elliptica").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below", tmp_path):
        with pytest.raises((TableError, OSError), match=r"file|model"):
            compare(flowers, "kind", out=out, **tiny)
    assert not ran
    assert (tmp_path / "model.elliptica").read_text() == "mine"


def test_results_are_kept_and_extended(flowers, tiny, tmp_path, ran):
    frame, options = flowers.drop("height"), {**tiny, "trials": 1, "out": tmp_path}
    once = compare(frame, "kind", methods=["elliptic"], **options)
    ran.clear()
    more = compare(frame, "kind", methods=["elliptic", "linear"], repeats=2, **options)
    assert more.complete
    # of the first repeat only the linear model was missing
    assert sorted(ran) == sorted(
        [([k], ("linear",)) for k in [0, 1, 2] * 2] + [([0, 1, 2], ("erm", "elliptic"))]
    )
    ran.clear()
    again = compare(frame, "kind", methods=["elliptic"], **options)  # fewer are answered from the first
    assert not ran
    assert again.scores == once.scores
    assert [r.key for r in again.records] == [r.key for r in once.records]
    assert len(json.loads((tmp_path / "results.json").read_text())["records"]) == len(more.records)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_folder_belongs_to_one_process_and_a_killed_one_does_not_block(flowers, tmp_path):
    table, out = tmp_path / "t.csv", tmp_path / "out"
    flowers.drop("height").write_csv(table)
    code = (
        "import sys, time\n"
        "from elliptica.tables import Options\n"
        "from elliptica.tables.comparison import Session\n"
        "options = Options(methods=['linear'], trials=1, epochs=2)\n"
        "session = Session.open(sys.argv[1], 'kind', options, out=sys.argv[2])\n"
        "print('open', flush=True)\n"
        "time.sleep(600)\n"
    )
    first = subprocess.Popen([sys.executable, "-c", code, table, out], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline().strip() == "open"
        with pytest.raises(TableError, match="--out"):
            Session.open(table, "kind", Options(methods=["linear"], trials=1, epochs=2), out=out)
        assert not (out / "results.json").exists()
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert compare(table, "kind", methods=["linear"], trials=1, epochs=2, out=out).complete
