"""Scores of class probabilities against scikit-learn and brute force."""

import itertools
import statistics

import pytest
import torch
from sklearn.metrics import brier_score_loss

from elliptica.report.scores import (
    brier_score,
    calibration_error,
    risk_coverage_area,
    score_classes,
)


def probabilities(classes, rows=200):
    generator = torch.Generator().manual_seed(classes)
    p = (2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)).softmax(1)
    return p, torch.randint(classes, (rows,), generator=generator)


def test_brier_score_against_scikit_learn():
    p, y = probabilities(2)
    assert brier_score(p, y) == pytest.approx(2 * brier_score_loss(y, p[:, 1]))  # theirs counts one class
    p, y = probabilities(4)
    assert brier_score(p, y) == pytest.approx(float((p - torch.eye(4)[y]).square().sum(1).mean()))
    sure = torch.eye(4, dtype=torch.float64)
    assert brier_score(sure[y], y) == 0
    assert brier_score(sure[(y + 1) % 4], y) == 2


def test_calibration_error_is_that_of_the_other_scores():
    p, y = probabilities(3)
    assert calibration_error(p, y) == score_classes(p, y)["calibration"] > 0


def area_of_order(wrong, order):
    return statistics.mean(sum(wrong[i] for i in order[:k]) / k for k in range(1, len(order) + 1))


def test_risk_coverage_area_against_all_orders():
    confidence, wrong = [0.9, 0.5, 0.5, 0.9, 0.5, 0.2], [1, 0, 1, 0, 0, 1]
    orders = [
        order
        for order in itertools.permutations(range(6))
        if all(confidence[i] >= confidence[j] for i, j in itertools.pairwise(order))
    ]
    assert len(orders) == 12
    expected = statistics.mean(area_of_order(wrong, order) for order in orders)
    assert risk_coverage_area(torch.tensor(confidence), torch.tensor(wrong)) == pytest.approx(expected)


def test_risk_coverage_area_at_its_ends():
    wrong = torch.tensor([True, False, False, False])
    best = risk_coverage_area(torch.tensor([0.1, 0.4, 0.3, 0.2]), wrong)
    worst = risk_coverage_area(torch.tensor([0.5, 0.4, 0.3, 0.2]), wrong)
    assert best == pytest.approx(0.25 / 4)
    assert worst == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert risk_coverage_area(torch.full((4,), 0.3), wrong) == pytest.approx(0.25)
    assert risk_coverage_area(torch.rand(4), torch.zeros(4)) == 0
