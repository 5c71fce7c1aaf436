"""A module imports only from layers below its own, and the core needs torch and numpy alone."""

import ast
import subprocess
import sys
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


def imported_units(path):
    for node in ast.walk(ast.parse(path.read_text())):
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
