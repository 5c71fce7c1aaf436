"""Count the files and functions of elliptica that one training step passes through.

A reader who follows a step has to open them all, so fewer is better. ``python -m benchmarks.trace_step``
prints the counts of a plain marginal step, a path step and a step in a hidden layer; ``--names`` lists the
functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

import elliptica

SOURCE = Path(elliptica.__file__).parent


def trace(step: Callable[[], object]) -> set[CodeType]:
    """Run ``step`` and collect the code of every function of elliptica that it enters."""
    found: set[CodeType] = set()

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(SOURCE):
            found.add(frame.f_code)

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return {code for code in found if not code.co_name.startswith("<")}  # comprehensions are not functions


def traced_steps() -> dict[str, set[CodeType]]:
    """Trace a step of each kind, after a first one that fills caches."""
    kinds: dict[str, dict[str, Any]] = {"marginal": {}, "path": {"sampling": "path"}, "hidden": {"at": "1"}}
    found = {}
    for kind, settings in kinds.items():
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        objective = elliptica.Elliptic(model, nn.CrossEntropyLoss(), num_classes=3, **settings)
        x, y = torch.randn(8, 4), torch.randint(3, (8,))
        objective(x, y)
        found[kind] = trace(lambda o=objective, x=x, y=y: o(x, y))  # type: ignore[misc]
    return found


def main() -> None:
    """Print the counts."""
    for kind, codes in traced_steps().items():
        files = sorted({str(Path(code.co_filename).relative_to(SOURCE)) for code in codes})
        print(f"{kind}: {len(files)} files, {len(codes)} functions ({', '.join(files)})")
        if "--names" in sys.argv:
            for code in sorted(codes, key=lambda c: (c.co_filename, c.co_firstlineno)):
                print(f"  {Path(code.co_filename).relative_to(SOURCE)}:{code.co_firstlineno} {code.co_name}")


if __name__ == "__main__":
    main()
