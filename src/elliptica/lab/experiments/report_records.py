"""Read a folder of records without changing it: what can be used, and why the rest cannot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from elliptica.lab.experiments.specification import Run
from elliptica.report.content import ReportError

#: Longest reason that is quoted: a damaged file could make it of any length.
_LONGEST = 200
#: Larger files are no records; curves of the longest schedules have some hundred kilobytes.
_MOST_BYTES = 20_000_000


@dataclass(frozen=True)
class Kept:
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
    """What a folder holds.

    Attributes:
        root: The folder that was given.
        kept: Usable records, by file.
        unusable: Files that are no use, with the reason.
        n_trials: Records of tuning trials, which are not shown.
        seen: Hash and seed of each usable record.
        chosen: What tuning chose, by folder of the row and hash of the run that was tuned.
    """

    root: Path
    kept: list[Kept] = field(default_factory=list)
    unusable: list[tuple[str, str]] = field(default_factory=list)
    n_trials: int = 0
    seen: set[tuple[str, int]] = field(default_factory=set)
    chosen: dict[tuple[Path, str], Mapping[str, Any]] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        """What ``--out`` was when the records were written."""
        return self.kept[0].file.parents[3] if self.kept else self.root


def read_folder(root: Path) -> Folder:
    """Look at every file below a folder; nothing is renamed or removed.

    Raises:
        ReportError: If there is no record that can be used.
    """
    found = Folder(root)
    for file in sorted(root.rglob("*")):
        is_hidden = any(part.startswith(".") for part in file.relative_to(root).parts)  # locks, progress
        if file.is_file() and not is_hidden:
            _take(file, found)
    if not found.kept:
        raise ReportError(
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
            found.unusable.append((name, _reason(error)))


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "float")  # a tag of pydantic's
        return f"has a wrong entry: {place} is {first['input']!r:.40}. {first['msg']}"[:_LONGEST]
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError, RecursionError)):
        return f"is no JSON ({error})"[:_LONGEST]
    return str(error)[:_LONGEST]


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
    found.kept.append(Kept(file, run, content))


# What the page reads of a record, as a shape: damaged records are refused before anything is drawn.


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Sizes = dict[str, Annotated[int, Field(strict=True, ge=0)]]


class Bins(BaseModel):
    """Reliability: rows, summed confidence and right answers of each bin."""

    rows: list[Number]
    confidence: list[Number]
    right: list[Number]

    @model_validator(mode="after")
    def _check(self) -> Bins:
        if not len(self.rows) == len(self.confidence) == len(self.right):
            raise ValueError("the three lists must be of one length")
        return self


class Scores(BaseModel):
    """Metrics of the test rows; others than these are single numbers, or lists of names."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number | list[Any] | None] = Field(init=False)
    by_class: dict[str, Number] | None = None
    by_group: dict[str, Number] | None = None
    uncertainty: dict[str, Number] | None = None
    reliability: Bins | None = None


class Metrics(BaseModel):
    """Of the parts of the data; the page shows the test part."""

    test: Scores


class Spent(BaseModel):
    """What a first stage has cost."""

    evaluations: Number = 0
    seconds: Number = 0


class Cost(BaseModel):
    """What a run has cost."""

    evaluations: Number
    seconds: Number
    epochs: Annotated[int, Field(strict=True, gt=0)]
    first_stage: Spent = Spent()


class Counts(BaseModel):
    """Training rows of each class and group."""

    of_class: Sizes = Field({}, alias="class")
    of_group: Sizes = Field({}, alias="group")


class Rows(BaseModel):
    """Rows of the parts of the data."""

    train: Counts | None = None


class Shape(BaseModel):
    """A record, apart from its run."""

    metrics: Metrics
    cost: Cost
    epoch: Annotated[int, Field(strict=True, ge=0)]
    versions: dict[str, Any]
    curves: dict[str, list[Annotated[float, Field(strict=True)] | None]] = {}  # a loss may be infinite
    rows: Rows = Rows()
