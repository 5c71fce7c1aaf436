"""Atomic writes: the old content or the new, never a half, and no litter. Locks: one holder at a time."""

import errno
import multiprocessing
import os

import pytest

from elliptica._utils.files import FileLock, is_not_written, not_written, replacing, write_atomically


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


def test_a_reader_never_sees_a_part(tmp_path):
    file = tmp_path / "record.json"
    with replacing(file) as part:
        part.write_text("half")
        assert not file.exists()
    assert file.read_text() == "half"


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


def test_a_lock_has_one_holder_and_names_it(tmp_path):
    lock = FileLock(tmp_path / ".lock")
    for _ in range(2):  # who is refused does not take it away
        with pytest.raises(BlockingIOError, match=f"process {os.getpid()}") as caught:
            FileLock(tmp_path / ".lock")
        assert caught.value.filename == str(tmp_path / ".lock")
    lock.release()
    lock.release()
    FileLock(tmp_path / ".lock").release()


def hold_and_die(path):
    FileLock(path)
    os._exit(1)


def test_a_lock_ends_with_its_process(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=hold_and_die, args=(tmp_path / ".lock",))
    process.start()
    process.join()
    assert (tmp_path / ".lock").exists()
    FileLock(tmp_path / ".lock").release()


def test_file_systems_without_locks_let_everybody_in(tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("elliptica._utils.files._lock", fail)
    locks = [FileLock(tmp_path / ".lock") for _ in range(2)]
    for lock in locks:
        lock.release()


@pytest.mark.bad_input
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_an_error_names_the_file_and_the_remedy(tmp_path, code):
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
        told = not_written(caught.value)
        assert told.startswith(f"{file} cannot be written ({os.strerror(code)}). ")
        assert ("Free some space" in told) is (code == errno.ENOSPC)


def test_other_errors_keep_their_words(tmp_path):
    with pytest.raises(OSError, match=r"^our own words$"), replacing(tmp_path / "a"):
        raise OSError("our own words")
    assert not is_not_written(FileNotFoundError(errno.ENOENT, "no such file", "a"))
