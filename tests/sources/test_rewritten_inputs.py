"""Inputs that are written to between plan and read, with their size as it was and their time set back."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import image_samples
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recordmill.base.errors import DataError
from recordmill.sources.arrow.parquet import ParquetOptions, plan_parquet
from recordmill.sources.common.contract import PlanOptions, Source
from recordmill.sources.csv.dialect import CsvOptions
from recordmill.sources.csv.source import plan_csv
from recordmill.sources.images.source import plan_images
from recordmill.sources.jsonl.source import JsonlOptions, plan_jsonl
from recordmill.sources.text.source import TextOptions, plan_text
from recordmill.storage.file_table import FileTable
from recordmill.storage.listing import list_inputs


def content(kind: str, number: int, folder: Path) -> bytes:
    if kind == "parquet":
        pq.write_table(pa.table({"a": [number]}), folder / "made")
        return (folder / "made").read_bytes()
    texts = {"csv": f"a,b\n{number},2\n", "jsonl": f'{{"a": {number}}}\n', "images": ""}
    return texts.get(kind, f"text {number}\n").encode() or image_samples.encoded("PNG")


def plan(kind: str, path: Path) -> Source:
    listing, common = list_inputs([str(path)]), PlanOptions()
    if kind == "images":
        return plan_images(listing)
    if kind in ("lines", "documents"):
        return plan_text(listing, TextOptions(mode=kind), common)
    if kind == "csv":
        return plan_csv(listing.files, CsvOptions(header=True), common)
    if kind == "jsonl":
        return plan_jsonl(listing.files, JsonlOptions(), common)
    return plan_parquet(listing.files, ParquetOptions(), common)


def rewrite(path: Path, data: bytes) -> None:
    """In place, as `rsync --inplace -t` does it."""
    before = path.stat()
    assert len(data) == before.st_size
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # a clock of some milliseconds
        with open(path, "r+b") as file:
            file.write(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "lines", "documents", "images", "parquet"])
def test_a_file_that_is_rewritten_in_place_with_its_time_set_back_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "in.bin"
    path.write_bytes(content(kind, 1, tmp_path))
    source = plan(kind, path)
    rewrite(path, content(kind, 2, tmp_path))
    with pytest.raises(DataError, match=r"^in\.bin: changed while it was read"):
        _ = [chunk for unit in source.units for chunk in source.read(unit)]
    assert [chunk for unit in source.units for chunk in plan(kind, path).read(unit)]  # the remedy: build again


def test_other_hosts_compare_no_times_that_are_their_own(tmp_path: Path) -> None:
    path = tmp_path / "in.bin"
    path.write_bytes(b"x")
    files = list_inputs([str(path)]).files
    assert files[0].stat.ctime_ns == path.stat().st_ctime_ns
    assert files.for_other_hosts()[0].stat == replace(files[0].stat, ctime_ns=0)
    assert files.for_other_hosts()[0].stat.ctime_ns == 0
    assert isinstance(files, FileTable)
