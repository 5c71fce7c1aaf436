"""The adversary itself: its judgement must be able to fail, and a sample of its cases must pass."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from adversary import __main__ as command
from adversary import cases, workers
from adversary.page import RESULTS, page

import adversary_toys

ROOT = Path(__file__).resolve().parent.parent
TOYS = (adversary_toys.__name__,)


def toy(ending, *parameter, **choices):
    return {"target": "toy", "seed": 0, "choices": {"ending": [ending, *parameter], **choices}}


@pytest.mark.parametrize(
    ("ending", "outcome", "detail"),
    [
        ("right", cases.RIGHT, ""),
        ("refused", cases.WRONG, "valid input was refused: TypeError"),
        ("accepted", cases.WRONG, "accepted without an error: ending=accepted"),
        ("clear", cases.CLEAR, "x must be a torch.Tensor"),
        ("wrong", cases.WRONG, "it is 0"),
        ("deep", cases.DEEP, "ZeroDivisionError"),
        ("broken", cases.BROKEN, "ending=broken: ZeroDivisionError"),
        ("clash", cases.WRONG, "accepted without an error"),
    ],
)
def test_every_ending_is_judged(ending, outcome, detail):
    found = cases.judge(toy(ending))
    assert found.outcome == outcome
    assert detail in found.detail


def test_an_error_in_our_own_line_is_no_message():
    """Only a ``raise`` is: here a dictionary of ours has no such key."""
    source = cases.SOURCE / "_utils" / "text.py"
    code = compile("\n\nx = {}['key']\n", str(source), "exec")
    with pytest.raises(KeyError) as caught:
        exec(code, {})
    assert not cases._is_raised(caught.tb)
    line = min(cases._raise_lines(str(cases.SOURCE / "_utils" / "checks.py")))
    code = compile(
        "\n" * (line - 1) + "raise KeyError('key')\n", str(cases.SOURCE / "_utils" / "checks.py"), "exec"
    )
    with pytest.raises(KeyError) as caught:
        exec(code, {})
    assert cases._is_raised(caught.tb)


@pytest.mark.slow
def test_crashes_and_hangs_end_one_case_and_not_the_run():
    made = [toy(each) for each in ("crash", "right", "hang", "wrong", "right")]
    found = {json.dumps(case): outcome for case, outcome in workers.judge_all(made, 2, TOYS)}
    assert Counter(each.outcome for each in found.values()) == {
        cases.CRASH: 1,
        cases.HANG: 1,
        cases.RIGHT: 1,  # two equal cases have one name
        cases.WRONG: 1,
    }
    assert "SIGABRT" in found[json.dumps(toy("crash"))].detail


def test_failures_shrink_to_what_matters():
    given = toy("size", 937, noise=["some", "long text"], other=["b"])
    signature = cases.judge(given).signature()
    assert signature.startswith("wrong: too large")
    best = cases.shrink(given, lambda case: cases.judge(case).signature() == signature, most=200)
    assert set(best["choices"]) == {"ending"}
    assert 100 <= best["choices"]["ending"][1] < 200


def test_cases_are_the_same_for_the_same_seed():
    target = cases.TARGETS["toy"]
    first, again, other = (cases.generate([target], 50, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == len({json.dumps(case) for case in first})
    assert json.loads(json.dumps(first)) == first
    names = {case["choices"].get("ending", ["right"])[0] for case in first}
    assert len(names) > 7  # not the harmless one again and again


def test_cases_do_not_depend_on_what_else_is_imported():
    """hypothesis would draw constants from the source of the modules of this test run."""
    script = (
        "import sys, json; sys.path.insert(0, 'tests'); import adversary_toys; from adversary import cases;"
        "print(json.dumps(cases.generate([cases.TARGETS['toy']], 200, 5)))"
    )
    here = cases.generate([cases.TARGETS["toy"]], 200, 5)
    there = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(there) == here


def test_kept_cases_are_written_once(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "KEPT", tmp_path / "kept.json")
    command.write_kept([{**toy("wrong"), "was": "wrong: 1"}, {**toy("wrong"), "was": "wrong: 2"}])
    assert [case["was"] for case in command.read_kept()] == ["wrong: 2"]


def assert_none_fails(made):
    failed = [
        f"{outcome.outcome}: {outcome.detail}\n  {json.dumps(case)}"
        for case, outcome in workers.judge_all(made, 1)
        if outcome.outcome in cases.FAILURES
    ]
    assert not failed, "\n".join(failed)


def test_the_page_follows_from_the_records():
    assert page() == (RESULTS / "README.md").read_text(encoding="utf-8")


def test_the_committed_table_of_cases():
    """What the page promises: enough cases, and nothing that nobody should meet."""
    record = json.loads((RESULTS / "cases.json").read_text(encoding="utf-8"))
    for kind, least in (("library", 3000), ("commands", 1000)):
        counts = [record["counts"][name] for name in record["counts"] if record["kinds"][name] == kind]
        assert sum(sum(each.values()) for each in counts) >= least
    total = sum((Counter(each) for each in record["counts"].values()), Counter())
    assert not {name: total[name] for name in cases.FAILURES if name != cases.DEEP and total[name]}
    assert total[cases.DEEP] <= 10
    assert record["minutes"] <= 30


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number"), [("library", 240), ("commands", 60)])
def test_a_sample_of_cases(kind, number):
    """``make fuzz`` tries thousands; this many must pass in every run of all tests."""
    workers.load_targets()
    targets = [each for each in cases.TARGETS.values() if each.kind == kind]
    assert_none_fails(cases.generate(targets, number, seed=2026))


@pytest.mark.slow
def test_cases_that_failed_once():
    workers.load_targets()
    assert_none_fails(command.read_kept())


def test_one_case_is_judged_again(monkeypatch, capsys):
    """The line that a failure prints is enough to see it again, with its traceback."""
    monkeypatch.setattr(command, "load_targets", lambda: None)
    monkeypatch.setattr(command, "judge_one", cases.judge)
    for ending, status, shown in (("right", 0, "right"), ("deep", 1, "Traceback (most recent call last)")):
        with pytest.raises(SystemExit) as end:
            command.app(["case", json.dumps(toy(ending))])
        assert end.value.code == status
        assert shown in capsys.readouterr().out
    for line in ("{", "[]", '{"target": "absent"}', json.dumps(toy("absent"))):
        with pytest.raises(SystemExit) as end:
            command.app(["case", line])
        assert end.value.code == 2
        assert "not a case" in capsys.readouterr().err
