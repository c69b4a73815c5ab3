"""Jobs that `build.py` compares: recordmill, and other ways to write TFRecords.

Each function sets up a job and returns its work.
"""

from __future__ import annotations

import csv
import glob
import json
import os
import shutil
from collections.abc import Callable
from typing import Any

Work = Callable[[], object]
SHARDS = 16


def fresh(out: str) -> str:
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    return out


def recordmill(kind: str, source: str, out: str) -> Work:
    """Runs `recordmill.build`.

    The set-up imports everything and builds a tiny input of the same kind, so that compiled code is
    loaded.
    """
    import recordmill

    tiny = fresh(out + "-tiny")
    os.makedirs(f"{tiny}/class0")
    if kind == "images":
        shutil.copy(min(glob.glob(f"{source}/*/*.jpg")), f"{tiny}/class0")
    else:
        with open(source, "rb") as file, open(f"{tiny}/rows.{kind}", "wb") as few:
            few.writelines(file.readline() for _ in range(100))
    recordmill.build(tiny, fresh(out + "-warm"), kind=kind)
    fresh(out)
    return lambda: recordmill.build(source, out, kind=kind, num_shards=SHARDS)


def _sync(folder: str) -> None:
    """Flushes all files of a folder to the disk, four at a time."""
    from concurrent.futures import ThreadPoolExecutor

    def sync(path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(sync, glob.glob(f"{folder}/*")))
    sync(folder)


def _feature(value: Any, tf: Any) -> Any:
    if isinstance(value, int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    if isinstance(value, float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
    data = value if isinstance(value, bytes) else value.encode()
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[data]))


def _number(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _rows(kind: str, source: str) -> Any:
    with open(source, newline="", encoding="utf-8") as file:
        if kind == "csv":
            for row in csv.DictReader(file):
                yield {name: _number(text) for name, text in row.items() if text}
        else:
            for line in file:
                yield {name: value for name, value in json.loads(line).items() if value is not None}


def tutorial(kind: str, source: str, out: str) -> Work:
    """Runs the loop of the TFRecord tutorial, with one tf.train.Example per row.

    The examples go to 16 files in turn. There is no shuffle and no check.
    """
    import tensorflow as tf

    os.makedirs(fresh(out))

    def work() -> None:
        writers = [
            tf.io.TFRecordWriter(f"{out}/train-{i:05d}-of-{SHARDS:05d}") for i in range(SHARDS)
        ]
        for number, row in enumerate(_rows(kind, source)):
            example = tf.train.Example(
                features=tf.train.Features(
                    feature={name: _feature(value, tf) for name, value in row.items()}
                )
            )
            writers[number % SHARDS].write(example.SerializeToString())
        for writer in writers:
            writer.close()

    return work


def plain_beam(kind: str, source: str, out: str) -> Work:
    """Runs a Beam pipeline as in Beam's documentation.

    It reads lines, makes one Example per row, and applies Reshuffle and WriteToTFRecord.
    """
    import apache_beam as beam
    import tensorflow as tf
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    fresh(out)

    def work() -> None:
        with open(source, encoding="utf-8") as file:
            header = next(csv.reader(file)) if kind == "csv" else []

        def parse(line: str) -> dict[str, Any]:
            if kind == "csv":
                return {
                    name: _number(text)
                    for name, text in zip(header, next(csv.reader([line])), strict=True)
                    if text
                }
            return json.loads(line)  # type: ignore[no-any-return]

        def serialize(row: dict[str, Any]) -> bytes:
            features = {
                name: _feature(value, tf) for name, value in row.items() if value is not None
            }
            return tf.train.Example(
                features=tf.train.Features(feature=features)
            ).SerializeToString()  # type: ignore[no-any-return]

        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            _ = (
                pipeline
                | beam.io.ReadFromText(source, skip_header_lines=1 if kind == "csv" else 0)
                | beam.Map(parse)
                | beam.Map(serialize)
                | beam.Reshuffle()
                | beam.io.WriteToTFRecord(f"{out}/train", num_shards=SHARDS)
            )

    return work


def arrow_tfx_bsl(kind: str, source: str, out: str) -> Work:
    """Runs the fastest components that exist, combined by hand.

    These are pyarrow's reader, tfx-bsl's encoder and TFRecordWriter. There is no shuffle and no
    check.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json
    import tensorflow as tf
    from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

    def lists(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for column in batch.columns:
            if pa.types.is_timestamp(column.type):
                column = column.cast(pa.int64())
            if pa.types.is_floating(column.type):
                column = column.cast(pa.float32())
            if pa.types.is_boolean(column.type):
                column = column.cast(pa.int64())
            if not pa.types.is_integer(column.type) and not pa.types.is_floating(column.type):
                column = column.cast(pa.binary())
            offsets = pa.array(range(len(column) + 1), pa.int32())
            columns.append(pa.ListArray.from_arrays(offsets, column))
        return pa.RecordBatch.from_arrays(columns, batch.schema.names)

    os.makedirs(fresh(out))

    def work() -> None:
        table = pyarrow.csv.read_csv(source) if kind == "csv" else pyarrow.json.read_json(source)
        encoder = RecordBatchToExamplesEncoder()
        writers = [
            tf.io.TFRecordWriter(f"{out}/train-{i:05d}-of-{SHARDS:05d}") for i in range(SHARDS)
        ]
        for number, batch in enumerate(
            table.to_batches(max_chunksize=-(-table.num_rows // SHARDS))
        ):
            for record in encoder.encode(lists(batch)):
                writers[number % SHARDS].write(record)
        for writer in writers:
            writer.close()

    return work


def tutorial_images(source: str, out: str, synced: str = "") -> Work:
    """Runs the loop of the image tutorial.

    It reads each file, decodes the header for the size, and writes to the shards in turn.

    Args:
        source: The folder of class folders.
        out: The output folder.
        synced: Not empty: the work also flushes the shards to the disk, as a build does.
    """
    import tensorflow as tf
    from PIL import Image

    os.makedirs(fresh(out))

    def work() -> None:
        writers = [
            tf.io.TFRecordWriter(f"{out}/train-{i:05d}-of-{SHARDS:05d}") for i in range(SHARDS)
        ]
        for number, path in enumerate(sorted(glob.glob(f"{source}/*/*.jpg"))):
            with open(path, "rb") as file:
                data = file.read()
            with Image.open(path) as image:
                width, height = image.size
            row = {
                "image": data,
                "height": height,
                "width": width,
                "label": int(os.path.basename(os.path.dirname(path))[-1]),
            }
            example = tf.train.Example(
                features=tf.train.Features(
                    feature={name: _feature(value, tf) for name, value in row.items()}
                )
            )
            writers[number % SHARDS].write(example.SerializeToString())
        for writer in writers:
            writer.close()
        if synced:
            _sync(out)

    return work


def plain_beam_images(source: str, out: str) -> Work:
    """Runs a Beam pipeline that makes one Example per file.

    It applies MatchFiles, ReadMatches, Reshuffle and WriteToTFRecord.
    """
    import apache_beam as beam
    import tensorflow as tf
    from apache_beam.io import fileio
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    fresh(out)

    def work() -> None:

        def serialize(file: Any) -> bytes:
            row = {
                "image": file.read(),
                "label": int(os.path.basename(os.path.dirname(file.metadata.path))[-1]),
            }
            return tf.train.Example(
                features=tf.train.Features(
                    feature={name: _feature(value, tf) for name, value in row.items()}
                )
            ).SerializeToString()  # type: ignore[no-any-return]

        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            files = pipeline | fileio.MatchFiles(f"{source}/*/*.jpg") | fileio.ReadMatches()
            _ = (
                files
                | beam.Map(serialize)
                | beam.Reshuffle()
                | beam.io.WriteToTFRecord(f"{out}/train", num_shards=SHARDS)
            )

    return work


def tfds_images(source: str, out: str, synced: str = "") -> Work:
    """Runs the writer of TensorFlow Datasets, as `download_and_prepare` does.

    It shuffles by hash and writes shards.

    Args:
        source: The folder of class folders.
        out: The output folder.
        synced: Not empty: the work also flushes the shards to the disk, as a build does.
    """
    import numpy as np

    # tensorflow_datasets imports TensorFlow when it first needs it, which would count as work.
    import tensorflow  # noqa: F401
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import example_serializer, features, file_adapters, naming, writer

    os.makedirs(fresh(out))

    def work() -> None:
        spec = features.FeaturesDict(
            {"image": features.Scalar(dtype=np.object_), "label": features.Scalar(dtype=np.int64)}
        )
        serializer = example_serializer.ExampleSerializer(spec.get_serialized_info())
        template = naming.ShardedFileTemplate(
            data_dir=out, dataset_name="images", split="train", filetype_suffix="tfrecord"
        )
        shards = writer.ExampleWriter(file_adapters.FileFormat.TFRECORD)
        target = writer.Writer(
            serializer, template, hash_salt="train", disable_shuffling=False, example_writer=shards
        )
        for path in sorted(glob.glob(f"{source}/*/*.jpg")):
            with open(path, "rb") as file:
                target.write(
                    path,
                    {
                        "image": file.read(),
                        "label": int(os.path.basename(os.path.dirname(path))[-1]),
                    },
                )
        target.finalize()
        if synced:
            _sync(out)

    assert tfds
    return work


def mosaicml_images(source: str, out: str) -> Work:
    """Runs the writer of MosaicML's streaming, which has a format of its own (MDS).

    There is no shuffle and no check.
    """
    from streaming import MDSWriter

    fresh(out)

    def work() -> None:
        with MDSWriter(out=out, columns={"image": "bytes", "label": "int"}) as writer:
            for path in sorted(glob.glob(f"{source}/*/*.jpg")):
                with open(path, "rb") as file:
                    writer.write(
                        {
                            "image": file.read(),
                            "label": int(os.path.basename(os.path.dirname(path))[-1]),
                        }
                    )

    return work


def ray_data(kind: str, source: str, out: str) -> Work:
    """Runs Ray Data: reads, shuffles globally and writes TFRecords.

    Ray's processes are started during the set-up.
    """
    import ray

    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)

    fresh(out)

    def work() -> None:
        rows = (
            ray.data.read_csv(source) if kind == "csv" else ray.data.read_json(source, lines=True)
        )
        times = [
            name
            for name, dtype in zip(rows.schema().names, rows.schema().types, strict=True)
            if "timestamp" in str(dtype)
        ]
        # Ray's TFRecord writer supports only numbers and strings.
        if times:
            rows = rows.map_batches(
                lambda frame: frame.assign(**{name: frame[name].astype("int64") for name in times}),
                batch_format="pandas",
            )
        rows.random_shuffle(seed=7).repartition(SHARDS).write_tfrecords(out)

    return work
