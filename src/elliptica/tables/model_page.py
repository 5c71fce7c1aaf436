"""The report page of one model: scores by class and group, findings of diagnose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from elliptica._utils.extras import missing_package
from elliptica._utils.statistics import clopper_pearson, student_quantile
from elliptica.core.layers import evaluation_mode
from elliptica.report.content import (
    DASH,
    Bar,
    Grid,
    Measure,
    Parts,
    Remark,
    Report,
    ReportError,
    Study,
    Verdict,
    pooled,
)
from elliptica.report.scores import score_classes
from elliptica.tables.diagnose import diagnose_fitted
from elliptica.tables.findings import Diagnosis, Quantity
from elliptica.tables.fitted_model import FittedModel

_NOTE = "Scores on the given rows. If the model was trained on them, they say nothing about other rows."
#: Bars of a picture, and rows that are listed.
_BARS, _SHOWN_ROWS = 10, 30


def model_report(study: Study, fitted: FittedModel, title: str, *, seed: int) -> Report:
    """Add findings to the study of a model, and assemble the page.

    Raises:
        ReportError: If the loss of the model cannot be evaluated.
    """
    try:
        diagnosis = diagnose_fitted(fitted, generator=torch.Generator().manual_seed(seed))
    except (ValueError, TypeError) as error:
        raise ReportError(str(error)) from error
    return Report(title, "model", diagnosis.headline(), [study], findings=remarks(diagnosis))


def diagnosis_report(diagnosis: Diagnosis, title: str) -> Report:
    """Make a page of a diagnosis."""
    return Report(
        title, "diagnosis", diagnosis.headline(), [], notes=diagnosis.about, findings=remarks(diagnosis)
    )


def remarks(diagnosis: Diagnosis) -> list[Remark]:
    """Convert findings to remarks of a page, each with its picture and its rows."""
    result = []
    for finding in diagnosis.findings:
        numbers = finding.breakdown or {
            name: quantity for name, quantity in finding.numbers.items() if quantity.kind == "share"
        }
        bars = [_bar(label, quantity) for label, quantity in list(numbers.items())[:_BARS]]
        rows = ""
        if finding.rows:
            more = f" and {len(finding.rows) - _SHOWN_ROWS} more" if len(finding.rows) > _SHOWN_ROWS else ""
            shown = ", ".join(map(str, finding.rows[:_SHOWN_ROWS]))
            rows = f"{finding.rows_of.capitalize()} rows, counted from {diagnosis.first_row}: {shown}{more}."
        title = finding.title or finding.name.replace("_", " ")
        result.append(Remark(finding.severity, title, finding.sentence, finding.advice, bars, rows))
    return result


def _bar(label: str, quantity: Quantity) -> Bar:
    low, high = (v if math.isfinite(v) else quantity.value for v in (quantity.lower, quantity.upper))
    return Bar(label, quantity.value, low, high, str(quantity))


def model_study(
    fitted: FittedModel, *, unit: float = 1.0, rows: str = "the rows given", **more: Any
) -> Study:
    """Measure a model on its test rows, or on its rows if it has none.

    Args:
        fitted: The model with its rows.
        unit: Factor from errors of scaled targets to the user's unit.
        rows: Name of the rows in the text.
        **more: Other fields of the study.

    Raises:
        ReportError: If the model cannot be evaluated on these rows.
    """
    x, y = (fitted.x, fitted.y) if fitted.test is None else fitted.test
    groups = fitted.groups if fitted.test is None else fitted.test_groups
    parts = None if groups is None else [str(each) for each in groups]
    try:
        output = _outputs(fitted, x)
        if y.is_floating_point():
            return _values_study(fitted.name, output, y.float(), parts, unit, rows, **more)
        return _classes_study(fitted, output, y, parts, rows, **more)
    except ModuleNotFoundError as error:
        raise ReportError(str(missing_package("A score", "lab", error.name))) from error
    except (ValueError, RuntimeError, TypeError, IndexError) as error:
        raise ReportError(f"The model cannot be measured on {rows}: {error}") from error


def _outputs(fitted: FittedModel, x: Tensor) -> Tensor:
    """Evaluate a model in the dtype of its parameters; return float32 on the CPU."""
    first = next((p for p in fitted.model.parameters() if p.is_floating_point()), x)
    with evaluation_mode(fitted.model), torch.no_grad():
        return torch.cat([fitted.model(each.to(first)).float().cpu() for each in x.split(fitted.batch_size)])


def _classes_study(
    fitted: FittedModel, output: Tensor, y: Tensor, groups: list[str] | None, rows: str, **more: Any
) -> Study:
    name, names = fitted.name, [fitted.class_name(label) for label in range(output.shape[1])]
    right = (output.argmax(1) == y).double()
    scores = score_classes(output.softmax(1).double(), y)
    present = y.unique().tolist()
    parts = [_shares("class", {names[k]: right[y == k] for k in present}, name)]
    if groups is not None:
        of = {group: torch.tensor([each == group for each in groups]) for group in sorted(set(groups))}
        parts.insert(0, _shares("group", {group: right[rows_of] for group, rows_of in of.items()}, name))
    low, high = (100 * limit for limit in clopper_pearson(round(float(right.sum())), len(y)))
    average = 100 * float(right.mean())
    by_class = [each for (each,) in parts[-1].values[name].values()]
    entries: list[tuple[str, float | None, str]] = [
        ("accuracy, %", average, f"{low:.1f} to {high:.1f}"),
        ("accuracy balanced over classes, %", sum(by_class) / len(by_class), ""),
        (f"worst-{parts[0].kind} accuracy, %", min(v[0] for v in parts[0].values[name].values()), ""),
        ("area under the ROC curve, %", None if scores["auroc"] is None else 100 * scores["auroc"], ""),
        ("calibration error, %", 100 * scores["calibration"], ""),
    ]
    sizes = {names[k]: int((y == k).sum()) for k in present}
    order = sorted(sizes, key=lambda each: sizes[each])
    uncertainty = {name: {names[int(k)]: [v] for k, v in scores["uncertainty"].items()}}
    bins = scores["reliability"]
    return _study(
        name,
        Measure("average", "accuracy", True, True),
        average,
        entries,
        rows,
        parts=parts,
        reliability={name: pooled(bins["rows"], bins["confidence"], bins["right"])},
        uncertainty=Parts("class", order, uncertainty, sizes, "rows given"),
        **more,
    )


def _values_study(
    name: str, output: Tensor, y: Tensor, groups: list[str] | None, unit: float, rows: str, **more: Any
) -> Study:
    squares = (unit * (output - y)).square().reshape(len(output), -1).mean(1).double()
    low, high = _root_interval(squares)
    average = math.sqrt(float(squares.mean()))
    entries: list[tuple[str, float | None, str]] = [("RMSE", average, f"{low:.4g} to {high:.4g}")]
    parts = []
    if groups is not None:
        names = sorted(set(groups))
        of = {group: squares[torch.tensor([each == group for each in groups])] for group in names}
        values = {name: {group: [math.sqrt(float(v.mean()))] for group, v in of.items()}}
        limits = {name: {group: _root_interval(v) for group, v in of.items()}}
        sizes = {group: len(v) for group, v in of.items()}
        parts.append(Parts("group", names, values, sizes, "rows given", limits))
        entries.append(("worst-group RMSE", max(v[0] for v in values[name].values()), ""))
    measure = Measure("average", "RMSE", False, decimals=3)
    return _study(name, measure, average, entries, rows, parts=parts, **more)


def _study(
    name: str,
    measure: Measure,
    value: float,
    entries: Sequence[tuple[str, float | None, str]],
    rows: str,
    **more: Any,
) -> Study:
    lines: list[list[tuple[str, float | str, bool]]] = []
    for label, number, limits in entries:
        digits = ".1f" if label.endswith("%") else ".4g"
        shown = (DASH, math.nan) if number is None else (f"{number:{digits}}", number)
        lines.append([(label, label, False), (*shown, False), (limits or DASH, limits, False)])
    notes = [*more.pop("notes", ()), _NOTE]
    return Study(
        name="model",
        title=name,
        subtitle=rows,
        measures=[measure],
        methods=[name],
        reference=name,
        values={measure.name: {name: {0: value}}},
        verdict=Verdict(""),
        table=Grid(f"Scores on {rows}", ["measure", "value", "95 % interval"], lines),
        notes=notes,
        **more,
    )


def _shares(kind: str, right: Mapping[str, Tensor], method: str) -> Parts:
    """Return the share of right answers in each part, in percent, with its limits."""
    sizes = {name: len(each) for name, each in right.items()}
    values = {method: {name: [100 * float(each.mean())] for name, each in right.items()}}
    limits = {}
    for name, each in right.items():
        low, high = clopper_pearson(round(float(each.sum())), len(each))
        limits[name] = (100 * low, 100 * high)
    return Parts(kind, list(sizes), values, sizes, "rows given", {method: limits})


def _root_interval(squares: Tensor) -> tuple[float, float]:
    """Return the roots of Student's interval for a mean square."""
    n = len(squares)
    if n < 2:
        return math.nan, math.nan
    half = student_quantile(0.975, n - 1) * float(squares.std()) / math.sqrt(n)
    mean = float(squares.mean())
    return math.sqrt(max(mean - half, 0.0)), math.sqrt(mean + half)
