"""Small charts for the cards of the index, as inline SVG that follows the colours of the page."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from elliptica.report.content import Study, mean_interval
from elliptica.report.payload import highlighted

_WIDTH, _ROW, _LEFT, _RIGHT = 330, 19, 140, 12
#: Rows at most, and letters of their names.
_ROWS, _LETTERS = 6, 18


@dataclass(frozen=True)
class Mark:
    """One row of a chart: a value with an interval, NaN limits where there is none.

    ``is_own`` marks elliptic training, which has a colour of its own.
    """

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    is_own: bool = False


def is_own(name: str) -> bool:
    """Whether a method is elliptic training, by its name."""
    words = ("elliptic", "marginal", "green", "path", "screened")
    return any(word in name.lower() for word in words)


def study_marks(study: Study) -> list[Mark]:
    """The first measure of a study: mean and interval over seeds of the methods that stand out."""
    values = study.values[study.measures[0].name]
    shown = highlighted(study, _ROWS)
    ordered = [method for method in study.methods if method in shown and values.get(method)]
    return [
        Mark(
            method,
            *mean_interval(list(values[method].values()), test_share=study.test_share),
            method in study.own,
        )
        for method in ordered
    ]


def draw_marks(marks: Sequence[Mark], label: str) -> str:
    """Dots with intervals, one row for each method, as SVG.

    Args:
        marks: At most six are drawn.
        label: What the values are, for those who cannot see the chart, and below it.
    """
    marks = [mark for mark in marks if math.isfinite(mark.value)][:_ROWS]
    if not marks:
        return ""
    ends = [v for m in marks for v in (m.value, m.low, m.high) if math.isfinite(v)]
    low, high = min(ends), max(ends)
    span = high - low or abs(high) or 1.0

    def x(value: float) -> str:
        return f"{_LEFT + (value - low) / span * (_WIDTH - _LEFT - _RIGHT):.1f}"

    height = _ROW * len(marks) + 20
    told = "; ".join(f"{mark.name} {_short(mark.value)}" for mark in marks)
    parts = [
        f'<svg class="thumb" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{html.escape(f"{label}: {told}")}">'
    ]
    for row, mark in enumerate(marks):
        y = _ROW * row + 12
        name = mark.name if len(mark.name) <= _LETTERS else f"{mark.name[: _LETTERS - 1]}…"
        kind = "own" if mark.is_own else "other"
        parts.append(f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{html.escape(name)}</text>')
        if math.isfinite(mark.low) and math.isfinite(mark.high):
            parts.append(f'<line class="{kind}" x1="{x(mark.low)}" x2="{x(mark.high)}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="{kind}" cx="{x(mark.value)}" cy="{y}" r="4"/>')
    y = height - 4
    parts.append(f'<text class="axis" x="{_LEFT}" y="{y}">{_short(low)}</text>')
    parts.append(
        f'<text class="axis" x="{_WIDTH - _RIGHT}" y="{y}" text-anchor="end">{_short(high)}</text></svg>'
    )
    return "".join(parts)


def _short(value: float) -> str:
    return f"{value:.3g}".replace("-", "\u2212")
