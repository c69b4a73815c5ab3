"""Folders on a disk and in a store are walked alike."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recordmill.storage.files import stat
from recordmill.storage.walk import IgnoredFiles, walk_disk, walk_store

PARTS = ["a", "b.csv", "c.txt", ".hid", "_SUCCESS", "d~", "e[1]", "x.CSV"]
PATTERNS = [
    "*",
    "*.csv",
    "**",
    "**/*.csv",
    "a/*",
    "a/**/b.csv",
    "*/**",
    ".*",
    ".hid/*",
    "?",
    "[a-c]*",
    "**/.hid",
    "*/*/*",
]
names_of_walk = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map("/".join)


@settings(max_examples=75, deadline=None)
@given(
    files=st.lists(st.tuples(names_of_walk, st.integers(0, 1)), max_size=12),
    pattern=st.sampled_from([None, *PATTERNS]),
)
def test_disk_and_store_listings_agree(files: list[tuple[str, int]], pattern: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        states = {}
        for name, size in files:
            path = Path(folder, name)
            if not path.exists() and not any(parent.is_file() for parent in path.parents):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"x" * size)
                states[name] = stat(str(path))
        patch.setattr("recordmill.storage.walk.iter_object_stats", lambda _: iter(states.items()))
        local_ignored, remote_ignored = IgnoredFiles({"csv"}), IgnoredFiles({"csv"})
        local_names = {entry.name for entry in walk_disk(folder, pattern, False, local_ignored)}
        entries = list(walk_store("s3://bucket/in", pattern, remote_ignored))
        assert sorted(entry.name for entry in entries) == sorted(local_names)
        assert all(entry.path == f"s3://bucket/in/{entry.name}" for entry in entries)
        assert remote_ignored.notes() == local_ignored.notes()
