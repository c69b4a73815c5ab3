"""What binary values look like: each kind is recognised, and near misses and random bytes are not taken for it."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_data_set import MIXED, mixed_rows
from PIL import Image

from recordmill.__main__ import main
from recordmill.reader.dataset import open
from recordmill.reader.inspect.contents import Contents, content_suggestions
from recordmill.reader.inspect.summary import summarise
from recordmill.records.example.encode import encode
from recordmill.records.example.single_example import example
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema


def of(*values: bytes) -> Contents:
    return Contents.of(pa.array(values, pa.large_binary()))


def kinds(*values: bytes) -> Mapping[str, int]:
    return of(*values).kinds


def image(format: str, width: int = 30, height: int = 20) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, format)
    return file.getvalue()


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "WebP", "TIFF"])
def test_images_with_their_sizes(format: str) -> None:
    found = of(image(format), image(format, 50, 10))
    kind = "TIFF that TensorFlow can't decode (the format)" if format == "TIFF" else format
    assert (found.kinds, found.widths, found.heights) == ({kind: 2}, (30, 50), (10, 20))
    assert found.describe() == f"{kind}, 10 to 20 x 30 to 50 pixels"


def test_half_an_image_is_none() -> None:
    assert kinds(image("PNG")[:-20]) == {"PNG that is damaged (truncated)": 1}


def test_texts_and_mixtures() -> None:
    assert kinds("ä\n".encode()) == {"text": 1}
    found = of(b"a", b"", b"\xff\x00", None, image("PNG"))  # type: ignore[arg-type]
    assert found.kinds == {"text": 1, "empty": 1, "binary": 1, "PNG": 1}
    assert found.describe() == "text 1, empty 1, binary 1, PNG 1 of 4 looked at, 20 x 30 pixels"


TENSORS = [
    np.ones((2, 3), np.float32), np.float64(2.5), np.zeros((0, 3), np.int32), np.arange(5), np.array([True, False]),
    np.float16([1, 2]), np.full(100, 7, np.uint8), np.array([b"a", b"bc"]),
    np.arange(12, dtype=np.uint64).reshape(2, 2, 3),
]  # fmt: skip


def test_serialized_tensors() -> None:
    tf = pytest.importorskip("tensorflow")
    for value in TENSORS:
        array = np.asarray(value)
        dtype = "string" if array.dtype.kind == "S" else array.dtype.name
        for payload in (tf.io.serialize_tensor(array).numpy(), tf.make_tensor_proto(array).SerializeToString()):
            assert kinds(payload) == {f"TensorProto {dtype} {list(array.shape)}": 1}
            if dtype != "string" and array.size:
                assert "TensorProto" not in str(kinds(payload[:-1], payload + b"\0"))


def test_messages_in_bytes() -> None:
    one = encode(mixed_rows(1).combine_chunks().to_batches()[0], MIXED).payload(0).tobytes()
    assert kinds(one) == {"Example": 1}
    # SequenceExample {feature_lists {feature_list {key: "s" value {feature {int64_list {value: 1}}}}}}
    assert kinds(bytes.fromhex("120e0a0c0a017312070a051a030a0101")) == {"SequenceExample": 1}
    assert kinds(b"\x0a" + bytes([len(b := example({"x": 1}))]) + b) == {"ExampleListWithContext": 1}
    assert kinds(b"\x0a\x03\xff\xff\xff") == {"binary": 1}


def test_known_formats() -> None:
    file = io.BytesIO()
    np.save(file, np.arange(3))
    assert kinds(file.getvalue()) == {"npy": 1}
    assert kinds(b"RIFF\x24\0\0\0WAVEfmt ") == {"WAV": 1}
    assert kinds(b"\x1f\x8b\x08\0\0\0") == {"gzip": 1}


def test_random_bytes_are_binary() -> None:
    chance = random.Random(7)
    values = [chance.randbytes(chance.choice([1, 8, 40, 300])) for _ in range(3000)]
    counted = sum(
        (Contents.of(pa.array(values[at : at + 20], pa.large_binary())) for at in range(0, 3000, 20)), Contents()
    )
    assert counted.looked_at == 3000
    assert set(counted.kinds) <= {"binary", "text"}


def test_a_few_values_of_a_large_batch_are_looked_at() -> None:
    values = pa.array([b"\xff"] * 1000 + [image("PNG")], pa.large_binary())
    found = Contents.of(values)
    assert found.looked_at < 100
    assert found.kinds["PNG"] == 1  # the first and the last are among them


def test_arrays_are_guessed_by_length_and_numbers() -> None:
    noise = np.random.default_rng(1)
    floats = [noise.normal(size=(8, 8, 3)).astype("<f4").tobytes() for _ in range(5)]
    assert content_suggestions(of(*floats), 768, {}) == ["float32[8,8,3]", "float32[192]", "uint8[16,16,3]"]
    pixels = [noise.integers(0, 256, 768, np.uint8).tobytes() for _ in range(5)]
    assert content_suggestions(of(*pixels), 768, {}) == ["uint8[16,16,3]", "uint8[768]"]
    assert content_suggestions(of(*pixels), 768, {"image/height": 8, "image/width": 32}) == ["uint8[8,32,3]"]
    assert content_suggestions(of(*pixels, b"text"), 768, {}) == []
    assert content_suggestions(of(image("PNG")), 768, {}) == []
    doubles = [noise.normal(size=9).tobytes() for _ in range(5)]
    assert content_suggestions(of(*doubles), 72, {})[0] == "float64[9]"
    assert content_suggestions(of(*[np.arange(7).tobytes()] * 2), 56, {})[0] == "int64[7]"


def write(path: Path, columns: Mapping[str, list[bytes]]) -> Path:
    schema = Schema(tuple(Feature(name, "bytes", (), True) for name in columns))
    batch = pa.record_batch(
        [pa.array(values, pa.large_binary()) for values in columns.values()], schema=to_arrow(schema)
    )
    path.write_bytes(encode(batch, schema).data.tobytes())
    return path


def test_inspect_says_it_and_assumes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = np.random.default_rng(1)
    columns = {
        "image": [image("JPEG", 30 + i, 20) for i in range(4)],
        "raw": [noise.normal(size=(5, 5)).astype("<f4").tobytes() for _ in range(4)],
        "text": [b"a", b"b", b"c", b"d"],
    }
    path = write(tmp_path / "a.tfrecord", columns)
    assert main(["inspect", str(path), "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "JPEG, 20 x 30 to 33 pixels" in text
    assert (
        "raw: always 100 bytes, which may be an array; if it is: --decode-raw 'raw=float32[5,5]'\n  or "
        "float32[25], uint8[10,10]\n" in text
    )
    assert open(path).schema["raw"] == Feature("raw", "bytes", (), True)
    assert main(["inspect", str(path), "--quiet", "--json"]) == 0
    features = {feature["name"]: feature for feature in json.loads(capsys.readouterr().out)["features"]}
    assert features["image"]["contents"] == {
        "looked_at": 4,
        "kinds": {"JPEG": 4},
        "heights": [20, 20],
        "widths": [30, 33],
    }
    assert features["raw"]["may_be"] == ["float32[5,5]", "float32[25]", "uint8[10,10]"]
    assert features["text"]["contents"] is None


def test_real_files(shared_data: Path) -> None:
    def contents(name: str, feature: str) -> Any:
        return summarise(open(shared_data / "tfrecord" / name)).features[feature].contents

    pets = contents(
        "NVIDIA+DeepLearningExamples/TensorFlow/Detection/SSD/models/research/object_detection/test_data/pets_examples.record",
        "image/encoded",
    )
    assert (pets.kinds, pets.widths, pets.heights) == ({"JPEG": 10}, (271, 500), (187, 500))
    assert contents("tensorflow+ranking/tensorflow_ranking/examples/data/eval_elwc.tfrecord", "record").kinds == {
        "ExampleListWithContext": 10
    }
    assert set(
        contents("calico+basenji/testdata/cage/tfrecord/cage10-train-00000-of-00100.tfrecord", "sequence").kinds
    ) == {"binary"}
