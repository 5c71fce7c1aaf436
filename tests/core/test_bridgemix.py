"""BridgeMix as a batch transform: the same points as the objective, whatever loads the data."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from elliptica import BridgeMix, Covariance, Elliptic, Permutation
from elliptica.core import bridgemix as module

SETTINGS = [
    {},
    {"sampling": "path", "n_times": 4, "sigma_y": 0.2},
    {"n_bridges": 2, "quadrature": "left", "end_time": 0.5},
    {"sampling": "path", "n_bridges": 2, "pairing": "inverse_distance", "sigma": Covariance(torch.eye(3))},
    {"sigma": "green", "simplex": "euclidean", "sigma_y": 0.1, "pairing": Permutation("same_class")},
]


def normal(*shape, generator):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("n", [1, 2, 7])
def test_agrees_with_the_objective(settings, n, generator):
    """Same generator, same points: the mean loss of the mixed batch is the objective."""
    if settings.get("quadrature") == "left" and n == 1:
        return
    model = nn.Linear(3, 4).double()
    x, y = normal(n, 3, generator=generator), torch.randint(4, (n,), generator=generator)
    twin = generator.clone_state()
    mixed_x, mixed_y = BridgeMix(num_classes=4, **settings)(x, y, generator=generator)
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=4, **settings)
    torch.testing.assert_close(F.cross_entropy(model(mixed_x), mixed_y), objective(x, y, generator=twin))
    assert torch.equal(twin.get_state(), generator.get_state())
    torch.testing.assert_close(mixed_y.sum(1), torch.ones(len(mixed_y), dtype=torch.float64))


def test_nothing_is_modified_and_structure_is_kept(generator):
    a, b = normal(4, 3, generator=generator), torch.arange(4)
    y = torch.rand(4, 2, generator=generator) > 0.5
    kept = copy.deepcopy((a, b, y))
    mix = BridgeMix(target_space="unit", bridged=("a",), sigma=0.5)
    mixed, targets = mix({"a": a, "b": b}, y, generator=generator)
    assert list(mixed) == ["a", "b"]
    assert mixed["b"].dtype == torch.long
    assert ((targets >= 0) & (targets <= 1)).all()
    assert all(torch.equal(u, v) for u, v in zip(kept, (a, b, y), strict=True))
    front = normal(4, 3, generator=generator).requires_grad_()
    assert mix({"a": front, "b": b}, y)[0]["a"].requires_grad


def batches(collate, workers, data, persistent=False, epochs=(0,)):
    """All mixed batches of some epochs, in a fixed order of the data."""
    loader = DataLoader(
        data, batch_size=4, collate_fn=collate, num_workers=workers, persistent_workers=persistent
    )
    found = []
    for epoch in epochs:
        collate.set_epoch(epoch)
        found.append([(x.clone(), y.clone()) for x, y in loader])
    return found


def same(a, b):
    return all(torch.equal(u, v) for pair in zip(a, b, strict=True) for u, v in zip(*pair, strict=True))


@pytest.fixture
def data(generator):
    x, y = torch.randn(18, 3, generator=generator), torch.randint(4, (18,), generator=generator)
    return TensorDataset(x, y)


def test_batches_do_not_depend_on_workers(data):
    """0, 1 and 2 workers, whatever the state of the global stream."""
    mix, found = BridgeMix(num_classes=4, sampling="path"), {}
    for workers in (0, 1, 2):
        torch.manual_seed(workers)
        (found[workers],) = batches(mix.collate_fn(seed=3), workers, data)
    assert same(found[0], found[1])
    assert same(found[0], found[2])
    assert not same(found[0], batches(mix.collate_fn(seed=4), 0, data)[0])


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, True)])
def test_epochs_differ_once_they_are_announced(workers, persistent, data):
    """Also when workers live longer than an epoch."""
    collate = BridgeMix(num_classes=4, sampling="path").collate_fn(seed=3)
    first, second, again = batches(collate, workers, data, persistent, epochs=(0, 1, 0))
    assert same(first, again)
    assert not any(same([a], [b]) for a, b in zip(first, second, strict=True))


def test_equal_batches_get_equal_noise_and_others_do_not(data):
    collate = BridgeMix(num_classes=4, sampling="path", sigma=1.0).collate_fn(seed=3)
    rows, before = [data[i] for i in range(4)], torch.get_rng_state()
    other = [*rows[:3], (rows[3][0], (rows[3][1] + 1) % 4)]  # only a label differs
    assert not torch.equal(collate(rows)[0], collate(other)[0])
    assert torch.equal(torch.get_rng_state(), before)  # the global stream is left alone
    clone = pickle.loads(pickle.dumps(collate))
    assert same([collate(rows)], [clone(rows)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.uint8, torch.bool])
def test_noise_depends_on_every_byte_and_on_the_order(dtype, generator):
    x = torch.randint(0, 2, (3, 5), generator=generator).to(dtype)

    def sums(rows):
        return module._row_sums(rows).tolist()

    before, seen, size = sums(x), {tuple(sums(x))}, x.view(torch.uint8).numel()
    assert sums(x[[1, 0, 2]]) == [before[1], before[0], before[2]]
    for i in range(size):
        other = x.clone()
        other.view(torch.uint8).view(-1)[i] ^= 1
        seen.add(tuple(sums(other)))
    assert len(seen) == 1 + size
    known = torch.tensor([[0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.uint8)
    assert sums(known) == [0, 11749869230777074271, 15002187965291974971]  # in every process and version
