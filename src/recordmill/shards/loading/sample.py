"""Samples of TFRecord files, for inspecting files without reading all of them.

A sample contains the first records of each file, about the same number from each. Most differences
are between files. The first records are the fastest to read, because a compressed file is not read
to its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.shards.catalog import ShardFile
from recordmill.shards.cutting import cut
from recordmill.shards.pieces import FrameRead, iter_piece_reads
from recordmill.shards.tfrecord_file import open_tfrecord

_TEXT = re.compile(r"(\d+) ?(files?)?")


@dataclass(frozen=True)
class Sample:
    """Size of a sample.

    Attributes:
        size: Number of records of all files together, or number of files if `whole_files` is set.
        whole_files: True if complete files are read, evenly spaced.
    """

    size: int
    whole_files: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UsageError(
                "{infer_from}: must be 1 or more", infer_from=option("infer_from", self.size)
            )

    @classmethod
    def parse(cls, text: str | int) -> Sample:
        """Parses the option `infer_from`: a number of records, or of files as in "20files".

        >>> Sample.parse("20files")
        Sample(size=20, whole_files=True)

        Raises:
            UsageError: The text is something else.
        """
        match = _TEXT.fullmatch(str(text).strip())
        if match is None:
            raise UsageError(
                "{infer_from}: write a number of records, or of files as in 20files",
                infer_from=option("infer_from", text),
            )
        return cls(int(match[1]), match[2] is not None)

    def choose_files(self, files: int) -> list[tuple[int, int | None]]:
        """Chooses the files of the sample, in order.

        >>> Sample(5).choose_files(3), Sample(2).choose_files(5), Sample(2, True).choose_files(5)
        ([(0, 2), (1, 2), (2, 1)], [(0, 1), (2, 1)], [(0, None), (2, None)])

        Args:
            files: Number of files.

        Returns:
            (ordinal of the file, number of records from its start). None means all records.
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
        """Returns a description of the sample for messages.

        >>> Sample(5).describe(3)
        'the first records of each of 3 files'
        """
        count = min(self.size, files)
        if self.whole_files:
            return f"{count:,} of {files:,} files, evenly spaced"
        return (
            "the first records of "
            f"{'each of ' if count == files > 1 else ''}{count:,}{'' if count == files else f' of {files:,}'} "
            f"file{'s' * (files != 1)}"
        )


def iter_sample_reads(files: Sequence[ShardFile], sample: Sample) -> Iterator[FrameRead]:
    """Yields deferred reads of the records of a sample, in order."""
    for ordinal, records in sample.choose_files(len(files)):
        yield from (
            iter_piece_reads(files, cut(files[ordinal], ordinal, lenient=True))
            if records is None
            else open_tfrecord(files[ordinal], ordinal).iter_first_reads(records)
        )
