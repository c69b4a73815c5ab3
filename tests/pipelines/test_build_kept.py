"""A build is the same, byte for byte, whether what the plan parsed or read waits in memory or in files, or is read
again, and however many runs it is sorted in: shards, schema, rejects and notes, also where the last record changes
what all were taken for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit import framed

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.building import ingest
from recordmill.pipelines import plan
from recordmill.records.example.single_example import example
from recordmill.sources.common import scan_cache

pytest.importorskip("apache_beam", reason="building needs Apache Beam")


@dataclass(frozen=True)
class Way:
    """parsed: bytes of parsed records that may be kept. least_file: of these, how little is worth a file; None: nothing
    is. read: bytes of files of records that may be kept. run: of a run.
    """

    parsed: int = 0
    least_file: int | None = None
    read: int = 0
    run: int = 10_000


WAYS = {
    "again": Way(),
    "memory": Way(1 << 30, None, 1 << 30, 1 << 30),
    "files": Way(8 << 10, 0, 0),
    "both": Way(64 << 10, 4 << 10, 30_000),
    "little room": Way(2 << 10, 0, 3000),
}
ROWS = 1500


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Builds in each way, and gives what came of each: files and what was said, or the error."""
    put = scan_cache.ScanCache.put
    where: set[str] = set()
    monkeypatch.setattr(
        scan_cache.ScanCache,
        "put",
        lambda self, place, found: (where.add("file" if found.path else "memory"), put(self, place, found)),
    )
    monkeypatch.setattr(scan_cache, "_PIECE_BYTES", 16)

    def in_each_way(source: Any, **options: Any) -> dict[str, Any]:
        results = {}
        for name, way in WAYS.items():
            with monkeypatch.context() as patch:
                patch.setattr(plan, "parsed_bytes", lambda memory, most=way.parsed: most)
                patch.setattr(plan, "scan_cache_bytes", lambda memory, most=way.read: most)
                patch.setattr(ingest, "_run_bytes", lambda plan, group, most, size=way.run: size)
                patch.setattr(scan_cache, "_LEAST_FILE_BYTES", way.least_file or 0)
                if way.least_file is None:
                    patch.setattr(scan_cache.ScanCache, "__init__", _in_memory(scan_cache.ScanCache.__init__))
                where.clear()
                results[name] = built(source, tmp_path / name, **options)
            assert name != "again" or not where
            results[name]["kept in"] = set(where)
        return results

    return in_each_way


def _in_memory(make: Callable[..., None]) -> Callable[..., None]:
    return lambda self, most_bytes=0, folder="": make(self, most_bytes)


def built(source: Any, out: Path, **options: Any) -> dict[str, Any]:
    try:
        result = recordmill.build(source, out, overwrite=True, num_shards=3, max_rejects="100%", **options)
    except RecordmillError as error:
        return {"error": (type(error).__name__, str(error).replace(str(out), "OUT"))}
    shards, rejects = (list(map(Path, paths)) for paths in (result.shards, result.rejects))
    assert recordmill.verify(out) == []
    return {
        "shards": {path.name: path.read_bytes() for path in shards},
        "rejects": sorted(line for path in rejects for line in path.read_text("utf-8").splitlines()),
        "schema": (out / "schema.pbtxt").read_bytes(),
        "notes": result.notes,
        "counts": (result.read, result.rejected),
    }


def check_same(results: dict[str, Any]) -> set[str]:
    """That all ways gave the same; says in what something was kept."""
    found = set[str]().union(*(result.pop("kept in") for result in results.values()))
    expected = results["again"]
    for name, result in results.items():
        assert result == expected, name
    return found


def csv_lines(rows: int) -> list[str]:
    return ["whole,real,text,time,label"] + [
        f"{row * 7},{row / 8},né {row},2024-01-{row % 28 + 1:02d},{'abc'[row % 3]}" for row in range(rows)
    ]


def json_lines(rows: int) -> list[str]:
    return [
        json.dumps(
            {
                "whole": row * 7,
                "real": row / 8,
                "text": f"né {row}",
                "list": list(range(row % 4)),
                "label": "abc"[row % 3],
            }
        )
        for row in range(rows)
    ]


# (kind, what the last line of the last file is, options); `sources/test_kept.py` has many more last lines
LATE: list[tuple[str, str, dict[str, Any]]] = [
    ("csv", "x,0.5,text,2024-01-01,a", {}),
    ("csv", "1,2", {"label": "label"}),
    ("jsonl", '{"whole": 0.5, "list": [1, 2, 3, 4, 5, 6, 7, 8, 9]}', {}),
    ("jsonl", "[1", {"label": "label"}),
    ("jsonl", '{"whole": "x"}', {"dtypes": {"whole": "int64", "list": "int64[?]"}}),
]


@pytest.mark.parametrize(("kind", "late", "options"), LATE, ids=str)
def test_the_last_line_changes_what_all_were_taken_for(
    tmp_path: Path, build: Callable[..., dict[str, Any]], kind: str, late: str, options: dict[str, Any]
) -> None:
    lines = csv_lines(ROWS) if kind == "csv" else json_lines(ROWS)
    head = lines[:1] if kind == "csv" else []
    (tmp_path / "in").mkdir()
    for number, (first, last) in enumerate([(len(head), 500), (500, 501), (501, ROWS)]):
        text = "\n".join([*head, *lines[first:last], *([late] if number == 2 else [])]) + "\n"
        (tmp_path / "in" / f"{number}.{kind}").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert check_same(build(str(tmp_path / "in"), kind=kind, **options)) == {"file", "memory"}


def a_record(row: int, **other: Any) -> bytes:
    return example({"whole": row * 7, "real": [row / 8, 1.0], "text": f"né {row}", **other})


# what the last record of the last TFRecord file is, or what becomes of its bytes
LATE_RECORDS: dict[str, Any] = {
    "a string in a whole column": a_record(1, whole="x"),
    "a longer list": a_record(1, real=[1.0, 2.0, 3.0]),
    "a new feature": a_record(1, new=1),
    "a missing feature": example({"text": "x"}),
    "no UTF-8": a_record(1, text=b"\xff\xfe"),
    "no Example": b"\xff\xff",
    "damage": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "a cut": lambda data: data[:-2],
}


@pytest.mark.parametrize(
    ("what", "options"),
    [
        pytest.param(what, options, marks=() if (what, options) == ("damage", {}) else pytest.mark.sweep)
        for what, options in [(what, {}) for what in LATE_RECORDS] + [("damage", {"key": "text"})]
    ],
    ids=str,
)
def test_the_last_record_changes_what_all_were_taken_for(
    tmp_path: Path, build: Callable[..., dict[str, Any]], what: str, options: dict[str, Any]
) -> None:
    late = LATE_RECORDS[what]
    (tmp_path / "in").mkdir()
    for number, (first, last) in enumerate([(0, 500), (500, 501), (501, ROWS)]):
        payloads = [a_record(row) for row in range(first, last)]
        data = framed([*payloads, *([late] if number == 2 and isinstance(late, bytes) else [])])
        data = late(data) if number == 2 and callable(late) else data
        (tmp_path / "in" / f"{number}.tfrecord").write_bytes(data)
    check_same(build(str(tmp_path / "in"), kind="tfrecord", **options))


def test_a_null_in_a_list_of_the_last_table(tmp_path: Path, build: Callable[..., dict[str, Any]]) -> None:
    (tmp_path / "in").mkdir()
    for number, (first, last) in enumerate([(0, 700), (700, ROWS)]):
        table = pa.table({"whole": range(first, last), "list": [[*range(row % 4)] for row in range(first, last)]})
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet", row_group_size=200)
    pq.write_table(pa.table({"whole": [1], "list": [[None]]}), tmp_path / "in" / "2.parquet")
    check_same(build(str(tmp_path / "in"), kind="parquet"))
