"""Anchor data augmentation: move rows along the line to a cluster mean (Schneider et al., NeurIPS 2023)."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import check_generator, draw_uniform
from elliptica.baselines._groups import GroupBatch, GroupObjective, Groups, find_groups
from elliptica.baselines._targets import check_real_targets
from elliptica.core.hidden import find_layer, replaced_output
from elliptica.core.inputs import call_model, named_inputs, rebuild_inputs
from elliptica.core.types import Inputs, LossFn

_CPU = torch.device("cpu")
_STRENGTHS = 10  # values of gamma above 1; as many reciprocals
_ITERATIONS = 300


class ADA(GroupObjective):
    """Anchor data augmentation, for regression: rows move along the line to the mean of their cluster.

    With ``c`` the mean of the batch's rows that are in the same cluster, inputs become
    ``c + (x - c) / sqrt(gamma)``, and targets likewise, with the same clusters and the same ``gamma``. It is
    drawn once per batch from 20 equally likely values: ``1 + (alpha - 1) * i / 10`` for ``i`` from 1 to 10,
    which contract, and their reciprocals, which expand. The new rows replace the batch.

    Compute clusters once, by k-means on the training rows (`anchor_clusters`), and pass them as the groups of
    the rows: ``objective(x, y, cluster)``. Sample weights stay with their rows.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network.
        loss_fn: Your ordinary loss on real targets, see `ERM`.
        alpha: Largest value of ``gamma``, at least 1; at 1 rows do not move. The authors use 1.125 to 4.
        at: Name of a layer whose output to move, instead of the inputs. Gradients flow through the means.

    Example:
        >>> x, y = torch.randn(100, 4), torch.randn(100, 1)
        >>> cluster = anchor_clusters(x, y, 8)
        >>> objective = ADA(nn.Linear(4, 1), nn.MSELoss(), alpha=2.0)
        >>> objective(x[:16], y[:16], cluster[:16]).backward()
    """

    settings: ClassVar[tuple[str, ...]] = ("alpha", "at")

    def __init__(
        self, model: nn.Module, loss_fn: LossFn, *, alpha: float = 2.0, at: str | None = None
    ) -> None:
        super().__init__(model, loss_fn)
        checks.positive("alpha", alpha)
        if alpha < 1:
            raise ValueError(
                f"alpha must be at least 1, but got {alpha}. It is the largest gamma, and reciprocals are "
                "drawn as often, so use 1 / alpha."
            )
        if at is not None:
            find_layer(model, at)
        self.alpha = float(alpha)
        self.at = at
        self.mixes_inputs = at is None

    def clean_loss(self, x: Inputs, y: Tensor, *, sample_weight: Tensor | None = None) -> Tensor:
        """Return the ordinary mean loss on the data themselves; class labels raise as in training."""
        _check_targets(y)
        return super().clean_loss(x, y, sample_weight=sample_weight)

    def _check(self, x: Inputs, y: Tensor, weight: Tensor | None, generator: torch.Generator | None) -> None:
        _check_targets(y)
        super()._check(x, y, weight, generator)

    def _group_loss(self, batch: GroupBatch) -> Tensor:
        gamma = draw_gamma_value(self.alpha, batch.generator)

        def moved(values: Tensor) -> Tensor:
            return _move(values, batch.groups, gamma)

        target = moved(batch.y)
        if self.at is None:
            inputs = {name: moved(value) for name, value in named_inputs(batch.x).items()}
            output = call_model(self.model, rebuild_inputs(batch.x, inputs))
        else:

            def moved_layer(hidden: Tensor) -> Tensor:
                checks.same_rows(f"the output of the layer at={self.at!r}", hidden, len(target))
                return moved(hidden)

            with replaced_output(self.model, self.at, moved_layer):
                output = call_model(self.model, batch.x)
        return self._mean(self.loss(output, target), target, batch.weight, soft=True)


def anchor_rows(
    values: Float[Tensor, " batch *feature"], cluster: Int[Tensor, " batch"], gamma: float
) -> Float[Tensor, " batch *feature"]:
    """Move each row along the line to the mean of its cluster: ``c + (row - c) / sqrt(gamma)``.

    Cluster means do not move. ``gamma=1`` changes nothing, large values collapse rows to the means, and ``1 /
    gamma`` undoes ``gamma``.

    Args:
        values: Inputs or targets.
        cluster: Number of each row's cluster, from 0.
        gamma: Above zero. Rows move towards the mean above 1, and away from it below.

    Example:
        >>> anchor_rows(torch.tensor([[0.0], [4.0], [9.0]]), torch.tensor([0, 0, 1]), gamma=4.0).flatten()
        tensor([1., 3., 9.])
    """
    checks.positive("gamma", gamma)
    checks.batch("values", values)
    return _move(values, find_groups(cluster, len(values)), gamma)


def _move(values: Tensor, groups: Groups, gamma: float) -> Tensor:
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

    Nothing is scaled, so targets with a much larger spread than the inputs dominate. The best of ``n_starts``
    runs is returned, each initialised with k-means++. Equal rows are in the same cluster, so there
    may be fewer clusters than ``n_clusters``. A float64 matrix of rows by clusters is kept in memory.

    Args:
        x: Inputs of the training rows; None clusters the targets alone.
        y: Their targets.
        n_clusters: Number of clusters; the authors use 2 to 40.
        n_starts: Number of runs.
        generator: Source of randomness. None means torch's default generator.

    Example:
        >>> cluster = anchor_clusters(None, torch.tensor([[0.0], [9.0], [0.1]]), 2)
        >>> cluster[0] == cluster[2], cluster[0] == cluster[1]
        (tensor(True), tensor(False))
    """
    _check_targets(y)
    checks.count("n_clusters", n_clusters)
    checks.count("n_starts", n_starts)
    check_generator(generator, y.device)
    double = torch.float32 if y.device.type == "mps" else torch.float64
    parts = []
    for name, value in (("x", x), ("y", y)):
        if value is not None:
            checks.floating(name, value)
            checks.batch(name, value)
            checks.same_rows(name, value, len(y), "y")
            checks.finite(name, value)
            parts.append(value.detach().reshape(len(value), -1).to(double))
    points = torch.cat(parts, 1)
    points = points - points.mean(0)  # centring makes distances of far-off rows more accurate
    if n_clusters > len(points):
        raise ValueError(
            f"n_clusters must be at most the number of rows, but is {n_clusters} for {len(points)} rows. Use "
            "fewer clusters."
        )
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


def _check_targets(y: object) -> None:
    check_real_targets(y, "anchor data augmentation moves inputs and targets together")
