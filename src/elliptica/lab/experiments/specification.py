"""Specifications: one TOML file per table, of the paper or of one's own, checked key by key."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from elliptica._utils import checks

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

#: What is measured; accuracies and errors (of classes) are shown in percent.
Metric = Literal["rmse", "accuracy", "error"]
#: See `elliptica.lab.experiments.metrics.measure`.
Column = Literal["average", "weighted", "balanced", "worst", "top5", "auroc", "calibration"]
#: How the epoch is chosen: by a column on the validation part, or not at all.
Selection = Literal["average", "weighted", "balanced", "worst", "last"]


#: How to use methods, data and networks of one's own.
OWN = "If it is your own, name its module with --plugin."
#: Folders and files beside those of tables.
RESERVED = ("trials", "searches", "chosen")


class SpecificationError(ValueError):
    """A specification cannot be used; the message names the key."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PaperValue(_Strict):
    """A number of the paper and its deviation, in the units of the table."""

    mean: float
    std: float | None = None


class SearchSpec(_Strict):
    """A named search space: ranges of training settings, and of settings of the method."""

    training: dict[str, Range] = Field(default_factory=dict)
    settings: dict[str, Range] = Field(default_factory=dict)


class DatasetSpec(_Strict):
    """One data set of a table."""

    load: dict[str, Any] = Field(default_factory=dict)  # arguments of its loader
    model: dict[str, Any]  # name and settings of the network
    training: dict[str, Any]  # fields of `TrainingSettings`
    select: Selection | None = None  # column that chooses the epoch, if it is not the table's
    seeds: int | None = Field(default=None, ge=1)  # repetitions, if they are not the table's
    #: Name for the random streams in place of the data set's, to train the same networks twice.
    streams: str = ""
    #: Settings that differ from the table's, by row.
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)
    #: Settings of every row whose method is `elliptic`, weaker than those of rows.
    defaults: dict[str, Any] = Field(default_factory=dict)
    #: The paper's values, by method and column.
    paper: dict[str, dict[str, PaperValue]] = Field(default_factory=dict)
    note: str = ""  # printed below the table

    @field_validator("training")
    @classmethod
    def _check_epochs(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Rows of their own length and options that change it are computed from this number."""
        epochs = value.get("epochs", 1)
        if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
            raise ValueError(f"epochs must be a whole number of at least 1, but got {epochs!r:.60}")
        return value


class Specification(_Strict):
    """One table."""

    title: str  # heading
    paper: str = ""  # where it is in the paper; empty for a table of one's own
    metric: Metric  # what is measured on the test part
    columns: list[Column] = ["average"]  # what is shown, see `elliptica.lab.experiments.metrics.measure`
    select: Selection = "average"  # column that chooses the epoch, on the validation part, or ``"last"``
    seeds: int = Field(ge=1)  # repetitions
    trials: int = Field(default=10, ge=1)  # trials of `elliptica tune` for each row
    #: What it varies in the training of every row; a row's ``search`` adds settings of its method.
    search: dict[str, Range] = Field(default_factory=dict)
    #: Spaces of `elliptica tune --search`, by name.
    searches: dict[str, SearchSpec] = Field(default_factory=dict)
    #: Settings by name of the row; ``method`` in them names the method if the row's name does not, ``epochs``
    #: gives it a schedule of its own, ``training`` other training settings, ``skip`` leaves it out. ``from``
    #: names a table that has the same row: its runs are then these.
    methods: dict[str, dict[str, Any]] = Field(min_length=1)
    #: Data sets by name; ``name`` in ``load`` names the loader if that name does not.
    datasets: dict[str, DatasetSpec] = Field(min_length=1)

    @field_validator("methods", "datasets")
    @classmethod
    def _check_names(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Names become folders of records; a row may have "/", which is written as "-" there."""
        for name in value:
            is_bad = not name.isprintable() or name != name.strip() or len(name) > 100 or "," in name
            if not name or is_bad or name.startswith(".") or (info.field_name == "datasets" and "/" in name):
                raise ValueError(
                    f"{name!r:.120} cannot be the name of a folder, or be chosen on the command line. Use "
                    "at most 100 printable characters, no comma, no space at either end, no dot in front."
                )
        return value


class Run(_Strict):
    """Everything that decides the result of one run; its hash names the record."""

    table: str
    dataset: str
    row: str
    method: str
    seed: int
    metric: Metric
    columns: tuple[str, ...]
    select: str
    load: dict[str, Any]
    model: dict[str, Any]
    training: dict[str, Any]
    settings: dict[str, Any]
    match_evaluations: bool = False
    streams: str = ""

    @property
    def key(self) -> str:
        """Hash of all settings but the seed."""
        content = self.model_dump(mode="json", exclude={"seed"})
        if not self.streams:  # added later: records without it keep their names
            del content["streams"]
        text = json.dumps(content, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.table} {self.dataset} {self.row} seed {self.seed}"


def preset_names() -> list[str]:
    """Tables that come with the library."""
    folder = resources.files("elliptica.lab.experiments") / "presets"
    names = [entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")]
    return sorted(names, key=lambda name: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)])


def is_own(table: str) -> bool:
    """Whether a table is named by its file, such as ``"mine.toml"``, and not one of the library's."""
    return table.endswith(".toml") or "/" in table or "\\" in table


def table_name(table: str) -> str:
    """Name of a table in its records: of a file the name without folder and ending."""
    return Path(table).stem if is_own(table) else table


def load_specification(table: str) -> Specification:
    """Read a table of the library by name, e.g. ``"table3"``, or one's own by its file, ``"mine.toml"``.

    Raises:
        SpecificationError: If there is no such table, or it has wrong entries; the message names the key.
    """
    if is_own(table):
        return _load_file(Path(table))
    names = preset_names()
    if table not in names:
        raise SpecificationError(
            f"There is no table {table!r}. There are {', '.join(names)}. Name your own by its file, such as "
            "mine.toml."
        )
    text = (resources.files("elliptica.lab.experiments") / "presets" / f"{table}.toml").read_text()
    return parse_specification(text, table)


def _load_file(file: Path) -> Specification:
    name = file.stem
    if name in preset_names():
        raise SpecificationError(
            f"{file} would share its records with the table {name!r} of the library. Rename the file."
        )
    if name in RESERVED or name.startswith("."):
        raise SpecificationError(
            f"{file}: {name!r} cannot be the name of a table, because its records would not be found again. "
            "Rename the file."
        )
    try:
        if file.exists() and not file.is_file():
            raise OSError("it is a folder, a pipe or a device, not a regular file")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecificationError(f"{file} cannot be read ({error}).") from error
    return parse_specification(text, str(file))


def parse_specification(text: str, name: str) -> Specification:
    """Check a specification; errors name the key."""
    try:
        return Specification.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SpecificationError(f"{name} is not valid TOML: {error}") from error
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise SpecificationError("\n".join([f"{name} has wrong entries:", *lines])) from error


def runs(
    name: str,
    specification: Specification,
    *,
    datasets: list[str] | None = None,
    methods: list[str] | None = None,
    seeds: int | None = None,
    match_evaluations: bool = False,
    training: dict[str, Any] | None = None,
) -> list[Run]:
    """All runs of a table, or those asked for; ``training`` overrides settings of all of them."""
    datasets = _resolved(datasets, list(specification.datasets))
    _check_known("data set", datasets, list(specification.datasets), name)
    _check_known("method", methods, list(specification.methods), name)
    found = []
    for dataset in datasets or list(specification.datasets):
        spec = specification.datasets[dataset]
        _check_known("method", list(spec.methods) or None, list(specification.methods), f"{name}: {dataset}")
        for row in methods or list(specification.methods):
            settings = {**specification.methods[row], **spec.methods.get(row, {})}
            if settings.get("method", row) == "elliptic":
                settings = {**spec.defaults, **settings}
            settings.pop("search", None)
            n_seeds = seeds or spec.seeds or specification.seeds
            if settings.pop("skip", False):
                continue
            if "from" in settings:
                found += _runs_of_another_table(
                    name, settings["from"], dataset, spec, row, n_seeds, match_evaluations, training
                )
                continue
            try:
                found += _runs_of_row(
                    name, specification, dataset, row, settings, n_seeds, match_evaluations, training
                )
            except (TypeError, ValueError) as error:  # e.g. a text where a number is expected
                raise SpecificationError(
                    f"{name}: methods.{row}, or datasets.{dataset}.methods.{row}: {error}"
                ) from error
    return found


def _runs_of_row(
    name: str,
    specification: Specification,
    dataset: str,
    row: str,
    settings: dict[str, Any],
    n_seeds: int,
    match_evaluations: bool,
    training: dict[str, Any] | None,
) -> list[Run]:
    spec = specification.datasets[dataset]
    method = settings.pop("method", row)
    own = dict(settings.pop("training", {}))
    epochs = settings.pop("epochs", own.pop("epochs", None))
    if epochs is not None and not match_evaluations:  # matched costs need no other schedule
        own["epochs"] = _stretched(epochs, spec, training)
    return [
        Run(
            table=name,
            dataset=dataset,
            row=row,
            method=method,
            seed=seed,
            metric=specification.metric,
            columns=tuple(specification.columns),
            select=spec.select or specification.select,
            load={"name": dataset, **spec.load},
            model=spec.model,
            training={**spec.training, **(training or {}), **own},
            settings=settings,
            match_evaluations=match_evaluations,
            streams=spec.streams,
        )
        for seed in range(n_seeds)
    ]


def _stretched(epochs: int, spec: DatasetSpec, training: dict[str, Any] | None) -> int:
    """A row's own number of epochs, changed as much as that of all others."""
    usual = spec.training.get("epochs", epochs)
    checks.count("epochs", epochs)
    return max(round(epochs * (training or {}).get("epochs", usual) / usual), 1)


def _runs_of_another_table(
    name: str,
    other: str,
    dataset: str,
    spec: DatasetSpec,
    row: str,
    seeds: int,
    match_evaluations: bool,
    training: dict[str, Any] | None,
) -> list[Run]:
    """Runs that two tables have in common; they are done and recorded once, under the other's name."""
    try:
        if is_own(other):
            raise SpecificationError("Only tables of the library can be named here.")
        theirs = load_specification(other)
        there = theirs.datasets.get(dataset)
        for part in ("load", "model", "training"):
            if there is not None and getattr(there, part) != getattr(spec, part):
                raise SpecificationError(
                    f"{part} of {dataset} is {getattr(there, part)} there and {getattr(spec, part)} here."
                )
        return runs(
            other,
            theirs,
            datasets=[dataset],
            methods=[row],
            seeds=seeds,
            match_evaluations=match_evaluations,
            training=training,
        )
    except SpecificationError as error:
        raise SpecificationError(f'{name}: methods.{row}.from = "{other}": {error}') from error


def _resolved(asked: list[str] | None, known: list[str]) -> list[str] | None:
    """Names as the table writes them: ``-`` and ``_`` are the same."""
    plain = {name.replace("-", "_"): name for name in known}
    return None if asked is None else [plain.get(name.replace("-", "_"), name) for name in asked]


def _check_known(what: str, asked: list[str] | None, known: list[str], where: str) -> None:
    if asked is not None and not asked:
        raise SpecificationError(f"No {what} is named. Leave the option out for all of {where}'s.")
    for name in asked or []:
        if name in known:
            continue
        others = [table for table in preset_names() if name in _names(what, table)]
        hints = [f"{name} is in {', '.join(others)}."] if others else []
        said = " ".join([f"{where} has no {what} {name!r}.", *hints, f"It has {', '.join(known)}."])
        raise SpecificationError(said)


def _names(what: str, table: str) -> list[str]:
    specification = load_specification(table)
    return list(specification.methods if what == "method" else specification.datasets)


#: What a search can choose among.
Value = bool | int | float | str


class Range(BaseModel):
    """What a setting may be in a search."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: float | None = None  # smallest value
    high: float | None = None  # largest value
    log: bool = False  # search the logarithm
    integer: bool = False  # only whole numbers
    choices: tuple[Value, ...] | None = None  # in place of numbers between two: one of these

    @model_validator(mode="after")
    def _check(self) -> Range:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log or self.integer:
                raise ValueError("choices stand alone, without low, high, log or integer")
            if not self.choices or len(set(map(repr, self.choices))) < len(self.choices):
                raise ValueError("choices must be different from each other, and at least one")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give low and high, or choices")
        if not math.isfinite(self.low) or not math.isfinite(self.high):
            raise ValueError("low and high must be finite")
        if self.low > self.high or (self.log and self.low <= 0):
            raise ValueError("low must not exceed high, and must be positive with log = true")
        if self.integer and (self.low % 1 or self.high % 1):
            raise ValueError("low and high must be whole numbers with integer = true")
        return self

    def suggest(self, trial: Any, name: str) -> Value:
        """A value from an Optuna trial."""
        found: Value
        if self.choices is not None:
            found = trial.suggest_categorical(name, self.choices)
        elif self.integer:
            assert self.low is not None
            assert self.high is not None
            found = trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        else:
            found = trial.suggest_float(name, self.low, self.high, log=self.log)
        return found

    def contains(self, value: object) -> bool:
        """Whether a search could have found a value."""
        if self.choices is not None:
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        assert self.low is not None
        assert self.high is not None
        return self.low <= value <= self.high and not (self.integer and value % 1)

    def as_dict(self) -> dict[str, Any]:
        """For a file; numbers look as they did before there were choices."""
        if self.choices is not None:
            return {"choices": list(self.choices)}
        found: dict[str, Any] = {"low": self.low, "high": self.high, "log": self.log}
        return {**found, "integer": True} if self.integer else found
