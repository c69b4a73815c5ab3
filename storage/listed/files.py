"""The files that a listing found: as objects, and as a list of any length on a disk, of which parts can be chosen and
which splits can be given without holding an object for each file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from recordmill.storage.listed.coded import Coded
from recordmill.storage.listed.rows import Row, StoredRows
from recordmill.storage.listed.table import Table
from recordmill.storage.stores.protocol import Stat

_AT_ONCE = 1 << 12  # files whose places are Python's numbers at once


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input file.

    root: the ordinal of the INPUT it was found under; name: its path relative to that root, with `/`; never absolute.
    path: where to open it. stat: what it was when it was listed. split: what its folders or its name say, or None.
    """

    root: int
    name: str
    path: str
    stat: Stat
    split: str | None = None


class ListedFiles(Table[InputFile]):
    """Files that are no objects until they are asked for."""

    @property
    def splits(self) -> Coded:
        """Of each file."""
        raise NotImplementedError


class StoredFiles(ListedFiles):
    """Files whose rows lie on a disk, in the order of a listing: (root, name, path, size in bytes, mtime_ns, etag).

    Held are 4 bytes a file where some are chosen, and one where they have splits.
    """

    def __init__(
        self,
        rows: StoredRows,
        chosen: npt.NDArray[np.uint32] | None = None,
        splits: Coded | None = None,
    ) -> None:
        self._rows, self._chosen, self._splits = rows, chosen, splits

    def choose(self, keep: npt.NDArray[np.bool_]) -> StoredFiles:
        """Those files where keep says so: [files]."""
        if keep.all():
            return self
        places = np.flatnonzero(keep).astype(np.uint32)
        chosen = places if self._chosen is None else self._chosen[places]
        return StoredFiles(self._rows, chosen, None if self._splits is None else self._splits.choose(keep))

    def with_splits(self, splits: Coded) -> StoredFiles:
        """The files with these splits, one per file."""
        return StoredFiles(self._rows, self._chosen, splits)

    @property
    def splits(self) -> Coded:
        return Coded(np.zeros(len(self), np.uint32), [None]) if self._splits is None else self._splits

    def __len__(self) -> int:
        return len(self._rows if self._chosen is None else self._chosen)

    def _item(self, at: int) -> InputFile:
        row = self._rows.row(at if self._chosen is None else int(self._chosen[at]))
        return _file(row, self._split(at))

    def __iter__(self) -> Iterator[InputFile]:
        for number, row in enumerate(self._some_rows()):
            yield _file(row, self._split(number))

    def _some_rows(self) -> Iterator[Row]:
        if self._chosen is None:
            yield from self._rows
            return
        parts = range(0, len(self._chosen), _AT_ONCE)
        places = chain.from_iterable(self._chosen[first : first + _AT_ONCE].tolist() for first in parts)
        wanted = next(places, None)
        for at, row in enumerate(self._rows):
            if at == wanted:
                yield row
                wanted = next(places, None)

    def _split(self, number: int) -> str | None:
        return None if self._splits is None else self._splits[number]


def row_of(file: InputFile) -> Row:
    """The row of a file without a split."""
    return file.root, file.name, file.path, file.stat.size_bytes, file.stat.mtime_ns, file.stat.etag


def _file(row: Row, split: str | None) -> InputFile:
    root, name, path, size, mtime, etag = row
    return InputFile(root, name, path, Stat(size, mtime, etag), split)


def chosen(files: Sequence[InputFile], keep: npt.NDArray[np.bool_]) -> Sequence[InputFile]:
    """Those of the files where keep says so: [files]."""
    if isinstance(files, StoredFiles):
        return files.choose(keep)
    return tuple(file for file, kept in zip(files, keep.tolist(), strict=True) if kept)


def settled(files: Sequence[InputFile]) -> Sequence[InputFile]:
    """The files as nobody can change them: as a tuple, unless they lie on a disk."""
    return files if isinstance(files, StoredFiles) else tuple(files)


def where(files: Sequence[InputFile], says: Callable[[InputFile], bool]) -> npt.NDArray[np.bool_]:
    """[files] of which files it holds."""
    return np.fromiter((says(file) for file in files), np.bool_, len(files))


def splits_of(files: Sequence[InputFile]) -> Coded:
    """The split of each file."""
    return files.splits if isinstance(files, ListedFiles) else Coded.of((file.split for file in files), len(files))
