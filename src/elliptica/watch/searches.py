"""What `elliptica tune` left in a folder: searches in a journal, and settings that were chosen."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elliptica._words import count

#: Where `elliptica tune --search` keeps its trials unless it is told another place.
JOURNAL = "searches.journal"
#: Operations of Optuna's journal that are read here, by their number.
_NEW_STUDY, _NEW_TRIAL, _STATE, _MARK = 0, 4, 6, 8
#: States of its trials, by their number; those that wait have not begun.
_RUNNING, _WAITING = 0, 4
_STATES = {1: "finished", 2: "pruned", 3: "failed", _RUNNING: "under way"}
#: Marks of trials that are not of the budget, see `elliptica.experiments.search.study`.
_NOT_COUNTED = {"killed", "surplus"}


@dataclass
class _Study:
    name: str
    trials: dict[int, int] = field(default_factory=dict)


def search_lines(folder: Path) -> list[str]:
    """A line for each search in the journal, and one for each row with chosen settings; reads files only."""
    lines = [_told(study) for study in _studies(folder / JOURNAL)]
    for file in sorted(folder.glob("*/*/*/chosen-*.json")):
        row = " ".join(file.relative_to(folder).parts[:-1])
        lines.append(f"chosen for {row}{_values(file)}; elliptica run --tuned takes it")
    return lines


def _told(study: _Study) -> str:
    states = list(study.trials.values())
    ended = [f"{states.count(n)} {word}" for n, word in _STATES.items() if n in states]
    begun = sum(state != _WAITING for state in states)
    how = f" ({', '.join(ended)})" if ended else ""
    return f"search of {count(begun, 'trial')}{how}: {study.name}"  # the name may be cut on the screen


def _studies(journal: Path) -> list[_Study]:
    """Studies and the states of their trials; lines that cannot be read are passed over."""
    studies: list[_Study] = []
    place: list[int] = []  # the study of each trial: numbers of trials count over all studies
    try:
        lines = journal.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            _take(json.loads(line), studies, place)
        except (ValueError, KeyError, TypeError, IndexError):
            continue  # half-written, or of another version of Optuna
    return studies


def _take(entry: dict[str, Any], studies: list[_Study], place: list[int]) -> None:
    kind = entry["op_code"]
    if kind == _NEW_STUDY:
        if all(study.name != entry["study_name"] for study in studies):  # two workers may begin it
            studies.append(_Study(str(entry["study_name"])))
    elif kind == _NEW_TRIAL:
        study = studies[entry["study_id"]]
        study.trials[len(place)] = entry.get("state", _RUNNING)
        place.append(entry["study_id"])
    elif kind in (_STATE, _MARK):
        number = entry["trial_id"]
        trials = studies[place[number]].trials
        if kind == _MARK and _NOT_COUNTED & set(entry["user_attr"]):
            trials.pop(number, None)
        elif kind == _STATE and trials.get(number) in (_RUNNING, _WAITING):  # what has ended stays so
            trials[number] = entry["state"]


def _values(file: Path) -> str:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))["values"]
        told = [f"{n.partition('.')[2]} {v:.3g}" if isinstance(v, float) else f"{n.partition('.')[2]} {v}"
                for n, v in values.items()]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return " (the file cannot be read)"
    return f": {', '.join(told)}" if told else ": the settings of the table"
