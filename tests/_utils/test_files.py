"""Atomic writes, locks with one holder at a time, and reading files that may come from anybody."""

import errno
import multiprocessing
import os
import zipfile

import numpy as np
import pytest

from elliptica._utils.files import (
    is_not_written,
    not_written,
    read_arrays,
    read_json,
    replacing,
    write_atomically,
)


def test_a_folder_is_created_and_the_content_replaced(tmp_path):
    file = tmp_path / "new" / "record.json"
    write_atomically(file, "first")
    write_atomically(file, "größer", durable=True)
    assert file.read_text(encoding="utf-8") == "größer"
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_keeps_the_old_content(tmp_path, error):
    file = tmp_path / "record.json"
    file.write_text("old")

    def fail():
        with replacing(file) as part:
            part.write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def _write(file, letter):
    for _ in range(50):
        write_atomically(file, letter * 10_000)


def test_two_writers_do_not_mix(tmp_path):
    file = tmp_path / "record.json"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(file, letter)) for letter in "ab"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if file.exists():
            assert file.read_text() in ("a" * 10_000, "b" * 10_000)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_an_error_names_the_file(tmp_path, code):
    """A failed write names no file; one that fails to open names the temporary one."""
    file = tmp_path / "record.json"

    def fail(*names):
        with replacing(file) as part:
            raise OSError(code, os.strerror(code), *(str(part) for _ in names))

    for names in ((), ("part",)):
        with pytest.raises(OSError) as caught:
            fail(*names)
        assert caught.value.filename == str(file)
        assert is_not_written(caught.value)
        assert str(file) in not_written(caught.value)
    assert not is_not_written(FileNotFoundError(errno.ENOENT, "no such file", "a"))


@pytest.mark.bad_input
def test_a_pipe_is_neither_waited_for_nor_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (read_json, read_arrays):
        with pytest.raises(ValueError, match="pipe"):
            read(pipe)
    with pytest.raises(OSError):  # to replace /dev/full would take it from the whole machine
        write_atomically(pipe, "text")
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.bad_input
def test_json(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"ä": [1]}', encoding="utf-8")
    assert read_json(file) == {"ä": [1]}
    for content in (b"[" * 100_000, b'"\xff"', b"{"):
        file.write_bytes(content)
        with pytest.raises(ValueError):
            read_json(file)
    file.write_text("[1, 2, 3]")
    with pytest.raises(ValueError):
        read_json(file, most_bytes=5)


def test_arrays(tmp_path):
    given = {"x": np.arange(6.0).reshape(2, 3), "empty": np.zeros((0, 2)), "word": np.array("ab")}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **given, order=np.asfortranarray(given["x"]))
        found = read_arrays(tmp_path / "a.npz")
        assert all(np.array_equal(found[name], value) for name, value in given.items())
        assert np.array_equal(found["order"], given["x"])


def array_of(shape):
    """The bytes of an array whose header claims a shape."""
    header = str({"descr": "<f4", "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"\0" * 64


@pytest.mark.bad_input
@pytest.mark.parametrize("content", [array_of((10**14, 8)), array_of((10**30,)), array_of((99,)), b"none"])
def test_arrays_that_lie(content, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x.npy", content)
    with pytest.raises(ValueError):
        read_arrays(tmp_path / "a.npz")


@pytest.mark.bad_input
def test_arrays_that_are_too_large_pickled_or_none(tmp_path):
    file = tmp_path / "a.npz"
    np.savez_compressed(file, x=np.zeros(10**6))
    assert file.stat().st_size < 10**5
    with pytest.raises(ValueError, match="GB"):
        read_arrays(file, most_bytes=10**6)
    np.savez(file, x=np.array([object()]))
    with pytest.raises(ValueError, match="pickle"):
        read_arrays(file)
    file.write_text("text")
    with pytest.raises(ValueError):
        read_arrays(file)
