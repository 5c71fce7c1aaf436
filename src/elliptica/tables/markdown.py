"""Render a comparison as text: on the screen, as Markdown and as a plain HTML page."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Sequence
from typing import Any

from elliptica._utils.files import write_atomically
from elliptica._utils.text import count
from elliptica.report.content import Section
from elliptica.tables.columns import ColumnUse
from elliptica.tables.comparison import Comparison
from elliptica.tables.methods import CONSTANT, NAMES, REFERENCE, SEES_GROUPS
from elliptica.tables.metrics import Metric, show_number
from elliptica.tables.problem import TableProblem
from elliptica.tables.store import Store
from elliptica.tables.summary import Summary, summarise

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "div{overflow-x:auto}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.3rem .8rem;"
    "border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child,.left{text-align:left}"
    ".verdict{font-size:1.1rem;border-left:4px solid #36c;padding:.2rem 1rem;background:#f4f7ff}"
    "@media(prefers-color-scheme:dark){body{background:#14161a;color:#eceef1}td,th{border-color:#31353d}"
    ".verdict{background:#1c2b3b}}"
)
#: Largest number of groups or classes that the written report lists.
_MOST_PARTS = 20
_DAGGER = "† sees groups in training"


def about(name: str, problem: TableProblem, shift: str) -> str:
    """Describe the table, the task and the shift in one line."""
    task = problem.task + (f", {len(problem.classes)} classes" if problem.classes else "")
    groups = "" if problem.group_name is None else f" Groups: {problem.group_name}."
    n_test = 0 if problem.is_test is None else int(problem.is_test.sum())
    rows = f"{len(problem.target) - n_test:,} rows" + (f", and {n_test:,} to test on" if n_test else "")
    return f"{name}: {rows}. Predict {problem.target_name} ({task}).{groups} {shift}"


def column_rows(columns: Sequence[ColumnUse]) -> list[list[str]]:
    """List every column, how it is used, and how to change that."""
    return [[use.name, use_words(use), use.hint] for use in columns]


def use_words(use: ColumnUse) -> str:
    """Describe how a column is used.

    Example:
        >>> from elliptica.tables.columns import ColumnUse
        >>> use_words(ColumnUse("area", "number", "heavy tail: scaled by quantiles"))
        'number (heavy tail: scaled by quantiles)'
        >>> use_words(ColumnUse("site", "category", "25 values"))
        'category, 25 values'
    """
    kind = {"text": "free text", "id": "identifier, not used", "unused": "not used"}.get(use.kind, use.kind)
    detail = use.detail.removeprefix(kind).lstrip(",;: ")
    if not detail:
        return kind
    if use.kind in ("date", "unused", "id"):
        return f"{kind}: {detail}"
    return f"{kind} ({detail})" if use.kind == "number" else f"{kind}, {detail}"


def result_rows(found: Summary, most: int | None = None) -> list[list[str]]:
    """Format the test scores as rows of text, header first, then the best method.

    Args:
        found: Summary of a comparison.
        most: Number of metrics to show, the deciding ones and the Brier score first; None shows all.
    """
    metrics = list(found.metrics)
    if most is not None:
        first = [*metrics[:2], *(metric for metric in metrics[2:] if metric.name == "brier")]
        metrics = first[:most]
    rows = [["method", *(_title(m, found) for m in metrics), f"compared with {NAMES[REFERENCE]}"]]
    scores = {metric.name: shown_scores(found, metric) for metric in metrics}
    for method in found.methods:
        cells = [scores[metric.name][method] for metric in metrics]
        rows.append([found.label(method), *cells, found.cells[method][found.deciding]])
    return rows


def shown_scores(found: Summary, metric: Metric) -> dict[str, str]:
    """Format the scores of all methods, with enough digits to tell apart those that differ."""
    results = {d.method: d.result for d in found.verdict.differences if d.measure == metric.name}
    values = {method: found.scores[method][metric.name] for method in found.methods}
    shown: dict[str, str] = {}
    for more in range(4):
        shown = {method: show_score(metric, value, more) for method, value in values.items()}
        reference = shown.get(REFERENCE)
        if not any(shown[m] == reference for m, result in results.items() if result != "open" and m in shown):
            break
    return shown


def _title(metric: Metric, found: Summary) -> str:
    if metric.name.startswith("worst_"):
        part = found.group or {"accuracy": "class", "rmse": "fifth"}[metric.name.rpartition("_")[2]]
        return f"worst {part}"
    return metric.label


def footnotes(found: Summary) -> list[str]:
    """Explain the marks of the table of scores."""
    return [f"{_DAGGER}."] if any(method in SEES_GROUPS for method in found.methods) else []


def range_words(found: Summary) -> list[str]:
    """Report the share of predictions outside the range of the training targets."""
    shares = {
        m: found.scores[m].get("beyond_range", 0.0)
        for m in dict.fromkeys((REFERENCE, *found.methods))
        if m in found.scores
    }
    if found.task != "regression" or not any(shares.values()):
        return []
    first = REFERENCE if shares.get(REFERENCE) else max(shares, key=lambda m: shares[m])
    text = (
        f"{_percent(shares[first])} of the test predictions of {NAMES[first]} left the range of the training "
    )
    text += "targets"
    most = max(shares, key=lambda m: shares[m])
    if most != first and shares[most] > 2 * shares[first]:
        text += f" ({_percent(shares[most])} of {NAMES[most]})"
    return [
        f"{text}; "
        + (
            "they were clipped to it (--unbounded turns this off)."
            if found.bounded
            else "they were not clipped."
        )
    ]


def _percent(share: float) -> str:
    return (
        "Less than 0.1 %"
        if share < 0.001
        else f"{100 * share:.1f} %"
        if share < 0.1
        else f"{100 * share:.0f} %"
    )


def describe_model(found: Summary) -> str:
    """Describe the model in model.elliptica."""
    text = f"{NAMES[found.saved]}, refitted on all rows"
    return text if found.predicts else f"{text}; not shown to be better than {found.label(CONSTANT)}"


def progress_words(found: Summary) -> str:
    """Describe how many folds are finished."""
    done, total = found.finished
    return f"{done} of {count(total, 'fold')} {'is' if done == 1 else 'are'} finished and kept."


def sections(found: Summary) -> list[Section]:
    """Return all sections of the written report."""
    said = [sentence for sentence in found.verdict.sentences if found.shift not in sentence]
    verdict = [found.verdict.headline, " ".join(said), *range_words(found)]
    if not found.is_complete:
        verdict.append(f"Not finished: {progress_words(found)} Rerun the same command to resume.")
    model = (
        f"model.elliptica holds {describe_model(found)}. The scores above come from models that were trained "
        "without the rows they were tested on."
    )
    return [
        Section("Verdict", [text for text in verdict if text]),
        *([Section("Cautions", points=found.cautions)] if found.cautions else []),
        Section(
            "Test scores",
            [found.shift, *footnotes(found)],
            result_rows(found),
            left=(len(found.metrics) + 1,),
        ),
        *more_sections(found),
        *([Section("Model", [model])] if found.is_complete else []),
    ]


def more_sections(found: Summary, *, has_charts: bool = False) -> list[Section]:
    """Return the sections that the HTML page shows as well; its charts replace the table of parts."""
    shown = [_differences(found), None if has_charts else _parts(found), _calibration(found), _columns(found)]
    shown.append(Section("How it was done", points=found.protocol))
    shown.append(_costs(found))
    if found.target_rows:
        shown.append(Section("The rows that you will predict", found.target_rows))
    if found.notices:
        shown.append(Section("About the table", points=found.notices))
    return [section for section in shown if section is not None]


def _differences(found: Summary) -> Section | None:
    if not found.verdict.differences:
        return None
    judged = [metric for metric in found.metrics if metric.judged]
    others = [method for method in found.methods if method != REFERENCE]
    rows = [["method", *(metric.label for metric in judged)]]
    rows += [[found.label(m), *(found.cells[m][metric.name] for metric in judged)] for m in others]
    text = (
        f"Each method minus {NAMES[REFERENCE]}, row by row on the same test rows, in per cent of its value "
        "or in points of accuracy. Intervals include training noise and hold jointly with 95 % confidence "
        "within a column. Rows that belong together count as one."
    )
    return Section("Every column judged", [text], rows, left=range(1, len(judged) + 1), is_open=True)


def _parts(found: Summary) -> Section | None:
    if not found.parts:
        return None
    kind, sizes, values = found.parts["kind"], found.parts["rows"], found.parts["values"]
    metric = found.metrics[0]
    names = sorted(sizes, key=lambda name: values[REFERENCE][name], reverse=not metric.higher_is_better)
    methods = [m for m in dict.fromkeys((REFERENCE, *found.trained[:3], "elliptic")) if m in values]
    label = {"group": found.group or "group", "class": "class", "fifth": f"fifth of {found.target}"}[kind]
    rows = [[label, "tested rows", *(found.label(method) for method in methods)]]
    for name in names[:_MOST_PARTS]:
        cells = [show_score(metric, values[method][name]) for method in methods]
        rows.append([name, f"{sizes[name]:,}", *cells])
    rest = f" The {_MOST_PARTS} worst of {len(names)}." if len(names) > _MOST_PARTS else ""
    return Section(f"By {label}", [f"{metric.label}, the hardest for ordinary training first.{rest}"], rows)


def _calibration(found: Summary) -> Section | None:
    if not found.calibration:
        return None
    rows = [["method", "temperature", "log loss", "after", "calibration error", "after"]]
    for method in found.trained:
        own = found.calibration[method]
        rows.append(
            [
                found.label(method),
                f"{own['temperature']:.2f}",
                *(f"{own[f'log_loss_{when}']:.3f}" for when in ("before", "after")),
                *(f"{100 * own[f'calibration_error_{when}']:.1f} %" for when in ("before", "after")),
            ]
        )
    text = (
        "Temperature scaling divides the logits by one number that is fitted on the validation rows. Above "
        "1, the method was overconfident. The predicted classes stay the same. Scores, verdict and saved "
        "model use the calibrated probabilities. A temperature fitted on rows like the training rows may not "
        "hold under a shift."
    )
    return Section("Calibration, before and after a temperature", [text], rows, is_open=True)


def _columns(found: Summary) -> Section:
    rows = [["column", "used as", "change with"], *column_rows(found.columns)]
    return Section("Columns", (), rows, left=(1, 2))


def _costs(found: Summary) -> Section:
    rows = [["method", "seconds", "chosen settings"]]
    for method in found.trained:
        rows.append([found.label(method), f"{found.seconds[method]:.1f}", found.settings[method]])
    text = (
        "Seconds of trials and training over all folds. Networks are trained side by side, so each is "
        "charged an equal share of their time."
    )
    return Section("Cost and settings", [text], rows, left=(2,))


def write_reports(store: Store, found: Summary) -> None:
    """Write the reports and the summary next to the records, also for an unfinished comparison."""
    if store.folder is None:
        return
    store.write({"summary": found.to_json()})
    write_atomically(store.folder / "report.md", markdown(found))
    write_atomically(store.folder / "report.html", plain_page(found))


def markdown(found: Summary | Comparison) -> str:
    """Write the report as Markdown and escape names from the table."""
    found = found if isinstance(found, Summary) else summarise(found)
    lines = [f"# Comparison on {_plain(found.name)}", ""]
    for section in sections(found):
        lines += [f"## {_plain(section.heading)}", ""]
        for paragraph in section.paragraphs:
            lines += [_plain(paragraph), ""]
        if section.table:
            header, *rows = section.table
            marks = ["---" if not i or i in section.left else "--:" for i in range(len(header))]
            lines += [_line(header), f"|{'|'.join(marks)}|", *map(_line, rows), ""]
        if section.points:
            lines += [*(f"- {_plain(point)}" for point in section.points), ""]
    return "\n".join(lines).rstrip() + "\n"


def plain_page(found: Summary) -> str:
    """Write the report as one self-contained HTML file."""
    title = html.escape(f"Comparison on {found.name}")
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>",
    ]
    for section in sections(found):
        kind = ' class="verdict"' if section.heading == "Verdict" else ""
        parts.append(f"<h2>{html.escape(section.heading)}</h2>")
        parts += [f"<p{kind}>{html.escape(paragraph)}</p>" for paragraph in section.paragraphs]
        if section.table:
            header, *rows = section.table
            left = section.left
            parts += [
                "<div><table>",
                _row(header, "th", left),
                *(_row(row, "td", left) for row in rows),
                "</table></div>",
            ]
        if section.points:
            parts.append("<ul>" + "".join(f"<li>{html.escape(p)}</li>" for p in section.points) + "</ul>")
    return "\n".join([*parts, "</body></html>"]) + "\n"


def show_score(metric: Metric, value: float, more: int = 0) -> str:
    """Format a score with the digits of its column, plus ``more``."""
    if metric.percent:
        return f"{100 * value:.{1 + more}f} %"
    if metric.name in ("log_loss", "brier"):
        return f"{value:.{3 + more}f}"
    return show_number(value, 4 + more, "#")


def _plain(text: Any) -> str:
    """Escape the user's text for Markdown: no HTML, links, pictures, tables, emphasis or line breaks."""
    return re.sub(r"([\\`*_\[\]!|#~])", r"\\\1", html.escape(" ".join(str(text).split()), quote=False))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_plain, cells))} |"


def _row(cells: Sequence[str], tag: str, left: Collection[int]) -> str:
    marks = [' class="left"' if place in left else "" for place in range(len(cells))]
    inner = (f"<{tag}{mark}>{html.escape(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True))
    return f"<tr>{''.join(inner)}</tr>"
