"""The frames of one load to converted records in two steps: `keep` decodes those of the sample for which the predicate
holds, `finish` converts them.

Between the two a `Kept` can be cut, so that what is converted at once stays small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import DataError, Reject
from recordmill.base.option_names import shortened
from recordmill.base.siphash import derive_key, hash_positions
from recordmill.exporting.input_digest import seen_in
from recordmill.exporting.plan import ReadPlan
from recordmill.records.columns.convert import convert
from recordmill.records.example.decode import decode_lenient
from recordmill.records.example.faults import BadRecord
from recordmill.records.tfrecord.frames import HEADER_BYTES, Int64s
from recordmill.schemas.arrow import to_arrow
from recordmill.shards.catalog import ShardFile
from recordmill.shards.loads.batches import Load, blocks_of
from recordmill.shards.loads.guess import selected
from recordmill.shards.loads.salvage import PARSE, Recovered, Salvaged, frames_of

CONVERT = "convert"  # the reason of a reject whose record is whole but holds a value that can't be converted
_SAMPLE = b"recordmill-sampl"


@dataclass(frozen=True)
class Slice:
    """Frames of one file, whose offsets in it are found.starts + first_offset. seen: as of `Salvaged`."""

    found: Recovered
    first_offset: int
    file: ShardFile
    seen: bytes = b""

    def place(self, row: int) -> str:
        """Where one of the frames stands."""
        return f"record {self.found.numbers[row]}, byte {int(self.found.starts[row]) + self.first_offset}"


@dataclass(frozen=True)
class Kept:
    """Records of a slice, decoded. batch: of the selected features; rows: [rows of the batch] the frame that each was;
    bad: those that could not be decoded, by frame. rejects, filtered: what the slice held besides.
    """

    part: Slice
    batch: pa.RecordBatch
    rows: Int64s
    bad: tuple[tuple[int, BadRecord], ...]
    rejects: tuple[Reject, ...]
    filtered: int

    def cut(self, stops: Int64s) -> Iterator[Kept]:
        """The same in parts, each up to a row of the batch, the last of which is its end; what stands before the first
        record goes with it.
        """
        start = low = 0
        part, rejects, filtered = self.part, self.rejects, self.filtered
        for stop in stops.tolist():
            high = int(self.rows[stop]) if stop < len(self.rows) else len(self.part.found.starts)
            bad = tuple(one for one in self.bad if low <= one[0] < high)
            yield Kept(part, self.batch.slice(start, stop - start), self.rows[start:stop], bad, rejects, filtered)
            start, low, part, rejects, filtered = stop, high, replace(part, seen=b""), (), 0


def frames_in(load: Load, lenient: bool) -> Slice:
    """The frames of a load, checked."""
    if lenient:
        return Slice(frames_of(load), load.piece.start if load.block is None else load.block.first_offset, load.file)
    (block,) = blocks_of(load)  # a piece with an end is one block
    frames = block.frames
    return Slice(
        Recovered(frames.data, frames.starts, frames.lengths, np.arange(len(frames)) + block.first_record),
        block.first_offset,
        load.file,
        seen_in(load.piece.file, [block]),
    )


def cut_rows(whole: Slice, rows: int) -> Iterator[Slice]:
    """Slices of at most so many records; the rejects, and what was seen, go with the first one."""
    found, rejects, seen = whole.found, whole.found.rejects, whole.seen
    for start in range(0, max(len(found.starts), 1), rows):
        part = slice(start, start + rows)
        yield replace(
            whole,
            found=Recovered(found.data, found.starts[part], found.lengths[part], found.numbers[part], rejects),
            seen=seen,
        )
        rejects, seen = (), b""


def keep_matching(plan: ReadPlan, part: Slice) -> Kept:
    """The records of a slice that belong to the sample and for which the predicate holds, decoded.

    Raises:
        DataError: the predicate can't be evaluated. Unconfirmed: the plan was guessed, and wrong.
    """
    found, options = part.found, plan.options
    if plan.guess is not None:
        decoded = plan.guess.decode(found.data, found.starts + HEADER_BYTES, found.lengths)
        return Kept(part, selected(decoded, plan.selected), np.arange(len(found.starts)), (), found.rejects, 0)
    at = (
        np.arange(len(found.starts))
        if options.sample is None
        else np.flatnonzero(sampled(part.file.identity, found.numbers, options.sample, options.seed))
    )
    batch, good, undecoded = decode_lenient(
        found.data, found.starts[at] + HEADER_BYTES, found.lengths[at], plan.decoded
    )
    good = at[good]
    filtered = len(found.starts) - len(at)
    if options.where is not None:
        try:
            mask = options.where.keep(batch)
        except DataError as error:
            raise DataError(error.reason, source=part.file.path) from None
        filtered += int(len(mask) - mask.sum())
        batch, good = batch.filter(pa.array(mask)), good[mask]
    if plan.selected is not plan.decoded:
        batch = pa.RecordBatch.from_arrays(batch.columns[: len(plan.selected)], schema=to_arrow(plan.selected))
    return Kept(
        part, batch, good, tuple((int(at[record.row]), record) for record in undecoded), found.rejects, filtered
    )


def convert_kept(plan: ReadPlan, kept: Kept) -> Salvaged:
    """The records converted.

    Raises:
        DataError: a record could not be decoded or converted, and the plan is not lenient.
    """
    converted = convert(plan.steps, kept.batch, plan.selected)
    bad = [(row, PARSE, record) for row, record in kept.bad] + [
        (int(kept.rows[record.row]), CONVERT, record) for record in converted.bad
    ]
    rejects = list(kept.rejects)
    for row, reason, record in sorted(bad, key=lambda item: item[0]):
        reject = f"feature {record.feature!r}: {record.reason}" if record.feature else record.reason
        message = shortened(reject, 290)
        if not plan.options.lenient:
            raise DataError(message, source=kept.part.file.path, place=kept.part.place(row))
        rejects.append(Reject(kept.part.file.name, kept.part.place(row), reason, message))
    batches = (converted.batch,) if converted.batch.num_rows else ()
    return Salvaged(batches, tuple(rejects), kept.filtered, seen=kept.part.seen)


def sampled(file: bytes, numbers: Int64s, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """[records] which of these records of the file belong to a random share: decided by seed, the file's identity and
    the record's number alone.
    """
    key0, key1 = (np.array([word], np.uint64) for word in derive_key(seed, _SAMPLE, file))
    keys = np.empty(len(numbers), np.uint64)
    hash_positions(key0, key1, np.zeros(len(numbers), np.uint32), 0, np.ascontiguousarray(numbers, np.int64), keys)
    return (keys >> np.uint64(11)) < np.uint64(round(share * 2**53))
