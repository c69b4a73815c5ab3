"""`LruSlot`s: each holds a value while its owner lives and it is among the last ones that were used; the others are let
go of, and made again when they are asked for.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_Value = TypeVar("_Value")


class LruLimit:
    """Limit of how many slots hold a value at once. Lives as long as the process; safe to share between threads."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._used: OrderedDict[int, weakref.ref[LruSlot[Any]]] = OrderedDict()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self.begin_child)

    def begin_child(self) -> None:
        """Makes the limit usable in a forked process, to which the other one's holder never gives the lock back."""
        self._lock = threading.Lock()

    def has_room(self) -> bool:
        """Returns whether another slot can hold a value without one's being dropped."""
        return len(self._used) < self.most

    def values(self) -> list[Any]:
        """Returns the values that slots hold."""
        slots = [used for one in list(self._used.values()) if (used := one()) is not None]
        return [slot.value for slot in slots if slot.value is not None]

    def use(self, slot: LruSlot[Any]) -> None:
        """Marks a slot as used now."""
        key = id(slot)
        with self._lock:
            if key not in self._used:
                self._used[key] = weakref.ref(slot, lambda _: self._used.pop(key, None))
            self._used.move_to_end(key)
            while len(self._used) > self.most:
                if (old := self._used.popitem(last=False)[1]()) is not None:
                    old.value = None


class LruSlot(Generic[_Value]):
    """Slot for one value of a limit, None while it holds none."""

    __slots__ = ("__weakref__", "_limit", "value")

    def __init__(self, limit: LruLimit) -> None:
        self._limit = limit
        self.value: _Value | None = None

    def get(
        self, make: Callable[[], _Value], fits: Callable[[_Value], bool] = lambda value: True
    ) -> _Value:
        """The value, made if none is held that fits; by two threads at once, perhaps twice."""
        value = self.value
        if value is None or not fits(value):
            value = self.value = make()
        self._limit.use(self)
        return value
