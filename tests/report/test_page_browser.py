"""The real page in a real browser: drawing, sorting, copying, turning, colours, narrow screens."""

from dataclasses import replace
from itertools import pairwise

import pytest

from elliptica.cli.report import Request, make_report
from elliptica.report import render_page
from report_cases import HOSTILE, hostile_report, make_record, write_records

pytestmark = pytest.mark.slow

DRAW_ALL = """async () => {
  for (const figure of document.querySelectorAll('figure[data-chart]')) {
    if (!figure.checkVisibility()) continue;
    figure.scrollIntoView({behavior: 'instant', block: 'center'});
    for (let i = 0; i < 500 && !figure.querySelector('.main-svg'); i++)
      await new Promise((r) => setTimeout(r, 10));
  }
}"""


BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Five seeds of four methods with all that new records hold."""
    folder = tmp_path_factory.mktemp("report")
    bins = {"rows": [0, 40, 60], "confidence": [0, 22.0, 54.0], "right": [0, 20, 50]}
    records = []
    for i, row in enumerate(("erm", "mixup", "elliptic", "elliptic + weighting")):
        for seed in range(5):
            record = make_record(row, seed, 0.7 + 0.05 * i + 0.003 * ((3 * seed + i) % 5))
            record["metrics"]["test"]["reliability"] = bins
            record["rows"] = {"train": {"rows": 90, "class": {"0": 70, "1": 20}, "group": {"0": 60, "1": 30}}}
            record["cost"]["evaluations"] = 3_000_000 * (1 + i)
            records.append(record)
    report = make_report(Request(str(write_records(folder, records))))
    (study,) = report.studies
    study = replace(study, missing={})
    file = folder / "report.html"
    file.write_text(render_page(replace(report, studies=[study])), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory):
    file = tmp_path_factory.mktemp("hostile") / "report.html"
    file.write_text(render_page(hostile_report()), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def phone(shared_visit, page):
    """The page on a small dark screen, every chart drawn."""
    seen = shared_visit(page, width=375, height=2400, dark=True, reduced_motion=True)
    seen.page.evaluate(DRAW_ALL)
    return seen


@pytest.fixture(scope="module")
def desk(shared_visit, page):
    """The same on a large light screen."""
    seen = shared_visit(page, reduced_motion=True)
    seen.page.evaluate(DRAW_ALL)
    return seen


def test_everything_is_drawn_without_errors_or_requests(phone):
    assert "elliptic + weighting has the best accuracy" in phone.page.inner_text("#verdict")
    charts = phone.page.eval_on_selector_all("figure[data-chart]", "all => all.map((f) => f.dataset.chart)")
    assert charts == [
        *("seeds", "differences", "parts-0", "parts-1", "reliability", "uncertainty", "cost", "curves"),
    ]
    assert phone.page.locator("figure .main-svg").count() >= len(charts)
    assert phone.page.locator("figure .waiting").count() == 0
    assert (phone.problems, phone.requests) == ([], [])
    # (|22 - 20| + |54 - 50|) / 100, from the bins above
    said = "Expected calibration error of these bins: erm 6.0\u00a0%, mixup 6.0\u00a0%"
    assert said in phone.page.inner_text("figure[data-chart=reliability] .controls")


def test_everything_has_a_name_and_headings_leave_no_level_out(desk):
    unnamed = "all => all.filter((e) => !e.getAttribute('aria-label') && !e.textContent.trim()).length"
    assert desk.page.eval_on_selector_all("button, [role=img], [role=region]", unnamed) == 0
    levels = desk.page.eval_on_selector_all("h1, h2, h3, h4, h5, h6", "all => all.map((h) => +h.tagName[1])")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert (desk.overflow(), desk.low_contrast(), desk.problems) == ([], [], [])


def test_a_phone_shows_it_without_scrolling_sideways(phone):
    """Loaded in the dark, and then in the light of the system."""
    night = phone.page.evaluate(BACKGROUND)
    assert (phone.overflow(), phone.low_contrast()) == ([], [])
    phone.switch(dark=False)
    assert phone.page.evaluate(BACKGROUND) != night
    assert (phone.overflow(), phone.low_contrast()) == ([], [])
    assert phone.problems == []


def test_colours_follow_the_system_and_the_switch(desk):
    background = BACKGROUND
    day = desk.page.evaluate(background)
    desk.switch(dark=True)
    night = desk.page.evaluate(background)
    assert night != day
    desk.page.click("#theme")  # light, whatever the system says
    assert desk.page.evaluate(background) == day
    desk.switch(dark=False)
    desk.page.click("#theme")  # dark
    assert desk.page.evaluate(background) == night
    assert desk.page.get_attribute("#theme", "aria-label") == "Colours: Dark. Change"
    assert desk.low_contrast() == []  # charts, too
    desk.page.click("#theme")  # as the system
    assert desk.page.evaluate(background) == day


def column(page, number):
    cells = f"section.study > .table-box tbody tr > *:nth-child({number})"
    return page.eval_on_selector_all(cells, "all => all.map((c) => c.textContent)")


def test_tables_sort_by_click_and_keyboard(desk):
    names = ["erm", "mixup", "elliptic", "elliptic + weighting"]
    assert sorted(column(desk.page, 1)) == sorted(names)
    head = desk.page.locator("section.study > .table-box thead button")
    head.nth(1).click()  # numbers: the largest first
    assert column(desk.page, 1) == names[::-1]
    assert desk.page.get_attribute("section.study > .table-box th[aria-sort=descending]", "scope") == "col"
    head.nth(0).click()  # words: from A
    assert column(desk.page, 1) == sorted(names)
    head.nth(1).click()
    head.nth(1).focus()
    desk.page.keyboard.press("Enter")
    assert column(desk.page, 1) == names


def copied(seen, form):
    """What the button of the main table copies, once the page has said that it did."""
    seen.page.locator("section.study > .table-box").get_by_role("button", name=form).click()
    said = "(n) => document.querySelector('section.study > .table-box .said').textContent === `${n} copied.`"
    seen.page.wait_for_function(said, arg=form)
    return seen.clipboard()


def test_tables_copy_what_is_shown(desk):
    lines = copied(desk, "Markdown").splitlines()
    assert lines[0].startswith("| method | accuracy, % |")
    assert lines[1].startswith("|---|--:|")
    assert len(lines) == 6
    assert [line.split(" | ")[0][2:] for line in lines[2:]] == column(desk.page, 1)
    assert any(line.startswith("| elliptic + weighting | **") for line in lines)
    latex = copied(desk, "LaTeX")
    assert latex.startswith("\\begin{tabular}{lr")
    assert "accuracy, \\%" in latex
    assert "$\\pm$" in latex
    head, *rows = copied(desk, "CSV").splitlines()
    assert head.startswith('method,"accuracy, %"')
    assert {row.split(",")[3] for row in rows} == {"2000", "4000", "6000", "8000"}  # numbers, not "2,000"


def test_numbers_stand_beside_every_chart(phone):
    figure = phone.page.locator("figure[data-chart=seeds]")
    figure.locator("summary").click()
    assert figure.locator("details tbody tr").first.inner_text().startswith("erm")
    every = "figure[data-chart] details"
    phone.page.eval_on_selector_all(every, "all => all.forEach((details) => { details.open = true; })")
    phone.page.wait_for_function(
        "(every) => [...document.querySelectorAll(every)].every((d) => d.querySelector('tbody tr'))",
        arg=every,
    )
    assert phone.page.locator(every).count() == 8
    assert phone.problems == []
    phone.page.eval_on_selector_all(every, "all => all.forEach((details) => { details.open = false; })")


def test_methods_can_be_put_into_colour(desk):
    legend = desk.page.locator("figure[data-chart=curves] .legend > span")
    everybody = ["erm", "mixup", "elliptic", "elliptic + weighting"]
    assert legend.all_inner_texts() == everybody
    box = desk.page.get_by_role("checkbox", name="mixup", exact=True)
    box.focus()
    desk.page.keyboard.press("Space")
    assert legend.all_inner_texts() == ["erm", "elliptic", "elliptic + weighting"]
    desk.page.keyboard.press("Space")
    assert legend.all_inner_texts() == everybody


def test_printing_draws_what_was_not_in_view(visit, page):
    seen = visit(page, dark=True)
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert seen.page.locator("figure .waiting").count() == 0
    assert seen.page.evaluate("document.documentElement.dataset.theme") == "light"
    wide = "all => Math.max(...all.map((svg) => svg.getBoundingClientRect().width))"
    assert 600 < seen.page.eval_on_selector_all(".main-svg", wide) <= 688  # A4 without margins of 14 mm
    seen.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert seen.page.evaluate("document.documentElement.dataset.theme") is None
    assert len(seen.page.pdf()) > 50_000
    assert seen.problems == []


def test_hostile_names_are_text_everywhere(visit, hostile_page):
    seen = visit(hostile_page, width=700)
    seen.page.on("dialog", lambda dialog: seen.problems.append(f"dialog {dialog.message}"))
    seen.page.evaluate(DRAW_ALL)
    assert seen.page.title() == HOSTILE[1]
    assert (seen.problems, seen.requests, seen.overflow()) == ([], [], [])
    labels = seen.page.eval_on_selector_all("svg text", "all => all.map((t) => t.textContent.trim())")
    assert HOSTILE[0] in labels
    assert seen.page.locator("svg a, .plot script, main a[href^=javascript]").count() == 0
    assert HOSTILE[0] in seen.page.locator(".legend > span").all_inner_texts()
    point = seen.page.locator("figure[data-chart='parts-0'] .bars path").first
    said = seen.page.locator("figure[data-chart='parts-0'] .hoverlayer .hovertext")
    for _ in range(40):  # what is drawn above it meanwhile moves it from under the pointer
        point.evaluate("point => point.scrollIntoView({block: 'center'})")
        point.hover(force=True)
        seen.page.wait_for_timeout(250)
        if said.count():
            break
        seen.page.mouse.move(0, 0)
    said.first.wait_for()
    hover = said.first.text_content()
    assert f"{HOSTILE[0]}, {HOSTILE[0]}: 5" in hover
    found = {form: copied(seen, form) for form in ("Markdown", "LaTeX", "CSV")}
    assert "<" not in found["Markdown"]
    assert "| &lt;script&gt;alert(1)&lt;/script&gt; |" in found["Markdown"]
    assert "\\| \\_a\\_ \\|" in found["Markdown"]
    assert "\\textbackslash{}b\\{\\%\\$\\#\\&\\textasciitilde{}\\textasciicircum{}\\}" in found["LaTeX"]
    assert "'=HYPERLINK(1)" in found["CSV"].splitlines()[4]
    assert "50.0 ± 1.0" in found["CSV"]
