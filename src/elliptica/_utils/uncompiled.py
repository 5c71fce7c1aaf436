"""What `elliptica._utils.compiler` imports once something is being compiled, and not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


@torch.compiler.disable(recursive=True)
def run(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function out of the compiler's reach."""
    return function(*args, **kwargs)
