"""Pages about a comparison and about a saved model on the rows of a table."""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from elliptica._utils.text import count
from elliptica.compare.metrics import metrics_of
from elliptica.compare.predict import LabelledRows, read_labelled
from elliptica.compare.protocol import Record
from elliptica.compare.store import MODEL, RESULTS
from elliptica.compare.table import TableError
from elliptica.compare.verdict import NAMES, REFERENCE, judge
from elliptica.diagnostics.model_page import model_report, model_study
from elliptica.diagnostics.surfaces import loss_surfaces
from elliptica.report.content import (
    DASH,
    BySeed,
    Grid,
    Measure,
    Parts,
    Report,
    ReportError,
    Study,
    Verdict,
    digest,
    natural_order,
    present_versions,
)
from elliptica.report.verdict import cost_ratio, price_fact

#: Rows with a target that a page about a model needs.
MIN_ROWS = 10


def comparison_report(
    folder: Path, *, data: Path | None = None, landscape: bool = True, seed: int = 0, title: str | None = None
) -> Report:
    """Read ``results.json``; a comparison that is not finished is shown as far as it is."""
    if data is not None and not data.is_file():
        raise ReportError(
            f"The table {data} does not exist. Pass the file that was compared to --data, or leave it out."
        )
    content = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    about = content["about"]
    try:
        metrics = metrics_of(str(about["task"]), about.get("group") is not None)
    except (KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"{folder / RESULTS} does not say what was compared ({error!r}).") from error
    unusable: list[tuple[str, str]] = []
    records: list[Record] = []
    for number, each in enumerate(content["records"] if isinstance(content["records"], list) else []):
        try:
            record = Record.from_json(each)
            _check(record, metrics)
            records.append(record)
        except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
            unusable.append((f"{RESULTS}, record {number}", f"cannot be used ({error!r})"[:200]))
    if not records:
        raise ReportError(
            f"{folder / RESULTS} holds no finished run yet. Run the comparison to the end first."
        )
    try:
        study = _study(content, about, metrics, records)
        notices = [str(notice) for notice in content.get("notices", [])]
    except (TypeError, KeyError, ValueError, AttributeError, ArithmeticError) as error:
        raise ReportError(
            f"{folder / RESULTS} is damaged ({error!r}). Move it away and run the comparison again."
        ) from error
    if landscape:
        study = _with_landscape(study, folder, about, data, seed)
    return Report(
        title=title or f"Comparison on {about.get('table', folder.name)}",
        kind=f"{count(len(records), 'run')} of elliptica compare",
        headline=study.verdict.headline,
        studies=[study],
        unusable=unusable,
        notes=notices,
    )


def _check(record: Any, metrics: Sequence[Any]) -> None:
    """What the page reads must be what it is taken for."""
    scores = [record.test[metric.name] for metric in metrics]
    rows = [record.rows[name] for name in ("train", "validation", "test")]
    spent = [record.seconds, *([] if record.evaluations is None else [record.evaluations])]
    numbers = [*scores, *record.test.values(), *record.parts.values(), *spent, *rows, record.repeat]
    if not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers):
        raise ValueError("scores, rows or costs are not finite numbers")
    dict(record.trials[record.chosen].settings)


def _study(content: Any, about: Any, metrics: Sequence[Any], records: Sequence[Any]) -> Study:
    order = [str(m) for m in content.get("methods", [])] or list(dict.fromkeys(r.method for r in records))
    by_key = {(r.method, r.repeat): r for r in records}
    repeats = sorted({r.repeat for r in records})
    whole = [r for r in repeats if all((m, r) in by_key for m in order)]
    methods = [m for m in order if any((m, r) in by_key for r in repeats)]
    scores = {m: {x.name: [by_key[m, r].test[x.name] for r in whole] for x in metrics} for m in order}
    shares = [by_key[REFERENCE, r].rows for r in whole if (REFERENCE, r) in by_key]
    share = statistics.fmean(s["test"] / (s["train"] + s["validation"]) for s in shares) if shares else 0.0
    found = judge(scores, metrics, share, about.get("select", "average"))
    name = {m: NAMES.get(m, m) for m in methods}
    shown = whole or repeats
    measures = [_measure(m, [by_key[k].test[m.name] for k in by_key]) for m in metrics]
    factor = {m.name: 100 if m.percent else 1 for m in metrics}
    values: dict[str, dict[str, dict[int, float]]] = {
        x.name: {
            name[m]: {r: factor[x.name] * by_key[m, r].test[x.name] for r in shown if (m, r) in by_key}
            for m in methods
        }
        for x in metrics
    }
    cost = {
        "evaluations": {
            name[m]: {
                r: by_key[m, r].evaluations / 1000
                for r in shown
                if (m, r) in by_key and by_key[m, r].evaluations is not None
            }
            for m in methods
        },
        "seconds": {name[m]: {r: by_key[m, r].seconds for r in shown if (m, r) in by_key} for m in methods},
    }
    missing = {
        "curves": "Not recorded: a comparison keeps no curves.",
        "reliability": "Not recorded: a comparison keeps no probabilities.",
    }
    n_runs = len(order) * int(content.get("repeats", len(repeats)))
    if len(records) < n_runs:
        missing["seeds"] = (
            f"Not finished: {len(records)} of {n_runs} runs are there, {len(whole)} repeats are complete, "
            "and only those are compared. Rerun the same command to resume."
        )
    return Study(
        name="comparison",
        title=f"Predicting {about.get('target', 'the target')}",
        subtitle=_subtitle(about),
        measures=measures,
        methods=[name[m] for m in methods],
        reference=name.get(REFERENCE, name[methods[0]]),
        values=values,
        verdict=_in_display(found, {m.name: m for m in measures}, values, name, cost),
        table=_grid(measures, values, cost, [name[m] for m in methods]),
        parts=[_parts([r for r in records if r.repeat in shown], name, metrics, about)],
        cost=cost,
        settings={name[m]: _chosen([by_key[m, r] for r in shown if (m, r) in by_key]) for m in methods},
        commands=[str(content["command"])] if content.get("command") else [],
        versions={
            "elliptica": str(about.get("elliptica", DASH)),
            **{str(k): str(v) for k, v in content.get("versions", {}).items()},
            "contents of the table": str(about.get("contents", DASH))[:16],
        },
        missing=missing,
        notes=["Seconds and rows are those of one repeat, all trials together."],
        repetition="repeat",
        test_share=share,
        own=[name[m] for m in methods if m.startswith("elliptic")],
    )


def _subtitle(about: Mapping[str, Any]) -> str:
    text = f"{about.get('rows', 0):,} rows, {len(about.get('inputs', []))} inputs, {about.get('task')}"
    return text + (f", groups by {about['group']}" if about.get("group") else "")


def _measure(metric: Any, values: Sequence[float]) -> Measure:
    if metric.percent:
        return Measure(metric.name, metric.label, metric.higher_is_better, True)
    size = max((abs(v) for v in values), default=1.0) or 1.0
    return Measure(
        metric.name, metric.label, metric.higher_is_better, decimals=max(0, 3 - math.floor(math.log10(size)))
    )


def _in_display(
    found: Verdict,
    measures: Mapping[str, Measure],
    values: Mapping[str, BySeed],
    name: Mapping[str, str],
    cost: Any,
) -> Verdict:
    """The verdict of `elliptica compare` with the page's names and units, and its facts."""
    sentences = [text.removeprefix("(").removesuffix(")") for text in found.sentences]
    if not found.differences or found.best is None:
        return Verdict(found.headline, sentences)
    differences = []
    for d in found.differences:
        factor = 100 if measures[d.measure].percent else 1
        differences.append(
            replace(d, method=name[d.method], mean=factor * d.mean, low=factor * d.low, high=factor * d.high)
        )
    best = name[found.best]
    mine = [d for d in differences if d.method == best]
    shown = next((d for d in mine if d.result == "better"), None)
    main = next(iter(measures.values()))
    level = statistics.fmean(values[main.name][best].values())
    reference = name["erm"]
    ratio = cost_ratio(cost["evaluations"], best, reference)
    seconds = cost_ratio(cost["seconds"], best, reference)
    how = ("How much better", DASH, "no difference is shown")
    if shown is not None:
        m = measures[shown.measure]
        low, high = (m.show(v, sign=True, unit=False) for v in (shown.low, shown.high))
        how = ("How much better", m.show(shown.mean, sign=True), f"{m.label}, interval {low} to {high}")
    better = len({d.method for d in differences if d.result == "better"})
    sure = "shown better" if shown else "nothing better is shown"
    repeats = count(max(d.n_seeds for d in differences), "repeat")
    facts = [
        ("Which method", best, f"{main.label} {main.show(level)}"),
        how,
        ("How sure", sure, f"{better} of {len(name) - 1} better in one measure or both; {repeats}"),
        price_fact(best, reference, ratio, seconds),
    ]
    return Verdict(found.headline, sentences, facts, differences, best)


def _grid(
    measures: Sequence[Measure], values: Mapping[str, BySeed], cost: Any, methods: Sequence[str]
) -> Grid:
    rows = []
    for method in methods:
        line: list[tuple[str, float | str, bool]] = [(method, method, False)]
        for measure in measures:
            numbers = list(values[measure.name][method].values())
            line.append(_cell(numbers, measure.decimals))
        for unit in ("evaluations", "seconds"):
            numbers = list(cost[unit][method].values())
            mean = statistics.fmean(numbers) if numbers else math.nan
            line.append((f"{mean:,.1f}" if numbers else DASH, mean, False))
        n = len(values[measures[0].name][method])
        rows.append([*line, (str(n), n, False)])
    titles = [f"{m.label}{', %' if m.percent else ''}" for m in measures]
    head = ["method", *titles, "thousand rows", "seconds", "repeats"]
    return Grid("Test rows, mean ± deviation over repeats", head, rows)


def _cell(numbers: Sequence[float], decimals: int) -> tuple[str, float, bool]:
    if not numbers:
        return DASH, math.nan, False
    mean = statistics.fmean(numbers)
    spread = f" ± {statistics.stdev(numbers):.{decimals}f}" if len(numbers) > 1 else ""
    return f"{mean:.{decimals}f}{spread}", mean, False


def _parts(records: Sequence[Any], name: Mapping[str, str], metrics: Sequence[Any], about: Any) -> Parts:
    factor = 100 if metrics[0].percent else 1
    kind = (
        "group"
        if about.get("group")
        else "class"
        if about["task"] == "classification"
        else "fifth of the targets"
    )
    values: dict[str, dict[str, list[float]]] = {}
    for record in records:
        for part, score in record.parts.items():
            values.setdefault(name.get(record.method, record.method), {}).setdefault(part, []).append(
                factor * score
            )
    names = sorted({part for each in values.values() for part in each}, key=natural_order)
    return Parts(kind, names, values)


def _chosen(records: Sequence[Any]) -> str:
    """Settings that the validation rows chose, repeat by repeat."""
    found = []
    for record in records:
        settings = record.trials[record.chosen].settings
        found.append(
            ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in settings.items())
        )
    counted = {text: found.count(text) for text in found}
    return "; ".join(f"{text} ({n} repeat{'s' if n > 1 else ''})" for text, n in counted.items())


def _with_landscape(
    study: Study, folder: Path, about: Mapping[str, Any], data: Path | None, seed: int
) -> Study:
    """Look at the model that the comparison chose, if its table is given."""
    if not (folder / MODEL).is_file():
        reason = f"The folder holds no {MODEL}, which elliptica compare writes at its end."
    elif data is None:  # a path in the folder's own files is not followed: they may come from anybody
        command = shlex.join(["elliptica", "report", str(folder), "--data"])
        reason = f"It needs the table that was compared: {command} table.csv."
    else:
        rows = _read_rows(folder / MODEL, data, str(about["target"]))  # raises if they misfit
        try:
            return replace(study, landscapes=[loss_surfaces(rows.fitted(), seed)])
        except ReportError as error:
            reason = str(error)
    return replace(study, missing={**study.missing, "landscape": reason})


def saved_model_report(
    file: Path,
    data: Path | None,
    target: str | None = None,
    group: str | None = None,
    *,
    landscape: bool = True,
    seed: int = 0,
    title: str | None = None,
) -> Report:
    """Show scores, findings and landscape of a saved model on the rows of a table."""
    if data is None:
        raise ReportError(
            f"A saved model needs the data that it is looked at with: elliptica report {file} --data "
            "table.csv --target COLUMN."
        )
    rows = _read_rows(file, data, target, group)
    network, fitted = rows.network, rows.fitted()
    words = ["elliptica", "report", str(file), "--data", str(data)]
    words += ["--target", target] if target else []
    words += ["--group", group] if group else []
    curve = {"loss": list(network.loss_curve_), "validation": list(network.validation_scores_ or [])}
    last = int(network.best_iteration_ or len(curve["loss"])) - 1
    parameters = network.get_params(deep=False)
    study = model_study(
        fitted,
        unit=1.0 if fitted.class_names else float(network.y_scale_[0]),
        rows=f"the {len(fitted.x):,} rows of {data.name}",
        notes=rows.notices,
        curves={fitted.name: [{**curve, "epoch": [last]}]} if curve["loss"] else {},
        score_label=f"validation {'accuracy' if fitted.class_names else 'R²'}",
        settings={fitted.name: ", ".join(f"{k} {v}" for k, v in parameters.items() if v is not None)},
        commands=[shlex.join(words)],
        versions={
            **present_versions(),
            "sha256 of the model": digest(file),
            "sha256 of the data": digest(data),
        },
    )
    title = title or f"{file.name} on {data.name}"
    return model_report(study, fitted, title, landscape=landscape, seed=seed)


def _read_rows(file: Path, data: Path, target: str | None, group: str | None = None) -> LabelledRows:
    try:
        rows = read_labelled(file, data, target, group=group, max_rows=None)
    except (TableError, OSError) as error:
        raise ReportError(str(error)) from error
    if len(rows.target) < MIN_ROWS:
        raise ReportError(
            f"{data} has {count(len(rows.target), 'row')} with a target; at least {MIN_ROWS} are needed."
        )
    return rows
