"""Planted defects: each fits the sources, and cases notice one and pass without any."""

import subprocess
import sys
from pathlib import Path

import pytest
from adversary import mutants, teeth
from adversary.page import teeth_section

ROOT = Path(__file__).resolve().parent.parent
ATTACK = """
import json, sys
from pathlib import Path
from adversary import mutants, teeth
print(json.dumps(teeth.attack(Path(sys.argv[1]), "baselines.errors", 30, 0)))
"""


def test_every_defect_fits_the_sources_once():
    defects = teeth.read_defects()
    assert len({each["name"] for each in defects}) == len(defects)
    for each in defects:
        assert teeth.plant(each) != (teeth.SOURCE / each["file"]).read_text(encoding="utf-8")


def test_a_defect_that_fits_nowhere_is_refused():
    with pytest.raises(ValueError, match=r"toy: core/bridge\.py has 'no such text' 0 times"):
        teeth.plant({"name": "toy", "file": "core/bridge.py", "before": "no such text", "after": ""})


@pytest.mark.slow
@pytest.mark.parametrize("planted", [False, True])
def test_an_attack_notices_a_wrong_weight_and_nothing_else(tmp_path, planted):
    copy = mutants.Copy(tmp_path)
    file = "baselines/jtt.py"
    text = (teeth.SOURCE / file).read_text(encoding="utf-8")
    wrong = text.replace("masked_fill(errors, weight)", "masked_fill(~errors, weight)")
    copy.write(file, wrong if planted else text)
    words = [sys.executable, "-c", ATTACK, str(copy.root)]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ('"by": ""' in said) != planted


def test_the_page_names_what_was_missed():
    found = {"name": "a", "file": "core/x.py", "target": "t", "cases": 3, "by": "wrong: 1"}
    missed = {"name": "the tilt", "file": "core/x.py", "target": "t", "cases": 9, "by": ""}
    text = teeth_section({"seed": 0, "number": 9, "defects": [found, missed]})
    assert "**1 of 2** were noticed" in text
    assert "missed: the tilt (`core/x.py`)" in text
