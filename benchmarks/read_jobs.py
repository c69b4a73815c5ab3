"""Jobs that `read.py` compares: recordmill, and other ways to turn TFRecords into a table.

Each function sets up a job and returns its work.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Callable
from typing import Any

Work = Callable[[], object]


def _files(source: str) -> list[str]:
    return sorted(glob.glob(f"{source}/data-*/*.tfrecord")) or sorted(
        glob.glob(f"{source}/*.tfrecord")
    )


def _spec(source: str) -> dict[str, Any]:
    """Returns the tf.io feature spec of a data set that has only scalars."""
    import tensorflow as tf

    import recordmill

    kinds = {"int64": tf.int64, "float": tf.float32, "bytes": tf.string}
    defaults = {"int64": 0, "float": 0.0, "bytes": ""}
    return {
        f.name: tf.io.FixedLenFeature((), kinds[f.kind], defaults[f.kind])
        for f in recordmill.open(source).schema
    }


def recordmill_read(source: str, out: str, to: str) -> Work:
    """Runs `recordmill.read`. The set-up loads compiled code by a tiny read."""
    import recordmill

    shutil.rmtree(out, ignore_errors=True)
    recordmill.read(source, out, to=to, limit=10)
    shutil.rmtree(out)
    return lambda: recordmill.read(source, out, to=to)


def foreign(source: str, out: str, to: str) -> Work:
    """Reads files without a manifest, index or schema.

    The output is one Parquet file, or arrays in memory.
    """
    import recordmill

    if to == "parquet":
        return recordmill_read(source, out, to)
    # The first call loads compiled code.
    recordmill.open(source).to_numpy()
    return lambda: recordmill.open(source).to_numpy()


def tf_data_in_memory(source: str, schema_of: str) -> Work:
    """Reads to arrays in memory with tf.data and parse_example, in batches of 50,000.

    Args:
        source: The folder of the files.
        schema_of: The data set that has the schema of these files.
    """
    import numpy as np
    import tensorflow as tf

    spec = _spec(schema_of)

    def work() -> dict[str, Any]:
        batches = tf.data.TFRecordDataset(_files(source)).batch(50_000)
        parsed = list(
            batches.map(lambda records: tf.io.parse_example(records, spec))
            .prefetch(1)
            .as_numpy_iterator()
        )
        return {name: np.concatenate([batch[name] for batch in parsed]) for name in spec}

    return work


def tf_data(source: str, out: str, to: str, known: str = "") -> Work:
    """Reads with tf.data and parse_example, then writes with pyarrow or NumPy.

    Batches have 50,000 records, which is the fastest size here.

    Args:
        source: The folder of the files.
        out: The output folder.
        to: The output format, "parquet" or "npy".
        known: The data set that has the schema, if `source` has none.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import tensorflow as tf

    spec = _spec(known or source)

    def work() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        batches = (
            tf.data.TFRecordDataset(_files(source))
            .batch(50_000)
            .map(lambda records: tf.io.parse_example(records, spec))
            .prefetch(1)
        )
        if to == "parquet":
            writer = None
            for batch in batches.as_numpy_iterator():
                table = pa.table({name: pa.array(column) for name, column in batch.items()})
                writer = writer or pq.ParquetWriter(f"{out}/all.parquet", table.schema)
                writer.write_table(table)
            assert writer is not None
            writer.close()
        else:
            columns: dict[str, list[Any]] = {}
            for batch in batches.as_numpy_iterator():
                for name, column in batch.items():
                    columns.setdefault(name, []).append(column)
            for name, parts in columns.items():
                column = np.concatenate(parts)
                np.save(
                    f"{out}/{name}.npy", column.astype("S") if column.dtype == object else column
                )

    return work


def tutorial(source: str, out: str, to: str) -> Work:
    """Runs the loop of tutorials: parse_single_example and .numpy() for each record.

    It reads only the first 20,000 records, so the time must be scaled up.
    """
    import pandas as pd
    import tensorflow as tf

    spec = _spec(source)

    def work() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        rows = []
        for record in tf.data.TFRecordDataset(_files(source)).take(20_000):
            rows.append(
                {
                    name: value.numpy()
                    for name, value in tf.io.parse_single_example(record, spec).items()
                }
            )
        pd.DataFrame(rows).to_parquet(f"{out}/first.parquet")

    return work


def tfx_bsl_beam(source: str, out: str, to: str) -> Work:
    """Reads with tfx-bsl's TFExampleRecord in Beam, and writes with pyarrow."""
    import apache_beam as beam
    import pyarrow as pa
    import pyarrow.parquet as pq
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from tfx_bsl.public import tfxio

    import recordmill as rm

    os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "upb"
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    assert rm
    with open(f"{source}/schema.pbtxt", encoding="utf-8") as file:
        schema = text_format.Parse(file.read(), schema_pb2.Schema())

    def write(batch: Any) -> None:
        pq.write_table(pa.Table.from_batches([batch]), f"{out}/{id(batch):x}.parquet")

    def work() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        pattern = tfxio.TFExampleRecord(file_pattern=f"{source}/data-*/*.tfrecord", schema=schema)
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            _ = pipeline | pattern.BeamSource(batch_size=50_000) | beam.Map(write)

    return work


TENSOR = (64, 64, 3)  # the shape of a float32 tensor of `make_tensors`: 49,152 bytes


def make_tensors(path: str, records: int) -> None:
    """Writes a file of Examples with the memory of a tensor and a label."""
    import numpy as np

    import recordmill
    from recordmill.records.tfrecord.frames import frame_payloads

    generator = np.random.default_rng(0)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        for number in range(records):
            record = recordmill.example(
                {"image": generator.random(TENSOR, np.float32).tobytes(), "label": number % 10}
            )
            file.write(
                frame_payloads(
                    np.frombuffer(record, np.uint8), np.array([0, len(record)], np.int64)
                ).data.tobytes()
            )


def tensors_recordmill(source: str, out: str, schema: str = "") -> Work:
    """Runs `recordmill read --to npy --decode-raw`.

    Args:
        source: The file.
        out: The output folder.
        schema: The file of the schema; "": it is inferred.
    """
    import recordmill

    options = {"to": "npy", "decode_raw": "image=float32[64,64,3]", "schema": schema or None}
    shutil.rmtree(out, ignore_errors=True)
    recordmill.read(source, out, limit=10, **options)
    shutil.rmtree(out)
    return lambda: recordmill.read(source, out, **options)


def tensors_tf_data(source: str, out: str) -> Work:
    """Reads tensors with tf.data and decode_raw to a memory map of the known size.

    The map is flushed at the end, as recordmill flushes its files.
    """
    import numpy as np
    import tensorflow as tf

    spec = {
        "image": tf.io.FixedLenFeature((), tf.string),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }

    def parse(records: Any) -> Any:
        found = tf.io.parse_example(records, spec)
        return tf.io.decode_raw(found["image"], tf.float32), found["label"]

    def work() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        rows = sum(1 for _ in tf.data.TFRecordDataset(source))
        images = np.lib.format.open_memmap(f"{out}/image.npy", "w+", np.float32, (rows, *TENSOR))
        labels = np.empty(rows, np.int64)
        at = 0
        for batch, label in (
            tf.data.TFRecordDataset(source)
            .batch(256)
            .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
            .prefetch(2)
            .as_numpy_iterator()
        ):
            images[at : at + len(batch)] = batch.reshape(-1, *TENSOR)
            labels[at : at + len(batch)] = label
            at += len(batch)
        images.flush()
        np.save(f"{out}/label.npy", labels)

    return work


def tensors_limit(source: str, out: str) -> Work:
    """Runs only the steps that every read of tensors needs.

    Each byte is read, both CRCs of each record are checked, each tensor is written once from the
    read buffer, and the file is flushed.
    """
    import numpy as np

    from recordmill.records.tfrecord.frames import HEADER_BYTES, scan_frames
    from recordmill.records.writers.npy_file import make_npy_header

    size = int(np.prod(TENSOR)) * 4
    # The first call loads compiled code.
    scan_frames(np.empty(0, np.uint8), source=source, is_final=True)

    def work() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        block = np.empty(8 << 20, np.uint8)
        at = rows = 0
        with (
            open(source, "rb", buffering=0) as file,
            open(f"{out}/image.npy", "wb", buffering=0) as target,
        ):
            target.write(bytes(128))
            while count := os.preadv(file.fileno(), [block], at):
                frames, used = scan_frames(
                    block[:count],
                    source=source,
                    is_final=at + count == os.fstat(file.fileno()).st_size,
                )
                begins = (
                    frames.starts
                    + HEADER_BYTES
                    + payload_at(block[frames.starts[0] + HEADER_BYTES :], size)
                )
                # One call of writev takes at most 1,024 buffers on Linux.
                for first in range(0, len(frames), 512):
                    os.writev(
                        target.fileno(),
                        [
                            block[begin : begin + size]
                            for begin in begins[first : first + 512].tolist()
                        ],
                    )
                at, rows = at + used, rows + len(frames)
            os.fsync(target.fileno())
            os.pwrite(
                target.fileno(), make_npy_header(np.dtype(np.float32), (rows, *TENSOR), 128), 0
            )

    return work


def payload_at(record: Any, size: int) -> int:
    """Returns the offset of the tensor in a record of `make_tensors`.

    The tensor follows its own length, which is a protobuf varint.
    """
    length = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
    return record[:200].tobytes().index(b"\x0a" + length) + 1 + len(length)
