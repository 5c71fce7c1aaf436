"""`PartnerIndex` draws the law of `PartnerTable` from k neighbours per row, or says how far off it is."""

import importlib
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from elliptica import PartnerIndex, PartnerTable
from elliptica.partner_index.law import Envelope
from elliptica.partner_index.search import choose_backend
from laws import assert_frequencies

INFINITY = float("inf")


def cloud(kind, generator, n=60):
    """Small data sets on which a bound or a search could go wrong."""
    x = torch.randn(n, 3, generator=generator)
    if kind == "clusters":  # far apart, with small distances within
        x = x * 0.01 + 5 * torch.randn(4, 3, generator=generator)[torch.arange(n) % 4]
    elif kind == "outliers":
        x[:3] *= 1e3
    elif kind == "duplicates":  # more copies than stored neighbours
        x[: n // 3] = x[0]
    elif kind == "far from the origin":
        x = x + 1e4
    return x


CLOUDS = ("normal", "clusters", "outliers", "duplicates", "far from the origin")


def reference(x, power, labels=None, among="all"):
    """The law by SciPy's distances in float64 and a loop."""
    d = cdist(x.double(), x.double())
    n = len(x)
    floor = 0.01 * np.quantile(d[~np.eye(n, dtype=bool)], 0.5, method="lower")
    law = np.zeros((n, n))
    for i in range(n):
        ok = np.arange(n) != i
        if among == "same_class":
            ok &= (labels == labels[i]).numpy()
        if not ok.any():
            law[i, i] = 1.0
            continue
        distinct = d[i, ok & (d[i] > floor)].min(initial=INFINITY)  # a duplicate is as near as this
        log = -power * np.log(np.where(d[i, ok] > floor, d[i, ok], distinct if distinct < INFINITY else 1.0))
        law[i, ok] = np.exp(log - log.max())
        law[i] /= law[i].sum()
    return law


def assert_law(index, law, generator, n_draws=4000, rows=range(0, 60, 7)):
    """Frequencies of some rows; cells with few expected draws are joined, so that chi-square holds."""
    rows = torch.tensor([r for r in rows if r < len(law)])
    partners = index.sample(rows, n_bridges=n_draws, generator=generator)
    for row, drawn in zip(rows.tolist(), partners, strict=True):
        counts = np.bincount(drawn, minlength=len(law)).astype(float)
        assert (counts[law[row] == 0] == 0).all(), "an impossible outcome was drawn"
        rare = law[row] * n_draws < 5
        observed = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(law[row][~rare], law[row][rare].sum())
        if expected[-1] * n_draws < 1:  # nothing to test there, but no more than a few may turn up
            assert observed[-1] <= 10 + 100 * expected[-1] * n_draws
            observed, expected = observed[:-1], expected[:-1]
        if len(expected) > 1:
            assert_frequencies(observed, expected / expected.sum())


@pytest.mark.statistical
@pytest.mark.parametrize("power", [0.0, 1.0, 2.0, 30.0])
@pytest.mark.parametrize("kind", CLOUDS)
def test_exact_neighbours_draw_the_law(kind, power, generator):
    """4000 draws for each of 9 rows, 5 neighbours stored of 59; `test_law_rejects` says what is seen."""
    x = cloud(kind, generator)
    index = PartnerIndex.build(x, k=5, power=power, exact=True, generator=generator)
    assert index.proved
    assert index.recall == 1.0
    assert index.error_bound < 1e-3
    assert_law(index, reference(x, power), generator)


@pytest.mark.statistical
@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("kind", ["normal", "clusters", "duplicates"])
def test_approximate_neighbours_draw_the_law(kind, power, generator):
    """One cell searched: many neighbours are missed, and the proved law does not notice."""
    x = cloud(kind, generator, n=200)
    index = PartnerIndex.build(x, k=5, power=power, probes=1, cells=12, generator=generator)
    assert not index.proved
    assert index.recall < 0.999
    sure = index.with_law(proved=True, max_draws=100_000)
    assert sure.error_bound < 1e-3
    assert_law(sure, reference(x, power), generator, n_draws=2000, rows=range(0, 200, 23))


@pytest.mark.statistical
@pytest.mark.parametrize("power", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("exact", [True, False])
def test_law_within_classes(power, exact, generator):
    """Cells never mix classes; the only member of a class is its own partner."""
    x = cloud("normal", generator)
    labels = torch.arange(60) % 3 - 1
    labels[7] = 12
    index = PartnerIndex.build(
        x, k=4, power=power, labels=labels, among="same_class", exact=exact, probes=2, generator=generator
    ).with_law(proved=True, max_draws=20_000)
    assert_law(index, reference(x, power, labels, "same_class"), generator, n_draws=2000)
    alone = index.sample(torch.tensor([7]), n_bridges=50, generator=generator)
    assert (alone == 7).all()


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", ["power", "envelope", "floor", "nearest alone"])
def test_law_rejects(wrong, generator, monkeypatch):
    """A power off by 0.3, the envelope for the law, duplicates ten times nearer, stored neighbours only."""
    x = cloud("duplicates" if wrong == "floor" else "normal", generator)
    power = 1.0 if wrong == "floor" else 2.0
    index = PartnerIndex.build(x, k=5, power=power, generator=generator)
    if wrong == "power":
        index = index.with_law(power=2.3)
    if wrong == "envelope":
        far = Envelope._far
        monkeypatch.setattr(Envelope, "_far", lambda *a: (far(*a)[0], torch.zeros(len(a[1]))))
    if wrong == "floor":
        index._arrays.distinct[:] /= 10
    if wrong == "nearest alone":
        weigh = Envelope._weigh
        monkeypatch.setattr(
            Envelope, "_weigh", lambda s, near, low, nobody: weigh(s, near, low, nobody | True)
        )
    with pytest.raises(AssertionError, match=r"frequencies|impossible"):
        assert_law(index, reference(x, power), generator)


@pytest.mark.parametrize("among", ["all", "same_class"])
def test_duplicates_are_those_of_the_table(among, generator):
    """Both laws call the same points duplicates, also where the median is that of some rows only."""
    for n in (50, 2300):
        x = cloud("duplicates", generator, n)
        labels = torch.arange(n) % 2
        table = PartnerTable(x, labels=labels if among == "same_class" else None)
        index = PartnerIndex.build(
            x, k=4, labels=labels, among=among, cells=10, probes=1, generator=generator
        )
        largest = (x - x.mean(0)).abs().max()
        unit = 2.0 ** math.frexp(float(largest))[1]  # of the index
        assert index._facts.floor * unit == pytest.approx(table._floor, rel=1e-6)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("among", ["all", "same_class"])
@pytest.mark.parametrize("kind", ["clusters", "duplicates"])
def test_nearest_distinct_neighbour_against_brute_force(kind, among, exact, generator):
    """Where rows have more duplicates than stored neighbours, and where they have few."""
    x = cloud(kind, generator, n=200)
    x[150:160] = x[190:200]
    labels = torch.arange(200) // 4 % 2
    options = {"exact": True} if exact else {"probes": 3}
    index = PartnerIndex.build(x, k=4, labels=labels, among=among, cells=16, generator=generator, **options)
    arrays, floor = index._arrays, index._facts.floor
    points, of = arrays.points.astype(float), labels.numpy()[arrays.rows]
    d = cdist(points, points)
    np.fill_diagonal(d, INFINITY)
    if among == "same_class":
        d[of[:, None] != of] = INFINITY
    has = (d < floor).any(1)
    true = np.where(d < floor, INFINITY, d).min(1)
    assert 50 < has.sum() <= 200
    assert np.allclose(arrays.distinct[~has], floor, rtol=1e-6)
    if exact:
        assert np.allclose(arrays.distinct[has], true[has], rtol=1e-5)
    else:  # of rows whose neighbours are all duplicates; others know what the search found
        hidden = has & (arrays.distances < floor).all(1)
        assert np.allclose(arrays.distinct[hidden], true[hidden], rtol=1e-5)
        assert (arrays.distinct[has] > true[has] * (1 - 1e-5)).mean() > 0.99


def off_by(index, law, generator, n_draws=2000, every=1):
    """Total variation of some rows from the law, and what the noise of so many draws adds to it."""
    rows = torch.arange(0, len(law), every)
    drawn, law = index.sample(rows, n_bridges=n_draws, generator=generator), law[rows]
    frequency = np.stack([np.bincount(row, minlength=law.shape[1]) for row in drawn]) / n_draws
    return 0.5 * np.abs(frequency - law).sum(1), 0.5 * np.sqrt(law / n_draws).sum(1)


@pytest.mark.statistical
def test_a_nearer_distinct_neighbour_that_was_missed_is_in_the_bound(generator):
    """The law drawn differs from the exact one, on audited rows, by no more than the bound says."""
    x = torch.randn(100, 3, generator=generator)
    x[::2] = x[1::2]  # everyone has a copy
    index = PartnerIndex.build(x, k=3, power=4.0, probes=1, cells=25, generator=generator)
    sure = index.with_law(proved=True, max_draws=100_000)
    distance, noise = off_by(sure, reference(x, 4.0), generator)
    assert distance.mean() <= sure.error_bound + noise.mean()
    assert sure.error_bound > 1e-3


@pytest.mark.statistical
@pytest.mark.parametrize("max_draws", [1, 8, 64])
def test_stopping_early_costs_less_than_the_bound(max_draws, generator, monkeypatch):
    """Neighbours missed, a large power, and no cell measured: few proposals are accepted.

    The measured total variation, from 5000 draws a row, stays below what is reported for the row, up to four
    deviations of its noise.
    """
    monkeypatch.setattr("elliptica.partner_index.law._HARD", 0.0)
    x = cloud("normal", generator)
    index = PartnerIndex.build(x, k=3, power=3.0, probes=1, cells=12, generator=generator)
    index = index.with_law(proved=True, max_draws=max_draws)
    bounds = index._law.cap_bounds(index._positions(torch.arange(0, 60, 12))).numpy()
    assert bounds.max() > 0.2  # a hard case indeed
    distance, noise = off_by(index, reference(x, 3.0), generator, n_draws=5000, every=12)
    assert (distance <= bounds + 4 * noise).all()


@pytest.mark.parametrize("hard", [0.0, 1.0])
def test_bound_is_below_the_true_acceptance(hard, generator, monkeypatch):
    """``a_i`` never exceeds the share that is accepted, by brute force, also where cells are measured."""
    monkeypatch.setattr("elliptica.partner_index.law._HARD", hard)
    for kind, power, proved in itertools.product(("clusters", "normal"), (0.5, 2.0, 9.0), (True, False)):
        x = cloud(kind, generator)
        index = PartnerIndex.build(x, k=3, power=power, probes=1, cells=15, generator=generator)
        arrays, facts = index._arrays, index._facts
        where = np.arange(60)
        envelope = Envelope(arrays, facts, where, proved)
        d = cdist(arrays.points.astype(float), arrays.points.astype(float)).clip(facts.floor)
        np.fill_diagonal(d, INFINITY)
        accepted = d**-power
        far = envelope._least.numpy()[:, arrays.cell_of(where)] ** -power
        for i in where:
            known = np.isin(where, arrays.near[i])
            accepted[i] = np.where(known, accepted[i], np.minimum(accepted[i], far[i]))
        true = accepted.sum(1) / envelope._log.exp().sum(1).numpy()
        assert (envelope.acceptance.numpy() <= true * (1 + 1e-6)).all()
        assert (envelope.acceptance > 0).all()


@pytest.mark.parametrize("hard", [0.0, 1.0])
@pytest.mark.parametrize("kind", CLOUDS)
@pytest.mark.parametrize("exact", [True, False])
def test_bounds_of_distances_hold(kind, exact, hard, generator, monkeypatch):
    """No point that is not stored is nearer than the envelope says, in any cell, measured or not."""
    monkeypatch.setattr("elliptica.partner_index.law._HARD", hard)
    x = cloud(kind, generator, n=300)
    index = PartnerIndex.build(x, k=4, power=9.0, exact=exact, probes=3, generator=generator)
    arrays = index._arrays
    points = arrays.points.astype(float)
    d = cdist(points, points)
    envelope = Envelope(arrays, index._facts, np.arange(300), True)
    least = envelope._least.numpy()[:, arrays.cell_of(np.arange(300))]
    unknown = ~np.eye(300, dtype=bool)
    for i in range(300):
        unknown[i, arrays.near[i][arrays.near[i] >= 0]] = False
    violated = unknown & (least > np.maximum(d, arrays.distinct[:, None]) * (1 + 1e-6))
    assert not violated.any()


@pytest.mark.statistical
def test_missed_neighbours_are_counted(generator):
    """Trusting approximate neighbours: the law is off by what is reported, and not by more.

    All rows are audited (n < 128), so the mean of the true total variations is at most the reported mean.
    """
    x = cloud("normal", generator, n=100)
    index = PartnerIndex.build(x, k=4, power=4.0, probes=1, cells=20, generator=generator)
    assert index.error_bound == pytest.approx(index.check(generator=generator).missed, abs=1e-6)
    distance, noise = off_by(index, reference(x, 4.0), generator)
    assert distance.mean() <= index.error_bound + noise.mean()
    assert distance.mean() > 0.3 * index.error_bound > 0.01  # and the report is not empty talk
    proved = index.with_law(proved=True)
    assert proved.check(generator=generator).missed == 0.0


def test_nearest_is_that_of_the_table(generator):
    for kind in CLOUDS:
        x = cloud(kind, generator)
        table = PartnerTable(x, power=INFINITY)
        index = PartnerIndex.build(x, k=3, power=INFINITY, generator=generator)
        rows = torch.arange(60)
        ours, theirs = index.sample(rows, n_bridges=2), table.sample(rows, n_bridges=2)
        d = torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
        assert torch.allclose(
            d.gather(1, ours), d.gather(1, theirs), rtol=1e-5, atol=1e-7 * float(x.abs().max())
        )
        assert index.error_bound == 0.0


def test_missed_nearest_is_reported(generator):
    x = cloud("normal", generator, n=100)
    index = PartnerIndex.build(x, k=2, power=INFINITY, probes=1, cells=25, generator=generator)
    d = cdist(x, x) + np.diag(np.full(100, np.inf))
    wrong = (index.sample(torch.arange(100))[:, 0].numpy() != d.argmin(1)).mean()
    assert index.error_bound == pytest.approx(wrong)
    assert wrong > 0


@pytest.mark.parametrize("backend", ["faiss", "sklearn"])
@pytest.mark.parametrize("kind", CLOUDS)
def test_neighbours_against_scipy(kind, backend, generator):
    pytest.importorskip(backend, reason=f"{backend} is not installed (extra scale or tables)")
    x = cloud(kind, generator, n=200)
    index = PartnerIndex.build(x, k=7, backend=backend, exact=True, generator=generator)
    arrays = index._arrays
    d = cdist(arrays.points.astype(float), arrays.points.astype(float))
    np.fill_diagonal(d, INFINITY)
    assert np.allclose(arrays.distances, np.sort(d, 1)[:, :7], rtol=1e-4, atol=1e-6 * d[np.isfinite(d)].max())
    assert (arrays.near >= 0).all()
    assert (arrays.near != np.arange(200)[:, None]).all()
    assert all(len(set(row)) == 7 for row in arrays.near.tolist())
    assert np.allclose(np.take_along_axis(d, arrays.near, 1), arrays.distances, rtol=1e-5, atol=1e-9)
    assert (np.diff(arrays.distances, axis=1) >= 0).all()


@pytest.mark.parametrize("backend", ["faiss", "sklearn"])
def test_recall_is_what_brute_force_finds(backend, generator):
    pytest.importorskip(backend, reason=f"{backend} is not installed (extra scale or tables)")
    x = torch.randn(120, 5, generator=generator)
    index = PartnerIndex.build(x, k=6, backend=backend, probes=2, cells=15, generator=generator)
    d = cdist(index._arrays.points, index._arrays.points) + np.diag(np.full(120, np.inf))
    true = np.argsort(d, 1)[:, :6]
    found = np.mean([len(set(a) & set(b)) / 6 for a, b in zip(true, index._arrays.near, strict=True)])
    assert index.recall == pytest.approx(found)  # all 120 rows are audited
    assert 0.2 < found < 1.0


def test_enough_cells_are_searched(generator):
    """Without a number of probes the recall on audited rows reaches 95 %."""
    x = torch.randn(3000, 4, generator=generator)
    index = PartnerIndex.build(x, k=8, exact=False, generator=generator)
    assert index.recall >= 0.94
    assert 1 < index._arrays.probes.shape[1] <= 64
    assert not index.proved


@pytest.mark.statistical
def test_cells_too_small_for_k_neighbours(generator):
    """Clusters of fewer rows than neighbours wanted: every row finds k of them, and draws all others, too."""
    n, size = 240, 6
    x = 100 * torch.randn(n // size, 3, generator=generator).repeat_interleave(size, 0)
    x = x + torch.randn(n, 3, generator=generator)
    index = PartnerIndex.build(x, k=8, probes=1, generator=generator)
    arrays = index._arrays
    assert (arrays.near >= 0).all()
    assert arrays.reach.max() < 1e3
    assert index.error_bound < 0.05
    assert_law(index.with_law(power=0.0), reference(x, 0.0), generator, rows=range(0, n, 31))


def test_without_faiss(monkeypatch):
    real, missing = importlib.import_module, {"faiss"}

    def fake(name, *args):
        if name.split(".")[0] in missing:
            raise ModuleNotFoundError(name, name=name)
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", fake)
    assert PartnerIndex.build(torch.randn(30, 2), k=3)._facts.backend == "sklearn"
    with pytest.raises(ModuleNotFoundError, match="scale"):
        choose_backend("faiss")
    missing.add("sklearn")
    with pytest.raises(ModuleNotFoundError, match="tables"):
        choose_backend(None)


def test_small_data_keep_everyone(generator):
    """k above n - 1: all neighbours are stored, nothing is ever rejected."""
    x = torch.randn(6, 2, generator=generator)
    index = PartnerIndex.build(x, k=32, power=2.0, generator=generator)
    check = index.check(generator=generator)
    assert check.acceptance == 1.0
    assert index.error_bound == 0.0
    assert_law(index, reference(x, 2.0), generator, rows=range(6))
    pair = PartnerIndex.build(x[:2], generator=generator)
    assert pair.sample(torch.tensor([0, 1, 1])).tolist() == [[1], [0], [0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_rows_equal(dtype, generator):
    index = PartnerIndex.build(torch.ones(40, 3, dtype=dtype), k=4, generator=generator)
    partners = index.sample(torch.arange(40), n_bridges=200, generator=generator)
    assert (partners != torch.arange(40)[:, None]).all()
    assert len(partners.unique()) == 40
    assert index.error_bound < 1e-9


@pytest.mark.parametrize("backend", ["faiss", "sklearn"])
def test_the_same_generator_makes_the_same_index_and_partners_and_nothing_else(backend, generator):
    pytest.importorskip(backend, reason=f"{backend} is not installed (extra scale or tables)")
    x = torch.randn(400, 5, generator=generator)
    copy, state = x.clone(), torch.get_rng_state()
    seeded = [torch.Generator().manual_seed(seed) for seed in (5, 5, 6)]
    one, two, other = (
        PartnerIndex.build(x, k=4, backend=backend, probes=2, generator=each) for each in seeded
    )
    for name, array in one._arrays.named().items():
        assert np.array_equal(array, two._arrays.named()[name]), name
    assert not np.array_equal(one._arrays.centres, other._arrays.centres)
    rows = torch.randint(400, (20,), generator=generator)
    first, again, another = (
        index.sample(rows, n_bridges=3, generator=each)
        for index, each in zip((one, two, one), seeded, strict=True)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, another)
    one.check(generator=generator)
    assert torch.equal(x, copy)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes_and_images(dtype, generator):
    x = torch.randn(50, 3, 4, 4, generator=generator).to(dtype)
    index = PartnerIndex.build(x, k=5, generator=generator)
    assert index.shape == (50, 48)
    d = cdist(x.double().flatten(1), x.double().flatten(1)) + np.diag(np.full(50, np.inf))
    nearest = index.with_law(power=INFINITY).sample(torch.arange(50))[:, 0]
    assert np.allclose(d[np.arange(50), nearest], d.min(1), rtol=1e-6)


@pytest.mark.parametrize("backend", ["faiss", "sklearn"])
@pytest.mark.parametrize("exponent", [63, 100, -75, -116, 1000, -1000])
def test_unit_of_the_data_does_not_matter(exponent, backend, generator):
    """Squares of such data overflow or vanish in float32, which aborted the process or bent the law."""
    pytest.importorskip(backend, reason=f"{backend} is not installed (extra scale or tables)")
    x = torch.randn(200, 3, generator=generator).double()
    scaled = x * 2.0**exponent
    if abs(exponent) < 126:
        x, scaled = x.float(), scaled.float()
    indices = [
        PartnerIndex.build(z, k=6, backend=backend, generator=torch.Generator().manual_seed(1))
        for z in (x, scaled)
    ]
    ordinary, extreme = (
        index.sample(torch.arange(200), n_bridges=20, generator=torch.Generator().manual_seed(2))
        for index in indices
    )
    assert torch.equal(ordinary, extreme)
    assert indices[1].error_bound == pytest.approx(indices[0].error_bound)


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize(
    ("x", "settings", "argument"),
    [
        (torch.zeros(1, 3), {}, "x"),
        (torch.zeros(4, 0), {}, "x"),
        (torch.tensor([[0.0], [float("nan")], [1.0]]), {}, "row 1 "),
        (torch.tensor([[0.0], [float("inf")], [1.0]]), {}, "row 1 "),
        # rounding would make copies of all ordinary rows, and the bound would know nothing of it
        (torch.cat([torch.full((1, 3), 1e12), torch.randn(200, 3)]), {}, "x"),
        (torch.zeros(4, 2), {"power": -1.0}, "power"),
        (torch.zeros(4, 2), {"power": float("nan")}, "power"),
        (torch.zeros(4, 2), {"among": "same"}, "among"),
        (torch.zeros(4, 2), {"among": "same_class"}, "labels"),
        (torch.zeros(4, 2), {"among": "same_class", "labels": torch.zeros(3).long()}, "labels"),
        (torch.zeros(4, 2), {"among": "same_class", "labels": torch.zeros(4, 1).long()}, "labels"),
    ],
)
def test_bad_input(x, settings, argument):
    with pytest.raises(ValueError, match=argument):
        PartnerIndex.build(x, **settings)


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize("index", [torch.tensor([3, 9]), torch.tensor([3, -1]), torch.zeros(3)])
@pytest.mark.parametrize("power", [1.0, INFINITY])
def test_rows_that_do_not_exist(index, power):
    with pytest.raises(IndexError):
        PartnerIndex.build(torch.randn(9, 2), power=power).sample(index)
