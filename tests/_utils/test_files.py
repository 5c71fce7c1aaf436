"""Atomic writes: the old content or the new, never a half, and no litter."""

import multiprocessing

import pytest

from elliptica._utils.files import replacing, write_atomically


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
