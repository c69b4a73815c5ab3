"""If any byte of a small file changes or it is truncated, `open` refuses it and `read` accounts
for every record.
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
    """A file, its records, where each begins inflated (and their end), and a decoder that is not
    ours.
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
    """SequenceExamples {context {id}, feature_lists {step}}."""
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
    """gzip members that end at these bytes, each with a time and a name in its header."""
    made = io.BytesIO()
    for start, end in zip((0, *ends), (*ends, len(data)), strict=True):
        with gzip.GzipFile("a name", "wb", fileobj=made, mtime=1) as member:
            member.write(data[start:end])
    return made.getvalue()


def starts_of(data: bytes) -> tuple[int, ...]:
    """Where each frame begins, and the end, by their lengths alone."""
    starts = [0]
    while starts[-1] < len(data):
        starts.append(starts[-1] + struct.unpack_from("<Q", data, starts[-1])[0] + 16)
    return tuple(starts)


def make(kind: str) -> Case:
    data, schema, rows = sequences() if kind == "sequences" else examples()
    starts = starts_of(data)
    if kind == "gzip":  # one member ends within a record, one between two
        return Case(
            members(data, (starts[1] + 20, starts[2])), schema, rows, starts, gzip.decompress
        )
    if kind == "zlib":
        return Case(zlib.compress(data), schema, rows, starts, zlib.decompress)
    return Case(data, schema, rows, starts, bytes)


@pytest.fixture(params=["examples", "sequences", "gzip", "zlib"])
def case(request: pytest.FixtureRequest) -> Case:
    return make(request.param)


def flips(case: Case) -> Iterator[tuple[int, bytes]]:
    return (
        (number // 2, data)
        for number, data in enumerate(islice(damaged_copies(case.data), 2 * len(case.data)))
    )


def cuts(case: Case) -> Iterator[tuple[int, bytes]]:
    return enumerate(islice(damaged_copies(case.data), 2 * len(case.data), None))


def unnoticeable(case: Case, damaged: bytes) -> int | None:
    """How many records a damaged file has if it is a whole file of some of the original's frames,
    or None.
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
    """Open and read strictly; whether the damage was refused, as it must be if anybody can notice
    it.
    """
    path.write_bytes(damaged)
    left = unnoticeable(case, damaged)
    if left is None:
        with pytest.raises(DataError, match=rf"{path.name}.*(record|byte) \d+"):
            recordmill.open(path, threads=1).to_table()
        return True
    assert recordmill.open(path, threads=1, schema=case.schema).to_table().to_pylist() == list(
        case.rows[:left]
    )
    return False


def test_changed_byte_is_refused(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    kept = {at for at, data in flips(case) if not check_refused(path, case, data)}
    headers = [match.start() for match in re.finditer(rb"\x1f\x8b\x08", case.data)]
    assert len(headers) == (3 if case.inflate is gzip.decompress else 0)
    # the time, the hint on the level, the system, the name
    unused = {header + at for header in headers for at in range(4, 16)}
    assert unused <= kept
    flags = {header + 3 for header in headers}  # one bit says that the content is text
    # Behind the last code of a deflate stream some bits fill up a byte.
    assert len(kept - unused - flags) <= (0 if case.plain else max(len(headers), 1))


def test_truncation_is_refused_unless_it_ends_between_records(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    whole = [size for size, data in cuts(case) if not check_refused(path, case, data)]
    if case.plain:
        assert whole == list(case.starts[:-1])
    else:
        assert len(whole) == (2 if case.inflate is gzip.decompress else 1)
        assert whole[0] == 0


def check_accounted(folder: Path, case: Case, damaged: bytes) -> int:
    """Checks that what a lenient read writes is unchanged and the rest reported; gives how many
    were written.
    """
    path = folder / "a.tfrecord"
    path.write_bytes(damaged)
    try:
        result = recordmill.read(
            path, folder / "out", schema=case.schema, max_rejects=1000, overwrite=True, threads=1
        )
    except TooManyRejects:  # refused, as not one record is left
        assert not unnoticeable(case, damaged), "refused, though records are whole"
        return 0
    rejects = rejects_of(result)
    kept = places(pq.read_table(list(result.paths)).to_pylist(), case.rows)
    assert result.read == result.written + result.rejected
    assert (result.written, result.rejected) == (len(kept), len(rejects))
    assert all(
        reject["source"] == "a.tfrecord" and re.match(r"record \d+", reject["place"])
        for reject in rejects
    )
    left = unnoticeable(case, damaged)
    if left is not None:
        assert (kept, rejects) == (list(range(left)), [])
        return len(kept)
    assert rejects, "something is lost, and nothing says so"
    if case.plain:
        sizes = np.diff(case.starts)
        lost = [_bytes_of(reject, case) for reject in rejects]
        assert sum(sizes[kept].tolist()) + sum(lost) == len(damaged)
    return len(kept)


def places(found: Sequence[Row], rows: Sequence[Row]) -> list[int]:
    """Which of the rows were found, in order; an error if something was found that never was
    there.
    """
    at = -1
    kept = []
    for row in found:
        at = rows.index(row, at + 1)
        kept.append(at)
    return kept


def _bytes_of(reject: dict[str, str], case: Case) -> int:
    """How many bytes a reject stands for: those it says were skipped, or one frame with a right
    header.
    """
    skipped = re.search(r"skipped (\d+) bytes", reject["message"])
    number, offset = (int(word) for word in re.findall(r"\d+", reject["place"]))
    assert skipped or (reject["reason"] == "crc" and case.starts[number] == offset)
    return int(skipped[1]) if skipped else case.starts[number + 1] - offset


def test_lenient_read_accounts_for_changed_bytes(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # what is tested does not outlive the process
    written = [check_accounted(tmp_path, case, data) for _, data in flips(case)]
    assert min(written) < ROWS
    if case.plain:
        assert set(written) == {ROWS - 1}


def test_lenient_read_accounts_for_truncations(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    written = [check_accounted(tmp_path, case, data) for _, data in cuts(case)]
    assert written == sorted(written)
    assert written[-1] in (ROWS - 1, ROWS)
    if case.plain:
        assert written == [
            sum(end <= size for end in case.starts[1:]) for size in range(len(case.data))
        ]
