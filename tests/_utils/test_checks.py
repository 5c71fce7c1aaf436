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
        ("nowhere", "device='nowhere' cannot be used on this machine .* Use another."),
        (None, "device=None cannot be used on this machine"),
        ([], "cannot be used on this machine"),
        ("cuda:99", "cannot be used on this machine"),
        ("meta", "keeps shapes only, .* Use another."),
    ],
)
def test_no_device_of_this_machine(device, message):
    with pytest.raises(ValueError, match=message):
        checks.device(device, "Use another.")
