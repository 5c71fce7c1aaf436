"""Warn about questionable states of an objective; reject a weighting that would train nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from elliptica._utils.compiler import uncompiled
from elliptica.core.bridge import flatten_rows
from elliptica.core.inputs import ONLY, Batch, named_inputs
from elliptica.core.types import Paths, warn_user

if TYPE_CHECKING:
    from elliptica.core.settings import BridgeSettings

# usual range of sigma * sqrt(horizon) over the inputs' deviation: below it bridges are straight lines, above
# it they are noise
_USUAL_NOISE = (0.002, 2.0)
# largest ratio between the deviations of wide and narrow columns (ninth and first decile) in common units
_UNEVEN = 50.0


def reject_no_op(terms: Sequence[Tensor]) -> None:
    """Raise if an additive term has no gradient, because it would train nothing."""
    if not any(term.requires_grad for term in terms):
        raise ValueError(
            "The additive weighting has no gradient: its drift does not depend on any parameter, so it "
            'would change the value but not the training. Use weighting="multiplicative" with n_bridges=2 or '
            "more, or a drift with parameters."
        )


@uncompiled
def reject_unpaired(paths: Paths) -> None:
    """Raise unless each row has several bridges between the same two ends, with the same noise."""
    n_bridges = paths.s.shape[1]
    if n_bridges < 2:
        raise ValueError(
            'weighting="multiplicative" compares the bridges between the same two ends, but paths hold '
            f"{n_bridges} for each row. Draw them with n_bridges=2 or more and same_partner=True."
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
    """Raise if the bridges of a pair, rows ``(time, bridge * batch, ...)``, do not share both ends.

    Differences up to ``slack``, relative to the largest value, count as rounding.
    """
    ends = torch.stack([z[0], z[-1]]).detach().unflatten(1, (n_bridges, -1))
    gap = (ends - ends[:, :1]).abs().max()
    if bool(gap > slack * ends.abs().max()):
        raise ValueError(
            'weighting="multiplicative" compares the bridges between the same two ends, but those of a row '
            f"differ at their ends by up to {float(gap):.3g} in {what}. Draw paths with same_partner=True; "
            "remove random layers, such as dropout, below a hidden layer; or use "
            'weighting="gradient_softmax".'
        )


@uncompiled
def warn_of_mode(objective_trains: bool, model_trains: bool) -> None:
    """Warn if only the model or only the objective was switched to ``eval()`` or ``train()``.

    After ``model.eval()`` alone, the validation loss would be computed on bridges.
    """
    warn_user(
        f"objective.training is {objective_trains} but model.training is {model_trains}, so bridges are "
        f"{'on' if objective_trains else 'off'}. Call objective.train() and objective.eval() instead of the "
        "model's."
    )


def warn_of_scale(batch: Batch, settings: BridgeSettings) -> bool:
    """Warn if the noise does not suit the scale of inputs or real targets.

    Return whether the batch could be judged; if not, ask again with the next one.
    """
    if len(batch.reference) < 2:
        return False
    judged = True
    for name in batch.bridged:
        shown = "inputs" if name == ONLY else f"inputs x[{name!r}]"
        judged &= _judge_noise(shown, batch.inputs[name], "sigma", settings.sigma, settings.horizon)
        if isinstance(settings.sigma, Tensor) or settings.sigma != 0.0:
            _judge_units(shown, batch.inputs[name], settings)
    if settings.target_space == "real":
        judged &= _judge_noise("targets", batch.targets, "sigma_y", settings.sigma_y, settings.horizon)
    return judged


def _deviations(z: Tensor) -> Tensor:
    """Return the standard deviation of each feature that varies."""
    spread = z.detach().float().std(0)
    return spread[spread > 0]


def _judge_noise(what: str, z: Tensor, name: str, sigma: object, horizon: float) -> bool:
    """Warn if the noise is much weaker or stronger than the data vary; return False if nothing varies."""
    if not isinstance(sigma, float) or sigma == 0.0:
        return True
    varying = _deviations(z)
    if not varying.numel():
        return False
    typical = float(varying.median())
    noise = sigma * math.sqrt(horizon)
    if not _USUAL_NOISE[0] <= noise / typical <= _USUAL_NOISE[1]:
        auto = 'sigma="auto" or ' if name == "sigma" else ""
        warn_user(
            f"The {what} vary by about {typical:.3g} (median standard deviation of the features in this "
            f"batch), but {name}={sigma:g} adds noise of {noise:.3g}, "
            f"{'hardly any' if noise < typical else 'more than the data vary'}. Standardise the {what}, "
            f"or pass {auto}{name}={0.1 * typical / math.sqrt(horizon):.2g}."
        )
    return True


def _judge_units(what: str, z: Tensor, settings: BridgeSettings) -> None:
    """Warn if the units of a table's columns differ so much that one noise, or distance, suits few."""
    by_distance = settings.pairing in ("inverse_distance", "nearest")
    own_noise = isinstance(settings.sigma, str | Tensor)  # "auto", or one value per feature
    varying = _deviations(z) if z.ndim == 2 else z.new_empty(0)
    if varying.numel() < 2 or (own_noise and not by_distance):
        return
    low, high = (float(v) for v in varying.quantile(varying.new_tensor([0.1, 0.9])))
    if high > _UNEVEN * low:
        part = "distances depend only on the widest" if own_noise else "one noise level does not suit all"
        warn_user(
            f"The columns of the {what} have standard deviations from about {low:.2g} to {high:.2g}, so "
            f"{part}. Standardise them first."
        )


def warn_of_constant() -> bool:
    """Warn where ``sigma="auto"`` has nothing to measure; return True, so that it is said once."""
    warn_user(
        'sigma="auto" found the same inputs in all rows of this batch, so it adds no noise to them. It '
        "measures the next batch instead. Shuffle the data, or pass sigma=elliptica.auto_sigma(x)."
    )
    return True


def warn_of_own_sigma(model: nn.Module) -> None:
    """Warn if each process measured ``sigma="auto"`` on its own batch.

    Inside `split_rows` all processes have the same batch.
    """
    if not (dist.is_available() and dist.is_initialized()) or hasattr(model, "_ranks"):
        return
    if dist.get_world_size() > 1 and dist.get_rank() == 0:  # warn once for all
        warn_user(
            f'sigma="auto" was measured on the first batch, but each of the {dist.get_world_size()} '
            "processes has a different one and trains with different noise. Measure it once on the training "
            "data: sigma=elliptica.auto_sigma(x)."
        )


@uncompiled
def warn_if_negative(loss: Tensor, weighting: str, xi: float) -> bool:
    """Warn if an additive weighting outweighs the loss itself; return whether it did."""
    if float(loss.detach()) >= 0:
        return False
    warn_user(
        f"The objective became negative: the term of weighting={weighting!r} outweighs the loss. Lower xi "
        f'(now {xi}), or use weighting="gradient_softmax".'
    )
    return True


#: Prefixes that wrappers add to the names in a state.
_WRAPPERS = {"module": "DistributedDataParallel", "_orig_mod": "torch.compile"}


def _unwrapped(name: str) -> str:
    """Remove the prefixes of wrappers from a name in a state."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def reject_prefixes(names: Iterable[str], *expected: Iterable[str]) -> None:
    """Raise if a state does not fit because a wrapper changed its names, or those of the objective.

    Args:
        names: Names in the state.
        expected: Names that would fit, either in the objective or in the bare model.
    """
    given, fitting = set(names), {name for each in expected for name in each}
    if given & fitting:
        return
    plain = {_unwrapped(name): name for name in fitting}
    for name in sorted(given):
        own = plain.get(_unwrapped(name))
        if own is None:
            continue
        extra = next((p for p in name.split(".") if p in _WRAPPERS and p not in own.split(".")), None)
        if extra is not None:
            raise RuntimeError(
                f"The state holds '{name}' where the objective has '{own}': '{extra}.' comes from "
                f"{_WRAPPERS[extra]}. Remove it, load_state_dict({{name.replace('{extra}.', ''): value for "
                "name, value in state.items()}), or save the state of the module inside the wrapper."
            )
        missing = next(p for p in own.split(".") if p in _WRAPPERS and p not in name.split("."))
        raise RuntimeError(
            f"The state holds '{name}' where the objective has '{own}': '{missing}.' comes from "
            f"{_WRAPPERS[missing]} around the model. Load the state before you wrap the model, or load it "
            f"into the wrapped module: objective.model.{missing}.load_state_dict(...)."
        )


def reject_other_drift(names: Iterable[str], own: Iterable[str], weighting: str) -> None:
    """Raise if a drift network is in the state but not in the objective, or the other way round."""
    given = sum(name.startswith("drift.") for name in names)
    expected = sum(name.startswith("drift.") for name in own)
    if given and not expected:
        raise RuntimeError(
            f"The state holds a drift network ({given} names begin with 'drift.'), but with weighting="
            f"{weighting!r} the objective's state has none. Pass strict=False to load the rest. Load the "
            "network itself with drift.load_state_dict(...), after removing 'drift.' from its names."
        )
    if expected and not given and any(name.startswith("model.") for name in names):
        raise RuntimeError(
            f"With weighting={weighting!r} the objective trains a drift network, but the state holds none: "
            "no name begins with 'drift.'. It was probably saved with weighting=\"multiplicative\". Pass "
            "strict=False to load the rest and keep the network as it is."
        )
