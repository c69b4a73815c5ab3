"""A cache of slots that drops the least recently used values.

The values must be easy to make again. An `LruLimit` bounds the number of its `LruSlot`s that hold a
value. A slot also loses its value when its owner is freed.
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
    """Limit of the number of slots that hold a value at the same time.

    It lives as long as the process, and threads can share it.

    Args:
        max_slots: The largest number of slots that hold a value.
    """

    def __init__(self, max_slots: int) -> None:
        self.max_slots = max_slots
        self._slots_by_use: OrderedDict[int, weakref.ref[LruSlot[Any]]] = OrderedDict()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self.reset_lock)

    def reset_lock(self) -> None:
        """Replaces the lock in a forked process.

        The thread that held the old lock does not exist there and would never release it.
        """
        self._lock = threading.Lock()

    def has_room(self) -> bool:
        """Returns whether another slot can hold a value without dropping one."""
        return len(self._slots_by_use) < self.max_slots

    def values(self) -> list[Any]:
        """Returns the values that the slots hold."""
        slots = [
            slot
            for slot_ref in list(self._slots_by_use.values())
            if (slot := slot_ref()) is not None
        ]
        return [slot.value for slot in slots if slot.value is not None]

    def use(self, slot: LruSlot[Any]) -> None:
        """Marks a slot as used, and drops the values above the limit."""
        key = id(slot)
        with self._lock:
            if key not in self._slots_by_use:
                # The callback frees the key, because a later object may get the same id.
                self._slots_by_use[key] = weakref.ref(
                    slot, lambda _: self._slots_by_use.pop(key, None)
                )
            self._slots_by_use.move_to_end(key)
            while len(self._slots_by_use) > self.max_slots:
                if (oldest := self._slots_by_use.popitem(last=False)[1]()) is not None:
                    oldest.value = None


class LruSlot(Generic[_Value]):
    """A slot for one value.

    Attributes:
        value: The value, or None while the slot is empty.
    """

    __slots__ = ("__weakref__", "_limit", "value")

    def __init__(self, limit: LruLimit) -> None:
        self._limit = limit
        self.value: _Value | None = None

    def get(
        self, make: Callable[[], _Value], fits: Callable[[_Value], bool] = lambda value: True
    ) -> _Value:
        """Returns the value of the slot, and makes one if needed.

        A value is needed if the slot is empty or if `fits` rejects its value. Two threads that call
        this at the same time may both make a value.
        """
        # A local variable, because another thread may clear the slot at any time.
        value = self.value
        if value is None or not fits(value):
            value = self.value = make()
        self._limit.use(self)
        return value
