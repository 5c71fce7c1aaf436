"""Study: what do simple controls give on SkillCraft and Crime (paper: Table 5)?

Trains ordinary networks, C-Mixup, elliptic training with the paper's and with Green's noise, noise without
any bridge, and networks on the log of the target. Measures each with and without clipping predictions to the
range of the training targets, beside ensembles of nine, boosted trees and ridge regression. Loaders, network,
schedule and the choice of the epoch are those of Table 5. Ten seeds, trained side by side. Needs
ELLIPTICA_DATA::

    python studies/regression_controls.py run      # what is not recorded yet (twenty minutes), then the page
    python studies/regression_controls.py table    # the page from the records
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from torch import Tensor

import elliptica
import green_bridge
from common import Record, Study, paired_p, rounded, spread, table
from elliptica.baselines import InputNoise
from elliptica.lab.data import Dataset
from elliptica.lab.experiments.records import versions
from green_bridge import Loss, Stack

#: As in Table 5. Elliptic training takes one point of each bridge, with partners by distance from all rows.
TASKS = {
    "skillcraft": green_bridge.TASKS["skillcraft"],
    "crime": dataclasses.replace(green_bridge.TASKS["crime"], epochs=100),
}
#: Added before the logarithm: latencies are positive; rates of crime are hundredths and may be 0.
SHIFT = {"skillcraft": 0.0, "crime": 0.01}
N_SEEDS = 10
#: How far the range of the training targets is widened, as a share of it.
MARGINS = (0.0, 0.05, 0.1, 0.25)
ENSEMBLE = "erm, ensemble of 9"
_ELLIPTIC = {"name": "elliptic", "power": "1"}
_GREEN = {**_ELLIPTIC, "noise": "green 1", "label_noise": False}
#: Settings of `green_bridge.objective`; noise without bridges is made here.
NETWORKS: dict[str, dict[str, Any]] = {
    "erm": {"name": "erm"},
    "c-mixup": {"name": "c-mixup"},
    "elliptic": {**_ELLIPTIC, "noise": "paper", "label_noise": "sigma"},
    "green": _GREEN,
    "noise as green": {"name": "noise", "law": "green"},
    "plain noise": {"name": "noise", "law": "normal"},
    "erm, log target": {"name": "erm", "log": True},
    "green, log target": {**_GREEN, "log": True},
}
#: In the order of the tables.
ORDER = (*NETWORKS, ENSEMBLE, "boosted trees", "ridge")


def noise_objective(runs: Stack, law: str, noise: torch.Generator) -> tuple[Loss, float]:
    """Noise without any bridge, and its deviation.

    ``"green"``: the noise of Green's bridge to a partner by distance, at a uniform time; ``"normal"``: normal
    noise of the same variance, the mean over pairs and times.
    """
    x, y, k = runs.x, runs.y, len(runs.seeds)

    def build(split: Any) -> elliptica.PartnerTable:
        return elliptica.PartnerTable(split.x, power=1.0)

    partners, draws, green = runs.tables(build), torch.Generator().manual_seed(0), elliptica.Green()
    everywhere = (torch.arange(runs.train[0].n_rows) + runs.first[:, None]).flatten()
    ends = [x[partners(everywhere, draws)] for _ in range(10)]
    std = torch.cat([green(x[everywhere], end, generator=draws) for end in ends])
    deviation = math.sqrt(float(std.double().square().mean()) / 6)  # s (1 - s) is a sixth on average
    if law == "normal":
        plain = InputNoise(runs.model, runs.loss, sigma=deviation)
        return lambda index: k * plain(x[index], y[index], generator=noise), deviation
    module = InputNoise(runs.model, runs.loss, sigma="green", law="bridge")
    return runs.with_partners(build, module, noise, k), deviation


def train(dataset: str, method: dict[str, Any], seeds: list[int]) -> dict[str, Any]:
    """Train networks side by side; predict the test rows at the epoch of the lowest validation RMSE."""
    shift, has_log = SHIFT[dataset], method.get("log", False)
    runs = Stack(TASKS[dataset], method, seeds)
    noise = torch.Generator().manual_seed(1_000_003 + seeds[0])
    if has_log:
        runs.y = (runs.y + shift).log()
    details: dict[str, Any] = {}
    if method["name"] == "noise":
        loss, details["deviation"] = noise_objective(runs, method["law"], noise)
    else:
        loss, _ = green_bridge.objective(runs, method, noise)
    data, k = runs.data[0], len(seeds)
    best, epochs = torch.full((k,), math.inf, dtype=torch.float64), torch.zeros(k, dtype=torch.int64)
    predictions = torch.zeros(k, data.test.n_rows, dtype=torch.float64)

    def predict(x: Tensor) -> Tensor:
        with torch.no_grad():
            output = runs.model(x.repeat(k, 1)).view(k, len(x)).double()
        return output.exp() - shift if has_log else output

    def look(epoch: int) -> None:
        error = (predict(data.validation.x) - data.validation.y.flatten()).square().mean(1).sqrt()
        better = error <= best
        if bool(better.any()):
            best[better], epochs[better] = error[better], epoch
            predictions[better] = predict(data.test.x)[better]

    runs.fit(loss, look)
    return {"predictions": predictions, "validation": best.tolist(), "epoch": epochs.tolist(), **details}


def measure(predictions: Tensor, data: Dataset) -> Record:
    """Errors with and without clipping, how often predictions leave the range, and what one row carries."""
    y, group = data.test.y.flatten().double(), data.test.group
    assert group is not None
    low, high = float(data.train.y.min()), float(data.train.y.max())
    found: Record = {"plain": _errors(predictions, y, group)}
    for margin in MARGINS:
        extra = margin * (high - low)
        found[f"clipped {margin:g}"] = _errors(predictions.clamp(low - extra, high + extra), y, group)
    inside = (predictions - y).square()[group == found["plain"]["group"]]
    found["outside"] = float(((predictions < low) | (predictions > high)).double().mean())
    return rounded({**found, "largest_row": float(inside.max() / inside.sum())}, 6)


def _errors(predictions: Tensor, y: Tensor, group: Tensor) -> Record:
    squares = (predictions - y).square()
    by_group = {int(g): float(squares[group == g].mean().sqrt()) for g in group.unique()}
    worst = max(by_group, key=lambda g: by_group[g])
    return {"average": float(squares.mean().sqrt()), "worst": by_group[worst], "group": worst}


def networks(dataset: str, row: str) -> Iterator[Record]:
    """Measurements of each seed of a row."""
    method, data, seeds = NETWORKS[row], TASKS[dataset].load(0), list(range(N_SEEDS))
    # in a hidden layer C-Mixup joins rows and partners, which networks side by side would mistake for rows
    is_alone = method["name"] == "c-mixup" and TASKS[dataset].manifold is not None
    for group in [[seed] for seed in seeds] if is_alone else [seeds]:
        found = train(dataset, method, group)
        predictions = found.pop("predictions")
        for i in range(len(group)):
            details = {key: value[i] if isinstance(value, list) else value for key, value in found.items()}
            yield {**details, **measure(predictions[i], data)}


def ensembles(dataset: str) -> Iterator[Record]:
    """Means of ordinary networks of all seeds but one, so that ensembles overlap; clipped before the mean."""
    data = TASKS[dataset].load(0)
    members = train(dataset, NETWORKS["erm"], list(range(N_SEEDS)))["predictions"]
    low, high = float(data.train.y.min()), float(data.train.y.max())
    for seed in range(N_SEEDS):
        others = members[torch.arange(N_SEEDS) != seed]
        clipped = measure(others.clamp(low, high).mean(0), data)  # as `EllipticRegressor` does
        yield {**measure(others.mean(0), data), "clipped 0": clipped["plain"]}


def others(dataset: str, row: str) -> Iterator[Record]:
    """Boosted trees with scikit-learn's defaults; ridge regression, its penalty chosen on validation."""
    data = TASKS[dataset].load(0)
    kind = torch.float64 if row == "ridge" else torch.float32
    x, held, test = (part.x.to(kind).numpy() for part in (data.train, data.validation, data.test))
    y, wanted = (part.y.to(kind).numpy().ravel() for part in (data.train, data.validation))
    if row == "boosted trees":  # hardly anything in them is random
        for seed in range(N_SEEDS):
            model = HistGradientBoostingRegressor(random_state=seed).fit(x, y)
            yield measure(torch.from_numpy(model.predict(test)).double(), data)
        return
    models = [Ridge(alpha=alpha).fit(x, y) for alpha in np.logspace(-3, 3, 13).tolist()]
    scores = [float(np.sqrt(np.mean((model.predict(held) - wanted) ** 2))) for model in models]
    best = int(np.argmin(scores))
    found = measure(torch.from_numpy(models[best].predict(test)), data)
    yield {"alpha": models[best].alpha, "validation": scores[best], **found}


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Do what is not recorded yet, row by row."""
    done = {(r["dataset"], r["row"]) for r in records}
    for dataset in TASKS:
        for row in (row for row in ORDER if (dataset, row) not in done):
            measured = networks(dataset, row) if row in NETWORKS else others(dataset, row)
            about = {"dataset": dataset, "row": row, "versions": versions()}
            values = enumerate(ensembles(dataset) if row == ENSEMBLE else measured)
            yield [{**about, "seed": str(seed), "values": found} for seed, found in values]


#: Measurements by row, in the order of seeds.
Rows = dict[str, list[Record]]


def by_row(records: list[Record], dataset: str) -> Rows:
    """Records of a data set."""
    found = sorted((r for r in records if r["dataset"] == dataset), key=lambda r: int(r["seed"]))
    return {row: [r["values"] for r in found if r["row"] == row] for row in ORDER}


def values(rows: Rows, row: str, variant: str, column: str) -> list[float]:
    """One value for each seed."""
    return [record[variant][column] for record in rows[row]]


def show(found: list[float]) -> str:
    """Mean and deviation."""
    return spread(found, ".2f" if statistics.mean(found) > 1 else ".4f")


def against(rows: Rows, row: str, variant: str, other: str, column: str) -> str:
    """Mean difference to another row as it is, seed by seed, and p of a paired t test.

    Ensembles overlap and trees have no randomness, so these have no p.
    """
    mine, theirs = values(rows, row, variant, column), values(rows, other, "plain", column)
    if len(mine) != len(theirs) or len(gaps := [a - b for a, b in zip(mine, theirs, strict=True)]) < 2:
        return "-"
    if len(set(gaps)) < 2:
        return "-"
    gap = f"{statistics.mean(gaps):+.{2 if statistics.mean(theirs) > 1 else 4}f}"
    return gap if row in (ENSEMBLE, "boosted trees") else f"{gap} (p = {paired_p(gaps):.1g})"


def tables(dataset: str, rows: Rows) -> list[str]:
    """Every row with and without clipping; then how often predictions leave the range, and its luck."""
    variants = ("plain", "clipped 0")
    head = [
        "",
        "average",
        "worst",
        "average, clipped",
        "worst, clipped",
        "worst, against ERM",
        "the same, clipped",
    ]
    plain = [
        [row]
        + [
            show(values(rows, row, variant, column))
            for variant in variants
            for column in ("average", "worst")
        ]
        + [against(rows, row, variant, "erm", "worst") for variant in variants]
        for row in rows
    ]
    wide = ["", "predictions outside, %", "largest row's share of the worst group's squared error, %"]
    wide += ["worst, clipped", "widened by 5 %", "by 10 %", "by 25 %"]
    ranges = []
    for row, found in rows.items():
        shares = [f"{100 * statistics.mean(r[key] for r in found):.0f}" for key in ("outside", "largest_row")]
        margins = MARGINS[:1] if row == ENSEMBLE else MARGINS
        cells = [show(values(rows, row, f"clipped {margin:g}", "worst")) for margin in margins]
        ranges.append([row, *shares, *cells, *["-"] * (4 - len(cells))])
    green = ("green", "plain", "noise as green")
    gaps = "; ".join(f"{column} {against(rows, *green, column)}" for column in ("average", "worst"))
    return [
        *(f"### {dataset}", "", *table(head, plain), ""),
        *(f"### {dataset}: the range", "", *table(wide, ranges), ""),
        *(f"Green's bridges against noise of the same law, seed by seed: {gaps}.", ""),
    ]


def blocks(records: list[Record]) -> dict[str, str]:
    """All tables."""
    lines = [line for dataset in TASKS for line in tables(dataset, by_row(records, dataset))]
    return {"tables": "\n".join(lines).rstrip()}


STUDY = Study("regression_controls", blocks, ("dataset", "row"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
