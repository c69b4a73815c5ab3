"""Data sets for the tests of readers, written without a build."""

import gzip
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from blake3 import blake3

from kit.batches import table_of
from kit.files import flip
from recordmill.reader.dataset import Dataset
from recordmill.reader.records import Records
from recordmill.records.example.encode import encode
from recordmill.schemas import tfmd
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.file_names import ShardName
from recordmill.shards.index import INDEX_DTYPE, INDEX_FRAME_BYTES, MEMBERS_DTYPE, record_checksum
from recordmill.shards.manifest import Manifest, Part, ShardInfo

FOLDER = "data-test"
PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": lambda data: gzip.compress(data, mtime=0)}

MIXED = Schema(
    (
        Feature("id", "int64", (), True),
        Feature("matrix", "float32", (2, 3), True),
        Feature("name", "string", (), True),
        Feature("payload", "bytes"),
        Feature("maybe", "float32"),
        Feature("small", "uint8", (4,), True),
        Feature("exact", "float64", (), True),
        Feature("flag", "bool"),
        Feature("tokens", "int32", (None,)),
        Feature("words", "string", (None,), True),
        Feature("nested", "int64", (None, None)),
        Feature("boxes", "float32", (None, 4), True),
        Feature("when", "timestamp[us, UTC]"),
        Feature("label", "int64", (), True, ("cat", "dog", "fish")),
    ),
    label="label",
)


def mixed_rows(count: int, first: int = 0) -> pa.Table:
    """Returns rows of MIXED, which follow from the numbers of the rows.

    Some values are missing or empty.
    """
    rows = range(first, first + count)
    columns = {
        "id": list(rows),
        "matrix": [[i + j / 8 for j in range(6)] for i in rows],
        "name": [f"row {i} ü" for i in rows],
        "payload": [
            None if i % 7 == 0 else b"" if i % 7 == 1 else bytes([i % 256, 0, 255]) * (i % 5)
            for i in rows
        ],
        "maybe": [None if i % 3 == 0 else i / 4 for i in rows],
        "small": [[i % 256, 0, 255, 1] for i in rows],
        "exact": [i + 1e-12 for i in rows],
        "flag": [None if i % 5 == 4 else i % 2 == 0 for i in rows],
        "tokens": [None if i % 11 == 3 else list(range(i % 4)) for i in rows],
        "words": [[f"w{j}" * j for j in range(i % 3)] for i in rows],
        "nested": [None if i % 6 == 5 else [[i] * j for j in range(i % 4)] for i in rows],
        "boxes": [[[i, 0, 1, 2]] * (i % 3) for i in rows],
        "when": [None if i % 4 == 2 else 1_700_000_000_000_000 + i for i in rows],
        "label": [i % 3 for i in rows],
    }
    return table_of(columns, MIXED)


def plain_columns(table: pa.Table) -> dict[str, list[Any]]:
    """Returns the columns of rows of MIXED as `kit.batches.plain` returns them.

    Times are integers. The matrix has its two dimensions.
    """
    columns = {
        name: (
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        ).to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return columns | {"matrix": np.reshape(columns["matrix"], (-1, 2, 3)).tolist()}


def write_data_set(
    out: Path,
    tables: Mapping[str, pa.Table | Mapping[str, Any]],
    schema: Schema = MIXED,
    *,
    shards: int = 2,
    compression: str = "none",
    member_bytes: int = 2000,
) -> Path:
    """Writes and commits a data set. Returns its folder.

    Args:
        tables: The table, or the columns, of each split, in their order.
        shards: Number of shards per split.
    """
    (out / FOLDER / "index").mkdir(parents=True)
    splits = {}
    for split, rows in tables.items():
        table = rows if isinstance(rows, pa.Table) else table_of(rows, schema)
        cuts = np.linspace(0, table.num_rows, shards + 1).astype(int)
        parts = [table.slice(a, b - a) for a, b in itertools.pairwise(cuts)]
        splits[split] = tuple(
            _write_shard(
                out / FOLDER,
                ShardName(split, i, shards, compression),
                part,
                schema,
                int(cuts[i]),
                member_bytes,
            )
            for i, part in enumerate(parts)
        )
    total_rows = sum(shard.records for split_shards in splits.values() for shard in split_shards)
    part = Part(FOLDER, "memory", splits, {"files": 0, "bytes": 0}, total_rows, 0)
    manifest = Manifest("made", compression, {}, tfmd.to_pbtxt(schema), (part,), {"total": 0})
    (out / "_manifests").mkdir()
    (out / "_manifests" / "00000001.json").write_text(manifest.to_json())
    (out / "manifest.json").write_text(manifest.to_json())
    (out / "schema.pbtxt").write_text(manifest.schema)
    return out


def on_one_thread(ds: Dataset) -> Dataset:
    """Returns a data set with the same records, which one thread reads."""
    records = ds.records
    return Dataset(Records.from_files(replace(records.open_files, threads=1), records.columns))


def flip_record(out: Path, record: int, shard: str = "train-00001") -> tuple[Path, int]:
    """Flips a bit of the payload of a record in a shard.

    Returns:
        (path of the shard, offset of the record's frame)
    """
    path = next((out / FOLDER).glob(f"{shard}*"))
    offset = int(np.load(out / FOLDER / "index" / f"{shard}.npy")["offset"][record])
    flip(path, offset + 30)
    return path, offset


def _write_shard(
    folder: Path, name: ShardName, rows: pa.Table, schema: Schema, first: int, member_bytes: int
) -> ShardInfo:
    batch = (
        pa.RecordBatch.from_arrays(
            [pa.concat_arrays(column.chunks) for column in rows.columns], schema=rows.schema
        )
        if rows.num_rows
        else None
    )
    frames = None if batch is None else encode(batch, schema)
    data = b"" if frames is None else frames.data.tobytes()
    index = np.zeros(rows.num_rows, INDEX_DTYPE)
    checksum = 0
    if frames is not None:
        index["offset"], index["length"] = frames.starts, frames.lengths
        index["key"] = np.arange(first, first + rows.num_rows, dtype=np.uint64) * 1000
        checksum = record_checksum(index["key"], frames.crcs)
    file_bytes = data
    if (pack := PACK.get(name.compression)) is not None:
        file_bytes, members = _members(data, index, member_bytes, pack)
        np.save(folder / "index" / name.members_name, members)
    (folder / str(name)).write_bytes(file_bytes)
    np.save(folder / "index" / name.index_name, index)
    digest = f"blake3:{blake3(file_bytes).hexdigest()}"
    return ShardInfo(
        str(name), rows.num_rows, len(file_bytes), len(data), digest, f"{checksum:016x}"
    )


def _members(
    data: bytes, index: np.ndarray, member_bytes: int, pack: Callable[[bytes], bytes]
) -> tuple[bytes, np.ndarray]:
    starts = [0]
    for offset, length in zip(index["offset"].tolist(), index["length"].tolist(), strict=True):
        if offset + length + INDEX_FRAME_BYTES - starts[-1] > member_bytes and offset > starts[-1]:
            starts.append(offset)
    compressed_members = [
        pack(data[a:b]) for a, b in zip(starts, [*starts[1:], len(data)], strict=True)
    ]
    members = np.zeros(len(starts), MEMBERS_DTYPE)
    members["uncompressed"] = starts
    members["compressed"] = np.cumsum([0, *(len(part) for part in compressed_members[:-1])])
    return b"".join(compressed_members), members


def window_options(shuffle: object, window_bytes: int) -> dict[str, int]:
    """Returns the option for the window size, for shuffle modes that accept it."""
    return {"window_bytes": window_bytes} if shuffle in (True, "window") else {}


def plain_file(path: Path, rows: int = 50, first: int = 0) -> Path:
    """Writes rows of MIXED to an uncompressed TFRecord file without an index."""
    (batch,) = mixed_rows(rows, first).combine_chunks().to_batches()
    path.write_bytes(encode(batch, MIXED).data.tobytes())
    return path
