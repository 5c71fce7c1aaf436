"""What was once silently wrong: computed right, or refused."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import elliptica
from elliptica import (
    BridgeMix,
    Covariance,
    Elliptic,
    Girsanov,
    GradientSoftmax,
    Multiplicative,
    Weighting,
    path_losses,
    sample_paths,
)
from elliptica.core.formulations import SourceTerm
from elliptica.core.layers import hidden_features

X, Y = torch.randn(8, 4), torch.randn(8, 1)
#: Settings that make the objective the ordinary loss.
PLAIN = {"sigma": 0.0, "sigma_y": 0.0, "n_times": 2, "sampling": "path"}
PATHS = {"sampling": "path", "n_bridges": 2, "sigma": 0.3, "sigma_y": 0.3}


def test_a_layer_that_a_sequence_repeats_runs_every_time():
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 6), relu, nn.Linear(6, 6), relu, nn.Linear(6, 1))
    for at in ("0", "1", "2", "3"):
        torch.testing.assert_close(
            Elliptic(model, nn.MSELoss(), at=at, **PLAIN)(X, Y), F.mse_loss(model(X), Y)
        )
    torch.testing.assert_close(hidden_features(model, X, "3"), model[:4](X))


def test_a_hook_on_a_sequence_counts():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    model.register_forward_hook(lambda _module, _x, output: 10 * output)
    torch.testing.assert_close(Elliptic(model, nn.MSELoss(), at="0", **PLAIN)(X, Y), F.mse_loss(model(X), Y))


class Halves(nn.Module):
    """A model that overwrites its input, and uses it above the bridged layer as well."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        x.mul_(0.5)
        return self.b(self.a(x) + x)


def test_a_model_that_overwrites_its_input_sees_it_once():
    model = Halves()
    truth = F.mse_loss(model(X.clone()), Y)
    torch.testing.assert_close(Elliptic(model, nn.MSELoss(), at="a", **PLAIN)(X.clone(), Y), truth)
    objective = SourceTerm(model, nn.MSELoss(), duration=1.0, **PLAIN)
    torch.testing.assert_close(objective(X.clone(), Y), 2 * truth)
    paths = sample_paths(X, Y, target_space="real")
    first, second = (path_losses(model, nn.MSELoss(), paths) for _ in range(2))
    assert torch.equal(first, second)


def test_targets_without_an_axis_have_joint_noise():
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    assert torch.isfinite(Elliptic(model, nn.MSELoss(), sigma=Covariance(X, Y[:, 0]))(X, Y[:, 0]))


def test_the_horizon_scales_both_noises():
    objective = Elliptic.paper(nn.Linear(4, 1), nn.MSELoss(), sigma=1.0, sigma_y=0.5, horizon=0.01)
    assert (objective.bridges.sigma, objective.bridges.sigma_y) == pytest.approx((0.1, 0.05))


def test_a_number_may_be_a_tensor():
    objective = Elliptic(nn.Linear(4, 1), nn.MSELoss(), sigma=torch.tensor(0.1))
    assert objective.bridges.sigma_y == pytest.approx(0.1)


def real(**settings):
    return Elliptic(nn.Linear(4, 1), nn.MSELoss(), **settings)


def drifted(drift, **settings):
    return real(**{**PATHS, "weighting": Multiplicative(drift=drift), **settings})


def hidden_paths():
    objective = Elliptic(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), nn.MSELoss(), at="0")
    return objective.model, objective.sample(X, Y)


SCALES = torch.tensor([0.0, 0.1, 0.1, 0.1])
REFUSED = {
    "joint noise": lambda: real(**PATHS | {"sigma": Covariance(X, Y), "sigma_y": None},
                                weighting=Girsanov(drift="both"))(X, Y),
    "drift without noise": lambda: drifted(lambda x, y: x, sigma=SCALES)(X, Y),
    "drift of targets without noise": lambda: drifted(lambda x, y: (x, y), sigma_y=0.0)(X, Y),
    "weights of given paths": lambda: real()(X, Y, paths=real().sample(X, Y), sample_weight=torch.ones(8)),
    "paths of a hidden layer": lambda: path_losses(hidden_paths()[0], nn.MSELoss(), hidden_paths()[1]),
    "negative weights of ends": lambda: real()(X, Y, sample_weight=torch.ones(8), end=(X, Y, -torch.ones(8))),
    "partners with fractions": lambda: real()(X, Y, partners=torch.full((8,), 1.9)),
    "large labels": lambda: Elliptic(nn.Linear(4, 3), nn.CrossEntropyLoss(), num_classes=3)(
        X, torch.full((8,), 2**32)),
    "logarithms of targets": lambda: Elliptic(nn.Linear(4, 3), nn.KLDivLoss(log_target=True), num_classes=3),
    "a law without axes": lambda: real(sigma=lambda a, b, y, g: torch.ones(len(a)))(X, Y),
    "parts of paths": lambda: real(**PATHS, weighting="multiplicative", end_time=0.5),
    "skipped points": lambda: BridgeMix(num_classes=3, sampling="path", quadrature="left"),
}  # fmt: skip


@pytest.mark.bad_input
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_right_answer_is_refused(name):
    with pytest.raises((ValueError, TypeError)):
        REFUSED[name]()


def test_a_copy_has_settings_of_its_own():
    objective = real(weighting="gradient_softmax")
    other = copy.deepcopy(objective)
    other.strength = None
    assert objective.strength == 1.0
    assert elliptica.GradientSoftmax() == other.weighting


def test_a_joint_covariance_of_several_inputs_is_refused():
    """Otherwise the second input would come from the nearer end."""
    a, b, y = torch.randn(6, 2), torch.randn(6, 3), torch.randn(6, 1)
    with pytest.raises(ValueError, match="sigma"):
        sample_paths((a, b), y, target_space="real", sigma=Covariance(a, y), bridged=(0, 1))


def test_the_covariance_of_a_class_needs_classes():
    """Binary targets of one column have no largest entry."""
    y = torch.tensor([0.0, 1.0, 1.0, 0.0])
    sigma = Covariance(torch.randn(4, 2), y.long(), by_class=True)
    with pytest.raises(ValueError, match="class"):
        sample_paths(torch.randn(4, 2), y[:, None], target_space="unit", sigma=sigma)


@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_times_are_rows_and_not_those_of_other_paths(sampling):
    x, y = torch.randn(1, 2), torch.randn(1, 1)
    how = {"target_space": "real", "sampling": sampling}
    paths = sample_paths(x, y, **how)
    assert paths.times.shape == paths.targets.shape[:1]
    paths.times.zero_()
    if sampling == "path":
        assert sample_paths(x, y, **how).times[-1] == 1


def test_a_weighting_keeps_the_shape_of_the_losses():
    class First(Weighting):
        def __call__(self, losses, slopes, paths):
            return losses[0]

    objective = Elliptic(nn.Linear(2, 1), nn.MSELoss(), sampling="path", weighting=First())
    with pytest.raises(ValueError, match="weighting"):
        objective(torch.randn(4, 2), torch.randn(4, 1))


def test_single_points_have_no_path_weights():
    paths = sample_paths(torch.randn(4, 2), torch.randn(4, 1), target_space="real")
    with pytest.raises(ValueError, match="path"):
        Elliptic(nn.Linear(2, 1), nn.MSELoss(), sampling="path", weighting="girsanov").loss_on(paths)


def test_replaced_parts_of_paths_agree():
    how = {"target_space": "simplex", "num_classes": 3, "sampling": "path", "n_bridges": 2}
    paths = sample_paths(torch.randn(6, 3), torch.randint(3, (6,)), **how)
    for parts in ({"x": paths.x[:2]}, {"x": paths.x.reshape(6, 1, 10, 3)}, {"labels": paths.labels[:2]}):
        with pytest.raises(ValueError, match="replace"):
            paths.replace(**parts)
    flipped = paths.replace(y=paths.y.flip(0))
    assert torch.equal(flipped.free_y, flipped.y)


def test_points_that_do_not_count_do_not_drown_the_others():
    """An outlier at the last time, which the left sum skips, once made every weight zero."""
    x, y = torch.zeros(4, 1), torch.zeros(4, 1)
    far = (torch.zeros(4, 1), torch.tensor([[0.0], [0.0], [0.0], [1e4]]))
    how = {"sampling": "path", "quadrature": "left", "n_times": 2, "weighting": GradientSoftmax(xi=100.0)}
    objective = Elliptic(nn.Linear(1, 1), nn.MSELoss(), sigma_y=0.0, **how)
    assert torch.isfinite(objective(x, y, end=far))


def test_joint_noise_keeps_the_digits_of_the_targets():
    x, y = torch.randn(5, 2, dtype=torch.bfloat16), 1000 + torch.randn(5, 1)
    paths = sample_paths(x, y, target_space="real", sigma=Covariance(x.float(), y), sampling="path")
    assert torch.equal(paths.y[:, 0, 0], y)


def test_inputs_below_a_layer_are_not_overwritten():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.lower, self.upper = nn.Linear(2, 3), nn.Linear(3, 1)

        def forward(self, x):
            x += 1
            return self.upper(self.lower(x)) + x.sum(1, keepdim=True)

    objective = Elliptic(InPlace(), nn.MSELoss(), at="lower", sigma=0.5)
    paths = objective.sample(torch.randn(4, 2), torch.randn(4, 1))
    assert torch.equal(objective.loss_on(paths), objective.loss_on(paths))
