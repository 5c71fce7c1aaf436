"""Hostile files, for the library and the commands: damaged bytes, odd places, changed JSON and zips."""

from __future__ import annotations

import copy
import functools
import io
import json
import math
import operator
import os
import random
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from adversary.cases import Choice, bad, fine, just, odd

SHARE = st.floats(0, 1)


def _spoilt(
    change: Callable[[bytes, bytes, bytes], bytes], part: int | None = None
) -> Callable[[bytes, float], bytes]:
    """Change what lies at some share of a file: one byte, or this part of all; see `_AT_A_PLACE`."""

    def spoil(data: bytes, share: float) -> bytes:
        at = min(int(len(data) * share), max(len(data) - 1, 0))
        end = at + (max(1, len(data) // part) if part else 1)
        return change(data[:at], data[at:end], data[end:])

    return spoil


#: Damages at a place: functions of what is before it, there and behind it.
_AT_A_PLACE = {
    "cut off": _spoilt(lambda before, there, behind: before),
    "lowest bit": _spoilt(lambda before, there, behind: before + bytes(c ^ 1 for c in there) + behind),
    "highest bit": _spoilt(lambda before, there, behind: before + bytes(c ^ 128 for c in there) + behind),
    "cut out": _spoilt(lambda before, there, behind: before + behind, 20),
    "written twice": _spoilt(lambda before, there, behind: before + there + there + behind, 10),
    "zeros": _spoilt(lambda before, there, behind: before + bytes(len(there)) + behind, 10),
    "moved": _spoilt(lambda before, there, behind: there + behind + before),
    "a byte more": _spoilt(lambda before, there, behind: before + b"7" + there + behind),
}
_OF_ALL: dict[str, Callable[[bytes], bytes]] = {
    "more at the end": lambda data: data + b"\0" * 100,
    "more at the start": lambda data: b"junk\n" + data,
    "a byte-order mark": lambda data: b"\xef\xbb\xbf" + data,
    "Windows line ends": lambda data: data.replace(b"\n", b"\r\n"),
    "UTF-16": lambda data: data.decode("latin1").encode("utf-16"),
    "twice": lambda data: data + data,
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "only zeros": lambda data: b"\0" * len(data),
    "noise": lambda data: random.Random(len(data)).randbytes(500),
}
DAMAGES = (*_AT_A_PLACE, *_OF_ALL)


def damage(file: Path, how: str, share: float) -> None:
    """Damage a file in one of the `DAMAGES`."""
    data = file.read_bytes()
    file.write_bytes(_AT_A_PLACE[how](data, share) if how in _AT_A_PLACE else _OF_ALL[how](data))


def _placed(name: str, spoil: Callable[[bytes, float], bytes]) -> Choice:
    return odd(name, lambda case, share: functools.partial(spoil, share=share), SHARE)


#: What may happen to the bytes of a file.
BYTES = (
    fine("whole", just(lambda data: data)),
    *(_placed(name, spoil) for name, spoil in _AT_A_PLACE.items()),
    *(odd(name, just(spoil)) for name, spoil in _OF_ALL.items()),
)

#: What may stand where a file should be; each makes it at a path that does not exist.
INSTEAD: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "an empty device": lambda path: path.symlink_to("/dev/null"),
}


def _as_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _replacing(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda path: path.unlink() or make(path)


#: What may become of a file that exists.
PLACES = (
    fine("a file", just(lambda path: None)),
    fine("a link", just(_as_link)),
    *(bad(name, just(_replacing(make))) for name, make in INSTEAD.items()),
    bad("nothing", just(Path.unlink)),
)

#: Values that no file of ours holds; some are written by hand because JSON has no words for them.
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2.5, 1e308, math.nan, math.inf, -math.inf, 10**30, 2**31, 2**63, -(2**63)),
    *("", "x" * 100_000, "\ud800", "../../../etc/passwd", "\0", "nan", "1", "os.system", "\u202e", "=1+1"),
    *([], {}, [[]], [None], {"": None}, [1, 2, 3], {"tuple": [1]}, [0] * 10_000, {"a": {"a": {"a": 1}}}),
    *("@deep", "@digits", "@deep object", "<script>alert(7)</script>", "[red]"),
)
_BY_HAND = {
    '"@deep"': "[" * 100_000 + "]" * 100_000,
    '"@digits"': "9" * 10_000,
    '"@deep object"': '{"a":' * 50_000 + "1" + "}" * 50_000,
}


def _as_json(value: Any) -> str:
    text = json.dumps(value)
    for mark, by_hand in _BY_HAND.items():
        text = text.replace(mark, by_hand)
    return text


def _entries(value: Any) -> list[tuple[Any, Any]]:
    """Return every entry of a JSON value as its container and its key."""
    found, left = [], [value]
    while left:
        each = left.pop()
        keys = list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else []
        found += [(each, key) for key in keys]
        left += [each[key] for key in keys]
    return found


def _edited(edit: Callable[..., object], *shares: float) -> Callable[[Any], str]:
    """Edit the entries that lie at these shares of all."""

    def change(value: Any) -> str:
        value = copy.deepcopy(value)
        entries = _entries(value)
        edit(*(entries[min(int(share * len(entries)), len(entries) - 1)] for share in shares))
        return _as_json(value)

    return change


def replaced(number: int, share: float) -> Callable[[Any], str]:
    """Put a hostile value in the place of an entry."""
    return _edited(lambda entry: operator.setitem(*entry, HOSTILE[number]), share)


def dropped(share: float) -> Callable[[Any], str]:
    """Remove an entry."""
    return _edited(lambda entry: operator.delitem(*entry), share)


def _exchange(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    (a, i), (b, j) = one, other
    a[i], b[j] = copy.deepcopy(b[j]), copy.deepcopy(a[i])


_number = st.integers(0, len(HOSTILE) - 1)
#: What may happen to the entries of JSON; each makes a text of a value.
JSON = (
    fine("as it was", just(json.dumps)),
    fine("in other words", just(functools.partial(json.dumps, indent=3, ensure_ascii=False))),
    odd("replaced", lambda case, at: replaced(*at), st.tuples(_number, SHARE).map(list)),
    odd("dropped", lambda case, share: dropped(share), SHARE),
    odd("exchanged", lambda case, at: _edited(_exchange, *at), st.tuples(SHARE, SHARE).map(list)),
    odd("a key twice", just(lambda value: json.dumps(value)[:-1] + ', "format": null, "format": 3}')),
    odd("an entry more", just(lambda v: json.dumps({**v, "other": 1} if isinstance(v, dict) else v))),
    odd("in a list", just(lambda value: json.dumps([value]))),
    odd("another value", lambda case, number: lambda value: _as_json(HOSTILE[number]), _number),
)

Members = Sequence[tuple[str, bytes]]


def zip_of(members: Members, method: int = zipfile.ZIP_STORED) -> bytes:
    """Write a zip that depends on nothing but its members."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as file:
        warnings.simplefilter("ignore")
        for name, content in members:
            file.writestr(zipfile.ZipInfo(name), content, compress_type=method)
    return buffer.getvalue()


def members_of(data: bytes) -> list[tuple[str, bytes]]:
    """Read the members of a zip."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return [(info.filename, file.read(info)) for info in file.infolist()]


def _lies(members: Members, offset: int, size: int, value: int) -> bytes:
    """Change a number in the directory of a zip."""
    data = zip_of(members)
    at = data.rindex(b"PK\x01\x02") + offset
    return data[:at] + value.to_bytes(size, "little") + data[at + size :]


def _shifted(members: Members) -> bytes:
    """Give each member the content of the next."""
    contents = [content for _, content in (*members[1:], members[0])]
    return zip_of([(name, content) for (name, _), content in zip(members, contents, strict=True)])


_size = st.sampled_from([0, 1, 2**20, 2**31, 2**32 - 2])
#: What may happen to a zip; each makes other bytes of its members.
ZIPS = (
    fine("as it was", just(None)),
    fine("in another order", just(lambda members: zip_of(members[::-1]))),
    odd("compressed", just(lambda members: zip_of(members, zipfile.ZIP_DEFLATED))),
    odd("compressed otherwise", just(lambda members: zip_of(members, zipfile.ZIP_LZMA))),
    odd("a member more", just(lambda members: zip_of([*members, ("more.txt", b"1")]))),
    odd("a member twice", just(lambda members: zip_of([*members, members[0]]))),
    odd(
        "a member less",
        lambda case, n: lambda members: zip_of([m for i, m in enumerate(members) if i != n % len(members)]),
        st.integers(0, 9),
    ),
    odd("exchanged", just(_shifted)),
    odd("outside", just(lambda members: zip_of([("../../" + name, content) for name, content in members]))),
    odd("one outside", just(lambda members: zip_of([*members, ("/../../out.npy", members[-1][1])]))),
    odd("a bomb", just(lambda m: zip_of([*m[:-1], (m[-1][0], b"\0" * 2**27)], zipfile.ZIP_DEFLATED))),
    odd("a size that lies", lambda case, n: lambda members: _lies(members, 24, 4, n), _size),
    odd("a packed size that lies", lambda case, n: lambda members: _lies(members, 20, 4, n), _size),
    odd(
        "a place that lies",
        lambda case, n: lambda members: _lies(members, 42, 4, n),
        st.sampled_from([0, 1, 50, 2**31]),
    ),
    odd("encrypted", just(lambda members: _lies(members, 8, 2, 1))),
    odd("an unknown method", just(lambda members: _lies(members, 10, 2, 99))),
    odd("no members", just(lambda members: zip_of([]))),
)


def safetensors(data: bytes, change: Callable[[Any], str]) -> bytes:
    """Change the header of safetensors."""
    size = int.from_bytes(data[:8], "little")
    header = change(json.loads(data[8 : 8 + size])).encode("utf-8", "surrogatepass")
    return len(header).to_bytes(8, "little") + header + data[8 + size :]
