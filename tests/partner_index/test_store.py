"""A partner index in a folder: mapped, shared by processes, whole or refused."""

import functools
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from elliptica.partner_index import PartnerIndex
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
    loaded = PartnerIndex.load(tmp_path / "index")
    assert torch.equal(draws(loaded), draws(built))
    assert (loaded.power, loaded.recall, loaded.error_bound) == (2.0, built.recall, built.error_bound)
    assert isinstance(loaded._arrays.points, np.memmap)
    assert not loaded._arrays.points.flags.writeable
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index"]  # nothing else is left behind
    assert built.with_law(power=float("inf")).save(tmp_path / "nearest").power == float("inf")


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


def test_building_reads_in_pieces(monkeypatch, generator, tmp_path):
    """Never more than a piece of the data at a time, whatever their size."""
    monkeypatch.setattr("elliptica.partner_index.store.CHUNK", 6 * 50)
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


def test_pickle_is_the_name_of_the_folder(saved, built):
    data = pickle.dumps(saved.with_law(power=3.0, max_draws=7))
    assert len(data) < 500
    there = pickle.loads(data)  # our own bytes
    assert (there.power, there.max_draws, there.folder) == (3.0, 7, saved.folder)
    assert torch.equal(draws(there.with_law(power=2.0, max_draws=2048)), draws(built))
    with pytest.raises(TypeError, match="save"):
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
    found = together(functools.partial(rank_draws, folder=saved.folder))
    (one, _), (two, _) = found
    assert torch.equal(one, two)
    own = saved.sample(torch.arange(20), n_bridges=3, generator=torch.Generator().manual_seed(3))
    assert torch.equal(one, own)
    assert [len(batches) for _, batches in found] == [6, 6]
    starts = [row for _, batches in found for batch in batches for row in batch[: len(batch) // 2]]
    assert sorted(starts) == list(range(80))


def truncate(folder):
    data = (folder / "near.npy").read_bytes()
    (folder / "near.npy").write_bytes(data[: len(data) // 2])


def pickled(folder):
    np.save(folder / "missed.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)


def other_version(folder):
    text = (folder / "header.json").read_text()
    (folder / "header.json").write_text(text.replace('"version": 3', '"version": 2'))


@pytest.mark.parametrize("spoil", [truncate, pickled, other_version])
def test_spoilt_folders(spoil, saved):
    spoil(saved.folder)
    with pytest.raises(ValueError):  # NumPy's, or ours
        PartnerIndex.load(saved.folder)


def test_a_folder_of_something_else_is_never_replaced(tmp_path, built):
    with pytest.raises(FileNotFoundError):
        PartnerIndex.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    built.save(tmp_path / "empty")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.txt").write_text("cat")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="folder"):
            built.save(tmp_path / "photos", overwrite=overwrite)
    assert (tmp_path / "photos" / "cat.txt").read_text() == "cat"


def test_overwriting(saved, generator, tmp_path):
    """Who has the old one open goes on with it."""
    before = draws(saved)
    other = PartnerIndex.build(torch.randn(30, 2, generator=generator), generator=generator)
    with pytest.raises(FileExistsError, match="overwrite"):
        other.save(saved.folder)
    other.save(saved.folder, overwrite=True)
    assert len(PartnerIndex.load(saved.folder)) == 30
    assert torch.equal(draws(saved), before)
    assert [p.name for p in tmp_path.iterdir()] == ["index"]
    saved.save(saved.folder, overwrite=True)  # even its own
    assert torch.equal(draws(PartnerIndex.load(saved.folder)), before)


def test_failed_build_leaves_nothing(tmp_path):
    x = torch.ones(50, 2)
    x[40] = float("nan")
    with pytest.raises(ValueError, match="row 40 "):
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
