"""Landscapes of models that `elliptica run --keep-models` has kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from elliptica.diagnostics.fitted_model import FittedModel
from elliptica.diagnostics.surfaces import loss_surfaces
from elliptica.lab.experiments.methods import make_loss
from elliptica.lab.experiments.problems import load_dataset, make_model
from elliptica.lab.experiments.report_records import Kept
from elliptica.lab.experiments.report_studies import Place
from elliptica.report.content import ReportError, Study
from elliptica.report.page import highlighted

#: Models of a study that are looked at: more would be a long wait and a large page.
_MOST = 3

ABSENT = "No models were kept; elliptica run --keep-models keeps those of new runs."


def add_landscapes(
    studies: Sequence[tuple[Place, Study, Sequence[Kept]]], data_dir: Path | None, seed: int
) -> tuple[list[Study], list[str]]:
    """Look at the first seed of up to three methods of each study: those that are in colour.

    Returns:
        The studies, and what could not be looked at.
    """
    found, notes = [], []
    for _, study, members in studies:
        models = [k for k in members if k.model_file.is_file()]
        if not models:
            found.append(replace(study, missing={**study.missing, "landscape": ABSENT}))
            continue
        landscapes: list[dict[str, Any]] = []
        reasons: list[str] = []
        for method in highlighted(study, len(study.methods)):
            mine = sorted((k for k in models if k.run.row == method), key=lambda k: k.run.seed)
            if not mine or len(landscapes) == _MOST:
                continue
            try:
                landscapes.append(loss_surfaces(_fitted(mine[0], data_dir), seed))
            except ReportError as error:
                reasons.append(f"{study.title}: {error}")
        missing = dict(study.missing) if landscapes else {**study.missing, "landscape": " ".join(reasons)}
        notes += reasons if landscapes else []
        found.append(replace(study, landscapes=landscapes, missing=missing))
    return found, notes


def _fitted(kept: Kept, data_dir: Path | None) -> FittedModel:
    run = kept.run
    try:
        data = load_dataset(run.load, run.seed, data_dir)
        model = make_model(run.model, data, f"{run.table}/{run.streams or run.dataset}", run.seed)
        weights = load_file(kept.model_file)
        model.load_state_dict({name.removeprefix("model/"): value for name, value in weights.items()})
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ReportError(f"the model of {run.row}, seed {run.seed}, cannot be used ({error})") from error
    if not data.train.x.is_floating_point():
        raise ReportError(
            f"the inputs of {run.dataset} are {data.train.x.dtype}: there is nothing between them"
        )
    name = f"{run.row}, seed {run.seed}"
    return FittedModel(model.float().eval(), make_loss(data.task), data.train.x, data.train.y, name=name)
