"""What `build.py` compares: recordmill and the ways people build TFRecords without it.
Each function sets up and returns the work.
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


def _fresh(out: str) -> str:
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    return out


def recordmill(kind: str, source: str, out: str) -> Work:
    """The public function, after its imports and one tiny input of the same kind,
    which loads the compiled code from the cache.
    """
    import apache_beam  # noqa: F401

    import recordmill
    from recordmill.transforms import stages  # noqa: F401

    tiny = _fresh(out + "-tiny")
    os.makedirs(f"{tiny}/class0")
    if kind == "images":
        shutil.copy(min(glob.glob(f"{source}/*/*.jpg")), f"{tiny}/class0")
    else:
        with open(source, "rb") as file, open(f"{tiny}/rows.{kind}", "wb") as few:
            few.writelines(file.readline() for _ in range(100))
    recordmill.build(tiny, _fresh(out + "-warm"), kind=kind)
    _fresh(out)
    return lambda: recordmill.build(source, out, kind=kind, num_shards=SHARDS)


def _sync(folder: str) -> None:
    """Have all files of the folder on the disk, four at a time."""
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
    """The loop of the TFRecord tutorial: a tf.train.Example per row, written round-robin to 16 files.
    No shuffle, no check.
    """
    import tensorflow as tf

    os.makedirs(_fresh(out))

    def work() -> None:
        writers = [tf.io.TFRecordWriter(f"{out}/train-{i:05d}-of-{SHARDS:05d}") for i in range(SHARDS)]
        for number, row in enumerate(_rows(kind, source)):
            example = tf.train.Example(
                features=tf.train.Features(feature={name: _feature(value, tf) for name, value in row.items()})
            )
            writers[number % SHARDS].write(example.SerializeToString())
        for writer in writers:
            writer.close()

    return work


def plain_beam(kind: str, source: str, out: str) -> Work:
    """Beam as its documentation shows it: read lines, make an Example a row, Reshuffle, WriteToTFRecord."""
    import apache_beam as beam
    import tensorflow as tf
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    _fresh(out)

    def work() -> None:
        with open(source, encoding="utf-8") as file:
            header = next(csv.reader(file)) if kind == "csv" else []

        def parse(line: str) -> dict[str, Any]:
            if kind == "csv":
                return {
                    name: _number(text) for name, text in zip(header, next(csv.reader([line])), strict=True) if text
                }
            return json.loads(line)  # type: ignore[no-any-return]

        def serialize(row: dict[str, Any]) -> bytes:
            features = {name: _feature(value, tf) for name, value in row.items() if value is not None}
            return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()  # type: ignore[no-any-return]

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
    """The fastest parts there are, by hand: pyarrow's reader, tfx-bsl's encoder, TFRecordWriter.
    No shuffle, no check.
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

    os.makedirs(_fresh(out))

    def work() -> None:
        table = pyarrow.csv.read_csv(source) if kind == "csv" else pyarrow.json.read_json(source)
        encoder = RecordBatchToExamplesEncoder()
        writers = [tf.io.TFRecordWriter(f"{out}/train-{i:05d}-of-{SHARDS:05d}") for i in range(SHARDS)]
        for number, batch in enumerate(table.to_batches(max_chunksize=-(-table.num_rows // SHARDS))):
            for record in encoder.encode(lists(batch)):
                writers[number % SHARDS].write(record)
        for writer in writers:
            writer.close()

    return work


def limit(kind: str, source: str, out: str) -> Work:
    """What any way must do at least: pyarrow's reader, then the kernels alone, on all threads and in memory: Examples
    encoded with CRCs, keys hashed and sorted, frames gathered, checked once more, digested, written and synced, and the
    input digested. No plan, no exact inference, no rejects, no notes, no accounts, no Beam, no commit; all in memory.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json

    from recordmill.base.machine import core_count
    from recordmill.base.memory import address_of
    from recordmill.base.siphash import derive_key, hash_positions
    from recordmill.base.threads import thread_map
    from recordmill.building.run_file import permuted
    from recordmill.records.example.encode import encode
    from recordmill.records.tfrecord.frames import FRAME_BYTES, scan
    from recordmill.schemas.feature import Feature, Schema
    from recordmill.storage.digest import DIGESTED_BYTES, Digest, chunk_digests, combine
    from recordmill.storage.files import read_range

    threads = core_count()
    keys_of = [np.array([half], np.uint64) for half in derive_key(0, b"limit")]

    def digested() -> str:
        places = range(0, os.path.getsize(source), DIGESTED_BYTES)
        parts = thread_map(lambda at: [*chunk_digests(read_range(source, at, at + DIGESTED_BYTES))], places, threads)
        return combine([digest for part in parts for digest in part])

    def schema_of(table: pa.Table) -> Schema:
        dtypes = {"double": "float32", "string": "string", "int64": "int64", "timestamp[s]": "timestamp[s]"}
        return Schema(tuple(Feature(field.name, dtypes[str(field.type)]) for field in table.schema))

    def encoded(batch: pa.RecordBatch, first: int, schema: Schema) -> tuple[Any, Any]:
        kinds = {"float32": pa.float32(), "string": pa.large_string()}
        columns = [
            column.cast(kinds[feature.dtype]) if feature.dtype in kinds else column
            for feature, column in zip(schema, batch.columns, strict=True)
        ]
        frames = encode(pa.RecordBatch.from_arrays(columns, batch.schema.names), schema)
        positions, keys = np.arange(first, first + batch.num_rows), np.empty(batch.num_rows, np.uint64)
        hash_positions(*keys_of, np.zeros(batch.num_rows, np.uint32), 0, positions, keys)
        return frames, keys

    os.makedirs(_fresh(out))

    def work() -> None:
        digested()
        table = pyarrow.csv.read_csv(source) if kind == "csv" else pyarrow.json.read_json(source)
        schema, batches = schema_of(table), table.to_batches(max_chunksize=1 << 16)
        firsts = np.cumsum([0, *(batch.num_rows for batch in batches)]).tolist()
        parts = [*thread_map(lambda one: encoded(*one, schema), zip(batches, firsts[:-1], strict=True), threads)]
        sizes = np.concatenate([frames.lengths for frames, _ in parts]) + FRAME_BYTES
        addresses = np.concatenate([frames.starts + address_of(frames.data) for frames, _ in parts])
        order = np.argsort(np.concatenate([keys for _, keys in parts]))

        def write(shard: int) -> str:
            mine = order[shard * len(order) // SHARDS : (shard + 1) * len(order) // SHARDS]
            digest = Digest()
            with open(f"{out}/train-{shard:05d}-of-{SHARDS:05d}", "wb") as file:
                for piece, _ in permuted(addresses, sizes, mine):
                    scan(piece, source="", first_record=0, first_offset=0, max_record_bytes=1 << 30, final=True)
                    digest.update(piece)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            return digest.text()

        assert len(list(thread_map(write, range(SHARDS), threads))) == SHARDS

    _ = encode(pa.RecordBatch.from_pydict({"a": pa.array(["x"], pa.large_string())}), Schema((Feature("a", "string"),)))
    return work


def limit_images(source: str, out: str) -> Work:
    """What any way must do at least with images: each file read, its structure checked, digested, encoded with CRCs,
    hashed to a key; in the order of the keys the frames are checked once more, digested, written and synced, on all
    threads. No plan, no listing but the glob, no rejects, no accounts, no index, no Beam, no commit.
    """
    import itertools

    import numpy as np
    import pyarrow as pa

    from recordmill.base.machine import core_count
    from recordmill.base.siphash import derive_key, hash_positions
    from recordmill.base.threads import thread_map
    from recordmill.images.check import check_structure
    from recordmill.records.example.encode import encode
    from recordmill.records.tfrecord.frames import scan
    from recordmill.schemas.feature import Feature, Schema
    from recordmill.storage.digest import Digest, chunk_digests, combine
    from recordmill.storage.files import read_range

    threads = core_count()
    keys_of = [np.array([half], np.uint64) for half in derive_key(0, b"limit")]
    dtypes = {"image": "bytes", "height": "int64", "width": "int64", "label": "int64"}
    schema = Schema(tuple(Feature(name, dtype) for name, dtype in dtypes.items()))

    def batch_of(paths: list[str]) -> Any:
        data = [read_range(path) for path in paths]
        for one in data:
            combine(chunk_digests(one))
        headers = [check_structure(one, 1 << 30) for one in data]
        offsets = np.cumsum([0, *map(len, data)])
        whole = pa.py_buffer(np.concatenate(data))
        images = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(data), [None, pa.py_buffer(offsets.astype(np.int64)), whole]
        )
        sizes = [pa.array([getattr(header, name) for header in headers], pa.int64()) for name in ("height", "width")]
        labels = pa.array([int(os.path.basename(os.path.dirname(path))[-1]) for path in paths], pa.int64())
        return encode(pa.RecordBatch.from_arrays([images, *sizes, labels], schema.names), schema)

    def write(paths: list[str], shard: int) -> None:
        digest = Digest()
        with open(f"{out}/train-{shard:05d}-of-{SHARDS:05d}", "wb") as file:
            for first in range(0, len(paths), 64):
                frames = batch_of(paths[first : first + 64])
                scan(frames.data, source="", final=True)
                digest.update(frames.data)
                file.write(frames.data)
            file.flush()
            os.fsync(file.fileno())
        digest.text()

    os.makedirs(_fresh(out))

    def work() -> None:
        paths = np.array(sorted(glob.glob(f"{source}/*/*.jpg")))
        keys = np.empty(len(paths), np.uint64)
        hash_positions(*keys_of, np.zeros(len(paths), np.uint32), 0, np.arange(len(paths)), keys)
        paths = paths[np.argsort(keys)]
        edges = [len(paths) * shard // SHARDS for shard in range(SHARDS + 1)]
        parts = [paths[first:last].tolist() for first, last in itertools.pairwise(edges)]
        assert len(list(thread_map(lambda one: write(parts[one], one), range(SHARDS), threads))) == SHARDS

    batch_of(sorted(glob.glob(f"{source}/*/*.jpg"))[:1])
    return work


def tutorial_images(source: str, out: str, synced: str = "") -> Work:
    """The image tutorial's loop: read each file, note its size by decoding its header, write round-robin. synced: as of
    `tfds_images`.
    """
    import tensorflow as tf
    from PIL import Image

    os.makedirs(_fresh(out))

    def work() -> None:
        writers = [tf.io.TFRecordWriter(f"{out}/train-{i:05d}-of-{SHARDS:05d}") for i in range(SHARDS)]
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
                features=tf.train.Features(feature={name: _feature(value, tf) for name, value in row.items()})
            )
            writers[number % SHARDS].write(example.SerializeToString())
        for writer in writers:
            writer.close()
        if synced:
            _sync(out)

    return work


def plain_beam_images(source: str, out: str) -> Work:
    """Files matched and read by Beam, an Example each, Reshuffle, WriteToTFRecord."""
    import apache_beam as beam
    import tensorflow as tf
    from apache_beam.io import fileio
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    _fresh(out)

    def work() -> None:

        def serialize(file: Any) -> bytes:
            row = {"image": file.read(), "label": int(os.path.basename(os.path.dirname(file.metadata.path))[-1])}
            return tf.train.Example(
                features=tf.train.Features(feature={name: _feature(value, tf) for name, value in row.items()})
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
    """TensorFlow Datasets' own writer: shuffles by hash, writes shards; what `download_and_prepare` runs. synced: if
    not empty, the shards are on the disk when it ends, as they are after a build.
    """
    import numpy as np
    import tensorflow  # noqa: F401  # tensorflow_datasets imports it when it first needs it
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import example_serializer, features, file_adapters, naming, writer

    os.makedirs(_fresh(out))

    def work() -> None:
        spec = features.FeaturesDict(
            {"image": features.Scalar(dtype=np.object_), "label": features.Scalar(dtype=np.int64)}
        )
        serializer = example_serializer.ExampleSerializer(spec.get_serialized_info())
        template = naming.ShardedFileTemplate(
            data_dir=out, dataset_name="images", split="train", filetype_suffix="tfrecord"
        )
        shards = writer.ExampleWriter(file_adapters.FileFormat.TFRECORD)
        target = writer.Writer(serializer, template, hash_salt="train", disable_shuffling=False, example_writer=shards)
        for path in sorted(glob.glob(f"{source}/*/*.jpg")):
            with open(path, "rb") as file:
                target.write(path, {"image": file.read(), "label": int(os.path.basename(os.path.dirname(path))[-1])})
        target.finalize()
        if synced:
            _sync(out)

    assert tfds
    return work


def mosaicml_images(source: str, out: str) -> Work:
    """MosaicML streaming's writer: its own format (MDS), in the order in which it is written. No shuffle, no check."""
    from streaming import MDSWriter

    _fresh(out)

    def work() -> None:
        with MDSWriter(out=out, columns={"image": "bytes", "label": "int"}) as writer:
            for path in sorted(glob.glob(f"{source}/*/*.jpg")):
                with open(path, "rb") as file:
                    writer.write({"image": file.read(), "label": int(os.path.basename(os.path.dirname(path))[-1])})

    return work


def ray_data(kind: str, source: str, out: str) -> Work:
    """Ray Data: read, shuffle globally, write TFRecords; Ray's own processes are started before."""
    import ray

    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)

    _fresh(out)

    def work() -> None:
        rows = ray.data.read_csv(source) if kind == "csv" else ray.data.read_json(source, lines=True)
        times = [
            name
            for name, dtype in zip(rows.schema().names, rows.schema().types, strict=True)
            if "timestamp" in str(dtype)
        ]
        if times:  # its writer knows numbers and strings only
            rows = rows.map_batches(
                lambda frame: frame.assign(**{name: frame[name].astype("int64") for name in times}),
                batch_format="pandas",
            )
        rows.random_shuffle(seed=7).repartition(SHARDS).write_tfrecords(out)

    return work
