"""What folders called `NAME=VALUE` say becomes columns, the same of every kind whose records are rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recordmill
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.rejects import TooManyRejects

KINDS = ("csv", "jsonl", "parquet")
FOLDERS = (("2024-01-01", "JP"), ("2024-01-02", "DE"), ("2024-01-02", "JP"))


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A file of the kind that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        path.write_text("".join(",".join(map(str, line)) + "\n" for line in (rows[0], *(row.values() for row in rows))))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, kind: str) -> Path:
    for number, (day, country) in enumerate(FOLDERS):
        of_file = tmp_path / "in" / f"dt={day}" / f"country={country}" / f"n={number}"
        write_rows(of_file / f"part.{kind}", [{"x": 10 * number, "y": "a"}, {"x": 10 * number + 1, "y": "b"}])
    return tmp_path / "in"


def table(out: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = recordmill.open(out).to_table().to_pydict()
    return found


def test_they_become_columns(folder: Path, tmp_path: Path) -> None:
    built = recordmill.build(folder, tmp_path / "out", shuffle=False, label="country")
    assert not [note for note in built.notes if "=..." in note or "not in" in note]
    assert [(f.name, f.dtype, f.required) for f in built.schema] == [
        ("x", "int64", built.schema["x"].required), ("y", "string", built.schema["y"].required),
        ("dt", "string", True), ("country", "int64", True), ("n", "int64", True),
    ]  # fmt: skip
    assert (built.schema.label, built.schema["country"].classes) == ("country", ("DE", "JP"))
    assert table(tmp_path / "out") == {
        "x": [0, 1, 10, 11, 20, 21], "y": ["a", "b"] * 3,
        "dt": ["2024-01-01"] * 2 + ["2024-01-02"] * 4, "country": [1, 1, 0, 0, 1, 1], "n": [0, 0, 1, 1, 2, 2],
    }  # fmt: skip


def test_a_given_schema_and_dtypes_hold_for_them(folder: Path, tmp_path: Path) -> None:
    features = (
        Feature("dt", "string"), Feature("x", "int64"), Feature("country", "int64", classes=("FR", "JP", "DE")),
    )  # fmt: skip
    schema = Schema(features, label="country")
    built = recordmill.build(folder, tmp_path / "out", shuffle=False, schema=schema)
    assert built.schema == schema
    assert "what folders called n=... say becomes no column" in built.notes
    assert (table(tmp_path / "out")["country"], table(tmp_path / "out")["x"]) == (
        [1, 1, 2, 2, 1, 1],
        [0, 1, 10, 11, 20, 21],
    )
    some = recordmill.build(folder, tmp_path / "some", dtypes={"n": "float32"}, splits="a=0.5,b=0.5", split_by="dt")
    assert some.schema["n"].dtype == "float32"
    assert {count for count in some.records.values() if count} <= {2, 4, 6}


def test_a_value_that_does_not_fit_is_a_reject_of_each_of_its_records(folder: Path, tmp_path: Path, kind: str) -> None:
    write_rows(folder / "dt=today" / "country=JP" / "n=7" / f"part.{kind}", [{"x": 70, "y": "a"}, {"x": 71, "y": "b"}])
    for day, _ in FOLDERS:
        if (old := folder / f"dt={day}").exists():
            old.rename(folder / f"dt={day.replace('-', '')}")
    with pytest.raises(TooManyRejects, match="dt: 'today' does not fit int64"):
        recordmill.build(folder, tmp_path / "out", dtypes={"dt": "int64"})
    built = recordmill.build(folder, tmp_path / "out", dtypes={"dt": "int64"}, max_rejects=2, shuffle=False)
    assert (built.read, built.rejected, sorted(table(tmp_path / "out")["x"])) == (8, 2, [0, 1, 10, 11, 20, 21])
    assert set(table(tmp_path / "out")["dt"]) == {20240101, 20240102}
    places = [json.loads(line) for path in built.rejects for line in Path(path).read_text().splitlines()]
    assert len({(one["source"], one["place"]) for one in places}) == 2


def test_a_column_of_the_files_stands_before_what_folders_say(tmp_path: Path, kind: str) -> None:
    write_rows(tmp_path / "in" / "x=5" / "y=7" / f"part.{kind}", [{"x": 1, "z": 3}, {"x": 2, "z": 4}])
    recordmill.build(tmp_path / "in", tmp_path / "out", shuffle=False, dtypes={"x": "float32", "y": "float64"})
    assert table(tmp_path / "out") == {"x": [1.0, 2.0], "z": [3, 4], "y": [7.0, 7.0]}


def test_what_hive_calls_null_is_missing(tmp_path: Path, kind: str) -> None:
    for value, x in (("__HIVE_DEFAULT_PARTITION__", 1), ("a%20b", 2)):
        write_rows(tmp_path / "in" / f"v={value}" / f"part.{kind}", [{"x": x, "z": 0}])
    built = recordmill.build(tmp_path / "in", tmp_path / "out", shuffle=False)
    assert not built.schema["v"].required
    assert dict(zip(table(tmp_path / "out")["x"], table(tmp_path / "out")["v"], strict=True)) == {1: None, 2: "a b"}


def test_the_same_shards_from_workers(folder: Path, tmp_path: Path) -> None:
    one = recordmill.build(folder, tmp_path / "one", label="country", num_shards=2)
    workers = recordmill.build(folder, tmp_path / "workers", label="country", num_shards=2, runner="DirectRunner")
    assert [Path(path).read_bytes() for path in one.shards] == [Path(path).read_bytes() for path in workers.shards]
