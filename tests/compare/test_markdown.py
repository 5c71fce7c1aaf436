"""The written report of a comparison: what it says, what limits it, names that stay text."""

import dataclasses
import re

import numpy as np
import polars as pl
import pytest

from elliptica.compare import Comparison, compare
from elliptica.compare.markdown import cautions, markdown, plain_page


def test_reports_say_what_was_found_and_escape_names(found):
    import dataclasses

    evil = "<script>alert(1)</script> | x"
    problem = dataclasses.replace(found.problem, notices=(f"Column {evil} is not used.",), target_name=evil)
    comparison = Comparison(problem, found.plan, found.records, evil)
    text, html = markdown(comparison), plain_page(comparison)
    assert "<script" not in text + html
    assert "## Verdict" in text
    assert "weighted elliptic training" in text
    assert "&lt;script&gt;" in html
    assert "http" not in html
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in lines[:6]}) == 1


def test_markdown_from_the_table_stays_text(found):
    import dataclasses

    notices = (
        "Column '![x](http://a.example/p.png)' is not used.",
        "Column '[click](javascript:alert(1))' is not used.",
        r"Column '\[click](x) `code` **bold** _it_ # ~~no~~' is not used.",
    )
    problem = dataclasses.replace(found.problem, notices=notices)
    text = markdown(Comparison(problem, found.plan, found.records, "[a](b)"))
    assert r"\!\[x\](http://a.example/p.png)" in text
    assert r"\[click\](javascript:alert(1))" in text
    assert r"\\\[click\](x) \`code\` \*\*bold\*\* \_it\_ \# \~\~no\~\~" in text
    assert text.startswith("# Comparison on \\[a\\](b)\n")
    # no bracket is left that is not preceded by an odd number of backslashes
    assert not re.search(r"(?<!\\)(\\\\)*[\[\]]", text)


@pytest.fixture(scope="module")
def short_search():
    draws = np.random.default_rng(1)
    frame = pl.DataFrame({"x": draws.normal(size=60), "y": draws.normal(size=60)})
    return compare(frame, "y", methods=["elliptic"], trees=True, repeats=3, trials=2, epochs=25, hidden=(4,))


def changed(short_search, plan=None, **values):
    """The comparison with other facts about the chosen trial of elliptic training."""
    records = []
    for record in short_search.records:
        if record.method == "elliptic":
            trials = list(record.trials)
            trials[record.chosen] = dataclasses.replace(trials[record.chosen], **values)
            record = dataclasses.replace(record, trials=tuple(trials))
        records.append(record)
    return Comparison(short_search.problem, plan or short_search.plan, tuple(records))


def test_training_that_was_cut_short_is_noted(short_search):
    falling = changed(short_search, last_drop=0.1)
    (note,) = [each for each in cautions(falling) if "still falling" in each]
    assert "elliptic training" in note
    assert "--epochs (now 25)" in note
    assert "still falling at the end" in markdown(falling)
    flat = changed(short_search, last_drop=0.001)
    assert not any("elliptic training" in each for each in cautions(flat) if "still falling" in each)
    short = dataclasses.replace(short_search.plan, epochs=5)
    assert any(
        each.startswith("Few epochs: with --epochs 5") for each in cautions(changed(short_search, short))
    )


def test_a_search_that_ended_at_the_border_is_noted(short_search):
    inside = {"learning_rate": 1e-3, "weight_decay": 1e-4, "max_iter": 25, "sigma": 0.1}
    (note,) = [
        n for n in cautions(changed(short_search, settings={**inside, "sigma": 0.95})) if "border" in n
    ]
    assert "sigma of elliptic training (0.95 in 3 of 3 repeats, range 0.01 to 1)" in note
    within = [n for n in cautions(changed(short_search, settings=inside)) if "border" in n]
    assert not any("of elliptic training" in n for n in within)
    once = dataclasses.replace(short_search.plan, trials=1)
    notes = cautions(changed(short_search, once, settings={**inside, "sigma": 0.95}))
    assert any("There was no search" in note for note in notes)
    assert not any("border" in note for note in notes)


def test_failed_trainings_are_noted(short_search):
    assert any(
        each == "3 of 6 trainings by elliptic training failed and were left out."
        for each in cautions(changed(short_search, error="the loss became nan"))
    )
