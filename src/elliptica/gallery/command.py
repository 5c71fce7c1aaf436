"""`elliptica gallery` on the screen."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from elliptica.gallery.collect import INDEX
from elliptica.gallery.site import build_gallery
from elliptica.report.content import ReportError


def run_gallery(results: Path, out: Path, console: Console) -> int:
    """Build the site; returns the exit status."""
    try:
        with console.status("reading records"):
            found = build_gallery(results, out)
    except (ReportError, OSError) as error:
        console.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print(f"Interrupted: {out} is as it was.", highlight=False)
        return 130
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    cards = sum(len(section) for section in found.sections.values())
    told = f"{out / INDEX}: {cards} cards, {len(found.pages) + len(found.texts)} pages, {size / 1e6:.1f} MB."
    console.print(told, highlight=False, markup=False, soft_wrap=True)
    for name, why in found.unusable:
        console.print(f"not shown: {name}: {why}", style="yellow", highlight=False, markup=False)
    return 0
