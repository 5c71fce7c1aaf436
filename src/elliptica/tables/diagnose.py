"""`elliptica.diagnose`: find problems of a trained model and its data, advise what to do, make a page."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.statistics import check_level
from elliptica.core.inputs import EllipticWarning, LossFn
from elliptica.core.targets import TargetSpace
from elliptica.report.page import Bar, Page, Section
from elliptica.tables import data_findings as data
from elliptica.tables import model_findings as model_of
from elliptica.tables.evidence import COMPARABLE, NEIGHBOURS, Evidence, FittedModel, Rows
from elliptica.tables.findings import SEVERITIES, Diagnosis, Finding, Quantity, RowsOf, skipped

#: Returns findings, or a sentence if there is no problem.
Judge = Callable[[Evidence], Finding | list[Finding] | str]

#: Largest number of rows of each kind to judge; more are sampled by class and group.
MAX_ROWS = 20_000
#: With fewer rows limits are rough, because losses are far from normal.
FEW_ROWS = 30

#: The checks and what they need (see `evidence.REQUIREMENTS`), the most important first.
JUDGES: dict[str, tuple[Judge, tuple[str, ...]]] = {
    "outputs": (model_of.judge_outputs, ()),
    "label_order": (data.judge_label_order, ("targets",)),
    "leak": (data.judge_leak, ("held-out",)),
    "constant": (model_of.judge_constant, ("targets", "varying targets")),
    "labels": (data.judge_labels, ("targets", "neighbours", "one target", "varying targets")),
    "duplicates": (data.judge_duplicates, ()),
    "inputs": (data.judge_inputs, ()),
    "outliers": (model_of.judge_outliers, ("some rows",)),
    "underfit": (model_of.judge_underfit, ("targets", "neighbours")),
    "shortcut": (model_of.judge_shortcut, ("targets", "held-out")),
    "shift": (data.judge_shift, ()),
    "overfitting": (model_of.judge_overfitting, COMPARABLE),
    "range": (model_of.judge_range, ("values", "varying targets")),
    "weak_part": (model_of.judge_parts, ("targets",)),
    "prior": (data.judge_prior, ("classes", "held-out")),
    "confidence": (model_of.judge_confidence, ("classes", "labels", "held-out")),
}

#: Findings that a warning explains; they are not listed beside it.
EXPLAINED = {
    "outputs": ("label_order", "constant", "underfit", "confidence"),
    "label_order": (
        *("constant", "underfit", "labels", "weak_part", "confidence", "overfitting", "outliers"),
        *("shortcut", "prior", "range", "shift"),  # shift only of held-out rows
    ),
    "constant": ("weak_part",),
    "outliers": ("underfit",),
    "shortcut": ("overfitting", "labels"),  # labels only of held-out rows
    "shift": ("weak_part",),
}
#: Findings that wrong targets explain if they vanish without these rows and the rows beside them.
BY_LABELS = ("constant", "underfit", "overfitting", "weak_part", "confidence")


def diagnose(
    model: nn.Module,
    loss_fn: LossFn,
    x: Tensor,
    y: Tensor,
    *,
    held_out: tuple[Tensor, Tensor] | None = None,
    unlabelled: Tensor | None = None,
    groups: Tensor | Sequence[Hashable] | None = None,
    held_out_groups: Tensor | Sequence[Hashable] | None = None,
    class_names: Sequence[Hashable] = (),
    feature_names: Sequence[str] = (),
    target_space: TargetSpace | None = None,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    batch_size: int = 1024,
    max_rows: int = MAX_ROWS,
) -> Diagnosis:
    """Find problems of a trained model and its data, and advise what to do.

    The model may come from anywhere. It is only evaluated (in evaluation mode, restored afterwards), never
    changed. Pass held-out rows: without them overfitting, confidence and shift cannot be judged.

    Args:
        model: Called as ``model(x)``; in evaluation mode it must treat rows independently.
        loss_fn: The loss it was trained with; any that `elliptica.Elliptic` takes.
        x: Training inputs as the model takes them, ``(rows, *feature)``, floating point.
        y: Their targets: integer labels, class probabilities, values in [0, 1] (multilabel) or real numbers.
        held_out: Inputs and targets of rows that were not trained on.
        unlabelled: Inputs on which you will use the model.
        groups: Group of each training row (hospital, background, ...).
        held_out_groups: Group of each held-out row.
        class_names: Names of the classes, in the order of the model's outputs. Empty: 0, 1, ...
        feature_names: Names of the features of flat inputs. Empty: 0, 1, ...
        target_space: Kind of targets, needed for custom losses: ``"simplex"``, ``"unit"`` or ``"real"``.
        confidence: Confidence level of all limits.
        generator: Source of randomness. None means a generator with seed 0.
        batch_size: Rows per call of the model.
        max_rows: Largest number of rows of a kind; of more, a sample by class and group is judged.

    Returns:
        A `Diagnosis`: print it, or read ``.problems``, ``.findings`` and ``.to_dict()``.

    Example:
        >>> x = torch.linspace(-1, 1, 60)[:, None] * torch.tensor([[1.0, 2.0]])
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> [finding.title for finding in diagnose(model, nn.MSELoss(), x, x[:, :1]).problems]
        ['No better than a constant', 'The model has not learnt its data']
    """
    rows: dict[RowsOf, Rows] = {"training": Rows(x, y, groups)}
    if held_out is not None:
        rows["held-out"] = Rows(*held_out, held_out_groups)
    if unlabelled is not None:
        rows["unlabelled"] = Rows(unlabelled)
    fitted = FittedModel(model, loss_fn, rows, class_names, feature_names, target_space, batch_size)
    return diagnose_fitted(fitted, confidence=confidence, generator=generator, max_rows=max_rows)


def diagnose_fitted(
    fitted: FittedModel,
    *,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    max_rows: int = MAX_ROWS,
) -> Diagnosis:
    """Diagnose a model with its rows; arguments are those of `diagnose`."""
    check_level("confidence", confidence)
    checks.count("max_rows", max_rows, 10)
    n_given = len(fitted.rows["training"].x)
    places = sorted({p.device for p in fitted.model.parameters() if p.device.type == "cuda"}, key=str)
    with torch.random.fork_rng(devices=places), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", EllipticWarning)  # the findings say the same
        sampled = fitted.sampled(max_rows, generator or torch.Generator().manual_seed(0))
        e = Evidence(sampled, float(confidence))
        findings = _explain(e, [finding for name in JUDGES for finding in judge(name, e)])
    numbers = {kind: rows.numbers or () for kind, rows in sampled.rows.items()}
    findings = [
        replace(f, rows=[numbers[f.rows_of][i] for i in f.rows if numbers[f.rows_of]]) for f in findings
    ]
    findings.sort(key=lambda f: (-SEVERITIES.index(f.severity), [*JUDGES].index(f.name)))
    about = _about(e, n_given)
    return Diagnosis(about, tuple(findings), len(e.train), n_given, e.confidence, fitted.first_row)


def judge(name: str, e: Evidence) -> list[Finding]:
    """Compute one finding, or say why it cannot be judged."""
    function, needs = JUDGES[name]
    reason = e.lacks(*needs)
    result = skipped(reason) if reason else function(e)
    if isinstance(result, str):
        result = Finding("fine", "", result)
    return [replace(f, name=name) for f in (result if isinstance(result, list) else [result])]


def _explain(e: Evidence, findings: list[Finding]) -> list[Finding]:
    """Drop problems that a warning explains, and name them there."""
    problems = {f.name: f for f in findings if f.is_problem}
    causes = {
        name: cause
        for cause, names in EXPLAINED.items()
        for name in names
        if name in problems and cause in problems and problems[cause].severity == "warning"
    }
    labels = problems.get("labels")
    if labels is not None and labels.rows_of == "training" and causes.get("labels") == "shortcut":
        del causes["labels"]
    if "shift" in causes and problems["shift"].rows_of != "held-out":
        del causes["shift"]
    if labels is not None and labels.severity == "warning" and "labels" not in causes:
        rest = _without_suspects(e, labels)
        for name in BY_LABELS:
            if name in problems and name not in causes:
                again = judge(name, rest)[0]
                is_less = SEVERITIES.index(again.severity) < SEVERITIES.index(problems[name].severity)
                if not again.is_problem or (is_less and name != "weak_part"):
                    causes[name] = "labels"
    kept = [f for f in findings if not (f.name in causes and f is problems[f.name])]
    titles = {f.name: [problems[name].title for name in causes if causes[name] == f.name] for f in kept}
    words = {name: f" This explains: {'; '.join(titles[name])}." for name in titles if titles[name]}
    return [replace(f, sentence=f.sentence + words.get(f.name, ""), explains=titles[f.name]) for f in kept]


def _without_suspects(e: Evidence, labels: Finding) -> Evidence:
    """Drop the rows whose targets look wrong, and held-out rows next to them."""
    suspects = torch.tensor(labels.rows)
    if labels.rows_of == "held-out":
        return Evidence(e.fitted, e.confidence, {"held-out": suspects})
    suspects = data.suspected_rows(e, suspects)
    beside = torch.isin(e.near_held[1][:, :NEIGHBOURS], suspects).any(1).nonzero().flatten()
    return Evidence(e.fitted, e.confidence, {"training": suspects, "held-out": beside})


def _about(e: Evidence, n_given: int) -> tuple[str, ...]:
    """Describe rows, task, errors and limits in sentences."""
    tasks = {"classes": f"{e.n_classes} classes", "values": "regression", "other": "judged by its loss alone"}
    n = len(e.train)
    rows = f"{n} training rows"
    if n_given > n:
        rows = f"{n} of {n_given} training rows (a sample by class and group)"
    text = f"{rows}, {len(e.held) or 'no'} held-out rows; {tasks[e.task]}."
    if e.task == "classes":
        kinds = [s for s in (e.train, e.held) if len(s)]
        right = [f"{1 - float(e.is_wrong(s).double().mean()):.1%} of {s.name} rows are right" for s in kinds]
        text = f"{text} {', '.join(right)}."
    lines = [text]
    if not len(e.held):
        lines.append("Without held-out rows, learning and memorising look the same (held_out=, --test).")
    if e.task != "other":
        lines.append(
            "Errors: 0 is perfect, 1 is as bad as always predicting the average. "
            f"Brackets are {e.confidence:.0%} limits."
        )
    if n < FEW_ROWS:
        lines.append(f"There are few rows: below {FEW_ROWS} the limits are rough, and little can be shown.")
    return tuple(lines)


# ---- pages


def diagnosis_page(diagnosis: Diagnosis, title: str) -> Page:
    """Build the page of a diagnosis, the most important finding first."""
    sections = [_finding(finding, diagnosis.first_row) for finding in diagnosis.findings]
    return Page(title, diagnosis.headline(), diagnosis.about, sections, "diagnosis")


def _finding(finding: Finding, first_row: int) -> Section:
    shares = {name: quantity for name, quantity in finding.numbers.items() if quantity.kind == "share"}
    bars = [_bar(label, quantity) for label, quantity in (finding.breakdown or shares).items()]
    text = [finding.sentence, *([finding.advice] if finding.advice else [])]
    if finding.rows:
        more = f" and {len(finding.rows) - 30} more" if len(finding.rows) > 30 else ""
        shown = ", ".join(map(str, finding.rows[:30]))
        text.append(f"{finding.rows_of.capitalize()} rows, counted from {first_row}: {shown}{more}.")
    title = finding.title or finding.name.replace("_", " ")
    return Section(title, text, bars=bars[:10], mark=finding.severity, folded=not finding.is_problem)


def _bar(label: str, quantity: Quantity) -> Bar:
    low, high = (v if math.isfinite(v) else quantity.value for v in (quantity.lower, quantity.upper))
    return Bar(label, quantity.value, low, high, str(quantity))
