"""Load regression tables from their published files (paper: Table 3).

Airfoil and NO2 are split at random; SkillCraft and Crime by domain, so that test rows come from other leagues
or states than those trained on.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from functools import partial
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray

from elliptica._utils import checks
from elliptica.lab.data.catalogue import find_entry, find_files
from elliptica.lab.data.splits import Dataset, Split, Statistics, min_max_scale


@dataclass(frozen=True)
class _Layout:
    """Columns of a published file, from 0."""

    target: int
    features: tuple[int, ...]
    domain: int | None = None
    delimiter: str = ","
    has_header: bool = False


_LAYOUTS = {
    "airfoil": _Layout(5, tuple(range(5)), delimiter="\t"),
    "no2": _Layout(0, tuple(range(1, 8))),
    "skillcraft": _Layout(13, (*range(2, 13), *range(14, 20)), domain=1, has_header=True),
    "crime": _Layout(127, tuple(range(5, 127)), domain=0),
}


def load_table(
    name: str, seed: int, *, data_dir: str | os.PathLike[str] | None = None, scale: Statistics = "train"
) -> Dataset:
    """Load a table, split as in the C-Mixup reference, which the paper follows (paper: Table 3).

    - ``"airfoil"``: 5 inputs, sound pressure in dB. Shuffled by NumPy's legacy generator, then 1003 / 300 /
      200 rows for training, validation and test. With ``scale="all"`` this is the reference's data for the
      same seed.
    - ``"no2"``: 7 traffic and weather inputs, log concentration; 200 / 200 / 100 rows. Deviation: rows are
      drawn, and inputs scaled, as for Airfoil, because the reference loads arrays that were never published.
      Do not compare single seeds with other work.
    - ``"skillcraft"``: 17 inputs, action latency in ms. Leagues 1 to 4 (1878 rows) for training, 5 (806) for
      validation, 6 to 8 (711) for test.
    - ``"crime"``: 122 inputs, violent crimes. 31 states (1390 rows), 6 (231) and 9 (373).

    Args:
        name: Name of the table.
        seed: Seed, 0 to 2**32 - 1: of the split or, with domains, of the order of rows within each part.
        data_dir: Directory that holds the files of the catalogue; see `data_directories` if None.
        scale: Rows that give the minimum and maximum by which inputs are scaled to [0, 1], and the means put
            in place of missing values. The reference uses all rows, the test ones too.

    Returns:
        Inputs and unscaled targets of shape ``(n, 1)``, float32; ``group`` is the domain, if there are some.
    """
    checks.choice("scale", scale, get_args(Statistics))
    layout = _LAYOUTS[name]
    (path,) = find_files(name, data_dir)
    with path.open(encoding="ascii", newline="") as file:
        rows = list(csv.reader(file, delimiter=layout.delimiter))[layout.has_header :]
    x = np.array([[_number(row[column]) for column in layout.features] for row in rows])
    y = np.array([float(row[layout.target]) for row in rows])
    rng = np.random.RandomState(seed)  # the legacy generator gives the reference's order of rows
    domain = None
    if layout.domain is None:
        parts = np.split(rng.permutation(len(rows)), np.cumsum(find_entry(name).rows)[:-1])
    else:
        domain = np.array([int(row[layout.domain]) for row in rows])
        parts = [rng.permutation(part) for part in _rows_by_domain(domain)]
    # Filled in and scaled in double precision and rounded once, as the reference does.
    inputs = [torch.from_numpy(x[part]) for part in parts]
    mean = (inputs[0] if scale == "train" else torch.cat(inputs)).nanmean(dim=0)
    first, *rest = (torch.where(part.isnan(), mean, part) for part in inputs)
    train, validation, test = (
        Split(
            scaled.float(),
            torch.from_numpy(y[part, None]).float(),
            None if domain is None else torch.from_numpy(domain[part]),
        )
        for scaled, part in zip(min_max_scale(first, rest, statistics=scale), parts, strict=True)
    )
    return Dataset(name, train, validation, test, task="regression")


load_airfoil, load_no2, load_skillcraft, load_crime = (partial(load_table, name) for name in _LAYOUTS)


def _number(cell: str) -> float:
    return float("nan") if cell == "?" else float(cell)


def _rows_by_domain(domain: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """Rows of the three parts: whole domains in the order of their codes, about 70, 10 and 20 percent.

    The domain in which the share is reached belongs to the next part, as in the reference.
    """
    codes, counts = np.unique(domain, return_counts=True)
    reached = counts.cumsum()
    n = len(domain)
    first = np.searchsorted(reached, int(0.7 * n))  # the first domain at which so many rows are reached
    second = np.searchsorted(reached, reached[first] + int(0.1 * n))
    part = np.searchsorted([first, second], np.searchsorted(codes, domain), side="right")
    return [np.flatnonzero(part == i) for i in range(3)]
