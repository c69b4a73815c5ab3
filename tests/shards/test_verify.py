"""`verify` finds every change of a data set, and names its file and place.

It finds nothing in an intact data set.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from kit.data_sets import FOLDER, mixed_rows, write_data_set
from kit.files import flip, tfrecord_bytes

from recordmill.base.errors import RecordmillError, UsageError
from recordmill.base.progress import ProgressUpdate
from recordmill.shards.verify import Problem, verify
from recordmill.storage.codecs import SHARD_SUFFIXES

ROWS = 60
COMPRESSIONS = [name for name in SHARD_SUFFIXES if name != "none"]


@pytest.fixture(params=SHARD_SUFFIXES)
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_data_set(
        tmp_path / "out",
        {"train": mixed_rows(ROWS), "test": mixed_rows(5)},
        shards=2,
        compression=request.param,
    )


def shard(out: Path) -> Path:
    return sorted((out / FOLDER).glob("train-00001*"))[0]


def index(out: Path) -> Path:
    return out / FOLDER / "index" / "train-00001.npy"


def problems(out: Path) -> dict[str, str]:
    return {finding.file: finding.problem for finding in verify(out, threads=2)}


def test_intact_data_set_has_no_problems_and_every_record_is_checked(out: Path) -> None:
    updates: list[ProgressUpdate] = []
    assert verify(out, progress=updates.append) == []
    assert updates[-1].done == updates[-1].total == ROWS + 5


def test_flipped_byte_of_a_shard_is_found(out: Path) -> None:
    data = shard(out).read_bytes()
    for position in range(0, len(data), max(len(data) // 50, 1)):
        shard(out).write_bytes(
            data[:position] + bytes([data[position] ^ 16]) + data[position + 1 :]
        )
        assert str(shard(out)) in problems(out), position


def test_truncated_or_missing_shard_is_found(out: Path) -> None:
    path = shard(out)
    data = path.read_bytes()
    for size in (0, 5, 12, len(data) // 2, len(data) - 9, len(data) - 1):
        path.write_bytes(data[:size])
        findings = verify(out)
        assert any(
            finding.file == str(path) and f"has {size} bytes where" in finding.problem
            for finding in findings
        )
    path.unlink()
    assert problems(out) == {str(path): "is missing; the manifest names it"}


def test_damaged_record_is_reported_with_its_place(tmp_path: Path) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(ROWS)}, shards=2)
    offset = int(np.load(index(out))["offset"][11])
    flip(shard(out), offset + 15)
    places = {finding.place for finding in verify(out)}
    assert f"record 11, byte {offset}" in places


def edit_manifest(out: Path, name: str, value: object) -> None:
    path = out / "_manifests" / "00000001.json"
    document = json.loads(path.read_text())
    document["parts"][0]["splits"]["train"][1][name] = value
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("sum", "0" * 16, "sum of its records is"),
        ("digest", f"blake3:{0:064x}", "the digest is"),
        ("records", 29, "holds 30 records"),
    ],
)
def test_manifest_that_differs_from_the_shard_is_found(
    out: Path, name: str, value: object, problem: str
) -> None:
    edit_manifest(out, name, value)
    assert problem in problems(out)[str(shard(out))]


def test_swapped_keys_of_an_index_are_found_by_the_checksum(out: Path) -> None:
    table = np.load(index(out))
    table["key"][[3, 4]] = table["key"][[4, 3]]
    np.save(index(out), table)
    assert "sum of its records is" in problems(out)[str(shard(out))]


@pytest.mark.parametrize("field", ["offset", "length"])
def test_wrong_entry_of_an_index_is_found_at_its_record(out: Path, field: str) -> None:
    table = np.load(index(out))
    table[field][7] += 1
    np.save(index(out), table)
    findings = [finding for finding in verify(out) if finding.file == str(index(out))]
    assert [finding.place for finding in findings] == ["record 7"]


def test_short_missing_or_invalid_index_is_found(out: Path) -> None:
    entries = np.load(index(out))
    np.save(index(out), entries[:-1])
    assert "lists 29 records where the manifest says 30" in problems(out)[str(index(out))]
    index(out).write_bytes(b"nonsense")
    assert "is not an index" in problems(out)[str(index(out))]
    index(out).unlink()
    assert problems(out)[str(index(out))] == "is missing; the manifest names it"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_wrong_member_table_is_found(tmp_path: Path, compression: str) -> None:
    out = write_data_set(
        tmp_path / "out", {"train": mixed_rows(ROWS)}, shards=2, compression=compression
    )
    path = out / FOLDER / "index" / "train-00001.members.npy"
    entries = np.load(path)
    assert len(entries) > 3
    for field, change in (("compressed", 1), ("uncompressed", 1), ("compressed", 10**9)):
        table = entries.copy()
        table[field][2] += change
        np.save(path, table)
        assert str(path) in problems(out), (field, change)


def test_stray_files_are_reported(out: Path) -> None:
    (out / FOLDER / "train-00007-of-00008.tfrecord").write_bytes(b"")
    (out / FOLDER / "index" / "old.npy").write_bytes(b"")
    (out / "data-dead").mkdir()
    (out / FOLDER / "inputs.jsonl").write_text("")
    assert set(problems(out)) == {
        str(out / FOLDER / "train-00007-of-00008.tfrecord"),
        str(out / FOLDER / "index" / "old.npy"),
        str(out / "data-dead"),
    }


def test_changed_derived_files_are_reported_and_mended(out: Path) -> None:
    (out / "manifest.json").write_text("{}")
    (out / "schema.pbtxt").unlink()
    assert problems(out) == {
        str(out / "manifest.json"): "differs from what the manifest says",
        str(out / "schema.pbtxt"): "is missing",
    }
    findings = verify(out, mend=True)
    assert len(findings) == 2
    assert all(finding.mended for finding in findings)
    assert verify(out) == []


def test_verify_checks_plain_tfrecord_files(out: Path, tmp_path: Path) -> None:
    copy = tmp_path / f"copy{''.join(shard(out).suffixes)}"
    data = shard(out).read_bytes()
    copy.write_bytes(data)
    assert verify(copy) == []
    copy.write_bytes(data[:-3])
    (finding,) = verify(copy)
    assert finding.file == str(copy)
    assert "truncated" in finding.problem
    assert str(Problem("a", "record 1", "is bad")) == "a: record 1: is bad"
    with pytest.raises(UsageError, match="itself a data set"):
        verify([out, copy])
    with pytest.raises(RecordmillError):
        verify(tmp_path / "nothing")


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_each_damaged_record_of_a_file_is_reported(tmp_path: Path, compression: str) -> None:
    payloads = [b"record %03d" % number for number in range(300)]
    content = bytearray(tfrecord_bytes(payloads))
    size = len(content) // len(payloads)
    damaged_records = [3, 7, *range(100, 250)]
    for record in damaged_records:
        content[record * size + 12] ^= 1  # the first byte of the payload
    path = tmp_path / "a.tfrecord"
    path.write_bytes(content if compression == "none" else gzip.compress(bytes(content)))
    updates: list[ProgressUpdate] = []
    *findings, summary = verify(path, progress=updates.append)
    places = [problem.place.removesuffix(" of the uncompressed data") for problem in findings]
    assert places == [f"record {record}, byte {record * size}" for record in damaged_records[:100]]
    assert summary.problem == "52 more records can't be read"
    assert updates[-1].done == len(payloads) - len(damaged_records)


def test_shared_files_have_no_problem_but_missing_shards(
    shared_data: Path,
) -> None:
    problems = verify(shared_data / "tfrecord")
    assert {finding.problem for finding in problems} == {
        "is missing; the names of the other shards count it"
    }
    # Only one of a hundred shards was copied.
    assert {Path(finding.file).parents[2].name for finding in problems} == {"testdata"}
    assert len(problems) == 99
