"""Write the page on Table 6, Breast, under every protocol, from the committed records; nothing is trained.

::

    elliptica run table6 --dataset breastmnist --methods erm,mixup --every-epoch --out results/tables  # etc.
    python studies/mislabelled.py                 # rewrites results/mislabelled/README.md

A protocol is a kind of label noise, the part of the data on which scores are measured, and the epoch after
which they are (`elliptica.lab.experiments.metrics`). One training of 500 epochs serves all of the latter two.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import ceil, floor, isqrt
from typing import get_args

from scipy import stats

from common import ROOT, fill, spread, table
from elliptica.lab.experiments.choice import Choice
from elliptica.lab.experiments.metrics import Epoch, metrics_at
from elliptica.lab.experiments.records import DRAWS, Record, read_records
from elliptica.lab.experiments.specification import PaperValue, load_specification

RECORDS, PAGE = ROOT / "results" / "tables", ROOT / "results" / "mislabelled" / "README.md"
Found = dict[tuple[str, str], list[Record]]
#: Label noise by the name of its data set.
NOISES = {"breastmnist-per-batch": "per batch", "breastmnist-clean": "clean", "breastmnist": "once"}
METHODS = ["erm", "mixup", "mixupe", "elliptic"]
PARTS = ("validation", "test")
#: Rows of the paper with values of their own: table and row.
PRINTED = [
    *(("table6", row) for row in ("erm", "mixup", "mixupe", "elliptic", "elliptic + weighting")),
    *(("table9", row) for row in ("elliptic", "elliptic + weighting")),
    *(("table10", row) for row in ("elliptic by distance", "by distance + weighting")),
]
#: Repetitions in the paper, and here.
SEEDS = 10


def everything() -> Found:
    """Records by data set and row."""
    cells = {(d, row): Choice("table6", [d], [row]).runs(RECORDS) for d, row in product(NOISES, METHODS)}
    return {cell: read_records(RECORDS, runs) for cell, runs in cells.items()}


def usable(records: list[Record], epoch: Epoch = "last") -> list[Record]:
    """Those that say what was measured then, or none if a seed is missing."""
    known = [record for record in records if epoch == "chosen" or record.right]
    return known if len(known) == SEEDS else []


def protocols() -> Iterator[tuple[str, str, Epoch]]:
    """Data set, part and epoch; the epoch chosen on validation is the best one there."""
    for protocol in product(NOISES, PARTS, get_args(Epoch)):
        if protocol[1:] != ("validation", "best"):
            yield protocol


def score(records: list[Record], part: str, epoch: Epoch, column: str) -> list[float]:
    """A column over the seeds of some records, in percent."""
    return [100 * metrics_at(record, part, epoch)[column] for record in records]


def agrees(values: list[float], paper: PaperValue) -> bool:
    """Whether means agree with the paper's (Welch's test at 5 %) and deviations do (F test at 1 %)."""
    assert paper.std
    n, mean, std = len(values), statistics.mean(values), statistics.stdev(values)
    p = stats.ttest_ind_from_stats(mean, std, n, paper.mean, paper.std, SEEDS, equal_var=False).pvalue
    tail = stats.f.cdf((std / paper.std) ** 2, n - 1, SEEDS - 1)
    return bool(p >= 0.05 and 0.005 <= tail <= 0.995)


def paper(name: str, row: str) -> dict[str, PaperValue]:
    """The paper's values for Breast."""
    return load_specification(name).datasets["breastmnist"].paper.get(row, {})


def is_near(records: list[Record], row: str, part: str, epoch: Epoch) -> bool:
    """Whether both columns are known and agree with the paper's."""
    known, values = usable(records, epoch), paper("table6", row).items()
    return bool(known) and all(agrees(score(known, part, epoch, c), value) for c, value in values)


def matrix(found: Found) -> str:
    """All protocols: average / worst class of each method, bold where both are near the paper's."""
    old = {row for (_, row), records in found.items() if any(r.draws != DRAWS for r in records)}
    names = [row + " †" * (row in old) for row in METHODS]
    printed = [paper("table6", row) for row in METHODS]
    texts = [" / ".join(_text(values[c]) for c in ("average", "worst") if values) for values in printed]
    rows = [["", "", "paper", *texts, ""]]
    for dataset, part, epoch in protocols():
        cells = [_cell(found[dataset, row], row, part, epoch) for row in METHODS]
        gap = _gap(found[dataset, "elliptic"], found[dataset, "erm"], part, epoch)
        name = "chosen = best" if (part, epoch) == ("validation", "chosen") else epoch
        rows.append([NOISES[dataset], part, name, *cells, gap])
    return "\n".join(table(["noise", "measured on", "epoch", *names, "elliptic - erm"], rows, "lll"))


def _cell(records: list[Record], row: str, part: str, epoch: Epoch) -> str:
    known = usable(records, epoch)
    if not known:
        return "-"
    text = " / ".join(spread(score(known, part, epoch, column), ".1f") for column in ("average", "worst"))
    return f"**{text}**" if is_near(known, row, part, epoch) else text


def _gap(ours: list[Record], others: list[Record], part: str, epoch: Epoch) -> str:
    """Difference of averages on the same seeds, with its standard error."""
    pair = (sorted(usable(records, epoch), key=lambda r: r.run.seed) for records in (ours, others))
    mine, theirs = (score(records, part, epoch, "average") for records in pair)
    if not mine or not theirs:
        return "-"
    gaps = [a - b for a, b in zip(mine, theirs, strict=True)]
    return f"{statistics.mean(gaps):+.1f} (s.e. {statistics.stdev(gaps) / len(gaps) ** 0.5:.1f})"


def near(found: Found) -> str:
    """Protocols under which the paper's rows come out, and how many of the four do under each."""
    lines, counts = [], Counter[tuple[str, str, Epoch]]()
    for row in METHODS:
        hits = [each for each in protocols() if is_near(found[each[0], row], row, *each[1:])]
        counts.update(hits)
        names = "; ".join(f"{NOISES[dataset]}, {part}, {epoch}" for dataset, part, epoch in hits)
        lines.append(f"- {row}: {names or 'none'}.")
    most = max(counts.values(), default=0)
    return "\n".join([*lines, f"- Most of the four rows under one protocol: {most}."])


def digits() -> str:
    """The printed pairs of the paper, and what they fit."""
    rows = []
    for name, row in PRINTED:
        worst, average = (paper(name, row)[column] for column in ("worst", "average"))
        cells = [_text(worst), _verdict(worst, 21), _verdict(worst, 42)]
        cells += [_text(average), _verdict(average, 78), _verdict(average, 156)]
        rows.append([name.replace("table", "Table "), row, *cells])
    head = ["paper", "row", "worst", "on 21", "on 42", "average", "on 78", "on 156"]
    return "\n".join(table(head, rows, "llrllrll"))


def _text(value: PaperValue) -> str:
    return f"{value.mean:.1f} ± {value.std:.1f}"


def _verdict(value: PaperValue, rows: int) -> str:
    """By which deviations a pair fits."""
    ways = [("sample", SEEDS - 1), ("population", SEEDS)]
    return " and ".join(w for w, n in ways if fits(value.mean, value.std, SEEDS, rows, n)) or "no"


def fits(mean: float, std: float, seeds: int, rows: int, divisor: int) -> bool:
    """Whether whole numbers of right answers give a printed mean and deviation, in percent with one digit.

    A score of one seed is ``k / rows``, so not every pair can be printed (GRIM and GRIMMER). The decision is
    exact: it looks for ``seeds`` whole numbers from 0 to ``rows`` whose mean and deviation (``divisor``: of
    the variance) round to the printed values; at the edge both roundings of a half count.
    """
    (low, high), (least, most) = (
        [max(Fraction(f"{printed:.1f}") + Fraction(half, 20), Fraction(0)) * rows / 100 for half in (-1, 1)]
        for printed in (mean, std)
    )
    for total in range(ceil(low * seeds), min(floor(high * seeds), seeds * rows) + 1):
        centre, rest = divmod(total, seeds)  # numbers are counted from near their mean: small squares
        shift = Fraction(rest * rest, seeds)
        first, last = ceil(least**2 * divisor + shift), floor(most**2 * divisor + shift)
        size = isqrt(last)
        sums = _squares(seeds, max(-centre, -size), min(rows - centre, size), last)
        if first <= last and sums.get(rest, 0) >> first:
            return True
    return False


@lru_cache(maxsize=4096)
def _squares(n: int, low: int, high: int, most: int) -> dict[int, int]:
    """Sums of squares up to ``most``, as bits of a number, by the sum of ``n`` whole numbers of a range."""
    mask, found = (1 << (most + 1)) - 1, {0: 1}
    for _ in range(n):
        longer: dict[int, int] = {}
        for total, squares in found.items():
            for value in range(low, high + 1):
                if more := (squares << (value * value)) & mask:
                    longer[total + value] = longer.get(total + value, 0) | more
        found = longer
    return found


def control(found: Found) -> str:
    """The same check of our own rows after epochs 50, 100, ..., 500, for which the part is known."""
    complete, rows = [r for r in map(usable, found.values()) if r], []
    for part in PARTS:
        pairs = [own_pair(records, part, epoch) for records in complete for epoch in range(50, 501, 50)]
        kept = [pair for pair in pairs if pair is not None]
        counts = [sum(fits(*pair, SEEDS, n, SEEDS - 1) for pair in kept) for n in (21, 42)]
        shares = [f"{count} ({100 * count / max(len(kept), 1):.0f} %)" for count in counts]
        rows.append([part, str(len(pairs)), str(len(kept)), *shares])
    head = ["measured on", "rows", "worst class malignant in all seeds", "of these, fit 21", "fit 42"]
    return "\n".join(table(head, rows))


def own_pair(records: list[Record], part: str, epoch: int) -> tuple[float, float] | None:
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
    blocks = {"matrix": matrix(found), "near": near(found), "digits": digits(), "control": control(found)}
    return fill(PAGE, blocks)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
