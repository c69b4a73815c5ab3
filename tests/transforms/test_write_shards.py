"""WriteShards in a user's pipeline writes the same shards for any bundles or retries.

It rejects rows that don't fit the schema.
"""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from kit.child_processes import X_SCHEMA, start_run
from kit.write_pipelines import beam, rows, run_pipeline

import recordmill
from recordmill.base.errors import UsageError
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.manifest import load_manifest
from recordmill.storage.folders import find_files, list_names
from recordmill.transforms import BatchDicts, ReadShards, WriteShards, write_shards

SCHEMA = Schema((Feature("x", "int64", required=True), Feature("text", "string")))


def write(
    rows: list[dict[str, Any]],
    out: Path,
    batch_rows: int = 100,
    flags: tuple[str, ...] = (),
    **options: Any,
) -> dict[str, bytes]:
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(list(flags)))
    _ = (
        pipeline
        | beam.Create(rows)
        | BatchDicts(batch_rows)
        | WriteShards(str(out), SCHEMA, **options)
    )
    assert not out.exists()
    pipeline.run().wait_until_finish()
    part = load_manifest(out).parts[0]
    # If the start was repeated, a run stays until its lease has expired.
    assert flags or not list(out.glob("_run-*"))
    return {
        shard.name: (out / part.folder / shard.name).read_bytes()
        for _, _, shard in load_manifest(out).shards()
    }


def test_pcollection_of_dicts_becomes_a_data_set(tmp_path: Path) -> None:
    write(rows(1000), tmp_path / "out", num_shards=3, splits={"a": 0.5, "b": 0.5})
    records = recordmill.open(tmp_path / "out").to_table().to_pylist()
    assert [row["x"] for row in records] != list(range(1000))
    assert sorted(records, key=lambda row: row["x"]) == [
        {"x": i, "text": f"row {i}" if i % 3 else None} for i in range(1000)
    ]
    assert recordmill.verify(tmp_path / "out") == []


@pytest.mark.sweep
def test_order_and_bundles_of_records_do_not_change_the_shards(tmp_path: Path) -> None:
    expected = write(rows(1000), tmp_path / "one", num_shards=3)
    reversed_shards = write(
        list(reversed(rows(1000))), tmp_path / "two", batch_rows=7, num_shards=3
    )
    repeated_shards = write(
        rows(1000), tmp_path / "three", flags=("--direct_runner_bundle_repeat=2",), num_shards=3
    )
    assert expected == reversed_shards == repeated_shards


def test_rows_that_do_not_fit_are_rejected_within_max_rejects(tmp_path: Path) -> None:
    mixed_rows = [*rows(50), {"text": "no x"}]
    with pytest.raises(Exception, match="1 of 51 records was rejected"):
        write(mixed_rows, tmp_path / "out")
    write(mixed_rows, tmp_path / "allowed", max_rejects=1)
    manifest = load_manifest(tmp_path / "allowed")
    assert (manifest.records, manifest.rejects["count"]) == ({"train": 50}, 1)
    assert "x" in (tmp_path / "allowed" / manifest.rejects["files"][0]).read_text()


BAD_ROWS: list[Any] = [
    {"x": "ten", "text": "text among numbers"},
    {"x": [1, 2], "text": "list for a scalar"},
    {"x": 1, "text": 5},
    {"x": 1, "txt": "misspelled key"},
    {"text": "no x"},
    5,
]


@pytest.mark.parametrize("batch_rows", [1, 7, 4096])
def test_dicts_of_wrong_types_are_rejected_and_other_rows_are_written(
    tmp_path: Path, batch_rows: int
) -> None:
    good = rows(50)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = (
            pipeline
            | beam.Create([*good[:20], *BAD_ROWS, *good[20:]])
            | BatchDicts(batch_rows, schema=SCHEMA)
            | WriteShards(str(tmp_path / "out"), SCHEMA, max_rejects=6)
        )
    manifest = load_manifest(tmp_path / "out")
    assert (manifest.records, manifest.rejects["count"]) == ({"train": 50}, 6)
    records = recordmill.open(tmp_path / "out").to_table().to_pylist()
    assert sorted(row["x"] for row in records) == list(range(50))
    texts = (tmp_path / "out" / manifest.rejects["files"][0]).read_text()
    for expected in ("ten", "did you mean text?", "not a dict", "the schema has string"):
        assert expected in texts
    with (
        pytest.raises(Exception, match="6 of 56 records were rejected"),
        beam.Pipeline(runner=FnApiRunner()) as pipeline,
    ):
        _ = (
            pipeline
            | beam.Create([*good, *BAD_ROWS])
            | BatchDicts(schema=SCHEMA)
            | WriteShards(str(tmp_path / "none"), SCHEMA)
        )


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_text_label_has_the_class_numbers_and_shards_of_a_build(
    tmp_path: Path, schema: Schema | None
) -> None:
    pets = [{"x": i, "text": ("cat", "dog", "Zebra")[i % 3]} for i in range(60)]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = (
            pipeline
            | beam.Create(pets)
            | BatchDicts(7, schema)
            | WriteShards(str(tmp_path / "beam"), SCHEMA, label="text")
        )
    recordmill.build(pets, tmp_path / "build", label="text")
    pipeline_set, build_set = (recordmill.open(tmp_path / name) for name in ("beam", "build"))
    assert (
        pipeline_set.schema["text"].classes
        == build_set.schema["text"].classes
        == ("Zebra", "cat", "dog")
    )
    records, expected = (
        sorted(dataset.to_table().to_pylist(), key=lambda row: row["x"])
        for dataset in (pipeline_set, build_set)
    )
    assert records == expected
    assert recordmill.verify(tmp_path / "beam") == []


def test_label_of_text_without_values_is_an_error_as_in_a_build(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="label 'text' has no values, only nulls"):
        write([{"x": 1}], tmp_path / "out", label="text")


@pytest.mark.parametrize(
    ("step", "options", "message"),
    [
        (WriteShards, {"lable": "x"}, "WriteShards has no option lable; did you mean label?"),
        (BatchDicts, {"shema": SCHEMA}, "BatchDicts has no option shema; did you mean schema?"),
        (ReadShards, {"colums": ["x"]}, "ReadShards has no option colums; did you mean columns?"),
    ],
)
def test_unknown_keyword_of_a_transform_names_the_closest_one(
    step: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError) as error:
        step("x", **options)
    assert str(error.value) == message


def test_batches_of_other_integer_widths_are_cast_to_the_schema(tmp_path: Path) -> None:
    batch = pa.record_batch({"x": pa.array([1, 2], pa.int32()), "text": pa.array(["a", None])})
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create([batch]) | WriteShards(str(tmp_path / "out"), SCHEMA)
    assert sorted(row["x"] for row in recordmill.open(tmp_path / "out").to_table().to_pylist()) == [
        1,
        2,
    ]


def write_batches(
    batches: list[pa.RecordBatch], out: Path, schema: Schema = SCHEMA
) -> list[dict[str, Any]]:
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create(batches) | WriteShards(str(out), schema)
    return sorted(recordmill.open(out).to_table().to_pylist(), key=lambda row: row["x"])


def test_batch_with_missing_additional_or_mistyped_column_is_an_error(tmp_path: Path) -> None:
    x, text = pa.array([1, 2]), pa.array(["a", None])
    for columns, message in (
        (
            {"x": x, "text": text, "y": x},
            "a batch has the column 'y', which the schema does not name; there are x",
        ),
        ({"x": x}, "a batch lacks the column 'text', which the schema names; give it one of nulls"),
        (
            {"x": x, "text": x},
            r"column 'text' is int64, but the schema has string; make it text, as in pyarrow",
        ),
    ):
        with pytest.raises(Exception, match=message):
            write_batches([pa.record_batch(columns)], tmp_path / "out")
    with pytest.raises(Exception, match=r"column 'text' is int64, but the schema has string"):
        write([{"x": 1, "text": 1}], tmp_path / "numbers")
    with pytest.raises(
        Exception, match=r"a batch has the column 'txt', which .* did you mean text\?"
    ):
        write([{"x": 1, "txt": "a"}], tmp_path / "misspelled")
    nulls, cast = pa.nulls(2), pc.cast(x, "string")  # the remedies in the messages
    assert [
        row["text"]
        for row in write_batches([pa.record_batch({"x": x, "text": nulls})], tmp_path / "nulls")
    ] == [None, None]
    assert [
        row["text"]
        for row in write_batches([pa.record_batch({"x": x, "text": cast})], tmp_path / "cast")
    ] == ["1", "2"]


def test_class_numbers_are_mapped_by_class_name(tmp_path: Path) -> None:
    schema = Schema(
        (Feature("x", "int64"), Feature("label", "int64", (), False, ("bird", "cat", "dog"))),
        "label",
    )
    arrow_schema = to_arrow(
        Schema((schema["x"], Feature("label", "int64", (), False, ("dog", "cat"))))
    )
    batches = [
        pa.record_batch([pa.array([1, 2]), pa.array([0, 1])], schema=arrow_schema),
        pa.record_batch({"x": pa.array([3, 4]), "label": pa.array(["bird", "cat"])}),
        pa.record_batch({"x": pa.array([5]), "label": pa.array([2])}),
    ]
    assert [
        schema["label"].classes[row["label"]]
        for row in write_batches(batches, tmp_path / "out", schema)
    ] == [  # type: ignore[index]
        "dog",
        "cat",
        "bird",
        "cat",
        "dog",
    ]


def test_write_shards_takes_the_keywords_of_build(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "splits": "train=0.8,test=0.2",
        "num_shards": 2,
        "label": "text",
        "compression": "gzip",
        "max_rejects": "50%",
        "seed": 3,
        "split_seed": 4,
        "memory": "1GiB",
    }
    write([*rows(100), {"text": "no x"}], tmp_path / "my-set", **options)
    manifest = load_manifest(tmp_path / "my-set")
    assert (manifest.name, manifest.compression, manifest.rejects["count"]) == ("my_set", "gzip", 1)
    assert (set(manifest.records), manifest.shard_counts) == (
        {"train", "test"},
        {"train": 2, "test": 2},
    )
    assert recordmill.open(tmp_path / "my-set").schema.label == "text"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "txt"}, "no column 'txt'; there are x, text; did you mean text?"),
        ({"compression": "zip"}, 'compression="zip": must be one of none, gzip'),
        ({"shard_size": "1MiB", "num_shards": 2}, "num_shards= and shard_size= exclude each other"),
        ({"split_by": "text"}, "split_by= needs splits="),
        ({"num_shards": 1.5}, "num_shards is a whole number, not 1.5"),
        ({"max_rejects": "x"}, 'max_rejects="x": give a number of records'),
        ({"memory": 0}, "memory must be at least 1, not 0"),
        ({"name": "a-b"}, 'name="a-b": use only letters, digits and _'),
    ],
)
def test_invalid_option_is_refused_when_the_step_is_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        WriteShards("out", SCHEMA, **options)
    assert message in str(error.value)
    with pytest.raises(UsageError, match="batch_rows is a whole number, not Schema"):
        BatchDicts(SCHEMA)  # type: ignore[arg-type]


@pytest.mark.sweep
def test_remains_of_a_failed_pipeline_are_removed_after_its_lease(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    with pytest.raises(Exception, match="rejected"):
        write([{"text": "no x"}], out)
    (run_path,) = out.glob("_run-*")
    for path in run_path.rglob("*"):
        os.utime(path, (0, 0))
    recordmill.build({"x": [1, 2, 3]}, out)
    assert load_manifest(out).records == {"train": 3}
    assert not run_path.exists()


@pytest.mark.sweep
def test_manifest_holds_the_options_and_the_fingerprint_depends_on_the_records(
    tmp_path: Path,
) -> None:
    write(rows(50), tmp_path / "one", num_shards=2, splits={"a": 0.5, "b": 0.5}, split_by="x")
    write(rows(51), tmp_path / "other", num_shards=2, splits={"a": 0.5, "b": 0.5}, split_by="x")
    first, second = load_manifest(tmp_path / "one"), load_manifest(tmp_path / "other")
    assert first.options["splits"] == {"a": 0.5, "b": 0.5}
    assert (first.options["split_by"], first.options["num_shards"]) == ("x", 2)
    assert {**first.options, "name": "other"} == second.options
    assert first.fingerprint != second.fingerprint


# Engines may run a step twice, in one process or several, at once or after a crash.
@pytest.mark.sweep
def test_run_started_in_another_process_leaves_the_live_run_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = write_shards.start_run(WriteShards(str(out), X_SCHEMA))
    before = find_files(first.job_folder.run_path())
    process = multiprocessing.get_context("spawn").Process(target=start_run, args=(str(out),))
    process.start()
    process.join()
    assert process.exitcode == 0
    runs = [name for name in list_names(out) if name.startswith("_run-")]
    assert len(runs) == 2  # the second run stays until its lease has expired
    assert find_files(first.job_folder.run_path()) == before


@pytest.mark.sweep
def test_relative_inputs_are_resolved_when_the_pipeline_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_pipeline(tmp_path / "out")
    (shard,) = (tmp_path / "out").glob("data-*/*.tfrecord")
    (tmp_path / "list.txt").write_text(f"{shard.relative_to(tmp_path)}\n")
    monkeypatch.chdir(tmp_path)
    pipeline = beam.Pipeline(runner=FnApiRunner())
    inputs_of_steps = (
        "out",
        Path("out"),
        f"file://{tmp_path}/out",
        "out/data-*/*.tfrecord",
        "@list.txt",
        ["./out"],
    )
    for number, inputs in enumerate(inputs_of_steps):
        _ = pipeline | f"{number}" >> ReadShards(inputs)
    monkeypatch.chdir("/")
    result = pipeline.run()
    result.wait_until_finish()
    counters = result.metrics().query(beam.metrics.MetricsFilter().with_name("records_read"))[
        "counters"
    ]
    assert [counter.committed for counter in counters] == [50] * len(inputs_of_steps)


def test_windowed_or_mistyped_collections_are_refused(tmp_path: Path) -> None:
    pipeline = beam.Pipeline(runner=FnApiRunner())
    batches = (
        pipeline
        | beam.Create([{"x": 1}])
        | BatchDicts()
        | beam.WindowInto(beam.window.FixedWindows(10))
    )
    with pytest.raises(UsageError, match="global window"):
        _ = batches | WriteShards(str(tmp_path / "out"), X_SCHEMA)
    with pytest.raises(Exception, match="RecordBatch"):
        _ = (
            beam.Pipeline(runner=FnApiRunner())
            | beam.Create([1, 2])
            | WriteShards(str(tmp_path / "out"), X_SCHEMA)
        )
    assert os.listdir(tmp_path) == []
