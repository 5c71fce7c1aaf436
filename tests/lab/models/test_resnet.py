"""The paper's networks: parameter counts, shapes and structure."""

import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from elliptica.lab.models import mlp, preact_resnet


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("n_features", "expected"), [(5, 17_409), (7, 17_665), (17, 18_945), (122, 32_385)])
def test_tabular_parameter_counts(n_features, expected):
    """Airfoil, NO2, SkillCraft, Crime."""
    assert count(mlp(n_features, 1)) == expected


def test_tabular_layers_are_the_reference_ones():
    kinds = [type(layer) for layer in mlp(5, 1)]
    assert kinds == [nn.Linear, nn.LeakyReLU, nn.Linear, nn.LeakyReLU, nn.Linear]


def test_mlp_equals_the_formula_by_hand(generator):
    net = mlp(3, 2, hidden=(4,), negative_slope=0.1)
    x = torch.randn(6, 3, generator=generator)
    h = x @ net[0].weight.T + net[0].bias
    h = torch.where(h > 0, h, 0.1 * h)
    torch.testing.assert_close(net(x), h @ net[2].weight.T + net[2].bias)


@pytest.mark.parametrize(
    ("activation", "function"),
    [("relu", torch.relu), ("tanh", torch.tanh), ("leaky_relu", lambda z: F.leaky_relu(z, 0.3))],
)
def test_activations(activation, function, generator):
    net = mlp(3, 1, hidden=(5,), activation=activation, negative_slope=0.3)
    x = torch.randn(6, 3, generator=generator)
    torch.testing.assert_close(net(x), net[2](function(net[0](x))))


def test_medmnist_perceptron():
    net = mlp(784, 2, hidden=(512,), activation="relu", batch_norm=True, flatten=True)
    kinds = [type(layer) for layer in net]
    assert kinds == [nn.Flatten, nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert net(torch.zeros(4, 1, 28, 28)).shape == (4, 2)
    assert count(net) == 784 * 512 + 512 + 2 * 512 + 512 * 2 + 2


def test_without_hidden_layers_it_is_linear():
    assert count(mlp(3, 2, hidden=())) == 3 * 2 + 2


@pytest.mark.parametrize("arguments", [(0, 1), (3, 0)])
def test_mlp_refuses_sizes_below_one(arguments):
    with pytest.raises(ValueError, match="n_"):
        mlp(*arguments)


def test_mlp_names_the_hidden_layer_at_fault():
    with pytest.raises(ValueError, match=r"hidden\[1\] must be a positive integer, but got -3"):
        mlp(3, 1, hidden=(4, -3))


def test_mlp_refuses_an_unknown_activation():
    bare = inspect.unwrap(mlp)  # without the run-time type check of the test run
    with pytest.raises(ValueError, match="activation"):
        bare(3, 1, activation="gelu")


@pytest.mark.parametrize(
    ("depth", "by_classes"),
    [
        (18, {10: 11_171_146, 100: 11_217_316, 200: 11_268_616}),
        (34, {10: 21_279_306, 100: 21_325_476, 200: 21_376_776}),
        (50, {10: 23_509_066, 100: 23_693_476, 200: 23_898_376}),
        (101, {10: 42_501_194, 100: 42_685_604, 200: 42_890_504}),
    ],
)
def test_resnet_parameter_counts(depth, by_classes):
    with torch.device("meta"):  # counts need no memory
        for num_classes, expected in by_classes.items():
            assert count(preact_resnet(depth, num_classes)) == expected


@pytest.mark.parametrize("depth", [18, 34, 50, 101])
@pytest.mark.parametrize(("size", "stem_stride"), [(32, 1), (64, 2)])
def test_resnet_shapes_and_pooling(depth, size, stem_stride, generator):
    """The mean over all pixels is the reference's 4x4 pooling on both image sizes."""
    net = preact_resnet(depth, 7, width=4, stem_stride=stem_stride).eval()
    features = net[:5](torch.randn(2, 3, size, size, generator=generator))
    expansion = 1 if depth < 50 else 4
    assert features.shape == (2, 4 * 8 * expansion, 4, 4)
    pooled = F.avg_pool2d(features, 4).flatten(1)
    torch.testing.assert_close(net[5:](features), net.head(pooled))
    assert net[5:](features).shape == (2, 7)


def test_resnet_has_no_bias_but_the_heads_and_the_norms():
    net = preact_resnet(50, 10, width=4)
    assert all(m.bias is None for m in net.modules() if isinstance(m, nn.Conv2d))
    assert net.head.bias is not None


def test_resnet_ends_without_norm_or_activation(generator):
    """Were there a ReLU before the pooling, no feature could be negative."""
    net = preact_resnet(18, 10, width=4)
    assert (net[:5](torch.randn(4, 3, 32, 32, generator=generator)) < 0).any()
    last = list(net.stage4[-1].residual.children())[-1]
    assert isinstance(last, nn.Conv2d)


def test_projected_shortcut_takes_the_activated_input(generator):
    """With the residual branch at zero a block is its shortcut."""
    block = preact_resnet(18, 10, width=4).stage2[0].eval()
    nn.init.zeros_(block.residual[-1].weight)
    x = torch.randn(2, 4, 8, 8, generator=generator)
    activated = torch.relu(block.activate[0](x))
    torch.testing.assert_close(block(x), F.conv2d(activated, block.project.weight, stride=2))
    assert not torch.allclose(block(x), F.conv2d(x, block.project.weight, stride=2))


def test_identity_shortcut_takes_the_raw_input(generator):
    block = preact_resnet(18, 10, width=4).stage1[0].eval()
    nn.init.zeros_(block.residual[-1].weight)
    x = torch.randn(2, 4, 8, 8, generator=generator)
    torch.testing.assert_close(block(x), x)
    assert block.project is None


def test_resnet_input_is_untouched_and_trains(generator):
    net = preact_resnet(18, 10, width=2, in_channels=1)
    x = torch.randn(2, 1, 32, 32, generator=generator)
    before = x.clone()
    net(x).square().sum().backward()
    assert torch.equal(x, before)
    assert all(p.grad is not None for p in net.parameters())


def test_resnet_refuses_an_unknown_depth():
    bare = inspect.unwrap(preact_resnet)
    with pytest.raises(ValueError, match=r"one of 18, 34, 50, 101, but got 20\. Pick one"):
        bare(20, 10)


@pytest.mark.parametrize("name", ["width", "stem_stride", "in_channels", "num_classes"])
def test_resnet_refuses_sizes_below_one(name):
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, but got 0"):
        preact_resnet(18, **{"num_classes": 10, name: 0})
