"""Bring what lives outside `docs/` (results, benchmarks, examples) into the site, links and all.

On GitHub every page is read where it lies, and links between pages are paths between files. In the site,
`docs/` is the root. So that one link serves both, a link is resolved to the file that it means, and
rewritten to where that file is in the site. Nothing is copied into the repository.

The site also gets links from names of code to the API or the source, links from a tutorial to its notebook,
and its commit in the footer. The address of the repository is that of `pyproject.toml`.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import griffe
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
#: Pages on which names of code become links.
WITH_CODE = ("paper-map.md", "deviations.md")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Source"]
COLAB = REPOSITORY.replace("https://github.com", "https://colab.research.google.com/github")

_CODE = re.compile(r"(?<!\[)`((?:elliptica\.|(?:src|tests|studies)/)[\w./]+(?:::\w+)?)`")

#: Code, in which nothing is a link, and links (whose text may be code).
_LINKS = re.compile(
    r"(?P<code>^```.*?^```|`[^`\n]+`)|(?P<text>\[[^\[\]]*\])\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)",
    flags=re.DOTALL | re.MULTILINE,
)


def on_config(config: MkDocsConfig, **_: Any) -> MkDocsConfig:
    """Show the commit in the footer: of a release, its tag."""
    shown = git("describe", "--tags", "--always")
    config.copyright = f'elliptica, <a href="{REPOSITORY}/tree/{revision()}">{shown}</a>'
    return config


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
    if source.with_suffix(".ipynb").is_file():
        markdown = markdown.replace("\n", f"\n\n{notebook_links(source.with_suffix('.ipynb'))}\n", 1)
    if page.file.src_uri in WITH_CODE:
        markdown = _CODE.sub(lambda match: code_link(match[1]), markdown)

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


@cache
def revision() -> str:
    """Commit that the site shows."""
    return git("rev-parse", "HEAD")


def git(*words: str) -> str:
    """What git says of the repository; without git, the main branch."""
    if not (ROOT / ".git").exists():
        return "main"
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def notebook_links(path: Path) -> str:
    """Links to open a notebook in Colab and to download it."""
    place = path.relative_to(ROOT).as_posix()
    colab = f"[Open in Colab]({COLAB}/blob/{revision()}/{place}){{ .badge }}"
    return f"{colab} [Download the notebook]({path.name}){{ .badge download={path.name} }}"


def code_link(name: str) -> str:
    """Link of a name, which may break after dots; a test of a file goes by its function."""
    shown = re.sub(r"([._/])", r"\1<wbr>", name.rpartition("::")[2]).replace("_", "&#95;")
    return f"[<code>{shown}</code>]({code_place(name)})"


def code_place(name: str) -> str:
    """Link target of a name of the library (its API entry, else its source), a file, or a test in a file."""
    path, _, test = name.partition("::")
    line = 0
    if "/" in path:
        text = (ROOT / path).read_text(encoding="utf-8")
        line = text[: text.index(f"\ndef {test}(") + 1].count("\n") + 1 if test else 0
    else:
        found = library()[name.removeprefix("elliptica.")]
        owner = found if found.canonical_path in api() else found.parent
        if owner.canonical_path in api():
            page, documented = api()[owner.canonical_path]
            return f"{page}#{documented}{found.canonical_path.removeprefix(owner.canonical_path)}"
        path, line = found.filepath.relative_to(ROOT).as_posix(), found.lineno or 0
    return f"{REPOSITORY}/blob/{revision()}/{path}" + (f"#L{line}" if line else "")


@cache
def library() -> griffe.Object:
    """The library as its sources say it, without importing it."""
    return griffe.load("elliptica", search_paths=[str(ROOT / "src")], resolve_aliases=True)


@cache
def api() -> dict[str, tuple[str, str]]:
    """Page and name in the API of each object there, by the path of its definition."""
    return {
        library()[name.removeprefix("elliptica.")].canonical_path: (f"api/{page.name}", name)
        for page in sorted((DOCS / "api").glob("*.md"))
        for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    }


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
