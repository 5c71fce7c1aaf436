"""What networks of a stack draw has the law of their methods; wrong samplers are rejected."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

from elliptica.baselines.regression import cumulative_kernel
from elliptica.core.bridge import tent
from elliptica.estimators import stacked as points
from laws import assert_distribution, assert_frequencies, assert_variance

pytestmark = pytest.mark.statistical


@pytest.fixture
def draw(seed):
    """Draw points of one network with the test's seed, ``(steps, row of the batch, ...)``."""
    return partial(draw_points, seed)


def table_of(x, y, group=None):
    """A table of real targets, or of class numbers."""
    none = torch.zeros(len(x), dtype=torch.long)
    group = none if group is None else group
    if y.is_floating_point():
        return points.Table(x, y, none, group)
    return points.Table(x, torch.nn.functional.one_hot(y).float(), y, group)


def draw_points(seed, method, x, y, group=None, *, chunks=1, batch_size=6, weight=None, **settings):
    table = table_of(x, y, group)
    drawer = points.Drawer(points.Job(table, np.arange(len(x)), seed, 1, method, settings, weight=weight))
    return drawer.draw(table, batch_size, 100 * chunks)


def numbered(n):
    return torch.arange(float(n))[:, None], 10 * torch.arange(float(n))[:, None]


def test_every_order_holds_every_row_once_and_orders_are_uniform(draw):
    x, y = numbered(6)
    p = draw("erm", x, y, chunks=30)  # a batch is an order
    assert torch.equal(p.rows.sort(1).values, torch.arange(6).expand(3000, 6))
    assert_frequencies(
        np.bincount(6 * p.rows[:, 0] + p.rows[:, 1], minlength=36), (1 - np.eye(6)).ravel() / 30
    )
    assert torch.equal(p.x[..., 0], p.rows.float())
    fixed = [6 * a + (a + 1) % 6 for a in range(6)] * 500
    with pytest.raises(AssertionError):  # one order that is rotated
        assert_frequencies(np.bincount(fixed, minlength=36), (1 - np.eye(6)).ravel() / 30)


@pytest.mark.parametrize("n_times", [2, 4, 5])
def test_times_lie_on_the_grid_and_follow_the_place_in_the_batch(n_times, draw):
    x, y = numbered(12)
    p = draw("elliptic", x, y, chunks=10, batch_size=12, n_times=n_times)
    index = (p.s * (n_times - 1)).round().long()
    torch.testing.assert_close(index / (n_times - 1), p.s)
    assert_frequencies(np.bincount(index.flatten(), minlength=n_times), np.full(n_times, 1 / n_times))
    one, two = (torch.Generator().manual_seed(3) for _ in range(2))
    cycle = (tent(torch.arange(12), one) * n_times).long().clamp_max(n_times - 1)
    found = points.tent_times(torch.rand(1, generator=two), n_times, 12)
    torch.testing.assert_close(found, cycle / (n_times - 1))  # as the core's for the same number

    def is_tent(times):
        """Along a batch, times fall to the first and then rise, and end where they began."""
        low = times.argmin(1, keepdim=True)
        falls = torch.arange(11) < low
        step = times.diff(dim=1)
        return bool((torch.where(falls, -step, step) >= 0).all() and (times[:, 0] == n_times - 1).all())

    assert is_tent(index)
    assert not is_tent(index[:, torch.randperm(12)])


def test_noise_of_bridges_and_of_inputs(draw):
    x, y = numbered(6)
    p = draw("elliptic", x, y, chunks=10, sigma=0.02, sigma_y=0.05, n_times=9)
    inner = (p.s > 0) & (p.s < 1)
    spread = (p.s * (1 - p.s)).sqrt()[inner]
    scaled = []
    for at, values, sigma in ((p.x, x, 0.02), (p.y, y, 0.05)):
        chord = values[p.rows, 0] * (1 - p.s) + values[p.partners, 0] * p.s
        off = (at[..., 0] - chord)[~inner]
        assert float(off.abs().max()) < 1e-5  # ends are rows
        scaled.append((at[..., 0] - chord)[inner] / (sigma * spread))
        assert_distribution(scaled[-1], stats.norm.cdf)
        assert_variance(scaled[-1], 1.0)
        early = (at[..., 0] - chord)[p.s == 1 / 8] / sigma
        assert_variance(early, 7 / 64)
        with pytest.raises(AssertionError):  # the spread of half time, whatever the time
            assert_variance(early, 1 / 4)
        with pytest.raises(AssertionError):  # a deviation off by a tenth
            assert_variance(scaled[-1] * 1.1, 1.0)
    assert abs(np.corrcoef(*scaled)[0, 1]) < 5 / np.sqrt(len(spread))
    p = draw("noise", x, y, chunks=10, sigma=0.3)
    assert_distribution((p.x[..., 0] - x[p.rows, 0]) / 0.3, stats.norm.cdf)
    assert torch.equal(p.y, y[p.rows])


def test_classes_are_mixed_without_noise_and_smoothed(draw):
    x, y = numbered(6)[0], torch.arange(6) % 3
    p = draw("elliptic", x, y, sigma=0.5)
    torch.testing.assert_close(p.y.sum(2), torch.ones(100, 6))
    hot = torch.eye(3)[y]
    torch.testing.assert_close(p.y, torch.lerp(hot[p.rows], hot[p.partners], p.s[..., None]))
    p = draw("smoothing", x, y, smoothing=0.3)
    torch.testing.assert_close(p.y, 0.7 * hot[p.rows] + 0.1)
    assert torch.equal(p.x, x[p.rows])


@pytest.mark.parametrize(("method", "alpha"), [("mixup", 0.4), ("c-mixup", 2.0), ("lisa", 2.0)])
def test_shares_have_a_beta_law(method, alpha, draw):
    x, y = numbered(6)
    group = torch.arange(6) // 3
    y = torch.arange(6) % 2 if method == "lisa" else y
    p = draw(method, x, y, group, chunks=20, alpha=alpha)
    s = p.s.flatten() if method == "lisa" else p.s[:, 0]
    if method != "lisa":
        assert torch.equal(p.s, p.s[:, :1].expand_as(p.s))  # one per batch
    assert_distribution(s[s > 0], stats.beta(alpha, alpha).cdf)
    with pytest.raises(AssertionError):
        assert_distribution(s[s > 0], stats.beta(2 * alpha, 2 * alpha).cdf)
    none = draw(method, x, y, group, alpha=0.0)
    assert torch.equal(none.x, x[none.rows])


def test_partners_of_c_mixup_follow_the_kernel_of_targets(draw):
    """The law of `CMixup` on a batch; uniform partners are rejected."""
    x = numbered(6)[0]
    y = torch.tensor([0.0, 0.1, 0.5, 0.7, 1.5, 1.6])[:, None]
    p = draw("c-mixup", x, y, chunks=30, bandwidth=0.4)
    law = np.diff(cumulative_kernel(y, y, 0.4).double().numpy(), prepend=0)
    for row in range(6):
        chosen = p.partners[p.rows == row]
        assert_frequencies(np.bincount(chosen, minlength=6), law[row])
        with pytest.raises(AssertionError):
            assert_frequencies(np.bincount(chosen, minlength=6), np.full(6, 1 / 6))


def test_partners_of_lisa(draw):
    """Same class, other group, or the other way; uniform among them; a row without any stays as it is."""
    x = numbered(7)[0]
    y = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    group = torch.tensor([0, 1, 1, 0, 0, 1, 2])
    n = 7
    p = draw("lisa", x, y, group, chunks=30, batch_size=14, selection=0.3)
    mixed = p.s > 0
    same_y, same_g = (v[p.rows] == v[p.partners] for v in (y, group))
    assert bool((same_y != same_g)[mixed].all())
    within = (same_y & mixed).any(1)
    assert not bool((within & (same_g & ~same_y & mixed).any(1)).any())  # one choice for a batch
    assert_frequencies(np.bincount(within.long(), minlength=2), [0.7, 0.3])
    with pytest.raises(AssertionError):
        assert_frequencies(np.bincount(within.long(), minlength=2), [0.5, 0.5])
    assert not bool(mixed[p.rows == n - 1].any())  # alone in class and group
    torch.testing.assert_close(p.x[~mixed], x[p.rows[~mixed]])


@pytest.mark.parametrize("method", ["balanced", "groupdro", "lisa"])
def test_groups_are_balanced_in_every_order(method, draw):
    x = torch.arange(60.0)[:, None]
    group = (torch.arange(60) < 6).long()
    y = torch.arange(60) // 3 % 2  # both classes in each group
    p = draw(method, x, y, group, batch_size=60)
    part = group + 2 * y if method == "lisa" else group
    counts = torch.stack([torch.bincount(part[rows], minlength=int(part.max()) + 1) for rows in p.rows])
    expected = 60 / counts.shape[1]
    assert float((counts - expected).abs().max()) <= 1
    plain = draw("erm", x, y, batch_size=60)
    assert int(torch.bincount(group[plain.rows[0]])[1]) == 6
    weight = np.where(np.arange(60) % 2, 3.0, 1.0)
    weighted = draw(method, x, y, group, batch_size=60, weight=weight)
    shares = (weighted.rows % 2).float().mean()
    assert 0.6 < float(shares) < 0.9  # weights count within a group


def test_fractional_weights_are_frequencies(generator):
    weight = np.array([0.2, 1.0, 2.5, 0.3, 4.0])
    counts = np.zeros(5)
    for _ in range(2000):
        drawn = np.bincount(points.draw_epoch(5, weight, generator).numpy(), minlength=5)
        assert drawn.sum() == 8
        assert (np.abs(drawn - weight) < 1).all()  # never further off than rounding
        counts += drawn
    assert_frequencies(counts, weight)
    with pytest.raises(AssertionError):
        assert_frequencies(counts, weight + np.array([0.2, 0, 0, 0, 0]))


def test_an_epoch_has_every_row_once_and_at_most_ten_times_as_many(generator):
    assert points.draw_epoch(7, None, generator).sort().values.tolist() == list(range(7))
    assert points.draw_epoch(7, np.full(7, 0.01), generator).sort().values.tolist() == list(range(7))
    assert len(points.draw_epoch(7, np.full(7, 1e9), generator)) == 70
