"""List every data set that the library can load, with its state on this machine and how to get it.

The facts are in ``catalogue.toml``; loaders take names, hashes and sizes of their files from there, too.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from elliptica.lab.data.files import checksum, data_directories, download_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class DataFile:
    """A file of a data set."""

    path: str  # path inside a data directory (or absolute, for files of a system package)
    checksum: str = ""  # kind and digits of the published hash; empty if there is none
    n_bytes: int | None = None  # published size
    urls: tuple[str, ...] = ()  # addresses it can be downloaded from, first choice first
    is_packed: bool = False  # the hash is that of the content of a gzip file, since packers differ


@dataclass(frozen=True)
class Entry:
    """Facts about a data set."""

    name: str  # short name
    title: str  # what it is, in a line
    task: str  # ``"regression"`` or ``"classification"``
    #: Rows for training, validation and test, or for training and test; empty for any number.
    rows: tuple[int, ...]
    licence: str  # terms of use, as commonly cited
    source: str  # who published it, with a DOI or an address
    loader: str  # dotted name of the function that loads it
    arguments: str = "seed"  # what the function is called with
    #: Sets of files, each of which is enough; the first is what `fetch` downloads.
    forms: tuple[tuple[DataFile, ...], ...] = ()
    hint: str = ""  # how else to get it

    @property
    def can_fetch(self) -> bool:
        """Whether `elliptica data fetch` can download it."""
        return bool(self.forms) and all(file.urls for file in self.forms[0])

    @property
    def call(self) -> str:
        """The call that loads it."""
        return f"{self.loader.rpartition('.')[2]}({self.arguments})"


def read_catalogue(text: str) -> tuple[Entry, ...]:
    """Parse entries from TOML, one table each.

    Example:
        >>> facts = 'title="", task="", rows=[], licence="", source="", loader="a.b"'
        >>> read_catalogue(f"toy = {{{facts}}}")[0].call
        'b(seed)'
    """
    return tuple(_entry(name, facts) for name, facts in tomllib.loads(text).items())


def _entry(name: str, facts: dict[str, Any]) -> Entry:
    forms = tuple(tuple(map(_file, form)) for form in facts.pop("forms", ()))
    return Entry(name, rows=tuple(facts.pop("rows")), forms=forms, **facts)


def _file(facts: dict[str, Any]) -> DataFile:
    return DataFile(urls=tuple(facts.pop("urls", ())), **facts)


#: All data sets.
ENTRIES = read_catalogue(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))

Status = Literal["present", "missing", "wrong", "generated"]
#: Called with the file's relative path, the bytes that are there and the bytes of the whole file.
FetchProgress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Listing:
    """A data set and its state on this machine."""

    entry: Entry  # what is known about the data set
    #: ``"present"``, ``"missing"``, ``"wrong"`` (another size or hash than the published one), or
    #: ``"generated"`` (it needs no files).
    status: Status
    detail: str  # where the files are, or what is missing or wrong
    paths: tuple[Path, ...] = ()  # the files, if they are present


def list_datasets(
    data_dir: str | os.PathLike[str] | None = None, *, verify: bool = True
) -> tuple[Listing, ...]:
    """List all data sets with their state on this machine.

    Args:
        data_dir: The one directory to look in; see `data_directories` if None.
        verify: Compare hashes, which reads every file that is there; otherwise sizes only.

    Example:
        >>> next(item.status for item in list_datasets("nowhere") if item.entry.name == "airfoil")
        'missing'
    """
    return tuple(_look(entry, data_dir, verify) for entry in ENTRIES)


def find_entry(name: str) -> Entry:
    """Return the entry of a name, ignoring case, hyphens and underscores.

    Example:
        >>> find_entry("no2").task
        'regression'
    """
    by_name = {plain_name(entry.name): entry for entry in ENTRIES}
    plain = plain_name(name)
    if plain in by_name:
        return by_name[plain]
    known = ", ".join(entry.name for entry in ENTRIES)
    raise ValueError(f"There is no data set {name!r}. There are {known}.")


def plain_name(name: str) -> str:
    """Normalise the spelling of a name.

    Example:
        >>> plain_name("Waterbirds-Features") == plain_name("waterbirds_features")
        True
    """
    return name.lower().replace("-", "_")


def fetch(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    progress: FetchProgress | None = None,
) -> tuple[Path, ...]:
    """Download a data set's published files into the data directory, unless they exist.

    Downloads resume where an earlier one stopped, are checked against the published hashes, and appear
    under their names only when complete. Existing files that are not the published ones are not changed,
    but reported.

    Args:
        name: Name in `list_datasets`.
        data_dir: Directory for the files. None means the first of `data_directories`.
        progress: Callback, called from time to time during each download.

    Raises:
        ValueError: If there is no such data set, it cannot be downloaded, or a file is not the published
            one.
        ConnectionError: If it cannot be downloaded. A partial download is kept.
        OSError: If the directory cannot be written to.
    """
    entry = find_entry(name)
    here = _look(entry, data_dir, verify=True)
    if here.status in ("present", "generated"):
        return here.paths
    if here.status == "wrong":
        raise ValueError(
            f"Expected the published files of {entry.name}, but {here.detail}. Nothing was downloaded. "
            "Delete or move that file and run the command again."
        )
    if not entry.can_fetch:
        raise ValueError(f"{entry.name} cannot be downloaded by this command. {entry.hint}")
    folder = data_directories(data_dir)[0]
    paths = []
    for file in entry.forms[0]:
        target = folder / file.path
        if not target.exists():
            report = None if progress is None else _named(progress, file.path)
            download_file(file.urls, target, _verifier(file, entry), progress=report, most_bytes=file.n_bytes)
        paths.append(target)
    return tuple(paths)


def _named(progress: FetchProgress, name: str) -> Callable[[int, int | None], None]:
    return lambda have, total: progress(name, have, total)


def _look(entry: Entry, data_dir: str | os.PathLike[str] | None, verify: bool) -> Listing:
    """Return the state by the first form whose files all exist, preferring valid files."""
    if not entry.forms:
        return Listing(entry, "generated", "made when it is loaded")
    wrong = ""
    for form in entry.forms:
        paths = [(file, _find(file, data_dir)) for file in form]
        there = [(file, path) for file, path in paths if path is not None]
        problems = [p for p in (_problem(file, path, verify) for file, path in there) if p]
        if len(there) == len(form) and not problems:
            files = tuple(path for _, path in there)
            return Listing(entry, "present", str(files[0].parent), files)
        wrong = wrong or next(iter(problems), "")
    if wrong:
        return Listing(entry, "wrong", wrong)
    missing = [file.path for file in entry.forms[0] if _find(file, data_dir) is None]
    return Listing(entry, "missing", ", ".join(missing))


def _find(file: DataFile, data_dir: str | os.PathLike[str] | None) -> Path | None:
    if Path(file.path).is_absolute():
        places = [Path(file.path)]
    else:
        places = [place / file.path for place in data_directories(data_dir)]
    return next((place for place in places if place.is_file()), None)


def _problem(file: DataFile, path: Path, verify: bool) -> str:
    """Return what is wrong with a file; empty if nothing."""
    size = path.stat().st_size
    if file.n_bytes is not None and size != file.n_bytes:
        return f"{path} has {size} bytes instead of {file.n_bytes}"
    if verify and file.checksum:
        kind, expected = file.checksum.split(":")
        try:
            got = checksum(_blocks(path, file.is_packed), kind)
        except (OSError, EOFError, zlib.error) as error:
            return f"{path} cannot be read ({error})"
        if got != expected:
            return f"{path} has the {kind} hash {got} instead of {expected}"
    return ""


def _blocks(path: Path, is_packed: bool) -> Iterator[bytes]:
    with gzip.open(path, "rb") if is_packed else path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block


def _verifier(file: DataFile, entry: Entry) -> Callable[[Path], None]:
    def verify(path: Path) -> None:
        if problem := _problem(file, path, verify=True):
            raise ValueError(
                f"The download of {file.path} is not the published file: {problem}. It was not kept. Try "
                f"again later, or get it by hand. {entry.hint} Source: {entry.source}."
            )

    return verify
