"""Kill, stop and starve real commands: afterwards the same command ends with the results of one left alone.

Equal means every number and prediction, also of the saved model, to the last bit. Nothing finished is done
twice, and no process is left behind.
"""

import contextlib
import gzip
import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from elliptica.tables.saved import predict_file

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

#: How many storms of signals each command meets (`make fuzz` sends more).
STORMS = max(1, int(os.environ.get("FUZZ", "1")) // 20)
SOURCE = str(Path(__file__).parents[2] / "src")
#: Seconds after which a command hangs.
PATIENCE = 300
#: Entries of records that clocks and checkouts decide.
UNSTABLE = ("seconds", "revision", "command")

TABLE = """
title = "Moons"
metric = "accuracy"
seeds = 1
[methods.erm]
[methods.elliptic]
[datasets.two_moons]
load = { n_boundary = 200, n_interior = 200 }
model = { name = "mlp", hidden = [32] }
training = { epochs = 60, batch_size = 20, lr = 1e-2 }
"""
WORDS = {
    "run": "run moons.toml",
    "compare": "compare rows.csv --target y --methods erm,elliptic --set trials=2 --set epochs=80",
}
KILL_ALL, KILL_PARENT = (signal.SIGKILL, True), (signal.SIGKILL, False)
TERMINATE, CTRL_C = (signal.SIGTERM, False), (signal.SIGINT, True)
#: Bytes that a file may have on a full disk.
ROOM = 1000


class Command:
    """A command in a session of its own, which it shares with its workers."""

    def __init__(self, folder, *words):
        self.began = time.monotonic()
        self.log = folder / "log.txt"
        path = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "elliptica", *words],
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
                start_new_session=True,
                # a job in the background ignores it
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    @property
    def age(self):
        return time.monotonic() - self.began

    def is_alive(self):
        return self.process.poll() is None

    def send(self, sent, *, to_all):
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if to_all else os.kill)(self.process.pid, sent)

    def fill_disk(self):
        """Let files grow no further, as if the disk were full."""
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (ROOM, ROOM))

    def end(self):
        """Wait for the end; return the status and what was printed."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL, to_all=True)
            raise
        said = self.log.read_text(errors="replace")
        assert "Traceback" not in said, said
        return self.process.returncode, said

    def left(self):
        """Return its processes that are alive."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
                if int(group) == self.process.pid and state != "Z":
                    found.append(int(stat.parent.name))
        return found


def stable(content):
    """Return JSON content without what clocks decide."""
    if isinstance(content, dict):
        return {name: stable(value) for name, value in content.items() if name not in UNSTABLE}
    return [stable(value) for value in content] if isinstance(content, list) else repr(content)


def results(folder):
    """Read all that a command left; a damaged file raises."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if name.startswith(".") or not file.is_file():
            continue
        if file.suffix == ".json":
            found[name] = stable(json.loads(file.read_text()))
        elif file.suffix == ".gz":
            found[name] = sorted(json.dumps(stable(line)) for line in lines(file))
        elif file.suffix == ".elliptica":  # names of its members differ
            predictions, _ = predict_file(file, folder.parent / "rows.csv")
            found[name] = predictions.to_dict(as_series=False)
        elif file.suffix == ".npz":
            with zipfile.ZipFile(file) as archive:
                found[name] = {member: archive.read(member) for member in archive.namelist()}
        elif file.suffix == ".html":
            assert file.read_text().rstrip().endswith("</html>"), f"{name} is cut short"
    return found


def lines(file):
    """Read a packed file of records."""
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]


def tensors(content):
    """Return the header of a safetensors file; raise if the file is not whole."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    assert len(content) == 8 + length + end, "cut short"
    return metadata


def pieces(out):
    """Return what is finished, with the seconds that it took: another training would take others."""
    found = {}
    for file in out.rglob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            content = json.loads(file.read_text())
            for each in content.get("records", ()):
                found[f"{each['repeat']}/{each['fold']}/{each['method']}"] = each["seconds"]
    for file in out.rglob("*.jsonl.gz"):
        for record in lines(file):
            found[f"{record['run']['row']} {record['run']['seed']}"] = record["cost"]["seconds"]
    return found


def epochs(out):
    """Return the epochs that checkpoints hold."""
    found = {}
    for file in out.rglob("*.safetensors"):
        with contextlib.suppress(FileNotFoundError):
            found[file.name] = json.loads(tensors(file.read_bytes())["training"])["state"]["epochs"]
    return found


class Ground:
    """A folder with a table of experiments and one of rows, and the results of commands left alone."""

    def __init__(self, folder):
        self.folder, self.whole, self.times = folder, {}, {}
        (folder / "moons.toml").write_text(TABLE)
        draws, lines = random.Random(1), ["a,b,c,k,y"]
        for _ in range(200):
            a, b, c = (draws.gauss(0, 1) for _ in range(3))
            k = draws.choice("uvw")
            y = 2 * a + b * abs(c) + (k == "u") + draws.gauss(0, 0.3)
            lines.append(f"{a:.4f},{b:.4f},{c:.4f},{k},{y:.4f}")
        (folder / "rows.csv").write_text("\n".join(lines) + "\n")

    def start(self, name, out, jobs=1):
        workers = ["--jobs", str(jobs)] if name == "run" else ["--set", f"jobs={jobs}"]
        return Command(self.folder, *WORDS[name].split(), *workers, "--out", str(out))

    def start_working(self, name, out, jobs=1):
        """Start a command, and wait until it has written something new."""
        before = pieces(out), epochs(out)
        command = self.start(name, out, jobs)
        while command.is_alive() and (pieces(out), epochs(out)) == before:
            time.sleep(0.01)
        return command

    def reference(self, name):
        """Return the results of a command left alone, and the seconds between its first work and its end."""
        if name not in self.whole:
            out = self.folder / f"{name}-whole"
            command = self.start_working(name, out)
            begun = command.age
            status, said = command.end()
            assert status == 0, said
            self.whole[name], self.times[name] = results(out), command.age - begun
        return self.whole[name], self.times[name]

    def finish(self, name, out):
        """Run a command to its end: its results are those of one left alone, and nothing is done twice."""
        before, reached = pieces(out), epochs(out)
        command = self.start(name, out)
        while command.is_alive():
            for run, epoch in epochs(out).items():
                assert epoch >= reached.get(run, 0), f"{run} goes back from epoch {reached[run]} to {epoch}"
                reached[run] = epoch
            time.sleep(0.01)
        status, said = command.end()
        assert status == 0, said
        assert results(out) == self.reference(name)[0]
        after = pieces(out)
        assert {piece: after[piece] for piece in before} == before, "finished work is done again"


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    return Ground(tmp_path_factory.mktemp("kills"))


@pytest.mark.parametrize("storm", range(STORMS))
@pytest.mark.parametrize(("name", "last"), [("run", TERMINATE), ("compare", CTRL_C)])
def test_signals_at_random_moments(ground, name, last, storm, rng):
    """Kill all of it, kill the parent alone, stop it; then let it end."""
    _, seconds = ground.reference(name)
    out, commands = ground.folder / f"{name}-{storm}", []
    waves = [KILL_ALL, KILL_PARENT, last] if STORMS == 1 else [KILL_ALL, TERMINATE, KILL_PARENT, CTRL_C]
    for sent, to_all in waves:
        before = pieces(out)
        command = ground.start_working(name, out, jobs=2)
        commands.append(command)
        time.sleep(rng.uniform(0, seconds / 8))
        if not command.is_alive():
            break  # it was faster than the reference
        command.send(sent, to_all=to_all)
        status, said = command.end()
        assert status == (-sent if sent is signal.SIGKILL else 128 + sent), said
        deadline = time.monotonic() + 15
        while command.left() and time.monotonic() < deadline:
            time.sleep(0.1)
        left = command.left()
        command.send(signal.SIGKILL, to_all=True)
        assert not left, "workers outlive their parent"
        after = pieces(out)
        assert {piece: after.get(piece) for piece in before} == before, "finished work is done again"
    assert len(commands) > 1, "nothing was killed"
    ground.finish(name, out)


@pytest.mark.parametrize("name", ["run", "compare"])
def test_a_full_disk_loses_no_work(ground, name):
    _, seconds = ground.reference(name)
    out = ground.folder / f"{name}-full"
    command = ground.start_working(name, out)
    time.sleep(seconds / 6 if name == "run" else 0)  # compare finishes its first pieces near its end
    command.fill_disk()
    status, said = command.end()
    assert status in (0, 1), said  # 0 if all was written before the disk was full
    results(out)  # whatever is there is whole
    ground.finish(name, out)


def test_predictions_on_a_full_disk(ground):
    ground.reference("compare")
    old = ground.folder / "old.csv"
    old.write_text("row,prediction\n1,0\n")
    words = ["predict", "compare-whole/model.elliptica", "rows.csv", "--out", "old.csv"]
    command = Command(ground.folder, *words)
    command.fill_disk()
    status, said = command.end()
    assert status in (1, 2), said
    assert old.read_text() == "row,prediction\n1,0\n"


@contextlib.contextmanager
def disk(place):
    """Mount a disk, and yield a function that makes it read-only or writable; skip where nobody may."""
    place.mkdir()
    if os.geteuid():
        yield lambda mode: place.chmod(0o555 if mode == "ro" else 0o755)
        return
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here, and root may write everywhere")
    try:
        yield lambda mode: subprocess.run(["mount", "-o", f"remount,{mode}", str(place)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("name", ["run", "compare"])
def test_a_read_only_folder_is_refused_before_the_work(ground, name):
    with disk(ground.folder / f"{name}-disk") as make:
        make("ro")
        out = ground.folder / f"{name}-disk" / "out"
        status, said = ground.start(name, out).end()
        assert status in (1, 2), said
        make("rw")
        assert not out.exists()
