"""Render one self-contained page: template, style, scripts, data and plotly.js in a single text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from elliptica import __version__
from elliptica._utils.extras import import_extra
from elliptica.report.content import BySeed, Number, Parts, Report, Study, mean_interval

STYLES = ("style.css", "layout.css")
SCRIPTS = ("theme.js", "tables.js", "charts.js", "plots.js", "plots-more.js", "start.js")


def render_page(report: Report) -> str:
    """Render a report as the text of an HTML file.

    The file contains everything, plotly.js once. It requests nothing from a network, and its content security
    policy enforces that. Names from users' data are escaped in the text. The scripts escape them again for
    plotly, which reads labels as HTML.

    Raises:
        ModuleNotFoundError: If Jinja2 or plotly is missing.
    """
    jinja2 = import_extra("A page with charts", "lab", "jinja2")
    offline = import_extra("A page with charts", "lab", "plotly.offline")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["anchor"] = anchor
    return environment.from_string(_asset("page.html")).render(
        report=report,
        version=__version__,
        style="\n".join(map(_asset, STYLES)),
        scripts=[_asset(name) for name in SCRIPTS],
        plotly=_inline(offline.get_plotlyjs()),
        data=embed(report_data(report)),
    )


def anchor(text: Any) -> str:
    """Convert a text to an anchor of the page."""
    return re.sub(r"[^a-z0-9]+", "-", str(text).lower()).strip("-") or "part"


def _inline(script: str) -> str:
    """Make a script safe to embed: nothing in it ends the element."""
    return re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE)


def _asset(name: str) -> str:
    return resources.files("elliptica.report").joinpath("assets", name).read_text(encoding="utf-8")


#: Maximum number of points of a curve; more cannot be seen.
_MOST_POINTS = 120


def embed(content: Any) -> str:
    r"""Convert to JSON that cannot end its script element or be taken for anything else.

    Example:
        >>> embed("</script>&")
        '"\\u003c/script\\u003e\\u0026"'
    """
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)  # ASCII; other characters are escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def rounded(value: Any, digits: int = 5) -> Any:
    """Round numbers in any nesting; values that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(key): rounded(each, digits) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [rounded(each, digits) for each in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.{digits}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    return value


def report_data(report: Report) -> dict[str, Any]:
    """Collect everything that the scripts of the page draw."""
    return {"studies": [rounded(_study(study)) for study in report.studies]}


def _study(study: Study) -> dict[str, Any]:
    scored = next((m for m in study.measures if m.name == "average"), study.measures[0])  # by parts
    return {
        "name": study.name,
        "title": study.title,
        "methods": list(study.methods),
        "reference": study.reference,
        "shown": highlighted(study),
        "measures": [
            {
                "name": m.name,
                "label": m.label,
                "up": m.higher_is_better,
                "percent": m.percent,
                "decimals": m.decimals,
                "relative": m.relative,
            }
            for m in study.measures
        ],
        "values": {
            m.name: _columns(
                study,
                study.values[m.name],
                (0.0, 100.0) if m.percent else (-math.inf, math.inf),
                study.scores.get(m.name, {}),
            )
            for m in study.measures
        },
        "paper": {
            name: {k: list(v) for k, v in by_method.items()} for name, by_method in study.paper.items()
        },
        "differences": [vars(d) for d in study.verdict.differences],
        "parts": [
            _parts(each, study.test_share, 100.0 if scored.percent else math.inf) for each in study.parts
        ],
        "reliability": study.reliability,
        "uncertainty": None if study.uncertainty is None else _parts(study.uncertainty, study.test_share),
        "curves": {row: [_thinned(curve) for curve in curves] for row, curves in study.curves.items()},
        "scoreLabel": study.score_label,
        "repetition": study.repetition,
        "cost": {unit: _columns(study, by_method, (0.0, math.inf)) for unit, by_method in study.cost.items()},
        "missing": study.missing,
    }


def highlighted(study: Study, most: int = 5) -> list[str]:
    """Return the methods that are coloured at first: the reference, the best one, and elliptic training."""
    measure = study.measures[0]
    by_method = study.values[measure.name]
    means = {m: sum(v.values()) / len(v) for m, v in by_method.items() if v}
    pick = max if measure.higher_is_better else min
    best = [pick(means, key=lambda m: means[m])] if means else []
    ours = [m for m in study.methods if m.startswith(("elliptic", "marginal"))]
    order = [study.reference, *best, *ours, *study.methods]
    return [m for m in dict.fromkeys(order) if m in study.methods][:most]


def _columns(
    study: Study, values: BySeed, ends: tuple[float, float], scores: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Return seeds, values and an interval for each method; scores that are not means have no interval."""
    columns = []
    for method in study.methods:
        by_seed = dict(sorted(values.get(method, {}).items()))
        numbers = list(by_seed.values())
        limits = mean_interval(numbers, test_share=study.test_share) if numbers else (math.nan,) * 3
        if scores and method in scores:
            limits = (scores[method], math.nan, math.nan)
        columns.append({"seeds": list(by_seed), "values": numbers, "mean": _within(limits, ends)})
    return columns


def _within(limits: tuple[float, float, float], ends: tuple[float, float]) -> list[float]:
    """Limit a mean and its interval to the range of scores; NaN (no interval) stays."""
    mean, low, high = limits
    # NaN comes first, because comparisons with it are false
    return [mean, max(low, ends[0]), min(high, ends[1])]


def _parts(parts: Parts, test_share: float, most: float = math.inf) -> dict[str, Any]:
    """Return means with intervals, limited to the range of scores from 0 to ``most``."""
    cells: dict[str, dict[str, Any]] = {}
    for method, by_name in parts.values.items():
        for name, numbers in by_name.items():
            limits = mean_interval(numbers, test_share=test_share)
            if method in parts.limits and name in parts.limits[method]:
                limits = (limits[0], *parts.limits[method][name])
            shown = _within(limits, (0.0, most))
            cells.setdefault(method, {})[name] = {"values": list(numbers), "mean": shown}
    return {
        "kind": parts.kind,
        "names": list(parts.names),
        "sizes": parts.sizes,
        "counted": parts.counted,
        "cells": cells,
    }


def _thinned(curve: Mapping[str, Sequence[Number]]) -> dict[str, Any]:
    """Keep a maximum number of epochs, including the first, the last and the chosen one."""
    n = max(len(curve["loss"]), len(curve.get("validation", ())))
    step = max(1, math.ceil(n / _MOST_POINTS))
    chosen = int(curve["epoch"][0]) if curve.get("epoch") else n - 1
    epochs = sorted({*range(0, n, step), n - 1, min(chosen, n - 1)})
    kept = {
        name: [curve[name][i] if i < len(curve[name]) else math.nan for i in epochs]
        for name in ("loss", "validation")
        if curve.get(name)
    }
    return {"epochs": [e + 1 for e in epochs], "chosen": chosen + 1, **rounded(kept, 4)}
