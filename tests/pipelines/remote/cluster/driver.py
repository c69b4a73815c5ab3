"""A driver as a process of its own, to be stopped and killed. None outlives the test that started
it.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from hosts import ENDS_WITH_US, wait

_started: list["Driver"] = []


class Driver:
    """`recordmill` with these arguments, started as a shell would. before: Python that is run
    first.
    """

    def __init__(self, *arguments: str | Path, cwd: Path | None = None, before: str = "") -> None:
        command = [sys.executable, "-m", "recordmill"]
        if before:
            command[1:] = [
                "-c",
                f"{before}\nimport sys\nfrom recordmill.__main__ import main\nsys.exit(main())",
            ]
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed by `end_all`; a pipe would have to be emptied
        tied = ENDS_WITH_US if shutil.which(ENDS_WITH_US[0]) else []
        self.process = subprocess.Popen(
            [*tied, *command, *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            cwd=cwd,
        )
        _started.append(self)

    def close(self) -> None:
        """Kill it, unless it has ended."""
        self.process.kill()
        self.process.wait()
        self._stderr.close()

    def said(self) -> str:
        """Its stderr so far."""
        self._stderr.seek(0)
        return self._stderr.read()

    def wait_for(self, until: Callable[[], bool], seconds: float = 180, every: float = 0.2) -> None:
        """Until something is so; fails with what the driver said if it ends before."""

        def look() -> bool:
            assert self.process.poll() is None, self.said()
            return until()

        wait(look, seconds, "the driver's job", every)

    def stop(self, signum: int) -> tuple[int, str]:
        """Send a signal; gives exit code and stderr when it has ended."""
        self.process.send_signal(signum)
        return self.end()

    def end(self, seconds: float = 400) -> tuple[int, str]:
        """(exit code, stderr) of the driver when it has ended."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"no end within {seconds:.0f} s: {self.said()}") from None
        return code, self.said()


def end_all() -> None:
    """Kill the drivers that a test that failed has left."""
    while _started:
        _started.pop().close()


def run(*arguments: str | Path, cwd: Path | None = None) -> None:
    """A driver that must end well."""
    code, err = Driver(*arguments, cwd=cwd).end()
    assert code == 0, err


def recordmill(*arguments: str | Path) -> tuple[str, str]:
    """(stdout, stderr) of a short command."""
    done = subprocess.run(
        [sys.executable, "-m", "recordmill", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.stdout, done.stderr
