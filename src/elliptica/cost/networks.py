"""Networks by name, for the command."""

from __future__ import annotations

import math
import re
from typing import get_args

from torch import nn

from elliptica.lab.models import load_backbone, mlp, preact_resnet, wide_resnet
from elliptica.lab.models.backbones import Backbone

#: For messages.
NAMES = ", ".join(
    ["preactresnet18 (34, 50, 101)", "wideresnet28-10", "mlp-128-128", "linear", *get_args(Backbone)]
)


def make_network(name: str, shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    """A network for inputs of a shape, freshly initialised.

    Example:
        >>> make_network("linear", (3,), 2)
        Sequential(
          (0): Flatten(start_dim=1, end_dim=-1)
          (1): Sequential(
            (0): Linear(in_features=3, out_features=2, bias=True)
          )
        )
    """
    plain = name.lower().replace("_", "")
    found = re.fullmatch(r"preactresnet(\d+)", plain)
    if found and int(found[1]) in (18, 34, 50, 101):
        return preact_resnet(int(found[1]), n_outputs, in_channels=shape[0])  # type: ignore[arg-type]
    found = re.fullmatch(r"wideresnet(\d+)-(\d+)", plain)
    if found:
        return wide_resnet(n_outputs, depth=int(found[1]), widen=int(found[2]), in_channels=shape[0])
    if plain == "linear" or re.fullmatch(r"mlp(-\d+)+", plain):
        hidden = tuple(int(size) for size in plain.split("-")[1:])
        return nn.Sequential(nn.Flatten(), mlp(math.prod(shape), n_outputs, hidden=hidden))
    if plain in {each.replace("_", "") for each in get_args(Backbone)}:
        real = next(each for each in get_args(Backbone) if each.replace("_", "") == plain)
        return load_backbone(real, pretrained=False, num_classes=n_outputs)
    raise ValueError(
        f"There is no network {name!r}. Give one of {NAMES}, or your own as package.module:name (a module, "
        "or a function that makes one)."
    )
