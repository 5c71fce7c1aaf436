"""The gallery: complete, without dead links, without a network, readable on any screen."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("markdown")
pytest.importorskip("plotly")

from elliptica.gallery import build_gallery
from elliptica.gallery.collect import INDEX, PLOTLY
from elliptica.gallery.readmes import best_table, first_table, read_readme
from elliptica.gallery.thumbnails import Mark, draw_marks
from elliptica.report import ReportError

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


class Addresses(HTMLParser):
    """Where a page leads, what it loads, and the names of its places."""

    def __init__(self):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], set()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors.add(found.get("id"))
        if tag == "a":
            self.links.append(found["href"])
        elif tag in ("link", "script", "img"):
            self.loads += [found[name] for name in ("src", "href") if name in found]


def read(path):
    parser = Addresses()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser


def assert_complete(site):
    """Every link and every file that a page loads is in the folder, anchors included."""
    pages = {path.name: read(path) for path in site.glob("*.html")}
    for name, page in pages.items():
        assert "" not in page.loads, f"{name} loads nothing"
        for target in page.loads:
            assert (site / target).is_file(), f"{name} loads {target}"
        for target in page.links:
            file, _, place = target.partition("#")
            assert (site / (file or name)).is_file(), f"{name} links to {target}"
            assert not place or place in pages[file or name].anchors, f"{name} links to {target}"
    reached, left = set(), [INDEX]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += [target.partition("#")[0] or name for target in pages[name].links]
    assert reached == set(pages)
    return pages


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A gallery of a few of the committed results."""
    folder = tmp_path_factory.mktemp("repository")
    for part in (
        "tables/table1",
        "tables/shift",
        "two_moons",
        "sampling_modes",
        "green_bridge",
        "compare/wine",
    ):
        shutil.copytree(RESULTS / part, folder / "results" / part)
    for part in ("tables/README.md", "tables/robustness.md", "compare/README.md"):
        shutil.copyfile(RESULTS / part, folder / "results" / part)
    (folder / "docs").mkdir()
    shutil.copyfile(ROOT / "docs" / "results.md", folder / "docs" / "results.md")
    build_gallery(folder / "results", folder / "site")
    return folder / "site"


@pytest.mark.slow
def test_the_whole_gallery_is_complete_and_small(tmp_path):
    found = build_gallery(RESULTS, tmp_path / "site")
    pages = assert_complete(tmp_path / "site")
    assert sum(path.stat().st_size for path in (tmp_path / "site").rglob("*")) < 40e6
    tables = {path.name for path in (RESULTS / "tables").iterdir() if path.is_dir()} - {"trials"}
    assert {f"{name}.html" for name in tables} <= set(pages)
    linked = set(pages[INDEX].links)
    for folder in RESULTS.iterdir():
        if folder.name not in ("tables", "compare"):
            assert {f"{folder.name}.html", f"about-{folder.name}.html"} & linked, folder.name
    assert {f"compare-{path.parent.name}.html" for path in RESULTS.glob("compare/*/results.json")} <= linked
    assert found.unusable == []
    for cards in found.sections.values():
        for card in cards:
            assert card.verdict
            assert card.thumbnail.startswith("<svg"), card.title


def test_links_pictures_and_one_copy_of_plotly(site):
    assert_complete(site)
    assert (site / PLOTLY).stat().st_size > 1e6
    for path in site.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert len(text) < 1e6  # plotly.js is not in it
        assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", text)
    assert (site / "green_bridge-gain_by_distance.png").is_file()


def test_cards_say_what_the_records_say(site):
    """Numbers of a chart are means over the seeds of the committed records."""
    text = (site / INDEX).read_text(encoding="utf-8")
    label = re.search(r'aria-label="cifar10-batch1, error: ([^"]*)"', text)[1]
    files = (RESULTS / "tables" / "table1" / "cifar10-batch1" / "erm").glob("*-seed*.json")
    values = [100 * json.loads(f.read_text())["metrics"]["test"]["average"] for f in files]
    assert f"erm {sum(values) / len(values):.3g}" in label
    assert "Strongly on one shift, harmful in distribution, and no rule chooses." in text


@pytest.mark.slow
@pytest.mark.parametrize("name", [INDEX, "table1.html", "two_moons.html", "about-green_bridge.html"])
def test_pages_in_a_browser(site, visit, name):
    seen = visit(site / name, width=375, dark=True)
    for width, dark in ((375, True), (320, False), (1280, False)):
        seen.switch(dark=dark)
        seen.resize(width)
        assert seen.overflow() == []
        assert seen.low_contrast() == []
    assert seen.problems == []
    assert all(address.startswith(site.as_uri()) for address in seen.requests)


@pytest.mark.slow
def test_from_a_card_to_a_chart_and_back(site, visit):
    seen = visit(site / INDEX)
    seen.page.click("#theme")
    seen.page.get_by_role("link", name="Table 1. Natural images").click()
    seen.page.wait_for_function("document.documentElement.dataset.theme === 'light'")  # as on the index
    seen.page.locator("[data-chart]").first.evaluate("card => card.scrollIntoView({block: 'center'})")
    seen.page.wait_for_selector(".js-plotly-plot .main-svg")
    seen.page.get_by_role("link", name="all results").click()
    assert seen.page.title() == "elliptica: all results"
    assert seen.problems == []


def test_only_a_gallery_is_replaced(site, tmp_path, monkeypatch):
    results = site.parent / "results"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(ReportError, match="holds something that is no gallery"):
        build_gallery(results, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"
    with monkeypatch.context() as inside:
        inside.chdir(tmp_path / "mine")
        with pytest.raises(ReportError, match="is the current folder"):
            build_gallery(results, Path())
    with pytest.raises(ReportError, match="is a file"):
        build_gallery(results, tmp_path / "mine" / "thesis.tex")
    with pytest.raises(ReportError, match="There is no folder"):
        build_gallery(tmp_path / "nowhere", tmp_path / "site")
    with pytest.raises(ReportError, match="holds nothing to show"):
        build_gallery(tmp_path / "mine", tmp_path / "site")
    assert not (tmp_path / "site").exists()
    shutil.copytree(RESULTS / "two_moons", tmp_path / "few" / "two_moons")
    for _ in range(2):
        build_gallery(tmp_path / "few", tmp_path / "site")
        (tmp_path / "site" / "old.html").write_text("from before")
    build_gallery(tmp_path / "few", tmp_path / "site")
    assert not (tmp_path / "site" / "old.html").exists()


def test_a_spoilt_comparison_is_named_and_the_rest_is_shown(tmp_path):
    shutil.copytree(RESULTS / "two_moons", tmp_path / "results" / "two_moons")
    spoilt = tmp_path / "results" / "compare" / "broken"
    spoilt.mkdir(parents=True)
    (spoilt / "results.json").write_text("{")
    found = build_gallery(tmp_path / "results", tmp_path / "site")
    assert [name for name, _ in found.unusable] == ["compare/broken"]
    assert "compare/broken" in (tmp_path / "site" / INDEX).read_text()


def test_names_cannot_become_markup():
    drawn = draw_marks([Mark("<script>alert(1)</script>", 1.0), Mark("b", 2.0)], 'a"b')
    assert "<script" not in drawn
    assert 'a"b' not in drawn


def test_charts_place_values_between_the_least_and_the_largest():
    drawn = draw_marks([Mark("a", 0.0), Mark("b", 1.0), Mark("c", 0.25)], "x")
    places = [float(x) for x in re.findall(r'cx="([\d.]+)"', drawn)]
    assert (places[2] - places[0]) / (places[1] - places[0]) == pytest.approx(0.25, abs=0.01)
    assert draw_marks([], "x") == ""
    assert "circle" in draw_marks([Mark("a", 3.0)], "x")  # one value is no division by zero


def test_tables_of_markdown_become_charts():
    table = "| data | method | rows | error |\n|---|---|--:|--:|\n"
    table += (
        "| a | erm | 1 | 2.0 ± 0.5 |\n| a | marginal | 1 | **1.5 ± 0.5** |\n| b | erm | 1 | 9.0 ± 0.1 |\n"
    )
    name, marks = first_table(table)
    assert name == "a: error"
    assert [(m.name, m.value, m.low, m.is_own) for m in marks] == [
        ("erm", 2.0, 1.5, False),
        ("marginal", 1.5, 1.0, True),
    ]
    assert best_table(table) == ("", [])  # two rows are no chart
    assert first_table("no table") == ("", [])


def test_links_out_of_the_site_become_words(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(
        "# A `title`\n\nFirst sentence, with [code](../src/x.py). Second.\n\n"
        "[in](other.md#part) [web](https://a.b) [here](#x)\n\n![gone](none.png)\n"
    )
    found = read_readme(page, lambda path: "other.html" if path.name == "other.md" else None)
    assert found.title == "A title"
    assert found.first == "First sentence, with code."
    assert '<a href="other.html">in</a> web <a href="#x">here</a>' in found.body
    assert "x.py" not in found.body
