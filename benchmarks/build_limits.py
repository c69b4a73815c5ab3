"""Lower limits for `build.py`: the necessary kernels alone, with the checks of a build."""

from __future__ import annotations

import glob
import os
from typing import Any

from build_jobs import SHARDS, Work, fresh


def limit(kind: str, source: str, out: str) -> Work:
    """Runs only the steps that every build of a table needs, on all threads.

    These steps are pyarrow's reader, encoding with CRCs, hashing and sorting of keys, gathering of
    frames, a second check, a digest, writing and syncing. All data is in memory. There is no plan,
    exact inference, rejects, notes, record counts and checksums, Beam or commit.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json

    from recordmill.base.machine import count_cores
    from recordmill.base.siphash import derive_key, hash_positions
    from recordmill.base.threads import thread_map
    from recordmill.building.sorted_run import gather_frames
    from recordmill.records.example.encode import encode
    from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES, scan_frames
    from recordmill.schemas.feature import Feature, Schema
    from recordmill.storage.digest import Digest

    threads = count_cores()
    key0, key1 = (np.array([half], np.uint64) for half in derive_key(0, b"limit"))

    def schema_of(table: pa.Table) -> Schema:
        dtypes = {
            "double": "float32",
            "string": "string",
            "int64": "int64",
            "timestamp[s]": "timestamp[s]",
        }
        return Schema(tuple(Feature(field.name, dtypes[str(field.type)]) for field in table.schema))

    def encoded(batch: pa.RecordBatch, first: int, schema: Schema) -> tuple[Any, Any]:
        kinds = {"float32": pa.float32(), "string": pa.large_string()}
        columns = [
            column.cast(kinds[feature.dtype]) if feature.dtype in kinds else column
            for feature, column in zip(schema, batch.columns, strict=True)
        ]
        frames = encode(pa.RecordBatch.from_arrays(columns, batch.schema.names), schema)
        positions, keys = (
            np.arange(first, first + batch.num_rows),
            np.empty(batch.num_rows, np.uint64),
        )
        hash_positions(key0, key1, np.zeros(batch.num_rows, np.uint32), 0, positions, keys)
        return frames, keys

    os.makedirs(fresh(out))

    def work() -> None:
        table = pyarrow.csv.read_csv(source) if kind == "csv" else pyarrow.json.read_json(source)
        schema, batches = schema_of(table), table.to_batches(max_chunksize=1 << 16)
        firsts = np.cumsum([0, *(batch.num_rows for batch in batches)]).tolist()
        parts = [
            *thread_map(
                lambda one: encoded(*one, schema), zip(batches, firsts[:-1], strict=True), threads
            )
        ]
        sizes = np.concatenate([frames.lengths for frames, _ in parts]) + FRAME_OVERHEAD_BYTES
        blocks, starts = (
            [frames.data for frames, _ in parts],
            np.concatenate([frames.starts for frames, _ in parts]),
        )
        which = np.repeat(
            np.arange(len(parts), dtype=np.int32), [len(frames.lengths) for frames, _ in parts]
        )
        order = np.argsort(np.concatenate([keys for _, keys in parts]))

        def write(shard: int) -> str:
            mine = order[shard * len(order) // SHARDS : (shard + 1) * len(order) // SHARDS]
            digest = Digest()
            with open(f"{out}/train-{shard:05d}-of-{SHARDS:05d}", "wb") as file:
                for piece, _ in gather_frames(blocks, starts, sizes, mine, block_ids=which):
                    scan_frames(piece, source="", first_record=0, first_offset=0, is_final=True)
                    digest.update(piece)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            return digest.text()

        assert len(list(thread_map(write, range(SHARDS), threads))) == SHARDS

    _ = encode(
        pa.RecordBatch.from_pydict({"a": pa.array(["x"], pa.large_string())}),
        Schema((Feature("a", "string"),)),
    )
    return work


def limit_images(source: str, out: str) -> Work:
    """Runs only the steps that every build of images needs, on all threads.

    Each file is read, checked, encoded with CRCs and hashed to a key. In the order of the keys, the
    frames are checked again, digested, written and synced. There is no plan, rejects, record counts
    and checksums, index, Beam or commit, and the files are listed by a glob.
    """
    import itertools

    import numpy as np
    import pyarrow as pa

    from recordmill.base.machine import count_cores
    from recordmill.base.siphash import derive_key, hash_positions
    from recordmill.base.threads import thread_map
    from recordmill.records.example.encode import encode
    from recordmill.records.images.check import check_structure
    from recordmill.records.tfrecord.frames import scan_frames
    from recordmill.schemas.feature import Feature, Schema
    from recordmill.storage.digest import Digest
    from recordmill.storage.files import read_range

    threads = count_cores()
    key0, key1 = (np.array([half], np.uint64) for half in derive_key(0, b"limit"))
    dtypes = {"image": "bytes", "height": "int64", "width": "int64", "label": "int64"}
    schema = Schema(tuple(Feature(name, dtype) for name, dtype in dtypes.items()))

    def batch_of(paths: list[str]) -> Any:
        data = [read_range(path) for path in paths]
        headers = [check_structure(one, 1 << 30) for one in data]
        offsets = np.cumsum([0, *map(len, data)])
        whole = pa.py_buffer(np.concatenate(data))
        images = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(data), [None, pa.py_buffer(offsets.astype(np.int64)), whole]
        )
        sizes = [
            pa.array([getattr(header, name) for header in headers], pa.int64())
            for name in ("height", "width")
        ]
        labels = pa.array(
            [int(os.path.basename(os.path.dirname(path))[-1]) for path in paths], pa.int64()
        )
        return encode(pa.RecordBatch.from_arrays([images, *sizes, labels], schema.names), schema)

    def write(paths: list[str], shard: int) -> None:
        digest = Digest()
        with open(f"{out}/train-{shard:05d}-of-{SHARDS:05d}", "wb") as file:
            for first in range(0, len(paths), 64):
                frames = batch_of(paths[first : first + 64])
                scan_frames(frames.data, source="", is_final=True)
                digest.update(frames.data)
                file.write(frames.data)
            file.flush()
            os.fsync(file.fileno())
        digest.text()

    os.makedirs(fresh(out))

    def work() -> None:
        paths = np.array(sorted(glob.glob(f"{source}/*/*.jpg")))
        keys = np.empty(len(paths), np.uint64)
        hash_positions(key0, key1, np.zeros(len(paths), np.uint32), 0, np.arange(len(paths)), keys)
        paths = paths[np.argsort(keys)]
        edges = [len(paths) * shard // SHARDS for shard in range(SHARDS + 1)]
        parts = [paths[first:last].tolist() for first, last in itertools.pairwise(edges)]
        assert (
            len(list(thread_map(lambda one: write(parts[one], one), range(SHARDS), threads)))
            == SHARDS
        )

    batch_of(sorted(glob.glob(f"{source}/*/*.jpg"))[:1])
    return work
