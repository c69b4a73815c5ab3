"""Measures the images per second of a training loop, and compares with tf.data.

    python benchmarks/train_images.py FOLDER [ROUNDS] [IMAGES] [uint8|float32]

A data set of 10,000 JPEGs of 500 x 375 pixels is built in FOLDER, unless it exists. 2,000 of the
JPEGs are distinct.

An epoch has shuffled batches of 256. Images are resized to 224 x 224 as `tf.image.resize` does, to
uint8 and to float32 in [0, 1]. The consumer does nothing. The ways alternate, so that other load on
the machine affects all of them. The output has medians, the CPU seconds of this process and its
children, and the ratio to tf.data in the same round.

tf.data is tuned by hand. By default, TensorFlow decodes JPEGs less exactly. A second row has the
accurate arithmetic, and so the same pixels as the other ways. `to_torch` and the peers of
`train_peers` are measured if they are installed. A line lists the ones that are not.

At last, the cost of decoding and resizing alone is measured, by calls on one thread.
"""

from __future__ import annotations

import importlib.util
import io
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf
import train_peers
from PIL import Image
from train import measure

import recordmill
from recordmill.reader import Images

BATCH, BUFFER, OPEN_FILES, SIDE, DISTINCT = 256, 1000, 16, 224, 2000
HEIGHT, WIDTH = 375, 500
Way = Callable[[int], Iterable[object]]


def photograph(random: np.random.Generator) -> bytes:
    """Returns a JPEG with the spatial frequencies of a photograph (1/f), about 22 kB."""
    total = np.zeros((HEIGHT, WIDTH, 3))
    for level in range(1, 9):
        small = random.normal(size=(max(HEIGHT >> level, 1) + 1, max(WIDTH >> level, 1) + 1, 3))
        planes = [
            Image.fromarray(plane).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
            for plane in small.T
        ]
        total += np.stack([np.asarray(plane) for plane in planes], -1) * 1.7**level
    pixels = np.clip(128 + total * (40 / total.std()), 0, 255).astype(np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG", quality=92)
    return data.getvalue()


def made(folder: str, count: int) -> str:
    out = os.path.join(folder, f"images-{count}")
    if not os.path.exists(out):
        random = np.random.default_rng(0)
        distinct = [photograph(random) for _ in range(min(count, DISTINCT))]
        print(f"{count} JPEGs of {sum(map(len, distinct)) // len(distinct) >> 10} KiB")
        images = [distinct[number % len(distinct)] for number in range(count)]
        recordmill.build(
            {"image": images, "label": np.arange(count) % 10}, out, label="label", num_shards=8
        )
    return out


def tuned(ds: recordmill.Dataset, scaled: bool, dct_method: str = "") -> Way:
    """Returns the pipeline of TensorFlow's guides on images and on performance."""
    paths = [file.path for file in ds.records.catalog.files]
    spec = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.io.parse_single_example(record, spec)
        image = tf.image.resize(
            tf.io.decode_jpeg(found["image"], 3, dct_method=dct_method), [SIDE, SIDE]
        )
        return image / 255 if scaled else tf.cast(tf.round(image), tf.uint8), found["label"]

    def batches(seed: int) -> Iterable[object]:
        files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed)
        records = files.interleave(
            lambda path: tf.data.TFRecordDataset(path, buffer_size=1 << 20),
            cycle_length=min(OPEN_FILES, len(paths)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=False,
        )
        mixed = records.shuffle(BUFFER, seed)
        images = mixed.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
        return images.batch(BATCH, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    return batches


def make_ways(ds: recordmill.Dataset, scaled: bool) -> dict[str, Way]:
    wanted = Images(SIDE, SIDE, scale=1 / 255 if scaled else None)
    ways: dict[str, Way] = {
        "tuned tf.data": tuned(ds, scaled),
        "tuned tf.data, accurate": tuned(ds, scaled, "INTEGER_ACCURATE"),
        "batches": lambda seed: ds.batches(BATCH, shuffle=True, seed=seed, decode_images=wanted),
        "to_tf": lambda seed: ds.to_tf(BATCH, seed=seed, decode_images=wanted),
    }
    if importlib.util.find_spec("torch"):
        ways["to_torch"] = lambda seed: ds.to_torch(
            BATCH, shuffle=True, seed=seed, decode_images=wanted
        )
    return ways | train_peers.of_images(ds, wanted)


def floors(ds: recordmill.Dataset, scaled: bool) -> None:
    """Prints the CPU time per image of decoding, with and without resizing, on one thread."""
    from recordmill.reader.images.columns import decode_image
    from recordmill.reader.images.decode import EncodedImage

    wanted = Images(SIDE, SIDE, scale=1 / 255 if scaled else None)
    images = [np.frombuffer(data, np.uint8) for data in ds[:DISTINCT:8].column("image").to_pylist()]
    jobs = {
        "decoded": lambda data: EncodedImage(data, wanted).decode(),
        "and resized": lambda data: decode_image(data, wanted),
    }
    for name, job in jobs.items():
        begun = time.process_time()
        for data in images:
            job(data)
        print(
            f"one image {name}, {wanted.numpy_dtype}: {(time.process_time() - begun) / len(images) * 1e3:.3f} ms"
        )


def main(folder: str, rounds: int, count: int, kinds: list[str]) -> None:
    warnings.simplefilter("ignore")
    ds = recordmill.open(made(folder, count))
    there = {
        name: bool(importlib.util.find_spec(name)) for name in ("simplejpeg", "torch")
    } | train_peers.installed()
    print(
        ", ".join(
            f"{name}: {'installed' if has else 'not installed'}" for name, has in there.items()
        )
    )
    print("| way | as | images/s | images per CPU s | of tuned tf.data: wall | CPU | first batch |")
    print("|---|---|---|---|---|---|---|")
    for kind in kinds:
        ways, found = make_ways(ds, kind == "float32"), {}
        for seed in range(rounds):
            for name, way in ways.items():
                found.setdefault(name, []).append(measure(way, seed))
        base = found["tuned tf.data"]
        for name, runs in found.items():
            wall, cpu, first = (statistics.median(run[at] for run in runs) for at in range(3))
            ratios = [
                statistics.median(b[at] / r[at] for b, r in zip(base, runs, strict=True))
                for at in range(2)
            ]
            rates = f"{kind} | {len(ds) / wall:,.0f} | {len(ds) / cpu:,.0f}"
            print(
                f"| {name} | {rates} | {ratios[0]:.2f} | {ratios[1]:.2f} | {first * 1e3:.0f} ms |"
            )
    for kind in kinds:
        floors(ds, kind == "float32")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3, 4, 5):
        sys.exit(__doc__)
    given = dict(enumerate(sys.argv))
    main(
        given[1],
        int(given.get(2, 5)),
        int(given.get(3, 10_000)),
        [given[4]] if 4 in given else ["uint8", "float32"],
    )
