"""mixupE: against mixup in its limits, against loops in each version, and what it refuses."""

import pytest
import torch
from torch import nn

from baseline_cases import batch, network, replay, same
from elliptica.baselines import ERM, Mixup, MixupE

VERSIONS = (1, 2, 3, 4)
MEAN = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)


def make(model, version=3, **settings):
    settings = {"alpha": 2.0, "eta": 0.3, "threshold": 0.4} | settings
    return MixupE(model, nn.CrossEntropyLoss(), version=version, mean=MEAN, **settings)


def gradient(loss, model):
    slopes = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return torch.cat([g.flatten() for g in slopes])


def penalty_by_loop(model, x, y, version, threshold):
    """The term R, sample by sample, in the words of the authors' code."""
    total = torch.zeros((), dtype=torch.float64)
    for xi, yi in zip(x, y, strict=True):
        leaf = xi.clone().requires_grad_()
        f = model(leaf[None])[0]
        p = f.exp() / f.exp().sum()
        onehot = torch.eye(4, dtype=torch.float64)[yi]
        if version in (1, 2):
            b = (p - onehot).detach()
            slope = torch.autograd.grad((f * b).sum(), leaf, create_graph=True)[0]
            r = sum(slope[k] * (MEAN[k] - xi[k]) for k in range(3))
            total = total + (r.abs() if version == 2 else r * (r < threshold))
        else:
            b = onehot - p
            s = (f * (b if version == 3 else b.detach())).sum()
            if version == 4 or s < threshold:
                total = total - s
    return total / len(x)


@pytest.mark.parametrize("version", VERSIONS)
def test_eta_zero_is_mixup(version, generator):
    model = network()
    x, y = batch(generator)
    again = replay(generator)
    ours = make(model, version, eta=0.0)(x, y, generator=generator)
    theirs = Mixup(model, nn.CrossEntropyLoss(), alpha=2.0)(x, y, generator=again)
    same(ours, theirs)
    same(gradient(ours, model), gradient(theirs, model))
    assert torch.equal(generator.get_state(), again.get_state())  # the same draws


@pytest.mark.parametrize("eta", [1e-3, 0.3])
@pytest.mark.parametrize("version", VERSIONS)
def test_value_is_mixups_and_gradient_is_that_of_the_sum(version, eta, generator):
    model = network()
    x, y = batch(generator)
    again = replay(generator)
    objective = make(model, version, eta=eta)
    ours = objective(x, y, generator=generator)
    mixed = Mixup(model, nn.CrossEntropyLoss(), alpha=2.0)(x, y, generator=again)
    total = mixed + eta * (2 / 5) * penalty_by_loop(model, x, y, version, 0.4)
    assert total > 0
    same(ours, mixed)  # the value is mixup's for any eta
    same(gradient(ours, model), gradient(total, model) * (mixed / total).item())
    assert not torch.allclose(gradient(ours, model), gradient(mixed, model), rtol=1e-6)


@pytest.mark.parametrize(("version", "kept"), [(1, True), (2, False), (3, True), (4, False)])
def test_threshold_matters_in_versions_one_and_three_only(version, kept, generator):
    model = network()
    x, y = batch(generator)
    losses = [
        gradient(make(model, version, threshold=t)(x, y, generator=replay(generator)), model)
        for t in (-0.2, 50.0)
    ]
    assert torch.allclose(*losses) is not kept


def test_sum_is_divided_by_the_batch_though_samples_are_left_out(generator):
    """A threshold that no sample passes leaves mixup."""
    model = network()
    x, y = batch(generator)
    ours = make(model, 3, threshold=-100.0)(x, y, generator=replay(generator))
    mixed = Mixup(model, nn.CrossEntropyLoss(), alpha=2.0)(x, y, generator=generator)
    same(gradient(ours, model), gradient(mixed, model))


def test_versions_three_and_four_differ_in_what_is_held_constant(generator):
    model = network()
    x, y = batch(generator)
    third, fourth = (
        gradient(make(model, v, threshold=100.0)(x, y, generator=replay(generator)), model) for v in (3, 4)
    )
    assert not torch.allclose(third, fourth, rtol=1e-4)


def test_a_negative_sum_turns_the_sign_of_the_value(generator):
    """As in the authors' code: only the size is restored."""
    model = network()
    x, _ = batch(generator)
    y = model(x).argmax(1)  # right, but not sure of it: every s is positive
    ours = make(model, 4, eta=500.0)(x, y, generator=replay(generator))
    mixed = Mixup(model, nn.CrossEntropyLoss(), alpha=2.0)(x, y, generator=generator)
    same(ours, -mixed)


@pytest.mark.parametrize("version", [1, 3])
def test_sample_weights_of_one_change_nothing_and_zero_drops_a_sample(version, generator):
    model = network()
    x, y = batch(generator)
    objective = make(model, version, alpha=0.0)  # nothing is mixed
    plain = gradient(objective(x, y), model)
    same(gradient(objective(x, y, sample_weight=torch.ones(12).double()), model), plain)
    weight = torch.ones(12).double()
    weight[3] = 0
    dropped = torch.arange(12) != 3
    weighted = gradient(objective(x, y, sample_weight=weight), model)
    same(weighted, gradient(objective(x[dropped], y[dropped]), model) * 11 / 12)


def test_soft_labels_and_eval_mode(generator):
    model = network()
    x, y = batch(generator)
    soft = torch.eye(4, dtype=torch.float64)[y]
    hard, from_soft = (make(model)(x, labels, generator=replay(generator)) for labels in (y, soft))
    same(gradient(hard, model), gradient(from_soft, model))
    same(make(model).eval()(x, y), ERM(model, nn.CrossEntropyLoss())(x, y))


@pytest.mark.parametrize("version", VERSIONS)
def test_inputs_stay_and_images_work(version, generator):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4))
    x = torch.randn(6, 1, 4, 4, generator=generator)
    before = x.clone()
    y = torch.randint(4, (6,), generator=generator)
    objective = MixupE(model, nn.CrossEntropyLoss(), version=version, mean=x.mean(0), eta=0.1)
    objective(x, y, generator=generator).backward()
    assert torch.equal(x, before)
    assert not x.requires_grad
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_clean_pass_updates_batch_norm_a_second_time(generator):
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4))
    x, y = torch.randn(8, 3, generator=generator), torch.randint(4, (8,), generator=generator)
    MixupE(model, nn.CrossEntropyLoss())(x, y, generator=generator)
    assert model[0].num_batches_tracked == 2
    MixupE(model, nn.CrossEntropyLoss(), eta=0.0)(x, y, generator=generator)
    assert model[0].num_batches_tracked == 3


def test_state_holds_the_model_only():
    state = make(network(), 1).state_dict()
    assert all(name.startswith("model.") for name in state)
    assert "eta=0.3, version=3, threshold=0.4" in repr(make(network()))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"version": 5}, r"version must be 1, 2, 3 or 4, but got 5"),
        ({"eta": -0.1}, "eta must be finite and at least 0, but got -0.1"),
        ({"threshold": float("nan"), "eta": "much"}, "eta must be a number"),
    ],
)
def test_bad_settings(settings, match, own_checks):
    with pytest.raises((ValueError, TypeError), match=match):
        make(network(), **settings)


@pytest.mark.bad_input
@pytest.mark.parametrize("version", [1, 2])
def test_the_mean_image_is_asked_for(version, own_checks, generator):
    with pytest.raises(ValueError, match=rf"version={version} needs the mean training image.*use version 3"):
        MixupE(network(), nn.CrossEntropyLoss(), version=version)
    x, y = batch(generator)
    objective = MixupE(network(), nn.CrossEntropyLoss(), version=version, mean=torch.zeros(5))
    with pytest.raises(ValueError, match=r"shape \(3,\) of one sample, but has shape \(5,\)"):
        objective(x, y)


@pytest.mark.bad_input
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_regression_is_refused(n_outputs, own_checks, generator):
    x, _ = batch(generator)
    objective = MixupE(nn.Linear(3, n_outputs).double(), nn.MSELoss())
    with pytest.raises(ValueError, match=r"mixupE is for classification(.|\n)*Use Mixup or CMixup"):
        objective(x, 3 * x[:, :n_outputs])


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"mean": [0.0, 0.0, 0.0]}, TypeError, "mean must be a torch.Tensor, but got list"),
        ({"mean": torch.full((3,), torch.nan)}, ValueError, "mean must be finite"),
        ({"threshold": float("nan")}, ValueError, "threshold must be a number, but got nan"),
    ],
)
def test_what_is_no_mean_and_no_threshold(settings, error, match, own_checks):
    with pytest.raises(error, match=match):
        MixupE(network(), nn.CrossEntropyLoss(), version=1, **{"mean": MEAN, **settings})
