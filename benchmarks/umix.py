"""Whole trainings beside UMIX on Waterbirds features (paper: appendix A.1); needs the data."""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.timing import Measurement, compare
from elliptica.lab.experiments.registry import DATASETS
from elliptica.lab.experiments.run import Options, do_run
from elliptica.lab.experiments.specification import load_specification, runs


def training(row: str, folder: Path) -> Callable[[], object]:
    """A run of Table 4, with its measuring of every epoch."""
    specification = load_specification("table4")
    (run,) = runs("table4", specification, datasets=["waterbirds-features"], methods=[row], seeds=1)

    def train() -> None:
        do_run(run, Options(folder))
        for checkpoint in folder.rglob("*.safetensors"):
            checkpoint.unlink()

    return train


def measure() -> Iterator[Measurement]:
    """Twenty epochs of a linear head; UMIX has them twice. Data are read once."""
    DATASETS["waterbirds-features"] = functools.cache(DATASETS["waterbirds-features"])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        umix = training("umix", Path(name))
        for row, what in {
            "erm": "ordinary training",
            "marginal": "elliptic training, single points",
            "elliptic": "elliptic training, whole paths of five points",
            "elliptic + weighting": "the same, weighted",
        }.items():
            ours = training(row, Path(name))
            yield compare(f"{what}, Waterbirds features", ours, "UMIX, both stages", umix, math.inf, 5)
