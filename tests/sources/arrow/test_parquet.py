"""Parquet files have the rows that pyarrow reads from them.

Damaged and unsupported files are refused.
"""

import base64
import datetime
import decimal
import json
import os
import resource
import uuid
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from kit import ROOT
from kit.runs import in_flags
from kit.source_reading import features, input_files, read_all, values

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.schemas.arrow import METADATA_KEY
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.arrow import parquet as parquet_source
from recordmill.sources.arrow import row_groups
from recordmill.sources.arrow.parquet import ParquetSource, plan_parquet, read_null_counts
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.common.options import TableOptions


def write(path: Path, table: pa.Table | dict[str, Any], **options: Any) -> Path:
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path, **options)
    return path


def plan(*paths: Path, options: TableOptions | None = None, **common: Any) -> ParquetSource:
    return plan_parquet(input_files(*paths), options or TableOptions(), PlanOptions(**common))


def test_plain_columns_and_row_groups_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    table = pa.table(
        {
            "i": pa.array(rng.integers(100, size=1000), pa.int16()),
            "f": rng.normal(size=1000),
            "s": [f"text {n}" if n % 3 else None for n in range(1000)],
            "l": [list(range(n % 4)) for n in range(1000)],
            "b": pa.array([bytes([n % 256]) for n in range(1000)]),
        }
    )
    path = write(tmp_path / "a.parquet", table, row_group_size=70)
    file_source = plan(path)
    assert features(file_source) == {
        "i": "int16!",
        "f": "float64!",
        "s": "string",
        "l": "int64 [?]",
        "b": "bytes!",
    }
    expected = read_all(file_source)
    assert values(expected[0]) == table.to_pylist()
    assert [row[1] for row in expected[0]] == list(range(1000))
    monkeypatch.setattr(row_groups, "BATCH_BYTES", 700)
    source = plan(path, unit_bytes=3000)
    assert len(source.units) > 5
    # A row group is read in several batches.
    assert max(chunk.rows for chunk in source.read(source.units[0])) < 70
    assert read_all(source) == expected


def test_nested_and_other_types_are_read(tmp_path: Path) -> None:
    moment = datetime.datetime(2020, 1, 2, 3, 4, 5)
    table = pa.table(
        {
            "st": [{"a": 1, "b": {"c": "x"}}, None, {"a": 2, "b": None}],
            "ls": [[{"q": 1.5, "r": ["u"]}, {"q": 2.5, "r": []}], [], None],
            "m": pa.array([[("k", 1), ("l", 2)], [], None], pa.map_(pa.string(), pa.int64())),
            "cat": pa.array(["u", "v", "u"]).dictionary_encode(),
            "day": [datetime.date(2020, 1, 2)] * 3,
            "ts": pa.array([moment] * 3, pa.timestamp("us", "Europe/Berlin")),
            "fs": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
            "h": pa.array([1.5, 2.5, 3.5], pa.float16()),
            "nul": pa.nulls(3),
        }
    )
    source = plan(write(tmp_path / "a.parquet", table))
    assert features(source) == {
        "st.a": "int64",
        "st.b.c": "string",
        "ls.q": "float64 [?]",
        "ls.r": "string [?, ?]",
        "m.key": "string [?]",
        "m.value": "int64 [?]",
        "cat": "string!",
        "day": "timestamp[s]!",
        "ts": "timestamp[us, UTC]!",
        "fs": "float32 [2]",
        "h": "float16!",
        "nul": "string",
    }
    assert source.notes == ("nul: no value in any record; kept as string",)
    rows, rejects = read_all(source)
    assert rejects == []
    first, second, third = values(rows)
    assert first | {"ts": first["ts"].timestamp()} == {
        "st.a": 1,
        "st.b.c": "x",
        "ls.q": [1.5, 2.5],
        "ls.r": [["u"], []],
        "m.key": ["k", "l"],
        "m.value": [1, 2],
        "cat": "u",
        "h": 1.5,
        "day": datetime.datetime(2020, 1, 2),
        "ts": moment.replace(tzinfo=datetime.timezone.utc).timestamp(),
        "fs": [1.0, 2.0],
        "nul": None,
    }
    assert (second["st.a"], second["ls.q"], second["m.key"], third["ls.r"], third["m.value"]) == (
        None,
        [],
        [],
        None,
        None,
    )


def test_column_type_without_a_feature_is_refused_until_declared(tmp_path: Path) -> None:
    table = pa.table(
        {
            "price": [decimal.Decimal("1.50")],
            "t": pa.array([datetime.time(1)], pa.time64("us")),
            "d": pa.array([7], pa.duration("s")),
        }
    )
    path = write(tmp_path / "a.parquet", table)
    with pytest.raises(
        DataError,
        match=r"a\.parquet: column 'price' has type decimal128\(3, 2\), which no feature can hold.*--dtype "
        r"price=string",
    ):
        plan(path)
    source = plan(path, dtypes={"price": "float64", "t": "int64", "d": "int64"})
    assert values(read_all(source)[0]) == [{"price": 1.5, "t": 3_600_000_000, "d": 7}]
    assert values(
        read_all(plan(path, options=TableOptions(columns=("d",)), dtypes={"d": "int64"}))[0]
    ) == [{"d": 7}]


def test_uuid_declared_as_a_string_is_its_canonical_text(tmp_path: Path) -> None:
    ids = [uuid.UUID("f47ac10b-58cc-4372-a567-0e02b2c3d479"), None, uuid.UUID(int=1)]
    storage = pa.array([None if value is None else value.bytes for value in ids], pa.binary(16))
    column = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 1]), column)
    path = write(tmp_path / "a.parquet", pa.table({"id": column, "ids": lists}))
    texts = plan(path, dtypes={"id": "string", "ids": "string[?]"})
    assert values(read_all(texts)[0]) == [
        {"id": str(ids[0]), "ids": [str(ids[0])]},
        {"id": None, "ids": []},
        {"id": str(ids[2]), "ids": []},
    ]
    data = plan(path, options=TableOptions(columns=("id",)), dtypes={"id": "bytes"})
    assert [row["id"] for row in values(read_all(data)[0])] == storage.to_pylist()


def test_uuid_as_label_has_its_texts_as_classes(tmp_path: Path) -> None:
    storage = pa.array([uuid.UUID(int=number % 2).bytes for number in range(5)], pa.binary(16))
    table = pa.table({"x": pa.ExtensionArray.from_storage(pa.uuid(), storage)})
    recordmill.build(table, tmp_path / "out", dtypes={"x": "string"}, label="x")
    classes = recordmill.open(tmp_path / "out").schema["x"].classes
    assert classes == (str(uuid.UUID(int=0)), str(uuid.UUID(int=1)))


def test_several_parquet_files_are_joined_by_name(tmp_path: Path) -> None:
    first = write(tmp_path / "1.parquet", {"a": pa.array([1, 2], pa.int8()), "b": ["x", "y"]})
    second = write(
        tmp_path / "2.parquet",
        {"b": ["z", None], "a": pa.array([300, 400], pa.int32()), "c": [0.5, 1.5]},
    )
    empty = write(tmp_path / "3.parquet", {"a": pa.array([], pa.string())})
    source = plan(first, second, empty)
    assert features(source) == {"a": "int32!", "b": "string", "c": "float64"}
    assert values(read_all(source)[0]) == [
        {"a": 1, "b": "x", "c": None},
        {"a": 2, "b": "y", "c": None},
        {"a": 300, "b": "z", "c": 0.5},
        {"a": 400, "b": None, "c": 1.5},
    ]
    assert features(plan(first, second, options=TableOptions(columns=("c", "a")))) == {
        "a": "int32!",
        "c": "float64",
    }
    with pytest.raises(UsageError, match="--columns: no column 'z'; there are a, b, c"):
        plan(first, second, options=TableOptions(columns=("z",)))
    text = write(tmp_path / "4.parquet", {"a": ["x"]})
    with pytest.raises(
        DataError,
        match=r"4\.parquet: 'a' is string here, but int8 in 1\.parquet; declare its type, such as --dtype "
        r"a=string",
    ):
        plan(first, text)
    assert [row["a"] for row in values(read_all(plan(first, text, dtypes={"a": "string"}))[0])] == [
        "1",
        "2",
        "x",
    ]


def test_integers_beyond_int64_in_lists_are_rejects_with_a_remedy(tmp_path: Path) -> None:
    lists = pa.array([[1, 2], [1, 2**63], [None, 2**64 - 1]], pa.list_(pa.uint64()))
    rows, rejects = read_all(plan(write(tmp_path / "a.parquet", {"u": lists})))
    assert values(rows) == [{"u": [1, 2]}]
    assert (
        "[1, 9223372036854775808] does not fit uint64 [?] (tf.train.Example holds whole"
        in rejects[0].message
    )
    assert in_flags(rejects[0].message).endswith("; --dtype u=string keeps it")


def test_parquet_values_that_do_not_fit_are_rejects(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet", {"x": [1.5, 1e39, 2.5], "u": pa.array([1, 2, 2**63], pa.uint64())}
    )
    rows, rejects = read_all(plan(path, dtypes={"x": "float32"}))
    assert values(rows) == [{"x": 1.5, "u": 1}]
    assert [str(reject) for reject in rejects] == [
        "a.parquet: row 1: x: 1e+39 does not fit float32; --dtype x=float64 keeps it",
        "a.parquet: row 2: u: 9223372036854775808 does not fit uint64 (tf.train.Example holds whole numbers up to "
        "2^63 - 1); --dtype u=string keeps it",
    ]


def test_parquet_text_that_is_not_utf8_is_a_reject(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")]
    )
    rows, rejects = read_all(plan(write(tmp_path / "a.parquet", pa.table({"s": bad}))))
    assert values(rows) == [{"s": "a"}]
    assert [str(reject) for reject in rejects] == [
        "a.parquet: row 1: s: is not UTF-8: b'\\xff'; --dtype s=bytes keeps it"
    ]


def test_damaged_or_empty_parquet_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"a": list(range(5000))}, compression="none")
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"a\.parquet: is not a Parquet file, or it is damaged: "):
        plan(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.parquet: is not a Parquet file"):
        plan(path)
    content[4:40] = b"\xff" * 36  # the header of the first page
    path.write_bytes(content)
    source = plan(path)
    with pytest.raises(DataError, match=r"a\.parquet: row groups 0 to 0: damaged: "):
        list(source.read(source.units[0]))
    with pytest.raises(DataError, match="there are no rows"):
        plan(write(tmp_path / "b.parquet", {"a": pa.array([], pa.int64())}))


def test_more_parquet_files_than_may_be_open_are_read(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"{number:03}.parquet", {"a": [number], "l": [str(number % 3)]})
        for number in range(200)
    ]
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Files that other tests left open count, too.
    max_descriptor = max((int(name) for name in os.listdir("/dev/fd")), default=0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_descriptor + 100, hard_limit))
    try:
        source = plan(*paths, label="l")
        assert values(read_all(source)[0]) == [
            {"a": number, "l": number % 3} for number in range(200)
        ]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard_limit))


@pytest.mark.parametrize(
    ("file_zone", "schema_zone"), [(None, "UTC"), ("UTC", None), ("Europe/Paris", None)]
)
def test_parquet_times_with_and_without_a_zone_are_not_exchanged(
    tmp_path: Path, file_zone: str | None, schema_zone: str | None
) -> None:
    times = pa.array([0, 1_000_000, None], pa.timestamp("us", file_zone))
    pq.write_table(pa.table({"t": times}), tmp_path / "a.parquet")
    dtype = "timestamp[us, UTC]" if schema_zone else "timestamp[us]"
    rows, rejects = read_all(plan(tmp_path / "a.parquet", schema=Schema((Feature("t", dtype),))))
    assert values(rows) == [{"t": None}]
    assert [reject.place for reject in rejects] == ["row 0", "row 1"]
    file_dtype = "timestamp[us, UTC]" if file_zone else "timestamp[us]"
    assert len(read_all(plan(tmp_path / "a.parquet", dtypes={"t": file_dtype}))[0]) == 3


def test_partition_columns_can_be_chosen(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "dt=2024-01-01" / "n=1"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"x": [10, 11]}), folder / "part.parquet")
    result = recordmill.build(
        tmp_path / "in", tmp_path / "some", columns=["dt"], splits="all=1", split_by="dt"
    )
    assert (result.schema.names, result.read) == (("dt",), 2)
    assert "folders named n=... do not become columns" in result.notes


def test_texts_stored_once_are_read_in_chunks_of_bounded_size(tmp_path: Path) -> None:
    """A file of a few kB has 50 MB of values."""
    text = "x" * 100_000
    path = write(tmp_path / "a.parquet", {"v": [text] * 500, "n": range(500)}, compression="zstd")
    source = plan(path)
    (unit,) = source.units
    chunks = list(source.read(unit))
    assert [n for chunk in chunks for n in chunk.records.column("n").to_pylist()] == list(
        range(500)
    )
    assert [chunk.rows for chunk in chunks[:-1]] == [chunks[0].rows] * (len(chunks) - 1)
    assert 2 * chunks[0].rows * len(text) > row_groups.BATCH_BYTES > chunks[0].rows * len(text)


BROKEN = [
    b"\xff",
    b"{",
    b"5",
    b"{}",
    b'{"dtype": "int64"}',
    b'{"dtype": 5, "shape": []}',
    b'{"dtype": "int64", "shape": 5}',
    b'{"dtype": "int64", "shape": ["a"]}',
    b'{"dtype": "int64", "shape": [], "classes": 5}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("metadata", BROKEN, ids=[repr(metadata[:40]) for metadata in BROKEN])
@pytest.mark.parametrize("owner", ["field", "table"])
def test_broken_metadata_is_an_error_with_its_column(
    tmp_path: Path, metadata: bytes, owner: str
) -> None:
    fields = pa.field(
        "a", pa.int64(), metadata={METADATA_KEY: metadata} if owner == "field" else None
    )
    schema = pa.schema([fields], metadata={METADATA_KEY: metadata} if owner == "table" else None)
    path = write(tmp_path / "a.parquet", pa.table([pa.array([1])], schema=schema))
    if owner == "table" and metadata.startswith(b"{") and metadata.endswith(b"}"):
        assert values(read_all(plan(path))[0]) == [{"a": 1}]
        return
    with pytest.raises(
        DataError, match=r"(column 'a'|the table): its metadata 'recordmill' is damaged"
    ):
        plan(path)


def test_parquet_with_duplicate_column_names_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]))
    with pytest.raises(DataError, match=r"^a\.parquet: two columns are named 'a'"):
        plan(path)


# Its Parquet footers contradict themselves.
CORPUS = ROOT / "tests" / "faults" / "corpus" / "parquet"


@pytest.mark.parametrize(
    "name", ["histogram_of_repetition_levels", "histogram_of_definition_levels"]
)
def test_parquet_sizes_that_contradict_the_schema_are_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes((CORPUS / name).read_bytes())
    with pytest.raises(DataError, match=r"a\.parquet.*histogram size mismatch"):
        plan(path)


def test_parquet_statistics_of_another_type_are_ignored(tmp_path: Path) -> None:
    """The minimum of an INT64 column has three bytes.

    pyarrow's accessor of such a value kills the process.
    """
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"a": [0x0102030405060708]}), path, use_dictionary=False, compression="none"
    )
    data = path.read_bytes()
    value = b"\x08" + bytes.fromhex("0807060504030201")
    begin = data.rindex(value)
    body = data[:begin] + b"\x03" + value[1:4] + data[begin + len(value) : -8]
    footer = int.from_bytes(data[-8:-4], "little") - (len(data) - 8 - len(body))
    path.write_bytes(body + footer.to_bytes(4, "little") + b"PAR1")
    assert plan(path).schema.names == ("a",)


def test_encrypted_parquet_column_is_an_error(tmp_path: Path) -> None:
    encryption = pytest.importorskip(
        "pyarrow.parquet.encryption", reason="this pyarrow has no encryption"
    )

    class Keys(encryption.KmsClient):  # type: ignore[misc, name-defined]
        def wrap_key(self, key: bytes, name: str) -> bytes:
            return base64.b64encode(key)

        def unwrap_key(self, wrapped: bytes, name: str) -> bytes:
            return base64.b64decode(wrapped)

    encryption_config = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["secret"]}, plaintext_footer=True, double_wrapping=False
    )
    factory = encryption.CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(
        encryption.KmsConnectionConfig(), encryption_config
    )
    table = pa.table({"secret": [1, 2], "open": [3, 4]})
    with pq.ParquetWriter(
        tmp_path / "a.parquet", table.schema, encryption_properties=properties
    ) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=r"a\.parquet.*[Ee]ncrypt|[Dd]ecrypt"):
        plan(tmp_path / "a.parquet")


@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 9), st.none() | st.text(max_size=3)),
        min_size=1,
        max_size=30,
    )
)
def test_null_counts_equal_those_of_the_rows(rows: list[tuple[int | None, str | None]]) -> None:
    table = pa.table(
        {
            "a": pa.array([a for a, _ in rows], pa.int64()),
            "b": pa.array([b for _, b in rows], pa.string()),
        }
    )
    for statistics in (True, ["b"], False):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=7, write_statistics=statistics)
        metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
        assert read_null_counts(metadata, [0, 1]) == {
            0: table["a"].null_count if statistics is True else -1,
            1: table["b"].null_count if statistics else -1,
        }


HUGGING_FACE = {
    "image": {"_type": "Image"},
    "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    "tags": {"feature": {"names": ["x", "y", "z"], "_type": "ClassLabel"}, "_type": "List"},
    "pics": {"feature": {"_type": "Image"}, "_type": "Sequence"},
    "objects": {
        "category": [{"names": ["a", "b"], "_type": "ClassLabel"}],
        "note": {"dtype": "string", "_type": "Value"},
    },
}


MEDIA_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
HUGGING_FACE_IMAGES = {
    "info": {
        "features": {
            "image": {"_type": "Image"},
            "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
        }
    }
}


def make_hugging_face_table(metadata: object) -> pa.Table:
    """Returns a table in the form of `datasets` 5.2."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {
        "image": pa.array(
            [{"bytes": b"one", "path": "1.png"}, {"bytes": b"two", "path": None}, None], image
        ),
        "label": pa.array([1, -1, 0]),
        "tags": pa.array([[2, 0], [], [1]], pa.list_(pa.int64())),
        "pics": pa.array(
            [[{"bytes": b"a", "path": None}], [], [{"bytes": b"b", "path": "b"}]], pa.list_(image)
        ),
        "objects": pa.array([{"category": [1], "note": "n"}] * 3),
    }
    table = pa.table(columns)
    return table.replace_schema_metadata({"huggingface": json.dumps(metadata)})


def test_images_and_class_labels_of_hugging_face_are_read(tmp_path: Path) -> None:
    source = plan(
        write(tmp_path / "a.parquet", make_hugging_face_table({"info": {"features": HUGGING_FACE}}))
    )
    rows = values(read_all(source)[0])
    assert {name: [row[name] for row in rows] for name in rows[0]} == {
        "image": [b"one", b"two", None],
        "image.path": ["1.png", None, None],
        "label": [1, None, 0],
        "tags": [[2, 0], [], [1]],
        "pics": [[b"a"], [], [b"b"]],
        "pics.path": [[""], [], ["b"]],
        "objects.category": [[1]] * 3,
        "objects.note": ["n"] * 3,
    }
    classes = {feature.name: feature.classes for feature in source.schema if feature.classes}
    assert classes == {
        "label": ("cat", "dog"),
        "tags": ("x", "y", "z"),
        "objects.category": ("a", "b"),
    }
    assert not source.schema["label"].required


@pytest.mark.parametrize(
    "metadata", [None, [], {"info": 3}, {"info": {"features": {"label": {"_type": "ClassLabel"}}}}]
)
def test_empty_metadata_of_hugging_face_is_ignored(metadata: object, tmp_path: Path) -> None:
    source = plan(write(tmp_path / "a.parquet", make_hugging_face_table(metadata)))
    assert [row["label"] for row in values(read_all(source)[0])] == [1, -1, 0]
    assert not any(feature.classes for feature in source.schema)


@pytest.mark.parametrize("group_rows", [1, 100])
@pytest.mark.parametrize("metadata", [HUGGING_FACE_IMAGES, None])
def test_features_of_hugging_face_without_nulls_are_required(
    tmp_path: Path, metadata: Any, group_rows: int
) -> None:
    media = [{"bytes": b"1", "path": "a.png"}, {"bytes": b"2", "path": "b.png"}]
    table = pa.table({"image": pa.array(media, MEDIA_TYPE), "label": [0, 1]})
    if metadata is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    source = plan(write(tmp_path / "a.parquet", table, row_group_size=group_rows))
    assert features(source) == {"image": "bytes!", "image.path": "string!", "label": "int64!"}
    missing = [media[0], None]
    table = table.set_column(0, "image", pa.array(missing, MEDIA_TYPE))
    table = table.set_column(1, "label", pa.array([0, None if metadata is None else -1]))
    source = plan(write(tmp_path / "a.parquet", table, row_group_size=group_rows))
    assert features(source) == {"image": "bytes", "image.path": "string", "label": "int64"}
    assert not read_all(source)[1]


@pytest.mark.parametrize("is_in_struct", [False, True])
def test_images_with_a_path_and_no_bytes_are_rejects(tmp_path: Path, is_in_struct: bool) -> None:
    media: list[Any] = [{"bytes": None, "path": f"{row}.png"} for row in range(3)]
    media[1] = {"bytes": b"1", "path": "b.png"}
    column, name = pa.array([*media, None], MEDIA_TYPE), "image"
    if is_in_struct:
        column, name = pa.StructArray.from_arrays([column], ["image"]), "s.image"
    table = pa.table({name.partition(".")[0]: column})
    source = plan(write(tmp_path / "a.parquet", table))
    rows, rejects = read_all(source)
    assert [row[name] for row in values(rows)] == [b"1", None]
    assert [(reject.place, reject.reason, in_flags(reject.message)) for reject in rejects] == [
        (
            f"row {row}",
            "no bytes",
            f"{name}: has no bytes, only the path '{row}.png'; store its bytes, or give "
            f"--file-column {name}.path=image",
        )
        for row in (0, 2)
    ]
    # The option that the message proposes reads the files.
    options = TableOptions(file_columns=(f"{name}.path=image",))
    assert not read_all(plan(tmp_path / "a.parquet", options=options))[1]


def test_images_in_memory_with_a_path_and_no_bytes_are_rejects(tmp_path: Path) -> None:
    media = pa.array([{"bytes": None, "path": "a.png"}, {"bytes": b"1", "path": None}], MEDIA_TYPE)
    result = recordmill.build(pa.table({"image": media}), tmp_path / "out", max_rejects=1)
    assert result.records == {"train": 1}
    assert "store the bytes of that file" in Path(result.rejects[0]).read_text()


def write_int96(path: Path, times: pa.Array) -> Path:
    return write(path, {"t": times}, use_deprecated_int96_timestamps=True)


def test_int96_time_beyond_nanoseconds_is_kept_by_microseconds(tmp_path: Path) -> None:
    times = [datetime.datetime(9999, 12, 23, 23, 59, 59), datetime.datetime(2021, 6, 9, 3, 2, 37)]
    times += [datetime.datetime(1, 1, 1), None]
    path = write_int96(tmp_path / "a.parquet", pa.array(times, pa.timestamp("us")))
    rows, rejects = read_all(plan(path, dtypes={"t": "timestamp[us]"}))
    assert [row["t"] for _, _, row in rows] == times
    assert not rejects


def test_int96_time_beyond_nanoseconds_is_a_reject_that_names_the_dtype(tmp_path: Path) -> None:
    times = [datetime.datetime(9999, 12, 23, 23, 59, 59), datetime.datetime(2021, 6, 9, 3, 2, 37)]
    path = write_int96(tmp_path / "a.parquet", pa.array(times, pa.timestamp("us")))
    rows, rejects = read_all(plan(path))
    assert [row["t"].to_pydatetime() for _, _, row in rows] == times[1:]
    assert [in_flags(reject) for reject in rejects] == [
        "a.parquet: row 0: t: datetime.datetime(9999, 12, 23, 23, 59, 59) does not fit timestamp[ns]; "
        "--dtype 't=timestamp[us]' keeps it"
    ]


def test_int96_times_keep_nanoseconds_next_to_distant_times(tmp_path: Path) -> None:
    nanos = 1_600_000_000_123_456_789
    near_path = write_int96(tmp_path / "near.parquet", pa.array([nanos], pa.timestamp("ns")))
    time = datetime.datetime(9999, 1, 1)
    far_path = write_int96(tmp_path / "far.parquet", pa.array([time], pa.timestamp("us")))
    batches = [
        pq.ParquetFile(path, coerce_int96_timestamp_unit=unit).read().to_batches()[0]
        for unit in (None, "us")
        for path in (near_path, far_path)
    ]
    nano_rows = pa.concat_batches(
        [b.cast(pa.schema([("t", pa.timestamp("ns"))])) for b in batches[:2]]
    )
    micro_rows = pa.concat_batches(batches[2:])
    parts = list(parquet_source._restore_distant_times([nano_rows], [micro_rows], "a"))
    assert [part.column(0).cast(pa.int64()).to_pylist() for part in parts] == [
        [nanos],
        [int(time.replace(tzinfo=datetime.timezone.utc).timestamp()) * 1_000_000],
    ]


def test_int96_time_in_a_list_beyond_nanoseconds_is_an_error(tmp_path: Path) -> None:
    times = pa.array([[datetime.datetime(9999, 1, 1)]], pa.list_(pa.timestamp("us")))
    path = write_int96(tmp_path / "a.parquet", times)
    with pytest.raises(DataError, match=r"column 't'.*INT96"):
        read_all(plan(path))


def make_fixed_lists(values: Any, *sizes: int) -> pa.Array:
    kind: pa.DataType = pa.float32()
    for size in reversed(sizes):
        kind = pa.list_(kind, size)
    return pa.array(values, kind)


FIXED_LISTS = [
    (make_fixed_lists([[1, 2], None, [3, 4]], 2), [[1, 2], None, [3, 4]]),
    (make_fixed_lists([[[1, 2]], None, [[3, 4]]], 1, 2), [[[1, 2]], None, [[3, 4]]]),
    (
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.float32(), [2, 2]),
            make_fixed_lists([[1, 2, 3, 4], None, [5, 6, 7, 8]], 4),
        ),
        [[[1, 2], [3, 4]], None, [[5, 6], [7, 8]]],
    ),
]


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize(("column", "rows"), FIXED_LISTS)
def test_null_list_of_a_fixed_size_is_a_missing_value(
    tmp_path: Path, column: pa.Array, rows: list[Any], is_alone: bool
) -> None:
    table = pa.table({"x": column} if is_alone else {"id": [0, 1, 2], "x": column})
    write(tmp_path / "a.parquet", table)
    recordmill.build(tmp_path / "a.parquet", tmp_path / "out", shuffle=False)
    result = [row["x"] for row in recordmill.open(tmp_path / "out")]
    assert [None if row is None else row.tolist() for row in result] == rows


def test_null_list_of_a_fixed_size_in_a_struct_is_a_missing_value(tmp_path: Path) -> None:
    lists = make_fixed_lists([[1, 2], None, [3, 4]], 2)
    column = pa.StructArray.from_arrays([lists], ["v"], mask=pa.array([False, False, True]))
    path = write(tmp_path / "a.parquet", {"x": column})
    rows, rejects = read_all(plan(path))
    assert [row["x.v"] for _, _, row in rows] == [[1, 2], None, None]
    assert not rejects


def test_lists_of_a_fixed_size_are_read_with_other_columns_of_the_same_row(tmp_path: Path) -> None:
    count = 3000
    lists = make_fixed_lists([None if n % 7 == 0 else [n, n] for n in range(count)], 2)
    table = {"id": range(count), "text": ["x" * (n % 50) for n in range(count)], "x": lists}
    path = write(tmp_path / "a.parquet", pa.table(table), row_group_size=100)
    rows, _ = read_all(plan(path))
    assert [(row["id"], row["x"]) for _, _, row in rows] == [
        (n, None if n % 7 == 0 else [n, n]) for n in range(count)
    ]
