"""Warnings of an objective: when they come, how often, and that they name the caller's own line."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

from elliptica import BridgeMix, Elliptic, EllipticWarning, elliptic_loss
from elliptica.core.alerts import warn_if_negative


def data(generator, scale=1.0, n=40):
    return scale * torch.randn(n, 3, generator=generator), torch.randn(n, 1, generator=generator)


def ours(caught):
    return [warning for warning in caught if issubclass(warning.category, EllipticWarning)]


def losses(objective, x, y):
    """Several steps: a warning comes once, and names a line of this file."""
    return [objective(x, y) for _ in range(3)]


def objective_for(**settings):
    return Elliptic(nn.Linear(3, 1), nn.MSELoss(), **settings)


# --------------------------------------------------------------------------- mode of model and objective


@pytest.mark.parametrize("objective_trains", [True, False])
def test_modes_that_differ_are_announced_once(objective_trains, generator):
    objective = objective_for().train(objective_trains)
    objective.model.train(not objective_trains)
    x, y = data(generator)
    words = (
        f"objective.training is {objective_trains} but model.training is {not objective_trains}.*"
        f"bridges are {'on' if objective_trains else 'off'}"
    )
    with pytest.warns(EllipticWarning, match=words) as caught:
        losses(objective, x, y)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("trains", [True, False])
def test_modes_that_agree_are_not(trains, generator):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        objective_for().train(trains)(*data(generator))


# ------------------------------------------------------------------------------------- scale of the inputs


def mix_for(**settings):
    return BridgeMix(target_space="real", **settings)


@pytest.mark.parametrize("make", [objective_for, mix_for])
@pytest.mark.parametrize(
    ("scale", "settings", "words"),
    [
        (200.0, {"sigma": 0.05}, r"vary by about [12]\d\d .*sigma=0.05 adds.*hardly any.*sigma=[12]\d\."),
        (0.01, {"sigma": 0.05}, r"vary by about 0\.0\d+ .*more than the data vary.*\"auto\" or sigma=0\.0"),
        (
            30.0,
            {"sigma": 0.5, "horizon": 0.01},
            r"sigma=0\.5 adds noise of 0\.05, hardly any.*sigma=[23]\d\.",
        ),
    ],
)
def test_inputs_far_from_the_scale_of_sigma_are_announced_once(make, scale, settings, words, generator):
    objective = make(**settings)
    x, y = data(generator, scale)
    with pytest.warns(EllipticWarning, match=words) as caught:
        losses(objective, x, y)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("make", [objective_for, mix_for])
@pytest.mark.parametrize(
    ("scale", "settings"),
    [
        (1.0, {"sigma": 0.05}),
        (15.0, {"sigma": 0.05}),  # 0.0033 of the deviation
        (0.05, {"sigma": 0.05}),
        (200.0, {"sigma": 0.0}),
        (200.0, {"sigma": "auto"}),
        (200.0, {"sigma": "green"}),
        (200.0, {"sigma": torch.full((3,), 0.05)}),
        (200.0, {"sigma": 5.0, "sigma_y": 0.1, "horizon": 4.0}),
    ],
)
def test_other_scales_are_not(make, scale, settings, generator):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(**settings)(*data(generator, scale))


@pytest.mark.parametrize(("ratio", "warns"), [(0.0019, True), (0.0021, False), (1.95, False), (2.05, True)])
def test_thresholds_of_the_scale(ratio, warns, generator, recwarn):
    """The median deviation of the features that vary: an outlier and a constant column do not count."""
    x, y = data(generator)
    x = (x - x.mean(0)) / x.std(0)
    x = torch.cat([x, torch.full((40, 4), 7.0), 1e6 * x[:, :1]], dim=1)
    Elliptic(nn.Linear(8, 1), nn.MSELoss(), sigma=ratio, sigma_y=0.0)(x, y)
    assert sum("vary by about" in str(warning.message) for warning in ours(recwarn)) == warns


@pytest.mark.parametrize("make", [objective_for, mix_for])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sigma": 0.05}, "one noise level does not suit all. Standardise"),
        ({"sigma": "green"}, "one noise level"),
        ({"sigma": "auto", "pairing": "inverse_distance"}, "distances depend only on the widest"),
        ({"sigma": "auto"}, None),
        ({"sigma": 0.0}, None),
    ],
)
def test_columns_in_different_units_are_announced(make, settings, words, generator, recwarn):
    """Quite different scales: 0.01, 1 and 100; within a factor of 50 they pass."""
    x, y = data(generator)
    make(**settings, sigma_y=0.0)(x * torch.tensor([0.01, 1.0, 100.0]), y)
    found = [str(w.message) for w in ours(recwarn) if "have standard deviations from" in str(w.message)]
    assert len(found) == (words is not None)
    assert words is None or words in found[0]
    recwarn.clear()
    make(**settings, sigma_y=0.0)(x * torch.tensor([1.0, 1.0, 30.0]), y)
    assert not [w for w in ours(recwarn) if "have standard deviations from" in str(w.message)]


@pytest.mark.parametrize("make", [objective_for, mix_for])
def test_targets_far_from_the_scale_of_their_noise_are_announced(make, generator):
    x, y = data(generator)
    with pytest.warns(EllipticWarning, match=r"The targets vary .* sigma_y=0.05 adds noise of 0.05, more"):
        make(sigma=0.05)(x, 0.005 * y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(sigma=0.05, sigma_y=0.0)(x, 0.005 * y)


def test_each_disagreement_of_modes_is_announced(generator):
    """One about validation with bridges must not hide one about training without them."""
    objective, (x, y) = objective_for(sigma=0.05), data(generator)
    objective.model.eval()
    with pytest.warns(EllipticWarning, match="bridges are on"):
        objective(x, y)
    objective.eval()
    objective.model.train()
    with pytest.warns(EllipticWarning, match="bridges are off"):
        objective(x, y)


def test_the_scale_is_judged_once_there_are_rows_that_differ(generator):
    objective = objective_for(sigma=0.05)
    x, y = data(generator, 500.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        objective(x[:1], y[:1])
        objective(x[:1].expand(4, 3), y[:4])
    with pytest.warns(EllipticWarning, match="vary by about"):
        objective(x, y)


def test_the_scale_is_not_judged_where_inputs_are_not_bridged(generator):
    """Not in eval mode, not of carried inputs, and not where bridges are in a hidden layer."""
    x, y = data(generator, 500.0)
    deep = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    carried = Elliptic(nn.Bilinear(3, 3, 1), nn.MSELoss(), bridged=(0,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        objective_for().eval()(x, y)
        Elliptic(deep, nn.MSELoss(), at="0")(x, y)
        carried((x / 500, x), y)
        elliptic_loss(deep, nn.MSELoss(), x, y)  # a function cannot say it once
    with pytest.warns(EllipticWarning, match=r"inputs x\[1\] vary"):
        Elliptic(nn.Bilinear(3, 3, 1), nn.MSELoss(), bridged=(0, 1))((x / 500, x), y)


@pytest.mark.parametrize("make", [objective_for, mix_for])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_do_not_repeat_it(make, copied, generator):
    objective = make(sigma=0.05)
    x, y = data(generator, 500.0)
    with pytest.warns(EllipticWarning, match="vary by about"):
        objective(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied(objective)(x, y)


# ------------------------------------------------------------------------------------- the caller's line


def test_a_scale_measured_by_each_process_names_the_line(monkeypatch):
    for name, value in {"is_initialized": True, "get_world_size": 2, "get_rank": 0}.items():
        monkeypatch.setattr(f"torch.distributed.{name}", lambda value=value: value)
    with pytest.warns(EllipticWarning, match="each of the 2 processes") as caught:
        losses(objective_for(sigma="auto"), torch.randn(8, 3), torch.randn(8, 1))
    assert [warning.filename for warning in caught] == [__file__]


# ------------------------------------------------------------------------------------ smoothing of labels


@pytest.mark.parametrize(
    "make", [BridgeMix, lambda **s: Elliptic(nn.Linear(3, 1), nn.CrossEntropyLoss(), **s)]
)
@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"num_classes": 50, "sigma_y": 0.0499}, None),  # 0.4 * sigma_y * classes is .998
        ({"num_classes": 50, "sigma_y": 0.0501}, "50%"),
        ({"num_classes": 25, "sigma_y": 0.05, "horizon": 3.9}, None),
        ({"num_classes": 25, "sigma_y": 0.05, "horizon": 4.1}, "50%"),
        ({"num_classes": 100, "sigma_y": 0.1}, "80%"),
        ({"num_classes": 100, "sigma_y": 0.1, "simplex": "euclidean"}, None),
    ],
)
def test_smoothing_is_announced_from_half_of_the_mass_on(make, settings, share, recwarn):
    make(sigma=0.05, **settings)
    messages = [str(warning.message) for warning in ours(recwarn)]
    assert len(messages) == (share is not None)
    assert all(f"about {share} of the label's mass" in message for message in messages)


def test_the_sign_of_an_objective_is_read_without_its_graph():
    """torch warns if a number is made from a tensor that still has one."""
    loss = torch.ones(1, requires_grad=True).sum()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not warn_if_negative(loss, "girsanov", 1.0)
    finally:
        torch.set_warn_always(False)
    with pytest.warns(EllipticWarning, match="became negative"):
        assert warn_if_negative(-loss, "girsanov", 1.0)
