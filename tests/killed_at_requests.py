"""Commands killed for real while they talk to a store: forks of a process that has imported everything."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_NURSERY = """
import json, os, sys
import numpy, obstore, obstore.store, pyarrow.parquet
import recordmill.pipelines.build, recordmill.pipelines.read, recordmill.transforms.local_build
from recordmill.__main__ import main
from recordmill.shards import cutting
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.update(asked["environment"])
        os.dup2(os.open(asked["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        cutting.PIECE_BYTES = 5_000
        os._exit(main(asked["command"]))
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@dataclass
class Nursery:
    """A process that makes children. said: the file that gets what the last one says; child: its process id."""

    process: subprocess.Popen[str]
    said: Path
    child: int = 0

    def run(self, *command: str, **environment: str) -> int:
        """Run a command of recordmill; gives its exit status, or minus the signal that killed it."""
        asked = {"command": command, "environment": environment, "said": str(self.said)}
        print(json.dumps(asked), file=self._stdin, flush=True)
        self.child = int(self._line())
        return os.waitstatus_to_exitcode(int(self._line()))

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGKILL)

    @property
    def _stdin(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextlib.contextmanager
def nursery(said: Path) -> Iterator[Nursery]:
    """It uses the settings of stores that this process has now."""
    process = subprocess.Popen(
        [sys.executable, "-c", _NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield Nursery(process, said)
        assert process.stdin is not None
        process.stdin.close()
