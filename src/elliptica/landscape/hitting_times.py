"""Train on hitting times: the loss where Brownian walks first hit the data (paper: Eq. (3)).

This is the objective that the paper states before it introduces bridges: the mean over starts of the
landscape ``u(z) = E[l(Z_tau)]``. Walks do not depend on the network, so many can be drawn at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import random
from elliptica.core.inputs import LossFn, warn_user
from elliptica.core.layers import run_uncompiled
from elliptica.core.losses import PerSampleLoss, weighted_mean
from elliptica.core.targets import Targets, TargetSpace, infer_target_space, project_to_simplex
from elliptica.landscape.data_domain import DataDomain, Outer
from elliptica.landscape.domains import OUTER, Ball, Box, Domain
from elliptica.landscape.estimate import FEW_HITS, FEW_UNFINISHED, UNFINISHED
from elliptica.landscape.operator import Operator
from elliptica.landscape.solve import default_shell, domain_size
from elliptica.landscape.walks import walk_on_spheres

StartLaw = Literal["uniform", "between"]

#: Largest dimension in which ``"auto"`` uses reflecting walls; the steps double with each dimension.
REFLECTING = 6
#: Rounds of proposals for uniform starts in a region that is neither a ball nor a box.
_ROUNDS = 1000


@dataclass(frozen=True)
class WalkEnds:
    """Ends of walks, one row each."""

    x: Float[Tensor, " walks *feature"]  # inputs at the ends
    y: Float[Tensor, " walks *target"]  # targets at the ends, in their space
    #: Row of the training data whose ball was hit, -1 for the outer boundary, -2 for a walk that ran out of
    #: steps (its last position, which the objective skips).
    datum: Int[Tensor, " walks"]
    steps: Int[Tensor, " walks"]  # number of spheres of each walk

    def __len__(self) -> int:
        return len(self.datum)

    @property
    def shares(self) -> dict[str, float]:
        """Shares of walks that ended on data, on the outer boundary, and not at all; they sum to one."""
        n = len(self)
        on_data, outer = int((self.datum >= 0).sum()), int((self.datum == OUTER).sum())
        return {"data": on_data / n, "outer": outer / n, "unfinished": (n - on_data - outer) / n}

    def split(self, size: int) -> tuple[WalkEnds, ...]:
        """Split into batches of ``size`` walks for several training steps; the last may be shorter."""
        parts = (value.split(size) for value in vars(self).values())
        return tuple(WalkEnds(*part) for part in zip(*parts, strict=True))


class HittingTimes(nn.Module):
    """Mean loss where Brownian walks first hit the training data (paper: Eq. (3) and its empirical sum).

    Walks start in the space of inputs and targets, ``z = (x, y)``, and end on a ball around a datum or on
    the outer boundary; a walk from inside a ball ends where it starts. For starts outside the balls the mean
    loss at the ends is the landscape ``u`` of `elliptica.estimate_landscape`. Class labels walk in the plane
    of the simplex and end at its nearest point.

    The loss is evaluated *on the boundary* only, not between the data. Between reflecting walls this is
    ordinary training with noise of the size of the balls, in which isolated data have more weight. In any
    other region of more than a few dimensions most walks end on the outer boundary, with targets that no
    datum has; see ``shares``. Use this class to study the formulation; `elliptica.Elliptic` is the method.

    In ``eval()`` mode it is the ordinary loss. The module owns the model; save ``objective.model``.

    Args:
        model: Any network that takes one tensor.
        loss_fn: Your ordinary loss, as in `elliptica.Elliptic`.
        x: Inputs of all training data, floating point. Walks end on the balls around them.
        y: Their targets.
        target_space: ``"simplex"`` (classes), ``"unit"`` or ``"real"``. None infers it from loss and targets.
        num_classes: Number of classes. Required for integer labels.
        n_starts: Starts per call.
        n_walks: Walks from each start.
        starts: ``"uniform"`` in the outer region, as in the paper, or ``"between"``: on the straight
            line between two data, at a uniform place.
        epsilon: Radius of the balls, see `DataDomain`. None uses ``fraction``.
        fraction: Radius as a share of the distance to the nearest other datum.
        outer: Outer region, see `DataDomain`, or any `Domain` for ``z = objective.join(x, y)``. ``"auto"``: a
            reflecting box up to 6 dimensions of inputs and targets together, a ball beyond.
        margin: Factor by which a ball or box is larger than the data.
        max_steps: Walks that need more steps are skipped and reported.

    Example:
        >>> x, y = torch.randn(30, 2), torch.randint(2, (30,))
        >>> objective = HittingTimes(nn.Linear(2, 2), nn.CrossEntropyLoss(), x, y, num_classes=2)
        >>> objective(generator=torch.Generator().manual_seed(0)).backward()
        >>> objective.shares
        {'data': 1.0, 'outer': 0.0, 'unfinished': 0.0}
        >>> for ends in objective.sample(n_starts=100).split(50):  # walks for two steps, drawn at once
        ...     objective(ends=ends).backward()
    """

    points: Tensor
    _basis: Tensor | None
    _class_weight: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        x: Float[Tensor, " n *feature"],
        y: Tensor,
        *,
        target_space: TargetSpace | None = None,
        num_classes: int | None = None,
        n_starts: int = 64,
        n_walks: int = 1,
        starts: StartLaw = "uniform",
        epsilon: float | Tensor | None = None,
        fraction: float = 0.3,
        outer: Outer | Literal["auto"] | Domain = "auto",
        margin: float = 1.1,
        max_steps: int = 10_000,
    ) -> None:
        super().__init__()
        if starts not in ("uniform", "between"):
            raise ValueError(f'starts must be "uniform" or "between", but got {starts!r}.')
        _refuse_gradient(x=x, y=y)
        self.model = model
        self.loss = PerSampleLoss(loss_fn)
        self.target_space = infer_target_space(loss_fn, y) if target_space is None else target_space
        self.num_classes = self.loss.num_classes() if num_classes is None else num_classes
        self.n_starts, self.n_walks, self.starts, self.max_steps = n_starts, n_walks, starts, max_steps
        target = self._encode(x, y)
        self.feature_shape, self.target_shape = x.shape[1:], target.shape[1:]
        is_simplex = self.target_space == "simplex"
        self.register_buffer("_basis", _simplex_basis(target) if is_simplex else None, persistent=False)
        points = self.join(x, y).detach()
        if outer == "auto":
            outer = "reflecting_box" if points.shape[1] <= REFLECTING else "ball"
        #: The region of the walks, in the coordinates of `join`.
        self.domain = DataDomain(points, epsilon=epsilon, fraction=fraction, outer=outer, margin=margin)
        self.register_buffer("points", points, persistent=False)
        # a class-weighted loss is divided by the mean weight of the training labels, which no draw changes
        self.register_buffer("_class_weight", self._class_weights(target, y), persistent=False)
        self._shell = default_shell(self.domain, points, domain_size(self.domain, points))
        #: Shares of how the walks of the last call ended, see `WalkEnds`; empty before the first.
        self.shares: dict[str, float] = {}

    def forward(
        self,
        x: Float[Tensor, " batch *feature"] | None = None,
        y: Tensor | None = None,
        *,
        ends: WalkEnds | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the mean loss where walks end; in ``eval()`` mode the ordinary mean loss of ``(x, y)``.

        Args:
            x: Inputs at which walks start (from the training data they end at once); None draws starts.
            y: Targets there.
            ends: Ends drawn earlier with `sample`.
            generator: Source of randomness.
        """
        if self.training:
            if ends is None:
                ends = self.sample(x, y, generator=generator)
            return self.loss_on(ends)
        if x is None or y is None:
            raise ValueError("In eval() mode the objective is the ordinary loss, which needs x and y.")
        target = self._encode(x, y)
        class_weight = self._class_weights(target, y)
        return weighted_mean(self.loss(self.model(x), target), None, class_weight)

    def sample(
        self,
        x: Float[Tensor, " batch *feature"] | None = None,
        y: Tensor | None = None,
        *,
        n_starts: int | None = None,
        generator: torch.Generator | None = None,
    ) -> WalkEnds:
        """Walk from ``n_starts`` random starts, or from given ones, to the boundary.

        Ends carry no gradient. Large batches cost far less per walk: `WalkEnds.split` them. Arguments
        are those of `forward`.
        """
        if torch.compiler.is_compiling():
            return run_uncompiled(self.sample, x, y, n_starts=n_starts, generator=generator)
        _refuse_gradient(x=x, y=y)
        with torch.no_grad():
            start = self._starts(x, y, n_starts or self.n_starts, generator)
            start = start.to(random.compute_dtype(start.dtype)).repeat_interleave(self.n_walks, 0)
            ends = self._walk(start, generator)
        self.shares = ends.shares
        self._warn()
        return ends

    def loss_on(self, ends: WalkEnds) -> Tensor:
        """Return the mean loss at ends that `sample` drew; unfinished walks are skipped."""
        done = ends.datum != UNFINISHED
        if not bool(done.any()):
            raise ValueError("No walk reached the boundary. Raise max_steps.")
        return weighted_mean(self.loss(self.model(ends.x[done]), ends.y[done]), None, self._class_weight)

    def join(self, x: Float[Tensor, " batch *feature"], y: Tensor) -> Float[Tensor, "batch dim"]:
        """Return coordinates of walks: inputs, then targets (classes: in a plane)."""
        target = self._encode(x, y)
        if self._basis is not None:
            target = target.movedim(1, -1) @ self._basis.to(target)
        return torch.cat([x.reshape(len(x), -1), target.reshape(len(x), -1).to(x)], 1)

    def _split_point(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of points, targets in their space: the inverse of `join`."""
        n_features = self.feature_shape.numel()
        x = z[:, :n_features].reshape(len(z), *self.feature_shape)
        flat = z[:, n_features:]
        if self._basis is None:
            target = flat.reshape(len(z), *self.target_shape)
            return x, target.clamp(0, 1) if self.target_space == "unit" else target
        n_classes, *place = self.target_shape
        plane = flat.reshape(len(z), *place, n_classes - 1) @ self._basis.to(z).T + 1 / n_classes
        return x, project_to_simplex(plane, "euclidean").movedim(-1, 1)

    def _encode(self, x: Tensor, y: Tensor) -> Tensor:
        return Targets(self.target_space, self.num_classes).encode(y, x.dtype)

    def _starts(
        self, x: Tensor | None, y: Tensor | None, n: int, generator: torch.Generator | None
    ) -> Tensor:
        """Return starts as points: those given, or random ones."""
        if x is not None and y is not None:
            return self.join(x, y)
        if x is not None or y is not None:
            raise ValueError("Walks start at x and y together. Pass both, or none.")
        if self.starts == "between":
            return draw_between(self.points, n, generator)
        return draw_uniform_points(self.domain.domain, self.points, n, generator)

    def _walk(self, start: Tensor, generator: torch.Generator | None) -> WalkEnds:
        walks = walk_on_spheres(
            self.domain, start, Operator(), shell=self._shell, max_steps=self.max_steps, generator=generator
        )
        inside = self.domain.nearest_ball(start)[0] <= 0  # tau is zero: the walk ends where it starts
        x, y = self._split_point(torch.where(inside[:, None], start, walks.end))
        return WalkEnds(x.to(self.points.dtype), y.to(self.points.dtype), walks.label, walks.steps)

    def _class_weights(self, target: Tensor, y: Tensor) -> Tensor | None:
        by_class = self.loss.weights_classes and not y.is_floating_point()  # as torch does
        return self.loss.class_weight(target) if by_class else None

    def _warn(self) -> None:
        """Warn if the objective is hardly about the data, or biased by unfinished walks."""
        if self.shares["data"] < FEW_HITS:
            warn_user(
                f"Fewer than {FEW_HITS:.0%} of the walks hit a ball around a datum: the objective is that on "
                "the outer boundary. Train with elliptica.Elliptic."
            )
        if self.shares["unfinished"] > FEW_UNFINISHED:
            warn_user("Walks that ran out of steps are skipped, so the objective is biased. Raise max_steps.")


def _refuse_gradient(**given: Tensor | None) -> None:
    """Raise if a tensor requires a gradient, which walks cannot pass on: layers before would not learn."""
    for name, value in given.items():
        if value is not None and value.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{name} requires a gradient, but walks carry none. Pass {name}.detach().")


def _simplex_basis(target: Tensor) -> Tensor:
    """Return an orthonormal basis of the plane of class probabilities, ``(classes, classes - 1)``."""
    n = target.shape[1]
    row = torch.arange(n, dtype=torch.float64, device=target.device)[:, None]
    k = torch.arange(1, n, dtype=torch.float64, device=target.device)
    helmert = torch.where(row < k, 1.0, torch.where(row == k, -k, 0.0)) / (k * (k + 1)).sqrt()
    return helmert.to(target)


def draw_uniform_points(domain: Domain, points: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Draw uniform points of a region (if its shape is unknown, of its part in the box around the data)."""
    dtype, device, dim = random.compute_dtype(points.dtype), points.device, points.shape[1]
    if isinstance(domain, Ball):
        direction = random.draw_normal((n, dim), dtype=dtype, device=device, generator=generator)
        radius = random.draw_uniform((n, 1), device=device, generator=generator).to(dtype) ** (1 / dim)
        offset = domain.radius * radius * direction / direction.norm(dim=1, keepdim=True)
        return domain.centre.to(offset) + offset
    box = domain if isinstance(domain, Box) else Box.around(points)
    inner: list[Tensor] = []
    for _ in range(_ROUNDS):
        u = random.draw_uniform((n, dim), device=device, generator=generator).to(dtype)
        z = torch.lerp(box.low.to(u), box.high.to(u), u)
        inner.append(z if domain is box else z[domain.distance(z) > 0])
        if sum(map(len, inner)) >= n:
            return torch.cat(inner)[:n]
    raise ValueError('starts="uniform" found no points of the outer region near the data. Use "between".')


def draw_between(points: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Draw uniform places on the lines between uniformly drawn pairs of different rows."""
    u = random.draw_uniform((3, n), device=points.device, generator=generator)
    first = (u[0] * len(points)).long().clamp_max(len(points) - 1)
    other = (u[1] * (len(points) - 1)).long().clamp_max(len(points) - 2)
    second = other + (other >= first)
    return torch.lerp(points[first], points[second], u[2][:, None].to(points))
