"""A read notices if a foreign file is rewritten.

This is true even if the size and the modification time stay the same.
"""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.data_sets import FOLDER, mixed_rows, write_data_set

import recordmill
from recordmill.base.errors import DataError
from recordmill.shards.catalog import ShardFile

READERS: dict[str, Callable[[Path, Path], Any]] = {
    "read": lambda path, out: recordmill.read(path, out),
    "read leniently": lambda path, out: recordmill.read(path, out, max_rejects=5),
    "stats": lambda path, out: recordmill.stats(path),
    "report": lambda path, out: recordmill.report(path, out=out),
    "to_table": lambda path, out: recordmill.open(path).to_table(),
    "batches": lambda path, out: list(recordmill.open(path).batches(4)),
    "shuffled batches": lambda path, out: list(recordmill.open(path).batches(4, shuffle=True)),
    "by number": lambda path, out: recordmill.open(path)[3],
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_rewritten_file_is_noticed_during_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, is_compressed: bool
) -> None:
    data_set = write_data_set(tmp_path / "set", {"train": mixed_rows(60)}, shards=1)
    (shard,) = (data_set / FOLDER).glob("*.tfrecord")
    path, data = tmp_path / "foreign.tfrecord", shard.read_bytes()
    path.write_bytes(gzip.compress(data, mtime=0) if is_compressed else data)
    check, checked_files = ShardFile.check_unchanged, []

    def rewrite_and_check(file: ShardFile) -> None:
        old_state = path.stat()
        # The clock of the file system may have a resolution of some milliseconds.
        while not checked_files and path.stat().st_ctime_ns == old_state.st_ctime_ns:
            path.write_bytes(path.read_bytes())
            os.utime(path, ns=(old_state.st_atime_ns, old_state.st_mtime_ns))
        checked_files.append(file)
        check(file)

    monkeypatch.setattr(ShardFile, "check_unchanged", rewrite_and_check)
    with pytest.raises(DataError, match="changed while it was read"):
        READERS[reader](path, tmp_path / "out")
    assert checked_files
