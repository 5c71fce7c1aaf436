"""Atomic writes, and arrays that may come from anybody."""

import errno
import multiprocessing
import os

import numpy as np
import pytest

from elliptica._utils.files import (
    is_not_written,
    not_written,
    read_arrays,
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
def test_a_pipe_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError):  # to replace /dev/full would take it from the whole machine
        write_atomically(pipe, "text")
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_arrays_that_are_pickled_or_none(tmp_path):
    file = tmp_path / "a.npz"
    np.savez(file, x=np.arange(6.0))
    assert np.array_equal(read_arrays(file)["x"], np.arange(6.0))
    whole = file.read_bytes()
    np.savez(file, x=np.array([object()]))
    with pytest.raises(ValueError, match="pickle"):
        read_arrays(file)
    for content in (b"text", whole[:-30]):
        file.write_bytes(content)
        with pytest.raises(ValueError):
            read_arrays(file)
