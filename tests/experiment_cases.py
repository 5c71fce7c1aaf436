"""Small tables, data and methods for tests of experiments."""

import torch

from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments.methods import METHODS, Context, make_loss, prepare
from elliptica.lab.experiments.registry import make_model
from elliptica.lab.experiments.specification import Run
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
    given = {
        "table": "toy",
        "dataset": "groups",
        "row": method,
        "method": method,
        "seed": 0,
        "metric": "accuracy",
        "columns": ("average", "worst"),
        "select": "worst",
        "load": {"name": "groups"},
        "model": {"name": "mlp", "hidden": [8], "batch_norm": True},
    }
    return Run(**{**given, "training": training, "settings": settings, **changes})


def numbers(record):
    """What a record holds but for times."""
    found = record.model_dump(mode="json")
    for name in ("seconds", "first_stage"):
        found["cost"].pop(name, None)
    return found
