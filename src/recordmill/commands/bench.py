"""The command `recordmill bench`: measures how fast a data set delivers batches."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

from recordmill.commands.main import Command

_BENCH_HELP = """\
examples:
  recordmill bench shards                      batches of 256 for five seconds, mixed within windows
  recordmill bench shards --shuffle global --batch-size 1024 --columns tokens,label
  recordmill bench 'old/*.tfrecord' --threads 4 --memory-bytes 1GiB
  recordmill bench shards --as tf              batches of `ds.to_tf`, as for Keras
  recordmill bench photos --image-size 224x224

The batches are not used, so this is the highest speed of a training loop with the same options. The time to the first
batch includes opening the data set, but not the import of TensorFlow or PyTorch. Run the command twice: the first run
reads from disk, and the second one probably from memory. The times of the stages are seconds of all threads together.
The rest of their time, the threads waited.
"""


def run_bench(args: argparse.Namespace) -> int:
    """Measures how fast a data set delivers batches, and prints the result. Returns 0."""
    from recordmill.base.messages import render
    from recordmill.base.sizes import parse_image_size
    from recordmill.options.command_line import options_from_args
    from recordmill.options.flags import flag_spelling, render_entries
    from recordmill.reader.bench import import_framework, measure
    from recordmill.reader.dataset import open

    import_framework(args.consumer)
    size = None if args.image_size is None else parse_image_size(args.image_size, "image_size")
    start = time.perf_counter()
    dataset = open(args.inputs, decode_images=size, **options_from_args(args))
    open_seconds = time.perf_counter() - start
    shuffle = False if args.shuffle == "none" else args.shuffle
    options = {"batch_size": args.batch_size, "shuffle": shuffle, "memory_bytes": args.memory_bytes}
    result = measure(
        dataset, args.seconds, consumer=args.consumer, open_seconds=open_seconds, **options
    )
    spelling = flag_spelling(args.command)
    if args.json:
        print(json.dumps(render_entries(result.to_json(), spelling, "advice"), indent=1))
    else:
        for line in bench_lines(result):
            print(render(line, spelling))
    return 0


def bench_lines(result: Any) -> Iterator[str]:
    """Yields the lines of the result of a benchmark.

    The lines contain the rates, the time of each stage, and advice for more speed.

    Args:
        result: The `BenchResult` of the measurement.
    """
    from recordmill.base.messages import Message
    from recordmill.base.sizes import format_count, format_size

    rate = 1 / max(result.seconds, 1e-9)
    yield (
        f"{result.batches * rate:,.0f} batches/s, {result.records * rate:,.0f} records/s, "
        f"{format_size(result.framed_bytes * rate)}/s of shards: {result.batches:,} batches in "
        f"{result.seconds:.2f} s, the first {result.first_seconds * 1e3:,.0f} ms after the open"
    )
    total = max(sum(result.stages.values()), 1e-9)
    for stage, seconds in result.stages.items():
        if seconds >= 0.005:
            yield f"  {stage:<8} {seconds:8.2f} s  {100 * seconds / total:3.0f} %"
    yield (
        f"  The {format_count(result.threads, 'reader thread')} {'was' if result.threads == 1 else 'were'} busy "
        f"{100 * min(result.busy_share, 1):.0f} % of the time. The program waited {result.waited_seconds:.2f} s for "
        "batches"
    )
    yield Message("to go faster: {advice}", advice=result.advice())


BENCH = Command(
    run_bench,
    usage="recordmill bench INPUT... [options]",
    description="Measure the speed of training batches. Prints batches, records and bytes per "
    "second, where the time goes, and which option to change.",
    inputs=("INPUT", "folder of a data set, or TFRecord files, folders of them, or quoted globs"),
    examples=_BENCH_HELP,
)
