"""BridgeMix as a batch transform: the same points as the objective, whatever loads the data."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from elliptica import BridgeMix, Elliptic
from elliptica.core import bridgemix as augment

SETTINGS = [
    {},
    {"sampling": "path", "n_times": 4},
    {"n_bridges": 2, "antithetic": True},
    {"sampling": "path", "n_bridges": 2, "pairing": "inverse_distance", "sigma": "auto"},
    {"sigma": "green", "simplex": "euclidean", "among": "other_class"},
]


def normal(*shape, generator):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("n", [2, 7])
def test_agrees_with_the_objective(settings, n, generator):
    """Same generator, same points: the mean loss of the mixed batch is the objective."""
    model = nn.Linear(3, 4).double()
    x, y = normal(n, 3, generator=generator), torch.randint(4, (n,), generator=generator)
    twin = generator.clone_state()
    mixed_x, mixed_y = BridgeMix(num_classes=4, **settings)(x, y, generator=generator)
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=4, **settings)
    loss = F.cross_entropy(model(mixed_x), mixed_y)
    torch.testing.assert_close(loss, objective(x, y, generator=twin))
    assert torch.equal(twin.get_state(), generator.get_state())
    torch.testing.assert_close(mixed_y.sum(1), torch.ones(len(mixed_y), dtype=torch.float64))


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_regression_targets_of_any_shape(shape, generator):
    x, y = normal(5, 3, generator=generator), normal(5, *shape, generator=generator)
    partners = torch.tensor([1, 2, 3, 4, 0])
    mix = BridgeMix(target_space="real", sampling="path", n_times=3, sigma=0.0)
    mixed_x, mixed_y = mix(x, y, partners=partners)
    torch.testing.assert_close(mixed_x, torch.cat([x, (x + x[partners]) / 2, x[partners]]))
    torch.testing.assert_close(mixed_y, torch.cat([y, (y + y[partners]) / 2, y[partners]]))


def test_a_batch_of_one_is_noise_around_the_point(generator):
    x, y = normal(1, 3, generator=generator), torch.tensor([2])
    mix = BridgeMix(num_classes=4, sampling="path", n_times=3, sigma=0.5, sigma_y=0.0)
    mixed_x, mixed_y = mix(x, y, generator=generator)
    assert torch.equal(mixed_x[[0, 2]], x.expand(2, 3))
    assert not torch.equal(mixed_x[1], x[0])
    assert torch.equal(mixed_y, torch.tensor([[0.0, 0, 1, 0]]).double().expand(3, 4))


def test_nothing_is_modified_and_structure_is_kept(generator):
    a, b = normal(4, 3, generator=generator), torch.arange(4)
    y = torch.rand(4, 2, generator=generator) > 0.5
    kept = copy.deepcopy((a, b, y))
    mix = BridgeMix(target_space="unit", bridged=("a",), sigma=0.5)
    mixed, targets = mix({"a": a, "b": b}, y, generator=generator)
    assert list(mixed) == ["a", "b"]
    assert mixed["b"].dtype == torch.long
    assert targets.min() >= 0
    assert targets.max() <= 1
    assert all(torch.equal(u, v) for u, v in zip(kept, (a, b, y), strict=True))


def test_integer_inputs_are_refused():
    with pytest.raises(TypeError, match="floating point"):
        BridgeMix(num_classes=2)(torch.arange(8).reshape(4, 2), torch.tensor([0, 1, 0, 1]))


def test_the_target_space_must_be_said():
    with pytest.raises(ValueError, match="BridgeMix cannot infer the kind of targets"):
        BridgeMix()


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


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (2, True)])
def test_epochs_differ_once_they_are_announced(workers, persistent, data):
    """Also when workers live longer than an epoch."""
    collate = BridgeMix(num_classes=4, sampling="path").collate_fn(seed=3)
    first, second, again = batches(collate, workers, data, persistent, epochs=(0, 1, 0))
    assert same(first, again)
    assert not any(same([a], [b]) for a, b in zip(first, second, strict=True))


def test_equal_batches_get_equal_noise_and_others_do_not(data):
    collate = BridgeMix(num_classes=4, sampling="path", sigma=1.0).collate_fn(seed=3)
    rows, before = [data[i] for i in range(4)], torch.get_rng_state()
    assert same([collate(rows)], [collate(rows)])
    other = [*rows[:3], (rows[3][0], (rows[3][1] + 1) % 4)]  # only a label differs
    assert not torch.equal(collate(rows)[0], collate(other)[0])
    assert torch.equal(torch.get_rng_state(), before)  # the global stream is left alone
    clone = pickle.loads(pickle.dumps(collate))
    assert same([collate(rows)], [clone(rows)])


@pytest.mark.parametrize(
    "x",
    [
        torch.rand(3, 5),
        torch.rand(3, 2, 4).double(),
        torch.rand(3, 3).half(),
        torch.arange(9).view(3, 3).byte(),
    ],
    ids=["float32", "float64", "float16", "uint8"],
)
def test_noise_depends_on_every_byte_and_on_the_order(x):
    def sums(rows):
        return augment._row_sums(rows).tolist()

    before, seen = sums(x), {tuple(sums(x))}
    assert sums(x[[1, 0, 2]]) == [before[1], before[0], before[2]]
    for i in range(x.view(torch.uint8).numel()):
        for bit in (1, 128):
            other = x.clone()
            other.view(torch.uint8).view(-1)[i] ^= bit
            seen.add(tuple(sums(other)))
    assert len(seen) == 1 + 2 * x.view(torch.uint8).numel()
    assert sums(x.flip(1)) != before  # a mirrored image is another one
    assert sums(torch.zeros(4, dtype=torch.long)) == [0, 0, 0, 0]


def test_half_precision_and_dicts_can_be_collated(generator):
    x = torch.randn(4, 3, generator=generator).bfloat16()
    rows = [({"a": x[i], "flag": torch.tensor(i % 2 == 0)}, torch.tensor(i)) for i in range(4)]
    mix = BridgeMix(num_classes=4, bridged=("a",))
    mixed, _ = mix.collate_fn(seed=0)(rows)
    assert mixed["a"].dtype == torch.bfloat16
    assert mixed["flag"].dtype == torch.bool


def test_the_objective_does_not_depend_on_workers(data):
    """Noise is drawn in the training process, so the same generator gives the same losses."""
    model = nn.Linear(3, 4)
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=4, sampling="path", sigma=0.5)
    found = []
    for workers in (0, 1, 2):
        noise = torch.Generator().manual_seed(5)
        order = torch.Generator().manual_seed(6)
        loader = DataLoader(data, batch_size=4, shuffle=True, generator=order, num_workers=workers)
        found.append([objective(x, y, generator=noise).item() for x, y in loader])
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == len(found[0])


@pytest.mark.bad_input
@pytest.mark.parametrize("seed", [[(torch.zeros(2), 0)], "a", True, None])
def test_a_collate_without_its_seed_says_how_to_write_it(seed):
    """``collate_fn=mix.collate_fn`` would hand the list of samples over as a seed."""
    with pytest.raises(TypeError, match=r"collate_fn=mix.collate_fn\(seed=0\)"):
        BridgeMix(num_classes=2).collate_fn(seed)
    with pytest.raises(TypeError, match=r"use elliptica\.Elliptic"):
        BridgeMix(num_classes=2, weighting="gradient_softmax")


@pytest.mark.bad_input
def test_samples_that_are_no_pairs_are_refused():
    """Two samples without targets would unpack as an input and a target."""
    collate = BridgeMix(target_space="real").collate_fn(0)
    with pytest.raises(TypeError, match=r"pairs of an input and a target.*one Tensor"):
        collate([torch.zeros(3), torch.zeros(3)])
    with pytest.raises(TypeError, match=r"pairs of an input and a target.*of 3"):
        collate([(torch.zeros(3),) * 3] * 2)
    with pytest.raises(TypeError, match="epoch must be an integer"):
        collate.set_epoch(0.5)


def test_hashes_of_rows_are_the_same_in_every_process_and_version():
    """Collated batches are drawn from them: other factors would be other bridges for the same seed."""
    rows = torch.tensor([[0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.uint8)
    assert augment._row_sums(rows).tolist() == [0, 11749869230777074271, 15002187965291974971]
