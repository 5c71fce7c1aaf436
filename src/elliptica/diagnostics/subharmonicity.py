"""Test at each probe whether the loss is subharmonic, so that the maximum principle holds for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._utils import checks, random
from elliptica._utils.statistics import check_level, holm
from elliptica.diagnostics.result import Result, notes_lines, table
from elliptica.landscape.loss import LossField, join

#: Probability with which the stated smallest failure would have been detected.
_POWER = 0.9
#: Sizes of the bet over which the capital is spread.
_BETS = 16
#: Fewest pairs of directions for a test.
_FEWEST = 16
#: Probes whose bets are held at once.
_PROBES = 512


@dataclass(frozen=True)
class SubharmonicityReport(Result):
    """Result of `subharmonicity_report`.

    Attributes:
        radii: Radii of the spheres.
        defect: Mean over the sphere minus the value at its centre, per probe and radius; below zero
            subharmonicity fails at that scale.
        stderr: Its standard error.
        laplacian: ``2 n defect / radius^2``.
        laplacian_stderr: Its standard error.
        adjusted_p: One-sided p-values of "the defect is at least zero", after Holm's correction over all
            probes and radii. They hold for skewed differences, too: see `subharmonicity_report`.
        failed: Probes where subharmonicity is rejected at some radius, most negative Laplacian first.
        detectable: Per radius, the Laplacian (negative) that would have been detected with probability
            90 % at the median probe.
        alpha: Significance level of the family of tests.
        n_directions: Pairs of directions per probe.
        joint: Whether targets were moved, too.
    """

    radii: tuple[float, ...]
    defect: Float[Tensor, "probes radii"]
    stderr: Float[Tensor, "probes radii"]
    laplacian: Float[Tensor, "probes radii"]
    laplacian_stderr: Float[Tensor, "probes radii"]
    adjusted_p: Float[Tensor, "probes radii"]
    failed: tuple[int, ...]
    detectable: tuple[float, ...]
    alpha: float
    n_directions: int
    joint: bool

    @property
    def passed(self) -> bool:
        """Whether no probe was rejected."""
        return not self.failed

    def __str__(self) -> str:
        n = len(self.defect)
        space = "inputs and targets" if self.joint else "inputs, targets fixed"
        lines = [
            f"subharmonicity at {n} probes ({space}), {self.n_directions} pairs of directions: "
            + (f"rejected at {len(self.failed)}" if self.failed else "not rejected at any"),
        ]
        rows = []
        for j, radius in enumerate(self.radii):
            lap = self.laplacian[:, j]
            below = int((self.adjusted_p[:, j] < self.alpha).sum())
            rows.append((radius, float(lap.median()), float(lap.min()), below, self.detectable[j]))
        lines += table(
            ("radius", "median Laplacian", "least", "rejected", "detectable (90 %)"), rows, limit=20
        )
        if self.failed:
            lines.append("  rejected at probes " + ", ".join(map(str, self.failed[:10])))
        lines += notes_lines(
            [
                "Where it fails, the loss may exceed every loss around it: the maximum principle says "
                "nothing about the network there."
                if self.failed
                else "At these probes and scales only. A weaker failure than the one in the last column "
                "would not be detected."
            ]
        )
        return "\n".join(lines)


def subharmonicity_report(
    field: LossField,
    x: Tensor,
    y: Tensor,
    radii: float | Sequence[float],
    n_directions: int = 128,
    *,
    joint: bool = False,
    alpha: float = 0.05,
    generator: torch.Generator | None = None,
) -> SubharmonicityReport:
    """Test whether the loss lies below its mean over small spheres (hypothesis of Prop. 1 for a network).

    If the loss ``l`` is subharmonic then ``l <= u <= max`` of the boundary values. Use a model in float64
    for small radii: in float32, rounding (which the test allows for) hides small defects.

    The test bets on each pair of directions. It keeps its level for any skewed differences, if none
    exceeds a bound: twice the largest observed, or the result of an ascent from the best pairs. The
    largest difference of a network is not known; where the ascent misses a narrow peak, the test may flag a
    probe wrongly. It is a little weaker than Student's test, which wrongly flags harmonic functions where a
    few directions balance many others.

    Args:
        field: Loss of the model.
        x: Inputs of the probes.
        y: Their targets.
        radii: Radii of the spheres, in the units of ``x``.
        n_directions: Pairs of directions per probe, at least 16: twice as many forward passes per radius,
            and about a hundred for the ascent.
        joint: Move the (real) targets along with the inputs, as the paper's diffusion does.
        alpha: Probability of flagging any probe wrongly, over all tests.
        generator: Source of the directions.
    """
    check_level("alpha", alpha)
    checks.count("n_directions", n_directions, _FEWEST, " (fewer show too little of the sphere for a test)")
    radii = [radii] if isinstance(radii, int | float) else radii
    z, loss = point_loss(field, x, y, joint)
    defect = mean_value_defect(loss, z, radii, n_directions, generator=generator)
    adjusted = holm(_p_values(defect))
    laplacian, error = defect.laplacian(radii)
    bad = (adjusted < alpha).any(1).nonzero().flatten()
    order = torch.where(adjusted < alpha, laplacian, torch.inf).amin(1)[bad].argsort()
    smallest = _detectable(defect, alpha / adjusted.numel())
    smallest = smallest * smallest.new_tensor([2 * defect.dim / r**2 for r in radii])
    return SubharmonicityReport(
        tuple(float(r) for r in radii),
        defect.mean,
        defect.stderr,
        laplacian,
        error,
        adjusted,
        tuple(bad[order].tolist()),
        tuple((-smallest).tolist()),
        alpha,
        n_directions,
        joint,
    )


def _p_values(found: Defect) -> Tensor:
    """Test ``defect + rounding >= 0`` (one-sided) for each probe and radius."""
    values = [
        torch.exp(-_log_capital(pairs + shift[:, None, None], top + shift[:, None]).clamp_min(0))
        for pairs, top, shift in zip(
            found.pairs.split(_PROBES),
            found.largest.split(_PROBES),
            found.rounding.split(_PROBES),
            strict=True,
        )
    ]
    return torch.cat(values)


def _log_capital(
    differences: Float[Tensor, "*tests pairs"], largest: Float[Tensor, "*tests"]
) -> Float[Tensor, "*tests"]:
    """Return the log-capital after betting on each difference that the mean is below zero.

    A bet of ``c`` multiplies the capital by ``1 - c d / b``, where no difference ``d`` exceeds ``b``. If the
    mean is at least zero, no bet gains on average, so that the capital exceeds ``1 / p`` with a probability
    of at most ``p`` (Ville): one over it is a p-value, however skewed the differences are. A Student test
    rejects too often if a few large ones balance many small ones. The capital is spread evenly over
    sixteen sizes of the bet.
    """
    bets = (torch.arange(_BETS, dtype=torch.float64, device=differences.device) + 0.5) / _BETS
    scale = largest.clamp_min(torch.finfo(torch.float64).tiny)[..., None, None]
    gains = -bets[:, None] * (differences[..., None, :] / scale)
    return torch.log1p(gains).sum(-1).logsumexp(-1) - math.log(_BETS)


def _detectable(found: Defect, level: float) -> Float[Tensor, " radii"]:
    """Return the (positive) defects that the test detects with probability 90 % at the median probe.

    Each sample is moved down until the test rejects it, in units of its standard error. The mean of another
    sample differs by one of those units, and what it takes to reject it as these samples differ.
    """
    rows = torch.linspace(0, len(found.mean) - 1, min(len(found.mean), _PROBES // 8)).long()
    mean, error = found.mean[rows], found.stderr[rows].clamp_min(torch.finfo(torch.float64).tiny)
    pairs = (found.pairs[rows] - mean[..., None]) / error[..., None]
    top = (found.largest[rows] - mean) / error
    low, high = torch.zeros_like(top), 100 * (top.abs() + pairs.abs().amax(2))
    for _ in range(50):
        middle = (low + high) / 2
        enough = _log_capital(pairs - middle[..., None], top - middle) >= -math.log(level)
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    luck = float(torch.special.ndtri(torch.tensor(_POWER, dtype=torch.float64)))
    reach = high.median(0).values + luck * (1 + high.var(0, correction=0)).sqrt()
    return (reach * found.stderr + found.rounding[:, None]).median(0).values


# The mean-value defect: mean of a loss over a small sphere minus its value at the centre.


#: Pairs to start from, angle of a step and number of steps in the search for the largest difference.
_STARTS, _ANGLE, _STEPS = 3, 0.6, 8
#: Numbers held at once in directions.
_CHUNK = 2**22
#: Evaluations one rounding unit away from the centre, from which rounding noise is read.
_NEARBY = 8


@dataclass(frozen=True)
class Defect:
    """Mean-value defects ``m_r``, one row per probe, one column per radius.

    Attributes:
        mean: Estimate of ``E[l(z + r xi)] - l(z)``, ``xi`` uniform on the unit sphere.
        stderr: Its standard error.
        rounding: How far rounding in the model may move it, one per probe.
        dim: Dimension of the space.
        pairs: The differences that ``mean`` is the mean of, one per pair of directions.
        largest: Bound on the differences: as far above the largest seen as that is above the mean, no less
            than the largest that an ascent finds, and no less than the mean of their sizes. Not a proof.
    """

    mean: Float[Tensor, "probes radii"]
    stderr: Float[Tensor, "probes radii"]
    rounding: Float[Tensor, " probes"]
    dim: int
    pairs: Float[Tensor, "probes radii pairs"]
    largest: Float[Tensor, "probes radii"]

    def laplacian(self, radii: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Return ``2 n m_r / r^2``, the mean Laplacian up to ``O(r^2)``, and its standard error."""
        factor = 2 * self.dim / torch.tensor(list(radii), dtype=torch.float64).square()
        factor = factor.to(self.mean)
        return self.mean * factor, self.stderr * factor


def point_loss(field: LossField, x: Tensor, y: Tensor, joint: bool) -> tuple[Tensor, Callable[..., Tensor]]:
    """Return flat points, and the loss as a function of flat points and row numbers."""
    checks.floating("x", x)
    checks.batch("x", x)
    checks.finite("x", x)
    checks.same_rows("y", y, len(x))
    if joint:
        n_features = x[0].numel()
        loss = field.joint(n_features, feature_shape=x.shape[1:], target_shape=y.shape[1:])
        return join(x, y), lambda z, rows: loss(z)
    carried = field.at_label(x.shape[1:])
    return x.reshape(len(x), -1), lambda z, rows: carried(z, y[rows])


def mean_value_defect(
    loss: Callable[[Tensor, Tensor], Tensor],
    z: Float[Tensor, "probes dim"],
    radii: Sequence[float],
    n_directions: int = 128,
    *,
    generator: torch.Generator | None = None,
) -> Defect:
    """Estimate the mean-value defect at each probe and radius, with forward passes only; sees kinks.

    Directions come in pairs ``+xi, -xi``, which cancel the slope exactly. Without that the standard error
    is about a hundred times larger.

    Args:
        loss: ``loss(points, probe numbers)``, one value per point.
        z: Probes.
        radii: Radii of the spheres; all use the same directions.
        n_directions: Pairs of directions per probe, at least 2.
        generator: Source of the directions.
    """
    checks.count("n_directions", n_directions, 2, " (one pair has no standard error)")
    if len(radii) == 0:
        raise ValueError("radii is empty. Pass at least one radius, e.g. radii=(0.1, 0.5).")
    for radius in radii:
        checks.positive("Every radius", radius)
    random.check_generator(generator, z.device)
    probes, dim = z.shape
    blocks: list[Tensor] = []
    tops, rounding = [], []
    for rows in torch.arange(probes, device=z.device).split(max(_CHUNK // (n_directions * dim), 1)):
        at = z[rows]
        centre = loss(at, rows).double()
        rounding.append(_rounding(loss, at, rows, centre, generator))
        shape = (len(rows), n_directions, dim)
        normal = random.draw_normal(shape, dtype=z.dtype, device=z.device, generator=generator)
        xi = torch.nn.functional.normalize(normal, dim=2)
        pairs, steepest = [], []
        for radius in radii:
            up, down = _ends(loss, at, rows, radius * xi)
            pairs.append((up + down) / 2 - centre[:, None])
            steepest.append(_climb(loss, at, rows, radius, centre, xi, pairs[-1], up - down))
        blocks.append(torch.stack(pairs, 1))
        tops.append(torch.stack(steepest, 1))
    defects = torch.cat(blocks)
    mean = defects.mean(2)
    return Defect(
        mean,
        defects.std(2) / n_directions**0.5,
        torch.cat(rounding),
        dim,
        defects,
        torch.stack([2 * defects.amax(2) - mean, torch.cat(tops), defects.abs().mean(2)]).amax(0),
    )


def _climb(
    loss: Callable[[Tensor, Tensor], Tensor],
    at: Tensor,
    rows: Tensor,
    radius: float,
    centre: Tensor,
    xi: Float[Tensor, "probes pairs dim"],
    pairs: Float[Tensor, "probes pairs"],
    odd: Float[Tensor, "probes pairs"],
) -> Float[Tensor, " probes"]:
    """Return the largest difference of a pair that an ascent on the sphere reaches.

    It climbs the even part of the loss, ``l(z + r xi) + l(z - r xi)``, which no added slope changes: from the
    best pairs, from the direction in which pairs are largest, and from that in which the loss rises.
    """
    best = pairs.topk(min(_STARTS, pairs.shape[1]), 1).indices
    weight = (pairs - pairs.mean(1, keepdim=True)).to(xi)
    main = xi.gather(1, best[:, :1, None].expand(-1, -1, xi.shape[2]))
    for _ in range(_STEPS):  # the main axis of the pairs, by power iteration from the best of them
        along = (xi @ main.mT).squeeze(2)
        pull = ((weight.clamp_min(0) * along)[..., None] * xi).sum(1, keepdim=True)
        main = torch.nn.functional.normalize(pull, dim=2)
    slopes = [(w.to(xi)[..., None] * xi).sum(1, keepdim=True) for w in (odd, odd.sign())]
    place = torch.cat([xi.gather(1, best[..., None].expand(-1, -1, xi.shape[2])), main, *slopes], 1)
    place = torch.nn.functional.normalize(place, dim=2)
    angle = torch.full_like(place[..., :1], _ANGLE)
    height, slope = _even(loss, at, rows, radius, place)
    for _ in range(_STEPS):
        if slope is None:
            break
        tangent = slope - (slope * place).sum(2, keepdim=True) * place
        tangent = torch.nn.functional.normalize(tangent, dim=2)
        ahead = torch.nn.functional.normalize(angle.cos() * place + angle.sin() * tangent, dim=2)
        higher, next_slope = _even(loss, at, rows, radius, ahead)
        if next_slope is None:
            break
        better = (higher > height)[..., None]
        angle = torch.where(better, angle, angle / 3)
        place, slope = torch.where(better, ahead, place), torch.where(better, next_slope, slope)
        height = torch.maximum(height, higher)
    return height.amax(1) - centre


def _even(
    loss: Callable[[Tensor, Tensor], Tensor], at: Tensor, rows: Tensor, radius: float, xi: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the mean loss at both ends of each pair, and its gradient; None if the loss has none."""
    with torch.enable_grad():
        xi = xi.detach().requires_grad_()
        up, down = _ends(loss, at, rows, radius * xi)
        mean = (up + down) / 2
        if not mean.requires_grad:
            return mean, None
        (slope,) = torch.autograd.grad(mean.sum(), xi, allow_unused=True)
    usable = slope is not None and bool(slope.isfinite().all())
    return mean.detach(), slope if usable else None


def _ends(
    loss: Callable[[Tensor, Tensor], Tensor], at: Tensor, rows: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss at both ends of each offset ``(probes, directions, dim)``."""
    owner = rows.repeat_interleave(offset.shape[1])
    ends = [loss((at[:, None] + sign * offset).flatten(0, 1), owner) for sign in (1.0, -1.0)]
    return ends[0].double().reshape(offset.shape[:2]), ends[1].double().reshape(offset.shape[:2])


def _rounding(
    loss: Callable[..., Tensor],
    at: Tensor,
    rows: Tensor,
    centre: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """Return four times the largest change of the loss when coordinates move by one rounding unit."""
    unit = torch.finfo(at.dtype).eps
    shape = (_NEARBY, *at.shape)
    sign = random.draw_normal(shape, dtype=at.dtype, device=at.device, generator=generator).sign()
    near = loss((at * (1 + unit * sign)).flatten(0, 1), rows.repeat(_NEARBY)).double()
    return 4 * (near.reshape(_NEARBY, -1) - centre).abs().amax(0) + 4 * unit * centre.abs()
