"""What the study of controls measures, on rows whose errors are known."""

import math

import pytest
import torch

import regression_controls as study
from elliptica.lab.data.splits import Dataset, Split


def data(test_y, group):
    train = Split(torch.zeros(3, 2), torch.tensor([[10.0], [20.0], [30.0]]))
    test = Split(torch.zeros(len(group), 2), torch.tensor(test_y)[:, None], torch.tensor(group))
    return Dataset("toy", train, train, test, task="regression")


def test_clipping_and_widening():
    """Targets at 10 and 30; predictions leave the range by 3 and 4, of a width of 20."""
    found = study.measure(torch.tensor([7.0, 34.0], dtype=torch.float64), data([10.0, 30.0], [1, 2]))
    assert found["plain"] == {"average": pytest.approx(math.sqrt(12.5), rel=1e-5), "worst": 4.0, "group": 2}
    assert found["clipped 0"]["average"] == found["clipped 0"]["worst"] == 0
    assert found["clipped 0.05"]["worst"] == 1  # the range is 9 to 31
    assert found["clipped 0.1"]["worst"] == 2
    assert found["clipped 0.25"] == found["plain"]
    assert found["outside"] == 1


def test_share_of_one_row_is_that_of_the_worst_group():
    predictions = torch.tensor([11.0, 13.0, 20.0, 21.0], dtype=torch.float64)
    found = study.measure(predictions, data([10.0, 10.0, 20.0, 20.0], [5, 5, 7, 7]))
    assert found["plain"]["group"] == 5
    assert found["largest_row"] == 0.9
    assert found["outside"] == 0
    assert found["clipped 0"] == found["plain"]
