"""Schedules, by themselves and through the objective."""

import math
import pickle

import pytest
import torch
from torch import nn

from elliptica import Elliptic, ramp, switch_off


@pytest.mark.parametrize("after", [0, 1, 80])
def test_switch_off(after):
    schedule = switch_off(after)
    assert [schedule(epoch) for epoch in range(after)] == [1.0] * after
    assert schedule(after) is None
    assert schedule(after + 1000) is None


def test_ramp():
    schedule = ramp(4)
    assert [schedule(epoch) for epoch in (0, 1, 2, 3, 4, 5, 100)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    down = ramp(epochs=2, start=3.0, end=1.0)
    assert [down(epoch) for epoch in range(4)] == [3.0, 2.0, 1.0, 1.0]
    assert [ramp(1)(epoch) for epoch in range(3)] == [0.0, 1.0, 1.0]


@pytest.mark.usefixtures("own_checks")
def test_errors():
    with pytest.raises(ValueError, match="after must be at least 0, but got -1"):
        switch_off(-1)
    for settings, message in (
        ({"epochs": 0}, "epochs must be at least 1, but got 0"),
        ({"epochs": 2, "start": -1.0}, "start must be finite and at least 0, but got -1.0"),
        ({"epochs": 2, "end": math.nan}, "end must be finite and at least 0, but got nan"),
    ):
        with pytest.raises(ValueError, match=message):
            ramp(**settings)
    for make in (
        lambda: switch_off("80"),
        lambda: switch_off(2.5),
        lambda: ramp(math.nan),
        lambda: ramp(True),
    ):
        with pytest.raises(TypeError, match="must be an integer"):
            make()
    with pytest.raises(TypeError, match="start must be a number, but got"):
        ramp(2, start=torch.zeros(3))


@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize("epoch", ["1", None, 1.5, True])
def test_epochs_are_counted(epoch):
    with pytest.raises(TypeError, match="epoch must be an integer"):
        objective(ramp(2)).set_epoch(epoch)
    with pytest.raises(ValueError, match="epoch must be at least 0"):
        objective(ramp(2)).set_epoch(-1)


def objective(schedule, **settings):
    settings = {"sigma": 0.5, "sigma_y": 1.0, "sampling": "path", "n_times": 3} | settings
    return Elliptic(nn.Linear(3, 2).double(), nn.MSELoss(), schedule=schedule, **settings)


@pytest.fixture
def batch(generator):
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    return x, torch.randn(6, 2, generator=generator, dtype=torch.float64)


def paths(objective, epoch, batch):
    objective.set_epoch(epoch)
    return objective.sample(*batch, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("sigma", [0.5, "auto", "green", torch.tensor([0.1, 0.2, 0.3])])
def test_the_factor_multiplies_both_noises(sigma, batch):
    scheduled = objective(ramp(4, start=0.5, end=2.0), sigma=sigma)
    start, half, whole = (paths(scheduled, epoch, batch) for epoch in (0, 1, 4))
    chord = paths(objective(ramp(1), sigma=sigma), 0, batch)
    for field in ("x", "y"):
        noise = [getattr(p, field) - getattr(chord, field) for p in (start, half, whole)]
        assert torch.allclose(noise[2], 4 * noise[0], rtol=1e-5, atol=1e-7)
        assert torch.allclose(noise[1], 0.875 / 0.5 * noise[0], rtol=1e-5, atol=1e-7)
        assert noise[0].abs().max() > 1e-3
    assert torch.as_tensor(whole.variance_y) == pytest.approx(4.0)


def test_factor_zero_is_the_chord_and_none_is_ordinary_training(batch):
    x, y = batch
    zero = paths(objective(ramp(4)), 0, batch)
    assert torch.allclose(zero.x[:, :, 1], (zero.x[:, :, 0] + zero.x[:, :, 2]) / 2)
    off = objective(switch_off(2))
    off.set_epoch(2)
    assert torch.allclose(off(x, y), nn.MSELoss()(off.model(x), y))
    off.set_epoch(1)
    assert not torch.allclose(off(x, y), nn.MSELoss()(off.model(x), y))


def test_own_functions_are_schedules(batch):
    warm_up = objective(lambda epoch: None if epoch < 2 else 1.0)
    warm_up.set_epoch(1)
    assert torch.allclose(warm_up(*batch), nn.MSELoss()(warm_up.model(batch[0]), batch[1]))


def test_the_epoch_must_be_told(batch):
    with pytest.raises(RuntimeError, match=r"has a schedule, but the epoch was not set.*set_epoch\(epoch\)"):
        objective(ramp(2))(*batch)
    objective(ramp(2)).eval()(*batch)  # evaluation needs none
    objective(None)(*batch)


@pytest.mark.parametrize("schedule", [switch_off(after=2), ramp(epochs=4, start=0.5)])
def test_schedules_can_be_pickled(schedule):
    again = pickle.loads(pickle.dumps(schedule))
    assert [again(epoch) for epoch in range(6)] == [schedule(epoch) for epoch in range(6)]
