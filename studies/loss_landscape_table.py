"""Tables and picture of the loss-landscape study."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch.nn import functional as F

from elliptica.landscape import LossField

Record = dict[str, Any]
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
COLUMNS = {
    "largest loss at the data": lambda r: r["data_largest"],
    "largest between": lambda r: r["between"]["largest"],
    "mean between": lambda r: r["between"]["mean"],
    "above the largest at the data": lambda r: r["between"]["violation_rate"],
    "above u": lambda r: r["between"]["share_above_landscape"],
    "mean excess over u": lambda r: r["between"]["mean_excess_over_landscape"],
    "not subharmonic": lambda r: r["not_subharmonic"],
    "test points above the largest at the data": lambda r: r["test"]["violation_rate"],
    "test accuracy": lambda r: r["accuracy"],
}
SHARES = {
    "above the largest at the data",
    "above u",
    "not subharmonic",
    "test points above the largest at the data",
    "test accuracy",
}


def table(records: list[Record], problem: str) -> list[str]:
    """Mean and sample deviation over seeds of each column."""
    found = [r for r in records if r["problem"] == problem]
    methods = list(dict.fromkeys(r["method"] for r in found))
    lines = [
        f"**{problem}**"
        + (" (u: the landscape given that a walk meets the data)" if problem == "digits" else ""),
        "",
        "| method | " + " | ".join(COLUMNS) + " | seeds |",
        "|---|" + "--:|" * (len(COLUMNS) + 1),
    ]
    for method in methods:
        runs = sorted((r for r in found if r["method"] == method), key=lambda r: r["seed"])
        cells = [_show([read(r) for r in runs], column in SHARES) for column, read in COLUMNS.items()]
        lines.append(f"| {method} | " + " | ".join(cells) + f" | {len(runs)} |")
    lines += ["", "Against ERM on the same seeds (mean difference, p of a paired t test):", ""]
    erm = {r["seed"]: r for r in found if r["method"] == "erm"}
    for method in methods:
        if method == "erm":
            continue
        parts = []
        for column, read in COLUMNS.items():
            gaps = [
                read(r) - read(erm[r["seed"]]) for r in found if r["method"] == method and r["seed"] in erm
            ]
            if len(set(gaps)) > 1:
                p = stats.ttest_1samp(gaps, 0.0).pvalue
                parts.append(f"{column} {statistics.mean(gaps):+.3g} (p = {p:.2g})")
        lines.append(f"- {method}: " + "; ".join(parts))
    return [*lines, ""]


def _show(values: list[float], share: bool) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else float("nan")
    mean = statistics.mean(values)
    return f"{mean:.1%} ± {spread:.1%}" if share else f"{mean:.3g} ± {spread:.2g}"


def write_table(records: list[Record], folder: Path) -> None:
    """Put the tables between the markers of the README."""
    problems = dict.fromkeys(r["problem"] for r in records)
    text = "\n".join(line for problem in problems for line in table(records, problem)).rstrip()
    print(text)
    page = folder / "README.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


def draw_surfaces(
    problem: Any,
    fields: dict[str, LossField],
    walk: Callable[..., Any],
    file: Path,
    n: int = 40,
) -> None:
    """The loss of each network, each point with the label of its nearest datum, and u below it."""
    import matplotlib.pyplot as plt

    low, high = problem.x.amin(0) - 0.15, problem.x.amax(0) + 0.15
    xs = [torch.linspace(float(low[i]), float(high[i]), n) for i in range(2)]
    grid = torch.stack(torch.meshgrid(xs[0], xs[1], indexing="xy"), dim=2).flatten(0, 1)
    label = F.one_hot(problem.y[torch.cdist(grid, problem.x).argmin(1)], 2).float()
    hard = F.one_hot(problem.y, 2).float()
    probes = walk(problem, grid, label, 0)
    rows = []
    for field in fields.values():
        u, _ = probes.landscape(field(problem.x, hard))
        rows.append((field(grid, label).reshape(n, n), u.float().reshape(n, n)))
    floor = 1e-6
    values = torch.stack([torch.stack(pair) for pair in rows]).clamp_min(floor).log10()
    bounds = {"vmin": float(values.min()), "vmax": float(values.max())}
    figure, axes = plt.subplots(2, len(fields), figsize=(4 * len(fields), 5.6), layout="constrained")
    for column, method in enumerate(fields):
        for row, what in enumerate(("loss of the network", "landscape u (PDE)")):
            axis = axes[row][column]
            image = axis.pcolormesh(xs[0], xs[1], values[column][row], cmap="viridis", **bounds)
            axis.scatter(*problem.x.T, c=problem.y, s=6, cmap="coolwarm", lw=0.3, edgecolors="white")
            axis.set(xticks=[], yticks=[], title=f"{method}: {what}")
    figure.colorbar(image, ax=axes, label="log10 loss", shrink=0.8)
    figure.savefig(file, dpi=110)
    plt.close(figure)
