"""Warn about questionable states of an objective; reject a weighting that would train nothing."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor, nn

from elliptica._utils.compiler import uncompiled
from elliptica.core.types import EllipticWarning


def reject_no_op(terms: Sequence[Tensor]) -> None:
    """An additive term without gradient trains nothing."""
    if not any(term.requires_grad for term in terms):
        raise ValueError(
            "The additive weighting has no gradient: its drift does not depend on any parameter, so it "
            'would change the value but not the training. Use weighting="multiplicative".'
        )


@uncompiled
def warn_of_mode(objective_trains: bool, model_trains: bool) -> None:
    """Users who call ``model.eval()`` alone would get bridges in their validation loss."""
    warnings.warn(
        f"objective.training is {objective_trains} but model.training is {model_trains}, so bridges are "
        f"{'on' if objective_trains else 'off'}. Call objective.train() and objective.eval() instead of the "
        "model's.",
        EllipticWarning,
        stacklevel=4,
    )


def warn_of_own_sigma(model: nn.Module) -> None:
    """Processes with different batches measure different noise; in `split_rows` all have the same batch."""
    if not (dist.is_available() and dist.is_initialized()) or hasattr(model, "_ranks"):
        return
    if dist.get_world_size() > 1 and dist.get_rank() == 0:  # one says it for all
        warnings.warn(
            f'sigma="auto" was measured on the first batch, but each of the {dist.get_world_size()} '
            "processes has another one, and trains with noise of its own. Measure the training data once: "
            "sigma=elliptica.auto_sigma(x).",
            EllipticWarning,
            stacklevel=5,
        )


@uncompiled
def warn_if_negative(loss: Tensor, weighting: str, xi: float) -> bool:
    """Additive weightings can outweigh the loss itself; returns whether that was said."""
    if float(loss.detach()) >= 0:
        return False
    warnings.warn(
        f"The objective became negative: the term of weighting={weighting!r} outweighs the loss. Lower xi "
        f'(now {xi}), or use weighting="multiplicative".',
        EllipticWarning,
        stacklevel=4,
    )
    return True
