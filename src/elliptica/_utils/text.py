"""Pluralise nouns and suggest names in messages."""

from __future__ import annotations

import contextlib
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


def inert_markdown(text: str) -> str:
    """Keep HTML and the bars of tables in a text from becoming part of the Markdown that it is put into."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")


def inert_cell(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would run as a formula."""
    with contextlib.suppress(ValueError):
        float(text)
        return text
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


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
