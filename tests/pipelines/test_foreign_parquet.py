"""Real files of other systems go to Parquet without an option, and hold there what TensorFlow and protobuf parse;
docs/foreign-files.md says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recordmill
from recordmill.schemas.feature import PAYLOAD, SEQUENCE_EXAMPLE, Feature, Schema

DOCS = Path(__file__).resolve().parents[2] / "docs"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def listed(shared_data: Path) -> list[dict[str, Any]]:
    """What is known of each file from decoders that are not ours:
    path, compression, n, msg (message type to records).
    """
    found = [json.loads(line) for line in (shared_data / "tfrecord" / "manifest.jsonl").read_text().splitlines()]
    assert len(found) > 100
    return found


def parsed(path: Path, compression: str, message: str) -> Iterator[Row]:
    """Each record as TensorFlow reads and protobuf parses it: name to its values, to a list of steps for a feature
    list, or to None.
    """
    tf = pytest.importorskip("tensorflow", reason="what TensorFlow parses is compared")
    for record in tf.data.TFRecordDataset(str(path), "" if compression == "NONE" else compression).as_numpy_iterator():
        if message == PAYLOAD:
            yield {"record": [record]}
        elif message == SEQUENCE_EXAMPLE:
            example = tf.train.SequenceExample.FromString(record)
            steps = {
                name: [_values(step) for step in many.feature]
                for name, many in example.feature_lists.feature_list.items()
            }
            yield {name: _values(feature) for name, feature in example.context.feature.items()} | steps
        else:
            yield {
                name: _values(feature) for name, feature in tf.train.Example.FromString(record).features.feature.items()
            }


def _values(feature: Any) -> list[Any] | None:
    kind = feature.WhichOneof("kind")
    return None if kind is None else list(getattr(feature, kind).value)


def as_protobuf(value: Any, feature: Feature) -> Any:
    """The value of a column as protobuf would have it."""
    if value is None:
        return None
    if feature.per_step:
        inner = Feature(feature.name, feature.dtype, feature.shape[1:])
        return [as_protobuf(step, inner) for step in value]
    values = value if feature.shape else [value]
    return [item.encode() if isinstance(item, str) else item for item in values]


def same(value: Any, wanted: Any) -> bool:
    """Equal, with NaN equal to itself, and missing unequal to empty."""
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(same, value, wanted))
    return value == wanted or (value != value and wanted != wanted)


def check(path: Path, table: pa.Table, schema: Schema, compression: str = "NONE") -> tuple[int, int]:
    """The table holds what protobuf parses of the file, and nothing else;
    how many values were compared, and how many were missing.
    """
    values = missing = 0
    names = set()
    for row, truth in zip(table.to_pylist(), parsed(path, compression, schema.message), strict=True):
        names |= set(truth)
        for feature in schema:
            value, wanted = as_protobuf(row[feature.name], feature), truth.get(feature.name)
            assert same(value, wanted), (path, feature, value, wanted)
            values += 0 if value is None else len(value)
            missing += value is None
    assert names == set(table.column_names) == set(schema.names), path
    return values, missing


@pytest.mark.sweep
def test_every_file_reads_to_parquet_with_what_protobuf_parses(
    shared_data: Path, listed: list[dict[str, Any]], tmp_path: Path
) -> None:
    values = missing = 0
    for number, about in enumerate(listed):
        path = shared_data / "tfrecord" / about["path"]
        result = recordmill.read(path, tmp_path / str(number), to="parquet")
        assert (result.read, result.written, result.rejected) == (about["n"], about["n"], 0), about["path"]
        assert [result.schema.message] == [
            {"neither": PAYLOAD, "ELWC": PAYLOAD}.get(kind, kind) for kind in about["msg"]
        ], about["path"]
        table = pq.read_table(list(result.paths))
        assert table.equals(recordmill.open(path).to_table().cast(table.schema)), about["path"]
        more = check(path, table, result.schema, about["compression"])
        values, missing = values + more[0], missing + more[1]
    assert values > 500_000
    assert missing > 1_000


def write(path: Path, records: list[Any]) -> Path:
    tf = pytest.importorskip("tensorflow", reason="the files are TensorFlow's")
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record.SerializeToString())
    return path


KINDS: dict[str, list[Any]] = {"bytes_list": [b"a", b"\xff"], "float_list": [0.0, 1.5], "int64_list": [0, -1]}


def test_missing_empty_and_zero_stay_three_things(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow", reason="the files are TensorFlow's")
    lists = {"bytes_list": tf.train.BytesList, "float_list": tf.train.FloatList, "int64_list": tf.train.Int64List}

    def feature(kind: str, values: list[Any]) -> Any:
        return tf.train.Feature(**{kind: lists[kind](value=values)})

    def example(**features: Any) -> Any:
        return tf.train.Example(features=tf.train.Features(feature=features))

    for kind, values in KINDS.items():
        full, one, none = feature(kind, values), feature(kind, values[:1]), feature(kind, [])
        unset = tf.train.Feature()
        rows = [
            example(list=full, scalar=one),
            example(list=none),
            example(list=unset, scalar=unset),
            example(),
            example(list=one, scalar=one),
        ]
        path = write(tmp_path / f"{kind}.tfrecord", rows)
        result = recordmill.read(path, tmp_path / kind)
        table = pq.read_table(list(result.paths))
        assert check(path, table, result.schema) == (5, 5)
        assert [value if value is None else len(value) for value in table["list"].to_pylist()] == [2, 0, None, None, 1]
        assert [value is None for value in table["scalar"].to_pylist()] == [False, True, True, True, False]

    lists_of = {"steps": [[1, 2], [], [3]], "none": [], "ones": [[4], [5]]}
    sequences = [
        tf.train.SequenceExample(
            context=tf.train.Features(feature={"id": feature("int64_list", [row])} if row else {}),
            feature_lists=tf.train.FeatureLists(
                feature_list={
                    name: tf.train.FeatureList(feature=[feature("int64_list", step) for step in steps[row:]])
                    for name, steps in lists_of.items()
                    if row < 3 or name != "ones"
                }
            ),
        )
        for row in range(4)
    ]
    path = write(tmp_path / "sequences.tfrecord", sequences)
    result = recordmill.read(path, tmp_path / "sequences")
    table = pq.read_table(list(result.paths))
    check(path, table, result.schema)
    assert table["steps"].to_pylist() == [[[1, 2], [], [3]], [[], [3]], [[3]], []]
    assert table["ones"].to_pylist() == [[4, 5], [5], [], None]
    assert table["id"].to_pylist() == [None, 1, 2, 3]


def test_the_page_says_what_each_became(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    make_table = pytest.importorskip("make_table")
    sys.modules.pop("make_table")
    page = (DOCS / "foreign-files.md").read_text(encoding="utf-8")
    assert page.partition(make_table.MARK)[2] == "\n" + make_table.table(shared_data / "tfrecord")
    assert page.endswith("108 files, 23,558 records, 0 rejected.\n")
