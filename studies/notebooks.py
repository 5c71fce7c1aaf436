"""Make the notebooks of the two main tutorials from their pages, run them, and store what they print.

::

    pip install nbclient ipykernel
    python studies/notebooks.py

A page and its notebook are one text: prose becomes Markdown cells, ``python`` blocks code cells, and each
``$`` line of a ``console`` block a cell that runs the command in a shell.
Output shown on the page is left to the cell.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "tutorials"
NAMES = ("own-loop", "own-table")
#: Seconds that one cell may take.
TIMEOUT = 600

_BLOCK = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$\n?", flags=re.DOTALL | re.MULTILINE)
#: Why a page does not run a block; a notebook, which has the files, does.
_NOT_RUN = re.compile(r"^<!-- not run: .+? -->\n", flags=re.MULTILINE)


def cells(text: str) -> Iterator[tuple[str, str]]:
    """Split a page into ``("markdown", text)`` and ``("code", text)``."""
    end = 0
    text = _NOT_RUN.sub("", text)
    for block in _BLOCK.finditer(text):
        yield from _prose(text[end : block.start()])
        end = block.end()
        if block["kind"].startswith("python"):
            yield "code", block["body"].rstrip()
        elif block["kind"].startswith("console"):
            yield from (("code", cell) for cell in _commands(block["body"]))
    yield from _prose(text[end:])


def _prose(text: str) -> Iterator[tuple[str, str]]:
    if text.strip():
        yield "markdown", text.strip()


def _commands(body: str) -> Iterator[str]:
    """Cells of the commands in a block; one that is shown to fail may."""
    lines = body.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("$ "):
            may_fail = " --no-raise-error" if following.startswith("error:") else ""
            yield f"%%sh{may_fail}\n{line[2:]}"


def make(name: str) -> Any:
    """Make the notebook of a page, not run yet."""
    import nbformat.v4 as v4

    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    made = []
    for number, (kind, source) in enumerate(cells(text)):
        cell = v4.new_markdown_cell(source) if kind == "markdown" else v4.new_code_cell(source)
        cell["id"] = f"{name}-{number}"
        made.append(cell)
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return v4.new_notebook(cells=made, metadata=metadata)


def run(notebook: Any) -> Any:
    """Run a notebook in an empty folder with the commands of this environment; raise if a cell fails."""
    from nbclient import NotebookClient

    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    # kernels ask for colours, which rich takes for a terminal: no progress bars in what is stored
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "TTY_COMPATIBLE": "0"}
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": folder}})
        client.execute(env=environment)
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)  # times of day
        if cell.get("outputs"):
            cell["outputs"] = [_joined(cell["outputs"])]
    return notebook


def _joined(outputs: list[Any]) -> Any:
    """Join the pieces in which a cell printed."""
    import nbformat.v4 as v4

    if any(output["output_type"] != "stream" for output in outputs):
        raise ValueError(f"A cell shows something else than text: {outputs}")
    return v4.new_output("stream", name="stdout", text="".join(output["text"] for output in outputs))


def main() -> None:
    """Write the notebooks."""
    import nbformat

    for name in NAMES:
        notebook = run(make(name))
        nbformat.validate(notebook)
        nbformat.write(notebook, FOLDER / f"{name}.ipynb")


if __name__ == "__main__":
    main()
