"""Code blocks of the README and the docs run and print what is shown; links and commands are real.

Conventions of a page:

- ```` ```python ```` blocks are run in order, in one namespace and in an empty folder.
- A block ```` ```text title="output" ```` right after one is what it prints. Words must agree, numbers
  nearly: other machines round differently, and training amplifies that.
- ```` ```console ```` blocks are not run; a line ``$ elliptica ...`` must name a command and options that
  exist.
- A python block that cannot be run (it needs a cluster, or data of the reader's) has the line
  ``<!-- not run: why -->`` right above it. It must still be Python.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
import typer

from elliptica._utils.extras import remedy
from elliptica.cli import app

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
SOURCE = ROOT / "src" / "elliptica"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += [ROOT / "benchmarks" / "README.md", *sorted(RESULTS.rglob("*.md"))]
#: Pages whose blocks take more than two seconds together.
SLOW = {"baselines.md", "own-loop.md", "weighting.md", "sklearn.md", "diagnose.md"}
SLOW |= {"integrations.md", "scale.md"}

BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n\n?)?"
    r"^```python[^\n]*\n(?P<code>.*?)^```$"
    r"(?:\n\n?^```text title=\"output\"\n(?P<output>.*?)^```$)?",
    flags=re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
#: Shown and printed numbers agree if they differ by less than this, absolutely or relatively.
ABSOLUTE, RELATIVE = 0.02, 0.1


def ids(page):
    return str(page.relative_to(ROOT))


def by_speed(pages):
    return [pytest.param(p, id=ids(p), marks=[pytest.mark.slow] if p.name in SLOW else []) for p in pages]


def assert_agrees(shown, printed):
    """Equal up to white space and to the rounding of numbers; percentages as whole numbers may be 3 apart."""
    wanted, got = (" ".join(text.split()) for text in (shown, printed))
    assert NUMBER.sub("#", wanted) == NUMBER.sub("#", got), f"shown:\n{shown}\nprinted:\n{printed}"
    for a, b in zip(NUMBER.finditer(wanted), NUMBER.finditer(got), strict=True):
        percent = wanted[a.end() : a.end() + 1] == "%"
        slack = 3.0 if percent else max(ABSOLUTE, RELATIVE * abs(float(a[0])))
        assert abs(float(a[0]) - float(b[0])) <= slack, f"shown:\n{shown}\nprinted:\n{printed}"


def run_blocks(text, name):
    """Run the python blocks of a page; compare what they print with what is shown."""
    namespace = {"__name__": "__docs__"}
    for block in BLOCK.finditer(text):
        code = compile(block["code"], name, "exec")
        if block["reason"]:
            assert block["output"] is None, f"{name} shows the output of a block that is not run"
            continue
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)  # our own pages
        if block["output"] is not None:
            assert_agrees(block["output"], printed.getvalue())


@pytest.mark.parametrize("page", by_speed(PAGES))
def test_python_blocks_run_and_print_what_is_shown(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # blocks may write files
    run_blocks(page.read_text(), str(page))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_python_block_is_seen(page):
    """A block that the pattern misses, e.g. an indented one, would not be run."""
    text = page.read_text()
    assert len(re.findall(r"```\s*(?:python|py)\b", text)) == len(list(BLOCK.finditer(text)))
    assert text.count('title="output"') == sum(b["output"] is not None for b in BLOCK.finditer(text))
    assert text.count("<!-- not run") == sum(b["reason"] is not None for b in BLOCK.finditer(text))


PYTHON, OUTPUT, END = "```python\n", '```text title="output"\n', "```\n"


def test_blocks_share_a_namespace_and_wrong_output_is_noticed():
    first = f"{PYTHON}a = 0.5\n{END}\nwords\n\n{PYTHON}print('a is', a)\n{END}\n{OUTPUT}"
    run_blocks(f"{first}a is 0.51\n{END}", "page")
    for wrong in ("a is 0.6", "b is 0.5", "a is 0.5 0.5"):
        with pytest.raises(AssertionError):
            run_blocks(f"{first}{wrong}\n{END}", "page")


def test_blocks_marked_as_not_run_must_be_python_and_have_a_reason():
    run_blocks(f"<!-- not run: needs a cluster -->\n{PYTHON}raise SystemExit\n{END}", "page")
    with pytest.raises(SyntaxError):
        run_blocks(f"<!-- not run: needs a cluster -->\n{PYTHON}1 +\n{END}", "page")
    with pytest.raises(ZeroDivisionError):
        run_blocks(f"<!-- not run -->\n{PYTHON}1 / 0\n{END}", "page")


def commands(text):
    """The `elliptica` commands of a page, as lists of words."""
    for block in re.findall(r"^```console\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True) if line.startswith("$ ") else []
            if words and Path(words[0]).name == "elliptica":
                yield words[1:]


def check_command(words):
    """Walk down the tree of commands; complain about a command or an option that is not there."""
    command, rest = typer.main.get_command(app), list(words)
    while rest and not rest[0].startswith("-") and hasattr(command, "commands"):
        name = rest.pop(0)
        assert name in command.commands, f"no command {name!r} in: elliptica {' '.join(words)}"
        command = command.commands[name]
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    for word in rest:
        if word.startswith("-"):
            option = word.split("=")[0]
            assert option in known | {"--help"}, f"no option {option!r} in: elliptica {' '.join(words)}"
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    assert rest or not any(p.required for p in arguments), f"missing argument: elliptica {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_exist(page):
    for words in commands(page.read_text()):
        check_command(words)


@pytest.mark.parametrize(
    "line", ["elliptica walk", "elliptica run table3 --fast", "elliptica data drop", "elliptica run"]
)
def test_commands_that_do_not_exist_are_noticed(line):
    (words,) = commands(f"```console\n$ {line}  # a comment\n```\n")
    with pytest.raises(AssertionError):
        check_command(words)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        place = (page.parent / target).resolve()
        absent = place.is_relative_to(RESULTS) and not RESULTS.exists()  # not in the source distribution
        if not target.startswith(("http:", "https:", "mailto:")) and not absent:
            assert place.exists(), f"{ids(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_nothing_is_left_to_fill_in(page):
    assert not re.search(
        r"COST_TABLE|RESULTS_TABLE|\bpending\b|TBD|\bWORDS\b|\bTEXT\b|\bTODO\b|FIXME", page.read_text()
    )


#: `pip install` of the package by its name alone, which would need an index that has it.
INDEX = re.compile(r"""pip install (?:-\S+ )*["']?elliptica(?:\[[^\]]*\])?["']?(?! @)(?:[\s`"'.,;)]|$)""")


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "examples").rglob("*.[mp][dy]"))], ids=ids)
def test_no_page_installs_from_an_index(page):
    """The package is on none; pages say `pip install -e ".[extra]"` or name the repository."""
    assert not INDEX.search(page.read_text())


def test_claims_of_an_index_are_recognised():
    for claim in ("elliptica`", '"elliptica[tables]"', "-U 'elliptica[hf]', then"):
        assert INDEX.search(f"pip install {claim}")
    for other in ('-e ".[tables]"', '"elliptica[tables] @ git+<url>"', "elliptica-other"):
        assert not INDEX.search(f"pip install {other}")


def test_one_place_says_how_to_install():
    """It says what the pages say, and changes with the first release."""
    assert remedy("lab") == 'pip install -e ".[lab]"'
    for path in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.toml")]:
        if path.name != "extras.py":
            assert not re.search(r"elliptica\[|\.\[[a-z,]+\]", path.read_text(encoding="utf-8")), path
