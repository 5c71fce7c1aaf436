"""Show the examples of docstrings as code: our heading is `Example:`, mkdocstrings knows `Examples:`."""

from __future__ import annotations

import re
from typing import Any

import griffe

_HEADING = re.compile(r"^( *)Example:$", flags=re.MULTILINE)


class ExampleSections(griffe.Extension):
    """Rename the heading in what was read from the sources; the sources stay as they are."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = _HEADING.sub(r"\1Examples:", obj.docstring.value)
