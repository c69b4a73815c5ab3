"""One class formats and parses the names of shards, and missing shards are found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.shards.file_names import (
    ShardName,
    describe_missing_shards,
    find_missing_shards,
    group_shards,
    is_data_folder,
    is_safe_relative_path,
)
from recordmill.storage.codecs import SHARD_SUFFIXES


@given(
    st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True),
    st.integers(0, 10**6),
    st.integers(1, 10**6),
    st.sampled_from([*SHARD_SUFFIXES]),
)
def test_shard_name_survives_formatting_and_parsing(
    split: str, index: int, num_shards: int, compression: str
) -> None:
    name = ShardName(split, index, num_shards, compression)
    assert ShardName.parse(str(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "photo.jpg",
        "train-0-of-1.tfrecord",
        "-00000-of-00001.tfrecord",
        "a/b-00000-of-00001.tfrecord",
        "train-00000-of-00001.tfrecord.bz2",
        "train-00000-of-00001.tfrecord\n",
    ],
)
def test_invalid_shard_name_is_not_parsed(name: str) -> None:
    assert ShardName.parse(name) is None


def test_only_compressed_shards_have_a_member_table() -> None:
    assert not ShardName("train", 3, 4).has_members
    compressed = ShardName("train", 3, 4, "gzip")
    assert compressed.has_members
    assert (compressed.index_name, compressed.members_name) == (
        "train-00003.npy",
        "train-00003.members.npy",
    )


def test_paths_are_grouped_by_their_set() -> None:
    paths = ["a/x-00001-of-00002", "a/x-00000-of-00002", "b/x-00000-of-00002", "a/x-1-of-2", "y"]
    groups = group_shards(paths)
    assert [sorted(indices) for indices in groups.values()] == [[0, 1], [0]]
    (first, _) = groups
    assert first.path(0) == "a/x-00000-of-00002"


@given(st.integers(1, 30), st.sets(st.integers(0, 29), min_size=1))
def test_missing_shards_complete_the_set(num_shards: int, present: set[int]) -> None:
    indices = sorted({index % num_shards for index in present})
    paths = [f"x-{index:05d}-of-{num_shards:05d}.tfrecord" for index in range(num_shards)]
    missing = find_missing_shards([paths[index] for index in indices])
    assert sorted([*missing, *(paths[index] for index in indices)]) == paths


def test_huge_number_in_a_name_is_not_a_number_of_shards() -> None:
    assert find_missing_shards(["x-00000-of-99999999"]) == []


def test_note_about_missing_shards_names_the_first_and_counts_the_others() -> None:
    tail = ", which the names of the other shards count"
    assert describe_missing_shards(["a"]) == f"missing: a{tail}"
    assert describe_missing_shards(["a"] * 1001) == f"missing: a and 1,000 more{tail}"


@pytest.mark.parametrize(
    ("name", "is_valid"),
    [
        ("data-0123456789ab", True),
        ("data-0123456789ab-12", True),
        ("data-", False),
        ("data-../x", False),
        ("data-é", False),
        ("data-1\n", False),
        ("xdata-1", False),
    ],
)
def test_name_of_a_data_folder_is_matched_exactly(name: str, is_valid: bool) -> None:
    assert is_data_folder(name) is is_valid


@pytest.mark.parametrize(
    ("name", "is_safe"),
    [
        ("a", True),
        ("a/b.c", True),
        ("", False),
        ("/a", False),
        ("a//b", False),
        ("a/../b", False),
        ("./a", False),
        ("a\\b", False),
        ("a\n", False),
        ("a" * 1001, False),
    ],
)
def test_path_that_leaves_its_folder_is_not_safe(name: str, is_safe: bool) -> None:
    assert is_safe_relative_path(name) is is_safe
