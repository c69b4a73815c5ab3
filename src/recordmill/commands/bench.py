"""`recordmill bench`: how fast batches for training come out of a data set, where the time goes, and what to turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.reader.batches.source import Batches
from recordmill.reader.dataset import Dataset
from recordmill.reader.prefetch.protocols import measuring

_IDLE = 0.6  # of the threads' time: below it they wait for something else than the processor
BENCH_OUTPUTS = {"numpy": "batches", "tf": "to_tf", "torch": "to_torch"}
_NEEDS = {"tf": "tensorflow", "torch": "torch"}
_WAITS = {
    "numpy": f"the threads wait for each other or for the processor: try fewer {option('threads')}, or larger "
    f"{option('batch_size')}",
    "tf": "the threads wait for TensorFlow, which cuts the batches out of what they hand over: try larger "
    f"{option('batch_size')}, leave features out with {option('columns')}, above all text; "
    f"{option('consumer', 'numpy')} shows what the reader gives without it",
    "torch": "the threads wait for whoever takes the batches, one at a time: a DataLoader with workers takes them in "
    f"several processes; {option('consumer', 'numpy')} shows what the reader gives without PyTorch",
}


@dataclass(frozen=True)
class Measured:
    """Result of a benchmark.

    Attributes:
        batches: how many came.
        records: how many came.
        framed_bytes: how many came.
        seconds: in which they came.
        first: seconds to the first batch, from before the data set was opened.
        stages: seconds of all threads, by stage.
        threads: how many there are.
        waited: seconds in which the consumer waited.
        consumer: the output, one of BENCH_OUTPUTS.
    """

    batches: int
    records: int
    framed_bytes: int
    seconds: float
    first: float
    stages: Mapping[str, float]
    threads: int
    waited: float
    consumer: str = "numpy"

    @property
    def busy(self) -> float:
        """The share of the threads' time that the stages account for."""
        return sum(self.stages.values()) / max(self.seconds * self.threads, 1e-9)

    def to_json(self) -> dict[str, Any]:
        """A machine-readable summary."""
        return {
            "as": self.consumer,
            "batches": self.batches,
            "records": self.records,
            "framed_bytes": self.framed_bytes,
            "seconds": round(self.seconds, 3),
            "first_seconds": round(self.first, 3),
            "stage_seconds": {stage: round(seconds, 3) for stage, seconds in self.stages.items()},
            "waited_seconds": round(self.waited, 3),
            "threads": self.threads,
            "busy": round(self.busy, 3),
            "advice": self.advice(),
        }

    def advice(self) -> str:
        """Returns which option to change."""
        if not self.batches:
            return "there are no batches: the data set is empty, or smaller than a batch"
        stage = max(self.stages, key=lambda name: self.stages[name])
        if self.busy < _IDLE and stage != "read":
            return _WAITS[self.consumer]
        advice = {
            "read": f"reading takes the most: {option('shuffle', 'window')} reads forwards where global reads single "
            "records; other files' gzip is inflated whole, `recordmill build` makes shards of it that are read in "
            f"parts; a larger {option('memory_bytes')} reads further ahead",
            "check": f"the checksums take the most, and are not to be left out: more {option('threads')}, fewer bytes "
            "a record",
            "decode": f"decoding takes the most: leave features out with {option('columns')}, or give more "
            f"{option('threads')}",
            "images": (
                f"decoding images takes the most: more {option('threads')}, or images that were stored at their size"
            ),
            "collate": "making arrays takes the most: pad to less, or keep lists ragged; text costs an object each",
        }
        return advice[stage]


def prepare(consumer: str) -> None:
    """Imports what a consumer is made for, so that its import is not timed; who lacks it is told there."""
    if consumer in _NEEDS:
        with contextlib.suppress(ImportError):
            import_module(_NEEDS[consumer])


def _iterated(dataset: Dataset, consumer: str, options: Mapping[str, Any]) -> Iterator[Any]:
    """The batches of one epoch."""
    more = {"label": False} if consumer == "tf" else {}  # whose schema's label might have to be there
    batches: Iterator[Any] = iter(getattr(dataset, BENCH_OUTPUTS[consumer])(**options, **more))
    return batches


def measure(
    dataset: Dataset, seconds: float, *, consumer: str = "numpy", opened: float = 0.0, **options: Any
) -> Measured:
    """Takes batches for so long, or for one epoch, and does nothing with them.

    Args:
        dataset: the data set.
        seconds: for how long.
        consumer: the output, one of BENCH_OUTPUTS.
        opened: seconds that it took to open the data set.
        **options: those of `Dataset.batches` that all consumers have.

    Raises:
        UsageError: an option that the consumer has not, or that does not fit.
        MissingExtraError: what the consumer needs is not installed.
    """
    prepare(consumer)
    if seconds <= 0:
        raise UsageError(f"{option('seconds', f'{seconds:g}')}: more than 0")
    framed = sum(file.framed_bytes for file in dataset.files)
    with measuring() as clock:
        begun = time.perf_counter()
        batches = _iterated(dataset, consumer, options)
        records = count = 0
        first = waited = 0.0
        while time.perf_counter() - begun < seconds:
            asked = time.perf_counter()
            if next(batches, None) is None:
                break
            waited += time.perf_counter() - asked
            first = first or opened + time.perf_counter() - begun
            count += 1
        records = min(count * int(options["batch_size"]), len(dataset))
        if isinstance(batches, Batches):
            batches.close()
        took = time.perf_counter() - begun
    row_bytes = framed / max(sum(dataset.file_records), 1)
    stages = dict(clock.seconds)
    return Measured(count, records, int(row_bytes * records), took, first, stages, dataset.threads, waited, consumer)


_BENCH_HELP = """\
examples:
  recordmill bench shards                      batches of 256 for five seconds, mixed within windows
  recordmill bench shards --shuffle global --batch-size 1024 --columns tokens,label
  recordmill bench 'old/*.tfrecord' --threads 4 --memory-bytes 1GiB
  recordmill bench shards --as tf              as Keras gets them, by `ds.to_tf`
  recordmill bench photos --image-size 224x224

Nothing is done with the batches, so this is the most that a training loop can get from `ds.batches`, `ds.to_tf` or
`ds.to_torch` with the same options. The first batch is timed from before the data set is opened, without the import of
TensorFlow or PyTorch. The first run reads from disk, the next one perhaps from memory: run it twice. Stages are seconds
of all threads together; what is left of the threads' time they waited.
"""


def add_bench(commands: Any, summary: str) -> None:
    """Add the command to an argparse subparsers object."""
    from recordmill.options.parser import add_command

    add_command(
        commands,
        "bench",
        run_bench,
        usage="recordmill bench INPUT... [options]",
        summary=summary,
        description="Take batches as a training loop would, and print batches, records and bytes a second, where the "
        "time goes, and which option to turn.",
        inputs=("INPUT", "a data set's folder, or TFRecord files, folders of them, or quoted globs"),
        examples=_BENCH_HELP,
    )


def run_bench(args: argparse.Namespace) -> int:
    """Measure and print."""
    from recordmill.commands.bench import measure, prepare
    from recordmill.options.commands import report_in_flags
    from recordmill.options.parser import given
    from recordmill.pipelines.read_options import parse_image_size
    from recordmill.reader.dataset import open

    prepare(args.consumer)
    size = None if args.image_size is None else parse_image_size(args.image_size, "image_size")
    begun = time.perf_counter()
    dataset = open(args.inputs, decode_images=size, **given(args))
    opened = time.perf_counter() - begun
    shuffle = False if args.shuffle == "none" else args.shuffle
    options = {"batch_size": args.batch_size, "shuffle": shuffle, "memory_bytes": args.memory_bytes}
    measured = measure(dataset, args.seconds, consumer=args.consumer, opened=opened, **options)
    if args.json:
        print(json.dumps(report_in_flags(measured.to_json(), "advice"), indent=1))
    else:
        for line in bench_lines(measured):
            print(line)
    return 0


def bench_lines(measured: Any) -> Iterator[str]:
    """The report, line by line."""
    from recordmill.base.sizes import show_size
    from recordmill.options.commands import in_flags

    rate = 1 / max(measured.seconds, 1e-9)
    yield (
        f"{measured.batches * rate:,.0f} batches/s, {measured.records * rate:,.0f} records/s, "
        f"{show_size(measured.framed_bytes * rate)}/s of shards: {measured.batches:,} batches in "
        f"{measured.seconds:.2f} s, the first {measured.first * 1e3:,.0f} ms after the open"
    )
    total = max(sum(measured.stages.values()), 1e-9)
    for stage, seconds in measured.stages.items():
        if seconds >= 0.005:
            yield f"  {stage:<8} {seconds:8.2f} s  {100 * seconds / total:3.0f} %"
    yield (
        f"  {measured.threads} threads were at it for {100 * min(measured.busy, 1):.0f} % of the time; "
        f"whoever took the batches waited {measured.waited:.2f} s"
    )
    yield f"to go faster: {in_flags(measured.advice())}"
