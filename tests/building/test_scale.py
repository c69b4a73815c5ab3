"""The formulas of docs/scaling.md: against the functions that plan, given lists as long as those of 100 TB; against a
build that is real and small; and the page against the formulas.
"""

from __future__ import annotations

import doctest
import gc
import importlib.util
import io
import json
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import build_scaling as scale
import numpy as np
import pytest
import read_scaling as reading
from build_scaling import Build
from read_scaling import Read
from spread_build import Steps

import recordmill
from recordmill.base.errors import UsageError
from recordmill.building import run_file
from recordmill.building.cuts import ShardOptions, cut_shards
from recordmill.building.plan import arena_bytes, group_units
from recordmill.building.run_file import Histogram, KeyBuckets
from recordmill.building.workers import runs as run_module
from recordmill.building.workers import survey as surveys
from recordmill.building.workers.input_digests import DigestPart, Digests
from recordmill.building.workers.plan_files import BLOCK_ITEMS
from recordmill.building.workers.runs import RUN_DTYPE, Account, gather, slices
from recordmill.building.workers.shards import FinalShard
from recordmill.building.workers.shared_files import Shared, SharedFolder
from recordmill.building.workers.survey import ShardLayout, plan_merges
from recordmill.exporting.job import OutputAccount
from recordmill.exporting.plan import Job, ReadOptions, plan_read, split_jobs
from recordmill.exporting.worker_jobs import AttemptFile, FinishedJob, ReadRun, begin_read
from recordmill.shards import manifest
from recordmill.shards.catalog import ShardFile
from recordmill.shards.manifest import FORMAT_VERSION, PAGED_VERSION, Manifest, Paged, Part, ShardInfo
from recordmill.shards.pieces import PIECE_BYTES, Piece, PieceTable, Span
from recordmill.shards.rejects import Rejected
from recordmill.sources.common.contract import UNIT_BYTES, PlanOptions, Unit
from recordmill.sources.common.tables import UnitTable, table_rows, unit_sizes
from recordmill.sources.tfrecord.source import TfrecordOptions, plan_tfrecord
from recordmill.storage import external_sort
from recordmill.storage import file_table as files_module
from recordmill.storage.file_table import FileTable, InputFile, coded
from recordmill.storage.files import put_bytes
from recordmill.storage.listing import Stat, list_inputs

PLACE = SharedFolder("s3://bucket/out", "0" * 12)
DOCS = Path(__file__).resolve().parents[2] / "docs"


def layout_of(build: Build, groups: int) -> ShardLayout:
    """The layout of a build of which nothing exists: one run a group, the keys even."""
    total = build.units * UNIT_BYTES
    buckets = KeyBuckets.plan(1, 2**64, total // build.shard_bytes + 1)
    histogram = Histogram.zero(1, buckets.count)
    edges = [build.framed_bytes * at // buckets.count for at in range(buckets.count + 1)]
    histogram.bytes[0] = np.diff(edges)
    histogram.records[0] = histogram.bytes[0] // build.record_bytes + 1
    cuts = cut_shards(histogram, ShardOptions(build.shard_bytes), ["train"])
    runs = np.zeros(groups, RUN_DTYPE)
    runs["name"] = [f"0123456789ab-run-{at:032x}".encode() for at in range(groups)]
    runs["bytes"], runs["records"] = build.framed_bytes // groups, build.records // groups
    runs["last"] = buckets.count
    return ShardLayout(cuts, runs, buckets.count)


@pytest.mark.parametrize(
    ("size", "threads"), [(10**11, 1), (10**12, 1), (10**12, 4), (10**13, 1), (10**13, 3), (10**14, 1)]
)
def test_what_is_planned_for_so_much_is_what_the_formulas_say(size: int, threads: int) -> None:
    build = Build(size, threads=threads)
    source: Any = SimpleNamespace(units=(Unit(0, 1, size_bytes=UNIT_BYTES),) * build.units)
    groups = group_units(source, arena_bytes(build.memory_bytes, threads), threads)
    assert len(groups) == build.runs
    layout = layout_of(build, len(groups))
    assert (len(layout.cuts), layout.buckets) == (build.shards, build.buckets)
    merges = list(plan_merges(layout))
    assert len(merges) == build.merges
    cuts = np.array(layout.cuts.table[["first", "last"]].tolist())
    fetched = np.subtract(cuts[:, 1], cuts[:, 0]).sum() / layout.buckets
    assert build.over_read == pytest.approx(fetched, rel=0.05)
    pairs = len(groups) * len(cuts)
    if merges:
        ranges = np.array(sorted({(merge.first, merge.last) for merge in merges}))
        assert len(merges) == len(ranges) * build.groups
        near = np.searchsorted(ranges[:, 0], cuts[:, 1]) - np.searchsorted(ranges[:, 1], cuts[:, 0], side="right")
        pairs = int(near.sum()) * build.groups
    assert build.slices == pytest.approx(pairs, rel=0.01)
    listed = replace(layout, runs=np.resize(layout.runs, build.listed))
    file = io.BytesIO()
    np.savez(file, **listed.to_arrays())  # type: ignore[arg-type]
    assert build.layout_bytes / 2 < len(file.getvalue()) <= build.layout_bytes + 1000
    whole = Histogram(np.array([[1]]), np.array([[size]]))
    assert len(cut_shards(whole, ShardOptions(grows=True).of_inputs(size), ["train"])) == build.shards
    asked = replace(build, asked_shard_bytes=128 << 20)
    if asked.is_refused:
        with pytest.raises(UsageError, match=f"give at least {asked.shard_bytes}"):
            cut_shards(whole, ShardOptions(128 << 20), ["train"])
    else:
        assert len(cut_shards(whole, ShardOptions(128 << 20), ["train"])) == asked.shards


def info(at: int) -> ShardInfo:
    return ShardInfo(f"train-{at:05d}-of-99999.tfrecord", 10**6 + at, 10**9 + at, 10**9 + at, digest(at), f"{at:016x}")


def digest(at: int) -> str:
    return f"blake3:{at:064x}"


def account(at: int) -> Account:
    run = np.array([(b"0123456789ab-run-%032x" % at, 10**5 + at, 10**8 + at, 0, 1 << 16)], RUN_DTYPE)
    return Account(at, run, 2**60 + at, 10**6 + at, Rejected(Counter()))


def part(at: int) -> DigestPart:
    return DigestPart(at, at + 100, Shared[Digests](PLACE, f"digests-{at:012x}.npz", f"{at:064x}", Digests))


def placed(at: int) -> FinalShard:
    one = info(at)
    return FinalShard(0, at, one, ((f"index/{one.name}", 10**7 + at), (one.name, one.bytes)))


def made(at: int) -> FinishedJob:
    file = AttemptFile(f"0123456789ab-train-{at:05d}-of-99999.parquet", 10**8 + at)
    return FinishedJob(
        at,
        file,
        None,
        OutputAccount("train", f"train-{at:05d}-of-99999.parquet", 10**6 + at, 10**6 + at, Rejected.zero()),
    )


def listed_file(at: int) -> InputFile:
    return InputFile(0, f"2024/{at:08d}.csv", f"/shared/inputs/of/2024/{at:08d}.csv", Stat(10**9 + at, 10**18))


def planned_unit(at: int) -> Unit:
    return Unit(at, at + 1, at << 25, at + 1 << 25, 10**6 + at, None, (1 << 25) - at)


OBJECTS: dict[str, tuple[Callable[[int], Any], int, int | None]] = {  # what makes one, bytes in memory, bytes in a file
    "file": (listed_file, scale.FILE_MEMORY, None),
    "unit": (planned_unit, scale.UNIT_MEMORY, None),
    "account": (account, scale.ACCOUNT_MEMORY + RUN_DTYPE.itemsize, None),
    "placed": (placed, scale.PLACED_MEMORY, None),
    "digests of a group": (part, scale.PART_MEMORY, None),
    "job": (
        lambda at: Job("train", at, 99999, PieceTable.of([Span(at, 0, 10**9 + at)])),
        reading.JOB_MEMORY + reading.PIECE_HELD,
        reading.JOB_KEPT + reading.PIECE_HELD,
    ),
    "shard to read": (
        lambda at: ShardFile(
            f"/shared/data/data-0123456789ab/{info(at).name}",
            f"data-0123456789ab/{info(at).name}",
            "train",
            "none",
            Stat(10**9 + at, 10**18),
            info(at),
            f"/shared/data/data-0123456789ab/index/train-{at:05d}.npy",
        ),
        reading.SHARD_MEMORY,
        reading.SHARD_KEPT,
    ),
    "made": (made, reading.MADE_MEMORY, None),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", OBJECTS)
def test_objects_take_what_the_formulas_say_at_most(name: str) -> None:
    make, memory, size = OBJECTS[name]
    count = 3000
    data = pickle.dumps([make(at) for at in range(count)])
    gc.collect()
    tracemalloc.start()
    try:
        made = pickle.loads(data)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(made) == count
    assert memory / 2 < taken / count <= memory
    assert size is None or size / 2 < len(data) / count <= size


@pytest.mark.parametrize("in_store", [False, True])
def test_lists_of_a_plan_are_what_they_were_made_of_and_as_large_as_the_formulas_say(
    in_store: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    etag = "9b2cf535f27731c974343645a3985328-12" if in_store else ""
    files = [replace(listed_file(at), stat=Stat(at, 0, etag), split=("a", None)[at % 2]) for at in range(5000)]
    files[7] = replace(files[7], path="/elsewhere/of/a/link", name="\udcff.csv")
    units = [planned_unit(at) for at in range(5000)]
    units[5] = replace(units[5], rows=0)
    of_files, of_units = FileTable.of(files), UnitTable.of(units)
    kept, again = (pickle.loads(pickle.dumps(table)) for table in (of_files, of_units))
    assert (list(kept), list(again)) == (files, units)
    assert (kept[4999], kept[-1], kept[3:5], len(kept)) == (files[4999], files[-1], tuple(files[3:5]), 5000)
    assert kept == files != list(kept[1:])
    assert kept.size_bytes == sum(range(5000))
    with pytest.raises(IndexError):
        kept[5000]
    assert unit_sizes(again).tolist() == [unit.size_bytes for unit in units]
    assert (table_rows(again), table_rows([replace(unit, rows=3) for unit in units])) == (None, 15_000)
    shared = (
        sum(batch.nbytes for batch in of_files.rebatched(BLOCK_ITEMS)),
        sum(b.nbytes for b in of_units.stored.passed()),
    )
    assert scale.FILE_BYTES / 2 < shared[0] / 5000 <= scale.FILE_BYTES
    assert scale.UNIT_BYTES_KEPT / 2 < shared[1] / 5000 <= scale.UNIT_BYTES_KEPT
    monkeypatch.setattr(external_sort, "HELD_ROWS", 500)
    monkeypatch.setattr(files_module, "FILE_ROWS", 500)
    stored, numbers = FileTable.of(replace(file, split=None) for file in files), np.arange(5000)
    held = stored.filter(numbers > 9).with_splits(coded(numbers[10:] % 3, ["a", "b", None]))
    assert scale.LISTED_MEMORY / 2 < len(pickle.dumps(held)) / 5000 <= scale.LISTED_MEMORY + 0.5


@dataclass(frozen=True)
class Small(Build):
    """A build whose units are files."""

    many: int = 12

    @property
    def units(self) -> int:
        return self.many

    @property
    def runs(self) -> int:  # type: ignore[override]
        return self.many

    @property
    def files(self) -> int:
        return self.many


@pytest.mark.parametrize("merged", [False, True])
def test_a_build_that_is_real_and_small_is_what_the_formulas_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged: bool
) -> None:
    for number in range(12):
        rows = "".join(f"{number:03d},{row:03d},{'x' * 30}\n" for row in range(400))
        Path(tmp_path, f"{number:02d}.csv").write_text(f"a,b,c\n{rows}")
    if merged:
        for module in (surveys, scale):
            monkeypatch.setattr(module, "FAN_IN", 3)
            monkeypatch.setattr(module, "MERGED_BYTES", 40_000)
    inputs = str(tmp_path / "*.csv")
    steps = Steps.begin(inputs, str(tmp_path / "out"), tmp_path, kind="csv", shard_size=50_000, splits=None)
    counted: list[int] = []
    read_ranges = run_module.read_ranges

    def count(path: str, ranges: Any) -> None:
        counted.append(len(ranges))
        read_ranges(path, ranges)

    before = steps.survey()
    for module in (run_module, run_file):
        monkeypatch.setattr(module, "read_ranges", count)
    found = steps.merged(before)
    near = 2 * sum(counted) if merged else 0  # on a disk merges map what lies behind the rows, in a store two reads
    layout = found.layout.load()
    counted.clear()
    pairs = 0
    for number, (first, last) in enumerate(layout.cuts.table[["first", "last"]].tolist()):
        pieces = slices(steps.job_folder, layout.runs, first, last)
        pairs += len(pieces)
        gather(pieces, str(tmp_path / f"gathered-{number}"))
    for module in (run_module, run_file):
        monkeypatch.setattr(module, "read_ranges", read_ranges)
    manifest = steps.finish(found, steps.put(steps.make(found)))
    shards = [shard for *_, shard in manifest.shards()]
    framed, records = sum(shard.framed_bytes for shard in shards), sum(shard.records for shard in shards)
    build = Small(framed, framed // records, asked_shard_bytes=50_000, file_bytes=20_000)
    assert records == build.records == 4800
    assert len(shards) == build.shards > 5
    assert steps.loaded.buckets.count == build.buckets
    assert len(pickle.dumps(steps.loaded)) <= build.plan_bytes
    assert before.merges == build.merges == (len(layout.runs) if merged else 0)
    assert (build.merges > 10) == merged
    assert build.slices == pytest.approx(pairs, rel=0.05)
    assert build.reads == pytest.approx(near + sum(counted), rel=0.05)
    first = before.layout.load().runs
    written = sum(Path(run_module.path_of(steps.job_folder, run)).stat().st_size for run in first)
    # of a run only the rows between its first record and its last one are written
    most = build.framed_bytes + build.entry_bytes + build.run_index_bytes
    assert most * 0.99 < written <= most
    index = sum(path.stat().st_size for path in Path(steps.job_folder.data("index")).iterdir())
    assert build.index_bytes < index <= build.index_bytes + 256 * len(shards)  # a header each
    listed = Path(steps.job_folder.data("inputs.jsonl")).read_bytes()
    assert build.inputs_bytes / 2 < len(listed) <= build.inputs_bytes
    many = [replace(manifest.parts[0], splits={"train": tuple(map(info, range(size)))}) for size in (1000, 3000)]
    few, more = (len(replace(manifest, parts=(part,)).to_json()) for part in many)
    assert scale.SHARD_TEXT / 2 < (more - few) / 2000 <= scale.SHARD_TEXT
    assert json.loads(manifest.to_json())


@pytest.mark.parametrize("paged", [False, True])
def test_a_manifest_takes_what_the_formulas_say_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paged: bool
) -> None:
    count, page = 6000, 1000
    shards = [replace(info(at), name=f"train-{at:05d}-of-{count:05d}.tfrecord") for at in range(count)]
    for module in (manifest, scale):
        monkeypatch.setattr(module, "MOST_NAMED", page if paged else count)
        monkeypatch.setattr(module, "PAGE_SHARDS", page)
    build = Build(count, 1, asked_shard_bytes=1)
    assert (build.shards, build.pages) == (count, 6 * paged)
    folder = f"{tmp_path}/data-0/pages"
    Path(folder).mkdir(parents=True)
    written = manifest.write_pages({"train": shards}, lambda name, data: put_bytes(f"{folder}/{name}", data))
    splits = {"train": Paged(f"{tmp_path}/data-0", "train", "none", written["train"]) if paged else tuple(shards)}
    part = Part("data-0", "csv", splits, {}, 1, 0)
    text = Manifest("x", "none", {}, "", (part,), {}, version=PAGED_VERSION if paged else FORMAT_VERSION).to_json()
    assert build.manifest_bytes / 2 < len(text) <= build.manifest_bytes + 1000
    size = sum(path.stat().st_size for path in Path(folder).iterdir())
    assert build.pages_bytes / 2 <= size <= build.pages_bytes
    manifest._read.cache_clear()
    tracemalloc.start()
    try:
        found = sum(shard.records for *_, shard in Manifest.from_json(text, out=str(tmp_path)).each_shard())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == sum(shard.records for shard in shards)
    assert build.manifest_memory / 2 < most <= build.manifest_memory


@pytest.mark.parametrize("size", [10**11, 10**12, 10**13])
def test_the_jobs_of_a_read_are_as_many_as_the_formulas_say(size: int) -> None:
    build = Build(size)
    read = Read(size, build.shard_bytes)
    shards = PieceTable.of(Span(at, 0, read.shard_bytes, 10**6) for at in range(read.shards))
    jobs = split_jobs([Job("train", 0, 1, shards)], (), read.file_bytes)
    assert read.jobs == pytest.approx(len(jobs), rel=0.01)
    spans = sum(len(job.pieces) for job in jobs)
    assert spans <= read.spans + 2
    assert len(pickle.dumps(jobs)) <= reading.PIECE_HELD * spans + 8 * len(jobs) + 1000
    pieces = PieceTable.of(Piece(0, 8000 * at, 8000, at * PIECE_BYTES, (at + 1) * PIECE_BYTES) for at in range(5000))
    foreign = split_jobs([Job("train", 0, 1, pieces)], (), read.file_bytes)
    assert len(pickle.dumps(foreign)) <= reading.PIECE_HELD * len(pieces) + 8 * len(foreign) + 1000
    text = json.dumps([made(at).to_json() for at in range(1000)])
    assert reading.MADE_TEXT / 2 < len(text) / 1000 <= reading.MADE_TEXT


def test_the_plan_of_a_read_that_is_real_and_small(tmp_path: Path) -> None:
    recordmill.build({"x": np.arange(4000.0)}, tmp_path / "out", num_shards=10)
    plan = plan_read(tmp_path / "out", ReadOptions(file_bytes=20_000))
    framed = sum(file.info.framed_bytes for file in plan.files if file.info is not None)
    read = Read(framed, framed // 10, 20_000, framed // 4000)
    assert read.shards in (10, 11)
    spans = [span for job in plan.jobs for span in job.pieces]
    assert len(spans) == pytest.approx(read.spans, abs=2)
    assert len(plan.jobs) == pytest.approx(read.jobs, abs=1)
    assert len(plan.jobs) > 3
    (tmp_path / "read" / f"_run-{'0' * 12}").mkdir(parents=True)
    far = begin_read(SharedFolder(str(tmp_path / "read"), "0" * 12), ReadRun(plan, plan.jobs, "parquet", 1, 1))
    assert list(far.load().jobs) == list(plan.jobs)
    assert tuple(far.load().plan.files) == plan.files
    assert len(pickle.dumps(far.load())) <= read.plan_bytes
    index = sum(Path(str(plan.files[span.file].index)).stat().st_size for span in spans)
    assert read.index_bytes * 0.8 <= index <= read.index_bytes + 256 * len(spans)


@pytest.mark.sweep
def test_a_plan_of_files_of_records_holds_of_each_what_the_formulas_say(tmp_path: Path) -> None:
    built = recordmill.build({"x": [1]}, tmp_path / "one", num_shards=1)
    (shard,) = Path(built.out).glob("data-*/*.tfrecord")
    (tmp_path / "in").mkdir()
    for at in range(300):
        (tmp_path / "in" / f"part-{at:05d}.tfrecord").write_bytes(shard.read_bytes())
    files = list_inputs([str(tmp_path / "in")]).files
    plan_tfrecord(files, TfrecordOptions(), PlanOptions())
    most = []
    for count in (100, 300):
        some = files[:count]
        gc.collect()
        tracemalloc.start()
        try:
            plan_tfrecord(some, TfrecordOptions(), PlanOptions())
            most.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert scale.RECORD_FILE_MEMORY / 2 < (most[1] - most[0]) / 200 <= scale.RECORD_FILE_MEMORY


@pytest.mark.parametrize("module", [scale, reading])
def test_the_examples_hold(module: ModuleType) -> None:
    assert not doctest.testmod(module).failed


def test_the_tables_of_the_page_are_those_of_the_formulas() -> None:
    spec = importlib.util.spec_from_file_location("make_scaling", DOCS / "make_scaling.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    page = (DOCS / "scaling.md").read_text(encoding="utf-8")
    assert program.in_page(page) == page, "python docs/make_scaling.py docs/scaling.md"
    assert program.in_page(page.replace("372,530", "372,531")) == page
    assert "| 372,530 |" in page
