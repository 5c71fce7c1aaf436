"""Make the notebooks of the two main tutorials from their pages, run them, and store what they print.

::

    pip install nbclient ipykernel
    python studies/notebooks.py

A page and its notebook are one text: prose becomes Markdown cells, ``python`` blocks code cells, and each
``$`` line of a ``console`` block a cell that runs the command in a shell. The first cell installs the
package where it is missing, as in Colab. Output shown on the page is left to the cell.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "tutorials"
NAMES = ("own-loop", "own-table")
#: Seconds that one cell may take.
TIMEOUT = 600
ADDRESS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
INSTALL = f"""import importlib.util

if not importlib.util.find_spec("elliptica"):
    %pip install --quiet "elliptica[tables] @ git+{ADDRESS}\""""

_BLOCK = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$\n?", flags=re.DOTALL | re.MULTILINE)
#: Why a page does not run a block; a notebook, which has the files, does.
_NOT_RUN = re.compile(r"^<!-- not run: .+? -->\n", flags=re.MULTILINE)


def cells(text: str) -> Iterator[tuple[str, str]]:
    """Split a page into ``("markdown", text)`` and ``("code", text)``."""
    end, text = 0, _NOT_RUN.sub("", text)
    for block in (*_BLOCK.finditer(text), None):
        prose = text[end : block.start() if block else None].strip()
        if prose:
            yield "markdown", prose
        if block:
            end = block.end()
            yield from (("code", cell) for cell in _code(block["kind"], block["body"]))


def _code(kind: str, body: str) -> Iterator[str]:
    """Cells of a block: its Python, or its commands, of which one that is shown to fail may."""
    if kind.startswith("python"):
        yield body.rstrip()
    lines = body.splitlines() if kind.startswith("console") else []
    for line, following in pairwise([*lines, ""]):
        if line.startswith("$ "):
            may_fail = " --no-raise-error" if following.startswith("error:") else ""
            yield f"%%sh{may_fail}\n{line[2:]}"


def make(name: str) -> Any:
    """Make the notebook of a page, not run yet."""
    import nbformat.v4 as v4

    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    new = {"markdown": v4.new_markdown_cell, "code": v4.new_code_cell}
    all_cells = [("code", INSTALL), *cells(text)]
    made = [new[kind](source, id=f"{name}-{number}") for number, (kind, source) in enumerate(all_cells)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=made, metadata={"kernelspec": kernel})


def run(notebook: Any) -> Any:
    """Run a notebook in an empty folder with the commands of this environment; raise if a cell fails."""
    import nbformat.v4 as v4
    from nbclient import NotebookClient

    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    # kernels ask for colours, which rich takes for a terminal: no progress bars in what is stored
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "TTY_COMPATIBLE": "0"}
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": folder}})
        client.execute(env=environment)
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)  # times of day
        if cell.get("outputs"):  # join the pieces in which it printed
            text = "".join(output["text"] for output in cell["outputs"])
            cell["outputs"] = [v4.new_output("stream", name="stdout", text=text)]
    return notebook


if __name__ == "__main__":
    import nbformat

    for name in NAMES:
        notebook = run(make(name))
        nbformat.validate(notebook)
        nbformat.write(notebook, FOLDER / f"{name}.ipynb")
