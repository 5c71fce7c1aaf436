"""Build pages about a comparison and about a saved model on the rows of a table."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from elliptica._utils.files import read_json
from elliptica._utils.text import count
from elliptica.report.content import (
    DASH,
    Grid,
    Measure,
    Number,
    Parts,
    Report,
    ReportError,
    Study,
    Verdict,
    digest,
    natural_order,
    present_versions,
)
from elliptica.tables.markdown import footnotes, more_sections, progress_words, range_words, shown_scores
from elliptica.tables.methods import CONSTANT, NAMES, REFERENCE
from elliptica.tables.metrics import Metric
from elliptica.tables.model_page import model_report, model_study
from elliptica.tables.predict import LabelledRows, read_labelled
from elliptica.tables.store import RESULTS
from elliptica.tables.summary import Summary
from elliptica.tables.table import TableError

#: Minimum number of rows with a target for a page about a model.
MIN_ROWS = 10


def comparison_report(folder: Path, *, title: str | None = None) -> Report:
    """Build a report from ``results.json``; an unfinished comparison is shown as far as it got."""
    try:
        content = read_json(folder / RESULTS)
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}")
    except (ValueError, OSError) as error:
        raise ReportError(f"{folder / RESULTS} cannot be read ({error}). Move it away.") from error
    if "summary" not in content:
        if content.get("format", 1) < 2:
            raise ReportError(
                f"{folder / RESULTS} was written by an earlier version of elliptica, which judged "
                "comparisons differently. Its report.md still has the results; run the comparison again to "
                "get a page."
            )
        raise ReportError(
            f"{folder / RESULTS} has nothing to show yet. Let the comparison finish, or stop it with Ctrl-C, "
            "which leaves a report."
        )
    try:
        summary = Summary.from_json(content["summary"])
        study = _study(summary, content)
    except (TypeError, KeyError, ValueError, AttributeError, ArithmeticError) as error:
        raise ReportError(
            f"{folder / RESULTS} is damaged ({error!r}). Move it away and run the comparison again."
        ) from error
    if not summary.methods:
        raise ReportError(f"{folder / RESULTS} holds no finished fold yet. Rerun the same command to resume.")
    return Report(
        title=title or f"Comparison on {summary.name}",
        kind=f"comparison of {count(len(summary.trained), 'method')}",
        headline=summary.verdict.headline,
        studies=[study],
    )


def _study(found: Summary, content: Mapping[str, Any]) -> Study:
    names = {method: found.label(method) for method in found.methods}
    factor = {m.name: 100 if m.percent else 1 for m in found.metrics}
    values = {
        m.name: {
            names[method]: dict(enumerate(factor[m.name] * v for v in found.by_fold[method].get(m.name, [])))
            for method in found.methods
        }
        for m in found.metrics
    }
    scores = {
        m.name: {names[method]: factor[m.name] * found.scores[method][m.name] for method in found.methods}
        for m in found.metrics
    }
    measures = [_measure(m, list(scores[m.name].values())) for m in found.metrics]
    ordered = sorted(measures, key=lambda m: m.name != found.deciding)  # the deciding one first
    missing = {}
    if not found.is_complete:
        missing["seeds"] = f"Not finished: {progress_words(found)} Rerun the same command to resume."
    versions = content.get("versions", {})
    return Study(
        name="comparison",
        title=f"Predicting {found.target}",
        subtitle=_subtitle(found),
        measures=ordered,
        methods=list(names.values()),
        reference=names[REFERENCE],
        values=values,
        verdict=_in_display(found, names),
        table=_grid(found, names),
        parts=[_parts(found, names)] if found.parts else [],
        cost={"seconds": {names[m]: {0: found.seconds[m]} for m in found.trained}},
        commands=[str(content["command"])] if content.get("command") else [],
        versions={str(name): str(value) for name, value in versions.items()},
        missing=missing,
        notes=[*footnotes(found), *range_words(found)],
        repetition="fold",
        own=[names[m] for m in found.methods if m.startswith("elliptic")],
        scores=scores,
        sections=more_sections(found, has_charts=True),
        seeds_words="Small dots are folds; the bar is the score over all tested rows, as in the table.",
        differences_words=(
            f"Method minus {NAMES[REFERENCE]} on the same rows, as in the table. Intervals include training "
            "noise and hold jointly with 95 % confidence."
        ),
    )


def _subtitle(found: Summary) -> str:
    task = found.task + (f" with {len(found.classes)} classes" if found.classes else "")
    groups = f", groups by {found.group}" if found.group else ""
    return f"{found.n_rows:,} rows, {count(found.n_inputs, 'input')}, {task}{groups}. {found.shift}"


def _measure(metric: Metric, values: Sequence[float]) -> Measure:
    decimals = 1
    if not metric.percent:
        size = max((abs(v) for v in values), default=1.0) or 1.0
        decimals = max(0, 3 - math.floor(math.log10(size)))
    return Measure(
        metric.name, metric.label, metric.higher_is_better, metric.percent, decimals, relative=metric.relative
    )


def _in_display(found: Summary, names: Mapping[str, str]) -> Verdict:
    """Convert the verdict to the page's names and units, and add facts."""
    verdict, metrics = found.verdict, {metric.name: metric for metric in found.metrics}
    differences = [
        replace(d, method=names[d.method], mean=100 * d.mean, low=100 * d.low, high=100 * d.high)
        for d in verdict.differences
        if d.method in names
    ]
    said = [s for s in verdict.sentences if found.shift not in s]  # the page shows the shift above the table
    sentences = [*said, *(f"Caution: {each}" for each in found.cautions)]
    best = verdict.best
    if best is None or best not in names:
        return Verdict(verdict.headline, sentences, (), differences)
    telling = metrics[found.telling]
    level = telling.show(found.scores[best][telling.name])
    better = {d.method for d in verdict.differences if d.measure == telling.name and d.result == "better"}
    cell = found.cells[best][telling.name]
    change, _, rest = cell.partition(" (")
    interval = rest.partition(")")[0]
    sure = DASH if not cell else "shown" if best in better else "not shown"
    n_others = len(found.trained) - 1
    worth = f"{telling.label} {level}" if found.predicts else f"not better than {found.label(CONSTANT)}"
    facts = [
        ("Which method", NAMES[best] if found.predicts else "none", worth),
        ("Against ordinary training", change or DASH, f"interval {interval}" if cell else "it is the best"),
        ("How sure", sure, f"{len(better)} of {n_others} methods are shown to be better"),
        (
            "At what cost",
            f"{found.seconds[best]:.0f} s",
            f"ordinary training: {found.seconds[REFERENCE]:.0f} s",
        ),
    ]
    return Verdict(verdict.headline, sentences, facts, differences, names[best])


def _grid(found: Summary, names: Mapping[str, str]) -> Grid:
    """Build the table of scores; the deciding score comes first, where a phone shows it."""
    metrics = sorted(found.metrics, key=lambda metric: metric.name != found.deciding)
    rows: list[list[tuple[str, Number | str, bool]]] = []
    shown = {metric.name: shown_scores(found, metric) for metric in metrics}
    for method in found.methods:
        cells: list[tuple[str, Number | str, bool]] = [
            (shown[m.name][method], found.scores[method][m.name], False) for m in metrics
        ]
        words = found.cells[method][found.deciding]
        change = next(
            (d.mean for d in found.verdict.differences if (d.method, d.measure) == (method, found.deciding)),
            0.0,
        )
        is_best = method == found.verdict.best
        compared: tuple[str, Number | str, bool] = (
            _in_chunks(words) or DASH,
            change,
            is_best and words.endswith(" better"),
        )
        cost = found.seconds.get(method, 0.0)
        seconds: tuple[str, Number | str, bool] = (f"{cost:.1f}" if cost else DASH, cost, False)
        rows.append([(names[method], names[method], False), cells[0], compared, *cells[1:], seconds])
    head = ["method", metrics[0].label, f"compared with {NAMES[REFERENCE]}", *(m.label for m in metrics[1:])]
    return Grid("Scores of the test rows, the best method first", [*head, "seconds"], rows, words=(2,))


def _in_chunks(words: str) -> str:
    r"""Keep a number with its unit, and the ends of an interval together, at line breaks.

    Example:
        >>> _in_chunks("-12 % (-16 to -8) not distinguishable").split(" ")
        ['-12\xa0%', '(-16\xa0to\xa0-8)', 'not', 'distinguishable']
    """
    change, bracket, result = words.rpartition(")")
    return re.sub(r" (?!\()", "\u00a0", change) + bracket + result


def _parts(found: Summary, names: Mapping[str, str]) -> Parts:
    kind, factor = found.parts["kind"], 100 if found.metrics[0].percent else 1
    label = {"group": "group", "class": "class", "fifth": "fifth of the targets"}[kind]
    short = {
        part: re.sub(r"^band \d+: ", "", part) if kind == "fifth" else part for part in found.parts["rows"]
    }
    values = {
        names[method]: {short[part]: [factor * value] for part, value in own.items()}
        for method, own in found.parts["values"].items()
        if method in names
    }
    parts = sorted(short, key=natural_order)
    sizes = {short[part]: int(found.parts["rows"][part]) for part in parts}
    return Parts(label, list(sizes), values, sizes=sizes, counted="tested rows")


def saved_model_report(
    file: Path,
    data: Path | None,
    target: str | None = None,
    group: str | None = None,
    *,
    seed: int = 0,
    title: str | None = None,
) -> Report:
    """Build a page with scores and findings of a saved model on the rows of a table."""
    if data is None:
        raise ReportError(
            f"A page about a saved model needs a table with targets: elliptica report {file} --data "
            "table.csv --target COLUMN."
        )
    rows = _read_rows(file, data, target, group)
    network, fitted = rows.network, rows.fitted()
    words = ["elliptica", "report", str(file), "--data", str(data)]
    words += ["--target", target] if target else []
    words += ["--group", group] if group else []
    curve = {"loss": list(network.loss_curve_), "validation": list(network.validation_curve_)}
    last = int(network.best_iteration_ or len(curve["loss"])) - 1
    parameters = network.get_params(deep=False)
    study = model_study(
        fitted,
        unit=1.0 if fitted.class_names else float(network.y_scale_[0]),
        rows=f"the {len(fitted.x):,} rows of {data.name}",
        notes=rows.notices,
        curves={fitted.name: [{**curve, "epoch": [last]}]} if curve["loss"] else {},
        score_label="validation loss",
        settings={fitted.name: ", ".join(f"{k} {v}" for k, v in parameters.items() if v is not None)},
        commands=[shlex.join(words)],
        versions={
            **present_versions(),
            "sha256 of the model": digest(file),
            "sha256 of the data": digest(data),
        },
    )
    title = title or f"{file.name} on {data.name}"
    return model_report(study, fitted, title, seed=seed)


def _read_rows(file: Path, data: Path, target: str | None, group: str | None = None) -> LabelledRows:
    try:
        rows = read_labelled(file, data, target, group=group, max_rows=None)
    except (TableError, OSError) as error:
        raise ReportError(str(error)) from error
    if len(rows.target) < MIN_ROWS:
        raise ReportError(
            f"{data} has {count(len(rows.target), 'row')} with a target, but at least {MIN_ROWS} are needed."
        )
    return rows
