"""TFRecords as tutorials write them, each case read by the command, by `recordmill.read` and by `recordmill.open`: what
went in comes out.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from PIL import Image

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import DataError, UsageError
from recordmill.reader import open_columns
from recordmill.records.columns.ragged import Ragged

tf = pytest.importorskip("tensorflow", reason="the tutorials write with TensorFlow")

Array = npt.NDArray[Any]
Reader = Callable[..., Mapping[str, Any]]


def _bytes_feature(value: bytes) -> Any:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _float_feature(values: Iterable[float]) -> Any:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def _int64_feature(values: Iterable[int]) -> Any:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def write(path: Path, examples: Iterable[Mapping[str, Any]], compression: str = "") -> Path:
    """The tutorials' loop."""
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for features in examples:
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return path


def by_function(path: Path, out: Path, *flags: str) -> Mapping[str, Any]:
    """The columns by `recordmill.read`, whose options are the command's flags."""
    options: dict[str, Any] = {"decode_raw": [], "decode_tensor": [], "reshape": [], "pad": [], "pad_or_cut": []}
    for flag, value in zip(flags[::2], flags[1::2], strict=True):
        name = flag.removeprefix("--").replace("-", "_")
        options[name] = [*options[name], value] if isinstance(options.get(name), list) else value
    result = recordmill.read(path, out, to="npy", **options)
    assert result.read == result.written
    return open_columns(result.paths[0])


def by_command(path: Path, out: Path, *flags: str) -> Mapping[str, Any]:
    """The columns by the command line."""
    assert main(["read", str(path), "--out", str(out), "--to", "npy", "--quiet", *flags]) == 0
    return open_columns(out / "data")


@pytest.fixture(params=[by_function, by_command])
def read(request: pytest.FixtureRequest) -> Reader:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=["", "GZIP"])
def compression(request: pytest.FixtureRequest) -> str:
    return str(request.param)


random = np.random.default_rng(4)


def encoded(image: Array, kind: str) -> bytes:
    data: bytes = (tf.io.encode_png(image) if kind == "png" else tf.io.encode_jpeg(image, quality=95)).numpy()
    return data


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_images_and_labels(tmp_path: Path, read: Reader, compression: str, kind: str) -> None:
    images, labels = random.integers(0, 256, (30, 20, 28, 3), np.uint8), random.integers(0, 10, 30)
    files = [encoded(image, kind) for image in images]
    rows = [
        {"image": _bytes_feature(data), "label": _int64_feature([label])}
        for data, label in zip(files, labels, strict=True)
    ]
    path = write(tmp_path / "images.tfrecord", rows, compression)
    found = read(path, tmp_path / "out", "--decode-images", "image")
    wanted = images if kind == "png" else np.stack([np.asarray(Image.open(io.BytesIO(data))) for data in files])
    assert found["image"].shape == (30, 20, 28, 3)
    assert found["image"].dtype == np.uint8
    assert np.array_equal(found["image"], wanted)
    assert np.array_equal(found["label"], labels)
    assert found["label"].shape == (30,)
    opened = recordmill.open(path).to_numpy()
    assert list(opened["image"]) == files
    assert np.array_equal(opened["label"], labels)


def test_images_of_several_sizes(tmp_path: Path, read: Reader) -> None:
    images = [random.integers(0, 256, (10 + i, 30 - i, 3), np.uint8) for i in range(5)]
    path = write(tmp_path / "images.tfrecord", [{"image": _bytes_feature(encoded(image, "png"))} for image in images])
    assert read(path, tmp_path / "out", "--decode-images", "image", "--resize", "16x24")["image"].shape == (
        5, 16, 24, 3,
    )  # fmt: skip
    table = pq.read_table(recordmill.read(path, tmp_path / "table", decode_images=True).paths[0])
    assert all(np.array_equal(row, image) for row, image in zip(_pixels(table["image"]), images, strict=True))
    with pytest.raises(UsageError, match="resize="):
        recordmill.read(path, tmp_path / "x", to="npy", decode_images=True)


def _pixels(column: Any) -> list[Array]:
    return [np.array(row, np.uint8).reshape(len(row), -1, 3) for row in column.to_pylist()]


LENGTHS = (3, 0, 7, 1, 12, 5)


@pytest.mark.parametrize("make", [_int64_feature, _float_feature, None], ids=["int64", "float", "bytes"])
def test_sequences_of_any_length(tmp_path: Path, read: Reader, compression: str, make: Any) -> None:
    if make is None:
        sequences: list[list[Any]] = [[b"\xff" * (i + 1) for i in range(length)] for length in LENGTHS]
        rows = [{"tokens": tf.train.Feature(bytes_list=tf.train.BytesList(value=sequence))} for sequence in sequences]
    else:
        sequences = [list(range(length)) for length in LENGTHS]
        rows = [{"tokens": make(sequence)} for sequence in sequences]
    path = write(tmp_path / "sequences.tfrecord", rows, compression)
    for tokens in (read(path, tmp_path / "ragged")["tokens"], recordmill.open(path).to_numpy()["tokens"]):
        assert isinstance(tokens, Ragged)
        assert [list(row) for row in tokens.to_list()] == sequences
    if make is not None:
        padded = [sequence + [-1] * (15 - len(sequence)) for sequence in sequences]
        assert read(path, tmp_path / "padded", "--pad", "tokens=15:-1")["tokens"].tolist() == padded
        assert tokens.to_padded(15, -1).tolist() == padded
        cut = [row[:4] for row in padded]
        assert read(path, tmp_path / "cut", "--pad-or-cut", "tokens=4:-1")["tokens"].tolist() == cut
        assert tokens.to_padded(4, -1).tolist() == cut
        with pytest.raises(
            DataError, match=r"record 2, byte \d+.*: feature 'tokens': 7 items, more than the 6 to pad to"
        ):
            recordmill.read(path, tmp_path / "x", to="npy", pad="tokens=6:-1")


def test_mixed_features(tmp_path: Path, read: Reader, compression: str) -> None:
    floats, boxes = random.random((25, 5), np.float32), random.random((25, 4), np.float32)
    images = random.integers(0, 256, (25, 12, 12, 3), np.uint8)
    rows = [
        {"floats": _float_feature(f), "image": _bytes_feature(encoded(i, "png")), "box": _float_feature(b)}
        for f, i, b in zip(floats, images, boxes, strict=True)
    ]
    path = write(tmp_path / "mixed.tfrecord", rows, compression)
    found = read(path, tmp_path / "out", "--decode-images", "image")
    for name, wanted in {"floats": floats, "image": images, "box": boxes}.items():
        assert found[name].dtype == wanted.dtype
        assert np.array_equal(found[name], wanted), name
    opened = recordmill.open(path)
    assert np.array_equal(opened.to_numpy()["floats"], floats)
    assert np.array_equal(opened[7]["box"], boxes[7])
    assert np.array_equal(np.concatenate([batch["box"] for batch in opened.batches(8, shuffle=False)]), boxes)


def test_a_varying_number_of_boxes(tmp_path: Path, read: Reader, compression: str) -> None:
    boxes = [random.random((count, 4), np.float32) for count in (2, 0, 1, 5)]
    path = write(
        tmp_path / "boxes.tfrecord", [{"boxes": _float_feature(box.reshape(-1))} for box in boxes], compression
    )
    found = read(path, tmp_path / "out", "--reshape", "boxes=[-1,4]")["boxes"].to_list()
    assert [row.shape for row in found] == [box.shape for box in boxes]
    assert all(np.array_equal(row, box) for row, box in zip(found, boxes, strict=True))
    opened = recordmill.open(path).to_numpy()["boxes"].to_list()
    assert all(np.array_equal(row.reshape(-1, 4), box) for row, box in zip(opened, boxes, strict=True))
    table = pq.read_table(recordmill.read(path, tmp_path / "table", reshape="boxes=[-1,4]").paths[0])
    assert table["boxes"].to_pylist() == [box.tolist() for box in boxes]


def test_an_image_and_a_label_as_raw_floats(tmp_path: Path, read: Reader, compression: str) -> None:
    images, labels = random.random((20, 8, 9, 3), np.float32), random.random(20, np.float32)
    rows = [
        {"image": _bytes_feature(x.tobytes()), "label": _bytes_feature(y.tobytes())}
        for x, y in zip(images, labels, strict=True)
    ]
    path = write(tmp_path / "raw.tfrecord", rows, compression)
    found = read(path, tmp_path / "out", "--decode-raw", "image=float32[8,9,3]", "--decode-raw", "label=float32")
    assert np.array_equal(found["image"], images)
    assert np.array_equal(found["label"], labels)
    opened = recordmill.open(path).to_numpy()
    assert np.array_equal(np.frombuffer(b"".join(opened["image"]), "<f4").reshape(-1, 8, 9, 3), images)
    path = write(
        tmp_path / "serialized.tfrecord",
        [{"image": _bytes_feature(tf.io.serialize_tensor(x).numpy())} for x in images],
        compression,
    )
    assert np.array_equal(read(path, tmp_path / "tensors", "--decode-tensor", "image")["image"], images)


def test_globs_shards_and_gzip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"train-{i:05d}-of-00003.tfrecord" for i in range(3)]
    for i, name in enumerate(names):
        write(
            tmp_path / name, [{"id": _int64_feature([j])} for j in range(10 * i, 10 * i + 10)], "GZIP" if i % 2 else ""
        )
    write(
        tmp_path / "validation-00000-of-00001.tfrecord.gz", [{"id": _int64_feature([j])} for j in range(30, 34)], "GZIP"
    )
    (tmp_path / "README.md").write_text("not a TFRecord")
    (tmp_path / "list.txt").write_text("".join(f"{tmp_path / name}\n" for name in names))
    train = list(range(30))
    for inputs in (str(tmp_path / "train-*"), [tmp_path / name for name in names], f"@{tmp_path / 'list.txt'}"):
        assert recordmill.open(inputs).to_numpy()["id"].tolist() == train
    both = recordmill.open(tmp_path)
    assert both.splits == ("train", "validation")
    assert len(both) == 34
    assert recordmill.open(str(tmp_path / "*.tfrecord*"), split="validation").to_table()["id"].to_pylist() == [
        30, 31, 32, 33,
    ]  # fmt: skip
    assert main(["read", str(tmp_path / "*.tfrecord*"), "--out", str(tmp_path / "out")]) == 0
    assert "34 records to parquet" in capsys.readouterr().err
    assert pq.read_table(tmp_path / "out" / "train-00000-of-00001.parquet")["id"].to_pylist() == train
    assert pq.read_table(tmp_path / "out" / "validation-00000-of-00001.parquet")["id"].to_pylist() == [30, 31, 32, 33]


ROWS, SIDE = 320, 512  # of 1 MiB each

# Reads a set of 320 MiB after a small one of the same kind, and prints by how many bytes the peak of memory grew.
_MEASURED = """
import re, sys
from pathlib import Path
import numpy as np
import recordmill

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

def read(way, path, out):
    if way == "read":
        recordmill.read(path, out, to="npy", decode_raw="matrix=float32[512,512]", memory="256MiB")
        return np.load(Path(out, "data", "matrix.npy"), mmap_mode="r")
    if way == "memmap":
        found = recordmill.open(path, threads=2).to_numpy(memmap_dir=out)["matrix"]
        return found.values.view("<f4").reshape(-1, 512, 512)
    firsts = []
    for batch in recordmill.open(path, threads=2).batches(16, shuffle=False, memory_bytes=64 << 20):
        firsts.append(np.frombuffer(b"".join(batch["matrix"]), "<f4").reshape(-1, 512, 512)[:, 0, :1].copy())
    return np.concatenate(firsts)[:, :, None]

way, small, large, out = sys.argv[1:]
read(way, small, out + "-small")
before = peak()
found = read(way, large, out)
grown = peak() - before
assert [int(found[i, 0, 0]) for i in range(len(found))] == list(range(320)), found.shape
print(grown)
"""


@pytest.mark.sweep
@pytest.mark.memory
def test_matrices_larger_than_memory(tmp_path: Path) -> None:
    matrix = np.zeros((SIDE, SIDE), np.float32)

    def rows(count: int) -> Iterable[Mapping[str, Any]]:
        for i in range(count):
            matrix[0, 0] = i
            yield {"matrix": _bytes_feature(matrix.tobytes())}

    small, large = write(tmp_path / "small.tfrecord", rows(8)), write(tmp_path / "large.tfrecord", rows(ROWS))
    assert large.stat().st_size > 300 << 20
    for way in ("read", "memmap", "batches"):
        command = [sys.executable, "-c", _MEASURED, way, str(small), str(large), str(tmp_path / way)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "MALLOC_ARENA_MAX": "2"}
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert int(done.stdout) < 192 << 20, (way, int(done.stdout) >> 20)


def test_matrices_by_batches_and_by_rows(tmp_path: Path, read: Reader, compression: str) -> None:
    matrices = random.random((50, 16, 8), np.float32)
    path = write(
        tmp_path / "matrices.tfrecord", [{"matrix": _bytes_feature(m.tobytes())} for m in matrices], compression
    )
    found = read(path, tmp_path / "out", "--decode-raw", "matrix=float32[16,8]")["matrix"]
    assert isinstance(found, np.memmap)
    assert np.array_equal(found, matrices)
    ds = recordmill.open(path)
    sizes = []
    for batch in ds.batches(16, shuffle=False, memory_bytes=64 << 20):
        part = np.frombuffer(b"".join(batch["matrix"]), "<f4").reshape(-1, 16, 8)
        assert np.array_equal(part, matrices[sum(sizes) : sum(sizes) + len(part)])
        sizes.append(len(part))
    assert sizes == [16, 16, 16, 2]
    assert [batch.num_rows for batch in ds.to_batches(20)] == [20, 20, 10]
    on_disk = ds.to_numpy(memmap_dir=tmp_path / "memmap")["matrix"]
    assert np.array_equal(on_disk.values.view("<f4").reshape(-1, 16, 8), matrices)
