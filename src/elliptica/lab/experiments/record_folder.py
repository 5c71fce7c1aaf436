"""Read a folder of records without changing it, refuse damaged ones, and group the others into tables."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elliptica.lab.experiments.records import Shape, reason
from elliptica.lab.experiments.specification import (
    Run,
    Specification,
    SpecificationError,
    load_specification,
    preset_names,
    runs,
    table_name,
)
from elliptica.lab.experiments.tuned import with_values

#: Larger files are no records; curves of the longest schedules have some hundred kilobytes.
_MOST_BYTES = 20_000_000


@dataclass(frozen=True)
class RunRecord:
    """A record that can be used, and where it was found."""

    file: Path
    run: Run
    content: Mapping[str, Any]

    @property
    def model_file(self) -> Path:
        """Where `elliptica run --keep-models` puts its weights."""
        return self.file.with_suffix(".model.safetensors")


@dataclass
class Folder:
    """What a folder holds."""

    root: Path  # the folder that was given
    records: list[RunRecord] = field(default_factory=list)  # usable records, by file
    unusable: list[tuple[str, str]] = field(default_factory=list)  # files that are no use, with the reason
    n_trials: int = 0  # records of tuning trials, which are not shown
    seen: set[tuple[str, int]] = field(default_factory=set)  # hash and seed of each usable record
    #: What tuning chose, by folder of the row and hash of the run that was tuned.
    chosen: dict[tuple[Path, str], Mapping[str, Any]] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        """What ``--out`` was when the records were written."""
        return self.records[0].file.parents[3] if self.records else self.root


def read_folder(root: Path) -> Folder:
    """Look at every file below a folder; nothing is renamed or removed.

    Raises:
        ValueError: If there is no record that can be used.
    """
    found = Folder(root)
    for file in sorted(root.rglob("*")):
        is_hidden = any(part.startswith(".") for part in file.relative_to(root).parts)  # locks, progress
        if file.is_file() and not is_hidden:
            _take(file, found)
    if not found.records:
        raise ValueError(
            f"{root} holds no record that can be used"
            + (
                f" (but {found.n_trials} of tuning trials, which only choose settings)"
                if found.n_trials
                else ""
            )
            + _listed(found)
            + " Pass the folder that elliptica run wrote to (--out, runs by default), a folder of elliptica "
            "compare, or a model with --data."
        )
    return found


def _listed(found: Folder) -> str:
    if not found.unusable:
        return "."
    lines = "".join(f"\n  {name}: {reason}" for name, reason in found.unusable[:5])
    more = len(found.unusable) - 5
    return f" ({len(found.unusable)} files cannot be used):{lines}" + (
        f"\n  and {more} more\n" if more > 0 else "\n"
    )


def _take(file: Path, found: Folder) -> None:
    name = str(file.relative_to(found.root))
    if {"trials", "searches"} & set(file.relative_to(found.root.parent).parts):
        found.n_trials += file.suffix == ".json"
    elif ".json.unusable-" in file.name or ".safetensors.unusable-" in file.name:
        found.unusable.append((name, "was set aside by an earlier run, which could not read it"))
    elif file.name.endswith(".part"):
        found.unusable.append((name, "is half-written: the run was killed, or is writing now"))
    elif file.suffix == ".safetensors" and not file.name.endswith(".model.safetensors"):
        if not file.with_suffix(".json").exists():
            found.unusable.append(
                (name, "is the checkpoint of a run that is not finished; elliptica run goes on")
            )
    elif file.suffix == ".json":
        try:
            _take_json(file, found)
        except (ValueError, OSError, RecursionError) as error:
            found.unusable.append((name, reason(error)))


def _take_json(file: Path, found: Folder) -> None:
    if file.stat().st_size > _MOST_BYTES:
        raise ValueError(f"is too large for a record ({file.stat().st_size / 1e6:.0f} MB)")
    text = file.read_text(encoding="utf-8")
    if not text.strip():
        raise ValueError("is empty")
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError(f"holds a {type(content).__name__}, not a record")
    if file.name.startswith("chosen-") and "values" in content:
        found.chosen[file.parent, file.stem.removeprefix("chosen-")] = content
        return
    if "about" in content and "records" in content:
        raise ValueError("is of elliptica compare, which has a page of its own: elliptica report its folder")
    missing = [key for key in ("run", "metrics", "cost", "versions") if key not in content]
    if missing:
        raise ValueError(f"has no {', '.join(missing)}: it is not a record of elliptica run")
    run = Run.model_validate(content["run"])
    Shape.model_validate(content)
    if (name := (run.key, run.seed)) in found.seen:
        raise ValueError("repeats the run of another record")
    found.seen.add(name)
    found.records.append(RunRecord(file, run, content))


#: Table, data set, and what is not as the table says.
Place = tuple[str, str, str]

TUNED = "settings tuned on the validation part"
MATCHED = "as many function evaluations for every method as for ordinary training"


def known_tables(own: Iterable[str] = ()) -> dict[str, Specification]:
    """Tables of the library, and one's own by their files, each under its name in records.

    Raises:
        ValueError: If a file cannot be used.
    """
    try:
        return {table_name(table): load_specification(table) for table in (*preset_names(), *own)}
    except SpecificationError as error:
        raise ValueError(str(error)) from error


def group_records(
    folder: Folder, specifications: Mapping[str, Specification]
) -> tuple[dict[Place, list[RunRecord]], list[str]]:
    """Records by table, data set and variant, and what was left out, in words.

    A table that takes a row from another one (``from`` in its specification) gets the records of that row.
    """
    groups: dict[Place, list[RunRecord]] = {}
    for record in folder.records:
        for variant in _variants(record, folder, specifications):
            groups.setdefault((record.run.table, record.run.dataset, variant), []).append(record)
    for (table, dataset, variant), members in list(groups.items()):
        specification = specifications.get(table)
        for row, settings in (specification.methods if specification else {}).items():
            source = (str(settings.get("from")), dataset, variant)
            members += [k for k in groups.get(source, []) if k.run.row == row]
    for place in [p for p in groups if _is_within_tuned(p, groups)]:
        del groups[place]
    notes: list[str] = []
    chosen = {place: _one_setting(place, members, notes) for place, members in groups.items()}
    return dict(sorted(chosen.items(), key=lambda item: _order(item[0], specifications))), notes


def _is_within_tuned(place: Place, groups: Mapping[Place, list[RunRecord]]) -> bool:
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


def _variants(record: RunRecord, folder: Folder, specifications: Mapping[str, Specification]) -> set[str]:
    """A record whose tuned settings are the table's own stands in both variants."""
    run = record.run
    base = _specified(run, specifications)
    found: set[str] = set()
    for (place, key), chosen in folder.chosen.items():
        if place == record.file.parent and _is_choice(run, key, chosen, base):
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


def _one_setting(place: Place, members: Iterable[RunRecord], notes: list[str]) -> list[RunRecord]:
    """Of each row the settings with most seeds; a table has one line for a row."""
    by_row: dict[str, list[RunRecord]] = {}
    for record in members:
        by_row.setdefault(record.run.row, []).append(record)
    found = []
    for row, of_row in by_row.items():
        counts = Counter(record.run.key for record in of_row)
        key = max(counts, key=lambda k: (counts[k], k))
        found += [record for record in of_row if record.run.key == key]
        if len(counts) > 1:
            notes.append(
                f"{place[0]}, {place[1]}, {row}: {len(of_row) - counts[key]} records with other settings "
                f"are left out (most seeds has the setting {key})."
            )
    return found
