"""Study: does the chord ratio tell, before training, where mixing rows hurts? On tables that it has not seen.

Tables, sizes, methods, thresholds and tests were committed before the first run::

    python studies/half_way.py run      # everything that is not recorded yet
    python studies/half_way.py table    # only the page, from the records
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed
from scipy import stats
from sklearn.metrics import roc_auc_score

from common import Record, Study, rounded, shipped, table
from elliptica.core.chord import MOST_NOISE
from elliptica.estimators import EllipticRegressor
from elliptica.tables.comparison import Options, Session

#: Training rows, with how many draws of them are taken; the last one is as many as there are, up to 10,000.
SIZES = {200: 6, 1_000: 3, 10_000: 1}
#: Share of a table that may be trained on, rows that are tested at most, and the least size of the last kind.
MOST_ROWS, SHARE, MOST_TESTED, LARGE = 20_000, 0.75, 5_000, 2_000
#: Methods of compare, tuned alike, beside tuned ordinary training; settings of the estimator beside its own.
TUNED = {"mixup": "mixup", "c-mixup": "C-Mixup", "elliptic": "elliptic", "noise": "input noise"}
UNTUNED = {"half_way:Default": "elliptic, default", "half_way:Paper": "elliptic, paper"}
PLAIN = "half_way:Plain"
MIXING, LABELS = ("mixup", "c-mixup", "elliptic", *UNTUNED), {"erm": "ordinary training", **TUNED, **UNTUNED}
#: More than this above ordinary training is a harm; above and below these, the ratio speaks.
HARM, HURTS, HARMLESS = 1.02, 0.7, 0.3


@dataclass(kw_only=True, eq=False, repr=False)
class Plain(EllipticRegressor):
    """Ordinary training with the defaults of the estimator, stopped early."""

    method: str = "erm"
    early_stopping: bool = True
    max_iter: int = 200


@dataclass(kw_only=True, eq=False, repr=False)
class Default(Plain):
    """Elliptic training with the defaults."""

    method: str = "elliptic"


@dataclass(kw_only=True, eq=False, repr=False)
class Paper(Default):
    """Elliptic training on whole paths, with the paper's usual sigma."""

    sampling: Any = "path"
    sigma: Any = 0.05


def load(name: str) -> pd.DataFrame:
    """Load a table of ``tables.toml``: its inputs and its target, at most 20,000 rows."""
    entry = TABLES[name]
    package, _, item = entry["source"].partition(":")
    if package == "uqtestfuns":
        return simulate(item, entry["rows"])
    if item:
        frame = import_module(package).data(*item.split("/")).drop(columns="rownames", errors="ignore")
    else:
        frame = pd.read_csv(shipped(package))
    if "time" in entry:
        frame["time"] = pd.to_datetime(frame[entry["time"]])
    if "from" in entry:
        begin, step = entry["from"]
        frame["time"] = pd.date_range(begin, periods=len(frame), freq=step)
    for column, form in entry.get("dates", {}).items():
        frame[column] = pd.to_datetime(frame[column], format=form)
    frame = frame.drop(columns=[*entry.get("drop", "").split(), *entry.get("time", ())])
    frame = frame.dropna(subset=[entry["target"]])
    return frame.sample(min(MOST_ROWS, len(frame)), random_state=0)


def simulate(name: str, n_rows: int) -> pd.DataFrame:
    """Evaluate an engineering function at random inputs, with noise of a tenth of its deviation."""
    draws, function = np.random.default_rng(0), getattr(import_module("uqtestfuns"), name)()
    x = function.prob_input.get_sample(n_rows, draws)
    y = np.asarray(function(x)).reshape(n_rows)
    frame = pd.DataFrame(x, columns=[marginal.name for marginal in function.prob_input.marginals])
    return frame.assign(target=y + 0.1 * y.std() * draws.standard_normal(n_rows))


def cells() -> Iterator[tuple[str, int, int, int]]:
    """Table, training rows, number of the draw, and factor on the lengths of training."""
    for name in TABLES:
        n_rows = len(load(name))
        for size, n_draws in SIZES.items():
            used = min(size, int(SHARE * n_rows))
            if used == size or (size == max(SIZES) and used >= LARGE):
                yield from ((name, size, draw, 1) for draw in range(n_draws))
                if size > min(SIZES):
                    yield name, size, 0, 2


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Train everything that is not recorded, two cells at a time."""
    todo = delayed(train)
    parallel = Parallel(n_jobs=2, return_as="generator_unordered")
    yield from ([record] for record in parallel(todo(*cell) for cell in STUDY.missing(records, cells())))


def train(name: str, size: int, draw: int, budget: int) -> Record:
    """Compare the methods on some rows of a table, and test them on the others."""
    torch.set_num_threads(1)
    frame = load(name)
    rows = np.random.default_rng(draw).permutation(len(frame))
    n_train = min(size, int(SHARE * len(frame)))
    methods = [*TUNED, *UNTUNED, PLAIN] if budget == 1 else list(TUNED)
    options = Options(
        test=frame.iloc[rows[n_train : n_train + MOST_TESTED]],
        **{"methods": methods, "repeats": 1, "random": False, "task": "regression", "jobs": 1},
    )
    session = Session.open(frame.iloc[rows[:n_train]], TABLES[name]["target"], options)
    plan = session.plan
    longer = {key: budget * getattr(plan, key) for key in ("epochs", "patience", "first_epochs")}
    session.plan = replace(plan, **longer)
    session.run()
    result = session.result()
    record = {"table": name, "size": size, "draw": draw, "budget": budget, "rows": n_train}
    if budget == 1:
        begin = time.perf_counter()
        measured = result.chord
        assert measured is not None
        record |= {"chord": asdict(measured), "seconds": time.perf_counter() - begin}
    errors = {method: result.scores[method]["rmse"] for method in result.methods}
    return rounded(record | {"errors": errors, "failed": [*result.failed]})


def cases(records: list[Record]) -> pd.DataFrame:
    """Return, by table and size, the ratio and its controls, and the error of each method over ordinary."""
    frame = pd.json_normalize(records)
    logs = {}
    for method in [*TUNED, *UNTUNED]:
        against = PLAIN if method in UNTUNED else "erm"
        if f"errors.{method}" in frame:
            logs[method] = np.log(frame[f"errors.{method}"] / frame[f"errors.{against}"])
    chords = frame.filter(like="chord.")
    places = [pd.Categorical(frame["table"], TABLES), frame["size"]]
    means = np.exp(pd.DataFrame(logs).groupby(places, observed=True).mean())
    return chords.groupby(places, observed=True).median().join(means, how="right")


def summary(some: pd.DataFrame, size: int, method: str) -> list[str]:
    """Return one line: how well the ratio and its controls tell where a method harms."""
    harm, ratio, known = some[method], some["chord.ratio"], some["chord.noise"] <= MOST_NOISE
    hurt = harm > HARM
    line = [f"{size:,}", LABELS[method], f"{len(harm)}", f"{geometric_mean(harm):.3f}", f"{hurt.sum()}"]
    line.append(f"{stats.spearmanr(ratio, harm).statistic:.2f}")
    line += [
        f"{roc_auc_score(hurt, score):.2f}" for score in (ratio, some["chord.bend"], -some["chord.noise"])
    ]
    called, cleared = known & (ratio > HURTS), known & (ratio < HARMLESS)
    line += [f"{hurt[called].sum()} of {called.sum()}", f"{(~hurt[cleared]).sum()} of {cleared.sum()}"]
    gated = harm.where(ratio < HARMLESS, 1.0)
    return [*line, f"{geometric_mean(gated):.3f}", f"{(gated > HARM).sum()}"]


def blocks(records: list[Record]) -> dict[str, str]:
    """The tables of the page."""
    once = [r for r in records if r["budget"] == 1]
    every = cases(once)
    head = ["rows", "method", "tables", "error / ordinary", "harmed", "Spearman"]
    head += ["AUC: ratio", "curve over line", "low noise", "*hurts* right", "*harmless* right"]
    methods, shown = [*MIXING, "noise"], {"ratio": ".2g", "bend": "+.2f", "noise": ".2f"}
    lines = [summary(every.xs(size, level=1), size, method) for size in SIZES for method in methods]
    text = ["## Does it tell?", "", *table([*head, "rule: error", "rule: harmed"], lines, "rl")]
    text += ["", "## Longer training", "", *table(*longer(records), "rl"), "", "## Every table", ""]
    rows = [
        [name, f"{size:,}", *(f"{row[f'chord.{key}']:{form}}" for key, form in shown.items())]
        + [f"{row[method]:.3f}" for method in methods]
        for (name, size), row in every.iterrows()
    ]
    head = ["table", "rows", "chord ratio", "curve over line", "noise", *(LABELS[m] for m in methods)]
    seconds = pd.DataFrame(once).groupby("size")["seconds"].median()
    words = ", ".join(f"{value:.1f} s at {size:,} rows" for size, value in seconds.items())
    text += [*table(head, rows), "", f"Seconds of the chord ratio, one thread, median: {words}."]
    return {"tables": "\n".join(text)}


def longer(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Return what twice the epochs and patience change: errors, and harms, of the same first draw."""
    frame = pd.json_normalize([r for r in records if r["draw"] == 0]).set_index(["size", "table"])
    rows = []
    for size in [size for size in SIZES if size > min(SIZES)]:
        part = frame.loc[size]
        first, twice = part[part.budget == 1], part[part.budget == 2]
        for method in ("erm", "mixup", "elliptic"):
            ratio = twice[f"errors.{method}"] / first[f"errors.{method}"]
            changed = ((ratio - 1).abs() > HARM - 1).sum()
            harms = [geometric_mean(each[f"errors.{method}"] / each["errors.erm"]) for each in (first, twice)]
            row = [f"{size:,}", LABELS[method], f"{len(ratio)}", f"{geometric_mean(ratio):.3f}", f"{changed}"]
            rows.append([*row, *(f"{value:.3f}" for value in harms)])
    head = ["rows", "method", "tables", "twice / once", "changed by more than 2 %"]
    return [*head, "error / ordinary, once", "twice"], rows


STUDY = Study("half_way", blocks, ("table", "size", "draw", "budget"))
TABLES = tomllib.loads((STUDY.folder / "tables.toml").read_text(encoding="utf-8"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
