"""Estimate the loss at rows without labels from the labels of the nearest training rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elliptica._utils import checks
from elliptica.diagnostics.result import Result, notes_lines, table
from elliptica.landscape.loss import LossField

#: Default number of neighbours.
NEIGHBOURS = 10
#: A row is far if this share of the training rows is nearer to another training row.
USUAL = 0.99
#: Largest number of training rows for the usual distance; more are sampled evenly.
_SAMPLE = 1000
#: Rows times training rows (or features) that are held at once.
_CHUNK = 2**22


@dataclass(frozen=True)
class NeighbourLoss(Result):
    """Result of `neighbour_loss`, one entry per query.

    Attributes:
        loss: Mean loss of the model at the query against the labels of its nearest training rows.
        stderr: Standard error of that mean over these labels; it does not allow for their distance.
        distance: Distance to the nearest training row, in standardised features.
        far: Whether that distance exceeds the one of 99 % of the training rows to their nearest other row.
        rows: Numbers of the training rows, nearest first.
        notes: Remarks and cautions.
    """

    loss: Float[Tensor, " queries"]
    stderr: Float[Tensor, " queries"]
    distance: Float[Tensor, " queries"]
    far: Bool[Tensor, " queries"]
    rows: Int[Tensor, "queries k"]
    notes: tuple[str, ...] = ()

    @property
    def k(self) -> int:
        """Number of neighbours."""
        return self.rows.shape[1]

    def __len__(self) -> int:
        return len(self.loss)

    def __str__(self) -> str:
        columns = (self.loss, self.stderr, self.distance)
        rows = list(zip(*(c.tolist() for c in columns), strict=True))
        return "\n".join(
            [
                f"loss against the labels of the {self.k} nearest training rows at {len(self)} queries: mean "
                f"{float(self.loss.mean()):.4g}",
                *table(("loss", "s.e.", "nearest row"), rows),
                *notes_lines(self.notes),
            ]
        )


def neighbour_loss(
    field: LossField, at: Tensor, train: tuple[Tensor, Tensor], k: int = NEIGHBOURS
) -> NeighbourLoss:
    """Estimate the loss at rows without labels from the labels of their nearest training rows.

    Averages the loss of the model *at the query* against the label of each of the ``k`` nearest training
    rows. It is high where the model contradicts the labels around it, and where these contradict each other.
    Distances are Euclidean in features divided by their deviation over the training rows. Pass held-out or
    unlabelled rows, because a training row is its own nearest neighbour.

    Args:
        field: Loss of the model.
        at: Queries, ``(queries, *feature)``, as the model takes them.
        train: Training inputs and targets.
        k: Number of neighbours; all training rows if there are fewer.

    Example:
        >>> field = LossField(torch.nn.Identity(), torch.nn.MSELoss())
        >>> x = torch.tensor([[0.0], [1.0], [5.0]])
        >>> neighbour_loss(field, torch.tensor([[0.5]]), (x, x), k=2).loss
        tensor([0.2500])
    """
    x, y = check_train(train, at)
    checks.count("k", k)
    distance, rows = nearest_rows(at, x, min(k, len(x)))
    k = rows.shape[1]
    step = max(field.chunk_size // k, 1)
    with torch.no_grad():
        parts = [
            field(part.repeat_interleave(k, 0), y[near.flatten().to(y.device)]).reshape(-1, k)
            for part, near in zip(at.split(step), rows.split(step), strict=True)
        ]
    losses = torch.cat(parts)
    far = distance[:, 0] > usual_distance(x)
    spread = losses.std(1) if k > 1 else torch.full_like(losses[:, 0], torch.nan)
    notes: tuple[str, ...] = ()
    if bool(far.any()):
        notes = (
            f"{far_queries(far)}. No training label is near, so the loss there is a guess from the nearest "
            "ones.",
        )
    return NeighbourLoss(losses.mean(1), spread / k**0.5, distance[:, 0].to(at), far, rows, notes)


def nearest_rows(
    at: Tensor, x: Tensor, k: int = NEIGHBOURS
) -> tuple[Float[Tensor, "queries k"], Int[Tensor, "queries k"]]:
    """Find the nearest training rows of each query: distances in standardised features, and row numbers.

    Args:
        at: Queries, ``(queries, *feature)``.
        x: Training inputs. Features are divided by their deviation, except constant ones.
        k: Number of neighbours, at most the number of training rows.
    """
    points = x.reshape(len(x), -1).double()
    queries = at.reshape(len(at), -1).to(points)
    deviation = points.std(0, correction=0)
    scale = torch.where(deviation > 0, deviation, 1.0)
    centre = points.mean(0)
    points, queries = (points - centre) / scale, (queries - centre) / scale
    pieces = []
    for part in queries.split(max(_CHUNK // max(len(points), k * points.shape[1]), 1)):
        near = torch.cdist(part, points).topk(k, dim=1, largest=False).indices
        length = (part[:, None] - points[near]).norm(dim=2)  # the product inside cdist loses digits
        length, order = length.sort(dim=1, stable=True)
        pieces.append((length, near.gather(1, order)))
    distance, rows = (torch.cat(column) for column in zip(*pieces, strict=True))
    return distance, rows


def usual_distance(x: Tensor) -> float:
    """Return the distance within which 99 % of the training rows have another, different one."""
    some = x[:: -(-len(x) // _SAMPLE)]
    distance = nearest_rows(some, x, min(NEIGHBOURS + 1, len(x)))[0]
    other = torch.where(distance > 0, distance, torch.inf).amin(1)  # the row itself and copies do not count
    other = other[other.isfinite()]
    return float(other.quantile(USUAL)) if len(other) else 0.0


def far_queries(far: Bool[Tensor, " queries"]) -> str:
    """Return a phrase with the number of queries far from the training rows."""
    return (
        f"{int(far.sum())} of {len(far)} queries lie outside the training region (further from every "
        f"training row than {USUAL:.0%} of those lie from their nearest other one)"
    )


def check_train(train: tuple[Tensor, Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
    """Return training inputs and targets; raise if they do not match each other or the queries."""
    x, y = train
    checks.floating("at", at)
    checks.batch("at", at)
    checks.finite("at", at)
    checks.floating("train x", x)
    checks.batch("train x", x)
    checks.finite("train x", x)
    checks.same_rows("train y", y, len(x), "train x")
    if x.shape[1:] != at.shape[1:]:
        raise ValueError(
            f"Training inputs have shape {tuple(x.shape[1:])} per row, but the queries "
            f"{tuple(at.shape[1:])}. Pass both as the model takes them."
        )
    return x, y
