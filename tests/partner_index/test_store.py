"""A partner index in a folder: mapped, shared by processes, whole or refused."""

import functools
import json
import os
import pickle
import shutil

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from elliptica.partner_index import PartnerIndex
from elliptica.partner_index.store import Arrays
from partner_workers import Pairs, rank_draws
from processes import fresh, together


def twin(generator):
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return copy


@pytest.fixture
def built(generator):
    x = torch.randn(80, 4, generator=generator)
    return PartnerIndex.build(x, k=6, power=2.0, generator=generator)


@pytest.fixture
def saved(built, tmp_path):
    return built.save(tmp_path / "index")


def draws(index, seed=0):
    return index.sample(torch.arange(80), n_bridges=5, generator=torch.Generator().manual_seed(seed))


def test_saved_index_draws_the_same(built, saved, tmp_path):
    assert torch.equal(draws(saved), draws(built))
    loaded = PartnerIndex.load(tmp_path / "index", verify=True)
    assert torch.equal(draws(loaded), draws(built))
    assert (loaded.power, loaded.recall, loaded.error_bound) == (2.0, built.recall, built.error_bound)
    assert isinstance(loaded._arrays.points, np.memmap)
    assert not loaded._arrays.points.flags.writeable
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index"]  # nothing else is left behind
    assert str(tmp_path / "index") in repr(loaded)


def test_index_of_infinite_power_is_saved(built, tmp_path):
    index = built.with_law(power=float("inf")).save(tmp_path / "nearest")
    assert index.power == float("inf")


@pytest.mark.parametrize("exact", [True, False])
def test_built_in_a_folder_from_a_mapped_file(exact, tmp_path, generator):
    """The same index as in memory, from a file that is read in pieces."""
    x = torch.randn(300, 2, 3, generator=generator)
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    options = {"k": 5, "exact": exact, "probes": 3}
    one = PartnerIndex.build(x, generator=twin(generator), **options)
    two = PartnerIndex.build(mapped, generator=twin(generator), folder=tmp_path / "index", **options)
    assert two.folder == (tmp_path / "index").resolve()
    for name, array in one._arrays.named().items():
        assert np.array_equal(array, two._arrays.named()[name]), name
    PartnerIndex.load(tmp_path / "index", verify=True)


def test_building_reads_in_pieces(monkeypatch, generator, tmp_path):
    """Never more than a piece of the data at a time, whatever their size."""
    monkeypatch.setattr("elliptica.partner_index.features.CHUNK", 6 * 50)
    x = torch.randn(1000, 6, generator=generator).numpy()
    largest = []

    class Watched(np.ndarray):
        def __getitem__(self, which):
            found = np.asarray(super().__getitem__(which))
            largest.append(len(found))
            return found

    index = PartnerIndex.build(
        x.view(Watched), k=4, cells=8, probes=2, folder=tmp_path / "index", generator=generator
    )
    steps = [n for n in largest if n != 1000]  # every (n // 1000)-th row, for the floor, is all of so few
    assert max(steps) <= 256  # a piece, or the sample of the k-means
    assert len(index) == 1000


# ------------------------------------------------------------------------------------ other processes


def test_pickle_is_the_name_of_the_folder(saved, built):
    data = pickle.dumps(saved.with_law(power=3.0, max_draws=7))
    assert len(data) < 500
    there = pickle.loads(data)  # our own bytes
    assert (there.power, there.max_draws, there.folder) == (3.0, 7, saved.folder)
    assert torch.equal(draws(there.with_law(power=2.0, max_draws=2048)), draws(built))
    with pytest.raises(TypeError, match=r"cannot be sent to another process.*index\.save\(folder\)"):
        pickle.dumps(built)


@pytest.mark.slow
def test_spawned_workers_share_the_folder(saved):
    """Two workers that start from nothing: partners as in this process."""
    loader = DataLoader(Pairs(saved, 80), batch_size=8, num_workers=2, multiprocessing_context=fresh())
    dataset = Pairs(saved, 80)
    seen = 0
    for rows, partners in loader:
        for row, found in zip(rows.tolist(), partners, strict=True):
            assert torch.equal(found, dataset[row][1])
            seen += 1
    assert seen == 80


@pytest.mark.slow
def test_ranks_open_the_same_folder(saved):
    """The same partners of the same rows; samplers know their rank, so that each row is a start once."""
    found = together(functools.partial(rank_draws, folder=saved.folder, following=False))
    (one, _), (two, _) = found
    assert torch.equal(one, two)
    own = saved.sample(torch.arange(20), n_bridges=3, generator=torch.Generator().manual_seed(3))
    assert torch.equal(one, own)
    assert [len(batches) for _, batches in found] == [6, 6]
    starts = [row for _, batches in found for batch in batches for row in batch[: len(batch) // 2]]
    assert sorted(starts) == list(range(80))


# --------------------------------------------------------------------------------------- what is refused


def edit_header(folder, **changes):
    header = json.loads((folder / "header.json").read_text())
    (folder / "header.json").write_text(json.dumps({**header, **changes}))


def truncate(folder):
    data = (folder / "near.npy").read_bytes()
    (folder / "near.npy").write_bytes(data[: len(data) // 2])


def other_shape(folder):
    np.save(folder / "reach.npy", np.zeros(7, np.float32))


def with_pickle(folder):
    np.save(folder / "missed.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)


def cells_that_do_not_cover(folder):
    starts = np.load(folder / "starts.npy")
    starts[1] = starts[0]
    np.save(folder / "starts.npy", starts)


SPOILT = {
    "truncated file": (truncate, "near.npy cannot be read"),
    "missing file": (lambda f: (f / "points.npy").unlink(), "points.npy cannot be read"),
    "other shape": (other_shape, r"reach.npy holds float32 \(7,\), the header says float32 \(80,\)"),
    "pickled objects": (with_pickle, "missed.npy cannot be read"),
    "header is no JSON": (lambda f: (f / "header.json").write_text("{"), "header.json is not that of"),
    "header is a list": (lambda f: (f / "header.json").write_text("[]"), "header.json is not that of"),
    "foreign header": (lambda f: edit_header(f, format="zip"), "header.json is not that of"),
    "changed shapes": (lambda f: edit_header(f, arrays={}), "does not agree with itself"),
    "changed digest": (lambda f: edit_header(f, digest="0"), "does not agree with itself"),
    "changed n": (lambda f: edit_header(f, n=81), r"points.npy has shape \(80, 4\), expected \(81, 4\)"),
    "changed power": (lambda f: edit_header(f, power="much"), "does not agree with itself"),
    "other classes": (lambda f: edit_header(f, among="none"), "does not agree with itself"),
    "cells": (cells_that_do_not_cover, "does not divide the points"),
    "newer version": (
        lambda f: edit_header(f, version=3),
        "version 3 of the format; this elliptica reads 1 and 2",
    ),
}


@pytest.mark.parametrize("what", SPOILT)
def test_spoilt_folders_are_refused(what, saved):
    spoil, message = SPOILT[what]
    spoil(saved.folder)
    with pytest.raises(ValueError, match=rf"{message}.*Build it again"):
        PartnerIndex.load(saved.folder)


def test_changed_contents_are_found_when_asked_for(saved):
    file = saved.folder / "points.npy"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(bytes(data))
    PartnerIndex.load(saved.folder)
    with pytest.raises(ValueError, match=r"the contents of points.npy are not what was written"):
        PartnerIndex.load(saved.folder, verify=True)


def test_folders_that_are_no_index(tmp_path, built):
    with pytest.raises(
        FileNotFoundError, match=r"is not a folder, so it is no partner index.*save\(folder\)"
    ):
        PartnerIndex.load(tmp_path / "nowhere")
    (tmp_path / "mine").mkdir()
    with pytest.raises(FileNotFoundError, match=r"has no header\.json"):
        PartnerIndex.load(tmp_path / "mine")
    built.save(tmp_path / "mine")  # an empty folder may be filled
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.txt").write_text("cat")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="is not a partner index"):
            built.save(tmp_path / "photos", overwrite=overwrite)
    assert (tmp_path / "photos" / "cat.txt").read_text() == "cat"


def test_overwriting(saved, generator, tmp_path):
    """Who has the old one open goes on with it."""
    before = draws(saved)
    other = PartnerIndex.build(torch.randn(30, 2, generator=generator), generator=generator)
    with pytest.raises(FileExistsError, match=r"already holds a partner index.*overwrite=True"):
        other.save(saved.folder)
    other.save(saved.folder, overwrite=True)
    assert len(PartnerIndex.load(saved.folder)) == 30
    assert torch.equal(draws(saved), before)
    assert [p.name for p in tmp_path.iterdir()] == ["index"]
    with pytest.raises(ValueError, match="already in"):
        saved.save(saved.folder)


def test_failed_build_leaves_nothing(tmp_path):
    x = torch.ones(50, 2)
    x[40] = float("nan")
    with pytest.raises(ValueError, match="from row 40 on"):
        PartnerIndex.build(x, folder=tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_failed_write_leaves_the_old_index(saved, built, monkeypatch):
    before = draws(saved)

    def full(*_args, **_options):
        raise OSError("no space left")

    monkeypatch.setattr("elliptica.partner_index.store.np.save", full)
    with pytest.raises(OSError, match="no space"):
        built.save(saved.folder, overwrite=True)
    assert torch.equal(draws(PartnerIndex.load(saved.folder)), before)
    assert len(list(saved.folder.parent.iterdir())) == 1


def test_an_index_of_a_backend_that_is_gone_still_opens(saved, built):
    """Folders were written with torch as a third backend."""
    edit_header(saved.folder, backend="torch")
    assert torch.equal(draws(PartnerIndex.load(saved.folder, verify=True)), draws(built))


def test_every_array_has_a_file(saved):
    names = {p.stem for p in saved.folder.glob("*.npy")}
    assert names == set(Arrays.__dataclass_fields__)
    shutil.rmtree(saved.folder)


@pytest.mark.parametrize("kind", ["pipe", "header"])
def test_files_that_cannot_be_arrays_are_told(saved, tmp_path, kind):
    file = tmp_path / "index" / "points.npy"
    data = file.read_bytes()
    file.unlink()
    if kind == "pipe":  # reading it would wait for ever
        os.mkfifo(file)
    else:  # NumPy raises tokenize.TokenError for a header without its end
        file.write_bytes(data.replace(b"}", b" ", 1))
    with pytest.raises(ValueError, match=r"points\.npy"):
        PartnerIndex.load(tmp_path / "index")
