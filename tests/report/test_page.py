"""One content, two forms: names stay text in both, and a real browser shows the page without a request."""

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from elliptica.lab.experiments import page as lab_page
from elliptica.report import (
    Bar,
    Chart,
    Measure,
    Page,
    Section,
    charts,
    judge_seeds,
    render,
    to_html,
    to_markdown,
)

#: Names that would break out of HTML, SVG, Markdown, LaTeX or a spreadsheet.
HOSTILE = [
    "<script>alert(1)</script>",
    '</script><script>document.title="broken"</script>',
    '<a href="javascript:alert(1)">x</a>',
    "=HYPERLINK(1)",
    "| _a_ | \\b{%$#&~^}",
    r"$\input{/etc/passwd}$ ![x](http://a.example/p.png) [click](javascript:alert(1)) `code`",
]


def hostile_page():
    """A page with every part, on which every name is hostile."""
    methods = HOSTILE[:4]
    measure = Measure("average", HOSTILE[0], True, True)
    values = {m: {s: 50.0 + 10 * i + s for s in range(4)} for i, m in enumerate(methods)}
    verdict = judge_seeds({"average": values}, [measure], methods, methods[0])
    dots = {m: list(own.values()) for m, own in values.items()}
    drawn = [
        lab_page.dots(dots, {m: own[0] for m, own in dots.items()}, HOSTILE[0]),
        charts.intervals(verdict.differences, {m: m for m in methods}, measure),
        charts.agreement([1.0, 2.0], [2.0, 1.5], HOSTILE[0], HOSTILE[1]),
        lab_page.lines({m: [[1.0, float("nan"), 2.0]] for m in methods}, HOSTILE[0], HOSTILE[1]),
    ]
    bars = [Bar(HOSTILE[0], 0.5, 0.2, 0.9, HOSTILE[5]), Bar(40 * "long label ", 1.0, 1.0, 1.0, "100 %")]
    sections = [
        Section(HOSTILE[0], HOSTILE, [HOSTILE, HOSTILE], bold={(0, 1)}, points=HOSTILE),
        Section(HOSTILE[1], charts=[Chart(HOSTILE[0], figure, HOSTILE[1]) for figure in drawn]),
        Section(HOSTILE[2], bars=bars, mark="warning"),
        Section("Folded", ["text"], folded=True),
    ]
    return Page(HOSTILE[1], verdict.headline, verdict.sentences, sections, HOSTILE[0])


class Elements(HTMLParser):
    """Collects elements and links."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src", "onclick", "onerror")]


def test_hostile_names_stay_text_in_html():
    page = to_html(hostile_page())
    plain = Elements(page)
    assert (plain.tags.count("script"), plain.tags.count("svg"), plain.links) == (0, 4, [])
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "nan" not in page


def test_hostile_names_stay_text_in_markdown():
    """No HTML, no bracket, formula or bar that is not preceded by an odd number of backslashes."""
    text = to_markdown(hostile_page())
    assert "<" not in text
    assert not re.search(r"(?<!\\)(\\\\)*[\[\]$`]", text)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table[0].replace("\\\\", "").replace("\\|", "").split("|")) == len(HOSTILE) + 2
    assert len(re.findall("^## ", text, re.MULTILINE)) == 4


def test_both_forms_show_the_same_content(tmp_path):
    table = [["method", "score"], ["a", "1"], ["b", "2"]]
    part = Section("Part", ["Text."], table, bold={(1, 1)}, points=["p"])
    page = Page("Title", "Headline.", ["Why."], [part])
    for name in ("page.md", "page.html"):
        render(page, tmp_path / name)
    assert (tmp_path / "page.md").read_text() == (
        "# Title\n\n**Headline.**\n\nWhy.\n\n## Part\n\nText.\n\n| method | score |\n|---|--:|\n| a | 1 |\n"
        "| b | **2** |\n\n- p\n"
    )
    html = (tmp_path / "page.html").read_text()
    for text in ("Title", "Headline.", "Why.", "Part", "Text.", "method", ">2<", "<li>p"):
        assert text in html


@pytest.fixture(scope="module")
def seen(visit, tmp_path_factory):
    """The hostile page on a small dark screen."""
    file = tmp_path_factory.mktemp("page") / "page.html"
    render(hostile_page(), file)
    seen = visit(file, width=375, dark=True)
    seen.page.on("dialog", lambda dialog: seen.problems.append(f"dialog {dialog.message}"))
    return seen


@pytest.mark.slow
def test_a_phone_shows_everything_without_errors_or_requests(seen):
    assert seen.page.title() == HOSTILE[1]
    assert (seen.problems, seen.requests, seen.overflow()) == ([], [], [])
    assert seen.page.locator("main a").count() == 0
    texts = "all => all.map((t) => [t.textContent, t.getBBox().x, t.getBBox().x + t.getBBox().width])"
    labels = seen.page.eval_on_selector_all("svg text", texts)
    assert HOSTILE[0] in [label for label, *_ in labels]
    assert all(left > -1 and right < 421 for _, left, right in labels)  # the width of a drawing
    levels = seen.page.eval_on_selector_all("h1, h2, h3", "all => all.map((h) => +h.tagName[1])")
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert seen.low_contrast() == []
    seen.switch(dark=False)
    assert seen.low_contrast() == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [375, 1280])
def test_bars_do_not_cover_their_labels(seen, width):
    seen.resize(width)
    overlaps = """() => [...document.querySelectorAll('.bars tr')].filter((row) => {
      const [label, bar, number] = [...row.children].map((cell) => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        return range.getBoundingClientRect();
      });
      return label.right > bar.left + 1 || bar.right > number.left + 1;
    }).length"""
    assert seen.page.locator(".bars tr").count() == 2
    assert seen.page.evaluate(overlaps) == 0
