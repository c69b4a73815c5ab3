"""TFRecords as tutorials write them, by the command, `recordmill.read` and `recordmill.open`: in is out."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import run_python

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import DataError
from recordmill.reader import open_columns
from recordmill.records.columns.ragged import Ragged

tf = pytest.importorskip("tensorflow", reason="the tutorials write with TensorFlow")


def _bytes_feature(values: Iterable[bytes]) -> Any:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


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


def read(path: Path, out: Path, *flags: str) -> Mapping[str, Any]:
    """The columns by the command line."""
    assert main(["read", str(path), "--out", str(out), "--to", "npy", "--quiet", *flags]) == 0
    return open_columns(out / "data")


LENGTHS = (3, 0, 7, 1, 12, 5)


@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize("make", [_int64_feature, _float_feature, _bytes_feature])
def test_sequences_of_any_length(tmp_path: Path, compression: str, make: Any) -> None:
    sequences = [[b"\xff" * (i + 1) if make is _bytes_feature else i for i in range(length)] for length in LENGTHS]
    path = write(tmp_path / "sequences.tfrecord", [{"tokens": make(row)} for row in sequences], compression)
    for tokens in (read(path, tmp_path / "ragged")["tokens"], recordmill.open(path).to_numpy()["tokens"]):
        assert isinstance(tokens, Ragged)
        assert [list(row) for row in tokens.to_list()] == sequences
    if make is not _bytes_feature:
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
            yield {"matrix": _bytes_feature([matrix.tobytes()])}

    small, large = write(tmp_path / "small.tfrecord", rows(8)), write(tmp_path / "large.tfrecord", rows(ROWS))
    assert large.stat().st_size > 300 << 20
    for way in ("read", "memmap", "batches"):
        words = ("-c", _MEASURED, way, small, large, tmp_path / way)
        done = run_python(*words, check=False, env={**os.environ, "MALLOC_ARENA_MAX": "2"})
        assert done.returncode == 0, done.stderr[-2000:]
        assert int(done.stdout) < 192 << 20, (way, int(done.stdout) >> 20)
