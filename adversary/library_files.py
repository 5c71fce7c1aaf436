"""Hostile tables and settings for the estimators, and damaged files of every kind that the product reads."""

from __future__ import annotations

import contextlib
import copy
import csv
import dataclasses
import datetime
import decimal
import functools
import gzip
import hashlib
import io
import itertools
import json
import math
import pickle
import shutil
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from math import inf, nan
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import polars as pl
import scipy.sparse
import tomllib
import torch
from hypothesis import strategies as st
from PIL import Image
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from torch import nn

import elliptica
from adversary import cases
from adversary.cases import (
    BAD,
    CLEAR,
    ODD,
    SOURCE,
    Case,
    Choice,
    Wrong,
    bad,
    check,
    fine,
    just,
    odd,
    outcome_of,
    target,
)
from adversary.files import BYTES, JSON, PLACES, ZIPS, members_of, safetensors, zip_of
from elliptica import Green
from elliptica.compare import compare
from elliptica.compare.page import comparison_report
from elliptica.compare.plan import Plan
from elliptica.compare.problem import make_problem
from elliptica.compare.store import Store
from elliptica.compare.summary import summarise
from elliptica.compare.table import read_table
from elliptica.distributed import load_checkpoint, save_checkpoint
from elliptica.estimators import (
    BridgeOverSampler,
    EllipticClassifier,
    EllipticRegressor,
    TablePreprocessor,
    load,
    read_notes,
    save,
)
from elliptica.lab.data import fashion, medmnist, tabular
from elliptica.lab.data.images import read_rgb
from elliptica.lab.data.pickles import load_plain_pickle
from elliptica.lab.experiments.page import runs_report
from elliptica.lab.experiments.record_folder import read_folder
from elliptica.lab.experiments.records import problem_of, read_record
from elliptica.lab.experiments.specification import load_specification, runs
from elliptica.partner_index import PartnerIndex
from elliptica.report.page import render_page

ROWS, FEATURES = 24, 3


def _numbers(case: Case, rows: int = ROWS, features: int = FEATURES) -> np.ndarray:
    """Draw an ordinary table."""
    return case.normal(rows, features, dtype=torch.float64).numpy()


def _with(value: Any, dtype: Any = np.float64) -> Callable[[Case], np.ndarray]:
    """Put one value into an ordinary table."""

    def make(case: Case) -> np.ndarray:
        x = _numbers(case).astype(dtype)
        x[5, 1] = value
        return x

    return make


def _frame(
    make: Callable[..., Any] = pd.DataFrame, **more: Callable[[int], list[Any]]
) -> Callable[[Case], Any]:
    """Make a frame of two columns of numbers and others."""

    def made(case: Case) -> Any:
        x = _numbers(case)
        return make({"a": x[:, 0], "b": x[:, 1], **{k: v(ROWS) for k, v in more.items()}})

    return made


def _words(n: int) -> list[str]:
    return ["red", "green", "blue"] * (n // 3)


def _days(n: int) -> list[datetime.date]:
    return [datetime.date(2020, 1, 1) + datetime.timedelta(days=9 * i) for i in range(n)]


def _gaps(n: int) -> list[float | None]:
    return [None if i == 4 else float(i) for i in range(n)]


def _named(names: Sequence[Any]) -> Callable[[Case], pd.DataFrame]:
    return lambda case: pd.DataFrame(_numbers(case), columns=list(names))


#: Tables for estimators: numbers, dense and finite.
TABLES = (
    fine("float64", _numbers),
    fine("float32", lambda case: _numbers(case).astype(np.float32)),
    fine("float16", lambda case: _numbers(case).astype(np.float16)),
    fine("integers", lambda case: (_numbers(case) * 5).astype(np.int64)),
    fine("int8", lambda case: (_numbers(case) * 20).astype(np.int8)),
    fine("booleans", lambda case: _numbers(case) > 0),
    fine("big-endian", lambda case: _numbers(case).astype(">f8")),
    fine("Fortran order", lambda case: np.asfortranarray(_numbers(case))),
    fine("every second row", lambda case: _numbers(case, 2 * ROWS)[::2]),
    fine("backwards", lambda case: _numbers(case)[::-1, ::-1]),
    fine("transposed", lambda case: _numbers(case, FEATURES, ROWS).T),
    fine("read-only", lambda case: np.broadcast_to(_numbers(case, 1), (ROWS, FEATURES))),
    fine("lists", lambda case: _numbers(case).tolist()),
    fine("objects that are numbers", lambda case: _numbers(case).astype(object)),
    fine("pandas", _frame()),
    fine("pandas with an odd index", lambda case: _frame()(case).set_index(np.array([7] * ROWS))),
    fine(
        "pandas Int64",
        lambda case: pd.DataFrame((_numbers(case) * 9).astype(int), columns=list("abc")).astype("Int64"),
    ),
    fine("polars", _frame(pl.DataFrame)),
    fine("one column", lambda case: _numbers(case, ROWS, 1)),
    fine("many columns", lambda case: _numbers(case, ROWS, 60)),
    fine("constant column", lambda case: np.column_stack([_numbers(case), np.full(ROWS, 3.0)])),
    fine("all constant", lambda case: np.full((ROWS, FEATURES), -2.5)),
    fine("negative zeros", lambda case: _numbers(case).round() * -0.0),
    odd("scaled", lambda case, k: _numbers(case) * 10.0**k, st.integers(-320, 308)),
    odd("far from zero", lambda case, k: _numbers(case) + 10.0**k, st.integers(3, 308)),
    odd("one huge cell", lambda case, k: _with(10.0**k)(case), st.integers(20, 308)),
    odd("one row", lambda case: _numbers(case, 1)),
    odd("two rows", lambda case: _numbers(case, 2)),
    odd("long doubles", lambda case: _numbers(case).astype(np.longdouble)),
    odd("a tensor", lambda case: case.normal(ROWS, FEATURES)),
    odd("a tensor with a gradient", lambda case: case.normal(ROWS, FEATURES).requires_grad_()),
    odd("decimals", lambda case: [[decimal.Decimal(str(v)) for v in row] for row in _numbers(case).tolist()]),
    odd("masked", lambda case: np.ma.masked_array(_numbers(case), mask=_numbers(case) > 1)),
    odd("columns of one name", _named(["a", "a", "b"])),
    odd("numbered columns", _named([0, 1, 2])),
    odd("a long name", _named(["x" * 100_000, "\ud800", "\0"])),
    odd("strings of numbers", lambda case: _numbers(case).astype(str)),
    bad("names of two kinds", _named(["a", 1, 2.5])),
    bad("flat", lambda case: _numbers(case)[:, 0]),
    bad("a scalar", lambda case: np.float64(3)),
    bad("three axes", lambda case: _numbers(case)[:, :, None]),
    bad("no rows", lambda case: _numbers(case, 0)),
    bad("no columns", lambda case: _numbers(case, ROWS, 0)),
    bad("NaN", _with(np.nan)),
    bad("infinite", _with(np.inf)),
    bad("infinite float32", _with(-np.inf, np.float32)),
    bad("None inside", _with(None, object)),
    bad("a word inside", _with("red", object)),
    bad("a list inside", _with([1, 2], object)),
    bad("a huge integer inside", _with(10**400, object)),
    bad("complex", lambda case: _numbers(case) * 1j),
    bad("sparse", lambda case: scipy.sparse.csr_matrix(_numbers(case))),
    bad("sparse array", lambda case: scipy.sparse.coo_array(_numbers(case))),
    bad("a matrix", lambda case: np.asmatrix(_numbers(case))),
    bad("dates", lambda case: np.array(_days(ROWS), dtype="datetime64[D]")[:, None]),
    bad("records", lambda case: np.zeros(ROWS, dtype=[("a", "f8"), ("b", "f8")])),
    bad("None", lambda case: None),
    bad("a string", lambda case: "table.csv"),
    bad("a dict", lambda case: {"a": [1.0] * ROWS}),
    bad("ragged lists", lambda case: [[1.0, 2.0], [3.0]] * (ROWS // 2)),
    bad("pandas with words", _frame(pd.DataFrame, c=_words)),
    bad("pandas with dates", _frame(pd.DataFrame, c=_days)),
    bad("pandas with gaps", _frame(pd.DataFrame, c=_gaps)),
    bad(
        "pandas with categories", lambda case: _frame(pd.DataFrame, c=_words)(case).astype({"c": "category"})
    ),
    bad("polars with words", _frame(pl.DataFrame, c=_words)),
    bad("polars with dates", _frame(pl.DataFrame, c=_days)),
    bad("polars with gaps", _frame(pl.DataFrame, c=_gaps)),
    bad("a lazy frame", lambda case: _frame(pl.DataFrame)(case).lazy()),
)


def _size(case: Case, axis: int, usual: int) -> int:
    """Return a size of the case's table, or the usual one if it is no table."""
    try:
        return int(np.shape(case["x"])[axis])
    except (IndexError, TypeError, ValueError):
        return usual


_n = functools.partial(_size, axis=0, usual=ROWS)
_width = functools.partial(_size, axis=1, usual=FEATURES)


def _codes(case: Case, n: int = 3) -> np.ndarray:
    """Draw class numbers; all of them occur if there are enough rows."""
    rows = _n(case)
    return np.array([case.stream.randrange(n) if i >= n else i for i in range(rows)], dtype=np.int64)


def _labels(words: Sequence[Any], dtype: Any = None) -> Callable[[Case], np.ndarray]:
    return lambda case: np.array(words, dtype=dtype)[_codes(case, len(words))]


def _spoilt(make: Callable[[Case], np.ndarray], value: Any, dtype: Any) -> Callable[[Case], np.ndarray]:
    """Put one value among labels or targets."""

    def made(case: Case) -> np.ndarray:
        y = make(case).astype(dtype)
        y[-1] = value
        return y

    return made


#: Labels of a classifier.
LABELS = (
    fine("whole numbers", _codes),
    fine("two classes", lambda case: _codes(case, 2)),
    fine("strings", _labels(["no", "yes", "perhaps"])),
    fine("objects that are strings", _labels(["no", "yes", "perhaps"], object)),
    fine("booleans", _labels([False, True])),
    fine("uint8", lambda case: _codes(case).astype(np.uint8)),
    fine("negative numbers", lambda case: _codes(case) - 2),
    fine("large numbers", lambda case: _codes(case) + 2**62),
    fine("whole floats", lambda case: _codes(case).astype(np.float32)),
    fine("odd strings", _labels(["", " ", "\u202e\U0001f600", "x" * 300, "NaN"])),
    fine("a list", lambda case: _labels(["no", "yes"])(case).tolist()),
    fine("pandas", lambda case: pd.Series(_labels(["no", "yes"])(case), index=np.full(_n(case), 3))),
    fine("pandas categories", lambda case: pd.Series(_labels(["no", "yes"])(case), dtype="category")),
    fine("polars", lambda case: pl.Series("y", _labels(["no", "yes"])(case).tolist())),
    fine("a column", lambda case: _codes(case)[:, None]),
    fine("a class per row", lambda case: np.arange(_n(case))),
    fine("several labels", lambda case: np.stack([_codes(case, 2), _codes(case, 2), 1 - _codes(case, 2)], 1)),
    odd("one class", lambda case: np.zeros(_n(case), dtype=int)),
    odd("several constant labels", lambda case: np.zeros((_n(case), 2), dtype=int)),
    odd("sparse labels", lambda case: scipy.sparse.csr_matrix(np.stack([_codes(case, 2)] * 2, 1))),
    odd("bytes", _labels([b"no", b"yes"])),
    odd("dates", _labels(["2020-01-01", "2021-01-01"], "datetime64[D]")),
    odd("a mixed list", lambda case: [1 if v else "a" for v in _codes(case, 2)]),
    odd("a tensor", lambda case: torch.from_numpy(_codes(case))),
    odd("halves that are whole", lambda case: _codes(case).astype(np.float16)),
    bad("real numbers", lambda case: _codes(case) + 0.5),
    bad("NaN", _spoilt(_codes, np.nan, float)),
    bad("infinite", _spoilt(_codes, np.inf, float)),
    bad("None inside", _spoilt(_labels(["no", "yes"], object), None, object)),
    bad("NaN among strings", _spoilt(_labels(["no", "yes"], object), np.nan, object)),
    bad("pandas NA", lambda case: pd.Series(_spoilt(_labels(["no", "yes"], object), pd.NA, object)(case))),
    bad("mixed objects", _spoilt(_labels(["no", "yes"], object), 3, object)),
    bad("too few", lambda case: _codes(case)[:-1]),
    bad("too many", lambda case: np.append(_codes(case), 0)),
    bad("none", lambda case: np.empty(0)),
    bad("None", lambda case: None),
    bad("two columns of classes", lambda case: np.stack([_codes(case, 3), _codes(case, 3) + 1], 1)),
    bad("three axes", lambda case: _codes(case)[:, None, None]),
    bad("complex", lambda case: _codes(case) * 1j),
    bad("one string", lambda case: "yes"),
)


def _real(case: Case, *more: int) -> np.ndarray:
    """Draw ordinary targets."""
    return case.normal(_n(case), *more, dtype=torch.float64).numpy()


#: Targets of a regressor.
TARGETS_ = (
    fine("real numbers", _real),
    fine("positive", lambda case: np.exp(_real(case))),
    fine("float32", lambda case: _real(case).astype(np.float32)),
    fine("integers", lambda case: (_real(case) * 100).astype(np.int64)),
    fine("a list", lambda case: _real(case).tolist()),
    fine("pandas", lambda case: pd.Series(_real(case), index=np.full(_n(case), 3))),
    fine("polars", lambda case: pl.Series("y", _real(case))),
    fine("a column", lambda case: _real(case, 1)),
    fine("two columns", lambda case: _real(case, 2)),
    fine("constant", lambda case: np.full(_n(case), 7.25)),
    fine("objects that are numbers", lambda case: _real(case).astype(object)),
    fine("backwards", lambda case: _real(case)[::-1]),
    odd("scaled", lambda case, k: _real(case) * 10.0**k, st.integers(-320, 308)),
    odd("far from zero", lambda case, k: _real(case) + 10.0**k, st.integers(3, 308)),
    odd("one huge", lambda case, k: _spoilt(_real, 10.0**k, float)(case), st.integers(20, 308)),
    odd("booleans", lambda case: _real(case) > 0),
    odd("strings of numbers", lambda case: _real(case).astype(str)),
    odd("a tensor", lambda case: torch.from_numpy(_real(case))),
    odd("no column", lambda case: _real(case, 0)),
    bad("NaN", _spoilt(_real, np.nan, float)),
    bad("infinite", _spoilt(_real, -np.inf, float)),
    bad("None inside", _spoilt(_real, None, object)),
    bad("words", _labels(["no", "yes"])),
    bad("dates", lambda case: np.array(_days(_n(case)), dtype="datetime64[D]")),
    bad("complex", lambda case: _real(case) * 1j),
    bad("too few", lambda case: _real(case)[:-1]),
    bad("none", lambda case: np.empty(0)),
    bad("None", lambda case: None),
    bad("three axes", lambda case: _real(case, 1, 1)),
)

#: Weights of rows.
WEIGHTS = (
    fine("none", lambda case: None),
    fine("ones", lambda case: np.ones(_n(case))),
    fine("whole", lambda case: _codes(case) + 1),
    fine("real", lambda case: np.abs(_real(case)) + 0.1),
    fine("some zero", lambda case: np.arange(_n(case)) % 5 + 0.0 if _n(case) > 2 else np.ones(_n(case))),
    odd("tiny", lambda case, k: np.full(_n(case), 10.0**k), st.integers(-320, -10)),
    odd("huge", lambda case, k: np.full(_n(case), 10.0**k), st.integers(3, 308)),
    odd("only one", lambda case: (np.arange(_n(case)) == 0) * 1.0),
    odd("a number", lambda case: 2.0),
    bad("negative", lambda case: -np.ones(_n(case))),
    bad("all zero", lambda case: np.zeros(_n(case))),
    bad("NaN", lambda case: np.full(_n(case), np.nan)),
    bad("infinite", lambda case: np.full(_n(case), np.inf)),
    bad("too few", lambda case: np.ones(_n(case) + 1)),
    bad("words", lambda case: ["heavy"] * _n(case)),
    bad("two columns", lambda case: np.ones((_n(case), 2))),
)

#: Groups of rows.
GROUPS = (
    fine("none", lambda case: None),
    fine("numbers", lambda case: _codes(case, 2)),
    fine("strings", _labels(["north", "south", "east"])),
    fine("pandas", lambda case: pd.Series(_labels(["north", "south"])(case))),
    odd("one group", lambda case: np.zeros(_n(case))),
    odd("one per row", lambda case: np.arange(_n(case))),
    odd("NaN", _spoilt(_codes, np.nan, float)),
    odd("mixed objects", _spoilt(_labels(["no", "yes"], object), 3, object)),
    bad("too few", lambda case: np.zeros(_n(case) + 1)),
    bad("two columns", lambda case: np.zeros((_n(case), 2))),
)


class Own(nn.Module):
    """A network of the user's."""

    def __init__(self, n_features: int, n_outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(n_features, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, n_outputs)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs."""
        return self.layers(x)


def _settings(
    name: str, fine: Sequence[Any] = (), odd: Sequence[Any] = (), bad: Sequence[Any] = ()
) -> list[Choice]:
    """Make a choice of each value of a setting."""
    made = ((cases.fine, fine), (cases.odd, odd), (cases.bad, bad))
    return [make(f"{name}={_in_words(v)}", just({name: v})) for make, values in made for v in values]


def _in_words(value: Any) -> str:
    """Name a value the same way in every process."""
    text = getattr(value, "__name__", repr(value))
    return type(value).__name__ if " at 0x" in text else text[:40]


NOT_COUNTS = (0, -1, 1.5, "3", True, None, nan, inf, [2])
NOT_POSITIVE = (0, -1.0, "1", True, None, nan, inf, [0.1], np.array([0.1, 0.2]))
NOT_FLAGS = ("no", None, 2, nan, [True])

#: Settings of both estimators.
SHARED = [
    fine("default", just({})),
    *_settings("hidden", fine=[(), (3,), [4, 2], (np.int64(3),)]),
    *_settings("hidden", bad=[(0,), (-1,), (2.5,), ("4",), (True,), 8, None, "44", (nan,)]),
    *_settings("module", fine=[Own], bad=["Own", 3, int, nn.Linear(99, 98), nn.MSELoss(), lambda f, o: None]),
    *_settings("method", fine=["erm", "mixup", "noise"], bad=["ERM", "", None, 3, "ellpitic", ["erm"]]),
    *_settings(
        "sigma", fine=[0, 0.5, 1, "auto", 1e-30, np.float64(0.1), np.float32(0.1), "green", ("green", 0.5)]
    ),
    *_settings(
        "sigma", odd=[1e30, 1e-320, Green(), torch.tensor(0.1), torch.full((FEATURES,), 0.1), np.array(0.1)]
    ),
    *_settings("sigma", bad=[-0.1, nan, inf, "big", None, True, [0.1], ("green", -1), ("red", 1)]),
    *_settings("sigma_y", fine=[0, 0.3, None, np.float64(0.2)], odd=[1e30]),
    *_settings("sigma_y", bad=[-0.1, nan, inf, "auto", True, [0.1]]),
    *_settings("sampling", fine=["path", "marginal"], bad=["paths", None, 1]),
    *_settings("n_times", fine=[2, 3, 9, np.int64(4)], bad=[1, *NOT_COUNTS]),
    *_settings("n_bridges", fine=[1, 2, 3], bad=NOT_COUNTS),
    *_settings("horizon", fine=[0.5, 4], odd=[1e300, 1e-300], bad=NOT_POSITIVE),
    *_settings("pairing", fine=["permutation", "inverse_distance", "nearest"], bad=["nearby", None, 1]),
    *_settings("weighting", fine=["none", "gradient_softmax", "gradient_norm"]),
    *_settings("weighting", odd=["girsanov", "multiplicative", "released"], bad=["softmax", None, 0.5]),
    *_settings("xi", fine=[0.5, 2], bad=[nan, "1", None, True]),
    *_settings("standardize", fine=[True, False], bad=NOT_FLAGS),
    *_settings("max_iter", fine=[1, 3, np.int64(2)], bad=NOT_COUNTS),
    *_settings("batch_size", fine=[1, 2, 5, 1000, np.int32(7)], odd=[10**30], bad=NOT_COUNTS),
    *_settings("learning_rate", fine=[1e-30, 0.1, np.float64(0.01), 1], odd=[1e30, 1e-320, np.array(0.1)]),
    *_settings("learning_rate", bad=NOT_POSITIVE),
    *_settings("weight_decay", fine=[0, 0.1], odd=[1e30], bad=[-1, "0", True, None, nan, inf]),
    *_settings("early_stopping", fine=[False, True], bad=NOT_FLAGS),
    *_settings("validation_fraction", fine=[0.2, 0.5], odd=[1e-9, 0.999]),
    *_settings("validation_fraction", bad=[0, 1, -0.1, "0.1", True, None, nan, 2]),
    *_settings("n_iter_no_change", fine=[1, 5], bad=NOT_COUNTS),
    *_settings("tol", fine=[0, 0.1], bad=[-1, "0", None, nan, inf, True]),
    *_settings("n_networks", fine=[1, 2, 3], bad=NOT_COUNTS),
    *_settings("warm_start", fine=[True, False], bad=NOT_FLAGS),
    *_settings("random_state", fine=[3, np.int64(3), None], odd=[np.random.RandomState(3), True, np.random]),
    *_settings("random_state", bad=[-1, 1.5, "3", 2**40, [1], np.random.default_rng(0)]),
    *_settings("device", fine=["cpu", torch.device("cpu")], odd=["cpu:0", "meta"]),
    *_settings("device", bad=["gpu", "cuda:99", 5.5, None, "", "cpu:x"]),
    *_settings("verbose", fine=[False], bad=["no", None]),
    *_settings("alpha", fine=[0.5, None], odd=[-1, nan, "1", 0]),
    *_settings("eta", odd=[-1, nan, "1"]),
]

CLASSIFIER = (
    *SHARED,
    *_settings("method", fine=["smoothing", "groupdro", "lisa", "balanced"]),
    *_settings("class_weight", fine=[None, "balanced"], odd=[{0: 2, 1: 1, 2: 3}, {"no": 5}, {0: 0}]),
    *_settings("class_weight", bad=["blanced", 3, [1, 2], {0: -1}, {0: nan}, {0: "heavy"}]),
    *_settings("calibrate", fine=[None, "temperature"], bad=["isotonic", True, 1]),
    *_settings("smoothing", odd=[0, 1, -1, 2, nan, "1"]),
    *_settings("pairing", bad=["label_kernel"]),
)
REGRESSOR = (
    *SHARED,
    *_settings("method", fine=["c-mixup", "groupdro", "balanced"]),
    *_settings("pairing", fine=["label_kernel"]),
    *_settings("bandwidth", fine=[0.5, 3], odd=[-1, 0, nan, "1", None]),
    *_settings("bounded", fine=[True, False], bad=NOT_FLAGS),
    *_settings("target_transform", fine=[None], odd=["log"], bad=["sqrt", True, 2]),
)

#: Settings that matter to bridges only.
_OF_BRIDGES = {"sigma_y", "sampling", "n_times", "n_bridges", "horizon", "pairing", "weighting", "xi"}
_GROUPED = ("groupdro", "lisa", "balanced")

#: Rows to predict, and what is done to the model before.
ASKED = (
    fine("the same", lambda case: case["x"]),
    fine("permuted", lambda case: "permuted"),
    fine("one at a time", lambda case: "single"),
    bad("NaN", lambda case: np.full((2, _width(case)), np.nan)),
    bad("infinite", lambda case: np.full((2, _width(case)), np.inf)),
    bad("another width", lambda case: np.zeros((2, _width(case) + 1))),
    bad("none", lambda case: np.zeros((0, _width(case)))),
    bad("flat", lambda case: np.zeros(_width(case))),
    bad("words", lambda case: np.full((2, _width(case)), "red")),
    bad("other names", lambda case: pd.DataFrame(np.zeros((2, _width(case))), columns=_odd_names(case))),
    bad("None", lambda case: None),
    odd("huge", lambda case, k: np.full((2, _width(case)), 10.0**k), st.integers(10, 308)),
    odd("tiny", lambda case, k: np.full((2, _width(case)), 10.0**k), st.integers(-320, -10)),
)


def _odd_names(case: Case) -> list[str]:
    if not hasattr(case["x"], "columns"):
        case.owe(ODD)
        case.excuse()  # a frame for a model that knows no names
    return [f"other {j}" for j in range(_width(case))]


def _take_rows(table: Any, rows: Any) -> Any:
    """Select rows of a table of any kind."""
    if isinstance(table, pd.DataFrame | pd.Series):
        return table.iloc[rows]
    if isinstance(table, list | tuple):
        return [table[i] for i in rows]
    return table[rows]


def _order(n: int) -> np.ndarray:
    return np.random.RandomState(1).permutation(n)


def _same_bytes(a: Any, b: Any) -> bool:
    """Return whether two results agree bit for bit; -0 differs from 0."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind == "O" or b.dtype.kind == "O":
        return bool(a.shape == b.shape and (a == b).all())
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _snapshot(value: Any) -> Any:
    """Copy what the caller passes, to see whether it was changed."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.deepcopy(value) if isinstance(value, pd.DataFrame | pd.Series | list) else None


def _unchanged(before: Any, after: Any) -> bool:
    if before is None:
        return True
    if isinstance(before, pd.DataFrame | pd.Series):
        return bool(before.equals(after))
    if isinstance(before, list):
        return repr(before) == repr(after)
    return _same_bytes(before, after.detach() if isinstance(after, torch.Tensor) else after)


def _parameters(case: Case) -> dict[str, Any]:
    """Merge the settings of a case, and say what cannot matter or must clash."""
    first, second = case["setting"], case["more"]
    clash = bool(set(first) & set(second)) and first is not second
    if clash and case.owed == BAD:
        case.excuse()  # the one that counts may be harmless
    values = {"hidden": (4,), "max_iter": 2, "batch_size": 8, "random_state": 0, **second, **first}
    method = values.get("method", "elliptic")
    named = set(first) | set(second)
    if case.owed == BAD and (
        (method != "elliptic" and named & {*_OF_BRIDGES, "sigma"})
        or ("module" in named and "hidden" in named)
    ):
        case.excuse()  # the method has no use for it
    return values


def _clashes(case: Case, values: dict[str, Any], is_multilabel: bool) -> None:
    """Raise the demand where choices that are fine alone do not fit each other."""
    method, n = values.get("method", "elliptic"), _n(case)
    if method in _GROUPED:
        has = case["groups"] is not None
        wrong = "module" in values or values.get("early_stopping") is True
        case.owe(
            BAD if not has or wrong else ODD if is_multilabel or values.get("warm_start") is True else "fine"
        )
    if is_multilabel and (
        values.get("calibrate") == "temperature"
        or method == "smoothing"
        or values.get("class_weight") == "balanced"
    ):
        case.owe(BAD)
    few = values.get("early_stopping") is True or values.get("calibrate") == "temperature"
    if few and (
        n < 10 or case.name("x") in ("all constant", "read-only", "negative zeros", "booleans", "int8")
    ):
        case.owe(ODD)  # too few distinct rows to hold some out
    law = values.get("sigma")
    if isinstance(law, str | tuple | Green) and law != "auto" and _width(case) < 3:
        case.owe(ODD)  # the law does not exist in the plane
    if isinstance(law, str | tuple | Green) and (method == "noise" or values.get("weighting") or n < 3):
        case.owe(ODD)
    if values.get("weighting") not in (None, "none") or values.get("pairing") not in (None, "permutation"):
        case.owe(ODD)  # some need paths, others real targets or several bridges


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A fitted estimator, and how it came about."""

    case: Case
    make: Callable[[], Any]
    fit: Callable[..., Any]
    model: Any

    def on(self, rows: Any, weight: Any) -> Any:
        """Fit another one to some rows of the case, with these weights."""
        x, y, groups = (self.case[k] for k in ("x", "y", "groups"))
        groups = None if groups is None else _take_rows(groups, rows)
        return self.fit(self.make(), _take_rows(x, rows), _take_rows(y, rows), weight, groups)

    def weights(self) -> np.ndarray | None:
        """Return a weight for each row, or None if the case has something else."""
        weight, n = self.case["weight"], _n(self.case)
        if weight is not None and np.ndim(weight) != 1:
            return None
        return np.ones(n) if weight is None else np.asarray(weight, dtype=float)


def _saved(one: Fitted) -> list[Any]:
    try:
        path = save(one.model, one.case.folder / "model.elliptica")
    except TypeError as error:
        check("cannot be saved safely" in str(error) and one.case.owed != "fine", f"not saved: {error}")
        return []
    other = load(path, **({} if one.model.module is None else {"module": one.model.module}))
    check(other.get_params().keys() == one.model.get_params().keys(), "other parameters after loading")
    return [other, one.model]


def _in_order(one: Fitted) -> list[Any]:
    rows = np.random.RandomState(one.case.seed % 2**32).permutation(_n(one.case))
    weight = one.case["weight"]
    return [one.on(rows, weight if np.ndim(weight) == 0 else _take_rows(weight, rows)), one.model]


def _as_copies(one: Fitted) -> list[Any]:
    weight = one.weights()
    if weight is None or one.case.name("weight") not in ("none", "ones", "whole"):
        return []
    copies = np.repeat(np.arange(len(weight)), weight.astype(int))
    return [one.on(copies, np.ones(len(copies))), one.on(np.arange(len(weight)), weight)]


def _with_zeros(one: Fitted) -> list[Any]:
    if (weight := one.weights()) is None:
        return []
    n = len(weight)
    more = np.concatenate([np.arange(n), np.arange(n)[::-1]])
    return [one.on(more, np.append(weight, np.zeros(n))), one.on(np.arange(n), weight)]


def _by_epoch(one: Fitted) -> list[Any]:
    other = one.make()
    is_possible = one.case["groups"] is None and hasattr(other, "partial_fit") and one.model.n_networks == 1
    if not is_possible or getattr(other, "class_weight", None) is not None:
        return []
    for _ in range(other.max_iter):
        other.partial_fit(one.case["x"], one.case["y"], sample_weight=one.case["weight"])
    return [other, one.model]


def _again_with(one: Fitted) -> list[Any]:
    rows = (one.case[k] for k in ("x", "y", "weight", "groups"))
    return [one.fit(one.make(), *rows), one.model]


#: Trainings that must give the same model: functions that return a pair, or nothing if they do not apply.
RELATIONS = (
    fine("saved and loaded", just(_saved)),
    fine("again", just(_again_with)),
    fine("rows in another order", just(_in_order)),
    fine("copies as weights", just(_as_copies)),
    fine("rows of weight zero", just(_with_zeros)),
    fine("epoch by epoch", just(_by_epoch)),
)


def _relate(one: Fitted, asked: Any) -> None:
    """Compare the model with one that must be the same."""
    relation, has_seed = one.case.name("relation"), isinstance(one.model.random_state, int | np.integer)
    if not (has_seed or relation == "saved and loaded") or not (pair := one.case["relation"](one)):
        return
    ask = "predict_proba" if hasattr(one.model, "predict_proba") else "predict"
    found, expected = (getattr(model, ask)(asked) for model in pair)
    if relation == "copies as weights":  # means of copies and weighted means differ in their last digit
        slack = 1e-4 * (np.abs(expected).max() + 1e-300)
        check(np.allclose(found, expected, rtol=1e-4, atol=slack), "copies differ from weights")
    else:
        check(_same_bytes(found, expected), f"other predictions: {relation}")


def _try(case: Case, make: Callable[[dict[str, Any]], Any]) -> Any:
    """Fit an estimator to the case's table, predict, and check what holds for every one."""
    values = _parameters(case)
    x, y, weight, groups = (case[k] for k in ("x", "y", "weight", "groups"))
    is_multilabel = case.name("y") in ("several labels", "several constant labels", "sparse labels")
    _clashes(case, values, is_multilabel)
    if case.name("x") in ("one row", "two rows", "read-only"):
        case.owe(ODD)  # too small a table for its labels
    before = [_snapshot(each) for each in (x, y, weight, groups)]
    state = torch.get_rng_state()

    def fit(model: Any, *rows: Any) -> Any:
        named = dict(zip(("sample_weight", "groups"), rows[2:], strict=True))
        return model.fit(*rows[:2], **{k: v for k, v in named.items() if v is not None})

    model = fit(make(values), x, y, weight, groups)
    check(torch.equal(state, torch.get_rng_state()), "torch's own stream was used")
    changed = [
        k
        for k, was in zip(("x", "y", "weight", "groups"), before, strict=True)
        if not _unchanged(was, case[k])
    ]
    check(not changed, f"{changed} changed")
    asked = case["asked"]
    rows = x if isinstance(asked, str) else asked
    found = model.predict(rows)
    check(len(found) == len(model.predict(rows)), "another number of predictions")
    if isinstance(asked, str):
        order = _order(_n(case)) if asked == "permuted" else np.arange(_n(case))
        parts = [order] if asked == "permuted" else [[i] for i in order[:4]]
        several = np.concatenate([model.predict(_take_rows(x, part)) for part in parts])
        check(_same_bytes(several, found[np.concatenate(parts)]), f"rows {asked} have other predictions")
    _relate(Fitted(case, lambda: make(values), fit, model), rows)
    return model, rows, found


def _axes(y: Sequence[Choice], settings: Sequence[Choice]) -> dict[str, Sequence[Choice]]:
    """Return the axes of an estimator."""
    rows = {"x": TABLES, "y": y, "setting": settings, "more": settings, "weight": WEIGHTS, "groups": GROUPS}
    return {**rows, "asked": ASKED, "relation": RELATIONS}


@target("classifier", _axes(LABELS, CLASSIFIER), share=3.0, clear_from=("sklearn",))
def run_classifier(case: Case) -> None:
    """Sum probabilities to one; predict the most probable class."""
    model, rows, found = _try(case, lambda values: EllipticClassifier(**values))
    chances = model.predict_proba(rows)
    check(np.isfinite(chances).all() and (chances >= 0).all(), "probabilities are not numbers")
    if found.ndim == 2:
        check(_same_bytes(found, (chances > 0.5).astype(int)), "labels are not those above one half")
        return
    check(np.allclose(chances.sum(axis=1), 1), "probabilities do not sum to one")
    check(_same_bytes(found, model.classes_[chances.argmax(axis=1)]), "not the most probable class")
    known = np.unique(np.asarray(case["y"]))
    check(_same_bytes(model.classes_, known), f"classes {model.classes_!r} instead of {known!r}")
    decided = model.decision_function(rows)
    if len(known) > 2:
        check(
            _same_bytes(decided.argmax(axis=1), chances.argmax(axis=1)), "logits disagree with probabilities"
        )


@target("regressor", _axes(TARGETS_, REGRESSOR), share=3.0, clear_from=("sklearn",))
def run_regressor(case: Case) -> None:
    """Stay within the range of the targets."""
    model, rows, found = _try(case, lambda values: EllipticRegressor(**values))
    check(np.isfinite(found).all(), "predictions are not numbers")
    y = np.asarray(case["y"], dtype=np.float64)
    y = y.reshape(len(y), -1)
    if case["weight"] is not None and np.ndim(case["weight"]) == 1:
        y = y[np.asarray(case["weight"], dtype=float) > 0]
    table = found.reshape(len(found), -1)
    check(table.shape[1] == y.shape[1], f"{table.shape[1]} targets instead of {y.shape[1]}")
    if model.bounded is True:
        inside = (table >= y.min(axis=0)) & (table <= y.max(axis=0))
        check(inside.all(), "predictions leave the range of the targets")
    check(_same_bytes(model.predict(rows), found), "another prediction the second time")


SAMPLER = (
    fine("default", just({})),
    *_settings("sampling_strategy", fine=["auto", "not majority", "minority"]),
    *_settings("sampling_strategy", odd=[0.9, 1.0, {0: 30}, {"no": 40}, {0: 30.5}, {0: "many"}, {0: nan}]),
    *_settings("sampling_strategy", bad=["all", "", None, 0, -1, 2, nan, True, {0: -3}, {99: 5}, [30]]),
    *_settings("sigma", fine=[0, 0.5, np.float64(0.2)], odd=[1e30, 1e300]),
    *_settings("sigma", bad=[-1, nan, inf, "auto", None, True, [0.1]]),
    *_settings("sigma_y", fine=[None, 0, 0.3], bad=[-1, nan, "x", True]),
    *_settings("k_neighbors", fine=[1, 3, 1000], bad=NOT_COUNTS),
    *_settings("n_bins", fine=[1, 2, 50], bad=NOT_COUNTS),
    *_settings("bounded", fine=[True, False], bad=NOT_FLAGS),
    *_settings("task", odd=["classification", "regression"], bad=["classes", None, 3]),
    *_settings("random_state", fine=[None, 3, np.int64(4)], bad=[-1, "3", 1.5]),
)


@target(
    "over-sampler",
    {
        "x": TABLES,
        "y": (*LABELS[:15], *(each for each in TARGETS_ if each.name not in {e.name for e in LABELS[:15]})),
        "setting": SAMPLER,
        "more": SAMPLER,
    },
    clear_from=("sklearn",),
)
def run_over_sampler(case: Case) -> None:
    """Add rows to rare classes; keep the others."""
    first, second = case["setting"], case["more"]
    values = {"random_state": 0, **second, **first}
    x, y = case["x"], case["y"]
    named = set(first) | set(second)
    if case.owed == BAD and (set(first) & set(second) or named & {"sampling_strategy", "task", "sigma_y"}):
        case.excuse()  # only one of them counts, or it is for the other task
    if case.name("y") == "words" and case.owed == BAD:
        case.excuse()  # a class
    odd_targets = case.name("y") in ("integers", "objects that are numbers")
    if np.ndim(y) > 1 or case.name("x") in ("one row", "two rows") or odd_targets:
        case.owe(ODD)
    before = [_snapshot(each) for each in (x, y)]
    more_x, more_y = BridgeOverSampler(**values).fit_resample(x, y)
    check(all(map(_unchanged, before, (x, y))), "the caller's rows were changed")
    check(type(more_x) is type(x) or not hasattr(x, "columns"), f"{type(more_x)} for {type(x)}")
    n, table = _n(case), np.asarray(more_x, dtype=float)
    targets = np.asarray(more_y).reshape(len(more_y), -1)[:, 0]
    check(len(table) == len(targets) >= n, "another number of rows than targets")
    check(
        _same_bytes(table[:n], np.asarray(x.detach() if isinstance(x, torch.Tensor) else x, dtype=float)),
        "the first rows are not the given ones",
    )
    given = np.asarray(y).reshape(n, -1)[:, 0]
    check(bool((targets[:n] == given).all()), "the first targets are not the given ones")
    check(np.isfinite(table).all(), "new rows are not finite")
    if values["random_state"] is not None:
        again = BridgeOverSampler(**values).fit_resample(x, y)
        check(all(map(_same_bytes, again, (more_x, more_y))), "the same seed gives other rows")
    sampler = BridgeOverSampler(**values).fit(x, y)
    if hasattr(sampler, "bins_"):
        new = targets[n:].astype(float)
        if values.get("bounded", True) is True and len(new):
            low, high = given.astype(float).min(), given.astype(float).max()
            check((new >= low).all() and (new <= high).all(), "new targets leave the range of the others")
        return
    labels, sizes = np.unique(targets, return_counts=True)
    check(_same_bytes(labels, np.unique(given)), "other classes than before")
    if values.get("sampling_strategy", "auto") in ("auto", "not majority"):
        check(len(set(sizes.tolist())) == 1, f"classes of sizes {sizes.tolist()}")
    if values.get("sigma", 0.1) == 0:
        for label in labels:  # on straight lines between rows of the class
            own, new = table[:n][given == label], table[n:][targets[n:] == label]
            slack = 1e-6 * (np.abs(own).max() + 1e-300)
            inside = (new >= own.min(axis=0) - slack) & (new <= own.max(axis=0) + slack)
            check(inside.all(), "rows between rows of a class leave its range")


def _column(make: Callable[[Case, int], Any]) -> Callable[[Case], Callable[[int], Any]]:
    return lambda case: functools.partial(make, case)


def _drawn(case: Case, n: int, words: Sequence[Any]) -> list[Any]:
    return [words[case.stream.randrange(len(words))] for _ in range(n)]


def _mix(*words: Any) -> Callable[[Case], Callable[[int], Any]]:
    """Make a column of these values at random."""
    return _column(lambda case, n: _drawn(case, n, words))


def _sentences(case: Case, n: int) -> list[str]:
    words = ["lake", "house", "near", "old", "town", "garden", "big", "\u00fcber", "42"]
    return [" ".join(_drawn(case, 6, words)) for _ in range(n)]


def _moments(case: Case, n: int, step: float) -> list[Any]:
    start = datetime.datetime(1999, 12, 31, 23)
    return [start + datetime.timedelta(days=step * case.stream.randrange(400)) for _ in range(n)]


#: Columns of a frame: plain values, from which either kind of frame is made.
COLUMNS = (
    fine("numbers", _column(lambda case, n: [case.stream.gauss(0, 1) for _ in range(n)])),
    fine("integers", _column(lambda case, n: [case.stream.randrange(9) for _ in range(n)])),
    fine("numbers with gaps", _mix(1.5, 2.5, None)),
    fine("booleans", _mix(True, False)),
    fine("words", _mix("red", "green", "blue")),
    fine("words with gaps", _mix("red", "green", None)),
    fine("odd words", _mix("", " ", "\0", "\U0001f600", "x" * 5000, "(missing)", "nan")),
    fine("dates", _column(lambda case, n: [each.date() for each in _moments(case, n, 1)])),
    fine("times", _column(lambda case, n: _moments(case, n, 0.01))),
    fine("dates with gaps", _column(lambda case, n: [None, *_moments(case, n - 1, 30)])),
    fine("durations", _column(lambda case, n: [datetime.timedelta(hours=i) for i in range(n)])),
    fine("sentences", _column(_sentences)),
    fine("sentences with gaps", _column(lambda case, n: [None, *_sentences(case, n - 1)])),
    fine("one value", _column(lambda case, n: [4] * n)),
    fine("empty", _column(lambda case, n: [None] * n)),
    fine("a word per row", _column(lambda case, n: [f"id {i}" for i in range(n)])),
    odd("huge numbers", _mix(1e308, -1e308, 1e-320)),
    odd("huge integers", _mix(2**62, -(2**62), 3)),
    odd("far dates", _mix(datetime.date(1, 1, 1), datetime.date(9999, 12, 31))),
    bad("infinite", _column(lambda case, n: [inf] * n)),
    bad("lists", _column(lambda case, n: [[1, 2]] * n)),
)

TABLE_SETTINGS = (
    fine("default", just({})),
    *_settings("min_frequency", fine=[1, 2, 10**6], bad=NOT_COUNTS),
    *_settings("max_categories", fine=[2, 50], odd=[1], bad=NOT_COUNTS),
    *_settings("scale", fine=["robust"], bad=["Robust", None, 3]),
    *_settings("n_components", fine=[1, 3, 10**6], bad=NOT_COUNTS),
    *_settings("kinds", fine=[None, {}]),
    *_settings("kinds", odd=[{"a": "category"}, {"a": "number"}, {"a": "date"}, {"a": "text"}]),
    *_settings("kinds", bad=[{"zzz": "number"}, {"a": "float"}, {"a": None}, "number", ["a"], {1: "number"}]),
)


@target(
    "table preprocessor",
    {
        "a": COLUMNS,
        "b": COLUMNS,
        "kind": (fine("pandas", just(pd.DataFrame)), fine("polars", just(pl.DataFrame))),
        "rows": (fine("30", 30), odd("1", 1), odd("2", 2)),
        "setting": TABLE_SETTINGS,
        "more": TABLE_SETTINGS,
        "new": (
            fine("the same", just(lambda frame, other: frame)),
            fine("permuted", just(lambda frame, other: _take_rows(frame, _order(len(frame))))),
            odd("other values", just(lambda frame, other: other())),
            bad("fewer columns", just(lambda frame, other: frame[["a"]])),
            bad("another order", just(lambda frame, other: frame[["b", "a"]])),
            bad("no rows", just(lambda frame, other: frame[:0])),
            bad("an array", just(lambda frame, other: np.zeros((2, 5)))),
        ),
    },
    clear_from=("sklearn",),
)
def run_preprocessor(case: Case) -> None:
    """Make numbers of every column, whatever it holds."""
    first, second = case["setting"], case["more"]
    if set(first) & set(second) and case.owed == BAD:
        case.excuse()
    n, Frame = case["rows"], case["kind"]
    values = {"a": case["a"](n), "b": case["b"](n)}
    frame = Frame(values, strict=False) if Frame is pl.DataFrame else Frame(values)
    table = TablePreprocessor(**{**second, **first})
    found = table.fit_transform(frame)
    names = table.get_feature_names_out()
    check(found.dtype == np.float64 and np.isfinite(found).all(), "not a table of finite numbers")
    check(found.shape == (n, len(names)), f"shape {found.shape} for {len(names)} names")
    _check_columns(case, table, values, found, list(names))
    new = table.transform(case["new"](frame, lambda: Frame({"a": case["b"](5), "b": case["a"](5)})))
    check(np.isfinite(new).all(), "other rows become no numbers")
    if case.name("new") == "the same":
        check(_same_bytes(new, found), "transform differs from fit_transform")
    if case.name("new") == "permuted":
        check(_same_bytes(new, found[_order(n)]), "permuted rows become others")
    state, arrays = table.to_dict(), table.tensors()
    restored = TablePreprocessor.from_dict(json.loads(json.dumps(state)), arrays)
    check(_same_bytes(restored.transform(frame), found), "a restored preprocessor gives other numbers")
    check(list(restored.get_feature_names_out()) == list(names), "a restored preprocessor gives other names")


def _check_columns(
    case: Case, table: Any, values: dict[str, list[Any]], found: np.ndarray, names: list[str]
) -> None:
    """Compare numbers and words with what a loop over the rows gives."""
    if case["setting"] or case["more"] or len(found) < 30:
        return
    for name, kind in zip(values, table.kinds_, strict=True):
        known = [v for v in values[name] if v is not None]
        if case.name(name) in ("numbers", "integers", "numbers with gaps", "booleans", "one value"):
            expected = [float(np.median(np.float64(known))) if v is None else float(v) for v in values[name]]
            check(np.allclose(found[:, names.index(name)], expected), f"column {name} has other numbers")
        elif kind == "category" and case.name(name) in ("words", "words with gaps"):
            for word in set(known):
                expected = [float(v == word) for v in values[name]]
                if known.count(word) >= table.min_frequency:
                    check(
                        found[:, names.index(f"{name}_{word}")].tolist() == expected,
                        f"{word} is marked elsewhere",
                    )


# --- damaged and hostile files ---

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
#: No file of kilobytes may need more memory than this.
MOST_MEMORY = 2**30
#: What a reader of files must never do.
_FORBIDDEN = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.remove")
_seen: list[str] | None = None


@functools.cache
def _watch() -> None:
    """Note forbidden events from now on; a hook cannot be removed."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if _seen is not None and event in _FORBIDDEN:
            _seen.append(f"{event} {arguments[:2]!r:.100}")

    sys.addaudithook(audit)


def _peak() -> int:
    """Return the largest resident size since it was reset, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Raise `Wrong` if a block runs code from a file, or needs far more memory than a small file can."""
    global _seen
    _watch()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before, _seen = _peak(), []
    try:
        yield
    finally:
        seen, _seen = _seen, None
        check(not seen, f"the file made us call {seen}")
        check((more := _peak() - before) <= MOST_MEMORY, f"{more / 2**30:.1f} GiB for a small file")


def _read(case: Case, read: Callable[[], Any], *names: Path | str) -> Any:
    """Read a file under watch; an error of ours must name it."""
    with _watched():
        try:
            return read()
        except Exception as error:
            clear = outcome_of(error, case).outcome == CLEAR
            if clear and not any(str(getattr(name, "name", name)) in str(error) for name in names):
                raise Wrong(f"the message does not name the file: {error}"[:300]) from error
            raise


class Bomb:
    """What a pickle would run; loading it marks the memory of this process."""

    went_off = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _go_off, ()


def _go_off() -> None:
    Bomb.went_off = True


def _spoil(case: Case, path: Path) -> None:
    """Change the entries, the members and the bytes of a file as the case says, then its place."""
    data = path.read_bytes()
    if path.suffix == ".json" and case.name("entries") != "as it was":
        data = _encoded(case["entries"](json.loads(data)))
    if path.suffix == ".npz" and case["zip"] is not None:
        data = case["zip"](members_of(data))
    path.write_bytes(case["bytes"](data))
    case["place"](path)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _is_harmless(case: Case, *axes: str) -> bool:
    """Return whether nothing was done to the content of the file."""
    return all(
        case.name(axis) in ("whole", "as it was", "in other words", "in another order") for axis in axes
    )


def _content(path: Path) -> bytes | None:
    """Return the content of an ordinary file."""
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def _set_aside(folder: Path) -> list[bytes]:
    return [each.read_bytes() for each in folder.glob("*.unusable-*") if each.is_file()]


def _same_json(a: Any, b: Any) -> bool:
    """Return whether two values are the same JSON; NaN is the same as NaN."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def _named_choices(*names: str) -> tuple[Choice, ...]:
    """Make valid choices that are their names."""
    return tuple(fine(name, just(name)) for name in names)


def _files(name: str, share: float = 1.0, /, **axes: Sequence[Choice]) -> Callable[..., Any]:
    """Register a target that reads a file."""
    return target(name, {**axes, "bytes": BYTES, "place": PLACES}, share=share, limit=20.0)


# --- model files ---

_NOTES = {"units": ["m", 3.5]}
_OLD = {"old classifier": {}, "old regressor": {}, "old pipeline": {"target": "side"}}
_MODELS = [
    "classifier",
    "multilabel",
    "ensemble",
    "own module",
    "pipeline",
    "trees",
    "log trees",
    "linear",
    "ridge",
]


@functools.cache
def _models() -> dict[str, tuple[bytes, Any]]:
    """Return the bytes of small models, with rows to predict."""
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(40, 3)), draws.integers(0, 3, 40)
    frame = pd.DataFrame(
        {
            "size": np.where(draws.random(40) < 0.2, np.nan, x[:, 0]),
            "kind": np.array(["red", "green", "blue", "rare"])[draws.integers(0, 4, 40)],
            "day": pd.date_range("2020-01-01", periods=40, freq="9D"),
            "note": [f"a note {i % 7} about the house number {i}" for i in range(40)],
        }
    )
    small: dict[str, Any] = {"hidden": (4,), "max_iter": 1, "random_state": 0}
    tree: dict[str, Any] = {"max_iter": 2, "max_leaf_nodes": 4, "min_samples_leaf": 3}
    table = TablePreprocessor(max_categories=8, min_frequency=3, scale="robust", kinds={"note": "text"})
    logs = {"func": np.log, "inverse_func": np.exp}
    values = np.exp(x[:, 0])
    models: list[tuple[Any, Any, Any]] = [
        (EllipticClassifier(**small), x, np.array(["no", "yes", "perhaps"])[y]),
        (EllipticClassifier(**small), x, np.stack([y > 0, y > 1], 1).astype(int)),
        (EllipticRegressor(**small, n_networks=2, target_transform="log"), x, values),
        (EllipticRegressor(**small, module=Own), x, x[:, :2]),
        (make_pipeline(table, EllipticClassifier(**small)), frame, y > 0),
        (make_pipeline(clone(table), HistGradientBoostingClassifier(**tree)), frame, y),
        (TransformedTargetRegressor(HistGradientBoostingRegressor(**tree), **logs), x, values),
        (LogisticRegression(), x, y),
        (Ridge(), x, x[:, 0]),
    ]
    found = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (model, rows, labels) in zip(_MODELS, models, strict=True):
            path = save(model.fit(rows, labels), Path(folder) / "model.elliptica", notes=_NOTES)
            found[name] = path.read_bytes(), rows[:7]
    old = FIXTURES / "models"
    plain = np.float32(json.loads((old / "expected.json").read_text())["rows"])
    for name in _OLD:
        rows = pd.read_csv(old / "rows.csv") if name == "old pipeline" else plain
        found[name] = (old / f"{name.removeprefix('old ')}.elliptica").read_bytes(), rows
    return found


def _of_kind(name: str, content: bytes, change: Callable[[Any], str]) -> bytes:
    """Change the JSON inside a member of a model file."""
    if name.endswith(".json"):
        return _encoded(change(json.loads(content)))
    if name.endswith(".safetensors"):
        return safetensors(content, change)
    inner = members_of(content)
    return zip_of([(n, _of_kind(n, c, change) if n == "schema.json" else c) for n, c in inner])


def _answers(model: Any, rows: Any) -> list[Any]:
    """Return everything that a model says about rows."""
    return [getattr(model, ask)(rows) for ask in ("predict", "predict_proba") if hasattr(model, ask)]


@_files(
    "model files",
    3.0,
    model=_named_choices(*_MODELS, *_OLD),
    member=_named_choices("model.json", "weights.safetensors", "model.skops"),
    entries=JSON,
    zip=ZIPS,
)
def run_model_files(case: Case) -> None:
    """Load exactly what was saved, or say that the file is damaged."""
    name, path = case["model"], case.folder / "m.elliptica"
    data, rows = _models()[name]
    own = {"module": Own} if name == "own module" else {}
    path.write_bytes(data)
    expected = _answers(load(path, **own), rows)
    members = members_of(data)
    if case.name("entries") != "as it was":
        change = case["entries"]
        members = [(n, _of_kind(n, c, change) if n == case["member"] else c) for n, c in members]
    if case["zip"] is not None or members != members_of(data):
        path.write_bytes((case["zip"] or zip_of)(members))
    _spoil(case, path)
    model = _read(case, lambda: load(path, **own), path)
    notes = _read(case, lambda: read_notes(path), path)
    check(not Bomb.went_off, "a pickle was loaded")
    with _watched():
        found = _answers(model, rows)
    if _is_harmless(case, "entries", "zip"):
        check(notes == _OLD.get(name, _NOTES), f"other notes: {notes!r:.80}")
        check(all(map(_same_bytes, found, expected)), "a damaged model predicts something else")
        return
    for each, known in zip(found, expected, strict=False):
        check(len(each) == len(known), "another number of predictions")
        if each.dtype.kind == "f":
            check(np.isfinite(each).all(), "a changed model predicts NaN or infinity")
    again = _answers(load(save(model, case.folder / "again.elliptica"), **own), rows)
    check(all(map(_same_bytes, again, found)), "saved again, it predicts something else")


# --- folders of results ---


@functools.cache
def _comparison() -> dict[str, bytes]:
    """Return the files of a small comparison."""
    draws = np.random.default_rng(0)
    frame = pl.DataFrame({"size": draws.normal(size=60), "kind": draws.integers(0, 2, 60)})
    with tempfile.TemporaryDirectory() as folder:
        options = {"trials": 1, "epochs": 1, "networks": 1, "hidden": (4,), "folds": 3, "jobs": 1}
        found = compare(frame, "kind", methods=["erm", "linear"], out=Path(folder), **options)
        results = Path(folder) / "results.json"  # the command adds the summary, which reports read
        summary = {"summary": summarise(found).to_json()}
        results.write_text(json.dumps(json.loads(results.read_text("utf-8")) | summary), encoding="utf-8")
        return _contents(Path(folder))


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _stored(folder: Path) -> Store:
    """Open the folder of a comparison again, as its own command would."""
    about = json.loads(_comparison()["results.json"])["about"]
    return Store(folder, about, Plan(methods=("erm", "linear"), hidden=(4,)), {})


def _unpack(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


@_files(
    "comparison folders",
    2.0,
    file=_named_choices("results.json", "predictions.npz"),
    entries=JSON,
    zip=ZIPS,
    read=_named_choices("resume", "report"),
)
def run_comparison_folders(case: Case) -> None:
    """Resume what an independent reader finds in the folder, or say why not."""
    folder = case.folder / "run"
    _unpack(folder, _comparison())
    path = folder / case["file"]
    _spoil(case, path)
    gone = case.name("place") in ("nothing", "a link to nothing", "a link to itself")
    if gone or path.name == "predictions.npz":
        case.excuse()  # a new comparison begins, or folds without predictions are done again
    if case["read"] == "report":
        report = _read(case, lambda: comparison_report(folder), path, folder)
        with _watched():
            page = render_page(report)
        check(len(page) > 1000, "an empty page")
        return
    before = _contents(folder)
    store = _read(case, lambda: _stored(folder), path, folder)
    records = store.records()
    store.close()
    check({**_contents(folder), ".lock": b""} == {**before, ".lock": b""}, "reading changed the folder")
    if not store.resumed:
        return
    contents = {
        (c["repeat"], c["fold"], c["method"]): c
        for c in json.loads((folder / "results.json").read_text("utf-8"))["records"]
    }
    arrays = np.load(folder / "predictions.npz") if (folder / "predictions.npz").exists() else {}
    for record in records:
        check(_same_json(record.to_json(), contents[record.key]), "another record than in the file")
        stored = arrays["/".join(map(str, record.key))]
        check(_same_bytes(record.predicted, stored), "other predictions than in the file")
        _check_record(record)


def _check_record(record: Any) -> None:
    """Check that what was accepted can be used."""
    fold, error = (record.repeat, record.fold), (record.error, record.method)
    check(all(isinstance(each, int) for each in fold), f"fold {fold!r}")
    check(all(isinstance(each, str) for each in error), "an error that is no text")
    check(isinstance(record.seconds, int | float), f"seconds {record.seconds!r:.40}")
    check(record.chosen is None or 0 <= record.chosen < len(record.trials), f"chosen {record.chosen!r}")
    check(all(isinstance(trial.validation, dict) for trial in record.trials), "scores that are no dict")
    check(np.isfinite(record.final()).all() or bool(record.error), "predictions that are no numbers")


@_files(
    "records",
    file=(
        fine("elliptic", just("table3/no2/elliptic/7e19a9267f4d-seed0.json")),
        fine("erm", just("table3/no2/erm/a241677c4116-seed0.json")),
    ),
    entries=JSON,
    read=_named_choices("page", "one"),
)
def run_records(case: Case) -> None:
    """Show what is in a record, or list it as unusable; never a third."""
    root = case.folder / "runs"
    shutil.copytree(FIXTURES / "runs", root)
    path = root / case["file"]
    _spoil(case, path)
    if case.owed == BAD:
        case.excuse()  # other records stay usable
    data = _content(path)
    if case["read"] == "one":
        with _watched():
            record = read_record(path)
        if record is None:
            check(data is None or data in _set_aside(path.parent), "a damaged record is lost")
        else:
            check(_same_json(record, json.loads(path.read_text("utf-8"))), "another record than in the file")
            problem_of(record)
        return
    folder = _read(case, lambda: read_folder(root), root)
    for record in folder.records:
        content = json.loads(record.file.read_text("utf-8"))
        check(_same_json(record.content, content), "another record than in the file")
    with _watched():
        page = render_page(runs_report(root))
    check(len(page) > 1000, "an empty page")


@_files("checkpoints of runs", header=JSON)
def run_checkpoints(case: Case) -> None:
    """Resume exactly, or set the file aside and begin again."""
    from tests.lab.training.test_loop import train

    path, data = case.folder / "run.safetensors", _interrupted()
    path.write_bytes(data if case.name("header") == "as it was" else safetensors(data, case["header"]))
    _spoil(case, path)
    if case.owed == BAD:
        case.excuse()  # it begins again
    content = _content(path)
    with _watched():
        model, _ = train(checkpoint=path)
    found = [p.detach() for p in model.parameters()]
    check(all(map(torch.equal, found, _uninterrupted())), "a damaged checkpoint changed the result")
    kept = _set_aside(case.folder)
    check(not kept or content is None or content in kept, "a damaged checkpoint is lost")


@functools.cache
def _uninterrupted() -> list[torch.Tensor]:
    from tests.lab.training.test_loop import train

    return [p.detach() for p in train()[0].parameters()]


@functools.cache
def _interrupted() -> bytes:
    """Return the checkpoint of a training that was killed after three epochs."""
    from tests.lab.training.test_loop import Killed, train

    def kill(end: Any) -> None:
        if end.epoch == 3:
            raise Killed

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        with contextlib.suppress(Killed):
            train(checkpoint=path, progress=kill)
        return path.read_bytes()


@_files(
    "checkpoints of processes",
    file=(
        fine("checkpoint.json", just("checkpoint.json")),
        fine("shard", just("shard-00001-model-00001-of-00001.safetensors")),
    ),
    entries=JSON,
)
def run_distributed(case: Case) -> None:
    """Restore exactly what was saved, or raise and change nothing."""
    root = case.folder / "checkpoints"
    _unpack(root / "checkpoint-000001", _saved_checkpoint())
    path = root / "checkpoint-000001" / case["file"]
    _spoil(case, path)
    if case.name("place") == "a link":
        case.owe(ODD)  # the file beside it is none of the checkpoint's
    made, noise = _small_objective(), torch.Generator()
    before = _state(made)
    try:
        found = _read(case, lambda: load_checkpoint(root, *made, generators={"noise": noise}), path, root)
    except Exception:
        check(_state(made) == before, "a refused checkpoint changed the model")
        raise
    check(found is not None, "a damaged checkpoint is not noticed")
    if _is_harmless(case, "entries"):
        known, stream = _small_objective(), torch.Generator()
        load_checkpoint(FIXTURES / "distributed", *known, generators={"noise": stream})
        check(_state(known) == _state(made), "another state than was saved")
        check(torch.equal(noise.get_state(), stream.get_state()), "another random stream than was saved")
        check((found.step, found.extra) == (3, {"epoch": 1}), f"step {found.step!r}, {found.extra!r:.60}")
    is_usable = isinstance(found.step, int) and isinstance(found.extra, dict)
    check(is_usable, f"step {found.step!r:.40}, extra {found.extra!r:.40}")
    made[0](torch.ones(4, 3), torch.ones(4, 1), generator=noise).backward()
    made[1].step()


@functools.cache
def _saved_checkpoint() -> dict[str, bytes]:
    """Return the files of the checkpoint of an earlier version, saved again by this one."""
    made, noise = _small_objective(), torch.Generator()
    load_checkpoint(FIXTURES / "distributed", *made, generators={"noise": noise})
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(folder, *made, step=3, extra={"epoch": 1}, generators={"noise": noise})
        return _contents(Path(folder) / "checkpoint-000001")


def _small_objective() -> tuple[Any, Any]:
    objective = elliptica.Elliptic(nn.Linear(3, 1), nn.MSELoss(), sigma=0.1)
    return objective, torch.optim.Adam(objective.parameters(), lr=1.0)


def _state(parts: Sequence[Any]) -> str:
    return repr([part.state_dict() for part in parts])


@functools.cache
def _index() -> dict[str, bytes]:
    """Return the files of a small partner index."""
    with tempfile.TemporaryDirectory() as folder:
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        PartnerIndex.build(x, k=4, generator=torch.Generator().manual_seed(0)).save(Path(folder) / "index")
        return _contents(Path(folder) / "index")


_ARRAYS_OF_INDEX = ("points", "rows", "near", "distances", "starts", "probes")


@_files(
    "partner index folders",
    file=_named_choices("header.json", *(f"{name}.npy" for name in _ARRAYS_OF_INDEX)),
    entries=JSON,
    verify=(fine("yes", just(True)), fine("no", just(False))),
)
def run_partner_index(case: Case) -> None:
    """Draw the same partners, or say that the index is broken."""
    folder = case.folder / "index"
    _unpack(folder, _index())

    def sample(index: PartnerIndex) -> torch.Tensor:
        return index.sample(torch.arange(40), n_bridges=2, generator=torch.Generator().manual_seed(1))

    expected = sample(PartnerIndex.load(folder))
    path = folder / case["file"]
    _spoil(case, path)
    index = _read(case, lambda: PartnerIndex.load(folder, verify=case["verify"]), path, folder)
    is_array = path.suffix == ".npy"
    if is_array and not case["verify"] and not _is_harmless(case, "bytes"):
        return  # whoever does not ask for checksums does not get them
    found = sample(index)
    if is_array or _is_harmless(case, "entries", "bytes"):
        check(torch.equal(found, expected), "a damaged index draws other partners")
    check(bool(((found >= 0) & (found < 40)).all()), "partners that do not exist")


# --- specifications and tables ---


@functools.cache
def _specification() -> dict[str, Any]:
    return tomllib.loads((SOURCE / "lab/experiments/presets/table3.toml").read_text())


def _toml(value: Any) -> str:
    """Write TOML by hand; values that it does not have become strings."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return '"none"' if value is None else json.dumps(value)


def _as_toml(text: str) -> str:
    """Convert the text of JSON to TOML."""
    value = json.loads(text)
    if not isinstance(value, dict):
        return text
    return "".join(f"{json.dumps(k)} = {_toml(v)}\n" for k, v in value.items())


@_files(
    "specifications",
    entries=tuple(each for each in JSON if each.name != "a key twice"),
    name=(
        fine("mine", just("mine.toml")),
        fine("with spaces", just("my table.toml")),
        bad("table3", just("table3.toml")),
        bad("trials", just("trials.toml")),
        odd("upper case", just("MINE.TOML")),
    ),
)
def run_specifications(case: Case) -> None:
    """Read what another parser of TOML finds, key by key."""
    path = case.folder / case["name"]
    try:
        text = _as_toml(case["entries"](_specification()))
    except (RecursionError, ValueError):
        text = "deep = " + "[" * 100_000
    path.write_bytes(_encoded(text))
    _spoil(case, path)
    found = _read(case, lambda: load_specification(str(path)), path)
    raw = tomllib.loads(path.read_text("utf-8"))
    same = found.title == raw["title"] and list(found.methods) == list(raw["methods"])
    check(same, "another specification than in the file")
    check(found.seeds == raw["seeds"] and type(found.seeds) is int, f"seeds {found.seeds!r}")
    for name, spec in found.datasets.items():
        same = repr(spec.training) == repr(raw["datasets"][name]["training"])
        check(same, "other settings than in the file")
    for run in _read(case, lambda: runs("mine", found), path, "mine")[:50]:
        check(len(run.key) == 12, "a run without a key")


#: Cells of a CSV file, as they are written.
CELLS = (
    fine("numbers", _column(lambda case, n: [f"{case.stream.gauss(0, 1):.4f}" for _ in range(n)])),
    fine("whole numbers", _column(lambda case, n: [str(case.stream.randrange(99)) for _ in range(n)])),
    fine("words", _mix("red", "green", "blue")),
    fine("gaps", _mix("1.5", "", "2.25")),
    fine("words for gaps", _mix("3", "NA", "N/A", "null", "?", "nan")),
    fine("codes", _mix("007", "0123", "42")),
    fine("long numbers", _mix("12345678901234567890123", "9223372036854775808")),
    fine("exponents", _mix("1e5", "-2.5E-3", ".5", "5.")),
    fine("dates", _column(lambda case, n: [str(each) for each in _days(n)])),
    fine("days first", _column(lambda case, n: [f"{d:%d.%m.%Y}" for d in _days(n)])),
    fine("thousands", _mix("1,234", "12,345.5", "999")),
    fine("currency", _mix("$5.00", "$1,200.50", "$7")),
    fine("percent", _mix("5%", "12.5 %")),
    fine("quotes and separators", _mix("a,b", 'say "no"', "x;y", "\ttab", "|")),
    fine("lines", _mix("two\nlines", "one")),
    fine("spaces", _mix("  red ", "red", "\u00a0blue")),
    fine("formulas", _mix("=1+1", "@cmd", "+x", "-y")),
    fine("other scripts", _mix("\u00fcber", "\u4e2d\u6587", "\U0001f600", "\u202eabc")),
    fine("a long cell", _mix("x" * 100_000)),
    fine("mixed", _mix("1", "two", "3.0", "")),
    odd("too long a cell", _mix("x" * 200_000)),
    odd("infinity", _mix("inf", "-inf", "1", "1e400", "Infinity")),
    odd("control characters", _mix("a\x01", "b\x1b[0m")),
    odd("zero bytes", _mix("a\0b", "c")),
)

FORMS = (
    fine("commas", just({"delimiter": ","})),
    fine("semicolons", just({"delimiter": ";"})),
    fine("tabs", just({"delimiter": "\t"})),
    fine("bars", just({"delimiter": "|"})),
    fine("all quoted", just({"quoting": csv.QUOTE_ALL})),
    fine("Unix lines", just({"lineterminator": "\n"})),
)

HEADERS = (
    fine("names", just(("a", "b", "y"))),
    fine("names with separators", just(("a;b", "b, c", "y"))),
    fine("odd names", just(("\u00fc ber", "=b", "y"))),
    fine("one without a name", just(("", "b", "y"))),
    odd("spaces", just((" a ", "b", "y"))),
    odd("a long name", just(("a" * 100_000, "b", "y"))),
    odd("numbers", just(("1", "2", "3"))),
    bad("twice", just(("a", "a", "y"))),
    bad("two without a name", just(("", "", "y"))),
)

#: Cells for which another separator may fit as well.
_TRICKY = {"quotes and separators", "lines", "thousands", "currency", "long numbers"}


@_files(
    "CSV tables",
    3.0,
    a=CELLS,
    b=CELLS,
    form=FORMS,
    header=HEADERS,
    rows=(fine("60", 60), fine("1", 1), bad("none", 0)),
    ragged=(fine("no", 0), bad("one cell less", -1), bad("one cell more", 1), odd("blank lines", 2)),
    read=(fine("as text", just(True)), fine("typed", just(False)), odd("a problem", just("problem"))),
)
def run_csv(case: Case) -> None:
    """Read every cell as the csv module does."""
    n, ragged = case["rows"], case["ragged"]
    rows = [list(row) for row in zip(case["a"](n), case["b"](n), [str(i % 2) for i in range(n)], strict=True)]
    if ragged in (-1, 1) and n:
        rows[n // 2] = rows[n // 2][:2] if ragged == -1 else [*rows[n // 2], "more"]
    buffer = io.StringIO(newline="")
    csv.writer(buffer, **case["form"]).writerows([case["header"], *rows])
    text = buffer.getvalue()
    path = case.folder / "t.csv"
    path.write_bytes((f"\n\n{text}\n\n" if ragged == 2 else text).encode())
    _spoil(case, path)
    tricky = case.name("header") == "names with separators" or {case.name("a"), case.name("b")} & _TRICKY
    if tricky or n <= 1:
        case.owe(ODD)  # another separator may fit as well; it must be an error then, not another table
    if case.owed == BAD and (ragged == 2 or (not n and (ragged or case.name("bytes") == "moved"))):
        case.excuse()  # there is no row to be ragged, or the header became two lines
    wanted = case["read"]
    table = _read(case, lambda: read_table(path, as_text=wanted is True), path)
    raw = path.read_text("utf-8-sig")
    found = table.frame
    if wanted == "problem":
        if "y" in found.columns:
            problem = make_problem(table, "y")
            check(len(problem.features) == len(problem.target) <= len(found), "another number of rows")
            check(problem.features.width + 1 <= found.width, "more columns than in the file")
        return
    parsed = [rows for each in ",;\t|" if (rows := _parsed(raw, each))]
    fitting = [cells for names, *cells in parsed if [name.strip() for name in names] == found.columns]
    check(fitting, f"columns {found.columns!r:.100} that no separator gives")
    tables = [[row for row in cells if row] for cells in fitting]
    check(any(_same_cells(found, cells) for cells in tables), "other cells than the csv module reads")


def _parsed(text: str, separator: str) -> list[list[str]]:
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    except csv.Error:
        return []
    return list(itertools.dropwhile(lambda row: not row, rows))


def _same_cells(frame: pl.DataFrame, cells: list[list[str]]) -> bool:
    """Compare a table with its cells as text: numbers by value, text by text."""
    if len(cells) != len(frame) or any(len(row) != frame.width for row in cells):
        return False
    return all(
        _same_cell(value, row[j].strip(WHITE))
        for j, column in enumerate(frame.iter_columns())
        for value, row in zip(column.to_list(), cells, strict=True)
    )


_NO_VALUE = {"", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "?"}
WHITE = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


def _same_cell(value: Any, text: str) -> bool:
    if text in _NO_VALUE:
        return value is None
    if isinstance(value, int):
        return int(text) == value
    if isinstance(value, float):
        return value == float(text.replace(",", "."))
    return value == text


# --- data sets of the laboratory ---


def _checksum(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@functools.cache
def _images() -> dict[str, np.ndarray]:
    draws = np.random.default_rng(0)
    arrays = {}
    for part, n in (("train", 6), ("val", 3), ("test", 3)):
        arrays[f"{part}_images"] = draws.integers(0, 256, (n, 28, 28)).astype(np.uint8)
        arrays[f"{part}_labels"] = draws.integers(0, 2, (n, 1)).astype(np.uint8)
    return arrays


def _npy_of(value: Any, **changes: Any) -> bytes:
    """Write an array; ``changes`` contradict its header."""
    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=True)
    data = buffer.getvalue()
    if not changes:
        return data
    header = {"descr": value.dtype.str, "fortran_order": False, "shape": value.shape, **changes}
    text = repr(header).encode()
    text += b" " * ((64 - (len(text) + 11) % 64) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data[128:]


#: The first array of an archive, changed.
ARRAYS = (
    fine("as they were", just(_npy_of)),
    odd("a huge shape", just(lambda array: _npy_of(array, shape=(2**34, 28, 28)))),
    odd("a negative shape", just(lambda array: _npy_of(array, shape=(-1, 28)))),
    odd("objects", just(lambda array: _npy_of(np.array([Bomb()], dtype=object)))),
    odd("another type", just(lambda array: _npy_of(array.astype(np.float64)))),
    odd("a type of nothing", just(lambda array: _npy_of(array, descr="|V0"))),
    odd("a type that is none", just(lambda array: _npy_of(array, descr="zzz"))),
    odd("no array", just(lambda array: b"not an array")),
    odd("empty", just(lambda array: b"")),
    odd("the other order", just(lambda array: _npy_of(array, fortran_order=True))),
)


@_files("archives of images", arrays=ARRAYS, zip=ZIPS)
def run_medmnist(case: Case) -> None:
    """Read the published arrays, or say what is wrong with the file."""
    path = case.folder / "breastmnist" / "breastmnist.npz"
    path.parent.mkdir()
    members = [(f"{name}.npy", _npy_of(array)) for name, array in _images().items()]
    changed = members[0][0], case["arrays"](_images()["train_images"])
    path.write_bytes(zip_of([changed, *members[1:]]))
    _spoil(case, path)
    if case["zip"] is not None:
        case.owe(ODD)  # even another order of members is another file than the published one
    published = medmnist.MEDMNIST["breastmnist"]
    file = dataclasses.replace(published.file, checksum=_checksum(zip_of(members)))
    tiny = dataclasses.replace(published, file=file, sizes=(6, 3, 3))
    options = {"data_dir": case.folder, "pixels": "uint8"}
    with mock.patch.dict(medmnist.MEDMNIST, breastmnist=tiny):
        try:
            found = _read(case, lambda: medmnist.load_medmnist("breastmnist", **options), path)
        finally:
            check(not Bomb.went_off, "a pickle was loaded")
    check(_same_bytes(found.test.x.numpy()[:, 0], _images()["test_images"]), "other images than in the file")


@_files(
    "idx files",
    0.7,
    packed=(fine("gzip", just(True)), fine("plain", just(False))),
    content=(
        fine("as it was", just(lambda data: data)),
        odd("a bomb", just(lambda data: data + b"\0" * 2**27)),
        odd("other sizes", just(lambda data: data[:4] + b"\x7f\xff\xff\xff" + data[8:])),
        odd("another type", just(lambda data: b"\0\0\x0d\x03" + data[4:])),
    ),
)
def run_idx(case: Case) -> None:
    """Read the published bytes, or say what is wrong with the file."""
    images = _images()["test_images"]
    plain = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in images.shape) + images.tobytes()
    known = fashion.IdxFile("tiny-idx3-ubyte", images.shape, _checksum(plain))
    path = case.folder / "fashion_mnist" / ("tiny-idx3-ubyte" + (".gz" if case["packed"] else ""))
    path.parent.mkdir()
    data = case["content"](plain)
    path.write_bytes(gzip.compress(data, 1) if case["packed"] else data)
    _spoil(case, path)
    found = _read(case, lambda: fashion.read_idx(known, case.folder), path)
    check(_same_bytes(found, images), "other images than in the file")


@target(
    "image files",
    {
        "form": (*_named_choices("PNG", "JPEG"), bad("GIF", just("GIF")), bad("BMP", just("BMP"))),
        "mode": (*_named_choices("RGB", "L"), *(odd(mode, just(mode)) for mode in ("RGBA", "1", "P"))),
        "size": (
            fine("8 x 5", just((8, 5))),
            fine("1 x 1", just((1, 1))),
            bad("claims to be huge", just((60_000, 60_000))),
        ),
        "bytes": BYTES,
    },
    share=0.7,
    limit=20.0,
)
def run_images(case: Case) -> None:
    """Decode what Pillow decodes, within limits."""
    mode = "RGB" if case["form"] == "JPEG" and case["mode"] != "L" else case["mode"]
    buffer = io.BytesIO()
    is_huge = case.name("size") == "claims to be huge"
    image = Image.new(mode, (8, 5) if is_huge else case["size"], 1)
    image.save(buffer, format="PNG" if is_huge else case["form"])
    data = buffer.getvalue()
    if is_huge:
        head = b"IHDR" + b"".join(n.to_bytes(4, "big") for n in case["size"]) + data[24:29]
        data = data[:12] + head + zlib.crc32(head).to_bytes(4, "big") + data[33:]
    data = case["bytes"](data)
    found = _read(case, lambda: read_rgb(data, "a.png"), "a.png")
    check(found.dtype == np.uint8 and found.ndim == 3 and found.shape[2] == 3, f"shape {found.shape}")
    if _is_harmless(case, "bytes"):
        expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        check(_same_bytes(found, expected), "other pixels than Pillow's")


_TABLE = {b"data": np.arange(12, dtype=np.uint8).reshape(3, 4), b"labels": [1, 2, 3]}


@target(
    "pickles",
    {
        "content": (
            fine("arrays", just(_TABLE)),
            fine("nested", just([{"a": (1, 2.5, None, "b")}, [b"c"]])),
            bad("a call", just([Bomb()])),
            bad("objects", just(np.array([Bomb()], dtype=object))),
            bad("a class", just([Path("x")])),
            odd("a complex array", just(np.ones(3, dtype=complex))),
            odd("a set", just({1, 2})),
        ),
        "protocol": (*(fine(str(n), n) for n in (2, 0, 3, 4)), odd("5", 5)),  # arrays by another function
        "bytes": BYTES,
    },
    share=0.7,
    limit=20.0,
)
def run_pickles(case: Case) -> None:
    """Read plain containers and arrays, and run nothing."""
    raw = case["bytes"](pickle.dumps(case["content"], protocol=case["protocol"]))
    Bomb.went_off = False
    try:
        found = _read(case, lambda: load_plain_pickle(raw, "a.pickle"), "a.pickle")
    finally:
        check(not Bomb.went_off, "a pickle was run")
    if _is_harmless(case, "bytes"):
        check(repr(found) == repr(case["content"]), "another content than was written")


def _first(*cells: str) -> Callable[[Case], Callable[[list[list[str]]], list[list[str]]]]:
    """Replace the first cells of a table."""
    return just(lambda rows: [[*cells, *rows[0][len(cells) :]], *rows[1:]])


@_files(
    "published tables",
    0.7,
    cells=(
        fine("as they were", just(lambda rows: rows)),
        odd("a word", _first("red")),
        odd("a long cell", _first("x" * 200_000)),
        odd("a huge number", _first("9" * 400)),
        odd("a huge domain", _first("0.0", "9" * 30)),
        odd("NaN", _first("nan")),
        odd("missing", _first("?")),
        odd("a row less", just(lambda rows: rows[1:])),
        odd("a quote", _first('"')),
    ),
)
def run_tabular(case: Case) -> None:
    """Read the published numbers, or say what is wrong with the file."""
    rows = [[str(i * 0.5), str(i % 4), str(i)] for i in range(20)]

    def written(rows: list[list[str]]) -> bytes:
        return "".join(",".join(row) + "\n" for row in rows).encode()

    path = case.folder / "tiny" / "tiny.csv"
    path.parent.mkdir()
    path.write_bytes(written(case["cells"](rows)))
    _spoil(case, path)
    file = dataclasses.replace(tabular._NO2.file, path="tiny/tiny.csv", checksum=_checksum(written(rows)))
    table = tabular._Table("tiny", file, (10, 5, 5), "nowhere", 3, target=2, features=(0,), domain=1)
    found = _read(case, lambda: tabular._load(table, 0, case.folder, "train"), path)
    parts = (found.train, found.validation, found.test)
    numbers = sorted(float(y) for part in parts for y in part.y.flatten())
    check(numbers == [float(i) for i in range(20)], "other targets than in the file")
