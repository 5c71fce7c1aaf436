"""Mixing for real targets: C-Mixup, anchor data augmentation and FOMA."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype, draw_uniform
from elliptica.baselines.erm import ERM, Batch, between, check_real
from elliptica.baselines.groups import GroupBatch, GroupObjective, Groups
from elliptica.baselines.mixup import Mixup, draw_share, mix
from elliptica.core.inputs import Inputs, LossFn, call_model, count_rows, named_inputs, rebuild_inputs
from elliptica.core.layers import replaced_output
from elliptica.core.partners import draw_from, kernel_weights, target_distances

Directions = Literal["small", "large"]
Targets = Literal["scaled", "kept"]

_CPU = torch.device("cpu")
_CHUNK_BYTES = 64 * 2**20
_STRENGTHS = 10  # values of ADA's gamma above 1; as many reciprocals
_ITERATIONS = 300  # of Lloyd's algorithm


class CMixup(Mixup):
    """Mix inputs and targets with a partner whose target is close (Yao et al., NeurIPS 2022).

    Partner ``j`` of sample ``i`` has probability proportional to ``exp(-|y_i - y_j|**2 / (2 h**2))`` with
    the bandwidth ``h``; the sample itself is eligible. Both are mixed at one share per batch from
    Beta(alpha, alpha), and the loss is that of the mixed target.

    Partners come from the batch. The authors draw them from the whole training set: make a `TargetKernel`
    once and pass its draws as ``end``.

    Args:
        bandwidth: Standard deviation of the kernel, in the units of the targets. The authors use 1.75 for
            Airfoil, 1.2 for NO2, 4 for Crime and 1 for SkillCraft.
        alpha: 2 in the authors' settings; 0 means no mixing.
        at: Name of a layer in whose output to mix, see `Mixup`.

    Example:
        >>> x, y = torch.randn(100, 4), torch.randn(100, 1)
        >>> objective = CMixup(nn.Linear(4, 1), nn.MSELoss(), bandwidth=0.5)
        >>> loss = objective(x[:8], y[:8])                       # partners from the batch
        >>> j = TargetKernel(y, bandwidth=0.5).sample(torch.arange(8))  # from the whole data set
        >>> loss = objective(x[:8], y[:8], end=(x[j], y[j]))
    """

    is_regression = True

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        bandwidth: float,
        alpha: float = 2.0,
        at: str | None = None,
    ) -> None:
        super().__init__(model, loss_fn, alpha=alpha, at=at)
        checks.positive("bandwidth", bandwidth)
        self.bandwidth = float(bandwidth)

    def _partners(self, y: Tensor, generator: torch.Generator | None) -> Tensor:
        return draw_from(cumulative_kernel(y, y, self.bandwidth), 1, generator).squeeze(1)

    def _losses(self, output: Any, near: Tensor, far: Tensor, share: float) -> Tensor:
        return self.loss(output, mix(near, far, share))


class TargetKernel:
    """Draw partners with similar targets from a whole data set, for `CMixup`, with one look-up per row.

    It stores one cumulative probability per pair of targets ``y``, so memory is ``4 * n**2`` bytes (1.6 GB
    for 20 000 rows).

    Example:
        >>> kernel = TargetKernel(torch.tensor([[0.0], [9.0], [0.0]]), bandwidth=0.1)
        >>> kernel.sample(torch.tensor([1]))
        tensor([1])
    """

    def __init__(self, y: Float[Tensor, " n *target"], bandwidth: float) -> None:
        check_real(y)
        checks.positive("bandwidth", bandwidth)
        n = len(y)
        step = max(1, _CHUNK_BYTES // (8 * n))  # distances are float64: a few rows at a time
        self._table = torch.empty(n, n, dtype=torch.float32, device=y.device)
        for begin in range(0, n, step):
            rows = slice(begin, begin + step)
            self._table[rows] = cumulative_kernel(y[rows], y, bandwidth)

    def __len__(self) -> int:
        return len(self._table)

    def sample(
        self, index: Int[Tensor, " batch"], *, generator: torch.Generator | None = None
    ) -> Int[Tensor, " batch"]:
        """Draw a partner for each of the rows ``index`` of the data set, as row numbers of the data set."""
        return draw_from(self._table[index.to(self._table.device)], 1, generator).squeeze(1)


def cumulative_kernel(y: Tensor, others: Tensor, bandwidth: float) -> Tensor:
    """Return the cumulative probabilities of C-Mixup's partners, one row for each of ``y``."""
    sums = kernel_weights(target_distances(y, others), bandwidth).cumsum(1)
    return (sums / sums[:, -1:]).float()


def output_with(
    change: Callable[[list[Tensor]], list[Tensor]], model: nn.Module, x: Inputs, layers: Sequence[str | None]
) -> Any:
    """Return the model's output with ``change`` applied to the inputs (None) and to outputs of layers."""
    inputs = named_inputs(x)
    rows = count_rows(inputs)

    def changed_layer(hidden: Tensor) -> Tensor:
        checks.same_rows("The output of a layer that is changed", hidden, rows)
        return change([hidden])[0]

    if None in layers:
        x = rebuild_inputs(x, dict(zip(inputs, change(list(inputs.values())), strict=True)))
    with contextlib.ExitStack() as hooks:
        for name in layers:
            if name is not None:
                hooks.enter_context(replaced_output(model, name, changed_layer))
        return call_model(model, x)


class ADA(GroupObjective):
    """Move rows along the line to the mean of their cluster (Schneider et al., NeurIPS 2023).

    With ``c`` the mean of the batch's rows that are in the same cluster, inputs become
    ``c + (x - c) / sqrt(gamma)``, and targets likewise, with the same clusters and the same ``gamma``. It is
    drawn once per batch from 20 equally likely values: ``1 + (alpha - 1) * i / 10`` for ``i`` from 1 to 10,
    which contract, and their reciprocals, which expand. The new rows replace the batch.

    Compute clusters once, by k-means on the training rows (`anchor_clusters`), and pass them as the groups of
    the rows: ``objective(x, y, cluster)``. Sample weights stay with their rows.

    Args:
        alpha: Largest value of ``gamma``, at least 1; at 1 rows do not move. The authors use 1.125 to 4.
        at: Name of a layer whose output to move, instead of the inputs. Gradients flow through the means.

    Example:
        >>> x, y = torch.randn(100, 4), torch.randn(100, 1)
        >>> cluster = anchor_clusters(x, y, 8)
        >>> objective = ADA(nn.Linear(4, 1), nn.MSELoss(), alpha=2.0)
        >>> objective(x[:16], y[:16], cluster[:16]).backward()
    """

    is_regression = True

    def __init__(
        self, model: nn.Module, loss_fn: LossFn, *, alpha: float = 2.0, at: str | None = None
    ) -> None:
        super().__init__(model, loss_fn)
        self.alpha = between("alpha", alpha, 1)
        self.at = at
        self.mixes_inputs = at is None

    def _group_loss(self, batch: GroupBatch) -> Tensor:
        gamma = draw_gamma_value(self.alpha, batch.generator)

        def move(values: list[Tensor]) -> list[Tensor]:
            return [move_rows(value, batch.groups, gamma) for value in values]

        (target,) = move([batch.y])
        output = output_with(move, self.model, batch.x, (self.at,))
        return self._mean(self.loss(output, target), target, batch.weight, soft=True)


def move_rows(values: Tensor, groups: Groups, gamma: float) -> Tensor:
    """Move each row along the line to the mean of its group: ``c + (row - c) / sqrt(gamma)``."""
    if gamma == 1:
        return values
    centres = groups.mean(values)[groups.index]
    return (centres + (values.to(centres.dtype) - centres) / gamma**0.5).to(values.dtype)


def draw_gamma_value(alpha: float, generator: torch.Generator | None) -> float:
    """Draw one of the 20 values of gamma."""
    u = draw_uniform((1,), device=_CPU, generator=generator).item()
    number = min(int(u * 2 * _STRENGTHS), 2 * _STRENGTHS - 1)
    value = 1 + (alpha - 1) * (number % _STRENGTHS + 1) / _STRENGTHS
    return value if number < _STRENGTHS else 1 / value


def anchor_clusters(
    x: Float[Tensor, " n *feature"] | None,
    y: Float[Tensor, " n *target"],
    n_clusters: int,
    *,
    n_starts: int = 10,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " n"]:
    """Compute the clusters of `ADA`, by k-means on inputs and targets side by side.

    Nothing is scaled, so targets with a much larger spread than the inputs dominate; ``x=None`` clusters the
    targets alone. The best of ``n_starts`` runs is returned, each initialised with k-means++. Equal rows are
    in the same cluster, so there may be fewer than ``n_clusters``; the authors use 2 to 40.

    Example:
        >>> cluster = anchor_clusters(None, torch.tensor([[0.0], [9.0], [0.1]]), 2)
        >>> cluster[0] == cluster[2], cluster[0] == cluster[1]
        (tensor(True), tensor(False))
    """
    check_real(y)
    double = torch.float32 if y.device.type == "mps" else torch.float64
    parts = [v.detach().reshape(len(v), -1).to(double) for v in (x, y) if v is not None]
    points = torch.cat(parts, 1)
    if not bool(points.isfinite().all()):
        raise ValueError("x must be finite, but holds NaN or infinity. Impute or drop such rows.")
    points = points - points.mean(0)  # centring makes distances of far-off rows more accurate
    runs = (_lloyd(points, _first_centres(points, n_clusters, generator)) for _ in range(n_starts))
    return min(runs, key=lambda run: run[0])[1]


def _first_centres(points: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Draw the initial centres of k-means++, by squared distance to those drawn before."""
    u = draw_uniform((n,), device=_CPU, generator=generator).tolist()
    chosen = [min(int(u[0] * len(points)), len(points) - 1)]
    nearest = (points - points[chosen[0]]).square().sum(1)
    for share in u[1:]:
        sums = nearest.cumsum(0)
        if float(sums[-1]) == 0:  # no other points are left
            break
        chosen.append(min(int(torch.searchsorted(sums, share * sums[-1], right=True)), len(points) - 1))
        nearest = torch.minimum(nearest, (points - points[chosen[-1]]).square().sum(1))
    return points[chosen]


def _lloyd(points: Tensor, centres: Tensor) -> tuple[float, Tensor]:
    """Run Lloyd's algorithm; return the sum of squared distances and each row's cluster."""
    label = torch.full((len(points),), -1, device=points.device)
    for _ in range(_ITERATIONS):
        distances = torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist")
        previous, (nearest, label) = label, distances.min(1)
        total = float(nearest.square().sum())
        if torch.equal(previous, label):
            break
        counts = torch.bincount(label, minlength=len(centres))[:, None]
        means = torch.zeros_like(centres).index_add(0, label, points) / counts.clamp_min(1)
        centres = torch.where(counts > 0, means, centres)  # a centre without rows stays where it is
    return total, label


class FOMA(ERM):
    """Scale the small or the large singular values of the batch (Kaufman and Azencot, ICML 2024).

    Inputs and targets, side by side, are the rows of a matrix ``Z`` with singular values ``s``, the largest
    first. Those with a cumulative share ``(s_1 + ... + s_j) / (s_1 + ... + s_n)`` above ``rho`` (small
    directions), or below it (large ones), are multiplied by ``lambda`` from Beta(alpha, alpha). The new rows
    replace the batch. The directions are constants for the gradient, because the derivative of a singular
    value decomposition is not finite for many batches.

    The method is made for batches of similar targets, see `neighbour_order`. Several layers are scaled one
    after another, each with its own ``lambda``. With several processes each decomposes its own rows.

    Args:
        rho: Share of the singular values from which directions are small, at least 0. The authors use 0.825
            to 0.975.
        alpha: Parameter of the Beta law; the authors use 0.3 to 1.4. At 0 nothing is scaled.
        scaled: ``"small"`` or ``"large"`` directions, see above.
        targets: ``"scaled"`` replaces the targets, too, as the method is described; ``"kept"`` trains on the
            original ones, as the authors' code does.
        layers: Names of layers whose output to scale; None is the input.

    Example:
        >>> x, y = torch.randn(100, 4), torch.randn(100, 1)
        >>> objective = FOMA(nn.Linear(4, 1), nn.MSELoss(), rho=0.9)
        >>> for rows in neighbour_order(y, 25).split(25):
        ...     objective(x[rows], y[rows]).backward()
    """

    is_regression = True

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        rho: float,
        alpha: float = 1.0,
        scaled: Directions = "small",
        targets: Targets = "scaled",
        layers: Sequence[str | None] = (None,),
    ) -> None:
        super().__init__(model, loss_fn)
        checks.choice("scaled", scaled, ("small", "large"))
        checks.choice("targets", targets, ("scaled", "kept"))
        self.rho = between("rho", rho)
        self.alpha = between("alpha", alpha)
        self.scaled = scaled
        self.targets = targets
        self.layers = tuple(layers)
        self.mixes_inputs = None in self.layers

    def _training_loss(self, batch: Batch) -> Tensor:
        target = batch.y

        def scale(values: list[Tensor]) -> list[Tensor]:
            nonlocal target
            share = draw_share(self.alpha, batch.generator)
            *values, y = scale_directions([*values, target], share, self.rho, self.scaled)
            target = y if self.targets == "scaled" else target
            return values

        output = output_with(scale, self.model, batch.x, self.layers)
        return self._mean(self.loss(output, target), target, batch.weight, soft=True)


def scale_directions(parts: list[Tensor], share: float, rho: float, scaled: Directions) -> list[Tensor]:
    """Scale directions of ``parts`` side by side; gradients flow through the rows, not the directions."""
    if share == 1:
        return parts
    dtype = torch.promote_types(*(compute_dtype(p.dtype) for p in (parts[0], parts[-1])))
    with torch.autocast(parts[0].device.type, enabled=False):
        rows = torch.cat([part.reshape(len(part), -1).to(dtype) for part in parts], 1)
        with torch.no_grad():
            _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
            cumulative = values.cumsum(0) / values.sum().clamp_min(torch.finfo(dtype).tiny)
            leading = vectors[cumulative <= rho if scaled == "small" else cumulative < rho]
        lead, rest = (1.0, share) if scaled == "small" else (share, 1.0)
        # one projection instead of a sum over directions
        moved = rest * rows + (lead - rest) * (rows @ leading.T) @ leading
    pieces = moved.split([part[0].numel() for part in parts], 1)
    return [piece.reshape(part.shape).to(part.dtype) for piece, part in zip(pieces, parts, strict=True)]


def neighbour_order(
    y: Float[Tensor, " n *target"],
    batch_size: int,
    *,
    sampled: bool = False,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " n"]:
    """Order the rows of an epoch so that each batch has similar targets: ``order.split(batch_size)``.

    A batch is a random row among those not used yet, followed by those of them whose targets are nearest.
    With ``sampled=True`` they are drawn, with probability proportional to the inverse of the distance. The
    last batches collect the remaining rows, which are less similar.

    Example:
        >>> y = torch.tensor([[0.0], [9.0], [0.1], [9.1]])
        >>> sorted(sorted(rows.tolist()) for rows in neighbour_order(y, 2).split(2))
        [[0, 2], [1, 3]]
    """
    check_real(y)
    checks.count("batch_size", batch_size)  # with 0 the loop below would never end
    left = torch.arange(len(y), device=y.device)
    order = []
    while len(left):
        u = draw_uniform((1,), device=_CPU, generator=generator).item()
        anchor = min(int(u * len(left)), len(left) - 1)
        key = target_distances(y[left[anchor]][None], y[left])[0]
        if sampled:  # the smallest of exponential times with rates 1 / distance: draws without replacement
            times = -torch.log1p(-draw_uniform((len(left),), device=y.device, generator=generator))
            key = key * times.to(key.dtype)
        key[anchor] = -1
        by_key = key.argsort(stable=True)
        order.append(left[by_key[:batch_size]])
        left = left[by_key[batch_size:].sort().values]
    return torch.cat(order)
