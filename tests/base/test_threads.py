"""`thread_map` keeps results and errors in order, with bounded work in progress.

Signals wait for the end of critical steps.
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
ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules["__main__"]))  # keeps the module until the end, as TensorFlow does
"""


def test_script_that_leaves_iterators_open_exits_without_output() -> None:
    process = run_python("-c", LEFT_OPEN)
    assert (process.stdout, process.stderr) == ("", "")


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("max_bytes", [1, 10, 1000])
def test_thread_map_holds_no_more_bytes_in_progress_than_max_bytes(
    threads: int, max_bytes: int
) -> None:
    weights = [3, 9, 1, 1, 1, 12, 4, 4, 2, 30, 1, 1, 10, 5] * 5
    lock = threading.Lock()
    bytes_in_progress, max_in_progress, violations = 0, 0, []

    def work(item: tuple[int, int]) -> tuple[int, int]:
        nonlocal bytes_in_progress, max_in_progress
        with lock:
            bytes_in_progress += item[1]
            max_in_progress = max(max_in_progress, bytes_in_progress)
            if bytes_in_progress > max_bytes and bytes_in_progress != item[1]:
                violations.append(item)
        return item

    def results() -> Iterator[tuple[int, int]]:
        nonlocal bytes_in_progress
        for item in thread_map(
            work, enumerate(weights), threads, item_bytes=lambda item: item[1], max_bytes=max_bytes
        ):
            yield item
            with lock:
                bytes_in_progress -= item[1]

    assert list(results()) == list(enumerate(weights))
    assert not violations
    assert max_in_progress <= max(max_bytes, 30)
    assert bytes_in_progress == 0


def test_thread_map_raises_an_error_after_the_results_before_it() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError("three")
        return item

    results = thread_map(work, range(10), 3, item_bytes=lambda _: 5, max_bytes=11)
    assert [next(results), next(results), next(results)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)


def test_prefetch_one_makes_the_next_item_while_one_is_used() -> None:
    item_threads, is_prefetched, close_calls = [], threading.Event(), []

    def items() -> Iterator[int]:
        try:
            for item in range(4):
                item_threads.append(threading.current_thread())
                if item == 1:
                    is_prefetched.set()
                yield item
            raise ValueError("four")
        finally:
            close_calls.append(True)

    results = prefetch_one(items())
    assert next(results) == 0
    assert is_prefetched.wait(10)  # item 1 is made before it is requested
    assert [next(results), next(results), next(results)] == [1, 2, 3]
    with pytest.raises(ValueError, match="four"):
        next(results)
    assert close_calls
    assert len({*item_threads}) == 1
    assert item_threads[0] is not threading.current_thread()
    assert not item_threads[0].is_alive()


def test_prefetch_one_leaves_no_thread_after_it_is_closed() -> None:
    item_threads = []

    def items() -> Iterator[int]:
        while True:
            item_threads.append(threading.current_thread())
            yield len(item_threads)

    results = prefetch_one(items())
    assert next(results) == 1
    results.close()  # type: ignore[attr-defined]
    assert not item_threads[0].is_alive()
    assert len(item_threads) <= 2


def test_delay_signals_delivers_the_first_signal_at_the_end_and_the_second_at_once() -> None:
    handler, completed = signal.getsignal(signal.SIGINT), []

    def send_signals(times: int) -> None:
        with delay_signals():
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
            completed.append(times)

    for times in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            send_signals(times)
    assert completed == [1]
    assert signal.getsignal(signal.SIGINT) is handler


def interrupt_work(work: Callable[[], object], progress: Progress) -> None:
    """Runs `work`, and interrupts it at its start as Ctrl-C does."""
    pid = os.getpid()

    def interrupt_and_work() -> None:
        os.kill(pid, signal.SIGINT)
        work()

    with pytest.raises(KeyboardInterrupt):
        run_stoppable(interrupt_and_work, progress)


def test_stop_does_not_wait_for_a_blocked_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_MAX_STOP_WAIT_SEC", 0.3)
    may_continue, has_ended, errors = threading.Event(), threading.Event(), []

    def hold() -> None:
        may_continue.wait(60)
        try:
            progress.begin_commit()
        except BaseException as error:
            errors.append(error)
        has_ended.set()

    progress = Progress()
    interrupt_work(hold, progress)
    assert not has_ended.is_set()
    may_continue.set()
    assert has_ended.wait(60)
    assert [type(error) for error in errors] == [RunCancelled]
    assert not progress.is_committing


def test_stop_waits_for_a_commit_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_MAX_STOP_WAIT_SEC", 0.1)
    has_ended, progress = threading.Event(), Progress()

    def commit() -> None:
        time.sleep(1)
        has_ended.set()

    progress.begin_commit()
    interrupt_work(commit, progress)
    assert has_ended.is_set()


def test_error_of_a_thread_is_raised_instead_of_its_copy() -> None:
    progress, cause = Progress(), ValueError("the cause")

    def work() -> None:
        progress.fail(cause)
        # Beam's runners raise their own error with the text of the cause.
        raise RuntimeError("the cause")

    with pytest.raises(ValueError, match="the cause") as raised_error:
        run_stoppable(work, progress)
    assert raised_error.value is cause
