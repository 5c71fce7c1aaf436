"""Kills of real commands: the comparison notices every loss, and a short version of `adversary/kills.py`."""

import json
import shutil
import time
import zipfile

import numpy as np
import pytest
import torch
from adversary.kills import (
    KEPT,
    LOST,
    Ended,
    Ground,
    Watch,
    damaged,
    differences,
    epochs_done,
    finished,
    judged,
    results,
    scenarios,
    unclear,
)
from safetensors.torch import save_file


@pytest.fixture
def folder(tmp_path):
    """A folder like those of `run` and `compare`."""
    out = tmp_path / "out"
    out.mkdir()
    record = {
        "metrics": {"average": 0.25},
        "cost": {"seconds": 1.5, "epochs": 3},
        "curves": [1.0, float("nan")],
    }
    (out / "a-seed0.json").write_text(json.dumps(record))
    piece = {"repeat": 0, "fold": 1, "method": "erm", "seconds": 0.5, "length": 7}
    (out / "results.json").write_text(json.dumps({"records": [piece]}))
    save_file({"w": torch.ones(3)}, out / "a-seed0.model.safetensors")
    np.savez(out / "predictions.npz", p=np.arange(3.0))
    with zipfile.ZipFile(out / "model.elliptica", "w") as archive:
        archive.writestr("model.json", "{}")
    return out


def edited(folder, name, old, new):
    """A copy of a folder with another text in a file."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    text = (copy / name).read_text()
    assert old in text
    (copy / name).write_text(text.replace(old, new))
    return copy


def test_equal_results_are_equal_whatever_the_clock_says(folder):
    copy = edited(folder, "a-seed0.json", "1.5", "99.0")
    assert differences(results(folder), results(copy)) == []
    assert damaged(folder) == []


def test_a_changed_number_is_noticed(folder):
    copy = edited(folder, "a-seed0.json", "0.25", "0.25000000000000006")
    (told,) = differences(results(folder), results(copy))
    assert told.startswith("a-seed0.json/metrics/average: 0.25000000000000006")


def test_a_changed_prediction_is_noticed(folder):
    before = results(folder)
    np.savez(folder / "predictions.npz", p=np.nextafter(np.arange(3.0), 9.0))
    assert [told.partition(":")[0] for told in differences(before, results(folder))] == [
        "predictions.npz/p.npy"
    ]


@pytest.mark.parametrize("name", ["a-seed0.json", "a-seed0.model.safetensors", "model.elliptica"])
def test_a_missing_file_is_noticed(folder, name):
    before = results(folder)
    (folder / name).unlink()
    assert differences(before, results(folder)) == [f"{name}: missing"]


@pytest.mark.parametrize(
    "name",
    ["a-seed0.json", "results.json", "a-seed0.model.safetensors", "model.elliptica", "predictions.npz"],
)
def test_a_file_that_is_cut_short_is_noticed(folder, name):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-2])
    (told,) = damaged(folder)
    assert told.startswith(f"{name} is damaged")


def test_pages_and_pictures_that_are_cut_short_are_noticed(tmp_path):
    (tmp_path / "page.html").write_text("<html><p>")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert len(damaged(tmp_path)) == 2


def test_weights_that_changed_are_noticed(folder):
    before = results(folder)
    save_file({"w": torch.ones(3) * 2}, folder / "a-seed0.model.safetensors")
    assert len(differences(before, results(folder))) == 1


def checkpoint(file, epoch):
    state = {"epoch": epoch, "losses": [0.0] * epoch}
    save_file({"w": torch.ones(1)}, file.with_suffix(".part"), metadata={"state": json.dumps(state)})
    file.with_suffix(".part").replace(file)


def test_a_run_that_starts_anew_is_noticed(tmp_path):
    file = tmp_path / "a-seed0.safetensors"
    checkpoint(file, 5)
    assert epochs_done(tmp_path) == {file.name: 5}
    with Watch(tmp_path) as watch:
        for epoch in (6, 7):
            checkpoint(file, epoch)
            wait_until(lambda epoch=epoch: watch.most[file.name] == epoch)
        assert not watch.back
        checkpoint(file, 1)
        wait_until(lambda: watch.back)
    assert watch.back == {f"{file.name} went back from epoch 7 to 1"}


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_piece_that_is_done_again_is_noticed(folder):
    before = finished(folder)
    assert set(before) == {"0/1/erm", "a-seed0.json"}
    copy = edited(folder, "results.json", "0.5", "0.6")
    assert finished(copy)["0/1/erm"] != before["0/1/erm"]


def test_bad_endings_are_noticed():
    good = Ended(1, "error: page.html cannot be written (No space left on device).", 1.0)
    assert unclear(good, words=["error"]) == []
    for text, status in (("Traceback (most recent call last)", 1), ("error", -11), ("nothing", 1)):
        assert unclear(Ended(status, text, 1.0), words=["error"])
    assert judged("a", "b", []).outcome == KEPT
    assert judged("a", "b", ["c"]).outcome == LOST


@pytest.mark.slow
@pytest.mark.distributed
def test_nothing_is_lost(tmp_path):
    """Two kills of each, a full disk and two writers; the whole is `python -m adversary kills`."""
    ground = Ground(tmp_path, seed=1, kills=2, is_small=True)
    known = scenarios(ground)
    for name in ("run killed", "compare killed", "full disk: predict", "two writers: compare"):
        found = known[name]()
        assert found.outcome == KEPT, found
        if name.endswith("killed"):
            assert found.details["kills"] == 2, found
