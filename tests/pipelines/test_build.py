"""The bytes of a build in memory don't depend on threads or runner.

A build contains all records, and a build that fails writes nothing.
"""

import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.files import shard_bytes
from kit.runs import build_in_each_way, run_in_threads, run_python, use_key_bits

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.building import ingest, sorted_run
from recordmill.pipelines.build import BuildResult
from recordmill.records.example.encode import encode
from recordmill.sources.arrow import memory


def table(rows: int) -> pa.Table:
    generator = np.random.default_rng(5)
    return pa.table(
        {
            "id": np.arange(rows),
            "x": generator.random(rows).astype("f4"),
            "text": [None if i % 7 == 0 else "é" * (i % 50) for i in range(rows)],
            "tokens": [list(range(i % 5)) if i % 3 else None for i in range(rows)],
        }
    )


def read_back(result: BuildResult, split: str | None = None) -> list[dict[str, Any]]:
    return recordmill.open(result.out, split=split).to_table().to_pylist()


def test_build_contains_the_input_records(tmp_path: Path) -> None:
    data = table(1000)
    result = recordmill.build(data, tmp_path / "out", num_shards=3)
    assert result.records == {"train": 1000}
    assert (result.read, result.rejected) == (1000, 0)
    rows = read_back(result)
    assert [row["id"] for row in rows] != sorted(row["id"] for row in rows)
    assert sorted(rows, key=lambda row: row["id"]) == data.to_pylist()
    assert recordmill.verify(result.out) == []


def test_schema_in_the_output_folder_is_not_replaced(tmp_path: Path) -> None:
    schema = tmp_path / "curated" / "schema.pbtxt"
    schema.parent.mkdir()
    schema.write_text('feature { name: "id" type: INT }')
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"is not empty \(schema.pbtxt\)"):
            recordmill.build({"id": [1]}, schema.parent, schema=schema, overwrite=overwrite)
    assert schema.read_text() == 'feature { name: "id" type: INT }'
    assert os.listdir(schema.parent) == ["schema.pbtxt"]


def test_each_record_is_the_plain_encoding_of_its_row(tmp_path: Path) -> None:
    result = recordmill.build(table(50), tmp_path / "out", shuffle=False, num_shards=1)
    batch = recordmill.open(result.out).to_table().combine_chunks().to_batches()[0]
    assert result.shards[0].read_bytes() == encode(batch, result.schema).data.tobytes()


@pytest.mark.parametrize("key", [None, "few"])
@pytest.mark.parametrize("size", [{"num_shards": 40}, {"shard_size": "5kB"}])
def test_bytes_do_not_depend_on_the_number_of_sorted_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, size: dict[str, Any]
) -> None:
    """Small buffers and units produce many sorted runs.

    The key has few values, so each run has records for all shards of a bucket.
    """
    data = table(3000).append_column("few", pa.array(["ab"[i % 3 == 0] for i in range(3000)]))
    small_batches = pa.RecordBatchReader.from_batches(
        data.schema, data.to_batches(max_chunksize=100)
    )
    options: dict[str, Any] = {
        "splits": {"train": 0.8, "test": 0.2},
        "split_by": "id",
        "threads": 2,
        "key": key,
    }
    expected = recordmill.build(data, tmp_path / "one", **options, **size)
    run_paths: list[str] = []
    create_file = sorted_run.create_file
    monkeypatch.setattr(
        sorted_run, "create_file", lambda path: (run_paths.append(str(path)), create_file(path))[1]
    )
    monkeypatch.setattr(ingest, "_limit_buffer_bytes", lambda plan, group, max_bytes: 20_000)
    monkeypatch.setattr(memory, "UNIT_BYTES", 10_000)
    result = recordmill.build(
        pa.RecordBatchReader.from_batches(data.schema, small_batches),
        tmp_path / "out",
        **options,
        **size,
    )
    assert len(run_paths) > 10
    assert shard_bytes(result.out) == shard_bytes(expected.out)
    assert recordmill.verify(result.out) == []


@pytest.mark.parametrize(
    "options",
    [
        {"num_shards": 7},
        {"shard_size": "20kB", "splits": "a=0.7,b=0.3"},
        {"key_bits": 8, "num_shards": 5},
        {"compression": "gzip"},
    ],
    ids=str,
)
def test_bytes_do_not_depend_on_threads_memory_or_runner(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_key_bits(monkeypatch, options.get("key_bits", 64))
    options = {name: value for name, value in options.items() if name != "key_bits"}
    results = build_in_each_way(table(5000), tmp_path, **options)
    assert len(results[0].shards) > 1 or "compression" in options


def test_bytes_do_not_depend_on_hash_seed_and_folder(tmp_path: Path) -> None:
    script = (
        "import sys, recordmill; r = recordmill.build({'x': list(range(999))}, sys.argv[1], num_shards=2); "
        "print(*[p.read_bytes().hex() for p in r.shards])"
    )
    outputs = set()
    for seed in ("0", "1"):
        folder = tmp_path / seed
        folder.mkdir()
        outputs.add(
            run_python(
                "-c", script, "out", cwd=folder, env={**os.environ, "PYTHONHASHSEED": seed}
            ).stdout
        )
    assert len(outputs) == 1


def test_shuffle_of_a_build_mixes_well(tmp_path: Path) -> None:
    rows = 20_000
    order = np.array(
        [
            row["id"]
            for row in read_back(recordmill.build({"id": np.arange(rows)}, tmp_path / "out"))
        ]
    )
    assert sorted(order) == list(range(rows))
    # 0.03 is 4 standard deviations for a random permutation.
    assert abs(np.corrcoef(order, np.arange(rows))[0, 1]) < 0.03
    neighbours = np.abs(np.diff(order))
    assert np.mean(neighbours == 1) < 0.001
    second_order = [
        row["id"]
        for row in read_back(recordmill.build({"id": np.arange(rows)}, tmp_path / "other", seed=1))
    ]
    assert abs(np.corrcoef(order, second_order)[0, 1]) < 0.03


def test_data_set_survives_a_round_trip_through_parquet(tmp_path: Path) -> None:
    data = {
        "species": ["cat", "dog", "cat", "eel"],
        "pixels": np.arange(48, dtype=np.uint8).reshape(4, 3, 4),
        "weight": np.array([0.1, 1e300, -0.0, 2.5]),
    }
    first = recordmill.build(data, tmp_path / "first", label="species", key="weight")
    recordmill.read(first.out, tmp_path / "table", to="parquet")
    rebuilt = recordmill.build(tmp_path / "table", tmp_path / "again", kind="parquet", key="weight")
    assert rebuilt.schema == first.schema
    assert rebuilt.schema.label == "species"
    assert [path.read_bytes() for path in rebuilt.shards] == [
        path.read_bytes() for path in first.shards
    ]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_reader_of_replaced_shards_gets_an_error(tmp_path: Path, compression: str) -> None:
    out = tmp_path / "out"
    recordmill.build({"x": list(range(50))}, out, compression=compression)
    reads: list[Callable[[recordmill.Dataset], Any]] = [
        lambda ds: list(ds.batches(8, shuffle=False)),
        lambda ds: list(ds.batches(8, shuffle="global")),
        lambda ds: ds.to_table(),
        lambda ds: ds[3],
        lambda ds: ds.take([5, 1]),
        lambda ds: ds.head(),
        lambda ds: ds.to_parquet(tmp_path / "x.parquet", overwrite=True),
        lambda ds: len(ds.filter("x > 3")),
    ]
    readers = [recordmill.open(out) for _ in reads]
    batches = recordmill.open(out).batches(8, shuffle=False)
    first = next(batches)["x"].tolist()
    for number in (1, 2):
        last = recordmill.build({"x": [number]}, out, overwrite=True, compression=compression)
        for read_records, reader in zip(reads, readers, strict=True):
            if number == 1:
                read_records(pickle.loads(pickle.dumps(reader)))  # an open data set stays readable
                continue
            message = rf"{out}/data-.*: is gone: the data set was replaced, by generation 3; open it again"
            with pytest.raises(DataError, match=message):
                read_records(reader)
    # An iterator that has started can read all records.
    assert len(first + [x for batch in batches for x in batch["x"].tolist()]) == 50
    (tmp_path / "x.parquet").unlink()
    reader = recordmill.open(out)
    (shard,) = last.shards
    shard.unlink()
    with pytest.raises(DataError, match=rf"{shard}: is missing; the manifest names it"):
        reader.to_table()
    with pytest.raises(DataError, match=r"is missing; the manifest names it"):
        list(reader.batches(8))


def test_failing_iterator_raises_its_own_error_and_leaves_nothing(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, int]]:
        yield {"x": 1}
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        recordmill.build(rows(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_shards": 4}, "has only 3 records"),
        ({"num_shards": 0}, "at least one"),
        ({"num_shards": 2, "shard_size": "1MiB"}, "exclude each other"),
        ({"shard_size": "many"}, "128MiB"),
        ({"memory": "1MiB"}, "at least 128MiB"),
        ({"splits": "train"}, "NAME=FRACTION"),
        ({"splits": "train=0.5"}, "rest=0.5"),
        ({"key": "y"}, "no such column; there are x"),
        ({"split_by": "y", "splits": "a=1"}, "no such column"),
        ({"label": "y"}, "y"),
        ({"dtypes": {"x": "int99"}}, "int99"),
        ({"max_rejects": "few"}, "0.5%"),
        ({"compression": "lzma"}, "one of none, gzip"),
        ({"name": "my data"}, "letters"),
        ({"threads": -1}, r"0 \(one per core\) or more"),
        ({"beam_args": ("--nonsense=1",)}, "--nonsense=1"),
    ],
    ids=str,
)
def test_wrong_build_option_is_refused_and_leaves_nothing(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        recordmill.build({"x": [1, 2, 3]}, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_of_two_concurrent_builds_one_commits_and_the_other_fails(tmp_path: Path) -> None:
    outcomes: list[str] = []
    ready = threading.Barrier(2)

    def rows(value: int) -> Iterator[dict[str, int]]:
        yield {"x": value}
        ready.wait(timeout=60)
        yield {"x": value}

    def work(value: int) -> None:
        try:
            recordmill.build(rows(value), tmp_path / "out")
            outcomes.append("committed")
        except recordmill.RecordmillError as error:
            outcomes.append(str(error))

    run_in_threads(work, 1, 2)
    assert sorted(outcome.split(":")[-1].strip() == "committed" for outcome in outcomes) == [
        False,
        True,
    ]
    assert any("another build committed" in outcome for outcome in outcomes)
    values = {row["x"] for row in recordmill.open(tmp_path / "out").to_table().to_pylist()}
    assert values in ({1}, {2})
    assert recordmill.verify(tmp_path / "out") == []


def test_build_result_has_a_repr_and_a_json_summary(tmp_path: Path) -> None:
    result = recordmill.build({"x": [1, 2]}, tmp_path / "out")
    assert repr(result).startswith(
        f"<recordmill data set {tmp_path}/out: train 2 records, 1 feature, 1 shard, "
    )
    summary = json.loads(json.dumps(result.to_json()))
    assert summary["records"] == {"train": 2}
    assert summary["features"] == {"x": "int64"}
