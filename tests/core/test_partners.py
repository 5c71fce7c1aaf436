"""The law of partners: against SciPy's distances, by exact counting, and by drawn frequencies."""

import itertools

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from torch import nn

from elliptica import BridgeMix, Elliptic, PartnerTable, partner_probabilities, sample_partners
from elliptica.core import partner_table as table_module
from elliptica.core import partners as partners_module
from elliptica.core.partners import AMONG, DISTANCE_FLOOR, PAIRINGS, draw_from, pairwise_distances
from laws import assert_frequencies


def twin(generator):
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return copy


def points(n, d, generator, dtype=torch.float64):
    return torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)


def reference(x, power=1.0, labels=None, among="all"):
    """Partner probabilities, row by row, from SciPy's distances."""
    x = x.double().reshape(len(x), -1).numpy()
    n = len(x)
    distance = cdist(x, x)
    floor = 0.01 * np.quantile(distance[~np.eye(n, dtype=bool)], 0.5, method="lower") if n > 1 else 0
    rows = np.zeros((n, n))
    for i in range(n):
        others = [j for j in range(n) if j != i]
        if among != "all":
            others = [j for j in others if (labels[i] == labels[j]) == (among == "same_class")]
        distinct = [distance[i, j] for j in others if distance[i, j] > floor]
        for j in others:
            away = distance[i, j] if distance[i, j] > floor else min(distinct, default=1.0)
            rows[i, j] = (away / min(distinct, default=1.0)) ** -power
        if not others:
            rows[i, i] = 1.0  # nobody is eligible: a loop
    return rows / rows.sum(1, keepdims=True)


# ---------------------------------------------------------------------------------- probabilities


@pytest.mark.parametrize("power", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [2, 3, 12, 40])  # cdist changes its method above 25 rows
def test_probabilities_against_scipy(power, among, dtype, n, generator):
    x = points(n, 3, generator, dtype)
    labels = torch.arange(n) % 3
    p = partner_probabilities(x, power=power, labels=labels, among=among)
    assert p.dtype == dtype
    tolerance = 5e-3 if dtype == torch.float32 else 1e-9  # cdist's matrix form, times the power
    assert np.allclose(p, reference(x, power, labels, among), rtol=tolerance, atol=1e-12)
    assert np.allclose(p.sum(1), 1.0, atol=1e-6)
    lonely = among == "same_class" and n <= 3
    assert (p.diagonal() == (1.0 if lonely else 0.0)).all()


def test_power_one_is_the_inverse_and_zero_is_uniform():
    x = torch.tensor([[0.0], [1.0], [3.0], [7.0]], dtype=torch.float64)
    p = partner_probabilities(x)[0]
    assert torch.allclose(p, torch.tensor([0, 21, 7, 3], dtype=torch.float64) / 31)
    uniform = partner_probabilities(x, power=0.0)
    assert torch.allclose(uniform, (1 - torch.eye(4, dtype=torch.float64)) / 3)


def test_shape_of_a_sample_does_not_matter(generator):
    x = points(10, 12, generator)
    assert torch.equal(partner_probabilities(x.reshape(10, 3, 2, 2)), partner_probabilities(x))
    assert torch.allclose(
        partner_probabilities(x[:, 0]), partner_probabilities(x[:, :1]), rtol=1e-12
    )  # scalars are samples too


def test_permuting_the_batch_permutes_the_probabilities(generator):
    x, labels = points(30, 4, generator), torch.randint(3, (30,), generator=generator)
    order = torch.randperm(30, generator=generator)
    for among in AMONG:
        p = partner_probabilities(x, labels=labels, among=among)
        q = partner_probabilities(x[order], labels=labels[order], among=among)
        assert torch.allclose(q, p[order][:, order], rtol=1e-10)


def test_distances_scale_and_turn_away(generator):
    """Rescaling, rotating and shifting the data leave the probabilities as they are."""
    x = points(30, 4, generator)
    p = partner_probabilities(x, power=3.0)
    rotation = torch.linalg.qr(points(4, 4, generator)).Q
    assert torch.allclose(partner_probabilities(1e5 * x @ rotation - 7, power=3.0), p, rtol=1e-8)


@pytest.mark.parametrize("power", [0.0, 1.0, 4.0, 500.0])
def test_duplicates_are_finite_and_do_not_absorb_everything(power, generator):
    x = points(12, 3, generator, torch.float32)
    x[5] = x[2]
    p = partner_probabilities(x, power=power)
    assert torch.isfinite(p).all()
    assert torch.allclose(p.sum(1), torch.ones(12))
    assert (p.diagonal() == 0).all()
    assert np.allclose(p, reference(x, power), rtol=1e-3 * max(power, 1), atol=1e-30)
    same = partner_probabilities(torch.ones(6, 2), power=power)
    assert torch.allclose(same, (1 - torch.eye(6)) / 5)


@pytest.mark.parametrize("power", [0.5, 1.0, 4.0, 500.0])
@pytest.mark.parametrize("apart", [0.0, 1e-3])
def test_a_duplicate_is_as_near_as_the_nearest_distinct_point(power, apart, generator):
    """One copy, exact or near, in a batch of 100 gets no more than the nearest other point, for any power.

    Under a floor of the distances of 0.1 % of the median it took 90 % of the mass at power 1.
    """
    x = points(100, 10, generator, torch.float32)
    x[1] = x[0] + apart
    p = partner_probabilities(x, power=power)
    others = torch.cdist(x[:2], x[2:]).argsort(1)[:, 0] + 2
    for row, nearest in enumerate(others.tolist()):
        assert p[row, 1 - row] == pytest.approx(float(p[row, nearest]), rel=1e-6)
        assert p[row, 1 - row] == p[row].max()
    assert power != 1.0 or p[:2].max() < 0.05
    assert np.allclose(p, reference(x, power), rtol=1e-3 * max(power, 1), atol=1e-30)


@pytest.mark.parametrize("rows", [100, 500])
@pytest.mark.parametrize(("share", "noise"), [(0.6, 0.0), (0.8, 0.0), (0.97, 0.0), (0.6, 1e-3), (0.8, 1e-3)])
@pytest.mark.parametrize("shuffled", [True, False])
def test_copies_that_are_most_of_the_batch_are_duplicates(rows, share, noise, shuffled, generator):
    """The median distance is then one between copies; a copy was 1e8 times as likely as a distinct point."""
    x, copies = torch.randn(rows, 5, generator=generator), int(share * rows)
    x[:copies] = x[0] + noise * torch.randn(copies, 5, generator=generator)
    order = torch.randperm(rows, generator=generator) if shuffled else torch.arange(rows)
    x, is_copy = x[order], order < copies
    p = partner_probabilities(x)
    for row in is_copy.nonzero().flatten()[:5].tolist():
        others = torch.arange(rows) != row
        ratio = p[row][is_copy & others].max() / p[row][~is_copy].max()
        assert ratio == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("rows", [4, 12, 20, 100])
def test_one_outlier_makes_no_duplicates(rows, generator):
    """However far away it is, and wherever it stands in the batch."""
    x = torch.randn(rows, 3, generator=generator)
    for place in range(min(rows, 20)):
        far = x.clone()
        far[place] = 1e4
        rest = torch.arange(rows) != place
        d = pairwise_distances(far[rest]).fill_diagonal_(float("inf"))
        expected = (1 / d) / (1 / d).sum(1, keepdim=True)
        torch.testing.assert_close(partner_probabilities(far)[rest][:, rest], expected, rtol=1e-3, atol=1e-4)


def test_duplicates_of_a_class_are_alike_where_nothing_else_is():
    """Rows that have only copies to go to draw each of them alike."""
    x = torch.tensor([[0.0], [0.0], [0.0], [5.0], [7.0]])
    labels = torch.tensor([0, 0, 0, 1, 1])
    p = partner_probabilities(x, power=3.0, labels=labels, among="same_class")
    assert torch.equal(p[:3, :3], (1 - torch.eye(3)) / 2)
    q = partner_probabilities(x, power=3.0, labels=labels, among="other_class")
    assert np.allclose(q, reference(x, 3.0, labels, "other_class"), rtol=1e-5)


def test_enormous_distances_stay_finite():
    """Squares of these overflow float32; every row still has a partner, and not itself."""
    p = partner_probabilities(torch.tensor([[0.0], [1.0], [3.0], [1e30]]))
    assert torch.allclose(p.sum(1), torch.ones(4))
    assert (p.diagonal() == 0).all()


@pytest.mark.parametrize("kind", ["normal", "outlier", "clusters"])
def test_large_batches_keep_their_digits(kind, generator, monkeypatch):
    """Distances of a large batch are measured in float32 where that is enough, and nowhere else."""
    x = points(200, 50, generator, torch.float32)
    if kind == "outlier":
        x[0] *= 1e5
    elif kind == "clusters":
        x = 0.03 * x + 10 * points(2, 50, generator, torch.float32)[torch.arange(200) % 2]
    expected = reference(x)
    used = []
    measure = partners_module._measure
    monkeypatch.setattr(partners_module, "_measure", lambda *a: used.append(a[2]) or measure(*a))
    assert np.allclose(partner_probabilities(x), expected, rtol=1e-4)
    assert used == ([torch.float32, torch.float64] if kind == "outlier" else [torch.float32])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert np.allclose(partner_probabilities(x), expected, rtol=1e-4)
    if kind == "outlier":  # which moves the mean away from everybody else
        assert not np.allclose(measure(x, None, torch.float32)[0][1:, 1:], cdist(x[1:], x[1:]), atol=1.0)


@pytest.mark.parametrize("power", [1.0, 40.0])
def test_data_far_from_the_origin(power, generator):
    """A shift by 1e3 in 3000 dimensions: the matrix form of cdist alone would lose all digits."""
    near = points(60, 3000, generator, torch.float32)
    far = near + 1e3
    expected = reference(far, power)
    assert np.allclose(partner_probabilities(far, power=power), expected, rtol=1e-3 * max(power, 1) / 10)
    naive = torch.cdist(far, far).numpy()
    np.fill_diagonal(naive, np.inf)
    assert not np.allclose(naive, cdist(far.double(), far.double()) + np.diag([np.inf] * 60), rtol=1e-3)


def test_pairwise_distances_between_two_sets(generator):
    x, to = points(30, 5, generator), points(40, 5, generator)
    assert np.allclose(pairwise_distances(x, to), cdist(x, to), rtol=1e-10)
    assert pairwise_distances(x.bfloat16()).dtype == torch.float32


# ------------------------------------------------------------------------------- every combination


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("n", [1, 2, 3, 9])
@pytest.mark.parametrize("n_bridges", [1, 3, 11])
def test_partners_are_eligible(pairing, among, n, n_bridges, generator):
    x, labels = points(n, 2, generator), torch.arange(n) % 2
    partners = sample_partners(
        x,
        n_bridges=n_bridges,
        pairing=pairing,
        bandwidth=1.0,
        labels=labels,
        among=among,
        generator=generator,
    )
    assert partners.shape == (n, n_bridges)
    assert partners.dtype == torch.long
    for i in range(n):
        others = [j for j in range(n) if j != i]
        if among != "all":
            others = [j for j in others if bool(labels[i] == labels[j]) == (among == "same_class")]
        assert set(partners[i].tolist()) <= set(others or [i])


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_same_generator_same_partners_and_inputs_unchanged(pairing, generator):
    x, labels = points(9, 2, generator), torch.arange(9) % 2
    copies = x.clone(), labels.clone()
    for among in AMONG:
        settings = {"n_bridges": 4, "pairing": pairing, "bandwidth": 1.0, "labels": labels, "among": among}
        one = sample_partners(x, **settings, generator=twin(generator))
        assert torch.equal(sample_partners(x, **settings, generator=twin(generator)), one)
    assert torch.equal(x, copies[0])
    assert torch.equal(labels, copies[1])


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_two_points_are_each_others_partner(pairing, generator):
    x = points(2, 3, generator)
    partners = sample_partners(x, n_bridges=3, pairing=pairing, bandwidth=1.0, generator=generator)
    assert partners.tolist() == [[1, 1, 1], [0, 0, 0]]


# ------------------------------------------------------------------------------------ permutations


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

    With 12 000 draws over 24 cycles a cycle that is 20 % too frequent is 4.5 standard errors, and 30 %
    are refused for sure.
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


def test_bridges_have_permutations_of_their_own(generator):
    partners = sample_partners(torch.zeros(50, 1), n_bridges=6, generator=generator)
    for column in partners.t():
        assert torch.equal(column.sort().values, torch.arange(50))
        assert (column != torch.arange(50)).all()
    assert len({tuple(column.tolist()) for column in partners.t()}) == 6


def test_same_class_permutation_is_a_cycle_in_each_class(generator):
    labels = torch.tensor([3, 0, 0, 7, 0, 3, 0, -1])
    for _ in range(50):
        partners = sample_partners(torch.zeros(8, 1), labels=labels, among="same_class", generator=generator)
        (partners,) = partners.t()
        assert torch.equal(partners.sort().values, torch.arange(8))
        assert torch.equal(labels[partners], labels)
        loops = (partners == torch.arange(8)).nonzero().flatten().tolist()
        assert loops == [3, 7]  # the only members of their classes
        tour = [1]
        while partners[tour[-1]] != 1:
            tour.append(int(partners[tour[-1]]))
        assert sorted(tour) == [1, 2, 4, 6]


@pytest.mark.statistical
def test_same_class_permutation_is_uniform(generator):
    """Each of the other members alike; one that is drawn 30 % too often is seen (n = 8 000)."""
    labels = torch.tensor([0, 1, 0, 1, 0, 0])
    partners = sample_partners(
        torch.zeros(6, 1), n_bridges=8_000, labels=labels, among="same_class", generator=generator
    )
    for row in (0, 2, 4, 5):
        law = (labels == 0).double().numpy() / 3
        law[row] = 0.0
        observed = np.bincount(partners[row], minlength=6)
        assert_frequencies(observed, law)
        tilted = law * np.where(np.arange(6) == (row + 2) % 6, 1.4, 1.0)
        if tilted.sum() > 1.01:
            with pytest.raises(AssertionError, match="frequencies"):
                assert_frequencies(observed, tilted / tilted.sum())


@pytest.mark.statistical
def test_other_class_permutation_draws_uniformly(generator):
    """No permutation need exist between classes of different sizes, so partners are drawn, uniformly.

    Whatever the distances: with 20 000 draws a tilt of 8 % is seen.
    """
    labels = torch.tensor([0, 0, 0, 1])
    x = torch.tensor([[1.0], [1.1], [1.2], [0.0]])
    partners = sample_partners(x, n_bridges=20_000, labels=labels, among="other_class", generator=generator)
    assert (partners[:3] == 3).all()
    counts = np.bincount(partners[3], minlength=4)
    assert_frequencies(counts, [1 / 3, 1 / 3, 1 / 3, 0])
    with pytest.raises(AssertionError, match="frequencies"):
        assert_frequencies(counts, reference(x, 1.0, labels, "other_class")[3])


# --------------------------------------------------------------------------------- drawn frequencies


def drawn(x, n_draws, generator, **settings):
    """How often each partner was drawn, ``(n, n)``."""
    partners = sample_partners(
        x, n_bridges=n_draws, pairing="inverse_distance", generator=generator, **settings
    )
    return np.stack([np.bincount(row, minlength=len(x)) for row in partners])


def check_rows(counts, law):
    for row, probabilities in zip(counts, law, strict=True):
        assert_frequencies(row, probabilities)


@pytest.mark.statistical
@pytest.mark.parametrize("power", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("among", AMONG)
def test_drawn_frequencies(power, among, generator):
    """Against SciPy's probabilities, 50 000 draws a row.

    Defects seen: a power off by 0.1, distances off by a few percent of their spread, the self not
    excluded, a class let in.
    """
    x, labels = points(7, 2, generator), torch.tensor([0, 1, 0, 1, 0, 1, 0])
    counts = drawn(x, 50_000, generator, power=power, labels=labels, among=among)
    check_rows(counts, reference(x, power, labels, among))


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
    d = cdist(x, x)
    off = ~np.eye(7, dtype=bool)
    law = np.zeros((7, 7))
    law[off] = WRONG_LAWS[wrong](d[off])
    law /= law.sum(1, keepdims=True)
    u = torch.from_numpy(law.cumsum(1))
    counts = np.stack([np.bincount(r, minlength=7) for r in draw_from(u, 50_000, generator)])
    with pytest.raises(AssertionError, match="frequencies"):
        check_rows(counts, reference(x))


@pytest.mark.statistical
def test_drawn_frequencies_reject_the_self(generator):
    counts = np.full((7, 7), 1000)
    with pytest.raises(AssertionError, match="impossible outcome"):
        assert_frequencies(counts[0], reference(points(7, 2, generator))[0])


class Extremes:
    """Stands for `draw_uniform`, with the smallest and the largest numbers that it can return."""

    def __init__(self, value):
        self.value = value

    def __call__(self, shape, **_where):
        return torch.full(shape, self.value)


@pytest.mark.parametrize("value", [0.0, 1 - 2**-24, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_never_draws_an_impossible_partner(value, dtype, monkeypatch):
    """Zeros first, last and in the middle of a row whose sum is not quite one."""
    monkeypatch.setattr("elliptica.core.partners.draw_uniform", Extremes(value))
    p = torch.tensor([[0, 0.1, 0, 0.2, 0.7, 0, 0], [0.3, 0, 0.7 - 1e-6, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1.0]])
    cumulative = p.to(dtype).cumsum(1)
    picked = draw_from(cumulative, 3, None)
    assert (p.gather(1, picked) > 0).all()


@pytest.mark.parametrize("total", [0.5 + 2**-24, 1.0, 1 + 2**-23])
@pytest.mark.parametrize("value", [1 - 2**-24, 1.0])
def test_rounding_of_the_sum_never_reaches_past_the_last_partner(total, value, monkeypatch):
    """Not even if a device's generator returned 1 itself."""
    monkeypatch.setattr("elliptica.core.partners.draw_uniform", Extremes(value))
    cumulative = torch.tensor([[0.0, 0.3, total, total, total]])
    assert draw_from(cumulative, 2, None).tolist() == [[2, 2]]


# -------------------------------------------------------------------------------------- nearest


@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("n", [3, 10, 40])
def test_nearest_against_scipy(among, n, generator):
    x, labels = points(n, 3, generator), torch.arange(n) % 2
    partners = sample_partners(x, n_bridges=n + 2, pairing="nearest", labels=labels, among=among)
    distance = cdist(x, x)
    for i in range(n):
        order = [int(j) for j in np.argsort(distance[i], kind="stable") if j != i]
        if among != "all":
            order = [j for j in order if bool(labels[i] == labels[j]) == (among == "same_class")]
        order = order or [i]
        assert partners[i].tolist() == [order[b % len(order)] for b in range(n + 2)]


def test_nearest_with_duplicates_and_singletons():
    x = torch.tensor([[0.0], [0.0], [1.0], [9.0]])
    assert sample_partners(x, pairing="nearest").flatten().tolist() == [1, 0, 0, 2]
    labels = torch.tensor([0, 0, 0, 1])
    same = sample_partners(x, n_bridges=2, pairing="nearest", labels=labels, among="same_class")
    assert same.tolist() == [[1, 2], [0, 2], [0, 1], [3, 3]]


# --------------------------------------------------------------------------------- by a kernel on targets


def kernel_law(y, bandwidth, keep_self=False):
    """C-Mixup's law with numpy, without the self unless asked for."""
    d = cdist(y.double(), y.double())
    law = np.exp(-(d**2) / (2 * bandwidth**2))
    if not keep_self:
        np.fill_diagonal(law, 0.0)
    return law / law.sum(1, keepdims=True)


@pytest.mark.statistical
@pytest.mark.parametrize("columns", [1, 3])
def test_label_kernel_draws_its_law(columns, generator):
    """50 000 draws a row: a bandwidth off by a tenth, the distance in place of its square, the self."""
    y = points(7, columns, generator)
    partners = sample_partners(
        y, n_bridges=50_000, pairing="label_kernel", bandwidth=0.8, generator=generator
    )
    counts = np.stack([np.bincount(row, minlength=7) for row in partners])
    check_rows(counts, kernel_law(y, 0.8))
    absolute = np.exp(-cdist(y, y) / 0.8) * (1 - np.eye(7))
    for wrong in (kernel_law(y, 0.9), kernel_law(y, 0.8, True), absolute / absolute.sum(1, keepdims=True)):
        with pytest.raises(AssertionError, match="frequencies"):
            check_rows(counts, wrong)


@pytest.mark.statistical
def test_label_kernel_in_the_objective_measures_targets(generator):
    """`Elliptic` and `BridgeMix` draw by targets, whatever the inputs: at sigma 0 the far ends are data."""
    y = torch.tensor([[0.0], [1.0], [1.5], [4.0]])
    x = torch.tensor([[0.0], [90.0], [80.0], [1.0]])
    settings = {"sampling": "path", "n_times": 2, "sigma": 0.0, "n_bridges": 20_000}
    settings |= {"pairing": "label_kernel", "bandwidth": 1.0}
    objective = Elliptic(nn.Linear(1, 1), nn.MSELoss(), **settings)
    paths = objective.sample(x, y, generator=twin(generator))
    counts = np.stack([(row[:, None] == y[:, 0]).sum(0).numpy() for row in paths.y[:, :, -1, 0]])
    check_rows(counts, kernel_law(y, 1.0))
    mixed = BridgeMix(target_space="real", **settings)(x, y, generator=twin(generator))[1]
    assert torch.equal(mixed.flatten().sort().values, paths.y.flatten().sort().values)


def test_label_kernel_far_apart_and_within_classes():
    """Where all weights underflow the nearest target is the partner; a class of one is its own partner."""
    y = torch.tensor([0.0, 1e6, 3e6])
    assert sample_partners(y, pairing="label_kernel", bandwidth=1e-3).flatten().tolist() == [1, 0, 1]
    labels = torch.tensor([0, 1, 0])
    same = sample_partners(y, pairing="label_kernel", bandwidth=1.0, labels=labels, among="same_class")
    assert same.flatten().tolist() == [2, 1, 0]


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
def test_label_kernel_errors():
    x, y = torch.randn(200, 2), 3 * torch.linspace(-1, 1, 200)[:, None]
    with pytest.raises(ValueError, match=r"needs bandwidth=.* Try bandwidth=0\.17, a tenth"):
        sample_partners(y, pairing="label_kernel")
    with pytest.raises(ValueError, match=r"needs bandwidth=.* Try bandwidth=0\.17, a tenth"):
        Elliptic(nn.Linear(2, 1), nn.MSELoss(), pairing="label_kernel")(x, y)
    with pytest.raises(TypeError, match=r"real targets, but got dtype torch.int64.*same_class"):
        sample_partners(torch.arange(5), pairing="label_kernel", bandwidth=1.0)
    for bad, message in ((0.0, "bandwidth must be"), (float("nan"), "bandwidth must be")):
        with pytest.raises(ValueError, match=message):
            sample_partners(y, pairing="label_kernel", bandwidth=bad)
        with pytest.raises(ValueError, match=message):
            Elliptic(nn.Linear(2, 1), nn.MSELoss(), pairing="label_kernel", bandwidth=bad)
    with pytest.raises(ValueError, match=r"is for pairing=.label_kernel., but pairing is 'permutation'"):
        Elliptic(nn.Linear(2, 1), nn.MSELoss(), bandwidth=1.0)
    with pytest.raises(ValueError, match=r"target_space is 'simplex'.*same_class"):
        BridgeMix(num_classes=3, pairing="label_kernel", bandwidth=1.0)
    classes = Elliptic(nn.Linear(2, 3), nn.CrossEntropyLoss(), num_classes=3, pairing="label_kernel")
    with pytest.raises(ValueError, match=r"target_space is 'simplex'.*same_class"):
        classes(x, torch.arange(200) % 3)


# ------------------------------------------------------------------------------- the table of a data set


def differences(table):
    """Probabilities that a table holds."""
    cumulative = table._table.double() / table._table[:, -1:].double()
    return torch.diff(cumulative, dim=1, prepend=torch.zeros(len(cumulative), 1, dtype=torch.float64))


@pytest.mark.parametrize("power", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("rows_at_a_time", [1, 7, 50, 1000])
def test_table_equals_the_batch_law(power, among, rows_at_a_time, generator, monkeypatch):
    """Whatever the chunks: differences of the cumulative table are the probabilities."""
    n = 50
    monkeypatch.setattr(table_module, "_CHUNK_BYTES", 8 * n * rows_at_a_time)
    x, labels = points(n, 3, generator, torch.float32) + 5, torch.arange(n) % 4
    labels[-1] = 9  # alone in its class
    table = PartnerTable(x, power=power, labels=labels, among=among)
    assert len(table) == n
    p = partner_probabilities(x.double(), power=power, labels=labels, among=among)
    assert torch.allclose(differences(table), p, rtol=5e-3, atol=2e-7)
    assert (differences(table)[p == 0] == 0).all()


def test_table_treats_duplicates_like_the_batch(generator):
    """A duplicate is as near as the nearest distinct point."""
    x = points(50, 3, generator, torch.float32)
    x[7] = x[3]
    p = partner_probabilities(x)
    assert p[7, 3] == p[7].sort().values[-2]
    assert torch.allclose(differences(PartnerTable(x)), p.double(), rtol=1e-3, atol=2e-7)


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


def test_table_of_many_rows_measures_the_floor_on_some(generator):
    """From 2000 rows on the median is taken over a part of them; duplicates stay finite."""
    x = points(2100, 2, generator, torch.float32)
    x[1] = x[0]
    table = PartnerTable(x)
    d = cdist(x[:3].double(), x.double())
    d[range(3), range(3)] = np.inf
    weights = 1 / np.maximum(d, np.where(d < table._floor, np.inf, d).min(1, keepdims=True))
    p = weights / weights.sum(1, keepdims=True)
    assert np.allclose(differences(table)[:3], p, rtol=0.01, atol=3e-7)
    between = d[2][np.arange(2100) != 2]
    assert table._floor == pytest.approx(DISTANCE_FLOOR * np.median(between), rel=0.5)


@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("rows_at_a_time", [3, 1000])
def test_table_of_nearest(among, rows_at_a_time, generator, monkeypatch):
    monkeypatch.setattr(table_module, "_CHUNK_BYTES", 8 * 30 * rows_at_a_time)
    x, labels = points(30, 3, generator), torch.arange(30) % 3
    labels[0] = 5
    table = PartnerTable(x, power=float("inf"), labels=labels, among=among)
    expected = sample_partners(x, pairing="nearest", labels=labels, among=among)
    index = torch.tensor([3, 0, 29, 3])
    assert torch.equal(table.sample(index, n_bridges=2), expected[index].expand(-1, 2))


def test_table_same_generator_same_partners(generator):
    x = points(20, 3, generator)
    copy = x.clone()
    table, index = PartnerTable(x), torch.arange(20)
    one = table.sample(index, n_bridges=3, generator=twin(generator))
    assert torch.equal(table.sample(index, n_bridges=3, generator=twin(generator)), one)
    assert (one != index[:, None]).all()
    assert torch.equal(x, copy)


def test_table_above_max_bytes_computes_rows_when_drawn(generator, monkeypatch):
    x, labels = points(50, 3, generator), torch.arange(50) % 4
    index = torch.randint(50, (30,), generator=generator)
    for settings in ({"power": 2.0}, {"power": 1.0, "labels": labels, "among": "other_class"}):
        stored, on_demand = (PartnerTable(x, **settings, max_bytes=b) for b in (10_000, 9_999))
        assert stored._table is not None
        assert on_demand._table is None
        one, two = (t.sample(index, n_bridges=7, generator=twin(generator)) for t in (stored, on_demand))
        assert torch.equal(one, two)
        assert len(on_demand) == 50
    nearest = PartnerTable(x, power=float("inf"), max_bytes=400)  # one partner a row needs little
    assert nearest._table is not None
    without = PartnerTable(x, power=float("inf"), max_bytes=399)
    assert without._table is None
    assert torch.equal(nearest.sample(index, n_bridges=2), without.sample(index, n_bridges=2))
    monkeypatch.setattr(table_module, "_CHUNK_BYTES", 8 * 50 * 4)  # four rows at a time
    assert torch.equal(nearest.sample(index), without.sample(index))
    assert on_demand.sample(index, n_bridges=3, generator=generator).shape == (30, 3)


@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"power": -1.0}, ValueError, "power must be finite and at least 0, but got -1"),
        ({"power": float("nan")}, ValueError, "power must be finite and at least 0, but got nan"),
        ({"power": "1"}, TypeError, "power must be a number, but got '1'"),
        ({"among": "same-class"}, ValueError, "among must be one of .*Did you mean 'same_class'"),
        ({"among": "same_class"}, ValueError, "among='same_class' needs class labels.*labels="),
        (
            {"among": "same_class", "labels": torch.zeros(3, dtype=torch.long)},
            ValueError,
            r"labels must have as many rows as x \(4\), but has 3 rows",
        ),
    ],
)
def test_table_errors(settings, error, message):
    with pytest.raises(error, match=message):
        PartnerTable(torch.zeros(4, 2), **settings)


@pytest.mark.parametrize("exponent", [63, 120, -75, -120, 1000, -1000])
def test_unit_of_the_data_does_not_matter(exponent, generator):
    """Squares of such data overflow or vanish in float32 or float64."""
    x = torch.randn(40, 3, generator=generator).double()
    scaled = x * 2.0**exponent
    if abs(exponent) < 126:
        x, scaled = x.float(), scaled.float()
    assert torch.allclose(partner_probabilities(x, power=2.0), partner_probabilities(scaled, power=2.0))
    assert torch.equal(sample_partners(x, pairing="nearest"), sample_partners(scaled, pairing="nearest"))
    rows = torch.arange(40)
    for settings in ({}, {"max_bytes": 0}, {"power": float("inf")}):
        ordinary, extreme = (
            PartnerTable(z, **settings).sample(rows, n_bridges=9, generator=torch.Generator().manual_seed(0))
            for z in (x, scaled)
        )
        assert torch.equal(ordinary, extreme)
    ordinary, extreme = (
        sample_partners(
            z, pairing="label_kernel", bandwidth=h, n_bridges=9, generator=torch.Generator().manual_seed(0)
        )
        for z, h in ((x, 0.5), (scaled, 0.5 * 2.0**exponent))
    )
    assert torch.equal(ordinary, extreme)


def test_a_kernel_too_narrow_to_compute_takes_the_nearest(generator):
    y = torch.randn(20, 1, generator=generator)
    partners = sample_partners(y, pairing="label_kernel", bandwidth=1e-200, n_bridges=3, generator=generator)
    nearest = torch.cdist(y.double(), y.double()).fill_diagonal_(float("inf")).argmin(1)
    assert torch.equal(partners, nearest[:, None].expand(-1, 3))


@pytest.mark.bad_input
def test_a_table_of_numbers_is_one_of_points_on_a_line(generator):
    x = torch.randn(30, generator=generator)
    assert torch.equal(differences(PartnerTable(x)), differences(PartnerTable(x[:, None])))
    with pytest.raises(ValueError, match="x is a scalar"):
        PartnerTable(x[0])


@pytest.mark.parametrize(("n", "step"), [(1999, 1), (2000, 2), (3000, 3)])
def test_a_table_measures_distances_on_one_to_two_thousand_rows(n, step, generator, monkeypatch):
    """All pairs of a data set would cost as much as the table that is not stored."""
    seen = []

    def measured(x):
        seen.append(x)
        return pairwise_distances(x)

    monkeypatch.setattr(table_module, "pairwise_distances", measured)
    x = torch.randn(n, 2, generator=generator)
    PartnerTable(x, max_bytes=0)
    assert torch.equal(seen[0], x[::step])
