"""Draws with probability proportional to ``1 / distance**power`` over all points, by rejection.

Row i proposes from an *envelope*: its stored neighbours with their true weights, and every other point j of a
cell c with the weight of a distance that is never larger than the true one,

    least_i(c) = max(|x_i - centre_c| - radius_c,  reach_i where c was searched,  floor).

A neighbour is accepted; any other point with probability ``(least_i(c) / d_ij)**power``, which needs its true
distance only. What is accepted follows the law exactly, though nobody knows the sum of all weights. Rows that
would reject nearly everything first measure the cells that are to blame: ``least_i(c)`` is then the distance
of the nearest member that is not stored.

After ``max_draws`` proposals a row is drawn by importance weights instead. A proposal is accepted with
probability at least ``a_i``: a lower bound of the sum of weights (from ``|x_i - centre_c| + radius_c``) over
the sum of the envelope. So the law is off by at most ``(1 - a_i)**max_draws`` in total variation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elliptica.partners.arrays import Array, Arrays, Facts
from elliptica.partners.search import allowed_cells

#: Bounds are widened by this share, far above the rounding of float64 and far below what acceptance notices.
_SLACK = 1e-9
_GATHER = 2**22
#: Below this acceptance a row has cells measured: so many members for all rows of a batch together, and for a
#: row so many times the proposals that it would need otherwise, which measure a distance each, too.
_HARD, _OPENED, _WORTH = 0.005, 2**19, 4
_RESAMPLED = 64
_AT_ONCE = 2**18


@dataclass(frozen=True)
class Drawn:
    """Positions drawn for each row, ``(batch, draw)``, and how it went.

    Attributes:
        positions: What was drawn.
        proposals: Proposals used for each.
        capped: Where ``max_draws`` were not enough.
    """

    positions: Tensor
    proposals: Tensor
    capped: Tensor


class Envelope:
    """The envelope of some rows.

    Args:
        arrays: The index.
        facts: Its floor and which classes are eligible.
        positions: Positions of the rows.
        power: Exponent, finite.
        proved: Trust the reach only in cells that were searched. Else in all, which is wrong for the few
            points that the search missed.
    """

    def __init__(self, arrays: Arrays, facts: Facts, positions: Array, power: float, proved: bool) -> None:
        self._arrays, self._power, self._floor = arrays, power, facts.floor
        self._own = torch.from_numpy(np.array(positions, np.int64))
        self._start = torch.from_numpy(arrays.points[positions].astype(np.float64))
        self._near = torch.from_numpy(arrays.near[positions].astype(np.int64))
        distances = torch.from_numpy(arrays.distances[positions].astype(np.float64))
        cell = arrays.cell_of(positions)
        self._starts = torch.from_numpy(arrays.starts.astype(np.int64))
        self._count = self._starts.diff()
        others = self._others(cell, facts)
        away = torch.cdist(self._start, torch.from_numpy(arrays.centres.astype(np.float64)))
        radius = torch.from_numpy(arrays.radius.astype(np.float64))
        slack = _SLACK * (away + self._start.norm(dim=1, keepdim=True))
        least = (away - radius - slack).clamp_min(self._floor)
        reach = torch.from_numpy(arrays.reach[positions].astype(np.float64))[:, None]
        least = torch.where(self._searched(cell, proved and not facts.exact), least.maximum(reach), least)
        nobody = others <= 0
        # nor below the least: where a reach is trusted wrongly, the envelope is all that can be accepted
        most = (away + radius + slack).maximum(least)
        self._least = least.masked_fill_(nobody, 1.0)
        near = (-power * distances.clamp_min(self._floor).log()).masked_fill(self._near < 0, -math.inf)
        #: log of a lower bound of the weights of each cell's members together
        low = (others.clamp_min(1).log() - power * most.log()).masked_fill(nobody, -math.inf)
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
        """Rows that would reject nearly all: measure the cells in which the envelope gives away most.

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
            mine = rows[chosen[:, cell]]
            member = torch.arange(int(self._starts[cell]), int(self._starts[cell + 1]))
            distance, slack = self._to_cell(mine, cell, member)
            known = torch.cat([self._near[mine], self._own[mine][:, None]], 1) - member[0]
            row, column = ((known >= 0) & (known < len(member))).nonzero(as_tuple=True)
            distance[row, known[row, column]] = math.inf
            self._least[mine, cell] = (distance - slack).min(1).values.clamp_min(self._floor)
            if self._power:
                most = (distance + slack).clamp_min(self._floor)
                low[mine, cell] = (-self._power * most.log()).logsumexp(1)

    def _to_cell(self, rows: Tensor, cell: int, member: Tensor) -> tuple[Tensor, Tensor]:
        """Distances to all members of a cell, and what rounding can have changed."""
        centre = self._arrays.centres[cell].astype(np.float64)  # the matrix form keeps its digits about it
        points = self._arrays.points[int(member[0]) : int(member[-1]) + 1].astype(np.float64) - centre
        start = self._start[rows] - torch.from_numpy(centre)
        distance = torch.cdist(start, torch.from_numpy(points))
        return distance, 1e-7 * start.norm(dim=1, keepdim=True)

    def _others(self, cell: Array, facts: Facts) -> Tensor:
        """How many members of each cell are eligible and not stored as neighbours."""
        others = self._count.expand(len(cell), -1).clone()
        others.scatter_add_(1, torch.from_numpy(cell)[:, None], torch.full((len(cell), 1), -1))
        stored = torch.from_numpy(self._arrays.cell_of(self._near.numpy())).clamp_min(0)
        others.scatter_add_(1, stored, -(self._near >= 0).long())
        if facts.among != "all":
            classes = self._arrays.classes
            own = classes[cell].tolist()
            masks = {c: torch.from_numpy(allowed_cells(classes, c, facts.among)) for c in set(own)}
            others *= torch.stack([masks[c] for c in own])
        return others

    def _searched(self, cell: Array, partly: bool) -> Tensor:
        """Cells in which a row's reach is to be trusted."""
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
        """Positions of proposals, and which are accepted."""
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
        """A random member of each cell, and the log of its weight over the envelope's."""
        inside = (u * self._count[cell]).long().minimum(self._count[cell] - 1)
        position = self._starts[cell] + inside
        distance = self._distance(rows, position).clamp_min(self._floor)
        ratio = ((self._least[rows, cell].log() - distance.log()) * self._power).clamp_max(0.0)
        stored = (self._near[rows] == position[:, None]).any(1) | (position == self._own[rows])
        return position, ratio.masked_fill(stored, -math.inf)  # these are no part of it

    def _distance(self, rows: Tensor, position: Tensor) -> Tensor:
        """True distances, a piece at a time."""
        step = max(1, _GATHER // self._start.shape[1])
        parts = [
            (torch.from_numpy(self._arrays.points[p.numpy()].astype(np.float64)) - self._start[r]).norm(dim=1)
            for r, p in zip(rows.split(step), position.split(step), strict=True)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def _resample(self, rows: Tensor, generator: torch.Generator | None) -> Tensor:
        """By importance: neighbours with their weights, far proposals with those of what they stand for."""
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
