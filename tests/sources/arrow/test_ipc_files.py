"""Arrow files, Feather files and Arrow streams have the records of Parquet files.

Damaged files are refused.
"""

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from kit.files import shard_bytes
from kit.source_reading import input_files

import recordmill
from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.schemas.feature import Feature
from recordmill.sources.arrow.ipc_files import plan_arrow
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.common.options import TableOptions

ROWS = 3000
TABLE = pa.table(
    {
        "x": np.arange(ROWS),
        "class": pa.array([f"c{row % 3}" for row in range(ROWS)]).dictionary_encode(),
        "list": [[row, row + 1] if row % 5 else None for row in range(ROWS)],
        "part": [{"a": row, "b": [str(row)]} for row in range(ROWS)],
        "some": [row if row % 2 else None for row in range(ROWS)],
        "view": pa.array(["ab"] * ROWS).cast(pa.string_view()),
    }
)


def write_stream(table: pa.Table, path: Path, batch_rows: int = 700) -> Path:
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        for batch in table.to_batches(batch_rows):
            writer.write_batch(batch)
    return path


def write(form: str, folder: Path, table: pa.Table = TABLE) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "in.data"
    if form == "parquet":
        pq.write_table(table, path)
        return path
    if form == "stream":
        return write_stream(table, path)
    feather.write_feather(table, str(path), compression=form, chunksize=700)
    return path


@pytest.mark.parametrize("form", ["uncompressed", "lz4", "zstd", "stream"])
def test_build_of_arrow_files_writes_the_shards_of_parquet(form: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"name": "x", "seed": 3, "num_shards": 2, "label": "class"}
    recordmill.build(write("parquet", tmp_path / "a"), tmp_path / "expected", **options)
    result = recordmill.build(write(form, tmp_path / "b"), tmp_path / "out", **options)
    assert shard_bytes(tmp_path / "out") == shard_bytes(tmp_path / "expected")
    schema = recordmill.open(result.out).schema
    assert schema["class"].classes == ("c0", "c1", "c2")
    assert schema["x"] == Feature("x", "int64", required=True)
    assert not schema["some"].required
    recordmill.build(tmp_path / "b", tmp_path / "columns", columns=["x", "part"])
    assert recordmill.open(tmp_path / "columns").schema.names == ("x", "part.a", "part.b")


def test_arrow_output_of_read_is_built_again(tmp_path: Path) -> None:
    recordmill.build(write("parquet", tmp_path / "in"), tmp_path / "first", shuffle=False)
    recordmill.read(tmp_path / "first", tmp_path / "table", to="arrow")
    recordmill.build(tmp_path / "table", tmp_path / "second", kind="arrow", shuffle=False)
    tables = [recordmill.open(tmp_path / name).to_table() for name in ("first", "second")]
    assert tables[0].to_pylist() == tables[1].to_pylist()


def test_units_are_batches_of_a_file_and_all_of_a_stream(tmp_path: Path) -> None:
    common = PlanOptions(unit_bytes=1000)
    file = plan_arrow(
        input_files(write("uncompressed", tmp_path / "a")), TableOptions(), common
    ).units
    stream = plan_arrow(input_files(write("stream", tmp_path / "b")), TableOptions(), common).units
    assert [unit.rows for unit in file] == [700, 700, 700, 700, 200]
    assert [unit.first_row for unit in file] == [0, 700, 1400, 2100, 2800]
    assert [unit.rows for unit in stream] == [ROWS]


def test_arrow_stream_of_hugging_face_has_its_classes(tmp_path: Path) -> None:
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    table = pa.table({"label": [0, 1, -1]}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    (tmp_path / "in").mkdir()
    write_stream(table, tmp_path / "in" / "data-00000-of-00001.arrow")
    for name in ("state.json", "dataset_info.json"):
        (tmp_path / "in" / name).write_text('{\n "x": {}\n}')
    result = recordmill.build(tmp_path / "in", tmp_path / "out", label="label", shuffle=False)
    assert recordmill.open(result.out).schema["label"].classes == ("cat", "dog")
    assert recordmill.open(result.out).to_table()["label"].to_pylist() == [0, 1, None]


@pytest.mark.parametrize("form", ["uncompressed", "stream"])
def test_arrow_file_in_archives_is_read(form: str, tmp_path: Path) -> None:
    import tarfile
    import zipfile

    path = write(form, tmp_path / "in")
    recordmill.build(path, tmp_path / "expected", name="x")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(path, path.name)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(path, path.name)
    for name in ("a.zip", "a.tar.gz"):
        recordmill.build(tmp_path / name, tmp_path / name[2:], name="x")
        assert shard_bytes(tmp_path / name[2:]) == shard_bytes(tmp_path / "expected")


def test_large_arrow_stream_deflated_in_a_zip_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zipfile

    from recordmill.storage import archives

    monkeypatch.setattr(archives, "_MAX_INFLATED_BYTES", 10)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(write("stream", tmp_path / "in"), "in.arrow")
    assert recordmill.build(tmp_path / "a.zip", tmp_path / "out").records == {"train": ROWS}


def test_damaged_streams_and_files_are_refused_or_noted(tmp_path: Path) -> None:
    stream = write("stream", tmp_path / "s").read_bytes()
    file = write("uncompressed", tmp_path / "f").read_bytes()
    for content, message in (
        (stream[:-5000], "is not an Arrow file, or damaged: Expected to be able to read"),
        (stream * 2, f"there is data after the end of the Arrow stream at byte {len(stream)}"),
        (file[:-100], "is not an Arrow file, or damaged"),
        (file[:100], "is not an Arrow file, or damaged"),
    ):
        (tmp_path / "in.arrow").write_bytes(content)
        with pytest.raises(DataError, match=f"in.arrow: {message}"):
            recordmill.build(tmp_path / "in.arrow", tmp_path / "out")
    (tmp_path / "in.arrow").write_bytes(stream[:-8])
    result = recordmill.build(tmp_path / "in.arrow", tmp_path / "out")
    assert "in.arrow: the Arrow stream has no end mark, so it may be cut off" in result.notes


@pytest.mark.parametrize("form", ["uncompressed", "lz4", "stream"])
def test_mutated_arrow_file_is_read_or_raises_one_error(form: str, tmp_path: Path) -> None:
    content = write(form, tmp_path / "in", TABLE.slice(0, 50)).read_bytes()
    random_state = random.Random(form)
    path = tmp_path / "in.arrow"
    for _ in range(150):
        data = bytearray(content)
        for _ in range(random_state.randint(1, 3)):
            position = random_state.choice(
                [random_state.randrange(len(data)), random_state.randrange(600)]
            )
            data[position] = random_state.choice([0, 1, 127, 128, 255, data[position] ^ 1])
        path.write_bytes(data)
        try:
            source = plan_arrow(input_files(path), TableOptions(), PlanOptions(label="class"))
            for unit in source.units:
                for chunk in source.read(unit):
                    assert isinstance(chunk.records, pa.RecordBatch)
                    chunk.records.validate(full=True)
        except RecordmillError:
            pass


def version_1() -> bytes:
    buffer = io.BytesIO(b"FEA1" + bytes(60))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (version_1(), "a Feather file of version 1"),
        (b"\x80\x04\x95\x05\0\0\0\0\0\0\0]\x94K\x01a.", "a pickle, which may run programs"),
        (b"\x80\x02}q\x00X\x01\0\0\0aq\x01K\x01s.", "a pickle, which may run programs"),
        (b"\0\0\x08\x03\0\0\0\1\0\0\0\2\0\0\0\2" + bytes(4), "an idx file, as those of MNIST"),
        (b"\0\0\x08\x01\0\0\0\4" + bytes(4), "an idx file, as those of MNIST"),
        (b"MATLAB 5.0 MAT-file, by".ljust(124) + b"\0\1IM" + bytes(20), "a MATLAB file"),
        (b"\x0a\x23\xd7\xce" + bytes(30), "a RecordIO file of MXNet"),
    ],
)
@pytest.mark.parametrize("name", ["in", "in.mat", "in.gz"])
def test_unsupported_file_of_another_tool_is_named(
    content: bytes, message: str, name: str, tmp_path: Path
) -> None:
    import gzip

    (tmp_path / name).write_bytes(gzip.compress(content) if name == "in.gz" else content)
    with pytest.raises(UsageError) as error:
        recordmill.build(tmp_path / name, tmp_path / "out")
    assert message in str(error.value)
