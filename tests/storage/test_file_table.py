"""A table of files holds what the list of the files holds, also when pickled or filtered."""

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from recordmill.storage.file_table import FileTable, InputFile, count_column_values, encode_column
from recordmill.storage.files import (
    Stat,
)


# Tables of input files against lists of them
def listed_of_listed(count: int) -> list[InputFile]:
    """Files of which one name is not UTF-8, and one path does not end with its name."""
    found = [
        InputFile(at // 20, f"{at:03d}\udcff", f"/in/{at:03d}\udcff", Stat(at, -at, f"{at}"))
        for at in range(count)
    ]
    return [InputFile(0, "a/link", "/elsewhere/\udcfe", Stat(1, 1)), *found[1:]]


def test_file_table_equals_the_list_of_files_also_when_pickled() -> None:
    files = listed_of_listed(50)
    held = FileTable.from_files(iter(files))
    for one in (held, pickle.loads(pickle.dumps(held))):
        assert (len(one), list(one)) == (50, files)
        assert [one[at] for at in (49, 0, 17, 16, -2)] == [files[at] for at in (49, 0, 17, 16, 48)]
        assert list(one.items_at([31, 2, 2, 48])) == [files[at] for at in (31, 2, 2, 48)]
        assert one[3:40] == tuple(files[3:40])
        assert (one.size_bytes, one.sizes.tolist()) == (sum(range(50)) + 1, [1, *range(1, 50)])
        assert [(file.root, file.name) for file in files] == list(one.roots_and_names())
    assert list(FileTable.from_files([])) == []


@settings(deadline=None)
@given(data=st.data(), words=st.lists(st.sampled_from(["a", "b", None, "c"]), max_size=30))
def test_selected_rows_and_columns_of_a_file_table_equal_those_of_lists(
    data: Any, words: list[str | None]
) -> None:
    files = [InputFile(0, f"{at}", f"/in/{at}", Stat(at, at)) for at in range(len(words))]
    numbers = list(range(len(words)))
    one = (
        FileTable.from_files(files)
        .with_column("number", pa.array(numbers))
        .with_splits(encode_column(words, len(words)))
    )
    for _ in range(3):
        keep = np.array(
            data.draw(st.lists(st.booleans(), min_size=len(files), max_size=len(files))), np.bool_
        )
        one = one.filter(keep)
        files, words, numbers = (
            [v for v, kept in zip(some, keep, strict=True) if kept]
            for some in (files, words, numbers)
        )
        split = [
            InputFile(f.root, f.name, f.path, f.stat, word)
            for f, word in zip(files, words, strict=True)
        ]
        assert list(one) == split == [one[at] for at in range(len(files))] == list(one[:])
        assert one.splits.to_pylist() == words
        assert one.dictionary_values("split").to_pylist() == [
            w for w in one.dictionary_values("split").to_pylist() if w in words
        ]
        assert count_column_values(one.splits) == {
            word: words.count(word) for word in dict.fromkeys(words)
        }
        asked = data.draw(st.lists(st.integers(0, len(files) - 1), max_size=9)) if files else []
        taken = one.take_columns(asked, ("number", "split"))
        assert taken["number"].to_pylist() == [numbers[at] for at in asked]
        assert taken["split"].to_pylist() == [words[at] for at in asked]
        if files:
            assert one != one.with_column("number", pa.array([-1] * len(files)))
