"""A sequence whose items are made when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

Item = TypeVar("Item")
_AT_ONCE = 256  # items that are made together


class Table(Sequence[Item]):
    """What tables have in common: slices, and comparison with any sequence of such items. Each gives `_item`, or `some`
    where many items take little more time than one.
    """

    def _item(self, at: int) -> Item:
        return self.some(range(at, at + 1))[0]

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
        for first in range(0, len(self), _AT_ONCE):
            yield from self.some(range(first, min(first + _AT_ONCE, len(self))))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash((type(self), len(self)))
