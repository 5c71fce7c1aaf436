"""A model on data as a study: how good it is there, by class and group, and how much it may be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from elliptica._utils.statistics import clopper_pearson, student_quantile
from elliptica.lab.data.splits import Split
from elliptica.report.content import DASH, Grid, Measure, Parts, ReportError, Study, Verdict, pooled

_NOTE = (
    "Scores on the rows that were given. If the model was trained on them, they say nothing about other rows."
)


def model_study(
    name: str,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    groups: Sequence[str] | None,
    class_names: Sequence[str],
    unit: float = 1.0,
    rows: str = "the rows given",
    **more: Any,
) -> Study:
    """Measure a model on rows; ``unit`` turns errors of scaled targets into the user's."""
    from elliptica.lab.experiments.metrics import measure

    is_class = not y.is_floating_point()
    group_names = sorted(set(groups)) if groups is not None else []
    number = {name: i for i, name in enumerate(group_names)}
    group = None if groups is None else torch.tensor([number[g] for g in groups])
    try:
        split = Split(x.float(), y if is_class else y.float(), group)
        found = measure(_InFloat(model), split, "accuracy" if is_class else "rmse", torch.device("cpu"))
    except ModuleNotFoundError as error:
        raise ReportError(f'Scores need {error.name}: pip install "elliptica[lab]"') from error
    except (ValueError, RuntimeError, TypeError, IndexError) as error:
        raise ReportError(f"The model cannot be measured on {rows}: {error}") from error
    if is_class:
        names = [class_names[i] if i < len(class_names) else str(i) for i in range(1 + int(y.max()))]
        return _classes_study(name, found, y, group, names, group_names, rows, **more)
    return _values_study(name, model, found, split, group_names, unit, rows, **more)


class _InFloat(nn.Module):
    """A model that is fed in the dtype of its own parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), x.dtype)
        return self.model(x.to(dtype))


def _classes_study(
    name: str,
    found: Mapping[str, Any],
    y: Tensor,
    group: Tensor | None,
    names: Sequence[str],
    group_names: Sequence[str],
    rows: str,
    **more: Any,
) -> Study:
    parts = [_shares("class", found["by_class"], y, names, name)]
    if group is not None:
        parts.insert(0, _shares("group", found["by_group"], group, group_names, name))
    right = round(found["average"] * len(y))
    low, high = (100 * limit for limit in clopper_pearson(right, len(y)))
    entries: list[tuple[str, float | None, str]] = [
        ("accuracy, %", 100 * found["average"], f"{low:.1f} to {high:.1f}"),
        ("accuracy balanced over classes, %", 100 * found["balanced"], ""),
        (f"worst-{parts[0].kind} accuracy, %", 100 * found["worst"], ""),
        ("area under the ROC curve, %", None if found["auroc"] is None else 100 * found["auroc"], ""),
        ("calibration error, %", 100 * found["calibration"], ""),
    ]
    sizes = {names[int(k)]: int((y == int(k)).sum()) for k in found["by_class"]}
    order = sorted(sizes, key=lambda each: sizes[each])
    uncertainty = {name: {names[int(k)]: [v] for k, v in found["uncertainty"].items()}}
    measure = Measure("average", "accuracy", True, True)
    bins = found["reliability"]
    return _study(
        name,
        measure,
        100 * found["average"],
        entries,
        rows,
        parts=parts,
        reliability={name: pooled(bins["rows"], bins["confidence"], bins["right"])},
        uncertainty=Parts("class", order, uncertainty, sizes, "rows given"),
        **more,
    )


def _values_study(
    name: str,
    model: nn.Module,
    found: Mapping[str, Any],
    split: Split,
    group_names: Sequence[str],
    unit: float,
    rows: str,
    **more: Any,
) -> Study:
    from elliptica.lab.experiments.metrics import predictions

    output = predictions(_InFloat(model), split, torch.device("cpu"))
    squares = (unit * (output - split.y)).square().reshape(len(output), -1).mean(1).double()
    low, high = _root_interval(squares)
    entries: list[tuple[str, float | None, str]] = [
        ("RMSE", math.sqrt(float(squares.mean())), f"{low:.4g} to {high:.4g}")
    ]
    parts = []
    if split.group is not None:
        labels = {g: squares[split.group == i] for i, g in enumerate(group_names)}
        values = {name: {g: [math.sqrt(float(v.mean()))] for g, v in labels.items()}}
        limits = {name: {g: _root_interval(v) for g, v in labels.items()}}
        sizes = {g: len(v) for g, v in labels.items()}
        parts.append(Parts("group", group_names, values, sizes, "rows given", limits))
        entries.append(("worst-group RMSE", max(v[0] for v in values[name].values()), ""))
    measure = Measure("average", "RMSE", False, decimals=3)
    return _study(name, measure, entries[0][1] or 0.0, entries, rows, parts=parts, **more)


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


def _shares(kind: str, by: Mapping[str, float], numbers: Tensor, names: Sequence[str], method: str) -> Parts:
    sizes = {names[int(k)]: int((numbers == int(k)).sum()) for k in by}
    values = {method: {names[int(k)]: [100 * v] for k, v in by.items()}}
    limits = {}
    for k, share in by.items():
        n = sizes[names[int(k)]]
        low, high = clopper_pearson(round(share * n), n)
        limits[names[int(k)]] = (100 * low, 100 * high)
    return Parts(kind, list(sizes), values, sizes, "rows given", {method: limits})


def _root_interval(squares: Tensor) -> tuple[float, float]:
    """Student's interval for a mean square, and its roots."""
    n = len(squares)
    if n < 2:
        return math.nan, math.nan
    half = student_quantile(0.975, n - 1) * float(squares.std()) / math.sqrt(n)
    mean = float(squares.mean())
    return math.sqrt(max(mean - half, 0.0)), math.sqrt(mean + half)
