"""The files of the demo: its record, its figure, and a self-contained web page with turnable surfaces."""

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
from plotly.colors import get_colorscale
from plotly.offline import get_plotlyjs
from torch import Tensor

from elliptica.lab.demo.figures import (
    BOUNDARY,
    INSIDE,
    SURFACE,
    SURFACE_FLOOR,
    SURFACE_TOP,
    clip_losses,
    draw_figure,
)
from elliptica.lab.demo.results import (
    MethodSummary,
    find,
    headline,
    summarise,
    table_header,
    table_sections,
    verdict,
)
from elliptica.lab.demo.study import Exhibit, Study, moon_surfaces, write_record
from elliptica.lab.demo.training import METHODS, NAMES, DemoSettings, notes

_LOW, _HIGH = (float(v) for v in np.log10([SURFACE_FLOOR, SURFACE_TOP]))
_N_BOUNDARY, _N_INSIDE = 1600, 400


def write_files(study: Study, out: Path) -> list[Path]:
    """Write the record and, once each method has been trained, the figures; return what was written."""
    out.mkdir(parents=True, exist_ok=True)
    results, image, page = (out / name for name in ("results.json", "two_moons.png", "two_moons.html"))
    write_record(study, results)
    if len(study.exhibits) < len(METHODS):
        return [results]
    summaries = summarise(study.runs)
    exhibits = [study.exhibits[summary.method] for summary in summaries]
    draw_figure(summaries, exhibits, study.settings).savefig(image, dpi=150)
    findings = find(summaries, study.untrained)
    page.write_text(draw_page(summaries, exhibits, study.settings, findings), encoding="utf-8")
    return [image, page, results]


def draw_page(
    summaries: Sequence[MethodSummary],
    exhibits: Sequence[Exhibit],
    settings: DemoSettings,
    findings: Sequence[str],
) -> str:
    """Write the page: turnable loss surfaces side by side, the findings and the table.

    Everything, the plotting library too, is in the text: the page needs no network.
    """
    template = Template(
        resources.files("elliptica.lab.demo").joinpath("page.html").read_text(encoding="utf-8")
    )
    figures = [json.loads(_surface_figure(exhibit).to_json()) for exhibit in exhibits]
    return template.substitute(
        headline=html.escape(headline(summaries)),
        panels="\n".join(_panel(i, summary) for i, summary in enumerate(summaries)),
        findings=_paragraphs(findings),
        notes=_paragraphs(notes(settings)),
        n_seeds=summaries[0].n_seeds,
        header="".join(f"<th>{html.escape(name)}</th>" for name in table_header(summaries)),
        rows=_table_rows(summaries),
        gradient=", ".join(colour for _, colour in get_colorscale(SURFACE)),
        low=f"{SURFACE_FLOOR:g} or less",
        high=f"{SURFACE_TOP:g}",
        boundary=BOUNDARY,
        inside=INSIDE,
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
    for section in table_sections(summaries):
        title = html.escape(section.title)
        lines.append(f'<tr class="section"><td colspan="{len(summaries) + 1}">{title}</td></tr>')
        for name, cells in section.rows:
            values = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
            lines.append(f"<tr><td>{html.escape(name)}</td>{values}</tr>")
    return "\n".join(lines)


def _surface_figure(exhibit: Exhibit) -> go.Figure:
    """Both moons with some boundary and interior points, heights logarithmic."""
    traces: list[Any] = []
    for surface in moon_surfaces(exhibit.network, n_along=110, n_across=17):
        height = np.log10(clip_losses(surface.loss)).astype(np.float32)
        traces.append(
            go.Surface(
                x=surface.x.astype(np.float32),
                y=surface.y.astype(np.float32),
                z=height,
                surfacecolor=height,
                colorscale=SURFACE,
                cmin=_LOW,
                cmax=_HIGH,
                showscale=False,
                customdata=surface.loss.astype(np.float32),
                hovertemplate="loss %{customdata:.3g}<extra></extra>",
                lighting={"ambient": 0.85, "diffuse": 0.3, "specular": 0.05},
            )
        )
    moons, losses = exhibit.moons, exhibit.losses
    traces.append(_points("boundary", moons.boundary_x, losses.boundary, _N_BOUNDARY, BOUNDARY))
    traces.append(_points("inside", moons.interior_x, losses.inside, _N_INSIDE, INSIDE))
    return go.Figure(traces, _layout())


def _points(name: str, x: Tensor, losses: Tensor, n: int, colour: str) -> go.Scatter3d:
    some, values = x[:n].numpy(), losses[:n].numpy()
    return go.Scatter3d(
        x=some[:, 0],
        y=some[:, 1],
        z=(np.log10(clip_losses(values)) + 0.015).astype(np.float32),  # just above the surface
        mode="markers",
        marker={"size": 1.8, "color": colour},
        customdata=values.astype(np.float32),
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
            # with room, so that flat parts do not lie in the bottom of the box
            "zaxis": {**hidden, "range": [_LOW - 0.3, _HIGH + 0.1]},
            "aspectmode": "manual",
            "aspectratio": {"x": 2.1, "y": 1.18, "z": 0.82},
            "camera": {
                "eye": {"x": -0.2, "y": -1.5, "z": 1.5},
                "center": {"x": 0, "y": 0, "z": 0.02},
                "projection": {"type": "orthographic"},
            },
        },
    )
