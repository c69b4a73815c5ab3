"""Slots that keep only the most recently used values.

Values can be lost at any time, so they must be easy to make again. An `LruLimit` limits how many of
its `LruSlot`s have a value at the same time. A slot also loses its value when its owner is freed.
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
    """Limit of the number of slots that have a value at the same time.

    A limit lives as long as the process. Threads can share it.

    Args:
        max_slots: The maximum number of slots with a value.
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
        """Returns whether one more slot can get a value within the limit."""
        return len(self._slots_by_use) < self.max_slots

    def values(self) -> list[Any]:
        """Returns the values of all slots that have one."""
        slots = [
            slot
            for slot_ref in list(self._slots_by_use.values())
            if (slot := slot_ref()) is not None
        ]
        return [slot.value for slot in slots if slot.value is not None]

    def use(self, slot: LruSlot[Any]) -> None:
        """Marks a slot as the most recently used one.

        If more slots have a value than the limit allows, the oldest ones are emptied.
        """
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
        """Returns the value of the slot, or a new one.

        A new value is made if the slot is empty or its value does not fit. Two threads that call
        this at the same time may both make a value.

        Args:
            make: Returns a new value.
            fits: Returns whether the present value can be used. By default every value can.
        """
        # A local variable, because another thread may clear the slot at any time.
        value = self.value
        if value is None or not fits(value):
            value = self.value = make()
        self._limit.use(self)
        return value
