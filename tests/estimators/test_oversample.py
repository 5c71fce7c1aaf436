"""Over-sampling: SMOTE's law without noise, the bridge's with it, and rare targets of a regression."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from imblearn.over_sampling import SMOTE
from imblearn.pipeline import make_pipeline
from scipy import stats
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import NearestNeighbors

from elliptica.estimators import BridgeOverSampler, EllipticClassifier
from laws import assert_distribution, assert_frequencies, assert_same_distribution


@pytest.fixture
def classes():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(60, 3)), rng.normal(3, 1, (12, 3)), rng.normal(-3, 1, (7, 3))])
    return x, np.array(["many"] * 60 + ["some"] * 12 + ["few"] * 7)


def places(new, rows):
    """For each new row: its ends among ``rows`` (first, second) and the place between them."""
    found = []
    for point in new:
        a, b = rows[:, None], rows[None]
        line = ((point - a) * (b - a)).sum(-1) / np.maximum(((b - a) ** 2).sum(-1), 1e-300)
        gap = np.linalg.norm(a + line[..., None] * (b - a) - point, axis=-1)
        gap[np.diag_indices(len(rows))] = np.inf
        gap[(line < 0) | (line > 1)] = np.inf
        i, j = np.unravel_index(gap.argmin(), gap.shape)
        found.append((i, j, line[i, j], gap[i, j]))
    return found


@pytest.mark.statistical
def test_without_noise_the_law_is_that_of_smote(classes, seed):
    """Frequencies of starts, ends and places against the law, and each coordinate against SMOTE."""
    x, y = classes
    sizes = {"few": 6000, "many": 60, "some": 12}
    samplers = (
        BridgeOverSampler(sigma=0.0, sampling_strategy=sizes, random_state=seed),
        SMOTE(sampling_strategy=sizes, random_state=seed + 1),
    )
    ours, theirs = (sampler.fit_resample(x, y)[0][len(x) :] for sampler in samplers)
    for j in range(3):
        assert_same_distribution(ours[:, j], theirs[:, j])
    own = x[y == "few"]
    near = NearestNeighbors(n_neighbors=5).fit(own).kneighbors(return_distance=False)
    counts, law = np.zeros((7, 7)), np.zeros((7, 7))
    for i, j, _, _ in places(ours, own):
        counts[min(i, j), max(i, j)] += 1
    for i in range(7):
        for j in near[i]:
            law[min(i, j), max(i, j)] += 1 / 35
    assert_frequencies(counts.ravel(), law.ravel())
    with pytest.raises(AssertionError):
        assert_same_distribution(ours[:, 0] + 0.2 * x[:, 0].std(), theirs[:, 0])


@pytest.mark.statistical
def test_noise_is_that_of_a_bridge(seed):
    """With two equal rows the line is a point: what is left is noise of variance sigma^2 u(1-u) var(x)."""
    x = np.array([[1.0, 5.0]] * 2 + [[0.0, 0.0], [4.0, 50.0], [2.0, 20.0], [9.0, 90.0]])
    y = [0, 0, 1, 1, 1, 1]
    sampler = BridgeOverSampler(sigma=0.5, sampling_strategy={0: 16_002, 1: 4}, random_state=seed)
    noise = sampler.fit_resample(x, y)[0][6:] - x[0]
    z = noise / (0.5 * x.std(axis=0))
    u = (np.arange(2000) + 0.5) / 2000
    grid = np.sqrt(u * (1 - u))

    def cdf(values):
        return np.array([stats.norm.cdf(v / grid).mean() for v in np.atleast_1d(values)])

    points = np.linspace(-1.5, 1.5, 61)
    known = cdf(points)
    for j in range(2):
        assert_distribution(z[:, j], lambda v: np.interp(v, points, known))
        with pytest.raises(AssertionError):
            assert_distribution(1.15 * z[:, j], lambda v: np.interp(v, points, known))


@pytest.mark.parametrize("strategy", ["auto", "minority", {"some": 20, "few": 9}])
def test_strategies_are_those_of_imbalanced_learn(classes, strategy):
    ours = BridgeOverSampler(sampling_strategy=strategy).fit_resample(*classes)[1]
    theirs = SMOTE(sampling_strategy=strategy).fit_resample(*classes)[1]
    assert sorted(ours) == sorted(theirs)


def test_ratio_and_one_row():
    x, y = np.random.default_rng(0).normal(size=(41, 2)), [0] * 40 + [1]
    sampler = BridgeOverSampler(sampling_strategy=0.5, random_state=0)
    more, labels = sampler.fit_resample(x, y)
    assert labels.sum() == 20
    assert sampler.sampling_strategy_ == {0: 0, 1: 19}
    assert len(np.unique(more[41:], axis=0)) == 19  # noise around the only row
    copies = BridgeOverSampler(sampling_strategy=0.5, sigma=0.0).fit_resample(x, y)[0]
    np.testing.assert_array_equal(copies[41:], np.repeat(x[40:], 19, 0))


def test_regression_fills_rare_bins():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = np.exp(1.2 * x[:, 0])  # few large targets
    sampler = BridgeOverSampler(sigma=0.0, n_bins=8, random_state=0)
    more, target = sampler.fit_resample(x, y)
    np.testing.assert_array_equal(more[:300], x)
    np.testing.assert_array_equal(target[:300], y)
    edges = np.linspace(y.min(), y.max(), 9)
    before, after = (np.histogram(v, edges)[0] for v in (y, target))
    mean = int(300 / (before > 0).sum())
    np.testing.assert_array_equal(after, np.where(before > 0, np.maximum(before, mean), 0))
    assert list(sampler.sampling_strategy_.values()) == (after - before)[before > 0].tolist()
    # row and target are at the same place between the same two rows
    member = np.clip(np.searchsorted(edges, y, side="right") - 1, 0, 7)
    number = 0
    for b, n_new in zip(np.flatnonzero(before), sampler.sampling_strategy_.values(), strict=True):
        own = member == b
        joined = np.column_stack([x, y])[own]
        for row, value in zip(more[300 + number :][:n_new], target[300 + number :][:n_new], strict=True):
            if own.sum() > 1:
                assert places([np.append(row, value)], joined)[0][3] < 1e-8
            else:
                np.testing.assert_array_equal(np.append(row, value), joined[0])
        number += n_new


@pytest.mark.parametrize("package", [pd, pl])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_frames_in_frames_out(package, task):
    x = package.DataFrame({"a": np.arange(20), "b": np.linspace(0, 1, 20) ** 2})
    values = ["u"] * 16 + ["v"] * 4 if task == "classification" else np.linspace(0, 1, 20) ** 4
    y = package.Series(values, name="t") if package is pd else package.Series("t", values)
    more, target = BridgeOverSampler(random_state=0).fit_resample(x, y)
    assert type(more) is type(x)
    assert type(target) is type(y)
    assert list(more.columns) == ["a", "b"]
    assert target.name == "t"
    assert target.dtype == y.dtype
    np.testing.assert_array_equal(np.asarray(more)[:20], np.asarray(x))
    assert len(more) == len(target) > 20


def test_in_a_pipeline_of_imbalanced_learn(classes):
    """Rows are added in training only."""
    network = EllipticClassifier(hidden=(8,), max_iter=15, learning_rate=0.05, random_state=0)
    pipeline = make_pipeline(BridgeOverSampler(), network)
    assert cross_val_score(pipeline, *classes, cv=3).mean() > 0.7
    assert len(pipeline.fit(*classes).predict(classes[0])) == len(classes[0])


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize(
    "options",
    [
        {"sigma": -1.0},
        {"k_neighbors": 0},
        {"task": "classify"},
        {"sampling_strategy": "majority"},
        {"sampling_strategy": {"none": 3}},
        {"sampling_strategy": {"many": 3}},
    ],
)
def test_bad_parameters(classes, options):
    with pytest.raises((ValueError, TypeError)):
        BridgeOverSampler(**options).fit_resample(*classes)


def test_targets_are_classes_or_numbers_and_stay_in_their_range():
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(300, 2)), draws.integers(0, 200, 300)
    assert set(BridgeOverSampler(sigma=0.0).fit_resample(x, y % 20)[1]) == set(range(20))
    skewed = np.exp(1.2 * x[:, 0])
    _, more = BridgeOverSampler(sigma=0.5, n_bins=8, random_state=0).fit_resample(x, skewed)
    assert (more.min(), more.max()) == (skewed.min(), skewed.max())
    assert len(more) > 300
    assert not set(BridgeOverSampler(sigma=0.5).fit_resample(x, y)[1]) <= set(y)  # many whole numbers
    with pytest.raises(ValueError, match="label"):
        BridgeOverSampler(task="classification").fit_resample(x, skewed)
