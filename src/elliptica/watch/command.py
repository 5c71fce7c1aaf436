"""`elliptica watch` on the screen."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from elliptica.watch.scan import Reader
from elliptica.watch.view import Screen, frame

#: Lines of a frame that are not rows: summary, heads, rests, troubles.
_OTHER_LINES = 11
#: Rows where there is no screen to fill.
_ROWS_ON_PAPER = 40


def run_watch(folder: Path, console: Console, *, once: bool, rows: int | None, every: float) -> int:
    """Show a folder of runs until Ctrl-C, or once; returns the exit status.

    Args:
        folder: Of the records.
        console: Where to show it; one that is no terminal gets one frame.
        once: Show one frame.
        rows: Rows at most, None is what fits, 0 is all.
        every: Seconds between two frames.
    """
    if not folder.is_dir() and console.is_terminal and not once and folder.parent.is_dir():
        try:  # a run that was started just now makes it soon
            with console.status(f"Waiting for the folder {escape(str(folder))} (Ctrl-C ends this)"):
                while not folder.is_dir():
                    time.sleep(every)
        except KeyboardInterrupt:
            return 0
    if not folder.is_dir():
        console.print(
            f"error: There is no folder {folder}. Say where the records are: elliptica watch FOLDER.",
            style="red",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        return 2
    reader = Reader(folder)
    if once or not console.is_terminal:
        console.print(frame(reader.scan(), folder, _screen(console, rows, fill=False)), highlight=False)
        return 0
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(frame(reader.scan(), folder, _screen(console, rows, fill=True)), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        pass
    console.print(frame(reader.scan(), folder, _screen(console, rows, fill=True)), highlight=False)
    return 0


def _screen(console: Console, rows: int | None, *, fill: bool) -> Screen:
    limit: int | None = _ROWS_ON_PAPER
    if rows is not None:
        limit = rows or None
    elif fill:
        limit = max(console.height - _OTHER_LINES, 3)
    return Screen(console.width, limit, ascii="utf" not in console.encoding.lower())
