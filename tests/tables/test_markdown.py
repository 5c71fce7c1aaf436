"""The written report of a comparison: what it says, and names that stay text."""

import html
import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from elliptica.report.content import Difference
from elliptica.tables.columns import ColumnUse
from elliptica.tables.comparison import compare
from elliptica.tables.markdown import (
    column_rows,
    markdown,
    plain_page,
    progress_words,
    range_words,
    result_rows,
    show_score,
)
from elliptica.tables.methods import NAMES
from elliptica.tables.metrics import Metric
from elliptica.tables.summary import summarise


@pytest.fixture(scope="module")
def comparison():
    """Two noisy classes in two groups, two folds, a method that sees groups, trees."""
    draws = np.random.default_rng(0)
    n = 120
    label = draws.integers(0, 2, n)
    frame = pl.DataFrame(
        {
            "size": draws.normal(label, 1.0),
            "site": ["north" if v else "south" for v in draws.integers(0, 2, n)],
            "kind": ["iris" if v else "rose" for v in label],
        }
    )
    methods = ["elliptic", "groupdro", "trees"]
    return compare(frame, "kind", group="site", methods=methods, folds=2, trials=2, epochs=3, hidden=(8,))


@pytest.fixture(scope="module")
def found(comparison):
    return summarise(comparison)


def table_of(text, heading):
    """Cells of the table below a heading, header first."""
    part = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


def test_every_section_is_there_in_order(found):
    headings = re.findall(r"^## (.*)$", markdown(found), re.MULTILINE)
    assert headings == [
        "Verdict",
        "Cautions",
        "Test scores",
        "Every column judged",
        "By site",
        "Calibration, before and after a temperature",
        "Columns",
        "How it was done",
        "Cost and settings",
        "About the table",
        "Model",
    ]


def test_scores_stand_best_first_and_agree_with_the_comparison(comparison, found):
    header, *rows = table_of(markdown(found), "Test scores")
    assert header[:3] == ["method", "accuracy", "worst site"]
    assert header[-1] == "compared with ordinary training"
    shown = [float(row[1].removesuffix(" %")) for row in rows]
    assert shown == sorted(shown, reverse=True)
    by_name = {row[0]: row for row in rows}
    methods = {"ordinary training", "elliptic training", "GroupDRO †", "boosted trees"}
    assert set(by_name) == methods | {"always the largest class"}
    for method in comparison.methods:
        row = by_name[found.label(method)]
        assert float(row[1].removesuffix(" %")) == pytest.approx(
            100 * comparison.scores[method]["accuracy"], abs=0.05
        )
        assert row[-1] == comparison.verdict.cell(method, "accuracy")
    assert "† sees groups in training." in markdown(found)


def test_every_judged_column_has_its_difference(comparison, found):
    header, *rows = table_of(markdown(found), "Every column judged")
    judged = [metric for metric in comparison.metrics if metric.judged]
    assert header == ["method", *(metric.label for metric in judged)]
    assert len(rows) == len(comparison.methods)  # the constant prediction, and not ordinary training
    trees = next(row for row in rows if row[0] == "boosted trees")
    assert trees[1:] == [comparison.verdict.cell("trees", metric.name) for metric in judged]


def test_calibration_before_and_after(comparison, found):
    rows = table_of(markdown(found), "Calibration, before and after a temperature")
    trees = next(row for row in rows if row[0] == "boosted trees")
    scores = comparison.scores["trees"]
    assert float(trees[2]) == pytest.approx(scores["uncalibrated_log_loss"], abs=5e-4)
    assert float(trees[3]) == pytest.approx(scores["log_loss"], abs=5e-4)
    assert "may not hold under a shift" in markdown(found)


def test_groups_have_their_rows(found):
    header, *rows = table_of(markdown(found), "By site")
    assert header[:2] == ["site", "tested rows"]
    assert sum(int(row[1]) for row in rows) == 120
    assert {row[0] for row in rows} == {"north", "south"}
    reference = header.index("ordinary training")
    scores = [float(row[reference].removesuffix(" %")) for row in rows]
    assert scores == sorted(scores)  # the hardest first


def test_names_from_the_table_stay_text(found):
    evil = "<script>alert(1)</script> | x"
    odd = (
        "Column '![x](http://a.example/p.png)' is not used.",
        "Column '[click](javascript:alert(1))' is not used.",
        r"Column '\[click](x) `code` **bold** _it_ # ~~no~~' is not used.",
    )
    columns = [ColumnUse(evil, "number", evil, evil)]
    hostile = replace(
        found,
        name="[a](b)",
        target=evil,
        group=evil,
        notices=[f"{evil}", *odd],
        columns=columns,
        parts={**found.parts, "rows": {evil: 3}, "values": {m: {evil: 0.5} for m in found.methods}},
    )
    text, page = markdown(hostile), plain_page(hostile)
    assert "<script" not in text + page
    assert "&lt;script&gt;" in page
    assert "http" not in page.replace("http://a.example", "")
    assert text.startswith("# Comparison on \\[a\\](b)\n")
    assert r"\!\[x\](http://a.example/p.png)" in text
    assert r"\\\[click\](x) \`code\` \*\*bold\*\* \_it\_ \# \~\~no\~\~" in text
    # no bracket is left that is not preceded by an odd number of backslashes
    assert not re.search(r"(?<!\\)(\\\\)*[\[\]]", text)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    for line in lines:  # a bar of a name is no end of a cell
        assert "|" not in line.replace("\\|", "").strip("|").replace(" | ", "").replace("|--", "").replace(
            "-|", ""
        )


def test_the_plain_page_loads_nothing(found):
    page = plain_page(found)
    assert "src=" not in page
    assert "<script" not in page
    assert 'name="viewport"' in page
    assert html.escape(found.verdict.headline) in page


def test_a_part_says_that_it_is_one(found):
    part = replace(found, finished=(1, 5))
    assert progress_words(part) == "1 of 5 folds is finished and kept."
    assert "Not finished: 1 of 5 folds is finished and kept. Rerun the same command to resume." in markdown(
        part
    )
    assert "Not finished" not in markdown(found)


def test_predictions_that_left_the_range(found):
    def words(erm, mixup, *, bounded=True):
        scores = {"erm": {"beyond_range": erm}, "mixup": {"beyond_range": mixup}}
        return range_words(
            replace(found, task="regression", methods=["mixup", "erm"], scores=scores, bounded=bounded)
        )

    assert words(0.0, 0.0) == []
    (text,) = words(0.03, 0.0)
    assert text == (
        "3.0 % of the test predictions of ordinary training left the range of the training targets; they "
        "were clipped to it (--unbounded turns this off)."
    )
    assert "(25 % of mixup)" in words(0.03, 0.25)[0]
    assert words(0.0, 0.002)[0].startswith("0.2 % of the test predictions of mixup")
    assert words(0.5, 0.0, bounded=False)[0].endswith("; they were not clipped.")
    assert range_words(found) == []


def test_columns_in_words():
    uses = [
        ColumnUse("sold", "date", "year, month, days since 2006-01-01"),
        ColumnUse("area", "number", "heavy tail: scaled by quantiles"),
        ColumnUse("plain", "number", ""),
        ColumnUse("site", "category", "25 values"),
        ColumnUse("note", "text", "free text, 80 distinct texts: parts of words", "--as note=id"),
        ColumnUse("id", "id", "identifier, not used", "--as id=number"),
        ColumnUse("unit", "unused", "it is 'mg' in all rows"),
    ]
    assert column_rows(uses) == [
        ["sold", "date: year, month, days since 2006-01-01", ""],
        ["area", "number (heavy tail: scaled by quantiles)", ""],
        ["plain", "number", ""],
        ["site", "category, 25 values", ""],
        ["note", "free text, 80 distinct texts: parts of words", "--as note=id"],
        ["id", "identifier, not used", "--as id=number"],
        ["unit", "not used: it is 'mg' in all rows", ""],
    ]


def test_the_screen_gets_fewer_columns(found):
    assert result_rows(found, 3)[0] == [
        "method",
        "accuracy",
        "worst site",
        "Brier score",
        "compared with ordinary training",
    ]
    assert result_rows(found, 2)[0][:3] == ["method", "accuracy", "worst site"]
    assert len(result_rows(found, 2)[0]) == 4
    assert {row[0].removesuffix(" †") for row in result_rows(found)[1:]} == {
        "always the largest class",
        *(NAMES[m] for m in found.trained),
    }


def test_methods_that_differ_do_not_look_equal(found):
    """97.34 % and 97.31 % are both 97.3 %: with a claim that one is better, a digit more is shown."""
    scores = {m: {**found.scores[m], "accuracy": 0.9731} for m in found.methods}
    scores["trees"]["accuracy"] = 0.9734
    for result, digits in (("open", 1), ("better", 2)):
        claims = [Difference("trees", "accuracy", 0.0003, 0.0001, 0.0005, 5, result)]
        close = replace(found, scores=scores, verdict=replace(found.verdict, differences=claims))
        rows = {row[0]: row[1] for row in result_rows(close)}
        assert rows["boosted trees"] == f"{97.34:.{digits}f} %"
        assert (rows["boosted trees"] == rows["ordinary training"]) == (result == "open")


def test_at_most_three_more_digits_are_shown(found):
    scores = {m: {**found.scores[m], "accuracy": 0.9731} for m in found.methods}
    scores["trees"]["accuracy"] = 0.9731 + 1e-9
    claims = [Difference("trees", "accuracy", 1e-9, 1e-10, 1e-8, 5, "better")]
    close = replace(found, scores=scores, verdict=replace(found.verdict, differences=claims))
    assert {row[0]: row[1] for row in result_rows(close)}["boosted trees"] == "97.3100 %"


def test_scores_have_as_many_digits_as_others_of_their_column():
    rmse, accuracy = Metric("rmse", "RMSE", False), Metric("accuracy", "accuracy", True, True)
    assert [show_score(rmse, value) for value in (61234.5, 61.0, 0.5)] == ["61,234", "61.00", "0.5000"]
    assert show_score(accuracy, 0.5) == "50.0 %"
    assert show_score(Metric("log_loss", "log loss", False), 0.08049) == "0.080"
