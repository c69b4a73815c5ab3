"""WriteShards in a user's pipeline: shards don't depend on bundles, rows that don't fit are rejects."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

beam = pytest.importorskip("apache_beam", reason="these PTransforms need Apache Beam")

from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402

import recordmill  # noqa: E402
from recordmill.base.errors import UsageError  # noqa: E402
from recordmill.schemas.arrow import to_arrow  # noqa: E402
from recordmill.schemas.feature import Feature, Schema  # noqa: E402
from recordmill.shards.manifest import load  # noqa: E402
from recordmill.transforms import BatchDicts, WriteShards  # noqa: E402

SCHEMA = Schema((Feature("x", "int64", required=True), Feature("text", "string")))


def write(
    rows: list[dict[str, Any]], out: Path, batch_rows: int = 100, flags: tuple[str, ...] = (), **options: Any
) -> dict[str, bytes]:
    from apache_beam.options.pipeline_options import PipelineOptions

    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(list(flags)))
    _ = pipeline | beam.Create(rows) | BatchDicts(batch_rows) | WriteShards(str(out), SCHEMA, **options)
    assert not out.exists()
    pipeline.run().wait_until_finish()
    part = load(out).parts[0]
    assert flags or not list(out.glob("_run-*"))  # a start that was repeated leaves one to its lease
    return {shard.name: (out / part.folder / shard.name).read_bytes() for _, _, shard in load(out).shards()}


def rows(count: int) -> list[dict[str, Any]]:
    return [{"x": i, "text": f"row {i}"} if i % 3 else {"x": i} for i in range(count)]


def test_a_pcollection_of_dicts_becomes_a_data_set(tmp_path: Path) -> None:
    write(rows(1000), tmp_path / "out", num_shards=3, splits={"a": 0.5, "b": 0.5})
    read = recordmill.open(tmp_path / "out").to_table().to_pylist()
    assert [row["x"] for row in read] != list(range(1000))
    assert sorted(read, key=lambda row: row["x"]) == [
        {"x": i, "text": f"row {i}" if i % 3 else None} for i in range(1000)
    ]
    assert recordmill.verify(tmp_path / "out") == []


@pytest.mark.sweep
def test_the_same_records_give_the_same_shards_whatever_the_bundles(tmp_path: Path) -> None:
    expected = write(rows(1000), tmp_path / "one", num_shards=3)
    again = write(list(reversed(rows(1000))), tmp_path / "two", batch_rows=7, num_shards=3)
    repeated = write(rows(1000), tmp_path / "three", flags=("--direct_runner_bundle_repeat=2",), num_shards=3)
    assert expected == again == repeated


def test_rows_that_do_not_fit_are_rejects_within_the_budget(tmp_path: Path) -> None:
    wrong = [*rows(50), {"text": "no x"}]
    with pytest.raises(Exception, match="1 of 51 records were rejected"):
        write(wrong, tmp_path / "out")
    write(wrong, tmp_path / "allowed", max_rejects=1)
    manifest = load(tmp_path / "allowed")
    assert (manifest.records, manifest.rejects["count"]) == ({"train": 50}, 1)
    assert "x" in (tmp_path / "allowed" / manifest.rejects["files"][0]).read_text()


def test_batches_of_other_widths_are_made_to_fit(tmp_path: Path) -> None:
    batch = pa.record_batch({"x": pa.array([1, 2], pa.int32()), "text": pa.array(["a", None])})
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create([batch]) | WriteShards(str(tmp_path / "out"), SCHEMA)
    assert sorted(row["x"] for row in recordmill.open(tmp_path / "out").to_table().to_pylist()) == [1, 2]


def put(batches: list[pa.RecordBatch], out: Path, schema: Schema = SCHEMA) -> list[dict[str, Any]]:
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create(batches) | WriteShards(str(out), schema)
    return sorted(recordmill.open(out).to_table().to_pylist(), key=lambda row: row["x"])


def test_no_column_is_dropped_filled_or_bent_silently(tmp_path: Path) -> None:
    x, text = pa.array([1, 2]), pa.array(["a", None])
    for columns, message in (
        ({"x": x, "text": text, "y": x}, "a batch has the column 'y', which the schema does not name; there are x"),
        ({"x": x}, "a batch lacks the column 'text', which the schema names; give it one of nulls"),
        ({"x": x, "text": x}, r"column 'text' is int64, but the schema has string; make it text, as in pyarrow"),
    ):
        with pytest.raises(Exception, match=message):
            put([pa.record_batch(columns)], tmp_path / "out")
    with pytest.raises(Exception, match=r"column 'text' is int64, but the schema has string"):
        write([{"x": 1, "text": 1}], tmp_path / "numbers")
    with pytest.raises(Exception, match=r"a batch has the column 'txt', which .* did you mean text\?"):
        write([{"x": 1, "txt": "a"}], tmp_path / "misspelled")
    nulls, cast = pa.nulls(2), pc.cast(x, "string")  # what the messages say
    assert [row["text"] for row in put([pa.record_batch({"x": x, "text": nulls})], tmp_path / "nulls")] == [None, None]
    assert [row["text"] for row in put([pa.record_batch({"x": x, "text": cast})], tmp_path / "cast")] == ["1", "2"]


def test_classes_go_by_name(tmp_path: Path) -> None:
    schema = Schema((Feature("x", "int64"), Feature("label", "int64", (), False, ("bird", "cat", "dog"))), "label")
    own = to_arrow(Schema((schema["x"], Feature("label", "int64", (), False, ("dog", "cat")))))
    batches = [
        pa.record_batch([pa.array([1, 2]), pa.array([0, 1])], schema=own),
        pa.record_batch({"x": pa.array([3, 4]), "label": pa.array(["bird", "cat"])}),
        pa.record_batch({"x": pa.array([5]), "label": pa.array([2])}),
    ]
    assert [schema["label"].classes[row["label"]] for row in put(batches, tmp_path / "out", schema)] == [  # type: ignore[index]
        "dog", "cat", "bird", "cat", "dog"
    ]  # fmt: skip


def test_keywords_are_those_of_a_build(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "splits": "train=0.8,test=0.2", "num_shards": 2, "label": "text", "compression": "gzip", "max_rejects": "50%",
        "seed": 3, "split_seed": 4, "memory": "1GiB",
    }  # fmt: skip
    write([*rows(100), {"text": "no x"}], tmp_path / "my-set", **options)
    manifest = load(tmp_path / "my-set")
    assert (manifest.name, manifest.compression, manifest.rejects["count"]) == ("my_set", "gzip", 1)
    assert (set(manifest.records), manifest.shard_counts) == ({"train", "test"}, {"train": 2, "test": 2})
    assert recordmill.open(tmp_path / "my-set").schema.label == "text"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "txt"}, "no column 'txt'; there are x, text; did you mean text?"),
        ({"compression": "zip"}, 'compression="zip": one of none, gzip'),
        ({"shard_size": "1MiB", "num_shards": 2}, "num_shards= and shard_size= exclude each other"),
        ({"num_shards": 1.5}, "num_shards is a whole number, not 1.5"),
        ({"max_rejects": "x"}, 'max_rejects="x": give a number of records'),
        ({"memory": 0}, "memory must be at least 1, not 0"),
        ({"name": "a-b"}, 'name="a-b": letters, digits and _ only'),
    ],
)
def test_a_value_that_can_not_be_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        WriteShards("out", SCHEMA, **options)
    assert message in str(error.value)
    with pytest.raises(UsageError, match="batch_rows is a whole number, not Schema"):
        BatchDicts(SCHEMA)  # type: ignore[arg-type]


@pytest.mark.sweep
def test_what_a_failed_pipeline_left_is_removed_by_the_next_when_its_lease_is_over(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Exception, match="rejected"):
        write([{"text": "no x"}], out)
    (left,) = out.glob("_run-*")
    for path in left.rglob("*"):
        os.utime(path, (0, 0))
    recordmill.build({"x": [1, 2, 3]}, out)
    assert load(out).records == {"train": 3}
    assert not left.exists()


@pytest.mark.sweep
def test_the_manifest_says_what_decided_the_bytes_and_other_records_have_another_fingerprint(tmp_path: Path) -> None:
    write(rows(50), tmp_path / "one", num_shards=2, splits={"a": 0.5, "b": 0.5}, split_by="x")
    write(rows(51), tmp_path / "other", num_shards=2, splits={"a": 0.5, "b": 0.5}, split_by="x")
    one, other = load(tmp_path / "one"), load(tmp_path / "other")
    assert one.options["splits"] == {"a": 0.5, "b": 0.5}
    assert (one.options["split_by"], one.options["num_shards"]) == ("x", 2)
    assert {**one.options, "name": "other"} == other.options
    assert one.fingerprint != other.fingerprint
