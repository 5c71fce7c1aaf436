"""Charts as plotly figures; names are escaped, because plotly reads labels as HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from elliptica.report.judge import RESULTS, Difference, Measure

Figure = dict[str, Any]
#: Colours that stand out on light and dark pages.
COLOURS = ("#3b8ed0", "#e07b28", "#2aa783", "#c25fa8", "#b39422", "#7b7fe0")
_GREY, _RESULTS = "#8a919e", {"better": "#2aa783", "worse": "#e0632a"}
_LONGEST = 28


def escape(text: str) -> str:
    """Escape a label and cut a long one."""
    return html.escape(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…", quote=False)


def figure(data: list[dict[str, Any]], height: int = 320, **axes: Mapping[str, Any]) -> Figure:
    """Wrap traces in the layout that all charts share; ``axes`` are ``xaxis`` and ``yaxis``."""
    plain = {"automargin": True, "zeroline": False, "gridcolor": "rgba(128,128,128,.2)", "fixedrange": True}
    layout: Figure = {name: {**plain, **axis} for name, axis in axes.items()}
    clear = "rgba(0,0,0,0)"
    layout |= {"paper_bgcolor": clear, "plot_bgcolor": clear, "margin": {"l": 8, "r": 14, "t": 8, "b": 8}}
    layout |= {"height": height, "hovermode": "closest", "legend": {"orientation": "h", "y": 1.15}}
    return {"data": data, "layout": layout}


def _rows(names: Sequence[str]) -> dict[str, Any]:
    """Names along the side, the first one on top."""
    return {
        "tickvals": list(range(len(names))),
        "ticktext": [escape(name) + " " for name in names],
        "range": [len(names) - 0.4, -0.6],
        "showgrid": False,
    }


def _trace(x: Sequence[Any], y: Sequence[Any], mode: str, **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": mode, "x": list(x), "y": list(y), "showlegend": False, **more}


def dots(values: Mapping[str, Sequence[float]], means: Mapping[str, float], label: str) -> Figure:
    """Draw a dot for each fold or seed, and a bar for the score of the method."""
    traces = []
    for number, (method, numbers) in enumerate(values.items()):
        grey = {"color": _GREY, "size": 7, "opacity": 0.6}
        traces.append(_trace(numbers, [number] * len(numbers), "markers", marker=grey, hoverinfo="x"))
        bar = {"symbol": "line-ns", "size": 15, "line": {"width": 3, "color": COLOURS[0]}}
        traces.append(_trace([means[method]], [number], "markers", marker=bar, hoverinfo="x"))
    axes = {"xaxis": {"title": {"text": escape(label)}}, "yaxis": _rows(list(values))}
    return figure(traces, max(200, 70 + 27 * len(values)), **axes)


def intervals(differences: Sequence[Difference], names: Mapping[str, str], measure: Measure) -> Figure:
    """Draw every difference with its interval, as its table has it."""
    traces = [_trace([0, 0], [-0.6, len(differences) - 0.4], "lines", line={"color": _GREY, "width": 1})]
    for number, d in enumerate(differences):
        colour = _RESULTS.get(d.result, _GREY)
        mean, low, high = (measure.scale * value for value in (d.mean, d.low, d.high))
        if d.result != "unknown":
            line = {"color": colour, "width": 2}
            traces.append(_trace([low, high], [number] * 2, "lines", line=line, hoverinfo="skip"))
        text = html.escape(f"{names[d.method]}: {d.show(measure)} {RESULTS[d.result]}", quote=False)
        marker = {"color": colour, "size": 10}
        traces.append(_trace([mean], [number], "markers", marker=marker, hoverinfo="text", hovertext=[text]))
    side = "right" if measure.higher_is_better else "left"
    title = f"{escape(measure.label)}{',' * bool(measure.unit)}{measure.unit} ({side} is better)"
    rows = _rows([names[d.method] for d in differences])
    height = max(200, 70 + 27 * len(differences))
    return figure(traces, height, xaxis={"title": {"text": title}}, yaxis=rows)


def bars(values: Mapping[str, Mapping[str, float]], label: str) -> Figure:
    """Draw grouped bars: values by method and part."""
    traces = [
        {
            "type": "bar",
            "name": escape(method),
            "x": [escape(part) for part in parts],
            "y": list(parts.values()),
            "marker": {"color": COLOURS[number % len(COLOURS)]},
        }
        for number, (method, parts) in enumerate(values.items())
    ]
    return figure(traces, 340, xaxis={"type": "category"}, yaxis={"title": {"text": escape(label)}})


def lines(
    curves: Mapping[str, Sequence[Sequence[float | None]]], x_label: str, y_label: str, most: int = 120
) -> Figure:
    """Draw curves, several for each method, with at most this many points each."""
    traces = []
    for number, (method, several) in enumerate(curves.items()):
        for count, curve in enumerate(several):
            step = max(1, math.ceil(len(curve) / most))
            line = {"color": COLOURS[number % len(COLOURS)], "width": 1.5}
            more = {"name": escape(method), "legendgroup": str(number), "showlegend": not count}
            x, y = range(1, len(curve) + 1, step), curve[::step]
            traces.append(_trace(x, y, "lines", line=line) | more)
    return figure(
        traces, 340, xaxis={"title": {"text": escape(x_label)}}, yaxis={"title": {"text": escape(y_label)}}
    )
