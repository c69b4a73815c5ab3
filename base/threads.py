"""The ways to use threads: `thread_map` keeps every core busy on work that releases the GIL,
with results in order and bounded; `both` does two things at once.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def both(one: Callable[[], Item], other: Callable[[], Result]) -> tuple[Item, Result]:
    """What two calls give that wait, each on a thread; the first one's error is raised before the other's."""
    with ThreadPoolExecutor(1, thread_name_prefix="recordmill") as pool:
        later = pool.submit(other)
        return one(), later.result()


def thread_map(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    stop: Callable[[], None] | None = None,
    *,
    weight: Callable[[Item], int] = lambda item: 0,
    room: int = 0,
) -> Iterator[Result]:
    """work(item) for each item, in the items' order, on that many threads,
    at most threads results ahead of the consumer.

    The first error is raised where its result would stand; what has not begun is then not begun, what runs is waited
    for. stop: called before that, where work takes so long that it should be told. weight, room: what an item holds
    from its begin until the consumer asks for the result behind its own, and what all of them may hold together; one
    that alone holds more goes alone.
    """
    if threads <= 1:
        yield from map(work, items)
        return
    pending: deque[Future[Result]] = deque()
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


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, the next of which is made by another thread while the consumer is at work on one.

    An error is raised where its item would stand. Where the consumer stops early, the item under way is waited for.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="recordmill") as pool:
        coming = pool.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = pool.submit(next, items, _END)
            yield item
            del item  # or it would be held while the next is waited for
