"""The real page in a real browser: drawing, sorting, copying, turning, colours, narrow screens."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from elliptica.report import Request, make_report, render_page
from elliptica.report.landscape import Subject, look_at
from report_cases import HOSTILE, hostile_report, make_record, write_records

pytestmark = pytest.mark.slow

DRAW_ALL = """async () => {
  for (const figure of document.querySelectorAll('figure[data-chart]')) {
    figure.scrollIntoView({behavior: 'instant', block: 'center'});
    for (let i = 0; i < 100 && !figure.querySelector('.main-svg'); i++)
      await new Promise((r) => setTimeout(r, 50));
  }
}"""


def look(name, features, seed=0):
    torch.manual_seed(seed)
    x = torch.randn(40, features)
    network = nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, 3))
    return look_at(Subject(name, network, nn.CrossEntropyLoss(), x, torch.arange(40) % 3))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Five seeds of four methods with all that new records hold, and two landscapes."""
    folder = tmp_path_factory.mktemp("report")
    bins = {"rows": [0, 40, 60], "confidence": [0, 22.0, 54.0], "right": [0, 20, 50]}
    records = []
    for i, row in enumerate(("erm", "mixup", "elliptic", "elliptic + weighting")):
        for seed in range(5):
            record = make_record(row, seed, 0.7 + 0.05 * i + 0.003 * ((3 * seed + i) % 5))
            record["metrics"]["test"]["reliability"] = bins
            record["rows"] = {"train": {"rows": 90, "class": {"0": 70, "1": 20}, "group": {"0": 60, "1": 30}}}
            record["cost"]["evaluations"] = 3000 * (1 + i)
            records.append(record)
    report = make_report(Request(str(write_records(folder, records))))
    (study,) = report.studies
    study = replace(study, missing={}, landscapes=[look("erm, seed 0", 2), look("elliptic, seed 0", 6)])
    file = folder / "report.html"
    file.write_text(render_page(replace(report, studies=[study])), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory):
    report = hostile_report()
    landscape = look(HOSTILE[0], 4)
    landscape["planes"][0]["points"]["label"][:5] = HOSTILE
    landscape["bridges"]["from"][:5] = HOSTILE
    study = replace(report.studies[0], landscapes=[landscape, {**landscape, "name": HOSTILE[2]}])
    file = tmp_path_factory.mktemp("hostile") / "report.html"
    file.write_text(render_page(replace(report, studies=[study])), encoding="utf-8")
    return file


def test_everything_is_drawn_without_errors_or_requests(visit, page):
    seen = visit(page)
    assert "elliptic + weighting has the best accuracy" in seen.page.inner_text("#verdict")
    seen.page.evaluate(DRAW_ALL)
    charts = seen.page.eval_on_selector_all("figure[data-chart]", "all => all.map((f) => f.dataset.chart)")
    assert charts == [
        *("seeds", "differences", "parts-0", "parts-1", "reliability", "uncertainty", "cost", "curves"),
        *("surface", "contour", "bridges"),
    ]
    assert seen.page.locator("figure .main-svg").count() >= len(charts)
    assert seen.page.locator("figure .waiting").count() == 0
    assert seen.low_contrast() == []
    assert (seen.problems, seen.requests) == ([], [])
    unnamed = "all => all.filter((e) => !e.getAttribute('aria-label') && !e.textContent.trim()).length"
    assert seen.page.eval_on_selector_all("button, [role=img], [role=region]", unnamed) == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(visit, page, dark):
    seen = visit(page, width=375, height=760, dark=dark, reduced_motion=True)
    seen.page.evaluate(DRAW_ALL)
    assert seen.overflow() == []
    assert seen.low_contrast() == []
    assert seen.problems == []


def test_colours_follow_the_system_and_the_switch(visit, page):
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = (visit(page, dark=d) for d in (False, True))
    colours = [seen.page.evaluate(background) for seen in (light, dark)]
    assert colours[0] != colours[1]
    light.page.locator("figure[data-chart=seeds] .main-svg").first.wait_for()
    light.page.click("#theme")  # light
    light.page.click("#theme")  # dark
    assert light.page.evaluate(background) == colours[1]
    assert light.page.get_attribute("#theme", "aria-label") == "Colours: Dark. Change"
    assert light.low_contrast() == []  # charts, too
    light.page.emulate_media(color_scheme="dark")
    light.page.click("#theme")  # as the system
    assert light.page.evaluate(background) == colours[1]


def moved(before, after):
    return sum(abs(after[axis] - before[axis]) for axis in "xyz")


def test_the_surface_turns_on_drag_and_by_keyboard(visit, page):
    seen = visit(page)
    plot = seen.page.locator("figure[data-chart=surface] .plot")
    plot.evaluate("plot => plot.scrollIntoView({block: 'center'})")
    plot.locator("canvas").first.wait_for()
    seen.page.wait_for_timeout(1000)
    camera = "document.querySelector('figure[data-chart=surface] .plot')._fullLayout.scene.camera.eye"
    before = seen.page.evaluate(camera)
    box = plot.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    seen.page.mouse.move(x, y)
    seen.page.mouse.down()
    seen.page.mouse.move(x + 60, y + 10, steps=6)
    seen.page.mouse.move(x + 120, y + 20, steps=6)
    seen.page.mouse.up()
    seen.page.wait_for_timeout(500)
    dragged = seen.page.evaluate(camera)
    assert moved(before, dragged) > 0.1
    plot.focus()
    seen.page.keyboard.press("ArrowRight")
    seen.page.wait_for_timeout(300)
    assert moved(dragged, seen.page.evaluate(camera)) > 0.05
    # another model, in more dimensions, has planes to choose from
    seen.page.locator("figure[data-chart=surface] select").first.select_option("1")
    planes = seen.page.locator("figure[data-chart=surface] label:has-text('Plane') option").all_inner_texts()
    assert planes[0] == "Two principal directions"
    assert sum(name.startswith("Through rows") for name in planes) == 3
    assert seen.problems == []


def column(page, number):
    cells = f"section.study > .table-box tbody tr > *:nth-child({number})"
    return page.eval_on_selector_all(cells, "all => all.map((c) => c.textContent)")


def test_tables_sort_by_click_and_keyboard(visit, page):
    seen = visit(page)
    names = column(seen.page, 1)
    assert names == ["erm", "mixup", "elliptic", "elliptic + weighting"]
    head = seen.page.locator("section.study > .table-box thead button")
    head.nth(1).click()  # numbers: the largest first
    assert column(seen.page, 1) == names[::-1]
    assert seen.page.get_attribute("section.study > .table-box th[aria-sort=descending]", "scope") == "col"
    head.nth(1).focus()
    seen.page.keyboard.press("Enter")
    assert column(seen.page, 1) == names
    head.nth(0).click()  # words: from A
    assert column(seen.page, 1) == sorted(names)


def test_tables_copy_what_is_shown(visit, page):
    seen = visit(page)
    box = seen.page.locator("section.study > .table-box")
    box.get_by_role("button", name="Markdown").click()
    seen.page.wait_for_function("document.querySelector('.said').textContent")
    lines = seen.clipboard().splitlines()
    assert lines[0].startswith("| method | accuracy, % |")
    assert lines[1].startswith("|---|--:|")
    assert len(lines) == 6
    assert lines[-1].startswith("| elliptic + weighting | **")
    box.get_by_role("button", name="LaTeX").click()
    seen.page.wait_for_timeout(200)
    latex = seen.clipboard()
    assert latex.startswith("\\begin{tabular}{lr")
    assert "accuracy, \\%" in latex
    assert "$\\pm$" in latex
    box.get_by_role("button", name="CSV").click()
    seen.page.wait_for_timeout(200)
    assert seen.clipboard().splitlines()[0].startswith('method,"accuracy, %"')
    assert seen.page.inner_text("section.study > .table-box .said") == "CSV copied."


def test_numbers_stand_beside_every_chart(visit, page):
    seen = visit(page)
    figures = seen.page.locator("figure[data-chart]")
    for i in range(figures.count()):
        figure = figures.nth(i)
        figure.locator("summary").click()
        figure.locator("details table tbody tr").first.wait_for()
    seeds = seen.page.locator("figure[data-chart=seeds] details tbody tr").first.inner_text()
    assert seeds.startswith("erm")
    assert seen.problems == []


def test_methods_can_be_put_into_colour(visit, page):
    seen = visit(page)
    legend = "figure[data-chart=curves] .legend > span"
    seen.page.locator("figure[data-chart=curves]").evaluate("card => card.scrollIntoView({block: 'center'})")
    seen.page.locator(legend).first.wait_for()
    assert seen.page.locator(legend).all_inner_texts() == ["erm", "mixup", "elliptic", "elliptic + weighting"]
    seen.page.get_by_role("checkbox", name="mixup", exact=True).focus()
    seen.page.keyboard.press("Space")
    assert seen.page.locator(legend).all_inner_texts() == ["erm", "elliptic", "elliptic + weighting"]


def test_printing_draws_what_was_not_in_view(visit, page):
    seen = visit(page, dark=True)
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert seen.page.locator("figure:not([data-chart=surface]) .waiting").count() == 0
    assert seen.page.evaluate("document.documentElement.dataset.theme") == "light"
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
    point.evaluate("point => point.scrollIntoView({block: 'center'})")
    point.hover(force=True)
    seen.page.wait_for_timeout(500)
    hover = seen.page.locator("figure[data-chart='parts-0'] .hoverlayer").text_content()
    assert f"{HOSTILE[0]}, {HOSTILE[0]}: 5" in hover
    box = seen.page.locator("section.study > .table-box")
    copied = {}
    for name in ("Markdown", "LaTeX", "CSV"):
        box.get_by_role("button", name=name).click()
        seen.page.wait_for_function(
            "(n) => document.querySelector('.said').textContent === `${n} copied.`", arg=name
        )
        copied[name] = seen.clipboard()
    assert "<" not in copied["Markdown"]
    assert "| &lt;script&gt;alert(1)&lt;/script&gt; |" in copied["Markdown"]
    assert "\\| \\_a\\_ \\|" in copied["Markdown"]
    assert "\\textbackslash{}b\\{\\%\\$\\#\\&\\textasciitilde{}\\textasciicircum{}\\}" in copied["LaTeX"]
    assert "'=HYPERLINK(1)" in copied["CSV"].splitlines()[4]
    assert "50.0 ± 1.0" in copied["CSV"]
