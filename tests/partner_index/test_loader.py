"""Batches of pairs, complete training steps on them, and an index over features."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

from elliptica import Elliptic, PartnerTable
from elliptica.partner_index import PairBatchSampler, PartnerIndex, split_pairs


@pytest.fixture
def data(generator):
    x = torch.randn(70, 4, generator=generator)
    return TensorDataset(x, torch.arange(70) % 3)


@pytest.fixture
def index(data, generator):
    return PartnerIndex.build(data.tensors[0], k=6, power=2.0, generator=generator)


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


@pytest.mark.bad_input
def test_bad_input_of_the_sampler(index):
    for rank, world_size in ((1, None), (2, 2), (-1, 2), (0, 71)):
        with pytest.raises(ValueError, match=r"rank|batch"):
            PairBatchSampler(index, 8, rank=rank, world_size=world_size)
    with pytest.raises(RuntimeError):
        split_pairs(torch.zeros(4, 1), torch.zeros(4), n_bridges=2)


def test_split_of_several_inputs():
    x = {"a": torch.arange(6.0)[:, None], "b": torch.arange(6)}
    start, y, (end, end_y) = split_pairs(x, torch.arange(6), n_bridges=2)
    assert start["b"].tolist() == y.tolist() == [0, 1]
    assert end["b"].tolist() == end_y.tolist() == [[2, 3], [4, 5]]
    (first, second), _, end = split_pairs((x["a"], x["b"]), torch.arange(6))
    assert second.tolist() == [0, 1, 2]
    assert end[0][0].shape == (3, 1, 1)
    assert first.shape == (3, 1)


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


@pytest.mark.bad_input
def test_loaders_out_of_order(generator):
    x = torch.randn(20, 4, generator=generator)
    shuffled = BatchSampler(RandomSampler(Rows(x)), 4, drop_last=False)
    pairs = PairBatchSampler(PartnerTable(x), 4)
    for loader in (
        DataLoader(Rows(x), shuffle=True),
        DataLoader(Rows(x), batch_sampler=shuffled),
        DataLoader(Rows(x), batch_sampler=pairs),
        DataLoader(Rows(x), 6, drop_last=True),
    ):
        with pytest.raises(ValueError, match="data"):
            PartnerIndex.of_features(nn.Linear(4, 2), loader)
