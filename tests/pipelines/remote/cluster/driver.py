"""Drivers in their own processes, so that tests can stop and kill them.

No driver outlives the test that started it.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from hosts import END_WITH_PARENT, wait

_started: list["Driver"] = []


class Driver:
    """A recordmill command that runs in its own process.

    Args:
        before: Python code that runs before the command.
    """

    def __init__(self, *arguments: str | Path, cwd: Path | None = None, before: str = "") -> None:
        command = [sys.executable, "-m", "recordmill"]
        if before:
            command[1:] = [
                "-c",
                f"{before}\nimport sys\nfrom recordmill.__main__ import main\nsys.exit(main())",
            ]
        # `end_all` closes this file. A pipe would have to be emptied.
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        tied = END_WITH_PARENT if shutil.which(END_WITH_PARENT[0]) else []
        self.process = subprocess.Popen(
            [*tied, *command, *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            cwd=cwd,
        )
        _started.append(self)

    def close(self) -> None:
        """Kills the driver, unless it has ended."""
        self.process.kill()
        self.process.wait()
        self._stderr.close()

    def read_stderr(self) -> str:
        """Returns the text on stderr until now."""
        self._stderr.seek(0)
        return self._stderr.read()

    def wait_for(self, until: Callable[[], bool], seconds: float = 180, every: float = 0.2) -> None:
        """Waits for a condition. Fails with the text on stderr if the driver ends before."""

        def check() -> bool:
            assert self.process.poll() is None, self.read_stderr()
            return until()

        wait(check, seconds, "the driver's job", every)

    def stop(self, signum: int) -> tuple[int, str]:
        """Sends a signal. Returns (exit code, stderr) after the driver has ended."""
        self.process.send_signal(signum)
        return self.end()

    def end(self, seconds: float = 400) -> tuple[int, str]:
        """Waits for the end of the driver. Returns (exit code, stderr)."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"no end within {seconds:.0f} s: {self.read_stderr()}") from None
        return code, self.read_stderr()


def end_all() -> None:
    """Kills the drivers that a failed test left."""
    while _started:
        _started.pop().close()


def run(*arguments: str | Path, cwd: Path | None = None) -> None:
    """Runs a driver, which must succeed."""
    code, err = Driver(*arguments, cwd=cwd).end()
    assert code == 0, err


def recordmill(*arguments: str | Path) -> tuple[str, str]:
    """Runs a short command. Returns (stdout, stderr)."""
    process = subprocess.run(
        [sys.executable, "-m", "recordmill", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return process.stdout, process.stderr
