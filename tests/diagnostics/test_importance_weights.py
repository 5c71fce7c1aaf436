"""Weights of a change of measure: their effective number, and when to trust them."""

import json
import math

import pytest
import torch
from torch import nn

from elliptica import log_weights, sample_paths
from elliptica.diagnostics import weights_report


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
@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (torch.tensor([0.0, torch.nan]), "NaN"),
        (torch.full((3,), -torch.inf), "All weights are zero"),
        (torch.zeros(1), "at least two"),
        (torch.zeros(2, 2, 2), "shape"),
    ],
)
def test_weights_that_say_nothing_are_refused(bad, match):
    with pytest.raises(ValueError, match=match):
        weights_report(bad)
