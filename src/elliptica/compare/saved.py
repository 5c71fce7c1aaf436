"""A page about a model that `elliptica compare` or `elliptica.estimators.save` has written."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn

from elliptica._utils.text import count
from elliptica.compare.csv import TableError
from elliptica.compare.predict import load_pipeline, read_inputs
from elliptica.compare.table import as_numbers, check_column, read_table
from elliptica.diagnostics.own_model import finished
from elliptica.diagnostics.report_landscape import Subject
from elliptica.diagnostics.scores import model_study
from elliptica.estimators import EllipticClassifier
from elliptica.report.content import Report, ReportError
from elliptica.report.provenance import digest, present_versions


@dataclass(frozen=True)
class Opened:
    """A saved model with its data, as the network takes them."""

    subject: Subject
    estimator: Any
    groups: list[str] | None
    notices: tuple[str, ...]
    unit: float = 1.0


def saved_model_report(
    file: Path,
    data: Path | None,
    target: str | None,
    group: str | None = None,
    *,
    landscape: bool = True,
    seed: int = 0,
    title: str | None = None,
) -> Report:
    """Scores, findings and landscape of a saved model on the rows of a table."""
    if data is None or target is None:
        raise ReportError(
            f"A saved model needs the data that it is looked at with: elliptica report {file} --data "
            "table.csv --target COLUMN."
        )
    opened = open_model(file, data, target, group)
    subject = opened.subject
    words = ["elliptica", "report", str(file), "--data", str(data), "--target", target]
    words += ["--group", group] if group else []
    course = {
        "loss": list(opened.estimator.loss_curve_),
        "validation": list(opened.estimator.validation_scores_ or []),
    }
    best = opened.estimator.best_iteration_
    study = model_study(
        subject.name,
        subject.model,
        subject.x,
        subject.y,
        groups=opened.groups,
        class_names=subject.class_names,
        unit=opened.unit,
        rows=f"the {len(subject.x):,} rows of {data.name}",
        notes=opened.notices,
        curves={subject.name: [{**course, "epoch": [int(best or len(course["loss"])) - 1]}]}
        if course["loss"]
        else {},
        score_label=f"validation {'accuracy' if subject.class_names else 'R²'}",
        settings={subject.name: _settings(opened.estimator)},
        commands=[shlex.join(words)],
        versions={
            **present_versions(),
            "sha256 of the model": digest(file),
            "sha256 of the data": digest(data),
        },
    )
    title = title or f"{file.name} on {data.name}"
    return finished(study, subject, title, opened.groups, landscape=landscape, seed=seed)


def _settings(estimator: Any) -> str:
    parameters = estimator.get_params(deep=False)
    return ", ".join(f"{name} {value}" for name, value in parameters.items() if value is not None)


def open_model(file: Path, source: Path, target: str, group: str | None = None) -> Opened:
    """Read a saved model and a table, and bring the rows to where the network works.

    Raises:
        ReportError: If one cannot be read, or they do not belong together.
    """
    try:
        pipeline, notes = load_pipeline(file)
        table = read_table(source, max_rows=None, as_text=True)
        check_column(table, target, "target")
        if group is not None:
            check_column(table, group, "group")
        known = table.frame[target].cast(pl.String).str.strip_chars().fill_null("") != ""
        table = replace(table, frame=table.frame.filter(known))
        frame, notices = read_inputs(table, pipeline[0].to_dict()["columns"], notes, {target})
    except (TableError, OSError) as error:
        raise ReportError(str(error)) from error
    if len(table.frame) < 10:
        raise ReportError(
            f"{source} has {count(len(table.frame), 'row')} with a target; at least 10 are needed."
        )
    estimator = pipeline[-1]
    numbers = np.asarray(pipeline[0].transform(frame), dtype=np.float64)
    x = ((numbers - estimator.x_mean_) / estimator.x_scale_).astype(np.float32)
    texts = table.frame[target].cast(pl.String).str.strip_chars().to_list()
    class_names: list[str] = []
    unit, loss_fn = 1.0, _loss_of(estimator)
    if isinstance(estimator, EllipticClassifier):
        class_names = [str(c) for c in estimator.classes_.tolist()]
        y = torch.tensor(_labels(texts, class_names, target))
    else:
        column = as_numbers(table.frame[target].cast(pl.String), decimal_comma=table.decimal_comma)
        values = _numbers(column, texts, target)
        y = torch.tensor(
            ((values - estimator.y_mean_[0]) / estimator.y_scale_[0])[:, None], dtype=torch.float32
        )
        unit = float(estimator.y_scale_[0])
    columns = [str(name) for name in pipeline[0].get_feature_names_out()]
    groups = None if group is None else table.frame[group].cast(pl.String).fill_null("(missing)").to_list()
    in_plane = x.shape[1] == 2
    subject = Subject(
        name=f"{type(estimator).__name__}, {estimator.method}",
        model=estimator.module_,
        loss_fn=loss_fn,
        x=torch.from_numpy(x),
        y=y,
        groups=groups,
        class_names=class_names,
        feature_names=columns,
        location=estimator.x_mean_.tolist() if in_plane else (0.0, 0.0),
        scale=estimator.x_scale_.tolist() if in_plane else (1.0, 1.0),
    )
    return Opened(subject, estimator, groups, (*table.notices, *notices), unit)


def _loss_of(estimator: Any) -> nn.Module:
    """The loss that an estimator was trained with."""
    if getattr(estimator, "_is_multilabel", False):
        raise ReportError(
            "Models with several labels at once are not shown; use elliptica diagnose from Python."
        )
    return nn.CrossEntropyLoss() if hasattr(estimator, "classes_") else nn.MSELoss()


def _labels(texts: list[str], names: list[str], target: str) -> list[int]:
    number = {name: i for i, name in enumerate(names)}
    plain = {**{f"{n}.0": i for n, i in number.items()}, **number}
    unknown = sorted({text for text in texts if text not in plain})
    if unknown:
        raise ReportError(
            f"Column {target!r} holds {unknown[0]!r}, but the model knows the classes {', '.join(names[:8])}"
            f"{' ...' if len(names) > 8 else ''}. Pass the column that it learnt."
        )
    return [plain[text] for text in texts]


def _numbers(numbers: Any, texts: list[str], target: str) -> np.ndarray:
    """A column of numbers without gaps, or a sentence on what is none."""
    odd = numbers.is_null().arg_true().to_list()
    if odd:
        raise ReportError(
            f"Column {target!r} must hold numbers, as when the model was trained, but row {odd[0] + 1} holds "
            f"{texts[odd[0]]!r}. Pass the column that it learnt."
        )
    return numbers.to_numpy()
