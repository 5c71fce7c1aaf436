"""Where data files are looked for, and what the user is told when they are not there."""

import hashlib
from pathlib import Path

import pytest

from elliptica.lab.data.files import data_directories, find_file, verify_checksum


@pytest.fixture
def places(tmp_path, monkeypatch):
    """One folder for each of the three ways to name a directory."""
    for name in ("argument", "environment", "cache/elliptica"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("ELLIPTICA_DATA", str(tmp_path / "environment"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_order_of_places(places):
    argument, environment, cache = (
        places / "argument",
        places / "environment",
        places / "cache" / "elliptica",
    )
    for folder in (argument, environment, cache):
        (folder / "a.csv").write_text("1")
    assert find_file("a.csv", argument) == argument / "a.csv"
    assert find_file("a.csv") == environment / "a.csv"
    (environment / "a.csv").unlink()
    assert find_file("a.csv") == cache / "a.csv"


def test_an_explicit_directory_is_the_only_place(places):
    (places / "environment" / "a.csv").write_text("1")
    with pytest.raises(FileNotFoundError) as error:
        find_file("a.csv", places / "argument")
    assert str(places / "environment") not in str(error.value)


def test_empty_variable_counts_as_unset(places, monkeypatch):
    monkeypatch.setenv("ELLIPTICA_DATA", "")
    assert data_directories() == (places / "cache" / "elliptica",)


@pytest.mark.parametrize("value", [None, "", "relative/folder"])
def test_cache_falls_back_to_the_home_folder(places, monkeypatch, value):
    """A relative XDG_CACHE_HOME is void, so that results do not depend on where one stands."""
    monkeypatch.delenv("ELLIPTICA_DATA")
    monkeypatch.setenv("HOME", str(places))
    if value is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert data_directories() == (places / ".cache" / "elliptica",)


def test_home_sign_is_expanded(places, monkeypatch):
    monkeypatch.setenv("HOME", str(places))
    monkeypatch.setenv("ELLIPTICA_DATA", "~/environment")
    assert data_directories()[0] == places / "environment"
    assert data_directories("~/argument") == (places / "argument",)


def test_missing_file_message(places):
    with pytest.raises(FileNotFoundError) as error:
        find_file("no2/NO2.csv", source="StatLib")
    message = str(error.value)
    for needed in (
        "'no2/NO2.csv'",
        str(places / "environment" / "no2" / "NO2.csv"),
        str(places / "cache" / "elliptica" / "no2" / "NO2.csv"),
        "ELLIPTICA_DATA",
        "data_dir",
        "--data-dir",
        "The original comes from: StatLib",
    ):
        assert needed in message


def test_a_folder_is_not_a_file(places):
    (places / "argument" / "a.csv").mkdir()
    with pytest.raises(FileNotFoundError):
        find_file("a.csv", places / "argument")


def test_absolute_path_is_refused(places):
    file = places / "a.csv"
    file.write_text("1")
    with pytest.raises(ValueError, match="must be relative to a data directory, but got"):
        find_file(file, places)


def test_sha256_accepts_the_right_content(tmp_path):
    file = tmp_path / "a.bin"
    content = bytes(range(256)) * 8192  # two blocks of the reading loop
    file.write_bytes(content)
    expected = hashlib.sha256(content).hexdigest()
    verify_checksum(file, f"sha256:{expected}")
    verify_checksum(str(file), f"sha256:{expected.upper()}")


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b + b"\n", lambda b: b.replace(b"\r\n", b"\n")]
)
def test_sha256_refuses_any_other_content(tmp_path, damage):
    content = b"1,2\r\n3,4\r\n"
    file: Path = tmp_path / "a.csv"
    file.write_bytes(damage(content))
    expected = hashlib.sha256(content).hexdigest()
    got = hashlib.sha256(damage(content)).hexdigest()
    with pytest.raises(ValueError) as error:
        verify_checksum(file, f"sha256:{expected}", source="the publisher")
    for needed in (str(file), expected, got, "Delete it", "comes from: the publisher"):
        assert needed in str(error.value)
