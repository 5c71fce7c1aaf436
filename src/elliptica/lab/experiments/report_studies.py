"""From the records of `elliptica run` to studies: one for each table, data set and variant."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from elliptica.lab.experiments.problems import RESPLIT
from elliptica.lab.experiments.report_extracts import (
    curves_of,
    parts_of,
    reliability_of,
    sizes_of,
    uncertainty_of,
)
from elliptica.lab.experiments.report_records import Folder, Kept
from elliptica.lab.experiments.specification import (
    DatasetSpec,
    Run,
    Specification,
    SpecificationError,
    load_specification,
    preset_names,
    runs,
)
from elliptica.lab.experiments.table import COST, Part, Table, cell_texts, make_table
from elliptica.lab.experiments.tuned import with_values
from elliptica.report.content import DASH, BySeed, Grid, Measure, Parts, Study
from elliptica.report.verdict import judge_rows

#: Units in the title of a table; the page has them with each number.
_UNITS = re.compile(r" \((?:accuracy in percent|error in percent|RMSE)\)$")
_METRIC = {"accuracy": "accuracy", "error": "error", "rmse": "RMSE"}


def studies_of(folder: Folder) -> tuple[list[tuple[Place, Study, list[Kept]]], list[str]]:
    """All studies of a folder with their records, and notes on what was left out."""
    groups, notes = group_records(folder)
    if folder.n_trials:
        notes.append(f"{folder.n_trials} records of tuning trials are not shown: they chose settings only.")
    found: list[tuple[Place, Study, list[Kept]]] = []
    for number, (place, members) in enumerate(groups.items()):
        try:
            study = _study(place, members, folder)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
            folder.unusable.append((" ".join(filter(None, place)), f"cannot be shown ({error!r})"[:200]))
            continue
        if any(study.name == other.name for _, other, _ in found) or not study.name:
            study = replace(
                study, name=f"{study.name or 'study'}-{number}"
            )  # names that differ in signs only
        found.append((place, study, members))
    return found, notes


def _study(place: Place, members: Sequence[Kept], folder: Folder) -> Study:
    name, dataset, variant = place
    specification = _specification(place, members)
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
    notes.append(f"Cost: {COST[:1].lower()}{COST[1:]}")
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
        commands=[_command(place, members, rows, folder)],
        versions=_versions(members),
        missing=missing,
        notes=notes,
        test_share=share,
        own={k.run.row for k in members if k.run.method in ("elliptic", "marginal")},
    )


def _specification(place: Place, members: Sequence[Kept]) -> Specification:
    """That of the table, or, for a table that the library does not have, one made from the records."""
    name, dataset, _ = place
    if name in preset_names():
        found = load_specification(name)
        if dataset in found.datasets:
            return found
    run = members[0].run
    return Specification(
        title=name,
        paper="",
        metric=run.metric,
        columns=list(run.columns),  # type: ignore[arg-type]
        seeds=1,
        methods={k.run.row: {} for k in members},
        datasets={dataset: DatasetSpec(model=run.model, training=run.training)},
    )


def _only(specification: Specification, dataset: str) -> Specification:
    return specification.model_copy(update={"datasets": {dataset: specification.datasets[dataset]}})


def _wanted(members: Sequence[Kept], rows: Sequence[str]) -> list[Run]:
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
    titles = [f"{measures[c].label}, paper" if is_paper else _titled(measures[c]) for c, is_paper in heads]
    head = ["method", *titles, "thousand rows to the chosen epoch", "seconds to it", "seeds"]
    return Grid("Test part, mean ± deviation over seeds", head, lines, notes)


def _titled(measure: Measure) -> str:
    return f"{measure.label}{', %' if measure.percent else ''}"


def _missing(
    members: Sequence[Kept], rows: Sequence[str], order: Sequence[str], metric: str
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


def _versions(members: Sequence[Kept]) -> dict[str, str]:
    """Of all records; several where they differ."""
    found: dict[str, list[str]] = {}
    for kept in members:
        for name, value in kept.content["versions"].items():
            found.setdefault(name, [])
            if str(value) not in found[name]:
                found[name].append(str(value))
    return {name: ", ".join(values) for name, values in found.items()}


def _command(place: Place, members: Sequence[Kept], rows: Sequence[str], folder: Folder) -> str:
    """What was typed, as far as records say."""
    table, dataset, variant = place
    run = members[0].run
    words = ["elliptica", "run", table, "--dataset", dataset, "--methods", ",".join(rows)]
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


# Which records belong into one table: the same data set, and the same departures from its settings.


#: Table, data set, and what is not as the table says.
Place = tuple[str, str, str]

TUNED = "settings tuned on the validation part"
MATCHED = "as many function evaluations for every method as for ordinary training"


def group_records(folder: Folder) -> tuple[dict[Place, list[Kept]], list[str]]:
    """Records by table, data set and variant, and what was left out, in words.

    A table that takes a row from another one (``from`` in its specification) gets the records of that row.
    """
    specifications = {name: load_specification(name) for name in preset_names()}
    groups: dict[Place, list[Kept]] = {}
    for kept in folder.kept:
        for variant in _variants(kept, folder, specifications):
            groups.setdefault((kept.run.table, kept.run.dataset, variant), []).append(kept)
    for (table, dataset, variant), members in list(groups.items()):
        specification = specifications.get(table)
        for row, settings in (specification.methods if specification else {}).items():
            source = (str(settings.get("from")), dataset, variant)
            members += [k for k in groups.get(source, []) if k.run.row == row]
    for place in [p for p in groups if _is_within_tuned(p, groups)]:
        del groups[place]
    notes: list[str] = []
    kept_groups = {place: _one_setting(place, members, notes) for place, members in groups.items()}
    return dict(sorted(kept_groups.items(), key=lambda item: _order(item[0], specifications))), notes


def _is_within_tuned(place: Place, groups: Mapping[Place, list[Kept]]) -> bool:
    """Whether all records are there only because tuning chose the table's own settings for some rows."""
    table, dataset, variant = place
    tuned = groups.get((table, dataset, "; ".join(filter(None, [TUNED, variant]))), [])
    return TUNED not in variant and all(any(k is t for t in tuned) for k in groups[place])


def _order(place: Place, specifications: Mapping[str, Specification]) -> tuple[bool, int, str, int, str]:
    names = list(specifications)
    table, dataset, variant = place
    datasets = list(specifications[table].datasets) if table in specifications else []
    number = datasets.index(dataset) if dataset in datasets else len(datasets)
    place_of_table = names.index(table) if table in names else len(names)
    is_other = not re.fullmatch(r"table\d+", table)  # those of the paper come first
    return is_other, place_of_table, table, number, variant


def _variants(kept: Kept, folder: Folder, specifications: Mapping[str, Specification]) -> set[str]:
    """A record whose tuned settings are the table's own stands in both variants."""
    run = kept.run
    base = _specified(run, specifications)
    found: set[str] = set()
    for (place, key), chosen in folder.chosen.items():
        if place == kept.file.parent and _is_choice(run, key, chosen, base):
            found.add(_joined(run, TUNED))
    if not found or (base is not None and base.key == run.key):
        found.add(_joined(run, *_departures(run, base)))
    return found


def _joined(run: Run, *parts: str) -> str:
    return "; ".join([*parts, *([MATCHED] if run.match_evaluations else [])])


def _specified(run: Run, specifications: Mapping[str, Specification]) -> Run | None:
    """The same run as the table specifies it; None if there is no such table, data set or row."""
    if run.table not in specifications:
        return None
    try:
        found = runs(
            run.table,
            specifications[run.table],
            datasets=[run.dataset],
            methods=[run.row],
            seeds=1,
            match_evaluations=run.match_evaluations,
        )
    except SpecificationError:
        return None
    return found[0].model_copy(update={"seed": run.seed}) if found else None


def _is_choice(run: Run, key: str, chosen: Mapping[str, Any], base: Run | None) -> bool:
    """Whether a run has the settings that tuning chose."""
    values = chosen["values"]
    if not isinstance(values, dict):
        return False
    if base is not None and base.key == key:
        places = {(n.partition(".")[0], n.partition(".")[2]): v for n, v in values.items()}
        return with_values(base, places, run.seed).key == run.key
    if not values:
        return run.key == key
    entries = {f"{k}.{n}": v for k in ("training", "settings") for n, v in getattr(run, k).items()}
    return all(entries.get(name) == value for name, value in values.items())


def _departures(run: Run, base: Run | None) -> list[str]:
    if base is None or base.key == run.key:
        return []
    changed = {n: v for n, v in run.training.items() if base.training.get(n) != v}
    if changed:
        return [", ".join(f"{name} = {value}" for name, value in sorted(changed.items()))]
    return ["settings of the methods differ from the table's"]


def _one_setting(place: Place, members: Iterable[Kept], notes: list[str]) -> list[Kept]:
    """Of each row the settings with most seeds; a table has one line for a row."""
    by_row: dict[str, list[Kept]] = {}
    for kept in members:
        by_row.setdefault(kept.run.row, []).append(kept)
    found = []
    for row, all_of_row in by_row.items():
        counts = Counter(kept.run.key for kept in all_of_row)
        key = max(counts, key=lambda k: (counts[k], k))
        found += [kept for kept in all_of_row if kept.run.key == key]
        if len(counts) > 1:
            notes.append(
                f"{place[0]}, {place[1]}, {row}: {len(all_of_row) - counts[key]} records with other settings "
                f"are left out (most seeds has the setting {key})."
            )
    return found
