"""A long list of few different words: a byte an item, or two or four where there are more words than that can number,
where Python's own list takes 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.storage.listed.table import Table

Word = str | None
_AT_ONCE = 1 << 12  # items that are Python's objects at once


class Coded(Table[Word]):
    """numbers: [items] each one's place in words, all of which differ; as narrow as these allow."""

    def __init__(self, numbers: npt.NDArray[np.unsignedinteger[Any]], words: Sequence[Word]) -> None:
        self.numbers: npt.NDArray[np.unsignedinteger[Any]] = numbers.astype(
            np.min_scalar_type(max(len(words) - 1, 0)), copy=False
        )
        self.words = tuple(words)

    @classmethod
    def of(cls, items: Iterable[Word], count: int) -> Coded:
        """The same items in the same order, of which there are `count`."""
        words: dict[Word, int] = {}
        numbers = np.fromiter((words.setdefault(item, len(words)) for item in items), np.uint32, count)
        return cls(numbers, list(words))

    def choose(self, keep: npt.NDArray[np.bool_]) -> Coded:
        """Those where keep says so: [items]."""
        return Coded(self.numbers[keep], self.words)

    @property
    def used(self) -> list[Word]:
        """The different words, in the order in which they come first."""
        numbers, first = np.unique(self.numbers, return_index=True)
        return [self.words[number] for number in numbers[np.argsort(first)].tolist()]

    def __len__(self) -> int:
        return len(self.numbers)

    def _item(self, at: int) -> Word:
        return self.words[int(self.numbers[at])]

    def __iter__(self) -> Iterator[Word]:
        for first in range(0, len(self), _AT_ONCE):
            yield from (self.words[number] for number in self.numbers[first : first + _AT_ONCE].tolist())

    def __contains__(self, word: object) -> bool:
        return self.count(word) > 0

    def count(self, word: object) -> int:
        return int(np.count_nonzero(self.numbers == self.words.index(word))) if word in self.words else 0


def pick(items: Sequence[Word], keep: npt.NDArray[np.bool_]) -> Sequence[Word]:
    """Those items where keep says so, of as many."""
    if isinstance(items, Coded):
        return items.choose(keep)
    return tuple(item for item, kept in zip(items, keep.tolist(), strict=True) if kept)
