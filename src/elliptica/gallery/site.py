"""Writing the site: an index, a page for each result, pictures, and one copy of plotly.js."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from elliptica._version import __version__
from elliptica.gallery.collect import INDEX, PLOTLY, Gallery, collect
from elliptica.report.content import ReportError

#: File by which a folder is known to be a gallery, which may be written over.
_MARK = ".elliptica-gallery"


def build_gallery(results: Path, out: Path) -> Gallery:
    """Build a static site of a folder of results; it needs no network, and no server.

    Args:
        results: Folder such as the repository's ``results``.
        out: Folder of the site: new, empty, or a gallery from before, which is replaced.

    Raises:
        ReportError: If there is nothing to show, or ``out`` holds something else.
    """
    out = out.resolve()  # the current folder has a name, too
    _check_out(out, results)
    found = collect(results)
    texts = {INDEX: _render("index.html", gallery=found)}
    texts |= found.pages
    texts |= {
        name: _render("text.html", title=title, body=body) for name, (title, body) in found.texts.items()
    }
    part = out.with_name(f"{out.name}.{os.getpid()}.part")  # of nobody else
    part.mkdir(parents=True)
    try:
        _write(part, texts, found.pictures)
        if out.exists():
            shutil.rmtree(out)
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return found


def _write(part: Path, texts: Mapping[str, str], pictures: Mapping[str, Path]) -> None:
    """All files of the site, plotly.js and the mark of a gallery among them."""
    for name, text in texts.items():
        (part / name).write_text(text, encoding="utf-8")
    for name, source in pictures.items():
        shutil.copyfile(source, part / name)
    from plotly.offline import get_plotlyjs

    (part / PLOTLY).write_text(get_plotlyjs(), encoding="utf-8")
    (part / _MARK).write_text("Written by elliptica gallery.\n")


def _check_out(out: Path, results: Path) -> None:
    """Refuse before the work is done; only an empty folder or a gallery is replaced."""
    if not results.is_dir():
        raise ReportError(
            f"There is no folder {results}. Say where the results are: elliptica gallery FOLDER."
        )
    if out == Path.cwd():
        raise ReportError(f"{out} is the current folder, which cannot be replaced. Pass another one to -o.")
    if out.is_file():
        raise ReportError(f"{out} is a file. Pass the name of a folder to -o.")
    if out.is_dir() and any(out.iterdir()) and not (out / _MARK).is_file():
        raise ReportError(f"{out} holds something that is no gallery. Choose another -o, or empty it first.")


def _render(name: str, **content: object) -> str:
    import jinja2

    from elliptica.report.page import STYLES, _asset

    folder = resources.files("elliptica.gallery").joinpath("assets")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    own = folder.joinpath("gallery.css").read_text(encoding="utf-8")
    style = "\n".join([*map(_asset, STYLES), own])
    text = folder.joinpath(name).read_text(encoding="utf-8")
    return environment.from_string(text).render(
        style=style, script=_asset("theme.js"), version=__version__, home=INDEX, **content
    )
