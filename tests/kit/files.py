"""Contents of files and folders: bytes by name, TFRecord files, damaged copies."""

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from recordmill.records.tfrecord.frames import Frames, frame_payloads
from recordmill.records.tfrecord.members import MemberWriter
from recordmill.shards.manifest import load_manifest
from recordmill.storage.codecs import find_codec
from recordmill.storage.files import read_range
from recordmill.storage.folders import find_files, join


def tree(folder: Path) -> dict[str, bytes]:
    """Returns the contents of all files below a folder, by their relative paths."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def files_in(out: str | Path, folder: str) -> dict[str, bytes]:
    """Returns the contents of all files below a folder of OUT, by their paths.

    OUT is on a disk or in a store.
    """
    paths = find_files(join(str(out), folder))
    return {name: read_range(path).tobytes() for name, path in paths.items()}


def shard_bytes(out: str | Path) -> dict[tuple[int, str], bytes]:
    """Returns the bytes of each shard of a local data set.

    The keys are (index of the part, name of the shard), because parts may use the same names.
    """
    return {
        (index, shard.name): (Path(out) / part.folder / shard.name).read_bytes()
        for index, part in enumerate(load_manifest(out).parts)
        for shards in part.splits.values()
        for shard in shards
    }


def npy(array: Any, **options: Any) -> bytes:
    """Returns the content of a .npy file."""
    np.save(buffer := io.BytesIO(), array, **options)
    return buffer.getvalue()


def zstd(data: bytes) -> bytes:
    """Returns one frame of Zstandard."""
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def flip(path: str | Path, offset: int) -> None:
    """Flips the lowest bit of one byte of a file."""
    data = bytearray(Path(path).read_bytes())
    data[offset] ^= 1
    Path(path).write_bytes(data)


def damaged_copies(data: bytes, step: int = 1, cut_step: int | None = None) -> Iterator[bytes]:
    """Yields damaged copies of `data`.

    At every `step` bytes, one bit and then all bits of a byte are inverted. The position of the bit
    varies. Copies that end early follow, one every `cut_step` bytes.
    """
    for offset in range(0, len(data), step):
        for mask in (1 << offset // step % 8, 0xFF):
            yield data[:offset] + bytes([data[offset] ^ mask]) + data[offset + 1 :]
    yield from (data[:size] for size in range(0, len(data), cut_step or step))


def tfrecord_bytes(payloads: Iterable[bytes]) -> bytes:
    """Returns a TFRecord file of these payloads."""
    payloads = list(payloads)
    ends = np.cumsum([0, *map(len, payloads)], dtype=np.int64)
    return frame_payloads(np.frombuffer(b"".join(payloads), np.uint8), ends).data.tobytes()


def pack_members(
    pieces: Iterable[Frames], member_bytes: int = 1000, *, codec: str
) -> tuple[bytes, list[int], list[int]]:
    """Returns a compressed TFRecord file and its members.

    Returns:
        (the file, the start of each member in it, the start of each member in its content)
    """
    out: list[bytes] = []
    writer = MemberWriter(out.append, find_codec(codec), member_bytes=member_bytes)
    for piece in pieces:
        writer.write(piece)
    writer.close()
    return b"".join(out), *(column.tolist() for column in writer.table)


def write_file(path: str | Path, content: str | bytes) -> Path:
    """Writes a file, and makes the folders of its path.

    The content is compressed if the name ends with .gz.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_files(root: Path, files: Mapping[str, bytes]) -> Path:
    """Writes files by their names below a folder. Returns the folder."""
    for name, data in files.items():
        write_file(root / name, data)
    return root


def write_tfrecord(path: Path, *records: bytes) -> Path:
    """Writes a TFRecord file of these records. Returns its path."""
    path.write_bytes(tfrecord_bytes(records))
    return path


def write_rows(path: Path, columns: Mapping[str, Any]) -> Path:
    """Writes columns as CSV, JSON Lines or Parquet, according to the suffix.

    A missing value is an empty field, or has no key.
    """
    table = pa.table({name: pa.array(column) for name, column in columns.items()})
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path, pyarrow.csv.WriteOptions(quoting_style="needed"))
    elif path.suffix == ".jsonl":
        rows = (
            {name: value for name, value in row.items() if value is not None}
            for row in table.to_pylist()
        )
        path.write_text(
            "".join(json.dumps(row, default=str) + "\n" for row in rows), encoding="utf-8"
        )
    else:
        pyarrow.parquet.write_table(table, path, row_group_size=70)
    return path
