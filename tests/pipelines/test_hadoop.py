"""Builds and reads from and into HDFS: what holds of other stores, and what is HDFS's own."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hdfs_server import hadoop_server
from kit import at_once
from store_server import Store
from test_read_store_out import (  # noqa: F401
    large,
    source,
    test_a_read_into_a_store_is_the_local_one,
    test_what_is_put_while_others_are_made_is_the_local_file,
)
from test_store_out import (  # noqa: F401
    test_a_build_into_a_store_is_the_local_one,
    test_generations_follow_each_other,
    test_of_two_at_once_one_commits,
    test_our_own_put_that_was_repeated_is_ours,
    test_what_a_killed_build_left_goes_later,
)

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import DataError
from recordmill.storage import files
from recordmill.storage.stores import uploads
from recordmill.storage.stores.address import Address
from recordmill.storage.stores.client import get_connection

STORES = (hadoop_server,)
pytestmark = pytest.mark.sweep


def test_of_many_that_put_a_file_one_creates_it(store: Store, out: str) -> None:
    created, start = [], threading.Barrier(8)

    def put(number: int) -> None:
        start.wait()
        if uploads.put_object_if_absent(f"{out}/one", b"%d" % number):
            created.append(number)

    at_once(put, *range(8))
    assert len(created) == 1
    assert store.objects(out) == {"one": b"%d" % created[0]}


def test_a_file_that_is_being_written_is_not_seen(
    store: Store, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = Address.parse(f"{out}/whole")
    assert address is not None
    seen = []

    def parts() -> Iterator[bytes]:
        for part in (b"first", b"second"):
            seen.append(files.find_storage(address.uri).is_file(address.uri))
            yield part

    hadoop = get_connection(address)
    written = hadoop._write_temporary(address.key, parts())  # type: ignore[attr-defined]
    assert seen == [False, False]
    hadoop.move_or_copy(written.strip("/"), address.key)
    hadoop.move_or_copy(written.strip("/"), address.key)  # as another attempt asks once more
    assert store.objects(out) == {"whole": b"firstsecond"}


def test_a_replaced_file_is_read_as_one_of_both(store: Store, out: str) -> None:
    store.put(f"{out.removeprefix(store.root)[1:]}/a", b"1" * 3_000_000)
    before = files.stat(f"{out}/a")
    with contextlib.closing(files.find_storage(f"{out}/a").open(f"{out}/a")) as reader:
        store.put(f"{out.removeprefix(store.root)[1:]}/a", b"2" * 4_000_000)
        assert set(bytes(reader.fill(files.np.empty(2_500_000, "u1"), 0))) == {ord("2")}
    with pytest.raises(DataError, match="changed while it was read"):
        files.check_unchanged(f"{out}/a", before, "a")


def test_what_is_not_there_is_said(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for uri, said in {
        f"{store.root}/nothing/here.csv": "no file in this folder",
        "hdfs://127.0.0.1:1/x.csv": "can't be reached",
        "hdfs:///x.csv": "names no host",
        "viewfs://host/x.csv": "is not served",
    }.items():
        assert main(["build", "csv", uri, "--out", str(tmp_path / "out")]) != 0
        told = capsys.readouterr().err.strip()
        assert said in told, told
        assert "Traceback" not in told
    assert not (tmp_path / "out").exists()


def test_a_table_on_hdfs_is_read_by_glob(store: Store, out: str, tmp_path: Path) -> None:
    key = out.removeprefix(store.root)[1:]
    for number in range(3):
        store.put(f"{key}/deep/{number}.csv", b"a,b\n" + b"%d,x\n" % number * 10)
    store.put(f"{key}/deep/_SUCCESS", b"")
    recordmill.build(f"{out}/**/*.csv", tmp_path / "out")
    assert (
        sorted(recordmill.open(tmp_path / "out").to_table().column("a").to_pylist())
        == [0] * 10 + [1] * 10 + [2] * 10
    )
