"""Exclude functions from torch.compile without importing it eagerly.

``torch.compiler.disable`` as a decorator imports the compiler at once, which takes as long as importing
torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def run_uncompiled(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function as ordinary Python from inside a compiled one."""
    return torch.compiler.disable(function)(*args, **kwargs)
