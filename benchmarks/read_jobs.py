"""What `read.py` compares: recordmill and the ways people turn TFRecords into a table. Each function sets up and returns the work."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Callable
from typing import Any

Work = Callable[[], object]


def _files(source: str) -> list[str]:
    return sorted(glob.glob(f"{source}/data-*/*.tfrecord"))


def _spec(source: str) -> dict[str, Any]:
    """The tf.io feature spec of the data set; every feature is a scalar."""
    import tensorflow as tf

    import recordmill

    kinds = {"int64": tf.int64, "float": tf.float32, "bytes": tf.string}
    defaults = {"int64": 0, "float": 0.0, "bytes": ""}
    return {f.name: tf.io.FixedLenFeature((), kinds[f.kind], defaults[f.kind]) for f in recordmill.open(source).schema}


def recordmill(source: str, out: str, to: str) -> Work:
    """The public function, after its imports; compiled code comes from the cache."""
    import recordmill

    shutil.rmtree(out, ignore_errors=True)
    recordmill.read(source, out, to=to, limit=10)
    shutil.rmtree(out)
    return lambda: recordmill.read(source, out, to=to)


def tf_data(source: str, out: str, to: str) -> Work:
    """tf.data with parse_example on batches of 50,000, its fastest size here, then pyarrow or NumPy."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import tensorflow as tf

    spec = _spec(source)

    def work() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        batches = tf.data.TFRecordDataset(_files(source)).batch(50_000).map(lambda records: tf.io.parse_example(records, spec)).prefetch(1)
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
                np.save(f"{out}/{name}.npy", column.astype("S") if column.dtype == object else column)

    return work


def tutorial(source: str, out: str, to: str) -> Work:
    """The loop of the tutorials: parse_single_example and .numpy() for each record; of the first 20,000 only, and the time is scaled up."""
    import pandas as pd
    import tensorflow as tf

    spec = _spec(source)

    def work() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        rows = []
        for record in tf.data.TFRecordDataset(_files(source)).take(20_000):
            rows.append({name: value.numpy() for name, value in tf.io.parse_single_example(record, spec).items()})
        pd.DataFrame(rows).to_parquet(f"{out}/first.parquet")

    return work


def tfx_bsl_beam(source: str, out: str, to: str) -> Work:
    """tfx-bsl's TFExampleRecord source in Beam, its RecordBatches written by pyarrow."""
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
