"""Compares decoders of TFRecord bytes in memory, in one process, in turn.

    python benchmarks/decode.py [--rounds 7] [--megabytes 128] [--threads 1,2]

recordmill decodes to Arrow and checks both CRCs. The peers are tfx-bsl's
ExamplesToRecordBatchDecoder and tf.io.parse_example, in the best of three batch sizes. They get
their records as a list or a string tensor that was made before, check no CRC, and know the schema.

The process is bound to as many cores as it has threads. The output has medians. The limit for large
payloads is a copy of the bytes and their CRC32C.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
from encode import CASES, Case
from harness import machine

from recordmill.base import native
from recordmill.base.threads import thread_map
from recordmill.records.example.decode import decode
from recordmill.records.example.encode import encode
from recordmill.records.inference.infer import infer
from recordmill.records.tfrecord.frames import Frames, scan_frames
from recordmill.schemas.feature import Schema

BATCH_BYTES = 8 << 20  # 8 MiB: as `read` reads files (`records.tfrecord.stream`)
COPY = "limit: copy alone"
PARSE_BATCHES = (256, 4_096, 50_000)


def pieces(frames: Frames) -> list[np.ndarray[Any, Any]]:
    """Divides a file into pieces of about BATCH_BYTES, which begin with a frame."""
    cuts = np.searchsorted(frames.starts, np.arange(0, len(frames.data), BATCH_BYTES))
    edges = [*frames.starts[np.unique(cuts[cuts < len(frames.starts)])].tolist(), len(frames.data)]
    return [frames.data[begin:end] for begin, end in itertools.pairwise(edges)]


def drain(results: Iterable[object]) -> None:
    """Consumes results one by one, and keeps none, as a consumer of batches does."""
    for _ in results:
        pass


def ours(
    frames: Frames, schema: Schema, threads: int, what: str = "decode"
) -> Callable[[], object]:
    def one(data: np.ndarray[Any, Any]) -> object:
        found, _ = scan_frames(data, source="benchmark", is_final=True)
        return (
            found
            if what == "scan"
            else (infer if what == "infer" else decode)(
                data, found.starts + 12, found.lengths, *([schema] if what == "decode" else [])
            )
        )

    parts = pieces(frames)
    return lambda: drain(thread_map(one, parts, threads))


def tfx_bsl(records: list[bytes], schema: Schema, threads: int) -> Callable[[], object]:
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0.schema_pb2 import Schema as Description
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    from recordmill.schemas.tfmd import to_pbtxt

    description = text_format.Parse(to_pbtxt(schema), Description()).SerializeToString()
    # Two threads can't use a decoder at once.
    own = threading.local()

    def one(part: list[bytes]) -> object:
        if not hasattr(own, "decoder"):
            own.decoder = ExamplesToRecordBatchDecoder(description)
        return own.decoder.DecodeBatch(part)

    size = -(-len(records) // (threads * 4))
    parts = [records[at : at + size] for at in range(0, len(records), size)]
    pool = ThreadPoolExecutor(threads)
    return lambda: drain(pool.map(one, parts))


def parse_example(records: list[bytes], schema: Schema, threads: int) -> Callable[[], object]:
    import tensorflow as tf

    kinds = {"int64": tf.int64, "float": tf.float32, "bytes": tf.string}
    spec = {
        f.name: tf.io.RaggedFeature(kinds[f.kind])
        if f.ragged_rank
        else tf.io.FixedLenFeature(f.shape, kinds[f.kind])
        for f in schema
    }

    def work(size: int) -> Callable[[], object]:
        parts = [tf.constant(records[at : at + size]) for at in range(0, len(records), size)]
        parse = tf.function(lambda serialized: tf.io.parse_example(serialized, spec))
        return lambda: drain(parse(part) for part in parts)

    def seconds(job: Callable[[], object]) -> float:
        job()
        started = time.perf_counter()
        job()
        return time.perf_counter() - started

    return min((work(size) for size in PARSE_BATCHES), key=seconds)


def contenders(case: Case, threads: int) -> dict[str, Callable[[], object]]:
    schema, batch = case
    frames = encode(batch, schema)
    records = [frames.payload(i).tobytes() for i in range(len(frames))]

    parts = pieces(frames)
    there = [np.empty_like(part) for part in parts]

    def copy_and_check(at: int) -> object:
        there[at][:] = parts[at]
        return native.crc32c(there[at], 0, native.CrcMethod.FOLDING)

    return {
        "ours, both CRCs": ours(frames, schema, threads),
        "ours, CRCs alone": ours(frames, schema, threads, "scan"),
        "ours, inference": ours(frames, schema, threads, "infer"),
        "tfx-bsl, no CRC": tfx_bsl(records, schema, threads),
        "tf.io.parse_example, no CRC": parse_example(records, schema, threads),
        "limit: copy + CRC32C": lambda: drain(
            thread_map(copy_and_check, range(len(parts)), threads)
        ),
        COPY: lambda: drain(
            thread_map(lambda at: np.copyto(there[at], parts[at]), range(len(parts)), threads)
        ),
    }


def child(rounds: int, megabytes: int, threads: int) -> None:
    """Runs all cases on this number of cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    for title, (make, record_bytes) in CASES.items():
        case = make(megabytes * 1_000_000 // record_bytes)
        jobs = contenders(case, threads)
        times: dict[str, list[float]] = {name: [] for name in jobs}
        # The first round is not counted. It warms up caches, compiled code and the allocator.
        for number in range(rounds + 1):
            for name, work in jobs.items():
                started = time.perf_counter()
                work()
                if number:
                    times[name].append((time.perf_counter() - started) / case[1].num_rows)
        size = len(encode(case[1], case[0]).data) / case[1].num_rows
        print(
            f"\n{title}, {threads} threads: {case[1].num_rows:,} records of {size:,.0f} bytes{'':10} "
            f"{'records/s':>12} {'MB/s':>8} {'x ours':>9}"
        )
        first = statistics.median(times["ours, both CRCs"])
        for name, found in times.items():
            median = statistics.median(found)
            print(
                f"  {name:50} {1 / median:16,.0f} {size / median / 1e6:8,.0f} {median / first:8.2f}x",
                flush=True,
            )
        # the bytes of a record that are read and written, by recordmill and by a copy
        touched, copied = size + case[1].nbytes / case[1].num_rows, 2 * size
        fraction = (touched / first) / (copied / statistics.median(times[COPY]))
        print(
            f"  ours touches {touched:,.0f} bytes a record: {touched / first / 1e9:.1f} GB/s, {fraction:.0%} "
            "of what copying reaches",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=128, help="of encoded records per case")
    parser.add_argument(
        "--threads",
        default="1,2",
        help="numbers of threads and cores, each in a process of its own",
    )
    options = parser.parse_args()
    if "," not in options.threads:
        child(options.rounds, options.megabytes, int(options.threads))
        return
    print(machine(), flush=True)
    for threads in options.threads.split(","):
        subprocess.run(
            [
                sys.executable,
                __file__,
                "--rounds",
                str(options.rounds),
                "--megabytes",
                str(options.megabytes),
                "--threads",
                threads,
            ],
            check=True,
        )


if __name__ == "__main__":
    main()
