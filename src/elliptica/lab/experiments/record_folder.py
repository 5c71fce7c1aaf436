"""Group the records of a folder into tables."""

from __future__ import annotations

import re
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
    return [record for file in files for record in Records(file).read()]


def known_tables(own: Iterable[str] = ()) -> dict[str, Specification]:
    """Tables of the library, and one's own by their files, each under its name in records."""
    return {table_name(table): load_specification(table) for table in (*preset_names(), *own)}


def group_records(
    records: Iterable[Record], folder: Path, specifications: Mapping[str, Specification]
) -> dict[Place, list[Record]]:
    """Group records by table, data set and variant; a row has one setting, that with most seeds.

    A table that takes a row from another one (``from`` in its specification) gets the records of that row;
    a row whose tuned settings are the table's own stands in both variants.
    """
    by_key: dict[str, list[Record]] = {}
    for record in records:
        by_key.setdefault(record.run.key, []).append(record)
    tables = {members[0].run.table for members in by_key.values()}
    groups: dict[Place, list[Record]] = {}
    specified: dict[tuple[str, str, str], Run] = {}
    choices, left = read_choices(folder), dict(by_key)
    for table in (name for name in specifications if name in tables):
        for match in (False, True):
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
    kept = {place: _one_setting(members) for place, members in groups.items() if _is_own(place, groups)}
    return dict(sorted(kept.items(), key=lambda item: _order(item[0], specifications)))


def _is_own(place: Place, groups: Mapping[Place, list[Record]]) -> bool:
    """Whether a group has records that are not only another table's, or another variant's."""
    table, dataset, variant = place
    tuned = groups.get((table, dataset, "; ".join(filter(None, [TUNED, variant]))), [])
    seen = {id(record) for record in tuned}
    return any(record.run.table == table and id(record) not in seen for record in groups[place])


def _departure(run: Run, base: Run | None) -> str:
    if base is None:
        return ""
    changed = {name: value for name, value in run.training.items() if base.training.get(name) != value}
    told = ", ".join(f"{name} = {value}" for name, value in sorted(changed.items()))
    told = told or "settings of the methods differ from the table's"
    return "; ".join([told, *[MATCHED] * run.match_evaluations])


def _one_setting(members: list[Record]) -> list[Record]:
    counts = Counter((record.run.row, record.run.key) for record in members)
    best = {row: key for (row, key), _ in sorted(counts.items(), key=lambda item: (item[1], item[0]))}
    return [record for record in members if best[record.run.row] == record.run.key]


def _order(place: Place, specifications: Mapping[str, Specification]) -> tuple[bool, int, str, int, str]:
    table, dataset, variant = place
    datasets = list(specifications[table].datasets) if table in specifications else []
    names = list(specifications)
    number = datasets.index(dataset) if dataset in datasets else len(datasets)
    place_of_table = names.index(table) if table in names else len(names)
    is_other = not re.fullmatch(r"table\d+", table)  # those of the paper come first
    return is_other, place_of_table, table, number, variant
