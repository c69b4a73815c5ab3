"""That kernels are compiled is said once, when it takes more than a moment, and not where they are found compiled."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest
from kit import run_python

from recordmill.base.progress import Compiling, Progress
from recordmill.pipelines import display
from recordmill.pipelines.display import COMPILING, NO_KERNEL_CACHE, Display

READ = "from recordmill.__main__ import main; import sys; sys.exit(main(sys.argv[1:]))"


@pytest.mark.sweep
def test_a_first_read_says_it_and_a_second_does_not(tmp_path: Path) -> None:
    import recordmill

    recordmill.build({"x": [1, 2, 3], "y": ["a", "b", "c"]}, tmp_path / "set")
    said = []
    for out in ("first", "second"):
        done = run_python(
            "-c",
            READ,
            "read",
            tmp_path / "set",
            "--out",
            tmp_path / out,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")},
            timeout=600,
        )
        said.append(done.stderr.count(COMPILING))
    assert said == [1, 0]


def test_it_is_said_once_however_many_kernels_there_are(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    for kept, line in ((True, COMPILING), (False, NO_KERNEL_CACHE)):
        compiling, stream = Compiling(), io.StringIO()
        compiling.is_kept = kept
        monkeypatch.setattr(display, "compiling", compiling)
        monkeypatch.setattr(display, "_COMPILING_SEC", 0.0)
        monkeypatch.setattr(display, "_LOOK_SEC", 0.01)
        with Display(Progress(), stream=stream):
            compiling.begin()
            until = time.monotonic() + 30
            while line not in stream.getvalue() and time.monotonic() < until:
                time.sleep(0.01)
            compiling.end()
            compiling.begin()
            time.sleep(0.05)
        assert stream.getvalue().count(line) == 1


def test_what_calls_another_kernel_counts_as_one_time() -> None:
    compiling = Compiling()
    assert compiling.seconds == 0
    compiling.begin()
    since = compiling.since
    compiling.begin()
    compiling.end()
    assert compiling.since == since
    compiling.end()
    assert compiling.seconds == 0
