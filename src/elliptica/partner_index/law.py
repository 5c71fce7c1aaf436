"""Draw partners from the law over an index by rejection, and bound its distance from the exact law."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elliptica.partner_index.store import Array, Arrays, Facts

_TABLE = 2**22  # rows times cells at a time
#: Bounds are widened by this share, far above the rounding of float64 and far below what acceptance notices.
_SLACK = 1e-9
_GATHER = 2**22
#: Below this acceptance a row has cells measured: so many members for all rows of a batch together, and for a
#: row so many times the proposals that it would need otherwise, which measure a distance each, too.
_HARD, _OPENED, _WORTH = 0.005, 2**19, 4
_RESAMPLED = 64
_AT_ONCE = 2**18


def _double(array: Array) -> Tensor:
    return torch.from_numpy(array.astype(np.float64))


@dataclass(frozen=True)
class LawCheck:
    """Cost of drawing from a `PartnerIndex`, and bounds on the distance from the exact law."""

    acceptance: float  # accepted proposals over all
    proposals: float  # mean number of proposals for a partner
    capped: float  # share of partners for which ``max_draws`` were not enough
    cap_bound: float  # upper bound of the total variation that stopping there costs, mean over the rows
    #: Total variation due to neighbours that the search missed, mean over the audited rows; 0 when the law is
    #: proved.
    missed: float
    recall: float  # share of the true nearest neighbours that are stored


@dataclass(frozen=True)
class Law:
    """Partners of positions."""

    arrays: Arrays  # the index
    facts: Facts  # what is known about it
    proved: bool  # whether to distrust approximate neighbours
    max_draws: int  # proposals before importance weights decide

    @property
    def power(self) -> float:
        """Exponent of the inverse distance."""
        return self.facts.power

    def draw(self, where: Array, n_draws: int, generator: torch.Generator | None) -> Drawn:
        """Draw positions of partners, ``(batch, draw)``."""
        if self.power == float("inf"):
            near = np.asarray(self.arrays.near[where, :1], np.int64)
            nearest = torch.from_numpy(np.where(near >= 0, near, where[:, None])).repeat(1, n_draws)
            return Drawn(nearest, torch.ones_like(nearest), torch.zeros_like(nearest, dtype=torch.bool))
        parts = [self._envelope(w).draw(n_draws, self.max_draws, generator) for w in self._chunks(where)]
        return Drawn(*map(torch.cat, zip(*parts, strict=True)))

    def cap_bounds(self, where: Array) -> Tensor:
        """Bound, for each position, the change of its law by stopping after ``max_draws``."""
        if self.power == float("inf"):
            return torch.zeros(len(where), dtype=torch.float64)
        acceptance = torch.cat([self._envelope(w).acceptance for w in self._chunks(where)])
        return (1 - acceptance) ** self.max_draws

    def missed_mass(self) -> Tensor:
        """Return, for each audited row, the error of the law from points that the search missed.

        That is the mass on missed points beyond their share in the envelope, and the change that a nearer
        distinct neighbour would make for a row with duplicates.
        """
        arrays = self.arrays
        floor = _double(arrays.distinct[arrays.audit])
        mass = torch.zeros(len(arrays.audit), dtype=torch.float64)
        by = torch.from_numpy(arrays.missed_by.astype(np.int64))
        missed = _double(arrays.missed)
        if self.power == float("inf"):
            nearest = _double(arrays.distances[arrays.audit, 0])
            mass[by[missed < nearest[by] * (1 - 1e-6)]] = 1.0
        elif len(by):
            least_sum = torch.cat([self._envelope(w).log_least_sum for w in self._chunks(arrays.audit)])
            if not self.proved:
                reach = _double(arrays.reach[arrays.audit]).maximum(floor)[by]
                log = -self.power * missed.maximum(floor[by]).log()
                gain = -torch.expm1(-self.power * reach.log() - log).clamp_max(0.0)
                mass.index_add_(0, by, (log - least_sum[by]).exp() * gain)
            mass += self._misjudged(by, missed, floor, least_sum)
        return mass.clamp_max(1.0)

    def _misjudged(self, by: Tensor, missed: Tensor, used: Tensor, log_least_sum: Tensor) -> Tensor:
        """Return, for each audited row, the mass that moves when duplicates have the right distance."""
        stored = _double(self.arrays.distances[self.arrays.audit])
        by, order = by.sort(stable=True)
        place = torch.arange(len(by)) - torch.searchsorted(by, by)
        known = torch.full((len(stored), int(place.max()) + 1), math.inf, dtype=torch.float64)
        known[by, place] = missed[order]
        known = torch.cat([stored, known], 1)
        duplicate = known < self.facts.floor
        right = known.masked_fill(duplicate, math.inf).amin(1)
        right = torch.where(duplicate.any(1) & right.isfinite(), right, used)
        known.clamp_max_(1e300)  # no neighbour: far in both laws
        log = [-self.power * known.maximum(c[:, None]).log() - log_least_sum[:, None] for c in (right, used)]
        return (log[0].exp() - log[1].exp()).abs().sum(1)

    def error_bound(self) -> float:
        """Return the mean of both errors over the audited rows."""
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
        return Envelope(self.arrays, self.facts, where, self.proved)

    def _chunks(self, where: Array) -> Iterator[Array]:
        step = max(1, _TABLE // len(self.arrays.centres))
        for begin in range(0, len(where), step):
            yield np.asarray(where[begin : begin + step])


class Drawn(NamedTuple):
    """Positions drawn for each row, ``(batch, draw)``, and how it went."""

    positions: Tensor  # what was drawn
    proposals: Tensor  # proposals used for each
    capped: Tensor  # where ``max_draws`` were not enough


class Envelope:
    """Weights above those of the law, from which proposals for some rows are drawn and thinned.

    A stored neighbour has its true weight, so it is always accepted. All other members of a cell have the
    weight of the least distance that any of them can have, by the triangle inequality or by a search.

    ``proved`` trusts the reach only in cells that were searched, otherwise in all, which is wrong for the few
    points that the search missed. The power is finite.
    """

    def __init__(self, arrays: Arrays, facts: Facts, positions: Array, proved: bool) -> None:
        self._arrays, self._power = arrays, facts.power
        #: nearer points count as so far, ``(rows, 1)``
        self._floor = _double(arrays.distinct[positions])[:, None]
        self._own = torch.from_numpy(np.array(positions, np.int64))
        self._start = _double(arrays.points[positions])
        self._near = torch.from_numpy(arrays.near[positions].astype(np.int64))
        distances = _double(arrays.distances[positions])
        cell = arrays.cell_of(positions)
        self._starts = torch.from_numpy(arrays.starts.astype(np.int64))
        self._count = self._starts.diff()
        others = self._others(cell)
        distance = torch.cdist(self._start, _double(arrays.centres))
        radius = _double(arrays.radius)
        slack = _SLACK * (distance + self._start.norm(dim=1, keepdim=True))
        least = (distance - radius - slack).maximum(self._floor)
        reach = _double(arrays.reach[positions])[:, None]
        least = torch.where(self._searched(cell, proved and not facts.exact), least.maximum(reach), least)
        nobody = others <= 0
        # nor below the least: where a reach is trusted wrongly, the envelope is all that can be accepted
        most = (distance + radius + slack).maximum(least)
        self._least = least.masked_fill_(nobody, 1.0)
        near = (-self._power * distances.maximum(self._floor).log()).masked_fill(self._near < 0, -math.inf)
        #: log of a lower bound of the weights of each cell's members together
        low = (others.clamp_min(1).log() - self._power * most.log()).masked_fill(nobody, -math.inf)
        self._weigh(near, low, nobody)
        if (self.acceptance < _HARD).any():
            self._open(low)
            self._weigh(near, low, nobody)

    def _weigh(self, near: Tensor, low: Tensor, nobody: Tensor) -> None:
        far = (self._count.log() - self._power * self._least.log()).masked_fill(nobody, -math.inf)
        #: log of the envelope's weights, neighbours first, then cells
        self._log = torch.cat([near, far], 1)
        self.alone = ~torch.isfinite(self._log).any(1)
        self._log[self.alone, 0] = 0.0
        #: log of a lower bound of the sum of all weights
        self.log_least_sum = torch.cat([near, low], 1).logsumexp(1)
        #: lower bound of the probability that a proposal is accepted
        self.acceptance = (self.log_least_sum - self._log.logsumexp(1)).exp().clamp_max(1.0)
        self.acceptance[self.alone] = 1.0

    def _open(self, low: Tensor) -> None:
        """Measure the cells in which the envelope is loosest, for rows that would reject nearly all.

        Their least distance is then the true one, and the sum of their members' weights is known.
        """
        rows = (self.acceptance < _HARD).nonzero().squeeze(1)
        far, known = self._log[rows, self._near.shape[1] :], low[rows]
        top = far.max(1, keepdim=True).values
        order = ((far - top).exp() - (known - top).exp()).argsort(1, descending=True)
        worth = (_WORTH / self.acceptance[rows, None]).clamp_max(_OPENED // len(rows))
        fits = self._count[order].cumsum(1) <= worth
        chosen = torch.zeros_like(fits).scatter_(1, order, fits) & torch.isfinite(far)
        for cell in chosen.any(0).nonzero().squeeze(1).tolist():
            some = rows[chosen[:, cell]]
            begin, end = self._starts[cell : cell + 2].tolist()
            centre = self._arrays.centres[cell].astype(
                np.float64
            )  # the matrix form keeps its digits about it
            start = self._start[some] - torch.from_numpy(centre)
            members = torch.from_numpy(self._arrays.points[begin:end].astype(np.float64) - centre)
            distance, slack = torch.cdist(start, members), 1e-7 * start.norm(dim=1, keepdim=True)
            known = torch.cat([self._near[some], self._own[some][:, None]], 1) - begin
            row, column = ((known >= 0) & (known < len(members))).nonzero(as_tuple=True)
            distance[row, known[row, column]] = math.inf
            floor = self._floor[some]
            self._least[some, cell] = (distance - slack).maximum(floor).amin(1)
            if self._power:
                most = (distance + slack).maximum(floor)
                low[some, cell] = (-self._power * most.log()).logsumexp(1)

    def _others(self, cell: Array) -> Tensor:
        """Count the members of each cell that are eligible and not stored as neighbours."""
        others = self._count.expand(len(cell), -1).clone()
        others.scatter_add_(1, torch.from_numpy(cell)[:, None], torch.full((len(cell), 1), -1))
        stored = torch.from_numpy(self._arrays.cell_of(self._near.numpy())).clamp_min(0)
        others.scatter_add_(1, stored, -(self._near >= 0).long())
        classes = self._arrays.classes
        if classes.any():
            others *= torch.from_numpy(classes == classes[cell][:, None])
        return others

    def _searched(self, cell: Array, partly: bool) -> Tensor:
        """Return the cells in which a row's reach can be trusted."""
        if not partly:
            return torch.ones(1, 1, dtype=torch.bool)
        searched = torch.zeros(len(cell), len(self._count) + 1, dtype=torch.bool)
        probes = torch.from_numpy(self._arrays.probes[cell].astype(np.int64))  # -1: the spare last column
        searched.scatter_(1, probes.remainder(len(self._count) + 1), True)
        return searched[:, :-1]

    def draw(self, n_draws: int, max_draws: int, generator: torch.Generator | None) -> Drawn:
        """Draw ``n_draws`` positions for each row."""
        batch, width = self._log.shape
        weight = (self._log - self._log.max(1, keepdim=True).values).exp()
        ladder = weight.cumsum(1)
        ladder = ladder / ladder[:, -1:] + torch.arange(batch)[:, None]  # one ladder for all rows
        pending = torch.arange(batch * n_draws)
        out = torch.full((batch * n_draws,), -1)
        proposals = torch.zeros(batch * n_draws, dtype=torch.long)
        done, size = 0, 2
        while len(pending) and done < max_draws:
            size = min(size, max_draws - done, max(1, _AT_ONCE // len(pending)))
            rows = (pending // n_draws).repeat_interleave(size)
            u = torch.rand(3, len(rows), dtype=torch.float64, generator=generator)
            top = torch.nextafter(rows.double() + 1, rows.double())
            slot = torch.searchsorted(ladder.flatten(), (rows + u[0]).minimum(top), right=True) - rows * width
            position, accept = self._propose(rows, slot, u[1], u[2])
            accept = accept.view(-1, size)
            hit = accept.any(1)
            first = accept.int().argmax(1)
            chosen = position.view(-1, size).gather(1, first[:, None]).squeeze(1)
            out[pending[hit]] = chosen[hit]
            proposals[pending] += torch.where(hit, first + 1, size)
            pending = pending[~hit]
            done, size = done + size, 2 * size
        for some in pending.split(max(1, _AT_ONCE // max(width, _RESAMPLED))):
            out[some] = self._resample(some // n_draws, generator)
        capped = torch.zeros(batch * n_draws, dtype=torch.bool)
        capped[pending] = True
        shape = (batch, n_draws)
        return Drawn(out.view(shape), proposals.view(shape), capped.view(shape))

    def _propose(self, rows: Tensor, slot: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions of proposals, and which are accepted."""
        k = self._near.shape[1]
        is_near = slot < k
        position = self._near[rows, slot.clamp_max(k - 1)]
        position = torch.where(self.alone[rows], self._own[rows], position)
        accept = is_near.clone()
        far = (~is_near).nonzero().squeeze(1)
        position[far], ratio = self._far(rows[far], slot[far] - k, u[far])
        accept[far] = v[far] < ratio.exp()
        return position, accept

    def _far(self, rows: Tensor, cell: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return a random member of each cell, and the log of its weight over the envelope's."""
        inside = (u * self._count[cell]).long().minimum(self._count[cell] - 1)
        position = self._starts[cell] + inside
        distance = self._distance(rows, position).maximum(self._floor[rows, 0])
        ratio = ((self._least[rows, cell].log() - distance.log()) * self._power).clamp_max(0.0)
        stored = (self._near[rows] == position[:, None]).any(1) | (position == self._own[rows])
        return position, ratio.masked_fill(stored, -math.inf)  # these are no part of it

    def _distance(self, rows: Tensor, position: Tensor) -> Tensor:
        """Return true distances, computed in chunks."""
        step = max(1, _GATHER // self._start.shape[1])
        parts = [
            (_double(self._arrays.points[p.numpy()]) - self._start[r]).norm(dim=1)
            for r, p in zip(rows.split(step), position.split(step), strict=True)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def _resample(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw by importance: neighbours with their weights, far proposals with those of their cells."""
        k, m = self._near.shape[1], _RESAMPLED
        log = self._log[rows]
        far = log[:, k:]
        cells = torch.multinomial(far.softmax(1), m, replacement=True, generator=generator)
        u = torch.rand(len(rows), m, dtype=torch.float64, generator=generator)
        position, ratio = self._far(rows.repeat_interleave(m), cells.flatten(), u.flatten())
        far_log = far.logsumexp(1, keepdim=True) - math.log(m) + ratio.view(-1, m)
        logs = torch.cat([log[:, :k], far_log], 1)
        where = torch.cat([self._near[rows], position.view(-1, m)], 1)
        pick = torch.multinomial(logs.softmax(1), 1, generator=generator)
        return where.gather(1, pick).squeeze(1)
