"""The command line. Only typer and rich are imported here; torch waits until a command needs it."""

from elliptica.cli import compare as compare
from elliptica.cli import data as data
from elliptica.cli import demo as demo
from elliptica.cli import diagnose as diagnose
from elliptica.cli import list as list
from elliptica.cli import predict as predict
from elliptica.cli import report as report
from elliptica.cli import run as run
from elliptica.cli import table as table
from elliptica.cli import tune as tune
from elliptica.cli.app import app as app

__all__ = ["app"]
