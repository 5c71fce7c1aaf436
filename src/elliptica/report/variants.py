"""Which records belong into one table: the same data set, and the same departures from its settings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from elliptica.experiments.specification import (
    Run,
    Specification,
    SpecificationError,
    load_specification,
    preset_names,
    runs,
)
from elliptica.experiments.tune import with_values
from elliptica.report.records import Folder, Kept

#: Table, data set, and what is not as the table says.
Place = tuple[str, str, str]

TUNED = "settings tuned on the validation part"
MATCHED = "as many function evaluations for every method as for ordinary training"


def group_records(folder: Folder) -> tuple[dict[Place, list[Kept]], list[str]]:
    """Records by table, data set and variant, and what was left out, in words.

    A table that takes a row from another one (``from`` in its specification) gets the records of that row.
    """
    specifications = {name: load_specification(name) for name in preset_names()}
    groups: dict[Place, list[Kept]] = {}
    for kept in folder.kept:
        for variant in _variants(kept, folder, specifications):
            groups.setdefault((kept.run.table, kept.run.dataset, variant), []).append(kept)
    for (table, dataset, variant), members in list(groups.items()):
        specification = specifications.get(table)
        for row, settings in (specification.methods if specification else {}).items():
            source = (str(settings.get("from")), dataset, variant)
            members += [k for k in groups.get(source, []) if k.run.row == row]
    for place in [p for p in groups if _is_within_tuned(p, groups)]:
        del groups[place]
    notes: list[str] = []
    kept_groups = {place: _one_setting(place, members, notes) for place, members in groups.items()}
    return dict(sorted(kept_groups.items(), key=lambda item: _order(item[0], specifications))), notes


def _is_within_tuned(place: Place, groups: Mapping[Place, list[Kept]]) -> bool:
    """Whether all records are there only because tuning chose the table's own settings for some rows."""
    table, dataset, variant = place
    tuned = groups.get((table, dataset, "; ".join(filter(None, [TUNED, variant]))), [])
    return TUNED not in variant and all(any(k is t for t in tuned) for k in groups[place])


def _order(place: Place, specifications: Mapping[str, Specification]) -> tuple[bool, int, str, int, str]:
    names = list(specifications)
    table, dataset, variant = place
    datasets = list(specifications[table].datasets) if table in specifications else []
    number = datasets.index(dataset) if dataset in datasets else len(datasets)
    place_of_table = names.index(table) if table in names else len(names)
    is_other = not re.fullmatch(r"table\d+", table)  # those of the paper come first
    return is_other, place_of_table, table, number, variant


def _variants(kept: Kept, folder: Folder, specifications: Mapping[str, Specification]) -> set[str]:
    """A record whose tuned settings are the table's own stands in both variants."""
    run = kept.run
    base = _specified(run, specifications)
    found: set[str] = set()
    for (place, key), chosen in folder.chosen.items():
        if place == kept.file.parent and _is_choice(run, key, chosen, base):
            found.add(_joined(run, TUNED))
    if not found or (base is not None and base.key == run.key):
        found.add(_joined(run, *_departures(run, base)))
    return found


def _joined(run: Run, *parts: str) -> str:
    return "; ".join([*parts, *([MATCHED] if run.match_evaluations else [])])


def _specified(run: Run, specifications: Mapping[str, Specification]) -> Run | None:
    """The same run as the table specifies it; None if there is no such table, data set or row."""
    if run.table not in specifications:
        return None
    try:
        found = runs(
            run.table,
            specifications[run.table],
            datasets=[run.dataset],
            methods=[run.row],
            seeds=1,
            match_evaluations=run.match_evaluations,
        )
    except SpecificationError:
        return None
    return found[0].model_copy(update={"seed": run.seed}) if found else None


def _is_choice(run: Run, key: str, chosen: Mapping[str, Any], base: Run | None) -> bool:
    """Whether a run has the settings that tuning chose."""
    values = chosen["values"]
    if not isinstance(values, dict):
        return False
    if base is not None and base.key == key:
        places = {(n.partition(".")[0], n.partition(".")[2]): v for n, v in values.items()}
        return with_values(base, places, run.seed).key == run.key
    if not values:
        return run.key == key
    entries = {f"{k}.{n}": v for k in ("training", "settings") for n, v in getattr(run, k).items()}
    return all(entries.get(name) == value for name, value in values.items())


def _departures(run: Run, base: Run | None) -> list[str]:
    if base is None or base.key == run.key:
        return []
    changed = {n: v for n, v in run.training.items() if base.training.get(n) != v}
    if changed:
        return [", ".join(f"{name} = {value}" for name, value in sorted(changed.items()))]
    return ["settings of the methods differ from the table's"]


def _one_setting(place: Place, members: Iterable[Kept], notes: list[str]) -> list[Kept]:
    """Of each row the settings with most seeds; a table has one line for a row."""
    by_row: dict[str, list[Kept]] = {}
    for kept in members:
        by_row.setdefault(kept.run.row, []).append(kept)
    found = []
    for row, all_of_row in by_row.items():
        counts = Counter(kept.run.key for kept in all_of_row)
        key = max(counts, key=lambda k: (counts[k], k))
        found += [kept for kept in all_of_row if kept.run.key == key]
        if len(counts) > 1:
            notes.append(
                f"{place[0]}, {place[1]}, {row}: {len(all_of_row) - counts[key]} records with other settings "
                f"are left out (most seeds has the setting {key})."
            )
    return found
