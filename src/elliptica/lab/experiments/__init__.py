"""Tables of experiments as specifications, runs and records: the paper's, and one's own.

What a module of one's own calls is here; names are imported when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elliptica.lab.experiments.methods.context import Context as Context
    from elliptica.lab.experiments.methods.context import ModuleObjective as ModuleObjective
    from elliptica.lab.experiments.methods.context import Prepared as Prepared
    from elliptica.lab.experiments.plugins import register_dataset as register_dataset
    from elliptica.lab.experiments.plugins import register_method as register_method
    from elliptica.lab.experiments.plugins import register_model as register_model

_HOME = {
    "Context": "methods.context",
    "ModuleObjective": "methods.context",
    "Prepared": "methods.context",
    "register_dataset": "plugins",
    "register_method": "plugins",
    "register_model": "plugins",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"elliptica.lab.experiments.{_HOME[name]}"), name)
    raise AttributeError(f"module 'elliptica.lab.experiments' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
