"""Charts as SVG in the colours of the page: marks on a plane, or beside a column of names."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elliptica.report.judge import RESULTS, Difference, Measure

#: Colours that stand out on light and dark pages.
COLOURS = ("#3b8ed0", "#e07b28", "#2aa783", "#c25fa8", "#b39422", "#7b7fe0")
GREY, _RESULTS = "#8a919e", {"better": "#2aa783", "worse": "#e0632a"}
#: Units of the drawing: its width, the height of a plane and of a row, the width of a letter.
_WIDTH, _HEIGHT, _ROW, _LETTER = 420, 250, 27, 7.7
_LONGEST, _LONGEST_LABEL, _MOST_TICKS = 26, 50, 5


@dataclass(frozen=True)
class Marks:
    """Dots, or a line through them; a line ends at numbers that are not finite."""

    x: Sequence[float | None]
    y: Sequence[float | None]
    colour: str = COLOURS[0]
    width: float = 8.0  # of a dot, or of the line
    is_line: bool = False
    name: str = ""  # in the legend; marks of one name have one colour
    text: str = ""  # shown below the mouse


def draw(marks: Sequence[Marks], x_label: str, y_label: str = "", names: Sequence[str] = ()) -> str:
    """Draw marks; with ``names``, y counts these rows from the top, otherwise it is an axis upwards."""
    left = 12 + _LETTER * max(map(len, map(_cut, names))) if names else 52.0
    legend, top = _legend({mark.name: mark.colour for mark in marks if mark.name}, 18.0 if y_label else 6.0)
    bottom = top + (_ROW * len(names) if names else _HEIGHT)
    low, high = _range(number for mark in marks for number in mark.x)
    rows = (len(names) - 0.5, -0.5) if names else _range(number for mark in marks for number in mark.y)

    def x(value: float) -> float:
        return left + (_WIDTH - 12 - left) * (value - low) / (high - low)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - rows[0]) / (rows[1] - rows[0])

    parts = [*legend, _text(0, 12, _cut(y_label, _LONGEST_LABEL))]
    for value in _ticks(low, high):
        parts.append(_path(f"M{x(value):.1f} {top}V{bottom}", "var(--line)", 1))
        parts.append(_text(x(value), bottom + 16, f"{value:,.6g}", "middle"))
    for value in [] if names else _ticks(*rows):
        parts.append(_path(f"M{left} {y(value):.1f}H{_WIDTH - 12}", "var(--line)", 1))
        parts.append(_text(left - 6, y(value) + 4, f"{value:,.6g}", "end"))
    parts += [_text(left - 10, y(row) + 4, _cut(name), "end") for row, name in enumerate(names)]
    parts.append(_text(_WIDTH - 12, bottom + 36, _cut(x_label, _LONGEST_LABEL), "end"))
    for mark in marks:
        points = [
            f"{x(a):.1f} {y(b):.1f}" if a is not None and b is not None and math.isfinite(a + b) else ""
            for a, b in zip(mark.x, mark.y, strict=True)
        ]
        runs = [f"{'L' if i and points[i - 1] else 'M'}{each}" for i, each in enumerate(points) if each]
        steps = runs if mark.is_line else [f"M{each}h0" for each in points if each]
        parts.append(_path("".join(steps), mark.colour, mark.width, mark.text))
    return f'<svg viewBox="0 0 {_WIDTH} {bottom + 44:.0f}">{"".join(parts)}</svg>'


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>' if text else ""


def _path(steps: str, colour: str, width: float, text: str = "") -> str:
    title = f"<title>{html.escape(text)}</title>" if text else ""
    return f'<path d="{steps}" stroke="{colour}" stroke-width="{width:g}">{title}</path>'


def _legend(colours: Mapping[str, str], top: float) -> tuple[list[str], float]:
    """Return a dot and a text for each name, in lines, and the height below them."""
    parts, x = [], 0.0
    for name, colour in colours.items():
        width = 26 + _LETTER * len(_cut(name))
        x, top = (0.0, top + 20) if x + width > _WIDTH else (x, top)
        parts += [_path(f"M{x + 6} {top + 6}h0", colour, 9), _text(x + 15, top + 10, _cut(name))]
        x += width
    return parts, top + 24 * bool(colours)


def _range(values: Iterable[float | None]) -> tuple[float, float]:
    """Return the least and the largest finite number, with a margin."""
    finite = [value for value in values if value is not None and math.isfinite(value)] or [0.0]
    margin = 0.05 * (max(finite) - min(finite)) or 0.5 * abs(finite[0]) or 1.0
    return min(finite) - margin, max(finite) + margin


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers in a range."""
    power = 10.0 ** math.floor(math.log10((high - low) / _MOST_TICKS))
    step = next(power * factor for factor in (1, 2, 5, 10) if high - low <= _MOST_TICKS * power * factor)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def intervals(differences: Sequence[Difference], names: Mapping[str, str], measure: Measure) -> str:
    """Draw every difference with its interval, as its table has it."""
    marks = [Marks([0, 0], [-0.5, len(differences) - 0.5], GREY, 1, is_line=True)]
    for row, d in enumerate(differences):
        colour = _RESULTS.get(d.result, GREY)
        mean, low, high = (measure.scale * value for value in (d.mean, d.low, d.high))
        if d.result != "unknown":
            marks.append(Marks([low, high], [row, row], colour, 2, is_line=True))
        text = f"{names[d.method]}: {d.show(measure)} {RESULTS[d.result]}"
        marks.append(Marks([mean], [row], colour, 10, text=text))
    side = "right" if measure.higher_is_better else "left"
    title = f"{measure.label}{',' * bool(measure.unit)}{measure.unit} ({side} is better)"
    return draw(marks, title, names=[names[d.method] for d in differences])


def agreement(x: Sequence[float], y: Sequence[float], x_label: str, y_label: str, width: float = 4) -> str:
    """Draw dots around the line on which both axes agree."""
    ends = [min(*x, *y), max(*x, *y)]
    return draw([Marks(ends, ends, GREY, 1, is_line=True), Marks(x, y, width=width)], x_label, y_label)
