"""Group the records of a folder into tables."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from elliptica.lab.experiments.choice import MATCHED, TUNED
from elliptica.lab.experiments.records import SUFFIX, Record, Records
from elliptica.lab.experiments.specification import (
    Run,
    Specification,
    load_specification,
    preset_names,
    runs,
    table_name,
)
from elliptica.lab.experiments.tuned import CHOSEN, read_choices, with_values

#: Table, data set, and what is not as the table says.
Place = tuple[str, str, str]


def read_folder(folder: Path) -> list[Record]:
    """Read the records of all tables in a folder."""
    files = sorted(file for file in folder.glob(f"*{SUFFIX}") if file.name != CHOSEN)
    if not files:
        raise ValueError(f"{folder} has no records of elliptica run.")
    return [record for file in files for record in Records(file).read()]


def known_tables(own: Iterable[str] = ()) -> dict[str, Specification]:
    """Tables of the library, and one's own by their files, each under its name in records."""
    return {table_name(table): load_specification(table) for table in (*preset_names(), *own)}


def group_records(
    records: Iterable[Record], folder: Path, specifications: Mapping[str, Specification]
) -> dict[Place, list[Record]]:
    """Group records by table, data set and variant, tables of the paper first.

    A table that takes a row from another one (``from`` in its specification) gets the records of that row;
    a row whose tuned settings are the table's own stands in both variants.
    """
    by_key: dict[str, list[Record]] = {}
    for record in records:
        by_key.setdefault(record.run.key, []).append(record)
    recorded = {members[0].run.table for members in by_key.values()}
    groups: dict[Place, list[Record]] = {}
    specified: dict[tuple[str, str, str], Run] = {}
    choices, left = read_choices(folder), dict(by_key)
    for table, match in itertools.product(filter(recorded.__contains__, specifications), (False, True)):
        for run in runs(table, specifications[table], seeds=1, match_evaluations=match):
            specified.setdefault((table, run.dataset, run.row), run)
            keys = {"": run.key}
            if run.key in choices:
                keys[TUNED] = with_values(run, choices[run.key]["values"], run.seed).key
            for variant, key in keys.items():
                place = (table, run.dataset, "; ".join(filter(None, [variant, MATCHED * match])))
                groups.setdefault(place, []).extend(by_key.get(key, []))
                left.pop(key, None)
    for members in left.values():
        run = members[0].run
        variant = _departure(run, specified.get((run.table, run.dataset, run.row)))
        groups.setdefault((run.table, run.dataset, variant), []).extend(members)
    kept = [place for place in groups if _has_own_records(place, groups)]
    kept.sort(key=lambda place: not place[0].startswith("table"))
    return {place: _one_setting(groups[place]) for place in kept}


def _has_own_records(place: Place, groups: Mapping[Place, list[Record]]) -> bool:
    """Whether a group has records that are not only another table's, or there because tuning chose them."""
    table, dataset, variant = place
    tuned = groups.get((table, dataset, "; ".join(filter(None, [TUNED, variant]))), [])
    return any(record.run.table == table and record not in tuned for record in groups[place])


def _departure(run: Run, base: Run | None) -> str:
    """What is not as the table says."""
    if base is None:
        return ""
    changed = sorted(name for name, value in run.training.items() if base.training.get(name) != value)
    told = ", ".join(f"{name} = {run.training[name]}" for name in changed)
    told = told or "settings of the methods differ from the table's"
    return "; ".join([told, *[MATCHED] * run.match_evaluations])


def _one_setting(members: list[Record]) -> list[Record]:
    """Of each row the settings with most seeds; a table has one line for a row."""
    counts = Counter((record.run.row, record.run.key) for record in members)
    best = {row: key for (row, key), _ in reversed(counts.most_common())}
    return [record for record in members if best[record.run.row] == record.run.key]
