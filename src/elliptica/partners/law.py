"""The law of partners over an index: drawing from it, and how far it is from the exact one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elliptica.partners.arrays import Array, Arrays, Facts
from elliptica.partners.envelope import Drawn, Envelope

_TABLE = 2**22  # rows times cells at a time


@dataclass(frozen=True)
class LawCheck:
    """What drawing from a `PartnerIndex` costs, and how far its law can be from the exact one.

    Attributes:
        acceptance: Accepted proposals over all.
        proposals: Mean number of proposals for a partner.
        capped: Share of partners for which ``max_draws`` were not enough.
        cap_bound: Upper bound of the total variation that stopping there costs, mean over the rows.
        missed: Total variation due to neighbours that the search missed, mean over the audited rows; 0 when
            the law is proved.
        recall: Share of the true nearest neighbours that are stored.
    """

    acceptance: float
    proposals: float
    capped: float
    cap_bound: float
    missed: float
    recall: float


@dataclass(frozen=True)
class Law:
    """Partners of positions.

    Attributes:
        arrays: The index.
        facts: What is known about it.
        power: Exponent of the inverse distance.
        proved: Whether not to trust approximate neighbours.
        max_draws: Proposals before importance weights decide.
    """

    arrays: Arrays
    facts: Facts
    power: float
    proved: bool
    max_draws: int

    def draw(self, where: Array, n_draws: int, generator: torch.Generator | None) -> Drawn:
        """Positions of partners, ``(batch, draw)``."""
        if self.power == float("inf"):
            near = np.asarray(self.arrays.near[where, :1], np.int64)
            nearest = torch.from_numpy(np.where(near >= 0, near, where[:, None])).repeat(1, n_draws)
            return Drawn(nearest, torch.ones_like(nearest), torch.zeros_like(nearest, dtype=torch.bool))
        parts = [self._envelope(w).draw(n_draws, self.max_draws, generator) for w in self._chunks(where)]
        return Drawn(
            torch.cat([part.positions for part in parts]),
            torch.cat([part.proposals for part in parts]),
            torch.cat([part.capped for part in parts]),
        )

    def cap_bounds(self, where: Array) -> Tensor:
        """For each position, by how much stopping after ``max_draws`` can change its law."""
        if self.power == float("inf"):
            return torch.zeros(len(where), dtype=torch.float64)
        acceptance = torch.cat([self._envelope(w).acceptance for w in self._chunks(where)])
        return (1 - acceptance) ** self.max_draws

    def missed_mass(self) -> Tensor:
        """For each audited row, the mass on what the search missed, beyond what the envelope gives it."""
        arrays, floor = self.arrays, self.facts.floor
        mass = torch.zeros(len(arrays.audit), dtype=torch.float64)
        by = torch.from_numpy(arrays.missed_by.astype(np.int64))
        missed = torch.from_numpy(arrays.missed.astype(np.float64))
        if self.power == float("inf"):
            nearest = torch.from_numpy(arrays.distances[arrays.audit, 0].astype(np.float64))
            mass[by[missed < nearest[by] * (1 - 1e-6)]] = 1.0
        elif not self.proved and len(by):
            least_sum = torch.cat([self._envelope(w).log_least_sum for w in self._chunks(arrays.audit)])[by]
            reach = torch.from_numpy(arrays.reach[arrays.audit].astype(np.float64))[by].clamp_min(floor)
            log = -self.power * missed.clamp_min(floor).log()
            gain = -torch.expm1(-self.power * reach.log() - log).clamp_max(0.0)
            mass.index_add_(0, by, (log - least_sum).exp() * gain)
        return mass.clamp_max(1.0)

    def error_bound(self) -> float:
        """Mean over the audited rows of what both can change."""
        bound = self.cap_bounds(np.asarray(self.arrays.audit)) + self.missed_mass()
        return float(bound.clamp_max(1.0).mean())

    def check(self, n_rows: int, generator: torch.Generator | None) -> LawCheck:
        """Draw a partner for some random rows and count."""
        where = torch.randint(len(self.arrays.points), (n_rows,), generator=generator).numpy()
        drawn = self.draw(where, 1, generator)
        capped = drawn.capped.double()
        return LawCheck(
            acceptance=float((1 - capped).sum() / drawn.proposals.sum()),
            proposals=float(drawn.proposals.double().mean()),
            capped=float(capped.mean()),
            cap_bound=float(self.cap_bounds(where).mean()),
            missed=float(self.missed_mass().mean()),
            recall=self.facts.recall,
        )

    def _envelope(self, where: Array) -> Envelope:
        return Envelope(self.arrays, self.facts, where, self.power, self.proved)

    def _chunks(self, where: Array) -> Iterator[Array]:
        step = max(1, _TABLE // len(self.arrays.centres))
        for begin in range(0, len(where), step):
            yield np.asarray(where[begin : begin + step])
