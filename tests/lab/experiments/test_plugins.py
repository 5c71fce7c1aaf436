"""Methods, data and networks of one's own, in one file."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.lab.experiments import methods as methods_module
from elliptica.lab.experiments import register_dataset, register_method, register_model, registry
from elliptica.lab.experiments.records import records_of
from elliptica.lab.experiments.registry import load_plugins
from elliptica.lab.experiments.run import Options, do_run
from experiment_cases import load_groups, load_line, make_ready, network, run_of

PLUGIN = """
from __future__ import annotations
import dataclasses
import torch
from torch import nn
from my_helper import SCALE
from elliptica.lab.data import Dataset, Split
from elliptica.lab.experiments import register_dataset, register_method, register_model

@dataclasses.dataclass
class Shape:
    rows: int = 48

@register_method("jitter")
class Jitter(nn.Module):
    def __init__(self, model, loss_fn, *, scale=SCALE):
        super().__init__()
        self.model, self.loss_fn, self.scale = model, loss_fn, scale

    def forward(self, x, y, *, generator=None):
        return self.loss_fn(self.model(x + self.scale * torch.randn(x.shape, generator=generator)), y)

@register_dataset("arrays")
def load(seed, power=1):
    x = torch.randn(Shape().rows, 3, generator=torch.Generator().manual_seed(seed))
    part = Split(x, x.sum(1, keepdim=True) ** power)
    return Dataset("arrays", part, part, part, task="regression")

@register_model("narrow")
def make(data, n_outputs, width=2):
    return nn.Sequential(nn.Linear(data.n_features, width), nn.Tanh(), nn.Linear(width, n_outputs))
"""
TABLE = """
title = "My table"
metric = "rmse"
seeds = 2
[methods.erm]
[methods.jitter]
scale = 0.2
[datasets.arrays]
load = { power = 1 }
model = { name = "narrow", width = 3 }
training = { epochs = 2, batch_size = 16, lr = 1e-2 }
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a plugin and a table; what is registered is forgotten afterwards."""
    kept = [(known, dict(known)) for known in (methods_module.METHODS, registry.DATASETS, registry.MODELS)]
    (tmp_path / "my_code.py").write_text(PLUGIN)
    (tmp_path / "my_helper.py").write_text("SCALE = 0.1\n")
    (tmp_path / "mine.toml").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for known, old in kept:
        known.clear()
        known.update(old)
    for name in ("my_code", "my_helper"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_table_of_ones_own(folder, jobs):
    done = CliRunner().invoke(app, ["run", "mine.toml", "--plugin", "my_code.py", "--jobs", str(jobs)])
    assert done.exit_code == 0, done.output
    assert "jitter" in done.output
    assert len(records_of(folder / "runs", "mine").read()) == 4
    assert load_plugins(["my_code.py"]) == (str(folder / "my_code.py"),)  # once in a process
    assert torch.equal(
        registry.load_dataset({"name": "arrays", "power": 2}, 0).train.y,
        registry.load_dataset({"name": "arrays"}, 0).train.y ** 2,
    )
    with pytest.raises(ValueError, match="narrow"):
        register_model("narrow")
    with pytest.raises(ValueError, match="erm"):
        register_method("erm")


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["nowhere.py", "json.py", "notes.txt", "broken.py"])
def test_files_that_cannot_be_plugins(folder, name):
    Path("json.py").write_text("")
    Path("notes.txt").write_text("")
    Path("broken.py").write_text("1 / 0")
    done = CliRunner().invoke(app, ["run", "mine.toml", "--plugin", name])
    assert done.exit_code in (1, 2)
    assert not Path("runs").exists()


def test_what_a_module_is_given(folder):
    seen = {}

    @register_method("looks")
    class Looks(nn.Module):
        def __init__(self, model, loss_fn, *, num_classes, layers):
            super().__init__()
            self.model = model
            seen.update(num_classes=num_classes, layers=layers)

        def forward(self, x, y, group, *, generator):
            seen.update(group=group)
            return self.model(x).sum()

    data = load_groups()
    model = network(data)
    ready = make_ready("looks", {"layers": ["input", "1"]}, data, model)
    index = torch.tensor([0, 1, 31])
    batch = type("", (), {"x": data.train.x[index], "y": None, "index": index, "generator": None})
    ready.objective(model, batch)
    assert seen["num_classes"] == 2
    assert seen["layers"] == [None, "1"]
    assert seen["group"].tolist() == [0, 1, 1]  # the background of each row, not class times background
    with pytest.raises(ValueError, match="group"):
        make_ready("looks", {"layers": []}, load_line(), model)


def test_a_function_prepares_what_a_module_cannot(folder):
    @register_method("first rows")
    def first_rows(settings, context):
        ready = methods_module.METHODS["erm"]({}, context)
        return type(ready)(ready.objective, rows=torch.arange(settings["n"]), details={"n": settings["n"]})

    register_dataset("groups")(load_groups)
    record = do_run(run_of("first rows", settings={"n": 16}), Options(folder))
    assert record.method == {"n": 16}
    assert record.cost.evaluations == 4 * 16


@pytest.mark.slow
def test_the_page_of_the_docs(folder):
    """Its files and its commands, one after the other; what it shows is printed."""
    page = (Path(__file__).parents[3] / "docs" / "own-experiments.md").read_text()
    files = dict(re.findall(r'^```\w+ title="(\S+\.\w+)"\n(.*?)^```$', page, flags=re.DOTALL | re.MULTILINE))
    assert set(files) == {"my_code.py", "mine.toml"}
    for name, text in files.items():
        (folder / name).write_text(text)
    (session,) = re.findall(r"^```console\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    typed = [part.splitlines() for part in session.split("$ elliptica ")[1:]]
    assert len(typed) == 3
    for line, *shown in typed:
        words = [sys.executable, "-m", "elliptica", *shlex.split(line)]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert set(shown) <= set(done.stdout.splitlines())
    assert len(records_of(folder / "runs", "mine").read()) == 9
    assert (folder / "mine.html").is_file()
