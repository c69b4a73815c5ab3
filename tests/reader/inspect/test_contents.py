"""`inspect` recognizes the contents of binary values.

Near misses and random bytes are not mistaken for known contents.
"""

import io
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.batches import table_of
from kit.data_sets import MIXED, mixed_rows
from kit.files import tfrecord_bytes
from kit.image_samples import encode_image
from PIL import Image

from recordmill.__main__ import main
from recordmill.base.errors import DataError
from recordmill.reader.dataset import open
from recordmill.reader.inspect.contents import Contents, suggest_arrays
from recordmill.reader.inspect.summary import (
    find_conflicting_features,
    find_differences,
    summarise,
)
from recordmill.records.example.encode import encode
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.arrow.single_example import example


def count_contents(*values: bytes) -> Contents:
    return Contents.count(pa.array(values, pa.large_binary()))


def kinds(*values: bytes) -> Mapping[str, int]:
    return count_contents(*values).kinds


def image(format: str, width: int = 30, height: int = 20) -> bytes:
    return encode_image(format, Image.new("RGB", (width, height)))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "WebP", "TIFF"])
def test_images_are_recognized_with_their_sizes(format: str) -> None:
    contents = count_contents(image(format), image(format, 50, 10))
    kind = "TIFF that TensorFlow can't decode (the format)" if format == "TIFF" else format
    assert (contents.kinds, contents.widths, contents.heights) == ({kind: 2}, (30, 50), (10, 20))
    assert contents.describe() == f"{kind}, 10 to 20 x 30 to 50 pixels"


def test_truncated_image_is_reported_as_damaged() -> None:
    assert kinds(image("PNG")[:-20]) == {"PNG that is damaged (truncated)": 1}


def test_texts_and_mixed_values_are_counted() -> None:
    assert kinds("ä\n".encode()) == {"text": 1}
    contents = count_contents(b"a", b"", b"\xff\x00", None, image("PNG"))  # type: ignore[arg-type]
    assert contents.kinds == {"text": 1, "empty": 1, "binary": 1, "PNG": 1}
    assert contents.describe() == "text 1, empty 1, binary 1, PNG 1 of 4 examined, 20 x 30 pixels"


TENSORS = [
    np.ones((2, 3), np.float32),
    np.float64(2.5),
    np.zeros((0, 3), np.int32),
    np.arange(5),
    np.array([True, False]),
    np.float16([1, 2]),
    np.full(100, 7, np.uint8),
    np.array([b"a", b"bc"]),
    np.arange(12, dtype=np.uint64).reshape(2, 2, 3),
]


def test_serialized_tensors_are_recognized() -> None:
    tf = pytest.importorskip("tensorflow")
    for value in TENSORS:
        array = np.asarray(value)
        dtype = "string" if array.dtype.kind == "S" else array.dtype.name
        for payload in (
            tf.io.serialize_tensor(array).numpy(),
            tf.make_tensor_proto(array).SerializeToString(),
        ):
            assert kinds(payload) == {f"TensorProto {dtype} {list(array.shape)}": 1}
            if dtype != "string" and array.size:
                assert "TensorProto" not in str(kinds(payload[:-1], payload + b"\0"))


def test_serialized_examples_are_recognized() -> None:
    payload = encode(mixed_rows(1).combine_chunks().to_batches()[0], MIXED).payload(0).tobytes()
    assert kinds(payload) == {"Example": 1}
    # SequenceExample {feature_lists {feature_list {key: "s" value {feature {int64_list {value:
    # 1}}}}}}
    assert kinds(bytes.fromhex("120e0a0c0a017312070a051a030a0101")) == {"SequenceExample": 1}
    assert kinds(b"\x0a" + bytes([len(b := example({"x": 1}))]) + b) == {
        "ExampleListWithContext": 1
    }
    assert kinds(b"\x0a\x03\xff\xff\xff") == {"binary": 1}


def test_known_file_formats_are_recognized() -> None:
    file = io.BytesIO()
    np.save(file, np.arange(3))
    assert kinds(file.getvalue()) == {"npy": 1}
    assert kinds(b"RIFF\x24\0\0\0WAVEfmt ") == {"WAV": 1}
    assert kinds(b"\x1f\x8b\x08\0\0\0") == {"gzip": 1}


def test_random_bytes_are_binary() -> None:
    generator = random.Random(7)
    values = [generator.randbytes(generator.choice([1, 8, 40, 300])) for _ in range(3000)]
    contents = sum(
        (
            Contents.count(pa.array(values[start : start + 20], pa.large_binary()))
            for start in range(0, 3000, 20)
        ),
        Contents(),
    )
    assert contents.looked_at == 3000
    assert set(contents.kinds) <= {"binary", "text"}


def test_few_values_of_a_large_batch_are_inspected() -> None:
    values = pa.array([b"\xff"] * 1000 + [image("PNG")], pa.large_binary())
    contents = Contents.count(values)
    assert contents.looked_at < 100
    # The first and the last value are always inspected.
    assert contents.kinds["PNG"] == 1


def test_raw_arrays_are_guessed_from_length_and_values() -> None:
    generator = np.random.default_rng(1)
    floats = [generator.normal(size=(8, 8, 3)).astype("<f4").tobytes() for _ in range(5)]
    assert suggest_arrays(count_contents(*floats), 768, {}) == [
        "float32[8,8,3]",
        "float32[192]",
        "uint8[16,16,3]",
    ]
    pixels = [generator.integers(0, 256, 768, np.uint8).tobytes() for _ in range(5)]
    assert suggest_arrays(count_contents(*pixels), 768, {}) == ["uint8[16,16,3]", "uint8[768]"]
    assert suggest_arrays(count_contents(*pixels), 768, {"image/height": 8, "image/width": 32}) == [
        "uint8[8,32,3]"
    ]
    assert suggest_arrays(count_contents(*pixels, b"text"), 768, {}) == []
    assert suggest_arrays(count_contents(image("PNG")), 768, {}) == []
    doubles = [generator.normal(size=9).tobytes() for _ in range(5)]
    assert suggest_arrays(count_contents(*doubles), 72, {})[0] == "float64[9]"
    assert suggest_arrays(count_contents(*[np.arange(7).tobytes()] * 2), 56, {})[0] == "int64[7]"


def write(path: Path, columns: Mapping[str, list[Any]], schema: Schema | None = None) -> Path:
    """Writes a TFRecord file of these columns.

    If no schema is passed, all columns are bytes.
    """
    schema = schema or Schema(tuple(Feature(name, "bytes", (), True) for name in columns))
    path.write_bytes(
        tfrecord_bytes(example(row, schema) for row in table_of(columns, schema).to_pylist())
    )
    return path


def test_inspect_reports_contents_and_possible_arrays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(1)
    columns = {
        "image": [image("JPEG", 30 + i, 20) for i in range(4)],
        "raw": [generator.normal(size=(5, 5)).astype("<f4").tobytes() for _ in range(4)],
        "text": [b"a", b"b", b"c", b"d"],
    }
    path = write(tmp_path / "a.tfrecord", columns)
    assert main(["inspect", str(path), "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "JPEG, 20 x 30 to 33 pixels" in text
    assert (
        "raw: always 100 bytes. If this is an array: --decode-raw 'raw=float32[5,5]'\n  or "
        "float32[25], uint8[10,10]\n" in text
    )
    assert open(path).schema["raw"] == Feature("raw", "bytes", (), True)
    assert main(["inspect", str(path), "--quiet", "--json"]) == 0
    features = {
        feature["name"]: feature for feature in json.loads(capsys.readouterr().out)["features"]
    }
    assert features["image"]["contents"] == {
        "looked_at": 4,
        "kinds": {"JPEG": 4},
        "heights": [20, 20],
        "widths": [30, 33],
    }
    assert features["raw"]["may_be"] == ["float32[5,5]", "float32[25]", "uint8[10,10]"]
    assert features["text"]["contents"] is None


INTS = Schema(
    (
        Feature("n", "int64"),
        Feature("x", "int64", (), True),
        Feature("xs", "float32", (None,), True),
    )
)
TEXTS = Schema(
    (
        Feature("n", "int64"),
        Feature("x", "string", (), True),
        Feature("xs", "float32", (None,), True),
    )
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Writes two files with conflicts and differences.

    `x` is a number in a and a text in b. `n` is missing in record 1 of b. `xs` has 2 values, but 5
    in record 2 of a.
    """
    source = tmp_path / "in"
    source.mkdir()
    ints = {"n": [1, 2, 3, 4], "x": [1, 2, 3, 4], "xs": [[1, 2], [1, 2], [1, 2, 3, 4, 5], [1, 2]]}
    write(source / "a.tfrecord", ints, INTS)
    write(
        source / "b.tfrecord",
        {"n": [5, None, None], "x": ["a", "b", "c"], "xs": [[1, 2]] * 3},
        TEXTS,
    )
    return source


def test_conflicting_kinds_are_reported_with_their_places(folder: Path) -> None:
    ds = open(folder)
    assert ds.records.open_files.inference is not None
    assert find_conflicting_features(ds.records.open_files.inference) == {"x"}
    kinds, lengths = find_differences(ds.records.open_files.inference)
    assert (
        str(kinds)
        == "x: int64 in 4 records, first a.tfrecord record 0; bytes in 3 records, first b.tfrecord record 0"
    )
    assert kinds.conflict
    assert str(lengths) == "xs: 2 values in a.tfrecord record 0, 5 values in a.tfrecord record 2"
    assert not lengths.conflict
    with pytest.raises(DataError, match="no schema fits"):
        ds.to_table()


def test_inspect_shows_conflicts_and_differences(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(folder), "--quiet"]) == 0
    text = capsys.readouterr().out
    assert ["x", "conflict", "int64,", "bytes", "see", "below"] in [
        line.split() for line in text.splitlines()
    ]
    assert (
        "no schema fits all records:\n  x: int64 in 4 records, first a.tfrecord record 0; bytes in 3 "
        "records, first b.tfrecord record 0\n" in text
    )
    assert "  n: missing in 2 of 7 records, first b.tfrecord record 1\n" in text
    assert "length 2 to 5" in text
    assert main(["inspect", str(folder), "--quiet", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["conflicts"] == {"x": {"int64": 4, "bytes": 3}}
    assert [feature["name"] for feature in output["features"]] == ["n", "xs"]
    places = {
        (finding["feature"], finding["what"]): finding["places"] for finding in output["findings"]
    }
    assert places == {
        ("x", "kinds"): [{"file": "a.tfrecord", "record": 0}, {"file": "b.tfrecord", "record": 0}],
        ("xs", "lengths"): [
            {"file": "a.tfrecord", "record": 0},
            {"file": "a.tfrecord", "record": 2},
        ],
        ("n", "presence"): [{"file": "b.tfrecord", "record": 1}],
    }


def test_equal_records_have_no_differences_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.tfrecord", {"n": [1, 2], "x": [1, 2], "xs": [[1], [2]]}, INTS)
    assert main(["inspect", str(tmp_path), "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "no schema fits" not in text
    assert "differs" not in text


def test_infer_from_inspects_only_its_records(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not find_differences(open(folder, infer_from="1file").records.open_files.inference)[
        0
    ].conflict  # type: ignore[arg-type]
    assert find_differences(open(folder, infer_from=2).records.open_files.inference)[0].conflict  # type: ignore[arg-type]
    ds = open(folder / "a.tfrecord", infer_from=2)
    assert ds.schema["xs"].shape == (2,)
    # The schema of the sample does not fit record 2.
    with pytest.raises(DataError, match="record 2"):
        ds.to_table()
    summary = summarise(open(folder, infer_from=3).records.open_files)
    assert (summary.looked_at, summary.records, summary.sampled) == (
        3,
        7,
        "the first records of each of 2 files",
    )
    assert main(["inspect", str(folder), "--infer-from", "1files", "--quiet"]) == 0
    assert (
        "this is based on 4 records only (--infer-from): 1 of 2 files, evenly spaced\n"
        in capsys.readouterr().out
    )
