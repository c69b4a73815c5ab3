"""`build --overwrite` over a data set each of whose bytes is changed in turn: the new data set whole, or an error and
every old byte where it was; never a file outside OUT. A sample here; `.ci/faults` takes every byte and every cut.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.shards.verify import verify

pytestmark = pytest.mark.sweep

pytest.importorskip("apache_beam", reason="builds need Apache Beam")

# part: every so many of its bytes in the sample
PARTS = {
    "_manifests/*.json": 97, "manifest.json": 499, "schema.pbtxt": 199, "data-*/index/*.npy": 61,
    "data-*/*.tfrecord": 41,
}  # fmt: skip
WHOLE = os.environ.get("RECORDMILL_FAULTS") == "all"


def damaged(data: bytes, step: int) -> Iterator[bytes]:
    for at in range(0, len(data), step):
        yield data[:at] + bytes([data[at] ^ 1 << at // step % 8]) + data[at + 1 :]
        yield data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
    yield from (data[:size] for size in range(0, len(data), 3 * step))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """old.csv and new.csv, the old data set in `template`, and a folder that is nobody's business."""
    for name, letter in (("old", "x"), ("new", "y")):
        (tmp_path / f"{name}.csv").write_text("a,b\n" + "".join(f"{i},{letter}{i}\n" for i in range(5)))
    recordmill.build(tmp_path / "old.csv", tmp_path / "template", threads=1, name="x")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "kept").write_text("kept")
    return tmp_path


def refused_by(source: Path, out: Path) -> str | None:
    """What a build over OUT says; None if it is done."""
    try:
        recordmill.build(source, out, threads=1, name="x", overwrite=True)
    except RecordmillError as error:
        return str(error)
    return None


@pytest.mark.faults
@pytest.mark.parametrize("part", PARTS)
def test_the_new_data_set_or_every_old_byte(case: Path, part: str) -> None:
    out = case / "out"
    (path,) = (case / "template").glob(part)
    (folder,) = (path.name for path in (case / "template").glob("data-*"))
    name, whole = path.relative_to(case / "template"), path.read_bytes()
    built = 0
    for data in damaged(whole, 1 if WHOLE else PARTS[part]):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(case / "template", out)
        (out / name).write_bytes(data)
        before, refusal = tree(out), refused_by(case / "new.csv", out)
        if refusal is not None:
            assert refusal.strip(), data
            assert tree(out) == before, (data, refusal)
        else:
            built += 1
            found = recordmill.open(out, threads=1).to_table()["b"].to_pylist()
            assert sorted(found) == [f"y{i}" for i in range(5)], data
            # whose folder a manifest no longer names, nobody may remove; `verify` names it
            stray = f"{out / folder}: is of no committed generation"
            assert [str(problem) for problem in verify(out, threads=1)] in ([], [stray]), data
        assert tree(case / "beside") == {"kept": b"kept"}
        assert sorted(os.listdir(case)) == ["beside", "new.csv", "old.csv", "out", "template"]
    assert built or part == "_manifests/*.json"
