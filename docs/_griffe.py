"""Show in the API pages what stands in the sources: examples of docstrings, and comments on fields."""

from __future__ import annotations

import re
from typing import Any

import griffe

_HEADING = re.compile(r"^( *)Example:$", flags=re.MULTILINE)
_TRAILING = re.compile(r"  # (?!noqa|type:)(.*)$")


class ExampleSections(griffe.Extension):
    """Rename the heading in what was read from the sources; the sources stay as they are."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = _HEADING.sub(r"\1Examples:", obj.docstring.value)


class FieldComments(griffe.Extension):
    """List the fields of a class whose comments describe them, as a section ``Attributes:`` would."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called for every class, when its members are known."""
        if cls.docstring is None or "Attributes:" in cls.docstring.value:
            return
        lines = cls.filepath.read_text(encoding="utf-8").splitlines()
        places = {name: member.lineno for name, member in cls.attributes.items()}
        fields = {n: at for n, at in places.items() if at and lines[at - 1].startswith(f"    {n}: ")}
        described = [f"    {name}: {text}" for name, at in fields.items() if (text := _comment(lines, at))]
        if described:
            cls.docstring.value += "\n".join(["\n\nAttributes:", *described])


def _comment(lines: list[str], number: int) -> str:
    """Return the comment behind a field, or the lines ``#:`` above it."""
    if found := _TRAILING.search(lines[number - 1]):
        return found[1][:1].upper() + found[1][1:] + "." * (not found[1].endswith("."))
    above: list[str] = []
    while lines[number - 2 - len(above)].strip().startswith("#:"):
        above.insert(0, lines[number - 2 - len(above)].strip().removeprefix("#: "))
    return " ".join(above)
