"""TFRecord files are inputs with unchanged payloads and detected schemas.

Damaged records are rejects.
"""

import gzip
import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest
from kit.data_sets import MIXED, mixed_rows, write_data_set
from kit.files import tfrecord_bytes

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.records.tfrecord.stream import read_frames
from recordmill.schemas import tfmd
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.arrow import single_example
from recordmill.sources.common.contract import Payloads, PlanOptions, Source
from recordmill.sources.common.options import InputOptions
from recordmill.sources.tfrecord import source as tfrecord_source
from recordmill.sources.tfrecord.source import TfrecordSource, plan_tfrecord
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import stat

SCHEMA = Schema((Feature("x", "int64", required=True), Feature("y", "string", required=True)))


def example(x: list[int] | bytes, y: str | bytes = b"text", **features: int) -> bytes:
    return single_example.example({"x": x, "y": y, **features})


def write(path: Path, payloads: list[bytes], compressed: bool = False) -> Path:
    data = tfrecord_bytes(payloads)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if compressed else data)
    return path


def plan(*paths: Path, splits: tuple[str | None, ...] = (), **common: Any) -> TfrecordSource:
    files = [
        InputFile(0, path.name, str(path), stat(str(path)), split)
        for path, split in zip(paths, splits or (None,) * len(paths), strict=True)
    ]
    return plan_tfrecord(files, InputOptions(), PlanOptions(**common))


def read(source: TfrecordSource) -> tuple[list[tuple[int, int, bytes]], list[Reject]]:
    """Reads a source as another process does, after pickling.

    Returns:
        ((file number, position, payload) of each record, rejects).
    """
    source = pickle.loads(pickle.dumps(source))
    assert isinstance(source, Source)
    rows: list[tuple[int, int, bytes]] = []
    rejects: list[Reject] = []
    for unit in source.units:
        num_before = len(rows) + len(rejects)
        for chunk in source.read(unit):
            assert isinstance(chunk.records, Payloads)
            bounds = chunk.records.offsets.tolist()
            payloads = [
                chunk.records.data[start:stop].tobytes()
                for start, stop in itertools.pairwise(bounds)
            ]
            rows += zip(chunk.file_ids.tolist(), chunk.positions.tolist(), payloads, strict=True)
            rejects += chunk.rejects
        assert unit.rows == len(rows) + len(rejects) - num_before
    return rows, rejects


def set_block_bytes(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Sets the size of blocks and units."""
    for module, name in ((tfrecord_source, "UNIT_BYTES"), (tfrecord_source, "_PIECE_STEP_BYTES")):
        monkeypatch.setattr(module, name, size)


PAYLOADS = [example([n % 128], "y" * (n % 50)) for n in range(500)]


@pytest.mark.parametrize("compressed", [False, True])
def test_payloads_of_tfrecords_stay_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool
) -> None:
    path = write(tmp_path / "a.tfrecord", PAYLOADS, compressed)
    source = plan(path)
    assert source.schema == SCHEMA
    assert source.notes == ("schema inferred from all records",)
    expected = [(0, number, payload) for number, payload in enumerate(PAYLOADS)]
    assert read(source) == (expected, [])
    set_block_bytes(monkeypatch, 2000)
    monkeypatch.setattr(tfrecord_source, "BATCH_BYTES", 300)
    source = plan(path, schema=SCHEMA, threads=2)
    assert compressed or len(source.units) > 5
    assert read(source) == (expected, [])


def test_tfrecords_need_not_hold_examples(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", [b"", b"\xff\xff", b"text"])
    source = plan(path)
    assert source.schema.message == "bytes"
    assert [row[2] for row in read(source)[0]] == [b"", b"\xff\xff", b"text"]


def test_damaged_tfrecords_are_rejects(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", PAYLOADS[:20])
    starts = [int(start) for batch in read_frames(str(path)) for start in batch.starts]
    content = bytearray(path.read_bytes())
    content[starts[3] + 14] ^= 1  # in a payload
    content[starts[7] + 2] ^= 1  # in a length
    del content[-3:]
    path.write_bytes(content)
    rows, rejects = read(plan(path, schema=SCHEMA))
    assert [row[2] for row in rows] == [
        payload for number, payload in enumerate(PAYLOADS[:19]) if number not in (3, 7)
    ]
    assert [(reject.source, reject.place, reject.reason) for reject in rejects] == [
        ("a.tfrecord", f"record 3, byte {starts[3]}", "crc"),
        ("a.tfrecord", f"record 7, byte {starts[7]}", "frame"),
        ("a.tfrecord", f"record 19, byte {starts[19]}", "frame"),
    ]


def test_damaged_compressed_tfrecord_file_ends_with_a_reject(tmp_path: Path) -> None:
    data = gzip.compress(write(tmp_path / "a.tfrecord", PAYLOADS).read_bytes())
    path = tmp_path / "b.tfrecord.gz"
    path.write_bytes(data[:-9])
    rows, rejects = read(plan(path, schema=SCHEMA))
    assert [row[2] for row in rows] == PAYLOADS[: len(rows)]
    assert [(reject.source, reject.reason) for reject in rejects] == [
        ("b.tfrecord.gz", "compression")
    ]
    assert "truncated" in rejects[0].message


def test_schema_files_next_to_tfrecords_are_used(tmp_path: Path) -> None:
    first, second = (
        write(tmp_path / "a" / "x.tfrecord", PAYLOADS[:2]),
        write(tmp_path / "b" / "deep" / "x.tfrecord", PAYLOADS[:2]),
    )
    expected = Schema((Feature("x", "uint8", required=True), Feature("y", "bytes")), label="x")
    for folder in ("a", "b"):
        (tmp_path / folder / "schema.pbtxt").write_text(tfmd.to_pbtxt(expected))
    source = plan(first, second)
    assert source.schema == expected
    assert source.notes == ("schema from a/schema.pbtxt",)
    (tmp_path / "b" / "schema.pbtxt").write_text(tfmd.to_pbtxt(SCHEMA))
    with pytest.raises(DataError, match="differ; choose one: --schema FILE"):
        plan(first, second)
    assert plan(first, second, schema=SCHEMA, label="y").schema == Schema(SCHEMA.features, "y")
    with pytest.raises(UsageError, match="--label z: no such feature; there are x, y"):
        plan(first, label="z")
    with pytest.raises(
        UsageError, match="--dtype x=int8: records of TFRecord files are kept as they are"
    ):
        plan(first, dtypes={"x": "int8"})


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_data_set_of_ours_is_an_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    out = write_data_set(
        tmp_path / "out",
        {"train": mixed_rows(300), "val.id": mixed_rows(40, 300)},
        compression=compression,
    )
    write(out / "data-old" / "train-00000-of-00001.tfrecord", PAYLOADS)
    set_block_bytes(monkeypatch, 5000)
    source = plan(*sorted(out.rglob("*.tfrecord*")))
    assert source.schema == MIXED
    assert source.notes == (
        "1 shard(s) of earlier generations of their data set were left out",
        "schema from out/schema.pbtxt",
    )
    assert [file.split for file in source.files] == ["train", "train", "val.id", "val.id"]
    assert len(source.units) > 8
    rows, rejects = read(source)
    assert rejects == []
    files = [
        batch.payload(index).tobytes()
        for file in source.files
        for batch in read_frames(file.path)
        for index in range(len(batch))
    ]
    assert [row[2] for row in rows] == files
    assert len(rows) == 340


def test_shard_names_determine_splits(tmp_path: Path) -> None:
    names = (
        "unsup-00000-of-00001.tfrecord",
        "mnist-test.tfrecord-00000-of-00001",
        "other.tfrecord",
    )
    source = plan(
        *(write(tmp_path / name, PAYLOADS[:1]) for name in names), splits=(None, None, "validation")
    )
    assert [file.split for file in source.files] == ["unsup", "test", "validation"]


def test_tfrecord_file_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no records"):
        plan(write(tmp_path / "a.tfrecord", []), schema=SCHEMA)


def test_record_that_does_not_fit_the_schema_is_a_reject(tmp_path: Path) -> None:
    misnamed = PAYLOADS[1].replace(b"\x0a\x01x", b"\x0a\x01\0")
    path = write(tmp_path / "a.tfrecord", [PAYLOADS[0], misnamed, PAYLOADS[2], b"no record"])
    for common in ({}, {"schema": SCHEMA}):
        source = plan(path, **common)
        assert source.schema == SCHEMA
        rows, rejects = read(source)
        assert [row[1:] for row in rows] == [(0, PAYLOADS[0]), (2, PAYLOADS[2])]
        assert [reject.place.split(",")[0] for reject in rejects] == ["record 1", "record 3"]
    other_schema = Schema((Feature("x", "string", required=True),))
    assert len(read(plan(path, schema=other_schema))[1]) == 4
    (tmp_path / "schema.pbtxt").write_text(tfmd.to_pbtxt(other_schema))
    assert len(read(plan(path))[1]) == 4


LAST_RECORDS = {
    "no Example": b"\xff\xff",
    "larger than a block": example([1], "y" * 40) * 80,
    "a longer list": example([1, 2]),
    "a feature that is missing": single_example.example({"y": "text"}),
    "another kind": example(b"1"),
    "an unknown feature": example([1], z=1),
    "no UTF-8": example([1], b"\xff\xfe"),
}


@pytest.mark.parametrize("case", ["nothing", "payload", "header", "cut", *LAST_RECORDS])
@pytest.mark.parametrize("options", [{}, {"schema": SCHEMA}, {"threads": 3}])
def test_size_of_pieces_does_not_change_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, options: dict[str, Any]
) -> None:
    last_records = [LAST_RECORDS[case]] if case in LAST_RECORDS else []
    paths = [
        write(tmp_path / "a.tfrecord", PAYLOADS[:70]),
        write(tmp_path / "b.tfrecord", []),
        write(tmp_path / "c.tfrecord.gz", PAYLOADS[70:90], True),
        write(tmp_path / "d.tfrecord", [*PAYLOADS[90:], *last_records]),
    ]
    data = bytearray(paths[3].read_bytes())
    data[{"payload": -9, "header": 3}.get(case, 0)] ^= case in ("payload", "header")
    paths[3].write_bytes(data[:-2] if case == "cut" else data)

    def read_or_fail() -> Any:
        try:
            source = plan(*paths, **options)
        except DataError as error:
            return str(error)
        return source.schema, source.notes, read(source)

    expected = read_or_fail()
    set_block_bytes(monkeypatch, 2000)
    assert read_or_fail() == expected
    assert isinstance(expected, str) == (case == "another kind" and "schema" not in options)
    if not isinstance(expected, str):
        assert len(expected[2][0]) >= (400 if case != "header" else 80)
