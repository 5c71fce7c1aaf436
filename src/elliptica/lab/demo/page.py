"""Write the files of the demo: its record, its figure, and a self-contained page with 3D surfaces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from elliptica._utils.files import replacing, write_atomically
from elliptica.lab.demo.figures import APART, BOUNDARY, INSIDE, TOP, draw_figure
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
from elliptica.report.page import Chart, Page, Section, to_html

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
    surfaces = [
        Chart(
            NAMES[summary.method], json.loads(_surface_figure(exhibit, settings).to_json()), verdict(summary)
        )
        for summary, exhibit in zip(summaries, exhibits, strict=True)
    ]
    how = (
        "The loss of small classifiers over the two moons, after the same number of function evaluations; "
        "the median seed of each method. They were trained on the boundary only; the points inside are new "
        "to them. Height is the loss as a multiple of the largest loss on the boundary; where it is above "
        "one, the surface is red. Drag a surface to turn it."
    )
    numbers = (
        f"Over {summaries[0].n_seeds} seeds. Bound kept: seeds in which no loss inside is above the largest "
        "on the boundary. Inside above: share of points inside above it. Largest losses: medians over seeds."
    )
    sections = [
        Section("Loss surfaces", [how], charts=surfaces),
        Section("In numbers", [numbers], [TABLE_HEADER, *table_rows(summaries)]),
        Section("How it was done", notes(settings)),
    ]
    return to_html(
        Page("Two moons: the loss inside and on the boundary", headline(summaries), findings, sections)
    )


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
