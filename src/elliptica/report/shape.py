"""What the page reads of a record, as a shape: damaged records are refused before anything is drawn."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
