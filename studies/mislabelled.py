"""Write the page on Tables 6 and 9 under every protocol, from the committed records; nothing is trained.

::

    elliptica run table9 --dataset bloodmnist_rebuilt --seeds 5 --every-epoch --out results/tables  # etc.
    python studies/mislabelled.py                 # rewrites results/mislabelled/README.md

A protocol is a kind of label noise, the part of the data on which scores are measured, and the epoch after
which they are (`elliptica.lab.experiments.metrics`). One training serves all of the latter two.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
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
#: Rows at equal function evaluations: table and row. Then rows of five to fifty times as many.
EQUAL = [("table9", row) for row in ("erm", "mixup", "mixupe", "elliptic", "elliptic + weighting")]
EQUAL += [("table9", "elliptic near the data")]
LONGER = {("table6", "marginal"): "single points", ("table6", "elliptic"): "whole paths"}
#: Other forms of elliptic training are held against the paper's values for it.
FORMS = {"marginal": "elliptic", "elliptic near the data": "elliptic"}
Row = tuple[str, str]
Found = dict[tuple[str, Row], list[Record]]


@dataclass(frozen=True)
class Case:
    """Rows and kinds of label noise that are shown together."""

    data: str  # as the paper's table has it
    noises: dict[str, str]  # by the name of our data set
    rows: list[Row]
    seeds: int

    def paper(self, row: Row) -> dict[str, PaperValue]:
        """The paper's values; for rows that Table 9 does not have those of Table 6."""
        name, method = "table6" if row[1] == "mixupe" else row[0], FORMS.get(row[1], row[1])
        return load_specification(name).datasets[self.data].paper.get(method, {})

    def name(self, row: Row) -> str:
        """What a row is called here."""
        return row[1] if row[0] == self.rows[0][0] else LONGER[row]

    def read(self) -> Found:
        """Records by data set and row."""
        cells = {
            (d, row): Choice(row[0], [d], [row[1]]).runs(RECORDS)
            for d, row in product(self.noises, self.rows)
        }
        return {cell: read_records(RECORDS, runs) for cell, runs in cells.items()}

    def protocols(self) -> Iterator[tuple[str, str, Epoch]]:
        """Data set, part and epoch; the epoch chosen on validation is the best one there."""
        for protocol in product(self.noises, PARTS, get_args(Epoch)):
            if protocol[1:] != ("validation", "best"):
                yield protocol


PARTS = ("validation", "test")
BREAST = Case(
    "breastmnist",
    {"breastmnist-per-batch": "per batch", "breastmnist-clean": "clean", "breastmnist": "once"},
    [("table6", row) for row in ("erm", "mixup", "mixupe", "elliptic")],
    seeds=10,
)
CASES = {
    "breast": BREAST,
    "breast, equal": Case("breastmnist", {"breastmnist": "once"}, EQUAL, 10),
    "blood": Case("bloodmnist", {"bloodmnist_rebuilt": "once"}, [*EQUAL, *LONGER], 5),
    "blood, per batch": Case(
        "bloodmnist", {"bloodmnist_rebuilt-per-batch": "per batch"}, [EQUAL[k] for k in (0, 1, 3)], 3
    ),
    "path": Case("pathmnist", {"pathmnist_subset": "once"}, [*EQUAL[:-1], ("table6", "marginal")], 3),
}
#: Rows of the paper with values of their own: table and row.
PRINTED = [
    *(("table6", row) for row in ("erm", "mixup", "mixupe", "elliptic", "elliptic + weighting")),
    *(("table9", row) for row in ("elliptic", "elliptic + weighting")),
    *(("table10", row) for row in ("elliptic by distance", "by distance + weighting")),
]
#: Repetitions in the paper.
SEEDS = 10


def usable(records: list[Record], epoch: Epoch = "last", seeds: int = 2) -> list[Record]:
    """Those that say what was measured then, or none if they are fewer than ``seeds``."""
    known = [record for record in records if epoch == "chosen" or record.right]
    return sorted(known, key=lambda record: record.run.seed) if len(known) >= seeds else []


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


def is_near(case: Case, records: list[Record], row: Row, part: str, epoch: Epoch) -> bool:
    """Whether both columns are known and agree with the paper's."""
    known, values = usable(records, epoch), case.paper(row).items()
    return bool(known and values) and all(agrees(score(known, part, epoch, c), value) for c, value in values)


def matrix(case: Case, found: Found) -> str:
    """All protocols: average / worst class of each method, bold where both are near the paper's."""
    names = [_name(case, row, found) for row in case.rows]
    printed = [[case.paper(row).get(column) for column in ("average", "worst")] for row in case.rows]
    texts = [" / ".join(_text(value) for value in values if value) for values in printed]
    rows = [["", "", "paper", *texts]]
    ours = [row for row in case.rows if row[1] not in ("erm", "mixup", "mixupe")]
    gaps = []
    for dataset, part, epoch in case.protocols():
        name = "chosen = best" if (part, epoch) == ("validation", "chosen") else epoch
        first = [case.noises[dataset], part, name]
        rows.append([*first, *(_cell(case, found[dataset, row], row, part, epoch) for row in case.rows)])
        erm = found[dataset, case.rows[0]]
        gaps.append([*first, *(_gap(found[dataset, row], erm, part, epoch) for row in ours)])
    head, less = ["noise", "measured on", "epoch"], map(case.name, ours)
    lines = [*table([*head, *names], rows, "lll"), "", "Average less that of ERM on the same seeds:", ""]
    return "\n".join([*lines, *table([*head, *less], gaps, "lll")])


def _name(case: Case, row: Row, found: Found) -> str:
    records = [record for d in case.noises for record in found[d, row]]
    n = len({record.run.seed for record in records})
    count = f" ({n} seeds)" if n != case.seeds else ""
    return f"{case.name(row)}{count}{' †' * any(record.draws != DRAWS for record in records)}"


def _cell(case: Case, records: list[Record], row: Row, part: str, epoch: Epoch) -> str:
    known = usable(records, epoch)
    if not known:
        return "-"
    text = " / ".join(spread(score(known, part, epoch, column), ".1f") for column in ("average", "worst"))
    return f"**{text}**" if is_near(case, records, row, part, epoch) else text


def _gap(ours: list[Record], others: list[Record], part: str, epoch: Epoch) -> str:
    """Difference of averages on the seeds that both have, with its standard error."""
    mine, theirs = (
        {r.run.seed: score([r], part, epoch, "average")[0] for r in usable(records, epoch)}
        for records in (ours, others)
    )
    gaps = [mine[seed] - theirs[seed] for seed in mine.keys() & theirs.keys()]
    if len(gaps) < 2:
        return "-"
    return f"{statistics.mean(gaps):+.1f} (s.e. {statistics.stdev(gaps) / len(gaps) ** 0.5:.1f})"


def near(case: Case, found: Found) -> str:
    """Protocols under which the paper's rows come out, and how many of them do under each."""
    lines, counts = [], Counter[tuple[str, str, Epoch]]()
    for row in case.rows:
        hits = [each for each in case.protocols() if is_near(case, found[each[0], row], row, *each[1:])]
        counts.update(hits)
        names = "; ".join(f"{case.noises[dataset]}, {part}, {epoch}" for dataset, part, epoch in hits)
        lines.append(f"- {case.name(row)}: {names or 'none'}.")
    most = max(counts.values(), default=0)
    return "\n".join([*lines, f"- Most of these rows under one protocol: {most}."])


def digits() -> str:
    """The printed pairs of the paper, and what they fit."""
    rows = []
    for name, row in PRINTED:
        worst, average = (BREAST.paper((name, row))[column] for column in ("worst", "average"))
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
    complete, rows = [r for records in found.values() if (r := usable(records, seeds=SEEDS))], []
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
    found = {name: case.read() for name, case in CASES.items()}
    blocks = {"digits": digits(), "control": control(found["breast"])}
    for name, case in CASES.items():
        blocks |= {f"{name}: matrix": matrix(case, found[name]), f"{name}: near": near(case, found[name])}
    return fill(PAGE, blocks)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
