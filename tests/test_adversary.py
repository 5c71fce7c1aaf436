"""The adversary itself: its judgement must be able to fail, and a sample of its cases must pass."""

import dataclasses
import json
import random
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import typer
from adversary import __main__ as command
from adversary import cases, kills, workers
from adversary.page import RESULTS, page, totals

import adversary_toys
from elliptica.cli import app

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
        ("excused", cases.RIGHT, ""),
        ("outside", cases.BROKEN, "a fault of the target"),
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


@pytest.mark.parametrize(
    ("message", "outcome"), [("bad", cases.DEEP), ("x must be finite, but", cases.CLEAR)]
)
def test_a_message_says_something(message, outcome):
    source = cases.SOURCE / "_utils" / "checks.py"
    line = min(cases._raise_lines(str(source)))
    case = cases.Case(cases.TARGETS["toy"], 0, {"other": ["b"]}, Path())
    with pytest.raises(ValueError, match=message) as caught:
        exec(compile("\n" * (line - 1) + f"raise ValueError({message!r})\n", str(source), "exec"), {})
    assert cases.outcome_of(caught.value, case).outcome == outcome


def test_close_means_close():
    one = torch.tensor([1.0, float("nan"), -1e4])
    cases.check_close(one, one.clone(), "same")
    cases.check_close(one, one + torch.tensor([0.0, 0.0, 0.05]), "within the tolerance")
    for other in (
        one + torch.tensor([1.0, 0.0, 0.0]),
        one + torch.tensor([0.0, 0.0, 1.0]),
        torch.tensor([1.0, 0.0, -1e4]),
        torch.tensor([float("nan"), float("nan"), -1e4]),
        torch.tensor([float("inf"), float("nan"), -1e4]),
        one[:2],
        one[:, None],
    ):
        with pytest.raises(cases.Wrong):
            cases.check_close(one, other, "differs")
    with pytest.raises(cases.Wrong, match="1 instead of 2 at"):
        cases.check_close(torch.ones(2), torch.tensor([1.0, 2.0]), "differs")
    cases.check(True, "fine")
    with pytest.raises(cases.Wrong, match="differs"):
        cases.check(torch.tensor(False), "differs")


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


def test_every_choice_is_tried_alone():
    target = cases.TARGETS["toy"]
    made = cases.each_choice([target], 1)
    assert cases.each_choice([target], 1) == made != cases.each_choice([target], 2)
    tried = [(axis, name) for case in made for axis, (name, *_) in case["choices"].items()]
    harmless = {(axis, choices[0].name) for axis, choices in target.axes.items()}
    assert sorted([*tried, *harmless]) == sorted(
        (axis, each.name) for axis, choices in target.axes.items() for each in choices
    )
    assert all(len(case["choices"]) <= 1 for case in made)
    assert {} in [case["choices"] for case in made]
    sizes = {cases.each_choice([target], seed)[0]["seed"] for seed in range(5)}
    assert len(sizes) == 5


def test_cases_are_the_same_for_the_same_seed():
    target = cases.TARGETS["toy"]
    first, again, other = (cases.combinations([target], 50, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == len({json.dumps(case["choices"]) for case in first})
    assert json.loads(json.dumps(first)) == first
    names = {case["choices"].get("ending", ["right"])[0] for case in first}
    assert len(names) > 7  # not the harmless one again and again
    assert all(len(case["choices"]) > 1 for case in first)


def test_cases_do_not_depend_on_what_else_is_imported():
    """hypothesis would draw constants from the source of the modules of this test run."""
    made = "[*{0}.each_choice([{0}.TARGETS['toy']], 5), *{0}.combinations([{0}.TARGETS['toy']], 200, 5)]"
    script = (
        "import sys, json; sys.path.insert(0, 'tests'); import adversary_toys; from adversary import cases;"
        f"print(json.dumps({made.format('cases')}))"
    )
    here = eval(made.format("cases"))
    there = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(there) == here


@pytest.fixture
def only_toys(tmp_path, monkeypatch):
    """The command on toy targets, judged in this process, without those that would end it."""
    endings = [each for each in adversary_toys.AXES["ending"] if each.name not in ("crash", "hang")]
    made = dataclasses.replace(
        cases.TARGETS["toy"], kind="library", axes={**adversary_toys.AXES, "ending": tuple(endings)}
    )
    for module in (command, cases):
        monkeypatch.setattr(module, "TARGETS", {"toy": made})
    monkeypatch.setattr(command, "load_targets", lambda: None)
    monkeypatch.setattr(command, "judge_one", cases.judge)
    monkeypatch.setattr(command, "judge_all", lambda made, jobs: ((each, cases.judge(each)) for each in made))
    monkeypatch.setattr(command, "KEPT", tmp_path / "kept.json")
    return endings


def fuzz(*words):
    with pytest.raises(SystemExit) as end:
        command.app(["cases", "--library", "20", *words])
    return end.value.code


def test_the_command_reports_failures(only_toys, tmp_path, capsys):
    assert fuzz("--keep", "--out", str(tmp_path / "record.json")) == 1
    shown = capsys.readouterr().out
    record = json.loads((tmp_path / "record.json").read_text())
    counts = record["targets"]["toy"]["counts"]
    for outcome in (cases.WRONG, cases.DEEP, cases.BROKEN, cases.RIGHT, cases.CLEAR):
        assert counts[outcome] > 0
    alone = record["targets"]["toy"]["choices"] - 2  # three harmless ones in one case
    assert sum(counts.values()) == record["combinations"] + alone
    alone = {"target": "toy", "choices": {"ending": ["wrong"]}}
    kept = command.read_kept()
    assert alone in [{k: each[k] for k in alone} for each in kept]  # shrunk
    assert len(kept) == len(record["failures"]) == shown.count("python -m adversary case")
    line = next(each for each in shown.splitlines() if '"wrong"' in each)
    case = json.loads(shlex.split(line)[-1])
    assert cases.judge(case).outcome == cases.WRONG
    assert fuzz("--no-each", "--library", "1") == 1  # kept cases are judged again


def test_the_command_ends_well_without_failures(only_toys, monkeypatch, capsys):
    only_toys[:] = [each for each in only_toys if each.name in ("right", "clear")]
    target = dataclasses.replace(
        cases.TARGETS["toy"], axes={**adversary_toys.AXES, "ending": tuple(only_toys)}
    )
    for module in (command, cases):
        monkeypatch.setattr(module, "TARGETS", {"toy": target})
    assert fuzz() == 0
    assert "0 different failures" in capsys.readouterr().out


def test_an_unknown_target_is_an_error(only_toys, capsys):
    assert fuzz("--only", "toyy") == 2
    assert "Did you mean 'toy'?" in " ".join(capsys.readouterr().err.split())


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
    for kind, counts in totals(record).items():
        assert sum(counts.values()) >= {"library": 3000, "commands": 1000}[kind]
        assert not {name: counts[name] for name in cases.FAILURES if counts[name]}
    assert record["each_choice"]
    assert record["minutes"] <= 30


def test_the_committed_kills():
    record = json.loads((RESULTS / "kills.json").read_text(encoding="utf-8"))
    assert {each["outcome"] for each in record["scenarios"]} == {kills.KEPT}
    found = {each["name"]: each["details"] for each in record["scenarios"]}
    assert found.keys() >= kills.scenarios(None).keys()
    assert all(found[f"{name} killed"]["kills"] == 20 for name in ("run", "compare"))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number"), [("library", 240), ("commands", 60)])
def test_a_sample_of_cases(kind, number):
    """``make fuzz`` tries thousands; this many must pass in every run of all tests."""
    workers.load_targets()
    known = [each for each in cases.TARGETS.values() if each.module in workers.MODULES]  # not the docs' own
    targets = [each for each in known if each.kind == kind]
    alone = random.Random(2026).sample(cases.each_choice(targets, 2026), number // 2)
    combined = random.Random(2026).sample(cases.combinations(targets, number, 2026), number // 2)
    assert_none_fails([*alone, *combined])


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


def test_every_option_of_every_command_is_tried():
    text = "".join((ROOT / "adversary" / f"{name}.py").read_text() for name in ("commands", "program"))
    program = typer.main.get_command(app)
    context = typer.Context(program)
    for name in program.list_commands(context):
        for parameter in program.get_command(context, name).params:
            for flag in (*parameter.opts, *parameter.secondary_opts):
                short = flag.removeprefix("--").replace("-", "_")
                assert not flag.startswith("--") or flag in text or f"{short}=" in text, f"{name} {flag}"
