"""A module imports only from layers below its own, and the core needs torch and numpy alone."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "elliptica"

#: A package imports only from layers below its own. Packages of one layer do not know each other.
LAYERS = [
    {"_utils"},
    {"core", "report"},
    {"landscape", "baselines", "partner_index", "distributed", "integrations"},
    {"diagnostics", "estimators"},
    {"compare", "lab"},
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


def imported_units(path):
    for node in ast.walk(tree_of(path)):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("elliptica"):
            names = (
                [node.module] if node.module != "elliptica" else [f"elliptica.{a.name}" for a in node.names]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("elliptica.")]
        for name in names:
            yield name.split(".")[1]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_downwards(path):
    own = unit(path)
    assert own in LEVEL, f"{own} is new: give it a place in LAYERS"
    for other in imported_units(path):
        if other != own and other in LEVEL:  # not `from elliptica import __version__`
            assert LEVEL[other] < LEVEL[own], f"{own} must not import {other}"


#: Where else than in `cli` and `__init__` a module of ours is imported late, and why.
LATE = {
    "_utils/compiler.py": "importing the compiler takes as long as importing all of torch",
    "lab/experiments/engines.py": "Ray may be absent",
    "lab/experiments/ray_engine.py": "a node asks its own copy of our code which version it is",
}


def name_of(path):
    return path.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_our_modules_are_imported_at_the_top(path):
    """A late import hides a dependency; only the command line and public names may wait for their use."""
    if unit(path) in ("cli", "__init__") or path.name == "__init__.py":
        return
    found = []
    functions = [n for n in ast.walk(tree_of(path)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in {node for function in functions for node in ast.walk(function)}:
        late = [n.name for n in node.names] if isinstance(node, ast.Import) else []
        late += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        ours = [name for name in late if name.partition(".")[0] == "elliptica"]
        found += ours
        assert not ours or name_of(path) in LATE, f"line {node.lineno} imports {ours} inside a function"
    assert bool(found) == (name_of(path) in LATE)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_private_names_stay_in_their_package(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("elliptica."):
            _, package, *rest = node.module.split(".")
            names = [*rest, *(alias.name for alias in node.names)]
            private = [name for name in names if name.startswith("_") and not name.startswith("__")]
            assert package == unit(path) or not private, f"line {node.lineno} imports {private} of {package}"


def test_tests_mirror_the_packages():
    def folders(root):
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}

    tests = Path(__file__).resolve().parent
    written = {
        name for name in folders(tests) if not name.startswith("fixtures") and "__pycache__" not in name
    }
    packages = {str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("__init__.py")}
    assert written <= packages, f"no such packages: {written - packages}"
    top = {name for name in packages if "/" not in name and name != "."}
    assert top <= written, f"packages without tests: {top - written}"


def test_importing_the_core_loads_no_extra():
    code = (
        "import sys, elliptica; names = [getattr(elliptica, n) for n in elliptica.__all__];"
        "extras = {'typer', 'rich', 'matplotlib', 'plotly', 'sklearn', 'scipy', 'pydantic'}"
        "| {'polars', 'lightning', 'transformers', 'accelerate', 'faiss', 'ray', 'optuna'};"
        "print(sorted(extras & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_importing_the_core_does_not_import_the_compiler():
    """It would take as long again as all of torch; see `elliptica._utils.compiler`."""
    code = (
        "import sys, elliptica; names = [getattr(elliptica, n) for n in elliptica.__all__];"
        "print('torch._dynamo' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_public_names_are_complete_and_documented():
    import elliptica

    for name in elliptica.__all__:
        assert getattr(elliptica, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'elipse'"):
        _ = elliptica.elipse
    assert set(elliptica.__all__) <= set(dir(elliptica))


def test_packages_are_attributes_and_lazy():
    code = (
        "import elliptica, sys; loaded = 'elliptica.baselines' in sys.modules;"
        "print(loaded, elliptica.baselines.ERM)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("False <class")
