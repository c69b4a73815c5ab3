"""The command line: `recordmill build | transform | read | head | inspect | bench | verify | clean`.

What takes time to import is imported where Ctrl-C already ends in one line and not in a traceback.
"""

from __future__ import annotations

import contextlib
import sys

TYPE_CHECKING = False  # typing itself takes a while
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 done, 1 the data or the run failed, 2 wrong usage, 130 stopped by Ctrl-C."""
    message = "stopped; nothing was written"
    try:
        from recordmill.commands.main import run

        code = run(argv)
        message = "stopped when all was done"
        if argv is None:
            _ignore_signals()
        return code
    except KeyboardInterrupt as stop:
        with contextlib.suppress(OSError):  # stderr may be a pipe that nobody reads any more
            print(f"recordmill: error: {str(stop) or message}", file=sys.stderr)
        if argv is None:
            _exit_without_threads()
        return 130


def _exit_without_threads() -> None:
    """Code that can't be interrupted may hold some of ours, for which Python would wait: it is not waited for."""
    import os
    import threading

    if any(thread.name.startswith("recordmill") for thread in threading.enumerate()):
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(130)


def _ignore_signals() -> None:
    """Everything is done and said: signals change nothing of it while Python ends, and no cycles are looked for among
    the objects of NumPy and Arrow, which took a fifth of the time of `head`.
    """
    import gc
    import signal

    gc.freeze()

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
