"""The result of a solver: the landscape at each query, its uncertainty, and how the walks ended."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from elliptica.core.types import EllipticWarning
from elliptica.landscape.walks import few_carriers, few_deciding

#: If a smaller share of the walks ends on the data, the outer boundary determines the value.
FEW_HITS = 0.05
#: If the effective share of walks is smaller, a few walks dominate weighted averages.
FEW_EFFECTIVE = 0.1


@dataclass(frozen=True)
class LandscapeEstimate:
    """The landscape ``u`` at a set of queries, with standard errors and diagnostics.

    Attributes:
        value: Estimate of ``u``, one per query. Walks that did not finish are skipped.
        stderr: Its standard error; zero for a deterministic solver. It allows for boundary values that
            few or no walks met: it is at least what it would be if four more walks had ended, two each,
            at the least and the largest known value. ``notes`` say where that matters.
        bias: Distance between the expected value of the estimate and ``u``; see ``bias_kind``. Infinite
            where more than 1 % of the walks are unfinished, because nothing is known about those.
        bias_kind: ``"bound"`` (proved, given exact arithmetic) or ``"estimate"`` (its size, not a bound).
        hit_share: Share of walks that ended on a ball around a data point (0 without balls).
        outer_share: Share that ended on the outer boundary.
        unfinished_share: Share that ran out of steps. These are never projected to a boundary.
        effective: Effective number of walks behind each value; fewer than ``n_walks`` under a drift.
        exit_time: Mean time to the boundary for the given ``diffusion``; None if the solver has none.
        exit_time_stderr: Its standard error.
        n_walks: Walks per query; 0 for a deterministic solver.
        mean_steps: Steps of an average walk.
        solver: Name of the solver.
        notes: Remarks and cautions about the result, as sentences.
    """

    value: Float[Tensor, " queries"]
    stderr: Float[Tensor, " queries"]
    bias: Float[Tensor, " queries"]
    bias_kind: str
    hit_share: Float[Tensor, " queries"]
    outer_share: Float[Tensor, " queries"]
    unfinished_share: Float[Tensor, " queries"]
    effective: Float[Tensor, " queries"]
    n_walks: int
    mean_steps: float
    solver: str
    exit_time: Float[Tensor, " queries"] | None = None
    exit_time_stderr: Float[Tensor, " queries"] | None = None
    notes: tuple[str, ...] = field(default=())

    def interval(self, z: float = 1.96) -> tuple[Tensor, Tensor]:
        """Return the value minus and plus ``z`` standard errors and the bias."""
        reach = z * self.stderr + self.bias
        return self.value - reach, self.value + reach

    def columns(self) -> dict[str, tuple[Tensor, str]]:
        """Return the printed columns: name, values and format of each."""
        numbers = {"u": self.value, "s.e.": self.stderr, "bias": self.bias}
        shares = {"on data": self.hit_share, "outside": self.outer_share, "unfinished": self.unfinished_share}
        formats = ((numbers, ".4g"), (shares, ".1%"))
        return {name: (values, form) for part, form in formats for name, values in part.items()}

    def __len__(self) -> int:
        return len(self.value)

    def __str__(self) -> str:
        """Format a table of the first ten queries, then the notes."""
        walks = f", {self.n_walks} walks each" if self.n_walks else ""
        lines = [f"landscape at {len(self)} queries by {self.solver}{walks} (bias: {self.bias_kind})"]
        columns = self.columns()
        widths = [max(11, len(name) + 2) for name in columns]
        lines.append("  " + "".join(name.rjust(width) for name, width in zip(columns, widths, strict=True)))
        for i in range(min(len(self), 10)):
            cells = (f"{float(values[i]):{form}}" for values, form in columns.values())
            lines.append("  " + "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))
        if len(self) > 10:
            lines.append(f"  ... and {len(self) - 10} more")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def judge(
    *,
    has_balls: bool,
    dim: int,
    hit_share: Tensor,
    unfinished_share: Tensor,
    effective: Tensor,
    n_walks: int,
    max_steps: int | None,
    in_ball: Tensor | None = None,
    widened: Tensor | None = None,
    carriers: Tensor | None = None,
    deciding: Tensor | None = None,
    unknown: Tensor | None = None,
) -> tuple[str, ...]:
    """Return remarks on the limits of an estimate; serious ones are also raised as warnings."""
    notes, remarks = [], []
    if in_ball is not None and bool(in_ball.any()):
        remarks.append(
            f"{int(in_ball.sum())} of {len(hit_share)} queries lie in a ball around a data point, where the "
            "value is that of the ball and nothing is estimated. If these are most queries, use smaller "
            "balls (epsilon, fraction); scale features of different units first."
        )
    few = int((hit_share < FEW_HITS).sum())
    if has_balls and few:
        notes.append(
            f"At {few} of {len(hit_share)} queries fewer than {FEW_HITS:.0%} of the walks meet a ball around "
            f"a data point ({dim} dimensions), so the values there come from the outer boundary and not from "
            "the data. Work in fewer dimensions (PCA, features), use larger balls, "
            "or reflecting walls."
        )
    elif has_balls and float(hit_share.median()) < 0.5:
        remarks.append(
            f"At half of the queries {float(1 - hit_share.median()):.0%} or more of the walks end on the "
            f"outer boundary ({dim} dimensions). The result is largely what `value` returns "
            "there, not the losses at the data."
        )
    lost = int((unfinished_share > 0.01).sum())
    if lost:
        notes.append(
            f"At {lost} of {len(unfinished_share)} queries more than 1 % of the walks ran out of steps "
            f"(max_steps={max_steps}) and are skipped, so the values there are biased. Raise max_steps."
        )
    thin = int((effective < FEW_EFFECTIVE * n_walks).sum())
    if n_walks and thin:
        notes.append(
            f"At {thin} of {len(effective)} queries the effective number of walks is below "
            f"{FEW_EFFECTIVE:.0%} of {n_walks}: a few walks dominate the weights of the drift. Raise "
            'n_walks, or let half of the walks follow the drift (drift="mixture").'
        )
    least = few_carriers(n_walks)
    carried = 0 if carriers is None else int((carriers < least).sum())
    notes += _judge_walks(carriers, deciding, unknown, least, few_deciding(n_walks))
    wide = 0 if widened is None else int(widened.sum())
    if wide > carried:
        rest = (
            ", and the intervals are conservative. A value that no walk met is not included."
            if carriers is None
            else ". Against the drift they may still be too small; compare with more walks."
        )
        remarks.append(
            f"At {wide} of {len(effective)} queries few or no walks met some of the boundary's values. "
            f"Standard errors there allow for those seen elsewhere{rest}"
        )
    for note in notes:
        warnings.warn(note, EllipticWarning, stacklevel=4)
    return (*remarks, *notes)


def _judge_walks(
    carriers: Tensor | None,
    deciding: Tensor | None,
    unknown: Tensor | None,
    least: float,
    least_deciding: float,
) -> list[str]:
    """Return serious remarks on values, spreads and zeros that depend on too few walks."""
    notes = []
    if carriers is not None and bool((carriers < least).any()):
        notes.append(
            f"At {int((carriers < least).sum())} of {len(carriers)} queries fewer than {least:.0f} walks "
            "determine the value: against this drift hardly any walk reaches the boundary values that "
            "matter. Standard errors there allow for all values that were met, so they are wide. Raise "
            "n_walks, or use a smaller domain."
        )
    if carriers is not None and deciding is not None:
        scarce = (deciding < least_deciding) & (carriers >= least) & (deciding > 0)
        if bool(scarce.any()):
            notes.append(
                f"At {int(scarce.sum())} of {len(carriers)} queries a few walks against the drift determine "
                "the value and its standard error. Standard errors there allow for more such walks, with an "
                "estimate of their values, but the intervals are not reliable. Raise n_walks until the "
                "values agree."
            )
    if unknown is not None and bool(unknown.any()):
        notes.append(
            f"At {int(unknown.sum())} of {len(unknown)} queries all walks gave the same value, and no "
            "other was seen anywhere on the boundary. The standard error of zero there means that nothing is "
            "known about rarer values. "
            "Raise n_walks; if the value is the same everywhere, pass it as a number."
        )
    return notes
