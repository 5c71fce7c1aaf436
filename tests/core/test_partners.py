"""The law of partners: against SciPy's distances, by exact counting, and by drawn frequencies."""

import itertools

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from torch import nn

from elliptica import (
    InverseDistance,
    LabelKernel,
    Nearest,
    PartnerTable,
    Permutation,
    partner_probabilities,
    sample_partners,
)
from elliptica.core import partners as module
from elliptica.core.partners import draw_from
from laws import assert_frequencies

AMONG = ("all", "same_class")


def points(n, d, generator, dtype=torch.float64):
    return torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)


def reference(x, power=1.0, labels=None):
    """Partner probabilities, row by row, from SciPy's distances."""
    x = x.double().reshape(len(x), -1).numpy()
    n = len(x)
    distance = cdist(x, x)
    floor = 0.01 * np.quantile(distance[~np.eye(n, dtype=bool)], 0.5, method="lower") if n > 1 else 0
    rows = np.zeros((n, n))
    for i in range(n):
        others = [j for j in range(n) if j != i and (labels is None or labels[i] == labels[j])]
        distinct = [distance[i, j] for j in others if distance[i, j] > floor]
        for j in others:
            away = distance[i, j] if distance[i, j] > floor else min(distinct, default=1.0)
            rows[i, j] = (away / min(distinct, default=1.0)) ** -power
        if not others:
            rows[i, i] = 1.0  # nobody is eligible: a loop
    return rows / rows.sum(1, keepdims=True)


def counts_of(partners, n):
    return np.stack([np.bincount(row, minlength=n) for row in partners])


def check_rows(counts, law):
    for row, probabilities in zip(counts, law, strict=True):
        assert_frequencies(row, probabilities)


@pytest.mark.parametrize("power", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [2, 3, 12, 40])
def test_probabilities_against_scipy(power, among, dtype, n, generator):
    x = points(n, 3, generator, dtype)
    labels = torch.arange(n) % 3 if among == "same_class" else None
    p = partner_probabilities(x, power=power, labels=labels)
    assert p.dtype == dtype
    tolerance = 5e-3 if dtype == torch.float32 else 1e-9
    assert np.allclose(p, reference(x, power, labels), rtol=tolerance, atol=1e-12)
    assert np.allclose(p.sum(1), 1.0, atol=1e-6)
    lonely = among == "same_class" and n <= 3
    assert (p.diagonal() == (1.0 if lonely else 0.0)).all()
    shaped = partner_probabilities(x.reshape(n, 1, 3), power=power, labels=labels)
    assert torch.equal(shaped, p)


@pytest.mark.parametrize("power", [0.5, 1.0, 4.0, 500.0])
@pytest.mark.parametrize("apart", [0.0, 1e-3])
def test_a_duplicate_is_as_near_as_the_nearest_distinct_point(power, apart, generator):
    """One copy, exact or near, in a batch of 100 gets no more than the nearest other point."""
    x = points(100, 10, generator, torch.float32)
    x[1] = x[0] + apart
    p = partner_probabilities(x, power=power)
    others = torch.cdist(x[:2], x[2:]).argsort(1)[:, 0] + 2
    for row, nearest in enumerate(others.tolist()):
        assert p[row, 1 - row] == pytest.approx(float(p[row, nearest]), rel=1e-6 * max(power, 1))
        assert p[row, 1 - row] == pytest.approx(float(p[row].max()), rel=1e-6 * max(power, 1))
    assert np.allclose(p, reference(x, power), rtol=1e-3 * max(power, 1), atol=1e-30)
    same = partner_probabilities(torch.ones(6, 2), power=power)
    assert torch.allclose(same, (1 - torch.eye(6)) / 5)


@pytest.mark.parametrize(("share", "noise"), [(0.6, 0.0), (0.97, 0.0), (0.6, 1e-3), (0.8, 1e-3)])
@pytest.mark.parametrize("shuffled", [True, False])
def test_copies_that_are_most_of_the_batch_are_duplicates(share, noise, shuffled, generator):
    """The median distance is then one between copies."""
    rows = 200
    x, copies = torch.randn(rows, 5, generator=generator), int(share * rows)
    x[:copies] = x[0] + noise * torch.randn(copies, 5, generator=generator)
    order = torch.randperm(rows, generator=generator) if shuffled else torch.arange(rows)
    x, is_copy = x[order], order < copies
    p = partner_probabilities(x)
    for row in is_copy.nonzero().flatten()[:5].tolist():
        others = torch.arange(rows) != row
        ratio = p[row][is_copy & others].max() / p[row][~is_copy].max()
        assert ratio == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("kind", ["normal", "outlier", "clusters", "far"])
def test_distances_keep_their_digits(kind, generator, monkeypatch):
    """They are measured in float32 where that is enough, and nowhere else, also under autocast."""
    x = points(200, 50, generator, torch.float32)
    if kind == "outlier":
        x[0] *= 1e5
    elif kind == "clusters":
        x = 0.03 * x + 10 * points(2, 50, generator, torch.float32)[torch.arange(200) % 2]
    elif kind == "far":  # the matrix form alone would lose all digits
        x = x + 1e3
    expected, used, measure = reference(x), [], module._squares
    monkeypatch.setattr(module, "_squares", lambda *a: used.append(a[2]) or measure(*a))
    assert np.allclose(partner_probabilities(x), expected, rtol=1e-4)
    assert used == ([torch.float32, torch.float64] if kind == "outlier" else [torch.float32])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert np.allclose(partner_probabilities(x), expected, rtol=1e-4)


def test_neighbours_in_tight_clusters_far_apart(generator):
    """Two clusters at +-100 with spread 0.01: float32 matrix distances find wrong neighbours there."""
    x = 0.01 * torch.randn(100, 5, generator=generator)
    x += 100.0 * torch.sign(torch.arange(100) - 49.5)[:, None]
    exact = torch.as_tensor(cdist(x.double(), x.double())).fill_diagonal_(torch.inf).argmin(1)
    assert torch.equal(sample_partners(x, pairing="nearest")[:, 0], exact)
    assert torch.equal(PartnerTable(x, power=float("inf")).sample(torch.arange(100))[:, 0], exact)
    rows = x - x.mean(0)
    wrong = torch.cdist(rows, rows).fill_diagonal_(torch.inf).argmin(1)
    assert (wrong != exact).float().mean() > 0.3, "the naive form would have passed as well"


PAIRINGS = [kind(among=among) for kind in (Permutation, InverseDistance, Nearest) for among in AMONG]
PAIRINGS.append(LabelKernel(bandwidth=1.0))


@pytest.mark.parametrize("pairing", PAIRINGS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 9, 140])
@pytest.mark.parametrize("n_bridges", [1, 3, 11])
def test_partners_are_eligible(pairing, n, n_bridges, generator):
    """Rows of the batch, never oneself if there is another; the same generator gives the same."""
    x, labels = points(n, 2, generator), torch.arange(n) % 2
    classes = getattr(pairing, "among", "all") == "same_class"
    y = labels if classes else x[:, :1]
    seed = generator.clone_state()
    partners = sample_partners(x, y, n_bridges=n_bridges, pairing=pairing, generator=generator)
    assert partners.shape == (n, n_bridges)
    assert partners.dtype == torch.long
    for i in range(n):
        others = [j for j in range(n) if j != i and (not classes or labels[i] == labels[j])]
        assert set(partners[i].tolist()) <= set(others or [i])
    again = sample_partners(x, y, n_bridges=n_bridges, pairing=pairing, generator=seed)
    assert torch.equal(partners, again)
    if classes:  # one-hot targets have the same classes
        seed = generator.clone_state()
        hot = sample_partners(x, nn.functional.one_hot(labels, 2).float(), pairing=pairing, generator=seed)
        assert torch.equal(hot, sample_partners(x, y, pairing=pairing, generator=generator))


def library_permutation(n, generator, count=12_000):
    return sample_partners(torch.zeros(n, 1), n_bridges=count, generator=generator).t().tolist()


def with_fixed_points(n, generator):
    """Wrong: any permutation, so a point can be its own partner (the released code)."""
    return [torch.randperm(n, generator=generator).tolist() for _ in range(10)]


def next_row(n, generator):
    """Wrong: the neighbouring row, always."""
    return [torch.arange(n).roll(-1).tolist()] * 12_000


def random_shift(n, generator):
    """Wrong: the same random shift for all rows; each partner is uniform, the permutation is not."""
    shifts = torch.randint(1, n, (12_000, 1), generator=generator)
    return ((torch.arange(n) + shifts) % n).tolist()


def independent_partners(n, generator):
    """Wrong: a uniform partner for each row, so that some are ends twice and others never."""
    shifts = torch.randint(1, n, (12_000, n), generator=generator)
    return ((torch.arange(n) + shifts) % n).tolist()


def check_permutation(draw, generator):
    """Each point an end once, never its own; each of the (n-1)! cycles of n = 5 alike.

    With 12 000 draws over 24 cycles one that is 30 % too frequent is refused for sure.
    """
    counts = {cycle: 0 for cycle in itertools.permutations(range(1, 5))}
    to_partner = np.zeros((5, 5))
    for partners in draw(5, generator):
        assert sorted(partners) == list(range(5)), "not each point an end once"
        assert all(i != j for i, j in enumerate(partners)), "a point is its own partner"
        to_partner[range(5), partners] += 1
        tour = [partners[0]]
        while partners[tour[-1]] not in (0, *tour):
            tour.append(partners[tour[-1]])
        assert len(tour) == 4, "not one cycle"
        counts[tuple(tour)] += 1
    assert_frequencies(list(counts.values()), np.full(24, 1 / 24))
    for row in range(5):
        assert_frequencies(to_partner[row], (np.arange(5) != row) / 4)


@pytest.mark.statistical
def test_permutation_is_a_uniform_cycle(generator):
    check_permutation(library_permutation, generator)


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", [with_fixed_points, next_row, random_shift, independent_partners])
def test_permutation_rejects(wrong, generator):
    with pytest.raises(AssertionError):
        check_permutation(wrong, generator)


@pytest.mark.statistical
def test_same_class_permutation_is_a_uniform_cycle_in_each_class(generator):
    """Each of the other members alike; one that is drawn 40 % too often is seen (n = 8 000)."""
    labels = torch.tensor([3, 0, 0, 7, 0, 3, 0])
    partners = sample_partners(
        torch.zeros(7, 1), labels, n_bridges=8_000, pairing=Permutation("same_class"), generator=generator
    )
    assert (partners.sort(0).values == torch.arange(7)[:, None]).all()
    assert (partners[3] == 3).all()  # the only member of its class
    assert (partners[0] == 5).all()
    members = [1, 2, 4, 6]
    for row in members:
        law = (labels == 0).double().numpy() / 3
        law[row] = 0.0
        observed = np.bincount(partners[row], minlength=7)
        assert_frequencies(observed, law)
        tilted = law * np.where(np.arange(7) == members[members.index(row) - 1], 1.4, 1.0)
        with pytest.raises(AssertionError, match="frequencies"):
            assert_frequencies(observed, tilted / tilted.sum())
    tours = {tuple(column[members].tolist()) for column in partners.t()}
    assert len(tours) == 6  # (4 - 1)! cycles, and no permutation that is not one


@pytest.mark.statistical
@pytest.mark.parametrize("power", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("among", AMONG)
def test_drawn_frequencies(power, among, generator):
    """Against SciPy's probabilities, 50 000 draws a row: a power off by 0.1 is seen, or the self let in."""
    x, labels = points(7, 2, generator), torch.tensor([0, 1, 0, 1, 0, 1, 0])
    pairing = InverseDistance(power, among)
    partners = sample_partners(x, labels, n_bridges=50_000, pairing=pairing, generator=generator)
    check_rows(counts_of(partners, 7), reference(x, power, labels if among == "same_class" else None))


WRONG_LAWS = {
    "power 1.1": lambda d: d**-1.1,
    "squared distance": lambda d: d**-2.0,
    "proportional to distance": lambda d: d,
    "softened by 5 %": lambda d: 1 / (d + 0.05 * np.median(d)),
    "uniform": lambda d: np.ones_like(d),
}


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", WRONG_LAWS)
def test_drawn_frequencies_reject(wrong, generator):
    x = points(7, 2, generator)
    d, off, law = cdist(x, x), ~np.eye(7, dtype=bool), np.zeros((7, 7))
    law[off] = WRONG_LAWS[wrong](d[off])
    law /= law.sum(1, keepdims=True)
    counts = counts_of(draw_from(torch.from_numpy(law.cumsum(1)), 50_000, generator), 7)
    with pytest.raises(AssertionError, match="frequencies"):
        check_rows(counts, reference(x))


@pytest.mark.parametrize("value", [0.0, 0.5, 1 - 2**-24, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_never_draws_an_impossible_partner(value, dtype, monkeypatch):
    """Zeros first, last and in the middle of a row whose sum is not quite one; a device might return 1."""
    monkeypatch.setattr(module, "draw_uniform", lambda shape, **_: torch.full(shape, value))
    p = torch.tensor([[0, 0.1, 0, 0.2, 0.7, 0, 0], [0.3, 0, 0.7 - 1e-6, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1.0]])
    picked = draw_from(p.to(dtype).cumsum(1), 3, None)
    assert (p.gather(1, picked) > 0).all()


@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("n", [3, 10, 40])
def test_nearest_against_scipy(among, n, generator):
    x, labels = points(n, 3, generator), torch.arange(n) % 2
    partners = sample_partners(x, labels, n_bridges=n + 2, pairing=Nearest(among))
    distance = cdist(x, x)
    for i in range(n):
        order = [int(j) for j in np.argsort(distance[i], kind="stable") if j != i]
        order = [j for j in order if among == "all" or labels[i] == labels[j]] or [i]
        assert partners[i].tolist() == [order[b % len(order)] for b in range(n + 2)]


def kernel_law(y, bandwidth, keep_self=False):
    """C-Mixup's law with numpy, without the self unless asked for."""
    d = cdist(y.double().reshape(len(y), -1), y.double().reshape(len(y), -1))
    log = -(d**2) / (2 * bandwidth**2)
    if not keep_self:
        np.fill_diagonal(log, -np.inf)
    law = np.exp(log - log.max(1, keepdims=True))
    return law / law.sum(1, keepdims=True)


@pytest.mark.statistical
@pytest.mark.parametrize("columns", [1, 3])
def test_label_kernel_draws_its_law(columns, generator):
    """50 000 draws a row: a bandwidth off by a tenth, the distance in place of its square, the self."""
    y = points(7, columns, generator)
    partners = sample_partners(y, y, n_bridges=50_000, pairing=LabelKernel(0.8), generator=generator)
    counts = counts_of(partners, 7)
    check_rows(counts, kernel_law(y, 0.8))
    absolute = np.exp(-cdist(y, y) / 0.8) * (1 - np.eye(7))
    for wrong in (kernel_law(y, 0.9), kernel_law(y, 0.8, True), absolute / absolute.sum(1, keepdims=True)):
        with pytest.raises(AssertionError, match="frequencies"):
            check_rows(counts, wrong)


def check_by_distance(counts, law, y, rows):
    """Frequencies of the nearest partner and of six groups of others, by their distance and in order."""
    for row in rows:
        by_distance = (y[:, 0] - y[row]).abs().argsort().numpy()
        for order in ([by_distance[:1], *np.array_split(by_distance[1:], 6)], np.array_split(by_distance, 6)):
            assert_frequencies([counts[row][g].sum() for g in order], [law[row][g].sum() for g in order])


@pytest.mark.slow
@pytest.mark.statistical
def test_label_kernel_by_rejection_has_the_same_law(generator):
    """Above 128 rows, without an n x n matrix: rows in the middle, tied, at the edge, and far from all."""
    y = torch.cat([points(196, 1, generator), torch.tensor([[9.0], [9.3], [40.0], [0.0]]).double()])
    y[3] = y[-1]  # a tie
    n, h = len(y), 0.3
    partners = sample_partners(y, y, n_bridges=3000, pairing=LabelKernel(h), generator=generator)
    counts = counts_of(partners, n)
    assert (counts.diagonal() == 0).all()
    assert (partners[-2] == n - 3).all()  # far from everybody: the nearest
    assert (partners[-4] == n - 3).float().mean() > 0.99
    rows = [*y[:, 0].argsort()[[60, 98, 120]].tolist(), 3, n - 1]
    check_by_distance(counts, kernel_law(y, h), y, rows)
    window = (cdist(y, y) < 7 * h) & ~np.eye(n, dtype=bool)
    window = window / window.sum(1, keepdims=True).clip(1)
    for wrong in (kernel_law(y, 1.15 * h), kernel_law(y, h, keep_self=True), window):
        with pytest.raises(AssertionError, match=r"frequencies|impossible"):
            check_by_distance(counts, wrong, y, rows)


@pytest.mark.parametrize("n", [20, 200])
def test_a_kernel_too_narrow_to_compute_takes_the_nearest(n, generator):
    y = torch.randn(n, 1, generator=generator)
    partners = sample_partners(y, y, pairing=LabelKernel(1e-100), n_bridges=3, generator=generator)
    nearest = torch.cdist(y.double(), y.double()).fill_diagonal_(float("inf")).argmin(1)
    assert torch.equal(partners, nearest[:, None].expand(-1, 3))


def differences(table):
    """Probabilities that a table holds."""
    cumulative = table._table.double() / table._table[:, -1:].double()
    return torch.diff(cumulative, dim=1, prepend=torch.zeros(len(cumulative), 1, dtype=torch.float64))


@pytest.mark.parametrize("power", [0.0, 1.0, 4.0, float("inf")])
@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("rows_at_a_time", [1, 7, 1000])
def test_table_equals_the_batch_law(power, among, rows_at_a_time, generator, monkeypatch):
    """Whatever the chunks, stored or computed when drawn, with a duplicate and a class of one."""
    n = 50
    monkeypatch.setattr(module, "_CHUNK_BYTES", 8 * n * rows_at_a_time)
    x, labels = points(n, 3, generator, torch.float32) + 5, torch.arange(n) % 4
    x[8] = x[4]
    labels[-1] = 9
    labels = labels if among == "same_class" else None
    table = PartnerTable(x, power=power, labels=labels)
    on_demand = PartnerTable(x, power=power, labels=labels, max_bytes=0)
    index = torch.randint(n, (30,), generator=generator)
    twin = generator.clone_state()
    one = table.sample(index, n_bridges=7, generator=generator)
    assert len(table) == n
    if rows_at_a_time == 1000:
        assert torch.equal(one, on_demand.sample(index, n_bridges=7, generator=twin))
    assert on_demand.sample(index, n_bridges=3).shape == (30, 3)
    if power == float("inf"):
        expected = sample_partners(x, labels, pairing=Nearest(among))
        assert torch.equal(one, expected[index].expand(-1, 7))
        return
    p = partner_probabilities(x.double(), power=power, labels=labels)
    assert torch.allclose(differences(table), p, rtol=5e-3, atol=2e-7)
    assert (differences(table)[p == 0] == 0).all()


@pytest.mark.statistical
def test_table_draws_its_law(generator):
    x = points(6, 2, generator)
    index = torch.tensor([4, 0, 4])
    partners = PartnerTable(x, power=2.0).sample(index, n_bridges=40_000, generator=generator)
    law = reference(x, 2.0)
    for row, i in zip(partners, index, strict=True):
        counts = np.bincount(row, minlength=6)
        assert_frequencies(counts, law[i])
        with pytest.raises(AssertionError, match=r"frequencies|impossible"):
            assert_frequencies(counts, law[(i + 1) % 6])  # the row of another point
