"""Shifted seeds reach every statistical test, and failures are counted against their significance."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from adversary.seeds import RECORD, WITHOUT_DRAWS, main, poisson_tail, read, summarise

TESTS = Path(__file__).parent
LITERAL = re.compile(r"(manual_seed|default_rng|RandomState)\(\d|(random_state|seed)=\d|for seed in range")
#: Fixed seeds in statistical tests, and what they are good for.
ALLOWED = {
    "test_cloud_of_balls_against_a_series": "one problem whose series converges; its walks move",
    "test_flips_and_crops_by_hand": "its law is tested on a moving stream; equal seeds give equal images",
}


def statistical_tests():
    """Every test function with the marker, by name, with its source."""
    for file in sorted(TESTS.rglob("test_*.py")):
        source = file.read_text(encoding="utf-8")
        whole = bool(re.search(r"^pytestmark.*statistical", source, re.M))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = " ".join(ast.unparse(mark) for mark in node.decorator_list)
                if whole or "mark.statistical" in marks:
                    yield node.name, ast.unparse(node)


def test_statistical_tests_have_no_seed_of_their_own():
    """A test that fixes its seed passes under every EXTRA_SEED, and says nothing."""
    found = dict(statistical_tests())
    assert len(found) > 200
    fixed = {name for name, source in found.items() if LITERAL.search(source)}
    assert fixed == set(ALLOWED)


def report(*cases):
    """A JUnit report of tests: name, properties and whether it failed."""
    rows = [
        f'<testcase classname="tests.core.test_a" name="{name}"><properties>'
        + "".join(f'<property name="{key}" value="{value}"/>' for key, value in properties)
        + "</properties>"
        + ('<failure message="off by 7 standard errors"/>' if failed else "")
        + "</testcase>"
        for name, properties, failed in cases
    ]
    return f"<testsuites><testsuite>{''.join(rows)}</testsuite></testsuites>"


def test_failures_are_counted_and_fixed_tests_are_noticed():
    tests = {}
    moving, fixed = [("alpha", "0.0001"), ("stream", "generator")], [("alpha", "0.01")]
    for shift in (1, 2):
        read(report(("test_moves", moving, False), ("test_fixed", fixed, shift == 2)), shift, tests)
    found = summarise(tests, 2)
    assert (found["tests"], found["draws"]) == (2, 4)
    assert found["expected_failures"] == pytest.approx(2 * 0.0001 + 2 * 0.01)
    (failure,) = found["failures"]
    assert failure["test"] == "tests/core/test_a::test_fixed"
    assert (failure["shift"], failure["alpha"]) == (2, 0.01)
    assert found["unmoved"] == ["tests/core/test_a::test_fixed"]
    assert found["explained"]
    assert found["by_significance"] == {"0.0001": 1, "0.01": 1}


def test_a_file_that_cannot_be_imported_is_no_result():
    with pytest.raises(RuntimeError, match="test_broken could not be run"):
        read(report(("test_broken", [], True)), 1, {})


def test_more_failures_than_significance_allows_are_a_finding():
    tests = {}
    for shift in range(1, 11):
        read(report(("test_loose", [("alpha", "1e-4"), ("stream", "seed")], shift == 3)), shift, tests)
    found = summarise(tests, 10)
    assert found["probability"] == pytest.approx(0.001, rel=0.01)
    assert not found["explained"]
    assert poisson_tail(0, 0.5) == 1
    assert poisson_tail(2, 1.0) == pytest.approx(1 - 2 / 2.718281828)


SAMPLE = """
import pytest, torch, numpy as np
pytestmark = pytest.mark.statistical

def test_fixed(generator):
    torch.manual_seed(0)
    torch.randn(3), np.random.default_rng(0).random()
    torch.randn(3, generator=torch.Generator().manual_seed(0))

@pytest.mark.statistical(alpha=1e-3)
def test_generator(generator):
    torch.rand(2, generator=generator)

def test_weights():
    torch.nn.Linear(2, 1)

def test_rng(rng):
    assert rng.random() < 2
"""


@pytest.mark.slow
def test_streams_are_noted_where_they_are_used(tmp_path):
    """The fixtures of this suite, on four tests in a process of their own."""
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    options = [
        "-q",
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        tmp_path,
        f"--junitxml={tmp_path}/r.xml",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_sample.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}/src:{TESTS.parent}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    tests = {}
    read((tmp_path / "r.xml").read_text(), 1, tests)
    streams = {name.split("::")[1]: test.streams for name, test in tests.items()}
    assert streams == {
        "test_fixed": set(),
        "test_generator": {"generator"},
        "test_weights": {"weights"},
        "test_rng": {"seed"},
    }
    assert tests["test_sample::test_generator"].alpha == 1e-3


@pytest.mark.slow
def test_a_run_of_one_shift(tmp_path):
    only = ["tests/core/test_partners.py::test_permutation_rejects"]
    assert main(1, tmp_path / "seeds.json", only=only, jobs=1)
    record = json.loads((tmp_path / "seeds.json").read_text())
    assert record["tests"] == record["draws"] == 4
    assert record["without_draws"] == WITHOUT_DRAWS


@pytest.mark.skipif(not RECORD.exists(), reason="no record of shifted seeds")
def test_the_record_explains_its_failures():
    record = json.loads(RECORD.read_text())
    assert record["shifts"] >= 10
    assert record["draws"] >= 10 * 500
    assert record["unmoved"] == []
    assert record["explained"]
    assert record["probability"] == pytest.approx(
        poisson_tail(len(record["failures"]), record["expected_failures"])
    )
