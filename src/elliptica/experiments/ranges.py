"""What a setting may be in a search: a range of numbers, of whole numbers, or a list of choices."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

#: What a search can choose among.
Value = bool | int | float | str


class Range(BaseModel):
    """What a setting may be in a search.

    Attributes:
        low: Smallest value.
        high: Largest value.
        log: Search the logarithm.
        integer: Only whole numbers.
        choices: In place of numbers between two: one of these.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: float | None = None
    high: float | None = None
    log: bool = False
    integer: bool = False
    choices: tuple[Value, ...] | None = None

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
