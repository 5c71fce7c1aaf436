"""Values of parameters and labels as JSON, and back with the types they had."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from elliptica.diffusion import Green, Screened

_LAWS = {"green": Green, "screened": Screened}


def encode(name: str, value: Any) -> Any:
    """A value that JSON can hold; tuples, dicts and laws of the noise are marked as such."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = [encode(name, item) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {"dict": [[encode(name, k), encode(name, v)] for k, v in value.items()]}
    for kind, law in _LAWS.items():
        if isinstance(value, law):
            return {kind: {k: encode(name, v) for k, v in vars(value).items()}}
    if isinstance(value, torch.device):
        return str(value)
    raise TypeError(
        f"The parameter {name}={value!r:.60} ({type(value).__name__}) cannot be written to a safe file: it "
        f"holds numbers, strings, tuples, lists and dicts. Set {name} to one of these and save again."
    )


def decode(value: Any) -> Any:
    """The inverse of `encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(decode(item) for item in content)
    if kind == "dict":
        return {decode(k): decode(v) for k, v in content}
    return _LAWS[kind](**content)


def encode_labels(labels: np.ndarray) -> dict[str, Any]:
    """Class labels with their dtype: whole or real numbers, strings, booleans."""
    values = labels.tolist()
    if any(not isinstance(value, (bool, int, float, str)) for value in values):
        odd = next(value for value in values if not isinstance(value, (bool, int, float, str)))
        raise TypeError(
            f"Class labels of type {type(odd).__name__} cannot be written to a safe file. Use strings, "
            "numbers or booleans as labels."
        )
    return {"dtype": labels.dtype.str, "values": values}


def decode_labels(state: dict[str, Any]) -> np.ndarray:
    """The inverse of `encode_labels`."""
    dtype = np.dtype(state["dtype"])
    if dtype.kind not in "biufUO":
        raise ValueError(f"labels of dtype {dtype}")
    return np.array(state["values"], dtype=dtype)
