"""What a listing holds on a disk against what it holds in memory: the same files in the same order, chosen and split
alike, refused for the same reasons.
"""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recordmill.base.errors import UsageError
from recordmill.sources.images.source import plan_images
from recordmill.sources.inputs.contract import PlanOptions
from recordmill.sources.inputs.detect import detect_kind
from recordmill.sources.text.source import TextOptions, plan_text
from recordmill.storage.listed import sorting
from recordmill.storage.listed.coded import Coded, pick
from recordmill.storage.listed.files import InputFile, StoredFiles, chosen, row_of, settled, splits_of, where
from recordmill.storage.listed.rows import StoredRows
from recordmill.storage.listed.sorting import Sorter
from recordmill.storage.listing import Listing, list_inputs
from recordmill.storage.stores.protocol import Stat

ROWS = st.lists(st.tuples(st.integers(0, 3), st.text("ab/é", max_size=3)), max_size=60)


@settings(deadline=None, max_examples=40)
@given(rows=ROWS, held=st.integers(1, 9), fan_in=st.integers(2, 4))
def test_rows_are_sorted_however_few_fit(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], held: int, fan_in: int
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patched:
        for name, value in (("HELD_ROWS", held), ("FAN_IN", fan_in), ("_BLOCK_ROWS", 2)):
            patched.setattr(sorting, name, value)
        sorter = Sorter(str(folder))
        for row in rows:
            sorter.add(row)
        assert sorter.is_spilled == (len(rows) >= held)
        assert list(sorter.sorted()) == sorted(rows)
    del sorter
    gc.collect()
    assert os.listdir(folder) == []


def test_stored_rows_are_read_at_any_place_and_go_with_their_holder(tmp_path: Path) -> None:
    rows = [(at, f"{at:03d}\udcff") for at in range(50)]
    stored = StoredRows.write(iter(rows), str(tmp_path), 4)
    copy = pickle.loads(pickle.dumps(stored))
    for one in (stored, copy):
        assert (len(one), list(one)) == (50, rows)
        assert [one.row(at) for at in (49, 0, 17, 16, 48)] == [rows[at] for at in (49, 0, 17, 16, 48)]
    with pytest.raises(ZeroDivisionError):
        StoredRows.write((1 // (3 - at) for at in range(5)), str(tmp_path), 1)  # type: ignore[misc]
    assert len(os.listdir(tmp_path)) == 1
    del stored, one
    gc.collect()
    assert os.listdir(tmp_path) == []


@given(data=st.data(), words=st.lists(st.sampled_from(["a", "b", None, "c"]), max_size=30))
def test_chosen_files_and_their_splits_are_those_of_a_tuple(data: Any, words: list[str | None]) -> None:
    files: Sequence[InputFile] = [InputFile(0, f"{at}", f"/in/{at}", Stat(at, at)) for at in range(len(words))]
    stored: Sequence[InputFile] = StoredFiles(StoredRows.write(map(row_of, files), block_rows=3))
    said = Coded.of(words, len(words))
    for _ in range(3):
        keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(files), max_size=len(files))), np.bool_)
        files, stored = chosen(files, keep), chosen(stored, keep)
        assert isinstance(stored, StoredFiles)
        words, said = list(pick(words, keep)), said.choose(keep)
        assert (list(said), said.used, said.count("b")) == (words, list(dict.fromkeys(words)), words.count("b"))
        assert (None in said, "x" in said) == (None in words, False)
        assert list(where(stored, lambda file: file.stat.size_bytes % 2 == 0)) == [
            file.stat.size_bytes % 2 == 0 for file in files
        ]
        files = [InputFile(*file_fields(file), split) for file, split in zip(files, words, strict=True)]
        stored = stored.with_splits(said)
        assert list(stored) == files
        assert stored == settled(files)
        assert [stored[at] for at in range(len(files))] == list(stored[:]) == files
        assert splits_of(stored) == splits_of(files) == words


def file_fields(file: InputFile) -> tuple[int, str, str, Stat]:
    return file.root, file.name, file.path, file.stat


def small(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(sorting, "HELD_ROWS", 2)
    patched.setattr(sorting, "FAN_IN", 2)


def tree(root: Path) -> Path:
    for split in ("train", "test"):
        for number in range(9):
            path = root / split / ("cat", "dog")[number % 2] / f"{number}é.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{split} {number}")
    (root / "README.md").write_text("# read me")
    (root / ".hidden").write_text("x")
    return root


def both(inputs: list[str], **options: Any) -> tuple[Listing, Listing]:
    """Listed in memory, and on a disk."""
    held = list_inputs(inputs, **options)
    with pytest.MonkeyPatch.context() as patched:
        small(patched)
        stored = list_inputs(inputs, **options)
    assert isinstance(held.files, tuple)
    assert isinstance(stored.files, StoredFiles)
    return held, stored


@pytest.mark.parametrize(
    "given", ["", "train,test", "**/*.txt", "**", "*/cat", "@list.txt", "test,@list.txt", "@named.txt"]
)
def test_a_listing_on_a_disk_is_that_in_memory(tmp_path: Path, given: str) -> None:
    root = tree(tmp_path / "in")
    (root / "list.txt").write_text("train/**/*.txt\ntrain/cat/../../README.md\n")
    (root / "named.txt").write_text("".join(f"test/{('cat', 'dog')[at % 2]}/{at}é.txt\n" for at in range(9)))
    inputs = [f"@{root}/{name[1:]}" if name[:1] == "@" else f"{root}/{name}" for name in given.split(",")]
    held, stored = both(inputs)
    assert [held.is_named(file) for file in held.files] == [stored.is_named(file) for file in stored.files]
    assert stored == held
    assert len(held.files) > 5


@pytest.mark.parametrize("given", [["", "train/cat/0é.txt"], ["@twice.txt"], ["bad"]])
def test_what_is_refused_in_memory_is_refused_on_a_disk(tmp_path: Path, given: list[str]) -> None:
    root = tree(tmp_path / "in")
    (root / "twice.txt").write_text("train\ntest\ntrain/dog/1é.txt\n")
    (root / "bad").mkdir()
    for number in range(7):
        (root / "bad" / os.fsdecode(b"\xff%d.txt" % number)).write_text("x")
    inputs = [f"@{root}/{name[1:]}" if name[:1] == "@" else f"{root}/{name}" for name in given]
    with pytest.raises(UsageError, match=r"named (twice )?by|not UTF-8") as held:
        list_inputs(inputs)
    with pytest.MonkeyPatch.context() as patched:
        small(patched)
        with pytest.raises(UsageError) as stored:
            list_inputs(inputs, folder=str(tmp_path))
    assert str(stored.value) == str(held.value)
    del stored
    gc.collect()
    assert os.listdir(tmp_path) == ["in"]


def test_plans_of_files_on_a_disk_are_those_of_files_in_memory(tmp_path: Path) -> None:
    held, stored = both([str(tree(tmp_path / "in"))])
    assert detect_kind(stored) == detect_kind(held)
    one, other = (plan_text(listing, TextOptions(), PlanOptions()) for listing in (held, stored))
    assert isinstance(other.files, StoredFiles)
    assert (other, list(other.classes)) == (one, list(one.classes))
    assert {file.split for file in one.files} == {"train", "test"}
    for number, path in enumerate(sorted(tmp_path.rglob("*.txt"))):
        path.rename(path.with_suffix(".xyz" if number == 3 else ".jpg"))
    held, stored = both([str(tmp_path / "in")])
    pictures, others = (plan_images(listing, None, PlanOptions()) for listing in (held, stored))
    assert isinstance(others.files, StoredFiles)
    assert len(others.files) == 17
    assert others == pictures
