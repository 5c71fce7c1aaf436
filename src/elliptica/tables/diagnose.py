"""`elliptica.diagnose`: find problems of a trained model and its data, and advise what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.statistics import check_level
from elliptica.core.inputs import EllipticWarning, LossFn
from elliptica.core.targets import TargetSpace
from elliptica.tables import data_findings as data
from elliptica.tables import model_findings as model_of
from elliptica.tables.evidence import COMPARABLE, NEIGHBOURS, Evidence
from elliptica.tables.findings import SEVERITIES, Diagnosis, Finding, skipped
from elliptica.tables.fitted_model import FittedModel

Judge = Callable[[Evidence], Finding | list[Finding]]

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
        *("shortcut", "prior", "range"),
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
    class_names: Sequence[Hashable] | None = None,
    feature_names: Sequence[str] = (),
    target_space: TargetSpace | None = None,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
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
        class_names: Names of the classes, in the order of the model's outputs. None: 0, 1, ...
        feature_names: Names of the features of flat inputs. Empty: 0, 1, ...
        target_space: Kind of targets, needed for custom losses: ``"simplex"``, ``"unit"`` or ``"real"``.
        confidence: Confidence level of all limits.
        generator: Source of randomness. None means a generator with seed 0.
        device: Device on which to evaluate the model, or a copy of it. None means its own.
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
    fitted = FittedModel(
        model,
        loss_fn,
        x,
        y,
        groups=groups,
        class_names=class_names,
        feature_names=feature_names,
        target_space=target_space,
        batch_size=batch_size,
        test=held_out,
        test_groups=held_out_groups,
        unlabelled=unlabelled,
    )
    return diagnose_fitted(
        fitted, confidence=confidence, generator=generator, device=device, max_rows=max_rows
    )


def diagnose_fitted(
    fitted: FittedModel,
    *,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    max_rows: int = MAX_ROWS,
    first_row: int = 0,
) -> Diagnosis:
    """Diagnose a model with its rows; arguments are those of `diagnose`.

    ``first_row`` is the number of the first row, for messages.
    """
    check_level("confidence", confidence)
    checks.count("max_rows", max_rows, 10)
    source = torch.Generator().manual_seed(0) if generator is None else generator
    places = sorted({p.device for p in fitted.model.parameters() if p.device.type == "cuda"}, key=str)
    with torch.random.fork_rng(devices=places), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", EllipticWarning)  # the findings say the same
        model, place = fitted.place(device)
        rows = fitted.rows(max_rows, place, source)
        evidence = Evidence(fitted, model, rows, float(confidence))
        findings = [finding for name in JUDGES for finding in judge(name, evidence)]
        findings = _explain(evidence, findings)
        findings = [replace(f, rows=[rows[f.rows_of].numbers[i] for i in f.rows]) for f in findings]
    if first_row:  # the numbers of a sampled table are not known
        unknown = {"training"} if fitted.row_numbers is None else set()
        unknown |= {"held-out"} if fitted.test_row_numbers is None else set()
        findings = [replace(f, rows=()) if f.rows_of in unknown else f for f in findings]
    order = [*JUDGES]
    findings.sort(key=lambda f: (-SEVERITIES.index(f.severity), order.index(f.name)))
    about = _about(evidence, len(fitted.x))
    return Diagnosis(about, tuple(findings), len(evidence.train), len(fitted.x), float(confidence), first_row)


def judge(name: str, e: Evidence) -> list[Finding]:
    """Compute one finding, or say why it cannot be judged."""
    function, needs = JUDGES[name]
    reason = e.lacks(*needs)
    if reason:
        return [skipped(name, reason)]
    result = function(e)
    return result if isinstance(result, list) else [result]


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
    if labels is not None and labels.severity == "warning" and "labels" not in causes:
        rest = _without_suspects(e, labels)
        for name in BY_LABELS:
            if name in problems and name not in causes:
                again = judge(name, rest)[0]
                is_less = SEVERITIES.index(again.severity) < SEVERITIES.index(problems[name].severity)
                if not again.is_problem or (is_less and name != "weak_part"):
                    causes[name] = "labels"
    kept = [f for f in findings if not (f.is_problem and f.name in causes)]
    titles = {f.name: [problems[name].title for name in causes if causes[name] == f.name] for f in kept}
    words = {name: f" This explains: {'; '.join(titles[name])}." for name in titles if titles[name]}
    return [replace(f, sentence=f.sentence + words.get(f.name, ""), explains=titles[f.name]) for f in kept]


def _without_suspects(e: Evidence, labels: Finding) -> Evidence:
    """Drop the rows whose targets look wrong, and held-out rows next to them."""
    suspects = torch.tensor(labels.rows)
    if labels.rows_of == "held-out":
        return Evidence(e.fitted, e.model, e.rows, e.confidence, {"held-out": suspects})
    suspects = data.suspected_rows(e, suspects)
    beside = torch.isin(e.near_held[1][:, :NEIGHBOURS], suspects).any(1).nonzero().flatten()
    return Evidence(e.fitted, e.model, e.rows, e.confidence, {"training": suspects, "held-out": beside})


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
