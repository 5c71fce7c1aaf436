"""A page about a model of the user's own, with the data that `elliptica diagnose` takes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from torch import Tensor, nn

from elliptica.diagnostics.command import obtain_network
from elliptica.diagnostics.diagnose import diagnose
from elliptica.diagnostics.diagnose_command import LossName, loss_and_targets
from elliptica.diagnostics.findings import Diagnosis
from elliptica.diagnostics.report_landscape import Subject, look_at
from elliptica.diagnostics.scores import model_study
from elliptica.diagnostics.source import SourceError, load_samples
from elliptica.report.content import Report, ReportError, Study, digest, present_versions


def own_model_report(
    source: str,
    *,
    model: str | None = None,
    weights: Path | None = None,
    train: str = "erm",
    steps: int = 2000,
    loss: str = "auto",
    landscape: bool = True,
    seed: int = 0,
    title: str | None = None,
) -> Report:
    """Scores, findings and landscape of a model from ``package.module:name``, or of one trained here."""
    try:
        if loss != "auto" and model is None:
            raise SourceError("--loss needs --model: a network trained here has the loss of its task.")
        samples = load_samples(source, seed)
        network = obtain_network(model, weights, samples, cast(Any, train), steps, seed, Console(quiet=True))
        loss_fn, y = loss_and_targets(samples, cast(LossName, loss))
    except (SourceError, ValueError, TypeError) as error:
        raise ReportError(str(error)) from error
    name = model or f"Small network trained here ({train})"
    notes = [] if model else [f"No --model: this is a network trained here, {steps} steps."]
    is_labels = samples.is_classification and loss in ("auto", "cross-entropy")
    test_x = samples.x if samples.test_x is None else samples.test_x
    test_y = (samples.y if samples.test_y is None else samples.test_y) if is_labels else None
    command = ["elliptica", "report", source]
    command += ["--model", model] if model else ["--train", train]
    study = model_study(
        name,
        network,
        test_x if is_labels else samples.x,
        test_y if test_y is not None else y,
        groups=(samples.train_group if samples.test_x is None or not is_labels else samples.group),
        class_names=(),
        rows=f"the {'test ' if is_labels and samples.test_x is not None else ''}rows of {samples.name}",
        notes=notes,
        commands=[" ".join(command)],
        versions={**present_versions(), **_hashes(source, weights)},
    )
    subject = Subject(name, network, loss_fn, samples.x, y, feature_names=("x1", "x2"))
    title = title or f"{name} on {samples.name}"
    return finished(study, subject, title, samples.train_group, landscape=landscape, seed=seed)


def finished(
    study: Study, subject: Subject, title: str, groups: Any, *, landscape: bool, seed: int
) -> Report:
    """Add findings and the landscape, and put the page together."""
    findings: list[tuple[str, str, str, str]] = []
    headline = "The loss of this model was not looked at (--no-landscape)."
    if landscape:
        study = replace(study, landscapes=[look_at(subject, seed)])
        diagnosis = _diagnosis(subject.model, subject.loss_fn, subject.x, subject.y, groups, seed)
        order = ("warning", "look", "fine")
        ranked = sorted(diagnosis.findings, key=lambda f: order.index(f.severity))  # the gravest first
        # a sentence that ends in a colon leads to a list, which is on the screen only
        findings = [
            (f.severity, f.name, re.sub(r"[^.]*:$", "", f.sentence).strip(), f.advice) for f in ranked
        ]
        headline = "Nothing stands out in the loss of this model."
        if diagnosis.severity != "fine":
            headline = findings[0][2]
    else:
        study = replace(study, missing={**study.missing, "landscape": "Left out (--no-landscape)."})
    return Report(title, "model", headline, [study], findings=findings)


def _diagnosis(model: nn.Module, loss_fn: Any, x: Tensor, y: Tensor, groups: Any, seed: int) -> Diagnosis:
    try:
        generator = torch.Generator().manual_seed(seed)
        return diagnose(model, loss_fn, x, y, groups=groups, n=400, generator=generator)
    except (ValueError, TypeError) as error:
        raise ReportError(str(error)) from error


def _hashes(source: str, weights: Path | None) -> dict[str, str]:
    files = {"data": Path(source), "weights": weights}
    return {f"sha256 of {name}": digest(f) for name, f in files.items() if f is not None and f.is_file()}
