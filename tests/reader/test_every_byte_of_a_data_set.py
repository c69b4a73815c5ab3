"""Commands refuse a damaged data set, or return its true records.

This is true if any byte changes, and if a file is truncated.
"""

import shutil
from pathlib import Path

import pytest
from kit.data_sets import FOLDER, write_data_set
from kit.files import damaged_copies

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.verify import verify
from recordmill.storage.codecs import SHARD_SUFFIXES

pytestmark = pytest.mark.sweep

SCHEMA = Schema(
    (
        Feature("id", "int64", (), True),
        Feature("x", "float32", (None,), True),
        Feature("y", "bytes"),
    )
)
ROWS = [
    {"id": number, "x": [0.5] * number, "y": [b"abc", None, b"", b"\xff"][number]}
    for number in range(4)
]
PARTS = {
    "shard": f"{FOLDER}/train-00000-of-00001.tfrecord",
    "index": f"{FOLDER}/index/train-00000.npy",
    "manifest": "_manifests/00000001.json",
    "copy of the manifest": "manifest.json",
    "schema": "schema.pbtxt",
}


@pytest.fixture(params=SHARD_SUFFIXES)
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    columns = {name: [row[name] for row in ROWS] for name in SCHEMA.names}
    return write_data_set(
        tmp_path / "set",
        {"train": columns},
        SCHEMA,
        shards=1,
        compression=request.param,
        member_bytes=60,
    )


def file_of(out: Path, part: str) -> Path:
    if part == "members":
        return out / FOLDER / "index" / "train-00000.members.npy"
    path = out / PARTS[part]
    return path if path.exists() else next(path.parent.glob(path.name.rpartition(".")[0] + "*"))


def rows_of(out: Path) -> list[dict[str, object]] | None:
    """Returns the rows of a data set, or None if `open` refuses it.

    Checks that rows by number equal the rows of the table.
    """
    try:
        dataset = recordmill.open(out, threads=1)
        rows: list[dict[str, object]] = dataset.to_table().to_pylist()
        assert [dataset[number]["id"] for number in (3, 0)] == [rows[3]["id"], rows[0]["id"]]
    except RecordmillError:
        return None
    return rows


def find_problems(out: Path) -> list[str]:
    try:
        return [str(problem) for problem in verify(out, threads=1)]
    except RecordmillError as error:
        return [str(error)]


@pytest.mark.parametrize("part", ["shard", "index", "members"])
def test_damaged_shard_or_index_is_refused_or_read_correctly(out: Path, part: str) -> None:
    if part == "members" and not file_of(out, part).exists():
        pytest.skip("only compressed shards have a table of members")
    path = file_of(out, part)
    content = path.read_bytes()
    assert rows_of(out) == ROWS
    assert find_problems(out) == []
    for data in damaged_copies(content):
        path.write_bytes(data)
        assert rows_of(out) in (None, ROWS), data
        # A changed header of a .npy file may have the same meaning, for example with another blank.
        assert any(path.name in text for text in find_problems(out)) or (
            part != "shard" and len(data) == len(content)
        ), data


@pytest.mark.parametrize("part", ["copy of the manifest", "schema"])
def test_damaged_derived_file_is_reported_and_does_not_change_the_records(
    out: Path, part: str
) -> None:
    path = file_of(out, part)
    for data in damaged_copies(path.read_bytes(), 17):
        path.write_bytes(data)
        assert rows_of(out) == ROWS, data
        assert any(path.name in text for text in find_problems(out)), data


@pytest.mark.parametrize("part", ["shard", "index", "manifest"])
def test_read_of_damaged_files_fails_or_writes_all_records(
    out: Path, tmp_path: Path, part: str
) -> None:
    path = file_of(out, part)
    content = path.read_bytes()
    for data in damaged_copies(content, max(len(content) // 20, 1)):
        path.write_bytes(data)
        try:
            result = recordmill.read(out, tmp_path / "to", to="jsonl", threads=1, overwrite=True)
        except RecordmillError:
            continue
        assert result.read == result.written == len(ROWS), data
        shutil.rmtree(tmp_path / "to")
