"""Real files of other systems convert to Parquet without options.

The tables equal the records that TensorFlow reads and protobuf parses.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit import wire_writer as wire
from kit.batches import plain
from kit.data_sets import MIXED, mixed_rows
from kit.files import tfrecord_bytes
from kit.source_reading import are_equal

import recordmill
from recordmill.reader.dataset import Dataset
from recordmill.records.example.encode import encode
from recordmill.schemas.feature import OPAQUE_BYTES, SEQUENCE_EXAMPLE, Feature, Schema

DOCS = Path(__file__).resolve().parents[2] / "docs"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def foreign_files(shared_data: Path) -> list[dict[str, Any]]:
    """Facts about each file, from decoders that are not ours.

    Each file has its `path`, `compression`, the number `n` of its records, and `msg`, the number of
    records by message type.
    """
    entries = [
        json.loads(line)
        for line in (shared_data / "tfrecord" / "manifest.jsonl").read_text().splitlines()
    ]
    assert len(entries) > 100
    return entries


def parsed(path: Path, compression: str, message: str) -> Iterator[Row]:
    """Yields each record as TensorFlow reads it and protobuf parses it.

    A record maps the name of a feature to its values, to a list of steps, or to None.
    """
    tf = pytest.importorskip("tensorflow", reason="what TensorFlow parses is compared")
    for record in tf.data.TFRecordDataset(
        str(path), "" if compression == "NONE" else compression
    ).as_numpy_iterator():
        if message == OPAQUE_BYTES:
            yield {"record": [record]}
        elif message == SEQUENCE_EXAMPLE:
            example = tf.train.SequenceExample.FromString(record)
            steps = {
                name: [_values(step) for step in feature_list.feature]
                for name, feature_list in example.feature_lists.feature_list.items()
            }
            yield {
                name: _values(feature) for name, feature in example.context.feature.items()
            } | steps
        else:
            yield {
                name: _values(feature)
                for name, feature in tf.train.Example.FromString(record).features.feature.items()
            }


def _values(feature: Any) -> list[Any] | None:
    kind = feature.WhichOneof("kind")
    return None if kind is None else list(getattr(feature, kind).value)


def as_protobuf(value: Any, feature: Feature) -> Any:
    """Returns the value of a column in the form of `parsed`."""
    if value is None:
        return None
    if feature.per_step:
        inner = Feature(feature.name, feature.dtype, feature.shape[1:])
        return [as_protobuf(step, inner) for step in value]
    values = value if feature.shape else [value]
    return [item.encode() if isinstance(item, str) else item for item in values]


def check(
    path: Path, table: pa.Table, schema: Schema, compression: str = "NONE"
) -> tuple[int, int]:
    """Checks that the table contains exactly the records that protobuf parses.

    Returns:
        (number of values, number of missing features).
    """
    values = missing = 0
    names = set()
    for row, truth in zip(
        table.to_pylist(), parsed(path, compression, schema.message), strict=True
    ):
        names |= set(truth)
        for feature in schema:
            value, expected = as_protobuf(row[feature.name], feature), truth.get(feature.name)
            assert are_equal(value, expected), (path, feature, value, expected)
            values += 0 if value is None else len(value)
            missing += value is None
    assert names == set(table.column_names) == set(schema.names), path
    return values, missing


@pytest.mark.sweep
def test_parquet_of_every_foreign_file_equals_the_records_of_protobuf(
    shared_data: Path, foreign_files: list[dict[str, Any]], tmp_path: Path
) -> None:
    values = missing = 0
    for number, entry in enumerate(foreign_files):
        path = shared_data / "tfrecord" / entry["path"]
        result = recordmill.read(path, tmp_path / str(number), to="parquet")
        assert (result.read, result.written, result.rejected) == (entry["n"], entry["n"], 0), entry[
            "path"
        ]
        assert [result.schema.message] == [
            {"neither": OPAQUE_BYTES, "ELWC": OPAQUE_BYTES}.get(kind, kind) for kind in entry["msg"]
        ], entry["path"]
        table = pq.read_table(list(result.paths))
        assert table.equals(recordmill.open(path).to_table().cast(table.schema)), entry["path"]
        counts = check(path, table, result.schema, entry["compression"])
        values, missing = values + counts[0], missing + counts[1]
    assert values > 500_000
    assert missing > 1_000


KINDS: dict[int, list[Any]] = {
    wire.BYTES: [b"a", b"\xff"],
    wire.FLOAT: [0.0, 1.5],
    wire.INT64: [0, -1],
}


def test_missing_empty_and_zero_stay_distinct_in_parquet(tmp_path: Path) -> None:
    def table_of(name: str, records: list[bytes]) -> tuple[pa.Table, tuple[int, int]]:
        path = tmp_path / f"{name}.tfrecord"
        path.write_bytes(tfrecord_bytes(records))
        result = recordmill.read(path, tmp_path / name)
        table = pq.read_table(list(result.paths))
        return table, check(path, table, result.schema)

    for kind, values in KINDS.items():
        pair, single, empty = (kind, values), (kind, values[:1]), (kind, [])
        rows = [
            {"list": pair, "scalar": single},
            {"list": empty},
            {"list": None, "scalar": None},
            {},
            {"list": single, "scalar": single},
        ]
        table, counts = table_of(f"{kind}", [wire.serialize_row(row) for row in rows])
        assert counts == (5, 5)
        assert [value if value is None else len(value) for value in table["list"].to_pylist()] == [
            2,
            0,
            None,
            None,
            1,
        ]
        assert [value is None for value in table["scalar"].to_pylist()] == [
            False,
            True,
            True,
            True,
            False,
        ]

    lists: dict[str, list[list[int]]] = {"steps": [[1, 2], [], [3]], "none": [], "ones": [[4], [5]]}
    sequences = []
    for row in range(4):
        context = wire.field(1, wire.entry("id", wire.feature(wire.INT64, [row]))) if row else b""
        feature_lists = [
            wire.feature_list(name, wire.INT64, steps[row:])
            for name, steps in lists.items()
            if row < 3 or name != "ones"
        ]
        sequences.append(context + wire.field(2, b"".join(feature_lists)))
    table, _ = table_of("sequences", sequences)
    assert table["steps"].to_pylist() == [[[1, 2], [], [3]], [[], [3]], [[3]], []]
    assert table["ones"].to_pylist() == [[4, 5], [5], [], None]
    assert table["id"].to_pylist() == [None, 1, 2, 3]


def test_page_of_foreign_files_is_up_to_date(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    make_table = pytest.importorskip("make_table")
    sys.modules.pop("make_table")
    page = (DOCS / "foreign-files.md").read_text(encoding="utf-8")
    assert page.partition(make_table.MARK)[2] == "\n" + make_table.table(shared_data / "tfrecord")
    assert page.endswith("108 files with 23,558 records. No record was rejected.\n")


ROWS = mixed_rows(60)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet file with several row groups, read from a TFRecord file with its schema."""
    folder = tmp_path_factory.mktemp("table")
    (batch,) = ROWS.combine_chunks().to_batches()
    (folder / "a.tfrecord").write_bytes(encode(batch, MIXED).data.tobytes())
    return recordmill.read(
        folder / "a.tfrecord", folder / "out", schema=MIXED, row_group_rows=25
    ).paths[0]


def test_duckdb_reads_lists_tensors_times_and_nulls(table: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="needs DuckDB")
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        relation = database.sql(f"select * from '{table}' order by id")
        rows = [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]
        for row, expected in zip(rows, ROWS.to_pylist(), strict=True):
            assert {name: plain(value) for name, value in row.items()} == expected
        query = (
            "select count(*), sum(len(boxes)), count(tokens), sum(matrix[3]), max(boxes[1][1]) from '{}' where "
            "len(words) > 0 and \"when\" < '2023-11-14 22:13:20.000030+00'"
        )
        expected_rows = [
            row for row in ROWS.to_pylist() if row["words"] and row["when"] and row["id"] < 30
        ]
        assert database.execute(query.format(table)).fetchone() == (
            len(expected_rows),
            sum(len(row["boxes"]) for row in expected_rows),
            sum(row["tokens"] is not None for row in expected_rows),
            sum(row["matrix"][2] for row in expected_rows),
            max(row["boxes"][0][0] for row in expected_rows if row["boxes"]),
        )


def examples(dataset: Dataset) -> Counter[bytes]:
    """Counts the records of a data set, as TensorFlow reads them.

    The records are serialised deterministically, without features that have no list.
    """
    tf = pytest.importorskip("tensorflow", reason="what TensorFlow parses is compared")
    counts: Counter[bytes] = Counter()
    for file in dataset.records.catalog.files:
        for record in tf.data.TFRecordDataset(
            file.path, "" if file.compression == "none" else file.compression.upper()
        ).as_numpy_iterator():
            example = tf.train.Example.FromString(record)
            for name in [
                name
                for name, feature in example.features.feature.items()
                if feature.WhichOneof("kind") is None
            ]:
                del example.features.feature[name]
            counts[example.SerializeToString(deterministic=True)] += 1
    return counts


def test_parquet_builds_into_the_same_examples(table: Path, tmp_path: Path) -> None:
    recordmill.build(table, tmp_path / "again", num_shards=2)
    rebuilt = recordmill.open(tmp_path / "again")
    assert rebuilt.schema == MIXED
    source = table.parent.parent / "a.tfrecord"
    assert examples(rebuilt) == examples(recordmill.open(source, schema=MIXED))
    assert sorted(rebuilt.to_table().to_pylist(), key=lambda row: row["id"]) == sorted(
        pq.read_table(table).to_pylist(), key=lambda row: row["id"]
    )


FOREIGN = [
    "GoogleCloudPlatform+cloudml-samples/tensorflow/standard/mnist/deprecated/distributed/data/eval_sample.tfrecord",
    "NVIDIA+DeepLearningExamples/TensorFlow/Detection/SSD/models/research/object_detection/test_data/pets_examples.record",
    "calico+basenji/testdata/cage/tfrecord/cage10-train-00000-of-00100.tfrecord",
    "google+trax/trax/data/testdata/squad/v1.1/3.0.0/squad-validation.tfrecord-00000-of-00001",
    "google+yggdrasil-decision-forests/yggdrasil_decision_forests/test_data/dataset/toy.nocompress-tfe-tfrecord-00000-of-00002",
    "google-deepmind+deepmind-research/iodine/test_data/tetrominoes_mini.tfrecords",
    "intel-analytics+BigDL-2.x/scala/dllib/src/test/resources/tf/decode_image_test_case.tfrecord",
    "linkedin+detext/test/detext/resources/train/ranking/tfrecord/test.tfrecord",
    "openvinotoolkit+datumaro/tests/assets/tf_detection_api_dataset/train.tfrecord",
    "pytorch+data/test/_fakedata/tfrecord/example.tfrecord",
    "spotify+spotify-tensorflow/tests/resources/tf-test-resource/tf-records-iris/train/part-00000-of-00003.tfrecords",
    "tensorflow+agents/tf_agents/examples/cql_sac/kumar20/dataset/test_data/antmaze-medium-play-v0_0.tfrecord",
    "tensorflow+ecosystem/hadoop/src/test/resources/zipped-tf-records/part-m-00000.gz",
    "tensorflow+lingvo/lingvo/tasks/mt/testdata/wmt14_ende_wpm_32k_test.tfrecord",
    "tensorflow+tfx/tfx/components/testdata/csv_example_gen/Split-train/data_tfrecord-00003-of-00012.gz",
]


@pytest.mark.parametrize("name", FOREIGN, ids=[name.split("/")[0] for name in FOREIGN])
def test_foreign_file_survives_a_round_trip_through_parquet(
    shared_data: Path, tmp_path: Path, name: str
) -> None:
    source = shared_data / "tfrecord" / name
    result = recordmill.read(source, tmp_path / "table")
    recordmill.build([str(path) for path in result.paths], tmp_path / "again")
    rebuilt = recordmill.open(tmp_path / "again")
    assert rebuilt.schema == result.schema
    assert len(rebuilt) == result.read
    assert examples(rebuilt) == examples(recordmill.open(source))


def test_sequence_examples_and_bytes_become_examples_through_parquet(
    shared_data: Path, tmp_path: Path
) -> None:
    """A table does not record how its rows were framed.

    Feature lists become features of an Example. Other bytes become the feature `record`.
    """
    for number, name in enumerate(
        (
            "pytorch+data/test/_fakedata/tfrecord/sequence_example.tfrecord",
            "google+nucleus/nucleus/testdata/test_regions.bed.tfrecord",
        )
    ):
        source = shared_data / "tfrecord" / name
        result = recordmill.read(source, tmp_path / f"table-{number}")
        recordmill.build(
            [str(path) for path in result.paths], tmp_path / f"again-{number}", shuffle=False
        )
        rebuilt = recordmill.open(tmp_path / f"again-{number}")
        assert rebuilt.schema.message == "Example"
        assert rebuilt.to_table().to_pylist() == recordmill.open(source).to_table().to_pylist()
