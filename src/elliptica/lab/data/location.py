"""Find data files on this machine and check that they are the published ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

#: Environment variable that names the data directory.
ENVIRONMENT_VARIABLE = "ELLIPTICA_DATA"


def data_directories(data_dir: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """List the directories in which data files are looked for, first choice first.

    An explicit ``data_dir`` is the only place. Without it: the directory named by the
    environment variable ``ELLIPTICA_DATA``, if set, then ``elliptica`` in the user's cache folder
    (``XDG_CACHE_HOME``, or ``~/.cache``). Directories need not exist.

    Example:
        >>> [str(place) for place in data_directories("my/data")] == [str(Path("my/data"))]
        True
    """
    if data_dir is not None:
        return (Path(data_dir).expanduser(),)
    places = []
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        places.append(Path(named).expanduser())
    places.append(_cache_directory() / "elliptica")
    return tuple(places)


def find_file(
    relative_path: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    *,
    source: str = "",
) -> Path:
    """Return the first existing file among the data directories.

    Args:
        relative_path: Path inside a data directory, e.g. ``"no2/NO2.csv"``.
        data_dir: The one directory to look in; see `data_directories` if None.
        source: Where the original can be had from; quoted in the error message.

    Raises:
        FileNotFoundError: If no directory holds the file. The message lists every place.
        ValueError: If ``relative_path`` is absolute.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "a.txt").write_text("hello")
        ...     find_file("a.txt", folder).name
        'a.txt'
    """
    relative = Path(relative_path)
    if relative.is_absolute():
        raise ValueError(
            f"relative_path must be relative to a data directory, but got {str(relative)!r}. "
            "Pass the directory as data_dir and the rest as relative_path."
        )
    candidates = [place / relative for place in data_directories(data_dir)]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    looked = "\n".join(f"  {candidate}" for candidate in candidates)
    raise FileNotFoundError(
        f"Expected the data file {relative.as_posix()!r}, but found none of\n{looked}\n"
        f"Set the environment variable {ENVIRONMENT_VARIABLE}, or pass data_dir (--data-dir on "
        f"the command line), to the directory that holds {relative.as_posix()!r}." + _origin(source)
    )


def verify_sha256(path: str | os.PathLike[str], expected: str, *, source: str = "") -> None:
    """Refuse a file whose content is not byte for byte the published one.

    Args:
        path: File to read.
        expected: SHA-256 of the published file, 64 hexadecimal digits.
        source: Where the original can be had from; quoted in the error message.

    Raises:
        ValueError: If the hashes differ.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "a.txt"
        ...     _ = file.write_bytes(b"hello")
        ...     verify_sha256(file, hashlib.sha256(b"hello").hexdigest())
    """
    verify_checksum(path, f"sha256:{expected}", source=source)


def verify_checksum(path: str | os.PathLike[str], expected: str, *, source: str = "") -> None:
    """Refuse a file whose content is not the published one, by whichever hash was published.

    Args:
        path: File to read.
        expected: Name of the hash and its hexadecimal digits, e.g. ``"md5:750601b1f35b..."``.
        source: Where the original can be had from; quoted in the error message.

    Raises:
        ValueError: If the hashes differ.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "a.txt"
        ...     _ = file.write_bytes(b"hello")
        ...     verify_checksum(file, "md5:5d41402abc4b2a76b9719d911017c592")
    """
    name, wanted = expected.split(":")
    with Path(path).open("rb") as file:
        got = checksum(iter(lambda: file.read(1 << 20), b""), name)
    if got != wanted.lower():
        label = {"sha256": "SHA-256", "md5": "MD5"}.get(name, name)
        raise ValueError(
            f"Expected {os.fspath(path)} to have {label}\n  {wanted}\nbut it has\n  {got}\n"
            "The file is damaged, another edition, or had its line endings converted. "
            "Delete it and put the original there, unchanged." + _origin(source)
        )


def checksum(blocks: Iterable[bytes], name: str) -> str:
    """Hexadecimal digits of the hash ``name`` of blocks of bytes, one after the other."""
    # some hardened systems allow MD5 only where it guards against accidents, as it does here
    digest = hashlib.new(name, usedforsecurity=False)
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def _cache_directory() -> Path:
    """Return the user's cache folder; a relative ``XDG_CACHE_HOME`` is void, by that standard."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path.home() / ".cache"


def _origin(source: str) -> str:
    return f" The original comes from: {source}." if source else ""
