"""Progress is displayed with the time left, and a progress function receives it and may end the
run.
"""

import os
import pty
import re
import threading
import time
from functools import partial

import numpy as np
import pytest

import recordmill
from recordmill.base.display import Display, describe_progress
from recordmill.base.progress import Progress, RunCancelled


@pytest.mark.parametrize("columns", [80, 60, 30])
def test_progress_line_never_reaches_the_edge_of_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    parent, child = pty.openpty()
    progress = Progress()
    progress.begin("write", 1_234_567_890)
    progress.advance(123_456_789, rejects=98_765)
    with os.fdopen(child, "w") as terminal, Display(progress, stream=terminal):
        time.sleep(0.5)  # the line appears after 0.2 s
        shown = os.read(parent, 100_000).decode()
    os.close(parent)
    lines = [line for line in re.split(r"[\r\n]", shown) if line.strip()]
    assert lines[0].startswith("writing shards 123,456,789 of")
    assert max(map(len, lines)) < columns


def test_unfinished_work_shows_elapsed_or_remaining_time():
    progress = Progress()
    progress.begin("verify", 1000)
    progress.stage_started -= 5
    assert describe_progress(progress) == "verifying ... 5 s"
    progress.advance(records=990)
    assert "(99 %)" in describe_progress(progress)
    assert describe_progress(progress).endswith("1 s left")


def test_progress_function_receives_updates_and_its_exception_ends_the_run(tmp_path):
    out, built, read = tmp_path / "out", [], []
    recordmill.build({"x": np.arange(1000)}, out, progress=built.append)
    recordmill.read(out, tmp_path / "table", to="npy", progress=read.append)
    for phase, last in (("write", built[-1]), ("convert", read[-1])):
        assert (last.phase, last.done, last.total, last.unit) == (phase, 1000, 1000, "records")
        assert "1,000 of 1,000 (100 %)" in last.text
    for looks, phase in (
        (recordmill.verify, "verify"),
        (recordmill.inspect, "convert"),
        (partial(recordmill.stats, recount=True), "convert"),
        (recordmill.check, "convert"),
        (partial(recordmill.report, out=tmp_path / "report.html", overwrite=True), "convert"),
    ):
        seen = []
        looks(out, progress=seen.append)
        assert seen[-1].phase == phase
        with pytest.raises(recordmill.UsageError, match="progress is 5; give a function"):
            looks(out, progress=5)

    called = threading.Event()

    def stop(update):
        called.set()
        raise KeyError(update.phase)

    def rows():
        assert called.wait(60)
        yield {"x": 1}

    with pytest.raises(KeyError, match="plan"):
        recordmill.build(rows(), tmp_path / "stopped", progress=stop)
    assert not (tmp_path / "stopped").exists()


@pytest.mark.parametrize(
    ("ends", "raised"), [(None, KeyError), (RunCancelled("x"), KeyError), (OSError(), OSError)]
)
def test_error_of_a_run_takes_precedence_over_the_exception_of_the_progress_function(ends, raised):
    def stop(update):
        raise KeyError(update.phase)

    def run():
        progress = Progress(stop)
        with Display(progress, quiet=True):
            while progress.error is None:
                time.sleep(0.01)
            if ends is not None:
                raise ends

    with pytest.raises(raised):
        run()
