"""The command line. Only typer and rich are imported here; torch waits until a command needs it."""

from elliptica.cli import compare, demo, diagnose, experiments, list, report  # noqa: F401 - add their commands
from elliptica.cli.app import app

__all__ = ["app"]
