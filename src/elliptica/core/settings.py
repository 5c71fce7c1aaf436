"""How bridges are drawn: the settings, and whether they go together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from elliptica._utils import checks
from elliptica.core.bridge import QUADRATURES, Quadrature
from elliptica.core.noise import Sigma, check_sigma
from elliptica.core.partners import AMONG, PAIRINGS, Among, Pairing
from elliptica.core.targets import SIMPLEX_MAPS, TARGET_SPACES, SimplexMap, TargetSpace, warn_of_smoothing

Sampling = Literal["path", "marginal"]
SAMPLINGS: tuple[Sampling, ...] = ("path", "marginal")


@dataclass(frozen=True)
class PathSettings:
    """Settings of the bridges, explained at `elliptica.Elliptic`, which has them under the same names."""

    target_space: TargetSpace
    num_classes: int | None = None
    sampling: Sampling = "marginal"
    n_times: int = 5
    n_bridges: int = 1
    sigma: Sigma = 0.05
    sigma_y: float | Tensor | None = None
    horizon: float = 1.0
    antithetic: bool = False
    pairing: Pairing = "permutation"
    power: float = 1.0
    among: Among = "all"
    simplex: SimplexMap = "abs"
    quadrature: Quadrature = "mean"
    bridged: Sequence[Hashable] | None = None
    at: str | None = None
    validate: bool = True

    def __post_init__(self) -> None:
        checks.choice("target_space", self.target_space, TARGET_SPACES)
        checks.choice("sampling", self.sampling, SAMPLINGS)
        checks.choice("pairing", self.pairing, PAIRINGS)
        checks.choice("among", self.among, AMONG)
        checks.choice("simplex", self.simplex, SIMPLEX_MAPS)
        checks.choice("quadrature", self.quadrature, QUADRATURES)
        if self.sampling == "path" and self.quadrature == "uniform":
            raise ValueError(
                'quadrature="uniform" draws a time for each point, but paths have the common grid. Use '
                'sampling="marginal", or another quadrature.'
            )
        checks.path_counts(self.n_times, self.n_bridges, self.antithetic)
        checks.positive("horizon", self.horizon)
        if self.num_classes is not None:
            checks.count("num_classes", self.num_classes)
        checks.nonnegative("power", self.power)
        sigma = check_sigma(self.sigma)
        object.__setattr__(self, "sigma", sigma)
        if self.sigma_y is None:
            # A number has the same meaning for targets; scales measured on inputs do not.
            object.__setattr__(self, "sigma_y", sigma if isinstance(sigma, float) else 0.0)
        else:
            checks.nonnegative("sigma_y", self.sigma_y)
        if self.simplex == "abs" and self.num_classes is not None and not isinstance(self.sigma_y, Tensor):
            assert self.sigma_y is not None
            warn_of_smoothing(self.num_classes, self.sigma_y, self.horizon)
