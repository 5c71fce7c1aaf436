"""Each point of a whole epoch drawn at once has the law of one drawn batch by batch."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from elliptica import Elliptic
from elliptica.core import epoch
from elliptica.core.epoch import can_draw_epochs, epoch_paths
from elliptica.core.settings import Settings
from elliptica.core.targets import project_targets
from laws import assert_distribution, assert_frequencies, assert_mean, assert_variance


def settings(**options):
    return Settings(**{"target_space": "real", "sigma": 0.0, "sigma_y": 0.0, **options})


def twin(generator):
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return copy


@pytest.mark.parametrize("chunk", [1, 400, 2**20])
@pytest.mark.parametrize("rows", [1, 2, 7, 23])
def test_partners_and_strata_of_each_batch(rows, chunk, generator, monkeypatch):
    """Without noise: between a row and the next of its batch, one time in each equal part of [0, 1]."""
    monkeypatch.setattr(epoch, "CHUNK_BYTES", chunk)
    x, y = torch.randn(30, 2, 3, generator=generator), torch.randn(30, 1, generator=generator)
    order = torch.randint(30, (rows,), generator=generator)
    found = list(epoch_paths(settings(quadrature="uniform"), x, y, order, 5, generator=generator))
    parts = order.tensor_split(-(-rows // 5))
    assert [len(paths.y) for paths in found] == [len(part) for part in parts]
    for paths, part in zip(found, parts, strict=True):
        s = paths.s.flatten()
        assert torch.equal((s * len(part)).floor().clamp_max(len(part) - 1), torch.arange(len(part)).float())
        far = part.roll(-1)
        for drawn, data in ((paths.x, x), (paths.y, y)):
            column = s.view(-1, *[1] * (data.ndim - 1))
            torch.testing.assert_close(drawn[:, 0, 0], data[part] + column * (data[far] - data[part]))


def test_the_objective_takes_the_points_and_classes_keep_their_labels(generator):
    x, y = torch.randn(12, 4, generator=generator), torch.randint(3, (12,), generator=generator)
    objective = Elliptic(nn.Linear(4, 3), nn.CrossEntropyLoss(), num_classes=3, target_space="simplex")
    assert can_draw_epochs(objective.settings)
    order = torch.randperm(12, generator=generator)
    for paths, part in zip(
        epoch_paths(objective.settings, x, y, order, 6, generator=generator), order.split(6), strict=True
    ):
        assert torch.equal(paths.labels, nn.functional.one_hot(y[part], 3).float())
        torch.testing.assert_close(paths.y.sum(-1), torch.ones(6, 1, 1))
        expected = nn.functional.cross_entropy(objective.model(paths.x[:, 0, 0]), paths.y[:, 0, 0])
        torch.testing.assert_close(objective.loss_on(paths), expected)
        objective.loss_on(paths).backward()
    assert objective.model.weight.grad is not None


@pytest.mark.parametrize(
    ("space", "simplex"), [("simplex", "abs"), ("simplex", "euclidean"), ("unit", "abs")]
)
def test_noisy_targets_return_to_their_space(space, simplex, generator):
    """As `project_targets` returns them; what they were before is kept as ``free_y``."""
    y = torch.randint(3, (9,), generator=generator)
    if space == "unit":
        y = nn.functional.one_hot(y, 3).float()
    how = settings(target_space=space, num_classes=3, sigma_y=0.5, simplex=simplex)
    x = torch.randn(9, 2, generator=generator)
    (paths,) = epoch_paths(how, x, y, torch.randperm(9, generator=generator), 9, generator=generator)
    free, found = paths.free_y[:, 0, 0], paths.y[:, 0, 0]
    assert free.min() < 0
    assert found.min() >= 0
    assert found.max() <= 1
    torch.testing.assert_close(found, project_targets(free, space, simplex, 1))
    if space == "simplex":
        torch.testing.assert_close(found.sum(1), torch.ones(9))


def by_epoch(how, x, y, generator, epochs, size=6):
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        yield from epoch_paths(how, x, y, order, size, generator=generator)


def by_step(how, x, y, generator, epochs, size=6):
    objective = Elliptic(nn.Linear(1, 1), nn.MSELoss(), **how)
    for _ in range(epochs):
        for part in torch.randperm(len(x), generator=generator).split(size):
            yield objective.sample(x[part], y[part], generator=generator)


@pytest.mark.statistical
def test_pairs_times_and_noise_have_the_law_of_single_steps(generator):
    """Every other row is as likely a partner; times are those of the grid; noise is that of the bridge.

    9 000 points: a deviation off by a fifth, and a correlation of .06 between the noise of inputs and targets
    are seen.
    """
    x = torch.arange(6.0)[:, None]
    how = {"target_space": "real", "sigma": 0.02, "sigma_y": 0.01, "horizon": 4.0, "n_times": 4}
    drawn = list(by_epoch(Settings(**how), x, 10 * x, generator, 1500))
    steps = list(by_step(how, x, 10 * x, generator, 1500))
    inside = []
    for paths in (drawn, steps):
        s, points, targets = (torch.cat([getattr(p, n).flatten() for p in paths]) for n in ("s", "x", "y"))
        assert_frequencies(np.bincount((3 * s).round().long(), minlength=4), np.full(4, 0.25))
        inner = (s > 0) & (s < 1)
        s, points, targets = s[inner], points[inner], targets[inner]
        # at s = 1/3 the point is near (2 a + b) / 3, at 2/3 near (a + 2 b) / 3, and the target says which
        whole = (3 * targets / 10).round()
        inside.append((whole.long(), s))
        at_x, at_y = (3 * points - whole) / 3, (targets - 10 * whole / 3)
        unit = 2 * (s * (1 - s)).sqrt()
        z = at_x / (0.02 * unit), at_y / (0.01 * unit)
        for noise in z:
            assert_distribution(noise, stats.norm.cdf)
            assert_variance(noise, 1.0)
        assert abs(np.corrcoef(*z)[0, 1]) < 5 / np.sqrt(len(s))
        with pytest.raises(AssertionError):  # a deviation off by a fifth
            assert_variance(z[0] * 1.2, 1.0)
    counts = [np.bincount(whole, minlength=16) for whole, _ in inside]
    law = np.zeros(16)
    for a in range(6):
        for b in range(6):
            law[2 * a + b] += a != b
    for count in counts:
        assert_frequencies(count, law / law.sum())
    with pytest.raises(AssertionError):  # the next row of the data, always
        assert_frequencies(
            np.bincount([2 * a + (a + 1) % 6 for a in range(6)] * 1000, minlength=16), law / 30
        )


def test_same_generator_same_points_and_nothing_modified(generator):
    x, y = torch.randn(40, 3, generator=generator), torch.randn(40, 2, generator=generator)
    copies, order = (x.clone(), y.clone()), torch.randperm(40, generator=generator)
    how = settings(sigma=torch.tensor([0.1, 0.2, 0.0]), sigma_y=0.1)
    one, two = (list(epoch_paths(how, x, y, order, 16, generator=twin(generator))) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert a.variance["x"].shape == (3,)
    assert torch.equal(x, copies[0])
    assert torch.equal(y, copies[1])
    state = torch.get_rng_state()
    list(epoch_paths(how, x, y, order, 16, generator=generator))
    assert torch.equal(state, torch.get_rng_state())


OTHERS = [
    {"sampling": "path"},
    {"n_bridges": 2},
    {"pairing": "inverse_distance"},
    {"pairing": "nearest"},
    {"sigma": "green"},
    {"sigma": "auto"},
    {"at": "0"},
    {"bn": "clean"},
    {"schedule": lambda _epoch: 1.0},
    {"target_space": None},
    {"bridged": (0,)},
]


@pytest.mark.parametrize("options", OTHERS, ids=lambda o: next(iter(o)))
def test_other_laws_are_refused(options):
    how = settings(**options)
    assert not can_draw_epochs(how)
    with pytest.raises(ValueError, match="batch by batch"):
        next(epoch_paths(how, torch.randn(4, 2), torch.randn(4, 1), torch.arange(4), 2))


@pytest.mark.statistical
def test_batch_means_agree_with_single_steps_and_vary_less(generator):
    """The law of each point is the same, the dependence between points is not (1 000 batches of 24 rows)."""
    x = torch.randn(24, 1, generator=generator)
    how = {"target_space": "real", "sigma": 0.0, "sigma_y": 0.0}
    means = [
        np.array([float(paths.x.mean()) for paths in draw(kind, x, x, generator, 1000, 24)])
        for draw, kind in ((by_epoch, Settings(**how)), (by_step, how))
    ]
    for found in means:
        assert_mean(found, float(x.mean()), found.std(ddof=1))
    assert means[0].var() < 0.7 * means[1].var()


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["x", "y"])
def test_data_that_require_a_gradient_are_refused(name):
    given = {"x": torch.randn(4, 2), "y": torch.randn(4, 1)}
    given[name].requires_grad_()
    with pytest.raises(ValueError, match=rf"{name} requires a gradient.*{name}\.detach\(\)"):
        next(epoch_paths(settings(), **given, order=torch.arange(4), batch_size=2))


@pytest.mark.bad_input
def test_bad_rows_are_refused():
    x, y = torch.randn(4, 2), torch.randn(4, 1)
    x[2, 0] = float("nan")
    with pytest.raises(ValueError, match="x must be finite"):
        next(epoch_paths(settings(), x, y, torch.arange(4), 2))
    with pytest.raises(ValueError, match="batch_size"):
        next(epoch_paths(settings(), torch.randn(4, 2), y, torch.arange(4), 0))
    for order in (torch.tensor([True, False, True, True]), torch.zeros(2), [0, 1], torch.tensor([[0, 1]])):
        with pytest.raises(TypeError, match="order must be a tensor of row numbers"):
            next(epoch_paths(settings(), torch.randn(4, 2), y, order, 2))
    for order in (torch.tensor([0, 4]), torch.tensor([-1, 0])):
        with pytest.raises(ValueError, match=r"order must hold rows of the data set, 0\.\.3"):
            next(epoch_paths(settings(), torch.randn(4, 2), y, order, 2))
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator"):
        next(epoch_paths(settings(), torch.randn(4, 2), y, torch.arange(4), 2, generator=3))


def test_rows_without_features():
    (paths,) = epoch_paths(settings(), torch.zeros(4, 0), torch.randn(4, 1), torch.arange(4), 4)
    assert paths.x.shape == (4, 1, 1, 0)
