"""Regression tables whose test rows come from other domains: SkillCraft and Crime."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elliptica.lab.data.location import find_file, verify_sha256
from elliptica.lab.data.splits import Dataset, Split, Statistics, min_max_scale

_MISSING = "?"


@dataclass(frozen=True)
class _DomainTable:
    """What is known about a published file; columns that are neither of the three are not read."""

    name: str
    relative_path: str
    sha256: str
    n_columns: int
    has_header: bool
    domain: int
    target: int
    features: tuple[int, ...]
    sizes: tuple[int, int, int]
    source: str

    @property
    def n_rows(self) -> int:
        return sum(self.sizes)


_SKILLCRAFT = _DomainTable(
    name="skillcraft",
    relative_path="skillcraft/SkillCraft1_Dataset.csv",
    sha256="37fccf337772985e9e1d70292591a67c7dff919f5874b49051ec4e05e6137c46",
    n_columns=20,
    has_header=True,
    domain=1,
    target=13,
    features=(*range(2, 13), *range(14, 20)),
    sizes=(1878, 806, 711),
    source="UCI Machine Learning Repository, SkillCraft1 Master Table, https://doi.org/10.24432/C5161N",
)
_CRIME = _DomainTable(
    name="crime",
    relative_path="crime/communities.data",
    sha256="09e0b5c07eae24c1efab19b2edee05e160e7f5743b6f31e31eec3d73624da2ea",
    n_columns=128,
    has_header=False,
    domain=0,
    target=127,
    features=tuple(range(5, 127)),
    sizes=(1390, 231, 373),
    source="UCI Machine Learning Repository, Communities and Crime, https://doi.org/10.24432/C53W3X",
)


def load_skillcraft(
    seed: int,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    scale: Statistics = "train",
) -> Dataset:
    """Load SkillCraft: 17 inputs, action latency in ms as target, leagues as domains.

    The rows are split by league as in the C-Mixup reference, which the paper follows: leagues 1 to 4
    (1878 rows) for training, 5 (806) for validation, 6 to 8 (711) for test. Every seed gives the same
    parts, in another order of rows.

    Args:
        seed: Seed of the order of rows within each part, 0 to 2**32 - 1.
        data_dir: Directory that holds ``skillcraft/SkillCraft1_Dataset.csv``; see `data_directories`
            if None.
        scale: Rows that give the means put in place of missing values, and the minimum and maximum by
            which inputs are scaled to [0, 1]. The reference uses all rows, the test ones too; the
            default keeps to the training rows.

    Returns:
        Inputs of shape ``(n, 17)``, unscaled targets of shape ``(n, 1)``, all float32; ``group`` is the
        league.

    Raises:
        FileNotFoundError: If the file is missing.
        ValueError: If the file is not the published one.

    Example:
        >>> load_skillcraft(0).test.group.unique()  # doctest: +SKIP
        tensor([6, 7, 8])
    """
    return _load(_SKILLCRAFT, seed, data_dir, scale)


def load_crime(
    seed: int,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    scale: Statistics = "train",
) -> Dataset:
    """Load Communities and Crime: 122 inputs, violent crimes as target, states as domains.

    The rows are split by the code of the state as in the C-Mixup reference, which the paper follows: 31
    states (1390 rows) for training, 6 (231) for validation, 9 (373) for test. Every seed gives the same
    parts, in another order of rows.

    Args:
        seed: Seed of the order of rows within each part, 0 to 2**32 - 1.
        data_dir: Directory that holds ``crime/communities.data``; see `data_directories` if None.
        scale: Rows that give the means put in place of missing values, and the minimum and maximum by
            which inputs are scaled to [0, 1]. The reference uses all rows, the test ones too; the
            default keeps to the training rows.

    Returns:
        Inputs of shape ``(n, 122)``, targets of shape ``(n, 1)``, all float32; ``group`` is the code of
        the state.

    Raises:
        FileNotFoundError: If the file is missing.
        ValueError: If the file is not the published one.

    Example:
        >>> load_crime(0).validation.group.unique()  # doctest: +SKIP
        tensor([40, 41, 42, 44, 45, 46])
    """
    return _load(_CRIME, seed, data_dir, scale)


def _load(
    table: _DomainTable, seed: int, data_dir: str | os.PathLike[str] | None, scale: Statistics
) -> Dataset:
    """Read, check, split by domain, shuffle, fill in and scale."""
    if scale not in get_args(Statistics):
        raise ValueError(f"scale must be 'train' or 'all', but got {scale!r}. Pass one of the two.")
    path = find_file(table.relative_path, data_dir, source=table.source)
    x, y, domain = _read(path, table)  # before the hash: its message says what is wrong with a bad file
    verify_sha256(path, table.sha256, source=table.source)
    rng = np.random.RandomState(seed)
    parts = [rng.permutation(rows) for rows in _rows_by_domain(domain)]
    sizes = tuple(map(len, parts))
    if sizes != table.sizes:
        raise ValueError(
            f"Expected the domains of {path} to give parts of {table.sizes} rows, but they give {sizes}. "
            f"Put the original there. The original comes from: {table.source}."
        )
    # Filled in and scaled in double precision and rounded once.
    first, *rest = _fill_missing([torch.from_numpy(x[rows]) for rows in parts], scale)
    train, validation, test = (
        Split(part.float(), torch.from_numpy(y[rows, None]).float(), torch.from_numpy(domain[rows]))
        for part, rows in zip(min_max_scale(first, rest, statistics=scale), parts, strict=True)
    )
    return Dataset(table.name, train, validation, test, task="regression")


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


def _fill_missing(parts: list[Tensor], statistics: Statistics) -> list[Tensor]:
    """Put the mean of a column's known values in place of NaN."""
    seen = parts[0] if statistics == "train" else torch.cat(parts)
    mean = seen.nanmean(dim=0)
    return [torch.where(part.isnan(), mean, part) for part in parts]


def _read(
    path: Path, table: _DomainTable
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Parse inputs (NaN where missing), targets and domains, refusing another layout."""
    with path.open(encoding="ascii", errors="replace", newline="") as file:
        rows = [row for row in csv.reader(line.replace("\0", " ") for line in file) if row]
    body = rows[1:] if table.has_header else rows
    problem = _find_problem(body, table)
    if problem is not None:
        raise ValueError(
            f"Expected {path} to hold {table.n_rows} rows of {table.n_columns} values separated by ','"
            f"{', below a header' if table.has_header else ''}, but {problem}. The file is truncated or "
            f"another edition: delete it and put the original there. The original comes from: {table.source}."
        )
    x = [[_number(row[column]) for column in table.features] for row in body]
    y = [float(row[table.target]) for row in body]
    domain = [int(row[table.domain]) for row in body]
    return np.array(x, dtype=np.float64), np.array(y), np.array(domain, dtype=np.int64)


def _number(cell: str) -> float:
    return float("nan") if cell == _MISSING else float(cell)


def _find_problem(rows: list[list[str]], table: _DomainTable) -> str | None:
    """Say what is wrong with the rows, or None."""
    kinds = {column: _number for column in table.features} | {table.target: float, table.domain: int}
    for i, row in enumerate(rows):
        if len(row) != table.n_columns:
            return f"row {i + 1} has {len(row)} columns"
        for column, kind in kinds.items():
            try:
                kind(row[column])
            except ValueError:
                return f"row {i + 1} holds {row[column][:40]!r} in column {column + 1}"
    return None if len(rows) == table.n_rows else f"it holds {len(rows)} rows"
