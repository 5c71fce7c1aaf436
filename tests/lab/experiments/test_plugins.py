"""Tables of one's own, with methods, data and networks from one's own module."""

import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed
from torch import nn
from typer.testing import CliRunner

import elliptica
from elliptica import EllipticWarning
from elliptica.baselines.names import BASELINES
from elliptica.cli import app
from elliptica.lab.experiments import methods as methods_module
from elliptica.lab.experiments import (
    plugins,
    register_dataset,
    register_method,
    register_model,
    registry,
)
from elliptica.lab.experiments.choice import Choice
from elliptica.lab.experiments.methods.objectives import OBJECTIVES
from elliptica.lab.experiments.methods.stages import STAGES
from elliptica.lab.experiments.page import runs_page
from elliptica.lab.experiments.plugins import PluginError, ensure_plugins, load_plugins, version_remarks
from elliptica.lab.experiments.registry import RegistryError, load_dataset
from elliptica.lab.experiments.run import Options, do_run
from elliptica.lab.experiments.search import Search, note_plugins, open_study, work
from elliptica.lab.experiments.specification import Range, SpecificationError, load_specification
from elliptica.lab.experiments.table import make_table, render
from elliptica.lab.experiments.tune import refuse_resplit
from experiment_cases import load_groups, load_line, make_ready, network, run_of
from processes import torchrun

runner = CliRunner()
SOURCE = str(Path(elliptica.__file__).parents[1])

#: One file with one baseline, data from arrays and a network. DIE ends the process in the middle of a run.
PLUGIN = """
import os
import numpy as np
import torch
from torch import nn
from elliptica.lab.data import Dataset, Split
from elliptica.lab.experiments import register_dataset, register_method, register_model

rows = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
steps = 0


@register_method("jitter")
class Jitter(nn.Module):
    def __init__(self, model, loss_fn, *, scale=0.1):
        super().__init__()
        self.model, self.loss_fn, self.scale = model, loss_fn, scale

    def forward(self, x, y, *, generator=None):
        global steps
        steps += 1
        if steps == int(os.environ.get("DIE", 0)):
            os._exit(9)
        return self.loss_fn(self.model(x), y + self.scale * torch.randn(y.shape, generator=generator))


@register_dataset("arrays")
def load_arrays(power=1):
    x = torch.from_numpy(rows)
    y = x.sum(1, keepdim=True) ** power
    return Dataset("arrays", *[Split(x[i::3], y[i::3]) for i in range(3)], task="regression")


@register_model("narrow")
def narrow(data, n_outputs, *, width):
    return nn.Sequential(nn.Linear(data.n_features, width), nn.Tanh(), nn.Linear(width, n_outputs))
"""
MINE = """
title = "My table"
metric = "rmse"
seeds = 2
trials = 2
search = { lr = { low = 1e-3, high = 1e-1, log = true } }
[methods.erm]
[methods.noisy]
method = "jitter"
scale = 0.5
[datasets.arrays]
load = { power = 2 }
model = { name = "narrow", width = 4 }
training = { epochs = 3, batch_size = 10, lr = 1e-2 }
"""
ONLY_MODEL = 'register_model("mlp")(nn.Linear)'
REGISTRIES = (
    methods_module.METHODS,
    methods_module.ROWS_PER_SAMPLE,
    registry.DATASETS,
    registry.MODELS,
    registry.RESPLIT,
    plugins._ORIGINS,
    plugins._DIGESTS,
    plugins._LOADED,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a table and a module, in which commands start; registrations are undone at the end."""
    (tmp_path / "mine.toml").write_text(MINE)
    (tmp_path / "my_code.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before, modules = [dict(each) for each in REGISTRIES], set(sys.modules)
    yield tmp_path
    for each, content in zip(REGISTRIES, before, strict=True):
        each.clear()
        each.update(content)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def command(*words, **env):
    """The real command in the current folder, which Python itself does not import from."""
    code = "import sys; sys.path.remove(''); from elliptica.cli import app; app()"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **env},
        capture_output=True,
        text=True,
        timeout=600,
    )


def records(out):
    """What a folder holds, by file, without what clocks and processes say."""
    found = {}
    for file in sorted(Path(out).rglob("*-seed*.json")):
        record = json.loads(file.read_text())
        record["cost"] = {k: v for k, v in record["cost"].items() if k in ("evaluations", "epochs")}
        found[str(file.relative_to(out))] = record
    return found


def test_a_table_of_ones_own(folder):
    done = runner.invoke(app, ["run", "mine.toml", "--plugin", "my_code"])
    assert done.exit_code == 0, done.output
    assert "### My table\n" in done.output
    assert re.search(r"\| noisy \| [\d.]+ ± [\d.]+ \| 2 \|", done.output)
    assert "This table again: elliptica table mine.toml --plugin my_code --out runs" in done.output
    found = records("runs")
    assert len(found) == 4
    assert {name.split("/")[0] for name in found} == {"mine"}
    digest = plugins._DIGESTS["my_code"]
    assert all(record["versions"]["plugin my_code"] == digest for record in found.values())
    again = runner.invoke(app, ["table", "mine.toml"])
    assert [line for line in again.output.splitlines() if line.startswith("|")] == [
        line for line in done.output.splitlines() if line.startswith("|")
    ]
    assert "data: arrays\n" in runner.invoke(app, ["list", "mine.toml", "--plugin", "my_code"]).output


def test_what_a_run_does_not_take_from_a_plugin_is_not_noted(folder):
    load_plugins(["my_code"])
    assert plugins.plugin_versions(run_of("erm")) == {}
    assert list(plugins.plugin_versions(run_of("jitter"))) == ["plugin my_code"]


def test_a_registered_method_is_trained_as_one_of_the_library(folder):
    """Without noise it is ordinary training, to the last bit: a row of the same name has the same streams."""
    others = MINE.replace('[methods.noisy]\nmethod = "jitter"\nscale = 0.5\n', "")
    own = '[methods.erm]\nmethod = "jitter"\nscale = '
    for out, row in (("a", "[methods.erm]"), ("b", f"{own}0"), ("c", f"{own}1")):
        (folder / "mine.toml").write_text(others.replace("[methods.erm]", row))
        assert runner.invoke(app, ["run", "mine.toml", "--plugin", "my_code", "--out", out]).exit_code == 0
    a, b, c = ([record["metrics"] for record in records(out).values()] for out in "abc")
    assert a == b
    assert a != c


@pytest.mark.slow
def test_the_real_command_alone_in_processes_and_on_ray(folder):
    alone = command("run", "mine.toml", "--plugin", "my_code", "--out", "alone")
    assert alone.returncode == 0, alone.stdout + alone.stderr
    expected = records("alone")
    assert len(expected) == 4
    ways = {"processes": ["--jobs", "2", "--plugin", "./my_code.py"]}
    try:
        import ray  # noqa: F401 - is it there?

        ways["ray"] = ["--engine", "ray", "--jobs", "1", "--plugin", "my_code"]
    except ImportError:
        pass
    for out, words in ways.items():
        done = command("run", "mine.toml", *words, "--out", out)
        assert done.returncode == 0, done.stdout + done.stderr
        assert records(out) == expected


@pytest.mark.distributed
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_under_torchrun(folder):
    words = ["-m", "elliptica", "run", "mine.toml", "--plugin", "my_code", "--seeds", "1"]
    done = subprocess.run(**torchrun(*words, "--methods", "noisy"), timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = (json.loads(file.read_text()) for file in Path("runs").rglob("*-seed0.json"))
    assert record["cost"]["world_size"] == 2
    assert "plugin my_code" in record["versions"]


@pytest.mark.slow
def test_a_killed_run_resumes_unless_the_source_has_changed(folder):
    words = ["run", "mine.toml", "--plugin", "my_code", "--methods", "noisy", "--seeds", "1"]
    assert command(*words, "--out", "whole").returncode == 0
    assert command(*words, "--out", "killed", DIE="5").returncode == 9  # in the third of three epochs
    assert [file.suffix for file in Path("killed").rglob("*-seed0.*")] == [".safetensors"]
    # two steps are left of six: it would die again if it began anew
    resumed = command(*words, "--out", "killed", DIE="3")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert records("killed") == records("whole")
    assert command(*words, "--out", "changed", DIE="5").returncode == 9
    (folder / "my_code.py").write_text(PLUGIN + "\n# a remark\n")
    anew = command(*words, "--out", "changed")
    assert anew.returncode == 0
    assert "written with another source of plugin my_code" in anew.stderr
    (old,), (new,) = records("whole").values(), records("changed").values()
    assert old["metrics"] == new["metrics"]
    assert old["versions"]["plugin my_code"] != new["versions"]["plugin my_code"]
    told = command(
        "table", "mine.toml", "--plugin", "my_code", "--methods", "noisy", "--seeds", "1", "--out", "whole"
    )
    assert "1 record here was made with another source of my_code" in told.stdout


def test_records_of_several_sources_are_pointed_out(folder):
    def record(digest):
        return {"versions": {"torch": "2", "plugin other": digest}}

    assert version_remarks([record("a"), record("a")]) == []  # not loaded: the present source is not known
    (told,) = version_remarks([record("a"), record("b")])
    assert told == "The records were made with different sources of other: a, b."
    plugins._DIGESTS["other"] = "b"
    (told,) = version_remarks([record("a"), record("b"), record("c")])
    assert told.startswith("2 records here were made with another source of other (a, c; now it is b).")
    assert version_remarks([record("b")]) == []


def test_a_process_with_another_source_does_nothing(folder):
    (plugin,) = load_plugins(["my_code"])
    ensure_plugins([plugin])
    other = plugins.Plugin(plugin.name, plugin.folder, "other")
    with pytest.raises(PluginError, match="is not that with which the command was started"):
        do_run(run_of("jitter"), Options(folder, plugins=(other,)))


def test_tuning_and_the_page_of_records(folder):
    words = ["mine.toml", "--plugin", "my_code"]
    done = runner.invoke(app, ["tune", *words])
    assert done.exit_code == 0, done.output
    assert "arrays noisy: " in done.output
    assert runner.invoke(app, ["run", *words, "--tuned", "--keep-models"]).exit_code == 0
    page = runs_page(Path("runs"), tables=["mine.toml"])
    assert page.title.startswith("My table: arrays")
    assert any("--tuned" in text for text in page.sections[0].paragraphs)
    assert runs_page(Path("runs")).title.startswith("mine: arrays")


@pytest.mark.bad_input
def test_untuned_rows_name_the_whole_command(folder):
    load_plugins(["my_code"])
    with pytest.raises(
        SpecificationError, match=r"elliptica tune mine\.toml --plugin my_code --dataset arrays"
    ):
        Choice("mine.toml", tuned=True, plugins=("my_code",)).runs(folder / "runs")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mien.toml", None, r"mien\.toml"),
        ("table3.toml", MINE, r"share its records with the table 'table3' of the library\. Rename the file"),
        ("trials.toml", MINE, r"'trials' cannot be the name of a table"),
        ("mine.toml", "title = ", r"mine\.toml is not valid TOML"),
        ("mine.toml", "sedes = 3\n" + MINE, r"sedes: Extra inputs are not permitted"),
        ("mine.toml", MINE.replace("[methods.erm]\n[methods.noisy]", "[other]"), "methods: Field required"),
        (
            "mine.toml",
            MINE.replace("datasets.arrays", 'datasets."a/b"'),
            "'a/b' cannot be the name of a folder",
        ),
        ("mine.toml", MINE.replace('"jitter"', "3"), r"methods\.noisy.*\n.*method"),
        ("mine.toml", MINE.replace("scale = 0.5", 'from = "other.toml"'), "Only tables of the library"),
        (".", None, "There is no table"),
        ("./", None, "cannot be read|no file"),
    ],
)
def test_wrong_tables(folder, name, text, message):
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(SpecificationError, match=message):
        Choice(name).runs(folder)


@pytest.mark.bad_input
def test_a_table_without_its_ending_is_recognised(folder):
    with pytest.raises(SpecificationError, match=r"no table 'mine'"):
        load_specification("mine")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"jitter"', '"jiter"', "methods.noisy.method: There is no method 'jiter'"),
        ("[methods.erm]", "[methods.emr]", "methods.emr: There is no method 'emr'"),
        ("datasets.arrays", "datasets.array", "datasets.array: There is no data set 'array'"),
        ("power = 2", 'name = "aray"', "datasets.arrays.load.name: There is no data set 'aray'"),
        ('"narrow"', '"narow"', "datasets.arrays.model.name: There is no network 'narow'"),
        ('name = "narrow", ', "", "datasets.arrays.model.name: There is no network ''. There are mlp,"),
        (
            "lr = 1e-2",
            "lrr = 1",
            "datasets.arrays.training.lrr: There is no such setting",
        ),
        ("lr = 1e-2", "gamma = 1", "datasets.arrays.training.lr: It is missing."),
        ("lr = 1e-2", "lr = 0", "datasets.arrays.training with methods.erm: lr must be"),
    ],
)
def test_wrong_names_are_named_with_their_keys_before_any_run(folder, old, new, message):
    (folder / "mine.toml").write_text(MINE.replace(old, new))
    for verb in ("run", "tune"):
        done = runner.invoke(app, [verb, "mine.toml", "--plugin", "my_code"])
        assert done.exit_code == 2
        assert f"mine: {message}" in done.output
        assert not (folder / "runs").exists()


@pytest.mark.bad_input
def test_a_forgotten_plugin_is_asked_for(folder):
    done = runner.invoke(app, ["run", "mine.toml"])
    assert done.exit_code == 2
    assert done.output.count("If it is your own, name its module with --plugin.") == 3


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        (
            "1 / 0",
            "my_broken",
            r"my_broken cannot be imported: ZeroDivisionError: .*\(my_broken.py, line 1\)",
        ),
        ("import not_there", "my_broken", "my_broken cannot be imported: ModuleNotFoundError: No module"),
        ("a = = 1", "my_broken", "my_broken cannot be imported: SyntaxError"),
        ("raise SystemExit(0)", "my_broken", "my_broken cannot be imported: SystemExit"),
        ("", "my_broken", "my_broken .* registers nothing"),
        ("", "my_borken", "my_borken: there is no module of this name"),
        ("", "my_borken.py", "my_borken.py: there is no such file"),
        (PLUGIN.replace('"jitter"', '"erm"'), "my_broken", r"registers the method 'erm', .* \(elliptica\)"),
        (PLUGIN[: PLUGIN.index("@")] + ONLY_MODEL, "my_broken", r"the network 'mlp', .* \(elliptica\)"),
        (PLUGIN, "my_broken", r"my_broken registers the method 'jitter', which is there already \(my_code\)"),
    ],
)
def test_plugins_that_cannot_be_used(folder, source, name, message):
    (folder / "my_broken.py").write_text(source)
    done = runner.invoke(app, ["run", "mine.toml", "--plugin", "my_code", "--plugin", name])
    assert done.exit_code == 2
    assert re.search(f"Plugin {message}" if "imported" in message else message, done.output), done.output


@pytest.mark.bad_input
def test_a_file_that_another_module_hides(folder):
    (folder / "json.py").write_text(PLUGIN)
    with pytest.raises(PluginError, match="another module of this name"):
        load_plugins(["json.py"])
    with pytest.raises(PluginError, match="registers nothing"):
        load_plugins(["json"])


def test_a_package_and_a_file_elsewhere(folder):
    code = folder / "code"
    (code / "mypack").mkdir(parents=True)
    (code / "mypack" / "__init__.py").touch()
    (code / "mypack" / "helper.py").write_text("SCALE = 1\n")
    (code / "mypack" / "parts.py").write_text("from mypack.helper import SCALE\n" + PLUGIN)
    (code / "single.py").write_text(
        PLUGIN.replace("jitter", "a").replace("arrays", "b").replace("narrow", "c")
    )
    (plugin,) = load_plugins(["code/single.py"])
    assert plugin.name == "single"
    assert load_plugins(["code/single.py", "code/single.py"]) == (plugin,)
    sys.path.append(str(code))
    load_plugins(["mypack.parts"])
    (name,) = plugins.plugin_versions(run_of("jitter"))
    assert name == "plugin mypack.parts"
    before = plugins._DIGESTS.pop("mypack")
    (code / "mypack" / "helper.py").write_text("SCALE = 2\n")
    assert plugins._remember("mypack.parts") != before  # all files of the package count


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
    with pytest.raises(ValueError, match="needs a group"):
        make_ready("looks", {"layers": []}, load_line(), model)


def test_a_function_prepares_what_a_module_cannot(folder):
    @register_method("first rows", rows_per_sample=2)
    def first_rows(settings, context):
        ready = methods_module.METHODS["erm"]({}, context)
        return type(ready)(ready.objective, rows=torch.arange(settings["n"]), details={"n": settings["n"]})

    registry.DATASETS["groups"] = load_groups
    record = do_run(run_of("first rows", settings={"n": 16}), Options(folder))
    assert record["method"] == {"n": 16}
    assert record["cost"]["evaluations"] == 4 * 16
    assert record["cost"]["rows_per_sample"] == 2


@pytest.mark.bad_input
def test_loaders_that_are_wrong(folder):
    @register_dataset("nothing")
    def nothing(seed):
        return seed

    @register_dataset("broken")
    def broken():
        return {}["key"]

    @register_dataset("absent")
    def absent(data_dir):
        raise FileNotFoundError("my.csv is not there")

    with pytest.raises(RegistryError, match=r"'nothing': the function must return .* but returned int"):
        load_dataset({"name": "nothing"}, 0)
    with pytest.raises(RegistryError, match="'broken': KeyError: 'key'"):
        load_dataset({"name": "broken"}, 0)
    with pytest.raises(RegistryError, match="unexpected keyword argument 'scale'"):
        load_dataset({"name": "broken", "scale": 1}, 0)
    (folder / "mine.toml").write_text(
        MINE.replace("power = 2", 'name = "absent"').replace('"narrow"', '"mlp"')
    )
    done = runner.invoke(app, ["run", "mine.toml", "--methods", "erm"])
    assert "my.csv is not there\n" in done.output  # and no advice about the library's data


def test_data_that_are_split_anew_are_not_tuned(folder):
    @register_dataset("moving")
    def moving(seed):
        return load_line(seed)

    @register_dataset("declared", resplit=0.25)
    def declared():
        return load_line()

    @register_dataset("fixed")
    def fixed():
        return load_line()

    for name in ("moving", "declared"):
        with pytest.raises(RuntimeError, match="drawn anew for each seed"):
            refuse_resplit(run_of("erm", load={"name": name}))
    refuse_resplit(run_of("erm", load={"name": "fixed"}))


def test_networks_and_data_get_their_options(folder):
    load_plugins(["my_code"])
    assert torch.equal(
        load_dataset({"name": "arrays", "power": 2}, 0).train.y,
        load_dataset({"name": "arrays"}, 1).train.y ** 2,
    )
    with pytest.raises(RegistryError, match="Network 'narrow' with"):
        registry.make_model({"name": "narrow", "depth": 2}, load_line(), "toy", 0)
    with pytest.raises(PluginError, match="the network 'narrow', which is there already"):
        register_model("narrow")(lambda data, n_outputs: nn.Linear(3, n_outputs))


def test_the_papers_place_is_optional(folder):
    load_plugins(["my_code"])
    choice = Choice("mine.toml")
    table = make_table("mine", choice.specification, choice.runs(folder), [])
    assert render(table, "markdown").startswith("### My table\n")
    assert render(table, "latex").startswith("% My table, test\n")


@pytest.mark.slow
def test_the_page_of_the_docs(folder):
    """Its files and its commands, one after the other; what it shows is printed."""
    page = (Path(__file__).parents[3] / "docs" / "own-experiments.md").read_text()
    files = dict(re.findall(r'^```\w+ title="(.+?)"\n(.*?)^```$', page, flags=re.DOTALL | re.MULTILINE))
    assert set(files) == {"my_code.py", "mine.toml"}
    for name, text in files.items():
        (folder / name).write_text(text)
    (session,) = re.findall(r"^```console\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    typed = [part.splitlines() for part in session.split("$ elliptica ")[1:]]
    assert len(typed) == 3
    for line, *shown in typed:
        done = command(*shlex.split(line))
        assert done.returncode == 0, done.stdout + done.stderr
        assert set(shown) <= set(done.stdout.splitlines())
    assert len(records("runs")) == 9
    assert (folder / "mine.html").is_file()


def test_names_of_methods_are_given_once():
    for one, other in ((BASELINES, OBJECTIVES), (BASELINES, STAGES), (OBJECTIVES, STAGES)):
        assert not set(one) & set(other)


def test_a_changed_source_of_trials_is_pointed_out(folder):
    words = ["tune", "mine.toml", "--plugin", "my_code", "--methods", "noisy"]
    assert runner.invoke(app, words).exit_code == 0
    plugins._DIGESTS["my_code"] = "later"
    again = runner.invoke(app, words)
    assert "Trials: 2 records here were made with another source of my_code" in again.output


def test_a_search_notes_its_plugins(folder):
    load_plugins(["my_code"])
    run = next(run for run in Choice("mine.toml").runs(folder) if run.row == "noisy")
    space = {("training", "lr"): Range(low=0.01, high=0.1)}
    search = Search(run, space, "auto", str(folder / "journal"), 2, pruner="none")
    study = open_study(search)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        note_plugins(study, search)
        work(search, Options(folder))
        note_plugins(open_study(search), search)
    plugins._DIGESTS["my_code"] = "later"
    with pytest.warns(EllipticWarning, match="made with another source of plugin my_code, and count"):
        note_plugins(open_study(search), search)


def test_a_node_of_a_cluster_says_what_it_lacks(folder):
    pytest.importorskip("ray", reason="Ray is not installed (extra scale)")
    from elliptica.lab.experiments.ray_engine import _plugin_problem

    found = load_plugins(["my_code"])
    assert _plugin_problem(found) is None
    absent = plugins.Plugin("my_other", str(folder / "nowhere"), "")
    assert "Plugin my_other: there is no module" in _plugin_problem([absent])
