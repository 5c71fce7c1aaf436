"""One frame of `elliptica watch`: a summary, then a row for each data set and method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rich.cells import cell_len
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from elliptica.watch.groups import STATES, Group, by_urgency, make_groups, seconds_left
from elliptica.watch.scan import RunState, Scan, State

#: Colour and sign of each state, and its sign where only ASCII can be shown.
LOOK: dict[State, tuple[str, str, str]] = {
    "done": ("green", "●", "#"),
    "running": ("cyan", "◐", ">"),
    "failed": ("red", "✗", "x"),
    "interrupted": ("yellow", "‖", "!"),
    "waiting": ("bright_black", "○", "."),
}
_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
#: Seeds up to which each has a sign of its own; more are counted.
_SIGNS = 10
#: Lines on searches and choices beside runs.
_SEARCHES = 3


@dataclass(frozen=True)
class Screen:
    """What the frame is for.

    Attributes:
        width: Columns.
        rows: Groups that are shown at most; None is all.
        ascii: Only ASCII can be shown.
    """

    width: int = 80
    rows: int | None = None
    ascii: bool = False


def frame(scan: Scan, folder: Path, screen: Screen) -> RenderableType:
    """Everything that is known at one moment, the summary first."""
    groups = make_groups(scan)
    parts: list[RenderableType] = [_summary(scan, groups, folder, screen)]
    searches = _searches(scan, screen)
    parts += searches
    ordered = by_urgency(groups)
    shown = ordered if screen.rows is None else ordered[: max(screen.rows - len(searches), 1)]
    if shown:
        parts += ["", _table(shown, groups, screen)]
        parts += _rest(ordered[len(shown) :], screen)
    parts += _troubles(scan, screen)
    return Lines(*parts)


def _summary(scan: Scan, groups: Sequence[Group], folder: Path, screen: Screen) -> RenderableType:
    total = len(scan.runs)
    if not total and scan.searches:
        return Text(f"{folder}: no runs, but settings that elliptica tune looks for or has chosen:")
    if not total:
        return Text(f"{folder}: no runs here yet. elliptica run TABLE --out {folder} starts some.")
    name = str(folder)
    if len(name) > screen.width // 4:  # the end of a path says more than its beginning
        name = f"{'...' if screen.ascii else '…'}{name[-(screen.width // 4) :]}"
    line = Text(f"{name}: ", style="bold", no_wrap=True, overflow="ellipsis")
    line.append(f"{scan.count('done')} of {total} runs done", style="green")
    for state in STATES[:-1]:
        number = scan.count(state)
        if number:
            line.append(f", {number} {state}", style=LOOK[state][0])
    left = seconds_left(groups, groups)
    if left is not None:
        line.append(f"; {clock(left)} left", style="bold")
    return Lines(line, _bar(scan, total, min(screen.width, 80), screen.ascii))


def _searches(scan: Scan, screen: Screen) -> list[RenderableType]:
    """Lines on searches and choices; beside runs only a few of them, so that runs stay on the screen."""
    most = len(scan.searches) if screen.rows is None else _SEARCHES if scan.runs else max(screen.rows, 1)
    lines: list[RenderableType] = [
        Text(line, no_wrap=True, overflow="ellipsis") for line in scan.searches[:most]
    ]
    if len(scan.searches) > most:
        rest = f"and {len(scan.searches) - most} more searches and choices (--rows 0 shows all)"
        lines.append(Text(rest, style="bright_black"))
    return lines


def _bar(scan: Scan, total: int, width: int, is_ascii: bool) -> Text:
    """All runs as one bar, in the colours of their states."""
    bar, used, seen = Text(no_wrap=True), 0, 0
    for state in ("done", "running", "failed", "interrupted", "waiting"):
        seen += scan.count(state)
        upto = round(width * seen / total)
        sign = LOOK[state][2] if is_ascii else ("━" if state != "waiting" else "─")
        bar.append(sign * (upto - used), style=LOOK[state][0])
        used = upto
    return bar


#: Columns: heading, whether it is aligned to the right, and its width at most.
_COLUMNS = {
    "table": (False, 12),
    "data": (False, 24),
    "method": (False, 24),
    "seeds": (False, None),
    "epoch": (True, None),
    "loss": (True, None),
    "valid.": (True, None),
    "curve": (False, None),
    "best": (True, None),
    "left": (True, None),
}
#: Widest and narrowest curve.
_CURVE = (24, 5)


def _table(shown: Sequence[Group], groups: Sequence[Group], screen: Screen) -> Table:
    """Empty columns are left out; the curve takes the space that the others leave, names give way to it."""
    rows = [_cells(group, groups, screen) for group in shown]
    if len({group.table for group in groups}) == 1:
        rows = [{**cells, "table": ""} for cells in rows]
    heads = [head for head in _COLUMNS if head == "curve" or any(len(cells[head]) for cells in rows)]
    widths = {head: max(len(head), *(cell_len(str(cells[head])) for cells in rows)) for head in heads}
    for head, (_, most) in _COLUMNS.items():
        if head in widths and most is not None:
            widths[head] = min(widths[head], most)
    space = screen.width - sum(widths[head] + 2 for head in heads if head != "curve")
    for head in ("data", "method"):  # names are cut for the sake of a curve
        cut = max(min(widths[head] - 12, _CURVE[1] + 3 - space), 0)
        widths[head], space = widths[head] - cut, space + cut
    curve = min(space, _CURVE[0])
    if curve < _CURVE[1] or not any(map(_curve, shown)):
        heads.remove("curve")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bright_black")
    for head in heads:
        width = curve if head == "curve" else widths[head]
        table.add_column(head, justify="right" if _COLUMNS[head][0] else "left", no_wrap=True, width=width)
    for group, cells in zip(shown, rows, strict=True):
        cells["curve"] = Text(sparkline(_curve(group), curve, screen.ascii), style="cyan")
        style = "" if group.count("done") < len(group.runs) else "dim"
        table.add_row(*(cells[head] for head in heads), style=style)
    return table


def _cells(group: Group, groups: Sequence[Group], screen: Screen) -> dict[str, str | Text]:
    """What a row says, by heading."""
    left = seconds_left(groups, [group]) if group.count("running") or group.count("waiting") else None
    epoch, loss, validation = _numbers(group)
    return {
        "table": group.table,
        "data": group.dataset,
        "method": group.row,
        "seeds": _seeds(group, screen.ascii),
        "epoch": epoch,
        "loss": loss,
        "valid.": validation,
        "curve": "",
        "best": number(_natural(group.best, group.metric)),
        "left": "" if left is None else clock(left),
    }


def _numbers(group: Group) -> tuple[str, str, str]:
    """Epoch, loss and validation: of the run that goes on, or the mean of those that are finished."""
    run = group.shown
    if run is None or run.score is None:
        epoch = f"0/{run.epochs}" if run is not None and run.epochs else ""
        return epoch, "", number(_natural(group.mean, group.metric))
    epoch = f"{run.epoch}/{run.epochs}" if run.epochs else str(run.epoch)
    return epoch, number(run.loss), number(_natural(run.score, group.metric))


def _curve(group: Group) -> tuple[float, ...]:
    """Validation of the run that is shown, or of the last finished one, in the units of the metric."""
    run: RunState | None = group.shown or next((r for r in reversed(group.runs) if r.scores), None)
    if run is None:
        return ()
    return tuple(v for score in run.scores if (v := _natural(score, group.metric)) is not None)


def _seeds(group: Group, is_ascii: bool) -> Text:
    """A sign for each seed, or counts where there are many."""
    text = Text()
    if len(group.runs) <= _SIGNS:
        for run in group.runs:
            colour, sign, plain = LOOK[run.state]
            text.append(plain if is_ascii else sign, style=colour)
        return text
    for state in ("done", "running", "failed", "interrupted", "waiting"):
        if count := group.count(state):
            colour, sign, plain = LOOK[state]
            text.append(f"{count}{plain if is_ascii else sign}", style=colour)
    return text


def _rest(groups: Sequence[Group], screen: Screen) -> list[RenderableType]:
    if not groups:
        return []
    counts = [(state, sum(group.count(state) for group in groups)) for state in STATES]
    told = ", ".join(f"{count} {state}" for state, count in counts if count)
    return [Text(f"and {len(groups)} more rows ({told})", style="bright_black")]


def _troubles(scan: Scan, screen: Screen) -> list[RenderableType]:
    """Reasons of failures, the commonest first, and files that cannot be read."""
    reasons: dict[str, list[RunState]] = {}
    for run in scan.runs.values():
        if run.state == "failed":
            reasons.setdefault(run.error, []).append(run)
    lines: list[RenderableType] = []
    limit = 3 if screen.rows is not None else None
    for error, found in sorted(reasons.items(), key=lambda item: -len(item[1]))[:limit]:
        _, dataset, row, _, seed = found[0].key
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        text = f"failed: {dataset} {row} seed {seed}{more}: {' '.join(error.split())}"
        lines.append(Text(text, style="red", no_wrap=True, overflow="ellipsis"))
    if scan.unreadable:
        path, why = next(iter(scan.unreadable.items()))
        number_of = len(scan.unreadable)
        text = f"{number_of} unreadable file{'s' if number_of > 1 else ''}, such as {path.name}: {why}"
        lines.append(Text(text, style="yellow", no_wrap=True, overflow="ellipsis"))
    return ["", *lines] if lines else []


def _natural(score: float | None, metric: str) -> float | None:
    """A score in the units of its metric: errors are positive again, shares are in percent."""
    if score is None or not math.isfinite(score):
        return None
    value = -score if metric in ("rmse", "error") else score
    return value if metric in ("rmse", "") else 100 * value


def number(value: float | None) -> str:
    """Four digits, however large the value is; nothing for None."""
    if value is None or not math.isfinite(value):
        return ""
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.1e}"
    return f"{value:.{max(0, min(4, 3 - math.floor(math.log10(abs(value) or 1))))}f}"


def sparkline(values: Sequence[float], width: int, is_ascii: bool = False) -> str:
    """A curve in one line, averaged to the width if it is long; its scale is that of the last four fifths."""
    bars = _ASCII_BARS if is_ascii else _BARS
    if not values:
        return ""
    n = min(width, len(values))
    cuts = [round(i * len(values) / n) for i in range(n + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    settled = means[n // 5 :]  # the first epochs of a training would flatten all others
    low, high = min(settled), max(settled)
    if high == low:
        return bars[0] * n
    steps = [int((value - low) / (high - low) * len(bars)) for value in means]
    return "".join(bars[max(0, min(step, len(bars) - 1))] for step in steps)


def clock(seconds: float) -> str:
    """A duration in at most two units."""
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    minutes = seconds / 60
    if minutes < 60:
        return f"{round(minutes)} min"
    hours = minutes / 60
    return f"{hours:.1f} h" if hours < 24 else f"{hours / 24:.1f} d"
