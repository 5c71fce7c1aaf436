"""Study: what do simple controls give on SkillCraft and Crime (paper: Table 5)?

Loaders, network, schedule and the choice of the epoch are those of Table 5. Needs ELLIPTICA_DATA::

    python studies/regression_controls.py run      # what is not recorded yet (twenty minutes), then the page
    python studies/regression_controls.py table    # the page from the records
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from torch import Tensor, nn

import elliptica
import green_bridge
from common import Record, Study, Values, paired_p, rounded, spread, table
from elliptica.baselines import InputNoise
from elliptica.lab.data import Dataset, Split
from elliptica.lab.experiments.metrics import reduce_by
from elliptica.lab.experiments.records import versions
from green_bridge import SEEDS, Build, Stack

#: As in Table 5. Elliptic training takes one point of each bridge, with partners by distance from all rows.
TASKS = {
    "skillcraft": green_bridge.TASKS["skillcraft"],
    "crime": green_bridge.TASKS["crime"]._replace(epochs=100),
}
#: Added before the logarithm: latencies are positive; rates of crime are hundredths and may be 0.
SHIFT = {"skillcraft": 0.0, "crime": 0.01}
#: How far the range of the training targets is widened, as a share of it.
MARGINS = (0.0, 0.05, 0.1, 0.25)
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
ENSEMBLE, TREES = "erm, ensemble of 9", "boosted trees"
#: In the order of the tables.
ORDER = (*NETWORKS, ENSEMBLE, TREES, "ridge")


class LogStack(Stack):
    """Networks that learn ``log(y + shift)``."""

    shift: float

    def predict(self, parts: list[Split]) -> Tensor:
        """Predictions in the original units."""
        return super().predict(parts).exp() - self.shift


def noise_objective(runs: Stack, law: str) -> tuple[nn.Module, Build | None]:
    """Noise without any bridge.

    ``"green"``: the noise of Green's bridge to a partner by distance, at a uniform time; ``"normal"``: normal
    noise of the same variance, the mean over pairs and times.
    """

    def build(split: Split) -> elliptica.PartnerTable:
        return elliptica.PartnerTable(split.x, power=1.0)

    if law == "green":
        return InputNoise(runs.model, runs.loss, sigma="green", law="bridge"), build
    partners, draws, green = runs.partners(build), torch.Generator().manual_seed(0), elliptica.Green()
    everywhere = (torch.arange(runs.train[0].n_rows) + runs.first).flatten()
    ends = [runs.x[partners(everywhere, draws)] for _ in range(10)]
    std = torch.cat([green(runs.x[everywhere], end, generator=draws) for end in ends])
    deviation = math.sqrt(float(std.double().square().mean()) / 6)  # s (1 - s) is a sixth on average
    return InputNoise(runs.model, runs.loss, sigma=deviation), None


def train(dataset: str, row: str, seeds: list[int]) -> Tensor:
    """Train networks side by side; predict the test rows at the epoch of the lowest validation RMSE."""
    method = NETWORKS[row]
    runs = (LogStack if "log" in method else Stack)(TASKS[dataset], seeds)
    if isinstance(runs, LogStack):
        runs.shift = SHIFT[dataset]
        runs.y = (runs.y + runs.shift).log()
    is_noise = method["name"] == "noise"
    objective = noise_objective(runs, method["law"]) if is_noise else green_bridge.objective(runs, method)
    return runs.fit(*objective).output[..., 0]


def measure(members: Tensor, data: Dataset) -> Record:
    """Errors with and without clipping, how often predictions leave the range, and what one row carries.

    Predictions are means of those of the members, which are clipped before, as `EllipticRegressor` does.
    """
    y, group, predictions = data.test.y.flatten().double(), data.test.group, members.mean(0)
    assert group is not None
    low, high = float(data.train.y.min()), float(data.train.y.max())
    record: Record = {"plain": _errors(predictions, y, group)}
    for margin in MARGINS:
        extra = margin * (high - low)
        record[f"clipped {margin:g}"] = _errors(members.clamp(low - extra, high + extra).mean(0), y, group)
    inside = (predictions - y).square()[group == record["plain"]["group"]]
    record["outside"] = float(((predictions < low) | (predictions > high)).double().mean())
    return rounded({**record, "largest_row": float(inside.max() / inside.sum())}, 6)


def _errors(predictions: Tensor, y: Tensor, group: Tensor) -> Record:
    squares = (predictions - y).square()
    by_group = reduce_by(squares, group, lambda values: float(values.mean().sqrt()))
    worst = max(by_group, key=lambda g: by_group[g])
    return {"average": float(squares.mean().sqrt()), "worst": by_group[worst], "group": int(worst)}


def predict(dataset: str, row: str, data: Dataset) -> Iterator[Tensor]:
    """Predictions of the members of each seed: one of most rows, nine others of an ensemble.

    Boosted trees have scikit-learn's defaults; the penalty of ridge regression is chosen on validation.
    """
    if row in NETWORKS:
        # in a hidden layer C-Mixup joins rows and partners: networks side by side would take them for rows
        is_alone = row == "c-mixup" and TASKS[dataset].manifold is not None
        for seeds in [[seed] for seed in SEEDS] if is_alone else [SEEDS]:
            yield from train(dataset, row, seeds)[:, None]
    elif row == ENSEMBLE:  # of all seeds but one, so that ensembles overlap
        networks = train(dataset, "erm", SEEDS)
        yield from (networks[torch.arange(len(SEEDS)) != seed] for seed in SEEDS)
    else:
        x, held, test = (part.x.double().numpy() for part in (data.train, data.validation, data.test))
        y, wanted = (part.y.double().numpy().ravel() for part in (data.train, data.validation))
        if row == TREES:  # hardly anything in them is random
            models = [HistGradientBoostingRegressor(random_state=seed).fit(x, y) for seed in SEEDS]
        else:
            models = [Ridge(alpha=alpha).fit(x, y) for alpha in np.logspace(-3, 3, 13).tolist()]
            models = [min(models, key=lambda model: np.mean((model.predict(held) - wanted) ** 2))]
        yield from (torch.from_numpy(model.predict(test))[None].double() for model in models)


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Do what is not recorded yet, row by row."""
    for dataset, row in STUDY.missing(records, [(dataset, row) for dataset in TASKS for row in ORDER]):
        data, about = TASKS[dataset].load(0), {"dataset": dataset, "row": row, "versions": versions()}
        measured = enumerate(measure(members, data) for members in predict(dataset, row, data))
        yield [{**about, "seed": str(seed), "values": values} for seed, values in measured]


def tables(dataset: str, values: Values) -> list[str]:
    """Every row with and without clipping; then how often predictions leave the range, and its luck."""

    def show(row: str, what: str) -> str:
        errors = values(dataset, row, of=f"values.{what}")
        return spread(errors, ".2f" if statistics.mean(errors) > 1 else ".4f")

    def against(row: str, what: str, other: str = "erm") -> str:
        """Mean difference to another row as it is, seed by seed, and p of a paired t test.

        Ensembles overlap and trees have no randomness, so these have no p. Ridge regression has no seeds.
        """
        ours = values(dataset, row, of=f"values.{what}")
        theirs = values(dataset, other, of=f"values.plain.{what.rpartition('.')[2]}")
        gaps = [a - b for a, b in zip(ours, theirs, strict=False)]
        if len(set(gaps)) < 2:
            return "-"
        gap = f"{statistics.mean(gaps):+.{2 if statistics.mean(theirs) > 1 else 4}f}"
        return gap if row in (ENSEMBLE, TREES) else f"{gap} (p = {paired_p(gaps):.1g})"

    head = ["", "average", "worst", "average, clipped", "worst, clipped"]
    head += ["worst, against ERM", "the same, clipped"]
    wide = ["", "predictions outside, %", "largest row's share of the worst group's squared error, %"]
    wide += ["worst, clipped to the range widened by 5 %", "by 10 %", "by 25 %"]
    errors, ranges = [], []
    for row in ORDER:
        scores = [show(row, f"{v}.{c}") for v in ("plain", "clipped 0") for c in ("average", "worst")]
        errors.append([row, *scores, *(against(row, f"{v}.worst") for v in ("plain", "clipped 0"))])
        shares = (values(dataset, row, of=f"values.{name}") for name in ("outside", "largest_row"))
        wider = ["-" if row == ENSEMBLE else show(row, f"clipped {m:g}.worst") for m in MARGINS[1:]]
        ranges.append([row, *(f"{100 * statistics.mean(share):.0f}" for share in shares), *wider])
    gaps = "; ".join(f"{c} {against('green', f'plain.{c}', 'noise as green')}" for c in ("average", "worst"))
    return [
        *(f"### {dataset}", "", *table(head, errors), ""),
        *(f"### {dataset}: the range", "", *table(wide, ranges), ""),
        *(f"Green's bridges against noise of the same law, seed by seed: {gaps}.", ""),
    ]


def blocks(records: list[Record]) -> dict[str, str]:
    """All tables."""
    values = Values(records, "dataset", "row")
    lines = [line for dataset in TASKS for line in tables(dataset, values)]
    return {"tables": "\n".join(lines).rstrip()}


STUDY = Study("regression_controls", blocks, ("dataset", "row"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
