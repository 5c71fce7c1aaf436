"""Settings of the objective that contradict each other, refused; doubtful states, announced."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor, nn

from elliptica._utils.compiler import uncompiled
from elliptica.core.paths import PathSampler
from elliptica.core.types import Drift, EllipticWarning
from elliptica.core.weighting import READINGS, Weighting
from elliptica.core.wrappers import refuse_wrapped

_FINE_ENOUGH = 20  # points on a path below which a log-weight is dominated by the grid


def refuse_no_op(terms: Sequence[Tensor]) -> None:
    """An additive term without gradient trains nothing."""
    if not any(term.requires_grad for term in terms):
        raise ValueError(
            "The additive weighting has no gradient: its drift does not depend on any parameter, so it "
            'would change the value but not the training. Use weighting="multiplicative".'
        )


def check_combination(
    sampler: PathSampler,
    model: nn.Module,
    weighting: Weighting,
    drift: Drift | None,
    chunk_size: int | None,
) -> None:
    """Refuse settings that contradict each other, before any work."""
    reading = READINGS.get(weighting)
    if sampler.sampling == "marginal" and reading is not None and reading.needs_path:
        raise ValueError(
            f'weighting={weighting!r} weighs whole paths, but sampling="marginal" draws single '
            'points. Use sampling="path", or weighting="gradient_softmax".'
        )
    if drift is not None and (reading is None or not reading.needs_path):
        raise ValueError(
            f"drift= needs a path weighting, but weighting={weighting!r}. Use "
            'weighting="multiplicative" (or "girsanov") with sampling="path".'
        )
    if sampler.at is not None and (drift is not None or chunk_size is not None):
        raise ValueError(
            "Bridging in a hidden layer (at=) does not go with drift= or chunk_size=: the points exist "
            'only during the forward pass. Use sampling="marginal" to bound memory.'
        )
    if weighting == "girsanov" and sampler.n_times < _FINE_ENOUGH:
        warnings.warn(
            f"With n_times={sampler.n_times} the Girsanov sum is dominated by the coarse grid (the chord's "
            f"curvature), not by the diffusion; use {_FINE_ENOUGH} points or more to approach the integral.",
            EllipticWarning,
            stacklevel=3,
        )
    second_order = reading is not None and reading.second_order
    refuse_wrapped(model, second_order, chunk_size is not None)


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
