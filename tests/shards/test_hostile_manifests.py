"""A hostile manifest is refused in one sentence with the file and the field.

Nothing outside OUT is touched.
"""

import contextlib
import json
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.data_sets import FOLDER, mixed_rows, write_data_set

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.shards.catalog import catalog_inputs
from recordmill.shards.manifest import load_manifest
from recordmill.storage.codecs import find_codec
from recordmill.storage.files import read_range
from recordmill.storage.json_fields import parse_json

PART = ("parts", 0)
SHARD = (*PART, "splits", "train", 0)
Path_ = tuple[Any, ...]

BAD: dict[str, tuple[Path_, Any]] = {  # by name: the field, and its value
    "name is a number": (("name",), 5),
    "name of several lines": (("name",), "a\nb"),
    "options are a list": (("options",), []),
    "compression is unknown": (("compression",), "zip"),
    "schema is a number": (("schema",), 1),
    "version is text": (("version",), "10"),
    "version of one": (("version",), [1]),
    "parts is empty": (("parts",), []),
    "parts is an object": (("parts",), {}),
    "a part is text": (PART, "x"),
    "rejects is null": (("rejects",), None),
    "rejects.count": (("rejects",), {"count": -1}),
    "rejects.reasons": (("rejects",), {"reasons": {"x": "1"}}),
    "rejects.files": (("rejects",), {"files": ["../../etc/passwd"]}),
    "rejects.files absolute": (("rejects",), {"files": ["/etc/passwd"]}),
    "notes are numbers": (("statistics",), {"notes": [1]}),
    "run.id is a number": (("run",), {"id": 5}),
    "folder is above": ((*PART, "folder"), "../../victim"),
    "folder is absolute": ((*PART, "folder"), "/victim"),
    "folder is the root": ((*PART, "folder"), "."),
    "folder is a run": ((*PART, "folder"), "_run-x"),
    "folder with NUL": ((*PART, "folder"), "data-a\0b"),
    "folder with an end of line": ((*PART, "folder"), "data-a\n"),
    "folder is empty": ((*PART, "folder"), ""),
    "folder in other digits": ((*PART, "folder"), "data-\u0663"),
    "kind is missing": ((*PART, "kind"), ...),
    "splits is a list": ((*PART, "splits"), []),
    "a split is above": ((*PART, "splits"), {"../../../victim": []}),
    "a split of many letters": ((*PART, "splits"), {"x" * 5000: []}),
    "a split is a list of numbers": ((*PART, "splits", "train"), [1]),
    "records_read is half": ((*PART, "records_read"), 0.5),
    "shard is above": ((*SHARD, "name"), "../train-00000-of-00002.tfrecord"),
    "shard of another split": ((*SHARD, "name"), "test-00000-of-00002.tfrecord"),
    "shard behind the last": ((*SHARD, "name"), "train-00002-of-00002.tfrecord"),
    "shard twice": ((*SHARD, "name"), "train-00001-of-00002.tfrecord"),
    "records is text": ((*SHARD, "records"), "4"),
    "records is true": ((*SHARD, "records"), True),
    "records is negative": ((*SHARD, "records"), -1),
    "records is huge": ((*SHARD, "records"), 10**30),
    "framed_bytes are more than the file can hold": ((*SHARD, "framed_bytes"), 2**36),
    "records are more than the file can hold": ((*SHARD, "records"), 10**5),
    "records add up to more": ((*SHARD, "records"), 2**63 - 1),
    "bytes is missing": ((*SHARD, "bytes"), ...),
    "framed_bytes is null": ((*SHARD, "framed_bytes"), None),
    "digest is short": ((*SHARD, "digest"), "blake3:00"),
    "digest of nobody": ((*SHARD, "digest"), f"md5:{0:064x}"),
    "digest has no algorithm": ((*SHARD, "digest"), "0" * 64),
    "digest is missing": ((*SHARD, "digest"), ...),
    "sum is a number": ((*SHARD, "sum"), 5),
    "schema is no schema": (("schema",), "feature { name: }"),
    "schema of a shape of text": (
        ("schema",),
        'feature { name: "x" type: INT annotation { tag: "recordmill:shape=[\\"a\\"]" } }',
    ),
}
RAW: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"{",
    "not UTF-8": b'{"format": "\xff"}',
    "a list": b"[]",
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "NaN": b'{"format": "recordmill", "version": [1, 0], "name": NaN}',
    "a number of many digits": b'{"format": "recordmill", "version": [1, ' + b"9" * 10_000 + b"]}",
    "a key twice": b'{"format": "recordmill", "format": "recordmill", "version": [1, 0]}',
}


@pytest.fixture(scope="module")
def intact_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    return write_data_set(root / "set", {"train": mixed_rows(12), "test": mixed_rows(3)}, shards=2)


@pytest.fixture
def out(intact_set: Path, tmp_path: Path) -> Path:
    """A data set with a neighbour that nothing may touch."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "thesis.tex").write_text("mine")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n")
    return Path(shutil.copytree(intact_set, tmp_path / "deep" / "out"))


def edit(out: Path, field: Path_, value: Any) -> None:
    path = out / "_manifests" / "00000001.json"
    document = json.loads(path.read_text())
    inner = document
    for name in field[:-1]:
        inner = inner[name]
    if value is ...:
        del inner[field[-1]]
    else:
        inner[field[-1]] = value
    path.write_text(json.dumps(document))


def commands(out: Path) -> dict[str, list[str]]:
    parent = out.parents[1]
    return {
        "build": ["build", str(parent / "rows.csv"), "--out", str(out), "--overwrite", "--quiet"],
        "read": ["read", str(out), "--to", "npy", "--out", str(parent / "table"), "--quiet"],
        "head": ["head", str(out)],
        "inspect": ["inspect", str(out), "--quiet"],
        "verify": ["verify", str(out), "--quiet"],
    }


def check_one_sentence(out: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks that the command prints an error of one line that names the manifest.

    The command must not change any file.
    """
    old_files = {path: path.read_bytes() for path in out.parents[1].rglob("*") if path.is_file()}
    assert main(commands(out)[command]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"recordmill: error: {out}/_manifests/00000001.json: "), message
    assert message.count("\n") == 1
    assert len(message) < 1000
    assert {
        path: path.read_bytes() for path in out.parents[1].rglob("*") if path.is_file()
    } == old_files


@pytest.mark.parametrize("command", ["build", "read", "head", "inspect", "verify"])
@pytest.mark.parametrize(
    "case", ["folder is above", "a split is above", "records is huge", "name is a number", "deep"]
)
def test_every_command_refuses_a_hostile_manifest_in_one_sentence(
    out: Path, case: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if case in RAW:
        (out / "_manifests" / "00000001.json").write_bytes(RAW[case])
    else:
        edit(out, *BAD[case])
    check_one_sentence(out, command, capsys)


@pytest.mark.parametrize("case", [*BAD, *RAW])
def test_manifest_that_no_build_writes_is_refused(
    intact_set: Path, tmp_path: Path, case: str
) -> None:
    """All commands load the manifest with `catalog_inputs`."""
    out = tmp_path / "out"
    shutil.copytree(intact_set / "_manifests", out / "_manifests")
    shutil.copytree(intact_set / FOLDER, out / FOLDER)
    if case in RAW:
        (out / "_manifests" / "00000001.json").write_bytes(RAW[case])
    else:
        edit(out, *BAD[case])
    with pytest.raises(DataError, match=r"/out/_manifests/00000001\.json: ") as error:
        catalog_inputs(str(out))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_manifest_of_a_terabyte_is_not_read(out: Path) -> None:
    with (out / "_manifests" / "00000001.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match="above the 268,435,456 allowed"):
        load_manifest(out)


def test_many_repeated_keys_are_refused_quickly() -> None:
    """The parser once counted all keys again for each key.

    That took 16 s for 430 kB, and would take a day for this document.
    """
    keys = [f'"{number}": 0' for number in range(300_000)]
    with pytest.raises(DataError, match="the key '0' occurs twice"):
        parse_json("{" + ", ".join([*keys, *keys]) + "}", "a")


def test_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        read_range(tmp_path / "pipe", max_bytes=100)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**30)
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
    | st.sampled_from(
        ["..", "/", "../x", "data-x", "train", "train-00000-of-00002.tfrecord", "\0", "\ud800"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def field_paths(value: Any, prefix: Path_ = ()) -> list[Path_]:
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [
        prefix,
        *(field_path for key, item in inner for field_path in field_paths(item, (*prefix, key))),
    ]


def use_data_set(out: Path) -> None:
    """Uses a data set like the commands do, in this process."""
    dataset = recordmill.open(out)
    dataset.to_table()
    dataset.head(2)
    recordmill.verify(out)


@pytest.mark.sweep
@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_manifest_is_used_or_refused(
    intact_set: Path, tmp_path: Path, data: st.DataObject
) -> None:
    out = tmp_path / "out"
    if not out.exists():
        shutil.copytree(intact_set, out)
    document = json.loads((intact_set / "_manifests" / "00000001.json").read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        field_path = data.draw(st.sampled_from(field_paths(document)[1:]))
        inner = document
        for key in field_path[:-1]:
            inner = inner[key]
        inner[field_path[-1]] = data.draw(VALUES)
    (out / "_manifests" / "00000001.json").write_text(json.dumps(document))
    with contextlib.suppress(RecordmillError):
        use_data_set(out)


@given(data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reader_with_a_changed_index_returns_the_right_records_or_an_error(
    intact_set: Path, tmp_path: Path, data: st.DataObject
) -> None:
    out = tmp_path / "out"
    if not out.exists():
        shutil.copytree(intact_set, out)
    name = Path(FOLDER, "index", "train-00000.npy")
    table = np.load(intact_set / name).copy()
    for _ in range(data.draw(st.integers(1, 3))):
        row, field = (
            data.draw(st.integers(0, len(table) - 1)),
            data.draw(st.sampled_from(["offset", "length", "key"])),
        )
        values = st.integers(-(2**63), 2**63 - 1) | st.integers(-40, 4000)
        table[field][row] = data.draw(values) % 2**64 if field == "key" else data.draw(values)
    np.save(out / name, table)
    if np.array_equal(table, np.load(intact_set / name)):
        return
    dataset = recordmill.open(out)
    expected = mixed_rows(12).to_pylist()
    for check in (
        lambda: dataset.to_table().to_pylist()[:12] == expected,
        lambda: dataset.take([5, 3, 0]).to_pylist() == [expected[i] for i in (5, 3, 0)],
        lambda: dataset[2]["id"] == 2,
    ):
        try:
            assert check()
        except DataError:
            continue
    assert recordmill.verify(out) != []


def test_member_table_with_huge_sizes_costs_no_memory(tmp_path: Path) -> None:
    """The size in the manifest is the largest possible content of the compressed file."""
    out = write_data_set(tmp_path / "set", {"train": mixed_rows(300)}, shards=1, compression="gzip")
    max_bytes = find_codec("gzip").max_content_bytes(
        (out / FOLDER / "train-00000-of-00001.tfrecord.gz").stat().st_size
    )
    path = out / FOLDER / "index" / "train-00000.npy"
    index = np.load(path)
    index["length"][-1] += max_bytes - (index["offset"][-1] + index["length"][-1] + 16)
    np.save(path, index)
    edit(out, (*SHARD, "framed_bytes"), max_bytes)
    tracemalloc.start()
    with pytest.raises(DataError, match="can't hold them"):
        recordmill.open(out).to_table()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20 < max_bytes


@pytest.mark.parametrize(
    "name",
    ["..-00000-of-00001.tfrecord", ".-00000-of-00001.tfrecord", "-a-00000-of-00001.tfrecord"],
)
def test_name_of_a_foreign_file_does_not_lead_to_another_folder(
    out: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "in").mkdir()
    shutil.copy(out / FOLDER / "train-00000-of-00002.tfrecord", tmp_path / "in" / name)
    result = recordmill.read(tmp_path / "in" / name, tmp_path / "table", to="npy")
    assert [path.name for path in result.paths] == ["data"]


@pytest.mark.parametrize("to", ["npy", "npz", "parquet", "jsonl"])
def test_split_may_be_called_index(tmp_path: Path, to: str) -> None:
    out = write_data_set(
        tmp_path / "out", {"index": mixed_rows(4), "data": mixed_rows(2)}, shards=1
    )
    result = recordmill.read(out, tmp_path / "table", to=to)
    assert result.records == {"index": 4, "data": 2}
    assert all(path.exists() for path in result.paths)


@pytest.mark.parametrize("split", ["rejects", "_read.json", "_run-x"])
def test_split_named_like_a_file_of_a_read_is_refused(tmp_path: Path, split: str) -> None:
    out = write_data_set(tmp_path / "out", {split: mixed_rows(4)}, shards=1)
    with pytest.raises(UsageError, match=f"split '{split}'"):
        recordmill.read(out, tmp_path / "table", to="npy")
    assert not (tmp_path / "table").exists()
    assert recordmill.read(out, tmp_path / "table", to="npz").records == {split: 4}


def test_summary_of_a_read_that_names_outside_files_is_refused(out: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    recordmill.read(out, table)
    document = json.loads((table / "_read.json").read_text())
    for name in (
        "../victim",
        "a/../../victim",
        "/victim",
        "..",
        "_run-x",
        "rejects/../../victim",
        "a\0",
        5,
    ):
        (table / "_read.json").write_text(json.dumps({**document, "files": [name]}))
        with pytest.raises(UsageError, match=r"files\[0\]"):
            recordmill.read(out, table, overwrite=True)
    assert (tmp_path / "victim" / "thesis.tex").read_text() == "mine"


@given(value=VALUES)
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_columns_json_is_refused(tmp_path: Path, value: Any) -> None:
    from recordmill.records.writers.npy import COLUMNS_NAME, open_columns

    for document in (value, {"arrow_schema": value}, {"arrow_schema": "00ff"}):
        (tmp_path / COLUMNS_NAME).write_text(json.dumps(document))
        with pytest.raises(DataError):
            open_columns(tmp_path)
