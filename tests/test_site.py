"""The documentation site builds without a warning, is complete, and loads nothing from elsewhere."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PACKAGES = [
    "elliptica",
    "elliptica.landscape",
    "elliptica.tables",
    "elliptica.baselines",
    "elliptica.estimators",
    "elliptica.report",
    "elliptica.integrations",
    "elliptica.partner_index",
]


class Resources(HTMLParser):
    """What a page loads, and what it links to."""

    def __init__(self):
        super().__init__()
        self.loads, self.links, self.anchors = [], [], set()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if found.get("id"):
            self.anchors.add(found["id"])
        if tag == "a":
            self.links.append(found.get("href") or "")
        elif tag == "link":
            self.loads.append(found.get("href") or "")
        self.loads += [found[name] or "" for name in ("src", "srcset", "data") if name in found]


def read(path):
    parser = Resources()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser


def is_elsewhere(target):
    return bool(re.match(r"(?:[a-z]+:)?//", target))


def build(folder):
    # the theme's makers advertise in the log; that is no warning about our pages
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory, results):  # whose pages are in the navigation
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra docs)")
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def load_hooks():
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra docs)")
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "_hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    return hooks


def page_of(source):
    """Where a page of the repository is in the site."""
    base = DOCS if source.is_relative_to(DOCS) else ROOT
    place = source.relative_to(base)
    return place.with_name("index.html") if place.name == "README.md" else place.with_suffix(".html")


@pytest.mark.slow
def test_every_page_is_there_and_in_the_navigation(site):
    sources = [*DOCS.rglob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
    sources += (ROOT / "results").glob("*/*.md")
    start = {link.split("#")[0] for link in read(site / "index.html").links}
    for source in sources:
        place = page_of(source)
        assert (site / place).is_file(), f"{source} is not in the site"
        assert place.name == "index.html" or str(place) in start, f"{place} is not in the navigation"


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site):
    for path in site.rglob("*.html"):
        outside = [target for target in read(path).loads if is_elsewhere(target)]
        assert not outside, f"{path.relative_to(site)} loads {outside}"
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", text), path
    assert not list(site.rglob("*.py")), "the hook is not part of the site"


@pytest.mark.slow
def test_links_and_pictures_within_the_site_lead_somewhere(site):
    pages = {path: read(path) for path in site.rglob("*.html") if path.name != "404.html"}
    for path, found in pages.items():
        for target in (*found.links, *found.loads):
            if is_elsewhere(target) or target.startswith(("data:", "mailto:")) or not target:
                continue
            name, _, anchor = target.partition("#")
            place = (path.parent / name).resolve() if name else path
            place = place / "index.html" if place.is_dir() else place
            assert place.is_file(), f"{path.relative_to(site)} links to {target}"
            if anchor and place in pages:
                assert anchor in pages[place].anchors, f"{path.relative_to(site)} links to {target}"


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1280])
def test_pages_fit_the_screen_and_say_how_to_search(site, visit, width):
    """Opened from a file, commands wrap, nothing is wider than the window, and the search says what to do."""
    for page in ("index.html", "reproduction.html", "paper-map.html", "tutorials/own-table.html"):
        opened = visit(site / page, width=width)
        assert not opened.overflow(), page
        seen = opened.page
        names = "[...document.querySelectorAll('td > code')].filter(c => /^[\\w.]+$/.test(c.innerHTML))"
        assert all(n == 1 for n in seen.evaluate(f"{names}.map(c => c.getClientRects().length)")), page
        blocks = (
            "[...document.querySelectorAll('.language-console code')].map(c => c.scrollWidth - c.clientWidth)"
        )
        assert all(over <= 0 for over in seen.evaluate(blocks)), page
        assert "http.server" in seen.locator("input.md-search__input").get_attribute("placeholder")


@pytest.mark.slow
def test_scripts_and_arguments_are_shown(site):
    text = (site / "examples.html").read_text(encoding="utf-8")
    assert all(f'id="{script.stem}"' in text for script in (ROOT / "examples").glob("*.py"))
    text = (site / "api" / "training.html").read_text(encoding="utf-8")
    assert 'id="elliptica.Elliptic"' in text
    assert "Diffusion coefficient (sigma_b)" in text


@pytest.mark.slow
def test_names_of_the_paper_map_are_links(site):
    text = (site / "paper-map.html").read_text(encoding="utf-8")
    assert not re.search(r"(?<!>)<code>(?:elliptica\.|src/|tests/)", text)
    (address,) = {
        link.partition("/blob/")[0] for link in read(site / "paper-map.html").links if "/blob/" in link
    }
    places = re.findall(rf'href="{address}/blob/\w+/([^"#]+)', text)
    assert len(places) > 80
    assert all((ROOT / place).is_file() for place in places)


@pytest.mark.slow
def test_tutorials_lead_to_their_notebooks_and_the_footer_says_the_commit(site):
    for notebook in (DOCS / "tutorials").glob("*.ipynb"):
        links = read(site / "tutorials" / f"{notebook.stem}.html").links
        assert notebook.name in links
        assert any(link.endswith(f"/docs/tutorials/{notebook.name}") for link in links)
    assert re.search(r"elliptica, <a [^>]*>[\w.-]+</a>", (site / "index.html").read_text(encoding="utf-8"))


@cache
def documented():
    """Objects on the API pages, by the names that stand there."""
    found = {}
    for page in sorted((DOCS / "api").glob("*.md")):
        for name in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE):
            package, _, last = name.rpartition(".")
            found[name] = getattr(importlib.import_module(package), last)
    return found


@pytest.mark.slow  # it imports every optional package
@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_api(package):
    module = importlib.import_module(package)
    public = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("elliptica.")
    ]
    known = {id(value) for value in documented().values()}
    assert len(known) == len(documented()), "a name is there twice"
    missing = [name for name in public if name[0] != "_" and id(getattr(module, name)) not in known]
    assert not missing, f"names of {package} that are on no page of docs/api: {missing}"


@pytest.mark.usefixtures("results")  # a link to a folder
@pytest.mark.parametrize(
    ("line", "rewritten"),
    [
        ("[a](../../results/tables/README.md#b)", "[a](../results/tables/README.md#b)"),
        ("[`a`](../../results/two_moons/) and `b`", "[`a`](../results/two_moons/README.md) and `b`"),
        ("[a](../../examples/x.py), [b](../../README.md)", "[a](../examples.md#x), [b](../index.md)"),
        ("[a](../settings.md#b), [c](own-loop.md)", "[a](../settings.md#b), [c](own-loop.md)"),
        ("`[a](../../results/two_moons/)`", "`[a](../../results/two_moons/)`"),
        ("```python\n[a](../../nothing.md)\n```", "```python\n[a](../../nothing.md)\n```"),
        ("[a](https://a.b/c) [d](#e)", "[a](https://a.b/c) [d](#e)"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(line, rewritten):
    hooks = load_hooks()
    page = SimpleNamespace(
        file=SimpleNamespace(abs_src_path=str(DOCS / "tutorials" / "x.md"), src_uri="tutorials/x.md")
    )
    files = SimpleNamespace(get_file_from_path=lambda uri: uri)
    assert hooks.on_page_markdown(line, page=page, files=files) == rewritten


def test_a_link_to_nowhere_stops_the_build():
    page = SimpleNamespace(file=SimpleNamespace(abs_src_path=str(DOCS / "x.md"), src_uri="x.md"))
    files = SimpleNamespace(get_file_from_path=lambda uri: None)
    with pytest.raises(Exception, match=r"nothing\.md"):
        load_hooks().on_page_markdown("[a](nothing.md)", page=page, files=files)
