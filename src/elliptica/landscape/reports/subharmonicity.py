"""Is the loss subharmonic, so that the maximum principle reaches the network? A test at each probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from elliptica._statistics import check_level, holm, student_quantile, student_tail
from elliptica.landscape.loss import LossField
from elliptica.landscape.reports._base import Report, notes_lines, table
from elliptica.landscape.reports.defect import Defect, mean_value_defect, point_loss

#: Probability with which the stated smallest failure would have been found.
_POWER = 0.9


@dataclass(frozen=True)
class SubharmonicityReport(Report):
    """What `subharmonicity_report` found.

    Attributes:
        radii: Radii of the spheres.
        defect: Mean over the sphere minus the value at its centre, per probe and radius; below zero
            subharmonicity fails at that scale.
        stderr: Its standard error.
        laplacian: ``2 n defect / radius^2``.
        laplacian_stderr: Its standard error.
        adjusted_p: One-sided p-values of "the defect is at least zero", after Holm's correction over all
            probes and radii.
        failed: Probes where subharmonicity is rejected at some radius, most negative Laplacian first.
        detectable: Per radius, the Laplacian (negative) that would have been found with probability
            90 % at the median probe.
        alpha: Level of the family of tests.
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
        """No probe was rejected."""
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
                "Where it fails the loss may exceed every loss around it: the maximum principle says nothing "
                "about the network there."
                if self.failed
                else "At these probes and scales only. A weaker failure than the one in the last column "
                "would have gone unnoticed."
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
    for small radii: in float32 rounding, which the test allows for, hides small defects.

    Args:
        field: Loss of the model.
        x: Inputs of the probes.
        y: Their targets.
        radii: Scales to look at, in the units of ``x``.
        n_directions: Pairs of directions per probe: twice as many forward passes per radius.
        joint: Move the (real) targets along with the inputs, as the paper's diffusion does.
        alpha: Probability of naming any probe wrongly, all tests together.
        generator: Source of the directions.
    """
    check_level("alpha", alpha)
    radii = [radii] if isinstance(radii, int | float) else radii
    z, loss = point_loss(field, x, y, joint)
    found = mean_value_defect(loss, z, radii, n_directions, generator=generator)
    adjusted = holm(_p_values(found, n_directions))
    laplacian, error = found.laplacian(radii)
    bad = (adjusted < alpha).any(1).nonzero().flatten()
    order = torch.where(adjusted < alpha, laplacian, torch.inf).amin(1)[bad].argsort()
    reach = student_quantile(1 - alpha / adjusted.numel(), n_directions - 1)
    reach += float(torch.special.ndtri(torch.tensor(_POWER, dtype=torch.float64)))
    factor = laplacian.new_tensor([2 * found.dim / r**2 for r in radii])
    smallest = (reach * error + found.rounding[:, None] * factor).median(0).values
    return SubharmonicityReport(
        tuple(float(r) for r in radii),
        found.mean,
        found.stderr,
        laplacian,
        error,
        adjusted,
        tuple(bad[order].tolist()),
        tuple((-smallest).tolist()),
        alpha,
        n_directions,
        joint,
    )


def _p_values(found: Defect, n_directions: int) -> Tensor:
    """One-sided Student tests of ``defect + rounding >= 0``."""
    shifted = found.mean + found.rounding[:, None]
    values = []
    for mean, error in zip(shifted.flatten().tolist(), found.stderr.flatten().tolist(), strict=True):
        if error > 0:
            values.append(student_tail(mean / error, n_directions - 1))
        else:
            values.append(0.0 if mean < 0 else 1.0)
    return torch.tensor(values, dtype=torch.float64, device=found.mean.device).reshape(shifted.shape)
