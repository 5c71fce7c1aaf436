"""What the studies share: records and their page, tables in Markdown, a training loop."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from scipy import stats
from torch import Tensor, nn

from elliptica.lab.experiments.records import DRAWS, locked, read_lines, write_lines

ROOT = Path(__file__).resolve().parent.parent
Record = dict[str, Any]
#: Blocks of a page from the records; from the records that are done to those of one cell after another.
Blocks = Callable[[list[Record]], dict[str, str]]
Run = Callable[[list[Record]], Iterator[list[Record]]]


class Study:
    """A folder of results: records, and a README with blocks that are made from them.

    ``cell`` names the fields that tell a piece of work from others; each is recorded at once. Records have
    the version of their random draws: those of earlier draws are shown and counted until `run` replaces them.
    """

    def __init__(self, name: str, blocks: Blocks, cell: Sequence[str]) -> None:
        self.folder = ROOT / "results" / name
        self.file, self.readme = self.folder / "records.jsonl.gz", self.folder / "README.md"
        self.blocks, self.cell = blocks, cell

    def read(self) -> list[Record]:
        """All committed records."""
        return read_lines(self.file)

    def missing(self, records: list[Record], cells: Iterable[Sequence[Any]]) -> Iterator[Any]:
        """Cells, by the values of their fields, that have no record."""
        done = set(map(self._key, records))
        return (cell for cell in cells if json.dumps(cell, sort_keys=True) not in done)

    def _key(self, record: Record) -> str:
        return json.dumps([record.get(name) for name in self.cell], sort_keys=True)

    def add(self, records: list[Record]) -> None:
        """Record cells of the current draws, in place of those of earlier draws."""
        with locked(self.file):
            new = set(map(self._key, records))
            kept = [r for r in self.read() if r.get("draws") == DRAWS or self._key(r) not in new]
            write_lines(self.file, [*kept, *({**record, "draws": DRAWS} for record in records)])

    def page(self) -> str:
        """The README with its blocks made anew."""
        records = self.read()
        (first, text), *others = self.blocks(records).items()
        earlier = sum(record.get("draws") != DRAWS for record in records)
        note = f"Records of earlier random draws, which `run` makes anew: {earlier} of {len(records)}."
        return fill(self.readme, {first: f"{note}\n\n{text}", **dict(others)})

    def main(self, about: str | None, run: Run) -> None:
        """Command line: ``run`` adds to the records what ``run(records)`` yields; both write the page."""
        parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
        parser.add_argument("what", choices=("run", "table"))
        torch.set_num_threads(1)
        if parser.parse_args().what == "run":
            for records in run([record for record in self.read() if record.get("draws") == DRAWS]):
                self.add(records)
                print({k: v for k, v in records[0].items() if isinstance(v, str | int)}, flush=True)
        self.readme.write_text(self.page(), encoding="utf-8")


def fill(page: Path, blocks: dict[str, str], gap: str = "\n") -> str:
    """The text of a page with blocks put between their marks."""
    text = page.read_text(encoding="utf-8")
    for mark, block in blocks.items():
        begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}{gap}{block}{gap}{end}{rest.split(end)[1]}"
    return text


def shipped(path: str) -> Path:
    """Return a file that a package ships, without importing it; ``path`` begins with the package."""
    package, _, file = path.partition("/")
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / file


class Values:
    """Values of records by the fields that name a row of a table, in the order of seeds."""

    def __init__(self, records: list[Record], *fields: str) -> None:
        frame = pd.json_normalize(records).sort_values("seed", key=lambda seed: seed.astype(int))
        self.rows = dict(iter(frame.groupby([*fields], sort=False)))

    def __call__(self, *row: str, of: str) -> list[Any]:
        """One value per seed; of nested ones, as in ``test.nll``."""
        return self.rows[row][of].tolist()

    def gaps(self, row: tuple[str, ...], other: tuple[str, ...], of: str) -> list[float]:
        """One row less another one, seed by seed."""
        return [a - b for a, b in zip(self(*row, of=of), self(*other, of=of), strict=True)]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "l") -> list[str]:
    """Lay out a table in Markdown; ``align`` has ``l`` or ``r`` for the first columns, others are ``r``."""
    marks = ["---" if side == "l" else "--:" for side in align.ljust(len(head), "r")]
    return [f"| {' | '.join(head)} |", f"|{'|'.join(marks)}|", *(f"| {' | '.join(row)} |" for row in rows)]


def spread(values: Sequence[float], form: str = ".4f", less: str | None = None, scale: int = 1) -> str:
    """Mean and sample deviation, the latter in a form of its own if given."""
    deviation = f" ± {scale * statistics.stdev(values):{less or form}}" if len(values) > 1 else ""
    return f"{scale * statistics.mean(values):{form}}{deviation}"


def paired_p(gaps: Sequence[float]) -> float:
    """Return p of a paired t test; 1 if all differences are equal."""
    return float(stats.ttest_1samp(gaps, 0.0).pvalue) if len(set(gaps)) > 1 else 1.0


def rounded(value: Any, digits: int = 5) -> Any:
    """Round all numbers of a record."""
    if isinstance(value, dict):
        return {name: rounded(item, digits) for name, item in value.items()}
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def descend(
    model: nn.Module, losses: Iterable[Tensor], lr: float, n_steps: int | None = None, **options: Any
) -> nn.Module:
    """Follow losses by Adam; its rate falls by a cosine over ``n_steps``, if given."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, **options)
    schedule = None if n_steps is None else torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    for loss in losses:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return model


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of rows whose class is right."""
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())
