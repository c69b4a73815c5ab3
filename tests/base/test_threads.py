"""`thread_map`: results in order, errors in their place, and no more under way than there is room for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from recordmill.base.threads import thread_map


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("room", [1, 10, 1000])
def test_what_is_under_way_weighs_no_more_than_the_room(threads: int, room: int) -> None:
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
        for item in thread_map(work, enumerate(weights), threads, weight=lambda item: item[1], room=room):
            yield item
            with lock:
                held -= item[1]

    assert list(results()) == list(enumerate(weights))
    assert not over
    assert most <= max(room, 30)
    assert held == 0


def test_an_error_stands_in_its_place() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError("three")
        return item

    found = thread_map(work, range(10), 3, weight=lambda _: 5, room=11)
    assert [next(found), next(found), next(found)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(found)
