"""`thread_map` keeps results and errors in order, with bounded work in progress; signals wait
for critical steps.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from kit.runs import run_python

from recordmill.base import threads
from recordmill.base.progress import Progress, RunCancelled
from recordmill.base.threads import delay_signals, prefetch_one, run_stoppable, thread_map

LEFT_OPEN = """
import ctypes, sys
from recordmill.base.threads import prefetch_one, thread_map
for left in (thread_map(abs, iter(range(100)), 2), prefetch_one(iter(range(9)))):
    next(left)
    setattr(sys.modules["__main__"], f"left_{left.__name__}", left)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules["__main__"]))  # it goes last, as where TensorFlow is imported
"""


def test_script_that_leaves_iterators_open_exits_without_output() -> None:
    ended = run_python("-c", LEFT_OPEN)
    assert (ended.stdout, ended.stderr) == ("", "")


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("room", [1, 10, 1000])
def test_thread_map_holds_no_more_bytes_in_progress_than_max_bytes(threads: int, room: int) -> None:
    weights = [3, 9, 1, 1, 1, 12, 4, 4, 2, 30, 1, 1, 10, 5] * 5
    lock = threading.Lock()
    held, most, over = 0, 0, []

    def work(item: tuple[int, int]) -> tuple[int, int]:
        nonlocal held, most
        with lock:
            held += item[1]
            most = max(most, held)
            if held > room and held != item[1]:
                over.append(item)
        return item

    def results() -> Iterator[tuple[int, int]]:
        nonlocal held
        for item in thread_map(
            work, enumerate(weights), threads, item_bytes=lambda item: item[1], max_bytes=room
        ):
            yield item
            with lock:
                held -= item[1]

    assert list(results()) == list(enumerate(weights))
    assert not over
    assert most <= max(room, 30)
    assert held == 0


def test_thread_map_raises_an_error_after_the_results_before_it() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError("three")
        return item

    found = thread_map(work, range(10), 3, item_bytes=lambda _: 5, max_bytes=11)
    assert [next(found), next(found), next(found)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(found)


def test_prefetch_one_makes_the_next_item_while_one_is_used() -> None:
    made, asked, closed = [], threading.Event(), []

    def items() -> Iterator[int]:
        try:
            for item in range(4):
                made.append(threading.current_thread())
                if item == 1:
                    asked.set()
                yield item
            raise ValueError("four")
        finally:
            closed.append(True)

    found = prefetch_one(items())
    assert next(found) == 0
    assert asked.wait(10)  # nobody asked for it
    assert [next(found), next(found), next(found)] == [1, 2, 3]
    with pytest.raises(ValueError, match="four"):
        next(found)
    assert closed
    assert len({*made}) == 1
    assert made[0] is not threading.current_thread()
    assert not made[0].is_alive()


def test_prefetch_one_leaves_no_thread_after_it_is_closed() -> None:
    made = []

    def items() -> Iterator[int]:
        while True:
            made.append(threading.current_thread())
            yield len(made)

    found = prefetch_one(items())
    assert next(found) == 1
    found.close()  # type: ignore[attr-defined]
    assert not made[0].is_alive()
    assert len(made) <= 2


def test_delay_signals_delivers_the_first_signal_at_the_end_and_the_second_at_once() -> None:
    before, done = signal.getsignal(signal.SIGINT), []

    def stopped(times: int) -> None:
        with delay_signals():
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
            done.append(times)

    for times in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            stopped(times)
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is before


def stopped_in(work: Callable[[], object], progress: Progress) -> None:
    """Runs work, and stops it as Ctrl-C does as soon as it has begun."""
    pid = os.getpid()

    def interrupted() -> None:
        os.kill(pid, signal.SIGINT)
        work()

    with pytest.raises(KeyboardInterrupt):
        run_stoppable(interrupted, progress)


def test_stop_does_not_wait_for_a_blocked_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_MAX_STOP_WAIT_SEC", 0.3)
    goes, ended, found = threading.Event(), threading.Event(), []

    def hold() -> None:
        goes.wait(60)
        try:
            progress.begin_commit()
        except BaseException as error:
            found.append(error)
        ended.set()

    progress = Progress()
    stopped_in(hold, progress)
    assert not ended.is_set()
    goes.set()
    assert ended.wait(60)
    assert [type(error) for error in found] == [RunCancelled]
    assert not progress.is_committing


def test_stop_waits_for_a_commit_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_MAX_STOP_WAIT_SEC", 0.1)
    ended, progress = threading.Event(), Progress()

    def commit() -> None:
        time.sleep(1)
        ended.set()

    progress.begin_commit()
    stopped_in(commit, progress)
    assert ended.is_set()


def test_error_of_a_thread_is_raised_instead_of_its_copy() -> None:
    """Beam's runners report the text of an error in one of their own."""
    progress, cause = Progress(), ValueError("the cause")

    def work() -> None:
        progress.fail(cause)
        raise RuntimeError("the cause")

    with pytest.raises(ValueError, match="the cause") as raised:
        run_stoppable(work, progress)
    assert raised.value is cause
