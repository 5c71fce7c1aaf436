"""Study: when does the PDE's own noise help, and does a rule choose its strength?

Trains on five real data sets with the noise of the paper, with Green's law at three strengths and with
the screened law; four partner laws; label noise on and off; beside ERM, mixup and C-Mixup at the same
number of network evaluations. Ten seeds. The epoch is chosen on the validation split, the setting by the
mean validation score. Needs ELLIPTICA_DATA::

    python studies/green_bridge.py run        # what is not recorded yet (an hour or two)
    python studies/green_bridge.py table      # tables and picture from the records
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import geninvgauss
from torch import Tensor, nn

import elliptica
from common import Record, Study, descend, paired_p, spread, table
from elliptica.baselines import CMixup, Mixup, TargetKernel
from elliptica.lab.data import (
    Dataset,
    Split,
    load_airfoil,
    load_crime,
    load_no2,
    load_skillcraft,
    load_waterbirds_features,
)
from elliptica.lab.experiments.records import versions
from elliptica.lab.models import mlp, stack

N_BINS, N_SEEDS = 5, 10
#: From row numbers to the loss, summed over networks.
Loss = Callable[[Tensor], Tensor]
Method = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A data set and how it is trained (paper: Table 12).

    Crime has half of the paper's epochs, for time. Training on the Waterbirds features is our choice.
    """

    load: Callable[[int], Dataset]
    epochs: int
    batch_size: int
    lr: float
    sigma: float
    hidden: tuple[int, ...] = (128, 128)
    alpha: float = 2.0
    bandwidth: float | None = None
    manifold: str | None = None
    new_split_per_seed: bool = False


# Scaled over all rows, as in the reference: one row of SkillCraft's validation league (a million hours of
# play) lies at 56 when scaled over the training rows, and would decide every selection alone.
_skillcraft, _crime = (functools.partial(load, scale="all") for load in (load_skillcraft, load_crime))
TASKS = {
    "no2": Task(load_no2, 100, 32, 1e-2, 0.01, bandwidth=1.2, new_split_per_seed=True),
    "airfoil": Task(load_airfoil, 100, 16, 1e-2, 0.05, bandwidth=1.75, manifold="1", new_split_per_seed=True),
    "skillcraft": Task(_skillcraft, 100, 32, 1e-2, 0.05, bandwidth=1.0),
    "crime": Task(_crime, 50, 16, 1e-3, 0.05, bandwidth=4.0, manifold="1"),
    "waterbirds": Task(load_waterbirds_features, 20, 128, 1e-3, 0.1, hidden=(), alpha=1.0),
}
POWERS = ("0", "1", "4", "n-2")
NOISES = ("paper", "green 0.1", "green 0.3", "green 1", "screened")


def methods(task: Task) -> Iterator[Method]:
    """Every setting of a data set; ``holdout`` leaves a tenth of the training rows for validation."""

    def elliptic(noise: str, power: str = "1", label_noise: bool | str = False, **more: bool) -> Method:
        return {"name": "elliptic", "noise": noise, "power": power, "label_noise": label_noise, **more}

    yield from ({"name": name} for name in ("erm", "mixup"))
    if task.bandwidth is not None:
        yield {"name": "c-mixup"}
    for noise in NOISES:
        yield from (elliptic(noise, power, labels) for power in POWERS for labels in (False, True))
    yield elliptic("green intrinsic")
    yield elliptic("paper", label_noise="sigma")  # the paper's own setting: one sigma for inputs and targets
    if task.bandwidth is not None and not task.new_split_per_seed:  # regression under shift
        yield {"name": "erm", "holdout": True}
        yield from (elliptic(noise, holdout=True) for noise in NOISES)


@dataclass(frozen=True)
class Screened:
    """The law of the noise if walks are killed at a constant rate, as an example of a law of one's own.

    The variance of a bridge of length ``r`` in ``n`` dimensions has a density proportional to
    ``V**(-n/2) * exp(-r**2 / (2 V) - rate * V)``: generalised inverse Gaussian, `elliptica.Green` at rate 0.
    """

    rate: float

    def __call__(self, start: Tensor, end: Tensor, targets: object, generator: torch.Generator) -> Tensor:
        """Draw the standard deviation of the bridge of each pair."""
        r = (end - start).norm(dim=1, keepdim=True).double().clamp_min(1e-12).numpy()
        root = math.sqrt(2 * self.rate)
        draws = int(torch.randint(2**62, (), generator=generator))
        law = geninvgauss(1 - start.shape[1] / 2, root * r, scale=r / root)
        return torch.from_numpy(law.rvs(r.shape, random_state=np.random.default_rng(draws))).sqrt().to(start)


class Stack:
    """The seeds of one data set side by side: data, order of rows, partners, networks."""

    def __init__(self, task: Task, method: Method, seeds: list[int]) -> None:
        self.task, self.seeds = task, seeds
        splits = seeds if task.new_split_per_seed else [0]
        self.data = [task.load(seed) for seed in splits] * (len(seeds) // len(splits))
        self.is_class = self.data[0].task == "classification"
        parts = [_parts(data, method.get("holdout", False)) for data in self.data]
        self.train, self.selection = ([pair[i] for pair in parts] for i in (0, 1))
        self.x = torch.cat([part.x for part in self.train])
        self.y = torch.cat([part.y for part in self.train])
        self.first = torch.arange(len(seeds)) * self.train[0].n_rows
        self.order = [torch.Generator().manual_seed(seed) for seed in seeds]
        networks = []
        for seed in seeds:
            torch.manual_seed(seed)  # initial weights: the same for every method
            networks.append(mlp(self.data[0].n_features, 2 if self.is_class else 1, hidden=task.hidden))
        self.model = stack(networks)
        self.loss = nn.CrossEntropyLoss() if self.is_class else nn.MSELoss()

    def batches(self) -> Iterator[Tensor]:
        """Row numbers in the joint table, network by network; incomplete batches are dropped."""
        n, size = self.train[0].n_rows, self.task.batch_size
        orders = torch.stack([torch.randperm(n, generator=g) for g in self.order]) + self.first[:, None]
        for begin in range(0, n - size + 1, size):
            yield orders[:, begin : begin + size].flatten()

    def with_partners(
        self, build: Callable[[Split], Any], module: nn.Module, noise: torch.Generator, factor: int
    ) -> Loss:
        """The loss of a module whose far ends are drawn from a table per distinct training split."""
        partners = self.tables(build)

        def loss(index: Tensor) -> Tensor:
            j = partners(index, noise)
            return factor * module(self.x[index], self.y[index], end=(self.x[j], self.y[j]), generator=noise)

        return loss

    def tables(self, build: Callable[[Split], Any]) -> Callable[[Tensor, torch.Generator], Tensor]:
        """Partners of rows of the joint table."""
        shared = not self.task.new_split_per_seed
        built = [build(split) for split in (self.train[:1] if shared else self.train)]

        def sample(index: Tensor, generator: torch.Generator) -> Tensor:
            local = index.view(len(self.seeds), -1) - self.first[:, None]
            parts = [local.flatten()] if shared else list(local)
            drawn = [
                t.sample(rows, generator=generator).flatten() for t, rows in zip(built, parts, strict=True)
            ]
            return (torch.cat(drawn).view_as(local) + self.first[:, None]).flatten()

        return sample

    def fit(self, loss: Loss, look: Callable[[int], None]) -> None:
        """Train; ``look(epoch)`` after each epoch."""

        def losses() -> Iterator[Tensor]:
            for epoch in range(self.task.epochs):
                yield from map(loss, self.batches())
                look(epoch)

        descend(self.model, losses(), self.task.lr)

    def evaluate(self, parts: list[Split]) -> Tensor:
        """Squared errors, or correct predictions, of each network on its rows: ``(seeds, rows)``."""
        with torch.no_grad():
            output = self.model(torch.cat([part.x for part in parts])).unflatten(0, (len(parts), -1))
        y = torch.stack([part.y for part in parts])
        return (output.argmax(2) == y).float() if self.is_class else (output - y).square().squeeze(2)

    def score(self, parts: list[Split]) -> Tensor:
        """What selection maximises: minus the RMSE, or the worst group's accuracy."""
        values = self.evaluate(parts)
        if not self.is_class:
            return -values.mean(1).sqrt()
        return torch.stack([_by_group(v, p.group).amin() for v, p in zip(values, parts, strict=True)])


def _parts(data: Dataset, holdout: bool) -> tuple[Split, Split]:
    """Training rows and the rows that choose the epoch."""
    if not holdout:
        return data.train, data.validation
    rows = torch.randperm(data.train.n_rows, generator=torch.Generator().manual_seed(0))
    held, kept = rows.tensor_split([data.train.n_rows // 10])
    return tuple(Split(data.train.x[r], data.train.y[r]) for r in (kept, held))  # type: ignore[return-value]


def _by_group(values: Tensor, group: Tensor | None) -> Tensor:
    assert group is not None
    return torch.stack([values[group == g].mean() for g in group.unique()])


def objective(runs: Stack, method: Method, noise: torch.Generator) -> tuple[Loss, dict[str, Any]]:
    """The loss of a method, and its settings."""
    task, x, y, k = runs.task, runs.x, runs.y, len(runs.seeds)
    if method["name"] == "erm":
        return lambda index: k * runs.loss(runs.model(x[index]), y[index]), {}
    if method["name"] == "mixup":
        mixup = Mixup(runs.model, runs.loss, alpha=task.alpha)
        return lambda index: mixup(x[index], y[index], generator=noise), {"alpha": task.alpha}
    if method["name"] == "c-mixup":
        settings = {"alpha": task.alpha, "bandwidth": task.bandwidth, "at": task.manifold}
        cmixup = CMixup(runs.model, runs.loss, **settings)
        return runs.with_partners(lambda s: TargetKernel(s.y, task.bandwidth), cmixup, noise, k), settings
    settings = {"sampling": "marginal", **bridge_settings(runs, method)}
    power = float(x.shape[1] - 2) if method["power"] == "n-2" else float(method["power"])
    elliptic = elliptica.Elliptic(
        runs.model, runs.loss, num_classes=2 if runs.is_class else None, validate=False, **settings
    )
    loss = runs.with_partners(lambda s: elliptica.PartnerTable(s.x, power=power), elliptic, noise, k)
    return loss, {**{name: repr(value) for name, value in settings.items()}, "power": power}


def bridge_settings(runs: Stack, method: Method) -> dict[str, Any]:
    """Noise of a method for `Elliptic`."""
    x, kind = runs.train[0].x, method["noise"]
    sigma: Any
    if kind == "paper":
        sigma = runs.task.sigma
    elif kind == "screened":
        shuffled = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
        sigma = Screened(10 * x.shape[1] ** 2 / (2 * float((shuffled - x).norm(dim=1).median()) ** 2))
    elif kind == "green intrinsic":
        sigma = elliptica.Green(dim=max(3.0, elliptica.intrinsic_dimension(x)))
    else:
        sigma = elliptica.Green(float(kind.split()[1]))
    if method["label_noise"] == "sigma":
        return {"sigma": sigma, "sigma_y": runs.task.sigma}
    unit = 1.0 if runs.is_class else float(runs.train[0].y.std())
    return {"sigma": sigma, "sigma_y": 0.1 * unit if method["label_noise"] else 0.0}


def train(dataset: str, method: Method, seeds: list[int]) -> list[Record]:
    """Train all seeds of one setting; one record each."""
    runs = Stack(TASKS[dataset], method, seeds)
    loss, settings = objective(runs, method, torch.Generator().manual_seed(1_000_003 + seeds[0]))
    tests, validations = ([getattr(data, part) for data in runs.data] for part in ("test", "validation"))
    best, epochs = torch.full((len(seeds),), -math.inf), torch.zeros(len(seeds), dtype=torch.long)
    errors, validation = torch.zeros(len(seeds), tests[0].n_rows), torch.zeros(len(seeds))

    def look(epoch: int) -> None:
        scores = runs.score(runs.selection)
        better = scores >= best
        if bool(better.any()):
            best[better], epochs[better] = scores[better], epoch
            errors[better] = runs.evaluate(tests)[better]
            validation[better] = runs.score(validations)[better]

    runs.fit(loss, look)
    return [
        {
            "dataset": dataset,
            "method": method,
            "seed": seed,
            "selection": abs(float(best[i])),
            "validation": abs(float(validation[i])),
            "epoch": int(epochs[i]),
            **test_metrics(errors[i], runs, i),
            "settings": settings,
            "versions": versions(),
        }
        for i, seed in enumerate(seeds)
    ]


def test_metrics(errors: Tensor, runs: Stack, i: int) -> Record:
    """Average and worst group, each group, and the error by distance from the training data."""
    test = runs.data[i].test
    kind: Callable[[Tensor], Tensor] = (lambda v: v) if runs.is_class else Tensor.sqrt
    nearest = torch.cdist(test.x, runs.train[i].x).amin(1)
    bins = torch.bucketize(nearest, nearest.quantile(torch.linspace(0, 1, N_BINS + 1)[1:-1]))
    found: Record = {
        "average": float(kind(errors.mean())),
        "by_distance": [float(kind(errors[bins == b].mean())) for b in range(N_BINS)],
        "distance": [float(nearest[bins == b].mean()) for b in range(N_BINS)],
    }
    if test.group is not None:
        groups = kind(_by_group(errors, test.group))
        found["groups"] = dict(zip(map(str, test.group.unique().tolist()), groups.tolist(), strict=True))
        found["worst"] = float(groups.amin() if runs.is_class else groups.amax())
    return found


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Train what is not recorded yet; mixup shares one weight per batch, so its seeds run one by one."""
    done = {(r["dataset"], json.dumps(r["method"], sort_keys=True), r["seed"]) for r in records}
    for dataset, task in TASKS.items():
        for method in methods(task):
            key = json.dumps(method, sort_keys=True)
            seeds = [s for s in range(N_SEEDS) if (dataset, key, s) not in done]
            for group in [[s] for s in seeds] if "mixup" in method["name"] else [seeds] * bool(seeds):
                yield train(dataset, method, group)


def name(method: Method) -> str:
    """One line for a setting."""
    if method["name"] != "elliptic":
        return str(method["name"])
    label = {True: ", label noise", "sigma": ", sigma_y = sigma"}.get(method["label_noise"], "")
    return f"{method['noise']}, power {method['power']}{label}"


class Results:
    """Records of one data set by setting, each a dict from seed to record."""

    def __init__(self, records: list[Record], dataset: str, holdout: bool = False) -> None:
        self.accuracy = dataset == "waterbirds"  # larger is better; the others are errors
        self.runs: dict[str, dict[int, Record]] = defaultdict(dict)
        self.methods: dict[str, Method] = {}
        for r in records:
            if r["dataset"] == dataset and bool(r["method"].get("holdout")) == holdout:
                self.runs[name(r["method"])][r["seed"]] = r
                self.methods[name(r["method"])] = r["method"]

    @property
    def keys(self) -> list[str]:
        """Average, and worst group where there are groups."""
        return [key for key in ("average", "worst") if key in self.runs["erm"][0]]

    def values(self, setting: str, key: str) -> list[float]:
        """One value per seed, in the order of seeds."""
        return [record[key] for _, record in sorted(self.runs[setting].items())]

    def best(self, key: str, among: Callable[[Method], bool]) -> str | None:
        """The setting with the best mean of ``key``."""
        settings = [s for s, method in self.methods.items() if among(method)]
        pick = max if self.accuracy else min
        return pick(settings, key=lambda s: statistics.mean(self.values(s, key)), default=None)

    def show(self, setting: str, key: str) -> str:
        """Mean and sample deviation; in percent for accuracies."""
        values = self.values(setting, key)
        return spread(values, ".1f", scale=100) if self.accuracy else spread(values, ".4g", ".2g")

    def show_best(self, key: str, by: str, among: Callable[[Method], bool]) -> str:
        """Name and score of the noise that a rule picks."""
        pick = self.best(by, among)
        return f"{pick.split(',')[0]}: {self.show(pick, key)}" if pick else "-"

    def against_erm(self, settings: list[str], key: str) -> dict[str, str]:
        """Mean difference to ERM on the same seeds; p of a paired t test, Holm-corrected over the rows."""
        erm, found = self.values("erm", key), {}
        for setting in dict.fromkeys(s for s in settings if s != "erm"):
            gaps = [a - b for a, b in zip(self.values(setting, key), erm, strict=True)]
            found[setting] = statistics.mean(gaps) * (100 if self.accuracy else 1), paired_p(gaps)
        shown, running = {}, 0.0
        for i, setting in enumerate(sorted(found, key=lambda s: found[s][1])):
            mean, p = found[setting]
            running = max(running, min(1.0, p * (len(found) - i)))
            shown[setting] = f"{mean:+.3g} (p = {running:.2g})"
        return shown


def is_noise(*wanted: str) -> Callable[[Method], bool]:
    """Settings of elliptic training with one of these noises."""
    return lambda m: m["name"] == "elliptic" and m["noise"] in wanted


def plain(*wanted: str) -> Callable[[Method], bool]:
    """These noises with partners by inverse distance and linear targets."""
    return lambda m: is_noise(*wanted)(m) and m["power"] == "1" and not m["label_noise"]


FAMILIES: dict[str, Callable[[Method], bool]] = {
    "elliptic, paper's setting": lambda m: m.get("label_noise") == "sigma",
    "elliptic, paper's sigma": is_noise("paper"),
    "elliptic, Green": is_noise("green 0.1", "green 0.3", "green 1"),
    "elliptic, screened": is_noise("screened"),
    "elliptic, any noise": is_noise(*NOISES),
    "elliptic, Green x 1, power 1 (nothing chosen)": plain("green 1"),
    "elliptic, Green x 1 (power and label noise chosen)": is_noise("green 1"),
    "elliptic, Green at the intrinsic dimension": is_noise("green intrinsic"),
}


def main_rows(dataset: str, results: Results) -> Iterator[list[str]]:
    """Each family at the setting that its validation mean chose, beside the baselines."""
    chosen = {m: m for m in ("erm", "mixup", "c-mixup") if m in results.methods}
    chosen |= {family: results.best("validation", among) or "" for family, among in FAMILIES.items()}
    against = [results.against_erm(list(chosen.values()), key) for key in results.keys]
    for family, setting in chosen.items():
        scores = [results.show(setting, key) for key in results.keys]
        gaps = [gap.get(setting, "-") for gap in against]
        missing = ["-"] * (2 - len(scores))
        row = [dataset, family, setting if family != setting else "-", results.show(setting, "validation")]
        yield [*row, *scores, *missing, *gaps, *missing, str(len(results.runs[setting]))]


def rules_row(dataset: str, results: Results, held: Results) -> list[str]:
    """Does a rule choose the noise well? Test score of what each rule picks (power 1, no label noise)."""
    key, among = results.keys[-1], plain(*NOISES)
    intrinsic = results.best("validation", is_noise("green intrinsic"))
    return [
        *(dataset, key, results.show("erm", key)),
        *(results.show_best(key, by, among) for by in (key, "validation")),
        results.show(intrinsic, key) if intrinsic else "-",
        # these runs chose epoch and noise on rows like the training rows, never on the shifted ones
        held.show("erm", key) if "erm" in held.methods else "-",
        held.show_best(key, "selection", among),
    ]


def grid_table(dataset: str, results: Results) -> list[str]:
    """Every setting: test average, and worst group where there are groups."""

    def cell(setting: str) -> str:
        means = (statistics.mean(results.values(setting, key)) for key in results.keys)
        return " / ".join(f"{mean * (100 if results.accuracy else 1):.3g}" for mean in means)

    labels = {"": "", "*": ", label noise"}
    head = ["noise", *(f"{power}{star}" for power in POWERS for star in labels)]
    rows = [
        [n, *(cell(f"{n}, power {p}{label}") for p in POWERS for label in labels.values())] for n in NOISES
    ]
    keys = " / ".join(results.keys)
    title = f"**{dataset}**, test {keys}, mean over seeds (columns: partner power; starred: with label noise)"
    return [title, "", *table(head, rows), ""]


def blocks(records: list[Record]) -> dict[str, str]:
    """All tables."""
    results = {dataset: Results(records, dataset) for dataset in TASKS}
    head = [
        "data",
        "method",
        "setting chosen on validation",
        "validation",
        "test average",
        "test worst group",
    ]
    head += ["average, against ERM", "worst, against ERM", "seeds"]
    rules = ["data", "score on test", "ERM", "best of the five in hindsight", "picked on validation"]
    rules += ["intrinsic dimension (no choice)", "held-out tenth of the training rows: ERM", "its pick"]
    picked = [rules_row(d, r, Results(records, d, holdout=True)) for d, r in results.items()]
    lines = ["### Each family at the setting chosen on validation", ""]
    lines += table(head, (row for d, r in results.items() for row in main_rows(d, r)), "lll")
    lines += ["", "### Does a rule choose the noise?", "", *table(rules, picked, "l" * 8)]
    lines += ["", "### Every setting", "", *(line for d, r in results.items() for line in grid_table(d, r))]
    return {"tables": "\n".join(lines).rstrip()}


def draw() -> None:
    """Where the gain comes from: the error relative to ERM by distance from the training data, power 1."""
    import matplotlib.pyplot as plt

    settings = {"c-mixup": "c-mixup", "elliptic, paper's sigma": "paper, power 1"}
    settings |= {f"elliptic, Green x {s}": f"green {s}, power 1" for s in ("0.3", "1")}
    figure, axes = plt.subplots(1, len(TASKS), figsize=(15, 3.2), layout="constrained")
    for axis, dataset in zip(axes, TASKS, strict=True):
        results = Results(STUDY.read(), dataset)
        for colour, (label, setting) in enumerate(settings.items()):
            if setting not in results.methods:
                continue
            ours, erm = (torch.tensor(results.values(s, "by_distance")) for s in (setting, "erm"))
            ratios = (1 - ours) / (1 - erm).clamp_min(1e-9) if results.accuracy else ours / erm
            error = ratios.std(0) / len(ratios) ** 0.5
            places = range(1, N_BINS + 1)
            axis.errorbar(
                places, ratios.mean(0), error, marker="o", ms=4, capsize=2, color=f"C{colour}", label=label
            )
        axis.axhline(1, color="black", lw=0.8)
        axis.set(title=dataset, xticks=range(1, 6))
        axis.set_xlabel("test rows by distance to training\n(fifths, near to far)")
    axes[0].set_ylabel("error / error of ERM\n(below 1 is better)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(STUDY.folder / "gain_by_distance.png", dpi=110)
    plt.close(figure)


STUDY = Study("green_bridge", blocks, ("dataset", "method", "seed"))

if __name__ == "__main__":
    STUDY.main(__doc__, run, draw)
