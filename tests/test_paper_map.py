"""The paper map names code and tests that exist, and leaves no numbered statement of the paper out."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "paper-map.md").read_text()
HEAD = ["statement", "what it says", "code", "tests", "correction"]

#: What is numbered (or tagged) in the published paper, by section of the page.
STATEMENTS = {
    "Equations": ["(ERM)", "(TRM)", *(f"Eq. ({n})" for n in range(1, 17))],
    "Algorithms": ["Algorithm 1", "Algorithm 2"],
    "Propositions and lemmas": [*(f"Proposition {n}" for n in range(1, 5)), "Lemma 1", "Lemma 2"],
    "Tables": [f"Table {n}" for n in range(1, 13)],
    "Figures": [f"Figure {n}" for n in range(1, 5)],
}


def sections(text):
    """Rows of the table in each section, as lists of cells without the head."""
    found = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, body = part.split("\n", 1)
        lines = [line for line in body.splitlines() if line.startswith("|")]
        rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
        assert rows[0] == HEAD, f"the table of {title!r} has other columns"
        found[title] = rows[2:]
        for row in found[title]:
            assert len(row) == len(HEAD), f"{row[0]} has {len(row)} cells"
    return found


SECTIONS = sections(PAGE)
ROWS = [row for rows in SECTIONS.values() for row in rows]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def resolve(name):
    """Import the longest part of a dotted name that is a module; take the rest as attributes."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise  # something else is missing
            continue
        for attribute in parts[n:]:
            found = getattr(found, attribute)
        return found
    raise ModuleNotFoundError(name)


@cache
def functions_in(path):
    return {
        node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)
    }


def check_code(name):
    if "/" in name:
        assert (ROOT / name).is_file(), f"no file {name}"
    else:
        assert name.startswith("elliptica."), f"{name} is not a name of the library"
        resolve(name)


def check_test(name):
    path, _, function = name.partition("::")
    assert re.fullmatch(r"tests/(?:\w+/)*test_\w+\.py", path), f"{path} is not a test file"
    assert (ROOT / path).is_file(), f"no file {path}"
    assert not function or function in functions_in(path), f"no test {name}"


@pytest.mark.parametrize("section", STATEMENTS)
def test_every_numbered_statement_has_its_row(section):
    assert [row[0] for row in SECTIONS[section]] == STATEMENTS[section]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_names_of_a_row_exist(row):
    _, says, code, tests, correction = row
    for name in names(code):
        check_code(name)
    for name in names(tests):
        check_test(name)
    if code.startswith("not implemented: "):  # with the reason, and then there is nothing to test
        assert not names(code)
        assert not tests
    else:
        assert names(code)
        assert names(tests), "every implemented statement names its test"
    assert says
    assert correction, "say 'none' where the statement holds as printed"


@pytest.mark.parametrize(
    ("check", "name"),
    [
        (check_code, "elliptica.core.elliptic.Elliptic.forwards"),
        (check_code, "elliptica.nothing"),
        (check_test, "tests/core/test_bridge.py::test_lore"),
        (check_test, "tests/test_nothing.py"),
    ],
)
def test_wrong_names_are_noticed(check, name):
    with pytest.raises((AttributeError, ModuleNotFoundError, AssertionError)):
        check(name)


def test_a_missing_row_and_a_missing_cell_are_noticed():
    without = "\n".join(line for line in PAGE.splitlines() if not line.startswith("| Eq. (7)"))
    assert [row[0] for row in sections(without)["Equations"]] != STATEMENTS["Equations"]
    with pytest.raises(AssertionError):
        sections(PAGE.replace("| the training objective: the mean loss along bridges", ""))
