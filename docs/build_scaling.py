"""What a build by many workers costs and where it ends, by formula: from how much data there is and what a worker has,
to numbers of runs, shards, elements, requests and bytes. docs/scaling.md is made of it, and tests hold it against the
functions that plan.

All is for a single split whose keys lie evenly, as those of shuffled records do. Sizes of Python's objects are upper
bounds, which a test measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.building.cuts import CUT_DTYPE, MOST_SHARDS, ShardOptions
from recordmill.building.plan import LEAST_ARENA_BYTES, arena_bytes
from recordmill.building.run_file import ENTRY_DTYPE, MARK_DTYPE, MARKED, KeyBuckets
from recordmill.building.workers.finish import DIGESTED
from recordmill.building.workers.plan_files import BLOCK_ITEMS, CACHED_BLOCKS
from recordmill.building.workers.runs import RUN_DTYPE
from recordmill.building.workers.survey import FAN_IN, MERGED_BYTES
from recordmill.shards.index import INDEX_DTYPE
from recordmill.shards.manifest import MOST_NAMED, PAGE_SHARDS
from recordmill.sources.common.contract import UNIT_BYTES
from recordmill.statistics.dataset_sketch import most_values
from recordmill.storage.external_sort import HELD_ROWS

READS_OF_A_SLICE = 4  # its two rows of the run's index, its frames, its entries
INDEX_ROW = 16  # bytes
MOST_BUCKETS = KeyBuckets.plan(1, 2**64, MOST_SHARDS).count

# bytes in memory at most, of Python's objects
LAYOUT_HEADERS = 1204  # of the four arrays, and the directory of their .npz
FILE_MEMORY, UNIT_MEMORY = 640, 368  # of what the driver makes of the listing, and cuts
LISTED_MEMORY = 5  # of a file, however many there are: whether it is chosen, and its split
RECORD_FILE_MEMORY = 2_500  # of a file of TFRecords, while the driver plans it
FAR_MEMORY = 2  # of a file, in every worker process: its split
ACCOUNT_MEMORY = 1_200  # of a group, in the step that surveys
PLACED_MEMORY = 1_300  # of a shard, in the last step
ENTRY_MEMORY = 1_100  # of a shard, in whoever reads a manifest or a page, meanwhile
PART_MEMORY = 900  # of the digests that one worker has found, in both
# bytes at most, in files
FILE_BYTES, UNIT_BYTES_KEPT = 100, 60  # of the lists beside the plan, of which workers read slices
GROUP_BYTES, BLOCK_BYTES, PLAN_BYTES = 8, 40, 20_000  # of the plan: a group, a block of a list, all else
SHARD_TEXT = 340  # of the manifest
PAGE_TEXT, ENTRY_TEXT = 300, 260  # of one that names pages; of a shard in these
INPUT_TEXT = 200  # of the list of inputs
# of statistics, bytes at most: of a feature, and of each value of it that is kept
SKETCH_MEMORY, SKETCH_TEXT_MEMORY, SKETCH_NUMBER_MEMORY = 5_000, 800, 120
SKETCH_FILE, SKETCH_TEXT_FILE = 2_000, 240


@dataclass(frozen=True)
class Build:
    """What is built, and with what: framed_bytes of records, record_bytes each, from input files of file_bytes; threads
    and memory_bytes are those of one worker process (`--threads`, `--memory`), asked_shard_bytes is `--shard-size`; 0:
    it is not given. features: of a record, all of them texts that differ in every record: the most for statistics.

    >>> build = Build(10**12)
    >>> build.runs, build.shards, build.merges
    (3726, 7451, 932)
    """

    framed_bytes: int
    record_bytes: int = 1_000
    file_bytes: int = 1 << 30
    threads: int = 1
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    asked_shard_bytes: int = 0
    features: int = 12

    @property
    def records(self) -> int:
        return self.framed_bytes // self.record_bytes

    @property
    def files(self) -> int:
        return max(-(-self.framed_bytes // self.file_bytes), 1)

    @property
    def units(self) -> int:
        """Small files share one, large ones are cut."""
        return max(-(-self.framed_bytes // UNIT_BYTES), 1)

    @property
    def is_refused(self) -> bool:
        """Whether `--shard-size` as it is asked for makes too many shards."""
        return bool(self.asked_shard_bytes) and self.framed_bytes > MOST_SHARDS * self.asked_shard_bytes

    @property
    def shard_bytes(self) -> int:
        """What is asked for, or the least that is not refused; where none is, what a build from so many bytes takes."""
        if not self.asked_shard_bytes:
            return ShardOptions(grows=True).of_inputs(self.framed_bytes).shard_bytes
        return max(self.asked_shard_bytes, -(-self.framed_bytes // MOST_SHARDS))

    @property
    def shards(self) -> int:
        return max(-(-self.framed_bytes // self.shard_bytes), 1)

    @cached_property
    def runs(self) -> int:
        """One a group of units: memory / (8 x threads) each, as many for each thread; never less than a unit."""
        arena = arena_bytes(self.memory_bytes, self.threads)
        least = min(arena, max(self.units * UNIT_BYTES // (2 * self.threads), LEAST_ARENA_BYTES))
        count = -(-self.units * UNIT_BYTES // least)
        return min(count + -count % self.threads, self.units)

    @property
    def buckets(self) -> int:
        """Ranges of keys that runs count by."""
        return KeyBuckets.plan(1, 2**64, self.shards).count

    @property
    def groups(self) -> int:
        """Of runs, each merged by ranges of the keys; 1: shards are made of the runs themselves."""
        return -(-self.runs // FAN_IN)

    @property
    def ranges(self) -> int:
        """Of keys, that a group is merged by."""
        wanted = max(1, min(self.shards, -(-self.framed_bytes // (self.groups * MERGED_BYTES))))
        return -(-self.shards // -(-self.shards // wanted))

    @property
    def merges(self) -> int:
        return self.groups * self.ranges if self.groups > 1 else 0

    @property
    def slices(self) -> int:
        """(run, shard) pairs: every shard has a part of every run, or of its range's run of every group, and where
        ranges meet a shard's bucket is in both.
        """
        return self.groups * (self.shards + self.ranges - 1) if self.merges else self.runs * self.shards

    @property
    def elements(self) -> int:
        """What passes through the engine: groups and their accounts, merges and theirs, each shard's number, files and
        names, pieces of work for digests; a kilobyte each at most, beside a histogram a bundle.
        """
        return 2 * self.runs + 2 * self.merges + 3 * self.shards + 2 * self.digest_groups

    @property
    def digest_groups(self) -> int:
        """Of files that were cut, and so read whole by nobody: their digests are made by reading them again."""
        return -(-self.files // DIGESTED) if self.file_bytes > UNIT_BYTES else 0

    @property
    def reads(self) -> int:
        """Ranges that are read of runs, by merges and shards."""
        of_merges = self.runs * self.ranges if self.merges else 0
        return READS_OF_A_SLICE * (of_merges + self.slices)

    @property
    def writes(self) -> int:
        """Objects that are put or copied: runs, merged runs, shards and their indexes under two names."""
        return self.runs + self.merges + 4 * self.shards

    @property
    def entry_bytes(self) -> int:
        """Beside the frames of runs: where each record belongs."""
        return self.records * int(ENTRY_DTYPE.itemsize)

    @property
    def run_index_bytes(self) -> int:
        """Of all runs, beside the frames and entries; those of merged runs cover their ranges only."""
        marks = MARK_DTYPE.itemsize * (-(-self.records // (MARKED * self.runs)))
        return (INDEX_ROW * (self.buckets + 1) + marks) * self.runs

    @property
    def over_read(self) -> float:
        """How many times what a shard holds is fetched for it: a bucket at its end is fetched whole by each shard that
        has a part of it.
        """
        return 1 + self.shards / self.buckets

    @property
    def bytes_read(self) -> int:
        """By all workers: inputs, for digests those that were cut once more, runs for merges, runs for shards."""
        inputs = self.framed_bytes * (2 if self.digest_groups else 1)
        run = self.framed_bytes + self.entry_bytes
        return inputs + (run if self.merges else 0) + round(run * self.over_read)

    @property
    def bytes_written(self) -> int:
        """By all workers: runs, merged runs, shards and indexes; copies within a store move nothing to a worker."""
        run = self.framed_bytes + self.entry_bytes + self.run_index_bytes
        merged = self.framed_bytes + self.entry_bytes if self.merges else 0
        return run + merged + self.framed_bytes + self.index_bytes

    @property
    def scratch_bytes(self) -> int:
        """In OUT beside the data set, at most, until the build has ended."""
        return self.bytes_written - self.framed_bytes - self.index_bytes

    @property
    def index_bytes(self) -> int:
        return self.records * int(INDEX_DTYPE.itemsize)

    @property
    def pages(self) -> int:
        """Files of the manifest's entries; 0: it has them itself."""
        return -(-self.shards // PAGE_SHARDS) if self.shards > MOST_NAMED else 0

    @property
    def manifest_bytes(self) -> int:
        return PAGE_TEXT * self.pages if self.pages else SHARD_TEXT * self.shards

    @property
    def pages_bytes(self) -> int:
        """Of all pages."""
        return ENTRY_TEXT * self.shards if self.pages else 0

    @property
    def manifest_memory(self) -> int:
        """Of whoever reads the manifest, meanwhile: two pages, of one that names such."""
        return ENTRY_MEMORY * (min(self.shards, 2 * PAGE_SHARDS) if self.pages else self.shards)

    @property
    def inputs_bytes(self) -> int:
        """The list of inputs beside the shards."""
        return INPUT_TEXT * self.files

    @property
    def lists_bytes(self) -> int:
        """The lists of files and units as they lie in OUT, of which workers read slices."""
        return FILE_BYTES * self.files + UNIT_BYTES_KEPT * self.units

    @property
    def plan_bytes(self) -> int:
        """The plan as it lies in OUT, which every worker process fetches once."""
        blocks = -(-self.files // BLOCK_ITEMS) + -(-self.units // BLOCK_ITEMS)
        return PLAN_BYTES + GROUP_BYTES * self.runs + BLOCK_BYTES * blocks

    @property
    def layout_bytes(self) -> int:
        """The list of runs and shards as it lies in OUT, which every worker process that makes shards fetches once."""
        return CUT_DTYPE.itemsize * self.shards + RUN_DTYPE.itemsize * self.listed + LAYOUT_HEADERS

    @property
    def listed(self) -> int:
        """Runs that shards are made of."""
        return self.merges or self.runs

    @property
    def driver_memory(self) -> int:
        """Of the driver, beside --memory: files, as many as are not on a disk, and units, as they are found and as
        lists.
        """
        files = (FILE_MEMORY + FILE_BYTES) * min(self.files, HELD_ROWS) + LISTED_MEMORY * self.files
        return files + (UNIT_MEMORY + UNIT_BYTES_KEPT) * self.units + self.plan_bytes

    @property
    def plan_memory(self) -> int:
        """Of every worker process, beside --memory: the plan, and the blocks of lists that it keeps."""
        files, units = min(self.files, CACHED_BLOCKS * BLOCK_ITEMS), min(self.units, CACHED_BLOCKS * BLOCK_ITEMS)
        return FAR_MEMORY * self.files + FILE_BYTES * files + UNIT_BYTES_KEPT * units + self.plan_bytes

    @property
    def layout_memory(self) -> int:
        """Of every worker process that makes shards, beside --memory and the plan."""
        return self.layout_bytes

    @property
    def sketch_memory(self) -> int:
        """Of statistics, in every thread that reads units: of all records that it has read, however many."""
        texts, numbers = (most_values(self.features, are_texts) for are_texts in (True, False))
        most = max(texts * SKETCH_TEXT_MEMORY, numbers * SKETCH_NUMBER_MEMORY)
        return self.features * (SKETCH_MEMORY + most)

    @property
    def sketch_bytes(self) -> int:
        """Of a run's statistics, as they lie in OUT until they are added up."""
        return self.features * (SKETCH_FILE + most_values(self.features, True) * SKETCH_TEXT_FILE)

    @property
    def statistics_bytes(self) -> int:
        """Of all runs' statistics in OUT, which the survey reads one by one."""
        return self.runs * self.sketch_bytes

    @property
    def statistics_memory(self) -> int:
        """Of the worker that adds up statistics: what it has, what comes, and the file that this is read of."""
        return 2 * self.sketch_memory + self.sketch_bytes

    @property
    def survey_memory(self) -> int:
        """Of the worker that adds up what was read, beside the plan: accounts, with the names of digests' files."""
        part = 0 if self.digest_groups else PART_MEMORY
        return (ACCOUNT_MEMORY + part + RUN_DTYPE.itemsize) * self.runs + self.layout_memory

    @property
    def last_memory(self) -> int:
        """Of the worker that commits, beside the plan: shards, names of digests' files, manifest and page as texts."""
        page = ENTRY_TEXT * PAGE_SHARDS if self.pages else 0
        digests = PART_MEMORY * (self.digest_groups or self.runs)
        return PLACED_MEMORY * self.shards + digests + 2 * (self.manifest_bytes + page)


def most_files_in_workers(memory_bytes: int = DEFAULT_MEMORY_BYTES) -> int:
    """How many input files, each cut into units, take so many bytes in the worker that commits.

    >>> most_files_in_workers() // 1_000_000
    126
    """
    return memory_bytes // (FAR_MEMORY + -(-PART_MEMORY // DIGESTED))


def most_planned_bytes(memory_bytes: int = DEFAULT_MEMORY_BYTES) -> int:
    """Framed bytes whose units take so many bytes in the driver, in files of any size."""
    return memory_bytes // (UNIT_MEMORY + UNIT_BYTES_KEPT) * UNIT_BYTES


def most_merged_bytes(memory_bytes: int = DEFAULT_MEMORY_BYTES, threads: int = 1) -> int:
    """Framed bytes beyond which shards are merged from more than FAN_IN runs, since there is one level between."""
    return FAN_IN * FAN_IN * arena_bytes(memory_bytes, threads)
