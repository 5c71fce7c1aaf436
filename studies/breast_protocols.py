"""Write the page on Table 6, Breast, under every protocol, from the committed records; nothing is trained.

::

    elliptica run table6 --dataset breastmnist --methods erm,mixup --every-epoch --out results/tables  # etc.
    python studies/breast_protocols.py                 # rewrites results/breast_protocols/README.md

A protocol is a kind of label noise, the part of the data on which scores are measured, and the epoch after
which they are (`elliptica.lab.experiments.epochs`). One training of 500 epochs serves all of the latter two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from scipy import stats

from digits import Deviation, chance_of_fit, fits
from elliptica.lab.experiments.choice import Choice
from elliptica.lab.experiments.epochs import Epoch, metrics_at
from elliptica.lab.experiments.records import Record, read_records
from elliptica.lab.experiments.specification import PaperValue, load_specification
from elliptica.lab.experiments.table import dagger_of

ROOT = Path(__file__).resolve().parent.parent / "results"
RECORDS, PAGE = ROOT / "tables", ROOT / "breast_protocols" / "README.md"
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"
Pair = tuple[float, float]
Found = dict[tuple[str, str], list[Record]]

#: Label noise by the name of its data set.
NOISES = {"breastmnist-per-batch": "per batch", "breastmnist-clean": "clean", "breastmnist": "once"}
METHODS = ["erm", "mixup", "mixupe", "elliptic", "marginal"]
PARTS = ("validation", "test")
#: Rows of the paper with values of their own: table and row.
PRINTED = [
    *(("table6", row) for row in ("erm", "mixup", "mixupe", "elliptic", "elliptic + weighting")),
    *(("table9", row) for row in ("elliptic", "elliptic + weighting")),
    *(("table10", row) for row in ("elliptic by distance", "by distance + weighting")),
]
#: Repetitions in the paper, and here.
SEEDS = 10
#: Fewer seeds are shown, and compared with nothing.
ENOUGH = 5
#: Epochs, counted from 1, at which our own rows are checked.
CHECKED = range(50, 501, 50)


@dataclass(frozen=True)
class Score:
    """A column of a cell over seeds, in percent."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.mean(self.values)

    @property
    def std(self) -> float:
        """Sample deviation over seeds."""
        return statistics.stdev(self.values)

    def is_near(self, paper: PaperValue) -> bool:
        """Whether means agree (Welch's test at 5 %) and deviations do (F test at 1 %)."""
        assert paper.std
        n = len(self.values)
        p = stats.ttest_ind_from_stats(self.mean, self.std, n, paper.mean, paper.std, SEEDS, equal_var=False)
        ratio = (self.std / paper.std) ** 2
        tail = stats.f.cdf(ratio, n - 1, SEEDS - 1)
        return bool(p.pvalue >= 0.05 and 0.005 <= tail <= 0.995)

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f}"


def everything() -> Found:
    """Records by data set and row."""
    return {
        (dataset, row): read_records(RECORDS, Choice("table6", [dataset], [row]).runs(RECORDS))
        for dataset in NOISES
        for row in METHODS
    }


def usable(records: list[Record], epoch: Epoch = "last") -> list[Record]:
    """Those that say what was measured then; every record knows the epoch that was chosen."""
    return [record for record in records if epoch == "chosen" or record.right]


def protocols() -> Iterator[tuple[str, str, Epoch]]:
    """Data set, part and epoch; the epoch chosen on validation is the best one there."""
    for dataset in NOISES:
        for part in PARTS:
            for epoch in get_args(Epoch):
                if (part, epoch) != ("validation", "best"):
                    yield dataset, part, epoch


def score(records: list[Record], part: str, epoch: Epoch, column: str) -> Score:
    """A column over the seeds of some records."""
    return Score(tuple(100 * metrics_at(record, part, epoch)[column] for record in records))


def paper(table: str, row: str) -> dict[str, PaperValue]:
    """The paper's values for Breast."""
    return load_specification(table).datasets["breastmnist"].paper.get(row, {})


def is_near(records: list[Record], row: str, part: str, epoch: Epoch) -> bool:
    """Whether both columns agree with the paper's; False with too few seeds to say."""
    values, records = paper("table6", row), usable(records, epoch)
    return (
        bool(values)
        and len(records) >= ENOUGH
        and all(score(records, part, epoch, column).is_near(value) for column, value in values.items())
    )


def matrix(found: Found) -> str:
    """All protocols: average / worst class of each method, bold where both are near the paper's."""
    names = [row + dagger_of(r for dataset in NOISES for r in found[dataset, row]) for row in METHODS]
    lines = [
        f"| noise | measured on | epoch | {' | '.join(names)} | elliptic - erm |",
        "|---|---|---|" + "--:|" * (len(METHODS) + 1),
        f"| | | paper | {' | '.join(map(_printed, METHODS))} | |",
    ]
    for dataset, part, epoch in protocols():
        cells = [_cell(found[dataset, row], row, part, epoch) for row in METHODS]
        gap = _gap(found[dataset, "elliptic"], found[dataset, "erm"], part, epoch)
        name = "chosen = best" if (part, epoch) == ("validation", "chosen") else epoch
        lines.append(f"| {NOISES[dataset]} | {part} | {name} | {' | '.join(cells)} | {gap} |")
    return "\n".join(lines)


def _cell(records: list[Record], row: str, part: str, epoch: Epoch) -> str:
    """Both columns; the average alone where only the validation curves of older records tell."""
    known = usable(records, epoch)
    if len(known) < ENOUGH and len(records) == SEEDS and part == "validation":
        return f"{average_of_curves(records, epoch)} / ?"
    if len(known) < 2:
        return "-"
    text = f"{score(known, part, epoch, 'average')} / {score(known, part, epoch, 'worst')}"
    text = f"**{text}**" if is_near(known, row, part, epoch) else text
    return text if len(known) == SEEDS else f"{text} ({len(known)} seeds)"


def average_of_curves(records: list[Record], epoch: Epoch) -> Score:
    """The average on validation after the last epoch or over the last tenth, which every record has."""
    courses = [record.curves["validation"] for record in records]
    lengths = [max(len(course) // 10, 1) if epoch == "late" else 1 for course in courses]
    return Score(tuple(100 * statistics.mean(c[-n:]) for c, n in zip(courses, lengths, strict=True)))


def _printed(row: str) -> str:
    values = paper("table6", row)
    if not values:
        return ""
    return " / ".join(_text(_pair(values[column])) for column in ("average", "worst"))


def _gap(ours: list[Record], others: list[Record], part: str, epoch: Epoch) -> str:
    """Difference of averages on the same seeds, with its standard error."""
    theirs = {record.run.seed: record for record in usable(others, epoch)}
    gaps = [
        100 * (metrics_at(record, part, epoch)["average"] - metrics_at(other, part, epoch)["average"])
        for record in usable(ours, epoch)
        if (other := theirs.get(record.run.seed)) is not None
    ]
    if len(gaps) < ENOUGH:
        return "-"
    return f"{statistics.mean(gaps):+.1f} (s.e. {statistics.stdev(gaps) / math.sqrt(len(gaps)):.1f})"


def near(found: Found) -> str:
    """Protocols under which the paper's rows come out, and how many of the four do under each."""
    rows = [row for row in METHODS if row != "marginal"]
    lines, counts = [], dict[tuple[str, str, Epoch], int]()
    for row in rows:
        hits = [each for each in protocols() if is_near(found[each[0], row], row, *each[1:])]
        for each in hits:
            counts[each] = counts.get(each, 0) + 1
        names = "; ".join(f"{NOISES[dataset]}, {part}, {epoch}" for dataset, part, epoch in hits)
        lines.append(f"- {row}: {names or 'none'}.")
    most = max(counts.values(), default=0)
    lines.append(f"- Most of the four rows under one protocol: {most}.")
    return "\n".join(lines)


def digits() -> str:
    """The printed pairs of the paper, and what they fit."""
    lines = [
        "| paper | row | worst | on 21 | on 42 | chance | average | on 78 | on 156 |",
        "|---|---|--:|---|---|--:|--:|---|---|",
    ]
    product = 1.0
    for table, row in PRINTED:
        values = paper(table, row)
        worst, average = (_pair(values[column]) for column in ("worst", "average"))
        chance = chance_of_fit(*worst, seeds=SEEDS, rows=21, finer=42, draws=1000)
        product *= chance
        texts = [_verdict(worst, 21), _verdict(worst, 42), f"{chance:.2f}"]
        texts += [_text(average), _verdict(average, 78), _verdict(average, 156)]
        name = table.replace("table", "Table ")
        lines.append(f"| {name} | {row} | {_text(worst)} | {' | '.join(texts)} |")
    return "\n".join([*lines, "", f"Product of the nine chances: {product:.0e}."])


def _pair(value: PaperValue) -> Pair:
    assert value.std is not None
    return value.mean, value.std


def _text(pair: Pair) -> str:
    return f"{pair[0]:.1f} ± {pair[1]:.1f}"


def _verdict(pair: Pair, rows: int) -> str:
    """By which deviations a pair fits."""
    ways: tuple[Deviation, ...] = ("sample", "population")
    found = [way for way in ways if fits(*pair, seeds=SEEDS, rows=rows, deviation=way)]
    if found:
        return " and ".join(found)
    return "mean only" if fits(pair[0], None, seeds=SEEDS, rows=rows) else "no"


def control(found: Found) -> str:
    """The same check of our own rows, for which the part is known."""
    lines = [
        "| measured on | rows | worst class malignant in all seeds | of these, fit 21 | fit 42 |",
        "|---|--:|--:|--:|--:|",
    ]
    for part in PARTS:
        pairs = [
            _own_pair(records, part, epoch)
            for records in map(usable, found.values())
            if len(records) == SEEDS
            for epoch in CHECKED
        ]
        kept = [pair for pair in pairs if pair is not None]
        counts = [
            sum(fits(*pair, seeds=SEEDS, rows=rows, deviation="sample") for pair in kept) for rows in (21, 42)
        ]
        shares = [f"{count} ({100 * count / max(len(kept), 1):.0f} %)" for count in counts]
        lines.append(f"| {part} | {len(pairs)} | {len(kept)} | {' | '.join(shares)} |")
    return "\n".join(lines)


def _own_pair(records: list[Record], part: str, epoch: int) -> Pair | None:
    """Worst class as a paper would print it; None if it is not the malignant one (0) in every seed."""
    shares = []
    for record in records:
        sizes, right = record.rows[part]["class"], record.right[part]
        by_class = {number: course[epoch - 1] / sizes[number] for number, course in right.items()}
        if min(by_class, key=lambda number: by_class[number]) != "0":
            return None
        shares.append(100 * by_class["0"])
    return round(statistics.mean(shares), 1), round(statistics.stdev(shares), 1)


def page() -> str:
    """The page with its tables made anew from the records."""
    found = everything()
    text = PAGE.read_text(encoding="utf-8")
    blocks = {"matrix": matrix(found), "near": near(found), "digits": digits(), "control": control(found)}
    for mark, block in blocks.items():
        begin, end = BEGIN.format(mark), END.format(mark)
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{block}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
