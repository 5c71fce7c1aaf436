"""Hostile arguments and files for every command, run as the real program."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import random
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, root_mean_squared_error

from adversary.cases import (
    BAD,
    CLEAR,
    FINE,
    ODD,
    RIGHT,
    SOURCE,
    Case,
    Choice,
    Outcome,
    bad,
    check,
    fine,
    just,
    odd,
    target,
)
from adversary.files import DAMAGES, HOSTILE, INSTEAD, damage, dropped, replaced, zip_of
from adversary.program import (
    LIMIT,
    Ran,
    Terminal,
    check_page,
    check_picture,
    execute,
    judge_run,
    plain,
    short,
    strict_json,
)
from elliptica._utils.files import FileLock
from elliptica.compare.comparison import Options, Session
from elliptica.compare.predict import load_model, predict_file
from elliptica.estimators import load, read_notes

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


def command(
    name: str, share: float, options: Sequence[Choice] = (), /, **axes: Sequence[Choice]
) -> Callable[..., Any]:
    """Register a target that runs a command with up to two of its options, in every kind of terminal."""
    more = {"first": options, "second": options} if options else {}
    return target(name, {**axes, **more, "terminal": TERMINALS}, kind="commands", limit=LIMIT, share=share)


@dataclass(frozen=True)
class Words:
    """Arguments, and names of which an error about them must hold one."""

    words: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def words_of(*words: str, names: Sequence[str] = ()) -> Words:
    """Make arguments whose errors must mention one of these names, or else the first word."""
    return Words(words, tuple(names) or (words[0].removeprefix("--"),))


def options(lines: str) -> tuple[Choice, ...]:
    """Make choices from lines like ``bad --folds {0|1} ! fold``: what is owed, words, names for an error."""
    kinds = {FINE: fine, ODD: odd, BAD: bad}
    made = []
    for line in lines.strip().splitlines():
        parts = re.split(r"(?<= )\{([^{}]*)\}", line)
        each = [[part] if i % 2 == 0 else part.split("|") for i, part in enumerate(parts)]
        for owed, *words in map(shlex.split, map("".join, itertools.product(*each))):
            at = words.index("!") if "!" in words else len(words)
            made.append(kinds[owed](" ".join(words[:at])[:80], words_of(*words[:at], names=words[at + 1 :])))
    return tuple(made)


def _values(owed: Callable[..., Choice], flag: str, what: str, values: st.SearchStrategy[Any]) -> Choice:
    return owed(f"{flag} {what}", lambda case, value: words_of(flag, str(value)), values)


#: Texts that are no whole number, no number and no name that anything has.
_NO_INTEGERS = st.sampled_from(["", "x", "1.5", "nan", "inf", "1e3", "0x10", " ", "1,000", "½", "--", "-"])
_NO_NUMBERS = st.sampled_from(["", "x", "1,5", "½", "--", "0x1p3", "1e", "[red]"])
_NO_NAMES = st.sampled_from(
    ["", "nothing", "0", "None", "[red]x[/red]", "ÄÖ", "a" * 300, "erm ", "a\nb", "'"]
)
_HUGE = st.sampled_from([2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30])


def numbers(**least: int) -> tuple[Choice, ...]:
    """Make hostile values of options that take a whole number, from the least that each allows."""
    made = []
    for name, n in least.items():
        flag = "--" + name.replace("_", "-")
        small = st.one_of(st.integers(-5, n - 1), st.just(-(10**30)))
        made += [_values(bad, flag, "text", _NO_INTEGERS), _values(bad, flag, "too small", small)]
    return tuple(made)


def names_of(*flags: str) -> tuple[Choice, ...]:
    """Make hostile values of options that take one of several names."""
    return tuple(_values(bad, flag, "unknown", _NO_NAMES) for flag in flags)


#: A seed may be huge, but no text and not negative.
_SEED = (*numbers(seed=0), _values(odd, "--seed", "huge", _HUGE))


def common(lines: str = "", *more: Choice) -> tuple[Choice, ...]:
    """Collect the choices of an axis of options: none, those of a command, and those that none has."""
    stray = """
bad {--no-such-option|--no-such-option=1} ! --no-such-option
bad -Z
bad surplus ! surplus unexpected
fine --help
"""
    return (fine("none", Words()), *options(lines), *more, *options(stray))


def folder_of(case: Case) -> Path:
    """Return the folder in which a command runs; its streams and its home are outside."""
    here = case.folder / "here"
    here.mkdir(exist_ok=True)
    return here


def _bads(case: Case) -> list[str]:
    """Return the axes of a case that must be refused."""
    return [axis for axis in case.target.axes if case.target.choice(axis, case.name(axis)).owed == BAD]


def _collect(case: Case, *axes: str) -> tuple[list[str], list[str]]:
    """Return the words of several axes, and the names that an error may mention."""
    made = {axis: case[axis] for axis in axes}
    hostile = [axis for axis in axes if case.target.choice(axis, case.name(axis)).owed != FINE]
    if sum(bool(each.words) and case.name(axis) != "out" for axis, each in made.items()) > 1:
        case.owe(ODD)  # options that are fine alone may exclude each other
        hostile = list(axes)
    words = [word for each in made.values() for word in each.words]
    return words, [name for axis in hostile for name in made[axis].names]


def _value(words: Sequence[str], flag: str, default: str) -> str:
    """Return the value of an option: the last one counts."""
    return words[len(words) - words[::-1].index(flag)] if flag in words else default


def run(case: Case, words: Sequence[str], **judgement: Any) -> Outcome | None:
    """Run a command as the case says, and judge it; see `judge_run`."""
    return judge_run(case, execute(folder_of(case), words, case["terminal"]), **judgement)


def _excuse_replaced(case: Case) -> None:
    """Excuse a bad option whose value a later one replaces."""
    first, second = (case.name(axis).split(" ")[0] for axis in ("first", "second"))
    lists = first in ("--methods", "--dataset")  # of these, both values count
    if first == second != "none" and (_bads(case) == ["first"] or (lists and len(_bads(case)) == 1)):
        case.excuse()


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

    def only(self, *names: str) -> Sheet:
        """Return it with some of the columns."""
        return replace(self, columns={name: self.columns[name] for name in names})

    def each(self, change: Callable[[list[Any]], list[Any]]) -> Sheet:
        """Return it with every column changed."""
        return replace(self, columns={name: change(values) for name, values in self.columns.items()})


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
    return "".join(separator.join(cell(value) for value in row) + end for row in rows)


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
        upper = set(sorted(range(rows), key=value.__getitem__)[rows // 2 :])
        return Sheet({**columns, "kind": ["iris" if i in upper else "rose" for i in range(rows)]}, "kind")
    return Sheet({**columns, "price": [round(100 + 10 * each, 3) for each in value]}, "price")


def _sheet(case: Case, task: str = "classes", rows: int = ROWS) -> Sheet:
    return make_sheet(case.seed % 1000, task, rows)


def _edited(edit: Callable[[Sheet], Sheet], task: str = "classes") -> Callable[[Case], Sheet]:
    return lambda case: edit(_sheet(case, task))


def _with_gaps(case: Case, sheet: Sheet) -> Sheet:
    """Empty one in ten cells of the inputs."""
    gaps = sheet.each(lambda values: [None if case.stream.random() < 0.1 else value for value in values])
    return gaps.having(**{sheet.target: sheet.columns[sheet.target]})


def _every(values: list[Any], step: int, other: Any) -> list[Any]:
    """Replace one in some values."""
    return [other if i % step == 1 else value for i, value in enumerate(values)]


def _column(name: str, make: Callable[[int], Any]) -> Callable[[Case], Sheet]:
    """Add a column whose cells a function of the row number makes."""
    return _edited(lambda sheet: sheet.having(**{name: [make(i) for i in range(len(sheet))]}))


def _target(change: Callable[[list[Any]], list[Any]], task: str = "classes") -> Callable[[Case], Sheet]:
    """Change the target."""
    return _edited(lambda sheet: sheet.having(**{sheet.target: change(sheet.columns[sheet.target])}), task)


def _with_noise(case: Case) -> Sheet:
    sheet = _sheet(case)
    noise = {f"x{j}": [case.stream.gauss(0, 1) for _ in range(len(sheet))] for j in range(150)}
    return sheet.having(**noise)


_NAMES = [
    *("[red]size[/red]", "[/]", "<script>alert(7)</script>", "<img src=x onerror=alert(7)>", "two\nlines"),
    *('"><a href="javascript:alert(7)">', "=1+1", "-x", "{{7*7}}", "a=b", "größe µ 尺寸 😀", "\\", "x" * 300),
    *('it\'s "quoted"', "%s %d {0}", "$x^2$", "| a | `b` |", "row", "prediction", "None", "nan", "1"),
]

#: Contents of tables: what a practitioner's export can hold.
CONTENTS = (
    fine("classes", _sheet),
    fine("numbers", lambda case: _sheet(case, "numbers")),
    fine("gaps", lambda case: _with_gaps(case, _sheet(case))),
    fine("gaps and numbers", lambda case: _with_gaps(case, _sheet(case, "numbers"))),
    fine("name", lambda case, name: _sheet(case).renamed({"size": name}), st.sampled_from(_NAMES)),
    fine("name of target", lambda case, name: _sheet(case).renamed({"kind": name}), st.sampled_from(_NAMES)),
    fine(
        "name of class",
        lambda case, name: _target(lambda y: [name if v == "rose" else v for v in y])(case),
        st.sampled_from([name for name in _NAMES if name != "nan"]),
    ),
    fine("classes 0 and 1", _target(lambda y: [int(v == "rose") for v in y])),
    fine("true and false", _target(lambda y: [["true", "false"][v == "rose"] for v in y])),
    fine("a constant column", _column("always", lambda i: 7)),
    fine("an empty column", _column("empty", lambda i: None)),
    fine("an id", _column("id", lambda i: f"P{10_000 + 37 * i}")),
    fine("a number as id", _column("id", lambda i: 10**12 + i)),
    fine("formulas", _column("note", lambda i: ["=HYPERLINK(1)", "+1", "@x", "-5"][i % 4])),
    fine("text", _column("note", lambda i: f"word{i * i % 41} and <b>{i}</b> [red]")),
    fine("lines in cells", _column("note", lambda i: f"two\nlines {i % 5}")),
    fine("money", _column("cost", lambda i: f"${1000 + 17 * i:,}.50")),
    fine("percent", _column("share", lambda i: f"{i % 90}.5 %")),
    fine("units", _column("height", lambda i: f"{150 + i % 40} cm")),
    fine("beyond int64", _column("big", lambda i: 10**25 + i * i)),
    fine("huge", _column("huge", lambda i: [1e300, -1e300, float(i)][i % 3])),
    fine("tiny", _column("tiny", lambda i: [1e-310, -1e-300, 0.0][i % 3])),
    fine("infinite", _column("x", lambda i: ["inf", "-inf", "1.5", str(i)][i % 4])),
    fine("not a number", _column("x", lambda i: "NaN" if i % 3 else i * 0.5)),
    fine("spreadsheet errors", _column("x", lambda i: "#DIV/0!" if i % 3 == 0 else i * 0.5)),
    fine("n/a", _column("x", lambda i: "n/a" if i % 3 == 0 else i * 0.5)),
    fine("mixed", _column("mixed", lambda i: ["a", 1, 2.5, None, "2020-01-01"][i % 5])),
    fine("leading zeros", _column("zip", lambda i: f"0{1000 + i % 9}")),
    fine("odd dates", _column("when", lambda i: f"{1 + i % 28:02}/{1 + i % 12:02}/20{i % 30:02}")),
    fine("a leak", _edited(lambda s: s.having(leak=s.columns["kind"]))),
    fine(
        "a leak of numbers", _edited(lambda s: s.having(leak=[2 * v for v in s.columns["price"]]), "numbers")
    ),
    fine("copies of rows", _edited(lambda s: s.each(lambda values: values[:24] * 3))),
    fine("wide", _with_noise),
    fine("some targets missing", _target(lambda y: _every(y, 9, None))),
    fine("skewed target", _target(lambda y: [2.0 ** (v / 20) for v in y], "numbers")),
    fine("negative target", _target(lambda y: [-v for v in y], "numbers")),
    fine("money as target", _target(lambda y: [f"${v + 1000:,.2f}" for v in y], "numbers")),
    fine("percent as target", _target(lambda y: [f"{v:.1f} %" for v in y], "numbers")),
    fine("thousands as target", _target(lambda y: [f"{int(10 * v) + 5000:,}" for v in y], "numbers")),
    fine("one input", _edited(lambda s: s.only("size", "kind"))),
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
    odd("dates as target", _edited(lambda s: replace(s, target="day"))),
    odd("few rows", lambda case: _sheet(case, rows=50)),
    odd("an empty name", lambda case: _sheet(case).renamed({"size": ""})),
    bad("one class", _target(lambda y: ["rose"] * len(y))),
    bad("constant target", _target(lambda y: [5.5] * len(y), "numbers")),
    bad("no targets", _target(lambda y: [None] * len(y))),
    bad("too few rows", lambda case, n: _sheet(case, rows=n), st.integers(1, 30)),
    bad("no input varies", _edited(lambda s: s.having(size=[1] * len(s)).only("size", "kind"))),
    bad("target alone", _edited(lambda s: s.only("kind"))),
    bad("wrong target", lambda case: replace(_sheet(case), target="knd")),
)


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
    fine("padded", _raw(lambda s: to_csv(s, pad="" if '"' in to_csv(s) else " "))),
    fine("blank lines", _raw(lambda s: "\n\n" + to_csv(s) + "\n\n")),
    fine("no last line end", _raw(lambda s: to_csv(s)[:-1])),
    bad("separator for Excel", _raw(lambda s: "sep=,\n" + to_csv(s))),
    bad("a title", _raw(lambda s: "Report 2021\n" + to_csv(s))),
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


def _renders(sheet: Sheet, rendering: str) -> bool:
    """Tell whether the cells of a sheet survive a rendering."""
    cells = [_cell(v) for values in sheet.columns.values() for v in values if not isinstance(v, float)]
    return rendering != "semicolons and decimal commas" or not any("." in c or "," in c for c in cells)


def _is_spoilt(sheet: Sheet, rendering: str) -> bool:
    """Tell whether a bad rendering finds in a sheet what it spoils."""
    if rendering in ("Latin 1", "zero bytes"):
        return "2021" in to_csv(sheet)
    return rendering not in ("ragged", "old Mac lines") or len(sheet) >= 6


# ---------------------------------------------------------------------------------------------------------
# Places of files


def place_names(argument: str) -> tuple[str, ...]:
    """Return what an error about a file must mention."""
    shown = (Path(argument).name, argument[:40]) if argument else (".",)
    return (*shown, "option") if argument.startswith("-") else shown


def misplaced(file: str, wrap: Callable[[Case, str], Any], skip: Sequence[str] = ()) -> tuple[Choice, ...]:
    """Make choices of arguments at which there is no file; ``wrap`` makes the value of a choice from each."""

    def choice(name: str, argument: str, make: Callable[[Path], object] | None = None) -> Choice:
        def made(case: Case) -> Any:
            if make is not None:
                make(folder_of(case) / file)
            return wrap(case, argument)

        return bad(name, made)

    ending = Path(file).suffix
    made = (
        *(choice(name, file, make) for name, make in INSTEAD.items()),
        choice("missing", f"missing{ending}"),
        choice("no name", ""),
        choice("nothing", "/dev/null"),
        choice("endless", "/dev/zero"),
        choice("a very long name", "x" * 5000 + ending),
        choice("below a file", f"{file}/data{ending}", Path.touch),
    )
    return tuple(each for each in made if each.name not in skip)


def _written(case: Case, content: str | bytes, name: str) -> str:
    """Write a file into the folder of a case, and return its name."""
    path = folder_of(case) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return name


def _made(case: Case, name: str, make: Callable[[Path], object] = Path.mkdir) -> str:
    """Make a folder, or something else, in the folder of a case, and return its name."""
    make(folder_of(case) / name)
    return name


def _place(case: Case, name: str) -> Callable[[bytes], str]:
    return lambda content: _written(case, content, name)


def _linked(case: Case) -> Callable[[bytes], str]:
    (folder_of(case) / "link.csv").symlink_to("real.csv")
    return lambda content: _written(case, content, "real.csv") and "link.csv"


_ODD_NAMES = [
    *("with space.csv", "größe 尺寸.csv", "[red]data[/red].csv", "[/bold].csv", "new\nline.csv", "noending"),
    *('it\'s "quoted".csv', "$(touch x).csv", "<script>alert(7)<b>.csv", "deep/er/data.csv", "./-dash.csv"),
    *("two.dots.csv", "%s{0}.csv", "data.txt", ".hidden"),
]
#: Places of an input file; each writes the content and returns the argument.
PLACES = (
    fine("data.csv", lambda case: _place(case, "data.csv")),
    fine("name", _place, st.sampled_from(_ODD_NAMES)),
    fine("a link", _linked),
    *misplaced("odd.csv", lambda case, argument: lambda content: argument),
    bad("an option", just(lambda content: "-data.csv")),
    bad("not Parquet", lambda case: _place(case, "data.parquet")),
)
#: Places at which there is no content to read.
_ABSENT = tuple(choice.name for choice in PLACES if choice.owed == BAD)


def _out(
    flag: str, name: str, blame: str = "", make: Callable[[Path], object] | None = None
) -> Callable[[Case], Words]:
    """Name a place of results, of which an error must mention a part; ``make`` puts something there.

    If it is a folder, the error may mention the option instead.
    """
    is_folder = flag == "--out" and not Path(name).suffix and not name.startswith("/dev")

    def made(case: Case) -> Words:
        if make is not None:
            make(folder_of(case) / (blame or name))
        return Words((flag, name), (blame or name[:40] or ".", *([flag] if is_folder else [])))

    return made


def _keep(path: Path) -> None:
    path.write_text("do not lose")


def outs(first: Choice, flag: str, file: str, *more: Choice) -> tuple[Choice, ...]:
    """Make choices of a place of results: a first one, those of every command, and others."""
    strange = st.sampled_from(["[red]o[/red]", "ö 尺", "a\nb", "it's", "./-o", "<script>alert(7)<b>"])
    return (
        first,
        fine("deep", _out(flag, f"a/b/{file}")),
        fine("name", lambda case, name: Words((flag, name)), strange),
        bad("nowhere", _out(flag, f"/proc/nothing/{file}", "/proc/nothing")),
        bad("below a file", _out(flag, f"taken/{file}", "taken", _keep)),
        bad("below a device", _out(flag, f"/dev/full/{file}", "/dev/full")),
        bad("too long", _out(flag, "y" * 400)),
        *more,
    )


def file_outs(flag: str, file: str, *more: Choice) -> tuple[Choice, ...]:
    """Make choices of a file of results."""
    return outs(
        fine("by default", Words()),
        flag,
        file,
        fine("a file", _out(flag, file)),
        fine("an old file", _out(flag, "old", make=lambda path: path.write_text("<!doctype html>old"))),
        bad("full", _out(flag, "/dev/full")),
        bad("a folder", _out(flag, "f", make=Path.mkdir)),
        bad("a pipe", _out(flag, "pipe", make=os.mkfifo)),
        *more,
    )


_NO_NAME = odd("no name", Words(("--out", ""), ("--out", ".")))


def _foreign(path: Path) -> None:
    path.mkdir()
    (path / "results.json").write_text('{"mine": 1}')
    _keep(path / "thesis.txt")


OUTS = outs(
    fine("out", _out("--out", "out")),
    "--out",
    "out",
    fine("by default", Words()),
    fine("exists", _out("--out", "out", make=Path.mkdir)),
    odd("holds other files", _out("--out", "out", make=_foreign)),
    bad("a file", _out("--out", "taken", make=_keep)),
    _NO_NAME,
)
RECORD_FOLDERS = outs(
    fine("runs", Words()), "--out", "out", bad("a file", _out("--out", "taken", make=_keep)), _NO_NAME
)

# ---------------------------------------------------------------------------------------------------------
# Results of earlier commands, made once and shared by the cases


@functools.cache
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
    ran = execute(here, [*words, "--out", "out"])
    assert ran.code == 0, ran.said
    (here / "out" / "report.html").unlink(missing_ok=True)
    here.rename(root / name)
    shutil.rmtree(part, ignore_errors=True)


def write_experiment(here: Path, table: str = TABLE) -> None:
    """Write a table of experiments and its plugin."""
    (here / "mine.toml").write_text(table, encoding="utf-8")
    (here / "my_code.py").write_text(PLUGIN, encoding="utf-8")


def copy_fixture(case: Case, name: str) -> Path:
    """Copy what an earlier command wrote into the folder of a case, as ``out``."""
    return shutil.copytree(fixture(name) / "out", folder_of(case) / "out")


def _damaged(case: Case, name: str, how: str, *patterns: str) -> None:
    """Copy what an earlier command wrote, and damage one of these files."""
    folder = copy_fixture(case, name)
    files = sorted(file for each in patterns for file in folder.rglob(each) if file.is_file())
    damage(case.stream.choice(files), how, case.stream.random())


def _edit_json(case: Case, name: str) -> None:
    """Copy what an earlier command wrote, and replace or drop an entry of one of its JSON files."""
    folder, stream = copy_fixture(case, name), case.stream
    file = stream.choice(sorted(file for file in folder.rglob("*.json") if file.is_file()))
    share = stream.random()
    change = dropped(share) if stream.random() < 0.2 else replaced(stream.randrange(len(HOSTILE)), share)
    file.write_text(change(json.loads(file.read_text())))


# ---------------------------------------------------------------------------------------------------------
# elliptica compare

COMPARE_OPTIONS = common(
    """
fine --methods {linear|elliptic,linear|mixup --methods noise}
fine {--seed 7|--select worst|--repeats 2|--folds 3|--max-rows 300|--budget 20s|--unbounded}
odd --task classification ! task class
odd --task regression ! regression number
odd --group colour ! colour group
odd --split-by site ! site
odd --time day ! day time
odd --extrapolate ! extrapolate far rows
odd --id site ! site input
odd --as {weight=category|site=id} ! weight site
odd --max-rows {60|60 --sample} ! rows
odd --methods groupdro ! group
odd --methods c-mixup ! c-mixup
odd --budget 1s ! budget time
odd --folds 40 ! fold
bad --budget {soon|-5s|nan|0s|''}
bad --target ! --target argument
bad {--group|--split-by|--id} nothing ! nothing
bad {--group-as-input|--trees}
bad --time colour ! colour
bad --time '' ! time column
bad --as weight ! --as
bad --as nothing=date ! nothing
bad --as {weight=colour|colour=number} ! colour
bad --as kind=id --as price=id ! kind price
bad --methods '' ! method
bad --methods ermm ! ermm
bad {--test|--target-rows} missing.csv ! missing.csv
bad --test /dev/null ! /dev/null
bad --time day --extrapolate ! --time --extrapolate
bad --extrapolate --folds 3 ! --extrapolate
bad --id weight --as weight=number ! weight
bad --engine thread ! thread
""",
    *numbers(folds=2, trials=1, repeats=1, epochs=1, jobs=1, max_rows=50),
    *_SEED,
    *names_of("--select", "--task"),
    bad("--methods unknown", lambda case, name: Words(("--methods", name), ("method",)), _NO_NAMES),
)


@command(
    "elliptica compare", 4.0, COMPARE_OPTIONS, content=CONTENTS, rendering=RENDERINGS, place=PLACES, out=OUTS
)
def run_compare(case: Case) -> Outcome | None:
    """Compare methods on a table, and check the scores and the model."""
    here, sheet = folder_of(case), case["content"]
    source = case["place"](case["rendering"](sheet))
    more, names = _collect(case, "first", "second", "out")
    _weigh_compare(case, sheet)
    names += [*place_names(source), sheet.target, "target", "row", "class", "column", "input", "line"]
    out = here / _value(more, "--out", f"compare/{Path(source).stem}")
    is_plain = case.name("first") == case.name("second") == "none"
    return run(
        case,
        ["compare", source, "--target", sheet.target, "--methods", "erm", *QUICK, *more],
        names=names,
        results=lambda ran: check_comparison(out, here / source, sheet, is_plain),
    )


#: Contents that an option about columns may mend.
_OF_COLUMNS = ("dates as target", "name of target", "one input", "target alone", "no input varies")


def _weigh_compare(case: Case, sheet: Sheet) -> None:
    """Say what clashes or does not matter among the choices of a comparison."""
    names = {case.name(axis) for axis in ("first", "second")}
    content, rendering = case.name("content"), case.name("rendering")
    if not _renders(sheet, rendering) or len(sheet.columns) < 3:
        case.owe(ODD)
    if case.owed != BAD:
        return
    bads = _bads(case)
    kept = case.name("place") in _ABSENT or rendering in ("empty", "blank", "header only", "noise")
    once = rendering == "name twice" and len(sheet.columns) < 2
    if bads == ["rendering"] and (once or not _is_spoilt(sheet, rendering)):
        case.excuse()
    if content in _OF_COLUMNS and any(
        name.startswith(("--id", "--as", "--time", "--split-by", "--group")) for name in names
    ):
        case.excuse()  # the option changes what counts as an input
    if len(names - {"none"}) > 1 and not kept and bads in (["first"], ["second"]):
        case.excuse()  # the later of two values of an option counts
    if "--methods linear" in names and content == "constant target" and not kept:
        case.owe(BAD)


def check_comparison(out: Path, source: Path, sheet: Sheet, is_plain: bool) -> None:
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
    # infinity counts as missing, and the command says so
    known = [_plain(value) for value in sheet.columns[sheet.target] if value not in (None, "inf")]
    if is_plain:
        check(results["about"]["rows"] == len(known), f"{results['about']['rows']} rows, not {len(known)}")
        check_scores(out, source, sheet.target, known, summary)
    predictions, _ = predict_file(out / "model.elliptica", source)
    check(len(predictions) == len(sheet), f"{len(predictions)} predictions for {len(sheet)} rows")
    found = predictions["prediction"].to_list()
    if summary["task"] == "classification":
        classes = {str(each) for each in summary["classes"]}
        check({str(each) for each in found} <= classes, f"predicts {set(found)}, not {classes}")
    elif load_model(out / "model.elliptica").notes["bounded"]:  # networks are, linear models are not
        numbers = [float(value) for value in known if _is_number(value)]
        room = 1e-6 * max(map(abs, numbers))
        inside = all(min(numbers) - room <= each <= max(numbers) + room for each in found)
        check(inside, "predicts beyond the known range")


def _is_number(value: Any) -> bool:
    with contextlib.suppress(ValueError):
        return bool(np.isfinite(float(value)))
    return False


def _plain(value: Any) -> Any:
    """Return a number that is written with a sign and grouped digits as a number."""
    text = str(value).strip("$ %").replace(",", "")
    return float(text) if text != str(value) and _is_number(text) else value


def check_scores(out: Path, source: Path, name: str, targets: list[Any], summary: Mapping[str, Any]) -> None:
    """Compute scores from the stored predictions and the targets of the sheet."""
    options = Options(methods=["erm"], folds=2, trials=1, epochs=1, quick=True, jobs=1)
    session = Session.open(str(source), name, options, out=out, command="")
    session.close()
    folds, scores = session.shift.folds, summary["scores"]["erm"]
    is_regression = summary["task"] == "regression"
    if is_regression and not all(_is_number(value) for value in targets):
        return
    tested = np.concatenate([fold.test for fold in folds])
    check(sorted(tested.tolist()) == list(range(len(targets))), "not every row is tested once")
    for fold in folds:
        check(not set(fold.train.tolist()) & set(fold.test.tolist()), "rows of the test were trained on")
    stored = np.load(out / "predictions.npz")
    made = np.concatenate([stored[f"{fold.repeat}/{fold.number}/erm"] for fold in folds])
    if is_regression:
        truth = np.array([float(targets[i]) for i in tested])
        scale = float(np.abs(truth).max())
        expected = root_mean_squared_error(truth / scale, made / scale) * scale
    else:
        # true and false, say, are read as something else
        classes = [str(each).lower() for each in session.problem.classes]
        words = [str(targets[i]).lower() for i in tested]
        if set(classes) != set(words):
            return
        expected = accuracy_score(words, [classes[i] for i in made.argmax(1)])
    found = scores["rmse" if is_regression else "accuracy"]
    is_same = abs(found - expected) <= 1e-6 * abs(expected) + 1e-12
    check(is_same, f"score {found}, but {expected} from the rows")


# ---------------------------------------------------------------------------------------------------------
# elliptica predict


@dataclass(frozen=True)
class Saved:
    """A model file of a case: the argument, the whole file it was made from, and the kind of its table."""

    argument: str
    whole: Path
    task: str


def _saved(case: Case, name: str) -> Saved:
    copy_fixture(case, name)
    return Saved("out/model.elliptica", fixture(name) / "out/model.elliptica", _MADE[name][0])


def _broken(case: Case, how: str) -> Saved:
    """Damage a model; if it is read in spite of that, it must predict the same."""
    _damaged(case, "net", how, "model.elliptica")
    return Saved("out/model.elliptica", fixture("net") / "out/model.elliptica", "classes")


def _no_model(case: Case, argument: str) -> Saved:
    return Saved(argument, fixture("net") / "out/model.elliptica", "classes")


MODELS = (
    *(fine(name, functools.partial(_saved, name=name)) for name in ("net", "linear", "trees", "regression")),
    odd("damaged", _broken, st.sampled_from(DAMAGES)),
    *misplaced("odd.elliptica", _no_model),
    bad("text", lambda case: _no_model(case, _written(case, "a,b\n1,2\n", "m.elliptica"))),
    bad("a zip", lambda case: _no_model(case, _written(case, zip_of([("a", b"b")]), "m.elliptica"))),
    bad(
        "weights", lambda case: _no_model(case, _made(case, "m.pt", functools.partial(torch.save, {"w": 1})))
    ),
)


def _new_rows(case: Case, rows: int = 20) -> Sheet:
    return make_sheet(1 + case.seed % 1000, case["model"].task, rows)


def _changed(edit: Callable[[Sheet], Sheet]) -> Callable[[Case], Sheet]:
    return lambda case: edit(_new_rows(case))


def _without(sheet: Sheet, name: str) -> Sheet:
    return sheet.only(*(each for each in sheet.columns if each != name))


NEW_ROWS = (
    fine("plain", _new_rows),
    fine("one row", lambda case: _new_rows(case, 1)),
    fine("many rows", lambda case: _new_rows(case, 3000)),
    fine("gaps", lambda case: _with_gaps(case, _new_rows(case))),
    fine("without a target", _changed(lambda s: _without(s, s.target))),
    fine("other order", _changed(lambda s: s.only(*reversed(s.columns)))),
    fine("rows reversed", _changed(lambda s: s.each(lambda values: values[::-1]))),
    fine("other columns", _changed(lambda s: s.having(**{"<script>alert(7)</script>": s.columns["size"]}))),
    fine("unseen colours", _changed(lambda s: s.having(colour=["mauve", "[red]"] * (len(s) // 2)))),
    fine("far away", _changed(lambda s: s.having(size=[1e9 * v for v in s.columns["size"]]))),
    odd("huge", _changed(lambda s: s.having(size=[1e300] * len(s)))),
    odd("infinite", _changed(lambda s: s.having(size=["inf"] * len(s)))),
    odd("text for numbers", _changed(lambda s: s.having(size=["large"] * len(s)))),
    odd("some text for numbers", _changed(lambda s: s.having(size=_every(s.columns["size"], 5, "large")))),
    odd("numbers for text", _changed(lambda s: s.having(colour=s.columns["size"]))),
    odd("all empty", _changed(lambda s: s.each(lambda values: [None] * len(values)))),
    odd("no dates", _changed(lambda s: s.having(day=["soon"] * len(s)))),
    odd("other case", _changed(lambda s: s.renamed({"size": "Size"}))),
    odd("padded names", _changed(lambda s: s.renamed({"size": " size "}))),
    bad("a column is missing", _changed(lambda s: _without(s, "size"))),
    bad("all columns are missing", _changed(lambda s: Sheet({"a": [1] * len(s), "b": [2] * len(s)}, "a"))),
)

_TABLES = {"content": NEW_ROWS, "rendering": RENDERINGS, "place": PLACES}

PREDICT_OUTS = file_outs(
    "--out",
    "p.csv",
    fine("Parquet", _out("--out", "p.parquet")),
    fine("nothing", _out("--out", "/dev/null")),
    odd("a loop", _out("--out", "loop", make=lambda path: path.symlink_to("loop"))),
    bad("the table", _out("--out", "data.csv")),
    bad("the model", _out("--out", "out/model.elliptica")),
    _NO_NAME,
)

PREDICT_OPTIONS = common(
    """
fine --proba
fine --id {site|site --id colour}
fine --max-rows 5000
odd --id {size|kind} ! size kind
odd --max-rows 3 ! rows
bad --id nothing ! nothing
bad --id '' ! id
bad --id ! --id argument
""",
    *numbers(max_rows=1),
    _values(odd, "--max-rows", "huge", _HUGE),
)


@command("elliptica predict", 4.0, PREDICT_OPTIONS, model=MODELS, **_TABLES, out=PREDICT_OUTS)
def run_predict(case: Case) -> Outcome | None:
    """Predict rows, and compare with the model in this process on the cells themselves."""
    saved, sheet = case["model"], case["content"]
    source = case["place"](case["rendering"](sheet))
    more, names = _collect(case, "first", "second", "out")
    _weigh_predict(case, more, source)
    names += [*place_names(source), *place_names(saved.argument), "column", "row", "proba", "line"]
    asked = _value(more, "--out", "predictions.csv")

    def results(ran: Ran) -> None:
        if asked and not asked.startswith("/dev"):
            check_predictions(ran.folder / asked, saved, sheet, "--proba" in more)

    words = ["predict", saved.argument, source, *more]
    return run(case, words, names=names, may_change=("old",), results=results)


def _weigh_predict(case: Case, more: Sequence[str], source: str) -> None:
    """Say what clashes or does not matter among the choices of a prediction."""
    saved, sheet, rendering = case["model"], case["content"], case.name("rendering")
    if "--proba" in more and saved.task == "numbers":
        case.owe(BAD)
    if "--id" in more and "site" in more and "site" not in sheet.columns:
        case.owe(BAD)
    if case.name("out") == "the table" and source != "data.csv":
        case.excuse()
    if case.name("out") == "the model" and saved.argument != "out/model.elliptica":
        case.excuse()
    if not _is_spoilt(sheet, rendering):
        case.excuse()
    if len(sheet.columns) < 2 or not _renders(sheet, rendering):
        case.owe(ODD)
    if case.name("content") == "many rows":
        case.owe(ODD)  # more rows than some --max-rows


def check_predictions(file: Path, saved: Saved, sheet: Sheet, proba: bool) -> None:
    """Compare a file of predictions with those of the model for the cells that were written."""
    if file.suffix == ".parquet":
        found = pl.read_parquet(file, glob=False)
    else:
        found = pl.read_csv(file, infer_schema_length=None, glob=False)
    check(len(found) == len(sheet), f"{len(found)} predictions for {len(sheet)} rows")
    check(found["row"].to_list() == list(range(1, len(sheet) + 1)), "rows are not numbered in their order")
    check(found["prediction"].null_count() == 0, "predictions are missing")
    made = found["prediction"].to_list()
    if proba:
        chances = found.select(pl.col("^probability of .*$")).to_numpy()
        check(bool((abs(chances.sum(1) - 1) < 1e-5).all()), "probabilities do not add up to 1")
        names = [name.removeprefix("probability of ") for name in found.columns if name.startswith("prob")]
        likely = [names[i] for i in chances.argmax(1)]
        pairs = zip(likely, made, chances.max(1) > 0.5 + 1e-9, strict=True)
        check(all(a == b for a, b, is_sure in pairs if is_sure), "a prediction is not the likeliest class")
    expected = _predicted(saved.whole, sheet)
    if expected is not None:
        is_same = made == expected if saved.task == "classes" else np.allclose(made, expected, rtol=1e-5)
        check(is_same, "predictions differ from those of the model in Python")


def _predicted(model: Path, sheet: Sheet) -> list[Any] | None:
    """Predict the cells of a sheet in this process; None if they are not of the kinds of the training."""
    kinds = {"size": float, "weight": float, "colour": str, "site": str, "day": str}
    if not all(
        name in sheet.columns and all(isinstance(value, kind | None) for value in sheet.columns[name])
        for name, kind in kinds.items()
    ):
        return None
    types = {float: pl.Float64, str: pl.String}
    frame = pl.DataFrame([pl.Series(k, sheet.columns[k], dtype=types[kind]) for k, kind in kinds.items()])
    if (frame["size"].abs().max() or 0) > 1e150 or not frame["day"].str.starts_with("20").all():
        return None
    frame = frame.with_columns(
        pl.col("day").str.to_datetime("%Y-%m-%d"), pl.col("colour", "site").fill_null("(missing)")
    )
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
        arrays |= {name: change(draws) for name, change in changes.items()}
        np.savez(folder_of(case) / "data.npz", **{k: v for k, v in arrays.items() if v is not None})
        return "data.npz"

    return make


def _test(x: Callable[..., Any], y: Callable[..., Any]) -> Callable[[Case], str]:
    return _arrays(x_test=x, y_test=y)


def _damaged_arrays(case: Case, how: str) -> str:
    damage(folder_of(case) / _arrays()(case), how, case.stream.random())
    return "data.npz"


ARRAYS = (
    fine("arrays", _arrays()),
    fine("two moons", "two-moons"),
    fine("values", _arrays(y=lambda d: d.normal(size=60))),
    fine("several values", _arrays(y=lambda d: d.normal(size=(60, 2)))),
    fine("test rows", _test(lambda d: d.normal(size=(30, 3)), lambda d: d.integers(0, 2, 30))),
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
    odd("other test classes", _test(lambda d: d.normal(size=(30, 3)), lambda d: np.full(30, 7))),
    odd("no test rows", _test(lambda d: np.empty((0, 3)), lambda d: np.empty(0, int))),
    odd("one test row", _test(lambda d: np.ones((1, 3)), lambda d: np.ones(1, int))),
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
    bad("other features", _test(lambda d: np.ones((9, 2)), lambda d: np.ones(9, int))),
    bad("half a test", _arrays(x_test=lambda d: np.ones((9, 3)))),
    *misplaced("odd.npz", lambda case, argument: argument, skip=["a very long name"]),
    bad("a table", lambda case: _written(case, "a,b\n1,2", "data.csv")),
    bad("a zip", lambda case: _written(case, zip_of([("x.npy", b"junk")]), "d.npz")),
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
        return Words(("--model", name, *more), (*names, name.partition(":")[0], name.rpartition(":")[2]))

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
    bad("only a colon", _code(":", names=[":"])),
    bad("wrong weights", _code("my_net:make", "--weights", "wrong.pt", names=["wrong.pt"])),
    bad("noise as weights", _code("my_net:make", "--weights", "noise.pt", names=["noise.pt"])),
    bad("no weights", _code("my_net:make", "--weights", "none.pt", names=["none.pt"])),
    bad("weights alone", Words(("--weights", "none.pt"), ("none.pt", "--weights"))),
    bad("loss alone", Words(("--loss", "mse"), ("--loss",))),
)

DIAGNOSE_OPTIONS = common(
    """
fine {--all|--format json|--seed 3}
fine --out {f.txt|f.json|a/b/f.html|[red]f.md}
bad --out f.pdf ! f.pdf
bad --out /proc/nothing/f.txt ! /proc
bad --out /dev/full ! /dev/full
bad --out . ! .
bad {--test missing.csv|--target kind}
""",
    *numbers(steps=1),
    *_SEED,
    *names_of("--format", "--train", "--loss"),
)


@command("elliptica diagnose", 2.5, DIAGNOSE_OPTIONS, data=ARRAYS, network=NETWORKS)
def run_diagnose(case: Case) -> Outcome | None:
    """Diagnose a network on arrays."""
    data = case["data"]
    more, names = _collect(case, "network", "first", "second")
    names += ["The loss is NaN or infinite"] if case.name("data") == "huge values" else []
    return _diagnose(case, [data], more, [*names, *place_names(data), "x", "y"])


def _diagnose(case: Case, words: Sequence[str], more: Sequence[str], names: Sequence[str]) -> Outcome | None:
    """Run a diagnosis, and check what it wrote."""
    _excuse_replaced(case)

    def results(ran: Ran) -> None:
        out = _value(more, "--out", "")
        file = ran.folder / out
        if file.suffix == ".html":
            check_page(file)
        else:
            text = file.read_text() if out else ran.out
            is_json = file.suffix == ".json" or "json" in more
            check(strict_json(text) if is_json else len(text.strip()) > 100, f"says too little: {text!r}")

    leave = ("__pycache__",)
    return run(case, ["diagnose", *words, *more], names=names, results=results, may_leave=leave)


TABLE_OPTIONS = common(
    """
fine {--all|--format json|--out f.html|--out f.json|--group colour}
fine {--test|--unlabelled} other.csv
odd --test out/model.elliptica ! model.elliptica
odd --target {size|colour} ! size colour
odd --group {size|kind} ! size kind
bad {--target|--group} nothing ! nothing
bad --target '' ! column target
bad {--test|--unlabelled} missing.csv ! missing.csv
bad --test /dev/null ! /dev/null
bad --weights w.pt ! --weights w.pt
bad --loss mse ! --loss
bad --out /proc/nothing/f.txt ! /proc
bad --out f.exe ! f.exe
""",
    *numbers(n=10),
    *_SEED,
)


@command("elliptica diagnose a saved model", 2.0, TABLE_OPTIONS, model=MODELS, **_TABLES)
def run_diagnose_saved(case: Case) -> Outcome | None:
    """Diagnose a model of a comparison on a table."""
    saved, sheet, rendering = case["model"], case["content"], case.name("rendering")
    source = case["place"](case["rendering"](sheet))
    _written(case, to_csv(make_sheet(77, saved.task, 40)), "other.csv")
    more, names = _collect(case, "first", "second")
    if not _is_spoilt(sheet, rendering):
        case.excuse()
    if len(sheet) < 10 or sheet.target not in sheet.columns or not _renders(sheet, rendering):
        case.owe(ODD)
    names += [*place_names(source), *place_names(saved.argument)]
    names += ["column", "target", "row", "line", "package.module"]
    return _diagnose(case, [source, "--model", saved.argument], more, names)


# ---------------------------------------------------------------------------------------------------------
# elliptica report


def _after(make: Callable[..., object], *words: str) -> Callable[..., Words]:
    """Make something for a report, then name it."""

    def made(case: Case, *parameter: Any) -> Words:
        make(case, *parameter)
        return Words(words or ("out",), (Path(words[0]).name,) if words else ("out", "results.json"))

    return made


def _copied(name: str) -> Callable[[Case], Words]:
    return _after(lambda case: copy_fixture(case, name))


def _model_and_table(case: Case) -> Words:
    copy_fixture(case, "net")
    data = _written(case, to_csv(make_sheet(5, rows=40)), "data.csv")
    return Words(("out/model.elliptica", "--data", data, "--target", "kind"))


_PARTS = {"comparison": "net", "runs": "runs", "demo": "demo"}
_COMPARED = ("results.json", "predictions.npz", "model.elliptica")


def _damaged_results(name: str) -> Choice:
    files = _COMPARED if name == "comparison" else ("*.json",)
    make = _after(lambda case, how: _damaged(case, _PARTS[name], how, *files))
    return odd(f"damaged {name}", make, st.sampled_from(DAMAGES))


def _edited_results(name: str) -> Choice:
    return odd(f"edited {name}", _after(lambda case: _edit_json(case, _PARTS.get(name, name))))


SOURCES = (
    fine("comparison", _copied("net")),
    *(fine(name, _copied(name)) for name in ("trees", "regression", "runs", "demo")),
    fine("a saved model", _model_and_table),
    fine("arrays", _after(_arrays(), "data.npz", "--steps", "5")),
    fine("two moons", Words(("two-moons", "--steps", "5"))),
    *map(_damaged_results, _PARTS),
    *map(_edited_results, (*_PARTS, "regression")),
    odd("an empty folder", lambda case: Words((_made(case, "e"),), ("e",))),
    *misplaced("odd", lambda case, at: Words((at,), place_names(at)), skip=["a folder"]),
    bad("a table", lambda case: Words((_written(case, "a,b\n1,2", "d.csv"),), ("d.csv",))),
    bad("one file", lambda case: Words((_written(case, "{}", "r.json"),), ("r.json",))),
    bad("model without data", _after(lambda case: copy_fixture(case, "net"), "out/model.elliptica")),
)

REPORT_OPTIONS = common(
    """
fine --title '<script>alert(7)</script> [red] {{7*7}}'
fine --seed 3
odd --title ''
odd --data-dir nowhere ! nowhere
odd --data missing.csv ! --data missing.csv
odd --group {colour|nothing} ! --group colour nothing
odd --model my_net:model ! --model my_net
odd --weights missing.pt ! --weights missing.pt
odd --table {mine.toml|missing.toml} ! --table mine.toml missing.toml
bad --plugin no_such_module ! no_such_module
""",
    fine("--title two lines", words_of("--title", "größe 尺 \n 2")),
    *_SEED,
    *numbers(steps=1),
    *names_of("--train", "--loss"),
)

PAGES = file_outs("-o", "p.html", bad("someone's file", _out("-o", "t.txt", make=_keep)))


@command("elliptica report", 2.5, REPORT_OPTIONS, source=SOURCES, out=PAGES)
def run_report(case: Case) -> Outcome | None:
    """Write a page about results, whole or damaged."""
    here = folder_of(case)
    write_experiment(here)
    _written(case, CODE, "my_net.py")
    more, names = _collect(case, "source", "first", "second", "out")
    names += ["no record that can be used"] if case.name("source") == "no name" else []
    _excuse_replaced(case)
    out = here / _value(more, "-o", "report.html")
    options = {"may_change": ("old",), "may_leave": ("__pycache__",)}
    return run(case, ["report", *more], names=names, results=lambda ran: check_page(out), **options)


# ---------------------------------------------------------------------------------------------------------
# elliptica run, table, tune and list


def _toml(change: Callable[[str], str]) -> Callable[[Case], Words]:
    """Write a table of experiments; an error must name it, or a word that the ordinary one lacks."""
    text, usual = change(TABLE), set(re.findall(r"\w+", TABLE))
    words = [word for word in re.findall(r"\w+", text) if word not in usual]

    def make(case: Case) -> Words:
        write_experiment(folder_of(case), text)
        return Words(("mine.toml",), ("mine:", "mine.toml", *words))

    return make


def _swaps(owed: Callable[..., Choice], old: str, **names: str) -> list[Choice]:
    """Make tables in which a text is replaced by others, each with a name (``_`` for a space)."""
    assert old in TABLE, old
    return [
        owed(name.replace("_", " "), _toml(lambda text, new=new: text.replace(old, new)))  # type: ignore[misc]
        for name, new in names.items()
    ]


def _method(name: str) -> str:
    return f'[methods."{name}"]\nmethod = "erm"'


def _no_table(case: Case, argument: str) -> Words:
    write_experiment(folder_of(case))
    return Words((argument,), place_names(argument))


_SEEDS, _RATE, _SIGMA, _ERM, _EPOCHS, _BATCH = (
    *("seeds = 2", "lr = 1e-2", "sigma = 0.1", "[methods.erm]", "epochs = 2", "batch_size = 8"),
)
#: Tables that can be read; whatever is wrong shows when they are trained.
READABLE = (
    fine("ordinary", _toml(lambda text: text)),
    *_swaps(fine, _ERM, hostile_names=_method("<script>alert(7)</script> [red] | _a_")),
    *_swaps(fine, '"Toy"', title='"[red]größe 尺 <b> | {0} %s"'),
    fine("byte order of keys", _toml(lambda text: "seeds = 2\n" + text.replace("seeds = 2\n", ""))),
    *_swaps(fine, _SEEDS, one_seed="seeds = 1"),
    odd(
        "no methods",
        _toml(lambda text: text.replace(_ERM, "").replace("[methods.elliptic]\nsigma = 0.1", "")),
    ),
    *_swaps(odd, 'title = "Toy"', no_title=""),
    *_swaps(odd, _RATE, huge_rate="lr = 1e30", no_rate="lr = 0.0"),
    *_swaps(odd, _BATCH, large_batch="batch_size = 1000", batch_of_one="batch_size = 1"),
    *_swaps(odd, _SIGMA, no_noise="sigma = 0.0", huge_noise="sigma = 1e30"),
    *_swaps(odd, "high = 1e-1", infinite_search="high = inf"),
    *_swaps(odd, _ERM, empty_name=_method(""), long_name=_method("m" * 300)),
    *_swaps(odd, _ERM, name_with_slashes=_method("../../x")),
    *_swaps(bad, _RATE, negative_rate="lr = -1.0", rate_is_nan="lr = nan", rate_is_text='lr = "fast"'),
    *_swaps(bad, _EPOCHS, no_epochs="epochs = 0", half_an_epoch="epochs = 0.5", epochs_true="epochs = true"),
    *_swaps(bad, _EPOCHS, unknown_training="epochs = 2, momentun = 3"),
    *_swaps(bad, _BATCH, no_batch="batch_size = 0"),
    *_swaps(bad, _SEEDS, no_seeds="seeds = 0", seeds_as_text='seeds = "two"'),
    *_swaps(bad, _SEEDS, unknown_key="seeds = 2\nsedes = 3"),
    *_swaps(bad, '"rmse"', unknown_metric='"mse"', other_metric='"accuracy"'),
    *_swaps(bad, _ERM, unknown_method="[methods.ermm]"),
    *_swaps(bad, _SIGMA, unknown_setting="sigmaa = 0.1", negative_noise="sigma = -0.1"),
    *_swaps(bad, _SIGMA, noise_is_nan="sigma = nan", noise_is_text='sigma = "loud"'),
    *_swaps(bad, "[datasets.toy]", unknown_data="[datasets.toys]"),
    *_swaps(bad, '"mlp"', unknown_network='"mpl"'),
    *_swaps(bad, "hidden = [8]", no_units="hidden = [0]", units_as_text='hidden = "wide"'),
)
_IS_READABLE = tuple(each.name for each in READABLE)
SPECIFICATIONS = (
    *READABLE,
    bad("not TOML", _toml(lambda text: text + "\n[[[")),
    bad("empty", _toml(lambda text: "")),
    *_swaps(bad, _SEEDS, key_twice="seeds = 2\nseeds = 3"),
    bad("zero bytes", _toml(lambda text: text + "\0")),
    *misplaced("odd.toml", _no_table),
    bad("unknown name", lambda case: _no_table(case, "table99")),
    bad("noise", lambda case: _no_table(case, _written(case, b"\xff\xfe\x00" * 30, "n.toml"))),
    bad("name of the library", lambda case: _no_table(case, _written(case, TABLE, "table3.toml"))),
)


def _plugin(text: str, *names: str) -> Callable[[Case], Words]:
    """Write a plugin in place of the ordinary one."""

    def make(case: Case) -> Words:
        case["table"]
        _written(case, text, "my_code.py")
        return Words(("--plugin", "my_code"), (*names, "my_code"))

    return make


_FAILING = PLUGIN.replace("def load():", "def load():\n    raise RuntimeError('no rows today')")
_LIST = PLUGIN.replace("return Dataset(", "return list((")
_NAN = PLUGIN.replace("y = x.sum", "x[:] = float('nan'); y = x.sum")
#: Plugins whose fault shows only when the data are used.
LATE = (
    bad("registers nothing", _plugin("", "toy")),
    bad("none", Words((), ("toy", "--plugin"))),
    bad("data fail", _plugin(_FAILING, "no rows today")),
    bad("data are a list", _plugin(_LIST, "list", "toy", "Dataset")),
    bad("nan in data", _plugin(_NAN, "nan", "finite")),
    bad("no rows", _plugin(PLUGIN.replace("(60, 3,", "(0, 3,"), "rows", "toy", "empty")),
)
PLUGINS = (
    fine("ordinary", Words(("--plugin", "my_code"))),
    fine("a file", Words(("--plugin", "my_code.py"))),
    fine("twice", Words(("--plugin", "my_code", "--plugin", "my_code"))),
    bad("raises", _plugin("raise RuntimeError('not today')", "not today")),
    bad("exits", _plugin("raise SystemExit(0)", "exit")),
    bad("wrong syntax", _plugin("def broken(:", "syntax")),
    bad("imports nothing", _plugin("import nothing_of_that_name", "nothing_of_that_name")),
    bad("missing", Words(("--plugin", "no_such_module"), ("no_such_module",))),
    bad("no file", Words(("--plugin", "missing.py"), ("missing.py",))),
    bad("no name", Words(("--plugin", ""), ("plugin",))),
    bad("a folder", lambda case: Words(("--plugin", _made(case, "f.py")), ("f.py",))),
    bad("name is taken", _plugin(PLUGIN + '\nregister_dataset("no2")(load)\n', "no2")),
    *LATE,
)

_EXPERIMENTS = {"table": SPECIFICATIONS, "plugin": PLUGINS}

RUN_OPTIONS = common(
    """
fine {--seeds 1|--epochs 1|--methods elliptic|--dataset toy|--match evaluations|--select average}
odd --precision bfloat16 ! precision
odd --tuned ! tune
odd --select worst ! worst
bad --methods nothing ! nothing
bad --methods {''|,} ! method
bad --dataset {nothing|toy,nothing} ! nothing
""",
    *numbers(seeds=1, epochs=1),
    *names_of("--precision", "--match", "--select", "--dataset"),
)
ENGINE_OPTIONS = (
    *options("""
fine {--keep-models|--every-epoch|--jobs 1|--tensorboard board}
bad --device {gpu|''|cuda|meta} ! gpu cuda meta device
bad {--address auto|--retries 1|--cpus-per-run nan|--gpus-per-run -1}
"""),
    *numbers(jobs=1),
    *names_of("--engine"),
)


def _experiment(case: Case) -> None:
    """Write the table and its plugin, as far as the choices of a case do not."""
    case["table"]
    if not (folder_of(case) / "my_code.py").exists():
        write_experiment(folder_of(case))


def _records(folder: Path) -> list[Any]:
    """Read all records below a folder as strict JSON."""
    return [strict_json(file.read_text()) for file in folder.rglob("*-seed*.json")]


#: Tables whose fault an option mends.
_MENDED = {
    "--epochs 1": ("no epochs", "half an epoch", "epochs true"),
    "--seeds 1": ("no seeds", "seeds as text"),
    "--methods elliptic": ("unknown method",),
}


def _weigh_run(case: Case) -> None:
    """Say which bad choices do not matter next to others."""
    mended = [name for axis in ("first", "second") for name in _MENDED.get(case.name(axis), ())]
    if _bads(case) == ["table"] and case.name("table") in mended:
        case.excuse()
    _excuse_replaced(case)


def _train(
    case: Case, name: str, *more: str, results: Callable[[Ran, Path], None], names: Sequence[str]
) -> Any:
    """Run or tune a table of one's own; some of its rows may fail."""
    out = _value(more, "--out", "runs")
    leave = ("__pycache__", "board", "s.db", out if not out.startswith("/") else "runs")
    checked = {"names": names, "results": lambda ran: results(ran, ran.folder / out), "may_leave": leave}
    return run(case, [name, *more], partial=True, **checked)


@command("elliptica run", 2.5, (*RUN_OPTIONS, *ENGINE_OPTIONS), **_EXPERIMENTS, out=RECORD_FOLDERS)
def run_run(case: Case) -> Outcome | None:
    """Train the runs of a table of one's own."""
    _experiment(case)
    more, names = _collect(case, "table", "plugin", "first", "second", "out")
    _weigh_run(case)

    def results(ran: Ran, out: Path) -> None:
        records = _records(out)
        check(bool(records), "no records")
        for record in records:
            rmse = record["metrics"]["test"]["average"]
            check(rmse is not None and np.isfinite(rmse) and rmse >= 0, f"rmse {rmse}")
            is_whole = len(record["curves"]["loss"]) == record["cost"]["epochs"]
            check(is_whole, "the curve is not as long as it says")
        check(re.search(r"\| *[\d.]+", ran.out), f"prints no table: {short(ran.out)}")

    return _train(case, "run", *more, results=results, names=names)


TUNE_OPTIONS = common(
    """
fine --methods erm
fine --methods erm --search {auto|small --sampler random|small --storage sqlite:///s.db}
fine --methods elliptic --search auto --pruner none
odd --search auto ! search row
bad --methods erm --search nothing ! nothing
bad --methods erm --search small --storage /proc/nothing/s ! /proc/nothing
bad --methods erm --search small --storage {mysql://x/y|.} ! mysql storage folder
bad {--sampler tpe|--seed 3}
""",
    *numbers(trials=1),
    *names_of("--sampler", "--pruner", "--search"),
)


@command(
    "elliptica tune",
    1.5,
    **_EXPERIMENTS,
    first=TUNE_OPTIONS,
    second=(*RUN_OPTIONS, *_SEED),
    out=RECORD_FOLDERS,
)
def run_tune(case: Case) -> Outcome | None:
    """Tune the rows of a table of one's own."""
    _experiment(case)
    more, names = _collect(case, "table", "plugin", "first", "second", "out")
    if case.name("second") in ("--seeds 1", "--tuned"):
        case.owe(BAD)
        names += ["--seeds", "--tuned"]
    _weigh_run(case)

    def results(ran: Ran, out: Path) -> None:
        texts = [file.read_text() for file in out.rglob("*.json")]
        check(any("score" in text for text in texts), "chose nothing")
        for text in texts:
            strict_json(text)

    names += ["toy erm", "toy elliptic"]  # of trials that fail
    quick = ["--trials", "1", "--epochs", "1"]
    return _train(case, "tune", *more[:1], *quick, *more[1:], results=results, names=names)


def _records_of(make: Callable[..., object]) -> Callable[..., Words]:
    """Make a folder of records beside the table of a case."""

    def made(case: Case, *parameter: Any) -> Words:
        case["table"]
        make(case, *parameter)
        return Words(("--out", "out"), ("out",))

    return made


@command(
    "elliptica table",
    1.5,
    table=SPECIFICATIONS,
    records=(
        fine("whole", _records_of(lambda case: copy_fixture(case, "runs"))),
        odd(
            "damaged",
            _records_of(lambda case, how: _damaged(case, "runs", how, "*-seed*.json")),
            st.sampled_from(DAMAGES),
        ),
        odd("edited", _records_of(lambda case: _edit_json(case, "runs"))),
        odd("none", _out("--out", "e", make=Path.mkdir)),
        bad("missing", _out("--out", "missing")),
        bad("a file", _out("--out", "taken", make=_keep)),
    ),
    first=(
        *RUN_OPTIONS,
        *options("""
fine {--format latex|--format csv|--part validation|--part cost}
bad --epoch last ! --every-epoch
"""),
        *names_of("--format", "--part", "--epoch"),
    ),
    second=RUN_OPTIONS,
)
def run_table(case: Case) -> Outcome | None:
    """Print a table from its records, twice, with the same result."""
    case["table"]
    more, names = _collect(case, "table", "records", "first", "second")
    _weigh_run(case)
    if _bads(case) == ["table"] and case.name("table") in _IS_READABLE:
        case.excuse()  # what is trained is only checked when it is trained
    if "--epoch last" in case.name("first") and case.name("records") != "whole":
        case.excuse()

    def results(ran: Ran) -> None:
        again = execute(ran.folder, ran.words, ran.terminal)
        check(again.out == ran.out, "the same records print another table")
        check(not ran.new_files(), f"wrote {ran.new_files()[:3]}")
        if set(case.choices) <= {"terminal"} and ran.terminal.width >= 80:
            records = [each for each in _records(ran.folder / "out") if each["run"]["row"] == "erm"]
            mean = np.mean([record["metrics"]["test"]["average"] for record in records])
            shown = re.findall(r"\d\.\d+", ran.out)
            check(any(n.startswith(f"{mean:.3g}"[:3]) for n in shown), f"{mean} is not shown: {ran.out}")

    return run(case, ["table", *more], names=names, results=results)


@command(
    "elliptica list",
    1.0,
    table=(
        fine("all", Words()),
        *SPECIFICATIONS,
        fine(
            "of the paper",
            lambda case, n: Words((n,)),
            st.sampled_from(["table3", "table4", "parts", "shift"]),
        ),
    ),
    plugin=PLUGINS,
    option=common("""
fine --data-dir {.|nowhere}
odd --data-dir {mine.toml|''|/dev/null}
"""),
)
def run_list(case: Case) -> Outcome | None:
    """List tables and their rows."""
    _experiment(case)
    more, names = _collect(case, "table", "plugin", "option")
    harmless = {"table": _IS_READABLE, "plugin": [each.name for each in LATE]}
    if case.owed == BAD and all(case.name(axis) in harmless.get(axis, ()) for axis in _bads(case)):
        case.excuse()  # nothing is trained

    def results(ran: Ran) -> None:
        check("data" in ran.out, "lists nothing")
        if case.name("table") == "all":
            check("table3" in ran.out and "table9" in ran.out, "tables are missing")

    return run(case, ["list", *more], names=names, results=results, may_leave=("__pycache__",))


# ---------------------------------------------------------------------------------------------------------
# elliptica data, demo, and the program itself


def _fetch(owed: Callable[..., Choice], name: str, *names: str) -> Choice:
    return owed(name, lambda case, n: Words(("fetch", n), (n or "name",)), st.sampled_from(names))


def _wrong_data(case: Case) -> Words:
    files = ("airfoil_self_noise.dat", "NO2.dat", "airfoil.csv", "breastmnist.npz")
    for name in (*files, f"airfoil/{files[0]}", f"crime/{files[0]}"):
        _written(case, "wrong", f"data/{name}")
    return Words(("--data-dir", "data"), ("data",))


@command(
    "elliptica data",
    1.0,
    command=(
        fine("list", Words(("list",))),
        fine("without hashes", Words(("list", "--no-verify"))),
        _fetch(bad, "fetch", "airfoil", "crime", "cifar10"),
        _fetch(bad, "fetch what cannot be", "no2", "celeba"),
        fine("fetch what is made", Words(("fetch", "two-moons"))),
        _fetch(bad, "fetch unknown", "", "no-such", "[red]x", "../x", "a\nb", "y" * 300),
        bad("fetch nothing", Words(("fetch",), ("name", "argument"))),
        bad("unknown", Words(("get",), ("get",))),
    ),
    folder=(
        fine("by default", Words()),
        fine("here", Words(("--data-dir", "."))),
        fine("missing", Words(("--data-dir", "missing"))),
        odd("wrong files", _wrong_data),
        odd("a file", _out("--data-dir", "taken", make=_keep)),
        odd("nowhere", _out("--data-dir", "/proc/nothing")),
        odd("no name", Words(("--data-dir", ""))),
        odd("too long", Words(("--data-dir", "y" * 5000))),
        odd("markup", Words(("--data-dir", "[/red]x"))),
    ),
    option=common(),
)
def run_data(case: Case) -> Outcome | None:
    """List and fetch data without a network."""
    more, names = _collect(case, "command", "folder", "option")
    if case["command"].words == ("fetch",) and "surplus" in more:
        case.excuse()
    ran = execute(folder_of(case), ["data", *more], case["terminal"])
    if "list" in more and ran.code == 1 and ran.terminal.is_readable and "error:" not in ran.said:
        check(case.name("folder") in ("wrong files", "a file"), f"exit 1: {short(ran.said)}")
        check("airfoil" in ran.out, "the wrong file is not named")
        return Outcome(RIGHT)

    def results(ran: Ran) -> None:
        if "list" in more and ran.terminal.width >= 60 and case.name("terminal") != "plain C":
            check("airfoil" in ran.out and "two-moons" in ran.out, "data are missing in the list")

    leave = (_value(more, "--data-dir", "missing") or ".", "airfoil", "crime")
    return judge_run(case, ran, names=[*names, "data", "too long"], results=results, may_leave=leave)


DEMO_OPTIONS = common(
    """
fine {--seeds 2|--sigma 0|--sigma 0.5|--variant tube|--variant relu}
odd --sigma 1e300
bad --sigma {nan|inf|-1}
bad {--format png|--width page|--runs x|--figure 3}
bad --figure 9 ! 9
""",
    _values(bad, "--sigma", "text", _NO_NUMBERS),
    *numbers(seeds=1, steps=1),
    *names_of("--variant", "--figure"),
)


@command("elliptica demo", 0.6, DEMO_OPTIONS, out=OUTS)
def run_demo(case: Case) -> Outcome | None:
    """Run the demo for one step."""
    more, names = _collect(case, "first", "second", "out")
    _excuse_replaced(case)

    def results(ran: Ran) -> None:
        out = ran.folder / _value(more, "--out", "demo")
        content = strict_json((out / "results.json").read_text())
        check(len(content["runs"]) >= 3, f"{len(content['runs'])} runs")
        check_picture(out / "two_moons.png")
        check_page(out / "two_moons.html")

    quick = ["--quick", "--seeds", "1", "--steps", "1"]
    return run(case, ["demo", *quick, *more], names=names, results=results)


FIGURE_OPTIONS = common(
    """
fine --format {svg|pdf --width page}
fine -o {a/b/f.pdf|[red]f.png}
bad -o f.gif ! f.gif
bad -o f.png --format pdf ! f.png .pdf
bad -o /proc/nothing/f.png ! /proc
bad -o /dev/full/f.png ! /dev/full
bad {--seeds 2|--quick}
""",
    bad("-o too long", words_of("-o", "y" * 300 + ".png", names=["y" * 40])),
    *names_of("--format", "--width"),
)
_UNCERTAINTY = ("--figure", "uncertainty", "--runs")


FIGURES = (
    fine("2", Words(("--figure", "2"))),
    bad("uncertainty", Words((*_UNCERTAINTY, "missing"), ("missing", "records"))),
    bad("of no records", lambda case: Words((*_UNCERTAINTY, _made(case, "r")), ("record",))),
)


@command("elliptica demo --figure", 0.3, FIGURE_OPTIONS, figure=FIGURES)
def run_figure(case: Case) -> Outcome | None:
    """Draw a figure of the paper."""
    more, names = _collect(case, "figure", "first", "second")
    _excuse_replaced(case)

    def results(ran: Ran) -> None:
        starts = [(ran.folder / name).read_bytes()[:4] for name in ran.new_files()]
        check({b"\x89PNG", b"%PDF", b"<?xm"} & set(starts), "no figure")

    return run(case, ["demo", *more], names=names, results=results)


_ALONE = ["compare", "predict", "diagnose", "report", "run", "table", "tune", "data"]
_COMMANDS = ["demo", "list", *_ALONE]
_UNKNOWN = [
    *("comapre", "[red]", "[/]", "", " ", "-", "--", "--no", "-x", "COMPARE", "compare ", "ä尺😀", "a\nb"),
    *("x" * 5000, "--version=1", "--help=no", "\udcff"),
]


def _text(most: int) -> st.SearchStrategy[str]:
    return st.text(max_size=most).filter(lambda text: "\0" not in text)


@command(
    "elliptica",
    1.0,
    first=(
        fine("--help", Words(("--help",))),
        fine("--version", Words(("--version",))),
        fine("help of", lambda case, name: Words((name, "--help")), st.sampled_from(_COMMANDS)),
        bad("nothing", Words((), ("usage",))),
        bad(
            "a command alone",
            lambda case, name: Words((name,), ("missing", "argument", "usage")),
            st.sampled_from(_ALONE),
        ),
        bad(
            "removed",
            lambda case, name: Words((name,), (name,)),
            st.sampled_from(["cost", "figure", "gallery", "landscape", "watch"]),
        ),
        bad(
            "unknown",
            lambda case, name: Words((name,), (name[:40], "command", "option")),
            st.one_of(st.sampled_from(_UNKNOWN), _text(8)),
        ),
    ),
    more=(
        fine("none", Words()),
        odd("anything", lambda case, words: Words(tuple(words)), st.lists(_text(6), max_size=3)),
        odd("--help", Words(("--help",))),
        odd("--version", Words(("--version",))),
        odd("many", lambda case, n: Words(("--verify",) * n), st.integers(1, 400)),
    ),
)
def run_program(case: Case) -> Outcome | None:
    """Call the program itself in all kinds of ways."""
    more, names = _collect(case, "first", "more")
    first = case["first"].words
    if {*case["more"].words} & {"--help", "--version", *_COMMANDS} or {*first} & {*_COMMANDS}:
        case.excuse()
    names += ["command"] if first in ((), ("--",), ("-",), ("",)) else []
    ran = execute(folder_of(case), more, case["terminal"])
    if ran.code == 2 and "usage" in plain(ran.out) and not ran.err:
        check(not ran.new_files(), "wrote files")
        return Outcome(CLEAR)  # its help, because nothing was asked for

    def results(ran: Ran) -> None:
        check(not ran.new_files(), f"wrote {ran.new_files()[:3]}")
        if more[0] == "--version":
            check(bool(re.fullmatch(r"elliptica \d+\.\d+\.\d+\S*", ran.out.strip())), f"version: {ran.out!r}")

    if more == ["--help"] and ran.terminal.is_readable and ran.terminal.width >= 60:
        check(all(name in ran.out for name in _COMMANDS), "the help lacks a command")
    return judge_run(case, ran, names=[*names, "usage"], results=results)
