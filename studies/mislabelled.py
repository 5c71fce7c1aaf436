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
from itertools import product
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
    return case.name(row) + count


def _cell(case: Case, records: list[Record], row: Row, part: str, epoch: Epoch) -> str:
    known = usable(records, epoch)
    if not known:
        return "-"
    text = " / ".join(spread(score(known, part, epoch, column), ".1f") for column in ("average", "worst"))
    text += " †" * any(record.draws != DRAWS for record in known)
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


def _text(value: PaperValue) -> str:
    return f"{value.mean:.1f} ± {value.std:.1f}"


def page() -> str:
    """The page with its tables made anew from the records."""
    found = {name: case.read() for name, case in CASES.items()}
    blocks: dict[str, str] = {}
    for name, case in CASES.items():
        blocks |= {f"{name}: matrix": matrix(case, found[name]), f"{name}: near": near(case, found[name])}
    return fill(PAGE, blocks)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
