"""The command line: quick to answer, and clear about what is missing."""

import subprocess
import sys
import textwrap

import pytest
from typer.testing import CliRunner

import elliptica
from elliptica.cli import app

runner = CliRunner()


def run_python(code):
    """Run code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )


def run_without(*packages, arguments):
    """Run the program where some packages cannot be imported."""
    return run_python(
        f"""
        import sys

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {packages!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Blocker())
        sys.argv = ["elliptica", *{arguments!r}]
        from elliptica.__main__ import main
        main()
        """
    )


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["--version"]])
def test_help_does_not_import_torch(arguments):
    """Nor the other heavy ones; and it takes far less than half a second (measured, not asserted)."""
    done = run_python(
        f"""
        import sys
        sys.argv = ["elliptica", *{arguments!r}]
        from elliptica.__main__ import main
        try:
            main()
        except SystemExit as stop:
            heavy = {{"torch", "numpy", "matplotlib", "plotly"}} & set(sys.modules)
            sys.exit(f"imported {{heavy}}" if heavy else stop.code)
        """
    )
    assert done.returncode == 0, done.stderr
    assert "elliptica" in done.stdout


def test_version():
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"elliptica {elliptica.__version__}"


def test_module_runs():
    command = [sys.executable, "-m", "elliptica", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"elliptica {elliptica.__version__}"


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_missing_command_line_packages(package):
    done = run_without(package, arguments=["--help"])
    assert done.returncode == 1
    assert 'pip install "elliptica[experiments]"' in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("package", ["matplotlib", "plotly"])
def test_missing_plotting_packages(package):
    done = run_without(package, arguments=["demo", "--quick"])
    assert done.returncode == 1
    assert f"needs {package}" in done.stderr
    assert 'pip install "elliptica[report]"' in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_help_works_without_plotting_packages():
    assert run_without("matplotlib", "plotly", "torch", arguments=["demo", "--help"]).returncode == 0


def test_other_missing_packages_are_not_blamed_on_an_extra():
    done = run_without("torch", arguments=["demo", "--quick"])
    assert done.returncode == 1
    assert "No module named 'torch'" in done.stderr
    assert "elliptica[" not in done.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--seeds", "0"),
        ("--steps", "-1"),
        ("--sigma", "-0.1"),
        ("--reading", "three"),
        ("--activation", "sin"),
    ],
)
def test_bad_options_are_refused(option, value):
    result = runner.invoke(app, ["demo", option, value])
    assert result.exit_code == 2
    assert option in result.output


def test_out_must_not_be_a_file(tmp_path):
    file = tmp_path / "taken"
    file.write_text("mine")
    assert runner.invoke(app, ["demo", "--quick", "--out", str(file)]).exit_code == 2
    assert file.read_text() == "mine"


def test_names_may_be_given_with_commas(tmp_path):
    places = ["--out", str(tmp_path), "--data-dir", str(tmp_path)]
    found = runner.invoke(
        app, ["run", "table3", "--dataset", "no2", "--methods", "erm,mixup", "--seeds", "1", *places]
    )
    assert found.exit_code == 2
    assert "NO2.csv" in found.output.replace("\n", "")
    found = runner.invoke(app, ["table", "table3", "--methods", "erm,mixap", "--out", str(tmp_path)])
    assert found.exit_code == 2
    assert "mixup" in found.output
    found = runner.invoke(
        app,
        [
            "table",
            "table3",
            "--dataset",
            "no2,airfoil",
            "--match",
            "evaluations",
            "--precision",
            "bfloat16",
            "--epochs",
            "3",
            "--out",
            str(tmp_path),
        ],
    )
    assert found.exit_code == 0
    assert "100 of 100 runs are not recorded" in found.output


def test_the_list_says_which_data_are_here(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    found = runner.invoke(app, ["list", "--data-dir", str(tmp_path)])
    assert found.exit_code == 0
    assert "no2 (absent)" in found.output
    assert "table10" in found.output
