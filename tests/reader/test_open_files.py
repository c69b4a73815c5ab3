"""TFRecord files of other programs open without options.

See also tests/pipelines/test_foreign_parquet.py.
"""

import gzip
from pathlib import Path

import numpy as np
import pytest
from kit.data_sets import MIXED, mixed_rows, plain_file
from kit.runs import run_python

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.dataset import Dataset, open
from recordmill.reader.mixture import mixture
from recordmill.records.example.encode import encode
from recordmill.records.tfrecord.frames import Frames, frame_payloads


def test_several_foreign_files_open_with_an_inferred_schema(tmp_path: Path) -> None:
    for i in range(3):
        plain_file(tmp_path / f"p{i}.tfrecord", 10, 10 * i)
    (tmp_path / "LICENSE").write_text("no TFRecord")
    ds = open(tmp_path)
    assert "LICENSE" in ds.records.catalog.notes[0]
    assert ds.to_table()["id"].to_pylist() == list(range(30))
    assert ds.schema["id"].required
    assert not ds.schema["maybe"].required
    assert ds.schema["tokens"].ragged_rank == 1
    assert open([tmp_path / "p1.tfrecord", tmp_path / "p0.tfrecord"]).to_table()[
        "id"
    ].to_pylist() == [
        *range(10, 20),
        *range(10),
    ]


def test_empty_files_are_noted(tmp_path: Path) -> None:
    plain_file(tmp_path / "a.tfrecord", 3)
    for name in ("b.tfrecord", "_SUCCESS"):
        (tmp_path / name).touch()
    ds = open(tmp_path)
    assert len(ds) == 3
    assert ds.records.catalog.notes == (
        "ignored 1 marker: _SUCCESS",
        "empty files, which have no records (1): b.tfrecord",
    )


def test_file_that_is_not_tfrecord_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello, this is text\n" * 10)
    with pytest.raises(DataError, match="no TFRecord file"):
        open(tmp_path)
    with pytest.raises(
        DataError, match=r"a.txt: this is not a TFRecord file: .*; `recordmill build csv "
    ):
        open(tmp_path / "a.txt")


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_fingerprint_depends_on_the_content_not_on_the_folder(
    tmp_path: Path, compression: str
) -> None:
    def open_folder(folder: str, change: bool = False) -> Dataset:
        (tmp_path / folder).mkdir()
        path = plain_file(tmp_path / folder / "a.tfrecord")
        data = encode(next(iter(mixed_rows(50).to_batches())), MIXED)
        # Changes a byte of the last record, and its CRC. Names, counts and sizes stay the same.
        if change:
            data.data[int(data.starts[-1]) + 30] ^= 1
            data = reframe(data)
        content = data.data.tobytes()
        path.write_bytes(content if compression == "none" else gzip.compress(content, 0, mtime=0))
        return open(tmp_path / folder, schema=MIXED)

    original, moved_set, changed_set = (
        open_folder("one"),
        open_folder("moved"),
        open_folder("other", change=True),
    )
    assert changed_set.records.catalog.size_bytes == original.records.catalog.size_bytes
    assert len(changed_set) == len(original)
    assert original.fingerprint == moved_set.fingerprint != changed_set.fingerprint
    state = original.batches(8).state()
    assert moved_set.batches(8, state=state).state() == state
    with pytest.raises(UsageError, match="another data set"):
        changed_set.batches(8, state=state)
    assert len(mixture([(original, 1), (changed_set, 1)])) == 100
    with pytest.raises(UsageError, match="twice"):
        mixture([(original, 1), (moved_set, 1)])


def reframe(frames: Frames) -> Frames:
    """Returns frames of the current payloads, with correct CRCs."""
    payloads = [frames.payload(row) for row in range(len(frames))]
    return frame_payloads(np.concatenate(payloads), np.cumsum([0, *map(len, payloads)]))


COUNT_OPENS = """
import sys
import recordmill
from recordmill.schemas.feature import Feature, Schema

path, max_rejects = sys.argv[1], int(sys.argv[2])
opened = []
sys.addaudithook(lambda event, args: event == "open" and args[0] == path and opened.append(path))
schema = Schema((Feature("id", "int64"),))
records = recordmill.inspect(path, schema=schema, max_rejects=max_rejects).records
print(records, len(opened))
"""


def test_inspect_decompresses_a_file_with_a_known_schema_once(tmp_path: Path) -> None:
    path = str(tmp_path / "a.tfrecord.gz")
    Path(path).write_bytes(gzip.compress(plain_file(tmp_path / "a.tfrecord").read_bytes()))
    # With `max_rejects`, records have always been counted while they were read.
    strict, lenient = (
        run_python("-c", COUNT_OPENS, path, limit).stdout.split() for limit in ("0", "1")
    )
    assert strict == lenient
    assert strict[0] == "50"
