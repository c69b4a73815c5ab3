"""Every reader reports damaged, truncated and missing files.

Training ends if there is no good record.
"""

import gzip
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.files import tfrecord_bytes

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import DataError
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.arrow.single_example import example

SCHEMA = Schema((Feature("x", "int64", (), True),))
PAYLOADS = [example({"x": number}) for number in range(20)]
SIZE = len(PAYLOADS[0]) + 16


def make_damaged_content(*bytes_by_record: tuple[int, int]) -> bytes:
    content = bytearray(tfrecord_bytes(PAYLOADS))
    for record, byte in bytes_by_record:
        content[record * SIZE + byte] ^= 1
    return bytes(content)


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
@pytest.mark.parametrize("schema", [SCHEMA, None])
def test_every_reader_names_the_first_damaged_record(
    tmp_path: Path, name: str, schema: Schema | None
) -> None:
    """The payload of record 3 and the header of record 9 are damaged.

    A pass over the headers alone shows only the second damage.
    """
    path, content = tmp_path / name, make_damaged_content((3, 20), (9, 2), (15, 20))
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)

    def table() -> Any:
        return recordmill.open(path, schema=schema).to_table()

    def train() -> Any:
        return list(recordmill.open(path, schema=schema).batches(4, shuffle="global"))

    def take() -> Any:
        return recordmill.open(path, schema=schema).take([15, 9, 3])

    def inspect() -> Any:
        return recordmill.inspect(path, schema=schema)

    def stats() -> Any:
        return recordmill.stats(path, schema=schema)

    def read() -> Any:
        return recordmill.read(path, tmp_path / "out", schema=schema)

    for reader in (table, train, take, inspect, stats, read):
        with pytest.raises(DataError, match=f"record 3, byte {3 * SIZE}"):
            reader()


@pytest.mark.parametrize("name", ["a.tfrecord", "part-r-00000", "a.tfrecord.gz", "data"])
@pytest.mark.parametrize("size", [SIZE - 7, 3 * SIZE + 5])
def test_statistics_of_a_truncated_file_are_an_error(tmp_path: Path, name: str, size: int) -> None:
    content = tfrecord_bytes(PAYLOADS)[:size]
    if name.endswith("gz"):
        content = gzip.compress(tfrecord_bytes(PAYLOADS))[: size // 2 + 12]
    (tmp_path / name).write_bytes(content)
    with pytest.raises((DataError, recordmill.UsageError), match=r"truncated|no end"):
        recordmill.stats(tmp_path / name)


# Examples without features, in forms that only a careless writer makes.
UNUSUAL = {
    "the features twice": b"\x0a\x00\x0a\x00",
    "a long length": b"\x0a\x80\x00",
    "nothing": b"",
}


@pytest.mark.parametrize("payload", UNUSUAL.values(), ids=UNUSUAL)
def test_record_without_features_in_an_unusual_form_is_read(tmp_path: Path, payload: bytes) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(tfrecord_bytes([*PAYLOADS[:5], payload]))
    ds = recordmill.open(path)
    assert ds.to_table()["x"].to_pylist() == [0, 1, 2, 3, 4, None]
    assert not ds.schema["x"].required
    summary = recordmill.inspect(path)
    assert (summary.records, summary.features["x"].present) == (6, 5)
    assert recordmill.read(path, tmp_path / "out").written == 6


@pytest.fixture
def incomplete(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for index in (0, 2):
        name = f"train-{index:05d}-of-00003.tfrecord"
        (folder / name).write_bytes(tfrecord_bytes(PAYLOADS[index * 5 : index * 5 + 5]))
    return folder


MISSING = "train-00001-of-00003.tfrecord"


def test_missing_shard_is_reported_by_every_command(
    incomplete: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(UserWarning, match=f"missing: .*{MISSING}"):
        assert len(recordmill.open(incomplete)) == 10
    notes = recordmill.inspect(incomplete).notes
    assert any(MISSING in note for note in notes)
    read_result = recordmill.read(incomplete, tmp_path / "read")
    assert any(MISSING in note for note in read_result.notes)
    build_result = recordmill.build(incomplete, tmp_path / "built", kind="tfrecord")
    assert any(MISSING in note for note in build_result.notes)
    (problem,) = recordmill.verify(incomplete)
    assert MISSING in problem.file
    assert main(["verify", str(incomplete)]) == 1
    assert MISSING in capsys.readouterr().out


def test_named_file_or_complete_set_causes_no_warning(incomplete: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recordmill.open(str(incomplete / "train-00000-of-00003.tfrecord"))
        (incomplete / MISSING).write_bytes(tfrecord_bytes(PAYLOADS[5:10]))
        assert len(recordmill.open(incomplete)) == 15
        assert recordmill.verify(incomplete) == []


@pytest.mark.parametrize("drop", [True, False])
def test_endless_training_without_a_good_record_is_an_error(tmp_path: Path, drop: bool) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(make_damaged_content(*((record, 20) for record in range(20))))
    ds = recordmill.open(path, schema=SCHEMA)
    batches = ds.batches(4, on_bad="skip", epochs=None, drop_remainder=drop)
    with (
        pytest.warns(UserWarning, match="20 of 20 records were skipped"),
        pytest.raises(DataError, match="an epoch had no batch of 4"),
    ):
        next(batches)
    finite = ds.batches(4, on_bad="skip", epochs=2, drop_remainder=drop)
    with pytest.warns(UserWarning, match="skipped"):
        assert list(finite) == []


def test_endless_training_continues_while_there_are_batches(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(make_damaged_content(*((record, 20) for record in range(15))))
    ds = recordmill.open(path, schema=SCHEMA)
    batches = ds.batches(4, on_bad="skip", epochs=None, drop_remainder=True)
    with pytest.warns(UserWarning, match="15 of 20 records were skipped"):
        sizes = [len(next(batches)["x"]) for _ in range(5)]
    assert sizes == [4] * 5
    assert np.all(next(batches)["x"] >= 15)
