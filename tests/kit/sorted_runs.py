"""Run files made from a list of records."""

import random
from pathlib import Path

import numpy as np

from recordmill.building.sorted_run import Histogram, KeyBuckets, SortedRun, SortedRunWriter
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES, frame_payloads, scan_frames

Record = tuple[int, int, int, int, bytes]  # (split, key, file, position, payload)


def write_runs(
    folder: Path, records: list[Record], chunk: int, run_bytes: int, buckets: KeyBuckets
) -> list[SortedRun]:
    return write_runs_with_histogram(folder, records, chunk, run_bytes, buckets)[0]


def write_runs_with_histogram(
    folder: Path, records: list[Record], chunk: int, run_bytes: int, buckets: KeyBuckets
) -> tuple[list[SortedRun], Histogram]:
    writer = SortedRunWriter(str(folder), buckets, run_bytes)
    runs = []
    for start in range(0, len(records), chunk):
        part = records[start : start + chunk]
        payloads = [payload for *_, payload in part]
        frames = frame_payloads(
            np.frombuffer(b"".join(payloads), np.uint8), np.cumsum([0, *map(len, payloads)])
        )
        split, key, file, position = (
            np.array([record[i] for record in part], dtype)
            for i, dtype in enumerate((np.uint16, np.uint64, np.uint32, np.int64))
        )
        runs += writer.add(
            frames.data,
            frames.lengths + FRAME_OVERHEAD_BYTES,
            frames.crcs,
            key,
            split,
            file,
            position,
        )
    if not writer.is_empty:
        runs.append(writer.finish())
    return runs, writer.histogram


def payloads_of(data: np.ndarray) -> list[bytes]:
    """Returns the payloads of contiguous frames."""
    frames, _ = scan_frames(data, source="frames", is_final=True)
    return [frames.payload(index).tobytes() for index in range(len(frames))]


ONE_BUCKET = KeyBuckets(1, 1, 2**64)


def deal_records(count: int, parts: int, keys: str, size: int = 20) -> list[list[Record]]:
    """Returns records in several parts, each with its own range of payloads.

    Args:
        keys: "hashed" for random keys, so that the parts alternate; "in order" for ascending keys,
            so that the parts follow each other; "one" for equal keys.
        size: Limit of the random bytes that follow the number in a payload.
    """
    dice = random.Random(count + parts)
    result: list[list[Record]] = [[] for _ in range(parts)]
    for number in range(count):
        key = {"hashed": dice.getrandbits(64), "in order": number, "one": 7}[keys]
        part = number * parts // count
        result[part].append((0, key, part, number, b"%08d" % number + b"x" * dice.randrange(size)))
    return result
