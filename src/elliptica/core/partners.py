"""Choose where each bridge ends: the law P(Pi) of partners within a batch (paper: section 5.1).

A partner is the row number of another point of the batch. A point is its own partner only if no other point
is eligible: in a batch of one, or as the only member of the class that partners are restricted to. The bridge
is then a loop, i.e. noise around the point. `Ends` holds both ends of every bridge as rows
``(bridge * batch, *feature)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import check_generator, compute_dtype, draw_permutation, draw_uniform
from elliptica.core.inputs import Batch, named_inputs
from elliptica.core.types import Inputs

if TYPE_CHECKING:
    from elliptica.core.settings import BridgeSettings

Pairing = Literal["permutation", "inverse_distance", "nearest", "label_kernel"]
Among = Literal["all", "same_class", "other_class"]

PAIRINGS: tuple[Pairing, ...] = ("permutation", "inverse_distance", "nearest", "label_kernel")
AMONG: tuple[Among, ...] = ("all", "same_class", "other_class")

#: Points nearer than this fraction of the median distance count as duplicates.
DISTANCE_FLOOR = 0.01

#: Upper bound on the rounded distance of exact copies in `pairwise_distances`, over the largest distance.
_ROUNDING = 2**-22

#: Smaller powers are zero: float32 would round them to it, and 0**0 = 1 would make every row eligible.
_SMALLEST_POWER = 1e-30

#: Rows of a batch whose distances are used for that median.
_MEDIAN_ROWS = 8

#: Number of products from which float32 is worth trying, and the largest ratio of a squared length to the
#: squared distance of duplicates for which it is accurate enough. At that ratio the distance of duplicates is
#: off by about a percent, and the relative error falls with the square of the distance.
_LARGE, _LONGEST = 2**20, 4e4


#: Sizes whose squares, and those of their differences, float32 and float64 can hold.
SQUARABLE, _SQUARABLE_DOUBLE = (1e-6, 1e12), (1e-120, 1e120)


def check_measurable(name: str, x: object) -> None:
    """Raise unless ``x`` is a batch of points between which distances can be measured."""
    checks.tensor(name, x)
    assert isinstance(x, Tensor)
    if not x.is_floating_point():
        raise TypeError(
            f"{name} must be floating point, because distances are measured on it, but has dtype {x.dtype}. "
            f"Convert it with {name}.float()."
        )
    checks.batch(name, x)


def check_labels(labels: object, rows: int) -> None:
    """Raise unless there is one class for each row."""
    checks.same_rows("labels", labels, rows)  # type: ignore[arg-type]  # says so if it is not a tensor
    assert isinstance(labels, Tensor)
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        raise TypeError(
            f"labels must hold one class per row, shape ({rows},) and an integer dtype, but have shape "
            f"{tuple(labels.shape)} and dtype {labels.dtype}. Convert them, e.g. labels.flatten().long()."
        )


def check_power(power: float) -> None:
    """Raise unless an exponent of the inverse distance is at least zero; infinity means the nearest point."""
    checks.number("power", power)
    if power != math.inf:
        checks.nonnegative_number("power", power)


_WHOLE = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


def check_rows_of_data(index: object, rows: int, name: str = "index") -> None:
    """Raise unless ``index`` holds numbers of rows of a data set, counted from its start."""
    if not isinstance(index, Tensor) or index.ndim != 1 or index.dtype not in _WHOLE:
        got = type(index).__name__
        if isinstance(index, Tensor):
            got = f"shape {tuple(index.shape)} and dtype {index.dtype}"
        raise TypeError(
            f"{name} must be a tensor of row numbers, shape (batch,) and an integer dtype, but got {got}. "
            "Write e.g. torch.tensor([3, 7]), or mask.nonzero().flatten() for a mask."
        )
    checks.batch(name, index)
    low, high = (int(v) for v in index.aminmax())
    if low < 0 or high >= rows:
        raise ValueError(f"{name} must hold rows of the data set, 0..{rows - 1}, but spans {low} to {high}.")


def scale_exponent(largest: float, squarable: tuple[float, float] = SQUARABLE) -> int:
    """Return the power of two to divide coordinates by, so that they can be squared; 0 for ordinary ones.

    Laws of partners depend on ratios of distances alone, so the unit of the data does not matter.
    """
    low, high = squarable
    return 0 if largest == 0 or low <= largest <= high else math.frexp(largest)[1]


def in_squarable_units(x: Tensor) -> Tensor:
    """Return ``x`` in units, a power of two apart, in which its distances neither overflow nor vanish."""
    exponent = _exponent_of(x, SQUARABLE)
    if exponent == 0:
        return x
    return _times_power(x.to(torch.float32 if x.device.type == "mps" else torch.float64), -exponent).to(
        x.dtype
    )


def _exponent_of(x: Tensor, squarable: tuple[float, float]) -> int:
    if x.numel() == 0:
        return 0
    return scale_exponent(max(abs(float(v)) for v in x.detach().aminmax()), squarable)


def _times_power(x: Tensor, exponent: int) -> Tensor:
    """Multiply by a power of two, in two steps, because the power itself may overflow."""
    half = exponent // 2
    return x * 2.0**half * 2.0 ** (exponent - half)


def pairwise_distances(
    x: Float[Tensor, " n *feature"], to: Float[Tensor, " m *feature"] | None = None
) -> Float[Tensor, "n m"]:
    """Return Euclidean distances between flattened rows, by one matrix product in float64.

    The matrix form loses digits where distances are small compared with the spread of the data (clusters,
    outliers). In float32 this would give wrong neighbours.
    """
    return _measure(x, to, torch.float32 if x.device.type == "mps" else torch.float64)[0]


def _measure(x: Tensor, to: Tensor | None, precision: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return distances, computed in ``precision``, and the squared lengths of ``to`` about its mean."""
    rows = x.detach().reshape(len(x), -1).to(precision)
    others = rows if to is None else to.detach().reshape(len(to), -1).to(precision)
    centre = others.mean(0)  # centring shortens the rows, so |a|^2 + |b|^2 - 2 a.b cancels fewer digits
    others = others - centre
    rows = others if to is None else rows - centre
    length = others.square().sum(1)
    squares = torch.addmm(length, rows, others.t(), alpha=-2)
    squares.add_((length if to is None else rows.square().sum(1)).unsqueeze(1))
    dtype = compute_dtype(x.dtype)
    # clamp to finite values, because infinity means "not eligible"
    return squares.to(dtype).clamp_(0, torch.finfo(dtype).max).sqrt_(), length


def distance_floor(distances: Float[Tensor, "n n"]) -> float:
    """Return the distance below which two points count as duplicates: a fraction of the median distance.

    The median is taken over all pairs of a few rows, spread over the batch. If most pairs are copies (nearer
    than that fraction of the distance to the farthest tenth of the rows), it is taken over the other pairs.
    Exact copies never count, however many there are.
    """
    n = len(distances)
    tiny = torch.finfo(distances.dtype).tiny
    if n == 1:
        return tiny
    some = distances[:: max(1, n // _MEDIAN_ROWS)]
    rows = len(some)
    # the smallest of each row is the distance to itself
    half = some.flatten().kthvalue(rows + (rows * (n - 1) + 1) // 2).values
    # the ninth decile, not the maximum, so that one outlier does not matter
    wide = some.kthvalue(1 + max(1, int(0.9 * (n - 1))), dim=1).values.median()
    median, far, largest = torch.stack([half, wide, some.amax()]).tolist()
    copies = max(DISTANCE_FLOOR * far, _ROUNDING * largest)
    if median <= copies:
        apart = some[some > copies]
        median = float(apart.median()) if len(apart) else 0.0
    return max(DISTANCE_FLOOR * median, tiny)


def partner_weights(
    distances: Float[Tensor, "*group n m"], power: float, floor: float
) -> Float[Tensor, "*group n m"]:
    """Weight partners by ``1 / distance**power``; a duplicate counts as near as the nearest distinct point.

    Otherwise exact and near copies (nearer than ``floor``) would take all the mass, and a bridge to a copy
    is only noise around the point.

    Args:
        distances: Distances, infinite where a partner is not eligible.
        power: Exponent of the inverse distance.
        floor: Result of `distance_floor`.

    Returns:
        Weights relative to that of the nearest distinct point, so at most 1. In a row without a distinct
        partner all duplicates have weight 1; in a row without any partner all weights are zero.
    """
    if power < _SMALLEST_POWER:
        return torch.isfinite(distances).to(distances.dtype)
    # the clamp below caps duplicates at the weight of the nearest distinct point
    distinct = nn.functional.threshold(distances, floor, float("inf"))
    nearest = distinct.amin(-1, keepdim=True).clamp_max_(torch.finfo(distances.dtype).max)
    weights = (nearest / distances).clamp_max_(1.0)
    return weights if power == 1 else weights.pow_(power)


def target_distances(y: Float[Tensor, " n *target"], to: Float[Tensor, " m *target"]) -> Float[Tensor, "n m"]:
    """Return distances between targets in float64, exactly zero between equal targets."""
    double = torch.float32 if y.device.type == "mps" else torch.float64
    rows, others = (t.detach().reshape(len(t), -1).to(double) for t in (y, to))
    exponent = max(_exponent_of(rows, _SQUARABLE_DOUBLE), _exponent_of(others, _SQUARABLE_DOUBLE), key=abs)
    if exponent:
        rows, others = _times_power(rows, -exponent), _times_power(others, -exponent)
    distances = torch.cdist(rows, others, compute_mode="donot_use_mm_for_euclid_dist")
    return _times_power(distances, exponent) if exponent else distances


def kernel_weights(distances: Float[Tensor, "n m"], bandwidth: float) -> Float[Tensor, "n m"]:
    """Weight partners by ``exp(-distance**2 / (2 bandwidth**2))``, relative to the nearest (C-Mixup's law).

    Args:
        distances: Distances between targets, infinite where a partner is not eligible.
        bandwidth: Standard deviation of the kernel, in units of the targets.

    Returns:
        Weights of at most 1; all zero in a row without any partner.
    """
    squares = (distances / bandwidth).square_()  # subtracting the nearest keeps exp from underflowing
    largest = torch.finfo(squares.dtype).max
    nearest = squares.amin(1, keepdim=True)
    weights = ((nearest.clamp_max(largest) - squares) / 2).exp_()
    # if even the nearest overflows the kernel is so narrow that the nearest is certain
    least = distances.amin(1, keepdim=True)
    return torch.where((nearest > largest) & (distances == least), least.isfinite().to(weights), weights)


def exclude_classes(
    distances: Float[Tensor, "n m"],
    labels: Int[Tensor, " n"],
    others: Int[Tensor, " m"],
    among: Among,
) -> None:
    """Set distances to infinity, in place, between rows whose classes may not be paired."""
    if among != "all":
        same = labels[:, None] == others[None]
        distances.masked_fill_(~same if among == "same_class" else same, float("inf"))


def _eligible_distances(
    x: Tensor, labels: Tensor | None, among: Among, *, exact: bool = False
) -> tuple[Tensor, float]:
    """Return distances, infinite where not eligible, and the distance below which points are duplicates.

    Unless ``exact``, compute in float32 where that is faster and accurate enough.
    """
    checks.finite("x", x)
    x = in_squarable_units(x)
    is_enough = False
    if not exact and x.dtype != torch.float64 and len(x) * x.numel() > _LARGE:
        with torch.autocast(x.device.type, enabled=False):
            distances, length = _measure(x, None, torch.float32)
        floor = distance_floor(distances)
        is_enough = float(length.max()) < _LONGEST * floor**2
    if not is_enough:
        distances = pairwise_distances(x)
        floor = distance_floor(distances)
    distances.fill_diagonal_(float("inf"))
    _exclude_classes(distances, labels, among)
    return distances, floor


def _exclude_classes(distances: Tensor, labels: Tensor | None, among: Among) -> None:
    """Check the labels of a batch and exclude the pairs that ``among`` does not allow."""
    if among == "all":
        return
    if labels is None:
        raise ValueError(
            f'among={among!r} needs class labels, but none were given. Pass labels=..., or use among="all".'
        )
    check_labels(labels, len(distances))
    exclude_classes(distances, labels, labels, among)


def _weigh(x: Tensor, power: float, labels: Tensor | None, among: Among) -> Tensor:
    """Weight all partners of all rows by distance; a row without an eligible partner is its own."""
    checks.nonnegative_number("power", power)
    distances, floor = _eligible_distances(x, labels, among)
    return _with_loops(partner_weights(distances, power, floor), among)


def _weigh_targets(y: Tensor, bandwidth: float | None, labels: Tensor | None, among: Among) -> Tensor:
    """Weight all partners of all rows by the distance of their targets."""
    if not y.is_floating_point():
        raise TypeError(
            f'pairing="label_kernel" measures distances between real targets, but got dtype {y.dtype}. '
            'For classes use among="same_class".'
        )
    if bandwidth is None:
        hint = float(y.detach().reshape(len(y), -1).double().std(0).norm()) / 10
        raise ValueError(
            'pairing="label_kernel" needs bandwidth=, in units of the targets, but none was given. '
            f"Try bandwidth={hint:.2g}, a tenth of the standard deviation of these targets."
        )
    checks.positive("bandwidth", bandwidth)
    checks.finite("y", y)
    distances = target_distances(y, y).fill_diagonal_(float("inf"))
    _exclude_classes(distances, labels, among)
    return _with_loops(kernel_weights(distances, bandwidth), among)


def _with_loops(weights: Tensor, among: Among) -> Tensor:
    """Let a row without any eligible partner be its own partner."""
    if len(weights) == 1 or among != "all":
        weights.diagonal().copy_(weights.sum(1) == 0)
    return weights


def partner_probabilities(
    x: Float[Tensor, " batch *feature"],
    *,
    power: float = 1.0,
    labels: Int[Tensor, " batch"] | None = None,
    among: Among = "all",
) -> Float[Tensor, "batch batch"]:
    """Return the probability of each partner, proportional to ``1 / distance**power`` (paper: Algorithm 1).

    ``power=0`` is uniform, 1 is the paper's rule, and ``d - 2`` is the first-hit law of small balls in ``d``
    dimensions. In high dimension all distances are similar, and power 1 is close to uniform.

    Points nearer than a hundredth of the median distance count as duplicates. A duplicate is as likely as
    the row's nearest distinct point. This holds for any number of exact copies, and for near copies in up to
    nine tenths of the batch. A row without any eligible partner has probability 1 for itself.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [3.0]])
        >>> partner_probabilities(x)[0]
        tensor([0.0000, 0.7500, 0.2500])
    """
    checks.choice("among", among, AMONG)
    check_measurable("x", x)
    weights = _weigh(x, power, labels, among)
    return weights / weights.sum(1, keepdim=True)


def sample_partners(
    x: Shaped[Tensor, " batch *feature"],
    *,
    n_bridges: int = 1,
    pairing: Pairing = "permutation",
    power: float = 1.0,
    bandwidth: float | None = None,
    labels: Int[Tensor, " batch"] | None = None,
    among: Among = "all",
    generator: torch.Generator | None = None,
) -> Int[Tensor, "batch bridge"]:
    """Draw an end point for each bridge of each point from P(Pi) (paper: section 5.1, Algorithm 1).

    Args:
        x: Data on which distances are measured: inputs, or features of them; for ``"label_kernel"`` the
            targets.
        n_bridges: Bridges per point, each with its own partner.
        pairing: ``"permutation"`` draws a random cyclic order, so every point is a start once and an end
            once. ``"inverse_distance"`` draws independently, with probability proportional to
            ``1 / distance**power``. ``"nearest"`` is deterministic: bridge ``j`` ends at the ``j``-th nearest
            point. ``"label_kernel"`` draws independently, with probability proportional to
            ``exp(-distance**2 / (2 bandwidth**2))`` of real targets, as in C-Mixup.
        power: Exponent of the inverse distance.
        bandwidth: Standard deviation of the kernel on targets, in their units. Start with a tenth of their
            standard deviation.
        labels: Classes of the rows. Required if ``among`` is not ``"all"``.
        among: Which rows may be partners: ``"all"``, the ``"same_class"`` or the ``"other_class"``.
        generator: Source of randomness. None means torch's default generator.

    Returns:
        Row numbers. A batch of one is its own partner.

    Example:
        >>> sample_partners(torch.tensor([[0.0], [1.0], [5.0]]), pairing="nearest").flatten()
        tensor([1, 0, 1])
    """
    checks.choice("pairing", pairing, PAIRINGS)
    checks.choice("among", among, AMONG)
    checks.path_counts(2, n_bridges)
    if not isinstance(x, Tensor):
        raise TypeError(
            f"x must be a torch.Tensor, but got {type(x).__name__}. Convert it, e.g. torch.as_tensor(x)."
        )
    checks.batch("x", x)
    check_generator(generator, x.device)
    if pairing in ("inverse_distance", "nearest"):
        check_measurable("x", x)
    if labels is not None:
        check_labels(labels, len(x))
    return _draw(x, n_bridges, pairing, power, labels, among, generator, bandwidth)


def _draw(
    x: Tensor,
    n_bridges: int,
    pairing: Pairing,
    power: float,
    labels: Tensor | None,
    among: Among,
    generator: torch.Generator | None,
    bandwidth: float | None = None,
) -> Tensor:
    """Draw partners ``(batch, bridge)`` from checked arguments."""
    n = len(x)
    if n == 1:
        return torch.zeros(1, n_bridges, dtype=torch.long, device=x.device)
    if pairing == "permutation":
        if among == "all":
            return random_cycles(n, n_bridges, device=x.device, generator=generator)[1].t()
        if among == "same_class" and labels is not None:
            columns = [_cycle_within(labels, generator) for _ in range(n_bridges)]
            return torch.stack(columns, 1)
        power = 0.0  # between classes there may be no such permutation, so draw uniformly
    if pairing == "nearest":
        return _nearest(x, n_bridges, labels, among)
    if pairing == "label_kernel":
        weights = _weigh_targets(x, bandwidth, labels, among)
    else:
        weights = _weigh(x, power, labels, among)
    return draw_from(weights.cumsum(1), n_bridges, generator)


def draw_from(
    cumulative: Float[Tensor, "n m"], n_draws: int, generator: torch.Generator | None
) -> Int[Tensor, "n draw"]:
    """Draw from each row's cumulative weights by inverse transform."""
    u = draw_uniform((len(cumulative), n_draws), device=cumulative.device, generator=generator)
    # u stays strictly below the last value and is searched from the right, so that an entry of zero
    # probability (such as the row itself) is never picked, not even by rounding.
    u = u.to(cumulative.dtype).mul_(cumulative[:, -1:] * (1 - 2**-22))
    return torch.searchsorted(cumulative, u, right=True)


def random_cycles(
    n: int, count: int, *, device: torch.device, generator: torch.Generator | None
) -> tuple[Int[Tensor, "count n"], Int[Tensor, "count n"]]:
    """Draw ``count`` random orders of the rows; return them, and the row that follows each row.

    The row that follows (the first follows the last) is the partner. It is never the row itself, and every
    other row is equally likely. Entry ``i`` of the order is independent of the partner of row ``i``, because
    rotating the order changes the entry but not the partner. So the entry also serves as the row's stratum
    of time.
    """
    orders = [draw_permutation(n, device=device, generator=generator) for _ in range(count)]
    order = torch.stack(orders) if count > 1 else orders[0].unsqueeze(0)
    return order, torch.empty_like(order).scatter_(1, order, order.roll(-1, 1))


def _cycle_within(labels: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw a random cycle through each class; the only member of a class is its own partner."""
    order = draw_permutation(len(labels), device=labels.device, generator=generator)
    order = order[labels[order].argsort(stable=True)]
    grouped = labels[order]
    first = torch.ones_like(grouped, dtype=torch.bool)
    first[1:] = grouped[1:] != grouped[:-1]
    position = torch.arange(len(labels), device=labels.device)
    start_of_class = torch.where(first, position, 0).cummax(0).values
    following = torch.where(first.roll(-1), start_of_class, position + 1)
    partners = torch.empty_like(order)
    partners[order] = order[following]
    return partners


def _nearest(x: Tensor, n_bridges: int, labels: Tensor | None, among: Among) -> Tensor:
    """Return the ``n_bridges`` nearest eligible points of each row, repeated if there are fewer."""
    distances, _ = _eligible_distances(x, labels, among, exact=True)
    order = distances.argsort(dim=1, stable=True)
    count = torch.isfinite(distances).sum(1, keepdim=True)
    rank = torch.arange(n_bridges, device=x.device)[None] % count.clamp_min(1)
    own = torch.arange(len(x), device=x.device)[:, None]
    return torch.where(count > 0, order.gather(1, rank), own)


#: The far end of each pair when it is not in the batch: inputs, targets and, optionally, weights.
End = tuple[Inputs, Tensor] | tuple[Inputs, Tensor, Tensor]


@dataclass(frozen=True)
class Ends:
    """Far ends of the bridges: rows ``index`` of the batch, or points from the caller.

    Attributes:
        n_bridges: Bridges per point.
        index: Partner of each row, ``(bridge * batch,)``; None if the caller passed the far ends.
        places: Stratum of time of each row, ``(draw, batch)``, if drawing the partners produced one.
        x: Far ends of the inputs by name, if passed.
        y: Far ends of the encoded targets, if passed.
        weight: Sample weights of the far ends, if passed.
    """

    n_bridges: int
    index: Tensor | None
    places: Tensor | None = None
    x: Mapping[Hashable, Tensor] | None = None
    y: Tensor | None = None
    weight: Tensor | None = None

    def of(self, value: Tensor, far: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return both ends of ``value``; ``far`` is its far end, if the caller passed one."""
        start = value
        if self.n_bridges > 1:
            start = value.repeat(self.n_bridges, *[1] * (value.ndim - 1))
        if self.index is not None:
            return start, value.index_select(0, self.index)
        return start, start if far is None else far

    def of_input(self, name: Hashable, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return both ends of the input ``name``."""
        return self.of(value, None if self.x is None else self.x[name])


def choose_ends(
    batch: Batch,
    settings: BridgeSettings,
    partners: Tensor | None = None,
    end: End | None = None,
    features: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Ends:
    """Choose the far end of every bridge: from the caller, or drawn from P(Pi) (paper: Algorithm 1).

    Distances are measured on ``features`` if given, else on the input, or on the targets
    (``pairing="label_kernel"``). Antithetic bridges share a partner; with ``same_partner`` all bridges of a
    point do.
    """
    if end is not None:
        return _check_same(_ends_given(batch, settings, partners, end), settings)
    if partners is not None:
        return _check_same(ends_in_batch(partners, len(batch.targets), settings.n_bridges), settings)
    measured = batch.reference if features is None else features
    if settings.pairing == "label_kernel":
        check_real_targets(settings.target_space)
        measured = batch.targets
    count = settings.n_bridges // 2 if settings.antithetic else settings.n_bridges
    count = 1 if settings.same_partner else count
    places = None
    if settings.pairing == "permutation" and settings.among == "all":
        places, drawn = random_cycles(len(measured), count, device=measured.device, generator=generator)
    else:
        labels = None if settings.among == "all" else _classes(batch.y, settings)
        how = (settings.pairing, settings.power, labels, settings.among, generator, settings.bandwidth)
        drawn = _draw(measured, count, *how).t()
    if count < settings.n_bridges:
        drawn = drawn.repeat(settings.n_bridges // count, 1)
    return Ends(settings.n_bridges, drawn.reshape(-1), places)


def check_real_targets(space: str | None) -> None:
    """Raise if targets are not real, because the label kernel needs distances between them."""
    if space != "real":
        raise ValueError(
            'pairing="label_kernel" measures distances between real targets, but target_space is '
            f'{space!r}. For classes use among="same_class" with another pairing.'
        )


def _classes(y: Tensor, settings: BridgeSettings) -> Tensor:
    """Return one class per row, for partners that are restricted by class."""
    labels = y.argmax(1) if y.is_floating_point() and y.ndim > 1 else y
    if settings.target_space != "simplex" or labels.ndim != 1 or labels.is_floating_point():
        raise ValueError(
            f"among={settings.among!r} needs one class per row, but y has shape "
            f'{tuple(y.shape)} and dtype {y.dtype}. Use among="all".'
        )
    return labels


def _check_same(ends: Ends, settings: BridgeSettings) -> Ends:
    """Return the caller's ends; with ``same_partner``, raise if those of one point differ."""
    if not settings.same_partner:
        return ends
    rows = [ends.index] if ends.x is None or ends.y is None else [*ends.x.values(), ends.y]
    for far in rows:
        assert far is not None
        each = far.unflatten(0, (ends.n_bridges, -1))
        if not bool((each == each[:1]).all()):
            given = "partners" if ends.x is None else "end"
            raise ValueError(
                'With same_partner=True, which weighting="multiplicative" implies, all bridges of a point '
                f"must end at the same partner, but those in {given} differ. Pass one per row, without the "
                "bridge axis."
            )
    return ends


def _ends_given(batch: Batch, settings: BridgeSettings, partners: Tensor | None, end: End) -> Ends:
    """Check and return the far ends from the caller."""
    if partners is not None:
        raise ValueError("Got both partners and end. Pass partners (row numbers of the batch) or end.")
    ends = ends_given(
        end,
        batch.inputs,
        batch.targets,
        settings.n_bridges,
        batch.encode,
        1 if settings.target_space == "simplex" else 0,
    )
    if ends.weight is not None and batch.weight is None:
        raise ValueError("end has sample weights, but the batch has none. Pass sample_weight= too.")
    if ends.weight is not None and batch.weight is not None and ends.weight.dtype != batch.weight.dtype:
        raise TypeError(
            f"end's sample_weight has dtype {ends.weight.dtype}, but sample_weight has {batch.weight.dtype}. "
            f"Convert it with .to({batch.weight.dtype})."
        )
    return ends


def ends_in_batch(partners: Tensor, rows: int, n_bridges: int) -> Ends:
    """Make ends from rows of the batch; ``partners`` is ``(batch, bridge)`` or ``(batch,)``."""
    if not isinstance(partners, Tensor):
        raise TypeError(
            f"partners must be a torch.Tensor of row numbers, but got {type(partners).__name__}. "
            "Convert it with torch.as_tensor(partners)."
        )
    if partners.dtype not in _WHOLE:
        raise TypeError(
            f"partners must hold row numbers, but has dtype {partners.dtype}. "
            "Convert it with partners.long()."
        )
    if partners.ndim == 1:
        partners = partners[:, None].expand(-1, n_bridges)
    if tuple(partners.shape) != (rows, n_bridges):
        raise ValueError(
            f"partners must have shape (batch, n_bridges) = ({rows}, {n_bridges}), but has "
            f"{tuple(partners.shape)}."
        )
    low, high = (int(v) for v in partners.aminmax())
    if low < 0 or high >= rows:
        raise ValueError(
            f"partners must be rows of this batch, 0..{rows - 1}, but range from {low} to {high}. For rows "
            "of a data set (from a PartnerTable) pass end=(x[partner], y[partner])."
        )
    return Ends(n_bridges, partners.t().reshape(-1).long())  # torch selects rows by int32 and int64 alone


def ends_given(
    end: End,
    inputs: Mapping[Hashable, Tensor],
    targets: Tensor,
    n_bridges: int,
    encode: Callable[[Tensor], Tensor],
    label_axes: int,
) -> Ends:
    """Make ends from points that need not be in the batch.

    ``encode`` turns their targets into points, which adds ``label_axes`` axes to integer labels.
    """
    if not isinstance(end, tuple) or len(end) not in (2, 3):
        raise TypeError(
            "end must be a tuple (x, y) or (x, y, sample_weight) of the far ends, but got "
            f"{type(end).__name__}."
        )
    checks.tensor("end's y", end[1])
    far_inputs = named_inputs(end[0])
    if list(far_inputs) != list(inputs):
        raise ValueError(
            f"end must have the same inputs as x ({', '.join(map(repr, inputs))}), but has "
            f"{', '.join(map(repr, far_inputs))}."
        )
    rows = len(targets)
    x = {
        name: _far_rows(f"end's x[{name!r}]", far, inputs[name].shape, n_bridges, inputs[name].dtype)
        for name, far in far_inputs.items()
    }
    labels = end[1]
    axes = targets.ndim - (0 if labels.is_floating_point() or labels.dtype == torch.bool else label_axes)
    if labels.ndim == axes + 1 and labels.shape[:2] == (rows, n_bridges):  # a target for each bridge
        y = encode(labels.flatten(0, 1)).unflatten(0, (rows, n_bridges))
    else:
        y = encode(labels)
    weight = None
    if len(end) == 3:
        checks.tensor("end's sample_weight", end[2])
        checks.nonnegative("end's sample_weight", end[2])
        weight = _far_rows("end's sample_weight", end[2], targets.shape[:1], n_bridges)
    far_y = _far_rows("end's y", y, targets.shape, n_bridges)
    return Ends(n_bridges, None, x=x, y=far_y, weight=weight)


def _far_rows(
    name: str, far: Tensor, shape: torch.Size, n_bridges: int, dtype: torch.dtype | None = None
) -> Tensor:
    """Arrange far ends as rows ``(bridge * batch, *feature)``."""
    checks.tensor(name, far)
    checks.finite(name, far)
    if dtype is not None and far.dtype != dtype:
        raise TypeError(f"{name} has dtype {far.dtype}, but x has {dtype}. Convert it with .to({dtype}).")
    with_bridges = (shape[0], n_bridges, *shape[1:])
    if tuple(far.shape) == with_bridges:
        return far.transpose(0, 1).flatten(0, 1)
    if far.shape == shape:
        return far.repeat(n_bridges, *[1] * (far.ndim - 1))
    raise ValueError(f"{name} must have shape {with_bridges} or {tuple(shape)}, but has {tuple(far.shape)}.")
