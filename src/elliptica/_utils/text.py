"""Numbers of things, in words."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """A number and its noun, in the plural unless it is one.

    Example:
        >>> count(1, "run"), count(2, "run"), count(2, "process")
        ('1 run', '2 runs', '2 processes')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"
