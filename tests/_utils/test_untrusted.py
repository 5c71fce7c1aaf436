"""Files that may come from anybody: read within limits, or refused with a reason."""

import io
import json
import os
import zipfile

import numpy as np
import pytest

from elliptica._utils.files import write_atomically
from elliptica._utils.text import inert_cell, inert_markdown
from elliptica._utils.untrusted import read_arrays, read_json

pytestmark = pytest.mark.bad_input


def npy(shape, body, dtype="<f4"):
    """A member whose header says what it is told to."""
    header = str({"descr": dtype, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + body


def npz(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def test_json(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"ä": [1]}', encoding="utf-8")
    assert read_json(file) == {"ä": [1]}
    file.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"a\.json is nested too deeply"):
        read_json(file)
    file.write_bytes(b'"\xff"')
    with pytest.raises(ValueError, match="utf-8"):
        read_json(file)
    file.write_text(json.dumps("x" * 100))
    with pytest.raises(ValueError, match="but at most"):
        read_json(file, most_bytes=50)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "b.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
@pytest.mark.parametrize("read", [read_json, read_arrays])
def test_a_pipe_is_not_waited_for(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        read(tmp_path / "pipe")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_device_is_not_replaced_by_a_file(tmp_path):
    """To replace /dev/full would take it from the whole machine."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        write_atomically(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


def test_arrays(tmp_path):
    given = {"x": np.arange(6.0).reshape(2, 3), "empty": np.zeros((0, 2)), "word": np.array("ab")}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **given, order=np.asfortranarray(given["x"]))
        found = read_arrays(tmp_path / "a.npz")
        assert all(np.array_equal(found[name], value) for name, value in given.items())
        assert np.array_equal(found["order"], given["x"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy((10**11, 8), b"\0" * 64), "claims shape .* does not fit its 64 bytes"),
        (npy((10**30,), b"\0" * 64), "claims shape .* does not fit its 64 bytes"),
        (npy((2,), b"\0" * 64), "claims shape .* does not fit its 64 bytes"),
        (b"\x93NUMPY\x03\x00", "version"),
        (b"no array", "magic"),
    ],
)
def test_arrays_that_lie(content, message, tmp_path):
    """Checked before anything is allocated: the first would take three terabytes."""
    with pytest.raises(ValueError, match=message):
        read_arrays(npz(tmp_path / "a.npz", x=content))


def test_arrays_that_unpack_to_too_much(tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(10**6))
    file = npz(tmp_path / "a.npz", x=buffer.getvalue())
    assert file.stat().st_size < 10**5
    assert len(read_arrays(file)["x"]) == 10**6
    with pytest.raises(ValueError, match=r"unpacks to 0\.008 GB, but at most 0\.001 are read"):
        read_arrays(file, most_bytes=10**6)


def test_other_files_are_no_arrays(tmp_path):
    (tmp_path / "a.npz").write_text("text")
    with pytest.raises(ValueError, match="not a zip file"):
        read_arrays(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.array([object()]))
    with pytest.raises(ValueError, match="allow_pickle"):
        read_arrays(tmp_path / "b.npz")


def test_names_do_nothing_in_markdown_and_in_a_spreadsheet():
    assert inert_markdown("<img src=x onerror=alert(1)>|\n# a") == "&lt;img src=x onerror=alert(1)>\\| # a"
    assert inert_markdown("elliptic, n_t = 5") == "elliptic, n_t = 5"
    for text in ("=1+1", "@SUM(A1)", "-cmd|' /C calc'!A0", "+1+2", "\t=1"):
        assert inert_cell(text) == f"'{text}"
    for text in ("-5", "+1e3", "mixup", "", "a=b"):
        assert inert_cell(text) == text
