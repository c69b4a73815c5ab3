"""A foreign file that is rewritten during a read is noticed, even if its size and time stay the
same.
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

WAYS: dict[str, Callable[[Path, Path], Any]] = {
    "read": lambda path, out: recordmill.read(path, out),
    "read leniently": lambda path, out: recordmill.read(path, out, max_rejects=5),
    "stats": lambda path, out: recordmill.stats(path),
    "report": lambda path, out: recordmill.report(path, out=out),
    "to_table": lambda path, out: recordmill.open(path).to_table(),
    "batches": lambda path, out: list(recordmill.open(path).batches(4)),
    "shuffled batches": lambda path, out: list(recordmill.open(path).batches(4, shuffle=True)),
    "by number": lambda path, out: recordmill.open(path)[3],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("packed", [False, True])
def test_rewritten_file_is_noticed_during_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, packed: bool
) -> None:
    made = write_data_set(tmp_path / "set", {"train": mixed_rows(60)}, shards=1)
    (shard,) = (made / FOLDER).glob("*.tfrecord")
    path, data = tmp_path / "foreign.tfrecord", shard.read_bytes()
    path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    check, rewritten = ShardFile.check_unchanged, []

    def rewriting(file: ShardFile) -> None:
        before = path.stat()
        while (
            not rewritten and path.stat().st_ctime_ns == before.st_ctime_ns
        ):  # a clock of some milliseconds
            path.write_bytes(path.read_bytes())
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        rewritten.append(file)
        check(file)

    monkeypatch.setattr(ShardFile, "check_unchanged", rewriting)
    with pytest.raises(DataError, match="changed while it was read"):
        WAYS[way](path, tmp_path / "out")
    assert rewritten
