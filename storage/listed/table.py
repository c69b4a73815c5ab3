"""A sequence whose items are made when they are asked for: by themselves, or some neighbours together."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, overload

Item = TypeVar("Item")
_BLOCK, _KEPT = 256, 8  # items that are made together, and how many such blocks stay


class Table(Sequence[Item]):
    """What tables have in common: slices, and comparison with any sequence of such items."""

    def _item(self, at: int) -> Item:
        raise NotImplementedError

    def some(self, places: Sequence[int]) -> Sequence[Item]:
        """The items at these places."""
        return [self._item(at) for at in places]

    @overload
    def __getitem__(self, at: int) -> Item: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Item, ...]: ...

    def __getitem__(self, at: int | slice) -> Item | tuple[Item, ...]:
        if isinstance(at, slice):
            return tuple(self.some(range(*at.indices(len(self)))))
        number = at + len(self) if at < 0 else at
        if not 0 <= number < len(self):
            raise IndexError(f"{at}: there are {len(self)}")
        return self._item(number)

    def __iter__(self) -> Iterator[Item]:
        return map(self._item, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash((type(self), len(self)))


class BlockTable(Table[Item]):
    """A table whose `some` makes many items in little more time than one: neighbours of one that was asked for stay."""

    def _item(self, at: int) -> Item:
        block = at // _BLOCK
        lock, kept = self._kept
        with lock:
            items = kept.get(block)
        if items is None:
            items = self.some(range(block * _BLOCK, min((block + 1) * _BLOCK, len(self))))
            with lock:
                kept[block] = items
                if len(kept) > _KEPT:
                    kept.popitem(last=False)
        return items[at - block * _BLOCK]

    @property
    def _kept(self) -> tuple[threading.Lock, OrderedDict[int, Sequence[Item]]]:
        found: tuple[threading.Lock, OrderedDict[int, Sequence[Item]]] = self.__dict__.setdefault(
            "_blocks", (threading.Lock(), OrderedDict())
        )
        return found

    def some(self, places: Sequence[int]) -> Sequence[Item]:
        """The items at these places."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_blocks"}
