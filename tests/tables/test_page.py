"""The page of a comparison agrees with its numbers; names from the table stay text."""

import html
import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from elliptica.report import to_html, to_markdown
from elliptica.tables import page
from elliptica.tables.comparison import compare
from elliptica.tables.methods import name_of

EVIL = "<script>alert(1)</script> | $x$ [a](b)"


@pytest.fixture(scope="module")
def comparison():
    """Two noisy classes in two groups, two folds, a method that sees groups, trees."""
    draws = np.random.default_rng(0)
    label = draws.integers(0, 2, 120)
    sites = [EVIL if v else "south" for v in draws.integers(0, 2, 120)]
    kinds = ["iris" if v else "rose" for v in label]
    frame = pl.DataFrame({EVIL: draws.normal(label, 1.0), "site": sites, "kind": kinds})
    methods = ["elliptic", "groupdro", "trees"]
    return compare(frame, "kind", group="site", methods=methods, folds=2, trials=2, epochs=3, hidden=(8,))


@pytest.fixture(scope="module")
def noise():
    """Inputs and targets are independent."""
    draws = np.random.default_rng(1)
    frame = pl.DataFrame({"x": draws.normal(size=90), "y": draws.normal(size=90)})
    return compare(frame, "y", methods=["elliptic", "linear"], folds=3, trials=2, epochs=25, hidden=(4,))


def table_of(comparison, heading):
    """Cells of the table below a heading, header first, as Markdown has them."""
    text = to_markdown(page.comparison_page(comparison))
    part = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in (lines[0], *lines[2:])]


def test_scores_stand_best_first_and_agree_with_the_comparison(comparison):
    header, *rows = table_of(comparison, "Test scores")
    measure = comparison.verdict.measure(comparison.verdict.tiebreak_metric)
    assert header[-1] == f"{measure.label} compared with ordinary training"  # the verdict's own measure
    shown = [float(row[1].removesuffix(" %")) for row in rows]
    assert shown == sorted(shown, reverse=True)
    by_name = {row[0]: row for row in rows}
    names = {"ordinary training", "elliptic training", "GroupDRO †", "boosted trees"}
    assert set(by_name) == names | {"always the largest class"}
    for method in comparison.scores:
        row = by_name[page.label(comparison, method)]
        accuracy = 100 * comparison.scores[method]["accuracy"]
        assert float(row[1].removesuffix(" %")) == pytest.approx(accuracy, abs=0.05)
        assert row[-1] == comparison.verdict.cell(method, measure.name)


def test_every_section_has_the_numbers_of_the_comparison(comparison):
    header, *rows = table_of(comparison, "Every column judged")
    judged = [metric for metric in comparison.metrics if metric.judged]
    assert header == ["method", *(metric.label for metric in judged)]
    trees = next(row for row in rows if row[0] == "boosted trees")
    assert trees[1:] == [comparison.verdict.cell("trees", metric.name) for metric in judged]
    header, *rows = table_of(comparison, f"Test predictions of {name_of(comparison.best)}")
    assert header[1:] == [row[0] for row in rows] == ["iris", "rose"]
    right = sum(int(row[1 + k].strip("*")) for k, row in enumerate(rows)) / 120
    assert right == pytest.approx(comparison.scores[comparison.best]["accuracy"])
    header, *rows = table_of(comparison, "By site")
    assert sum(int(row[1]) for row in rows) == 120
    scores = [float(row[header.index("ordinary training")].removesuffix(" %")) for row in rows]
    assert scores == sorted(scores)  # the hardest first


def test_names_from_the_table_stay_text(comparison):
    content = page.comparison_page(comparison)
    text, html = to_markdown(content), to_html(content)
    assert len(html) < 100_000
    assert "<script" not in html
    assert "<script" not in text
    assert not re.search(r"(?<!\\)(\\\\)*[\[\]$]", text)
    assert "&lt;script&gt;alert(1)" in html


def test_what_limits_the_answer_is_said(comparison, noise):
    assert not noise.verdict.predicts
    assert "always the mean" in page.describe_model(noise)
    assert any("Few epochs" in text for text in page.cautions(comparison))
    quick = replace(noise, plan=replace(noise.plan, quick=True, trials=1))
    assert len(page.cautions(quick)) == len(page.cautions(noise)) + 2
    failed = tuple(replace(r, error="All failed.") if r.method == "linear" else r for r in noise.records)
    without = replace(noise, records=failed)
    assert any("linear model" in text for text in page.cautions(without))
    assert "linear" not in page.in_order(without)
    longest = tuple(replace(r, length=2995, lost=r.method == "elliptic") for r in comparison.records)
    said = set(page.cautions(replace(comparison, records=longest))) - set(page.cautions(comparison))
    assert len(said) == 2  # trees whose growth the limit ended, networks that diverged
    sharp = replace(comparison, records=tuple(replace(r, temperature=0.05) for r in comparison.records))
    (said,) = set(page.cautions(sharp)) - set(page.cautions(comparison)) - set(sharp.verdict.cautions)
    assert "probabilities" in said
    late = replace(noise, records=tuple(replace(r, length=24) for r in noise.records))
    assert any("--set epochs=50" in text for text in page.cautions(late))
    early = replace(noise, records=tuple(replace(r, length=9) for r in noise.records))
    assert not any("epochs=" in text for text in page.cautions(early))
    part = replace(noise, records=tuple(r for r in noise.records if r.fold == 0))
    assert any("1 of 3" in text for text in page.comparison_page(part).sentences)
    clipped = tuple(replace(r, clipped=len(r.predicted) * (r.method == "elliptic")) for r in noise.records)
    (said,) = page.remarks(replace(noise, records=clipped))
    assert said.startswith("100.0 % of the test predictions of elliptic training")
    assert page.remarks(comparison) == []


def test_the_files_are_written_once_from_memory(comparison, tmp_path):
    page.write_reports(comparison, tmp_path, measure=True)
    for name in ("report.md", "report.html"):
        text = (tmp_path / name).read_text()
        assert "What the model depends on" in text
        assert comparison.verdict.headline in html.unescape(text)
    assert page.facts(comparison)["saved"] == comparison.best


def test_the_screen_gets_fewer_columns(comparison):
    verdict = comparison.verdict
    assert [len(row) for row in page.result_rows(comparison, 2)] == [4] * 6
    header = page.result_rows(comparison, 2)[0]
    assert verdict.measure(verdict.primary_metric).label in header
    assert verdict.measure(verdict.tiebreak_metric).label in header
