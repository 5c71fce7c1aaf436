"""Run the program in a process of its own, and judge how it ended.

The process is a fork of one that has imported everything, so that a case takes a second and not ten. It has a
folder and streams of its own. What is judged is what a user sees: the exit status, the two streams and the
files. Errors must be sentences of ours; the process also notes which exception stood behind a message, so
that an error from below does not pass as ours because a command printed it politely.
"""

from __future__ import annotations

import contextlib
import hashlib
import html.parser
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

# everything that commands import late, so that each case finds it in memory
import matplotlib.pyplot  # noqa: F401
import optuna  # noqa: F401
import plotly.graph_objects
import plotly.offline  # noqa: F401
import skops.io  # noqa: F401
import skrub  # noqa: F401
import torch._dynamo  # noqa: F401
import typer
from rich.console import Console

import elliptica.cli.model_source
import elliptica.compare.page
import elliptica.lab.demo.expected_loss
import elliptica.lab.demo.page
import elliptica.lab.demo.uncertainty
import elliptica.lab.experiments.engines
import elliptica.lab.experiments.page
import elliptica.lab.experiments.preflight
import elliptica.lab.experiments.search  # noqa: F401
from adversary.cases import (
    BAD,
    CLEAR,
    CRASH,
    DEEP,
    FINE,
    HANG,
    RIGHT,
    WRONG,
    Case,
    Outcome,
    Wrong,
    check,
    is_ours,
)
from elliptica.cli import app  # noqa: F401

LIMIT = 60.0
#: The most lines of an error on 80 columns.
MOST_LINES = 15
#: Python's own filters, before a case silences warnings.
_FILTERS = list(warnings.filters)
_SHOW = warnings.showwarning
#: Words that only a warning of Python or of a library has.
_WARNINGS = re.compile(r"\b\w+Warning: |\bResourceTracker|^Exception ignored", re.MULTILINE)
_DEEP = "This is not a message of elliptica"


@dataclass(frozen=True)
class Terminal:
    """What surrounds a command: environment and streams."""

    env: Mapping[str, str | None] = field(default_factory=dict)
    #: "file", "screen" (a pseudo terminal), "broken" (nobody reads), "full" (no room), "closed".
    out: str = "file"
    closed_input: bool = False
    encoding: str = "utf-8"
    errors: str = "strict"

    @property
    def is_readable(self) -> bool:
        """Whether someone can read what the command says."""
        return self.out in ("file", "screen")

    @property
    def width(self) -> int:
        """Columns of the terminal, as far as the command can know."""
        asked = self.env.get("COLUMNS") or ""
        return int(asked) if asked.isdigit() and int(asked) else 80


@dataclass
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str
    #: The exception that stood behind an error message: whether it is ours, and where it came from.
    origin: Mapping[str, Any] | None
    terminal: Terminal
    words: Sequence[str]
    folder: Path
    before: Mapping[str, str]
    after: Mapping[str, str]
    late: bool = False

    @property
    def said(self) -> str:
        """Both streams."""
        return f"{self.out}\n{self.err}"

    @property
    def shown(self) -> str:
        """The status and what was said last, for the report of the adversary."""
        return f"exit {self.code}: {short(self.err) or short(self.out)}"

    def new_files(self) -> list[str]:
        """Return files that were not there before."""
        return sorted(set(self.after) - set(self.before))

    def changed_files(self) -> list[str]:
        """Return files that are gone or have another content."""
        return sorted(name for name, digest in self.before.items() if self.after.get(name) != digest)


def _snapshot(folder: Path) -> dict[str, str]:
    """Digest every file below a folder; links and special files count by what they are."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            key = str(path.relative_to(folder))
            if path.is_symlink():
                found[key] = f"link to {path.readlink()}"
            elif not path.is_file():
                found[key] = "special"
            else:
                found[key] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def execute(here: Path, words: Sequence[str], terminal: Terminal | None = None, limit: float = LIMIT) -> Ran:
    """Run ``elliptica`` with these words in a folder, as a fork of this process."""
    terminal = terminal or Terminal()
    outside = Path(tempfile.mkdtemp(prefix="streams-", dir=here.parent))
    before = _snapshot(here)
    (outside / "err").touch()
    (outside / "out").touch()
    ends: list[int] = []
    if terminal.out == "screen":
        reader, out = pty.openpty()
        ends = [reader]
    elif terminal.out == "broken":
        reader, out = os.pipe()
        os.close(reader)
    elif terminal.out == "full":
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        out = os.open(outside / "out", os.O_WRONLY | os.O_APPEND)
    process = os.fork()
    if not process:
        _become_program(here, outside, words, terminal, out)
    os.close(out)
    code, late = _wait(process, ends, outside / "out", limit)
    note = outside / "origin"
    ran = Ran(
        code,
        (outside / "out").read_text(encoding=terminal.encoding, errors="replace"),
        (outside / "err").read_text(encoding=terminal.encoding, errors="replace"),
        json.loads(note.read_text()) if note.exists() else None,
        terminal,
        words,
        here,
        before,
        _snapshot(here),
        late,
    )
    shutil.rmtree(outside, ignore_errors=True)
    return ran


def _wait(process: int, ends: list[int], copy: Path, limit: float) -> tuple[int, bool]:
    """Wait for a process while its screen is read; return its status, and whether it had to be killed."""
    deadline, late = time.monotonic() + limit, False
    with copy.open("ab") as file:
        while True:
            done, status = os.waitpid(process, os.WNOHANG)
            for end in select.select(ends, [], [], 0.005 if not done else 0)[0] if ends else ():
                with contextlib.suppress(OSError):
                    file.write(os.read(end, 65536))
            if done:
                break
            if time.monotonic() > deadline and not late:
                late = True
                os.kill(process, signal.SIGKILL)
            time.sleep(0.005)
    for end in ends:
        os.close(end)
    return os.waitstatus_to_exitcode(status), late


def _become_program(
    here: Path, outside: Path, words: Sequence[str], terminal: Terminal, out: int
) -> NoReturn:
    """Turn this process into the program: folder, environment, streams, arguments. Never returns."""
    code = 99
    try:
        os.chdir(here)
        _set_environment(outside, terminal)
        _set_streams(outside, terminal, out)
        warnings.filters[:] = _FILTERS
        warnings.showwarning = _SHOW
        warnings._filters_mutated()  # type: ignore[attr-defined]
        _note_origins(outside / "origin")
        sys.argv = ["elliptica", *words]
        sys.path[:] = [each for each in sys.path if each not in ("", str(Path.cwd()))]
        code = _run_program()
    finally:
        os._exit(code)


def _set_environment(outside: Path, terminal: Terminal) -> None:
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    home = outside / "home"
    home.mkdir()
    os.environ.clear()
    given = {
        **kept,
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "ELLIPTICA_DATA": str(home / "data"),
        "MPLCONFIGDIR": str(home),
        "OMP_NUM_THREADS": "1",
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"),
        **terminal.env,
    }
    os.environ.update({name: value for name, value in given.items() if value is not None})


def _set_streams(outside: Path, terminal: Terminal, out: int) -> None:
    """Point the three standard streams of system and Python at those of the case."""
    os.dup2(out, 1)
    os.dup2(os.open(outside / "err", os.O_WRONLY | os.O_APPEND), 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def text(number: int) -> io.TextIOWrapper:
        raw = os.fdopen(os.dup(number), "wb", buffering=0)
        errors = "backslashreplace" if number == 2 else terminal.errors
        return io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=terminal.encoding, errors=errors, line_buffering=number == 2
        )

    sys.stdout, sys.stderr = text(1), text(2)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if terminal.closed_input:
        os.close(0)
        sys.stdin = None  # type: ignore[assignment]
    if terminal.out == "closed":
        os.close(1)
        sys.stdout = None  # type: ignore[assignment]


def _run_program() -> int:
    """Run it and end like the interpreter: the traceback of an exception, then the streams are flushed."""
    from elliptica.__main__ import main

    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        print(f"Exception ignored in stdout: {error!r}", file=sys.stderr)
        code = 120
    sys.stderr.flush()
    return code


def _note_origins(file: Path) -> None:
    """Note the exception that is being handled whenever something is printed; the last one counts."""

    def note() -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, SystemExit | BrokenPipeError):
            frames = traceback.extract_tb(error.__traceback__)
            last = frames[-1] if frames else None
            place = f"{Path(last.filename).name}:{last.name}" if last else "nowhere"
            # the library of the command line words errors about options
            is_usage = any(kind.__name__ == "ClickException" for kind in type(error).__mro__)
            content = {
                "ours": is_ours(error) or isinstance(error, OSError) or is_usage,
                "place": f"{type(error).__name__}: {str(error)[:200]} [{place}]",
            }
            file.write_text(json.dumps(content))

    for owner, name in ((Console, "print"), (typer, "echo")):
        plain = getattr(owner, name)

        def noting(*args: Any, _plain: Callable[..., Any] = plain, **options: Any) -> Any:
            note()
            return _plain(*args, **options)

        setattr(owner, name, noting)


def plain(text: str) -> str:
    """Remove what wrapping and frames add, so that names can be found."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return re.sub(r"[\s│|╭╮╰╯─]+", "", text).lower()


def judge_run(
    case: Case,
    ran: Ran,
    *,
    names: Sequence[str] = (),
    may_change: Sequence[str] = (),
    may_leave: Sequence[str] = (),
    partial: bool = False,
    results: Callable[[Ran], object] | None = None,
) -> Outcome | None:
    """Judge how a command ended; None is right, if the case does not owe an error.

    Args:
        case: The case, with what it owes.
        ran: How the command ended.
        names: Of which an error must mention one, if there are any.
        may_change: Files (or folders, as prefixes) that the command may replace.
        may_leave: Files (or folders, as prefixes) that may be new although the command failed.
        partial: Whether exit status 1 may go with results, because some of several parts failed.
        results: Called after success, unless it was asked for help, to check the results.
    """
    if ran.late:
        return Outcome(HANG, f"no end in {LIMIT:g} s: {short(ran.out)}")
    if ran.code < 0:
        return Outcome(CRASH, f"ended by {signal.Signals(-ran.code).name}: {ran.shown}")
    _check_harm(ran, may_change)
    if _DEEP in ran.said:
        return Outcome(DEEP, short(ran.err))
    if not ran.terminal.is_readable:
        check("Exception ignored" not in ran.err or ran.terminal.out == "full", f"noise: {short(ran.err)}")
        check(ran.terminal.out != "full" or ran.code != 0 or ran.err, "success, but all output was lost")
        return Outcome(RIGHT)
    if found := _WARNINGS.search(ran.said):
        start = ran.said.rfind("\n", 0, found.start()) + 1
        raise Wrong(f"shows a warning of a library: {ran.said[start : start + 160].strip()}")
    if ran.code != 0:
        return _judge_error(case, ran, names, may_leave, partial and ran.code == 1)
    if "--help" in ran.words and "--version" not in ran.words:
        check("usage" in plain(ran.out), f"no help: {short(ran.said)}")
        check(not ran.new_files(), f"help wrote {ran.new_files()[:3]}")
        return Outcome(RIGHT)
    if case.owed != BAD and results is not None:
        results(ran)
    return None


def _check_harm(ran: Ran, may_change: Sequence[str]) -> None:
    """Check what must hold however a command ends: no traceback, inputs unchanged, nothing half-written."""
    check("Traceback (most recent call last)" not in ran.said, f"traceback: {short(ran.said)}")
    changed = [name for name in ran.changed_files() if not name.startswith(tuple(may_change))]
    check(not changed, f"changed {changed[:3]}: {ran.shown}")
    parts = [name for name in ran.new_files() if name.endswith((".part", ".tmp"))]
    check(not parts, f"left {parts[:3]}: {ran.shown}")


def _judge_error(
    case: Case, ran: Ran, names: Sequence[str], may_leave: Sequence[str], partial: bool
) -> Outcome:
    """Judge a command that failed: a short message of ours that names what is wrong, and no new files."""
    check(ran.code in (1, 2), f"unknown status: {ran.shown}")
    text = plain(ran.said)
    check(any(word in text for word in ("error", "failed", "wasremoved")), f"no message: {ran.shown}")
    if ran.origin is not None and not ran.origin["ours"]:
        return Outcome(DEEP, f"printed as a message: {ran.origin['place']}")
    if case.owed == FINE:
        return Outcome(WRONG, f"valid input was refused: {ran.shown}")
    if not partial:
        lines = [line for line in ran.said.splitlines() if line.strip()]
        most = MOST_LINES * max(1, 100 // ran.terminal.width)
        check(len(lines) <= most, f"{len(lines)} lines of error: {ran.shown}")
        # a lock stays by design: to remove it would let two processes in
        left = [n for n in ran.new_files() if not n.startswith(tuple(may_leave)) and not n.endswith(".lock")]
        check(not left, f"failed and left {left[:3]}: {ran.shown}")
    wanted = [plain(name) for name in (*names, "No such option") if plain(name)]
    check(not names or any(name in text for name in wanted), f"names none of {list(names)[:6]}: {ran.shown}")
    return Outcome(CLEAR, ran.shown)


def short(text: str) -> str:
    """Return the end of a text on one line."""
    return " ".join(text.split())[-300:]


def strict_json(text: str) -> Any:
    """Parse JSON without the constants that only Python knows."""

    def refuse(name: str) -> NoReturn:
        raise Wrong(f"JSON holds {name}")

    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError as error:
        raise Wrong(f"not JSON: {error}") from error


class _Page(html.parser.HTMLParser):
    """Find scripts and handlers in a page that came from names of columns, files or titles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.inside, self.found = "", ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        for name, value in attrs:
            if (name.startswith("on") or name in ("href", "src")) and "alert(7)" in (value or ""):
                self.found = f"<{tag} {name}={value}>"

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script" and data.strip().startswith("alert(7)"):
            self.found = f"<script>{data[:40]}"


def check_page(file: Path) -> None:
    """Check that a page is whole and that nothing in it came alive."""
    text = file.read_text(encoding="utf-8")
    check(text.lstrip().lower().startswith("<!doctype html"), "the page does not start like one")
    check(text.rstrip().endswith("</html>"), "the page is not whole")
    if "alert(7)" in text:
        page = _Page()
        page.feed(text)
        check(not page.found, f"input became code in the page: {page.found}")


def check_picture(file: Path) -> None:
    """Check that a file is a PNG."""
    check(file.read_bytes()[:4] == b"\x89PNG", "no picture")
