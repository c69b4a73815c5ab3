"""A driver as a process of its own, to be stopped and killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from flink_hosts import wait


class Driver:
    """`recordmill` with these arguments, started as a shell would."""

    def __init__(self, *arguments: str | Path, cwd: Path | None = None) -> None:
        command = [sys.executable, "-m", "recordmill", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=dict(os.environ)
        )

    def wait_for(self, until: Callable[[], bool], seconds: float = 90) -> None:
        """Until something is so; fails with what the driver said if it ends before."""

        def look() -> bool:
            assert self.process.poll() is None, self.process.communicate()[1]
            return until()

        wait(look, seconds, "the driver's job")

    def stop(self, signum: int) -> tuple[int, str]:
        """Send a signal; gives exit code and stderr when it has ended."""
        self.process.send_signal(signum)
        return self.end()

    def end(self, seconds: float = 240) -> tuple[int, str]:
        """(exit code, stderr) of the driver when it has ended."""
        err = self.process.communicate(timeout=seconds)[1]
        return self.process.returncode, err


def run(*arguments: str | Path, cwd: Path | None = None) -> None:
    """A driver that must end well."""
    code, err = Driver(*arguments, cwd=cwd).end()
    assert code == 0, err


def recordmill(*arguments: str | Path) -> Sequence[str]:
    """(stdout, stderr) of a short command."""
    done = subprocess.run(
        [sys.executable, "-m", "recordmill", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    return done.stdout, done.stderr
