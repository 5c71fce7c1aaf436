"""Warn about questionable states of an objective; reject a weighting that would train nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from elliptica._utils.compiler import uncompiled
from elliptica.core.bridge import flatten_rows
from elliptica.core.inputs import ONLY, Batch, named_inputs
from elliptica.core.types import Paths, warn_user

# sigma * sqrt(horizon) in units of the inputs' deviation: below, bridges are straight lines; above, noise
_USUAL_NOISE = (0.002, 2.0)


def reject_no_op(terms: Sequence[Tensor]) -> None:
    """An additive term without gradient trains nothing."""
    if not any(term.requires_grad for term in terms):
        raise ValueError(
            "The additive weighting has no gradient: its drift does not depend on any parameter, so it "
            'would change the value but not the training. Use weighting="multiplicative" with n_bridges=2 or '
            "more, or a drift with parameters."
        )


@uncompiled
def reject_unpaired(paths: Paths) -> None:
    """Raise if the bridges of a row are not several between the same two ends, with the same noise."""
    n_bridges = paths.s.shape[1]
    if n_bridges < 2:
        raise ValueError(
            'weighting="multiplicative" weighs the bridges of a pair of ends against each other, but paths '
            f"hold {n_bridges} for each row. Draw them with n_bridges=2 or more and same_partner=True."
        )
    inputs = named_inputs(paths.x)
    for name in paths.variance:
        reject_other_ends(flatten_rows(inputs[name]), n_bridges, f"the input {name!r}")
    reject_other_ends(flatten_rows(paths.y), n_bridges, "the target")
    rows = n_bridges * len(paths.y)
    for name, variance in paths.variance.items():
        if isinstance(variance, Tensor) and variance.ndim == inputs[name].ndim - 2 and len(variance) == rows:
            reject_other_ends(variance[None], n_bridges, f"the variance of the input {name!r}")


def reject_other_ends(z: Tensor, n_bridges: int, what: str, slack: float = 0.0) -> None:
    """Raise if rows ``(time, bridge * batch, ...)`` of one pair begin or end at different places.

    ``slack`` is the difference, relative to the largest value, that is put down to rounding.
    """
    ends = torch.stack([z[0], z[-1]]).detach().unflatten(1, (n_bridges, -1))
    gap = (ends - ends[:, :1]).abs().max()
    if bool(gap > slack * ends.abs().max()):
        raise ValueError(
            'weighting="multiplicative" weighs the bridges of a pair of ends against each other, but those '
            f"of a row differ at their ends by up to {float(gap):.3g} in {what}. Draw paths with "
            "same_partner=True; below a hidden layer use nothing random, such as dropout; or use "
            'weighting="gradient_softmax".'
        )


@uncompiled
def warn_of_mode(objective_trains: bool, model_trains: bool) -> None:
    """Users who call ``model.eval()`` alone would get bridges in their validation loss."""
    warn_user(
        f"objective.training is {objective_trains} but model.training is {model_trains}, so bridges are "
        f"{'on' if objective_trains else 'off'}. Call objective.train() and objective.eval() instead of the "
        "model's."
    )


def warn_of_scale(batch: Batch, sigma: object, horizon: float) -> bool:
    """Warn where a number for ``sigma`` does not suit the scale of the inputs; return False to ask again."""
    if not isinstance(sigma, float) or sigma == 0.0:
        return True
    if len(batch.reference) < 2:
        return False
    for name in batch.bridged:
        spread = batch.inputs[name].detach().float().std(0)
        varying = spread[spread > 0]
        if not varying.numel():
            return False
        typical = float(varying.median())
        noise = sigma * math.sqrt(horizon)
        if not _USUAL_NOISE[0] <= noise / typical <= _USUAL_NOISE[1]:
            shown = "inputs" if name == ONLY else f"inputs x[{name!r}]"
            warn_user(
                f"The {shown} vary by about {typical:.3g} (median deviation of the features in this batch), "
                f"but sigma={sigma:g} adds noise of {noise:.3g}: "
                f"{'hardly any' if noise < typical else 'more than the data hold'}. Standardise the inputs, "
                f'or pass sigma="auto" or sigma={0.1 * typical / math.sqrt(horizon):.2g}.'
            )
    return True


def warn_of_own_sigma(model: nn.Module) -> None:
    """Processes with different batches measure different noise; in `split_rows` all have the same batch."""
    if not (dist.is_available() and dist.is_initialized()) or hasattr(model, "_ranks"):
        return
    if dist.get_world_size() > 1 and dist.get_rank() == 0:  # one says it for all
        warn_user(
            f'sigma="auto" was measured on the first batch, but each of the {dist.get_world_size()} '
            "processes has another one, and trains with noise of its own. Measure the training data once: "
            "sigma=elliptica.auto_sigma(x)."
        )


@uncompiled
def warn_if_negative(loss: Tensor, weighting: str, xi: float) -> bool:
    """Additive weightings can outweigh the loss itself; returns whether that was said."""
    if float(loss.detach()) >= 0:
        return False
    warn_user(
        f"The objective became negative: the term of weighting={weighting!r} outweighs the loss. Lower xi "
        f'(now {xi}), or use weighting="gradient_softmax".'
    )
    return True
