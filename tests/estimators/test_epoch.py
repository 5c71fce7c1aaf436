"""Points of a whole epoch drawn at once have the law of those drawn batch by batch."""

import numpy as np
import pytest
import torch
from elliptica.estimators.fit import Rows, batch_sizes, can_draw_epochs, epoch_paths
from scipy import stats
from torch import nn

from elliptica import Elliptic
from elliptica.core.bridge import Bridges, stratified
from elliptica.core.targets import Targets
from elliptica.estimators import fit
from laws import assert_distribution, assert_frequencies, assert_mean, assert_variance

CPU = torch.device("cpu")
REAL = {"sigma": 0.0, "sigma_y": 0.0}


def real(**options):
    return Bridges(Targets("real"), **{**REAL, **options})


def draw(bridges, x, y, order, batch_size, generator):
    return list(
        epoch_paths(bridges, Rows(x, y, None), order, batch_sizes(len(order), batch_size), CPU, generator)
    )


@pytest.mark.parametrize(
    ("rows", "batch_size", "sizes"),
    [(5, 2, [3, 2]), (1, 4, [1]), (3, 1, [3]), (7, 3, [3, 2, 2]), (10, 4, [4, 3, 3]), (10, 5, [5, 5])],
)
def test_no_batch_has_a_single_row_unless_there_is_one(rows, batch_size, sizes):
    assert batch_sizes(rows, batch_size) == sizes
    for n in range(2, 60):
        for size in range(1, 12):
            found = batch_sizes(n, size)
            assert sum(found) == n
            assert min(found) >= 2
            assert max(found) <= min(found) + 1
            assert max(found) <= max(size, 3)


@pytest.mark.parametrize("chunk", [1, 400, 2**20])
@pytest.mark.parametrize("rows", [1, 2, 7, 23])
def test_partners_and_times_of_each_batch(rows, chunk, generator, monkeypatch):
    """Without noise: between a row and the next of its batch, at times that fall and rise along the batch."""
    monkeypatch.setattr(fit, "CHUNK_BYTES", chunk)
    x, y = torch.randn(30, 2, 3, generator=generator), torch.randn(30, 1, generator=generator)
    order = torch.randint(30, (rows,), generator=generator)
    found = draw(real(quadrature="uniform"), x, y, order, 5, generator)
    parts = order.split(batch_sizes(rows, 5))
    assert [len(paths.y) for paths in found] == [len(part) for part in parts]
    for paths, part in zip(found, parts, strict=True):
        s, n = paths.s.flatten(), len(part)
        offset = (1 - float(s[0])) * n / 2 if n > 1 else 0.5
        assert 0 <= offset <= 1
        if n > 1:
            torch.testing.assert_close(s, (2 * (torch.arange(n) + offset) / n - 1).abs())
        far = part.roll(-1)
        for drawn, data in ((paths.x, x), (paths.y, y)):
            column = s.view(-1, *[1] * (data.ndim - 1))
            torch.testing.assert_close(drawn[:, 0, 0], data[part] + column * (data[far] - data[part]))


def test_the_objective_takes_the_points_and_classes_keep_their_labels(generator):
    x, y = torch.randn(12, 4, generator=generator), torch.randint(3, (12,), generator=generator)
    objective = Elliptic(nn.Linear(4, 3), nn.CrossEntropyLoss(), num_classes=3, sigma_y=0.5)
    order = torch.randperm(12, generator=generator)
    found = draw(objective.bridges, x, y, order, 6, generator)
    for paths, part in zip(found, order.split(6), strict=True):
        assert torch.equal(paths.labels, nn.functional.one_hot(y[part], 3).float())
        size = paths.free_y.abs()  # noisy labels return to the simplex
        torch.testing.assert_close(paths.y, size / size.sum(-1, keepdim=True))
        expected = nn.functional.cross_entropy(objective.model(paths.x[:, 0, 0]), paths.y[:, 0, 0])
        torch.testing.assert_close(objective.loss_on(paths), expected)


def by_epoch(options, x, y, generator, epochs, size=6):
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        yield from draw(real(**options), x, y, order, size, generator)


def by_step(options, x, y, generator, epochs, size=6):
    objective = Elliptic(nn.Linear(1, 1), nn.MSELoss(), **options)
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
    how = {"sigma": 0.04, "sigma_y": 0.02, "n_times": 4}
    law = np.zeros(16)
    for a in range(6):
        for b in range(6):
            law[2 * a + b] += a != b
    for drawn in (by_epoch(how, x, 10 * x, generator, 1500), by_step(how, x, 10 * x, generator, 1500)):
        paths = list(drawn)
        s, points, targets = (torch.cat([getattr(p, n).flatten() for p in paths]) for n in ("s", "x", "y"))
        assert_frequencies(np.bincount((3 * s).round().long(), minlength=4), np.full(4, 0.25))
        inner = (s > 0) & (s < 1)
        s, points, targets = s[inner], points[inner], targets[inner]
        # at s = 1/3 the point is near (2 a + b) / 3, at 2/3 near (a + 2 b) / 3, and the target says which
        whole = (3 * targets / 10).round()
        unit = (s * (1 - s)).sqrt()
        z = (points - whole / 3) / (0.04 * unit), (targets - 10 * whole / 3) / (0.02 * unit)
        for noise in z:
            assert_distribution(noise, stats.norm.cdf)
            assert_variance(noise, 1.0)
        assert abs(np.corrcoef(*z)[0, 1]) < 5 / np.sqrt(len(s))
        with pytest.raises(AssertionError):  # a deviation off by a fifth
            assert_variance(z[0] * 1.2, 1.0)
        assert_frequencies(np.bincount(whole.long(), minlength=16), law / law.sum())
    with pytest.raises(AssertionError):  # the next row of the data, always
        assert_frequencies(
            np.bincount([2 * a + (a + 1) % 6 for a in range(6)] * 1000, minlength=16), law / 30
        )


@pytest.mark.statistical
def test_batch_means_have_the_law_of_single_steps(generator):
    """Mean and variance of the batch mean agree (1 000 batches of 24 rows); random strata vary more."""
    x = torch.randn(24, 1, generator=generator)
    means = [
        np.array([float(paths.x.mean()) for paths in way(REAL, x, x, generator, 1000, 24)])
        for way in (by_epoch, by_step)
    ]
    for found in means:
        assert_mean(found, float(x.mean()), found.std(ddof=1))
    assert means[0].var() == pytest.approx(means[1].var(), rel=0.3)
    orders = [x[torch.randperm(24, generator=generator)] for _ in range(1000)]
    strata = [stratified(24, CPU, generator)[:, None] for _ in orders]
    others = [float(torch.lerp(z, z.roll(-1, 0), s).mean()) for z, s in zip(orders, strata, strict=True)]
    assert np.var(others) > 1.5 * means[0].var()


def test_same_generator_same_points_and_nothing_modified(generator):
    x, y = torch.randn(40, 3, generator=generator), torch.randn(40, 2, generator=generator)
    copies, order = (x.clone(), y.clone()), torch.randperm(40, generator=generator)
    how, before = real(sigma=torch.tensor([0.1, 0.2, 0.0]), sigma_y=0.1), torch.get_rng_state()
    one, two = (draw(how, x, y, order, 16, torch.Generator().manual_seed(3)) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert a.deviation["x"].shape == (3,)
    assert torch.equal(x, copies[0])
    assert torch.equal(y, copies[1])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "options",
    [{"sampling": "path"}, {"n_bridges": 2}, {"pairing": "nearest"}, {"sigma": "green"}],
    ids=lambda o: next(iter(o)),
)
def test_other_laws_are_drawn_step_by_step(options):
    assert can_draw_epochs(real())
    assert not can_draw_epochs(real(**options))
