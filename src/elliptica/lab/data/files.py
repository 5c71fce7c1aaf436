"""Find data files on this machine, check that they are the published ones, and download them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elliptica import __version__

#: Environment variable that names the data directory.
ENVIRONMENT_VARIABLE = "ELLIPTICA_DATA"

#: Called with the bytes that are there and the bytes of the whole file (None if the server does not say).
Progress = Callable[[int, int | None], None]

_BLOCK = 1 << 18
#: Files whose size is not published may be so large.
_MOST_BYTES = 20 * 10**9
_TIMEOUT = 30.0
_BROKEN = (http.client.HTTPException, OSError)


def data_directories(data_dir: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """List the directories in which data files are searched, first choice first.

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
    raise _not_found("data file", relative.as_posix(), candidates, source)


def find_folder(
    names: Sequence[str], data_dir: str | os.PathLike[str] | None = None, *, source: str = ""
) -> Path:
    """Return the first of several folders that exists in a data directory.

    Raises:
        FileNotFoundError: If there is none. The message lists every place.
    """
    candidates = [place / name for place in data_directories(data_dir) for name in names]
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise _not_found("folder", names[0], candidates, source)


def _not_found(kind: str, name: str, candidates: Sequence[Path], source: str) -> FileNotFoundError:
    looked = "\n".join(f"  {candidate}" for candidate in candidates)
    return FileNotFoundError(
        f"Expected the {kind} {name!r}, but found none of\n{looked}\n"
        f"Set the environment variable {ENVIRONMENT_VARIABLE}, or pass data_dir (--data-dir on the command "
        f"line), to the directory that holds {name!r}." + _origin(source)
    )


def verify_checksum(path: str | os.PathLike[str], expected: str, *, source: str = "") -> None:
    """Raise an error unless a file is byte for byte the published one, by its published hash.

    Args:
        path: File to read.
        expected: Name of the hash and its hexadecimal digits, e.g. ``"md5:750601b1f35b..."``.
        source: Where the original can be had from; quoted in the error message.

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
    """Return the hexadecimal digits of the hash ``name`` of consecutive blocks of bytes."""
    # some hardened systems allow MD5 only for purposes other than security, such as this
    digest = hashlib.new(name, usedforsecurity=False)
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def _cache_directory() -> Path:
    """Return the user's cache folder; the standard says to ignore a relative ``XDG_CACHE_HOME``."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path.home() / ".cache"


def _origin(source: str) -> str:
    return f" The original comes from: {source}." if source else ""


def download_file(
    urls: Sequence[str],
    target: Path,
    verify: Callable[[Path], None],
    *,
    progress: Progress | None = None,
    most_bytes: int | None = None,
    attempts: int = 3,
    pause: float = 1.0,
) -> None:
    """Download a file from the first address that serves it.

    A partial download is kept next to the target, with the suffix ``.part``, and is resumed
    after an interruption, in this call or a later one. The target appears, under its own name, only when it
    is complete and verified.

    Args:
        urls: Addresses (http or https), tried in this order.
        target: Path of the file; its folder is created if needed.
        verify: Function that raises ValueError if the file is not the published one.
        progress: Callback, called from time to time and at the end.
        most_bytes: Size of the file, if it is known; a server that sends more is not read further.
        attempts: How often to resume after an interruption before trying the next address.
        pause: Seconds to wait before the first retry; doubled before each further one.

    Raises:
        ConnectionError: If no address could be reached, or all broke off.
        ValueError: If the downloaded file is not the published one; it is not kept.
        OSError: If it cannot be written, e.g. because the disk is full.
    """
    part = target.with_name(target.name + ".part")
    with _writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    problems = []
    for url in urls:
        try:
            limit = _MOST_BYTES if most_bytes is None else most_bytes
            _download(url, part, verify, progress or (lambda *_: None), limit, attempts, pause)
        except _UnwritableError:
            raise
        except _BROKEN as error:
            problems.append(f"  {url}: {_reason(error)}")
            continue
        with _writing(target):
            part.replace(target)
        return
    kept = f" {part.stat().st_size} bytes are kept in {part}." if part.exists() else ""
    raise ConnectionError(
        f"Expected to download {target.name}, but none of these addresses served it:\n"
        + "\n".join(problems)
        + f"\nCheck the network connection and rerun the same command to resume where it "
        f"stopped.{kept} Or put the file there yourself: {target}"
    )


def _download(
    url: str,
    part: Path,
    verify: Callable[[Path], None],
    progress: Progress,
    limit: int,
    attempts: int,
    pause: float,
) -> None:
    """Complete ``part`` from one address and verify it."""
    resumed = part.exists() and part.stat().st_size > 0
    for attempt in range(attempts):
        try:
            _continue(url, part, progress, limit)
            break
        except _BROKEN as error:
            if attempt == attempts - 1 or _is_final(error):
                raise
            time.sleep(pause * 2**attempt)
    try:
        verify(part)
    except ValueError:
        part.unlink()  # its first bytes may come from another edition
        if not resumed:
            raise
        _download(url, part, verify, progress, limit, attempts, pause)


def _continue(url: str, part: Path, progress: Progress, limit: int) -> None:
    """Fetch the missing bytes of ``part``; raise if the connection breaks off before the end."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"elliptica/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing, or the file became shorter; `verify` checks it
            error.close()
            return
        raise
    with response:
        answer = _Answer.of(response, have)
        if answer.total is not None and answer.total > limit:
            raise _TooLargeError(f"the server offers {answer.total} bytes, but the file has at most {limit}")
        with _writing(part):
            file = part.open("ab" if answer.begin else "wb")
        with file:
            have = answer.begin
            progress(have, answer.total)
            while block := response.read(_BLOCK):
                if have + len(block) > limit:
                    file.close()
                    part.unlink()  # it is not the file
                    raise _TooLargeError(f"the server sends more than the {limit} bytes of the file")
                with _writing(part):
                    file.write(block)
                    file.flush()
                have += len(block)
                progress(have, answer.total)
    if answer.total is not None and have < answer.total:
        raise ConnectionError(f"the connection broke off after {have} of {answer.total} bytes")


@dataclass(frozen=True)
class _Answer:
    """Offset of a response's bytes in the file, and the length of the file."""

    begin: int
    total: int | None

    @classmethod
    def of(cls, response: http.client.HTTPResponse, asked: int) -> _Answer:
        length = response.headers.get("Content-Length")
        if response.status != 206:  # the server sends all of it
            return cls(0, int(length) if length else None)
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != asked:
            raise http.client.HTTPException("the server answered with another range than requested")
        return cls(asked, int(match[2]) if match[2] != "*" else None)


def _is_final(error: Exception) -> bool:
    """Return whether a retry cannot help: the address is wrong, or there is no network."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code < 500 and error.code != 429
    return isinstance(error, (urllib.error.URLError, _UnwritableError, _TooLargeError))


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} ({error.reason})"
    if isinstance(error, urllib.error.URLError):
        return f"cannot be reached ({error.reason})"
    return str(error) or type(error).__name__


class _TooLargeError(http.client.HTTPException):
    """What arrives cannot be the file."""


class _UnwritableError(OSError):
    """An error of the disk, not of the network."""


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Distinguish errors of the disk from those of the network, and say what to do about them."""
    try:
        yield
    except OSError as error:
        advice = (
            "Free some space, or choose another data directory. The partial download is kept."
            if error.errno == errno.ENOSPC
            else "Choose a data directory that you may write to (--data-dir or ELLIPTICA_DATA)."
        )
        message = f"Cannot write {os.fspath(path)}: {error.strerror or error}. {advice}"
        raise _UnwritableError(error.errno, message) from error
