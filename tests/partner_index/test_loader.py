"""Batches of pairs, complete training steps on them, and an index that follows a network."""

import functools
import pickle
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

from elliptica import Elliptic, PartnerTable
from elliptica.core.types import EllipticWarning
from elliptica.distributed import Ranks, split_rows
from elliptica.partner_index import (
    PairBatchSampler,
    PartnerIndex,
    RefreshingIndex,
    split_pairs,
    swapped_partners,
)
from laws import assert_frequencies
from partner_workers import rank_draws
from processes import together


@pytest.fixture
def data(generator):
    x = torch.randn(70, 4, generator=generator)
    return TensorDataset(x, torch.arange(70) % 3)


@pytest.fixture
def index(data, generator):
    return PartnerIndex.build(data.tensors[0], k=6, power=2.0, generator=generator)


# ------------------------------------------------------------------------------------------ the sampler


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [2, 8, 20, 100])
def test_every_row_is_a_start_once(index, world_size, batch_size):
    starts, batches = [], set()
    for rank in range(world_size):
        sampler = PairBatchSampler(index, batch_size, n_bridges=2, rank=rank, world_size=world_size)
        found = list(sampler)
        assert len(found) == len(sampler)
        batches.add(len(found))
        for batch in found:
            rows, rest = divmod(len(batch), 3)
            assert rest == 0
            assert 0 < rows <= batch_size
            starts += batch[:rows]
    assert sorted(starts) == list(range(70))
    assert len(batches) == 1  # as many on every rank, else they would wait for each other


def test_epochs_and_seeds(index):
    sampler = PairBatchSampler(index, 16, seed=1)
    first = list(sampler)
    assert list(sampler) == first  # an epoch can be repeated
    sampler.set_epoch(1)
    second = list(sampler)
    assert second != first
    assert sorted(r for b in second for r in b[: len(b) // 2]) == list(range(70))
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(PairBatchSampler(index, 16, seed=2)) != first
    in_order = PairBatchSampler(index, 35, shuffle=False)
    assert [b[:35] for b in in_order] == [list(range(35)), list(range(35, 70))]


@pytest.mark.statistical
def test_partners_in_batches_follow_the_law(index, data, seed):
    """100 epochs: 7000 pairs, told apart by the distance rank of the partner."""
    x = data.tensors[0].double()
    d = torch.cdist(x, x)
    rank = d.argsort(1).argsort(1)
    weight = d.clamp_min(1e-9) ** -2.0
    weight.fill_diagonal_(0)
    law = weight / weight.sum(1, keepdim=True)
    expected = torch.zeros(70).double().index_add_(0, rank.flatten(), law.flatten()) / 70
    counts = np.zeros(70)
    sampler = PairBatchSampler(index, 70, seed=seed)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        (batch,) = sampler
        counts += np.bincount(rank[batch[:70], batch[70:]], minlength=70)
    assert_frequencies(counts, expected.numpy())
    nearest = np.zeros(70)
    nearest[1] = counts.sum()
    with pytest.raises(AssertionError, match=r"frequencies"):
        assert_frequencies(nearest, expected.numpy())


def test_ranks_draw_partners_of_their_own(index):
    """Partners by the stream alone: they differ between ranks, batches and seeds, and come again."""

    class Stream:
        def __len__(self):
            return 70

        def sample(self, index, *, n_bridges=1, generator=None):
            return torch.randint(10**9, (len(index), n_bridges), generator=generator)

    def drawn(rank, seed=3):
        sampler = PairBatchSampler(Stream(), 1, rank=rank, world_size=2, shuffle=False, seed=seed)
        return [partner for _, partner in sampler]

    one, two = (PairBatchSampler(index, 1, rank=rank, world_size=2, shuffle=False) for rank in (0, 1))
    assert [b[0] for b in one] == list(range(0, 70, 2))
    assert [b[0] for b in two] == list(range(1, 70, 2))
    assert drawn(0) == drawn(0)
    assert len({*drawn(0), *drawn(1), *drawn(0, seed=4)}) == 3 * 35


def test_works_with_a_table(data):
    table = PartnerTable(data.tensors[0], power=float("inf"))
    for batch in PairBatchSampler(table, 10):
        half = len(batch) // 2
        assert batch[half:] == table.sample(torch.tensor(batch[:half])).flatten().tolist()


@pytest.mark.bad_input
def test_errors_of_the_sampler(index):
    with pytest.raises(ValueError, match="both rank and world_size or neither"):
        PairBatchSampler(index, 8, rank=0)
    with pytest.raises(ValueError, match="rank must be below world_size"):
        PairBatchSampler(index, 8, rank=2, world_size=2)
    with pytest.raises(ValueError, match="70 rows are too few for 71 processes"):
        PairBatchSampler(index, 8, rank=0, world_size=71)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        PairBatchSampler(index, 0)
    with pytest.raises(TypeError, match=r"got Tensor\. For an array x: PartnerIndex\.build\(x\)"):
        PairBatchSampler(torch.zeros(8, 2), 4)
    with pytest.raises(ValueError, match="multiple of 3 rows, but y has 4"):
        split_pairs(torch.zeros(4, 1), torch.zeros(4), n_bridges=2)
    with pytest.raises(ValueError, match="even number"):
        swapped_partners(5)


def test_split_of_several_inputs():
    x = {"a": torch.arange(6.0)[:, None], "b": torch.arange(6)}
    start, y, (end, end_y) = split_pairs(x, torch.arange(6), n_bridges=2)
    assert start["b"].tolist() == y.tolist() == [0, 1]
    assert end["b"].tolist() == end_y.tolist() == [[2, 3], [4, 5]]
    (first, second), _, end = split_pairs((x["a"], x["b"]), torch.arange(6))
    assert second.tolist() == [0, 1, 2]
    assert end[0][0].shape == (3, 1, 1)
    assert first.shape == (3, 1)


# ------------------------------------------------------------------------------------------- training


@pytest.mark.slow
@pytest.mark.parametrize("n_bridges", [1, 2])
def test_training_with_workers(index, data, generator, tmp_path, n_bridges):
    """A loader with two workers: batches bring both ends, the loss is that of the pairs, and it falls."""
    index = index.save(tmp_path / "index")
    x, _ = data.tensors
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=3, sigma=0.05, n_bridges=n_bridges)
    optimizer = torch.optim.Adam(objective.parameters(), 1e-2)
    sampler = PairBatchSampler(index, 16, n_bridges=n_bridges)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=2)
    losses = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        rows = list(sampler)
        for batch, (batch_x, batch_y) in zip(rows, loader, strict=True):
            assert torch.equal(batch_x, x[batch])
            start, target, end = split_pairs(batch_x, batch_y, n_bridges)
            assert torch.equal(end[0][:, 0], x[batch[len(start) :: n_bridges]])
            loss = objective(start, target, end=end, generator=generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert all(np.isfinite(losses))
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_both_directions_within_the_batch(index, data, generator):
    """``partners=`` where ``end=`` cannot be used, and the same points where both can."""
    x, y = data.tensors
    (batch, *_) = PairBatchSampler(index, 70)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    hidden = Elliptic(model, nn.CrossEntropyLoss(), num_classes=3, at="0")
    loss = hidden(x[batch], y[batch], partners=swapped_partners(140), generator=generator)
    assert torch.isfinite(loss)
    plain = Elliptic(model, nn.CrossEntropyLoss(), num_classes=3, sampling="path", sigma=0.0)
    start, target, end = split_pairs(x[batch], y[batch])
    one = plain(start, target, end=end)
    both = plain(x[batch], y[batch], partners=swapped_partners(140))
    torch.testing.assert_close(one, both)  # straight lines are the same in both directions


# ------------------------------------------------------------------------------------- features of a network


class Rows(Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return self.x[row], row


@pytest.mark.parametrize("source", ["tensor", "dataset", "loader"])
@pytest.mark.parametrize("at", [None, "0"])
def test_features_are_those_of_the_network(source, at, generator, tmp_path):
    x = torch.randn(60, 4, generator=generator)
    network = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.BatchNorm1d(6)).train()
    network[1].eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    given = {"tensor": x, "dataset": Rows(x), "loader": DataLoader(Rows(x), 7)}[source]
    index = PartnerIndex.of_features(network, given, at=at, batch_size=13, k=4, folder=tmp_path / "index")
    assert [m.training for m in network] == [True, False, True]
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    with torch.no_grad():
        z = network[0](x) if at else network.eval()(x)
    d = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(float("inf"))
    nearest = index.with_law(power=float("inf")).sample(torch.arange(60))
    torch.testing.assert_close(d.gather(1, nearest)[:, 0], d.min(1).values, rtol=1e-4, atol=1e-5)
    assert [p.name for p in tmp_path.iterdir()] == ["index"]


def test_features_leave_all_streams_alone(generator):
    """Passing over a loader draws a number; in a thread, beside training, that would be at any moment."""
    x, own = torch.randn(20, 4, generator=generator), torch.Generator()
    before, own_before = torch.get_rng_state(), own.get_state()
    for data in (x, Rows(x), DataLoader(Rows(x), 6), DataLoader(Rows(x), 6, generator=own)):
        PartnerIndex.of_features(nn.Identity(), data, k=4, generator=generator)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(own.get_state(), own_before)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.zeros(20, 4))


@pytest.mark.bad_input
def test_errors_of_features(generator):
    x = torch.randn(20, 4, generator=generator)
    network = nn.Linear(4, 2)
    with pytest.raises(ValueError, match=r"rows in order, but its sampler is RandomSampler.*shuffle=False"):
        PartnerIndex.of_features(network, DataLoader(Rows(x), shuffle=True))
    shuffled = BatchSampler(RandomSampler(Rows(x)), 4, drop_last=False)
    with pytest.raises(ValueError, match=r"in order, but its sampler is RandomSampler"):
        PartnerIndex.of_features(network, DataLoader(Rows(x), batch_sampler=shuffled))
    pairs = PairBatchSampler(PartnerTable(x), 4)
    with pytest.raises(ValueError, match=r"in order, but its sampler is PairBatchSampler"):
        PartnerIndex.of_features(network, DataLoader(Rows(x), batch_sampler=pairs))
    with pytest.raises(TypeError, match=r"a data set with a length.*but got Stream"):
        PartnerIndex.of_features(network, Stream())
    with pytest.raises(ValueError, match=r"returned 18 of the 20 rows.*drop_last=False"):
        PartnerIndex.of_features(network, DataLoader(Rows(x), 6, drop_last=True))
    with pytest.raises(ValueError, match="at='head' is not a layer"):
        PartnerIndex.of_features(network, x, at="head")
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module"):
        PartnerIndex.of_features(lambda x: x, x)


# ------------------------------------------------------------------------------------ following the network


def nearest_by_hand(network, x):
    with torch.no_grad():
        z = network(x)
    return (
        torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(float("inf")).argmin(1)
    )


def turn(network):
    with torch.no_grad():
        network.weight.copy_(torch.randn(network.weight.shape))


def test_refreshed_every_so_many_steps(tmp_path, generator):
    x, network = torch.randn(50, 4, generator=generator), nn.Linear(4, 2)
    rows = torch.arange(50)
    index = RefreshingIndex(
        tmp_path / "indices", network, x, every=3, wait=True, k=4, power=float("inf"), exact=True
    )
    old = nearest_by_hand(network, x)
    assert torch.equal(index.sample(rows)[:, 0], old)
    turn(network)
    ages = []
    for _ in range(2):
        index.step()
        ages.append(index.age)
        assert torch.equal(index.sample(rows)[:, 0], old)
    index.step()
    ages.append(index.age)
    assert ages == [1, 2, 0]
    assert torch.equal(index.sample(rows)[:, 0], nearest_by_hand(network, x))
    for _ in range(12):
        index.step()
    assert len(list((tmp_path / "indices").glob("index-*"))) == 2  # old ones are deleted
    assert len(index) == 50
    assert index.error_bound == 0.0


def test_training_does_not_wait(tmp_path, generator, monkeypatch):
    """While a rebuild hangs, steps and draws go on; then its index is used, that of the network as it was."""
    x, network = torch.randn(50, 4, generator=generator), nn.Linear(4, 2)
    rows = torch.arange(50)
    index = RefreshingIndex(tmp_path, network, x, every=1, k=4, power=float("inf"), exact=True)
    go, real = threading.Event(), PartnerIndex.of_features

    def hanging(*args, **options):
        assert go.wait(60)
        return real(*args, **options)

    monkeypatch.setattr(PartnerIndex, "of_features", hanging)
    old = index.sample(rows)
    turn(network)
    expected = nearest_by_hand(network, x)
    index.step()
    turn(network)  # the rebuild has a copy
    for _ in range(5):
        index.step()
        assert torch.equal(index.sample(rows), old)
    assert index.age == 6
    go.set()
    index.close()
    assert torch.equal(index.sample(rows)[:, 0], expected)
    assert index.age == 5


def test_failed_rebuild_is_said_and_the_old_index_stays(tmp_path, generator):
    x, network = torch.randn(50, 4, generator=generator), nn.Linear(4, 2)
    with RefreshingIndex(tmp_path, network, x, every=2, wait=True, k=4) as index:
        rows = torch.arange(50)
        old = index.sample(rows, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            network.weight.fill_(float("nan"))
        index.step()
        with pytest.warns(
            EllipticWarning, match=r"failed \(ValueError: x must be finite.*step 0 stays in use"
        ):
            index.step()
        assert index.failures == 1
        assert torch.equal(index.sample(rows, generator=torch.Generator().manual_seed(0)), old)
        turn(network)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            index.step()
            index.step()
        assert index.age == 0
        assert sorted(p.name for p in tmp_path.iterdir()) == ["current.json", "index-000000", "index-000001"]


@pytest.mark.slow
def test_others_follow(tmp_path, generator):
    """A copy in another process, and other ranks, read the newest index and never build one."""
    x, network = torch.randn(50, 4, generator=generator), nn.Linear(4, 2)
    index = RefreshingIndex(tmp_path / "index", network, x, every=1, wait=True, k=4)
    copy = pickle.loads(pickle.dumps(index))  # our own bytes
    assert not hasattr(copy, "step")
    rows = torch.arange(20)

    def draw(which):
        return which.sample(rows, n_bridges=3, generator=torch.Generator().manual_seed(3))

    assert torch.equal(draw(copy), draw(index))
    turn(network)
    before = draw(index)
    index.step()
    assert torch.equal(draw(copy), draw(index))
    assert not torch.equal(draw(index), before)
    for found, _ in together(functools.partial(rank_draws, folder=tmp_path / "index", following=True)):
        assert torch.equal(found, draw(index))
    again = RefreshingIndex(tmp_path / "index", network, x, every=1, wait=True, k=4)
    assert torch.equal(draw(copy), draw(again))  # readers notice a restart, too


@pytest.mark.bad_input
def test_errors_of_refreshing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no refreshing index"):
        RefreshingIndex.follow(tmp_path).sample(torch.arange(3))
    with pytest.raises(TypeError, match="overwrite is not an option"):
        RefreshingIndex(tmp_path, nn.Linear(2, 2), torch.zeros(4, 2), every=1, overwrite=True)
    with pytest.raises(ValueError, match="every must be at least 1"):
        RefreshingIndex(tmp_path, nn.Linear(2, 2), torch.zeros(4, 2), every=0)
    wrapped = nn.Linear(2, 2)
    wrapped.__class__ = type("Wrapped", (nn.parallel.DistributedDataParallel,), {})  # needs no processes
    with pytest.raises(ValueError, match=r"wrapped in DDP or FSDP2.*Pass the plain network"):
        RefreshingIndex(tmp_path, wrapped, torch.zeros(4, 2), every=1)
    assert not list(tmp_path.iterdir())
    network = nn.Linear(2, 2)
    index = RefreshingIndex(tmp_path, network, torch.randn(4, 2), every=1)
    with split_rows(network, Ranks(0, 2)), pytest.raises(ValueError, match="outside of split_rows"):
        index.step()


def test_leftovers_of_a_killed_process_go_away(tmp_path):
    for name in (".index-000004.abc.part", ".index-000003.abc.old", ".features.abc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "points.npy").write_bytes(b"half")
    RefreshingIndex(tmp_path, nn.Linear(2, 2), torch.randn(20, 2), every=1, k=4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["current.json", "index-000000"]
