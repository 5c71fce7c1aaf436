"""Bring what lives outside `docs/` (results, benchmarks, examples) into the site, links and all.

On GitHub every page is read where it lies, and links between pages are paths between files. In the site,
`docs/` is the root. So that one link serves both, a link is resolved to the file that it means, and
rewritten to where that file is in the site. Nothing is copied into the repository.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SCRIPTS = ROOT / "examples"
OUTSIDE = (
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "results/*/*.md",
    "results/*/*.png",
)

#: Code, in which nothing is a link, and links (whose text may be code).
_LINKS = re.compile(
    r"(?P<code>^```.*?^```|`[^`\n]+`)|(?P<text>\[[^\[\]]*\])\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)",
    flags=re.DOTALL | re.MULTILINE,
)


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages outside, and their pictures, under their own paths; and one page of all scripts."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    files.append(File.generated(config, "examples.md", content=examples_page()))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Rewrite links between files of the repository to links between pages of the site."""
    if page.file.abs_src_path is None:  # made here
        return markdown
    source = Path(page.file.abs_src_path).resolve()

    def rewrite(match: re.Match[str]) -> str:
        target = match["target"]
        if match["code"] or re.match(r"[a-z]+:", target):
            return match[0]
        uri, anchor = site_place((source.parent / target).resolve())
        if files.get_file_from_path(uri) is None:
            raise PluginError(f"{source.relative_to(ROOT)} links to {target}, which is not in the site")
        relative = os.path.relpath(uri, Path(page.file.src_uri).parent).replace(os.sep, "/")
        return f"{match['text']}({relative}{match['anchor'] or anchor})"

    return _LINKS.sub(rewrite, markdown)


def site_place(path: Path) -> tuple[str, str]:
    """Page and anchor of a file of the repository; a folder stands for its README."""
    if path == SCRIPTS or path.parent == SCRIPTS:
        return "examples.md", "" if path == SCRIPTS else f"#{path.stem}"
    if path.is_dir():
        path = path / "README.md"
    if path == ROOT / "README.md":
        return "index.md", ""
    base = DOCS if path.is_relative_to(DOCS) else ROOT
    return os.path.relpath(path, base).replace(os.sep, "/"), ""


def examples_page() -> str:
    """All scripts of examples/ with what they say they are for."""
    parts = [
        "# Example scripts\n",
        "These are the scripts of `examples/`, whole. They run on made-up data.\n",
    ]
    for path in sorted(SCRIPTS.glob("*.py")):
        code = path.read_text(encoding="utf-8")
        says = (ast.get_docstring(ast.parse(code)) or "").split("\n\n")[0]
        parts.append(f"## {path.name} {{ #{path.stem} }}\n\n{says}\n\n```python\n{code.rstrip()}\n```\n")
    return "\n".join(parts)
