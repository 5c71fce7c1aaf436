"""Clopper-Pearson, Student, Holm and Spearman against scipy or their definitions; weights of a measure."""

import json
import math

import pytest
import torch
from scipy import stats
from torch import nn

from elliptica import log_weights, sample_paths
from elliptica._utils.statistics import (
    clopper_pearson,
    holm,
    incomplete_beta,
    ranks,
    spearman,
    student_quantile,
    student_tail,
)
from elliptica.diagnostics import weights_report


@pytest.mark.parametrize("n", [1, 2, 7, 100, 5000, 1_000_000])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.9999])
def test_clopper_pearson(n, confidence):
    for k in sorted({0, 1, n // 3, n - 1, n}):
        low, high = clopper_pearson(k, n, confidence)
        exact = stats.binomtest(k, n).proportion_ci(confidence, method="exact")
        assert math.isclose(low, exact.low, rel_tol=1e-8, abs_tol=1e-12)
        assert math.isclose(high, exact.high, rel_tol=1e-8, abs_tol=1e-12)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1.0, 1.0), (63.5, 0.5), (3.0, 400.0), (2e4, 3e4)])
def test_incomplete_beta(a, b):
    for q in (1e-9, 0.01, 0.5, 0.99):
        x = float(stats.beta.ppf(q, a, b))
        assert math.isclose(incomplete_beta(a, b, x), float(stats.beta.cdf(x, a, b)), rel_tol=1e-8)


@pytest.mark.parametrize("degrees", [1, 5, 127])
def test_student(degrees):
    for t in (-40.0, -3.0, -0.1, 0.0, 2.0):
        assert math.isclose(student_tail(t, degrees), stats.t.cdf(t, degrees), rel_tol=1e-9)
    for p in (1e-6, 0.3, 0.999):
        assert math.isclose(student_quantile(p, degrees), stats.t.ppf(p, degrees), rel_tol=1e-6)


def test_holm_rejects_what_the_step_down_rule_rejects(generator):
    """The rule as Holm wrote it: go on while the i-th smallest p is below alpha / (m - i + 1)."""
    for _ in range(50):
        p = torch.rand(4, 5, generator=generator, dtype=torch.float64) ** 4
        for alpha in (0.01, 0.05, 0.3):
            rejected = set()
            for i, index in enumerate(p.flatten().argsort().tolist()):
                if p.flatten()[index] > alpha / (20 - i):
                    break
                rejected.add(index)
            found = (holm(p) <= alpha).flatten().nonzero().flatten().tolist()
            assert set(found) == rejected


def test_spearman_with_ties(generator):
    a = torch.randint(5, (30,), generator=generator).double()
    b = a + torch.randn(30, generator=generator)
    assert math.isclose(spearman(a, b), stats.spearmanr(a, b).statistic, rel_tol=1e-12)
    assert ranks(a).tolist() == stats.rankdata(a.numpy()).tolist()
    assert math.isnan(spearman(torch.ones(4), torch.arange(4.0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_effective_number(dtype):
    w = torch.tensor([1.0, 2.0, 3.0, 0.0], dtype=dtype)
    report = weights_report(w.log() + 500)  # the scale cancels, and would overflow
    assert math.isclose(report.effective, 36 / 14, rel_tol=1e-5)
    assert math.isclose(report.largest_share, 0.5, rel_tol=1e-5)
    plain = weights_report(w.log())
    assert math.isclose(plain.mean_weight, 1.5, rel_tol=1e-5)
    assert math.isclose(plain.mean_stderr, float(w.std()) / 2, rel_tol=1e-5)


@pytest.mark.statistical
def test_a_change_of_measure_is_trusted_and_others_are_not(generator):
    z = torch.randn(20_000, generator=generator, dtype=torch.float64)
    good = weights_report(0.7 * z - 0.7**2 / 2)
    assert good.trust
    assert math.isclose(good.effective_share, math.exp(-(0.7**2)), rel_tol=0.1)
    assert "trust" in str(good)
    assert not weights_report(0.7 * z).trust  # the compensator forgotten: mean e^(s^2/2)
    uneven = weights_report(3 * z - 4.5)
    assert not uneven.trust
    assert "do not trust" in str(uneven)
    assert "below 10%" in str(uneven)


def test_weights_of_bridges(generator):
    x, y = torch.randn(40, 3, generator=generator), torch.randn(40, 1, generator=generator)
    paths = sample_paths(
        x, y, target_space="real", sampling="path", n_bridges=4, sigma=0.5, generator=generator
    )
    logs = log_weights(nn.Linear(3, 1), nn.MSELoss(), paths, xi=0.1)
    report = weights_report(logs)
    row = logs.detach().double().softmax(1).square().sum(1)
    assert math.isclose(report.row_effective_share, float((1 / row).min()) / 4, rel_tol=1e-6)
    assert "within a row" in report.notes[-1]
    json.dumps(report.to_dict(), allow_nan=False)
    shifted = weights_report(logs + 3)  # the unknown factor: no verdict may rest on the mean
    assert shifted.trust == report.trust


@pytest.mark.bad_input
class TestErrors:
    @pytest.mark.parametrize(
        ("bad", "match"),
        [
            (torch.tensor([0.0, torch.nan]), "NaN"),
            (torch.full((3,), -torch.inf), "All weights are zero"),
            (torch.zeros(1), "at least two"),
            (torch.zeros(2, 2, 2), "shape"),
        ],
    )
    def test_weights(self, bad, match):
        with pytest.raises(ValueError, match=match):
            weights_report(bad)

    def test_limits(self):
        with pytest.raises(ValueError, match=r"0\.\.3"):
            clopper_pearson(4, 3)
        with pytest.raises(ValueError, match=r"0\.95"):
            clopper_pearson(1, 3, 95.0)
