"""What a search may vary: a space that a table names, or one made for the row."""

from __future__ import annotations

import inspect
from typing import Any

from elliptica._utils.text import did_you_mean
from elliptica.core.elliptic import Elliptic
from elliptica.core.partners import PAIRINGS
from elliptica.lab.experiments.specification import Range, Run, Specification, SpecificationError
from elliptica.lab.experiments.tune import Place, search_space

#: Name of the space that is made for the row.
AUTO = "auto"


def named_space(specification: Specification, run: Run, name: str) -> dict[Place, Range]:
    """The space of a search.

    ``"auto"`` is what the table searches in the training of every row and, for elliptic training, noise,
    bridges, pairing and weighting; for other methods what the table names beside the row. Other names are
    those of the table's ``searches``.
    """
    if name == AUTO:
        own = search_space(specification, run.row)
        if run.method == "elliptic":
            own = {**own, **{("settings", key): each for key, each in _elliptic(run.settings).items()}}
        if not own:
            raise SpecificationError(
                f"{run.table} names no range for {run.row}. Add a table [searches.NAME] to its "
                "specification, and say --search NAME."
            )
        return own
    if name not in specification.searches:
        known = [AUTO, *specification.searches]
        hint = did_you_mean(name, known)
        raise SpecificationError(
            f"{run.table} has no search {name!r}.{hint and f' {hint}'} It has {', '.join(known)}."
        )
    spec = specification.searches[name]
    return {
        **{("training", key): each for key, each in spec.training.items()},
        **{("settings", key): each for key, each in spec.settings.items()},
    }


def _elliptic(settings: dict[str, Any]) -> dict[str, Range]:
    """Noise for standardised inputs, a few bridges, every pairing, and weightings that the row can have."""
    found = {"sigma_y": Range(low=0.0, high=0.2)}
    if isinstance(settings.get("sigma", 0.05), float | int):  # the PDE's own noise has no number
        found["sigma"] = Range(low=0.01, high=1.0, log=True)
    if not settings.get("antithetic", False):
        found["n_bridges"] = Range(low=1, high=4, integer=True)
    if "partners" not in settings:
        found["pairing"] = Range(choices=tuple(PAIRINGS))
    weightings: tuple[str, ...] = ("none", "gradient_norm", "gradient_softmax")
    if settings.get("sampling", "marginal") == "path":
        weightings = (*weightings, "multiplicative")
    found["weighting"] = Range(choices=weightings)
    found["xi"] = Range(low=0.1, high=10.0, log=True)
    return found


def own_values(run: Run, space: dict[Place, Range]) -> dict[Place, Any]:
    """The table's own setting, as far as it lies in the space: where a search begins."""
    defaults = {name: each.default for name, each in inspect.signature(Elliptic).parameters.items()}
    known = {"training": run.training, "settings": run.settings}
    if run.method == "elliptic":
        sigma = run.settings.get("sigma", defaults["sigma"])
        known["settings"] = {**defaults, "sigma_y": sigma, **run.settings}
        if known["settings"]["sigma_y"] is None:
            known["settings"]["sigma_y"] = sigma
    return {
        place: known[place[0]][place[1]]
        for place, each in space.items()
        if place[1] in known[place[0]] and each.contains(known[place[0]][place[1]])
    }
