"""Scores of class probabilities against scikit-learn and brute force."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from elliptica.lab.experiments.metrics import calibration_error, score_classes


def test_scores_against_scikit_learn_and_brute_force():
    generator = torch.Generator().manual_seed(3)
    p = (2 * torch.randn(200, 3, generator=generator, dtype=torch.float64)).softmax(1)
    y = torch.randint(3, (200,), generator=generator)
    scores = score_classes(p, y)
    expected = sum(roc_auc_score(y == k, p[:, k]) for k in range(3)) / 3
    assert scores["auroc"] == pytest.approx(expected)
    confidence, right = p.max(1).values, (p.argmax(1) == y).double()
    gap = 0.0
    for k in range(15):
        use = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        gap += abs(float((confidence - right)[use].sum())) / 200
    assert scores["calibration"] == calibration_error(p, y) == pytest.approx(gap)
    assert sum(scores["reliability"]["rows"]) == 200
    assert sum(scores["reliability"]["right"]) == int(right.sum())
    entropy = torch.distributions.Categorical(p).entropy() / torch.log(torch.tensor(3.0))
    assert scores["uncertainty"]["1"] == pytest.approx(float(entropy[y == 1].mean()))
    assert score_classes(p[y == 1], y[y == 1])["auroc"] is None
