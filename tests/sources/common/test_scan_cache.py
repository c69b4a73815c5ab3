"""Records that a plan keeps equal the records of a second read.

This holds even if the last record changes the schema.
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

# (bytes that may be kept in memory, whether files may be used for more). The plans keep everything
# in memory; some in memory and the rest in files; nearly everything in files; only some in memory.
CACHE_LIMITS = [(1 << 30, False), (8_000, True), (800, True), (8_000, False)]
CacheLimit = tuple[int, bool]
Plan = Callable[[CacheLimit], Any]  # creates a plan within a limit


def read_everything(source: Any) -> list[Any]:
    """Returns the properties and records of a source.

    Records are strings, because NaN does not equal itself.
    """
    items: list[Any] = [source.schema, source.units, source.notes, source.plan_rejects]
    for unit in source.units:
        for chunk in source.read(unit):
            check_chunk(chunk, source)
            rows = chunk.records.to_pylist()
            items += zip(
                chunk.file_ids.tolist(), chunk.positions.tolist(), map(repr, rows), strict=True
            )
            items += chunk.rejects
    return items


def group_items(items: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Groups the items of `read_everything`.

    Chunks may be divided differently, so rejects may be at another place.

    Returns:
        (properties of the plan, records, rejects).
    """
    contents = items[5:]
    return (
        items[:5],
        [item for item in contents if isinstance(item, tuple)],
        [item for item in contents if not isinstance(item, tuple)],
    )


def plan_or_fail(plan: Plan, limit: CacheLimit) -> Any:
    """Returns the plan, or its error."""
    try:
        return plan(limit)
    except RecordmillError as error:
        return error


def check_same(plan: Plan, limit: CacheLimit = CACHE_LIMITS[0]) -> Any:
    """Checks that plans with and without a cache are equal, or fail alike.

    Returns:
        An unread plan with a cache, or None if both fail.
    """
    uncached, cached = plan_or_fail(plan, (0, False)), plan_or_fail(plan, limit)
    if isinstance(uncached, RecordmillError):
        assert (type(cached), str(cached)) == (type(uncached), str(uncached))
        return None
    unpickled = pickle.loads(pickle.dumps(cached))
    assert unpickled.cache.take((0, 0)) is None
    expected = group_items(read_everything(uncached))
    assert group_items(read_everything(cached)) == expected
    # The second read reads the file again, because the first one has emptied the cache.
    assert group_items(read_everything(cached)) == expected
    assert group_items(read_everything(unpickled)) == expected
    if cached.cache.folder:
        assert not os.listdir(cached.cache.folder), "what was read is no file any more"
    return plan(limit)


def find_places(cache: ScanCache) -> set[str]:
    """Returns the places of the cached records."""
    places = {"a file" if records.path else "memory" for records in cache._records.values()}
    is_mixed = any(
        records.path and any(piece.batch is not None for piece in records.batches)
        for records in cache._records.values()
    )
    return places | ({"both"} if is_mixed else set())


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
# Replacements of the last row: (column, text) of a value, or a complete row
LAST_ROWS = [
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


def csv_text(rows: range, names: list[str], last_row: Any) -> bytes:
    lines = [[COLUMNS[name](row) for name in names] for row in rows]
    if isinstance(last_row, tuple):
        if last_row[0] in names:
            lines[-1][names.index(last_row[0])] = last_row[1]
    elif last_row is not None:
        lines.append([last_row])
    return "".join(",".join(line) + "\n" for line in [names, *lines]).encode(
        "utf-8", "surrogateescape"
    )


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes pieces so small that a range has several.

    Also stores small pieces in files.
    """
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
    # The first rows take less than this limit, because their numbers are short.
    monkeypatch.setattr(scan_cache, "_MIN_FILE_BYTES", 260)
    rows = csv_text(range(200), ["whole", "text"], None).replace(b"\n70,", b"\nbad\n70,")

    def plan(limit: CacheLimit) -> Any:
        common = PlanOptions(parsed_cache_bytes=limit[0], parsed_cache_folder=str(spool) * limit[1])
        return csv_source.plan_csv(input_files(path), CsvOptions(header=True), common)

    path.write_bytes(rows)
    source = check_same(plan, (8_000, True))
    assert find_places(source.cache) == {"a file", "both"}
    assert len(os.listdir(spool)) == 1
    # The new row makes the column text, so the numbers in the cache are dropped.
    path.write_bytes(rows + b"late,x\n")
    for file in spool.iterdir():
        file.unlink()
    assert find_places(check_same(plan, (8_000, True)).cache) == set()
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
LAST_VALUES: list[Any] = [
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
LAST_VALUES += [
    {"c": "new"},
    {"a": "x"},
    "2024-01-01T10:00:00.5",
    "2024-01-01T10:00:00Z",
    "d",
    "",
    "a\n",
]
last_values = st.one_of(
    st.none(),
    st.tuples(st.sampled_from([*FIELDS, "new"]), st.sampled_from(LAST_VALUES)),
    st.sampled_from(
        ["{", "[1]", "", '{"whole": 1, "whole": 2}', '{"text": "\udcff"}', "{}", '{"new": [[1]]}']
    ),
)


def json_text(rows: range, names: list[str], last_row: Any) -> bytes:
    records = [{name: FIELDS[name](row) for name in names} for row in rows]
    if isinstance(last_row, tuple):
        records[-1][last_row[0]] = last_row[1]
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    return "".join(
        line + "\n" for line in [*lines, *([last_row] if isinstance(last_row, str) else [])]
    ).encode("utf-8", "surrogateescape")


@EXAMPLES
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_late_values_change_kept_records_like_read_ones(kind: str, examples: int) -> None:
    inputs: dict[str, tuple[Any, Any, Any]] = {
        "csv": (COLUMNS, st.sampled_from(LAST_ROWS), csv_text),
        "jsonl": (FIELDS, last_values, json_text),
    }
    columns, last_rows, make_text = inputs[kind]
    places = set[str]()

    @settings(max_examples=examples, deadline=None)
    @given(
        st.lists(st.sampled_from(sorted(columns)), min_size=1, unique=True),
        st.lists(st.integers(1, 40), min_size=1, max_size=3),
        last_rows,
        st.sampled_from([200, 1000, 1 << 20]),
        common_options,
        st.integers(1, 3),
        st.sampled_from(CACHE_LIMITS),
    )
    def check(
        names: list[str],
        sizes: list[int],
        last_row: Any,
        range_bytes: int,
        options: Any,
        threads: int,
        limit: CacheLimit,
    ) -> None:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as spool:
            paths = [Path(folder, f"{number}.{kind}") for number in range(len(sizes))]
            for path, size in zip(paths, sizes, strict=True):
                path.write_bytes(
                    make_text(range(size), names, last_row if path is paths[-1] else None)
                )

            def plan(limit: CacheLimit) -> Any:
                common = PlanOptions(
                    threads=threads,
                    parsed_cache_bytes=limit[0],
                    parsed_cache_folder=spool * limit[1],
                    **options,
                )
                if kind == "csv":
                    return csv_source._plan_with_ranges(
                        tuple(input_files(*paths)), CsvOptions(header=True), common, range_bytes
                    )
                return plan_jsonl(input_files(*paths), JsonlOptions(max_line_bytes=400), common)

            source = check_same(plan, limit)
            if source is not None:
                places.update(find_places(source.cache))

    check()
    assert places, "nothing was kept, so nothing was compared"


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("last_value", [None, '"c7"', '"new"', "7", "null"])
@pytest.mark.parametrize("dtypes", [{}, {"label": "string"}])
def test_label_with_too_many_classes_at_the_end_is_read_as_without_a_cache(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    last_value: str | None,
    dtypes: dict[str, str],
) -> None:
    """A label has at most eight classes in this test.

    The last record may have a ninth class, a number, or no new value.
    """
    monkeypatch.setattr(labels, "MAX_CLASSES", 8)
    values = [f'"c{row % 8}"' for row in range(120)] + ([last_value] if last_value else [])
    path = tmp_path / f"a.{kind}"
    if kind == "csv":
        path.write_text(
            "label,x\n" + "".join(f"{'' if value == 'null' else value},1\n" for value in values)
        )
    else:
        path.write_text("".join(f'{{"label": {value}, "x": 1}}\n' for value in values))

    def plan(limit: CacheLimit) -> Any:
        common = PlanOptions(label="label", dtypes=dtypes, parsed_cache_bytes=limit[0])
        if kind == "csv":
            return csv_source._plan_with_ranges(
                tuple(input_files(path)), CsvOptions(header=True), common, 200
            )
        return plan_jsonl(input_files(path), JsonlOptions(), common)

    source = check_same(plan)
    if last_value == '"new"' or (last_value == "7" and (kind == "csv" or dtypes)):
        assert isinstance(plan_or_fail(plan, CACHE_LIMITS[0]), RecordmillError)
    elif source is not None:
        assert source.schema["label"].classes == tuple(f"c{number}" for number in range(8))
        assert find_places(source.cache) == {"memory"}


LARGE, SMALL = 1 << 16, 20  # numbers of rows


def make_piece(rows: int, absent: bool = False) -> CachedBatch:
    texts = pa.array([str(rows)] * rows, pa.string())
    batch = pa.record_batch({"whole": pa.array(range(rows), pa.int64()), "text": texts})
    if not absent:
        return CachedBatch.from_ordinals(batch, np.arange(rows), (), rows)
    reject = CachedReject(0, 7, Fault("parse", "as it is"))
    return CachedBatch.from_ordinals(batch, np.arange(1, rows + 1), (reject,), rows + 1)


def are_same(pieces: list[CachedBatch], other_pieces: list[CachedBatch]) -> bool:
    return len(pieces) == len(other_pieces) and all(
        first.batch.equals(second.batch)
        and first.positions(3).tolist() == second.positions(3).tolist()
        and (first.rejects, first.num_positions) == (second.rejects, second.num_positions)
        for first, second in zip(pieces, other_pieces, strict=True)
    )


@pytest.fixture(autouse=True)
def allow_small_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(scan_cache, "_MIN_FILE_BYTES", 1 << 10)
        yield


pieces = st.builds(make_piece, st.sampled_from([0, 1, SMALL, 200, 1000]), st.booleans())


@given(
    st.lists(st.lists(pieces, max_size=5), max_size=4),
    st.sampled_from([1, 5000, 40_000, 1 << 20]),
    st.booleans(),
)
def test_scan_cache_keeps_a_range_completely_or_not_at_all(
    ranges: list[list[CachedBatch]], max_bytes: int, uses_files: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache: ScanCache = ScanCache(max_bytes, folder if uses_files else "")
        for number, batches in enumerate(ranges):
            writer = ScanCacheWriter(cache)
            for piece in batches:
                if writer.is_active:
                    writer.add(piece)
            writer.store((0, number))
            assert not writer.is_active or cache.contains((0, number)) == bool(batches)
        for number, batches in enumerate(ranges):
            result = cache.take((0, number))
            assert result is None or are_same(list(result), batches)
            assert cache.take((0, number)) is None
        assert not list(Path(folder).iterdir())


@pytest.mark.parametrize("failing_call", [0, 1])
def test_full_disk_drops_a_kept_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_call: int
) -> None:
    cache: ScanCache = ScanCache(1 << 20, str(tmp_path))
    free_bytes = cache.free_bytes
    write, calls = BatchWriter.write, itertools.count()

    def fail_once(writer: BatchWriter, batch: pa.RecordBatch) -> None:
        if next(calls) == failing_call:
            raise OSError(28, "No space left on device")
        return write(writer, batch)

    monkeypatch.setattr(BatchWriter, "write", fail_once)
    cache_writer = ScanCacheWriter(cache)
    cache_writer.add(make_piece(1))
    for _ in range(2):
        if cache_writer.is_active:
            cache_writer.add(make_piece(LARGE))
    assert not cache_writer.is_active
    cache_writer.store((0, 0))
    assert cache.take((0, 0)) is None
    assert not list(tmp_path.iterdir())
    assert cache.free_bytes == free_bytes
