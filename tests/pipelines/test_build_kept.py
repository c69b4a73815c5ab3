"""A build of CSV and JSON lines is the same, byte for byte, whether what the plan parsed waits in memory or in files,
or is parsed again: shards, schema, rejects and notes, also where the last record changes what all were taken for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.pipelines import planning
from recordmill.sources.inputs import kept

pytest.importorskip("apache_beam", reason="building needs Apache Beam")

REAL = Path(__file__).resolve().parents[3] / "shared" / "data"
# how much the plan may keep in memory, and how little is worth a file (None: nothing is)
WAYS = {
    "parsed again": (0, None),
    "memory": (1 << 30, None),
    "files": (8 << 10, 0),
    "both": (64 << 10, 4 << 10),
    "little room": (2 << 10, 0),
}
ROWS = 1500


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Builds in each way, and gives what came of each: files and what was said, or the error."""
    put = kept.Kept.put
    where: set[str] = set()
    monkeypatch.setattr(
        kept.Kept,
        "put",
        lambda self, place, found: (where.add("file" if found.path else "memory"), put(self, place, found)),
    )
    monkeypatch.setattr(kept, "_PIECE_BYTES", 16)

    def in_each_way(source: Any, **options: Any) -> dict[str, Any]:
        results = {}
        for name, (most_bytes, least_file_bytes) in WAYS.items():
            with monkeypatch.context() as patch:
                patch.setattr(planning, "parsed_bytes", lambda memory, most=most_bytes: most)
                patch.setattr(kept, "_LEAST_FILE_BYTES", least_file_bytes or 0)
                if least_file_bytes is None:
                    patch.setattr(kept.Kept, "__init__", _in_memory(kept.Kept.__init__))
                where.clear()
                results[name] = built(source, tmp_path / name, **options)
            assert name != "parsed again" or not where
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
    expected = results["parsed again"]
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


# what the last line of the last file is, by kind
LATE = {
    "csv": [
        "x,0.5,text,2024-01-01,a",
        "1,0.5,text,soon,d",
        "1,2",
        '1,0.5,"never closed',
        '9223372036854775808,1e39,"",2024-01-01T10:00:00Z,\udcff',
        "",
    ],
    "jsonl": [
        '{"whole": "x"}',
        '{"whole": 0.5, "list": [1, 2, 3, 4, 5, 6, 7, 8, 9]}',
        '{"whole": 1, "list": ["x"]}',
        '{"whole": 9223372036854775808, "real": 1e300, "label": "d"}',
        '{"new": {"a": [[1]]}}',
        '{"whole": 1, "whole": 2}',
        "[1",
        "",
    ],
}
CASES = [
    (kind, late, options)
    for kind, lates in LATE.items()
    for late in lates
    for options in (
        {},
        {"label": "label"},
        {"dtypes": {"whole": "int64", "list": "int64[?]"} if kind == "jsonl" else {"whole": "int64"}},
    )
]
USUAL = [
    CASES[0],
    ("csv", "1,2", {"label": "label"}),
    ("jsonl", LATE["jsonl"][1], {}),
    ("jsonl", "[1", {"label": "label"}),
]


@pytest.mark.parametrize(
    ("kind", "late", "options"),
    [*USUAL, *(pytest.param(*case, marks=pytest.mark.sweep) for case in CASES if case not in USUAL)],
    ids=str,
)
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


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_real_files(build: Callable[..., dict[str, Any]], kind: str) -> None:
    if not REAL.is_dir():
        pytest.skip(f"{REAL} is not there")
    endings = {"csv": ("*.csv", "*.tsv"), "jsonl": ("*.json", "*.jsonl", "*.jsonl.gz")}[kind]
    paths = sorted(path for ending in endings for path in REAL.rglob(ending))
    assert paths
    found: list[str] = []
    for path in paths:
        found += check_same(build(str(path), kind=kind))
    assert {*found} == {"file", "memory"}
