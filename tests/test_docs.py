"""Code blocks of the README and the docs run, and links between the files lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += [ROOT / "benchmarks" / "README.md", *sorted((ROOT / "results").rglob("*.md"))]


def ids(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_python_blocks_run(page):
    """All blocks of a page run in order, in one namespace."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    namespace = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)  # our own pages


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), f"{ids(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_nothing_is_left_to_fill_in(page):
    assert not re.search(r"COST_TABLE|RESULTS_TABLE|\bpending\b|TBD", page.read_text())
