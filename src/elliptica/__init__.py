"""Elliptic loss regularisation for PyTorch: train on Brownian bridges between your data points.

Names are imported when first used, so that ``elliptica --help`` need not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from elliptica.core.bridge import Paths as Paths
    from elliptica.core.bridge import sample_bridge as sample_bridge
    from elliptica.core.bridgemix import BridgeMix as BridgeMix
    from elliptica.core.chord import chord_ratio as chord_ratio
    from elliptica.core.elliptic import Elliptic as Elliptic
    from elliptica.core.elliptic import elliptic_loss as elliptic_loss
    from elliptica.core.elliptic import sample_paths as sample_paths
    from elliptica.core.inputs import EllipticWarning as EllipticWarning
    from elliptica.core.losses import path_losses as path_losses
    from elliptica.core.noise import Covariance as Covariance
    from elliptica.core.noise import Green as Green
    from elliptica.core.noise import auto_sigma as auto_sigma
    from elliptica.core.noise import intrinsic_dimension as intrinsic_dimension
    from elliptica.core.partners import InverseDistance as InverseDistance
    from elliptica.core.partners import LabelKernel as LabelKernel
    from elliptica.core.partners import Nearest as Nearest
    from elliptica.core.partners import PartnerTable as PartnerTable
    from elliptica.core.partners import Permutation as Permutation
    from elliptica.core.partners import partner_probabilities as partner_probabilities
    from elliptica.core.partners import sample_partners as sample_partners
    from elliptica.core.targets import project_to_simplex as project_to_simplex
    from elliptica.core.weighting import Girsanov as Girsanov
    from elliptica.core.weighting import GradientNorm as GradientNorm
    from elliptica.core.weighting import GradientSoftmax as GradientSoftmax
    from elliptica.core.weighting import Multiplicative as Multiplicative
    from elliptica.core.weighting import Weighting as Weighting
    from elliptica.core.weighting import log_weights as log_weights
    from elliptica.landscape import HittingTimes as HittingTimes
    from elliptica.landscape import check_maximum_principle as check_maximum_principle
    from elliptica.landscape import estimate_landscape as estimate_landscape
    from elliptica.partner_index import PartnerIndex as PartnerIndex
    from elliptica.tables.diagnose import diagnose as diagnose

_HOME = {
    "BridgeMix": "core.bridgemix",
    "Covariance": "core.noise",
    "Elliptic": "core.elliptic",
    "EllipticWarning": "core.inputs",
    "Girsanov": "core.weighting",
    "GradientNorm": "core.weighting",
    "GradientSoftmax": "core.weighting",
    "Green": "core.noise",
    "HittingTimes": "landscape",
    "InverseDistance": "core.partners",
    "LabelKernel": "core.partners",
    "Multiplicative": "core.weighting",
    "Nearest": "core.partners",
    "PartnerIndex": "partner_index",
    "PartnerTable": "core.partners",
    "Paths": "core.bridge",
    "Permutation": "core.partners",
    "Weighting": "core.weighting",
    "auto_sigma": "core.noise",
    "check_maximum_principle": "landscape",
    "chord_ratio": "core.chord",
    "elliptic_loss": "core.elliptic",
    "estimate_landscape": "landscape",
    "intrinsic_dimension": "core.noise",
    "log_weights": "core.weighting",
    "partner_probabilities": "core.partners",
    "path_losses": "core.losses",
    "project_to_simplex": "core.targets",
    "sample_bridge": "core.bridge",
    "sample_partners": "core.partners",
    "sample_paths": "core.elliptic",
}

#: Names that need the extra "tables", so ``from elliptica import *`` leaves them out.
_EXTRA = {"diagnose": "tables.diagnose"}

#: Packages that are imported when first used, like the names above.
_PACKAGES = (
    "baselines",
    "core",
    "distributed",
    "estimators",
    "integrations",
    "lab",
    "landscape",
    "partner_index",
    "report",
    "tables",
)

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "__version__":  # made from the tag when the package was installed
        return importlib.import_module("importlib.metadata").version("elliptica")
    if name in _PACKAGES:
        return importlib.import_module(f"elliptica.{name}")
    if home := _HOME.get(name, _EXTRA.get(name)):
        return getattr(importlib.import_module(f"elliptica.{home}"), name)
    raise AttributeError(f"module 'elliptica' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *_EXTRA, *_PACKAGES])
