"""Records that a plan keeps are those that reading them again gives, also if the last record
changes everything.
"""

import itertools
import json
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.source_reading import check_chunk, input_files

from recordmill.base.errors import Fault, RecordmillError
from recordmill.sources.common import lines, scan_cache
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.common.scan_cache import (
    CachedBatch,
    CachedReject,
    ScanCache,
    ScanCacheWriter,
)
from recordmill.sources.csv import ranges
from recordmill.sources.csv import source as csv_source
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.jsonl import tape as json_tape
from recordmill.sources.jsonl.options import JsonlOptions
from recordmill.sources.jsonl.source import plan_jsonl
from recordmill.sources.values import labels
from recordmill.storage.arrow_files import BatchWriter

# (how much may be kept in memory, whether the rest may be in files): all, some and the rest, hardly
# any, some only
ROOMS = [(1 << 30, False), (8_000, True), (800, True), (8_000, False)]
Room = tuple[int, bool]
Plan = Callable[[Room], Any]  # by how much may be kept


def told(source: Any) -> list[Any]:
    """All that a source says and gives, records as text, since NaN is not itself."""
    found: list[Any] = [source.schema, source.units, source.notes, source.plan_rejects]
    for unit in source.units:
        for chunk in source.read(unit):
            check_chunk(chunk, source)
            rows = chunk.records.to_pylist()
            found += zip(
                chunk.file_ids.tolist(), chunk.positions.tolist(), map(repr, rows), strict=True
            )
            found += chunk.rejects
    return found


def sorted_out(found: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """(what the plan says, records, rejects): chunks may be cut elsewhere."""
    rest = found[5:]
    return (
        found[:5],
        [one for one in rest if isinstance(one, tuple)],
        [one for one in rest if not isinstance(one, tuple)],
    )


def planned(plan: Plan, room: Room) -> Any:
    """The plan, or the error that it ends in."""
    try:
        return plan(room)
    except RecordmillError as error:
        return error


def check_same(plan: Plan, room: Room = ROOMS[0]) -> Any:
    """That a plan that keeps and one that doesn't say and give the same, or fail alike; the first,
    once more unread.
    """
    without, kept = planned(plan, (0, False)), planned(plan, room)
    if isinstance(without, RecordmillError):
        assert (type(kept), str(kept)) == (type(without), str(without))
        return None
    again = pickle.loads(pickle.dumps(kept))
    assert again.cache.take((0, 0)) is None
    expected = sorted_out(told(without))
    assert sorted_out(told(kept)) == expected
    assert sorted_out(told(kept)) == expected  # what was given is read again from the file
    assert sorted_out(told(again)) == expected
    if kept.cache.folder:
        assert not os.listdir(kept.cache.folder), "what was read is no file any more"
    return plan(room)


def where(kept: ScanCache) -> set[str]:
    """In what something is kept."""
    found = {"a file" if one.path else "memory" for one in kept._records.values()}
    mixed = any(
        one.path and any(piece.batch is not None for piece in one.batches)
        for one in kept._records.values()
    )
    return found | ({"both"} if mixed else set())


# ------------------------------------------------------------------------------------------------
# CSV

COLUMNS: dict[str, Callable[[int], str]] = {
    "whole": lambda row: str(row * 7 - 3),
    "real": lambda row: f"{row / 8}",
    "truth": lambda row: ("true", "false")[row % 2],
    "time": lambda row: f"2024-01-{row % 28 + 1:02d}T10:00:00",
    "text": lambda row: f"né {row}",
    "label": lambda row: "abc"[row % 3],
    "empty": lambda row: "",
}
# what the last row may be instead: (column, text), or a row of its own
LATE = [
    None,
    *(
        ("whole", text)
        for text in ("x", "", "1.5", "9223372036854775808", "16777217.0", "NA", "007", "true")
    ),
    *(("real", text) for text in ("x", "", "1e39", "16777217", "nan", "0.1234567891")),
    *(("truth", text) for text in ("1", "", "maybe")),
    *(("time", text) for text in ("2024-01-01T10:00:00Z", "2024-01-01T10:00:00.5", "soon", "")),
    *(("text", text) for text in ('"quo""ted"', '""', "1", "NA", '"two\nlines"')),
    *(("label", text) for text in ("d", "", "1", '"a"', "ab\udcff")),
    *(("empty", text) for text in ("1", "x", "2024-01-01")),
    "short,row",
    "",
    '"never closed',
]
common_options = st.fixed_dictionaries(
    {},
    optional={
        "label": st.sampled_from(["label", "whole", "text"]),
        "dtypes": st.dictionaries(
            st.sampled_from(["whole", "real", "text", "empty"]),
            st.sampled_from(["string", "float64", "int64", "float32"]),
        ),
    },
)


def csv_text(rows: range, names: list[str], late: Any) -> bytes:
    lines = [[COLUMNS[name](row) for name in names] for row in rows]
    if isinstance(late, tuple):
        if late[0] in names:
            lines[-1][names.index(late[0])] = late[1]
    elif late is not None:
        lines.append([late])
    return "".join(",".join(line) + "\n" for line in [names, *lines]).encode(
        "utf-8", "surrogateescape"
    )


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece is a few rows, so that a range has several, and is worth a file."""
    monkeypatch.setattr(scan_cache, "_MIN_FILE_BYTES", 0)
    monkeypatch.setattr(scan_cache, "_BATCH_MEMORY_BYTES", 16)
    monkeypatch.setattr(ranges, "_MAX_FIELDS", 24)
    monkeypatch.setattr(json_tape, "BATCH_ROWS", 5)
    monkeypatch.setattr(lines, "LINE_RANGE_BYTES", 1000)


EXAMPLES = pytest.mark.parametrize("examples", [20, pytest.param(1000, marks=pytest.mark.sweep)])


@pytest.mark.usefixtures("small_pieces")
def test_range_is_kept_in_memory_or_a_file_or_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, spool = tmp_path / "a.csv", tmp_path / "spool"
    spool.mkdir()
    monkeypatch.setattr(
        scan_cache, "_MIN_FILE_BYTES", 260
    )  # more than the first rows take, whose numbers are short
    rows = csv_text(range(200), ["whole", "text"], None).replace(b"\n70,", b"\nbad\n70,")

    def plan(room: Room) -> Any:
        common = PlanOptions(parsed_cache_bytes=room[0], parsed_cache_folder=str(spool) * room[1])
        return csv_source.plan_csv(input_files(path), CsvOptions(header=True), common)

    path.write_bytes(rows)
    source = check_same(plan, (8_000, True))
    assert where(source.cache) == {"a file", "both"}
    assert len(os.listdir(spool)) == 1
    path.write_bytes(
        rows + b"late,x\n"
    )  # the whole column is text, and what was parsed as numbers is forgotten
    for file in spool.iterdir():
        file.unlink()
    assert where(check_same(plan, (8_000, True)).cache) == set()
    assert not os.listdir(spool)


@pytest.mark.parametrize("range_bytes", [8, 1 << 20])
def test_rows_are_located_like_rejects(tmp_path: Path, range_bytes: int) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'a,b\n1,"x\ny"\n\n2,z\nbad\n3,w\n')
    source = csv_source._plan_with_ranges(
        tuple(input_files(path)), CsvOptions(header=True), PlanOptions(), range_bytes
    )
    assert source.locate(0, [3, 0, 1]) == ["line 7, row 3", "line 2, row 0", "line 5, row 1"]
    (reject,) = (
        reject for unit in source.units for chunk in source.read(unit) for reject in chunk.rejects
    )
    assert reject.place == "line 6, row 2"


# ------------------------------------------------------------------------------------------------
# JSON lines

FIELDS: dict[str, Callable[[int], Any]] = {
    "whole": lambda row: row * 7 - 3,
    "real": lambda row: row / 8,
    "truth": lambda row: row % 2 == 1,
    "time": lambda row: f"2024-01-{row % 28 + 1:02d}T10:00:00",
    "text": lambda row: f"né {row}",
    "label": lambda row: "abc"[row % 3],
    "null": lambda row: None,
    "list": lambda row: list(range(row % 4)),
    "inner": lambda row: {"a": row, "b": [f"{row}"]},
    "some": lambda row: row if row % 3 else None,
}
LATE_VALUES: list[Any] = [
    None,
    "x",
    1.5,
    1e300,
    2**63,
    16777217,
    True,
    [],
    [1, 2, 3, 4, 5],
    ["x"],
    [None],
    {},
    {"a": 1},
]
LATE_VALUES += [
    {"c": "new"},
    {"a": "x"},
    "2024-01-01T10:00:00.5",
    "2024-01-01T10:00:00Z",
    "d",
    "",
    "a\n",
]
late_values = st.one_of(
    st.none(),
    st.tuples(st.sampled_from([*FIELDS, "new"]), st.sampled_from(LATE_VALUES)),
    st.sampled_from(
        ["{", "[1]", "", '{"whole": 1, "whole": 2}', '{"text": "\udcff"}', "{}", '{"new": [[1]]}']
    ),
)


def json_text(rows: range, names: list[str], late: Any) -> bytes:
    records = [{name: FIELDS[name](row) for name in names} for row in rows]
    if isinstance(late, tuple):
        records[-1][late[0]] = late[1]
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    return "".join(
        line + "\n" for line in [*lines, *([late] if isinstance(late, str) else [])]
    ).encode("utf-8", "surrogateescape")


@EXAMPLES
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_late_values_change_kept_records_like_read_ones(kind: str, examples: int) -> None:
    made: dict[str, tuple[Any, Any, Any]] = {
        "csv": (COLUMNS, st.sampled_from(LATE), csv_text),
        "jsonl": (FIELDS, late_values, json_text),
    }
    columns, lates, text = made[kind]
    found = set[str]()

    @settings(max_examples=examples, deadline=None)
    @given(
        st.lists(st.sampled_from(sorted(columns)), min_size=1, unique=True),
        st.lists(st.integers(1, 40), min_size=1, max_size=3),
        lates,
        st.sampled_from([200, 1000, 1 << 20]),
        common_options,
        st.integers(1, 3),
        st.sampled_from(ROOMS),
    )
    def check(
        names: list[str],
        sizes: list[int],
        late: Any,
        range_bytes: int,
        options: Any,
        threads: int,
        room: Room,
    ) -> None:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as spool:
            paths = [Path(folder, f"{number}.{kind}") for number in range(len(sizes))]
            for path, size in zip(paths, sizes, strict=True):
                path.write_bytes(text(range(size), names, late if path is paths[-1] else None))

            def plan(room: Room) -> Any:
                common = PlanOptions(
                    threads=threads,
                    parsed_cache_bytes=room[0],
                    parsed_cache_folder=spool * room[1],
                    **options,
                )
                if kind == "csv":
                    return csv_source._plan_with_ranges(
                        tuple(input_files(*paths)), CsvOptions(header=True), common, range_bytes
                    )
                return plan_jsonl(input_files(*paths), JsonlOptions(max_line_bytes=400), common)

            source = check_same(plan, room)
            if source is not None:
                found.update(where(source.cache))

    check()
    assert found, "nothing was kept, so nothing was compared"


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("late", [None, '"c7"', '"new"', "7", "null"])
@pytest.mark.parametrize("declared", [{}, {"label": "string"}])
def test_label_with_too_many_classes_at_the_end_is_read_like_unkept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    late: str | None,
    declared: dict[str, str],
) -> None:
    """Eight classes are the most here, and the last record may bring a ninth, a number, or nothing
    new.
    """
    monkeypatch.setattr(labels, "MAX_CLASSES", 8)
    values = [f'"c{row % 8}"' for row in range(120)] + ([late] if late else [])
    path = tmp_path / f"a.{kind}"
    if kind == "csv":
        path.write_text(
            "label,x\n" + "".join(f"{'' if value == 'null' else value},1\n" for value in values)
        )
    else:
        path.write_text("".join(f'{{"label": {value}, "x": 1}}\n' for value in values))

    def plan(room: Room) -> Any:
        common = PlanOptions(label="label", dtypes=declared, parsed_cache_bytes=room[0])
        if kind == "csv":
            return csv_source._plan_with_ranges(
                tuple(input_files(path)), CsvOptions(header=True), common, 200
            )
        return plan_jsonl(input_files(path), JsonlOptions(), common)

    source = check_same(plan)
    if late == '"new"' or (late == "7" and (kind == "csv" or declared)):
        assert isinstance(planned(plan, ROOMS[0]), RecordmillError)
    elif source is not None:
        assert source.schema["label"].classes == tuple(f"c{number}" for number in range(8))
        assert where(source.cache) == {"memory"}


# What is kept of a range is all of it, as it was parsed, wherever its pieces wait
LARGE, SMALL = 1 << 16, 20  # rows


def a_piece(rows: int, absent: bool = False) -> CachedBatch:
    texts = pa.array([str(rows)] * rows, pa.string())
    batch = pa.record_batch({"whole": pa.array(range(rows), pa.int64()), "text": texts})
    if not absent:
        return CachedBatch.from_ordinals(batch, np.arange(rows), (), rows)
    reject = CachedReject(0, 7, Fault("parse", "as it is"))
    return CachedBatch.from_ordinals(batch, np.arange(1, rows + 1), (reject,), rows + 1)


def are_same(some: list[CachedBatch], others: list[CachedBatch]) -> bool:
    return len(some) == len(others) and all(
        one.batch.equals(other.batch)
        and one.positions(3).tolist() == other.positions(3).tolist()
        and (one.rejects, one.num_positions) == (other.rejects, other.num_positions)
        for one, other in zip(some, others, strict=True)
    )


@pytest.fixture(autouse=True)
def _files_of_a_kibibyte(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(scan_cache, "_MIN_FILE_BYTES", 1 << 10)
        yield


pieces = st.builds(a_piece, st.sampled_from([0, 1, SMALL, 200, 1000]), st.booleans())


@given(
    st.lists(st.lists(pieces, max_size=5), max_size=4),
    st.sampled_from([1, 5000, 40_000, 1 << 20]),
    st.booleans(),
)
def test_scan_cache_keeps_a_range_completely_or_not_at_all(
    ranges: list[list[CachedBatch]], most_bytes: int, in_files: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        room: ScanCache = ScanCache(most_bytes, folder if in_files else "")
        for number, range_ in enumerate(ranges):
            keeping = ScanCacheWriter(room)
            for piece in range_:
                if keeping.is_active:
                    keeping.add(piece)
            keeping.store((0, number))
            assert not keeping.is_active or room.contains((0, number)) == bool(range_)
        for number, range_ in enumerate(ranges):
            found = room.take((0, number))
            assert found is None or are_same(list(found), range_)
            assert room.take((0, number)) is None
        assert not list(Path(folder).iterdir())


@pytest.mark.parametrize("fails_at", [0, 1])
def test_full_disk_drops_a_kept_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    room: ScanCache = ScanCache(1 << 20, str(tmp_path))
    before = room.free_bytes
    write, calls = BatchWriter.write, itertools.count()

    def full(writer: BatchWriter, batch: pa.RecordBatch) -> None:
        if next(calls) == fails_at:
            raise OSError(28, "No space left on device")
        return write(writer, batch)

    monkeypatch.setattr(BatchWriter, "write", full)
    keeping = ScanCacheWriter(room)
    keeping.add(a_piece(1))
    for _ in range(2):
        if keeping.is_active:
            keeping.add(a_piece(LARGE))
    assert not keeping.is_active
    keeping.store((0, 0))
    assert room.take((0, 0)) is None
    assert not list(tmp_path.iterdir())
    assert room.free_bytes == before
