"""Elliptic loss regularisation for PyTorch: train on Brownian bridges between your data points.

Names are imported when first used, so that ``elliptica --help`` need not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from elliptica._version import __version__ as __version__

if TYPE_CHECKING:
    from elliptica.augment import BridgeMix as BridgeMix
    from elliptica.bridge import sample_bridge as sample_bridge
    from elliptica.diffusion import Green as Green
    from elliptica.diffusion import Screened as Screened
    from elliptica.diffusion import auto_sigma as auto_sigma
    from elliptica.dimension import intrinsic_dimension as intrinsic_dimension
    from elliptica.evaluate import log_weights as log_weights
    from elliptica.evaluate import path_losses as path_losses
    from elliptica.functional import elliptic_loss as elliptic_loss
    from elliptica.functional import sample_paths as sample_paths
    from elliptica.inspection.diagnose import diagnose as diagnose
    from elliptica.landscape import check_maximum_principle as check_maximum_principle
    from elliptica.landscape import estimate_landscape as estimate_landscape
    from elliptica.objective import Elliptic as Elliptic
    from elliptica.pairing import partner_probabilities as partner_probabilities
    from elliptica.pairing import sample_partners as sample_partners
    from elliptica.partner_table import PartnerTable as PartnerTable
    from elliptica.partners import PartnerIndex as PartnerIndex
    from elliptica.schedule import ramp as ramp
    from elliptica.schedule import switch_off as switch_off
    from elliptica.targets import project_to_simplex as project_to_simplex
    from elliptica.types import EllipticWarning as EllipticWarning
    from elliptica.types import Paths as Paths

_HOME = {
    "BridgeMix": "augment",
    "Elliptic": "objective",
    "EllipticWarning": "types",
    "Green": "diffusion",
    "PartnerIndex": "partners",
    "PartnerTable": "partner_table",
    "Paths": "types",
    "Screened": "diffusion",
    "auto_sigma": "diffusion",
    "check_maximum_principle": "landscape",
    "diagnose": "inspection.diagnose",
    "elliptic_loss": "functional",
    "estimate_landscape": "landscape",
    "intrinsic_dimension": "dimension",
    "log_weights": "evaluate",
    "partner_probabilities": "pairing",
    "path_losses": "evaluate",
    "project_to_simplex": "targets",
    "ramp": "schedule",
    "sample_bridge": "bridge",
    "sample_partners": "pairing",
    "sample_paths": "functional",
    "switch_off": "schedule",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"elliptica.{_HOME[name]}"), name)
    raise AttributeError(f"module 'elliptica' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
