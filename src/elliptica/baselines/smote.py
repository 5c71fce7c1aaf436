"""SMOTE: balance the classes of a table with points between neighbours (Chawla et al., JAIR 2002)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from elliptica._utils import checks
from elliptica._utils.extras import import_extra
from elliptica._utils.random import check_generator, compute_dtype


def smote_rows(
    x: Float[Tensor, "rows features"],
    y: Int[Tensor, " rows"],
    *,
    k_neighbors: int = 5,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "more features"], Int[Tensor, " more"]]:
    """Add rows to every class until each is as large as the largest (SMOTE).

    A new row is ``x_i + u * (x_j - x_i)`` with ``x_i`` a random row of the class, ``x_j`` a random one of its
    ``k_neighbors`` nearest neighbours within the class, and ``u`` uniform on [0, 1]. Call it once, before
    training; it uses imbalanced-learn. Distances are Euclidean, so scale the columns first. Do not use it for
    images or on validation data.

    Args:
        x: Inputs, one row per sample.
        y: Integer labels.
        k_neighbors: Number of neighbours; the authors use 5. A class of ``n`` rows has at most ``n - 1``
            neighbours, and uses these if they are fewer. A class of one row that has to grow raises an error.
        generator: Source of randomness for the seed of each class. None means torch's default
            generator.

    Returns:
        The original rows, followed by the new ones, class by class.

    Raises:
        ModuleNotFoundError: If imbalanced-learn is missing; the message names the extra.

    Example:
        >>> x, y = torch.randn(20, 3), torch.tensor([0] * 15 + [1] * 5)
        >>> x, y = smote_rows(x, y)  # doctest: +SKIP
        >>> y.bincount()  # doctest: +SKIP
        tensor([15, 15])
    """
    _check_table(x, y)
    checks.count("k_neighbors", k_neighbors)
    check_generator(generator, x.device)
    classes, counts = (v.tolist() for v in y.unique(return_counts=True))
    largest = max(counts)
    if x.shape[1] == 0:
        raise ValueError(f"x has no features, shape {tuple(x.shape)}, so its rows have no neighbours.")
    for label, count in zip(classes, counts, strict=True):
        if count == 1 < largest:
            raise ValueError(
                f"Class {label} has one row and so no neighbour, but would have to grow to "
                f"{largest} rows. Drop it, merge it with another class, or repeat its row."
            )
    if min(counts) == largest:
        return x.clone(), y.clone()
    make_sampler = import_extra("SMOTE", "lab", "imblearn.over_sampling").SMOTE
    rows, labels = x.detach().to(compute_dtype(x.dtype)).cpu().numpy(), y.cpu().numpy()
    more_x, more_y = [x], [y]
    for label, count in zip(classes, counts, strict=True):
        if count == largest:
            continue
        smote = make_sampler(
            sampling_strategy={label: largest},
            k_neighbors=min(k_neighbors, count - 1),
            random_state=_draw_seed(generator),
        )
        new = smote.fit_resample(rows, labels)[0][len(rows) :]  # new rows come last
        more_x.append(torch.as_tensor(new, dtype=x.dtype, device=x.device))
        more_y.append(y.new_full((len(new),), label))
    return torch.cat(more_x), torch.cat(more_y)


def _check_table(x: Tensor, y: Tensor) -> None:
    checks.floating("x", x)
    checks.batch("x", x)
    if x.ndim != 2:
        raise ValueError(
            f"x must be a table (rows, features), but has shape {tuple(x.shape)}. Neighbours of images mean "
            "little; use SMOTE on features of a network, or x.flatten(1) if you must."
        )
    checks.finite("x", x)
    checks.same_rows("y", y, len(x))
    if y.ndim != 1 or y.is_floating_point() or y.dtype == torch.bool:
        raise TypeError(
            f"y must hold one integer label per row, but has dtype {y.dtype} and shape {tuple(y.shape)}. Use "
            "y.long() for labels; SMOTE does not support real targets."
        )


def _draw_seed(generator: torch.Generator | None) -> int:
    """Draw a seed for imbalanced-learn, which takes no torch generator."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**31 - 1, (1,), device=device, generator=generator))
