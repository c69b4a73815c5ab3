"""Measures the peak memory of reads of large data sets and of large photos.

    python benchmarks/read_memory.py [--memory 384MiB] [--folder FOLDER] [grow] [photos]

`grow` reads sets of 1 GiB and 4 GiB under one --memory to .npy and to Parquet, and as the batches
of a training in shuffled order, three times in turn. The output has the largest peak, the median of
the times, and the growth of both. A copy of the set shows the share of the disk.

`photos` is `read --decode-images` of 1 GiB of pixels: unchanged to Parquet and Arrow, and resized
to .npy. A peak is the kernel's own figure for a process that does nothing else. It includes the
interpreter and the libraries.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import statistics
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from harness import Measured, machine, run

SHARD_BYTES = 256 << 20
SIZES = {"1 GiB": 1 << 30, "4 GiB": 4 << 30}
ROUNDS = 3
PHOTO = (3000, 4000)  # (height, width): 12 million pixels, as from a phone


def read_job(source: str, out: str, memory: str, *options: str) -> Callable[[], object]:
    """Returns work that reads with options in the form `name=value`."""
    import recordmill

    shutil.rmtree(out, ignore_errors=True)
    named = dict(option.split("=", 1) for option in options)
    return lambda: recordmill.read(source, out, memory=memory, **named)


def copy_job(source: str, out: str) -> Callable[[], object]:
    """Returns work that copies and syncs the shards, to measure the disk alone."""

    def work() -> None:
        shutil.copytree(source, out)
        for path in Path(out).iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())

    return work


def training_job(source: str, out: str, memory: str) -> Callable[[], object]:
    """Returns work that iterates over the batches of an epoch in global order."""
    import recordmill

    dataset = recordmill.open(source)
    batches = dataset.batches(1024, shuffle="global", seed=0, epochs=1, memory_bytes=memory)
    return lambda: deque(batches, maxlen=0)


def make_set(folder: Path, size: int) -> Path:
    """Writes shards of records of about 2.4 KB, unless they exist.

    A record has a number, 12 floats, 2 KiB of bytes that can't be compressed, up to 60 tokens, and
    a text.
    """
    import pyarrow as pa

    from recordmill.records.example.encode import encode
    from recordmill.schemas.arrow import to_arrow
    from recordmill.schemas.feature import Feature, Schema

    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    rows = 8192
    generator = np.random.default_rng(0)
    tokens = np.concatenate([[0], np.cumsum(generator.integers(0, 60, rows))])
    columns = {
        "id": pa.array(np.arange(rows)),
        "x": pa.FixedSizeListArray.from_arrays(
            pa.array(generator.random(12 * rows, np.float32)), 12
        ),
        "payload": pa.array([generator.bytes(2048) for _ in range(rows)], pa.large_binary()),
        "tokens": pa.LargeListArray.from_arrays(
            pa.array(tokens), pa.array(generator.integers(0, 50_000, tokens[-1]))
        ),
        "text": pa.array(
            [f"record number {number} of a text that repeats" for number in range(rows)],
            pa.large_string(),
        ),
    }
    kinds = {
        "id": ("int64", ()),
        "x": ("float32", (12,)),
        "payload": ("bytes", ()),
        "tokens": ("int64", (None,)),
        "text": ("string", ()),
    }
    schema = Schema(tuple(Feature(name, *kind, True) for name, kind in kinds.items()))
    data = encode(
        pa.RecordBatch.from_arrays(
            [columns[name] for name in schema.names], schema=to_arrow(schema)
        ),
        schema,
    ).data.tobytes()
    for number in range(size // SHARD_BYTES):
        with (folder / f"train-{number:05d}-of-{size // SHARD_BYTES:05d}.tfrecord").open(
            "wb"
        ) as file:
            for _ in range(SHARD_BYTES // len(data)):
                file.write(data)
    return folder


def make_photos(path: Path, size: int) -> Path:
    """Writes a file of different JPEG photos, unless it exists.

    Each has PHOTO's size or a little less. All of them together have `size` bytes of pixels.
    """
    from PIL import Image

    import recordmill
    from recordmill.records.tfrecord.frames import frame_payloads

    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    height, width = PHOTO
    with path.open("wb") as file:
        for number in range(size // (height * width * 3)):
            rough = Image.fromarray(generator.integers(0, 256, (60, 80, 3), np.uint8)).resize(
                (width - 8 * (number % 5), height), Image.Resampling.BICUBIC
            )
            noise = generator.integers(-6, 7, (rough.height, rough.width, 1))
            photo = io.BytesIO()
            Image.fromarray(
                (np.asarray(rough, np.int16) + noise).clip(0, 255).astype(np.uint8)
            ).save(photo, "JPEG", quality=90)
            record = recordmill.example({"image": photo.getvalue(), "label": number % 7})
            file.write(
                frame_payloads(
                    np.frombuffer(record, np.uint8), np.array([0, len(record)], np.int64)
                ).data.tobytes()
            )
    return path


def show(name: str, one: Measured) -> None:
    print(
        f"{name:44} peak {one.peak >> 20:5} MiB, of them {one.base >> 20:4} MiB before the read, {one.work:6.1f} s",
        flush=True,
    )


def grow(folder: Path, memory: str) -> None:
    sources = {name: make_set(folder / name.replace(" ", ""), size) for name, size in SIZES.items()}
    print(f"\n--memory {memory}")
    jobs = {
        "copy": ("copy_job",),
        "read to npy": ("read_job", memory, "to=npy"),
        "read to Parquet": ("read_job", memory, "to=parquet"),
        "shuffled batches": ("training_job", memory),
    }
    for title, job in jobs.items():
        found: dict[str, list[Measured]] = {name: [] for name in sources}
        for _ in range(ROUNDS):
            for name, source in sources.items():
                # Otherwise a read would wait until the data of the run before it is written.
                os.sync()
                found[name].append(
                    run(f"read_memory:{job[0]}", str(source), str(folder / "out"), *job[1:])
                )
                shutil.rmtree(folder / "out", ignore_errors=True)
        small, large = (max(rounds, key=lambda one: one.peak) for rounds in found.values())
        times = [statistics.median(one.work for one in rounds) for rounds in found.values()]
        for name, one, seconds in zip(found, (small, large), times, strict=True):
            show(f"{name}, {title}", replace(one, work=seconds))
        print(
            f"{'':44} peak {large.peak / small.peak - 1:+.1%}, time {times[1] / times[0]:.2f}x",
            flush=True,
        )


def photos(folder: Path) -> None:
    """Measures reads that decode photos.

    Parquet needs 36 bytes of memory for each byte of one record's list. So a photo of 36 MB, as
    lists, needs the default of --memory.
    """
    source = make_photos(folder / "photos.tfrecord", 1 << 30)
    print(
        f"\n{PHOTO[1]} x {PHOTO[0]} pixels each, {source.stat().st_size >> 20} MiB encoded, 1 GiB decoded"
    )
    for memory, options in (
        ("256MiB", ("to=npy", "resize=224x224")),
        ("320MiB", ("to=arrow",)),
        ("2GiB", ("to=parquet",)),
    ):
        one = run(
            "read_memory:read_job",
            str(source),
            str(folder / "out"),
            memory,
            "decode_images=image",
            *options,
        )
        show(f"--memory {memory} {' '.join(options)}", one)
        shutil.rmtree(folder / "out")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "cases", nargs="*", default=("grow", "photos"), metavar="CASE", help="grow, photos"
    )
    parser.add_argument("--memory", default="384MiB")
    parser.add_argument(
        "--folder", default=os.path.join(tempfile.gettempdir(), "recordmill-benchmarks-memory")
    )
    args = parser.parse_args()
    folder = Path(args.folder)
    print(machine())
    if "grow" in args.cases:
        grow(folder, args.memory)
    if "photos" in args.cases:
        photos(folder)


if __name__ == "__main__":
    main()
