"""Hostile arguments and files for every command, run as the real program in a process of its own.

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
import random
import re
import select
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

# everything that commands import late, so that each case finds it in memory
import matplotlib.pyplot  # noqa: F401
import numpy as np
import optuna  # noqa: F401
import plotly.graph_objects
import plotly.offline  # noqa: F401
import polars as pl
import skops.io  # noqa: F401
import skrub  # noqa: F401
import torch
import torch._dynamo
import typer
from hypothesis import strategies as st
from rich.console import Console
from sklearn.metrics import accuracy_score, root_mean_squared_error

import elliptica.cli.model_source
import elliptica.compare.page
import elliptica.diagnostics.landscape_figure
import elliptica.diagnostics.landscape_reports
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
    ODD,
    RIGHT,
    SOURCE,
    WRONG,
    Case,
    Choice,
    Outcome,
    Wrong,
    bad,
    check,
    fine,
    is_ours,
    odd,
    target,
)
from elliptica._utils.files import FileLock
from elliptica.cli import app  # noqa: F401
from elliptica.compare.comparison import Options, Session
from elliptica.compare.predict import predict_file
from elliptica.estimators import load, read_notes

LIMIT = 60.0
#: The most lines of an error on 80 columns.
MOST_LINES = 15
#: Python's own filters, before a case silences warnings.
_FILTERS = list(warnings.filters)
_SHOW = warnings.showwarning
#: Words that only a warning of Python or of a library has.
_WARNINGS = re.compile(r"\b\w+Warning: |\bResourceTracker|^Exception ignored", re.MULTILINE)
_DEEP = "This is not a message of elliptica"

# ---------------------------------------------------------------------------------------------------------
# The program in a process of its own


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
        return f"exit {self.code}: {_short(self.err) or _short(self.out)}"

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
            content = {
                "ours": is_ours(error) or isinstance(error, OSError) or _is_usage(error),
                "place": f"{type(error).__name__}: {str(error)[:200]} [{place}]",
            }
            file.write_text(json.dumps(content))

    for owner, name in ((Console, "print"), (typer, "echo")):
        plain = getattr(owner, name)

        def noting(*args: Any, _plain: Callable[..., Any] = plain, **options: Any) -> Any:
            note()
            return _plain(*args, **options)

        setattr(owner, name, noting)


def _is_usage(error: BaseException) -> bool:
    """Tell whether an error is one about options, which the library of the command line words."""
    return any(kind.__name__ == "ClickException" for kind in type(error).__mro__)


# ---------------------------------------------------------------------------------------------------------
# Judgement


@dataclass(frozen=True)
class Words:
    """Arguments, and names of which an error about them must hold one."""

    words: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def _plain(text: str) -> str:
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
    results: Callable[[], object] | None = None,
) -> Outcome:
    """Judge how a command ended.

    Args:
        case: The case, with what it owes.
        ran: How the command ended.
        names: Of which an error must mention one, if there are any.
        may_change: Files (or folders, as prefixes) that the command may replace.
        may_leave: Files (or folders, as prefixes) that may be new although the command failed.
        partial: Whether exit status 1 may go with results, because some of several parts failed.
        results: Called after success, to check the results.
    """
    if ran.late:
        return Outcome(HANG, f"no end in {LIMIT:g} s: {_short(ran.out)}")
    if ran.code < 0:
        return Outcome(CRASH, f"ended by {signal.Signals(-ran.code).name}: {ran.shown}")
    _check_harm(ran, may_change)
    if _DEEP in ran.said:
        return Outcome(DEEP, _short(ran.err))
    if not ran.terminal.is_readable:
        check("Exception ignored" not in ran.err or ran.terminal.out == "full", f"noise: {_short(ran.err)}")
        check(ran.terminal.out != "full" or ran.code != 0 or ran.err, "success, but all output was lost")
        return Outcome(RIGHT)
    if found := _WARNINGS.search(ran.said):
        start = ran.said.rfind("\n", 0, found.start()) + 1
        raise Wrong(f"shows a warning of a library: {ran.said[start : start + 160].strip()}")
    if ran.code != 0:
        return _judge_error(case, ran, names, may_leave, partial)
    if case.owed == BAD:
        return Outcome(WRONG, f"accepted without an error: {hostile(case)}")
    if results is not None:
        results()
    return Outcome(RIGHT)


def _check_harm(ran: Ran, may_change: Sequence[str]) -> None:
    """Check what must hold however a command ends: no traceback, inputs unchanged, nothing half-written."""
    check("Traceback (most recent call last)" not in ran.said, f"traceback: {_last(ran.said)}")
    changed = [name for name in ran.changed_files() if not name.startswith(tuple(may_change))]
    check(not changed, f"changed {changed[:3]}: {ran.shown}")
    parts = [name for name in ran.new_files() if name.endswith((".part", ".tmp"))]
    check(not parts, f"left {parts[:3]}: {ran.shown}")


def _judge_error(
    case: Case, ran: Ran, names: Sequence[str], may_leave: Sequence[str], partial: bool
) -> Outcome:
    """Judge a command that failed: a short message of ours that names what is wrong, and no new files."""
    check(ran.code in (1, 2), f"unknown status: {ran.shown}")
    text = _plain(ran.said)
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
    wanted = [_plain(name) for name in (*names, "No such option") if _plain(name)]
    check(not names or any(name in text for name in wanted), f"names none of {list(names)[:6]}: {ran.shown}")
    return Outcome(CLEAR, ran.shown)


def hostile(case: Case) -> str:
    """Name the choices of a case that are not fine."""
    found = [
        f"{axis}={case.name(axis)}"
        for axis in case.target.axes
        if case.target.choice(axis, case.name(axis)).owed != FINE
    ]
    return ", ".join(found) or "a combination"


def _short(text: str) -> str:
    return " ".join(text.split())[-300:]


def _last(text: str) -> str:
    """Return the last lines of a traceback."""
    return " ".join(text.strip().splitlines()[-3:])[-300:]


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


# ---------------------------------------------------------------------------------------------------------
# What surrounds a command

TERMINALS = (
    fine("a file", Terminal()),
    fine("narrow", Terminal({"COLUMNS": "20"})),
    fine(
        "senseless width", lambda case, w: Terminal({"COLUMNS": w}), st.sampled_from(["0", "-5", "abc", ""])
    ),
    fine("no colour", Terminal({"NO_COLOR": "1"})),
    fine("forced colour", Terminal({"FORCE_COLOR": "1"})),
    fine("dumb", Terminal({"TERM": "dumb"})),
    fine("screen", Terminal(out="screen")),
    fine("narrow screen", Terminal({"COLUMNS": "24"}, out="screen")),
    fine("plain C", Terminal({"LANG": None, "LC_ALL": "C"}, encoding="ascii", errors="surrogateescape")),
    fine("Latin 1", Terminal({"LANG": "en_US.ISO-8859-1"}, encoding="iso8859-1")),
    fine("no input", Terminal(closed_input=True)),
    fine("no home", Terminal({"HOME": None, "XDG_CACHE_HOME": None})),
    fine("home is nowhere", Terminal({"HOME": "/proc/nobody", "XDG_CACHE_HOME": "/proc/nobody/x"})),
    odd("nobody reads", Terminal(out="broken")),
    odd("full", Terminal(out="full")),
    odd("closed", Terminal(out="closed")),
)


def words_of(*words: str, names: Sequence[str] = ()) -> Words:
    """Make arguments whose errors must mention one of these names, or else the first word."""
    return Words(words, tuple(names) or (words[0], words[0].strip("-")))


def options(lines: str) -> tuple[Choice, ...]:
    """Make choices from lines such as ``bad --folds 1 ! fold``: what is owed, words, names for an error."""
    kinds = {FINE: fine, ODD: odd, BAD: bad}
    made = []
    for line in lines.strip().splitlines():
        owed, *words = shlex.split(line)
        at = words.index("!") if "!" in words else len(words)
        name = " ".join(words[:at])[:80]
        made.append(kinds[owed](name, words_of(*words[:at], names=words[at + 1 :])))
    return tuple(made)


#: Texts that are no whole number.
_NO_INTEGERS = st.sampled_from(["", "x", "1.5", "nan", "inf", "1e3", "0x10", " ", "1,000", "½", "--", "-"])
_NO_NUMBERS = st.sampled_from(["", "x", "1,5", "½", "--", "0x1p3", "1e", "[red]"])


def numbers(flag: str, least: int | None, *, huge: bool = False) -> tuple[Choice, ...]:
    """Make hostile values of an option that takes a whole number."""
    made = [bad(f"{flag} text", lambda case, v: words_of(flag, v), _NO_INTEGERS)]
    if least is not None:
        made.append(
            bad(
                f"{flag} too small",
                lambda case, v: words_of(flag, str(v)),
                st.one_of(st.integers(-5, least - 1), st.just(-(10**30))),
            )
        )
    if huge:
        made.append(
            odd(
                f"{flag} huge",
                lambda case, v: words_of(flag, str(v), names=(flag, flag.strip("-"))),
                st.sampled_from([2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30]),
            )
        )
    return tuple(made)


def names_of(flag: str) -> tuple[Choice, ...]:
    """Make hostile values of an option that takes one of several names."""
    values = st.sampled_from(
        ["", "nothing", "0", "None", "[red]x[/red]", "ÄÖ", "a" * 300, "erm ", "a\nb", "'"]
    )
    return (bad(f"{flag} unknown", lambda case, v: words_of(flag, v), values),)


#: Options that no command has, and options without their value.
_STRAY = (
    *options("""
bad --no-such-option
bad --no-such-option=1 ! --no-such-option
bad -Z
bad surplus ! surplus unexpected
fine --help
"""),
)


def common(*more: Choice) -> tuple[Choice, ...]:
    """Collect the choices of an axis of options: none, those of a command, and stray ones."""
    return (fine("none", Words()), *more, *_STRAY)


# ---------------------------------------------------------------------------------------------------------
# Tables


@dataclass(frozen=True)
class Sheet:
    """The cells of a table before they become a file; None is missing."""

    columns: dict[str, list[Any]]
    target: str

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def having(self, **columns: list[Any]) -> Sheet:
        """Return it with other or more columns."""
        return replace(self, columns={**self.columns, **columns})

    def renamed(self, names: Mapping[str, str]) -> Sheet:
        """Return it with other names."""
        columns = {names.get(name, name): values for name, values in self.columns.items()}
        return Sheet(columns, names.get(self.target, self.target))


def _cell(value: Any) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def to_csv(
    sheet: Sheet,
    separator: str = ",",
    *,
    comma: bool = False,
    quote: bool = False,
    end: str = "\n",
    missing: str = "",
    pad: str = "",
    last: bool = True,
) -> str:
    """Write a sheet as a file that some program might have exported."""

    def cell(value: Any) -> str:
        text = missing if value is None else _cell(value)
        if comma and isinstance(value, float):
            text = text.replace(".", ",")
        if quote or any(c in text for c in (separator, '"', "\n", "\r")):
            text = '"' + text.replace('"', '""') + '"'
        return pad + text + pad

    rows = [list(sheet.columns), *zip(*sheet.columns.values(), strict=True)]
    text = end.join(separator.join(cell(value) for value in row) for row in rows)
    return text + (end if last else "")


ROWS = 72


def make_sheet(seed: int, task: str = "classes", rows: int = ROWS) -> Sheet:
    """Make an ordinary table with a target that can be learnt."""
    draws = random.Random(f"{seed} {task}")
    size = [round(draws.gauss(0, 2) + 10, 3) for _ in range(rows)]
    weight = [round(draws.gauss(0, 1), 4) for _ in range(rows)]
    colour = [draws.choice(["red", "green", "blue"]) for _ in range(rows)]
    noise = [draws.gauss(0, 1) for _ in range(rows)]
    value = [a - 10 + b + (c == "red") + d for a, b, c, d in zip(size, weight, colour, noise, strict=True)]
    columns: dict[str, list[Any]] = {
        "size": size,
        "weight": weight,
        "colour": colour,
        "site": [f"site {i % 9}" for i in range(rows)],
        "day": [f"2021-{1 + (i * 7) % 12:02}-{1 + (i * 5) % 28:02}" for i in range(rows)],
    }
    if task == "classes":
        order = sorted(range(rows), key=value.__getitem__)
        columns["kind"] = ["rose"] * rows
        for i in order[rows // 2 :]:
            columns["kind"][i] = "iris"
        return Sheet(columns, "kind")
    columns["price"] = [round(100 + 10 * each, 3) for each in value]
    return Sheet(columns, "price")


def _sheet(case: Case, task: str = "classes", rows: int = ROWS) -> Sheet:
    return make_sheet(case.seed % 1000, task, rows)


def _edited(edit: Callable[[Case, Sheet], Sheet], task: str = "classes") -> Callable[[Case], Sheet]:
    return lambda case: edit(case, _sheet(case, task))


def _with_gaps(case: Case, sheet: Sheet) -> Sheet:
    """Empty one in ten cells of the inputs."""
    columns = {
        name: values
        if name == sheet.target
        else [None if case.stream.random() < 0.1 else value for value in values]
        for name, values in sheet.columns.items()
    }
    return replace(sheet, columns=columns)


def _every(values: list[Any], step: int, other: Any) -> list[Any]:
    """Replace one in some values."""
    return [other if i % step == 1 else value for i, value in enumerate(values)]


def _column(name: str, make: Callable[[Case, int], Any]) -> Callable[[Case], Sheet]:
    """Add a column whose cells a function of the row number makes."""
    return _edited(lambda case, sheet: sheet.having(**{name: [make(case, i) for i in range(len(sheet))]}))


def _target(change: Callable[[list[Any]], list[Any]], task: str = "classes") -> Callable[[Case], Sheet]:
    """Change the target."""
    return _edited(lambda _, sheet: sheet.having(**{sheet.target: change(sheet.columns[sheet.target])}), task)


_NAMES = [
    "[red]size[/red]",
    "[/]",
    "<script>alert(7)</script>",
    "<img src=x onerror=alert(7)>",
    '"><a href="javascript:alert(7)">',
    "=1+1",
    "-x",
    "{{7*7}}",
    "a=b",
    "größe µ 尺寸 😀",
    "two\nlines",
    'it\'s "quoted"',
    "%s %d {0}",
    "$x^2$",
    "x" * 300,
    "| a | `b` |",
    "\\",
    "row",
    "prediction",
    "None",
    "nan",
    "1",
]

#: Contents of tables: what a practitioner's export can hold.
CONTENTS = (
    fine("classes", _sheet),
    fine("numbers", lambda case: _sheet(case, "numbers")),
    fine("gaps", _edited(_with_gaps)),
    fine("gaps and numbers", _edited(_with_gaps, "numbers")),
    fine("name", lambda case, name: _sheet(case).renamed({"size": name}), st.sampled_from(_NAMES)),
    fine("name of target", lambda case, name: _sheet(case).renamed({"kind": name}), st.sampled_from(_NAMES)),
    fine(
        "name of class", lambda case, n: _classes(case, n), st.sampled_from([n for n in _NAMES if n != "nan"])
    ),
    fine("classes 0 and 1", _target(lambda y: [int(v == "rose") for v in y])),
    fine("true and false", _target(lambda y: [["true", "false"][v == "rose"] for v in y])),
    fine("a constant column", _column("always", lambda case, i: 7)),
    fine("an empty column", _column("empty", lambda case, i: None)),
    fine("an id", _column("id", lambda case, i: f"P{10_000 + 37 * i}")),
    fine("a number as id", _column("id", lambda case, i: 10**12 + i)),
    fine("formulas", _column("note", lambda case, i: ["=HYPERLINK(1)", "+1", "@x", "-5"][i % 4])),
    fine("text", _column("note", lambda case, i: f"word{case.stream.randrange(40)} and <b>{i}</b> [red]")),
    fine("lines in cells", _column("note", lambda case, i: f"two\nlines {i % 5}")),
    fine("money", _column("cost", lambda case, i: f"${1000 + 17 * i:,}.50")),
    fine("percent", _column("share", lambda case, i: f"{i % 90}.5 %")),
    fine("units", _column("height", lambda case, i: f"{150 + i % 40} cm")),
    fine("beyond int64", _column("big", lambda case, i: 10**25 + i * i)),
    fine("huge", _column("huge", lambda case, i: [1e300, -1e300, float(i)][i % 3])),
    fine("tiny", _column("tiny", lambda case, i: [1e-310, -1e-300, 0.0][i % 3])),
    fine("infinite", _column("x", lambda case, i: ["inf", "-inf", "1.5", str(i)][i % 4])),
    fine("not a number", _column("x", lambda case, i: "NaN" if i % 3 else i * 0.5)),
    fine("mixed", _column("mixed", lambda case, i: ["a", 1, 2.5, None, "2020-01-01"][i % 5])),
    fine("leading zeros", _column("zip", lambda case, i: f"0{1000 + i % 9}")),
    fine("odd dates", _column("when", lambda case, i: f"{1 + i % 28:02}/{1 + i % 12:02}/20{i % 30:02}")),
    fine("a leak", _edited(lambda _, s: s.having(leak=list(s.columns[s.target])))),
    fine(
        "a leak of numbers",
        _edited(lambda _, s: s.having(leak=[2 * v for v in s.columns["price"]]), "numbers"),
    ),
    fine(
        "copies of rows",
        _edited(lambda _, s: replace(s, columns={k: v[:24] * 3 for k, v in s.columns.items()})),
    ),
    fine(
        "wide",
        _edited(
            lambda case, s: s.having(
                **{f"x{j}": [case.stream.gauss(0, 1) for _ in range(len(s))] for j in range(150)}
            )
        ),
    ),
    fine("some targets missing", _target(lambda y: _every(y, 9, None))),
    fine("skewed target", _target(lambda y: [2.0 ** (v / 20) for v in y], "numbers")),
    fine("negative target", _target(lambda y: [-v for v in y], "numbers")),
    fine(
        "one input",
        _edited(lambda _, s: replace(s, columns={"size": s.columns["size"], "kind": s.columns["kind"]})),
    ),
    odd("target of 1e300", _target(lambda y: [v * 1e298 for v in y], "numbers")),
    odd("target of 1e-300", _target(lambda y: [v * 1e-302 for v in y], "numbers")),
    odd("outlier in target", _target(lambda y: _every(y, 50, 1e30), "numbers")),
    odd("infinite target", _target(lambda y: _every(y, 30, "inf"), "numbers")),
    odd("stray text in target", _target(lambda y: _every(y, 40, "?!"), "numbers")),
    odd("a rare class", _target(lambda y: ["tulip", *y[1:]])),
    odd("a small class", _target(lambda y: ["tulip"] * 5 + y[5:])),
    odd("many classes", _target(lambda y: [f"class {i % 30}" for i in range(len(y))])),
    odd("each row a class", _target(lambda y: [f"class {i}" for i in range(len(y))])),
    odd("almost constant target", _target(lambda y: [5.0] * (len(y) - 1) + [6.0], "numbers")),
    odd("integers as target", _target(lambda y: [int(v) for v in y], "numbers")),
    odd("dates as target", _edited(lambda _, s: replace(s, target="day"))),
    odd("few rows", lambda case: _sheet(case, rows=50)),
    odd("an empty name", lambda case: _sheet(case).renamed({"size": ""})),
    bad("one class", _target(lambda y: ["rose"] * len(y))),
    bad("constant target", _target(lambda y: [5.5] * len(y), "numbers")),
    bad("no targets", _target(lambda y: [None] * len(y))),
    bad("too few rows", lambda case, n: _sheet(case, rows=n), st.integers(1, 30)),
    bad(
        "no input varies",
        _edited(lambda _, s: replace(s, columns={"a": [1] * len(s), "kind": s.columns["kind"]})),
    ),
    bad("target alone", _edited(lambda _, s: replace(s, columns={"kind": s.columns["kind"]}))),
    bad("wrong target", lambda case: replace(_sheet(case), target="knd")),
)


def _classes(case: Case, name: str) -> Sheet:
    sheet = _sheet(case)
    return sheet.having(kind=[name if v == "rose" else v for v in sheet.columns["kind"]])


def _ragged(sheet: Sheet) -> str:
    lines = to_csv(sheet).splitlines()
    lines[5] += ",surplus"
    return "\n".join(lines)


def _raw(write: Callable[[Sheet], str | bytes]) -> Callable[[Case], Callable[[Sheet], bytes]]:
    """Make a rendering of sheets."""

    def render(sheet: Sheet) -> bytes:
        content = write(sheet)
        return content.encode() if isinstance(content, str) else content

    return lambda case: render


def _twice(sheet: Sheet) -> str:
    head, _, rest = to_csv(sheet).partition("\n")
    first, second = head.split(",")[:2] if "," in head else (head, head)
    return head.replace(second, first, 1) + "\n" + rest


#: Ways in which cells become bytes.
RENDERINGS = (
    fine("plain", _raw(to_csv)),
    fine("semicolons", _raw(lambda s: to_csv(s, ";"))),
    fine("semicolons and decimal commas", _raw(lambda s: to_csv(s, ";", comma=True))),
    fine("tabs", _raw(lambda s: to_csv(s, "\t"))),
    fine("pipes", _raw(lambda s: to_csv(s, "|"))),
    fine("byte order mark", _raw(lambda s: "\ufeff" + to_csv(s))),
    fine("Windows lines", _raw(lambda s: to_csv(s, end="\r\n"))),
    fine("all quoted", _raw(lambda s: to_csv(s, quote=True))),
    fine("NA", _raw(lambda s: to_csv(s, missing="NA"))),
    fine("padded", _raw(lambda s: to_csv(s, pad=" ") if not _has_quotes(s) else to_csv(s))),
    fine("blank lines", _raw(lambda s: "\n\n" + to_csv(s) + "\n\n")),
    fine("no last line end", _raw(lambda s: to_csv(s, last=False))),
    bad("empty", _raw(lambda s: "")),
    bad("blank", _raw(lambda s: "\n \n")),
    bad("header only", _raw(lambda s: to_csv(s).partition("\n")[0])),
    bad("ragged", _raw(_ragged)),
    bad("UTF-16", _raw(lambda s: to_csv(s).encode("utf-16"))),
    bad("Latin 1", _raw(lambda s: to_csv(s).encode("latin-1", "replace").replace(b"2021", b"20\xfc1"))),
    bad("zero bytes", _raw(lambda s: to_csv(s).replace("2021", "20\0001"))),
    bad("a zip file", _raw(lambda s: b"PK\x03\x04" + to_csv(s).encode())),
    bad("noise", _raw(lambda s: random.Random(len(s)).randbytes(3000))),
    bad("old Mac lines", _raw(lambda s: to_csv(s, end="\r"))),
    bad("name twice", _raw(_twice)),
    odd("open quote", _raw(lambda s: to_csv(s) + '"oops')),
    odd("a page", _raw(lambda s: "<html><body>" + to_csv(s) + "</body></html>")),
    odd("JSON", _raw(lambda s: json.dumps(s.columns))),
    odd("no header", _raw(lambda s: to_csv(s).partition("\n")[2])),
)


def _has_quotes(sheet: Sheet) -> bool:
    cells = [_cell(value) for values in sheet.columns.values() for value in values] + list(sheet.columns)
    return any(c in cell for cell in cells for c in '",\n')


def _place(name: str) -> Callable[[Case], Callable[[Path, bytes], str]]:
    """Write the file under a name."""

    def write(here: Path, content: bytes) -> str:
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return name

    return lambda case: write


def _linked(here: Path, content: bytes) -> str:
    (here / "real.csv").write_bytes(content)
    (here / "link.csv").symlink_to("real.csv")
    return "link.csv"


def _instead(make: Callable[[Path], str]) -> Callable[[Case], Callable[[Path, bytes], str]]:
    """Put something else where the file should be."""
    return lambda case: lambda here, content: make(here)


def _made(here: Path, name: str, how: Callable[[Path], object]) -> str:
    how(here / name)
    return name


#: Places of an input file; each writes the content and returns the argument.
_ODD_NAMES = [
    "with space.csv",
    "größe 尺寸.csv",
    "[red]data[/red].csv",
    "[/bold].csv",
    "new\nline.csv",
    'it\'s "quoted".csv',
    "$(touch x).csv",
    "<script>alert(7)<b>.csv",
    "deep/er/data.csv",
    "./-dash.csv",
    "noending",
    "two.dots.csv",
    "%s{0}.csv",
    "data.txt",
    ".hidden",
]
PLACES = (
    fine("data.csv", _place("data.csv")),
    fine("name", lambda case, name: _place(name)(case), st.sampled_from(_ODD_NAMES)),
    fine("a link", lambda case: _linked),
    bad("missing", _instead(lambda here: "missing.csv")),
    bad("no name", _instead(lambda here: "")),
    bad("a folder", _instead(lambda here: _made(here, "folder.csv", Path.mkdir))),
    bad("a pipe", _instead(lambda here: _made(here, "pipe.csv", os.mkfifo))),
    bad("nothing", _instead(lambda here: "/dev/null")),
    bad("endless", _instead(lambda here: "/dev/zero")),
    bad("a loop", _instead(lambda here: _made(here, "loop.csv", lambda path: path.symlink_to("loop.csv")))),
    bad("a dangling link", _instead(lambda here: _made(here, "gone.csv", lambda p: p.symlink_to("nowhere")))),
    bad("a very long name", _instead(lambda here: "x" * 5000 + ".csv")),
    bad("below a file", _instead(lambda here: _made(here, "file", Path.touch) + "/data.csv")),
    bad("an option", _instead(lambda here: "-data.csv")),
    bad("not Parquet", _place("data.parquet")),
)


def place_names(argument: str) -> tuple[str, ...]:
    """Return what an error about a file must mention."""
    shown = (argument, Path(argument).name, argument[:40]) if argument else (".",)
    return (*shown, "option") if argument.startswith("-") else shown


# ---------------------------------------------------------------------------------------------------------
# Results of earlier commands, made once and shared by the cases


def _digest_of_source() -> str:
    sha = hashlib.sha256(Path(__file__).read_bytes())
    for file in sorted(SOURCE.rglob("*.py")):
        sha.update(file.read_bytes())
    return sha.hexdigest()[:16]


PLUGIN = """
import torch
from elliptica.lab.data import Dataset, Split
from elliptica.lab.experiments import register_dataset

@register_dataset("toy")
def load():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True)
    return Dataset("toy", *[Split(x[i : i + 20], y[i : i + 20]) for i in (0, 20, 40)], task="regression")
"""
TABLE = """
title = "Toy"
metric = "rmse"
seeds = 2
trials = 2
search = { lr = { low = 1e-6, high = 1e-1, log = true } }
[searches.small.training]
lr = { low = 1e-5, high = 1e-1, log = true }
[methods.erm]
[methods.elliptic]
sigma = 0.1
[datasets.toy]
model = { name = "mlp", hidden = [8] }
training = { epochs = 2, batch_size = 8, lr = 1e-2 }
"""
QUICK = ("--folds", "2", "--trials", "1", "--epochs", "1", "--quick", "--jobs", "1")
#: Commands that make what other commands read: table, words.
_MADE: dict[str, tuple[str, ...]] = {
    "net": ("classes", "compare", "data.csv", "--target", "kind", "--methods", "elliptic", *QUICK),
    "linear": ("classes", "compare", "data.csv", "--target", "kind", "--methods", "linear", *QUICK),
    "trees": ("classes", "compare", "data.csv", "--target", "kind", "--methods", "trees", *QUICK),
    "regression": ("numbers", "compare", "data.csv", "--target", "price", "--methods", "erm", *QUICK),
    "runs": ("", "run", "mine.toml", "--plugin", "my_code"),
    "demo": ("", "demo", "--quick", "--seeds", "1", "--steps", "1"),
}


def fixture(name: str) -> Path:
    """Return a folder that a command of this version wrote; the first case that asks for it makes it."""
    root = Path(tempfile.gettempdir()) / f"elliptica-adversary-{os.getuid()}-{_digest_of_source()}"
    root.mkdir(exist_ok=True)
    done = root / name
    while not done.exists():
        try:
            lock = FileLock(root / f"{name}.lock")
        except BlockingIOError:
            time.sleep(0.1)
            continue
        try:
            if not done.exists():
                _make_fixture(root, name)
        finally:
            lock.release()
    return done


def _make_fixture(root: Path, name: str) -> None:
    for old in root.parent.glob(f"elliptica-adversary-{os.getuid()}-*"):
        if old != root and time.time() - old.stat().st_mtime > 3600:
            shutil.rmtree(old, ignore_errors=True)
    task, *words = _MADE[name]
    part = Path(tempfile.mkdtemp(dir=root))
    here = part / "here"
    here.mkdir()
    if task:
        (here / "data.csv").write_text(to_csv(make_sheet(0, task, 120)))
    write_experiment(here)
    out = ["--out", "out"]
    ran = execute(here, [*words, *out])
    assert ran.code == 0, ran.said
    (here / "out" / "report.html").unlink(missing_ok=True)
    here.rename(root / name)
    shutil.rmtree(part, ignore_errors=True)


def write_experiment(here: Path, table: str = TABLE, plugin: str = PLUGIN) -> None:
    """Write a table of experiments and its plugin."""
    (here / "mine.toml").write_text(table, encoding="utf-8")
    (here / "my_code.py").write_text(plugin, encoding="utf-8")


def folder_of(case: Case) -> Path:
    """Return the folder in which a command runs; its streams and its home are outside."""
    here = case.folder / "here"
    here.mkdir(exist_ok=True)
    return here


def copy_fixture(case: Case, name: str) -> Path:
    """Copy what an earlier command wrote into the folder of a case, as ``out``."""
    place = folder_of(case) / "out"
    shutil.copytree(fixture(name) / "out", place)
    return place


def damage(file: Path, how: str, stream: random.Random) -> None:
    """Damage a file in one of several ways."""
    content = bytearray(file.read_bytes())
    at = stream.randrange(len(content)) if content else 0
    if how == "cut":
        content = content[:at]
    elif how == "flipped":
        content[at] ^= 1 << stream.randrange(8)
    elif how == "emptied":
        content = bytearray()
    elif how == "noise":
        content = bytearray(stream.randbytes(500))
    elif how == "zeros":
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    elif how == "doubled":
        content = content + content
    file.write_bytes(bytes(content))


DAMAGES = ("cut", "flipped", "emptied", "noise", "zeros", "doubled")


# ---------------------------------------------------------------------------------------------------------
# elliptica compare

_OUTS = (
    fine("out", Words(("--out", "out"))),
    fine("deep", Words(("--out", "o/u/t"))),
    fine("by default", Words()),
    fine(
        "name",
        lambda case, n: Words(("--out", n)),
        st.sampled_from(["[red]o[/red]", "ö 尺", "a\nb", "it's", "./-o", "<script>alert(7)<b>"]),
    ),
    fine("exists", lambda case: (folder_of(case) / "out").mkdir() or Words(("--out", "out"))),
    odd("holds other files", lambda case: _foreign(case)),
    bad("a file", lambda case: _file_as_out(case)),
    bad("nowhere", Words(("--out", "/proc/nothing/out"), ("/proc/nothing", "--out"))),
    bad("below a file", lambda case: _file_as_out(case, "taken/out")),
    bad("below a device", Words(("--out", "/dev/full/out"), ("/dev/full", "--out"))),
    bad("too long", Words(("--out", "y" * 400), ("y" * 40, "--out"))),
    odd("no name", Words(("--out", ""), ("--out", "."))),
)


def _foreign(case: Case) -> Words:
    folder = folder_of(case) / "out"
    folder.mkdir()
    (folder / "results.json").write_text('{"mine": 1}')
    (folder / "thesis.txt").write_text("do not lose")
    return Words(("--out", "out"), ("out",))


def _file_as_out(case: Case, name: str = "taken") -> Words:
    (folder_of(case) / "taken").write_text("do not lose")
    return Words(("--out", name), ("taken", "--out"))


COMPARE_OPTIONS = common(
    *options("""
fine --methods linear
fine --methods elliptic,linear
fine --methods mixup --methods noise
fine --seed 7
fine --select worst
fine --repeats 2
fine --folds 3
fine --max-rows 300
fine --budget 20s
fine --unbounded
odd --task classification ! task class
odd --task regression ! regression number
odd --group colour ! colour group
odd --split-by site ! site
odd --time day ! day time
odd --extrapolate ! extrapolate far rows
odd --id site ! site input
odd --as weight=category ! weight
odd --as site=id ! site
odd --max-rows 60 ! rows
odd --max-rows 60 --sample ! rows
odd --methods groupdro ! group
odd --methods c-mixup ! c-mixup
odd --budget 1s ! budget time
odd --folds 40 ! fold
bad --budget soon
bad --budget -5s
bad --budget nan
bad --budget 0s
bad --budget '' ! budget
bad --target ! --target argument
bad --group nothing ! nothing
bad --group-as-input
bad --time colour ! colour
bad --time '' ! time column
bad --split-by nothing ! nothing
bad --id nothing ! nothing
bad --as weight ! --as
bad --as weight=colour ! colour
bad --as nothing=date ! nothing
bad --as colour=number ! colour
bad --as kind=id --as price=id ! kind price
bad --methods '' ! method
bad --methods ermm ! ermm
bad --test missing.csv ! missing.csv
bad --test /dev/null ! /dev/null
bad --target-rows missing.csv ! missing.csv
bad --time day --extrapolate ! --time --extrapolate
bad --extrapolate --folds 3 ! --extrapolate
bad --id weight --as weight=number ! weight
bad --trees
bad --engine thread ! thread
"""),
    *numbers("--folds", 2),
    *numbers("--trials", 1),
    *numbers("--repeats", 1),
    *numbers("--epochs", 1),
    *numbers("--jobs", 1),
    *numbers("--max-rows", 50),
    *numbers("--seed", 0, huge=True),
    *names_of("--select"),
    *names_of("--task"),
    *names_of("--methods"),
)


def _collect(case: Case, *axes: str) -> tuple[list[str], list[str]]:
    """Return the words of several axes, and the names that an error may mention."""
    words, names = [], []
    for axis in axes:
        made = case[axis]
        words += made.words
        if case.target.choice(axis, case.name(axis)).owed != FINE:
            names += made.names
    if sum(bool(case[axis].words) and case.name(axis) != "out" for axis in axes) > 1:
        case.owe(ODD)  # options that are fine alone may exclude each other
        names += [name for axis in axes for name in case[axis].names]
    return words, names


def _asks_for_help(case: Case, ran: Ran, words: Sequence[str]) -> Outcome | None:
    """Judge a command that was asked for its help: it prints that and does nothing else."""
    if "--help" not in words or ran.code != 0:
        return None
    if ran.terminal.is_readable:
        check("usage" in _plain(ran.out), f"no help: {_short(ran.said)}")
        check(not ran.new_files(), f"help wrote {ran.new_files()[:3]}")
    case.excuse()
    return judge_run(case, ran)


@target(
    "elliptica compare",
    {
        "content": CONTENTS,
        "rendering": RENDERINGS,
        "place": PLACES,
        "first": COMPARE_OPTIONS,
        "second": COMPARE_OPTIONS,
        "out": _OUTS,
        "terminal": TERMINALS,
    },
    kind="commands",
    limit=LIMIT,
    share=4.0,
)
def run_compare(case: Case) -> Outcome:
    """Compare methods on a table, and check the scores and the model."""
    here, sheet = folder_of(case), case["content"]
    source = case["place"](here, case["rendering"](sheet))
    more, names = _collect(case, "first", "second", "out")
    words = ["compare", source, "--target", sheet.target, "--methods", "erm", *QUICK, *more]
    _weigh_compare(case, sheet)
    ran = execute(here, words, case["terminal"])
    if (helped := _asks_for_help(case, ran, more)) is not None:
        return helped
    names += [*place_names(source), sheet.target, "target", "row", "class", "column", "input", "line"]
    asked = more[more.index("--out") + 1] if "--out" in more else None
    out = here / (asked if asked is not None else f"compare/{Path(source).stem}")
    plain = case.name("first") == case.name("second") == "none"

    def results() -> None:
        check_comparison(out, here / source, sheet, plain=plain, rendering=case.name("rendering"))

    return judge_run(case, ran, names=names, results=results)


def _weigh_compare(case: Case, sheet: Sheet) -> None:
    """Say what clashes or does not matter among the choices of a comparison."""
    names = {case.name(axis) for axis in ("first", "second")}
    content, rendering = case.name("content"), case.name("rendering")
    if not _renders(sheet, rendering) or len(sheet.columns) < 3:
        case.owe(ODD)
    if case.owed == BAD:
        harmless = (
            (rendering == "name twice" and len(sheet.columns) < 2)
            or (rendering == "ragged" and len(sheet) < 5)
            or (rendering in ("Latin 1", "zero bytes") and "day" not in sheet.columns)
        )
        kept = case.name("place") in _ABSENT or rendering in ("empty", "blank", "header only", "noise")
        others = [
            axis
            for axis in ("content", "rendering", "place", "first", "second", "out")
            if case.target.choice(axis, case.name(axis)).owed == BAD
        ]
        if harmless and others == ["rendering"]:
            case.excuse()
        # a rendering that hides the content, or options after which a value no longer counts
        if content in (
            "dates as target",
            "name of target",
            "one input",
            "target alone",
            "no input varies",
        ) and any(name.startswith(("--id", "--as", "--time", "--split-by", "--group")) for name in names):
            case.excuse()
        if len(names - {"none"}) > 1 and not kept and others in (["first"], ["second"]):
            case.excuse()  # the later of two values of an option counts
        if "--methods linear" in names and content == "constant target" and not kept:
            case.owe(BAD)


#: Places at which there is no content to read.
_ABSENT = tuple(choice.name for choice in PLACES if choice.owed == BAD)


def _renders(sheet: Sheet, rendering: str) -> bool:
    """Tell whether the cells of a sheet survive a rendering."""
    if rendering == "semicolons and decimal commas":
        cells = [_cell(v) for values in sheet.columns.values() for v in values if not isinstance(v, float)]
        return not any("." in cell or "," in cell for cell in cells)
    return True


def check_comparison(out: Path, source: Path, sheet: Sheet, *, plain: bool, rendering: str) -> None:
    """Check what a comparison wrote against the cells that it read."""
    for name in ("results.json", "predictions.npz", "model.elliptica", "report.md", "report.html"):
        check((out / name).is_file(), f"there is no {name}")
    results = strict_json((out / "results.json").read_text(encoding="utf-8"))
    check_page(out / "report.html")
    summary = results["summary"]
    scores, deciding = summary["scores"], summary["deciding"]
    sign = 1 if "accuracy" in deciding else -1
    trained = [name for name in summary["methods"] if name != "constant"]
    best = max(sign * scores[name][deciding] for name in trained)
    room = 1e-3 * (1 if sign > 0 else abs(best))  # scores that look the same share a place
    check(sign * scores[trained[0]][deciding] >= best - room, f"{trained} are not in the order of {deciding}")
    for name, row in scores.items():
        check(all(v is None or np.isfinite(v) for v in row.values()), f"scores of {name} are not finite")
    known = _known_targets(sheet)
    if plain:
        check(results["about"]["rows"] == len(known), f"{results['about']['rows']} rows, not {len(known)}")
        check_scores(out, source, sheet, results)
    predictions, _ = predict_file(out / "model.elliptica", source)
    check(len(predictions) == len(sheet), f"{len(predictions)} predictions for {len(sheet)} rows")
    found = predictions["prediction"].to_list()
    if summary["task"] == "classification":
        classes = {str(each) for each in summary["classes"]}
        check({str(each) for each in found} <= classes, f"predicts {set(found)}, not {classes}")
    elif summary["bounded"]:
        numbers = [float(value) for value in known if _is_number(value)]
        low, high = min(numbers), max(numbers)
        room = 1e-6 * max(abs(low), abs(high))
        check(all(low - room <= each <= high + room for each in found), "predicts beyond the known range")


def _known_targets(sheet: Sheet) -> list[Any]:
    """Return the targets that can be learnt; infinity counts as missing, and the command says so."""
    return [value for value in sheet.columns[sheet.target] if value not in (None, "inf")]


def _is_number(value: Any) -> bool:
    with contextlib.suppress(ValueError):
        return bool(np.isfinite(float(value)))
    return False


def check_scores(out: Path, source: Path, sheet: Sheet, results: Mapping[str, Any]) -> None:
    """Compute scores from the stored predictions and the targets of the sheet."""
    summary = results["summary"]
    options = Options(methods=["erm"], folds=2, trials=1, epochs=1, quick=True, jobs=1)
    session = Session.open(str(source), sheet.target, options, out=out, command="")
    session.close()
    targets = _known_targets(sheet)
    if rendered_numbers := summary["task"] == "regression":
        if not all(_is_number(value) for value in targets):
            return
        targets = [float(value) for value in targets]
    folds = session.shift.folds
    tested = np.concatenate([fold.test for fold in folds])
    check(sorted(tested.tolist()) == list(range(len(targets))), "not every row is tested once")
    for fold in folds:
        check(not set(fold.train.tolist()) & set(fold.test.tolist()), "rows of the test were trained on")
    stored = np.load(out / "predictions.npz")
    made = np.concatenate([stored[f"{fold.repeat}/{fold.number}/erm"] for fold in folds])
    truth = [targets[i] for i in tested]
    if rendered_numbers:
        scale = float(np.abs(truth).max())
        expected = root_mean_squared_error(np.array(truth) / scale, made / scale) * scale
        found = summary["scores"]["erm"]["rmse"]
    else:
        classes = session.problem.classes
        expected = accuracy_score(
            [str(t).lower() for t in truth], [str(classes[i]).lower() for i in made.argmax(1)]
        )
        found = summary["scores"]["erm"]["accuracy"]
        if set(map(str, classes)) != set(map(str, targets)):
            return  # true and false, say, which are read as something else
    check(
        abs(found - expected) <= 1e-6 * abs(expected) + 1e-12, f"score {found}, but {expected} from the rows"
    )


# ---------------------------------------------------------------------------------------------------------
# elliptica predict

#: Folders with a model, and what they predict.
_MODELS = {"net": "classes", "linear": "classes", "trees": "classes", "regression": "numbers"}


@dataclass(frozen=True)
class Saved:
    """A model file of a case: the argument, and the whole file it was made from."""

    argument: str
    whole: Path
    task: str
    is_whole: bool = True


def _saved(name: str) -> Callable[[Case], Saved]:
    def make(case: Case) -> Saved:
        copy_fixture(case, name)
        return Saved("out/model.elliptica", fixture(name) / "out/model.elliptica", _MODELS[name])

    return make


def _broken_model(case: Case, how: str) -> Saved:
    saved = _saved("net")(case)
    damage(folder_of(case) / saved.argument, how, case.stream)
    return replace(saved, is_whole=False)


def _other_model(make: Callable[[Path], str]) -> Callable[[Case], Saved]:
    """Pass something else in place of a model."""

    def made(case: Case) -> Saved:
        return Saved(make(folder_of(case)), fixture("net") / "out/model.elliptica", "classes", is_whole=False)

    return made


def _zip_of(path: Path, members: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)


MODELS = (
    fine("net", _saved("net")),
    fine("linear", _saved("linear")),
    fine("trees", _saved("trees")),
    fine("regression", _saved("regression")),
    odd("damaged", _broken_model, st.sampled_from(DAMAGES)),
    bad("missing", _other_model(lambda here: "missing.elliptica")),
    bad("no name", _other_model(lambda here: "")),
    bad("a folder", _other_model(lambda here: _made(here, "folder.elliptica", Path.mkdir))),
    bad("a pipe", _other_model(lambda here: _made(here, "pipe.elliptica", os.mkfifo))),
    bad("nothing", _other_model(lambda here: "/dev/null")),
    bad("text", _other_model(lambda here: _made(here, "m.elliptica", lambda p: p.write_text("a,b\n1,2\n")))),
    bad("a zip", _other_model(lambda here: _made(here, "m.elliptica", lambda p: _zip_of(p, {"a": b"b"})))),
    bad(
        "weights",
        _other_model(lambda here: _made(here, "m.pt", lambda p: torch.save({"w": torch.ones(2)}, p))),
    ),
    bad(
        "a loop", _other_model(lambda here: _made(here, "l.elliptica", lambda p: p.symlink_to("l.elliptica")))
    ),
)


def _new_rows(case: Case, rows: int = 20) -> Sheet:
    return make_sheet(1 + case.seed % 1000, case["model"].task, rows)


def _changed(edit: Callable[[Case, Sheet], Sheet]) -> Callable[[Case], Sheet]:
    return lambda case: edit(case, _new_rows(case))


def _without(sheet: Sheet, *names: str) -> Sheet:
    return replace(sheet, columns={k: v for k, v in sheet.columns.items() if k not in names})


NEW_ROWS = (
    fine("plain", _new_rows),
    fine("one row", lambda case: _new_rows(case, 1)),
    fine("many rows", lambda case: _new_rows(case, 3000)),
    fine("gaps", _changed(_with_gaps)),
    fine("without a target", _changed(lambda _, s: _without(s, s.target))),
    fine("other order", _changed(lambda _, s: replace(s, columns=dict(reversed(s.columns.items()))))),
    fine(
        "rows reversed", _changed(lambda _, s: replace(s, columns={k: v[::-1] for k, v in s.columns.items()}))
    ),
    fine(
        "other columns", _changed(lambda _, s: s.having(**{"<script>alert(7)</script>": s.columns["size"]}))
    ),
    fine("unseen colours", _changed(lambda _, s: s.having(colour=["mauve", "[red]"] * (len(s) // 2)))),
    fine("far away", _changed(lambda _, s: s.having(size=[1e9 * v for v in s.columns["size"]]))),
    odd("huge", _changed(lambda _, s: s.having(size=[1e300] * len(s)))),
    odd("infinite", _changed(lambda _, s: s.having(size=["inf"] * len(s)))),
    odd("text for numbers", _changed(lambda _, s: s.having(size=["large"] * len(s)))),
    odd("some text for numbers", _changed(lambda _, s: s.having(size=_every(s.columns["size"], 5, "large")))),
    odd("numbers for text", _changed(lambda _, s: s.having(colour=s.columns["size"]))),
    odd("all empty", _changed(lambda _, s: replace(s, columns={k: [None] * len(s) for k in s.columns}))),
    odd("no dates", _changed(lambda _, s: s.having(day=["soon"] * len(s)))),
    odd("other case", _changed(lambda _, s: s.renamed({"size": "Size"}))),
    odd("padded names", _changed(lambda _, s: s.renamed({"size": " size "}))),
    bad("a column is missing", _changed(lambda _, s: _without(s, "size"))),
    bad("all columns are missing", _changed(lambda _, s: Sheet({"a": [1] * len(s), "b": [2] * len(s)}, "a"))),
)

PREDICT_OUTS = (
    fine("by default", Words()),
    fine("a file", Words(("--out", "p.csv"))),
    fine("Parquet", Words(("--out", "p.parquet"))),
    fine("deep", Words(("--out", "a/b/p.csv"))),
    fine(
        "name",
        lambda case, n: Words(("--out", n)),
        st.sampled_from(["[red]p[/red]", "ö 尺.csv", "a\nb.csv", "it's", "./-p"]),
    ),
    fine(
        "an old file",
        lambda case: (folder_of(case) / "old.csv").write_text("old") and Words(("--out", "old.csv")),
    ),
    fine("nothing", Words(("--out", "/dev/null"))),
    bad("full", Words(("--out", "/dev/full"), ("/dev/full",))),
    bad("a folder", lambda case: (folder_of(case) / "f").mkdir() or Words(("--out", "f"), ("f",))),
    bad("a pipe", lambda case: os.mkfifo(folder_of(case) / "pipe") or Words(("--out", "pipe"), ("pipe",))),
    bad("nowhere", Words(("--out", "/proc/nothing/p.csv"), ("/proc/nothing",))),
    bad("below a file", lambda case: _file_as_out(case, "taken/p.csv")),
    bad("the table", lambda case: Words(("--out", "data.csv"), ("data.csv",))),
    bad("the model", lambda case: Words(("--out", "out/model.elliptica"), ("model.elliptica",))),
    bad("too long", Words(("--out", "y" * 400), ("y" * 40, "--out"))),
    odd("no name", Words(("--out", ""), ("--out", "."))),
    odd(
        "a loop",
        lambda case: (folder_of(case) / "loop").symlink_to("loop") or Words(("--out", "loop"), ("loop",)),
    ),
)

PREDICT_OPTIONS = common(
    *options("""
fine --proba
fine --id site
fine --id site --id colour
fine --max-rows 5000
odd --id size ! size
odd --id kind ! kind
bad --id nothing ! nothing
bad --id '' ! id
bad --id ! --id argument
"""),
    *numbers("--max-rows", 1, huge=True),
    *options("""
odd --max-rows 3 ! rows
"""),
)


@target(
    "elliptica predict",
    {
        "model": MODELS,
        "content": NEW_ROWS,
        "rendering": RENDERINGS,
        "place": PLACES,
        "first": PREDICT_OPTIONS,
        "second": PREDICT_OPTIONS,
        "out": PREDICT_OUTS,
        "terminal": TERMINALS,
    },
    kind="commands",
    limit=LIMIT,
    share=4.0,
)
def run_predict(case: Case) -> Outcome:
    """Predict rows, and compare with the model in this process on the cells themselves."""
    here, saved, sheet = folder_of(case), case["model"], case["content"]
    source = case["place"](here, case["rendering"](sheet))
    more, names = _collect(case, "first", "second", "out")
    _weigh_predict(case, more, source)
    words = ["predict", saved.argument, source, *more]
    ran = execute(here, words, case["terminal"])
    if (helped := _asks_for_help(case, ran, more)) is not None:
        return helped
    asked = more[more.index("--out") + 1] if "--out" in more else "predictions.csv"
    names += [*place_names(source), *place_names(saved.argument), "column", "row", "proba", "line"]

    def results() -> None:
        if asked and not asked.startswith("/dev"):
            check_predictions(here / asked, saved, sheet, proba="--proba" in more)

    return judge_run(case, ran, names=names, may_change=("old.csv",), results=results)


def _weigh_predict(case: Case, more: Sequence[str], source: str) -> None:
    """Say what clashes or does not matter among the choices of a prediction."""
    saved, sheet = case["model"], case["content"]
    if "--proba" in more and saved.task == "numbers":
        case.owe(BAD)
    if "--id" in more and "site" in more and "site" not in sheet.columns:
        case.owe(BAD)
    if case.name("out") == "the table" and source != "data.csv":
        case.excuse()
    if case.name("out") == "the model" and saved.argument != "out/model.elliptica":
        case.excuse()
    if case.name("rendering") in ("ragged", "old Mac lines") and len(sheet) < 6:
        case.excuse()
    if case.name("rendering") in ("Latin 1", "zero bytes") and "2021" not in to_csv(sheet):
        case.excuse()
    if len(sheet.columns) < 2 or not _renders(sheet, case.name("rendering")):
        case.owe(ODD)
    if case.name("content") == "many rows":
        case.owe(ODD)  # more rows than some --max-rows


def check_predictions(file: Path, saved: Saved, sheet: Sheet, *, proba: bool) -> None:
    """Compare a file of predictions with those of the model for the cells that were written."""
    if file.suffix == ".parquet":
        found = pl.read_parquet(file, glob=False)
    else:
        found = pl.read_csv(file, infer_schema_length=None, glob=False)
    check(len(found) == len(sheet), f"{len(found)} predictions for {len(sheet)} rows")
    check(found["row"].to_list() == list(range(1, len(sheet) + 1)), "rows are not numbered in their order")
    check(found["prediction"].null_count() == 0, "predictions are missing")
    if proba:
        chances = found.select(pl.col("^probability of .*$")).to_numpy()
        check(bool((abs(chances.sum(1) - 1) < 1e-5).all()), "probabilities do not add up to 1")
        names = [name.removeprefix("probability of ") for name in found.columns if name.startswith("prob")]
        likely = [names[i] for i in chances.argmax(1)]
        sure = chances.max(1) > 0.5 + 1e-9
        pairs = zip(likely, found["prediction"].to_list(), sure, strict=True)
        check(all(a == b for a, b, certain in pairs if certain), "a prediction is not the likeliest class")
    if not saved.is_whole or not all(isinstance(v, float | None) for v in sheet.columns.get("size", [""])):
        return
    if not {"size", "weight", "colour", "site", "day"} <= set(sheet.columns):
        return
    expected = _predicted(saved.whole, sheet)
    if expected is None:
        return
    made = found["prediction"].to_list()
    if saved.task == "classes":
        check(made == expected, "predictions differ from those of the model in Python")
    else:
        check(np.allclose(made, expected, rtol=1e-5), "predictions differ from those of the model in Python")


def _predicted(model: Path, sheet: Sheet) -> list[Any] | None:
    """Predict the cells of a sheet in this process; None if they are not of the kinds of the training."""
    kinds = {"size": pl.Float64, "weight": pl.Float64, "colour": pl.String, "site": pl.String}
    columns = [pl.Series(name, sheet.columns[name], dtype=kind, strict=False) for name, kind in kinds.items()]
    if any(a.null_count() != sum(v is None for v in sheet.columns[a.name]) for a in columns):
        return None
    if not all(isinstance(v, str | None) for v in sheet.columns["colour"]):
        return None
    days = pl.Series("day", sheet.columns["day"], dtype=pl.String)
    if any(value is not None and not value.startswith("20") for value in sheet.columns["day"]):
        return None
    frame = pl.DataFrame([*columns, days.str.to_datetime("%Y-%m-%d")])
    frame = frame.with_columns(pl.col("colour", "site").fill_null("(missing)"))
    if frame["size"].abs().max() is not None and frame["size"].abs().max() > 1e150:
        return None
    made = load(model).predict(frame)
    ends = read_notes(model).get("range")
    if ends is not None and made.dtype.kind == "f":
        made = made.clip(*ends)
    return made.tolist()


# ---------------------------------------------------------------------------------------------------------
# elliptica diagnose


def _arrays(**changes: Callable[[np.random.Generator], Any]) -> Callable[[Case], str]:
    """Write an archive of arrays with some of them changed; None removes one."""

    def make(case: Case) -> str:
        draws = np.random.default_rng(case.seed)
        x = draws.normal(size=(60, 3)).astype(np.float32)
        arrays: dict[str, Any] = {"x": x, "y": (x[:, 0] > 0).astype(np.int64)}
        for name, change in changes.items():
            arrays[name] = change(draws)
        np.savez(folder_of(case) / "data.npz", **{k: v for k, v in arrays.items() if v is not None})
        return "data.npz"

    return make


def _damaged_arrays(case: Case, how: str) -> str:
    name = _arrays()(case)
    damage(folder_of(case) / name, how, case.stream)
    return name


ARRAYS = (
    fine("arrays", _arrays()),
    fine("two moons", "two-moons"),
    fine("values", _arrays(y=lambda d: d.normal(size=60))),
    fine("several values", _arrays(y=lambda d: d.normal(size=(60, 2)))),
    fine(
        "test rows", _arrays(x_test=lambda d: d.normal(size=(30, 3)), y_test=lambda d: d.integers(0, 2, 30))
    ),
    fine("groups", _arrays(group=lambda d: d.choice(["a", "[red]", "<script>alert(7)</script>"], 60))),
    fine("unlabelled rows", _arrays(x_unlabelled=lambda d: d.normal(size=(20, 3)))),
    fine("integers", _arrays(x=lambda d: d.integers(0, 9, (60, 3)))),
    fine("images", _arrays(x=lambda d: d.normal(size=(60, 2, 4, 4)))),
    odd("few rows", _arrays(x=lambda d: d.normal(size=(2, 3)), y=lambda d: np.array([0, 1]))),
    odd("one class", _arrays(y=lambda d: np.zeros(60, int))),
    odd("a class is empty", _arrays(y=lambda d: d.choice([0, 5], 60))),
    odd("constant inputs", _arrays(x=lambda d: np.ones((60, 3)))),
    odd("constant values", _arrays(y=lambda d: np.ones(60))),
    odd("huge inputs", _arrays(x=lambda d: 1e30 * d.normal(size=(60, 3)))),
    odd("beyond float32", _arrays(x=lambda d: 1e300 * d.normal(size=(60, 3)))),
    odd("tiny inputs", _arrays(x=lambda d: 1e-38 * d.normal(size=(60, 3)))),
    odd("huge values", _arrays(y=lambda d: 1e30 * d.normal(size=60))),
    odd("half precision", _arrays(x=lambda d: d.normal(size=(60, 3)).astype(np.float16))),
    odd(
        "other test classes",
        _arrays(x_test=lambda d: d.normal(size=(30, 3)), y_test=lambda d: np.full(30, 7)),
    ),
    odd("no test rows", _arrays(x_test=lambda d: np.empty((0, 3)), y_test=lambda d: np.empty(0, int))),
    odd("one test row", _arrays(x_test=lambda d: np.ones((1, 3)), y_test=lambda d: np.ones(1, int))),
    odd("unsigned labels", _arrays(y=lambda d: d.integers(0, 2, 60).astype(np.uint8))),
    odd("column of labels", _arrays(y=lambda d: d.integers(0, 2, (60, 1)))),
    odd("damaged", _damaged_arrays, st.sampled_from(DAMAGES)),
    bad("labels beyond int64", _arrays(y=lambda d: np.full(60, 2**63, np.uint64))),
    bad("a huge label", _arrays(y=lambda d: np.where(np.arange(60) == 7, 10**9, 0))),
    bad("nan", _arrays(x=lambda d: np.where(np.eye(60, 3) > 0, np.nan, 1.0))),
    bad("nan values", _arrays(y=lambda d: np.full(60, np.nan))),
    bad("no y", _arrays(y=lambda d: None)),
    bad("flat inputs", _arrays(x=lambda d: d.normal(size=60))),
    bad("no features", _arrays(x=lambda d: np.empty((60, 0)))),
    bad("other length", _arrays(y=lambda d: np.ones(50, int))),
    bad("matrix of labels", _arrays(y=lambda d: d.integers(0, 2, (60, 3)))),
    bad("negative labels", _arrays(y=lambda d: d.integers(-1, 2, 60))),
    bad("text", _arrays(x=lambda d: np.full((60, 3), "a"))),
    bad("complex", _arrays(x=lambda d: d.normal(size=(60, 3)) * 1j)),
    bad("objects", _arrays(x=lambda d: np.array([[1, None, "a"]] * 60, dtype=object))),
    bad("groups without rows", _arrays(group_test=lambda d: np.ones(60))),
    bad("other features", _arrays(x_test=lambda d: np.ones((9, 2)), y_test=lambda d: np.ones(9, int))),
    bad("half a test", _arrays(x_test=lambda d: np.ones((9, 3)))),
    bad("missing", "missing.npz"),
    bad("no name", ""),
    bad("a folder", lambda case: _made(folder_of(case), "f.npz", Path.mkdir)),
    bad("a pipe", lambda case: _made(folder_of(case), "p.npz", os.mkfifo)),
    bad("a table", lambda case: _made(folder_of(case), "data.csv", lambda p: p.write_text("a,b\n1,2"))),
    bad("a zip", lambda case: _made(folder_of(case), "d.npz", lambda p: _zip_of(p, {"x.npy": b"junk"}))),
)

CODE = """
import torch
from torch import nn
model = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
def make(): return nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
def wrong_width(): return nn.Linear(7, 2)
def one_output(): return nn.Linear(3, 1)
def raises(): raise RuntimeError("no network today")
def needs(argument): return model
class Odd(nn.Module):
    def forward(self, x): return {"a": x}
class Failing(nn.Module):
    def forward(self, x): raise ZeroDivisionError("inside the model")
class Nan(nn.Module):
    def forward(self, x): return torch.full((len(x), 2), float("nan"))
number = 3
"""


def _code(name: str, *more: str, names: Sequence[str] = ()) -> Callable[[Case], Words]:
    def make(case: Case) -> Words:
        here = folder_of(case)
        (here / "my_net.py").write_text(CODE)
        (here / "bad_net.py").write_text("import nothing_of_that_name\n")
        (here / "syntax.py").write_text("def broken(:\n")
        (here / "exits.py").write_text("raise SystemExit(3)\n")
        torch.save({"1.weight": torch.ones(2, 3), "1.bias": torch.zeros(2)}, here / "good.pt")
        torch.save({"1.weight": torch.ones(5, 5)}, here / "wrong.pt")
        (here / "noise.pt").write_bytes(b"noise" * 20)
        return Words(
            ("--model", name, *more), (*names, name, name.partition(":")[0], name.rpartition(":")[2])
        )

    return make


#: Networks for arrays; those with three features and two classes fit.
NETWORKS = (
    fine("trained here", Words(("--steps", "5"))),
    fine("mixup", Words(("--steps", "5", "--train", "mixup"))),
    fine("elliptic", Words(("--steps", "5", "--train", "elliptic"))),
    odd("a module", _code("my_net:model")),
    odd("a function", _code("my_net:make")),
    odd("weights", _code("my_net:make", "--weights", "good.pt")),
    odd("one output", _code("my_net:one_output", "--loss", "mse")),
    odd("bce", _code("my_net:one_output", "--loss", "bce")),
    odd("nan", _code("my_net:Nan")),
    bad("wrong width", _code("my_net:wrong_width", names=["shape", "model"])),
    bad("raises", _code("my_net:raises", names=["no network today"])),
    bad("needs an argument", _code("my_net:needs")),
    bad("odd output", _code("my_net:Odd", names=["output", "dict"])),
    bad("fails", _code("my_net:Failing", names=["inside the model"])),
    bad("a number", _code("my_net:number")),
    bad("missing", _code("my_net:missing")),
    bad("no module", _code("no_net:make")),
    bad("no colon", _code("my_net")),
    bad("imports nothing", _code("bad_net:make", names=["nothing_of_that_name"])),
    bad("wrong syntax", _code("syntax:make")),
    bad("exits", _code("exits:make")),
    bad("empty", _code("")),
    bad("only a colon", _code(":")),
    bad("wrong weights", _code("my_net:make", "--weights", "wrong.pt", names=["wrong.pt"])),
    bad("noise as weights", _code("my_net:make", "--weights", "noise.pt", names=["noise.pt"])),
    bad("no weights", _code("my_net:make", "--weights", "none.pt", names=["none.pt"])),
    bad("weights alone", Words(("--weights", "none.pt"), ("none.pt", "--weights"))),
    bad("loss alone", Words(("--loss", "mse"), ("--loss",))),
)

DIAGNOSE_OPTIONS = common(
    *options("""
fine --all
fine --format json
fine --seed 3
fine --sigma 0.1
fine --sigma green
fine --out f.txt
fine --out f.json
fine --out a/b/f.html
fine --out [red]f.md
fine --reports between --probes 10 --walks 16
odd --reports test,weights --probes 10 --walks 16 ! test weights
odd --reports subharmonicity --probes 10 --walks 16 ! report
odd --sigma 0 ! sigma
odd --sigma 1e300 ! sigma
bad --sigma -1 ! sigma
bad --sigma nan ! sigma
bad --sigma inf ! sigma
bad --sigma '' ! sigma
bad --sigma Auto ! sigma
bad --out f.pdf ! f.pdf
bad --out /proc/nothing/f.txt ! /proc/nothing
bad --out /dev/full ! /dev/full
bad --out . ! .
bad --reports everything ! everything
bad --reports between --probes 10 --walks 16 --fraction -1 ! fraction
bad --reports between --probes 10 --walks 16 --fraction nan ! fraction
bad --reports between --shift nan ! shift
bad --walks 16 ! --walks
bad --reports between --n 10 ! --n
bad --test missing.csv ! --test
bad --target kind ! --target
"""),
    *numbers("--n", 10),
    *numbers("--steps", 1),
    *numbers("--seed", 0, huge=True),
    *names_of("--format"),
    *names_of("--train"),
    *names_of("--loss"),
    *names_of("--domain"),
)


@target(
    "elliptica diagnose",
    {
        "data": ARRAYS,
        "network": NETWORKS,
        "first": DIAGNOSE_OPTIONS,
        "second": DIAGNOSE_OPTIONS,
        "terminal": TERMINALS,
    },
    kind="commands",
    limit=LIMIT,
    share=2.5,
)
def run_diagnose(case: Case) -> Outcome:
    """Diagnose a network on arrays."""
    here, data = folder_of(case), case["data"]
    more, names = _collect(case, "network", "first", "second")
    names += ["The loss is NaN or infinite"] if case.name("data") == "huge values" else []
    _say_what_is_fixed(case)
    n = ["--n", "10"] if "--reports" not in more else []
    ran = execute(here, ["diagnose", data, *n, *more], case["terminal"])
    return _judge_diagnosis(case, ran, more, [*names, *place_names(data), "x", "y"])


def _say_what_is_fixed(case: Case) -> None:
    """Excuse a bad option whose value a later one replaces."""
    first, second = case.name("first").split(" ")[0], case.name("second").split(" ")[0]
    bads = [a for a in case.target.axes if case.target.choice(a, case.name(a)).owed == BAD]
    if (
        first == second != "none"
        and len(bads) == 1
        and (bads == ["first"] or first in ("--methods", "--dataset"))
    ):
        case.excuse()  # the later value counts; of those that are lists, both do


def _judge_diagnosis(case: Case, ran: Ran, more: Sequence[str], names: Sequence[str]) -> Outcome:
    if (helped := _asks_for_help(case, ran, more)) is not None:
        return helped

    def results() -> None:
        out = more[len(more) - 1 - more[::-1].index("--out") + 1] if "--out" in more else None
        if "--reports" in more:
            folder = ran.folder / (out or "landscape")
            strict_json((folder / "landscape.json").read_text())
            check((folder / "landscape.png").read_bytes()[:4] == b"\x89PNG", "no picture")
            return
        if out is None:
            if "json" in more:
                content = strict_json(ran.out)
                check(bool(content), "no findings")
            else:
                check(len(ran.out.strip()) > 100, f"says too little: {ran.out!r}")
            return
        file = ran.folder / out
        if file.suffix == ".html":
            check_page(file)
        elif file.suffix == ".json" or "json" in more:
            strict_json(file.read_text())
        else:
            check(len(file.read_text()) > 100, "the file says too little")

    return judge_run(
        case, ran, names=names, results=results, may_leave=("__pycache__", "landscape/landscape.json")
    )


TABLE_OPTIONS = common(
    *options("""
fine --all
fine --format json
fine --out f.html
fine --out f.json
fine --group colour
fine --test other.csv
fine --unlabelled other.csv
odd --test out/model.elliptica ! model.elliptica
odd --target size ! size
odd --target colour ! colour
odd --group size ! size
odd --group kind ! kind
odd --reports between --probes 10 --walks 16 ! network
bad --target nothing ! nothing
bad --target '' ! column target
bad --group nothing ! nothing
bad --test missing.csv ! missing.csv
bad --test /dev/null ! /dev/null
bad --unlabelled missing.csv ! missing.csv
bad --weights w.pt ! --weights w.pt
bad --loss mse ! --loss
bad --out /proc/nothing/f.txt ! /proc/nothing
bad --out f.exe ! f.exe
"""),
    *numbers("--n", 10),
    *numbers("--seed", 0, huge=True),
)


@target(
    "elliptica diagnose a saved model",
    {
        "model": MODELS,
        "content": NEW_ROWS,
        "rendering": RENDERINGS,
        "place": PLACES,
        "first": TABLE_OPTIONS,
        "second": TABLE_OPTIONS,
        "terminal": TERMINALS,
    },
    kind="commands",
    limit=LIMIT,
    share=2.0,
)
def run_diagnose_saved(case: Case) -> Outcome:
    """Diagnose a model of a comparison on a table."""
    here, saved, sheet = folder_of(case), case["model"], case["content"]
    source = case["place"](here, case["rendering"](sheet))
    (here / "other.csv").write_text(to_csv(make_sheet(77, saved.task, 40)))
    more, names = _collect(case, "first", "second")
    _weigh_saved(case, sheet)
    words = [
        "diagnose",
        source,
        "--model",
        saved.argument,
        *([] if "--reports" in more else ["--n", "10"]),
        *more,
    ]
    ran = execute(here, words, case["terminal"])
    names += [
        *place_names(source),
        *place_names(saved.argument),
        "column",
        "target",
        "row",
        "line",
        "package.module",
    ]
    return _judge_diagnosis(case, ran, more, names)


def _weigh_saved(case: Case, sheet: Sheet) -> None:
    """Say what clashes or does not matter among a model, a table and options."""
    rendering = case.name("rendering")
    if rendering in ("Latin 1", "zero bytes") and "2021" not in to_csv(sheet):
        case.excuse()
    if rendering in ("ragged", "old Mac lines") and len(sheet) < 6:
        case.excuse()
    if len(sheet) < 10 or sheet.target not in sheet.columns or not _renders(sheet, rendering):
        case.owe(ODD)
    _say_what_is_fixed(case)


# ---------------------------------------------------------------------------------------------------------
# elliptica report


def _report_of(name: str) -> Callable[[Case], Words]:
    def make(case: Case) -> Words:
        copy_fixture(case, name)
        return Words(("out",), ("out",))

    return make


def _report_of_damaged(name: str, files: Sequence[str]) -> Callable[[Case, str], Words]:
    """Damage one of the files that a page is made from."""

    def make(case: Case, how: str) -> Words:
        folder = copy_fixture(case, name)
        found = sorted(f for pattern in files for f in folder.rglob(pattern) if f.is_file())
        damage(case.stream.choice(found), how, case.stream)
        return Words(("out",), ("out", "results.json"))

    return make


def _edited_json(name: str) -> Callable[[Case], Words]:
    """Replace one value anywhere in a JSON file by something else that JSON allows."""

    def make(case: Case) -> Words:
        folder, stream = copy_fixture(case, name), case.stream
        file = stream.choice(sorted(f for f in folder.rglob("*.json") if f.is_file()))
        content = json.loads(file.read_text())
        place: Any = content
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = stream.choice(keys)
            if not isinstance(place[key], dict | list) or not place[key] or stream.random() < 0.15:
                break
            place = place[key]
        others = [
            None,
            -1,
            1e308,
            "",
            "<script>alert(7)</script>",
            [],
            {},
            True,
            [[]],
            "x" * 1000,
            "[red]",
            0,
        ]
        if stream.random() < 0.2:
            del place[key]
        else:
            place[key] = stream.choice(others)
        file.write_text(json.dumps(content))
        return Words(("out",), ("out", "results.json"))

    return make


def _report_of_model(case: Case) -> Words:
    copy_fixture(case, "net")
    (folder_of(case) / "data.csv").write_text(to_csv(make_sheet(5, rows=40)))
    return Words(("out/model.elliptica", "--data", "data.csv", "--target", "kind"))


def _report_of_arrays(case: Case) -> Words:
    return Words((_arrays()(case), "--steps", "5"))


SOURCES = (
    fine("comparison", _report_of("net")),
    fine("trees", _report_of("trees")),
    fine("regression", _report_of("regression")),
    fine("runs", _report_of("runs")),
    fine("demo", _report_of("demo")),
    fine("a saved model", _report_of_model),
    fine("arrays", _report_of_arrays),
    fine("two moons", Words(("two-moons", "--steps", "5"))),
    odd(
        "damaged comparison",
        _report_of_damaged("net", ["results.json", "predictions.npz", "model.elliptica"]),
        st.sampled_from(DAMAGES),
    ),
    odd("damaged runs", _report_of_damaged("runs", ["*.json"]), st.sampled_from(DAMAGES)),
    odd("damaged demo", _report_of_damaged("demo", ["*.json"]), st.sampled_from(DAMAGES)),
    odd("edited comparison", _edited_json("net")),
    odd("edited regression", _edited_json("regression")),
    odd("edited runs", _edited_json("runs")),
    odd("edited demo", _edited_json("demo")),
    odd("an empty folder", lambda case: (folder_of(case) / "e").mkdir() or Words(("e",), ("e",))),
    bad("missing", Words(("missing",), ("missing",))),
    bad("no name", Words(("",))),
    bad(
        "a table",
        lambda case: (folder_of(case) / "d.csv").write_text("a,b\n1,2") and Words(("d.csv",), ("d.csv",)),
    ),
    bad("a pipe", lambda case: os.mkfifo(folder_of(case) / "p") or Words(("p",), ("p",))),
    bad("nothing", Words(("/dev/null",), ("/dev/null",))),
    bad("too long", Words(("y" * 5000,), ("y" * 40,))),
    bad(
        "one file",
        lambda case: (folder_of(case) / "r.json").write_text("{}") and Words(("r.json",), ("r.json",)),
    ),
    bad(
        "model without data",
        lambda case: (
            _report_of("net")(case) and Words(("out/model.elliptica",), ("--data", "model.elliptica"))
        ),
    ),
)

REPORT_OPTIONS = common(
    *options("""
fine --no-landscape
fine --title '<script>alert(7)</script> [red] {{7*7}}'
"""),
    fine("--title two lines", words_of("--title", "größe 尺 \n 2")),
    *options("""
fine --seed 3
odd --title '' ! title
odd --data-dir nowhere ! nowhere
odd --table mine.toml ! mine.toml
odd --data missing.csv ! --data missing.csv
odd --group colour ! --group colour
odd --group nothing ! --group nothing
odd --model my_net:model ! --model my_net
odd --weights missing.pt ! --weights missing.pt
odd --table missing.toml ! --table missing.toml
bad --plugin no_such_module ! no_such_module
"""),
    *numbers("--seed", 0, huge=True),
    *numbers("--steps", 1),
    *names_of("--train"),
    *names_of("--loss"),
)

PAGES = (
    fine("page", Words(("-o", "page.html"))),
    fine("by default", Words()),
    fine("deep", Words(("-o", "a/b/p.html"))),
    fine(
        "name",
        lambda case, n: Words(("-o", n)),
        st.sampled_from(["[red]p[/red]", "ö 尺.html", "a\nb", "it's", "./-p"]),
    ),
    fine(
        "an old page",
        lambda case: (
            (folder_of(case) / "p.html").write_text("<!doctype html>old") and Words(("-o", "p.html"))
        ),
    ),
    bad(
        "someone's file",
        lambda case: (
            (folder_of(case) / "t.txt").write_text("do not lose") and Words(("-o", "t.txt"), ("t.txt",))
        ),
    ),
    bad("a folder", lambda case: (folder_of(case) / "f").mkdir() or Words(("-o", "f"), ("f",))),
    bad("a pipe", lambda case: os.mkfifo(folder_of(case) / "pipe") or Words(("-o", "pipe"), ("pipe",))),
    bad("full", Words(("-o", "/dev/full"), ("/dev/full",))),
    bad("nowhere", Words(("-o", "/proc/nothing/p.html"), ("/proc/nothing",))),
    bad(
        "below a file",
        lambda case: (folder_of(case) / "taken").touch() or Words(("-o", "taken/p.html"), ("taken",)),
    ),
    bad("too long", Words(("-o", "y" * 400), ("y" * 40, "--out"))),
)


@target(
    "elliptica report",
    {
        "source": SOURCES,
        "first": REPORT_OPTIONS,
        "second": REPORT_OPTIONS,
        "out": PAGES,
        "terminal": TERMINALS,
    },
    kind="commands",
    limit=LIMIT,
    share=2.5,
)
def run_report(case: Case) -> Outcome:
    """Write a page about results, whole or damaged."""
    here = folder_of(case)
    write_experiment(here)
    (here / "my_net.py").write_text(CODE)
    more, names = _collect(case, "source", "first", "second", "out")
    names += ["no record that can be used"] if case.name("source") == "no name" else []
    _say_what_is_fixed(case)
    if "--title" in more and case.name("first") in ("none", case.name("second")) and case.owed == ODD:
        names += ["title"]
    ran = execute(here, ["report", *more], case["terminal"])
    if (helped := _asks_for_help(case, ran, more)) is not None:
        return helped
    out = here / (more[more.index("-o") + 1] if "-o" in more else "report.html")

    def results() -> None:
        check_page(out)
        if "out" in more and case.name("source") in ("comparison", "trees", "regression"):
            check("alert(7)" not in ran.out or "--title" in more, "prints what it should not")

    return judge_run(
        case, ran, names=names, results=results, may_change=("p.html",), may_leave=("__pycache__",)
    )


# ---------------------------------------------------------------------------------------------------------
# elliptica run, table, tune and list


def _toml(change: Callable[[str], str], plugin: str = PLUGIN) -> Callable[[Case], Words]:
    """Write a table of experiments that differs from the ordinary one."""

    def make(case: Case) -> Words:
        write_experiment(folder_of(case), change(TABLE), plugin)
        return Words(("mine.toml",), ("mine:", "mine.toml", *_tokens(change(TABLE))))

    return make


def _tokens(text: str) -> tuple[str, ...]:
    """Return the words of a table that the ordinary one lacks: an error should hold one of them."""
    usual = set(re.findall(r"\w+", TABLE))
    return tuple(word for word in re.findall(r"\w+", text) if word not in usual)


def _swap(old: str, new: str) -> Callable[[str], str]:
    assert old in TABLE, old
    return lambda text: text.replace(old, new)


def _toml_place(make: Callable[[Path], str]) -> Callable[[Case], Words]:
    def made(case: Case) -> Words:
        write_experiment(folder_of(case))
        argument = make(folder_of(case))
        return Words((argument,), place_names(argument))

    return made


SPECIFICATIONS = (
    fine("ordinary", _toml(lambda text: text)),
    fine(
        "hostile names",
        _toml(_swap("[methods.erm]", '[methods."<script>alert(7)</script> [red] | _a_"]\nmethod = "erm"')),
    ),
    fine("title", _toml(_swap('"Toy"', '"[red]größe 尺 <b> | {0} %s"'))),
    fine(
        "byte order of keys",
        _toml(
            lambda text: text.replace("seeds = 2\n", "").replace('title = "Toy"', 'title = "Toy"\nseeds = 2')
        ),
    ),
    fine("one seed", _toml(_swap("seeds = 2", "seeds = 1"))),
    odd(
        "no methods",
        _toml(lambda text: text.replace("[methods.erm]", "").replace("[methods.elliptic]\nsigma = 0.1", "")),
    ),
    odd("no title", _toml(_swap('title = "Toy"', ""))),
    odd("huge rate", _toml(_swap("lr = 1e-2", "lr = 1e30"))),
    odd("no rate", _toml(_swap("lr = 1e-2", "lr = 0.0"))),
    odd("large batch", _toml(_swap("batch_size = 8", "batch_size = 1000"))),
    odd("batch of one", _toml(_swap("batch_size = 8", "batch_size = 1"))),
    odd("no noise", _toml(_swap("sigma = 0.1", "sigma = 0.0"))),
    odd("huge noise", _toml(_swap("sigma = 0.1", "sigma = 1e30"))),
    odd("infinite search", _toml(_swap("high = 1e-1", "high = inf"))),
    odd("empty name", _toml(_swap("[methods.erm]", '[methods.""]\nmethod = "erm"'))),
    odd("name with slashes", _toml(_swap("[methods.erm]", '[methods."../../x"]\nmethod = "erm"'))),
    odd("long name", _toml(_swap("[methods.erm]", f'[methods."{"m" * 300}"]\nmethod = "erm"'))),
    bad("negative rate", _toml(_swap("lr = 1e-2", "lr = -1.0"))),
    bad("rate is nan", _toml(_swap("lr = 1e-2", "lr = nan"))),
    bad("rate is text", _toml(_swap("lr = 1e-2", 'lr = "fast"'))),
    bad("no epochs", _toml(_swap("epochs = 2", "epochs = 0"))),
    bad("half an epoch", _toml(_swap("epochs = 2", "epochs = 0.5"))),
    bad("epochs true", _toml(_swap("epochs = 2", "epochs = true"))),
    bad("no batch", _toml(_swap("batch_size = 8", "batch_size = 0"))),
    bad("no seeds", _toml(_swap("seeds = 2", "seeds = 0"))),
    bad("seeds as text", _toml(_swap("seeds = 2", 'seeds = "two"'))),
    bad("unknown key", _toml(_swap("seeds = 2", "seeds = 2\nsedes = 3"))),
    bad("unknown training", _toml(_swap("epochs = 2", "epochs = 2, momentun = 3"))),
    bad("unknown metric", _toml(_swap('"rmse"', '"mse"'))),
    bad("other metric", _toml(_swap('"rmse"', '"accuracy"'))),
    bad("unknown method", _toml(_swap("[methods.erm]", "[methods.ermm]"))),
    bad("unknown setting", _toml(_swap("sigma = 0.1", "sigmaa = 0.1"))),
    bad("negative noise", _toml(_swap("sigma = 0.1", "sigma = -0.1"))),
    bad("noise is nan", _toml(_swap("sigma = 0.1", "sigma = nan"))),
    bad("noise is text", _toml(_swap("sigma = 0.1", 'sigma = "loud"'))),
    bad("unknown data", _toml(_swap("[datasets.toy]", "[datasets.toys]"))),
    bad("unknown network", _toml(_swap('"mlp"', '"mpl"'))),
    bad("no units", _toml(_swap("hidden = [8]", "hidden = [0]"))),
    bad("units as text", _toml(_swap("hidden = [8]", 'hidden = "wide"'))),
    bad("not TOML", _toml(lambda text: text + "\n[[[")),
    bad("empty", _toml(lambda text: "")),
    bad("key twice", _toml(lambda text: text.replace("seeds = 2", "seeds = 2\nseeds = 3"))),
    bad("zero bytes", _toml(lambda text: text + "\0")),
    bad("missing", _toml_place(lambda here: "missing.toml")),
    bad("unknown name", _toml_place(lambda here: "table99")),
    bad("no name", _toml_place(lambda here: "")),
    bad("a folder", _toml_place(lambda here: _made(here, "f.toml", Path.mkdir))),
    bad("a pipe", _toml_place(lambda here: _made(here, "p.toml", os.mkfifo))),
    bad("nothing", _toml_place(lambda here: "/dev/null")),
    bad(
        "noise",
        _toml_place(lambda here: _made(here, "n.toml", lambda p: p.write_bytes(b"\xff\xfe\x00" * 30))),
    ),
    bad(
        "name of the library",
        _toml_place(lambda here: _made(here, "table3.toml", lambda p: p.write_text(TABLE))),
    ),
    bad("too long", _toml_place(lambda here: "y" * 5000 + ".toml")),
)


def _plugin(text: str, *names: str) -> Callable[[Case], Words]:
    """Write a plugin in place of the ordinary one."""

    def make(case: Case) -> Words:
        case["table"]
        (folder_of(case) / "my_code.py").write_text(text)
        return Words(("--plugin", "my_code"), (*names, "my_code"))

    return make


_FAILING = PLUGIN.replace("def load():", "def load():\n    raise RuntimeError('no rows today')")
PLUGINS = (
    fine("ordinary", Words(("--plugin", "my_code"))),
    fine("a file", Words(("--plugin", "my_code.py"))),
    fine("twice", Words(("--plugin", "my_code", "--plugin", "my_code"))),
    bad("raises", _plugin("raise RuntimeError('not today')", "not today")),
    bad("exits", _plugin("raise SystemExit(0)", "exit")),
    bad("wrong syntax", _plugin("def broken(:", "syntax")),
    bad("imports nothing", _plugin("import nothing_of_that_name", "nothing_of_that_name")),
    bad("registers nothing", _plugin("", "toy")),
    bad("none", Words((), ("toy", "--plugin"))),
    bad("missing", Words(("--plugin", "no_such_module"), ("no_such_module",))),
    bad("no file", Words(("--plugin", "missing.py"), ("missing.py",))),
    bad("no name", Words(("--plugin", ""), ("plugin",))),
    bad(
        "a folder", lambda case: (folder_of(case) / "f.py").mkdir() or Words(("--plugin", "f.py"), ("f.py",))
    ),
    bad("data fail", _plugin(_FAILING, "no rows today")),
    bad(
        "data are a list",
        _plugin(PLUGIN.replace("return Dataset(", "return list(("), "list", "toy", "Dataset"),
    ),
    bad(
        "nan in data", _plugin(PLUGIN.replace("y = x.sum", "x[:] = float('nan'); y = x.sum"), "nan", "finite")
    ),
    bad("no rows", _plugin(PLUGIN.replace("(60, 3,", "(0, 3,"), "rows", "toy", "empty")),
    bad("name is taken", _plugin(PLUGIN + '\nregister_dataset("no2")(load)\n', "no2")),
)

RUN_OPTIONS = common(
    *options("""
fine --seeds 1
fine --epochs 1
fine --methods elliptic
fine --dataset toy
fine --match evaluations
fine --select average
odd --precision bfloat16 ! precision
odd --tuned ! tune
odd --select worst ! worst
bad --methods nothing ! nothing
bad --methods '' ! method
bad --methods , ! method
bad --dataset nothing ! nothing
bad --dataset toy,nothing ! nothing
"""),
    *numbers("--seeds", 1),
    *numbers("--epochs", 1),
    *names_of("--precision"),
    *names_of("--match"),
    *names_of("--select"),
    *names_of("--dataset"),
)
ENGINE_OPTIONS = (
    *options("""
fine --keep-models
fine --every-epoch
fine --jobs 1
fine --tensorboard board
bad --device gpu ! gpu device
bad --device '' ! device
bad --device cuda ! cuda
bad --device meta ! meta device
bad --address auto ! --address
bad --retries 1 ! --retries
bad --cpus-per-run nan ! --cpus-per-run
"""),
    *numbers("--jobs", 1),
    *names_of("--engine"),
)
RECORD_FOLDERS = (
    fine("runs", Words()),
    fine("other", Words(("--out", "r/u/n"))),
    fine(
        "name",
        lambda case, n: Words(("--out", n)),
        st.sampled_from(["[red]r[/red]", "ö 尺", "a\nb", "it's", "./-r"]),
    ),
    bad("a file", lambda case: _file_as_out(case)),
    bad("nowhere", Words(("--out", "/proc/nothing/out"), ("/proc/nothing", "--out"))),
    bad("below a file", lambda case: _file_as_out(case, "taken/out")),
    bad("too long", Words(("--out", "y" * 400), ("y" * 40, "--out"))),
)


def _experiment(case: Case) -> None:
    """Write what a choice of the table may not have written."""
    case["table"]
    here = folder_of(case)
    if not (here / "my_code.py").exists():
        write_experiment(here)
    case["plugin"]


def _records(folder: Path) -> dict[str, Any]:
    """Read all records below a folder as strict JSON."""
    return {str(file): strict_json(file.read_text()) for file in folder.rglob("*-seed*.json")}


@target(
    "elliptica run",
    {
        "table": SPECIFICATIONS,
        "plugin": PLUGINS,
        "first": (*RUN_OPTIONS, *ENGINE_OPTIONS),
        "second": (*RUN_OPTIONS, *ENGINE_OPTIONS),
        "out": RECORD_FOLDERS,
        "terminal": TERMINALS,
    },
    kind="commands",
    limit=LIMIT,
    share=2.5,
)
def run_run(case: Case) -> Outcome:
    """Train the runs of a table of one's own."""
    here = folder_of(case)
    _experiment(case)
    more, names = _collect(case, "table", "plugin", "first", "second", "out")
    _weigh_run(case)
    ran = execute(here, ["run", *more], case["terminal"])
    if (helped := _asks_for_help(case, ran, more)) is not None:
        return helped
    out = here / (more[more.index("--out") + 1] if "--out" in more else "runs")

    def results() -> None:
        records = _records(out)
        check(bool(records), "no records")
        for record in records.values():
            rmse = record["metrics"]["test"]["average"]
            check(rmse is not None and np.isfinite(rmse) and rmse >= 0, f"rmse {rmse}")
            check(
                len(record["curves"]["loss"]) == record["cost"]["epochs"],
                "the curve is not as long as it says",
            )
        shown = re.findall(r"\| *[\d.]+", ran.out)
        check(bool(shown) or not ran.terminal.is_readable, f"prints no table: {_short(ran.out)}")

    folder = str(out.relative_to(here)) if out.is_relative_to(here) else "runs"
    return judge_run(
        case,
        ran,
        names=names,
        results=results,
        partial=ran.code == 1,
        may_leave=("__pycache__", folder, "board"),
    )


def _weigh_run(case: Case) -> None:
    """Say which bad choices do not matter next to others."""
    bads = [a for a in case.target.axes if case.target.choice(a, case.name(a)).owed == BAD]
    names = {case.name("first"), case.name("second")}
    if bads == ["table"] and "--methods elliptic" in names and "method" in case.name("table"):
        case.excuse()
    if (
        bads == ["table"]
        and case.name("table") in ("no epochs", "half an epoch", "epochs true")
        and "--epochs 1" in names
    ):
        case.excuse()
    if bads == ["table"] and case.name("table") in ("no seeds", "seeds as text") and "--seeds 1" in names:
        case.excuse()
    _say_what_is_fixed(case)


@target(
    "elliptica tune",
    {
        "table": SPECIFICATIONS,
        "plugin": PLUGINS,
        "first": common(
            *options("""
fine --methods erm
fine --methods erm --search auto
fine --methods erm --search small --sampler random
fine --methods elliptic --search auto --pruner none
fine --methods erm --search small --storage sqlite:///s.db
odd --search auto ! search row
bad --methods erm --search nothing ! nothing
bad --methods erm --search small --storage /proc/nothing/s ! /proc/nothing
bad --methods erm --search small --storage mysql://x/y ! mysql storage
bad --methods erm --search small --storage . ! storage folder
bad --sampler tpe ! --sampler
bad --seed 3 ! --seed
"""),
            *numbers("--trials", 1),
            *names_of("--sampler"),
            *names_of("--pruner"),
            *names_of("--search"),
        ),
        "second": (*RUN_OPTIONS, *numbers("--seed", 0, huge=True)),
        "out": RECORD_FOLDERS,
        "terminal": TERMINALS,
    },
    kind="commands",
    limit=LIMIT,
    share=1.5,
)
def run_tune(case: Case) -> Outcome:
    """Tune the rows of a table of one's own."""
    here = folder_of(case)
    _experiment(case)
    more, names = _collect(case, "table", "plugin", "first", "second", "out")
    if case.name("second") in ("--seeds 1", "--tuned"):
        case.owe(BAD)
        names += ["--seeds", "--tuned"]
    _weigh_run(case)
    ran = execute(here, ["tune", *more[:1], "--trials", "1", "--epochs", "1", *more[1:]], case["terminal"])
    if (helped := _asks_for_help(case, ran, more)) is not None:
        return helped
    out = here / (more[more.index("--out") + 1] if "--out" in more else "runs")
    folder = str(out.relative_to(here)) if out.is_relative_to(here) else "runs"

    def results() -> None:
        chosen = [file for file in out.rglob("*.json") if "score" in file.read_text()]
        check(bool(chosen), "chose nothing")
        for file in out.rglob("*.json"):
            strict_json(file.read_text())

    return judge_run(
        case,
        ran,
        names=names,
        results=results,
        partial=ran.code == 1,
        may_leave=("__pycache__", folder, "s.db"),
    )


def _records_of(case: Case, how: str | None = None) -> Words:
    case["table"]
    folder = copy_fixture(case, "runs")
    if how is not None:
        files = sorted(f for f in folder.rglob("*-seed*.json"))
        damage(case.stream.choice(files), how, case.stream)
    return Words(("--out", "out"), ("out",))


def _edited_records(case: Case) -> Words:
    case["table"]
    _edited_json("runs")(case)
    return Words(("--out", "out"), ("out",))


@target(
    "elliptica table",
    {
        "table": SPECIFICATIONS,
        "records": (
            fine("whole", _records_of),
            odd("damaged", _records_of, st.sampled_from(DAMAGES)),
            odd("edited", _edited_records),
            odd("none", lambda case: (folder_of(case) / "e").mkdir() or Words(("--out", "e"), ("e",))),
            bad("missing", Words(("--out", "missing"), ("missing",))),
            bad("a file", lambda case: _file_as_out(case)),
        ),
        "first": (
            *RUN_OPTIONS,
            *options("""
fine --format latex
fine --format csv
fine --part validation
fine --part cost
bad --epoch last ! --every-epoch
"""),
            *names_of("--format"),
            *names_of("--part"),
            *names_of("--epoch"),
        ),
        "second": RUN_OPTIONS,
        "terminal": TERMINALS,
    },
    kind="commands",
    limit=LIMIT,
    share=1.5,
)
def run_table(case: Case) -> Outcome:
    """Print a table from its records, twice, with the same result."""
    here = folder_of(case)
    case["table"]
    more, names = _collect(case, "table", "records", "first", "second")
    _weigh_run(case)
    if case.name("table") in _TABLE_IS_DATA:
        case.excuse()  # what is trained is only checked when it is trained
    if "--epoch last" in case.name("first") and case.name("records") != "whole":
        case.excuse()
    ran = execute(here, ["table", *more], case["terminal"])
    if (helped := _asks_for_help(case, ran, more)) is not None:
        return helped

    def results() -> None:
        again = execute(here, ["table", *more], case["terminal"])
        check(again.out == ran.out, "the same records print another table")
        check(not ran.new_files(), f"wrote {ran.new_files()[:3]}")
        numbers = re.findall(r"\d\.\d+", ran.out)
        plain = case.name("first") == "none" == case.name("second") and case.name("table") == "ordinary"
        if plain and case.name("records") == "whole" and ran.terminal.width >= 80:
            values = [
                r["metrics"]["test"]["average"]
                for r in _records(here / "out").values()
                if r["run"]["row"] == "erm"
            ]
            mean = f"{sum(values) / len(values):.3g}"[:4]
            check(
                any(n.startswith(mean[:3]) for n in numbers),
                f"the mean {mean} is not in the table: {ran.out}",
            )

    return judge_run(case, ran, names=names, results=results)


#: Tables whose faults show only in training.
_TABLE_IS_DATA = tuple(each.name for each in SPECIFICATIONS if each.owed != FINE)[:46]


@target(
    "elliptica list",
    {
        "table": (
            fine("all", lambda case: write_experiment(folder_of(case)) or Words()),
            *SPECIFICATIONS,
            fine(
                "of the paper",
                lambda case, n: Words((n,)),
                st.sampled_from(["table3", "table4", "parts", "shift"]),
            ),
        ),
        "plugin": PLUGINS,
        "option": common(
            *options("""
fine --data-dir .
fine --data-dir nowhere
odd --data-dir mine.toml
odd --data-dir ''
odd --data-dir /dev/null
"""),
        ),
        "terminal": TERMINALS,
    },
    kind="commands",
    limit=LIMIT,
    share=1.0,
)
def run_list(case: Case) -> Outcome:
    """List tables and their rows."""
    here = folder_of(case)
    case["table"]
    if not (here / "my_code.py").exists():
        write_experiment(here)
    more, names = _collect(case, "table", "plugin", "option")
    late = ("data fail", "data are a list", "nan in data", "no rows", "registers nothing", "none")
    if case.name("table") in _TABLE_IS_DATA or case.name("plugin") in late:
        bads = [a for a in case.target.axes if case.target.choice(a, case.name(a)).owed == BAD]
        if not set(bads) - {"table"} or (case.name("plugin") in late and not set(bads) - {"table", "plugin"}):
            case.excuse()
    if case.owed == FINE:
        pass
    ran = execute(here, ["list", *more], case["terminal"])
    if (helped := _asks_for_help(case, ran, more)) is not None:
        return helped

    def results() -> None:
        check("data" in ran.out, "lists nothing")
        if not more or case.name("table") == "all":
            check("table3" in ran.out and "table9" in ran.out, "tables are missing")

    return judge_run(case, ran, names=names, results=results, may_leave=("__pycache__",))


# ---------------------------------------------------------------------------------------------------------
# elliptica data, demo, and the program itself


@target(
    "elliptica data",
    {
        "command": (
            fine("list", Words(("list",))),
            fine("without hashes", Words(("list", "--no-verify"))),
            bad(
                "fetch",
                lambda case, n: Words(("fetch", n), (n,)),
                st.sampled_from(["airfoil", "crime", "cifar10"]),
            ),
            bad(
                "fetch what cannot be",
                lambda case, n: Words(("fetch", n), (n,)),
                st.sampled_from(["no2", "celeba"]),
            ),
            fine("fetch what is made", Words(("fetch", "two-moons"))),
            bad(
                "fetch unknown",
                lambda case, n: Words(("fetch", n), (n or "name",)),
                st.sampled_from(["", "no-such", "[red]x", "../x", "a\nb", "y" * 300]),
            ),
            bad("fetch nothing", Words(("fetch",), ("name", "argument"))),
            bad("unknown", Words(("get",), ("get",))),
        ),
        "folder": (
            fine("by default", Words()),
            fine("here", Words(("--data-dir", "."))),
            fine("missing", Words(("--data-dir", "missing"))),
            odd("wrong files", lambda case: _wrong_data(case)),
            odd(
                "a file",
                lambda case: (
                    (folder_of(case) / "taken").touch() or Words(("--data-dir", "taken"), ("taken",))
                ),
            ),
            odd("nowhere", Words(("--data-dir", "/proc/nothing"), ("/proc/nothing",))),
            odd("no name", Words(("--data-dir", ""))),
            odd("too long", Words(("--data-dir", "y" * 5000))),
            odd("markup", Words(("--data-dir", "[/red]x"))),
        ),
        "option": common(),
        "terminal": TERMINALS,
    },
    kind="commands",
    limit=LIMIT,
    share=1.0,
)
def run_data(case: Case) -> Outcome:
    """List and fetch data without a network."""
    more, names = _collect(case, "command", "folder", "option")
    if case["command"].words == ("fetch",) and "surplus" in more:
        case.excuse()
    ran = execute(folder_of(case), ["data", *more], case["terminal"])
    if (helped := _asks_for_help(case, ran, more)) is not None:
        return helped

    def results() -> None:
        if "list" in more and ran.terminal.width >= 60 and case.name("terminal") != "plain C":
            check("airfoil" in ran.out and "two-moons" in ran.out, "data are missing in the list")

    listed = "list" in more and ran.code == 1 and ran.terminal.is_readable and "error:" not in ran.said
    if listed:
        check(case.name("folder") in ("wrong files", "a file"), f"exit 1: {_short(ran.said)}")
        check("airfoil" in ran.out, "the wrong file is not named")
        return Outcome(RIGHT)
    folder = more[more.index("--data-dir") + 1] if "--data-dir" in more else "missing"
    return judge_run(
        case,
        ran,
        names=[*names, "data", "too long"],
        results=results,
        may_leave=(folder or ".", "airfoil", "crime"),
    )


def _wrong_data(case: Case) -> Words:
    folder = folder_of(case) / "data"
    folder.mkdir()
    for name in ("airfoil_self_noise.dat", "NO2.dat", "airfoil.csv", "breastmnist.npz"):
        (folder / name).write_bytes(b"wrong")
    for name in ("airfoil", "crime"):
        (folder / name).mkdir()
        (folder / name / "airfoil_self_noise.dat").write_bytes(b"wrong")
    return Words(("--data-dir", "data"), ("data",))


DEMO_OPTIONS = common(
    *options("""
fine --seeds 2
fine --sigma 0
fine --sigma 0.5
fine --variant tube
fine --variant relu
odd --sigma 1e300 ! sigma
bad --sigma nan ! sigma
bad --sigma inf ! sigma
bad --sigma -1 ! sigma
"""),
    bad("--sigma text", lambda case, v: words_of("--sigma", v), _NO_NUMBERS),
    *options("""
bad --format png ! --format
bad --width page ! --width
bad --runs x ! --runs
bad --figure 9 ! 9
bad --figure 3 ! --figure
"""),
    *numbers("--seeds", 1),
    *numbers("--steps", 1),
    *names_of("--variant"),
    *names_of("--figure"),
)


@target(
    "elliptica demo",
    {"first": DEMO_OPTIONS, "second": DEMO_OPTIONS, "out": _OUTS, "terminal": TERMINALS},
    kind="commands",
    limit=LIMIT,
    share=0.6,
)
def run_demo(case: Case) -> Outcome:
    """Run the demo for one step."""
    here = folder_of(case)
    more, names = _collect(case, "first", "second", "out")
    _say_what_is_fixed(case)
    ran = execute(here, ["demo", "--quick", "--seeds", "1", "--steps", "1", *more], case["terminal"])
    if (helped := _asks_for_help(case, ran, more)) is not None:
        return helped
    asked = more[more.index("--out") + 1] if "--out" in more else ""
    out = here / (asked or ("demo" if case.name("out") == "by default" else "."))

    def results() -> None:
        content = strict_json((out / "results.json").read_text())
        check(len(content["runs"]) >= 3, f"{len(content['runs'])} runs")
        check((out / "two_moons.png").read_bytes()[:4] == b"\x89PNG", "no picture")
        check_page(out / "two_moons.html")

    return judge_run(case, ran, names=names, results=results)


FIGURE_OPTIONS = common(
    *options("""
fine --format svg
fine --format pdf --width page
fine -o a/b/f.pdf
fine -o [red]f.png
bad -o f.gif ! f.gif
bad -o f.png --format pdf ! f.png .pdf
bad -o /proc/nothing/f.png ! /proc/nothing
bad -o /dev/full/f.png ! /dev/full
"""),
    bad("-o too long", words_of("-o", "y" * 300 + ".png", names=["y" * 40])),
    *options("""
bad --seeds 2 ! --seeds
bad --quick ! --quick
"""),
    *names_of("--format"),
    *names_of("--width"),
)


@target(
    "elliptica demo --figure",
    {
        "figure": (
            fine("2", Words(("--figure", "2"))),
            bad(
                "uncertainty", Words(("--figure", "uncertainty", "--runs", "missing"), ("missing", "records"))
            ),
            bad(
                "of no records",
                lambda case: (
                    (folder_of(case) / "r").mkdir()
                    or Words(("--figure", "uncertainty", "--runs", "r"), ("r", "records"))
                ),
            ),
        ),
        "first": FIGURE_OPTIONS,
        "second": FIGURE_OPTIONS,
        "terminal": TERMINALS,
    },
    kind="commands",
    limit=LIMIT,
    share=0.3,
)
def run_figure(case: Case) -> Outcome:
    """Draw a figure of the paper."""
    here = folder_of(case)
    more, names = _collect(case, "figure", "first", "second")
    _say_what_is_fixed(case)
    ran = execute(here, ["demo", *more], case["terminal"])
    if (helped := _asks_for_help(case, ran, more)) is not None:
        return helped

    def results() -> None:
        starts = (b"\x89PNG", b"%PDF", b"<?xm")
        check(any((here / name).read_bytes()[:4] in starts for name in ran.new_files()), "no figure")

    return judge_run(case, ran, names=names, results=results)


_COMMANDS = ["demo", "compare", "predict", "diagnose", "report", "list", "data", "run", "table", "tune"]


@target(
    "elliptica",
    {
        "first": (
            fine("--help", Words(("--help",))),
            fine("--version", Words(("--version",))),
            fine("help of", lambda case, name: Words((name, "--help")), st.sampled_from(_COMMANDS)),
            bad("nothing", Words((), ("usage",))),
            bad(
                "a command alone",
                lambda case, name: Words((name,), ("missing", "argument", "usage")),
                st.sampled_from(["compare", "predict", "diagnose", "report", "run", "table", "tune", "data"]),
            ),
            bad(
                "removed",
                lambda case, name: Words((name,), (name,)),
                st.sampled_from(["cost", "figure", "gallery", "landscape", "watch"]),
            ),
            bad(
                "unknown",
                lambda case, name: Words((name,), (name[:40], "command", "option")),
                st.one_of(
                    st.sampled_from(
                        [
                            "comapre",
                            "[red]",
                            "[/]",
                            "",
                            " ",
                            "-",
                            "--",
                            "--no",
                            "-x",
                            "COMPARE",
                            "compare ",
                            "ä尺😀",
                            "a\nb",
                            "x" * 5000,
                            "--version=1",
                            "--help=no",
                            "\udcff",
                        ]
                    ),
                    st.text(max_size=8).filter(lambda t: "\0" not in t),
                ),
            ),
        ),
        "more": (
            fine("none", Words()),
            odd(
                "anything",
                lambda case, words: Words(tuple(words)),
                st.lists(st.text(max_size=6).filter(lambda t: "\0" not in t), max_size=3),
            ),
            odd("--help", Words(("--help",))),
            odd("--version", Words(("--version",))),
            odd("many", lambda case, n: Words(("--verify",) * n), st.integers(1, 400)),
        ),
        "terminal": TERMINALS,
    },
    kind="commands",
    limit=LIMIT,
    share=1.0,
)
def run_program(case: Case) -> Outcome:
    """Call the program itself in all kinds of ways."""
    more, names = _collect(case, "first", "more")
    if any(word in ("--help", "--version", *_COMMANDS) for word in case["more"].words):
        case.excuse()
    if any(word in _COMMANDS for word in case["first"].words):
        case.excuse()
    if case["first"].words in (("--",), ("-",), ("",)) or not case["first"].words:
        names += ["command", "usage"]
    ran = execute(folder_of(case), more, case["terminal"])
    if ran.code == 2 and "usage" in _plain(ran.out) and not ran.err:
        check(not ran.new_files(), "wrote files")
        return Outcome(CLEAR)  # its help, because nothing was asked for

    def results() -> None:
        check(not ran.new_files(), f"wrote {ran.new_files()[:3]}")
        if more[0] == "--version":
            check(bool(re.fullmatch(r"elliptica \d+\.\d+\.\d+\S*", ran.out.strip())), f"version: {ran.out!r}")
        if more == ["--help"] and ran.terminal.width >= 60:
            check(all(name in ran.out for name in _COMMANDS), "the help lacks a command")

    return judge_run(case, ran, names=[*names, "usage"], results=results)
