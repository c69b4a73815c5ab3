"""Images a second that a training loop gets, beside tf.data tuned by hand: `python benchmarks/train_images.py FOLDER
[ROUNDS] [IMAGES]`.

FOLDER gets, once, a data set of 2,000 JPEGs of 500 x 375 pixels. Batches of 256, shuffled, brought to 224 x 224 as
`tf.image.resize` does, as uint8 and as float32 in [0, 1], three epochs, a consumer that does nothing; the ways
alternate, so that what else runs on the machine hits all of them. Medians, CPU seconds of the whole process, and each
way's ratio to tf.data in the same round. `to_torch` (with PyTorch), Grain (over this data set, with this project's
decoder) and SPDL (over files, with FFmpeg's decoder and resizing, if there is a libavcodec) are measured where they are
installed; a line says which are not.
"""

from __future__ import annotations

import importlib.util
import io
import os
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import tensorflow as tf
from PIL import Image
from train import measure

import recordmill
from recordmill.reader import Images

BATCH, BUFFER, OPEN_FILES, SIDE, EPOCHS = 256, 1000, 16, 224, 3
HEIGHT, WIDTH = 375, 500
Way = Callable[[int], Iterable[object]]


def photograph(random: np.random.Generator) -> bytes:
    """A JPEG whose detail falls off as that of photographs does (1/f), about 22 kB."""
    total = np.zeros((HEIGHT, WIDTH, 3))
    for level in range(1, 9):
        small = random.normal(size=(max(HEIGHT >> level, 1) + 1, max(WIDTH >> level, 1) + 1, 3))
        planes = [Image.fromarray(plane).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC) for plane in small.T]
        total += np.stack([np.asarray(plane) for plane in planes], -1) * 1.7**level
    pixels = np.clip(128 + total * (40 / total.std()), 0, 255).astype(np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG", quality=92)
    return data.getvalue()


def made(folder: str, count: int) -> str:
    out = os.path.join(folder, f"images-{count}")
    if not os.path.exists(out):
        random = np.random.default_rng(0)
        images = [photograph(random) for _ in range(count)]
        print(f"{count} JPEGs of {sum(map(len, images)) // count >> 10} KiB")
        recordmill.build({"image": images, "label": np.arange(count) % 10}, out, label="label", num_shards=8)
    return out


def tuned(ds: recordmill.Dataset, scaled: bool) -> Way:
    """What TensorFlow's guides on images and on performance make of it."""
    paths = [file.path for file in ds.catalog.files]
    spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.io.parse_single_example(record, spec)
        image = tf.image.resize(tf.io.decode_jpeg(found["image"], 3), [SIDE, SIDE])
        return image / 255 if scaled else tf.cast(tf.round(image), tf.uint8), found["label"]

    def batches(seed: int) -> Iterable[object]:
        files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed)
        records = files.interleave(
            lambda path: tf.data.TFRecordDataset(path, buffer_size=1 << 20),
            cycle_length=min(OPEN_FILES, len(paths)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=False,
        )
        decoded = (
            records.shuffle(BUFFER, seed)
            .repeat(EPOCHS)
            .map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
        )
        return decoded.batch(BATCH, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    return batches


def ways_of(ds: recordmill.Dataset, scaled: bool) -> dict[str, Way]:
    wanted = Images(SIDE, SIDE, scale=1 / 255 if scaled else None)
    ways: dict[str, Way] = {
        "tuned tf.data": tuned(ds, scaled),
        "batches": lambda seed: ds.batches(BATCH, shuffle=True, seed=seed, epochs=EPOCHS, decode_images=wanted),
        "to_tf": lambda seed: ds.to_tf(BATCH, seed=seed, epochs=EPOCHS, decode_images=wanted),
        "to_tf, portable": lambda seed: ds.to_tf(BATCH, seed=seed, epochs=EPOCHS, portable=True, decode_images=wanted),
    }
    if importlib.util.find_spec("torch"):
        ways["to_torch"] = lambda seed: ds.to_torch(BATCH, shuffle=True, seed=seed, epochs=EPOCHS, decode_images=wanted)
    if importlib.util.find_spec("grain"):
        ways["Grain, threads"] = grained(ds, wanted)
    if has_spdl():
        ways["SPDL, threads"] = spdled(ds, wanted)
    return ways


def grained(ds: recordmill.Dataset, wanted: Images) -> Way:
    """Grain's threads over single records, with this project's decoder: what its own order and batching cost."""
    import grain

    def batches(seed: int) -> Iterable[object]:
        source = grain.MapDataset.source(ds).shuffle(seed=seed).repeat(EPOCHS).map(Decoded(wanted))
        return source.to_iter_dataset(grain.ReadOptions(num_threads=ds.threads)).batch(BATCH)

    return batches


def has_spdl() -> bool:
    """Whether SPDL is there with FFmpeg's libraries, which its wheel does not bring."""
    try:
        return bool(import_module("spdl.io.lib")._import_libspdl())
    except (ImportError, RuntimeError):
        return False


def jpegs(ds: recordmill.Dataset) -> list[str]:
    """The images as files beside the data set, as SPDL's users have them."""
    folder = os.path.join(os.path.dirname(os.path.abspath(str(ds.catalog.files[0].path))), "jpegs")
    paths = [os.path.join(folder, f"{number:06d}.jpg") for number in range(len(ds))]
    if not os.path.exists(paths[-1]):
        os.makedirs(folder, exist_ok=True)
        for path, row in zip(paths, ds, strict=True):
            with open(path, "wb") as file:
                file.write(row["image"])
    return paths


def spdled(ds: recordmill.Dataset, wanted: Images) -> Way:
    """SPDL's pipeline of threads: batches of shuffled paths, decoded and resized by FFmpeg to pixels of its own."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    paths = np.array(jpegs(ds))

    def load(batch: list[str]) -> np.ndarray:
        pixels = np.asarray(spdl.io.to_numpy(spdl.io.load_image_batch(batch, width=SIDE, height=SIDE)))
        return pixels if wanted.scale is None else pixels * np.float32(wanted.scale)

    def batches(seed: int) -> Iterable[object]:
        random = np.random.default_rng(seed)
        orders = (random.permutation(len(paths)) for _ in range(EPOCHS))
        parts = (part for order in orders for part in np.split(order, range(BATCH, len(order), BATCH)))
        source = (paths[part].tolist() for part in parts)
        pipeline = PipelineBuilder().add_source(source).pipe(load, concurrency=ds.threads).add_sink(4)
        with (built := pipeline.build(num_threads=ds.threads)).auto_stop():
            yield from built

    return batches


@dataclass(frozen=True)
class Decoded:
    """A record with its image decoded, by this project's decoder."""

    wanted: Images

    def __call__(self, record: dict[str, object]) -> dict[str, object]:
        from recordmill.reader.images.rows import decoded

        return {**record, "image": decoded(np.frombuffer(record["image"], np.uint8), self.wanted)}


def main(folder: str, rounds: int, count: int) -> None:
    warnings.simplefilter("ignore")
    ds = recordmill.open(made(folder, count))
    there = {name: bool(importlib.util.find_spec(name)) for name in ("simplejpeg", "grain")} | {"spdl": has_spdl()}
    print(", ".join(f"{name}: {'installed' if has else 'not installed'}" for name, has in there.items()))
    print("| way | as | images/s | images per CPU s | of tuned tf.data: wall | CPU | first batch |")
    print("|---|---|---|---|---|---|---|")
    for scaled in (False, True):
        ways, found = ways_of(ds, scaled), {}
        for seed in range(rounds):
            for name, way in ways.items():
                found.setdefault(name, []).append(measure(way, seed))
        base = found["tuned tf.data"]
        for name, runs in found.items():
            wall, cpu, first = (statistics.median(run[at] for run in runs) for at in range(3))
            ratios = [statistics.median(b[at] / r[at] for b, r in zip(base, runs, strict=True)) for at in range(2)]
            rates = (
                f"{'float32' if scaled else 'uint8'} | {EPOCHS * len(ds) / wall:,.0f} | {EPOCHS * len(ds) / cpu:,.0f}"
            )
            print(f"| {name} | {rates} | {ratios[0]:.2f} | {ratios[1]:.2f} | {first * 1e3:.0f} ms |")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3, 4):
        sys.exit(__doc__)
    main(sys.argv[1], *(int(number) for number in [*sys.argv[2:], *("5", "2000")[len(sys.argv) - 2 :]]))
