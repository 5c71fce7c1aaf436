"""Networks of the paper's experiments, to be trained from scratch, and loaders for pretrained backbones."""

from elliptica._utils.perceptron import mlp as mlp
from elliptica.lab.models.backbones import load_backbone as load_backbone
from elliptica.lab.models.resnet import preact_resnet as preact_resnet
from elliptica.lab.models.resnet import wide_resnet as wide_resnet

__all__ = ["load_backbone", "mlp", "preact_resnet", "wide_resnet"]
