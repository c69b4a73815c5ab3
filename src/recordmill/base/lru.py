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

    def __init__(self, max_slots: int) -> None:
        self.max_slots = max_slots
        self._slots_by_use: OrderedDict[int, weakref.ref[LruSlot[Any]]] = OrderedDict()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self.reset_lock)

    def reset_lock(self) -> None:
        """Makes the limit usable in a forked process, to which the other one's holder never gives the lock back."""
        self._lock = threading.Lock()

    def has_room(self) -> bool:
        """Returns whether another slot can hold a value without one's being dropped."""
        return len(self._slots_by_use) < self.max_slots

    def values(self) -> list[Any]:
        """Returns the values that slots hold."""
        slots = [
            slot
            for slot_ref in list(self._slots_by_use.values())
            if (slot := slot_ref()) is not None
        ]
        return [slot.value for slot in slots if slot.value is not None]

    def use(self, slot: LruSlot[Any]) -> None:
        """Marks a slot as used now."""
        key = id(slot)
        with self._lock:
            if key not in self._slots_by_use:
                self._slots_by_use[key] = weakref.ref(
                    slot, lambda _: self._slots_by_use.pop(key, None)
                )
            self._slots_by_use.move_to_end(key)
            while len(self._slots_by_use) > self.max_slots:
                if (oldest := self._slots_by_use.popitem(last=False)[1]()) is not None:
                    oldest.value = None


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
