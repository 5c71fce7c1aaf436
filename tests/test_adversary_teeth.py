"""Planted defects: each fits the sources, and cases notice one and pass without any."""

from pathlib import Path

import pytest
from adversary import teeth
from adversary.page import teeth_section

ROOT = Path(__file__).resolve().parent.parent


def test_every_defect_fits_the_sources_once():
    defects = teeth.read_defects()
    assert len({each["name"] for each in defects}) == len(defects)
    for each in defects:
        assert teeth.plant(each) != (teeth.SOURCE / each["file"]).read_text(encoding="utf-8")


def test_a_defect_that_fits_nowhere_is_refused():
    with pytest.raises(ValueError, match=r"toy: core/bridge\.py has 'no such text' 0 times"):
        teeth.plant({"name": "toy", "file": "core/bridge.py", "before": "no such text", "after": ""})


def test_the_page_names_what_was_missed():
    found = {"name": "a", "file": "core/x.py", "target": "t", "cases": 3, "by": "wrong: 1"}
    missed = {"name": "the tilt", "file": "core/x.py", "target": "t", "cases": 9, "by": ""}
    text = teeth_section({"seed": 0, "number": 9, "defects": [found, missed]})
    assert "**1 of 2** were noticed" in text
    assert "missed: the tilt (`core/x.py`)" in text
