"""A build is the same whether parsed records wait in memory or files or are read again, and in however many runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.building import ingest
from recordmill.pipelines import plan
from recordmill.sources.common import scan_cache

pytest.importorskip("apache_beam", reason="building needs Apache Beam")


@dataclass(frozen=True)
class Way:
    """Bytes of parsed records, of read files and of a run; least_file: how little is worth a file."""

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
