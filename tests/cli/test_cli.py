"""The command line: quick to answer, and clear about what is missing."""

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import elliptica
from elliptica.__main__ import main
from elliptica._utils.extras import remedy
from elliptica.cli import app

runner = CliRunner()


def run_python(code):
    """Run code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )


def run_without(*packages, code):
    """Run code where some packages cannot be imported."""
    blocker = f"""
        import sys

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {packages!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Blocker())
    """
    return run_python(textwrap.dedent(blocker) + textwrap.dedent(code))


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


def test_module_runs():
    command = [sys.executable, "-m", "elliptica", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"elliptica {elliptica.__version__}"


#: What no bare install has.
OPTIONAL = ("PIL", "accelerate", "faiss", "imblearn", "lightning", "matplotlib", "plotly", "polars")
OPTIONAL += ("ray", "safetensors", "scipy", "sklearn", "transformers")
#: The extra that a command names after a bare install; None where it needs none.
BARE = {
    "compare data.csv --target y": "tables",
    "data list": None,
    "demo": "lab",
    "diagnose data.csv --model model.elliptica": "tables",
    "list": "lab",
    "predict model.elliptica data.csv": "tables",
    "report runs": "lab",
    "run table3": "lab",
    "table table3": "lab",
    "tune table4": "lab",
}


@pytest.mark.slow
def test_commands_after_a_bare_install(tmp_path):
    """Each works, or says in one line which extra it needs; the program, its help and its names work."""
    code = f"""
        import json, os
        os.chdir({str(tmp_path)!r})
        open("model.elliptica", "w").close(); os.mkdir("runs")
        open("data.csv", "w").write("x,y\\n1,2\\n")

        import elliptica
        from elliptica.cli import app
        from typer.testing import CliRunner
        for name in elliptica.__all__:
            getattr(elliptica, name)
        found = {{}}
        for line in {[*BARE, "--help", "--version", "compare --help"]!r}:
            done = CliRunner().invoke(app, line.split())
            found[line] = (done.exit_code, done.output)
        print(json.dumps(found))
    """
    done = run_without(*OPTIONAL, code=code)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for line, extra in {**BARE, "--help": None, "--version": None, "compare --help": None}.items():
        status, output = found[line]
        assert status == (extra is not None), (line, output)
        if extra is not None:
            assert remedy(extra) in output, (line, output)
            assert len(output.strip().splitlines()) == 1
    commands = typer.main.get_command(app).commands
    assert {line.split()[0] for line in BARE} == set(commands), "a new command: what does it need?"


def test_other_missing_packages_are_not_blamed_on_an_extra():
    code = "sys.argv = ['elliptica', 'demo']\nfrom elliptica.__main__ import main\nmain()"
    done = run_without("torch", code=code)
    assert done.returncode == 1
    assert "No module named 'torch'" in done.stderr
    assert "pip install" not in done.stderr


def test_names_may_be_given_with_commas(tmp_path):
    words = "table table3 --dataset no2,airfoil --methods erm,mixup --match evaluations --epochs 3"
    found = runner.invoke(app, [*words.split(), "--out", str(tmp_path)])
    assert found.exit_code == 0
    assert "40 of 40 runs are not recorded" in found.output
    assert runner.invoke(app, ["table", "table3", "--methods", "erm,mixap"]).exit_code == 2


def test_the_list_says_which_data_are_here(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    found = runner.invoke(app, ["list", "--data-dir", str(tmp_path)])
    assert found.exit_code == 0
    assert "no2 (missing)" in found.output
    assert "table10" in found.output


def test_an_error_that_nobody_foresaw_is_one_sentence(monkeypatch):
    """A traceback says nothing to a user; who wants it gets it."""

    def broken(*_):
        raise ZeroDivisionError("by nothing\nand more")

    monkeypatch.setattr("elliptica.cli.list.Console", broken)
    done = runner.invoke(app, ["list"])
    assert done.exit_code == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "ZeroDivisionError: by nothing and more" in done.stderr
    assert "ELLIPTICA_TRACEBACK=1" in done.stderr
    monkeypatch.setenv("ELLIPTICA_TRACEBACK", "1")
    assert isinstance(runner.invoke(app, ["list"]).exception, ZeroDivisionError)


@pytest.mark.bad_input
@pytest.mark.parametrize("width", ["0", "00"])
def test_a_width_of_zero_hides_nothing(monkeypatch, width):
    """Some terminals of containers say that they have no columns, and rich believes them."""
    monkeypatch.setenv("COLUMNS", width)
    assert "table3" in runner.invoke(app, ["list"]).output


@pytest.mark.bad_input
@pytest.mark.parametrize("encoding", ["ascii", "iso8859-1", "cp1252"])
def test_output_of_any_encoding(monkeypatch, encoding):
    """What cannot be shown is escaped: a table has plus-minus signs, titles may have anything."""
    written = io.BytesIO()
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, io.TextIOWrapper(written, encoding=encoding, write_through=True))
    with pytest.raises(SystemExit):
        app(["list", "± 尺"])
    assert r"\u5c3a" in written.getvalue().decode(encoding)


@pytest.mark.bad_input
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_the_version_on_a_full_disk():
    """Options that are read before everything else meet the same end."""
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "elliptica", "--version"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode != 0
    assert "error: The output cannot be written (No space left on device)." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.bad_input
def test_a_command_without_an_output_ends_well(tmp_path):
    """As a shell starts it with ``>&-``; a service may, too."""
    command = [sys.executable, "-m", "elliptica", "list"]
    done = subprocess.run(["sh", "-c", shlex.join(command) + " >&-"], cwd=tmp_path, check=False)
    assert done.returncode == 0


def test_sigterm_ends_a_command_as_ctrl_c_does(monkeypatch):
    """With its own status; a second one is not caught, so that a command that hangs can be ended."""
    ended = []

    def command(**_):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        except KeyboardInterrupt:
            ended.append(signal.getsignal(signal.SIGTERM))
            raise SystemExit(130) from None

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("elliptica.__main__.app", command)
    try:
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 143
        assert ended == [signal.SIG_DFL]
        monkeypatch.setattr("elliptica.__main__.app", lambda **_: sys.exit(2))
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 2
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_an_interruption_does_not_wait_for_threads_that_compute():
    """They are inside torch, and would abort the process when Python exits."""
    done = run_python(
        """
        import sys, threading
        from concurrent.futures import ThreadPoolExecutor
        import elliptica.__main__ as program

        begun = threading.Event()
        def compute():
            import torch
            begun.set()
            while True:
                torch.randn(300, 300) @ torch.randn(300, 300)

        def command(**_):
            program.pool = ThreadPoolExecutor(1)
            program.pool.submit(compute)
            begun.wait()
            print("Interrupted.")
            sys.exit(130)

        program.app = command
        program.main()
        """
    )
    assert done.returncode == 130, done.stderr
    assert done.stdout == "Interrupted.\n"
    assert done.stderr == ""
