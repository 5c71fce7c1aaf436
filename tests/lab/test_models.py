"""The paper's networks: parameter counts, shapes and structure; and backbones of other packages."""

import inspect
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from elliptica.lab.models import load_backbone, mlp, preact_resnet, wide_resnet


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("n_features", "expected"), [(5, 17_409), (7, 17_665), (17, 18_945), (122, 32_385)])
def test_tabular_network(n_features, expected):
    """Airfoil, NO2, SkillCraft, Crime."""
    net = mlp(n_features, 1)
    assert count(net) == expected
    assert [type(layer) for layer in net] == [nn.Linear, nn.LeakyReLU, nn.Linear, nn.LeakyReLU, nn.Linear]


@pytest.mark.parametrize(
    ("activation", "function"),
    [("relu", torch.relu), ("tanh", torch.tanh), ("leaky_relu", lambda z: torch.where(z > 0, z, 0.1 * z))],
)
def test_activations(activation, function, generator):
    net = mlp(3, 1, hidden=(5,), activation=activation)
    x = torch.randn(6, 3, generator=generator)
    h = function(x @ net[0].weight.T + net[0].bias)
    torch.testing.assert_close(net(x), h @ net[2].weight.T + net[2].bias)


def test_medmnist_perceptron_and_linear_model():
    net = mlp(784, 2, hidden=(512,), activation="relu", batch_norm=True, flatten=True)
    assert [type(layer) for layer in net] == [nn.Flatten, nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert net(torch.zeros(4, 1, 28, 28)).shape == (4, 2)
    assert count(mlp(3, 2, hidden=())) == 3 * 2 + 2


@pytest.mark.parametrize(
    ("make", "by_classes"),
    [
        (lambda n: preact_resnet(18, n), {10: 11_171_146, 100: 11_217_316, 200: 11_268_616}),
        (lambda n: preact_resnet(34, n), {10: 21_279_306, 100: 21_325_476, 200: 21_376_776}),
        (lambda n: preact_resnet(50, n), {10: 23_509_066, 100: 23_693_476, 200: 23_898_376}),
        (lambda n: preact_resnet(101, n), {10: 42_501_194, 100: 42_685_604, 200: 42_890_504}),
        (wide_resnet, {10: 36_489_290, 100: 36_546_980}),
    ],
)
def test_parameter_counts(make, by_classes):
    with torch.device("meta"):  # counts need no memory
        for num_classes, expected in by_classes.items():
            assert count(make(num_classes)) == expected


@pytest.mark.parametrize("depth", [18, 50])
@pytest.mark.parametrize(("size", "stem_stride"), [(32, 1), (64, 2)])
def test_preact_resnet_shapes_and_pooling(depth, size, stem_stride, generator):
    """The mean over all pixels is the reference's 4x4 pooling on both image sizes."""
    net = preact_resnet(depth, 7, width=4, stem_stride=stem_stride).eval()
    features = net[:5](torch.randn(2, 3, size, size, generator=generator))
    assert features.shape == (2, 32 if depth == 18 else 128, 4, 4)
    assert (features < 0).any()  # no ReLU between the last block and the mean
    torch.testing.assert_close(net[5:](features), net.head(F.avg_pool2d(features, 4).flatten(1)))
    assert all(m.bias is None for m in net.modules() if isinstance(m, nn.Conv2d))


def test_preact_shortcuts(generator):
    """With the residual branch at zero a block is its shortcut: raw, or the projected activated input."""
    net = preact_resnet(18, 10, width=4).eval()
    x = torch.randn(2, 4, 8, 8, generator=generator)
    same, projected = net.stage1[0], net.stage2[0]
    for block in (same, projected):
        nn.init.zeros_(block.residual[-1].weight)
    torch.testing.assert_close(same(x), x)
    activated = torch.relu(projected.activate[0](x))
    torch.testing.assert_close(projected(x), F.conv2d(activated, projected.project.weight, stride=2))


def test_wide_resnet_is_the_pipelines(generator):
    """Biases, no dropout, momentum 0.9 at the end, the second convolution strides, 8x8 pooling."""
    net = wide_resnet(7, depth=16, widen=2).eval()
    assert all(m.bias is not None for m in net.modules() if isinstance(m, nn.Conv2d))
    assert not any(isinstance(m, nn.Dropout) for m in net.modules())
    norms = [m.momentum for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    assert (norms[-1], set(norms[:-1])) == (0.9, {0.1})
    assert [len(stage) for stage in (net.stage1, net.stage2, net.stage3)] == [2, 2, 2]
    strides = [m.stride for m in net.stage2[0].residual if isinstance(m, nn.Conv2d)]
    assert strides == [(1, 1), (2, 2)]
    features = net[:6](torch.randn(2, 3, 32, 32, generator=generator))
    assert features.shape == (2, 128, 8, 8)
    assert (features >= 0).all()  # batch norm and ReLU come before the pooling
    torch.testing.assert_close(net[6:](features), net.head(F.avg_pool2d(features, 8).flatten(1)))


def test_wide_shortcuts_take_the_raw_input(generator):
    net = wide_resnet(10, depth=10, widen=1).eval()
    x = torch.randn(2, 16, 8, 8, generator=generator)
    for block in (net.stage1[0], net.stage2[0]):
        nn.init.zeros_(block.residual[-1].weight)
        nn.init.zeros_(block.residual[-1].bias)
        p = block.project
        torch.testing.assert_close(block(x), x if p is None else F.conv2d(x, p.weight, p.bias, stride=2))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("make", "error", "argument"),
    [
        (lambda: mlp(0, 1), ValueError, "n_features"),
        (lambda: mlp(3, 1, hidden=(4, -3)), ValueError, "hidden"),
        (lambda: inspect.unwrap(mlp)(3, 1, activation="gelu"), ValueError, "activation"),
        (lambda: wide_resnet(10, depth=12), ValueError, "depth"),
        (lambda: preact_resnet(20, 10), KeyError, "20"),
        (lambda: load_backbone("vgg16"), KeyError, "vgg16"),
    ],
)
def test_bad_arguments(make, error, argument, own_checks):
    with pytest.raises(error, match=argument):
        make()


# backbones


def pretend(monkeypatch, name, **contents):
    package = types.ModuleType(name)
    vars(package).update(contents)
    monkeypatch.setitem(sys.modules, name, package)
    return package


@pytest.mark.parametrize(("name", "head"), [("resnet50", "fc"), ("densenet121", "classifier")])
def test_torchvision_networks_and_their_heads(name, head, monkeypatch):
    asked = []

    def get_model(name, weights=None):
        asked.append((name, weights))
        net = nn.Module()
        setattr(net, head, nn.Linear(6, 1000))
        return net.eval()

    pretend(
        monkeypatch, "torchvision", models=pretend(monkeypatch, "torchvision.models", get_model=get_model)
    )
    assert getattr(load_backbone(name), head).out_features == 1000
    assert getattr(load_backbone(name, pretrained=False, num_classes=2), head).out_features == 2
    features = load_backbone(name, num_classes=0)
    assert isinstance(getattr(features, head), nn.Identity)
    assert features.training
    assert asked == [(name, "IMAGENET1K_V1"), (name, None), (name, "IMAGENET1K_V1")]
