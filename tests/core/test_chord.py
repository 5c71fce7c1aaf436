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


def test_a_surrogate_may_know_nothing_and_an_outlier_is_harmless():
    draws = np.random.default_rng(0)
    x = draws.normal(size=(200, 10))
    assert not chord_ratio(x, np.sin(9 * x[:, 0])).is_known
    x[0, 0] = 100
    assert np.isfinite(chord_ratio(x, x[:, 1]).high)


def test_a_model_takes_the_place_of_the_surrogate():
    x, y = table(80)
    squares = chord_ratio(x, y, model=lambda points: points.square().sum(1))
    gap = [((x[a] - x[b]) ** 2).sum() ** 2 / 16 for a in range(80) for b in range(a)]
    error = np.square(np.square(x).sum(1) - y).mean()
    assert squares.ratio == pytest.approx(np.mean(gap) / error)
    assert chord_ratio(x, y, model=torch.nn.Linear(2, 1)).ratio < 1e-9


def test_a_sample_says_so_and_units_do_not_matter():
    x, y = table(150, 1.0)
    part = chord_ratio(x, y, max_rows=100)
    assert (part.n_rows, part.n_all) == (100, 150)
    assert "150" in str(part)
    scaled = chord_ratio(1e3 * x + 7, 1e-4 * torch.as_tensor(y), max_rows=100)
    assert scaled.ratio == pytest.approx(part.ratio, rel=1e-6)


def test_copies_count_once():
    x, y = table(60, 1.0)
    once, twice = chord_ratio(x, y), chord_ratio(np.r_[x, x], np.r_[y, y])
    assert (twice.n_rows, twice.n_all) == (60, 120)
    assert twice.ratio == once.ratio


def test_frames_may_hold_flags_but_no_text():
    x, y = table()
    frame = pd.DataFrame(x, columns=["a", "b"]).assign(flag=x[:, 0] > 0)
    assert chord_ratio(frame, pd.Series(y)).ratio > 0
    with pytest.raises(TypeError, match="x"):
        chord_ratio(frame.assign(town="A"), y)


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
    ],
)
def test_bad_input(x, y):
    with pytest.raises(ValueError, match=r"x|y"):
        chord_ratio(x, y)
