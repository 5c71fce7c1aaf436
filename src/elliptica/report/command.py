"""`elliptica report` on the screen: what was made, what is missing, or what is wrong."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from elliptica.report.content import ReportError
from elliptica.report.source import Request, write_report


def run_report(request: Request, out: Path, console: Console) -> int:
    """Make the page; returns the exit status."""
    try:
        with console.status("reading"):
            report = write_report(request, out)
    except (ReportError, OSError) as error:
        _say(console, f"[red]error:[/red] {escape(str(error))}")
        return 2
    except KeyboardInterrupt:
        _say(console, f"Interrupted: {escape(str(out))} was not written.")
        return 130
    _say(console, escape(report.headline))
    reasons = list(dict.fromkeys(s.missing["landscape"] for s in report.studies if "landscape" in s.missing))
    if request.landscape and len(reasons) == 1:
        _say(console, escape(f"The loss landscape is left out. {reasons[0]}"))
    if report.unusable:
        n = len(report.unusable)
        _say(
            console,
            f"[yellow]{n} file{'s' if n > 1 else ''} could not be used[/yellow]; the page says why.",
        )
    _say(
        console,
        escape(f"{report.kind[:1].upper()}{report.kind[1:]}: {out} ({out.stat().st_size / 1e6:.1f} MB)."),
    )
    return 0


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
