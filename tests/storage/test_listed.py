"""Tables of input files on a disk against those in memory: the same files in the same order, chosen, split and with the
same columns, refused for the same reasons.
"""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recordmill.base.errors import UsageError
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.common.detect import detect_kind
from recordmill.sources.images.source import plan_images
from recordmill.sources.text.source import TextOptions, plan_text
from recordmill.storage import external_sort
from recordmill.storage import file_table as files_module
from recordmill.storage.external_sort import Sorter
from recordmill.storage.file_table import FileTable, InputFile, coded_of, counted
from recordmill.storage.lazy_table import FileBatches
from recordmill.storage.listing import Listing, list_inputs
from recordmill.storage.stores.protocol import Stat

ROWS = st.lists(st.tuples(st.integers(0, 3), st.text("ab/é", max_size=3)), max_size=60)


@settings(deadline=None, max_examples=12)
@given(rows=ROWS, held=st.integers(1, 9))
def test_rows_are_sorted_however_few_fit(tmp_path_factory: pytest.TempPathFactory, rows: list[Any], held: int) -> None:
    folder = tmp_path_factory.mktemp("rows")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(external_sort, "HELD_ROWS", held)
        sorter = Sorter(str(folder))
        for row in rows:
            sorter.add(row)
        assert sorter.is_spilled == (len(rows) >= held)
        assert list(sorter.sorted()) == sorted(set(rows), key=lambda row: (row[0], os.fsencode(row[1])))
    del sorter
    assert os.listdir(folder) == []


def listed(count: int) -> list[InputFile]:
    """Files of which one name is not UTF-8, and one path does not end with its name."""
    found = [
        InputFile(at // 20, f"{at:03d}\udcff", f"/in/{at:03d}\udcff", Stat(at, -at, f"{at}")) for at in range(count)
    ]
    return [InputFile(0, "a/link", "/elsewhere/\udcfe", Stat(1, 1)), *found[1:]]


def test_a_table_on_a_disk_is_read_at_any_place_and_goes_with_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_sort, "HELD_ROWS", 5)
    monkeypatch.setattr(files_module, "FILE_ROWS", 4)
    files = listed(50)
    stored = FileTable.of(iter(files), str(tmp_path))
    copy = pickle.loads(pickle.dumps(stored))
    for one in (stored, copy):
        assert (len(one), list(one)) == (50, files)
        assert [one[at] for at in (49, 0, 17, 16, -2)] == [files[at] for at in (49, 0, 17, 16, 48)]
        assert list(one.some([31, 2, 2, 48])) == [files[at] for at in (31, 2, 2, 48)]
        assert one[3:40] == tuple(files[3:40])
        assert (one.size_bytes, one.sizes.tolist()) == (sum(range(50)) + 1, [1, *range(1, 50)])
        assert [(file.root, file.name) for file in files] == list(one.named())
    (path,) = tmp_path.iterdir()
    assert pa.ipc.open_stream(path.read_bytes()).read_all().num_rows == 50  # as any reader of Arrow has it
    with pytest.raises(ZeroDivisionError):
        FileTable.of((files[1 // (9 - at)] for at in range(20)), str(tmp_path))
    assert len(os.listdir(tmp_path)) == 1
    del stored, one
    gc.collect()
    assert os.listdir(tmp_path) == []


@settings(deadline=None)
@given(data=st.data(), words=st.lists(st.sampled_from(["a", "b", None, "c"]), max_size=30))
def test_chosen_files_and_their_columns_are_those_of_lists(data: Any, words: list[str | None]) -> None:
    files = [InputFile(0, f"{at}", f"/in/{at}", Stat(at, at)) for at in range(len(words))]
    numbers = list(range(len(words)))
    with pytest.MonkeyPatch.context() as patched:
        held = FileTable.of(files)
        patched.setattr(external_sort, "HELD_ROWS", 1)
        patched.setattr(files_module, "FILE_ROWS", 3)
        stored = FileTable.of(files)
    said = coded_of(words, len(words))
    tables = [one.with_column("number", pa.array(numbers)).with_splits(said) for one in (held, stored)]
    for _ in range(3):
        keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(files), max_size=len(files))), np.bool_)
        tables = [one.filter(keep) for one in tables]
        files, words, numbers = (
            [v for v, kept in zip(some, keep, strict=True) if kept] for some in (files, words, numbers)
        )
        split = [InputFile(f.root, f.name, f.path, f.stat, word) for f, word in zip(files, words, strict=True)]
        for one in tables:
            assert list(one) == split == [one[at] for at in range(len(files))] == list(one[:])
            assert one.splits.to_pylist() == words
            assert one.words("split").to_pylist() == [w for w in one.words("split").to_pylist() if w in words]
            assert counted(one.splits) == {word: words.count(word) for word in dict.fromkeys(words)}
            asked = data.draw(st.lists(st.integers(0, len(files) - 1), max_size=9)) if files else []
            taken = one.take(asked, ("number", "split"))
            assert taken["number"].to_pylist() == [numbers[at] for at in asked]
            assert taken["split"].to_pylist() == [words[at] for at in asked]
            assert pa.Table.from_batches(one.rebatched(2), one.schema)["number"].to_pylist() == numbers
        assert tables[0] == tables[1]
        if files:
            assert tables[0] != tables[1].with_column("number", pa.array([-1] * len(files)))


def small(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(external_sort, "HELD_ROWS", 2)
    patched.setattr(files_module, "FILE_ROWS", 3)


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
    assert not isinstance(held.files._stored, FileBatches)
    assert isinstance(stored.files._stored, FileBatches)
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
    assert isinstance(other.files._stored, FileBatches)
    assert other == one
    assert set(one.files.column("class_name").to_pylist()) == {"cat", "dog"}
    assert {file.split for file in one.files} == {"train", "test"}
    for number, path in enumerate(sorted(tmp_path.rglob("*.txt"))):
        path.rename(path.with_suffix(".xyz" if number == 3 else ".jpg"))
    held, stored = both([str(tmp_path / "in")])
    pictures, others = (plan_images(listing, None, PlanOptions()) for listing in (held, stored))
    assert isinstance(others.files._stored, FileBatches)
    assert len(others.files) == 17
    assert others == pictures
