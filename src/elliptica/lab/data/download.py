"""Download one published file: resumable, checked, and there in full or not at all."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elliptica import __version__

#: Called with the bytes that are there and the bytes of the whole file (None if the server does not say).
Progress = Callable[[int, int | None], None]

_BLOCK = 1 << 18
_TIMEOUT = 30.0
_BROKEN = (http.client.HTTPException, OSError)


def download_file(
    urls: Sequence[str],
    target: Path,
    verify: Callable[[Path], None],
    *,
    progress: Progress | None = None,
    attempts: int = 3,
    pause: float = 1.0,
) -> None:
    """Download a file from the first address that serves it.

    What has arrived is kept next to the target with ``.part`` at the end of its name and is continued
    after an interruption, in this call or a later one. The target appears, under its own name, only when it
    is complete and verified.

    Args:
        urls: Addresses (http or https), tried in this order.
        target: Where the file goes; its folder is made if need be.
        verify: Raises ValueError if the file is not the published one.
        progress: Called from time to time, and at the end.
        attempts: How often to continue after an interruption before the next address is tried.
        pause: Seconds to wait before the first repetition; twice as long before each further one.

    Raises:
        ConnectionError: If no address could be reached, or all broke off.
        ValueError: If the file that arrived is not the published one; it is not kept.
        OSError: If it cannot be written, e.g. because the disk is full.
    """
    part = target.with_name(target.name + ".part")
    with _writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    problems = []
    for url in urls:
        try:
            _download(url, part, verify, progress or (lambda *_: None), attempts, pause)
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
        + f"\nCheck that this machine has a network and run the command again; it goes on where it "
        f"stopped.{kept} Or put the file there yourself: {target}"
    )


def _download(
    url: str, part: Path, verify: Callable[[Path], None], progress: Progress, attempts: int, pause: float
) -> None:
    """Complete ``part`` from one address and verify it."""
    resumed = part.exists() and part.stat().st_size > 0
    for attempt in range(attempts):
        try:
            _continue(url, part, progress)
            break
        except _BROKEN as error:
            if attempt == attempts - 1 or _is_final(error):
                raise
            time.sleep(pause * 2**attempt)
    try:
        verify(part)
    except ValueError:
        part.unlink()  # what it begins with may come from another edition
        if not resumed:
            raise
        _download(url, part, verify, progress, attempts, pause)


def _continue(url: str, part: Path, progress: Progress) -> None:
    """Fetch what is missing of ``part``; raises if the connection breaks off before the end."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"elliptica/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing, or the file has become shorter: verify decides
            error.close()
            return
        raise
    with response:
        answer = _Answer.of(response, have)
        with _writing(part):
            file = part.open("ab" if answer.begin else "wb")
        with file:
            have = answer.begin
            progress(have, answer.total)
            while block := response.read(_BLOCK):
                with _writing(part):
                    file.write(block)
                    file.flush()
                have += len(block)
                progress(have, answer.total)
    if answer.total is not None and have < answer.total:
        raise ConnectionError(f"the connection broke off after {have} of {answer.total} bytes")


@dataclass(frozen=True)
class _Answer:
    """Where the bytes of a response begin in the file, and how long the file is."""

    begin: int
    total: int | None

    @classmethod
    def of(cls, response: http.client.HTTPResponse, asked: int) -> _Answer:
        length = response.headers.get("Content-Length")
        if response.status != 206:  # the server sends all of it
            return cls(0, int(length) if length else None)
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != asked:
            raise http.client.HTTPException("the server answered with another range than the one asked for")
        return cls(asked, int(found[2]) if found[2] != "*" else None)


def _is_final(error: Exception) -> bool:
    """Whether asking again would not help: the address is wrong, or there is no network."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code < 500 and error.code != 429
    return isinstance(error, (urllib.error.URLError, _UnwritableError))


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} ({error.reason})"
    if isinstance(error, urllib.error.URLError):
        return f"cannot be reached ({error.reason})"
    return str(error) or type(error).__name__


class _UnwritableError(OSError):
    """The disk, not the network, is at fault."""


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Tell errors of the disk from those of the network, and say what to do about them."""
    try:
        yield
    except OSError as error:
        advice = (
            "Free some space, or choose another data directory; what has arrived is kept."
            if error.errno == errno.ENOSPC
            else "Choose a data directory that you may write to (--data-dir or ELLIPTICA_DATA)."
        )
        message = f"Cannot write {os.fspath(path)}: {error.strerror or error}. {advice}"
        raise _UnwritableError(error.errno, message) from error
