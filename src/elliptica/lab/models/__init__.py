"""Networks of the paper's experiments to train from scratch, and loaders for pretrained backbones."""

from elliptica._utils.perceptron import mlp
from elliptica.lab.models.backbones import load_backbone
from elliptica.lab.models.resnet import preact_resnet, wide_resnet

__all__ = ["load_backbone", "mlp", "preact_resnet", "wide_resnet"]
