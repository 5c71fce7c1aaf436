"""Benchmarks: what can be checked of them without a clock."""

import json
import math
from importlib import import_module
from pathlib import Path

import pytest
from benchmarks import __main__ as command
from benchmarks import timing
from benchmarks.timing import Measurement

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


def measured(ratio, low, high, budget=1.0, what="a", against="b"):
    return {"suite": "steps", **Measurement(what, against, ratio, low, high, budget).as_dict()}


def test_slower_is_beyond_the_spread_and_a_tenth():
    before = measured(1.0, 0.95, 1.05)
    assert command.slower(measured(1.3, 1.2, 1.4), before)
    assert not command.slower(measured(1.3, 1.0, 1.6), before)  # quartiles overlap
    assert not command.slower(measured(1.08, 1.07, 1.09), before)
    assert not command.slower(measured(9.0, 9.0, 9.0), None)  # new


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the results, and suites that take no time."""
    rows = [measured(1.0, 0.9, 1.1), {**measured(2.0, 2.0, 2.0, math.inf), "suite": "variance"}]
    (tmp_path / "results.json").write_text(json.dumps({"machines": {}, "measurements": rows}))
    (tmp_path / "README.md").write_text("before\n<!-- table: begin -->\nold\n<!-- table: end -->\nafter\n")
    monkeypatch.setattr(timing, "HERE", tmp_path)
    return tmp_path


def suites(monkeypatch, **functions):
    made = {name: type("Suite", (), {"measure": staticmethod(each)}) for name, each in functions.items()}
    monkeypatch.setattr(command, "import_module", lambda name: made[name.partition(".")[2]])


def test_a_suite_replaces_its_own_rows_and_says_what_became_slower(folder, monkeypatch, capsys):
    suites(monkeypatch, steps=lambda: [Measurement("a", "b", 3.0, 2.9, 3.1, 1.0)])
    assert command.main(["steps"]) == 1
    told = capsys.readouterr().out
    assert "was 1.00" in told
    assert "slower than before: a: 3.00, was 1.00" in told
    results = json.loads((folder / "results.json").read_text())
    assert [(row["suite"], row["ratio"]) for row in results["measurements"]] == [
        ("steps", 3.0),
        ("variance", 2.0),
    ]
    assert results["machines"]["steps"]["torch"]
    readme = (folder / "README.md").read_text()
    assert readme.startswith("before\n")
    assert readme.endswith("after\n")
    assert "| a | b | 3.00 | 2.90-3.10 | 1 | **over**, see below |" in readme
    assert command.main(["steps"]) == 0  # no slower than itself


def test_the_committed_table_is_that_of_the_committed_results():
    rows = json.loads((FOLDER / "results.json").read_text())["measurements"]
    text = (FOLDER / "README.md").read_text()
    assert command.table(rows) in text
    assert {row["suite"] for row in rows} <= set(command.SUITES)
    for row in rows:
        assert row["within_budget"] == (row["budget"] is None or row["ratio"] <= row["budget"])


@pytest.mark.parametrize("suite", [name for name in command.SUITES if name != "samplers"])  # needs torchsde
def test_suites_can_be_imported(suite):
    assert callable(import_module(f"benchmarks.{suite}").measure)
