"""The catalogue, downloads from a server that misbehaves, and both commands."""

import gzip
import hashlib
import http.server
import re
import threading
import urllib.error
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.lab.data import catalogue, data_directories, fetch, find_files, list_datasets
from elliptica.lab.data.catalogue import DataFile, Entry, find_entry
from elliptica.lab.experiments.specification import load_specification, preset_names

CONTENT = bytes(range(256)) * 4096  # a megabyte
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Server(http.server.BaseHTTPRequestHandler):
    """Serves one file, and fails as it is told to."""

    def do_GET(self):
        way = self.server.way
        if way == "missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        body = CONTENT[:-1] + b"x" if way == "corrupt" else CONTENT
        self.wfile.write(body[:300_000] if way == "break" else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """A server on this machine; nothing leaves it."""
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    httpd.way = "serve"
    threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
    yield httpd
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture
def toy(server, monkeypatch):
    """A catalogue of one data set."""
    file = DataFile("toy/toy.bin", DIGEST, f"http://127.0.0.1:{server.server_address[1]}/toy.bin")
    entry = Entry("toy", "a toy", (1,), "none", "nowhere", ((file,),), "Ask a friend.")
    monkeypatch.setattr(catalogue, "ENTRIES", (entry,))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return entry


def files_in(folder):
    return sorted(path.name for path in Path(folder).rglob("*") if path.is_file())


def run(*arguments):
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def test_fetch_puts_the_file_there_and_reports_progress(toy, tmp_path):
    seen = []
    (path,) = fetch("toy", tmp_path, progress=lambda *args: seen.append(args))
    assert path.read_bytes() == CONTENT
    assert files_in(tmp_path) == ["toy.bin"]
    assert seen[-1] == ("toy/toy.bin", len(CONTENT), len(CONTENT))
    assert fetch("toy", tmp_path) == find_files("toy", tmp_path) == (path,)  # nothing is downloaded again


@pytest.mark.parametrize(
    ("way", "error"),
    [("corrupt", ValueError), ("break", (ValueError, OSError)), ("missing", urllib.error.HTTPError)],
)
def test_a_download_that_fails_leaves_nothing(toy, server, tmp_path, way, error):
    server.way = way
    with pytest.raises(error):
        fetch("toy", tmp_path)
    assert files_in(tmp_path) == []
    status, _ = run("fetch", "toy", "--data-dir", tmp_path)
    assert status != 0
    server.way = "serve"
    assert run("fetch", "toy", "--data-dir", tmp_path)[0] == 0
    assert files_in(tmp_path) == ["toy.bin"]


def test_ctrl_c_leaves_nothing(toy, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("toy", tmp_path, progress=stop)
    assert files_in(tmp_path) == []


def test_a_wrong_file_is_left_alone_and_never_loaded(toy, tmp_path):
    place = tmp_path / "toy" / "toy.bin"
    place.parent.mkdir()
    place.write_bytes(b"mine")
    for read in (fetch, find_files):
        with pytest.raises(ValueError, match=re.escape(str(place))):
            read("toy", tmp_path)
    assert place.read_bytes() == b"mine"
    status, text = run("list", "--data-dir", tmp_path)
    assert status == 1
    assert "wrong" in text


def test_packed_files_are_compared_by_content_and_a_good_form_wins(tmp_path, monkeypatch):
    forms = (
        (DataFile("toy/a.gz", DIGEST, packed=True),),
        (DataFile(str(tmp_path / "system" / "a"), DIGEST),),
    )
    monkeypatch.setattr(catalogue, "ENTRIES", (Entry("toy", "", (), "", "", forms),))
    place = tmp_path / "toy" / "a.gz"
    place.parent.mkdir()
    for level in (1, 9):
        place.write_bytes(gzip.compress(CONTENT, level))
        assert list_datasets(tmp_path)[0].status == "present"
    place.write_bytes(gzip.compress(CONTENT)[:-9])
    assert list_datasets(tmp_path)[0].status == "wrong"
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "a").write_bytes(CONTENT)
    assert find_files("toy", tmp_path) == (tmp_path / "system" / "a",)


def test_order_of_places(tmp_path, monkeypatch):
    monkeypatch.setenv("ELLIPTICA_DATA", str(tmp_path / "named"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_directories() == (tmp_path / "named", tmp_path / "cache" / "elliptica")
    assert data_directories(tmp_path) == (tmp_path,)
    monkeypatch.setenv("ELLIPTICA_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_directories() == (tmp_path / ".cache" / "elliptica",)


def test_entries_are_complete():
    for entry in catalogue.ENTRIES:
        assert entry.title, entry.name
        assert entry.licence, entry.name
        assert entry.source, entry.name
        for file in (file for form in entry.forms for file in form):
            if file.url:
                assert file.hash, file.path  # nothing unchecked is downloaded
            kind, _, digits = (file.hash or "md5:" + "0" * 32).partition(":")
            assert re.fullmatch(r"[0-9a-f]+", digits)
            assert len(digits) == {"md5": 32, "sha256": 64}[kind]
        if entry.forms and not entry.can_fetch:
            assert entry.hint, f"{entry.name} says nothing on how to get it"
    assert find_entry("waterbirds_features") is find_entry("Waterbirds-Features")
    assert fetch("two_moons", "nowhere") == ()


def test_every_pickle_has_a_hash():
    """CIFAR's files are the only pickles."""
    for name in ("cifar10", "cifar10-batch1", "cifar100"):
        assert all(file.hash for form in find_entry(name).forms for file in form)


def test_names_are_those_of_the_tables():
    """`elliptica list` and `elliptica data list` spell a data set alike; either spelling finds it."""
    listed = {entry.name for entry in catalogue.ENTRIES}
    plain = {catalogue.plain_name(name) for name in listed}
    assert len(plain) == len(listed)
    for table in preset_names():
        for name in load_specification(table).datasets:
            assert name in listed or catalogue.plain_name(name) not in plain, name


@pytest.mark.parametrize("name", ["cifar", "no2"])  # unknown; cannot be downloaded
def test_names_that_cannot_be_fetched(tmp_path, name):
    with pytest.raises(ValueError, match=name):
        fetch(name, tmp_path)


def test_list_command(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    status, text = run("list", "--data-dir", tmp_path)
    assert status == 0
    assert all(entry.name in text for entry in catalogue.ENTRIES)
    for needed in ("missing", "generated", "CC BY 4.0", "elliptica data fetch airfoil."):
        assert needed in text


@pytest.mark.needs_data
def test_real_files_are_the_published_ones(data_dir):
    listings = {item.entry.name: item for item in list_datasets(data_dir)}
    assert not [item.detail for item in listings.values() if item.status == "wrong"]
    assert listings["airfoil"].status == "present"
    assert listings["two_moons"].status == "generated"
