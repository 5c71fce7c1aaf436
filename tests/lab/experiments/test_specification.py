"""Specifications: presets, the runs that they ask for, and what cannot be one."""

import pytest
import torch

from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments import registry
from elliptica.lab.experiments.methods import METHODS
from elliptica.lab.experiments.specification import (
    SpecificationError,
    load_specification,
    parse_specification,
    preset_names,
    runs,
)
from elliptica.lab.models import mlp
from experiment_cases import TOY, load_toy, make_ready


def load_classes():
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(12) % 3
    return Dataset("classes", *[Split(x, y, y % 2)] * 3, task="classification")


def toy_runs(old="", new="", **options):
    """The runs of the toy table with a change of its text, by row."""
    return {run.row: run for run in runs("toy", parse_specification(TOY.replace(old, new), "toy"), **options)}


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_valid(name):
    for run in runs(name, load_specification(name), seeds=1):
        assert run.method in METHODS
        assert run.load["name"] in registry.DATASETS
        assert run.model["name"] in registry.MODELS
        data = load_toy(0) if run.metric == "rmse" else load_classes()
        if run.method not in ("jtt", "umix", "last-layer") and run.model["name"] != "backbone":
            make_ready(run.method, run.settings, data, mlp(3, 3))


def test_presets_state_the_papers_values():
    worst = load_specification("table5").datasets["crime"].paper["elliptic"]["worst"]
    assert (worst.mean, worst.std) == (0.164, 0.01)


def test_settings_of_a_data_set_override_the_tables():
    assert toy_runs()["elliptic"].settings == {"sampling": "path", "n_times": 3, "sigma": 0.1}
    head = "[datasets.toy]"
    found = toy_runs(head, f"{head}\ndefaults = {{ n_times = 9, xi = 2.0 }}")
    assert found["erm"].settings == {}  # defaults are for elliptic rows, and weaker than a row's
    assert found["elliptic"].settings == {"n_times": 3, "xi": 2.0, "sampling": "path", "sigma": 0.1}
    assert toy_runs(head, f'{head}\nselect = "worst"')["erm"].select == "worst"
    assert toy_runs(head, f"{head}\nseeds = 4")["erm"].seed == 3
    assert set(toy_runs("elliptic = { sigma = 0.1 }", "erm = { skip = true }")) == {"elliptic"}
    assert toy_runs(training={"epochs": 2})["erm"].training == {"epochs": 2, "batch_size": 8, "lr": 1e-2}


def test_a_schedule_of_its_own_is_stretched_with_the_others():
    def epochs(**options):
        found = toy_runs("n_times = 3", "n_times = 3\nepochs = 1", seeds=1, **options)
        assert "epochs" not in found["elliptic"].settings
        return {row: run.training["epochs"] for row, run in found.items()}

    assert epochs() == {"erm": 3, "elliptic": 1}
    assert epochs(training={"epochs": 30}) == {"erm": 30, "elliptic": 10}
    assert epochs(match_evaluations=True) == {"erm": 3, "elliptic": 3}  # the budget does the rest


def test_the_key_depends_on_settings_and_not_on_the_seed():
    first, second = runs("toy", parse_specification(TOY, "toy"), methods=["erm"])
    assert first.key == second.key
    assert toy_runs("lr = 1e-2", "lr = 1e-3")["erm"].key != first.key


def test_streams_are_named_by_data_method_and_settings_alone():
    named = {run.row: run.streams for run in runs("toy", parse_specification(TOY, "toy"))}
    assert named["erm"] == "toy/erm/{}"
    assert named["elliptic"] == 'toy/elliptic/{"n_times": 3, "sampling": "path", "sigma": 0.1}'
    other = parse_specification(TOY.replace("[methods.erm]", '[methods.plain]\nmethod = "erm"'), "other")
    assert runs("other", other, methods=["plain"])[0].streams == named["erm"]


def test_tables_may_have_runs_in_common():
    asked = {"datasets": ["breastmnist"], "methods": ["erm"], "seeds": 1}
    assert runs("table9", load_specification("table9"), **asked) == runs(
        "table6", load_specification("table6"), **asked
    )
    changed = load_specification("table9").model_copy(deep=True)
    changed.datasets["breastmnist"].training["lr"] = 1.0
    with pytest.raises(SpecificationError, match="training"):
        runs("table9", changed, datasets=["breastmnist"])


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("seeds = 2", "seeds = 2\nsedes = 3", "sedes"),
        ("training = ", "trainig = ", "datasets.toy.training"),
        ("seeds = 2", "seeds = 0", "seeds"),
        ('title = "Toy"', "title = ", "TOML"),
        ('title = "Toy"', 'title = "Toy"\nsearch = { lr = { low = 2, high = 1 } }', "search.lr"),
        ('title = "Toy"', 'title = "Toy"\nsearch = { lr = { low = 0, high = 1, log = true } }', "search.lr"),
        ("methods = { elliptic =", "methods = { eliptic =", "eliptic"),
        ("batch_size = 8", "batch_size = 0", "batch_size"),
        ("batch_size = 8", "batch_size = 8, gamma = -1.0", "gamma"),
        ("batch_size = 8", 'batch_size = 8, scheduler = "cosine"', "scheduler"),
        ("batch_size = 8", "batch_size = 8, momentum = 0.9", "momentum"),
        ("epochs = 3", "epochs = 2.5", "epochs"),
        ("[methods.erm]", '[methods.erm]\ntraining = { optimizer = "adm" }', "optimizer"),
        ("n_times = 3", "n_times = 3\ntraining = { lr = -1 }", "elliptic.*lr"),
        ("[methods.erm]", '[methods.erm]\nfrom = "table3"', "from"),
    ],
)
def test_wrong_specifications(old, new, key):
    with pytest.raises(SpecificationError, match=key):
        toy_runs(old, new)


@pytest.mark.bad_input
def test_names_that_do_not_exist(tmp_path):
    with pytest.raises(SpecificationError, match="tabel3"):
        load_specification("tabel3")
    with pytest.raises(SpecificationError, match="mine"):
        load_specification(str(tmp_path / "mine.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"title = '\xff'")
    with pytest.raises(SpecificationError, match=r"bytes\.toml"):
        load_specification(str(tmp_path / "bytes.toml"))
    for asked in ({"datasets": ["airfoli"]}, {"methods": ["mixpu"]}, {"methods": []}):
        with pytest.raises(SpecificationError, match="table3"):
            runs("table3", load_specification("table3"), **asked)
