"""The card of a saved model: what it learnt from, how it was tested, and what it is not for."""

from __future__ import annotations

from pathlib import Path

from elliptica._utils.extras import count
from elliptica.report.judge import join
from elliptica.report.page import Page, Section, present_versions, render
from elliptica.tables.comparison import MODEL, Comparison
from elliptica.tables.methods import CONSTANT, METHODS, NAMES, REFERENCE
from elliptica.tables.page import cautions, describe_intervals, describe_model, label, result_rows
from elliptica.tables.shift import Shift

#: Where a model may be used, by the shift that was tested.
_USES: dict[Shift, str] = {
    "random": "other rows of the same source",
    "time": "later rows",
    "unseen": "new values of a column that groups rows",
    "extrapolate": "values beyond those of training",
    "test_file": "the source of a test file",
}


def write_card(comparison: Comparison, file: Path) -> None:
    """Write the card of the recommended model as Markdown."""
    problem, shift, best = comparison.problem, comparison.shift, comparison.best
    inputs, beside = problem.features.columns, comparison.random
    learnt = problem.target if comparison.refit_all else problem.target[problem.own_rows]
    names = shift.shift, "random" if beside is not None and beside.complete else None
    tested = [use for name, use in _USES.items() if name in names]
    limits = [
        f"Tested for {join(tested)}. Not tested for {join([u for u in _USES.values() if u not in tested])}.",
        "It predicts what was observed. It does not tell what a change of an input would cause.",
    ]
    if problem.group_name is None:
        limits.append("No groups were judged (--group): it may be much worse for some people or places.")
    if METHODS[best].make is None and comparison.plan.bounded and not problem.classes:
        limits.append(
            f"It cannot predict beyond the targets of training, {learnt.min():g} to {learnt.max():g}."
        )
    kept = {label(comparison, method) for method in (best, REFERENCE, CONSTANT)}
    scores = result_rows(comparison)
    folds = f"{count(len(comparison.finished), 'fold')}, seed {comparison.plan.seed}."
    versions = ", ".join(f"{name} {version}" for name, version in present_versions("scikit-learn").items())
    about = [
        f"Predicts {problem.target_name} ({problem.task}) from {', '.join(inputs)}.",
        f"Data: {comparison.name}, {count(len(learnt), 'row')}, {count(len(inputs), 'input column')}.",
        f"{describe_model(comparison)}. The scores are those of models without the test rows.",
        f'elliptica predict {MODEL} NEW.csv, or elliptica.estimators.load("{MODEL}"), with {versions}.',
    ]
    text = [f"{shift.words} {folds} Intervals hold with 95 % confidence.", *describe_intervals(comparison)]
    table = [scores[0], *(row for row in scores[1:] if row[0] in kept)]
    sections = [
        Section("Model", points=about),
        Section("Scores", text, table, left=(len(table[0]) - 1,)),
        Section("Not for", points=limits),
        Section("Cautions", points=cautions(comparison)),
    ]
    used = [section for section in sections if section.points or section.table]
    title = f"Model card: {NAMES[best]} for {problem.target_name}"
    render(Page(title, comparison.verdict.headline, sections=used), file)
