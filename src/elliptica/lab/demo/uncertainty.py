"""Draw the uncertainty of each class against its size, from records (paper: appendix, Fig. 4)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from elliptica.lab.demo.figures import INK, METHOD_COLOURS, MUTED, PRINT, Width, label_panel, new_figure
from elliptica.lab.experiments.records import read_records
from elliptica.lab.experiments.registry import load_dataset
from elliptica.lab.experiments.specification import Run, load_specification, runs

#: Default data sets, from the table of medical images.
DATASETS = ("breastmnist-per-batch", "retinamnist", "pathmnist_subset")
METHODS = ("erm", "mixup", "elliptic")
TABLE = "table6"
_TITLES = {
    "breastmnist-per-batch": "Breast",
    "breastmnist": "Breast",
    "retinamnist": "Retina",
    "pathmnist_subset": "Path (a tenth)",
}
_NAMES = {"erm": "ERM"}


@dataclass(frozen=True)
class ClassUncertainty:
    """Uncertainty scores on one data set."""

    dataset: str  # its name
    sizes: tuple[int, ...]  # training rows of each class
    #: Mean entropy of the predictions on the test rows of each class, as a share of that of ignorance: by
    #: method, one row per seed, one column per class.
    scores: Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]

    def normalised(self) -> dict[str, tuple[list[float], list[float]]]:
        """Return mean and deviation over seeds by method, rarest class first, between 0 and 1.

        The scale is common to all methods and classes of the data set: zero is the smallest mean, one the
        largest. (One scale for each method would hide the differences between methods.)
        """
        order = np.argsort(self.sizes, kind="stable")
        means = {method: scores.mean(0)[order] for method, scores in self.scores.items()}
        low = min(float(values.min()) for values in means.values())
        span = max(float(values.max()) for values in means.values()) - low or 1.0
        result = {}
        for method, scores in self.scores.items():
            spread = [
                statistics.stdev(column) / span if len(column) > 1 else 0.0
                for column in scores[:, order].T.tolist()
            ]
            result[method] = ([(float(v) - low) / span for v in means[method]], spread)
        return result

    @property
    def classes(self) -> list[int]:
        """Numbers of the classes, rarest first."""
        return [int(c) for c in np.argsort(self.sizes, kind="stable")]


def class_sizes(data_dir: Path | None) -> Callable[[Run], Sequence[int]]:
    """Count the training rows of each class in the data of a run, which must be there."""

    def sizes(run: Run) -> Sequence[int]:
        counts: list[int] = torch.bincount(load_dataset(run.load, run.seed, data_dir).train.y).tolist()
        return counts

    return sizes


def read_uncertainty(
    out: Path,
    sizes: Callable[[Run], Sequence[int]],
    datasets: Sequence[str] = DATASETS,
    methods: Sequence[str] = METHODS,
) -> list[ClassUncertainty]:
    """Collect the scores from records.

    Raises:
        ValueError: If a row has no record with the score.
    """
    result = []
    for dataset in datasets:
        scores, example = {}, None
        for method in methods:
            wanted = runs(TABLE, load_specification(TABLE), datasets=[dataset], methods=[method])
            rows = [
                [by_class[str(c)] for c in range(len(by_class))]
                for record in read_records(out, wanted)
                if (by_class := record.metrics["test"].uncertainty)
            ]
            if not rows:
                raise ValueError(
                    f"No record of {method} on {dataset} in {out} holds an uncertainty score. Run it: "
                    f"elliptica run {TABLE} --dataset {dataset} --methods {method} --out {out}."
                )
            scores[method], example = np.array(rows, dtype=np.float64), wanted[0]
        if example is not None:
            result.append(ClassUncertainty(dataset, tuple(int(n) for n in sizes(example)), scores))
    return result


def draw_uncertainty(parts: Sequence[ClassUncertainty], width: Width = "page") -> Figure:
    """Draw bars of the normalised score of each class, rarest first, with the class size above."""
    is_page = width == "page"
    with mpl.rc_context(PRINT):
        figure = new_figure(width, 1.9 if is_page else 1.55 * len(parts))
        if is_page:
            shares = [max(len(part.sizes), 2.5) for part in parts]
            panels = figure.subplots(1, len(parts), squeeze=False, width_ratios=shares)[0]
            figure.subplots_adjust(left=0.06, right=0.995, top=0.83, bottom=0.17, wspace=0.2)
        else:
            panels = figure.subplots(len(parts), 1, squeeze=False)[:, 0]
            figure.subplots_adjust(left=0.12, right=0.99, top=0.92, bottom=0.09, hspace=0.5)
        for axes, part in zip(panels, parts, strict=True):
            _draw_bars(axes, part)
        for axes in panels[: 1 if is_page else None]:
            axes.set_ylabel("uncertainty score")
        handles, names = panels[0].get_legend_handles_labels()
        shape: dict[str, Any] = {"ncols": len(names), "columnspacing": 1.2, "handlelength": 1.2}
        figure.legend(handles, names, loc="upper right", bbox_to_anchor=(1.0, 1.01), **shape)
    return figure


def _draw_bars(axes: Axes, part: ClassUncertainty) -> None:
    bars = part.normalised()
    n, bar, top = len(part.sizes), 0.8 / len(bars), 1.0
    for k, (method, (means, spread)) in enumerate(bars.items()):
        places = [c + (k - (len(bars) - 1) / 2) * bar for c in range(n)]
        colour = METHOD_COLOURS.get(method, MUTED)
        axes.bar(places, means, bar * 0.92, color=colour, label=_NAMES.get(method, method), linewidth=0)
        whisker: dict[str, Any] = {"ecolor": INK, "elinewidth": 0.5, "capsize": 1, "capthick": 0.5}
        axes.errorbar(places, means, spread, fmt="none", **whisker)
        top = max(top, *(m + s for m, s in zip(means, spread, strict=True)))
    axes.set(xlim=(-0.6, n - 0.4), ylim=(0, top * 1.18), xlabel="class, rarest first")
    for c, number in enumerate(part.classes):
        axes.text(c, top * 1.09, f"{part.sizes[number]}", ha="center", fontsize=6, color=INK)
    axes.set_yticks([0, 0.5, 1])
    axes.set_xticks(range(n), [str(c) for c in part.classes])
    axes.tick_params(axis="x", length=0)
    label_panel(axes, _TITLES.get(part.dataset, part.dataset))
