"""The networks of the paper's experiments, ready to be trained from scratch."""

from elliptica.models.mlp import mlp as mlp
from elliptica.models.resnet import preact_resnet as preact_resnet

__all__ = ["mlp", "preact_resnet"]
