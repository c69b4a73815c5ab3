"""Inputs of more features than the memory allows are refused."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recordmill
from recordmill.base.errors import DataError
from recordmill.records.example.encode import encode
from recordmill.schemas.feature import MAX_FEATURES, Feature, Schema, max_feature_count

MEMORY = 128 << 20
MAX_COUNT = max_feature_count(MEMORY)


def write(path: Path, features: int) -> Path:
    """Writes one record of numbers, in the format of the file name."""
    names = [f"f{index}" for index in range(features)]
    if path.suffix == ".csv":
        path.write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    elif path.suffix == ".jsonl":
        path.write_text(json.dumps(dict.fromkeys(names, 1)) + "\n")
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({name: [1] for name in names}), path)
    else:
        batch = pa.record_batch({name: pa.array([1]) for name in names})
        frames = encode(batch, Schema(tuple(Feature(name, "int64") for name in names)))
        path.write_bytes(frames.data.tobytes())
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "tfrecord"])
def test_file_of_too_many_features_is_refused(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"wide.{kind}", MAX_COUNT + 2000)
    message = rf"wide\.{kind}: it has [\d,]+ features or more, and at most {MAX_COUNT:,} are allowed: (--memory |memory=\")128MiB"
    with pytest.raises(DataError, match=message):
        recordmill.build(path, tmp_path / "out", memory=MEMORY, quiet=True)
    assert not (tmp_path / "out").exists()


def test_data_in_memory_of_too_many_features_is_refused(tmp_path: Path) -> None:
    data = pa.table({f"f{index}": [1] for index in range(MAX_COUNT + 1)})
    with pytest.raises(
        DataError,
        match=f"memory: it has {MAX_COUNT + 1:,} features or more, and at most {MAX_COUNT:,}",
    ):
        recordmill.build(data, tmp_path / "out", memory=MEMORY, quiet=True)


@pytest.mark.sweep
def test_foreign_records_of_too_many_features_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "wide.tfrecord", MAX_FEATURES + 1)
    with pytest.raises(
        DataError,
        match=r"wide\.tfrecord: it has 65,537 features or more, and at most 65,536 are allowed",
    ):
        recordmill.read(path, tmp_path / "out", to="jsonl", quiet=True)
    with pytest.raises(DataError, match="at most 65,536 are allowed"):
        recordmill.open(path).schema  # noqa: B018 - the schema is inferred at this access


def test_largest_number_of_features_that_memory_allows_is_built(tmp_path: Path) -> None:
    recordmill.build(
        write(tmp_path / "wide.tfrecord", MAX_COUNT),
        tmp_path / "out",
        memory=MEMORY,
        quiet=True,
        stats=False,
    )
    assert len(recordmill.open(tmp_path / "out").schema) == MAX_COUNT
