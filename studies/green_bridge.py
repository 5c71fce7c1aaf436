"""Study: when does the PDE's own noise help, and does validation choose its strength?

Needs ELLIPTICA_DATA::

python studies/green_bridge.py run        # what is not recorded yet (an hour or two)
python studies/green_bridge.py table      # tables from the records
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import elliptica
from common import Record, Study, Values, descend, paired_p, spread, table
from elliptica._utils.statistics import holm
from elliptica.baselines import ERM, CMixup, Mixup, TargetKernel
from elliptica.lab import data as loaders
from elliptica.lab.data import Dataset, Split
from elliptica.lab.experiments.metrics import reduce_by
from elliptica.lab.experiments.records import versions
from elliptica.lab.models import mlp, stack

SEEDS = list(range(10))
Method = dict[str, Any]
#: From training rows to a table that draws partners.
Build = Callable[[Split], Any]


class Task(NamedTuple):
    """A data set and how it is trained (paper: Table 12; half of its epochs on Crime; Waterbirds is ours)."""

    load: Callable[[int], Dataset]
    epochs: int
    batch_size: int
    lr: float
    sigma: float
    bandwidth: float | None = None
    manifold: str | None = None
    new_split_per_seed: bool = False
    hidden: tuple[int, ...] = (128, 128)
    alpha: float = 2.0


# Scaled over all rows, as in the reference: one row of SkillCraft's validation league (a million hours of
# play) lies at 56 when scaled over the training rows, and would decide every selection alone.
_skillcraft = partial(loaders.load_skillcraft, scale="all")
_crime = partial(loaders.load_crime, scale="all")
TASKS = {
    "no2": Task(loaders.load_no2, 100, 32, 1e-2, 0.01, 1.2, None, True),
    "airfoil": Task(loaders.load_airfoil, 100, 16, 1e-2, 0.05, 1.75, "1", True),
    "skillcraft": Task(_skillcraft, 100, 32, 1e-2, 0.05, 1.0),
    "crime": Task(_crime, 50, 16, 1e-3, 0.05, 4.0, "1"),
    "waterbirds": Task(loaders.load_waterbirds_features, 20, 128, 1e-3, 0.1, hidden=(), alpha=1.0),
}
BASELINES, POWERS = ("erm", "mixup", "c-mixup"), ("0", "1", "4", "n-2")
NOISES = ("paper", "green 0.1", "green 0.3", "green 1")
#: Names of label noise: none, a tenth of the deviation, and the paper's one sigma for inputs and targets.
LABEL_NOISE = {False: "", True: ", label noise", "sigma": ", sigma_y = sigma"}
#: All methods by the names of their settings.
SETTINGS: dict[str, Method] = {name: {"name": name} for name in BASELINES}
_OTHERS = (("green intrinsic", "1", False), ("paper", "1", "sigma"))
for _noise, _power, _labels in (*product(NOISES, POWERS, (False, True)), *_OTHERS):
    _method = {"name": "elliptic", "noise": _noise, "power": _power, "label_noise": _labels}
    SETTINGS[f"{_noise}, power {_power}{LABEL_NOISE[_labels]}"] = _method


class Best(NamedTuple):
    """Of each network the best score on the validation rows (the last of equals), and what it was then."""

    score: Tensor
    epoch: Tensor
    output: Tensor  # on the test rows


class Stack:
    """The seeds of one data set side by side: data, order of rows, partners, networks."""

    def __init__(self, task: Task, seeds: list[int]) -> None:
        self.task, self.n = task, len(seeds)
        splits = seeds if task.new_split_per_seed else [0]
        self.data = [task.load(seed) for seed in splits] * (len(seeds) // len(splits))
        self.is_class = self.data[0].task == "classification"
        self.train, self.validation, self.test = (
            [getattr(data, part) for data in self.data] for part in ("train", "validation", "test")
        )
        self.x, self.y = (torch.cat([getattr(part, name) for part in self.train]) for name in "xy")
        self.first = torch.arange(self.n)[:, None] * self.train[0].n_rows
        self.order = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.noise = torch.Generator().manual_seed(1_000_003 + seeds[0])
        networks = []
        for seed in seeds:
            torch.manual_seed(seed)  # initial weights: the same for every method
            networks.append(mlp(self.data[0].n_features, 2 if self.is_class else 1, hidden=task.hidden))
        self.model = stack(networks)
        self.loss = nn.CrossEntropyLoss() if self.is_class else nn.MSELoss()

    def batches(self) -> Iterator[Tensor]:
        """Row numbers in the joint table, network by network; incomplete batches are dropped."""
        rows, size = self.train[0].n_rows, self.task.batch_size
        orders = torch.stack([torch.randperm(rows, generator=g) for g in self.order]) + self.first
        for begin in range(0, rows - size + 1, size):
            yield orders[:, begin : begin + size].flatten()

    def partners(self, build: Build) -> Callable[[Tensor, torch.Generator], Tensor]:
        """Draw partners of rows of the joint table, from a table per distinct training split."""
        tables = [build(split) for split in (self.train if self.task.new_split_per_seed else self.train[:1])]

        def sample(index: Tensor, generator: torch.Generator) -> Tensor:
            local = index.view(self.n, -1) - self.first
            parts = zip(tables, local.view(len(tables), -1), strict=True)
            drawn = torch.cat([t.sample(rows, generator=generator).flatten() for t, rows in parts])
            return (drawn.view_as(local) + self.first).flatten()

        return sample

    def fit(self, module: nn.Module, build: Build | None = None) -> Best:
        """Train on the loss of a module, its far ends from ``build``; look at networks after each epoch."""
        draw = self.partners(build) if build else None
        zeros = torch.zeros(self.n, dtype=torch.float64)
        best = Best(zeros - math.inf, zeros.clone(), torch.zeros_like(self.predict(self.test)))

        def losses() -> Iterator[Tensor]:
            for epoch in range(self.task.epochs):
                for index in self.batches():
                    j = draw(index, self.noise) if draw else index
                    more = {"end": (self.x[j], self.y[j])} if draw else {}
                    yield self.n * module(self.x[index], self.y[index], generator=self.noise, **more)
                score = self.score(self.validation)
                if bool((better := score >= best.score).any()):
                    now = Best(score, zeros + epoch, self.predict(self.test))
                    for kept, new in zip(best, now, strict=True):
                        kept[better] = new[better]

        descend(self.model, losses(), self.task.lr)
        return best

    def predict(self, parts: list[Split]) -> Tensor:
        """Outputs of each network on its rows: ``(seeds, rows, outputs)``."""
        with torch.no_grad():
            return self.model(torch.cat([part.x for part in parts])).double().unflatten(0, (self.n, -1))

    def errors(self, output: Tensor, parts: list[Split]) -> Tensor:
        """Squared errors, or correct predictions: ``(seeds, rows)``."""
        y = torch.stack([part.y for part in parts])
        return (output.argmax(2) == y).double() if self.is_class else (output - y).square().squeeze(2)

    def score(self, parts: list[Split]) -> Tensor:
        """What selection maximises: minus the RMSE, or the worst group's accuracy."""
        values = self.errors(self.predict(parts), parts)
        if not self.is_class:
            return -values.mean(1).sqrt()
        pairs = zip(values, parts, strict=True)
        return values.new_tensor([min(reduce_by(v, part.group).values()) for v, part in pairs])


def objective(runs: Stack, method: Method) -> tuple[nn.Module, Build | None]:
    """The objective of a method, and its table of partners."""
    task, both = runs.task, (runs.model, runs.loss)
    if method["name"] == "erm":
        return ERM(*both), None
    if method["name"] == "mixup":
        return Mixup(*both, alpha=task.alpha), None
    if method["name"] == "c-mixup":
        cmixup = CMixup(*both, alpha=task.alpha, bandwidth=task.bandwidth, at=task.manifold)
        return cmixup, lambda split: TargetKernel(split.y, task.bandwidth)
    unit = 1.0 if runs.is_class else float(runs.train[0].y.std())
    sigma_y = task.sigma if method["label_noise"] == "sigma" else 0.1 * unit * method["label_noise"]
    settings = {"sampling": "marginal", "sigma": sigma(runs, method["noise"]), "sigma_y": sigma_y}
    power = runs.x.shape[1] - 2 if method["power"] == "n-2" else method["power"]
    settings["num_classes"] = 2 if runs.is_class else None
    elliptic = elliptica.Elliptic(*both, validate=False, **settings)
    return elliptic, lambda split: elliptica.PartnerTable(split.x, power=float(power))


def sigma(runs: Stack, noise: str) -> Any:
    """``sigma`` of `Elliptic`."""
    x = runs.train[0].x
    if noise == "paper":
        return runs.task.sigma
    if noise == "green intrinsic":
        return elliptica.Green(dim=max(3.0, elliptica.intrinsic_dimension(x)))
    return elliptica.Green(float(noise.split()[1]))


def train(dataset: str, method: Method, seeds: list[int]) -> list[Record]:
    """Train all seeds of one setting: average and worst group."""
    runs = Stack(TASKS[dataset], seeds)
    best, records = runs.fit(*objective(runs, method)), []

    def mean(values: Tensor) -> float:
        return float(values.mean()) if runs.is_class else math.sqrt(values.mean())

    for i, (seed, errors) in enumerate(zip(seeds, runs.errors(best.output, runs.test), strict=True)):
        record = {"dataset": dataset, "method": method, "seed": seed, "versions": versions()}
        record |= {"epoch": int(best.epoch[i]), "validation": abs(float(best.score[i]))}
        record["average"] = mean(errors)
        if groups := reduce_by(errors, runs.test[i].group, mean).values():
            record["worst"] = (min if runs.is_class else max)(groups)
        records.append(record)
    return records


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Train what is not recorded yet; mixup shares one weight per batch, so its seeds run one by one."""
    for dataset, (setting, method) in product(TASKS, SETTINGS.items()):
        if setting == "c-mixup" and TASKS[dataset].bandwidth is None:
            continue
        seeds = [cell[2] for cell in STUDY.missing(records, [(dataset, method, seed) for seed in SEEDS])]
        for group in [[s] for s in seeds] if "mixup" in setting else [seeds] * bool(seeds):
            yield train(dataset, method, group)


def settings_of(*noises: str) -> list[str]:
    """Names of all settings of some noises, of the paper's sigma also the paper's own setting."""
    return [setting for setting, method in SETTINGS.items() if method.get("noise") in noises]


FAMILIES = {
    "elliptic, paper's setting": ["paper, power 1, sigma_y = sigma"],
    "elliptic, paper's sigma": settings_of("paper"),
    "elliptic, Green": settings_of(*NOISES[1:]),
    "elliptic, any noise": settings_of(*NOISES),
    "elliptic, Green x 1, power 1 (nothing chosen)": ["green 1, power 1"],
    "elliptic, Green x 1 (power and label noise chosen)": settings_of("green 1"),
    "elliptic, Green at the intrinsic dimension": settings_of("green intrinsic"),
}


def tables(values: Values, dataset: str) -> tuple[list[list[str]], list[str]]:
    """Rows of the families, at the setting that the validation mean chose; the table of every setting.

    Differences to ERM are on the same seeds, p of paired t tests, Holm-corrected over the rows.
    """
    best, scale, forms = min, 1, (".4g", ".2g")
    if dataset == "waterbirds":  # accuracies in percent; others are errors
        best, scale, forms = max, 100, (".1f", ".1f")
    keys = ["average"] if TASKS[dataset].new_split_per_seed else ["average", "worst"]

    def mean(setting: str, key: str = "validation") -> float:
        return scale * statistics.mean(values(dataset, setting, of=key))

    def cell(setting: str) -> str:
        return " / ".join(f"{mean(setting, key):.3g}" for key in keys)

    chosen = {method: method for method in BASELINES if (dataset, method) in values.rows}
    chosen |= {family: best(settings, key=mean) for family, settings in FAMILIES.items()}
    others = [setting for setting in dict.fromkeys(chosen.values()) if setting != "erm"]
    against, rows, missing = {("erm", key): "-" for key in keys}, [], ["-"] * (2 - len(keys))
    for key in keys:
        gaps = [values.gaps((dataset, setting), (dataset, "erm"), key) for setting in others]
        p = holm(torch.tensor([paired_p(gap) for gap in gaps], dtype=torch.float64)).tolist()
        for setting, gap, q in zip(others, gaps, p, strict=True):
            against[setting, key] = f"{scale * statistics.mean(gap):+.3g} (p = {q:.2g})"
    for family, setting in chosen.items():
        shown = (values(dataset, setting, of=key) for key in ("validation", *keys))
        row = [dataset, family, "-" if family == setting else setting]
        row += [*(spread(scores, *forms, scale=scale) for scores in shown), *missing]
        rows.append([*row, *(against[setting, key] for key in keys), *missing, str(len(SEEDS))])
    head = ["noise", *(f"{power}{star}" for power in POWERS for star in ("", "*"))]
    every = [[noise, *map(cell, settings_of(noise)[: len(head) - 1])] for noise in NOISES]
    title = f"**{dataset}**, test {' / '.join(keys)}, mean over seeds"
    note = "(columns: partner power; starred: with label noise)"
    return rows, [f"{title} {note}", "", *table(head, every), ""]


def blocks(records: list[Record]) -> dict[str, str]:
    """All tables."""
    names = {str(method): setting for setting, method in SETTINGS.items()}
    values = Values([{**r, "setting": names[str(r["method"])]} for r in records], "dataset", "setting")
    families, every = zip(*(tables(values, dataset) for dataset in TASKS), strict=True)
    head = ["data", "method", "setting chosen on validation", "validation", "test average"]
    head += ["test worst group", "average, against ERM", "worst, against ERM", "seeds"]
    lines = ["### Each family at the setting chosen on validation", "", *table(head, chain(*families), "lll")]
    lines += ["", "### Every setting", "", *chain(*every)]
    return {"tables": "\n".join(lines).rstrip()}


STUDY = Study("green_bridge", blocks, ("dataset", "method", "seed"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
