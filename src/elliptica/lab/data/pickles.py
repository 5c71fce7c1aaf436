"""Read published pickles of numbers without running any code in them.

A pickle is a small program that may call any function it names. This reader knows no functions:
the few names that NumPy arrays use stand for plain containers, every other name raises an error, and
the arrays are built from the containers afterwards.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMBER = re.compile(r"[|<>=]?[uif][1248]|[|]?b1")


def load_plain_pickle(raw: bytes, origin: str) -> Any:
    """Read a pickle of dicts, lists, tuples, strings, numbers and arrays of numbers.

    Strings of Python 2 become bytes, so that keys look like ``b"data"``.

    Args:
        raw: Content of the file.
        origin: Name for the error message.

    Raises:
        ValueError: If the pickle names anything else than a NumPy array of numbers, or is damaged.

    Example:
        >>> load_plain_pickle(pickle.dumps({b"labels": [1, 2]}, protocol=2), "example")
        {b'labels': [1, 2]}
    """
    try:
        return _finish(_Reader(io.BytesIO(raw), encoding="bytes").load())
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise ValueError(
            f"Expected {origin} to be a pickle of plain containers and arrays of numbers, but reading it "
            f"failed: {type(error).__name__}: {error}. Nothing of it was run. Delete the file and put the "
            "published one there."
        ) from error


class _Array:
    """Placeholder for an array until its shape, type and bytes are known."""

    value: NDArray[Any] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, is_fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array holds something else than numbers")
        flat = np.frombuffer(raw, dtype=dtype.resolve())
        self.value = flat.reshape(tuple(map(int, shape)), order="F" if is_fortran else "C")


class _Dtype:
    """Placeholder for the type of an array's numbers."""

    def __init__(self, name: Any) -> None:
        self.name = _text(name)
        if not _NUMBER.fullmatch(self.name):
            raise pickle.UnpicklingError(f"arrays of type {self.name[:40]!r} are not plain numbers")
        self.order = ""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = _text(state[1])

    def resolve(self) -> np.dtype[Any]:
        """The NumPy type."""
        order = self.order if self.order in ("<", ">") else ""
        return np.dtype(order + self.name.lstrip("|<>="))


class _Reader(pickle.Unpickler):
    """An unpickler that knows only the names that arrays of numbers use."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Return the placeholder for a name; a new one each time, so that a pickle cannot change it."""
        if module in _MULTIARRAY and name == "_reconstruct":
            return lambda *_: _Array()
        if (module, name) == ("numpy", "ndarray"):
            return lambda *_: _refuse("numpy.ndarray as a function")
        if (module, name) == ("numpy", "dtype"):
            return lambda kind, *_: _Dtype(kind)
        if (module, name) == ("_codecs", "encode"):
            return lambda text, encoding="latin1": _encode_latin1(text, encoding)
        return _refuse(f"{module}.{name}")


def _refuse(what: str) -> Any:
    raise pickle.UnpicklingError(f"it calls {what}, which data do not need")


def _encode_latin1(text: Any, encoding: Any) -> bytes:
    """Decode bytes as Python 3 writes them in protocol 2."""
    if _text(encoding) != "latin1" or not isinstance(text, str):
        raise pickle.UnpicklingError("bytes are not written as latin1")
    return text.encode("latin1")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _finish(value: Any) -> Any:
    """Replace placeholders by arrays, in dicts and lists."""
    if isinstance(value, _Array):
        if value.value is None:
            raise pickle.UnpicklingError("an array has no content")
        return value.value
    if isinstance(value, dict):
        return {key: _finish(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_finish(item) for item in value)
    if value is None or isinstance(value, (bytes, str, int, float)):
        return value
    raise pickle.UnpicklingError(f"it holds a {type(value).__name__}")
