"""What a read by many workers costs, by formula, as `building.spread.scale` says it of a build: of shards of a data set
to files of a format that workers write whole. Tests hold it against the functions that plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from recordmill.building.spread.scale import BLOCK_BYTES, PLAN_BYTES
from recordmill.building.spread.tables import KEPT, ROWS
from recordmill.exporting.plan import FILE_BYTES
from recordmill.exporting.spread.jobs import JOBS_AT_ONCE
from recordmill.shards.index import INDEX_DTYPE
from recordmill.shards.pieces import PIECE_BYTES

# bytes in memory at most, of Python's objects
PIECE_MEMORY, JOB_MEMORY, SHARD_MEMORY = 330, 300, 2_000  # of the plan, which the driver holds
MADE_MEMORY = 800  # of a job, in the last step and in the driver
# bytes at most, in files
PIECE_KEPT, JOB_KEPT, SHARD_KEPT = 60, 40, 500  # of the plan
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
    def index_bytes(self) -> int:
        """What the driver reads while it plans: the index of every shard."""
        return self.framed_bytes // self.record_bytes * int(INDEX_DTYPE.itemsize)

    @property
    def shards(self) -> int:
        return max(-(-self.framed_bytes // self.shard_bytes), 1)

    @property
    def pieces(self) -> int:
        """What is decoded at once; none goes over a shard's end."""
        return self.shards * -(-self.shard_bytes // PIECE_BYTES)

    @property
    def jobs(self) -> int:
        """Output files, each of whole pieces."""
        piece = min(self.shard_bytes, PIECE_BYTES)
        return -(-self.framed_bytes // max(self.file_bytes // piece * piece, piece))

    @property
    def elements(self) -> int:
        """Through the engine: each job's number and what it made."""
        return 2 * self.jobs

    @property
    def plan_bytes(self) -> int:
        """The plan as it lies in OUT, which every worker process fetches once."""
        return PLAN_BYTES + BLOCK_BYTES * (-(-self.jobs // JOBS_AT_ONCE) + -(-self.shards // ROWS))

    @property
    def lists_bytes(self) -> int:
        """The lists of jobs, with their pieces, and of shards as they lie in OUT, of which workers read slices."""
        return PIECE_KEPT * self.pieces + JOB_KEPT * self.jobs + SHARD_KEPT * self.shards

    @property
    def driver_memory(self) -> int:
        """Of the driver, beside --memory."""
        return PIECE_MEMORY * self.pieces + JOB_MEMORY * self.jobs + SHARD_MEMORY * self.shards

    @property
    def plan_memory(self) -> int:
        """Of every worker process, beside --memory: the plan, and the blocks of lists that it keeps."""
        jobs, shards = min(self.jobs, KEPT * JOBS_AT_ONCE), min(self.shards, KEPT * ROWS)
        pieces = jobs * -(-self.pieces // self.jobs)
        return PIECE_MEMORY * pieces + JOB_MEMORY * jobs + SHARD_MEMORY * shards + self.plan_bytes

    @property
    def list_bytes(self) -> int:
        """What the last step leaves for the driver, which then asks for the size of each file."""
        return MADE_TEXT * self.jobs

    @property
    def last_memory(self) -> int:
        """Of the last step, and of the driver while it looks, beside the plan."""
        return (MADE_MEMORY + 2 * MADE_TEXT) * self.jobs


def most_read_bytes(memory_bytes: int) -> int:
    """Framed bytes whose pieces take so many bytes in the driver."""
    return memory_bytes // PIECE_MEMORY * PIECE_BYTES
