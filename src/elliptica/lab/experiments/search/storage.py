"""Where a search keeps its trials: a journal file (any shared file system) or a database.

Problems with it are found before the first trial, in words that name the file and what to do.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import warnings
from pathlib import Path
from typing import Any

from elliptica.lab.experiments.specification import SpecificationError

#: Seconds to wait for another process that writes to the same SQLite file.
_PATIENCE = 60
#: What a database says when two processes make the same tables.
_MEANWHILE = ("already exists", "UNIQUE constraint", "locked")


def open_storage(storage: str) -> Any:
    """Open or make a storage: ``sqlite:///FILE`` (one machine), another database's address, or a journal.

    A journal is a file of lines; its locks work on the file systems of clusters, where those of SQLite often
    do not.

    Raises:
        SpecificationError: If the file cannot be written, or is something else than a storage.
    """
    import optuna

    if "://" not in storage:
        file = Path(storage)
        _check_writable(file)
        _check_journal(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Optuna 4, where journals were new
            backend = optuna.storages.journal.JournalFileBackend(str(file))
            try:
                return optuna.storages.JournalStorage(backend)
            except (OSError, ValueError, KeyError) as error:
                raise SpecificationError(
                    f"The journal {file} cannot be read ({error}). Choose another file with --storage."
                ) from error
    engine: dict[str, Any] = {}
    if storage.startswith("sqlite:"):
        file = Path(storage.partition("sqlite:///")[2])
        if not storage.startswith("sqlite:///") or not file.name:
            raise SpecificationError(
                f"A SQLite storage is written sqlite:///FILE, but got {storage!r}. E.g. sqlite:///search.db."
            )
        _check_writable(file)
        _check_database(file)
        engine = {"connect_args": {"timeout": _PATIENCE}}
    return _open_database(storage, engine)


def _open_database(storage: str, engine: dict[str, Any]) -> Any:
    import optuna

    for attempts_left in (4, 3, 2, 1, 0):
        try:
            return optuna.storages.RDBStorage(storage, engine_kwargs=engine)
        except ModuleNotFoundError as error:
            raise SpecificationError(
                f"The storage {storage!r} needs the package {error.name}. Install it, or use "
                "sqlite:///FILE or a journal file."
            ) from error
        except Exception as error:  # whatever a driver raises
            if attempts_left and any(word in str(error) for word in _MEANWHILE):
                time.sleep(0.3)  # another worker was making the same tables
                continue
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise SpecificationError(
                f"The storage {storage!r} cannot be opened ({first}). Use sqlite:///FILE or a journal file."
            ) from error
    raise AssertionError("unreachable")


def _check_writable(file: Path) -> None:
    """Also makes the folder, so that a wrong path is noticed at once."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecificationError(f"The folder of the storage {file} cannot be made ({error}).") from error
    target = file if file.exists() else file.parent
    if file.is_dir() or not os.access(target, os.W_OK):
        what = "is a folder" if file.is_dir() else "cannot be written"
        raise SpecificationError(f"The storage {file} {what}. Choose another file with --storage.")


def _check_journal(file: Path) -> None:
    if not file.exists():
        return
    with file.open("rb") as lines:
        first = lines.readline()
    try:
        fits = not first or "op_code" in json.loads(first)
    except (ValueError, TypeError):
        fits = False
    if not fits:
        raise SpecificationError(
            f"{file} is not a journal of Optuna. Choose another file with --storage (a database is written "
            "sqlite:///FILE)."
        )


def _check_database(file: Path) -> None:
    if not file.exists() or not file.stat().st_size:
        return
    try:
        connection = sqlite3.connect(f"file:{file.resolve()}?mode=ro", uri=True, timeout=_PATIENCE)
        try:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise SpecificationError(
            f"{file} is not a SQLite file ({error}). Choose another one with --storage."
        ) from error
    if rows and not {"studies", "trials"} <= {name for (name,) in rows}:
        raise SpecificationError(
            f"{file} is a database of something else (with a table {rows[0][0]}). Choose another file with "
            "--storage."
        )
