"""Entry point of the command line, ``elliptica`` or ``python -m elliptica``."""

import os
import signal
import sys
import threading
from types import FrameType

from elliptica.cli import app

#: Exit status after Ctrl-C and after SIGTERM, by the convention of shells.
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """Raised by SIGTERM: a command ends as after Ctrl-C, and keeps what is finished."""


def main() -> None:
    """Run the command line."""
    was_terminated = False

    def terminate(_: int, __: FrameType | None) -> None:
        nonlocal was_terminated
        was_terminated = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
        raise Terminated

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)
    try:
        app(prog_name="elliptica")
    except SystemExit as end:
        status = TERMINATED if was_terminated else end.code
        if status in (INTERRUPTED, TERMINATED) and _is_computing():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        raise SystemExit(status) from None


def _is_computing() -> bool:
    """Whether threads of a pool are still at work: Python aborts if it exits while they are inside torch."""
    return any(thread.name.startswith("ThreadPoolExecutor") for thread in threading.enumerate())


if __name__ == "__main__":
    main()
