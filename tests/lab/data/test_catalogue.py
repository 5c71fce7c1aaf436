"""The catalogue, downloads from a server that misbehaves, and both commands."""

import ast
import contextlib
import dataclasses
import gzip
import hashlib
import http.server
import inspect
import pkgutil
import re
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

import elliptica.lab.data
from elliptica.cli import app
from elliptica.lab.data import catalogue, fashion, fetch, files, list_datasets
from elliptica.lab.data.catalogue import DataFile, Entry, find_entry
from elliptica.lab.experiments.specification import load_specification, preset_names

CONTENT = bytes(range(256)) * 4096  # a megabyte
PARTIAL = 300_000


class Server(http.server.BaseHTTPRequestHandler):
    """Serves one file, and fails as it is told to: a list of ways, one per request."""

    def do_GET(self):
        way = self.server.ways.pop(0) if self.server.ways else "serve"
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        content = self.server.content
        if way == "refuse":
            self.send_error(503)
            return
        if way == "missing":
            self.send_error(404)
            return
        begin = 0
        if asked and way not in ("no ranges", "break without ranges"):
            begin = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if begin >= len(content):
                self.send_error(416)
                return
            begin += way == "wrong range"
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if way != "without end":
            self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        body = content[begin:]
        if way == "corrupt":
            body = body[:-1] + bytes([body[-1] ^ 1])
        with contextlib.suppress(ConnectionError):  # the other side may stop listening
            while way == "without end":
                self.wfile.write(content)
                self.server.sent += len(content)
            self.wfile.write(body[:PARTIAL] if way.startswith("break") else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """A server on this machine; nothing leaves it."""
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    httpd.content, httpd.ways, httpd.asked, httpd.sent = CONTENT, [], [], 0
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    httpd.url = f"http://127.0.0.1:{httpd.server_address[1]}/toy.bin"
    yield httpd
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture
def toy(server, monkeypatch):
    """A catalogue of one data set, without waiting between attempts."""
    digest = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    file = DataFile("toy/toy.bin", digest, len(CONTENT), (server.url,))
    entry = Entry(
        "toy", "a toy", "regression", (1,), "none", "nowhere", "load_toy", "", ((file,),), "Ask a friend."
    )
    monkeypatch.setattr(catalogue, "ENTRIES", (entry,))
    monkeypatch.setattr(files.time, "sleep", lambda _: None)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return entry


def files_in(folder):
    return sorted(path.name for path in Path(folder).rglob("*") if path.is_file())


def test_fetch_puts_the_file_there_and_reports_progress(toy, server, tmp_path):
    seen = []
    (path,) = fetch("toy", tmp_path, progress=lambda *state: seen.append(state))
    assert path == tmp_path / "toy" / "toy.bin"
    assert path.read_bytes() == CONTENT
    assert files_in(tmp_path) == ["toy.bin"]
    assert seen[0] == ("toy/toy.bin", 0, len(CONTENT))
    assert seen[-1] == ("toy/toy.bin", len(CONTENT), len(CONTENT))
    assert [state[1] for state in seen] == sorted(state[1] for state in seen)
    assert fetch("toy", tmp_path) == (path,)  # a second time nothing is asked for
    assert len(server.asked) == 1


def test_an_interrupted_download_goes_on(toy, server, tmp_path):
    server.ways = ["break", "break", "serve"]
    (path,) = fetch("toy", tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={PARTIAL}-", f"bytes={2 * PARTIAL}-"]


def test_a_later_call_goes_on_where_an_earlier_one_stopped(toy, server, tmp_path):
    server.ways = ["break", "refuse", "refuse"]
    with pytest.raises(ConnectionError, match=r"503(.|\n)*resume where it stopped") as error:
        fetch("toy", tmp_path)
    assert files_in(tmp_path) == ["toy.bin.part"]
    assert f"{PARTIAL} bytes are kept" in str(error.value)
    assert list_datasets(tmp_path)[0].status == "missing"
    (path,) = fetch("toy", tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked[-1] == f"bytes={PARTIAL}-"
    assert files_in(tmp_path) == ["toy.bin"]


def test_ctrl_c_keeps_what_arrived(toy, server, tmp_path):
    def stop(_name, have, _total):
        if have > PARTIAL:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("toy", tmp_path, progress=stop)
    assert files_in(tmp_path) == ["toy.bin.part"]
    (path,) = fetch("toy", tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked[-1].startswith("bytes=")


def test_a_server_without_ranges_starts_again(toy, server, tmp_path):
    server.ways = ["break without ranges", "no ranges"]
    (path,) = fetch("toy", tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_server_that_answers_with_another_range_is_not_trusted(toy, server, tmp_path):
    server.ways = ["break", "wrong range", "serve"]
    (path,) = fetch("toy", tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_complete_part_file_is_used(toy, server, tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.bin.part").write_bytes(CONTENT)
    (path,) = fetch("toy", tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT)}-"]


@pytest.mark.parametrize("length", [1000, len(CONTENT), len(CONTENT) + 5])
def test_remains_of_another_edition_are_thrown_away(toy, server, tmp_path, length):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.bin.part").write_bytes(b"x" * length)
    (path,) = fetch("toy", tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked[-1] is None  # from the beginning


@pytest.mark.bad_input
def test_a_corrupted_download_is_not_kept(toy, server, tmp_path, own_checks):
    server.ways = ["corrupt"]
    with pytest.raises(ValueError, match=r"not the published file(.|\n)*It was not kept") as error:
        fetch("toy", tmp_path)
    assert hashlib.sha256(CONTENT).hexdigest() in str(error.value)
    assert "Ask a friend." in str(error.value)
    assert files_in(tmp_path) == []
    fetch("toy", tmp_path)


@pytest.mark.bad_input
def test_a_server_that_sends_more_than_the_file_is_not_read_on(toy, server, tmp_path, own_checks):
    server.ways = ["without end"]
    with pytest.raises(ConnectionError, match=f"sends more than the {len(CONTENT)} bytes of the file"):
        fetch("toy", tmp_path)
    assert files_in(tmp_path) == []
    assert len(server.asked) == 1  # asking again would not help
    server.content = CONTENT + b"more"
    with pytest.raises(ConnectionError, match=f"offers {len(CONTENT) + 4} bytes, but the file has at most"):
        fetch("toy", tmp_path)
    assert files_in(tmp_path) == []


@pytest.mark.bad_input
def test_a_file_of_unknown_size_has_a_limit(server, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MOST_BYTES", 10 * len(CONTENT))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server.ways = ["without end"]
    with pytest.raises(ConnectionError, match=f"more than the {10 * len(CONTENT)} bytes"):
        files.download_file([server.url], tmp_path / "toy.bin", lambda _: None)
    assert files_in(tmp_path) == []


def test_second_address_is_tried(toy, server, tmp_path, monkeypatch):
    file = toy.forms[0][0]
    two = dataclasses.replace(file, urls=("http://127.0.0.1:9/toy.bin", server.url))
    monkeypatch.setattr(catalogue, "ENTRIES", (dataclasses.replace(toy, forms=((two,),)),))
    (path,) = fetch("toy", tmp_path)
    assert path.read_bytes() == CONTENT


@pytest.mark.bad_input
def test_offline_message(toy, tmp_path, monkeypatch, own_checks):
    file = dataclasses.replace(toy.forms[0][0], urls=("http://127.0.0.1:9/toy.bin",))
    monkeypatch.setattr(catalogue, "ENTRIES", (dataclasses.replace(toy, forms=((file,),)),))
    with pytest.raises(ConnectionError) as error:
        fetch("toy", tmp_path)
    for needed in ("127.0.0.1:9", "cannot be reached", "network", str(tmp_path / "toy" / "toy.bin")):
        assert needed in str(error.value)


@pytest.mark.bad_input
def test_a_missing_page_is_not_asked_for_again(toy, server, tmp_path, own_checks):
    server.ways = ["missing"] * 5
    with pytest.raises(ConnectionError, match="404"):
        fetch("toy", tmp_path)
    assert len(server.asked) == 1


@pytest.mark.bad_input
def test_a_wrong_file_is_left_alone(toy, server, tmp_path, own_checks):
    path = tmp_path / "toy" / "toy.bin"
    path.parent.mkdir()
    for content, match in ((b"mine", "has 4 bytes instead of"), (CONTENT[::-1], "has the sha256 hash")):
        path.write_bytes(content)
        assert list_datasets(tmp_path)[0].status == "wrong"
        with pytest.raises(ValueError, match=rf"{match}(.|\n)*Delete or move that file"):
            fetch("toy", tmp_path)
        assert path.read_bytes() == content
    assert list_datasets(tmp_path, verify=False)[0].status == "present"  # sizes only
    assert server.asked == []


@pytest.mark.bad_input
def test_full_or_locked_disk(toy, tmp_path, monkeypatch, own_checks):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(OSError, match=r"Cannot write(.|\n)*--data-dir"):
        fetch("toy", blocker)

    def full(self, *_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match=r"No space left(.|\n)*Free some space") as error:
        fetch("toy", tmp_path / "other")
    assert error.value.errno == 28


def test_packed_files_are_compared_by_content(tmp_path, monkeypatch):
    digest = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    forms = (
        (DataFile("toy/a.gz", digest, is_packed=True),),
        (DataFile(str(tmp_path / "system" / "a"), digest),),
    )
    entry = Entry("toy", "", "", (), "", "", "", forms=forms)
    monkeypatch.setattr(catalogue, "ENTRIES", (entry,))
    place = tmp_path / "toy" / "a.gz"
    place.parent.mkdir()
    for level in (1, 9):
        place.write_bytes(gzip.compress(CONTENT, level))
        assert list_datasets(tmp_path)[0].status == "present"
    place.write_bytes(gzip.compress(CONTENT)[:-9])
    assert list_datasets(tmp_path)[0].status == "wrong"
    # a good form somewhere else wins
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "a").write_bytes(CONTENT)
    listing = list_datasets(tmp_path)[0]
    assert (listing.status, listing.paths) == ("present", (tmp_path / "system" / "a",))


# the real catalogue


def test_every_entry_is_complete_and_loadable():
    names = [listing.entry.name for listing in list_datasets("nowhere", verify=False)]
    assert len(set(names)) == len(names)
    for entry in catalogue.ENTRIES:
        assert entry.title, entry.name
        assert entry.task in ("regression", "classification")
        assert entry.licence, entry.name
        assert entry.source, entry.name
        loader = pkgutil.resolve_name(entry.loader)
        assert loader.__name__ in elliptica.lab.data.__all__
        call = ast.parse(entry.call, mode="eval").body
        inspect.signature(loader).bind(*call.args, **{each.arg: each.value for each in call.keywords})
        for form in entry.forms:
            for file in form:
                if file.urls:
                    assert file.checksum, file.path  # nothing unchecked is downloaded
                assert all(url.startswith("http") for url in file.urls)
                kind, _, digits = (file.checksum or "md5:" + "0" * 32).partition(":")
                assert re.fullmatch(r"[0-9a-f]+", digits)
                assert len(digits) == {"md5": 32, "sha256": 64}[kind]
        if entry.forms and not all(file.urls for file in entry.forms[0]):
            assert entry.hint, f"{entry.name} says nothing on how to get it"


def test_every_loader_of_files_is_listed():
    listed = {entry.loader.rpartition(".")[2] for entry in catalogue.ENTRIES}
    assert {name for name in elliptica.lab.data.__all__ if name.startswith("load_")} <= listed


@pytest.mark.bad_input
def test_unknown_and_unfetchable_names(tmp_path, own_checks):
    assert find_entry("Tiny-ImageNet").name == "tiny_imagenet"
    with pytest.raises(ValueError, match=r"no data set 'cifar'"):
        fetch("cifar", tmp_path)
    with pytest.raises(ValueError, match="There are airfoil, no2"):
        find_entry("qqqq")
    with pytest.raises(ValueError, match=r"no2 cannot be downloaded by this command\. Take NO2\.dat"):
        fetch("no2", tmp_path)
    assert fetch("two_moons", tmp_path) == fetch("two-moons", tmp_path) == ()


def test_names_are_those_of_the_tables():
    """`elliptica list` and `elliptica data list` spell a data set alike; either spelling finds it."""
    listed = {entry.name for entry in catalogue.ENTRIES}
    plain = {catalogue.plain_name(name) for name in listed}
    assert len(plain) == len(listed)
    for table in preset_names():
        for name in load_specification(table).datasets:
            assert name in listed or catalogue.plain_name(name) not in plain, name
    assert find_entry("waterbirds_features") is find_entry("waterbirds-features")
    assert find_entry("waterbirds_features").name == "waterbirds-features"


@pytest.mark.needs_data
def test_real_files_are_the_published_ones(data_dir):
    by_name = {item.entry.name: item for item in list_datasets(data_dir)}
    assert not [item.detail for item in by_name.values() if item.status == "wrong"]
    assert by_name["two-moons"].status == "generated"
    if (data_dir / "airfoil").is_dir():
        assert by_name["airfoil"].status == "present"
        assert fetch("airfoil", data_dir) == by_name["airfoil"].paths


# commands


def run(*arguments):
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    return result.exit_code, result.output


def test_list_command(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    status, text = run("list", "--data-dir", tmp_path)
    assert status == 0
    for entry in catalogue.ENTRIES:
        assert entry.name in text
    for needed in (
        "missing",
        "generated",
        "CC BY 4.0",
        str(tmp_path),
        "elliptica data fetch airfoil.",
    ):
        assert needed in text
    has_package = fashion.SYSTEM_FOLDER.is_dir()
    assert ("apt install" in text) != has_package  # a hint for those who do not have it


def test_list_command_reports_wrong_files(toy, tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.bin").write_bytes(b"mine")
    status, text = run("list", "--data-dir", tmp_path)
    assert status == 1
    assert f"toy: {tmp_path / 'toy' / 'toy.bin'} has 4 bytes instead of {len(CONTENT)}" in text


def test_fetch_command(toy, server, tmp_path):
    status, text = run("fetch", "toy", "--data-dir", tmp_path)
    assert status == 0
    assert f"ready: {tmp_path / 'toy' / 'toy.bin'}" in text
    assert "Licence: none" in text


@pytest.mark.bad_input
def test_fetch_command_fails_politely(toy, server, tmp_path, own_checks):
    server.ways = ["corrupt"]
    status, text = run("fetch", "toy", "--data-dir", tmp_path)
    assert status == 1
    assert "error: The download of toy/toy.bin is not the published file" in text
    status, text = run("fetch", "tow", "--data-dir", tmp_path)
    assert status == 1
    assert "toy" in text


def test_fetch_command_survives_ctrl_c(toy, tmp_path, monkeypatch):
    def stop(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(elliptica.lab.data, "fetch", stop)
    status, text = run("fetch", "toy", "--data-dir", tmp_path)
    assert status == 130
    assert "kept" in text
