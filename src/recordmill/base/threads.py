"""Helpers for threads, signals, forks and shared memory limits.

* `thread_map` runs work on several threads, with ordered results and bounded memory.
* `run_both` runs two calls at once, and `prefetch_one` computes one item ahead.
* `run_stoppable` runs work that Ctrl-C can stop.
* `delay_signals` lets a block finish before a signal stops the process.
* `shared_context` shares a setting of the process between threads.
* `close_at_exit` closes generators that a script leaves open.
* `MemoryBudget` is memory that threads reserve, and `ForkSafeLock` is a lock that is free in a
  forked process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from recordmill.base.progress import Progress

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Params = ParamSpec("_Params")

# 7 seconds: the longest wait for code that can't be stopped, such as TensorFlow's executor or a
# function of the user that sleeps.
_MAX_STOP_WAIT_SEC = 7

_open_generators: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_exit(
    function: Callable[_Params, Iterator[_Result]],
) -> Callable[_Params, Iterator[_Result]]:
    """Decorates a generator function, so that open generators are closed when Python exits.

    The generators are closed before Python unloads modules. After that, a `finally` block could not
    call anything.
    """

    @functools.wraps(function)
    def open_generator(*args: _Params.args, **options: _Params.kwargs) -> Iterator[_Result]:
        generator = function(*args, **options)
        _open_generators.add(generator)
        return generator

    return open_generator


@atexit.register
def _close_all() -> None:
    for generator in list(_open_generators):
        with contextlib.suppress(ValueError):  # another thread is running the generator
            generator.close()


def run_both(first: Callable[[], _Item], second: Callable[[], _Result]) -> tuple[_Item, _Result]:
    """Returns the results (first, second) of two calls that run at the same time.

    If both fail, the error of the first one is raised.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="recordmill") as pool:
        second_result = pool.submit(second)
        return first(), second_result.result()


@close_at_exit
def thread_map(
    work: Callable[[_Item], _Result],
    items: Iterable[_Item],
    threads: int,
    on_error: Callable[[], None] | None = None,
    *,
    item_bytes: Callable[[_Item], int] = lambda item: 0,
    max_bytes: int = 0,
) -> Iterator[_Result]:
    """Yields `work(item)` for each item, in the order of the items.

    At most `2 * threads` results are pending at a time. With one thread, the work runs in the
    calling thread.

    An error is raised at the position of its result. Before that, work that has not started is
    cancelled, and the generator waits for running work.

    Args:
        work: The function that the threads call. It should release the GIL.
        items: The argument of each call.
        threads: The number of threads.
        on_error: Called before running work is waited for, so that it can make long work stop.
        item_bytes: Returns the memory of an item. The item holds it from its start until the
            consumer requests the result after its own.
        max_bytes: The memory that all items may hold together. A larger item runs alone.
    """
    if threads <= 1:
        yield from map(work, items)
        return
    pending: deque[Future[_Result]] = deque()
    pending_bytes: deque[int] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="recordmill")
    try:
        for item in items:
            new_bytes = item_bytes(item)
            # An item starts only if it fits into the memory, or if nothing else is pending.
            while pending_bytes and sum(pending_bytes) + new_bytes > max_bytes:
                yield pending.popleft().result()
                # The consumer has requested the next result, so it is done with this one.
                pending_bytes.popleft()
            pending.append(pool.submit(work, item))
            pending_bytes.append(new_bytes)
            if len(pending) >= 2 * threads:
                yield pending.popleft().result()
                pending_bytes.popleft()
        while pending:
            yield pending.popleft().result()
    except BaseException:
        if on_error is not None:
            on_error()
        raise
    finally:
        for future in pending:
            future.cancel()
        with contextlib.suppress(RuntimeError):
            pool.shutdown(wait=True)


# returned by `next` at the end of the items
_END: Any = object()


@close_at_exit
def prefetch_one(items: Iterator[_Item]) -> Iterator[_Item]:
    """Yields the items of an iterator, and computes one item ahead on another thread.

    An error is raised at the position of its item. If the consumer stops early, it waits until the
    item in progress is computed.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="recordmill") as pool:
        next_item = pool.submit(next, items, _END)
        while (item := next_item.result()) is not _END:
            next_item = pool.submit(next, items, _END)
            yield item
            del item  # otherwise it would stay in memory while the next one is awaited


def run_stoppable(work: Callable[[], object], progress: Progress) -> None:
    """Runs work on a thread of its own, and waits until it ends.

    After KeyboardInterrupt, this function waits at most _MAX_STOP_WAIT_SEC for the work, or until a
    commit that has begun is finished. Code that can't be interrupted may still run afterwards. The
    next time it reports to `progress`, it gets an error because of the cancellation.

    Args:
        work: The work.
        progress: The progress of the work. It is cancelled after KeyboardInterrupt, and may contain
            the error of a thread.

    Raises:
        BaseException: The error in `progress`, or else the one that the work has raised.
    """
    failure: list[BaseException] = []
    is_ended = threading.Event()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failure.append(error)
        finally:
            is_ended.set()

    # This thread stays free to receive Ctrl-C, which other threads would not. It waits for an event
    # and not for a join. Before CPython 3.13, a join that Ctrl-C interrupts treats the thread as
    # ended, although it still writes.
    try:
        threading.Thread(target=run, name="recordmill-run", daemon=True).start()
        while not is_ended.wait(0.2):
            pass
    except BaseException:
        progress.cancel()
        deadline = time.monotonic() + _MAX_STOP_WAIT_SEC
        while not is_ended.wait(0.2) and (progress.is_committing or time.monotonic() < deadline):
            pass
        raise
    if failure:
        raise failure[0] if progress.error is None else progress.error


def shared_context(
    function: Callable[[], Iterator[None]],
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Decorates a context manager, so that concurrent users enter it only once.

    The first user enters it and the last user leaves it, in any thread. Use it for a setting of the
    whole process. Otherwise two overlapping users would each restore the value that they have
    found, and could leave the setting changed.

    Args:
        function: A generator function without arguments, as for `contextlib.contextmanager`.
    """
    context, lock, stack = (
        contextlib.contextmanager(function),
        threading.Lock(),
        contextlib.ExitStack(),
    )
    users = 0

    @contextlib.contextmanager
    def shared() -> Iterator[None]:
        nonlocal users
        with lock:
            if not users:
                stack.enter_context(context())
            users += 1
        try:
            yield
        finally:
            with lock:
                users -= 1
                if not users:
                    stack.close()

    return shared


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def delay_signals() -> Iterator[None]:
    """Delays SIGINT, SIGTERM or SIGHUP until the end of the `with` block.

    A second signal is handled at once. If the block raises an error, the delayed signal is dropped.
    Outside of the main thread, nothing is delayed.
    """
    # Python allows signal handlers to be set in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {
        number: handler for number in _STOP_SIGNALS if callable(handler := signal.getsignal(number))
    }
    delayed_signals: list[tuple[int, FrameType | None]] = []

    def record_signal(number: int, frame: FrameType | None) -> None:
        delayed_signals.append((number, frame))
        # The second signal does not wait for the block.
        if len(delayed_signals) > 1:
            handlers[number](number, frame)

    try:
        for number in handlers:
            signal.signal(number, record_signal)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    # Only reached if the block raised no error.
    for number, frame in delayed_signals:
        handlers[number](number, frame)


class ForkSafeLock:
    """A reentrant lock that is free in a forked process.

    The thread that held it in the parent does not exist in the child and would never release it.
    The lock must live as long as the process.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class MemoryBudget:
    """A number of bytes of memory that threads share.

    Args:
        total_bytes: The size of the budget.
        small_bytes: Reservations of up to this size are granted at once and not counted.
    """

    def __init__(self, total_bytes: int, small_bytes: int = 0) -> None:
        self._small_bytes = small_bytes
        self._total_bytes = self._free_bytes = max(total_bytes, 1)
        self._freed = threading.Condition()

    @contextlib.contextmanager
    def reserve(self, size_bytes: int) -> Iterator[None]:
        """Waits until memory is available, and reserves it during the `with` block.

        A reservation above the total waits until nothing else is reserved.
        """
        if size_bytes <= self._small_bytes:
            yield
            return
        # A reservation above the total takes all of it, and therefore waits until it is alone.
        reserved_bytes = min(size_bytes, self._total_bytes)
        with self._freed:
            self._freed.wait_for(lambda: self._free_bytes >= reserved_bytes)
            self._free_bytes -= reserved_bytes
        try:
            yield
        finally:
            with self._freed:
                self._free_bytes += reserved_bytes
                self._freed.notify_all()
