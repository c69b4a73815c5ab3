"""`open(..., where=...)` against the same rows chosen in plain Python:
every way to read gives these records, numbered from 0.
"""

from __future__ import annotations

import gzip
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from made_data_set import MIXED, mixed_rows, write_data_set

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.dataset import Dataset, open
from recordmill.records.columns.ragged import Strings
from recordmill.records.example.encode import encode
from recordmill.storage.codecs import SHARD_SUFFIXES

ROWS = mixed_rows(300)
CASES: list[tuple[str, pc.Expression, Callable[[dict[str, Any]], bool]]] = [
    ("label = 1", pc.field("label") == 1, lambda row: row["label"] == 1),
    (
        "maybe > 20 OR id < 2",
        (pc.field("maybe") > 20) | (pc.field("id") < 2),
        lambda row: row["id"] < 2 or (row["maybe"] or 0) > 20,
    ),
    ("id BETWEEN 98 AND 102", (pc.field("id") >= 98) & (pc.field("id") <= 102), lambda row: 98 <= row["id"] <= 102),
    ("id = 299", pc.field("id") == 299, lambda row: row["id"] == 299),
    ("id < 0", pc.field("id") < 0, lambda row: False),
    ("1 = 1", pc.scalar(True), lambda row: True),
]


@pytest.fixture(scope="module", params=list(SHARD_SUFFIXES))
def out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(tmp_path_factory.mktemp("ds") / "out", {"train": ROWS}, shards=3, compression=request.param)


@pytest.mark.parametrize(("sql", "expression", "holds"), CASES)
def test_every_way_to_read_gives_the_same_records(
    out: Path, tmp_path: Path, sql: str, expression: pc.Expression, holds: Callable[[dict[str, Any]], bool]
) -> None:
    wanted = ROWS.take(pa.array([row["id"] for row in ROWS.to_pylist() if holds(row)], pa.int64()))
    ids = wanted["id"].to_pylist()
    for number, where in enumerate([sql, expression]):
        ds = open(out, where=where, threads=2 - number)
        assert ds.to_table().equals(wanted)
        assert "matching" not in ds.__dict__, "reading in order needs no pass before"
        assert ds.head(7).equals(wanted.slice(0, 7))
        assert pa.Table.from_batches(ds.to_batches(10), ds.to_table().schema).equals(wanted)
        assert [record["id"] for record in ds] == ids
        assert "matching" not in ds.__dict__
        assert len(ds) == len(ids)
        assert ds.to_numpy()["id"].tolist() == ids
        assert ds.to_numpy(tmp_path / str(number))["id"].tolist() == ids
        assert (
            np.concatenate([np.empty(0, np.int64), *(batch["id"] for batch in ds.batches(7, shuffle=False))]).tolist()
            == ids
        )
        shuffled = [int(i) for batch in ds.batches(7, shuffle=True, seed=3, window_bytes=1 << 14) for i in batch["id"]]
        assert sorted(shuffled) == ids


@pytest.mark.parametrize(("sql", "expression", "holds"), CASES)
def test_numbers_count_the_records_that_are_left(
    out: Path, sql: str, expression: pc.Expression, holds: Callable[[dict[str, Any]], bool]
) -> None:
    ids = [row["id"] for row in ROWS.to_pylist() if holds(row)]
    ds: Dataset = pickle.loads(pickle.dumps(open(out, where=sql, columns=["name", "id"])))
    assert [ds[i]["id"] for i in range(len(ds))] == ids
    for cut in (slice(0, 3), slice(2, 50), slice(-2, None), slice(None, None, -2), slice(1000, 2000)):
        assert ds[cut]["id"].to_pylist() == ids[cut]
        assert ds[cut].column_names == ["name", "id"]
    assert ds.to_table(1, 4)["id"].to_pylist() == ids[1:4]
    if ids:
        at = np.array([-1, 0, len(ids) // 2, 0])
        assert ds[at]["id"].to_pylist() == [ids[i] for i in at]
    with pytest.raises(IndexError, match=f"record {len(ids)} of {len(ids)}"):
        ds[len(ids)]
    with pytest.raises(IndexError):
        ds[[len(ids)]]


def test_a_predicate_on_features_that_are_not_read(out: Path) -> None:
    ds = open(out, columns=["name"], where="label = 2 AND len(tokens) = 1")
    rows = [row for row in ROWS.to_pylist() if row["label"] == 2 and len(row["tokens"] or ()) == 1]
    assert len(rows) > 3
    assert ds.schema.names == ("name",)
    assert ds.to_table().to_pylist() == [{"name": row["name"]} for row in rows]
    assert ds[1] == {"name": rows[1]["name"]}
    assert isinstance(ds.to_numpy()["name"], np.ndarray | Strings)
    assert ds.full_schema == MIXED


def test_what_it_says_of_itself(out: Path) -> None:
    ds = open(out, where="id < 9", columns=["id"])
    assert repr(ds).startswith("<Dataset made: of 300 records those where id < 9, train")
    len(ds)
    assert repr(ds).startswith("<Dataset made: 9 of 300 records those where id < 9, train")


def test_foreign_files_and_streams(tmp_path: Path) -> None:
    """Their schema is inferred when it is needed, and a stream has no index."""
    batch = ROWS.combine_chunks().to_batches()[0]
    (tmp_path / "a.tfrecord").write_bytes(encode(batch.slice(0, 100), MIXED).data.tobytes())
    (tmp_path / "b.tfrecord.gz").write_bytes(gzip.compress(encode(batch.slice(100), MIXED).data.tobytes()))
    ds = open(tmp_path, columns=["name"], where="id % 3 = 0 AND id > 90", threads=2)
    ids = [i for i in range(91, 300) if i % 3 == 0]
    assert ds.head(5)["name"].to_pylist() == [f"row {i} ü" for i in ids[:5]]
    assert ds.to_table()["name"].to_pylist() == [f"row {i} ü" for i in ids]
    assert [ds[i]["name"] for i in (0, 3, -1)] == [f"row {i} ü" for i in (93, 102, 297)]
    assert sorted(name for batch in ds.batches(50, shuffle=True) for name in batch["name"].tolist()) == sorted(
        f"row {i} ü" for i in ids
    )
    with pytest.raises(UsageError, match="idd = 1"):
        len(open(tmp_path, where="idd = 1"))


def test_wrong_predicates(out: Path) -> None:
    with pytest.raises(UsageError, match='where="nope = 1"'):
        open(out, where="nope = 1")
    with pytest.raises(UsageError, match=r"random\(\)"):
        open(out, where="random() < 0.5")
    with pytest.raises(UsageError, match=r'where="\[id\]": .*BOOLEAN'):
        len(open(out, where="[id]"))
    with pytest.raises(DataError, match=r"train-.*CAST\(name AS INTEGER\)"):
        len(open(out, where="CAST(name AS INTEGER) = 1"))


def test_tf_trains_from_these_records_alone(out: Path) -> None:
    pytest.importorskip("tensorflow")
    ds = open(out, columns=["id", "label"], where="label = 1 AND id > 40")
    ids = [i for i in range(41, 300) if i % 3 == 1]
    for shuffle in (False, True):
        data = ds.to_tf(16, shuffle=shuffle, label=True)
        found = [int(i) for x, y in data for i in x]
        assert (sorted(found) if shuffle else found) == ids
        assert int(data.cardinality()) == -(-len(ids) // 16)
    assert {int(y) for _, y in ds.to_tf(None, label=True)} == {1}


def test_without_duckdb_an_expression_serves(out: Path) -> None:
    code = f"""
import sys
sys.modules["duckdb"] = None
import recordmill, pyarrow.compute as pc
print(len(recordmill.open({str(out)!r}, where=pc.field("id") < 4)))
recordmill.open({str(out)!r}, where="id < 4")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "4\n"
    assert "needs duckdb, which is not installed" in done.stderr
