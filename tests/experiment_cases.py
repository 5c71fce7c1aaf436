"""Small tables, data and methods for tests of experiments."""

import dataclasses

import torch

from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments.engines import open_engine
from elliptica.lab.experiments.methods import METHODS, make_loss, prepare
from elliptica.lab.experiments.methods.context import Context
from elliptica.lab.experiments.registry import make_model
from elliptica.lab.experiments.search import Search
from elliptica.lab.experiments.specification import Run, runs
from elliptica.lab.experiments.tune import named_space
from elliptica.lab.training import TrainingSettings, fit

#: A table of two rows.
TOY = """
title = "Toy"
paper = "nowhere"
metric = "rmse"
columns = ["average"]
seeds = 2
[methods.erm]
[methods.elliptic]
sampling = "path"
n_times = 3
[datasets.toy]
model = { name = "mlp", hidden = [8] }
training = { epochs = 3, batch_size = 8, lr = 1e-2 }
methods = { elliptic = { sigma = 0.1 } }
paper = { erm = { average = { mean = 1.5, std = 0.1 } } }
"""


def load_toy(seed, *, data_dir=None):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 3, generator=generator)
    y = x.sum(1, keepdim=True)
    return Dataset("toy", *[Split(x[i : i + 20], y[i : i + 20]) for i in (0, 20, 40)], task="regression")


#: A table with searches.
SEARCHED = """
title = "Toy"
paper = "nowhere"
metric = "accuracy"
columns = ["average", "worst"]
select = "worst"
seeds = 2
trials = 4
search = { lr = { low = 1e-6, high = 1e-1, log = true } }
[searches.small.settings]
sigma = { low = 0.01, high = 1.0, log = true }
n_bridges = { low = 1, high = 3, integer = true }
weighting = { choices = ["none", "gradient_norm"] }
[searches.small.training]
lr = { low = 1e-5, high = 1e-1, log = true }
[methods.erm]
[methods.elliptic]
sigma = 0.1
[methods.green]
method = "elliptic"
sigma = "green"
partners = "data"
[datasets.groups]
model = { name = "linear" }
training = { epochs = 4, batch_size = 16, lr = 1e-4 }
"""

#: Settings without which a method cannot be.
NEEDED = {
    "ada": {"n_clusters": 4},
    "foma": {"rho": 0.7},
    "c-mixup": {"bandwidth": 1.0},
    "doro": {"epsilon": 0.1, "alpha": 0.5},
    "dro": {"alpha": 0.5},
    "input-noise": {"sigma": 0.1},
    "manifold-mixup": {"layers": ["input", "1"]},
    "nfm": {"layers": ["input", "1"]},
    "ib-irm": {"at": "1"},
    "coral": {"at": "1"},
    "smote": {"k_neighbors": 2},
}
#: Those for real targets only.
REGRESSORS = ["ada", "c-mixup", "foma"]
CLASSIFIERS = sorted(set(METHODS) - set(REGRESSORS))


def load_groups(seed=0, *, data_dir=None):
    """Two classes of unequal size, each on two backgrounds."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor([0] * 30 + [1] * 18)
    place = torch.arange(48) % 2
    x = torch.randn(48, 5, generator=generator) + 2 * y[:, None]
    part = Split(x, y, 2 * y + place)
    return Dataset("groups", part, part, part, task="classification")


def load_line(seed=0, *, data_dir=None):
    x = torch.randn(48, 5, generator=torch.Generator().manual_seed(seed))
    part = Split(x, x.sum(1, keepdim=True))
    return Dataset("line", part, part, part, task="regression")


def make_ready(name, settings, data, model, training=None):
    """A method with everything it may look at."""

    def first_stage(net, objective, first, progress):
        return fit(net, objective, data, first, lambda *_: 0.0, name="first", seed=0, progress=progress)

    training = training or TrainingSettings(epochs=2, batch_size=16, lr=1e-2)
    context = Context(
        data,
        make_loss(data.task),
        model,
        training,
        lambda: make_model({"name": "mlp", "hidden": [8]}, data, "other", 0),
        first_stage,
        torch.Generator().manual_seed(0),
    )
    return prepare(name, settings, context)


def network(data):
    return make_model({"name": "mlp", "hidden": [8]}, data, "toy", 0)


def run_of(method, **changes):
    settings = {**NEEDED.get(method, {}), **changes.pop("settings", {})}
    training = {"epochs": 4, "batch_size": 16, "lr": 1e-2, **changes.pop("training", {})}
    return Run(
        table="toy",
        dataset="groups",
        row=method,
        method=method,
        seed=0,
        metric="accuracy",
        columns=("average", "worst"),
        select="worst",
        load=changes.pop("load", {"name": "groups"}),
        model={"name": "mlp", "hidden": [8], "batch_norm": True},
        training=training,
        settings=settings,
        **changes,
    )


def silent(*_):
    """Listen to nothing."""


def load_hard(seed=0, *, data_dir=None):
    """Classes that overlap, and three different parts, so that settings matter."""
    data = load_groups(seed)
    parts = []
    for number in range(3):
        generator = torch.Generator().manual_seed(100 * seed + number)
        x = torch.randn(48, 5, generator=generator) + 0.7 * data.train.y[:, None]
        parts.append(Split(x, data.train.y, data.train.group))
    return dataclasses.replace(data, train=parts[0], validation=parts[1], test=parts[2])


def make_search(toy, storage, row="elliptic", space="small", **options):
    run = next(run for run in runs("toy", toy) if run.row == row)
    options = {"trials": 6, "pruner": "none", **options}
    return Search(run=run, space=named_space(toy, run, space), name=space, storage=str(storage), **options)


def read_board(folder):
    """Scalars by name as lists of (step, value), as TensorBoard itself reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def do_all(runs, options, listen):
    """Do runs with the engine that options ask for; returns how each ended, by its label."""
    with open_engine(options) as engine:
        outcomes = engine.do(runs, options, listen)
    return {run.label: outcome.state for run, outcome in zip(runs, outcomes, strict=True)}
