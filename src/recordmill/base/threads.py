"""The ways to use threads: `thread_map` keeps every core busy on work that releases the GIL, with results in order and
bounded; `run_both` does two things at once; `delay_signals` lets what is within end; `shared_context` sets something
for the process while anybody needs it; `close_at_exit` ends what a script leaves open; a `MemoryBudget` is memory that
threads share; a `ForkSafeLock` is free in a forked process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any, ParamSpec, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Params = ParamSpec("_Params")

_open_generators: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_exit(
    function: Callable[_Params, Iterator[_Result]],
) -> Callable[_Params, Iterator[_Result]]:
    """A decorator of generator functions: what is still open when the process ends is closed while Python still runs.
    Later, when modules are taken down, nothing that a `finally` calls would be there any more.
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
        with contextlib.suppress(ValueError):  # a thread of somebody's is at work in it
            generator.close()


def run_both(first: Callable[[], _Item], second: Callable[[], _Result]) -> tuple[_Item, _Result]:
    """Returns the results of two calls that wait, each on a thread; the first one's error is raised first."""
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
    """Yields work(item) for each item, in the items' order, at most `threads` results ahead of the consumer.

    The first error is raised where its result would stand; what has not begun is then not begun, and what runs is
    waited for.

    Args:
        work: the function that the threads call.
        items: its arguments.
        threads: how many threads call it.
        on_error: called before running work is waited for, where that takes so long that it should be told to end.
        item_bytes: bytes that an item holds from its begin until the consumer asks for the result after its own.
        max_bytes: bytes that all items may hold together; one that alone holds more goes alone.
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
            while pending_bytes and sum(pending_bytes) + new_bytes > max_bytes:
                yield pending.popleft().result()
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


_END: Any = object()


@close_at_exit
def prefetch_one(items: Iterator[_Item]) -> Iterator[_Item]:
    """Yields the same items, the next of which another thread makes while the consumer is at work on one.

    An error is raised where its item would stand. Where the consumer stops early, the item under way is waited for.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="recordmill") as pool:
        next_item = pool.submit(next, items, _END)
        while (item := next_item.result()) is not _END:
            next_item = pool.submit(next, items, _END)
            yield item
            del item  # or it would be held while the next is waited for


def shared_context(
    function: Callable[[], Iterator[None]],
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context manager of a generator, as `contextlib.contextmanager` makes it, but entered once for all who are in it
    at the same time, in any thread, and left with the last of them: for what is set for the whole process, which two
    who put it back in turn would leave changed.
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
    """Delays a first signal that stops the process until the context has ended, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {
        number: handler for number in _STOP_SIGNALS if callable(handler := signal.getsignal(number))
    }
    delayed_signals: list[tuple[int, FrameType | None]] = []

    def record_signal(number: int, frame: FrameType | None) -> None:
        delayed_signals.append((number, frame))
        if len(delayed_signals) > 1:
            handlers[number](number, frame)

    try:
        for number in handlers:
            signal.signal(number, record_signal)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number, frame in delayed_signals:
        handlers[number](number, frame)


class ForkSafeLock:
    """Lock for the whole life of the process, which its holder may take again.

    In a forked process nobody holds it: the thread that did is not there, and would never give it back.
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
    """Bytes of memory to be shared. A reservation that alone exceeds them waits until nothing else is reserved, and
    goes alone; one of up to small_bytes is not counted.
    """

    def __init__(self, total_bytes: int, small_bytes: int = 0) -> None:
        self._small_bytes = small_bytes
        self._total_bytes = self._free_bytes = max(total_bytes, 1)
        self._freed = threading.Condition()

    @contextlib.contextmanager
    def reserve(self, size_bytes: int) -> Iterator[None]:
        """Reserves so many bytes while the context lasts."""
        if size_bytes <= self._small_bytes:
            yield
            return
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
