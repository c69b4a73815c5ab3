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
_Given = ParamSpec("_Given")

_open: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_exit(
    function: Callable[_Given, Iterator[_Result]],
) -> Callable[_Given, Iterator[_Result]]:
    """A decorator of generator functions: what is still open when the process ends is closed while Python still runs.
    Later, when modules are taken down, nothing that a `finally` calls would be there any more.
    """

    @functools.wraps(function)
    def opened(*args: _Given.args, **options: _Given.kwargs) -> Iterator[_Result]:
        generator = function(*args, **options)
        _open.add(generator)
        return generator

    return opened


@atexit.register
def _close_all() -> None:
    for generator in list(_open):
        with contextlib.suppress(ValueError):  # a thread of somebody's is at work in it
            generator.close()


def run_both(one: Callable[[], _Item], other: Callable[[], _Result]) -> tuple[_Item, _Result]:
    """Returns the results of two calls that wait, each on a thread; the first one's error is raised first."""
    with ThreadPoolExecutor(1, thread_name_prefix="recordmill") as pool:
        later = pool.submit(other)
        return one(), later.result()


@close_at_exit
def thread_map(
    work: Callable[[_Item], _Result],
    items: Iterable[_Item],
    threads: int,
    stop: Callable[[], None] | None = None,
    *,
    weight: Callable[[_Item], int] = lambda item: 0,
    room: int = 0,
) -> Iterator[_Result]:
    """Yields work(item) for each item, in the items' order, at most `threads` results ahead of the consumer.

    The first error is raised where its result would stand; what has not begun is then not begun, and what runs is
    waited for.

    Args:
        work: the function that the threads call.
        items: its arguments.
        threads: how many threads call it.
        stop: called before running work is waited for, where that takes so long that it should be told to end.
        weight: bytes that an item holds from its begin until the consumer asks for the result after its own.
        room: bytes that all items may hold together; one that alone holds more goes alone.
    """
    if threads <= 1:
        yield from map(work, items)
        return
    pending: deque[Future[_Result]] = deque()
    weights: deque[int] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="recordmill")
    try:
        for item in items:
            more = weight(item)
            while weights and sum(weights) + more > room:
                yield pending.popleft().result()
                weights.popleft()
            pending.append(pool.submit(work, item))
            weights.append(more)
            if len(pending) >= 2 * threads:
                yield pending.popleft().result()
                weights.popleft()
        while pending:
            yield pending.popleft().result()
    except BaseException:
        if stop is not None:
            stop()
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
        coming = pool.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = pool.submit(next, items, _END)
            yield item
            del item  # or it would be held while the next is waited for


def shared_context(
    function: Callable[[], Iterator[None]],
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context manager of a generator, as `contextlib.contextmanager` makes it, but entered once for all who are in it
    at the same time, in any thread, and left with the last of them: for what is set for the whole process, which two
    who put it back in turn would leave changed.
    """
    context, lock, entered = (
        contextlib.contextmanager(function),
        threading.Lock(),
        contextlib.ExitStack(),
    )
    inside = 0

    @contextlib.contextmanager
    def shared() -> Iterator[None]:
        nonlocal inside
        with lock:
            if not inside:
                entered.enter_context(context())
            inside += 1
        try:
            yield
        finally:
            with lock:
                inside -= 1
                if not inside:
                    entered.close()

    return shared


_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def delay_signals() -> Iterator[None]:
    """Delays a first signal that stops the process until the context has ended, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {
        number: handler for number in _STOPS if callable(handler := signal.getsignal(number))
    }
    came: list[tuple[int, FrameType | None]] = []

    def keep(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))
        if len(came) > 1:
            handlers[number](number, frame)

    try:
        for number in handlers:
            signal.signal(number, keep)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number, frame in came:
        handlers[number](number, frame)


class ForkSafeLock:
    """Lock for the whole life of the process, which its holder may take again.

    In a forked process nobody holds it: the thread that did is not there, and would never give it back.
    """

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
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
        self._small = small_bytes
        self._total = self._free = max(total_bytes, 1)
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def reserve(self, size_bytes: int) -> Iterator[None]:
        """Reserves so many bytes while the context lasts."""
        if size_bytes <= self._small:
            yield
            return
        taken = min(size_bytes, self._total)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= taken)
            self._free -= taken
        try:
            yield
        finally:
            with self._changed:
                self._free += taken
                self._changed.notify_all()
