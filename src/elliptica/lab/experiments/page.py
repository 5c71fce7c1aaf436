"""The page about runs: one study for each table, data set and variant that a folder of records holds."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from elliptica._utils.text import count
from elliptica.lab.experiments.plugins import plugin_options, version_remarks
from elliptica.lab.experiments.record_folder import (
    TUNED,
    Folder,
    Place,
    RunRecord,
    group_records,
    known_tables,
    read_folder,
)
from elliptica.lab.experiments.registry import RESPLIT
from elliptica.lab.experiments.specification import (
    DatasetSpec,
    Run,
    Specification,
    preset_names,
    table_name,
)
from elliptica.lab.experiments.table import COST, Part, Table, cell_texts, make_table
from elliptica.report.content import (
    DASH,
    BySeed,
    Grid,
    Measure,
    Number,
    Parts,
    Report,
    ReportError,
    Study,
    natural_order,
    pooled,
)
from elliptica.report.verdict import headline, judge_rows

#: Units in the title of a table; the page has them with each number.
_UNITS = re.compile(r" \((?:accuracy in percent|error in percent|RMSE)\)$")
_METRIC = {"accuracy": "accuracy", "error": "error", "rmse": "RMSE"}


def runs_report(
    path: Path,
    *,
    title: str | None = None,
    tables: Sequence[str] = (),
) -> Report:
    """Collect what a page about the records in a folder shows; ``tables`` are files of the user's own tables.

    Raises:
        ReportError: If there is no record that can be used, or a table cannot.
    """
    specifications = known_tables(tables)
    files = {table_name(table): table for table in tables}
    folder = read_folder(path)
    found, notes = studies_of(folder, specifications, files)
    if not found:
        reasons = "; ".join(f"{name} {reason}" for name, reason in folder.unusable[:5])
        raise ReportError(f"No table can be made of the records in {path}: {reasons}.")
    studies = [study for _, study, _ in found]
    return Report(
        title=title or (studies[0].title if len(studies) == 1 else f"Runs in {path.resolve().name}"),
        kind=f"{count(sum(s.n_runs for s in studies), 'run')} of elliptica run",
        headline=headline(studies),
        studies=studies,
        unusable=folder.unusable,
        notes=notes,
    )


def studies_of(
    folder: Folder, specifications: Mapping[str, Specification], files: Mapping[str, str]
) -> tuple[list[tuple[Place, Study, list[RunRecord]]], list[str]]:
    """All studies of a folder with their records, and notes on what was left out."""
    groups, notes = group_records(folder, specifications)
    if folder.n_trials:
        notes.append(f"{folder.n_trials} records of tuning trials are not shown: they chose settings only.")
    found: list[tuple[Place, Study, list[RunRecord]]] = []
    for number, (place, members) in enumerate(groups.items()):
        try:
            specification = _specification(place, members, specifications)
            study = _study(place, members, folder, specification, files.get(place[0]))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
            folder.unusable.append((" ".join(filter(None, place)), f"cannot be shown ({error!r})"[:200]))
            continue
        if any(study.name == other.name for _, other, _ in found) or not study.name:
            study = replace(
                study, name=f"{study.name or 'study'}-{number}"
            )  # names that differ in signs only
        found.append((place, study, members))
    return found, notes


def _study(
    place: Place, members: Sequence[RunRecord], folder: Folder, specification: Specification, file: str | None
) -> Study:
    name, dataset, variant = place
    order = list(specification.methods)
    rows = sorted(
        {k.run.row for k in members}, key=lambda row: order.index(row) if row in order else len(order)
    )
    wanted = _wanted(members, rows)
    records = [dict(k.content) for k in members]
    tables: dict[Part, Table] = {
        part: make_table(name, _only(specification, dataset), wanted, records, part)
        for part in ("test", "cost")
    }
    test = tables["test"]
    metric, select = members[0].run.metric, members[0].run.select
    parts = parts_of(members)
    columns = _ordered_columns([column for _, column in test.heads], select)
    measures = [
        Measure(c, _label(c, metric, parts), c == "auroc" or (metric == "accuracy" and c != "calibration"),
                metric != "rmse" or c in ("auroc", "calibration"), test.decimals[dataset])
        for c in columns
    ]  # fmt: skip
    values = {c: _by_seed(test, rows, dataset, c) for c in columns}
    cost = {c: _by_seed(tables["cost"], rows, dataset, c) for c in ("evaluations", "seconds")}
    reference = "erm" if values[columns[0]].get("erm") else rows[0]
    champion = next((row for row in rows if test.cells[row, dataset, columns[0]].is_best), None)
    judged = [m for m in measures[:2] if m.name in (columns[0], "worst", "average")]
    missing, notes = _missing(members, rows, order, metric), list(test.notes)
    notes += [*version_remarks(records), f"Cost: {COST[:1].lower()}{COST[1:]}"]
    share = RESPLIT.get(str(members[0].run.load.get("name")), 0.0)
    if share:
        notes.append(
            "Each seed also draws which rows are tested: intervals are corrected for the training rows that "
            "seeds share (Nadeau and Bengio), bold cells are not."
        )
    return Study(
        name=re.sub(r"[^a-z0-9]+", "-", f"{name}-{dataset}-{variant}".lower()).strip("-"),
        title=f"{_UNITS.sub('', specification.title)}: {dataset}",
        subtitle="; ".join(filter(None, [f"{specification.paper or name}", variant])),
        measures=measures,
        methods=rows,
        reference=reference,
        values=values,
        verdict=judge_rows(values, judged, rows, reference, champion=champion, cost=cost, test_share=share),
        table=_grid(test, dataset, rows, {m.name: m for m in measures}, cost, notes),
        paper={c: _paper(test, rows, dataset, c) for c in columns},
        parts=parts,
        reliability=reliability_of(members),
        uncertainty=uncertainty_of(members),
        curves=curves_of(members),
        score_label=_score_label(metric, select, parts),
        cost=cost,
        cost_span="up to the chosen epoch",
        settings={row: _settings(next(k.run for k in members if k.run.row == row)) for row in rows},
        commands=[_command(place, members, rows, folder, file)],
        versions=_versions(members),
        missing=missing,
        notes=notes,
        test_share=share,
        own={k.run.row for k in members if k.run.method in ("elliptic", "marginal")},
    )


def _specification(
    place: Place, members: Sequence[RunRecord], specifications: Mapping[str, Specification]
) -> Specification:
    """That of the table, or, for a table that is not known, one made from the records."""
    name, dataset, _ = place
    if name in specifications and dataset in specifications[name].datasets:
        return specifications[name]
    run = members[0].run
    return Specification(
        title=name,
        metric=run.metric,
        columns=list(run.columns),  # type: ignore[arg-type]
        seeds=1,
        methods={k.run.row: {} for k in members},
        datasets={dataset: DatasetSpec(model=run.model, training=run.training)},
    )


def _only(specification: Specification, dataset: str) -> Specification:
    return specification.model_copy(update={"datasets": {dataset: specification.datasets[dataset]}})


def _wanted(members: Sequence[RunRecord], rows: Sequence[str]) -> list[Run]:
    """The runs of the table: every row with every seed that any row has."""
    seeds = sorted({k.run.seed for k in members})
    first = {row: next(k.run for k in members if k.run.row == row) for row in rows}
    return [first[row].model_copy(update={"seed": seed}) for row in rows for seed in seeds]


def _ordered_columns(columns: Sequence[str], select: str) -> list[str]:
    """The column that chose the epoch comes first: it is what the table is about."""
    first = select if select in columns else columns[0]
    worst = ["worst"] if "worst" in columns and first != "worst" else []
    return list(dict.fromkeys([first, *worst, *columns]))


def _label(column: str, metric: str, parts: Sequence[Parts]) -> str:
    word = _METRIC[metric]
    kind = parts[0].kind if parts else "group"
    names = {
        "average": word,
        "weighted": f"{word} weighted by the training groups",
        "balanced": f"{word} balanced over classes",
        "worst": f"worst-{kind} {word}",
        "top5": f"top-five {word}",
        "auroc": "area under the ROC curve",
        "calibration": "calibration error",
    }
    return names.get(column, column)


def _score_label(metric: str, select: str, parts: Sequence[Parts]) -> str:
    column = "average" if select == "last" else select
    return f"validation {_label(column, metric, parts)}"


def _by_seed(table: Table, rows: Sequence[str], dataset: str, column: str) -> BySeed:
    return {row: dict(table.cells[row, dataset, column].values) for row in rows}


def _paper(
    table: Table, rows: Sequence[str], dataset: str, column: str
) -> dict[str, tuple[float, float | None]]:
    cells = {row: table.cells[row, dataset, column].paper for row in rows}
    return {row: paper for row, paper in cells.items() if paper is not None}


def _grid(
    table: Table,
    dataset: str,
    rows: Sequence[str],
    measures: Mapping[str, Measure],
    cost: Mapping[str, BySeed],
    notes: Sequence[str],
) -> Grid:
    """The table of the paper, with what it cost."""
    heads = [(column, is_paper) for column in measures for is_paper in (False, True)]
    papers = {c for c in measures if any(table.cells[row, dataset, c].paper for row in rows)}
    heads = [(column, is_paper) for column, is_paper in heads if not is_paper or column in papers]
    lines = []
    for row in rows:
        line: list[tuple[str, float | str, bool]] = [(row, row, False)]
        for column, is_paper in heads:
            mean, std, bold = cell_texts(table, row, (dataset, column), is_paper)
            cell = table.cells[row, dataset, column]
            number = (cell.paper or (math.nan,))[0] if is_paper else cell.mean
            line.append((f"{mean} ± {std}" if std else mean or DASH, number, bold))
        for unit in ("evaluations", "seconds"):
            found = list(cost[unit].get(row, {}).values())
            mean_cost = sum(found) / len(found) if found else math.nan
            line.append(
                (f"{mean_cost:,.{0 if mean_cost >= 100 else 1}f}" if found else DASH, mean_cost, False)
            )
        n = len(table.cells[row, dataset, next(iter(measures))].values)
        lines.append([*line, (str(n), n, False)])
    ends = {c: ", %" if measure.percent else "" for c, measure in measures.items()}
    titles = [f"{measures[c].label}{', paper' if is_paper else ends[c]}" for c, is_paper in heads]
    head = ["method", *titles, "thousand rows to the chosen epoch", "seconds to it", "seeds"]
    return Grid("Test part, mean ± deviation over seeds", head, lines, notes)


def _missing(
    members: Sequence[RunRecord], rows: Sequence[str], order: Sequence[str], metric: str
) -> dict[str, str]:
    """What the page cannot show, and why."""
    found = {}
    absent = [row for row in order if row not in rows]
    if absent:
        found["rows"] = f"Not recorded, of the rows of the table: {', '.join(absent)}."
    seeds = sorted({k.run.seed for k in members})
    gaps = [
        f"{row} seed {', '.join(str(s) for s in lost)}"
        for row in rows
        if (lost := [s for s in seeds if not any(k.run.row == row and k.run.seed == s for k in members)])
    ]
    if gaps:
        found["seeds"] = f"Not recorded: {'; '.join(gaps)}."
    if metric != "rmse":
        if not any("reliability" in k.content["metrics"]["test"] for k in members):
            found["reliability"] = "Not recorded: these records were written before reliability was kept."
        if sizes_of(members, "class") is None:
            found["sizes"] = "Sizes of classes are not recorded; classes are in the order of their numbers."
    return found


def _settings(run: Run) -> str:
    entries = {**run.training, **{f"{k}": v for k, v in run.settings.items()}}
    network = ", ".join(f"{k} {v}" for k, v in run.model.items() if k != "name")
    text = ", ".join(f"{name} {_short(value)}" for name, value in entries.items())
    name = run.model.get("name", "network")
    return f"{name}{f' ({network})' if network else ''}; {text}; hash {run.key}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _versions(members: Sequence[RunRecord]) -> dict[str, str]:
    """Of all records; several where they differ."""
    found: dict[str, list[str]] = {}
    for record in members:
        for name, value in record.content["versions"].items():
            found.setdefault(name, [])
            if str(value) not in found[name]:
                found[name].append(str(value))
    return {name: ", ".join(values) for name, values in found.items()}


def _command(
    place: Place, members: Sequence[RunRecord], rows: Sequence[str], folder: Folder, file: str | None
) -> str:
    """What was typed, as far as records say."""
    table, dataset, variant = place
    run = members[0].run
    table = file or (table if table in preset_names() else f"{table}.toml")  # whose folder is not recorded
    words = ["elliptica", "run", table, *plugin_options([k.content for k in members])]
    words += ["--dataset", dataset, "--methods", ",".join(rows)]
    words += ["--seeds", str(1 + max(k.run.seed for k in members))]
    if found := re.search(r"epochs = (\d+)", variant):
        words += ["--epochs", found[1]]
    if run.match_evaluations:
        words += ["--match", "evaluations"]
    if TUNED in variant:
        words += ["--tuned"]
    if found := re.search(r"precision = (\w+)", variant):
        words += ["--precision", found[1]]
    return shlex.join([*words, "--out", folder.out.name or "."])


def parts_of(members: Sequence[RunRecord]) -> list[Parts]:
    """Scores of groups, where there are any, and of classes."""
    found = []
    for kind, entry in (("group", "by_group"), ("class", "by_class")):
        entries = [(k, k.content["metrics"]["test"].get(entry) or {}) for k in members]
        names = sorted({name for _, each in entries for name in each}, key=natural_order)
        same = kind == "group" and all(
            each == (k.content["metrics"]["test"].get("by_class") or {}) for k, each in entries
        )
        if not names or same:  # without groups, classes stand in their place in a record
            continue
        factor = 1 if members[0].run.metric == "rmse" else 100
        values: dict[str, dict[str, list[float]]] = {}
        for record, each in entries:
            for name, value in each.items():
                values.setdefault(record.run.row, {}).setdefault(name, []).append(factor * float(value))
        found.append(Parts(kind, names, values, sizes_of(members, kind)))
    return found


def sizes_of(members: Sequence[RunRecord], kind: str) -> dict[str, int] | None:
    """Training rows of each class or group; None if no record has them."""
    for record in members:
        rows = record.content.get("rows")
        sizes = (rows.get("train") or {}).get(kind) if isinstance(rows, dict) else None
        if isinstance(sizes, dict):
            return {str(name): int(n) for name, n in sizes.items()}
    return None


def reliability_of(members: Sequence[RunRecord]) -> dict[str, dict[str, list[Number | None]]]:
    """Bins of all seeds together, by row."""
    sums: dict[str, list[list[float]]] = {}
    for record in members:
        bins = record.content["metrics"]["test"].get("reliability")
        if not isinstance(bins, dict) or not {"rows", "confidence", "right"} <= set(bins):
            continue
        add = [[float(v) for v in bins[key]] for key in ("rows", "confidence", "right")]
        so_far = sums.setdefault(record.run.row, [[0.0] * len(column) for column in add])
        for total, column in zip(so_far, add, strict=True):
            total[:] = [a + b for a, b in zip(total, column, strict=True)]
    return {row: pooled(*columns) for row, columns in sums.items()}


def uncertainty_of(members: Sequence[RunRecord]) -> Parts | None:
    """Mean uncertainty of each class, small classes first (paper: the appendix's figure of uncertainty)."""
    values: dict[str, dict[str, list[float]]] = {}
    for record in members:
        for name, value in (record.content["metrics"]["test"].get("uncertainty") or {}).items():
            values.setdefault(record.run.row, {}).setdefault(str(name), []).append(float(value))
    if not values:
        return None
    names = sorted({name for each in values.values() for name in each}, key=natural_order)
    sizes = sizes_of(members, "class")
    if sizes:
        names.sort(key=lambda name: sizes.get(name, 0))
    return Parts("class", names, values, sizes)


def curves_of(members: Sequence[RunRecord]) -> dict[str, list[dict[str, list[Number]]]]:
    """Loss and validation score by epoch, one course for each seed; errors as they are, without a minus."""
    found: dict[str, list[dict[str, list[Number]]]] = {}
    for record in members:
        curves = record.content.get("curves")
        if isinstance(curves, dict) and curves.get("loss"):
            picked = {k: list(curves.get(k, [])) for k in ("loss", "validation")}
            if record.run.metric != "accuracy":  # a record holds scores, of which larger ones are better
                picked["validation"] = [None if v is None else -v for v in picked["validation"]]
            found.setdefault(record.run.row, []).append({**picked, "epoch": [record.content.get("epoch", 0)]})
    return found
