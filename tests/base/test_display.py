"""Progress is displayed with the remaining time, within the width of the terminal."""

import os
import pty
import re
import time

import pytest

from recordmill.base.display import Display, describe_progress
from recordmill.base.progress import Progress


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
        output = os.read(parent, 100_000).decode()
    os.close(parent)
    lines = [line for line in re.split(r"[\r\n]", output) if line.strip()]
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
