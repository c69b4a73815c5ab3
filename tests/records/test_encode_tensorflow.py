"""What we encode, read by TensorFlow and tfx-bsl; what they write, read by us."""

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kit import framed

from recordmill.records.example.encode import encode
from recordmill.records.tfrecord.members import MemberWriter
from recordmill.records.tfrecord.stream import read_frames
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.storage.codecs import find_codec

tf = pytest.importorskip("tensorflow", reason="these tests hold our records against TensorFlow")

SCHEMA = Schema(
    (
        Feature("id", "int64", (), True), Feature("flag", "bool"), Feature("score", "float32"),
        Feature("text", "string"), Feature("vector", "float32", (3,), True), Feature("tags", "string", (None,)),
        Feature("ids", "int64", (None,)), Feature("weights", "float32", (None,)),
        Feature("image", "uint8", (2, 2), True), Feature("exact", "float64", (), True),
    )
)  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {
        "id": (-1) ** i * 3**i, "flag": None if i % 5 == 0 else i % 2 == 0, "score": None if i % 7 == 0 else i / 4,
        "text": None if i % 3 == 0 else f"Ünï {i}", "vector": [i, i + 0.5, -i],
        "tags": None if i % 4 == 0 else [f"t{k}" for k in range(i % 4 - 1)],
        "ids": None if i % 6 == 0 else list(range(i % 6 - 1)), "weights": None if i % 2 else [0.25] * (i % 3),
        "image": [i, 1, 2, 255], "exact": 1e300 / (i + 1),
    }
    for i in range(40)
]  # fmt: skip
FRAMES = encode(pa.RecordBatch.from_pylist(ROWS, schema=to_arrow(SCHEMA)), SCHEMA)
RECORDS = [FRAMES.payload(i).tobytes() for i in range(len(FRAMES))]


def test_tensorflow_parses_values_missing_and_empty() -> None:
    lists = {"tags": tf.string, "ids": tf.int64, "weights": tf.float32}
    spec: dict[str, Any] = {
        "id": tf.io.FixedLenFeature([], tf.int64), "flag": tf.io.FixedLenFeature([], tf.int64, -1),
        "score": tf.io.FixedLenFeature([], tf.float32, -1.0), "text": tf.io.FixedLenFeature([], tf.string, "missing"),
        "vector": tf.io.FixedLenFeature([3], tf.float32), "image": tf.io.FixedLenFeature([], tf.string),
        "exact": tf.io.FixedLenFeature([], tf.string),
        **{name: tf.io.RaggedFeature(dtype) for name, dtype in lists.items()},
    }  # fmt: skip
    parsed = tf.io.parse_example(RECORDS, spec)
    assert parsed["id"].numpy().tolist() == [row["id"] for row in ROWS]
    assert parsed["flag"].numpy().tolist() == [-1 if row["flag"] is None else row["flag"] for row in ROWS]
    assert parsed["score"].numpy().tolist() == [-1 if row["score"] is None else row["score"] for row in ROWS]
    assert [t.decode() for t in parsed["text"].numpy()] == [row["text"] or "missing" for row in ROWS]
    assert parsed["vector"].numpy().tolist() == [row["vector"] for row in ROWS]
    assert tf.io.decode_raw(parsed["image"], tf.uint8).numpy().tolist() == [row["image"] for row in ROWS]
    assert tf.io.decode_raw(parsed["exact"], tf.float64).numpy()[:, 0].tolist() == [row["exact"] for row in ROWS]
    for name in lists:
        got = [[item.decode() if isinstance(item, bytes) else item for item in row] for row in parsed[name].to_list()]
        assert got == [row[name] or [] for row in ROWS]
    for row, data in zip(ROWS, RECORDS, strict=True):  # what a spec can't tell: missing and empty
        features = tf.train.Example.FromString(data).features.feature
        assert set(features) == {name for name, value in row.items() if value is not None}


def test_tfx_bsl_decodes_the_same() -> None:
    coding = pytest.importorskip("tfx_bsl.coders.example_coder", reason="this test holds our records against tfx-bsl")
    batch = coding.ExamplesToRecordBatchDecoder().DecodeBatch(RECORDS)
    got = {name: batch.column(i).to_pylist() for i, name in enumerate(batch.schema.names)}
    assert got["ids"] == [row["ids"] for row in ROWS]
    assert got["id"] == [[row["id"]] for row in ROWS]
    assert got["text"] == [None if row["text"] is None else [row["text"].encode()] for row in ROWS]
    assert got["weights"] == [row["weights"] for row in ROWS]


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_tensorflow_reads_our_files(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "shard"
    if compression:
        with path.open("wb") as file:
            writer = MemberWriter(file.write, find_codec("gzip"), member_bytes=1000)
            writer.write(FRAMES)
            writer.close()
        assert len(writer.table[0]) > 3
    else:
        path.write_bytes(FRAMES.data.tobytes())
    assert [data.numpy() for data in tf.data.TFRecordDataset(str(path), compression)] == RECORDS


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_we_read_tensorflows_files(tmp_path: Path, compression: str) -> None:
    with tf.io.TFRecordWriter(str(tmp_path / "f"), compression) as writer:
        for record in RECORDS:
            writer.write(record)
    batches = list(read_frames(str(tmp_path / "f"), batch_bytes=2000))
    assert [batch.payload(i).tobytes() for batch in batches for i in range(len(batch))] == RECORDS
    if not compression:
        assert (tmp_path / "f").read_bytes() == FRAMES.data.tobytes()
    if compression == "GZIP":
        assert gzip.decompress((tmp_path / "f").read_bytes()) == FRAMES.data.tobytes()


def test_framing_is_tensorflows() -> None:
    assert framed(RECORDS) == FRAMES.data.tobytes()
