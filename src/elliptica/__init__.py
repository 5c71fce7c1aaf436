"""Elliptic loss regularisation for PyTorch: train on Brownian bridges between your data points.

Names are imported when first used, so that ``elliptica --help`` need not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from elliptica.core.bridge import sample_bridge as sample_bridge
    from elliptica.core.bridgemix import BridgeMix as BridgeMix
    from elliptica.core.elliptic import Elliptic as Elliptic
    from elliptica.core.elliptic import elliptic_loss as elliptic_loss
    from elliptica.core.elliptic import sample_paths as sample_paths
    from elliptica.core.evaluate import log_weights as log_weights
    from elliptica.core.evaluate import path_losses as path_losses
    from elliptica.core.noise import Green as Green
    from elliptica.core.noise import Screened as Screened
    from elliptica.core.noise import auto_sigma as auto_sigma
    from elliptica.core.noise import intrinsic_dimension as intrinsic_dimension
    from elliptica.core.partner_table import PartnerTable as PartnerTable
    from elliptica.core.partners import partner_probabilities as partner_probabilities
    from elliptica.core.partners import sample_partners as sample_partners
    from elliptica.core.schedule import ramp as ramp
    from elliptica.core.schedule import switch_off as switch_off
    from elliptica.core.targets import project_to_simplex as project_to_simplex
    from elliptica.core.types import EllipticWarning as EllipticWarning
    from elliptica.core.types import Paths as Paths
    from elliptica.core.types import WithOutputs as WithOutputs
    from elliptica.diagnostics.diagnose import diagnose as diagnose
    from elliptica.landscape import HittingTimes as HittingTimes
    from elliptica.landscape import check_maximum_principle as check_maximum_principle
    from elliptica.landscape import estimate_landscape as estimate_landscape
    from elliptica.partner_index import PartnerIndex as PartnerIndex

_HOME = {
    "BridgeMix": "core.bridgemix",
    "Elliptic": "core.elliptic",
    "EllipticWarning": "core.types",
    "Green": "core.noise",
    "HittingTimes": "landscape",
    "PartnerIndex": "partner_index",
    "PartnerTable": "core.partner_table",
    "Paths": "core.types",
    "Screened": "core.noise",
    "WithOutputs": "core.types",
    "auto_sigma": "core.noise",
    "check_maximum_principle": "landscape",
    "diagnose": "diagnostics.diagnose",
    "elliptic_loss": "core.elliptic",
    "estimate_landscape": "landscape",
    "intrinsic_dimension": "core.noise",
    "log_weights": "core.evaluate",
    "partner_probabilities": "core.partners",
    "path_losses": "core.evaluate",
    "project_to_simplex": "core.targets",
    "ramp": "core.schedule",
    "sample_bridge": "core.bridge",
    "sample_partners": "core.partners",
    "sample_paths": "core.elliptic",
    "switch_off": "core.schedule",
}

#: Packages that are imported when first used, like the names above.
_PACKAGES = (
    "baselines",
    "compare",
    "core",
    "diagnostics",
    "distributed",
    "estimators",
    "integrations",
    "lab",
    "landscape",
    "partner_index",
    "report",
)

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"elliptica.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(f"elliptica.{_HOME[name]}"), name)
    raise AttributeError(f"module 'elliptica' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME, *_PACKAGES])
