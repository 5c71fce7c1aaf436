"""Metrics against hand-worked cases and scikit-learn."""

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import nn

from elliptica.lab.data.splits import Split
from elliptica.lab.experiments.metrics import gaussian_noise, group_shares, measure, score_classes, score_of
from elliptica.lab.experiments.records import Scores

CPU = torch.device("cpu")


def test_averages_over_groups_by_hand():
    """Group 0: 2 of 3 right; group 1: 1 of 2; group 3: 0 of 1; group 2 has no rows here."""
    guess = torch.tensor([0, 0, 1, 1, 0, 0])
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    group = torch.tensor([0, 0, 0, 1, 1, 3])
    train = Split(
        torch.zeros(10, 1), torch.zeros(10, dtype=torch.int64), torch.tensor([0] * 6 + [1] * 2 + [2, 3])
    )
    shares = group_shares(train)
    assert shares == {"0": 0.6, "1": 0.2, "2": 0.1, "3": 0.1}
    split = Split(torch.eye(2)[guess], y, group)
    found = measure(nn.Identity(), split, "accuracy", CPU, shares)
    assert found["average"] == pytest.approx(3 / 6)
    assert found["weighted"] == pytest.approx((0.6 * 2 / 3 + 0.2 * 0.5 + 0) / 0.9)
    assert found["worst"] == 0
    assert found["balanced"] == pytest.approx(balanced_accuracy_score(y, guess))
    assert score_of(found, "accuracy", "weighted") == found["weighted"]
    assert score_of(found, "accuracy", "last") == found["average"]
    assert score_of(found, "error", "worst") == -found["worst"]
    with pytest.raises(ValueError, match="top5"):  # never by another column
        score_of(found, "accuracy", "top5")
    assert Scores.model_validate(found).weighted == found["weighted"]


@pytest.mark.parametrize("classes", [2, 5])
def test_auroc_against_scikit_learn(classes):
    generator = torch.Generator().manual_seed(classes)
    p = torch.randn(300, classes, generator=generator, dtype=torch.float64).softmax(1)
    y = torch.multinomial(p, 1, generator=generator)[:, 0]
    ours = score_classes(p, y)["auroc"]
    if classes == 2:
        assert ours == pytest.approx(roc_auc_score(y, p[:, 1]))
    else:
        assert ours == pytest.approx(roc_auc_score(y, p, multi_class="ovr", average="macro"))
    assert score_classes(p, torch.zeros(300, dtype=torch.int64))["auroc"] is None


def test_calibration_error_against_a_loop():
    generator = torch.Generator().manual_seed(0)
    p = (2 * torch.randn(500, 3, generator=generator, dtype=torch.float64)).softmax(1)
    y = torch.randint(3, (500,), generator=generator)
    confidence, guess = p.max(1).values.numpy(), p.argmax(1).numpy()
    expected = 0.0
    edges = np.linspace(0, 1, 16)
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            gap = abs((guess == y.numpy())[inside].mean() - confidence[inside].mean())
            expected += inside.mean() * gap
    assert score_classes(p, y)["calibration"] == pytest.approx(expected, abs=1e-12)
    sure = torch.eye(3, dtype=torch.float64)[y]
    assert score_classes(sure, y)["calibration"] == 0


def test_uncertainty_is_the_share_of_the_largest_entropy():
    p = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.9, 0.1]], dtype=torch.float64)
    found = score_classes(p, torch.tensor([0, 1, 1]))["uncertainty"]
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / math.log(2)
    assert found == {"0": pytest.approx(1), "1": pytest.approx(entropy / 2)}


@pytest.mark.statistical
def test_noise_at_test_time(generator):
    split = Split(torch.zeros(20000, 1), torch.zeros(20000, 1))
    noise = gaussian_noise(0.5, generator)
    found = measure(nn.Identity(), split, "rmse", CPU, noise=noise)
    assert found["average"] == pytest.approx(0.5, rel=0.03)
    assert gaussian_noise(0.0, torch.Generator()) is None
