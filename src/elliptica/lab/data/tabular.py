"""Load regression tables from their published files (paper: Table 3).

Airfoil and NO2 are split at random; SkillCraft and Crime by domain, so that test rows come from other leagues
or states than those trained on.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
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


def load_airfoil(
    seed: int, *, data_dir: str | os.PathLike[str] | None = None, scale: Statistics = "train"
) -> Dataset:
    """Load Airfoil Self-Noise: 5 inputs, sound pressure in dB as target (paper: Table 3).

    The rows are split as in the C-Mixup reference, which the paper follows: shuffled by NumPy's
    legacy generator, then 1003 / 300 / 200 rows for training, validation and test. With
    ``scale="all"`` the result is the reference's data for the same seed.

    Args:
        seed: Seed of the split, 0 to 2**32 - 1. Each seed gives another split.
        data_dir: Directory that holds ``airfoil/airfoil_self_noise.dat``; see
            `data_directories` if None.
        scale: Rows that give the minimum and maximum by which inputs are scaled to [0, 1]. The
            reference uses all rows, the test ones too; the default keeps to the training rows.

    Returns:
        Inputs of shape ``(n, 5)``, unscaled targets of shape ``(n, 1)``, all float32.
    """
    return _load("airfoil", seed, data_dir, scale)


def load_no2(
    seed: int, *, data_dir: str | os.PathLike[str] | None = None, scale: Statistics = "train"
) -> Dataset:
    """Load NO2: 7 traffic and weather inputs, log concentration as target (paper: Table 3).

    The paper's sizes are kept, 200 / 200 / 100 rows for training, validation and test.
    Deviation: which rows are in which part, and the scaling of the inputs, are our choice, because
    the reference loads arrays that were never published. We shuffle by NumPy's legacy generator
    and scale as for Airfoil. Do not compare single seeds with other work.

    Arguments and shapes are as for `load_airfoil`, with 7 columns; the file is ``no2/NO2.csv``.
    """
    return _load("no2", seed, data_dir, scale)


def load_skillcraft(
    seed: int, *, data_dir: str | os.PathLike[str] | None = None, scale: Statistics = "train"
) -> Dataset:
    """Load SkillCraft: 17 inputs, action latency in ms as target, leagues as domains.

    The rows are split by league as in the C-Mixup reference, which the paper follows: leagues 1 to 4
    (1878 rows) for training, 5 (806) for validation, 6 to 8 (711) for test. Every seed gives the same
    parts, in another order of rows.

    Arguments are as for `load_airfoil`; the file is ``skillcraft/SkillCraft1_Dataset.csv``. The rows of
    ``scale`` also give the means put in place of missing values.

    Returns:
        Inputs of shape ``(n, 17)``, unscaled targets of shape ``(n, 1)``, all float32; ``group`` is the
        league.
    """
    return _load("skillcraft", seed, data_dir, scale)


def load_crime(
    seed: int, *, data_dir: str | os.PathLike[str] | None = None, scale: Statistics = "train"
) -> Dataset:
    """Load Communities and Crime: 122 inputs, violent crimes as target, states as domains.

    The rows are split by the code of the state as in the C-Mixup reference, which the paper follows: 31
    states (1390 rows) for training, 6 (231) for validation, 9 (373) for test. Every seed gives the same
    parts, in another order of rows.

    Arguments and shapes are as for `load_skillcraft`, with 122 columns; ``group`` is the code of the state
    and the file ``crime/communities.data``.
    """
    return _load("crime", seed, data_dir, scale)


def _load(name: str, seed: int, data_dir: str | os.PathLike[str] | None, scale: Statistics) -> Dataset:
    """Read, split, shuffle, fill in and scale."""
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
