"""Exclude functions from torch.compile without importing it eagerly.

``torch.compiler.disable`` as a decorator imports the compiler at once, which takes as long as importing
torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def uncompiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run a function, and everything it calls, as ordinary Python inside a compiled one.

    Example:
        >>> @uncompiled
        ... def double(x):
        ...     return 2 * x
        >>> double(3)
        6
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if torch.compiler.is_compiling():
            return run_uncompiled(function, *args, **kwargs)
        return function(*args, **kwargs)

    return call


def run_uncompiled(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function as ordinary Python from inside a compiled one."""
    from elliptica._utils.uncompiled import run  # the compiler is imported by now

    return run(function, *args, **kwargs)
