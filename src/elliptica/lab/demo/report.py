"""The record of `elliptica demo` as a study: how often the loss between the data exceeds that at the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elliptica.report.content import Grid, Measure, Report, ReportError, Study, mean_interval
from elliptica.report.verdict import judge_rows

_MEASURES = (
    Measure("between", "share of points between the data above every boundary loss", False, True),
    Measure("inside", "share of points inside the moons above every boundary loss", False, True, 2),
    Measure("accuracy", "accuracy", True, True),
)


def demo_report(file: Path, title: str | None = None) -> Report:
    """A page about the two moons, all seeds; the surfaces are on the demo's own page."""
    content = json.loads(file.read_text(encoding="utf-8"))
    try:
        values: dict[str, dict[str, dict[int, float]]] = {m.name: {} for m in _MEASURES}
        cost: dict[str, dict[str, dict[int, float]]] = {"evaluations": {}, "seconds": {}}
        for run in content["runs"]:
            method, seed, found = str(run["method"]), int(run["seed"]), run["evaluation"]
            shares = {name: found[name]["share_above"] for name in ("between", "inside")}
            for name, value in {**shares, "accuracy": found["accuracy"]}.items():
                values[name].setdefault(method, {})[seed] = 100 * float(value)
            cost["evaluations"].setdefault(method, {})[seed] = run["n_evaluations"] / 1000
            cost["seconds"].setdefault(method, {})[seed] = float(run["seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(
            f"{file} is not what elliptica demo writes ({error!r}). Run the demo again."
        ) from error
    methods = list(values["between"])
    reference = "erm" if "erm" in methods else methods[0]
    study = Study(
        name="two-moons",
        title="Two moons: the loss inside and between the data",
        subtitle=str(content["experiment"]),
        measures=_MEASURES,
        methods=methods,
        reference=reference,
        values=values,
        verdict=judge_rows(values, _MEASURES[:2], methods, reference, cost=cost),
        table=_grid(values, methods, cost),
        cost=cost,
        settings={"all": ", ".join(f"{k} {v}" for k, v in content.get("settings", {}).items())},
        commands=["elliptica demo"],
        own=[method for method in methods if method in ("path", "marginal")],
        versions={str(k): str(v) for k, v in content.get("versions", {}).items()},
        notes=["Not finished: the demo was interrupted."] if content.get("interrupted") else [],
    )
    return Report(title or study.title, "record of elliptica demo", study.verdict.headline, [study])


def _grid(values: Any, methods: list[str], cost: Any) -> Grid:
    rows = []
    for method in methods:
        line: list[tuple[str, float | str, bool]] = [(method, method, False)]
        for measure in _MEASURES:
            mean, low, high = mean_interval(list(values[measure.name][method].values()))
            line.append(
                (f"{mean:.{measure.decimals}f} ± {(high - low) / 2:.{measure.decimals}f}", mean, False)
            )
        seconds = list(cost["seconds"][method].values())
        line.append((f"{sum(seconds) / len(seconds):.2f}", sum(seconds) / len(seconds), False))
        n = len(values["between"][method])
        rows.append([*line, (str(n), n, False)])
    head = ["method", *(f"{m.label}, %" for m in _MEASURES), "seconds", "seeds"]
    return Grid("Mean ± half the 95 % interval over seeds", head, rows)
