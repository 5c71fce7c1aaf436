"""Write the files of the demo: its record, its figure, and a self-contained page with 3D surfaces."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.offline import get_plotlyjs

from elliptica._utils.files import replacing, write_atomically
from elliptica.lab.demo.figures import ABOVE, APART, BOUNDARY, INSIDE, TOP, draw_figure
from elliptica.lab.demo.results import (
    TABLE_HEADER,
    MethodSummary,
    find,
    headline,
    summarise,
    table_rows,
    verdict,
)
from elliptica.lab.demo.study import Exhibit, Study, moon_surfaces, write_record
from elliptica.lab.demo.training import METHODS, NAMES, DemoSettings, notes

_N_BOUNDARY, _N_INSIDE = 1600, 250
#: Colours of heights, which are multiples of the boundary's largest loss: blue up to one, red above.
_COLOURS = [
    (0.0, "#e3eef9"),
    (1 / TOP, "#5aa2cf"),
    (1 / TOP + 1e-3, "#ef4a36"),
    (1.0, "#a50f15"),
]


def write_files(study: Study, out: Path) -> list[Path]:
    """Write the record and, once each method has been trained, the figures; return the paths."""
    out.mkdir(parents=True, exist_ok=True)
    results, image, page = (out / name for name in ("results.json", "two_moons.png", "two_moons.html"))
    write_record(study, results)
    if len(study.exhibits) < len(METHODS):
        return [results]
    summaries = summarise(study.runs)
    with replacing(image) as part:
        draw_figure(summaries, study.exhibits, study.settings).savefig(part, format="png", dpi=150)
    exhibits = [study.exhibits[summary.method] for summary in summaries]
    findings = find(summaries, study.untrained, study.settings)
    write_atomically(page, draw_page(summaries, exhibits, study.settings, findings))
    return [image, page, results]


def draw_page(
    summaries: Sequence[MethodSummary],
    exhibits: Sequence[Exhibit],
    settings: DemoSettings,
    findings: Sequence[str],
) -> str:
    """Write the page: rotatable loss surfaces side by side, the findings and the table.

    The page contains everything, including the plotting library, and needs no network.
    """
    template = Template(
        resources.files("elliptica.lab.demo").joinpath("page.html").read_text(encoding="utf-8")
    )
    figures = [json.loads(_surface_figure(exhibit, settings).to_json()) for exhibit in exhibits]
    return template.substitute(
        headline=html.escape(headline(summaries)),
        panels="\n".join(_panel(i, summary) for i, summary in enumerate(summaries)),
        findings=_paragraphs(findings),
        notes=_paragraphs(notes(settings)),
        n_seeds=summaries[0].n_seeds,
        header="".join(f"<th>{html.escape(name)}</th>" for name in TABLE_HEADER),
        rows=_table_rows(summaries),
        boundary=BOUNDARY,
        inside=INSIDE,
        above=ABOVE,
        plotly=get_plotlyjs(),
        figures=json.dumps(figures).replace("</", "<\\/"),
    )


def _panel(number: int, summary: MethodSummary) -> str:
    name, result = html.escape(NAMES[summary.method]), html.escape(verdict(summary))
    return (
        f"<figure><figcaption><b>{name}</b>\n{result}</figcaption>"
        f'<div class="plot" id="plot-{number}"></div></figure>'
    )


def _paragraphs(texts: Sequence[str]) -> str:
    return "\n".join(f"<p>{html.escape(text)}</p>" for text in texts)


def _table_rows(summaries: Sequence[MethodSummary]) -> str:
    lines = []
    for row in table_rows(summaries):
        lines.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>")
    return "\n".join(lines)


def _surface_figure(exhibit: Exhibit, settings: DemoSettings) -> go.Figure:
    """Draw both moons with some points; heights are multiples of the boundary's largest loss."""
    moons, losses = exhibit.moons, exhibit.losses
    bound = float(losses.boundary.max())
    apart = APART if settings.region == "half-disc" else 0.0
    traces: list[Any] = []
    surfaces = moon_surfaces(exhibit.network, region=settings.region, n_along=111, n_across=25)
    for moon, surface in enumerate(surfaces):
        height = np.clip(surface.loss / bound, 0, TOP).astype(np.float32)
        traces.append(
            go.Surface(
                x=surface.x.astype(np.float32),
                y=(surface.y + apart * moon).astype(np.float32),
                z=height,
                surfacecolor=height,
                colorscale=_COLOURS,
                cmin=0,
                cmax=TOP,
                showscale=False,
                customdata=surface.loss.astype(np.float32),
                hovertemplate="loss %{customdata:.3g}<extra></extra>",
                lighting={"ambient": 0.85, "diffuse": 0.3, "specular": 0.05},
            )
        )
    sets = (
        ("boundary", moons.boundary_x, moons.boundary_y, losses.boundary, _N_BOUNDARY, BOUNDARY),
        ("inside", moons.interior_x, moons.interior_y, losses.inside, _N_INSIDE, INSIDE),
    )
    for name, x, y, values, n, colour in sets:
        places = x[:n].numpy() + y[:n, None].numpy() * np.array([0.0, apart])
        traces.append(_points(name, places.astype(np.float32), values[:n].numpy(), bound, colour))
    return go.Figure(traces, _layout())


def _points(
    name: str, places: NDArray[np.float32], losses: NDArray[np.float64], bound: float, colour: str
) -> go.Scatter3d:
    return go.Scatter3d(
        x=places[:, 0],
        y=places[:, 1],
        z=(np.clip(losses / bound, 0, TOP) + 0.01).astype(np.float32),  # just above the surface
        mode="markers",
        marker={"size": 1.5, "color": colour},
        customdata=losses.astype(np.float32),
        hovertemplate=name + ": loss %{customdata:.3g}<extra></extra>",
    )


def _layout() -> go.Layout:
    hidden = {"visible": False, "showspikes": False}
    return go.Layout(
        template="none",
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
        showlegend=False,
        scene={
            "xaxis": hidden,
            "yaxis": hidden,
            # leave room, so that flat parts do not lie in the bottom of the box
            "zaxis": {**hidden, "range": [-0.1, TOP]},
            "aspectmode": "manual",
            "aspectratio": {"x": 2.3, "y": 1.76, "z": 1.5},
            "camera": {
                "eye": {"x": -0.2, "y": -1.5, "z": 1.5},
                "center": {"x": 0, "y": 0, "z": -0.2},
                "projection": {"type": "orthographic"},
            },
        },
    )
