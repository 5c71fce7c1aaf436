"""Elliptic training inside other trainers: Lightning and the Hugging Face `Trainer`.

Names are imported on first use, so importing this package loads neither of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elliptica.integrations.lightning import BridgeMixCallback as BridgeMixCallback
    from elliptica.integrations.lightning import EllipticLightningMixin as EllipticLightningMixin
    from elliptica.integrations.transformers import EllipticTrainer as EllipticTrainer
    from elliptica.integrations.transformers import EllipticTrainerMixin as EllipticTrainerMixin

_HOME = {
    "BridgeMixCallback": "lightning",
    "EllipticLightningMixin": "lightning",
    "EllipticTrainer": "transformers",
    "EllipticTrainerMixin": "transformers",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"elliptica.integrations.{_HOME[name]}"), name)
    raise AttributeError(f"module 'elliptica.integrations' has no attribute {name!r}")
