"""Tables and picture of the Green-bridge study, from its records alone."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scipy import stats

Record = dict[str, Any]
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
DATASETS = ("no2", "airfoil", "skillcraft", "crime", "waterbirds")
#: In percent and larger is better; the others are errors.
ACCURACY = {"waterbirds"}
NOISES = ("paper", "green 0.1", "green 0.3", "green 1", "screened")
POWERS = ("0", "1", "4", "n-2")


def name(method: dict[str, Any]) -> str:
    """One line for a setting."""
    if method["name"] != "elliptic":
        return str(method["name"])
    label = {True: ", label noise", "sigma": ", sigma_y = sigma"}.get(method["label_noise"], "")
    return f"{method['noise']}, power {method['power']}{label}"


class Results:
    """Records of one data set by setting, each a dict from seed to record."""

    def __init__(self, records: list[Record], dataset: str, holdout: bool = False) -> None:
        self.dataset = dataset
        self.accuracy = dataset in ACCURACY
        self.runs: dict[str, dict[int, Record]] = defaultdict(dict)
        self.methods: dict[str, dict[str, Any]] = {}
        for r in records:
            if r["dataset"] == dataset and bool(r["method"].get("holdout")) == holdout:
                self.runs[name(r["method"])][r["seed"]] = r
                self.methods[name(r["method"])] = r["method"]

    def values(self, setting: str, key: str) -> list[float]:
        """One value per seed, in the order of seeds."""
        return [record[key] for _, record in sorted(self.runs[setting].items())]

    def mean(self, setting: str, key: str) -> float:
        """Mean over seeds."""
        return statistics.mean(self.values(setting, key))

    def best(self, key: str, among: Callable[[dict[str, Any]], bool]) -> str | None:
        """The setting with the best mean of ``key``."""
        found = [s for s, method in self.methods.items() if among(method)]
        if not found:
            return None
        pick = max if self.accuracy else min
        return pick(found, key=lambda s: self.mean(s, key))

    def show(self, setting: str, key: str) -> str:
        """Mean and sample deviation."""
        values = self.values(setting, key)
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        return (
            f"{100 * statistics.mean(values):.1f} ± {100 * spread:.1f}"
            if self.accuracy
            else f"{statistics.mean(values):.4g} ± {spread:.2g}"
        )

    def against_erm(self, settings: list[str], key: str) -> dict[str, str]:
        """Mean difference to ERM on the same seeds; p of a paired t test, Holm-corrected over the rows."""
        found: dict[str, tuple[float, float]] = {}
        for setting in dict.fromkeys(settings):
            seeds = sorted(set(self.runs[setting]) & set(self.runs["erm"]))
            gaps = [self.runs[setting][s][key] - self.runs["erm"][s][key] for s in seeds]
            if setting != "erm" and len(gaps) > 1 and len(set(gaps)) > 1:
                mean = statistics.mean(gaps) * (100 if self.accuracy else 1)
                found[setting] = mean, float(stats.ttest_1samp(gaps, 0.0).pvalue)
        shown, running = {}, 0.0
        for i, setting in enumerate(sorted(found, key=lambda s: found[s][1])):
            mean, p = found[setting]
            running = max(running, min(1.0, p * (len(found) - i)))
            shown[setting] = f"{mean:+.3g} (p = {running:.2g})"
        return shown


def is_noise(*wanted: str) -> Callable[[dict[str, Any]], bool]:
    """Settings of elliptic training with one of these noises."""
    return lambda m: m["name"] == "elliptic" and m["noise"] in wanted


def plain(noise: str) -> Callable[[dict[str, Any]], bool]:
    """This noise with partners by inverse distance and linear targets."""
    return lambda m: is_noise(noise)(m) and m["power"] == "1" and not m["label_noise"]


def main_table(records: list[Record]) -> list[str]:
    """Each family at the setting that its validation mean chose, beside the baselines."""
    lines = [
        "| data | method | setting chosen on validation | validation | test average | test worst group "
        "| average, against ERM | worst, against ERM | seeds |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    families = {
        "elliptic, paper's setting": lambda m: m.get("label_noise") == "sigma",
        "elliptic, paper's sigma": is_noise("paper"),
        "elliptic, Green": is_noise("green 0.1", "green 0.3", "green 1"),
        "elliptic, screened": is_noise("screened"),
        "elliptic, any noise": is_noise(*NOISES),
        "elliptic, Green x 1, power 1 (nothing chosen)": plain("green 1"),
        "elliptic, Green x 1 (power and label noise chosen)": is_noise("green 1"),
        "elliptic, Green at the intrinsic dimension": is_noise("green intrinsic"),
    }
    for dataset in DATASETS:
        results = Results(records, dataset)
        chosen = {m: m for m in ("erm", "mixup", "c-mixup") if m in results.runs}
        for family, among in families.items():
            best = results.best("validation", among)
            if best is not None:
                chosen[family] = best
        if "erm" not in results.runs:
            continue
        has_worst = "worst" in next(iter(results.runs["erm"].values()))
        average = results.against_erm(list(chosen.values()), "average")
        worst = results.against_erm(list(chosen.values()), "worst") if has_worst else {}
        for family, setting in chosen.items():
            lines.append(
                f"| {dataset} | {family} | {setting if family != setting else '-'} "
                f"| {results.show(setting, 'validation')} | {results.show(setting, 'average')} "
                f"| {results.show(setting, 'worst') if has_worst else '-'} "
                f"| {average.get(setting, '-')} | {worst.get(setting, '-')} "
                f"| {len(results.runs[setting])} |"
            )
    return lines


def rules_table(records: list[Record]) -> list[str]:
    """Does a rule choose the noise well? Test score of what each rule picks (power 1, no label noise)."""
    lines = [
        "| data | score on test | ERM | best of the five in hindsight | picked on validation | intrinsic "
        "dimension (no choice) | held-out tenth of the training rows: ERM | its pick |",
        "|---|---|---|---|---|---|---|---|",
    ]

    def among(method: dict[str, Any]) -> bool:
        plain = method["name"] == "elliptic" and method["power"] == "1" and not method["label_noise"]
        return plain and method["noise"] in NOISES

    for dataset in DATASETS:
        results, held = Results(records, dataset), Results(records, dataset, holdout=True)
        if "erm" not in results.runs:
            continue
        key = "worst" if "worst" in next(iter(results.runs["erm"].values())) else "average"
        cells = [results.show("erm", key)]
        for pick in (results.best(key, among), results.best("validation", among)):
            cells.append(f"{pick.split(',')[0]}: {results.show(pick, key)}" if pick else "-")
        intrinsic = results.best("validation", is_noise("green intrinsic"))
        cells.append(results.show(intrinsic, key) if intrinsic else "-")
        # these runs chose epoch and noise on rows like the training rows, never on the shifted ones
        inside = held.best("selection", among)
        cells.append(held.show("erm", key) if "erm" in held.runs else "-")
        cells.append(f"{inside.split(',')[0]}: {held.show(inside, key)}" if inside else "-")
        lines.append(f"| {dataset} | {key} | " + " | ".join(cells) + " |")
    return lines


def grid_tables(records: list[Record]) -> list[str]:
    """Every setting: test average, and worst group where there are groups."""
    lines = []
    for dataset in DATASETS:
        results = Results(records, dataset)
        if not results.runs:
            continue
        keys = [
            k for k in ("average", "worst") if k in next(iter(next(iter(results.runs.values())).values()))
        ]
        lines += [
            f"**{dataset}**, test {' / '.join(keys)}, mean over seeds (columns: partner power; "
            "starred: with label noise)",
            "",
            "| noise | " + " | ".join(f"{p}{star}" for p in POWERS for star in ("", "*")) + " |",
            "|---|" + "--:|" * (2 * len(POWERS)),
        ]
        for noise in NOISES:
            cells = []
            for power in POWERS:
                for label in ("", ", label noise"):
                    setting = f"{noise}, power {power}{label}"
                    factor = 100 if results.accuracy else 1
                    cells.append(
                        " / ".join(f"{factor * results.mean(setting, k):.3g}" for k in keys)
                        if setting in results.runs
                        else "-"
                    )
            lines.append(f"| {noise} | " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def draw(records: list[Record], file: Path) -> None:
    """Where the gain comes from: the error relative to ERM by distance from the training data, power 1."""
    import matplotlib.pyplot as plt

    shown = {
        "c-mixup": lambda m: m["name"] == "c-mixup",
        "elliptic, paper's sigma": plain("paper"),
        "elliptic, Green x 0.3": plain("green 0.3"),
        "elliptic, Green x 1": plain("green 1"),
    }
    figure, axes = plt.subplots(1, len(DATASETS), figsize=(15, 3.2), layout="constrained")
    for axis, dataset in zip(axes, DATASETS, strict=True):
        results = Results(records, dataset)
        if "erm" not in results.runs:
            continue
        for colour, (label, among) in enumerate(shown.items()):
            setting = results.best("validation", among)
            if setting is None:
                continue
            ratios = []
            for seed, record in results.runs[setting].items():
                erm = results.runs["erm"][seed]["by_distance"]
                pairs = zip(record["by_distance"], erm, strict=True)
                ratios.append([(1 - a) / max(1 - b, 1e-9) if results.accuracy else a / b for a, b in pairs])
            columns = list(zip(*ratios, strict=True))
            mean = [statistics.mean(c) for c in columns]
            error = [statistics.stdev(c) / len(c) ** 0.5 if len(c) > 1 else 0.0 for c in columns]
            style: dict[str, Any] = {
                "marker": "o",
                "ms": 4,
                "capsize": 2,
                "color": f"C{colour}",
                "label": label,
            }
            axis.errorbar(range(1, len(mean) + 1), mean, error, **style)
        axis.axhline(1, color="black", lw=0.8)
        axis.set_title(dataset)
        axis.set_xticks(range(1, 6))
        axis.set_xlabel("test rows by distance to training\n(fifths, near to far)")
    axes[0].set_ylabel("error / error of ERM\n(below 1 is better)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def write_table(records: list[Record], folder: Path) -> None:
    """Put the tables between the markers of the README, and the picture beside it."""
    parts = [
        "### Each family at the setting chosen on validation",
        "",
        *main_table(records),
        "",
        "### Does a rule choose the noise?",
        "",
        *rules_table(records),
        "",
        "### Every setting",
        "",
        *grid_tables(records),
    ]
    text = "\n".join(parts).rstrip()
    print(text)
    page = folder / "README.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
    draw(records, folder / "gain_by_distance.png")
