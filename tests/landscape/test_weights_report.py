"""Weights of a change of measure: their effective number, and when to trust them."""

import json
import math

import pytest
import torch
from torch import nn

from elliptica import log_weights, sample_paths
from elliptica.landscape import weights_report


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
    assert not weights_report(0.7 * z).trust  # the compensator forgotten: mean e^(s^2/2)
    uneven = weights_report(3 * z - 4.5)
    assert not uneven.trust


@pytest.mark.parametrize("drift", ["input", "both"])
def test_weights_of_bridges(drift, generator):
    """Judged within a row: what a pair of ends adds to all its bridges changes nothing."""
    x, y = torch.randn(40, 3, generator=generator), torch.randn(40, 1, generator=generator)
    settings = {"target_space": "real", "sampling": "path", "n_bridges": 4, "same_partner": True}
    paths = sample_paths(x, y, sigma=0.5, sigma_y=0.5, generator=generator, **settings)
    model = nn.Linear(3, 1)
    logs = log_weights(model, nn.MSELoss(), paths, xi=0.1, drift=drift).detach().double()
    report = weights_report(logs)
    each = 1 / logs.softmax(1).square().sum(1)
    assert math.isclose(report.effective, float(each.sum()), rel_tol=1e-6)
    assert math.isclose(report.row_effective_share, float(each.min()) / 4, rel_tol=1e-6)
    assert math.isclose(report.largest_share, float(logs.softmax(1).max()), rel_tol=1e-6)
    assert report.trust
    assert report.mean_weight is None
    json.dumps(report.to_dict(), allow_nan=False)
    pairs = 20 * torch.randn(40, 1, generator=generator, dtype=torch.float64)
    shifted = weights_report(logs + pairs)
    assert math.isclose(shifted.effective, report.effective, rel_tol=1e-9)
    assert shifted.trust
    uneven = weights_report(log_weights(model, nn.MSELoss(), paths, xi=300.0, drift=drift))
    assert not uneven.trust
