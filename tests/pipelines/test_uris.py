"""Every command and function refuses unsupported URIs and empty paths, and writes nothing."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.data_sets import mixed_rows, write_data_set

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import UsageError
from recordmill.records.writers.npy import open_columns
from recordmill.storage.files import parse_local_path
from recordmill.transforms.write_shards import WriteShards

URIS = [
    "hdfs://host/x",
    "HDFS://host/x",
    "ftp://h/x",
    "https://h/x?signature=secret",
    "file:x",
    "file://host/x",
]
STORES = [
    "s3://bucket/x",
    "gs://bucket/x",
    "S3://bucket/x",
    "az://c/x",
    "http://h/x",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_data_set(tmp_path / "set", {"train": mixed_rows(3)}, shards=1)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "list.txt").write_text("viewfs://bucket/x.csv\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def unchanged(folder: Path) -> Iterator[None]:
    """Checks that the test creates no file."""
    before = sorted(os.listdir(folder))
    yield
    assert sorted(os.listdir(folder)) == before


COMMANDS = {
    "build --out": ["build", "rows.csv", "--out", "URI"],
    "build INPUT": ["build", "URI", "--out", "new"],
    "build @list": ["build", "@URI", "--out", "new"],
    "build --schema": ["build", "rows.csv", "--out", "new", "--schema", "URI"],
    "build --labels": ["build", "images", "rows.csv", "--out", "new", "--labels", "URI"],
    "read --out": ["read", "set", "--out", "URI"],
    "read INPUT": ["read", "URI", "--out", "new"],
    "read --schema": ["read", "set", "--out", "new", "--schema", "URI"],
    "read --dry-run": ["read", "URI", "--dry-run"],
    "head": ["head", "URI"],
    "inspect": ["inspect", "URI"],
    "inspect --schema": ["inspect", "set", "--schema", "URI"],
    "verify": ["verify", "URI"],
    "bench": ["bench", "URI"],
    "bench --cache": ["bench", "set", "--cache", "URI"],
    "status": ["status", "URI"],
    "clean": ["clean", "URI"],
    "transform --with": ["transform", "rows.csv", "--with", "URI", "--out", "new"],
    "build --transform": ["build", "rows.csv", "--out", "new", "--transform", "URI"],
}
CALLS: dict[str, Callable[[str], Any]] = {
    "build": lambda path: recordmill.build({"x": [1]}, path),
    "build Path": lambda path: recordmill.build({"x": [1]}, Path(path) if path else ""),
    "build INPUT": lambda path: recordmill.build(path, "new"),
    "read": lambda path: recordmill.read("set", path),
    "open": lambda path: recordmill.open(path),
    "open several": lambda path: recordmill.open([path, "rows.csv"]),
    "open cache": lambda path: recordmill.open("set", cache=path),
    "open schema": lambda path: recordmill.open("set", schema=path),
    "verify": lambda path: recordmill.verify(path),
    "status": lambda path: recordmill.status(path),
    "clean": lambda path: recordmill.clean(path),
    "serving_layer": lambda path: recordmill.serving_layer(path),
    "to_numpy": lambda path: recordmill.open("set").to_numpy(memmap_dir=path),
    "to_parquet": lambda path: recordmill.open("set").to_parquet(path),
    "open_columns": lambda path: open_columns(path),
    "WriteShards": lambda path: WriteShards(path, recordmill.open("set").schema),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_refuses_unsupported_uris_and_empty_paths(
    unchanged: None, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = ("https://me:secret@host/x", "https://me:a/secret@host/x", "https://me:a@secret@host/x")
    messages = {
        "": "a path is empty",
        "viewfs://bucket/x": "is not supported",
        "file:x": "file:///",
    }
    for path, message in (messages | dict.fromkeys(urls, "supported")).items():
        assert main([word.replace("URI", path) for word in COMMANDS[command]]) == 2
        stderr = capsys.readouterr().err
        assert (stderr.count("\n"), message in stderr, "secret@" in stderr) == (1, True, False), (
            stderr
        )


@pytest.mark.parametrize("call", CALLS)
def test_function_refuses_unsupported_uris_and_empty_paths(unchanged: None, call: str) -> None:
    with pytest.raises(UsageError, match="a path is empty"):
        CALLS[call]("")
    for uri in URIS:
        with pytest.raises(
            UsageError, match=r"is not supported|file:///|names no bucket|for reading only"
        ):
            CALLS[call](uri)


@pytest.mark.parametrize("uri", STORES)
def test_arrays_mapped_into_a_store_are_refused(unchanged: None, uri: str) -> None:
    with pytest.raises(UsageError, match=r"memory maps of local files: name a local folder"):
        recordmill.open("set").to_numpy(memmap_dir=uri)
    with pytest.raises(UsageError, match=r"for reading only"):
        open_columns(uri)


@pytest.mark.parametrize("uri", ["http://h/x", "https://h/x"])
def test_output_to_a_web_server_is_refused(
    unchanged: None, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("build --out", "read --out"):
        assert main([word.replace("URI", uri) for word in COMMANDS[command]]) == 2
        stderr = capsys.readouterr().err
        assert stderr.count("\n") == 1, stderr
        assert "for reading only" in stderr
    for call in (lambda: recordmill.build("rows.csv", uri), lambda: recordmill.read("set", uri)):
        with pytest.raises(UsageError, match="for reading only"):
            call()


def test_unsupported_uri_in_a_list_is_refused(unchanged: None) -> None:
    with pytest.raises(UsageError, match="is not supported"):
        recordmill.build("@list.txt", "new")


def test_file_uri_of_this_machine_is_a_path(folder: Path) -> None:
    built = recordmill.build(f"file://{folder}/rows.csv", f"file://{folder}/new")
    assert built.out == folder / "new"
    assert len(recordmill.open(f"file://{folder}/new")) == 2
    assert recordmill.read(f"file://{folder}/new", f"file://{folder}/table").out == folder / "table"


def test_names_with_colons_are_paths(folder: Path) -> None:
    (folder / "a:").mkdir()
    (folder / "ab:").mkdir()
    for name in ("a:b", "x/s3://y", "ab:/c", "1:/x"):
        assert parse_local_path(name) == name
