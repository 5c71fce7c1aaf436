"""Pages about one model: scores by class and group, findings of diagnose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from elliptica._utils.statistics import clopper_pearson, student_quantile
from elliptica.core.layers import evaluation_mode
from elliptica.report.page import Bar, Page, Section
from elliptica.report.scores import score_classes
from elliptica.tables.diagnose import diagnose_fitted
from elliptica.tables.findings import Diagnosis, Finding, Quantity
from elliptica.tables.fitted_model import FittedModel
from elliptica.tables.model import fitted_predictor, read_labelled

#: Bars of a finding, and rows that are listed.
_BARS, _SHOWN_ROWS = 10, 30


def diagnosis_page(diagnosis: Diagnosis, title: str) -> Page:
    """Build the page of a diagnosis, the most important finding first."""
    sections = [_finding(finding, diagnosis.first_row) for finding in diagnosis.findings]
    return Page(title, diagnosis.headline(), diagnosis.about, sections, "diagnosis")


def model_page(fitted: FittedModel, title: str, *, notes: Sequence[str] = (), seed: int = 0) -> Page:
    """Build a page with scores and findings of a model on its test rows, or on its rows if it has none."""
    diagnosis = diagnose_fitted(fitted, generator=torch.Generator().manual_seed(seed))
    page = diagnosis_page(diagnosis, title)
    return replace(page, sections=[*_scores(fitted, notes), *page.sections], kind="model")


def saved_model_page(file: Path, data: Path, target: str | None = None, group: str | None = None) -> Page:
    """Build a page with scores and findings of a saved model on the rows of a table."""
    rows = read_labelled(file, data, target, group=group, max_rows=None)
    fitted = replace(fitted_predictor(rows), name=file.name)
    return model_page(fitted, f"{file.name} on {data.name}", notes=rows.notices)


def _finding(finding: Finding, first_row: int) -> Section:
    shares = {name: quantity for name, quantity in finding.numbers.items() if quantity.kind == "share"}
    bars = [_bar(label, quantity) for label, quantity in (finding.breakdown or shares).items()]
    text = [finding.sentence, *([finding.advice] if finding.advice else [])]
    if finding.rows:
        more = f" and {len(finding.rows) - _SHOWN_ROWS} more" if len(finding.rows) > _SHOWN_ROWS else ""
        shown = ", ".join(map(str, finding.rows[:_SHOWN_ROWS]))
        text.append(f"{finding.rows_of.capitalize()} rows, counted from {first_row}: {shown}{more}.")
    folded = finding.severity in ("info", "fine")
    title = finding.title or finding.name.replace("_", " ")
    return Section(title, text, bars=bars[:_BARS], mark=finding.severity, folded=folded)


def _bar(label: str, quantity: Quantity) -> Bar:
    low, high = (v if math.isfinite(v) else quantity.value for v in (quantity.lower, quantity.upper))
    return Bar(label, quantity.value, low, high, str(quantity))


def _scores(fitted: FittedModel, notes: Sequence[str]) -> list[Section]:
    """Measure a model on its test rows, or on its rows if it has none."""
    x, y = (fitted.x, fitted.y) if fitted.test is None else fitted.test
    groups = fitted.groups if fitted.test is None else fitted.test_groups
    first = next((p for p in fitted.model.parameters() if p.is_floating_point()), x)
    with evaluation_mode(fitted.model), torch.no_grad():
        output = torch.cat([fitted.model(b.to(first)).float().cpu() for b in x.split(fitted.batch_size)])
    warning = "If the model was trained on these rows, the scores say nothing about other rows."
    table, parts = [["measure", "value", "95 % interval"]], {}
    show = _rmse if y.is_floating_point() else _share
    if y.is_floating_point():
        losses = (output - y).square().reshape(len(output), -1).mean(1).double()
        table.append(["RMSE", *_rmse(losses)])
    else:
        losses = (output.argmax(1) == y).double()
        scores = score_classes(output.softmax(1).double(), y)
        auroc = "-" if scores["auroc"] is None else f"{100 * scores['auroc']:.1f} %"
        table += [["accuracy", *_share(losses)], ["area under the ROC curve", auroc, ""]]
        table.append(["calibration error", f"{100 * scores['calibration']:.1f} %", ""])
        parts["class"] = {fitted.class_name(k): y == k for k in y.unique().tolist()}
    if groups is not None:
        names = [str(group) for group in groups]
        parts["group"] = {g: torch.tensor([n == g for n in names]) for g in sorted(set(names))}
    sections = [Section("Scores", [f"{len(y):,} rows. {warning}", *notes], table)]
    for kind, members in parts.items():
        lines = [[name, f"{int(own.sum()):,}", *show(losses[own])] for name, own in members.items()]
        head = [kind, "rows", table[1][0], "95 % interval"]
        sections.append(Section(f"By {kind}", table=[head, *lines]))
    return sections


def _share(right: Tensor) -> list[str]:
    """Format the share of right answers with the limits of Clopper and Pearson."""
    low, high = clopper_pearson(round(float(right.sum())), len(right))
    return [f"{100 * float(right.mean()):.1f} %", f"{100 * low:.1f} to {100 * high:.1f}"]


def _rmse(squares: Tensor) -> list[str]:
    """Format the root of a mean square with the roots of Student's interval."""
    mean, n = float(squares.mean()), len(squares)
    if n < 2:
        return [f"{math.sqrt(mean):.4g}", ""]
    half = student_quantile(0.975, n - 1) * float(squares.std()) / math.sqrt(n)
    low, high = math.sqrt(max(mean - half, 0.0)), math.sqrt(mean + half)
    return [f"{math.sqrt(mean):.4g}", f"{low:.4g} to {high:.4g}"]
