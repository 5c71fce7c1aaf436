"""The mutants: every operator does what it says, tests judge the changed code, survivors have reasons."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from adversary import mutants, mutations

ROOT = Path(__file__).resolve().parent.parent

MADE = [
    ("x = a + b", "arithmetic", "x = (a - b)"),
    ("x = a ** 2", "arithmetic", "x = (a * 2)"),
    ("x *= y", "arithmetic", "x /= y"),
    ("x = a < b", "comparison", "x = (a <= b)"),
    ("x = a == b", "comparison", "x = (a != b)"),
    ("x = a < b < c", "comparison", "x = (a < b <= c)"),
    ("x = f(3)", "constant", "x = f((4))"),
    ("x = f(0.5)", "constant", "x = f((1.0))"),
    ("x = f(keepdim=True)", "flag", "x = f(keepdim=(False))"),
    ("x = a and b", "boolean", "x = (a or b)"),
    ("x = -a", "unary", "x = (a)"),
    ("x = not a", "unary", "x = (a)"),
    ("x = f(a, b, c)", "swapped arguments", "x = (f(b, a, c))"),
    ("x = min(a, b)", "twin", "x = (max(a, b))"),
    ("x = a.mean(0)", "twin", "x = (a.sum(0))"),
    ("x = a.detach()", "removed call", "x = (a)"),
    ("x = a.b().clamp(0, 1)", "removed call", "x = (a.b())"),
    ("x = torch.sqrt(a)", "removed call", "x = (a)"),
    ("x = a.sum(dim=1)", "removed keyword", "x = (a.sum())"),
    ("if a:\n    x = b", "negated condition", "if (not a):\n    x = b"),
    ("x = b if a else c", "negated condition", "x = (b if not a else c)"),
    ("if a:\n    raise E", "dropped check", "if (False):\n    raise E"),
    ("s.x = a", "removed statement", "pass"),
    ("f()", "removed statement", "pass"),
    ("x += a", "removed statement", "pass"),
    ("for i in x:\n    continue", "removed statement", "for i in x:\n    pass"),
]


@pytest.mark.parametrize(("source", "operator", "changed"), MADE)
def test_an_operator_makes_what_it_says(source, operator, changed):
    made = {(m.operator, m.apply(source)) for m in mutations.mutants(source, "core/toy.py")}
    assert (operator, changed) in made


@pytest.mark.parametrize(
    "source",
    [
        '"""Words - and 1 + 1 more."""',
        'raise ValueError(f"{a + 1}")',
        "def f(x: Literal[1] = a) -> A[2]: ...",
        "def __repr__(self):\n    return f(1, 2)",
        "@dataclass(frozen=True)\nclass A: ...",
        "if TYPE_CHECKING:\n    x = 1 + 1",
        'x = a + "words"',
        'x = getattr(a, "b")',
        "warn(a, b)",
    ],
)
def test_words_and_types_stay_as_they_are(source):
    assert mutations.mutants(source, "core/toy.py") == []


def test_lines_with_other_letters_are_cut_in_the_right_place():
    source = "é = 'ü' * (a + b)  # ö"
    assert "é = 'ü' * ((a - b))  # ö" in [m.apply(source) for m in mutations.mutants(source, "core/toy.py")]


def test_the_same_program_is_not_counted():
    source = "def f(a):\n    if a is None:\n        return 0\n"
    made = mutations.mutants(source, "core/toy.py")
    # `not a is None` and `a is not None` are one program
    assert [m.operator for m in made] == ["negated condition", "comparison", "constant"]
    assert [m.operator for m in mutations.valid(made, source)] == ["negated condition", "constant"]


def test_a_sample_is_seeded_and_in_proportion():
    sources = {"core/a.py": "x = a + b\n" * 30, "core/b.py": "x = f(a - b)\ny = a * b\n" * 30}
    drawn = mutations.sample(sources, 9, seed=0)
    assert [m.key for m in drawn] == [m.key for m in mutations.sample(sources, 9, seed=0)]
    assert {m.file for m in drawn} == set(sources)


#: Runs in a process of its own: a toy project instead of this one.
SCRIPT = """
import json, sys
from pathlib import Path
from adversary import mutants
root = Path(sys.argv[1])
mutants.ROOT, mutants.SOURCE, mutants.PRELOADED = root, root / "src" / "toy", ()
mutants.EQUIVALENT = root / "none.toml"
mutants.main(0, 100, out=root / "record.json")
name, said = "core/sizes.py", []
test = "tests/core/test_sizes.py::test_limit"
source = mutants.read_sources()[name]
for text in (source, source.replace("> 3", "> 4"), "import nothing_of_this_name"):
    judge, keep = lambda copy: mutants.judge(copy, [test]), lambda *a: said.append(a[0])
    mutants.run_all([mutants.Task(judge, keep, 60.0, (name, text))], workers=1)
print(json.dumps(said))
"""
TOY = """
def limit(x):
    if x > 3:
        return 3
    return x

def loose(x):
    return x + 1

def unseen(x):
    return x - 1
"""
TOY_TESTS = """
from toy.core.sizes import limit, loose

def test_limit():
    assert [limit(x) for x in (2, 3, 4, 5)] == [2, 3, 3, 3]

def test_loose():
    assert loose(0) is not None
"""


@pytest.mark.slow
def test_changed_code_is_what_the_tests_judge(tmp_path):
    (tmp_path / "src" / "toy" / "core").mkdir(parents=True)
    (tmp_path / "tests" / "core").mkdir(parents=True)
    (tmp_path / "src" / "toy" / "__init__.py").write_text("")
    (tmp_path / "src" / "toy" / "core" / "sizes.py").write_text(TOY)
    (tmp_path / "tests" / "core" / "test_sizes.py").write_text(TOY_TESTS)
    markers = "\n    ".join(["slow", "distributed", "browser", "needs_data"])
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n    {markers}\n")
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    untouched, changed, unimportable = json.loads(run.stdout.splitlines()[-1])
    assert untouched == {"code": 0, "killer": ""}
    assert changed == {"code": 1, "killer": "tests/core/test_sizes.py::test_limit"}
    assert "import" in unimportable["killer"]
    record = json.loads((tmp_path / "record.json").read_text())["mutants"]
    outcomes = {(m["before"], m["after"]): (m["outcome"], m["killer"]) for m in record}
    killed = ("killed", "tests/core/test_sizes.py::test_limit")
    assert outcomes["if x > 3:", "if (not x > 3):"] == killed
    assert outcomes["return 3", "return (4)"] == killed
    assert outcomes["if x > 3:", "if (x >= 3):"] == ("survived", "")  # the same function
    assert outcomes["return x + 1", "return (x - 1)"] == ("survived", "")  # a test without teeth
    assert outcomes["return x - 1", "return (x + 1)"] == ("survived", "")  # no test at all
    assert "survived without a reason: core/sizes.py | arithmetic | return x + 1" in run.stdout


def test_a_process_that_knows_the_package_starts_another(monkeypatch):
    importlib.import_module("elliptica")
    calls = []
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda command, **_: calls.append(command) or subprocess.CompletedProcess(command, 1),
    )
    assert not mutants.main(3, 7, "core", Path("there.json"))
    assert calls == [[sys.executable, "-m", "adversary.mutants", "3", "7", "core", "there.json"]]


def test_every_recorded_survivor_has_a_reason():
    record = json.loads(mutants.RECORD.read_text(encoding="utf-8"))
    entries = record["mutants"]
    assert len(entries) >= 100
    assert {e["file"].split("/")[0] for e in entries} == set(mutants.PACKAGES)
    survivors = {e["key"] for e in entries if e["outcome"] == "survived"}
    assert survivors == {e["key"] for e in entries if "why" in e}
    assert set(mutants.reasons()) == survivors
