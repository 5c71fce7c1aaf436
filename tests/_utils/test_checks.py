"""Checks of arguments that several packages share."""

import pytest
import torch

from elliptica._utils import checks


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")])
def test_a_device_of_this_machine(device):
    assert checks.device(device).type == "cpu"


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("nowhere", "device"),
        (None, "device"),
        ([], "device"),
        ("cuda:99", "device"),
        ("meta", "device"),
    ],
)
def test_no_device_of_this_machine(device, message):
    with pytest.raises(ValueError, match=message):
        checks.device(device, "Use another.")
