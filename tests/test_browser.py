"""The helper for tests of pages sees what it should: errors, requests, wide elements, pale texts."""

import pytest

pytestmark = pytest.mark.slow

PAGE = "<!doctype html><html lang=en><meta charset=utf-8><title>t</title><body>{}</body></html>"


def test_a_faultless_page(visit, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(PAGE.format("<p>text</p><img alt='' src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>"))
    seen = visit(file, width=375)
    assert seen.page.inner_text("p") == "text"
    assert (seen.problems, seen.requests, seen.overflow(), seen.low_contrast()) == ([], [], [], [])


def test_errors_and_requests_are_seen(visit, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(
        PAGE.format(
            "<script>console.error('a complaint'); console.warn('a hint');"
            "setTimeout(() => { throw Error('a fault') })</script>"
            "<img alt='' src='http://127.0.0.1:9/picture.png'>"
        )
    )
    seen = visit(file)
    seen.page.wait_for_timeout(100)
    assert any("a complaint" in problem for problem in seen.problems)
    assert any("a fault" in problem for problem in seen.problems)
    assert seen.warnings == ["a hint"]
    assert seen.requests == ["http://127.0.0.1:9/picture.png"]


def test_wide_elements_are_seen_unless_their_box_scrolls(visit):
    wide = "<div id=wide style='width:900px'>x</div>"
    assert "DIV" in visit(PAGE.format(wide), width=375).overflow()[0]
    assert visit(PAGE.format(f"<div style='overflow-x:auto'>{wide}</div>"), width=375).overflow() == []


@pytest.mark.parametrize(
    ("style", "is_pale"),
    [
        ("color:#777;background:#fff", True),  # 4.48
        ("color:#767676;background:#fff", False),  # 4.54
        ("color:#777;background:#fff;font-size:24px", False),
        ("color:rgb(0 0 0 / 50%);background:#fff", True),  # 3.98 once mixed with the white
        ("color:#fff;background:rgb(0 0 0 / 90%)", False),
        ("color:#777;background:#fff;display:none", False),
    ],
    ids=["grey", "darker", "large", "see-through", "on black", "hidden"],
)
def test_pale_texts_are_seen(visit, style, is_pale):
    assert bool(visit(PAGE.format(f'<p style="{style}">text</p>')).low_contrast()) == is_pale


def test_the_clipboard_and_the_scheme(visit, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(PAGE.format("<button onclick='navigator.clipboard.writeText(`a\\tb`)'>copy</button>"))
    seen = visit(file, dark=True, reduced_motion=True)
    seen.page.click("button")
    assert seen.clipboard() == "a\tb"
    asked = "(q) => matchMedia(q).matches"
    assert seen.page.evaluate(asked, "(prefers-color-scheme: dark)")
    assert seen.page.evaluate(asked, "(prefers-reduced-motion: reduce)")
