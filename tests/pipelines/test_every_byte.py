"""Damage to any byte of a small file is noticed.

If a byte changes or the file is truncated, `open` refuses the file, and `read` accounts for every
record.
"""

import gzip
import io
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.files import damaged_copies, tfrecord_bytes
from kit.runs import rejects_of
from kit.wire_writer import INT64, entry, feature, feature_list, field

import recordmill
from recordmill.base.errors import DataError
from recordmill.records.example.encode import encode
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import SEQUENCE_EXAMPLE, Feature, Schema
from recordmill.shards.rejects import TooManyRejects

pytestmark = pytest.mark.sweep

SCHEMA = Schema(
    (
        Feature("id", "int64", (), True),
        Feature("x", "float32", (None,), True),
        Feature("y", "bytes"),
    )
)
STEPS = Schema(
    (Feature("id", "int64", (), True), Feature("step", "int64", (None, None), True, per_step=True)),
    message=SEQUENCE_EXAMPLE,
)
ROWS = 4
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A file to damage, and its contents.

    Attributes:
        data: The bytes of the file.
        rows: Its records.
        starts: The offset of each record in the inflated file, and the end of the file.
        inflate: Inflates a file, with a decoder that is not ours.
    """

    data: bytes
    schema: Schema
    rows: tuple[Row, ...]
    starts: tuple[int, ...]
    inflate: Callable[[bytes], bytes]

    @property
    def plain(self) -> bool:
        return self.inflate is bytes


def examples() -> tuple[bytes, Schema, tuple[Row, ...]]:
    rows = tuple(
        {"id": i, "x": [0.5] * i, "y": [b"abc", None, b"", b"\xff"][i]} for i in range(ROWS)
    )
    return (
        encode(pa.RecordBatch.from_pylist(list(rows), to_arrow(SCHEMA)), SCHEMA).data.tobytes(),
        SCHEMA,
        rows,
    )


def sequences() -> tuple[bytes, Schema, tuple[Row, ...]]:
    """Returns SequenceExamples with the context feature `id` and the feature list `step`."""
    records = []
    for i in range(ROWS):
        steps = feature_list("step", INT64, [range(i), range(i + 1)])
        records.append(field(1, entry("id", feature(INT64, [i]))) + field(2, steps))
    data = tfrecord_bytes(records)
    return (
        data,
        STEPS,
        tuple({"id": i, "step": [list(range(i + j)) for j in range(2)]} for i in range(ROWS)),
    )


def members(data: bytes, ends: tuple[int, ...]) -> bytes:
    """Compresses data into gzip members with a time and a name in their headers.

    Args:
        ends: The end of each member in the data, without the last one.
    """
    buffer = io.BytesIO()
    for start, end in zip((0, *ends), (*ends, len(data)), strict=True):
        with gzip.GzipFile("a name", "wb", fileobj=buffer, mtime=1) as member:
            member.write(data[start:end])
    return buffer.getvalue()


def starts_of(data: bytes) -> tuple[int, ...]:
    """Returns the offset of each frame, and the size of the data.

    Uses only the lengths in the frames.
    """
    starts = [0]
    while starts[-1] < len(data):
        starts.append(starts[-1] + struct.unpack_from("<Q", data, starts[-1])[0] + 16)
    return tuple(starts)


def make_case(kind: str) -> Case:
    data, schema, rows = sequences() if kind == "sequences" else examples()
    starts = starts_of(data)
    if kind == "gzip":  # one member ends within a record, another one between two
        return Case(
            members(data, (starts[1] + 20, starts[2])), schema, rows, starts, gzip.decompress
        )
    if kind == "zlib":
        return Case(zlib.compress(data), schema, rows, starts, zlib.decompress)
    return Case(data, schema, rows, starts, bytes)


@pytest.fixture(params=["examples", "sequences", "gzip", "zlib"])
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


def flips(case: Case) -> Iterator[tuple[int, bytes]]:
    return (
        (number // 2, data)
        for number, data in enumerate(islice(damaged_copies(case.data), 2 * len(case.data)))
    )


def truncations(case: Case) -> Iterator[tuple[int, bytes]]:
    return enumerate(islice(damaged_copies(case.data), 2 * len(case.data), None))


def count_if_valid(case: Case, damaged: bytes) -> int | None:
    """Returns the number of records of a damaged file that is valid, or None.

    A file is valid if it contains the first frames of the original file, and nothing else.
    """
    if not damaged:
        return 0
    try:
        content = case.inflate(damaged)
    except (OSError, EOFError, zlib.error):
        return None
    original = case.inflate(case.data)
    return (
        case.starts.index(len(content))
        if len(content) in case.starts and original.startswith(content)
        else None
    )


def check_refused(path: Path, case: Case, damaged: bytes) -> bool:
    """Opens and reads a damaged file strictly. Returns whether it was refused.

    It must be refused unless the damage cannot be noticed.
    """
    path.write_bytes(damaged)
    count = count_if_valid(case, damaged)
    if count is None:
        with pytest.raises(DataError, match=rf"{path.name}.*(record|byte) \d+"):
            recordmill.open(path, threads=1).to_table()
        return True
    assert recordmill.open(path, threads=1, schema=case.schema).to_table().to_pylist() == list(
        case.rows[:count]
    )
    return False


def test_changed_byte_is_refused(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    accepted = {position for position, data in flips(case) if not check_refused(path, case, data)}
    headers = [match.start() for match in re.finditer(rb"\x1f\x8b\x08", case.data)]
    assert len(headers) == (3 if case.inflate is gzip.decompress else 0)
    # The time, the hint on the level, the operating system and the name may be anything.
    unused = {header + offset for header in headers for offset in range(4, 16)}
    assert unused <= accepted
    flags = {header + 3 for header in headers}  # a bit that marks the content as text
    # Padding bits after the last code of a deflate stream may have any value.
    assert len(accepted - unused - flags) <= (0 if case.plain else max(len(headers), 1))


def test_truncation_is_refused_unless_it_ends_between_records(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    sizes = [size for size, data in truncations(case) if not check_refused(path, case, data)]
    if case.plain:
        assert sizes == list(case.starts[:-1])
    else:
        assert len(sizes) == (2 if case.inflate is gzip.decompress else 1)
        assert sizes[0] == 0


def check_accounted(folder: Path, case: Case, damaged: bytes) -> int:
    """Checks that a lenient read writes unchanged records and reports all others.

    Returns:
        The number of records that it wrote.
    """
    path = folder / "a.tfrecord"
    path.write_bytes(damaged)
    try:
        result = recordmill.read(
            path, folder / "out", schema=case.schema, max_rejects=1000, overwrite=True, threads=1
        )
    except TooManyRejects:  # no record is left
        assert not count_if_valid(case, damaged), "refused, though records are whole"
        return 0
    rejects = rejects_of(result)
    positions = positions_of(pq.read_table(list(result.paths)).to_pylist(), case.rows)
    assert result.read == result.written + result.rejected
    assert (result.written, result.rejected) == (len(positions), len(rejects))
    assert all(
        reject["source"] == "a.tfrecord" and re.match(r"record \d+", reject["place"])
        for reject in rejects
    )
    count = count_if_valid(case, damaged)
    if count is not None:
        assert (positions, rejects) == (list(range(count)), [])
        return len(positions)
    assert rejects, "something is lost, and nothing says so"
    if case.plain:
        sizes = np.diff(case.starts)
        lost_bytes = [count_lost_bytes(reject, case) for reject in rejects]
        assert sum(sizes[positions].tolist()) + sum(lost_bytes) == len(damaged)
    return len(positions)


def positions_of(read_rows: Sequence[Row], rows: Sequence[Row]) -> list[int]:
    """Returns the positions of `read_rows` in `rows`, which have the same order.

    Raises ValueError if one of them is not in `rows`.
    """
    position = -1
    positions = []
    for row in read_rows:
        position = rows.index(row, position + 1)
        positions.append(position)
    return positions


def count_lost_bytes(reject: dict[str, str], case: Case) -> int:
    """Returns the number of bytes that a reject accounts for.

    If the message contains no number of skipped bytes, the reject is one frame with a valid header.
    """
    skipped = re.search(r"skipped (\d+) bytes", reject["message"])
    number, offset = (int(word) for word in re.findall(r"\d+", reject["place"]))
    assert skipped or (reject["reason"] == "crc" and case.starts[number] == offset)
    return int(skipped[1]) if skipped else case.starts[number + 1] - offset


def test_lenient_read_accounts_for_changed_bytes(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the files need not survive a crash
    counts = [check_accounted(tmp_path, case, data) for _, data in flips(case)]
    assert min(counts) < ROWS
    if case.plain:
        assert set(counts) == {ROWS - 1}


def test_lenient_read_accounts_for_truncations(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    counts = [check_accounted(tmp_path, case, data) for _, data in truncations(case)]
    assert counts == sorted(counts)
    assert counts[-1] in (ROWS - 1, ROWS)
    if case.plain:
        assert counts == [
            sum(end <= size for end in case.starts[1:]) for size in range(len(case.data))
        ]
