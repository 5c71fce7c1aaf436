"""What was once silently wrong: computed right, or refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from elliptica import Covariance, Elliptic, GradientSoftmax, sample_paths
from elliptica.core.layers import hidden_features

X, Y = torch.randn(8, 4), torch.randn(8, 1)
#: Settings that make the objective the ordinary loss.
PLAIN = {"sigma": 0.0, "sigma_y": 0.0, "n_times": 2, "sampling": "path"}


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


def test_targets_without_an_axis_have_joint_noise():
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    assert torch.isfinite(Elliptic(model, nn.MSELoss(), sigma=Covariance(X, Y[:, 0]))(X, Y[:, 0]))


def test_the_horizon_scales_both_noises():
    objective = Elliptic.paper(nn.Linear(4, 1), nn.MSELoss(), sigma=1.0, sigma_y=0.5, horizon=0.01)
    assert (objective.bridges.sigma, objective.bridges.sigma_y) == pytest.approx((0.1, 0.05))


@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_times_are_rows_and_not_those_of_other_paths(sampling):
    x, y = torch.randn(1, 2), torch.randn(1, 1)
    how = {"target_space": "real", "sampling": sampling}
    paths = sample_paths(x, y, **how)
    assert paths.times.shape == paths.targets.shape[:1]
    paths.times.zero_()
    if sampling == "path":
        assert sample_paths(x, y, **how).times[-1] == 1


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
