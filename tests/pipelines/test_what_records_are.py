"""Unusual records survive build and read: SequenceExamples, plain bytes and odd names.

An error about another kind of file names the kind.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.files import write_tfrecord
from kit.wire_writer import INT64, entry, feature, feature_list, field

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import DataError, UsageError
from recordmill.reader.inspect.summary import inspect
from recordmill.records.example.encode import encode_sequences
from recordmill.schemas import tfmd
from recordmill.schemas.feature import Feature
from recordmill.shards.rejects import TooManyRejects

TFDS = ("dataset_info.json", "features.json")


def features(name: bytes, value: int) -> bytes:
    return entry(name, feature(INT64, [value]))


def test_build_of_opened_sequence_examples_keeps_their_type(tmp_path: Path) -> None:
    records = [
        field(1, features(b"id", number))
        + field(2, feature_list(b"word", INT64, [[number], [number + 1]]))
        for number in range(9)
    ]
    opened = recordmill.open(str(write_tfrecord(tmp_path / "se.tfrecord", *records)))
    assert opened.schema.message == "SequenceExample"
    built = recordmill.build(opened, str(tmp_path / "out"), quiet=True)
    rebuilt = recordmill.open(str(built.out))
    assert rebuilt.full_schema == opened.full_schema
    assert sorted(str(row) for row in rebuilt) == sorted(str(row) for row in opened)
    with pytest.raises(
        UsageError,
        match="a selection of records or features can't be built if the records are of type Seq",
    ):
        recordmill.build(
            recordmill.open(str(tmp_path / "se.tfrecord"), columns=["id"]), str(tmp_path / "o2")
        )


def test_feature_and_feature_list_may_share_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = (field(1, features(b"x", number)) for number in range(9))
    records = [
        context_part + field(2, feature_list(b"x", INT64, [[number], [number + 1]]))
        for number, context_part in enumerate(context)
    ]
    path = str(write_tfrecord(tmp_path / "se.tfrecord", *records))
    expected = [(number, [number, number + 1]) for number in range(9)]
    for command in ("inspect", "head", "verify"):
        assert main([command, path]) == 0, capsys.readouterr().err
    built = recordmill.build(
        path, tmp_path / "out", kind="tfrecord", shuffle=False, num_shards=1, quiet=True
    )
    assert next(Path(built.out).rglob("*.tfrecord")).read_bytes() == Path(path).read_bytes()
    for source in (path, str(built.out)):
        ds = recordmill.open(source)
        assert ds.schema.names in (("x", "x/sequence"), ("x/sequence", "x"))
        assert [(row["x"], row["x/sequence"].tolist()) for row in ds] == expected
        assert [
            rows.tolist() for rows in recordmill.open(source, columns=["x/sequence"])["x/sequence"]
        ] == [steps for _, steps in expected]
    recordmill.read(path, tmp_path / "table", quiet=True)
    (table,) = (tmp_path / "table").rglob("*.parquet")
    assert pq.read_table(table).to_pylist() == [
        {"x": x, "x/sequence": steps} for x, steps in expected
    ]
    schema = tfmd.from_pbtxt(tfmd.to_pbtxt(ds.schema))
    assert schema == ds.schema
    frames = encode_sequences(ds.to_table().combine_chunks().to_batches()[0], schema)
    assert [frames.payload(number).tobytes() for number in range(9)] == records
    pytest.importorskip("tensorflow")
    (batch,) = ds.to_tf(9, shuffle=False)
    assert batch["x"].numpy().tolist() == [x for x, _ in expected]
    assert batch["x/sequence"].to_list() == [steps for _, steps in expected]


def test_build_of_opened_bytes_records_keeps_their_type(tmp_path: Path) -> None:
    opened = recordmill.open(
        str(
            write_tfrecord(
                tmp_path / "raw.tfrecord", *[b"\xff raw %d" % number for number in range(9)]
            )
        )
    )
    assert opened.schema.message == "bytes"
    rebuilt = recordmill.open(str(recordmill.build(opened, str(tmp_path / "out"), quiet=True).out))
    assert rebuilt.schema.message == "bytes"
    assert sorted(row["record"] for row in rebuilt) == sorted(row["record"] for row in opened)


@pytest.mark.parametrize("name", [b"\0", b"a\0b", b"\xff\xfe"])
def test_invalid_feature_name_in_a_record_is_an_error(tmp_path: Path, name: bytes) -> None:
    path = write_tfrecord(
        tmp_path / "n.tfrecord", *[field(1, features(name, number)) for number in range(5)]
    )
    message = r"n\.tfrecord record 0 holds a feature called b'.*', which is not a name"
    with pytest.raises(DataError, match=message):
        _ = recordmill.open(str(path)).schema
    with pytest.raises(DataError, match=message):
        recordmill.build(str(path), str(tmp_path / "out"), kind="tfrecord", quiet=True)
    with pytest.raises(DataError, match=message):
        recordmill.read(str(path), str(tmp_path / "table"), quiet=True)


@pytest.mark.parametrize("to", ["parquet", "npy", "jsonl"])
def test_read_that_rejects_every_record_is_an_error(tmp_path: Path, to: str) -> None:
    path = write_tfrecord(
        tmp_path / "bad.tfrecord", *[field(1, features(b"id", number)) for number in range(3)]
    )
    data = bytearray(path.read_bytes())
    size = len(data) // 3
    for number in range(3):
        data[number * size + 13] ^= 1
    path.write_bytes(data)
    schema = recordmill.open(
        str(write_tfrecord(tmp_path / "good.tfrecord", field(1, features(b"id", 1))))
    ).schema
    with pytest.raises(TooManyRejects, match="no record to write: all 3 were rejected"):
        recordmill.read(
            str(path), str(tmp_path / "out"), to=to, schema=schema, max_rejects="100%", quiet=True
        )
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            b"a,b\n1,2\n3,4\n5,6\n",
            "a table with 2 fields per row, separated by ','; `recordmill build csv ",
        ),
        ("a.csv", b"a,b\n1,2\n", "`recordmill build "),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n{"a": 2}\n', mtime=0), "`recordmill build jsonl "),
        ("a.pdf", b"%PDF-1.7\n\0\1\2" + bytes(99), "a PDF document"),
    ],
)
@pytest.mark.parametrize(
    "call", [recordmill.open, inspect, lambda path: recordmill.read(path, path + ".out")]
)
def test_error_about_another_format_names_the_format(
    tmp_path: Path, name: str, content: bytes, message: str, call: Callable[[str], Any]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match="this is not a TFRecord file") as error:
        call(str(path))
    assert message in str(error.value)


def test_damaged_tfrecord_file_is_opened(tmp_path: Path) -> None:
    """The damaged start is not mistaken for another format.

    Lenient commands leave out the damaged record.
    """
    path = write_tfrecord(
        tmp_path / "n.tfrecord", *[field(1, features(b"id", number)) for number in range(5)]
    )
    for first in (b"\xff", b"a,b\n1,2\n", bytes(12)):
        path.write_bytes(first + path.read_bytes()[len(first) :])
        recordmill.open(str(path))
        assert inspect(str(path), max_rejects="50%").rejected.total == 1


def test_folder_of_a_data_set_is_an_input(tmp_path: Path) -> None:
    """The content of such a folder is not decisive, because one shard and one list of inputs tie.

    The manifest determines which files are data.
    """
    table = {"x": list(range(20))}
    built = recordmill.build(table, str(tmp_path / "one"), quiet=True)
    second = recordmill.build(str(built.out), str(tmp_path / "two"), quiet=True)
    assert second.notes[0].endswith("is a data set's folder")
    assert sorted(row["x"] for row in recordmill.open(str(second.out))) == table["x"]
    (tmp_path / "tfds").mkdir()
    (shard,) = (tmp_path / "one").rglob("*.tfrecord")
    for source, name in (
        (shard, "x-train.tfrecord-00000-of-00001"),
        *((tmp_path / "one" / f, f) for f in TFDS),
    ):
        (tmp_path / "tfds" / name).write_bytes(source.read_bytes())
    for extra in range(3):
        (tmp_path / "tfds" / f"{extra}.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    third = recordmill.build(str(tmp_path / "tfds"), str(tmp_path / "three"), quiet=True)
    assert (third.kind, dict(third.records)) == ("tfrecord", {"train": 20})


@pytest.mark.parametrize("name", ["a\0b", "\0", "\ud800"])
def test_invalid_feature_name_is_refused_in_every_kind_of_input(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"x": {name: 1}}) + "\n")
    (tmp_path / "a.csv").write_text("1\n2\n")
    inputs: list[tuple[Any, dict[str, Any]]] = [
        ({name: [1, 2]}, {}),
        ([{name: 1}], {}),
        (str(tmp_path / "a.jsonl"), {}),
        (str(tmp_path / "a.csv"), {"header": False, "names": [name]}),
    ]
    if name != "\ud800":  # Arrow refuses it as the name of a column
        table = pa.table({name: [1, 2]})
        pq.write_table(table, tmp_path / "a.parquet")
        inputs += [
            (table, {}),
            (str(tmp_path / "a.parquet"), {}),
            (str(tmp_path / "a.parquet"), {"dtypes": {name: "string"}}),
        ]
    for source, extra in inputs:
        with pytest.raises(DataError, match=r"not a name|half a surrogate pair") as error:
            recordmill.build(source, str(tmp_path / "out"), quiet=True, **extra)
        assert "declare its type" not in str(error.value)
    for call in (lambda: Feature(name, "int64"), lambda: recordmill.example({name: 1})):
        with pytest.raises(DataError, match="not a name"):
            call()
