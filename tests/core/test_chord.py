"""The chord ratio against scikit-learn's kernel ridge regression, and on functions whose answer is known."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge

from elliptica import chord_ratio
from elliptica.core import chord


def table(n=60, curved=0.0, noise=0.1, seed=0):
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(n, 2))
    return x, x @ [1.0, -0.5] + curved * np.sin(2 * x[:, 0]) * x[:, 1] + noise * draws.normal(size=n)


def test_agrees_with_scikit_learn_and_plain_loops(monkeypatch):
    x, y = table(curved=1.0)
    monkeypatch.setattr(chord, "_ASSIGNMENTS", 1)
    fold = torch.randperm(60, generator=torch.Generator().manual_seed(0)) % chord._FOLDS
    x_scaled, y_scaled = (x - x.mean(0)) / x.std(0, ddof=1), (y - y.mean()) / y.std(ddof=1)
    best = None
    for gamma in (scale / 2 for scale in chord._SCALES):
        for alpha in chord._PENALTIES:
            model = KernelRidge(alpha=alpha, kernel="rbf", gamma=gamma)
            made = np.empty(60)
            for k in range(chord._FOLDS):
                train, test = (fold != k).numpy(), (fold == k).numpy()
                mean = y_scaled[train].mean()
                made[test] = mean + model.fit(x_scaled[train], y_scaled[train] - mean).predict(x_scaled[test])
            error = np.square(made - y_scaled).mean()
            if best is None or error < best[0]:
                best = error, model
    error, model = best
    g = model.fit(x_scaled, y_scaled).predict
    gaps = [
        (g((x_scaled[[a]] + x_scaled[[b]]) / 2) - (g(x_scaled[[a]]) + g(x_scaled[[b]])) / 2).item() ** 2
        for a in range(60)
        for b in range(a)
    ]
    measured = chord_ratio(x, y)
    assert measured.ratio == pytest.approx(np.mean(gaps) / error, rel=1e-6)
    assert measured.low < measured.ratio < measured.high


@pytest.mark.parametrize("curved", [0.0, 2.0])
def test_tells_a_curve_from_a_plane(curved):
    measured = chord_ratio(*table(300, curved))
    assert measured.is_known
    assert measured.ratio > 1 if curved else measured.ratio < 0.1
    assert (measured.bend > 1) == bool(curved)


@pytest.mark.slow
@pytest.mark.parametrize("curved", [0.0, 1.0])
def test_the_interval_holds_the_mean_of_other_tables(curved):
    """It is rough: it held the mean of the logarithms in 24 to 30 of 30 such tables."""
    found = [chord_ratio(*table(120, curved, 0.3, seed)) for seed in range(30)]
    mean = np.exp(np.mean([np.log(each.ratio) for each in found]))
    assert sum(each.low <= mean <= each.high for each in found) >= 21


@pytest.mark.parametrize("target", ["gauss", "heavy"])
def test_a_surrogate_may_know_nothing(target):
    draws = np.random.default_rng(0)
    x = draws.normal(size=(300, 3))
    y = draws.normal(size=300) if target == "gauss" else draws.lognormal(sigma=3, size=300)
    assert not chord_ratio(x, y).is_known


def test_an_outlier_is_harmless():
    x, y = table(200, 1.0)
    x[0, 0] = 100
    assert np.isfinite(chord_ratio(x, y).high)


def test_units_do_not_matter():
    x, y = table(150, 1.0)
    part = chord_ratio(x, y, max_rows=100)
    assert (part.n_rows, part.n_all) == (100, 150)
    scaled = chord_ratio(1e3 * x + 7, 1e-4 * torch.as_tensor(y), max_rows=100)
    assert scaled.ratio == pytest.approx(part.ratio, rel=1e-6)


def test_copies_are_no_knowledge():
    x, y = table(60, noise=1.0)
    once, thrice = (chord_ratio(np.tile(x, (k, 1)), np.tile(y, k)) for k in (1, 3))
    assert thrice.noise > 0.7 * once.noise  # with copies in other folds it would be near zero
    counts = str(chord._HARMED[0.3][-1])
    assert counts in str(chord_ratio(np.tile(x, (17, 1)), np.tile(y, 17)))  # only as many rows were studied
    assert counts not in str(once)


def test_frames_may_hold_flags_but_no_text():
    x, y = table()
    frame = pd.DataFrame(x, columns=["a", "b"]).assign(flag=x[:, 0] > 0)
    assert chord_ratio(frame, pd.Series(y)).ratio > 0
    with pytest.raises(TypeError, match="x"):
        chord_ratio(frame.assign(town="A"), y)
    assert chord_ratio(x[:, 0], y).ratio > 0  # one column
    with pytest.raises(ValueError, match="max_rows"):
        chord_ratio(x, y, max_rows=5)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.ones((10, 2)), np.arange(10.0)),
        (np.arange(60.0).reshape(30, 2), np.ones(30)),
        (np.ones((30, 2)), np.arange(30.0)),
        (np.ones((30, 2)), np.arange(30) % 3),
        (np.full((30, 2), np.nan), np.arange(30.0)),
        (np.ones((30, 2)), np.arange(29.0)),
        (np.arange(60.0).reshape(30, 2) // 20, np.arange(30.0) // 10),
        (np.arange(60.0).reshape(30, 2), np.arange(30.0) % 2),
    ],
)
def test_bad_input(x, y):
    with pytest.raises(ValueError, match=r"x|y"):
        chord_ratio(x, y)
