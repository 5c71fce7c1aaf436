"""Values of parameters and labels as JSON, and back with the types they had."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from elliptica.diffusion import Green, Screened

#: Strings of class labels that are read may take so much room, far above what labels need.
_MOST_CHARACTERS = 2**26

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
    if len(value) != 1:
        raise TypeError(f"a value with the marks {', '.join(map(repr, value))} instead of one mark")
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
    """The inverse of `encode_labels`; strings get the length of the longest, whatever the dtype says."""
    name, values = state["dtype"], state["values"]
    kind = np.dtype(name).kind if isinstance(name, str) else "?"
    if kind not in "biufUO":
        raise TypeError(f"labels of dtype {name!r}")
    odd = [value for value in values if not isinstance(value, (bool, int, float, str))]
    if not isinstance(values, list) or odd:
        raise TypeError("labels that are not a list of strings, numbers or booleans")
    if kind == "U":
        longest = max((len(str(value)) for value in values), default=0)
        if longest * len(values) > _MOST_CHARACTERS:  # each label takes the room of the longest
            raise ValueError(f"{len(values)} labels of up to {longest} characters")
        return np.array(values, dtype=str)
    return np.array(values, dtype=np.dtype(name))
