"""What a read by many workers costs, by formula, as `build_scaling` says it of a build: of shards of a data set
to files of a format that workers write whole. Tests hold it against the functions that plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from build_scaling import BLOCK_BYTES, PLAN_BYTES

from recordmill.building.workers.plan_files import BLOCK_ITEMS, CACHED_BLOCKS
from recordmill.exporting.plan import FILE_BYTES
from recordmill.exporting.worker_jobs import JOBS_AT_ONCE
from recordmill.shards.cutting import PROBED_RECORDS
from recordmill.shards.index import INDEX_DTYPE, PROBED_ENTRIES
from recordmill.shards.pieces import PIECE_BYTES

# bytes in memory at most
PIECE_HELD = 40  # of a piece, or of what a job takes of a shard, as columns
JOB_MEMORY, SHARD_MEMORY = 700, 2_000  # of the plan, as Python's objects
MADE_MEMORY = 900  # of a job, in the last step and in the driver
# bytes at most, in files
JOB_KEPT, SHARD_KEPT = 100, 500  # of the plan, a job without its pieces
MADE_TEXT = 350  # of the list of what was made


@dataclass(frozen=True)
class Read:
    """What is read: framed_bytes in shards of shard_bytes, to files of file_bytes (`--file-size`),
    records of record_bytes.

    >>> Read(10**12, 128 << 20).jobs
    1863
    """

    framed_bytes: int
    shard_bytes: int
    file_bytes: int = FILE_BYTES
    record_bytes: int = 1_000

    @property
    def shards(self) -> int:
        return max(-(-self.framed_bytes // self.shard_bytes), 1)

    @property
    def jobs(self) -> int:
        """Output files."""
        return -(-self.framed_bytes // self.file_bytes)

    @property
    def spans(self) -> int:
        """What jobs take of shards: where a job ends within a shard, the next one begins there."""
        return self.shards + self.jobs - 1

    @property
    def index_bytes(self) -> int:
        """What workers read of the shards' indices: all of a shard that one job takes whole, in a store less; else what
        lies around the pieces.
        """
        records = self.shard_bytes // self.record_bytes
        looked = -(-self.framed_bytes // self.spans) // PIECE_BYTES + 2
        entries = looked * PROBED_ENTRIES if records > looked * PROBED_RECORDS else records
        whole = max(self.shards - self.jobs + 1, 0)
        return (whole * records + (self.spans - whole) * entries) * int(INDEX_DTYPE.itemsize)

    @property
    def elements(self) -> int:
        """Through the engine: each job's number and what it made."""
        return 2 * self.jobs

    @property
    def plan_bytes(self) -> int:
        """The plan as it lies in OUT, which every worker process fetches once."""
        return PLAN_BYTES + BLOCK_BYTES * (-(-self.jobs // JOBS_AT_ONCE) + -(-self.shards // BLOCK_ITEMS))

    @property
    def lists_bytes(self) -> int:
        """The lists of jobs, with their spans, and of shards as they lie in OUT, of which workers read slices."""
        return PIECE_HELD * self.spans + JOB_KEPT * self.jobs + SHARD_KEPT * self.shards

    @property
    def driver_memory(self) -> int:
        """Of the driver, beside --memory: the shards, and as columns these and the spans."""
        return PIECE_HELD * (self.shards + self.spans) + 8 * self.jobs + SHARD_MEMORY * self.shards

    @property
    def plan_memory(self) -> int:
        """Of every worker process, beside --memory: the plan, and the blocks of lists that it keeps."""
        jobs, shards = min(self.jobs, CACHED_BLOCKS * JOBS_AT_ONCE), min(self.shards, CACHED_BLOCKS * BLOCK_ITEMS)
        spans = jobs * -(-self.spans // self.jobs)
        return PIECE_HELD * spans + JOB_MEMORY * jobs + SHARD_MEMORY * shards + self.plan_bytes

    @property
    def list_bytes(self) -> int:
        """What the last step leaves for the driver, which then asks for the size of each file."""
        return MADE_TEXT * self.jobs

    @property
    def last_memory(self) -> int:
        """Of the last step, and of the driver while it looks, beside the plan."""
        return (MADE_MEMORY + 2 * MADE_TEXT) * self.jobs


def most_read_bytes(memory_bytes: int) -> int:
    """Framed bytes of a data set whose jobs take so many bytes in the last step, or in the driver."""
    return memory_bytes // (MADE_MEMORY + 2 * MADE_TEXT) * FILE_BYTES


def most_piece_bytes(memory_bytes: int) -> int:
    """Framed bytes of files without an index whose pieces take so many bytes in the driver."""
    return memory_bytes // PIECE_HELD * PIECE_BYTES
