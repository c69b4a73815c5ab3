"""Paths of users become local paths or URIs, and errors show no secret."""

import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.base.errors import UsageError
from recordmill.storage.stores.address import (
    Address,
    expand_home,
    is_remote,
    parse_input_path,
    parse_input_paths,
    parse_local_path,
    parse_output_path,
    unquote_name,
)


@pytest.mark.parametrize(
    ("uri", "root", "key"),
    [
        ("s3://bucket", "s3://bucket", ""),
        ("gs://bucket/a//b/", "gs://bucket", "a//b"),
        ("az://c/a%20b", "az://c", "a%20b"),
        ("https://host:80/a%20b/%23.csv", "https://host:80", "a b/#.csv"),
    ],
)
def test_uri_is_divided_into_root_and_key(uri: str, root: str, key: str) -> None:
    address = Address.from_uri(uri)
    assert address == Address(root, key)
    assert (address.scheme, address.bucket) == tuple(root.split("://"))
    assert address.uri == (f"{root}/{key}" if key else root)


@pytest.mark.parametrize("path", ["a/b", "s3:/b/x", "s3:///x", "ftp://h/x", "", "/s3://b"])
def test_local_and_invalid_paths_are_not_addresses(path: str) -> None:
    assert Address.parse(path) is None
    assert not is_remote(path)


@given(
    st.sampled_from(["s3", "gs", "az"]),
    st.from_regex(r"[a-z0-9 %#?+ü]+(/[a-z.%]+)?", fullmatch=True),
)
def test_uri_of_an_address_is_parsed_to_the_same_address(scheme: str, key: str) -> None:
    address = Address(f"{scheme}://bucket", key)
    assert Address.from_uri(parse_input_path(address.uri)) == address


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("S3:/bucket/x", "s3://bucket/x"),
        ("s3://bucket/x", "s3://bucket/x"),
        ("a:b.csv", "a:b.csv"),
        ("http://h/a", "http://h/a"),
        ("file:///tmp/x", "/tmp/x"),
        ("FILE:///tmp/x", "/tmp/x"),
        (Path("data") / "a", "data/a"),
        (b"data", "data"),
    ],
)
def test_input_path_is_local_or_a_normalized_uri(path: Any, expected: str) -> None:
    assert parse_input_path(path) == expected


@pytest.mark.parametrize(
    ("parse", "path", "message"),
    [
        (parse_input_path, "", "a path is empty"),
        (parse_input_path, "a\0b", "no name of a file has a NUL character"),
        (parse_input_path, "s3://", "s3://: names no bucket"),
        (parse_input_path, "http:///", "names no host"),
        (parse_input_path, "hdfs://h/x", "hdfs:// is not supported; copy the files"),
        (parse_input_path, "file:x", "a file: URI of this machine begins with file:///"),
        (parse_input_path, "file://host/x", "a file: URI of this machine begins with file:///"),
        (parse_local_path, "s3://b/x", "s3:// is supported for reading only; name a local folder"),
        (parse_output_path, "http://h/x", "http:// is supported for reading only"),
        (parse_output_path, "s3://b", "name a folder in the bucket, as in s3://b/data"),
        (parse_output_path, "S3:/b/", "name a folder in the bucket, as in s3://b/data"),
    ],
)
def test_unsupported_path_is_an_error_with_a_remedy(
    parse: Callable[[str], str], path: str, message: str
) -> None:
    with pytest.raises(UsageError) as error:
        parse(path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("https://me:secret@host/x", "download the file"),
        ("s3://key:secret@bucket/x", "keys are taken from the environment"),
        ("https://host/x?signature=secret", "a URL with a query is not supported"),
        ("ftp://me:secret@host/x?secret", "ftp:// is not supported"),
    ],
)
def test_refused_uri_does_not_show_its_secret(path: str, advice: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_input_path(path)
    assert advice in str(error.value)
    assert "secret" not in str(error.value).replace("may contain a secret", "")


def test_existing_local_name_is_not_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    (tmp_path / "file:x").touch()
    assert parse_input_path("s3:/bucket/x") == parse_local_path("s3:/bucket/x") == "s3:/bucket/x"
    assert parse_input_path("file:x") == "file:x"
    assert parse_input_path("s3://bucket/x") == "s3://bucket/x"


def test_output_path_in_a_store_has_no_final_slash() -> None:
    assert parse_output_path("s3:/bucket/data//") == "s3://bucket/data"
    assert parse_output_path("data/") == "data/"


def test_leading_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    for parse in (expand_home, parse_local_path, parse_input_path, parse_output_path):
        assert parse("~/a/*.csv") == parse(Path("~/a/*.csv")) == "/home/me/a/*.csv"
        assert parse("~") == "/home/me"
        assert parse("~root/x") == f"{pwd.getpwnam('root').pw_dir}/x"
        # Names of files that shells and editors write, and paths with `~` elsewhere.
        for path in ("~$report.csv", "~no-such-user/x", "a/~/b", "a~", "./a"):
            assert parse(path) == path


def test_file_with_a_tilde_as_name_is_named_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("./~", "././~/x", ".//~root"):
        expected = str(tmp_path / Path(path))
        assert parse_local_path(path) == expected
        # A second call, after pathlib, does not expand it.
        assert parse_local_path(Path(parse_local_path(path))) == expected


def test_inputs_are_one_path_or_a_list_of_paths() -> None:
    assert parse_input_paths(Path("a")) == ["a"]
    assert parse_input_paths(name for name in ("a", "s3:/b/c")) == ["a", "s3://b/c"]
    for inputs, name in ((5, "int"), (b"a", "bytes"), ([["a"]], "list"), ([None], "NoneType")):
        with pytest.raises(UsageError, match=f"not an object of type {name}"):
            parse_input_paths(inputs)


def test_name_is_unquoted_only_for_web_servers() -> None:
    assert unquote_name("a%20b", "http://host/a%20b") == "a b"
    assert unquote_name("a%20b", "s3://bucket/a%20b") == "a%20b"
    assert unquote_name("a%20b", "/data/a%20b") == "a%20b"
