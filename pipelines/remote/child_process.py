"""A program that ends when the process that started it does, however that dies: a job server, of which nobody would
know any more. A command in, the program in this process's place out; run as a script, it needs nothing but Python.

A child stays behind as a watcher. Its stdout is a pipe to the process that started all this, as the program's is, and
the pipe's other end is shut when that process dies, also where nobody waits for it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence

_LOOK_MS = 500
_END_SEC = 10.0  # which a program has to end by itself


def end_with_parent(command: Sequence[str]) -> list[str]:
    """The command of a program that is started with its stdout in a pipe, and ends when nobody reads that any more."""
    return [sys.executable, "-I", "-S", __file__, *command]


def _watch(program: int, pipe: int) -> None:
    """Until the program has ended, or has been ended since the other end of the pipe is shut."""
    look = select.poll()
    look.register(pipe, 0)  # errors are told without being asked for
    while os.getppid() == program:
        if look.poll(_LOOK_MS):
            _end(program)


def _end(program: int) -> None:
    """As long as this process is its child, the number is the program's."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if os.getppid() == program:
            os.kill(program, signum)
        before = time.monotonic()
        while os.getppid() == program and time.monotonic() - before < _END_SEC:
            time.sleep(0.1)


def run_with_parent() -> None:
    """Become the program that the arguments name."""
    program = os.getpid()
    if os.fork():
        os.execvp(sys.argv[1], sys.argv[1:])
    os.setsid()  # Ctrl-C is for the others
    os.closerange(3, 64)
    _watch(program, 1)


if __name__ == "__main__":
    run_with_parent()
