"""Made-up files for the loaders of tables, and checks that these loaders share."""

import dataclasses
import hashlib

import numpy as np
import pytest

from elliptica.lab.data import tabular


def expect(monkeypatch, table, path):
    """Let a loader expect the file that is there."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    file = dataclasses.replace(table.file, checksum=f"sha256:{digest}")
    monkeypatch.setattr(tabular, f"_{table.name.upper()}", dataclasses.replace(table, file=file))


def check_damaged_file(load, folder, path, damage, message):
    """A damaged file is refused with the reason, its place and its origin."""
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message) as error:
        load(0, data_dir=folder)
    for needed in (str(path), "put the original there", "UCI"):
        assert needed in str(error.value)


def check_missing_file(load, folder, origin):
    with pytest.raises(FileNotFoundError, match=f"The original comes from{origin}") as error:
        load(0, data_dir=folder)
    assert str(folder) in str(error.value)


def check_global_random_state(load, folder):
    np.random.seed(5)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    load(0, data_dir=folder)
    assert np.random.random() == expected  # noqa: NPY002
