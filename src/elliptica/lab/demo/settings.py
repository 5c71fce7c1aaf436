"""What the two-moons demo compares, and the choices that the paper leaves open."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal, get_args

from elliptica._utils import checks
from elliptica._utils.perceptron import Activation

Method = Literal["erm", "mixup", "path", "marginal"]
Reading = Literal["one-hidden", "two-hidden"]

#: Order of all tables and figures.
METHODS: tuple[Method, ...] = get_args(Method)

#: How methods are called on screen.
NAMES: dict[Method, str] = {
    "erm": "ERM",
    "mixup": "mixup",
    "path": "elliptic (path)",
    "marginal": "elliptic (marginal)",
}

#: Units of the hidden layers in each reading of "2-layer, 4-hidden unit".
HIDDEN: dict[Reading, tuple[int, ...]] = {"one-hidden": (4,), "two-hidden": (4, 4)}


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the two-moons demo (paper: section 6.1, Figs. 1 and 3).

    From the paper: 10000 boundary points for ERM and mixup, 1000 for elliptic paths with ten times
    (both ends and 8 steps) on one bridge each, so that a pass over the data costs the same number of
    function evaluations; partners with probability inverse to their distance, within the batch.

    The paper's "2-layer, 4-hidden unit" network is read as two weight layers,
    Linear(2, 4) - activation - Linear(4, 2); ``reading="two-hidden"`` is the other reading, with two
    hidden layers of 4 units. All else is our choice, because the paper does not say: the regions
    (`elliptica.lab.data.toy.two_moons`), the activation, sigma, the optimiser, its length and batches.

    Attributes:
        n_seeds: Independent repetitions; seeds are 0, 1, ...
        n_steps: Steps of the optimiser in each run.
        sigma: Diffusion coefficient of the bridges, for inputs and labels.
        reading: Reading of the network.
        activation: Non-linearity of the hidden layers.
        n_boundary: Boundary points, all of them for ERM, mixup and elliptic (marginal).
        n_interior: Test points inside the moons, and as many between the data.
        n_times: Points on each path; elliptic (path) trains on ``n_boundary / n_times`` points.
        batch_evaluations: Function evaluations of one step, for every method.
        learning_rate: Of Adam at the start; it falls to zero as a half cosine.
        alpha: Of mixup's Beta(alpha, alpha).
    """

    n_seeds: int = 10
    n_steps: int = 1000
    sigma: float = 0.05
    reading: Reading = "one-hidden"
    activation: Activation = "tanh"
    n_boundary: int = 10_000
    n_interior: int = 10_000
    n_times: int = 10
    batch_evaluations: int = 1000
    learning_rate: float = 0.1
    alpha: float = 1.0

    def __post_init__(self) -> None:
        checks.choice("reading", self.reading, get_args(Reading))
        checks.choice("activation", self.activation, get_args(Activation))
        checks.nonnegative("sigma", self.sigma)
        for name in ("n_seeds", "n_steps", "n_interior"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, but got {getattr(self, name)}.")
        if self.batch_evaluations % self.n_times or self.n_boundary % self.batch_evaluations:
            raise ValueError(
                f"n_times ({self.n_times}) must divide batch_evaluations ({self.batch_evaluations}), and "
                f"that n_boundary ({self.n_boundary}): otherwise methods differ in function evaluations."
            )

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units of the hidden layers."""
        return HIDDEN[self.reading]

    @property
    def architecture(self) -> str:
        """The network in words."""
        sizes = (2, *self.hidden, 2)
        layers = [f"Linear({a}, {b})" for a, b in itertools.pairwise(sizes)]
        return f" - {self.activation} - ".join(layers)

    @property
    def paths_per_batch(self) -> int:
        """Points that elliptic (path) starts from in a step; the group in which partners are drawn."""
        return self.batch_evaluations // self.n_times


#: For tests and a first look: seconds, and not converged.
QUICK = DemoSettings(n_seeds=2, n_steps=60, n_boundary=2000, n_interior=1000, batch_evaluations=500)
