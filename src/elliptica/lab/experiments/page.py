"""The page about runs: one section for each table, data set and variant that a folder of records holds."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elliptica._utils.text import count
from elliptica.lab.experiments.record_folder import (
    TUNED,
    Place,
    RunRecord,
    group_records,
    known_tables,
    read_folder,
)
from elliptica.lab.experiments.registry import RESPLIT
from elliptica.lab.experiments.specification import DatasetSpec, Specification, preset_names, table_name
from elliptica.lab.experiments.table import Part, Table, cell_texts, make_table
from elliptica.report import charts
from elliptica.report.judge import Measure, Verdict, judge_seeds
from elliptica.report.page import Chart, Page, Section

_METRIC = {"accuracy": "accuracy", "error": "error", "rmse": "RMSE"}
_LABELS = {
    "average": "{}",
    "weighted": "{} weighted by the training groups",
    "balanced": "{} balanced over classes",
    "worst": "worst-group {}",
    "top5": "top-five {}",
    "auroc": "area under the ROC curve",
    "calibration": "calibration error",
}


def runs_page(path: Path, *, tables: Sequence[str] = ()) -> Page:
    """Build the page about the records in a folder; ``tables`` are files of the user's own tables."""
    specifications, folder = known_tables(tables), read_folder(path)
    groups, notes = group_records(folder, specifications)
    files = {table_name(table): table for table in tables}
    studies = [_study(place, members, specifications, files, path) for place, members in groups.items()]
    better = sum(verdict.best is not None and bool(verdict.winners) for verdict, _ in studies)
    headline, title = studies[0][0].headline, studies[0][1].heading
    sections = [section for _, section in studies]
    if len(studies) > 1:
        title = f"Runs in {path.resolve().name}"
        headline = f"In {better} of {len(studies)} tables a method is shown to be better than the reference."
        rows = [[section.heading, verdict.headline] for verdict, section in studies]
        text = "Each table is judged separately with 95 % confidence, so one of twenty verdicts may be wrong."
        sections.insert(0, Section("All tables", [text], [["table", "verdict"], *rows], left=(1,)))
    unusable = [f"{name} {reason}" for name, reason in folder.unusable]
    if notes or unusable:
        sections.append(Section("Not in this report", points=[*notes, *unusable]))
    kind = f"{count(sum(map(len, groups.values())), 'run')} of elliptica run"
    return Page(title, headline, [] if len(studies) > 1 else studies[0][0].sentences, sections, kind)


def _study(
    place: Place,
    members: Sequence[RunRecord],
    specifications: Mapping[str, Specification],
    files: Mapping[str, str],
    path: Path,
) -> tuple[Verdict, Section]:
    name, dataset, variant = place
    specification = _specification(place, members, specifications)
    runs = {record.run.row: record.run for record in members}
    rows = [row for row in specification.methods if row in runs]
    seeds = sorted({record.run.seed for record in members})
    wanted = [runs[row].model_copy(update={"seed": seed}) for row in rows for seed in seeds]
    records = [dict(record.content) for record in members]
    parts: tuple[Part, Part] = ("test", "cost")
    test, cost = (make_table(name, specification, wanted, records, part) for part in parts)
    run = members[0].run
    names = [column for of, column in test.heads if of == dataset]
    first = run.select if run.select in names else names[0]
    measures = [_measure(c, run.metric, test.decimals[dataset]) for c in dict.fromkeys([first, *names])]
    values = {c: {row: dict(test.cells[row, dataset, c].values) for row in rows} for c in names}
    reference = "erm" if values[first].get("erm") else rows[0]
    judged = [measure for measure in measures if measure.name in (first, "average", "worst")]
    share = RESPLIT.get(str(run.load.get("name")), 0.0)
    verdict = judge_seeds(values, judged, rows, reference, share)
    table, bold = _grid(test, cost, dataset, rows, measures)
    command = _command(place, files.get(name), rows, len(seeds), run.match_evaluations, path)
    text = [verdict.headline, " ".join(verdict.sentences), variant, *test.notes, command]
    drawn = _charts(members, verdict, judged, values, rows)
    heading = f"{specification.title}: {dataset}" + (f" ({variant})" if variant else "")
    return verdict, Section(heading, [t for t in text if t], table, bold=bold, charts=drawn)


def _specification(
    place: Place, members: Sequence[RunRecord], specifications: Mapping[str, Specification]
) -> Specification:
    """Return the table's own specification for one data set, or make one from the records."""
    name, dataset, _ = place
    if name in specifications and dataset in specifications[name].datasets:
        found = specifications[name]
        return found.model_copy(update={"datasets": {dataset: found.datasets[dataset]}})
    run = members[0].run
    datasets = {dataset: DatasetSpec(model=run.model, training=run.training)}
    methods: dict[str, Any] = {record.run.row: {} for record in members}
    columns: Any = list(run.columns)
    return Specification(
        title=name, metric=run.metric, columns=columns, seeds=1, methods=methods, datasets=datasets
    )


def _measure(column: str, metric: str, decimals: int) -> Measure:
    label = _LABELS.get(column, column).format(_METRIC[metric])
    is_higher = column == "auroc" or (metric == "accuracy" and column != "calibration")
    return Measure(column, label, is_higher, metric != "rmse" or column in ("auroc", "calibration"), decimals)


def _grid(
    test: Table, cost: Table, dataset: str, rows: Sequence[str], measures: Sequence[Measure]
) -> tuple[list[list[str]], set[tuple[int, int]]]:
    """Return the table of the paper, with what it cost, and its bold cells."""
    heads = [(m, is_paper) for m in measures for is_paper in (False, True)]
    papers = {m.name for m in measures if any(test.cells[row, dataset, m.name].paper for row in rows)}
    heads = [(measure, is_paper) for measure, is_paper in heads if not is_paper or measure.name in papers]
    titles = ["paper" if is_paper else m.label + ", %" * m.percent for m, is_paper in heads]
    table, bold = [["method", *titles, "thousand rows", "seconds", "seeds"]], set()
    for number, row in enumerate(rows):
        line = [row]
        for measure, is_paper in heads:
            mean, std, is_best = cell_texts(test, row, (dataset, measure.name), is_paper)
            bold |= {(number, len(line))} if is_best else set()
            line.append(f"{mean} ± {std}" if std else mean)
        spent = [cost.cells[row, dataset, unit].mean for unit in ("evaluations", "seconds")]
        line += ["" if math.isnan(value) else f"{value:,.1f}" for value in spent]
        table.append([*line, str(len(test.cells[row, dataset, measures[0].name].values))])
    return table, bold


def _charts(
    members: Sequence[RunRecord],
    verdict: Verdict,
    judged: Sequence[Measure],
    values: Mapping[str, Mapping[str, Mapping[int, float]]],
    rows: Sequence[str],
) -> list[Chart]:
    drawn, first = [], judged[0]
    by_row = {row: list(values[first.name][row].values()) for row in rows if values[first.name][row]}
    means = {row: sum(numbers) / len(numbers) for row, numbers in by_row.items()}
    if any(len(numbers) > 1 for numbers in by_row.values()):
        drawn.append(Chart("Every seed", charts.dots(by_row, means, first.label), "The bar is the mean."))
    for measure in judged:
        differences = [d for d in verdict.differences if d.measure == measure.name]
        if differences:
            title = f"{measure.label}, compared with {differences[0].against}"
            drawn.append(Chart(title, charts.intervals(differences, {row: row for row in rows}, measure)))
    for kind, entry in (("group", "by_group"), ("class", "by_class")):
        parts = _by_part(members, entry)
        if any(parts.values()) and not (kind == "group" and parts == _by_part(members, "by_class")):
            drawn.append(
                Chart(f"By {kind}, mean over seeds", charts.bars(parts, _METRIC[members[0].run.metric]))
            )
    curves: dict[str, list[Any]] = {}
    for record in members:
        if curve := (record.content.get("curves") or {}).get("validation"):
            curves.setdefault(record.run.row, []).append(curve)
    if curves:
        drawn.append(Chart("Validation score", charts.lines(curves, "epoch", "validation score")))
    return drawn


def _by_part(members: Sequence[RunRecord], entry: str) -> dict[str, dict[str, float]]:
    """Return the scores of groups or classes in percent or as errors, by row, means over seeds."""
    factor = 1 if members[0].run.metric == "rmse" else 100
    found: dict[str, dict[str, list[float]]] = {}
    for record in members:
        for name, value in (record.content["metrics"]["test"].get(entry) or {}).items():
            found.setdefault(record.run.row, {}).setdefault(str(name), []).append(factor * float(value))
    return {row: {n: sum(v) / len(v) for n, v in parts.items()} for row, parts in found.items()}


def _command(
    place: Place, file: str | None, rows: Sequence[str], n_seeds: int, match: bool, path: Path
) -> str:
    """Return the command that repeats the runs, as far as records tell."""
    table, dataset, variant = place
    words = ["elliptica", "run", file or (table if table in preset_names() else f"{table}.toml")]
    words += ["--dataset", dataset, "--methods", ",".join(rows), "--seeds", str(n_seeds)]
    for option in ("epochs", "precision"):
        if found := re.search(rf"{option} = (\w+)", variant):
            words += [f"--{option}", found[1]]
    words += ["--match", "evaluations"] * match + ["--tuned"] * (TUNED in variant)
    return shlex.join([*words, "--out", path.name or "."])
