"""Summarise a comparison: everything that its reports show, stored as JSON next to the records."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from elliptica._utils.text import count
from elliptica.report.content import Difference, Verdict
from elliptica.tables.columns import ColumnUse
from elliptica.tables.comparison import Comparison
from elliptica.tables.methods import CONSTANT, METHODS, NAMES, REFERENCE, SEES_GROUPS, TREES, at_border, sizes
from elliptica.tables.metrics import Metric, Predictions, metrics_of, score, score_parts
from elliptica.tables.model import TargetRows
from elliptica.tables.verdict import Judgement

#: With fewer epochs, only the start of training is compared.
FEW_EPOCHS = 20
#: Scores that are shown before and after temperature scaling.
_CALIBRATED = ("log_loss", "calibration_error")


@dataclass(frozen=True)
class Summary:
    """The result of a comparison without its rows.

    Attributes:
        name: Name of the table.
        target: Column that is predicted.
        task: ``"classification"`` or ``"regression"``.
        group: Column of groups, or None.
        classes: Classes of the target, as text; empty for regression.
        n_rows: Number of rows with a target.
        n_inputs: Number of input columns.
        shift: A sentence that says which rows are trained on and which are tested.
        methods: Names of the methods with scores, the constant prediction among them, the best score first.
        deciding: Name of the metric that decides.
        finished: Number of folds that all methods have finished, and number of all folds.
        scores: Scores over all tested rows, by method and metric.
        by_fold: Scores in each fold, by method and metric.
        parts: Kind, number of tested rows and score of each class, group or fifth, by method.
        calibration: Temperature, and log loss and calibration error before and after it, by method.
        bounded: Whether predictions were clipped to the range of the training targets.
        seconds: Training time, by method.
        settings: Settings that the validation rows chose, as text, by method.
        verdict: The answer.
        cells: Difference from ordinary training as text, by method and judged metric.
        saved: Method of the saved model.
        telling: Name of the metric that the verdict is based on.
        predicts: Whether some method is shown to be better than the constant prediction.
        cautions: Limits of the answer.
        protocol: How the comparison was run.
        columns: How every column is used.
        notices: Remarks about the table.
        target_rows: Remarks about the rows that will be predicted.
    """

    name: str
    target: str
    task: str
    group: str | None
    classes: list[str]
    n_rows: int
    n_inputs: int
    shift: str
    methods: list[str]
    deciding: str
    finished: tuple[int, int]
    scores: dict[str, dict[str, float]]
    by_fold: dict[str, dict[str, list[float]]]
    parts: dict[str, Any]
    calibration: dict[str, dict[str, float]]
    bounded: bool
    seconds: dict[str, float]
    settings: dict[str, str]
    verdict: Verdict
    cells: dict[str, dict[str, str]]
    saved: str
    telling: str
    predicts: bool = True
    cautions: list[str] = field(default_factory=list)
    protocol: list[str] = field(default_factory=list)
    columns: list[ColumnUse] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    target_rows: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics that methods are judged by; the first two decide."""
        return metrics_of(self.task, self.group is not None)

    @property
    def trained(self) -> list[str]:
        """All methods except the constant prediction."""
        return [method for method in self.methods if method != CONSTANT]

    @property
    def is_complete(self) -> bool:
        """Whether all folds are finished."""
        return self.finished[0] == self.finished[1]

    def label(self, method: str) -> str:
        """Return the display name of a method; a dagger marks methods that use groups in training."""
        if method == CONSTANT:
            return "always the mean" if self.task == "regression" else "always the largest class"
        return NAMES.get(method, method) + (" †" if method in SEES_GROUPS else "")

    def to_json(self) -> dict[str, Any]:
        """Convert to values that JSON can store."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Summary:
        """Restore a summary.

        Raises:
            ValueError: If the content is not a summary.
        """
        try:
            values = {each.name: content[each.name] for each in fields(cls)}
            verdict = dict(values["verdict"])
            verdict["differences"] = [Difference(**each) for each in verdict["differences"]]
            values["verdict"] = Verdict(**verdict)
            values["columns"] = [ColumnUse(**each) for each in values["columns"]]
            values["finished"] = tuple(values["finished"])
            summary = cls(**values)
            summary._check()
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ValueError(f"the summary is damaged: {error!r}"[:200]) from error
        return summary

    def _check(self) -> None:
        """Raise if a stored value does not have the type that reports expect."""
        names = [metric.name for metric in self.metrics]
        numbers: list[Any] = [self.n_rows, self.n_inputs, *self.finished]
        for method in self.methods:
            numbers += [self.scores[method][name] for name in names]
            numbers += [value for name in names for value in self.by_fold[method].get(name, [])]
            numbers += self.parts["values"][method].values()
        for method in self.trained:
            numbers += [self.seconds[method], *self.calibration.get(method, {}).values()]
        numbers += [difference.mean for difference in self.verdict.differences]
        texts = [self.name, self.target, self.shift, *self.methods, *self.notices, *self.cautions]
        if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
            raise ValueError("scores, rows or costs are not finite numbers")
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("names or notices are not text")


def summarise(comparison: Comparison) -> Summary:
    """Compute what reports show for a complete or partial comparison."""
    problem, plan, metrics = comparison.problem, comparison.plan, comparison.metrics
    scores, judgement = comparison.scores, comparison.verdict
    cautions = judgement.cautions if isinstance(judgement, Judgement) else ()
    cells = judgement.cell if isinstance(judgement, Judgement) else (lambda method, measure: "")
    deciding = metrics[0] if plan.select == "average" else metrics[1]
    sign = -1 if deciding.higher_is_better else 1
    shown = {method: deciding.show(values[deciding.name]) for method, values in scores.items()}
    best = comparison.best
    methods = sorted(  # ties: the best method first
        scores,
        key=lambda m: (
            sign * scores[best if shown[m] == shown[best] else m][deciding.name],
            m != best,
            sign * scores[m][deciding.name],
        ),
    )
    trained = [method for method in methods if method != CONSTANT]
    return Summary(
        name=comparison.name,
        target=problem.target_name,
        task=problem.task,
        group=problem.group_name,
        classes=[str(each) for each in problem.classes],
        n_rows=len(problem.target),
        n_inputs=problem.features.width,
        shift=comparison.shift.words,
        methods=methods,
        deciding=deciding.name,
        finished=(len(comparison.finished), len(comparison.shift.folds)),
        scores=scores,
        by_fold=_by_fold(comparison.predictions, metrics) if methods else {},
        parts=asdict(score_parts(comparison.predictions)) if methods else {},
        calibration=_calibration(comparison) if problem.task == "classification" else {},
        bounded=plan.bounded,
        seconds={method: sum(record.seconds for record in comparison.of(method)) for method in trained},
        settings={method: _settings(comparison, method) for method in trained},
        verdict=_plain_verdict(judgement, cautions),
        cells={m: {x.name: cells(m, x.name) for x in metrics if x.judged} for m in methods},
        saved=best,
        telling=judgement.telling if isinstance(judgement, Judgement) else deciding.name,
        predicts=judgement.predicts if isinstance(judgement, Judgement) else True,
        cautions=[*cautions, *_cautions(comparison)],
        protocol=_protocol(comparison),
        columns=list(problem.columns),
        notices=list(problem.notices),
        target_rows=[],
    )


def _plain_verdict(judgement: Verdict, cautions: Sequence[str]) -> Verdict:
    """Remove the cautions from the verdict; reports list them separately."""
    names = [each.name for each in fields(Difference)]
    return Verdict(
        judgement.headline,
        [sentence for sentence in judgement.sentences if sentence not in cautions],
        [],
        [Difference(**{name: getattr(each, name) for name in names}) for each in judgement.differences],
        judgement.best,
        list(judgement.winners),
        judgement.confidence,
    )


def _by_fold(predictions: Predictions, metrics: Sequence[Metric]) -> dict[str, dict[str, list[float]]]:
    """Score every tested fold of every repeat, by method and metric."""
    scores_by_fold: dict[str, dict[str, list[float]]] = {m: defaultdict(list) for m in predictions.values}
    for repeat, row in enumerate(predictions.fold):
        for number in sorted(set(row[row >= 0].tolist())):
            fold = np.full_like(predictions.fold, -1)
            fold[repeat, row == number] = number
            try:
                scores = score(replace(predictions, fold=fold))
            except ValueError:  # no row of a group that is judged
                continue
            for method, values in scores.items():
                for metric in metrics:
                    scores_by_fold[method][metric.name].append(values[metric.name])
    return {method: dict(values) for method, values in scores_by_fold.items()}


def _calibration(comparison: Comparison) -> dict[str, dict[str, float]]:
    """Compare log loss and calibration error before and after temperature scaling."""
    calibration = {}
    for method in comparison.methods if comparison.scores else ():
        scores = comparison.scores[method]
        temperatures = [record.temperature or 1.0 for record in comparison.of(method)]
        calibration[method] = {
            "temperature": float(np.exp(np.mean(np.log(temperatures)))),
            **{f"{name}_before": scores[f"uncalibrated_{name}"] for name in _CALIBRATED},
            **{f"{name}_after": scores[name] for name in _CALIBRATED},
        }
    return calibration


def _settings(comparison: Comparison, method: str) -> str:
    """Describe the settings that the validation rows chose, as ranges over folds."""
    trials = [r.trials[r.chosen] for r in comparison.of(method) if r.chosen is not None]
    values: dict[str, list[float]] = defaultdict(list)
    for trial in trials:
        for name, value in trial.settings.items():
            values[name].append(value)
        if trial.length:
            values["iterations" if method == TREES else "epochs"].append(trial.length)
    words = []
    for name, chosen in values.items():
        low, high = min(chosen), max(chosen)
        words.append(f"{name} {low:g}" + (f" to {high:g}" if high > low else ""))
    if logs := sum(trial.log_target for trial in trials):
        words.append(f"log of the target in {logs} of {count(len(trials), 'fold')}")
    return ", ".join(words)


def _cautions(comparison: Comparison) -> list[str]:
    """List limits of the answer beyond those that the verdict mentions."""
    plan = comparison.plan
    cautions = [
        f"{NAMES[method].capitalize()} was not compared. {error}"
        for method, error in comparison.failed.items()
    ]
    if names := comparison.problem.giveaways:
        shown = ", ".join(map(repr, names[:5])) + (" and others" if len(names) > 5 else "")
        cautions.append(
            f"{shown} alone {'predicts' if len(names) == 1 else 'predict'} {comparison.problem.target_name} "
            "almost perfectly. If they are not known at prediction time, the scores are too good to be true."
        )
    if cut := _cut(comparison):
        cautions.append(
            f"This is a first impression: --quick had {cut}. Better settings may change the order. Run it "
            "without --quick before you decide."
        )
    if plan.trials == 1:
        cautions.append(
            "There was no search: every method had one trial with its usual settings. More --trials are "
            "fairer to methods whose usual settings do not suit the table."
        )
    if plan.epochs < FEW_EPOCHS:
        cautions.append(f"Few epochs: with --epochs {plan.epochs}, only the start of training is compared.")
    for method in comparison.methods:
        trials = [trial for record in comparison.of(method) for trial in record.trials]
        if failed := sum(bool(trial.error) for trial in trials):
            cautions.append(
                f"{failed} of {len(trials)} training runs of {NAMES[method]} failed and were skipped."
            )
    if plan.trials > 1 and (ends := _borders(comparison)):
        cautions.append(
            f"The search ended at the border of its range: {'; '.join(ends)}. Better settings may lie "
            "beyond it; elliptica.estimators accepts any value."
        )
    return cautions


def _cut(comparison: Comparison) -> str:
    """Describe what --quick cut; empty if nothing."""
    plan = comparison.plan
    if not plan.quick:
        return ""
    usual = sizes(max(len(fold.train) for fold in comparison.shift.folds))
    nouns = {"trials": "setting", "epochs": "epoch", "networks": "network"}
    own = {name: getattr(plan, name) for name in nouns}
    cut = [
        f"{count(own[name], noun)} instead of {usual[name]}"
        for name, noun in nouns.items()
        if own[name] < usual[name]
    ]
    return ", ".join(cut)


def _borders(comparison: Comparison) -> list[str]:
    """List settings of the best method and the reference that most folds chose at the border of a range."""
    borders: dict[tuple[str, tuple[float, float]], list[str]] = defaultdict(list)
    for method in dict.fromkeys((comparison.best, REFERENCE)):
        mine = [record for record in comparison.of(method) if record.chosen is not None]
        ends: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for record in mine:
            for name, reach in at_border(method, record.trials[record.chosen or 0].settings).items():
                ends[name].append(reach)
        for name, reaches in ends.items():
            if 2 * len(reaches) > len(mine):
                borders[name, reaches[0]].append(NAMES[method])
    return [
        f"{name} ({low:g} to {high:g}) of {' and '.join(methods)}"
        for (name, (low, high)), methods in borders.items()
    ]


def target_rows_words(rows: TargetRows, method: str) -> list[str]:
    """Describe how far the rows to predict lie from the training rows.

    Example:
        >>> target_rows_words(TargetRows(200, 0.31, 0.12, 0.02), "erm")[0]
        '31 % of the 200 rows to predict lie farther from the nearest training row than 95 % of these do.'
    """
    far = f"{100 * rows.beyond_95:.0f} % of the {rows.rows:,} rows to predict"
    sentences = [f"{far} lie farther from the nearest training row than 95 % of these do."]
    if rows.beyond_95 <= 0.1:
        sentences.append("Rows of the same kind would give about this share.")
    elif rows.beyond_95 > 0.25:
        sentences.append(
            "They are shifted: judge methods by --extrapolate, --time or --split-by, not by random rows."
        )
    if rows.beyond_range is not None:
        share = f"{100 * rows.beyond_range:.1f} %"
        sentences.append(
            f"{share} of the predictions of {NAMES[method]} for them lie outside the range of the targets."
        )
    return sentences


def _protocol(comparison: Comparison) -> list[str]:
    """Describe how the comparison was run, point by point."""
    plan, problem, shift = comparison.plan, comparison.problem, comparison.shift
    average = "Brier score" if problem.task == "classification" else "RMSE"
    rule = average if plan.select == "average" else comparison.metrics[1].label
    rows = "all training rows"
    if any(len(fold.fit) > plan.tuning_rows for fold in shift.folds):
        rows = "the training rows without the validation rows, which decide when to stop"
    folds, repeats = shift.folds_per_repeat, shift.n_repeats
    ensemble = f"{plan.networks} networks together" if plan.networks > 1 else "one network"
    own = [name for name in plan.methods if METHODS[name].sees_groups]
    points = [
        f"{shift.words} {count(folds, 'fold')}"
        + (f", {repeats} times with other draws." if repeats > 1 else "."),
        "Preprocessing is fitted on the training rows of each fold and is the same for all methods. Missing "
        "numbers are filled and marked. Heavy tails are squashed. Dates become numbers and seasons, "
        "categories become indicators, and free text becomes parts of words.",
        f"Every method tries {count(plan.trials, 'setting')} in every fold. Networks (hidden layers of "
        f"{' and '.join(map(str, plan.hidden))} units) share the draws of learning rate and weight decay. "
        f"They stop early on the validation rows, after at most {plan.epochs} epochs.",
        f"The validation rows choose by {rule} (--select {plan.select}) and mimic the shift. The chosen "
        f"settings are trained on {rows} ({ensemble}) and predict the test rows once.",
        "Boosted trees and the linear model are scikit-learn's. They get the same rows, inputs, number of "
        "trials and selection rule. They have their own settings, and time is not matched.",
    ]
    if problem.task == "classification" and plan.select == "average":
        points.append(
            "The verdict names the method with the best accuracy. Among methods that are not distinguishable "
            "from it in accuracy, the Brier score decides."
        )
    constant = "mean" if problem.task == "regression" else "class frequencies"
    points.append(
        f"The constant prediction is the {constant} of the training rows of each fold. If no method is "
        "shown to beat it, no model is worth keeping. This is judged by "
        f"{'RMSE' if problem.task == 'regression' else 'accuracy or Brier score'}."
    )
    if problem.task == "classification":
        points.append(
            "Probabilities of every method are calibrated with one temperature fitted on the validation "
            "rows, in the scores and in the saved model."
        )
    if plan.bounded and problem.task == "regression":
        points.append(
            "Predictions of networks are clipped to the range of the training targets (--unbounded turns "
            "this off)."
        )
    if plan.log_target:
        points.append("The target is positive and skewed: every second setting learns its logarithm.")
    if own:
        points.append(f"† sees groups in training: {', '.join(NAMES[name] for name in own)}.")
    points.append(
        "Names for --methods: " + ", ".join(f"{name} ({NAMES[name]})" for name in plan.methods) + "."
    )
    return [*points, f"Seed {plan.seed}."]
