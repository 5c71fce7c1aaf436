"""The demo's table as text cells, for the terminal and the page alike: one column per method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from elliptica.demo.settings import NAMES
from elliptica.demo.summary import MethodSummary, Spread


class Section(NamedTuple):
    """Rows that belong together: a title, and for each row its name and one cell per method."""

    title: str
    rows: list[tuple[str, list[str]]]


def table_header(summaries: Sequence[MethodSummary]) -> list[str]:
    """Names of the methods."""
    return [NAMES[s.method] for s in summaries]


def table_sections(summaries: Sequence[MethodSummary]) -> list[Section]:
    """All numbers that are reported, mean ± sample deviation over seeds."""

    def row(name: str, cell: Callable[[MethodSummary], object]) -> tuple[str, list[str]]:
        return name, [str(cell(s)) for s in summaries]

    return [
        Section(
            "On the boundary",
            [row("mean loss", lambda s: s.boundary_mean), row("largest loss", lambda s: s.boundary_max)],
        ),
        Section(
            "Inside the moons",
            [
                row("mean loss", lambda s: s.inside_mean),
                row("largest loss", lambda s: s.inside_max),
                row("maximum principle", lambda s: f"{s.maximum_held} of {s.n_seeds}"),
                row("minimum principle", lambda s: f"{s.minimum_held} of {s.n_seeds}"),
                row("accuracy, %", lambda s: _percent(s.accuracy)),
            ],
        ),
        Section(
            "Between the data",
            [
                row("mean loss", lambda s: s.between_mean),
                row("largest loss", lambda s: s.between_max),
                row("share above, %", lambda s: _percent(s.between_above)),
                row("maximum principle", lambda s: f"{s.between_held} of {s.n_seeds}"),
            ],
        ),
        Section(
            "Cost of one run",
            [
                row("evaluations", lambda s: f"{s.n_evaluations:,}"),
                row("seconds", lambda s: s.seconds),
            ],
        ),
    ]


def _percent(share: Spread) -> Spread:
    return Spread(100 * share.mean, None if share.deviation is None else 100 * share.deviation)
