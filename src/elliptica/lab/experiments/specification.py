"""Specifications: one TOML file per table, of the paper or of one's own, and the runs that it asks for."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Collection
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from elliptica.lab.training.batch import TrainingSettings

#: What is measured; accuracies and errors (of classes) are shown in percent.
Metric = Literal["rmse", "accuracy", "error"]
#: See `elliptica.lab.experiments.metrics.measure`.
Column = Literal["average", "weighted", "balanced", "worst", "top5", "auroc", "calibration"]
#: How the epoch is chosen: by a column on the validation part, or not at all.
Selection = Literal["average", "weighted", "balanced", "worst", "last"]


class SpecificationError(ValueError):
    """A specification cannot be used; the message names the key."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PaperValue(_Strict):
    """A number of the paper and its deviation, in the units of the table."""

    mean: float
    std: float | None = None


class Range(_Strict):
    """Values that `elliptica tune` draws for a setting."""

    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)
    log: bool = False  # draw the logarithm

    @model_validator(mode="after")
    def _check(self) -> Range:
        if not self.low <= self.high or (self.log and self.low <= 0):
            raise ValueError("low must not exceed high, and must be positive with log = true")
        return self


class DatasetSpec(_Strict):
    """One data set of a table."""

    load: dict[str, Any] = Field(default_factory=dict)  # arguments of its loader
    model: dict[str, Any]  # name and settings of the network
    training: dict[str, Any]  # fields of `TrainingSettings`
    select: Selection | None = None  # column that chooses the epoch, if it is not the table's
    seeds: int | None = Field(default=None, ge=1)  # repetitions, if they are not the table's
    #: Settings that differ from the table's, by row.
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)
    #: Settings of every row whose method is `elliptic`, weaker than those of rows.
    defaults: dict[str, Any] = Field(default_factory=dict)
    #: The paper's values, by method and column.
    paper: dict[str, dict[str, PaperValue]] = Field(default_factory=dict)
    note: str = ""  # printed below the table


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
    #: Settings by name of the row; ``method`` in them names the method if the row's name does not, ``epochs``
    #: gives it a schedule of its own, ``training`` other training settings, ``skip`` leaves it out. ``from``
    #: names a table that has the same row: its runs are then these.
    methods: dict[str, dict[str, Any]] = Field(min_length=1)
    #: Data sets by name; ``name`` in ``load`` names the loader if that name does not.
    datasets: dict[str, DatasetSpec] = Field(min_length=1)


class Run(_Strict):
    """Everything that decides the result of one run but the version of the draws, `records.DRAWS`."""

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

    @property
    def key(self) -> str:
        """Hash of all settings but the seed."""
        text = json.dumps(self.model_dump(mode="json", exclude={"seed"}), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    @property
    def streams(self) -> str:
        """Name of its random streams: data set, method and settings, never a table, a row or a file."""
        return f"{self.load['name']}/{self.method}/{json.dumps(self.settings, sort_keys=True)}"

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
    return table.endswith(".toml") or "/" in table


def table_name(table: str) -> str:
    """Name of a table in its records: of a file the name without folder and ending."""
    return Path(table).stem if is_own(table) else table


def load_specification(table: str) -> Specification:
    """Read a table of the library by name, e.g. ``"table3"``, or one's own by its file, ``"mine.toml"``."""
    if is_own(table):
        if not Path(table).is_file():  # to read a pipe would wait for ever
            raise SpecificationError(f"There is no file {table}.")
        try:
            return parse_specification(Path(table).read_text(encoding="utf-8"), table)
        except UnicodeDecodeError as error:
            raise SpecificationError(f"{table} is not valid TOML: {error}") from error
    if table not in preset_names():
        raise SpecificationError(
            f"There is no table {table!r}. There are {', '.join(preset_names())}; name your own by its file, "
            "such as mine.toml."
        )
    folder = resources.files("elliptica.lab.experiments") / "presets"
    return parse_specification((folder / f"{table}.toml").read_text(), table)


def parse_specification(text: str, name: str) -> Specification:
    """Check a specification; errors name the key."""
    try:
        return Specification.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SpecificationError(f"{name} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise SpecificationError(f"{name} has wrong entries: {_describe(error)}") from error


def _describe(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors())


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
    rows = _pick("method", methods, specification.methods, name)
    result = []
    for dataset in _pick("data set", datasets, specification.datasets, name):
        spec = specification.datasets[dataset]
        if spec.methods:
            _pick("method", list(spec.methods), specification.methods, f"{name}, {dataset}")
        for row in rows:
            settings = {**specification.methods[row], **spec.methods.get(row, {})}
            settings.pop("search", None)
            if settings.pop("skip", False):
                continue
            n_seeds = seeds or spec.seeds or specification.seeds
            if "from" in settings:
                other = settings["from"]
                result += runs(
                    other,
                    _same(load_specification(other), dataset, spec, f"{name}: methods.{row}.from = {other}"),
                    datasets=[dataset],
                    methods=[row],
                    seeds=n_seeds,
                    match_evaluations=match_evaluations,
                    training=training,
                )
                continue
            first = _run(name, specification, dataset, row, settings, match_evaluations, training or {})
            result += [first.model_copy(update={"seed": seed}) for seed in range(n_seeds)]
    return result


def _pick(what: str, asked: list[str] | None, known: Collection[str], where: str) -> list[str]:
    """Return the names that were asked for, all of them by default."""
    unknown = [] if asked is None else [name for name in asked if name not in known]
    if unknown or (asked is not None and not asked):
        raise SpecificationError(f"{where} has no {what} {unknown}. It has {', '.join(known)}.")
    return list(known) if asked is None else asked


def _same(other: Specification, dataset: str, spec: DatasetSpec, where: str) -> Specification:
    """Check that another table trains on a data set in the same way."""
    there = other.datasets.get(dataset)
    for part in ("load", "model", "training"):
        if there is None or getattr(there, part) != getattr(spec, part):
            raise SpecificationError(f"{where}: {part} of {dataset} is another there.")
    return other


def _run(
    name: str,
    specification: Specification,
    dataset: str,
    row: str,
    settings: dict[str, Any],
    match_evaluations: bool,
    training: dict[str, Any],
) -> Run:
    """Return the run of seed 0 of a row; raises `SpecificationError` if it cannot train so."""
    spec = specification.datasets[dataset]
    method = settings.pop("method", row)
    if method == "elliptic":
        settings = {**spec.defaults, **settings}
    row_training = dict(settings.pop("training", {}))
    epochs = settings.pop("epochs", row_training.pop("epochs", None))
    if epochs is not None and not match_evaluations:  # matched costs need no other schedule
        usual = spec.training.get("epochs", epochs)
        row_training["epochs"] = max(round(epochs * training.get("epochs", usual) / usual), 1)
    training = {**spec.training, **training, **row_training}
    try:
        TrainingSettings(**training)
    except ValidationError as error:
        raise SpecificationError(f"{name}, {dataset}, {row}: training: {_describe(error)}") from error
    return Run(
        table=name,
        dataset=dataset,
        row=row,
        method=method,
        seed=0,
        metric=specification.metric,
        columns=tuple(specification.columns),
        select=spec.select or specification.select,
        load={"name": dataset, **spec.load},
        model=spec.model,
        training=training,
        settings=settings,
        match_evaluations=match_evaluations,
    )
