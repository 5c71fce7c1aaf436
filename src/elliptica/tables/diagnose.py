"""`elliptica.diagnose`: find problems of a trained model and its data, and advise what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.statistics import check_level
from elliptica.core.inputs import EllipticWarning, LossFn
from elliptica.core.targets import TargetSpace
from elliptica.tables import data_findings as data
from elliptica.tables import model_findings as model_of
from elliptica.tables.evidence import Evidence
from elliptica.tables.findings import SEVERITIES, Diagnosis, Finding
from elliptica.tables.fitted_model import FittedModel

Found = Finding | tuple[Finding, ...]

#: Largest number of rows of each kind to judge; more are sampled by class and group.
MAX_ROWS = 20_000
#: With fewer rows limits are rough, because losses are far from normal.
FEW_ROWS = 30

#: The checks, the most important first among findings of the same severity.
JUDGES: dict[str, Callable[[Evidence], Found]] = {
    "outputs": model_of.judge_outputs,
    "label_order": model_of.judge_label_order,
    "leak": data.judge_leak,
    "constant": model_of.judge_constant,
    "labels": data.judge_labels,
    "duplicates": data.judge_duplicates,
    "inputs": data.judge_inputs,
    "outliers": model_of.judge_outliers,
    "underfit": model_of.judge_underfit,
    "shortcut": model_of.judge_shortcut,
    "overfitting": model_of.judge_gap,  # and "shift"
    "range": model_of.judge_range,
    "weak_part": model_of.judge_parts,
    "prior": data.judge_prior,
    "confidence": model_of.judge_confidence,
}
_ORDER = [*JUDGES]
_ORDER.insert(_ORDER.index("overfitting"), "shift")

#: Findings that a more serious one explains; they are dropped.
EXPLAINED = {
    "outputs": ("label_order", "constant", "underfit", "confidence"),
    "label_order": (
        *("constant", "underfit", "labels", "weak_part", "confidence", "overfitting", "outliers"),
        *("shortcut", "prior", "range"),
    ),
    "constant": ("weak_part",),
    "outliers": ("underfit",),
    "shortcut": ("overfitting",),
    "shift": ("weak_part",),
}


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
    num_classes: int | None = None,
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
        num_classes: Number of classes of integer labels. None infers it from the model's output.
        target_space: Kind of targets, needed for custom losses: ``"simplex"``, ``"unit"`` or ``"real"``.
        confidence: Confidence level of all limits.
        generator: Source of randomness. None means a generator with seed 0, so the result is reproducible and
            torch's global state does not change.
        device: Device on which to evaluate the model. None means its own. A model on another device is
            copied.
        batch_size: Rows per call of the model.
        max_rows: Largest number of rows of a kind; of more, a sample by class and group is judged.

    Returns:
        A `Diagnosis`: print it, or read ``.problems``, ``.findings`` and ``.to_dict()``.

    Example:
        >>> x = torch.linspace(-1, 1, 60)[:, None] * torch.tensor([[1.0, 2.0]])
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> diagnose(model, nn.MSELoss(), x, x[:, :1]).headline()
        'No better than a constant; The model has not learnt its data.'
    """
    fitted = FittedModel(
        model,
        loss_fn,
        x,
        y,
        groups=groups,
        class_names=class_names,
        feature_names=feature_names,
        num_classes=num_classes,
        target_space=target_space,
        batch_size=batch_size,
        test=held_out,
        test_groups=held_out_groups,  # type: ignore[arg-type]
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
    confidence = float(confidence)
    checks.count("batch_size", fitted.batch_size)
    fitted = replace(fitted, batch_size=int(fitted.batch_size))  # torch splits by plain integers only
    checks.count("max_rows", max_rows, 10)
    source = torch.Generator().manual_seed(0) if generator is None else generator
    with (
        torch.random.fork_rng(devices=_accelerators(fitted.model)),
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", EllipticWarning)  # the findings say the same
        judged = fitted.prepare(max_rows, confidence=confidence, generator=source, device=device)
        evidence = Evidence(judged)
        findings = list(_run(JUDGES, evidence))
        findings = [_numbered(finding, fitted, judged, first_row) for finding in findings]
        return Diagnosis(
            _about(evidence), tuple(_ordered(findings)), len(judged.x), len(fitted.x), confidence, first_row
        )


def _numbered(finding: Finding, given: FittedModel, judged: FittedModel, first_row: int) -> Finding:
    """Number rows as in the user's data; the numbers of a sampled table are not known."""
    attribute = {"training": "row_numbers", "held-out": "test_row_numbers"}
    name = attribute.get(finding.rows_of, "unlabelled_row_numbers")
    if first_row and getattr(given, name) is None:
        return replace(finding, rows=())
    numbers = getattr(judged, name)
    return replace(finding, rows=tuple(numbers[i] for i in finding.rows)) if finding.rows else finding


def _run(judges: dict[str, Callable[..., Found]], subject: object) -> Iterator[Finding]:
    """Compute all findings; one that fails reports why and does not stop the others."""
    for name, judge in judges.items():
        try:
            result = judge(subject)
        except (ValueError, RuntimeError) as error:
            advice = "Fix the cause in the message and run again. The other findings are valid."
            yield Finding(name, "look", f"Not computed: {error}", advice, computed=False)
            continue
        yield from result if isinstance(result, tuple) else (result,)


def _ordered(found: Iterable[Finding]) -> list[Finding]:
    """Sort by severity, then by importance; drop findings that a more serious one explains."""
    found = list(found)
    grave = {f.name for f in found if f.severity == "warning"}
    explained = {name for cause in grave for name in EXPLAINED.get(cause, ())}
    kept = [f for f in found if f.name not in explained or f.severity in ("fine", "info")]
    return sorted(kept, key=lambda f: (-SEVERITIES.index(f.severity), _ORDER.index(f.name)))


def _about(e: Evidence) -> tuple[str, ...]:
    """Describe rows, task, errors and limits in sentences."""
    fitted = e.fitted
    tasks = {"classes": "", "values": "regression", "other": "judged by its loss alone"}
    task = f"{e.n_classes} classes" if e.task == "classes" else tasks[e.task]
    rows = f"{len(e.train)} training rows"
    if fitted.n_given > len(e.train):
        rows = f"{len(e.train)} of {fitted.n_given} training rows (a sample by class and group)"
    held = "no held-out rows" if e.held is None else f"{len(e.held)} held-out rows"
    lines = [f"{rows}, {held}; {task}."]
    if e.task == "classes" and e.train.outputs is not None:
        kinds = [s for s in (e.train, e.held) if s is not None]
        right = [f"{1 - float(e.is_wrong(s).double().mean()):.1%} of {s.name} rows are right" for s in kinds]
        lines[0] = f"{lines[0]} {', '.join(right)}."
    if e.held is None:
        lines.append(
            "Without held-out rows, learning and memorising look the same. Pass some (held_out=, --test)."
        )
    if e.task != "other":
        lines.append(
            "Errors: 0 is perfect, 1 is as bad as always predicting the average. "
            f"Brackets are {e.confidence:.0%} limits."
        )
    if len(e.train) < FEW_ROWS:
        lines.append(f"There are few rows: below {FEW_ROWS} the limits are rough, and little can be shown.")
    return tuple(lines)


def _accelerators(model: object) -> list[torch.device]:
    """Return the devices, besides the CPU, whose random state must be restored."""
    if not isinstance(model, nn.Module):
        return []
    return sorted({p.device for p in model.parameters() if p.device.type == "cuda"}, key=str)
