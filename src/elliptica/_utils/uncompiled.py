"""Compiler hook that `elliptica._utils.compiler` imports only while something is being compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


@torch.compiler.disable(recursive=True)
def run(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function outside the compiler."""
    return function(*args, **kwargs)
