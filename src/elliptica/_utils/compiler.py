"""Exclude functions from torch.compile without importing it eagerly.

``torch.compiler.disable`` as a decorator imports the compiler at once, which takes as long as importing
torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")

disabled_call: Callable[..., Any]  # made on first use


def __getattr__(name: str) -> Any:
    if name != "disabled_call":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    @torch.compiler.disable(recursive=True)
    def disabled_call(function: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return globals().setdefault(name, disabled_call)


def run_uncompiled(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function as ordinary Python from inside a compiled one."""
    from elliptica._utils.compiler import disabled_call  # not before: it imports the compiler

    result: _R = disabled_call(function, *args, **kwargs)
    return result
