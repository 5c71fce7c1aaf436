"""Change the code in small ways, one at a time, and report which changes no test notices.

The mutants are drawn from `core`, `landscape` and `compare` with a seed. Each one runs in a fork, on its own
copy of the sources, against the fast tests of its package that execute the changed line, then the slow ones
of the mirrored file. Verdicts are recorded as they come; rerun the same command to resume. A survivor needs a
test, or a reason in ``equivalent_mutants.toml`` why it is the same program in other words.
"""

from __future__ import annotations

import compileall
import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from adversary.mutations import Mutant, sample

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "elliptica"
RECORD = ROOT / "results" / "adversary" / "mutants.json"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
PACKAGES = ("core", "landscape", "compare")
#: Imported once, before the forks; never the package under test.
PRELOADED = (
    "torch",
    "torch.func",
    "torch._dynamo",
    "numpy",
    "scipy.stats",
    "scipy.sparse.linalg",
    "hypothesis",
)
PRELOADED += (
    "jaxtyping",
    "polars",
    "pandas",
    "sklearn.ensemble",
    "sklearn.model_selection",
    "skrub",
    "skops.io",
)
PRELOADED += ("safetensors", "joblib", "typer", "rich.table", "matplotlib.figure", "skfem")
WORKERS = 2
#: Not in a mutation run: processes that work together, a browser, data that may be absent.
MARKS = "not distributed and not browser and not needs_data"
#: Seconds of fast tests tried, the cheapest first; seconds after which slow tests are given up.
FAST_SECONDS, SLOW_SECONDS = 60.0, 60.0


# --- Forks: a copy of the sources each, and pytest inside. ---


class Copy:
    """Sources of a worker, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / SOURCE.name
        shutil.copytree(SOURCE, self.root, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(self.root, quiet=2)
        self.changed: Path | None = None

    def write(self, file: str, text: str) -> None:
        """Restore the file changed before, and change this one."""
        if self.changed is not None:
            shutil.copy(SOURCE / self.changed, self.root / self.changed)
        self.changed = Path(file)
        target = self.root / file
        target.write_text(text, encoding="utf-8")
        # one second and one size may be shared by two mutants: never trust a compiled file here
        Path(importlib.util.cache_from_source(str(target))).unlink(missing_ok=True)


class Verdict:
    """Keep the order of the chosen tests and the first failure (a plugin of pytest)."""

    def __init__(self, wanted: Collection[str] | None, seconds: float) -> None:
        self.order = None if wanted is None else {name: i for i, name in enumerate(wanted)}
        self.killer = ""
        self.deadline = time.monotonic() + seconds

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Run only what was chosen, in that order."""
        if self.order is not None:
            items[:] = [item for item in items if item.nodeid in self.order]
            items.sort(key=lambda item: self.order[item.nodeid])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Stop when the time is over."""
        if time.monotonic() > self.deadline:
            item.session.shouldstop = "time is over"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the first test that fails."""
        if report.failed and not self.killer:
            self.killer = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember a file that cannot be imported."""
        if report.failed and not self.killer:
            self.killer = f"{report.nodeid} (import)"


class Lines:
    """Record which lines each test executes, and for how long it runs (a plugin of pytest)."""

    def __init__(self, root: Path) -> None:
        self.prefix = str(root) + os.sep
        self.current: set[tuple[str, int]] = set()
        self.fixtures: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self.tests: dict[str, dict[str, Any]] = {}
        self.not_passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note tests that fail or skip as things are: they judge nothing."""
        if not report.passed:
            self.not_passed.add(report.nodeid)

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        """Follow calls into the packages, line by line."""
        file = frame.f_code.co_filename
        name = file.removeprefix(self.prefix)
        if name == file or not name.startswith(PACKAGES):
            return None

        def local(frame: FrameType, event: str, arg: object) -> Any:
            self.current.add((name, frame.f_lineno))
            return local

        return local

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Book lines of a fixture to all tests that use it, not to the first."""
        outer, self.current = self.current, self.fixtures[fixturedef.argname]
        yield
        self.current = outer

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace one test."""
        self.current = set()
        began = time.perf_counter()
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        yield
        sys.settrace(None)
        threading.settrace(None)
        self.tests[item.nodeid] = {
            "seconds": time.perf_counter() - began,
            "fixtures": getattr(item, "fixturenames", []),
            "lines": self.current,
        }

    def result(self) -> dict[str, dict[str, Any]]:
        """Return lines by file, for each test."""
        for name, test in self.tests.items():
            test["passed"] = name not in self.not_passed
            lines = set(test["lines"]).union(*(self.fixtures[name] for name in test.pop("fixtures")))
            test["lines"] = {}
            for file, line in sorted(lines):
                test["lines"].setdefault(file, []).append(line)
        return self.tests


def in_fork(work: Callable[[], dict[str, Any]], answer: Path, log: Path) -> int:
    """Start a child that writes what `work` returns; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    try:
        with log.open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            try:
                answer.write_text(json.dumps(work()), encoding="utf-8")
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(0)


def run_pytest(copy: Path, arguments: list[str], plugin: object) -> int:
    """Run pytest on the sources of a copy, in a process that has not imported the package yet."""
    os.chdir(ROOT)
    sys.dont_write_bytecode = True
    os.environ.update(PYTHONDONTWRITEBYTECODE="1", PYTEST_DEBUG_TEMPROOT=str(copy.parent))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(copy.parent), str(ROOT / "tests"), str(ROOT)])
    sys.path[:0] = [str(copy.parent)]
    importlib.invalidate_caches()
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=short"]
    return int(pytest.main([*options, *arguments], plugins=[plugin]))


def measure(copy: Path, test_file: str) -> dict[str, Any]:
    """Run one test file and return the lines of each test (in a fork)."""
    plugin = Lines(copy)
    run_pytest(copy, ["--maxfail=1000", "-m", f"not slow and {MARKS}", test_file], plugin)
    return plugin.result()


def judge(copy: Path, tests: list[str]) -> dict[str, Any]:
    """Run the chosen tests and return the outcome (in a fork)."""
    plugin = Verdict(tests, 3600.0)
    code = run_pytest(copy, list(dict.fromkeys(name.split("::")[0] for name in tests)), plugin)
    return {"code": code, "killer": plugin.killer}


def judge_slowly(copy: Path, files: list[str]) -> dict[str, Any]:
    """Run the slow tests of files, as long as there is time, and return the outcome (in a fork)."""
    plugin = Verdict(None, SLOW_SECONDS)
    code = run_pytest(copy, ["-m", f"slow and {MARKS}", *files], plugin)
    return {"code": code, "killer": plugin.killer}


@dataclass
class Task:
    """Work for one fork, and what becomes of the answer."""

    work: Callable[[Path], dict[str, Any]]
    done: Callable[[dict[str, Any] | None, float], Task | None]
    limit: float
    change: tuple[str, str] | None = None
    began: float = field(default=0.0, compare=False)


@contextlib.contextmanager
def stopping(children: Collection[int]) -> Iterator[None]:
    """Stop children that are left when a run is interrupted."""
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def run_all(tasks: list[Task], workers: int = WORKERS) -> None:
    """Run tasks in forks, a fixed number at a time; a task may be followed by another."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        copies = [Copy(folder / str(i)) for i in range(workers)]
        busy: dict[int, tuple[int, Task]] = {}
        tasks = tasks[::-1]
        with stopping(busy):
            while tasks or busy:
                for i in set(range(workers)) - {slot for slot, _ in busy.values()}:
                    if tasks:
                        task = tasks.pop()
                        if task.change is not None:
                            copies[i].write(*task.change)
                        root, answer = copies[i].root, folder / f"{i}.json"
                        answer.unlink(missing_ok=True)
                        task.began = time.monotonic()
                        pid = in_fork(
                            lambda task=task, root=root: task.work(root), answer, folder / f"{i}.log"
                        )
                        busy[pid] = (i, task)
                time.sleep(0.05)
                for pid, (i, task) in list(busy.items()):
                    late = time.monotonic() - task.began > task.limit
                    if late:
                        os.killpg(pid, signal.SIGKILL)
                    if os.waitpid(pid, 0 if late else os.WNOHANG)[0]:
                        del busy[pid]
                        with contextlib.suppress(ProcessLookupError):  # what its tests may have left behind
                            os.killpg(pid, signal.SIGKILL)
                        answer = folder / f"{i}.json"
                        said = json.loads(answer.read_text()) if answer.exists() else None
                        following = task.done(said, time.monotonic() - task.began)
                        if following is not None:
                            tasks.append(following)


# --- Which tests execute which line. ---


def digest(*texts: str) -> str:
    """Return a short hash of texts."""
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=8).hexdigest()


def coverage(packages: Collection[str]) -> dict[str, dict[str, Any]]:
    """Measure, or read from a temporary file, the lines that each test of these packages executes."""
    sources = digest(*(path.read_text() for path in sorted(SOURCE.rglob("*.py"))))
    cache = Path(tempfile.gettempdir()) / "elliptica-mutants-coverage.json"
    known: dict[str, Any] = json.loads(cache.read_text()) if cache.exists() else {}
    files = [path for package in packages for path in sorted((ROOT / "tests" / package).rglob("test_*.py"))]
    keys = {str(path.relative_to(ROOT)): digest(sources, path.read_text()) for path in files}

    def keep(name: str) -> Callable[[dict[str, Any] | None, float], None]:
        def done(found: dict[str, Any] | None, seconds: float) -> None:
            if found is None:
                raise RuntimeError(f"{name}: the tests did not end")
            known[keys[name]] = found
            cache.write_text(json.dumps(known))
            idle = [test for test, facts in found.items() if not facts["passed"]]
            print(f"lines of {name}: {len(found)} tests in {seconds:.0f} s; not passed: {idle}", flush=True)

        return done

    run_all(
        [
            Task(lambda copy, name=name: measure(copy, name), keep(name), 1800.0)
            for name in keys
            if keys[name] not in known
        ]
    )
    return {test: facts for key in keys.values() for test, facts in known[key].items() if facts["passed"]}


def tests_of(mutant: Mutant, tests: dict[str, dict[str, Any]]) -> tuple[list[str], float]:
    """Return the tests that execute the mutated line, in the order of the trial, and their seconds.

    Tests of the mirrored file come first. Those that do not execute the line come last: a cache may have
    hidden it from them. They count as the others do if the line runs at import.
    """
    package, module = mutant.file.removesuffix(".py").split("/")
    first, last = mutant.reach
    ranked = []
    for name, facts in tests.items():
        mirrored = name.startswith(f"tests/{package}/test_{module}")
        hit = any(first <= line <= last for line in facts["lines"].get(mutant.file, ()))
        if mirrored and (hit or last == sys.maxsize):
            ranked.append((0, facts["seconds"], name))
        elif name.startswith(f"tests/{package}/") and (hit or mirrored):
            ranked.append((1 if hit else 2, facts["seconds"], name))
    kept, total = [], 0.0
    for _, seconds, name in sorted(ranked):
        if total + seconds <= FAST_SECONDS:
            kept.append(name)
            total += seconds
    return kept, total


# --- The run and its record. ---


def reasons() -> dict[str, str]:
    """Return why known survivors are equivalent, by key."""
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["mutant"] if EQUIVALENT.exists() else []
    return {f"{m['file']} | {m['operator']} | {m['before']} | {m['after']}": m["why"] for m in listed}


def read_sources() -> dict[str, str]:
    """Read the modules of the packages."""
    files = [path for package in PACKAGES for path in sorted((SOURCE / package).glob("*.py"))]
    texts = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8") for path in files}
    return {name: text for name, text in texts.items() if not name.endswith("__init__.py")}


class Run:
    """Judge mutants and keep the record."""

    def __init__(
        self, drawn: list[Mutant], sources: dict[str, str], out: Path, header: dict[str, int]
    ) -> None:
        self.sources, self.out, self.header, self.why = sources, out, header, reasons()
        self.hashes = {file: digest(source) for file, source in sources.items()}
        keys = {mutant.key for mutant in drawn}
        recorded = json.loads(out.read_text(encoding="utf-8"))["mutants"] if out.exists() else []
        self.entries: dict[str, dict[str, Any]] = {e["key"]: e for e in recorded if e["key"] in keys}
        for key, entry in self.entries.items():
            entry.pop("why", None)
            if entry["outcome"] == "survived" and key in self.why:
                entry["why"] = self.why[key]
        self.tests: dict[str, dict[str, Any]] = {}

    def is_judged(self, mutant: Mutant) -> bool:
        """Tell whether a verdict on the same source is recorded; survivors without a reason run again."""
        old = self.entries.get(mutant.key)
        same = old is not None and old["source"] == self.hashes[mutant.file]
        return same and (old["outcome"] == "killed" or "why" in old)

    def task(self, mutant: Mutant) -> Task:
        """Try the fast tests of a mutant."""
        names, seconds = tests_of(mutant, self.tests)

        def done(said: dict[str, Any] | None, took: float) -> Task | None:
            package, module = mutant.file.removesuffix(".py").split("/")
            files = [str(p.relative_to(ROOT)) for p in (ROOT / "tests" / package).glob(f"test_{module}*.py")]
            if files and names and not self.killer(said, mutant):
                return self.slow_task(mutant, files, took)
            self.keep(mutant, self.killer(said, mutant), took)
            return None

        work = (lambda copy: judge(copy, names)) if names else (lambda copy: {"code": 5, "killer": ""})
        return Task(work, done, 60.0 + 4 * seconds, (mutant.file, mutant.apply(self.sources[mutant.file])))

    def slow_task(self, mutant: Mutant, files: list[str], spent: float) -> Task:
        """Try the slow tests of the mirrored file on a survivor."""

        def done(said: dict[str, Any] | None, took: float) -> None:
            self.keep(mutant, self.killer(said, mutant), spent + took)

        change = (mutant.file, mutant.apply(self.sources[mutant.file]))
        return Task(lambda copy: judge_slowly(copy, files), done, 3 * SLOW_SECONDS + 60.0, change)

    def killer(self, said: dict[str, Any] | None, mutant: Mutant) -> str:
        """Return which test killed a mutant, or an empty string."""
        if said is None:
            return "(crash or time limit)"
        if said["code"] not in (0, 1, 2, 5):
            raise RuntimeError(f"pytest could not run on {mutant.key}: exit code {said['code']}")
        return said["killer"]

    def keep(self, mutant: Mutant, killer: str, seconds: float) -> None:
        """Add a verdict to the record."""
        before = self.entries.get(mutant.key, {})
        entry = {
            name: getattr(mutant, name) for name in ("key", "file", "line", "operator", "before", "after")
        }
        entry["source"] = self.hashes[mutant.file]
        entry["outcome"] = "killed" if killer else "survived"
        entry["killer"] = killer
        entry["seconds"] = round(seconds, 1)
        entry["survived_before"] = bool(before.get("survived_before") or before.get("outcome") == "survived")
        if not killer and mutant.key in self.why:
            entry["why"] = self.why[mutant.key]
        self.entries[mutant.key] = entry
        self.write()
        print(f"{entry['outcome']:9}{seconds:6.1f} s  {mutant.key}  [{killer}]", flush=True)

    def write(self) -> None:
        """Write the record, whole or not at all."""
        entries = sorted(self.entries.values(), key=lambda e: (e["file"], e["line"], e["key"]))
        self.out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**self.header, "mutants": entries}, indent=1, ensure_ascii=False)
        temporary = self.out.with_suffix(".part")
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(self.out)


def score(entries: Collection[dict[str, Any]]) -> str:
    """Say how many were killed, of all and of those that are not equivalent."""
    killed = sum(e["outcome"] == "killed" for e in entries)
    first = sum(e["outcome"] == "killed" and not e["survived_before"] for e in entries)
    equal = sum("why" in e for e in entries)
    others = max(1, len(entries) - equal)
    return (
        f"{len(entries)} mutants, {killed} killed ({first} before tests were added), {equal} equivalent: "
        f"{killed / max(1, len(entries)):.0%} of all, {killed / others:.0%} of the others"
    )


def main(seed: int = 0, number: int = 150, only: str | None = None, out: Path = RECORD) -> bool:
    """Make and judge mutants, and return whether every survivor is known to be equivalent.

    If the package is imported already, the work is done in a new process.

    Args:
        seed: seed of the sample.
        number: how many mutants of all modules.
        only: a file or package, such as ``core/bridge.py``; verdicts on other files stay as recorded.
        out: the record, to which verdicts are added as they come.
    """
    if out.exists():
        recorded = json.loads(out.read_text(encoding="utf-8"))
        if (recorded["seed"], recorded["number"]) != (seed, number):
            raise ValueError(
                f"{out.name} holds a sample of {recorded['number']} with seed {recorded['seed']}, which this "
                "one would replace. Pass another file with --out."
            )
    if SOURCE.name in sys.modules:  # forks would not see mutants
        words = [str(seed), str(number), only or "", str(out)]
        return not subprocess.run(
            [sys.executable, "-m", __spec__.name, *words], cwd=ROOT, check=False
        ).returncode
    preload()
    print(f"mutants: seed {seed}, number {number}", flush=True)
    sources = read_sources()
    drawn = sample(sources, number, seed)
    run = Run(drawn, sources, out, {"seed": seed, "number": number})
    chosen = [m for m in drawn if m.file.startswith(only or "")]
    if not chosen:
        raise ValueError(f"no mutant is in {only!r}. Files: {', '.join(sorted({m.file for m in drawn}))}.")
    remaining = [m for m in chosen if not run.is_judged(m)]
    remaining.sort(key=lambda mutant: digest(mutant.key))  # packages mixed, so that an early end tells of all
    run.tests = coverage(list(dict.fromkeys(m.file.split("/")[0] for m in remaining)))
    run_all([run.task(mutant) for mutant in remaining])
    run.write()
    for package in PACKAGES:
        print(f"{package}: {score([e for e in run.entries.values() if e['file'].startswith(package)])}")
    print(f"all: {score(run.entries.values())}")
    survivors = [e["key"] for e in run.entries.values() if e["outcome"] == "survived" and "why" not in e]
    for key in survivors:
        print(f"survived without a reason: {key}")
    return not survivors


def preload() -> None:
    """Import what all tests need before the forks, on one thread."""
    os.environ.update(OMP_NUM_THREADS="1", POLARS_MAX_THREADS="1")
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(not main(*map(int, sys.argv[1:3]), *sys.argv[3:4], *map(Path, sys.argv[4:5])))
