"""Study: what does ``elliptica compare`` say about real tables, and is its model worth keeping?

Tables, targets, options and shifts were written down before the first run::

    python studies/compare_tables.py run      # everything that is not recorded yet
    python studies/compare_tables.py table    # only the page, from the records
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn import datasets, metrics
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from common import ROOT, Record, Study, table

#: CSV files and models.
WORK = ROOT / "data" / "compare"
MODELS = ("saved winner", "HistGradientBoosting", "MLP")


class Example(NamedTuple):
    """A table, its target, options of ``elliptica compare``, and those that ask about a shift, by name.

    Rows with equal values of the column ``together`` are put aside together.
    """

    package: str
    target: str
    title: str
    shifts: Mapping[str, tuple[str, ...]]
    options: tuple[str, ...] = ()
    together: str | None = None


FAR = {"extrapolate": ("--extrapolate", "auto")}
LATER = {"time": ("--time", "Year"), **FAR}
UNSEEN = {"unseen occupation": ("--split-by", "occupation"), **FAR}
PERSON = {"unseen person": ("--split-by", "individual")}
MODE = ("--group", "mode", "--group-as-input")
EXAMPLES = {
    "diabetes": Example("sklearn", "target", "progression of diabetes", FAR, ("--group", "sex")),
    "breast_cancer": Example("sklearn", "target", "breast cancer, two classes", FAR),
    "digits": Example("sklearn", "target", "handwritten digits", FAR),
    "cars": Example("vega", "Miles_per_Gallon", "fuel consumption of cars", LATER),
    "seattle_weather": Example("vega", "weather", "weather in Seattle", {"time": ("--time", "date")}),
    "fair": Example("statsmodels", "affairs", "extramarital affairs, heavy tail", UNSEEN),
    "modechoice": Example(
        "statsmodels", "choice", "choice of a way to travel, four rows a person", PERSON, MODE, "individual"
    ),
    "randhie": Example("statsmodels", "mdvis", "visits to a doctor, counts with a heavy tail", FAR),
}
CELLS = [(name, shift) for name, example in EXAMPLES.items() for shift in ("random rows", *example.shifts)]


def load(name: str) -> pd.DataFrame:
    """Read a table from its package; classes of scikit-learn's breast cancer by name."""
    package = EXAMPLES[name].package
    if package == "vega":
        return getattr(import_module("vega_datasets").local_data, name)()
    if package == "statsmodels":
        return getattr(import_module("statsmodels.api").datasets, name).load_pandas().data
    options = {"scaled": False} if name == "diabetes" else {}
    loaded = getattr(datasets, f"load_{name}")(as_frame=True, **options)
    if name == "breast_cancer":
        return loaded.frame.assign(target=np.asarray(loaded.target_names)[loaded.target])
    return loaded.frame


def split(frame: pd.DataFrame, together: str | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Put a fifth of the rows aside, at random."""
    rows = frame[together] if together else frame.index.to_series()
    keys = np.random.default_rng(0).permutation(rows.unique())
    held = rows.isin(keys[: round(len(keys) / 5)].tolist())
    return frame[~held], frame[held]


def scikit_learn_models(is_class: bool) -> dict[str, Any]:
    """Boosted trees and a perceptron with their defaults, as anybody would write them."""
    number, text = make_column_selector(dtype_include="number"), make_column_selector(dtype_exclude="number")
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan, max_categories=200)
    indicators = OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=50, sparse_output=False)
    scaled = make_pipeline(SimpleImputer(), StandardScaler())
    trees = (HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor)(random_state=0)
    net = (MLPClassifier if is_class else MLPRegressor)(random_state=0, max_iter=500)
    for_trees = make_column_transformer((codes, text), remainder="passthrough")
    for_net = make_column_transformer((scaled, number), (indicators, text))
    return dict(zip(MODELS[1:], (make_pipeline(for_trees, trees), make_pipeline(for_net, net)), strict=True))


def _as_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Dates as days, for models that do not know them."""
    dates = frame.select_dtypes("datetime").columns
    return frame.assign(**{c: frame[c].astype("int64") / 86_400e6 for c in dates})


def command(*arguments: str) -> None:
    """Run a command as a user does, in the folder of the tables, so that no path of this machine is kept."""
    subprocess.run([sys.executable, "-m", "elliptica", *arguments], cwd=WORK, check=True)


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Compare on each table, as it is and under its shifts; then the rows that were put aside."""
    for name, shift in STUDY.missing(records, CELLS):
        example, out = EXAMPLES[name], f"{name}-{shift.replace(' ', '-')}"
        train, held = split(load(name), example.together)
        WORK.mkdir(parents=True, exist_ok=True)
        train.to_csv(WORK / f"{name}.csv", index=False)
        shutil.rmtree(WORK / out, ignore_errors=True)
        options = (*example.options, *example.shifts.get(shift, ()), "--out", out)
        command("compare", f"{name}.csv", "--target", example.target, *options)
        content = json.loads((WORK / out / "results.json").read_text(encoding="utf-8"))
        record = {"table": name, "shift": shift, "about": content["about"], "command": content["command"]}
        record |= {key: content["summary"][key] for key in ("scores", "cells", "verdict", "saved")}
        if shift == "random rows":
            record["aside"] = aside(name, content["about"]["task"], train, held, f"{out}/model.elliptica")
        yield [record]


def aside(name: str, task: str, train: pd.DataFrame, held: pd.DataFrame, model: str) -> dict[str, float]:
    """Errors of the saved winner and of scikit-learn's models on the rows that were put aside."""
    target, is_class = EXAMPLES[name].target, task == "classification"
    train, held = train.dropna(subset=[target]), held.dropna(subset=[target])
    held.drop(columns=target).to_csv(WORK / f"{name}-aside.csv", index=False)
    command("predict", model, f"{name}-aside.csv", "--out", f"{name}-predictions.csv")
    predictions = {MODELS[0]: pd.read_csv(WORK / f"{name}-predictions.csv")["prediction"].to_numpy()}
    for kind, estimator in scikit_learn_models(is_class).items():
        estimator.fit(_as_numbers(train.drop(columns=target)), train[target])
        predictions[kind] = estimator.predict(_as_numbers(held.drop(columns=target)))
    error = metrics.zero_one_loss if is_class else metrics.root_mean_squared_error
    return {"rows": len(held), **{kind: float(error(held[target], p)) for kind, p in predictions.items()}}


def blocks(records: list[Record]) -> dict[str, str]:
    """The tables of the page."""
    kept, wins = [], []
    for record in sorted(records, key=lambda r: CELLS.index((r["table"], r["shift"]))):
        name, about, headline = record["table"], record["about"], record["verdict"]["headline"]
        saved = f"{about['rows']:,}", record["saved"]
        wins.append([name, record["shift"], *saved, headline.replace("|", "/")])
        if errors := record.get("aside"):
            kind, form = ("wrong", ".1%") if about["task"] == "classification" else ("RMSE", ".4g")
            change = errors[MODELS[0]] / min(errors[name] for name in MODELS[1:]) - 1
            row = [f"{name}: {EXAMPLES[name].title}", f"{errors['rows']:,}", kind]
            kept.append([*row, *(f"{errors[model]:{form}}" for model in MODELS), f"{change:+.1%}"])
    lines = ["## Rows put aside", ""]
    lines += table(["table", "rows aside", "error", *MODELS, "against the better"], kept, "lrl")
    lines += ["", "## What wins, and under which shift", ""]
    lines += table(["table", "shift", "rows", "method named", "verdict"], wins, "llrll")
    return {"tables": "\n".join(lines)}


STUDY = Study("compare", blocks, ("table", "shift"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
