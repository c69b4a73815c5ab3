"""A `Sample` of TFRecord files, for whoever wants to know what they hold without reading all of them:
which records of which files.

The records of a sample are the first ones of each file, as many of each, since what differs mostly differs between
files, and since reaching them costs nothing else: a compressed file is not read to its end for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.shards.access import FileAccess
from recordmill.shards.catalog import ShardFile
from recordmill.shards.cutting import cut
from recordmill.shards.loading.batches import Load, loads
from recordmill.shards.pieces import Piece

_TEXT = re.compile(r"(\d+) ?(files?)?")


@dataclass(frozen=True)
class Sample:
    """Sample. size: records of all files, or with whole_files so many files, evenly spaced."""

    size: int
    whole_files: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UsageError(f"{option('infer_from', self.size)}: 1 or more")

    @classmethod
    def parse(cls, text: str | int) -> Sample:
        """`1000` (records) or `20files`.

        >>> Sample.parse("20files")
        Sample(size=20, whole_files=True)

        Raises:
            UsageError: anything else.
        """
        match = _TEXT.fullmatch(str(text).strip())
        if match is None:
            raise UsageError(
                f"{option('infer_from', text)}: a number of records, or of whole files as in 20files"
            )
        return cls(int(match[1]), match[2] is not None)

    def choose_files(self, files: int) -> list[tuple[int, int | None]]:
        """(ordinal, how many of its first records or None for all) of the files that are looked at, in order.

        >>> Sample(5).choose_files(3), Sample(2).choose_files(5), Sample(2, True).choose_files(5)
        ([(0, 2), (1, 2), (2, 1)], [(0, 1), (2, 1)], [(0, None), (2, None)])
        """
        count = min(self.size, files)
        ordinals = [i * files // count for i in range(count)] if count else []
        if self.whole_files:
            return [(ordinal, None) for ordinal in ordinals]
        return [
            (ordinal, self.size // count + (i < self.size % count))
            for i, ordinal in enumerate(ordinals)
        ]

    def describe(self, files: int) -> str:
        """Returns in words what was looked at."""
        count = min(self.size, files)
        if self.whole_files:
            return f"{count:,} of {files:,} files, evenly spaced"
        return (
            "the first records of "
            f"{'each of ' if count == files > 1 else ''}{count:,}{'' if count == files else f' of {files:,}'} "
            f"file{'s' * (files != 1)}"
        )


def sample_loads(
    files: Sequence[ShardFile], sample: Sample, *, lenient: bool = False
) -> Iterator[Load]:
    """The work that reads the sample, in order; lenient: a damaged file gives what stands before the damage.

    Raises:
        DataError: a file is damaged, unless lenient.
    """
    for ordinal, records in sample.choose_files(len(files)):
        if records is None:
            yield from loads(files, cut(files[ordinal], ordinal, lenient=lenient), lenient=lenient)
            continue
        try:
            yield from _first(FileAccess(files[ordinal], ordinal), ordinal, records)
        except DataError:
            if not lenient:
                raise


def _first(access: FileAccess, ordinal: int, records: int) -> Iterator[Load]:
    """The first records of a file, read no further than these need."""
    if access.file.info is not None:
        yield from (
            Load(access.file, piece) for piece in access.pieces(0, min(records, access.records))
        )
    elif access.file.stat.size_bytes:
        yield from (
            Load(access.file, Piece(ordinal, 0, None, 0, None), block)
            for block in access.blocks(0, records)
        )
