"""Colours, limits and words that the figure and the page share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elliptica.lab.demo.settings import NAMES, Method
from elliptica.lab.demo.summary import MethodSummary, join_words

INK = "#22252e"
MUTED = "#6a6f7d"
BOUNDARY = "#1f5fbf"
INSIDE = "#f08a24"
BETWEEN = "#7d8794"
SURFACE = "viridis"

#: Losses are drawn between these, on a logarithmic scale.
FLOOR = 1e-5
TOP = 60.0
#: Surfaces are drawn and coloured between these.
SURFACE_FLOOR = 1e-4
SURFACE_TOP = 2.0


def clip_losses(losses: NDArray[np.floating]) -> NDArray[np.float64]:
    """Bring losses into the range of the surfaces."""
    return np.clip(losses.astype(np.float64), SURFACE_FLOOR, SURFACE_TOP)


def headline(summaries: Sequence[MethodSummary]) -> str:
    """Say what is to be seen, from the verdicts over all seeds."""
    inside = _keepers([s.method for s in summaries if s.maximum_held == s.n_seeds], len(summaries))
    between = _keepers([s.method for s in summaries if s.between_held == s.n_seeds], len(summaries))
    least = max(summaries, key=lambda s: s.between_above.mean)
    return (
        f"Inside the moons the maximum principle is kept by {inside}; "
        f"between the data by {between}, least of all by {NAMES[least.method]}"
    )


def verdict(summary: MethodSummary) -> str:
    """The result of one method in two short lines."""
    return (
        f"inside ≤ boundary in {summary.maximum_held} of {summary.n_seeds} seeds\n"
        f"between the data {100 * summary.between_above.mean:.1f} % above it"
    )


def _keepers(methods: Sequence[Method], n_all: int) -> str:
    if not methods:
        return "none"
    return "every method" if len(methods) == n_all else join_words(NAMES[m] for m in methods)
