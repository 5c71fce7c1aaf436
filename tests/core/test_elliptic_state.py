"""What the objective keeps between calls: mode, epoch, measured scale; and how it is copied and saved."""

import copy
import pickle
import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from elliptica import Elliptic, EllipticWarning, auto_sigma, ramp, switch_off
from laws import assert_mean

ignore_warnings = pytest.mark.filterwarnings("ignore::elliptica.core.types.EllipticWarning")
SECOND_ORDER = ("gradient_norm", "girsanov", "released")


def normal(*shape, generator):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def data(generator, n=6):
    return normal(n, 3, generator=generator), torch.randint(4, (n,), generator=generator)


def network(*layers):
    return nn.Sequential(nn.Linear(3, 5), *layers, nn.Tanh(), nn.Linear(5, 4)).double()


def test_eval_mode_is_the_ordinary_loss_and_draws_nothing(generator):
    model, (x, y) = network(nn.Dropout(0.5)), data(generator)
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=4, sigma=0.5).eval()
    before = generator.get_state()
    loss = objective(x, y, generator=generator)
    assert torch.allclose(loss, F.cross_entropy(model(x), y), rtol=1e-14)
    assert torch.equal(generator.get_state(), before)
    assert not torch.equal(objective.train()(x, y, generator=generator), loss)


def test_schedule_needs_the_epoch(generator):
    objective = Elliptic(network(), nn.CrossEntropyLoss(), num_classes=4, schedule=switch_off(2))
    with pytest.raises(RuntimeError, match="set_epoch"):
        objective(*data(generator))
    objective.eval()(*data(generator))  # no epoch needed there


def test_switching_off_leaves_the_ordinary_loss(generator):
    model, (x, y) = network(), data(generator)
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=4, sigma=0.5, schedule=switch_off(2))
    clean = F.cross_entropy(model(x), y)
    for epoch, is_clean in ((0, False), (1, False), (2, True), (9, True), (1, False)):
        objective.set_epoch(epoch)
        same = torch.allclose(objective(x, y, generator=generator), clean, rtol=1e-12)
        assert same == is_clean


@pytest.mark.parametrize("sigma", [0.6, torch.tensor([0.2, 0.4, 0.6]).double(), "auto", "green"])
@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_ramp_multiplies_the_noise(sigma, sampling, generator):
    """At half the strength the same noise moves points half as far; targets too."""
    x, y = normal(6, 3, generator=generator), normal(6, 4, generator=generator)
    settings = {"sampling": sampling, "sigma": sigma, "sigma_y": 0.3, "n_bridges": 2}
    objective = Elliptic(network(), nn.MSELoss(), **settings, schedule=ramp(epochs=2))
    points = {}
    state = generator.get_state()
    for epoch in (0, 1, 2):
        generator.set_state(state)
        objective.set_epoch(epoch)
        points[epoch] = objective.sample(x, y, generator=generator)
    for name in ("x", "y"):
        chord, half, full = (getattr(points[k], name) for k in (0, 1, 2))
        assert not torch.allclose(full, chord)
        torch.testing.assert_close(half - chord, 0.5 * (full - chord), rtol=1e-6, atol=1e-9)
    ratio = torch.as_tensor(points[1].variance["x"]) / torch.as_tensor(points[2].variance["x"])
    torch.testing.assert_close(ratio, torch.full_like(ratio, 0.25), check_dtype=False)


def test_auto_sigma_is_measured_once_and_kept(generator):
    model, (x, y) = network(), data(generator)
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=4, sigma="auto")
    assert "sigma='auto'," in repr(objective)
    objective(x, y, generator=generator)
    measured = objective.auto_sigma.clone()
    torch.testing.assert_close(measured, 0.1 * x.std(0))
    assert torch.equal(measured, auto_sigma(x))
    objective(100 * x, y, generator=generator)
    assert torch.equal(objective.auto_sigma, measured)
    low, high = measured.min(), measured.max()
    assert f"sigma='auto' ({low:.3g} to {high:.3g} per feature)" in repr(objective)


def test_auto_sigma_survives_a_state_dict(generator):
    x, y = data(generator)

    def fresh(sigma="auto"):
        return Elliptic(network(), nn.CrossEntropyLoss(), num_classes=4, sigma=sigma)

    trained, empty = fresh(), fresh().state_dict()
    trained(x, y)
    state = trained.state_dict()
    assert set(state) == {"auto_sigma", *(f"model.{k}" for k in trained.model.state_dict())}
    loaded = fresh()
    loaded.load_state_dict(state)
    assert torch.equal(loaded.auto_sigma, trained.auto_sigma)
    twin = generator.clone_state()
    assert torch.equal(
        loaded(10 * x, y, generator=generator), trained(10 * x, y, generator=twin)
    )  # used, not measured again
    loaded.auto_sigma.zero_()
    assert trained.auto_sigma.min() > 0  # a copy
    loaded.load_state_dict(empty)  # from before the first batch
    assert loaded.auto_sigma is None
    number = fresh(0.3)
    number.load_state_dict(state)  # the setting wins over what was measured
    assert "sigma=0.3" in repr(number)
    wrapped = nn.ModuleDict({"objective": fresh()})
    wrapped.load_state_dict({f"objective.{k}": v for k, v in state.items()})
    assert torch.equal(wrapped["objective"].auto_sigma, trained.auto_sigma)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
@pytest.mark.parametrize(
    "settings", [{}, {"sigma": "auto"}, {"sigma": "green", "weighting": "gradient_norm"}]
)
def test_copies_behave_alike_and_share_nothing(copied, settings, generator):
    x, y = data(generator)
    objective = Elliptic(network(), nn.CrossEntropyLoss(), num_classes=4, **settings)
    objective(x, y, generator=generator)
    twin, other = generator.clone_state(), copied(objective)
    assert torch.equal(other(2 * x, y, generator=generator), objective(2 * x, y, generator=twin))
    other(x, y).backward()
    assert all(p.grad is None for p in objective.parameters())


def test_the_users_loss_is_left_alone_and_registered_once():
    loss_fn = nn.CrossEntropyLoss(weight=torch.ones(4).double())
    objective = Elliptic(network(), loss_fn)
    assert loss_fn.reduction == "mean"
    assert sum(name.endswith("weight") for name in objective.state_dict() if "loss" in name) == 1


@pytest.mark.statistical
@pytest.mark.parametrize("rejected", [False, True])
@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_antithetic_bridges_are_unbiased(sampling, rejected, generator):
    """Same mean as independent bridges, for a loss that is neither even nor odd in the noise.

    Teeth: antithetic noise with 50 % too much deviation is more than 12 standard errors away.
    """
    x, y = normal(200, 2, generator=generator), normal(200, 1, generator=generator)
    model = nn.Sequential(nn.Linear(2, 1), nn.Softplus()).double()
    with torch.no_grad():
        model[0].weight.fill_(2.0)
    partner = torch.randperm(200, generator=generator)
    settings = {"sampling": sampling, "n_bridges": 2, "n_times": 4}
    losses = []
    for antithetic in (False, True):
        sigma = 1.5 if antithetic and rejected else 1.0
        objective = Elliptic(model, nn.MSELoss(), **settings, sigma=sigma, antithetic=antithetic)
        losses.append([objective(x, y, partners=partner, generator=generator).item() for _ in range(150)])
    gap = np.subtract(*losses)
    if rejected:
        with pytest.raises(AssertionError, match="standard errors"):
            assert_mean(gap, 0.0, gap.std(ddof=1))
    else:
        assert_mean(gap, 0.0, gap.std(ddof=1))


@pytest.mark.parametrize("sigma", [0.7, "green"])
@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_antithetic_bridges_mirror_each_other(sampling, sigma, generator):
    """Same times, same partner, and the chord half-way between both."""
    x, y = normal(5, 3, generator=generator), normal(5, 4, generator=generator)
    objective = Elliptic(
        network(), nn.MSELoss(), sampling=sampling, n_bridges=4, sigma=sigma, antithetic=True
    )
    partner = torch.randint(5, (5, 2), generator=generator).repeat(1, 2)
    paths = objective.sample(x, y, partners=partner, generator=generator)
    s = paths.s[..., None]
    chord = (1 - s) * x[:, None, None] + s * x[partner][:, :, None]
    noise = paths.x - chord
    assert torch.equal(paths.s[:, :2], paths.s[:, 2:])
    torch.testing.assert_close(noise[:, :2], -noise[:, 2:])
    assert noise.abs().max() > 0.01
    drawn = objective.sample(x, y, generator=generator)
    if sampling == "path":
        assert torch.equal(drawn.x[:, :2, -1], drawn.x[:, 2:, -1])  # the pair shares a partner drawn too


@ignore_warnings
@pytest.mark.parametrize("weighting", ["none", "gradient_softmax", "multiplicative", *SECOND_ORDER])
def test_values_can_be_had_without_gradients(weighting, generator):
    """In training mode under no_grad: the same number, no graph, no complaint."""
    model, (x, y) = network(), data(generator)
    settings = {"num_classes": 4, "sampling": "path", "n_bridges": 2}
    objective = Elliptic(model, nn.CrossEntropyLoss(), **settings, weighting=weighting)
    paths = objective.sample(x, y, generator=generator)
    with torch.no_grad():
        value = objective(x, y, paths=paths)
    assert not value.requires_grad
    torch.testing.assert_close(value, objective(x, y, paths=paths).detach())


@pytest.mark.parametrize("validate", [True, False])
def test_a_negative_objective_is_announced_once(validate, generator, recwarn):
    """A drift towards the point where all bridges end makes their logarithm large."""
    x, y = torch.zeros(6, 1), torch.zeros(6, 1)
    x[-1] = 10.0
    drift = nn.Bilinear(1, 1, 1)
    for parameter, value in zip(drift.parameters(), (0.0, 1.0), strict=True):
        nn.init.constant_(parameter, value)
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    settings = {"sampling": "path", "n_times": 20, "sigma": 1.0, "weighting": "girsanov", "drift": drift}
    objective = Elliptic(model, nn.L1Loss(), **settings, validate=validate)
    for _ in range(3):  # the logarithm is 10 - 1/2 for five of six bridges, the loss below 2
        assert objective(x, y, partners=torch.full((6,), 5), generator=generator) < -5
    ours = [w for w in recwarn if issubclass(w.category, EllipticWarning)]
    assert len(ours) == (1 if validate else 0)
    assert all("became negative" in str(w.message) and "Lower xi" in str(w.message) for w in ours)
    assert all(w.filename == __file__ for w in ours)


@pytest.mark.parametrize(("n_times", "warns"), [(19, True), (20, False)])
def test_coarse_girsanov_grids_are_announced(n_times, warns, recwarn):
    Elliptic(network(), nn.MSELoss(), sampling="path", weighting="girsanov", n_times=n_times)
    assert any("coarse grid" in str(w.message) for w in recwarn) == warns


def test_class_weights_do_not_announce_anything_twice(recwarn):
    """They give the number of classes away, for which the settings are completed."""
    loss = nn.CrossEntropyLoss(weight=torch.ones(50))
    Elliptic(network(), loss, sampling="path", weighting="girsanov", sigma_y=0.5)
    messages = sorted(str(w.message) for w in recwarn)
    assert len(messages) == 2
    assert "label smoothing" in messages[0]
    assert "coarse grid" in messages[1]
    assert {w.filename for w in recwarn} == {__file__}


def changed(state):
    return {name: value + 1.0 for name, value in state.items()}


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_of_the_bare_model_goes_into_the_model(assign, generator):
    objective = Elliptic(network(nn.BatchNorm1d(5)), nn.CrossEntropyLoss(), num_classes=4, sigma="auto")
    objective(*data(generator))
    kept, state = objective.auto_sigma.clone(), changed(objective.model.state_dict())
    with pytest.warns(EllipticWarning, match=r"loaded into objective\.model") as caught:
        found = objective.load_state_dict(state, assign=assign)
    assert [warning.filename for warning in caught] == [__file__]
    assert (found.missing_keys, found.unexpected_keys) == ([], [])
    for name, value in objective.model.state_dict().items():
        assert torch.equal(value, state[name])
    assert torch.equal(objective.auto_sigma, kept)


def test_a_model_with_a_layer_called_model(generator):
    """Names of the bare model then begin as those of an objective do."""
    model = nn.ModuleDict({"model": nn.Linear(3, 4)})
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=4)
    state = changed(model.state_dict())
    with pytest.warns(EllipticWarning, match=r"loaded into objective\.model"):
        objective.load_state_dict(state)
    assert torch.equal(model["model"].weight, state["model.weight"])
    again = changed(objective.state_dict())
    assert "model.model.weight" in again
    objective.load_state_dict(again)
    assert torch.equal(model["model"].weight, again["model.model.weight"])


def test_part_of_a_state_of_the_model_is_loaded_only_if_asked_for():
    objective = Elliptic(network(), nn.CrossEntropyLoss(), num_classes=4)
    state = changed(objective.model.state_dict())
    before = copy.deepcopy(objective.state_dict())
    del state["0.weight"]
    state["head.weight"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match=r"1 are missing and 1 do not.*objective\.model\.load_state_dict"):
        objective.load_state_dict(state)
    assert all(torch.equal(value, before[name]) for name, value in objective.state_dict().items())
    with pytest.warns(EllipticWarning, match=r"loaded into objective\.model"):
        found = objective.load_state_dict(state, strict=False)
    assert (found.missing_keys, found.unexpected_keys) == (["0.weight"], ["head.weight"])
    assert torch.equal(objective.model[0].bias, state["0.bias"])
    assert torch.equal(objective.model[0].weight, before["model.0.weight"])


@pytest.mark.bad_input
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("sigma", [0.1, "auto"])
@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda name: f"module.{name}", "'module.model.0.bias' where the objective has 'model.0.bias'"),
        (lambda name: f"_orig_mod.{name}", "'_orig_mod.model.0.bias' where"),
        (lambda name: name.replace("model.", "model._orig_mod."), "'model._orig_mod.0.bias' where"),
        (lambda name: name.replace("model.", "module."), "'module.0.bias' where the objective has '0.bias'"),
    ],
)
def test_names_that_a_wrapper_changed_are_refused(change, shown, sigma, strict, generator):
    """With strict=False torch would load nothing, silently."""
    objective = Elliptic(network(), nn.CrossEntropyLoss(), num_classes=4, sigma=sigma)
    objective(*data(generator))
    before = copy.deepcopy(objective.state_dict())
    state = {change(name): value + 1.0 for name, value in before.items() if name != "auto_sigma"}
    with pytest.raises(RuntimeError, match=f"{re.escape(shown)}.*Remove it.*name.replace"):
        objective.load_state_dict(state, strict=strict)
    assert all(torch.equal(value, before[name]) for name, value in objective.state_dict().items())


@pytest.mark.bad_input
def test_a_state_from_before_the_model_was_wrapped_is_refused():
    objective = Elliptic(network(), nn.CrossEntropyLoss(), num_classes=4)
    state = objective.state_dict()
    wrapped = nn.Module()
    wrapped._orig_mod = objective.model  # as torch.compile names it
    with pytest.raises(RuntimeError, match=r"objective\.model\._orig_mod\.load_state_dict"):
        Elliptic(wrapped, nn.CrossEntropyLoss(), num_classes=4).load_state_dict(state)


DRIFTING = {"sampling": "path", "n_times": 20, "n_bridges": 2, "sigma": 0.5, "target_space": "real"}


@pytest.mark.bad_input
def test_a_drift_network_too_many_or_too_few_in_a_state_is_named():
    trained, fixed = (
        Elliptic(nn.Linear(3, 2), nn.MSELoss(), **DRIFTING, weighting=w, drift=nn.Bilinear(3, 2, 3))
        for w in ("girsanov", "multiplicative")
    )
    with pytest.raises(RuntimeError, match=r"2 names.*strict=False.*drift\.load_state_dict"):
        fixed.load_state_dict(trained.state_dict())
    assert fixed.load_state_dict(trained.state_dict(), strict=False).unexpected_keys == [
        "drift.weight",
        "drift.bias",
    ]
    torch.testing.assert_close(fixed.model.weight, trained.model.weight)
    kept = trained.drift.weight.clone()
    with pytest.raises(RuntimeError, match=r"the state holds none.*strict=False"):
        trained.load_state_dict(fixed.state_dict())
    assert trained.load_state_dict(fixed.state_dict(), strict=False).missing_keys == [
        "drift.weight",
        "drift.bias",
    ]
    assert torch.equal(trained.drift.weight, kept)


def test_names_of_a_state_do_not_depend_on_xi(generator):
    """And with xi=0, where the drift takes no part, DDP does not wait for its gradient."""
    drift = nn.Bilinear(3, 2, 3)
    make = {"weighting": "girsanov", "drift": drift, **DRIFTING}
    off, on = (Elliptic(nn.Linear(3, 2), nn.MSELoss(), **make, xi=xi) for xi in (0.0, 1.0))
    assert off.state_dict().keys() == on.state_dict().keys()
    assert set(off._ddp_params_and_buffers_to_ignore) == {"drift.weight", "drift.bias"}
    assert not hasattr(on, "_ddp_params_and_buffers_to_ignore")
    x, y = torch.randn(5, 3, generator=generator), torch.randn(5, 2, generator=generator)
    off(x, y, generator=generator).backward()
    assert drift.weight.grad is None


def test_states_of_the_objective_are_as_strict_as_torchs():
    objective = Elliptic(network(), nn.CrossEntropyLoss(), num_classes=4)
    state = changed(objective.state_dict())
    del state["model.0.bias"]
    with pytest.raises(RuntimeError, match=r"Missing key.*model\.0\.bias"):
        objective.load_state_dict(state)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        objective.load_state_dict({"other": torch.zeros(1)})
    assert objective.load_state_dict(state, strict=False).missing_keys == ["model.0.bias"]
    assert torch.equal(objective.model[0].weight, state["model.0.weight"])


def test_sigma_auto_measures_again_after_a_constant_batch(generator):
    """A first batch of equal rows must not switch the noise off for good."""
    objective = Elliptic(nn.Linear(3, 2), nn.MSELoss(), sigma="auto")
    x, y = torch.randn(8, 3, generator=generator), torch.randn(8, 2, generator=generator)
    with pytest.warns(UserWarning, match=r"same inputs in all rows.*next batch"):
        objective(torch.ones(8, 3), y, generator=generator)
    assert objective.auto_sigma is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        objective(torch.ones(8, 3), y, generator=generator)  # said once
        objective(x, y, generator=generator)
    assert torch.allclose(objective.auto_sigma, 0.1 * x.std(0))


@pytest.mark.parametrize("exponent", [80, 120, -80, -120])
def test_sigma_auto_in_any_unit(exponent, generator):
    """Squares overflow, or vanish, in float32."""
    x = torch.randn(8, 3, generator=generator)
    assert torch.allclose(auto_sigma(x * 2.0**exponent), auto_sigma(x) * 2.0**exponent)


@pytest.mark.bad_input
@pytest.mark.parametrize("state", [None, [("model.weight", torch.zeros(1))], "state.pt"])
def test_states_that_are_no_dict_are_refused(state):
    with pytest.raises(TypeError, match=rf"state_dict must be a dict.*got {type(state).__name__}"):
        Elliptic(nn.Linear(3, 1), nn.MSELoss()).load_state_dict(state)
