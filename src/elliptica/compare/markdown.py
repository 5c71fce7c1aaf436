"""Write the report of a comparison as Markdown and as a plain page without charts."""

from __future__ import annotations

import html
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from elliptica.compare.comparison import Comparison, Session
from elliptica.compare.metrics import Metric, show_number
from elliptica.compare.plan import TREES, at_border
from elliptica.compare.protocol import Record, Trial, final_trial
from elliptica.compare.verdict import NAMES, REFERENCE, interval_ends

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{padding:.3rem .8rem;border-bottom:1px solid #ddd;"
    "text-align:right}td:first-child,th:first-child{text-align:left}.verdict{font-size:1.1rem;"
    "border-left:4px solid #36c;padding:.2rem 1rem;background:#f4f7ff}"
)


_TREES = (
    "Boosted trees (scikit-learn's HistGradientBoosting) get the same splits, the same preprocessed inputs, "
    "the same number of trials and the same rule of choice. Not the same: their settings are their own "
    "(learning rate, l2, leaves, 50 to 500 iterations), and so is their time; gaps are filled and categories "
    "made indicators for them, too, though they could use both as they are."
)


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, a table (header first) and a list; any of them may be missing."""

    heading: str
    paragraphs: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()
    points: Sequence[str] = ()


def result_rows(comparison: Comparison, *, short: bool = False) -> list[list[str]]:
    """Test scores as text, header first: mean and deviation over repeats; ``short``: what decides only."""
    metrics = comparison.metrics[:2] if short else comparison.metrics
    costs = {"seconds": 1} if short else {"seconds": 1, "evaluations": 0}
    titles = {"seconds": "seconds", "evaluations": "rows trained on"}
    rows = [["method", *(m.label for m in metrics), *(titles[key] for key in costs)]]
    for row in comparison.table().iter_rows(named=True):
        cells = [_cell(m, row[m.name], row[f"{m.name}_deviation"]) for m in metrics]
        cells += ["-" if row[key] is None else f"{row[key]:,.{digits}f}" for key, digits in costs.items()]
        rows.append([row["name"], *cells])
    return rows


def sections(comparison: Comparison) -> list[Section]:
    """Everything the report says."""
    return [
        Section("Verdict", [comparison.verdict.text, *_unfinished(comparison)]),
        *_cautions(comparison),
        Section("Test scores", [_caption(comparison)], result_rows(comparison)),
        *_differences(comparison),
        Section("Model", [describe_model(comparison)]),
        Section("How it was done", points=_protocol(comparison)),
        Section("About the table", [_about(comparison)], points=comparison.problem.notices),
    ]


def write_reports(session: Session, found: Comparison) -> None:
    """Write reports and the verdict beside the records, also of a comparison that is not finished."""
    folder = session.store.folder
    if folder is None:
        return
    verdict = {"best": found.best, "text": found.verdict.text, "complete": found.complete}
    session.store.write({"verdict": verdict})
    (folder / "report.md").write_text(markdown(found), encoding="utf-8")
    (folder / "report.html").write_text(plain_page(found), encoding="utf-8")


def markdown(comparison: Comparison) -> str:
    """Write the report as Markdown; names from the table cannot break out of the text."""
    lines = [f"# Comparison on {_plain(comparison.name)}", ""]
    for section in sections(comparison):
        lines += [f"## {section.heading}", ""]
        for paragraph in section.paragraphs:
            lines += [_plain(paragraph), ""]
        if section.table:
            header, *rows = section.table
            lines += [_line(header), "|---|" + "--:|" * (len(header) - 1), *map(_line, rows), ""]
        if section.points:
            lines += [*(f"- {_plain(point)}" for point in section.points), ""]
    return "\n".join(lines).rstrip() + "\n"


def plain_page(comparison: Comparison) -> str:
    """Write the report as one HTML file that loads nothing."""
    title = html.escape(f"Comparison on {comparison.name}")
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>",
    ]
    for section in sections(comparison):
        kind = ' class="verdict"' if section.heading == "Verdict" else ""
        parts.append(f"<h2>{html.escape(section.heading)}</h2>")
        parts += [f"<p{kind}>{html.escape(paragraph)}</p>" for paragraph in section.paragraphs]
        if section.table:
            header, *rows = section.table
            parts += ["<table>", _row(header, "th"), *(_row(row, "td") for row in rows), "</table>"]
        if section.points:
            parts.append("<ul>" + "".join(f"<li>{html.escape(p)}</li>" for p in section.points) + "</ul>")
    return "\n".join([*parts, "</body></html>"]) + "\n"


def describe_model(comparison: Comparison) -> str:
    """Say what model.elliptica holds."""
    if not comparison.repeats:
        return "No model is saved before a repeat is finished."
    method, plan = comparison.model_method, comparison.plan
    number = final_trial(comparison.records, method, comparison.problem, plan)
    trial = next(r for r in comparison.records if r.method == method).trials[number]
    values = ", ".join(f"{name} {value:g}" for name, value in trial.settings.items())
    text = (
        f"model.elliptica is the network of {NAMES[method]}, trained on all rows with the settings that were "
        f"best on the validation rows on average over repeats ({values}). The scores above are not its own: "
        "they are of models trained on about 60 % of the rows."
    )
    if comparison.best == TREES:
        text += (
            " Boosted trees are not saved in this format; train scikit-learn's HistGradientBoosting instead "
            "if you follow the verdict."
        )
    return text


def _cautions(comparison: Comparison) -> list[Section]:
    found = cautions(comparison)
    return [Section("Notes", ["What limits this answer:"], points=found)] if found else []


def _unfinished(comparison: Comparison) -> list[str]:
    if comparison.complete:
        return []
    return [
        f"Not finished: {len(comparison.records)} of {comparison.plan.n_runs} runs are done, and "
        f"{len(comparison.repeats)} of {comparison.plan.repeats} repeats are complete. Rerun the same "
        "command to resume."
    ]


def _caption(comparison: Comparison) -> str:
    return (
        f"Mean ± deviation over {len(comparison.repeats)} repeats; seconds and rows are those of training in "
        "one repeat, all trials together."
    )


def _differences(comparison: Comparison) -> list[Section]:
    found = comparison.verdict.differences
    if not found:
        return []
    metrics = {metric.name: metric for metric in comparison.metrics}
    rows = [["method", "metric", "difference", "interval", "result"]]
    for each in found:
        metric = metrics[each.measure]
        ends = " to ".join(metric.show(end, sign=True, unit=False) for end in interval_ends(each, metric))
        rows.append([NAMES[each.method], metric.label, metric.show(each.mean, sign=True), ends, each.result])
    text = (
        f"Each method minus {NAMES[REFERENCE]} on the same splits. Corrected resampled t intervals (Nadeau "
        f"and Bengio, 2003) with confidence {comparison.verdict.confidence:.4g} each, so that all of them "
        "hold together with 95 %."
    )
    return [Section("Differences from ordinary training", [text], rows)]


def _protocol(comparison: Comparison) -> list[str]:
    plan, problem = comparison.plan, comparison.problem
    average, worst, *_ = comparison.metrics
    rule = average.label if plan.select == "average" else worst.label
    within = "classes" if problem.task == "classification" else "fifths of the target"
    balanced = "" if problem.groups is None else " within groups"
    blocks = "" if problem.blocks is None else " Rows with the same split-by value stay together."
    trees = [] if TREES not in plan.methods else [_TREES]
    return [
        f"{plan.repeats} random splits into 60 % training, 20 % validation and 20 % test rows, balanced by "
        f"{within}{balanced}.{blocks}",
        "Missing numbers are filled with medians and marked, texts become indicators, all learnt on training "
        "rows only and the same for all methods.",
        f"Networks have hidden layers of {' and '.join(map(str, plan.hidden))} units; methods differ in the "
        f"objective alone. {plan.trials} settings per method and repeat, with the same draws of learning "
        f"rate, weight decay and epochs (at most {plan.epochs}) for all methods.",
        *trees,
        f"Settings are chosen by {rule} on the validation rows (--select {plan.select}); the test rows are "
        "used once per method and repeat.",
        "Names for --methods: " + ", ".join(f"{name} ({NAMES[name]})" for name in plan.methods) + ".",
        f"Seed {plan.seed}.",
    ]


def _about(comparison: Comparison) -> str:
    problem = comparison.problem
    text = (
        f"{len(problem.target):,} rows, {problem.features.width} inputs, target {problem.target_name!r} "
        f"({problem.task}"
    )
    text += f", {len(problem.classes)} classes)" if problem.classes else ")"
    if problem.group_name is not None:
        text += f", groups by {problem.group_name!r}"
    return text + "."


def _cell(metric: Metric, mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "-"
    spread = "" if deviation is None else f" ± {_number(metric, deviation, 2)}"
    return _number(metric, mean, 4) + spread + (" %" if metric.percent else "")


def _number(metric: Metric, value: float, digits: int) -> str:
    return f"{100 * value:.1f}" if metric.percent else show_number(value, digits, "#")


def _plain(text: Any) -> str:
    """Text of the user's in Markdown: no HTML, links, pictures, tables, emphasis or line breaks."""
    return re.sub(r"([\\`*_\[\]!|#~])", r"\\\1", html.escape(" ".join(str(text).split()), quote=False))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_plain, cells))} |"


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


#: With fewer, what is compared is the beginning of training.
FEW_EPOCHS = 20
#: Training is not at its end if its last tenth took off more than this share of the first epoch's loss.
_FALLING = 0.02


def cautions(comparison: Comparison) -> list[str]:
    """Notes for the report; a method is named if they hold in more than half of the finished repeats.

    Nothing stops training early: the number of epochs is a setting that trials draw, at most ``--epochs``. So
    the training loss of the chosen trial says whether it was long enough.
    """
    plan = comparison.plan
    found = []
    if plan.trials == 1:
        found.append(
            "There was no search: every method had one trial, with its usual settings. More --trials are "
            "fairer to methods whose usual settings do not suit the table."
        )
    if plan.epochs < FEW_EPOCHS:
        found.append(
            f"Few epochs: with --epochs {plan.epochs}, what is compared is the beginning of training. The "
            "default is 100."
        )
    elif falling := _falling(comparison):
        found.append(
            f"The training loss was still falling at the end: {', '.join(falling)}. More --epochs (now "
            f"{plan.epochs}) may change the scores."
        )
    if plan.trials > 1 and (ends := _borders(comparison)):
        found.append(
            f"The search ended at the border of its range: {'; '.join(ends)}. Better settings may lie "
            "beyond; elliptica.estimators takes any."
        )
    for method in plan.methods:
        trials = [trial for record in comparison.of(method) for trial in record.trials]
        if failed := sum(bool(trial.error) for trial in trials):
            found.append(f"{failed} of {len(trials)} trainings by {NAMES[method]} failed and were left out.")
    return found


def _falling(comparison: Comparison) -> list[str]:
    names = []
    for method in comparison.plan.methods:
        records = comparison.of(method)
        drops = [_chosen(record).last_drop or 0.0 for record in records]
        if 2 * sum(drop > _FALLING for drop in drops) > len(records):
            names.append(NAMES[method])
    return names


def _borders(comparison: Comparison) -> list[str]:
    found = []
    for method in comparison.plan.methods:
        records = comparison.of(method)
        values: dict[str, list[float]] = defaultdict(list)
        ranges: dict[str, tuple[float, float]] = {}
        for record in records:
            settings = _chosen(record).settings
            for name, ends in at_border(method, settings, comparison.plan).items():
                values[name].append(settings[name])
                ranges[name] = ends
        for name, chosen in values.items():
            if 2 * len(chosen) > len(records):
                low, high = ranges[name]
                found.append(
                    f"{name} of {NAMES[method]} ({chosen[0]:g} in {len(chosen)} of {len(records)} repeats, "
                    f"range {low:g} to {high:g})"
                )
    return found


def _chosen(record: Record) -> Trial:
    return record.trials[record.chosen]
