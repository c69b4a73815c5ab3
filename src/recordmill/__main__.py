"""The command line program `recordmill`.

Slow imports happen inside `main`. There, Ctrl-C ends with one line and not with a traceback.
"""

from __future__ import annotations

import contextlib
import sys

TYPE_CHECKING = False  # the import of `typing` takes time
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status.

    The status is 0 for success, 1 if the data or the run failed, 2 for wrong usage and 130 for
    Ctrl-C.

    Args:
        argv: The arguments. None takes them from the process, which the caller then ends with the
            status.
    """
    message = "stopped; nothing was written"
    try:
        from recordmill.commands.main import run

        code = run(argv)
        message = "stopped after everything was written"
        if argv is None:
            _ignore_signals()
        return code
    except KeyboardInterrupt as stop:
        with contextlib.suppress(OSError):  # stderr may be a closed pipe
            print(f"recordmill: error: {str(stop) or message}", file=sys.stderr)
        # Only the program itself may be ended, not the process of a caller in Python.
        if argv is None:
            _exit_without_threads()
        return 130


def _exit_without_threads() -> None:
    """Ends the process at once if threads of ours still run.

    Python would wait for them, and code that can't be interrupted may keep them busy.
    """
    import os
    import threading

    if any(thread.name.startswith("recordmill") for thread in threading.enumerate()):
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(130)


def _ignore_signals() -> None:
    """Prepares a quick end of the process after all work is done.

    Signals are ignored from now on, because they can't change the result any more. The garbage
    collector does not search for cycles at exit. This search took a fifth of the time of `head`,
    because of the many objects of NumPy and Arrow.
    """
    import gc
    import signal

    # Frozen objects are not searched for cycles. Objects of DuckDB are in cycles, and its library
    # prints a warning for each one that still exists at exit.
    if "duckdb" not in sys.modules:
        gc.freeze()

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
