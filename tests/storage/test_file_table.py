"""A table of files equals the list of its files.

This holds for pickled and filtered tables, too.
"""

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from recordmill.storage.file_table import FileTable, InputFile, count_column_values, encode_column
from recordmill.storage.files import Stat


def make_files(count: int) -> list[InputFile]:
    """Returns files with special names.

    One name is not UTF-8, and the path of another file does not end with its name.
    """
    files = [
        InputFile(
            index // 20,
            f"{index:03d}\udcff",
            f"/in/{index:03d}\udcff",
            Stat(index, -index, f"{index}"),
        )
        for index in range(count)
    ]
    return [InputFile(0, "a/link", "/elsewhere/\udcfe", Stat(1, 1)), *files[1:]]


def test_file_table_equals_the_list_of_files_also_when_pickled() -> None:
    files = make_files(50)
    original = FileTable.from_files(iter(files))
    for table in (original, pickle.loads(pickle.dumps(original))):
        assert (len(table), list(table)) == (50, files)
        assert [table[index] for index in (49, 0, 17, 16, -2)] == [
            files[index] for index in (49, 0, 17, 16, 48)
        ]
        assert list(table.items_at([31, 2, 2, 48])) == [files[index] for index in (31, 2, 2, 48)]
        assert table[3:40] == tuple(files[3:40])
        assert (table.size_bytes, table.sizes.tolist()) == (sum(range(50)) + 1, [1, *range(1, 50)])
        assert [(file.root, file.name) for file in files] == list(table.roots_and_names())
    assert list(FileTable.from_files([])) == []


@settings(deadline=None)
@given(data=st.data(), words=st.lists(st.sampled_from(["a", "b", None, "c"]), max_size=30))
def test_selected_rows_and_columns_of_a_file_table_equal_those_of_lists(
    data: Any, words: list[str | None]
) -> None:
    files = [
        InputFile(0, f"{index}", f"/in/{index}", Stat(index, index)) for index in range(len(words))
    ]
    numbers = list(range(len(words)))
    table = (
        FileTable.from_files(files)
        .with_column("number", pa.array(numbers))
        .with_splits(encode_column(words, len(words)))
    )
    for _ in range(3):
        mask = np.array(
            data.draw(st.lists(st.booleans(), min_size=len(files), max_size=len(files))), np.bool_
        )
        table = table.filter(mask)
        files, words, numbers = (
            [value for value, is_kept in zip(column, mask, strict=True) if is_kept]
            for column in (files, words, numbers)
        )
        split = [
            InputFile(file.root, file.name, file.path, file.stat, word)
            for file, word in zip(files, words, strict=True)
        ]
        assert (
            list(table) == split == [table[index] for index in range(len(files))] == list(table[:])
        )
        assert table.splits.to_pylist() == words
        assert table.dictionary_values("split").to_pylist() == [
            w for w in table.dictionary_values("split").to_pylist() if w in words
        ]
        assert count_column_values(table.splits) == {
            word: words.count(word) for word in dict.fromkeys(words)
        }
        indices = data.draw(st.lists(st.integers(0, len(files) - 1), max_size=9)) if files else []
        selected = table.take_columns(indices, ("number", "split"))
        assert selected["number"].to_pylist() == [numbers[index] for index in indices]
        assert selected["split"].to_pylist() == [words[index] for index in indices]
        if files:
            assert table != table.with_column("number", pa.array([-1] * len(files)))
