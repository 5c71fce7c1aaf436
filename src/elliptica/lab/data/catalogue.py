"""List the data sets of the paper, find their files, check that they are the published ones, download them.

The facts are in ``catalogue.toml``. A loader asks `find_files` for its files and gets them only if their
published hashes match, so it need not check their content again.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tomllib
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from elliptica import __version__
from elliptica._utils.files import replacing

#: Environment variable that names the data directory.
ENVIRONMENT_VARIABLE = "ELLIPTICA_DATA"

Status = Literal["present", "missing", "wrong", "generated"]
Folder = str | os.PathLike[str] | None
#: Called with a file's relative path, the bytes that are there and the bytes of the whole file (0: unknown).
FetchProgress = Callable[[str, int, int], None]

_MEDMNIST = "MedMNIST v2, https://doi.org/10.5281/zenodo.10519652 (or package medmnist)"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class DataFile:
    """A file of a data set."""

    path: str  # inside a data directory (or absolute, for files of a system package)
    hash: str = ""  # kind and digits of the published hash; empty if there is none
    url: str = ""  # address to download it from
    packed: bool = False  # the hash is that of the content of a gzip file

    def problem(self, path: Path) -> str:
        """Compare a file with its published hash; return what is wrong, or an empty text."""
        if not self.hash:
            return ""
        kind, expected = self.hash.split(":")
        digest = hashlib.new(kind, usedforsecurity=False)  # hardened systems allow MD5 only like this
        try:
            with gzip.open(path) if self.packed else path.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
        except (OSError, EOFError, zlib.error) as error:
            return f"{path} cannot be read ({error})"
        got = digest.hexdigest()
        return "" if got == expected else f"{path} has the {kind} hash {got} instead of {expected}"


@dataclass(frozen=True)
class Entry:
    """Facts about a data set."""

    name: str
    title: str  # what it is, in a line
    #: Rows for training, validation and test, or for training and test; empty for any number.
    rows: tuple[int, ...]
    licence: str  # as commonly cited
    source: str  # who published it
    #: Sets of files, each of which is enough; the first is what `fetch` downloads.
    forms: tuple[tuple[DataFile, ...], ...] = ()
    hint: str = ""  # how else to get it
    shape: tuple[int, ...] = ()  # of an input, where it can be known without the data
    classes: int = 0  # how many, beside a shape; 0 for real targets

    @property
    def can_fetch(self) -> bool:
        """Whether `fetch` can download it."""
        return bool(self.forms) and all(file.url for file in self.forms[0])


@dataclass(frozen=True)
class Listing:
    """A data set and its state on this machine; ``"wrong"`` files have another hash than published."""

    entry: Entry
    status: Status
    detail: str = ""  # what is missing or wrong
    paths: tuple[Path, ...] = ()  # the files, if they are present


def read_catalogue(text: str) -> dict[str, Entry]:
    """Parse entries from TOML, one table each."""
    tables: dict[str, dict[str, Any]] = tomllib.loads(text)
    for name, facts in tables.items():
        if other := facts.pop("like", None):
            facts.update({key: tables[other][key] for key in ("source", "forms")})
        if md5 := facts.pop("medmnist", None):
            url = f"https://zenodo.org/records/10519652/files/{name}.npz?download=1"
            facts["forms"] = [[{"path": f"{name}/{name}.npz", "hash": f"md5:{md5}", "url": url}]]
            facts.setdefault("licence", "CC BY 4.0")
            facts["source"] = _MEDMNIST
    return {name: _entry(name, facts) for name, facts in tables.items()}


def _entry(name: str, facts: dict[str, Any]) -> Entry:
    forms = tuple(tuple(DataFile(**file) for file in form) for form in facts.get("forms", ()))
    sizes = {key: tuple(facts.get(key, ())) for key in ("rows", "shape")}
    return Entry(name, **{**facts, **sizes, "forms": forms})


_CATALOGUE = read_catalogue(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
#: All data sets.
ENTRIES = tuple(_CATALOGUE.values())


def plain_name(name: str) -> str:
    """Normalise the spelling of a name."""
    return name.lower().replace("-", "_")


def find_entry(name: str) -> Entry:
    """Return the entry of a name, ignoring case, hyphens and underscores.

    Example:
        >>> find_entry("no2").rows
        (200, 200, 100)
    """
    by_name = {plain_name(entry.name): entry for entry in ENTRIES}
    if plain_name(name) not in by_name:
        raise ValueError(f"There is no data set {name!r}. There are {', '.join(e.name for e in ENTRIES)}.")
    return by_name[plain_name(name)]


def data_directories(data_dir: Folder = None) -> tuple[Path, ...]:
    """List the directories in which data files are searched, first choice first.

    An explicit ``data_dir`` is the only place. Without it: the directory named by the environment variable
    ``ELLIPTICA_DATA``, then ``elliptica`` in the user's cache folder (``XDG_CACHE_HOME``, or ``~/.cache``).
    """
    if data_dir is not None:
        return (Path(data_dir).expanduser(),)
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))  # the standard says to ignore a relative one
    cache = (cache if cache.is_absolute() else Path.home() / ".cache") / "elliptica"
    return (Path(named).expanduser(), cache) if named else (cache,)


def list_datasets(data_dir: Folder = None, *, verify: bool = True) -> tuple[Listing, ...]:
    """List all data sets with their state on this machine; ``verify`` compares hashes."""
    return tuple(_look(entry, data_dir, verify) for entry in ENTRIES)


def find_files(name: str, data_dir: Folder = None) -> tuple[Path, ...]:
    """Return the files of a data set, in its first form that is complete and has the published hashes.

    Raises:
        FileNotFoundError: If no form is complete. The message says where they belong and how to get them.
        ValueError: If a file is not the published one.
    """
    listing = _look(find_entry(name), data_dir, verify=True)
    if listing.status == "present":
        return listing.paths
    entry = listing.entry
    advice = f"{entry.hint} Source: {entry.source}."
    if listing.status == "wrong":
        raise ValueError(f"{listing.detail}. Put the published file there, unchanged. {advice}")
    places = " or ".join(map(str, data_directories(data_dir)))
    fetch_it = f"Run elliptica data fetch {entry.name}. " if entry.can_fetch else ""
    raise FileNotFoundError(
        f"{name} needs {listing.detail} in {places} (change this with data_dir, --data-dir or "
        f"{ENVIRONMENT_VARIABLE}). {fetch_it}{advice}"
    )


def fetch(name: str, data_dir: Folder = None, *, progress: FetchProgress | None = None) -> tuple[Path, ...]:
    """Download a data set's published files into the first of `data_directories`, unless they exist.

    A file appears under its name only when it is complete and has the published hash. Existing files are not
    changed.

    Raises:
        ValueError: If there is no such data set, it cannot be downloaded, or a file is not the published one.
        OSError: If the address cannot be reached, or the directory cannot be written to.
    """
    entry = find_entry(name)
    listing = _look(entry, data_dir, verify=True)
    if listing.status in ("present", "generated"):
        return listing.paths
    if listing.status == "wrong":
        raise ValueError(f"{listing.detail}. Delete or move that file and run the command again.")
    if not entry.can_fetch:
        raise ValueError(f"{entry.name} cannot be downloaded by this command. {entry.hint}")
    folder = data_directories(data_dir)[0]
    for file in entry.forms[0]:
        if not (folder / file.path).exists():
            _download(file, folder / file.path, progress)
    return tuple(folder / file.path for file in entry.forms[0])


def _download(file: DataFile, target: Path, progress: FetchProgress | None) -> None:
    request = urllib.request.Request(file.url, headers={"User-Agent": f"elliptica/{__version__}"})
    with replacing(target) as part:
        with urllib.request.urlopen(request, timeout=30) as response, part.open("wb") as out:
            total, have = int(response.headers.get("Content-Length") or 0), 0
            while block := response.read(_BLOCK):
                have += out.write(block)
                if progress is not None:
                    progress(file.path, have, total)
        if problem := file.problem(part):
            raise ValueError(f"{file.url} is not the published file, and was not kept: {problem}.")


def _look(entry: Entry, data_dir: Folder, verify: bool) -> Listing:
    """Return the state by the first form whose files all exist and are right."""
    if not entry.forms:
        return Listing(entry, "generated")
    wrong = ""
    for form in entry.forms:
        files = [(file, path) for file in form if (path := _find(file, data_dir)) is not None]
        problems = [problem for file, path in files if verify and (problem := file.problem(path))]
        if len(files) == len(form) and not problems:
            return Listing(entry, "present", paths=tuple(path for _, path in files))
        wrong = wrong or next(iter(problems), "")
    if wrong:
        return Listing(entry, "wrong", wrong)
    missing = [file.path for file in entry.forms[0] if _find(file, data_dir) is None]
    return Listing(entry, "missing", ", ".join(missing))


def _find(file: DataFile, data_dir: Folder) -> Path | None:
    places = (place / file.path for place in data_directories(data_dir))  # an absolute path stays as it is
    return next((place for place in places if place.is_file()), None)
