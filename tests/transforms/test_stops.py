"""A pipeline that is stopped while code holds a thread that can't be interrupted: it is not waited for longer than some
seconds, nothing that it does afterwards counts, and a commit that has begun is waited for.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from recordmill.base.progress import Cancelled, Progress, progress_of
from recordmill.transforms import local_run
from recordmill.transforms.local_run import run_locally


def stopped_in(work: Callable[[], Any], progress: Progress) -> None:
    """Ctrl-C while the pipeline's thread does that."""
    pid = os.getpid()

    def construct(_: object) -> None:
        os.kill(pid, signal.SIGINT)
        work()

    with pytest.raises(KeyboardInterrupt):
        run_locally(construct, (), "held", progress)


def test_a_thread_that_is_held_is_not_waited_for_and_finds_later_that_it_is_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_run, "_PATIENCE_SEC", 0.3)
    goes, ended, found = threading.Event(), threading.Event(), []

    def hold() -> None:
        goes.wait(60)
        try:
            progress_of("held").begin_commit()
        except BaseException as error:
            found.append(error)
        ended.set()

    progress = Progress()
    stopped_in(hold, progress)
    assert not ended.is_set()
    goes.set()
    assert ended.wait(60)
    assert [type(error) for error in found] == [Cancelled]
    assert not progress.is_committing


def test_a_commit_that_has_begun_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_run, "_PATIENCE_SEC", 0.1)
    ended, progress = threading.Event(), Progress()

    def commit() -> None:
        time.sleep(1)
        ended.set()

    progress.begin_commit()
    stopped_in(commit, progress)
    assert ended.is_set()
