"""Pluralise nouns and suggest names in messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def count(number: int, noun: str) -> str:
    """Format a number with its noun, in the plural unless it is one.

    Example:
        >>> count(1, "run"), count(2, "run"), count(2, "process")
        ('1 run', '2 runs', '2 processes')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"


def near_misses(name: str, known: Iterable[str], *, n: int = 1, cutoff: float = 0.6) -> list[str]:
    """Find the names most similar to ``name``, ignoring case."""
    plain = {each.lower().strip(): each for each in known}
    return [
        plain[each] for each in difflib.get_close_matches(name.lower().strip(), plain, n=n, cutoff=cutoff)
    ]


def did_you_mean(name: str, known: Iterable[str], *, n: int = 1, cutoff: float = 0.6) -> str:
    """Ask whether the user meant a similar name; empty if there is none."""
    near = near_misses(name, known, n=n, cutoff=cutoff)
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else ""
