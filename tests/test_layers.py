"""A module imports only from layers below its own, and the core needs torch and numpy alone."""

import ast
import subprocess
import sys
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

import pytest

import elliptica

SOURCE = Path(__file__).resolve().parent.parent / "src" / "elliptica"

#: A package imports only from layers below its own. Packages of one layer do not know each other.
LAYERS = [
    {"_utils"},
    {"core", "report"},
    {"landscape", "baselines", "partner_index", "distributed", "integrations"},
    {"estimators"},
    {"tables", "lab"},
    {"cli"},
    {"__init__", "__main__"},
]
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}
MODULES = sorted(SOURCE.rglob("*.py"))


def unit(path):
    """The name under which a file appears in LAYERS: its module or its subpackage."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def package_of(path):
    """The package whose names a relative import of this file counts from."""
    return ".".join(["elliptica", *path.relative_to(SOURCE).parts[:-1]])


def ours(tree, package):
    """Every name of elliptica that a module imports, such as ``(node, "elliptica.core.noise.Green")``.

    Seen are import statements (absolute, relative, of names that `elliptica` hands on), attributes of an
    imported `elliptica`, and ``import_module``; what is put into a name at run time is written as ``?``.
    """
    nodes, imports = list(ast.walk(tree)), []
    aliases = {"elliptica"}
    for node in nodes:
        if isinstance(node, ast.Import):
            imports += [(node, alias.name) for alias in node.names if alias.name != "elliptica"]
            aliases |= {alias.asname for alias in node.names if alias.name == "elliptica" and alias.asname}
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            imports += [(node, f"{base}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            if called in ("import_module", "__import__"):
                name, *anchor = [text_of(argument) for argument in node.args]
                imports.append(
                    (node, resolve_name(name, anchor[0] if anchor and anchor[0] != "?" else package))
                )
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            imports.append((node, f"elliptica.{node.attr}"))
    for node, name in imports:
        first, *rest = name.split(".")
        if first == "elliptica":
            home = [elliptica._HOME[rest[0]]] if rest and rest[0] in elliptica._HOME else []
            yield node, ".".join([first, *home, *rest])


def text_of(node):
    """The text of a string constant or an f-string, with ``?`` for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "?"


def wrong_edges(tree, own, package):
    """What a module of the unit ``own`` must not import, in words."""
    for node, name in ours(tree, package):
        other = [*name.split("."), ""][1]
        if other not in (own, "__version__") and LEVEL.get(other, len(LAYERS)) >= LEVEL[own]:
            yield f"line {node.lineno}: {own} must not import {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_downwards(path):
    own = unit(path)
    assert own in LEVEL, f"{own} is new: give it a place in LAYERS"
    if own != "__init__":  # it hands on names of every package
        assert not list(wrong_edges(tree_of(path), own, package_of(path)))


@pytest.mark.parametrize(
    "code",
    [
        "import elliptica.lab.data",
        "import elliptica as e\ndef f():\n    return e.lab.data",
        "import elliptica.core\nelliptica.diagnose(1)",
        "from elliptica import Green, estimate_landscape as solve",
        "from elliptica import something_new",
        "from ..lab.data.toy import two_moons",
        "def f():\n    from .. import landscape",
        "from importlib import import_module\nimport_module('..lab', __package__)",
        "import importlib\nimportlib.import_module(f'elliptica.{name}')",
        "__import__('elliptica.cli')",
    ],
)
def test_a_planted_edge_is_found(code):
    found = list(wrong_edges(ast.parse(code), "baselines", "elliptica.baselines"))
    assert len(found) == 1, found


def name_of(path):
    return path.relative_to(SOURCE).as_posix()


def late_imports(tree, package):
    """What is imported of ours inside a function: ``(line, name)``."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {node for function in functions for node in ast.walk(function)}
    return [(node.lineno, name) for node, name in ours(tree, package) if node in inside]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_our_modules_are_imported_at_the_top(path):
    """A late import hides a dependency; only the command line and public names may wait for their use."""
    if unit(path) in ("cli", "__init__") or path.name == "__init__.py":
        return
    assert not late_imports(tree_of(path), package_of(path))


def private_names(tree, own, package):
    """Names with an underscore that a module takes from another package."""
    for node, name in ours(tree, package):
        _, other, *rest = [*name.split("."), ""]
        if other != own and any(part.startswith("_") and not part.startswith("__") for part in rest):
            yield f"line {node.lineno}: {name}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_private_names_stay_in_their_package(path):
    assert not list(private_names(tree_of(path), unit(path), package_of(path)))


@pytest.mark.parametrize(
    "code",
    [
        "from elliptica.core.noise import _scale",
        "import elliptica.core._noise",
        "from ..core._noise import scale",
        "import importlib\nimportlib.import_module('elliptica.core._noise')",
    ],
)
def test_planted_late_and_private_imports_are_found(code):
    assert len(list(private_names(ast.parse(code), "baselines", "elliptica.baselines"))) == 1
    assert list(private_names(ast.parse(code), "core", "elliptica.baselines")) == []
    inside = ast.parse("def f():\n    " + code.replace("\n", "\n    "))
    assert late_imports(ast.parse(code), "elliptica.baselines") == []
    assert len(late_imports(inside, "elliptica.baselines")) == 1


def test_tests_mirror_the_packages():
    def folders(root):
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}

    tests = Path(__file__).resolve().parent
    written = {
        name
        for name in folders(tests)
        if not name.startswith(("fixtures", "fuzz")) and "__pycache__" not in name
    }
    packages = {str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("__init__.py")}
    assert written <= packages, f"no such packages: {written - packages}"
    top = {name for name in packages if "/" not in name and name != "."}
    assert top <= written, f"packages without tests: {top - written}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import elliptica", "elliptica.baselines"),
        (
            "import elliptica; names = [getattr(elliptica, n) for n in elliptica.__all__]",
            "typer rich matplotlib plotly sklearn scipy pydantic polars lightning transformers accelerate "
            "faiss ray torch._dynamo",  # the compiler takes as long as all of torch
        ),
        ("import elliptica.tables.comparison, elliptica.tables.page, elliptica.tables.model",
         "elliptica.landscape elliptica.lab"),
    ],
)  # fmt: skip
def test_imports_that_wait_for_their_use(code, absent):
    code = f"import sys; {code}; print(sorted(set({absent.split()}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_public_names_are_complete_and_documented():
    for name in elliptica.__all__:
        assert getattr(elliptica, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'elipse'"):
        _ = elliptica.elipse
    assert set(elliptica.__all__) <= set(dir(elliptica))
    assert elliptica.baselines.ERM.__doc__  # packages are attributes
