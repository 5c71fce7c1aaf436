"""One declaration of the settings serves every entry point."""

import inspect
from dataclasses import fields

import pytest
import torch
from benchmarks.trace_step import traced_steps
from torch import nn

from elliptica import BridgeMix, Elliptic, EllipticWarning, elliptic_loss, sample_paths, switch_off
from elliptica.core.settings import BridgeSettings, Settings


def names(kind):
    return [field.name for field in fields(kind)]


def test_constructors_show_the_declared_settings():
    shown = list(inspect.signature(Elliptic).parameters)
    assert shown == ["model", "loss_fn", *names(Settings)]
    assert list(inspect.signature(BridgeMix).parameters) == names(BridgeSettings)
    assert set(names(BridgeSettings)) < set(names(Settings))


def test_every_setting_is_explained_at_the_objective():
    for name in names(Settings):
        assert f"        {name}: " in Elliptic.__doc__, name


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "call",
    [
        lambda **s: Elliptic(nn.Linear(2, 1), nn.MSELoss(), **s),
        lambda **s: elliptic_loss(nn.Linear(2, 1), nn.MSELoss(), torch.randn(4, 2), torch.randn(4, 1), **s),
        lambda **s: sample_paths(torch.randn(4, 2), torch.randn(4, 1), target_space="real", **s),
        lambda **s: BridgeMix(num_classes=3, **s),
    ],
    ids=["Elliptic", "elliptic_loss", "sample_paths", "BridgeMix"],
)
def test_a_misspelt_setting_names_the_nearest(call):
    with pytest.raises(TypeError, match=r"no setting 'sigmaa'\. Did you mean 'sigma'"):
        call(sigmaa=0.1)


@pytest.mark.bad_input
def test_settings_without_a_name_are_refused():
    with pytest.raises(TypeError, match=r"passed by name, but got 'simplex'"):
        BridgeMix("simplex")


def test_arguments_may_be_given_by_name():
    model = nn.Linear(2, 1)
    assert Elliptic(model=model, loss_fn=nn.MSELoss(), sigma=0.2).settings.sigma == 0.2


def test_settings_can_be_read_but_not_assigned():
    objective = Elliptic(nn.Linear(2, 1), nn.MSELoss(), weighting="gradient_norm", xi=5.0)
    assert (objective.xi, objective.weighting) == (5.0, "gradient_norm")
    with pytest.raises(AttributeError, match="xi is fixed when the objective is made"):
        objective.xi = 0.0


@pytest.mark.parametrize(
    "make", [BridgeMix, lambda **s: Elliptic(nn.Linear(2, 3), nn.CrossEntropyLoss(), **s)]
)
def test_warnings_name_the_line_of_the_caller(make):
    with pytest.warns(EllipticWarning) as caught:
        make(num_classes=3, sigma=2.0, sigma_y=2.0)
    assert [warning.filename for warning in caught] == [__file__]


def test_bridgemix_compares_by_identity():
    sigma = torch.ones(2)
    assert BridgeMix(num_classes=3, sigma=sigma) != BridgeMix(num_classes=3, sigma=sigma.clone())


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"num_classes": 3, "sigma": 0.3, "sigma_y": 0.0}, "num_classes=3, sigma=0.3, sigma_y=0.0"),
        ({"target_space": "real", "sigma": "auto"}, "target_space='real', sigma='auto', sigma_y=0.0"),
        (
            {"num_classes": 3, "sigma": torch.tensor([0.1, 0.25]), "sampling": "path", "n_times": 5},
            "num_classes=3, sampling='path', sigma=0.1 to 0.25 per feature, sigma_y=0.0",
        ),
        (
            {"num_classes": 3, "sigma": "green", "bridged": ("a",), "validate": False},
            "num_classes=3, sigma=Green(scale=1.0, dim=None), sigma_y=0.0, bridged=('a',), validate=False",
        ),
    ],
)
def test_noise_and_what_differs_from_the_defaults_is_shown(settings, shown):
    assert repr(BridgeMix(**settings)) == f"BridgeMix({shown})"
    objective = Elliptic(nn.Linear(2, 3), nn.MSELoss(), **settings)
    assert objective.extra_repr() == shown


def test_functions_and_networks_among_the_settings_are_shown_by_name():
    drift = nn.Bilinear(2, 3, 2)
    settings = {"sampling": "path", "n_times": 20, "weighting": "girsanov", "sigma": 0.1, "sigma_y": 0.1}
    shown = "sampling='path', n_times=20, sigma=0.1, sigma_y=0.1, weighting='girsanov'"
    objective = Elliptic(nn.Linear(2, 3), nn.MSELoss(), **settings, drift=drift)
    assert objective.extra_repr() == shown
    assert "(drift): Bilinear(" in repr(objective)

    fixed = {**settings, "weighting": "multiplicative", "n_bridges": 2, "drift": drift}
    assert "drift=Bilinear (fixed)" in repr(Elliptic(nn.Linear(2, 3), nn.MSELoss(), **fixed))

    def mine(x, y):
        return x

    assert (
        Elliptic(nn.Linear(2, 3), nn.MSELoss(), **settings, drift=mine).extra_repr() == f"{shown}, drift=mine"
    )
    assert "schedule=on_before" in repr(Elliptic(nn.Linear(2, 3), nn.MSELoss(), schedule=switch_off(3)))


@pytest.mark.parametrize("sampling", ["marginal", "path"])
def test_a_reader_follows_a_step_through_few_files(sampling):
    """At most eight files and thirty-six functions, counted by ``python -m benchmarks.trace_step``."""
    codes = traced_steps()[sampling]
    assert len({code.co_filename for code in codes}) <= 8
    assert len(codes) <= 36
