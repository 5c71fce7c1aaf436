"""`elliptica.diagnose`: what the loss of a trained model does at, between and around its data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence

import torch
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.statistics import check_level
from elliptica.core.noise import Sigma
from elliptica.core.targets import TargetSpace
from elliptica.core.types import EllipticWarning, LossFn
from elliptica.diagnostics.findings import FEW_ROWS, Diagnosis, Finding
from elliptica.diagnostics.fitted_model import FittedModel
from elliptica.diagnostics.loss_shape import advise, judge_curvature, judge_dimension, judge_slope
from elliptica.diagnostics.loss_values import PLURAL, judge_between, judge_data, judge_noise, judge_profile

#: Findings in the order of the page.
JUDGES: dict[str, Callable[[FittedModel], Finding | tuple[Finding, ...]]] = {
    "data": judge_data,
    "between": judge_between,
    "profile": judge_profile,
    "noise": judge_noise,
    "slope": judge_slope,
    "curvature": judge_curvature,
    "dimension": judge_dimension,
}


def diagnose(
    model: nn.Module,
    loss_fn: LossFn,
    x: Tensor,
    y: Tensor,
    *,
    groups: Tensor | Sequence[Hashable] | None = None,
    n: int = 1000,
    sigma: Sigma = "auto",
    num_classes: int | None = None,
    class_names: Sequence[Hashable] | None = None,
    target_space: TargetSpace | None = None,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    batch_size: int = 1024,
) -> Diagnosis:
    """Look at the loss of any trained model as a function of its data, and say what stands out.

    The model may come from anywhere; it is only evaluated (in evaluation mode, which is put back), never
    changed. Costs about ``5 n + 6400`` forward passes and ``2 n`` gradients with respect to inputs.

    Do not use it to choose between models by one severity: thresholds are conventions, and limits are
    about these rows and the chance of drawing points between them (docs: diagnose).

    Args:
        model: Called as ``model(x)``; in evaluation mode it must treat rows independently.
        loss_fn: The loss it was trained with: any that `elliptica.Elliptic` takes.
        x: Inputs as the model takes them, ``(rows, *feature)``, floating point. Usually training data.
        y: Targets: integer labels, class probabilities, values in [0, 1] (multilabel) or real numbers.
        groups: Group of each row; without, classes are compared.
        n: Most rows to look at (more are subsampled), and the number of points between them.
        sigma: Noise of the bridges, as in `elliptica.Elliptic`: a number is in units of ``x``.
        num_classes: Number of classes of integer labels; None reads it off the model's output.
        class_names: What to call the classes, in the order of the model's outputs; None: 0, 1, ...
        target_space: What targets are, for losses of your own: ``"simplex"``, ``"unit"`` or ``"real"``.
        confidence: Level of all limits.
        generator: Source of randomness; None is a generator of seed 0, so the result is reproducible and
            torch's global state is left alone in either case.
        device: Where to compute; None is where the model is. A model that is elsewhere is copied.
        batch_size: Rows per call of the model.

    Returns:
        A `Diagnosis`: print it, or read ``.findings`` and ``.to_dict()``.

    Example:
        >>> x = torch.linspace(-1, 1, 40)[:, None] * torch.ones(1, 4)
        >>> model = nn.Linear(4, 1)
        >>> diagnosis = diagnose(model, nn.MSELoss(), x, x[:, :1], n=50)
        >>> diagnosis["between"].severity  # a squared error of a linear model is convex
        'fine'
    """
    fitted = FittedModel(
        model,
        loss_fn,
        x,
        y,
        groups=groups,
        class_names=class_names,
        num_classes=num_classes,
        target_space=target_space,
        batch_size=batch_size,
    )
    return diagnose_fitted(
        fitted, n=n, sigma=sigma, confidence=confidence, generator=generator, device=device
    )


def diagnose_fitted(
    fitted: FittedModel,
    *,
    n: int = 1000,
    sigma: Sigma = "auto",
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Diagnosis:
    """Diagnose a model with its rows; arguments are those of `diagnose`."""
    check_level("confidence", confidence)
    checks.count("batch_size", fitted.batch_size)
    source = torch.Generator().manual_seed(0) if generator is None else generator
    devices = _accelerators(fitted.model)
    with torch.random.fork_rng(devices=devices), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", EllipticWarning)  # the findings say the same
        sampled = fitted.sample(n, sigma=sigma, confidence=confidence, generator=source, device=device)
        findings = tuple(_findings(sampled))
        advice = advise(sampled, findings)
        return Diagnosis(_about(sampled), (*findings, advice), len(sampled.x), sampled.n_given, confidence)


def _findings(fitted: FittedModel) -> Iterator[Finding]:
    """Compute one finding after the other; one that fails says why and does not stop the others."""
    for name, judge in JUDGES.items():
        try:
            found = judge(fitted)
        except (ValueError, RuntimeError) as error:
            yield Finding(
                name,
                "look",
                f"Not computed: {error}",
                "Correct what the message names and run again; the other findings stand.",
                computed=False,
            )
            continue
        yield from found if isinstance(found, tuple) else (found,)


def _about(fitted: FittedModel) -> tuple[str, ...]:
    """Describe rows, task, yardstick and limits in sentences."""
    tasks = {
        "simplex": f"classification into {fitted.targets.shape[1] if fitted.targets.ndim > 1 else 1} classes",
        "unit": "multilabel",
        "real": "regression",
    }
    rows = f"{len(fitted.x)} rows"
    if fitted.n_given > len(fitted.x):
        rows = f"{len(fitted.x)} of {fitted.n_given} rows, drawn at random"
    together = "" if fitted.parts is None else f", for {PLURAL[fitted.part]} and pairs all at once"
    few: tuple[str, ...] = ()
    if len(fitted.x) < FEW_ROWS:
        few = (
            f"These are few rows: limits at the rows themselves are rough below {FEW_ROWS}, and what lies "
            f"between {len(fitted.x)} rows says little about others.",
        )
    return (
        f"Looked at {rows}, and at {len(fitted.bridges.s)} points between them; {tasks[fitted.space]}.",
        f"Losses are compared with {fitted.yardstick_name}, {fitted.yardstick:.3g}. Limits in brackets are "
        f"{fitted.confidence:.0%} limits{together}.",
        *few,
        *fitted.notes,
    )


def _accelerators(model: object) -> list[torch.device]:
    """Return the devices whose random state is to be kept besides the CPU's."""
    if not isinstance(model, nn.Module):
        return []
    return sorted({p.device for p in model.parameters() if p.device.type == "cuda"}, key=str)
