"""Tests if Flink's own shuffle can carry the payload of a build.

    FLINK_MEMORY=5120m examples/cluster/flink_local.sh up
    python benchmarks/engine_shuffle.py WAY [--gib 4] [--shards 32] [--minutes 4]

Groups of 256 MiB yield blocks of 256 KiB, keyed by shard, to writers that spool them to a file. A
run that takes longer than --minutes is cancelled. WAY is one of:

* `group`: a GroupByKey.
* `bundles`: a GroupByKey, but each group is the key of a stateful DoFn, and so a bundle of its own.
* `keys`: as `bundles`, but stateful DoFns of the shards replace the GroupByKey.

Nothing is read, encoded, sorted or merged. These steps of a build would take additional time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow

from recordmill.pipelines.remote.flink import Flink

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "cluster" / "flink_local.sh"
BLOCK, GROUP = 256 << 10, 256 << 20
Block = tuple[int, bytes]  # (shard, bytes)
Spooled = tuple[int, int]  # (shard, number of bytes)


def blocks(shards: int) -> Iterator[Block]:
    """Yields the blocks of one group, shard by shard."""
    for number in range(GROUP // BLOCK):
        yield number * BLOCK * shards // GROUP, os.urandom(BLOCK)


class Group(beam.DoFn):
    """Yields the blocks of a group.

    The number of the group is the key, so Flink makes a bundle for each group.
    """

    SEEN = ReadModifyWriteStateSpec("seen", BytesCoder())

    def process(
        self, group: Block, shards: int, seen: object = beam.DoFn.StateParam(SEEN)
    ) -> Iterable[Block]:
        return blocks(shards)


def spool(element: tuple[int, Iterable[bytes]]) -> Spooled:
    """Writes all blocks of a shard to a file, and returns (shard, bytes)."""
    shard, values = element
    with tempfile.TemporaryFile() as file:
        for block in values:
            file.write(block)
        return shard, file.tell()


class Spool(beam.DoFn):
    """Writes the blocks of shards to files, block by block, as a stateful DoFn.

    A timer at the end of the window yields the result, because no more blocks can come then.
    """

    SEEN = ReadModifyWriteStateSpec("seen", BytesCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def setup(self) -> None:
        self._files: dict[int, int] = {}

    def process(
        self,
        element: Block,
        seen: object = beam.DoFn.StateParam(SEEN),
        end: object = beam.DoFn.TimerParam(END),
    ) -> None:
        shard, block = element
        if shard not in self._files:
            end.set(GlobalWindow().max_timestamp())  # type: ignore[attr-defined]
            self._files[shard], path = tempfile.mkstemp()
            os.unlink(path)
        os.write(self._files[shard], block)

    @on_timer(END)
    def finish(self, shard: int = beam.DoFn.KeyParam) -> Iterator[Spooled]:
        file = self._files.pop(shard)
        yield shard, os.fstat(file).st_size
        os.close(file)


def check(spooled: Iterable[Spooled], shards: int, size: int) -> None:
    """Raises ValueError unless every shard came once, and all bytes arrived."""
    found = sorted(spooled)
    if [shard for shard, _ in found] != list(range(shards)) or sum(
        each for _, each in found
    ) != size:
        raise ValueError(f"not what was sent: {found}")


def construct(pipeline: beam.Pipeline, way: str, groups: int, shards: int) -> None:
    numbers = (
        pipeline
        | "Groups" >> beam.Create([(group, b"") for group in range(groups)])
        | beam.Reshuffle()
    )
    numbers = numbers | "Types" >> beam.Map(lambda one: one).with_output_types(Block)
    if way == "group":
        made = numbers | "Ingest" >> beam.FlatMap(lambda _: blocks(shards)).with_output_types(Block)
    else:
        made = numbers | "Ingest" >> beam.ParDo(Group(), shards).with_output_types(Block)
    if way == "keys":
        spooled = made | "Write" >> beam.ParDo(Spool()).with_output_types(Spooled)
    else:
        spooled = made | beam.GroupByKey() | "Write" >> beam.Map(spool)
    _ = (
        pipeline
        | "End" >> beam.Create([None])
        | "Check"
        >> beam.Map(
            lambda _, all_: check(all_, shards, groups * GROUP), beam.pvalue.AsList(spooled)
        )
    )


def wait(flink: Flink, name: str, seconds: float) -> str:
    """Waits for the end of the job with a name, and describes its result.

    A job that takes longer than `seconds` is cancelled.
    """
    while (job := flink.find_job(name)) is None:
        time.sleep(1)
    try:
        ended = flink.wait_until_ended(job.id, seconds)
    except TimeoutError:
        running = flink.get_job(job.id)
        flink.cancel(job.id)
        flink.wait_until_ended(job.id, 120)
        return f"cancelled, with tasks {dict(running.tasks) if running else 'unknown'}"
    if ended is None or ended.state == "FINISHED":
        return "finished" if ended else "unknown"
    return f"{ended.state.lower()}: {flink.get_failure_text(job.id).splitlines()[0][:120]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("way", choices=["group", "bundles", "keys"])
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=4)
    args = parser.parse_args()
    flags = subprocess.run(
        [str(SCRIPT), "flags"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    flink = Flink.from_master(
        next(flag.partition("=")[2] for flag in flags if flag.startswith("--flink_master="))
    )
    assert flink is not None
    name = f"engine-shuffle-{uuid.uuid4().hex[:8]}"
    pipeline = beam.Pipeline(options=PipelineOptions([*flags, f"--job_name={name}"]))
    construct(pipeline, args.way, args.gib * (1 << 30) // GROUP, args.shards)
    began = time.monotonic()
    pipeline.run()
    told = wait(flink, name, args.minutes * 60)
    print(
        f"{args.way}, {args.gib} GiB to {args.shards} shards: {told}, {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
