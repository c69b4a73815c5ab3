"""Peers of train.py and train_images.py: Grain, SPDL and LitData, if they are installed.

They process one record at a time, so they get only the first 50,000 records of tables. Grain reads
the data set itself, as a source of records. LitData reads a copy in its own format. SPDL has no
format for records and reads the images as files. Grain and LitData decode images with recordmill's
decoder. SPDL uses FFmpeg, for which it needs a libavcodec.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

import recordmill
from recordmill.reader import Images
from recordmill.reader.images.columns import decode_image

BATCH, MOST_RECORDS = 256, 50_000
Way = Callable[[int], Iterable[object]]
Record = dict[str, Any]


def installed() -> dict[str, bool]:
    """Returns which peers are installed, by name."""
    found = {name: bool(importlib.util.find_spec(name)) for name in ("grain", "litdata")}
    return found | {"spdl": has_spdl()}


def has_spdl() -> bool:
    """Returns whether SPDL and FFmpeg's libraries are installed.

    The wheel of SPDL does not contain these libraries.
    """
    try:
        return bool(import_module("spdl.io.lib")._import_libspdl())
    except (ImportError, RuntimeError):
        return False


def of_tables(ds: recordmill.Dataset) -> dict[str, tuple[Way, int]]:
    """Returns (way, number of records) by name for tables."""
    records = min(len(ds), MOST_RECORDS)
    ways: dict[str, tuple[Way, int]] = {}
    if installed()["grain"]:
        ways["Grain, threads"] = (lambda seed: grained(ds, records, seed), records)
    if installed()["litdata"]:
        ways["LitData, processes"] = (LitData(ds, records, filled).batches, records)
    return ways


def of_images(ds: recordmill.Dataset, wanted: Images) -> dict[str, Way]:
    """Returns the ways for images by name. They read all records."""
    there, decode = installed(), Decoded(wanted)
    ways: dict[str, Way] = {}
    if there["grain"]:
        ways["Grain, threads"] = lambda seed: grained(ds, len(ds), seed, decode)
    if there["litdata"]:
        ways["LitData, processes"] = LitData(ds, len(ds), as_it_is, decode).batches
    if there["spdl"]:
        ways["SPDL, threads"] = spdled(ds, wanted)
    return ways


@dataclass(frozen=True)
class Decoded:
    """A function that decodes the image of a record with recordmill's decoder."""

    wanted: Images

    def __call__(self, record: Record) -> Record:
        return {
            **record,
            "image": decode_image(np.frombuffer(record["image"], np.uint8), self.wanted),
        }


def as_it_is(record: Record) -> Record:
    return record


def filled(record: Record) -> Record:
    """Replaces missing values by "", because both formats require a number or a text."""
    return {name: "" if value is None else value for name, value in record.items()}


def stacked(records: Iterable[Record]) -> Record:
    """Collates records to columns. Lists are padded to the longest one."""
    rows = list(records)
    return {name: column([row[name] for row in rows]) for name in rows[0]}


def column(values: list[Any]) -> Any:
    arrays = [np.asarray(value) for value in values]
    if any(array.ndim != 1 for array in arrays) or len({array.shape for array in arrays}) == 1:
        return np.stack(arrays) if arrays[0].dtype.kind not in "USO" else values
    out = np.zeros((len(arrays), max(map(len, arrays))), arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out


def grained(
    ds: recordmill.Dataset, records: int, seed: int, change: Callable[[Record], Record] = filled
) -> Iterable[object]:
    import grain

    source = grain.MapDataset.source(ds)[:records].shuffle(seed=seed).map(change)
    return source.to_iter_dataset(grain.ReadOptions(num_threads=ds.records.threads)).batch(
        BATCH, batch_fn=stacked
    )


class LitData:
    """A copy of the data set in LitData's own format, with LitData's loader.

    The copy is written once. The loader has a process for each core, which is started in the first
    round and stays.
    """

    def __init__(
        self,
        ds: recordmill.Dataset,
        records: int,
        written: Callable[[Record], Record],
        change: Callable[[Record], Record] | None = None,
    ) -> None:
        self._folder = f"{os.path.dirname(os.path.abspath(str(ds.records.catalog.files[0].path)))}-litdata-{records}"
        self._workers, self._change = ds.records.threads, change
        self._loader: Any = None
        if not os.path.exists(self._folder):
            self._write(written(row) for row in ds.filter(np.arange(records)))

    def _write(self, rows: Iterator[Mapping[str, Any]]) -> None:
        from litdata.streaming.cache import Cache

        part = f"{self._folder}.part"
        shutil.rmtree(part, ignore_errors=True)
        cache = Cache(part, chunk_bytes="64MB")
        for number, row in enumerate(rows):
            cache[number] = row
        cache.done()
        cache.merge()
        os.rename(part, self._folder)

    def batches(self, seed: int) -> Iterable[object]:
        import litdata

        if self._loader is None:
            data = litdata.StreamingDataset(
                self._folder, shuffle=True, seed=seed, transform=self._change
            )
            self._loader = litdata.StreamingDataLoader(
                data,
                batch_size=BATCH,
                num_workers=self._workers,
                collate_fn=stacked,
                persistent_workers=True,
                multiprocessing_context="spawn",
            )
        return iter(self._loader)


def jpegs(ds: recordmill.Dataset) -> list[str]:
    """Writes the images to files next to the data set, as SPDL expects them.

    Returns:
        The paths. Existing files are kept.
    """
    folder = f"{os.path.dirname(os.path.abspath(str(ds.records.catalog.files[0].path)))}-jpegs"
    paths = [os.path.join(folder, f"{number:06d}.jpg") for number in range(len(ds))]
    if not os.path.exists(paths[-1]):
        os.makedirs(folder, exist_ok=True)
        for path, row in zip(paths, ds, strict=True):
            with open(path, "wb") as file:
                file.write(row["image"])
    return paths


def spdled(ds: recordmill.Dataset, wanted: Images) -> Way:
    """Returns SPDL's pipeline of threads.

    It shuffles paths, and FFmpeg decodes and resizes a batch of files. Its pixels differ from the
    pixels of recordmill.
    """
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    paths = np.array(jpegs(ds))

    def load(batch: list[str]) -> np.ndarray:
        pixels = np.asarray(
            spdl.io.to_numpy(
                spdl.io.load_image_batch(batch, width=wanted.width, height=wanted.height)
            )
        )
        return pixels if wanted.scale is None else pixels * np.float32(wanted.scale)

    def batches(seed: int) -> Iterable[object]:
        order = np.random.default_rng(seed).permutation(len(paths))
        source = (paths[part].tolist() for part in np.split(order, range(BATCH, len(order), BATCH)))
        pipeline = (
            PipelineBuilder()
            .add_source(source)
            .pipe(load, concurrency=ds.records.threads)
            .add_sink(4)
        )
        with (built := pipeline.build(num_threads=ds.records.threads)).auto_stop():
            yield from built

    return batches
