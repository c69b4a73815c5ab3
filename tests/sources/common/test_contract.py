"""A plan is small and detects files that change after it.

Within a process, a plan is passed on without copies.
"""

import os
import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from kit.image_samples import encode_image
from kit.planning import KINDS, content, plan

from recordmill.base.errors import DataError
from recordmill.base.local_value import LocalValue
from recordmill.building.plan import BuildPlan
from recordmill.building.sorted_run import KeyBuckets
from recordmill.sources.common.contract import BATCH_FILES, PlanOptions
from recordmill.sources.text.options import TextOptions
from recordmill.sources.text.source import plan_text
from recordmill.storage.file_table import FileTable
from recordmill.storage.listing import list_inputs


def rewrite(path: Path, data: bytes) -> None:
    """Rewrites a file in place, as `rsync --inplace -t` does."""
    original = path.stat()
    assert len(data) == original.st_size
    while path.stat().st_ctime_ns == original.st_ctime_ns:  # a clock tick takes some milliseconds
        with open(path, "r+b") as file:
            file.write(data)
        os.utime(path, ns=(original.st_atime_ns, original.st_mtime_ns))


@pytest.mark.parametrize("kind", [*KINDS, "images", "parquet"])
def test_file_rewritten_after_the_plan_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "in.bin"
    path.write_bytes(content(kind, 1, tmp_path))
    source = plan(kind, path)
    rewrite(path, content(kind, 2, tmp_path))
    with pytest.raises(DataError, match=r"^in\.bin: changed while it was read"):
        _ = [chunk for unit in source.units for chunk in source.read(unit)]
    # Another build reads the new content.
    assert [chunk for unit in source.units for chunk in plan(kind, path).read(unit)]


def test_plan_for_other_hosts_holds_no_ctimes(tmp_path: Path) -> None:
    path = tmp_path / "in.bin"
    path.write_bytes(b"x")
    files = list_inputs([str(path)]).files
    assert files[0].stat.ctime_ns == path.stat().st_ctime_ns
    assert files.without_ctimes()[0].stat == replace(files[0].stat, ctime_ns=0)
    assert files.without_ctimes()[0].stat.ctime_ns == 0
    assert isinstance(files, FileTable)


FILES = 3 * BATCH_FILES + 10


@pytest.fixture(params=["documents", "images"])
def many_files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    data, end = (
        (b"a few words\n", "txt") if request.param == "documents" else (encode_image("PNG"), "png")
    )
    for number in range(FILES):
        path = tmp_path / "data" / f"class{number % 3}" / f"{number:06d}.{end}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return request.param, tmp_path / "data"


def test_chunk_of_small_files_holds_few_files(many_files: tuple[str, Path]) -> None:
    source = plan(*many_files)
    rows = [chunk.rows for unit in source.units for chunk in source.read(unit)]
    assert sum(rows) == FILES
    assert max(rows) <= BATCH_FILES


def test_plan_holds_less_than_512_bytes_per_file(many_files: tuple[str, Path]) -> None:
    plan(*many_files)
    tracemalloc.start(1)
    try:
        source = plan(*many_files)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(source.files) == FILES
    assert size < 512 * FILES + (128 << 10)


def test_plan_is_passed_within_a_process_without_pickling(tmp_path: Path) -> None:
    source = plan_text(list_inputs([__file__]), TextOptions(), PlanOptions())
    plan = BuildPlan(
        str(tmp_path), 0, source.schema, ("train",), KeyBuckets.for_shards(1, 2**64, 1), source
    )
    data = pickle.dumps(LocalValue.of(plan))
    assert pickle.loads(data).load() is plan
    assert len(data) < 500
    assert list(tmp_path.iterdir()) == []
