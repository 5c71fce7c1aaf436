"""The page about runs: one section for each table, data set and variant that a folder of records holds."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elliptica._utils.extras import count
from elliptica.lab.experiments.choice import Place, describe, group_records, known_tables, read_folder
from elliptica.lab.experiments.records import DRAWS, Record
from elliptica.lab.experiments.registry import RESPLIT
from elliptica.lab.experiments.specification import DatasetSpec, Specification, table_name
from elliptica.lab.experiments.table import Table, cell_texts, make_table
from elliptica.report import charts
from elliptica.report.judge import BySeed, Measure, Verdict, judge_seeds
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


def runs_page(path: Path, *, tables: Sequence[str] = (), plugins: Sequence[str] = ()) -> Page:
    """Build the page about the records in a folder; ``tables`` and ``plugins`` are the user's own files.

    Records with earlier random draws, which no command repeats to the digit, are only counted.
    """
    records, specifications = read_folder(path), known_tables(tables)
    current = [record for record in records if record.draws == DRAWS]
    if not current:
        raise ValueError(f"All records in {path} have earlier random draws. elliptica run does them anew.")
    groups = group_records(current, path, specifications)
    files = {table_name(table): table for table in tables}
    options = ["--out", str(path), *(word for plugin in plugins for word in ("--plugin", plugin))]
    studies = [
        _study(place, members, specifications, ["elliptica", "run", files.get(place[0], place[0]), *options])
        for place, members in groups.items()
    ]
    better = sum(bool(verdict.winners) for verdict, _ in studies)
    headline, title = studies[0][0].headline, studies[0][1].heading
    sections = [section for _, section in studies]
    if len(studies) > 1:
        title = f"Runs in {path.resolve().name}"
        headline = f"In {better} of {len(studies)} tables a method is shown to be better than the reference."
        rows = [[section.heading, verdict.headline] for verdict, section in studies]
        text = "Each table is judged separately with 95 % confidence, so one of twenty verdicts may be wrong."
        sections.insert(0, Section("All tables", [text], [["table", "verdict"], *rows], left=(1,)))
    kind = f"{count(sum(map(len, groups.values())), 'run')} of elliptica run"
    if len(current) < len(records):
        kind += f", without {count(len(records) - len(current), 'run')} with earlier random draws"
    return Page(title, headline, [] if len(studies) > 1 else studies[0][0].sentences, sections, kind)


def _study(
    place: Place,
    members: Sequence[Record],
    known: Mapping[str, Specification],
    words: Sequence[str],
) -> tuple[Verdict, Section]:
    name, dataset, variant = place
    specification = _specification(place, members, known)
    runs = {record.run.row: record.run for record in members}
    rows = [row for row in specification.methods if row in runs]
    seeds = range(1 + max(record.run.seed for record in members))
    wanted = [runs[row].model_copy(update={"seed": seed}) for row in rows for seed in seeds]
    test = make_table(name, specification, wanted, members)
    run, names = members[0].run, [column for _, column in test.heads]
    first = run.select if run.select in names else names[0]
    measures = [_measure(c, run.metric, test.decimals[dataset]) for c in dict.fromkeys([first, *names])]
    values = {c: {row: dict(test.cells[row, dataset, c].values) for row in rows} for c in names}
    judged = [measure for measure in measures if measure.name in (first, "average", "worst")]
    reference = "erm" if values[first].get("erm") else rows[0]
    verdict = judge_seeds(values, judged, rows, reference, RESPLIT.get(str(run.load.get("name")), 0.0))
    text = [verdict.headline, " ".join(verdict.sentences), *test.notes, *commands(place, members, words)]
    grid, bold = _grid(test, members, dataset, measures)
    heading = f"{specification.title}: {dataset}" + (f" ({describe(variant)})" if variant != () else "")
    drawn = _charts(members, verdict, judged, values[first])
    return verdict, Section(heading, [t for t in text if t], grid, bold=bold, charts=drawn)


def commands(place: Place, members: Sequence[Record], words: Sequence[str]) -> list[str]:
    """Return the commands that repeat the runs, one for each number of seeds."""
    _, dataset, variant = place
    if variant is None:
        return ["No command repeats these runs: the table's file is unknown (pass --table) or has changed."]
    rows: dict[str, list[str]] = {}
    for row, seed in {r.run.row: r.run.seed for r in sorted(members, key=lambda r: r.run.seed)}.items():
        rows.setdefault(str(seed + 1), []).append(row)
    options = [word for option, value in variant for word in (f"--{option}", value) if word]
    options += ["--dataset", dataset, "--seeds"]
    return [shlex.join([*words, *options, n, "--methods", ",".join(rows[n])]) for n in rows]


def _specification(
    place: Place, members: Sequence[Record], specifications: Mapping[str, Specification]
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
    test: Table, members: Sequence[Record], dataset: str, measures: Sequence[Measure]
) -> tuple[list[list[str]], set[tuple[int, int]]]:
    """Return the table of the paper, with what it cost, and its bold cells."""
    papers = [m for m in measures if any(test.cells[row, dataset, m.name].paper for row in test.rows)]
    heads = [(m, is_paper) for m in measures for is_paper in (False, True) if not is_paper or m in papers]
    titles = ["paper" if is_paper else m.label + ", %" * m.percent for m, is_paper in heads]
    table, bold = [["method", *titles, "thousand rows", "seconds", "seeds"]], set()
    for number, row in enumerate(test.rows):
        line = [row]
        for measure, is_paper in heads:
            mean, std, is_best = cell_texts(test, row, (dataset, measure.name), is_paper)
            bold |= {(number, len(line))} if is_best else set()
            line.append(f"{mean} ± {std}" if std else mean)
        costs = [record.cost for record in members if record.run.row == row]
        line.append(f"{statistics.mean(cost.evaluations for cost in costs) / 1000:,.1f}")
        line.append(f"{statistics.mean(cost.seconds for cost in costs):,.1f}")
        table.append([*line, str(len(test.cells[row, dataset, measures[0].name].values))])
    return table, bold


def _charts(
    members: Sequence[Record], verdict: Verdict, judged: Sequence[Measure], values: BySeed
) -> list[Chart]:
    by_row = {row: list(seeds.values()) for row, seeds in values.items() if seeds}
    means = {row: sum(numbers) / len(numbers) for row, numbers in by_row.items()}
    drawn = [Chart("Every seed", dots(by_row, means, judged[0].label), "The bar is the mean.")]
    for measure in judged:
        differences = [d for d in verdict.differences if d.measure == measure.name]
        if differences:
            title = f"{measure.label}, compared with {differences[0].against}"
            drawn.append(Chart(title, charts.intervals(differences, {row: row for row in values}, measure)))
    curves: dict[str, list[Any]] = {}
    for record in members:
        if curve := record.curves.get("validation"):
            curves.setdefault(record.run.row, []).append(curve)
    figure = lines(curves, "epoch", "validation score")
    return [*drawn, Chart("Validation score", figure)] if curves else drawn


def dots(values: Mapping[str, Sequence[float]], means: Mapping[str, float], label: str) -> str:
    """Draw a dot for each fold or seed, and a bar for the score of the method."""
    marks = []
    for row, (method, numbers) in enumerate(values.items()):
        marks.append(charts.Marks(numbers, [row] * len(numbers), charts.GREY))
        marks.append(charts.Marks([means[method]] * 2, [row - 0.3, row + 0.3], width=3, is_line=True))
    return charts.draw(marks, label, names=list(values))


def lines(
    curves: Mapping[str, Sequence[Sequence[float | None]]], x_label: str, y_label: str, most: int = 120
) -> str:
    """Draw curves, several for each method, with at most this many points each."""
    marks = []
    for number, (method, several) in enumerate(curves.items()):
        for curve in several:
            step, colour = max(1, math.ceil(len(curve) / most)), charts.COLOURS[number % len(charts.COLOURS)]
            marks.append(
                charts.Marks(range(1, len(curve) + 1, step), curve[::step], colour, 1.5, True, method)
            )
    return charts.draw(marks, x_label, y_label)
