"""The report of a comparison: tables for the screen, and the page that is written beside its records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from elliptica._utils.extras import count
from elliptica.report import charts
from elliptica.report.judge import join, sentence
from elliptica.report.page import Bar, Chart, Page, Section, render
from elliptica.tables.after import LEVEL, importances, intervals
from elliptica.tables.comparison import Comparison
from elliptica.tables.methods import CONSTANT, METHODS, NAMES, REFERENCE, SEVERAL, name_of
from elliptica.tables.metrics import Predictions, reliability, score_parts, show_number
from elliptica.tables.model import fit_model
from elliptica.tables.shift import FEW_BLOCKS, Fold
from elliptica.tables.table import ColumnUse, TableError
from elliptica.tables.training import MOST_ITERATIONS, PATIENCE
from elliptica.tables.verdict import SIMPLE, SIMPLE_LATER

#: With fewer epochs, only the start of training is compared.
FEW_EPOCHS = 20
#: Explains the mark of `label`.
FOOTNOTE = "† sees groups in training."
#: Largest numbers of groups, classes or columns that are listed, and of dots.
_MOST_PARTS, _MOST_DOTS = 20, 2_000


def write_reports(comparison: Comparison, folder: Path, *, measure: bool = False) -> None:
    """Write the page of a complete or partial comparison, as Markdown and as HTML.

    With ``measure`` the recommended method is trained once more, on the training rows of the last fold, and
    the columns of its test rows are shuffled.
    """
    used: list[Bar] = []
    if measure:
        with suppress(TableError):  # its training diverged: the page does without
            rows = _measured(comparison)
            model = fit_model(comparison, rows=rows.train)
            used = importances(model, comparison.problem, rows.test, comparison.plan.seed)
    page = comparison_page(comparison, used)
    for name in ("report.md", "report.html"):
        render(page, folder / name)


def comparison_page(comparison: Comparison, used: Sequence[Bar] = ()) -> Page:
    """Build the page of a comparison; ``used`` says what the recommended model depends on."""
    verdict, problem = comparison.verdict, comparison.problem
    said = [" ".join(verdict.sentences), *remarks(comparison)]
    if (done := len(comparison.finished)) < (total := len(comparison.shift.folds)):
        said.append(f"{done} of {count(total, 'fold')} finished and kept.")
    columns = [["column", "used as", "change with"], *column_rows(problem.columns)]
    model = [describe_model(comparison)] if comparison.complete else []
    sections = [
        Section("Cautions", points=cautions(comparison)),
        _scores(comparison),
        _differences(comparison),
        *_parts(comparison),
        _importance(comparison, used),
        _chosen(comparison),
        Section("Columns", table=columns, left=(1, 2), folded=True),
        Section("How it was done", points=_protocol(comparison), folded=True),
        Section("About the table", points=problem.notices),
        Section("Model", model),
    ]
    sections = [section for section in sections if section.paragraphs or section.table or section.points]
    kind = f"{len(problem.own_rows):,} rows, predicting {problem.target_name}. {comparison.shift.words}"
    title = f"Comparison on {comparison.name}"
    return Page(title, verdict.headline, [text for text in said if text], sections, kind)


def facts(comparison: Comparison) -> dict[str, Any]:
    """Return scores and verdict as values that JSON can store."""
    verdict = comparison.verdict
    judged = [metric.name for metric in comparison.metrics if metric.judged]
    return {
        "verdict": {"headline": verdict.headline, "sentences": list(verdict.sentences)},
        "cautions": cautions(comparison),
        "saved": comparison.best,
        "scores": comparison.scores,
        "cells": {m: {x: verdict.cell(m, x) for x in judged} for m in comparison.scores},
        "seconds": {m: sum(r.seconds for r in comparison.of(m)) for m in comparison.methods},
    }


def label(comparison: Comparison, method: str) -> str:
    """Return the display name of a method; a dagger marks methods that use groups in training."""
    if method == CONSTANT:
        return "always the mean" if comparison.problem.task == "regression" else "always the largest class"
    return NAMES[method] + (" †" if METHODS[method].sees_groups else "")


def in_order(comparison: Comparison) -> list[str]:
    """Return all methods with scores, the best score in the deciding column first."""
    name = comparison.verdict.primary_metric
    sign = -1 if comparison.verdict.measure(name).higher_is_better else 1
    return sorted(comparison.scores, key=lambda method: sign * comparison.scores[method][name])


def result_rows(comparison: Comparison, most: int | None = None) -> list[list[str]]:
    """Format the test scores as rows of text, header first, then the best method.

    ``most`` is the number of metrics on a screen, those of the verdict first; None shows all.
    """
    verdict, metrics = comparison.verdict, list(comparison.metrics)
    if most is not None:
        first = [verdict.primary_metric, verdict.tiebreak_metric, *(metric.name for metric in metrics[:2])]
        metrics = [next(m for m in metrics if m.name == name) for name in dict.fromkeys(first)][:most]
    group = comparison.problem.group_name
    titles = [
        f"worst {group or m.name.split('_')[1]}" if m.name.startswith("worst_") else m.label for m in metrics
    ]
    measure = verdict.measure(verdict.tiebreak_metric)
    beside = comparison.random.scores if comparison.random and comparison.random.complete else {}
    titles += [f"{metrics[0].label}, random rows"] * bool(beside)
    rows = [["method", *titles, f"{measure.label} compared with {NAMES[REFERENCE]}"]]
    for method in in_order(comparison):
        cells = [metric.show(comparison.scores[method][metric.name]) for metric in metrics]
        cells += [metrics[0].show(beside[method][metrics[0].name]) if method in beside else ""] * bool(beside)
        rows.append([label(comparison, method), *cells, verdict.cell(method, measure.name)])
    return rows


def column_rows(columns: Sequence[ColumnUse]) -> list[list[str]]:
    """List every column, how it is used, and how to change that."""
    kinds = {"text": "free text", "id": "identifier, not used", "unused": "not used"}
    rows = []
    for use in columns:
        kind = kinds.get(use.kind, use.kind)
        detail = use.detail.removeprefix(kind).lstrip(",;: ")
        rows.append([use.name, f"{kind}: {detail}" if detail else kind, use.hint])
    return rows


def remarks(comparison: Comparison) -> list[str]:
    """State the chord ratio, and the largest share of predictions that were clipped."""
    counts = {m: sum(record.clipped for record in comparison.of(m)) for m in comparison.methods}
    most = max(counts, key=lambda method: counts[method])
    share = counts[most] / sum(len(record.predicted) for record in comparison.of(most))
    text = f"{100 * share:.1f} % of the test predictions of {name_of(most)}, the most of all networks, were "
    clipped = [f"{text}clipped to the range of the training targets."] if share else []
    return [*_held_out(comparison), *_mixing(comparison), *clipped]


def _mixing(comparison: Comparison) -> list[str]:
    chord = comparison.chord
    return [str(chord)] if chord is not None and chord.is_known else []


def _held_out(comparison: Comparison) -> list[str]:
    """State the score on each of a few parts that were held out together."""
    names, metric, best = comparison.shift.part_names, comparison.metrics[0], comparison.best
    if names is None or len(set(names)) > FEW_BLOCKS + 1:
        return []
    parts = score_parts(replace(comparison.predictions, groups=names)).values[best]
    listed = "; ".join(f"{name}: {metric.show(value)}" for name, value in parts.items())
    return [f"{sentence(metric.label)} of {name_of(best)} by what was held out: {listed}."]


def describe_model(comparison: Comparison) -> str:
    """Describe the model in model.elliptica."""
    text = f"{NAMES[comparison.best]}, refitted on all rows"
    if comparison.problem.is_test is not None:
        text += f" of the table{' and' if comparison.refit_all else ', not on those'} of the test file"
    if not comparison.verdict.predicts:
        text += f"; not shown to be better than {label(comparison, CONSTANT)}"
    return text


def cautions(comparison: Comparison) -> list[str]:
    """List the limits of the answer."""
    plan, problem, limit = comparison.plan, comparison.problem, MOST_ITERATIONS
    said = [*comparison.verdict.cautions, *([comparison.stopped] if comparison.stopped else [])]
    said += [f"Not compared: {NAMES[method]}. {error}" for method, error in comparison.failed.items()]
    if names := ", ".join(map(repr, problem.giveaways[:5])):
        said.append(
            f"{problem.target_name} follows almost perfectly from a single column: {names}. If that is not "
            "known at prediction time, the scores are too good to be true."
        )
    if plan.quick:
        said.append("This is a first impression (--quick). Run it without --quick before you decide.")
    if plan.trials == 1:
        said.append("There was no search: every method had one trial with its usual settings.")
    networks = [method for method in comparison.methods if METHODS[method].make is None]
    lengths = {m: np.median([r.length for r in comparison.of(m)]) for m in networks}
    if plan.epochs < FEW_EPOCHS:
        said.append(f"Few epochs: with {plan.epochs}, only the start of training is compared.")
    elif slow := [name_of(m) for m in networks if lengths[m] > plan.epochs - plan.patience]:
        longer = f"Longer training may be better: --set epochs={2 * plan.epochs}."
        said.append(f"Still improving at the last epochs, in most folds: {join(slow)}. {longer}")
    said += _probability_words(comparison)
    for method in comparison.methods:
        records, name = comparison.of(method), name_of(method)
        errors = [bool(trial.error) for record in records for trial in record.trials]
        if any(errors):
            said.append(f"{sum(errors)} of {len(errors)} trainings of {name} failed.")
        if lost := sum(record.lost for record in records):
            said.append(f"Left out, because their training diverged: {count(lost, 'network')} of {name}.")
        if full := sum(METHODS[method].boosted and record.length > limit - PATIENCE for record in records):
            folds = f"{full} of {count(len(records), 'fold')}"
            said.append(f"In {folds}, {name} grew up to the limit of {limit} iterations; more may be better.")
    return said


def _probability_words(comparison: Comparison) -> list[str]:
    """Warn of probabilities whose distance from the shares of right test rows is more than chance."""
    if not comparison.problem.classes:
        return []
    predictions, best = comparison.predictions, comparison.best
    tested = predictions.tested[0]
    values = predictions.values[best][0][tested]
    rows, sure, share = reliability(values.max(1), values.argmax(1) == predictions.labels[tested])
    squares = rows * (sure - share) ** 2 / np.clip(sure * (1 - sure), 1e-3, None)  # one each, by chance
    if squares.sum() < len(rows) + 3 * math.sqrt(2 * len(rows)):
        return []
    gap = f"{100 * comparison.scores[best]['calibration_error']:.0f} points off on average"
    return [f"The probabilities of {name_of(best)} are {gap}: look at the reliability before a threshold."]


def _scores(comparison: Comparison) -> Section:
    verdict, table = comparison.verdict, result_rows(comparison)
    names = {method: label(comparison, method) for method in in_order(comparison)}
    measure = verdict.measure(verdict.tiebreak_metric)
    differences = [verdict.difference(method, measure.name) for method in names if method != CONSTANT]
    figure = charts.intervals([d for d in differences if d is not None], names, measure)
    note = "As in the table; intervals hold jointly with 95 % confidence."
    drawn = [Chart(f"Compared with {NAMES[REFERENCE]}", figure, note)]
    text = [comparison.shift.words, *([FOOTNOTE] if any("†" in row[0] for row in table) else [])]
    return Section("Test scores", text, table, left=(len(table[0]) - 1,), charts=drawn)


def _differences(comparison: Comparison) -> Section:
    judged = [metric for metric in comparison.metrics if metric.judged]
    rows = [["method", *(metric.label for metric in judged)]]
    for method in in_order(comparison):
        if method != REFERENCE:
            cells = [comparison.verdict.cell(method, metric.name) for metric in judged]
            rows.append([label(comparison, method), *cells])
    text = (
        f"Each method minus {NAMES[REFERENCE]}, row by row on the same test rows, in per cent of its value "
        "or in points of accuracy. Intervals include training noise and hold jointly with 95 % confidence "
        "within a column. Rows that belong together count as one."
    )
    return Section("Every column judged", [text], rows, left=range(1, len(judged) + 1))


def _parts(comparison: Comparison) -> list[Section]:
    """Show scores by class, group or fifth, and by what was held out together."""
    problem, names = comparison.problem, comparison.shift.part_names
    fifth = "class" if problem.classes else f"fifth of {problem.target_name}"
    sections = [_by(comparison, comparison.predictions, str(problem.group_name or fifth))]
    if names is not None:
        held = replace(comparison.predictions, groups=names)
        sections.append(
            _by(comparison, held, str(problem.split_name or (problem.clock and problem.clock.name)))
        )
    return sections


def _by(comparison: Comparison, predictions: Predictions, heading: str) -> Section:
    parts, metric = score_parts(predictions), comparison.metrics[0]
    sign = 1 if metric.higher_is_better else -1
    names = sorted(parts.rows, key=lambda name: sign * parts.values[REFERENCE][name])[:_MOST_PARTS]
    chosen = [comparison.best, *(m for m in in_order(comparison) if m != CONSTANT)][:3]
    methods = [m for m in dict.fromkeys((REFERENCE, *chosen, "elliptic")) if m in parts.values]
    rows = [[heading, "tested rows", *(label(comparison, method) for method in methods)]]
    for name in names:
        cells = [metric.show(parts.values[method][name]) for method in methods]
        rows.append([name, f"{parts.rows[name]:,}", *cells])
    rest = f" The {_MOST_PARTS} worst of {len(parts.rows)}." if len(parts.rows) > _MOST_PARTS else ""
    text = f"{metric.label}, the hardest for ordinary training first.{rest}"
    return Section(f"By {heading}", [text], rows)


def _measured(comparison: Comparison) -> Fold:
    """Return the last finished fold of the first repeat: with ``time`` that of most training rows."""
    folds = {(fold.repeat, fold.number): fold for fold in comparison.shift.folds}
    return folds[max(key for key in comparison.finished if key[0] == comparison.finished[0][0])]


def _importance(comparison: Comparison, used: Sequence[Bar]) -> Section:
    name = "Brier score" if comparison.problem.classes else "RMSE"
    text = (
        f"How much the {name} of {name_of(comparison.best)} grows if a column is shuffled, with the spread "
        f"over shuffles: on test rows of fold {_measured(comparison).number + 1}, by a model of its training "
        "rows. Columns that say the same share their importance."
    )
    return Section("What the model depends on", [text] if used else [], bars=used[:_MOST_PARTS])


def _chosen(comparison: Comparison) -> Section:
    """Show the test predictions of the recommended method beside the truth."""
    predictions, best = comparison.predictions, comparison.best
    tested = predictions.tested[0]
    values, target = predictions.values[best][0][tested], predictions.target[tested]
    title = f"Test predictions of {name_of(best)}"
    if not predictions.classes:
        shown = np.random.default_rng(0).permutation(len(values))[:_MOST_DOTS]
        axes = f"actual {comparison.problem.target_name}", "predicted"
        figure = charts.agreement(target[shown].tolist(), values[shown].tolist(), *axes)
        return Section(title, describe_intervals(comparison), charts=[Chart("Predicted and actual", figure)])
    names, labels, guess = [str(c) for c in predictions.classes], predictions.labels[tested], values.argmax(1)
    rows, is_binary = list[list[str]](), len(names) == 2
    if len(names) <= _MOST_PARTS:
        counts = np.zeros((len(names), len(names)), dtype=int)
        np.add.at(counts, (labels, guess), 1)
        rows = [["actual, below; predicted, right", *names]]
        rows += [[name, *(f"{n:,}" for n in line)] for name, line in zip(names, counts, strict=True)]
    sure, right = (values[:, 1], labels == 1) if is_binary else (values.max(1), labels == guess)
    _, x, y = reliability(sure, right)
    words = (
        (f"probability of {names[1]}", f"share of {names[1]}")
        if is_binary
        else ("probability", "share right")
    )
    figure = charts.agreement(x.tolist(), y.tolist(), *words, width=8)
    note = "Bins of equally many rows. On the grey line, probabilities are what they say."
    bold = {(k, k + 1) for k in range(len(names))}
    text = "Rows by actual and predicted class." if rows else "Predicted probabilities beside the truth."
    return Section(title, [text], rows, bold=bold, charts=[Chart("Reliability", figure, note)])


def describe_intervals(comparison: Comparison) -> list[str]:
    """Describe the intervals of predicted numbers and their measured coverage."""
    if (found := intervals(comparison)) is None:
        return []
    width = f"± {show_number(found.width)}"
    if found.is_log:
        width = f"times {math.exp(-found.width):.2f} to {math.exp(found.width):.2f}"
    text = f"Intervals for {100 * LEVEL:.0f} % of new rows: the prediction {width}."
    if found.coverage is None:
        return [f"{text} Their coverage was not measured: that needs two folds, and enough rows."]
    shares = f"{100 * found.coverage:.0f} % inside, {100 * found.worst:.0f} % in the worst fold"
    return [f"{text} Measured on the test rows, with the errors of other folds: {shares}."]


def _protocol(comparison: Comparison) -> list[str]:
    """Describe how the comparison was run, point by point."""
    plan, shift = comparison.plan, comparison.shift
    is_class = comparison.problem.task == "classification"
    rule = comparison.metrics[1].label if plan.select == "worst" else "Brier score" if is_class else "RMSE"
    names = ", ".join(f"{name} ({NAMES[name]})" for name in plan.methods)
    tried = ", ".join(f"{plan.trials_of(m)} of {name_of(m)}" for m in plan.methods if m != SEVERAL)
    simple = ", ".join(name_of(method) for method in (SIMPLE_LATER if shift.ordered else SIMPLE))
    points = [
        f"{shift.words} {count(len(shift.folds) // shift.n_repeats, 'fold')}, "
        f"{count(shift.n_repeats, 'repeat')}, seed {plan.seed}.",
        "Preprocessing is fitted on the training rows of each fold. Boosted trees get codes of categories, "
        "and gaps as they are; all others get indicators, or mean targets where there are many values.",
        f"Settings tried in every fold: {tried}. Networks (hidden layers of "
        f"{' and '.join(map(str, plan.hidden))} units) share the draws of learning rate and weight decay. "
        f"They stop early on the validation rows, after at most {plan.epochs} epochs.",
        f"The validation rows mimic the shift and choose by {rule} (--select {plan.select}). The chosen "
        f"settings are trained again ({count(plan.networks, 'network')}) and predict the test rows once.",
        "The simplest method that is not distinguishable from the best estimate, and close to it, is "
        f"recommended: {simple}, then the best estimate itself.",
        f"The constant prediction is the {'class frequencies' if is_class else 'mean'} of the training rows.",
        f"Names for --methods: {names}.",
    ]
    if is_class:
        points.append("Among methods that accuracy does not tell apart, the Brier score decides.")
    elif plan.bounded:
        points.append("Predictions of networks are clipped to the range of the training targets.")
    if SEVERAL in plan.methods:
        points.append("The best of several is a weighted average of methods, chosen on the validation rows.")
    if plan.log_target:
        points.append("The target is positive and skewed: every second setting learns its logarithm.")
    return points
